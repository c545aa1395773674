"""A Kafka consumer that takes paths: confluent-kafka's surface, with a path where it has a topic.

Paths of several clusters are one subscription: a client of the library for each cluster, asked one
after the other. Order is Kafka's, within a partition. Refuses to make topics, to follow a path to
another cluster after it was subscribed to, and to be used by another process than its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaException, TopicPartition

from resolver.errors import InvalidArgument, KdirError
from resolver.kafka.client_errors import client_error
from resolver.kafka.client_settings import Client, consumer_settings, for_librdkafka
from resolver.kafka.listener_choice import (
    connection,
    kafka_error_text,
    setting_layers,
    without_brokers,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

    from resolver.client import Resolver
    from resolver.path import Path
    from resolver.topic_location import TopicLocation

__all__ = ["Consumer", "ReceivedMessage"]

Assigned = Callable[[list[TopicPartition]], None]
"""Called with partitions, with paths where Kafka has topics."""

_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message, or what went wrong on the way to one: confluent-kafka's, with its path."""

    message: Message
    cluster: str
    """The cluster's name, for people."""
    path: str
    """Empty for an error that is no topic's."""
    client: KafkaConsumer = field(repr=False, compare=False)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Of the client."""

    def topic(self) -> str:
        """Returns the path."""
        return self.path

    def error(self) -> KafkaError | None:
        """Returns None: this is a message."""
        return self.message.error()

    def explained(self) -> KdirError | None:
        """Returns the error; where Kafka denied it, with the right that is missing and how to ask
        for the reason. None: this is a message.
        """
        error = self.message.error()
        if error is None:
            return None
        return client_error(error, self.path or "PATH", self.settings, for_writes=False)

    def key(self) -> Any:
        """Returns the key as it was produced; None = none."""
        return self.message.key()

    def value(self) -> Any:
        """Returns the value as it was produced; None = a tombstone."""
        return self.message.value()

    def headers(self) -> Any:
        """Returns pairs of name and bytes, or None."""
        return self.message.headers()

    def partition(self) -> int | None:
        """Returns Kafka's number of it."""
        return self.message.partition()

    def offset(self) -> int | None:
        """Returns the offset within the partition."""
        return self.message.offset()

    def timestamp(self) -> tuple[int, int]:
        """Returns which kind it is, and Unix milliseconds."""
        return self.message.timestamp()


@dataclass(slots=True)
class _Source:
    """One client, and which path each of its topics has."""

    client: KafkaConsumer
    cluster: str
    settings: Mapping[str, str]
    paths: dict[str, str] = field(default_factory=dict)


