"""Desired ACLs in Kafka, by resource: those that follow from grants at armed entries; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from directory.access.compiled_grants import CompiledGrants
from directory.access.grant_tree import GrantNode
from directory.access.grants import IMPLIED_BY, Grant, Operation, Permission, ResourceType
from directory.access.principals import ANY_HOST, EVERYBODY
from directory.federation import inheritance
from directory.kafka.admin_contract import (
    OPERATIONS,
    Acl,
    AclBinding,
    PatternType,
    Resource,
    kafka_host,
)
from directory.kafka.applying.desired_configs import directories_at
from directory.kafka.applying.last_applied import ArmedRecord, armed_records
from directory.kafka.kafka_context import ACLS
from directory.namespace.entry import Directory, Provision, Topic
from directory.namespace.grant_rows import SHUT
from directory.namespace.keys import ENTRY
from directory.namespace.protected_topics import is_protected
from directory.namespace.snapshot import Node, Snapshot
from resolver.errors import UnreadableRecord
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
    "untraced_armings",
]

_NAMED: Final = (ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
_BARRING: Final = frozenset({Operation.DESCRIBE, Operation.ALL})
_PASSING: Final = _BARRING | IMPLIED_BY[Operation.DESCRIBE]


class PathLevel(NamedTuple):
    """Level of a path: the grants on one entry."""

    rules: CompiledGrants
    closed: bool = False
    counts: bool = True
    """False: its allows are inherited and a parent has not confirmed them for too long."""


class _Key(NamedTuple):
    """Principal and host of a grant."""

    principal: str
    host: str

    def meet(self, other: _Key) -> _Key | None:
        """Returns the principal and host that both match; None = there are none."""
        principal = _meet(self.principal, other.principal, EVERYBODY)
        host = _meet(self.host, other.host, ANY_HOST)
        return None if principal is None or host is None else _Key(principal, host)


def _meet(one: str, other: str, every: str) -> str | None:
    if one == every:
        return other
    return one if other in {one, every} else None


def are_unreadable(levels: Iterable[PathLevel]) -> bool:
    """True if a level's grants cannot be read: the ACLs of all levels are not known then."""
    return any(level.rules is SHUT for level in levels)


def topic_acls(levels: Sequence[PathLevel]) -> frozenset[Acl]:
    """Returns a topic's ACLs from the levels of its path, outermost first, its own last."""
    return frozenset(one.acl for one in _bindings(levels, (ResourceType.TOPIC,)))


def pattern_acls(levels: Sequence[PathLevel]) -> frozenset[AclBinding]:
    """Returns the ACLs of groups and transactional ids from the levels of a directory's path."""
    return frozenset(_bindings(levels, _NAMED))


class _AllowBelowClosed(NamedTuple):
    """An allow below a closed directory."""

    grant: Grant
    through: tuple[_Key, ...]
    """Principals and hosts that may pass the outermost closed directory."""
    barred: tuple[_Key, ...]
    """Principals and hosts that are denied to pass one of the closed directories."""


def _bindings(levels: Iterable[PathLevel], kinds: Sequence[ResourceType]) -> set[AclBinding]:
    """Returns the ACLs of the grants on resources of these kinds; those of topics have no name."""
    found: set[AclBinding] = set()
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
                found.add(_binding(grant, _key(grant), Permission.DENY, grant.operation))
            elif level.counts and through is not None:
                behind.append(_AllowBelowClosed(grant, through, barred))
            elif level.counts:
                plain.append(grant)
                found.add(_binding(grant, _key(grant), Permission.ALLOW, grant.operation))
        if level.closed:
            through = tuple(passing) if through is None else through
            barred = tuple(barring)
    for one in behind:
        found.update(_acls_through_closed(one, plain))
    return found


def _acls_through_closed(one: _AllowBelowClosed, plain: Sequence[Grant]) -> Iterator[AclBinding]:
    """Yields the ACLs of an allow below a closed directory: the allow for principals that may pass,
    and denies for those of them that are denied to pass. The denies exist in Kafka only: if an
    allow above is for some of the denied principals, Kafka denies more than kdir, never less.
    """
    grant = one.grant
    for passer in dict.fromkeys(one.through):
        who = _key(grant).meet(passer)
        if who is None or any(barred.meet(who) == who for barred in one.barred):
            continue
        yield _binding(grant, who, Permission.ALLOW, grant.operation)
        for barred in one.barred:
            some = barred.meet(who)
            if some is None:
                continue
            for operation in _given(grant):
                if grant.kind is ResourceType.TOPIC and operation is Operation.DESCRIBE:
                    continue  # the deny that bars them denies this, too
                if not any(_gives(allow, grant, some, operation) for allow in plain):
                    yield _binding(grant, some, Permission.DENY, operation)


def _given(grant: Grant) -> frozenset[Operation]:
    """Returns the operations that an allow gives, of those that Kafka authorizes."""
    every = grant.operation is Operation.ALL
    return frozenset(one for one in OPERATIONS[grant.kind] if every or grant.covers(one))


