"""What the store holds about a Kafka as a whole, and what brokers do not know yet."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path as FilePath

from kdir.v1 import federation_pb2

from directory.federation.kafka_claims import manager_before
from directory.kafka.admin_contract import KafkaMetadata, KafkaTopic
from directory.kafka.adoption import pinned_kafka
from directory.kafka.adoption.pinned_kafka import PinnedKafka
from directory.kafka.adoption.vanish_guard import StopReason
from directory.kafka.provisioning.acknowledged_changes import AcknowledgedChanges
from directory.kafka.provisioning.provisioning import new_topic_of
from directory.namespace.adoption_mapping import MappingRule, map_physical_name
from directory.namespace.entry import Policies, Topic
from directory.namespace.keys import kafka_key
from directory.server.config_kafka import KafkaConfig
from directory.store.base import Put, Write
from tests.support.kafka_ledger import Ledger
from tests.support.reconciler import world


class Kept:
    """Facts, as a snapshot has them."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def fact(self, key: bytes) -> bytes | None:
        return self.values.get(key)

    def write(self, writes: Iterable[Write]) -> PinnedKafka:
        for write in writes:
            if isinstance(write, Put):
                self.values[write.key] = write.value
            else:
                self.values.pop(write.key, None)
        return PinnedKafka.load(self)


def test_they_come_back_as_they_were_written() -> None:
    kept = Kept()
    assert PinnedKafka.load(kept) == PinnedKafka()
    stop = StopReason("3 of 3 topics, “all”, …", 3)
    rules = (
        MappingRule.from_fields("prod.*", split_on=".", into="a/b", strip_prefix="prod."),
        MappingRule.from_fields("[xy]?", ignore=True),
    )
    kept.write(pinned_kafka.pin("K1"))
    kept.write(pinned_kafka.stop(stop))
    held = kept.write(pinned_kafka.write_rules(rules))
    assert (held.pinned, held.stop, held.allowed) == ("K1", stop, 0)
    for name in ("prod.search.clicks", "x1", "other"):
        assert map_physical_name(held.rules, name) == map_physical_name(rules, name)


def test_an_acknowledgement_ends_the_stop_and_allows_what_it_reported() -> None:
    kept = Kept()
    kept.write(pinned_kafka.pin("K1"))
    kept.write(pinned_kafka.stop(StopReason("gone", 7)))
    held = kept.write(pinned_kafka.acknowledge_stop(StopReason("gone", 7), kept))
    assert (held.pinned, held.stop, held.allowed) == ("K1", None, 7)
    assert kept.write(pinned_kafka.forget_acknowledgement()).allowed == 0
    pinnings = [pinned_kafka.pinned_text(kept)]
    for kafka_id in ("K2", "K1", "K2", "K1"):
        held = kept.write(pinned_kafka.acknowledge_stop(StopReason("another", 2, kafka_id), kept))
        assert (held.pinned, held.allowed) == (kafka_id, 2)
        assert pinned_kafka.pinned_text(kept) not in pinnings, "the one before is not what it was"
        pinnings.append(pinned_kafka.pinned_text(kept))


def test_S21_a_time_of_the_pin_that_cannot_be_read_is_later_than_any_other() -> None:
    kept = Kept()
    kept.write(pinned_kafka.pin("K1", 5))
    (key,) = (one.key for one in pinned_kafka.pin("K1") if one.key.endswith(b"at"))
    other = federation_pb2.KafkaClaim(
        kafka_cluster_id="K1", pinned_at_ms=1_700_000_000_000, cluster_id="z"
    )
    for unreadable in (b"9" * 30, b"", b"\xff"):
        held = kept.write([Put(key, unreadable)])
        own = federation_pb2.KafkaClaim(
            kafka_cluster_id=held.pinned, pinned_at_ms=held.pinned_at_ms, cluster_id="a"
        )
        assert manager_before(own, [other]) == other, "it may not have been pinned first"
        assert manager_before(other, [own]) is None
    stop = StopReason("another Kafka", 2, "K2")
    held = kept.write(pinned_kafka.acknowledge_stop(stop, kept, at_ms=7))
    assert held.pinned_at_ms == 7


