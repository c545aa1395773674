"""Opens the store of an address by its scheme."""

from __future__ import annotations

from directory.store.base import Identity, IncompatibleStore, Store
from directory.store.transaction_limits import Limits
from resolver.redaction import shown_unknown_address

__all__ = [
    "check_writable",
    "describe_address",
    "find_identity",
    "is_remote",
    "is_same_place",
    "limits_at",
    "open_store",
]


def open_store(
    address: str, cluster: str, cluster_id: str | None = None, sealed: str = ""
) -> Store:
    """Returns the store of ``cluster`` at ``sqlite:///file`` or ``etcd://host:2379,…/prefix``;
    creates it if missing.

    ``cluster_id`` must be that of an existing store, and becomes that of a new one; None: a new
    store chooses one. ``sealed`` is the reason with which a new store is sealed from its first
    moment; empty = it takes changes.

    Raises:
        IncompatibleStore: unknown scheme, another cluster's store, a newer schema, not a store.
        StoreUnreachable: it did not answer in time.
    """
    scheme = address.partition("://")[0]
    match scheme:
        case "sqlite":
            from directory.store.sqlite.store import SqliteStore

            return SqliteStore.open(address, cluster, cluster_id, sealed)
        case "etcd":
            from directory.store.etcd.store import EtcdStore

            return EtcdStore.open(address, cluster, cluster_id, sealed)
        case _:
            raise _unknown(address)


def _unknown(address: str) -> IncompatibleStore:
    return IncompatibleStore(
        f"store {shown_unknown_address(address)}: unknown kind of store; use sqlite:///file or"
        " etcd://host:2379,…/prefix"
    )


def find_identity(address: str) -> Identity | None:
    """Returns the identity of the store at an address; None: there is none. Creates and changes
    nothing.

    Raises:
        IncompatibleStore: not an address, or not a store that this version can use.
        StoreUnreachable: it did not answer in time.
    """
    scheme = address.partition("://")[0]
    match scheme:
        case "sqlite":
            from directory.store.sqlite.database_file import find_identity
            from directory.store.sqlite.store import database_path

            return find_identity(database_path(address))
        case "etcd":
            from directory.store.etcd.etcd_address import EtcdAddress
            from directory.store.etcd.open_or_create import identity_at

            return identity_at(EtcdAddress.parse(address))
        case _:
            raise _unknown(address)


def check_writable(address: str) -> None:
    """Checks, without trying to write, that the store at an address takes writes or could be
    created. Changes nothing.

    Raises:
        IncompatibleStore: it cannot be opened or created there.
        StoreUnreachable: it takes no writes now.
    """
    scheme = address.partition("://")[0]
    match scheme:
        case "sqlite":
            from directory.store.sqlite.database_file import check_writable
            from directory.store.sqlite.store import database_path

            check_writable(database_path(address))
        case "etcd":
            from directory.store.etcd.etcd_address import EtcdAddress
            from directory.store.etcd.open_or_create import check_writable as check_writable_in_etcd

            check_writable_in_etcd(EtcdAddress.parse(address))
        case _:
            raise _unknown(address)


def limits_at(address: str) -> Limits:
    """Returns the limits of the store at an address, which need not exist yet.

    Raises:
        IncompatibleStore: not an address.
    """
    scheme = address.partition("://")[0]
    match scheme:
        case "sqlite":
            from directory.store.sqlite.store import LIMITS as SQLITE_LIMITS

            return SQLITE_LIMITS
        case "etcd":
            from directory.store.etcd.transaction import LIMITS as ETCD_LIMITS

            return ETCD_LIMITS
        case _:
            raise _unknown(address)


def describe_address(address: str) -> str:
    """Returns a canonical form of an address without secrets.

    Raises:
        IncompatibleStore: not an address.
    """
    scheme = address.partition("://")[0]
    match scheme:
        case "sqlite":
            from directory.store.sqlite.store import database_path

            return f"sqlite:///{database_path(address)}"
        case "etcd":
            from directory.store.etcd.etcd_address import EtcdAddress

            return str(EtcdAddress.parse(address))
        case _:
            raise _unknown(address)


def is_same_place(one: str, other: str) -> bool:
    """True if two addresses lead to the same store, however they are written: addresses of etcd may
    list other members, in another order, and other users. False for a malformed address.
    """
    try:
        first, second = describe_address(one), describe_address(other)
    except IncompatibleStore:
        return False
    if first == second:
        return True
    if not (is_remote(first) and is_remote(second)):
        return False
    from directory.store.etcd.etcd_address import EtcdAddress

    here, there = EtcdAddress.parse(first), EtcdAddress.parse(second)
    members = {endpoint.lower() for endpoint in here.endpoints}
    return here.prefix == there.prefix and not members.isdisjoint(
        endpoint.lower() for endpoint in there.endpoints
    )


def is_remote(address: str) -> bool:
    """True if the store is on servers of its own, which may recover by themselves."""
    return address.startswith("etcd://")
