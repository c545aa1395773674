"""``python -m tests.soak``: runs a soak and prints what it came to; exit code 1 on a breach."""

from __future__ import annotations

import argparse
import random
import shutil
import sys

from tests.soak.run import run


def main() -> int:
    """Reads the command line and runs."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long workers run")
    parser.add_argument("--seed", default="", help="what everything is made from; default: random")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--no-faults", action="store_true")
    parser.add_argument(
        "--world", default="", help="kafka, etcd, sqlite, tls, no-kafka, no-tls, by commas"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder in any case")
    arguments = parser.parse_args()
    seed = arguments.seed or str(random.SystemRandom().randrange(1_000_000))
    print(f"seed {seed}", flush=True)
    report = run(
        arguments.seconds,
        seed,
        workers=arguments.workers,
        faults=not arguments.no_faults,
        wanted=frozenset(arguments.world.split(",")) - {""},
    )
    print(report)
    for breach in report.breaches:
        print(f"\nBREACH {breach}")
    if report.breaches:
        print(f"\nthe journal is {report.folder / 'journal.jsonl'}")
        return 1
    if not arguments.keep:
        shutil.rmtree(report.folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
