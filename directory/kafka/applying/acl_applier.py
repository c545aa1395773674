"""Applies ACLs below armed entries, in rounds over all desired, recorded and existing ACLs.

Each call is on record before it is made, so that a process may end after any step. ``acl_diff.py``
has the order of the calls (A4).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, assert_never

from directory.access.grants import Permission, ResourceType
from directory.kafka.admin_contract import (
    Acl,
    AclBinding,
    AlreadyDone,
    KafkaAdmin,
    Outcome,
    OutcomeUnknown,
    Rejected,
    Resource,
    Succeeded,
)
from directory.kafka.applying.acl_diff import (
    CALL_ORDER,
    TAKEOVER,
    AclDiff,
    AclDiffOptions,
    AclDiffs,
    FoundAcls,
    arming_scope,
)
from directory.kafka.applying.applier import (
    AGAIN_SECONDS,
    BATCH,
    Applier,
    BatchResult,
    DirtyBatch,
    first_of,
)
from directory.kafka.applying.desired_acls import (
    armed_starts,
    desired_acls,
    start_of,
    untraced_armings,
)
from directory.kafka.applying.desired_configs import RecordedTopic
from directory.kafka.applying.last_applied import (
    ACL_BASIS,
    ARMED,
    ArmedRecord,
    armed_anywhere,
    armed_records,
)
from directory.kafka.arming.releases import INHERITED_KEYS, inherited_basis, unchanged_basis
from directory.kafka.fenced_commits import StaleObservation, TopicCommits
from directory.kafka.kafka_context import ACLS, KafkaContext
from directory.kafka.provisioning.acknowledged_changes import AcknowledgedChanges
from directory.namespace.entry import Directory, Topic
from directory.namespace.keys import ENTRY, GRANTS, parse_entry_key
from directory.namespace.snapshot import Container, Snapshot
from directory.namespace.tree_nodes import ROOT_KEY
from directory.store.base import Put, Write
from directory.store.replica import AppliedCommit
from resolver.errors import KafkaRejected, NotReady, UnreadableRecord
from resolver.path import Path

__all__ = ["AclApplier"]

_log = logging.getLogger(__name__)

_CALLS: Final = 1_000
"""Most ACLs that one part adds or removes, unless a single resource has more."""
_FRESH_SECONDS: Final = 3.0
"""Longest age of a read of Kafka at which the parts of its round continue."""
_REFUSED_SECONDS: Final = 15.0
"""Pause before the retry with a Kafka that keeps no ACLs or does not let kdir change them."""
_SHARE: Final = 2
_MOST_REST_SECONDS: Final = 1.0
"""Longest pause after a round, for other work; else ``_SHARE`` times its read of Kafka."""
_ARMED: Final = ARMED + b"acls/"
_CONTACT_SECONDS: Final = 1.0
"""Shortest interval between checks of the last contact with the parent."""


@dataclass(slots=True)
class _Release:
    """An arming that is being carried out."""

    mark: ArmedRecord
    resources: frozenset[Resource]
    released: bool
    """True: the plan's basis is still the current one, so its operator approved what waits."""
    made: int = 0


@dataclass(slots=True)
class _AclRound:
    """Diffs that follow from one read of Kafka, while they are applied."""

    diffs: Sequence[AclDiff]
    looked_at: float
    cost: float
    """Duration of the read in seconds."""
    basis: str
    """``inherited_basis`` of the snapshot on which the diffs were computed."""
    guarded: bool
    """The basis differs from the recorded one: it is recorded once all diffs are applied."""
    taken: int = 0
    tally: BatchResult[Resource] = field(default_factory=BatchResult)

    def is_old(self, now: float) -> bool:
        """True if Kafka has to be read again."""
        return now - self.looked_at > _FRESH_SECONDS

    def next_changes(self, most: int) -> Sequence[AclDiff]:
        """Returns the next diffs: at most ``most`` resources with calls, about ``_CALLS`` calls."""
        start, resources, calls = self.taken, 0, 0
        while self.taken < len(self.diffs):
            one = self.diffs[self.taken]
            if one.calls and (resources >= most or (calls and calls + one.calls > _CALLS)):
                break
            resources += bool(one.calls)
            calls += one.calls
            self.taken += 1
        return self.diffs[start : self.taken]


