"""Guards, atomicity, order, limits."""

import threading

import pytest

from directory.store.base import (
    Committed,
    Conflict,
    Delete,
    Guard,
    KeyEquals,
    Put,
    Store,
    Transaction,
    UnchangedSince,
)
from tests.conformance.store.places import Place, output_of, say_go, start_worker
from tests.conformance.store.reading import everything, put, remove


def test_a_new_store_is_empty_at_revision_zero(store: Store) -> None:
    loading = store.load()
    assert (loading.revision, loading.commit_id, list(loading.pages())) == (0, "", [])


def test_each_commit_gets_the_next_revision_and_a_commit_id_of_its_own(store: Store) -> None:
    done = [put(store, (b"a", b"%d" % n)) for n in range(20)]
    revisions = [commit.revision for commit in done]
    assert revisions == sorted(set(revisions))
    assert len({commit.commit_id for commit in done}) == 20
    assert store.load().revision == revisions[-1]
    assert store.load().commit_id == done[-1].commit_id


@pytest.mark.parametrize(
    ("guard", "holds"),
    [
        (KeyEquals(b"there", b"1"), True),
        (KeyEquals(b"there", b"2"), False),
        (KeyEquals(b"there", b""), False),
        (KeyEquals(b"there", None), False),
        (KeyEquals(b"empty", b""), True),
        (KeyEquals(b"empty", None), False),
        (KeyEquals(b"missing", None), True),
        (KeyEquals(b"missing", b""), False),
        (KeyEquals(b"removed", None), True),
        (KeyEquals(b"removed", b"1"), False),
    ],
)
def test_key_is(store: Store, guard: Guard, holds: bool) -> None:
    put(store, (b"there", b"1"), (b"empty", b""), (b"removed", b"1"))
    before = remove(store, b"removed")
    done = store.commit(Transaction((guard,), (Put(b"new", b"x"),)))
    if holds:
        assert isinstance(done, Committed)
        assert everything(store)[b"new"] == b"x"
    else:
        assert done == Conflict(guard, before.revision)
        assert b"new" not in everything(store)


def test_nothing_newer_sees_writes_under_its_prefix_only(store: Store) -> None:
    base = put(store, (b"d/1/a", b"1"), (b"d/2/a", b"1"))
    guard = UnchangedSince(b"d/1/", base.revision)
    put(store, (b"d/2/b", b"1"), (b"d/1", b"1"), (b"d/10", b"1"))
    assert isinstance(store.commit(Transaction((guard,), ())), Committed)
    newer = put(store, (b"d/1/b", b"1"))
    done = store.commit(Transaction((guard,), (Put(b"x", b""),)))
    assert isinstance(done, Conflict)
    assert done.guard == guard
    assert done.revision >= newer.revision
    assert b"x" not in everything(store)
    guard = UnchangedSince(b"d/1/", done.revision)
    assert isinstance(store.commit(Transaction((guard,), ())), Committed)


def test_nothing_newer_sees_a_key_that_was_written_again(store: Store) -> None:
    base = put(store, (b"d/a", b"1"))
    put(store, (b"d/a", b"1"))
    guard = UnchangedSince(b"d/", base.revision)
    assert isinstance(store.commit(Transaction((guard,), ())), Conflict)


def test_nothing_newer_than_a_revision_that_never_was_does_not_hold(store: Store) -> None:
    base = put(store, (b"d/a", b"1"))
    guard = UnchangedSince(b"d/", base.revision + 1)
    assert isinstance(store.commit(Transaction((guard,), ())), Conflict)


def test_nothing_newer_does_not_count_removals(store: Store) -> None:
    base = put(store, (b"d/a", b"1"))
    put(store, (b"d/b", b"1"))
    remove(store, b"d/a", b"d/b")
    guard = UnchangedSince(b"d/", base.revision)
    assert isinstance(store.commit(Transaction((guard,), ())), Committed)


@pytest.mark.parametrize("prefix", [b"\xff", b"\xff\xff", b"a\xff", b"\x00", b""])
def test_prefixes_at_the_edges_of_the_key_space(store: Store, prefix: bytes) -> None:
    base = put(store, (b"before", b""))
    inside, outside = prefix + b"\xff\x00", b"b" if prefix != b"" else None
    if outside is not None:
        put(store, (outside, b""))
        guard = UnchangedSince(prefix, base.revision)
        assert isinstance(store.commit(Transaction((guard,), ())), Committed)
        assert everything(store, [prefix]) == {}
    put(store, (inside, b"v"))
    guard = UnchangedSince(prefix, base.revision)
    assert isinstance(store.commit(Transaction((guard,), ())), Conflict)
    assert inside in everything(store, [prefix])
    assert inside in [row.key for row in store.read(prefix)]


