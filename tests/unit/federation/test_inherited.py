"""What is inherited and large is kept in parts: all or nothing, and no more than changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from kdir.v1 import access_pb2, federation_pb2

from directory.federation import inherited_records as kept
from directory.federation import parent_state
from directory.namespace import keys
from directory.namespace.snapshot import Snapshot
from directory.server.feature_levels import GRANTS, level_needed
from directory.store.base import Delete, Put, Write
from directory.store.etcd.transaction import LIMITS
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import LimitExceeded, NotReady

Rows = dict[bytes, bytes]


def word(levels: int = 12, name: str = "", revision: int = 7) -> federation_pb2.Inherited:
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


def test_a_large_word_fits_every_store_and_is_read_as_it_was_said() -> None:
    output = word()
    assert output.ByteSize() > LIMITS.max_bytes
    writes = parent_state.inherited_writes(holding({}), output, 5)
    for step in kept.as_transactions(writes):
        size = sum(len(one.key) + len(one.value) for one in step if isinstance(one, Put))
        assert size < LIMITS.max_bytes / 2
        assert LIMITS.hold(2, len(step))
    snapshot = holding(after({}, writes))
    assert parent_state.inherited_levels(snapshot) == list(output.levels)
    known = kept.read_inherited(snapshot)
    assert known is not None
    assert (known.at_ms, known.message.revision, known.message.incarnation) == (5, 7, "life")
    access = parent_state.inherited_access(snapshot)
    assert access is not None
    assert [len(level.rules.grants) for level in access] == [1000] * 12
    assert parent_state.inherited_access(snapshot) is access  # made once, whatever else changes
    # The same word again is no news.
    assert parent_state.inherited_writes(snapshot, output, 6) == ()


def test_until_the_last_step_the_word_before_holds() -> None:
    before = word(1)
    rows = after({}, parent_state.inherited_writes(holding({}), before, 1))
    *parts, last = kept.as_transactions(parent_state.inherited_writes(holding(rows), word(), 2))
    assert len(parts) > 3
    for part in parts:
        rows = after(rows, part)
        assert parent_state.inherited_levels(holding(rows)) == list(before.levels)
    rows = after(rows, last)
    assert parent_state.inherited_levels(holding(rows)) == list(word().levels)


def test_only_what_changed_is_written_and_what_nobody_names_goes() -> None:
    rows = after({}, parent_state.inherited_writes(holding({}), word(), 1))
    longer = word()
    longer.levels.add(path="/level-0/last", closed=True)
    writes = parent_state.inherited_writes(holding(rows), longer, 2)
    assert [type(one) for one in writes] == [Put, Put, Delete, Put]
    assert writes[-1].key == keys.GRANTS_MARK
    rows = after(rows, writes)
    assert parent_state.inherited_levels(holding(rows)) == list(longer.levels)
    small = federation_pb2.Inherited(incarnation="life")
    rows = after(rows, parent_state.inherited_writes(holding(rows), small, 3))
    assert sorted(rows) == [keys.GRANTS_MARK, keys.INHERITED]
    assert parent_state.inherited_levels(holding(rows)) == []


@pytest.mark.parametrize("spoil", ["missing", "other", "cut", "nonsense"])
def test_A3_S21_a_part_that_is_missing_or_wrong_is_no_word_at_all(spoil: str) -> None:
    rows = after({}, parent_state.inherited_writes(holding({}), word(), 1))
    part = next(key for key in rows if key.startswith(keys.HANDED))
    match spoil:
        case "missing":
            del rows[part]
        case "other":
            rows[part] = federation_pb2.Inherited(incarnation="life").SerializeToString()
        case "cut":
            rows[keys.INHERITED] = rows[keys.INHERITED][:20]
        case _:
            rows[keys.INHERITED] = rows[keys.INHERITED] + b"\xff"
    snapshot = holding(rows)
    assert parent_state.is_inherited_corrupt(snapshot)
    assert keys.INHERITED in parent_state.corrupt_keys(snapshot)
    assert [key for key, _ in parent_state.unreadable_rows(snapshot)] == [keys.INHERITED]
    with pytest.raises(NotReady, match="unreadable"):
        parent_state.inherited_access(snapshot)
    # The parent says it again.
    rows = after(rows, parent_state.inherited_writes(snapshot, word(), 2))
    assert parent_state.inherited_levels(holding(rows)) == list(word().levels)


def test_who_knows_no_parts_reads_no_empty_word() -> None:
    rows = after({}, parent_state.inherited_writes(holding({}), word(), 1))
    with pytest.raises(Exception, match=r"[Pp]ars"):
        federation_pb2.Inherited.FromString(rows[keys.INHERITED][8:])
    assert level_needed(parent_state.inherited_writes(holding({}), word(), 1)) == GRANTS


def test_what_is_too_large_for_any_store_is_refused() -> None:
    huge = word()
    while huge.ByteSize() <= kept.MOST_BYTES:
        huge.levels.extend(word().levels)
    with pytest.raises(LimitExceeded, match="fewer grants"):
        parent_state.inherited_writes(holding({}), huge, 1)
