"""Duration of command lines: whole processes, start-up included."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench import ground
from bench.rows import Row, at_most

__all__ = ["run"]

_ROUNDS: Final = 15
_PYTHON: Final = [sys.executable]
_KDIR: Final = [*_PYTHON, str(Path(sys.executable).with_name("kdir"))]
_LISTED: Final = f"{ground.MOUNT}/dir00000"


def run() -> list[Row]:
    """Measures `kdir ls` of one page against `import grpc`, and completion of a path listed
    before.
    """
    ground.free_core()
    with (
        tempfile.TemporaryDirectory(prefix="kdir-bench-") as name,
        ground.pinned_directory(Path(name) / "server", ground.filled(10_000, 100)) as server,
    ):
        environment = _environment(Path(name) / "home", server.address)
        listing = [*_KDIR, "ls", _LISTED]
        importing = [*_PYTHON, "-c", "import grpc"]
        completing = [*_KDIR, "__complete", "bash", "ls", f"{_LISTED}/topic-00000"]
        bare = [*_PYTHON, "-c", "pass"]
        _check(_output(listing, environment), "topic-000099", 100)
        _check(_output(completing, environment), f"{_LISTED}/topic-000009", 10)
        took: dict[str, list[float]] = {}
        for _ in range(_ROUNDS):
            for command in (listing, importing, completing, bare):
                began = time.perf_counter()
                _output(command, environment)
                took.setdefault(" ".join(command), []).append(time.perf_counter() - began)
    ls, grpc, complete, python = (1e3 * statistics.median(times) for times in took.values())
    return [
        at_most("kdir ls of one page", ls, "ms", "python -c 'import grpc'", grpc, 1.5),
        at_most("completion of a path listed before", complete, "ms", "limit", 100, 1),
        at_most("completion of a path listed before", complete, "ms", "python -c pass", python, 4),
    ]


def _environment(home: Path, servers: str) -> Mapping[str, str]:
    home.mkdir()
    environment = dict(os.environ)
    # Where it is set, every start compiles all modules again.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return {
        **environment,
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "KDIR_AT": servers,
    }


def _output(command: Sequence[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def _check(output: str, wanted: str, lines: int) -> None:
    found = output.split()
    if wanted not in output or len(found) != lines:
        raise AssertionError(f"{len(found)} words instead of {lines} with {wanted}: {output[:200]}")
