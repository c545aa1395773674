"""Opens the store under a prefix in etcd, or creates it if there is nothing.

Refuses members of two etcds in one address, and other keys: another cluster's store, a prefix
inside or around one, and keys that kdir did not create.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from directory.store.base import Identity, IncompatibleStore, StoreUnreachable
from directory.store.etcd.call_errors import EtcdRefused
from directory.store.etcd.connection import EtcdConnection
from directory.store.etcd.etcd3_stubs import transactions
from directory.store.etcd.etcd_address import EtcdAddress
from directory.store.etcd.incarnation import Incarnation
from directory.store.etcd.key_layout import Layout
from directory.store.etcd.member_stream import head_of, head_request
from directory.store.etcd.transaction import put, read, request_of
from directory.store.etcd.watch_state import Head
from directory.store.identity import refuse_foreign

__all__ = [
    "check_writable",
    "identity_at",
    "incarnation_of",
    "open_or_create",
    "read_head",
    "refuse_two_clusters",
]

_SECONDS: Final = 5.0
_MEMBER_SECONDS: Final = 1.0
"""Longest wait for one member when all are compared: an unreachable one delays an open by this
time, and by as much again at a login.
"""


def read_head(
    connection: EtcdConnection, layout: Layout, timeout_seconds: float = _SECONDS
) -> Head:
    """Returns the newest commit and the identity under a prefix, by a linearizable read.

    Raises:
        StoreUnreachable: etcd cannot be reached.
    """
    return head_of(layout, connection.range(head_request(layout), timeout_seconds))


def incarnation_of(
    connection: EtcdConnection, stored: bytes, cluster: str, cluster_id: str | None
) -> Incarnation:
    """Returns the stored identity, which must be this cluster's.

    Raises:
        IncompatibleStore: it is not, or cannot be read.
    """
    try:
        incarnation = Incarnation.read(stored)
        refuse_foreign(incarnation.identity, cluster, cluster_id)
    except ValueError as error:
        raise IncompatibleStore(f"{connection}: its identity is {error}") from error
    except IncompatibleStore as error:
        raise IncompatibleStore(f"{connection}: {error}") from error
    return incarnation


def open_or_create(
    connection: EtcdConnection, cluster: str, cluster_id: str | None, sealed: str = ""
) -> Incarnation:
    """Returns the incarnation of the existing store, or of a new one, ``sealed`` for this reason.

    Raises:
        IncompatibleStore: there are other keys, or members of two etcds, or the user lacks the
            right.
        StoreUnreachable: etcd cannot be reached; or there is no store, and a member is away.
    """
    try:
        return _found_or_begin(connection, cluster, cluster_id, sealed)
    except EtcdRefused as error:
        raise IncompatibleStore(str(error)) from error


def _found_or_begin(
    connection: EtcdConnection, cluster: str, cluster_id: str | None, sealed: str
) -> Incarnation:
    away = refuse_two_clusters(connection)
    layout = Layout(connection.address.root)
    head = read_head(connection, layout)
    if head.identity is not None:
        return incarnation_of(connection, head.identity, cluster, cluster_id)
    _refuse_creation_while_away(connection, away)
    _refuse_nested(connection)
    incarnation = Incarnation.first(cluster, cluster_id, head.etcd_cluster).sealed(sealed)
    answer = connection.txn(_creation(layout, incarnation), _SECONDS)
    if answer.succeeded:
        return incarnation
    if stored := _found_instead(connection, answer):  # created by another server meanwhile
        return incarnation_of(connection, stored, cluster, cluster_id)
    raise StoreUnreachable(f"{connection}: what is there changes all the time")


def _creation(layout: Layout, incarnation: Incarnation, *compares: Any) -> Any:
    """Returns the transaction that creates a store if the prefix has no keys, and otherwise reads
    the identity and the first key there.
    """
    nothing_there = transactions.Create(layout.root, layout.root_end) == 0
    return request_of(
        [nothing_there.build_message(), *compares],
        [put(layout.identity, incarnation.stored)],
        [read(layout.identity), read(layout.root, layout.root_end, limit=1, keys_only=True)],
    )


def _found_instead(connection: EtcdConnection, answer: Any) -> bytes:
    """Returns the stored identity that kept a store from being created; empty: nothing is there.

    Raises:
        IncompatibleStore: there are other keys.
    """
    identity, other = (one.response_range.kvs for one in answer.responses)
    if identity:
        return bytes(identity[0].value)
    if other:
        raise IncompatibleStore(
            f"{connection}: the prefix is in use: it holds"
            f" {other[0].key.decode(errors='replace')!r}, and no store of kdir's; choose a prefix"
            " of the cluster's own"
        )
    return b""


def check_writable(address: EtcdAddress) -> None:
    """Checks that the store there takes writes, or could be created. Changes nothing: etcd checks
    rights and space of the creation that is sent, and one comparison in it never holds.

    Raises:
        IncompatibleStore, StoreUnreachable: as ``open_or_create``.
        StoreFull: etcd has no space left.
    """
    connection = EtcdConnection(address)
    layout = Layout(address.root)
    never = (transactions.Version(layout.identity) < 0).build_message()
    try:
        away = refuse_two_clusters(connection)
        head = read_head(connection, layout)
        if head.identity is None:
            _refuse_creation_while_away(connection, away)
            _refuse_nested(connection)
        creation = _creation(layout, Incarnation.first("", None, head.etcd_cluster), never)
        _found_instead(connection, connection.read_txn(creation, _SECONDS))
    except EtcdRefused as error:
        raise IncompatibleStore(str(error)) from error
    finally:
        connection.close()


def refuse_two_clusters(connection: EtcdConnection) -> list[str]:
    """Checks that all members that answer are of one etcd cluster: two clusters in one address
    would restore each other for ever, and an empty cluster would answer with a second, empty store.
    Returns the endpoints that did not answer.

    Raises:
        IncompatibleStore: they are of several clusters.
    """
    if len(connection.endpoints) == 1:
        return []
    every = range(len(connection.endpoints))
    had_token = bool(connection.token)
    found = _cluster_ids(connection, every)
    if connection.token and not had_token:
        # A learner answers this read, but allows no login: now there is a token of another member.
        found |= _cluster_ids(connection, [one for one in every if one not in found])
    away = [connection.endpoints[one] for one in every if one not in found]
    members = {cluster: connection.endpoints[one] for one, cluster in found.items()}
    if len(members) > 1:
        raise IncompatibleStore(
            f"{connection}: {' and '.join(sorted(members.values()))} are of different etcd"
            " clusters; name the members of one"
        )
    return away


def _cluster_ids(connection: EtcdConnection, numbers: Iterable[int]) -> dict[int, int]:
    """Returns etcd's cluster id of each of these members that answers."""
    found: dict[int, int] = {}
    for number in numbers:
        with suppress(StoreUnreachable):
            found[number] = connection.cluster_id_at(number, _MEMBER_SECONDS)
    return found


