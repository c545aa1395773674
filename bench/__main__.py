"""``python -m bench [NAME …]``: runs the benchmarks, prints their table, keeps it as JSON.

A benchmark is a module of this folder with ``run() -> list[Row]``; its name is its module's.
"""

from __future__ import annotations

import sys
from importlib import import_module

from bench.rows import show, write

NAMES = ("namespace", "resolving", "client", "startup", "index")


def main(names: list[str]) -> int:
    """Runs those named, or all."""
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        sys.stderr.write(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}\n")
        return 2
    for name in names or NAMES:
        sys.stdout.write(f"\n{name}\n\n")
        sys.stdout.flush()
        rows = import_module(f"bench.{name}").run()
        sys.stdout.write(show(rows) + f"\n\nkept in {write(name, rows)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
