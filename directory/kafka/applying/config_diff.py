"""What arming an aspect makes of Kafka: the exact calls, their order, and the plan's name; pure.

``diff_configs`` says for one topic what to ask of Kafka, what to leave alone and what waits for a
person; a plan is that for every topic below an armed entry. Refuses to ask Kafka anything, and to
change a value that nobody wished or kdir did not set.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from types import MappingProxyType
from typing import Final

from directory.kafka.admin_contract import AclBinding
from directory.kafka.applying.last_applied import (
    AppliedRecord,
    AppliedSetting,
)
from directory.kafka.applying.releases import Releases
from directory.kafka.reconciler_settings import CONFIGS
from directory.namespace.effective_policies import inherit, without_cleared_keys
from directory.namespace.entry import NO_POLICIES, Directory, Policies, Provision, Topic
from directory.namespace.physical_names import is_protected
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.topic_configs import deletes_data, same_value
from resolver.path import Path

__all__ = [
    "ALTER",
    "GROW",
    "PARTITIONS",
    "ArmedTopic",
    "ConfigDiff",
    "ConfigDiffOptions",
    "KafkaCall",
    "ObservedConfig",
    "armed_topics",
    "calls_hash",
    "describe_plan_difference",
    "diff_configs",
    "is_armed",
    "needs_check",
    "plan_hash",
    "subject_at",
]

ALTER: Final = "IncrementalAlterConfigs"
GROW: Final = "CreatePartitions"
PARTITIONS: Final = "partitions"
_CONTESTED: Final = 3
"""So often somebody puts a value back until it is left to him."""
_HASH_DIGITS: Final = 12
_WORD: Final = CONFIGS.encode()
"""Stands in every record that says whether configs are managed."""
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class KafkaCall:
    """One call, about one setting of one topic (``kdir.v1.KafkaCall``)."""

    operation: str
    resource: str
    key: str
    before: str | None
    """What Kafka has now; None = its default."""
    after: str | None
    """None: back to the default."""
    binding: AclBinding | None = None
    """The ACL, where it is about one."""
    takeover: bool = False
    """It closes what was open to all, and is made only where that was said."""


@dataclass(frozen=True, slots=True)
class ArmedTopic:
    """An armed topic, and what holds for it."""

    path: Path
    place: tuple[int, str]
    """Parent id and name."""
    topic: Topic
    configs: Mapping[str, str]
    """Effective."""
    partitions: int
    """At least so many are wished."""
    released: bool = False
    """An armed plan names it, or kdir made it (``releases.py``); else what may delete its data, and
    what cannot be taken back, waits.
    """


@dataclass(frozen=True, slots=True)
class ObservedConfig:
    """A topic as Kafka has it: what was set on the topic itself."""

    configs: Mapping[str, str]
    partitions: int


@dataclass(frozen=True, slots=True)
class ConfigDiffOptions:
    """How to judge."""

    revert_external_changes: bool = False
    """What somebody else changed is changed back."""
    repeated: bool = False
    """A person read what is contested or was refused, and armed it: it is asked for again."""


@dataclass(frozen=True, slots=True)
class ConfigDiff:
    """What follows for one topic."""

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


# -- who is armed ----------------------------------------------------------------------------------


def armed_topics(
    snapshot: Snapshot,
    mount: Path,
    above: Sequence[Policies],
    directory_id: int,
    assume: int = 0,
) -> Iterator[ArmedTopic]:
    """Yields the armed topics at or below a directory, in order of path within each directory.

    Args:
        above: what the ancestors above the mount set, outermost first. Their ``manage`` does not
            arm: the plan that somebody read there was not about this cluster's Kafka.
        assume: the entry of this id counts as armed, whatever it says.
    """
    start, way = snapshot.node(directory_id), snapshot.path_of(directory_id)
    if start is None or way is None:
        return
    releases = Releases(snapshot, mount)
    outer, armed = _outside(snapshot, above, start, assume)
    stack: list[tuple[tuple[str, ...], Node, Policies, bool]] = [
        ((*mount.segments, *way), start, outer, armed)
    ]
    while stack:
        segments, node, outer, armed = stack.pop()
        outer = inherit(outer, node.directory.policies)
        armed = _is_aspect_managed(node.directory, armed, assume)
        for name, record in node.topics.items():
            if not (armed or assume) and _WORD not in record:
                continue  # it says nothing of it: not read, among a million that are not armed
            one = _subject(snapshot, segments, node, name, outer, armed, assume, releases)
            if one is not None:
                yield one
        for name, container in node.containers.items():
            if isinstance(container, Directory):
                below = snapshot.node(container.entry_id)
                if below is not None:
                    stack.append(((*segments, name), below, outer, armed))


def subject_at(
    snapshot: Snapshot,
    mount: Path,
    above: Sequence[Policies],
    place: tuple[int, str],
    assume: int = 0,
    releases: Releases | None = None,
) -> ArmedTopic | None:
    """Returns the topic at a place (parent id, name), if there is one and it is armed.
    ``releases``: those of the snapshot, where several places are asked for.
    """
    parent_id, name = place
    node, way = snapshot.node(parent_id), snapshot.path_of(parent_id)
    if node is None or way is None:
        return None
    outer, armed = _outside(snapshot, above, node, assume)
    outer = inherit(outer, node.directory.policies)
    armed = _is_aspect_managed(node.directory, armed, assume)
    releases = releases or Releases(snapshot, mount)
    segments = (*mount.segments, *way)
    return _subject(snapshot, segments, node, name, outer, armed, assume, releases)


def is_armed(snapshot: Snapshot, directory_id: int) -> bool:
    """True if the configs of what lies directly in a directory are kdir's to change."""
    node = snapshot.node(directory_id)
    if node is None:
        return False
    return _is_aspect_managed(node.directory, _outside(snapshot, (), node, 0)[1], 0)


