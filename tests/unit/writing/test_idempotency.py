"""What is kept of an answered request: commands told apart, answers given back as they were."""

import itertools
import json
from types import MappingProxyType

import pytest

from directory.namespace.command import (
    AdoptTopics,
    Command,
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    FinishDelete,
    ForgetRetired,
    MoveEntry,
    MoveTopics,
    ObservedTopic,
    Plan,
    ReapDeleted,
    RecordObservations,
    TopicObservation,
    UpdateEntry,
)
from directory.namespace.entry import Kind, LinkMode, Policies, Provision, Topic
from directory.store.idempotency import RequestRecord, command_fingerprint
from directory.wire.entry_codec import ProtoCodec
from tests.unit.writing.bench import path

SEEN = ObservedTopic(physical_name="t", topic_id=bytes(16), partitions=1, replication_factor=1)
COMMANDS: list[Command] = [
    CreateDirectory(path=path("/a")),
    CreateDirectory(path=path("/a"), make_parents=True),
    CreateDirectory(path=path("/a"), policies=Policies(owner="")),
    CreateDirectory(path=path("/a"), policies=Policies(owner="ana")),
    CreateDirectory(
        path=path("/a"), policies=Policies(tags=MappingProxyType({"a": None, "b": ""}))
    ),
    CreateDirectory(path=path("/a"), policies=Policies(tags=MappingProxyType({"a": ""}))),
    CreateTopic(path=path("/a")),
    CreateTopic(path=path("/a/b")),
    CreateTopic(path=path("/a"), physical_name="a"),
    CreateTopic(path=path("/a"), adopt_existing=SEEN),
    CreateLink(path=path("/a"), targets=(path("/b"), path("/c"))),
    CreateLink(path=path("/a"), targets=(path("/c"), path("/b"))),
    CreateLink(path=path("/a"), targets=(path("/b"), path("/c")), mode=LinkMode.UNION),
    CreateMount(path=path("/a"), cluster_id="kc-1"),
    CreateMount(path=path("/a"), cluster_id="kc-1", endpoints=("h:1",)),
    UpdateEntry(path=path("/a")),
    UpdateEntry(path=path("/a"), etag="1-1"),
    UpdateEntry(path=path("/a"), changes={"policies.owner": None}),
    UpdateEntry(path=path("/a"), changes={"policies.owner": ""}),
    UpdateEntry(path=path("/a"), changes={"policies.read_only": False}),
    UpdateEntry(path=path("/a"), changes={"policies.partitions": 0}),
    UpdateEntry(path=path("/a"), changes={"link.targets": (path("/b"),)}),
    UpdateEntry(path=path("/a"), changes={"link.mode": LinkMode.UNION}),
    DeleteEntry(path=path("/a")),
    DeleteEntry(path=path("/a"), kind=Kind.TOPIC),
    DeleteEntry(path=path("/a"), kind=Kind.DIRECTORY),
    DeleteEntry(path=path("/a"), recursive=True),
    MoveEntry(path=path("/a"), new_path=path("/b")),
    MoveEntry(path=path("/b"), new_path=path("/a")),
    AdoptTopics(topics=((("a", "b"), SEEN),)),
    AdoptTopics(topics=((("a/b",), SEEN),)),
    RecordObservations(
        news=(TopicObservation(path=path("/a"), entry_id=3, provision=Provision.ACTIVE),)
    ),
    RecordObservations(news=(TopicObservation(path=path("/a"), entry_id=3, topic_id=b"x"),)),
    ReapDeleted(),
    ReapDeleted(limit=5),
    FinishDelete(topics=(("t", 3),)),
    FinishDelete(topics=(("t", 3),), is_acknowledged=True),
    ForgetRetired(names=("t",)),
    MoveTopics(moves=((path("/a"), 3, path("/b")),)),
]


def test_different_commands_have_different_fingerprints() -> None:
    for one, two in itertools.combinations(COMMANDS, 2):
        assert command_fingerprint(one) != command_fingerprint(two), (one, two)


def test_the_order_of_a_mapping_does_not_matter() -> None:
    one = UpdateEntry(path=path("/a"), changes={"policies.owner": "a", "policies.contact": "b"})
    two = UpdateEntry(path=path("/a"), changes={"policies.contact": "b", "policies.owner": "a"})
    assert command_fingerprint(one) == command_fingerprint(two)


def test_a_fingerprint_is_the_same_in_every_process_and_version() -> None:
    # Changing this forgets the requests that other servers of the cluster answered.
    assert command_fingerprint(CreateTopic(path=path("/a/b"), partitions=3)) == (
        "a1a50470af0e22d9cee1d0b8bd95290f83813f319c99634f739c57a7d44193a1"
    )


@pytest.mark.parametrize("partitions", [None, 7])
def test_an_answer_comes_back_as_it_was(partitions: int | None) -> None:
    topic = Topic(entry_id=7, physical_name="t", policies=Policies(partitions=partitions))
    plan = Plan(
        guards=(),
        writes=(),
        changes=(),
        entry=None if partitions is None else topic,
        path=None if partitions is None else path("/a"),
        topic_count=2,
        directory_count=3,
        unreadable_count=2,
        notes=("t: flat name kept", "ü"),
        kafka_topics_deleted=True,
    )
    codec = ProtoCodec()
    kept = RequestRecord.from_plan(COMMANDS[0], plan, codec, 5).to_bytes()
    assert RequestRecord.from_bytes(kept).replay_plan(codec) == plan


def test_a_record_of_an_earlier_release_lacks_what_it_did_not_keep() -> None:
    plan = Plan(guards=(), writes=(), changes=(), entry=None, path=None)
    kept = json.loads(RequestRecord.from_plan(COMMANDS[0], plan, ProtoCodec(), 5).to_bytes())
    del kept["grants"], kept["grants_changed"], kept["kafka_topics_deleted"]
    read = RequestRecord.from_bytes(json.dumps(kept).encode())
    assert (read.answered_at_ms, read.grants, read.grants_changed) == (5, (), ())
    assert not read.kafka_topics_deleted


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"{}", b"null", b'{"fingerprint":1}'])
def test_what_is_no_record_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        RequestRecord.from_bytes(value)
