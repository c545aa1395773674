"""Registers and counters that all workers write, checked by the order that the store has."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

from resolver.revision_token import Position
from tests.soak.journal import Journal

__all__ = ["Register"]


@dataclass(frozen=True, slots=True)
class _Write:
    value: str
    started: float
    ended: float
    position: Position | None
    """None: whether it took effect is not known."""


@dataclass(frozen=True, slots=True)
class _Seen:
    value: str
    started: float
    ended: float
    position: Position


@dataclass(slots=True)
class Register:
    """An entry's owner, set to values that are never used twice; and its counter, a tag that is
    raised by who saw its etag, counted by incarnation of the store.
    """

    path: str
    writes: list[_Write] = field(default_factory=list)
    reads: list[_Seen] = field(default_factory=list)
    counted: Counter[tuple[int, int]] = field(default_factory=Counter)
    counted_unsure: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def wrote(self, value: str, started: float, ended: float, position: Position | None) -> None:
        """Records a write that has ended."""
        with self.lock:
            self.writes.append(_Write(value, started, ended, position))

    def read(self, value: str, started: float, ended: float, position: Position) -> None:
        """Records a read that has ended."""
        with self.lock:
            self.reads.append(_Seen(value, started, ended, position))

    def verify(self, journal: Journal) -> None:
        """Compares each read with the write that was the newest at its revision, and the order of
        revisions with that of time.
        """
        unsure = [write for write in self.writes if write.position is None]
        known = [(write.position, write) for write in self.writes if write.position is not None]
        for incarnation in {position.incarnation for position, _ in known}:
            ordered = sorted(
                ((p.revision, write) for p, write in known if p.incarnation == incarnation),
                key=lambda one: one[0],
            )
            self._verify_order(ordered, journal)
            for seen in self.reads:
                if seen.position.incarnation == incarnation:
                    self._verify_read(seen, ordered, unsure, journal)
        for (_, number), times in self.counted.items():
            if times > 1:
                text = f"{times} workers were told that they raised {self.path} to {number}"
                journal.breach("counter", text, self.path)

    def _verify_order(self, ordered: list[tuple[int, _Write]], journal: Journal) -> None:
        latest: tuple[int, _Write] | None = None
        for revision, write in ordered:
            journal.check("register order")
            if latest is not None:
                if revision == latest[0]:
                    text = f"{write} and {latest[1]} have one revision"
                    journal.breach("register", text, self.path)
                if write.ended < latest[1].started:
                    text = f"{write} ended before {latest[1]} began, and is newer"
                    journal.breach("register", text, self.path)
            if latest is None or write.started > latest[1].started:
                latest = (revision, write)

    def _verify_read(
        self,
        seen: _Seen,
        ordered: list[tuple[int, _Write]],
        unsure: list[_Write],
        journal: Journal,
    ) -> None:
        journal.check("register read")
        before = [write for revision, write in ordered if revision <= seen.position.revision]
        if not before or before[-1].value == seen.value:
            return
        if any(write.value == seen.value and write.started < seen.ended for write in unsure):
            return
        text = f"{seen} should have found {before[-1]}"
        journal.breach("register", text, self.path)
