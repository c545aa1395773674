"""What only the sqlite store has: addresses, files that are none of ours, restores by hand."""

import errno
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from directory.store.addresses import check_writable, find_identity, open_store
from directory.store.base import (
    Committed,
    Conflict,
    HistoryCompacted,
    IncompatibleStore,
    KeyEquals,
    Put,
    Store,
    StoreDamaged,
    StoreFull,
    StoreRefused,
    StoreUnreachable,
    Transaction,
)
from directory.store.replica import Replica, ReplicaState
from directory.store.schema import SCHEMA_VERSION
from directory.store.sqlite.database_file import DatabaseFile
from directory.store.sqlite.store import SqliteStore, database_path
from directory.wire.entry_codec import ProtoCodec
from tests.support.waiting import eventually


def put(store: Store, *keys: bytes) -> Committed:
    done = store.commit(Transaction((), tuple(Put(key, b"v") for key in keys)))
    assert isinstance(done, Committed)
    return done


def keys_of(store: Store) -> set[bytes]:
    return {key for page in store.load().pages() for key, _ in page}


@contextmanager
def replica_of(store: Store) -> Iterator[Replica]:
    replica = Replica(store, ProtoCodec())
    replica.start()
    try:
        yield replica
    finally:
        replica.stop()


# -- addresses --------------------------------------------------------------------------------


def test_three_slashes_are_relative_and_four_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert database_path("sqlite:///store.db") == tmp_path / "store.db"
    assert database_path("sqlite:///./sub/store.db") == tmp_path / "sub/store.db"
    assert database_path("sqlite:////var/lib/kdir/store.db") == Path("/var/lib/kdir/store.db")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("sqlite:///:memory:", "outlive"),
        ("sqlite://", "of the form"),
        ("sqlite:///", "of the form"),
        ("sqlite://store.db", "of the form"),
        ("sqlite:///store.db?mode=ro", "of the form"),
        ("sqlite:///folder/", "of the form"),
        ("postgres://x", "unknown kind"),
        ("/var/lib/kdir/store.db", "unknown kind"),
        ("", "unknown kind"),
    ],
)
def test_addresses_that_mean_no_store_say_why(address: str, reason: str) -> None:
    with pytest.raises(IncompatibleStore, match=reason) as refused:
        open_store(address, "la")
    assert address.partition("//")[0] in str(refused.value)  # the rest may hold a password
    assert "sqlite:///" in str(refused.value)


def test_a_forgotten_slash_is_pointed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    inside = f"sqlite:///{str(tmp_path).lstrip('/')}/data/store.db"
    with pytest.raises(
        IncompatibleStore, match=f"four slashes, sqlite:///{tmp_path}/data/store.db"
    ):
        open_store(inside, "la")


def test_a_symlink_that_leads_nowhere_is_no_forgotten_slash(tmp_path: Path) -> None:
    (tmp_path / "la.db").symlink_to(tmp_path / "nowhere" / "la.db")
    with pytest.raises(IncompatibleStore, match=r"there is no directory .*/nowhere; make it first"):
        open_store(f"sqlite:///{tmp_path}/la.db", "la")


# -- files that cannot be a store -------------------------------------------------------------


def _text(path: Path) -> None:
    path.write_text("cluster = la\n" * 100)


def _other_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE users (name TEXT)")


def _newer(path: Path) -> None:
    SqliteStore(path, "la").close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")


def _other_cluster(path: Path) -> None:
    SqliteStore(path, "ny").close()


def _truncated(path: Path) -> None:
    SqliteStore(path, "la").close()
    os.truncate(path, 5000)


def _no_text_in_its_identity(path: Path) -> None:
    SqliteStore(path, "la").close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value = CAST(x'ff6c61' AS TEXT) WHERE name = 'cluster'")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_text, "no sqlite database"),
        (_no_text_in_its_identity, "cannot be read .*UTF-8"),
        (_other_database, "not one that kdir made"),
        (_newer, f"version {SCHEMA_VERSION + 1}.*up to {SCHEMA_VERSION}"),
        (_other_cluster, "of cluster ny .* not of la"),
        (_truncated, "damaged"),
        (Path.mkdir, "is a directory"),
    ],
)
def test_what_is_no_store_of_ours_is_refused_in_one_sentence_and_not_touched(
    path: Path, make: Callable[[Path], None], reason: str
) -> None:
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    incarnation = path.with_name("store.db-life")
    noted = incarnation.read_bytes() if incarnation.exists() else None
    with pytest.raises(IncompatibleStore, match=reason) as refused:
        SqliteStore(path, "la")
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)
    assert (path.read_bytes() if path.is_file() else b"") == before
    assert (incarnation.read_bytes() if incarnation.exists() else None) == noted


