"""Pages of the documentation for tests: their fenced blocks, and their command lines run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PROGRAMS", "ROOT", "Block", "blocks", "run_line", "run_program"]

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
"""``PATH`` with the ``kdir`` of this environment first."""
_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)
_ENDS = re.compile(r" +# exit code (?P<code>\d).*$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, with the heading (``##``) above it."""

    section: str
    language: str
    body: str


def blocks(page: str) -> list[Block]:
    """Returns the fenced blocks of a page, in order."""
    text = (ROOT / page).read_text()
    found = []
    for match in _BLOCK.finditer(text):
        section = re.findall(r"^## (.+)$", text[: match.start()], re.MULTILINE)
        found.append(Block(section[-1] if section else "", match["language"], match["body"]))
    return found


def run_line(line: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Returns what a command line prints on stdout and stderr.

    Raises:
        AssertionError: it does not end as its comment says (``# exit code 1``), by default with 0.
    """
    expected = _ENDS.search(line)
    done = subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": PROGRAMS, **environment},
    )
    code = int(expected["code"]) if expected else 0
    assert done.returncode == code, f"$ {line}\n{done.stdout}{done.stderr}"
    return done.stdout, done.stderr


def run_program(code: str, address: str) -> str:
    """Returns what a program of a page prints; it asks the server at this address."""
    done = subprocess.run(
        [sys.executable, "-c", code.replace("127.0.0.1:7420", address)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    return done.stdout
