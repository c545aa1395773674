"""How far a cluster's change log is, as its publisher noted it in the store."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError
from kdir.v1 import watch_pb2

from directory.namespace.keys import CHANGE_LOG, role_key
from directory.namespace.snapshot import Snapshot

__all__ = ["ROLE", "noted_state", "published_revision", "publisher_of"]

ROLE: Final = "change-log"
"""Role of the server that publishes."""


def noted_state(snapshot: Snapshot) -> watch_pb2.ChangeLogState | None:
    """Returns the newest note; None: no change log is kept."""
    value = snapshot.fact(CHANGE_LOG)
    if value is None:
        return None
    try:
        return watch_pb2.ChangeLogState.FromString(value)
    except DecodeError:
        return watch_pb2.ChangeLogState()


def published_revision(snapshot: Snapshot) -> int | None:
    """Returns the revision up to which the change log has every change of this incarnation; None:
    no change log is kept.
    """
    noted = noted_state(snapshot)
    if noted is None:
        return None
    return noted.revision if noted.incarnation == snapshot.incarnation else 0


def publisher_of(snapshot: Snapshot) -> str:
    """Returns the id of the server that holds the role; empty = none does."""
    holder = snapshot.fact(role_key(ROLE)) or b""
    return holder.partition(b"\n")[0].decode(errors="replace")
