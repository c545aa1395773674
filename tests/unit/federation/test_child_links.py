"""The parent's side of a link, over a store that takes its time, and against a child that reports
without a rest.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar, cast

import grpc
import pytest
from kdir.v1 import admin_pb2, federation_pb2, federation_pb2_grpc, resolve_pb2

from deploy.local.ports import LOOPBACK
from directory.access.compiled_grants import AccessMode
from directory.access.grants import Grant, Operation, Permission
from directory.access.principals import ANONYMOUS
from directory.api.batch_resolve import BatchResolve
from directory.api.cluster_router import ClusterRouter
from directory.api.federation_service import FederationService
from directory.api.grpc_server import DirectoryServer
from directory.api.resolve_service import ResolveService
from directory.api.rpc.call_context import Call
from directory.federation import child_links, child_state, parent_state
from directory.federation.child_links import ChildLink, ChildLinks
from directory.federation.child_state import (
    WaitingChildren,
    below_rows,
    below_writes,
    child_hello,
    link_of,
    link_write,
)
from directory.federation.federation_state import FederationState, unix_ms
from directory.federation.link_groups import LINK_GROUPS, LinkGroups
from directory.federation.link_records import encode_record
from directory.federation.parent_state import TableRow, table_writes
from directory.namespace.command import (
    AddGrants,
    Command,
    CreateDirectory,
    CreateMount,
    DeleteEntry,
    MoveEntry,
    UpdateEntry,
)
from directory.namespace.entry import Kind, Policies
from directory.namespace.keys import BELOW, LINKED, PARENT, entry_key, member_key
from directory.server.cluster import Cluster
from directory.server.config import Limits, ServerConfig
from directory.store.addresses import open_store
from directory.store.base import Delete, Guard, Put, StoreUnreachable, Write
from directory.store.etcd.transaction import LIMITS
from directory.store.replica import AppliedCommit, Replica, ReplicaState
from directory.store.writer import Writer
from resolver.cli.clusters_below import unlisted_at
from resolver.error_status import from_outcome
from resolver.errors import (
    HasMounts,
    InvalidPath,
    KdirError,
    MountLoop,
    MountMismatch,
    MountOverlaps,
    NotAuthoritative,
    NotReady,
    StoreSealed,
    StoreUnavailable,
    UnknownChild,
    Unmounted,
    Unreachable,
)
from resolver.path import MAX_SEGMENTS
from tests.support.federation import eventually
from tests.support.trees import path

T = TypeVar("T")
CHILD: Final = "kc-la"
KEY: Final = BELOW + CHILD.encode()
HELLO: Final = federation_pb2.Hello(cluster_id=CHILD, cluster="la", mount="/la")


def started(config: ServerConfig) -> Cluster:
    made = Cluster.open(config)
    made.start()
    eventually(lambda: made.replica.state is ReplicaState.SERVING)
    return made


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Yields a parent that mounts one child. It has no maintenance: that of its own children would
    remove the records of the links of ``children_of``, which have the same server id.
    """
    monkeypatch.setattr("directory.server.cluster._MAINTENANCE_SECONDS", 1_000_000.0)
    config = ServerConfig.quick(path("/"), store=f"sqlite:///{tmp_path / 'root.sqlite'}")
    made = started(config)
    # A moment later than that, its writes are taken.
    eventually(lambda: made.writer.commit_command(CreateMount(path=path("/la"), cluster_id=CHILD)))
    yield made
    made.stop()


