"""Runs a Spark standalone cluster from pyspark's own jars, and has Delta Lake's jars for Spark.

It makes no session: the index does, with what it finds here.
"""

from pathlib import Path

from deploy.local import cache, maven
from deploy.local.cache import ServerUnavailable

DELTA_VERSION = "4.2.0"
POM = Path(__file__).parent / "spark" / "pom.xml"


def fetch() -> Path:
    """The folder of Delta Lake's jars, fetched if missing.

    Raises:
        ServerUnavailable: it cannot be had; the message says why.
    """
    return maven.jars(POM, f"delta-{DELTA_VERSION}")


def delta_jars() -> list[Path]:
    """The jars that a session's `spark.jars` needs for Delta tables; fetches nothing.

    Raises:
        ServerUnavailable: they are not there yet.
    """
    folder = cache.find(maven.folder(POM, f"delta-{DELTA_VERSION}"))
    if folder is None:
        raise ServerUnavailable("Delta's jars are not in the cache: run `make servers`.")
    return sorted(folder.glob("*.jar"))
