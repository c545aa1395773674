"""Runs the demo's command lines on a terminal of their own, shows them, and checks their output.

Each command line is shown as it was run, with all that it printed; ``story`` has the content.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, NoReturn

__all__ = ["Shell", "StepFailed"]

_WIDTH = 120
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST_SECONDS = 180
"""No command of the demo takes so long; one that does counts as failed."""


class StepFailed(Exception):
    """A step of the demo did not show what it must; the message has the step and the output."""


class Shell:
    """Output of the demo: prose, headings and command lines, on stdout and in a file."""

    def __init__(self, transcript: IO[str]) -> None:
        self._transcript = transcript
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._environment = {**os.environ, "TERM": "xterm"}
        if not self._colour:
            self._environment["NO_COLOR"] = "1"
        self._number = 0
        self._heading = ""

    def export(self, variables: Mapping[str, str]) -> None:
        """Sets environment variables for the command lines that follow."""
        self._environment |= variables

    # -- texts -----------------------------------------------------------------------------------

    def step(self, heading: str, prose: str = "") -> None:
        """Begins a step: a heading, and what to look at."""
        self._number += 1
        self._heading = f"{self._number}. {heading}"
        self._print(f"\n━━ {self._heading} ".ljust(100, "━"), style="1")
        self.say(prose)

    def say(self, prose: str) -> None:
        """Prints a paragraph of the narration."""
        if prose:
            self._print("")
            self._print(
                textwrap.fill(" ".join(prose.split()), 98, break_on_hyphens=False), style="2"
            )

    def text(self, text: str) -> None:
        """Prints a text as it is."""
        self._print(text)

    def summary(self, heading: str, lines: Sequence[str]) -> None:
        """Prints what was shown, a line each."""
        self._print(f"\n━━ {heading} ".ljust(100, "━"), style="1")
        for line in lines:
            self._print(f"  ✓ {line}")

    def _print(self, text: str, style: str = "") -> None:
        self._transcript.write(_COLOUR.sub("", text) + "\n")
        self._transcript.flush()
        print(f"\x1b[{style}m{text}\x1b[0m" if style and self._colour else text, flush=True)

    # -- commands --------------------------------------------------------------------------------

    def run(
        self,
        line: str,
        *,
        shows: Sequence[str] = (),
        lacks: Sequence[str] = (),
        code: int = 0,
    ) -> str:
        """Runs and shows a command line, checks exit code and output, and returns the output.

        ``shows`` and ``lacks`` are regular expressions that the output must have, or must not have.

        Raises:
            StepFailed: another exit code, or something is missing, or there that must not be.
        """
        self._print(f"\n$ {line}", style="1;32")
        found, text = self._execute(line)
        self._show(found, text)
        wrong = _wrong(found, text, shows, lacks, code)
        if wrong:
            self.fail(f"$ {line}\n{wrong}")
        return _COLOUR.sub("", text)

    def eventually(
        self,
        line: str,
        *,
        shows: Sequence[str] = (),
        lacks: Sequence[str] = (),
        code: int = 0,
        seconds: float = 60,
    ) -> str:
        """Repeats a command line until exit code and output are right, for at most ``seconds``;
        shows only the last run, and returns its output.

        Raises:
            StepFailed: they were not in time.
        """
        began = time.monotonic()
        while True:
            found, text = self._execute(line)
            wrong = _wrong(found, text, shows, lacks, code)
            waited = time.monotonic() - began
            if not wrong or waited > seconds:
                break
            time.sleep(0.3)
        note = f"     # after {waited:.0f} s" if waited >= 1 else ""
        self._print(f"\n$ {line}{note}", style="1;32")
        self._show(found, text)
        if wrong:
            self.fail(f"$ {line}\nwaited {waited:.0f} s in vain: {wrong}")
        return _COLOUR.sub("", text)

    def expect(self, holds: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
        """Checks a condition that was computed from the output of commands.

        Raises:
            StepFailed: it does not hold.
        """
        if not holds:
            self.fail(what)

    def fail(self, why: str) -> NoReturn:
        """Ends the demo.

        Raises:
            StepFailed: always.
        """
        raise StepFailed(f"step {self._heading!r} did not show what it must:\n{why}")

    def _show(self, code: int, text: str) -> None:
        if text:
            self._print(text.rstrip("\n"))
        if code:
            self._print(f"(exit code {code})", style="2")

    def _execute(self, line: str) -> tuple[int, str]:
        """Runs a command line; returns its exit code and all that it printed on its terminal."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, _WIDTH, 0, 0))
        process = subprocess.Popen(
            ["sh", "-c", line],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=self._environment,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            printed = b"".join(_read(ours, time.monotonic() + _LONGEST_SECONDS))
            code = process.wait(_LONGEST_SECONDS)
        except (TimeoutError, subprocess.TimeoutExpired):
            self.fail(f"$ {line}\ndid not end within {_LONGEST_SECONDS} s")
        finally:
            os.close(ours)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return code, printed.decode(errors="replace").replace("\r\n", "\n")


def _read(terminal: int, deadline: float) -> Iterator[bytes]:
    """Yields what is printed, until no process has the other end of the terminal open.

    Raises:
        TimeoutError: a process has it open at the deadline.
    """
    while select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # EIO: the other end was closed, on Linux; other systems return b""
            return
        if not part:
            return
        yield part
    raise TimeoutError


def _wrong(found: int, text: str, shows: Sequence[str], lacks: Sequence[str], code: int) -> str:
    """Returns what is not as it must be; empty when all is."""
    plain = _COLOUR.sub("", text)
    if found != code:
        return f"exit code {found}, {code} was expected; it printed:\n{plain}"
    for pattern in shows:
        if not re.search(pattern, plain, re.MULTILINE):
            return f"{pattern!r} was expected in:\n{plain}"
    for pattern in lacks:
        if re.search(pattern, plain, re.MULTILINE):
            return f"{pattern!r} was not expected in:\n{plain}"
    return ""
