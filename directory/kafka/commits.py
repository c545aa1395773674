"""What is committed of Kafka's side, by the reconciler fenced: each transaction holds its guard.

Cuts what is too much for one transaction; refuses to decide what is committed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from directory.namespace.command import (
    AdoptTopics,
    Command,
    CreateDirectory,
    FinishDelete,
    MoveEntry,
    Observed,
    Plan,
    ReapDeleted,
    RecordTopics,
    TopicNews,
)
from directory.namespace.entry import Kind
from directory.namespace.keys import detached_key
from directory.store.base import Guard, Leadership, Limits, Put, Write
from resolver.errors import AlreadyExists, KdirError, LostRace, Unavailable
from resolver.path import Path

__all__ = ["Commits", "LeadershipLost", "TopicCommits", "WritesCommands", "Written"]

_log = logging.getLogger(__name__)

_STEPS_EACH: Final = 8
"""Guards and writes that one topic costs, at most about."""
_BYTES_EACH: Final = 2_048
"""Bytes that one topic costs, about, with its change event; a batch that is too big is halved."""
_TIMEOUT_SECONDS: Final = 30.0

_T = TypeVar("_T")
_Item_contra = TypeVar("_Item_contra", contravariant=True)


class LeadershipLost(Exception):
    """Another server is the reconciler by now: nothing more may be done here."""


class Written(Protocol):
    """What a command came to."""

    @property
    def plan(self) -> Plan:
        """What was committed."""


class WritesCommands(Protocol):
    """The writer, as far as it is needed here."""

    def execute(
        self,
        command: Command,
        *,
        principal: str = "",
        timeout_seconds: float = 5.0,
        deletes_in_kafka: bool = False,
        extra_guards: Sequence[Guard] = (),
        extra_writes: Sequence[Write] = (),
    ) -> Written:
        """Plan, commit, and wait until the replica has it."""

    def put_facts(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> int:
        """Write facts; the revision."""


class Commits(Protocol):
    """What provisioning needs to commit."""

    def record(self, news: Sequence[TopicNews]) -> None:
        """Commit what was learnt of topics.

        Raises:
            LeadershipLost, StoreUnavailable
        """

    def finish(self, name: str, entry_id: int) -> None:
        """A removed topic is gone from Kafka.

        Raises:
            LeadershipLost, StoreUnavailable
        """

    def detach(self, name: str, entry_id: int, physical_name: str, topic_id: bytes) -> None:
        """A removed topic is left alone in Kafka, and adoption will skip it.

        Raises:
            LeadershipLost, StoreUnavailable
        """


class TopicCommits:
    """``Commits``, and the rest of what is written: in batches that fit the store.

    Args:
        leadership: fences every transaction; None for what an operator asked for, which any server
            may do.
        principal: who wishes it; an observation is nobody's doing.
    """

    def __init__(
        self,
        writer: WritesCommands,
        limits: Limits,
        leadership: Leadership | None,
        principal: str = "",
    ) -> None:
        self._writer = writer
        self._leadership = leadership
        self._principal = principal
        self._batch = max(1, min(limits.max_writes // _STEPS_EACH, limits.max_bytes // _BYTES_EACH))

    def check(self) -> None:
        """Check that the role is still held, as far as this process knows.

        Raises:
            LeadershipLost
        """
        if self._leadership is not None and not self._leadership.held():
            raise LeadershipLost

    def record(self, news: Sequence[TopicNews]) -> None:
        def commit(batch: Sequence[TopicNews]) -> Sequence[str]:
            return self._execute(RecordTopics(news=tuple(batch))).notes

        for note in self._in_batches(news, commit, lambda one: one.path):
            _log.error("not recorded: %s", note)

    def adopt(self, topics: Sequence[tuple[tuple[str, ...], Observed]]) -> Sequence[str]:
        """Take topics in; one sentence for each that was put elsewhere or left out.

        Raises:
            LeadershipLost, StoreUnavailable
        """

        def commit(batch: Sequence[tuple[tuple[str, ...], Observed]]) -> Sequence[str]:
            return self._execute(AdoptTopics(topics=tuple(batch))).notes

        return self._in_batches(topics, commit, lambda one: one[1].physical_name)

    def finish(self, name: str, entry_id: int) -> None:
        self._execute(FinishDelete(name=name, entry_id=entry_id))

    def detach(self, name: str, entry_id: int, physical_name: str, topic_id: bytes) -> None:
        mark = Put(detached_key(physical_name), topic_id)
        self._execute(FinishDelete(name=name, entry_id=entry_id), extra_writes=(mark,))

    def reap(self) -> bool:
        """One step of finishing removals; whether there was anything to do.

        Raises:
            LeadershipLost, StoreUnavailable
        """
        limit = max(1, min(500, self._batch // 10))
        return bool(self._execute(ReapDeleted(limit=limit)).writes)

    def move(self, path: Path, new_path: Path) -> None:
        """Move a topic; the directories above its new place are made where they are missing.

        Raises:
            KdirError: as planning says.
        """
        with contextlib.suppress(AlreadyExists):
            self._execute(CreateDirectory(path=new_path.parent, make_parents=True))
        self._execute(MoveEntry(path=path, new_path=new_path, kind=Kind.TOPIC))

    def put(self, writes: Sequence[Write]) -> None:
        """Commit facts.

        Raises:
            LeadershipLost, StoreUnavailable
        """
        self.check()
        try:
            self._writer.put_facts(writes, guards=self._guards)
        except LostRace as lost:
            raise LeadershipLost from lost

    @property
    def _guards(self) -> tuple[Guard, ...]:
        return () if self._leadership is None else (self._leadership.guard,)

    def _execute(self, command: Command, extra_writes: Sequence[Write] = ()) -> Plan:
        self.check()
        try:
            written = self._writer.execute(
                command,
                principal=self._principal,
                timeout_seconds=_TIMEOUT_SECONDS,
                extra_guards=self._guards,
                extra_writes=extra_writes,
            )
        except LostRace:
            # The guard that does not hold may be that of the role.
            self.check()
            raise
        return written.plan

    def _in_batches(
        self, items: Sequence[_T], commit: _Commit[_T], name: Callable[[_T], object]
    ) -> list[str]:
        notes: list[str] = []
        for start in range(0, len(items), self._batch):
            notes += _halving(items[start : start + self._batch], commit, name)
        return notes


class _Commit(Protocol[_Item_contra]):
    def __call__(self, batch: Sequence[_Item_contra], /) -> Sequence[str]: ...


def _halving(batch: Sequence[_T], commit: _Commit[_T], name: Callable[[_T], object]) -> list[str]:
    """Commit a batch; where it is too much, or one of it makes the whole fail, in halves."""
    try:
        return list(commit(batch))
    except (Unavailable, LostRace):
        raise
    except KdirError as reason:
        if len(batch) == 1:
            return [f"{name(batch[0])} is left out: {reason}"]
    middle = len(batch) // 2
    return [
        note for half in (batch[:middle], batch[middle:]) for note in _halving(half, commit, name)
    ]
