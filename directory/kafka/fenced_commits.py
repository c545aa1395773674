"""Commits of the Kafka side, in transactions that fit the store.

Those of the reconciler are fenced: each transaction has the guard of its leadership.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import copy
from typing import Final, TypeVar

from directory.namespace.command import (
    AdoptTopics,
    Command,
    FinishDelete,
    MoveTopics,
    ObservedTopic,
    Plan,
    RecordObservations,
    TopicObservation,
)
from directory.namespace.keys import detached_key
from directory.store.base import Guard, Leadership, Put, Write
from directory.store.leader import LeadershipLost
from directory.store.transaction_limits import Limits
from directory.store.writer import Writer
from resolver.errors import (
    DeadlineExceeded,
    KdirError,
    LevelNotFinalized,
    LimitExceeded,
    OutboxFull,
    StoreSealed,
    Unavailable,
    WriteConflict,
)
from resolver.path import Path

__all__ = ["StaleObservation", "TopicCommits"]

_log = logging.getLogger(__name__)

_STEPS_EACH: Final = 6
"""Estimated guards and writes of one topic; failed commits correct the batch size."""
_BYTES_EACH: Final = 2_048
"""Estimated bytes of one topic, with its change event."""
_MOST: Final = 1_000
"""Most topics of one batch, even if more fit: other clients' writes come in between."""
_TIMEOUT_SECONDS: Final = 30.0

_OF_THE_STORE: Final = (
    Unavailable,
    DeadlineExceeded,
    LevelNotFinalized,
    OutboxFull,
    StoreSealed,
)
"""Errors that are not about an item: the store takes no other item either, for now."""

_T = TypeVar("_T")


class StaleObservation(Exception):
    """Error of a read of Kafka that is too old: another client may have changed Kafka since."""


