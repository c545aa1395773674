"""What is inherited, as far as acting on Kafka goes: whether it is known at all, and on whose word.

Refuses to take "not loaded" for "nothing" (P1 to P3).
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

from directory.federation import facts
from directory.kafka.pin_and_stop import pinned_words
from directory.namespace.keys import PARENT
from directory.namespace.snapshot import Snapshot
from resolver.path import Path

__all__ = ["WORDS_FROM_ABOVE", "basis_of", "basis_without_kafka", "missing_word"]

WORDS_FROM_ABOVE: Final = frozenset(
    {
        PARENT,
        facts.ATTACHED_KEY,
        facts.DETACHED_KEY,
        facts.INHERITED_KEY,
        facts.TOLD_KEY,
        facts.UNMOUNTED_KEY,
    }
)
"""The facts on which all of it depends."""


def missing_word(snapshot: Snapshot, *, has_parent: bool) -> str:
    """Why nothing may be done that depends on what is inherited, as a sentence; empty = it may.

    ``has_parent``: the config names one.
    """
    unmounted = snapshot.fact(facts.UNMOUNTED_KEY)
    if unmounted is not None:
        return f"the cluster is unmounted: {unmounted.decode(errors='replace')}"
    known = snapshot.fact(PARENT) is not None
    if (has_parent or known) and not facts.is_told(snapshot):
        return "what the directories above the mount set is not known yet: no parent has told"
    return ""


def basis_of(snapshot: Snapshot, mount: Path) -> str:
    """What acting on Kafka stands on: this store's life, the mount, the lives of the ancestors'
    stores, and the Kafka that is pinned. It changes with a restore, a mount and a move of one, a
    detach and an attach, also of a cluster above, with the first word that a parent says after any
    of these, with another Kafka that is acknowledged, and where another cluster begins or ends to
    manage this Kafka; not with what anybody sets. It never is again what it was before.
    """
    return _hash([*_words(snapshot, mount), pinned_words(snapshot)])


def basis_without_kafka(snapshot: Snapshot, mount: Path) -> str:
    """The same as older versions kept it: without the Kafka that is pinned."""
    return _hash(_words(snapshot, mount))


def _words(snapshot: Snapshot, mount: Path) -> list[object]:
    ancestors = [(one.cluster_id, one.incarnation) for one in facts.ancestors(snapshot, now_ms=0)]
    return [snapshot.incarnation, str(mount), ancestors, facts.since_of(snapshot)]


def _hash(words: list[object]) -> str:
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]