class Writing:
    """A cluster's writer, which counts what is kept of the mounts below a child, and waits before
    it keeps that, while it is told to.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.go_on = threading.Event()
        self.go_on.set()
        self.began = threading.Event()
        self.sizes: list[int] = []
        self.is_away = False
        self.counts: list[int] = []
        """Number of writes of each commit."""

    def put_facts(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> int:
        if self.is_away:
            raise StoreUnavailable("the store is away")
        sizes = [len(one.value) for one in writes if isinstance(one, Put) and one.key == KEY]
        if sizes:
            self.began.set()
            assert self.go_on.wait(60)
            self.sizes += sizes
        self.counts.append(len(writes))
        return self._cluster.writer.put_facts(writes, guards)

    def decide(self, attempt: Callable[[], T]) -> T:
        return self._cluster.writer.decide(attempt)


class Link:
    """A link that a child holds, and what came over it. Messages come one at a time."""

    def __init__(self, children: ChildLinks, hello: federation_pb2.Hello = HELLO) -> None:
        copy = federation_pb2.Hello()
        copy.CopyFrom(hello)
        self.error: Exception | None = None
        self.responses: list[federation_pb2.LinkResponse] = []
        self._messages: queue.SimpleQueue[federation_pb2.LinkRequest | threading.Event] = (
            queue.SimpleQueue()
        )
        self._may_send = threading.Semaphore(0)
        self._is_closed = False
        self._ready = threading.Event()
        self._link = children.serve(copy)
        self._link.on_ready = self._ready.set
        self._link.ask = self._may_send.release
        self._threads = [
            threading.Thread(target=one, daemon=True) for one in (self._receive, self._send)
        ]
        for one in self._threads:
            one.start()

    def _receive(self) -> None:
        try:
            while not (self._link.is_over or self._is_closed):
                self._ready.clear()
                while (response := self._link.poll()) is not None:
                    self.responses.append(federation_pb2.LinkResponse.FromString(response))
                if not self._link.has_more:
                    self._ready.wait(0.02)
        except (NotReady, StoreUnavailable) as error:
            self.error = error
        finally:
            self._link.close()  # gRPC ends the requests with the call
            self._is_closed = True
            self._may_send.release()

    def _send(self) -> None:
        while self._may_send.acquire() and not self._is_closed:
            while isinstance(one := self._messages.get(), threading.Event):
                one.set()
            if not self._is_closed:
                self._link.receive(one)

    def wait(self) -> None:
        """Waits until what was sent so far is received."""
        received = threading.Event()
        self._messages.put(received)
        assert received.wait(60)

    def report(self, *rows: federation_pb2.MountRow) -> None:
        self._messages.put(
            federation_pb2.LinkRequest(mounts_below=federation_pb2.MountTable(rows=rows))
        )

    def beat(self) -> None:
        self._messages.put(federation_pb2.LinkRequest(heartbeat=federation_pb2.Heartbeat()))

    @property
    def existing(self) -> bool:
        return self._threads[0].is_alive()

    @property
    def beats(self) -> int:
        return sum(one.HasField("heartbeat") for one in list(self.responses))

    def close(self) -> None:
        self._link.receive(None)
        self._ready.set()
        self._threads[0].join(60)
        self.beat()


def row(number: int, epoch: int = 1) -> federation_pb2.MountRow:
    return federation_pb2.MountRow(
        mount=f"/la/{number}", cluster_id=f"kc-{number}", epoch=epoch, endpoints=["h:1"]
    )


def large_row(number: int, epoch: int) -> federation_pb2.MountRow:
    claim = federation_pb2.KafkaClaim(kafka_cluster_id="x" * 1_000, mount="/" + "y" * 1_000)
    made = row(number, epoch)
    made.kafka.CopyFrom(claim)
    return made


def children_of(
    cluster: Cluster,
    writing: Writing,
    link_heartbeat_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    groups: LinkGroups = LINK_GROUPS,
) -> ChildLinks:
    member = replace(cluster.member(), link_heartbeat_seconds=link_heartbeat_seconds)
    writer = cast("Writer", writing)
    return ChildLinks(cluster.federation, cluster.replica, writer, member, clock, groups)


def hello_of(number: int, group: str) -> federation_pb2.Hello:
    return federation_pb2.Hello(
        cluster_id=f"kc-{number}", cluster=f"c{number}", mount=f"/c{number}", link_group=group
    )


def links_of(cluster: Cluster, children: ChildLinks, count: int, group: str) -> list[Link]:
    """Returns so many links of one process, each with its welcome."""
    for number in range(count):
        mount = CreateMount(path=path(f"/c{number}"), cluster_id=f"kc-{number}")
        cluster.writer.commit_command(mount)
    links = [Link(children, hello_of(number, group)) for number in range(count)]
    eventually(lambda: all(one.responses for one in links))
    return links


def test_of_a_hundred_links_that_share_heartbeats_one_that_hangs_is_noticed(
    cluster: Cluster,
) -> None:
    """Its process works: the others beat. It is alone to say nothing."""
    children = children_of(cluster, Writing(cluster), 0.2)
    hanging, *others = links = links_of(cluster, children, 100, "one process")
    try:
        assert all(one.responses[0].welcome.link_group for one in links)

        def is_noticed() -> bool:
            for one in others:
                one.beat()
            return not hanging.existing and children.linked_count() == len(others)

        assert eventually(is_noticed)
        assert all(one.existing for one in others)
    finally:
        for one in links:
            one.close()
        children.stop()


def test_a_child_that_hangs_before_it_has_read_the_table_is_noticed(tmp_path: Path) -> None:
    """The parent cannot send it more, so that it has no link to poll; its process beats."""
    config = ServerConfig.quick(
        path("/"),
        store=f"sqlite:///{tmp_path / 'root.sqlite'}",
        limits=Limits(link_heartbeat_seconds=1.0),  # a busy machine pauses for less than 2.5 s
    )
    root = started(config)
    server = DirectoryServer([root], f"{LOOPBACK}:0")
    server.start()
    requests: list[queue.SimpleQueue[federation_pb2.LinkRequest | None]] = []
    try:
        for number in range(2):
            mount = CreateMount(path=path(f"/c{number}"), cluster_id=f"kc-{number}")
            eventually(lambda mount=mount: root.writer.commit_command(mount))  # type: ignore[misc]
        # More than gRPC takes for one that reads nothing.
        rows = [TableRow.received(large_row(one, 1), unix_ms()) for one in range(300)]
        root.writer.commit_command(CreateMount(path=path("/la"), cluster_id=CHILD))
        root.writer.put_facts(below_writes(root.replica.snapshot, CHILD, rows, unix_ms()))
        window = ("grpc.http2.lookahead_bytes", 65_536), ("grpc.http2.bdp_probe", 0)
        with grpc.insecure_channel(server.address, window) as channel:
            stub = federation_pb2_grpc.FederationServiceStub(channel)
            for number in range(2):
                requests.append(queue.SimpleQueue())
                requests[-1].put(federation_pb2.LinkRequest(hello=hello_of(number, "process")))
            hanging, working = (stub.Link(iter(one.get, None)) for one in requests)

            def read() -> None:
                with suppress(grpc.RpcError):
                    deque(working, 0)

            threading.Thread(target=read, daemon=True).start()
            assert eventually(lambda: root.children.linked_count() == 2)

            def is_noticed() -> bool:
                beat = federation_pb2.Heartbeat()
                requests[1].put(federation_pb2.LinkRequest(heartbeat=beat))
                return root.children.linked_count() == 1

            assert eventually(is_noticed)
            assert working.is_active()
            hanging.cancel()
            working.cancel()
            for one in requests:
                one.put(None)
    finally:
        server.drain()
        root.stop()


def test_links_that_share_heartbeats_end_together_when_their_process_is_silent(
    cluster: Cluster,
) -> None:
    now = 0.0
    groups = LinkGroups(lambda: now)
    children = children_of(cluster, Writing(cluster), 1_000.0, lambda: now, groups)
    links = links_of(cluster, children, 3, "one process")
    alone = Link(children)
    try:
        for _ in range(10):  # one of them shows that all live
            now += 1_000.0
            links[0].beat()
            links[0].wait()
            groups.look()
        assert all(one.existing for one in links)
        now += 2_400.0
        groups.look()
        assert all(one.existing for one in links)
        now += 200.0
        assert eventually(lambda: groups.look() is None)
        assert eventually(lambda: not any(one.existing for one in links))
    finally:
        for one in (*links, alone):
            one.close()
        children.stop()


def polled(link: ChildLink) -> list[federation_pb2.LinkResponse]:
    """Polls a link as the server does: only while it has more."""
    responses = []
    while True:
        response = link.poll()
        if response is not None:
            responses.append(federation_pb2.LinkResponse.FromString(response))
        if link.is_over or not link.has_more:
            return responses


def hello(of: federation_pb2.Hello = HELLO) -> federation_pb2.Hello:
    copy = federation_pb2.Hello()
    copy.CopyFrom(of)
    return copy


def opened(children: ChildLinks, of: federation_pb2.Hello = HELLO) -> ChildLink:
    """Returns a link that polls nobody, with its welcome and what follows."""
    link, ready = children.serve(hello(of)), threading.Event()
    link.on_ready = ready.set
    first = polled(link)  # holds the welcome where the link began meanwhile
    assert ready.wait(60)
    rest = polled(link)
    assert first or rest or eventually(lambda: polled(link))
    return link


def test_a_parent_sends_one_heartbeat_for_all_links_of_a_process(cluster: Cluster) -> None:
    now = 0.0
    groups = LinkGroups(lambda: now)
    children = children_of(cluster, Writing(cluster), 1_000.0, lambda: now, groups)
    links = []
    for number in range(3):
        mount = CreateMount(path=path(f"/c{number}"), cluster_id=f"kc-{number}")
        cluster.writer.commit_command(mount)
        links.append(opened(children, hello_of(number, "one process")))
    server = member_key(cluster.server_id)
    assert eventually(lambda: cluster.replica.snapshot.fact(server) is not None)

    def beats_of_an_interval() -> list[int]:
        nonlocal now
        now += 1_000.0
        links[0].receive(federation_pb2.LinkRequest(heartbeat=federation_pb2.Heartbeat()))
        groups.look()
        return [sum(one.HasField("heartbeat") for one in polled(link)) for link in links]

    for _ in range(8):  # while the table has changed lately, each link has heartbeats of its own
        beats_of_an_interval()
    beats = [beats_of_an_interval() for _ in range(6)]
    assert [sum(one) for one in beats] == [1] * 6
    assert [sum(of_link) for of_link in zip(*beats, strict=True)] == [2, 2, 2]
    for link in links:
        link.close()
    children.stop()


def test_a_silent_child_is_noticed_though_each_poll_sends_it_a_heartbeat(cluster: Cluster) -> None:
    now = 0.0
    children = children_of(cluster, Writing(cluster), 1_000.0, lambda: now)
    link = opened(children)
    polls = 0
    while not link.is_over and polls < 10:
        now = link.due_at
        polled(link)
        polls += 1
    assert link.is_over
    assert 3_000 < now <= 5_000
    link.close()
    children.stop()


def test_each_message_has_the_time_for_which_the_parents_own_state_is_unconfirmed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, age_seconds = [0.0], [0.0]
    # Its store is away: another server of its cluster may take changes.
    monkeypatch.setattr(Replica, "age_seconds", property(lambda _: age_seconds[0]))
    children = children_of(cluster, Writing(cluster), 1_000.0, lambda: now[0])
    link = opened(children)

    def sent() -> list[tuple[str | None, float]]:
        return [(one.WhichOneof("kind"), one.unconfirmed_seconds) for one in polled(link)]

    now[0] = link.due_at
    assert sent() == [("heartbeat", 0.0)]
    link.receive(federation_pb2.LinkRequest(heartbeat=federation_pb2.Heartbeat()))
    age_seconds[0] = 7.0
    now[0] = link.due_at
    assert sent() == [("heartbeat", 7.0)]
    cluster.writer.commit_command(
        UpdateEntry(path=path("/"), changes={"policies.owner": "platform"})
    )
    assert ("inherited", 7.0) in sent()
    age_seconds[0] = 0.0
    assert sent() == [("heartbeat", 0.0)], "at once"
    assert sent() == []
    link.close()
    children.stop()


def test_a_new_server_is_sent_though_the_link_is_polled_before_it_is_known(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The tree has it a moment before the cluster's endpoints do."""
    link = opened(cluster.children)
    eventually(cluster.members.live)
    sent = polled(link)
    cluster.federation.subscribe(lambda: sent.extend(polled(link)))
    other = open_store(f"sqlite:///{tmp_path / 'root.sqlite'}", "root")
    member = admin_pb2.Member(
        server="another", endpoints=["another:1"], feature_level=cluster.members.level
    )
    try:
        other.create_ephemeral(member_key("another"), member.SerializeToString())
        assert eventually(
            lambda: any("another:1" in one.remounted.parent_endpoints for one in list(sent))
        )
    finally:
        link.close()
        other.close()


