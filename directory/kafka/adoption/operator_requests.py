"""Requests of operators about a cluster's Kafka: adopt, look up a topic, acknowledge a stop.

Any server may do them, elected or not: the commits are guarded by the plans themselves, and work
that is too much for one request is recorded for the elected server. Nothing in Kafka is changed.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from directory.kafka.admin_contract import KafkaMetadata, KafkaTopic, Rejected
from directory.kafka.adoption import adoption, pinned_kafka
from directory.kafka.adoption.adoption import AdoptionRow
from directory.kafka.adoption.pinned_kafka import PinnedKafka
from directory.kafka.fenced_commits import TopicCommits
from directory.kafka.kafka_context import KafkaContext
from directory.namespace.adoption_mapping import MappingRule
from directory.namespace.command import ObservedTopic
from directory.namespace.protected_topics import refuse_protected
from directory.store.base import KeyEquals
from directory.store.event_rows import Operation
from directory.store.large_change_records import (
    LARGE,
    SWEEP,
    LargeAdoption,
    adoptions,
    rules_to_proto,
)
from resolver.errors import Absent, InvalidArgument, InvalidPhysicalName, KafkaRejected

__all__ = ["AdoptionResult", "OperatorRequests"]

_log = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 2.0
"""Time of a request that is reserved for sending its answer."""
_LOOK_SECONDS: Final = 0.05
"""Pause between two reads of an adoption's progress."""


@dataclass(frozen=True, slots=True)
class AdoptionResult:
    """Outcome of an adoption, or with ``validate_only`` what it would be."""

    rows: Sequence[AdoptionRow]
    under_way: LargeAdoption | None = None
    """Progress, if it goes on after the answer: the rows are then what is being done."""
    revision: int = 0
    """The newest that this call committed; 0 = none."""


