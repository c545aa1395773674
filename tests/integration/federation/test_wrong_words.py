"""What one side of a link says wrongly is not kept, and reaches nobody else (R5)."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kdir.v1 import federation_pb2, federation_pb2_grpc

from deploy.local.ports import LOOPBACK
from directory.federation.link_records import encode_record
from directory.namespace.command import CreateMount, DeleteEntry
from directory.namespace.entry import Kind
from directory.namespace.keys import INHERITED, PARENT
from directory.server.cluster import Cluster
from directory.server.config import ServerConfig
from directory.store.addresses import open_store
from directory.store.base import Committed, Put, Transaction
from resolver.path import MAX_SEGMENTS
from resolver.path import Path as Path_
from tests.support.command_line import run
from tests.support.federation import FAST, Federation, Server, eventually


def _row(mount: str, cluster_id: str) -> federation_pb2.MountRow:
    return federation_pb2.MountRow(
        mount=mount, cluster_id=cluster_id, epoch=1, endpoints=["127.0.0.1:9"]
    )


def test_R5_a_child_reports_only_what_is_below_it(federation: Federation) -> None:
    federation.start("/")
    la = federation.join("/la", "/")
    ny = federation.join("/ny", "/")
    deep = federation.join("/ny/deep", "/ny")
    la.mount_child("/la/x", "kc-liar")
    output: queue.SimpleQueue[federation_pb2.LinkRequest | None] = queue.SimpleQueue()
    output.put(
        federation_pb2.LinkRequest(
            hello=federation_pb2.Hello(cluster_id="kc-liar", cluster="liar", mount="/la/x")
        )
    )
    rows = [
        _row("/la/x/honest", "kc-honest"),
        _row("/ny/deep", deep.cluster_id),
        _row("/ny", ny.cluster_id),
        _row("/la/x", "kc-liar"),
    ]
    output.put(federation_pb2.LinkRequest(mounts_below=federation_pb2.MountTable(rows=rows)))
    call = federation_pb2_grpc.FederationServiceStub(la.channel).Link(iter(output.get, None))
    try:
        eventually(lambda: "/la/x/honest" in la.mounted())
        # The table of the parent comes in its own time, and the endpoints of a mount once it is
        # linked.
        own = {"/ny/deep": [deep.address], "/ny": [ny.address]}

        def are_its_own() -> bool:
            by_mount = {row.mount: list(row.endpoints) for row in la.mounts().rows}
            return own.items() <= by_mount.items()

        eventually(are_its_own)
    finally:
        output.put(None)
        call.cancel()


class _WrongParent(federation_pb2_grpc.FederationServiceServicer):
    """Mounts its child at what is no path, or not below itself."""

    def __init__(self) -> None:
        self.asked = 0

    def Link(
        self, requests: Iterator[federation_pb2.LinkRequest], context: grpc.ServicerContext
    ) -> Iterator[federation_pb2.LinkResponse]:
        next(requests)
        mount = ("la//x", "/", "/elsewhere")[self.asked % 3]
        self.asked += 1
        yield federation_pb2.LinkResponse(
            welcome=federation_pb2.Welcome(
                mount=mount, epoch=1, parent_cluster_id="kc-wrong", parent_mount="/a"
            )
        )

    def ListMounts(  # pragma: no cover - nobody asks
        self, request: federation_pb2.ListMountsRequest, context: grpc.ServicerContext
    ) -> federation_pb2.ListMountsResponse:
        return federation_pb2.ListMountsResponse()


def test_a_parent_that_says_nonsense_is_not_believed_now_or_after_a_restart(
    tmp_path: Path,
) -> None:
    wrong = _WrongParent()
    parent = grpc.server(ThreadPoolExecutor(2))
    federation_pb2_grpc.add_FederationServiceServicer_to_server(wrong, parent)
    port = parent.add_insecure_port(f"{LOOPBACK}:0")
    parent.start()
    try:
        settings = {**FAST, "parent": [f"{LOOPBACK}:{port}"]}
        with Server(tmp_path, "/la", settings) as child:
            eventually(lambda: child.mkdir("/la/a"))
            eventually(lambda: wrong.asked >= 4)
            child.restart()
            eventually(lambda: child.outcome("/la/a") == "resolution")
            assert not child.status().parent.linked
            child.close()
    finally:
        parent.stop(0)


def test_what_an_unmounted_child_reported_is_forgotten(tmp_path: Path) -> None:
    config = ServerConfig.quick(
        Path_.parse("/la"), store=f"sqlite:///{tmp_path / 'la.sqlite'}", listen="127.0.0.1:0"
    )
    cluster = Cluster.open(config)
    cluster.start()
    try:
        eventually(lambda: cluster.replica.reported_revision >= 0)  # later than the snapshot
        path = Path_.parse("/la/x")
        cluster.writer.commit_command(CreateMount(path=path, cluster_id="kc-child"))
        hello = federation_pb2.Hello(cluster_id="kc-child", cluster="x", mount="/la/x")
        link = cluster.children.serve(hello)
        assert eventually(lambda: link.poll() is not None)  # the welcome
        cluster.children.forget()
        assert cluster.federation.has_ever_linked("kc-child")
        assert cluster.federation.child_liveness("kc-child") is not None
        link.close()
        eventually(lambda: not cluster.children.linked_count())
        cluster.writer.commit_command(DeleteEntry(path=path, kind=Kind.MOUNT))

        def is_forgotten() -> bool:
            cluster.children.forget()
            federation = cluster.federation
            return not (
                federation.has_ever_linked("kc-child") or federation.child_liveness("kc-child")
            )

        assert eventually(is_forgotten)
    finally:
        cluster.stop()


NONSENSE = b"\xff\xfe\0nonsense\xff"


def _spoil(server: Server, key: bytes) -> None:
    """Writes nonsense into a server's store while it runs."""
    with closing(open_store(server.settings["store"], server.cluster)) as store:
        done = store.commit(Transaction((), (Put(key, NONSENSE),)))
        assert isinstance(done, Committed)


