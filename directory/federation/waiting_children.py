"""The clusters that asked to be linked and may not, for operators to mount; admits none itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kdir.v1 import federation_pb2

from resolver.errors import InvalidArgument, KdirError

__all__ = ["WaitingChildren", "find_waiting_child"]

_MOST: Final = 1000
_RECENT_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class _Candidate:
    hello: federation_pb2.Hello
    message: str
    """Why it may not."""
    at: float


class WaitingChildren:
    """Those of one cluster, as this server was asked. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._waiting: Final[dict[str, _Candidate]] = {}

    def remember(self, hello: federation_pb2.Hello, error: KdirError) -> None:
        """It was refused."""
        with self._lock:
            self._waiting[hello.cluster_id] = _Candidate(hello, error.message, self._clock())
            while len(self._waiting) > _MOST:
                del self._waiting[next(iter(self._waiting))]

    def forget(self, cluster_id: str) -> None:
        """It is linked by now."""
        with self._lock:
            self._waiting.pop(cluster_id, None)

    def hello(self, cluster_id: str) -> federation_pb2.Hello | None:
        """Returns what it said of itself."""
        with self._lock:
            found = self._waiting.get(cluster_id)
        return None if found is None else found.hello

    def hellos(self) -> list[federation_pb2.Hello]:
        """Returns what each said of itself."""
        with self._lock:
            return [one.hello for one in self._waiting.values()]

    def recent(self) -> list[federation_pb2.WaitingChild]:
        """Returns those that asked in the last minute."""
        now = self._clock()
        with self._lock:
            recent = [one for one in self._waiting.values() if now - one.at < _RECENT_SECONDS]
        return [
            federation_pb2.WaitingChild(
                cluster_id=one.hello.cluster_id,
                cluster=one.hello.cluster,
                mount=one.hello.mount,
                endpoints=one.hello.endpoints,
                age_seconds=now - one.at,
                message=one.message,
            )
            for one in recent
        ]


def find_waiting_child(
    child: str, known: Iterable[federation_pb2.Hello]
) -> tuple[str, str, tuple[str, ...]]:
    """Returns the child that an operator means, by cluster id or by the name of one that is known,
    as (cluster id, name, endpoints).

    Raises:
        InvalidArgument: a name that none, or more than one, of them has.
    """
    named = []
    for hello in known:
        if hello.cluster_id == child:
            return child, hello.cluster, tuple(hello.endpoints)
        if hello.cluster == child:
            named.append(hello)
    if len(named) == 1:
        return named[0].cluster_id, child, tuple(named[0].endpoints)
    if child.startswith("kc-"):
        return child, "", ()
    ids = ", ".join(hello.cluster_id for hello in named)
    raise InvalidArgument(
        f"mount.cluster_id: found {child!r}; "
        + (f"several clusters are called so: {ids}" if ids else "no cluster of that name waits")
        + "; expected a cluster id (see: kdir mounts)"
    )
