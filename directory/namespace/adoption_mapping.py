"""Adoption mapping: the path below the mount for a topic that Kafka already has, and why.

Pure: ``plan_adoption`` returns what would happen, and ``AdoptTopics``
(``directory/namespace/plan.py``) does it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from directory.namespace.command import ObservedTopic
from directory.namespace.entry import Kind, Mount
from directory.namespace.keys import (
    deleted_topic_id,
    detached_key,
    entry_key,
    is_awaited,
    parse_detached,
    retired_key,
)
from directory.namespace.protected_topics import is_protected
from directory.namespace.snapshot import LocatedTopic, Node, Snapshot
from directory.namespace.traversal import describe_kind, entry_path, traverse
from resolver.errors import InvalidArgument, InvalidPath, UnreadableRecord
from resolver.glob import Glob
from resolver.path import MAX_SEGMENT_LENGTH, ROOT, Path, check_segment, is_system

__all__ = [
    "ADOPTED",
    "DETACHED_REASON",
    "Adoption",
    "AdoptionAction",
    "MappingRule",
    "Placement",
    "PlacementSet",
    "is_deleted",
    "is_detached",
    "map_physical_name",
    "plan_adoption",
    "split_on",
]


ADOPTED: Final = "__adopted"
"""Directory below the mount for topics whose path is taken."""

DETACHED_REASON: Final = (
    "its entry was removed while Kafka's topic was left alone; to adopt it again: "
    "kdir adopt PATH --topic NAME, or all below PATH: kdir adopt PATH --detached"
)


def is_detached(snapshot: Snapshot, observed: ObservedTopic) -> bool:
    """True if this very Kafka topic was left alone when its entry was removed, or if kdir requested
    it from Kafka and removed its entry before the topic appeared. A topic of the same name with
    another id is not detached: another client of Kafka created it since.
    """
    value = snapshot.fact(detached_key(observed.physical_name))
    if value is None:
        return is_awaited(snapshot.fact(retired_key(observed.physical_name)))
    topic_id, _ = parse_detached(value)
    return not topic_id or not observed.topic_id or topic_id == observed.topic_id


def is_deleted(snapshot: Snapshot, observed: ObservedTopic) -> bool:
    """True if this very Kafka topic was deleted when its entry was removed: a broker that lags may
    still show it.
    """
    name = observed.physical_name
    deleted_id = deleted_topic_id(snapshot.fact(retired_key(name)))
    is_same = bool(deleted_id) and deleted_id == observed.topic_id
    return is_same and snapshot.fact(detached_key(name)) is None  # otherwise it was left alone


class PlacementSet:
    """Set of occupied paths: those of a snapshot, and those of topics placed since."""

    def __init__(self, snapshot: Snapshot, mount: Path) -> None:
        self.snapshot = snapshot
        self._mount = mount
        self._taken: dict[tuple[str, ...], str] = {}

    def assign_path(
        self, wanted: tuple[str, ...], physical_name: str
    ) -> tuple[tuple[str, ...], str]:
        """Returns the path for a topic, which is then occupied, and why it is not the wanted one
        (empty = it is).

        A topic is never dropped because its path is taken: it goes under ``__adopted/`` by its flat
        name, with a number if that is taken too. The path is empty only if the mount is so deep
        that even this one exceeds a path's limits.
        """
        reason = self.why_blocked(wanted)
        if reason is None:
            self.mark_occupied(wanted, physical_name)
            return wanted, ""
        for number in count(1):
            suffix = "" if number == 1 else f".{number}"
            name = physical_name[: MAX_SEGMENT_LENGTH - len(suffix)] + suffix
            spare = (ADOPTED, name)
            if self._bad_path(spare) is not None:
                break
            if self.why_blocked(spare) is None:
                self.mark_occupied(spare, physical_name)
                return spare, reason
        return (), reason

    def mark_occupied(self, relative: tuple[str, ...], physical_name: str = "") -> None:
        """Records that there is a topic at this path from now on."""
        self._taken[relative] = physical_name

    def why_blocked(self, relative: tuple[str, ...]) -> str | None:
        """Returns why no topic can be created at a path; None = it can, with the missing
        directories.
        """
        if not relative:
            return "the rules give it no path"
        if (reason := self._bad_path(relative)) is not None:
            return reason
        if relative in self._taken:
            other = self._taken[relative]
            return f"{self._path_text(relative)} is taken by topic {other!r}"
        way = traverse(self.snapshot, relative[:-1])
        if way.depth < len(relative) - 1:
            if way.stopped_by is None:
                return self._unreadable(way.node, relative[: way.depth + 1], Kind.DIRECTORY)
            stop = self._path_text(relative[: way.depth + 1])
            return f"{stop} is {describe_kind(way.stopped_by)}, not a directory"
        return self._standing(way.node, relative)

    def _standing(self, node: Node, relative: tuple[str, ...]) -> str | None:
        name = relative[-1]
        try:
            topic = self.snapshot.topic(node.entry_id, name)
        except UnreadableRecord:
            return self._why_unreadable(relative)
        if topic is not None:
            return f"{self._path_text(relative)} is taken by topic {topic.physical_name!r}"
        container = node.containers.get(name)
        if isinstance(container, Mount):
            return f"{self._path_text(relative)} is {describe_kind(container)}"
        return self._unreadable(node, relative, Kind.TOPIC) or self._unreadable(
            node, relative, Kind.DIRECTORY
        )

    def _unreadable(self, node: Node, relative: tuple[str, ...], kind: Kind) -> str | None:
        if entry_key(node.entry_id, kind, relative[-1]) in self.snapshot.unreadable_values:
            return self._why_unreadable(relative)
        return None

    def _why_unreadable(self, relative: tuple[str, ...]) -> str:
        return f"something exists at {self._path_text(relative)} that cannot be read"

    def _bad_path(self, relative: tuple[str, ...]) -> str | None:
        for segment in relative[relative[0] == ADOPTED : -1]:
            if is_system(segment):  # reserved for directories: a topic may have such a name
                return f"segment {segment!r} would be a system's: such begin with '__'"
        try:
            self._mount.join(relative)
        except InvalidPath as reason:
            return reason.message
        return None

    def _path_text(self, relative: tuple[str, ...]) -> str:
        return str(entry_path(self._mount, relative))


class AdoptionAction(enum.Enum):
    """Result of adoption for one topic (``kdir.v1.Adoption.action``)."""

    ADOPT = "adopt"
    KEEP = "keep"
    MOVE = "move"
    FLAT = "flat"
    COLLIDES = "collides"
    IGNORE = "ignore"
    DETACHED = "detached"


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingRule:
    """Mapping rule (``kdir.v1.MappingRule``); the first that matches a physical name applies."""

    match: Glob
    """Glob for the whole physical name."""
    split_on: str = ""
    """Separator at which the rest of the name is split; empty = one segment."""
    into: tuple[str, ...] = ()
    """Directory below the mount."""
    strip_prefix: str = ""
    """Prefix that is removed before splitting; a name without it is left whole."""
    ignore: bool = False
    """True: such topics are not adopted."""

    @classmethod
    def from_fields(
        cls,
        match: str,
        *,
        split_on: str = "",
        into: str = "",
        strip_prefix: str = "",
        ignore: bool = False,
    ) -> MappingRule:
        """Returns the rule that a user wrote; ``into`` is a relative path such as ``search/logs``.

        Raises:
            InvalidArgument: names the field and the expected value.
        """
        if not match:
            raise InvalidArgument("rule: match is empty; expected a glob such as '*'")
        try:
            segments = tuple(into.strip("/").split("/")) if into.strip("/") else ()
            for position, segment in enumerate(segments, start=1):
                check_segment(segment, position)
        except InvalidPath as reason:
            raise InvalidArgument(
                f"rule for {match!r}: into is {into!r}: {reason.message}; expected a "
                f"relative path such "
                f"as 'search/logs'",
                field="into",
            ) from reason
        if any(is_system(segment) for segment in segments):
            raise InvalidArgument(
                f"rule for {match!r}: into is {into!r}: names that begin with '__' are the "
                f"system's",
                field="into",
            )
        return cls(
            match=Glob.parse(match),
            split_on=split_on,
            into=segments,
            strip_prefix=strip_prefix,
            ignore=ignore,
        )


def split_on(separator: str) -> tuple[MappingRule, ...]:
    """Returns the rules for ``[kafka] split_on``: every name is split at the separator; if that is
    empty, every topic stays flat.
    """
    return (MappingRule.from_fields("*", split_on=separator),) if separator else ()


@dataclass(frozen=True, slots=True)
class Placement:
    """Path that the rules give to one physical name."""

    segments: tuple[str, ...]
    """Below the mount; empty if the topic is not adopted."""
    rule: int
    """Number of the rule that matched, from 1; 0 = none."""
    reason: str = ""
    """Why the topic stays flat or is not adopted; empty if the rule was followed."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """Planned or finished adoption of one topic."""

    observed: ObservedTopic
    action: AdoptionAction
    segments: tuple[str, ...]
    """Path below the mount: the new one, the present one (``KEEP``), or the last one
    (``DETACHED``); empty = none.
    """
    rule: int
    message: str = ""

    @property
    def is_new(self) -> bool:
        """True if the topic gets an entry."""
        return self.action in {AdoptionAction.ADOPT, AdoptionAction.FLAT, AdoptionAction.COLLIDES}


def map_physical_name(rules: Sequence[MappingRule], physical_name: str) -> Placement:
    """Returns the path below the mount by the first rule that matches.

    A name that would be no valid path (``a..b``, ``.a``, ``a.``, ``a.__b``) stays flat, as one
    segment at the mount root. Kafka's own topics and kdir's get no path; any other name is allowed,
    also one that begins with ``__``.
    """
    if is_protected(physical_name):
        return Placement((), 0, "it is an internal topic of Kafka or kdir")
    for number, rule in enumerate(rules, start=1):
        if not rule.match.matches_segment(physical_name):
            continue
        if rule.ignore:
            return Placement((), number, f"rule {number} leaves it out")
        rest = physical_name.removeprefix(rule.strip_prefix)
        parts = tuple(rest.split(rule.split_on)) if rule.split_on else (rest,)
        if (reason := _why_flat(parts, rule)) is not None:
            return Placement((physical_name,), number, reason)
        return Placement((*rule.into, *parts), number)
    return Placement((physical_name,), 0, "no rule takes it")


def _why_flat(parts: Sequence[str], rule: MappingRule) -> str | None:
    for position, part in enumerate(parts, start=1):
        if not part:
            why = f"split on {rule.split_on!r} it" if rule.split_on else "without its prefix it"
            return f"{why} would have an empty segment"
        if is_system(part) and position < len(parts):
            return f"segment {part!r} would be a system's: such begin with '__'"
        try:
            check_segment(part)
        except InvalidPath as reason:
            return reason.message
    return None


def plan_adoption(
    rules: Sequence[MappingRule],
    observed: Iterable[ObservedTopic],
    snapshot: Snapshot,
    *,
    mount: Path = ROOT,
    remap_adopted: bool = False,
) -> list[Adoption]:
    """Returns the result of adoption by these rules for each topic, ordered by physical name.

    ``remap_adopted``: topics that were adopted before move to their path by these rules; other
    known topics stay where they are.
    """
    places = PlacementSet(snapshot, mount)
    return [
        _adoption(
            one, map_physical_name(rules, one.physical_name), places, remap_adopted=remap_adopted
        )
        for one in sorted(observed, key=lambda topic: topic.physical_name)
    ]


def _adoption(
    observed: ObservedTopic,
    placement: Placement,
    places: PlacementSet,
    *,
    remap_adopted: bool,
) -> Adoption:
    name, rule = observed.physical_name, placement.rule
    known = places.snapshot.locate(name)
    if known is not None:
        return _known(observed, known, placement, places, remap_adopted=remap_adopted)
    if is_detached(places.snapshot, observed):
        _, last = parse_detached(places.snapshot.fact(detached_key(name)) or b"")
        return Adoption(observed, AdoptionAction.DETACHED, last, rule, DETACHED_REASON)
    if not placement.segments:
        return Adoption(observed, AdoptionAction.IGNORE, (), rule, placement.reason)
    segments, reason = places.assign_path(placement.segments, name)
    if reason:
        action = AdoptionAction.COLLIDES if segments else AdoptionAction.IGNORE
        return Adoption(observed, action, segments, rule, reason)
    action = AdoptionAction.FLAT if placement.reason else AdoptionAction.ADOPT
    return Adoption(observed, action, segments, rule, placement.reason)


def _known(
    observed: ObservedTopic,
    known: LocatedTopic,
    placement: Placement,
    places: PlacementSet,
    *,
    remap_adopted: bool,
) -> Adoption:
    rule, here = placement.rule, known.relative
    if here is None:
        return Adoption(observed, AdoptionAction.IGNORE, (), rule, "it is being removed")
    if not remap_adopted or not known.topic.adopted or placement.segments in {(), here}:
        return Adoption(observed, AdoptionAction.KEEP, here, rule)
    reason = places.why_blocked(placement.segments)
    if reason is not None:
        return Adoption(observed, AdoptionAction.KEEP, here, rule, f"it cannot be moved: {reason}")
    places.mark_occupied(placement.segments)
    return Adoption(observed, AdoptionAction.MOVE, placement.segments, rule, placement.reason)
