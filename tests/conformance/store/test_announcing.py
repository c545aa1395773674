"""Announced keys: there while their process lives, gone soon after, however it ended."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from signal import SIGCONT, SIGSTOP

from directory.store.base import (
    Conflict,
    EphemeralKey,
    Guard,
    KeyEquals,
    Put,
    Store,
    Transaction,
    UnchangedSince,
)
from tests.conformance.store.places import Place, output_of, say_go, start_worker
from tests.conformance.store.reading import apply, everything, following, put, until

LIMIT_SECONDS = 15
"""By contract; a loaded machine gets some more."""
KEY = b"m/one"


def announce(
    store: Store, key: bytes = KEY, value: bytes = b"v", guards: tuple[Guard, ...] = ()
) -> EphemeralKey:
    done = store.create_ephemeral(key, value, guards)
    assert not isinstance(done, Conflict), done
    return done


def eventually_gone(store: Store, key: bytes, seconds: float = 3 * LIMIT_SECONDS) -> bool:
    """Sweeps as servers do, until the key is gone."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        store.remove_expired()
        if key not in everything(store, [b"m/"]):
            return True
        time.sleep(0.1)
    return False


@contextmanager
def announcing(place: Place, key: bytes = KEY) -> Iterator[subprocess.Popen[str]]:
    """Runs a process that has announced a key."""
    worker = start_worker(place, "announce", key.decode(), "far")
    try:
        assert output_of(worker).readline() == "announced\n"
        yield worker
    finally:
        worker.kill()
        worker.wait()
        for pipe in (worker.stdin, worker.stdout):
            assert pipe is not None
            pipe.close()


def says(worker: subprocess.Popen[str]) -> str:
    say_go(worker)
    return output_of(worker).readline().strip()


def eventually(look: Callable[[], bool], seconds: float = 3 * LIMIT_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while not look():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_an_announced_key_is_there_until_it_is_withdrawn(place: Place, store: Store) -> None:
    announcement = announce(store)
    assert everything(store) == {KEY: b"v"}
    assert announcement.is_alive()
    announcement.update(b"w")
    assert everything(place.open()) == {KEY: b"w"}
    announcement.delete()
    assert everything(store) == {}
    assert not announcement.is_alive()
    announcement.delete()  # twice is once


def test_what_comes_after_a_withdrawal_has_no_effect(store: Store) -> None:
    announcement = announce(store)
    announcement.delete()
    again = announce(store, value=b"again")
    announcement.update(b"late")
    announcement.delete()
    assert everything(store) == {KEY: b"again"}
    assert again.is_alive()


def test_announcing_update_and_withdrawal_are_commits_that_a_watch_yields(store: Store) -> None:
    with following(store) as watch:
        announcement = announce(store)
        announcement.update(b"w")
        seen = apply({}, until(watch, store.load().revision))
        assert seen == {KEY: b"w"}
        announcement.delete()
        assert apply(seen, until(watch, store.load().revision)) == {}


def test_guards_decide_whether_it_is_announced(store: Store) -> None:
    put(store, (b"f/level", b"2"))
    revision = store.load().revision
    refused = store.create_ephemeral(KEY, b"v", (KeyEquals(b"f/level", b"1"),))
    assert refused == Conflict(KeyEquals(b"f/level", b"1"), revision)
    assert everything(store, [b"m/"]) == {}
    announce(store, guards=(KeyEquals(b"f/level", b"2"), UnchangedSince(b"m/", revision)))
    late = store.create_ephemeral(b"m/two", b"v", (UnchangedSince(b"m/", revision),))
    assert isinstance(late, Conflict)
    assert set(everything(store, [b"m/"])) == {KEY}


def test_an_announcement_guards_what_others_write(store: Store) -> None:
    revision = put(store, (b"k", b"1")).revision
    announce(store)
    newer = UnchangedSince(b"m/", revision)
    assert isinstance(store.commit(Transaction((newer,), (Put(b"k", b"2"),))), Conflict)


def test_a_sweep_leaves_the_living_of_this_and_other_processes(place: Place, store: Store) -> None:
    mine = announce(store, b"m/mine")
    with announcing(place, b"m/far") as worker:
        for one in (store, place.open()):
            assert one.remove_expired() == 0
        assert set(everything(store)) == {b"m/mine", b"m/far"}
        assert mine.is_alive()
        assert says(worker) == "lasts"


def test_kill_9_takes_the_key_away_within_the_limit(place: Place, store: Store) -> None:
    with announcing(place) as worker, following(store) as watch:
        assert everything(store, [b"m/"]) == {KEY: b"far"}
        worker.kill()
        worker.wait()
        assert eventually_gone(store, KEY)
        assert apply({KEY: b"far"}, until(watch, store.load().revision)) == {}


def test_S19_a_paused_process_keeps_its_key_or_knows_that_it_lost_it(
    place: Place, store: Store
) -> None:
    """With a lease the key goes during the pause: the one test that has to wait for that. A lock
    outlasts any pause.
    """
    leased = not place.address.startswith("sqlite:")
    with announcing(place) as worker, ExitStack() as cleanup:
        other = announce(store, b"m/other")
        worker.send_signal(SIGSTOP)
        cleanup.callback(worker.send_signal, SIGCONT)
        assert eventually_gone(store, KEY, 3 * LIMIT_SECONDS if leased else 1.0) is leased
        worker.send_signal(SIGCONT)
        assert eventually(lambda: says(worker) == ("lost" if leased else "lasts"))
        assert other.is_alive()
        assert b"m/other" in everything(store)


def test_announcements_of_many_processes_end_alone(place: Place, store: Store) -> None:
    """And what ends with a dead process is not what somebody announced under the same key since."""
    with ExitStack() as stack:
        workers = [stack.enter_context(announcing(place, b"m/%d" % n)) for n in range(4)]
        for worker in workers[:2]:
            worker.kill()
            worker.wait()
        again = announce(place.open(), b"m/0", b"again")
        assert eventually_gone(store, b"m/1")
        leased = not place.address.startswith("sqlite:")
        # Both died at the same time, give or take what was left of their leases.
        assert not eventually_gone(store, b"m/0", 5.0 if leased else 0.5)
        assert everything(store) == {b"m/0": b"again", b"m/2": b"far", b"m/3": b"far"}
        assert again.is_alive()


def test_what_nobody_announced_is_swept_where_a_sweep_is_asked_to(
    place: Place, store: Store
) -> None:
    kept = announce(store)
    other = place.open()
    put(other, (b"m/by-hand", b"x"), (b"m/odd", b"y"), (b"n/row", b"z"), (b"m", b"short"))
    assert other.remove_expired() == 0
    assert other.remove_expired(b"m/") == 2
    assert everything(other) == {KEY: b"v", b"n/row": b"z", b"m": b"short"}
    assert other.remove_expired(b"m/") == 0
    kept.update(b"w")
    assert everything(store, [b"m/"]) == {KEY: b"w"}
