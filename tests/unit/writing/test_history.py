"""The past and the future of changes: no gap, no repeat, no waiting for who is slow."""

import itertools
import pathlib
import threading
import time
from collections.abc import Callable
from contextlib import closing
from unittest import mock

import pytest

from directory.maintenance.backup_stream import fill_store
from directory.maintenance.retention import RetentionLimits, RetentionTrimmer
from directory.maintenance.watch_history import (
    ChangeHistory,
    Revised,
    Subscription,
)
from directory.namespace.command import CreateTopic
from directory.namespace.keys import EVENT, REQUEST, event_key
from directory.store.base import FILLED_FROM, Delete, Put, Store, StoreUnreachable, Transaction
from directory.store.event_rows import FLOOR_KEY, event_count, new_change_id
from directory.store.idempotency import RequestRecord
from directory.store.replica import ReplicaState
from directory.store.sqlite.store import SqliteStore
from directory.store.writer import Writer
from resolver.errors import NotReady, Resync, StoreUnavailable
from tests.support.large_trees import ETCD_LIMITS
from tests.unit.store.scripted_store import ScriptedStore
from tests.unit.writing.bench import Bench, eventually, path


def revisions(changes: list[Revised]) -> list[int]:
    return [revision for revision, _ in changes]


def until(subscription: Subscription, revision: int) -> list[Revised]:
    seen: list[Revised] = []
    while not seen or seen[-1][0] < revision:
        more = subscription.next(30)
        assert more
        seen += more
    return seen


def paths(changes: list[Revised]) -> list[str]:
    return [event.path for _, events in changes for event in events]


def test_following_goes_on_from_the_past_without_gap_or_repeat(bench: Bench) -> None:
    done = [bench.create(f"/la/t{n}").revision for n in range(5)]
    subscription = bench.history.follow(done[1])
    done += [bench.create(f"/la/t{n}").revision for n in range(5, 8)]
    assert revisions(until(subscription, done[-1])) == done[2:]
    assert subscription.next(0) == []
    subscription.close()


