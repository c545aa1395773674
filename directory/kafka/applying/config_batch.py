"""One batch of config pushes: what Kafka has, what follows, the calls, and what came of them.

What is asked is on record before it is asked, so that every step may be the last one of a process
(as in ``provision.py``). Refuses to decide what is asked (``arming.py``), which topics' turn it is
(``config_applier.py``), and to touch a topic whose id is not the one on record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from directory.federation import facts
from directory.kafka.applying import arming
from directory.kafka.applying.altered import Altered, Change
from directory.kafka.applying.arming import Found, Rules, Subject, Verdict
from directory.kafka.applying.desired_configs import Wished
from directory.kafka.applying.partition_growth import Granting
from directory.kafka.applying.pushed import Pushed, pushed_of
from directory.kafka.applying.releases import Releases
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
from directory.kafka.fenced_commits import TopicCommits
from directory.kafka.inheritance import basis_of
from directory.namespace.command import TopicNews
from directory.namespace.snapshot import Snapshot
from directory.store.base import Write
from resolver.path import Path

__all__ = ["ConfigPushing", "Tally", "subjects_at"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 2.0
"""Kafka changes by name: no longer after its id was compared may a topic be changed."""


@dataclass(slots=True)
class Tally:
    """What came of the calls so far."""

    made: int = 0
    unsure: dict[tuple[int, str], None] = field(default_factory=dict)
    """Places of which nothing could be said: they have to be looked at again."""
    refused: str = ""
    """Kafka's words to one of them."""
    no_room: dict[tuple[int, str], None] = field(default_factory=dict)
    """Places of what did not grow, for a quota leaves no room."""


def subjects_at(
    snapshot: Snapshot, mount: Path, places: Sequence[tuple[int, str]]
) -> Iterator[Subject]:
    """Those of the topics at these places that are armed."""
    above, releases = facts.inherited_policies(snapshot), Releases(snapshot, mount)
    for place in places:
        one = arming.subject_at(snapshot, mount, above, place, releases=releases)
        if one is not None:
            yield one


