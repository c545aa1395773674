"""How kdir's Kafka client comes in: what a config may say of it, and that no secret is told."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from directory.kafka.own_client_settings import ClientProperties
from directory.server.config import parse_config
from directory.server.config_kafka import KafkaConfig, Listener
from directory.server.process import main
from directory.server.toml_table import ConfigError

SASL = """security.protocol=SASL_PLAINTEXT
sasl.mechanism=SCRAM-SHA-512
sasl.username=kdir
sasl.password=hunter2
"""


def kafka(lines: str, base: Path | None = None) -> KafkaConfig:
    text = f'[kafka]\nbootstrap = ["127.0.0.1:9092"]\n{lines}\n'
    found = parse_config(tomllib.loads(text), base).kafka
    assert found is not None
    return found


def client(lines: str, base: Path | None = None) -> ClientProperties:
    return kafka(lines, base).client


def filed(folder: Path, text: str) -> ClientProperties:
    (folder / "kafka.properties").write_text(text)
    return client('properties_file = "kafka.properties"', folder)


def test_without_any_it_comes_in_the_clear_and_says_nothing() -> None:
    found = kafka("")
    assert found.client.read() == {}
    assert found.client.reported() == ""
    assert found.listeners == (Listener("default", ("127.0.0.1:9092",)),)


def test_secrets_come_from_the_file_and_the_rest_from_either(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("# kdir's\nsasl.password = hunter2\n")
    found = kafka(
        'properties_file = "secret"\n[kafka.properties]\nsecurity.protocol = "sasl_plaintext"\n'
        'sasl.mechanism = "PLAIN"\n"sasl.username" = "kdir"\nsocket.timeout.ms = 6000\n'
        "socket.keepalive.enable = true",
        tmp_path,
    )
    assert found.client.read() == {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "kdir",
        "socket.timeout.ms": "6000",
        "socket.keepalive.enable": "true",
        "sasl.password": "hunter2",
    }
    assert found.listeners == (
        Listener("default", ("127.0.0.1:9092",), "SASL_PLAINTEXT", "PLAIN"),
    ), "clients come the same way, unless listeners are named"
    assert found.client.reported() == "by SASL_PLAINTEXT (PLAIN)"
    assert "hunter2" not in repr(found)


def test_a_password_that_was_changed_is_read(tmp_path: Path) -> None:
    found = filed(tmp_path, SASL)
    assert found.read()["sasl.password"] == "hunter2"
    (tmp_path / "kafka.properties").write_text(SASL.replace("hunter2", "hunter3"))
    assert found.read()["sasl.password"] == "hunter3"


@pytest.mark.parametrize(
    ("properties", "arguments"),
    [
        ('"securty.protocol" = "SSL"', "unknown property 'securty.protocol'.*'security.protocol'"),
        ('"ssl.ca.lokation" = "x"', "nearest known one is 'ssl.ca.location'"),
        (
            '"ssl.ca.location" = "x"',
            "of no use with security.protocol=PLAINTEXT; expected SSL or SASL_SSL",
        ),
        ('"security.protocol" = "TLS"', 'Invalid value "TLS"'),
        ('"socket.timeout.ms" = "soon"', "socket.timeout.ms"),
        ('"socket.timeout.ms" = [1]', "a text, a number, true or false"),
        ('"bootstrap.servers" = "b:1"', "kafka.bootstrap sets it"),
        ('"metadata.broker.list" = "b:1"', "kafka.bootstrap sets it"),
        ('"client.id" = "me"', "client.id: kdir sets that itself"),
        ("log_level = 7", "log_level: kdir sets that itself"),
        ('"error_cb" = "print"', "error_cb: is code"),
        ('"plugin.library.paths" = "x.so"', "plugin.library.paths: is code"),
        ('"sasl.password" = "hunter2"', "sasl.password is a secret.*properties_file"),
        ('"ssl.key.password" = "hunter2"', "ssl.key.password is a secret"),
        ('"ssl.key.pem" = "hunter2"', "ssl.key.pem is a secret"),
        ('"sasl.oauthbearer.client.secret" = "hunter2"', "is a secret"),
        (
            '"sasl.username" = "kdir"',
            "of no use with security.protocol=PLAINTEXT; expected SASL_SSL",
        ),
        (
            '"security.protocol" = "SSL", "ssl.ca.location" = "nowhere.pem"',
            "ssl.ca.location failed",
        ),
    ],
)
def test_a_mistake_is_one_sentence_with_its_name(properties: str, arguments: str) -> None:
    with pytest.raises(ConfigError, match=arguments) as raised:
        client(f"properties = {{ {properties} }}").read()
    assert str(raised.value).startswith("kafka.properties: ")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (SASL + "sasl.pasword=hunter2", "unknown property 'sasl.pasword'.*'sasl.password'"),
        (SASL + "client.id=me", "kafka.properties: client.id: kdir sets that itself"),
        (SASL + "hunter2", "line 5: expected KEY=VALUE"),
        (SASL + "sasl.password=hunter2", "line 5: sasl.password is set twice"),
        ("sasl.jaas.config=hunter2\nsecurity.protocol=SASL_SSL", "JAAS"),
        (SASL.replace("SCRAM-SHA-512", "GUESSING"), "Unsupported SASL mechanism: GUESSING"),
        (SASL.replace("sasl.username=kdir\n", ""), "sasl.username and sasl.password must be set"),
    ],
)
def test_a_mistake_in_the_file_names_it_and_shows_no_secret(
    tmp_path: Path, text: str, arguments: str
) -> None:
    found = filed(tmp_path, text)
    with pytest.raises(ConfigError, match=arguments) as raised:
        found.read()
    assert "kafka.properties" in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "text", "place"),
    [
        ("", SASL.replace("SCRAM-SHA-512", "GUESSING"), "properties_file: Kafka's client"),
        ('"socket.timeout.ms" = "soon"', SASL, "properties: Kafka's client"),
        ('"socket.timeout.ms" = "90"', "socket.max.fails=soon", "properties_file: Kafka's client"),
        (
            '"sasl.mechanism" = "GUESSING"',
            SASL.replace("sasl.mechanism=SCRAM-SHA-512\n", ""),
            "properties and properties_file: Kafka's client",
        ),
        ('"ssl.ca.location" = "x"', SASL, "properties: ssl.ca.location is of no use"),
        ('"socket.timeout.ms" = "90"', "sasl.username=u", "properties_file: sasl.username is of"),
    ],
)
def test_a_mistake_is_reported_of_the_place_where_it_is(
    tmp_path: Path, given: str, text: str, place: str
) -> None:
    (tmp_path / "p").write_text(text)
    found = client(f'properties_file = "p"\nproperties = {{ {given} }}', tmp_path)
    with pytest.raises(ConfigError) as raised:
        found.read()
    assert str(raised.value).startswith(f"kafka.{place}")


def test_one_property_in_both_places_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "p").write_text(SASL)
    lines = 'properties_file = "p"\nproperties = { "security.protocol" = "SSL" }'
    with pytest.raises(ConfigError, match=r"security\.protocol is in .*/p, too"):
        client(lines, tmp_path).read()


def test_a_file_that_is_not_there_is_reported_by_who_reads_it_and_not_by_the_parser() -> None:
    found = kafka('properties_file = "/nowhere/kafka.properties"')
    assert found.listeners[0].security_protocol == "PLAINTEXT"
    with pytest.raises(
        ConfigError, match=r"kafka\.properties_file: .*cannot be read: No such file"
    ):
        found.client.read()
    assert found.client.advice() == ""


def test_files_that_properties_name_are_beside_the_config(tmp_path: Path) -> None:
    lines = 'properties = { "security.protocol" = "SSL", "ssl.ca.location" = "ca.pem" }'
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location failed"):
        client(lines, tmp_path).read()
    from tests.support.identities import Authority

    (tmp_path / "ca.pem").write_bytes(Authority(tmp_path / "ca").pem)
    assert client(lines, tmp_path).read()["ssl.ca.location"] == str(tmp_path / "ca.pem")


def test_a_file_that_everybody_may_read_is_advised_against(tmp_path: Path) -> None:
    found = filed(tmp_path, SASL)
    (tmp_path / "kafka.properties").chmod(0o644)
    assert "chmod 600" in found.advice()
    (tmp_path / "kafka.properties").chmod(0o640)
    assert found.advice() == ""


@pytest.mark.parametrize("arguments", [["--check"], []])
def test_a_server_of_a_kafka_is_refused_at_once_without_the_client(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("resolver.extras.is_installed", lambda _: False)
    flags = ["--mount", "/x", "--cluster", "x", "--kafka", "127.0.0.1:1", *arguments]
    assert main(flags) == 2
    assert capsys.readouterr().err == (
        "error: [kafka] needs the package confluent-kafka, which is not installed: "
        "pip install 'kdir[kafka]'\n"
    )


@pytest.mark.parametrize("log", ["[change_log]\n", '[change_log]\nbootstrap = ["127.0.0.1:1"]\n'])
def test_properties_with_which_no_log_is_published_are_refused_at_the_check(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], log: str
) -> None:
    """Of the table whose brokers keep the change log: the cluster's own, or another."""
    config = tmp_path / "server.toml"
    of = "change_log" if "bootstrap" in log else "kafka"
    config.write_text(
        f'cluster = "la"\nmount = "/la"\nstore = "sqlite:///{tmp_path}/la.sqlite"\n'
        f'[kafka]\nbootstrap = ["127.0.0.1:1"]\n{log}[{of}.properties]\nacks = 1\n'
    )
    assert main(["--check", "--config", str(config)]) == 2
    refused = capfd.readouterr().err
    assert f"{of}.properties: Kafka's client: `acks` must be set to `all`" in refused
    config.write_text(config.read_text().replace("acks = 1", 'acks = "all"'))
    assert main(["--check", "--config", str(config)]) == 0
