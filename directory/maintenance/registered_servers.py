"""Which servers are registered on a store; stops none of them."""

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
    """Returns the registered servers that live, as people find them: id, machine and process.

    Raises:
        StoreUnreachable
    """
    return [
        f"{server} (process {member.pid} on {member.host})" if member.host else server
        for server, member in _stored_members(store).items()
    ]


def stored_level(store: Store) -> int | None:
    """Returns the feature level that is finalized; None: it cannot be read.

    Raises:
        StoreUnreachable
    """
    rows = store.read(LEVEL, limit=1)
    return read_level(rows[0].value if rows and rows[0].key == LEVEL else None)


def members_of(rows: Iterable[tuple[bytes, bytes]]) -> dict[str, admin_pb2.Member]:
    """Returns what servers registered, by id. One whose row cannot be read is there, and supports
    nothing.
    """
    members: dict[str, admin_pb2.Member] = {}
    for key, value in rows:
        server = key.removeprefix(MEMBER).decode("utf-8", "replace")
        members[server] = read_member(value) or admin_pb2.Member(version="unreadable")
        members[server].server = server
    return members


def read_member(value: bytes) -> admin_pb2.Member | None:
    """Returns what a server registered; None: it cannot be read."""
    try:
        return admin_pb2.Member.FromString(value)
    except DecodeError:
        return None


def _stored_members(store: Store) -> dict[str, admin_pb2.Member]:
    with contextlib.suppress(StoreIsSealed):  # then who is there may be dead
        store.remove_expired(MEMBER)
    return members_of((row.key, row.value) for row in store.read(MEMBER))
