"""Changes that this process made in Kafka a short while ago and that brokers may not show yet.

A controller acknowledges a change before brokers apply it: a broker that holds 10,000 partitions
needs milliseconds for each topic. Until then it returns the old state, which would look like a
change of another client: a new topic missing, a deleted one new. All that is read of Kafka is
corrected here, for a limited time. A change that is not shown after a few reads is checked again
later, so that nothing else waits for it (K7).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

from directory.kafka.admin_contract import (
    ALTER,
    AclBinding,
    KafkaAdmin,
    KafkaMetadata,
    KafkaTopic,
    Rejected,
)
from directory.kafka.applying.config_diff import ConfigDiff
from directory.kafka.applying.desired_configs import RecordedTopic
from directory.namespace.topic_configs import same_value

__all__ = ["AcknowledgedChanges", "wait_until_shown"]

_log = logging.getLogger(__name__)

_LOOKS_SECONDS: Final = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Pauses between reads of metadata after a change, until they show the change."""
_TOPIC_SECONDS: Final = 60.0
"""Longest time for which a broker may not show that a topic was created or deleted."""
_CONFIG_SECONDS: Final = 120.0
"""Longest time for which a broker may show a topic's previous configs and partitions."""
_OTHERS_SECONDS: Final = 5.0
"""Longest such time once a broker has shown the change."""
_PATIENCE_SECONDS: Final = 30.0
"""Longest time for which further changes wait until Kafka shows the changes before them."""
_ACL_SECONDS: Final = 30.0

_K = TypeVar("_K")
_V = TypeVar("_V")


class _ExpiringMap(Generic[_K, _V]):
    """Map whose values expire."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: dict[_K, tuple[_V, float]] = {}

    def put(self, key: _K, value: _V, seconds: float) -> None:
        """Stores a value for ``seconds``."""
        self._values[key] = (value, self._clock() + seconds)

    def get(self, key: _K) -> _V | None:
        """Returns the value; None if there is none or it has expired."""
        value, until = self._values.get(key, (None, 0.0))
        return value if until > self._clock() else None

    def shorten(self, key: _K, seconds: float) -> None:
        """Keeps a value for at most ``seconds`` from now on."""
        if key in self._values:
            value, until = self._values[key]
            self._values[key] = (value, min(until, self._clock() + seconds))

    def live(self) -> Mapping[_K, _V]:
        """Returns all values that have not expired; removes the others."""
        now = self._clock()
        self._values = {key: one for key, one in self._values.items() if one[1] > now}
        return {key: value for key, (value, _) in self._values.items()}


@dataclass(slots=True)
class _TopicChange:
    """Acknowledged changes of one topic's configs and partitions."""

    values: dict[str, str | None] = field(default_factory=dict)
    """Current values of the changed configs."""
    stale: dict[str, list[str | None]] = field(default_factory=dict)
    """Earlier values of each config, oldest first."""
    partitions: int = 0

    def is_stale(self, key: str, found: str | None) -> bool:
        """True if ``found``, as a broker shows it, is an earlier value of the config."""
        if key not in self.values or same_value(key, self.values[key], found):
            return False
        return any(same_value(key, one, found) for one in self.stale[key])


@dataclass(frozen=True, slots=True)
class _Batch:
    sample: RecordedTopic
    """Topic that is checked for the whole batch: brokers apply changes in order."""
    key: str
    topic_ids: tuple[bytes, ...]
    asked_at: float


