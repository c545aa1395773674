"""What the codec refuses, and what a change looks like as an event."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf import text_format
from kdir.v1 import entry_pb2, policies_pb2, watch_pb2

from directory.namespace.command import EntryChange
from directory.namespace.entry import Directory, Entry, Kind, Link, Mount, Provision, Topic
from directory.namespace.sorted_map import SortedMap
from directory.namespace.tree_nodes import Node
from directory.wire.entry_codec import (
    ProtoCodec,
    change_to_proto,
    entry_from_proto,
    entry_to_proto,
    policies_from_proto,
)
from resolver.errors import InvalidArgument
from resolver.path import Path

CODEC = ProtoCodec()


@pytest.mark.parametrize(
    ("desired", "arguments"),
    [
        ("", "kind: one of directory, topic, link and mount must be set"),
        ("link {}", "link.targets: empty"),
        ("link { targets: '/a' targets: 'b' }", r"link.targets\[1\]: .* must begin"),
        ("link { targets: '/a' mode: 9 }", "link.mode: 9; known are FIRST = 1, UNION = 2"),
        ("mount {}", "mount.cluster_id: empty"),
        (
            "directory {} policies { tags { key: 'team' value {} } }",
            r"policies.tags\[team\]: neither a value nor cleared",
        ),
    ],
)
def test_a_request_that_makes_no_sense_names_the_field(desired: str, arguments: str) -> None:
    with pytest.raises(InvalidArgument, match=arguments):
        entry_from_proto(text_format.Parse(desired, entry_pb2.Entry()))


def test_a_field_of_a_newer_client_is_refused_and_not_dropped() -> None:
    message = text_format.Parse("topic { partitions: 3 }", entry_pb2.Entry())
    message.policies.MergeFromString(b"\xfa\x07\x03new")
    with pytest.raises(InvalidArgument, match=r"field policies\.127 is not known to this server"):
        entry_from_proto(message)


def test_policies_of_a_newer_client_are_refused_and_not_dropped() -> None:
    message = policies_pb2.Policies(owner="me")
    message.topic_config["retention.ms"].MergeFromString(b"\xfa\x07\x03new")
    with pytest.raises(InvalidArgument, match=r"topic_config\.127"):
        policies_from_proto(message)


def test_unset_zero_and_empty_are_three_things() -> None:
    message = policies_pb2.Policies(owner="", max_topics=0, read_only=False)
    policies = policies_from_proto(message)
    assert (policies.owner, policies.max_topics, policies.read_only) == ("", 0, False)
    assert (policies.contact, policies.max_partitions) == (None, None)


def test_a_directory_has_counts_of_its_entries() -> None:
    directory = Directory(entry_id=10)
    node = Node(
        10,
        1,
        "a",
        directory,
        SortedMap.from_items([("t", b"")]),
        SortedMap.from_items([("m", Directory(entry_id=11))]),
    )
    message = entry_to_proto(directory, "/a", node)
    assert (message.directory.topic_count, message.directory.container_count) == (1, 1)


def test_what_is_output_only_is_never_stored() -> None:
    answer = entry_to_proto(Mount(entry_id=12, cluster_id="kc-1"), "/a")
    answer.mount.state = entry_pb2.MOUNT_STATE_LINKED
    answer.mount.topic_count = 5
    mount = entry_from_proto(answer)
    assert mount == Mount(entry_id=0, cluster_id="kc-1")
    assert not entry_pb2.Entry.FromString(CODEC.encode(mount)).mount.HasField("topic_count")


def test_a_state_of_a_newer_version_is_kept_and_nothing_is_done_to_the_topic() -> None:
    message = entry_pb2.Entry(entry_id=10, change_count=1)
    message.topic.physical_name = "clicks"
    message.topic.provision = 99  # type: ignore[assignment]
    message.topic.provision_message = "told by the newer one"
    record = message.SerializeToString(deterministic=True)
    topic = CODEC.decode(record)
    assert isinstance(topic, Topic)
    assert topic.provision is Provision.FAILED
    assert "newer version of kdir: 99" in topic.provision_message
    changed = replace(topic, partitions=12)
    stored = entry_pb2.Entry.FromString(CODEC.encode(changed)).topic
    assert (stored.partitions, int(stored.provision)) == (12, 99)
    assert stored.provision_message == "told by the newer one"
    settled = replace(topic, provision=Provision.ACTIVE, provision_message="")
    stored = entry_pb2.Entry.FromString(CODEC.encode(settled)).topic
    assert (int(stored.provision), stored.provision_message) == (Provision.ACTIVE, "")


@pytest.mark.parametrize(
    "entry",
    [
        Directory(entry_id=10),
        Topic(entry_id=2**63 + 1, physical_name="clicks", partitions=3),
        Link(entry_id=0x1122334455667788, targets=(Path.parse("/a"),)),
        Mount(entry_id=12, cluster_id="kc-1"),
    ],
)
def test_an_entry_id_is_the_same_with_and_without_parsing_the_record(entry: Entry) -> None:
    record = CODEC.encode(entry)
    assert entry_pb2.Entry.FromString(record).entry_id == entry.entry_id
    assert CODEC.entry_id(record) == entry.entry_id
    # What follows it need not be readable.
    assert CODEC.entry_id(record[:9] + b"\xff") == entry.entry_id
    assert CODEC.entry_id(record[:8]) == 0


BEFORE, AFTER = Directory(entry_id=10), Directory(entry_id=10, change_count=2)


@pytest.mark.parametrize(
    ("before", "after", "action"),
    [
        (None, AFTER, watch_pb2.CHANGE_ACTION_INSERT),
        (BEFORE, AFTER, watch_pb2.CHANGE_ACTION_UPDATE),
        (BEFORE, None, watch_pb2.CHANGE_ACTION_DELETE),
    ],
)
def test_a_change_as_an_event(
    before: Directory | None, after: Directory | None, action: watch_pb2.ChangeAction
) -> None:
    moved = before is not None and after is not None
    change = EntryChange(
        kind=Kind.DIRECTORY,
        entry_id=10,
        parent_id=1,
        path=Path.parse("/la/b"),
        path_before=Path.parse("/la/a") if moved else None,
        before=before,
        after=after,
    )
    event = change_to_proto(
        change,
        time_ms=1_700_000_000_123,
        position=2,
        principal="User:ana",
        request_id="r1",
    )
    assert event.action == action
    assert (event.kind, event.entry_id, event.parent_id) == (entry_pb2.ENTRY_KIND_DIRECTORY, 10, 1)
    assert (event.path, event.path_before) == ("/la/b", "/la/a" if moved else "")
    assert (event.position, event.principal, event.request_id) == (2, "User:ana", "r1")
    assert event.time.ToMilliseconds() == 1_700_000_000_123
    assert event.HasField("before") == (before is not None)
    assert event.HasField("after") == (after is not None)
    if before is not None:
        assert event.before.path == ("/la/a" if moved else "/la/b")
        assert event.before.etag == "a-1"
    if after is not None:
        assert (event.after.path, event.after.etag) == ("/la/b", "a-2")
