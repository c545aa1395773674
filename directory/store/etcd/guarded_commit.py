"""The transaction in which every write to etcd is made: under its guards and the store's identity,
with a commit id.

After a seal, a restore or a fill by another process, the identity that the transaction compares is
another one: the transaction fails, the identity is read again, and ``draft`` is called again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from directory.store.base import (
    Committed,
    Conflict,
    Guard,
    StoreIsSealed,
    StoreRefused,
    StoreUnreachable,
)
from directory.store.etcd.incarnation import Incarnation
from directory.store.etcd.keyspace import MOST_TRIES, READ_SECONDS, Keyspace, new_commit_id
from directory.store.etcd.restore_detection import Seen
from directory.store.etcd.transaction import put, read, request_of, unfulfilled

__all__ = ["GuardFailed", "TransactionDraft", "commit_guarded"]


@dataclass(frozen=True, slots=True)
class TransactionDraft:
    """Transaction without the parts that all transactions have."""

    compares: Sequence[Any]
    operations: Sequence[Any]
    reads: Sequence[Any] = ()
    """Reads to execute if the guards fail."""


@dataclass(frozen=True, slots=True)
class GuardFailed:
    """Result if nothing was written. ``answers``: those to the draft's reads; ``committed``: etcd's
    revision of the newest commit, 0 = none.
    """

    incarnation: Incarnation
    answers: Sequence[Any]
    committed: int

    def conflict(self, guards: Sequence[Guard]) -> Conflict:
        """Returns the guard that failed, for a draft whose reads are ``reads_of`` its guards."""
        broken = unfulfilled(self.incarnation, guards, self.answers, self.committed)
        if broken is None:
            raise AssertionError(f"etcd refused {guards}, and each of them holds")
        return Conflict(broken, self.incarnation.revision(self.committed))


def commit_guarded(
    keyspace: Keyspace,
    draft: Callable[[Incarnation], TransactionDraft],
    timeout_seconds: float = READ_SECONDS,
    *,
    filling: bool = False,
) -> Committed | GuardFailed:
    """Executes one transaction, with a commit id. ``draft`` is called again for another
    incarnation.

    Raises:
        StoreUnreachable: effect unknown.
        StoreIsSealed: the store is sealed and this is not ``filling``; nothing was written.
        ValueError: ``filling`` a store that is not sealed for that; or larger than etcd
            accepts.
    """
    deadline = keyspace.clock() + timeout_seconds
    for _ in range(MOST_TRIES):
        incarnation = _writable(keyspace, filling=filling)
        one = draft(incarnation)
        commit_id = new_commit_id()
        request = request_of(
            [keyspace.compare_identity(incarnation), *one.compares],
            [*one.operations, put(keyspace.layout.commit, commit_id.encode())],
            [read(keyspace.layout.identity), read(keyspace.layout.commit), *one.reads],
        )
        before = keyspace.newest.before_reading()
        answer = keyspace.connection.txn(request, max(0.001, deadline - keyspace.clock()))
        if answer.succeeded:
            return _committed(keyspace, incarnation, before, answer.header, commit_id)
        identity, commit, *answers = answer.responses
        stored = identity.response_range.kvs
        if stored and stored[0].value == incarnation.stored:
            commits = commit.response_range.kvs
            return GuardFailed(incarnation, answers, commits[0].mod_revision if commits else 0)
        keyspace.refresh_or_away()
    raise StoreUnreachable(f"{keyspace.connection}: its identity changes all the time")


def _writable(keyspace: Keyspace, *, filling: bool) -> Incarnation:
    if filling:
        if not keyspace.incarnation.identity.partial:
            keyspace.refresh_or_away()
        if not keyspace.incarnation.identity.partial:
            raise ValueError(
                f"{keyspace.connection}: not sealed to be filled, but"
                f" {keyspace.incarnation.identity.sealed!r}"
            )
    elif keyspace.incarnation.identity.sealed:
        keyspace.refresh_or_away()  # it may have been unsealed
        if keyspace.incarnation.identity.sealed:
            raise StoreIsSealed(f"{keyspace.connection}: {keyspace.incarnation.identity.sealed}")
    return keyspace.incarnation


def _committed(
    keyspace: Keyspace, incarnation: Incarnation, before: Seen, header: Any, commit_id: str
) -> Committed:
    revision = incarnation.revision(header.revision)
    same_incarnation = before.incarnation == incarnation.identity.incarnation
    if header.cluster_id != incarnation.etcd_cluster or (
        same_incarnation and revision <= before.revision
    ):
        try:
            keyspace.refresh_or_away()
        except StoreRefused as error:  # which would promise that nothing was written
            raise StoreUnreachable(str(error)) from error
        raise StoreUnreachable(f"{keyspace.connection}: it was restored in this moment")
    keyspace.note_commit(incarnation, header.revision, commit_id)
    return Committed(revision, commit_id)
