"""The store's contract: ordered keys and values of one cluster, guarded transactions, a watch.

Refuses to know what keys and values mean. Every store runs the same suite
(``tests/conformance/store``); what is written here holds for all of them.

Promises
    *Atomic*: a commit is seen whole or not at all. *Ordered*: every commit gets the next revision;
    revisions of one incarnation only rise. *Durable*: what ``commit`` returned survives ``kill -9``
    of everything. *Resumable*: ``watch(after)`` yields every later revision, once, in order, or
    raises ``HistoryCompacted``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

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
    "Limits",
    "Loading",
    "Put",
    "Row",
    "Store",
    "StoreFull",
    "StoreIsSealed",
    "StoreUnreachable",
    "Transaction",
    "UnchangedSince",
    "Watch",
    "Write",
    "batches_to_fill",
]


class StoreUnreachable(Exception):
    """The store did not answer in time, or could not be reached. Whether a commit that ends so had
    an effect is not known: ask again with the same request id.
    """


class StoreFull(StoreUnreachable):
    """The store has no room left, so it takes no writes until an operator made some; nothing was
    written. Reads go on.
    """


class HistoryCompacted(Exception):
    """The changes after the asked revision are no longer kept, or belong to another incarnation of
    the
    store: load again.
    """


class IncompatibleStore(Exception):
    """The store cannot be used as asked: another cluster's, a newer schema, not a store at all.
    One sentence for people; nothing was touched.
    """


class StoreIsSealed(StoreUnreachable):
    """The store takes no changes for now, or for good: it is being filled, or its cluster moved to
    another store. Says why, in one sentence for people; nothing was written.

    Who does not care why nothing can be written now catches it as ``StoreUnreachable``.
    """


MOVED_TO: Final = "moved to "
"""A store sealed for a reason that begins so is out of use for good: no server starts on it."""
FILLED_FROM: Final = "being filled from "
"""What a store sealed for a reason that begins so holds is not whole: no server reads it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a store. ``incarnation`` changes with each restore, migration or re-creation."""

    store_id: str
    cluster_id: str
    cluster: str
    incarnation: str
    schema_version: int
    sealed: str = ""
    """Why it takes no changes; empty = it takes them."""

    @property
    def moved(self) -> bool:
        """Whether its cluster is in another store, for good."""
        return self.sealed.startswith(MOVED_TO)

    @property
    def partial(self) -> bool:
        """Whether it is being emptied and filled: what it holds is half of something."""
        return self.sealed.startswith(FILLED_FROM)


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum size of one transaction; callers split before the store refuses."""

    max_writes: int
    """Guards and writes of one transaction together; only the writes where ``max_guards`` is set.
    """
    max_bytes: int
    """Bytes of one transaction's keys and values together."""
    max_guards: int | None = None
    """Guards of one transaction, where the store counts them apart (as etcd does: at most so many
    comparisons, and at most so many operations); None = together with the writes.
    """

    def hold(self, guards: int, writes: int) -> bool:
        """True if one transaction may hold so many."""
        if self.max_guards is None:
            return guards + writes <= self.max_writes
        return guards <= self.max_guards and writes <= self.max_writes

    def __str__(self) -> str:
        """Returns the number of operations, for people."""
        if self.max_guards is None:
            return f"{self.max_writes} together"
        return f"{self.max_guards} guards and {self.max_writes} writes"


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
    hold for
    one whose history is forgotten: then plan on a newer snapshot.
    """

    prefix: bytes
    revision: int


Guard = KeyEquals | UnchangedSince


@dataclass(frozen=True, slots=True)
class Put:
    """Set a key."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key; removing one that does not exist is no error."""

    key: bytes


Write = Put | Delete


