"""An adoption too large for one go: rows that wait, carried out slice by slice, and how far it is.

Refuses to decide what happens with a topic (``adoption.py``) and who may carry it out: the elected
reconciler does, whose commits are fenced. Killed anywhere it loses nothing: who is elected next
makes the rows anew, of what is left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from directory.kafka.adoption import AdoptionRow, CreateStep, MoveStep, TakeOverStep, carry_out
from directory.kafka.fenced_commits import TopicCommits
from directory.store.large_changes import LargeAdoption

__all__ = ["AdoptionBacklog"]

_log = logging.getLogger(__name__)

_BATCHES: Final = 8
"""Transactions of one slice: people's wishes come in between."""
_REPORTED_SECONDS: Final = 2.0
"""From one record of how far it is to the next."""


class AdoptionBacklog:
    """Of one leader.

    Args:
        rows: what is to be done; rows without a step are passed over.
        change: what is recorded of it; None = nothing is.
        clock: monotonic seconds.
    """

    def __init__(
        self, rows: Sequence[AdoptionRow], change: LargeAdoption | None, clock: Callable[[], float]
    ) -> None:
        order = {CreateStep: 0, TakeOverStep: 1, MoveStep: 2}
        steps = [row for row in rows if row.step is not None]
        steps.sort(key=lambda row: order[type(row.step)])
        self._rows: Final = steps
        self._next = 0
        self._clock: Final = clock
        self._reported_at = clock()
        self.change = change
        if change is not None:
            total = change.done + change.left
            self.change = replace(change, done=max(0, total - len(steps)), left=len(steps))

    @property
    def left(self) -> int:
        """How many topics are left."""
        return len(self._rows) - self._next

    def begin(self, commits: TopicCommits) -> None:
        """Records that it is on its way.

        Raises:
            LeadershipLost, StoreUnavailable
        """
        if self.change is not None:
            commits.put([self.change.to_put()])

    def carry_on(self, commits: TopicCommits) -> bool:
        """Does one slice; whether more is left. At the end the record goes.

        Raises:
            LeadershipLost, StoreUnavailable
        """
        size = commits.batch * _BATCHES
        rows = self._rows[self._next : self._next + size]
        for row in carry_out(rows, commits):
            if isinstance(row.step, MoveStep) and row.path == row.step.source:
                _log.warning("%s stays at %s: %s", row.physical_name, row.path, row.message)
        self._next += len(rows)
        self._record_progress(commits)
        return self.left > 0

    def _record_progress(self, commits: TopicCommits) -> None:
        if self.change is None:
            return
        done = self.change.done + self.change.left - self.left
        self.change = replace(self.change, done=done, left=self.left)
        if not self.left:
            commits.put([self.change.to_remove()])
        elif self._clock() >= self._reported_at + _REPORTED_SECONDS:
            self._reported_at = self._clock()
            commits.put([self.change.to_put()])