class AcknowledgedChanges:
    """Recent changes of one leader that Kafka acknowledged, for its thread only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._made: _ExpiringMap[str, bool] = _ExpiringMap(clock)
        self._deleted: _ExpiringMap[bytes, bool] = _ExpiringMap(clock)
        self._asked: _ExpiringMap[str, bool] = _ExpiringMap(clock)
        self._acknowledged: _ExpiringMap[str, bool] = _ExpiringMap(clock)
        self._changed: _ExpiringMap[bytes, _TopicChange] = _ExpiringMap(clock)
        self._batches: deque[_Batch] = deque()
        self._acls: _ExpiringMap[AclBinding, bool] = _ExpiringMap(clock)

    def note_made(self, name: str) -> None:
        """Stores that a topic was made."""
        self._made.put(name, True, _TOPIC_SECONDS)

    def note_deleted(self, topic_id: bytes) -> None:
        """Stores that a topic was deleted."""
        self._deleted.put(topic_id, True, _TOPIC_SECONDS)

    def has_deleted(self, topic_id: bytes) -> bool:
        """True if Kafka acknowledged a short while ago that it deleted a topic."""
        return self._deleted.get(topic_id) is not None

    def note_asked(self, attempts: Iterable[str]) -> None:
        """Stores that requests for these attempts are sent."""
        for attempt in attempts:
            self._asked.put(attempt, True, _TOPIC_SECONDS)

    def has_asked(self, attempt: str) -> bool:
        """True if this process sent the request of an attempt a short while ago."""
        return self._asked.get(attempt) is not None

    def note_acknowledged(self, attempt: str) -> None:
        """Stores that Kafka acknowledged the request of an attempt: it made the topic."""
        self._acknowledged.put(attempt, True, _TOPIC_SECONDS)

    def has_acknowledged(self, attempt: str) -> bool:
        """True if Kafka acknowledged the request of an attempt a short while ago."""
        return self._acknowledged.get(attempt) is not None

    def correct_metadata(self, survey: KafkaMetadata) -> KafkaMetadata:
        """Returns all topics as every broker will show them: without deleted ones. Topics that were
        made and are not shown are added to ``unsettled``: they are not gone.
        """
        made, deleted, changed = self._made.live(), self._deleted.live(), self._changed.live()
        self._asked.live()
        self._acknowledged.live()
        if not (made or deleted or changed):
            return survey
        topics = {
            name: self.correct_topic(seen)
            for name, seen in survey.topics.items()
            if seen.topic_id not in deleted
        }
        unsettled = survey.unsettled | (made.keys() - topics.keys())
        return replace(survey, topics=topics, unsettled=unsettled)

    def note_changes(self, diffs: Sequence[ConfigDiff]) -> None:
        """Stores one batch of changes that Kafka acknowledged."""
        for diff in diffs:
            topic_id = diff.subject.topic.topic_id
            known = self._changed.get(topic_id) or _TopicChange()
            for call in diff.calls:
                if call.operation == ALTER:
                    last = known.values.get(call.key, call.before)
                    known.stale.setdefault(call.key, []).append(last)
                    known.values[call.key] = call.after
            known.partitions = diff.grows_to or known.partitions
            self._changed.put(topic_id, known, _CONFIG_SECONDS)
        samples = [one for one in diffs if one.alterations]
        if samples:
            ids = tuple(one.subject.topic.topic_id for one in diffs)
            key = next(iter(samples[-1].alterations))
            self._batches.append(_Batch(samples[-1].subject, key, ids, self._clock()))

    def count_behind(self, admin: KafkaAdmin) -> int:
        """Returns the number of stored batches that Kafka does not show yet."""
        if not self._batches:
            return 0
        shown = admin.configs([one.sample.name for one in self._batches])
        while self._batches and self._is_over(self._batches[0], shown):
            over = set(self._batches.popleft().topic_ids)
            for topic_id in over.difference(*(one.topic_ids for one in self._batches)):
                self._changed.shorten(topic_id, _OTHERS_SECONDS)
        return len(self._batches)

    def _is_over(self, batch: _Batch, shown: Mapping[str, Mapping[str, str] | Rejected]) -> bool:
        found, known = shown.get(batch.sample.name), self._changed.get(batch.sample.topic.topic_id)
        if known is None or found is None or isinstance(found, Rejected):
            return True  # the sample cannot be compared
        if not known.is_stale(batch.key, found.get(batch.key)):
            return True
        if self._clock() - batch.asked_at < _PATIENCE_SECONDS:
            return False
        text = "Kafka does not show a change after %g s that it acknowledged: %s of %s and others"
        _log.warning(text, _PATIENCE_SECONDS, batch.key, batch.sample.name)
        return True

    def correct_configs(self, topic_id: bytes, found: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the configs set on a topic, as every broker will show them."""
        known = self._changed.get(topic_id)
        if known is None:
            return found
        corrected = dict(found)
        for key, value in list(known.values.items()):
            if known.is_stale(key, found.get(key)):
                if value is None:
                    corrected.pop(key, None)
                else:
                    corrected[key] = value
            elif not same_value(key, value, found.get(key)):
                del known.values[key], known.stale[key]  # another client changed it since
        return corrected

    def correct_topic(self, seen: KafkaTopic) -> KafkaTopic:
        """Returns a topic as every broker will show it."""
        known = self._changed.get(seen.topic_id)
        if known is None or not seen.partitions or seen.partitions >= known.partitions:
            return seen
        return replace(seen, partitions=known.partitions)

    def note_acl(self, binding: AclBinding, *, added: bool) -> None:
        """Stores that an ACL was added or removed."""
        self._acls.put(binding, added, _ACL_SECONDS)

    def correct_acls(self, shown: Iterable[AclBinding]) -> set[AclBinding]:
        """Returns all ACLs as every broker will show them."""
        changed = self._acls.live()
        added = {one for one, was_added in changed.items() if was_added}
        return (set(shown) - changed.keys()) | added


def wait_until_shown(
    names: Iterable[str],
    look: Callable[[list[str]], Iterable[str]],
    sleep: Callable[[float], object],
) -> list[str]:
    """Reads Kafka until brokers show acknowledged changes of these topics; returns the names whose
    changes are not shown in time. ``look`` is passed the names that are left, and returns those
    whose changes are shown now.
    """
    waiting = dict.fromkeys(names)
    for pause in (0.0, *_LOOKS_SECONDS):
        if not waiting:
            break
        sleep(pause)
        for name in look(list(waiting)):
            del waiting[name]
    return list(waiting)
