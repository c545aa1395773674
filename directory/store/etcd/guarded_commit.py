"""Makes every write to etcd in a transaction that compares its guards and the store's identity, and
writes a commit id.

After a seal, a restore or a fill by another process, the store has another identity: the
transaction fails, the identity is read again, and ``draft`` is called again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from directory.store.base import (
    Committed,
    Conflict,
    Guard,
    StoreFull,
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
    """Transaction without the parts that are the same in all transactions."""

    compares: Sequence[Any]
    operations: Sequence[Any]
    reads: Sequence[Any] = ()
    """Reads to execute if the guards fail."""


@dataclass(frozen=True, slots=True)
class GuardFailed:
    """Result if nothing was written. ``answers``: answers to the draft's reads; ``committed``:
    etcd's revision of the newest commit, 0 = none.
    """

    incarnation: Incarnation
    answers: Sequence[Any]
    committed: int

    def conflict(self, guards: Sequence[Guard]) -> Conflict:
        """Returns the conflict with the guard that failed; the draft's reads are ``reads_of`` its
        guards.
        """
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
        StoreFull: nothing was written.
        StoreIsSealed: the store is sealed and this is not ``filling``; nothing was written.
        ValueError: ``filling`` a store that is not sealed for that; or the transaction is larger
            than etcd accepts.
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
        try:
            answer = keyspace.connection.txn(request, max(0.001, deadline - keyspace.clock()))
        except StoreFull:
            done = _committed_when_full(keyspace, incarnation, before, commit_id)
            if done is None:
                raise
            return done
        if answer.succeeded:
            header = answer.header
            return _committed(
                keyspace, incarnation, before, header.cluster_id, header.revision, commit_id
            )
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


def _committed_when_full(
    keyspace: Keyspace, incarnation: Incarnation, before: Seen, commit_id: str
) -> Committed | None:
    """Returns the commit of a transaction to which etcd answered that its database is full, if etcd
    applied it, as it does with the first that exceeds its quota; None: nothing was written.

    Raises:
        StoreUnreachable: effect unknown.
    """
    try:
        head = keyspace.head()
    except StoreRefused as error:  # which would promise that nothing was written
        raise StoreUnreachable(str(error)) from error
    if head.commit_id == commit_id:
        return _committed(
            keyspace, incarnation, before, head.etcd_cluster, head.commit_revision, commit_id
        )
    if head.commit_id == before.commit_id:
        return None
    if head.identity == incarnation.stored:
        keyspace.note_commit(incarnation, head.commit_revision, head.commit_id)
    raise StoreUnreachable(f"{keyspace.connection}: it became full while others wrote, too")


def _committed(
    keyspace: Keyspace,
    incarnation: Incarnation,
    before: Seen,
    etcd_cluster: int,
    etcd_revision: int,
    commit_id: str,
) -> Committed:
    revision = incarnation.revision(etcd_revision)
    same_incarnation = before.incarnation == incarnation.identity.incarnation
    if etcd_cluster != incarnation.etcd_cluster or (
        same_incarnation and revision <= before.revision
    ):
        try:
            keyspace.refresh_or_away()
        except StoreRefused as error:  # which would promise that nothing was written
            raise StoreUnreachable(str(error)) from error
        raise StoreUnreachable(f"{keyspace.connection}: it was restored in this moment")
    keyspace.note_commit(incarnation, etcd_revision, commit_id)
    return Committed(revision, commit_id)
