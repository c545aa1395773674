"""Differences between store, replica and Kafka, as values; refuses to look for any."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from directory.namespace.entry import Entry

__all__ = ["Between", "Difference", "field_differences"]

_LONGEST: Final = 120


class Between(StrEnum):
    """Pair of sources that disagree (``kdir.v1.Difference.compared``)."""

    STORE_REPLICA = "store-replica"
    STORE = "store"
    """The store's own rows."""
    KAFKA = "kafka"
    """The tree and Kafka."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One disagreement (``kdir.v1.Difference``)."""

    compared: Between
    path_or_key: str
    """The path or, where there is none, the key."""
    field: str
    expected: str
    actual: str
    advice: str = ""


def field_differences(wanted: Entry, found: Entry) -> tuple[str, str]:
    """Returns the differing fields of two entries, for people: ``partitions=24`` and
    ``partitions=12``.
    """
    if type(wanted) is not type(found):
        return wanted.kind.name.lower(), found.kind.name.lower()
    pairs = [
        (one.name, getattr(wanted, one.name), getattr(found, one.name))
        for one in fields(wanted)
        if getattr(wanted, one.name) != getattr(found, one.name)
    ]
    return (
        shortened(", ".join(f"{name}={value}" for name, value, _ in pairs)),
        shortened(", ".join(f"{name}={value}" for name, _, value in pairs)),
    )


def shortened(text: str) -> str:
    """Returns a text cut to the length of a line."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
