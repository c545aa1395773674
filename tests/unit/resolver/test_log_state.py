"""The state that the records of a state topic add up to."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from directory.namespace.entry import Kind
from directory.namespace.keys import entry_key as stored_key
from directory.namespace.tree_nodes import ROOT_KEY
from resolver.changes import record
from resolver.changes.record import Change, Checkpoint, encode
from resolver.changes.state_fold import StateFold, StateRow, StateRows, pack_row, place_of

ID = "kc-test"
POINT = Checkpoint(incarnation="i1", incarnations=("i1",), cluster="la", mount="/la")


def entry(number: int, revision: int, value: str = "a", *, generation: int = 1) -> Change:
    return Change(
        cluster_id=ID,
        generation=generation,
        revision=revision,
        time=0,
        entry_id=number,
        key=b"e/%d" % number,
        record=value.encode(),
    )


def put(fold: StateFold, *changes: Change) -> None:
    for one in changes:
        fold.add(record.entry_key(ID, one.entry_id).encode(), encode(one))


def gone(fold: StateFold, number: int) -> None:
    fold.add(record.entry_key(ID, number).encode(), None)


def point(fold: StateFold, revision: int, *, generation: int = 1) -> bool:
    change = Change(
        cluster_id=ID,
        generation=generation,
        revision=revision,
        time=0,
        scope="checkpoint",
        checkpoint=POINT,
    )
    return fold.add(record.checkpoint_key(ID).encode(), encode(change))


def values(fold: StateFold) -> dict[int, str]:
    return {row.entry_id: row.record.decode() for row in fold.state.rows.values()}


def test_P17_what_comes_before_a_checkpoint_waits_for_it_and_counts_then() -> None:
    fold = StateFold()
    put(fold, entry(0, 1), entry(1, 1), entry(2, 1))
    gone(fold, 0)
    gone(fold, 7)
    assert fold.state.checkpoint is None
    assert values(fold) == {}
    assert fold.pending_count == 2
    assert point(fold, 1)
    assert values(fold) == {1: "a", 2: "a"}
    gone(fold, 1)
    put(fold, entry(3, 2))
    assert values(fold) == {1: "a", 2: "a"}
    point(fold, 2)
    assert values(fold) == {2: "a", 3: "a"}
    assert fold.state.cluster_id == ID


def test_P16_a_state_never_changes() -> None:
    fold = StateFold()
    put(fold, entry(1, 1))
    point(fold, 1)
    before = fold.state
    put(fold, entry(1, 2, "b"))
    gone(fold, 1)
    put(fold, entry(2, 3))
    point(fold, 3)
    assert [row.record for row in before.rows.values()] == [b"a"]
    with pytest.raises(TypeError):
        before.rows_by_key["x"] = b""  # type: ignore[index]
    with pytest.raises(AttributeError):
        before.skipped = 1  # type: ignore[misc]


def test_P21_what_is_older_or_comes_twice_changes_nothing() -> None:
    fold = StateFold()
    put(fold, entry(1, 1))
    point(fold, 1)
    put(fold, entry(1, 2, "b"))
    gone(fold, 2)
    point(fold, 2)
    after = values(fold)
    put(fold, entry(1, 1), entry(2, 1))
    assert not point(fold, 1)
    assert fold.has_older_checkpoint
    assert values(fold) == after == {1: "b"}
    put(fold, entry(2, 1), entry(3, 3))  # its checkpoint was compacted away
    point(fold, 3)
    assert values(fold) == {1: "b", 3: "a"}
    assert fold.state.skipped == 4


def test_of_two_records_before_one_checkpoint_the_newer_counts() -> None:
    fold = StateFold()
    put(fold, entry(1, 5, "b"), entry(2, 4), entry(1, 3), entry(3, 4), entry(2, 4, "c"))
    point(fold, 5)
    assert values(fold) == {1: "b", 2: "c", 3: "a"}
    assert fold.state.skipped == 1


def test_P21_another_incarnation_counts_its_revisions_from_the_start() -> None:
    fold = StateFold()
    put(fold, entry(1, 900))
    point(fold, 900)
    put(fold, entry(1, 5, "b", generation=2))
    point(fold, 5, generation=2)
    assert values(fold) == {1: "b"}
    put(fold, entry(1, 901))
    point(fold, 901)
    assert values(fold) == {1: "b"}


def test_a_difference_at_the_revision_of_the_checkpoint_counts() -> None:
    fold = StateFold()
    put(fold, entry(1, 4))
    point(fold, 4)
    put(fold, replace(entry(1, 4, "mended"), cause="resync"))
    point(fold, 4)
    assert values(fold) == {1: "mended"}


def test_P18_what_cannot_be_read_is_counted_and_stops_nothing() -> None:
    fold = StateFold()
    put(fold, entry(1, 1), entry(2, 1))
    point(fold, 1)
    one = record.entry_key(ID, 1).encode()
    fold.add(None, b"x")
    fold.add(b"\xff\xfe", b"x")
    fold.add(f"{ID}/z/of-a-newer-kdir".encode(), b"x")
    fold.add(b"kc-other/e/01", encode(entry(9, 2)))
    fold.add(one, b"x")
    fold.add(f"{ID}/s/00".encode(), b"not a schema")
    fold.add(record.checkpoint_key(ID).encode(), b"not a checkpoint")
    put(fold, entry(3, 2))
    point(fold, 2)
    assert values(fold) == {1: "a", 2: "a", 3: "a"}
    assert list(fold.state.unreadable) == [one.decode()]
    assert fold.state.skipped == 7
    assert fold.state.other_clusters == {"kc-other"}
    put(fold, entry(1, 3, "b"))
    point(fold, 3)
    assert not fold.state.unreadable
    assert values(fold) == {1: "b", 2: "a", 3: "a"}


def test_P18_a_record_with_numbers_that_no_kdir_writes_is_unreadable() -> None:
    fold = StateFold()
    put(fold, replace(entry(1, 1), entry_id=-1), entry(2, 1), replace(entry(3, 1), position=-1))
    point(fold, 1)
    assert values(fold) == {2: "a"}
    assert len(fold.state.unreadable) == 2


def test_a_packed_row_is_read_as_it_was() -> None:
    order = {"generation": 3, "revision": 900, "position": 2}
    for row in (
        StateRow(2**64 - 1, b"e/x", b"\0record"),
        StateRow(5, None, b""),
    ):
        packed = pack_row(order | row._asdict())
        assert StateRow.unpack(packed) == row
        assert list(StateRows({"k": packed}).items()) == [("k", row)]


@pytest.mark.parametrize("kind", Kind)
def test_the_place_of_an_entry_is_its_key_in_the_store(kind: Kind) -> None:
    place = place_of(7, is_topic=kind is Kind.TOPIC, name="übung")
    assert place == stored_key(7, kind, "übung")
    assert place_of(0, is_topic=False, name="") == ROOT_KEY


def test_records_of_a_newer_schema_are_read_once_it_is_there() -> None:
    schema = json.loads(record.schema_text())
    schema["fields"].append({"name": "of_later", "type": "string", "default": ""})
    text = json.dumps(schema)
    mark = record.Schemas().add(text)
    value = encode(entry(1, 1, "later"))
    later = value[:2] + mark + value[10:] + b"\x00"
    fold = StateFold()
    fold.add(record.entry_key(ID, 1).encode(), later)
    point(fold, 1)
    assert values(fold) == {}
    assert "of an unknown schema" in next(iter(fold.state.unreadable.values()))
    fold.add(record.schema_key(ID, mark).encode(), text.encode())
    point(fold, 2)
    assert values(fold) == {1: "later"}
    assert not fold.state.unreadable


def test_entries_are_found_where_they_were_moved_to() -> None:
    def at(number: int, revision: int, name: str) -> Change:
        return replace(entry(number, revision), key=place_of(1, is_topic=False, name=name))

    def found() -> dict[str, int]:
        entries = (fold.state.find_entry(1, is_topic=False, name=name) for name in "abc")
        return {name: one.entry_id for name, one in zip("abc", entries, strict=True) if one}

    fold = StateFold()
    put(fold, at(1, 1, "a"), at(2, 1, "b"))
    point(fold, 1)
    assert found() == {"a": 1, "b": 2}
    put(fold, at(1, 2, "c"), at(2, 2, "a"))
    point(fold, 2)
    assert found() == {"c": 1, "a": 2}
    put(fold, at(2, 3, "b"), at(1, 3, "a"))
    gone(fold, 2)
    point(fold, 3)
    assert found() == {"a": 1}
