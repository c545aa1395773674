"""Records what a replica was told and applied, and checks it against etcd's watch guarantees.

The six are those of https://etcd.io/docs/v3.6/learning/api_guarantees/#watch-apis, in the sense in
which etcd's own robustness tests check them; two clients must also tell the same story.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from directory.store.base import CommittedWrites, Store, Watch, Write
from directory.store.replica import AppliedCommit

__all__ = [
    "Bookmark",
    "Entry",
    "Loaded",
    "Opened",
    "Record",
    "RecordingStore",
    "Took",
    "truth_of",
    "violations",
]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Record that everything was read, as of a revision."""

    revision: int


@dataclass(frozen=True, slots=True)
class Opened:
    """A watch was asked for what comes after a revision."""

    after: int


@dataclass(frozen=True, slots=True)
class Took:
    """One revision was applied: all of these writes at once."""

    revision: int
    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class Bookmark:
    """The watch held that everything up to this revision had been given out."""

    revision: int


Entry = Loaded | Opened | Took | Bookmark


@dataclass
class Record:
    """One client's, in the order in which it happened."""

    entries: list[Entry] = field(default_factory=list)

    def applied(self, applied: AppliedCommit) -> None:
        """Records a commit that the replica applied; to be subscribed to it."""
        if applied.reloaded:
            self.entries.append(Loaded(applied.revision))
        else:
            self.entries.append(Took(applied.revision, applied.writes))

    def bookmark(self, revision: int) -> None:
        last = self.entries[-1]
        if isinstance(last, Bookmark) and last.revision == revision:
            return
        self.entries.append(Bookmark(revision))


class RecordingStore:
    """A store that notes, in a record, what is asked of its watches and what they promise."""

    def __init__(self, store: Store, record: Record) -> None:
        self._store = store
        self._record = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def watch(self, after: int, commit_id: str) -> Watch:
        watch = self._store.watch(after, commit_id)
        self._record.entries.append(Opened(after))
        return _RecordingWatch(watch, self._record)


class _RecordingWatch:
    def __init__(self, watch: Any, record: Record) -> None:
        self._watch = watch
        self._record = record
        self._promised = 0
        self._thread: int | None = None

    @property
    def restarts(self) -> int:
        return int(self._watch.restarts)

    def next(self, timeout_seconds: float) -> Sequence[CommittedWrites]:
        self._thread = self._thread or threading.get_ident()
        assert self._thread == threading.get_ident(), "a watch is one thread's"
        if self._promised:  # what it promised last time was applied since
            self._record.bookmark(self._promised)
        changes: Sequence[CommittedWrites] = self._watch.next(timeout_seconds)
        # The etcd watch resumes after what it holds to be given out (EtcdWatch in
        # IncarnationWatch).
        self._promised = self._watch.watch.follower.start - 1
        return changes

    def giving_own_to(
        self, take: Callable[[Sequence[CommittedWrites]], None]
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        self._watch.close()


Truth = Mapping[int, frozenset[Write]]


def truth_of(
    records: Iterable[Sequence[Entry]], acknowledged: Mapping[int, Iterable[Write]]
) -> tuple[Truth, list[str]]:
    """Returns what happened in each revision that anybody knows of, and where they disagree.

    ``acknowledged``: the commits that a writer was told of; it alone knows what removes found
    nothing to remove, so these may be missing in what a watch tells.
    """
    truth: dict[int, frozenset[Write]] = {}
    found: list[str] = []
    for number, entries in enumerate(records):
        for entry in entries:
            if not isinstance(entry, Took):
                continue
            writes = frozenset(entry.writes)
            if truth.setdefault(entry.revision, writes) != writes:
                found.append(f"Atomic: revision {entry.revision} is another for client {number}")
    for revision, asked in acknowledged.items():
        writes = frozenset(asked)
        reported = truth.setdefault(revision, writes)
        puts = {write for write in writes if hasattr(write, "value")}
        if not puts <= reported <= writes:
            found.append(f"Atomic: revision {revision} is not what its writer committed")
    return truth, found


def violations(entries: Sequence[Entry], truth: Truth) -> list[str]:
    """Returns each breach of a guarantee, beginning with the guarantee's name."""
    revisions = sorted(truth)
    return [
        *_ordered(entries),
        *_unique(entries),
        *_atomic(entries),
        *_reliable(entries, revisions),
        *_resumable(entries, revisions),
        *_bookmarkable(entries, revisions),
    ]


def _ordered(entries: Sequence[Entry]) -> Iterable[str]:
    """Yields an event never appears after one of a later revision; nor is an older tree loaded."""
    last = 0
    for entry in entries:
        if isinstance(entry, Took | Loaded):
            if entry.revision < last:
                yield f"Ordered: {entry} after revision {last}"
            last = max(last, entry.revision)


def _unique(entries: Sequence[Entry]) -> Iterable[str]:
    """Yields an event never appears twice."""
    seen: set[tuple[int, bytes]] = set()
    for entry in entries:
        if isinstance(entry, Took):
            for write in entry.writes:
                if (entry.revision, write.key) in seen:
                    yield f"Unique: {write.key!r} of revision {entry.revision} came twice"
                seen.add((entry.revision, write.key))


def _atomic(entries: Sequence[Entry]) -> Iterable[str]:
    """A revision is not split over several steps."""
    last = 0
    for entry in entries:
        if isinstance(entry, Took):
            if entry.revision == last:
                yield f"Atomic: revision {last} came in two steps"
            last = entry.revision


def _reliable(entries: Sequence[Entry], revisions: Sequence[int]) -> Iterable[str]:
    """Of a sequence of events none is dropped from the middle."""
    known = set(revisions)
    position: int | None = None
    for entry in entries:
        if isinstance(entry, Loaded):
            position = entry.revision
        elif isinstance(entry, Took):
            if entry.revision not in known:
                yield f"Reliable: revision {entry.revision} never was"
            if position is None:
                yield f"Reliable: {entry} before anything was loaded"
            for missing in _between(revisions, position or 0, entry.revision):
                yield f"Reliable: revision {missing} is missing before {entry.revision}"
            position = entry.revision


def _resumable(entries: Sequence[Entry], revisions: Sequence[int]) -> Iterable[str]:
    """The first event of a watch is the first that happened after what was asked for."""
    after: int | None = None
    for entry in entries:
        if isinstance(entry, Opened):
            after = entry.after
        elif isinstance(entry, Took) and after is not None:
            first = next(iter(_between(revisions, after, entry.revision + 1)), None)
            if first != entry.revision:
                yield f"Resumable: a watch after {after} began with {entry.revision}, not {first}"
            after = None


def _bookmarkable(entries: Sequence[Entry], revisions: Sequence[int]) -> Iterable[str]:
    """Yields what a bookmark (or a load) promises was given out before it, and never comes after
    it.
    """
    promised = position = 0
    for entry in entries:
        if isinstance(entry, Took):
            if entry.revision <= promised:
                yield f"Bookmarkable: {entry} came after {promised} was promised"
            position = max(position, entry.revision)
        elif isinstance(entry, Loaded):
            promised = position = max(promised, entry.revision)
        elif isinstance(entry, Bookmark):
            for missing in _between(revisions, position, entry.revision + 1):
                yield f"Bookmarkable: {entry.revision} was promised without {missing}"
            promised = max(promised, entry.revision)


def _between(revisions: Sequence[int], after: int, before: int) -> Sequence[int]:
    return revisions[bisect_right(revisions, after) : bisect_left(revisions, before)]
