"""Connections of a process to other servers, each shared by the links of all of its clusters.

Each channel of grpcio has a thread that checks for events five times a second; without sharing, the
link of each cluster would have its own.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import grpc

__all__ = ["CALLS", "SharedChannel", "SharedChannels"]

CALLS: Final = 50
"""Most calls of one channel at a time: servers accept 100 of one connection, by default."""


@dataclass(slots=True, eq=False)
class SharedChannel:
    """One channel, which has a connection of its own."""

    channel: grpc.Channel
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    """Identifies the channel to the other side."""
    users: int = 0
    is_retired: bool = False
    """True if no more calls may begin on it: its connection may be dead without gRPC noticing."""


class SharedChannels:
    """Channels shared by all calls with the same key; closed when the last call ends."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._open: Final[dict[Hashable, list[SharedChannel]]] = {}

    @contextmanager
    def use(self, key: Hashable, create: Callable[[], grpc.Channel]) -> Iterator[SharedChannel]:
        """Yields a channel of this key for one call; creates one if none that is
        not retired has room for it.
        """
        with self._lock:
            shared = self._open.setdefault(key, [])
            found = next((one for one in shared if one.users < CALLS and not one.is_retired), None)
            if found is None:
                found = SharedChannel(create())
                shared.append(found)
            found.users += 1
        try:
            yield found
        finally:
            with self._lock:
                found.users -= 1
                is_unused = not found.users
                if is_unused:
                    shared.remove(found)
                    if not shared and self._open.get(key) is shared:
                        del self._open[key]
            if is_unused:
                found.channel.close()