def test_what_comes_late_over_an_ended_link_confirms_nothing(cluster: Cluster) -> None:
    """A large report is read while its link ends."""
    children = children_of(cluster, Writing(cluster), 1_000.0)
    link = opened(children)
    reported = row(1)
    reported.linked = reported.confirmed = True
    table = federation_pb2.MountTable(rows=[reported])
    cluster.writer.put_facts(
        below_writes(cluster.replica.snapshot, CHILD, [TableRow(reported, unix_ms())], unix_ms())
    )

    def of_rows() -> dict[str, tuple[bool, bool]]:
        rows = cluster.federation.rows_everywhere()
        return {one.row.mount: (one.row.linked, one.row.confirmed) for one in rows}

    children.receive(link, federation_pb2.LinkRequest(mounts_below=table))
    assert eventually(lambda: of_rows() == {"/la": (True, True), "/la/1": (True, True)})
    children.end(link)
    gone = {"/la": (False, False), "/la/1": (False, False)}
    assert of_rows() == gone
    children.receive(link, federation_pb2.LinkRequest(mounts_below=table))
    heartbeat = federation_pb2.Heartbeat(topic_count=7)
    children.receive(link, federation_pb2.LinkRequest(heartbeat=heartbeat))
    link.receive(federation_pb2.LinkRequest(heartbeat=heartbeat))
    assert of_rows() == gone
    link.close()
    children.stop()


def test_heartbeats_go_on_while_what_a_child_reported_is_committed(cluster: Cluster) -> None:
    """For many more than the three heartbeats after which a child takes its parent for silent."""
    writing = Writing(cluster)
    children = children_of(cluster, writing, 0.1)
    writing.go_on.clear()
    link = Link(children)
    try:
        link.report(row(1))
        assert writing.began.wait(60)
        before = link.beats

        def has_beaten() -> bool:
            link.beat()
            return link.beats >= before + 20

        assert eventually(has_beaten)
        assert link.existing
        assert not writing.sizes
        writing.go_on.set()
        assert eventually(lambda: below_rows(cluster.replica.snapshot, CHILD))
        assert link.existing
    finally:
        writing.go_on.set()
        link.close()
        children.stop()


def test_what_a_child_reports_is_kept_at_a_pace_of_bytes_and_the_last_of_it_always(
    cluster: Cluster,
) -> None:
    now = [0.0]
    writing = Writing(cluster)
    children = children_of(cluster, writing, 1_000.0, lambda: now[0])
    seconds, rows = 30, 100
    size = sum(large_row(one, 1).ByteSize() for one in range(rows))
    assert 200_000 < size < 500_000
    for links in range(3):  # nor is there more for a child that links anew
        link = Link(children)
        for second in range(links * 10, links * 10 + 10):
            now[0] = float(second)
            link.report(*(large_row(one, second + 1) for one in range(rows)))
            link.wait()
        link.close()
    assert sum(writing.sizes) <= 64 * 1024 * seconds + 2 * size
    now[0] = float(seconds + 100)
    children.keep_reported()
    kept = below_rows(cluster.replica.snapshot, CHILD)
    assert {one.row.epoch for one in kept} == {seconds}


def kept_mounts(cluster: Cluster) -> list[str]:
    return [one.row.mount for one in below_rows(cluster.replica.snapshot, CHILD)]


def test_of_two_links_that_begin_at_once_the_newer_one_stays(cluster: Cluster) -> None:
    children, gate, refused = cluster.children, threading.Event(), threading.Event()
    before, older, newer = opened(children), children.serve(hello()), children.serve(hello())
    before.on_ready = lambda: gate.wait(60)  # it is ended while the older one begins

    def begin_older() -> None:
        with pytest.raises(NotReady):
            children.begin(older)
        refused.set()

    threading.Thread(target=begin_older, daemon=True).start()
    assert eventually(lambda: before.ended)
    children.begin(newer)
    gate.set()
    assert refused.wait(60)
    assert older.ended
    children.receive(
        newer,
        federation_pb2.LinkRequest(mounts_below=federation_pb2.MountTable(rows=[row(1)])),
    )
    children.end(older)
    children.keep_reported()
    assert [one.row.mount for one in below_rows(cluster.replica.snapshot, CHILD)] == ["/la/1"]
    assert link_of(cluster.replica.snapshot, CHILD) is not None
    assert not newer.ended
    newer.close()
    assert eventually(lambda: link_of(cluster.replica.snapshot, CHILD) is None)


def test_what_came_over_an_ended_link_replaces_nothing_of_a_newer_one(cluster: Cluster) -> None:
    """The newer one may be held by another server of the cluster."""
    now = [0.0]
    first = children_of(cluster, Writing(cluster), 1_000.0, lambda: now[0])
    member = replace(cluster.member(), link_heartbeat_seconds=1_000.0, server_id="server-b")
    second = ChildLinks(cluster.federation, cluster.replica, cluster.writer, member, lambda: now[0])
    link = Link(first)
    link.report(row(1))
    link.wait()
    link.report(row(1), row(2))  # the pace lets it wait
    link.wait()
    link.close()
    hello = federation_pb2.Hello()
    hello.CopyFrom(HELLO)
    hello.endpoints[:] = ["new:1"]
    newer = Link(second, hello)
    newer.report(row(1), row(3))
    newer.wait()
    now[0] = 10.0
    first.keep_reported()
    assert kept_mounts(cluster) == ["/la/1", "/la/3"]
    found = child_hello(cluster.replica.snapshot, CHILD)
    assert found is not None
    assert list(found[0].endpoints) == ["new:1"]
    newer.close()
    assert eventually(lambda: link_of(cluster.replica.snapshot, CHILD) is None)
    first.stop()
    second.stop()


def test_a_link_that_does_not_begin_loses_nothing_of_the_one_before(cluster: Cluster) -> None:
    now = [0.0]
    writing = Writing(cluster)
    children = children_of(cluster, writing, 1_000.0, lambda: now[0])
    link = Link(children)
    link.report(row(1))
    link.wait()
    link.report(row(1), row(2))
    link.wait()
    writing.is_away = True
    refused = Link(children)
    assert eventually(lambda: refused.error is not None)
    link.close()
    writing.is_away, now[0] = False, 100.0
    children.keep_reported()
    assert kept_mounts(cluster) == ["/la/1", "/la/2"]
    children.stop()


def test_after_a_link_was_lost_the_newest_updates_of_it_are_handed_on(cluster: Cluster) -> None:
    """Another server of the cluster may have held it since, and have kept what is newer."""
    now = unix_ms()

    def output(number: int, seconds_ago: int, **fields: object) -> TableRow:
        made = row(number)
        made.MergeFrom(federation_pb2.MountRow(**fields))  # type: ignore[arg-type]
        return TableRow(made, now - 1000 * seconds_ago)

    federation = cluster.federation
    federation.note_child_contact(CHILD, 0, linked=True)
    received = [output(1, 60, topic_count=1), output(2, 10, topic_count=2), output(3, 10)]
    federation.receive_mounts_below(CHILD, received)
    federation.note_child_contact(CHILD, 0, linked=False)
    kept = [output(1, 30, topic_count=10), output(2, 40, topic_count=20), output(3, 40)]
    kept[2].row.cluster_id = "kc-another"
    cluster.writer.put_facts(below_writes(cluster.replica.snapshot, CHILD, kept, now))
    for rows in (federation.rows_below(), federation.rows_everywhere()):
        found = {one.row.mount: one for one in rows if one.row.mount.startswith("/la/")}
        assert {mount: one.row.topic_count for mount, one in found.items()} == {
            "/la/1": 10,
            "/la/2": 2,
            "/la/3": 0,
        }
        assert found["/la/3"].row.cluster_id == "kc-another"
        ages = {mount: round((now - one.owner_time_ms) / 1000) for mount, one in found.items()}
        assert ages == {"/la/1": 30, "/la/2": 10, "/la/3": 40}


def test_what_was_kept_a_moment_before_is_not_taken_for_newer(cluster: Cluster) -> None:
    """Rows are sent to several links with the ages of one moment: up to a second too old."""
    now = unix_ms()
    linked, unlinked = row(1), row(1)
    linked.linked = True
    federation = cluster.federation
    federation.note_child_contact(CHILD, 0, linked=True)
    kept = below_writes(cluster.replica.snapshot, CHILD, [TableRow(linked, now)], now)
    cluster.writer.put_facts(kept)
    federation.receive_mounts_below(CHILD, [TableRow(unlinked, now - 900)])
    for rows in (federation.rows_below(), federation.rows_everywhere()):
        (found,) = [one for one in rows if one.row.mount == "/la/1"]
        assert not found.row.linked


