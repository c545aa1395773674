"""Argument parser of the verbs that are not run by ``resolver.cli``; its errors have the same
form.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from resolver.printable import printable
from resolver.redaction import redacted

__all__ = ["CommandParser"]


class CommandParser(argparse.ArgumentParser):
    """Parser whose errors are printed as ``resolver/cli/main.py`` prints them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_argument("--debug", action="store_true", help=argparse.SUPPRESS)

    def error(self, message: str) -> NoReturn:
        """Prints one sentence and the command that explains the verb, and exits with code 2."""
        shown = printable(redacted(message))
        sys.stderr.write(f"error: {shown}\n  {self.prog} --help explains it\n")
        sys.exit(2)
