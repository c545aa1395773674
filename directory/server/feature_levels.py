"""Feature levels: what each allows, what a change needs, and who does not support it yet.

Refuses to ask anybody: it is told of the servers and of the finalized level. A level is raised in
two steps (KIP-37's rolling upgrade; Kafka's own finalized features are KIP-584): every live server
supports it, and somebody said so. What needs it is refused until both are done, so that no server
meets what it does not know. Levels never go down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from directory.namespace.keys import GRANTS as GRANTS_PREFIX
from directory.namespace.keys import HANDED, LARGE_CHANGE, LEVEL
from directory.namespace.snapshot import Snapshot
from directory.store.base import Put, Write
from resolver.errors import LevelNotFinalized

__all__ = [
    "FEATURE_LEVEL",
    "FIRST_LEVEL",
    "GRANTS",
    "LARGE_CHANGES",
    "LEVELS",
    "SEALING",
    "FeatureLevel",
    "finalized_level",
    "highest_supported",
    "level_needed",
    "level_of",
    "level_to_serve",
    "read_level",
    "refuse_unfinalized",
    "refuse_unsupported",
]

FIRST_LEVEL: Final = 1
"""Of stores that say nothing: those made before levels were recorded."""
LARGE_CHANGES: Final = 2
"""Needed to record a large change under ``k/change/``: who is elected next must go on with it."""
SEALING: Final = 2
"""Needed to seal a store while it may have servers: who does not know of seals writes on."""
GRANTS: Final = 3
"""Needed for the first grant: who does not know of grants lets everybody in. Needed, too, to keep
what is inherited in parts: it is for many grants.
"""
_OF_GRANTS: Final = (GRANTS_PREFIX, HANDED)
FEATURE_LEVEL: Final = 3
"""What this version supports."""
_DIGITS: Final = 10
"""A number of so many digits is no level."""


@dataclass(frozen=True, slots=True)
class FeatureLevel:
    """One level; ``allows`` completes "changes that …"."""

    number: int
    name: str
    allows: str


LEVELS: Final[Mapping[int, FeatureLevel]] = MappingProxyType(
    {
        level.number: level
        for level in (
            FeatureLevel(
                1, "first", "are made in one transaction, on a store of one or more servers"
            ),
            FeatureLevel(
                2, "large-changes", "are recorded and made in steps; sealing and moving a store"
            ),
            FeatureLevel(3, "grants", "say who may do what"),
        )
    }
)
"""Every level that this version knows, by number."""


def read_level(value: bytes | None) -> int | None:
    """Returns the finalized level that a store says; None: it cannot be read."""
    if value is None:
        return FIRST_LEVEL
    is_number = value.isdigit() and len(value) < _DIGITS
    return int(value) or None if is_number else None


def level_of(value: bytes | None) -> int:
    """Returns the level that changes may use; what cannot be read allows nothing new."""
    return read_level(value) or FIRST_LEVEL


def level_to_serve(value: bytes | None) -> int:
    """Returns the level that a server must support; where it cannot be read, the highest that is
    known.
    """
    return read_level(value) or FEATURE_LEVEL


def finalized_level(snapshot: Snapshot) -> int | None:
    """Returns the level that changes may use by now; None: it cannot be read."""
    return read_level(snapshot.fact(LEVEL))


def level_needed(writes: Iterable[Write]) -> int:
    """Returns the lowest level at which every server of a cluster can deal with these writes."""
    writes = tuple(writes)
    if any(isinstance(one, Put) and one.key.startswith(_OF_GRANTS) for one in writes):
        return GRANTS
    if any(isinstance(one, Put) and one.key.startswith(LARGE_CHANGE) for one in writes):
        return LARGE_CHANGES
    return FIRST_LEVEL


def highest_supported(servers: Mapping[str, int]) -> int:
    """Returns the highest level that all of these servers, by id, support; 1 without any."""
    return min(servers.values(), default=FIRST_LEVEL)


def refuse_unfinalized(needed: int, finalized: int | None, servers: Mapping[str, int]) -> None:
    """Lets only those changes pass that the finalized level allows; None: it cannot be read.

    Raises:
        LevelNotFinalized: naming the servers that do not support it; where all do, what to say.
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


def refuse_unsupported(level: int, servers: Mapping[str, int]) -> None:
    """Lets a level be finalized only where every live server supports it.

    Raises:
        LevelNotFinalized: naming those that do not.
    """
    lacking = _servers_below_level(level, servers)
    if lacking:
        raise LevelNotFinalized(
            f"feature level {level} cannot be finalized: {_lacking_servers_text(lacking, servers)}",
            needed=level,
            lacking=" ".join(lacking),
        )


def _servers_below_level(level: int, servers: Mapping[str, int]) -> list[str]:
    return sorted(server for server, supported in servers.items() if supported < level)


def _lacking_servers_text(lacking: Iterable[str], servers: Mapping[str, int]) -> str:
    return ", ".join(f"server {server} supports {servers[server]}" for server in lacking)
