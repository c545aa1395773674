"""Drift: differences of Kafka's configs and ACLs from the desired or recorded ones, as rows for
people; and issues of topics. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from directory.access.grants import ResourceType
from directory.kafka.admin_contract import (
    Acl,
    KafkaMetadata,
    KafkaTopic,
    Resource,
    format_value,
    show_id,
)
from directory.kafka.applying.config_diff import PARTITIONS
from directory.kafka.applying.desired_configs import (
    NO_ROOM,
    DesiredConfigs,
    DesiredTopicConfig,
    PartitionQuota,
    RecordedTopic,
    unapplied_configs,
)
from directory.kafka.applying.last_applied import (
    AppliedRecord,
    config_issues,
    load_applied_acls,
    load_every_applied_acls,
    states_of,
)
from directory.kafka.kafka_context import ACLS
from directory.namespace.entry import Kind, Provision, Topic
from directory.namespace.keys import PUSHED, pushed_key
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.time_budget import TimeBudget, checked
from directory.namespace.topic_configs import same_value
from directory.namespace.traversal import entry_path
from resolver.errors import NotReady
from resolver.path import Path

__all__ = [
    "NOT_ARMED",
    "Drift",
    "DriftedSetting",
    "acl_drift",
    "acl_state",
    "acl_states_below",
    "count_issues_below",
    "difference_states",
    "drifted_settings",
    "topic_drift",
    "topic_issues",
]


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference (``kdir.v1.Drift``)."""

    path: Path
    physical_name: str
    field: str
    expected: str
    actual: str
    provision: Provision
    state: str = ""
    """Reason of the difference (``needs-approval``, ``contested`` …); empty = not known here."""
    kind: Kind = Kind.TOPIC
    """Kind of the entry at the path; for ACLs on groups and transactional ids, a directory."""


@dataclass(frozen=True, slots=True)
class DriftedSetting:
    """One setting of a topic that is not in Kafka as desired."""

    field: str
    """``partitions``, ``replication_factor`` or ``config[<name>]``."""
    wanted: str
    found: str


def drifted_settings(
    topic: Topic, seen: KafkaTopic | None = None, desired_config: DesiredTopicConfig | None = None
) -> tuple[DriftedSetting, ...]:
    """Returns the settings that a topic does not have in Kafka as desired, in order of field.

    ``seen`` None: compares with the last record of the topic. ``desired_config`` None: only its own
    policies are desired.
    """
    partitions = seen.partitions if seen and seen.partitions else topic.partitions
    replicas = seen.replication_factor if seen and seen.partitions else topic.replication_factor
    own = topic.policies
    configs = desired_config.configs if desired_config else own.topic_config
    has = topic.observed_config
    found = [
        DriftedSetting(f"config[{name}]", format_value(value), format_value(has.get(name)))
        for name, value in sorted(configs.items())
        if not same_value(name, has.get(name), value)
    ]
    # Partitions only ever grow: if the record has more than Kafka, those are desired. A directory's
    # number is for new topics.
    desired = own.partitions or max(topic.partitions, partitions)
    if desired != partitions:
        found.append(DriftedSetting("partitions", str(desired), str(partitions)))
    if own.replication_factor and own.replication_factor != replicas:
        wanted = str(own.replication_factor)
        found.append(DriftedSetting("replication_factor", wanted, str(replicas)))
    return tuple(found)


def topic_drift(one: RecordedTopic, survey: KafkaMetadata | None = None) -> list[Drift]:
    """Returns the differences of one topic, in order of field.

    ``survey``: Kafka's topics at the last read; None = compares with the record of the topic.
    """
    topic = one.topic
    seen = survey.topics.get(topic.physical_name) if survey else None

    def row(field: str, wanted: str, found: str) -> Drift:
        return Drift(one.path, topic.physical_name, field, wanted, found, topic.provision)

    match topic.provision:
        case Provision.MISSING:
            return [row("topic_id", show_id(topic.topic_id), "(missing)")]
        case Provision.REPLACED:
            other = show_id(seen.topic_id) if seen else "(another)"
            return [row("topic_id", show_id(topic.topic_id), other)]
        case Provision.ACTIVE:
            found = drifted_settings(topic, seen, one.desired_config)
            return [row(each.field, each.wanted, each.found) for each in found]
        case _:
            # Not in Kafka yet, or there it is not kdir's: nothing to compare.
            return []


_NONE: Final = "(none)"
_MISSING: Final = "(missing)"
_FOREIGN: Final = "not kdir's"


def acl_state(snapshot: Snapshot, topic: Topic) -> str:
    """Returns the state of a topic's ACLs (``AppliedRecord.state``); empty = no issue known."""
    try:
        return load_applied_acls(snapshot, Resource(ResourceType.TOPIC, topic.physical_name)).state
    except ValueError:
        return ""


def acl_states_below(snapshot: Snapshot, way: tuple[str, ...]) -> Iterator[str]:
    """Yields the states of the ACLs of topics at or below a directory that have an issue."""
    for resource, kept in load_every_applied_acls(snapshot):
        state = "" if kept is None else kept.state
        if not state or resource.kind is not ResourceType.TOPIC:
            continue
        located = snapshot.locate(resource.name)
        relative = None if located is None else located.relative
        if relative is not None and relative[: len(way)] == way:
            yield state


