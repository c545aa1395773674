"""Sealed stores take no changes from anybody; filled ones are whole or nobody reads them."""

import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from directory.maintenance.event_index import EventIndex
from directory.namespace.command import EntryChange
from directory.namespace.entry import Directory, Kind
from directory.namespace.keys import ENTRY, entry_key, event_key
from directory.namespace.snapshot import Snapshot
from directory.store.addresses import open_store
from directory.store.base import (
    FILLED_FROM,
    MOVED_TO,
    Conflict,
    HistoryCompacted,
    Put,
    Store,
    StoreChanged,
    StoreIsSealed,
    StoreUnreachable,
    Transaction,
    UnchangedSince,
)
from directory.store.event_rows import new_change_id, pack
from directory.store.replica import AppliedCommit, Replica, ReplicaState
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import NotReady
from resolver.path import Path
from tests.conformance.store.places import Place, output_of, say_go, start_worker
from tests.conformance.store.reading import everything, following, put
from tests.support.federation import eventually

FILLING = f"{FILLED_FROM}a test"
CODEC = ProtoCodec()


def change(number: int) -> EntryChange:
    """Returns one that a row of events can hold."""
    path = Path.parse(f"/la/{number}")
    return EntryChange(kind=Kind.DIRECTORY, entry_id=10 + number, parent_id=1, path=path)


def directory(name: str, entry_id: int) -> tuple[bytes, bytes]:
    """Returns a row of the tree."""
    return entry_key(1, Kind.DIRECTORY, name), CODEC.encode(Directory(entry_id=entry_id))


@contextmanager
def replica_of(store: Store) -> Iterator[Replica]:
    replica = Replica(store, CODEC)
    replica.start()
    try:
        yield replica
    finally:
        replica.stop()


def names(replica: Replica) -> set[str]:
    return set(replica.snapshot.root.containers)


def serving(replica: Replica) -> bool:
    return replica.state is ReplicaState.SERVING


def test_a_sealed_store_takes_no_changes_from_any_process(place: Place, store: Store) -> None:
    other = place.open()
    worker = start_worker(place, "write", "far")
    assert output_of(worker).readline() == "ready\n"
    put(store, (b"k", b"v"))
    say_go(worker)
    for _ in range(20):
        output_of(worker).readline()
    store.seal("being looked at")
    for one in (store, other):
        with pytest.raises(StoreIsSealed, match="being looked at"):
            put(one, (b"k", b"w"))
    reported = [line for line in output_of(worker) if line != "sealed\n"]
    assert worker.wait() == 0  # it was refused, and said so
    rows = everything(other)
    assert rows[b"k"] == b"v"
    if reported:
        assert rows[b"last/far"] == reported[-1].split()[0].encode()


def test_a_new_store_can_be_sealed_from_its_first_moment(place: Place) -> None:
    with closing(open_store(place.address, "la", "kc-aaaaaaaaaa", FILLING)) as store:
        assert store.identity.sealed == place.open().identity.sealed == FILLING
        store.clear()
        store.fill([(b"k", b"v")])
        store.unseal()
    with closing(open_store(place.address, "la", "kc-aaaaaaaaaa", "another reason")) as again:
        assert again.identity.sealed == "", "it is not new"
        assert everything(again) == {b"k": b"v"}


def test_nobody_is_elected_in_a_sealed_store(store: Store) -> None:
    store.seal("being looked at")
    with pytest.raises(StoreIsSealed):
        store.elect("publisher", "one")
    with pytest.raises(StoreIsSealed):
        store.create_ephemeral(b"m/one", b"")
    assert everything(store) == {}


def test_a_seal_survives_every_process_and_its_reason_can_be_replaced(
    place: Place, store: Store
) -> None:
    put(store, (b"k", b"v"))
    store.seal("being moved to elsewhere")
    assert store.identity.sealed == "being moved to elsewhere"
    assert not store.identity.moved
    store.seal(f"{MOVED_TO}elsewhere")
    store.close()
    again = place.open()
    assert again.identity.sealed == "moved to elsewhere"
    assert again.identity.moved
    assert not again.identity.partial
    with pytest.raises(StoreIsSealed, match="moved to elsewhere"):
        put(again, (b"k", b"w"))
    assert everything(again) == {b"k": b"v"}


def test_who_watches_learns_of_a_seal(place: Place, store: Store) -> None:
    done = put(store, (b"k", b"v"))
    other = place.open()
    with following(other, done.revision, done.commit_id) as watch:
        assert not watch.next(0.1)
        store.seal("being looked at")

        def noticed() -> bool:
            try:
                assert not watch.next(0.05)
            except HistoryCompacted:
                other.refresh_identity()
            return other.identity.sealed == "being looked at"

        eventually(noticed)


