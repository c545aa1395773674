"""Runs kdir command lines in this process, over directories in memory."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resolver.cli.main import main
from resolver.testing import MemoryTransport

__all__ = ["Ran", "Terminal", "run"]


class Terminal(io.StringIO):
    """Stream in memory that counts as a terminal."""

    def isatty(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Ran:
    """Exit code and output of a command line."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Lines of stdout."""
        return self.out.splitlines()

    @property
    def objects(self) -> list[Any]:
        """Objects of stdout, where that is JSON lines."""
        return [json.loads(line) for line in self.lines]


def run(
    arguments: Sequence[str],
    transport: MemoryTransport | None = None,
    *,
    terminal: bool = False,
    stdin: str = "",
) -> Ran:
    """Runs one command line with ``stdin`` as input; with ``terminal``, as at a terminal."""
    make: Callable[[], io.StringIO] = Terminal if terminal else io.StringIO
    out, err = make(), make()
    given = make()
    given.write(stdin)
    given.seek(0)
    import sys

    before, sys.stdin = sys.stdin, given
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments, transport=transport)
    finally:
        sys.stdin = before
    return Ran(code, out.getvalue(), err.getvalue())


def answering(
    answers: Mapping[str, Any | Exception], otherwise: Callable[[str, Any], Any], calls: list[Any]
) -> Callable[[str, Any], Any]:
    """Returns a handler with canned answers to some methods, whose requests go into ``calls``."""

    def handle(method: str, request: Any) -> Any:
        if method not in answers:
            return otherwise(method, request)
        calls.append(request)
        answer = answers[method]
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer

    return handle
