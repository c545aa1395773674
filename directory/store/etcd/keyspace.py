"""Loads the keys of one cluster from etcd, page by page, all at one revision, however large the
tree is (S7), and begins a new incarnation after a restore of etcd.

``restore_detection`` finds a restore; only ``Keyspace.refresh`` reacts to it. It begins the new
incarnation by a transaction that compares the identity, so that only one process succeeds. Writes
are in ``guarded_commit``.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self

from directory.store.base import (
    Identity,
    IncompatibleStore,
    StoreUnreachable,
)
from directory.store.etcd.connection import Compacted, EtcdConnection, FutureRevision, TooLarge
from directory.store.etcd.etcd3_stubs import etcdrpc, transactions
from directory.store.etcd.incarnation import Incarnation
from directory.store.etcd.key_layout import Layout
from directory.store.etcd.member_stream import head_of, head_request
from directory.store.etcd.open_or_create import (
    incarnation_of,
    open_or_create,
    read_head,
    refuse_two_clusters,
)
from directory.store.etcd.restore_detection import Newest, Seen, why_restored
from directory.store.etcd.transaction import has_value, put, request_of
from directory.store.etcd.watch_state import Head

__all__ = ["MOST_TRIES", "READ_SECONDS", "EtcdLoading", "Keyspace", "fewer_rows", "new_commit_id"]


_log = logging.getLogger(__name__)

READ_SECONDS: Final = 5.0
MOST_TRIES: Final = 8
"""Number of tries of a write that meets an unknown identity."""

_PAGE_SECONDS: Final = 20.0
_FIRST_ROWS: Final = 1_000
_MOST_ROWS: Final = 100_000
_PAGE_BYTES: Final = 8 * 1024 * 1024
_GROWTH: Final = 16


class Keyspace:
    """Keys of one cluster in etcd. Thread-safe."""

    def __init__(
        self,
        connection: EtcdConnection,
        cluster: str,
        incarnation: Incarnation,
        clock: Callable[[], float],
    ) -> None:
        """Called by ``open`` only."""
        self.connection: Final = connection
        self.layout: Final = Layout(connection.address.root)
        self._cluster: Final = cluster
        self._cluster_id: Final = incarnation.identity.cluster_id
        """Cluster id as found when the store was opened: other clusters may have the same name."""
        self.clock: Final = clock
        self._incarnation = incarnation
        self._identity_at = 0  # etcd's revision at which it was read
        self._recording: Final = threading.Lock()
        self.newest: Final = Newest(incarnation.identity.incarnation)
        self._refreshing: Final = threading.Lock()

    @classmethod
    def open(
        cls,
        connection: EtcdConnection,
        cluster: str,
        cluster_id: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        sealed: str = "",
    ) -> Self:
        """Returns the cluster's keys; creates the store if there is none, ``sealed`` for this
        reason (empty = not sealed).

        Raises:
            IncompatibleStore: another cluster's store, a newer schema, keys of something else, or
                members of two etcds.
            StoreUnreachable: etcd cannot be reached; or there is no store, and a member is away.
        """
        incarnation = open_or_create(connection, cluster, cluster_id, sealed)
        keyspace = cls(connection, cluster, incarnation, clock)
        keyspace.refresh()
        return keyspace

    @property
    def incarnation(self) -> Incarnation:
        """Incarnation as it was last read."""
        return self._incarnation

    # -- reading -----------------------------------------------------------------------------

    def head(self, timeout_seconds: float = READ_SECONDS) -> Head:
        """Returns the newest commit and the identity, by a linearizable read.

        Raises:
            StoreUnreachable: etcd cannot be reached.
        """
        return read_head(self.connection, self.layout, timeout_seconds)

    def current(self, timeout_seconds: float = READ_SECONDS) -> tuple[Head, Incarnation]:
        """Returns the newest commit and its incarnation.

        Raises:
            StoreUnreachable: etcd cannot be reached.
        """
        deadline = self.clock() + timeout_seconds
        for _ in range(MOST_TRIES):
            head = self.head(max(0.001, deadline - self.clock()))
            incarnation = self._incarnation
            if (
                head.identity == incarnation.stored
                and head.etcd_cluster == incarnation.etcd_cluster
            ):
                return head, incarnation
            self.refresh_or_away()
        raise StoreUnreachable(f"{self.connection}: its identity changes all the time")

    def refresh(self) -> Incarnation:
        """Reads the identity again; begins a new incarnation if etcd was restored.

        Raises:
            StoreUnreachable: etcd cannot be reached.
            IncompatibleStore: the store is another cluster's, or gone.
        """
        with self._refreshing:
            while True:
                before, known_at = self.newest.before_reading(), self._identity_at
                head = self.head()
                incarnation = self._read(head.identity)
                why = why_restored(before, incarnation, head, self._commit_id_at)
                if not why:
                    known = self._record(incarnation, head.revision, known_at, begins=True)
                    self.note_commit(incarnation, head.commit_revision, head.commit_id)
                    return known
                refuse_two_clusters(self.connection)
                _log.error(
                    "%s: %s: it was restored; a new incarnation begins", self.connection, why
                )
                new = incarnation.next(
                    head.etcd_cluster, head.revision, before.revision, unseal=False
                )
                self.replace(incarnation, new)

    def refresh_or_away(self) -> None:
        """Does what ``refresh`` does; a store that is gone counts as unreachable.

        Raises:
            StoreUnreachable: also if the store is another cluster's now, or gone.
        """
        try:
            self.refresh()
        except IncompatibleStore as error:
            raise StoreUnreachable(str(error)) from error

    def _read(self, stored: bytes | None) -> Incarnation:
        if stored is None:
            raise IncompatibleStore(f"{self.connection}: there is no store any more")
        return incarnation_of(self.connection, stored, self._cluster, self._cluster_id)

    # -- incarnations ------------------------------------------------------------------------

    def note(self, stored: bytes, etcd_revision: int) -> Identity:
        """Parses the identity that a watch read at a revision; records it if it is of the same
        incarnation, and none was read at a later revision.

        Raises:
            ValueError: it cannot be read.
        """
        try:
            incarnation = Incarnation.read(stored)
        except IncompatibleStore as error:
            raise ValueError(str(error)) from error
        self._record(incarnation, etcd_revision, 0, begins=False)
        return incarnation.identity

    def _record(
        self, found: Incarnation, etcd_revision: int, known_at: int, *, begins: bool
    ) -> Incarnation:
        """Records the identity that was read at a revision, unless a later one of the same
        incarnation was read meanwhile; returns the one that is recorded then.

        Args:
            found: the identity.
            etcd_revision: etcd's revision at which it was read.
            known_at: revision of the identity that was recorded when the read began; 0: unknown. A
                linearizable read finds an older one only if etcd was restored.
            begins: True if it may be of another incarnation.
        """
        with self._recording:
            known = self._incarnation
            if found.identity.incarnation == known.identity.incarnation:
                replaces = not known_at <= etcd_revision < self._identity_at
            else:
                replaces = begins
            if replaces:
                self._incarnation, self._identity_at = found, etcd_revision
            return self._incarnation

    def note_commit(self, incarnation: Incarnation, etcd_revision: int, commit_id: str) -> None:
        """Records the newest commit at a revision; ignores commits of other incarnations."""
        seen = Seen(
            incarnation.identity.incarnation, incarnation.revision(etcd_revision), commit_id
        )
        if seen.incarnation == self._incarnation.identity.incarnation:
            self.newest.note(seen)

    def _commit_id_at(self, etcd_revision: int) -> str | None:
        """Returns the id of the newest commit as of a revision; None: no longer known."""
        try:
            answer = self.connection.range(head_request(self.layout, etcd_revision), READ_SECONDS)
        except (Compacted, FutureRevision):
            return None
        return head_of(self.layout, answer, etcd_revision).commit_id

    def replace(self, old: Incarnation, new: Incarnation, at: int | None = None) -> bool:
        """Replaces the identity; returns False if another process was first. A change of
        incarnation is a commit. ``at``: only while etcd's revision of the newest commit is this.

        Raises:
            StoreUnreachable: effect unknown.
        """
        operations = [put(self.layout.identity, new.stored)]
        if new.identity.incarnation != old.identity.incarnation:
            operations.append(put(self.layout.commit, new_commit_id().encode()))
        compares = [self.compare_identity(old)]
        if at is not None:
            compares.append((transactions.Mod(self.layout.commit) == at).build_message())
        request = request_of(compares, operations, [])
        return bool(self.connection.txn(request, READ_SECONDS).succeeded)

    def compare_identity(self, incarnation: Incarnation) -> Any:
        """Returns the comparison that holds while the store has this identity."""
        return has_value(self.layout.identity, incarnation.stored)


class EtcdLoading:
    """Loading of rows from etcd (``directory.store.base.Loading``)."""

    def __init__(
        self,
        connection: EtcdConnection,
        layout: Layout,
        head: Head,
        incarnation: Incarnation,
        prefixes: Sequence[bytes],
    ) -> None:
        """Loads all rows as of ``head``."""
        self._connection: Final = connection
        self._layout: Final = layout
        self._head: Final = head
        self._incarnation: Final = incarnation
        self._prefixes: Final = sorted(prefixes)
        self._limit = _FIRST_ROWS

    @property
    def revision(self) -> int:
        return self._incarnation.revision(self._head.commit_revision)

    @property
    def commit_id(self) -> str:
        return self._head.commit_id

    def pages(self) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        for prefix in self._prefixes:
            begin, end = self._layout.row_range(prefix)
            try:
                yield from self._range(begin, end)
            except Compacted as error:
                raise StoreUnreachable(
                    f"{self._connection}: revision {self._head.revision} was compacted while it was"
                    " loaded; begin again"
                ) from error
            except FutureRevision as error:
                raise StoreUnreachable(
                    f"{self._connection}: restored while it was loaded"
                ) from error

    def _range(self, begin: bytes, end: bytes) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        skip = len(self._layout.rows)
        coming: Callable[[], Any] | None = self._send_request(begin, end)
        while coming is not None:
            try:
                answer = coming()
            except TooLarge:
                self._limit = fewer_rows(self._connection, self._limit)
                coming = self._send_request(begin, end)
                continue
            coming = None
            if answer.more:
                begin = answer.kvs[-1].key + b"\0"
                self._adapt(answer)
                coming = self._send_request(begin, end)
            if answer.kvs:
                yield [(kv.key[skip:], kv.value) for kv in answer.kvs]

    def _send_request(self, begin: bytes, end: bytes) -> Callable[[], Any]:
        request = etcdrpc.RangeRequest(
            key=begin, range_end=end, limit=self._limit, revision=self._head.revision
        )
        return self._connection.range_ahead(request, _PAGE_SECONDS)

    def _adapt(self, answer: Any) -> None:
        row_bytes = max(1, answer.ByteSize() // len(answer.kvs))
        most = max(1, _PAGE_BYTES // row_bytes)
        self._limit = min(_MOST_ROWS, _GROWTH * self._limit, most)


def fewer_rows(connection: EtcdConnection, limit: int) -> int:
    """Returns the number of rows to request after a response with ``limit`` rows was too large.

    Raises:
        StoreUnreachable: a single row was too large.
    """
    if limit == 1:
        raise StoreUnreachable(f"{connection}: a row is too large to be read") from None
    return max(1, limit // 4)


def new_commit_id() -> str:
    """Returns a random id."""
    return secrets.token_hex(8)
