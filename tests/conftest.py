"""Fixtures that every kind of test may want: real servers, and what to do when there are none."""

import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from deploy.local import etcd, kafka, spark
from deploy.local.cache import ServerUnavailable
from deploy.local.etcd import EtcdCluster
from deploy.local.java import QUICK
from deploy.local.kafka import KafkaBroker, KafkaCluster
from deploy.local.spark import SparkCluster
from tests.conformance.reporting import (  # noqa: F401 - hooks of pytest's
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)
from tests.support.federation import Federation
from tests.support.run_servers import run_server

REQUIRE = "KDIR_REQUIRE_SERVERS"
OWN_BROKER = "KDIR_TEST_KAFKA"
OWN_ETCD = "KDIR_TEST_ETCD"

SPARK = {
    "tests/index/test_build.py": "Spark session",
    "tests/index/test_changes.py": "Spark session",
    "tests/index/test_real_servers.py": "Spark session",
    "tests/index/test_spark_source.py": "Spark session",
    "tests/index/test_standalone.py": "Spark cluster",
    "tests/integration/test_local_spark.py": "Spark cluster",
}
"""What files use that takes a dozen seconds of a processor to start: one Java of a process, and the
processes of a cluster.
"""

# A machine may be busy with something else: no example is too slow, and no input takes too long to
# make. What the environment chose before (in CI: the same examples each time) stays.
settings.register_profile("kdir", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kdir")

# Every Spark of a test, also of a command that it runs, starts as the brokers do.
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(QUICK))

# Nor does the environment decide what a server's start costs: with bytecode, as everybody has it.
# Without, each of the many hundred processes of a run compiles every module anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Nor whether a Ctrl-C reaches the commands of a test: a shell starts what runs behind it without.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

