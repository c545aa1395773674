"""Servers of two releases on one store: the level is raised once all have it, and there is no way
back. The later release supports levels that are invented (``tests/support/feature_levels.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from kdir.v1 import admin_pb2, admin_pb2_grpc, entry_pb2

from deploy.local.process import StartFailed
from directory.federation.child_state import child_hello
from directory.namespace.keys import LEVEL
from directory.namespace.snapshot import Snapshot
from directory.server.feature_levels import LEVELS
from directory.store.addresses import open_store
from directory.store.base import Put, Transaction
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import InvalidArgument, LevelNotFinalized
from tests.support.command_line import Ran, run
from tests.support.feature_levels import NEWEST
from tests.support.federation import Server, eventually

Start = Callable[..., Server]
RELEASED = max(LEVELS)
"""What this release supports; the later one supports ``NEWEST``."""


@pytest.fixture(params=["sqlite", "etcd"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Returns the address of a store for one test, of each kind."""
    if request.param == "etcd":
        return str(request.getfixturevalue("etcd_cluster").address())
    return f"sqlite:///{tmp_path / 'store.sqlite'}"


def server_id(server: Server) -> str:
    return server.status().authority.server


def levels(server: Server) -> dict[str, int]:
    return {one.server: one.feature_level for one in server.status().members}


def finalize(server: Server, level: int = 0) -> admin_pb2.FinalizeFeaturesResponse:
    request = admin_pb2.FinalizeFeaturesRequest(level=level)
    answer: admin_pb2.FinalizeFeaturesResponse = server.ask(
        admin_pb2_grpc.AdminServiceStub, "FinalizeFeatures", request
    )
    return answer


def kdir(server: Server, line: str) -> Ran:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME"):  # nobody's own settings
            patch.setenv(name, str(server.directory / name))
        return run(["--at", server.address, *line.split()])


def test_a_level_is_raised_once_all_servers_support_it_and_an_operator_finalizes_it(
    start: Start, store: str
) -> None:
    old = start("/la", "old", store=store)
    new = start("/la", "new", later_release=True, store=store)
    eventually(lambda: sorted(levels(new).values()) == [RELEASED, NEWEST])
    assert new.status().finalized_level == RELEASED
    new.mkdir("/la/both")  # what both support goes on
    eventually(lambda: old.outcome("/la/both") == "resolution")

    with pytest.raises(LevelNotFinalized, match=f"server {server_id(old)} supports {RELEASED}"):
        finalize(new, NEWEST)
    shown = kdir(new, f"features finalize --level {NEWEST} -y")
    assert (shown.code, server_id(old) in shown.err) == (5, True)
    assert f"level {NEWEST} needs an upgrade of {server_id(old)}" in kdir(new, "features").err

    # It leaves: nothing is raised until somebody finalizes it.
    old.kill()
    eventually(lambda: list(levels(new)) == [server_id(new)])
    assert "kdir features finalize /la" in kdir(new, "doctor").err
    planned = kdir(new, "features finalize --plan")
    assert (planned.code, new.status().finalized_level) == (0, RELEASED)
    assert f"would finalize level {NEWEST}" in planned.err

    done = kdir(new, "features finalize -y -o json")
    assert (done.code, done.objects[0]["finalized_level"]) == (0, NEWEST)
    assert new.status().finalized_level == NEWEST
    assert kdir(new, "features").lines[0].split("\t")[:3] == [
        server_id(new),
        str(NEWEST),
        str(NEWEST),
    ]
    assert "is already finalized" in kdir(new, "features finalize").err

    # The old one cannot come back.
    with pytest.raises(StartFailed, match=f"level {NEWEST} is finalized in this cluster"):
        old.start()
    assert old.process.exit_code == 2
    assert new.outcome("/la/both") == "resolution"


