"""Which ACLs are wished in Kafka, by resource: what follows below armed entries; pure.

Refuses to know what Kafka has, and what was pushed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, NamedTuple

from directory.access.grant import ResourceType
from directory.access.grant_tree import GrantNode
from directory.federation import parent_state
from directory.kafka.admin_contract import Acl, Resource
from directory.kafka.applying.grants_to_acls import (
    PathLevel,
    are_unreadable,
    pattern_acls,
    topic_acls,
)
from directory.kafka.applying.last_applied_configs import ArmedRecord, armed_records
from directory.kafka.reconciler_settings import ACLS
from directory.namespace.entry import Directory, Provision, Topic
from directory.namespace.keys import ENTRY
from directory.namespace.physical_names import is_protected
from directory.namespace.snapshot import Node, Snapshot
from resolver.errors import Internal
from resolver.path import Path

__all__ = ["ArmedEntry", "DesiredAclSet", "DesiredAcls", "armed_starts", "desired_acls", "start_of"]


@dataclass(frozen=True, slots=True)
class DesiredAcls:
    """What one resource is to have."""

    acls: frozenset[Acl]
    path: Path
    """Of the topic; of a group or transactional id the first armed directory that wishes it."""
    new: bool = False
    """A topic that is about to be made: nobody uses it yet."""
    settled: bool = True
    """Not while Kafka shows no such topic or another one of that name: nothing is added then."""
    known: bool = True
    """Not where grants cannot be read: nothing is added or removed then."""


class ArmedEntry(NamedTuple):
    """An armed entry: a directory's id, and of a topic its parent's, and its name."""

    directory_id: int
    topic: str = ""


@dataclass(frozen=True, slots=True)
class DesiredAclSet:
    """Of all that is armed, or of a part of it."""

    by_resource: Mapping[Resource, DesiredAcls]
    anything_armed: bool = False
    topics_known: bool = True
    """Not where the record of an entry cannot be read: what is not wished of topics may be wished
    there.
    """
    patterns_known: bool = True
    """Not where grants of an armed directory, or above one, cannot be read: what is not wished of
    groups and transactional ids may be wished there.
    """


def start_of(snapshot: Snapshot, mark: ArmedRecord) -> ArmedEntry | None:
    """Returns where what was armed is now; None = it is gone."""
    if mark.place is None:
        return None if snapshot.path_of(mark.entry_id) is None else ArmedEntry(mark.entry_id)
    located = snapshot.locate(mark.physical_name) if mark.physical_name else None
    if located is None or located.relative is None:
        return None
    return ArmedEntry(located.parent_id, located.name)


def armed_starts(snapshot: Snapshot) -> Iterator[ArmedEntry]:
    """Yields the entries where ACLs were armed, as far as they are still there."""
    for mark in armed_records(snapshot, ACLS):
        start = start_of(snapshot, mark)
        if start is not None:
            yield start


def desired_acls(
    snapshot: Snapshot,
    mount: Path,
    starts: Iterable[ArmedEntry],
    *,
    expired: bool = False,
    assume: int = 0,
    making: frozenset[int] = frozenset(),
) -> DesiredAclSet:
    """Returns what is wished at and below these entries, as far as it is armed.

    Args:
        expired: no parent confirmed for too long what is inherited: its allows have ended.
        assume: the entry of this id counts as armed, whatever it says.
        making: entry ids of topics that are about to be made: Kafka has just shown none.
    """
    walk = _DesiredAclCollector(snapshot, mount, expired=expired, assume=assume, making=making)
    for start in dict.fromkeys(starts):
        walk.go(start)
    return walk.found()


class _Step(NamedTuple):
    """A directory on the way."""

    segments: tuple[str, ...]
    node: Node
    branch: GrantNode | None
    armed: bool
    """What is said above it."""
    levels: tuple[PathLevel, ...]
    """Of what is above it."""
    first: bool
    """Whether what is above it was not looked at for patterns."""


_NOTHING: Final = DesiredAcls(frozenset(), Path(()))


class _DesiredAclCollector:
    def __init__(
        self,
        snapshot: Snapshot,
        mount: Path,
        *,
        expired: bool,
        assume: int,
        making: frozenset[int],
    ) -> None:
        self._snapshot = snapshot
        self._mount = mount
        self._assume = assume
        self._making = making
        inherited = parent_state.inherited_access(snapshot) or ()
        self._above = tuple(PathLevel(one.rules, one.closed, not expired) for one in inherited)
        self._topics: dict[Resource, DesiredAcls] = {}
        self._patterns: dict[Resource, set[Acl]] = {}
        self._paths: dict[Resource, Path] = {}
        self._topics_known = self._patterns_known = True
        self._armed = False
        self._seen: set[int] = set()

    def found(self) -> DesiredAclSet:
        patterns = (
            (resource, DesiredAcls(frozenset(acls), self._paths[resource]))
            for resource, acls in self._patterns.items()
        )
        # A record that cannot be read may be that of an armed entry, and of what stands in it.
        readable = not any(key.startswith(ENTRY) for key in self._snapshot.unreadable_values)
        return DesiredAclSet(
            dict(chain(self._topics.items(), patterns)),
            self._armed,
            self._topics_known and readable,
            self._patterns_known and readable,
        )

    def go(self, start: ArmedEntry) -> None:
        step = self._to(start.directory_id)
        if step is None:
            return
        if start.topic:
            armed, levels, _ = self._entered(step)
            self._topic(step, start.topic, armed, levels, topic_acls(levels), alone=True)
            return
        stack = [step]
        while stack:
            step = stack.pop()
            if step.node.entry_id in self._seen:
                continue
            self._seen.add(step.node.entry_id)
            stack += self._directory(step)

    def _to(self, directory_id: int) -> _Step | None:
        """Returns the way to a directory."""
        way = self._snapshot.path_of(directory_id)
        if way is None:
            return None
        node, branch = self._snapshot.root, self._snapshot.grants.root
        step = _Step(self._mount.segments, node, branch, False, self._above, True)
        for name in way:
            armed, levels, _ = self._entered(step)
            container = step.node.containers.get(name)
            below = (
                self._snapshot.node(container.entry_id)
                if isinstance(container, Directory)
                else None
            )
            if below is None:
                return None
            step = _Step((*step.segments, name), below, _below(step, name), armed, levels, True)
        return step

    def _entered(self, step: _Step) -> tuple[bool, tuple[PathLevel, ...], bool]:
        """Returns whether a directory is armed, the levels down to it, and whether it adds one."""
        armed = self._is_armed_here(step.node.directory, step.armed)
        branch = step.branch
        if branch is None or not (branch.rules or branch.closed):
            return armed, step.levels, False
        return armed, (*step.levels, PathLevel(branch.rules, branch.closed)), True

    def _directory(self, step: _Step) -> Iterator[_Step]:
        armed, levels, has_own = self._entered(step)
        self._armed = self._armed or armed
        if armed and (has_own or step.first):
            self._take_patterns(levels, Path(step.segments))
        common = topic_acls(levels) if armed and len(step.node.topics) else frozenset[Acl]()
        for name in step.node.topics:
            self._topic(step, name, armed, levels, common)
        for name, container in step.node.containers.items():
            if isinstance(container, Directory):
                node = self._snapshot.node(container.entry_id)
                if node is not None:
                    yield _Step(
                        (*step.segments, name), node, _below(step, name), armed, levels, not armed
                    )

    def _topic(
        self,
        step: _Step,
        name: str,
        armed: bool,  # noqa: FBT001
        levels: tuple[PathLevel, ...],
        common: frozenset[Acl],
        *,
        alone: bool = False,
    ) -> None:
        try:
            topic = self._snapshot.topic(step.node.entry_id, name)
        except Internal:
            self._topics_known = False
            return
        if topic is None or not self._is_armed_here(topic, armed):
            return
        self._armed = True
        own = step.branch.fan.get(name) if step.branch is not None else None
        if own is not None and own.rules:
            levels = (*levels, PathLevel(own.rules))
            common = topic_acls(levels)
        path = Path((*step.segments, name))
        if alone or not armed:
            self._take_patterns(levels, path)
        desired = _unarmed_acls(topic, making=topic.entry_id in self._making)
        if desired is not None:
            known = not are_unreadable(levels)
            resource = Resource(ResourceType.TOPIC, topic.physical_name)
            self._topics[resource] = replace(desired, acls=common, path=path, known=known)

    def _take_patterns(self, levels: tuple[PathLevel, ...], path: Path) -> None:
        if are_unreadable(levels):
            self._patterns_known = False
            return
        for resource, acl in pattern_acls(levels):
            self._patterns.setdefault(resource, set()).add(acl)
            known = self._paths.setdefault(resource, path)
            if path < known:
                self._paths[resource] = path

    def _is_armed_here(self, entry: Directory | Topic, above: bool) -> bool:  # noqa: FBT001
        if entry.entry_id == self._assume:
            return True
        return entry.policies.manage.get(ACLS, above)


def _below(step: _Step, name: str) -> GrantNode | None:
    return None if step.branch is None else step.branch.fan.get(f"{name}/")


def _unarmed_acls(topic: Topic, *, making: bool) -> DesiredAcls | None:
    """Returns how a topic stands in Kafka, as a wish of nothing; None where it has no
    ACLs of ours.
    """
    if is_protected(topic.physical_name):
        return None
    match topic.provision:
        case Provision.ACTIVE:
            return _NOTHING
        case Provision.PENDING if making or topic.provision_attempt:
            return replace(_NOTHING, new=True)
        case Provision.PENDING | Provision.MISSING | Provision.REPLACED:
            # Of a pending topic some ACLs may be there already while others wait: they stay.
            return replace(_NOTHING, settled=False)
        case _:
            return None