def _is_spoiled(server: Server, key: bytes) -> bool:
    """By the store itself: a server sees a moment later what was written into it."""
    with closing(open_store(server.settings["store"], server.cluster)) as store:
        return any(row.key == key and row.value == NONSENSE for row in store.read(key))


@pytest.mark.parametrize("key", [INHERITED, PARENT])
def test_S21_what_was_spoiled_in_the_store_the_parent_says_again(
    federation: Federation, key: bytes
) -> None:
    federation.start("/")
    la = federation.join("/la", "/")
    deep = federation.join("/la/deep", "/la")
    la.mkdir("/la/a")
    deep.mkdir("/la/deep/b")
    eventually(lambda: la.outcome("/la/a") == "resolution")
    _spoil(la, key)
    eventually(lambda: not _is_spoiled(la, key))
    eventually(lambda: la.status().parent.linked and not la.status().unreadable_value_count)
    eventually(lambda: la.outcome("/la/a") == "resolution")
    eventually(lambda: deep.outcome("/la/deep/b") == "resolution")


def test_S21_the_status_names_a_mount_that_is_too_deep_at_the_clusters_new_mount(
    federation: Federation,
) -> None:
    root = federation.start("/")
    root.mkdir("/d" * (MAX_SEGMENTS - 1))
    root.mount_child("/d" * MAX_SEGMENTS, "kc-deep")
    moved = federation_pb2.Welcome(mount="/b", epoch=2).SerializeToString()
    with closing(open_store(root.settings["store"], root.cluster)) as store:
        store.commit(Transaction((), (Put(PARENT, encode_record(7, moved)),)))
    eventually(lambda: root.status().unreadable_value_count == 1)
    (named,) = root.status().unreadable_values
    assert "/d/d has no valid path at the mount /b" in named


def test_S21_without_a_parent_the_command_line_mends_it(federation: Federation) -> None:
    federation.start("/")
    la = federation.join("/la", "/")
    la.mkdir("/la/a")
    federation["/"].kill()
    eventually(lambda: not la.status().parent.linked)
    _spoil(la, INHERITED)
    eventually(lambda: la.outcome("/la/a") == "NOT_READY")
    health: Any = health_pb2_grpc.HealthStub(la.channel)
    asked = health_pb2.HealthCheckRequest()
    eventually(lambda: health.Check(asked).status == health_pb2.HealthCheckResponse.NOT_SERVING)
    doctor = run(["doctor", "--at", la.address])
    assert "awaiting-parent" in doctor.out
    assert "kdir parent detach" in doctor.out + doctor.err
    assert run(["parent", "detach", "-y", "--at", la.address]).code == 0
    assert la.outcome("/la/a") == "resolution"
    assert "awaiting-parent" not in run(["doctor", "--at", la.address]).out
