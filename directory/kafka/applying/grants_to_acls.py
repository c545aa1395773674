"""What ACLs follow from the grants of one path: those with which Kafka decides as kdir does; pure.

Denies go as they are. So do allows, but for those below a closed directory: they hold for who may
pass it, so each becomes one allow for everybody who is allowed to (``access/decision.py``
has the rule). Kafka adds implied operations itself, as kdir does. Refuses to know where a path
leads, and to say what holds where nobody granted anything: Kafka gets the grants, whatever
``access`` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from directory.access.decision import CompiledGrants
from directory.access.grant import IMPLIED_BY, Grant, Operation, Permission, ResourceType
from directory.access.principals import ANY_HOST, EVERYBODY
from directory.kafka.admin_contract import (
    OPERATIONS,
    Acl,
    AclBinding,
    PatternType,
    Resource,
    kafka_host,
)
from directory.namespace.grant_rows import SHUT

__all__ = ["PathLevel", "are_unreadable", "pattern_acls", "topic_acls"]

_NAMED: Final = (ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
_BARRING: Final = frozenset({Operation.DESCRIBE, Operation.ALL})
_PASSING: Final = _BARRING | IMPLIED_BY[Operation.DESCRIBE]


class PathLevel(NamedTuple):
    """What stands on one entry of a path."""

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
    """Returns the ACLs of groups and transactional ids that the levels of a directory's path speak
    of.
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
    """True if Kafka ever asks for what the grant speaks of, implied operations and all."""
    return any(grant.covers(one) for one in OPERATIONS[grant.kind])


def _key(grant: Grant) -> _Key:
    return _Key(grant.principal, grant.host)


def _walk_to(grant: Grant, who: _Key, permission: Permission, operation: Operation) -> _Walked:
    acl = Acl(permission, who.principal, operation, kafka_host(who.host))
    return _Walked(grant.kind, grant.name, acl)
