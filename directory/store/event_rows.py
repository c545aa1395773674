"""Change events as the store keeps them; refuses to know who reads them.

An ``o/`` row holds all events of one commit as a ``kdir.v1.WatchResponse``. Revision and cluster
are not in it, since they are not known before the commit: whoever reads the row fills them in. Its
change id begins with the time, so that rows lie about in the order of their revisions and a page of
history is a short range of keys, and says how many events there are, so that they can be counted
without being read.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Sequence
from typing import Final

from google.protobuf.message import DecodeError
from kdir.v1 import policies_pb2, watch_pb2

from directory.namespace.command import EntryChange
from directory.namespace.keys import EVENT, event_key
from directory.store.base import Put, Write
from directory.wire.entry_codec import change_to_proto, policies_to_proto

__all__ = ["FLOOR_KEY", "Events", "event_count", "events_of", "new_change_id", "pack", "unpack"]

_log = logging.getLogger(__name__)

FLOOR_KEY: Final = event_key("-")
"""Decimal text: events up to this revision are no longer kept. Sorts before all change ids."""

Events = tuple[watch_pb2.ChangeEvent, ...]
"""The events of one revision, by position."""


def new_change_id(now_ms: int, count: int) -> str:
    """Returns a new id of a commit with so many events: ``<unix ms>-<count>-<random>``, in hex."""
    return f"{now_ms:012x}-{count:x}-{secrets.token_hex(6)}"


def event_count(key: bytes) -> int:
    """Returns how many events an ``o/`` row holds, by its key; 1 for a key of another make."""
    parts = key.removeprefix(EVENT).split(b"-")
    try:
        return int(parts[1], 16)
    except (IndexError, ValueError):
        return 1


def pack(changes: Sequence[EntryChange], *, time_ms: int, principal: str, request_id: str) -> bytes:
    """Returns the value of an ``o/`` row."""
    message = watch_pb2.WatchResponse()
    # Of many topics of one directory it is the same: made once.
    effective: dict[int, policies_pb2.Policies] = {}
    for position, change in enumerate(changes):
        holds = change.effective
        if holds is not None and id(holds) not in effective:
            effective[id(holds)] = policies_to_proto(holds)
        message.events.append(
            change_to_proto(
                change,
                time_ms=time_ms,
                position=position,
                principal=principal,
                request_id=request_id,
                effective=effective.get(id(holds)),
            )
        )
    return message.SerializeToString()


def unpack(value: bytes, revision: int, cluster_id: str) -> Events:
    """Returns the events of an ``o/`` row, with what only its reader knows.

    Raises:
        ValueError: no such row.
    """
    try:
        message = watch_pb2.WatchResponse.FromString(value)
    except DecodeError as error:
        raise ValueError(f"not change events: {error}") from None
    for event in message.events:
        event.revision = revision
        event.cluster_id = cluster_id
    return tuple(message.events)


def events_of(revision: int, writes: Iterable[Write], cluster_id: str) -> Events:
    """Returns the events among a revision's writes. One that cannot be read is left out, and
    logged: a watcher must not be stopped for good by it.
    """
    events: list[watch_pb2.ChangeEvent] = []
    for write in writes:
        if isinstance(write, Put) and write.key.startswith(EVENT) and write.key != FLOOR_KEY:
            try:
                events.extend(unpack(write.value, revision, cluster_id))
            except ValueError as error:
                _log.error("revision %d: %r: %s", revision, write.key, error)
    return tuple(events)
