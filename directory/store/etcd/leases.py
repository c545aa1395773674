"""Leases in etcd that last while this process does, and the roles and ephemeral keys bound to them.

A lease counts as valid by this process's monotonic clock only, from before its request was sent and
for a little less than etcd's time: a process that was paused finds it expired when it wakes, before
it acts.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from directory.namespace.keys import role_key
from directory.store.base import (
    Committed,
    Conflict,
    Guard,
    KeyEquals,
    StoreIsSealed,
    StoreUnreachable,
)
from directory.store.etcd.connection import EtcdConnection, EtcdRefused
from directory.store.etcd.etcd3_stubs import etcdrpc, transactions
from directory.store.etcd.guarded_commit import GuardFailed, TransactionDraft, commit_guarded
from directory.store.etcd.incarnation import Incarnation
from directory.store.etcd.key_layout import end_of
from directory.store.etcd.keyspace import READ_SECONDS, Keyspace
from directory.store.etcd.transaction import (
    compares_of,
    delete,
    has_value,
    is_absent,
    put,
    read,
    reads_of,
)

__all__ = [
    "LEASE_SECONDS",
    "EtcdAnnouncement",
    "EtcdLeadership",
    "Lease",
    "Leases",
    "clamp",
    "create_ephemeral",
    "elect",
    "remove_expired",
]


_log = logging.getLogger(__name__)

LEASE_SECONDS: Final = 9
"""Ephemeral keys are removed within 15 s of a process's end (``base.Store.create_ephemeral``): this
long until the lease expires, then etcd's own delay (it checks twice a second) and the next sweep.
"""
_LEAST_SECONDS: Final = 3
_MOST_SECONDS: Final = 60
_BELIEVED: Final = 0.9
"""Part of a lease's time for which it counts as valid: clocks run at different speeds."""
_RENEWALS: Final = 3  # in a lease's time
_REVOKE_SECONDS: Final = 1.0


def clamp(seconds: float) -> int:
    """Clamps a lease's time to a sane range: etcd accepts and returns any number (S22)."""
    if not seconds > 0:
        return _LEAST_SECONDS
    return int(min(_MOST_SECONDS, max(_LEAST_SECONDS, seconds)))


class Lease:
    """Lease; ``lasts`` is True until etcd may have expired it."""

    def __init__(self, number: int, seconds: int, clock: Callable[[], float]) -> None:
        self.id: Final = number
        self.seconds: Final = seconds
        self._clock: Final = clock
        self._believed_until = float("-inf")
        self._ended = False

    def lasts(self) -> bool:
        return not self._ended and self._clock() < self._believed_until

    @property
    def ended(self) -> bool:
        """True once it is not renewed any more."""
        return self._ended

    def end(self) -> None:
        """Ends the lease: from now on it is not valid."""
        self._ended = True

    def renewed(self, asked_at: float, answered_seconds: int) -> None:
        """Records a renewal by ``answered_seconds``, at some time after ``asked_at``; 0 = the lease
        has expired.
        """
        if answered_seconds <= 0:
            self._ended = True
        else:
            seconds = min(self.seconds, answered_seconds)
            self._believed_until = max(self._believed_until, asked_at + _BELIEVED * seconds)


