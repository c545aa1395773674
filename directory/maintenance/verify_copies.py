"""Compares the copies of a cluster: its store, a server's replica, and its Kafka.

Nothing is repaired, and what could not be compared never counts as equal: the summary names it,
with the reason.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self

from directory.kafka.admin_contract import (
    KafkaAdmin,
    KafkaMetadata,
    KafkaTopic,
    Rejected,
    show_id,
)
from directory.kafka.adoption import adoption, recorded_topics
from directory.kafka.adoption.pinned_kafka import PinnedKafka
from directory.kafka.applying.desired_configs import RecordedTopic
from directory.kafka.arming.drift import drifted_settings
from directory.maintenance.backup_stream import Row
from directory.maintenance.verify_store import Between, Difference, StoreComparison
from directory.namespace.adoption_mapping import MappingRule, plan_adoption
from directory.namespace.command import ObservedTopic
from directory.namespace.entry import Provision
from directory.namespace.snapshot import Snapshot
from directory.store.base import Loading, Store
from directory.store.replica import AppliedCommit, Replica
from resolver.errors import KafkaRejected, KafkaUnavailable, KdirError
from resolver.path import Path

if TYPE_CHECKING:
    from directory.server.config import KafkaConfig

__all__ = ["KafkaCheck", "Summary", "compare_kafka", "compare_rows"]


_log = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 30.0
_HELD: Final = 10_000
_TRIES: Final = 3


@dataclass(slots=True)
class Summary:
    """Revision and numbers of compared rows and topics, and the reasons why others were not
    compared; filled in while differences are yielded.
    """

    revision: int = 0
    rows: int = 0
    kafka_topics: int | None = None
    troubles: list[str] = field(default_factory=list)


def compare_rows(
    store: Store, replica: Replica, mount: Path, check: Callable[[], None], summary: Summary
) -> Iterator[Difference]:
    """Yields the differences between store and replica at one revision, and between the store's
    rows.

    Raises:
        StoreUnreachable: possibly after some differences; compare again.
        NotReady: nothing is loaded yet.
    """
    identity = store.refresh_identity()
    if identity.partial:
        summary.troubles.append("the store is being filled: what it holds is not whole yet")
        return
    for _ in range(_TRIES):
        with _Trees(replica) as trees:
            loading = store.load()
            if loading.revision < trees.begun:  # a lower revision: this was no commit
                summary.troubles.append(
                    f"something else than kdir wrote to the store: this server's replica was "
                    f"brought to revision {trees.begun}, and the last commit is "
                    f"{loading.revision}; after the next change through kdir they can be compared"
                )
                _drop(loading)
                return
            try:
                replica.wait_for(loading.revision, _WAIT_SECONDS)
            except KdirError as error:
                summary.troubles.append(
                    f"this server's replica does not come to revision {loading.revision}: "
                    f"{error.message}"
                )
                _drop(loading)
                return
            snapshot = trees.at(loading.revision)
        if snapshot is not None:
            break
        _drop(loading)  # the tree was loaded again meanwhile, or changed too often
    else:
        summary.troubles.append("the store changed too fast to be compared at one revision")
        return
    comparison = StoreComparison(snapshot, _rows(loading), mount, check)
    summary.revision = snapshot.revision
    yield from comparison.differences()
    summary.rows = comparison.row_count
    # Rows and tree may be of two incarnations: then their equality proves nothing.
    found = {identity.incarnation, snapshot.incarnation, store.refresh_identity().incarnation}
    if len(found) > 1:
        summary.troubles.append(
            "the store was restored during the comparison, and a new incarnation of it began; "
            "begin again: kdir verify"
        )


def _rows(loading: Loading) -> Iterator[Row]:
    for page in loading.pages():
        yield from page


def _drop(loading: Loading) -> None:
    """Releases the resources of a load."""
    for _ in loading.pages():
        break


class _Trees:
    """Trees of the newest revisions, collected as they are published, since the revision of the
    load is known only later. Each shares all but its change with the previous one.
    """

    def __init__(self, replica: Replica) -> None:
        self._lock: Final = threading.Lock()
        self._trees: list[Snapshot] = []
        self._whole = True
        _ = replica.snapshot  # raises before there is a subscription if nothing is loaded
        self._unsubscribe: Final = replica.subscribe(self._applied)
        self._first: Final = replica.snapshot

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._unsubscribe()

    @property
    def begun(self) -> int:
        """Revision of the first tree."""
        return self._first.revision

    def at(self, revision: int) -> Snapshot | None:
        """Returns the tree at a revision; None: it was not collected."""
        with self._lock:
            if not self._whole:
                return None
            trees = [one for one in (self._first, *self._trees) if one.revision <= revision]
        return max(trees, key=lambda one: one.revision, default=None)

    def _applied(self, applied: AppliedCommit) -> None:
        with self._lock:
            if applied.reloaded or len(self._trees) >= _HELD:
                self._whole = False
            if self._whole:
                self._trees.append(applied.after)


def compare_kafka(
    config: KafkaConfig,
    latest: Callable[[], Snapshot],
    mount: Path,
    check: Callable[[], None],
    summary: Summary,
) -> Iterator[Difference]:
    """Yields the differences between the tree and Kafka. If Kafka cannot be reached or refuses, the
    summary has the reason.
    """
    from directory.kafka.admin_client import ConfluentAdmin

    kafka = KafkaCheck(latest, mount, config.placing, check)
    admin = ConfluentAdmin(config.bootstrap, properties=config.client.read)
    with closing(admin):
        try:
            yield from kafka.differences(admin)
        except (KafkaUnavailable, KafkaRejected) as error:
            kafka.topics = None
            kafka.troubles.append(error.message)
    summary.kafka_topics = kafka.topics
    summary.troubles += kafka.troubles[:_NAMED]
    if len(kafka.troubles) > _NAMED:
        summary.troubles.append(f"and {len(kafka.troubles) - _NAMED:,} more of Kafka")


_NAMED: Final = 5


_BATCH: Final = 500
_MISSING: Final = (
    "remove the entry: kdir rm {path}; many at once may be another Kafka, or rights that are gone"
)
_REPLACED: Final = (
    "another topic has this name by now: take it as it is: kdir adopt {path} --topic {name}; or "
    "remove the entry, which leaves that topic alone: kdir rm {path}"
)
_UNKNOWN: Final = "the next sweep of Kafka adopts it; kdir doctor shows whether that works"
_DESIRED: Final = "change it in Kafka, or record what Kafka has: kdir set"
_OTHER_KAFKA: Final = "point the server at the Kafka that it belongs to, or take this one: kdir ack"


@dataclass(slots=True)
class KafkaCheck:
    """Comparison of a tree with Kafka, used once. Once it has ended, ``topics`` is the number of
    Kafka's topics (None: not compared), and ``troubles`` has what could not be compared.
    """

    latest: Callable[[], Snapshot]
    mount: Path
    placing: Callable[[tuple[MappingRule, ...]], tuple[MappingRule, ...]]
    """Returns the mapping rules in force, from those of the operator's adoption."""
    check: Callable[[], None]
    """Called periodically; raises to end the comparison."""
    topics: int | None = None
    troubles: list[str] = field(default_factory=list)

    def differences(self, admin: KafkaAdmin) -> Iterator[Difference]:
        """Yields the differences, topic by topic.

        Raises:
            KafkaUnavailable, KafkaRejected: Kafka did not answer, or refused.
        """
        # In this order: an entry created after the snapshot is not reported as missing.
        snapshot = self.latest()
        survey = admin.describe_all()
        pinned = PinnedKafka.load(snapshot).pinned
        if pinned and survey.cluster_id != pinned:
            self.troubles.append("another Kafka answers: its topics were not compared")
            yield Difference(
                Between.KAFKA,
                str(self.mount),
                "cluster_id",
                pinned,
                survey.cluster_id,
                _OTHER_KAFKA,
            )
            return
        self.topics = sum(1 for seen in survey.topics.values() if not seen.internal)
        active: list[RecordedTopic] = []
        for one in recorded_topics.recorded_topics(snapshot, self.mount):
            seen = survey.topics.get(one.topic.physical_name)
            match one.topic.provision:
                case Provision.ACTIVE | Provision.MISSING | Provision.REPLACED:
                    if seen is None:
                        yield from self._missing(one, admin)
                    elif _is_other(one, seen):
                        yield _other(one, seen)
                    else:
                        active.append(one)
                case _:
                    pass  # not in Kafka yet, or on its way out
            if len(active) >= _BATCH:
                yield from self._desired_set(active, survey, admin)
                active = []
        yield from self._desired_set(active, survey, admin)
        yield from self._unknown(survey, snapshot)

    def _missing(self, one: RecordedTopic, admin: KafkaAdmin) -> Iterator[Difference]:
        name = one.topic.physical_name
        if name in admin.describe([name]):
            return  # created, or shown, a moment later
        located = self.latest().locate(name)
        if located is None or located.topic.entry_id != one.topic.entry_id:
            return
        if located.topic.provision is Provision.DELETING:
            return
        yield _difference(one, "topic", f"{name} ({show_id(one.topic.topic_id)})", "none", _MISSING)

    def _desired_set(
        self, topics: Sequence[RecordedTopic], survey: KafkaMetadata, admin: KafkaAdmin
    ) -> Iterator[Difference]:
        """Yields partitions, replicas and configs that differ from the desired ones."""
        self.check()
        found = admin.configs([one.topic.physical_name for one in topics]) if topics else {}
        for one in topics:
            name = one.topic.physical_name
            configs = found.get(name)
            if isinstance(configs, Rejected):
                self.troubles.append(f"the configs of {name} cannot be read: {configs.message}")
            if configs is None or isinstance(configs, Rejected):
                continue
            now = replace(one.topic, observed_config=configs)
            for each in drifted_settings(now, survey.topics[name], one.desired_config):
                yield _difference(one, each.field, each.wanted, each.found, _DESIRED)

    def _unknown(self, survey: KafkaMetadata, before: Snapshot) -> Iterator[Difference]:
        """Yields topics of Kafka without an entry, unless they are excluded by rules."""
        new = [
            seen
            for seen in survey.topics.values()
            if not seen.internal and seen.partitions and before.locate(seen.name) is None
        ]
        snapshot = self.latest()
        new = [seen for seen in new if snapshot.locate(seen.name) is None]
        if not new:
            return
        rules = self.placing(PinnedKafka.load(snapshot).rules)
        rows = plan_adoption(rules, _observed(new), snapshot, mount=self.mount)
        for row in rows:
            if row.is_new:
                yield Difference(
                    Between.KAFKA,
                    str(Path((*self.mount.segments, *row.segments))),
                    "entry",
                    "none",
                    row.observed.physical_name,
                    _UNKNOWN,
                )


def _observed(topics: Iterable[KafkaTopic]) -> list[ObservedTopic]:
    return [adoption.observed(seen) for seen in topics]


def _is_other(one: RecordedTopic, seen: KafkaTopic) -> bool:
    return bool(one.topic.topic_id and seen.topic_id and one.topic.topic_id != seen.topic_id)


def _other(one: RecordedTopic, seen: KafkaTopic) -> Difference:
    wanted, found = show_id(one.topic.topic_id), show_id(seen.topic_id)
    return _difference(one, "topic_id", wanted, found, _REPLACED)


def _difference(one: RecordedTopic, what: str, wanted: str, found: str, advice: str) -> Difference:
    message = advice.format(path=one.path, name=one.topic.physical_name)
    return Difference(Between.KAFKA, str(one.path), what, wanted, found, message)
