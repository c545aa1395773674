"""Records of a change log are written by hand as fastavro writes them; damaged ones are refused."""

from __future__ import annotations

import dataclasses
import io
import json
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resolver.changes import record
from resolver.changes.record import Change, Checkpoint, Schemas, UndecodableRecord

_FRAMING_BYTES = 10
_TEXT = st.text(max_size=200)
_LONGS = st.integers(-(2**63), 2**63 - 1)
_FIELDS = st.none() | st.dictionaries(_TEXT, st.none() | _TEXT, max_size=4)
_GRANTS = st.none() | st.lists(_TEXT, max_size=3).map(tuple)
_BYTES = st.none() | st.binary(max_size=300)
_CHECKPOINTS = st.builds(
    Checkpoint,
    incarnation=_TEXT,
    incarnations=st.lists(_TEXT, max_size=3).map(tuple),
    cluster=_TEXT,
)
_CHANGES = st.builds(
    Change,
    cluster_id=_TEXT,
    generation=_LONGS,
    revision=_LONGS,
    position=st.integers(-(2**31), 2**31 - 1),
    time=st.integers(-62_135_596_800_000, 253_402_300_799_999),  # the years 1 to 9999
    path=_TEXT,
    path_before=st.none() | _TEXT,
    before=_FIELDS,
    after=_FIELDS,
    effective=_FIELDS,
    grants_before=_GRANTS,
    grants_after=_GRANTS,
    cut=st.lists(_TEXT, max_size=2).map(tuple),
    key=_BYTES,
    record=_BYTES,
    checkpoint=st.none() | _CHECKPOINTS,
)


@cache
def _schema() -> Any:
    # The logical type is for readers; fastavro would take times apart by it.
    text = record.schema_text().replace(', "logicalType": "timestamp-millis"', "")
    return fastavro.parse_schema(json.loads(text))


def by_fastavro(change: Change) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(
        written,
        _schema(),
        dataclasses.asdict(change),
        disable_tuple_notation=True,
    )
    return b"\xc3\x01" + record.fingerprint() + written.getvalue()


@given(_CHANGES)
def test_a_record_is_what_fastavro_writes(change: Change) -> None:
    assert record.encode(change) == by_fastavro(change)


@given(_CHANGES, st.data())
def test_damaged_records_are_refused_or_read(change: Change, data: st.DataObject) -> None:
    """What is damaged costs no more than what is whole, and raises nothing else."""
    value = bytearray(record.encode(change))
    if data.draw(st.booleans()):
        del value[data.draw(st.integers(_FRAMING_BYTES, len(value) - 1)) :]
    else:
        at = data.draw(st.integers(_FRAMING_BYTES, len(value) - 1))
        value[at : at + 1] = data.draw(st.binary(min_size=1, max_size=12))
    with suppress(UndecodableRecord):
        found = Schemas().decode_fields(bytes(value))
        assert all(-(2**63) <= found[name] < 2**63 for name in ("revision", "entry_id"))
        assert -(2**31) <= found["position"] < 2**31


@pytest.mark.parametrize(
    ("whole", "damaged"),
    [
        (b"\x10kc-whole", b"\x0fkc-whole"),
        (b"\x10kc-whole", b"\xff\xff\xff\xff\x0fkc-whole"),
        (b"\x10kc-whole", b"\xff" * 9 + b"\x02kc-whole"),
        (b"\x10kc-whole", b"\x80" * 100_000 + b"kc-whole"),
        (b"kc-whole", b"kc-whol\xff"),
        (b"\x02\x0cbefore\0", b"\x04\x0cbefore\0"),
        (b"\x02\x02k", b"\x04\x02k"),
    ],
)
def test_damaged_sizes_and_texts_are_refused(whole: bytes, damaged: bytes) -> None:
    change = Change(
        cluster_id="kc-whole", generation=1, revision=1, time=1, cut=("before",), key=b"k"
    )
    value = record.encode(change)
    assert value.count(whole) == 1
    with pytest.raises(UndecodableRecord):
        Schemas().decode(value.replace(whole, damaged))


@pytest.mark.parametrize("position", [-(2**31) - 1, 2**31])
def test_a_position_of_more_than_32_bits_is_refused(position: int) -> None:
    """A column of a table has as many bits, and takes no more."""
    change = Change(cluster_id="kc-1", generation=1, revision=1, position=position, time=1)
    schemas, value = Schemas(), record.encode(change)
    for decode in (schemas.decode, schemas.decode_fields, schemas.decode_row):
        with pytest.raises(UndecodableRecord, match="more than 32 bits"):
            decode(value)


@pytest.mark.parametrize("text", ["", "7", "{}", '{"type": "no"}', 100_000 * "["])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(UndecodableRecord, match="not an Avro schema"):
        Schemas().add(text)


def test_blocks_may_be_written_with_their_size() -> None:
    """As Avro allows it: a negative count, the bytes of the block, its items."""
    change = Change(cluster_id="kc-1", generation=1, revision=1, time=1, cut=("before",))
    value = record.encode(change).replace(b"\x02\x0cbefore\0", b"\x01\x0e\x0cbefore\0")
    assert Schemas().decode(value) == change


@given(_CHANGES)
def test_a_record_is_read_as_it_was_written(change: Change) -> None:
    value = record.encode(change)
    assert Schemas().decode(value) == change
    row = Schemas().decode_row(value)
    fields = {name: getattr(change, name) for name in row}
    assert row == {
        name: value.encode() if isinstance(value, str) else value for name, value in fields.items()
    }
    assert {"generation", "entry_id", "path", "key", "record"} <= row.keys()


def test_a_row_is_read_without_what_comes_after_it() -> None:
    """Maps take most of a record: whoever needs the row alone stops before them."""
    change = Change(cluster_id="kc-1", generation=1, revision=2, time=3, key=b"k", record=b"row")
    whole = record.encode(replace(change, after={"owner": "la"}, effective={"owner": "la"}))
    row = Schemas().decode_row(whole[: whole.index(b"row") + 3])
    assert (row["key"], row["record"]) == (b"k", b"row")
    assert not row.keys() & {"before", "after", "effective"}


@pytest.mark.parametrize("damaged", [b"", b"\xc3\x01", b"{}", b"\xc3\x01" + 20 * b"\xff"])
def test_a_row_of_what_is_no_record_is_refused(damaged: bytes) -> None:
    with pytest.raises(UndecodableRecord):
        Schemas().decode_row(damaged)


def test_a_row_is_read_from_a_record_with_fields_that_this_kdir_lacks() -> None:
    newer: dict[str, Any] = json.loads(record.schema_text())
    newer["fields"].append({"name": "colour", "type": "string", "default": ""})
    schemas = Schemas()
    written = io.BytesIO()
    value = {"cluster_id": "kc-1", "generation": 1, "revision": 2, "time": 3, "key": b"k"}
    found = schemas.add(json.dumps(newer))
    fastavro.schemaless_writer(written, newer, {**value, "record": b"r", "colour": "red"})
    row = schemas.decode_row(b"\xc3\x01" + found + written.getvalue())
    assert (row["key"], row["record"]) == (b"k", b"r")
    assert "colour" not in row
