"""``kdir stat TOPIC --partitions`` and ``--groups``: leaders, in-sync replicas, offsets and
consumer lag, read from Kafka with the caller's own rights.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from resolver.cli.output import Column, Styled, Table
from resolver.errors import Absent, InvalidArgument

if TYPE_CHECKING:
    from resolver.cli.parser import Arguments
    from resolver.cli.session import Session
    from resolver.topic_location import TopicLocation

__all__ = ["GroupOffsets", "PartitionOffsets", "TopicReader", "show_kafka"]

_AT_ONCE: Final = 16
_LEAST_SECONDS: Final = 0.1
_NAMED: Final = 5
_NUMBERS: Final = frozenset({"PARTITION", "LEADER", "BEGIN", "END", "COMMITTED", "LAG"})


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Brokers and offsets of a partition; None = not known."""

    partition: int
    leader: int | None
    replicas: Sequence[int]
    isr: Sequence[int]
    begin: int | None = None
    end: int | None = None

    @property
    def issue(self) -> str:
        """Fault of the partition's replicas, as text; empty = there is none."""
        if self.leader is None:
            return "no leader"
        return "under-replicated" if len(self.isr) < len(self.replicas) else ""

    def lag(self, committed: int | None) -> int | None:
        """Returns the lag of a group in offsets; None if it is not known."""
        if self.end is None:
            return None
        if committed is None:
            return 0 if self.begin == self.end else None
        return self.end - committed


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Offsets that a consumer group has committed, by partition."""

    group: str
    state: str
    committed: Mapping[int, int]


class TopicReader:
    """Reader of a topic's partitions and groups within one time limit. Parts that Kafka does not
    return are reported on stderr, and the exit code becomes 3.
    """

    def __init__(self, session: Session, admin: Any, found: TopicLocation) -> None:
        self._session = session
        self._admin = admin
        self._found = found
        self._until = time.monotonic() + session.timeout_seconds

    def partitions(self) -> list[PartitionOffsets]:
        """Returns the partitions, in order.

        Raises:
            KafkaException: the topic cannot be read.
        """
        from confluent_kafka import TopicCollection
        from confluent_kafka.admin import OffsetSpec

        topic = self._found.topic
        # Unlike the client's list_topics, this never creates the topic.
        asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=self._left())
        found = [
            PartitionOffsets(
                one.id,
                one.leader.id if one.leader is not None and one.leader.id >= 0 else None,
                [node.id for node in one.replicas],
                [node.id for node in one.isr],
            )
            for one in sorted(asked[topic].result().partitions, key=lambda one: int(one.id))
        ]
        every = [one.partition for one in found]
        begins = self._offsets(every, "begin", OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        ends = self._offsets(every, "end", OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return [
            replace(one, begin=begins.get(one.partition), end=ends.get(one.partition))
            for one in found
        ]

    def groups(self, partitions: Sequence[int]) -> list[GroupOffsets]:
        """Returns the groups that have committed offsets of the topic, by name.

        Raises:
            KafkaException: the groups cannot be listed.
        """
        from concurrent.futures import ThreadPoolExecutor

        from confluent_kafka import KafkaException

        def read(group: Any) -> GroupOffsets | str:
            if time.monotonic() >= self._until:
                return f"no time left of {self._session.timeout_seconds:g}s"
            try:
                committed = self._committed(group.group_id, partitions)
            except KafkaException as error:
                return _text(error)
            state = group.state.name.lower().replace("_", "-")
            return GroupOffsets(group.group_id, state, committed)

        listed = self._admin.list_consumer_groups(request_timeout=self._left()).result()
        for error in listed.errors:
            self._session.missing(f"not shown: {self._found.path}: some groups: {_text(error)}")
        found: list[GroupOffsets] = []
        failed: dict[str, list[str]] = {}
        groups = sorted(listed.valid, key=lambda one: str(one.group_id))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for group, answer in zip(groups, pool.map(read, groups), strict=True):
                if isinstance(answer, str):
                    failed.setdefault(answer, []).append(group.group_id)
                elif answer.committed:
                    found.append(answer)
        self._missing("offsets of group", failed)
        return found

    def _committed(self, group: str, partitions: Sequence[int]) -> dict[int, int]:
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

        places = [TopicPartition(self._found.topic, one) for one in partitions]
        request = ConsumerGroupTopicPartitions(group, places)
        # The client accepts one group in a call.
        asked = self._admin.list_consumer_group_offsets([request], request_timeout=self._left())
        answered = asked[group].result().topic_partitions
        for one in answered:
            if one.error is not None:
                raise KafkaException(one.error)
        return {one.partition: one.offset for one in answered if one.offset >= 0}

    def _offsets(self, partitions: Sequence[int], which: str, wanted: Any) -> dict[int, int]:
        from confluent_kafka import KafkaException, TopicPartition

        offsets: dict[int, int] = {}
        failed: dict[str, list[int]] = {}
        places = {TopicPartition(self._found.topic, one): wanted for one in partitions}
        asked = self._admin.list_offsets(places, request_timeout=self._left())
        for place, future in asked.items():
            try:
                offsets[place.partition] = future.result().offset
            except KafkaException as error:
                failed.setdefault(_text(error), []).append(place.partition)
        self._missing(f"{which} offset of partition", failed)
        return offsets

    def _left(self) -> float:
        return max(_LEAST_SECONDS, self._until - time.monotonic())

    def _missing(self, what: str, failed: Mapping[str, Sequence[object]]) -> None:
        """Reports the items that could not be read, grouped by reason."""
        for why, things in failed.items():
            named = ", ".join(map(str, things[:_NAMED]))
            more = f" and {len(things) - _NAMED:,} more" if len(things) > _NAMED else ""
            self._session.missing(f"not shown: {self._found.path}: {what} {named}{more}: {why}")


def _text(error: Any) -> str:
    return str(error.args[0].str())


def show_kafka(session: Session, arguments: Arguments, *, groups: bool) -> None:
    """Prints the partitions of a topic, or the groups that consume it.

    Raises:
        KdirError: the path is no topic, or Kafka did not answer.
    """
    from resolver.cli.produce import client_settings

    feature = "kdir stat --groups" if groups else "kdir stat --partitions"
    found, settings = client_settings(
        session, arguments, {"log_level": "0"}, for_writes=False, feature=feature
    )
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

    from resolver.kafka.client_errors import LastReason, client_error

    reason = LastReason()
    properties: dict[str, Any] = {**settings, "error_cb": reason.on_error}
    try:
        admin = AdminClient(properties)
    except KafkaException as error:
        raise InvalidArgument(f"confluent-kafka: {_text(error)}") from error
    reader = TopicReader(session, admin, found)
    try:
        partitions = reader.partitions()
        if groups:
            every = reader.groups([one.partition for one in partitions])
            _show_groups(session, str(found.path), partitions, every)
        else:
            _show_partitions(session, str(found.path), partitions)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise Absent(
                f"{found.path}: {found.cluster} has no topic {found.topic} in Kafka; "
                f"its entry: kdir stat {found.path}"
            ) from error
        admin.poll(0)
        raise client_error(
            error.args[0],
            str(found.path),
            settings,
            for_writes=False,
            operation="describe",
            reason=reason,
        ) from error


def _show_partitions(session: Session, path: str, partitions: Sequence[PartitionOffsets]) -> None:
    names = ("PARTITION", "LEADER", "REPLICAS", "ISR", "BEGIN", "END", "ISSUE")
    table = Table(session.out, [Column(name, name in _NUMBERS) for name in names])
    for one in partitions if session.out.structured else ():
        issue = {"issue": one.issue} if one.issue else {}
        session.out.record({"path": path, **asdict(one), **issue})
    if not session.out.structured:
        table.rows([_partition_row(one) for one in partitions])


def _partition_row(one: PartitionOffsets) -> Sequence[str | Styled]:
    brokers = [",".join(map(str, ids)) or "-" for ids in (one.replicas, one.isr)]
    issue = Styled(one.issue, "bad") if one.issue else "-"
    return (
        str(one.partition),
        _cell(one.leader),
        *brokers,
        _cell(one.begin),
        _cell(one.end),
        issue,
    )


def _show_groups(
    session: Session,
    path: str,
    partitions: Sequence[PartitionOffsets],
    groups: Sequence[GroupOffsets],
) -> None:
    out = session.out
    names = ("GROUP", "STATE", "PARTITION", "COMMITTED", "END", "LAG")
    table = Table(out, [Column(name, name in _NUMBERS) for name in names])
    for one in groups:
        places = []
        for partition in partitions:
            committed = one.committed.get(partition.partition)
            lag = partition.lag(committed)
            places.append((partition.partition, committed, partition.end, lag))
        known = [lag for *_, lag in places if lag is not None]
        is_lower_bound = len(known) < len(places)
        if out.structured:
            keys = ("partition", "committed", "end", "lag")
            out.record(
                {
                    "path": path,
                    "group": one.group,
                    "state": one.state,
                    "lag": sum(known),
                    "is_lower_bound": is_lower_bound,
                    "partitions": [dict(zip(keys, place, strict=True)) for place in places],
                }
            )
            continue
        least = ("at least {}" if out.human else "{}+") if is_lower_bound else "{}"
        total = ("all", "-", "-", least.format(sum(known)))
        rows = [*(map(_cell, place) for place in places), total]
        table.rows([(one.group, one.state, *row) for row in rows])
    if not groups and not session.partial:
        out.note(f"{path}: found no group, of those that you may describe, with offsets of it")


def _cell(number: int | None) -> str:
    return "-" if number is None else str(number)
