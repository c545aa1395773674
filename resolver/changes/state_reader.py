"""Follows the state topic of a change log with a consumer in its own thread, after a load."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any, Final

from resolver.changes.log_load import LOAD_SECONDS, LoadedLog, boot_seconds, load_log
from resolver.changes.record import CHECKPOINT, Change, Schemas, UndecodableRecord
from resolver.changes.registry import SchemaRegistry
from resolver.changes.state_fold import LogState, StateFold
from resolver.changes.topic_reader import EndReached, TopicReader
from resolver.errors import InvalidArgument, KafkaUnavailable, KdirError, NotReady

__all__ = ["StateReader", "newest_checkpoint"]

_CLOSE_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 0.5
_MOST_RETRY_SECONDS: Final = 30.0
_CHECKS: Final = 100
"""Number of checks within the longest pause whether the topic's end is reached."""
_CHECK_SECONDS: Final = 5.0
"""Longest time between two of these checks, and longest time of one: brokers that are away, or do
not answer, are noticed within both."""
_LOADING: Final = "it is being loaded"
_OTHER_PROCESS: Final = "this reader was made by another process; make one after the fork"


def newest_checkpoint(reader: TopicReader, registry: SchemaRegistry | None = None) -> Change | None:
    """Returns the newest readable checkpoint of a state topic, of those that were not removed;
    None = there is none.

    Raises:
        KafkaUnavailable
    """
    schemas = Schemas(registry)
    for records in reader.tails():
        found: dict[bytes, Change] = {}  # by key; the newest is last
        with closing(records):  # before the reader is, also where decoding fails
            for one in records:
                key = one.key or b""
                if not key.endswith(f"/{CHECKPOINT}".encode()):
                    continue
                if one.value is None:
                    found.pop(key, None)
                    continue
                with suppress(UndecodableRecord):
                    point = schemas.decode(one.value)
                    found.pop(key, None)
                    found[key] = point
        if found:
            return next(reversed(found.values()))
    return None


class _BeginAgain(Exception):
    """Signal that records may have been missed: the log is read from its beginning again."""


