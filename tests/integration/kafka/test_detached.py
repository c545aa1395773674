"""Topics that were removed from the tree and left in Kafka: they are listed, and taken back."""

from __future__ import annotations

from functools import partial
from pathlib import Path as FilePath

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from tests.support.federation import Federation, Server, eventually
from tests.support.kafka_clients import kdir
from tests.support.reconciler import make


def test_detached_topics_are_listed_counted_and_taken_back(
    broker: KafkaBroker, tmp_path: FilePath
) -> None:
    make(ConfluentAdmin([broker.bootstrap]), "mine.a", "mine.b", "kept")
    with Federation(tmp_path / "servers") as federation:
        settings = {
            "bootstrap": [broker.bootstrap],
            "split_on": ".",
            "sweep_interval_seconds": 0.5,
        }
        server = federation.start("/la", kafka=settings)
        eventually(partial(_has_topics, server, 3))
        kdir(server, "rm", "-r", "-y", "/la/mine")
        eventually(partial(_has_topics, server, 1))
        eventually(lambda: kdir(server, "ls", "--detached", "/la").lines == ["mine.a", "mine.b"])
        assert "2 topics in Kafka and not in the tree: mine.a, mine.b" in kdir(server, "verify").err
        kdir(server, "mkdir", "/la/back")
        assert kdir(server, "adopt", "/la/back", "--detached", "--plan").code == 0
        assert _has_topics(server, 1)
        kdir(server, "adopt", "/la/back", "--detached")
        assert kdir(server, "ls", "/la/back").lines == ["mine.a", "mine.b"]
        assert kdir(server, "which", "mine.a", "-o", "name").lines == ["/la/back/mine.a"]
        assert "no topics of la are detached" in kdir(server, "ls", "--detached", "/la").err


def _has_topics(server: Server, count: int) -> bool:
    return server.status().topic_count == count
