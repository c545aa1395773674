"""The newest revision counts every commit that anybody was answered before it was asked for."""

import threading
from contextlib import closing

import pytest

from directory.store.addresses import open_store
from directory.store.base import KeyEquals, Put, Store, StoreUnreachable, Transaction
from tests.conformance.store.places import Place, SqlitePlace, output_of, say_go, start_worker
from tests.conformance.store.reading import following, put, remove, until

ROUNDS = 50


def test_a_new_store_is_at_zero(store: Store) -> None:
    assert store.newest_revision() == 0


def test_it_is_that_of_each_commit_as_soon_as_it_is_answered(place: Place) -> None:
    one, other = place.open(), place.open()
    for number in range(ROUNDS):
        revision = put(one, (b"a", b"%d" % number)).revision
        assert other.newest_revision() == one.newest_revision() == revision
        revision = remove(other, b"a").revision
        assert one.newest_revision() == other.newest_revision() == revision


def test_what_is_not_made_does_not_count(store: Store) -> None:
    before = put(store, (b"a", b"1")).revision
    store.commit(Transaction((KeyEquals(b"a", b"2"),), (Put(b"a", b"3"),)))
    assert store.newest_revision() == before


def test_a_follower_comes_to_it(place: Place) -> None:
    one, other = place.open(), place.open()
    with following(other) as watch:
        for number in range(3):
            put(one, (b"a", b"%d" % number))
        newest = other.newest_revision()
        assert until(watch, newest)[-1].revision == newest
    assert other.load().revision == newest


def test_it_counts_what_another_process_was_answered(place: Place) -> None:
    store = place.open()
    worker = start_worker(place, "write", "other")
    try:
        output = output_of(worker)
        assert output.readline() == "ready\n"
        say_go(worker)
        for _ in range(ROUNDS):
            _, revision, _ = output.readline().split()
            assert store.newest_revision() >= int(revision)
    finally:
        worker.kill()
        worker.wait()


def test_it_never_goes_back_while_others_commit(place: Place) -> None:
    one, other = place.open(), place.open()
    put(one, (b"a", b""))
    acknowledged = [0]

    def commit() -> None:
        for number in range(ROUNDS):
            acknowledged[0] = put(one, (b"a", b"%d" % number)).revision

    thread = threading.Thread(target=commit)
    thread.start()
    seen = 0
    while thread.is_alive():
        least = max(seen, acknowledged[0])
        seen = other.newest_revision()
        assert seen >= least
    thread.join()


def test_a_sealed_store_says_it_too(place: Place) -> None:
    one, other = place.open(), place.open()
    revision = put(one, (b"a", b"1")).revision
    one.seal("for a test")
    assert other.newest_revision() == one.newest_revision() == revision


def test_after_a_restore_it_is_beyond_all_that_was_seen(restorable_place: Place) -> None:
    place = restorable_place
    with closing(open_store(place.address, "la")) as store:
        put(store, (b"a", b"1"))
        place.backup()
        seen = put(store, (b"a", b"2")).revision
    place.restore()
    assert place.open().newest_revision() > seen


def test_a_store_that_cannot_be_read_is_away(place: Place) -> None:
    store = place.open()
    put(store, (b"a", b"1"))
    if isinstance(place, SqlitePlace):
        place.path.unlink()
    store.close()
    with pytest.raises(StoreUnreachable):
        store.newest_revision(1.0)
