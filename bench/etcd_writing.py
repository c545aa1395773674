"""Writes through servers on a three-member etcd, beside the same transactions made bare.

The bare peer makes the very transactions that a server makes (``bare_etcd``), behind the same gRPC
where a server's rate is compared (``bare_etcd_server``). Nothing is pinned to a core: members,
servers and load share all cores. The servers also apply what the bare peer writes.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import truediv
from pathlib import Path
from typing import Any, Final

import grpc
from kdir.v1 import directory_pb2, watch_pb2, watch_pb2_grpc

from bench import bare_etcd, ground
from bench.bare_etcd import PARENT, NewDirectories, address_of, number_in
from bench.load import channel_to, method_of
from bench.rows import Row, at_least, at_most, reported
from bench.writes import BARE, CREATE, Mkdirs, Side, bare_server
from deploy.local.directory import DirectoryProcess
from deploy.local.etcd import EtcdCluster

__all__ = ["measured"]

_WRITE_THREADS: Final = (16, 1)
"""The largest number of threads with which a server writes, and the smallest."""
_WRITE_ROUNDS: Final = 7
_SEEN_ROUNDS: Final = 5
_SEEN_CHANGES: Final = 300
_SEEN_PER_SECOND: Final = 100
_DEATHS: Final = 5
_DEATH_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.1
"""Pause between two writes: without it they fill a server's threads while it waits for etcd."""


def measured(folder: Path, etcd: EtcdCluster) -> list[Row]:
    """Measures writes of one server, their delay at another, and the time a leader's death
    costs.
    """
    bare = NewDirectories.record(address_of(etcd))
    with _server(folder / "here", etcd) as here:
        rows = _writes(folder, etcd, here)
        with _server(folder / "elsewhere", etcd) as elsewhere:
            return [
                *rows,
                _seen(etcd, bare, elsewhere),
                *_deaths(etcd, bare, here, elsewhere),
            ]


@contextmanager
def _server(folder: Path, etcd: EtcdCluster) -> Iterator[DirectoryProcess]:
    """Runs one of several servers of the same store, and yields it once it serves the tree."""
    settings = {"cluster": ground.CLUSTER, "store": address_of(etcd)}
    with DirectoryProcess(folder, ground.MOUNT, settings) as server:
        request = directory_pb2.GetEntryRequest(path=PARENT).SerializeToString()
        with channel_to(server.address) as channel:
            get = method_of(channel, "/kdir.v1.DirectoryService/GetEntry")
            server.process.await_ready(lambda: _answers(get, request), 60)
        yield server


def _answers(call: Callable[..., object], request: bytes) -> bool:
    try:
        call(request, timeout=5)
    except grpc.RpcError:
        return False
    return True


# -- writes --------------------------------------------------------------------------------------


def _writes(folder: Path, etcd: EtcdCluster, server: DirectoryProcess) -> list[Row]:
    rows: list[Row] = []
    command = [sys.executable, "-m", "bench.bare_etcd_server", address_of(etcd)]
    with (
        bare_server(command, folder / "bare.log") as (address, pid),
        channel_to(address) as bare_channel,
        channel_to(server.address) as channel,
    ):
        ours = Side(method_of(channel, CREATE), server.process.pid)
        theirs = Side(method_of(bare_channel, BARE), pid)
        mkdirs = Mkdirs(PARENT, "here")
        for threads in _WRITE_THREADS:
            ours.clear()
            theirs.clear()
            for _ in range(_WRITE_ROUNDS):
                theirs.measure(mkdirs.next, threads)
                ours.measure(mkdirs.next, threads)
            ratio = statistics.median(map(truediv, ours.rates, theirs.rates))
            rate = statistics.median(theirs.rates)
            of = f"{threads} threads" if threads > 1 else "one thread"
            rows += [
                at_least(
                    f"writes through a server on three members, {of}",
                    ratio * rate,
                    "/s",
                    "bare transactions behind the same gRPC",
                    rate,
                    0.6,
                ),
                reported(
                    f"processor of a write on three members, {of}",
                    ours.spent_ms,
                    "ms",
                    "a bare one behind the same gRPC",
                    theirs.spent_ms,
                ),
            ]
    return rows


# -- what others see -----------------------------------------------------------------------------


class _Sightings:
    """Times at which names were first noted. Thread-safe."""

    def __init__(self) -> None:
        self._at: dict[object, float] = {}
        self._changed: Final = threading.Condition()

    def note(self, what: object) -> None:
        if what is not None:
            with self._changed:
                self._at.setdefault(what, time.monotonic())
                self._changed.notify_all()

    def of(self, what: object, timeout_seconds: float = 30) -> float:
        with self._changed:
            if not self._changed.wait_for(lambda: what in self._at, timeout_seconds):
                raise AssertionError(f"{what} was never seen")
            return self._at[what]


