"""Adoption on an operator's request: a row for each topic, and carrying the rows out.

``directory/namespace/adoption_mapping.py`` decides each topic's path.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from directory.kafka.admin_contract import KafkaMetadata, KafkaTopic
from directory.kafka.applying.desired_configs import RecordedTopic
from directory.kafka.applying.last_applied import AppliedRecord, configs_to_write
from directory.kafka.fenced_commits import TopicCommits
from directory.namespace.adoption_mapping import (
    Adoption,
    AdoptionAction,
    MappingRule,
    is_deleted,
    plan_adoption,
)
from directory.namespace.command import ObservedTopic, TopicObservation
from directory.namespace.entry import Provision
from directory.namespace.plan_create import TAKEN_OVER
from directory.namespace.protected_topics import is_protected
from directory.namespace.snapshot import Snapshot
from directory.namespace.traversal import entry_path
from directory.store.large_change_records import LargeAdoption
from resolver.path import Path

__all__ = [
    "AdoptionBacklog",
    "AdoptionRow",
    "CreateStep",
    "MoveStep",
    "Step",
    "TakeOverStep",
    "carry_out",
    "observed",
    "plan",
    "taken_in",
]


@dataclass(frozen=True, slots=True)
class AdoptionRow:
    """Row with what adoption does, did or would do with one topic (``kdir.v1.Adoption``)."""

    physical_name: str
    path: Path | None
    """Path of the topic's entry, now or after the adoption; None = it has none."""
    rule: int
    action: str
    message: str = ""
    step: Step = field(default=None, repr=False, compare=False)
    """Change that carries it out; None = nothing to do."""


@dataclass(frozen=True, slots=True)
class CreateStep:
    """Step that makes a new entry."""

    segments: tuple[str, ...]
    observed: ObservedTopic


@dataclass(frozen=True, slots=True)
class MoveStep:
    """Step that moves an entry that was adopted before."""

    source: Path
    entry_id: int


@dataclass(frozen=True, slots=True)
class TakeOverStep:
    """Step by which an entry takes over Kafka's topic of its physical name."""

    news: TopicObservation


Step = CreateStep | MoveStep | TakeOverStep | None


def taken_in(mount: Path, segments: tuple[str, ...], found: ObservedTopic) -> AdoptionRow:
    """Returns the row of a topic that gets a new entry at these segments below the mount."""
    path = mount.join(segments)
    step = CreateStep(segments, found)
    return AdoptionRow(found.physical_name, path, 0, AdoptionAction.ADOPT.value, step=step)


def observed(seen: KafkaTopic, config: Mapping[str, str] = MappingProxyType({})) -> ObservedTopic:
    """Converts a topic of Kafka to the type of the namespace."""
    return ObservedTopic(
        physical_name=seen.name,
        topic_id=seen.topic_id,
        partitions=seen.partitions,
        replication_factor=seen.replication_factor,
        config=config,
    )


def plan(
    rules: Sequence[MappingRule],
    survey: KafkaMetadata,
    snapshot: Snapshot,
    mount: Path,
    *,
    remap: bool,
) -> list[AdoptionRow]:
    """Returns what adoption would do with every topic that Kafka shows, by physical name."""
    shown = [seen for seen in survey.topics.values() if seen.partitions and not seen.internal]
    found = [one for one in map(observed, shown) if not is_deleted(snapshot, one)]
    rows = plan_adoption(rules, found, snapshot, mount=mount, remap_adopted=remap)
    return [_to_row(row, snapshot, mount) for row in rows]


def _to_row(row: Adoption, snapshot: Snapshot, mount: Path) -> AdoptionRow:
    name = row.observed.physical_name
    path = entry_path(mount, row.segments) if row.segments else None
    plain = AdoptionRow(name, path, row.rule, row.action.value, row.message)
    if row.is_new:
        return replace(plain, step=CreateStep(row.segments, row.observed))
    located = snapshot.locate(name)
    if located is None or located.relative is None:
        return plain
    here = entry_path(mount, located.relative)
    if row.action is AdoptionAction.MOVE:
        return replace(plain, step=MoveStep(here, located.topic.entry_id))
    topic = located.topic
    # Kafka may have the topic of a failed entry: from before, or made since.
    is_there = topic.provision in TAKEN_OVER and bool(row.observed.partitions)
    if not is_there or is_protected(name):
        return plain
    message = "kdir did not make it; the entry takes Kafka's topic as it is"
    if topic.provision is Provision.REPLACED:
        message = "it was replaced in Kafka; the entry takes the new topic id"
    step = _take_over(RecordedTopic(here, topic), row.observed)
    return AdoptionRow(name, here, row.rule, AdoptionAction.ADOPT.value, message, step)


def _take_over(one: RecordedTopic, found: ObservedTopic) -> TakeOverStep:
    news = one.observation(
        provision=Provision.ACTIVE,
        provision_message="",
        provision_attempt="",
        topic_id=found.topic_id,
        partitions=found.partitions,
        replication_factor=found.replication_factor,
        adopted=True,
    )
    return TakeOverStep(news)