def _outside(
    snapshot: Snapshot, above: Sequence[Policies], node: Node, assume: int
) -> tuple[Policies, bool]:
    """Returns what holds around a directory: its ancestors' words, not its own."""
    chain: list[Node] = []
    here = snapshot.node(node.parent_id) if node.parent_id else None
    while here is not None:
        chain.append(here)
        here = snapshot.node(here.parent_id) if here.parent_id else None
    policies = reduce(inherit, above, NO_POLICIES)
    armed = False
    for one in reversed(chain):
        policies = inherit(policies, one.directory.policies)
        armed = _is_aspect_managed(one.directory, armed, assume)
    return policies, armed


def _is_aspect_managed(entry: Directory | Topic, inherited: bool, assume: int) -> bool:  # noqa: FBT001
    if entry.entry_id == assume:
        return True
    return entry.policies.manage.get(CONFIGS, inherited)


def _subject(
    snapshot: Snapshot,
    segments: tuple[str, ...],
    node: Node,
    name: str,
    outer: Policies,
    armed: bool,  # noqa: FBT001
    assume: int,
    releases: Releases,
) -> ArmedTopic | None:
    topic = snapshot.topic(node.entry_id, name)
    if topic is None or topic.provision is not Provision.ACTIVE:
        return None
    if is_protected(topic.physical_name) or not _is_aspect_managed(topic, armed, assume):
        return None
    policies = without_cleared_keys(inherit(outer, topic.policies))
    configs = {key: value for key, value in policies.topic_config.items() if value is not None}
    return ArmedTopic(
        Path((*segments, name)),
        (node.entry_id, name),
        topic,
        configs,
        max(topic.partitions, policies.partitions or 0),
        releases.hold_for(node.entry_id, topic),
    )


def needs_check(subject: ArmedTopic, pushed: AppliedRecord[str], rules: ConfigDiffOptions) -> bool:
    """True if Kafka has to be asked about a topic; not where all is known to be as it is wished,
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


# -- plans -----------------------------------------------------------------------------------------


def plan_hash(path: Path, aspect: str, calls: Iterable[KafkaCall]) -> str:
    """Returns the name of a plan: of its path, its aspect and each of its calls, in order."""
    return _hash([str(path), aspect, [_to_row(one) for one in calls]])


def calls_hash(calls: Iterable[KafkaCall]) -> str:
    """Returns the name of calls, whatever Kafka has before them."""
    return _hash([[one.operation, one.resource, one.key, one.after] for one in calls])


def _to_row(call: KafkaCall) -> list[object]:
    row: list[object] = [call.operation, call.resource, call.key, call.before, call.after]
    return row if call.binding is None else [*row, call.takeover]


def _hash(word: object) -> str:
    text = json.dumps(word, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]


def describe_plan_difference(before: Iterable[KafkaCall], now: Iterable[KafkaCall]) -> str:
    """Returns what makes two plans differ, for people: the first few calls."""
    old = {(one.resource, one.key): one for one in before}
    new = {(one.resource, one.key): one for one in now}
    message = []
    for place in sorted(old.keys() | new.keys()):
        was, is_now = old.get(place), new.get(place)
        if was != is_now:
            message.append(f"{' '.join(place)}: {_call_text(was)}, now {_call_text(is_now)}")
    more = f", and {len(message) - _NAMED} more" if len(message) > _NAMED else ""
    return "; ".join(message[:_NAMED]) + more


def _call_text(call: KafkaCall | None) -> str:
    if call is None:
        return "no call"
    if call.binding is not None:
        return call.operation
    return f"{_format_value(call.before)} → {_format_value(call.after)}"


def _format_value(value: str | None) -> str:
    return "(default)" if value is None else value
