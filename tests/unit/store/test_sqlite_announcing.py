"""The files that say which process announced a key: none is left over, none is taken too early."""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from directory.store.base import Conflict, KeyEquals, Put, Transaction
from directory.store.sqlite.ephemeral_keys import SqliteAnnouncement
from directory.store.sqlite.store import SqliteStore
from tests.support.lost_locks import lose_lock

KEY = b"m/one"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store [1].db"  # no letter of it means anything


def announce(store: SqliteStore, key: bytes = KEY) -> SqliteAnnouncement:
    done = store.create_ephemeral(key, b"v")
    assert isinstance(done, SqliteAnnouncement)
    return done


def alive_files(path: Path) -> list[str]:
    return sorted(one.name for one in path.parent.iterdir() if "-alive-" in one.name)


def keys_of(store: SqliteStore) -> set[bytes]:
    return {key for page in store.load().pages() for key, _ in page}


def orphaned(path: Path, token: str) -> Path:
    """Returns what a process that was killed leaves: the file, and nobody who holds it."""
    stray = path.with_name(f"{path.name}-alive-{token}")
    stray.touch(mode=0o600)
    return stray


def test_a_withdrawal_removes_key_and_file(path: Path, reopen: Callable[[], SqliteStore]) -> None:
    store = reopen()
    announcement = announce(store)
    assert len(alive_files(path)) == 1
    announcement.delete()
    assert alive_files(path) == []
    assert keys_of(store) == set()


def test_a_refused_announcement_leaves_no_file(
    path: Path, reopen: Callable[[], SqliteStore]
) -> None:
    assert isinstance(reopen().create_ephemeral(KEY, b"v", (KeyEquals(b"k", b"v"),)), Conflict)
    assert alive_files(path) == []


def test_a_sweep_removes_what_the_dead_left_and_nothing_else(
    path: Path, reopen: Callable[[], SqliteStore]
) -> None:
    store = reopen()
    announce(store, b"m/living")
    dead = announce(store, b"m/dead")
    lose_lock(dead)
    stray = orphaned(path, "0123456789abcdef")  # killed between file and commit
    foreign = path.with_name(f"{path.name}-other")
    foreign.touch()
    assert reopen().remove_expired() == 1
    assert keys_of(store) == {b"m/living"}
    assert not stray.exists()
    assert foreign.exists()
    assert len(alive_files(path)) == 1
    assert store.remove_expired() == 0


def test_sweeps_and_announcements_at_the_same_time_lose_nobody(
    path: Path, reopen: Callable[[], SqliteStore]
) -> None:
    """The race: a file that was made and is not locked yet looks like one of the dead."""
    stop = threading.Event()

    def sweep() -> None:
        store = reopen()
        while not stop.is_set():
            store.remove_expired()

    sweepers = [threading.Thread(target=sweep) for _ in range(2)]
    store = reopen()
    for one in sweepers:
        one.start()
    try:
        for n in range(60):
            kept = announce(store, b"m/kept%d" % n)
            announce(store, b"m/gone").delete()
            assert kept.is_alive()
    finally:
        stop.set()
        for one in sweepers:
            one.join()
    assert keys_of(store) == {b"m/kept%d" % n for n in range(60)}
    assert len(alive_files(path)) == 60


def test_a_withdrawal_that_the_store_cannot_take_is_made_up_for(
    path: Path, reopen: Callable[[], SqliteStore]
) -> None:
    store = reopen()
    announcement = announce(store)
    hidden = path.with_name("elsewhere")
    path.rename(hidden)
    announcement.delete()
    hidden.rename(path)
    other = reopen()
    assert other.remove_expired() == 1
    assert keys_of(other) == set()


def test_S11_a_restore_ends_every_announcement(
    path: Path, reopen: Callable[[], SqliteStore]
) -> None:
    store = reopen()
    announcement = announce(store)
    path.with_name(f"{path.name}-life").write_bytes(b"")  # not the file that its writer left
    store.commit(Transaction((), (Put(b"k", b""),)))
    store.refresh_identity()
    assert not announcement.is_alive()
    again = announce(store)
    announcement.update(b"late")
    announcement.delete()
    assert again.is_alive()
    assert keys_of(store) == {KEY, b"k"}
    assert store.remove_expired() == 0
    assert len(alive_files(path)) == 1


def test_a_copy_of_the_store_elsewhere_has_none_of_its_servers(
    path: Path, tmp_path: Path, reopen: Callable[[], SqliteStore]
) -> None:
    announce(reopen())
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    copy = folder / path.name
    with closing(sqlite3.connect(path)) as source:
        source.execute("VACUUM INTO ?", (str(copy),))
    with closing(SqliteStore(copy, "la")) as store:
        assert store.remove_expired() == 1
        assert keys_of(store) == set()


def test_a_store_of_an_earlier_kdir_is_completed(
    path: Path, reopen: Callable[[], SqliteStore]
) -> None:
    SqliteStore(path, "la").close()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("DROP TABLE announced")
    path.with_name(f"{path.name}-life").unlink()
    store = reopen()
    assert store.remove_expired() == 0
    announce(store)
    assert keys_of(store) == {KEY}
