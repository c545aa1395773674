"""Reads the histories of change logs on a real broker: ``kdir audit``, and Spark over two clusters.

A server begins each log. The changes in it are written by a producer of this module, since a
million commits take an hour; their fields are those of the topics of a filled store. Each audit is
a process of its own, start-up included.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice
from operator import truediv
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bench import ground
from bench.bare_log import LogTopic
from bench.changelog import JAVA, Logged
from bench.rows import Row, at_least, at_most
from deploy.local.kafka import KafkaBroker
from directory.change_log.state_records import snapshot_records
from directory.change_log.topic_writer import LogRecord, TopicWriter
from directory.kafka.own_client_settings import OWN
from directory.namespace.snapshot import Snapshot
from directory.store.addresses import open_store
from directory.store.replica import LOADED_PREFIXES
from directory.wire.entry_codec import ProtoCodec
from resolver.changes.record import encode
from resolver.index.spark_session import SparkSettings
from resolver.index.spark_source import register
from resolver.path import Path as DirectoryPath

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run"]

_ROUNDS: Final = 3
_FEWER: Final = 10
"""The smaller history has so many times fewer changes."""
_PRINCIPALS: Final = 50
_CHANGES_OF_TRANSACTION: Final = 5_000
_SECONDS: Final = 60.0
_OTHER_MOUNT: Final = "/de/tracking"
_QUERY: Final = "SELECT principal, count(*) AS changes FROM changes GROUP BY 1"


def run() -> list[Row]:
    """Measures time and peak memory of audits, and the rate of Spark over both histories."""
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="kdir-bench-")))
        broker = cleanup.enter_context(KafkaBroker(jvm=JAVA))
        most = Logged(folder / "most", broker)
        fewer = Logged(folder / "fewer", broker, mount=_OTHER_MOUNT)
        began = time.monotonic()
        for logged, count in ((most, ground.TOPICS), (fewer, ground.TOPICS // _FEWER)):
            with logged.running():
                logged.await_begun()
            _write_history(logged, count)
            cleanup.enter_context(logged.running())
            logged.await_begun()
        _note(f"the changes of both clusters were written in {time.monotonic() - began:.0f} s")
        return [*_audits(most, fewer), _spark(most, fewer)]


# -- histories -------------------------------------------------------------------------------------


def _write_history(logged: Logged, count: int) -> None:
    """Writes so many changes, in transactions that each end with the log's newest checkpoint."""
    topic = logged.history
    *_, checkpoint = topic.read()
    assert checkpoint.value is not None  # noqa: S101 - checked by all who read
    end = LogRecord(topic.name, "", checkpoint.value)
    properties = {**OWN, "bootstrap.servers": topic.bootstrap}
    writer = TopicWriter(properties, f"bench-{topic.name}", _SECONDS)
    values = _changes(logged, count)
    while chunk := list(islice(values, _CHANGES_OF_TRANSACTION)):
        writer.write([*chunk, end])


def _changes(logged: Logged, count: int) -> Iterator[LogRecord]:
    address = ground.filled(ground.TOPICS, max(1, ground.TOPICS // 100))
    with closing(open_store(address, ground.CLUSTER)) as store:
        loading = store.load(LOADED_PREFIXES)
        snapshot = Snapshot.load(ProtoCodec(), "", loading.revision, loading.pages())
    mount, cluster_id = DirectoryPath.parse(logged.process.mount), logged.process.cluster_id
    now_ms = time.time_ns() // 1_000_000
    records = snapshot_records(snapshot, mount, cluster_id, 1, revision=1, now_ms=now_ms)
    for number, (_, change) in enumerate(islice(records, count)):
        made = replace(
            change,
            cause="change",
            principal=f"User:bench-{number % _PRINCIPALS}",
            request_id=f"{number:016x}",
            key=None,
            record=None,
        )
        yield LogRecord(logged.history.name, change.path, encode(made))


# -- kdir audit ------------------------------------------------------------------------------------


class _Audit(NamedTuple):
    seconds: float
    peak_bytes: int


def _audits(most: Logged, fewer: Logged) -> list[Row]:
    audits, bare, few = [], [], []
    for _ in range(_ROUNDS):
        audits.append(_audit(most))
        bare.append(_decode_all(most.history))
        few.append(_audit(fewer).peak_bytes)
    ratio = statistics.median(map(truediv, (one.seconds for one in audits), bare))
    seconds = statistics.median(bare)
    return [
        at_most(
            f"kdir audit, GROUP BY over {ground.SHOWN} changes, start-up included",
            ratio * seconds,
            "s",
            "bare consume and fastavro",
            seconds,
            2,
        ),
        at_most(
            f"its peak memory, {ground.SHOWN} changes",
            statistics.median(one.peak_bytes for one in audits) / 2**20,
            "MiB",
            f"{ground.TOPICS // _FEWER:,} changes",
            statistics.median(few) / 2**20,
            1.2,
        ),
    ]


def _audit(logged: Logged) -> _Audit:
    """Runs ``kdir audit`` with a query that counts the changes of each principal."""
    command = [sys.executable, str(Path(sys.executable).with_name("kdir")), "audit", _QUERY]
    environment = {**os.environ, "KDIR_AT": logged.process.address}
    began = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None  # noqa: S101 - as it was asked for
    answer = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or answer.count("User:bench-") != _PRINCIPALS:
        raise AssertionError(f"kdir audit: {process.returncode}: {answer}")
    return _Audit(seconds, usage.ru_maxrss * 1024)


def _decode_all(topic: LogTopic) -> float:
    began = time.monotonic()
    topic.decode_all()
    return time.monotonic() - began


# -- Spark -----------------------------------------------------------------------------------------


def _spark(most: Logged, fewer: Logged) -> Row:
    """Measures Spark's read of all changes of both clusters, against one loop that decodes both."""
    count = ground.TOPICS + ground.TOPICS // _FEWER
    rates, bare = [], []
    with SparkSettings("local[*]").open() as spark:
        register(spark)
        servers = f"{most.process.address},{fewer.process.address}"
        found = spark.read.format("kdir.changes").options(servers=servers).load()
        if (changes := found.where("scope = 'entry'").count()) < count:
            raise AssertionError(f"Spark has {changes:,} of {count:,} changes")
        for _ in range(_ROUNDS):
            rates.append(count / _read_to_nowhere(spark, servers))
            bare.append(count / (_decode_all(most.history) + _decode_all(fewer.history)))
    ratio, rate = statistics.median(map(truediv, rates, bare)), statistics.median(bare)
    return at_least(
        f"Spark over two clusters, {count:,} changes",
        ratio * rate,
        "rows/s",
        "one bare loop over both",
        rate,
        0.7,
    )


def _read_to_nowhere(spark: SparkSession, servers: str) -> float:
    began = time.monotonic()
    changes = spark.read.format("kdir.changes").options(servers=servers).load()
    changes.write.format("noop").mode("overwrite").save()
    return time.monotonic() - began


def _note(text: str) -> None:
    sys.stderr.write(f"audits: {text}\n")
