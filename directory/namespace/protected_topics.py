"""Topics that are never adopted, armed, changed or deleted, by their names: Kafka's own, and those
of kdir's change logs (P10).
"""

from __future__ import annotations

from typing import Final

from directory.namespace.keys import unify
from resolver.errors import InvalidPhysicalName
from resolver.printable import cut_name, cut_shown

__all__ = [
    "HISTORY_TOPIC",
    "INTERNAL_TOPICS",
    "KDIR_TOPICS",
    "STATE_TOPIC",
    "has_kdir_prefix",
    "is_protected",
    "refuse_protected",
]

INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)
"""Kafka's own topics (``Topic#isInternal``, and the log of KRaft)."""

STATE_TOPIC: Final = "__change_events"
"""State topic of the change log, compacted: the newest state of each entry, from which caches are
filled and a lost store is rebuilt.
"""
HISTORY_TOPIC: Final = "__change_history"
"""History topic of the change log: every change, for audit."""
KDIR_TOPICS: Final = frozenset({STATE_TOPIC, HISTORY_TOPIC})
"""kdir's own topics. If several clusters share a Kafka for them, their names end with
``.<cluster id>`` (``ChangeLogConfig.topics``).
"""

_PROTECTED_UNIFIED: Final = frozenset(unify(name) for name in INTERNAL_TOPICS | KDIR_TOPICS)
_PROTECTED_PREFIXES: Final = tuple(f"{unify(name)}_kc-" for name in sorted(KDIR_TOPICS))
_SHOWN: Final = 60


def is_protected(name: str) -> bool:
    """True if a topic is Kafka's own or kdir's, or collides with such a name: kdir never adopts,
    arms, changes or deletes it.
    """
    return unify(name) in _PROTECTED_UNIFIED or has_kdir_prefix(name)


def has_kdir_prefix(name: str) -> bool:
    """True if a name begins like the names of kdir's own topics with a cluster id."""
    return unify(name).startswith(_PROTECTED_PREFIXES)


def refuse_protected(name: str) -> None:
    """Raises an error for a topic that no entry may have.

    Raises:
        InvalidPhysicalName: the topic is Kafka's own or kdir's.
    """
    if is_protected(name):
        raise InvalidPhysicalName(
            f"{cut_shown(name, _SHOWN)} is an internal topic of Kafka or kdir: it is never "
            f"adopted, changed or deleted by kdir, for any caller",
            physical_name=cut_name(name, _SHOWN),
            rule="internal",
        )
