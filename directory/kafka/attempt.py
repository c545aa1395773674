"""What is on record of a CreateTopics request before it is sent, and which topics it accounts for.

Pure. An attempt counts in the life of the store and for the Kafka cluster that it names, and for no
other: a restored backup, a migrated store and another Kafka at the address show topics that it did
not make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from directory.kafka.admin_contract import KafkaTopic, TopicToCreate
from directory.namespace.entry import Topic

__all__ = ["Attempt"]

_FORM = "2"
"""The first word of the stored form. Before it was a random number alone, which names no life."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request to make one topic."""

    number: str
    """Random: no two attempts are equal."""
    incarnation: str
    """The life of the store in which it was recorded."""
    kafka_id: str
    """Kafka's own id of the cluster that was to be asked."""
    partitions: int = 0
    """As asked for; 0 = the broker's default."""
    replication_factor: int = 0

    @classmethod
    def of_desired(
        cls, number: str, incarnation: str, kafka_id: str, desired: TopicToCreate
    ) -> Self:
        """Returns the attempt at what is wished."""
        return cls(number, incarnation, kafka_id, desired.partitions, desired.replication_factor)

    def to_text(self) -> str:
        """Returns the stored form: words, none of which holds a space."""
        numbers = f"{self.partitions} {self.replication_factor}"
        return f"{_FORM} {self.number} {self.incarnation or '-'} {self.kafka_id or '-'} {numbers}"

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """Returns what ``to_text`` stored; None for any other text, such as an older kdir's."""
        form, *message = text.split(" ")
        if form != _FORM or len(message) != 5 or not (message[3] + message[4]).isdigit():
            return None
        number, incarnation, kafka_id, partitions, replicas = message
        return cls(
            number,
            "" if incarnation == "-" else incarnation,
            "" if kafka_id == "-" else kafka_id,
            int(partitions),
            int(replicas),
        )

    @classmethod
    def counting(cls, topic: Topic, incarnation: str, kafka_id: str) -> Self | None:
        """Returns the attempt on record of a topic; None where there is none, or where it is of
        another life of the store or of another Kafka.
        """
        found = cls.from_text(topic.provision_attempt)
        if found is None or (found.incarnation, found.kafka_id) != (incarnation, kafka_id):
            return None
        return found

    def accounts_for(self, seen: KafkaTopic) -> bool:
        """True if a topic is as it was asked for; one that is otherwise was made by somebody else.

        A topic of which Kafka cannot say yet how many partitions it has may still become it.
        """
        if not seen.partitions:
            return True
        return self.partitions in {0, seen.partitions} and self.replication_factor in {
            0,
            seen.replication_factor,
        }
