"""A changed config on its way to many topics of a real broker, against bare calls of AdminClient.

A broker applies what its controller acknowledged topic by topic, so the time counts until the
broker shows the value for all topics. Both sides change the same topics of one broker, in requests
of the same size and in alternating rounds; kdir's rate (``changes_per_second``) is lifted. The
broker's JVM is as in production: with all compilers, and with memory for so many partitions.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import grpc

from bench import ground
from bench.rows import Row, at_most
from deploy.local.directory import DirectoryProcess
from deploy.local.kafka import KafkaBroker

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

__all__ = ["run"]

_TOPICS: Final = min(10_000, ground.TOPICS)
_ORDINARY: Final = min(500, _TOPICS)
"""Topics of one directory."""
_MOUNT: Final = "/la/tracking"
_BATCH: Final = 250
"""Topics of one request, as many as in kdir's."""
_SAMPLE: Final = 50
"""A wait for all topics looks at one topic in so many first; when these are done, at all."""
_LOOKED_AT: Final = 20
_LOOK_SECONDS: Final = 0.1
_ROUNDS: Final = 3
_PATIENCE_SECONDS: Final = 900
_ORDINARY_GOAL_SECONDS: Final = 5
_JAVA: Final = ("-XX:TieredStopAtLevel=4", "-Xmx1g", "-Xms1g")
_NAMES: Final = [f"d{number // _ORDINARY:03}.t{number:05}" for number in range(_TOPICS)]


def run() -> list[Row]:
    """Measures plans, pushes to all topics, and one to a directory's topics at the default rate."""
    with (
        tempfile.TemporaryDirectory(prefix="kdir-bench-") as name,
        KafkaBroker(jvm=_JAVA) as broker,
    ):
        kafka = _Kafka(broker.bootstrap)
        kafka.create()
        folder = Path(name) / "server"
        with _Directory(folder, broker, changes_per_second=1e9) as directory:
            pushes, bare, reads, plans = [], [], [], []
            directory.arm(_MOUNT)
            for _ in range(_ROUNDS):
                pushes.append(_seconds(lambda: directory.push(_MOUNT, _values(), kafka)))
                bare.append(_seconds(lambda: kafka.change(_values())))
                reads.append(_seconds(kafka.read))
                plans.append(_seconds(lambda: directory.plan(_MOUNT)))
        with _Directory(folder, broker) as directory:
            ordinary = _seconds(
                lambda: directory.push(f"{_MOUNT}/d000", _values(), kafka, _NAMES[:_ORDINARY])
            )
    push, bare_push = statistics.median(pushes), statistics.median(bare)
    plan, read = statistics.median(plans), statistics.median(reads)
    return [
        at_most(
            f"a changed config until {_TOPICS:,} topics carry it",
            push,
            "s",
            "bare AdminClient",
            bare_push,
            2,
        ),
        at_most(
            f"the same until {_ORDINARY:,} topics of {_TOPICS:,} do, at the rate by default",
            ordinary,
            "s",
            "limit",
            _ORDINARY_GOAL_SECONDS,
            1,
        ),
        at_most(
            f"plan of arming {_TOPICS:,} topics, a topic",
            plan / _TOPICS * 1e3,
            "ms",
            "bare AdminClient reading them",
            read / _TOPICS * 1e3,
            2,
        ),
    ]


_LAST: Final = [604_800_000]


def _values() -> str:
    """Returns a retention in ms that no topic has had."""
    _LAST[0] += 1
    return str(_LAST[0])


def _seconds(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


class _Kafka:
    """The broker, asked without kdir."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka.admin import AdminClient

        self._client: AdminClient = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def create(self) -> None:
        """Creates the topics, and waits until the broker shows all with their partitions."""
        from confluent_kafka.admin import NewTopic

        for names in _batches(_NAMES):
            asked = [NewTopic(name, 1, 1) for name in names]
            _done(self._client.create_topics(asked, request_timeout=60))
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self._are_whole():
            if time.monotonic() > deadline:
                raise AssertionError(f"the broker does not show {_TOPICS} topics")
            time.sleep(_LOOK_SECONDS)

    def _are_whole(self) -> bool:
        shown: Any = self._client.list_topics(timeout=30).topics
        return all(name in shown and shown[name].partitions for name in _NAMES)

    def change(self, value: str) -> None:
        """Changes the retention of all topics, and waits until the broker shows it for all."""
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

        change = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
        for names in _batches(_NAMES):
            asked = [
                ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[change])
                for name in names
            ]
            _done(self._client.incremental_alter_configs(asked, request_timeout=60))
        self.await_all(_NAMES, value)

    def read(self) -> Mapping[str, str]:
        """Returns the retention of each topic; it reads the configs that a plan reads, too."""
        return self._retention(_NAMES)

    def await_all(self, names: Sequence[str], value: str) -> None:
        """Returns when the broker shows the value for each of these topics."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        left = list(dict.fromkeys([*names[::_SAMPLE], names[-1]]))
        while left:
            if time.monotonic() > deadline:
                raise AssertionError(f"{len(left)} of a sample do not carry {value}: {left[:3]}")
            found = self._retention(left[:_LOOKED_AT])
            left = [name for name in left if found.get(name) != value]
            if left:
                time.sleep(_LOOK_SECONDS)
        while late := [name for name, found in self._retention(names).items() if found != value]:
            if time.monotonic() > deadline:
                raise AssertionError(f"{len(late)} topics do not carry {value}: {late[:3]}")
            time.sleep(_LOOK_SECONDS)

    def _retention(self, names: Sequence[str]) -> dict[str, str]:
        from confluent_kafka.admin import ConfigResource

        found: dict[str, str] = {}
        for batch in _batches(names):
            asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in batch]
            answers = self._client.describe_configs(asked, request_timeout=60)
            for resource, future in answers.items():
                found[resource.name] = future.result()["retention.ms"].value
        return found


