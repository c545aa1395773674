"""Runs real Apache Kafka brokers on loopback: one KRaft node each, data in a folder of its own, and
clusters of them.

It makes no topics: what is in a broker is up to the caller.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self

from deploy.local import cache, maven
from deploy.local.cache import ServerUnavailable
from deploy.local.java import QUICK, java
from deploy.local.java import build as java_build
from deploy.local.kafka_users import AUTHORIZER, BrokerUsers
from deploy.local.ports import LOOPBACK, free_port, listening
from deploy.local.process import LocalProcess, StartFailed

VERSION = "4.1.1"
POM = Path(__file__).parent / "kafka" / "pom.xml"
_START_SECONDS = 60
_CONTROLLER = "CONTROLLER"
_JVM = (*QUICK, "-Xshare:auto", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
_ARCHIVE = "classes.jsa"
_METADATA = "bootstrap.checkpoint"


def fetch() -> Path:
    """Returns the folder of Kafka's jars: KDIR_KAFKA_LIBS if set, else the cache's, fetched if
    missing, with an archive of the classes that a broker loads.

    Raises:
        ServerUnavailable: it cannot be had; the message says why.
    """
    own = _own_libs()
    if own is not None:
        return own
    libs = maven.jars(POM, f"kafka-{VERSION}")
    cache.provide(_archive_name(), _archive)
    return libs


def installed() -> Path:
    """Returns the folder that ``fetch`` returns; fetches nothing.

    Raises:
        ServerUnavailable: it is not there yet, or Java is missing.
    """
    java()
    libs = _own_libs() or cache.find(maven.folder(POM, f"kafka-{VERSION}"))
    if libs is None:
        raise ServerUnavailable("Kafka is not in the cache: run `make servers`.")
    return libs


def _archive_name() -> str:
    """Returns the cache's name for the archive of this Java, its options and these jars."""
    decides = f"{java_build()}\n{_JVM}\n{cache.cache_home()}"
    digest = hashlib.sha256(decides.encode()).hexdigest()[:8]
    return f"{maven.folder(POM, f'kafka-{VERSION}')}-classes-{digest}"


def _archive(target: Path) -> None:
    """Archives the classes that a broker loads (Java's class data sharing), which halves the time
    of its start. Where Java writes no archive, brokers start without it.
    """
    broker = KafkaBroker(jvm=[f"-XX:ArchiveClassesAtExit={target / _ARCHIVE}"])
    with suppress(StartFailed), broker:
        broker.stop(_START_SECONDS)  # it writes the archive as it ends


def _archived() -> tuple[str, ...]:
    """Returns Java's option for the archive; empty where there is none."""
    folder = None if _own_libs() else cache.find(_archive_name())
    if folder is None or not (folder / _ARCHIVE).exists():
        return ()
    return (f"-XX:SharedArchiveFile={folder / _ARCHIVE}",)


def _own_libs() -> Path | None:
    named = os.environ.get("KDIR_KAFKA_LIBS")
    if not named:
        return None
    if not list(Path(named).glob("kafka_2.13-*.jar")):
        raise ServerUnavailable(
            f"KDIR_KAFKA_LIBS is {named}, but there is no kafka_2.13 jar in it."
        )
    return Path(named)


