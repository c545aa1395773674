"""Comparison of one resource's desired and actual ACLs: the calls to make, what to leave alone and
what waits; pure.

Only ACLs on record as kdir's are ever removed. At no moment does Kafka allow a principal an
operation that is allowed neither before nor after (A4): denies are added first and removed last,
and a resource with ACLs before and after is never without any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import MappingProxyType
from typing import Final

from directory.access.grants import Permission, ResourceType
from directory.kafka.admin_contract import (
    CLOSED,
    CREATE_ACLS,
    DELETE_ACLS,
    Acl,
    AclBinding,
    KafkaCall,
    PatternType,
    Resource,
)
from directory.kafka.applying.config_diff import CONTESTED, hash_text
from directory.kafka.applying.desired_acls import (
    ArmedEntry,
    DesiredAcls,
    DesiredAclSet,
    desired_acls,
)
from directory.kafka.applying.last_applied import (
    AppliedRecord,
    AppliedSetting,
    acls_to_write,
    load_every_applied_acls,
)
from directory.namespace.snapshot import Snapshot
from directory.store.base import Write
from resolver.path import Path

__all__ = [
    "CALL_ORDER",
    "TAKEOVER",
    "AclDiff",
    "AclDiffOptions",
    "AclDiffs",
    "FoundAcls",
    "ObservedResource",
    "acl_calls_hash",
    "arming_scope",
    "diff_acls",
    "ordered_calls",
]


CALL_ORDER: Final = (
    (True, Permission.DENY),
    (True, Permission.ALLOW),
    (False, Permission.ALLOW),
    (False, Permission.DENY),
)
"""(True = add, False = remove; permission). In this order no principal has, even for a moment, a
right that it has neither before nor after."""
TAKEOVER: Final = (
    "everybody may use it while it has no ACL: the first one closes it, by kdir arm --takeover"
)
_BASIS: Final = "a mount, a restore or a detach may have brought it: kdir arm makes it so"


@dataclass(frozen=True, slots=True)
class AclDiffOptions:
    """Options of a diff."""

    revert_external_changes: bool = False
    """ACLs that another client removed are put back."""
    guarded: bool = False
    """The basis changed: calls that give more rights wait for an operator."""
    released: bool = False
    """An operator approved what waits, is contested or was refused."""
    takeover: bool = False
    """An operator also approved closing resources that were open to all."""
    open_to_all: bool = False
    """A resource without ACLs is open to all, or may be."""
    keeps_closed: bool = False
    """A resource that had ACLs of ours stays closed after its last grant is removed."""


@dataclass(frozen=True, slots=True)
class ObservedResource:
    """A resource as Kafka has it."""

    acls: frozenset[Acl] = frozenset()
    """ACLs of the resource itself."""
    covered: bool = False
    """Whether other resources' ACLs match all of it: by ``*``, or by a prefix."""


@dataclass(frozen=True, slots=True)
class AclDiff:
    """Diff of one resource: the calls that follow, and what to record."""

    resource: Resource
    before: AppliedRecord[Acl]
    asked: AppliedRecord[Acl]
    """Record to store before the calls are made."""
    add: tuple[Acl, ...] = ()
    remove: tuple[Acl, ...] = ()
    opens: bool = False
    """The ACLs to add would close a resource that is open to all, which needs approval."""
    foreign: frozenset[Acl] = frozenset()
    """ACLs that Kafka has and that are neither desired nor ours."""
    path: str = ""
    found: ObservedResource = field(default_factory=ObservedResource)
    open_to_all: bool = False
    """A resource without ACLs may be open to all."""

    def to_write(self, record: AppliedRecord[Acl]) -> Write:
        """Returns the write that stores a record of this resource."""
        return acls_to_write(self.resource, record)

    @property
    def calls(self) -> int:
        """Number of ACLs to add or remove."""
        return len(self.add) + len(self.remove)

    @property
    def growth(self) -> int:
        """Number of ACLs that Kafka gains by the calls."""
        return len(self.add) - len(self.found.acls.intersection(self.remove))

    @property
    def takes(self) -> bool:
        """True if the calls take rights from a principal; such diffs come before the others."""
        return any(one.permission is Permission.DENY for one in self.add) or any(
            one.permission is Permission.ALLOW for one in self.remove
        )

    @property
    def last_acl(self) -> Acl | None:
        """ACL that is not removed before others are added: without it the resource would have none,
        and perhaps be open to all. A deny, if one is to be removed.
        """
        is_open = self.open_to_all and not self.found.covered
        if not (self.add and is_open) or self.found.acls.difference(self.remove):
            return None
        left = [one for one in self.remove if one in self.found.acls] or self.remove
        denies = [one for one in left if one.permission is Permission.DENY]
        return next(iter(denies or left), None)

    @property
    def calls_hash(self) -> str:
        """Hash of the calls that Kafka can refuse: all but a removal that waits for an addition."""
        last = self.last_acl
        return acl_calls_hash(self.add, [one for one in self.remove if one != last])

    def waiting(self, why: str) -> AclDiff:
        """Returns the diff without additions, and with only those removals that take rights."""
        last = self.last_acl
        allows = (one for one in self.remove if one.permission is Permission.ALLOW)
        remove = tuple(one for one in allows if one != last)
        asked = replace(self.asked, path=self.path, settings=self.before.settings, waits=why)
        return replace(self, asked=asked, add=(), remove=remove)


