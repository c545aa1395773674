"""Store on etcd, for clusters with several servers, below a prefix of its own.

``keyspace.py`` loads its rows page by page; ``guarded_commit.py`` writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Self

from directory.store.base import (
    Committed,
    CommittedWrites,
    Conflict,
    Guard,
    HistoryCompacted,
    Identity,
    Row,
    StoreUnreachable,
    Transaction,
)
from directory.store.etcd.connection import (
    Compacted,
    EtcdConnection,
    FutureRevision,
    TooLarge,
)
from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.etcd_address import EtcdAddress
from directory.store.etcd.guarded_commit import GuardFailed, TransactionDraft, commit_guarded
from directory.store.etcd.incarnation import Incarnation
from directory.store.etcd.key_layout import end_of
from directory.store.etcd.keyspace import READ_SECONDS, EtcdLoading, Keyspace, fewer_rows
from directory.store.etcd.leases import (
    LEASE_SECONDS,
    EtcdAnnouncement,
    EtcdLeadership,
    Leases,
    create_ephemeral,
    elect,
    remove_expired,
)
from directory.store.etcd.transaction import (
    LIMITS,
    compares_of,
    delete,
    operations_of,
    put,
    reads_of,
)
from directory.store.etcd.watch import EtcdWatch
from directory.store.etcd.watch_state import Follower
from directory.store.identity import refuse_other_revision, refuse_other_seal
from directory.store.transaction_limits import Limits, batches_to_fill

__all__ = ["EtcdStore"]

_CLEARED_ROWS: Final = 5_000
_SEALED_SECONDS: Final = 30.0


class EtcdStore:
    """Store in etcd (``directory.store.base.Store``)."""

    def __init__(
        self,
        address: EtcdAddress,
        cluster: str,
        cluster_id: str | None = None,
        sealed: str = "",
        *,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens the store; creates it if missing.

        Raises:
            IncompatibleStore, StoreUnreachable: as ``open_store``.
        """
        self._connection: Final = EtcdConnection(address, clock=clock)
        try:
            self._keyspace: Final = Keyspace.open(
                self._connection, cluster, cluster_id, clock, sealed
            )
        except BaseException:
            self._connection.close()
            raise
        self._leases: Final = Leases(self._connection, lease_seconds, clock)

    @classmethod
    def open(
        cls, address: str, cluster: str, cluster_id: str | None = None, sealed: str = ""
    ) -> Self:
        """Returns the store at ``etcd://…``.

        Raises:
            IncompatibleStore, StoreUnreachable
        """
        return cls(EtcdAddress.parse(address), cluster, cluster_id, sealed)

    @property
    def identity(self) -> Identity:
        return self._keyspace.incarnation.identity

    @property
    def limits(self) -> Limits:
        return LIMITS

    @property
    def connection(self) -> EtcdConnection:
        """Connection to etcd, for tools."""
        return self._connection

    def refresh_identity(self) -> Identity:
        return self._keyspace.refresh().identity

    def describe(self) -> str:
        return str(self._connection)

    def close(self) -> None:
        self._leases.close()
        self._connection.close()

    # -- reading -----------------------------------------------------------------------------

    def load(self, prefixes: Sequence[bytes] = (b"",)) -> EtcdLoading:
        head, incarnation = self._keyspace.current()
        self._keyspace.note_commit(incarnation, head.commit_revision, head.commit_id)
        return EtcdLoading(self._connection, self._keyspace.layout, head, incarnation, prefixes)

    def read(self, prefix: bytes, limit: int = 1000, after: bytes = b"") -> Sequence[Row]:
        layout, incarnation = self._keyspace.layout, self._keyspace.incarnation
        begin, end = layout.row_range(prefix)
        if after:
            begin = max(begin, layout.row(after) + b"\0")
        if begin >= end:
            return []
        skip = len(layout.rows)
        rows: list[Row] = []
        at_once, revision = limit, 0
        while True:
            request = etcdrpc.RangeRequest(
                key=begin, range_end=end, limit=at_once, revision=revision
            )
            try:
                answer = self._connection.range(request, READ_SECONDS)
            except TooLarge:
                at_once = fewer_rows(self._connection, at_once)
                continue
            except (Compacted, FutureRevision) as error:
                raise StoreUnreachable(
                    f"{self._connection}: compacted or restored while it was read; begin again"
                ) from error
            rows += [
                Row(kv.key[skip:], kv.value, incarnation.revision(kv.mod_revision))
                for kv in answer.kvs
            ]
            if not answer.more or len(rows) >= limit:
                return rows
            begin, revision = answer.kvs[-1].key + b"\0", answer.header.revision
            at_once = min(at_once, limit - len(rows))

    def newest_revision(self, timeout_seconds: float = 5.0) -> int:
        head, incarnation = self._keyspace.current(timeout_seconds)
        return incarnation.revision(head.commit_revision)

    def watch(self, after: int, commit_id: str) -> IncarnationWatch:
        return IncarnationWatch(self._keyspace, after, commit_id)

    # -- writing -----------------------------------------------------------------------------

    def commit(
        self, transaction: Transaction, timeout_seconds: float = 5.0
    ) -> Committed | Conflict:
        transaction.refuse_invalid(LIMITS)
        layout, guards = self._keyspace.layout, transaction.guards
        operations = operations_of(layout, transaction.writes)

        def draft(incarnation: Incarnation) -> TransactionDraft:
            return TransactionDraft(
                compares_of(layout, incarnation, guards),
                operations,
                reads_of(layout, incarnation, guards),
            )

        done = commit_guarded(self._keyspace, draft, timeout_seconds)
        return done.conflict(guards) if isinstance(done, GuardFailed) else done

    def elect(self, role: str, candidate: str) -> EtcdLeadership | None:
        return elect(self._keyspace, self._leases, role, candidate)

    def create_ephemeral(
        self, key: bytes, value: bytes, guards: Sequence[Guard] = ()
    ) -> EtcdAnnouncement | Conflict:
        return create_ephemeral(self._keyspace, self._leases, key, value, guards)

    def remove_expired(self, prefix: bytes = b"") -> int:
        return remove_expired(self._keyspace, prefix)

    # -- sealing -----------------------------------------------------------------------------

    def seal(self, why: str, expected: str | None = None) -> None:
        while True:
            _, incarnation = self._keyspace.current()
            refuse_other_seal(self.describe(), incarnation.identity.sealed, expected)
            if incarnation.identity.sealed == why or self._keyspace.replace(
                incarnation, incarnation.sealed(why)
            ):
                break
        self._keyspace.refresh()

    def unseal(self, expected: str | None = None, at: int | None = None) -> Identity:
        while True:
            head, incarnation = self._keyspace.current()
            refuse_other_seal(self.describe(), incarnation.identity.sealed, expected)
            found = incarnation.revision(head.commit_revision)
            refuse_other_revision(self.describe(), found, at)
            if not incarnation.identity.sealed:
                break
            revision = incarnation.revision(head.revision)
            new = incarnation.next(head.etcd_cluster, head.revision, revision, unseal=True)
            unchanged = None if at is None else head.commit_revision
            if self._keyspace.replace(incarnation, new, unchanged):
                break
        return self._keyspace.refresh().identity

    def clear(self) -> int:
        layout = self._keyspace.layout
        self._change([delete(layout.announced, end_of(layout.announced))])
        begin, end = layout.row_range(b"")
        cleared = 0
        while True:
            answer = self._connection.range(
                etcdrpc.RangeRequest(key=begin, range_end=end, limit=_CLEARED_ROWS, keys_only=True),
                _SEALED_SECONDS,
            )
            if not answer.kvs:
                return cleared
            self._change([delete(begin, answer.kvs[-1].key + b"\0")])
            cleared += len(answer.kvs)

    def fill(self, rows: Iterable[tuple[bytes, bytes]]) -> int:
        layout = self._keyspace.layout
        self._change([])  # also checked if there are no rows: the store must be sealed for filling
        filled = 0
        # In order: change events are read by the revision of their row.
        for chunk in batches_to_fill(rows, LIMITS, LIMITS.max_writes, LIMITS.max_bytes):
            self._change([put(layout.row(key), value) for key, value in chunk])
            filled += len(chunk)
        return filled

    def _change(self, operations: list[Any]) -> None:
        done = commit_guarded(
            self._keyspace,
            lambda _: TransactionDraft((), operations),
            _SEALED_SECONDS,
            filling=True,
        )
        if not isinstance(done, Committed):
            raise StoreUnreachable(f"{self._connection}: was changed in this moment")