def _gives(allow: Grant, grant: Grant, some: _Key, operation: Operation) -> bool:
    """True if ``allow`` gives the operation to all of ``some``, on all resources of ``grant``."""
    return (
        allow.kind is grant.kind
        and allow.includes(grant)
        and _key(allow).meet(some) == some
        and allow.covers(operation)
    )


def _is_asked(grant: Grant) -> bool:
    """True if Kafka authorizes any operation that the grant covers or implies."""
    return any(grant.covers(one) for one in OPERATIONS[grant.kind])


def _key(grant: Grant) -> _Key:
    return _Key(grant.principal, grant.host)


def _binding(grant: Grant, who: _Key, permission: Permission, operation: Operation) -> AclBinding:
    is_prefix = grant.name.endswith("*") and grant.name != "*"
    pattern = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
    resource = Resource(grant.kind, grant.name[:-1] if is_prefix else grant.name, pattern)
    return AclBinding(resource, Acl(permission, who.principal, operation, kafka_host(who.host)))


@dataclass(frozen=True, slots=True)
class DesiredAcls:
    """ACLs that one resource is to have."""

    acls: frozenset[Acl]
    path: Path
    """Path of the topic; for a group or transactional id, the first armed directory that has it."""
    new: bool = False
    """True: the topic is about to be created, and no client uses it yet."""
    settled: bool = True
    """False: Kafka shows no such topic, or another one of its name; no ACL is added then."""
    known: bool = True
    """False: grants cannot be read; no ACL is added or removed then."""


class ArmedEntry(NamedTuple):
    """An armed entry: the id of a directory or, for a topic, of its parent and the topic's name."""

    directory_id: int
    topic: str = ""


@dataclass(frozen=True, slots=True)
class DesiredAclSet:
    """Desired ACLs at and below all armed entries, or some of them."""

    by_resource: Mapping[Resource, DesiredAcls]
    anything_armed: bool = False
    topics_known: bool = True
    """False: an entry or an armed record cannot be read, so ACLs of topics may be missing here."""
    patterns_known: bool = True
    """False: an entry, an armed record, or grants on the path of an armed entry cannot be read, so
    ACLs of groups and transactional ids may be missing here.
    """


def start_of(snapshot: Snapshot, mark: ArmedRecord) -> ArmedEntry | None:
    """Returns the armed entry of a record, wherever it is now; None = it is gone."""
    if mark.place is None:
        return None if snapshot.path_of(mark.entry_id) is None else ArmedEntry(mark.entry_id)
    located = snapshot.locate(mark.physical_name) if mark.physical_name else None
    if located is None or located.relative is None:
        return None
    if located.topic.entry_id != mark.entry_id:
        return None  # a later topic of that name, which was not armed
    return ArmedEntry(located.parent_id, located.name)


def armed_starts(snapshot: Snapshot) -> Iterator[ArmedEntry]:
    """Yields the existing entries at which ACLs were armed."""
    starts = (start_of(snapshot, mark) for mark in armed_records(snapshot, ACLS))
    return (start for start in starts if start is not None)


def untraced_armings(snapshot: Snapshot, aspect: str) -> list[ArmedRecord]:
    """Returns the armed records whose entry is not found, but may exist: the record cannot be read,
    or an older server wrote it without the topic's physical name.
    """
    return [
        mark
        for mark in armed_records(snapshot, aspect)
        if not mark.is_traceable and start_of(snapshot, mark) is None
    ]


def desired_acls(
    snapshot: Snapshot,
    mount: Path,
    starts: Iterable[ArmedEntry],
    *,
    expired: bool = False,
    assume: int = 0,
    making: frozenset[int] = frozenset(),
) -> DesiredAclSet:
    """Returns the ACLs that armed entries at and below these ones desire.

    Args:
        expired: no parent has confirmed inherited grants for too long: their allows have ended.
        assume: id of an entry that counts as armed in any case; 0 = none.
        making: entry ids of topics that are about to be made, which Kafka does not have.
    """
    inherited = inheritance.inherited_access(snapshot) or ()
    above = tuple(PathLevel(one.rules, one.closed, not expired) for one in inherited)
    walk = _DesiredAclCollector(snapshot, mount, assume, making, above)
    for start in dict.fromkeys(starts):
        walk.go(start)
    return walk.found()


class _Within(NamedTuple):
    """Effective grants directly in a directory."""

    armed: bool
    levels: tuple[PathLevel, ...]
    """Levels of all directories above and its own, outermost first."""
    grant_node: GrantNode | None
    """The grants on it and below it."""
    has_own: bool = False
    """Whether the last level is the directory's own."""


_NOTHING: Final = DesiredAcls(frozenset(), Path(()))