Killable = TypeVar("Killable", KafkaBroker, KafkaCluster, EtcdCluster)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``pytest --soak``: tests that run for seconds in ``make test`` run for minutes."""
    parser.addoption("--soak", action="store_true", help="run long what is usually cut short")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts files with slow tests first: begun last, one of them leaves the other workers idle.
    Those that take minutes are left out without ``--soak``.
    """
    if not config.getoption("--soak"):
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Gives files to workers as ``--dist loadfile`` does, but those that share a Spark to one."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class BySpark(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return SPARK.get(file, file)

    return BySpark(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture
def soak_seconds(request: pytest.FixtureRequest) -> float:
    """Returns how long a test that could go on for ever does; ``--soak`` makes it ten minutes."""
    return 600.0 if request.config.getoption("--soak") else 5.0


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    """Yields a stack of what is closed after the test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    """Yields a federation of real servers; none has started yet."""
    with Federation(tmp_path / "servers") as servers:
        yield servers


@dataclass(frozen=True, slots=True)
class SharedBroker:
    """A broker that many tests use at once: make topics of your own, look at no others, and never
    stop it.
    """

    bootstrap: str
    cluster_id: str


@dataclass(frozen=True, slots=True)
class SharedEtcd:
    """An etcd of three members that many tests use at once: each under a prefix of its own. None
    stops, restores, compacts or fills it.
    """

    endpoints: tuple[str, ...]

    def address(self) -> str:
        """Returns the address of a store that nobody else uses."""
        return f"etcd://{','.join(self.endpoints)}/test-{secrets.token_hex(6)}"


def missing(reason: object) -> NoReturn:
    """Skips the test for want of a server, or fail it where servers are required.

    Raises:
        pytest.skip.Exception: servers are optional here.
        pytest.fail.Exception: KDIR_REQUIRE_SERVERS=1.
    """
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{reason} ({REQUIRE}=1)", pytrace=False)
    pytest.skip(str(reason))


def _made(
    kind: Callable[..., Killable], installed: Callable[[], object]
) -> Iterator[Callable[..., Killable]]:
    """Makes servers of a kind, if it is installed, and ends all of them."""
    try:
        installed()
    except ServerUnavailable as reason:
        missing(reason)
    with ExitStack() as servers:

        def make(**options: Any) -> Killable:
            server = kind(**options)
            servers.callback(server.kill)
            return server

        yield make


@pytest.fixture(scope="session")
def kafka_brokers() -> Iterator[Callable[..., KafkaBroker]]:
    """Makes brokers that a test may kill, pause and restart: `with kafka_brokers() as broker`.

    The arguments are those of `KafkaBroker`. A broker that is still there at the end is ended.
    """
    yield from _made(KafkaBroker, kafka.installed)


@pytest.fixture(scope="session")
def kafka_clusters() -> Iterator[Callable[..., KafkaCluster]]:
    """Makes clusters of three brokers: `with kafka_clusters() as cluster`.

    The arguments are those of `KafkaCluster`. What is still there at the end is ended.
    """
    yield from _made(KafkaCluster, kafka.installed)


@pytest.fixture(scope="session")
def run_address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Callable[[], AbstractContextManager[str]]], str]:
    """Returns what gives the address of a server of the whole run (see `run_server`)."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent  # that of all workers
    # Not with the session's fixtures: these end within the time of the last test.
    servers = ExitStack()
    request.config.add_cleanup(servers.close)
    return lambda name, start: run_server(folder, name, start, servers)


@pytest.fixture(scope="session")
def kafka_broker(request: pytest.FixtureRequest) -> SharedBroker:
    """Returns one broker for all tests of a run, started when the first asks; KDIR_TEST_KAFKA
    names another.
    """
    named = os.environ.get(OWN_BROKER)
    if named:
        from confluent_kafka.admin import AdminClient

        metadata = AdminClient({"bootstrap.servers": named, "log_level": 0}).list_topics(timeout=10)
        return SharedBroker(named, str(metadata.cluster_id))
    request.getfixturevalue("kafka_brokers")  # there are some

    @contextmanager
    def start() -> Iterator[str]:
        with KafkaBroker() as broker:
            yield f"{broker.bootstrap}/{broker.cluster_id}"

    return SharedBroker(*request.getfixturevalue("run_address")("kafka", start).split("/"))


@pytest.fixture(scope="module")
def own_broker(kafka_brokers: Callable[..., KafkaBroker]) -> Iterator[SharedBroker]:
    """Yields a broker of a file's own, for tests that look at all there is in it."""
    with kafka_brokers() as broker:
        yield SharedBroker(broker.bootstrap, broker.cluster_id)


@pytest.fixture(scope="session")
def etcd_clusters() -> Iterator[Callable[..., EtcdCluster]]:
    """Makes etcd clusters that a test may kill, pause and restore: `with etcd_clusters() as etcd`.

    The arguments are those of `EtcdCluster`. What is still there at the end is ended.
    """
    yield from _made(EtcdCluster, etcd.installed)


@pytest.fixture(scope="session")
def etcd_cluster(request: pytest.FixtureRequest) -> SharedEtcd:
    """Returns three members for all tests of a run, started when the first asks; KDIR_TEST_ETCD
    names others, as host:port,host:port,….
    """
    named = os.environ.get(OWN_ETCD)
    if not named:
        request.getfixturevalue("etcd_clusters")  # there are some

        @contextmanager
        def start() -> Iterator[str]:
            with EtcdCluster() as cluster:
                yield ",".join(cluster.endpoints)

        named = request.getfixturevalue("run_address")("etcd", start)
    return SharedEtcd(tuple(named.split(",")))


@pytest.fixture(scope="module")
def own_etcd(etcd_clusters: Callable[..., EtcdCluster]) -> Iterator[SharedEtcd]:
    """Yields three members of a file's own, for tests that compact."""
    with etcd_clusters() as cluster:
        yield SharedEtcd(tuple(cluster.endpoints))


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[SparkCluster]:
    """Yields a master and two workers, each a process of its own."""
    try:
        made = SparkCluster(workers=2)
    except ServerUnavailable as reason:
        missing(reason)
    with made:
        yield made


@pytest.fixture(scope="session")
def delta_jars() -> list[Path]:
    """Returns the jars that make Spark read and write Delta tables."""
    try:
        return spark.delta_jars()
    except ServerUnavailable as reason:
        missing(reason)


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Yields a new folder with a short path: one of a Unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="kdir-") as name:
        yield Path(name)