class AclApplier(Applier):
    """``Applier`` of ACLs. Each round compares all desired, recorded and existing ACLs."""

    aspect = ACLS

    def __init__(
        self,
        context: KafkaContext,
        commits: TopicCommits,
        acknowledged: AcknowledgedChanges,
    ) -> None:
        super().__init__(context, commits, acknowledged)
        self._look_at = math.inf
        self._contact_at = math.inf
        """Time of the next check of the last contact with the parent."""
        self._had_expired = False
        """Whether inherited allows had ended at the last read of Kafka."""
        self._is_through = True
        """True: all dirty entries are handled. False: the work continues at ``_due``."""
        self._releases: dict[bytes, _Release] = {}
        self._round: _AclRound | None = None
        self.foreign: Mapping[Resource, frozenset[Acl]] = {}
        """ACLs of armed resources, at the last read, that are neither desired nor ours."""

    # -- planning ------------------------------------------------------------------------------

    def _note_commit(self, applied: AppliedCommit) -> bool:
        if not any(matters(applied, write) for write in applied.writes):
            return False
        self._noted.note_all()
        return True

    def _next_look(self) -> float | None:
        look_at = min(self._look_at, self._contact_at) if self._is_through else self._due
        return None if math.isinf(look_at) else look_at

    def _drop_work(self) -> None:
        self._look_at = self._contact_at = math.inf
        self._is_through, self._round = True, None

    def _plan(self, noted: DirtyBatch, snapshot: Snapshot) -> None:
        if noted.directories or (self._round is not None and self._round.is_old(self._clock())):
            self._round = None
        is_same = self._context.has_expired() == self._had_expired
        if not noted and self._is_through and is_same and self._clock() < self._look_at:
            self._contact_at = self._next_contact()
            return
        self._is_through = False

    def _is_ready(self) -> bool:
        return not self._is_through

    def _next_contact(self) -> float:
        most = self._context.grants_max_age_seconds
        if most is None:
            return math.inf
        left = most - self._context.unconfirmed_seconds()
        return self._clock() + max(left, _CONTACT_SECONDS)

    # -- one part ------------------------------------------------------------------------------

    def _do_part(self, admin: KafkaAdmin) -> None:
        going_on, self._round = self._round, None
        try:
            self._carry_on(going_on or self._plan_round(self._latest(), admin), admin)
        except (KafkaRejected, NotReady) as reason:
            if self.note != reason.message:
                _log.warning("%s: no ACLs are pushed: %s", self._cluster, reason.message)
            self.note = reason.message
            self._record_wait_reason(reason.message)
            self._due = self._clock() + _REFUSED_SECONDS

    def _record_wait_reason(self, message: str) -> None:
        """Records in each unfinished arming why it is not carried out yet."""
        self._put_marks(replace(one.mark, message=message) for one in self._releases.values())

    def prepare(self, topics: Sequence[RecordedTopic], admin: KafkaAdmin) -> Mapping[str, str]:
        """Makes the ACLs of topics before the topics themselves; returns why some topics have to
        wait, by physical name.
        """
        snapshot = self._latest()
        if ACLS not in self._settings.ceiling or not armed_anywhere(snapshot, ACLS):
            return {}
        named = {Resource(ResourceType.TOPIC, one.name) for one in topics}
        try:
            survey = self._survey(snapshot, frozenset(one.topic.entry_id for one in topics))
            named &= survey.desired_set.by_resource.keys()
            waits = self._prepare(snapshot, survey, named, admin)
        except (KafkaRejected, NotReady) as reason:
            waits = dict.fromkeys((one.name for one in named), reason.message)
        return {name: f"its ACLs wait: {why}" for name, why in waits.items()}

    def _prepare(
        self, snapshot: Snapshot, survey: AclDiffs, named: set[Resource], admin: KafkaAdmin
    ) -> Mapping[str, str]:
        by_resource = survey.desired_set.by_resource
        waits = {one.name: _UNREADABLE for one in named if not by_resource[one].known}
        looked_at = self._clock()
        diffs = self._diff(survey, admin, only=named)
        basis = inherited_basis(snapshot, self._mount_at(snapshot))
        tally: BatchResult[Resource] = BatchResult()
        self._carry_out(diffs, admin, looked_at, basis, tally)
        for one in diffs:
            message = one.asked.waits or one.asked.refused or tally.undone.get(one.resource, "")
            if message:
                waits[one.resource.name] = message
        return waits

    # -- one round -----------------------------------------------------------------------------

    def _survey(self, snapshot: Snapshot, making: frozenset[int] = frozenset()) -> AclDiffs:
        starts, expired = armed_starts(snapshot), self._context.has_expired()
        mount = self._mount_at(snapshot)
        desired_set = desired_acls(snapshot, mount, starts, expired=expired, making=making)
        return AclDiffs(snapshot, desired_set)

    def _diff(
        self,
        survey: AclDiffs,
        admin: KafkaAdmin,
        arm: Callable[[AclDiffOptions, Resource], AclDiffOptions] = lambda rules, _: rules,
        only: Collection[Resource] | None = None,
    ) -> list[AclDiff]:
        """Reads Kafka; returns each resource's diff. ``arm`` adds options that an arming allows."""
        view = admin.acls()
        rules = AclDiffOptions(
            revert_external_changes=self._settings.revert_external_changes,
            open_to_all=view.open_to_all,
        )
        found = FoundAcls(self._acknowledged.correct_acls(view.bindings))
        diffs = survey.diffs(found, lambda one: arm(rules, one), only)
        return _within_limit(map(self._recordable, diffs), self._settings.max_acls - view.count)

    def _recordable(self, diff: AclDiff) -> AclDiff:
        """Returns the diff; one whose record does not fit one transaction waits."""
        if diff.asked == diff.before or self._commits.fits(diff.to_write(diff.asked)):
            return diff
        one = diff.waiting(_TOO_MANY)
        return replace(one, asked=replace(diff.before, path=diff.path, waits=_TOO_MANY))

    def _plan_round(self, snapshot: Snapshot, admin: KafkaAdmin) -> _AclRound:
        """Reads Kafka; returns the next round."""
        started, mount = self._clock(), self._mount_at(snapshot)
        self._had_expired = self._context.has_expired()
        survey = self._survey(snapshot)
        for one in survey.unreadable:
            _log.error("%s: ACLs of %s are left alone: record unreadable", self._cluster, one)
        for mark in untraced_armings(snapshot, ACLS):
            text = "%s: ACLs of armed entry %x stay: its record is unreadable; kdir arm replaces it"
            _log.error(text, self._cluster, mark.entry_id)
        basis = inherited_basis(snapshot, mount)
        self._take_releases(snapshot, mount, basis)
        guarded = (snapshot.fact(ACL_BASIS) or b"").decode(errors="replace") != basis
        if survey.is_empty:
            self.foreign = {}
            return _AclRound((), started, self._clock() - started, basis, guarded)

        def arm(rules: AclDiffOptions, resource: Resource) -> AclDiffOptions:
            release = [one for one in self._releases.values() if resource in one.resources]
            return replace(
                rules,
                guarded=guarded,
                released=any(one.released for one in release),
                takeover=any(one.mark.takeover for one in release),
            )

        looked_at = self._clock()
        diffs = self._diff(survey, admin, arm)
        self.foreign = {one.resource: one.foreign for one in diffs if one.foreign}
        diffs.sort(key=lambda one: not one.takes)
        return _AclRound(diffs, looked_at, self._clock() - started, basis, guarded)

    def _carry_on(self, one: _AclRound, admin: KafkaAdmin) -> None:
        """Applies a part of a round, as large as the rate allows."""
        batch, tally = one.next_changes(self._most), BatchResult[Resource]()
        try:
            self._carry_out(batch, admin, one.looked_at, one.basis, tally)
        finally:
            for release in self._releases.values():
                release.made += sum(tally.made.get(each, 0) for each in release.resources)
        one.tally.add(tally)
        now = self._clock()
        self._due = now + len(tally.made) / self._settings.changes_per_second
        if one.taken < len(one.diffs):
            self._round = one
            return
        rest = min(one.cost * _SHARE, _MOST_REST_SECONDS)
        self._due = max(self._due, now + rest)
        self._look_at = now + max(self._settings.sweep_interval_seconds, rest)
        self._contact_at = self._next_contact()
        if one.tally.unsure:
            self._due = now + AGAIN_SECONDS
        else:
            self._finish(one)
            self._is_through = True

    def _take_releases(self, snapshot: Snapshot, mount: Path, basis: str) -> None:
        pending = {mark.key: mark for mark in armed_records(snapshot, ACLS) if mark.pending}
        self._releases = {
            key: one
            for key, one in self._releases.items()
            if key in pending and pending[key].plan == one.mark.plan
        }
        for key, mark in pending.items():
            start = start_of(snapshot, mark)
            if start is None:
                continue  # the entry is gone: its record has no effect
            scope = arming_scope(snapshot, mount, start, expired=self._context.has_expired())
            made = self._releases[key].made if key in self._releases else 0
            self._releases[key] = _Release(mark, scope, mark.basis == basis, made)

    def _finish(self, one: _AclRound) -> None:
        """Records the end of a round: its basis, and the outcomes of the armings."""
        if one.guarded:
            self._commits.put_all([Put(ACL_BASIS, one.basis.encode())])
        marks, undone = [], one.tally.undone
        for release in self._releases.values():
            texts = [
                f"{each.resource}: {why}"
                for each in one.diffs
                if each.resource in release.resources
                # Not those that wait for a takeover: the plan itself shows them.
                and (why := undone.get(each.resource) or each.asked.waits) not in {"", TAKEOVER}
            ]
            done = replace(release.mark, pending=False, made=release.made, message=first_of(texts))
            marks.append(done)
        self._put_marks(marks)
        # Removed only once their ends are on record: a commit that fails is repeated.
        self._releases = {}

    # -- one batch -----------------------------------------------------------------------------

    def _carry_out(
        self,
        diffs: Sequence[AclDiff],
        admin: KafkaAdmin,
        looked_at: float,
        basis: str,
        tally: BatchResult[Resource],
    ) -> None:
        """Makes the calls of diffs, which follow from a read of Kafka at that time, on this basis;
        records their outcomes. ``tally`` gets the acknowledged calls even if this raises.
        """
        self._commits.put_all([one.to_write(one.asked) for one in diffs if one.asked != one.before])
        asks = [one for one in diffs if one.calls]
        if not asks:
            return
        most = looked_at + _LOOK_SECONDS - self._clock()
        is_same = unchanged_basis(basis, self._latest, self._mount_at)
        still = self._commits.check_fresh(self._clock, most, is_same)
        outcomes: dict[AclBinding, Outcome] = {}
        try:
            for adding, permission in CALL_ORDER:
                chosen: list[AclBinding] = []
                for one in asks:
                    acls = one.add if adding else one.remove
                    stage = [acl for acl in acls if acl.permission is permission]
                    ready = _ready_acls(adding, permission, one, outcomes)
                    for acl in stage:
                        about = AclBinding(one.resource, acl)
                        if acl in ready:
                            chosen.append(about)
                        else:
                            outcomes[about] = _BLOCKED
                ask = admin.add_acls if adding else admin.remove_acls
                # One request at a time: if one raises, the outcomes of earlier ones are kept.
                for start in range(0, len(chosen), BATCH):
                    outcomes.update(ask(chosen[start : start + BATCH], still))
        except StaleObservation:
            _log.warning("%s: %d ACL resources are looked at again", self._cluster, len(asks))
        finally:
            self._record(asks, outcomes, tally)

    def _record(
        self,
        asks: Sequence[AclDiff],
        outcomes: dict[AclBinding, Outcome],
        tally: BatchResult[Resource],
    ) -> None:
        writes = []
        for diff in asks:
            ours = dict(diff.asked.settings)
            message, left, is_asked_again = "", set[Acl](), False
            shown = set(diff.found.acls)
            for acl in (*diff.add, *diff.remove):
                binding, adding = AclBinding(diff.resource, acl), acl in diff.add
                outcome = outcomes.get(binding, _NOT_ASKED)
                match outcome:
                    case Succeeded() | AlreadyDone():
                        if adding:
                            ours[acl] = replace(ours[acl], done=True)
                            shown.add(acl)
                        else:
                            ours.pop(acl, None)
                            shown.discard(acl)
                        self._acknowledged.note_acl(binding, added=adding)
                        tally.made[diff.resource] = tally.made.get(diff.resource, 0) + 1
                        _log.info("%s: ACL %s %s", self._cluster, "+" if adding else "-", binding)
                    case Rejected(why):
                        message = why
                        left.add(acl)
                        if adding:
                            ours.pop(acl, None)
                        _log.warning("%s: ACL %s refused: %s", self._cluster, binding, why)
                    case OutcomeUnknown(why):
                        tally.unsure[diff.resource] = None
                        left.add(acl)
                        is_asked_again |= outcome is not _BLOCKED
                        tally.undone[diff.resource] = why
                    case other:
                        assert_never(other)
            after = replace(diff.asked, settings=MappingProxyType(ours))
            if message:
                rest = replace(
                    diff,
                    add=tuple(left & set(diff.add)),
                    remove=tuple(left & set(diff.remove)),
                    found=replace(diff.found, acls=frozenset(shown)),
                )
                # Without the hash, all calls are retried, for those whose outcome is unknown.
                refused = "" if is_asked_again else rest.calls_hash
                after = replace(after, path=diff.path, refused=message, refused_calls=refused)
                tally.undone[diff.resource] = message
            if after != diff.asked:
                writes.append(diff.to_write(after))
        self._commits.put_all(writes)


