"""Makes Kafka match the tree: creates the topics that wait, deletes those that were removed.

Crash-safe: what is asked of Kafka is on record before it is asked, and what came of it is found out
again by the next process, so every step may be the last one of a process (docs/architecture.md).
Takes a topic for its own only by an attempt that counts (``Attempt``), and deletes
one only by its topic id.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self, assert_never

from directory.federation.parent_state import inherited_policies
from directory.kafka.admin_contract import (
    AlreadyDone,
    KafkaAdmin,
    KafkaTopic,
    OutcomeUnknown,
    Rejected,
    Succeeded,
    TopicToCreate,
)
from directory.kafka.adoption import recorded_topics
from directory.kafka.adoption.metadata_diff import RecordedTopic, show_id
from directory.kafka.adoption.recorded_topics import PendingDeletion
from directory.kafka.fenced_commits import StaleObservation, TopicCommits
from directory.kafka.provisioning.recent_changes import RecentChanges
from directory.kafka.reconciler_settings import CREATE, DELETE
from directory.namespace.command import TopicObservation
from directory.namespace.effective_policies import effective, levels_of
from directory.namespace.entry import Policies, Provision, Topic
from directory.namespace.physical_names import is_protected
from directory.namespace.plan_delete import DELETED
from directory.namespace.snapshot import Snapshot
from resolver.path import Path

__all__ = ["Attempt", "Provisioner", "new_topic_of"]


_FORM = "2"
"""The first part of the stored form. Before it was a random number alone, without an incarnation.
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request to make one topic, as it is on record before it is sent.

    It counts in the incarnation of the store and for the Kafka cluster that it names, and for no
    other: a restored backup, a migrated store and another Kafka at the address show topics that it
    did not make.
    """

    number: str
    """Random: no two attempts are equal."""
    incarnation: str
    """The incarnation of the store in which it was recorded."""
    kafka_id: str
    """Kafka's own id of the cluster that was to be asked."""
    partitions: int = 0
    """As asked for; 0 = the broker's default."""
    replication_factor: int = 0

    @classmethod
    def of_desired(
        cls, number: str, incarnation: str, kafka_id: str, desired: TopicToCreate
    ) -> Self:
        """Returns the attempt at what is desired."""
        return cls(number, incarnation, kafka_id, desired.partitions, desired.replication_factor)

    def to_text(self) -> str:
        """Returns the stored form: parts, none of which holds a space."""
        numbers = f"{self.partitions} {self.replication_factor}"
        return f"{_FORM} {self.number} {self.incarnation or '-'} {self.kafka_id or '-'} {numbers}"

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """Returns what ``to_text`` stored; None for any other text, such as an older kdir's."""
        form, *message = text.split(" ")
        if form != _FORM or len(message) != 5 or not (message[3] + message[4]).isdigit():
            return None
        number, incarnation, kafka_id, partitions, replicas = message
        return cls(
            number,
            "" if incarnation == "-" else incarnation,
            "" if kafka_id == "-" else kafka_id,
            int(partitions),
            int(replicas),
        )

    @classmethod
    def counting(cls, topic: Topic, incarnation: str, kafka_id: str) -> Self | None:
        """Returns the attempt on record of a topic; None where there is none, or where it is of
        another incarnation of the store or of another Kafka.
        """
        found = cls.from_text(topic.provision_attempt)
        if found is None or (found.incarnation, found.kafka_id) != (incarnation, kafka_id):
            return None
        return found

    def accounts_for(self, seen: KafkaTopic) -> bool:
        """True if a topic is as it was asked for; one that is otherwise was made by somebody else.

        A topic of which Kafka cannot say yet how many partitions it has may still become it.
        """
        if not seen.partitions:
            return True
        return self.partitions in {0, seen.partitions} and self.replication_factor in {
            0,
            seen.replication_factor,
        }


_log = logging.getLogger(__name__)

