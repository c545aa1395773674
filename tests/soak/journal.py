"""The journal of a run: each operation and fault as a JSON line, counts, and what was found."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Breach", "Journal"]


@dataclass(frozen=True, slots=True)
class Breach:
    """A promise that was not kept, with the lines of the journal that show it."""

    kind: str
    message: str
    at: float
    lines: tuple[Mapping[str, Any], ...]

    def __str__(self) -> str:
        shown = "\n".join("    " + json.dumps(line, default=str) for line in self.lines)
        return f"{self.at:8.3f} {self.kind}: {self.message}\n{shown}"


@dataclass(slots=True)
class Counts:
    """Number of operations, faults and other events, by kind."""

    operations: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By verb, door and outcome."""
    faults: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)


class Journal:
    """Written by all threads of a run; each line has its number and its time since the start.

    Args:
        folder: where ``journal.jsonl`` and ``breaches.txt`` are written.
        most_breaches: after so many the run ends.
        awaited: or after one whose kind begins with one of these.
    """

    def __init__(
        self, folder: Path, most_breaches: int = 30, awaited: tuple[str, ...] = ()
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.counts = Counts()
        self.breaches: list[Breach] = []
        self.is_full = threading.Event()
        self._most_breaches = most_breaches
        self._awaited = awaited
        self._lock = threading.Lock()
        self._file = (folder / "journal.jsonl").open("w")
        self._started = time.monotonic()
        self._number = 0
        self._recent: dict[str, deque[Mapping[str, Any]]] = {}

    def now(self) -> float:
        """Returns seconds since the run began."""
        return round(time.monotonic() - self._started, 4)

    def write(self, kind: str, about: str = "", **facts: Any) -> Mapping[str, Any]:
        """Adds a line; the newest lines about the same thing are shown with a breach of it."""
        with self._lock:
            self._number += 1
            line = {"n": self._number, "at": self.now(), "kind": kind, "about": about, **facts}
            self._file.write(json.dumps(line, default=str) + "\n")
            self._recent.setdefault(about, deque(maxlen=14)).append(line)
            return line

    def operation(self, verb: str, door: str, outcome: str, about: str, **facts: Any) -> None:
        """Adds the line of an operation that ended, and counts it."""
        with self._lock:
            self.counts.operations[verb, door, outcome] += 1
        self.write("operation", about, verb=verb, door=door, outcome=outcome, **facts)

    def fault(self, kind: str, about: str, **facts: Any) -> None:
        """Adds the line of a fault, and counts it."""
        with self._lock:
            self.counts.faults[kind] += 1
        self.write("fault", about, fault=kind, **facts)

    def check(self, kind: str) -> None:
        """Counts a comparison with the model."""
        with self._lock:
            self.counts.checks[kind] += 1

    def breach(self, kind: str, message: str, about: str = "") -> None:
        """Records that a promise was not kept."""
        self.write("breach", about, breach=kind, message=message)
        with self._lock:
            lines = tuple(self._recent.get(about, ()))
            found = Breach(kind, message, self.now(), lines)
            self.breaches.append(found)
            with (self.folder / "breaches.txt").open("a") as file:
                file.write(f"{found}\n\n")
            was_awaited = bool(self._awaited) and kind.startswith(self._awaited)
            if was_awaited or len(self.breaches) >= self._most_breaches:
                self.is_full.set()

    def close(self) -> None:
        """Ends the file."""
        with self._lock:
            self._file.close()

    @contextmanager
    def closing(self) -> Iterator[Journal]:
        """Ends the file at the end of the block."""
        try:
            yield self
        finally:
            self.close()