@pytest.mark.parametrize(
    ("make", "reason"), [(_text, "is no sqlite database"), (_truncated, "damaged .* put it there")]
)
def test_what_it_is_cannot_be_found_out_of_a_file_that_cannot_be_read(
    path: Path, make: Callable[[Path], None], reason: str
) -> None:
    make(path)
    with pytest.raises(IncompatibleStore, match=reason):
        find_identity(f"sqlite:///{path}")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleStore, match=r"no directory .*/nowhere; make it first"):
        SqliteStore(tmp_path / "nowhere" / "store.db", "la")


def test_a_folder_that_cannot_be_written_to_is_reported() -> None:
    # Nobody can make files there, not even root, whom permissions do not stop.
    with pytest.raises(IncompatibleStore, match="cannot be written"):
        SqliteStore(Path("/proc/store.db"), "la")


def test_a_folder_that_cannot_be_entered_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # From Python 3.14 on these two say no to what cannot be read.
    monkeypatch.setattr(Path, "exists", lambda _: False)
    monkeypatch.setattr(Path, "is_dir", lambda _: False)
    # The system refuses such a name to everybody; permissions do not stop root.
    nowhere = tmp_path / ("x" * 300) / "store.db"
    for name in (nowhere, tmp_path / f"{'x' * 300}.db"):
        for ask in (
            lambda name=name: SqliteStore(name, "la"),
            lambda name=name: find_identity(f"sqlite:///{name}"),
        ):
            with pytest.raises(IncompatibleStore, match=r"cannot be read \(File name too long\)"):
                ask()
    with pytest.raises(IncompatibleStore, match=r"cannot be read \(File name too long\)"):
        database_path(f"sqlite:///{nowhere}")


def _missing_folder(path: Path) -> Path:
    return path.parent / "nowhere" / path.name


def _directory(path: Path) -> Path:
    path.mkdir()
    return path


def _directory_beside(path: Path) -> Path:
    path.with_name(f"{path.name}-life").mkdir()
    return path


def _long_name(path: Path) -> Path:
    return path.with_name(f"{'x' * 252}")  # that of the file beside it is too long


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_missing_folder, r"no directory .*/nowhere; make it first"),
        (_directory, r"store\.db: is a directory; name a file in it"),
        (_directory_beside, r"store\.db-life: cannot be written \(Is a directory\)"),
        (_long_name, r"File name too long"),
    ],
)
def test_where_no_store_can_be_made_it_is_known_before_and_nothing_is_left(
    path: Path, make: Callable[[Path], Path], reason: str
) -> None:
    where = make(path)
    before = set(path.parent.rglob("*"))
    for ask in (lambda: check_writable(f"sqlite:///{where}"), lambda: SqliteStore(where, "la")):
        with pytest.raises(IncompatibleStore, match=reason):
            ask()
    assert set(path.parent.rglob("*")) == before


def test_where_a_store_is_or_can_be_made_nothing_is_made_by_looking(path: Path) -> None:
    check_writable(f"sqlite:///{path}")
    assert not list(path.parent.iterdir())
    with closing(SqliteStore(path, "la")):
        check_writable(f"sqlite:///{path}")


def test_a_directory_in_the_place_of_a_store_is_named(path: Path) -> None:
    with pytest.raises(IncompatibleStore, match="is a directory; name a file in it"):
        find_identity(f"sqlite:///{_directory(path)}")


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with closing(SqliteStore(path, "la")) as store:
        put(store, b"k")
        assert keys_of(store) == {b"k"}


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: os.truncate(path, 0)])
def test_a_store_whose_file_was_lost_is_no_new_one(
    path: Path, lose: Callable[[Path], None]
) -> None:
    with closing(SqliteStore(path, "la")) as store:
        put(store, b"k")
        cluster_id = store.identity.cluster_id
    lose(path)
    with pytest.raises(
        IncompatibleStore, match=r"store\.db-life is the note of a store at revision 1;"
    ):
        SqliteStore(path, "la")
    with closing(SqliteStore(path, "la", cluster_id)) as store:  # as a restore opens it
        assert keys_of(store) == set()
    lose(path)
    path.with_name("store.db-life").unlink()
    with closing(SqliteStore(path, "la")) as store:
        assert store.identity.cluster_id != cluster_id


