"""Ends a process group when the process at the other end of standard input is gone.

It runs beside each server that a test starts. The kernel's parent-death signal needs no process,
but it fires when the starting *thread* ends, and only on Linux; a pipe closes exactly when the
starting process ends, even by SIGKILL. It is run by path, so that it starts fast.
"""

import contextlib
import os
import signal
import sys


def hold(group: int) -> None:
    """Waits for the end of standard input, then kills `group`."""
    while sys.stdin.buffer.read(4096):
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    hold(int(sys.argv[1]))
