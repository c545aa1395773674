"""Contract of a store: ordered keys and values of one cluster, guarded transactions, a watch.

Every store passes the same suite (``tests/conformance/store``). Keys and values are opaque here.
A store promises:

*Atomic*: a commit is visible whole or not at all. *Ordered*: every commit gets the next revision;
revisions of one incarnation only rise. *Durable*: what ``commit`` returned survives ``kill -9`` of
everything. *Resumable*: ``watch(after)`` yields every later revision, once, in order, or raises
``HistoryCompacted``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

from directory.store.transaction_limits import Limits

__all__ = [
    "FILLED_FROM",
    "MOVED_TO",
    "Committed",
    "CommittedWrites",
    "Conflict",
    "Delete",
    "EphemeralKey",
    "Guard",
    "HistoryCompacted",
    "Identity",
    "IncompatibleStore",
    "KeyEquals",
    "Leadership",
    "Loading",
    "Put",
    "Row",
    "Store",
    "StoreChanged",
    "StoreDamaged",
    "StoreFull",
    "StoreIsSealed",
    "StoreRefused",
    "StoreUnreachable",
    "Transaction",
    "UnchangedSince",
    "Watch",
    "Write",
]


class StoreUnreachable(Exception):
    """Error: the store did not answer in time, or could not be reached. It is unknown whether a
    commit with this error took effect: repeat it with the same request id.
    """


class StoreDamaged(StoreUnreachable):
    """Error: the store's contents cannot be read, and waiting does not change that."""


class StoreFull(StoreUnreachable):
    """Error: the store has no space left and takes no writes until an operator makes some; nothing
    was written. Reads continue.
    """


class StoreRefused(StoreUnreachable):
    """Error: the store answered that it does not do this, such as for a missing right; nothing was
    written.
    """


class HistoryCompacted(Exception):
    """Error: the changes after the requested revision are no longer kept, or belong to another
    incarnation of the store: load again.
    """


class IncompatibleStore(Exception):
    """Error: the store cannot be used as requested: another cluster's, a newer schema, or not a
    store. The message is one sentence for people; nothing was changed.
    """


class StoreIsSealed(StoreUnreachable):
    """Error: the store takes no changes, temporarily or for good: it is being filled, or its
    cluster moved to another store. The message is one sentence for people; nothing was written.

    A subclass of ``StoreUnreachable``, for callers that do not distinguish the two.
    """


class StoreChanged(Exception):
    """Error: another process sealed, filled or unsealed the store meanwhile; nothing was changed.
    The message is one sentence for people.
    """


MOVED_TO: Final = "moved to "
"""Prefix of the reason of a store that is out of use for good: no server starts on it."""
FILLED_FROM: Final = "being filled from "
"""Prefix of the reason of a store with incomplete contents: no server reads it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a store. ``incarnation`` changes with each restore, migration or re-creation."""

    store_id: str
    cluster_id: str
    cluster: str
    incarnation: str
    schema_version: int
    sealed: str = ""
    """Why the store takes no changes; empty = it takes them."""

    @property
    def moved(self) -> bool:
        """True if the cluster is in another store for good."""
        return self.sealed.startswith(MOVED_TO)

    @property
    def partial(self) -> bool:
        """True while the store is emptied or filled, so that its contents are incomplete."""
        return self.sealed.startswith(FILLED_FROM)


@dataclass(frozen=True, slots=True)
class Row:
    """One key with its value, and the revision of its last change."""

    key: bytes
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class KeyEquals:
    """Guard that holds while the key has exactly this value; ``None`` = the key does not exist."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class UnchangedSince:
    """Guard that holds while no key with this prefix was put after this revision. Removals do not
    count.

    It never holds for a revision that this incarnation of the store has not reached, and need not
    hold for one whose history is forgotten: then plan on a newer snapshot.
    """

    prefix: bytes
    revision: int


Guard = KeyEquals | UnchangedSince


@dataclass(frozen=True, slots=True)
class Put:
    """Write that sets a key."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Write that removes a key; removing one that does not exist is no error."""

    key: bytes


Write = Put | Delete


