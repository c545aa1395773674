"""What a store's rows are to people: how many entries of which kind, and their paths.

Refuses to judge them; what cannot be read is counted as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from directory.maintenance.backup import Row, merge_by_key
from directory.namespace.entry import DELETED_ID, ROOT_ID, Directory
from directory.namespace.keys import (
    ENTRY,
    EVENT,
    GRANTS,
    REQUEST,
    EntryKey,
    parse_entry_key,
    parse_grants_key,
)
from directory.wire.entry_codec import ProtoCodec

__all__ = ["DirectoryPaths", "EntryCounts", "Losses", "losses"]

_CODEC: Final = ProtoCodec()
_NAMED: Final = 20


@dataclass(slots=True)
class EntryCounts:
    """Number of rows and entries, by kind."""

    counts: dict[str, int] = field(default_factory=dict)
    rows: int = 0

    def add(self, key: bytes, value: bytes) -> None:
        """Counts one more row."""
        self.rows += 1
        kind = _kind(key, value)
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def __str__(self) -> str:
        reported = [f"{self.counts[kind]:,} {kind}" for kind in _KINDS if kind in self.counts]
        return ", ".join(reported) or "nothing"


_KINDS: Final = (
    "topics", "directories", "links", "mounts", "unreadable entries", "entries' grants",
    "changes of history", "answered requests", "other facts",
)  # fmt: skip


def _kind(key: bytes, value: bytes) -> str:
    if key.startswith(EVENT):
        return "changes of history"
    if key.startswith(REQUEST):
        return "answered requests"
    if key.startswith(GRANTS):
        return "entries' grants"
    place = _place(key)
    if place is None:
        return "other facts"
    if place.is_topic:
        return "topics"
    try:
        kind = _CODEC.decode(value).kind.name.lower()
    except ValueError:
        return "unreadable entries"
    return {"directory": "directories"}.get(kind, f"{kind}s")


def _place(key: bytes) -> EntryKey | None:
    if not key.startswith(ENTRY):
        return None
    try:
        return parse_entry_key(key)
    except ValueError:
        return None


def _place_of_grants(key: bytes) -> EntryKey | None:
    try:
        return parse_grants_key(key)
    except ValueError:
        return None


class DirectoryPaths:
    """Directory paths by id, as found in their rows: below the mount, for people."""

    def __init__(self) -> None:
        self._above: dict[int, tuple[int, str]] = {}

    def learn(self, key: bytes, value: bytes) -> None:
        """Looks whether the row is a directory's."""
        place = _place(key)
        if place is None or place.is_topic:
            return
        try:
            entry = _CODEC.decode(value)
        except ValueError:
            return
        if isinstance(entry, Directory):
            self._above[entry.entry_id] = (place.parent_id, place.name)

    def path_of_key(self, key: bytes) -> str:
        """Returns the path of an entry's row, or of its grants'; of another row, its key."""
        place = _place(key) or _place_of_grants(key)
        if place is None:
            return key.decode("utf-8", "backslashreplace")
        names = [place.name]
        at: int = place.parent_id
        while at in self._above and at != ROOT_ID and len(names) < 100:
            at, name = self._above[at]
            names.append(name)
        start = {ROOT_ID: "", DELETED_ID: "__deleted/", 0: ""}.get(at, f"(orphan of {at:x})/")
        return start + "/".join(reversed(names))


@dataclass(slots=True)
class Losses:
    """Entries of a store that are absent, or different, in what shall take its place."""

    gone: int = 0
    """Entries, and grants of entries, that are not there."""
    changed: int = 0
    """Entries that are different there."""
    come_back: int = 0
    """Entries that are only there."""
    examples: list[str] = field(default_factory=list)

    @property
    def some(self) -> bool:
        """Whether an entry is lost, or becomes what it was."""
        return bool(self.gone or self.changed)


def losses(now: Iterable[Row], then: Iterable[Row], paths: DirectoryPaths) -> Losses:
    """Compares the entries of two sets of rows, both in key order; bounded memory."""
    found = Losses()
    for key, value, other in merge_by_key(_entries(now), _entries(then)):
        if value is None:
            found.come_back += 1
            continue
        word = "lost" if other is None else "as it was then"
        if other is None:
            found.gone += 1
        elif other != value:
            found.changed += 1
        else:
            continue
        if len(found.examples) < _NAMED:
            what = "grants " if key.startswith(GRANTS) else ""
            found.examples.append(f"{paths.path_of_key(key)}: {what}{word}")
    return found


def _entries(rows: Iterable[Row]) -> Iterator[Row]:
    return (row for row in rows if row[0].startswith((ENTRY, GRANTS)))
