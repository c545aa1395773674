"""Elected roles, which one server of a cluster holds at a time: election, the first moment to act,
resignation, and the thread that acts.

A role decides by the replica and commits under its guard. The guard keeps a server that lost the
role from writing; it does not make the replica new, so a role acts only once the replica has
reached its election (docs/decisions/0019-fencing-reaches-kafka.md).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from directory.server.logs import with_log_context
from directory.store.base import KeyEquals, Leadership, Store
from directory.store.replica import AppliedCommit, Replica

__all__ = ["Leader", "LeadershipLost", "RoleThread"]

_LOOK_SECONDS: Final = 0.02
"""Interval between two checks whether the replica has reached the election."""
_LOOKS: Final = 50


class LeadershipLost(Exception):
    """Error: another server holds the role now, so this one must not act under it any more."""


class Leader:
    """Candidacy of a server for one role, and its term while it holds the role.

    For one thread, which campaigns, acts and resigns; any thread may read ``leads``.

    Args:
        role: the last part of the role's key (``role_key``).
        candidate: the server's id, shown to others as the holder of the role.
    """

    def __init__(self, store: Store, replica: Replica, role: str, candidate: str) -> None:
        self._store: Final = store
        self._replica: Final = replica
        self._role: Final = role
        self._candidate: Final = candidate
        self._leadership: Leadership | None = None
        self._reached = False
        """Whether the replica has reached the election of this term."""

    @property
    def leadership(self) -> Leadership | None:
        """Leadership of this term; None while this server does not hold the role."""
        return self._leadership

    @property
    def leads(self) -> bool:
        """True if this server holds the role, as far as it knows."""
        leadership = self._leadership
        return leadership is not None and leadership.held()

    @property
    def guard(self) -> KeyEquals:
        """Returns the guard for every transaction of the role.

        Raises:
            LeadershipLost: this server resigned, or was never elected.
        """
        leadership = self._leadership
        if leadership is None:
            raise LeadershipLost(self._role)
        return leadership.guard

    def campaign(self) -> Leadership | None:
        """Returns this server's leadership, after one attempt to get the role if it does not hold
        it; None while another server holds it. Another object is another term.

        Raises:
            NotReady: the replica has loaded nothing to act by.
            StoreUnreachable: the store cannot be reached.
        """
        if not self.leads:
            self.resign()
            _ = self._replica.snapshot
            self._leadership = self._store.elect(self._role, self._candidate)
        return self._leadership

    def has_reached_election(self, written: int = 0) -> bool:
        """True if the replica's tree is at least as new as this term's election, thus as all
        commits of earlier terms, and as revision ``written``, the last one of this term. An older
        tree may lack a stop, a removal or an attempt that was committed since.

        Raises:
            LeadershipLost: this server resigned, or the tree shows a later election.
        """
        guard, snapshot = self.guard, self._replica.snapshot
        if snapshot.fact(guard.key) != guard.value:
            if self._reached:
                raise LeadershipLost(self._role)
            return False
        self._reached = True
        return snapshot.revision >= written

    def wait_for_election(self, sleep: Callable[[float], object], written: int = 0) -> bool:
        """Waits up to a second for ``has_reached_election``; returns whether it is true. ``sleep``
        waits the given seconds, or less when the role is to end.

        Raises:
            LeadershipLost: see ``has_reached_election``.
        """
        for _ in range(_LOOKS):
            if self.has_reached_election(written):
                return True
            sleep(_LOOK_SECONDS)
        return False

    def resign(self) -> None:
        """Releases the role, if this server holds it."""
        leadership, self._leadership, self._reached = self._leadership, None, False
        if leadership is not None:
            leadership.release()


class RoleThread:
    """Thread of a role: does a step, waits, and does the next, until it is stopped.

    Args:
        step: returns the seconds until the next step, unless woken.
        on_applied: called with each commit, as a callback of the replica; it may wake the thread.
        on_bug: called with an error of a step, which must not end the thread in silence; returns
            the seconds until the next step.
        on_end: called in the thread once it is stopped.
    """

    def __init__(
        self,
        name: str,
        replica: Replica,
        step: Callable[[], float],
        *,
        on_applied: Callable[[AppliedCommit], None],
        on_bug: Callable[[Exception], float],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.stopping: Final = threading.Event()
        self._name: Final = name
        self._replica: Final = replica
        self._step: Final = step
        self._on_applied: Final = on_applied
        self._on_bug: Final = on_bug
        self._on_end: Final = on_end
        self._wake: Final = threading.Event()
        self._thread: threading.Thread | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Starts the thread, which begins with the first step."""
        self._unsubscribe = self._replica.subscribe(self._on_applied)
        run = with_log_context(self._run)
        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Ends the wait for the next step."""
        self._wake.set()

    def stop(self, timeout_seconds: float) -> None:
        """Ends the thread after its current step; waits at most ``timeout_seconds`` for that."""
        self.stopping.set()
        self._wake.set()
        self._unsubscribe()
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while not self.stopping.is_set():
            self._wake.clear()
            try:
                delay = self._step()
            except Exception as error:  # noqa: BLE001 - what is done about it is each role's
                delay = self._on_bug(error)
            self._wake.wait(delay)
        self._on_end()
