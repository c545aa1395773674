"""The codec: there and back for any entry, and for whatever a newer version may have stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import TypeVar

from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given, settings
from hypothesis import strategies as st
from kdir.v1 import entry_pb2

from directory.namespace.entry import (
    Directory,
    Entry,
    Link,
    LinkMode,
    LinkWrites,
    Mount,
    Policies,
    Provision,
    Stamp,
    Topic,
    etag_of,
)
from directory.wire.entry_codec import (
    ProtoCodec,
    entry_from_proto,
    entry_to_proto,
    policies_from_proto,
    policies_to_proto,
    record_to_proto,
)
from resolver.path import Path

V = TypeVar("V")
CODEC = ProtoCodec()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
UINT32 = st.integers(0, 2**32 - 1)
UINT64 = st.integers(0, 2**64 - 1)


def frozen(values: Mapping[str, V]) -> Mapping[str, V]:
    return MappingProxyType(dict(values))


def bare(policies: Policies) -> Policies:
    """Returns the policies without their stamps."""
    return replace(policies, stamps=MappingProxyType({}))


SETTINGS = st.dictionaries(TEXT, st.none() | TEXT, max_size=3).map(frozen)
POLICIES = st.builds(
    Policies,
    topic_config=SETTINGS,
    producer_defaults=SETTINGS,
    consumer_defaults=SETTINGS,
    tags=SETTINGS,
    manage=st.dictionaries(TEXT, st.booleans(), max_size=3).map(frozen),
    partitions=st.none() | UINT32,
    replication_factor=st.none() | UINT32,
    max_topics=st.none() | UINT64,
    max_partitions=st.none() | UINT64,
    owner=st.none() | TEXT,
    contact=st.none() | TEXT,
    description=st.none() | TEXT,
    read_only=st.none() | st.booleans(),
    encryption_key_id=st.none() | TEXT,
    stamps=st.dictionaries(
        TEXT, st.builds(Stamp, TEXT, st.integers(-(2**63), 2**63 - 1)), max_size=2
    ).map(frozen),
)
COMMON = {
    "entry_id": st.integers(1, 2**64 - 1),
    "change_count": UINT32,
    "changed_at_ms": st.integers(0, 2**42),
    "changed_by": TEXT,
    "policies": POLICIES,
}
PATHS = st.lists(st.sampled_from(["a", "b.c", "d"]), max_size=3).map(tuple).map(Path)
# Physical names on both sides of the lengths at which their place in the record moves.
NAMES = st.integers(1, 249).map(lambda length: "n" * length) | st.text("ab._-", min_size=1)
ENTRIES: st.SearchStrategy[Entry] = st.one_of(
    st.builds(Directory, closed=st.booleans(), **COMMON),
    st.builds(
        Topic,
        physical_name=NAMES,
        topic_id=st.binary(max_size=16),
        partitions=UINT32,
        replication_factor=UINT32,
        provision=st.sampled_from(Provision),
        provision_message=TEXT,
        drift_count=UINT32,
        adopted=st.booleans(),
        provision_attempt=TEXT,
        observed_config=st.dictionaries(TEXT, st.text("v", max_size=200), max_size=3).map(frozen),
        **COMMON,
    ),
    st.builds(
        Link,
        targets=st.lists(PATHS, min_size=1, max_size=3).map(tuple),
        mode=st.sampled_from(LinkMode),
        writes=st.sampled_from(LinkWrites),
        fall_back_on_absent=st.booleans(),
        **COMMON,
    ),
    st.builds(
        Mount,
        cluster_id=TEXT.filter(bool),
        cluster=TEXT,
        epoch=UINT64,
        endpoints=st.lists(TEXT, max_size=3).map(tuple),
        **COMMON,
    ),
)


@given(ENTRIES)
@settings(max_examples=150)
def test_there_and_back(entry: Entry) -> None:
    record = CODEC.encode(entry)
    decoded = CODEC.decode(record)
    assert decoded == entry
    assert not decoded.unknown
    message = entry_pb2.Entry.FromString(record)
    assert (message.path, message.etag) == ("", "")


@given(ENTRIES, st.sampled_from(["/", "/la/a"]))
@settings(max_examples=100)
def test_both_ways_to_an_answer_agree(entry: Entry, path: str) -> None:
    answer = entry_to_proto(entry, path)
    assert answer == record_to_proto(CODEC.encode(entry), path)
    assert (answer.path, answer.etag) == (path, etag_of(entry))
    response = entry_pb2.Entry()
    assert record_to_proto(CODEC.encode(entry), path, response) is response == answer


@given(ENTRIES, st.sampled_from(["/", "/la/a"]))
@settings(max_examples=100)
def test_an_answer_sent_back_asks_for_the_same(entry: Entry, path: str) -> None:
    desired_config = entry_from_proto(entry_to_proto(entry, path))
    expected = replace(entry, entry_id=0, change_count=1, changed_at_ms=0, changed_by="")
    # Who set what is ours to say.
    assert desired_config == replace(expected, policies=bare(expected.policies))


@given(POLICIES)
def test_policies_there_and_back(policies: Policies) -> None:
    assert policies_from_proto(policies_to_proto(policies)) == bare(policies)


@given(st.lists(ENTRIES, max_size=5), st.lists(st.binary(max_size=30), max_size=2), st.data())
@settings(max_examples=150)
def test_physical_names_agree_with_decoding(
    entries: Sequence[Entry], garbage: Sequence[bytes], data: st.DataObject
) -> None:
    records = data.draw(st.permutations([*map(CODEC.encode, entries), *garbage]))

    def plainly(record: bytes) -> str | None:
        try:
            decoded = CODEC.decode(record)
        except ValueError:
            return None
        return decoded.physical_name if isinstance(decoded, Topic) else None

    expected = [plainly(record) for record in records]
    assert list(CODEC.physical_names(records)) == expected
    if None not in expected:
        assert CODEC.look_like_topics(records)
    if any(record in records for record in garbage if len(record) < 10):
        assert not CODEC.look_like_topics(records)


# --- what a newer version stored -----------------------------------------------------------------

NEWER_FIELD = b"\xfa\x07\x03new"  # field 127, a string


@st.composite
def newer_records(draw: st.DrawFn) -> bytes:
    """Draws a record with fields that this version does not have, at any of its levels."""
    message = entry_pb2.Entry.FromString(CODEC.encode(draw(ENTRIES)))
    levels = [message, message.policies, getattr(message, message.WhichOneof("kind") or "topic")]
    levels += list(message.policies.topic_config.values())
    for level in draw(st.lists(st.sampled_from(levels), min_size=1, unique_by=id)):
        level.MergeFromString(NEWER_FIELD)
    if draw(st.booleans()):
        message.policies.tags["of a newer kind"].MergeFromString(NEWER_FIELD)
    return message.SerializeToString(deterministic=True)


def newer_fields(record: bytes) -> list[str]:
    """Returns where unknown fields are, by level."""
    message = entry_pb2.Entry.FromString(record)
    found = []
    kind = getattr(message, message.WhichOneof("kind") or "topic")
    for name, level in [("entry", message), ("policies", message.policies), ("kind", kind)]:
        found += [name] * len(UnknownFieldSet(level))
    for name in ("topic_config", "tags"):
        for key, value in sorted(getattr(message.policies, name).items()):
            found += [f"{name}[{key}]"] * len(UnknownFieldSet(value))
    return found


@given(newer_records())
@settings(max_examples=100)
def test_a_newer_record_is_written_back_as_it_was(record: bytes) -> None:
    entry = CODEC.decode(record)
    assert entry.unknown == record
    assert CODEC.encode(entry) == record


@given(newer_records(), st.sampled_from(["", "someone"]), POLICIES)
@settings(max_examples=100)
def test_a_change_keeps_what_a_newer_version_stored(
    record: bytes, changed_by: str, policies: Policies
) -> None:
    entry = CODEC.decode(record)
    changed = replace(entry, changed_by=changed_by, change_count=77, policies=policies)
    after = CODEC.encode(changed)
    # Except in a setting that was itself removed or set anew.
    kept = [place for place in newer_fields(record) if "topic_config[" not in place]
    assert [place for place in newer_fields(after) if "topic_config[" not in place] == kept
    decoded = CODEC.decode(after)
    for one in fields(changed):
        if one.name != "unknown":
            assert getattr(decoded, one.name) == getattr(changed, one.name), one.name


@given(ENTRIES, st.sampled_from(["path", "etag"]))
@settings(max_examples=100)
def test_a_record_written_otherwise_is_kept_too(entry: Entry, field: str) -> None:
    message = entry_pb2.Entry.FromString(CODEC.encode(entry))
    setattr(message, field, "/what/no/record/holds")
    record = message.SerializeToString(deterministic=True)
    decoded = CODEC.decode(record)
    assert replace(decoded, unknown=b"") == entry
    assert CODEC.encode(decoded) == record
    changed = CODEC.encode(replace(decoded, change_count=entry.change_count ^ 1))
    assert not getattr(entry_pb2.Entry.FromString(changed), field)