def test_an_unsealed_store_begins_a_new_incarnation(place: Place, store: Store) -> None:
    incarnation = store.identity
    done = put(store, (b"k", b"v"))
    store.seal("being looked at")
    unsealed = store.unseal()
    assert unsealed.sealed == ""
    assert unsealed.incarnation != incarnation.incarnation
    assert (unsealed.cluster_id, unsealed.store_id) == (
        incarnation.cluster_id,
        incarnation.store_id,
    )
    assert store.identity == unsealed == place.open().identity
    assert everything(store) == {b"k": b"v"}
    with pytest.raises(HistoryCompacted), following(store, done.revision, done.commit_id) as watch:
        watch.next(1)
    # What was planned on the tree of the old life is not carried out.
    guard = UnchangedSince(b"", done.revision)
    assert isinstance(store.commit(Transaction((guard,), (Put(b"x", b""),))), Conflict)
    assert store.load().revision > done.revision
    put(store, (b"k", b"w"))


def test_to_unseal_what_is_not_sealed_changes_nothing(store: Store) -> None:
    incarnation = store.identity
    assert store.unseal() == incarnation


def test_a_seal_is_replaced_only_where_it_is_the_expected_one(place: Place, store: Store) -> None:
    other = place.open()
    store.seal("being looked at", expected="")
    with pytest.raises(StoreChanged, match="being looked at → expected none"):
        other.seal(FILLING, expected="")
    other.seal(FILLING, expected="being looked at")
    with pytest.raises(StoreChanged, match="expected being looked at"):
        store.seal("being looked at", expected="being looked at")
    with pytest.raises(StoreChanged, match="expected being looked at"):
        store.unseal(expected="being looked at")
    assert place.open().identity.sealed == FILLING
    assert store.unseal(expected=FILLING).sealed == ""
    with pytest.raises(StoreChanged, match="seal none → expected being filled"):
        other.unseal(expected=FILLING)


def test_a_store_is_unsealed_only_as_it_was_read_back(place: Place, store: Store) -> None:
    other = place.open()
    store.seal(FILLING)
    store.fill([(b"k", b"v")])
    read_back = store.load().revision
    other.seal(FILLING)
    other.clear()
    with pytest.raises(StoreChanged, match="another process fills it"):
        store.unseal(at=read_back)
    assert place.open().identity.partial
    other.fill([(b"k", b"w")])
    with pytest.raises(StoreChanged, match="another process fills it"):
        store.unseal(expected=FILLING, at=read_back)
    assert other.unseal(expected=FILLING, at=other.load().revision).sealed == ""
    assert everything(store) == {b"k": b"w"}


def test_only_a_store_that_is_sealed_for_it_is_emptied_or_filled(store: Store) -> None:
    put(store, (b"k", b"v"))
    for seal in ("", "being looked at", f"{MOVED_TO}elsewhere"):
        if seal:
            store.seal(seal)
        with pytest.raises(ValueError, match="not sealed"):
            store.clear()
        with pytest.raises(ValueError, match="not sealed"):
            store.fill([(b"a", b"")])
        with pytest.raises(ValueError, match="not sealed"):
            store.fill([])
    assert everything(store) == {b"k": b"v"}


def test_a_store_is_emptied_and_filled_as_often_as_it_takes(place: Place, store: Store) -> None:
    put(store, *((b"old/%d" % number, b"") for number in range(50)))
    store.seal(FILLING)
    rows = [(b"new/%05d" % number, b"v" * 100) for number in range(3_000)]
    for _ in range(2):
        store.clear()
        assert everything(store) == {}
        assert store.fill(rows) == len(rows)
        assert everything(store) == dict(rows)
    assert store.fill([]) == 0
    assert store.fill([(b"new/00000", b"changed")]) == 1
    with pytest.raises(StoreIsSealed):
        put(store, (b"k", b"v"))
    store.unseal()
    expected = {**dict(rows), b"new/00000": b"changed"}
    assert everything(place.open()) == expected
    # And it goes on as any store does.
    begin = store.load()
    with following(store, begin.revision, begin.commit_id) as watch:
        done = put(store, (b"new/00001", b"w"))
        (change,) = watch.next(10)
    assert change.revision == done.revision
    assert isinstance(change.writes[0], Put)


def test_a_row_that_no_transaction_could_hold_is_refused(store: Store) -> None:
    store.seal(FILLING)
    with pytest.raises(ValueError, match="huge"):
        store.fill([(b"small", b""), (b"huge", b"x" * (store.limits.max_bytes + 1))])


