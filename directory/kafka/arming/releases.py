"""Releases of topics, and the basis on which they hold: a change that may delete data or cannot be
undone is applied in Kafka only to a released topic.

A topic is released by an armed plan that names it, or if kdir made it below an armed entry. A
release holds while that entry is armed, for one topic id, one ``inherited_basis`` and the same
directories from the armed entry down to the topic. If any of these differs, such changes wait for a
plan.

Keys: ``k/named/<entry id>`` and ``k/plan/<plan>``; see ``keys.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from directory.federation import parent_state
from directory.kafka.adoption.pinned_kafka import pinned_text
from directory.kafka.kafka_context import CONFIGS
from directory.namespace.entry import Topic
from directory.namespace.keys import PARENT, kafka_key
from directory.namespace.snapshot import Snapshot
from directory.store.base import Delete, Put, Write
from resolver.path import Path

__all__ = [
    "INHERITED_KEYS",
    "NAMED",
    "Released",
    "Releases",
    "armed_plan",
    "arming_entry",
    "forget_release",
    "inherited_basis",
    "plans_of",
    "release_writes",
    "releases_of",
    "unchanged_basis",
]


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
"""Keys of the facts that determine the inherited policies and grants, and their basis."""


def inherited_basis(snapshot: Snapshot, mount: Path) -> str:
    """Returns the hash of the basis on which Kafka is changed: this store's incarnation, the mount,
    the incarnations of the ancestors' stores, and the pinned Kafka. It changes with a restore, a
    mount and the move of one, a detach and an attach, also of a cluster above, with the first
    update of a parent after any of these, when another Kafka is acknowledged, and when another
    cluster begins or ceases to manage this Kafka; not with policies or grants. No earlier basis
    ever returns.
    """
    ancestors = [
        (one.cluster_id, one.incarnation) for one in parent_state.ancestors(snapshot, now_ms=0)
    ]
    attached = parent_state.attachment_basis(snapshot)
    message = [snapshot.incarnation, str(mount), ancestors, attached, pinned_text(snapshot)]
    return hashlib.sha256(json.dumps(message).encode()).hexdigest()[:_DIGITS]


def unchanged_basis(
    basis: str, latest: Callable[[], Snapshot], mount_at: Callable[[Snapshot], Path]
) -> Callable[[], bool]:
    """Returns a predicate that is True while the basis is this one, for ``check_fresh``."""

    def is_same() -> bool:
        snapshot = latest()
        return inherited_basis(snapshot, mount_at(snapshot)) == basis

    return is_same


NAMED: Final = kafka_key("named/")
_PLAN: Final = kafka_key("plan/")
_DIGITS: Final = 16


class Released(NamedTuple):
    """A topic that is released."""

    place: tuple[int, str]
    """Parent id and name."""
    entry_id: int
    topic_id: bytes


class Releases:
    """Index of the releases of one snapshot; each plan and each directory is read once."""

    def __init__(self, snapshot: Snapshot, mount: Path) -> None:
        self._snapshot = snapshot
        self._basis = inherited_basis(snapshot, mount)
        self._armed_at: dict[str, int] = {}
        self._ways: dict[int, frozenset[int]] = {}
        self._digests: dict[tuple[int, int], str] = {}

    def hold_for(self, parent_id: int, topic: Topic) -> bool:
        """True if a topic of the directory with this id is released."""
        value = self._snapshot.fact(_named_key(topic.entry_id))
        if value is None or not topic.topic_id:
            return False
        topic_id, _, rest = value.decode(errors="replace").partition(" ")
        plan, _, way = rest.partition(" ")
        if topic_id != topic.topic_id.hex():
            return False
        entry_id = self._entry_of(plan)
        if entry_id == topic.entry_id:
            armed = topic.policies.manage.get(CONFIGS, False)
        else:
            armed = bool(entry_id) and entry_id in self._armed_way(parent_id)
        return armed and way == self._digest(parent_id, entry_id)

    def _digest(self, parent_id: int, entry_id: int) -> str:
        if (parent_id, entry_id) not in self._digests:
            self._digests[parent_id, entry_id] = _way(self._snapshot, parent_id, entry_id)
        return self._digests[parent_id, entry_id]

    def _entry_of(self, plan: str) -> int:
        """Returns the id of the entry that a plan armed on the current basis; else 0."""
        if plan not in self._armed_at:
            try:
                reported = json.loads(self._snapshot.fact(_plan_key(plan)) or b"{}")
                is_same = reported["basis"] == self._basis
                self._armed_at[plan] = int(reported["entry"]) if is_same else 0
            except (ValueError, KeyError, TypeError):
                self._armed_at[plan] = 0  # never armed, or a newer version's
        return self._armed_at[plan]

    def _armed_way(self, directory_id: int) -> frozenset[int]:
        """Returns the ids of those of a directory and its ancestors at which configs are armed now.
        Others do not count: a topic may have been moved since below an entry of another plan.
        """
        if directory_id not in self._ways:
            node = self._snapshot.nodes.get(directory_id)
            above = self._armed_way(node.parent_id) if node is not None and node.parent_id else ()
            is_armed = node is not None and node.directory.policies.manage.get(CONFIGS, False)
            self._ways[directory_id] = frozenset((directory_id, *above) if is_armed else above)
        return self._ways[directory_id]


# -- stored records --------------------------------------------------------------------------------


def release_writes(
    snapshot: Snapshot, plan: str, entry_id: int, topics: Iterable[Released]
) -> list[Put]:
    """Returns the writes that record the topics, with their directories, that a plan names. The
    plan arms the entry of this id. The records count once it is armed (``armed_plan``).
    """
    ways: dict[int, str] = {}
    writes = []
    for one in topics:
        parent_id = one.place[0]
        if parent_id not in ways:
            ways[parent_id] = _way(snapshot, parent_id, entry_id)
        value = f"{one.topic_id.hex()} {plan} {ways[parent_id]}"
        writes.append(Put(_named_key(one.entry_id), value.encode()))
    return writes


def _way(snapshot: Snapshot, parent_id: int, entry_id: int) -> str:
    """Returns the hash of the directories from a topic's own up to the armed entry; only of its own
    if the topic itself is armed. A move changes it: a topic moved here was not in the plan.
    """
    ids, here = [parent_id], parent_id
    while here and here != entry_id:
        node = snapshot.nodes.get(here)
        here = node.parent_id if node is not None else 0
        ids.append(here)
    if ids[-1] != entry_id:
        ids = [parent_id]
    text = " ".join(f"{one:x}" for one in ids)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def armed_plan(plan: str, basis: str, entry_id: int) -> Put:
    """Returns the write that records the entry and the basis of an armed plan."""
    return Put(_plan_key(plan), json.dumps({"basis": basis, "entry": entry_id}).encode())


def releases_of(
    snapshot: Snapshot, mount: Path, topics: Iterable[Released], cause: str
) -> Iterator[Write]:
    """Yields the writes that release topics without a reviewed plan, for a named cause: topics
    below an armed entry, while it is armed, on the current basis.
    """
    basis = inherited_basis(snapshot, mount)
    plans: set[str] = set()
    for one in topics:
        topic = snapshot.topic(*one.place)
        entry_id = arming_entry(snapshot, one.place[0], topic) if topic is not None else 0
        if not entry_id or not one.topic_id:
            continue
        # With the basis in the plan's name, these releases never count on another basis.
        plan = f"{cause}-{basis}-{entry_id:x}"
        if plan not in plans:
            plans.add(plan)
            yield armed_plan(plan, basis, entry_id)
        yield from release_writes(snapshot, plan, entry_id, [one])


def arming_entry(snapshot: Snapshot, parent_id: int, topic: Topic) -> int:
    """Returns the id of the nearest entry by which a topic's configs are armed; 0 = none."""
    reported, entry_id, above = topic.policies.manage.get(CONFIGS), topic.entry_id, parent_id
    while reported is None and above:
        node = snapshot.nodes.get(above)
        if node is None:
            return 0
        reported, entry_id = node.directory.policies.manage.get(CONFIGS), above
        above = node.parent_id
    return entry_id if reported else 0


def plans_of(snapshot: Snapshot, entry_ids: Collection[int]) -> Iterator[tuple[bytes, bytes]]:
    """Yields the rows, key and value, of the plans that armed these entries."""
    for key, value in snapshot.facts(_PLAN) if entry_ids else ():
        with suppress(ValueError, KeyError, TypeError):  # else a newer version's
            if int(json.loads(value)["entry"]) in entry_ids:
                yield key, value


def forget_release(entry_id: int) -> Delete:
    """Returns the write that removes the release of a topic whose entry is gone."""
    return Delete(_named_key(entry_id))


def _named_key(entry_id: int) -> bytes:
    return b"%b%016x" % (NAMED, entry_id)


def _plan_key(plan: str) -> bytes:
    return _PLAN + plan.encode()
