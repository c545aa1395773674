"""The follower without I/O: whatever comes, what it gives out is a prefix of the truth."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from directory.store.base import FILLED_FROM, CommittedWrites, Delete, Put
from directory.store.etcd.watch_state import (
    COMMIT,
    IDENTITY,
    ROWS,
    Event,
    Follower,
    ReloadRequired,
    Response,
    Step,
    StreamLagging,
)
from tests.fault.etcd.model import (
    ETCD,
    INCARNATION,
    History,
    Revision,
    identity_value,
    read_identity,
    whole,
)

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
WRITES = st.lists(
    st.one_of(st.builds(Put, KEYS, st.binary(max_size=3)), st.builds(Delete, KEYS)),
    max_size=4,
    unique_by=lambda write: write.key,
)


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History()
    for writes in draw(st.lists(st.one_of(st.none(), WRITES), min_size=1, max_size=12)):
        if writes is None:
            history.foreign()
        else:
            history.commit(*writes)
    return history


def follower(history: History, after: int = 0) -> Follower:
    """Returns one that was at a revision, and has looked."""
    head = history.head(after) if after else None
    made = Follower(after, head.commit_id if head else "", INCARNATION, read_identity)
    look(made, history)
    return made


def look(made: Follower, history: History) -> None:
    found = made.examine(history.head())
    if isinstance(found, int):
        found = made.examine_past(history.head(found))
    assert found is None
    made.begin()


def fragments(
    data: st.DataObject, history: History, revisions: Sequence[Revision]
) -> list[Response]:
    """Returns what etcd may make of these revisions: whole responses, and some cut into fragments
    at any event.
    """
    responses: list[Response] = []
    left = list(revisions)
    while left:
        count = data.draw(st.integers(1, len(left)))
        batch, left = left[:count], left[count:]
        response = whole(history, batch)
        events = response.events
        cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(events) - 1)), max_size=4)))
        edges = [0, *(cut for cut in cuts if cut < len(events)), len(events)]
        parts = [
            replace(response, events=events[begin:end], fragment=True)
            for begin, end in itertools.pairwise(edges)
        ]
        responses += [*parts[:-1], replace(parts[-1], fragment=False)]
    return responses


@given(histories(), st.data())
def test_S8_however_it_is_cut_each_revision_comes_whole_once_and_in_order(
    history: History, data: st.DataObject
) -> None:
    after = data.draw(st.sampled_from([0, *(one.number for one in history.after(1))]))
    made = follower(history, after)
    seen: list[CommittedWrites] = []
    for response in fragments(data, history, history.after(made.start - 1)):
        step = made.on_response(response)
        assert step.verdict is None
        seen += step.changes
    assert seen == history.changes(after)
    assert made.has_seen(history.head())
    assert made.start == history.now + 1


@given(histories(), st.data())
def test_cut_off_anywhere_it_resumes_without_gap_or_repeat(
    history: History, data: st.DataObject
) -> None:
    made = follower(history)
    seen: list[CommittedWrites] = []
    for _ in range(data.draw(st.integers(0, 4))):
        responses = fragments(data, history, history.after(made.start - 1))
        for response in responses[: data.draw(st.integers(0, len(responses)))]:
            seen += made.on_response(response).changes
        if data.draw(st.booleans()):
            history.foreign()
        if data.draw(st.booleans()):
            history.commit(Put(b"late", b""))
        look(made, history)
    for response in fragments(data, history, history.after(made.start - 1)):
        seen += made.on_response(response).changes
    assert seen == history.changes(0)


@given(histories(), st.data())
def test_S10_what_comes_again_is_ignored(history: History, data: st.DataObject) -> None:
    made = follower(history)
    revisions = history.after(made.start - 1)
    seen: list[CommittedWrites] = []
    for index in range(len(revisions)):
        seen += made.on_response(whole(history, revisions[: index + 1])).changes
        again = data.draw(st.lists(st.sampled_from(revisions[: index + 1]), max_size=3))
        step = made.on_response(whole(history, again))
        assert step == Step()
    assert seen == history.changes(0)


@given(histories(), st.data())
def test_S10_events_that_are_lost_or_out_of_order_never_pass_as_the_truth(
    history: History, data: st.DataObject
) -> None:
    """Whole revisions are lost, doubled and shuffled: what is given out is a prefix of the truth,
    and what is missing is noticed at the next commit or by the next look.
    """
    made = follower(history)
    revisions = history.after(made.start - 1)
    truth = history.changes(0)
    reported = data.draw(st.lists(st.sampled_from(revisions), max_size=12)) if revisions else []
    seen: list[CommittedWrites] = []
    for revision in reported:
        step = made.on_response(whole(history, [revision]))
        seen += step.changes
        if step.verdict is not None:
            assert isinstance(step.verdict, StreamLagging)
            break
    assert seen == truth[: len(seen)]
    assert made.has_seen(history.head()) == (len(seen) == len(truth))


def test_S10_events_lost_once_are_asked_for_again_lost_twice_it_loads_again() -> None:
    history = History()
    first, second, third = (history.commit(Put(b"k%d" % n, b"")) for n in range(3))
    made = follower(history)
    step = made.on_response(whole(history, [first, third]))
    assert step.changes == (first.changes,)
    assert isinstance(step.verdict, StreamLagging)
    assert made.begin() == second.number
    step = made.on_response(whole(history, [third]))
    assert isinstance(step.verdict, ReloadRequired)
    assert step.verdict.alarm


def test_S10_a_lower_revision_than_ours_is_not_believed() -> None:
    history = History()
    last = [history.commit(Put(b"k", b"%d" % n)) for n in range(3)][-1]
    made = follower(history)
    made.on_response(whole(history, history.after(2)))
    step = made.on_response(Response(ETCD, last.number - 1, created=True))
    assert isinstance(step.verdict, StreamLagging)
    old = History()
    old.commit(Put(b"k", b"0"))
    found = made.examine(old.head())
    assert isinstance(found, ReloadRequired)
    assert found.alarm


def test_S10_another_etcd_cluster_is_an_alarm() -> None:
    history = History()
    history.commit(Put(b"k", b"v"))
    made = follower(history)
    step = made.on_response(Response(ETCD + 1, history.now, created=True))
    assert isinstance(step.verdict, ReloadRequired)
    assert step.verdict.alarm
    found = made.examine(replace(history.head(), etcd_cluster=ETCD + 1))
    assert isinstance(found, ReloadRequired)


def test_S11_a_store_that_went_back_and_on_is_another_commit() -> None:
    history = History()
    history.commit(Put(b"k", b"1"))
    position = history.commit(Put(b"k", b"2"))
    made = follower(history)
    made.on_response(whole(history, history.after(2)))
    restored = History()
    restored.commit(Put(b"k", b"1"))
    for _ in range(4):
        restored.commits += 10  # other ids
        restored.commit(Put(b"k", b"other"))
    asked = made.examine(restored.head())
    assert asked == position.number
    found = made.examine_past(restored.head(position.number))
    assert isinstance(found, ReloadRequired)
    assert found.alarm


@given(histories(), st.integers(0, 50))
def test_S12_progress_ahead_of_its_events_skips_nothing(history: History, ahead: int) -> None:
    made = follower(history)
    revisions = history.after(made.start - 1)
    step = made.on_response(Response(ETCD, history.now + ahead))
    assert step == Step()
    assert made.begin() <= (revisions[0].number if revisions else history.now + 1)
    step = made.on_response(replace(whole(history, revisions), revision=history.now + ahead))
    assert list(step.changes) == history.changes(0)


def test_S12_what_others_wrote_and_compacted_is_not_asked_for() -> None:
    history = History()
    history.commit(Put(b"k", b"v"))
    made = follower(history)
    made.on_response(whole(history, history.after(2)))
    for _ in range(5):
        history.foreign()
    assert made.has_seen(history.head())
    assert made.start == history.now + 1
    later = history.commit(Put(b"k", b"w"))
    assert made.examine(history.head()) == later.number - 1
    assert not made.has_seen(history.head())
    assert made.start == later.number


def test_S2_what_is_compacted_is_gone() -> None:
    history = History()
    for n in range(4):
        history.commit(Put(b"k", b"%d" % n))
    assert isinstance(follower(history, 4).examine_past(None), ReloadRequired)


def test_an_answer_from_before_a_seal_does_not_take_it_back() -> None:
    """It was under way while the stream sent the seal."""
    history = History()
    history.commit(Put(b"k", b""))
    made = follower(history)
    asked = history.head()
    sealed = history.commit(identity=identity_value(sealed="moved to x"))
    assert made.on_response(whole(history, [*history.after(0)])).verdict is None
    assert sealed.number == history.now
    assert made.other_incarnation(asked, asked.revision) is None
    assert made.identity.sealed == "moved to x"


def test_a_new_incarnation_of_the_store_is_gone_and_a_seal_is_reported() -> None:
    history = History()
    sealed = history.commit(identity=identity_value(sealed="moved to x"))
    made = follower(history)
    step = made.on_response(whole(history, [sealed]))
    assert step.verdict is None
    assert made.identity.sealed == "moved to x"
    for value in (identity_value("life-2"), identity_value(sealed=f"{FILLED_FROM}x"), b"garbage"):
        begun = history.commit(Put(b"new", b""), identity=value)
        step = made.on_response(whole(history, [begun]))
        assert isinstance(step.verdict, ReloadRequired)
        assert step.changes == ()
        history.revisions.pop()
        history.commits -= 1
        made = follower(history)


def test_keys_that_were_removed_under_us_are_an_alarm() -> None:
    for key in (COMMIT, IDENTITY):
        history = History()
        history.commit(Put(b"k", b"v"))
        made = follower(history)
        removed = history.add((Event(0, key, None, 0), Event(0, ROWS + b"k", None, 0)))
        step = made.on_response(whole(history, [*history.after(2)[:1], removed]))
        assert isinstance(step.verdict, ReloadRequired)
        assert step.verdict.alarm
        assert [change.revision for change in step.changes] == [3]
    made = Follower(0, "", INCARNATION, read_identity)
    assert isinstance(made.examine(replace(History().head(), identity=None)), ReloadRequired)
