"""Whose store it is, and that a restore begins a new life."""

import re

import pytest

from directory.store.base import (
    Conflict,
    HistoryCompacted,
    IncompatibleStore,
    Put,
    Store,
    StoreUnreachable,
    Transaction,
    UnchangedSince,
)
from directory.store.replica import Replica, ReplicaState
from directory.wire.entry_codec import ProtoCodec
from tests.conformance.store.places import Place
from tests.conformance.store.reading import everything, following, put
from tests.support.waiting import eventually


def test_identity_is_made_once_and_stays(place: Place, store: Store) -> None:
    made = store.identity
    assert re.fullmatch(r"kc-[a-z2-7]{10}", made.cluster_id)
    assert made.cluster == "la"
    assert made.store_id != made.incarnation
    put(store, (b"k", b"v"))
    store.close()
    again = place.open()
    assert again.identity == made
    assert again.refresh_identity() == made


def test_a_new_store_takes_the_cluster_id_it_is_given(place: Place) -> None:
    assert place.open("la", "kc-aaaaaaaaaa").identity.cluster_id == "kc-aaaaaaaaaa"


def test_the_store_of_another_cluster_is_refused_naming_both(place: Place, store: Store) -> None:
    put(store, (b"k", b"v"))
    with pytest.raises(IncompatibleStore, match=rf"la \({store.identity.cluster_id}\).* not of ny"):
        place.open("ny")
    with pytest.raises(IncompatibleStore, match=f"{store.identity.cluster_id}.*kc-aaaaaaaaaa"):
        place.open("la", "kc-aaaaaaaaaa")
    assert everything(store) == {b"k": b"v"}


def test_a_running_server_does_not_follow_another_cluster_of_the_same_name(
    place: Place, store: Store
) -> None:
    put(store, (b"f/ours", b"v"))
    replica = Replica(store, ProtoCodec())
    replica.start()
    try:
        eventually(lambda: replica.state is ReplicaState.SERVING)
        place.remove()
        eventually(lambda: replica.state is ReplicaState.STALE)
        other = place.open()
        assert other.identity.cluster_id != store.identity.cluster_id
        put(other, (b"f/theirs", b"v"))
        with pytest.raises(IncompatibleStore, match=f"id {other.identity.cluster_id}, not of kc-"):
            store.refresh_identity()
        with pytest.raises(StoreUnreachable):
            put(store, (b"f/lost", b"v"))
        eventually(lambda: f"cluster id {other.identity.cluster_id}" in replica.trouble)
        assert replica.state is ReplicaState.STALE
        assert dict(replica.snapshot.facts(b"f/")) == {b"f/ours": b"v"}
        assert everything(other) == {b"f/theirs": b"v"}
    finally:
        replica.stop()


def test_S11_a_restore_is_noticed_and_begins_a_new_incarnation(restorable_place: Place) -> None:
    place = restorable_place
    store = place.open()
    before = store.identity
    kept = put(store, (b"kept", b""))
    place.backup()
    lost = put(store, (b"lost", b""))
    store.close()
    place.restore()

    restored = place.open()
    assert restored.identity.incarnation != before.incarnation
    assert restored.identity.cluster_id == before.cluster_id
    assert restored.identity.store_id == before.store_id
    assert everything(restored) == {b"kept": b""}
    assert restored.load().revision > lost.revision
    for commit in (kept, lost):
        with (
            pytest.raises(HistoryCompacted),
            following(restored, commit.revision, commit.commit_id) as watch,
        ):
            watch.next(1)
    # A decision that was made from the old life's tree is not carried out on the new one.
    guard = UnchangedSince(b"", lost.revision)
    assert isinstance(restored.commit(Transaction((guard,), (Put(b"x", b""),))), Conflict)
    # And it is new once, not at each start.
    incarnation = restored.identity.incarnation
    restored.close()
    assert place.open().identity.incarnation == incarnation


def test_S11_revisions_rise_over_a_restore_that_lost_nothing(restorable_place: Place) -> None:
    place = restorable_place
    store = place.open()
    done = put(store, (b"kept", b""))
    place.backup()
    store.close()
    place.restore()
    restored = place.open()
    assert everything(restored) == {b"kept": b""}
    later = put(restored, (b"later", b""))
    assert later.revision > done.revision
