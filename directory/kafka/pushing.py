"""Pushes to Kafka what holds below armed directories, for one elected reconciler, in its thread.

What is asked is on record before it is asked, so that every step may be the last one of a process
(as in ``provision.py``). Refuses to decide what is asked (``arming.py``), to act while what is
inherited is not known, and to touch a topic whose id is not the one on record.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, assert_never

from directory.federation import facts
from directory.kafka import arming
from directory.kafka.arming import Found, Rules, Subject, Verdict
from directory.kafka.commits import TopicCommits
from directory.kafka.compare import Recorded, config_news, differences
from directory.kafka.contract import (
    AlreadySo,
    Alteration,
    Done,
    KafkaAdmin,
    Outcome,
    Refused,
    Seen,
    Unknown,
)
from directory.kafka.facts import KafkaFacts
from directory.kafka.inheritance import basis_of, missing_word
from directory.kafka.pushed import ARMED, BASIS, Mark, Pushed, armed_anywhere, marks, pushed_of
from directory.kafka.settings import CONFIGS, KafkaSettings
from directory.namespace.command import TopicNews
from directory.namespace.entry import DELETED_ID, ROOT_ID, Directory, Policies
from directory.namespace.keys import ENTRY, PARENT, parse_entry_key
from directory.namespace.snapshot import Snapshot
from directory.namespace.tree import ROOT_KEY
from directory.store.base import Put, Write
from directory.store.replica import Applied
from resolver.path import Path

__all__ = ["Pusher"]

_log = logging.getLogger(__name__)

_BATCH: Final = 250
"""Topics of one request to Kafka, and of one step."""
_SCANNED: Final = 5_000
"""Topics that one step looks at in memory: people's wishes come in between."""
_LOOK_SECONDS: Final = 2.0
"""Kafka changes by name: no longer after its id was compared may a topic be changed."""
_WORDS_FROM_ABOVE: Final = frozenset({facts.INHERITED_KEY, PARENT, facts.UNMOUNTED_KEY})
_AGAIN_SECONDS: Final = 2.0
"""Until what could not be finished is tried again."""


@dataclass(slots=True)
class _Pass:
    """A walk over topics that may want pushing."""

    topics: Callable[[Snapshot], Iterator[Subject]]
    rules: Rules
    basis: str = ""
    """The basis to be recorded once it is through."""
    mark: Mark | None = None
    """The arming that it carries out."""
    walk: Iterator[Subject] | None = None
    unsure: bool = False
    """Of some nothing could be said: it has to be made again."""
    made: int = 0
    refused: str = ""


