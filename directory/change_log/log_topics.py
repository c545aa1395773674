"""Creates, checks and reads the two Kafka topics of a change log, and makes their transactional
writer; does not choose what is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from directory.change_log.state_records import row_digest
from directory.change_log.topic_writer import MOST_BYTES, LogRefused, TopicWriter
from directory.kafka.admin_contract import KafkaTopic, Rejected, TopicToCreate
from directory.kafka.own_client_settings import OWN
from resolver.changes import record
from resolver.changes.record import Change, Schemas, UndecodableRecord
from resolver.changes.registry import RegistryRefused, SchemaRegistry
from resolver.changes.topic_reader import TopicReader, with_right
from resolver.errors import KafkaUnavailable

if TYPE_CHECKING:
    from directory.kafka.admin_contract import KafkaAdmin

__all__ = ["LogEnd", "LogTopics", "WaitsForOperator"]

_DAY_MS: Final = 24 * 3600 * 1000
_SETTINGS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "state": {
            "cleanup.policy": "compact",
            "delete.retention.ms": str(7 * _DAY_MS),
            "segment.ms": str(_DAY_MS),
            "max.message.bytes": str(MOST_BYTES),
        },
        "history": {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "max.message.bytes": str(MOST_BYTES),
        },
    }
)
_REPLICAS: Final = (3, 2, 1)
_SHOWN_ATTEMPTS: Final = 50
_SHOWN_SECONDS: Final = 0.2
"""Interval at which the brokers are asked whether they show a new topic."""


class WaitsForOperator(LogRefused):
    """Refusal that an operator ends with ``kdir log resync``."""


class LogEnd(NamedTuple):
    """End of the state topic or of the history topic."""

    checkpoint: Change | None
    """Newest checkpoint in the topic; None: there is none."""
    order: tuple[int, int, int]
    """``Change.order`` of the newest other record, which may be after the checkpoint."""


class LogTopics:
    """The topics of one cluster's change log.

    Args:
        state, history: names of the topics.
        bootstrap: ``host:port`` of some brokers.
        properties: returns librdkafka's properties, for TLS and SASL.
        registry: has the schemas of the records; None = the log itself has them.
    """

    def __init__(
        self,
        cluster_id: str,
        state: str,
        history: str,
        bootstrap: Iterable[str],
        properties: Callable[[], Mapping[str, str]],
        *,
        registry: SchemaRegistry | None = None,
    ) -> None:
        self.cluster_id: Final = cluster_id
        self.state: Final = state
        self.history: Final = history
        self._bootstrap: Final = ",".join(bootstrap)
        self._properties: Final = properties
        self._registry: Final = registry

    def _client(self) -> dict[str, Any]:
        return {**OWN, **self._properties(), "bootstrap.servers": self._bootstrap}

    # -- the topics themselves -------------------------------------------------------------------

    def make_and_check(self, admin: KafkaAdmin, *, were_there: bool) -> None:
        """Creates missing topics, unless they existed before (``were_there``), and checks the
        partitions and configs of both.

        Raises:
            WaitsForOperator: a topic that existed before is missing.
            LogRefused: a topic is not as the log needs it; the message has the command for it.
            KafkaUnavailable, KafkaRejected
        """
        names = {"state": self.state, "history": self.history}
        found = admin.describe(list(names.values()))
        missing = {kind: name for kind, name in names.items() if name not in found}
        if missing and were_there:
            raise WaitsForOperator(
                f"topic {' and '.join(missing.values())} is not in Kafka any more; kdir log resync "
                f"makes it again, from the store"
            )
        for kind, name in missing.items():
            _make(admin, name, _SETTINGS[kind])
        if missing:
            found = _wait_until_shown(admin, list(names.values()))
        for kind, name in names.items():
            self._check(admin, name, found.get(name), _SETTINGS[kind])

    def _check(
        self,
        admin: KafkaAdmin,
        name: str,
        found: KafkaTopic | Rejected | None,
        wanted: Mapping[str, str],
    ) -> None:
        if isinstance(found, Rejected):
            raise LogRefused(with_right(f"topic {name}: {found.message}", "DESCRIBE on the topic"))
        own = admin.configs([name]).get(name)
        if found is None or own is None:
            raise KafkaUnavailable(f"topic {name} was made, and the brokers do not show it yet")
        if found.partitions > 1:
            raise LogRefused(
                f"topic {name} has {found.partitions} partitions; a change log has one, which is "
                f"what keeps its order: kafka-topics.sh --delete --topic {name}, then kdir log "
                f"resync makes it again, from the store; or name another Kafka in "
                f"change_log.bootstrap"
            )
        if isinstance(own, Rejected):
            why = f"topic {name}: {own.message}"
            raise LogRefused(with_right(why, "DESCRIBE_CONFIGS on the topic"))
        policy = own.get("cleanup.policy", "delete")
        if policy != wanted["cleanup.policy"]:
            raise _wrong(name, "cleanup.policy", policy, wanted["cleanup.policy"])
        size = own.get("max.message.bytes", "")
        if not size.isdigit() or int(size) < MOST_BYTES:
            raise _wrong(name, "max.message.bytes", size or "the broker's default", str(MOST_BYTES))

    def framings(self) -> dict[str, bytes]:
        """Returns, by topic, the bytes that precede each record of this kdir's schema; registers
        the schema if there is a registry. Empty bytes: there is no registry, and records are
        framed by the schema's fingerprint.

        Raises:
            LogRefused: the registry refuses the schema.
            KafkaUnavailable: the registry does not answer.
        """
        topics = (self.state, self.history)
        if self._registry is None:
            return dict.fromkeys(topics, b"")
        try:
            return {
                topic: record.registry_framing(
                    self._registry.register(f"{topic}-value", record.schema_text())
                )
                for topic in topics
            }
        except RegistryRefused as error:
            raise LogRefused(str(error)) from None

    # -- reading ---------------------------------------------------------------------------------

    def end(self, topic: str, keep_on: Callable[[], bool] = lambda: True) -> LogEnd:
        """Returns the end of the committed records of a topic.

        Raises:
            LogRefused: the newest checkpoint cannot be read.
            KafkaUnavailable
        """
        schemas = Schemas(self._registry)
        keys = (b"", record.checkpoint_key(self.cluster_id).encode())
        found = LogEnd(None, (0, 0, 0))
        with self._reader(topic, keep_on) as reader:
            for records in reader.tails():
                newest, unread, order = None, "", (0, 0, 0)
                for one in records:
                    try:
                        change = schemas.decode(one.value or b"")
                    except UndecodableRecord as error:
                        unread = str(error) if one.key in keys else unread
                        continue
                    if change.cluster_id != self.cluster_id:
                        continue
                    if change.checkpoint is None:
                        order = change.order
                    else:
                        newest, unread = change, ""
                if unread:
                    # An older checkpoint is not the position: changes after it would be published
                    # twice.
                    raise LogRefused(
                        f"topic {topic}: its newest checkpoint cannot be read: {unread}; expected "
                        f"in change_log.schema_registry the registry that it was published with"
                    )
                found = LogEnd(newest, order)
                if newest is not None:
                    break
        return found

    def state_digests(self, keep_on: Callable[[], bool] = lambda: True) -> dict[str, bytes]:
        """Returns the ``row_digest`` of each row in the state topic, by key; without schemas and
        the checkpoint.

        Raises:
            KafkaUnavailable
        """
        schemas = Schemas(self._registry)
        found: dict[str, bytes] = {}
        left_out = (f"{self.cluster_id}/s/", record.checkpoint_key(self.cluster_id))
        with self._reader(self.state, keep_on) as reader:
            for one in reader.read(*reader.bounds()):
                if one.key is None:
                    continue
                key = one.key.decode(errors="replace")
                if key.startswith(left_out):
                    continue
                if one.value is None:
                    found.pop(key, None)
                    continue
                try:
                    row = schemas.decode_row(one.value)
                    found[key] = row_digest(row["key"], row["record"])
                except UndecodableRecord:
                    found[key] = b""  # equal to nothing, so that it is written again
        return found

    def _reader(self, topic: str, keep_on: Callable[[], bool]) -> closing[TopicReader]:
        return closing(TopicReader(self._client(), topic, keep_on=keep_on))

    def writer(self, transactional_id: str) -> TopicWriter:
        """Returns a producer; it has fenced off earlier producers with its transactional id.

        Raises:
            KafkaUnavailable
        """
        return TopicWriter(self._client(), transactional_id)


def _make(admin: KafkaAdmin, name: str, settings: Mapping[str, str]) -> None:
    """Creates a topic with three replicas, or with two or one if Kafka refuses more."""
    refused = ""
    for replicas in _REPLICAS:
        # Acknowledged records survive the loss of any one broker.
        kept = {"min.insync.replicas": str(replicas - 1)} if replicas > 2 else {}
        outcome = admin.create([TopicToCreate(name, 1, replicas, {**settings, **kept})])[name]
        if not isinstance(outcome, Rejected):
            return
        refused = outcome.message
    raise LogRefused(with_right(f"topic {name} cannot be made: {refused}", "CREATE on the topic"))


def _wait_until_shown(admin: KafkaAdmin, names: list[str]) -> Mapping[str, KafkaTopic | Rejected]:
    """Returns the topics as the brokers describe them. Waits up to 10 s until all are shown, since
    a broker may show a new topic a moment later.
    """
    found: Mapping[str, KafkaTopic | Rejected] = {}
    for attempt in range(_SHOWN_ATTEMPTS):
        if attempt:
            time.sleep(_SHOWN_SECONDS)
        found, configs = admin.describe(names), admin.configs(names)
        if all(name in found and configs.get(name) for name in names):
            break
    return found


def _wrong(name: str, setting: str, found: str, right: str) -> LogRefused:
    return LogRefused(
        f"topic {name} has {setting} = {found}; a change log needs {right}: kafka-configs.sh "
        f"--alter --topic {name} --add-config {setting}={right}"
    )
