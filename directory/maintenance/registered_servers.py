"""Servers registered on a store, read without changing anything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from google.protobuf.message import DecodeError
from kdir.v1 import admin_pb2

from directory.namespace.keys import LEVEL, MEMBER
from directory.server.feature_levels import read_level
from directory.store.base import Store, StoreIsSealed

__all__ = ["live_servers", "members_of", "read_member", "stored_level"]


def live_servers(store: Store) -> list[str]:
    """Returns the registered live servers as text for people: id, host and process.

    Raises:
        StoreUnreachable: the store cannot be reached.
    """
    return [
        f"{server} (process {member.pid} on {member.host})" if member.host else server
        for server, member in _stored_members(store).items()
    ]


def stored_level(store: Store) -> int | None:
    """Returns the finalized feature level; None: it cannot be read.

    Raises:
        StoreUnreachable: the store cannot be reached.
    """
    rows = store.read(LEVEL, limit=1)
    return read_level(rows[0].value if rows and rows[0].key == LEVEL else None)


def members_of(rows: Iterable[tuple[bytes, bytes]]) -> dict[str, admin_pb2.Member]:
    """Returns the members by id. An unreadable row is a member that supports no level."""
    members: dict[str, admin_pb2.Member] = {}
    for key, value in rows:
        server = key.removeprefix(MEMBER).decode("utf-8", "replace")
        members[server] = read_member(value) or admin_pb2.Member(version="unreadable")
        members[server].server = server
    return members


def read_member(value: bytes) -> admin_pb2.Member | None:
    """Returns the member of a row; None: it cannot be read."""
    try:
        return admin_pb2.Member.FromString(value)
    except DecodeError:
        return None


def _stored_members(store: Store) -> dict[str, admin_pb2.Member]:
    with contextlib.suppress(StoreIsSealed):  # then a server that is listed may be dead
        store.remove_expired(MEMBER)
    return members_of((row.key, row.value) for row in store.read(MEMBER))
