"""Rows of change events that are too large for the store that is filled with them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from kdir.v1 import watch_pb2

from directory.maintenance.backup_stream import excess_of_rows, fill_store
from directory.namespace.keys import EVENT, event_key
from directory.store.base import FILLED_FROM
from directory.store.event_rows import FLOOR_KEY, event_count, new_change_id, unpack
from directory.store.sqlite.store import SqliteStore
from directory.store.transaction_limits import Limits

FACTS = (b"f/1", b"f/2")


class SmallStore(SqliteStore):
    """Store whose transactions hold 2,000 bytes."""

    @property
    def limits(self) -> Limits:
        return Limits(max_writes=100, max_bytes=2_000)


def test_a_large_row_is_put_in_parts_with_all_its_events_and_facts(tmp_path: Path) -> None:
    large = watch_pb2.OutboxRow(logged_facts=FACTS)
    for position in range(40):
        large.events.add(path=f"/la/t{position:02}", position=position, principal="x" * 100)
    # Of one millisecond: the parts stay between these rows.
    before, key, after = (
        event_key(f"000000000007-{end}") for end in ("27-fff", "28-aaa", "28-aab")
    )
    rows = ((before, b""), (key, large.SerializeToString()), (after, b""))
    with closing(SmallStore(tmp_path / "store.db", "la")) as store:
        store.seal(f"{FILLED_FROM}a backup")
        fill_store(store, rows)
        found = [row for row in store.read(EVENT) if row.key != FLOOR_KEY]
    first, *parts, last = found
    assert (first.key, last.key) == (before, after)
    assert len(parts) > 2
    read = [unpack(row.value, row.revision, "") for row in parts]
    paths = [event.path for one in read for event in one.events]
    assert paths == [event.path for event in large.events]
    assert [one.logged_facts for one in read] == [FACTS, *[()] * (len(parts) - 1)]
    assert [event_count(row.key) for row in parts] == [len(one.events) for one in read]


def test_a_large_row_that_cannot_be_read_is_reported_and_left_out(tmp_path: Path) -> None:
    large, small = event_key("000000000007-28-aaa"), event_key("000000000007-28-aab")
    rows = ((large, b"\xff" * 3_000), (small, b"\xff"))
    reported: list[str] = []
    with closing(SmallStore(tmp_path / "store.db", "la")) as store:
        assert excess_of_rows(rows, store.limits) == ""
        store.seal(f"{FILLED_FROM}a backup")
        fill_store(store, rows, reported.append)
        assert [row.key for row in store.read(EVENT) if row.key != FLOOR_KEY] == [small]
    (line,) = reported
    assert line.startswith("left out of the history: o/000000000007-28-aaa, whose 3000 bytes")


def test_parts_that_an_earlier_release_put_count_as_before() -> None:
    assert event_count(event_key(f"{new_change_id(7, 40)}-000001")) == 40
