"""The public door: ``from kdir import Resolver, Producer, Consumer``; ``kdir.v1`` is the contract.

It imports nothing by itself: each name is loaded when it is first asked for (PEP 562), from
``resolver``, where it stays. ``Producer`` and ``Consumer`` need ``kdir[kafka]``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resolver.client import Resolver, TopicLocation
    from resolver.errors import KdirError
    from resolver.kafka.consumer import Consumer
    from resolver.kafka.messages import PathMessage, ReceivedMessage
    from resolver.kafka.producer import Producer
    from resolver.path import Path

__all__ = [
    "Consumer",
    "KdirError",
    "Path",
    "PathMessage",
    "Producer",
    "ReceivedMessage",
    "Resolver",
    "TopicLocation",
]

_OF_KAFKA = {"Consumer", "PathMessage", "Producer", "ReceivedMessage"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'kdir' has no attribute {name!r}")
    value = getattr(import_module("resolver.kafka" if name in _OF_KAFKA else "resolver"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
