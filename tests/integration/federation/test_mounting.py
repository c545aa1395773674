"""Mounting needs both sides to agree; what comes down is kept; a mount that is gone is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kdir.v1 import entry_pb2, resolve_pb2

from resolver.errors import (
    AlreadyExists,
    HasMounts,
    InvalidArgument,
    MountLoop,
    MountMismatch,
    MountOverlaps,
    MountShadows,
    NotAuthoritative,
)
from tests.support.federation import Federation, eventually


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with Federation(tmp_path) as made:
        made.start("/")
        yield made


def test_a_child_waits_until_it_is_mounted_and_is_then_linked(federation: Federation) -> None:
    root = federation["/"]
    la = federation.start("/la", "/")
    waiting = eventually(lambda: root.mounts().pending_children)
    assert [(one.cluster_id, one.cluster, one.mount) for one in waiting] == [
        (la.cluster_id, "la", "/la")
    ]
    eventually(lambda: "UNKNOWN_CHILD" in la.status().parent.message)
    assert root.outcome("/la/x") == "absent"
    root.mount_child("/la", "la")  # by the name of the one that waits
    eventually(lambda: la.status().parent.linked)
    assert not root.mounts().pending_children
    referral = root.resolve("/la/x").outcome.referral
    assert (referral.kind, referral.mount) == (resolve_pb2.REFERRAL_KIND_DOWN, "/la")
    assert (referral.cluster_id, list(referral.endpoints)) == (la.cluster_id, [la.address])
    assert la.resolve("/la").authority.cluster.epoch == referral.epoch
    state = root.entries("GetEntry", path="/la").entry.mount
    assert state.state == entry_pb2.MOUNT_STATE_LINKED


def test_the_two_sides_must_agree_where_the_child_hangs(federation: Federation) -> None:
    root = federation["/"]
    la = federation.start("/la", "/")
    eventually(lambda: root.mounts().pending_children)
    with pytest.raises(MountMismatch) as caught:
        root.mount_child("/lax", la.cluster_id)
    assert "/lax" in caught.value.message
    assert "expects /la" in caught.value.message
    assert root.outcome("/lax") == "absent"


def test_a_child_that_comes_later_and_disagrees_is_refused(federation: Federation) -> None:
    root = federation["/"]
    la = federation.start("/la")  # without a parent: it does not ask
    root.mount_child("/lax", la.cluster_id)
    la.process.stop()
    la.settings["parent"] = [root.address]
    la.start()
    message = eventually(lambda: "MOUNT_MISMATCH" in la.status().parent.message)
    assert message
    assert "/lax" in la.status().parent.message
    assert not la.status().parent.linked
    # It serves what its config says, unconfirmed.
    assert la.resolve("/la").authority.HasField("unconfirmed_seconds")


def test_what_would_shadow_overlap_or_loop_is_refused_before_anything_changes(
    federation: Federation,
) -> None:
    root = federation["/"]
    root.mkdir("/eu/search")
    la = federation.join("/la", "/")
    before = root.status().authority.token
    unknown = "kc-aaaaaaaaaa"
    with pytest.raises(MountShadows):
        root.mount_child("/eu", unknown)
    with pytest.raises(MountShadows):
        root.mount_child("/eu/search", unknown)
    with pytest.raises((MountOverlaps, NotAuthoritative)):
        root.mount_child("/la/geo", unknown)
    with pytest.raises(MountLoop):
        root.mount_child("/self", root.cluster_id)
    with pytest.raises(MountLoop, match="mounted at /la already"):
        root.mount_child("/twice", la.cluster_id)
    with pytest.raises(MountLoop):
        la.mount_child("/la/up", root.cluster_id)
    with pytest.raises(InvalidArgument, match="no cluster of that name waits"):
        root.mount_child("/ny", "ny")
    root.mkdir("/eu")  # make_parents: an existing directory is no error
    plain = entry_pb2.Entry(directory=entry_pb2.Directory())
    with pytest.raises(AlreadyExists):
        root.entries("CreateEntry", path="/eu", entry=plain)
    with pytest.raises(InvalidArgument, match="root"):
        root.entries("DeleteEntry", path="/", recursive=True)
    root.mkdir("/us")
    root.mount_child("/us/sf", unknown)
    with pytest.raises(HasMounts):
        root.entries("DeleteEntry", path="/us", recursive=True)
    root.entries("DeleteEntry", path="/us/sf")
    assert root.mounted() == ["/la"]
    assert before


def test_R11_an_unmounted_child_stops_and_can_be_mounted_again(federation: Federation) -> None:
    root = federation["/"]
    la = federation.join("/la", "/")
    la.mkdir("/la/x")
    first = root.resolve("/la").outcome.referral.epoch
    root.entries("DeleteEntry", path="/la")
    eventually(lambda: la.outcome("/la/x") == "UNMOUNTED")
    assert root.outcome("/la/x") == "absent"
    la.restart()
    eventually(lambda: la.outcome("/la/x") == "UNMOUNTED")  # also after a restart
    root.mount_child("/la", la.cluster_id)
    eventually(lambda: la.outcome("/la/x") == "resolution")
    assert root.resolve("/la").outcome.referral.epoch > first


def test_R11_unmounted_while_it_was_away(federation: Federation) -> None:
    root = federation["/"]
    la = federation.join("/la", "/")
    la.mkdir("/la/x")
    la.kill()
    root.entries("DeleteEntry", path="/la")
    la.start()
    eventually(lambda: la.outcome("/la/x") == "UNMOUNTED")


def test_a_moved_mount_takes_the_child_along(federation: Federation) -> None:
    root = federation["/"]
    root.mkdir("/us")
    la = federation.join("/la", "/")
    la.mkdir("/la/x")
    epoch = root.resolve("/la").outcome.referral.epoch
    root.entries("MoveEntry", path="/la", new_path="/us/la", leave_link=True)
    eventually(lambda: la.outcome("/us/la/x") == "resolution")
    referral = root.resolve("/us/la/x").outcome.referral
    assert (referral.mount, referral.kind) == ("/us/la", resolve_pb2.REFERRAL_KIND_DOWN)
    assert referral.epoch > epoch
    rewrite = root.resolve("/la/x").outcome.rewrite
    assert list(rewrite.paths) == ["/us/la/x"]
    la.restart()  # its config still says /la: the parent's word counts
    eventually(lambda: la.status().parent.linked)
    assert la.outcome("/us/la/x") == "resolution"