def diff_acls(
    resource: Resource,
    desired: DesiredAcls | None,
    found: ObservedResource,
    kept: AppliedRecord[Acl],
    rules: AclDiffOptions,
) -> AclDiff:
    """Returns the diff of one resource; ``desired`` None = no armed entry desires its ACLs now."""
    if desired is not None and not desired.known:
        return AclDiff(resource, kept, kept)
    if desired is not None and _is_as_desired(desired, found, kept):
        return AclDiff(resource, kept, kept, foreign=found.acls - desired.acls)
    return _AclDiffer(resource, desired, found, kept, rules).verdict()


def _is_as_desired(desired: DesiredAcls, found: ObservedResource, kept: AppliedRecord[Acl]) -> bool:
    """True if nothing differs: a shortcut for most resources most of the time."""
    return (
        kept.settings.keys() == desired.acls
        and desired.acls <= found.acls
        and kept.path == str(desired.path)
        and all(one.done for one in kept.settings.values())
        and not (kept.held or kept.lost or kept.contested or kept.waits or kept.refused)
    )


@dataclass(slots=True)
class _AclDiffer:
    """One resource while it is compared."""

    resource: Resource
    desired: DesiredAcls | None
    found: ObservedResource
    kept: AppliedRecord[Acl]
    rules: AclDiffOptions
    ours: dict[Acl, AppliedSetting] = field(default_factory=dict)
    add: list[Acl] = field(default_factory=list)
    remove: list[Acl] = field(default_factory=list)
    held: set[Acl] = field(default_factory=set)
    lost: set[Acl] = field(default_factory=set)
    contested: set[Acl] = field(default_factory=set)

    @property
    def acls(self) -> frozenset[Acl]:
        """Desired ACLs; empty if the resource is no longer armed."""
        return self.desired.acls if self.desired is not None else frozenset()

    @property
    def is_new(self) -> bool:
        """True if the resource is a topic that is about to be made: no client uses it yet."""
        return self.desired is not None and self.desired.new

    @property
    def is_settled(self) -> bool:
        """False if Kafka shows no such topic, or another one of its name."""
        return self.desired is None or self.desired.settled

    def verdict(self) -> AclDiff:
        for acl in sorted((self.acls | self.kept.settings.keys()) - {CLOSED}):
            if acl in self.acls:
                self._diff_desired(acl)
            else:
                self._judge_unwished(acl)
        self._keep_closed()
        opens = self._opens()
        path = str(self.desired.path) if self.desired is not None else self.kept.path
        asked = AppliedRecord(
            MappingProxyType(self.ours),
            frozenset(self.held),
            frozenset(self.contested),
            frozenset(self.lost),
            path if self.ours or self.held or opens else "",
            _BASIS if self.held else "",
        )
        foreign = self.found.acls - self.acls - self.kept.settings.keys()
        changes = tuple(self.add), tuple(self.remove), opens, foreign, path
        observed = self.found, self.rules.open_to_all
        return self._unless_refused(AclDiff(self.resource, self.kept, asked, *changes, *observed))

    def _opens(self) -> bool:
        """True if the ACLs to add would be the first ones on a resource that is open to all."""
        is_used_by_all = (
            self.rules.open_to_all
            and not (self.found.acls or self.found.covered or self.is_new)
            and not any(one.done for one in self.kept.settings.values())
        )
        return bool(self.add) and is_used_by_all and not self.rules.takeover

    def _unless_refused(self, verdict: AclDiff) -> AclDiff:
        kept, calls = self.kept, verdict.calls_hash
        if not kept.refused or self.rules.released or kept.refused_calls != calls:
            return verdict
        reported = verdict.waiting("")
        asked = replace(reported.asked, refused=kept.refused, refused_calls=calls)
        return replace(reported, asked=asked, remove=())

    def _diff_desired(self, acl: Acl) -> None:
        ours = self.kept.settings.get(acl)
        if acl in self.found.acls:
            # An ACL that Kafka had before kdir requested it is not kdir's.
            if ours is not None:
                put_back = 0 if self.rules.released else ours.put_back
                self.ours[acl] = AppliedSetting(put_back=put_back)
            return
        if ours is not None and ours.done and not self.rules.released:
            self._judge_loss(acl, ours)
        elif not self.is_settled:
            if ours is not None:
                self.ours[acl] = ours
        elif self._must_wait(acl, gives_more=acl.permission is Permission.ALLOW):
            self.held.add(acl)
        else:
            self._ask_for(acl, AppliedSetting(done=False))

    def _judge_loss(self, acl: Acl, ours: AppliedSetting) -> None:
        """Decides on an ACL that Kafka had as desired and that another client removed since."""
        if acl in self.kept.contested:
            self.contested.add(acl)
        elif self._must_wait(acl, gives_more=acl.permission is Permission.ALLOW):
            self.held.add(acl)  # a restore may have brought back a revoked grant
        elif self.rules.revert_external_changes and self.is_settled:
            ours = replace(ours, put_back=ours.put_back + 1)
            if ours.put_back < CONTESTED:
                self._ask_for(acl, replace(ours, done=False))
                return
            self.contested.add(acl)
        self.ours[acl] = ours
        self.lost.add(acl)

    def _judge_unwished(self, acl: Acl) -> None:
        # Also if Kafka does not show the ACL: the broker may lag, and removing an ACL that another
        # client has removed changes nothing.
        self.ours[acl] = self.kept.settings[acl]
        if self._must_wait(acl, gives_more=acl.permission is Permission.DENY):
            self.held.add(acl)
        else:
            self.remove.append(acl)

    def _keep_closed(self) -> None:
        """Keeps ``CLOSED`` on a resource of ours that would otherwise have no ACL and be open."""
        left = (self.found.acls - {CLOSED} - set(self.remove)) | set(self.add)
        needed = (
            self.rules.open_to_all
            and self.rules.keeps_closed
            and bool(self.kept.settings)
            and not left
            and not self.found.covered
        )
        there, ours = CLOSED in self.found.acls, self.kept.settings.get(CLOSED)
        if needed and not there:
            self._ask_for(CLOSED, AppliedSetting(done=False))
        elif ours is not None:
            self.ours[CLOSED] = AppliedSetting()
            if not needed:
                self.remove.append(CLOSED)

    def _must_wait(self, acl: Acl, *, gives_more: bool) -> bool:
        if self.rules.released or self.is_new or not gives_more:
            return False
        return self.rules.guarded or acl in self.kept.held

    def _ask_for(self, acl: Acl, ours: AppliedSetting) -> None:
        self.ours[acl] = ours
        self.add.append(acl)


