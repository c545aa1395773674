"""The programs of docs/how-to are run, on a real server with a real broker; configs are read."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import confluent_kafka
import pytest

from directory.server.config import parse_config
from directory.store.etcd.etcd_address import EtcdAddress
from resolver.changes.audit import CHANGE_COLUMNS, UNREAD_COLUMNS
from resolver.index.changes import ChangesOptions
from resolver.index.delta_table import FilePlacement, IndexTable
from resolver.index.row_schema import COLUMNS, ClusterState
from resolver.index.spark_source import Options
from resolver.kafka import Consumer, Producer
from tests.conftest import SharedBroker
from tests.support.federation import Federation, Server, eventually
from tests.support.pages import ROOT, blocks, run_line, run_program

_TOPIC = "search.clicks"
_PYTHON = "docs/how-to/use-from-python.md"
_CLIENTS = "docs/how-to/kafka-clients.md"
_SPARK = "docs/how-to/read-with-spark.md"
_INDEX = "docs/how-to/search-all-clusters.md"


def bodies(page: str, language: str) -> list[str]:
    """Returns the fenced blocks of a page in a language, in order."""
    return [one.body for one in blocks(page) if one.language == language]


@pytest.fixture(scope="module")
def server(own_broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yields la-tracking's server; its broker has the topic that the programs name."""
    from confluent_kafka.admin import AdminClient, NewTopic

    client = AdminClient({"bootstrap.servers": own_broker.bootstrap, "log_level": 0})
    client.create_topics([NewTopic(_TOPIC, 2, replication_factor=1)])[_TOPIC].result(timeout=30)
    kafka = {"bootstrap": [own_broker.bootstrap], "split_on": "."}
    with Federation(tmp_path_factory.mktemp("how-to")) as federation:
        started = federation.start("/la/tracking", kafka=kafka)
        eventually(lambda: started.outcome("/la/tracking/search/clicks") == "resolution")
        yield started


