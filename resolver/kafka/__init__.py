"""Kafka clients with paths instead of topic names; needs ``kdir[kafka]``.

``client_settings.py`` has the rules for settings, which need no Kafka client library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resolver.kafka.consumer import Consumer
    from resolver.kafka.messages import PathMessage, ReceivedMessage
    from resolver.kafka.producer import Producer

__all__ = ["Consumer", "PathMessage", "Producer", "ReceivedMessage"]


def __getattr__(name: str) -> object:
    # directory/ imports client_settings.py, and must not load a Kafka client library for it.
    if name in __all__:
        from resolver.extras import missing_extra

        if missing := missing_extra(name, "kafka"):
            raise ImportError(missing)
        from resolver.kafka import consumer, messages, producer

        homes = {"Consumer": consumer, "Producer": producer}
        return getattr(homes.get(name, messages), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
