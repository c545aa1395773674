"""A reconciler that looks at a Kafka again and again, in a process whose memory is measured.

``python -m tests.support.reconciler_memory BOOTSTRAP FILE LOOKS`` sweeps so many times, and prints
a line of JSON after each tenth of them: looks made, topics shown, resident memory in KiB.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import KafkaMetadata
from tests.support.reconciler import world

__all__ = ["WARM_UP", "Mark", "look"]

_ROOT: Final = Path(__file__).resolve().parents[2]
WARM_UP: Final = 40
"""Looks that are not counted: caches and the allocator's pools fill up meanwhile."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Size of the process after a number of looks."""

    looks: int
    topics: int
    """Topics that the last look found."""
    resident_kib: int


def look(bootstrap: str, file: Path, looks: int) -> Sequence[Mark]:
    """Returns the marks of a new process that looks so often; the first is after the warm-up.

    Raises:
        subprocess.CalledProcessError: the process failed.
    """
    command = [sys.executable, "-m", __name__, bootstrap, str(file), str(looks)]
    done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return [Mark(**json.loads(line)) for line in done.stdout.splitlines()]


class _Counting(ConfluentAdmin):
    """An admin client that counts the looks that it made."""

    looks = 0
    topics = 0

    def describe_all(self) -> KafkaMetadata:
        survey = super().describe_all()
        self.looks += 1
        self.topics = len(survey.topics)
        return survey


def _run(bootstrap: str, file: Path, looks: int) -> None:
    admin = _Counting([bootstrap], timeout_seconds=60)
    # Reading configs takes longer than all else, and other calls of Kafka's client.
    with world(file, lambda: admin, configs_per_read=20) as one:
        for wanted in range(WARM_UP, WARM_UP + looks + 1, max(1, looks // 10)):
            while admin.looks < wanted:
                one.sweep()
            mark = {"looks": admin.looks, "topics": admin.topics, "resident_kib": _resident()}
            sys.stdout.write(json.dumps(mark) + "\n")
            sys.stdout.flush()


def _resident() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


if __name__ == "__main__":
    _run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
