"""What is inherited, as far as acting on Kafka goes: whether it is known at all, and on whose word.

Refuses to take "not loaded" for "nothing" (P1 to P3).
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

from directory.federation import parent_state
from directory.kafka.pin_and_stop import pinned_text
from directory.namespace.keys import PARENT
from directory.namespace.snapshot import Snapshot
from resolver.path import Path

__all__ = ["INHERITED_KEYS", "basis_without_kafka", "inherited_basis", "why_inherited_missing"]

INHERITED_KEYS: Final = frozenset(
    {
        PARENT,
        parent_state.ATTACHED_KEY,
        parent_state.DETACHED_KEY,
        parent_state.INHERITED_KEY,
        parent_state.FIRST_RECEIPT_KEY,
        parent_state.UNMOUNTED_KEY,
    }
)
"""The facts on which all of it depends."""


def why_inherited_missing(snapshot: Snapshot, *, has_parent: bool) -> str:
    """Returns why nothing may be done that depends on what is inherited, as a sentence; empty = it
    may.

    ``has_parent``: the config names one.
    """
    unmounted = snapshot.fact(parent_state.UNMOUNTED_KEY)
    if unmounted is not None:
        return f"the cluster is unmounted: {unmounted.decode(errors='replace')}"
    known = snapshot.fact(PARENT) is not None
    if (has_parent or known) and not parent_state.is_inherited_received(snapshot):
        return "what the directories above the mount set is not known yet: no parent has sent it"
    return ""


def inherited_basis(snapshot: Snapshot, mount: Path) -> str:
    """Returns what acting on Kafka stands on: this store's life, the mount, the lives of the
    ancestors' stores, and the Kafka that is pinned. It changes with a restore, a mount and a move
    of one, a detach and an attach, also of a cluster above, with the first word that a parent says
    after any of these, with another Kafka that is acknowledged, and where another cluster begins or
    ends to manage this Kafka; not with what anybody sets. It never is again what it was before.
    """
    return _hash([*_message(snapshot, mount), pinned_text(snapshot)])


def basis_without_kafka(snapshot: Snapshot, mount: Path) -> str:
    """Returns the same as older versions kept it: without the Kafka that is pinned."""
    return _hash(_message(snapshot, mount))


def _message(snapshot: Snapshot, mount: Path) -> list[object]:
    ancestors = [
        (one.cluster_id, one.incarnation) for one in parent_state.ancestors(snapshot, now_ms=0)
    ]
    return [snapshot.incarnation, str(mount), ancestors, parent_state.attachment_basis(snapshot)]


def _hash(message: list[object]) -> str:
    return hashlib.sha256(json.dumps(message).encode()).hexdigest()[:16]