class Leases:
    """Leases of one store object, renewed by one thread that starts with the first."""

    def __init__(
        self,
        connection: EtcdConnection,
        seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection: Final = connection
        self._seconds: Final = clamp(seconds)
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._leases: list[Lease] = []
        self._thread: threading.Thread | None = None
        self._stop: Final = threading.Event()

    def grant(self) -> Lease:
        """Grants a lease, which is renewed from now on.

        Raises:
            StoreUnreachable: etcd cannot be reached.
        """
        asked_at = self._clock()
        answer = self._connection.grant_lease(self._seconds, self._seconds / 2)
        lease = Lease(answer.ID, self._seconds, self._clock)
        lease.renewed(asked_at, answer.TTL)
        with self._lock:
            self._leases.append(lease)
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._renew, name="leases", daemon=True)
                self._thread.start()
        return lease

    def revoke(self, lease: Lease) -> None:
        """Revokes a lease; if etcd is unreachable, the lease soon expires by itself."""
        lease.end()
        self._drop(lease)
        try:
            self._connection.revoke_lease(lease.id, _REVOKE_SECONDS)
        except StoreUnreachable as reason:
            _log.info("lease %x ends by itself: %s", lease.id, reason)

    def close(self) -> None:
        """Ends all leases."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_REVOKE_SECONDS)
        with self._lock:
            leases, self._leases = self._leases, []
        deadline = self._clock() + _REVOKE_SECONDS
        for lease in leases:
            lease.end()
            if self._clock() < deadline:
                self.revoke(lease)

    def _drop(self, lease: Lease) -> None:
        with self._lock:
            self._leases = [one for one in self._leases if one is not lease]

    def _renew(self) -> None:
        pause = self._seconds / _RENEWALS
        while not self._stop.wait(pause):
            with self._lock:
                leases = list(self._leases)
            for lease in leases:
                self._renew_one(lease, pause)

    def _renew_one(self, lease: Lease, seconds: float) -> None:
        asked_at = self._clock()
        try:
            answer = self._connection.keep_lease(lease.id, seconds)
        except EtcdRefused as reason:
            _log.warning("lease %x cannot be kept: %s", lease.id, reason)
        except StoreUnreachable as reason:
            _log.info("lease %x is not renewed now: %s", lease.id, reason)
        except Exception:  # noqa: BLE001 - nobody would renew any lease of this process any more
            _log.exception("renewing lease %x stumbled", lease.id)
        else:
            lease.renewed(asked_at, answer.TTL)
        if lease.ended:
            _log.warning("lease %x ended", lease.id)
            self._drop(lease)


_ROLE: Final = re.compile(r"[a-z0-9-]{1,64}")
_SWEPT_AT_ONCE: Final = 40  # two comparisons and two operations each, of 128


def elect(keyspace: Keyspace, leases: Leases, role: str, candidate: str) -> EtcdLeadership | None:
    """Implements ``directory.store.base.Store.elect``."""
    if not _ROLE.fullmatch(role):
        raise ValueError(f"role {role!r}: not of [a-z0-9-]")
    layout = keyspace.layout
    alive = layout.alive + b"role/" + role.encode()
    # Before a lease is requested: usually the role is taken.
    held = keyspace.connection.range(etcdrpc.RangeRequest(key=alive, count_only=True), READ_SECONDS)
    if held.count:
        return None
    lease = leases.grant()
    value = f"{candidate}\n{secrets.token_hex(8)}".encode()
    free = is_absent(alive)
    operations = [put(alive, value, lease.id), put(layout.row(role_key(role)), value)]
    try:
        done = commit_guarded(keyspace, lambda _: TransactionDraft([free], operations))
    except BaseException:
        leases.revoke(lease)
        raise
    if isinstance(done, GuardFailed):
        leases.revoke(lease)
        return None
    return EtcdLeadership(keyspace, leases, lease, KeyEquals(role_key(role), value))


class EtcdLeadership:
    """Role held by a lease in etcd (``directory.store.base.Leadership``)."""

    def __init__(self, keyspace: Keyspace, leases: Leases, lease: Lease, guard: KeyEquals) -> None:
        self._keyspace: Final = keyspace
        self._leases: Final = leases
        self._lease: Final = lease
        self._guard: Final = guard
        self._incarnation: Final = keyspace.incarnation.identity.incarnation

    @property
    def guard(self) -> KeyEquals:
        return self._guard

    def held(self) -> bool:
        """True if the role is held; not after a restore: its fencing key is of another
        incarnation.
        """
        same_incarnation = self._keyspace.incarnation.identity.incarnation == self._incarnation
        return same_incarnation and self._lease.lasts()

    def release(self) -> None:
        if not self._lease.ended:
            self._leases.revoke(self._lease)


def create_ephemeral(
    keyspace: Keyspace, leases: Leases, key: bytes, value: bytes, guards: Sequence[Guard]
) -> EtcdAnnouncement | Conflict:
    """Implements ``directory.store.base.Store.create_ephemeral``."""
    layout = keyspace.layout
    lease = leases.grant()
    token = secrets.token_hex(8).encode()
    operations = [
        put(layout.alive + token, b"", lease.id),
        put(layout.announced + key, token),
        put(layout.row(key), value),
    ]

    def draft(incarnation: Incarnation) -> TransactionDraft:
        return TransactionDraft(
            compares_of(layout, incarnation, guards),
            operations,
            reads_of(layout, incarnation, guards),
        )

    try:
        done = commit_guarded(keyspace, draft)
    except BaseException:
        leases.revoke(lease)
        raise
    if isinstance(done, GuardFailed):
        leases.revoke(lease)
        return done.conflict(guards)
    return EtcdAnnouncement(keyspace, leases, lease, key, token)


class EtcdAnnouncement:
    """Key bound to a lease in etcd (``directory.store.base.EphemeralKey``)."""

    def __init__(
        self, keyspace: Keyspace, leases: Leases, lease: Lease, key: bytes, token: bytes
    ) -> None:
        self._keyspace: Final = keyspace
        self._leases: Final = leases
        self._lease: Final = lease
        self._key: Final = key
        self._token: Final = token
        self._incarnation: Final = keyspace.incarnation.identity.incarnation

    def update(self, value: bytes) -> None:
        row = self._keyspace.layout.row(self._key)
        if self.is_alive() and not self._write([put(row, value)]):
            self._lease.end()

    def is_alive(self) -> bool:
        """True if the key exists; not after a restore: it may be gone in another incarnation."""
        same_incarnation = self._keyspace.incarnation.identity.incarnation == self._incarnation
        return same_incarnation and self._lease.lasts()

    def delete(self) -> None:
        if self._lease.ended:
            return
        layout = self._keyspace.layout
        try:
            self._write([delete(layout.row(self._key)), delete(layout.announced + self._key)])
        except StoreUnreachable:
            pass  # a sweep finds it without its lease
        finally:
            self._leases.revoke(self._lease)

    def _write(self, operations: Sequence[Any]) -> bool:
        """Executes a write if the key is still this announcement's; returns whether it was."""
        announced = self._keyspace.layout.announced + self._key
        mine = has_value(announced, self._token)
        done = commit_guarded(self._keyspace, lambda _: TransactionDraft([mine], operations))
        return isinstance(done, Committed)