class StateReader:
    """Reader of one cluster's state, kept current until it is closed. Safe to use from any thread
    of the process that made it.

    A load that fails is repeated from the beginning, after longer and longer waits. ``state`` stays
    as it is until the next one is whole. After a load or a pause longer than half of the topic's
    ``delete.retention.ms`` the log is read from its beginning.

    Args:
        properties: librdkafka's, for the connection to the brokers.
        cluster_id: that of the cluster; empty = the one of the newest checkpoint. A log that was
            taken over begins with another cluster's records; if it is taken over while it is
            followed, it is read from its beginning again.
        registry: URL of the schema registry whose ids frame the log's records; empty = none
            (``GetChangeLogResponse.schema_registry``).
        load_seconds: longest time of a load; then it begins again.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        topic: str,
        cluster_id: str = "",
        *,
        registry: str = "",
        load_seconds: float = LOAD_SECONDS,
        timeout_seconds: float = 30.0,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self._properties: Final = properties
        self._topic: Final = topic
        self._cluster_id: Final = cluster_id
        self._registry: Final = SchemaRegistry.at(registry)
        self._load_seconds: Final = load_seconds
        self._timeout: Final = timeout_seconds
        self._clock: Final = clock
        self._process: Final = os.getpid()
        self._stopping: Final = threading.Event()
        self._changed: Final = threading.Condition()
        self._retry_seconds = _RETRY_SECONDS
        self.state: LogState | None = None
        """The newest whole state; None = nothing is loaded."""
        self._trouble = _LOADING
        self.load_count = 0
        self._thread: Final = threading.Thread(
            target=self._run, name="change-log-state", daemon=True
        )
        self._thread.start()

    @property
    def trouble(self) -> str:
        """Why ``state`` may not be current; empty = it is."""
        return self._trouble if self._is_own_process() else _OTHER_PROCESS

    def loaded(self, timeout_seconds: float) -> LogState:
        """Returns the state; waits for the first load.

        Raises:
            NotReady: nothing was loaded within the time, or the reader is closed.
            InvalidArgument: another process made this reader.
        """
        return self.wait(lambda _: True, timeout_seconds)

    def wait(self, is_wanted: Callable[[LogState], bool], timeout_seconds: float) -> LogState:
        """Returns the state once ``is_wanted`` is true of it; raises what ``is_wanted`` raises.

        Raises:
            NotReady: no wanted state within the time, or the reader is closed.
            InvalidArgument: another process made this reader.
        """
        if not self._is_own_process():
            raise InvalidArgument(_OTHER_PROCESS)

        def is_there() -> bool:
            if self._stopping.is_set():
                raise NotReady(f"the reader of {self._topic} is closed")
            return self.state is not None and is_wanted(self.state)

        with self._changed:
            is_in_time = self._changed.wait_for(is_there, timeout_seconds)
            state, trouble = self.state, self._trouble
        if state is None:
            raise NotReady(f"the change log is not loaded: {trouble}")
        if not is_in_time:
            more = f": {trouble}" if trouble else ""
            raise NotReady(f"the change log did not come so far within {timeout_seconds:g} s{more}")
        return state

    def close(self) -> None:
        """Ends the thread; calls that wait raise ``NotReady``. A request to brokers that do not
        answer may outlast this call.
        """
        if not self._is_own_process():
            return  # its locks may be held for ever
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(_CLOSE_SECONDS)

    def _is_own_process(self) -> bool:
        return os.getpid() == self._process

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._load_and_follow()
            except _BeginAgain as reason:
                self._report(str(reason))
            except KdirError as error:
                self._report(error.message)
            except Exception as error:  # noqa: BLE001 - it is reported and tried again
                self._report(f"{type(error).__name__}: {error}")
            else:
                continue
            self._stopping.wait(self._retry_seconds * random.uniform(0.5, 1.0))
            self._retry_seconds = min(2 * self._retry_seconds, _MOST_RETRY_SECONDS)

    def _load_and_follow(self) -> None:
        reader = TopicReader(
            self._properties,
            self._topic,
            timeout_seconds=self._timeout,
            keep_on=lambda: not self._stopping.is_set(),
            on_error=self._report_loading,
        )
        try:
            self.load_count += 1
            cluster_id = self._cluster_id
            if not cluster_id:
                point = newest_checkpoint(reader, self._registry)
                cluster_id = "" if point is None else point.cluster_id
            fold = StateFold(cluster_id, self._registry)
            log = load_log(reader, fold, seconds=self._load_seconds, clock=self._clock)
            self._take(log)
            self._follow(reader, log)
        finally:
            reader.close()

    def _take(self, log: LoadedLog) -> None:
        """Sets ``state`` to that of the records read, if it is whole; else reports why not."""
        reason = log.why_incomplete()
        if reason:
            self._report(reason)
            return
        self._retry_seconds = _RETRY_SECONDS
        with self._changed:
            self.state, self._trouble = log.state, ""
            self._changed.notify_all()

    def _follow(self, reader: TopicReader, log: LoadedLog) -> None:
        self._refuse_other_cluster(log.fold)  # its checkpoint may have come during the load
        at = log.end
        most_pause = log.most_pause_seconds
        check_seconds = min(most_pause / _CHECKS, _CHECK_SECONDS)
        current_at = asked_at = log.ended_at  # when it was at the end, and asked for the end
        for one in reader.follow(at):
            now = self._clock()
            if one is None:
                if now - asked_at < check_seconds:
                    continue
                asked_at = now
                if self._is_at_end(reader, log, at):
                    current_at = now
                continue
            has_moved = one.offset > at
            if has_moved and now - current_at > most_pause:
                raise _BeginAgain(f"nothing was read for {now - current_at:.0f} s")
            if isinstance(one, EndReached):
                at, current_at = one.offset, now
                continue
            at = one.offset + 1
            before = log.state.checkpoint
            if log.fold.add(one.key, one.value):
                point = log.state.checkpoint
                if before and point and before.generation != point.generation:
                    # The topic may have been created again: this reader missed its beginning.
                    raise _BeginAgain("the log is of the next generation")
                self._take(log)
            elif log.fold.has_older_checkpoint:
                raise _BeginAgain("a checkpoint came that is older than the one before")
            elif log.fold.is_checkpoint_removed and not self._trouble:
                self._take(log)
            self._refuse_other_cluster(log.fold)

    def _refuse_other_cluster(self, fold: StateFold) -> None:
        """Raises ``_BeginAgain`` if the log is that of another cluster by now, and this reader is
        not for one cluster only.
        """
        newest_of = fold.newest_checkpoint_of
        if not self._cluster_id and newest_of not in ("", fold.cluster_id):
            raise _BeginAgain(f"cluster {newest_of} took over the log of {fold.cluster_id}")

    def _is_at_end(self, reader: TopicReader, log: LoadedLog, at: int) -> bool:
        try:
            _, high = reader.bounds(min(self._timeout, _CHECK_SECONDS))
        except KafkaUnavailable as error:
            self._report(error.message)
            return False
        is_at_end = high <= at
        if is_at_end and self.state is not None and self._trouble:
            self._report(log.why_incomplete())  # empty, unless ``state`` is of an earlier load
        return is_at_end

    def _report_loading(self, reason: str) -> None:
        """Reports why a broker could not be used, during the first load only: the trouble of later
        ones has a reason, and a broker that is lost while the log is followed need not matter.
        """
        if self._trouble.startswith(_LOADING):
            self._report(f"{_LOADING}: {reason}" if reason else _LOADING)

    def _report(self, trouble: str) -> None:
        with self._changed:
            self._trouble = trouble
            self._changed.notify_all()
