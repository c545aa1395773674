"""Starts Spark for a build of the index; a missing requirement is reported in one sentence.

Workers need the driver's version of Python with grpcio, protobuf, pyarrow and deltalake. They run
the driver's interpreter, unless ``PYSPARK_PYTHON`` names another one. kdir's own packages are sent
to the workers, unless Spark is local or the session was already running.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from resolver.errors import Internal, InvalidArgument, Unreachable
from resolver.extras import missing_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkSettings", "require", "spark_errors"]

_LOOPBACK: Final = "127.0.0.1"
_CONNECT_SECONDS: Final = 5.0
_JAVA_ENDS_SECONDS: Final = 5.0


def require(*modules: str) -> None:
    """Checks that modules are installed, without the cost of importing them.

    Raises:
        InvalidArgument: a module is missing; the message has the command that installs its extra.
    """
    if missing := missing_extra("the index", "index", *modules):
        raise InvalidArgument(missing)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Converts an error of a Spark job to one of one sentence; Spark's own has pages of Java.

    Raises:
        Internal: the job failed.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise Internal(f"the job on Spark failed: {cause_of(str(error))}") from error


def cause_of(text: str) -> str:
    """Returns the line of a Java traceback that has the cause, at most 300 characters of it: the
    last Python error in it, else the first line.
    """
    lines = [one.strip() for one in text.splitlines() if one.strip()]
    python = [one for one in lines if _PYTHON_ERROR.match(one) and "Py4J" not in one]
    return (python[-1] if python else lines[0] if lines else "no reason given")[:_MOST_CHARACTERS]


_PYTHON_ERROR: Final = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): ")
_MOST_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Settings of the Spark session."""

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    """Further settings of Spark; they override kdir's."""
    session: SparkSession | None = None
    """Session to use instead of a new one; it stays running."""

    @contextmanager
    def open(self) -> Iterator[SparkSession]:
        """Opens a session while the block runs. A session that is already running is used, and
        stays running.

        Raises:
            InvalidArgument: pyspark or Java is missing.
            Unreachable: Spark did not start, or the master did not answer.
        """
        require("pyspark")
        _require_java()
        from pyspark.sql import SparkSession

        running = self.session or SparkSession.getActiveSession()
        if running is not None:
            yield running
            return
        own = Path(tempfile.mkdtemp(prefix="kdir-index-"))
        interrupts = _Interrupts()
        try:
            interrupts.take()
            session = self._start(own / "spark.log", interrupts)
            try:
                if not self.master.startswith("local"):
                    session.sparkContext.addPyFile(str(packages_zip(own)))
                yield session
            finally:
                session.stop()
        except Exception:
            if interrupts.came:
                raise KeyboardInterrupt from None
            raise
        finally:
            interrupts.give_back()
            shutil.rmtree(own, ignore_errors=True)

    def _start(self, log: Path, interrupts: _Interrupts) -> SparkSession:
        """Returns a new session. Java's standard error is written to ``log``, since every start
        writes a dozen useless lines; after a failed start, the last line has the reason.
        """
        from py4j.protocol import Py4JError
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        _require_master(self.master)
        # Otherwise Spark uses the "python3" in a worker's PATH, which may not have our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf = SparkConf().setAll(list({**self._defaults(), **self.conf}.items()))
        conf.setMaster(self.master).setAppName("kdir index")
        gateway: Any = None
        try:
            with log.open("wb") as errors:
                # A process has at most one Java: a second session uses the first one's.
                gateway = SparkContext._gateway or launch_gateway(  # type: ignore[no-untyped-call] # noqa: SLF001
                    conf, {"stderr": errors}
                )
            context = SparkContext(conf=conf, gateway=gateway)
            interrupts.take()  # Spark has installed its own handler
            return SparkSession(context)
        except (Py4JError, PySparkException, OSError) as error:
            # Until then Spark's own handler of SIGINT was installed, which raises such an error.
            interrupts.came |= bool(gateway) and _ends_by_interrupt(gateway.proc)
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
            # Otherwise Spark looks up the host's name, which may fail, and listens at its address.
            settings |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
        return settings


class _Interrupts:
    """Handler of SIGINT while Spark runs; without it, Spark and py4j print pages of traceback."""

    def __init__(self) -> None:
        self.came = False
        self._before = signal.getsignal(signal.SIGINT)
        self._is_main = threading.current_thread() is threading.main_thread()

    def take(self) -> None:
        """Installs the handler, which records the signal and raises KeyboardInterrupt."""
        if self._is_main:
            signal.signal(signal.SIGINT, self._interrupted)

    def _interrupted(self, _number: int, _frame: object) -> None:
        self.came = True
        raise KeyboardInterrupt

    def give_back(self) -> None:
        """Restores the former handler; after an interrupt, kills the Java that this process
        started.
        """
        if self._is_main:
            signal.signal(signal.SIGINT, self._before)
        if self.came:
            for child in _spark_children():
                os.kill(child, signal.SIGKILL)


def _ends_by_interrupt(java: Any) -> bool:
    """True if Java was ended by ^C, which it receives, too; waits some seconds for its end."""
    try:
        return int(java.wait(_JAVA_ENDS_SECONDS)) in {130, -signal.SIGINT}
    except subprocess.TimeoutExpired:
        return False


def _spark_children() -> list[int]:
    """Returns the process ids of this process's children that are Spark's Java, or scripts that
    start it; none without ``/proc``. PySpark knows the id only once Java has started.
    """
    found = []
    for task in Path("/proc/self/task").glob("*/children"):
        for child in task.read_text().split():
            with suppress(OSError):
                command = Path(f"/proc/{child}/cmdline").read_bytes()
                if b"spark" in command.lower():
                    found.append(int(child))
    return found


def _require_master(master: str) -> None:
    """Checks that a standalone master accepts connections; Spark itself would take a minute to
    report that.

    Raises:
        Unreachable: none of the named masters does.
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
    """Writes a zip of kdir's own packages for the executors to import; returns its path."""
    import kdir.v1

    import resolver

    target = folder / "kdir-packages.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in (resolver, kdir.v1):
            root = Path(next(iter(package.__path__))).resolve()
            above = root.parents[package.__name__.count(".")]
            for file in sorted((*root.rglob("*.py"), *root.rglob("*.avsc"))):
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