@dataclass(frozen=True, slots=True)
class Transaction:
    """All guards hold and all writes happen, or nothing does. One key is written at most once."""

    guards: tuple[Guard, ...]
    writes: tuple[Write, ...]

    @property
    def size_bytes(self) -> int:
        """Of its keys and values; over a network what is compared travels too."""
        writes = (
            len(write.key) + (len(write.value) if isinstance(write, Put) else 0)
            for write in self.writes
        )
        compared = (
            len(guard.key) + len(guard.value or b"")
            for guard in self.guards
            if isinstance(guard, KeyEquals)
        )
        return sum(writes) + sum(compared)

    def refuse_invalid(self, limits: Limits) -> None:
        """Checks it before the store does (S9).

        Raises:
            ValueError: over the limits, or a key written twice; a bug of the caller's.
        """
        guards, writes, size = len(self.guards), len(self.writes), self.size_bytes
        if not limits.hold(guards, writes):
            raise ValueError(f"{guards} guards and {writes} writes; one transaction holds {limits}")
        if len({write.key for write in self.writes}) < writes:
            keys = Counter(write.key for write in self.writes)
            raise ValueError(f"key {keys.most_common(1)[0][0]!r} is written twice")
        if size > limits.max_bytes:
            raise ValueError(f"{size} bytes; one transaction holds {limits.max_bytes}")


@dataclass(frozen=True, slots=True)
class Committed:
    """Result of a commit. ``commit_id`` is random: a reader that resumes at ``revision`` compares
    it.
    """

    revision: int
    commit_id: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """Result of a guard that did not hold: nothing was written. ``revision`` is the store's current
    one.
    """

    guard: Guard
    revision: int


@dataclass(frozen=True, slots=True)
class CommittedWrites:
    """One revision: all its writes, in no particular order."""

    revision: int
    commit_id: str
    writes: tuple[Write, ...]


class Loading(Protocol):
    """All rows at one revision."""

    @property
    def revision(self) -> int:
        """The revision that all rows are of; 0 = nothing was ever committed."""

    @property
    def commit_id(self) -> str:
        """Of that revision; empty at 0."""

    def pages(self) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        """Returns rows as (key, value), in key order, in pages.

        Raises:
            StoreUnreachable: in the middle; begin again.
        """


class Watch(Protocol):
    """Watch of the store from one revision on. Used by one thread; ``close`` by any."""

    @property
    def restarts(self) -> int:
        """How often it had to connect again, and went on where it was."""

    def next(self, timeout_seconds: float) -> Sequence[CommittedWrites]:
        """Returns the next revisions, in order, without gap or repeat; empty when none came in
        time. An empty answer also says that the store was there at some moment of the wait.

        Raises:
            StoreUnreachable: the store cannot be reached; call again, it goes on where it was.
            HistoryCompacted: load again.
        """

    def close(self) -> None:
        """Ends it; a waiting ``next`` returns soon."""


class Leadership(Protocol):
    """A role that this process holds while the guard holds. Fenced: who lost it can write nothing
    under it, because the guard is part of each of its transactions.
    """

    @property
    def guard(self) -> KeyEquals:
        """To be put into every transaction that the role makes."""

    def held(self) -> bool:
        """True if it is held as far as this process knows."""

    def release(self) -> None:
        """Gives it up."""


class EphemeralKey(Protocol):
    """A key that is there while this process is alive, and goes with it, however it ends."""

    def update(self, value: bytes) -> None:
        """Sets the key's value.

        Raises:
            StoreUnreachable: effect unknown.
        """

    def is_alive(self) -> bool:
        """True if the key is there as far as this process knows; where it does not, announce again.
        So it is after the store was away, or this process paused, for long.
        """

    def delete(self) -> None:
        """Removes the key. What cannot be removed now goes with the process."""


