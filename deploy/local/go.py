"""Builds programs with Go, of modules that are pinned by a go.sum beside them."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from deploy.local.cache import ServerUnavailable


def digest(source: Path, names: Sequence[str]) -> str:
    """Returns a short digest of the files that decide what is built."""
    content = b"".join((source / name).read_bytes() for name in names)
    return hashlib.sha256(content).hexdigest()[:8]


def build(source: Path, programs: Sequence[str], target: Path, *, what: str) -> None:
    """Builds programs into ``target``: import paths or folders of the module in ``source``.

    Raises:
        ServerUnavailable: Go is missing, or failed.
    """
    if shutil.which("go") is None:
        raise ServerUnavailable(f"Go is needed to build {what}: install Go 1.24 or newer.")
    done = subprocess.run(
        ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", f"{target}/", *programs],
        cwd=source,
        env=os.environ | {"GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ServerUnavailable(f"Go could not build {what}:\n{done.stderr.strip()}")