@pytest.mark.timeout(180)
def test_the_programs_in_python(
    server: Server, own_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving, failing, default, watching, testing = bodies(_PYTHON, "python")
    assert "127.0.0.1:7420" in resolving
    assert run_program(resolving, server.address).split(maxsplit=2)[:2] == ["la-tracking", _TOPIC]
    assert own_broker.bootstrap in run_program(resolving, server.address)
    absent, directory, *many = run_program(failing, server.address).splitlines()
    assert absent.startswith("absent: ")
    assert directory.startswith("directory - /la/tracking/search is a directory, not a topic")
    assert many == ["found", "ABSENT"]
    monkeypatch.setenv("KDIR_AT", server.address)
    assert run_program(default, server.address) == f"('{server.address}',)\n"
    assert "/la/tracking/new" in run_program(watching, server.address)
    assert run_program(testing, server.address) == ""


def test_kafka_clients_by_path(server: Server) -> None:
    producing, consuming, plain = bodies(_CLIENTS, "python")
    path = "/la/tracking/search/clicks"
    assert run_program(producing, server.address) == f"delivered {path} {_TOPIC} 0\n"
    shown = run_program(consuming, server.address).splitlines()
    assert shown == [f"{path} b'hello'", "committed 1", "again 0"]
    assert run_program(plain, server.address) == "[0, 1]\n"


@pytest.mark.parametrize(
    ("ours", "theirs"), [(Producer, confluent_kafka.Producer), (Consumer, confluent_kafka.Consumer)]
)
def test_the_methods_of_kafka_clients_are_listed(ours: type, theirs: type) -> None:
    """Each of confluent-kafka's is there, or listed as left out."""
    text = (ROOT / _CLIENTS).read_text()
    (table,) = re.findall(rf"^\| `{ours.__name__}` \|.*\n(?:\|.*\n)+", text, re.MULTILINE)
    methods = {name for name in dir(ours) if not name.startswith("_")}
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) - {ours.__name__} == methods
    (row,) = re.findall(r"^\| `.*init_transactions.*$", text, re.MULTILINE)
    left_out = row.split(" | ")[0 if ours is Producer else 1]
    inherited = {name for name in dir(theirs) if not name.startswith("_")}
    assert set(re.findall(r"`(\w+)`", left_out)) == inherited - methods


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_tree_is_read_with_spark(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    (program,) = bodies(_SPARK, "python")
    shown = run_program(program, server.address)
    assert f"/la/tracking/search/clicks la-tracking {_TOPIC}" in shown.splitlines()


def test_the_options_of_the_spark_source_are_those_of_the_code() -> None:
    text = (ROOT / _SPARK).read_text()
    defaults = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", text, re.MULTILINE))
    options = Options.parse({"servers": "a:1"})
    assert defaults == {
        "servers": "none",
        "path": f"`{options.below}`",
        "failures": f"`{options.failures}`",
        "ask_seconds": f"{options.ask_seconds:g}",
        "page_rows": f"{options.page_rows:,}",
        "shard_rows": f"{options.shard_rows:,}",
    }


def test_the_space_of_an_index_is_given_back(tmp_path: Path) -> None:
    (program,) = bodies(_INDEX, "python")
    table = IndexTable(str(tmp_path / "index"))
    state = ClusterState("kc-la", "la", "/la", incarnation="one", revision=1)
    old = FilePlacement(table.write("kc-la", []), state)
    table.commit(table.load(), [old], [], "first")
    new = FilePlacement(table.write("kc-la", []), replace(state, revision=2))
    table.commit(table.load(), [new], [old], "second")
    assert run_program(program.replace("/srv/kdir/index", table.location), "") == (
        "0 files removed\n"
    )
    # A removed file is old enough at once; the library asks to be overruled for so short a time.
    program = program.replace("30 days", "0 days").replace("dry_run=False", "_NOW")
    program = program.replace("_NOW", "dry_run=False, enforce_retention_duration=False")
    assert run_program(program.replace("/srv/kdir/index", table.location), "") == (
        "1 files removed\n"
    )
    (held,) = table.load().clusters.values()
    assert held.state.revision == 2


def test_an_index_on_s3_goes_by_the_variables_that_are_named(tmp_path: Path) -> None:
    (block,) = bodies(_INDEX, "sh")
    *exports, report = block.splitlines()
    # Nothing leaves this machine: a store that is compatible with S3, where nobody listens.
    own = "export AWS_ENDPOINT_URL=http://127.0.0.1:1 AWS_ALLOW_HTTP=true"
    line = "; ".join([*(one.replace("…", "x") for one in exports), own, report])
    _, err = run_line(f"{line} # exit code 3", {"XDG_CONFIG_HOME": str(tmp_path)})
    assert "the index at s3://bucket/kdir cannot be reached" in err
    assert "Connection refused" in err


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


def test_the_columns_and_options_of_an_audit_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "audit.md").read_text()
    shown = re.findall(r"^\| `(\w+)` \| (\S+(?: STRING>)?) \| (.+) \|$", page, re.MULTILINE)
    columns = [(one.name, one.type.value, one.comment) for one in CHANGE_COLUMNS + UNREAD_COLUMNS]
    assert shown[: len(columns)] == columns
    defaults = dict(
        re.findall(r"^\| `(\w+\.?)` \| ([^|]+?) \| ", page.partition("| option")[2], re.MULTILINE)
    )
    options = ChangesOptions.parse({"servers": "a:1"})
    assert defaults == {
        "servers": "none",
        "path": f"`{options.wanted.below}`",
        "since": "none",
        "until": "none",
        "failures": f"`{options.failures}`",
        "kafka.": "none",
        "ask_seconds": f"{options.ask_seconds:g}",
        "kafka_seconds": f"{options.kafka_seconds:g}",
        "shard_offsets": f"{options.shard_offsets:,}",
        "poll_seconds": f"{options.poll_seconds:g}",
    }
