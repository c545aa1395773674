"""The change log on a real broker: its cost for writers, the rate and the delay of publishing, and
the memory of a change that waits.

The peer of publishing is bare: fastavro and Kafka's client in a loop, with the bytes that the log's
topics held, in transactions of the same size. Both sides alternate, medians count, and the broker's
JVM runs as in production. The server's processor time is printed on stderr.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from operator import truediv
from pathlib import Path
from typing import Any, Final

import grpc
from kdir.v1 import directory_pb2, watch_pb2

from bench import ground
from bench.bare_log import BareProducer, BareRecord, LogTopic, Stored, Tail, decoded
from bench.load import channel_to, method_of
from bench.rows import Row, at_least, at_most
from bench.writes import CREATE, Mkdirs, Side
from deploy.local.directory import DirectoryProcess
from deploy.local.kafka import KafkaBroker
from directory.namespace.command import EntryChange
from directory.namespace.entry import ROOT_ID, Directory, Kind
from directory.namespace.keys import entry_key, event_key
from directory.store.addresses import open_store
from directory.store.base import Put, Transaction
from directory.store.event_rows import new_change_id, pack
from directory.wire.entry_codec import ProtoCodec
from resolver.path import Path as DirectoryPath

__all__ = ["JAVA", "Logged", "reading_tail", "run"]

_THREADS: Final = 16
_WRITE_ROUNDS: Final = 3
_ROUNDS_OF_RUN: Final = 4
"""Rounds of two seconds that one side makes in a row."""
_BACKLOG: Final = min(100_000, ground.TOPICS)
_BACKLOG_ROUNDS: Final = 3
_COMMITTERS: Final = 32
_READABLE_ROUNDS: Final = 5
_READABLE_CHANGES: Final = 250
_READABLE_PER_SECOND: Final = 50
_ROWS_AT_ONCE: Final = 5_000
_MEMORY_LIMIT: Final = 200
_GET_LOG: Final = "/kdir.v1.WatchService/GetChangeLog"
_FINALIZE: Final = "/kdir.v1.AdminService/FinalizeFeatures"
_PATIENCE_SECONDS: Final = 900.0
JAVA: Final = ("-XX:TieredStopAtLevel=4", "-Xmx1g", "-Xms1g")


def run() -> list[Row]:
    """Measures writers, a backlog, the delay of a change, and the memory of changes that wait."""
    with tempfile.TemporaryDirectory(prefix="kdir-bench-") as name:
        folder = Path(name)
        with KafkaBroker(jvm=JAVA) as broker:
            rows = [
                *_writing(folder, broker),
                *_backlog(folder, broker),
                *_readable(folder, broker),
            ]
        return [*rows, *_waiting(folder)]


class Logged:
    """A server that keeps a change log."""

    def __init__(
        self, folder: Path, broker: KafkaBroker, store: str = "", mount: str = ground.MOUNT
    ) -> None:
        settings: dict[str, Any] = {
            "cluster": mount.strip("/").replace("/", "-"),
            "change_log": {"bootstrap": [broker.bootstrap]},
        }
        if store:
            settings["store"] = store
        self.process: Final = DirectoryProcess(folder, mount, settings)
        self._broker: Final = broker

    @property
    def store(self) -> str:
        """The address of its store."""
        return str(self.process.settings["store"])

    @property
    def pid(self) -> int:
        return self.process.process.pid

    @property
    def state(self) -> LogTopic:
        return self._topic("__change_events")

    @property
    def history(self) -> LogTopic:
        return self._topic("__change_history")

    def _topic(self, name: str) -> LogTopic:
        return LogTopic(self._broker.bootstrap, f"{name}.{self.process.cluster_id}")

    def status(self) -> watch_pb2.GetChangeLogResponse:
        """Returns what ``kdir log`` shows."""
        with channel_to(self.process.address) as channel:
            answer = method_of(channel, _GET_LOG)(b"", timeout=120)
        return watch_pb2.GetChangeLogResponse.FromString(answer)

    def begin(self) -> None:
        """Begins the log of a store that was filled directly: as in a store of an older release, no
        feature level is finalized yet.
        """
        self.await_loaded()
        with channel_to(self.process.address) as channel:
            method_of(channel, _FINALIZE)(b"", timeout=60)
        self.await_begun()

    def await_loaded(self) -> None:
        """Returns once the server answers."""
        self._await(lambda _: True)

    def await_begun(self) -> None:
        """Returns once the server has begun its change log."""
        self._await(lambda found: found.state.revision > 0)

    def _await(self, is_there: Callable[[watch_pb2.GetChangeLogResponse], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with suppress(grpc.RpcError):  # it is not loaded yet
                found = self.status()
                if is_there(found):
                    return
            if time.monotonic() > deadline:
                raise AssertionError("the server does not answer, or has begun no change log")
            time.sleep(1)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the server during the block; ends it with SIGTERM."""
        self.process.start()
        try:
            yield
        finally:
            self.process.stop()


