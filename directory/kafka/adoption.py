"""Adoption as an operator asks for it: rows that say what happens with each topic, and doing it.

Where a topic goes is ``directory/namespace/mapping.py``'s to say; refuses to talk to Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from directory.kafka.applying.pushed import Pushed
from directory.kafka.contract import Seen, Survey
from directory.kafka.fenced_commits import TopicCommits
from directory.namespace.command import Observed, TopicNews
from directory.namespace.entry import Provision, Topic
from directory.namespace.mapping import Action, Adoption, MappingRule, plan_adoption
from directory.namespace.physical_names import is_protected
from directory.namespace.plan_create import TAKEN_OVER
from directory.namespace.snapshot import Located, Snapshot
from resolver.path import Path

__all__ = [
    "Adopted",
    "Move",
    "Step",
    "TakeIn",
    "TakeOver",
    "carry_out",
    "observed",
    "plan",
    "taken_in",
]


@dataclass(frozen=True, slots=True)
class Adopted:
    """What adoption does, did, or would do with one topic (``kdir.v1.Adoption``)."""

    physical_name: str
    path: Path | None
    """None = it has, and gets, no place in the tree."""
    rule: int
    action: str
    message: str = ""
    step: Step = field(default=None, repr=False, compare=False)
    """What carrying it out does; None = nothing."""


@dataclass(frozen=True, slots=True)
class TakeIn:
    """A new entry."""

    segments: tuple[str, ...]
    observed: Observed


@dataclass(frozen=True, slots=True)
class Move:
    """An entry that was adopted before goes elsewhere."""

    source: Path
    entry_id: int


@dataclass(frozen=True, slots=True)
class TakeOver:
    """An entry takes the topic that Kafka has under its name."""

    news: TopicNews


Step = TakeIn | Move | TakeOver | None


def taken_in(mount: Path, segments: tuple[str, ...], found: Observed) -> Adopted:
    """The row of a topic that gets an entry there."""
    path = Path((*mount.segments, *segments))
    step = TakeIn(segments, found)
    return Adopted(found.physical_name, path, 0, Action.ADOPT.value, step=step)


def observed(seen: Seen, config: Mapping[str, str] = MappingProxyType({})) -> Observed:
    """A topic of Kafka, in the words of the namespace."""
    return Observed(
        physical_name=seen.name,
        topic_id=seen.topic_id,
        partitions=seen.partitions,
        replication_factor=seen.replication_factor,
        config=config,
    )


def plan(
    rules: Sequence[MappingRule], survey: Survey, snapshot: Snapshot, mount: Path, *, remap: bool
) -> list[Adopted]:
    """What adoption would do with every topic that Kafka shows, by physical name."""
    shown = [seen for seen in survey.topics.values() if seen.partitions and not seen.internal]
    rows = plan_adoption(
        rules, [observed(seen) for seen in shown], snapshot, mount=mount, remap_adopted=remap
    )
    return [_row(row, snapshot, mount) for row in rows]


def _row(row: Adoption, snapshot: Snapshot, mount: Path) -> Adopted:
    name = row.observed.physical_name
    path = Path((*mount.segments, *row.segments)) if row.segments else None
    plain = Adopted(name, path, row.rule, row.action.value, row.message)
    if row.is_new:
        return replace(plain, step=TakeIn(row.segments, row.observed))
    located = snapshot.locate(name)
    if located is None or located.relative is None:
        return plain
    here = Path((*mount.segments, *located.relative))
    if row.action is Action.MOVE:
        return replace(plain, step=Move(here, located.topic.entry_id))
    if _takes_over(located, row.observed):
        return Adopted(
            name,
            here,
            row.rule,
            Action.ADOPT.value,
            _why_over(located.topic),
            TakeOver(_news(here, located.topic, row.observed)),
        )
    return plain


def _takes_over(located: Located, found: Observed) -> bool:
    # A failed entry whose topic is in Kafka all the same: it was there before, or came since.
    if is_protected(found.physical_name):
        return False
    return located.topic.provision in TAKEN_OVER and bool(found.partitions)


def _why_over(topic: Topic) -> str:
    if topic.provision is Provision.REPLACED:
        return "it was replaced in Kafka; the entry takes the new topic id"
    return "kdir did not make it; the entry takes Kafka's topic as it is"


def _news(path: Path, topic: Topic, found: Observed) -> TopicNews:
    return TopicNews(
        path=path,
        entry_id=topic.entry_id,
        provision=Provision.ACTIVE,
        provision_message="",
        provision_attempt="",
        topic_id=found.topic_id,
        partitions=found.partitions,
        replication_factor=found.replication_factor,
    )


def carry_out(rows: Sequence[Adopted], commits: TopicCommits) -> list[Adopted]:
    """Do what the rows say; a move that is refused keeps its topic where it is, and says why.

    Raises:
        StoreUnavailable
    """
    take_in = [step for row in rows if isinstance(step := row.step, TakeIn)]
    commits.adopt([(step.segments, step.observed) for step in take_in])
    over = [step.news for row in rows if isinstance(step := row.step, TakeOver)]
    if over:  # what was pushed was pushed to the topic of before
        commits.put_all([Pushed().to_write(news.entry_id) for news in over])
    commits.record(over)
    moves = [
        (step.source, step.entry_id, row.path)
        for row in rows
        if isinstance(step := row.step, Move) and row.path is not None
    ]
    # A note begins with the path that it is about, and no path holds a space.
    stayed = {note.split(" ", 1)[0]: note for note in commits.move(moves)}
    return [_moved(row, stayed) for row in rows]


def _moved(row: Adopted, stayed: Mapping[str, str]) -> Adopted:
    step = row.step
    note = stayed.get(str(step.source)) if isinstance(step, Move) else None
    if not isinstance(step, Move) or note is None:
        return row
    message = note.replace(str(step.source), "it", 1)
    return replace(row, path=step.source, action=Action.KEEP.value, message=message)
