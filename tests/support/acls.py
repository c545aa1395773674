"""What tests of ACLs have in common: grants as people give them, and ACLs as Kafka has them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from directory.access.grant import Grant, Operation, Permission, ResourceKind
from directory.kafka.acl import Acl, Binding, Pattern, Resource
from directory.kafka.armory import Armed, Planned
from directory.kafka.contract import AclView, AlreadySo, Done, KafkaAdmin, Outcome, Still, always
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
    "topic": ResourceKind.TOPIC,
    "group": ResourceKind.GROUP,
    "transactional-id": ResourceKind.TRANSACTIONAL_ID,
}


def grant_of(words: str) -> Grant:
    """``allow alice read``, ``deny * all from 10.0.0.1``, ``allow alice read group search-*``."""
    permission, who, operation, *rest = words.split()
    host = "*"
    if "from" in rest:
        host = rest[rest.index("from") + 1]
        rest = rest[: rest.index("from")]
    kind, name = rest or ("topic", "")
    return Grant.of(
        f"User:{who}",
        host,
        Operation.parse(operation),
        Permission.parse(permission),
        _KINDS[kind],
        name,
    )


def grant(here: World, path: str, *words: str, kind: Kind | None = None) -> None:
    """``kdir grant``."""
    where = MOUNT.join(path.split("/")) if path else MOUNT
    here.execute(AddGrants(path=where, grants=tuple(map(grant_of, words)), kind=kind))


def revoke(here: World, path: str, *words: str, kind: Kind | None = None) -> None:
    """``kdir revoke``."""
    where = MOUNT.join(path.split("/")) if path else MOUNT
    here.execute(RemoveGrants(path=where, grants=tuple(map(grant_of, words)), kind=kind))


def acl(words: str) -> Acl:
    """An ACL, in the words of a grant."""
    found = grant_of(words)
    return Acl(found.permission, found.principal, found.operation, found.host)


def on(resource: str, *words: str) -> set[Binding]:
    """ACLs of a resource such as ``topic search.clicks`` or ``group search-*``."""
    kind, _, name = resource.partition(" ")
    pattern = Pattern.PREFIXED if name.endswith("*") and name != "*" else Pattern.LITERAL
    place = Resource(_KINDS[kind], name[:-1] if pattern is Pattern.PREFIXED else name, pattern)
    return {Binding(place, acl(one)) for one in words}


def plan(here: World, path: str = "", *, takeover: bool = False) -> Planned:
    """``kdir arm PATH --aspect acls``."""
    where = MOUNT.join(path.split("/")) if path else MOUNT
    return here.reconciler.armory.plan(where, "acls", takeover=takeover)


def planned(here: World, path: str = "", *, takeover: bool = False) -> list[tuple[str, str]]:
    """The calls of the plan: operation and binding."""
    calls = plan(here, path, takeover=takeover).calls
    return [(one.operation, f"{one.resource}: {one.key}") for one in calls]


def arm(here: World, path: str = "", *, takeover: bool = False) -> Armed:
    """Reads the plan, and arms by it, while the reconciler works."""
    where = MOUNT.join(path.split("/")) if path else MOUNT
    read = plan(here, path, takeover=takeover)
    found: list[Armed] = []
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            found.append(
                here.reconciler.armory.arm(
                    where, "acls", read.plan, takeover=takeover, timeout_seconds=20
                )
            )
        except BaseException as error:  # noqa: BLE001 - the test is to see it
            failed.append(error)

    asks = threading.Thread(target=ask)
    asks.start()
    while asks.is_alive():
        here.reconciler.step()
        asks.join(0.02)
    if failed:
        raise failed[0]
    return found[0]


def disarm(here: World, path: str = "", kind: Kind = Kind.DIRECTORY) -> None:
    """``kdir unset PATH manage.acls``."""
    where = MOUNT.join(path.split("/")) if path else MOUNT
    here.execute(UpdateEntry(path=where, kind=kind, changes={"policies.manage.acls": None}))


def kafka_allows(
    bindings: Iterable[Binding],
    principal: str,
    host: str,
    operation: Operation,
    resource: Resource,
    *,
    open_to_all: bool = False,
) -> bool:
    """What Kafka's StandardAuthorizer says to somebody who is no super user, by a full scan."""
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
    if pattern.pattern is Pattern.PREFIXED:
        return resource.name.startswith(pattern.name)
    return pattern.name in {"*", resource.name}


def shown(kafka: KafkaAdmin) -> set[Binding]:
    """All ACLs that Kafka has."""
    return set(kafka.acls().bindings)


class FakeAcls:
    """The ACLs of a Kafka in memory, and what was asked of it in its order."""

    def __init__(self) -> None:
        self.bindings: set[Binding] = set()
        self.asked: list[tuple[str, Binding]] = []
        self.open_to_all = False
        self.answers: dict[Binding, Outcome] = {}
        """What is answered instead; nothing is done then."""

    def acls(self) -> AclView:
        return AclView(frozenset(self.bindings), len(self.bindings), self.open_to_all)

    def add_acls(
        self, bindings: Sequence[Binding], still: Still = always
    ) -> Mapping[Binding, Outcome]:
        still()
        outcomes: dict[Binding, Outcome] = {}
        for one in bindings:
            self.asked.append(("+", one))
            outcomes[one] = self.answers.get(one, Done())
            if one not in self.answers:
                self.bindings.add(one)
        return outcomes

    def remove_acls(
        self, bindings: Sequence[Binding], still: Still = always
    ) -> Mapping[Binding, Outcome]:
        still()
        outcomes: dict[Binding, Outcome] = {}
        for one in bindings:
            self.asked.append(("-", one))
            there = one in self.bindings
            outcomes[one] = self.answers.get(one, Done() if there else AlreadySo())
            if one not in self.answers:
                self.bindings.discard(one)
        return outcomes
