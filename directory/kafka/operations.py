"""What operators ask of a Kafka through its directory: adopt, look up, acknowledge.

Any server may do it, elected or not: what is committed here is guarded by the plans themselves.
Refuses to change anything in Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TypeVar

from directory.kafka import adoption, facts
from directory.kafka.adoption import Adopted
from directory.kafka.commits import TopicCommits, WritesCommands
from directory.kafka.contract import KafkaAdmin, Refused
from directory.kafka.facts import KafkaFacts
from directory.kafka.settings import KafkaSettings
from directory.namespace.command import Observed
from directory.namespace.mapping import MappingRule
from directory.namespace.snapshot import Snapshot
from directory.store.base import KeyIs, Limits
from resolver.errors import Absent, InvalidArgument, KafkaRefused, KafkaReplaced, VanishGuard
from resolver.path import Path

__all__ = ["Operations"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Operations:
    """For any thread. The arguments are those of ``Reconciler``."""

    def __init__(
        self,
        cluster_name: str,
        limits: Limits,
        latest: Callable[[], Snapshot],
        writer: WritesCommands,
        mount: Callable[[], Path],
        settings: KafkaSettings,
        admin: Callable[[], KafkaAdmin],
    ) -> None:
        self._cluster = cluster_name
        self._limits = limits
        self._latest = latest
        self._writer = writer
        self._mount = mount
        self._settings = settings
        self._open_admin = admin

    def adopt(
        self,
        rules: Sequence[MappingRule],
        plan_only: bool,  # noqa: FBT001 - the request's own word
        remap: bool,  # noqa: FBT001
        principal: str = "",
    ) -> list[Adopted]:
        """Take in what Kafka has, by rules; or only say what would be done.

        Rules that are given are kept for the topics that appear later; none = those in force.
        Entries whose topic kdir could not make because it was there, and those whose topic was
        replaced, take Kafka's topic as it is now. Any server may do it, elected or not.

        Raises:
            KafkaUnavailable, KafkaRefused, KafkaReplaced, VanishGuard, StoreUnavailable
        """
        survey = self._ask(lambda admin: admin.survey())
        snapshot = self._latest()
        held = KafkaFacts.of(snapshot)
        _refuse_another(held, survey.cluster_id)
        placing = self._settings.placing(tuple(rules) or held.rules)
        rows = adoption.plan(placing, survey, snapshot, self._mount(), remap=remap)
        if plan_only:
            return rows
        _refuse_when_stopped(held)
        commits = TopicCommits(self._writer, self._limits, None, principal)
        if rules:
            commits.put(facts.write_rules(rules))
        return adoption.carry_out(rows, commits)

    def look_up(self, physical_name: str) -> Observed:
        """A topic as it is in Kafka now, for adopting it by path.

        Raises:
            Absent, KafkaUnavailable, KafkaRefused, KafkaReplaced, VanishGuard
        """
        held = KafkaFacts.of(self._latest())
        _refuse_when_stopped(held)

        def look(admin: KafkaAdmin) -> Observed:
            _refuse_another(held, admin.cluster_id())
            match admin.describe([physical_name]).get(physical_name):
                case None:
                    raise Absent(f"Kafka has no topic {physical_name}", physical_name=physical_name)
                case Refused(words):
                    raise KafkaRefused(f"topic {physical_name}: {words}")
                case seen:
                    configs = admin.configs([physical_name]).get(physical_name)
                    known = {} if configs is None or isinstance(configs, Refused) else configs
                    return adoption.observed(seen, known)

        return self._ask(look)

    def acknowledge(self, text: str, *, principal: str = "") -> int:
        """Go on after a stop, whose words are repeated: what they tell is accepted.

        Returns:
            The revision of the acknowledgement.

        Raises:
            InvalidArgument: these are not the words of a stop that holds now; what holds is in the
                message.
            LostRace, StoreUnavailable
        """
        snapshot = self._latest()
        held = KafkaFacts.of(snapshot)
        if held.stop is None or held.stop.text != text:
            now = f"stopped says: {held.stop.text}" if held.stop else "nothing is stopped"
            raise InvalidArgument(f"stopped: not what holds now; {now}", field="stopped")
        guard = KeyIs(facts.STOPPED, snapshot.fact(facts.STOPPED))
        revision = self._writer.put_facts(facts.allow(held.stop), guards=(guard,))
        _log.warning("%s: %s acknowledged: %s", self._cluster, principal or "somebody", text)
        return revision

    def _ask(self, question: Callable[[KafkaAdmin], _T]) -> _T:
        with closing(self._open_admin()) as admin:
            return question(admin)


def _refuse_another(held: KafkaFacts, seen_id: str) -> None:
    if held.pinned and seen_id != held.pinned:
        raise KafkaReplaced(
            f"another Kafka cluster answers: {seen_id}; this directory belongs to {held.pinned}",
            pinned=held.pinned,
            seen=seen_id,
        )


def _refuse_when_stopped(held: KafkaFacts) -> None:
    if held.stop is not None:
        raise (KafkaReplaced if held.stop.kafka_id else VanishGuard)(held.stop.text)
