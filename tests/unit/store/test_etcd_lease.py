"""S22: what a lease is asked to last, and how long it is believed in."""

import pytest

from directory.store.etcd.leases import Lease, clamp


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        (9, 9),
        (0, 3),
        (-5, 3),
        (0x12345678FFFFFFFF, 60),
        (2**32, 60),
        (float("inf"), 60),
        (float("nan"), 3),
        (3.9, 3),
        (1e-9, 3),
    ],
)
def test_S22_a_leases_time_is_clamped(asked: float, seconds: int) -> None:
    assert clamp(asked) == seconds


@pytest.mark.parametrize("answered", [0x12345678FFFFFFFF, 2**32, 9, 60])
def test_S22_no_longer_is_believed_than_was_asked_for(answered: int) -> None:
    clock = Clock()
    lease = Lease(1, 9, clock)
    lease.renewed(clock.now, answered)
    assert lease.lasts()
    clock.now += 9
    assert not lease.lasts()


@pytest.mark.parametrize("answered", [0, -1, -(2**63)])
def test_S22_a_lease_that_etcd_gives_no_time_is_ended(answered: int) -> None:
    clock = Clock()
    lease = Lease(1, 9, clock)
    lease.renewed(clock.now, 9)
    lease.renewed(clock.now, answered)
    assert not lease.lasts()
    assert lease.ended


def test_a_lease_is_counted_from_before_it_was_asked_for() -> None:
    clock = Clock()
    lease = Lease(1, 10, clock)
    asked_at = clock.now
    clock.now += 8.5  # the answer took its time; etcd may have begun right at first
    lease.renewed(asked_at, 10)
    assert lease.lasts()
    clock.now += 0.6
    assert not lease.lasts()


def test_a_late_answer_to_an_old_renewal_shortens_nothing() -> None:
    clock = Clock()
    lease = Lease(1, 10, clock)
    lease.renewed(clock.now, 10)
    lease.renewed(clock.now - 8, 10)
    clock.now += 8
    assert lease.lasts()


def test_S19_who_slept_through_his_lease_knows_it_at_once() -> None:
    clock = Clock()
    lease = Lease(1, 9, clock)
    lease.renewed(clock.now, 9)
    clock.now += 60
    assert not lease.lasts()
    assert not lease.ended  # etcd has the last word: the next renewal asks it