@contextmanager
def reading_tail(topic: LogTopic) -> Iterator[Tail]:
    """Yields a tail of a topic, which is closed after the block."""
    tail = Tail(topic)
    try:
        yield tail
    finally:
        tail.close()


# -- writers ---------------------------------------------------------------------------------------


def _writing(folder: Path, broker: KafkaBroker) -> list[Row]:
    """Measures writers of a server with a change log against those of one without, and how long
    after their end the last change is published.
    """
    logged = Logged(folder / "on", broker)
    plain = DirectoryProcess(folder / "off", ground.MOUNT, {"cluster": ground.CLUSTER})
    mkdirs, late = Mkdirs(ground.MOUNT, "dir"), []
    with ExitStack() as cleanup:
        cleanup.enter_context(logged.running())
        cleanup.enter_context(plain)
        logged.await_begun()
        create = method_of(cleanup.enter_context(channel_to(logged.process.address)), CREATE)
        create_off = method_of(cleanup.enter_context(channel_to(plain.address)), CREATE)
        on, off = Side(create, logged.pid), Side(create_off, plain.process.pid)
        published = 0.0
        for number in range(_WRITE_ROUNDS + 1):
            for _ in range(_ROUNDS_OF_RUN):
                off.measure(mkdirs.next, _THREADS)
            with reading_tail(logged.history) as tail:
                began, before = time.monotonic(), ground.cpu_seconds(logged.pid)
                for _ in range(_ROUNDS_OF_RUN):
                    on.measure(mkdirs.next, _THREADS)
                ended = time.monotonic()
                tail.begin()
                last = directory_pb2.CreateEntryResponse.FromString(create(mkdirs.next()))
                readable = tail.checkpoint_at(last.authority.revision)
                published = ground.cpu_seconds(logged.pid) - before
                late.append((readable - ended) / (ended - began))
                published /= sum(on.rates[-_ROUNDS_OF_RUN:]) / _ROUNDS_OF_RUN * (ended - began)
            if not number:  # the first round is a warm-up
                on.clear()
                off.clear()
                late.clear()
    rate = statistics.median(off.rates)
    ratio = statistics.median(map(truediv, on.rates, off.rates))
    _note(f"a write beside a log takes {on.spent_ms:.2f} ms of processor, {off.spent_ms:.2f} off")
    _note(f"until it is published {1e3 * published:.2f} ms")
    return [
        at_least(f"changes of {_THREADS} writers, log on", ratio * rate, "/s", "off", rate, 0.9),
        at_most(
            "what waits at their end is published within, of the run's length",
            statistics.median(late),
            "runs",
            "limit",
            0.1,
            1,
        ),
    ]


# -- a backlog -------------------------------------------------------------------------------------


