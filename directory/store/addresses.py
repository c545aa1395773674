"""Chooses the store that an address means; refuses schemes that it does not know, by name."""

from __future__ import annotations

from directory.store.base import Identity, IncompatibleStore, Store

__all__ = ["describe_address", "find_identity", "is_remote", "is_same_place", "open_store"]


def open_store(address: str, cluster: str, cluster_id: str | None = None) -> Store:
    """Returns the store of ``cluster`` at ``sqlite:///file`` or ``etcd://host:2379,…/prefix``, made
    if it is not there.

    ``cluster_id`` is for a store that must already have it, or gets it when it is made; None lets a
    new store choose one.

    Raises:
        Incompatible: unknown scheme, another cluster's store, a newer schema, not a store.
        StoreUnreachable: it did not answer in time.
    """
    scheme = address.partition("://")[0]
    match scheme:
        case "sqlite":
            from directory.store.sqlite.store import SqliteStore

            return SqliteStore.open(address, cluster, cluster_id)
        case "etcd":
            from directory.store.etcd.store import EtcdStore

            return EtcdStore.open(address, cluster, cluster_id)
        case _:
            raise _unknown(scheme)


def _unknown(scheme: str) -> IncompatibleStore:
    return IncompatibleStore(
        f"store {scheme}://…: unknown kind of store; use sqlite:///file or"
        " etcd://host:2379,…/prefix"
    )


def find_identity(address: str) -> Identity | None:
    """Returns whose store is there; None: none is. Makes nothing, and changes nothing.

    Raises:
        Incompatible: no address, or what is there is not a store that this version can use.
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
            raise _unknown(scheme)


def describe_address(address: str) -> str:
    """Returns an address as its store describes itself: without secrets, the same however it is
    written.

    Raises:
        Incompatible: no address.
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
            raise _unknown(scheme)


def is_same_place(one: str, other: str) -> bool:
    """True if two addresses are of one place, however they are written: of etcd they may name its
    members in another order, or not all of them, and each by another user. What is no address is
    no place.
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
    """True if the store is on servers of its own, which may come back by themselves."""
    return address.startswith("etcd://")