class Pusher:
    """For one leader. ``hint`` and ``next_due`` may be called from any thread, ``push`` by one.

    Args:
        latest: the newest snapshot, which holds what was committed before.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        cluster: str,
        settings: KafkaSettings,
        commits: TopicCommits,
        latest: Callable[[], Snapshot],
        mount: Callable[[], Path],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._commits = commits
        self._latest = latest
        self._mount = mount
        self._clock = clock
        self._rules = Rules(mend=settings.mend)
        self._lock = threading.Lock()
        # Who comes new into office looks at everything: what the one before left undone is there.
        self._directories: dict[int, None] = {ROOT_ID: None}
        self._topics: dict[tuple[int, str], None] = {}
        self._gone: set[int] = set()
        self._marks = True
        self._passes: list[_Pass] = []
        self._due = 0.0
        self.note = ""
        """Why nothing is pushed; empty = nothing is in the way."""

    # -- what may want pushing -----------------------------------------------------------------

    def hint(self, applied: Applied) -> bool:
        """Note what a commit changed; whether that may want pushing."""
        if applied.reloaded:
            with self._lock:
                self._directories, self._marks = {ROOT_ID: None}, True
            return True
        if CONFIGS not in self._settings.ceiling or not armed_anywhere(applied.after, CONFIGS):
            return False
        before = self._noted()
        removed: set[int] = set()
        kept: set[int] = set()
        with self._lock:
            for write in applied.writes:
                if write.key == ROOT_KEY:
                    self._directories[ROOT_ID] = None
                elif write.key.startswith(ENTRY):
                    self._hint_entry(applied, write, removed, kept)
                elif write.key in _WORDS_FROM_ABOVE:
                    self._directories[ROOT_ID] = None
                elif write.key.startswith(ARMED):
                    self._marks = True
            self._gone |= removed - kept
        return self._noted() != before or self._marks

    def _noted(self) -> tuple[int, int, int]:
        return len(self._directories), len(self._topics), len(self._gone)

    def _hint_entry(
        self, applied: Applied, write: Write, removed: set[int], kept: set[int]
    ) -> None:
        parent_id, is_topic, name = parse_entry_key(write.key)
        if not is_topic:
            if isinstance(write, Put):
                self._hint_directory(applied, parent_id, name)
        elif isinstance(write, Put):
            topic = applied.after.topic(parent_id, name)
            if topic is not None:
                kept.add(topic.entry_id)
                if parent_id != DELETED_ID:
                    self._topics[parent_id, name] = None
        else:
            topic = applied.before.topic(parent_id, name)
            if topic is not None:
                removed.add(topic.entry_id)

    def _hint_directory(self, applied: Applied, parent_id: int, name: str) -> None:
        found = applied.after.container(parent_id, name)
        if not isinstance(found, Directory) or parent_id == DELETED_ID:
            return
        known = applied.before.node(found.entry_id)
        same = known is not None and known.parent_id == parent_id
        if not same or (known is not None and known.directory.policies != found.policies):
            self._directories[found.entry_id] = None

    def next_due(self) -> float | None:
        """When there is something to do, by the clock; None = nothing waits, or all of it does."""
        if CONFIGS not in self._settings.ceiling:
            return None
        with self._lock:
            waits = bool(self._directories or self._topics or self._gone or self._marks)
        return self._due if self._passes or waits else None

    # -- one step ------------------------------------------------------------------------------

    def push(self, admin: KafkaAdmin) -> None:
        """Do a part of what is due: at most so much as the rate allows.

        Raises:
            KafkaUnavailable, KafkaRefused, LeadershipLost, StoreUnavailable
        """
        snapshot, mount = self._latest(), self._mount()
        if not armed_anywhere(snapshot, CONFIGS):
            self._take_hints()
            return
        self.note = missing_word(snapshot, has_parent=self._settings.has_parent)
        if self.note:
            # Woken when it is known. All is looked at then.
            self._take_hints()
            self._passes = []
            with self._lock:
                self._directories[ROOT_ID] = None
            self._due = self._clock() + _AGAIN_SECONDS
            return
        self._plan_passes(snapshot, mount)
        if not self._passes:
            return
        held = KafkaFacts.of(snapshot)
        # The last sweep is up to half a minute old, and now something will be changed.
        if admin.cluster_id() != held.pinned:
            self._due = self._clock() + _AGAIN_SECONDS
            return
        one = self._passes[0]
        changed = 0
        try:
            subjects, through = self._gather(one, snapshot)
            if subjects:
                changed = self._carry_out(one, subjects, admin)
        except BaseException:
            # Kafka went away, or the store: what was taken from the walk is not lost.
            one.walk = None
            raise
        self._due = self._clock() + changed / self._settings.changes_per_second
        if through:
            self._end(one)

    def _end(self, one: _Pass) -> None:
        if one.unsure:
            one.walk, one.unsure = None, False
            self._due = max(self._due, self._clock() + _AGAIN_SECONDS)
            return
        self._passes.remove(one)
        if one.basis:
            self._commits.put((Put(BASIS, one.basis.encode()),))
        if one.mark is not None:
            done = replace(one.mark, pending=False, made=one.made, message=one.refused)
            self._commits.put((done.to_put(),))

    def _take_hints(self) -> tuple[Sequence[int], Sequence[tuple[int, str]], set[int], bool]:
        with self._lock:
            found = list(self._directories), list(self._topics), self._gone, self._marks
            self._directories, self._topics, self._gone, self._marks = {}, {}, set(), False
        return found

    def _plan_passes(self, snapshot: Snapshot, mount: Path) -> None:
        directories, topics, gone, look_at_marks = self._take_hints()
        if gone:
            forgotten = (Pushed().to_write(entry_id) for entry_id in sorted(gone))
            self._commits.put_all([one for one in forgotten if snapshot.fact(one.key) is not None])
        basis = basis_of(snapshot, mount)
        known = (snapshot.fact(BASIS) or b"").decode(errors="replace")
        if known != basis and not any(one.basis == basis for one in self._passes):
            _log.warning(
                "%s: a mount, a restore or a detach may have changed what is inherited (%s, was "
                "%s): what would delete data waits for kdir arm",
                self._cluster,
                basis,
                known or "not known",
            )
            guarded = self._below(ROOT_ID, replace(self._rules, guarded=True))
            guarded.basis = basis
            self._passes, look_at_marks = [guarded], True
        if look_at_marks:
            self._release(snapshot, basis)
        if ROOT_ID in directories:
            directories = [ROOT_ID]
        self._passes += [self._below(one, self._rules) for one in directories]
        if topics:
            self._passes.append(_Pass(partial(self._at, places=topics), self._rules))

    def _release(self, snapshot: Snapshot, basis: str) -> None:
        """Armings that are not through yet. What each plan showed, its reader agreed to."""
        under_way = {one.mark.key for one in self._passes if one.mark is not None}
        for mark in marks(snapshot, CONFIGS):
            if not mark.pending or mark.key in under_way:
                continue
            rules = replace(self._rules, released=mark.basis == basis)
            one = self._below(mark.entry_id, rules)
            if mark.place is not None:
                one = _Pass(partial(self._at, places=[mark.place]), rules)
            one.mark = mark
            self._passes.append(one)

    def _below(self, directory_id: int, rules: Rules) -> _Pass:
        def walk(snapshot: Snapshot) -> Iterator[Subject]:
            return arming.subjects(snapshot, self._mount(), _above(snapshot), directory_id)

        return _Pass(walk, rules)

    def _at(self, snapshot: Snapshot, places: Sequence[tuple[int, str]]) -> Iterator[Subject]:
        above, mount = _above(snapshot), self._mount()
        for place in places:
            one = arming.subject_at(snapshot, mount, above, place)
            if one is not None:
                yield one

    def _gather(self, one: _Pass, snapshot: Snapshot) -> tuple[list[Subject], bool]:
        """The next topics of a pass that Kafka has to be asked about; whether it is through."""
        if one.walk is None:
            one.walk = one.topics(snapshot)
        most = max(1, min(_BATCH, int(self._settings.changes_per_second)))
        found: list[Subject] = []
        for _ in range(_SCANNED):
            subject = next(one.walk, None)
            if subject is None:
                return found, True
            try:
                pushed = pushed_of(snapshot, subject.topic.entry_id)
            except ValueError as reason:
                _log.error("%s is left alone: %s", subject.path, reason)
                continue
            if arming.needs_look(subject, pushed, one.rules):
                found.append(subject)
                if len(found) >= most:
                    return found, False
        return found, False

    # -- one batch -----------------------------------------------------------------------------

    def _carry_out(self, one: _Pass, subjects: Sequence[Subject], admin: KafkaAdmin) -> int:
        """Judge these topics by what Kafka has, and ask for what follows; how many were changed."""
        snapshot = self._latest()
        # As they are by now: the walk may be old.
        now = list(self._at(snapshot, [subject.place for subject in subjects]))
        names = [subject.topic.physical_name for subject in now]
        shown, configs = admin.describe(names), admin.configs(names)
        judged: list[tuple[Subject, Verdict]] = []
        writes: list[Write] = []
        for subject in now:
            pushed = pushed_of(snapshot, subject.topic.entry_id)
            seen = shown.get(subject.topic.physical_name)
            found = configs.get(subject.topic.physical_name)
            if not _is_same(subject, seen) or found is None or isinstance(found, Refused):
                self._cannot(one, subject, pushed, found, writes)
                continue
            assert isinstance(seen, Seen)  # noqa: S101 - it is the same
            have = Found(found, seen.partitions)
            verdict = arming.judge(subject, have, pushed, one.rules)
            judged.append((subject, verdict))
            if verdict.asked != pushed:
                writes.append(verdict.asked.to_write(subject.topic.entry_id))
        self._commits.put_all(writes)
        asks = [pair for pair in judged if pair[1].calls]
        outcomes = self._ask(asks, admin) if asks else {}
        self._record(one, judged, outcomes)
        return len(asks)

    def _cannot(
        self,
        one: _Pass,
        subject: Subject,
        pushed: Pushed,
        found: object,
        writes: list[Write],
    ) -> None:
        """Kafka does not show the topic, shows another one, or does not let its configs be read."""
        if isinstance(found, Refused):
            one.refused = f"configs of {subject.topic.physical_name}: {found.words}"
        if one.rules.guarded:
            names = subject.configs.keys() | pushed.configs.keys() | {arming.PARTITIONS}
            held = replace(pushed, held=frozenset(names))
            if held != pushed:
                writes.append(held.to_write(subject.topic.entry_id))

    def _ask(
        self, asks: Sequence[tuple[Subject, Verdict]], admin: KafkaAdmin
    ) -> dict[str, Outcome]:
        """Make the calls; the outcome of each topic. One whose id is not the one that was compared
        any more is left out.
        """
        names = [subject.topic.physical_name for subject, _ in asks]
        # What was committed since may have taken long: the ids are compared right before.
        shown = admin.describe(names)
        looked_at = self._clock()

        def still() -> None:
            self._commits.check()
            if self._clock() - looked_at > _LOOK_SECONDS:
                raise _LookedTooLongAgo

        same = [pair for pair in asks if _is_same(pair[0], shown.get(pair[0].topic.physical_name))]
        changes = [
            Alteration(subject.topic.physical_name, verdict.alterations)
            for subject, verdict in same
            if verdict.alterations
        ]
        grown = {
            subject.topic.physical_name: verdict.grows_to
            for subject, verdict in same
            if verdict.grows_to
        }
        outcomes: dict[str, Outcome] = {}
        try:
            if changes:
                outcomes.update(admin.alter(changes, still))
            if grown:
                for name, outcome in admin.grow(grown, still).items():
                    if isinstance(outcomes.get(name, Done()), Done):
                        outcomes[name] = outcome
        except _LookedTooLongAgo:
            _log.warning("%s: %d topics are looked at again", self._cluster, len(same))
            # Whichever were changed, it is found out by looking.
            return dict.fromkeys(names, Unknown("looked at too long ago"))
        return outcomes

    def _record(
        self,
        one: _Pass,
        judged: Sequence[tuple[Subject, Verdict]],
        outcomes: dict[str, Outcome],
    ) -> None:
        writes: list[Write] = []
        news: list[TopicNews] = []
        for subject, verdict in judged:
            name, entry_id = subject.topic.physical_name, subject.topic.entry_id
            if not verdict.calls:
                news += _news(subject, verdict)
                continue
            match outcomes.get(name, Unknown("no outcome")):
                case Done() | AlreadySo():
                    one.made += len(verdict.calls)
                    news += _news(subject, verdict)
                    if verdict.done != verdict.asked:
                        writes.append(verdict.done.to_write(entry_id))
                    _log.info("%s: %s", self._cluster, _told(verdict))
                case Refused(words):
                    one.refused = f"{name}: {words}"
                    _log.warning("%s: %s refused: %s", self._cluster, name, words)
                    kept = replace(
                        verdict.asked,
                        refused=words,
                        refused_calls=arming.calls_hash(verdict.calls),
                    )
                    writes.append(kept.to_write(entry_id))
                case Unknown(words):
                    one.unsure = True
                    _log.warning("%s: %s: %s; it is tried again", self._cluster, name, words)
                case other:
                    assert_never(other)
        self._commits.record(news)
        self._commits.put_all(writes)


class _LookedTooLongAgo(Exception):
    """The ids that were compared may not be those of now."""


def _above(snapshot: Snapshot) -> list[Policies]:
    """What the ancestors above the mount set, but for what they let kdir do: that was not planned
    with this cluster's Kafka.
    """
    return facts.inherited_policies(snapshot)


def _is_same(subject: Subject, seen: Seen | Refused | None) -> bool:
    topic_id = subject.topic.topic_id
    return isinstance(seen, Seen) and bool(seen.partitions and topic_id) and (
        seen.topic_id == topic_id
    )  # fmt: skip


def _news(subject: Subject, verdict: Verdict) -> list[TopicNews]:
    topic = subject.topic
    after = replace(topic, observed_config=verdict.configs)
    if verdict.partitions > topic.partitions:
        after = replace(after, partitions=verdict.partitions)
    news = config_news(Recorded(subject.path, topic), verdict.configs)
    if after.partitions == topic.partitions:
        return [] if news is None else [news]
    known = news or TopicNews(path=subject.path, entry_id=topic.entry_id)
    drift = len(differences(after))
    return [replace(known, partitions=after.partitions, drift_count=drift)]


def _told(verdict: Verdict) -> str:
    first = verdict.calls[0]
    more = f" and {len(verdict.calls) - 1} more" if len(verdict.calls) > 1 else ""
    after = "(default)" if first.after is None else first.after
    return f"{first.operation} {first.resource} {first.key} → {after}{more}"