def test_a_store_that_cannot_be_made_leaves_no_file_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server tries it again for as long as the disk is full."""
    open_file = os.open

    def full(name: str | Path, flags: int, mode: int = 0o777) -> int:
        if Path(name) == path:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return open_file(name, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr("directory.store.sqlite.database_file.os.open", full)
        with pytest.raises(StoreUnreachable):
            SqliteStore(path, "la")
    opened = [one.resolve() for one in Path("/proc/self/fd").iterdir()]
    assert not [one for one in opened if one.is_relative_to(path.parent.resolve())]


def test_an_empty_file_in_the_place_of_a_store_in_use_is_no_new_one(
    path: Path, reopen: Callable[[], SqliteStore]
) -> None:
    store = reopen()
    put(store, b"f/kept")
    identity, note = store.identity, path.with_name("store.db-life").read_bytes()
    with replica_of(store) as replica:
        eventually(lambda: replica.state is ReplicaState.SERVING)
        for ending in ("", "-wal", "-shm"):
            path.with_name(path.name + ending).unlink()
        path.touch()  # as sqlite's own tool does, too
        eventually(lambda: replica.state is ReplicaState.STALE)
        for ask in (
            lambda: put(store, b"lost"),
            lambda: store.read(b""),
            store.newest_revision,
            store.refresh_identity,
        ):
            with pytest.raises(StoreUnreachable, match=f"{path}: is empty; put the file"):
                ask()
        assert replica.state is ReplicaState.STALE
        assert dict(replica.snapshot.facts(b"f/")) == {b"f/kept": b"v"}
    assert store.identity == identity
    assert path.with_name("store.db-life").read_bytes() == note
    assert path.stat().st_size == 0, "it could be taken for a store's file"


def test_a_store_that_cannot_be_read_is_damaged_not_away(path: Path) -> None:
    with closing(SqliteStore(path, "la")) as store:
        put(store, *(b"%05d" % n for n in range(3_000)))
    size = path.stat().st_size
    with path.open("r+b") as file:  # the last page is one of the rows'
        file.seek(size - 4_096)
        file.write(b"\xff" * 4_096)
    path.with_name("store.db-life").unlink()  # it is looked through once more
    with pytest.raises(StoreDamaged, match=r"put it there again"):
        SqliteStore(path, "la")


def test_only_the_owner_can_read_it(path: Path) -> None:
    with closing(SqliteStore(path, "la")) as store:
        put(store, b"k")
        files = sorted(path.parent.iterdir())
        assert len(files) == 4
        assert {oct(file.stat().st_mode & 0o777) for file in files} == {"0o600"}


def test_a_full_disk_is_a_full_store_and_nothing_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = DatabaseFile.connect

    def connect_small(file: DatabaseFile, *arguments: int) -> tuple[sqlite3.Connection, int]:
        connection, inode = connect(file, *arguments)
        connection.execute("PRAGMA max_page_count = 1")  # not beyond its size now
        return connection, inode

    with closing(SqliteStore(path, "la")) as store:
        put(store, b"k")
    with monkeypatch.context() as patch:
        patch.setattr(DatabaseFile, "connect", connect_small)
        with closing(SqliteStore(path, "la")) as store, ThreadPoolExecutor(4) as pool:
            many = [[b"%d/%04d" % (one, n) for n in range(2_000)] for one in range(4)]
            for done in [pool.submit(put, store, *keys) for keys in many]:
                with pytest.raises(StoreFull, match="its disk is full"):
                    done.result()
            assert keys_of(store) == {b"k"}
            put(store, b"small")
    with closing(SqliteStore(path, "la")) as store:
        assert keys_of(store) == {b"k", b"small"}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (sqlite3.SQLITE_IOERR_SHMSIZE, "disk I/O error: is its disk full"),
        (sqlite3.SQLITE_IOERR_WRITE, "disk I/O error: is its disk full"),
        (sqlite3.SQLITE_IOERR_READ, "disk I/O error$"),
        (sqlite3.SQLITE_FULL, "its disk is full"),
        (sqlite3.SQLITE_BUSY, "disk I/O error$"),
        (sqlite3.SQLITE_BUSY_RECOVERY, "disk I/O error$"),
    ],
)
def test_a_store_that_cannot_be_opened_now_is_away_and_not_unusable(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    def fail(*_: object, **__: object) -> sqlite3.Connection:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = code
        raise error

    SqliteStore(path, "la").close()
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", fail)
        with pytest.raises(StoreUnreachable, match=reason):
            SqliteStore(path, "la")
    SqliteStore(path, "la").close()


@pytest.mark.parametrize("ending", ["", "-life"])
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "No space left .*: is its disk full"),
        (errno.EDQUOT, "Disk quota exceeded.*: is its disk full"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_store_that_cannot_be_made_now_is_away_and_not_unusable(
    path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, number: int, reason: str
) -> None:
    make = os.open

    def fail(name: Path, *arguments: int) -> int:
        if name == path.with_name(f"{path.name}{ending}"):
            raise OSError(number, os.strerror(number), str(name))
        return make(name, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        with pytest.raises(StoreUnreachable, match=f"{path}: .*{reason}"):
            SqliteStore(path, "la")
    SqliteStore(path, "la").close()


def test_a_file_that_may_not_be_written_refuses_and_nothing_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = DatabaseFile.connect

    def connect_read_only(file: DatabaseFile, *arguments: int) -> tuple[sqlite3.Connection, int]:
        connection, inode = connect(file, *arguments)
        connection.execute("PRAGMA query_only = ON")  # fails as a file that is only read
        return connection, inode

    with closing(SqliteStore(path, "la")) as store:
        put(store, b"k")
    with monkeypatch.context() as patch:
        patch.setattr(DatabaseFile, "connect", connect_read_only)
        with closing(SqliteStore(path, "la")) as store:
            with pytest.raises(StoreRefused, match="may only be read: let this user write it"):
                put(store, b"refused")
            assert keys_of(store) == {b"k"}
    with closing(SqliteStore(path, "la")) as store:
        assert keys_of(store) == {b"k"}


# -- many at once -----------------------------------------------------------------------------


def test_stores_that_are_made_at_the_same_time_are_one(path: Path) -> None:
    made: list[SqliteStore] = []
    start = threading.Barrier(4)

    def make() -> None:
        start.wait()
        made.append(SqliteStore(path, "la"))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({store.identity for store in made}) == 1
    for store in made:
        store.close()


def writing(store: SqliteStore) -> AbstractContextManager[sqlite3.Connection]:
    """Holds what a commit holds."""
    return store._file.writing()


def test_who_cannot_write_in_time_learns_that_the_store_is_away(path: Path) -> None:
    with (
        closing(SqliteStore(path, "la")) as store,
        closing(SqliteStore(path, "la")) as other,
        writing(other),
    ):
        with pytest.raises(StoreUnreachable, match="another process"):
            store.commit(Transaction((), (Put(b"k", b""),)), timeout_seconds=0.05)
        with pytest.raises(StoreUnreachable, match="other writers"):
            other.commit(Transaction((), (Put(b"k", b""),)), timeout_seconds=0.05)
        assert keys_of(store) == set()


def test_a_foreign_writer_is_waited_for_then_the_store_is_away(path: Path) -> None:
    with (
        closing(SqliteStore(path, "la")) as store,
        closing(sqlite3.connect(path, isolation_level=None)) as foreign,
    ):
        foreign.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnreachable, match="locked"):
            store.commit(Transaction((), (Put(b"k", b"v"),)), timeout_seconds=0.2)
        foreign.execute("ROLLBACK")
        put(store, b"k")
        assert keys_of(store) == {b"k"}


def test_a_closed_store_is_away(path: Path) -> None:
    store = SqliteStore(path, "la")
    store.close()
    store.close()
    with pytest.raises(StoreUnreachable):
        put(store, b"k")


# -- history is bounded -----------------------------------------------------------------------


def test_history_is_kept_up_to_its_bound_and_no_longer(path: Path) -> None:
    with closing(SqliteStore(path, "la", history_writes=100)) as store:
        done = [put(store, b"%d/a" % n, b"%d/b" % n) for n in range(300)]
        with closing(sqlite3.connect(path)) as connection:
            (rows,) = connection.execute("SELECT count(*) FROM log").fetchone()
            assert rows == 100
        with closing(store.watch(done[-51].revision, done[-51].commit_id)) as watch:
            assert [c.revision for c in watch.next(5)] == [d.revision for d in done[-50:]]
        with pytest.raises(HistoryCompacted):
            store.watch(done[-52].revision, done[-52].commit_id)


def test_one_commit_larger_than_the_bound_does_not_stop_the_pruning(path: Path) -> None:
    with closing(SqliteStore(path, "la", history_writes=10)) as store:
        for batch in range(5):
            put(store, *(b"%d/%d" % (batch, n) for n in range(5_000)))
        for n in range(20):
            put(store, b"%d" % n)
        with closing(sqlite3.connect(path)) as connection:
            (rows,) = connection.execute("SELECT count(*) FROM log").fetchone()
        assert rows == 10


# -- another file under the server ------------------------------------------------------------


def test_S11_a_file_renamed_over_a_running_store_is_noticed_by_watch_and_writer(
    path: Path, tmp_path: Path, reopen: Callable[[], SqliteStore]
) -> None:
    store = reopen()
    put(store, b"kept")
    backup = tmp_path / "backup.db"
    with closing(sqlite3.connect(path)) as source:
        source.execute("VACUUM INTO ?", (str(backup),))
    lost = put(store, b"lost")
    watching = reopen()
    watch = watching.watch(lost.revision, lost.commit_id)
    assert list(watch.next(0)) == []
    incarnation = store.identity.incarnation

    for leftover in ("-wal", "-shm"):
        path.with_name(path.name + leftover).unlink()
    backup.rename(path)
    with pytest.raises(HistoryCompacted):
        watch.next(30)
    watch.close()
    assert watching.refresh_identity().incarnation != incarnation
    later = put(store, b"later")
    assert later.revision > lost.revision
    assert keys_of(watching) == keys_of(store) == {b"kept", b"later"}
    assert keys_of(reopen()) == {b"kept", b"later"}
    assert store.refresh_identity() == watching.refresh_identity()


def test_S11_a_restore_through_sqlite_under_a_running_store_is_noticed(
    path: Path, tmp_path: Path, reopen: Callable[[], SqliteStore]
) -> None:
    store = reopen()
    put(store, b"kept")
    backup = tmp_path / "backup.db"
    with closing(sqlite3.connect(path)) as source:
        source.execute("VACUUM INTO ?", (str(backup),))
    lost = put(store, b"lost")
    watch = store.watch(lost.revision, lost.commit_id)
    incarnation = store.identity.incarnation
    with closing(sqlite3.connect(backup)) as source, closing(sqlite3.connect(path)) as target:
        source.backup(target)
    with pytest.raises(HistoryCompacted):
        watch.next(30)
    watch.close()
    assert store.refresh_identity().incarnation != incarnation
    assert put(store, b"later").revision > lost.revision
    assert keys_of(store) == {b"kept", b"later"}


@pytest.mark.parametrize("elsewhere", [True, False])
def test_S11_a_mixture_of_a_backup_and_the_log_of_what_was_there_is_not_served(
    path: Path, tmp_path: Path, elsewhere: bool
) -> None:
    # kill -9 leaves the write-ahead log; an operator copies a backup over the database only.
    store = SqliteStore(path, "la")
    put(store, *(b"%05d" % n for n in range(3_000)))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    backup = tmp_path / "backup.db"
    with closing(sqlite3.connect(path)) as source:
        source.execute("VACUUM INTO ?", (str(backup),))
    put(store, *(b"more/%05d" % n for n in range(3_000)))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    put(store, b"00001", b"more/00001")
    left = {file.name: file.read_bytes() for file in path.parent.glob("store.db*")}
    store.close()

    folder = path.parent
    if elsewhere:
        folder = tmp_path / "left"
        folder.mkdir()
    left["store.db"] = backup.read_bytes()
    del left["store.db-shm"]
    for name, content in left.items():
        file = folder / name
        file.touch()
        with file.open("r+b") as target:  # in place, as cp does
            target.truncate()
            target.write(content)
    with pytest.raises(
        (StoreUnreachable, IncompatibleStore), match=r"damaged.*put it there again"
    ) as refused:
        SqliteStore(folder / "store.db", "la")
    assert "\n" not in str(refused.value)


def test_a_copied_store_is_another_incarnation(path: Path, tmp_path: Path) -> None:
    with closing(SqliteStore(path, "la")) as store:
        put(store, b"k")
        incarnation = store.identity.incarnation
    copies = tmp_path / "copies"
    copies.mkdir()
    for file in path.parent.glob("store.db*"):
        shutil.copy(file, copies / file.name)
    with closing(SqliteStore(copies / "store.db", "la")) as store:
        assert store.identity.incarnation != incarnation
        assert keys_of(store) == {b"k"}
    with closing(SqliteStore(path, "la")) as store:
        assert store.identity.incarnation == incarnation


def test_S11_a_backup_of_all_files_put_back_with_their_times_is_another_incarnation(
    path: Path, tmp_path: Path
) -> None:
    with closing(SqliteStore(path, "la")) as store:
        put(store, b"kept")
        incarnation = store.identity.incarnation
    backup = tmp_path / "backup"
    backup.mkdir()
    for file in path.parent.glob("store.db*"):
        shutil.copy2(file, backup / file.name)
    with closing(SqliteStore(path, "la")) as store:
        assert store.identity.incarnation == incarnation
        lost = put(store, b"lost")
    for file in backup.iterdir():  # in place, with its times: cp -a
        with file.open("rb") as source, (path.parent / file.name).open("r+b") as target:
            target.truncate()
            shutil.copyfileobj(source, target)
        shutil.copystat(file, path.parent / file.name)
    with closing(SqliteStore(path, "la")) as store:
        assert store.identity.incarnation != incarnation
        assert keys_of(store) == {b"kept"}
        assert store.load().revision > lost.revision
        incarnation = store.identity.incarnation
    with closing(SqliteStore(path, "la")) as store:
        assert store.identity.incarnation == incarnation


def test_two_names_of_one_file_are_one_store(path: Path, tmp_path: Path) -> None:
    alias = tmp_path / "alias.db"
    alias.symlink_to(path)
    with (
        closing(open_store(f"sqlite:///{path}", "la")) as store,
        closing(open_store(f"sqlite:///{alias}", "la")) as other,
    ):
        assert other.describe() == store.describe()
        assert store.elect("publisher", "one") is not None
        assert other.elect("publisher", "two") is None


def test_commits_are_synced_before_they_are_acknowledged(path: Path) -> None:
    # What a power cut leaves cannot be tested here; that sqlite is asked for it can.
    with closing(SqliteStore(path, "la")) as store, writing(store) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize(
    "spoil", [Path.unlink, lambda incarnation: incarnation.write_bytes(b"\xffgarbage")]
)
def test_without_the_note_of_its_incarnation_it_is_another(
    path: Path, spoil: Callable[[Path], None]
) -> None:
    with closing(SqliteStore(path, "la")) as store:
        put(store, b"k")
        incarnation = store.identity.incarnation
    spoil(path.with_name("store.db-life"))
    with closing(SqliteStore(path, "la")) as store:
        assert store.identity.incarnation != incarnation
        assert keys_of(store) == {b"k"}


def test_a_file_that_is_taken_away_is_a_store_that_is_away_until_it_returns(
    path: Path, reopen: Callable[[], SqliteStore]
) -> None:
    store = reopen()
    done = put(store, b"k")
    watch = store.watch(done.revision, done.commit_id)
    away = path.with_name("moved.db")
    path.rename(away)
    for ask in (
        lambda: watch.next(0),
        lambda: put(store, b"lost"),
        store.load,
        lambda: store.read(b""),
        store.refresh_identity,
    ):
        with pytest.raises(StoreUnreachable):
            ask()
    away.rename(path)
    later = put(store, b"later")
    assert [change.revision for change in watch.next(5)] == [later.revision]
    watch.close()
    assert keys_of(store) == {b"k", b"later"}


def test_a_store_that_another_clusters_replaced_is_away_for_reads_and_writes(
    path: Path, tmp_path: Path, reopen: Callable[[], SqliteStore]
) -> None:
    store = reopen()
    put(store, b"ours")
    assert store.read(b"")
    other = tmp_path / "other.db"
    with closing(SqliteStore(other, "ny")) as foreign:
        put(foreign, b"theirs")
    for leftover in ("-wal", "-shm"):
        path.with_name(path.name + leftover).unlink()
    other.replace(path)
    for ask in (
        lambda: store.read(b""),
        store.newest_revision,
        lambda: put(store, b"lost"),
        lambda: store.elect("reconciler", "one"),
        lambda: store.create_ephemeral(b"alive", b""),
        store.remove_expired,
    ):
        with pytest.raises(StoreUnreachable, match=f"{path}: is the store of cluster ny"):
            ask()
    with pytest.raises(IncompatibleStore, match="is the store of cluster ny"):
        store.refresh_identity()


def test_a_backup_tool_that_checkpoints_is_no_restore(
    path: Path, reopen: Callable[[], SqliteStore]
) -> None:
    store = reopen()
    done = put(store, b"k")
    watch = store.watch(done.revision, done.commit_id)
    incarnation = store.identity
    with closing(sqlite3.connect(path)) as tool:
        assert tool.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    assert list(watch.next(0.1)) == []
    later = put(store, b"later")
    assert [change.revision for change in watch.next(5)] == [later.revision]
    watch.close()
    assert store.refresh_identity() == incarnation
    store.close()
    assert reopen().identity == incarnation


def _put_the_folder_back(folder: Path) -> None:
    lost = folder.with_name("lost")
    folder.rename(lost)
    shutil.copytree(lost, folder)


def _remove_the_note(folder: Path) -> None:
    (folder / "la.db-life").unlink()


@pytest.mark.parametrize("change", [_put_the_folder_back, _remove_the_note])
def test_stores_that_were_opened_before_and_after_the_lock_was_replaced_have_one_lock(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    folder = tmp_path / "stores"
    folder.mkdir()
    with closing(SqliteStore(folder / "la.db", "la")) as before:
        put(before, b"k")
        incarnations = [before.identity.incarnation]
        change(folder)
        with closing(SqliteStore(folder / "la.db", "la")) as after:
            for number in range(3):
                for store in (before, after):
                    put(store, b"%d" % number)
                    incarnations.append(store.refresh_identity().incarnation)
            with writing(after), pytest.raises(StoreUnreachable, match="another process"):
                before.commit(Transaction((), (Put(b"k", b""),)), timeout_seconds=0.05)
    assert len(set(incarnations[1:])) == 1, "each put the store back"


def test_a_store_in_a_file_system_without_stable_inodes_is_away(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[object] = []

    def is_same(*statuses: object) -> bool:
        compared.append(statuses)
        assert len(compared) < 1_000, "waits for ever"
        return False

    with closing(SqliteStore(path, "la")) as store, monkeypatch.context() as patch:
        patch.setattr(os.path, "samestat", is_same)
        with pytest.raises(StoreUnreachable, match=r"-life: another file was put there again and"):
            store.commit(Transaction((), (Put(b"k", b""),)), timeout_seconds=0.05)


def test_a_store_whose_folder_is_gone_is_away_until_it_returns(tmp_path: Path) -> None:
    folder = tmp_path / "stores"
    folder.mkdir()
    with closing(SqliteStore(folder / "la.db", "la")) as store:
        put(store, b"k")
        identity = store.identity
        folder.rename(tmp_path / "gone")
        for _ in range(2):
            with pytest.raises(StoreUnreachable, match=r"la\.db-life: No such file"):
                put(store, b"lost")
        (tmp_path / "gone").rename(folder)
        put(store, b"later")
        assert store.refresh_identity() == identity
        assert keys_of(store) == {b"k", b"later"}


def test_S19_a_restore_ends_every_role(path: Path, reopen: Callable[[], SqliteStore]) -> None:
    store = reopen()
    leadership = store.elect("publisher", "one")
    assert leadership is not None
    path.with_name("store.db-life").write_bytes(b"")
    put(store, b"k")
    store.refresh_identity()
    assert not leadership.held()


def test_a_guard_on_a_value_that_another_process_changed_conflicts(
    reopen: Callable[[], SqliteStore],
) -> None:
    one, two = reopen(), reopen()
    put(one, b"k")
    two.commit(Transaction((), (Put(b"k", b"new"),)))
    done = one.commit(Transaction((KeyEquals(b"k", b"v"),), ()))
    assert isinstance(done, Conflict)