def _backlog(folder: Path, broker: KafkaBroker) -> list[Row]:
    """Measures how fast a server publishes changes that were committed while it was stopped."""
    logged, changes = Logged(folder / "backlog", broker), _Changes()
    bare = BareProducer(broker.bootstrap, "bare-backlog")
    with logged.running():
        logged.await_begun()
    rates, bare_rates, spent = [], [], []
    for _ in range(_BACKLOG_ROUNDS):
        changes.commit(logged.store, _BACKLOG)
        state, history = logged.state, logged.history
        begin, begin_of_state = history.end(), state.end()
        with logged.running(), reading_tail(history) as tail:
            before = ground.cpu_seconds(logged.pid)
            tail.begin()
            tail.seen_at(changes.last_path.encode())
            spent.append((ground.cpu_seconds(logged.pid) - before) / _BACKLOG)
        published = list(history.read(begin))
        events = sum(bool(one.key) for one in published)
        if events != _BACKLOG:
            raise AssertionError(f"{events} of {_BACKLOG} changes were published")
        seconds = (published[-1].time_ms - published[0].time_ms) / 1e3
        rates.append(events / seconds)
        transactions = _transactions(bare, published, list(state.read(begin_of_state)))
        began = time.perf_counter()
        bare.write(transactions)
        bare_rates.append(events / (time.perf_counter() - began))
        _note(
            f"backlog: {events} events in {len(transactions)} transactions, "
            f"{rates[-1]:,.0f}/s, {1e6 * spent[-1]:.0f} µs of processor an event; "
            f"bare {bare_rates[-1]:,.0f}/s"
        )
    ratio, rate = statistics.median(map(truediv, rates, bare_rates)), statistics.median(bare_rates)
    return [
        at_least(
            f"events published of a backlog of {_BACKLOG:,}",
            ratio * rate,
            "/s",
            "bare fastavro and transactions of the same size",
            rate,
            0.3,
        ),
    ]


class _Changes:
    """Makes directories in a store that no server has open, with the rows of a server's writer."""

    def __init__(self) -> None:
        self._numbers: Final = itertools.count(1)
        self._codec: Final = ProtoCodec()
        self.last_path = ""

    def commit(
        self, address: str, count: int, *, rows_at_once: int = 1, is_made: bool = True
    ) -> None:
        """Makes ``count`` directories, ``rows_at_once`` in a transaction. Unless ``is_made``, makes
        only their change events, which wait to be published: the tree stays as it is.
        """
        store = open_store(address, ground.CLUSTER)
        try:
            with ThreadPoolExecutor(_COMMITTERS) as pool:
                while made := list(itertools.islice(self._directories(count), _ROWS_AT_ONCE)):
                    count -= len(made)
                    several = (
                        Transaction(
                            (),
                            tuple(
                                itertools.chain.from_iterable(
                                    chunk if is_made else (one[1:] for one in chunk)
                                )
                            ),
                        )
                        for chunk in _chunks(made, rows_at_once)
                    )
                    for _ in pool.map(lambda one: store.commit(one, 60), several):
                        pass
        finally:
            store.close()

    def _directories(self, count: int) -> Iterator[tuple[Put, Put]]:
        for number in itertools.islice(self._numbers, count):
            name, now_ms = f"late-{number:07}", time.time_ns() // 1_000_000
            entry = Directory(entry_id=ground.FIRST_DIRECTORY + number, changed_at_ms=now_ms)
            path = DirectoryPath.parse(f"{ground.MOUNT}/{name}")
            change = EntryChange(
                kind=Kind.DIRECTORY,
                entry_id=entry.entry_id,
                parent_id=ROOT_ID,
                path=path,
                after=entry,
            )
            self.last_path = str(path)
            yield (
                Put(entry_key(ROOT_ID, Kind.DIRECTORY, name), self._codec.encode(entry)),
                Put(
                    event_key(new_change_id(now_ms, 1)),
                    pack([change], time_ms=now_ms, principal="User:bench", request_id=name),
                ),
            )


