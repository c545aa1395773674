"""Plans of adoption, and of what the reconciler observes of known topics.

Adoption leaves people's decisions alone: a topic with a known physical name stays where it is, and
one whose entry was removed while the Kafka topic was kept is not adopted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from directory.namespace import physical_names
from directory.namespace.adoption_mapping import DETACHED_REASON, PlacementSet, is_detached
from directory.namespace.command import (
    AdoptTopics,
    MoveTopics,
    ObservedTopic,
    Plan,
    RecordObservations,
    TopicObservation,
)
from directory.namespace.entry import DELETED_ID, Directory, Kind, Provision, Topic
from directory.namespace.plan_builder import PlanBuilder
from directory.namespace.plan_create import check_names
from directory.namespace.plan_delete import delete_record
from directory.namespace.protected_topics import is_protected
from directory.namespace.quotas import (
    Amount,
    QuotaAdditions,
    check_quota,
    check_topic_own_quota,
    counting_directories,
    topic_amount,
)
from directory.namespace.removal_progress import DELETED
from directory.namespace.snapshot import Node
from directory.namespace.traversal import relative_to_mount, traverse
from resolver.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotAuthoritative,
    QuotaExceeded,
)
from resolver.path import Path, is_system

__all__ = ["adopt_topics", "move_topics", "record_topics"]

_FIELDS: Final = (
    "provision",
    "provision_message",
    "topic_id",
    "partitions",
    "replication_factor",
    "drift_count",
    "provision_attempt",
    "adopted",
)


def adopt_topics(draft: PlanBuilder, command: AdoptTopics) -> Plan:
    """Plans the adoption of topics; notes name those with another path than the mapping's, or
    without one.
    """
    adoption = _Adoption(draft)
    for relative, observed in command.topics:
        adoption.take_in(tuple(relative), observed)
    adoption.arrivals.mark()
    notes = (*adoption.notes, *adoption.arrivals.notes())
    return draft.finish(topic_count=adoption.count, notes=notes)


class _Adoption:
    def __init__(self, draft: PlanBuilder) -> None:
        self.notes: list[str] = []
        self.count = 0
        self.arrivals = QuotaAdditions(draft)
        self._draft = draft
        self._places = PlacementSet(draft.snapshot, draft.mount)
        self._tiers = _MissingDirectories(draft)
        self._seen: set[str] = set()

    def take_in(self, wanted: tuple[str, ...], observed: ObservedTopic) -> None:
        draft, name = self._draft, observed.physical_name
        if name in self._seen or draft.snapshot.locate(name) is not None:
            return
        if (reason := self._why_not(observed)) is not None:
            self.notes.append(f"{name} is left out: {reason}")
            return
        relative, reason = self._places.assign_path(wanted, name)
        if not relative:
            self.notes.append(f"{name} is left out: {reason}")
            return
        path = draft.mount.join(relative)
        if reason:
            self.notes.append(f"{name} is put at {path}: {reason}")
        self._seen.add(name)
        self.count += 1
        topic = Topic(
            entry_id=draft.fresh_id(),
            changed_at_ms=draft.context.now_ms,
            changed_by=draft.context.principal,
            physical_name=name,
            topic_id=observed.topic_id,
            partitions=observed.partitions,
            replication_factor=observed.replication_factor,
            provision=Provision.ACTIVE,
            adopted=True,
            observed_config=MappingProxyType(dict(observed.config)),
        )
        parent_id, is_new = self._tiers.directory(relative[:-1])
        if not is_new:
            draft.require_sibling_unchanged(parent_id, relative[-1], path)
        draft.insert_entry(parent_id, relative[-1], topic, path, parent_is_new=is_new)
        if len(relative) == 1 or not is_system(relative[0]):
            standing = traverse(draft.snapshot, relative[:-1]).node
            self.arrivals.add(standing, topic_amount(topic))
        draft.claim_name(name)

    def _why_not(self, observed: ObservedTopic) -> str | None:
        if is_protected(observed.physical_name):
            return "it is an internal topic of Kafka or kdir"
        if is_detached(self._draft.snapshot, observed):
            return DETACHED_REASON
        return physical_names.why_invalid(observed.physical_name)


class _MissingDirectories:
    """Directories that a plan needs; missing ones are created, each once."""

    def __init__(self, draft: PlanBuilder) -> None:
        self._draft = draft
        self._made: dict[tuple[int, str], int] = {}

    def directory(self, relative: Sequence[str]) -> tuple[int, bool]:
        """Returns the id of the directory at a path, and whether it is new."""
        draft = self._draft
        way = traverse(draft.snapshot, relative)
        draft.require_ancestors(way.node)
        parent_id = way.node.entry_id
        for depth in range(way.depth, len(relative)):
            place = (parent_id, relative[depth])
            if place not in self._made:
                made = Directory(
                    entry_id=draft.fresh_id(),
                    changed_at_ms=draft.context.now_ms,
                    changed_by=draft.context.principal,
                )
                path = draft.mount.join(relative[: depth + 1])
                draft.insert_entry(*place, made, path, parent_is_new=depth > way.depth)
                self._made[place] = made.entry_id
            parent_id = self._made[place]
        return parent_id, way.depth < len(relative)


def move_topics(draft: PlanBuilder, command: MoveTopics) -> Plan:
    """Plans the move of topics to their paths by new rules; notes name those that stay, and why."""
    moving = _Moving(draft)
    for path, entry_id, new_path in command.moves:
        try:
            moving.move(path, entry_id, new_path)
        except (Conflict, InvalidInput, NotAuthoritative) as reason:
            moving.notes.append(f"{path} cannot be moved to {new_path}: {reason.message}")
    return draft.finish(topic_count=moving.count, notes=moving.notes)


class _Moving:
    def __init__(self, draft: PlanBuilder) -> None:
        self.notes: list[str] = []
        self.count = 0
        self._draft = draft
        self._places = PlacementSet(draft.snapshot, draft.mount)
        self._tiers = _MissingDirectories(draft)
        self._seen: set[int] = set()
        self._arrivals = QuotaAdditions(draft)

    def move(self, path: Path, entry_id: int, new_path: Path) -> None:
        """Moves one topic, if it still exists; a refused one adds nothing to the plan."""
        draft = self._draft
        above = relative_to_mount(draft.mount, path)[:-1]
        source = traverse(draft.snapshot, above)
        topic = draft.snapshot.topic(source.node.entry_id, path.name)
        here = topic is not None and topic.entry_id == entry_id and source.depth == len(above)
        if topic is None or not here or entry_id in self._seen:
            return
        relative = relative_to_mount(draft.mount, new_path)
        self._check(topic, source.node, relative, new_path)
        self._seen.add(entry_id)
        self.count += 1
        self._places.mark_occupied(relative, topic.physical_name)
        draft.require_ancestors(source.node)
        parent_id, is_new = self._tiers.directory(relative[:-1])
        if not is_new:
            draft.require_sibling_unchanged(parent_id, relative[-1], new_path)
            draft.require_free(parent_id, Kind.TOPIC, relative[-1], new_path)
        delete_record(draft, source.node.entry_id, path.name, topic)
        moved = draft.stamped(topic)
        draft.write_record(parent_id, relative[-1], moved)
        draft.carry_grants(source.node.entry_id, path.name, topic, parent_id, relative[-1])
        draft.record_new_state(moved, parent_id, new_path, before=topic, path_before=path)

    def _check(self, topic: Topic, source: Node, relative: tuple[str, ...], path: Path) -> None:
        draft = self._draft
        check_names(path, relative)
        if (obstacle := self._places.why_blocked(relative)) is not None:
            raise AlreadyExists(obstacle, path=path)
        target = traverse(draft.snapshot, relative[:-1]).node
        draft.check_not_read_only(source, topic.policies)
        draft.check_not_read_only(target)
        counting = counting_directories(draft.snapshot, source)
        counted = frozenset(node.entry_id for node in counting)
        comes, arriving = topic_amount(topic), self._arrivals.by_directory
        check_quota(draft, target, comes, unless=counted, arriving=arriving)
        self._arrivals.add(target, comes, unless=counted)


def record_topics(draft: PlanBuilder, command: RecordObservations) -> Plan:
    """Plans the record of the reconciler's observations; topics that are gone or unchanged are
    skipped.
    """
    pending: dict[int, tuple[_TopicRecord, Topic, Topic]] = {}
    arrivals = QuotaAdditions(draft)
    for news in command.news:
        place = _find_topic_record(draft, news)
        topic = place.topic(draft) if place is not None else None
        if place is None or topic is None or topic.entry_id != news.entry_id:
            continue
        _, before, latest = pending.get(topic.entry_id, (place, topic, topic))
        pending[topic.entry_id] = (place, before, _apply_observation(latest, news))
    count, notes = 0, []
    for place, before, after in pending.values():
        if after == before:
            continue
        grown = topic_amount(after).partitions - topic_amount(before).partitions
        if grown > 0 and place.node is not None:
            more = Amount(0, grown)
            if command.within_quotas:
                try:
                    check_topic_own_quota(place.path, after.policies, after.partitions)
                    check_quota(draft, place.node, more, arriving=arrivals.by_directory)
                except QuotaExceeded as reason:
                    notes.append(f"{place.path}: {reason.message}")
                    continue
            arrivals.add(place.node, more)
        count += 1
        place.write(draft, before, after)
    arrivals.mark()
    return draft.finish(topic_count=count, notes=notes)


class _TopicRecord:
    """Place of an observed topic; ``node`` None = it is below DELETED_ID."""

    def __init__(self, node: Node | None, name: str, path: Path) -> None:
        self.node = node
        self._name = name
        self.path = path
        self._parent_id = DELETED_ID if node is None else node.entry_id

    def topic(self, draft: PlanBuilder) -> Topic | None:
        return draft.snapshot.topic(self._parent_id, self._name)

    def write(self, draft: PlanBuilder, before: Topic, after: Topic) -> None:
        stamped = draft.stamped(after)
        if not draft.context.principal:
            # An observation is nobody's change: `changed_by` stays as it was.
            stamped = replace(stamped, changed_by=before.changed_by)
        if self.node is None:
            # Its removal was an event already; an update now would restore it in the log.
            draft.expect_entry(self._parent_id, self._name, before)
            draft.write_record(self._parent_id, self._name, stamped)
            return
        draft.require_ancestors(self.node)
        draft.update(self._parent_id, self._name, before, stamped, self.path)


def _find_topic_record(draft: PlanBuilder, news: TopicObservation) -> _TopicRecord | None:
    if not draft.mount.is_prefix_of(news.path):
        return None
    relative = news.path.below(draft.mount)
    if not relative:
        return None
    above, name = relative[:-1], relative[-1]
    if above == (DELETED,):
        return _TopicRecord(None, name, news.path)
    way = traverse(draft.snapshot, above)
    return _TopicRecord(way.node, name, news.path) if way.depth == len(above) else None


def _apply_observation(topic: Topic, news: TopicObservation) -> Topic:
    reported: dict[str, Any] = {
        field: value for field in _FIELDS if (value := getattr(news, field)) is not None
    }
    if news.observed_config is not None:
        reported["observed_config"] = MappingProxyType(dict(news.observed_config))
    if not news.adopted and topic.partitions != news.refused_partitions:
        # An update may have raised it since Kafka was asked.
        reported["partitions"] = max(topic.partitions, news.partitions or 0)
    return replace(topic, **reported)
