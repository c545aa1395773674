"""Desired configs of topics in Kafka: a topic's own ones; where configs are armed, inherited, too.

Below an armed directory kdir pushes inherited values, too: a Kafka without them has drifted.
Elsewhere Kafka need not have them. While the parent's policies are not known, or cannot be read,
only a topic's own settings are desired.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from types import MappingProxyType
from typing import Any, Final

from directory.federation import inheritance
from directory.kafka.admin_contract import GROW, KafkaCall
from directory.kafka.applying.last_applied import load_applied_configs
from directory.kafka.arming.releases import Releases
from directory.kafka.kafka_context import CONFIGS
from directory.namespace.command import TopicObservation
from directory.namespace.effective_policies import PolicyLevel, inherit, without_cleared_keys
from directory.namespace.entry import NO_POLICIES, Directory, Policies, Provision, Topic
from directory.namespace.protected_topics import is_protected
from directory.namespace.quotas import Quota, quotas_at
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.time_budget import TimeBudget
from directory.namespace.topic_configs import same_value
from resolver.errors import NotReady
from resolver.path import Path

__all__ = [
    "NO_ROOM",
    "ArmedTopic",
    "ArmedTopics",
    "DesiredConfigs",
    "DesiredTopicConfig",
    "PartitionQuota",
    "RecordedTopic",
    "directories_at",
    "is_under_way",
    "unapplied_configs",
]

NO_ROOM: Final = "quota-exceeded"
"""Reported issue of partitions for which a quota leaves no room."""
_QUOTA: Final = "max_partitions"
_CONFIGS_KEY: Final = CONFIGS.encode()
"""Occurs in the record of every topic that itself sets whether its configs are managed."""


@dataclass(frozen=True, slots=True)
class DesiredTopicConfig:
    """Desired configs and partitions of a topic whose configs kdir changes in Kafka."""

    configs: Mapping[str, str]
    partitions: int = 0
    """Least number of partitions, from the topic's own policies; 0 = the existing number. A value
    of a directory counts for *new* topics only: growth cannot be undone, and moves keys."""


@dataclass(frozen=True, slots=True)
class RecordedTopic:
    """A topic of the tree, with its path."""

    path: Path
    topic: Topic
    desired_config: DesiredTopicConfig | None = None
    """Effective configs, where kdir changes configs in Kafka; None = only its own ones count."""

    @property
    def name(self) -> str:
        """Its name in Kafka."""
        return self.topic.physical_name

    def observation(self, **learnt: Any) -> TopicObservation:
        """Returns an observation of it with these fields of ``TopicObservation``."""
        return TopicObservation(path=self.path, entry_id=self.topic.entry_id, **learnt)


@dataclass(frozen=True, slots=True)
class _Within:
    """Effective policies directly in a directory."""

    policies: Policies
    armed: bool
    desired_config: DesiredTopicConfig


def is_under_way(
    snapshot: Snapshot, topic: Topic, desired_config: DesiredTopicConfig | None
) -> bool:
    """True if the applier has yet to apply some desired config: that is no drift."""
    names = unapplied_configs(snapshot, topic, desired_config)
    return bool(names) and not load_applied_configs(snapshot, topic.entry_id).refused


def unapplied_configs(
    snapshot: Snapshot, topic: Topic, desired_config: DesiredTopicConfig | None
) -> Sequence[str]:
    """Returns the names of the desired configs that by the record Kafka does not have yet, and that
    neither wait for approval nor are contested.
    """
    if desired_config is None:
        return ()
    try:
        known = load_applied_configs(snapshot, topic.entry_id)
    except ValueError:
        return ()  # an unreadable record: nothing is pushed
    found = []
    for key, value in desired_config.configs.items():
        push = known.settings.get(key)
        done = push is not None and push.done and same_value(key, push.value, value)
        if not done and key not in known.held and key not in known.contested:
            found.append(key)
    return found


class DesiredConfigs:
    """Desired configs on one snapshot; each directory is computed once.

    Args:
        above: policies of the ancestors above the mount, outermost first; None: those that the
            parent sent, which may not be known. Their ``manage`` does not arm: a plan that was
            approved there was not about this cluster's Kafka.
        assume: id of an entry that counts as armed in any case; 0 = none.
        everywhere: all entries count as armed.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        above: Sequence[Policies] | None = None,
        assume: int = 0,
        everywhere: bool = False,
    ) -> None:
        self._snapshot = snapshot
        self._assume = assume
        self._everywhere = everywhere
        self._known = True
        try:
            above = inheritance.inherited_policies(snapshot) if above is None else above
        except NotReady:
            above, self._known = (), False
        self._above = reduce(inherit, above, NO_POLICIES)
        self._directories: dict[int, _Within] = {}

    def for_topic(self, parent_id: int, topic: Topic) -> DesiredTopicConfig | None:
        """Returns a topic's desired configs; None = only its own settings are desired."""
        within = self._within(parent_id)
        armed = self._everywhere or self._is_managed(topic, within.armed)
        if not self._known or not armed:
            return None
        if topic.policies == NO_POLICIES:
            return within.desired_config
        desired = _desired_config(inherit(within.policies, topic.policies))
        return replace(desired, partitions=topic.policies.partitions or 0)

    def is_armed(self, directory_id: int) -> bool:
        """True if kdir may change the configs of topics directly in a directory."""
        return self._within(directory_id).armed

    def _within(self, directory_id: int) -> _Within:
        found = self._directories.get(directory_id)
        if found is None:
            node = self._snapshot.nodes.get(directory_id)
            policies, armed = self._above, False
            if node is not None:
                if node.parent_id:
                    outer = self._within(node.parent_id)
                    policies, armed = outer.policies, outer.armed
                policies = inherit(policies, node.directory.policies)
                armed = self._is_managed(node.directory, armed)
            found = _Within(policies, armed, _desired_config(policies))
            self._directories[directory_id] = found
        return found

    def _is_managed(self, entry: Directory | Topic, inherited: bool) -> bool:  # noqa: FBT001
        return entry.entry_id == self._assume or entry.policies.manage.get(CONFIGS, inherited)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmedTopic(RecordedTopic):
    """An armed topic."""

    desired_config: DesiredTopicConfig
    """Desired configs, and a number of partitions that is not below the existing one."""
    place: tuple[int, str]
    """Parent id and name."""
    released: bool = False
    """True: an armed plan names it, or kdir made it (``releases.py``). False: changes that may
    delete data or cannot be undone wait."""

    @property
    def configs(self) -> Mapping[str, str]:
        """Desired configs by name."""
        return self.desired_config.configs

    @property
    def partitions(self) -> int:
        """Least desired number of partitions."""
        return self.desired_config.partitions