class ConfigPushing:
    """For one leader, in its thread. The arguments are those of ``Pusher``.

    Args:
        altered: what was changed a short while ago, and what it notes what it changes in.
    """

    def __init__(
        self,
        cluster: str,
        commits: TopicCommits,
        latest: Callable[[], Snapshot],
        mount_at: Callable[[Snapshot], Path],
        altered: Altered,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._altered = altered
        self._cluster = cluster
        self._commits = commits
        self._latest = latest
        self._mount_at = mount_at
        self._clock = clock

    def carry_out(
        self,
        snapshot: Snapshot,
        rules: Rules,
        tally: Tally,
        places: Sequence[tuple[int, str]],
        admin: KafkaAdmin,
    ) -> int:
        """Judge the topics at these places by what Kafka has, and ask for what follows; how many
        were changed. The snapshot is one on which these rules hold.

        Raises:
            KafkaUnavailable, KafkaRefused, LeadershipLost, StoreUnavailable
        """
        # As they are by now: the walk may be old.
        now = list(subjects_at(snapshot, self._mount_at(snapshot), places))
        names = [subject.topic.physical_name for subject in now]
        shown, configs = admin.describe(names), admin.configs(names)
        judged: list[tuple[Subject, Verdict]] = []
        records: list[Pushed] = []
        writes: list[Write] = []
        for subject in now:
            pushed = pushed_of(snapshot, subject.topic.entry_id)
            seen = shown.get(subject.topic.physical_name)
            found = configs.get(subject.topic.physical_name)
            if not _is_same(subject, seen) or found is None or isinstance(found, Refused):
                if isinstance(found, Refused):
                    tally.refused = f"configs of {subject.topic.physical_name}: {found.words}"
                elif _may_come(seen):
                    tally.unsure[subject.place] = None
                continue
            assert isinstance(seen, Seen)  # noqa: S101 - it is the same
            known = self._altered.configs(seen.topic_id, found)
            have = Found(known, self._altered.seen(seen).partitions)
            verdict = arming.judge(subject, have, pushed, rules)
            judged.append((subject, verdict))
            records.append(pushed)
        granting = Granting(self._commits, self._latest, self._mount_at, judged)
        for (subject, verdict), pushed in zip(granting.asked(), records, strict=True):
            if verdict.asked != pushed:
                writes.append(verdict.asked.to_write(subject.topic.entry_id))
        self._commits.put_all(writes)
        wished, judged = judged, granting.granted()
        for (subject, before), (_, verdict) in zip(wished, judged, strict=True):
            if before.grows_to and not verdict.grows_to:
                tally.no_room[subject.place] = None
        asks = [pair for pair in judged if pair[1].calls]
        outcomes = self._ask(snapshot, asks, admin) if asks else {}
        self._record(tally, judged, outcomes)
        return len(asks)

    def _ask(
        self, snapshot: Snapshot, asks: Sequence[tuple[Subject, Verdict]], admin: KafkaAdmin
    ) -> dict[str, Outcome]:
        """Make the calls; the outcome of each topic. One whose id is not the one that was compared
        any more is left out.
        """
        basis = basis_of(snapshot, self._mount_at(snapshot))
        names = [subject.topic.physical_name for subject, _ in asks]
        # What was committed since may have taken long: the ids are compared right before.
        shown = admin.describe(names)
        looked_at = self._clock()

        def still() -> None:
            self._commits.check()
            latest = self._latest()
            changed = basis_of(latest, self._mount_at(latest)) != basis
            if changed or self._clock() - looked_at > _LOOK_SECONDS:
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
        tally: Tally,
        judged: Sequence[tuple[Subject, Verdict]],
        outcomes: dict[str, Outcome],
    ) -> None:
        writes: list[Write] = []
        news: list[TopicNews] = []
        changes: list[Change] = []
        for subject, verdict in judged:
            name, entry_id = subject.topic.physical_name, subject.topic.entry_id
            if not verdict.calls:
                news += _news(subject, verdict)
                continue
            match outcomes.get(name, Unknown("no outcome")):
                case Done() | AlreadySo():
                    tally.made += len(verdict.calls)
                    changes.append(_change(subject, verdict))
                    news += _news(subject, verdict)
                    if verdict.done != verdict.asked:
                        writes.append(verdict.done.to_write(entry_id))
                    _log.info("%s: %s", self._cluster, _told(verdict))
                case Refused(words):
                    tally.refused = f"{name}: {words}"
                    _log.warning("%s: %s refused: %s", self._cluster, name, words)
                    kept = replace(
                        verdict.asked,
                        refused=words,
                        refused_calls=arming.calls_hash(verdict.calls),
                    )
                    writes.append(kept.to_write(entry_id))
                case Unknown(words):
                    tally.unsure[subject.place] = None
                    _log.warning("%s: %s: %s; it is tried again", self._cluster, name, words)
                case other:
                    assert_never(other)
        # Before what may raise: Kafka was changed, whatever becomes of our records.
        self._altered.note(changes)
        self._commits.record(news)
        self._commits.put_all(writes)


class _LookedTooLongAgo(Exception):
    """The ids that were compared may not be those of now, or nothing is released any more."""


def _is_same(subject: Subject, seen: Seen | Refused | None) -> bool:
    topic_id = subject.topic.topic_id
    return isinstance(seen, Seen) and bool(seen.partitions and topic_id) and (
        seen.topic_id == topic_id
    )  # fmt: skip


def _may_come(seen: Seen | Refused | None) -> bool:
    """Whether a broker that does not show a topic, or shows it half, may show it whole later: right
    after it was made. One that is gone for good is found missing by the next sweep.
    """
    return seen is None or (isinstance(seen, Seen) and not (seen.partitions and seen.topic_id))


def _change(subject: Subject, verdict: Verdict) -> Change:
    before = {
        call.key: call.before
        for call in verdict.calls
        if call.operation == arming.ALTER and call.before is not None
    }
    topic = subject.topic
    return Change(
        topic.physical_name, topic.topic_id, before, verdict.alterations, verdict.grows_to
    )


def _news(subject: Subject, verdict: Verdict) -> list[TopicNews]:
    topic, wished = subject.topic, Wished(subject.configs, subject.partitions)
    after = replace(topic, observed_config=verdict.configs)
    if verdict.partitions > topic.partitions:
        after = replace(after, partitions=verdict.partitions)
    news = config_news(Recorded(subject.path, topic, wished), verdict.configs)
    if after.partitions == topic.partitions:
        return [] if news is None else [news]
    known = news or TopicNews(path=subject.path, entry_id=topic.entry_id)
    drift = len(differences(after, wished=wished))
    return [replace(known, partitions=after.partitions, drift_count=drift)]


def _told(verdict: Verdict) -> str:
    first = verdict.calls[0]
    more = f" and {len(verdict.calls) - 1} more" if len(verdict.calls) > 1 else ""
    after = "(default)" if first.after is None else first.after
    return f"{first.operation} {first.resource} {first.key} → {after}{more}"
