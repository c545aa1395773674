"""gRPC channels to servers: those used last are kept, one that is in use always.

A server that resolves in its callers' names is referred to any number of servers, and each channel
keeps a connection and its memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final

import grpc

from resolver.errors import Closed

__all__ = ["ChannelPool", "PooledChannel"]


class PooledChannel:
    """A channel that somebody uses, or that is kept for the next use."""

    __slots__ = ("channel", "methods", "use_count")

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel: Final = channel
        self.methods: Final[dict[str, Any]] = {}
        """What is called of it, by name."""
        self.use_count = 0


class ChannelPool:
    """Channels by key, of which the ``most`` used last are kept, and besides those in use.
    Thread-safe.
    """

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._lock: Final = threading.Lock()
        self._channels: OrderedDict[Hashable, PooledChannel] = OrderedDict()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._channels)

    @property
    def keys(self) -> frozenset[Hashable]:
        """Those whose channels are kept now."""
        with self._lock:
            return frozenset(self._channels)

    def take(self, key: Hashable, connect: Callable[[], grpc.Channel]) -> PooledChannel:
        """Returns the channel of a key, for a use that ends with ``give_back``.

        Raises:
            Closed
        """
        with self._lock:
            if self._is_closed:
                raise Closed("closed: nothing can be asked any more")
            found = self._channels.get(key)
            if found is None:
                # Connecting begins with the first call: this does not wait.
                found = self._channels[key] = PooledChannel(connect())
            self._channels.move_to_end(key)
            found.use_count += 1
        # Not where uses end: that may be a thread of gRPC's, which closing waits for.
        self._keep(self._most)
        return found

    def close_unused(self) -> None:
        """Closes those that nobody uses now."""
        self._keep(0)

    def _keep(self, most: int) -> None:
        """Closes, of those not in use, the least recently used that are too many."""
        if len(self._channels) <= most:
            return
        with self._lock:
            over = max(0, len(self._channels) - most)
            keys = [key for key, one in self._channels.items() if not one.use_count][:over]
            unused = [self._channels.pop(key) for key in keys]
        for one in unused:
            one.channel.close()

    def give_back(self, taken: PooledChannel) -> None:
        """Ends a use."""
        with self._lock:
            taken.use_count -= 1

    def close(self) -> None:
        """Closes all, also those in use: their calls end."""
        with self._lock:
            self._is_closed = True
            channels, self._channels = self._channels, OrderedDict()
        for one in channels.values():
            one.channel.close()