def test_who_manages_is_noted_once_each_time_it_changes_and_never_as_it_was_before() -> None:
    kept = Kept()
    kept.write(pinned_kafka.pin("K1", 5))
    assert pinned_kafka.note_manager(kept, unmanaged=False)[0] == ()
    known = [pinned_kafka.pinned_text(kept)]
    for unmanaged in (True, False, True, False):
        held = kept.write(pinned_kafka.note_manager(kept, unmanaged=unmanaged)[0])
        assert held.unmanaged is unmanaged
        assert held.pinned_at_ms == 5, "by that it is decided which cluster manages"
        assert pinned_kafka.pinned_text(kept) not in known
        known.append(pinned_kafka.pinned_text(kept))
        assert pinned_kafka.note_manager(kept, unmanaged=unmanaged)[0] == ()


def test_a_stop_that_cannot_be_read_is_a_stop_and_other_rubbish_is_nothing() -> None:
    kept = Kept()
    kept.values = {
        pinned_kafka.STOPPED: b"by a newer version",
        b"k/allowed": b"many",
    }
    held = PinnedKafka.load(kept)
    assert held.stop is not None
    assert held.stop.text == "by a newer version"
    assert (held.allowed, held.rules, held.note) == (0, (), "")


def test_S21_rules_that_cannot_be_read_leave_out_all_topics(tmp_path: FilePath) -> None:
    kafka = Ledger("a")
    with world(tmp_path / "store.db", lambda: kafka, split_on=".") as here:
        here.sweep()
        here.writer.put_facts([Put(kafka_key("rules"), b'[{"match": "secret*", "newer": 1}]')])
        kafka.add("secret", "b")
        here.sweep()
        assert set(here.topics()) == {"a"}
        assert "k/rules cannot be read" in here.reconciler.status().message
        ignore = MappingRule.from_fields("secret*", ignore=True)
        here.reconciler.requests.adopt([ignore], validate_only=False, remap=False)
        here.sweep()
        assert set(here.topics()) == {"a", "b"}
        assert here.reconciler.status().message == ""


def test_adopted_rules_come_before_the_configs_and_splitting_comes_last() -> None:
    own, adopted = MappingRule.from_fields("own.*"), MappingRule.from_fields("adopted.*")
    settings = KafkaConfig(bootstrap=("k:1",), mapping_rules=(own,), split_on=".")
    assert settings.placing()[0] is own
    assert settings.placing((adopted,))[0] is adopted
    assert map_physical_name(settings.placing((adopted,)), "a.b").segments == ("a", "b")


def test_brokers_that_do_not_know_a_change_of_ours_yet_are_corrected_for_a_minute() -> None:
    now = [0.0]
    changes = AcknowledgedChanges(lambda: now[0])
    made, old = KafkaTopic("made", b"m" * 16, 1, 1), KafkaTopic("old", b"o" * 16, 1, 1)
    changes.note_made("made")
    changes.note_deleted(old.topic_id)
    behind = KafkaMetadata("K", {"old": old})
    assert changes.correct_metadata(behind) == KafkaMetadata("K", {}, unsettled={"made"})
    # Made anew by somebody else it is another topic, and shown.
    again = KafkaTopic("old", b"p" * 16, 1, 1)
    assert changes.correct_metadata(KafkaMetadata("K", {"old": again})).topics == {"old": again}
    assert changes.correct_metadata(KafkaMetadata("K", {"made": made})) == KafkaMetadata(
        "K", {"made": made}
    )
    now[0] = 61.0
    assert changes.correct_metadata(behind) is behind


def test_a_request_has_the_configs_of_the_directories_above_and_its_own_numbers() -> None:
    topic = Topic(
        entry_id=7,
        physical_name="t",
        partitions=0,
        replication_factor=2,
        policies=Policies(topic_config={"a": "own", "b": None}, partitions=5),
    )
    above = (
        Policies(topic_config={"a": "far", "b": "far", "c": "far"}),
        Policies(topic_config={"c": "near"}),
    )
    desired = new_topic_of(topic, above)
    assert (desired.name, desired.partitions, desired.replication_factor) == ("t", 5, 2)
    assert dict(desired.config) == {"a": "own", "c": "near"}
