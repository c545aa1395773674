"""At which revision store and replica are compared, and what is said where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as FilePath

import pytest

from directory.maintenance.verify_copies import Summary, compare_rows
from directory.store.base import Committed, Put, Transaction
from directory.store.replica import Replica
from directory.store.sqlite.store import SqliteStore
from directory.wire.entry_codec import ProtoCodec
from resolver.path import ROOT


@pytest.fixture
def store(tmp_path: FilePath) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "store.db", "la")
    yield store
    store.close()


@pytest.fixture
def replica(store: SqliteStore) -> Iterator[Replica]:
    replica = Replica(store, ProtoCodec())
    replica.start()
    replica.wait_for(0, 20)
    yield replica
    replica.stop()


def put(store: SqliteStore, key: bytes) -> int:
    done = store.commit(Transaction((), (Put(key, b""),)))
    assert isinstance(done, Committed)
    return done.revision


def compared(store: SqliteStore, replica: Replica) -> Summary:
    summary = Summary()
    assert list(compare_rows(store, replica, ROOT, lambda: None, summary)) == []
    return summary


def test_what_was_compared_is_shown(store: SqliteStore, replica: Replica) -> None:
    revision = put(store, b"x/one")
    summary = compared(store, replica)
    assert (summary.revision, summary.rows, summary.troubles) == (revision, 1, [])


def test_a_replica_ahead_of_the_newest_commit_reveals_foreign_writes(
    store: SqliteStore, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So it is on etcd when somebody writes below the prefix: the watch brings it, no commit does.
    put(store, b"x/one")
    before = store.load()
    replica.wait_for(put(store, b"x/two"), 20)
    monkeypatch.setattr(store, "load", lambda: before)
    (trouble,) = compared(store, replica).troubles
    assert "something else than kdir wrote to the store" in trouble


def test_a_store_that_is_restored_during_the_comparison_is_not_called_equal(
    store: SqliteStore, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica.wait_for(put(store, b"x/one"), 20)
    now = store.refresh_identity()
    identities = iter((now, replace(now, incarnation="another")))
    monkeypatch.setattr(store, "refresh_identity", lambda: next(identities))
    (trouble,) = compared(store, replica).troubles
    assert "a new incarnation of it began" in trouble
