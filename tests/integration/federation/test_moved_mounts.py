"""A mount that moves is answered at its new path by what is inherited there, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from kdir.v1 import (
    access_pb2,
    access_pb2_grpc,
    admin_pb2,
    admin_pb2_grpc,
    entry_pb2,
)

from tests.support.command_line import run
from tests.support.federation import Federation, Server, eventually
from tests.support.link_proxy import LinkProxy

pytestmark = pytest.mark.slow


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    """Yields a root in which only its operator, who moves mounts there, may describe what is at or
    below ``/shut``. In the clusters below no caller has a grant.
    """
    with Federation(tmp_path) as made:
        root = made.start("/", auth={"super_users": ["User:ANONYMOUS"], "allow_anonymous": True})
        for path in ("/free", "/shut", "/else"):
            root.mkdir(path)
        deny(root, "/shut")
        yield made


def deny(server: Server, path: str) -> None:
    grant = access_pb2.Grant(
        principal="User:*",
        operation=access_pb2.OPERATION_DESCRIBE,
        permission=access_pb2.PERMISSION_DENY,
    )
    request = access_pb2.AddGrantsRequest(path=path, grants=[grant])
    server.ask(access_pb2_grpc.AccessServiceStub, "AddGrants", request)


def move(server: Server, path: str, new_path: str) -> None:
    server.entries("MoveEntry", path=path, new_path=new_path)


def mount_of(server: Server) -> str:
    return str(server.status().authority.cluster.mount)


def is_linked_at(server: Server, path: str) -> bool:
    return bool(server.status().parent.linked) and mount_of(server) == path


def is_resolved(server: Server, path: str) -> bool:
    return server.outcome(path) == "resolution"


@contextmanager
def asked_all_the_time(server: Server, path: str) -> Iterator[set[str]]:
    """Yields the outcomes that two clients got of a path meanwhile, who ask as fast as they can."""
    outcomes: set[str] = set()
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            outcomes.add(server.outcome(path))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield outcomes
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def through(federation: Federation, proxy: LinkProxy, mount: str) -> Server:
    """Returns a child of the root that is linked through a proxy, with a directory ``x``."""
    child = federation.start(mount, parent=None)
    child.process.stop()
    child.settings["parent"] = [proxy.address]
    child.start()
    federation["/"].mount_child(mount, child.cluster_id)
    eventually(lambda: child.status().parent.linked)
    child.mkdir(f"{mount}/x")
    return child


def test_twenty_moves_below_a_deny_never_let_anybody_in_at_the_new_path(
    federation: Federation,
) -> None:
    root, m = federation["/"], federation.join("/free/m", "/")
    m.mkdir("/free/m/x")
    with asked_all_the_time(m, "/shut/m/x") as outcomes:
        for _ in range(20):
            move(root, "/free/m", "/shut/m")
            eventually(lambda: mount_of(m) == "/shut/m")
            eventually(lambda: m.outcome("/shut/m/x") == "absent")
            move(root, "/shut/m", "/free/m")
            eventually(lambda: m.outcome("/free/m/x") == "resolution")
    assert "absent" in outcomes
    assert "resolution" not in outcomes


def test_the_clusters_below_a_moved_mount_never_let_anybody_in_at_their_new_paths(
    federation: Federation,
) -> None:
    root = federation["/"]
    federation.join("/free/m", "/")
    below = federation.join("/free/m/t", "/free/m")
    below.mkdir("/free/m/t/x")
    with asked_all_the_time(below, "/shut/m/t/x") as outcomes:
        for _ in range(5):
            move(root, "/free/m", "/shut/m")
            eventually(lambda: mount_of(below) == "/shut/m/t")
            eventually(lambda: below.outcome("/shut/m/t/x") == "absent")
            move(root, "/shut/m", "/free/m")
            eventually(lambda: below.outcome("/free/m/t/x") == "resolution")
    assert "absent" in outcomes
    assert "resolution" not in outcomes


def test_a_parent_that_dies_between_the_mount_and_what_is_inherited_leaves_both_as_they_were(
    federation: Federation,
) -> None:
    root = federation["/"]
    with LinkProxy(root.address) as proxy:
        m = through(federation, proxy, "/free/m")
        proxy.cut_before.add("inherited")
        move(root, "/free/m", "/shut/m")
        assert proxy.cut.wait(20)
        assert any(one.remounted.mount == "/shut/m" for one in proxy.sent)
        root.kill()
        for _ in range(2):  # also after a restart
            eventually(lambda: not m.status().parent.linked)
            assert m.outcome("/shut/m/x") != "resolution"
            assert m.outcome("/free/m/x") == "resolution"
            assert m.resolve("/free/m/x").authority.HasField("unconfirmed_seconds")
            m.kill()
            m.start()
        with asked_all_the_time(m, "/shut/m/x") as outcomes:
            root.start()
            proxy.mend()
            eventually(lambda: m.outcome("/shut/m/x") == "absent")
        assert "resolution" not in outcomes
        assert m.outcome("/free/m/x") != "resolution"


def test_a_second_mount_is_kept_with_what_is_inherited_there(federation: Federation) -> None:
    """Mounted, unmounted, and mounted at a path below a deny: the gap is the same one."""
    root = federation["/"]
    with LinkProxy(root.address) as proxy:
        m = through(federation, proxy, "/free/m")
        root.entries("DeleteEntry", path="/free/m")
        eventually(lambda: m.outcome("/free/m/x") == "UNMOUNTED")
        m.process.stop()
        m.settings["mount"] = "/shut/m"
        proxy.cut_before.add("inherited")
        m.start()
        root.mount_child("/shut/m", m.cluster_id)
        assert proxy.cut.wait(20)
        for path in ("/free/m/x", "/shut/m/x"):
            assert m.outcome(path) == "UNMOUNTED"
        m.restart()
        eventually(lambda: m.outcome("/shut/m/x") == "UNMOUNTED")
        assert m.outcome("/free/m/x") == "UNMOUNTED"
        proxy.mend()
        eventually(lambda: m.outcome("/shut/m/x") == "absent")
        assert m.status().parent.linked


def test_a_mount_that_moved_while_its_cluster_was_detached_is_kept_the_same_way(
    federation: Federation,
) -> None:
    root = federation["/"]
    with LinkProxy(root.address) as proxy:
        m = through(federation, proxy, "/free/m")
        detach = admin_pb2.DetachParentRequest(keep_inherited=True)
        m.ask(admin_pb2_grpc.AdminServiceStub, "DetachParent", detach)
        eventually(lambda: not m.status().parent.linked)
        move(root, "/free/m", "/shut/m")
        proxy.cut_before.add("inherited")
        m.ask(admin_pb2_grpc.AdminServiceStub, "AttachParent", admin_pb2.AttachParentRequest())
        assert proxy.cut.wait(20)
        assert m.outcome("/free/m/x") == "resolution"
        assert m.outcome("/shut/m/x") != "resolution"
        proxy.mend()
        with asked_all_the_time(m, "/shut/m/x") as outcomes:
            eventually(lambda: m.outcome("/shut/m/x") == "absent")
        assert "resolution" not in outcomes


def test_a_first_mount_is_confirmed_with_what_is_inherited_there(federation: Federation) -> None:
    root = federation["/"]
    with LinkProxy(root.address) as proxy:
        proxy.cut_before.add("inherited")
        m = federation.start("/shut/m", parent=None)
        m.process.stop()
        m.settings["parent"] = [proxy.address]
        m.start()
        root.mount_child("/shut/m", m.cluster_id)
        assert proxy.cut.wait(20)
        assert m.resolve("/shut/m").authority.cluster.epoch == 0
        assert m.resolve("/shut/m").authority.HasField("unconfirmed_seconds")
        proxy.mend()
        eventually(lambda: m.status().parent.linked)
        assert m.outcome("/shut/m") == "absent"


def test_below_a_parent_that_does_not_know_what_is_above_a_cluster_serves_unconfirmed(
    federation: Federation,
) -> None:
    """What is inherited there is not known to anybody yet, and a site's own paths go on."""
    root = federation["/"]
    la = federation.start("/la", "/")  # mounted by nobody yet
    below = federation.start("/la/t", "/la")
    below.mkdir("/la/t/x")
    la.mount_child("/la/t", below.cluster_id)
    eventually(lambda: "has not sent yet what is inherited" in below.status().parent.message)
    found = run(["resolve", "/la/t/x/", "--at", la.address])
    assert found.code == 0, found
    assert below.resolve("/la/t/x").authority.HasField("unconfirmed_seconds")
    root.mount_child("/la", la.cluster_id)
    eventually(lambda: below.status().parent.linked)
    eventually(lambda: root.mounted() == ["/la", "/la/t"])
    # A moment after the link, whose first messages come before la counts as confirmed itself.
    eventually(lambda: not below.resolve("/la/t/x").authority.HasField("unconfirmed_seconds"))


