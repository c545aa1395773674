"""Fetches the jars that a pom.xml names, by Maven."""

import hashlib
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

from deploy.local import cache
from deploy.local.cache import ServerUnavailable


def jars(pom: Path, name: str) -> Path:
    """Returns the cache's folder with the jars of `pom` and all that they need, fetched if missing.

    Raises:
        ServerUnavailable: Maven is missing, or failed.
    """
    return cache.provide(folder(pom, name), partial(_copy, pom))


def folder(pom: Path, name: str) -> str:
    """Returns the cache's name for the jars: another pom makes another folder."""
    return f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:8]}"


def _copy(pom: Path, target: Path) -> None:
    if shutil.which("mvn") is None:
        raise ServerUnavailable(
            "Maven is needed to fetch the local servers' jars: install it "
            "(on Debian: apt-get install maven)."
        )
    print(f"fetching what {pom.parent.name} needs, by Maven", file=sys.stderr)
    command = ["mvn", "--quiet", "--batch-mode", f"--file={pom}", "dependency:copy-dependencies"]
    done = subprocess.run(
        [*command, f"-DoutputDirectory={target}"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ServerUnavailable(f"Maven could not fetch the jars of {pom}:\n{done.stdout.strip()}")
