"""Feature levels: what needs which, and what the refusal says."""

import pytest

from directory.namespace.keys import LEVEL, kafka_key, large_change_key, member_key
from directory.namespace.snapshot import Snapshot
from directory.server.feature_levels import (
    FIRST_LEVEL,
    LEVELS,
    FeatureLevel,
    finalized_level,
    highest_supported,
    level_needed,
    level_to_finalize,
    read_level,
    refuse_unfinalized,
)
from directory.store.base import Delete, Put
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import InvalidArgument, LevelNotFinalized
from tests.support.feature_levels import INVENTED


def test_every_level_up_to_this_version_s_is_known() -> None:
    assert sorted(LEVELS) == list(range(FIRST_LEVEL, len(LEVELS) + 1))
    assert all(level.number == number for number, level in LEVELS.items())
    assert len({level.name for level in LEVELS.values()}) == len(LEVELS)


@pytest.mark.parametrize(
    ("value", "level"),
    [
        (None, 1),
        (b"1", 1),
        (b"2", 2),
        (b"17", 17),
        (b"", None),
        (b"0", None),
        (b"-3", None),
        (b"two", None),
        (b"\xff\xfe", None),
        ("²".encode(), None),
        (b"9" * 5000, None),
    ],
)
def test_a_store_s_level_is_read_and_what_cannot_be_read_allows_nothing_new(
    value: bytes | None, level: int | None
) -> None:
    assert read_level(value) == level


def test_while_the_level_cannot_be_read_the_refusal_says_so() -> None:
    with pytest.raises(LevelNotFinalized, match=r"cannot be read.*kdir features finalize"):
        refuse_unfinalized(2, None, {"a": 3})
    refuse_unfinalized(1, None, {"a": 3})


def test_the_finalized_level_is_a_fact_of_the_tree() -> None:
    empty = Snapshot.empty(ProtoCodec())
    assert finalized_level(empty) == FIRST_LEVEL
    assert finalized_level(empty.apply(1, (Put(LEVEL, b"2"),))) == 2


def test_a_row_needs_the_level_that_brought_it_and_its_removal_none() -> None:
    other = (Put(kafka_key("pin"), b""), Put(member_key("a"), b""), Put(LEVEL, b"2"))
    assert level_needed(other, INVENTED) == FIRST_LEVEL
    assert level_needed((*other, Put(large_change_key("1"), b"")), INVENTED) == 2
    assert level_needed((Delete(large_change_key("1")),), INVENTED) == FIRST_LEVEL
    assert level_needed((), INVENTED) == FIRST_LEVEL


def test_the_highest_supported_level_is_that_of_the_server_that_is_furthest_behind() -> None:
    assert highest_supported({"a": 3, "b": 2, "c": 3}) == 2
    assert highest_supported({}) == FIRST_LEVEL


def test_a_refusal_names_who_lacks_the_level_and_nobody_else() -> None:
    refuse_unfinalized(2, 2, {"old": 1})
    with pytest.raises(LevelNotFinalized) as refused:
        refuse_unfinalized(2, 1, {"la-2": 1, "la-1": 2, "la-3": 1})
    assert "server la-2 supports 1, server la-3 supports 1" in refused.value.message
    assert "la-1" not in refused.value.message
    assert refused.value.metadata == {"needed": "2", "finalized": "1", "lacking": "la-2 la-3"}


def test_where_all_support_it_the_refusal_says_what_to_say() -> None:
    with pytest.raises(LevelNotFinalized, match="kdir features finalize"):
        refuse_unfinalized(2, 1, {"la-1": 2})


_THREE = {number: FeatureLevel(number, f"level-{number}") for number in (1, 2, 3)}


def test_a_level_is_finalized_only_where_every_live_server_has_it() -> None:
    assert level_to_finalize(2, 1, {"a": 2, "b": 3}, _THREE) == 2
    with pytest.raises(LevelNotFinalized, match=r"level 3 cannot.*: server a supports 2"):
        level_to_finalize(3, 1, {"a": 2, "b": 3}, _THREE)
    assert level_to_finalize(0, 1, {"a": 2, "b": 3}, _THREE) == 2
    with pytest.raises(InvalidArgument, match="levels never go down"):
        level_to_finalize(1, 2, {"a": 2, "b": 3}, _THREE)
