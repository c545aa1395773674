"""Kafka consumer with paths: confluent-kafka's interface, with a path instead of a topic.

A subscription may have paths of several clusters: there is a client of confluent-kafka for each
cluster, and they are polled in rotation. Messages are ordered within a partition, as in Kafka. A
consumer creates no topics by default, and does not follow a path that moves to another cluster
after ``subscribe``. Only the process that created a consumer may use it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaException, TopicPartition

from resolver.errors import Closed, InvalidArgument
from resolver.kafka.client_errors import client_error
from resolver.kafka.client_settings import Client, consumer_settings, for_librdkafka
from resolver.kafka.listener_choice import (
    connection,
    kafka_error_text,
    setting_layers,
    split_settings,
)
from resolver.kafka.messages import ReceivedMessage
from resolver.kafka.timeouts import deadline_after
from resolver.path import Path

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from resolver.client import Resolver
    from resolver.errors import KdirError
    from resolver.topic_location import TopicLocation

__all__ = ["Consumer"]

Assigned = Callable[[list[TopicPartition]], None]
"""Callback whose argument is a list of partitions, with a path as the ``topic`` of each."""

_BROKERS: Final = "bootstrap.servers"
_NO_OFFSET: Final = -168
"""_NO_OFFSET of librdkafka: there is nothing to commit."""
_POLL_SECONDS: Final = 0.05


@dataclass(slots=True)
class _Source:
    """Client of one cluster; ``paths`` has the path of each topic that it consumes, by the topic's
    name.
    """

    client: KafkaConsumer
    cluster: str
    settings: Mapping[str, str]
    paths: dict[str, str] = field(default_factory=dict)

    def by_path(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Returns the partitions with paths instead of Kafka's topic names."""
        return [
            TopicPartition(self.paths.get(one.topic, one.topic), one.partition, one.offset)
            for one in partitions
        ]

    def checked(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Returns the partitions with paths instead of Kafka's topic names.

        Raises:
            KdirError: one of the partitions has an error of Kafka.
        """
        found = list(partitions)
        for one in found:
            if one.error is not None:
                raise self.error(one.error, one.topic)
        return self.by_path(found)

    def query(
        self,
        partitions: list[TopicPartition],
        method: Callable[[KafkaConsumer], Callable[..., list[TopicPartition]]],
        timeout: float,
    ) -> list[TopicPartition]:
        """Calls the client's ``method`` with partitions; returns its result with paths.

        Raises:
            KdirError: Kafka refused, or did not answer.
        """
        try:
            return self.checked(method(self.client)(partitions, timeout=timeout))
        except KafkaException as error:
            raise self.error(error.args[0], partitions[0].topic) from error

    def error(self, error: KafkaError, topic: str) -> KdirError:
        """Returns the error to raise for Kafka's error about a topic."""
        return client_error(error, self.paths.get(topic, topic), self.settings, for_writes=False)


class Consumer:
    """Kafka consumer that subscribes to paths.

    Args:
        resolver: resolves the paths; ``close`` leaves it open.
        settings: Kafka's (or librdkafka's) consumer settings, with a ``group.id`` and without
            ``bootstrap.servers``. They override the policies of a path. Callbacks (``oauth_cb``, …)
            and ``logger`` are those of confluent-kafka: each client calls them.
        listener: name of the listener by which to connect to a cluster; empty = its first one.
    """

    def __init__(
        self, resolver: Resolver, settings: Mapping[str, Any], *, listener: str = ""
    ) -> None:
        self._resolver = resolver
        self._settings, self._callbacks = split_settings(settings)
        if not self._settings.get("group.id"):
            raise InvalidArgument("group.id: empty; expected the name of a group")
        self._listener = listener
        self._process = os.getpid()
        self._sources: list[_Source] = []
        self._next_source = 0
        self._is_closed = False

    def subscribe(
        self,
        paths: Iterable[Path | str],
        on_assign: Assigned | None = None,
        on_revoke: Assigned | None = None,
    ) -> None:
        """Subscribes to these paths, instead of the former ones.

        Raises:
            KdirError: a path cannot be resolved; the subscription stays as it was.
            InvalidArgument: a path is no topic; the policies of one cluster's paths differ.
            Closed: this consumer was closed.
            TypeError: ``paths`` is one path; expected several.
        """
        self._same_process()
        self._refuse_closed()
        if isinstance(paths, str | Path):
            raise TypeError(f"paths: found one path, {str(paths)!r}; expected several: [path, …]")
        sources: dict[str, _Source] = {}
        resolved = [(self._resolver.resolve(path), self._asked_at(path)) for path in paths]
        # Answers of one cluster may have different ages: an old cached one may have former brokers.
        brokers = {
            found.cluster_id: {_BROKERS: connection(found, self._listener)[_BROKERS]}
            for found, _ in sorted(resolved, key=lambda one: one[1])
        }
        for found, _ in resolved:
            settings = self._settings_of(found) | brokers[found.cluster_id]
            source = sources.get(found.cluster_id)
            if source is None:
                source = sources[found.cluster_id] = self._open(found, settings)
            elif source.settings != settings:
                names = {name for name, _ in source.settings.items() ^ settings.items()}
                raise InvalidArgument(
                    f"{found.path}: its policies set another {', '.join(sorted(names))} than those "
                    f"of the paths before it in cluster {found.cluster}; a consumer group has one "
                    f"value: set it in the settings"
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
        """Ends the subscription: leaves the group in each cluster and closes the clients; an error
        of ``on_revoke`` is raised once all are closed.
        """
        self._same_process()
        first: BaseException | None = None
        while self._sources:
            try:
                self._sources[0].client.close()
            except BaseException as error:  # noqa: BLE001 - raised below
                first = first or error
            self._sources = self._sources[1:]
        if first is not None:
            raise first

    def close(self) -> None:
        """Leaves the groups and closes the connections. ``poll`` and ``subscribe`` raise ``Closed``
        from then on, and ``commit`` from the end of the last ``on_revoke`` on.
        """
        self._is_closed = True
        self.unsubscribe()

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise Closed("this consumer was closed: make another one")

    def poll(self, timeout: float = 1.0) -> ReceivedMessage | None:
        """Returns the next message of any path, or an error in its place; None = no message within
        ``timeout`` seconds (negative: no limit), or no subscription.

        Raises:
            Closed: this consumer was closed.
        """
        self._same_process()
        self._refuse_closed()
        deadline = deadline_after(timeout)
        while True:
            for _ in self._sources:
                self._next_source += 1
                one = self._asked(self._sources[self._next_source % len(self._sources)], 0.0)
                if one is not None:
                    return one
            left = deadline - time.monotonic()
            if left <= 0 or not self._sources:
                return None
            is_whole = len(self._sources) == 1 and left < math.inf
            share = left if is_whole else min(left, _POLL_SECONDS)
            self._next_source += 1
            one = self._asked(self._sources[self._next_source % len(self._sources)], share)
            if one is not None:
                return one

    def consume(self, num_messages: int = 1, timeout: float = 1.0) -> list[ReceivedMessage]:
        """Returns the messages that are received within ``timeout`` seconds (negative: no limit),
        at most ``num_messages``.
        """
        deadline = deadline_after(timeout)
        found: list[ReceivedMessage] = []
        while len(found) < num_messages:
            one = self.poll(max(0.0, deadline - time.monotonic()))
            if one is None:
                break
            found.append(one)
        return found

    def commit(self, message: ReceivedMessage | None = None, *, asynchronous: bool = True) -> None:
        """Commits the offset after ``message``; without one, the stored offsets of each cluster.

        Raises:
            Closed: this consumer was closed; nothing was committed.
            InvalidArgument: the message is of an earlier subscription.
            KafkaException: a cluster did not commit, while the others may have; or there was no
                offset to commit. Answers of the brokers are known only with ``asynchronous=False``.
        """
        sources = self._sources
        if not sources:
            self._refuse_closed()
        if message is not None:
            sources = [one for one in sources if one.client is message.client]
            if not sources:
                raise InvalidArgument(
                    f"message: found one of {message.topic()}, from an earlier subscription; "
                    f"expected one of the present subscription",
                    field="message",
                )
        what = {} if message is None else {"message": message.message}
        failures: list[KafkaException] = []
        for source in sources:
            commit: Any = source.client.commit  # the type stubs allow literal flags only
            try:
                done = commit(asynchronous=asynchronous, **what)
            except KafkaException as error:
                failures.append(error)
            else:
                failures += [KafkaException(one.error) for one in done or () if one.error]
        without = [one for one in failures if one.args[0].code() == _NO_OFFSET]
        if len(failures) > len(without) or (failures and len(without) == len(sources)):
            raise next((one for one in failures if one not in without), failures[0])

    def store_offsets(self, message: ReceivedMessage) -> None:
        """Stores the offset after a message; for ``enable.auto.offset.store=false``."""
        message.client.store_offsets(message=message.message)

    # -- partitions: TopicPartition has a path where Kafka's has a topic -------------------------

    def assignment(self) -> list[TopicPartition]:
        """Returns the partitions that are assigned to this consumer, in all clusters."""
        return [
            one for source in self._sources for one in source.by_path(source.client.assignment())
        ]

    def seek(self, partition: TopicPartition) -> None:
        """Moves an assigned partition to ``partition.offset``, from which ``poll`` continues.

        Raises:
            InvalidArgument: its path was not subscribed to.
            KafkaException: the partition is not assigned, or was not fetched yet: poll first.
        """
        ((source, found),) = self._by_source([partition])
        source.client.seek(*found)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops receiving from these partitions until ``resume``; they stay assigned.

        Raises:
            InvalidArgument: a path was not subscribed to.
        """
        for source, found in self._by_source(partitions):
            source.client.pause(found)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Resumes receiving from paused partitions.

        Raises:
            InvalidArgument: a path was not subscribed to.
        """
        for source, found in self._by_source(partitions):
            source.client.resume(found)

    def position(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Returns the next offset of each partition; -1001 = no message of it was polled.

        Raises:
            InvalidArgument: a path was not subscribed to.
        """
        return [
            one
            for source, found in self._by_source(partitions)
            for one in source.checked(source.client.position(found))
        ]

    def committed(
        self, partitions: Iterable[TopicPartition], timeout: float = 30.0
    ) -> list[TopicPartition]:
        """Returns the committed offset of the group in each partition; -1001 = none.

        Raises:
            InvalidArgument: a path was not subscribed to.
            PermissionDenied, KafkaUnavailable, KafkaRejected: as Kafka answers.
        """
        return [
            one
            for source, found in self._by_source(partitions)
            for one in source.query(found, lambda client: client.committed, timeout)
        ]

    def offsets_for_times(
        self, partitions: Iterable[TopicPartition], timeout: float = 30.0
    ) -> list[TopicPartition]:
        """Returns the first offset of each partition at or after a time; -1 = no message is so new.
        The time is the ``offset`` of each given partition, in Unix milliseconds.

        Raises:
            InvalidArgument: a path was not subscribed to.
            PermissionDenied, KafkaUnavailable, KafkaRejected: as Kafka answers.
        """
        return [
            one
            for source, found in self._by_source(partitions)
            for one in source.query(found, lambda client: client.offsets_for_times, timeout)
        ]

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = 30.0
    ) -> tuple[int, int]:
        """Returns the first offset of a partition, and the offset after its last message.

        Raises:
            InvalidArgument: its path was not subscribed to.
            PermissionDenied, KafkaUnavailable, KafkaRejected: as Kafka answers.
        """
        ((source, (found,)),) = self._by_source([partition])
        try:
            low, high = source.client.get_watermark_offsets(found, timeout)
        except KafkaException as error:
            raise source.error(error.args[0], found.topic) from error
        return low, high

    def _by_source(
        self, partitions: Iterable[TopicPartition]
    ) -> list[tuple[_Source, list[TopicPartition]]]:
        """Returns the partitions with Kafka's topic names, grouped by client."""
        self._same_process()
        places = {
            path: (source, topic)
            for source in self._sources
            for topic, path in source.paths.items()
        }
        found: dict[int, tuple[_Source, list[TopicPartition]]] = {}
        for one in partitions:
            if one.topic not in places:
                subscribed = ", ".join(sorted(places)) or "nothing"
                raise InvalidArgument(
                    f"{one.topic}: found no subscription to this path; subscribed: {subscribed}"
                )
            source, topic = places[one.topic]
            _, listed = found.setdefault(id(source), (source, []))
            listed.append(TopicPartition(topic, one.partition, one.offset))
        return list(found.values())

    def _asked(self, source: _Source, timeout: float) -> ReceivedMessage | None:
        message = source.client.poll(timeout)
        if message is None:
            return None
        paths = source.paths
        path = paths.get(message.topic() or "", "")
        if not path and len(paths) == 1 and message.error() is not None:
            path = next(iter(paths.values()))  # an error of the group: this is its only path
        return ReceivedMessage(message, source.cluster, path, source.client, source.settings)

    def _asked_at(self, path: Path | str) -> float:
        """Returns the time, on the resolver's clock, at which it queried its cached answer about a
        path; infinity = it has none.
        """
        kept = self._resolver.cache.answers.get(str(path))
        return math.inf if kept is None else kept.asked_at

    def _settings_of(self, found: TopicLocation) -> dict[str, str]:
        layers = setting_layers(self._settings, found, Client.CONSUMER)
        return connection(found, self._listener) | for_librdkafka(consumer_settings(layers))

    def _open(self, found: TopicLocation, settings: dict[str, str]) -> _Source:
        try:
            client = KafkaConsumer({**settings, **self._callbacks})
            return _Source(client, found.cluster, settings)
        except KafkaException as error:
            message = kafka_error_text(error)
            raise InvalidArgument(f"{found.path}: Kafka's client reports: {message}") from error

    def _same_process(self) -> None:
        if os.getpid() != self._process:
            raise InvalidArgument(
                "this consumer was made by another process; make one after the fork (librdkafka)"
            )


def _with_paths(source: _Source, callback: Assigned) -> Callable[[object, Any], None]:
    def reported(_client: object, partitions: list[TopicPartition]) -> None:
        callback(source.by_path(partitions))

    return reported
