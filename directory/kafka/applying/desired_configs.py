"""What is wished of a topic in Kafka: its own settings; where configs are armed, all that holds.

Below an armed directory an inherited value is one that kdir pushes: Kafka without it has drifted.
Elsewhere nobody made it Kafka's. Refuses to compare (``metadata_diff.py``), and takes what the
parent did not tell, or cannot be read, for not known: then a topic's own settings are all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from directory.federation import parent_state
from directory.kafka.applying.last_applied import load_applied_configs
from directory.kafka.reconciler_settings import CONFIGS
from directory.namespace.effective_policies import inherit, without_cleared_keys
from directory.namespace.entry import NO_POLICIES, Policies, Topic
from directory.namespace.snapshot import Snapshot
from directory.namespace.topic_configs import same_value
from resolver.errors import NotReady

__all__ = ["DesiredConfigs", "DesiredTopicConfig", "is_under_way"]


@dataclass(frozen=True, slots=True)
class DesiredTopicConfig:
    """What holds for a topic whose configs kdir changes in Kafka."""

    configs: Mapping[str, str | None]
    partitions: int
    """At least so many; 0 = as many as there are."""


@dataclass(frozen=True, slots=True)
class _Within:
    """What holds directly in a directory."""

    policies: Policies
    armed: bool
    desired_config: DesiredTopicConfig


def is_under_way(
    snapshot: Snapshot, topic: Topic, desired_config: DesiredTopicConfig | None
) -> bool:
    """True if some of it was not looked at yet by what pushes: then it is no drift, but late."""
    if desired_config is None:
        return False
    try:
        known = load_applied_configs(snapshot, topic.entry_id)
    except ValueError:
        return False  # nobody pushes it
    if known.refused:
        return False
    for key, value in desired_config.configs.items():
        push = known.settings.get(key)
        done = push is not None and push.done and same_value(key, push.value, value)
        if not done and key not in known.held and key not in known.contested:
            return True
    return False


class DesiredConfigs:
    """Of one snapshot; each directory is looked at once.

    Args:
        everywhere: as if all of it were armed.
    """

    def __init__(self, snapshot: Snapshot, *, everywhere: bool = False) -> None:
        self._snapshot = snapshot
        self._everywhere = everywhere
        try:
            above = parent_state.inherited_policies(snapshot)
            self._known = True
        except NotReady:
            above, self._known = [], False
        self._above = reduce(inherit, above, NO_POLICIES)
        self._directories: dict[int, _Within] = {}

    def for_topic(self, parent_id: int, topic: Topic) -> DesiredTopicConfig | None:
        """Returns what is wished of a topic that stands in a directory; None: only its own settings
        are.
        """
        within = self._within(parent_id)
        own = topic.policies
        armed = self._everywhere or own.manage.get(CONFIGS, within.armed)
        if not self._known or not armed:
            return None
        return (
            within.desired_config
            if own == NO_POLICIES
            else _desired_config(inherit(within.policies, own))
        )

    def _within(self, directory_id: int) -> _Within:
        found = self._directories.get(directory_id)
        if found is not None:
            return found
        node = self._snapshot.node(directory_id)
        if node is None:
            policies, armed = self._above, False
        else:
            own = node.directory.policies
            if node.parent_id:
                outer = self._within(node.parent_id)
                policies, armed = inherit(outer.policies, own), outer.armed
            else:
                # What lets kdir change Kafka's configs is said within the cluster only.
                policies, armed = inherit(self._above, own), False
            armed = own.manage.get(CONFIGS, armed)
        within = self._directories[directory_id] = _Within(
            policies, armed, _desired_config(policies)
        )
        return within


def _desired_config(policies: Policies) -> DesiredTopicConfig:
    holds = without_cleared_keys(policies)
    return DesiredTopicConfig(holds.topic_config, holds.partitions or 0)