class OperatorRequests:
    """Operators' requests about one cluster's Kafka, for any thread."""

    def __init__(self, context: KafkaContext) -> None:
        self._context = context

    def adopt(
        self,
        rules: Sequence[MappingRule],
        validate_only: bool,  # noqa: FBT001 - the request's own name for it
        remap: bool,  # noqa: FBT001
        principal: str = "",
        timeout_seconds: float = 10.0,
    ) -> AdoptionResult:
        """Adopts Kafka's topics, by rules; with ``validate_only`` only returns what it would do.

        Given rules are stored for topics that appear later; without any, the stored ones apply.
        Entries whose topic kdir could not make because it existed, and those whose topic was
        replaced, take Kafka's topic as it is now. The elected server does a large adoption in
        steps; this waits for its end, within the timeout.

        Raises:
            KafkaUnavailable, KafkaRejected, KafkaReplaced, VanishGuard
            StoreUnavailable, StoreSealed, OutboxFull, LevelNotFinalized, LimitExceeded: the store
                does not accept the commit.
            DeadlineExceeded
        """
        deadline = self._context.clock() + timeout_seconds
        with closing(self._context.open_admin(timeout_seconds)) as admin:
            survey = admin.describe_all()
        snapshot = self._context.latest()
        held = PinnedKafka.load(snapshot)
        held.refuse_another(survey.cluster_id)
        placing = tuple(rules) or held.rules
        rows = self.plan_rows(placing, survey, remap=remap)
        if validate_only:
            return AdoptionResult(rows)
        held.refuse_stopped()
        commits = TopicCommits(self._context.writer, self._context.limits, None, principal)
        keep = pinned_kafka.write_rules(rules) if rules else ()
        count = sum(row.step is not None for row in rows)
        if count < LARGE:
            if keep:
                commits.put(keep)
            return AdoptionResult(adoption.carry_out(rows, commits), revision=commits.revision)
        change = self._recorded(placing, remap=remap, principal=principal, count=count)
        commits.put((*keep, change.to_put()))
        under_way = self._wait_for(change, deadline)
        if under_way is not None:
            return AdoptionResult(rows, under_way, commits.revision)
        done = _outcome(rows, self.plan_rows(placing, survey, remap=remap))
        return AdoptionResult(done, revision=commits.revision)

    def under_way(self) -> list[LargeAdoption]:
        """Returns the operators' adoptions that the elected server has not finished."""
        return [one for one in adoptions(self._context.latest()) if one.change_id != SWEEP]

    def plan_rows(
        self, rules: Sequence[MappingRule], survey: KafkaMetadata, *, remap: bool
    ) -> list[AdoptionRow]:
        """Returns what adoption by these rules would do now."""
        placing = self._context.settings.placing(tuple(rules))
        snapshot = self._context.latest()
        mount = self._context.mount_at(snapshot)
        return adoption.plan(placing, survey, snapshot, mount, remap=remap)

    def _recorded(
        self, rules: Sequence[MappingRule], *, remap: bool, principal: str, count: int
    ) -> LargeAdoption:
        """Returns the record of a new adoption, or of the same one that is under way."""
        for one in self.under_way():
            if one.remap == remap and rules_to_proto(one.rules) == rules_to_proto(rules):
                return one
        now_ms = int(self._context.now() * 1000)
        return LargeAdoption(
            change_id=f"{now_ms:x}-{secrets.token_hex(4)}",
            mount=self._context.mount_at(self._context.latest()),
            started_at_ms=now_ms,
            done=0,
            left=count,
            principal=principal,
            rules=tuple(rules),
            remap=remap,
        )

    def _wait_for(self, change: LargeAdoption, deadline: float) -> LargeAdoption | None:
        """Waits until the adoption is finished (returns None) or the time is over (its record)."""
        until = deadline - _ANSWER_SECONDS
        while True:
            found = next((o for o in self.under_way() if o.change_id == change.change_id), None)
            if found is None or self._context.clock() >= until:
                return found
            self._context.sleep(_LOOK_SECONDS)

    def look_up(self, physical_name: str, timeout_seconds: float = 10.0) -> ObservedTopic:
        """Returns a topic as Kafka has it now, for adopting it by path.

        Raises:
            InvalidPhysicalName: it is an internal topic of Kafka or kdir.
            Absent, KafkaUnavailable, KafkaRejected, KafkaReplaced, VanishGuard
        """
        refuse_protected(physical_name)
        held = PinnedKafka.load(self._context.latest())
        held.refuse_stopped()

        with closing(self._context.open_admin(timeout_seconds)) as admin:
            held.refuse_another(admin.cluster_id())
            match admin.describe([physical_name]).get(physical_name):
                case None:
                    raise Absent(f"Kafka has no topic {physical_name}", physical_name=physical_name)
                case Rejected(message):
                    raise KafkaRejected(f"topic {physical_name}: {message}")
                case KafkaTopic(internal=True):
                    raise InvalidPhysicalName(
                        f"Kafka shows {physical_name} as an internal topic: kdir never adopts it",
                        physical_name=physical_name,
                        rule="internal",
                    )
                case seen:
                    configs = admin.configs([physical_name]).get(physical_name)
                    known = {} if configs is None or isinstance(configs, Rejected) else configs
                    return adoption.observed(seen, known)

    def acknowledge(self, text: str, *, principal: str = "", request_id: str = "") -> int:
        """Ends a stop, whose text the caller repeats, and accepts what it reports as gone. Returns
        the revision of the commit, or a later one if a request with this id ended the stop before.

        Raises:
            InvalidArgument: the text is not that of the stop in force; the error has the right one.
            WriteConflict, StoreUnavailable
        """
        snapshot = self._context.latest()
        done = pinned_kafka.acknowledgement(text, principal, request_id)
        if request_id and snapshot.fact(done.key) == done.value:
            return snapshot.revision
        held = PinnedKafka.load(snapshot)
        if held.stop is None or held.stop.text != text:
            now = f"expected: {held.stop.text}" if held.stop else "nothing is stopped"
            raise InvalidArgument(f"stop_reason: does not match; {now}", field="stop_reason")
        guard = KeyEquals(pinned_kafka.STOPPED, snapshot.fact(pinned_kafka.STOPPED))
        now_ms = int(self._context.now() * 1000)
        revision = self._context.writer.put_facts(
            (*pinned_kafka.acknowledge_stop(held.stop, snapshot, now_ms), done),
            guards=(guard,),
            operation=Operation(f"acknowledged a stop: {text}", principal, request_id),
        )
        who = principal or "an anonymous caller"
        _log.warning("%s: %s acknowledged: %s", self._context.cluster, who, text)
        return revision


def _outcome(planned: Sequence[AdoptionRow], after: Sequence[AdoptionRow]) -> list[AdoptionRow]:
    """Returns the planned rows; for topics whose outcome is another, the row of now."""
    now = {row.physical_name: row for row in after}
    return [
        found
        if row.step is not None
        and (found := now.get(row.physical_name)) is not None
        and (found.step is not None or found.path != row.path)
        else row
        for row in planned
    ]
