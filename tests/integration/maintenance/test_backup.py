"""Backup and restore of real servers' stores: whole or refused, and a new life after it."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from directory.maintenance import restore as restoring
from directory.maintenance.backup_stream import backup_of, header_of
from directory.maintenance.restore import Backup, plan_restore
from directory.namespace.keys import MEMBER
from directory.store.addresses import find_identity, open_store
from directory.store.base import FILLED_FROM, Put, Transaction
from resolver.backup_file import BackupReader, BackupWriter
from resolver.errors import KdirError, TokenExpired
from tests.integration.maintenance.conftest import Addresses, Kdir
from tests.integration.maintenance.cutting import CutOff, cutting, fill, held, some_rows
from tests.support.federation import Federation, Server, eventually


def a_tree(server: Server) -> None:
    for name in ("a/b", "c"):
        server.mkdir(f"/la/{name}", request_id=f"made-{name}")
    server.link("/la/l", "/la/a")


def backup(kdir: Kdir, server: Server, name: str = "one.kdir") -> Path:
    done = kdir("backup", "--at", server.address, "--to", name, "-o", "json")
    reported = json.loads(done.stdout)
    file = kdir.folder / name
    assert reported["file"] == name
    assert reported["bytes"] == file.stat().st_size
    assert reported["cluster_id"] == server.cluster_id
    return file


def names(server: Server) -> set[str]:
    return set(server.names("/la"))


def incarnation(server: Server) -> str:
    return server.status().authority.incarnation


def test_a_backup_that_the_store_cannot_hold_is_refused_before_anything_is_touched(
    new_address: Addresses,
) -> None:
    target, missing = new_address(), new_address()
    fill(target, some_rows(3))
    identity = find_identity(target)
    assert identity is not None
    large = [(b"f/z", b"x" * 17 * 1024 * 1024)]
    backup = Backup(header_of(identity, 1, 1, 0), lambda: iter(large))
    for address in (target, missing):
        plan = plan_restore(backup, address, replace=True)
        with pytest.raises(restoring.RestoreRefused, match=r"cannot hold the backup: key b'f/z' h"):
            restoring.restore(plan)
    assert held(target) == dict(some_rows(3))
    assert find_identity(target) == identity
    assert find_identity(missing) is None


def test_a_cluster_is_restored_into_a_new_store(
    federation: Federation, new_address: Addresses, kdir: Kdir
) -> None:
    first = federation.start("/la", store=new_address())
    a_tree(first)
    old_token = first.status().authority.token
    backup(kdir, first)
    first.stop()

    target = new_address()
    planned = kdir("restore", "--from", "one.kdir", "--store", target, "--plan").stdout
    assert "is not there yet, and would be made" in planned
    assert find_identity(target) is None
    done = kdir("restore", "--from", "one.kdir", "--store", target)
    assert "3 directories, 1 link," in done.stdout
    # Saying it again does nothing: it is what is there.
    assert (
        "holds just that already" in kdir("restore", "--from", "one.kdir", "--store", target).stdout
    )

    second = federation.start("/la", store=target)
    assert second.cluster_id == first.cluster_id
    assert names(second) == {"a", "c", "l"}
    assert kdir("verify", "--at", second.address).stdout == ""
    with pytest.raises(TokenExpired):
        second.resolve("/la/a", token=old_token)
    # The history came along, and a request that is asked again has no second effect.
    changes = kdir("history", "/la", "--at", second.address, "-o", "name").stdout.split()
    assert changes == ["/la/l", "/la/c", "/la/a/b", "/la/a"]
    second.mkdir("/la/c", request_id="made-c")
    second.mkdir("/la/new")
    assert names(second) == {"a", "c", "l", "new"}


def test_old_tokens_expire_on_a_server_that_runs_through_a_restore(
    federation: Federation, new_address: Addresses, kdir: Kdir
) -> None:
    address = new_address()
    server = federation.start("/la", store=address)
    a_tree(server)
    backup(kdir, server)
    server.mkdir("/la/later")
    first_incarnation, token = incarnation(server), server.status().authority.token
    with closing(open_store(address, "la")) as store:
        eventually(lambda: store.read(MEMBER))  # a moment after its start

    refused = kdir("restore", "--from", "one.kdir", "--store", address, "--replace", code=5)
    assert "servers of this store are running: la-" in refused.stderr
    refused = kdir("restore", "--from", "one.kdir", "--store", address, "--force", code=5)
    assert "the store holds something; --replace puts the backup in its place" in refused.stderr
    planned = kdir("restore", "--from", "one.kdir", "--store", address, "--plan", code=5).stdout
    assert "would be lost: 1 entry;" in planned
    assert "  later: lost" in planned
    assert "refused: servers of this store are running" in planned
    assert incarnation(server) == first_incarnation
    assert names(server) == {"a", "c", "l", "later"}

    arguments = ("restore", "--from", "one.kdir", "--store", address, "--replace", "--force")
    refused = kdir(*arguments, code=2)
    assert "needs --yes where there is no terminal to ask at" in refused.stderr
    assert incarnation(server) == first_incarnation
    kdir(*arguments, "-y")
    eventually(lambda: incarnation(server) != first_incarnation)
    assert names(server) == {"a", "c", "l"}
    with pytest.raises(TokenExpired):
        server.resolve("/la/a", token=token)
    eventually(lambda: server.mkdir("/la/after"))
    assert names(server) == {"a", "c", "l", "after"}


def test_a_server_never_shows_half_of_a_restore(
    federation: Federation, new_address: Addresses, kdir: Kdir
) -> None:
    """A restore that was cut off: running servers serve what they had, new ones are not ready."""
    address = new_address()
    server = federation.start("/la", store=address)
    a_tree(server)
    backup(kdir, server)
    with closing(open_store(address, "la")) as store:
        store.seal(f"{FILLED_FROM}a backup that is put in")
        store.clear()
        rows = list(BackupReader((kdir.folder / "one.kdir").open("rb")).rows())
        store.fill(rows[:3])
        eventually(lambda: server.status().store_status.sealed)
        answer = server.resolve("/la/a/b")
        assert answer.authority.stale
        assert names(server) == {"a", "c", "l"}
        with pytest.raises(KdirError, match="takes no changes") as refused:
            server.mkdir("/la/no")
        assert refused.value.reason == "STORE_SEALED"
        assert address not in refused.value.message
        verified = kdir("verify", "--at", server.address, code=3)
        assert "not compared: the store is being filled" in verified.stderr
        kdir("backup", "--at", server.address, code=5)

        late = Server(kdir.folder / "late", "/la", {**server.settings, "listen": "127.0.0.1:0"})
        federation.end_with(late)
        late.start(loads=False)
        assert late.outcome("/la/a") == "NOT_READY"
    # Saying it finishes it, also with other backups of the cluster.
    kdir("restore", "--from", "one.kdir", "--store", address)
    for one in (server, late):
        eventually(lambda one=one: not one.resolve("/la/a/b").authority.stale)  # type: ignore[misc]
        assert names(one) == {"a", "c", "l"}
    eventually(lambda: late.mkdir("/la/after"))


def test_a_restore_that_is_cut_off_at_any_step_is_finished_by_saying_it_again(
    new_address: Addresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = new_address()
    rows = some_rows(500)
    fill(source, rows)
    with closing(open_store(source, "la")) as store:
        file = io.BytesIO()
        writer = BackupWriter(file)
        for message in backup_of(store):
            writer.write(message)
        writer.close()
    backup = Backup.read(file)
    target = new_address()
    steps, identity = 0, None
    while identity is None:
        monkeypatch.setattr(restoring, "open_store", cutting(steps))
        try:
            identity = restoring.restore(plan_restore(backup, target))
        except CutOff:
            steps += 1
            found = find_identity(target)
            if found is not None and not found.sealed:
                assert held(target) in ({}, dict(rows))
    assert steps > 6
    assert find_identity(target) == identity
    assert not identity.sealed
    assert held(target) == dict(rows)


def test_a_restore_that_is_killed_is_finished_by_saying_it_again(
    federation: Federation, new_address: Addresses, kdir: Kdir
) -> None:
    address = new_address()
    fill(address, some_rows(4_000))
    server = federation.start("/la", store=address)
    a_tree(server)
    backup(kdir, server)
    server.stop()
    target = new_address()
    command = ("restore", "--from", "one.kdir", "--store", target)
    killed, code = 0, -1
    while code < 0:
        process = kdir.start(*command)
        try:
            code = process.wait(0.15 + 0.08 * killed)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1
    assert killed
    assert code == 0
    second = federation.start("/la", store=target)
    assert names(second) == {"a", "c", "l"}
    assert second.cluster_id == server.cluster_id


def test_a_backup_goes_on_while_others_write(
    federation: Federation, new_address: Addresses, kdir: Kdir
) -> None:
    server = federation.start("/la", store=new_address())
    a_tree(server)
    stop = threading.Event()
    written: list[str] = []

    def write() -> None:
        while not stop.is_set():
            name = f"w{len(written)}"
            server.mkdir(f"/la/{name}")
            written.append(name)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        eventually(lambda: len(written) > 5)
        before = len(written)
        file = backup(kdir, server)
        ended = len(written)  # one more may be under way
        eventually(lambda: len(written) > ended + 1)
    finally:
        stop.set()
        thread.join()
    with file.open("rb") as opened:
        reader = BackupReader(opened)
        rows = dict(reader.rows())
    assert not [key for key in rows if key.startswith((b"m/", b"l/"))]
    kept = {key[11:].decode() for key in rows if key.startswith(b"e/")}
    # Each of the first so many, and nothing after it: one revision.
    made = [name for name in written if name in kept]
    assert len(made) >= before
    assert made == written[: len(made)]
    assert len(made) < len(written)


def test_backup_replaces_an_existing_file_only_with_force(
    federation: Federation, kdir: Kdir
) -> None:
    server = federation.start("/la")
    first = backup(kdir, server).read_bytes()
    refused = kdir("backup", "--at", server.address, "--to", "one.kdir", code=5)
    assert "one.kdir already exists; --force replaces it" in refused.stderr
    assert (kdir.folder / "one.kdir").read_bytes() == first
    kdir("backup", "--at", server.address, "--to", "one.kdir", "--force")
    assert (kdir.folder / "one.kdir").read_bytes() != first
    named = kdir("backup", "--at", server.address).stdout.strip()
    assert named.startswith("la-2")
    assert {one.name for one in kdir.folder.iterdir() if one.is_file()} == {"one.kdir", named}
    kdir("backup", "--at", server.address, "--to", "no/such/folder/one.kdir", code=2)


def test_a_server_that_dies_in_the_middle_leaves_no_file(
    federation: Federation, kdir: Kdir
) -> None:
    server = federation.start("/la")
    server.kill()
    kdir("backup", "--at", server.address, "--to", "one.kdir", code=3)
    assert not [one for one in kdir.folder.iterdir() if "kdir" in one.name and one.is_file()]


@pytest.mark.parametrize("kind", ["sqlite"])  # what is refused is so before a store matters
def test_a_damaged_backup_touches_nothing(
    federation: Federation, new_address: Addresses, kdir: Kdir
) -> None:
    server = federation.start("/la")
    a_tree(server)
    raw = backup(kdir, server).read_bytes()
    cut = kdir.folder / "cut.kdir"
    cut.write_bytes(raw[: len(raw) // 2])
    target = new_address()
    refused = kdir("restore", "--from", "cut.kdir", "--store", target, code=2)
    assert "cut.kdir: cut off after 0 rows, at byte" in refused.stderr
    plain = gzip.decompress(raw)
    at = plain.index(b"made-c") if b"made-c" in plain else len(plain) // 2
    forged = kdir.folder / "forged.kdir"
    forged.write_bytes(gzip.compress(plain[:at] + b"M" + plain[at + 1 :]))
    refused = kdir("restore", "--from", "forged.kdir", "--store", target, code=2)
    assert "forged.kdir: the checksum over the header and all" in refused.stderr
    assert find_identity(target) is None
    kdir("restore", "--from", "nothing.kdir", "--store", target, code=2)


def test_the_plan_refuses_a_place_where_no_store_can_be_made_as_the_restore_does(
    federation: Federation, kdir: Kdir, tmp_path: Path
) -> None:
    backup(kdir, federation.start("/la"))
    (tmp_path / "folder").mkdir()
    for place, why in (
        (tmp_path / "nowhere" / "la.db", "there is no directory"),
        (tmp_path / "folder", "is a directory; name a file in it"),
    ):
        for plan in ((), ("--plan",)):
            arguments = ("--from", "one.kdir", "--store", f"sqlite:///{place}", *plan)
            assert why in kdir("restore", *arguments, code=2).stderr


def _no_database(file: Path) -> None:
    file.write_bytes(b"no database" * 1_000)


def _damage_rows(file: Path) -> None:
    with file.open("r+b") as raw:  # the last page is one of the rows'
        raw.seek(-4_096, os.SEEK_END)
        raw.write(b"\xff" * 4_096)
    file.with_name(f"{file.name}-life").unlink()  # it is looked through once more


@pytest.mark.parametrize("damage", [_no_database, _damage_rows])
def test_a_damaged_store_is_no_store_to_wait_for_and_can_be_replaced_as_it_is_named(
    federation: Federation, kdir: Kdir, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    backup(kdir, federation.start("/la"))
    file = tmp_path / "target.db"
    target = f"sqlite:///{file}"
    kdir("restore", "--from", "one.kdir", "--store", target)
    fill(target, some_rows(3_000))
    damage(file)
    again = ("restore", "--from", "one.kdir", "--store", target)
    refused = kdir(*again, "--replace", "--yes", code=2).stderr
    assert "remove target.db, target.db-wal and target.db-shm, then kdir restore" in refused
    moved = kdir("migrate", "--yes", target, f"sqlite:///{tmp_path / 'to.db'}", code=2).stderr
    assert "then kdir restore" in moved
    for ending in ("", "-wal", "-shm"):
        file.with_name(f"{file.name}{ending}").unlink(missing_ok=True)
    kdir(*again)


@pytest.mark.parametrize("kind", ["sqlite"])  # what is refused is so before a store matters
def test_a_backup_goes_to_its_own_cluster_only(
    federation: Federation, new_address: Addresses, kdir: Kdir
) -> None:
    server = federation.start("/la")
    backup(kdir, server)
    other = new_address()
    with closing(open_store(other, "ny")) as store:
        whose = store.identity.cluster_id
    refused = kdir("restore", "--from", "one.kdir", "--store", other, "--replace", code=5)
    assert f"of cluster ny ({whose}), the backup of la ({server.cluster_id})" in refused.stderr
    again = new_address()
    with closing(open_store(again, "la")) as store:
        store.commit(Transaction((), (Put(b"k", b"v"),)))
    refused = kdir("restore", "--from", "one.kdir", "--store", again, "--replace", code=5)
    assert "name a store of its own" in refused.stderr
    config = kdir.folder / "ny.toml"
    config.write_text('mount = "/ny"\nstore = "sqlite:///ny.db"\n')
    refused = kdir("restore", "--from", "one.kdir", "--config", "ny.toml", code=2)
    assert "is of cluster ny; the backup is of la" in refused.stderr
