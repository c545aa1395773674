"""The holder of the link to the parent, against a parent that says what the test tells it to."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from kdir.v1 import federation_pb2

from deploy.local.ports import LOOPBACK
from directory.api.grpc_server import DirectoryServer
from directory.federation import parent_link, parent_state
from directory.federation.child_links import ChildLink
from directory.federation.child_state import child_hello
from directory.federation.federation_state import endpoint_to_try, unix_ms
from directory.federation.link_records import encode_record
from directory.federation.parent_link import LinkStatus
from directory.federation.referral import Referral
from directory.namespace.command import CreateDirectory, CreateMount
from directory.namespace.keys import MOUNT_ROW, PARENT
from directory.server.certificates import PeerCredentials
from directory.server.cluster import Cluster
from directory.server.config import Limits, ServerConfig
from directory.store.addresses import open_store
from directory.store.base import (
    Committed,
    Delete,
    Guard,
    IncompatibleStore,
    Leadership,
    Put,
    Store,
    Transaction,
    Write,
)
from directory.store.replica import AppliedCommit, ReplicaState
from resolver.errors import LimitExceeded
from resolver.path import MAX_SEGMENTS
from resolver.path import Path as Path_
from tests.support.federation import eventually
from tests.support.lost_locks import lose_lock
from tests.support.scripted_parent import HEARTBEAT, ScriptedParent

MARK = b"f/read_only/mark"
WELCOME = federation_pb2.Welcome(
    mount="/la", epoch=1, parent_cluster_id="kc-root", parent_mount="/", incarnation="i"
)


def inherited(name: str, welcome: federation_pb2.Welcome = WELCOME) -> federation_pb2.Inherited:
    levels = [{"path": f"/{name}"}]
    return federation_pb2.Inherited(
        incarnation="i", levels=levels, mount=welcome.mount, epoch=welcome.epoch
    )


class Parent(ScriptedParent):
    """Parent that sends its word on each link, again where it is another, and stays."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.welcome = WELCOME
        self.beats = 0
        self.claims: list[str] = []
        self.rows: list[federation_pb2.MountRow] = []

    def send(
        self, requests: Iterator[federation_pb2.LinkRequest]
    ) -> Iterator[federation_pb2.LinkResponse]:
        threading.Thread(target=self._read, args=(requests,), daemon=True).start()
        yield federation_pb2.LinkResponse(welcome=self.welcome)
        reported = ""
        while True:
            if reported != self.name:
                reported = self.name
                yield federation_pb2.LinkResponse(inherited=inherited(reported, self.welcome))
                if self.rows:
                    table = federation_pb2.MountTable(rows=self.rows)
                    yield federation_pb2.LinkResponse(mount_table=table)
            self.ended.wait(0.1)
            yield HEARTBEAT

    def _read(self, requests: Iterator[federation_pb2.LinkRequest]) -> None:
        with suppress(grpc.RpcError):
            for request in requests:
                self.beats += request.HasField("heartbeat")
                self.claims.append(request.hello.kafka.kafka_cluster_id)


@pytest.fixture
def parent() -> Iterator[tuple[Parent, str]]:
    with Parent("old") as output:
        yield output, output.address


def commit(store: Store, *writes: Write) -> None:
    assert isinstance(store.commit(Transaction((), writes)), Committed)


def lose_role(cluster: Cluster) -> None:
    """Frees the lock of the link's role without the process knowing, as after a long pause."""
    assert cluster.parent_link is not None
    lose_lock(cluster.parent_link._leader.leadership)


def kept(store: Store) -> str:
    """Returns the level that is inherited, as the store has it."""
    rows = [
        row
        for row in store.read(parent_state.INHERITED_KEY)
        if row.key == parent_state.INHERITED_KEY
    ]
    levels = federation_pb2.Inherited.FromString(rows[0].value[8:]).levels if rows else []
    return levels[0].path if levels else ""