def test_all_guards_must_hold_and_the_one_that_did_not_is_named(store: Store) -> None:
    put(store, (b"a", b"1"))
    good, bad = KeyEquals(b"a", b"1"), KeyEquals(b"b", b"1")
    done = store.commit(Transaction((good, bad), (Put(b"c", b""), Delete(b"a"))))
    assert isinstance(done, Conflict)
    assert done.guard == bad
    assert everything(store) == {b"a": b"1"}


def test_a_conflict_takes_no_revision(store: Store) -> None:
    before = put(store, (b"a", b"1"))
    store.commit(Transaction((KeyEquals(b"a", None),), (Put(b"a", b"2"),)))
    assert store.load().revision == before.revision


def test_removing_what_is_not_there_is_no_error(store: Store) -> None:
    remove(store, b"never")
    assert everything(store) == {}


def test_a_key_written_twice_is_refused_and_nothing_happens(store: Store) -> None:
    with pytest.raises(ValueError, match="twice"):
        store.commit(Transaction((), (Put(b"k", b"1"), Put(b"other", b""), Delete(b"k"))))
    assert everything(store) == {}


def test_S9_what_exceeds_the_limits_is_refused_naming_them(store: Store) -> None:
    limits = store.limits
    most = tuple(Put(b"%d" % n, b"") for n in range(limits.max_writes))
    assert isinstance(store.commit(Transaction((), most)), Committed)
    with pytest.raises(ValueError, match=str(limits.max_writes)):
        store.commit(Transaction((), (*most, Put(b"x", b""))))
    guards = tuple(KeyEquals(b"no/%d" % n, None) for n in range(limits.max_guards or 1))
    if limits.max_guards is not None:  # counted apart: as many of each
        assert isinstance(store.commit(Transaction(guards, most)), Committed)
        guards = (*guards, KeyEquals(b"no/more", None))
    with pytest.raises(ValueError, match=str(limits.max_guards or limits.max_writes)):
        store.commit(Transaction(guards, most))
    largest = Put(b"big", b"x" * (limits.max_bytes - 3))
    assert isinstance(store.commit(Transaction((), (largest,))), Committed)
    big = b"x" * (limits.max_bytes + 1)
    with pytest.raises(ValueError, match=str(limits.max_bytes)):
        store.commit(Transaction((), (Put(b"too big", big),)))
    assert b"too big" not in everything(store)
    assert everything(store)[b"big"] == largest.value


def test_binary_keys_and_values_come_back_as_they_were(store: Store) -> None:
    rows = {bytes([n, 0, 255 - n]): bytes(range(n, 256)) for n in range(0, 256, 5)}
    put(store, *rows.items())
    assert everything(store) == rows


def test_S18_of_threads_that_compare_and_set_one_key_exactly_one_wins(store: Store) -> None:
    put(store, (b"k", b"-"))
    outcomes: dict[str, Committed | Conflict] = {}
    start = threading.Barrier(8)

    def compete(name: str) -> None:
        start.wait()
        writes = (Put(b"k", name.encode()),)
        outcomes[name] = store.commit(Transaction((KeyEquals(b"k", b"-"),), writes), 30)

    threads = [threading.Thread(target=compete, args=(f"t{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = {name for name, done in outcomes.items() if isinstance(done, Committed)}
    assert len(won) == 1
    assert everything(store)[b"k"].decode() in won
    lost = [done for done in outcomes.values() if isinstance(done, Conflict)]
    assert all(done.revision == store.load().revision for done in lost)


def test_S18_of_processes_that_make_one_key_exactly_one_wins(place: Place, store: Store) -> None:
    rounds = 150
    workers = {name: start_worker(place, "race", name, str(rounds)) for name in ("one", "two")}
    for worker in workers.values():
        assert output_of(worker).readline() == "ready\n"
    for worker in workers.values():
        say_go(worker)
    won: dict[str, set[int]] = {name: set() for name in workers}
    for name, worker in workers.items():
        for line in output_of(worker):
            number, outcome = line.split()
            if outcome == "won":
                won[name].add(int(number))
        assert worker.wait(30) == 0
    assert won["one"] | won["two"] == set(range(rounds))
    assert not won["one"] & won["two"]
    owners = everything(store, [b"race/"])
    assert {int(k[5:]) for k, v in owners.items() if v == b"one"} == won["one"]


def test_many_threads_lose_no_increment(store: Store) -> None:
    put(store, (b"n", b"0"))

    def increment() -> None:
        for _ in range(20):
            while True:
                (row,) = store.read(b"n")
                guard = KeyEquals(b"n", row.value)
                writes = (Put(b"n", b"%d" % (int(row.value) + 1)),)
                if isinstance(store.commit(Transaction((guard,), writes), 30), Committed):
                    break

    threads = [threading.Thread(target=increment) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert everything(store) == {b"n": b"80"}
