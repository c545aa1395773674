"""The ledger of a Kafka: every topic that was ever there, by id, and what may be done to it.

Nothing is deleted or shortened that nobody asked for: the earliest offset of a topic must not move,
its retention must not shrink and its id must not vanish unless the ledger holds why.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from confluent_kafka import (
    Consumer,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from deploy.local.kafka import KafkaBroker
from tests.soak.journal import Journal

__all__ = ["DAY_MS", "Ledger", "Topic"]

DAY_MS = 24 * 3600 * 1000
MESSAGES = 50
_AGE_MS = 3 * DAY_MS
"""So old are the messages: less than Kafka's default retention, more than what is set short."""
_CALL_SECONDS = 10


@dataclass(slots=True)
class Topic:
    """One topic of Kafka, by its id."""

    topic_id: str
    name: str
    by_hand: bool
    """Made by the soak itself; else by kdir."""
    messages: int = 0
    retention_ms: int = 7 * DAY_MS
    may_go: str = ""
    """Why it may vanish; empty: it may not."""
    may_shorten: str = ""
    """Why its messages may go; empty: they may not."""
    seen_at: float = field(default_factory=time.monotonic)
    is_gone: bool = False
    is_received: bool = False
    """A breach about it was recorded."""


@dataclass(slots=True)
class Ledger:
    """Polled from outside by a client of its own; ``lock`` is held by whoever changes Kafka by hand
    or marks topics.
    """

    broker: KafkaBroker
    journal: Journal
    topics: dict[str, Topic] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    shortened: Callable[[str], bool] = lambda _: False
    """True of the name of a topic of kdir's if a short retention was asked for it."""
    _hands: set[str] = field(default_factory=set)
    _client: AdminClient | None = None

    def _admin(self) -> AdminClient:
        """A client, kept: what it was asked is lost with it."""
        if self._client is None:
            settings: dict[str, str | int | float | bool] = {**self.broker.client()}
            settings |= {"log_level": 0, "socket.timeout.ms": 8000}
            self._client = AdminClient(settings)
        return self._client

    # -- what the soak does by hand --------------------------------------------------------------

    def make(self, name: str, retention_ms: int = 7 * DAY_MS) -> bool:
        """Makes a topic with old messages; False where one is there already.

        The retention is always said: a broker that replays its log after a restart gives a topic
        configs of a removed one of the same name (its ``ConfigurationsDelta`` keeps what was set
        in the part that it replays, though the topic's removal follows there).

        Raises:
            KafkaException
        """
        with self.lock:
            admin = self._admin()
            config = {"retention.ms": str(retention_ms)}
            new = NewTopic(name, num_partitions=1, replication_factor=1, config=config)
            # Whoever finds the name from here on finds the hand's topic, or an earlier one.
            before = self.describe([name]).get(name)
            if before is not None:
                return False
            try:
                admin.create_topics([new], operation_timeout=8)[name].result(_CALL_SECONDS)
            except KafkaException as error:
                if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
                    return False
                raise
            topic_id = self._await_id(name)
            self._hands.add(topic_id)
            self._enter(topic_id, name)
            self.journal.write("hand made", name, id=topic_id, retention_ms=retention_ms)
        self.fill(self.topics[topic_id])
        return True

    def _await_id(self, name: str) -> str:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = self.describe([name]).get(name)
            if found is not None:
                return found
            time.sleep(0.1)
        raise KafkaException(f"{name} did not appear")

    def remove(self, topic: Topic) -> None:
        """Removes a topic by hand.

        Raises:
            KafkaException
        """
        with self.lock:
            topic.may_go = "removed by hand"
            self.journal.write("hand removes", topic.name, id=topic.topic_id)
            self._admin().delete_topics([topic.name])[topic.name].result(_CALL_SECONDS)

    def fill(self, topic: Topic) -> None:
        """Writes old messages, if the topic has none of ours yet."""
        settings = {**self.broker.client(), "log_level": 0, "message.timeout.ms": 8000}
        producer = Producer({**settings, "enable.idempotence": True})
        then = int(time.time() * 1000) - _AGE_MS
        failed: list[object] = []

        def reported(error: object, _: object) -> None:
            if error is not None:
                failed.append(error)

        for number in range(MESSAGES):
            producer.produce(topic.name, b"%d" % number, timestamp=then, on_delivery=reported)
        producer.flush(10)
        if not failed and not len(producer):
            with self.lock:
                topic.messages = MESSAGES

    # -- looking ---------------------------------------------------------------------------------

    def describe(self, names: list[str]) -> dict[str, str]:
        """Returns the ids of those topics that are there.

        Raises:
            KafkaException
        """
        futures = self._admin().describe_topics(TopicCollection(names), request_timeout=8)
        found = {}
        for name, future in futures.items():
            try:
                found[name] = str(future.result(_CALL_SECONDS).topic_id)
            except KafkaException as error:
                if error.args[0].name() not in ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID"):
                    raise
        return found

    def _enter(self, topic_id: str, name: str) -> Topic:
        if topic_id not in self.topics:
            self.topics[topic_id] = Topic(topic_id, name, topic_id in self._hands)
            self.journal.write("topic", name, id=topic_id, by_hand=topic_id in self._hands)
        return self.topics[topic_id]

    def has(self, topic_id: bytes) -> bool:
        """True if a topic is there, by the contract's form of its id."""
        text = base64.b64encode(topic_id).rstrip(b"=").decode()
        with self.lock:
            return text in self.topics and not self.topics[text].is_gone

    def by_name(self, name: str) -> Topic | None:
        """Returns the topic of a name that is there now, as far as was seen."""
        with self.lock:
            found = [one for one in self.topics.values() if one.name == name and not one.is_gone]
            return found[-1] if found else None

    def look(self) -> None:
        """Compares all that is there with what may be.

        Raises:
            KafkaException: the broker did not answer.
        """
        with self.lock:
            metadata = self._admin().list_topics(timeout=8)
            names = [name for name in metadata.topics if not name.startswith("__")]
            ids = self.describe(names) if names else {}
            present = {self._enter(topic_id, name).topic_id for name, topic_id in ids.items()}
            self._look_at_absent(present)
            there = [self.topics[topic_id] for topic_id in present]
            self._look_at_configs(there)
            self._look_at_offsets(there)
            self.journal.check("kafka look")

    def _look_at_absent(self, present: set[str]) -> None:
        for topic in self.topics.values():
            if topic.topic_id in present or topic.is_gone:
                continue
            if topic.name in (again := self.describe([topic.name])) and (
                again[topic.name] == topic.topic_id
            ):
                continue  # metadata of a broker that has just started
            topic.is_gone = True
            if topic.name.startswith("w"):
                # Workers remove what is theirs; that no more went is compared at the end.
                topic.may_go = topic.may_go or "a worker's"
            self.journal.check("kafka vanished")
            self.journal.write("topic gone", topic.name, id=topic.topic_id, why=topic.may_go)
            if not topic.may_go:
                self._reported(
                    topic, "kafka deleted", f"{topic} is gone, and nobody asked for that"
                )

    def _look_at_configs(self, topics: list[Topic]) -> None:
        by_name = {topic.name: topic for topic in topics}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in by_name]
        if not resources:
            return
        futures = self._admin().describe_configs(resources, request_timeout=8)
        for resource, future in futures.items():
            topic = by_name[resource.name]
            try:
                config = future.result(_CALL_SECONDS)
            except KafkaException as error:
                if "UNKNOWN_TOPIC" in error.args[0].name():
                    continue
                raise
            retention_ms = int(config["retention.ms"].value)
            self.journal.check("kafka config")
            shorter = 0 <= retention_ms < (topic.retention_ms if topic.retention_ms >= 0 else 1e18)
            compacts = "compact" in config["cleanup.policy"].value
            if retention_ms != topic.retention_ms:
                self.journal.write("retention", topic.name, id=topic.topic_id, ms=retention_ms)
            wrong = (shorter or compacts) and retention_ms < _AGE_MS
            if wrong and not self._may_shorten(topic):
                self._reported(topic, "kafka shortened", f"{topic}: retention.ms is {retention_ms}")
            topic.retention_ms = retention_ms

    def _may_shorten(self, topic: Topic) -> bool:
        if not topic.by_hand and self.shortened(topic.name):
            topic.may_shorten = topic.may_shorten or "made by kdir, and set short"
        return bool(topic.may_shorten)

    def _look_at_offsets(self, topics: list[Topic]) -> None:
        settings = {**self.broker.client(), "group.id": "soak-ledger", "log_level": 0}
        with closing(Consumer(settings)) as consumer:
            for topic in topics:
                if not topic.messages:
                    continue
                try:
                    low, high = consumer.get_watermark_offsets(
                        TopicPartition(topic.name, 0), timeout=5
                    )
                except KafkaException as error:
                    if "UNKNOWN" in error.args[0].name():
                        continue
                    raise
                if self.describe([topic.name]).get(topic.name) != topic.topic_id:
                    continue
                self.journal.check("kafka offsets")
                if (low > 0 or high < topic.messages) and not self._may_shorten(topic):
                    text = f"{topic}: offsets are {low} to {high}"
                    self._reported(topic, "kafka messages lost", text)

    def _reported(self, topic: Topic, kind: str, text: str) -> None:
        if not topic.is_received:
            topic.is_received = True
            self.journal.breach(kind, text, topic.name)
