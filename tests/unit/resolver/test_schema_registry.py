"""Records that are framed by the ids of a schema registry, over HTTP."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer

from directory.server.config import ConfigError, parse_config
from resolver.changes import record
from resolver.changes.record import (
    Change,
    Checkpoint,
    Schemas,
    UndecodableRecord,
)
from resolver.changes.registry import (
    RegistryRefused,
    RegistryUnavailable,
    SchemaRegistry,
    why_no_registry,
)
from resolver.changes.state_fold import StateFold
from resolver.errors import InvalidArgument, KafkaUnavailable
from tests.support.identities import Authority
from tests.support.schema_registry import KeptSchemas

ONE = Change(
    cluster_id="kc-la",
    generation=1,
    revision=2,
    time=3,
    path="/la/a",
    entry_id=7,
    key=b"k",
    record=b"r",
)


@pytest.fixture
def kept() -> Iterator[KeptSchemas]:
    with KeptSchemas() as found:
        yield found


def client(kept: KeptSchemas, pauses: list[float] | None = None) -> SchemaRegistry:
    taken = [] if pauses is None else pauses
    return SchemaRegistry(kept.url, timeout_seconds=5.0, pause=taken.append)


def test_a_record_is_framed_by_nought_and_four_bytes_of_the_id(kept: KeptSchemas) -> None:
    found = client(kept).register("t-value", record.schema_text())
    value = record.encode(ONE, record.registry_framing(found))
    assert value[:5] == b"\0" + found.to_bytes(4, "big")
    # As any program reads it that has the registry's schema.
    schema = parse_schema(json.loads(kept.texts[found]))
    read: Any = schemaless_reader(io.BytesIO(value[5:]), schema, None)
    assert (read["path"], read["revision"]) == ("/la/a", 2)


def test_an_id_is_asked_for_once_and_both_framings_are_read(kept: KeptSchemas) -> None:
    registry = client(kept)
    framing = record.registry_framing(registry.register("t-value", record.schema_text()))
    kept.asked.clear()
    for schemas in (Schemas(registry), Schemas(registry)):
        for _ in range(3):
            assert schemas.decode(record.encode(ONE, framing)) == ONE
            assert schemas.decode(record.encode(ONE)) == ONE
            row = schemas.decode_row(record.encode(ONE, framing))
            assert (row["key"], row["record"]) == (b"k", b"r")
    assert kept.asked == [f"GET /schemas/ids/{int.from_bytes(framing[1:], 'big')}"]


def test_a_record_of_a_newer_kdir_is_read_by_its_own_schema(kept: KeptSchemas) -> None:
    newer = json.loads(record.schema_text())
    newer["fields"].insert(0, {"name": "mood", "type": "string", "default": ""})
    found = client(kept).register("t-value", json.dumps(newer))
    body = io.BytesIO(record.registry_framing(found))
    body.seek(0, io.SEEK_END)
    value = {"cluster_id": "kc-la", "generation": 1, "revision": 2, "time": 3, "mood": "good"}
    schemaless_writer(body, parse_schema(newer), value)
    decoded = Schemas(client(kept)).decode(body.getvalue())
    assert decoded == Change(cluster_id="kc-la", generation=1, revision=2, time=3)


def test_a_registry_that_does_not_answer_is_asked_again_and_then_no_more(
    kept: KeptSchemas,
) -> None:
    framing = record.registry_framing(client(kept).register("t-value", record.schema_text()))
    kept.refusal = 503, {"message": "no leader"}
    kept.asked.clear()
    pauses: list[float] = []
    schemas = Schemas(client(kept, pauses))
    for _ in range(3):
        with pytest.raises(RegistryUnavailable, match=r"no leader \(HTTP 503\)"):
            schemas.decode(record.encode(ONE, framing))
    assert (len(kept.asked), len(pauses)) == (2, 1)
    kept.stop()
    with pytest.raises(RegistryUnavailable, match=r"does not answer: .*refused"):
        Schemas(client(kept)).decode(record.encode(ONE, framing))


def test_an_id_that_the_registry_lacks_is_skipped_and_not_asked_for_each_record(
    kept: KeptSchemas,
) -> None:
    schemas = Schemas(client(kept))
    for _ in range(3):
        with pytest.raises(UndecodableRecord, match=r"of schema 5: .*Schema 5 not found"):
            schemas.decode(record.encode(ONE, record.registry_framing(5)))
    assert kept.asked == ["GET /schemas/ids/5"] * 2
    with pytest.raises(UndecodableRecord, match="of a schema registry, and none is named"):
        Schemas().decode(record.encode(ONE, record.registry_framing(5)))


@pytest.mark.parametrize(
    ("code", "answer", "error", "why"),
    [
        (409, {"message": "incompatible\nschema"}, RegistryRefused, r"incompatible schema \(HTTP"),
        (401, {"message": 7}, RegistryRefused, r"Unauthorized \(HTTP 401\)"),
        (429, {}, RegistryUnavailable, "HTTP 429"),
        (302, {}, RegistryRefused, "HTTP 302"),
        (200, {}, RegistryRefused, "its answer has no id"),
        (200, {"id": True}, RegistryRefused, "its answer has no id"),
        (200, {"id": 2**32}, RegistryRefused, "its answer has no id"),
        (200, [], RegistryRefused, "its answer is no JSON object"),
        (200, {"x": "x" * 5_000_000}, RegistryRefused, "more than 4,194,304 bytes"),
    ],
)
def test_an_answer_that_is_none_is_named(
    kept: KeptSchemas, code: int, answer: Any, error: type[Exception], why: str
) -> None:
    kept.refusal = code, answer
    with pytest.raises(error, match=why):
        client(kept).register("t-value", record.schema_text())


def test_an_incompatible_schema_is_refused(kept: KeptSchemas) -> None:
    other = {"type": "record", "name": "Other", "fields": []}
    client(kept).register("t-value", json.dumps(other))
    with pytest.raises(RegistryRefused, match='incompatible with subject "t-value"'):
        client(kept).register("t-value", record.schema_text())


@pytest.mark.parametrize(
    "url",
    [
        "registry:8081",
        "file:///etc/passwd",
        "ftp://host",
        "http://",
        "http://host:0",
        "http://host:99999",
        "http://ho st",
        "http://user:secret@host",
        "user:secret@host:8081",
        "http:/user:secret@host",
        "http://host?x=1",
        "http://host#x",
    ],
)
def test_a_url_that_is_no_registrys_is_refused(url: str) -> None:
    assert "expected a URL" in why_no_registry(url)
    with pytest.raises(InvalidArgument, match="schema registry: found") as invalid:
        SchemaRegistry(url)
    with pytest.raises(
        ConfigError, match=r"change_log.schema_registry: found .* expected a URL"
    ) as refused:
        parse_config({"change_log": {"bootstrap": ["a:1"], "schema_registry": url}})
    assert "secret" not in f"{refused.value} {invalid.value}"


def test_a_certificate_of_https_is_of_an_authority_that_is_known_and_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    with KeptSchemas(authority.server()) as kept:
        with pytest.raises(RegistryUnavailable, match="certificate verify failed"):
            client(kept).register("t-value", record.schema_text())
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        found = client(kept).register("t-value", record.schema_text())
        assert client(kept).schema(found) == record.schema_text()
    with (
        KeptSchemas(authority.issue("another", addresses=["127.0.0.2"])) as kept,
        pytest.raises(RegistryUnavailable, match="IP address mismatch"),
    ):
        client(kept).register("t-value", record.schema_text())


def test_the_config_names_a_registry() -> None:
    config = parse_config(
        {"change_log": {"bootstrap": ["a:1"], "schema_registry": "https://schemas.example/v1"}}
    )
    assert config.change_log is not None
    assert config.change_log.schema_registry == "https://schemas.example/v1"


def test_a_state_waits_for_its_registry_and_skips_what_that_lacks(kept: KeptSchemas) -> None:
    framing = record.registry_framing(client(kept).register("t-value", record.schema_text()))
    point = Checkpoint(incarnation="i", incarnations=("i",), cluster="la")
    end = Change(
        cluster_id="kc-la", generation=1, revision=2, time=3, scope="checkpoint", checkpoint=point
    )
    records = [
        (record.entry_key("kc-la", 7), record.encode(ONE, framing)),
        (record.entry_key("kc-la", 8), record.encode(ONE, record.registry_framing(5))),
        (record.checkpoint_key("kc-la"), record.encode(end, framing)),
    ]
    kept.stop()
    with pytest.raises(KafkaUnavailable, match=r"schema registry .* does not answer"):
        StateFold("kc-la", client(kept)).add(records[0][0].encode(), records[0][1])
    kept.start()
    fold = StateFold("kc-la", client(kept))
    assert [fold.add(key.encode(), value) for key, value in records] == [False, False, True]
    assert [row.record for row in fold.state.rows.values()] == [b"r"]
    assert fold.state.skipped == 1
    assert "Schema 5 not found" in next(iter(fold.state.unreadable.values()))
    unnamed = StateFold("kc-la")
    for key, value in records:
        unnamed.add(key.encode(), value)
    assert "none is named" in unnamed.unreadable_checkpoint
