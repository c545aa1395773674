"""Records of a change log: what is written is read, also by an older and by a newer kdir."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from fastavro.schema import fingerprint, to_parsing_canonical_form

from resolver.changes.record import (
    Change,
    Checkpoint,
    Schemas,
    UndecodableRecord,
    encode,
    schema_text,
)

CHANGE = Change(
    cluster_id="kc-la",
    generation=2,
    revision=77,
    position=1,
    time=1_795_000_000_123,
    action="update",
    kind="topic",
    entry_id=2**63 - 1,
    parent_id=1,
    path="/la/tracking/clicks",
    path_before="/la/clicks",
    principal="User:alice",
    request_id="r-1",
    before={"retention.ms": "3600000", "owner": ""},
    after={"retention.ms": None},
    effective={"retention.ms": None, "owner": "search"},
    grants_before=(),
    grants_after=("allow User:bob READ on topics",),
    cut=("before",),
    key=b"\x00e",
    record=b"\xff\x00",
)
CHECKPOINT = Change(
    cluster_id="kc-la",
    generation=2,
    revision=77,
    time=1,
    scope="checkpoint",
    checkpoint=Checkpoint(incarnation="b", incarnations=("a", "b"), cluster="la", mount="/la"),
)


def other_schema(change: Any) -> str:
    """Returns the schema as another version of kdir has it."""
    schema = json.loads(schema_text())
    change(schema["fields"])
    return json.dumps(schema)


def written_by(schema: str, value: dict[str, Any]) -> bytes:
    """Returns a record as a kdir of this schema writes it."""
    parsed = parse_schema(json.loads(schema.replace('"logicalType": "timestamp-millis"', '"x": 1')))
    found = fingerprint(to_parsing_canonical_form(json.loads(schema)), "CRC-64-AVRO")
    out = io.BytesIO(b"\xc3\x01" + bytes.fromhex(found))
    out.seek(0, io.SEEK_END)
    schemaless_writer(out, parsed, value)
    return out.getvalue()


@pytest.mark.parametrize("change", [CHANGE, CHECKPOINT, replace(CHANGE, before=None, record=None)])
def test_what_is_written_is_read(change: Change) -> None:
    assert Schemas().decode(encode(change)) == change


def test_unset_cleared_and_empty_are_three_things() -> None:
    found = Schemas().decode(encode(CHANGE))
    assert found.before is not None
    assert found.effective is not None
    assert "contact" not in found.effective
    assert found.effective["retention.ms"] is None
    assert found.before["owner"] == ""


def test_an_older_reader_leaves_out_what_a_newer_kdir_adds() -> None:
    newer = other_schema(
        lambda fields: fields.insert(3, {"name": "new", "type": "string", "default": ""})
    )
    value = {"cluster_id": "kc-la", "generation": 1, "revision": 5, "time": 9, "new": "x"}
    schemas = Schemas()
    with pytest.raises(UndecodableRecord, match="unknown schema"):
        schemas.decode(written_by(newer, value))
    schemas.add(newer)
    found = schemas.decode(written_by(newer, value))
    assert found == Change(cluster_id="kc-la", generation=1, revision=5, time=9)


def test_a_newer_reader_has_the_defaults_of_what_an_older_kdir_did_not_write() -> None:
    def without_later_fields(fields: list[dict[str, Any]]) -> None:
        fields[:] = [one for one in fields if one["name"] not in {"cut", "cause", "effective"}]

    older = other_schema(without_later_fields)
    value = {"cluster_id": "kc-la", "generation": 1, "revision": 5, "time": 9, "path": "/la/a"}
    schemas = Schemas()
    schemas.add(older)
    found = schemas.decode(written_by(older, value))
    assert (found.path, found.cause, found.cut, found.effective) == ("/la/a", "change", (), None)


def test_every_field_but_the_first_ones_has_a_default() -> None:
    """Without one, an older kdir's records cannot be read."""
    without = [one["name"] for one in json.loads(schema_text())["fields"] if "default" not in one]
    assert without == ["cluster_id", "generation", "revision", "time"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "not framed"),
        (b"\xc3\x01\x00", "not framed"),
        (b"\x00\x00\x00\x00\x01abc", "of a schema registry, and none is named"),
        (b"\xc3\x01" + bytes(8) + b"abc", "unknown schema"),
        (encode(CHANGE)[:40], None),
        (encode(CHANGE)[:10] + b"\xff" * 40, None),
    ],
)
def test_damaged_records_are_named(value: bytes, why: str | None) -> None:
    with pytest.raises(UndecodableRecord, match=why):
        Schemas().decode(value)


@pytest.mark.parametrize("text", ["", "{", "7", '{"type": "record"}', '{"type": "nonsense"}'])
def test_what_is_no_schema_is_named(text: str) -> None:
    with pytest.raises(UndecodableRecord, match="not an Avro schema"):
        Schemas().add(text)
