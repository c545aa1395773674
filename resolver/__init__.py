"""Public interface of the client library; imports nothing by itself.

``from resolver import Resolver`` loads the client and gRPC at that moment, while ``import
resolver.errors`` or ``resolver.path`` alone cost next to nothing (PEP 562).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resolver.client import Resolver, TopicLocation
    from resolver.errors import KdirError
    from resolver.path import Path

__all__ = ["KdirError", "Path", "Resolver", "TopicLocation"]

_HOMES = {
    "KdirError": "resolver.errors",
    "Path": "resolver.path",
    "Resolver": "resolver.client",
    "TopicLocation": "resolver.client",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'resolver' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
