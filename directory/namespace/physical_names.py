"""Physical names: what Kafka allows a topic to be called, and which free name a new one gets.

Refuses to know entries and stores: what is taken is asked of a ``NameRegistry``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from typing import Final, Protocol

from directory.namespace.keys import unify
from resolver.errors import (
    InvalidPhysicalName,
    PhysicalNameCollides,
    PhysicalNameRetired,
    PhysicalNameTaken,
)
from resolver.printable import cut_name, cut_shown
from resolver.topic_names import MAX_NAME_LENGTH, why_invalid

__all__ = [
    "INTERNAL_TOPICS",
    "KDIR_TOPICS",
    "MAX_NAME_LENGTH",
    "NameRegistry",
    "check_requested_name",
    "default_physical_name",
    "has_collision",
    "has_collision_chars",
    "has_only_legal_characters",
    "is_protected",
    "is_valid",
    "next_free_name",
    "refuse_protected",
    "unify",
    "why_invalid",
]

INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)
"""Kafka's own topics (``Topic#isInternal``, and the log of KRaft)."""

KDIR_TOPICS: Final = frozenset({"__change_events", "__change_history"})
"""kdir's own topics."""

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
_PROTECTED_UNIFIED: Final = frozenset(unify(name) for name in INTERNAL_TOPICS | KDIR_TOPICS)
_SHOWN: Final = 60


class NameRegistry(Protocol):
    """Registry of the physical names of one cluster."""

    def owner(self, physical_name: str) -> str | None:
        """Returns where the entry with this very name is, as people say it; None = no
        entry has it.
        """

    def colliding(self, physical_name: str) -> str | None:
        """Returns another name in use that Kafka takes for the same (``.`` and ``_``), if there is
        one.
        """

    def retired_for_ms(self, physical_name: str) -> int:
        """Returns for how many more milliseconds the name stays retired; 0 = it is not."""

    def detached(self, physical_name: str) -> str | None:
        """Returns the Kafka topic of this or a colliding name that was left alone when its entry
        went.
        """


def is_valid(name: str) -> bool:
    """True if Kafka takes a topic of this name."""
    return why_invalid(name) is None


def has_only_legal_characters(name: str) -> bool:
    """True if each character is one that topic names may hold (``Topic#containsValidPattern``)."""
    return _LEGAL.fullmatch(name) is not None


def has_collision_chars(name: str) -> bool:
    """True if the name holds ``.`` or ``_``, which are one and the same in Kafka's metric names."""
    return "." in name or "_" in name


def has_collision(name: str, other: str) -> bool:
    """True if Kafka takes the two for the same name (``Topic#hasCollision``)."""
    return unify(name) == unify(other)


def is_protected(name: str) -> bool:
    """True if a topic is Kafka's own or kdir's, or Kafka takes its name for such a one: kdir never
    adopts, arms, changes or deletes it, whoever asks.
    """
    return unify(name) in _PROTECTED_UNIFIED


def refuse_protected(name: str) -> None:
    """Refuses a topic that an entry must not have, whoever asks.

    Raises:
        InvalidPhysicalName
    """
    if is_protected(name):
        raise InvalidPhysicalName(
            f"{cut_shown(name, _SHOWN)} is an internal topic of Kafka or kdir: it is never "
            f"adopted, changed or deleted by kdir, whoever asks",
            physical_name=cut_name(name, _SHOWN),
            rule="internal",
        )


def default_physical_name(relative: Sequence[str]) -> str:
    """Returns the physical name for a path below the mount: its segments joined with ``.``.

    Of a path too long for a name, the last segments that fit: those are what people know it by.
    """
    first = len(relative) - 1
    length = len(relative[first])
    while first > 0 and length + 1 + len(relative[first - 1]) <= MAX_NAME_LENGTH:
        first -= 1
        length += 1 + len(relative[first])
    return ".".join(relative[first:])


def next_free_name(base: str, names: NameRegistry) -> str:
    """Gives ``base`` if nothing prevents it, else the next free name: ``base.2``
    and so on.
    """
    for number in count(1):
        suffix = "" if number == 1 else f".{number}"
        name = base[: MAX_NAME_LENGTH - len(suffix)] + suffix
        if _is_free(name, names):
            return name
    raise AssertionError  # count() does not end


def check_requested_name(name: str, names: NameRegistry, *, base: str) -> None:
    """Checks a name that was asked for explicitly: it is used or refused, never changed.

    ``base`` is the default name of the same topic: a free name is offered from it where the asked
    one cannot be mended by a number.

    Raises:
        InvalidPhysicalName: Kafka has no such name, or it is kept for systems.
        PhysicalNameTaken: an entry has it, or a Kafka topic that was left alone does.
        PhysicalNameCollides: it differs from one in use only in ``.`` and ``_``.
        PhysicalNameRetired: it was deleted less than a day ago.
    """
    if (rule := why_invalid(name)) is not None:
        free = next_free_name(base, names)
        raise InvalidPhysicalName(
            f"Kafka takes no topic named {cut_shown(name, _SHOWN)}: {rule}; '{free}' is free",
            physical_name=cut_name(name, _SHOWN),
            rule=rule,
            free=free,
        )
    if name.startswith("__") or is_protected(name):
        free = next_free_name(base, names)
        raise InvalidPhysicalName(
            f"'{name}' is a name that Kafka and other systems keep for themselves (it begins with "
            f"'__', or collides with such a one); '{free}' is free",
            physical_name=name,
            rule="internal",
            free=free,
        )
    _refuse_used(name, names)


def _refuse_used(name: str, names: NameRegistry) -> None:
    free = next_free_name(name, names)
    if (owner := names.owner(name)) is not None:
        raise PhysicalNameTaken(
            f"'{name}' is the physical name of {owner}; '{free}' is free",
            physical_name=name,
            owner=owner,
            free=free,
        )
    if (left := names.detached(name)) == name:
        raise PhysicalNameTaken(
            f"Kafka still has a topic '{name}', left alone when its entry was removed: adopt it, "
            f"or take '{free}', which is free",
            physical_name=name,
            owner="a detached Kafka topic",
            free=free,
        )
    other = names.colliding(name) or left
    if other is not None:
        raise PhysicalNameCollides(
            f"'{name}' collides with '{other}': Kafka takes '.' and '_' for the same; '{free}' is "
            f"free",
            physical_name=name,
            collides_with=other,
            free=free,
        )
    if (rest_ms := names.retired_for_ms(name)) > 0:
        raise PhysicalNameRetired(
            f"'{name}' was deleted less than a day ago and stays retired for {_hours(rest_ms)} "
            f"more, so that nothing late hits the new topic; '{free}' is free",
            physical_name=name,
            retired_for_seconds=rest_ms // 1000,
            free=free,
        )


def _is_free(name: str, names: NameRegistry) -> bool:
    return (
        is_valid(name)
        # `_/.consumer_offsets` would become a name that Kafka takes for its own.
        and not is_protected(name)
        and names.owner(name) is None
        and names.colliding(name) is None
        and names.detached(name) is None
        and names.retired_for_ms(name) == 0
    )


def _hours(milliseconds: int) -> str:
    minutes = max(1, milliseconds // 60_000)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
