"""Keeps the topic ids of confluent-kafka from filling the memory: one object per id.

``describe_topics`` of confluent-kafka (2.13.0 to 2.16.1, the newest) makes a ``Uuid`` for each
topic of each answer and never releases its own reference to it, so that each look at all topics
leaves some 100 bytes a topic until the process ends. The library's C code finds that class by its
name in the module ``confluent_kafka``, each time anew. A class there that returns the same object
for the same id leaves one object per id, however often it is looked at.
"""

from __future__ import annotations

from typing import Any, Final

import confluent_kafka
from confluent_kafka.cimpl import Uuid

__all__ = ["SharedUuid", "share_uuids"]


class _OnePerValue(type):
    """Type of a class that has one object per value, however often it is called."""

    def __init__(cls, *arguments: Any) -> None:
        super().__init__(*arguments)
        cls._by_text: Final[dict[str, Any]] = {}

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        made = super().__call__(*arguments, **named)
        # One step, since several clients read their answers in threads of their own.
        return cls._by_text.setdefault(str(made), made)


class SharedUuid(Uuid, metaclass=_OnePerValue):
    """``Uuid`` with one object per value, which is never freed and cannot be changed."""

    __slots__ = ()


def share_uuids() -> None:
    """Makes confluent-kafka return each topic id as a ``SharedUuid``, in the whole process."""
    confluent_kafka.Uuid = SharedUuid  # type: ignore[misc]
