"""What tests of ACLs have in common: grants as people give them, and ACLs as Kafka has them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from directory.access.grants import Grant, Operation, Permission, ResourceType
from directory.kafka.admin_contract import (
    Acl,
    AclBinding,
    AlreadyDone,
    KafkaAdmin,
    ObservedAcls,
    Outcome,
    PatternType,
    Resource,
    Still,
    Succeeded,
    always,
)
from directory.kafka.arming.arming import ArmingPlan, ArmingResult
from directory.namespace.command import AddGrants, RemoveGrants, UpdateEntry
from directory.namespace.entry import Kind
from tests.support.reconciler import MOUNT, World

__all__ = [
    "FakeAcls",
    "acl",
    "arm",
    "disarm",
    "grant",
    "grant_of",
    "kafka_allows",
    "on",
    "plan",
    "planned",
    "revoke",
    "shown",
]

_KINDS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}


def grant_of(arguments: str) -> Grant:
    """Returns the grant that a text describes, such as ``allow alice read group search-*``, or
    ``deny * all from 10.0.0.1`` for one host. Without a resource it is about the topic itself.
    """
    permission, who, operation, *rest = arguments.split()
    host = "*"
    if "from" in rest:
        host = rest[rest.index("from") + 1]
        rest = rest[: rest.index("from")]
    kind, name = rest or ("topic", "")
    return Grant.from_fields(
        f"User:{who}",
        host,
        Operation.parse(operation),
        Permission.parse(permission),
        _KINDS[kind],
        name,
    )


def grant(here: World, path: str, *arguments: str, kind: Kind | None = None) -> None:
    """Adds grants as ``kdir grant`` does."""
    where = MOUNT.join(path.split("/")) if path else MOUNT
    here.execute(AddGrants(path=where, grants=tuple(map(grant_of, arguments)), kind=kind))


def revoke(here: World, path: str, *arguments: str, kind: Kind | None = None) -> None:
    """Removes grants as ``kdir revoke`` does."""
    where = MOUNT.join(path.split("/")) if path else MOUNT
    here.execute(RemoveGrants(path=where, grants=tuple(map(grant_of, arguments)), kind=kind))


def acl(arguments: str) -> Acl:
    """Returns the ACL that a text describes, as in ``grant_of``."""
    found = grant_of(arguments)
    return Acl(found.permission, found.principal, found.operation, found.host)


def on(resource: str, *arguments: str) -> set[AclBinding]:
    """Returns ACLs on a resource, such as ``topic a.b`` or, by prefix, ``group search-*``."""
    kind, _, name = resource.partition(" ")
    pattern = PatternType.PREFIXED if name.endswith("*") and name != "*" else PatternType.LITERAL
    place = Resource(_KINDS[kind], name[:-1] if pattern is PatternType.PREFIXED else name, pattern)
    return {AclBinding(place, acl(one)) for one in arguments}


def plan(here: World, path: str = "", *, takeover: bool = False) -> ArmingPlan:
    """Plans an arming as ``kdir arm PATH --aspect acls`` does."""
    where = MOUNT.join(path.split("/")) if path else MOUNT
    return here.reconciler.arming_service.plan(where, "acls", takeover=takeover)


def planned(here: World, path: str = "", *, takeover: bool = False) -> list[tuple[str, str]]:
    """Returns the calls of the plan: operation and binding."""
    calls = plan(here, path, takeover=takeover).calls
    return [(one.operation, f"{one.resource}: {one.key}") for one in calls]


def arm(here: World, path: str = "", *, takeover: bool = False) -> ArmingResult:
    """Arms ACLs by a plan that it reads first, while this thread runs the reconciler's rounds."""
    where = MOUNT.join(path.split("/")) if path else MOUNT
    read = plan(here, path, takeover=takeover)
    found: list[ArmingResult] = []
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            found.append(
                here.reconciler.arming_service.arm(
                    where, "acls", read.plan, takeover=takeover, timeout_seconds=20
                )
            )
        except BaseException as error:  # noqa: BLE001 - the test is to see it
            failed.append(error)

    asks = threading.Thread(target=ask)
    asks.start()
    while asks.is_alive():
        here.reconciler.run_once()
        asks.join(0.02)
    if failed:
        raise failed[0]
    return found[0]


def disarm(here: World, path: str = "", kind: Kind = Kind.DIRECTORY) -> None:
    """Disarms as ``kdir unset PATH manage.acls`` does."""
    where = MOUNT.join(path.split("/")) if path else MOUNT
    here.execute(UpdateEntry(path=where, kind=kind, changes={"policies.manage.acls": None}))


def kafka_allows(
    bindings: Iterable[AclBinding],
    principal: str,
    host: str,
    operation: Operation,
    resource: Resource,
    *,
    open_to_all: bool = False,
) -> bool:
    """True if Kafka's StandardAuthorizer would allow it to a user who is no super user; by a full
    scan.
    """
    about = [acl for place, acl in bindings if _matches(place, resource)]
    if not about:
        return open_to_all
    mine = [
        acl for acl in about if acl.principal in {principal, "User:*"} and acl.host in {host, "*"}
    ]
    asked = operation.name
    if any(
        acl.permission is Permission.DENY and acl.operation.name in {"ALL", asked} for acl in mine
    ):
        return False
    enough = {"ALL", asked}
    if asked == "DESCRIBE":
        enough |= {"READ", "WRITE", "DELETE", "ALTER"}
    if asked == "DESCRIBE_CONFIGS":
        enough |= {"ALTER_CONFIGS"}
    return any(acl.permission is Permission.ALLOW and acl.operation.name in enough for acl in mine)


def _matches(pattern: Resource, resource: Resource) -> bool:
    if pattern.kind is not resource.kind:
        return False
    if pattern.pattern is PatternType.PREFIXED:
        return resource.name.startswith(pattern.name)
    return pattern.name in {"*", resource.name}


def shown(kafka: KafkaAdmin) -> set[AclBinding]:
    """Returns all ACLs that Kafka has."""
    return set(kafka.acls().bindings)


class FakeAcls:
    """ACLs of a Kafka in memory, and the changes that were asked of it, in order."""

    def __init__(self) -> None:
        self.bindings: set[AclBinding] = set()
        self.asked: list[tuple[str, AclBinding]] = []
        self.open_to_all = False
        self.answers: dict[AclBinding, Outcome] = {}
        """Outcomes to answer for some bindings, instead of changing them."""

    def acls(self) -> ObservedAcls:
        return ObservedAcls(frozenset(self.bindings), len(self.bindings), self.open_to_all)

    def add_acls(
        self, bindings: Sequence[AclBinding], still: Still = always
    ) -> Mapping[AclBinding, Outcome]:
        still()
        outcomes: dict[AclBinding, Outcome] = {}
        for one in bindings:
            self.asked.append(("+", one))
            outcomes[one] = self.answers.get(one, Succeeded())
            if one not in self.answers:
                self.bindings.add(one)
        return outcomes

    def remove_acls(
        self, bindings: Sequence[AclBinding], still: Still = always
    ) -> Mapping[AclBinding, Outcome]:
        still()
        outcomes: dict[AclBinding, Outcome] = {}
        for one in bindings:
            self.asked.append(("-", one))
            there = one in self.bindings
            outcomes[one] = self.answers.get(one, Succeeded() if there else AlreadyDone())
            if one not in self.answers:
                self.bindings.discard(one)
        return outcomes