def remove_expired(keyspace: Keyspace, prefix: bytes) -> int:
    """Implements ``directory.store.base.Store.remove_expired``."""
    layout = keyspace.layout
    places = [layout.announced, layout.alive, *([layout.row(prefix)] if prefix else [])]
    ranges = [read(place, end_of(place)) for place in places]
    answer = keyspace.connection.read_txn(etcdrpc.TxnRequest(success=ranges), READ_SECONDS)
    announced, alive, *rows = (one.response_range.kvs for one in answer.responses)
    living = {kv.key.removeprefix(layout.alive) for kv in alive}
    dead = [kv for kv in announced if kv.value not in living]
    known = {layout.row(kv.key.removeprefix(layout.announced)) for kv in announced}
    stray = [kv for kvs in rows for kv in kvs if kv.key not in known]
    swept = 0
    try:
        for begin in range(0, len(dead), _SWEPT_AT_ONCE):
            swept += _remove(keyspace, dead[begin : begin + _SWEPT_AT_ONCE])
        for begin in range(0, len(stray), _SWEPT_AT_ONCE):
            swept += _remove_stray(keyspace, stray[begin : begin + _SWEPT_AT_ONCE])
    except StoreIsSealed:
        pass  # the processes are still dead when it is unsealed
    return swept


def _remove(keyspace: Keyspace, dead: Sequence[Any]) -> int:
    """Removes keys if all of them still belong to dead processes; otherwise the next sweep
    retries.
    """
    layout = keyspace.layout
    compares: list[Any] = []
    operations: list[Any] = []
    for kv in dead:
        key = kv.key.removeprefix(layout.announced)
        compares += [has_value(kv.key, kv.value), is_absent(layout.alive + kv.value)]
        operations += [delete(kv.key), delete(layout.row(key))]
    done = commit_guarded(keyspace, lambda _: TransactionDraft(compares, operations))
    return len(dead) if isinstance(done, Committed) else 0


def _remove_stray(keyspace: Keyspace, stray: Sequence[Any]) -> int:
    """Removes rows if all are still unchanged and not ephemeral; returns the number of removed
    rows.
    """
    layout = keyspace.layout
    compares: list[Any] = []
    for kv in stray:
        key = kv.key.removeprefix(layout.rows)
        same = transactions.Mod(kv.key) == kv.mod_revision
        compares += [same.build_message(), is_absent(layout.announced + key)]
    operations = [delete(kv.key) for kv in stray]
    done = commit_guarded(keyspace, lambda _: TransactionDraft(compares, operations))
    return len(stray) if isinstance(done, Committed) else 0
