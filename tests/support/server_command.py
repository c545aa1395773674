"""Runs the server's own command to its end, for what it refuses, checks or prints."""

from __future__ import annotations

import subprocess
import sys

__all__ = ["serve"]


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m directory ARGUMENT…``, which must end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "directory", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
