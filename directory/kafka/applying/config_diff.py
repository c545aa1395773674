"""Comparison of one topic's desired and actual configs and partitions: the calls to make, what to
leave alone and what waits; pure.

A value that is neither desired nor was set by kdir is never changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from directory.kafka.admin_contract import ALTER, GROW, KafkaCall
from directory.kafka.applying.desired_configs import ArmedTopic
from directory.kafka.applying.last_applied import AppliedRecord, AppliedSetting, configs_to_write
from directory.namespace.topic_configs import deletes_data, same_value
from directory.store.base import Write

__all__ = [
    "CONTESTED",
    "PARTITIONS",
    "ConfigDiff",
    "ConfigDiffOptions",
    "ObservedConfig",
    "calls_hash",
    "diff_configs",
    "hash_text",
    "needs_check",
]

PARTITIONS: Final = "partitions"
CONTESTED: Final = 3
"""Number of times that another client undoes a config or an ACL before kdir leaves it alone."""
_HASH_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class ObservedConfig:
    """Configs set on a topic itself, and partitions, as Kafka has them."""

    configs: Mapping[str, str]
    partitions: int


@dataclass(frozen=True, slots=True)
class ConfigDiffOptions:
    """Options of a diff."""

    revert_external_changes: bool = False
    """Changes of other clients are reverted."""
    repeated: bool = False
    """An operator armed a plan with the contested and refused changes: they are made again."""


@dataclass(frozen=True, slots=True)
class ConfigDiff:
    """Diff of one topic: the calls that follow, and what to record."""

    subject: ArmedTopic
    before: AppliedRecord[str]
    calls: tuple[KafkaCall, ...]
    asked: AppliedRecord[str]
    """Record to store before the calls are made."""
    done: AppliedRecord[str]
    """Record to store after all calls succeeded."""
    configs: Mapping[str, str]
    """Configs that Kafka has after the calls."""
    partitions: int

    def to_write(self, record: AppliedRecord[str]) -> Write:
        """Returns the write that stores a record of this topic."""
        return configs_to_write(self.subject.topic.entry_id, record)

    @property
    def alterations(self) -> Mapping[str, str | None]:
        """The configs to change."""
        return {call.key: call.after for call in self.calls if call.operation == ALTER}

    @property
    def grows_to(self) -> int:
        """Number of partitions to grow to; 0 = no growth."""
        return next((int(call.after or 0) for call in self.calls if call.operation == GROW), 0)

    @property
    def partitions_before(self) -> int:
        """Number of partitions that Kafka has before the calls."""
        found = (int(call.before or 0) for call in self.calls if call.operation == GROW)
        return next(found, self.partitions)


def needs_check(subject: ArmedTopic, pushed: AppliedRecord[str], rules: ConfigDiffOptions) -> bool:
    """True if Kafka has to be read for a topic; False if each setting is on record as desired, or
    as changed by another client and left alone.
    """
    # Without the diff, which takes twenty times as long for a million unchanged topics.
    topic = subject.topic
    if rules.repeated or pushed.held or pushed.refused or subject.partitions > topic.partitions:
        return True
    if subject.configs.keys() != pushed.settings.keys():
        return True
    for key, desired in subject.configs.items():
        push = pushed.settings[key]
        if not same_value(key, push.value, desired) or not push.done:
            return True
        as_desired = same_value(key, topic.observed_config.get(key), desired)
        if as_desired == (key in pushed.contested) or (
            not as_desired and rules.revert_external_changes
        ):
            return True
    return False


def diff_configs(
    subject: ArmedTopic,
    found: ObservedConfig,
    pushed: AppliedRecord[str] | None = None,
    rules: ConfigDiffOptions | None = None,
) -> ConfigDiff:
    """Returns the calls to make for one topic, and what to record of it."""
    rules, pushed = rules or ConfigDiffOptions(), pushed or AppliedRecord()
    judging = _ConfigDiffer(subject, found, pushed, rules)
    for key in sorted(subject.configs.keys() | pushed.settings.keys()):
        judging.judge(key)
    judging.partitions()
    return judging.verdict()


@dataclass(slots=True)
class _ConfigDiffer:
    """One topic while it is compared."""

    subject: ArmedTopic
    found: ObservedConfig
    pushed: AppliedRecord[str]
    rules: ConfigDiffOptions
    calls: list[KafkaCall] = field(default_factory=list)
    asked: dict[str, AppliedSetting] = field(default_factory=dict)
    done: dict[str, AppliedSetting] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    contested: set[str] = field(default_factory=set)

    def judge(self, key: str) -> None:
        desired, push = self.subject.configs.get(key), self.pushed.settings.get(key)
        found = self.found.configs.get(key)
        if desired is None:
            if push is not None and _is_own(key, push, found):
                self._add_change(key, None, push, push)
            elif push is not None and found is None and self._may_be_set(key, push):
                self._add_change(key, None, push, push, found=push.value)
            return  # a value of another client: it is left alone, without a record
        known = push if push is not None and same_value(key, push.value, desired) else None
        if same_value(key, desired, found):
            # kdir set the configs with which it made a topic.
            ours = push.ours if push is not None else not self.subject.topic.adopted
            put_back = known.put_back if known is not None and not self.rules.repeated else 0
            self._keep(key, AppliedSetting(desired, ours, True, put_back))
        elif known is None or not known.done or self.rules.repeated:
            # Until Kafka has the new value, kdir's old one stays on record as kdir's.
            was = found if push is not None and _is_own(key, push, found) else None
            self._add_change(key, desired, AppliedSetting(desired, done=False, was=was), push)
        else:
            self._judge_change(key, desired, known)

    def _judge_change(self, key: str, desired: str, push: AppliedSetting) -> None:
        """Decides on a config that Kafka had as desired and that another client changed since."""
        if key not in self.pushed.contested and self.rules.revert_external_changes:
            again = AppliedSetting(desired, done=False, put_back=push.put_back + 1)
            if again.put_back < CONTESTED:
                self._add_change(key, desired, again, push)
                return
            push = replace(push, put_back=again.put_back)
            self.contested.add(key)
        elif key in self.pushed.contested:
            self.contested.add(key)
        self._keep(key, push)

    def _may_be_set(self, key: str, push: AppliedSetting) -> bool:
        """True if Kafka may have a value of kdir's that a broker which is behind does not show.
        Removing a value that another client has removed changes nothing; but not if the removal
        needs approval: it would wait for ever.
        """
        is_known = push.done or not self.pushed.refused
        waits = not self.subject.released and deletes_data(key, push.value, None)
        return push.ours and is_known and key != PARTITIONS and not waits

    def _add_change(
        self,
        key: str,
        value: str | None,
        ask: AppliedSetting,
        before: AppliedSetting | None,
        found: str | None = None,
    ) -> None:
        found = self.found.configs.get(key, found)
        if not self.subject.released and deletes_data(key, found, value):
            self.held.add(key)
            if before is not None:
                self._keep(key, before)
            return
        self.calls.append(KafkaCall(ALTER, self.subject.topic.physical_name, key, found, value))
        self.asked[key] = ask
        if value is not None:
            self.done[key] = replace(ask, done=True, was=None)

    def _keep(self, key: str, push: AppliedSetting) -> None:
        self.asked[key] = self.done[key] = push

    def partitions(self) -> None:
        """Adds growth to the calls; partitions only ever grow."""
        have, want = self.found.partitions, self.subject.partitions
        if not have or want <= have:
            return
        if not self.subject.released:  # more partitions cannot be taken back
            self.held.add(PARTITIONS)
            return
        name = self.subject.topic.physical_name
        self.calls.append(KafkaCall(GROW, name, PARTITIONS, str(have), str(want)))

    def verdict(self) -> ConfigDiff:
        held, contested = frozenset(self.held), frozenset(self.contested)
        asked = AppliedRecord(MappingProxyType(self.asked), held, contested)
        refused = self.pushed.refused if not self.rules.repeated else ""
        if refused and self.pushed.refused_calls == calls_hash(self.calls):
            same = replace(asked, refused=refused, refused_calls=self.pushed.refused_calls)
            unchanged = self.found.configs, self.found.partitions
            return ConfigDiff(self.subject, self.pushed, (), same, same, *unchanged)
        configs = dict(self.found.configs)
        partitions = self.found.partitions
        for call in self.calls:
            if call.operation == GROW:
                partitions = int(call.after or 0)
            elif call.after is None:
                configs.pop(call.key, None)
            else:
                configs[call.key] = call.after
        return ConfigDiff(
            self.subject,
            self.pushed,
            tuple(self.calls),
            asked,
            AppliedRecord(MappingProxyType(self.done), held, contested),
            MappingProxyType(configs),
            partitions,
        )


def _is_own(key: str, push: AppliedSetting, found: str | None) -> bool:
    """True if by the record kdir set the value that Kafka has."""
    return push.ours and found is not None and (
        same_value(key, push.value, found) or same_value(key, push.was, found)
    )  # fmt: skip


def calls_hash(calls: Iterable[KafkaCall]) -> str:
    """Returns the hash of calls, without the values that Kafka has before them."""
    return hash_text([[one.operation, one.resource, one.key, one.after] for one in calls])


def hash_text(content: object) -> str:
    """Returns a short hash of a value that is JSON."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]
