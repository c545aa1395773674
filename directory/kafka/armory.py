"""What operators ask about arming: the plan of it, and to arm by a plan that was read.

Any server may do it, elected or not: what is committed says what is to be done, and the elected
reconciler does it (``config_applier.py``), also when this server dies. Refuses to change Kafka
itself.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final

from directory.federation import facts
from directory.kafka.acl_planning import AclPlan, plan_acls
from directory.kafka.applying import arming
from directory.kafka.applying.arming import Found, KafkaCall, Rules, Subject
from directory.kafka.applying.desired_acls import Start
from directory.kafka.applying.last_applied_acls import ACL_BASIS
from directory.kafka.applying.partition_growth import Room
from directory.kafka.applying.pushed import Mark, mark_of, pushed_of
from directory.kafka.applying.releases import Released, armed_plan, release_writes
from directory.kafka.contract import KafkaAdmin, Refused, Seen
from directory.kafka.desk import Desk
from directory.kafka.fenced_commits import TopicCommits
from directory.kafka.inheritance import basis_of, missing_word
from directory.kafka.pin_and_stop import NOT_ON_RECORD, KafkaFacts
from directory.kafka.reconciler_settings import ACLS, CONFIGS
from directory.namespace.command import UpdateEntry
from directory.namespace.entry import Directory, Kind, Topic
from directory.namespace.fields import ASPECTS
from directory.namespace.physical_names import refuse_protected
from directory.namespace.snapshot import Snapshot
from directory.namespace.traversal import standing
from directory.store.base import Guard, KeyIs, Put, Write
from resolver.errors import (
    AboveCeiling,
    Absent,
    EtagMismatch,
    InvalidArgument,
    InvalidNamespace,
    KafkaRefused,
    KafkaReplaced,
    NotAuthoritative,
    NotReady,
    VanishGuard,
)
from resolver.path import Path

__all__ = ["Armed", "Armory", "Planned"]

_log = logging.getLogger(__name__)

_PLANS: Final = 16
"""So many plans are remembered, to say what changed since one of them."""
_PUSHED: Final = frozenset({CONFIGS, ACLS})
"""The aspects that the elected reconciler makes so."""
_BATCH: Final = 1_000
_NAMED: Final = 3
_ANSWER_SECONDS: Final = 1.0
"""So much of a request's time is kept for its answer."""
_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Planned:
    """What arming would do."""

    plan: str
    """Its name."""
    calls: tuple[KafkaCall, ...]
    entry: Directory | Topic
    place: tuple[int, str] | None
    """Of a topic."""
    acls: AclPlan | None = None
    """Of the aspect ``acls``."""
    names: tuple[Subject, ...] = ()
    """Of the aspect ``configs``: the topics that would be released by it."""


@dataclass(frozen=True, slots=True)
class Armed:
    """What arming did."""

    calls_made: int
    left: bool = False
    """The elected server goes on with it."""
    message: str = ""
    """What did not go as planned."""


