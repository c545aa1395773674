"""A change log whose records are framed by the ids of a schema registry, on a real broker and over
HTTP and HTTPS.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from directory.change_log.settings import ChangeLogConfig
from directory.kafka.own_client_settings import ClientProperties
from directory.maintenance.log_backup import UnusableLog, log_rows
from resolver.changes.record import registry_framing
from resolver.changes.state_reader import StateReader
from tests.conftest import SharedBroker
from tests.integration.change_log.test_bad_days import made, state_of, waits_because
from tests.integration.change_log.test_publishing import (
    caught_up,
    changes_of,
    logged_rows,
)
from tests.support.change_logs import ChangeLogTopics
from tests.support.command_line import Ran, run
from tests.support.federation import Server, eventually
from tests.support.identities import Authority
from tests.support.schema_registry import KeptSchemas


@pytest.fixture
def registry() -> Iterator[KeptSchemas]:
    with KeptSchemas() as found:
        yield found


@pytest.fixture
def secure_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeptSchemas]:
    """Yields a registry of HTTPS whose authority this process and those that it starts take."""
    authority = Authority(tmp_path / "ca")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    with KeptSchemas(authority.server()) as found:
        yield found


def audit(server: Server) -> Ran:
    sql = "SELECT path, action FROM changes WHERE scope = 'entry' ORDER BY revision"
    return run(["audit", sql, "/la", "--at", server.address, "-o", "json"])


def made_with(folder: Path, broker: SharedBroker, registry: KeptSchemas) -> Server:
    settings = {"bootstrap": [broker.bootstrap], "schema_registry": registry.url}
    return made(folder, broker.bootstrap, change_log=settings)


def log_by(registry: KeptSchemas, server: Server, broker: SharedBroker) -> ChangeLogTopics:
    cluster_id = server.cluster_id
    suffix = f".{cluster_id}"
    return ChangeLogTopics(broker.bootstrap, cluster_id, suffix=suffix, registry=registry.url)


def test_a_log_waits_for_its_schema_registry_and_is_framed_by_its_ids(
    tmp_path: Path, kafka_broker: SharedBroker, secure_registry: KeptSchemas
) -> None:
    registry = secure_registry
    store = str(tmp_path / "la" / "la.sqlite")
    registry.stop()
    with made_with(tmp_path / "la", kafka_broker, registry) as server:
        found = waits_because(server, f"schema registry {registry.url} does not answer")
        assert found.schema_registry == registry.url
        server.mkdir("/la/a")
        registry.start()
        eventually(lambda: state_of(server).state.message == "")
        log = log_by(registry, server, kafka_broker)
        eventually(lambda: log.read().checkpoint is not None)
        server.mkdir("/la/b")
        caught_up(log, store)
        assert set(registry.subjects) == {f"{log.state_topic}-value", f"{log.history_topic}-value"}
        (schema_id,) = registry.texts
        for topic in (log.state_topic, log.history_topic):
            values = [value for _, value in log.records(topic) if value is not None]
            assert {value[:5] for value in values} == {registry_framing(schema_id)}, topic
        assert f"ids of schema registry {registry.url}" in run(["log", "--at", server.address]).out
        assert audit(server).objects == [{"path": "/la/b", "action": "insert"}]

        # The schema is registered: a registry that is away holds up new readers only.
        registry.stop()
        server.mkdir("/la/c")
        eventually(lambda: state_of(server).waiting_commits == 0)
        properties = {"bootstrap.servers": kafka_broker.bootstrap, "log_level": 0}
        with closing(StateReader(properties, log.state_topic, registry=registry.url)) as reader:
            eventually(lambda: "does not answer" in reader.trouble)
            assert reader.state is None
            ran = audit(server)
            assert (ran.code, ran.out) == (3, "")
            assert "could not be decoded" in ran.err
            assert f"schema registry {registry.url} does not answer" in ran.err
            registry.start()
            rows = reader.loaded(60).rows.values()
            assert {row.key: row.record for row in rows} == logged_rows(store)
        assert [row["path"] for row in audit(server).objects] == ["/la/b", "/la/c"]


def test_a_log_goes_on_once_its_schema_registry_takes_the_schema(
    tmp_path: Path, kafka_broker: SharedBroker, registry: KeptSchemas
) -> None:
    store = str(tmp_path / "la" / "la.sqlite")
    with made_with(tmp_path / "la", kafka_broker, registry) as server:
        log = log_by(registry, server, kafka_broker)
        eventually(lambda: log.read().checkpoint is not None)
        server.mkdir("/la/a")
        caught_up(log, store)
        server.stop()
        subjects = dict(registry.subjects)
        other = json.dumps({"type": "record", "name": "Other", "fields": []})
        _, answer = registry.answer("/subjects/other/versions", {"schema": other})
        registry.subjects[f"{log.state_topic}-value"] = [answer["id"]]
        server.start()
        waits_because(server, "Schema being registered is incompatible with subject")
        server.mkdir("/la/b")
        registry.subjects = subjects
        caught_up(log, store)

        # Without the registry it is not known how far the log is; nothing is published twice.
        server.stop()
        settings = server.settings["change_log"]
        server.settings["change_log"] = {"bootstrap": [kafka_broker.bootstrap]}
        server.start()
        waits_because(server, "its newest checkpoint cannot be read: of schema 70001")
        server.mkdir("/la/c")
        server.stop()
        server.settings["change_log"] = settings
        server.start()
        found = caught_up(log, store)
        rows = logged_rows(store)
    assert changes_of(found) == [("insert", f"/la/{name}") for name in "abc"]
    assert found.rows == rows

    own = ChangeLogConfig(
        (kafka_broker.bootstrap,),
        ClientProperties(),
        is_shared=True,
        schema_registry=registry.url,
    )
    with log_rows(own, "la", server.cluster_id) as (_, read_rows):
        assert dict(read_rows()).items() >= rows.items()
    unnamed = replace(own, schema_registry="")
    refused = pytest.raises(UnusableLog, match="its checkpoint cannot be read: of schema 70001")
    with refused, log_rows(unnamed, "la", server.cluster_id):
        pass
