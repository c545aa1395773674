"""Growth of partitions where a quota binds: written down first, then asked of Kafka, or not at all.

Of two that grow or create below one quota at the same time, only so much comes as there is room
for (decision 0033). Refuses to ask Kafka, and to decide what is wished (``config_diff.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from directory.federation import parent_state
from directory.kafka.applying.config_diff import GROW, PARTITIONS, ArmedTopic, ConfigDiff, KafkaCall
from directory.kafka.applying.last_applied_configs import AppliedConfig
from directory.kafka.fenced_commits import TopicCommits
from directory.namespace.command import TopicObservation
from directory.namespace.effective_policies import PolicyLevel
from directory.namespace.entry import Topic
from directory.namespace.quotas import Quota, quotas_at
from directory.namespace.snapshot import Snapshot
from directory.store.base import Write
from resolver.path import Path

__all__ = ["NO_ROOM", "Judged", "PartitionQuota", "PartitionReservation"]

_log = logging.getLogger(__name__)

Judged = tuple[ArmedTopic, ConfigDiff]
_FIELD: Final = "max_partitions"
NO_ROOM: Final = "quota-exceeded"
"""What is said of partitions that a quota leaves no room for."""


class PartitionQuota:
    """What quotas leave for partitions on one snapshot; counts what it let come.

    Raises (all of it):
        NotReady: what is said above the mount cannot be read.
    """

    def __init__(self, snapshot: Snapshot, mount: Path) -> None:
        self._snapshot = snapshot
        self._mount = mount
        self._above: Sequence[PolicyLevel] = parent_state.inherited_origins(snapshot)
        self._quotas: dict[int, tuple[Quota, ...]] = {}
        self._came: dict[int, int] = {}

    def binds(self, subject: ArmedTopic) -> bool:
        """True if any quota does."""
        own = subject.topic.policies.max_partitions
        return own is not None or bool(self._at(subject.place[0]))

    def try_reserve(self, place: tuple[int, str], topic: Topic, desired: int) -> bool:
        """Lets a topic, which stands at a place, have so many partitions; not without room."""
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
        """Returns those of the calls about a topic that quotas let be made."""
        return [
            call
            for call in calls
            if call.operation != GROW
            or self.try_reserve(subject.place, subject.topic, int(call.after or 0))
        ]

    def _at(self, parent_id: int) -> tuple[Quota, ...]:
        if parent_id not in self._quotas:
            node = self._snapshot.node(parent_id)
            found = (
                () if node is None else quotas_at(self._snapshot, self._mount, self._above, node)
            )
            self._quotas[parent_id] = tuple(one for one in found if one.field == _FIELD)
        return self._quotas[parent_id]


class PartitionReservation:
    """For one leader, of one batch."""

    def __init__(
        self,
        commits: TopicCommits,
        latest: Callable[[], Snapshot],
        mount_at: Callable[[Snapshot], Path],
        judged: list[Judged],
    ) -> None:
        self._commits = commits
        self._latest = latest
        self._judged = judged
        growing = [one for one in judged if one[1].grows_to]
        newest = latest()
        room = PartitionQuota(newest, mount_at(newest)) if growing else None
        self._bound = {
            subject.topic.entry_id
            for subject, _ in growing
            if room is not None and room.binds(subject)
        }

    def with_growth_pending(self) -> list[Judged]:
        """With what is to be kept before anything is asked: that it is not known to be done. Until
        Kafka was asked, whoever comes next looks at these topics again.
        """
        return [
            (subject, _noted(verdict) if subject.topic.entry_id in self._bound else verdict)
            for subject, verdict in self._judged
        ]

    def reserve_growth(self) -> list[Judged]:
        """Writes the growth down, and leaves out what there is no room for.

        Raises:
            LeadershipLost, StoreUnavailable
        """
        bound = [one for one in self._judged if one[0].topic.entry_id in self._bound]
        if not bound:
            return self._judged
        notes = self._commits.reserve(
            [
                TopicObservation(
                    path=subject.path,
                    entry_id=subject.topic.entry_id,
                    partitions=verdict.grows_to,
                )
                for subject, verdict in bound
            ]
        )
        for note in notes:
            _log.warning("not grown: %s", note)
        snapshot = self._latest()
        found: list[Judged] = []
        writes: list[Write] = []
        for subject, verdict in self._judged:
            now = snapshot.topic(*subject.place)
            if subject.topic.entry_id not in self._bound:
                found.append((subject, verdict))
            elif now is not None and now.partitions >= verdict.grows_to:
                found.append((subject, _noted(verdict)))
            else:
                writes.append(verdict.asked.to_write(subject.topic.entry_id))
                found.append((subject, _without_growth(verdict)))
        self._commits.put_all(writes)
        return found


def _noted(verdict: ConfigDiff) -> ConfigDiff:
    push = AppliedConfig(str(verdict.grows_to), ours=True, done=False)
    configs = MappingProxyType({**verdict.asked.configs, PARTITIONS: push})
    return replace(verdict, asked=replace(verdict.asked, configs=configs))


def _without_growth(verdict: ConfigDiff) -> ConfigDiff:
    growth = next(call for call in verdict.calls if call.operation == GROW)
    calls = tuple(call for call in verdict.calls if call is not growth)
    return replace(verdict, calls=calls, partitions=int(growth.before or 0))
