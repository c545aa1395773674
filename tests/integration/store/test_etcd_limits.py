"""What etcd holds, takes and forgets at most, and that kdir knows it first."""

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from unittest import mock

import pytest

from deploy.local.etcd import EtcdCluster
from directory.namespace.command import CreateTopic
from directory.namespace.entry import Directory, Kind
from directory.namespace.keys import entry_key
from directory.store.addresses import check_writable
from directory.store.base import (
    Committed,
    Guard,
    KeyEquals,
    Put,
    Store,
    StoreFull,
    StoreUnreachable,
    Transaction,
    UnchangedSince,
)
from directory.store.etcd import connection
from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.etcd_address import EtcdAddress
from directory.store.etcd.key_layout import Layout
from directory.store.etcd.store import EtcdStore
from directory.store.replica import Replica, ReplicaState
from directory.store.writer import Writer
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import LimitExceeded
from resolver.path import Path
from tests.conformance.store.reading import everything, following, put, put_many, until
from tests.conftest import SharedEtcd
from tests.support.federation import eventually

MIB = 1024 * 1024
CODEC = ProtoCodec()


@pytest.fixture
def store(own_etcd: SharedEtcd) -> Iterator[EtcdStore]:
    with closing(EtcdStore.open(own_etcd.address(), "la")) as store:
        yield store


def compact(store: EtcdStore) -> None:
    head = store.connection.range(etcdrpc.RangeRequest(key=b"-"), 10)
    store.connection.compact(head.header.revision, 10)


def test_S7_more_than_grpc_takes_at_once_is_loaded(store: EtcdStore) -> None:
    rows = {b"large/%d" % n: bytes([n]) * (MIB + n) for n in range(6)}
    rows |= {b"small/%d" % n: b"x" for n in range(3_000)}
    for key, value in rows.items():
        if key.startswith(b"large/"):
            put(store, (key, value))
    put_many(store, ((key, value) for key, value in rows.items() if key.startswith(b"small/")))
    assert everything(store) == rows


def receiving_at_most(size: int) -> list[tuple[str, int]]:
    """Returns the options of channels that take responses of so many bytes."""
    limit = "grpc.max_receive_message_length"
    return [(name, size if name == limit else value) for name, value in connection.OPTIONS]


@pytest.fixture
def small_store(own_etcd: SharedEtcd, monkeypatch: pytest.MonkeyPatch) -> Iterator[EtcdStore]:
    """Yields a store whose responses may have 2 MiB."""
    monkeypatch.setattr(connection, "OPTIONS", receiving_at_most(2 * MIB))
    with closing(EtcdStore.open(own_etcd.address(), "la")) as store:
        yield store