class TopicCommits:
    """Writer of all that the Kafka side commits, in batches that fit the store.

    Args:
        leadership: fences every transaction; None for operators' requests, which any server may
            commit.
        principal: requested the changes; empty for observations.

    Raises (all methods that commit):
        LeadershipLost, StoreUnavailable, StoreSealed, OutboxFull, LevelNotFinalized
        LimitExceeded: the store is full.
        DeadlineExceeded
    """

    def __init__(
        self,
        writer: Writer,
        limits: Limits,
        leadership: Leadership | None,
        principal: str = "",
    ) -> None:
        self._writer = writer
        self._leadership = leadership
        self._principal = principal
        most = min(_MOST, limits.max_writes // 2, limits.max_bytes // _BYTES_EACH)
        self._most = max(1, most)
        # Less the guards of the role and of the change log, or the change log's row.
        self._most_facts = max(1, min(_MOST, limits.max_writes - 4))
        self._most_bytes = limits.max_bytes - _BYTES_EACH
        self._sizes: dict[str, int] = {}
        self._first = max(1, min(most, limits.max_writes // _STEPS_EACH))
        self.revision = 0
        """The newest that it committed; the replica may be behind."""

    def on_behalf_of(self, principal: str) -> TopicCommits:
        """Returns a copy of this writer that commits as this principal."""
        other = copy(self)
        other._principal = principal  # noqa: SLF001 - of its own class
        return other

    @property
    def batch(self) -> int:
        """Estimated number of topics that fit one transaction."""
        return self._first

    def check(self) -> None:
        """Checks that the role is still held, as far as this process knows."""
        if self._leadership is not None and not self._leadership.held():
            raise LeadershipLost

    def check_fresh(
        self,
        clock: Callable[[], float],
        most_seconds: float,
        is_same: Callable[[], bool] = lambda: True,
    ) -> Callable[[], None]:
        """Returns a check to call right before each request that changes what was just read from
        Kafka: requests name topics without their ids, and a process that was paused must read
        again. The check raises ``LeadershipLost``, and ``StaleObservation`` if it is called more
        than ``most_seconds`` after this call or ``is_same`` is False.
        """
        looked_at = clock()

        def still() -> None:
            self.check()
            if clock() - looked_at > most_seconds or not is_same():
                raise StaleObservation

        return still

    def record(self, news: Sequence[TopicObservation], *, within_quotas: bool = False) -> None:
        """Commits observations of topics; with ``within_quotas``, instead the partitions that they
        are to have, where quotas allow them.
        """

        def command(batch: tuple[TopicObservation, ...]) -> Command:
            return RecordObservations(news=batch, within_quotas=within_quotas)

        notes = self._in_batches("record", news, command, lambda one: one.path)
        for note in notes:
            _log.log(logging.WARNING if within_quotas else logging.ERROR, "not recorded: %s", note)

    def adopt(self, topics: Sequence[tuple[tuple[str, ...], ObservedTopic]]) -> Sequence[str]:
        """Adopts topics; returns a sentence for each that got another path or was left out."""
        return self._in_batches(
            "adopt", topics, lambda some: AdoptTopics(topics=some), lambda one: one[1].physical_name
        )

    def move(self, moves: Sequence[tuple[Path, int, Path]]) -> Sequence[str]:
        """Moves topics (path, entry id, new path); returns a sentence for each that stays."""
        return self._in_batches(
            "move", moves, lambda batch: MoveTopics(moves=batch), lambda one: one[0]
        )

    def finish(self, gone: Sequence[tuple[str, int]], *, is_acknowledged: bool = False) -> None:
        """Commits that removed topics (name below DELETED_ID, entry id) are gone from Kafka;
        ``is_acknowledged``: Kafka acknowledged their deletion.
        """

        def command(batch: tuple[tuple[str, int], ...]) -> Command:
            return FinishDelete(topics=batch, is_acknowledged=is_acknowledged)

        notes = self._in_batches("finish", gone, command, lambda one: one[0])
        for note in notes:
            _log.error("not finished: %s", note)

    def detach(self, name: str, entry_id: int, physical_name: str, topic_id: bytes) -> None:
        """Commits that a removed topic is left alone in Kafka, and that adoption will skip it."""
        mark = Put(detached_key(physical_name), topic_id)
        self._execute(FinishDelete(topics=((name, entry_id),)), extra_writes=(mark,))

    def put(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> None:
        """Commits facts if the role's guard and these hold; else raises ``LeadershipLost``."""
        self.check()
        try:
            self.revision = self._writer.put_facts(writes, guards=(*self._guards, *guards))
        except WriteConflict as lost:
            raise LeadershipLost from lost

    def put_each(self, changes: Sequence[tuple[Sequence[Guard], Sequence[Write]]]) -> None:
        """Commits each change (guards, writes of facts) whose guards hold; skips the others. A
        change has two guards and two writes at most.
        """
        for start in range(0, len(changes), self.batch):
            batch = changes[start : start + self.batch]
            guards = [guard for of_one, _ in batch for guard in of_one]
            writes = [write for _, of_one in batch for write in of_one]
            self.check()
            try:
                self.revision = self._writer.put_facts(writes, guards=(*self._guards, *guards))
            except WriteConflict:
                # The guard that failed may be the role's.
                self.check()
                for one in batch if len(batch) > 1 else ():
                    self.put_each([one])

    def put_all(self, writes: Sequence[Write]) -> None:
        """Commits facts in as many transactions as they need; a part of them may be committed."""
        batch: list[Write] = []
        size = 0
        for write in writes:
            bytes_ = _bytes_of(write)
            if batch and (len(batch) >= self._most_facts or size + bytes_ > self._most_bytes):
                self.put(batch)
                batch, size = [], 0
            batch.append(write)
            size += bytes_
        if batch:
            self.put(batch)

    def fits(self, write: Write) -> bool:
        """True if one transaction can hold this write of a fact."""
        return _bytes_of(write) <= self._most_bytes

    @property
    def _guards(self) -> tuple[Guard, ...]:
        return () if self._leadership is None else (self._leadership.guard,)

    def _execute(self, command: Command, extra_writes: Sequence[Write] = ()) -> Plan:
        self.check()
        try:
            written = self._writer.commit_command(
                command,
                principal=self._principal,
                timeout_seconds=_TIMEOUT_SECONDS,
                extra_guards=self._guards,
                extra_writes=extra_writes,
            )
        except WriteConflict:
            # The guard that failed may be the role's.
            self.check()
            raise
        self.revision = max(self.revision, written.revision)
        return written.plan

    def _in_batches(
        self,
        kind: str,
        items: Sequence[_T],
        command: Callable[[tuple[_T, ...]], Command],
        name: Callable[[_T], object],
    ) -> list[str]:
        """Commits all items in order, in batches that adapt to what fits. An item that makes its
        batch fail is found by halving, and left out. Returns the notes, each with an item's name.
        """
        notes: list[str] = []
        start, size = 0, self._sizes.get(kind, self._first)
        while start < len(items):
            batch = tuple(items[start : start + size])
            try:
                notes += self._execute(command(batch)).notes
            except KdirError as reason:
                if not _is_of_items(reason, kind):
                    raise
                if isinstance(reason, LimitExceeded) and len(batch) > 1:
                    size = max(1, len(batch) * 3 // 4)
                    continue
                notes += self._by_halves(kind, batch, reason, command, name)
            else:
                size = min(self._most, size + 1) if len(batch) == size else size
            self._sizes[kind] = size
            start += len(batch)
        return notes

    def _by_halves(
        self,
        kind: str,
        batch: tuple[_T, ...],
        reason: KdirError,
        command: Callable[[tuple[_T, ...]], Command],
        name: Callable[[_T], object],
    ) -> list[str]:
        if len(batch) == 1:
            return [f"{name(batch[0])} is left out: {reason}"]
        notes: list[str] = []
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            try:
                notes += self._execute(command(half)).notes
            except KdirError as why:
                if not _is_of_items(why, kind):
                    raise
                notes += self._by_halves(kind, half, why, command, name)
        return notes


def _bytes_of(write: Write) -> int:
    # The change log's row names the keys again.
    return 2 * len(write.key) + (len(write.value) if isinstance(write, Put) else 0)


def _is_of_items(reason: KdirError, kind: str) -> bool:
    """True if only some items may make the batch fail, so that others can be committed."""
    if isinstance(reason, WriteConflict):
        # An entry whose record cannot be read is not in the tree, but its physical name is claimed
        # in the store: adopting the topic of this name conflicts at every try.
        return kind == "adopt"
    is_full = isinstance(reason, LimitExceeded) and reason.metadata.get("limit") == "store"
    return not (is_full or isinstance(reason, _OF_THE_STORE))
