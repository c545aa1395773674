"""Reaper: finishes removals, a step at a time, on one server of a cluster; ends the retirement of
names.

One server is elected while there is work, and the guard of its election is in each commit: if it
is killed or paused at any step, the next elected server does the rest. While other commands are
committed it pauses after each step as long as the step took. It never calls Kafka; topics to delete
there wait as DELETING.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from directory.namespace.command import Command, ForgetRetired, ReapDeleted
from directory.namespace.entry import DELETED_ID
from directory.namespace.keys import (
    RETIRED,
    detached_key,
    directory_range,
    retired_key,
    retired_until_ms,
)
from directory.namespace.plan_reap import why_held_up
from directory.store.base import Put, Store, StoreUnreachable
from directory.store.leader import Leader, LeadershipLost, RoleThread
from directory.store.replica import AppliedCommit, Replica, ReplicaState
from directory.store.writer import Writer
from resolver.errors import KdirError, LimitExceeded, NotReady, WriteConflict

__all__ = ["Reaper"]

_log = logging.getLogger(__name__)

_ROLE: Final = "reaper"
_MOST: Final = 250
"""Most entries of one step, whatever the store allows, so that other writes come in between."""
_REST: Final = 0.05
"""Pause after a step, as a multiple of its duration."""
_ELECT_SECONDS: Final = 1.0
"""Interval between attempts to be elected, while there is work."""
_SOON_SECONDS: Final = 0.02
_IDLE_SECONDS: Final = 60.0
"""Interval of the reaper's own checks; a removal wakes it at once."""
_AWAY_SECONDS: Final = 1.0
_STUMBLED_SECONDS: Final = 5.0
_TIMEOUT_SECONDS: Final = 30.0
_NAMES_EACH: Final = 50
"""Most retired names whose retirement one step ends."""
_NAMES_KEPT: Final = 10_000
"""Most expired names that one search collects."""
_NAMES_SECONDS: Final = 600.0
"""Interval between searches for expired names."""
_REMOVED: Final = directory_range(DELETED_ID)


