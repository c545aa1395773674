"""Kafka messages with the path that they were produced to or consumed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from resolver.kafka.client_errors import client_error

if TYPE_CHECKING:
    from confluent_kafka import Consumer as KafkaConsumer
    from confluent_kafka import KafkaError, Message

    from resolver.errors import KdirError

__all__ = ["PathMessage", "ReceivedMessage"]


@dataclass(frozen=True, slots=True)
class PathMessage:
    """Message of confluent-kafka, with its path: of a delivery report, or consumed."""

    message: Message
    cluster: str
    """The cluster's name, for people."""
    path: str
    """Empty for an error that is no topic's."""

    def topic(self) -> str:
        """Returns the path, as everywhere where Kafka's clients have a topic."""
        return self.path

    def physical_name(self) -> str | None:
        """Returns the topic's name in Kafka; None for an error that is no topic's."""
        return self.message.topic()

    def error(self) -> KafkaError | None:
        """Returns the error; None: this is a message."""
        return self.message.error()

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

    def latency(self) -> float | None:
        """Returns the seconds from produce to delivery; None for what was consumed."""
        return self.message.latency()


@dataclass(frozen=True, slots=True)
class ReceivedMessage(PathMessage):
    """Message that a consumer received, or what went wrong on the way to one."""

    client: KafkaConsumer = field(repr=False, compare=False)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Of the client."""

    def explained(self) -> KdirError | None:
        """Returns the error; where Kafka denied it, with the right that is missing and how to ask
        for the reason. None: this is a message.
        """
        error = self.message.error()
        if error is None:
            return None
        return client_error(error, self.path or "PATH", self.settings, for_writes=False)
