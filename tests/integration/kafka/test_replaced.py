"""Topics that were replaced or deleted by somebody else: what kdir answers, and its advice."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path as FilePath

import pytest
from kdir.v1 import entry_pb2

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from resolver import Resolver
from tests.support.federation import Federation, Server, eventually
from tests.support.kafka_clients import kdir
from tests.support.reconciler import drop, in_kafka, make


@pytest.fixture
def server(broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath) -> Iterator[Server]:
    """Yields /la, whose topics `clicks` and `views` were replaced, and whose `gone` was deleted."""
    make(kafka, "clicks", "views", "gone", "kept")
    with Federation(tmp_path / "servers") as federation:
        settings = {
            "bootstrap": [broker.bootstrap],
            "ceiling": ["create", "delete"],
            "sweep_interval_seconds": 0.5,
        }
        made = federation.start("/la", kafka=settings)
        eventually(lambda: made.status().topic_count == 4)
        for name in ("clicks", "views"):
            drop(kafka, name)
            make(kafka, name)
            eventually(partial(is_so, made, name, entry_pb2.PROVISION_REPLACED))
        drop(kafka, "gone")
        eventually(partial(is_so, made, "gone", entry_pb2.PROVISION_MISSING))
        yield made


def is_so(server: Server, name: str, provision: entry_pb2.Provision) -> bool:
    entry = server.entries("GetEntry", path=f"/la/{name}").entry
    return bool(entry.topic.provision == provision)


def topic_ids(kafka: ConfluentAdmin) -> dict[str, bytes]:
    return {
        name: seen.topic_id
        for name, seen in kafka.describe_all().topics.items()
        if not seen.internal
    }


def advised(server: Server, verb: str, path: str) -> list[str]:
    """Returns the command of a verb that `kdir verify` advises for a path."""
    reported = kdir(server, "verify", "-o", "json", code=5).out
    (command,) = set(re.findall(rf"kdir ({verb} {path}(?: --topic [\w.]+)?)", reported))
    return shlex.split(command)


def test_what_verify_advises_works(server: Server, kafka: ConfluentAdmin) -> None:
    ids = topic_ids(kafka)
    assert set(ids) == {"clicks", "views", "kept"}
    assert "/la at" in (reported := kdir(server, "doctor", code=3).err)
    assert "2 topics replaced in Kafka" in reported

    adopt = advised(server, "adopt", "/la/clicks")
    assert adopt == ["adopt", "/la/clicks", "--topic", "clicks"]
    kdir(server, *adopt)
    entry = server.entries("GetEntry", path="/la/clicks").entry
    assert entry.topic.provision == entry_pb2.PROVISION_ACTIVE
    assert entry.topic.topic_id == ids["clicks"]
    # Once is enough: of an entry that is well there is nothing to take over.
    kdir(server, *adopt, code=5)

    kdir(server, *advised(server, "rm", "/la/gone"), "--yes")
    kdir(server, *advised(server, "rm", "/la/views"), "--yes")
    eventually(lambda: kdir(server, "doctor").code == 0)
    assert topic_ids(kafka) == ids


def test_rm_says_what_becomes_of_kafka(server: Server, kafka: ConfluentAdmin) -> None:
    assert "1 topic replaced in Kafka and left" in kdir(server, "rm", "/la/views", "--plan").err
    assert "1 topic not in Kafka any more" in kdir(server, "rm", "/la/gone", "--plan").err
    assert "1 topic deleted in Kafka with data" in kdir(server, "rm", "/la/kept", "--plan").err

    output = kdir(server, "rm", "/la/views", "--yes").err
    assert "while Kafka keeps the other topic that has its name by now" in output
    output = kdir(server, "rm", "/la/gone", "--yes").err
    assert "which Kafka does not have any more: nothing is deleted there" in output
    output = kdir(server, "rm", "/la/kept", "--yes").err
    assert "with its data in Kafka" in output
    eventually(lambda: in_kafka(kafka) == {"clicks", "views"})


def test_resolve_warns_while_another_kafka_answers(
    broker: KafkaBroker,
    kafka: ConfluentAdmin,
    kafka_brokers: Callable[..., KafkaBroker],
    tmp_path: FilePath,
) -> None:
    make(kafka, "clicks")
    store = f"sqlite:///{tmp_path / 'store.db'}"
    with Federation(tmp_path / "servers") as federation, kafka_brokers() as other:
        first = federation.start(
            "/la",
            kafka={"bootstrap": [broker.bootstrap], "sweep_interval_seconds": 0.5},
            store=store,
        )
        eventually(lambda: first.status().topic_count == 1)
        assert "another Kafka" not in kdir(first, "resolve", "/la/clicks").err
        first.stop()
        second = federation.start(
            "/la",
            kafka={"bootstrap": [other.bootstrap], "sweep_interval_seconds": 0.5},
            store=store,
        )
        eventually(lambda: second.status().kafka.stop_reason)
        warned = kdir(second, "resolve", "/la/clicks").err
        assert f"another Kafka cluster answers: {other.cluster_id}" in warned
        with Resolver(second.address) as resolver:
            found = resolver.resolve("/la/clicks")
        assert broker.cluster_id in found.stop_reason
        (record,) = kdir(second, "resolve", "/la/clicks", "-o", "json").objects
        assert record["stop_reason"] == found.stop_reason
