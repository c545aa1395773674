"""Leases of etcd that last while this process does, and knows it; refuses to say for what.

A lease is believed in by this process's own monotonic clock only, counted from before it was asked
for, and a little less long than etcd was asked to keep it: whoever paused finds it gone when he
wakes, before he has done anything.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from directory.store.base import StoreUnreachable
from directory.store.etcd.connection import EtcdConnection, EtcdRefused

__all__ = ["LEASE_SECONDS", "Lease", "Leases", "clamp"]

_log = logging.getLogger(__name__)

LEASE_SECONDS: Final = 9
"""Within 15 s of a process's end its announced keys are to be gone
(``base.Store.create_ephemeral``): so long until its lease ends, some for etcd to notice (twice a
second), some until the next sweep.
"""
_LEAST_SECONDS: Final = 3
_MOST_SECONDS: Final = 60
_BELIEVED: Final = 0.9
"""Of a lease's time: clocks run at different speeds."""
_RENEWALS: Final = 3  # in a lease's time
_REVOKE_SECONDS: Final = 1.0


def clamp(seconds: float) -> int:
    """A lease's time within reason: etcd takes any number, and answers with any (S22)."""
    if not seconds > 0:
        return _LEAST_SECONDS
    return int(min(_MOST_SECONDS, max(_LEAST_SECONDS, seconds)))


class Lease:
    """One lease. ``lasts`` while it is certain that etcd has not ended it."""

    def __init__(self, number: int, seconds: int, clock: Callable[[], float]) -> None:
        self.id: Final = number
        self.seconds: Final = seconds
        self._clock: Final = clock
        self._believed_until = float("-inf")
        self._ended = False

    def lasts(self) -> bool:
        return not self._ended and self._clock() < self._believed_until

    @property
    def ended(self) -> bool:
        """For good: nobody renews it any more."""
        return self._ended

    def end(self) -> None:
        """From now on it does not last."""
        self._ended = True

    def renewed(self, asked_at: float, answered_seconds: int) -> None:
        """etcd granted it for so long, at some time after ``asked_at``."""
        if answered_seconds <= 0:
            self._ended = True
        else:
            seconds = min(self.seconds, answered_seconds)
            self._believed_until = max(self._believed_until, asked_at + _BELIEVED * seconds)


class Leases:
    """All leases of one store object, renewed by one thread that begins with the first."""

    def __init__(
        self,
        connection: EtcdConnection,
        seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection: Final = connection
        self._seconds: Final = clamp(seconds)
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._leases: list[Lease] = []
        self._thread: threading.Thread | None = None
        self._stop: Final = threading.Event()

    def grant(self) -> Lease:
        """A new lease, renewed from now on.

        Raises:
            StoreUnreachable
        """
        asked_at = self._clock()
        answer = self._connection.grant_lease(self._seconds, self._seconds / 2)
        lease = Lease(answer.ID, self._seconds, self._clock)
        lease.renewed(asked_at, answer.TTL)
        with self._lock:
            self._leases.append(lease)
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._renew, name="leases", daemon=True)
                self._thread.start()
        return lease

    def revoke(self, lease: Lease) -> None:
        """Ends it now, or, where etcd is away, soon."""
        lease.end()
        self._drop(lease)
        try:
            self._connection.revoke_lease(lease.id, _REVOKE_SECONDS)
        except StoreUnreachable as reason:
            _log.info("lease %x ends by itself: %s", lease.id, reason)

    def close(self) -> None:
        """Ends them all."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_REVOKE_SECONDS)
        with self._lock:
            leases, self._leases = self._leases, []
        deadline = self._clock() + _REVOKE_SECONDS
        for lease in leases:
            lease.end()
            if self._clock() < deadline:
                self.revoke(lease)

    def _drop(self, lease: Lease) -> None:
        with self._lock:
            self._leases = [one for one in self._leases if one is not lease]

    def _renew(self) -> None:
        pause = self._seconds / _RENEWALS
        while not self._stop.wait(pause):
            with self._lock:
                leases = list(self._leases)
            for lease in leases:
                self._renew_one(lease, pause)

    def _renew_one(self, lease: Lease, seconds: float) -> None:
        asked_at = self._clock()
        try:
            answer = self._connection.keep_lease(lease.id, seconds)
        except EtcdRefused as reason:
            _log.warning("lease %x cannot be kept: %s", lease.id, reason)
        except StoreUnreachable as reason:
            _log.info("lease %x is not renewed now: %s", lease.id, reason)
        except Exception:  # noqa: BLE001 - nobody would renew any lease of this process any more
            _log.exception("renewing lease %x stumbled", lease.id)
        else:
            lease.renewed(asked_at, answer.TTL)
        if lease.ended:
            _log.warning("lease %x ended", lease.id)
            self._drop(lease)
