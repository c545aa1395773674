"""The temporary database that a change log is read into."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from directory.maintenance.log_backup import make_rows, new_table, read_rows, scratch
from directory.namespace.entry import Kind, Topic
from directory.namespace.keys import claim_key, entry_key
from directory.wire.entry_codec import ProtoCodec
from resolver.changes import record
from resolver.changes.record import Change, Checkpoint
from resolver.changes.state_fold import LogState, StateFold, StateRow, pack_row


def test_mappings_of_one_database_are_apart() -> None:
    with scratch() as database:
        one, other = new_table(database), new_table(database)
        one["a"], other["a"] = b"one", b"other"
        assert dict(one.items()) == {"a": b"one"}
        assert other.pop("a") == b"other"
        assert other.pop("a", None) is None
        assert other.get("a") is None
        assert len(one) == 1
        one.clear()
        assert not list(one)


def test_rows_of_any_bytes_are_made_as_they_are_packed() -> None:
    rows = {b"\0": b"", b"7": b"1", b"f/\xff\0": b"\0\xff", b"f/" + bytes(99_999): b"x"}
    order = {"generation": 1, "revision": 1, "position": 0}
    with scratch() as database:
        table = new_table(database)
        for number, (key, value) in enumerate(rows.items()):
            row = StateRow(entry_id=2**64 - 1, key=key, record=value)
            table[str(number)] = packed = pack_row(order | row._asdict())
            assert StateRow.unpack(packed) == row
        make_rows(LogState(rows_by_key=table), database)
        assert list(read_rows(database)) == sorted(rows.items())


def test_physical_names_that_collide_have_one_claim() -> None:
    plain = Change(cluster_id="kc-1", generation=1, revision=1, time=0)
    names = ("p.q", "r", "p_q", "p.q")
    with scratch() as database:
        fold = StateFold(new_table=partial(new_table, database))
        for number, name in enumerate(names, 2):
            topic = Topic(entry_id=number, changed_at_ms=0, physical_name=name)
            row = entry_key(1, Kind.TOPIC, f"t{number}"), ProtoCodec().encode(topic)
            change = replace(plain, entry_id=number, key=row[0], record=row[1])
            fold.add(record.entry_key("kc-1", number).encode(), record.encode(change))
        point = Checkpoint(incarnation="i1", incarnations=("i1",), cluster="la")
        end = replace(plain, scope="checkpoint", checkpoint=point)
        assert fold.add(record.checkpoint_key("kc-1").encode(), record.encode(end))
        make_rows(fold.state, database)
        rows = dict(read_rows(database))
    assert len(rows) == len(names) + 2
    assert rows[claim_key("p.q")] == b"p.q\np_q"
    assert rows[claim_key("r")] == b"r"


def test_a_full_disk_is_reported_as_such() -> None:
    with pytest.raises(OSError, match="full; SQLITE_TMPDIR names another folder"):
        fill_small_database()


def fill_small_database() -> None:
    with scratch() as database:
        database.execute("PRAGMA max_page_count = 20")
        table = new_table(database)
        for number in range(10_000):
            table[str(number)] = bytes(100)