def _refuse_creation_while_away(connection: EtcdConnection, away: list[str]) -> None:
    if away:
        raise StoreUnreachable(
            f"{connection}: there is no store, and {' and '.join(away)} did not answer: it may be"
            " in another etcd that holds one; a store is only created while all members that the"
            " address names answer"
        )


def _refuse_nested(connection: EtcdConnection) -> None:
    """Checks that no enclosing prefix is another store's; ignores those that the user may not
    read.
    """
    parts = connection.address.prefix.split("/")[1:-1]
    for count in range(len(parts), 0, -1):
        outer = "/" + "/".join(parts[:count])
        try:
            head = read_head(connection, Layout(f"{outer}/".encode()))
        except EtcdRefused:
            continue
        if head.identity is not None:
            raise IncompatibleStore(
                f"{connection}: {outer} is another cluster's store; a prefix must not lie in one"
            )


def identity_at(address: EtcdAddress) -> Identity | None:
    """Returns the identity of the store there; None: there is none. Changes nothing.

    Raises:
        IncompatibleStore: the keys there are not a store's, or a newer kdir's; members of two
            etcds.
        StoreUnreachable: etcd cannot be reached.
    """
    connection = EtcdConnection(address)
    try:
        refuse_two_clusters(connection)
        head = read_head(connection, Layout(address.root))
        return None if head.identity is None else Incarnation.read(head.identity).identity
    except EtcdRefused as error:
        raise IncompatibleStore(str(error)) from error
    except ValueError as error:
        raise IncompatibleStore(f"{connection}: its identity is {error}") from error
    except IncompatibleStore as error:
        raise IncompatibleStore(f"{connection}: {error}") from error
    finally:
        connection.close()
