"""What is kept of a removed directory until the reaper has finished it, and what is left of it.

Refuses to decide anything of a removal: ``plan_delete.py`` does, and goes by this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from directory.namespace.entry import DELETED_ID, Directory
from directory.namespace.keys import LEVEL, removal_key
from directory.namespace.snapshot import Snapshot
from resolver.errors import InvalidPath
from resolver.path import Path

__all__ = [
    "DELETED",
    "LARGE_CHANGES_LEVEL",
    "Removal",
    "RemovalInProgress",
    "removal_level",
    "removals",
]

DELETED: Final = "__deleted"
"""How the place of removed entries is called in paths of change events."""

LARGE_CHANGES_LEVEL: Final = 2
"""From this feature level on, how large a change was when it began is kept with it."""

_TEXTS: Final = {True: "kafka", False: "keep"}


def removal_level(snapshot: Snapshot) -> int:
    """Returns the finalized feature level; 1 where none was."""
    value = snapshot.fact(LEVEL)
    return int(value) if value is not None and value.isdigit() else 1


@dataclass(frozen=True, slots=True)
class Removal:
    """What was decided when a directory was removed; the reaper goes by it, whenever it comes."""

    goes_in_kafka: bool
    path: Path
    """Where it was."""
    entries: int | None = None
    """How many topics and directories it had, itself among them; None = it was not written down:
    the cluster was at feature level 1.
    """
    started_at_ms: int = 0
    principal: str = ""

    def to_bytes(self) -> bytes:
        """Returns the stored form: lines, of which feature level 1 knows the first two
        and no more.
        """
        lines = [_TEXTS[self.goes_in_kafka], str(self.path)]
        if self.entries is not None:
            principal = self.principal.replace("\n", " ")
            lines += [str(self.entries), str(self.started_at_ms), principal]
        return "\n".join(lines).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        """Back from ``to_bytes``.

        Raises:
            ValueError, InvalidPath: no such value.
        """
        word, path, *more = value.decode().split("\n")
        entries, started, principal = more[:3] if len(more) >= 3 else ("", "0", "")
        return cls(
            goes_in_kafka=word == _TEXTS[True],
            path=Path.parse(path),
            entries=int(entries) if entries else None,
            started_at_ms=int(started),
            principal=principal,
        )

    @classmethod
    def load(cls, snapshot: Snapshot, entry_id: int) -> Self | None:
        """Of a directory below ``DELETED_ID``; None where nothing was kept that can be read: then
        Kafka's topics are left alone.
        """
        value = snapshot.fact(removal_key(entry_id))
        try:
            return None if value is None else cls.from_bytes(value)
        except (ValueError, InvalidPath):
            return None


class RemovalInProgress(NamedTuple):
    """A removed directory that is not finished."""

    entry_id: int
    removal: Removal | None
    left: int
    """Topics and directories that are left of it, itself among them."""


def removals(snapshot: Snapshot) -> Iterator[RemovalInProgress]:
    """Yields the removed directories that wait for the reaper, by entry id; costs nothing per
    entry.
    """
    place = snapshot.node(DELETED_ID)
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