class Consumer:
    """Kafka consumer that subscribes to paths.

    Args:
        resolver: finds the paths; stays open, and is not closed by this.
        settings: Kafka's (or librdkafka's) consumer settings, with a ``group.id`` and without
            ``bootstrap.servers``. They go before what the policies of a path say.
        listener: by which of a cluster's listeners to connect; empty = its first.
    """

    def __init__(
        self, resolver: Resolver, settings: Mapping[str, Any], *, listener: str = ""
    ) -> None:
        self._resolver = resolver
        self._settings = without_brokers(settings)
        if not self._settings.get("group.id"):
            raise InvalidArgument("group.id: empty; expected the name of a group")
        self._listener = listener
        self._process = os.getpid()
        self._sources: list[_Source] = []
        self._next_source = 0

    def subscribe(
        self,
        paths: Iterable[Path | str],
        on_assign: Assigned | None = None,
        on_revoke: Assigned | None = None,
    ) -> None:
        """Consumes these topics, and no others any more.

        Raises:
            KdirError: what resolving a path raises; then nothing has changed.
            InvalidArgument: no topic; or paths of one cluster whose policies differ.
        """
        self._same_process()
        sources: dict[str, _Source] = {}
        for found in [self._resolver.resolve(path) for path in paths]:
            settings = self._settings_of(found)
            source = sources.get(found.cluster_id)
            if source is None:
                source = sources[found.cluster_id] = self._open(found, settings)
            elif source.settings != settings:
                names = {name for name, _ in source.settings.items() ^ settings.items()}
                raise InvalidArgument(
                    f"{found.path}: its policies want another {', '.join(sorted(names))} than the "
                    f"paths before it in cluster {found.cluster}, and a group has one; say it in "
                    f"settings"
                )
            source.paths[found.topic] = found.path
        self.unsubscribe()
        self._sources = list(sources.values())
        for source in self._sources:
            reported = {
                name: _with_paths(source, callback)
                for name, callback in (("on_assign", on_assign), ("on_revoke", on_revoke))
                if callback is not None
            }
            source.client.subscribe(list(source.paths), **reported)

    def unsubscribe(self) -> None:
        """Consumes nothing any more; leaves the groups."""
        self._same_process()
        for source in self._sources:
            source.client.close()
        self._sources = []

    def close(self) -> None:
        """Leaves the groups and lets go of the connections."""
        self.unsubscribe()

    def poll(self, timeout: float = 1.0) -> ReceivedMessage | None:
        """Returns the next message of any path, or an error; None = none came within so many
        seconds.
        """
        self._same_process()
        deadline = time.monotonic() + timeout
        while True:
            for _ in self._sources:
                self._next_source += 1
                one = self._asked(self._sources[self._next_source % len(self._sources)], 0.0)
                if one is not None:
                    return one
            left = deadline - time.monotonic()
            if left <= 0 or not self._sources:
                return None
            share = left if len(self._sources) == 1 else min(left, _POLL_SECONDS)
            self._next_source += 1
            one = self._asked(self._sources[self._next_source % len(self._sources)], share)
            if one is not None:
                return one

    def consume(self, num_messages: int = 1, timeout: float = 1.0) -> list[ReceivedMessage]:
        """Returns at most ``num_messages`` messages, as far as they are received within ``timeout``
        seconds.
        """
        deadline = time.monotonic() + timeout
        found: list[ReceivedMessage] = []
        while len(found) < num_messages:
            one = self.poll(max(0.0, deadline - time.monotonic()))
            if one is None:
                break
            found.append(one)
        return found

    def commit(self, message: ReceivedMessage | None = None, *, asynchronous: bool = True) -> None:
        """Commits the offset behind a message, or all that was consumed so far."""
        for source in self._sources:
            commit: Any = source.client.commit  # the stubs know literal flags only
            if message is None:
                commit(asynchronous=asynchronous)
            elif source.client is message.client:
                commit(message=message.message, asynchronous=asynchronous)

    def store_offsets(self, message: ReceivedMessage) -> None:
        """Notes that this one is done with; for ``enable.auto.offset.store=false``."""
        message.client.store_offsets(message=message.message)

    def assignment(self) -> list[TopicPartition]:
        """Returns what of the paths this member of the groups consumes."""
        return [
            TopicPartition(source.paths.get(one.topic, one.topic), one.partition, one.offset)
            for source in self._sources
            for one in source.client.assignment()
        ]

    def _asked(self, source: _Source, timeout: float) -> ReceivedMessage | None:
        message = source.client.poll(timeout)
        if message is None:
            return None
        paths = source.paths
        path = paths.get(message.topic() or "", "")
        if not path and len(paths) == 1 and message.error() is not None:
            path = next(iter(paths.values()))  # a group's error: whose else
        return ReceivedMessage(message, source.cluster, path, source.client, source.settings)

    def _settings_of(self, found: TopicLocation) -> dict[str, str]:
        layers = setting_layers(self._settings, found, Client.CONSUMER)
        return connection(found, self._listener) | for_librdkafka(consumer_settings(layers))

    def _open(self, found: TopicLocation, settings: dict[str, str]) -> _Source:
        try:
            return _Source(KafkaConsumer(dict(settings)), found.cluster, settings)
        except KafkaException as error:
            message = kafka_error_text(error)
            raise InvalidArgument(f"{found.path}: Kafka's client says: {message}") from error

    def _same_process(self) -> None:
        if os.getpid() != self._process:
            raise InvalidArgument(
                "this consumer was made by another process; make one after the fork (librdkafka)"
            )


def _with_paths(source: _Source, callback: Assigned) -> Callable[[object, Any], None]:
    def reported(_client: object, partitions: list[TopicPartition]) -> None:
        callback(
            [
                TopicPartition(source.paths.get(one.topic, one.topic), one.partition, one.offset)
                for one in partitions
            ]
        )

    return reported
