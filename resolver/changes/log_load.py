"""Loads the state topic of a change log once, from its beginning to its last stable offset."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from resolver import units
from resolver.changes.state_fold import LogState, StateFold
from resolver.changes.topic_reader import TopicReader
from resolver.errors import KafkaUnavailable
from resolver.index.arrow_rows import no_collector

__all__ = ["LOAD_SECONDS", "LoadedLog", "boot_seconds", "load_log"]

LOAD_SECONDS: Final = 600.0
"""Longest time of a load."""
_CLOCK_EVERY: Final = 100
"""Number of records between two checks of the time."""


def boot_seconds() -> float:
    """Returns the seconds of a monotonic clock; where possible, of one that runs while the machine
    is suspended.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LoadedLog(NamedTuple):
    """Contents of a state topic, read once to its end."""

    fold: StateFold
    first_offset: int
    end: int
    most_pause_seconds: float
    """Result of ``TopicReader.most_pause_seconds`` before the load."""
    ended_at: float
    """Time on the load's clock at which the load ended."""

    @property
    def state(self) -> LogState:
        """State as of the newest checkpoint."""
        return self.fold.state

    def why_incomplete(self) -> str:
        """Returns why the state is not a cluster's whole state, as text for people; empty = it
        is.
        """
        if self.state.checkpoint is None:
            if self.first_offset == self.end:
                return "the topic is empty"
            if self.fold.unreadable_checkpoint:
                return f"its checkpoint cannot be read: {self.fold.unreadable_checkpoint}"
            return "it has no checkpoint: the log was never whole"
        if self.fold.is_checkpoint_removed:
            return "its checkpoint was removed: another cluster is taking over the log"
        if self.fold.pending_count:
            return (
                f"no checkpoint follows {units.plural(self.fold.pending_count, 'record')}: the "
                f"publisher is bringing the log in line with its store, or was stopped meanwhile"
            )
        return ""


def load_log(
    reader: TopicReader,
    fold: StateFold,
    *,
    seconds: float = LOAD_SECONDS,
    clock: Callable[[], float] = boot_seconds,
) -> LoadedLog:
    """Reads a state topic from its beginning to its present last stable offset into a new fold.

    Raises:
        KafkaUnavailable: the brokers or the registry do not answer, or the load takes longer than
            ``seconds`` or than half of ``delete.retention.ms``.
    """
    begun = clock()
    low, high = reader.bounds()
    most_pause = reader.most_pause_seconds()

    def check_time() -> float:
        now, limit = clock(), min(seconds, most_pause)
        if now - begun > limit:
            why = "" if seconds <= most_pause else ", half of the topic's delete.retention.ms"
            raise KafkaUnavailable(f"reading the change log took longer than {limit:g} s{why}")
        return now

    with no_collector():  # the objects of a load stay in memory, and form no cycles
        for number, one in enumerate(reader.read(low, high)):
            fold.add(one.key, one.value)
            if number % _CLOCK_EVERY == 0:
                check_time()
    return LoadedLog(fold, low, high, most_pause, check_time())