@dataclass(slots=True)
class _DesiredAclCollector:
    snapshot: Snapshot
    mount: Path
    assume: int
    making: frozenset[int]
    above: tuple[PathLevel, ...]
    topics: dict[Resource, DesiredAcls] = field(default_factory=dict)
    patterns: dict[Resource, set[Acl]] = field(default_factory=dict)
    paths: dict[Resource, Path] = field(default_factory=dict)
    topics_known: bool = True
    patterns_known: bool = True
    armed: bool = False
    seen: set[int] = field(default_factory=set)
    directories: dict[int, _Within] = field(default_factory=dict)
    common: dict[int, frozenset[Acl]] = field(default_factory=dict)

    def found(self) -> DesiredAclSet:
        patterns = {
            resource: DesiredAcls(frozenset(acls), self.paths[resource])
            for resource, acls in self.patterns.items()
        }
        # An unreadable record may be of an armed entry, or of a directory of armed entries.
        readable = not any(key.startswith(ENTRY) for key in self.snapshot.unreadable_values)
        readable = readable and not untraced_armings(self.snapshot, ACLS)
        known = self.topics_known and readable, self.patterns_known and readable
        return DesiredAclSet(self.topics | patterns, self.armed, *known)

    def go(self, start: ArmedEntry) -> None:
        for segments, node in directories_at(self.snapshot, self.mount, start.directory_id):
            if start.topic:
                self._topic(segments, node, start.topic, alone=True)
                return
            if node.entry_id not in self.seen:
                self.seen.add(node.entry_id)
                self._directory(segments, node, is_start=node.entry_id == start.directory_id)

    def _within(self, node: Node) -> _Within:
        found = self.directories.get(node.entry_id)
        if found is None:
            outer = self.snapshot.nodes.get(node.parent_id) if node.parent_id else None
            grant_node: GrantNode | None = self.snapshot.grants.root
            if outer is None:
                armed, levels = False, self.above
            else:
                armed, levels, above, _ = self._within(outer)
                grant_node = None if above is None else above.children.get(f"{node.name}/")
            armed = self._is_armed_here(node.directory, armed)
            has_own = grant_node is not None and bool(grant_node.rules or grant_node.closed)
            if grant_node is not None and has_own:
                levels = (*levels, PathLevel(grant_node.rules, grant_node.closed))
            found = self.directories[node.entry_id] = _Within(armed, levels, grant_node, has_own)
        return found

    def _directory(self, segments: tuple[str, ...], node: Node, *, is_start: bool) -> None:
        within = self._within(node)
        outer = self.snapshot.nodes.get(node.parent_id) if node.parent_id else None
        # Otherwise the patterns are those of an armed directory above, and were taken there.
        is_first = is_start or outer is None or not self._within(outer).armed
        self.armed = self.armed or within.armed
        if within.armed and (within.has_own or is_first):
            self._take_patterns(within.levels, Path(segments))
        for name in node.topics:
            self._topic(segments, node, name)

    def _topic(
        self, segments: tuple[str, ...], node: Node, name: str, *, alone: bool = False
    ) -> None:
        try:
            topic = self.snapshot.topic(node.entry_id, name)
        except UnreadableRecord:
            self.topics_known = False
            return
        within = self._within(node)
        if topic is None or not self._is_armed_here(topic, within.armed):
            return
        self.armed = True
        levels = within.levels
        own = within.grant_node.children.get(name) if within.grant_node is not None else None
        if own is not None and own.rules:
            levels = (*levels, PathLevel(own.rules))
            acls = topic_acls(levels)
        else:
            acls = self._common_acls(node.entry_id, levels)
        path = Path((*segments, name))
        if alone or not within.armed:
            self._take_patterns(levels, path)
        desired = _unarmed_acls(topic, making=topic.entry_id in self.making)
        if desired is not None:
            known = not are_unreadable(levels)
            resource = Resource(ResourceType.TOPIC, topic.physical_name)
            self.topics[resource] = replace(desired, acls=acls, path=path, known=known)

    def _common_acls(self, directory_id: int, levels: tuple[PathLevel, ...]) -> frozenset[Acl]:
        """Returns the ACLs of all topics of a directory that have no grants of their own."""
        if directory_id not in self.common:
            self.common[directory_id] = topic_acls(levels)
        return self.common[directory_id]

    def _take_patterns(self, levels: tuple[PathLevel, ...], path: Path) -> None:
        if are_unreadable(levels):
            self.patterns_known = False
            return
        for resource, acl in pattern_acls(levels):
            self.patterns.setdefault(resource, set()).add(acl)
            self.paths[resource] = min(path, self.paths.get(resource, path))

    def _is_armed_here(self, entry: Directory | Topic, above: bool) -> bool:  # noqa: FBT001
        return entry.entry_id == self.assume or entry.policies.manage.get(ACLS, above)


def _unarmed_acls(topic: Topic, *, making: bool) -> DesiredAcls | None:
    """Returns ``DesiredAcls`` for a topic's state, without ACLs; None if kdir adds none to it."""
    if is_protected(topic.physical_name):
        return None
    match topic.provision:
        case Provision.ACTIVE:
            return _NOTHING
        case Provision.PENDING if making or topic.provision_attempt:
            return replace(_NOTHING, new=True)
        case Provision.PENDING | Provision.MISSING | Provision.REPLACED:
            # Some ACLs of a pending topic may exist already while others wait: those stay.
            return replace(_NOTHING, settled=False)
        case _:
            return None
