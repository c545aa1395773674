"""Where topics that Kafka already has can be put below the mount, and where instead if not there.

Refuses to put them there: it only keeps count of the places that were given.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from directory.namespace.command import ObservedTopic
from directory.namespace.entry import Kind, Mount
from directory.namespace.keys import detached_key, entry_key, is_awaited, retired_key
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.traversal import describe_kind, traverse
from resolver.errors import InvalidPath
from resolver.path import MAX_SEGMENT_LENGTH, Path, is_system

__all__ = ["ADOPTED", "DETACHED_REASON", "PlacementSet", "is_detached"]

ADOPTED: Final = "__adopted"
"""The directory under the mount that takes topics whose place is taken."""

DETACHED_REASON: Final = (
    "its entry was removed while Kafka's topic was left alone; create it again with adopt_existing"
)


def is_detached(snapshot: Snapshot, observed: ObservedTopic) -> bool:
    """True if this very Kafka topic was left alone when its entry was removed, or kdir asked for it
    and its entry was removed before Kafka showed it. One of the same name with another id was made
    since, by somebody else.
    """
    topic_id = snapshot.fact(detached_key(observed.physical_name))
    if topic_id is None:
        return is_awaited(snapshot.fact(retired_key(observed.physical_name)))
    return not topic_id or not observed.topic_id or topic_id == observed.topic_id


class PlacementSet:
    """Where topics can be put: what a snapshot holds, and what was put there since."""

    def __init__(self, snapshot: Snapshot, mount: Path) -> None:
        self.snapshot = snapshot
        self._mount = mount
        self._taken: dict[tuple[str, ...], str] = {}

    def assign_path(
        self, wanted: tuple[str, ...], physical_name: str
    ) -> tuple[tuple[str, ...], str]:
        """Returns the place that a topic gets, and why it is not the wanted one; takes it.

        A topic is never dropped for want of a place: it goes under ``__adopted/`` by its flat name,
        with a number where that is taken too. Only a mount so deep that not even this makes a path
        leaves no place, which is then empty.
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
        """A topic stands there from now on."""
        self._taken[relative] = physical_name

    def why_blocked(self, relative: tuple[str, ...]) -> str | None:
        """Returns why no topic can be put there; None = one can, when the missing directories are
        made.
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
        topic = self.snapshot.topic(node.entry_id, name)
        if topic is not None:
            return f"{self._path_text(relative)} is taken by topic {topic.physical_name!r}"
        container = node.containers.get(name)
        if isinstance(container, Mount):
            return f"{self._path_text(relative)} is {describe_kind(container)}"
        return self._unreadable(node, relative, Kind.TOPIC) or self._unreadable(
            node, relative, Kind.DIRECTORY
        )

    def _unreadable(self, node: Node, relative: tuple[str, ...], kind: Kind) -> str | None:
        if entry_key(node.entry_id, kind, relative[-1]) in self.snapshot.quarantined:
            return f"something stands at {self._path_text(relative)} that cannot be read"
        return None

    def _bad_path(self, relative: tuple[str, ...]) -> str | None:
        for segment in relative[relative[0] == ADOPTED :]:
            if is_system(segment):
                return f"segment {segment!r} would be a system's: such begin with '__'"
        try:
            self._mount.join(relative)
        except InvalidPath as reason:
            return reason.message
        return None

    def _path_text(self, relative: tuple[str, ...]) -> str:
        return str(Path((*self._mount.segments, *relative)))