class IncarnationWatch:
    """Watch of one incarnation, by the store's revisions. See ``directory.store.base.Watch``."""

    def __init__(self, keyspace: Keyspace, after: int, commit_id: str) -> None:
        """Begins after a revision.

        Raises:
            HistoryCompacted: the watch cannot begin there.
            StoreUnreachable: etcd cannot be reached.
        """
        self._keyspace: Final = keyspace
        self._incarnation: Final = keyspace.incarnation
        begin = self._incarnation.etcd_revision(after)
        if begin is None:
            raise HistoryCompacted(
                f"revision {after} is of another incarnation of {keyspace.connection}"
            )
        if self._incarnation.identity.partial:
            raise HistoryCompacted(f"{keyspace.connection} is {self._incarnation.identity.sealed}")
        self.watch: Final = EtcdWatch(
            keyspace.connection,
            keyspace.layout,
            Follower(begin, commit_id, self._incarnation.identity, keyspace.note),
        )

    @property
    def restarts(self) -> int:
        """Number of restarts without a reload."""
        return self.watch.restarts

    def next(self, timeout_seconds: float) -> Sequence[CommittedWrites]:
        changes = self.watch.next(timeout_seconds)
        if not changes:
            return changes
        self._keyspace.note_commit(self._incarnation, changes[-1].revision, changes[-1].commit_id)
        if not self._incarnation.offset:
            return changes
        return [
            CommittedWrites(self._incarnation.revision(one.revision), one.commit_id, one.writes)
            for one in changes
        ]

    def giving_own_to(
        self, take: Callable[[Sequence[CommittedWrites]], None]
    ) -> AbstractContextManager[None]:
        """Does nothing: commits are counted as etcd sends them (decision 0023)."""
        return nullcontext()

    def close(self) -> None:
        self.watch.close()