def test_each_message_of_a_child_confirms_the_rows_that_it_sent(cluster: Cluster) -> None:
    now = [1_000_000_000]
    federation = FederationState(cluster.replica, path("/"), (), lambda: now[0])
    confirmed, other = row(1), row(2)
    confirmed.confirmed, confirmed.age_seconds = True, 1.0
    kept = [TableRow(confirmed, now[0]), TableRow(other, now[0])]
    cluster.writer.put_facts(below_writes(cluster.replica.snapshot, CHILD, kept, now[0]))

    def ages() -> dict[str, tuple[float, bool]]:
        return {
            one.row.mount: ((now[0] - one.owner_time_ms) / 1000, one.row.confirmed)
            for one in federation.rows_everywhere()
            if one.row.mount in {"/la/1", "/la/2"}
        }

    eventually(lambda: len(ages()) == 2)
    assert not any(is_confirmed for _, is_confirmed in ages().values()), "as the store has them"
    federation.note_child_contact(CHILD, 0, linked=True)
    rows = [TableRow.received(one, now[0]) for one in (confirmed, other)]
    federation.receive_mounts_below(CHILD, rows)
    now[0] += 600_000
    assert ages() == {"/la/1": (601.0, True), "/la/2": (600.0, False)}
    federation.note_child_contact(CHILD, 0, linked=True)
    now[0] += 2_000
    assert ages() == {"/la/1": (3.0, True), "/la/2": (602.0, False)}
    federation.note_child_contact(CHILD, 0, linked=False)
    now[0] += 60_000
    assert ages() == {"/la/1": (63.0, False), "/la/2": (662.0, False)}


def test_each_message_of_the_parent_confirms_its_table_until_the_link_ends(
    cluster: Cluster,
) -> None:
    now = [1_000_000_000]
    federation = FederationState(cluster.replica, path("/la"), (), lambda: now[0])
    sent = row(1)
    sent.mount, sent.confirmed = "/ny", True
    cluster.writer.put_facts(table_writes(cluster.replica.snapshot, [TableRow(sent, now[0])]))

    def found() -> TableRow:
        (one,) = [one for one in federation.rows_everywhere() if one.row.mount == "/ny"]
        return one

    eventually(lambda: any(one.row.mount == "/ny" for one in federation.rows_everywhere()))
    assert not found().row.confirmed
    federation.receive_mount_table([TableRow.received(sent, now[0])])
    now[0] += 600_000
    federation.note_parent_contact()
    now[0] += 2_000
    assert (now[0] - found().owner_time_ms, found().row.confirmed) == (2_000, True)
    marked = federation.sent_down.marked
    federation.note_parent_lost()
    now[0] += 60_000
    assert (now[0] - found().owner_time_ms, found().row.confirmed) == (62_000, False)
    assert federation.sent_down.marked == marked + 1
    federation.note_parent_lost()
    assert federation.sent_down.marked == marked + 1, "there is no news in it"


def test_a_row_stored_before_the_clock_was_put_back_is_shown_as_the_open_link_has_it(
    cluster: Cluster,
) -> None:
    now = [1_000_000_000]
    federation = FederationState(cluster.replica, path("/la"), (), lambda: now[0])
    sent = row(1)
    sent.mount, sent.confirmed, sent.linked, sent.topic_count = "/ny", True, True, 5
    stored = TableRow.received(sent, now[0] + 3_600_000)
    cluster.writer.put_facts(table_writes(cluster.replica.snapshot, [stored]))

    def found() -> tuple[bool, int]:
        (one,) = [one for one in federation.rows_everywhere() if one.row.mount == "/ny"]
        return one.row.linked, one.row.topic_count

    assert eventually(lambda: found() == (False, 0))
    federation.receive_mount_table([TableRow.received(sent, now[0])])
    federation.note_parent_contact()
    now[0] += 10_000  # until the next heartbeat
    assert found() == (True, 5)
    federation.note_parent_lost()
    assert found() == (False, 0), "another server may have stored it"


def test_what_no_link_reports_is_unknown_and_not_disconnected(cluster: Cluster) -> None:
    """As on a server that does not hold the link, or after a restart while the parent is down."""
    federation = FederationState(cluster.replica, path("/la"), ())

    def sent(mount: str, **fields: object) -> federation_pb2.MountRow:
        made = row(1)
        made.mount = mount
        made.MergeFrom(federation_pb2.MountRow(**fields))  # type: ignore[arg-type]
        return made

    rows = [sent("/eu"), sent("/ny", linked=True, confirmed=True), sent("/us", link_unknown=True)]
    received = [TableRow.received(one, unix_ms()) for one in rows]
    cluster.writer.put_facts(table_writes(cluster.replica.snapshot, received))
    assert not table_writes(cluster.replica.snapshot, received), "a link's state is no change"

    def found() -> dict[str, tuple[bool, bool, bool]]:
        every = [one.row for one in federation.rows_everywhere()]
        return {
            one.mount: (one.linked, one.confirmed, one.link_unknown)
            for one in every
            if one.mount in {"/eu", "/ny", "/us"}
        }

    unknown = (False, False, True)
    assert eventually(lambda: found() == {"/eu": unknown, "/ny": unknown, "/us": unknown})
    federation.receive_mount_table(received)
    federation.note_parent_contact()
    assert found() == {"/eu": (False, False, False), "/ny": (True, True, False), "/us": unknown}
    federation.note_parent_lost()
    assert found() == {"/eu": unknown, "/ny": (True, False, False), "/us": unknown}


def test_what_is_below_a_child_without_a_link_is_unknown_and_the_child_disconnected(
    cluster: Cluster,
) -> None:
    federation, now = cluster.federation, unix_ms()
    linked, other = row(1), row(2)
    linked.linked = linked.confirmed = True
    rows = [TableRow(linked, now), TableRow(other, now)]

    def states() -> dict[str, tuple[bool, bool]]:
        found = federation.rows_everywhere()
        return {one.row.mount: (one.row.linked, one.row.link_unknown) for one in found}

    cluster.writer.put_facts(below_writes(cluster.replica.snapshot, CHILD, rows, now))
    assert eventually(lambda: "/la/1" in states())
    assert states() == {"/la": (False, False), "/la/1": (True, False), "/la/2": (False, True)}
    federation.note_child_contact(CHILD, 0, linked=True)
    federation.receive_mounts_below(CHILD, rows)
    assert states() == {"/la": (True, False), "/la/1": (True, False), "/la/2": (False, False)}
    federation.note_child_contact(CHILD, 0, linked=False)
    assert states() == {"/la": (False, False), "/la/1": (False, True), "/la/2": (False, True)}


