"""Feature levels: the list of them, the level that a change needs, and the servers that do not
support it yet.

A level is raised in two steps (KIP-37's rolling upgrade; Kafka's own finalized features are
KIP-584): every live server supports it, and an operator finalizes it. Changes that need it are
refused until then, so that no server has to read rows that it does not support. Levels never go
down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from directory.namespace.keys import CHANGE_LOG, LEVEL
from directory.namespace.snapshot import Snapshot
from directory.store.base import Put, Write
from resolver.errors import InvalidArgument, LevelNotFinalized

__all__ = [
    "CHANGE_LOG_LEVEL",
    "FIRST_LEVEL",
    "LEVELS",
    "FeatureLevel",
    "Levels",
    "finalized_level",
    "highest_supported",
    "level_needed",
    "level_to_finalize",
    "read_level",
    "refuse_unfinalized",
]

FIRST_LEVEL: Final = 1
"""Level of the first release, and of a store without a recorded level."""
_DIGITS: Final = 10
"""A number with this many digits or more is not a level."""


@dataclass(frozen=True, slots=True)
class FeatureLevel:
    """One feature level."""

    number: int
    name: str
    key_prefixes: tuple[bytes, ...] = ()
    """Rows with these prefixes can be written only if the level is finalized."""


Levels = Mapping[int, FeatureLevel]
"""Every level that a release supports, by number, from the first."""

CHANGE_LOG_LEVEL: Final = 2

LEVELS: Final[Levels] = MappingProxyType(
    {
        1: FeatureLevel(1, "first"),
        CHANGE_LOG_LEVEL: FeatureLevel(CHANGE_LOG_LEVEL, "change-log", (CHANGE_LOG,)),
    }
)
"""Levels of this release. Tests of the mechanism define their own."""


def read_level(value: bytes | None) -> int | None:
    """Returns the finalized level from the store's value; None = it cannot be read."""
    if value is None:
        return FIRST_LEVEL
    is_number = value.isdigit() and len(value) < _DIGITS
    return int(value) or None if is_number else None


def finalized_level(snapshot: Snapshot) -> int | None:
    """Returns the level that changes may use; None = it cannot be read."""
    return read_level(snapshot.fact(LEVEL))


def level_needed(writes: Iterable[Write], levels: Levels = LEVELS) -> int:
    """Returns the lowest level at which every server of a cluster can read these writes."""
    keys = [one.key for one in writes if isinstance(one, Put)]
    return max(
        (
            level.number
            for level in levels.values()
            if level.key_prefixes and any(key.startswith(level.key_prefixes) for key in keys)
        ),
        default=FIRST_LEVEL,
    )


def highest_supported(servers: Mapping[str, int]) -> int:
    """Returns the highest level that all of these servers (levels by id) support; 1 without any."""
    return min(servers.values(), default=FIRST_LEVEL)


def refuse_unfinalized(needed: int, finalized: int | None, servers: Mapping[str, int]) -> None:
    """Checks that the finalized level (None = unreadable) allows changes that need a level.

    Raises:
        LevelNotFinalized: names the servers that do not support the level; if all do, the command
            that finalizes it.
    """
    if needed <= (finalized or FIRST_LEVEL):
        return
    lacking = _servers_below_level(needed, servers)
    found = (
        "which one is finalized cannot be read"
        if finalized is None
        else f"{finalized} is finalized"
    )
    if lacking:
        why = f": {_lacking_servers_text(lacking, servers)}"
    else:
        why = "; every live server supports it: kdir features finalize"
    raise LevelNotFinalized(
        f"this needs feature level {needed}, and {found}{why}",
        needed=needed,
        finalized=finalized or 0,
        lacking=" ".join(lacking),
    )


def level_to_finalize(
    asked: int, finalized: int | None, servers: Mapping[str, int], levels: Levels = LEVELS
) -> int:
    """Returns the level to which ``kdir features finalize`` raises the cluster's.

    Args:
        asked: requested level; 0 = the highest that every live server supports.
        finalized: the current level; None = it cannot be read.
        servers: levels of the live servers by id.

    Raises:
        InvalidArgument: an unknown level, or lower than the finalized one.
        LevelNotFinalized: names the servers that do not support it.
    """
    supported = highest_supported(servers)
    if asked and asked not in levels:
        raise InvalidArgument(
            f"level: found {asked}; this server supports {FIRST_LEVEL} to {max(levels)}",
            field="level",
        )
    if finalized is None and asked and asked < supported:
        # Each of these servers supports the unreadable level; a lower one might not suffice.
        raise InvalidArgument(
            f"level: found {asked}; the finalized level cannot be read; expected "
            f"{supported}, which is not lower than any finalized level",
            field="level",
        )
    if finalized is not None and asked and asked < finalized:
        raise InvalidArgument(
            f"level: found {asked}, and {finalized} is finalized; levels never go down",
            field="level",
        )
    level = asked or max(finalized or FIRST_LEVEL, supported)
    lacking = _servers_below_level(level, servers)
    if lacking:
        raise LevelNotFinalized(
            f"feature level {level} cannot be finalized: {_lacking_servers_text(lacking, servers)}",
            needed=level,
            lacking=" ".join(lacking),
        )
    return level


def _servers_below_level(level: int, servers: Mapping[str, int]) -> list[str]:
    return sorted(server for server, supported in servers.items() if supported < level)


def _lacking_servers_text(lacking: Iterable[str], servers: Mapping[str, int]) -> str:
    return ", ".join(f"server {server} supports {servers[server]}" for server in lacking)