class Armory:
    """For any thread."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._lock = threading.Lock()
        self._plans: OrderedDict[str, Planned] = OrderedDict()

    def plan(
        self, path: Path, aspect: str, kind: Kind | None = None, *, takeover: bool = False
    ) -> Planned:
        """The exact calls that arming an aspect at a path would make now; asks Kafka, changes
        nothing. ``kind`` is that of the entry that is meant; None: the topic, where there is one.
        ``takeover``, of ACLs: also those that close what is open to all.

        Raises:
            InvalidArgument: no such aspect.
            Absent: no directory and no topic there.
            AboveCeiling: the server's config does not allow it, or another cluster manages Kafka.
            NotReady: what is inherited is not known.
            LimitExceeded: there would be more ACLs than the server's config allows.
            KafkaUnavailable, KafkaRefused, KafkaReplaced, VanishGuard
        """
        planned = self._plan(self._desk.latest(), path, kind, aspect, takeover)
        with self._lock:
            self._plans[planned.plan] = planned
            while len(self._plans) > _PLANS:
                self._plans.popitem(last=False)
        return planned

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
    ) -> Armed:
        """Arm by a plan that was read; waits until its calls are made, as long as there is time.
        ``authorize`` is asked on the snapshot that is committed on, as ``Writer.execute`` does.

        Raises:
            EtagMismatch: the plan would be another one by now; says what changed.
            all that ``plan`` raises
            StoreUnavailable
        """
        deadline = self._desk.clock() + timeout_seconds
        snapshot = self._desk.latest()
        entry, _ = self._found(snapshot, path, kind)
        known = mark_of(snapshot, aspect, entry.entry_id)
        basis = basis_of(snapshot, self._desk.mount_at(snapshot))
        same = known is not None and (known.plan, known.takeover) == (plan, takeover)
        if aspect == CONFIGS and known is not None:
            same = same and known.basis == basis  # else it released nothing that holds now
        if known is not None and same and _says(entry, aspect):
            return self._wait_for(known, deadline)  # the same request, asked again
        now = self._plan(snapshot, path, kind, aspect, takeover)
        if now.plan != plan:
            raise EtagMismatch(self._other(path, aspect, plan, now), path=path, etag=now.plan)
        mark = Mark(
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
        writes: list[Write] = [mark.to_put()]
        if aspect == ACLS and snapshot.fact(ACL_BASIS) is None:
            writes.append(Put(ACL_BASIS, mark.basis.encode()))
        if aspect == CONFIGS:
            self._keep_names(snapshot, entry.entry_id, now, principal)
            writes.append(armed_plan(plan, basis, entry.entry_id))
        rights = partial(self._authorize, path, now, authorize)
        self._commit(
            snapshot,
            path,
            now,
            mark,
            writes,
            principal=principal,
            request_id=request_id,
            deadline=deadline,
            authorize=rights,
        )
        _log.info(
            "%s: %s armed %s at %s by plan %s, %d calls",
            self._desk.cluster, principal or "somebody", aspect, path, plan, mark.calls,
        )  # fmt: skip
        return self._wait_for(mark, deadline)

    def _keep_names(self, snapshot: Snapshot, entry_id: int, now: Planned, principal: str) -> None:
        """Which topics the plan names: they may be too many for the transaction that arms, and are
        released by that only.
        """
        names = [Released(one.place, one.topic.entry_id, one.topic.topic_id) for one in now.names]
        commits = TopicCommits(self._desk.writer, self._desk.limits, None, principal)
        known = self._desk.latest()
        writes = release_writes(snapshot, now.plan, entry_id, names)
        # Whoever asks again, since the time was over, goes on where it ended.
        commits.put_all([one for one in writes if known.fact(one.key) != one.value])

    def _commit(  # noqa: PLR0913
        self,
        snapshot: Snapshot,
        path: Path,
        now: Planned,
        mark: Mark,
        writes: Sequence[Write],
        *,
        principal: str,
        request_id: str,
        deadline: float,
        authorize: Callable[[Snapshot], Sequence[Guard]],
    ) -> None:
        field = f"policies.manage.{mark.aspect}"
        kind = now.entry.kind
        self._desk.writer.execute(
            UpdateEntry(path=path, kind=kind, changes=MappingProxyType({field: True})),
            principal=principal,
            request_id=request_id,
            timeout_seconds=max(0.1, deadline - self._desk.clock()),
            extra_guards=(KeyIs(mark.key, snapshot.fact(mark.key)),),
            extra_writes=writes,
            authorize=authorize,
        )

    def _authorize(
        self,
        path: Path,
        now: Planned,
        authorize: Callable[[Snapshot], Sequence[Guard]],
        snapshot: Snapshot,
    ) -> Sequence[Guard]:
        """What the caller may, on the snapshot that is committed on, of the entry of the plan.

        Raises:
            EtagMismatch: another entry stands there by now.
        """
        guards = authorize(snapshot)
        if self._found(snapshot, path, now.entry.kind)[0].entry_id != now.entry.entry_id:
            raise EtagMismatch(
                f"plan {now.plan} is about an entry that does not stand at {path} any more; "
                f"nothing was changed",
                path=path,
            )
        return guards

    def _other(self, path: Path, aspect: str, plan: str, now: Planned) -> str:
        """What is said of a plan that is not the one of now."""
        with self._lock:
            before = self._plans.get(plan)
        if before is None:
            changed = f"it would make {len(now.calls)} calls now"
        else:
            changed = (
                arming.what_changed(before.calls, now.calls)
                or _named_otherwise(before, now)
                or "its path, its aspect or --takeover was another, or one was armed there since"
            )
        return (
            f"plan {plan} is outdated: {changed}; nothing was changed; review the new plan: "
            f"kdir arm {path} --aspect {aspect}"
        )

    def _wait_for(self, mark: Mark, deadline: float) -> Armed:
        until = deadline - _ANSWER_SECONDS
        while True:
            found = mark_of(self._desk.latest(), mark.aspect, mark.entry_id)
            if found is None or found.plan != mark.plan:
                return Armed(0, message="armed anew by another plan meanwhile")
            if not found.pending:
                return Armed(found.made, message=found.message)
            if found.message or self._desk.clock() >= until:
                return Armed(found.made, left=True, message=found.message)
            self._desk.sleep(_LOOK_SECONDS)

    # -- the plan ------------------------------------------------------------------------------

    def _plan(
        self,
        snapshot: Snapshot,
        path: Path,
        kind: Kind | None,
        aspect: str,
        takeover: bool,  # noqa: FBT001
    ) -> Planned:
        self._check(snapshot, aspect)
        if takeover and aspect != ACLS:
            raise InvalidArgument("takeover: is about acls, and no other aspect", field="takeover")
        entry, place = self._found(snapshot, path, kind)
        if aspect == ACLS:
            return self._plan_acls(snapshot, path, entry, place, takeover)
        if aspect == CONFIGS:
            return self._plan_configs(snapshot, path, entry, place)
        # Kafka is asked for topics to be made or deleted when somebody asks for it, by path:
        # nothing waits there that arming could set off.
        return Planned(arming.plan_hash(path, _about(entry, aspect), ()), (), entry, place)

    def _plan_configs(
        self,
        snapshot: Snapshot,
        path: Path,
        entry: Directory | Topic,
        place: tuple[int, str] | None,
    ) -> Planned:
        subjects = self._subjects(snapshot, entry, place)
        calls = self._calls(snapshot, subjects)
        names = tuple(one for one in subjects if not one.released and one.topic.topic_id)
        # The same calls may be needed again later, or the same ones name other topics: that is
        # another plan then.
        known = mark_of(snapshot, CONFIGS, entry.entry_id)
        after = "" if known is None else known.plan
        about = f"{_about(entry, CONFIGS)}, of: {_digest(names)}, after: {after}"
        return Planned(arming.plan_hash(path, about, calls), calls, entry, place, names=names)

    def _plan_acls(
        self,
        snapshot: Snapshot,
        path: Path,
        entry: Directory | Topic,
        place: tuple[int, str] | None,
        takeover: bool,  # noqa: FBT001
    ) -> Planned:
        settings = self._desk.settings
        most = settings.grants_max_age_seconds
        with self._asking(snapshot) as admin:
            found = plan_acls(
                admin,
                snapshot,
                self._desk.mount_at(snapshot),
                Start(entry.entry_id) if place is None else Start(*place),
                entry.entry_id,
                takeover=takeover,
                expired=most is not None and self._desk.unconfirmed_seconds() > most,
                limit=settings.acl_limit,
            )
        # The same calls may be needed again later: that is another plan then.
        known = mark_of(snapshot, ACLS, entry.entry_id)
        after = "" if known is None else known.plan
        about = f"{_about(entry, ACLS)}, takeover: {takeover}, after: {after}"
        plan = arming.plan_hash(path, about, found.calls)
        return Planned(plan, found.calls, entry, place, found)

    def _check(self, snapshot: Snapshot, aspect: str) -> None:
        if aspect not in ASPECTS:
            raise InvalidArgument(
                f"aspect: found {aspect!r}; expected one of {', '.join(ASPECTS)}",
                field="aspect",
            )
        if aspect not in self._desk.settings.ceiling:
            raise AboveCeiling(
                f"the config of cluster {self._desk.cluster} does not allow kdir to change "
                f'{aspect} in Kafka; [kafka] ceiling = ["{aspect}"] would',
                ceiling=" ".join(sorted(self._desk.settings.ceiling)) or "observe",
            )
        if words := missing_word(snapshot, has_parent=self._desk.settings.has_parent):
            raise NotReady(words)
        held = KafkaFacts.of(snapshot)
        if held.stop is not None:
            raise (KafkaReplaced if held.stop.kafka_id else VanishGuard)(held.stop.text)
        if not held.pinned:
            raise NotReady("Kafka was not looked at yet")
        if words := self._desk.unmanaged():
            raise AboveCeiling(words)  # it does not end by asking again
        if held.unmanaged:
            raise NotReady(NOT_ON_RECORD)

    def _found(
        self, snapshot: Snapshot, path: Path, kind: Kind | None
    ) -> tuple[Directory | Topic, tuple[int, str] | None]:
        """The entry that is meant, a topic first, and of a topic its place.

        Raises:
            Absent: there is none, or it is a link or a mount.
            InvalidPhysicalName: it is an internal topic's.
        """
        try:
            found = standing(snapshot, self._desk.mount_at(snapshot), path, kind)
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

    def _subjects(
        self, snapshot: Snapshot, entry: Directory | Topic, place: tuple[int, str] | None
    ) -> list[Subject]:
        """The topics that a plan is about, by path."""
        mount, above = self._desk.mount_at(snapshot), facts.inherited_policies(snapshot)
        assume = entry.entry_id
        subjects: list[Subject]
        if place is None:
            subjects = list(arming.subjects(snapshot, mount, above, assume, assume))
        else:
            one = arming.subject_at(snapshot, mount, above, place, assume)
            subjects = [] if one is None else [one]
        return sorted(subjects, key=lambda one: one.path)

    def _calls(self, snapshot: Snapshot, subjects: Sequence[Subject]) -> tuple[KafkaCall, ...]:
        """What follows for them once the plan is armed: nothing waits then."""
        found = self._look(snapshot, subjects)
        rules, room = Rules(mend=True, repeated=True), Room(snapshot, self._desk.mount_at(snapshot))
        calls: list[KafkaCall] = []
        for subject in subjects:
            have = found.get(subject.topic.physical_name)
            if have is None:
                continue
            try:
                pushed = pushed_of(snapshot, subject.topic.entry_id)
            except ValueError:
                continue
            released = replace(subject, released=True)
            calls += room.possible(subject, arming.judge(released, have, pushed, rules).calls)
        return tuple(calls)

    def _look(self, snapshot: Snapshot, subjects: Sequence[Subject]) -> Mapping[str, Found]:
        """Those topics as Kafka has them now, where it has the very ones."""
        found: dict[str, Found] = {}
        with self._asking(snapshot) as admin:
            for start in range(0, len(subjects), _BATCH):
                batch = subjects[start : start + _BATCH]
                names = [one.topic.physical_name for one in batch]
                shown, configs = admin.describe(names), admin.configs(names)
                for one in batch:
                    name = one.topic.physical_name
                    seen, have = shown.get(name), configs.get(name)
                    if isinstance(have, Refused):
                        raise KafkaRefused(f"configs of topic {name}: {have.words}")
                    same = isinstance(seen, Seen) and seen.topic_id == one.topic.topic_id
                    if isinstance(seen, Seen) and same and seen.topic_id and have is not None:
                        found[name] = Found(have, seen.partitions)
        return found

    @contextmanager
    def _asking(self, snapshot: Snapshot) -> Iterator[KafkaAdmin]:
        """A connection to the very Kafka that is pinned."""
        pinned = KafkaFacts.of(snapshot).pinned
        with closing(self._desk.admin()) as admin:
            seen_id = admin.cluster_id()
            if seen_id != pinned:
                raise KafkaReplaced(
                    f"another Kafka cluster answers: {seen_id}; this directory belongs to {pinned}",
                    pinned=pinned,
                    seen=seen_id,
                )
            yield admin


def _about(entry: Directory | Topic, aspect: str) -> str:
    """What a plan is about: a topic's is none of the directory's beside it, whatever it calls."""
    return f"{aspect} of {entry.kind.name.lower()} {entry.entry_id:x}"


def _nothing_to_arm(path: Path) -> Absent:
    return Absent(f"{path} is no directory and no topic of this cluster", path=path)


def _digest(names: Sequence[Subject]) -> str:
    """Of the topics that a plan names, whatever their paths."""
    ids = sorted((one.topic.entry_id, one.topic.topic_id) for one in names)
    text = b"".join(b"%x %b\n" % (entry_id, topic_id.hex().encode()) for entry_id, topic_id in ids)
    return hashlib.sha256(text).hexdigest()


def _named_otherwise(before: Planned, now: Planned) -> str:
    """How two plans differ in the topics that they name, for people; empty = in nothing."""
    was, is_now = ({one.topic.physical_name for one in plan.names} for plan in (before, now))
    words = [f"{name} came" for name in sorted(is_now - was)]
    words += [f"{name} went" for name in sorted(was - is_now)]
    if not words and _digest(before.names) != _digest(now.names):
        words = ["a topic was replaced by another one of its name"]
    more = f", and {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    return ", ".join(words[:_NAMED]) + more


def _says(entry: Directory | Topic, aspect: str) -> bool:
    return entry.policies.manage.get(aspect, False)