_TOO_MANY: Final = "they are more than one transaction of the store holds: use fewer grants"
_UNREADABLE: Final = "grants on its path cannot be read"
_NOT_ASKED: Final = OutcomeUnknown("not asked yet")
_BLOCKED: Final = OutcomeUnknown("it waits for what was not done before it")


def _within_limit(diffs: Iterable[AclDiff], room: int) -> list[AclDiff]:
    """Returns the diffs. A diff waits if its ACLs would exceed ``max_acls``, or if without approval
    it would close a resource that is open to all.
    """
    found = []
    for diff in diffs:
        one = diff.waiting(TAKEOVER) if diff.opens else diff
        if one.add and one.growth > room:
            many = f"{len(one.add)} more ACLs would be more than [kafka] max_acls allows"
            one = one.waiting(many)
        room -= one.growth
        found.append(one)
    return found


def matters(applied: AppliedCommit, write: Write) -> bool:
    """True if a commit's write may change the desired ACLs."""
    key = write.key
    if not key.startswith(ENTRY):
        return key.startswith((GRANTS, _ARMED)) or key in INHERITED_KEYS
    if key == ROOT_KEY:
        return True
    parent_id, is_topic, name = parse_entry_key(key)
    sides = applied.before, applied.after
    try:
        was, is_now = (
            _relevant(one.topic(parent_id, name) if is_topic else one.container(parent_id, name))
            for one in sides
        )
    except UnreadableRecord:
        return True
    return was != is_now


