"""Starts Spark for a crawl, and says in one sentence what is missing; refuses to know the index.

Workers need what the driver needs: this interpreter's version of Python with grpcio, protobuf,
pyarrow and deltalake. Where all see one environment that is this very interpreter; elsewhere
``PYSPARK_PYTHON`` names theirs. kdir's own packages travel with the job.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resolver.errors import InvalidArgument, Unreachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkSettings", "require"]

_LOOPBACK: Final = "127.0.0.1"


def require(*packages: str) -> None:
    """See that the packages are there, without the cost of importing them.

    Raises:
        InvalidArgument: one is missing; says what to do.
    """
    for package in packages:
        if find_spec(package) is None:
            raise InvalidArgument(f"the index needs {package}: pip install 'kdir[index]'")


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Which Spark to use, and how."""

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    """Further settings of Spark, which win over ours."""
    session: SparkSession | None = None
    """A session to use instead; it is left running."""

    @contextmanager
    def open(self) -> Iterator[SparkSession]:
        """A session for the time of the block; one that runs already is used, and left running.

        Raises:
            InvalidArgument: pyspark or Java is missing.
            Unreachable: Spark did not start, or no such master answered.
        """
        require("pyspark")
        _require_java()
        from pyspark.sql import SparkSession

        running = self.session or SparkSession.getActiveSession()
        if running is not None:
            yield running
            return
        session = self._start()
        shipped = Path(tempfile.mkdtemp(prefix="kdir-index-"))
        try:
            if not self.master.startswith("local"):
                session.sparkContext.addPyFile(str(packages_zip(shipped)))
            yield session
        finally:
            session.stop()
            shutil.rmtree(shipped, ignore_errors=True)

    def _start(self) -> SparkSession:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        # Else Spark takes the "python3" of a worker's PATH, which need not have our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName("kdir index").master(self.master)
        for key, value in {**self._defaults(), **self.conf}.items():
            builder = builder.config(key, value)
        try:
            return builder.getOrCreate()
        except (Py4JError, PySparkException) as error:
            words = str(error).strip().partition("\n")[0]
            raise Unreachable(f"Spark did not start at {self.master}: {words}") from error

    def _defaults(self) -> dict[str, str]:
        settings = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
        }
        if self.master.startswith("local") or f"//{_LOOPBACK}:" in self.master:
            # Else Spark looks up the host's name, which need not resolve, and listens to the net.
            settings |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
        return settings


def packages_zip(folder: Path) -> Path:
    """A zip of kdir's own packages, which executors can import from."""
    import kdir.v1

    import resolver

    target = folder / "kdir-packages.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in (resolver, kdir.v1):
            root = Path(next(iter(package.__path__))).resolve()
            above = root.parents[package.__name__.count(".")]
            for file in sorted(root.rglob("*.py")):
                archive.write(file, file.relative_to(above))
        archive.writestr("kdir/__init__.py", "")
    return target


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and Path(home, "bin", "java").exists()):
        raise InvalidArgument(
            "Spark needs Java 17 or newer: install it (on Debian: apt-get install "
            "openjdk-17-jre-headless), or set JAVA_HOME"
        )
