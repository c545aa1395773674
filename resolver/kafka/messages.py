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
    """Message of confluent-kafka with its path; a consumed message, or that of a delivery
    report.
    """

    message: Message
    cluster: str
    """The cluster's name, for people."""
    path: str
    """Canonical path, with all links followed; empty for an error that concerns no topic."""

    def topic(self) -> str:
        """Returns the path, instead of confluent-kafka's topic name."""
        return self.path

    def physical_name(self) -> str | None:
        """Returns the topic's name in Kafka; None for an error that concerns no topic."""
        return self.message.topic()

    def error(self) -> KafkaError | None:
        """Returns the error; None if this is a message."""
        return self.message.error()

    def key(self) -> Any:
        """Returns the key as bytes; None = no key."""
        return self.message.key()

    def value(self) -> Any:
        """Returns the value as bytes; None = a tombstone."""
        return self.message.value()

    def headers(self) -> Any:
        """Returns the headers as pairs of name and bytes; None = no headers."""
        return self.message.headers()

    def partition(self) -> int | None:
        """Returns the partition's number; None if it is not known."""
        return self.message.partition()

    def offset(self) -> int | None:
        """Returns the offset within the partition."""
        return self.message.offset()

    def timestamp(self) -> tuple[int, int]:
        """Returns the type of the timestamp (a ``TIMESTAMP_…``) and Unix milliseconds."""
        return self.message.timestamp()

    def latency(self) -> float | None:
        """Returns the seconds from ``produce`` to delivery; None for a consumed message."""
        return self.message.latency()


@dataclass(frozen=True, slots=True)
class ReceivedMessage(PathMessage):
    """Message that a consumer received, or an error in its place."""

    client: KafkaConsumer = field(repr=False, compare=False)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Settings of ``client``."""

    def explained(self) -> KdirError | None:
        """Returns kdir's error for ``error()``; for a denial its message has the missing right and
        the command that explains it. None if this is a message.
        """
        error = self.message.error()
        if error is None:
            return None
        return client_error(error, self.path or "PATH", self.settings, for_writes=False)
