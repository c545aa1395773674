"""Certificates are read before tokens are sent: so many at a time, each for a bounded time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from resolver.errors import DeadlineExceeded, Unreachable
from resolver.peer_certificates import PeerCertificates, TlsMaterial
from tests.support.federation import eventually

MOST = 64


@pytest.mark.parametrize("count", [MOST, MOST + 1, 10 * MOST])
def test_so_many_are_read_at_a_time(count: int) -> None:
    go_on, reading = threading.Event(), threading.Semaphore(0)

    def read(endpoint: str, cluster_id: str, _: TlsMaterial) -> bytes:
        reading.release()
        assert go_on.wait(30)
        return f"{endpoint} {cluster_id}\n".encode()

    certificates = PeerCertificates(TlsMaterial(b""), read)
    with ThreadPoolExecutor(count) as callers:
        asked = [callers.submit(certificates.read, f"h{one}:1", "kc-a", 30) for one in range(count)]
        eventually(lambda: sum(one.done() for one in asked) >= count - MOST)
        for _ in range(MOST):
            assert reading.acquire(timeout=30)
        assert not reading.acquire(blocking=False)
        refused = [one for one in asked if one.done()]
        assert len(refused) == count - MOST
        assert all(isinstance(one.exception(), Unreachable) for one in refused)
        go_on.set()
        assert len([one for one in asked if one not in refused and one.result(30)]) == MOST
    assert certificates.read("later:1", "kc-a", 30) == b"later:1 kc-a\n"


def test_who_waits_for_one_has_a_time_of_its_own() -> None:
    go_on = threading.Event()

    def read(endpoint: str, _: str, __: TlsMaterial) -> bytes:
        assert go_on.wait(30)
        return endpoint.encode()

    certificates = PeerCertificates(TlsMaterial(b""), read)
    with pytest.raises(DeadlineExceeded):
        certificates.read("h:1", "kc-a", 0.01)
    go_on.set()
    assert certificates.read("h:1", "kc-a", 30) == b"h:1"