def test_while_nothing_changes_the_maintenance_looks_at_no_child(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[int]()

    def forget_writes(*arguments: Any) -> tuple[Write, ...]:
        looks.append(1)
        return child_state.forget_writes(*arguments)

    monkeypatch.setattr(child_links, "child_state", SimpleNamespace(forget_writes=forget_writes))
    children = children_of(cluster, Writing(cluster), 1_000.0)
    for _ in range(5):
        children.forget()
    assert len(looks) == 1
    cluster.writer.commit_command(DeleteEntry(path=path("/la"), kind=Kind.MOUNT))
    for _ in range(5):
        children.forget()
    assert len(looks) == 2


def child_at(mount: str) -> federation_pb2.Hello:
    return federation_pb2.Hello(cluster_id="kc-deep", cluster="deep", mount=mount, epoch=1)


def incomplete(*clusters: Cluster) -> list[str]:
    """Returns the clusters of which a server says that they may have more mounts than it lists."""
    call = Call(time.monotonic() + 60, is_active=lambda: True)
    listed = FederationService(ClusterRouter(clusters)).list_mounts(
        federation_pb2.ListMountsRequest(), call
    )
    return list(listed.incomplete_cluster_ids)


@pytest.mark.parametrize("broken", ["mount", "directory"])
def test_S21_a_child_whose_mount_cannot_be_read_is_not_unmounted(
    cluster: Cluster, broken: str
) -> None:
    """What the parent stores of it stays, and it links again once the record is repaired."""
    cluster.writer.commit_command(CreateDirectory(path=path("/d/e"), make_parents=True))
    cluster.writer.commit_command(CreateMount(path=path("/d/e/deep"), cluster_id="kc-deep"))
    children = children_of(cluster, Writing(cluster), 1_000.0)
    link = opened(children, child_at("/d/e/deep"))
    children.receive(link, federation_pb2.LinkRequest(mounts_below=federation_pb2.MountTable()))
    directory_id = cluster.replica.snapshot.find_directory(["d", "e"] if broken == "mount" else [])
    assert directory_id is not None
    kind, name = (Kind.MOUNT, "deep") if broken == "mount" else (Kind.DIRECTORY, "d")
    key = entry_key(directory_id, kind, name)
    (record,) = [row.value for row in cluster.store.read(key) if row.key == key]
    cluster.writer.put_facts((Put(key, b"\xff\xfe\0nonsense"),))
    assert not cluster.federation.view().mounts.keys() & {"kc-deep"}
    assert incomplete(cluster) == [cluster.cluster_id]
    ended = polled(link)
    assert link.is_over
    assert not any(one.HasField("unmounted") for one in ended)
    with pytest.raises(NotReady, match=r"kc-deep.* cannot be read.*kdir verify /"):
        children.serve(child_at("/d/e/deep"))
    children.forget()
    assert child_hello(cluster.replica.snapshot, "kc-deep") is not None
    cluster.writer.put_facts((Put(key, record),))
    assert incomplete(cluster) == []
    link.close()
    opened(children, child_at("/d/e/deep")).close()
    cluster.writer.commit_command(DeleteEntry(path=path("/d/e/deep"), kind=Kind.MOUNT))
    with pytest.raises(UnknownChild):
        children.serve(child_at("/d/e/deep"))
    assert eventually(lambda: not children.linked_count())
    children.forget()
    assert child_hello(cluster.replica.snapshot, "kc-deep") is None
    children.stop()


def test_S21_a_child_whose_mount_is_too_deep_at_the_clusters_new_mount_is_not_unmounted(
    cluster: Cluster,
) -> None:
    """A mount made just before this cluster came to a longer path: all else goes on."""
    deep = path("/d" * MAX_SEGMENTS)
    cluster.writer.commit_command(CreateDirectory(path=deep.parent, make_parents=True))
    cluster.writer.commit_command(CreateMount(path=deep, cluster_id="kc-deep"))
    cluster.writer.commit_command(CreateMount(path=path("/near"), cluster_id="kc-near"))
    children = children_of(cluster, Writing(cluster), 1_000.0)
    link = opened(children, child_at(str(deep)))
    children.receive(link, federation_pb2.LinkRequest(mounts_below=federation_pb2.MountTable()))
    moved = federation_pb2.Welcome(mount="/b", epoch=2, parent_mount="/")
    cluster.writer.put_facts((Put(PARENT, encode_record(7, moved.SerializeToString())),))
    view = cluster.federation.view()
    assert view.mounts["kc-near"][0] == path("/b/near")
    assert view.mounts.keys().isdisjoint({"kc-deep"})
    assert incomplete(cluster) == [cluster.cluster_id]
    ((key, why),) = view.too_deep.values()
    assert cluster.store.read(key)
    assert why == f"{deep} has no valid path at the mount /b"
    ended = polled(link)
    assert link.is_over
    assert not any(one.HasField("unmounted") for one in ended)
    link.close()
    with pytest.raises(NotReady, match="has no valid path at the mount /b; move cluster"):
        children.serve(child_at(str(deep)))
    children.forget()
    assert child_hello(cluster.replica.snapshot, "kc-deep") is not None
    started_again = FederationState(cluster.replica, path("/b"), ())
    assert started_again.view().too_deep == view.too_deep
    policies = {"policies": Policies(max_partitions=7)}
    cluster.writer.commit_command(UpdateEntry(path=path("/b/d"), changes=policies))
    back = federation_pb2.Welcome(mount="/", epoch=3)
    cluster.writer.put_facts((Put(PARENT, encode_record(8, back.SerializeToString())),))
    assert not cluster.federation.view().too_deep
    opened(children, child_at(str(deep))).close()
    moved.epoch = 4
    cluster.writer.put_facts((Put(PARENT, encode_record(9, moved.SerializeToString())),))
    assert cluster.federation.view().too_deep.keys() == {"kc-deep"}
    refused: list[tuple[Command, type[KdirError], str]] = [
        (CreateMount(path=path("/b/e"), cluster_id="kc-deep"), MountLoop, f"mounted at {deep} al"),
        (CreateMount(path=path("/b/d"), cluster_id="kc-e"), MountOverlaps, f"above {deep}:"),
        (DeleteEntry(path=path("/b/d"), recursive=True), HasMounts, f"below /b/d: {deep};"),
        (
            MoveEntry(path=path("/b/d/d"), new_path=path("/b/d/e")),
            InvalidPath,
            f"the mount {deep} of this cluster would still have no valid path below /b/d/e",
        ),
    ]
    for command, reason, message in refused:
        with pytest.raises(reason, match=message):
            cluster.writer.commit_command(command)
    cluster.writer.commit_command(MoveEntry(path=path("/b/d/d/d"), new_path=path("/b/e")))
    view = cluster.federation.view()
    assert not view.too_deep
    assert view.mounts["kc-deep"][0] == path("/b/e" + "/d" * (MAX_SEGMENTS - 3))
    opened(children, child_at(str(deep))).close()
    children.stop()


def test_S21_a_child_whose_unreadable_mount_was_removed_is_forgotten_with_it(
    cluster: Cluster,
) -> None:
    """The claim that is left over keeps nothing: no mount can be read any more."""
    cluster.writer.commit_command(CreateDirectory(path=path("/d")))
    cluster.writer.commit_command(CreateMount(path=path("/d/deep"), cluster_id="kc-deep"))
    children = children_of(cluster, Writing(cluster), 1_000.0)
    link = opened(children, child_at("/d/deep"))
    children.receive(link, federation_pb2.LinkRequest(mounts_below=federation_pb2.MountTable()))
    directory_id = cluster.replica.snapshot.find_directory(["d"])
    assert directory_id is not None
    key = entry_key(directory_id, Kind.MOUNT, "deep")
    cluster.writer.put_facts((Put(key, b"\xff\xfe"),))
    polled(link)
    link.close()
    children.forget()
    assert child_hello(cluster.replica.snapshot, "kc-deep") is not None
    cluster.writer.put_facts((Delete(key),))
    children.forget()
    assert child_hello(cluster.replica.snapshot, "kc-deep") is None
    children.stop()


LATE: Final = federation_pb2.Hello(cluster_id="kc-late", cluster="late", mount="/late", epoch=1)
MARK: Final = b"f/read_only/mark"


@pytest.fixture
def behind(cluster: Cluster) -> Iterator[tuple[Cluster, threading.Event]]:
    """Yields another server of the cluster, which has not received yet that a child was mounted,
    and an event after which it receives that.
    """
    other, go_on = started(cluster.config), threading.Event()

    def hold(applied: AppliedCommit) -> None:
        if any(write.key == MARK for write in applied.writes):
            go_on.wait(60)

    other.replica.subscribe(hold)
    cluster.writer.put_facts((Put(MARK, b""),))
    assert eventually(lambda: other.replica.snapshot.fact(MARK) is not None)
    cluster.writer.commit_command(CreateMount(path=path("/late"), cluster_id="kc-late"))
    yield other, go_on
    go_on.set()
    other.stop()


def test_a_server_that_lags_does_not_refuse_a_child_that_another_mounted(
    behind: tuple[Cluster, threading.Event],
) -> None:
    """The child would take it for an unmount and stop serving."""
    other, go_on = behind
    later = threading.Timer(0.3, go_on.set)
    later.start()
    other.children.serve(LATE).close()
    assert go_on.is_set()


def test_N4_a_server_that_lags_sends_no_older_records_than_another_sent_before(
    behind: tuple[Cluster, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child goes to the next server; once this one has caught up, it can be linked to."""
    monkeypatch.setattr("directory.store.writer._FACTS_SECONDS", 0.2)
    other, go_on = behind
    refused = Link(other.children)
    assert eventually(lambda: isinstance(refused.error, NotReady))
    assert not refused.responses
    assert eventually(lambda: not other.children.linked_count())
    go_on.set()
    linked = Link(other.children)
    assert eventually(lambda: linked.responses)
    linked.close()


def test_a_server_whose_store_is_away_or_sealed_refuses_no_child_for_good(
    behind: tuple[Cluster, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, _ = behind

    def newest_revision(*_: object) -> int:
        raise StoreUnreachable("it is away")

    with monkeypatch.context() as patch:
        patch.setattr(other.store, "newest_revision", newest_revision)
        with pytest.raises(StoreUnavailable):
            other.children.serve(LATE)
    other.replica.sealed = "moved to another store"
    with pytest.raises(StoreSealed):
        other.children.serve(LATE)


def test_a_cluster_that_is_not_loaded_is_in_nobody_s_way(cluster: Cluster, tmp_path: Path) -> None:
    """Of the same process: the children of the others link, and their mounts are listed."""
    store = f"sqlite:///{tmp_path / 'zz.sqlite'}"
    unloaded = Cluster.open(ServerConfig.quick(path("/zz"), cluster="zz", store=store))
    call = Call(time.monotonic() + 60, is_active=lambda: True)
    for clusters in ((cluster, unloaded), (unloaded, cluster)):
        router = ClusterRouter(clusters)
        assert router.mounting_cluster(HELLO) is cluster
        with pytest.raises(NotReady):  # it may be the one that mounts it
            router.mounting_cluster(LATE)
        listed = FederationService(router).list_mounts(federation_pb2.ListMountsRequest(), call)
        assert [one.mount for one in listed.rows] == ["/la"]
    with pytest.raises(NotReady):
        FederationService(ClusterRouter([unloaded])).list_mounts(
            federation_pb2.ListMountsRequest(), call
        )
    unloaded.start()
    assert eventually(lambda: router.mounting_cluster(LATE) is cluster)
    unloaded.stop()


def test_a_cluster_that_has_never_linked_is_in_nobody_s_way(
    cluster: Cluster, tmp_path: Path
) -> None:
    """It enforces access, and its parent's grants are not known yet: the mounts of the others are
    listed, to every caller.
    """
    config = ServerConfig.quick(
        path("/zz"),
        cluster="zz",
        store=f"sqlite:///{tmp_path / 'zz.sqlite'}",
        access=AccessMode.ENFORCE,
        parent=("127.0.0.1:1",),
    )
    waiting = started(config)
    call = Call(time.monotonic() + 60, is_active=lambda: True)
    request = federation_pb2.ListMountsRequest()
    for clusters in ((cluster, waiting), (waiting, cluster)):
        listed = FederationService(ClusterRouter(clusters)).list_mounts(request, call)
        assert [one.mount for one in listed.rows] == ["/la"]
        assert incomplete(*clusters) == [waiting.cluster_id]
    with pytest.raises(NotReady):
        FederationService(ClusterRouter([waiting])).list_mounts(request, call)
    waiting.stop()


def test_an_unmounted_cluster_is_not_in_the_way_of_the_one_mounted_in_its_place(
    tmp_path: Path,
) -> None:
    made = []
    for name in ("old", "new"):
        store = f"sqlite:///{tmp_path / name}"
        made.append(started(ServerConfig.quick(path("/la"), cluster=name, store=store)))
    old, new = made
    for one in made:
        mount = CreateMount(path=path("/la/child"), cluster_id=CHILD)
        eventually(partial(one.writer.commit_command, mount))
    unmounted = Put(parent_state.UNMOUNTED_KEY, b"no mount names it")
    assert eventually(lambda: old.writer.put_facts([unmounted]) or True)
    eventually(lambda: not old.is_mounted)
    for clusters in ((old, new), (new, old)):
        router = ClusterRouter(clusters)
        assert router.require_owner(path("/la/x")) is new
        assert router.require_owner(path("/la/x"), holder=True) is new
        assert router.cluster_for_path(path("/ny")) is new  # refers the caller
        assert router.mounting_cluster(HELLO) is new
    assert eventually(lambda: new.writer.put_facts([unmounted]) or True)
    eventually(lambda: not new.is_mounted)
    with pytest.raises(Unmounted):
        ClusterRouter(made).require_owner(path("/la/x"))
    for one in made:
        one.stop()


@pytest.mark.parametrize("is_first", [True, False])
def test_an_unmounted_cluster_is_not_in_the_way_of_one_mounted_elsewhere(
    tmp_path: Path, *, is_first: bool
) -> None:
    """Another cluster of its process has a referral to the one mounted in its place."""
    made = []
    for name in ("la", "ny"):
        store = f"sqlite:///{tmp_path / name}"
        config = ServerConfig.quick(path(f"/{name}"), cluster=name, store=store)
        made.append(started(replace(config, parent=("127.0.0.1:1",))))
    la, old = made
    unmounted = Put(parent_state.UNMOUNTED_KEY, b"no mount names it")
    assert eventually(lambda: old.writer.put_facts([unmounted]) or True)
    assert eventually(lambda: not old.is_mounted)
    router = ClusterRouter(made if is_first else made[::-1])
    call = Call(time.monotonic() + 60, is_active=lambda: True)
    ny = federation_pb2.MountRow(mount="/ny", cluster_id="kc-new", epoch=9, endpoints=["h:1"])

    def referral(at: str) -> resolve_pb2.Referral:
        answer = router.resolve(resolve_pb2.ResolveRequest(path=at), call)
        return resolve_pb2.ResolveResponse.FromString(answer).outcome.referral

    def receive(row: federation_pb2.MountRow) -> None:
        assert eventually(lambda: la.writer.put_facts(kept_rows(la, row)) or True)
        eventually(lambda: la.federation.view().above[path("/ny")].row.cluster_id == row.cluster_id)

    assert referral("/ny/x").kind == resolve_pb2.REFERRAL_KIND_UP
    receive(ny)
    assert (referral("/ny/x").kind, referral("/ny/x").cluster_id) == (
        resolve_pb2.REFERRAL_KIND_DIRECT,
        "kc-new",
    )
    with pytest.raises(NotAuthoritative):
        router.require_owner(path("/ny/x"), call)
    # It is mounted again: the referral would lead back to this very address.
    ny.cluster_id = old.cluster_id
    receive(ny)
    with pytest.raises(Unmounted):
        referral("/ny/x")
    for one in made:
        one.stop()


def test_a_cluster_that_is_not_of_the_process_is_searched_from_the_topmost_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The *up* referral of a lower one may lead back to this very address."""
    store = f"sqlite:///{tmp_path / 'zz.sqlite'}"
    config = ServerConfig.quick(path("/zz"), cluster="zz", store=store)
    lower = started(replace(config, parent=("127.0.0.1:1",)))
    call = Call(time.monotonic() + 60, is_active=lambda: True)
    for clusters in ((cluster, lower), (lower, cluster)):
        service = ResolveService(ClusterRouter(clusters))

        def outcome(name: str) -> resolve_pb2.Outcome:
            request = resolve_pb2.LocateRequest(cluster=name, physical_name="x")
            return service.locate(request, call).outcome  # noqa: B023 - called at once

        assert outcome(CHILD).referral.mount == "/la"
        assert outcome("kc-unknown").error.message == "no cluster 'kc-unknown' is known to root"
    lower.stop()


def test_R5_a_report_of_a_cluster_that_is_mounted_elsewhere_reaches_nobody(
    cluster: Cluster,
) -> None:
    cluster.writer.commit_command(CreateMount(path=path("/ny"), cluster_id="kc-ny", cluster="ny"))
    false, own = (
        federation_pb2.MountRow(mount=mount, cluster_id=of, epoch=9, endpoints=["h:1"])
        for mount, of in (("/la/z", "kc-ny"), ("/la/root", cluster.cluster_id))
    )
    snapshot = cluster.replica.snapshot
    rows = [TableRow(one, unix_ms()) for one in (false, own, row(1))]
    cluster.writer.put_facts(below_writes(snapshot, CHILD, rows, unix_ms()))
    sent = {"/la": CHILD, "/la/1": "kc-1", "/ny": "kc-ny"}
    assert {
        one.row.mount: one.row.cluster_id for one in cluster.federation.rows_everywhere()
    } == sent
    assert located(cluster, "kc-ny").referral.mount == "/ny"
    # Nobody but the child has it mounted any more.
    cluster.writer.commit_command(DeleteEntry(path=path("/ny"), kind=Kind.MOUNT))
    assert located(cluster, "kc-ny").referral.mount == "/la/z"


def test_which_of_two_rows_of_a_cluster_counts(tmp_path: Path) -> None:
    """A mount goes from one parent to another, and both are known for seconds."""
    store = f"sqlite:///{tmp_path / 'la.sqlite'}"
    config = ServerConfig.quick(path("/la"), cluster="la", store=store)
    la = started(replace(config, parent=("127.0.0.1:1",)))
    eventually(lambda: la.writer.commit_command(CreateMount(path=path("/la/c"), cluster_id=CHILD)))

    def of_zz(mount: str, epoch: int) -> federation_pb2.MountRow:
        return federation_pb2.MountRow(
            mount=mount, cluster_id="kc-zz", cluster="zz", epoch=epoch, endpoints=["h:1"]
        )

    reported = [TableRow(of_zz(f"/la/c/{epoch}", epoch), unix_ms()) for epoch in (1, 3, 2)]
    la.writer.put_facts(below_writes(la.replica.snapshot, CHILD, reported, unix_ms()))
    for name in ("kc-zz", "zz"):
        assert located(la, name).referral.mount == "/la/c/3"
    la.writer.put_facts(kept_rows(la, of_zz("/ny/zz", 1)))
    for name in ("kc-zz", "zz"):
        assert located(la, name).referral.mount == "/ny/zz"
    other = federation_pb2.MountRow(mount="/ny/other", cluster_id="kc-other", cluster="zz")
    la.writer.put_facts(kept_rows(la, of_zz("/ny/zz", 1), other))
    assert located(la, "kc-zz").referral.mount == "/ny/zz"
    assert "'zz': kc-other, kc-zz; give the cluster id" in located(la, "zz").error.message
    la.stop()


def located(cluster: Cluster, name: str) -> resolve_pb2.Outcome:
    call = Call(time.monotonic() + 60, is_active=lambda: True)
    request = resolve_pb2.LocateRequest(cluster=name, physical_name="x")
    return ResolveService(ClusterRouter([cluster])).locate(request, call).outcome


def kept_rows(cluster: Cluster, *rows: federation_pb2.MountRow) -> Sequence[Write]:
    return table_writes(cluster.replica.snapshot, [TableRow(one, unix_ms()) for one in rows])


def test_S4_mounts_of_a_store_that_is_away_are_listed_with_their_age_up_to_a_limit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'ny.sqlite'}"
    other = started(ServerConfig.quick(path("/ny"), cluster="ny", store=store))
    assert eventually(lambda: other.replica.state is ReplicaState.SERVING)
    call = Call(time.monotonic() + 60, is_active=lambda: True)
    request = federation_pb2.ListMountsRequest()

    def listed(*clusters: Cluster) -> federation_pb2.ListMountsResponse:
        return FederationService(ClusterRouter(clusters)).list_mounts(request, call)

    def ages(*clusters: Cluster) -> list[tuple[str, bool, float]]:
        authorities = listed(*clusters).authorities
        return [(one.cluster.cluster_id, one.stale, one.age_seconds) for one in authorities]

    assert ages(cluster, other) == [(cluster.cluster_id, False, 0), (other.cluster_id, False, 0)]
    cluster.replica.stale_after_seconds = -1.0
    age_of = {id(cluster.replica): 12.0}
    known = property(lambda replica: age_of.get(id(replica), 0.0))
    monkeypatch.setattr(Replica, "age_seconds", known)
    assert ages(cluster, other) == [(cluster.cluster_id, True, 12), (other.cluster_id, False, 0)]
    assert [one.mount for one in listed(cluster).rows] == ["/la"]
    age_of[id(cluster.replica)] = cluster.config.limits.max_stale_seconds + 1
    assert ages(cluster, other) == [(other.cluster_id, False, 0)]
    assert incomplete(cluster, other) == [cluster.cluster_id]
    with pytest.raises(Unreachable, match="the store has been away for 86401 s"):
        listed(cluster)
    other.stop()


def test_of_several_clusters_one_that_is_hidden_from_the_caller_is_not_named_with_its_age(
    cluster: Cluster, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'ny.sqlite'}"
    config = ServerConfig.quick(path("/ny"), cluster="ny", store=store, access=AccessMode.ENFORCE)
    other = started(config)
    call = Call(time.monotonic() + 60, is_active=lambda: True)

    def named(*clusters: Cluster) -> list[str]:
        request = federation_pb2.ListMountsRequest()
        listed = FederationService(ClusterRouter(clusters)).list_mounts(request, call)
        return [one.cluster.cluster for one in listed.authorities]

    assert named(other, cluster) == ["ny", "root"]
    deny = Grant(ANONYMOUS, "*", Operation.ALL, Permission.DENY)
    other.writer.commit_command(AddGrants(path=path("/ny"), grants=(deny,)))
    assert named(other, cluster) == ["root"]
    assert named(other) == ["ny"]  # each Resolve names it
    other.stop()


def test_a_cluster_that_is_mounted_again_and_not_linked_yet_is_unmounted_for_callers(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The referral of the one above it would lead back to this very address."""
    config = ServerConfig.quick(path("/la"), store=f"sqlite:///{tmp_path / 'la'}")
    child = started(config)
    unmounted = Put(parent_state.UNMOUNTED_KEY, b"no mount names it")
    assert eventually(lambda: child.writer.put_facts([unmounted]) or True)
    eventually(lambda: not child.is_mounted)
    router = ClusterRouter((cluster, child))
    assert router.require_owner(path("/la/x")) is cluster
    cluster.writer.commit_command(DeleteEntry(path=path("/la"), kind=Kind.MOUNT))
    cluster.writer.commit_command(CreateMount(path=path("/ny"), cluster_id=child.cluster_id))
    assert router.require_owner(path("/la/x")) is cluster  # it is mounted elsewhere
    cluster.writer.commit_command(DeleteEntry(path=path("/ny"), kind=Kind.MOUNT))
    cluster.writer.commit_command(CreateMount(path=path("/la"), cluster_id=child.cluster_id))
    for holder in (False, True):
        with pytest.raises(Unmounted):
            router.require_owner(path("/la/x"), holder=holder)
    assert router.require_owner(path("/la"), holder=True) is cluster
    assert router.require_owner(path("/lb")) is cluster
    # A mount that moves is no circle of referrals either: a walk starts again, and finds it (R14).
    assert eventually(lambda: child.writer.put_facts([Delete(parent_state.UNMOUNTED_KEY)]) or True)
    assert eventually(lambda: child.is_mounted)
    assert router.require_owner(path("/la/x")) is child
    cluster.writer.commit_command(MoveEntry(path=path("/la"), new_path=path("/ny")))
    moved = "cluster .* has not received yet that it is mounted at /ny; its mount is still /la"
    for holder in (False, True):
        with pytest.raises(Unmounted, match=moved):
            router.require_owner(path("/ny/x"), holder=holder)
    assert router.require_owner(path("/ny"), holder=True) is cluster
    assert router.require_owner(path("/la/x")) is child
    call = Call(time.monotonic() + 60, is_active=lambda: True)
    with pytest.raises(Unmounted):
        router.resolve(resolve_pb2.ResolveRequest(path="/ny/x"), call)
    batch = resolve_pb2.BatchResolveRequest(paths=["/ny/x", "/lb"])
    answers = resolve_pb2.BatchResolveResponse.FromString(BatchResolve(router).answer(batch, call))
    assert [one.WhichOneof("kind") for one in answers.outcomes] == ["error", "absent"]
    assert isinstance(from_outcome(answers.outcomes[0].error), Unmounted)
    child.stop()


def test_of_the_rows_of_one_process_that_of_the_owner_is_listed(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The root receives what is mounted in /la later than /la itself has it."""
    kept = below_writes(cluster.replica.snapshot, CHILD, [TableRow(row(1), unix_ms())], unix_ms())
    cluster.writer.put_facts(kept)
    store = f"sqlite:///{tmp_path / 'la.sqlite'}"
    owner = started(ServerConfig.quick(path("/la"), cluster="la", store=store))
    mount = CreateMount(path=path("/la/1"), cluster_id="kc-new")
    eventually(lambda: owner.writer.commit_command(mount))
    call = Call(time.monotonic() + 60, is_active=lambda: True)
    for clusters in ((cluster, owner), (owner, cluster)):
        service = FederationService(ClusterRouter(clusters))
        listed = service.list_mounts(federation_pb2.ListMountsRequest(), call)
        assert [(one.mount, one.cluster_id) for one in listed.rows] == [
            ("/la", CHILD),
            ("/la/1", "kc-new"),
        ]
    # A cluster that is unmounted owns nothing any more: neither rows nor a name.
    config = ServerConfig.quick(
        path("/la"), cluster="gone", store=f"sqlite:///{tmp_path / 'gone.sqlite'}"
    )
    gone = started(config)
    first = CreateMount(path=path("/la/1"), cluster_id="kc-gone")
    eventually(lambda: gone.writer.commit_command(first))
    gone.writer.commit_command(CreateMount(path=path("/la/2"), cluster_id="kc-further"))
    gone.writer.put_facts([Put(parent_state.UNMOUNTED_KEY, b"no mount names it")])
    eventually(lambda: not gone.is_mounted)
    for three in ((cluster, owner, gone), (gone, owner, cluster)):
        service = FederationService(ClusterRouter(three))
        listed = service.list_mounts(federation_pb2.ListMountsRequest(), call)
        assert [(one.mount, one.cluster_id) for one in listed.rows] == [
            ("/la", CHILD),
            ("/la/1", "kc-new"),
        ]
        assert {one.cluster.cluster for one in listed.authorities} == {"root", "la", "gone"}
        assert list(listed.incomplete_cluster_ids) == [gone.cluster_id]
        assert unlisted_at(listed) == unlisted_at(listed, path("/la/1")) == []  # la is there now
    alone = FederationService(ClusterRouter([gone]))
    assert alone.list_mounts(federation_pb2.ListMountsRequest(), call).rows
    for one in (owner, gone):
        one.stop()


def test_a_child_that_no_mount_names_is_refused_for_good(cluster: Cluster) -> None:
    with pytest.raises(UnknownChild, match="kdir mount /late --child kc-late"):
        cluster.children.serve(LATE)


def test_S11_a_link_of_before_a_restore_ends_and_the_next_one_is_stored(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The restored store has neither the link nor what came over it."""
    children = children_of(cluster, Writing(cluster), 1_000.0)
    backup, file = tmp_path / "backup.sqlite", tmp_path / "root.sqlite"
    with closing(sqlite3.connect(file)) as source:
        source.execute("VACUUM INTO ?", (str(backup),))
    link = opened(children)
    incarnation = cluster.replica.snapshot.incarnation
    with closing(sqlite3.connect(backup)) as source, closing(sqlite3.connect(file)) as target:
        source.backup(target)
    eventually(lambda: cluster.replica.snapshot.incarnation != incarnation)
    assert child_hello(cluster.replica.snapshot, CHILD) is None
    assert polled(link) == []
    assert link.is_over
    link.close()
    again = opened(children)
    assert child_hello(cluster.replica.snapshot, CHILD) is not None
    again.close()
    children.stop()


@pytest.mark.parametrize("was_linked", [True, False])
def test_S11_a_restored_record_of_a_link_to_a_live_server_does_not_stay(
    cluster: Cluster, *, was_linked: bool
) -> None:
    """For the cluster's other servers the child would be linked for as long as that one lives."""
    children = children_of(cluster, Writing(cluster), 1_000.0)
    link = opened(children) if was_linked else None
    restored = link_write(CHILD, cluster.member().server_id, 7)
    others = link_write("kc-other", "another-server", 0)
    cluster.writer.put_facts((restored, others))
    other = FederationState(cluster.replica, path("/"), (), server_id="server-b")
    server = member_key(cluster.server_id)
    assert eventually(lambda: cluster.replica.snapshot.fact(server) is not None)
    found = other.child_liveness(CHILD)
    assert found is not None
    assert found.linked
    cluster.writer.commit_command(CreateMount(path=path("/o"), cluster_id="kc-other"))
    if link is not None:
        children.forget()
        assert link_of(cluster.replica.snapshot, CHILD) is not None
        link.close()
        assert eventually(lambda: not children.linked_count())
        children.keep_reported()
    children.forget()
    assert link_of(cluster.replica.snapshot, CHILD) is None
    assert link_of(cluster.replica.snapshot, "kc-other") is not None
    assert other.child_liveness(CHILD) is None
    again = opened(children)
    children.forget()
    assert link_of(cluster.replica.snapshot, CHILD) is not None
    again.close()
    children.stop()


def test_a_link_whose_reports_are_not_stored_any_more_ends(cluster: Cluster) -> None:
    """The store has a newer link of the child, or none: the child links again, and is stored."""
    children = children_of(cluster, Writing(cluster), 1_000.0)
    link = opened(children)
    cluster.writer.put_facts((link_write(CHILD, "another-server", 0),))
    table = federation_pb2.MountTable(rows=[row(1)])
    children.receive(link, federation_pb2.LinkRequest(mounts_below=table))
    polled(link)
    assert link.is_over
    assert kept_mounts(cluster) == []
    link.close()
    children.stop()


def test_a_child_that_stopped_trying_keeps_nobody_from_mounting_it_elsewhere(
    cluster: Cluster,
) -> None:
    """Its config may have been corrected since, as the message asked."""
    now = [0.0]
    children = children_of(cluster, Writing(cluster), 1_000.0, lambda: now[0])
    with pytest.raises(UnknownChild):
        children.serve(federation_pb2.Hello(cluster_id="kc-late", cluster="late", mount="/wrong"))
    with pytest.raises(MountMismatch, match="expects /wrong"):
        children.check_mount(path("/late"), "kc-late")
    now[0] = 61.0
    assert children.waiting() == []
    children.check_mount(path("/late"), "kc-late")
    assert children.identify("late")[0] == "kc-late"
    children.stop()


def test_of_too_many_children_that_wait_those_go_that_have_not_tried_for_longest() -> None:
    waiting, refusal = WaitingChildren(lambda: 0.0), UnknownChild("no mount names it")
    for number in (*range(1_000), 0, 1_000):
        waiting.remember(federation_pb2.Hello(cluster_id=f"kc-{number}"), refusal)
    assert waiting.hello("kc-0") is not None
    assert waiting.hello("kc-1") is None
    assert len(waiting.recent()) == 1_000


def test_the_last_contact_with_a_child_is_its_last_message_not_the_end_of_its_link(
    cluster: Cluster,
) -> None:
    now = [1_000_000_000]
    federation = FederationState(cluster.replica, path("/"), (), lambda: now[0])
    federation.note_child_contact(CHILD, 0, linked=True)
    now[0] += 30_000
    federation.note_child_contact(CHILD, 0, linked=False)
    live = federation.child_liveness(CHILD)
    assert live is not None
    assert (live.linked, federation.seconds_since_contact(live)) == (False, 30.0)


def test_a_report_of_the_mounts_below_counts_as_a_contact(cluster: Cluster) -> None:
    children = children_of(cluster, Writing(cluster), 1_000.0)
    link = opened(children)
    before = cluster.federation.child_liveness(CHILD)
    assert before is not None
    time.sleep(0.01)
    table = federation_pb2.MountTable(rows=[row(1)])
    children.receive(link, federation_pb2.LinkRequest(mounts_below=table))
    after = cluster.federation.child_liveness(CHILD)
    assert after is not None
    assert after.contact_ms > before.contact_ms
    link.close()
    children.stop()


def test_what_many_unmounted_children_reported_is_forgotten_in_steps(cluster: Cluster) -> None:
    """The rows of all would not fit one transaction of etcd."""
    writing = Writing(cluster)
    children = children_of(cluster, writing, 1_000.0)
    gone = [f"kc-{number}" for number in range(2 * LIMITS.max_writes)]
    cluster.writer.put_facts(
        [*(link_write(one, "server", 0) for one in gone), link_write(CHILD, "server", 0)]
    )
    children.forget()
    left = [key for key, _ in cluster.replica.snapshot.facts(LINKED)]
    assert left == [LINKED + CHILD.encode()]
    assert sum(writing.counts) == len(gone)
    assert all(LIMITS.hold(2, count) for count in writing.counts)
    children.stop()


def test_pending_work_that_is_dropped_does_not_run(cluster: Cluster) -> None:
    free = threading.Event()
    ran: list[str] = []
    try:
        for _ in range(100):
            cluster.children.run(free.wait)
        cluster.children.run(ran.append, "last")
        cluster.children.drop_pending()
    finally:
        free.set()
    cluster.children.close()
    assert ran == []