class Reaper:
    """Reaper of one directory server.

    Args:
        server: id of the directory server, which identifies it in the election.
        store, replica, writer: store, replica and writer of the cluster.
        clock: monotonic seconds.
        now_ms: Unix milliseconds.
        sleep: waits this many seconds, or less if the reaper is to stop.
        slice_seconds: time of work in one round, which has at least one step.
    """

    def __init__(
        self,
        server: str,
        store: Store,
        replica: Replica,
        writer: Writer,
        *,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        sleep: Callable[[float], object] | None = None,
        slice_seconds: float = 0.2,
    ) -> None:
        self.leader: Final = Leader(store, replica, _ROLE, server)
        self._store: Final = store
        self._replica: Final = replica
        self._writer: Final = writer
        self._clock: Final = clock
        self._now_ms: Final = now_ms
        self._thread: Final = RoleThread(
            "reaper", replica, self.step, on_applied=self._on_applied, on_bug=self._on_bug
        )
        self._stopping: Final = self._thread.stopping
        self._slice_seconds: Final = slice_seconds
        self._sleep: Final = sleep or self._stopping.wait
        self._most = _MOST
        self._names: list[str] = []
        self._names_due = 0.0
        self._trouble = ""

    @property
    def trouble(self) -> str:
        """Why removals are held up, if this server is the elected reaper; empty = they are not."""
        return self._trouble

    # -- start and stop --------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the reaper's thread."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Ends the thread after its current step, and resigns from the role."""
        self._thread.stop(timeout_seconds)
        self.leader.resign()

    def _on_bug(self, error: Exception) -> float:
        _log.exception("the reaper stumbled")
        self._trouble = f"{type(error).__name__}: {error}"
        self.leader.resign()
        return _STUMBLED_SECONDS

    def _on_applied(self, applied: AppliedCommit) -> None:
        """Wakes the reaper after a removal, also another server's. A callback of
        the replica.
        """
        if applied.reloaded or any(
            isinstance(write, Put) and write.key.startswith(_REMOVED) for write in applied.writes
        ):
            self._thread.wake()

    # -- one round -------------------------------------------------------------------------------

    def step(self) -> float:
        """Does one round of work; returns the seconds to wait until the next, unless woken."""
        if self._replica.state is not ReplicaState.SERVING:
            return _AWAY_SECONDS
        try:
            if not self._due():
                self.leader.resign()
                self._trouble = ""
                return _IDLE_SECONDS
            if self.leader.campaign() is None:
                self._trouble = ""
                return _ELECT_SECONDS * random.uniform(0.5, 1.0)
            if not self.leader.wait_for_election(self._sleep):
                return 0.0  # the replica may lack steps of the previous reaper
            if self._work():
                self._trouble = ""
                return 0.0
            self._hold_up(why_held_up(self._replica.snapshot))
            return _IDLE_SECONDS if self._trouble else _SOON_SECONDS
        except (LeadershipLost, WriteConflict):
            # The guard of the role failed.
            _log.warning("another server is the reaper now")
            self.leader.resign()
            return _ELECT_SECONDS
        except NotReady:
            return _AWAY_SECONDS
        except (KdirError, StoreUnreachable) as reason:
            _log.warning("the reaper goes on later: %s", reason)
            self._trouble = str(reason)
            return _AWAY_SECONDS

    def _due(self) -> bool:
        if not self._names and self._clock() >= self._names_due:
            self._names = list(self._over())
            if not self._names:
                self._names_due = self._clock() + _NAMES_SECONDS
        return bool(self._names) or self._waiting()

    def _waiting(self) -> bool:
        place = self._replica.snapshot.nodes.get(DELETED_ID)
        return place is not None and bool(place.containers)

    def _over(self) -> Iterator[str]:
        """Returns at most ``_NAMES_KEPT`` expired names: a search among a million takes a while."""
        now_ms = self._now_ms()
        snapshot = self._replica.snapshot
        names = (
            (key[len(RETIRED) :].decode(errors="replace"), key, retired_until_ms(value))
            for key, value in snapshot.facts(RETIRED)
        )
        # An unreadable row stays: retried again and again, it would block all others.
        over = (
            name
            for name, key, until_ms in names
            if until_ms is not None
            and until_ms <= now_ms
            and retired_key(name) == key
            # For a detached topic the sweep removes both records.
            and snapshot.fact(detached_key(name)) is None
        )
        return islice(over, _NAMES_KEPT)

    def _hold_up(self, why: str) -> None:
        """Records why removals cannot be finished now; empty = they can."""
        if why and why != self._trouble:
            _log.warning("removals are not finished: %s", why)
        self._trouble = why

    def _work(self) -> bool:
        """Commits steps for ``slice_seconds``; returns whether there was any work."""
        worked_at_all = False
        until = self._clock() + self._slice_seconds
        while not self._stopping.is_set():
            started = self._clock()
            if not (self._reap() or self._forget()):
                return worked_at_all
            worked_at_all = True
            if started >= until:
                break
            worked = self._clock() - started
            self._sleep(worked if self._writer.under_way else worked * _REST)
        return True

    def _reap(self) -> bool:
        """Commits one step; returns whether there was any work."""
        if not self._waiting():
            return False
        try:
            made = self._execute(ReapDeleted(limit=self._most, limits=self._store.limits))
        except LimitExceeded:
            # The size is an estimate: this step had larger entries than most.
            if self._most == 1:
                raise
            self._most //= 2
            return True
        self._most = min(_MOST, self._most + 1)
        return made

    def _forget(self) -> bool:
        names, self._names = self._names[:_NAMES_EACH], self._names[_NAMES_EACH:]
        if names:
            self._execute(ForgetRetired(names=tuple(names)))
        return bool(names)

    def _execute(self, command: Command) -> bool:
        written = self._writer.commit_command(
            command, timeout_seconds=_TIMEOUT_SECONDS, extra_guards=(self.leader.guard,)
        )
        return bool(written.plan.writes)