def acl_calls_hash(add: Iterable[Acl], remove: Iterable[Acl]) -> str:
    """Returns the hash of the calls about one resource."""
    return hash_text([sorted(map(str, add)), sorted(map(str, remove))])


class FoundAcls:
    """The ACLs that Kafka has, by resource."""

    def __init__(self, bindings: Iterable[AclBinding]) -> None:
        self._by_resource: dict[Resource, set[Acl]] = {}
        for resource, acl in bindings:
            self._by_resource.setdefault(resource, set()).add(acl)

    def for_resource(self, resource: Resource, *, looks_wider: bool) -> ObservedResource:
        """Returns a resource's ACLs; with ``looks_wider``, also if other resources' cover it."""
        own = frozenset(self._by_resource.get(resource, ()))
        if not looks_wider:
            return ObservedResource(own)
        wider = (one for one in _wider(resource) if one != resource)
        return ObservedResource(own, any(one in self._by_resource for one in wider))


def _wider(resource: Resource) -> Iterable[Resource]:
    """Yields all resources that could cover one."""
    yield Resource(resource.kind, "*")
    if resource.name != "*" or resource.pattern is PatternType.PREFIXED:
        for beginning in accumulate(resource.name):
            yield Resource(resource.kind, beginning, PatternType.PREFIXED)


