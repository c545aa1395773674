"""A removed directory that cannot be taken apart whole waits, idle, and goes on by itself."""

from __future__ import annotations

from pathlib import Path

from directory.namespace.command import CreateDirectory, CreateTopic, DeleteEntry
from directory.namespace.entry import Kind
from directory.namespace.keys import entry_key
from directory.store.base import Put, Transaction
from tests.support.large_trees import MOUNT, check_no_orphans, rows_under, server
from tests.support.large_trees import TightSqlite as Store
from tests.support.reconciler import eventually

IDLE_SECONDS = 10


def test_S21_the_reaper_waits_for_what_it_cannot_read_and_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db", "la")
    with server(store) as here:
        here.execute(CreateDirectory(path=MOUNT.join(("old", "sub")), make_parents=True))
        for name in ("t", "u"):
            here.execute(CreateTopic(path=MOUNT.join(("old", "sub", name))))
        old = here.replica.snapshot.find_directory(("old",))
        assert old is not None
        key = entry_key(old, Kind.DIRECTORY, "sub")
        (row,) = rows_under(store, key)
        store.commit(Transaction((), (Put(key, b"\xff"),)))
        eventually(lambda: here.replica.snapshot.has_lost)
        here.execute(DeleteEntry(path=MOUNT.join(("old",)), recursive=True))
        eventually(lambda: here.reaper.step() > IDLE_SECONDS)
        assert "cannot be read" in here.reaper.trouble
        revision = store.load().revision
        assert here.reaper.step() > IDLE_SECONDS
        assert store.load().revision == revision, "nothing is tried again and again"
        store.commit(Transaction((), (Put(key, row.value),)))
        eventually(lambda: not here.replica.snapshot.has_lost)
        here.reap()
        assert here.reaper.trouble == ""
        assert here.nothing_waits()
        check_no_orphans(store)
