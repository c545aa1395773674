"""One cluster's keys in etcd, in their incarnation.

Every transaction compares the identity as it was last read. After a seal, a restore or a fill by
another process, the transaction of a process that has not read the new identity fails; the process
reads the identity and continues.

A restore is noticed by a process that has seen a newer commit than etcd has (``why_restored`` is
the rule, ``Keyspace.refresh`` the one place that applies it). That process begins a new incarnation
by a transaction that compares the identity, so that only one process does. A restore of etcd under
the same cluster id while no server of the cluster runs cannot be noticed (see
``docs/how-to/run-on-etcd.md``).

A restore is proven only by two reads in order: a commit was seen, and a linearizable read that
*began afterwards* finds an older revision, or another commit at that one. A commit that was seen
during the read proves nothing, nor does an answer from a member's local state. So
``Newest.before_reading`` is called before the read is sent, and ``why_restored`` compares with
that.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from directory.store.base import (
    Committed,
    Conflict,
    Guard,
    Identity,
    IncompatibleStore,
    StoreIsSealed,
    StoreRefused,
    StoreUnreachable,
)
from directory.store.etcd.connection import Compacted, EtcdConnection, FutureRevision
from directory.store.etcd.incarnation import Incarnation
from directory.store.etcd.key_layout import Layout
from directory.store.etcd.member_stream import head_of, head_request
from directory.store.etcd.open_or_create import incarnation_of, open_or_create, read_head
from directory.store.etcd.transaction import has_value, put, read, request_of, unfulfilled
from directory.store.etcd.watch_state import Head

__all__ = [
    "READ_SECONDS",
    "GuardFailed",
    "Keyspace",
    "Newest",
    "Seen",
    "TransactionDraft",
    "why_restored",
]


@dataclass(frozen=True, slots=True)
class Seen:
    """Commit of one incarnation that this process knows: the newest at a revision."""

    incarnation: str
    revision: int = 0
    commit_id: str = ""


class Newest:
    """Newest commit that this process knows. Thread-safe."""

    def __init__(self, incarnation: str) -> None:
        self._lock: Final = threading.Lock()
        self._seen = Seen(incarnation)

    def before_reading(self) -> Seen:
        """Returns the newest commit so far; a linearizable read that begins now cannot find an
        older one.
        """
        return self._seen

    def note(self, seen: Seen) -> None:
        """Records a commit if it is newer, or of another incarnation."""
        with self._lock:
            known = self._seen
            if known.incarnation != seen.incarnation or known.revision < seen.revision:
                self._seen = seen


def why_restored(
    before: Seen, incarnation: Incarnation, head: Head, commit_id_at: Callable[[int], str | None]
) -> str:
    """Returns why etcd must have been restored since a commit was seen; empty = it need not have
    been.

    Args:
        before: the newest known commit before the read of ``head`` was sent.
        incarnation: the identity in ``head``.
        head: the result of a linearizable read.
        commit_id_at: returns the newest commit as of a revision of etcd; None: no longer known.
    """
    if head.etcd_cluster != incarnation.etcd_cluster:
        return (
            f"etcd cluster {head.etcd_cluster:x} answers, and it was {incarnation.etcd_cluster:x}"
        )
    at = incarnation.etcd_revision(before.revision)
    if before.incarnation != incarnation.identity.incarnation or not at:
        return ""
    if head.revision < at:
        return f"etcd is at revision {head.revision}, and was at {at}"
    found = head.commit_id if head.commit_revision <= at else commit_id_at(at)
    if found is not None and found != before.commit_id:
        return f"another commit is at etcd's revision {at}"
    return ""


_log = logging.getLogger(__name__)

READ_SECONDS: Final = 5.0
_TRIES: Final = 8
"""Number of tries of a write that meets an unknown identity."""


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


class Keyspace:
    """Keys of one cluster in etcd. Thread-safe."""

    def __init__(
        self,
        connection: EtcdConnection,
        cluster: str,
        cluster_id: str | None,
        incarnation: Incarnation,
        clock: Callable[[], float],
    ) -> None:
        """Not called directly: see ``open``."""
        self.connection: Final = connection
        self.layout: Final = Layout(connection.address.root)
        self._cluster: Final = cluster
        self._cluster_id: Final = cluster_id
        self._clock: Final = clock
        self._incarnation = incarnation
        self._newest: Final = Newest(incarnation.identity.incarnation)
        self._refreshing: Final = threading.Lock()

    @classmethod
    def open(
        cls,
        connection: EtcdConnection,
        cluster: str,
        cluster_id: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Self:
        """Returns the cluster's keys; creates the store if there is none.

        Raises:
            IncompatibleStore: another cluster's store, a newer schema, or keys of something else.
            StoreUnreachable: etcd cannot be reached.
        """
        incarnation = open_or_create(connection, cluster, cluster_id)
        keyspace = cls(connection, cluster, cluster_id, incarnation, clock)
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
        deadline = self._clock() + timeout_seconds
        for _ in range(_TRIES):
            head = self.head(max(0.001, deadline - self._clock()))
            incarnation = self._incarnation
            if (
                head.identity == incarnation.stored
                and head.etcd_cluster == incarnation.etcd_cluster
            ):
                return head, incarnation
            self._refresh_or_away()
        raise StoreUnreachable(f"{self.connection}: its identity changes all the time")

    def refresh(self) -> Incarnation:
        """Reads the identity again; begins a new incarnation if etcd was restored.

        Raises:
            StoreUnreachable: etcd cannot be reached.
            IncompatibleStore: the store is another cluster's, or gone.
        """
        with self._refreshing:
            while True:
                before = self._newest.before_reading()
                head = self.head()
                incarnation = self._read(head.identity)
                why = why_restored(before, incarnation, head, self._commit_id_at)
                if not why:
                    self._incarnation = incarnation
                    self.note_commit(incarnation, head.commit_revision, head.commit_id)
                    return incarnation
                self._refuse_two_clusters(incarnation, head)
                _log.error(
                    "%s: %s: it was restored; a new incarnation begins", self.connection, why
                )
                new = incarnation.next(
                    head.etcd_cluster, head.revision, before.revision, unseal=False
                )
                self.replace(incarnation, new)

    def _refresh_or_away(self) -> None:
        try:
            self.refresh()
        except IncompatibleStore as error:
            raise StoreUnreachable(str(error)) from error

    def _read(self, stored: bytes | None) -> Incarnation:
        if stored is None:
            raise IncompatibleStore(f"{self.connection}: there is no store any more")
        return incarnation_of(self.connection, stored, self._cluster, self._cluster_id)

    # -- incarnations ------------------------------------------------------------------------

    def note(self, stored: bytes) -> Identity:
        """Parses the identity that a watch read; records it if it is of the same incarnation.

        Raises:
            ValueError: it cannot be read.
        """
        try:
            incarnation = Incarnation.read(stored)
        except IncompatibleStore as error:
            raise ValueError(str(error)) from error
        if incarnation.identity.incarnation == self._incarnation.identity.incarnation:
            self._incarnation = incarnation
        return incarnation.identity

    def note_commit(self, incarnation: Incarnation, etcd_revision: int, commit_id: str) -> None:
        """Records the newest commit at a revision; ignores those of earlier incarnations."""
        seen = Seen(
            incarnation.identity.incarnation, incarnation.revision(etcd_revision), commit_id
        )
        if seen.incarnation == self._incarnation.identity.incarnation:
            self._newest.note(seen)

    def _commit_id_at(self, etcd_revision: int) -> str | None:
        """Returns the newest commit as of a revision; None: no longer known."""
        try:
            answer = self.connection.range(head_request(self.layout, etcd_revision), READ_SECONDS)
        except (Compacted, FutureRevision):
            return None
        return head_of(self.layout, answer, etcd_revision).commit_id

    def _refuse_two_clusters(self, incarnation: Incarnation, head: Head) -> None:
        """Checks that all members are of one etcd cluster: two in one address would restore each
        other for ever.
        """
        found: dict[int, str] = {}
        for number, endpoint in enumerate(self.connection.endpoints):
            try:
                status = self.connection.status(number, 1.0)
            except StoreUnreachable:
                continue
            found[status.header.cluster_id] = endpoint
        if len(found) > 1:
            raise IncompatibleStore(
                f"{self.connection}: {' and '.join(sorted(found.values()))} are of different etcd"
                " clusters; name the members of one"
            )

    def replace(self, old: Incarnation, new: Incarnation) -> bool:
        """Replaces the identity; returns False if another process was first. A change of
        incarnation is a commit.

        Raises:
            StoreUnreachable: effect unknown.
        """
        operations = [put(self.layout.identity, new.stored)]
        if new.identity.incarnation != old.identity.incarnation:
            operations.append(put(self.layout.commit, new_commit_id().encode()))
        request = request_of([self._is(old)], operations, [])
        return bool(self.connection.txn(request, READ_SECONDS).succeeded)

    def _is(self, incarnation: Incarnation) -> Any:
        return has_value(self.layout.identity, incarnation.stored)

    # -- writing -----------------------------------------------------------------------------

    def write(
        self,
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
        deadline = self._clock() + timeout_seconds
        for _ in range(_TRIES):
            incarnation = self._writable(filling=filling)
            one = draft(incarnation)
            commit_id = new_commit_id()
            request = request_of(
                [self._is(incarnation), *one.compares],
                [*one.operations, put(self.layout.commit, commit_id.encode())],
                [read(self.layout.identity), read(self.layout.commit), *one.reads],
            )
            before = self._newest.before_reading()
            answer = self.connection.txn(request, max(0.001, deadline - self._clock()))
            if answer.succeeded:
                return self._committed(incarnation, before, answer.header, commit_id)
            identity, commit, *answers = answer.responses
            stored = identity.response_range.kvs
            if stored and stored[0].value == incarnation.stored:
                commits = commit.response_range.kvs
                return GuardFailed(incarnation, answers, commits[0].mod_revision if commits else 0)
            self._refresh_or_away()
        raise StoreUnreachable(f"{self.connection}: its identity changes all the time")

    def _writable(self, *, filling: bool) -> Incarnation:
        if filling:
            if not self._incarnation.identity.partial:
                self._refresh_or_away()
            if not self._incarnation.identity.partial:
                raise ValueError(
                    f"{self.connection}: not sealed to be filled, but"
                    f" {self._incarnation.identity.sealed!r}"
                )
        elif self._incarnation.identity.sealed:
            self._refresh_or_away()  # it may have been unsealed
            if self._incarnation.identity.sealed:
                raise StoreIsSealed(f"{self.connection}: {self._incarnation.identity.sealed}")
        return self._incarnation

    def _committed(
        self, incarnation: Incarnation, before: Seen, header: Any, commit_id: str
    ) -> Committed:
        revision = incarnation.revision(header.revision)
        same_incarnation = before.incarnation == incarnation.identity.incarnation
        if header.cluster_id != incarnation.etcd_cluster or (
            same_incarnation and revision <= before.revision
        ):
            try:
                self._refresh_or_away()
            except StoreRefused as error:  # which would promise that nothing was written
                raise StoreUnreachable(str(error)) from error
            raise StoreUnreachable(f"{self.connection}: it was restored in this moment")
        self.note_commit(incarnation, header.revision, commit_id)
        return Committed(revision, commit_id)


def new_commit_id() -> str:
    """Returns a random id."""
    return secrets.token_hex(8)
