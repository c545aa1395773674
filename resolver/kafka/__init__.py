"""Kafka clients that take paths where Kafka's take topic names; needs ``kdir[kafka]``.

What Kafka's client library is not needed for, the rules of its settings, is in
``client_settings.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resolver.kafka.consumer import Consumer, ReceivedMessage
    from resolver.kafka.producer import Producer

__all__ = ["Consumer", "Producer", "ReceivedMessage"]


def __getattr__(name: str) -> object:
    # The directory imports the rules of settings, and must not load a Kafka client for it.
    if name in __all__:
        try:
            from resolver.kafka import consumer, producer
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "confluent_kafka":
                raise
            raise ImportError(
                f"{name} needs the package confluent-kafka: pip install 'kdir[kafka]'"
            ) from None
        return getattr(producer if name == "Producer" else consumer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
