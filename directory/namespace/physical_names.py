"""Physical names: the names that Kafka allows, the names that are taken in a snapshot, and the free
name that a new topic gets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from typing import Final, Protocol

from directory.namespace.keys import (
    DETACHED,
    detached_key,
    retired_key,
    retired_until_ms,
    unify,
)
from directory.namespace.protected_topics import has_kdir_prefix, is_protected
from directory.namespace.snapshot import Snapshot
from resolver.errors import (
    InvalidPhysicalName,
    PhysicalNameCollides,
    PhysicalNameRetired,
    PhysicalNameTaken,
)
from resolver.path import Path
from resolver.printable import cut_name, cut_shown
from resolver.topic_names import MAX_NAME_LENGTH, why_invalid

__all__ = [
    "MAX_NAME_LENGTH",
    "RETIRED_FOR_MS",
    "NameRegistry",
    "SnapshotNames",
    "check_requested_name",
    "default_physical_name",
    "has_collision",
    "has_collision_chars",
    "has_only_legal_characters",
    "is_valid",
    "next_free_name",
    "unify",
    "why_invalid",
]

RETIRED_FOR_MS: Final = 24 * 3600 * 1000
"""Time for which a deleted physical name is not used again."""

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]*", re.ASCII)
_SHOWN: Final = 60


class NameRegistry(Protocol):
    """Registry of the physical names of one cluster."""

    def owner(self, physical_name: str) -> str | None:
        """Returns the path of the entry with exactly this name, for messages; None = no entry has
        it.
        """

    def colliding(self, physical_name: str) -> str | None:
        """Returns another name in use that Kafka considers the same (``.`` and ``_``), if any."""

    def retired_for_ms(self, physical_name: str) -> int:
        """Returns the milliseconds for which the name stays retired; 0 = it is not."""

    def detached(self, physical_name: str) -> str | None:
        """Returns the name of a Kafka topic with this or a colliding name that was left alone when
        its entry was removed; None = there is none.
        """


class SnapshotNames:
    """Registry of the names in one snapshot."""

    def __init__(self, snapshot: Snapshot, mount: Path, now_ms: int) -> None:
        self._snapshot = snapshot
        self._mount = mount
        self._now_ms = now_ms
        self._used: dict[str, tuple[str, ...]] = {}

    def used_like(self, physical_name: str) -> tuple[str, ...]:
        """Returns ``Snapshot.same_unified``, searched once for each name."""
        found = self._used.get(physical_name)
        if found is None:
            found = self._used[physical_name] = self._snapshot.same_unified(physical_name)
        return found

    def owner(self, physical_name: str) -> str | None:
        if physical_name not in self.used_like(physical_name):
            return None
        located = self._snapshot.locate(physical_name)
        if located is None or located.relative is None:
            return None  # a topic that is being removed counts as retired already
        return str(Path((*self._mount.segments, *located.relative)))

    def colliding(self, physical_name: str) -> str | None:
        others = (n for n in self.used_like(physical_name) if n != physical_name)
        return next(others, None)

    def retired_for_ms(self, physical_name: str) -> int:
        if physical_name in self.used_like(physical_name):
            return RETIRED_FOR_MS
        value = self._snapshot.fact(retired_key(physical_name))
        if value is None:
            return 0
        until_ms = retired_until_ms(value)
        # An unreadable row does not free the name (S21).
        return RETIRED_FOR_MS if until_ms is None else max(0, until_ms - self._now_ms)

    def detached(self, physical_name: str) -> str | None:
        # A colliding name has the same prefix up to the first `.` or `_`.
        head = unify(physical_name).split("_", 1)[0]
        found = (
            key[len(DETACHED) :].decode(errors="replace")
            for key, _ in self._snapshot.facts(detached_key(head))
        )
        colliding = [name for name in found if has_collision(name, physical_name)]
        return physical_name if physical_name in colliding else next(iter(colliding), None)


def is_valid(name: str) -> bool:
    """True if Kafka accepts a topic of this name."""
    return why_invalid(name) is None


def has_only_legal_characters(name: str) -> bool:
    """True if every character is legal in a topic's name (``Topic#containsValidPattern``)."""
    return _LEGAL.fullmatch(name) is not None


def has_collision_chars(name: str) -> bool:
    """True if the name contains ``.`` or ``_``, which Kafka's metric names do not distinguish."""
    return "." in name or "_" in name


def has_collision(name: str, other: str) -> bool:
    """True if Kafka considers two names the same (``Topic#hasCollision``)."""
    return unify(name) == unify(other)


def default_physical_name(relative: Sequence[str]) -> str:
    """Returns the physical name for a path below the mount: its segments joined with ``.``; if that
    is too long for a name, only the last segments that fit.
    """
    first = len(relative) - 1
    length = len(relative[first])
    while first > 0 and length + 1 + len(relative[first - 1]) <= MAX_NAME_LENGTH:
        first -= 1
        length += 1 + len(relative[first])
    return ".".join(relative[first:])


def next_free_name(base: str, names: NameRegistry) -> str:
    """Returns ``base`` if it is free, else the first free name of ``base.2``, ``base.3`` and so on.
    A base that begins like kdir's own topics loses its leading dots and underscores.
    """
    if has_kdir_prefix(base):
        base = base.lstrip("._")  # a number at its end would not help
    for number in count(1):
        suffix = "" if number == 1 else f".{number}"
        name = base[: MAX_NAME_LENGTH - len(suffix)] + suffix
        if _is_free(name, names):
            return name
    raise AssertionError  # count() does not end


def check_requested_name(name: str, names: NameRegistry, *, base: str) -> None:
    """Checks an explicitly requested name, which is used or refused, never changed.

    ``base`` is the default name of the same topic: errors suggest a free name based on it if a
    number after the requested one would not help.

    Raises:
        InvalidPhysicalName: invalid in Kafka, or reserved.
        PhysicalNameTaken: an entry has it, or a Kafka topic that was left alone.
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
            f"more, so that clients of the old topic do not use the new one; '{free}' is free",
            physical_name=name,
            retired_for_seconds=rest_ms // 1000,
            free=free,
        )


def _is_free(name: str, names: NameRegistry) -> bool:
    return (
        is_valid(name)
        # `_/consumer_offsets` would become a name that collides with Kafka's own.
        and not is_protected(name)
        and names.owner(name) is None
        and names.colliding(name) is None
        and names.detached(name) is None
        and names.retired_for_ms(name) == 0
    )


def _hours(milliseconds: int) -> str:
    minutes = max(1, milliseconds // 60_000)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