class KafkaBroker:
    """One broker that is also its own controller.

    Args:
        directory: where settings, log and data are; with one that a broker used before, the new
            broker has its port, cluster id and data. None: a new one, removed with the context.
        port: what clients connect to; None: a free one.
        cluster_id: Kafka's own id of the cluster; None: a new one.
        properties: server.properties on top of the defaults (see `AUTHORIZER`).
        jvm: options of its Java, after those that make it small and quick to start.
        users: who may connect, by SASL or TLS, with settings of Kafka's authorizer; None: anybody
            may, without TLS and as User:ANONYMOUS.
        detached: whether the broker outlives this process (see `process.stop_recorded`).
    """

    # Enables Kafka's own ACLs; clients without users are User:ANONYMOUS, a super user here.
    AUTHORIZER: Mapping[str, str] = {
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS",
    }

    host = LOOPBACK

    def __init__(
        self,
        directory: Path | None = None,
        *,
        port: int | None = None,
        cluster_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        jvm: Sequence[str] = (),
        users: BrokerUsers | None = None,
        detached: bool = False,
    ) -> None:
        self._libs = installed()
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="kdir-kafka-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self._settings = self.directory / "server.properties"
        known = _read_properties(self._settings)
        recorded = known.get("kdir.port")
        self._given_port = port or (int(recorded) if recorded else None)
        self.port = self._given_port or free_port()
        self.cluster_id = cluster_id or known.get("kdir.cluster.id") or _new_id()
        self._properties = dict(properties or {})
        self._users = users
        self._process = LocalProcess(
            self._java("-Xmx384m", "-Xms128m", *jvm, "kafka.Kafka", str(self._settings)),
            self.directory / "broker.log",
            detached=detached,
        )

    @property
    def bootstrap(self) -> str:
        """What a Kafka client calls bootstrap.servers."""
        return f"{self.host}:{self.port}"

    def client(self, user: str = "") -> dict[str, str]:
        """Returns librdkafka's properties of a client, one of ``users``; by default the first super
        user.

        Raises:
            KeyError: there is no such user.
        """
        settings = {"bootstrap.servers": self.bootstrap}
        if self._users is not None:
            settings |= self._users.client(user or self._users.admin)
        return settings

    @property
    def log(self) -> Path:
        """What the broker wrote; warnings and errors only."""
        return self._process.log

    def tail(self) -> str:
        """Returns the last 100 lines of the log."""
        return self._process.tail(100)

    @property
    def record(self) -> Path:
        """For a detached broker: what `process.stop_recorded` takes."""
        return self._process.record

    @property
    def pid(self) -> int:
        """The broker's process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there, paused or not."""
        return self._process.running

    def start(self) -> None:
        """Starts the broker on its data and returns once it answers a metadata request.

        Raises:
            StartFailed: with the last lines of its log.
        """
        for attempts_left in (2, 1, 0):
            self._prepare()
            self._process.start()
            try:
                self._process.await_ready(self._answers, _START_SECONDS)
            except StartFailed:
                taken = "Address already in use" in self.tail()
                self._process.kill()
                if not (taken and attempts_left and self._given_port is None):
                    raise
                self.port = free_port()
            else:
                # From now on clients know the port.
                self._given_port = self.port
                return

    def stop(self, grace_seconds: float = 20) -> None:
        """Shuts it down in order; ends it after `grace_seconds`."""
        self._process.stop(grace_seconds)

    def kill(self) -> None:
        """Sends SIGKILL: the crash of a broker; `start` recovers from its data."""
        self._process.kill()

    def pause(self) -> None:
        """Sends SIGSTOP: connections stay open, nothing answers."""
        self._process.pause()

    def resume(self) -> None:
        """Sends SIGCONT after `pause`."""
        self._process.resume()

    def restart(self) -> None:
        """Stops, if it runs, and starts again on the same port and data."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._temporary:
            self.kill()  # its data goes too: no reason to wait for an orderly end
        else:
            self.stop()
        self._remove()

    def _remove(self) -> None:
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _java(self, *arguments: str) -> list[str]:
        return [java(), *_JVM, *_archived(), "-cp", f"{self._libs}/*", *arguments]

    def _prepare(self) -> None:
        """Writes the settings; formats the data folder the first time."""
        data = self.directory / "data"
        settings = _DEFAULTS | {"log.dirs": str(data)}
        protocol = "PLAINTEXT"
        if self._users is not None:
            protocol = self._users.protocol
            settings |= self._users.properties([protocol, _CONTROLLER])
        settings |= _listeners(protocol, self.port, free_port()) | self._properties
        # Kafka ignores these: a later KafkaBroker on this folder reads them.
        settings |= {"kdir.port": str(self.port), "kdir.cluster.id": self.cluster_id}
        self._settings.touch(mode=0o600)  # it may hold passwords
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        if not (data / "meta.properties").exists():
            self._format(data)

    def _format(self, data: Path) -> None:
        """Formats the data folder: by Kafka's tool, which starts a JVM, or with what the tool wrote
        for an earlier broker with the same jars and properties.
        """
        own = {key: one for key, one in self._properties.items() if key not in _OF_ONE_NODE}
        alike = (self._libs, *sorted(own.items()))
        if alike in _formatted:
            data.mkdir()
            node = (_DEFAULTS | self._properties)["node.id"]
            (data / _METADATA).write_bytes(_formatted[alike])
            ids = {"version": "1", "node.id": node, "cluster.id": self.cluster_id}
            ids["directory.id"] = _new_id()
            text = "".join(f"{key}={value}\n" for key, value in ids.items())
            (data / "meta.properties").write_text(text)
            return
        storage = ["kafka.tools.StorageTool", "format", "--cluster-id", self.cluster_id]
        done = subprocess.run(
            self._java("-Xmx128m", *storage, "--config", str(self._settings)),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise StartFailed(f"Kafka could not format {data}:\n{done.stdout}{done.stderr}")
        _formatted[alike] = (data / _METADATA).read_bytes()

    def _answers(self) -> bool:
        if not listening(self.port):
            return False
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = AdminClient({**self.client(), "log_level": 0})
        try:
            metadata = client.list_topics(timeout=2)
        except KafkaException:
            return False
        # Another process may have been quicker to start a broker at this port.
        return str(metadata.cluster_id) == self.cluster_id and bool(metadata.brokers)


class KafkaCluster:
    """Brokers that are also the controllers of one cluster, on new data, removed when the context
    ends. Topics and transactions go on while one broker is down.
    """

    def __init__(self, count: int = 3, properties: Mapping[str, str] | None = None) -> None:
        self._count = count
        self._properties = properties or {}
        self.cluster_id = _new_id()
        self.brokers: list[KafkaBroker] = []

    @property
    def bootstrap(self) -> str:
        """Every broker's address, as a Kafka client takes it."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def broker(self, node: int) -> KafkaBroker:
        """Returns the broker with this node id; the first has 1."""
        return self.brokers[node - 1]

    def __enter__(self) -> Self:
        for attempts_left in (2, 1, 0):
            self.brokers = self._made()
            try:
                # All at once: a broker answers only when a majority is up.
                with ThreadPoolExecutor(self._count) as pool:
                    list(pool.map(KafkaBroker.start, self.brokers))
            except BaseException as error:
                taken = any("Address already in use" in one.tail() for one in self.brokers)
                self.kill()
                if not (isinstance(error, StartFailed) and taken and attempts_left):
                    raise
            else:
                break
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Ends every broker at once, and removes their data."""
        for broker in self.brokers:
            broker.__exit__(None, None, None)

    def _made(self) -> list[KafkaBroker]:
        nodes = {node: (free_port(), free_port()) for node in range(1, self._count + 1)}
        voters = ",".join(f"{node}@{LOOPBACK}:{own}" for node, (_, own) in nodes.items())
        copies, most = str(self._count), str(self._count - 1)
        shared = {
            "controller.quorum.voters": voters,
            "default.replication.factor": copies,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": most,
            **self._properties,
        }
        return [
            KafkaBroker(
                port=port,
                cluster_id=self.cluster_id,
                properties={
                    **shared,
                    "node.id": str(node),
                    "listeners": _listeners("PLAINTEXT", port, own)["listeners"],
                },
            )
            for node, (port, own) in nodes.items()
        ]


_OF_ONE_NODE = ("node.id", "listeners", "controller.quorum.voters")
"""Settings that do not change the metadata that formatting writes."""
_formatted: dict[tuple[object, ...], bytes] = {}
"""The metadata that formatting wrote, by jars and properties; it holds no id of the broker."""

# One node and small, quick internals; a topic exists only when someone creates it.
_DEFAULTS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "auto.create.topics.enable": "false",
    # A killed broker may register again only when its last session has ended (9 s by default).
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "default.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "4194304",
    # An idle broker writes to its metadata log twice a second by default, half of what it costs.
    "metadata.max.idle.interval.ms": "10000",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
}


def _listeners(protocol: str, port: int, controller_port: int) -> dict[str, str]:
    """Returns the settings of the clients' and the controller's listener, of one protocol."""
    controller = f"{LOOPBACK}:{controller_port}"
    return {
        "listeners": f"{protocol}://{LOOPBACK}:{port},{_CONTROLLER}://{controller}",
        "advertised.listeners": f"{protocol}://{LOOPBACK}:{port}",
        "controller.listener.names": _CONTROLLER,
        "controller.quorum.voters": f"1@{controller}",
        "listener.security.protocol.map": f"{protocol}:{protocol},{_CONTROLLER}:{protocol}",
        "security.inter.broker.protocol": protocol,
    }


def _read_properties(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    return dict(re.findall(r"^([^=\n]+)=(.*)$", path.read_text(), re.MULTILINE))


def _new_id() -> str:
    """Returns Kafka's form of a random id: 16 bytes, base64 for URLs, no padding (KIP-78).

    Never with a dash in front, as Kafka's own: its storage tool would take that for an option.
    """
    while (made := urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return made
