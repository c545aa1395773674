"""``python -m bench [--readme] [NAME …]``: runs the benchmarks, prints their tables, keeps them.

A benchmark is a module of this folder with ``run() -> list[Row]``; its name is its module's. With
``--readme`` the README's table is made anew of all that is kept; without a name nothing else is
done.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module

from bench.readme import refresh
from bench.rows import show, write

NAMES = ("namespace", "resolving", "processes", "client", "startup", "index", "authorization")


def main(words: list[str]) -> int:
    """Runs those named, or all."""
    names = [word for word in words if word != "--readme"]
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        sys.stderr.write(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}\n")
        return 2
    to_readme = "--readme" in words
    for name in names or (() if to_readme else NAMES):
        sys.stdout.write(f"\n{name}\n\n")
        sys.stdout.flush()
        began = time.monotonic()
        rows = import_module(f"bench.{name}").run()
        seconds = time.monotonic() - began
        sys.stdout.write(f"{show(rows)}\n\nkept in {write(name, rows)}; took {seconds:.0f} s\n")
    if to_readme:
        refresh(NAMES)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
