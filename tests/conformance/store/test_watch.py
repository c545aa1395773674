"""Watching: ordered, unique, atomic, reliable, resumable."""

import threading

import pytest

from directory.store.base import Delete, HistoryCompacted, Put, Store, Transaction
from tests.conformance.store.places import Place, output_of, say_go, start_worker
from tests.conformance.store.reading import (
    apply,
    everything,
    following,
    put,
    put_many,
    remove,
    until,
)


def test_a_commit_arrives_whole_with_its_revision_and_commit_id(store: Store) -> None:
    put(store, (b"old", b""))
    with following(store) as watch:
        done = store.commit(Transaction((), (Put(b"a", b"1"), Put(b"b", b"2"), Delete(b"old"))))
        last = until(watch, done.revision)[-1]
        assert (last.revision, last.commit_id) == (done.revision, getattr(done, "commit_id", None))
        assert set(last.writes) == {Put(b"a", b"1"), Put(b"b", b"2"), Delete(b"old")}


def test_nothing_to_report_is_an_empty_answer(store: Store) -> None:
    with following(store) as watch:
        assert list(watch.next(0)) == []
        assert list(watch.next(0.05)) == []


def test_resuming_anywhere_leaves_no_gap_and_repeats_nothing(store: Store) -> None:
    done = [put(store, (b"k", b"%d" % n)) for n in range(30)]
    for place in (0, 1, 17, 28, 29):
        with following(store, done[place].revision, done[place].commit_id) as watch:
            expected = [commit.revision for commit in done[place + 1 :]]
            seen = until(watch, done[-1].revision) if expected else []
            assert [change.revision for change in seen] == expected
            assert list(watch.next(0)) == []


def test_another_commit_id_at_the_revision_is_history_gone(store: Store) -> None:
    done = put(store, (b"k", b"1"))
    put(store, (b"k", b"2"))
    with pytest.raises(HistoryCompacted), following(store, done.revision, "other") as watch:
        watch.next(1)


def test_a_revision_that_never_was_is_history_gone(store: Store) -> None:
    done = put(store, (b"k", b"1"))
    with (
        pytest.raises(HistoryCompacted),
        following(store, done.revision + 5, done.commit_id) as watch,
    ):
        watch.next(1)


def test_S2_what_is_no_longer_kept_is_history_gone(place: Place, store: Store) -> None:
    done = [put(store, (b"k%d" % n, b"")) for n in range(10)]
    place.forget_history()
    with (
        pytest.raises(HistoryCompacted),
        following(store, done[2].revision, done[2].commit_id) as watch,
    ):
        watch.next(1)
    with pytest.raises(HistoryCompacted), following(store, 0, "") as watch:
        watch.next(1)
    loading = store.load()
    with following(store, loading.revision, loading.commit_id) as watch:
        later = put(store, (b"later", b""))
        assert [change.revision for change in until(watch, later.revision)] == [later.revision]


def test_S2_a_watch_behind_the_compacted_history_is_ended(place: Place, store: Store) -> None:
    with following(store) as watch:
        for n in range(10):
            put(store, (b"k%d" % n, b""))
        place.forget_history()
        # What is forgotten may be held in memory still.
        with pytest.raises(HistoryCompacted):
            until(watch, store.load().revision + 1)


def test_commits_of_another_process_arrive(place: Place, store: Store) -> None:
    with following(store) as watch:
        worker = start_worker(place, "write", "far")
        try:
            assert output_of(worker).readline() == "ready\n"
            say_go(worker)
            reported = [output_of(worker).readline().split() for _ in range(50)]
            seen = until(watch, int(reported[-1][1]))
        finally:
            worker.kill()
            worker.wait()
    by_revision = {change.revision: change.commit_id for change in seen}
    assert all(by_revision[int(revision)] == commit_id for _, revision, commit_id in reported)
    assert sorted(by_revision) == [change.revision for change in seen]


def test_commits_through_another_store_object_arrive(place: Place, store: Store) -> None:
    with following(store) as watch:
        done = put(place.open(), (b"k", b"v"))
        assert until(watch, done.revision)[-1].writes == (Put(b"k", b"v"),)


def test_S1_followers_of_concurrent_writers_hold_what_a_fresh_load_holds(place: Place) -> None:
    stores = [place.open() for _ in range(3)]

    def write(number: int) -> None:
        for n in range(60):
            put(stores[number], (b"w%d/%d" % (number, n % 7), b"%d" % n), (b"shared", b"%d" % n))
            if n % 5 == 0:
                remove(stores[number], b"w%d/%d" % (number, n % 3))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    with following(stores[0]) as here, following(stores[1]) as there:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        final = stores[2].load()
        rows = dict(row for page in final.pages() for row in page)
        for watch in (here, there):
            changes = until(watch, final.revision)
            revisions = [change.revision for change in changes]
            assert revisions == sorted(set(revisions))
            assert apply({}, changes) == rows


def test_a_large_backlog_arrives_whole(store: Store) -> None:
    put_many(store, ((b"%d/%d" % (n % 40, n), b"x" * 50) for n in range(40_000)))
    last = put(store, (b"end", b""))
    with following(store) as watch:
        assert apply({}, until(watch, last.revision)) == everything(store)


def test_closing_ends_a_waiting_next(store: Store) -> None:
    watch = store.watch(0, "")
    answer: list[object] = []
    thread = threading.Thread(target=lambda: answer.append(list(watch.next(60))))
    thread.start()
    watch.close()
    thread.join(30)
    assert not thread.is_alive()
    assert answer == [[]]


def test_two_watches_do_not_disturb_each_other(store: Store) -> None:
    with following(store) as slow:
        first = put(store, (b"a", b"1"))
        with following(store) as quick:
            last = put(store, (b"b", b"2"))
            assert len(until(quick, last.revision)) == 2
        assert [c.revision for c in until(slow, last.revision)] == [first.revision, last.revision]
