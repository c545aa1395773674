"""Certificates are read before tokens are sent: so many at a time, each for a bounded time."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from deploy.local.ports import LOOPBACK
from resolver.errors import DeadlineExceeded, KdirError, Unreachable
from resolver.keyed_slots import KeyedSlots
from resolver.peer_certificates import PeerCertificates, TlsMaterial, read_certificate
from tests.support.federation import eventually
from tests.support.identities import Authority

MOST = 64


@pytest.mark.parametrize("count", [MOST, MOST + 1, 10 * MOST])
def test_so_many_are_read_at_a_time(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resolver.peer_certificates._READ_SECONDS", 1.0)
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


def test_what_was_read_is_returned_though_other_readings_have_evicted_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the connection that carries the token would trust the whole CA."""
    monkeypatch.setattr("resolver.peer_certificates._MOST_SERVERS", 0)
    certificates = PeerCertificates(TlsMaterial(b""), lambda endpoint, _, __: endpoint.encode())
    assert certificates.read("h:1", "kc-a", 30) == b"h:1"
    assert certificates.known("h:1", "kc-a") == b""


def test_a_caller_gets_its_part_of_the_readings_and_others_theirs() -> None:
    go_on, reading = threading.Event(), threading.Semaphore(0)

    def read(endpoint: str, _: str, __: TlsMaterial) -> bytes:
        if endpoint.startswith("slow"):
            reading.release()
            assert go_on.wait(60)
        return endpoint.encode()

    certificates = PeerCertificates(TlsMaterial(b""), read, KeyedSlots(4, 2))
    with ThreadPoolExecutor(20) as callers:
        asked = [
            callers.submit(certificates.read, f"slow{one}:1", "kc-a", 60, caller="greedy")
            for one in range(20)
        ]
        try:
            for _ in range(2):
                assert reading.acquire(timeout=60)
            for one in range(10):
                read_ = certificates.read(f"h{one}:1", "kc-a", 60, caller="other")
                assert read_ == f"h{one}:1".encode()
            assert not reading.acquire(blocking=False)
        finally:
            go_on.set()
        # Those that waited for a slot got one, or were refused.
        failures = [one.exception(60) for one in asked]
        assert failures.count(None) >= 2
        assert all(one is None or isinstance(one, Unreachable) for one in failures)


def test_who_finds_no_slot_waits_for_one() -> None:
    go_on, reading = threading.Event(), threading.Event()

    def read(endpoint: str, _: str, __: TlsMaterial) -> bytes:
        reading.set()
        assert go_on.wait(60)
        return endpoint.encode()

    slots = KeyedSlots(1, 1)
    certificates = PeerCertificates(TlsMaterial(b""), read, slots)
    with ThreadPoolExecutor(2) as callers:
        first = callers.submit(certificates.read, "a:1", "kc-a", 60, caller="a")
        assert reading.wait(60)
        second = callers.submit(certificates.read, "b:1", "kc-a", 60, caller="b")
        with pytest.raises(Unreachable, match="too many"):
            certificates.read("c:1", "kc-a", 0.01, caller="c")
        go_on.set()
        assert (first.result(60), second.result(60)) == (b"a:1", b"b:1")


def material(tmp_path: Path) -> TlsMaterial:
    return TlsMaterial(Authority(tmp_path).issue("client").ca)


def reading(endpoint: str, tls: TlsMaterial) -> Future[bytes]:
    found: Future[bytes] = Future()

    def read() -> None:
        try:
            found.set_result(read_certificate(endpoint, "kc-a", tls))
        except KdirError as error:
            found.set_exception(error)

    threading.Thread(target=read, daemon=True).start()
    return found


def test_a_handshake_of_single_bytes_ends(
    tmp_path: Path, cleanup: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each comes soon after the one before."""
    monkeypatch.setattr("resolver.peer_certificates._READ_SECONDS", 1.0)
    listener = cleanup.enter_context(socket.create_server((LOOPBACK, 0)))
    stop = threading.Event()
    cleanup.callback(stop.set)

    def drip() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(b"\x16\x03\x03\x40\x00")  # a record of 16 KiB
            while not stop.wait(0.1):
                connection.sendall(b"\x02")

    threading.Thread(target=drip, daemon=True).start()
    found = reading(f"{LOOPBACK}:{listener.getsockname()[1]}", material(tmp_path))
    assert eventually(found.done, 60)
    assert isinstance(found.exception(), Unreachable)


def test_all_addresses_of_a_name_share_one_deadline(
    tmp_path: Path, cleanup: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody takes its connections, and its queue is full: further ones hang.
    listener = cleanup.enter_context(socket.socket())
    listener.bind((LOOPBACK, 0))
    listener.listen(0)
    address = listener.getsockname()
    for _ in range(8):
        waiting = cleanup.enter_context(socket.socket())
        waiting.setblocking(False)
        with suppress(BlockingIOError):
            waiting.connect(address)
    one = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [one] * 30)
    found = reading(f"many.example:{address[1]}", material(tmp_path))
    assert eventually(found.done, 60)
    assert isinstance(found.exception(), Unreachable)
