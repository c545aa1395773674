"""What this process changed on topics in Kafka a short while ago, for brokers that do not show it.

A controller acknowledges a change before brokers come to it: one that holds 10,000 partitions needs
milliseconds for each topic. What is read of it meanwhile is of before, and would be taken for
somebody else's doing. Refuses to change anything, and to believe in a change for ever.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from directory.kafka.admin_contract import KafkaAdmin, KafkaMetadata, KafkaTopic, Rejected
from directory.namespace.topic_configs import same_value

__all__ = ["AcknowledgedChange", "RecentConfigChanges"]

_log = logging.getLogger(__name__)

_AT_MOST_SECONDS: Final = 120.0
"""For so long a broker may show what was before a change of ours."""
_OTHERS_SECONDS: Final = 5.0
"""And for so long once another broker has shown the change."""
_PATIENCE_SECONDS: Final = 30.0
"""So long at most more changes wait until Kafka shows those before them."""


@dataclass(frozen=True, slots=True)
class AcknowledgedChange:
    """What Kafka acknowledged for one topic."""

    name: str
    topic_id: bytes
    before: Mapping[str, str]
    """What was set on the topic."""
    after: Mapping[str, str | None]
    """What was changed of it; None: back to the default."""
    partitions: int = 0
    """It has so many now; 0: their number was not changed."""


@dataclass(frozen=True, slots=True)
class _Value:
    stale: tuple[str | None, ...]
    """What it was before, one after the other."""
    now: str | None
    until: float


@dataclass(frozen=True, slots=True)
class _Batch:
    sample: AcknowledgedChange
    """Which stands for all of them: brokers take up changes in order."""
    key: str
    topic_ids: tuple[bytes, ...]
    asked_at: float


class RecentConfigChanges:
    """For one leader, in its thread.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: dict[bytes, dict[str, _Value]] = {}
        self._partitions: dict[bytes, tuple[int, float]] = {}
        self._batches: deque[_Batch] = deque()

    def note(self, changes: Iterable[AcknowledgedChange]) -> None:
        """One batch that Kafka acknowledged."""
        now = self._clock()
        noted = list(changes)
        for change in noted:
            known = self._values.setdefault(change.topic_id, {})
            for key, value in change.after.items():
                last = known.get(key)
                stale = (*last.stale, last.now) if last else (change.before.get(key),)
                known[key] = _Value(stale, value, now + _AT_MOST_SECONDS)
            if change.partitions:
                self._partitions[change.topic_id] = (change.partitions, now + _AT_MOST_SECONDS)
        samples = [one for one in noted if one.after]
        if samples:
            ids = tuple(one.topic_id for one in noted)
            self._batches.append(_Batch(samples[-1], next(iter(samples[-1].after)), ids, now))

    def behind(self, admin: KafkaAdmin) -> int:
        """Returns how many batches Kafka does not show yet.

        Raises:
            KafkaUnavailable, KafkaRejected
        """
        if not self._batches:
            return 0
        shown = admin.configs([one.sample.name for one in self._batches])
        while self._batches and self._is_over(self._batches[0], shown):
            over = set(self._batches.popleft().topic_ids)
            self._soon_over(over.difference(*(one.topic_ids for one in self._batches)))
        if not self._batches:
            self._forget()
        return len(self._batches)

    def _is_over(self, batch: _Batch, shown: Mapping[str, Mapping[str, str] | Rejected]) -> bool:
        found = shown.get(batch.sample.name)
        if found is None or isinstance(found, Rejected):
            return True  # nothing is to be learnt from it
        if not self._is_stale(batch.sample.topic_id, batch.key, found.get(batch.key)):
            return True
        if self._clock() - batch.asked_at < _PATIENCE_SECONDS:
            return False
        _log.warning(
            "Kafka does not show a change after %g s that it acknowledged: %s of %s and others",
            _PATIENCE_SECONDS,
            batch.key,
            batch.sample.name,
        )
        return True

    def configs(self, topic_id: bytes, found: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the configs set on a topic, as every broker will show them."""
        if topic_id not in self._values:
            return found
        corrected = dict(found)
        for key, value in list(self._values[topic_id].items()):
            if self._is_stale(topic_id, key, found.get(key)):
                if value.now is None:
                    corrected.pop(key, None)
                else:
                    corrected[key] = value.now
            elif not same_value(key, value.now, found.get(key)):
                del self._values[topic_id][key]  # somebody else changed it since
        return corrected

    def seen(self, seen: KafkaTopic) -> KafkaTopic:
        """A topic, as every broker will show it."""
        count, until = self._partitions.get(seen.topic_id, (0, 0.0))
        if not seen.partitions or seen.partitions >= count or until <= self._clock():
            return seen
        return replace(seen, partitions=count)

    def survey(self, survey: KafkaMetadata) -> KafkaMetadata:
        """Returns all topics, as every broker will show them."""
        self._forget()
        if not self._partitions:
            return survey
        topics = {name: self.seen(one) for name, one in survey.topics.items()}
        return replace(survey, topics=topics)

    def _is_stale(self, topic_id: bytes, key: str, found: str | None) -> bool:
        value = self._values.get(topic_id, {}).get(key)
        if value is None or value.until <= self._clock() or same_value(key, value.now, found):
            return False
        return any(same_value(key, one, found) for one in value.stale)

    def _soon_over(self, topic_ids: Iterable[bytes]) -> None:
        until = self._clock() + _OTHERS_SECONDS
        for topic_id in topic_ids:
            known = self._values.get(topic_id, {})
            for key, value in known.items():
                known[key] = replace(value, until=min(value.until, until))
            if topic_id in self._partitions:
                count, last = self._partitions[topic_id]
                self._partitions[topic_id] = (count, min(last, until))

    def _forget(self) -> None:
        now = self._clock()
        self._partitions = {key: one for key, one in self._partitions.items() if one[1] > now}
        self._values = {
            topic_id: known
            for topic_id, known in self._values.items()
            if any(value.until > now for value in known.values())
        }
