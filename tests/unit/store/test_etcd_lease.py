"""S22: what a lease is asked to last, and how long it is believed in."""

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import closing
from typing import Any

import grpc
import pytest

from directory.store.base import StoreUnreachable
from directory.store.etcd.connection import EtcdConnection
from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.etcd_address import EtcdAddress
from directory.store.etcd.leases import Lease, Leases, clamp
from tests.support.federation import eventually


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


# -- renewing -----------------------------------------------------------------------------------


class Granting(etcdrpc.LeaseServicer):  # type: ignore[misc]
    """Lease service that grants any lease, and answers renewals as the test sets."""

    def __init__(self) -> None:
        self.renewals = 0
        self.silent = True

    def LeaseGrant(self, request: Any, context: Any) -> Any:
        return etcdrpc.LeaseGrantResponse(ID=7, TTL=request.TTL)

    def LeaseKeepAlive(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        self.renewals += 1
        if not self.silent:
            yield etcdrpc.LeaseKeepAliveResponse(ID=7, TTL=9)


@pytest.fixture
def granting() -> Iterator[tuple[Granting, EtcdConnection]]:
    servicer = Granting()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    etcdrpc.add_LeaseServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    connection = EtcdConnection(EtcdAddress.parse(f"etcd://127.0.0.1:{port}/la"))
    try:
        yield servicer, connection
    finally:
        connection.close()
        server.stop(None)


def test_a_member_that_ends_a_renewal_in_silence_did_not_renew(
    granting: tuple[Granting, EtcdConnection],
) -> None:
    servicer, connection = granting
    with pytest.raises(StoreUnreachable, match="without an answer"):
        connection.keep_lease(7, 5)
    servicer.silent = False
    assert connection.keep_lease(7, 5).TTL == 9


def test_a_renewal_that_stumbles_does_not_end_the_others(
    granting: tuple[Granting, EtcdConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    servicer, connection = granting
    servicer.silent = False
    tried: list[int] = []
    keep: Callable[[int, float], Any] = connection.keep_lease

    def stumble(lease: int, seconds: float) -> Any:
        tried.append(lease)
        if len(tried) == 1:
            raise RuntimeError("a bug")
        return keep(lease, seconds)

    monkeypatch.setattr(connection, "keep_lease", stumble)
    with closing(Leases(connection, 3)) as leases:
        leases.grant()
        eventually(lambda: servicer.renewals)
