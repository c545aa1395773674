"""Impact of a planned change of one entry: the entries and topics that it removes, moves or
affects, changed policies, exceeded quotas, retired names.

Pure, computed from the snapshots before and after. ``access/permission_diff.py`` computes gained
and lost rights, ``kafka/arming/dry_run_calls.py`` the calls to Kafka. Counts come from the
snapshot; work for each entry stops when the time budget is spent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

from directory.access.grant_tree import EntryPlace
from directory.namespace.effective_policies import (
    InheritorCounts,
    PolicyLevel,
    Shown,
    count_inheritors,
    effective,
    levels_of,
    set_fields,
)
from directory.namespace.entry import Directory, Entry, Kind, Link, Mount, Provision, Topic
from directory.namespace.plan_delete import KafkaFate, kafka_fate_of
from directory.namespace.plan_reap import is_kept_in_kafka
from directory.namespace.quotas import Quota, quotas_at
from directory.namespace.snapshot import Snapshot
from directory.namespace.time_budget import TimeBudget
from directory.namespace.topic_configs import deletes_data
from directory.namespace.traversal import LocatedEntry
from resolver.path import Path

__all__ = [
    "ChangeSide",
    "PolicyChange",
    "RemovalImpact",
    "SubtreeSize",
    "diff_effective_policies",
    "newly_exceeded_quotas",
    "removal_impact",
    "size_of",
]

_MOST_NAMES: Final = 100
_CONFIG: Final = "topic_config["


@dataclass(slots=True)
class SubtreeSize:
    """Size of an entry and everything below it in this cluster."""

    directories: int = 0
    topics: int = 0
    links: int = 0
    mounts: int = 0
    entries_with_grants: int = 0


@dataclass(slots=True)
class RemovalImpact:
    """Number of Kafka topics that are deleted or kept when entries are removed."""

    deleted: int = 0
    """Topics that are deleted with their data."""
    missing: int = 0
    """Topics that Kafka does not have: nothing is deleted."""
    replaced: int = 0
    """Topics whose name another Kafka topic has, which stays."""
    detached: int = 0
    """Topics that stay in Kafka, with their data, without an entry."""
    retired: list[str] = field(default_factory=list)
    """The first of the physical names that new topics cannot get for a day."""
    retired_count: int = 0


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """Field whose effective value changes."""

    field: str
    """As in ``set_fields``."""
    before: object
    """None: it was not set."""
    after: object
    topics: int
    """Number of topics affected, including the entry itself if it is one."""
    clusters: int
    """Number of mounted clusters that inherit it, unless they override it."""
    deletes_data: bool
    """True if Kafka may delete data by this change, where kdir is armed to change configs."""


def size_of(
    snapshot: Snapshot, found: LocatedEntry, place: EntryPlace, budget: TimeBudget
) -> SubtreeSize:
    """Returns the size of an entry. Only links are counted one by one."""
    grant_node = snapshot.grants.node_at(place)
    granted = 0 if grant_node is None else grant_node.count
    match found.entry:
        case Topic():
            return SubtreeSize(topics=1, entries_with_grants=granted)
        case Link():
            return SubtreeSize(links=1, entries_with_grants=granted)
        case Mount():
            return SubtreeSize(mounts=1, entries_with_grants=granted)
        case Directory(entry_id=entry_id):
            counts = snapshot.counts(entry_id)
            links = _links(snapshot, entry_id, budget)
            return SubtreeSize(counts.directories + 1, counts.topics, links, counts.mounts, granted)
        case _:
            assert_never(found.entry)


def _links(snapshot: Snapshot, directory_id: int, budget: TimeBudget) -> int:
    count, top = 0, snapshot.nodes.get(directory_id)
    for node in () if top is None else snapshot.directories_below(top):
        if not budget.spend(1 + len(node.containers)):
            break
        count += sum(isinstance(one, Link) for one in node.containers.values())
    return count


def removal_impact(
    snapshot: Snapshot,
    entry: Entry,
    budget: TimeBudget,
    *,
    goes_in_kafka: bool,
    shown: Shown | None = None,
) -> RemovalImpact:
    """Returns the impact of removing an entry on its topics in Kafka; visits each topic.

    ``goes_in_kafka``: the removal may delete topics in Kafka; policies below the entry may still
    keep some. With ``shown`` only topics for which it is true are counted.
    """
    found = RemovalImpact()
    for topic, is_kept in _topics(snapshot, entry, budget, shown):
        found.missing += topic.provision is Provision.MISSING
        found.replaced += topic.provision is Provision.REPLACED
        match kafka_fate_of(topic, goes_in_kafka=goes_in_kafka and not is_kept):
            case KafkaFate.DELETED:
                found.deleted += topic.provision is not Provision.MISSING
            case KafkaFate.DETACHED:
                found.detached += 1
                continue
            case KafkaFate.FORGOTTEN:
                continue
            case KafkaFate.RETIRED:
                pass
        found.retired_count += 1
        if len(found.retired) < _MOST_NAMES:
            found.retired.append(topic.physical_name)
    return found


def _topics(
    snapshot: Snapshot, entry: Entry, budget: TimeBudget, shown: Shown | None
) -> Iterator[tuple[Topic, bool]]:
    """Yields each topic that is removed with an entry, and whether its own policies, or those of a
    directory between, keep it in Kafka.
    """
    if isinstance(entry, Topic):
        yield entry, False
    kept: set[int] = set()
    top = snapshot.nodes.get(entry.entry_id) if isinstance(entry, Directory) else None
    for node in () if top is None else snapshot.directories_below(top):
        if node.parent_id in kept or is_kept_in_kafka(node.directory):
            kept.add(node.entry_id)
        for name, record in node.topics.items():
            if not budget.spend():
                return
            if shown is not None and not shown(node.entry_id, name, Kind.TOPIC):
                continue
            try:
                topic = snapshot.codec.decode(record)
            except ValueError:
                continue  # removed with its directory
            if isinstance(topic, Topic):
                yield topic, node.entry_id in kept or is_kept_in_kafka(topic)


# -- policies --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangeSide:
    """One side of a change: a snapshot and the entry in it."""

    snapshot: Snapshot
    standing: LocatedEntry


def diff_effective_policies(
    before: ChangeSide,
    after: ChangeSide,
    above: Sequence[PolicyLevel],
    budget: TimeBudget,
    shown: Shown | None = None,
) -> tuple[PolicyChange, ...]:
    """Returns the fields whose effective value at an entry changes, in order, with the number of
    topics at and below it that inherit the change.

    ``above`` are the policies of the ancestors above the mount, outermost first. With ``shown``
    only topics and mounts for which it is true are counted.
    """
    was, now = _effective(before, above), _effective(after, above)
    names = {name for name in was.keys() | now.keys() if was.get(name) != now.get(name)}
    if not names:
        return ()
    heirs = _heirs(after, frozenset(names), budget, shown)
    return tuple(
        PolicyChange(
            name,
            was.get(name),
            now.get(name),
            heirs.by_field[name],
            heirs.clusters[name],
            _deletes(name, was.get(name), now.get(name)),
        )
        for name in sorted(names)
    )


def _effective(kept: ChangeSide, above: Sequence[PolicyLevel]) -> dict[str, object]:
    """Returns the effective policies of an entry by field, as ``set_fields`` does."""
    found, levels = kept.standing, [level.policies for level in above]
    match found.entry:
        case Directory(entry_id=entry_id):
            levels += levels_of(kept.snapshot, entry_id)
        case Topic(policies=policies):
            levels += [*levels_of(kept.snapshot, found.parent_id), policies]
        case Mount():
            levels += levels_of(kept.snapshot, found.parent_id)
        case Link():
            return {}  # its target has policies of its own
    return set_fields(effective(levels))


def _heirs(
    kept: ChangeSide, names: frozenset[str], budget: TimeBudget, shown: Shown | None
) -> InheritorCounts:
    found = kept.standing
    if isinstance(found.entry, Directory):
        return count_inheritors(kept.snapshot, found.entry.entry_id, names, budget, shown)
    heirs = InheritorCounts()
    (heirs.by_field if isinstance(found.entry, Topic) else heirs.clusters).update(names)
    return heirs


def _deletes(name: str, before: object, after: object) -> bool:
    if not name.startswith(_CONFIG):
        return False
    key = name.removeprefix(_CONFIG).removesuffix("]")
    return deletes_data(key, *(None if one is None else str(one) for one in (before, after)))


# -- quotas ----------------------------------------------------------------------------------------


def newly_exceeded_quotas(
    before: ChangeSide, after: ChangeSide, mount: Path, above: Sequence[PolicyLevel]
) -> tuple[tuple[Quota, int], ...]:
    """Returns the quotas at and above an entry that are exceeded after the change, each with the
    amount used; without those that were exceeded before by the same amount.

    A move that exceeds a quota is refused; setting a quota below the current use is not.
    """
    was = {(quota, used) for quota, used in _exceeded(before, mount, above)}
    return tuple(one for one in _exceeded(after, mount, above) if one not in was)


def _exceeded(
    kept: ChangeSide, mount: Path, above: Sequence[PolicyLevel]
) -> Iterator[tuple[Quota, int]]:
    found = kept.standing
    at = found.entry.entry_id if isinstance(found.entry, Directory) else found.parent_id
    node = kept.snapshot.nodes.get(at)
    if node is None:
        return
    for quota in quotas_at(kept.snapshot, mount, above, node):
        used = quota.used(kept.snapshot)
        if used > quota.limit:
            yield quota, used