@dataclass(frozen=True)
class Transaction:
    """Set of guards and writes: if all guards hold, all writes happen, else none. Each key is
    written at most once.
    """

    guards: tuple[Guard, ...]
    writes: tuple[Write, ...]

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of its keys and values; guards count, too, since they are sent over the network."""
        size = 0
        for write in self.writes:
            size += len(write.key) + (len(write.value) if isinstance(write, Put) else 0)
        for guard in self.guards:
            if isinstance(guard, KeyEquals):
                size += len(guard.key) + len(guard.value or b"")
        return size

    def refuse_invalid(self, limits: Limits) -> None:
        """Checks the transaction before the store does (S9).

        Raises:
            ValueError: over the limits, or a key written twice: a bug of the caller.
        """
        writes = len(self.writes)
        excess = limits.excess(len(self.guards), writes, self.size_bytes)
        if excess is not None:
            raise ValueError(f"the transaction {excess.text}")
        if len({write.key for write in self.writes}) < writes:
            keys = Counter(write.key for write in self.writes)
            raise ValueError(f"key {keys.most_common(1)[0][0]!r} is written twice")


@dataclass(frozen=True, slots=True)
class Committed:
    """Result of a commit. ``commit_id`` is random; a reader that resumes at ``revision`` compares
    it.
    """

    revision: int
    commit_id: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """Result if a guard did not hold: nothing was written. ``revision`` is the store's
    current one.
    """

    guard: Guard
    revision: int


@dataclass(frozen=True, slots=True)
class CommittedWrites:
    """Set of the writes of one revision."""

    revision: int
    commit_id: str
    writes: tuple[Write, ...]


class Loading(Protocol):
    """All rows at one revision."""

    @property
    def revision(self) -> int:
        """Revision of all rows; 0 = nothing was ever committed."""

    @property
    def commit_id(self) -> str:
        """Commit id at that revision; empty at 0."""

    def pages(self) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        """Yields the rows as (key, value) in key order, in pages.

        Raises:
            StoreUnreachable: possibly after some pages; load again.
        """


class Watch(Protocol):
    """Watch of the store from one revision. One thread uses it; any thread may ``close`` it."""

    @property
    def restarts(self) -> int:
        """Number of times that the watch reconnected and resumed from its revision."""

    def next(self, timeout_seconds: float) -> Sequence[CommittedWrites]:
        """Returns the next revisions, in order, without gap or repetition; empty if none came in
        time.

        From a remote store, an empty result also shows that it answered at some moment of the wait.

        Raises:
            StoreUnreachable: the store cannot be reached; call again to resume.
            HistoryCompacted: load again.
        """

    def giving_own_to(
        self, take: Callable[[Sequence[CommittedWrites]], None]
    ) -> AbstractContextManager[None]:
        """Context manager for a thread that commits in its block through the same store object. At
        its end that thread calls ``take`` with the commits that ``next`` would return, also of
        other threads, if they are known without asking the store. ``take`` is only called while
        another thread waits in ``next``, and that thread continues after it; it must be quick and
        must not fail. If it is not called, ``next`` returns them.
        """

    def close(self) -> None:
        """Closes the watch; a waiting ``next`` returns soon."""


class Leadership(Protocol):
    """Role that this process holds while the guard holds.

    Fenced: the guard is part of each of the role's transactions, so a process that lost the role
    can write nothing under it.
    """

    @property
    def guard(self) -> KeyEquals:
        """Guard for every transaction of the role."""

    def held(self) -> bool:
        """True if the role is held, as far as this process knows."""

    def release(self) -> None:
        """Resigns from the role."""


class EphemeralKey(Protocol):
    """Key that exists while this process is alive, and is removed when it ends in any way."""

    def update(self, value: bytes) -> None:
        """Sets the key's value.

        Raises:
            StoreUnreachable: effect unknown.
        """

    def is_alive(self) -> bool:
        """True if the key exists, as far as this process knows; otherwise create it again. It is
        lost if the store was unreachable, or this process paused, for long.
        """

    def delete(self) -> None:
        """Removes the key; if that fails now, the key is removed when the process ends."""


class Store(Protocol):
    """Store of one cluster. Thread-safe."""

    @property
    def identity(self) -> Identity:
        """Identity of the store, as read when it was opened. A restore under a running process is
        noticed by the watch (``HistoryCompacted``), after which ``refresh_identity`` reads it
        again.
        """

    @property
    def limits(self) -> Limits:
        """Limits of one transaction."""

    def refresh_identity(self) -> Identity:
        """Reads the identity again.

        Raises:
            StoreUnreachable: the store cannot be reached.
            IncompatibleStore: it is another store now.
        """

    def load(self, prefixes: Sequence[bytes] = (b"",)) -> Loading:
        """Returns all rows with these prefixes, at one revision. Prefixes must be disjoint.

        Raises:
            StoreUnreachable: the store cannot be reached.
        """

    def read(self, prefix: bytes, limit: int = 1000, after: bytes = b"") -> Sequence[Row]:
        """Returns the rows with a prefix and keys greater than ``after``, in key order, of the
        newest revision. For maintenance; requests read the replica.

        Raises:
            StoreUnreachable: the store cannot be reached.
        """

    def newest_revision(self, timeout_seconds: float = 5.0) -> int:
        """Returns the revision of the newest commit; 0 = nothing was ever committed.

        Linearizable: it includes every commit that was acknowledged to any process before the call
        began.

        Raises:
            StoreUnreachable: it could not be read in time.
        """

    def watch(self, after: int, commit_id: str) -> Watch:
        """Returns a watch of every revision after ``after``, whose commit id must be ``commit_id``
        (empty at 0).

        Raises:
            StoreUnreachable: the store cannot be reached.
            HistoryCompacted: that revision is unknown here, or is another commit.
        """

    def commit(
        self, transaction: Transaction, timeout_seconds: float = 5.0
    ) -> Committed | Conflict:
        """Applies the writes if all guards hold.

        Raises:
            StoreUnreachable: effect unknown.
            StoreRefused, StoreFull: nothing was written.
            StoreIsSealed: nothing was written, and nothing will be until the store is unsealed.
            ValueError: over the limits, or a key written twice: a bug of the caller.
        """

    def elect(self, role: str, candidate: str) -> Leadership | None:
        """Tries once to take a role; returns None while another process holds it.

        ``candidate`` is the first line of the role's key (``role_key``): a server's id, so that
        others can show who holds the role.

        Raises:
            StoreUnreachable: the store cannot be reached.
        """

    def create_ephemeral(
        self, key: bytes, value: bytes, guards: Sequence[Guard] = ()
    ) -> EphemeralKey | Conflict:
        """Puts a key that is removed when this process ends: by a lease or a lock, within 15 s.

        Raises:
            StoreUnreachable, StoreIsSealed: the key was not created.
        """

    def remove_expired(self, prefix: bytes = b"") -> int:
        """Removes the ephemeral keys of processes that ended, if the store does not do so by
        itself; returns the number of removed keys.

        With a prefix, also removes keys below it that are not ephemeral: they were written by hand
        and would stay for ever. Every server calls this every few seconds.

        Raises:
            StoreUnreachable: the store cannot be reached.
        """

    def seal(self, why: str, expected: str | None = None) -> None:
        """Refuses all changes from now on; changes under way are committed or refused whole.
        Sealing again replaces the reason; with ``expected``, only this reason (empty = the store is
        not sealed). The seal survives every process. While a watch is open, ``identity`` shows the
        seal soon after. If the reason begins with ``FILLED_FROM``, every watch raises
        ``HistoryCompacted`` instead, since the next writes are no changes of the tree.

        Raises:
            StoreUnreachable: effect unknown.
            StoreChanged: it is not sealed as ``expected``.
        """

    def clear(self) -> int:
        """Removes every row of a store that is sealed for filling, in as many commits as needed;
        returns the number of rows. Can be repeated after any interruption.

        Raises:
            StoreUnreachable: effect unknown.
            ValueError: the store is not sealed with ``FILLED_FROM``.
        """

    def fill(self, rows: Iterable[tuple[bytes, bytes]]) -> int:
        """Puts rows into a store that is sealed for filling, in order, in as many commits as
        needed; returns the number of rows. Can be repeated after any interruption. ``load`` returns
        them.

        Raises:
            StoreUnreachable: effect unknown.
            ValueError: the store is not sealed with ``FILLED_FROM``, or a row is over its limits.
        """

    def unseal(self, expected: str | None = None, at: int | None = None) -> Identity:
        """Accepts changes again, as a new incarnation: earlier tokens and watches expire. Does
        nothing if the store is not sealed.

        With ``expected``, only a store that is sealed for this reason; with ``at``, only one whose
        newest revision is this: nothing was filled or cleared since.

        Raises:
            StoreUnreachable: effect unknown.
            StoreChanged: it is not sealed as ``expected``, or is at another revision.
        """

    def describe(self) -> str:
        """Returns the store's address without secrets, for people."""

    def close(self) -> None:
        """Releases all resources; the store cannot be used afterwards."""