@contextmanager
def _watching(server: DirectoryProcess, saw: Callable[[str], None]) -> Iterator[None]:
    """Watches a server's tree; a thread calls ``saw`` with the path of each change."""
    with grpc.insecure_channel(server.address) as channel:
        stub = watch_pb2_grpc.WatchServiceStub(channel)
        answers = stub.Watch(watch_pb2.WatchRequest(path=ground.MOUNT))
        next(answers)  # it has begun

        def follow() -> None:
            try:
                for answer in answers:
                    for event in answer.events:
                        saw(event.path)
            except grpc.RpcError:
                pass  # it is over

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        try:
            yield
        finally:
            answers.cancel()
            reader.join()


def _seen(etcd: EtcdCluster, bare: NewDirectories, elsewhere: DirectoryProcess) -> Row:
    """Measures how long after sending a bare transaction this client receives its change from a
    server's watch, against a watch on etcd itself of the same changes.
    """
    reported_by_server, reported_by_etcd = _Sightings(), _Sightings()
    p99: list[float] = []
    p99_of_bare: list[float] = []
    with (
        _watching(elsewhere, lambda path: reported_by_server.note(number_in(path))),
        bare_etcd.watched(
            etcd.endpoints[1],
            address_of(etcd),
            lambda key: reported_by_etcd.note(number_in(key.decode("ascii", "replace"))),
        ),
        bare_etcd.transacting(etcd.endpoints[0]) as transact,
    ):
        for _ in range(_SEEN_ROUNDS):
            sent: dict[int, float] = {}
            for due in _evenly(_SEEN_CHANGES, _SEEN_PER_SECOND):
                time.sleep(max(0.0, due - time.monotonic()))
                number, request = bare.take()
                sent[number] = time.monotonic()
                transact(request, timeout=10)
            p99.append(_p99([reported_by_server.of(one) - at for one, at in sent.items()]))
            p99_of_bare.append(_p99([reported_by_etcd.of(one) - at for one, at in sent.items()]))
    return at_most(
        "a change seen through another server, p99",
        1e3 * statistics.median(p99),
        "ms",
        "a bare etcd watch",
        1e3 * statistics.median(p99_of_bare),
        1.5,
    )


def _evenly(count: int, per_second: float) -> Iterator[float]:
    begin = time.monotonic()
    return (begin + number / per_second for number in range(count))


def _p99(seconds: Sequence[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99) - 1]


# -- a leader's death ----------------------------------------------------------------------------


def _deaths(
    etcd: EtcdCluster, bare: NewDirectories, here: DirectoryProcess, elsewhere: DirectoryProcess
) -> list[Row]:
    """Kills etcd's leader several times; measures when a server takes a write again, and when
    another server shows it. Writes are sent all the time, and the first that succeeds counts. The
    bare client asks every member that is left, so its time is what etcd itself needs.
    """
    taken, seen, taken_bare = [], [], []
    paths, writes = _Sightings(), Mkdirs(PARENT, "after-a-death")
    with _watching(elsewhere, paths.note), channel_to(here.address) as channel:
        create = method_of(channel, CREATE)
        for _ in range(_DEATHS):
            leader = bare_etcd.leader_of(etcd)
            with ExitStack() as channels:
                transacts = [
                    channels.enter_context(bare_etcd.transacting(one.endpoint))
                    for one in etcd.members
                    if one is not leader
                ]
                leader.kill()
                killed_at = time.monotonic()
                first, first_bare = _Firsts(), _Firsts()
                while not (first.found and first_bare.found):
                    path, request = writes.take()
                    first.follow(create.future(request, timeout=_DEATH_SECONDS), path)
                    for transact in transacts:
                        first_bare.follow(transact.future(bare.next(), timeout=_DEATH_SECONDS), "")
                    if time.monotonic() > killed_at + _DEATH_SECONDS:
                        raise AssertionError("no write was taken")
                    time.sleep(_PAUSE_SECONDS)
                taken.append(first.at - killed_at)
                seen.append(paths.of(first.what) - killed_at)
                taken_bare.append(first_bare.at - killed_at)
                first.forget()
                first_bare.forget()
            leader.start()
            leader.await_ready()
    against, seconds = "a bare client of all members", statistics.median(taken_bare)
    return [
        reported(
            "after etcd's leader is killed, until a server takes a write",
            statistics.median(taken),
            "s",
            against,
            seconds,
        ),
        reported(
            "until another server shows that write",
            statistics.median(seen),
            "s",
            against,
            seconds,
        ),
    ]


class _Firsts:
    """First of several pending calls that succeeds: its time, and the path it was made for."""

    def __init__(self) -> None:
        self.at = 0.0
        self.what = ""
        self._calls: list[Any] = []

    @property
    def found(self) -> bool:
        return self.at > 0

    def follow(self, call: Any, what: str) -> None:
        def ended(call: Any) -> None:
            taken = call.code() is grpc.StatusCode.OK and getattr(call.result(), "succeeded", True)
            if taken and not self.found:
                self.what, self.at = what, time.monotonic()

        self._calls.append(call)
        call.add_done_callback(ended)

    def forget(self) -> None:
        """Cancels the calls that are still pending."""
        for call in self._calls:
            call.cancel()