def test_who_watches_sees_nothing_of_a_filling(place: Place, store: Store) -> None:
    done = put(store, (b"k", b"v"))
    other = place.open()
    with following(other, done.revision, done.commit_id) as watch:
        assert not watch.next(0.1)
        store.seal(FILLING)
        store.clear()
        store.fill([(b"new", b"")])

        def gone() -> bool:
            try:
                assert not watch.next(0.05)
            except HistoryCompacted:
                return True
            return False

        eventually(gone)


def test_kill_9_in_the_middle_of_a_filling_is_finished_by_saying_it_again(
    place: Place, store: Store
) -> None:
    chance = random.Random(4)
    put(store, (b"old", b"v"))
    incarnation = store.identity.incarnation
    count = 4_000
    for round_number in range(4):
        worker = start_worker(place, "fill", "far", str(count))
        assert output_of(worker).readline() == "ready\n"
        say_go(worker)
        if round_number:
            for _ in range(chance.randrange(count // 100)):
                output_of(worker).readline()
        time.sleep(chance.uniform(0, 0.02))
        worker.kill()
        worker.wait()
        found = place.open()
        assert found.identity.partial
        with pytest.raises(StoreIsSealed):
            put(found, (b"old", b"w"))
    worker = start_worker(place, "fill", "far", str(count))
    say_go(worker)
    assert list(output_of(worker))[-1] == f"filled {count}\n"
    assert worker.wait() == 0
    assert store.unseal().incarnation != incarnation
    assert everything(store) == {b"far/%08d" % n: b"%d" % n for n in range(count)}


def test_a_running_server_serves_what_it_has_until_the_filled_store_is_whole(
    place: Place, store: Store
) -> None:
    put(store, directory("old", 10), directory("kept", 11))
    with replica_of(place.open()) as replica:
        eventually(lambda: serving(replica))
        first_incarnation = replica.snapshot.incarnation
        store.seal("being moved")
        eventually(lambda: replica.state is ReplicaState.STALE)
        assert replica.trouble.endswith("being moved")
        assert names(replica) == {"old", "kept"}
        store.seal(FILLING)
        store.clear()
        eventually(lambda: FILLED_FROM in replica.trouble)
        store.fill([directory("kept", 11)])
        with replica_of(place.open()) as late:  # a server that starts now
            eventually(lambda: FILLED_FROM in late.trouble)
            store.fill([directory("new", 12)])
            assert late.state is ReplicaState.LOADING
            with pytest.raises(NotReady):
                _ = late.snapshot
            assert replica.state is ReplicaState.STALE
            assert replica.age_seconds > 0
            assert names(replica) == {"old", "kept"}
            incarnation = store.unseal().incarnation
            assert incarnation != first_incarnation
            for one in (replica, late):
                eventually(lambda one=one: one.state is ReplicaState.SERVING)  # type: ignore[misc]
                eventually(lambda one=one: names(one) == {"kept", "new"})  # type: ignore[misc]
                assert one.snapshot.incarnation == incarnation
            done = put(store, directory("newer", 13))
            for one in (replica, late):
                assert names_at(one, done.revision) == {"kept", "new", "newer"}


def names_at(replica: Replica, revision: int) -> set[str]:
    return set(replica.wait_for(revision, 30).root.containers)


def test_the_history_that_was_filled_in_is_read_back_whole_and_in_order(store: Store) -> None:
    change_ids = sorted(new_change_id(1_700_000_000_000 + number, 1) for number in range(350))
    store.seal(FILLING)
    store.fill(
        (
            event_key(change_id),
            pack(
                [change(number)],
                time_ms=1_700_000_000_000 + number,
                principal="ana",
                request_id="",
            ),
        )
        for number, change_id in enumerate(change_ids)
    )
    store.unseal()
    index = EventIndex(store)
    revision, nothing = store.load().revision, Snapshot.empty(CODEC)
    index.applied(AppliedCommit(nothing, nothing, revision, (), (), reloaded=True))
    before = revision + 1
    found: list[str] = []
    while page := index.read_back(before, 40):
        before = page[-1][0]
        for _, events in page:
            found += [event.path for event in reversed(events)]
    assert found == [f"/la/{number}" for number in reversed(range(350))]


def test_a_store_that_is_away_says_so_and_nothing_else(store: Store) -> None:
    # Loops that wait for their store wait for a sealed one, too.
    store.seal("being looked at")
    with pytest.raises(StoreUnreachable):
        put(store, (ENTRY, b""))
