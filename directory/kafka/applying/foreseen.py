"""What a change of the tree would make the reconciler ask of Kafka, where configs are armed.

Goes by what Kafka had at the last look; ``armory.py`` asks it anew, and only that plan arms. Calls
that wait already, whatever is changed here, are no part of it, nor those that will wait. Refuses to
ask Kafka anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from directory.kafka.applying.arming import Found, KafkaCall, Subject, is_armed, judge, subject_at
from directory.kafka.applying.partition_growth import Room
from directory.kafka.applying.pushed import armed_anywhere, pushed_of
from directory.kafka.applying.releases import Releases
from directory.kafka.reconciler_settings import CONFIGS
from directory.namespace.entry import Directory, Policies, Topic
from directory.namespace.inheriting import Shown
from directory.namespace.policy_checks import directories_below
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.time_budget import Budget
from directory.namespace.traversal import Standing
from resolver.path import Path

__all__ = ["Seen", "config_calls"]


@dataclass(frozen=True, slots=True)
class Seen:
    """An entry on one side of a change."""

    snapshot: Snapshot
    standing: Standing
    mount: Path
    above: Sequence[Policies]
    """What the ancestors above the mount set, outermost first."""

    def subject(self, place: tuple[int, str], releases: Releases) -> Subject | None:
        """The armed topic at a place."""
        return subject_at(self.snapshot, self.mount, self.above, place, releases=releases)


def config_calls(
    before: Seen, after: Seen, budget: Budget, shown: Shown | None = None
) -> Iterator[KafkaCall]:
    """The calls about configs and partitions of the topics at and below an entry that follow from
    its change, topic by topic; with ``shown`` only of those of which it says so. Ends with the
    budget.
    """
    if not armed_anywhere(after.snapshot, CONFIGS):
        return
    room = Room(after.snapshot, after.mount)
    released_before = Releases(before.snapshot, before.mount)
    released_after = Releases(after.snapshot, after.mount)
    for place in _places(after, budget):
        is_shown = shown is None or shown(*place)
        now = after.subject(place, released_after) if is_shown else None
        if now is None:
            continue
        is_entry = isinstance(after.standing.entry, Topic)
        was = before.subject(_place(before.standing) if is_entry else place, released_before)
        known = set(_calls(before.snapshot, was))
        news = (call for call in _calls(after.snapshot, now) if call not in known)
        yield from room.possible(now, news)


def _calls(snapshot: Snapshot, subject: Subject | None) -> tuple[KafkaCall, ...]:
    if subject is None:
        return ()
    topic = subject.topic
    try:
        pushed = pushed_of(snapshot, topic.entry_id)
    except ValueError:
        return ()  # nothing may be done to it
    return judge(subject, Found(topic.observed_config, topic.partitions), pushed).calls


def _places(seen: Seen, budget: Budget) -> Iterator[tuple[int, str]]:
    """Where there may be an armed topic."""
    entry = seen.standing.entry
    if isinstance(entry, Topic):
        yield _place(seen.standing)
    top = seen.snapshot.node(entry.entry_id) if isinstance(entry, Directory) else None
    for node in () if top is None else directories_below(seen.snapshot, top):
        if not budget.spend():
            return
        yield from _armed_in(seen.snapshot, node, budget)


def _armed_in(snapshot: Snapshot, node: Node, budget: Budget) -> Iterator[tuple[int, str]]:
    armed = is_armed(snapshot, node.entry_id)
    for name, record in node.topics.items():
        if not budget.spend():
            return
        if snapshot.codec.policies(record).manage.get(CONFIGS, armed):
            yield node.entry_id, name


def _place(standing: Standing) -> tuple[int, str]:
    return standing.parent_id, standing.name