def carry_out(rows: Sequence[AdoptionRow], commits: TopicCommits) -> list[AdoptionRow]:
    """Executes the rows' steps; returns the rows with their outcomes. For a topic that was left out
    or got another path, the message is the reason. A refused move has the action KEEP.
    """
    take_in = [step for row in rows if isinstance(step := row.step, CreateStep)]
    notes = commits.adopt([(step.segments, step.observed) for step in take_in])
    over = [step.news for row in rows if isinstance(step := row.step, TakeOverStep)]
    if over:  # their records of pushed configs are about the previous topics in Kafka
        commits.put_all([configs_to_write(news.entry_id, AppliedRecord()) for news in over])
    commits.record(over)
    moves = [
        (step.source, step.entry_id, row.path)
        for row in rows
        if isinstance(step := row.step, MoveStep) and row.path is not None
    ]
    # A note begins with a name or path, neither of which contains a space.
    by_name = {note.split(" ", 1)[0]: note for note in notes}
    stayed = {note.split(" ", 1)[0]: note for note in commits.move(moves)}
    return [_moved(_adopted(row, by_name), stayed) for row in rows]


def _adopted(row: AdoptionRow, notes: Mapping[str, str]) -> AdoptionRow:
    name = row.physical_name
    if not isinstance(row.step, CreateStep) or name not in notes:
        return row
    message = notes[name].replace(name, "it", 1)
    elsewhere, _, reason = message.removeprefix("it is put at ").partition(": ")
    if elsewhere.startswith("/"):
        path, action = Path.parse(elsewhere), AdoptionAction.COLLIDES.value
        return replace(row, path=path, action=action, message=reason)
    return replace(row, path=None, action=AdoptionAction.IGNORE.value, message=message)


def _moved(row: AdoptionRow, stayed: Mapping[str, str]) -> AdoptionRow:
    if not isinstance(step := row.step, MoveStep) or str(step.source) not in stayed:
        return row
    message = stayed[str(step.source)].replace(str(step.source), "it", 1)
    return replace(row, path=step.source, action=AdoptionAction.KEEP.value, message=message)


_log = logging.getLogger(__name__)

_BATCHES: Final = 8
"""Transactions of one slice: operators' requests come in between slices."""
_REPORTED_SECONDS: Final = 2.0
"""Interval between two records of the progress."""


class AdoptionBacklog:
    """Adoption in slices, of one leader.

    Args:
        rows: the work; rows without a step are skipped.
        change: stored record of its progress; None = not recorded.
        mount: mount path when the rows were planned: their paths begin with it.
        mount_now: returns the current mount path.

    Raises (all methods that commit):
        as ``TopicCommits``; the caller repeats the slice.
    """

    def __init__(
        self,
        rows: Sequence[AdoptionRow],
        change: LargeAdoption | None,
        clock: Callable[[], float],
        mount: Path,
        mount_now: Callable[[], Path],
    ) -> None:
        order = {CreateStep: 0, TakeOverStep: 1, MoveStep: 2}
        steps = [row for row in rows if row.step is not None]
        steps.sort(key=lambda row: order[type(row.step)])
        self._rows: Final = steps
        self._next = 0
        self._clock: Final = clock
        self._reported_at = clock()
        self._mount: Final = mount
        self._mount_now: Final = mount_now
        self.change = change
        if change is not None:
            total = change.done + change.left
            self.change = replace(change, done=max(0, total - len(steps)), left=len(steps))

    @property
    def left(self) -> int:
        """Number of topics that are left."""
        return len(self._rows) - self._next

    def begin(self, commits: TopicCommits) -> None:
        """Records that the adoption is under way."""
        if self.change is not None:
            commits.put([self.change.to_put()])

    def carry_on(self, commits: TopicCommits) -> bool:
        """Does one slice; returns whether more slices are left. At the end removes the record;
        keeps it if the mount moved, since the rest has to be planned again.
        """
        if self._is_outdated():
            return False
        size = commits.batch * _BATCHES
        rows = self._rows[self._next : self._next + size]
        principal = "" if self.change is None else self.change.principal
        for row in carry_out(rows, commits.on_behalf_of(principal)):
            if isinstance(row.step, MoveStep) and row.path == row.step.source:
                _log.warning("%s stays at %s: %s", row.physical_name, row.path, row.message)
            elif isinstance(row.step, CreateStep) and row.path is None:
                _log.warning("%s: %s", row.physical_name, row.message)
        if self._is_outdated():
            return False
        self._next += len(rows)
        self._record_progress(commits)
        return self.left > 0

    def _is_outdated(self) -> bool:
        return self._mount_now() != self._mount

    def _record_progress(self, commits: TopicCommits) -> None:
        if self.change is None:
            return
        done = self.change.done + self.change.left - self.left
        self.change = replace(self.change, done=done, left=self.left)
        if not self.left:
            commits.put([self.change.to_remove()])
        elif self._clock() >= self._reported_at + _REPORTED_SECONDS:
            self._reported_at = self._clock()
            commits.put([self.change.to_put()])
