"""Requests of operators about arming: a plan, and arming by a plan that was reviewed.

Any server may do them, elected or not: arming commits a record, and the elected reconciler makes
the calls (``config_applier.py``, ``acl_applier.py``), even if this server dies.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from directory.federation.unloaded_policies import why_inherited_missing
from directory.kafka.admin_contract import (
    KafkaAdmin,
    KafkaCall,
    KafkaTopic,
    ObservedAcls,
    Rejected,
    format_value,
)
from directory.kafka.adoption.pinned_kafka import (
    NOT_KNOWN,
    NOT_ON_RECORD,
    PinnedKafka,
    without_manager,
)
from directory.kafka.applying.acl_diff import (
    AclDiff,
    AclDiffOptions,
    AclDiffs,
    FoundAcls,
    arming_scope,
    ordered_calls,
)
from directory.kafka.applying.applier import first_of
from directory.kafka.applying.config_diff import (
    ConfigDiffOptions,
    ObservedConfig,
    diff_configs,
    hash_text,
)
from directory.kafka.applying.desired_acls import ArmedEntry, armed_starts, desired_acls
from directory.kafka.applying.desired_configs import ArmedTopic, ArmedTopics, PartitionQuota
from directory.kafka.applying.last_applied import (
    ACL_BASIS,
    ArmedRecord,
    load_applied_configs,
    load_armed_record,
)
from directory.kafka.arming.releases import Released, armed_plan, inherited_basis, release_writes
from directory.kafka.fenced_commits import TopicCommits
from directory.kafka.kafka_context import ACLS, CONFIGS, KafkaContext
from directory.namespace.command import UpdateEntry
from directory.namespace.entry import Directory, Kind, Topic
from directory.namespace.protected_topics import refuse_protected
from directory.namespace.snapshot import Snapshot
from directory.namespace.traversal import locate_entry
from directory.namespace.updatable_fields import ASPECTS
from directory.store.base import Guard, KeyEquals, Put, Write
from resolver.errors import (
    AboveCeiling,
    Absent,
    EtagMismatch,
    InvalidArgument,
    InvalidNamespace,
    KafkaRejected,
    KafkaUnavailable,
    LimitExceeded,
    NotAuthoritative,
    NotReady,
)
from resolver.path import Path
from resolver.units import plural

__all__ = ["AclPlan", "ArmingPlan", "ArmingResult", "ArmingService", "plan_hash"]

_log = logging.getLogger(__name__)

_PLANS: Final = 16
"""Most plans that are remembered, to report what changed since one of them."""
_REMEMBERED: Final = 100_000
"""Most calls and topic names in all remembered plans together: about 20 MB."""
_PUSHED: Final = frozenset({CONFIGS, ACLS})
"""Aspects whose arming the elected reconciler executes."""
_BATCH: Final = 1_000
_NAMED: Final = 3
_ANSWER_SECONDS: Final = 1.0
"""Time of a request that is reserved for sending its answer."""
_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class AclPlan:
    """Plan of the changes of ACLs that arming would make."""

    calls: tuple[KafkaCall, ...]
    """In the order in which they are made; those marked ``takeover`` only if that was requested."""
    before: int
    """Number of ACLs that Kafka has now."""
    after: int
    """Number of ACLs that Kafka has after the calls."""
    limit: int
    """``kafka.max_acls``."""


@dataclass(frozen=True, slots=True)
class ArmingPlan:
    """Plan of an arming."""

    plan: str
    """Name of the plan, a hash (``plan_hash``)."""
    calls: tuple[KafkaCall, ...]
    entry: Directory | Topic
    place: tuple[int, str] | None
    """Parent id and name of a topic; None = the entry is a directory."""
    acls: AclPlan | None = None
    names: tuple[ArmedTopic, ...] = ()
    """For the aspect ``configs``: the topics that the plan would release."""


@dataclass(frozen=True, slots=True)
class _RememberedPlan:
    """Parts of a plan with which a later plan is compared, to report the changes."""

    calls: tuple[KafkaCall, ...]
    names: frozenset[str]
    """Names in Kafka of the topics that the plan would release."""
    digest: str
    """Hash of the ids of these topics."""

    @classmethod
    def of(cls, planned: ArmingPlan) -> _RememberedPlan:
        """Returns these parts of a plan."""
        names = frozenset(one.topic.physical_name for one in planned.names)
        return cls(planned.calls, names, _digest(planned.names))

    @property
    def size(self) -> int:
        """Number of calls and names."""
        return len(self.calls) + len(self.names)


@dataclass(frozen=True, slots=True)
class ArmingResult:
    """Outcome of an arming."""

    calls_made: int
    left: bool = False
    """True: the elected server continues with the other calls."""
    message: str = ""
    """What did not go as planned."""
    revision: int = field(default=0, compare=False)
    """The newest that this call committed; 0 = none."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """Request for a plan, with its entry."""

    snapshot: Snapshot
    path: Path
    aspect: str
    entry: Directory | Topic
    place: tuple[int, str] | None
    takeover: bool
    assume: int
    """Id of an entry that counts as armed in any case; 0 = none."""

    def plan_hash(self, calls: Iterable[KafkaCall], about: str = "") -> str:
        """Returns the name of the plan with these calls. Even with the same calls, the plans of a
        topic and a directory of one path differ, as do those of an entry before and after an
        arming.
        """
        text = f"{self.aspect} of {self.entry.kind.name.lower()} {self.entry.entry_id:x}"
        if about:
            known = load_armed_record(self.snapshot, self.aspect, self.entry.entry_id)
            text += f", {about}, after: {'' if known is None else known.plan}"
        return plan_hash(self.path, text, calls)


class ArmingService:
    """Service of plans and armings of one cluster, for any thread."""

    def __init__(self, context: KafkaContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._plans: OrderedDict[str, _RememberedPlan] = OrderedDict()

    def plan(
        self,
        path: Path,
        aspect: str,
        kind: Kind | None = None,
        *,
        takeover: bool = False,
        armed_only: bool = False,
        timeout_seconds: float = 10.0,
    ) -> ArmingPlan:
        """Returns the exact calls that arming an aspect at a path would make now; reads Kafka,
        changes nothing. ``kind``: of the entry at the path; None = the topic, if there is one, else
        the directory. ``takeover``: also calls for ACLs that close resources open to all.
        ``armed_only``: only the calls still to be made for armed entries, no plan to arm by.

        Raises:
            InvalidArgument: no such aspect.
            Absent: no directory and no topic at the path.
            AboveCeiling: the server's config does not allow it, or another cluster manages Kafka.
            NotReady: the inherited policies are not known.
            LimitExceeded: there would be more ACLs than the server's config allows.
            KafkaUnavailable, KafkaRejected, KafkaReplaced, VanishGuard
        """
        snapshot = self._context.latest()
        asked = self._asked(snapshot, path, aspect, kind, takeover=takeover, armed_only=armed_only)
        planned = self._plan(asked, timeout_seconds)
        if not armed_only:
            self._remember(planned)
        return planned

    def _remember(self, planned: ArmingPlan) -> None:
        kept = _RememberedPlan.of(planned)
        with self._lock:
            self._plans.pop(planned.plan, None)
            self._plans[planned.plan] = kept
            size = sum(one.size for one in self._plans.values())
            while len(self._plans) > _PLANS or size > _REMEMBERED:
                size -= self._plans.popitem(last=False)[1].size

    def arm(  # noqa: PLR0913 - a plan, and who asks for it
        self,
        path: Path,
        aspect: str,
        plan: str,
        kind: Kind | None = None,
        *,
        takeover: bool = False,
        principal: str = "",
        request_id: str = "",
        timeout_seconds: float = 10.0,
        authorize: Callable[[Snapshot], Sequence[Guard]] = lambda _: (),
    ) -> ArmingResult:
        """Arms by a plan that was reviewed; waits, within the timeout, until its calls are made.
        ``authorize``: that of ``Writer.commit_command``.

        Raises:
            EtagMismatch: the plan is outdated; its message has the changes.
            all that ``plan`` raises
            StoreUnavailable
        """
        deadline = self._context.clock() + timeout_seconds
        snapshot = self._context.latest()
        entry, _ = self._found(snapshot, path, kind)
        known = load_armed_record(snapshot, aspect, entry.entry_id)
        basis = inherited_basis(snapshot, self._context.mount_at(snapshot))
        is_armed = entry.policies.manage.get(aspect, False)
        if known is not None and is_armed and _is_by_plan(known, plan, basis, takeover=takeover):
            return self._wait_for(known, deadline)  # the same request, repeated
        asked = self._asked(snapshot, path, aspect, kind, takeover=takeover)
        now = self._plan(asked, max(0.1, deadline - self._context.clock()))
        if now.plan != plan:
            raise EtagMismatch(self._outdated(path, aspect, plan, now), path=path, etag=now.plan)
        mark = ArmedRecord(
            aspect=aspect,
            entry_id=entry.entry_id,
            place=now.place,
            plan=plan,
            calls=len(now.calls),
            pending=aspect in _PUSHED,
            basis=basis,
            takeover=takeover,
            physical_name=entry.physical_name if isinstance(entry, Topic) else "",
        )
        if aspect == CONFIGS:
            self._keep_names(snapshot, entry.entry_id, now, principal)

        def authorize_same(newest: Snapshot) -> Sequence[Guard]:
            guards = authorize(newest)
            if self._found(newest, path, entry.kind)[0].entry_id != entry.entry_id:
                gone = f"plan {plan} is about an entry that is no longer at {path}"
                raise EtagMismatch(f"{gone}; nothing was changed", path=path)
            return guards

        field = f"policies.manage.{aspect}"
        armed = self._context.writer.commit_command(
            UpdateEntry(path=path, kind=entry.kind, changes=MappingProxyType({field: True})),
            principal=principal,
            request_id=request_id,
            timeout_seconds=max(0.1, deadline - self._context.clock()),
            extra_guards=(KeyEquals(mark.key, snapshot.fact(mark.key)),),
            extra_writes=_armed_writes(snapshot, mark),
            authorize=authorize_same,
        )
        _log.info(
            "%s: %s armed %s at %s by plan %s, %d calls",
            self._context.cluster, principal or "an anonymous caller", aspect, path, plan,
            mark.calls,
        )  # fmt: skip
        return replace(self._wait_for(mark, deadline), revision=armed.revision)

    def _keep_names(
        self, snapshot: Snapshot, entry_id: int, now: ArmingPlan, principal: str
    ) -> None:
        """Records which topics the plan names: they may be too many for the transaction that arms.
        Only that transaction releases them.
        """
        names = [Released(one.place, one.topic.entry_id, one.topic.topic_id) for one in now.names]
        commits = TopicCommits(self._context.writer, self._context.limits, None, principal)
        known = self._context.latest()
        writes = release_writes(snapshot, now.plan, entry_id, names)
        # A request that is repeated after its deadline continues where the first one ended.
        commits.put_all([one for one in writes if known.fact(one.key) != one.value])

    def _outdated(self, path: Path, aspect: str, plan: str, now: ArmingPlan) -> str:
        """Returns the message about a plan that is not the current one."""
        with self._lock:
            before = self._plans.get(plan)
        changed = f"it would make {plural(len(now.calls), 'call')} now"
        if before is not None:
            changed = (
                _call_differences(before.calls, now.calls)
                or _name_differences(before, _RememberedPlan.of(now))
                or "its path, its aspect or --takeover was another, or one was armed there since"
            )
        return (
            f"plan {plan} is outdated: {changed}; nothing was changed; review the new plan: "
            f"kdir arm {path} --aspect {aspect}"
        )

    def _wait_for(self, mark: ArmedRecord, deadline: float) -> ArmingResult:
        until = deadline - _ANSWER_SECONDS
        while True:
            found = load_armed_record(self._context.latest(), mark.aspect, mark.entry_id)
            if found is None or found.plan != mark.plan:
                return ArmingResult(0, message="armed again by another plan meanwhile, or gone")
            if not found.pending:
                return ArmingResult(found.made, message=found.message)
            if found.message or self._context.clock() >= until:
                return ArmingResult(found.made, left=True, message=found.message)
            self._context.sleep(_LOOK_SECONDS)

    def _asked(
        self,
        snapshot: Snapshot,
        path: Path,
        aspect: str,
        kind: Kind | None,
        *,
        takeover: bool,
        armed_only: bool = False,
    ) -> _Asked:
        self._check(snapshot, aspect)
        if takeover and aspect != ACLS:
            raise InvalidArgument("takeover: is about acls, and no other aspect", field="takeover")
        entry, place = self._found(snapshot, path, kind)
        assume = 0 if armed_only else entry.entry_id
        return _Asked(snapshot, path, aspect, entry, place, takeover, assume)

    def _plan(self, asked: _Asked, seconds: float) -> ArmingPlan:
        if asked.aspect == ACLS:
            return self._plan_acls(asked, seconds)
        if asked.aspect == CONFIGS:
            return self._plan_configs(asked, seconds)
        # Topics are created and deleted on a caller's request, by path: arming these aspects
        # sets off no calls.
        return ArmingPlan(asked.plan_hash(()), (), asked.entry, asked.place)

    def _plan_configs(self, asked: _Asked, seconds: float) -> ArmingPlan:
        subjects = self._subjects(asked)
        calls = self._config_calls(asked.snapshot, subjects, seconds)
        names = tuple(one for one in subjects if not one.released and one.topic.topic_id)
        # The same calls may name other topics.
        plan = asked.plan_hash(calls, f"of: {_digest(names)}")
        return ArmingPlan(plan, calls, asked.entry, asked.place, names=names)

    def _plan_acls(self, asked: _Asked, seconds: float) -> ArmingPlan:
        snapshot, limit = asked.snapshot, self._context.settings.max_acls
        start = ArmedEntry(*asked.place) if asked.place else ArmedEntry(asked.entry.entry_id)
        starts, mount = [*armed_starts(snapshot), start], self._context.mount_at(snapshot)
        expired, assume = self._context.has_expired(), asked.assume
        scope = arming_scope(snapshot, mount, start, expired=expired, assume=assume)
        if not (scope or assume):  # nothing is armed there: perhaps Kafka keeps no ACLs
            return ArmingPlan(asked.plan_hash(()), (), asked.entry, asked.place)
        with self._asking(snapshot, seconds) as admin:
            view = admin.acls()
        desired_set = desired_acls(snapshot, mount, starts, expired=expired, assume=assume)
        rules = AclDiffOptions(
            revert_external_changes=True, released=True, open_to_all=view.open_to_all
        )
        found, survey = FoundAcls(view.bindings), AclDiffs(snapshot, desired_set)
        diffs = survey.diffs(found, lambda _: rules, scope)
        changes = [(one.resource, one.add, one.remove) for one in diffs]
        calls = tuple(ordered_calls(changes, {one.resource for one in diffs if one.opens}))
        calls = self._with_refusals(calls, diffs, survey, view)
        made = [one for one in diffs if asked.takeover or not one.opens]
        after = view.count + sum(one.growth for one in made)
        if after > limit and after > view.count:
            raise LimitExceeded(
                f"Kafka would have {after} ACLs, it has {view.count} now, and {limit} is the most "
                f"that [kafka] max_acls allows: grant on fewer topics, or raise it",
                limit="max_acls",
                value=limit,
            )
        plan = asked.plan_hash(calls, f"takeover: {asked.takeover}")
        acls = AclPlan(calls, view.count, after, limit)
        return ArmingPlan(plan, calls, asked.entry, asked.place, acls)

    def _with_refusals(
        self,
        calls: tuple[KafkaCall, ...],
        diffs: Sequence[AclDiff],
        survey: AclDiffs,
        view: ObservedAcls,
    ) -> tuple[KafkaCall, ...]:
        """Returns the calls. Those that Kafka refused and that only a plan repeats have Kafka's
        message; not those for ACLs that wait or that another client removed.
        """
        applied = AclDiffOptions(
            revert_external_changes=self._context.settings.revert_external_changes,
            open_to_all=view.open_to_all,
        )
        refused = [one.resource for one in diffs if one.before.refused]
        again = survey.diffs(FoundAcls(view.bindings), lambda _: applied, refused)
        asked = {one.resource: one.asked for one in again}

        def refusal(call: KafkaCall) -> str:
            record = asked.get(call.binding.resource) if call.binding is not None else None
            if view.refusal or record is None or call.binding is None:
                return view.refusal
            return "" if call.binding.acl in record.held | record.lost else record.refused

        return tuple(replace(call, rejected=refusal(call)) for call in calls)

    def _check(self, snapshot: Snapshot, aspect: str) -> None:
        if aspect not in ASPECTS:
            raise InvalidArgument(
                f"aspect: found {aspect!r}; expected one of {', '.join(ASPECTS)}",
                field="aspect",
            )
        if aspect not in self._context.settings.ceiling:
            raise AboveCeiling(
                f"the config of cluster {self._context.cluster} does not allow kdir to change "
                f'{aspect} in Kafka; [kafka] ceiling = ["{aspect}"] would',
                ceiling=" ".join(sorted(self._context.settings.ceiling)) or "observe",
            )
        if message := why_inherited_missing(snapshot, has_parent=self._context.has_parent):
            raise NotReady(message)
        held = PinnedKafka.load(snapshot)
        held.refuse_stopped()
        if not held.pinned:
            raise NotReady("Kafka was not read yet; ask again")
        if message := self._context.unmanaged():
            if message == NOT_KNOWN:
                raise NotReady(message)
            raise AboveCeiling(without_manager(message))  # it does not end by asking again
        if held.unmanaged:
            raise NotReady(NOT_ON_RECORD)

    def _found(
        self, snapshot: Snapshot, path: Path, kind: Kind | None
    ) -> tuple[Directory | Topic, tuple[int, str] | None]:
        """Returns the entry at a path, a topic before a directory, and the place of a topic.

        Raises:
            Absent: there is none, or it is a link or a mount.
            InvalidPhysicalName: it is an internal topic's.
        """
        try:
            found = locate_entry(snapshot, self._context.mount_at(snapshot), path, kind)
        except (InvalidNamespace, NotAuthoritative):  # the path leads through a link or a mount
            raise _nothing_to_arm(path) from None
        match found.entry:
            case Directory() as directory:
                return directory, None
            case Topic() as topic:
                refuse_protected(topic.physical_name)
                return topic, (found.parent_id, found.name)
            case _:
                raise _nothing_to_arm(path)

    def _subjects(self, asked: _Asked) -> list[ArmedTopic]:
        """Returns the topics that a plan is about, by path."""
        mount = self._context.mount_at(asked.snapshot)
        armed = ArmedTopics(asked.snapshot, mount, assume=asked.assume)
        if asked.place is None:
            return sorted(armed.below(asked.entry.entry_id), key=lambda one: one.path)
        return list(armed.at_places([asked.place]))

    def _config_calls(
        self, snapshot: Snapshot, subjects: Sequence[ArmedTopic], seconds: float
    ) -> tuple[KafkaCall, ...]:
        """Returns the calls for these topics once the plan is armed: then none waits."""
        rules = ConfigDiffOptions(revert_external_changes=True, repeated=True)
        applied = ConfigDiffOptions(
            revert_external_changes=self._context.settings.revert_external_changes
        )
        room = PartitionQuota(snapshot, self._context.mount_at(snapshot))
        calls: list[KafkaCall] = []
        for subject, have in self._observe_topics(snapshot, subjects, seconds):
            try:
                pushed = load_applied_configs(snapshot, subject.topic.entry_id)
            except ValueError:
                continue  # nothing may be done to it
            found = diff_configs(replace(subject, released=True), have, pushed, rules)
            allowed = room.allowed_calls(subject, found.calls)
            if pushed.refused:
                # Empty unless the calls without a plan are exactly those that Kafka refused.
                rejected = diff_configs(subject, have, pushed, applied).asked.refused
                allowed = [replace(call, rejected=rejected) for call in allowed]
            calls += allowed
        return tuple(calls)

    def _observe_topics(
        self, snapshot: Snapshot, subjects: Sequence[ArmedTopic], seconds: float
    ) -> Iterator[tuple[ArmedTopic, ObservedConfig]]:
        """Yields the topics that Kafka has with the recorded id, as it has them now. Raises if it
        does not return the configs of a topic that the plan would release: the plan would lack its
        calls.
        """
        with self._asking(snapshot, seconds) as admin:
            for start in range(0, len(subjects), _BATCH):
                batch = subjects[start : start + _BATCH]
                names = [one.name for one in batch]
                shown, configs = admin.describe(names), admin.configs(names)
                for one in batch:
                    seen, have = shown.get(one.name), configs.get(one.name)
                    if isinstance(have, Rejected):
                        raise KafkaRejected(f"configs of topic {one.name}: {have.message}")
                    if not isinstance(seen, KafkaTopic) or not seen.topic_id:
                        continue
                    if seen.topic_id != one.topic.topic_id:
                        continue
                    if have is not None:
                        yield one, ObservedConfig(have, seen.partitions)
                    elif not one.released:
                        raise KafkaUnavailable(
                            f"Kafka cannot return the configs of topic {one.name} now: ask again"
                        )

    @contextmanager
    def _asking(self, snapshot: Snapshot, seconds: float) -> Iterator[KafkaAdmin]:
        """Opens a connection to the pinned Kafka, for a call with this timeout."""
        with closing(self._context.open_admin(seconds)) as admin:
            PinnedKafka.load(snapshot).refuse_another(admin.cluster_id())
            yield admin


def _is_by_plan(known: ArmedRecord, plan: str, basis: str, *, takeover: bool) -> bool:
    """True if an entry was armed by this plan; for configs also on this basis, since a plan that
    was armed on another basis releases nothing now.
    """
    if (known.plan, known.takeover) != (plan, takeover):
        return False
    return known.aspect != CONFIGS or known.basis == basis


def _armed_writes(snapshot: Snapshot, mark: ArmedRecord) -> list[Write]:
    """Returns the writes that record that an entry is armed."""
    writes: list[Write] = [mark.to_put()]
    if mark.aspect == ACLS and snapshot.fact(ACL_BASIS) is None:
        writes.append(Put(ACL_BASIS, mark.basis.encode()))
    if mark.aspect == CONFIGS:
        writes.append(armed_plan(mark.plan, mark.basis, mark.entry_id))
    return writes


def _nothing_to_arm(path: Path) -> Absent:
    return Absent(f"{path} is no directory and no topic of this cluster", path=path)


def _digest(names: Sequence[ArmedTopic]) -> str:
    """Returns the hash of the topics that a plan names, without their paths."""
    ids = sorted((one.topic.entry_id, one.topic.topic_id) for one in names)
    text = b"".join(b"%x %b\n" % (entry_id, topic_id.hex().encode()) for entry_id, topic_id in ids)
    return hashlib.sha256(text).hexdigest()


def plan_hash(path: Path, aspect: str, calls: Iterable[KafkaCall]) -> str:
    """Returns the name of a plan: a hash of its path, its aspect and its calls, in order."""
    return hash_text([str(path), aspect, [_to_row(one) for one in calls]])


def _to_row(call: KafkaCall) -> list[object]:
    row: list[object] = [call.operation, call.resource, call.key, call.before, call.after]
    return row if call.binding is None else [*row, call.takeover]


# -- differences of two plans, for people; empty = none --------------------------------------------


def _name_differences(before: _RememberedPlan, now: _RememberedPlan) -> str:
    found = [f"{name} came" for name in sorted(now.names - before.names)]
    found += [f"{name} went" for name in sorted(before.names - now.names)]
    if not found and before.digest != now.digest:
        found = ["a topic was replaced by another one of its name"]
    return first_of(found, _NAMED)


def _call_differences(before: Iterable[KafkaCall], now: Iterable[KafkaCall]) -> str:
    was, is_now = ({(one.resource, one.key): one for one in calls} for calls in (before, now))
    found = [
        f"{' '.join(place)}: {_call_text(was.get(place))}, now {_call_text(is_now.get(place))}"
        for place in sorted(was.keys() | is_now.keys())
        if was.get(place) != is_now.get(place)
    ]
    return first_of(found, _NAMED)


def _call_text(call: KafkaCall | None) -> str:
    if call is None:
        return "no call"
    if call.binding is not None:
        return call.operation
    return f"{format_value(call.before)} → {format_value(call.after)}"
