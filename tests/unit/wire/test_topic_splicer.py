"""Spliced answers: the same message as protobuf would make, or none."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kdir.v1 import policies_pb2, resolve_pb2

from directory.namespace.entry import ROOT_ID, Directory, Policies, Provision, Topic
from directory.namespace.sorted_map import MOST, SortedMap
from directory.namespace.tree_nodes import Node
from directory.wire.entry_codec import ProtoCodec, record_to_proto
from directory.wire.topic_splicer import KeptSplicer, make_splicer, splice_topics

CODEC = ProtoCodec()
NAME = "clicks"

topics = st.builds(
    Topic,
    entry_id=st.integers(1, 2**64 - 1),
    change_count=st.integers(1, 2**31),
    changed_at_ms=st.integers(0, 2**40),
    changed_by=st.text(max_size=200),
    policies=st.sampled_from([Policies(), Policies(owner="ana"), Policies(max_topics=0)]),
    physical_name=st.text("abc.-_", min_size=1, max_size=249),
    topic_id=st.binary(max_size=16),
    partitions=st.integers(0, 2**31 - 1),
    provision=st.sampled_from(Provision),
    provision_message=st.text(max_size=20_000),
    observed_config=st.dictionaries(st.text(max_size=5), st.text(max_size=50), max_size=3).map(
        MappingProxyType
    ),
)
paths = st.lists(st.text("abc", min_size=1, max_size=40), max_size=5).map(
    lambda above: "/" + "/".join([*above, NAME])
)
inherited = st.sampled_from([None, policies_pb2.Policies(owner="team"), policies_pb2.Policies()])


def node_of(record: bytes, *, directory_too: bool = False) -> Node:
    containers = {NAME: Directory(entry_id=9)} if directory_too else {}
    return Node(
        ROOT_ID,
        0,
        "",
        Directory(entry_id=ROOT_ID),
        SortedMap.from_items([(NAME, record)]),
        SortedMap.from_items(containers.items()),
    )


def spliced(made: KeptSplicer, path: str) -> bytes | None:
    (part,) = splice_topics({path.rpartition("/")[0]: made.splicer}, [path])
    return part


def by_protobuf(
    record: bytes, path: str, above: policies_pb2.Policies | None
) -> resolve_pb2.ResolveResponse:
    response = resolve_pb2.ResolveResponse()
    resolution = response.outcome.resolution
    record_to_proto(record, path, resolution.entry)
    resolution.lifetime_seconds = 60
    if above is not None:
        resolution.effective.CopyFrom(above)
    return response


@given(topics, paths, inherited)
def test_the_splice_is_what_protobuf_makes(
    topic: Topic, path: str, above: policies_pb2.Policies | None
) -> None:
    record = CODEC.encode(topic)
    part = spliced(make_splicer(node_of(record), 60, above), path)
    if part is not None:
        assert resolve_pb2.ResolveResponse.FromString(part) == by_protobuf(record, path, above)
        assert topic.policies == Policies()


def test_a_usual_topic_is_spliced() -> None:
    record = CODEC.encode(Topic(entry_id=2**40, physical_name="a" * 249, changed_by="User:ana"))
    assert spliced(make_splicer(node_of(record), 60, None), f"/la/{NAME}") is not None


def test_what_a_newer_version_stored_goes_out_too() -> None:
    topic = Topic(entry_id=7, physical_name="a")
    record = CODEC.encode(topic) + b"\xf2\x3f\x03new"
    part = spliced(make_splicer(node_of(record), 60, None), f"/{NAME}")
    assert part is not None
    assert b"\xf2\x3f\x03new" in part
    assert resolve_pb2.ResolveResponse.FromString(part) == by_protobuf(record, f"/{NAME}", None)


def test_what_is_not_plain_is_left_to_protobuf() -> None:
    topic = Topic(entry_id=7, physical_name="a")
    record = CODEC.encode(topic)
    left = [
        make_splicer(node_of(CODEC.encode(replace(topic, policies=Policies(owner="x")))), 60, None),
        make_splicer(node_of(CODEC.encode(replace(topic, change_count=128))), 60, None),
        make_splicer(node_of(record, directory_too=True), 60, None),
        *(make_splicer(node_of(record[:length]), 60, None) for length in range(len(record) - 2)),
    ]
    for splicer in left:
        assert spliced(splicer, f"/{NAME}") is None
    splicer = make_splicer(node_of(record), 60, None)
    assert spliced(splicer, "/other") is None
    assert spliced(splicer, "/" + "a" * 130 + f"/{NAME}") is None
    assert splice_topics({}, [f"/{NAME}"]) == [None]


@pytest.mark.parametrize("count", [1, 2, 100, MOST, MOST + 1, 1_000])
def test_each_topic_of_a_directory_is_found_and_no_other(count: int) -> None:
    names = [f"t{number:04}" for number in range(count)]
    records = [
        CODEC.encode(Topic(entry_id=7 + at, physical_name=one)) for at, one in enumerate(names)
    ]
    directory = replace(node_of(b""), topics=SortedMap.from_sorted(names, records))
    splicer = make_splicer(directory, 60, None).splicer
    paths = [f"/la/{name}" for name in names]
    others = [f"/la/u{number:04}" for number in range(count)]
    for path, record, part in zip(
        paths, records, splice_topics({"/la": splicer}, paths), strict=True
    ):
        assert part is not None
        assert resolve_pb2.ResolveResponse.FromString(part) == by_protobuf(record, path, None)
    assert splice_topics({"/la": splicer}, others) == [None] * count
