"""Makes Kafka match the tree: creates the topics that wait, deletes those that were removed.

Each request to Kafka is on record before it is sent, and the next process finds out its outcome,
so a process may end after any step (docs/architecture.md). kdir takes a topic for its own only by
an attempt that counts (``Attempt``), and deletes one only by its topic id.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self, assert_never

from directory.federation.inheritance import inherited_policies
from directory.kafka.admin_contract import (
    AlreadyDone,
    KafkaAdmin,
    KafkaTopic,
    OutcomeUnknown,
    Rejected,
    Succeeded,
    TopicToCreate,
    show_id,
)
from directory.kafka.adoption import recorded_topics
from directory.kafka.applying.desired_configs import RecordedTopic
from directory.kafka.fenced_commits import StaleObservation, TopicCommits
from directory.kafka.kafka_context import CREATE, DELETE, KafkaContext
from directory.kafka.provisioning.acknowledged_changes import AcknowledgedChanges, wait_until_shown
from directory.namespace.effective_policies import effective, levels_of
from directory.namespace.entry import Policies, Provision, Topic
from directory.namespace.plan_delete import DELETED
from directory.namespace.protected_topics import is_protected
from directory.namespace.traversal import entry_path
from resolver.path import Path

__all__ = ["Attempt", "Provisioner", "new_topic_of"]

_FORM = "2"
"""Version of the stored form, its first part."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request to make one topic, recorded before it is sent.

    It counts only in the store's incarnation and for the Kafka cluster that it names: after a
    restored backup or a migration, or with another Kafka, a topic was not made by this request.
    """

    number: str
    """Random: no two attempts are equal."""
    incarnation: str
    """The incarnation of the store in which it was recorded."""
    kafka_id: str
    """Kafka's own id of the cluster that the request goes to."""
    partitions: int = 0
    """Requested number; 0 = the broker's default."""
    replication_factor: int = 0

    def to_text(self) -> str:
        """Returns the stored form: parts without spaces, separated by spaces."""
        numbers = f"{self.partitions} {self.replication_factor}"
        return f"{_FORM} {self.number} {self.incarnation or '-'} {self.kafka_id or '-'} {numbers}"

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """Returns what ``to_text`` stored; None for any other text, such as a newer kdir's."""
        form, *parts = text.split(" ")
        if form != _FORM or len(parts) != 5 or not (parts[3] + parts[4]).isdigit():
            return None
        number, incarnation, kafka_id = ("" if one == "-" else one for one in parts[:3])
        return cls(number, incarnation, kafka_id, int(parts[3]), int(parts[4]))

    @classmethod
    def counting(cls, topic: Topic, incarnation: str, kafka_id: str) -> Self | None:
        """Returns the topic's recorded attempt; None if it has none, or one of another incarnation
        of the store or another Kafka.
        """
        found = cls.from_text(topic.provision_attempt)
        if found is None or (found.incarnation, found.kafka_id) != (incarnation, kafka_id):
            return None
        return found

    def accounts_for(self, seen: KafkaTopic) -> bool:
        """True if a topic is as requested; else another client made it.

        Also True while Kafka does not show the topic's partitions yet.
        """
        partitions, replicas = seen.partitions, seen.replication_factor
        asked = self.partitions or partitions, self.replication_factor or replicas
        return not partitions or asked == (partitions, replicas)


_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 2.0
"""Longest time from comparing a topic's id to deleting it, and from reading that Kafka has no topic
of a name to recording an attempt: another topic of that name may appear."""


def new_topic_of(topic: Topic, above: Sequence[Policies] = ()) -> TopicToCreate:
    """Returns the topic that Kafka is requested to make for an entry.

    Its configs are its own and those of the directories above, outermost first (KIP-37).
    """
    policies = effective([*above, topic.policies])
    return TopicToCreate(
        topic.physical_name,
        topic.partitions or policies.partitions or 0,
        topic.replication_factor or policies.replication_factor or 0,
        {name: value for name, value in policies.topic_config.items() if value is not None},
    )