def test_a_server_that_was_away_while_the_level_was_raised_serves_no_more(
    start: Start, store: str
) -> None:
    """Paused for long, or cut off from its store: its announcement is gone, it is not."""
    old = start("/la", "old", store=store)
    new = start("/la", "new", later_release=True, store=store)
    eventually(lambda: len(levels(new)) == 2)
    leased = store.startswith("etcd:")  # a paused holder of sqlite's write lock stops everybody
    if leased:
        old.pause()
    with closing(open_store(store, "la")) as opened:
        opened.commit(Transaction((), (Put(LEVEL, b"%d" % NEWEST),)))
    eventually(lambda: new.status().finalized_level == NEWEST)
    if leased:
        old.resume()
    eventually(lambda: not old.process.running)
    assert old.process.exit_code == 2
    assert "start a newer kdir" in old.process.tail()


def test_all_processes_of_one_port_that_are_behind_end_with_their_supervisor(
    start: Start, store: str
) -> None:
    old = start("/la", "old", store=store, processes=2)
    eventually(lambda: len(levels(old)) == 2)
    with closing(open_store(store, "la")) as opened:
        opened.commit(Transaction((), (Put(LEVEL, b"%d" % NEWEST),)))
    eventually(lambda: not old.process.running)
    assert old.process.exit_code == 2


def test_a_new_cluster_needs_no_ceremony(start: Start, store: str) -> None:
    one = start("/la", "one", store=store)
    assert one.status().finalized_level == one.status().feature_level
    assert "kdir features finalize" not in kdir(one, "features").err


def test_the_level_is_reported_to_the_parent_and_again_when_it_is_raised(
    start: Start, tmp_path: Path
) -> None:
    root = start("/", "root")
    old = start("/la", "old", parent=[root.address])
    root.mount_child("/la", old.cluster_id)
    eventually(lambda: old.status().parent.linked)
    assert reported_level(tmp_path, old.cluster_id) == RELEASED
    old.stop()
    new = start("/la", "new", later_release=True, parent=[root.address])
    eventually(lambda: new.status().parent.linked)
    assert reported_level(tmp_path, new.cluster_id) == RELEASED
    finalize(new)
    eventually(lambda: reported_level(tmp_path, new.cluster_id) == NEWEST)
    assert new.status().parent.linked


def reported_level(folder: Path, cluster_id: str) -> int:
    with closing(open_store(f"sqlite:///{folder / 'root.sqlite'}", "root")) as store:
        loading = store.load((b"f/",))
        snapshot = Snapshot.load(ProtoCodec(), "", loading.revision, loading.pages())
    known = child_hello(snapshot, cluster_id)
    return 0 if known is None else known[0].feature_level


def test_texts_that_make_no_level_are_refused(start: Start, store: str) -> None:
    one = start("/la", "one", later_release=True, store=store)
    with pytest.raises(InvalidArgument, match="found 9; this server supports 1 to 3"):
        finalize(one, 9)
    with pytest.raises(InvalidArgument, match="levels never go down"):
        finalize(one, 1)
    assert kdir(one, "features finalize --level two").code == 2
    assert kdir(one, "features show --plan").code == 2
    assert kdir(one, "features three").code == 2


def test_fields_that_a_server_does_not_know_are_kept_and_passed_on(
    start: Start, store: str
) -> None:
    """A policy of a later version, in a record that this version changes and hands on."""
    one = start("/la", "one", store=store)
    one.mkdir("/la/x")
    unknown = b"\xfa\x7f\x05later"  # field 2047, bytes
    with closing(open_store(store, "la")) as opened:
        (row,) = [row for row in opened.read(b"e/") if row.key.endswith(b"cx")]
        record = entry_pb2.Entry.FromString(row.value)
        record.policies.MergeFromString(unknown)
        opened.commit(Transaction((), (Put(row.key, record.SerializeToString()),)))

    def policies() -> bytes:
        entry = one.entries("GetEntry", path="/la/x").entry
        return bytes(entry.policies.SerializeToString())

    eventually(lambda: unknown in policies())
    change = entry_pb2.Entry()
    change.policies.owner = "search"
    one.entries(
        "UpdateEntry", path="/la/x", entry=change, update_mask={"paths": ["policies.owner"]}
    )
    assert unknown in policies()
    assert one.entries("GetEntry", path="/la/x").entry.policies.owner == "search"
    one.entries("MoveEntry", path="/la/x", new_path="/la/y")
    entry = one.entries("GetEntry", path="/la/y").entry
    assert unknown in entry.policies.SerializeToString()
