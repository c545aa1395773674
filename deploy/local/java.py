"""Finds a Java that is new enough for Kafka and Spark."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from deploy.local.cache import ServerUnavailable

OLDEST = 17
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""JVM options of processes that run for minutes beside others: quick compilation, and garbage
collection in one thread. They halve the processor time of a Spark session.
"""


def java() -> str:
    """Returns the path of `java`: that of JAVA_HOME, else the first on PATH.

    Raises:
        ServerUnavailable: there is none, or only an older one.
    """
    return _found()[0]


def build() -> str:
    """Returns what `java -version` prints: the release and the maker's build.

    Raises:
        ServerUnavailable: there is none, or only an older one.
    """
    return _found()[1]


@cache
def _found() -> tuple[str, str]:
    home = os.environ.get("JAVA_HOME")
    named = Path(home, "bin", "java") if home else None
    found = str(named) if named is not None and named.exists() else shutil.which("java")
    advice = f"install Java {OLDEST} or newer (on Debian: apt-get install openjdk-17-jre-headless)"
    if found is None:
        raise ServerUnavailable(f"Java is needed to run Kafka and Spark: {advice}.")
    shown = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', shown.stderr)
    if match is None or int(match[1]) < OLDEST:
        version = match[1] if match else "unknown"
        raise ServerUnavailable(f"{found} is Java {version}, too old: {advice}.")
    return found, shown.stderr
