"""Election: exclusive, freed when its holder dies, fenced."""

import time

from directory.store.base import Committed, Conflict, Leadership, Put, Store, Transaction
from tests.conformance.store.places import Place, output_of, start_worker
from tests.conformance.store.reading import everything, put


def _eventually(store: Store, role: str, candidate: str) -> Leadership:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        leadership = store.elect(role, candidate)
        if leadership is not None:
            return leadership
        time.sleep(0.02)
    raise AssertionError(f"nobody gave up {role}")


def test_a_role_has_one_holder_until_it_is_released(place: Place, store: Store) -> None:
    other = place.open()
    first = store.elect("publisher", "one")
    assert first is not None
    assert first.held()
    assert other.elect("publisher", "two") is None
    assert store.elect("publisher", "three") is None
    first.release()
    assert not first.held()
    second = other.elect("publisher", "two")
    assert second is not None
    assert second.held()


def test_roles_are_independent(store: Store) -> None:
    assert store.elect("publisher", "one") is not None
    assert store.elect("reconciler", "one") is not None


def test_S19_who_lost_a_role_can_write_nothing_under_it(place: Place, store: Store) -> None:
    first = store.elect("publisher", "one")
    assert first is not None
    done = store.commit(Transaction((first.guard,), (Put(b"k", b"first"),)))
    assert isinstance(done, Committed)
    first.release()
    second = place.open().elect("publisher", "two")
    assert second is not None
    late = store.commit(Transaction((first.guard,), (Put(b"k", b"late"),)))
    assert isinstance(late, Conflict)
    assert isinstance(store.commit(Transaction((second.guard,), (Put(b"k", b"2"),))), Committed)
    assert everything(store, [b"k"]) == {b"k": b"2"}


def test_S19_kill_9_frees_the_role_and_the_dead_one_is_fenced(place: Place, store: Store) -> None:
    worker = start_worker(place, "lead", "publisher", "far")
    answer, fence = output_of(worker).readline().split()
    assert answer == "leads"
    assert store.elect("publisher", "near") is None
    worker.kill()
    worker.wait()
    leadership = _eventually(store, "publisher", "near")
    assert leadership.guard.value is not None
    assert leadership.guard.value.hex() != fence


def test_a_role_is_lost_by_closing_the_process_that_holds_it_only(
    place: Place, store: Store
) -> None:
    leadership = store.elect("publisher", "one")
    assert leadership is not None
    place.open().close()
    put(store, (b"a", b""))
    assert place.open().elect("publisher", "two") is None