class _Directory:
    """kdir's server over that broker, asked over gRPC."""

    def __init__(self, folder: Path, broker: KafkaBroker, **kafka: float) -> None:
        settings = {
            "bootstrap": [broker.bootstrap],
            "ceiling": ["configs"],
            "split_on": ".",
            # No sweep: kdir is not to observe the bare side's changes.
            "sweep_interval_seconds": 3600,
            **kafka,
        }
        self._server = DirectoryProcess(folder, _MOUNT, {"kafka": settings})

    def __enter__(self) -> Self:
        from kdir.v1 import admin_pb2_grpc, directory_pb2_grpc, policies_pb2_grpc

        self._server.start()
        self._channel = grpc.insecure_channel(
            self._server.address, [("grpc.max_receive_message_length", -1)]
        )
        self._entries: Any = directory_pb2_grpc.DirectoryServiceStub(self._channel)
        self._policies: Any = policies_pb2_grpc.PolicyServiceStub(self._channel)
        self._admin: Any = admin_pb2_grpc.AdminServiceStub(self._channel)
        self._await_adopted()
        ground.await_quiet(self._server.process.pid)
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._server.kill()

    def _await_adopted(self) -> None:
        from kdir.v1 import directory_pb2

        directory, _, name = _NAMES[-1].partition(".")
        last = directory_pb2.GetEntryRequest(path=f"{_MOUNT}/{directory}/{name}")
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                self._entries.GetEntry(last, timeout=10)
            except grpc.RpcError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_SECONDS)
            else:
                return

    def set_retention(self, path: str, value: str) -> None:
        """Sets the retention of a directory, as ``kdir set`` does."""
        from google.protobuf.field_mask_pb2 import FieldMask
        from kdir.v1 import directory_pb2, entry_pb2, policies_pb2

        config = {"retention.ms": policies_pb2.ConfigValue(value=value)}
        policies = policies_pb2.Policies(topic_config=config)
        self._entries.UpdateEntry(
            directory_pb2.UpdateEntryRequest(
                path=path,
                kind=entry_pb2.ENTRY_KIND_DIRECTORY,
                entry=entry_pb2.Entry(policies=policies),
                update_mask=FieldMask(paths=["policies.topic_config.retention.ms"]),
            ),
            timeout=30,
        )

    def plan(self, path: str) -> str:
        """Plans an arming, as ``kdir arm`` does; returns the plan's hash."""
        from kdir.v1 import policies_pb2

        request = policies_pb2.PlanArmingRequest(path=path, aspect="configs")
        planned = self._policies.PlanArming(request, timeout=120)
        return str(planned.plan_hash)

    def arm(self, path: str) -> None:
        """Arms a path, as ``kdir arm --plan`` does, and waits for the end; no config is set yet."""
        from kdir.v1 import policies_pb2

        request = policies_pb2.ArmRequest(path=path, aspect="configs", plan_hash=self.plan(path))
        deadline = time.monotonic() + _PATIENCE_SECONDS
        # After a while a server answers that arming goes on; the same request waits further.
        while (answer := self._policies.Arm(request, timeout=60)).in_progress:
            if time.monotonic() > deadline:
                raise AssertionError(f"{path} is not armed")
        if answer.message:
            raise AssertionError(f"arming did not go as planned: {answer}")

    def push(
        self, path: str, value: str, kafka: _Kafka, names: Sequence[str] = tuple(_NAMES)
    ) -> None:
        """Sets a value, and waits until Kafka's topics carry it."""
        self.set_retention(path, value)
        kafka.await_all(names, value)


def _batches(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + _BATCH] for start in range(0, len(names), _BATCH)]


def _done(futures: Mapping[Any, Any]) -> None:
    for future in futures.values():
        future.result()
