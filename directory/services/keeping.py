"""Backup and verification as streams of AdminService; refuses to keep a store busy for nobody."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Final

from kdir.v1 import admin_pb2

from directory.keeping.backup import backup_of
from directory.services.call import Call
from directory.services.hosting import Hosting
from directory.store.base import StoreAway
from resolver.errors import StoreUnavailable

__all__ = ["KeepingCalls"]

_log = logging.getLogger(__name__)

STALLED_SECONDS: Final = 300.0
"""A reader that takes nothing for so long is cut off: the store keeps a revision for it."""


class KeepingCalls:
    """The calls of AdminService that read all of a store."""

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting

    def backup(
        self, request: admin_pb2.BackupRequest, call: Call
    ) -> Iterator[admin_pb2.BackupResponse]:
        """All of the store at one revision."""
        cluster = self._hosting.one_named(request.cluster)
        yield from _guarded(backup_of(cluster.store), call)


def _guarded(
    messages: Iterator[admin_pb2.BackupResponse], call: Call
) -> Iterator[admin_pb2.BackupResponse]:
    """The messages, as long as somebody takes them.

    Raises:
        StoreUnavailable
    """
    try:
        for message in messages:
            call.check()
            stalled = threading.Timer(STALLED_SECONDS, call.cancel)
            stalled.daemon = True
            stalled.start()
            try:
                yield message
            finally:
                stalled.cancel()
    except StoreAway as reason:
        _log.warning("the store is away: %s", reason)
        raise StoreUnavailable("the store is away: what was sent is not whole") from reason
