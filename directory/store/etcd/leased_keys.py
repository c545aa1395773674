"""What hangs on a process's life in etcd: roles and announced keys; refuses to keep leases itself.

A role, or an announced key, has a leased key under ``alive/`` beside its row. The lease's end
removes only that one: then anybody may take the role, and anybody's sweep removes the announced
row, by a commit like any other. So every revision that a watch yields is a commit.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
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
from directory.store.etcd.etcd3_stubs import etcdrpc, transactions
from directory.store.etcd.incarnation import Incarnation
from directory.store.etcd.key_layout import end_of
from directory.store.etcd.keyspace import READ_SECONDS, GuardFailed, Keyspace, TransactionDraft
from directory.store.etcd.leases import Lease, Leases
from directory.store.etcd.transaction import compares_of, delete, put, read, reads_of

__all__ = ["EtcdAnnouncement", "EtcdLeadership", "create_ephemeral", "elect", "remove_expired"]

_ROLE: Final = re.compile(r"[a-z0-9-]{1,64}")
_SWEPT_AT_ONCE: Final = 40  # two comparisons and two operations each, of 128


def elect(keyspace: Keyspace, leases: Leases, role: str, candidate: str) -> EtcdLeadership | None:
    """See ``directory.store.base.Store.elect``."""
    if not _ROLE.fullmatch(role):
        raise ValueError(f"role {role!r}: not of [a-z0-9-]")
    layout = keyspace.layout
    alive = layout.alive + b"role/" + role.encode()
    # Before a lease is asked for: most who ask find it taken.
    held = keyspace.connection.range(etcdrpc.RangeRequest(key=alive, count_only=True), READ_SECONDS)
    if held.count:
        return None
    lease = leases.grant()
    value = f"{candidate}\n{secrets.token_hex(8)}".encode()
    free = (transactions.Create(alive) == 0).build_message()
    operations = [put(alive, value, lease.id), put(layout.row(role_key(role)), value)]
    try:
        done = keyspace.write(lambda _: TransactionDraft([free], operations))
    except BaseException:
        leases.revoke(lease)
        raise
    if isinstance(done, GuardFailed):
        leases.revoke(lease)
        return None
    return EtcdLeadership(keyspace, leases, lease, KeyEquals(role_key(role), value))


class EtcdLeadership:
    """See ``directory.store.base.Leadership``."""

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
        """Not after a restore: its fencing key is of another life."""
        same_incarnation = self._keyspace.incarnation.identity.incarnation == self._incarnation
        return same_incarnation and self._lease.lasts()

    def release(self) -> None:
        if not self._lease.ended:
            self._leases.revoke(self._lease)


def create_ephemeral(
    keyspace: Keyspace, leases: Leases, key: bytes, value: bytes, guards: Sequence[Guard]
) -> EtcdAnnouncement | Conflict:
    """See ``directory.store.base.Store.create_ephemeral``."""
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
        done = keyspace.write(draft)
    except BaseException:
        leases.revoke(lease)
        raise
    if isinstance(done, GuardFailed):
        leases.revoke(lease)
        return done.conflict(guards)
    return EtcdAnnouncement(keyspace, leases, lease, key, token)


class EtcdAnnouncement:
    """See ``directory.store.base.EphemeralKey``."""

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
        """Not after a restore: what was announced in another life may be gone."""
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
        """True if the key was still this announcement's, and so it was done."""
        announced = self._keyspace.layout.announced + self._key
        mine = (transactions.Value(announced) == self._token).build_message()
        done = self._keyspace.write(lambda _: TransactionDraft([mine], operations))
        return isinstance(done, Committed)


def remove_expired(keyspace: Keyspace, prefix: bytes) -> int:
    """See ``directory.store.base.Store.remove_expired``."""
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
        pass  # once it is unsealed they are still dead
    return swept


def _remove(keyspace: Keyspace, dead: Sequence[Any]) -> int:
    """If they are all still the dead ones'; else the next sweep looks again."""
    layout = keyspace.layout
    compares: list[Any] = []
    operations: list[Any] = []
    for kv in dead:
        key = kv.key.removeprefix(layout.announced)
        still = transactions.Value(kv.key) == kv.value
        gone = transactions.Create(layout.alive + kv.value) == 0
        compares += [still.build_message(), gone.build_message()]
        operations += [delete(kv.key), delete(layout.row(key))]
    done = keyspace.write(lambda _: TransactionDraft(compares, operations))
    return len(dead) if isinstance(done, Committed) else 0


def _remove_stray(keyspace: Keyspace, stray: Sequence[Any]) -> int:
    """Returns rows that nobody announced, if that is still so of all."""
    layout = keyspace.layout
    compares: list[Any] = []
    for kv in stray:
        key = kv.key.removeprefix(layout.rows)
        same = transactions.Mod(kv.key) == kv.mod_revision
        never = transactions.Create(layout.announced + key) == 0
        compares += [same.build_message(), never.build_message()]
    operations = [delete(kv.key) for kv in stray]
    done = keyspace.write(lambda _: TransactionDraft(compares, operations))
    return len(stray) if isinstance(done, Committed) else 0
