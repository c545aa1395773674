"""What to ask of Kafka for one topic's configs and partitions, what to leave alone and
what waits; pure.

Refuses to ask Kafka anything, and to change a value that nobody desired or kdir did not set.
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
from directory.kafka.applying.last_applied import (
    AppliedRecord,
    AppliedSetting,
)
from directory.namespace.topic_configs import deletes_data, same_value

__all__ = [
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
_CONTESTED: Final = 3
"""So often somebody puts a value back until it is left to him."""
_HASH_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class ObservedConfig:
    """A topic as Kafka has it: what was set on the topic itself."""

    configs: Mapping[str, str]
    partitions: int


@dataclass(frozen=True, slots=True)
class ConfigDiffOptions:
    """Options of a diff."""

    revert_external_changes: bool = False
    """What somebody else changed is changed back."""
    repeated: bool = False
    """A person read what is contested or was refused, and armed it: it is asked for again."""


@dataclass(frozen=True, slots=True)
class ConfigDiff:
    """Diff of one topic: the calls that follow, and what to record."""

    calls: tuple[KafkaCall, ...]
    asked: AppliedRecord[str]
    """To be kept before the calls are made."""
    done: AppliedRecord[str]
    """To be kept once they are made."""
    configs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """What Kafka has then."""
    partitions: int = 0

    @property
    def alterations(self) -> Mapping[str, str | None]:
        """The configs to change."""
        return {call.key: call.after for call in self.calls if call.operation == ALTER}

    @property
    def grows_to(self) -> int:
        """Partitions to ask for; 0 = none."""
        return next((int(call.after or 0) for call in self.calls if call.operation == GROW), 0)


def needs_check(subject: ArmedTopic, pushed: AppliedRecord[str], rules: ConfigDiffOptions) -> bool:
    """True if Kafka has to be asked about a topic; not where all is known to be as desired,
    or what is not is somebody else's doing and is left so.
    """
    topic = subject.topic
    if rules.repeated or pushed.held or pushed.refused:
        return True
    if subject.partitions > topic.partitions:
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


# -- what follows for one topic --------------------------------------------------------------------


def diff_configs(
    subject: ArmedTopic,
    found: ObservedConfig,
    pushed: AppliedRecord[str] | None = None,
    rules: ConfigDiffOptions | None = None,
) -> ConfigDiff:
    """Returns what to ask of Kafka for one topic, and what to remember of it."""
    rules, pushed = rules or ConfigDiffOptions(), pushed or AppliedRecord()
    judging = _ConfigDiffer(subject, found, pushed, rules)
    for key in sorted(subject.configs.keys() | pushed.settings.keys()):
        judging.judge(key)
    judging.partitions()
    return judging.verdict()


class _ConfigDiffer:
    """One topic while it is judged."""

    def __init__(
        self,
        subject: ArmedTopic,
        found: ObservedConfig,
        pushed: AppliedRecord[str],
        rules: ConfigDiffOptions,
    ) -> None:
        self._subject = subject
        self._found = found
        self._pushed = pushed
        self._rules = rules
        self._calls: list[KafkaCall] = []
        self._asked: dict[str, AppliedSetting] = {}
        self._done: dict[str, AppliedSetting] = {}
        self._held: set[str] = set()
        self._contested: set[str] = set()

    def judge(self, key: str) -> None:
        desired, push = self._subject.configs.get(key), self._pushed.settings.get(key)
        found = self._found.configs.get(key)
        if desired is None:
            if push is not None and push.ours and same_value(key, push.value, found):
                self._add_change(key, None, push, push)
            return  # else it is somebody else's value by now, or always was: forgotten, left alone
        if same_value(key, desired, found):
            known = push is not None and same_value(key, push.value, desired)
            # A topic that kdir made has what it was made with from kdir.
            ours = push.ours if push is not None else not self._subject.topic.adopted
            put_back = push.put_back if push is not None and known else 0
            self._keep(
                key, AppliedSetting(desired, ours, True, 0 if self._rules.repeated else put_back)
            )
            return
        news = push is None or not push.done or not same_value(key, push.value, desired)
        if news or self._rules.repeated:
            ask = AppliedSetting(desired, ours=True, done=False)
            self._add_change(key, desired, ask, push)
            return
        assert push is not None  # noqa: S101 - or it were news
        self._judge_change(key, desired, push)

    def _judge_change(self, key: str, desired: str, push: AppliedSetting) -> None:
        """Kafka had it, and somebody changed it since."""
        if key in self._pushed.contested:
            self._contested.add(key)
            self._keep(key, push)
            return
        if not self._rules.revert_external_changes:
            self._keep(key, push)
            return
        times = push.put_back + 1
        if times >= _CONTESTED:
            self._contested.add(key)
            self._keep(key, replace(push, put_back=times))
            return
        self._add_change(
            key, desired, AppliedSetting(desired, ours=True, done=False, put_back=times), push
        )

    def _add_change(
        self, key: str, value: str | None, ask: AppliedSetting, before: AppliedSetting | None
    ) -> None:
        found = self._found.configs.get(key)
        if not self._subject.released and deletes_data(key, found, value):
            self._held.add(key)
            if before is not None:
                self._keep(key, before)
            return
        self._calls.append(KafkaCall(ALTER, self._subject.topic.physical_name, key, found, value))
        self._asked[key] = ask
        if value is not None:
            self._done[key] = replace(ask, done=True)

    def _keep(self, key: str, push: AppliedSetting) -> None:
        self._asked[key] = self._done[key] = push

    def partitions(self) -> None:
        """They only ever grow."""
        have, want = self._found.partitions, self._subject.partitions
        if not have or want <= have:
            return
        if not self._subject.released:  # more partitions cannot be taken back
            self._held.add(PARTITIONS)
            return
        name = self._subject.topic.physical_name
        self._calls.append(KafkaCall(GROW, name, PARTITIONS, str(have), str(want)))

    def verdict(self) -> ConfigDiff:
        held, contested = frozenset(self._held), frozenset(self._contested)
        asked = AppliedRecord(MappingProxyType(self._asked), held, contested)
        refused = self._pushed.refused if not self._rules.repeated else ""
        if refused and self._pushed.refused_calls == calls_hash(self._calls):
            same = replace(asked, refused=refused, refused_calls=self._pushed.refused_calls)
            return ConfigDiff((), same, same, self._found.configs, self._found.partitions)
        configs = dict(self._found.configs)
        partitions = self._found.partitions
        for call in self._calls:
            if call.operation == GROW:
                partitions = int(call.after or 0)
            elif call.after is None:
                configs.pop(call.key, None)
            else:
                configs[call.key] = call.after
        return ConfigDiff(
            tuple(self._calls),
            asked,
            AppliedRecord(MappingProxyType(self._done), held, contested),
            MappingProxyType(configs),
            partitions,
        )


def calls_hash(calls: Iterable[KafkaCall]) -> str:
    """Returns the name of calls, whatever Kafka has before them."""
    return hash_text([[one.operation, one.resource, one.key, one.after] for one in calls])


def hash_text(content: object) -> str:
    """Returns a short hash of a value that is JSON."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]