@dataclass(slots=True)
class Provisioner:
    """Creation and deletion of topics in Kafka, for one leader, in its thread.

    Raises (all methods):
        KafkaUnavailable, KafkaRejected, LeadershipLost, StoreUnavailable
    """

    context: KafkaContext
    admin: KafkaAdmin
    commits: TopicCommits
    mount: Path
    acknowledged: AcknowledgedChanges
    kafka_id: str
    """The pinned id, which was compared with that of the Kafka that answers."""
    sleep: Callable[[float], object]
    prepare: Callable[[Sequence[RecordedTopic]], Mapping[str, str]]
    """Makes the ACLs that must exist before topics; returns why some topics wait, by name."""
    is_same: Callable[[], bool]
    """True while ``inherited_basis`` is the one on which the work was chosen."""
    release: Callable[[Sequence[tuple[RecordedTopic, bytes]]], None]
    """Releases topics that kdir made, passed with their ids in Kafka."""

    def put_off(self, waiting: Sequence[RecordedTopic], message: str) -> list[RecordedTopic]:
        """Records why nothing is done about these topics now; returns all, to be retried."""
        # Once per message, for readers of the entry.
        news = [one for one in waiting if one.topic.provision_message != message]
        self.commits.record([one.observation(provision_message=message) for one in news])
        return list(waiting)

    def create(self, pending: Sequence[RecordedTopic], put_off: str = "") -> list[RecordedTopic]:
        """Makes these topics in Kafka and records the outcomes. With a reason ``put_off``, only
        records that. Returns the topics to be retried, whose outcome is not known yet.
        """
        if put_off:
            return self.put_off(pending, put_off)
        shown = self._describe(pending)
        failed: list[tuple[RecordedTopic, str]] = []
        ours: list[RecordedTopic] = []
        absent: list[RecordedTopic] = []
        for one in pending:
            match shown.get(one.name):
                case None if CREATE in self.context.settings.ceiling:
                    absent.append(one)
                case None:
                    # Failed for good: it is not made by itself if the ceiling is raised later.
                    failed.append((one, "this server's ceiling does not allow creating topics"))
                case Rejected(message):
                    failed.append((one, message))
                case KafkaTopic() as seen if self._is_ours(one, seen):
                    ours.append(one)
                case KafkaTopic():
                    failed.append((one, _exists(one)))
                case other:
                    assert_never(other)
        made, refused, unclear = self._make(absent)
        self._record_failed([*failed, *refused])
        return unclear + self._await_shown([*ours, *made])

    def _describe(self, topics: Sequence[RecordedTopic]) -> Mapping[str, KafkaTopic | Rejected]:
        return self.admin.describe([one.name for one in topics])

    def _is_ours(self, one: RecordedTopic, seen: KafkaTopic) -> bool:
        """True if an attempt counts and the topic is as requested first, or as desired now."""
        attempt, now = self._attempt_of(one.topic), self._desired(one)
        if attempt is None:
            return False
        last = replace(
            attempt, partitions=now.partitions, replication_factor=now.replication_factor
        )
        return attempt.accounts_for(seen) or last.accounts_for(seen)

    def _is_acknowledged(self, one: RecordedTopic) -> bool:
        """True if Kafka acknowledged a short while ago that it made the topic for kdir."""
        return self.acknowledged.has_acknowledged(one.topic.provision_attempt)

    def _attempt_of(self, topic: Topic) -> Attempt | None:
        return Attempt.counting(topic, self.context.latest().incarnation, self.kafka_id)

    def _make(
        self, absent: Sequence[RecordedTopic]
    ) -> tuple[list[RecordedTopic], list[tuple[RecordedTopic, str]], list[RecordedTopic]]:
        """Requests topics that Kafka does not have: (made, refused with a reason, unclear)."""
        looked_at = self.context.clock()
        waits = self.prepare(absent) if absent else {}
        unclear = [one for one in absent if one.name in waits]
        for one in unclear:
            self.put_off([one], waits[one.name])
        self._forget_attempts(unclear)
        ready = [one for one in absent if one.name not in waits]
        if ready and self.context.clock() - looked_at > _LOOK_SECONDS:
            shown = self._describe(ready)
            unclear += [one for one in ready if one.name in shown]
            ready = [one for one in ready if one.name not in shown]
        tried_before = {one.topic.entry_id for one in ready if self._attempt_of(one.topic)}
        attempted, unrecorded = self._record_attempts(ready)
        unclear += unrecorded
        made: list[RecordedTopic] = []
        refused: list[tuple[RecordedTopic, str]] = []
        if not attempted:
            return made, refused, unclear
        self.acknowledged.note_asked(one.topic.provision_attempt for one in attempted)
        desired_set = [self._desired(one) for one in attempted]
        outcomes = self.admin.create(desired_set, self.commits.check)
        for one in attempted:
            match outcomes.get(one.name, OutcomeUnknown("no outcome")):
                case Succeeded():
                    self.acknowledged.note_acknowledged(one.topic.provision_attempt)
                    made.append(one)
                case AlreadyDone():
                    # Absent a moment ago: an earlier attempt of ours made it or, if there was none,
                    # another client.
                    if one.topic.entry_id in tried_before:
                        made.append(one)
                    else:
                        refused.append((one, _exists(one)))
                case Rejected(message):
                    refused.append((one, message))
                case OutcomeUnknown(message):
                    _log.warning("create %s: %s; it is tried again", one.name, message)
                    unclear += self.put_off([one], message)
                case other:
                    assert_never(other)
        return made, refused, unclear

    def _record_attempts(
        self, absent: Sequence[RecordedTopic]
    ) -> tuple[list[RecordedTopic], list[RecordedTopic]]:
        """Records an attempt for each topic: (topics with one, topics without one yet)."""
        new = [one for one in absent if self._attempt_of(one.topic) is None]
        self.commits.record(
            [one.observation(provision_attempt=self._new_attempt(one).to_text()) for one in new]
        )
        attempted: list[RecordedTopic] = []
        unclear: list[RecordedTopic] = []
        elsewhere: list[RecordedTopic] = []
        for one in absent:
            topic = self._current_entry(one)
            if topic is None or topic.provision is not Provision.PENDING:
                elsewhere.append(one)  # removed or moved meanwhile: no request for it here
                continue
            counts = self._attempt_of(topic) is not None
            (attempted if counts else unclear).append(RecordedTopic(one.path, topic))
        self._forget_attempts(elsewhere)
        return attempted, unclear

    def _new_attempt(self, one: RecordedTopic) -> Attempt:
        desired, incarnation = self._desired(one), self.context.latest().incarnation
        numbers = desired.partitions, desired.replication_factor
        return Attempt(secrets.token_hex(8), incarnation, self.kafka_id, *numbers)

    def _forget_attempts(self, unasked: Iterable[RecordedTopic]) -> None:
        """Removes the recorded attempts of topics that Kafka does not show and that are not
        requested now: a topic of such a name that appears meanwhile is not kdir's. Keeps attempts
        that this process sent a short while ago: brokers may not show their topics yet.
        """
        news, snapshot = [], self.context.latest()
        for one in unasked:
            located = snapshot.locate(one.name)
            if located is None or located.topic.entry_id != one.topic.entry_id:
                continue
            path = entry_path(self.mount, located.relative or (DELETED, located.name))
            attempt = located.topic.provision_attempt
            if attempt and not self.acknowledged.has_asked(attempt):
                now = RecordedTopic(path, located.topic)
                news.append(now.observation(provision_attempt=""))
        self.commits.record(news)

    def _desired(self, one: RecordedTopic) -> TopicToCreate:
        snapshot = self.context.latest()
        # By its name in Kafka: its directory may have been renamed meanwhile.
        located = snapshot.locate(one.name)
        levels = list(inherited_policies(snapshot))
        if located is not None and located.topic.entry_id == one.topic.entry_id:
            levels += levels_of(snapshot, located.parent_id)
        return new_topic_of(one.topic, levels)

    def _current_entry(self, one: RecordedTopic) -> Topic | None:
        """Returns the topic's entry as it is now; None = it was removed or moved."""
        snapshot = self.context.latest()
        place = recorded_topics.place_of(snapshot, self.mount, one)
        topic = snapshot.topic(*place) if place else None
        return topic if topic and topic.entry_id == one.topic.entry_id else None

    def _await_shown(self, made: Sequence[RecordedTopic]) -> list[RecordedTopic]:
        """Records the topics that metadata shows in time; returns the others. A topic whose making
        Kafka did not acknowledge is kdir's only if it is as requested.
        """
        by_name = {one.name: one for one in made}

        def look(names: list[str]) -> list[str]:
            ours: list[tuple[RecordedTopic, KafkaTopic]] = []
            failed: list[tuple[RecordedTopic, str]] = []
            for name, seen in self.admin.describe(names).items():
                if not isinstance(seen, KafkaTopic) or not seen.partitions:
                    continue
                one = by_name[name]
                if self._is_acknowledged(one) or self._is_ours(one, seen):
                    ours.append((one, seen))
                else:
                    failed.append((one, _exists(one)))
            self._record_failed(failed)
            self._record_active(ours)
            return [one.name for one, _ in (*ours, *failed)]

        return [by_name[name] for name in wait_until_shown(by_name, look, self.sleep)]

    def _record_active(self, shown: Sequence[tuple[RecordedTopic, KafkaTopic]]) -> None:
        for _, seen in shown:
            self.acknowledged.note_made(seen.name)
        self.commits.record(
            [
                one.observation(
                    provision=Provision.ACTIVE,
                    provision_message="",
                    topic_id=seen.topic_id,
                    partitions=seen.partitions,
                    replication_factor=seen.replication_factor,
                    observed_config=self._desired(one).config,
                    drift_count=0,
                )
                for one, seen in shown
            ]
        )
        made = [(one, seen.topic_id) for one, seen in shown if self._is_acknowledged(one)]
        if made:
            self.release(made)

    def _record_failed(self, failed: Iterable[tuple[RecordedTopic, str]]) -> None:
        # Without the attempt: a topic of that name that appears later is not kdir's.
        fields = {"provision": Provision.FAILED, "provision_attempt": ""}
        self.commits.record(
            [one.observation(provision_message=message, **fields) for one, message in failed]
        )

    def delete(self, removed: Sequence[RecordedTopic], put_off: str = "") -> list[RecordedTopic]:
        """Deletes removed topics in Kafka and finishes their removal. With a reason ``put_off``,
        only records that. Returns the topics to be retried, which are not finished yet.
        """
        if put_off:
            return self.put_off(removed, put_off)
        shown = self._describe(removed)
        goes: list[RecordedTopic] = []
        waits: list[RecordedTopic] = []
        gone: list[RecordedTopic] = []
        for one in removed:
            match shown.get(one.name):
                case None if self.acknowledged.has_asked(one.topic.provision_attempt):
                    waits.append(one)  # made a moment ago: not every broker shows it yet
                case None:
                    gone.append(one)
                case Rejected(message):
                    waits += self.put_off([one], message)
                case KafkaTopic() as seen if self._shows_no_id_yet(one.topic, seen):
                    waits += self.put_off([one], "Kafka shows the topic without its topic id")
                case KafkaTopic() as seen if seen.internal or is_protected(seen.name):
                    # Adopted by an older version: the entry is removed, Kafka's topic never.
                    self._detach(one, seen.topic_id)
                case KafkaTopic() as seen:
                    if self._is_same_topic(one, seen):
                        goes.append(one)
                case other:
                    assert_never(other)
        self._finish(gone)
        return waits + self._remove(goes, shown)

    def _finish(self, gone: Sequence[RecordedTopic]) -> None:
        for is_acknowledged in (True, False):
            # Separately: a topic that one broker does not show may still exist.
            chosen = [
                (one.path.name, one.topic.entry_id)
                for one in gone
                if self.acknowledged.has_deleted(one.topic.topic_id) == is_acknowledged
            ]
            self.commits.finish(chosen, is_acknowledged=is_acknowledged)

    def _detach(self, one: RecordedTopic, topic_id: bytes) -> None:
        self.commits.detach(one.path.name, one.topic.entry_id, one.name, topic_id)

    def _shows_no_id_yet(self, topic: Topic, seen: KafkaTopic) -> bool:
        """True if Kafka does not show yet the topic id that decides on the deletion."""
        if seen.topic_id or DELETE not in self.context.settings.ceiling:
            return False
        return bool(topic.topic_id) or self.acknowledged.has_asked(topic.provision_attempt)

    def _is_same_topic(self, one: RecordedTopic, seen: KafkaTopic) -> bool:
        """True if Kafka's topic may be deleted; else ends its entry and leaves the topic alone."""
        topic = one.topic
        if topic.topic_id and seen.topic_id and topic.topic_id != seen.topic_id:
            _log.warning(
                "%s was removed, but Kafka has another topic of that name by now (%s, not %s): "
                "it is left alone",
                *(one.name, show_id(seen.topic_id), show_id(topic.topic_id)),
            )
            self._finish([one])
            return False
        if DELETE in self.context.settings.ceiling and seen.topic_id:
            if topic.topic_id or self._made_just_now(topic, seen):
                return True
            _log.warning(
                "%s was removed before its topic id was known; Kafka has a topic of that name, %s, "
                "which another client may have made: it is left alone, and not adopted",
                one.name,
                show_id(seen.topic_id),
            )
        # Beyond the ceiling: never deleted by itself if the ceiling is raised later. Or without an
        # id: it may be another topic.
        self._detach(one, seen.topic_id or topic.topic_id)
        return False

    def _made_just_now(self, topic: Topic, seen: KafkaTopic) -> bool:
        """True if this process requested the topic a short while ago, and it is as requested. A
        recorded attempt does not prove that: its process may have died before sending it.
        """
        attempt = self._attempt_of(topic)
        has_asked = self.acknowledged.has_asked(topic.provision_attempt)
        return has_asked and attempt is not None and attempt.accounts_for(seen)

    def _remove(
        self, goes: Sequence[RecordedTopic], shown: Mapping[str, KafkaTopic | Rejected]
    ) -> list[RecordedTopic]:
        if not goes:
            return []
        # The commits before may have taken long: the ids are read again right before deleting.
        now = self._describe(goes)
        still = self.commits.check_fresh(self.context.clock, _LOOK_SECONDS, self.is_same)
        same = [one for one in goes if _same(now.get(one.name), shown.get(one.name))]
        names = dict.fromkeys(one.name for one in same)
        waits = [one for one in goes if one.name not in names]
        try:
            outcomes = self.admin.delete(list(names), still)
        except StaleObservation:
            _log.warning("%d topics are looked at again before they are deleted", len(same))
            return list(goes)
        gone: dict[str, RecordedTopic] = {}
        for one in same:
            match outcomes.get(one.name, OutcomeUnknown("no outcome")):
                case Succeeded() | AlreadyDone():
                    gone[one.name] = one
                    before = shown.get(one.name)
                    if isinstance(before, KafkaTopic) and before.topic_id:
                        self.acknowledged.note_deleted(before.topic_id)
                case Rejected(message):
                    waits += self.put_off([one], message)
                case OutcomeUnknown(message):
                    _log.warning("delete %s: %s; it is tried again", one.name, message)
                    waits.append(one)
                case other:
                    assert_never(other)
        return waits + self._await_gone(gone, shown)

    def _await_gone(
        self, gone: dict[str, RecordedTopic], shown: Mapping[str, KafkaTopic | Rejected]
    ) -> list[RecordedTopic]:
        def look(names: list[str]) -> list[str]:
            now = self.admin.describe(names)
            finished = [name for name in names if not _same(now.get(name), shown.get(name))]
            self._finish([gone[name] for name in finished])
            return finished

        return [gone[name] for name in wait_until_shown(gone, look, self.sleep)]


def _exists(one: RecordedTopic) -> str:
    return f"topic {one.name} exists in Kafka and was not made by kdir; `kdir adopt` takes it in"


def _same(now: KafkaTopic | Rejected | None, before: KafkaTopic | Rejected | None) -> bool:
    return (
        isinstance(now, KafkaTopic)
        and isinstance(before, KafkaTopic)
        and now.topic_id == before.topic_id
    )
