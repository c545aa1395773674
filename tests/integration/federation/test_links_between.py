"""The link between parent and child: the mount table, restarts, moves of endpoints, outages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from kdir.v1 import entry_pb2, resolve_pb2

from deploy.local.ports import free_port
from tests.support.federation import Federation, Server, eventually


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with Federation(tmp_path) as made:
        made.start("/")
        made.join("/la", "/", site="la")
        made.join("/ny", "/", site="ny", links={"/tracking": "/ny/tracking"})
        made.join("/la/tracking", "/la", site="la", links={"/tracking": "/la/tracking"})
        yield made


EVERYWHERE = {"/la", "/la/tracking", "/ny"}


def _knows_all(server: Server) -> bool:
    return set(server.mounted()) >= EVERYWHERE


def test_the_whole_mount_table_is_handed_down(federation: Federation) -> None:
    for mount in ("/", "/la", "/la/tracking", "/ny"):
        server = federation[mount]
        eventually(partial(_knows_all, server))
    deep = federation["/la/tracking"]
    direct = deep.resolve("/ny/x").outcome.referral
    assert (direct.kind, direct.mount) == (resolve_pb2.REFERRAL_KIND_DIRECT, "/ny")
    assert list(direct.endpoints) == [federation["/ny"].address]
    up = deep.resolve("/zz").outcome.referral
    assert (up.kind, up.mount) == (resolve_pb2.REFERRAL_KIND_UP, "/la")


def test_a_site_link_is_served_by_its_site_only(federation: Federation) -> None:
    here = federation["/la/tracking"].resolve("/tracking/search/clicks").outcome.rewrite
    assert (list(here.paths), here.site_link) == (["/la/tracking/search/clicks"], True)
    there = federation["/ny"].resolve("/tracking/search").outcome.rewrite
    assert list(there.paths) == ["/ny/tracking/search"]
    assert federation["/"].outcome("/tracking") == "absent"


def test_a_child_serves_its_own_paths_while_the_rest_is_away(federation: Federation) -> None:
    deep = federation["/la/tracking"]
    deep.mkdir("/la/tracking/search")
    eventually(lambda: "/ny" in deep.mounted())
    federation["/"].kill()
    federation["/la"].kill()
    eventually(
        lambda: deep.resolve("/la/tracking/search").authority.HasField("unconfirmed_seconds")
    )
    assert deep.resolve("/la/tracking/search").authority.unconfirmed_seconds > 0
    assert deep.outcome("/la/tracking/search") == "resolution"
    assert deep.outcome("/la/tracking/none") == "absent"
    deep.restart()  # from its own store: epoch, table and parent are known
    assert deep.resolve("/la/tracking").authority.cluster.epoch > 0
    assert "/ny" in deep.mounted()
    assert deep.outcome("/ny/x") == "referral"
    federation["/"].start()
    federation["/la"].start()
    eventually(lambda: deep.status().parent.linked)
    # Its parent is linked to the root before it is confirmed again.
    eventually(lambda: not deep.resolve("/la/tracking").authority.HasField("unconfirmed_seconds"))
    assert federation["/la"].status().parent.linked


def test_a_child_whose_endpoint_moves_is_found_again(federation: Federation) -> None:
    ny = federation["/ny"]
    ny.process.stop()
    port = free_port()
    ny.settings["listen"] = ny.address = f"127.0.0.1:{port}"
    ny.close()
    ny.start()
    new = [ny.address]
    root = federation["/"]
    eventually(lambda: list(root.resolve("/ny").outcome.referral.endpoints) == new)
    deep = federation["/la/tracking"]
    eventually(lambda: list(deep.resolve("/ny/x").outcome.referral.endpoints) == new)


def test_a_parent_that_is_paused_is_noticed_and_comes_back(federation: Federation) -> None:
    root, ny = federation["/"], federation["/ny"]
    root.pause()
    eventually(lambda: not ny.status().parent.linked)
    assert ny.outcome("/ny") == "resolution"
    root.resume()
    eventually(lambda: ny.status().parent.linked)


def test_a_child_that_is_paused_is_away_for_its_parent_and_hurts_nobody(
    federation: Federation,
) -> None:
    root, ny = federation["/"], federation["/ny"]

    def state() -> object:
        return root.entries("GetEntry", path="/ny").entry.mount.state

    ny.pause()
    eventually(lambda: state() == entry_pb2.MOUNT_STATE_DISCONNECTED)
    assert root.outcome("/ny/x") == "referral"
    assert federation["/la"].outcome("/la") == "resolution"
    ny.resume()
    eventually(lambda: state() == entry_pb2.MOUNT_STATE_LINKED)


def test_how_a_grandchild_is_doing_is_known_at_the_root(federation: Federation) -> None:
    root, deep = federation["/"], federation["/la/tracking"]

    def linked() -> bool:
        return any(row.mount == "/la/tracking" and row.linked for row in root.mounts().rows)

    eventually(linked)
    deep.kill()
    eventually(lambda: not linked())
    deep.start()
    eventually(linked)
    federation["/la"].kill()
    eventually(lambda: not linked())


def test_policies_above_a_mount_reach_below_it_and_survive_a_restart(
    federation: Federation,
) -> None:
    root, deep = federation["/"], federation["/la/tracking"]
    deep.mkdir("/la/tracking/search")
    root.entries(
        "UpdateEntry",
        path="/",
        entry=entry_pb2.Entry(policies={"owner": "platform"}),
        update_mask={"paths": ["policies.owner"]},
    )

    def owner() -> str:
        return str(deep.resolve("/la/tracking/search").outcome.resolution.effective.owner)

    eventually(lambda: owner() == "platform")
    federation["/la"].kill()
    deep.restart()
    assert owner() == "platform"
