"""Runs a Spark standalone cluster from pyspark's own jars, and fetches Delta Lake's jars.

It makes no session: the index does, with these jars and settings.
"""

import json
import shutil
import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Self
from urllib.error import HTTPError
from urllib.request import urlopen

from deploy.local import cache, maven
from deploy.local.cache import ServerUnavailable
from deploy.local.java import QUICK, java
from deploy.local.ports import LOOPBACK, free_port, listening
from deploy.local.process import LocalProcess, StartFailed

DELTA_VERSION = "4.2.0"
POM = Path(__file__).parent / "spark" / "pom.xml"
_START_SECONDS = 60


def fetch() -> Path:
    """Returns the folder of Delta Lake's jars, fetched if missing.

    Raises:
        ServerUnavailable: it cannot be had; the message says why.
    """
    return maven.jars(POM, f"delta-{DELTA_VERSION}")


def delta_jars() -> list[Path]:
    """Returns the jars that a session's `spark.jars` needs for Delta tables; fetches nothing.

    Raises:
        ServerUnavailable: they are not there yet, or Java is missing.
    """
    java()
    folder = cache.find(maven.folder(POM, f"delta-{DELTA_VERSION}"))
    if folder is None:
        raise ServerUnavailable("Delta's jars are not in the cache: run `make servers`.")
    return sorted(folder.glob("*.jar"))


def _spark_home() -> Path:
    """Returns where pyspark and its jars are; pyspark itself is not imported."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ServerUnavailable("pyspark is not installed: install kdir[index].")
    return Path(spec.origin).parent


class SparkCluster:
    """A standalone master and its workers, each a process of its own on loopback.

    A session that joins needs `master_url` and `session_settings`.

    Args:
        workers: how many, of one core each.
        memory: of each worker, in Spark's notation.
    """

    host = LOOPBACK

    def __init__(self, workers: int = 2, memory: str = "1g") -> None:
        self._home = _spark_home()
        self._environment = {
            "JAVA_HOME": str(Path(java()).resolve().parents[1]),
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_DAEMON_JAVA_OPTS": " ".join(QUICK),
            # No worker would find the master at another port than this.
            "SPARK_MASTER_OPTS": "-Dspark.port.maxRetries=0 -Dspark.master.rest.enabled=false",
        }
        self.directory = Path(tempfile.mkdtemp(prefix="kdir-spark-"))
        self._worker_count = workers
        self._memory = memory
        self._port = self._page = 0
        self.master: LocalProcess
        self.workers: list[LocalProcess] = []

    @property
    def session_settings(self) -> dict[str, str]:
        """Settings of a session that joins, without the master's URL. Its first job begins when all
        workers are registered, so that each gets a part.
        """
        return {
            "spark.driver.host": self.host,
            "spark.cores.max": str(self._worker_count),
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": " ".join(QUICK),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        }

    @property
    def master_url(self) -> str:
        """What Spark calls spark.master."""
        return f"spark://{LOOPBACK}:{self._port}"

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self._end)
            self._start_master()
            self.workers = [self._worker(number) for number in range(self._worker_count)]
            for worker in self.workers:
                worker.start()
            for worker in self.workers:
                worker.await_ready(self._all_registered, _START_SECONDS)
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        # No data is kept, so an orderly end would gain nothing.
        for process in (*self.workers, self.master):
            process.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start_master(self) -> None:
        for attempts_left in (2, 1, 0):
            self._port, self._page = free_port(), free_port()
            ports = ["--port", str(self._port), "--webui-port", str(self._page)]
            self.master = self._spark("master", "master.Master", "--host", LOOPBACK, *ports)
            self.master.start()
            try:
                self.master.await_ready(lambda: listening(self._page), _START_SECONDS)
            except StartFailed:
                self.master.kill()
                if not attempts_left or "BindException" not in self.master.tail(100):
                    raise
            else:
                return

    def _worker(self, number: int) -> LocalProcess:
        size = ["--cores", "1", "--memory", self._memory]
        place = [
            "--host",
            LOOPBACK,
            "--webui-port",
            "0",
            "--work-dir",
            str(self.directory / "work"),
        ]
        return self._spark(f"worker-{number}", "worker.Worker", *place, *size, self.master_url)

    def _spark(self, name: str, main: str, *arguments: str) -> LocalProcess:
        return LocalProcess(
            [self._home / "bin" / "spark-class", f"org.apache.spark.deploy.{main}", *arguments],
            self.directory / f"{name}.log",
            environment=self._environment,
        )

    def _all_registered(self) -> bool:
        try:
            with urlopen(f"http://{LOOPBACK}:{self._page}/json/", timeout=5) as page:
                state = json.load(page)
        except (HTTPError, ValueError):
            # The web server is up before all its pages are: until then it serves its main page,
            # which is no JSON.
            return False
        return bool(state["aliveworkers"] == self._worker_count)