def config_of(
    where: str, address: str, heartbeat_seconds: float = 0.3, **limits: float
) -> ServerConfig:
    return ServerConfig.quick(
        Path_.parse("/la"),
        cluster="la",
        store=where,
        listen="127.0.0.1:0",
        parent=(address,),
        limits=Limits(link_heartbeat_seconds=heartbeat_seconds, **limits),  # type: ignore[arg-type]
    )


def test_S19_a_new_holder_compares_with_a_tree_as_new_as_its_election(
    tmp_path: Path, parent: tuple[Parent, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder before it kept another word, of which its own tree does not know yet."""
    monkeypatch.setattr(
        "directory.store.writer._FACTS_SECONDS", 0.05
    )  # so long a write is waited for
    output, address = parent
    where = f"sqlite:///{tmp_path / 'la.sqlite'}"
    cluster = Cluster.open(config_of(where, address))
    other = open_store(where, "la")
    gate = threading.Event()

    def hold(applied: AppliedCommit) -> None:
        if any(write.key == MARK for write in applied.writes):
            gate.wait(60)

    cluster.replica.subscribe(hold)
    before = other.elect("parent-link", "another")
    assert before is not None
    try:
        old = inherited("old").SerializeToString(deterministic=True)
        welcome = WELCOME.SerializeToString(deterministic=True)
        commit(other, Put(PARENT, bytes(8) + welcome))
        commit(other, Put(parent_state.INHERITED_KEY, bytes(8) + old))
        cluster.start()
        eventually(lambda: cluster.replica.state is ReplicaState.SERVING)
        eventually(lambda: cluster.link_status().standby)
        commit(other, Put(MARK, b""))  # the last that the cluster's replica sees
        eventually(lambda: cluster.replica.snapshot.fact(MARK) is not None)
        new = inherited("new").SerializeToString(deterministic=True)
        commit(other, Put(parent_state.INHERITED_KEY, bytes(8) + new))
        before.release()
        eventually(lambda: cluster.link_status().holder)
        output.ended.wait(1)  # time to link by the old tree
        assert kept(other) == "/new"
        gate.set()
        eventually(lambda: kept(other) == "/old")
        assert output.links
    finally:
        gate.set()
        output.ended.set()
        cluster.stop()
        other.close()


def test_S19_a_holder_resigns_when_its_tree_names_another(
    tmp_path: Path, parent: tuple[Parent, str]
) -> None:
    """Not only when it notices itself that its lock is gone."""
    output, address = parent
    where = f"sqlite:///{tmp_path / 'la.sqlite'}"
    cluster = Cluster.open(config_of(where, address))
    other = open_store(where, "la")
    try:
        cluster.start()
        eventually(lambda: cluster.link_status().linked)
        # The lock goes without the process knowing, as after a long pause; another is elected.
        lose_role(cluster)
        assert other.elect("parent-link", "another") is not None
        output.ended.set()  # the link ends, and the holder looks before it opens the next
        eventually(lambda: cluster.link_status().standby)
        assert not cluster.link_status().holder
    finally:
        output.ended.set()
        cluster.stop()
        other.close()


@pytest.mark.parametrize("stored_seconds", [-600, 600])
def test_a_server_that_is_elected_again_has_the_latest_contact_of_the_cluster(
    tmp_path: Path, parent: tuple[Parent, str], stored_seconds: int
) -> None:
    """Not of its own last term: what is inherited would end long before its time."""
    output, address = parent
    where = f"sqlite:///{tmp_path / 'la.sqlite'}"
    cluster = Cluster.open(config_of(where, address))
    other = open_store(where, "la")
    try:
        cluster.start()
        eventually(lambda: cluster.link_status().linked)
        lose_role(cluster)
        between = other.elect("parent-link", "another")
        assert between is not None
        output.ended.set()
        eventually(lambda: cluster.link_status().standby)
        stored_ms = unix_ms() + 1_000 * stored_seconds
        commit(other, parent_state.parent_contact_write(stored_ms, linked=False))
        between.release()
        eventually(lambda: cluster.link_status().holder)
        assert (cluster.link_status().contact_age_seconds is None) == (stored_seconds > 0)
        seconds = cluster.unconfirmed_seconds()
        assert seconds is not None
        assert seconds < 300
    finally:
        output.ended.set()
        cluster.stop()
        other.close()


@pytest.mark.parametrize(("stored_seconds", "expected"), [(10, 10), (900, 500)])
def test_a_server_that_is_just_elected_has_the_later_contact_of_its_own_and_the_stored_one(
    tmp_path: Path, stored_seconds: int, expected: int
) -> None:
    """Its own is of an earlier term until the link has compared them."""
    cluster = Cluster.open(config_of(f"sqlite:///{tmp_path / 'la.sqlite'}", "127.0.0.1:1"))
    status = LinkStatus(configured=True, holder=True, confirmed_seconds=500.0)
    cluster.link_status = lambda: status  # type: ignore[method-assign]
    try:
        cluster.replica.start()
        stored_ms = unix_ms() - 1_000 * stored_seconds
        commit(cluster.store, parent_state.parent_contact_write(stored_ms, linked=True))
        eventually(lambda: parent_state.parent_contact(cluster.replica.snapshot))
        seconds = cluster.unconfirmed_seconds()
        assert seconds is not None
        assert expected <= seconds < expected + 60
    finally:
        cluster.stop()


def test_what_comes_on_a_link_of_before_an_attach_is_no_update_of_since(
    tmp_path: Path, parent: tuple[Parent, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was detached and attached again, by another server, before the holder saw either."""
    output, address = parent
    where = f"sqlite:///{tmp_path / 'la.sqlite'}"
    # No heartbeat may be missed: a link that ends early writes when it was last there, and waits,
    # in vain here, to see that.
    cluster = Cluster.open(config_of(where, address, heartbeat_seconds=10))
    other = open_store(where, "la")
    gate = threading.Event()

    def hold(applied: AppliedCommit) -> None:
        if any(write.key == MARK for write in applied.writes):
            gate.wait(60)

    def reported() -> bytes | None:
        rows = other.read(parent_state.FIRST_RECEIPT_KEY)
        return next((row.value for row in rows if row.key == parent_state.FIRST_RECEIPT_KEY), None)

    cluster.replica.subscribe(hold)
    try:
        cluster.start()
        eventually(lambda: kept(other) == "/old")
        before = eventually(reported)
        eventually(lambda: cluster.link_status().linked)
        eventually(lambda: cluster.replica.snapshot.fact(parent_state.FIRST_RECEIPT_KEY) == before)
        monkeypatch.setattr("directory.store.writer._FACTS_SECONDS", 0.05)
        commit(other, Put(MARK, b""))  # the last that the cluster's replica sees
        eventually(lambda: cluster.replica.snapshot.fact(MARK) is not None)
        commit(other, Put(parent_state.DETACHED_KEY, b"somebody"))
        attached = (Delete(parent_state.DETACHED_KEY), Put(parent_state.ATTACHED_KEY, b"again"))
        assert isinstance(other.commit(Transaction((), attached)), Committed)
        links = output.links
        output.name = "late"
        # The store refuses it, and the link ends: it was one of before.
        eventually(lambda: output.links > links)
        assert (kept(other), reported()) == ("/old", before)
        gate.set()
        eventually(lambda: kept(other) == "/late")
        assert (reported() or b"").endswith(b":again")
    finally:
        gate.set()
        output.ended.set()
        cluster.stop()
        other.close()


@pytest.mark.parametrize("error", [IncompatibleStore("a store of another"), RuntimeError("a bug")])
def test_a_link_is_opened_once_the_election_no_longer_fails(
    tmp_path: Path,
    parent: tuple[Parent, str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    """Another store's file lay at its path for a while."""
    _, address = parent
    cluster = Cluster.open(config_of(f"sqlite:///{tmp_path / 'la.sqlite'}", address))
    elect, failures = cluster.store.elect, list[str]()
    is_mended = threading.Event()

    def fail(role: str, candidate: str) -> Leadership | None:
        if role == "parent-link" and not is_mended.is_set():
            failures.append(role)
            raise error
        return elect(role, candidate)

    monkeypatch.setattr(cluster.store, "elect", fail)
    cluster.start()
    try:
        assert eventually(lambda: len(failures) >= 3)
        assert cluster.link_status().message in (
            "a store of another",
            "the link to the parent failed by a bug; the log says which",
        )
        is_mended.set()
        assert eventually(lambda: cluster.link_status().linked)
    finally:
        cluster.stop()


def test_a_pin_that_comes_right_after_the_first_hello_is_sent(
    tmp_path: Path, parent: tuple[Parent, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output, address = parent

    def claim(_: Cluster) -> federation_pb2.KafkaClaim | None:
        """None for the first hello, which the thread that begins links makes."""
        begins = threading.current_thread().name == "parent-link"
        return None if begins else federation_pb2.KafkaClaim(kafka_cluster_id="pinned")

    monkeypatch.setattr(Cluster, "kafka_claim", claim)
    cluster = Cluster.open(config_of(f"sqlite:///{tmp_path / 'la.sqlite'}", address))
    try:
        cluster.start()
        eventually(lambda: "pinned" in output.claims)
    finally:
        output.ended.set()
        cluster.stop()


def test_a_link_stays_open_while_the_mount_table_is_committed(
    tmp_path: Path, parent: tuple[Parent, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For many more than the three heartbeats after which a parent is taken for silent."""
    output, address = parent
    output.rows = [federation_pb2.MountRow(mount="/ny", cluster_id="kc-ny", epoch=1)]
    cluster = Cluster.open(config_of(f"sqlite:///{tmp_path / 'la.sqlite'}", address))
    go_on, began = threading.Event(), threading.Event()
    put_facts = cluster.writer.put_facts

    def wait_and_put(writes: Sequence[Write], guards: Sequence[Guard] = ()) -> int:
        if any(write.key.startswith(MOUNT_ROW) for write in writes):
            began.set()
            assert go_on.wait(60)
        return put_facts(writes, guards)

    monkeypatch.setattr(cluster.writer, "put_facts", wait_and_put)
    cluster.start()
    try:
        assert began.wait(60)
        before = output.beats
        assert eventually(lambda: output.beats >= before + 12)
        go_on.set()
        assert eventually(lambda: list(parent_state.table_rows(cluster.replica.snapshot)))
        assert output.links == 1
    finally:
        go_on.set()
        cluster.stop()


@pytest.mark.parametrize("limit", ["store", "max_value_bytes"])
def test_what_is_refused_of_the_mount_table_keeps_nothing_else_from_being_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """A full store takes it once there is room; of a change that is too large only that step is
    left out.
    """
    monkeypatch.setattr(parent_link, "_TABLE_WRITES", 1)
    with Parent("a") as output:
        output.rows = [
            federation_pb2.MountRow(mount=f"/{name}", cluster_id=f"kc-{name}", epoch=1)
            for name in ("m", "n", "o")
        ]
        cluster = Cluster.open(config_of(f"sqlite:///{tmp_path / 'la.sqlite'}", output.address))
        put_facts, refused = cluster.writer.put_facts, threading.Event()

        def refusing(writes: tuple[Write, ...], guards: tuple[Guard, ...] = ()) -> int:
            is_table = any(one.key.startswith(MOUNT_ROW) for one in writes)
            if is_table and not refused.is_set():
                refused.set()
                raise LimitExceeded("refused", limit=limit)
            return put_facts(writes, guards)

        monkeypatch.setattr(cluster.writer, "put_facts", refusing)
        cluster.start()
        try:
            expected = 3 if limit == "store" else 2
            assert refused.wait(60)
            assert eventually(
                lambda: len(list(parent_state.table_rows(cluster.replica.snapshot))) == expected
            )
        finally:
            output.ended.set()
            cluster.stop()


class OneHeartbeatForAll(Parent):
    """Parent that shares heartbeats between links: it sends them on the first alone."""

    def __init__(self) -> None:
        super().__init__("one")
        self.is_silent = False
        self.linked_at: list[float] = []

    def send(
        self, requests: Iterator[federation_pb2.LinkRequest]
    ) -> Iterator[federation_pb2.LinkResponse]:
        is_first = self.links == 1
        self.linked_at.append(time.monotonic())
        threading.Thread(target=self._read, args=(requests,), daemon=True).start()
        welcome = federation_pb2.Welcome(link_group="of this process")
        welcome.MergeFrom(WELCOME)
        yield federation_pb2.LinkResponse(welcome=welcome)
        yield federation_pb2.LinkResponse(inherited=inherited(self.name))
        while not self.ended.wait(0.1):
            if is_first and not self.is_silent:
                yield HEARTBEAT


def test_links_of_a_process_share_heartbeats_and_one_whose_parent_hangs_is_noticed(
    tmp_path: Path,
) -> None:
    with OneHeartbeatForAll() as output:
        clusters = [
            Cluster.open(config_of(f"sqlite:///{tmp_path / name}.sqlite", output.address))
            for name in ("one", "two")
        ]
        first, second = clusters
        try:
            for one in clusters:
                one.start()
                assert eventually(lambda one=one: one.link_status().linked)  # type: ignore[misc]
            assert eventually(lambda: output.links == 3)
            # Nothing came on it for longer than three heartbeats: they came on the first.
            _, begun, again = output.linked_at
            assert again - begun > 2.0
            assert first.link_status().linked
            assert eventually(lambda: second.link_status().linked)
            output.is_silent = True
            assert eventually(lambda: output.links >= 4)
        finally:
            for one in clusters:
                one.stop()


class SilentParent(ScriptedParent):
    """Parent that takes a link and sends nothing."""

    def send(
        self, requests: Iterator[federation_pb2.LinkRequest]
    ) -> Iterator[federation_pb2.LinkResponse]:
        self.ended.wait(60)
        yield HEARTBEAT


def test_the_status_says_that_the_parent_was_silent(tmp_path: Path) -> None:
    with SilentParent() as output:
        cluster = Cluster.open(config_of(f"sqlite:///{tmp_path / 'la.sqlite'}", output.address))
        cluster.start()
        try:
            assert eventually(lambda: output.links >= 2)
            assert "silent" in cluster.link_status().message
        finally:
            output.ended.set()
            cluster.stop()


def test_after_a_silent_parent_the_next_link_has_another_connection(tmp_path: Path) -> None:
    """A connection that is half open is kept by no other link that uses it."""
    with SilentParent() as output, PeerCredentials(None).channel(output.address) as shared:
        cluster = Cluster.open(config_of(f"sqlite:///{tmp_path / 'la.sqlite'}", output.address))
        cluster.start()
        try:
            assert eventually(lambda: output.links >= 2)
            with PeerCredentials(None).channel(output.address) as found:
                assert found is not shared
        finally:
            output.ended.set()
            cluster.stop()


class SeldomParent(Parent):
    """Parent that reports a long interval of heartbeats, sends its state and hangs."""

    def __init__(self, link_group: str) -> None:
        super().__init__("seldom")
        self.welcome = federation_pb2.Welcome(heartbeat_seconds=3_600, link_group=link_group)
        self.welcome.MergeFrom(WELCOME)

    def send(
        self, requests: Iterator[federation_pb2.LinkRequest]
    ) -> Iterator[federation_pb2.LinkResponse]:
        yield federation_pb2.LinkResponse(welcome=self.welcome)
        yield federation_pb2.LinkResponse(inherited=inherited(self.name))
        self.ended.wait(60)


@pytest.mark.parametrize("link_group", ["", "of this process"])
def test_a_parent_that_hangs_confirms_no_longer_than_inherited_allows_last(
    tmp_path: Path, link_group: str
) -> None:
    """Whatever interval it reported."""
    where = f"sqlite:///{tmp_path / 'la.sqlite'}"
    with SeldomParent(link_group) as output:
        config = config_of(where, output.address, inherited_grants_max_age_seconds=1.0)
        cluster = Cluster.open(config)
        cluster.start()
        try:
            assert eventually(lambda: cluster.link_status().linked)
            assert eventually(lambda: output.links >= 2)
        finally:
            output.ended.set()
            cluster.stop()


@pytest.mark.parametrize(("above", "below"), [(0.6, 3.0), (3.0, 0.6)])
def test_ends_with_different_intervals_of_heartbeats_keep_their_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: float, below: float
) -> None:
    """For longer than three of the shorter ones, which a link has for its beginning."""
    root = Cluster.open(
        ServerConfig.quick(
            Path_.parse("/"),
            store=f"sqlite:///{tmp_path / 'root.sqlite'}",
            limits=Limits(link_heartbeat_seconds=above),
        )
    )
    server = DirectoryServer([root], f"{LOOPBACK}:0")
    la = Cluster.open(config_of(f"sqlite:///{tmp_path / 'la.sqlite'}", server.address, below))
    links: list[federation_pb2.Hello] = []
    serve = root.children.serve

    def count(hello: federation_pb2.Hello) -> ChildLink:
        links.append(hello)
        return serve(hello)

    try:
        root.start()
        server.start()
        mount = CreateMount(path=Path_.parse("/la"), cluster_id=la.cluster_id)
        assert eventually(lambda: root.replica.state is ReplicaState.SERVING)
        eventually(lambda: root.writer.commit_command(mount))
        monkeypatch.setattr(root.children, "serve", count)
        la.start()
        assert eventually(lambda: la.link_status().linked)
        began = time.monotonic()
        assert eventually(lambda: time.monotonic() - began > 3.0)
        assert la.link_status().linked
        assert len(links) == 1
        hello = child_hello(root.replica.snapshot, la.cluster_id)
        welcome = la.federation.view().position.parent
        assert hello is not None
        assert welcome is not None
        stored = hello[0].heartbeat_seconds, welcome.heartbeat_seconds
        assert stored == (0.0, 0.0), "they are of one link"
    finally:
        la.stop()
        server.drain()
        root.stop()


def test_what_names_a_link_is_not_kept(tmp_path: Path) -> None:
    with OneHeartbeatForAll() as output:
        cluster = Cluster.open(config_of(f"sqlite:///{tmp_path / 'la.sqlite'}", output.address))
        cluster.start()
        try:
            assert eventually(lambda: cluster.link_status().linked)
            known = cluster.federation.view().position.parent
            assert known is not None
            assert known.parent_cluster_id == WELCOME.parent_cluster_id
            assert not known.link_group
        finally:
            cluster.stop()


@pytest.mark.parametrize(("mount", "epoch"), [("/eu/us/la", 2), ("/us/la", 3)])
def test_S21_a_cluster_with_a_mount_that_is_too_deep_already_links_to_its_parent(
    tmp_path: Path, parent: tuple[Parent, str], mount: str, epoch: int
) -> None:
    """The parent mounts it where it is, or at a shorter path that is too long for that mount too:
    only a mount that has a valid path refuses a place where it would have none.
    """
    output, address = parent
    output.welcome = moved_to(mount, epoch)
    config = config_of(f"sqlite:///{tmp_path / 'la.sqlite'}", address)
    deep = Path_.parse("/la" + "/d" * (MAX_SEGMENTS - 1))
    before = Cluster.open(replace(config, parent=()))
    before.start()
    try:
        eventually(lambda: before.replica.state is ReplicaState.SERVING)
        before.writer.commit_command(CreateDirectory(path=deep.parent, make_parents=True))
        before.writer.commit_command(CreateMount(path=deep, cluster_id="kc-deep"))
        stored = moved_to("/eu/us/la", 2).SerializeToString()
        commit(before.store, Put(PARENT, encode_record(unix_ms(), stored)))
    finally:
        before.stop()
    cluster = Cluster.open(config)
    cluster.start()
    try:
        eventually(lambda: cluster.link_status().linked)
        view = cluster.federation.view()
        assert str(view.position.mount) == mount
        assert view.too_deep.keys() == {"kc-deep"}
    finally:
        cluster.stop()


def moved_to(mount: str, epoch: int) -> federation_pb2.Welcome:
    output = federation_pb2.Welcome.FromString(WELCOME.SerializeToString())
    output.mount, output.epoch = mount, epoch
    return output


def welcome_at(*endpoints: str) -> federation_pb2.Welcome:
    output = federation_pb2.Welcome(parent_endpoints=endpoints)
    output.MergeFrom(WELCOME)
    return output


def test_where_a_parent_says_that_it_is_comes_after_the_config_and_goes_with_it(
    tmp_path: Path, parent: tuple[Parent, str], caplog: pytest.LogCaptureFixture
) -> None:
    output, address = parent
    where = f"sqlite:///{tmp_path / 'la.sqlite'}"
    many = [f"127.0.0.1:{port}" for port in range(2_000, 7_000)]
    output.welcome = welcome_at("unix:/run/docker.sock", address, "127.0.0.1:22", "x\n:1", *many)
    config = config_of(where, address)
    reported = tuple(many[:18])  # after the one of the config, and the one of another service
    first = Cluster.open(config)
    first.start()
    try:
        eventually(lambda: first.parent_link is not None and first.parent_link.status().linked)
        assert first.federation.parent_endpoints == (address, *reported)
        assert "port 22 is not allowed" in caplog.text
        assert "no host:port, repeated, or too many" in caplog.text
    finally:
        first.stop()
    again = Cluster.open(config)
    again.start()
    try:
        eventually(lambda: again.replica.state is ReplicaState.SERVING)
        assert again.federation.parent_endpoints == (address, *reported), "it is kept"
        up = again.federation.outside(Path_.parse("/ny"))
        assert isinstance(up, Referral)
        assert up.cluster_id == WELCOME.parent_cluster_id
    finally:
        again.stop()
    # Another parent in the config: nothing that the one before said is asked.
    other = Cluster.open(replace(config, parent=("127.0.0.1:1",)))
    other.start()
    try:
        eventually(lambda: other.replica.state is ReplicaState.SERVING)
        assert other.federation.parent_endpoints == ("127.0.0.1:1",)
        up = other.federation.outside(Path_.parse("/ny"))
        assert isinstance(up, Referral)
        assert (up.endpoints, up.cluster_id) == (("127.0.0.1:1",), "")
    finally:
        other.stop()


def test_where_a_parent_says_that_it_is_must_be_in_the_allow_list(
    tmp_path: Path, parent: tuple[Parent, str], caplog: pytest.LogCaptureFixture
) -> None:
    output, address = parent
    output.welcome = welcome_at("10.1.2.3:7420", "192.0.2.1:7420", "la.example:7420", "x.test:7420")
    config = replace(
        config_of(f"sqlite:///{tmp_path / 'la.sqlite'}", address),
        dial_allow=("10.0.0.0/8", "example"),
    )
    cluster = Cluster.open(config)
    cluster.start()
    try:
        eventually(lambda: cluster.parent_link is not None and cluster.parent_link.status().linked)
        kept = (address, "10.1.2.3:7420", "la.example:7420")
        assert cluster.federation.parent_endpoints == kept
        assert "192.0.2.1:7420: not in the allow list (10.0.0.0/8, example)" in caplog.text
        assert "x.test:7420: not in the allow list (10.0.0.0/8, example)" in caplog.text
    finally:
        cluster.stop()


def test_a_parent_is_asked_in_rotation_where_the_config_says_and_now_and_then_elsewhere() -> None:
    own, reported = ("a:1", "b:1"), ("x:1", "y:1")
    assert [endpoint_to_try(own, (), attempt) for attempt in range(4)] == [
        "a:1",
        "b:1",
        "a:1",
        "b:1",
    ]
    asked = [endpoint_to_try(own, reported, attempt) for attempt in range(9)]
    assert asked == ["a:1", "b:1", "x:1", "a:1", "b:1", "y:1", "a:1", "b:1", "x:1"]