def test_a_mount_that_moves_before_its_child_has_linked_is_followed(federation: Federation) -> None:
    root, m = federation["/"], federation.join("/free/m", "/")
    m.mkdir("/free/m/x")
    root.entries("DeleteEntry", path="/free/m")
    eventually(lambda: m.outcome("/free/m/x") == "UNMOUNTED")
    m.process.stop()
    root.mount_child("/free/m", m.cluster_id)
    move(root, "/free/m", "/else/m")
    move(root, "/else", "/moved")
    m.start()
    eventually(lambda: m.outcome("/moved/m/x") == "resolution")
    eventually(lambda: m.status().parent.linked)


def test_a_child_that_was_unmounted_is_mounted_again_wherever_its_parent_says(
    federation: Federation,
) -> None:
    """Its config names where it stood first, which may be long ago."""
    root, child = federation["/"], federation.join("/free/m", "/")
    move(root, "/free/m", "/else/m")
    eventually(lambda: mount_of(child) == "/else/m")
    for path in ("/else/m", "/free/m", "/else/other"):
        root.entries("DeleteEntry", path=mount_of(child), kind=entry_pb2.ENTRY_KIND_MOUNT)
        eventually(lambda: child.outcome(mount_of(child)) == "UNMOUNTED")
        root.mount_child(path, child.cluster_id)
        eventually(partial(is_linked_at, child, path))
        eventually(partial(is_resolved, child, path))


def test_a_first_mount_that_moves_before_its_child_has_linked_is_followed(
    federation: Federation,
) -> None:
    root, m = federation["/"], federation.start("/free/m", "/")
    m.process.stop()
    root.mount_child("/free/m", m.cluster_id)
    move(root, "/free/m", "/else/m")
    m.start()
    eventually(lambda: m.status().parent.linked)
    assert mount_of(m) == "/else/m"
    # Its config need not be changed; who mounts it anew must name what it says.
    m.restart()
    eventually(lambda: m.status().parent.linked)
    assert mount_of(m) == "/else/m"


def test_a_cluster_below_follows_a_move_of_its_parents_mount_before_it_has_linked(
    federation: Federation,
) -> None:
    root, m = federation["/"], federation.join("/free/m", "/")
    below = federation.start("/free/m/t", "/free/m")
    below.process.stop()
    m.mount_child("/free/m/t", below.cluster_id)
    move(root, "/free/m", "/else/m")
    eventually(lambda: mount_of(m) == "/else/m")
    below.start()
    eventually(lambda: below.status().parent.linked)
    assert mount_of(below) == "/else/m/t"