def test_S7_pages_that_become_too_large_are_asked_for_again_in_parts(
    small_store: EtcdStore,
) -> None:
    rows = {b"%d" % n: bytes([n]) * (MIB // 4) for n in range(40)}
    put_many(small_store, ((b"z/%d" % n, b"") for n in range(2_500)))
    for key, value in rows.items():
        put(small_store, (key, value))
    found = everything(small_store)
    assert {key: found[key] for key in rows} == rows
    assert len(found) == 2_540


def test_rows_that_are_too_large_together_are_read_in_parts_up_to_the_limit(
    small_store: EtcdStore,
) -> None:
    rows = {b"large/%02d" % n: bytes([n]) * (MIB // 4) for n in range(30)}
    for key, value in rows.items():
        put(small_store, (key, value))
    put(small_store, (b"later", b""))
    assert {row.key: row.value for row in small_store.read(b"large/")} == rows
    some = small_store.read(b"large/", limit=25, after=b"large/01")
    assert [row.key for row in some] == sorted(rows)[2:27]
    assert [row.revision for row in some] == sorted({row.revision for row in some})


def test_a_row_that_is_too_large_is_an_error_of_the_store(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, (b"large", bytes(MIB)))
    monkeypatch.setattr(connection, "OPTIONS", receiving_at_most(MIB // 2))
    with (
        closing(EtcdStore.open(store.describe(), "la")) as small,
        pytest.raises(StoreUnreachable, match="a row is too large to be read"),
    ):
        small.read(b"large")


def test_S2_a_load_that_is_overtaken_by_compaction_says_so_and_the_next_is_whole(
    store: EtcdStore,
) -> None:
    put_many(store, ((b"%06d" % n, b"x") for n in range(20_000)))
    pages = store.load().pages()
    first = next(pages)
    put(store, (first[0][0], b"y"))
    compact(store)
    with pytest.raises(StoreUnreachable, match="was compacted while it was loaded"):
        list(pages)
    assert len(everything(store)) == 20_000


def test_S2_an_idle_cluster_is_not_reloaded_for_what_others_wrote_and_compacted(
    own_etcd: SharedEtcd, store: EtcdStore
) -> None:
    done = put(store, (b"k", b"v"))
    with (
        closing(EtcdStore.open(own_etcd.address(), "ny")) as other,
        following(store, done.revision, done.commit_id) as watch,
    ):
        assert list(watch.next(0)) == []
        for number in range(50):
            put(other, (b"k", b"%d" % number))
        compact(other)
        with following(store, done.revision, done.commit_id) as resumed:
            later = put(store, (b"k", b"w"))
            for one in (watch, resumed):
                assert [change.revision for change in until(one, later.revision)] == [
                    later.revision
                ]


def test_S9_the_most_that_is_allowed_is_taken_by_etcd(store: EtcdStore) -> None:
    """All at once: as many guards and writes as there may be, of as many bytes."""
    limits = store.limits
    assert limits.max_guards is not None
    put_many(store, ((b"guarded/%03d" % n, b"g" * 500) for n in range(limits.max_guards - 1)))
    revision = store.load().revision
    guards: tuple[Guard, ...] = (
        *(KeyEquals(b"guarded/%03d" % n, b"g" * 500) for n in range(limits.max_guards - 1)),
        UnchangedSince(b"", revision),
    )
    spent = sum(len(guard.key) + 500 for guard in guards[:-1] if isinstance(guard, KeyEquals))
    room = (limits.max_bytes - spent) // limits.max_writes - len(b"write/000")
    writes = tuple(Put(b"write/%03d" % n, b"w" * room) for n in range(limits.max_writes))
    assert isinstance(store.commit(Transaction(guards, writes), 30), Committed)
    bigger = (*writes[:-1], Put(b"write/last", b"w" * (room + 2_000)))
    with pytest.raises(ValueError, match=str(limits.max_bytes)):
        store.commit(Transaction(guards, bigger), 30)


def test_S20_a_full_etcd_takes_no_writes_and_goes_on_answering(
    etcd_clusters: Callable[..., EtcdCluster],
) -> None:
    with etcd_clusters(members=1, flags=[f"--quota-backend-bytes={16 * MIB}"]) as cluster:
        address = SharedEtcd(tuple(cluster.endpoints)).address()
        with closing(EtcdStore.open(address, "la")) as store:
            replica = Replica(store, CODEC)
            writer = Writer(store, replica, CODEC, lambda _: Path.parse("/la"))
            replica.start()
            try:
                replica.wait_for(0, 30)
                writer.commit_command(CreateTopic(path=Path.parse("/la/kept")))
                _fill(store)
                with pytest.raises(LimitExceeded, match="is full; nothing was written"):
                    writer.commit_command(CreateTopic(path=Path.parse("/la/refused")))
                with pytest.raises(StoreFull, match=r"etcd's database is full.*quota"):
                    store.elect("publisher", "one")
                for full in (address, f"{address}-2"):
                    with pytest.raises(StoreFull, match=r"etcd's database is full.*quota"):
                        check_writable(full)
                assert store.connection.alarms(5) == ["NOSPACE"]
                assert replica.snapshot.topic(1, "kept") is not None
                assert replica.snapshot.topic(1, "refused") is None
                assert b"filler/0" in everything(store)
                eventually(lambda: replica.state is ReplicaState.SERVING)
                _make_room(store)
                check_writable(address)
                writer.commit_command(CreateTopic(path=Path.parse("/la/later")))
            finally:
                replica.stop()


@pytest.mark.parametrize("others", [False, True], ids=["alone", "others-write"])
@pytest.mark.parametrize("is_applied", [False, True], ids=["refused", "applied"])
def test_S20_a_commit_that_etcd_applies_and_calls_full_is_not_called_unwritten(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch, *, is_applied: bool, others: bool
) -> None:
    """etcd applies the transaction that exceeds its quota, and answers that it is full."""
    put(store, (b"before", b""))
    send = store.connection.txn

    def full(request: object, seconds: float) -> object:
        if is_applied:
            send(request, seconds)
        if others:
            with closing(EtcdStore.open(store.describe(), "la")) as other:
                put(other, (b"others", b""))
        raise StoreFull("etcd's database is full")

    transaction = Transaction((), (Put(b"k", b"v"),))
    with monkeypatch.context() as patch:
        patch.setattr(store.connection, "txn", full)
        if others:
            with pytest.raises(StoreUnreachable, match="while others wrote"):
                store.commit(transaction)
        elif is_applied:
            done = store.commit(transaction)
            assert isinstance(done, Committed)
            assert done.revision == store.newest_revision()
        else:
            with pytest.raises(StoreFull):
                store.commit(transaction)
    assert (b"k" in everything(store)) == is_applied
    with monkeypatch.context() as patch:  # now it knows what the others wrote
        patch.setattr(store.connection, "txn", mock.Mock(side_effect=StoreFull("full")))
        with pytest.raises(StoreFull):
            store.commit(transaction)
    put(store, (b"later", b""))


def _fill(store: EtcdStore) -> None:
    for number in range(100):
        try:
            put(store, (b"filler/%d" % number, bytes(MIB)))
        except StoreFull:
            return
    raise AssertionError("100 MiB went into 16")


def _make_room(store: EtcdStore) -> None:
    """As an operator does."""
    layout = Layout(EtcdAddress.parse(f"{store.describe()}").root)
    with store.connection.dial(0) as channel:
        begin, end = layout.row_range(b"filler/")
        etcdrpc.KVStub(channel).DeleteRange(
            etcdrpc.DeleteRangeRequest(key=begin, range_end=end), timeout=10
        )
        compact(store)
        maintenance = etcdrpc.MaintenanceStub(channel)
        maintenance.Defragment(etcdrpc.DefragmentRequest(), timeout=30)
        for alarm in maintenance.Alarm(etcdrpc.AlarmRequest(), timeout=10).alarms:
            disarm = etcdrpc.AlarmRequest(action=2, memberID=alarm.memberID, alarm=alarm.alarm)
            maintenance.Alarm(disarm, timeout=10)


def test_S21_what_cannot_be_read_is_set_aside_and_the_rest_is_served(store: EtcdStore) -> None:
    good = CODEC.encode(Directory(entry_id=7))
    put(
        store,
        (entry_key(1, Kind.DIRECTORY, "good"), good),
        (entry_key(1, Kind.DIRECTORY, "bad"), b"\xff\xff not a record"),
        (b"e/short", b""),
        (b"\xff unknown", b"\x00"),
    )
    replica = Replica(store, CODEC)
    replica.start()
    try:
        snapshot = replica.wait_for(0, 30)
        assert set(snapshot.root.containers) == {"good"}
        assert set(snapshot.unreadable_values) == {entry_key(1, Kind.DIRECTORY, "bad"), b"e/short"}
        # And so it is with what comes by the watch.
        done = put(store, (entry_key(1, Kind.DIRECTORY, "later"), b"\xff\xff"))
        assert (
            entry_key(1, Kind.DIRECTORY, "later")
            in replica.wait_for(done.revision, 30).unreadable_values
        )
    finally:
        replica.stop()


@pytest.mark.parametrize(("asked", "granted"), [(0x12345678FFFFFFFF, 60), (-1, 3)])
def test_S22_a_role_has_a_lease_within_reason(
    own_etcd: SharedEtcd, asked: float, granted: int
) -> None:
    address = EtcdAddress.parse(own_etcd.address())
    with closing(EtcdStore(address, "la", lease_seconds=asked)) as store:
        leadership = store.elect("publisher", "one")
        assert leadership is not None
        assert leadership.held()
        assert _lease_seconds(store) == granted


def _lease_seconds(store: EtcdStore) -> int:
    layout = Layout(EtcdAddress.parse(store.describe()).root)
    held = store.connection.range(etcdrpc.RangeRequest(key=layout.alive + b"role/publisher"), 5)
    with store.connection.dial(0) as channel:
        request = etcdrpc.LeaseTimeToLiveRequest(ID=held.kvs[0].lease)
        return int(etcdrpc.LeaseStub(channel).LeaseTimeToLive(request, timeout=5).grantedTTL)


def test_pages_of_a_load_are_of_a_few_megabytes(store: Store) -> None:
    for number in range(30):
        put(store, (b"%03d" % number, bytes(MIB // 2)))
    put_many(store, ((b"x/%06d" % n, b"") for n in range(6_000)))
    sizes = [sum(len(value) for _, value in page) for page in islice(store.load().pages(), 1, None)]
    assert max(sizes) <= 16 * MIB
