"""Parent and child, each with several servers: all are known, so that no single one is missed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kdir.v1 import admin_pb2, entry_pb2

from resolver import Resolver
from tests.support.federation import Server, eventually

Start = Callable[..., Server]


def members(server: Server) -> dict[str, admin_pb2.Member]:
    return {one.server: one for one in server.status().members}


def know_each_other(*servers: Server) -> None:
    """Waits until each knows all of them, and nobody else."""
    everybody = sorted(one.address for one in servers)
    for server in servers:
        eventually(lambda one=server: addresses(one) == everybody)  # type: ignore[misc]


def addresses(server: Server) -> list[str]:
    return sorted(at for one in members(server).values() for at in one.endpoints)


def linked(server: Server, mount: str) -> bool:
    return any(row.linked for row in server.mounts().rows if row.mount == mount)


def referred(server: Server, path: str) -> list[str]:
    return sorted(server.resolve(path).outcome.referral.endpoints)


def joined(start: Start, root: list[Server], count: int) -> list[Server]:
    """Starts so many servers of /la, mounted at root and linked, all in its mount table."""
    parent = [one.address for one in root]
    servers = [start("/la", f"la-{n}", parent=parent) for n in range(count)]
    root[0].mount_child("/la", servers[0].cluster_id)
    for server in servers:
        eventually(lambda one=server: linked_or_standby(one))  # type: ignore[misc]
    know_each_other(*servers)
    everybody = sorted(one.address for one in servers)
    for one in root:
        eventually(lambda at=one: referred(at, "/la/x") == everybody)  # type: ignore[misc]
    return servers


def linked_or_standby(server: Server) -> bool:
    parent = server.status().parent
    return parent.linked or parent.standby


def test_servers_register_with_what_they_are_and_the_roles_that_they_hold(start: Start) -> None:
    root = [start("/", "root")]
    one, two = joined(start, root, 2)
    found = members(one)
    assert members(two) == found
    for server in (one, two):
        mine = found[server.status().authority.server]
        assert list(mine.endpoints) == [server.address]
        assert mine.pid == server.process.pid
        assert (mine.feature_level, mine.version) == (
            server.status().feature_level,
            server.status().version,
        )
    holder = one if one.status().parent.linked else two
    assert found[holder.status().authority.server].roles == ["parent-link"]


def test_a_parent_knows_every_server_of_a_child_and_misses_none_that_dies(start: Start) -> None:
    root = start("/", "root")
    one, two = joined(start, [root], 2)
    one.mkdir("/la/x")
    eventually(lambda: two.outcome("/la/x") == "resolution")
    holder, other = (one, two) if one.status().parent.linked else (two, one)
    holder.kill()
    # At once: the link is gone, and nobody has told the parent of anything yet.
    assert other.address in referred(root, "/la/x")
    with Resolver(root.address, timeout_seconds=20) as client:
        assert client.resolve("/la/x").kind == "directory"
    # The other one takes the link over; the dead one is not named any more.
    eventually(lambda: other.status().parent.linked)
    eventually(lambda: referred(root, "/la/x") == [other.address])
    holder.start()
    eventually(lambda: referred(root, "/la/x") == sorted([holder.address, other.address]))


def test_every_server_of_a_parent_says_that_a_child_is_linked_or_away(start: Start) -> None:
    one, two = start("/", "root-1"), start("/", "root-2")
    (child,) = joined(start, [one, two], 1)
    for root in (one, two):
        eventually(lambda at=root: mount_state(at) == entry_pb2.MOUNT_STATE_LINKED)  # type: ignore[misc]
        assert linked(root, "/la")
    child.kill()
    for root in (one, two):
        eventually(lambda at=root: mount_state(at) == entry_pb2.MOUNT_STATE_DISCONNECTED)  # type: ignore[misc]
    child.start()
    for root in (one, two):
        eventually(lambda at=root: mount_state(at) == entry_pb2.MOUNT_STATE_LINKED)  # type: ignore[misc]


def mount_state(server: Server) -> int:
    return int(server.entries("GetEntry", path="/la").entry.mount.state)


def test_a_server_that_ends_in_order_is_no_longer_referred_to(start: Start) -> None:
    root = start("/", "root")
    one, two = joined(start, [root], 2)
    two.stop()
    eventually(lambda: referred(root, "/la/x") == [one.address])
    one.stop()
    assert referred(root, "/la/x") == [one.address]  # nobody is left to say otherwise


def test_an_advertised_address_is_that_of_all_that_advertise_it(start: Start) -> None:
    root = start("/", "root")
    front = ["127.0.0.1:65000"]
    settings = {"parent": [root.address], "advertise": front}
    one = start("/la", "la-1", **settings)
    start("/la", "la-2", **settings)
    root.mount_child("/la", one.cluster_id)
    eventually(lambda: referred(root, "/la/x") == front)
    eventually(lambda: len(members(one)) == 2)
    assert referred(root, "/la/x") == front


def test_a_child_learns_its_parents_other_servers_and_goes_on_with_them(start: Start) -> None:
    first = start("/", "root-1")
    child = start("/la", "la-1", parent=[first.address])  # told of one only
    first.mount_child("/la", child.cluster_id)
    eventually(lambda: child.status().parent.linked)
    second = start("/", "root-2")
    know_each_other(first, second)
    # The running link says so.
    eventually(lambda: referred(child, "/ny") == sorted([first.address, second.address]))
    first.kill()
    eventually(lambda: child.status().parent.linked and linked(second, "/la"))
    assert second.outcome("/la/x") == "referral"
    with Resolver(child.address, timeout_seconds=20) as client:
        assert client.resolve("/").kind == "directory"
    # It knows the way also when it is started anew, with a config that names only the dead one.
    child.restart()
    eventually(lambda: child.status().parent.linked)


def unconfirmed(server: Server) -> float | None:
    authority = server.resolve("/la").authority
    if not authority.HasField("unconfirmed_seconds"):
        return None
    return authority.unconfirmed_seconds


def test_the_age_of_unconfirmed_counts_from_the_parents_last_update(start: Start) -> None:
    root = start("/", "root")
    (child,) = joined(start, [root], 1)
    assert unconfirmed(child) is None
    root.kill()
    before = eventually(lambda: unconfirmed(child)) or 0.0
    child.kill()
    child.start()
    # Not from the start of the new process.
    after = eventually(lambda: unconfirmed(child)) or 0.0
    assert after > before
    assert after > child.status().uptime_seconds
    root.start()
    eventually(lambda: unconfirmed(child) is None)


def test_every_server_of_a_child_says_that_it_is_unconfirmed(start: Start) -> None:
    root = start("/", "root")
    servers = joined(start, [root], 2)
    # The server without the link has the last contact with the parent from the store.
    eventually(lambda: [unconfirmed(one) for one in servers] == [None, None])
    root.kill()
    for server in servers:
        eventually(lambda one=server: unconfirmed(one))  # type: ignore[misc]
    root.start()
    for server in servers:
        eventually(lambda one=server: unconfirmed(one) is None)  # type: ignore[misc]


@pytest.mark.parametrize("signal", ["kill", "stop"])
def test_the_only_server_of_a_cluster_comes_back_alone(start: Start, signal: str) -> None:
    one = start("/la", "la-1")
    (before,) = members(one)
    getattr(one, signal)()
    one.start()
    eventually(lambda: len(members(one)) == 1 and set(members(one)) != {before})
