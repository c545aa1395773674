"""The checker of the six watch guarantees, fed with records that are right and that are wrong."""

from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from directory.store.base import Delete, Put, Write
from tests.fault.etcd.record import (
    Bookmark,
    Entry,
    Loaded,
    Opened,
    Took,
    truth_of,
    violations,
)


def writes(revision: int) -> tuple[Write, ...]:
    return (Put(b"a%d" % (revision % 3), b"%d" % revision), Delete(b"b"))


TRUTH = {revision: frozenset(writes(revision)) for revision in (3, 4, 7, 8, 9, 12, 20)}


def took(*revisions: int) -> list[Entry]:
    return [Took(revision, writes(revision)) for revision in revisions]


RIGHT: list[Entry] = [
    Opened(3),
    Loaded(3),
    *took(4, 7),
    Bookmark(7),
    *took(8),
    Bookmark(8),
    Opened(11),  # it was reloaded, and 9 is in what was loaded
    Loaded(11),
    Bookmark(11),
    *took(12),
    Bookmark(15),
    *took(20),
]
WRONG: list[tuple[str, list[Entry]]] = [
    ("Ordered", [Opened(3), Loaded(3), *took(4, 8, 7)]),
    ("Ordered", [Opened(8), Loaded(8), *took(9), Opened(4), Loaded(4)]),
    ("Unique", [Opened(3), Loaded(3), *took(4, 7, 7, 8)]),
    ("Unique", [Opened(3), Loaded(3), *took(4, 7), Opened(3), Loaded(3), *took(4)]),
    (
        "Atomic",
        [Opened(3), Loaded(3), Took(4, writes(4)[:1]), Took(4, writes(4)[1:]), *took(7)],
    ),
    ("Reliable", [Opened(3), Loaded(3), *took(4, 8, 9)]),
    ("Reliable", [Opened(3), Loaded(3), *took(4, 5, 7)]),
    ("Reliable", took(4, 7)),
    ("Resumable", [Opened(3), Loaded(3), *took(4), Opened(4), *took(8)]),
    ("Resumable", [Opened(3), Loaded(3), *took(4), Opened(4), *took(4, 7)]),
    ("Bookmarkable", [Opened(3), Loaded(3), *took(4), Bookmark(9), *took(7, 8, 9)]),
    ("Bookmarkable", [Opened(3), Loaded(3), *took(4), Bookmark(7)]),
    ("Bookmarkable", [Opened(3), Loaded(8), *took(8, 9)]),
]


def breaches(entries: Sequence[Entry]) -> set[str]:
    """Returns the guarantees that were breached."""
    return {text.partition(":")[0] for text in violations(entries, TRUTH)}


def test_a_right_record_breaches_nothing() -> None:
    assert breaches(RIGHT) == set()
    for length in range(len(RIGHT)):
        assert breaches(RIGHT[:length]) == set()


@pytest.mark.parametrize(("guarantee", "entries"), WRONG)
def test_each_guarantee_is_breached_by_a_wrong_record(guarantee: str, entries: list[Entry]) -> None:
    assert guarantee in breaches(entries)


@given(st.data())
def test_no_step_can_be_left_out_doubled_or_exchanged_unnoticed(data: st.DataObject) -> None:
    steps = [index for index, entry in enumerate(RIGHT) if isinstance(entry, Took)]
    wrong = list(RIGHT)
    index = data.draw(st.sampled_from(steps))
    match data.draw(st.sampled_from(["leave out", "double", "exchange", "another revision"])):
        case "leave out":
            assume(index != len(RIGHT) - 1)  # the end of a record may be cut off
            del wrong[index]
        case "double":
            wrong.insert(data.draw(st.integers(index + 1, len(wrong))), wrong[index])
        case "exchange":
            other = data.draw(st.sampled_from([one for one in steps if one != index]))
            wrong[index], wrong[other] = wrong[other], wrong[index]
        case _:
            wrong[index] = Took(data.draw(st.sampled_from([5, 10, 30])), writes(4))
    assert breaches(wrong)


@given(st.integers(0, 30), st.integers(0, len(RIGHT)))
def test_no_wrong_bookmark_passes(revision: int, place: int) -> None:
    wrong = [*RIGHT[:place], Bookmark(revision), *RIGHT[place:]]
    before = [one.revision for one in RIGHT[:place] if isinstance(one, Took | Loaded)]
    after = [one.revision for one in RIGHT[place:] if isinstance(one, Took)]
    given_out = max(before, default=0)
    missing = any(given_out < one <= revision for one in TRUTH)
    too_late = any(one <= revision for one in after)
    assert ("Bookmarkable" in breaches(wrong)) == (missing or too_late)


def test_clients_with_different_reports_are_found() -> None:
    one, two = took(4), [Took(4, writes(4)[:1])]
    assert truth_of([one, one], {}) == ({4: frozenset(writes(4))}, [])
    _, found = truth_of([one, two], {})
    assert [text.partition(":")[0] for text in found] == ["Atomic"]


def test_what_a_writer_was_answered_is_held_against_what_was_seen() -> None:
    committed = (Put(b"a", b"1"), Put(b"b", b"2"), Delete(b"gone"))
    seen = [Took(4, committed[:2])]
    assert truth_of([seen], {4: committed}) == ({4: frozenset(committed[:2])}, [])
    truth, _ = truth_of([seen], {4: committed, 5: committed})
    assert set(truth) == {4, 5}
    for wrong in (committed[:1], (*committed, Put(b"c", b"3"))):
        _, found = truth_of([[Took(4, wrong)]], {4: committed})
        assert found