def test_followers_that_begin_anywhere_see_the_same_while_writers_go_on(bench: Bench) -> None:
    stop = threading.Event()
    done: list[int] = []

    def write() -> None:
        number = 0
        while not stop.is_set():
            done.append(bench.create(f"/la/t{number}").revision)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    begun: list[tuple[int, Subscription]] = []
    while len(begun) < 40:
        after = bench.replica.snapshot.revision
        begun.append((after, bench.history.follow(after // 2)))
    stop.set()
    writer.join()
    last = done[-1]
    for after, subscription in begun:
        expected = [revision for revision in done if revision > after // 2]
        assert revisions(until(subscription, last) if expected else []) == expected
        subscription.close()


@pytest.mark.parametrize("kept_events", [1, 3, 1_000])
def test_since_says_the_same_from_memory_and_from_the_store(
    store: ScriptedStore, kept_events: int
) -> None:
    with Bench(store, kept_events=kept_events) as bench:
        bench.mkdir("/la/a/b/c")
        done = [bench.create(f"/la/a/t{n}").revision for n in range(6)]
        assert revisions(list(bench.history.since(0))) == [1, *done]
        assert paths(list(bench.history.since(0)))[:4] == [
            "/la/a",
            "/la/a/b",
            "/la/a/b/c",
            "/la/a/t0",
        ]
        assert revisions(list(bench.history.since(done[3]))) == done[4:]
        assert list(bench.history.since(done[-1])) == []


def test_S21_paging_back_goes_on_past_rows_that_cannot_be_read(store: ScriptedStore) -> None:
    with Bench(store) as first:
        done = [first.create(f"/la/t{n}").revision for n in range(5)]
    damaged = [row.key for row in store.read(EVENT) if row.revision in done[2:4]]
    for revision, key in zip(done[2:4], damaged, strict=True):
        store.data.rows[key] = (b"\xff", revision)
    with Bench(store) as bench:
        seen: list[Revised] = []
        before = done[-1] + 1
        while page := bench.history.page_before(before, 1):
            before = page[-1][0]
            seen += page
    assert paths(seen) == ["/la/t4", "/la/t1", "/la/t0"]


def test_a_server_that_starts_again_still_knows_what_was_before(store: ScriptedStore) -> None:
    with Bench(store) as first:
        done = [first.create(f"/la/t{n}").revision for n in range(6)]
    with Bench(store) as second:
        subscription = second.history.follow(done[2])
        done.append(second.create("/la/more").revision)
        assert revisions(until(subscription, done[-1])) == done[3:]


@pytest.mark.parametrize("kept_events", [1, 4, 1_000])
def test_paging_back_yields_everything_once_newest_first(
    store: ScriptedStore, kept_events: int
) -> None:
    with Bench(store) as first:
        first.mkdir("/la/a/b")
        for number in range(9):
            first.create(f"/la/a/old{number}")
    with Bench(store, kept_events=kept_events) as bench:
        for number in range(9):
            bench.create(f"/la/a/new{number}")
        everything = list(bench.history.since(0))
        seen: list[Revised] = []
        before = bench.replica.snapshot.revision + 1
        while page := bench.history.page_before(before, 4):
            assert sum(len(events) for _, events in page) <= 5
            before = page[-1][0]
            seen += page
        assert seen[::-1] == everything
        assert len(everything) == 19


HOUR_MS = 3_600_000


def writer_at(bench: Bench, clock_ms: int) -> Callable[[str], int]:
    """Returns what makes a topic at a server whose clock stands; it returns the revision."""
    writer = Writer(
        bench.store, bench.replica, bench.codec, lambda _: path("/la"), now_ms=lambda: clock_ms
    )
    return lambda name: writer.commit_command(CreateTopic(path=path(name))).revision


def key_order(store: Store) -> list[int]:
    """Returns the revisions of the rows of events in the order of their keys."""
    return [row.revision for row in store.read(EVENT) if row.key != FLOOR_KEY]


def test_keys_of_events_are_in_the_order_of_commits_whatever_the_clocks(
    store: ScriptedStore,
) -> None:
    now_ms = time.time_ns() // 1_000_000
    with Bench(store) as one, Bench(store) as other:
        first = writer_at(one, now_ms + HOUR_MS)
        done = [first("/la/t1"), first("/la/t2")]
        back = writer_at(one, now_ms)  # its clock was set back
        done += [back("/la/t3"), back("/la/t4")]
        eventually(lambda: other.replica.snapshot.revision == done[-1])
        behind = writer_at(other, now_ms - HOUR_MS)
        done += [behind("/la/t5"), behind("/la/t6")]
    with Bench(store) as started:  # its clock is behind the newest keys
        done += [started.create(f"/la/t{n}").revision for n in (7, 8)]
        times = [event.time.ToMilliseconds() - now_ms for _, (event,) in started.history.since(0)]
    assert key_order(store) == done
    assert times[:6] == [HOUR_MS, HOUR_MS, 0, 0, -HOUR_MS, -HOUR_MS], "events have the true time"


def test_what_waits_does_so_since_it_was_committed_though_a_clock_was_ahead(
    store: ScriptedStore,
) -> None:
    now_ms = time.time_ns() // 1_000_000
    with Bench(store) as one, Bench(store) as other:
        first = writer_at(one, now_ms + HOUR_MS)("/la/t1")
        last = writer_at(one, now_ms)("/la/t2")
        eventually(lambda: other.replica.snapshot.revision == last)
        for index in (one.history.index, other.history.index):
            assert now_ms <= index.count_after(first)[1] < now_ms + HOUR_MS
            assert now_ms <= index.waiting(first).since_ms < now_ms + HOUR_MS
    with Bench(store) as started:
        assert now_ms <= started.history.index.waiting(first).since_ms < now_ms + HOUR_MS


def test_a_store_that_is_filled_has_history_in_the_order_of_commits(
    store: ScriptedStore, tmp_path: pathlib.Path
) -> None:
    now_ms = time.time_ns() // 1_000_000
    with Bench(store) as one:
        for number, clock_ms in enumerate((now_ms, now_ms + 5, now_ms - HOUR_MS, now_ms - 9)):
            writer_at(one, clock_ms)(f"/la/t{number}")
    with closing(SqliteStore(tmp_path / "filled.db", "la")) as filled:
        filled.seal(f"{FILLED_FROM}a test")
        fill_store(filled, [row for page in store.load().pages() for row in page])
        filled.unseal()
        with Bench(filled) as bench:
            found = paths(list(bench.history.page_before(1 << 60, 10)))
    assert found == [f"/la/t{number}" for number in range(4)]


def test_a_watcher_that_begins_in_the_past_is_given_it_page_by_page(
    store: ScriptedStore,
) -> None:
    """It takes one page of memory, however much it has to catch up with, and reads no further while
    its caller takes nothing.
    """
    with Bench(store, kept_events=5) as bench:
        done = [bench.create(f"/la/t{number}").revision for number in range(450)]
        watchers = [bench.history.follow(0) for _ in range(20)]
        pages = [watchers[0].next(0) for _ in range(2)]
        assert [len(page) for page in pages] == [200, 200]
        done += [bench.create(f"/la/u{number}").revision for number in range(10)]
        rest = until(watchers[0], done[-1])
        assert revisions([*pages[0], *pages[1], *rest]) == done
        assert [watcher.waiting for watcher in watchers] == [0] * 20, "the others hold nothing"
        for watcher in watchers[1:3]:
            assert revisions(until(watcher, done[-1])) == done


@pytest.mark.parametrize("events", [3, 4, 40])
def test_a_queue_is_bounded_in_bytes_too(store: ScriptedStore, events: int) -> None:
    with Bench(store) as first:
        one = first.create("/la/t0000").revision
        ((_, (event,)),) = first.history.since(one - 1)
    size = event.ByteSize() + 8  # ids and revisions vary
    with Bench(store, queue_bytes=3 * size) as bench:
        watcher = bench.history.follow(one)
        last = 0
        for number in range(events):
            last = bench.create(f"/la/u{number:04}").revision
        if events == 3:
            assert len(until(watcher, last)) == 3
        else:
            with pytest.raises(Resync, match="not read in time"):
                watcher.next(1)


def test_before_anything_is_loaded_it_is_not_ready() -> None:
    store = ScriptedStore()
    store.away = True
    history = Bench(store).history
    for ask in (lambda: history.follow(0), lambda: history.page_before(9, 9)):
        with pytest.raises(NotReady):
            ask()


def test_S16_who_is_slow_gets_a_resync_and_nobody_else_notices(store: ScriptedStore) -> None:
    with Bench(store, queue_events=10) as bench:
        slow, quick = bench.history.follow(0), bench.history.follow(0)
        done, seen = [], []
        for number in range(25):
            done.append(
                bench.create(f"/la/t{number}").revision
            )  # answers: the replica is not held up
            seen += until(quick, done[-1])
        assert revisions(seen) == done
        with pytest.raises(Resync, match="10"):
            slow.next(0)
        with pytest.raises(Resync):  # it stays lost: it must begin anew
            slow.next(0)
        again = bench.history.follow(done[-5])
        assert revisions(until(again, done[-1])) == done[-4:]


def test_S16_a_subscriber_that_lags_within_the_bound_loses_nothing(store: ScriptedStore) -> None:
    with Bench(store, queue_events=10) as bench:
        lagging = bench.history.follow(0)
        done = [bench.create(f"/la/t{number}").revision for number in range(10)]
        assert revisions(lagging.next(0)) == done


def test_one_revision_larger_than_the_queue_is_delivered_whole(store: ScriptedStore) -> None:
    with Bench(store, queue_events=3) as bench:
        subscription = bench.history.follow(0)
        bench.mkdir("/la/a/b/c/d/e")
        ((_, events),) = until(subscription, 1)
        assert len(events) == 5


def test_a_backlog_larger_than_the_queue_is_no_lag(store: ScriptedStore) -> None:
    with Bench(store, queue_events=3) as bench:
        done = [bench.create(f"/la/t{number}").revision for number in range(10)]
        subscription = bench.history.follow(0)
        bench.create("/la/more")
        assert revisions(subscription.next(0))[:10] == done


def test_a_tree_that_was_loaded_again_makes_every_follower_resync(
    store: ScriptedStore, bench: Bench
) -> None:
    bench.create("/la/t")
    subscription = bench.history.follow(0)
    subscription.next(0)
    with store.in_one_breath():
        store.commit(Transaction((), (Put(b"k/x", b""),)))
        store.forget_history()
    eventually(lambda: bench.replica.snapshot.revision == 2)
    with pytest.raises(Resync):
        subscription.next(30)
    # What is past is known still: it is in the store.
    assert paths(list(bench.history.since(0))) == ["/la/t"]


def test_closing_ends_a_waiting_next(bench: Bench) -> None:
    subscription = bench.history.follow(0)
    answers: list[list[Revised]] = []
    thread = threading.Thread(target=lambda: answers.append(subscription.next(600)))
    thread.start()
    subscription.close()
    thread.join(30)
    assert answers == [[]]


def test_closing_the_history_ends_all(bench: Bench) -> None:
    subscriptions = [bench.history.follow(0) for _ in range(3)]
    threads = [threading.Thread(target=one.next, args=(600,)) for one in subscriptions]
    for thread in threads:
        thread.start()
    bench.history.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_the_older_past_is_unavailable_not_empty_while_the_store_is_away(
    store: ScriptedStore,
) -> None:
    with Bench(store) as first:
        first.create("/la/t0")
    with Bench(store) as bench:
        revision = bench.create("/la/t1").revision
        store.away = True
        eventually(lambda: bench.replica.state is ReplicaState.STALE)
        assert paths(list(bench.history.since(revision - 1))) == ["/la/t1"]
        with pytest.raises(StoreUnavailable):
            bench.history.since(0)
        with pytest.raises(StoreUnavailable):
            bench.history.page_before(revision, 10)


def test_events_that_cannot_be_read_do_not_stop_the_others(
    store: ScriptedStore, bench: Bench
) -> None:
    subscription = bench.history.follow(0)
    store.commit(Transaction((), (Put(EVENT + b"000000000000-1-x", b"\xff\xff"),)))
    revision = bench.create("/la/t").revision
    assert revisions(until(subscription, revision)) == [revision]
    with Bench(store) as later:
        assert paths(list(later.history.since(0))) == ["/la/t"]


# -- trimming ---------------------------------------------------------------------------------


def trim(store: ScriptedStore, history: ChangeHistory, events: int) -> int:
    return RetentionTrimmer(store, history.index, RetentionLimits(events=events)).step()


def test_the_oldest_events_go_and_the_newest_stay(store: ScriptedStore) -> None:
    with Bench(store, kept_events=1) as bench:
        bench.mkdir("/la/a/b/c")  # three events
        done = [bench.create(f"/la/t{n}").revision for n in range(10)]
        assert trim(store, bench.history, 13) == 0
        # One event too many is not worth the row of three, which would leave too few.
        assert trim(store, bench.history, 12) == 0
        assert trim(store, bench.history, 10) == 1
        assert trim(store, bench.history, 4) == 6
        kept = [row for row in store.read(EVENT) if row.key != EVENT + b"-"]
        assert sum(event_count(row.key) for row in kept) == 4
        assert sorted(row.revision for row in kept) == done[-4:]
        floor = bench.history.oldest_revision()
        assert floor == done[-5]
        assert revisions(list(bench.history.since(floor))) == done[-4:]
        with pytest.raises(Resync, match=str(floor)):
            bench.history.since(floor - 1)
        before = bench.replica.snapshot.revision + 1
        seen: list[Revised] = []
        while page := bench.history.page_before(before, 3):
            before = page[-1][0]
            seen += page
        assert revisions(seen)[::-1] == done[-4:]
    with Bench(store) as later:
        with pytest.raises(Resync):
            later.history.since(0)
        assert trim(store, later.history, 4) == 0
        assert trim(store, later.history, 3) == 1


@pytest.mark.parametrize("unreadable", [b"minus one", b"9" * 19, b"9" * 5_000])
def test_S21_a_floor_that_cannot_be_read_lets_watchers_list_again(
    store: ScriptedStore, unreadable: bytes
) -> None:
    with Bench(store, kept_events=1) as bench:
        done = [bench.create(f"/la/{name}").revision for name in "abcd"]
        assert trim(store, bench.history, 3) == 1
        store.commit(Transaction((), (Put(EVENT + b"-", unreadable),)))
        with Bench(store) as later:
            assert later.history.oldest_revision() == done[1] - 1
            with pytest.raises(Resync):
                later.history.since(0)
            assert revisions(list(later.history.since(done[1] - 1))) == done[1:]
        assert trim(store, bench.history, 1) == 2
        [floor] = [row.value for row in store.read(EVENT) if row.key == EVENT + b"-"]
        assert floor.isdigit()
        assert len(floor) < 19


@pytest.mark.parametrize("count", [4, 5, 40])
def test_the_oldest_events_go_where_there_are_too_many(store: ScriptedStore, count: int) -> None:
    with Bench(store, kept_events=1) as bench:
        done = [bench.create(f"/la/t{n}").revision for n in range(count)]
        assert trim(store, bench.history, 4) == count - 4
        kept = [row for row in store.read(EVENT) if row.key != EVENT + b"-"]
        assert sorted(row.revision for row in kept) == done[-4:]
        assert trim(store, bench.history, 4) == 0


@pytest.mark.parametrize("times", [1, 2, 10])
def test_the_oldest_events_go_where_all_have_too_many_bytes(
    store: ScriptedStore, times: int
) -> None:
    with Bench(store, kept_events=1) as bench:
        done = [bench.create(f"/la/t{n}").revision for n in range(40)]
        rows = [row for row in store.read(EVENT) if row.key != EVENT + b"-"]
        whole = sum(len(row.value) for row in rows)
        retention = RetentionLimits(event_bytes=whole // times)
        gone = RetentionTrimmer(store, bench.history.index, retention).step()
        kept = [row for row in store.read(EVENT) if row.key != EVENT + b"-"]
        assert sum(len(row.value) for row in kept) <= whole // times
        assert len(kept) + gone == 40
        assert len(kept) == pytest.approx(40 / times, abs=2)
        assert sorted(row.revision for row in kept) == done[-len(kept) :]
        assert RetentionTrimmer(store, bench.history.index, retention).step() == 0
    with Bench(store) as later:  # which counts them when it reads them
        assert RetentionTrimmer(store, later.history.index, retention).step() == 0
        half = RetentionLimits(event_bytes=whole // times // 2)
        assert RetentionTrimmer(store, later.history.index, half).step() > 0


def test_two_servers_that_trim_at_the_same_time_keep_what_is_to_be_kept(
    store: ScriptedStore,
) -> None:
    with Bench(store) as one, Bench(store) as two:
        done = [one.create(f"/la/t{n}").revision for n in range(40)]
        two.replica.wait_for(done[-1], 30)
        threads = [
            threading.Thread(target=trim, args=(store, bench.history, 7)) for bench in (one, two)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        kept = sorted(row.revision for row in store.read(EVENT) if row.key != EVENT + b"-")
        assert kept == done[-7:]
        assert one.history.oldest_revision() == done[-8]


def test_answered_requests_are_kept_for_their_time(store: ScriptedStore, bench: Bench) -> None:
    now_ms = [0]
    maintenance = RetentionTrimmer(
        store, bench.history.index, RetentionLimits(requests_ms=1_000), now_ms=lambda: now_ms[0]
    )
    bench.writer._now_ms = lambda: now_ms[0]  # type: ignore[misc]
    bench.create("/la/old", request_id="old")
    now_ms[0] = 600
    bench.create("/la/young", request_id="young")
    now_ms[0] = 1_001
    assert maintenance.step() == 1
    assert bench.create("/la/young", request_id="young").repeated
    # The id may be used again, for something else.
    assert not bench.create("/la/new", request_id="old").repeated
    now_ms[0] = 1_601
    assert maintenance.step() == 1
    assert bench.create("/la/new", request_id="old").repeated


def test_answered_requests_are_looked_at_again_once_one_of_them_has_expired(
    store: ScriptedStore, bench: Bench
) -> None:
    now_ms = [0]
    retention = RetentionLimits(requests_ms=1_000_000)
    trimmer = RetentionTrimmer(store, bench.history.index, retention, now_ms=lambda: now_ms[0])
    bench.writer._now_ms = lambda: now_ms[0]  # type: ignore[misc]
    bench.create("/la/old", request_id="old")
    now_ms[0] = 600_000
    bench.create("/la/young", request_id="young")
    steps = [(700_000, 0, 1), (1_000_000, 0, 0), (1_000_001, 1, 1), (1_600_000, 0, 0)]
    steps += [(1_600_001, 1, 1), (1_600_002, 0, 0)]
    for now, removed, looks in steps:
        now_ms[0] = now
        with mock.patch.object(store, "read", wraps=store.read) as read:
            assert trimmer.step() == removed, now
            assert trimmer.step() == 0, now
        assert [one.args for one in read.call_args_list].count((REQUEST,)) == looks, now
    # A clock that was ahead for a moment holds nothing up.
    now_ms[0] = 9_000_000_000
    trimmer.step()
    now_ms[0] = 1_700_000
    bench.create("/la/later", request_id="later")
    now_ms[0] = 2_700_001
    assert trimmer.step() == 1


def test_an_id_that_is_used_again_while_it_is_trimmed_is_kept(
    store: ScriptedStore, bench: Bench
) -> None:
    bench.create("/la/t", request_id="r")
    (row,) = store.read(REQUEST)
    fresh = row.value.replace(b'"topic_count":0', b'"topic_count":9')
    assert fresh != row.value

    def use_again(transaction: Transaction) -> None:
        store.before_commit = lambda _: None
        store.commit(Transaction((), (Put(row.key, fresh),)))

    store.before_commit = use_again
    clock = itertools.count(2**45)
    maintenance = RetentionTrimmer(
        store, bench.history.index, RetentionLimits(requests_ms=0), now_ms=lambda: next(clock)
    )
    assert maintenance.step() == 0
    assert [kept.value for kept in store.read(REQUEST)] == [fresh]
    assert maintenance.step() == 1


def test_what_comes_is_trimmed_as_fast_where_a_transaction_holds_little(
    store: ScriptedStore,
) -> None:
    """One step every five seconds removes 620 events and answers on etcd, whatever comes."""
    seconds, rested, commits, late = [0.0], [0.0], [0], itertools.count(10**6)

    def wait(some: float) -> bool:
        seconds[0] += some
        return False

    def rest(some: float) -> bool:
        rested[0] += some
        return wait(some)

    def commit_slowly(transaction: Transaction) -> None:
        wait(0.01)
        if isinstance(transaction.writes[0], Delete):
            commits[0] += 1
            store.commit(Transaction((), (Put(event_key(new_change_id(next(late), 1)), b""),)))
            bench.replica.wait_for(store.newest_revision(), 30)

    store.limits, store.before_commit = ETCD_LIMITS, commit_slowly
    answer = RequestRecord(
        fingerprint="f", answered_at_ms=0, path=None, entry=None, topic_count=0, directory_count=0,
        notes=(),
    ).to_bytes()  # fmt: skip
    with Bench(store) as bench:
        trimmer = RetentionTrimmer(
            store,
            bench.history.index,
            RetentionLimits(events=100, requests_ms=1_000),
            now_ms=lambda: 10**9 + int(seconds[0] * 1_000),
            clock=lambda: seconds[0],
        )
        for since in range(0, 6_000, 1_000):
            for number in range(since, since + 1_000, 50):  # 200 a second and kind
                some = range(number, number + 50)
                events = [Put(event_key(new_change_id(one, 1)), b"") for one in some]
                answers = [Put(REQUEST + b"User:x\0%016d" % one, answer) for one in some]
                store.commit(Transaction((), (*events, *answers)))
            bench.replica.wait_for(store.newest_revision(), 30)
            wait(5.0)
            started, rested[0], commits[0] = seconds[0], 0.0, 0
            removed = trimmer.run(5.0, rest)
            left = [row for row in store.read(EVENT) if row.key != FLOOR_KEY]
            assert 100 <= len(left) <= 110
            assert commits[0] <= removed // (ETCD_LIMITS.max_writes // 2 - 1) + 5
            assert store.read(REQUEST) == []
            assert rested[0] > 0.3 * (seconds[0] - started), "commits come through"


def test_trimming_ends_between_two_steps_when_the_server_stops(store: ScriptedStore) -> None:
    store.limits = ETCD_LIMITS
    with Bench(store) as bench:
        for number in range(0, 1_000, 100):
            keys = [event_key(new_change_id(number + one, 1)) for one in range(100)]
            store.commit(Transaction((), tuple(Put(key, b"") for key in keys)))
        bench.replica.wait_for(store.newest_revision(), 30)
        trimmer = RetentionTrimmer(store, bench.history.index, RetentionLimits(events=100))
        assert trimmer.run(5.0, lambda _: True) == 620
        assert trimmer.run(0.0, lambda _: False) == 280


def test_many_old_requests_go_round_by_round(store: ScriptedStore, bench: Bench) -> None:
    now_ms = 10**9
    maintenance = RetentionTrimmer(store, bench.history.index, now_ms=lambda: now_ms)
    kept = RequestRecord(
        fingerprint="f", answered_at_ms=4711, path=None, entry=None, topic_count=0,
        directory_count=0, notes=(),
    )  # fmt: skip
    record = kept.to_bytes().replace(b"4711", b"%d")
    for n in range(0, 9_000, 900):
        store.commit(
            Transaction(
                (),
                tuple(
                    Put(b"q/User:x\0%05d" % i, record % (now_ms if i % 3 else 0))
                    for i in range(n, n + 900)
                ),
            )
        )
    removed = 0
    for _ in range(40):
        removed += maintenance.step()
    assert removed == 3_000
    assert len(store.read(b"q/", limit=10_000)) == 6_000


def test_trimming_waits_for_a_store_that_is_away(store: ScriptedStore, bench: Bench) -> None:
    bench.create("/la/t0")
    bench.create("/la/t1")
    store.away = True
    assert trim(store, bench.history, 1) == 0
    store.return_soon()

    def fail(transaction: Transaction) -> None:
        store.before_commit = lambda _: None
        raise StoreUnreachable("scripted")

    store.before_commit = fail
    assert trim(store, bench.history, 1) == 0
    eventually(lambda: bench.replica.state is ReplicaState.SERVING)
    assert trim(store, bench.history, 1) == 1


def test_what_waits_for_the_change_log_is_not_known_while_the_store_is_away(
    store: ScriptedStore, bench: Bench
) -> None:
    bench.create("/la/t0")
    store.away = True
    with pytest.raises(StoreUnavailable, match="the store is away"):
        bench.history.waiting(0)
    store.return_soon()
    eventually(lambda: bench.replica.state is ReplicaState.SERVING)
    assert bench.history.waiting(0).commits == 1


def test_answered_requests_that_no_transaction_can_compare_at_once_are_trimmed_in_parts(
    store: ScriptedStore, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = RequestRecord(
        fingerprint="f", answered_at_ms=0, path=None, entry=None, topic_count=0,
        directory_count=0, notes=("x" * 300_000,),
    )  # fmt: skip
    for n in range(10):
        store.commit(Transaction((), (Put(REQUEST + b"large%d" % n, large.to_bytes()),)))
    sizes: list[int] = []
    commit = store.commit

    def noted(transaction: Transaction) -> object:
        sizes.append(transaction.size_bytes)
        return commit(transaction)

    monkeypatch.setattr(store, "commit", noted)
    assert RetentionTrimmer(store, bench.history.index).step() == 10
    assert max(sizes) <= store.limits.max_bytes
    assert not [row for row in store.read(REQUEST) if row.key.startswith(REQUEST + b"large")]
