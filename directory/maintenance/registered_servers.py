"""Which servers run on a store right now; refuses to stop them."""

from __future__ import annotations

import contextlib

from google.protobuf.message import DecodeError
from kdir.v1 import admin_pb2

from directory.namespace.keys import LEVEL, MEMBER
from directory.server.feature_levels import read_level
from directory.store.base import Store, StoreIsSealed

__all__ = ["live_servers", "stored_level"]


def live_servers(store: Store) -> list[str]:
    """Returns the registered servers that live, as people find them: id, machine and process.

    Raises:
        StoreUnreachable
    """
    return [
        f"{server} (process {member.pid} on {member.host})" if member.host else server
        for server, member in _members(store).items()
    ]


def stored_level(store: Store) -> int | None:
    """Returns the feature level that is finalized; None: it cannot be read.

    Raises:
        StoreUnreachable
    """
    rows = store.read(LEVEL, limit=1)
    return read_level(rows[0].value if rows and rows[0].key == LEVEL else None)


def _members(store: Store) -> dict[str, admin_pb2.Member]:
    with contextlib.suppress(StoreIsSealed):  # then who is there may be dead
        store.remove_expired(MEMBER)
    found = {}
    for row in store.read(MEMBER):
        try:
            member = admin_pb2.Member.FromString(row.value)
        except DecodeError:
            member = admin_pb2.Member()
        found[row.key.removeprefix(MEMBER).decode("utf-8", "replace")] = member
    return found
