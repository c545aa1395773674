"""Waits until a Kafka producer's messages are delivered, and each delivery is told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException

if TYPE_CHECKING:
    from confluent_kafka import Producer

__all__ = ["flush_deliveries"]

_SLICE_SECONDS: Final = 0.1
"""confluent-kafka serves a longer ``flush`` in several turns. An error that ends the producer is
raised by the turn that hears of it, and one more turn would lose what that one had to tell."""


def flush_deliveries(client: Producer, seconds: float) -> int:
    """Returns how many messages are left after at most so many seconds.

    Raises:
        KafkaException: the client can do nothing more; what it had to tell has been told.
    """
    deadline = time.monotonic() + seconds
    ended: KafkaException | None = None
    while True:
        left = deadline - time.monotonic()
        try:
            count = client.flush(max(0.0, min(left, _SLICE_SECONDS)))
        except KafkaException as error:
            ended, count = ended or error, len(client)
        if not count or left <= 0:
            break
    if ended is not None:
        raise ended
    return count
