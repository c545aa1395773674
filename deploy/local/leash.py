"""Ends a process group when the process at the other end of standard input is gone.

Run beside each server that a test starts. The kernel's parent-death signal would do it with no
process, but it fires when the starting *thread* ends, and only on Linux; a pipe closes exactly when
the starting process dies, even by SIGKILL. Run by path: it must start fast and import nothing.
"""

import contextlib
import os
import signal
import sys


def hold(group: int) -> None:
    """Waits for the end of standard input, then kill `group`."""
    while sys.stdin.buffer.read(4096):
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    hold(int(sys.argv[1]))
