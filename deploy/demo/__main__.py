"""`python -m deploy.demo up|down|status`: starts the demo, ends it, or lists its servers.

It ends only processes that the demo itself recorded, and leaves none running when a step fails.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from deploy.demo import federation, story
from deploy.demo.federation import Federation, ForeignFiles
from deploy.demo.shell import Shell, StepFailed
from deploy.local import kafka
from deploy.local.cache import ServerUnavailable
from deploy.local.process import StartFailed

_CHECKOUT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the action; returns 0, or another code after a message on stderr."""
    parser = argparse.ArgumentParser(prog="python -m deploy.demo", description=__doc__)
    parser.add_argument("action", choices=("up", "down", "status"))
    parser.add_argument(
        "--home",
        type=Path,
        default=Path(os.environ.get("KDIR_DEMO_HOME") or _CHECKOUT / ".demo"),
        help="where the demo keeps its data (default: .demo in the checkout)",
    )
    options = parser.parse_args(arguments)
    home = options.home.resolve()
    # SIGTERM acts as Ctrl-C: servers that were started are ended on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return {"up": up, "down": _down, "status": _status}[options.action](home)
    except KeyboardInterrupt:
        return 130


def up(home: Path) -> int:
    """Starts the demo below ``home`` and runs its story; returns the exit code."""
    began = time.monotonic()
    with federation.locked(home) as held:
        if not held:
            return _refuse(f"the demo in {home} is being started or ended by another process")
        if federation.running(home):
            return _refuse(
                f"the demo in {home} is running already\n"
                f"  to look at it: . {home / 'env'}; kdir tree /\n"
                "  to end it:     make demo-down"
            )
        try:
            federation.remove(home)
        except ForeignFiles as error:
            return _refuse(str(error))
        try:
            _report(home, began)
        except (StepFailed, StartFailed, ServerUnavailable) as error:
            federation.take_down(home)
            return _refuse(f"{error}\nThe demo's servers were ended; their logs are in {home}.")
        except BaseException:
            federation.take_down(home)
            raise
    return 0


def _report(home: Path, began: float) -> None:
    kafka.installed()  # raises before anything is started
    demo = Federation(home)
    with (home / "transcript.txt").open("w") as transcript:
        shell = Shell(transcript)
        story.report(demo, shell, began)


def _down(home: Path) -> int:
    with federation.locked(home, wait_seconds=10) as held:
        if not held:
            return _refuse(f"the demo in {home} is being started or ended by another process")
        ended = federation.take_down(home)
        try:
            federation.remove(home)
        except ForeignFiles as error:
            return _refuse(str(error))
    print(f"ended {ended} servers of the demo" if ended else "no demo was running")
    return 0


def _status(home: Path) -> int:
    names = federation.running(home) if home.is_dir() else []
    for name in names:
        print(name)
    if not names:
        return _refuse(f"no demo is running in {home}")
    return 0


def _refuse(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