class Store(Protocol):
    """The truth of one cluster. Safe for use by several threads."""

    @property
    def identity(self) -> Identity:
        """Whose store this is, as read when it was opened.

        A store that was restored under the process is noticed by the watch (``HistoryCompacted``),
        after which ``refresh_identity`` reads it again.
        """

    @property
    def limits(self) -> Limits:
        """What one transaction may hold."""

    def refresh_identity(self) -> Identity:
        """Reads the identity again.

        Raises:
            StoreUnreachable, Incompatible
        """

    def load(self, prefixes: Sequence[bytes] = (b"",)) -> Loading:
        """Returns everything under these prefixes, at one revision. Prefixes must be disjoint.

        Raises:
            StoreUnreachable
        """

    def read(self, prefix: bytes, limit: int = 1000, after: bytes = b"") -> Sequence[Row]:
        """Returns the rows under a prefix with keys greater than ``after``, in key order, as of
        now. For maintenance; requests read the replica.

        Raises:
            StoreUnreachable
        """

    def newest_revision(self, timeout_seconds: float = 5.0) -> int:
        """Returns the revision of the newest commit; 0 = nothing was ever committed.

        Every commit that anybody was answered before the call began is counted, whichever process
        or member of the store made it: no cache is asked, and no member that may be behind.

        Raises:
            StoreUnreachable: it could not be read in time.
        """

    def watch(self, after: int, commit_id: str) -> Watch:
        """Returns every revision after ``after``, whose commit id must be ``commit_id`` (empty at
        0).

        Raises:
            StoreUnreachable
            HistoryCompacted: that revision is not known here, or is another commit.
        """

    def commit(
        self, transaction: Transaction, timeout_seconds: float = 5.0
    ) -> Committed | Conflict:
        """Makes the writes if all guards hold.

        Raises:
            StoreUnreachable: effect unknown.
            Sealed: nothing was written, and nothing will be until it is unsealed.
            ValueError: over the limits, or a key written twice; a bug of the caller's.
        """

    def elect(self, role: str, candidate: str) -> Leadership | None:
        """Tries once to take a role; None while another process holds it. ``candidate`` is the
        first line of the role's key (``role_key``): a server's id, so that others can say who holds
        it.

        Raises:
            StoreUnreachable
        """

    def create_ephemeral(
        self, key: bytes, value: bytes, guards: Sequence[Guard] = ()
    ) -> EphemeralKey | Conflict:
        """Puts a key that goes with this process: by a lease or a lock, within 15 s of its end.

        Raises:
            StoreUnreachable, Sealed
        """

    def remove_expired(self, prefix: bytes = b"") -> int:
        """Removes the announced keys of processes that ended, where the store does not do so by
        itself; with a prefix also the keys under it that nobody announced: written by hand, they
        would stay for ever. Answers how many. To be called every few seconds by every server.

        Raises:
            StoreUnreachable
        """

    def seal(self, why: str) -> None:
        """Takes no changes from now on, from anybody: those under way are made or refused whole.
        Sealing again replaces the reason. Survives every process.

        Whoever has a watch open finds it in ``identity`` soon after. With a reason that begins with
        ``FILLED_FROM`` every watch raises ``HistoryCompacted`` instead, since what comes now is no
        change of the tree.

        Raises:
            StoreUnreachable
        """

    def clear(self) -> int:
        """Removes every row of a store that is sealed to be filled, in as many commits as it takes;
        answers how many. Cut off anywhere it can be repeated.

        Raises:
            StoreUnreachable
            ValueError: the store is not sealed with ``FILLED_FROM``.
        """

    def fill(self, rows: Iterable[tuple[bytes, bytes]]) -> int:
        """Puts rows into a store that is sealed to be filled, in as many commits as it takes, in
        their order; answers how many. Cut off anywhere it can be repeated. ``load`` shows them.

        Raises:
            StoreUnreachable
            ValueError: the store is not sealed with ``FILLED_FROM``, or a row is over its limits.
        """

    def unseal(self) -> Identity:
        """Takes changes again, as a new incarnation: tokens and watches of before are expired. One
        that is not sealed stays as it is.

        Raises:
            StoreUnreachable
        """

    def describe(self) -> str:
        """Returns the store's address without secrets, for people."""

    def close(self) -> None:
        """Frees what it holds; the store cannot be used afterwards."""


def batches_to_fill(
    rows: Iterable[tuple[bytes, bytes]], limits: Limits, most_rows: int, most_bytes: int
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yields rows that a store is filled with, in their order, so many and so large at a time.

    Raises:
        ValueError: a row is larger than one transaction may be.
    """
    batch: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in rows:
        length = len(key) + len(value)
        if length > limits.max_bytes:
            raise ValueError(
                f"key {key!r} has {length} bytes with its value; one transaction holds"
                f" {limits.max_bytes}"
            )
        if batch and (len(batch) >= most_rows or size + length > most_bytes):
            yield batch
            batch, size = [], 0
        batch.append((key, value))
        size += length
    if batch:
        yield batch
