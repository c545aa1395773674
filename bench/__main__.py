"""``python -m bench [--topics N] [--results] [NAME …]``: runs the benchmarks, prints their tables.

A benchmark is a module of this folder with ``run() -> list[Row]``; its name is its module's. Its
rows are kept in ``bench/out``. ``--results`` then writes RESULTS.md and the README's five lines
from all kept rows; without a NAME it runs no benchmark. With ``--topics`` the large stores hold N
topics instead of a million, for a quick trial; its rows are not kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from bench.results import refresh
from bench.rows import show, write

_SECONDS: Final = {
    "namespace": 90,
    "resolving": 180,
    "processes": 90,
    "client": 30,
    "startup": 30,
    "index": 180,
    "authorization": 60,
    "access": 180,
    "writes": 60,
    "links": 90,
    "idle": 60,
    "watchers": 60,
    "pushing": 240,
    "observing": 300,
    "etcd": 480,
    "attacks": 420,
    "changelog": 900,
    "log_readers": 600,
    "audits": 400,
}
"""Approximate duration of each benchmark, on two otherwise idle cores."""
NAMES: Final = tuple(_SECONDS)


def main(arguments: Sequence[str]) -> int:
    """Runs the named benchmarks, or all; returns the exit code, 2 for an unknown name."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--topics", type=int, help="so many instead of a million; keeps nothing")
    parser.add_argument("--results", action="store_true", help="makes RESULTS.md anew")
    parser.add_argument("name", nargs="*", help=", ".join(NAMES))
    asked = parser.parse_args(arguments)
    unknown = sorted(set(asked.name) - set(NAMES))
    if unknown:
        sys.stderr.write(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}\n")
        return 2
    if asked.topics:
        os.environ["KDIR_BENCH_TOPICS"] = str(asked.topics)  # a benchmark's processes read it, too
    names = asked.name or (() if asked.results else NAMES)
    for number, name in enumerate(names):
        _run(name, sum(_SECONDS[one] for one in names[number:]), keep=not asked.topics)
    if asked.results:
        refresh(NAMES)
    return 0


def _run(name: str, seconds_left: int, *, keep: bool) -> None:
    minutes = -(-seconds_left // 60)
    sys.stdout.write(
        f"\n{name}: about {_SECONDS[name]} s at a million topics; {minutes} min for all\n\n"
    )
    sys.stdout.flush()
    began = time.monotonic()
    rows = import_module(f"bench.{name}").run()
    seconds = time.monotonic() - began
    kept = f"kept in {write(name, rows)}" if keep else "not kept"
    sys.stdout.write(f"{show(rows)}\n\n{kept}; took {seconds:.0f} s\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
