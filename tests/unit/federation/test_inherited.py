"""What is inherited is one row, of at most 1 MiB, which fits one transaction of every store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from kdir.v1 import access_pb2, federation_pb2

from directory.federation import inheritance, parent_state
from directory.federation import inheritance as kept
from directory.namespace import keys
from directory.namespace.snapshot import Snapshot
from directory.store.base import Put, Write
from directory.store.etcd.transaction import LIMITS
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import LimitExceeded, NotReady

Rows = dict[bytes, bytes]


def inherited_message(
    levels: int = 4, name: str = "", revision: int = 7
) -> federation_pb2.Inherited:
    """Returns each level with the most grants, of names as long as those in certificates."""
    message = federation_pb2.Inherited(incarnation="life", revision=revision)
    path = ""
    for level in range(levels):
        path += f"/level-{level}"
        out = message.levels.add(path=path)
        for number in range(1000):
            out.grants.add(
                principal=f"User:CN={name}{level}-{number},OU={'x' * 120},O=Example,C=DE",
                operation=access_pb2.OPERATION_READ,
                permission=access_pb2.PERMISSION_ALLOW,
                resource_type=access_pb2.RESOURCE_TYPE_TOPIC,
                host="*",
            )
    return message


def holding(rows: Mapping[bytes, bytes]) -> Snapshot:
    return Snapshot.load(ProtoCodec(), "i", 1, [sorted(rows.items())])


def after(rows: Rows, writes: Iterable[Write]) -> Rows:
    rows = dict(rows)
    for write in writes:
        if isinstance(write, Put):
            rows[write.key] = write.value
        else:
            rows.pop(write.key)
    return rows


def test_as_much_as_is_inherited_fits_one_transaction_of_every_store() -> None:
    output = inherited_message(6)
    assert 0.9 * kept.MOST_BYTES < kept.inherited_size(output.levels) <= kept.MOST_BYTES
    writes = inheritance.inherited_writes(holding({}), output, 5)
    size = sum(len(one.key) + len(one.value) for one in writes if isinstance(one, Put))
    assert size < kept.MOST_BYTES + 1024 < LIMITS.max_bytes - 256 * 1024, "and the mount beside it"
    snapshot = holding(after({}, writes))
    assert inheritance.inherited_levels(snapshot) == list(output.levels)
    known = kept.read_inherited(snapshot)
    assert known is not None
    assert (known.at_ms, known.message.revision, known.message.incarnation) == (5, 7, "life")
    access = inheritance.inherited_access(snapshot)
    assert access is not None
    assert [len(level.rules.grants) for level in access] == [1000] * 6
    assert inheritance.inherited_access(snapshot) is access  # made once, whatever else changes
    # The same again is no news.
    assert inheritance.inherited_writes(snapshot, output, 6) == ()


def test_the_size_is_that_of_the_message() -> None:
    output = inherited_message(3)
    levels = federation_pb2.Inherited(levels=output.levels)
    assert 0 <= kept.inherited_size(output.levels) - levels.ByteSize() <= 3 * 4


def test_policies_of_a_newer_parent_are_kept_and_the_known_ones_hold() -> None:
    output = federation_pb2.Inherited(incarnation="life")
    policies = output.levels.add(path="/").policies
    policies.owner = "platform"
    policies.stamps["owner"].by = "User:ada"
    policies.topic_config["retention.ms"].value = "7"
    policies.topic_config["new.kind"].MergeFromString(b"\xfa\x07\x03new")
    policies.MergeFromString(b"\xfa\x07\x03new")
    snapshot = holding(after({}, inheritance.inherited_writes(holding({}), output, 1)))
    (found,) = inheritance.inherited_policies(snapshot)
    assert (found.owner, found.topic_config, found.stamps) == (
        "platform",
        {"retention.ms": "7"},
        {},
    )
    assert inheritance.inherited_levels(snapshot) == list(output.levels), "as they are handed on"


@pytest.mark.parametrize("spoil", ["cut", "nonsense"])
def test_A3_S21_a_row_that_cannot_be_read_is_not_nothing(spoil: str) -> None:
    rows = after({}, inheritance.inherited_writes(holding({}), inherited_message(), 1))
    value = rows[keys.INHERITED]
    rows[keys.INHERITED] = value[:20] if spoil == "cut" else value + b"\xff"
    snapshot = holding(rows)
    assert inheritance.is_inherited_corrupt(snapshot)
    assert keys.INHERITED in parent_state.corrupt_keys(snapshot)
    assert [key for key, _ in parent_state.unreadable_rows(snapshot)] == [keys.INHERITED]
    with pytest.raises(NotReady, match="unreadable"):
        inheritance.inherited_access(snapshot)
    # The parent sends it again.
    rows = after(rows, inheritance.inherited_writes(snapshot, inherited_message(), 2))
    assert inheritance.inherited_levels(holding(rows)) == list(inherited_message().levels)


def test_what_is_too_large_is_not_kept_and_what_was_kept_before_stays() -> None:
    rows = after({}, inheritance.inherited_writes(holding({}), inherited_message(1), 1))
    with pytest.raises(LimitExceeded, match="at most 1,048,576: grant to fewer"):
        inheritance.inherited_writes(holding(rows), inherited_message(7), 2)
    assert inheritance.inherited_levels(holding(rows)) == list(inherited_message(1).levels)