def arming_scope(
    snapshot: Snapshot, mount: Path, start: ArmedEntry, *, expired: bool, assume: int = 0
) -> frozenset[Resource]:
    """Returns the resources with ACLs that are, or were, desired at or below an entry."""
    now = desired_acls(snapshot, mount, [start], expired=expired, assume=assume).by_resource
    way = (*mount.segments, *(snapshot.path_of(start.directory_id) or ()))
    path = Path((*way, start.topic) if start.topic else way)
    before = (
        one
        for one, kept in load_every_applied_acls(snapshot)
        if kept is not None and path.is_prefix_of(kept.path_below(mount))
    )
    return frozenset({*now, *before})


class AclDiffs:
    """Comparison of the desired and recorded ACLs of one snapshot with those of Kafka."""

    def __init__(self, snapshot: Snapshot, desired_set: DesiredAclSet) -> None:
        self._snapshot = snapshot
        self.desired_set = desired_set
        self._kept = dict(load_every_applied_acls(snapshot))

    @property
    def unreadable(self) -> list[Resource]:
        """Resources with unreadable records: it is not known which of their ACLs are kdir's."""
        return [resource for resource, kept in self._kept.items() if kept is None]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do, without reading Kafka."""
        return not self._kept and not self.desired_set.by_resource

    def diffs(
        self,
        found: FoundAcls,
        rules_of: Callable[[Resource], AclDiffOptions],
        only: Collection[Resource] | None = None,
    ) -> list[AclDiff]:
        """Returns the diffs, in order of resource, without those that must not be changed now."""
        every = self.desired_set.by_resource.keys() | self._kept.keys()
        chosen = sorted(every if only is None else every & set(only))
        judged = (self._judged(one, found, rules_of(one)) for one in chosen)
        return [one for one in judged if one is not None]

    def _judged(
        self, resource: Resource, found: FoundAcls, rules: AclDiffOptions
    ) -> AclDiff | None:
        desired = self.desired_set.by_resource.get(resource)
        kept = self._kept.get(resource, AppliedRecord())
        if kept is None:
            return None
        every, is_topic = self.desired_set, resource.kind is ResourceType.TOPIC
        is_known = every.topics_known if is_topic else every.patterns_known
        if desired is None and (not is_known or (is_topic and self._goes_on(resource))):
            return None
        keeps_closed = desired is not None if is_topic else every.anything_armed
        has = found.for_resource(resource, looks_wider=rules.open_to_all)
        if desired is not None and not (is_known or is_topic):
            # An unreadable entry may desire the ACLs on record, too.
            ours = {acl for acl, one in kept.settings.items() if one.done or acl in has.acls}
            desired = replace(desired, acls=desired.acls | ours)
        return diff_acls(resource, desired, has, kept, replace(rules, keeps_closed=keeps_closed))

    def _goes_on(self, resource: Resource) -> bool:
        """True if a topic was removed from the tree, and not from Kafka yet."""
        located = self._snapshot.locate(resource.name)
        return located is not None and located.relative is None


def ordered_calls(
    changes: Sequence[tuple[Resource, Collection[Acl], Collection[Acl]]],
    opens: Collection[Resource] = (),
) -> Iterator[KafkaCall]:
    """Yields the calls of changes (resource, ACLs to add, ACLs to remove) in the order in which
    they are made. ``opens``: resources that are open to all now; closing them needs a takeover.
    """
    for adding, permission in CALL_ORDER:
        for resource, add, remove in changes:
            for acl in sorted(add if adding else remove):
                if acl.permission is permission:
                    operation = CREATE_ACLS if adding else DELETE_ACLS
                    about, takeover = AclBinding(resource, acl), resource in opens
                    yield KafkaCall(operation, str(resource), str(acl), None, None, about, takeover)
