"""Starts Spark for a crawl, and says in one sentence what is missing; refuses to know the index.

Workers need what the driver needs: this interpreter's version of Python with grpcio, protobuf,
pyarrow and deltalake. Where all see one environment that is this very interpreter; elsewhere
``PYSPARK_PYTHON`` names theirs. kdir's own packages travel with the job.
"""

from __future__ import annotations

import os
import shutil
import socket
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
_CONNECT_SECONDS: Final = 5.0


def require(*packages: str) -> None:
    """Raises an error unless the packages are installed, without the cost of importing them.

    Raises:
        InvalidArgument: one is missing; says what to do.
    """
    for package in packages:
        if find_spec(package) is None:
            raise InvalidArgument(f"the index needs {package}: pip install 'kdir[index]'")


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Settings of the Spark session."""

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    """Further settings of Spark, which win over ours."""
    session: SparkSession | None = None
    """A session to use instead; it is left running."""

    @contextmanager
    def open(self) -> Iterator[SparkSession]:
        """Opens a session for the time of the block; one that runs already is used, and left
        running.

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
        own = Path(tempfile.mkdtemp(prefix="kdir-index-"))
        try:
            session = self._start(own / "spark.log")
            try:
                if not self.master.startswith("local"):
                    session.sparkContext.addPyFile(str(packages_zip(own)))
                yield session
            finally:
                session.stop()
        finally:
            shutil.rmtree(own, ignore_errors=True)

    def _start(self, log: Path) -> SparkSession:
        """A new session. What Java writes to standard error goes to ``log``: a dozen lines of it
        come from every start and say nothing, and of a failed one the last say why.
        """
        from py4j.protocol import Py4JError
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        _require_master(self.master)
        # Else Spark takes the "python3" of a worker's PATH, which need not have our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf = SparkConf().setAll(list({**self._defaults(), **self.conf}.items()))
        conf.setMaster(self.master).setAppName("kdir index")
        try:
            with log.open("wb") as errors:
                # A process has one Java at most: a second session goes on with that of the first.
                gateway = SparkContext._gateway or launch_gateway(  # type: ignore[no-untyped-call] # noqa: SLF001
                    conf, {"stderr": errors}
                )
            return SparkSession(SparkContext(conf=conf, gateway=gateway))
        except (Py4JError, PySparkException, OSError) as error:
            parts = str(error).strip().partition("\n")[0]
            answered = log.read_text(errors="replace").strip().splitlines()
            last = f"; {answered[-1]}" if answered else ""
            raise Unreachable(f"Spark did not start at {self.master}: {parts}{last}") from error

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


def _require_master(master: str) -> None:
    """Spark itself takes a minute to find out that no standalone master is there.

    Raises:
        Unreachable: none of those named accepts connections.
    """
    if not master.startswith("spark://"):
        return
    reasons: list[str] = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS):
                return
        except (OSError, ValueError) as error:
            reasons.append(f"{address}: {error}")
    raise Unreachable(f"no Spark master answers at {'; '.join(reasons)}")


def packages_zip(folder: Path) -> Path:
    """Writes a zip of kdir's own packages, from which executors import them."""
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