def acl_drift(
    snapshot: Snapshot,
    mount: Path,
    path: Path,
    foreign: Mapping[Resource, frozenset[Acl]],
    check: Callable[[], object] = lambda: None,
) -> list[Drift]:
    """Returns the differences at and below a path. The path of a group or transactional id is that
    of an armed entry that desires its ACLs. ``check`` is called periodically, and raises when
    nobody waits for them.
    """
    rows: list[Drift] = []
    kept_by_resource = dict(checked(load_every_applied_acls(snapshot), check))
    for resource in checked(kept_by_resource.keys() | foreign.keys(), check):
        kept = kept_by_resource.get(resource) or AppliedRecord()
        at = _path_of(snapshot, mount, resource, kept)
        if at is None or not path.is_prefix_of(at):
            continue
        rows += _differences(at, resource, kept, foreign.get(resource, ()))
    return rows


def _path_of(
    snapshot: Snapshot, mount: Path, resource: Resource, kept: AppliedRecord[Acl]
) -> Path | None:
    if resource.kind is ResourceType.TOPIC:
        located = snapshot.locate(resource.name)
        relative = None if located is None else located.relative
        return None if relative is None else entry_path(mount, relative)
    return kept.path_below(mount)


def _differences(
    path: Path, resource: Resource, kept: AppliedRecord[Acl], foreign: Iterable[Acl]
) -> Iterator[Drift]:
    is_topic = resource.kind is ResourceType.TOPIC
    field = "acl" if is_topic else f"acl of {resource}"
    kind = Kind.TOPIC if is_topic else Kind.DIRECTORY

    def row(wanted: str, found: str, state: str) -> Drift:
        return Drift(path, resource.name, field, wanted, found, Provision.ACTIVE, state, kind)

    for acl in sorted(kept.lost):
        yield row(str(acl), _MISSING, "contested" if acl in kept.contested else "")
    for acl in sorted(kept.held):
        ours = acl in kept.settings
        yield row(*((_NONE, str(acl)) if ours else (str(acl), _MISSING)), "needs-approval")
    if kept.waits and not kept.held:
        yield row("what is granted", f"({kept.waits})", "needs-approval")
    if kept.refused:
        yield row("what is granted", f"({kept.refused})", "rejected")
    for acl in sorted(foreign):
        yield row(_NONE, str(acl), _FOREIGN)


NOT_ARMED: Final = "not-armed"
"""Reported issue of a desired value that kdir does not apply to Kafka, as it is not armed."""
_PENDING: Final = "pending"
"""State of a desired value that kdir has yet to apply to Kafka: no drift, and no issue."""


def topic_issues(
    snapshot: Snapshot, mount: Path, place: tuple[int, str], topic: Topic
) -> Mapping[str, str]:
    """Returns the settings of one topic that have an issue, each with its issue."""
    found = dict(config_issues(snapshot, topic.entry_id))
    if acls := acl_state(snapshot, topic):
        found[ACLS] = acls
    if PARTITIONS in found or topic.provision is not Provision.ACTIVE:
        return found
    desired = DesiredConfigs(snapshot).for_topic(place[0], topic)
    if desired is not None and desired.partitions > topic.partitions:
        if "rejected" in states_of(snapshot.fact(pushed_key(topic.entry_id)) or b""):
            # Kafka's refusal is recorded for all calls for the topic together. Growth without a
            # quota has no record of its own, so it counts as refused, too.
            found[PARTITIONS] = "rejected"
        with suppress(NotReady):
            quota = PartitionQuota(snapshot, mount)
            if not quota.try_reserve(place, topic, desired.partitions):
                found[PARTITIONS] = NO_ROOM
    return found


def difference_states(
    snapshot: Snapshot, mount: Path, place: tuple[int, str], topic: Topic
) -> Mapping[str, str]:
    """Returns the settings of one topic for which Kafka may have another value for a recorded
    reason, each with its state: ``pending``, or its issue.
    """
    desired = DesiredConfigs(snapshot).for_topic(place[0], topic)
    found = dict.fromkeys(unapplied_configs(snapshot, topic, desired), _PENDING)
    if desired is not None and desired.partitions > topic.partitions:
        found[PARTITIONS] = _PENDING
    return {**found, **topic_issues(snapshot, mount, place, topic)}


def count_issues_below(snapshot: Snapshot, node: Node, budget: TimeBudget) -> Mapping[str, int]:
    """Returns the number of topics at or below a directory by issue; counts only until the budget
    is over.
    """
    marked = _marked(snapshot, budget)
    way = snapshot.path_of(node.entry_id) or ()
    found = Counter(f"{ACLS} {state}" for state in acl_states_below(snapshot, way))
    entry_id = snapshot.codec.entry_id
    for here in snapshot.directories_below(node) if marked else ():
        if not budget.spend(len(here.topics) or 1):
            break
        for record in here.topics.values():
            found.update(marked.get(entry_id(record), ()))
    return dict(sorted(found.items()))


def _marked(snapshot: Snapshot, budget: TimeBudget) -> Mapping[int, tuple[str, ...]]:
    marked: dict[int, tuple[str, ...]] = {}
    for key, value in snapshot.facts(PUSHED):
        if not budget.spend():
            break
        if states := states_of(value):
            marked[int(key.removeprefix(PUSHED), 16)] = states
    return marked
