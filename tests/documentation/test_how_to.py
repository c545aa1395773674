"""The programs of docs/how-to are run, on a real server with a real broker; configs are read."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from directory.server.config import parse_config
from directory.store.etcd.etcd_address import EtcdAddress
from resolver.index.row_schema import COLUMNS
from tests.conftest import SharedBroker
from tests.support.federation import Federation, Server, eventually
from tests.support.pages import ROOT, blocks, run_line, run_program

_TOPIC = "search.clicks"
_PYTHON = "docs/how-to/use-from-python.md"


def bodies(page: str, language: str) -> list[str]:
    """Returns the fenced blocks of a page in a language, in order."""
    return [one.body for one in blocks(page) if one.language == language]


@pytest.fixture(scope="module")
def server(
    kafka_broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Yields la-tracking's server; the shared broker has the topic that the programs name."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    client = AdminClient({"bootstrap.servers": kafka_broker.bootstrap, "log_level": 0})
    made = client.create_topics([NewTopic(_TOPIC, 2, replication_factor=1)])[_TOPIC]
    try:
        made.result(timeout=30)
    except KafkaException as refused:
        if refused.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    kafka = {"bootstrap": [kafka_broker.bootstrap], "split_on": "."}
    with Federation(tmp_path_factory.mktemp("how-to")) as federation:
        started = federation.start("/la/tracking", kafka=kafka)
        eventually(lambda: started.outcome("/la/tracking/search/clicks") == "resolution")
        yield started


@pytest.mark.timeout(180)
def test_the_programs_in_python(server: Server, kafka_broker: SharedBroker) -> None:
    resolving, producing, consuming, failing, testing = bodies(_PYTHON, "python")
    assert "127.0.0.1:7420" in resolving
    assert run_program(resolving, server.address).split(maxsplit=2)[:2] == ["la-tracking", _TOPIC]
    assert kafka_broker.bootstrap in run_program(resolving, server.address)
    run_program(producing, server.address)
    assert run_program(consuming, server.address).startswith("/la/tracking/search/clicks b'")
    assert run_program(failing, server.address).startswith("absent: ")
    assert run_program(testing, server.address) == ""


def test_a_token_is_signed_and_used(tmp_path: Path) -> None:
    page = "docs/how-to/tokens.md"
    key, use = (body.splitlines() for body in bodies(page, "sh"))
    (config,) = bodies(page, "toml")
    (program,) = bodies(page, "python")
    for line in key:
        run_line(f"cd {tmp_path} && {line}", {})
    settings = tomllib.loads(config)
    settings["auth"]["jwt_key"] = str(tmp_path / settings["auth"]["jwt_key"])
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    server = Server(tmp_path / "server", settings.pop("mount"), settings)
    server.start()
    try:
        run_program(f"import os; os.chdir({str(tmp_path)!r})\n{program}", server.address)
        assert (tmp_path / "alice.token").stat().st_mode & 0o77 == 0
        setting, asking = (line.replace("127.0.0.1:7420", server.address) for line in use)
        run_line(f"cd {tmp_path} && {setting}", environment)
        output = eventually(lambda: "".join(run_line(asking, environment)))
    finally:
        server.close()
        server.kill()
    assert "User:alice by token" in output


def test_the_config_of_a_mounted_cluster_is_right(tmp_path: Path) -> None:
    (text,) = bodies("docs/how-to/mount-a-cluster.md", "toml")
    config = parse_config(tomllib.loads(text))
    assert (config.cluster, str(config.mount)) == ("la-tracking", "/la/tracking")
    file = tmp_path / "server.toml"
    file.write_text(text)
    output = "".join(run_line(f"kdir server --check --config {file}", {}))
    assert "would serve /la/tracking" in output
    assert list(tmp_path.iterdir()) == [file]  # and touched nothing


def test_the_address_of_a_store_in_etcd_is_one() -> None:
    (text,) = bodies("docs/how-to/run-on-etcd.md", "toml")
    document = tomllib.loads(text)
    address = EtcdAddress.parse(parse_config({"mount": "/la"} | document).store)
    assert len(address.endpoints) == 3
    assert address.prefix.strip("/") == "kdir/la"


def test_the_columns_of_the_index_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "reference" / "index-columns.md").read_text()
    shown = [line for line in page.splitlines() if line.startswith("| `")]
    assert shown == [f"| `{one.name}` | {one.type.value} | {one.comment} |" for one in COLUMNS]