_LOOKS_SECONDS: Final = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Metadata is asked so long after a change, again and again, until it shows it (K7)."""
_LOOK_SECONDS: Final = 2.0
"""Kafka deletes by name: no longer after its id was compared may a topic be asked to be deleted.
Who was paused for longer looks again, for somebody may have made another one of that name. And no
longer after Kafka showed no such topic is an attempt recorded."""


def new_topic_of(topic: Topic, above: Sequence[Policies] = ()) -> TopicToCreate:
    """Returns what Kafka is asked to make for a topic entry.

    Its configs are its own and those of the directories above (KIP-37), outermost first.
    """
    policies = effective([*above, topic.policies])
    return TopicToCreate(
        topic.physical_name,
        topic.partitions or policies.partitions or 0,
        topic.replication_factor or policies.replication_factor or 0,
        {name: value for name, value in policies.topic_config.items() if value is not None},
    )


@dataclass(frozen=True, slots=True)
class Provisioner:
    """Creation and deletion of topics in Kafka, for one leader, in its thread."""

    admin: KafkaAdmin
    commits: TopicCommits
    ceiling: frozenset[str]
    latest: Callable[[], Snapshot]
    """The newest snapshot: it holds what was committed before."""
    mount: Path
    recent: RecentChanges
    kafka_id: str
    """The pinned one, which was compared with that of the Kafka that answers."""
    new_attempt: Callable[[], str]
    """A random number."""
    sleep: Callable[[float], object]
    clock: Callable[[], float] = time.monotonic
    prepare: Callable[[Sequence[RecordedTopic]], Mapping[str, str]] = lambda _: {}
    """Makes what has to be there before topics are; why some have to wait, by physical name."""
    is_same: Callable[[], bool] = lambda: True
    """True as long as the basis is that on which the work was chosen."""
    release: Callable[[Sequence[tuple[RecordedTopic, bytes]]], None] = lambda _: None
    """Is called with topics that kdir made, and their ids in Kafka."""
    created: set[int] = field(default_factory=set)
    """Entry ids of the topics that Kafka made because it was asked here, by its own answer."""

    # -- creating --------------------------------------------------------------------------------

    def create(self, desired_config: Sequence[RecordedTopic]) -> list[RecordedTopic]:
        """Makes these topics in Kafka and records what came of each.

        Returns:
            Those of which nothing could be found out yet: to be tried again later.

        Raises:
            KafkaUnavailable, KafkaRejected, LeadershipLost, StoreUnavailable
        """
        shown = self.admin.describe([one.topic.physical_name for one in desired_config])
        failed: list[tuple[RecordedTopic, str]] = []
        ours: list[RecordedTopic] = []
        absent: list[RecordedTopic] = []
        for one in desired_config:
            match shown.get(one.topic.physical_name):
                case None if CREATE in self.ceiling:
                    absent.append(one)
                case None:
                    # An older request never runs by itself, should the ceiling be raised again.
                    failed.append((one, "this server's ceiling does not allow creating topics"))
                case Rejected(message):
                    failed.append((one, message))
                case KafkaTopic() as seen if self._is_ours(one.topic, seen):
                    ours.append(one)
                case KafkaTopic():
                    failed.append((one, _exists(one)))
                case other:
                    assert_never(other)
        made, refused, unclear = self._make(absent)
        self._failed([*failed, *refused])
        return unclear + self._active([*ours, *made])

    def postpone(
        self, desired_config: Sequence[RecordedTopic], message: str
    ) -> list[RecordedTopic]:
        """Records why none of these is made now; all of them, to be tried again later.

        Raises:
            LeadershipLost, StoreUnavailable
        """
        for one in desired_config:
            self._report_wait(one.path, one.topic, message)
        return list(desired_config)

    def _is_ours(self, topic: Topic, seen: KafkaTopic) -> bool:
        attempt = self._attempt_of(topic)
        return attempt is not None and attempt.accounts_for(seen)

    def _attempt_of(self, topic: Topic) -> Attempt | None:
        return Attempt.counting(topic, self.latest().incarnation, self.kafka_id)

    def put_off_all(
        self,
        desired_config: Sequence[RecordedTopic],
        removed: Sequence[PendingDeletion],
        message: str,
    ) -> tuple[list[RecordedTopic], list[PendingDeletion]]:
        """Records why nothing is made and nothing deleted now; all of it, to be tried again later.

        Raises:
            LeadershipLost, StoreUnavailable
        """
        for one in removed:
            self._report_wait(self._removed_path(one.name), one.topic, message)
        return self.postpone(desired_config, message), list(removed)

    def _make(
        self, absent: Sequence[RecordedTopic]
    ) -> tuple[list[RecordedTopic], list[tuple[RecordedTopic, str]], list[RecordedTopic]]:
        """Asks Kafka for topics that it does not have: (made, refused with its reason, unclear)."""
        looked_at = self.clock()
        waits = self.prepare(absent) if absent else {}
        unclear = [one for one in absent if one.topic.physical_name in waits]
        for one in unclear:
            self._report_wait(one.path, one.topic, waits[one.topic.physical_name])
        self._forget_attempts(unclear)
        ready = [one for one in absent if one.topic.physical_name not in waits]
        if ready and self.clock() - looked_at > _LOOK_SECONDS:
            shown = self.admin.describe([one.topic.physical_name for one in ready])
            unclear += [one for one in ready if one.topic.physical_name in shown]
            ready = [one for one in ready if one.topic.physical_name not in shown]
        tried_before = {
            one.topic.entry_id for one in ready if self._attempt_of(one.topic) is not None
        }
        attempted, unrecorded = self._attempt(ready)
        unclear += unrecorded
        made: list[RecordedTopic] = []
        refused: list[tuple[RecordedTopic, str]] = []
        if not attempted:
            return made, refused, unclear
        self.recent.note_asked(one.topic.provision_attempt for one in attempted)
        outcomes = self.admin.create([self._desired(one) for one in attempted], self.commits.check)
        for one in attempted:
            match outcomes.get(one.topic.physical_name, OutcomeUnknown("no outcome")):
                case Succeeded():
                    self.created.add(one.topic.entry_id)
                    made.append(one)
                case AlreadyDone():
                    # Absent a moment ago: an earlier attempt of ours came through, or, if there was
                    # none, somebody else was quicker.
                    if one.topic.entry_id in tried_before:
                        made.append(one)
                    else:
                        refused.append((one, _exists(one)))
                case Rejected(message):
                    refused.append((one, message))
                case OutcomeUnknown(message):
                    _log.warning(
                        "create %s: %s; it is tried again", one.topic.physical_name, message
                    )
                    self._report_wait(one.path, one.topic, message)
                    unclear.append(one)
                case other:
                    assert_never(other)
        return made, refused, unclear

    def _report_wait(self, path: Path, topic: Topic, message: str) -> None:
        """Records why a topic still waits, once, for who looks at its entry."""
        if topic.provision_message != message:
            news = TopicObservation(path=path, entry_id=topic.entry_id, provision_message=message)
            self.commits.record([news])

    def _removed_path(self, name: str) -> Path:
        return Path((*self.mount.segments, DELETED, name))

    def _attempt(
        self, absent: Sequence[RecordedTopic]
    ) -> tuple[list[RecordedTopic], list[RecordedTopic]]:
        """Puts an attempt on record for each: (those that have it, those that have it not yet)."""
        incarnation = self.latest().incarnation
        self.commits.record(
            [
                TopicObservation(
                    path=one.path,
                    entry_id=one.topic.entry_id,
                    provision_attempt=Attempt.of_desired(
                        self.new_attempt(), incarnation, self.kafka_id, self._desired(one)
                    ).to_text(),
                )
                for one in absent
                if self._attempt_of(one.topic) is None
            ]
        )
        attempted: list[RecordedTopic] = []
        unclear: list[RecordedTopic] = []
        elsewhere: list[RecordedTopic] = []
        for one in absent:
            topic = self._entry(one)
            if topic is None or topic.provision is not Provision.PENDING:
                elsewhere.append(one)  # removed or moved meanwhile: nothing is asked for it here
                continue
            counts = self._attempt_of(topic) is not None
            (attempted if counts else unclear).append(RecordedTopic(one.path, topic))
        self._forget_attempts(elsewhere)
        return attempted, unclear

    def _forget_attempts(self, unasked: Iterable[RecordedTopic]) -> None:
        """Takes the attempts off the record of topics that Kafka does not show and for which
        nothing is asked now: what comes under their names meanwhile is somebody else's.
        """
        news, snapshot = [], self.latest()
        for one in unasked:
            located = snapshot.locate(one.topic.physical_name)
            if located is None or located.topic.entry_id != one.topic.entry_id:
                continue
            path = (
                self._removed_path(located.name)
                if located.relative is None
                else Path((*self.mount.segments, *located.relative))
            )
            if located.topic.provision_attempt:
                entry_id = one.topic.entry_id
                news.append(TopicObservation(path=path, entry_id=entry_id, provision_attempt=""))
        self.commits.record(news)

    def _desired(self, one: RecordedTopic) -> TopicToCreate:
        snapshot = self.latest()
        place = recorded_topics.place_of(snapshot, self.mount, one)
        above = inherited_policies(snapshot)
        return new_topic_of(one.topic, [*above, *levels_of(snapshot, place[0])] if place else above)

    def _entry(self, one: RecordedTopic) -> Topic | None:
        """Returns the entry as it is now; None = it is gone or elsewhere."""
        snapshot = self.latest()
        place = recorded_topics.place_of(snapshot, self.mount, one)
        topic = None if place is None else snapshot.topic(*place)
        return topic if topic is not None and topic.entry_id == one.topic.entry_id else None

    def _active(self, made: Sequence[RecordedTopic]) -> list[RecordedTopic]:
        """Waits until metadata shows them, record that; those that it does not show in time."""
        waiting = {one.topic.physical_name: one for one in made}
        for pause in (0.0, *_LOOKS_SECONDS):
            if not waiting:
                break
            self.sleep(pause)
            shown = {
                name: seen
                for name, seen in self.admin.describe(list(waiting)).items()
                if isinstance(seen, KafkaTopic) and seen.partitions
            }
            self._record_active((waiting.pop(name), seen) for name, seen in shown.items())
        return list(waiting.values())

    def _record_active(self, shown: Iterable[tuple[RecordedTopic, KafkaTopic]]) -> None:
        news = []
        created: list[tuple[RecordedTopic, bytes]] = []
        for one, seen in shown:
            self.recent.note_made(seen.name)
            if one.topic.entry_id in self.created:
                created.append((one, seen.topic_id))
            news.append(
                TopicObservation(
                    path=one.path,
                    entry_id=one.topic.entry_id,
                    provision=Provision.ACTIVE,
                    provision_message="",
                    topic_id=seen.topic_id,
                    partitions=seen.partitions,
                    replication_factor=seen.replication_factor,
                    observed_config=self._desired(one).config,
                    drift_count=0,
                )
            )
        self.commits.record(news)
        if created:
            self.release(created)

    def _failed(self, failed: Iterable[tuple[RecordedTopic, str]]) -> None:
        self.commits.record(
            [
                TopicObservation(
                    path=one.path,
                    entry_id=one.topic.entry_id,
                    provision=Provision.FAILED,
                    provision_message=message,
                    # Kafka refused: a topic of that name that comes later is somebody else's.
                    provision_attempt="",
                )
                for one, message in failed
            ]
        )

    # -- deleting --------------------------------------------------------------------------------

    def delete(self, removed: Sequence[PendingDeletion]) -> list[PendingDeletion]:
        """Deletes the Kafka side of removed topics, and finish their removal.

        Returns:
            Those that are not finished yet: to be tried again later.

        Raises:
            KafkaUnavailable, KafkaRejected, LeadershipLost, StoreUnavailable
        """
        shown = self.admin.describe([one.topic.physical_name for one in removed])
        goes: list[PendingDeletion] = []
        waits: list[PendingDeletion] = []
        gone: list[tuple[str, int]] = []
        for one in removed:
            seen = shown.get(one.topic.physical_name)
            match seen:
                case None:
                    gone.append((one.name, one.topic.entry_id))
                case Rejected(message):
                    self._report_wait(self._removed_path(one.name), one.topic, message)
                    waits.append(one)
                case KafkaTopic() if self._shows_no_id_yet(one, seen):
                    self._report_wait(
                        self._removed_path(one.name),
                        one.topic,
                        "Kafka shows the topic without its topic id",
                    )
                    waits.append(one)
                case KafkaTopic() if seen.internal or is_protected(seen.name):
                    # Adopted by an older version: the entry goes, and Kafka's topic never does.
                    self.commits.detach(one.name, one.topic.entry_id, seen.name, seen.topic_id)
                case KafkaTopic():
                    if self._is_same_topic(one, seen):
                        goes.append(one)
                case _:
                    assert_never(seen)
        self.commits.finish(gone)
        return waits + self._remove(goes, shown)

    def _shows_no_id_yet(self, one: PendingDeletion, seen: KafkaTopic) -> bool:
        """True if the topic id that decides whether it may be deleted is still to come."""
        may_delete = DELETE in self.ceiling and not seen.topic_id
        topic = one.topic
        return may_delete and bool(topic.topic_id or self.recent.has_asked(topic.provision_attempt))

    def _is_same_topic(self, one: PendingDeletion, seen: KafkaTopic) -> bool:
        """True if this very topic may be deleted; where not, its entry is finished without, or
        waits until Kafka shows which topic it is.
        """
        topic = one.topic
        if topic.topic_id and seen.topic_id and topic.topic_id != seen.topic_id:
            _log.warning(
                "%s was removed, but Kafka has another topic of that name by now (%s, not %s): "
                "it is left alone",
                topic.physical_name,
                show_id(seen.topic_id),
                show_id(topic.topic_id),
            )
            self.commits.finish([(one.name, topic.entry_id)])
            return False
        if DELETE in self.ceiling and seen.topic_id:
            if topic.topic_id or self._made_just_now(topic, seen):
                return True
            _log.warning(
                "%s was removed before its topic id was known; Kafka has a topic of that name, %s, "
                "which somebody else may have made: it is left alone, and not adopted",
                topic.physical_name,
                show_id(seen.topic_id),
            )
        # An old request never runs by itself, and without an id it is not certain that it is the
        # same topic.
        self.commits.detach(
            one.name, topic.entry_id, topic.physical_name, seen.topic_id or topic.topic_id
        )
        return False

    def _made_just_now(self, topic: Topic, seen: KafkaTopic) -> bool:
        """True if it was removed while this process's own request to make it was under way. By the
        record alone nobody can say so: who recorded an attempt may have died before asking.
        """
        return self.recent.has_asked(topic.provision_attempt) and self._is_ours(topic, seen)

    def _remove(
        self, goes: Sequence[PendingDeletion], shown: Mapping[str, KafkaTopic | Rejected]
    ) -> list[PendingDeletion]:
        if not goes:
            return []
        # Committing what needed no request may have taken long: look again, right before it.
        now = self.admin.describe([one.topic.physical_name for one in goes])
        still = self.commits.check_fresh(self.clock, _LOOK_SECONDS, self.is_same)
        waits: list[PendingDeletion] = []
        same: list[PendingDeletion] = []
        for one in goes:
            name = one.topic.physical_name
            as_before = _same(now.get(name), shown.get(name))
            (same if as_before else waits).append(one)
        try:
            outcomes = self.admin.delete([one.topic.physical_name for one in same], still)
        except StaleObservation:
            _log.warning("%d topics are looked at again before they are deleted", len(same))
            return list(goes)
        gone: dict[str, PendingDeletion] = {}
        for one in same:
            name = one.topic.physical_name
            match outcomes.get(name, OutcomeUnknown("no outcome")):
                case Succeeded() | AlreadyDone():
                    gone[name] = one
                case Rejected(message):
                    self._report_wait(self._removed_path(one.name), one.topic, message)
                    waits.append(one)
                case OutcomeUnknown(message):
                    _log.warning("delete %s: %s; it is tried again", name, message)
                    waits.append(one)
                case other:
                    assert_never(other)
        return waits + self._await_gone(gone, shown)

    def _await_gone(
        self, gone: dict[str, PendingDeletion], shown: Mapping[str, KafkaTopic | Rejected]
    ) -> list[PendingDeletion]:
        for pause in (0.0, *_LOOKS_SECONDS):
            if not gone:
                break
            self.sleep(pause)
            now = self.admin.describe(list(gone))
            finished: list[tuple[str, int]] = []
            for name in [name for name in gone if not _same(now.get(name), shown.get(name))]:
                one = gone.pop(name)
                before = shown.get(name)
                if isinstance(before, KafkaTopic) and before.topic_id:
                    self.recent.note_deleted(before.topic_id)
                finished.append((one.name, one.topic.entry_id))
            self.commits.finish(finished)
        return list(gone.values())


def _exists(one: RecordedTopic) -> str:
    name = one.topic.physical_name
    return f"topic {name} exists in Kafka and was not made by kdir; `kdir adopt` takes it in"


def _same(now: KafkaTopic | Rejected | None, before: KafkaTopic | Rejected | None) -> bool:
    return (
        isinstance(now, KafkaTopic)
        and isinstance(before, KafkaTopic)
        and now.topic_id == before.topic_id
    )
