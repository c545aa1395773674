"""Which ACLs are desired in Kafka, by resource: what follows below armed entries; pure.

Refuses to know what Kafka has, and what was pushed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, NamedTuple

from directory.access.decision import CompiledGrants
from directory.access.grant_tree import GrantNode
from directory.access.grants import IMPLIED_BY, Grant, Operation, Permission, ResourceType
from directory.access.principals import ANY_HOST, EVERYBODY
from directory.federation import parent_state
from directory.kafka.admin_contract import (
    OPERATIONS,
    Acl,
    AclBinding,
    PatternType,
    Resource,
    kafka_host,
)
from directory.kafka.applying.last_applied import ArmedRecord, armed_records
from directory.kafka.reconciler_settings import ACLS
from directory.namespace.entry import Directory, Provision, Topic
from directory.namespace.grant_rows import SHUT
from directory.namespace.keys import ENTRY
from directory.namespace.physical_names import is_protected
from directory.namespace.snapshot import Node, Snapshot
from resolver.errors import Internal
from resolver.path import Path

__all__ = [
    "ArmedEntry",
    "DesiredAclSet",
    "DesiredAcls",
    "PathLevel",
    "are_unreadable",
    "armed_starts",
    "desired_acls",
    "pattern_acls",
    "start_of",
    "topic_acls",
]


_NAMED: Final = (ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
_BARRING: Final = frozenset({Operation.DESCRIBE, Operation.ALL})
_PASSING: Final = _BARRING | IMPLIED_BY[Operation.DESCRIBE]


class PathLevel(NamedTuple):
    """Level of a path: the grants on one entry."""

    rules: CompiledGrants
    closed: bool = False
    counts: bool = True
    """Whether its allows do; not those from above that no parent confirmed for too long."""


class _Key(NamedTuple):
    """Whom a grant is about."""

    principal: str
    host: str

    def meet(self, other: _Key) -> _Key | None:
        """Returns who is meant by both."""
        principal = _meet(self.principal, other.principal, EVERYBODY)
        host = _meet(self.host, other.host, ANY_HOST)
        return None if principal is None or host is None else _Key(principal, host)


def _meet(one: str, other: str, every: str) -> str | None:
    if one == every:
        return other
    return one if other in {one, every} else None


def are_unreadable(levels: Iterable[PathLevel]) -> bool:
    """True if the grants of one cannot be read: what follows from all is not known then."""
    return any(level.rules is SHUT for level in levels)


def topic_acls(levels: Sequence[PathLevel]) -> frozenset[Acl]:
    """Returns the ACLs of a topic, of the levels of its path, outermost first, its own the last."""
    found = _walked(levels, (ResourceType.TOPIC,))
    return frozenset(acl for _, _, acl in found)


def pattern_acls(levels: Sequence[PathLevel]) -> frozenset[AclBinding]:
    """Returns the ACLs of groups and transactional ids that the levels of a directory's path
    contain.
    """
    found = _walked(levels, _NAMED)
    return frozenset(AclBinding(_resource(kind, name), acl) for kind, name, acl in found)


def _resource(kind: ResourceType, name: str) -> Resource:
    if name.endswith("*") and name != "*":
        return Resource(kind, name[:-1], PatternType.PREFIXED)
    return Resource(kind, name)


class _Walked(NamedTuple):
    kind: ResourceType
    name: str
    acl: Acl


class _AllowBelowClosed(NamedTuple):
    """An allow below a closed directory."""

    grant: Grant
    through: tuple[_Key, ...]
    """Who is allowed to pass the outermost closed one."""
    barred: tuple[_Key, ...]
    """Who is denied to pass one of them."""


def _walked(levels: Iterable[PathLevel], kinds: Sequence[ResourceType]) -> set[_Walked]:
    found: set[_Walked] = set()
    plain: list[Grant] = []
    behind: list[_AllowBelowClosed] = []
    passing: list[_Key] = []
    barring: list[_Key] = []
    through: tuple[_Key, ...] | None = None
    barred: tuple[_Key, ...] = ()
    for level in levels:
        for grant in level.rules.grants:
            is_deny = grant.permission is Permission.DENY
            if grant.kind is ResourceType.TOPIC:
                if is_deny and grant.operation in _BARRING:
                    barring.append(_key(grant))
                elif not is_deny and level.counts and grant.operation in _PASSING:
                    passing.append(_key(grant))
            if grant.kind not in kinds or not _is_asked(grant):
                continue
            if is_deny:
                found.add(_walk_to(grant, _key(grant), Permission.DENY, grant.operation))
            elif level.counts and through is None:
                plain.append(grant)
                found.add(_walk_to(grant, _key(grant), Permission.ALLOW, grant.operation))
            elif level.counts and through is not None:
                behind.append(_AllowBelowClosed(grant, through, barred))
        if level.closed:
            through = tuple(passing) if through is None else through
            barred = tuple(barring)
    for one in behind:
        found.update(_acls_through_closed(one, plain))
    return found


def _acls_through_closed(one: _AllowBelowClosed, plain: Sequence[Grant]) -> Iterator[_Walked]:
    """Yields what an allow below a closed directory comes to: it, for those who may pass; and,
    where it is for more than may pass, a deny for the others. That one is Kafka's only: where it
    would meet an allow of a directory above for some of them, Kafka denies more than kdir does,
    never less.
    """
    grant = one.grant
    for passer in dict.fromkeys(one.through):
        who = _key(grant).meet(passer)
        if who is None or any(barred.meet(who) == who for barred in one.barred):
            continue
        yield _walk_to(grant, who, Permission.ALLOW, grant.operation)
        for barred in one.barred:
            some = barred.meet(who)
            if some is None:
                continue
            for operation in _given(grant):
                if grant.kind is ResourceType.TOPIC and operation is Operation.DESCRIBE:
                    continue  # what bars them denies that
                if not any(_gives(allow, grant, some, operation) for allow in plain):
                    yield _walk_to(grant, some, Permission.DENY, operation)


def _given(grant: Grant) -> frozenset[Operation]:
    """Returns the operations that an allow gives, as far as Kafka asks for them."""
    asked = OPERATIONS[grant.kind]
    if grant.operation is Operation.ALL:
        return asked
    return frozenset(one for one in asked if grant.covers(one))


def _gives(allow: Grant, grant: Grant, some: _Key, operation: Operation) -> bool:
    """True if another allow gives an operation to all of these, wherever this one does."""
    return (
        allow.kind is grant.kind
        and allow.includes(grant)
        and _key(allow).meet(some) == some
        and allow.covers(operation)
    )


def _is_asked(grant: Grant) -> bool:
    """True if Kafka ever asks for what the grant covers, implied operations and all."""
    return any(grant.covers(one) for one in OPERATIONS[grant.kind])


def _key(grant: Grant) -> _Key:
    return _Key(grant.principal, grant.host)


def _walk_to(grant: Grant, who: _Key, permission: Permission, operation: Operation) -> _Walked:
    acl = Acl(permission, who.principal, operation, kafka_host(who.host))
    return _Walked(grant.kind, grant.name, acl)


@dataclass(frozen=True, slots=True)
class DesiredAcls:
    """ACLs that one resource is to have."""

    acls: frozenset[Acl]
    path: Path
    """Of the topic; of a group or transactional id the first armed directory that desires it."""
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
    """Desired ACLs of all that is armed, or of a part of it."""

    by_resource: Mapping[Resource, DesiredAcls]
    anything_armed: bool = False
    topics_known: bool = True
    """Not where the record of an entry cannot be read: what is not desired of topics may be desired
    there.
    """
    patterns_known: bool = True
    """Not where grants of an armed directory, or above one, cannot be read: what is not desired of
    groups and transactional ids may be desired there.
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
    """Returns what is desired at and below these entries, as far as it is armed.

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
    grant_node: GrantNode | None
    armed: bool
    """What is set above it."""
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
        # A record that cannot be read may be that of an armed entry, and of the entries in it.
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
        node, grant_node = self._snapshot.root, self._snapshot.grants.root
        step = _Step(self._mount.segments, node, grant_node, False, self._above, True)
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
        grant_node = step.grant_node
        if grant_node is None or not (grant_node.rules or grant_node.closed):
            return armed, step.levels, False
        return armed, (*step.levels, PathLevel(grant_node.rules, grant_node.closed)), True

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
        own = step.grant_node.children.get(name) if step.grant_node is not None else None
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
    return None if step.grant_node is None else step.grant_node.children.get(f"{name}/")


def _unarmed_acls(topic: Topic, *, making: bool) -> DesiredAcls | None:
    """Returns the state of a topic in Kafka, where nothing is desired; None where it has no
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