def _chunks(rows: Sequence[tuple[Put, Put]], size: int) -> Iterator[Sequence[tuple[Put, Put]]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _transactions(
    bare: BareProducer, history: Sequence[Stored], state: Sequence[Stored]
) -> list[list[BareRecord]]:
    """Returns the published records, decoded and for the bare topics, by transaction: each ends
    with a checkpoint in both topics.
    """
    parts = [
        _by_checkpoint(
            bare.state.name, state, lambda one: bool(one.key and one.key.endswith(b"/c"))
        ),
        _by_checkpoint(bare.history.name, history, lambda one: not one.key),
    ]
    return [first + second for first, second in zip(*parts, strict=True)]


def _by_checkpoint(
    topic: str, records: Sequence[Stored], is_checkpoint: Callable[[Stored], bool]
) -> list[list[BareRecord]]:
    parts: list[list[BareRecord]] = [[]]
    for one in records:
        parts[-1].append((topic, one.key, decoded(one.value)))
        if is_checkpoint(one):
            parts.append([])
    return parts[:-1]


# -- the delay of a change -------------------------------------------------------------------------


def _readable(folder: Path, broker: KafkaBroker) -> list[Row]:
    """Measures, at an even rate, how long after its answer a write is readable in the history; for
    the bare peer, how long after the beginning of a transaction with the same bytes.
    """
    logged, mkdirs = Logged(folder / "delay", broker), Mkdirs(ground.MOUNT, "delay")
    bare = BareProducer(broker.bootstrap, "bare-delay")
    with ExitStack() as cleanup:
        cleanup.enter_context(logged.running())
        logged.await_begun()
        channel = cleanup.enter_context(channel_to(logged.process.address))
        create = method_of(channel, CREATE)
        begin, begin_of_state = logged.history.end(), logged.state.end()
        tail, bare_tail = (
            cleanup.enter_context(reading_tail(one)) for one in (logged.history, bare.history)
        )
        tail.begin()
        bare_tail.begin()
        path, request = mkdirs.take()
        create(request)
        tail.seen_at(path.encode())
        (records,) = _transactions(
            bare, list(logged.history.read(begin)), list(logged.state.read(begin_of_state))
        )
        p99, bare_p99, medians, bare_medians = [], [], [], []
        for number_of_round in range(_READABLE_ROUNDS):
            answered: dict[bytes, float] = {}
            for _ in _evenly():
                path, request = mkdirs.take()
                create(request, timeout=10)
                answered[path.encode()] = time.monotonic()
            delays = [max(0.0, tail.seen_at(key) - at) for key, at in answered.items()]
            begun: dict[bytes, float] = {}
            for number in _evenly():
                key = b"%d-%d" % (number_of_round, number)
                begun[key] = time.monotonic()
                bare.write([[(topic, key, value) for topic, _, value in records]])
            bare_delays = [bare_tail.seen_at(key) - at for key, at in begun.items()]
            p99.append(_p99(delays))
            bare_p99.append(_p99(bare_delays))
            medians.append(statistics.median(delays))
            bare_medians.append(statistics.median(bare_delays))
    median, bare_median = (1e3 * statistics.median(one) for one in (medians, bare_medians))
    _note(f"a change is readable after {median:.1f} ms, a bare one after {bare_median:.1f}, p50")
    return [
        at_most(
            f"a change until it is readable, {_READABLE_PER_SECOND}/s, p99",
            1e3 * statistics.median(p99),
            "ms",
            "a bare transaction of the same bytes",
            1e3 * statistics.median(bare_p99),
            2,
        )
    ]


def _evenly() -> Iterator[int]:
    """Yields numbers at an even rate, each when it is due, or at once if that time is past."""
    begin = time.monotonic()
    for number in range(_READABLE_CHANGES):
        time.sleep(max(0.0, begin + number / _READABLE_PER_SECOND - time.monotonic()))
        yield number


def _p99(seconds: Sequence[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99) - 1]


# -- memory of what waits --------------------------------------------------------------------------


def _waiting(folder: Path) -> list[Row]:
    """Measures the server's memory for each change that waits while Kafka is away."""
    with KafkaBroker(jvm=JAVA) as broker:
        logged = Logged(folder / "waiting", broker)
        with logged.running():
            logged.await_begun()
    found, changes = {}, _Changes()
    for count in (0, ground.TOPICS):
        changes.commit(logged.store, count, rows_at_once=_ROWS_AT_ONCE, is_made=False)
        with logged.running():
            waiting = logged.status().waiting_commits
            if waiting < count:
                raise AssertionError(f"{waiting} of {count} changes wait")
            ground.await_quiet(logged.pid)
            found[count] = _resident_bytes(logged.pid)
    each = (found[ground.TOPICS] - found[0]) / ground.TOPICS
    return [
        at_most(
            f"memory of a change that waits, of {ground.SHOWN}",
            each,
            "bytes",
            "limit",
            _MEMORY_LIMIT,
            1,
        )
    ]


def _resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no memory")


def _note(text: str) -> None:
    sys.stderr.write(f"changelog: {text}\n")
