"""Where stores live in tests: each kind knows how to open, back up, restore and forget history."""

import secrets
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO, Protocol, Self

import pytest

from deploy.local.etcd import EtcdCluster
from directory.store.addresses import open_store
from directory.store.base import Put, Store, Transaction
from directory.store.etcd.connection import EtcdConnection
from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.etcd_address import EtcdAddress
from directory.store.etcd.key_layout import end_of
from directory.store.etcd.transaction import delete, request_of
from directory.store.sqlite.store import SqliteStore, database_path
from tests.conftest import SharedEtcd

ROOT = Path(__file__).resolve().parents[3]


class Place(Protocol):
    """A store's place: many stores, in many processes, may be open there at once."""

    address: str

    @classmethod
    def make(
        cls, request: pytest.FixtureRequest, folder: Path, cleanup: ExitStack, *, alone: bool
    ) -> Self:
        """Returns an empty one. ``alone``: on servers of its own, which can be restored."""

    def open(self, cluster: str = "la", cluster_id: str | None = None) -> Store:
        """Opens a store there; the fixture closes it at the latest."""

    def forget_history(self) -> None:
        """Makes the store keep nothing of what led to its newest revision."""

    def remove(self) -> None:
        """Removes the store, as an operator would by mistake."""

    def backup(self) -> None:
        """Keeps the store as it is now."""

    def restore(self) -> None:
        """Puts the backup back, as an operator would while no server runs."""


class SqlitePlace:
    """A sqlite file in a folder of its own."""

    def __init__(self, folder: Path, cleanup: ExitStack) -> None:
        self.path = folder / "store.db"
        self.address = f"sqlite:///{self.path}"
        self._backup = folder / "backup.db"
        self._cleanup = cleanup

    @classmethod
    def make(
        cls,
        request: pytest.FixtureRequest,  # noqa: ARG003 - needs no servers
        folder: Path,
        cleanup: ExitStack,
        *,
        alone: bool,  # noqa: ARG003 - always is
    ) -> Self:
        return cls(folder, cleanup)

    def open(self, cluster: str = "la", cluster_id: str | None = None) -> Store:
        store = open_store(self.address, cluster, cluster_id)
        self._cleanup.callback(store.close)
        return store

    def forget_history(self) -> None:
        with closing(SqliteStore(database_path(self.address), "la", history_writes=0)) as store:
            for _ in range(3):
                store.commit(Transaction((), (Put(b"forget", b""),)))

    def remove(self) -> None:
        for ending in ("", "-wal", "-shm", "-life"):
            self.path.with_name(self.path.name + ending).unlink(missing_ok=True)

    def backup(self) -> None:
        self._backup.unlink(missing_ok=True)
        with closing(sqlite3.connect(self.path)) as source:
            source.execute("VACUUM INTO ?", (str(self._backup),))

    def restore(self) -> None:
        for leftover in ("-wal", "-shm"):
            self.path.with_name(self.path.name + leftover).unlink(missing_ok=True)
        shutil.copyfile(self._backup, self.path)


class EtcdPlace:
    """A prefix of its own in an etcd of three members, shared or (``own``) not."""

    def __init__(
        self, etcd: SharedEtcd, folder: Path, cleanup: ExitStack, own: EtcdCluster | None
    ) -> None:
        self.address = etcd.address()
        self._own = own
        self._backup = folder / "snapshot.db"
        self._cleanup = cleanup
        self._connection = EtcdConnection(EtcdAddress.parse(self.address))
        cleanup.callback(self._connection.close)

    @classmethod
    def make(
        cls, request: pytest.FixtureRequest, folder: Path, cleanup: ExitStack, *, alone: bool
    ) -> Self:
        if not alone:
            return cls(request.getfixturevalue("own_etcd"), folder, cleanup, None)
        own = cleanup.enter_context(request.getfixturevalue("etcd_clusters")())
        return cls(SharedEtcd(tuple(own.endpoints)), folder, cleanup, own)

    def open(self, cluster: str = "la", cluster_id: str | None = None) -> Store:
        store = open_store(self.address, cluster, cluster_id)
        self._cleanup.callback(store.close)
        return store

    def forget_history(self) -> None:
        head = self._connection.range(etcdrpc.RangeRequest(key=b"-"), 10)
        self._connection.compact(head.header.revision, 10)

    def remove(self) -> None:
        root = EtcdAddress.parse(self.address).root
        self._connection.txn(request_of([], [delete(root, end_of(root))], []), 10)

    def backup(self) -> None:
        with self._connection.dial(0) as channel, self._backup.open("wb") as file:
            # A member's snapshot is of what it has applied; after this read, all that was written.
            etcdrpc.KVStub(channel).Range(etcdrpc.RangeRequest(key=b"-"))
            for part in etcdrpc.MaintenanceStub(channel).Snapshot(etcdrpc.SnapshotRequest()):
                file.write(part.blob)

    def restore(self) -> None:
        assert self._own is not None, "this test needs the fixture restorable_place"
        self._own.restore(self._backup, secrets.token_hex(4))


PLACES: Sequence[type[Place]] = [SqlitePlace, EtcdPlace]
"""Another kind of store joins the suite here."""


def start_worker(place: Place, task: str, *arguments: str) -> subprocess.Popen[str]:
    """Runs ``worker.py`` in a process of its own; its output is read line by line."""
    return subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).with_name("worker.py")),
            task,
            place.address,
            *arguments,
        ],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def output_of(worker: subprocess.Popen[str]) -> IO[str]:
    """Returns what the worker prints."""
    assert worker.stdout is not None
    return worker.stdout


def say_go(worker: subprocess.Popen[str]) -> None:
    """Lets a worker that said ``ready`` begin."""
    assert worker.stdin is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
