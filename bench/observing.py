"""How soon kdir shows what other tools change in Kafka, at 10,000 topics, and what that costs.

The broker is real, and its JVM runs as in production. The server runs with default settings, then
with so many configs read a second that it reads all within 5 s. It is asked for what must come ten
times a second, as by `kdir stat`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from bench import ground
from bench.load import channel_to
from bench.rows import Row, at_most, reported
from deploy.local.directory import DirectoryProcess
from deploy.local.kafka import KafkaBroker

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

__all__ = ["run"]

_MANY: Final = min(10_000, ground.TOPICS)
_FEW: Final = 20
_BATCH: Final = 250
_ROUNDS: Final = 6
_OFTEN: Final = 3_000
"""Configs read a second: 10,000 are read within 5 s."""
_CONFIGS: Final = 10
"""Topics all over Kafka whose config is changed; the last one shown counts."""
_GOAL_SECONDS: Final = 5
_FEW_GOAL_MS: Final = 5
_IDLE_SECONDS: Final = 40.0
_SETTLE_SECONDS: Final = 20.0
"""After the last topic was adopted: what a server does after its start is over then."""
_LOOK_SECONDS: Final = 0.1
_PATIENCE_SECONDS: Final = 600
_MOUNT: Final = "/la/tracking"
_JAVA: Final = ("-XX:TieredStopAtLevel=4", "-Xmx1g", "-Xms1g")


def run() -> list[Row]:
    """Measures a broker with few topics, then one with many."""
    with _broker(_FEW) as kafka:
        few = _measure(kafka, _FEW)
    with _broker(_MANY) as kafka:
        many = _measure(kafka, _MANY)
        often = _measure(kafka, _MANY, configs_per_second=_OFTEN)
    bare = _without_kafka()
    found = [
        at_most(f"{what}, {_MANY:,} topics", seconds, "s", "limit", _GOAL_SECONDS, 1)
        for what, seconds in many.seen.items()
    ]
    return [
        *found,
        reported(
            f"a config changed by another tool is shown, {_MANY:,} topics",
            many.config,
            "s",
            f"{_FEW} topics",
            few.config,
        ),
        at_most(
            f"the same, {_OFTEN:,} configs read a second",
            often.config,
            "s",
            "limit",
            _GOAL_SECONDS,
            1,
        ),
        at_most(
            f"an idle server that looks at {_FEW} topics, more than one without Kafka",
            few.server - bare,
            "ms/s",
            "limit",
            _FEW_GOAL_MS,
            1,
        ),
        reported(
            f"the same at {_MANY:,} topics",
            many.server - bare,
            "ms/s",
            "a server without Kafka",
            bare,
        ),
        reported(
            f"the same, {_OFTEN:,} configs read a second",
            often.server - bare,
            "ms/s",
            "a server without Kafka",
            bare,
        ),
    ]


def _without_kafka() -> float:
    with tempfile.TemporaryDirectory(prefix="kdir-bench-") as name:
        server = DirectoryProcess(Path(name), _MOUNT)
        server.start()
        try:
            time.sleep(_IDLE_SECONDS / 4)
            return _cpu_ms(server.process.pid, _IDLE_SECONDS)
        finally:
            server.kill()


class _Measured:
    """Figures of one broker: worst seconds until a change is shown, and CPU ms a second."""

    def __init__(self, seen: Mapping[str, float], config: float, server: float) -> None:
        self.seen = seen
        self.config = config
        self.server = server


@contextmanager
def _broker(count: int) -> Iterator[_Kafka]:
    """Starts a broker with so many topics."""
    with KafkaBroker(jvm=_JAVA) as broker:
        kafka = _Kafka(broker.bootstrap)
        kafka.create([_name(number) for number in range(count)])
        yield kafka


def _name(number: int) -> str:
    return f"t{number:05}"


def _measure(kafka: _Kafka, count: int, **settings: object) -> _Measured:
    names = [_name(number) for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="kdir-bench-") as name:
        table = {"bootstrap": [kafka.bootstrap], **settings}
        server = DirectoryProcess(Path(name) / "server", _MOUNT, {"kafka": table})
        server.start()
        try:
            with channel_to(server.address) as channel:
                shown = _Shown(channel)
                _seconds_until(lambda: shown.topic(names[-1]) is not None)
                time.sleep(_SETTLE_SECONDS)
                idle = _cpu_ms(server.process.pid, _IDLE_SECONDS)
                config = _config_change(kafka, shown, names)
                # With few topics, those that vanish would trip the vanish guard.
                seen = _changes(kafka, shown, names) if count == _MANY and not settings else {}
        finally:
            server.kill()
    return _Measured(seen, config, idle)


def _cpu_ms(pid: int, seconds: float) -> float:
    """Returns the processor time of a process in so many seconds, in milliseconds a second."""
    began, before = time.monotonic(), ground.cpu_seconds(pid)
    time.sleep(seconds)
    return 1e3 * (ground.cpu_seconds(pid) - before) / (time.monotonic() - began)


def _changes(kafka: _Kafka, shown: _Shown, names: Sequence[str]) -> dict[str, float]:
    """Returns the seconds until each kind of change is shown, the worst of some."""
    from kdir.v1 import entry_pb2

    new, gone, grown = [], [], []
    for number in range(_ROUNDS):
        name, other = f"new{number}", names[number]
        time.sleep(number * 0.37)  # not always at the same moment between two looks
        kafka.create([name])
        new.append(_seconds_until(lambda: shown.topic(name) is not None))  # noqa: B023
        kafka.grow(other)
        grown.append(_seconds_until(lambda: shown.topic(other).partitions == 2))  # noqa: B023
        kafka.delete(name)
        gone.append(
            _seconds_until(
                lambda: shown.topic(name).provision == entry_pb2.PROVISION_MISSING  # noqa: B023
            )
        )
    return {
        "a topic made by another tool is shown": max(new),
        "one with more partitions": max(grown),
        "one that was deleted": max(gone),
    }


def _config_change(kafka: _Kafka, shown: _Shown, names: Sequence[str]) -> float:
    chosen = names[:: max(1, len(names) // _CONFIGS)]
    value = str(time.time_ns() // 1_000_000)  # which no topic has yet
    kafka.alter(chosen, value)
    return _seconds_until(
        lambda: all(
            shown.topic(name).observed_config.get("retention.ms") == value for name in chosen
        )
    )


def _seconds_until(is_shown: Callable[[], bool]) -> float:
    began = time.monotonic()
    while not is_shown():
        if time.monotonic() - began > _PATIENCE_SECONDS:
            raise AssertionError("what was changed in Kafka is not shown")
        time.sleep(_LOOK_SECONDS)
    return time.monotonic() - began


class _Shown:
    """Topics as the server shows them."""

    def __init__(self, channel: grpc.Channel) -> None:
        from kdir.v1 import directory_pb2_grpc

        self._entries: Any = directory_pb2_grpc.DirectoryServiceStub(channel)

    def topic(self, name: str) -> Any:
        """Returns a topic; None where the server has none, or is not ready."""
        from kdir.v1 import directory_pb2

        request = directory_pb2.GetEntryRequest(path=f"{_MOUNT}/{name}")
        try:
            return self._entries.GetEntry(request, timeout=10).entry.topic
        except grpc.RpcError as error:
            if error.code() in {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE}:
                return None
            raise


class _Kafka:
    """Admin client of the broker, without kdir; a change is made when its call returns."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka.admin import AdminClient

        self.bootstrap = bootstrap
        self._client: AdminClient = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def create(self, names: Sequence[str]) -> None:
        from confluent_kafka.admin import NewTopic

        for start in range(0, len(names), _BATCH):
            asked = [NewTopic(name, 1, 1) for name in names[start : start + _BATCH]]
            _done(self._client.create_topics(asked, request_timeout=60))
        while not self._are_whole(names):
            time.sleep(_LOOK_SECONDS)

    def _are_whole(self, names: Sequence[str]) -> bool:
        if len(names) == 1:
            shown: Any = self._client.list_topics(names[0], timeout=30).topics
        else:
            shown = self._client.list_topics(timeout=30).topics
        return all(name in shown and shown[name].partitions for name in names)

    def delete(self, name: str) -> None:
        _done(self._client.delete_topics([name], request_timeout=60))

    def grow(self, name: str) -> None:
        from confluent_kafka.admin import NewPartitions

        _done(self._client.create_partitions([NewPartitions(name, 2)], request_timeout=60))

    def alter(self, names: Sequence[str], value: str) -> None:
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

        change = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
        asked = [
            ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[change])
            for name in names
        ]
        _done(self._client.incremental_alter_configs(asked, request_timeout=60))


def _done(futures: Mapping[Any, Any]) -> None:
    for future in futures.values():
        future.result()