def _relevant(entry: Container | Topic | None) -> object:
    """Returns the parts of an entry on which the desired ACLs depend."""
    match entry:
        case Directory():
            return entry.entry_id, entry.closed, entry.policies.manage.get(ACLS)
        case Topic():
            state = entry.provision, bool(entry.provision_attempt)
            return entry.entry_id, state, entry.policies.manage.get(ACLS)
        case _:
            return None


_LOOK_SECONDS: Final = 5.0
"""Longest time from a read of Kafka to a change of ACLs; a leader that was paused reads again."""


def _ready_acls(
    adding: bool,  # noqa: FBT001 - as in CALL_ORDER
    permission: Permission,
    diff: AclDiff,
    outcomes: Mapping[AclBinding, Outcome],
) -> frozenset[Acl]:
    """Returns the ACLs to add or remove that no unfinished earlier call of the resource blocks."""
    found = {acl: outcomes.get(AclBinding(diff.resource, acl)) for acl in (*diff.add, *diff.remove)}
    left = {acl for acl, one in found.items() if not isinstance(one, Succeeded | AlreadyDone)}
    denies_left = any(acl.permission is Permission.DENY for acl in left & set(diff.add))
    allows_left = any(acl.permission is Permission.ALLOW for acl in left & set(diff.remove))
    removable = frozenset(diff.remove)
    if left.issuperset(diff.add):
        removable -= {diff.last_acl}
    match adding, permission:
        case True, Permission.DENY:
            return frozenset(diff.add)
        case True, _:
            return frozenset() if denies_left else frozenset(diff.add)
        case _, Permission.ALLOW:
            return removable
        case _:
            return frozenset() if denies_left or allows_left else removable