def directories_at(
    snapshot: Snapshot, mount: Path, directory_id: int
) -> Iterator[tuple[tuple[str, ...], Node]]:
    """Yields a directory and all directories below it, each with the segments of its path."""
    start, way = snapshot.nodes.get(directory_id), snapshot.path_of(directory_id)
    stack: list[tuple[tuple[str, ...], Node]] = []
    if start is not None and way is not None:
        stack.append(((*mount.segments, *way), start))
    while stack:
        segments, node = stack.pop()
        yield segments, node
        for name, container in node.containers.items():
            below = (
                snapshot.nodes.get(container.entry_id) if isinstance(container, Directory) else None
            )
            if below is not None:
                stack.append(((*segments, name), below))


class ArmedTopics:
    """Armed topics of one snapshot. For the arguments see ``DesiredConfigs``.

    Raises:
        NotReady: the inherited policies are not known.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        mount: Path,
        above: Sequence[Policies] | None = None,
        assume: int = 0,
    ) -> None:
        above = inheritance.inherited_policies(snapshot) if above is None else above
        self._snapshot = snapshot
        self._mount = mount
        self._assume = assume
        self._desired = DesiredConfigs(snapshot, above=above, assume=assume)
        self._releases = Releases(snapshot, mount)

    def at_place(self, place: tuple[int, str]) -> ArmedTopic | None:
        """Returns the topic at a place (parent id, name); None = there is no armed topic."""
        node, way = self._snapshot.nodes.get(place[0]), self._snapshot.path_of(place[0])
        if node is None or way is None:
            return None
        return self._topic((*self._mount.segments, *way), node, place[1])

    def at_places(self, places: Iterable[tuple[int, str]]) -> Iterator[ArmedTopic]:
        """Yields the armed topics at some places."""
        return (one for place in places if (one := self.at_place(place)) is not None)

    def below(self, directory_id: int, budget: TimeBudget | None = None) -> Iterator[ArmedTopic]:
        """Yields the armed topics at or below a directory, each directory's by name; ends with the
        budget.
        """
        budget = budget or TimeBudget()
        for segments, node in directories_at(self._snapshot, self._mount, directory_id):
            armed = self._assume or self._desired.is_armed(node.entry_id)
            if not budget.spend():
                return
            for name, record in node.topics.items():
                if not budget.spend():
                    return
                if not armed and _CONFIGS_KEY not in record:
                    continue  # not armed, and not decoded: saves time with a million topics
                one = self._topic(segments, node, name)
                if one is not None:
                    yield one

    def _topic(self, segments: tuple[str, ...], node: Node, name: str) -> ArmedTopic | None:
        topic = self._snapshot.readable_topic(node.entry_id, name)
        if topic is None or topic.provision is not Provision.ACTIVE:
            return None
        desired = self._desired.for_topic(node.entry_id, topic)
        if desired is None or is_protected(topic.physical_name):
            return None
        partitions = max(topic.partitions, desired.partitions)
        return ArmedTopic(
            path=Path((*segments, name)),
            topic=topic,
            desired_config=replace(desired, partitions=partitions),
            place=(node.entry_id, name),
            released=self._releases.hold_for(node.entry_id, topic),
        )


def _desired_config(policies: Policies) -> DesiredTopicConfig:
    holds = without_cleared_keys(policies)
    configs = {key: value for key, value in holds.topic_config.items() if value is not None}
    return DesiredTopicConfig(MappingProxyType(configs))


class PartitionQuota:
    """Partitions that quotas leave on one snapshot, less those that it has reserved.

    Raises (all methods):
        NotReady: the policies above the mount cannot be read.
    """

    def __init__(self, snapshot: Snapshot, mount: Path) -> None:
        self._snapshot = snapshot
        self._mount = mount
        self._above: Sequence[PolicyLevel] = inheritance.inherited_origins(snapshot)
        self._quotas: dict[int, tuple[Quota, ...]] = {}
        self._came: dict[int, int] = {}

    def binds(self, subject: ArmedTopic) -> bool:
        """True if any quota limits a topic's partitions."""
        own = subject.topic.policies.max_partitions
        return own is not None or bool(self._at(subject.place[0]))

    def try_reserve(self, place: tuple[int, str], topic: Topic, desired: int) -> bool:
        """Reserves growth to ``desired`` partitions; returns False if a quota does not allow it."""
        own = topic.policies.max_partitions
        if own is not None and desired > own:
            return False
        more = desired - (topic.partitions or 1)
        quotas = self._at(place[0])
        for quota in quotas:
            used = quota.used(self._snapshot) + self._came.get(quota.directory_id, 0)
            if more > 0 and used + more > quota.limit:
                return False
        for directory_id in {quota.directory_id for quota in quotas}:
            self._came[directory_id] = self._came.get(directory_id, 0) + max(0, more)
        return True

    def allowed_calls(self, subject: ArmedTopic, calls: Iterable[KafkaCall]) -> list[KafkaCall]:
        """Returns the calls about a topic that quotas allow."""
        place, topic = subject.place, subject.topic
        return [
            call
            for call in calls
            if call.operation != GROW or self.try_reserve(place, topic, int(call.after or 0))
        ]

    def _at(self, parent_id: int) -> tuple[Quota, ...]:
        if parent_id not in self._quotas:
            node = self._snapshot.nodes.get(parent_id)
            found = quotas_at(self._snapshot, self._mount, self._above, node) if node else ()
            self._quotas[parent_id] = tuple(one for one in found if one.field == _QUOTA)
        return self._quotas[parent_id]
