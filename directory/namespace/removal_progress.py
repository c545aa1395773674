"""Progress of a removal: the record of a removed directory until the reaper has finished it, and
how much of it is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from directory.namespace.entry import DELETED_ID, Directory
from directory.namespace.keys import removal_key
from directory.namespace.snapshot import Snapshot
from resolver.errors import InvalidPath
from resolver.path import Path

__all__ = [
    "DELETED",
    "Removal",
    "RemovalInProgress",
    "removals",
]

DELETED: Final = "__deleted"
"""Name of the place of removed entries in the paths of change events."""

_TEXTS: Final = {True: "kafka", False: "keep"}


@dataclass(frozen=True, slots=True)
class Removal:
    """Decision made when a directory was removed; the reaper executes it later."""

    goes_in_kafka: bool
    path: Path
    """Path before the removal."""
    entries: int
    """Number of topics and directories at the removal, the removed directory included."""
    started_at_ms: int
    principal: str

    def to_bytes(self) -> bytes:
        """Returns the stored form: one field a line; a later release may append lines."""
        principal = self.principal.replace("\n", " ")
        fate = _TEXTS[self.goes_in_kafka]
        lines = [fate, str(self.path), str(self.entries), str(self.started_at_ms), principal]
        return "\n".join(lines).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        """Parses the form of ``to_bytes``.

        Raises:
            ValueError, InvalidPath: not a valid record.
        """
        fate, path, entries, started, principal, *_ = value.decode().split("\n")
        return cls(
            goes_in_kafka=fate == _TEXTS[True],
            path=Path.parse(path),
            entries=int(entries),
            started_at_ms=int(started),
            principal=principal,
        )

    @classmethod
    def load(cls, snapshot: Snapshot, entry_id: int) -> Self | None:
        """Loads the record of a directory below ``DELETED_ID``; None if there is no readable one:
        then Kafka's topics are left alone.
        """
        value = snapshot.fact(removal_key(entry_id))
        try:
            return None if value is None else cls.from_bytes(value)
        except (ValueError, InvalidPath):
            return None


class RemovalInProgress(NamedTuple):
    """Removed directory that the reaper has not finished."""

    entry_id: int
    removal: Removal | None
    left: int
    """Number of topics and directories left, the removed directory included."""


def removals(snapshot: Snapshot) -> Iterator[RemovalInProgress]:
    """Yields the removed directories that wait for the reaper, by entry id; the entries below them
    are not visited.
    """
    place = snapshot.nodes.get(DELETED_ID)
    if place is None:
        return
    for container in place.containers.values():
        if isinstance(container, Directory):
            counts = snapshot.counts(container.entry_id)
            yield RemovalInProgress(
                container.entry_id,
                Removal.load(snapshot, container.entry_id),
                counts.topics + counts.directories + 1,
            )
