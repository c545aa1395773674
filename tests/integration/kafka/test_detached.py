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
        kdir(server, "mkdir", "/la/my/own")
        kdir(server, "mv", "/la/mine/b", "/la/my/own/b")
        kdir(server, "rm", "-r", "-y", "/la/mine")
        kdir(server, "rm", "-r", "-y", "/la/my")
        eventually(partial(_has_topics, server, 1))
        detached = ["mine.a\t/la/mine/a\tla", "mine.b\t/la/my/own/b\tla"]
        eventually(lambda: kdir(server, "ls", "--detached", "/la").lines == detached)
        assert "2 topics in Kafka and not in the tree: mine.a, mine.b" in kdir(server, "verify").err
        planned = kdir(server, "adopt", "/la", "--detached", "--plan")
        assert "would make /la/my/own, and adopt mine.b as /la/my/own/b" in planned.err
        assert _has_topics(server, 1)

        # They come back where they were, at the path that they had last.
        kdir(server, "mkdir", "/la/mine")
        some = kdir(server, "adopt", "/la/mine", "--detached")
        assert "left: 1 topic that had paths elsewhere: kdir adopt /la --detached" in some.err
        kdir(server, "adopt", "/la", "--detached")
        assert kdir(server, "which", "mine.a", "-o", "name").lines == ["/la/mine/a"]
        assert kdir(server, "which", "mine.b", "-o", "name").lines == ["/la/my/own/b"]
        assert "no topics of la are detached" in kdir(server, "ls", "--detached", "/la").err


def _has_topics(server: Server, count: int) -> bool:
    return server.status().topic_count == count
