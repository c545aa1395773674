"""A removal in steps, killed at any of them, as the outbox gives it to the change log."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path as FilePath

from directory.access.grants import Grant, Operation, Permission
from directory.change_log.state_records import (
    checkpoint_of,
    page_records,
    snapshot_records,
)
from directory.maintenance.log_backup import make_rows, new_table, read_rows, scratch
from directory.namespace.command import (
    AddGrants,
    CreateDirectory,
    CreateTopic,
    DeleteEntry,
    UpdateEntry,
)
from directory.namespace.keys import CHANGE_LOG, EVENT, LEVEL
from directory.namespace.snapshot import Snapshot
from directory.store.base import Put, Store
from directory.store.event_rows import FLOOR_KEY, OutboxCommit, unpack
from resolver.changes.record import Change, Checkpoint, checkpoint_key, encode
from resolver.changes.state_fold import StateFold
from resolver.errors import InvalidNamespace, WriteConflict
from tests.support.change_logs import held_rows
from tests.support.crash_points import Crash, DyingStore
from tests.support.large_trees import MOUNT, Server, TightSqlite, commit, forest, server

ID = "kc-test"
X = MOUNT.child("x")
TOPIC = X.join(("d0", "t0"))
READ = (Grant("User:ana", "*", Operation.READ, Permission.ALLOW),)


class Log:
    """The state topic, from the day that the log was begun."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._fold = StateFold(ID)
        revision = snapshot.revision
        records = snapshot_records(snapshot, MOUNT, ID, 1, revision=revision, now_ms=0)
        self._add(dict(records), revision)

    def _add(self, state: dict[str, Change] | dict[str, Change | None], revision: int) -> None:
        for key, change in state.items():
            self._fold.add(key.encode(), None if change is None else encode(change))
        point = Checkpoint(incarnation="i", incarnations=("i",), cluster="la")
        end = checkpoint_of(point, ID, 1, revision=revision, time=0)
        self._fold.add(checkpoint_key(ID).encode(), encode(end))

    def publish(self, store: Store, snapshot: Snapshot) -> None:
        """Publishes the outbox in pages of three commits."""
        held = self._fold.state.checkpoint
        assert held is not None
        waiting = [one for one in outbox(store) if one.revision > held.revision]
        for begin in range(0, len(waiting), 3):
            commits = waiting[begin : begin + 3]
            state, _ = page_records(commits, snapshot, ID, 1, 0)
            self._add(dict(state), commits[-1].revision)

    def rows(self) -> list[tuple[bytes, bytes]]:
        """Returns the rows that a restore makes of it."""
        with scratch() as database:
            table = new_table(database)
            table.update(self._fold.state.rows_by_key)
            make_rows(replace(self._fold.state, rows_by_key=table), database)
            return list(read_rows(database))


def outbox(store: Store) -> list[OutboxCommit]:
    rows = [row for row in store.read(EVENT, limit=10_000) if row.key != FLOOR_KEY]
    rows.sort(key=lambda row: row.revision)
    return [unpack(row.value, row.revision, ID) for row in rows]


def begin(store: DyingStore) -> tuple[Server, Log]:
    """Returns a server of a tree with policies and grants of which no event was ever written, and
    the log that is kept from now on.
    """
    commit(store, forest(40, topics_each=20))
    here = Server(store)
    here.writer.put_facts((Put(LEVEL, b"2"),))
    for path in (X, TOPIC):
        here.execute(UpdateEntry(path=path, changes={"policies.owner": "ana"}))
        here.execute(AddGrants(path=path, grants=READ))
    here.writer.put_facts((Put(CHANGE_LOG, b""),))
    return here, Log(here.replica.snapshot)


def test_P6_P11_P12_P13_what_a_removal_killed_at_any_step_leaves_is_in_the_log_as_in_the_store(
    tmp_path: FilePath,
) -> None:
    for last in count(1, 3):
        file = tmp_path / f"{last}.db"
        store = DyingStore(file, "la")
        here, log = begin(store)
        store.passed, store.last = 0, last
        died = False
        try:
            here.execute(DeleteEntry(path=X, recursive=True), request_id="once")
            here.reap()
        except Crash:
            died = True
        store.last = 0
        log.publish(store, here.replica.snapshot)
        here.close()
        with server(TightSqlite(file, "la")) as other:
            other.execute(DeleteEntry(path=X, recursive=True), request_id="once")
            try:  # while what was below it is still being removed
                other.execute(CreateTopic(path=TOPIC))
            except (InvalidNamespace, WriteConflict):
                other.execute(CreateDirectory(path=TOPIC.parent, make_parents=True))
                other.execute(CreateTopic(path=TOPIC))
            other.reap()
            log.publish(other.store, other.replica.snapshot)
            assert log.rows() == held_rows(f"sqlite:///{file}"), last
            assert not [key for key, _ in log.rows() if key.startswith(b"g/")], last
        if not died:
            assert last > 5
            return
