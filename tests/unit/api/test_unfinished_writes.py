"""A write is applied after its answer, and before any call that begins later."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import grpc
import pytest
from kdir.v1 import directory_pb2, directory_pb2_grpc, entry_pb2, resolve_pb2, resolve_pb2_grpc

from directory.api.grpc_server import DirectoryServer
from directory.api.rpc.call_context import Call, UnfinishedWrites
from directory.server.cluster import Cluster
from directory.server.config import parse_config
from directory.store.sqlite import watch as watching
from directory.store.sqlite.watch import SqliteWatch
from resolver.revision_token import Token
from tests.support.waiting import eventually


class Served:
    """A server of one cluster on sqlite in this process, and its clients."""

    def __init__(self, cluster: Cluster, channel: grpc.Channel) -> None:
        self.cluster: Final = cluster
        self.entries: Final = directory_pb2_grpc.DirectoryServiceStub(channel)
        self.resolving: Final = resolve_pb2_grpc.ResolveServiceStub(channel)

    def create(self, path: str) -> directory_pb2.CreateEntryResponse:
        """Makes a directory while the replica's thread waits, so that the write's own thread
        applies the commit.
        """
        watch = self.cluster.replica.watch
        eventually(lambda: isinstance(watch, SqliteWatch) and watch.is_waiting)
        made: directory_pb2.CreateEntryResponse = self.entries.CreateEntry(
            directory_pb2.CreateEntryRequest(path=path, entry=entry_pb2.Entry(directory={}))
        )
        return made

    def names(self, path: str = "/la") -> set[str]:
        listed = self.entries.ListEntries(directory_pb2.ListEntriesRequest(path=path))
        return {one.path.rpartition("/")[2] for one in listed.entries}


@pytest.fixture
def served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Served]:
    """Yields a server whose replica's thread does not look at the file unless it is woken."""
    monkeypatch.setattr(watching, "subscribe", lambda *_: None)
    monkeypatch.setattr(watching, "POLL_SECONDS", math.inf)
    config = parse_config(
        {
            "cluster": "la",
            "mount": "/la",
            "store": f"sqlite:///{tmp_path}/la.sqlite",
            "limits": {"drain_seconds": 0.1},
            **getattr(request, "param", {}),
        }
    )
    with ExitStack() as cleanup:
        cluster = Cluster.open(config)
        cleanup.callback(cluster.stop)
        cluster.start()
        eventually(lambda: cluster.replica.state.value == "serving")
        server = DirectoryServer([cluster], "127.0.0.1:0")
        cleanup.callback(server.drain)
        server.start()
        yield Served(cluster, cleanup.enter_context(grpc.insecure_channel(server.address)))


@pytest.mark.parametrize(
    "served",
    [{"kafka": {"bootstrap": ["127.0.0.1:1"], "ceiling": ["create"]}}],
    ids=["with-kafka"],
    indirect=True,
)
def test_a_topic_that_is_waited_for_is_found_though_its_commit_is_applied_later(
    served: Served,
) -> None:
    assert served.names() == set()  # the connection is made
    watch = served.cluster.replica.watch
    eventually(lambda: isinstance(watch, SqliteWatch) and watch.is_waiting)
    made = served.entries.CreateEntry(
        directory_pb2.CreateEntryRequest(
            path="/la/t", entry=entry_pb2.Entry(topic={}), wait_until_active=True
        ),
        timeout=3,
    )
    assert made.entry.topic.provision == entry_pb2.PROVISION_PENDING


@pytest.mark.parametrize("read", ["list", "resolve", "write"])
def test_the_answer_does_not_wait_for_the_replica_and_the_next_call_does(
    served: Served, read: str
) -> None:
    applying, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        applying.set()
        assert go_on.wait(30)

    served.create("/la/first")
    assert served.names() == {"first"}
    served.cluster.replica.subscribe(hold)
    made = served.create("/la/second")
    assert applying.wait(30)
    assert not go_on.is_set()
    (position,) = Token.parse(made.token).positions.values()
    assert made.authority.revision == position.revision
    assert made.authority.token == made.token

    def ask() -> object:
        match read:
            case "list":
                return served.names()
            case "resolve":
                asked = resolve_pb2.ResolveRequest(path="/la/second")
                return served.resolving.Resolve(asked).outcome.WhichOneof("kind")
            case _:
                return served.entries.CreateEntry(
                    directory_pb2.CreateEntryRequest(
                        path="/la/second/third", entry=entry_pb2.Entry(directory={})
                    )
                ).entry.path

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask)
        with pytest.raises(TimeoutError):
            answer.result(0.2)
        go_on.set()
        expected = {
            "list": {"first", "second"},
            "resolve": "resolution",
            "write": "/la/second/third",
        }
        assert answer.result(30) == expected[read]


def test_the_first_that_finds_work_left_does_it_and_the_others_wait() -> None:
    done, begun, go_on = list[str](), threading.Event(), threading.Event()
    lock = threading.Lock()

    def finish() -> None:
        with lock:
            begun.set()
            assert go_on.wait(30)
            done.append("done")

    unfinished = UnfinishedWrites()
    unfinished.add(finish)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(unfinished.finish)
        assert begun.wait(30)
        second = pool.submit(unfinished.finish)
        with pytest.raises(TimeoutError):
            second.result(0.1)
        go_on.set()
        first.result(30)
        second.result(30)
    assert done
    assert not unfinished.left
    unfinished.finish()
    assert len(done) <= 2


def test_two_writes_that_leave_the_same_function_are_both_finished() -> None:
    done: list[int] = []
    unfinished = UnfinishedWrites()

    def finish() -> None:
        done.append(len(done))
        if len(done) == 1:
            unfinished.add(finish)  # the write of another thread, meanwhile

    unfinished.add(finish)
    unfinished.finish()
    assert done == [0, 1]


def test_a_call_outside_of_the_server_leaves_nothing() -> None:
    done: list[int] = []
    Call(deadline=1.0).after_answer(lambda: done.append(1))
    assert done == [1]
