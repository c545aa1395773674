"""Producers and consumers by path, over librdkafka's own mock of a cluster or a fake client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from resolver import Resolver
from resolver.kafka import Consumer, Producer
from resolver.kafka import consumer as consumer_module
from resolver.testing import MemoryDirectory

MOCK = {"test.mock.num.brokers": 1, "allow.auto.create.topics": True, "log_level": 0}
"""Settings of a client that connects to a cluster within itself, whatever its brokers are."""


class Tree:
    """A cluster in memory, of which the brokers can be changed."""

    def __init__(self) -> None:
        self.directory = MemoryDirectory()
        self.brokers = ["a:9092"]
        endpoint = self.directory.cluster("/la", bootstrap_servers="a:9092")
        for name in ("x", "y"):
            self.directory.topic(f"/la/{name}")
        answer = self.directory.transport.handler(endpoint)

        def handle(name: str, request: Any) -> Any:
            response = answer(name, request)
            for authority in getattr(response, "authorities", None) or [response.authority]:
                authority.cluster.listeners[0].bootstrap_servers[:] = self.brokers
            return response

        self.directory.transport.serve(endpoint, handle)

    def resolver(self, **more: Any) -> Resolver:
        """Returns a client of the cluster."""
        return self.directory.resolver(**more)


@pytest.fixture
def tree() -> Iterator[Tree]:
    made = Tree()
    with made.directory:
        yield made


def test_a_transactional_producer_goes_on_when_the_list_of_brokers_changes(tree: Tree) -> None:
    producer = Producer(tree.resolver(max_entries=0), {**MOCK, "transactional.id": "t"})
    for brokers in (["a:9092"], ["a:9092", "b:9092"], ["b:9092"]):
        tree.brokers = brokers
        producer.begin_transaction()
        producer.produce("/la/x", b"1")
        producer.produce("/la/y", b"1")
        producer.commit_transaction()
    assert producer.close() == 0


class FakeConsumer:
    """A client that keeps its settings."""

    made: list[dict[str, Any]]

    def __init__(self, settings: dict[str, Any]) -> None:
        self.made.append(settings)

    def subscribe(self, topics: list[str]) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Returns the settings of each consumer's client, in order."""
    FakeConsumer.made = []
    monkeypatch.setattr(consumer_module, "KafkaConsumer", FakeConsumer)
    return FakeConsumer.made


@pytest.mark.parametrize("paths", [("/la/x", "/la/y"), ("/la/y", "/la/x")])
@pytest.mark.parametrize("max_entries", [0, 10])
def test_a_consumer_takes_the_newest_list_of_a_clusters_brokers(
    tree: Tree, made: list[dict[str, Any]], paths: tuple[str, str], max_entries: int
) -> None:
    resolver = tree.resolver(max_entries=max_entries)
    resolver.resolve("/la/x")  # with a cache, the answer that is older
    tree.brokers = ["b:9092", "c:9092"]
    consumer = Consumer(resolver, {"group.id": "g"})
    consumer.subscribe(paths)
    consumer.close()
    assert [one["bootstrap.servers"] for one in made] == ["b:9092,c:9092"]
