"""A directory server comes to brokers with users as one of them, and tells nobody how."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy.local.kafka import KafkaBroker
from deploy.local.kafka_users import SaslUsers
from directory.kafka.admin_client import ConfluentAdmin
from resolver import Resolver
from tests.support.command_line import run
from tests.support.federation import Federation, Server, eventually
from tests.support.reconciler import make
from tests.support.server_command import serve

USERS = SaslUsers(super_users=("admin", "kdir"))


@pytest.fixture(scope="module")
def guarded(kafka_brokers: Callable[..., KafkaBroker]) -> Iterator[KafkaBroker]:
    with kafka_brokers(users=USERS) as broker:
        make(ConfluentAdmin([broker.bootstrap], properties=broker.client()), "a")
        yield broker


def put(file: Path, properties: Mapping[str, str]) -> Path:
    """Writes a file of secrets, as an operator leaves it."""
    lines = (f"{key}={value}\n" for key, value in properties.items() if key != "bootstrap.servers")
    file.touch(mode=0o600)
    file.write_text("".join(lines))
    return file


def start(federation: Federation, broker: KafkaBroker, **kafka: Any) -> Server:
    table = {"bootstrap": [broker.bootstrap], "sweep_interval_seconds": 0.5, **kafka}
    return federation.start("/la/t", kafka=table)


def reported(server: Server) -> list[tuple[str, str, str]]:
    """Returns the listeners that clients are told."""
    with Resolver(server.address) as resolver:
        listeners = resolver.resolve("/la/t/a").listeners
    return [(one.name, one.security_protocol, one.sasl_mechanism) for one in listeners]


def output(server: Server, arguments: str) -> str:
    """Returns what it says of its Kafka, once that holds these words; a client gives up
    after 10 s.
    """

    def received() -> str:
        message = server.status().kafka.message
        assert arguments in message, message
        return message

    return eventually(received, 60.0)


def check(server: Server) -> str:
    """Returns what ``kdir server --check`` says of its config."""
    output = serve("--check", "--config", str(server.config))
    assert output.returncode == 0, output.stderr
    return output.stdout + output.stderr


def test_a_server_comes_in_by_password_and_does_not_reveal_it(
    guarded: KafkaBroker, federation: Federation, tmp_path: Path
) -> None:
    file = put(tmp_path / "kafka.properties", guarded.client("kdir"))
    server = start(federation, guarded, properties_file=str(file))
    eventually(lambda: server.status().topic_count == 1)
    assert server.status().kafka.reachable

    assert reported(server) == [("default", "SASL_PLAINTEXT", "PLAIN")]
    arguments = [
        check(server),
        server.process.log.read_text(),
        *(
            run([*verb, "--at", server.address]).out
            for verb in (
                ["resolve", "/la/t/a", "-o", "json"],
                ["resolve", "/la/t/a", "-o", "properties"],
                ["stat", "/la/t", "-o", "json"],
                ["doctor", "-o", "json"],
            )
        ),
    ]
    assert f"kafka:  {guarded.bootstrap} by SASL_PLAINTEXT (PLAIN); may change" in arguments[0]
    assert all(arguments)
    assert not any(USERS.passwords["kdir"] in text for text in arguments)

    file.chmod(0o644)
    assert f"everybody on this machine may read it: chmod 600 {file}" in check(server)


def test_a_password_that_is_wrong_is_reported_and_put_right_without_a_restart(
    guarded: KafkaBroker, federation: Federation, tmp_path: Path
) -> None:
    right = guarded.client("kdir")
    file = put(tmp_path / "kafka.properties", {**right, "sasl.password": "a-wrong-one"})
    server = start(federation, guarded, properties_file=str(file))
    text = output(server, "Authentication failed: Invalid username or password")
    assert not server.status().kafka.reachable
    assert "a-wrong-one" not in text
    assert "a-wrong-one" not in server.process.log.read_text()

    file.write_text("sasl.pasword=x\n")
    output(server, "unknown property 'sasl.pasword'; the nearest known one is 'sasl.password'")

    put(file, right)
    eventually(lambda: server.status().kafka.reachable, 60.0)
    eventually(lambda: server.status().topic_count == 1)
    server.restart()
    eventually(lambda: server.status().kafka.reachable)
