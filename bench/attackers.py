"""``python -m bench.attackers NAME HOST:PORT``: runs one attack until standard input is closed.

It runs in a process of its own, so that its cost is not measured as the server's.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import grpc
from kdir.v1 import (
    access_pb2,
    directory_pb2,
    entry_pb2,
    policies_pb2,
    resolve_pb2,
    scan_pb2,
    watch_pb2,
)

from bench import ground
from resolver.revision_token import Position, Token
from tests.support.http2 import Raw, begin_frame

__all__ = ["ATTACKS"]

RESOLVE: Final = "/kdir.v1.ResolveService/Resolve"
BATCH: Final = "/kdir.v1.ResolveService/BatchResolve"
LIST: Final = "/kdir.v1.DirectoryService/ListEntries"
_KIND: Final = entry_pb2.ENTRY_KIND_DIRECTORY


def _channel(address: str) -> grpc.Channel:
    options = (
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_metadata_size", 1 << 20),
    )
    return grpc.insecure_channel(address, options)


def _loops(count: int, work: Callable[[], object]) -> None:
    """Starts ``count`` threads that repeat ``work`` until the process ends."""

    def again() -> None:
        while True:
            try:
                work()
            except (grpc.RpcError, OSError):
                time.sleep(0.001)

    for _ in range(count):
        threading.Thread(target=again, daemon=True).start()


def _unary(
    address: str, method: str, request: Any, count: int, metadata: ground.Metadata = ()
) -> None:
    """Repeats one request over one connection, ``count`` calls at a time."""
    call: Any = _channel(address).unary_unary(method)
    raw = request if isinstance(request, bytes) else request.SerializeToString()
    _loops(count, lambda: call(raw, timeout=20, metadata=metadata))


def _position(address: str) -> tuple[str, Position]:
    call: Any = _channel(address).unary_unary(RESOLVE)
    request = resolve_pb2.ResolveRequest(path=ground.MOUNT).SerializeToString()
    authority = resolve_pb2.ResolveResponse.FromString(call(request, timeout=20)).authority
    place = Position(authority.incarnation, authority.revision)
    return authority.cluster.cluster_id, place


def _raw(address: str, window: int | None = None) -> Raw:
    host, _, port = address.rpartition(":")
    made = Raw(int(port), window, host)
    made.acknowledge()
    return made


# -- the attacks ---------------------------------------------------------------------------------


def unfinished_requests(address: str) -> None:
    """Opens 900 requests by their headers alone on each of four connections, again and again on
    new ones.
    """

    def work() -> None:
        with _raw(address) as raw:
            begun = (begin_frame(2 * number + 1, RESOLVE) for number in range(900))
            raw.socket.sendall(b"".join(begun))
            time.sleep(2)

    _loops(4, work)


def idle_connections(address: str) -> None:
    """Opens a thousand connections, half of which send a preface."""
    kept: list[Any] = []
    for number in range(1_000):
        with suppress(OSError):
            if number % 2:
                kept.append(_raw(address))
            else:
                host, _, port = address.rpartition(":")
                kept.append(socket.create_connection((host, int(port)), timeout=20))
    _KEPT.extend(kept)


def open_streams(address: str) -> None:
    """Opens 520 watches on one connection, more than it may have, and repeats those refused."""
    watch: Any = _channel(address).unary_stream("/kdir.v1.WatchService/Watch")
    request = watch_pb2.WatchRequest(path=ground.MOUNT).SerializeToString()

    def work() -> None:
        for _ in watch(request):
            pass

    _loops(520, work)


def reflection_streams(address: str) -> None:
    """Opens 50 streams of gRPC's reflection, which send nothing for a minute."""
    method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    call: Any = _channel(address).stream_stream(method)

    def silent() -> Iterator[bytes]:
        time.sleep(60)
        yield b""

    def work() -> None:
        for _ in call(silent()):
            pass

    _loops(50, work)


def forged_tokens(address: str) -> None:
    """Reads with a token of a revision that never comes."""
    cluster_id, place = _position(address)
    token = str(Token({cluster_id: Position(place.incarnation, place.revision + 10**9)}))
    request = resolve_pb2.ResolveRequest(path=ground.MOUNT, token=token)
    _unary(address, RESOLVE, request, 32)


def large_batches(address: str) -> None:
    """Sends batches of 10,000 paths, the most that a call may have, with large answers."""
    paths = [ground.path_of(number % 10_000, 100) for number in range(10_000)]
    _unary(address, BATCH, resolve_pb2.BatchResolveRequest(paths=paths), 8)


def unread_answers(address: str) -> None:
    """Sends batches whose answers are never read."""
    paths = [ground.path_of(number % 10_000, 100) for number in range(2_000)]
    message = resolve_pb2.BatchResolveRequest(paths=paths).SerializeToString()

    def work() -> None:
        with _raw(address, window=0) as raw:
            for number in range(100):
                raw.request(2 * number + 1, BATCH, message)
                time.sleep(0.05)
            time.sleep(2)

    _loops(2, work)


def replaying_watchers(address: str) -> None:
    """Opens watches from the first change on, and reads only the first answer of each."""
    cluster_id, place = _position(address)
    token = str(Token({cluster_id: Position(place.incarnation, 1)}))
    request = watch_pb2.WatchRequest(path=ground.MOUNT, after_token=token).SerializeToString()
    watch: Any = _channel(address).unary_stream("/kdir.v1.WatchService/Watch")
    for _ in range(20):
        stream = watch(request)
        next(stream)
        _KEPT.append(stream)


def large_requests(address: str) -> None:
    """Sends requests of up to 4 MB: with a list of 3.9 million kinds, and with 150,000 grants."""
    listing = directory_pb2.ListEntriesRequest(
        path=ground.MOUNT, kinds=["ENTRY_KIND_DIRECTORY"] * 3_900_000
    )
    _unary(address, LIST, listing, 3)
    grants = access_pb2.AddGrantsRequest(path=ground.MOUNT)
    for _ in range(150_000):
        grants.grants.add(principal="User:x", operation=3, permission=2)
    _unary(address, "/kdir.v1.AccessService/AddGrants", grants, 3)


def large_masks(address: str) -> None:
    """Asks what a change of 40,000 tags would do (``what_if``)."""
    request = policies_pb2.GetEffectivePoliciesRequest(path=ground.MOUNT)
    for number in range(40_000):
        request.what_if.tags[f"k{number}"].value = "v"
        request.what_if_mask.paths.append(f"policies.tags.k{number}")
    _unary(address, "/kdir.v1.PolicyService/GetEffectivePolicies", request, 8)


def large_metadata(address: str) -> None:
    """Calls with 100 KB of metadata."""
    request = resolve_pb2.ResolveRequest(path=ground.MOUNT)
    _unary(address, RESOLVE, request, 8, (("x-large", "x" * 100_000),))


def large_listings(address: str) -> None:
    """Lists the whole tree by a glob, in pages of the largest size."""
    request = directory_pb2.ListEntriesRequest(
        path=ground.MOUNT, page_size=10_000, recursive=True, name_glob="**/*1*"
    )
    _unary(address, LIST, request, 8)


def scans(address: str) -> None:
    """Scans topics from the beginning, one page of 10,000 a call."""
    request = scan_pb2.ScanTopicsRequest(path=ground.MOUNT, page_size=10_000)
    _unary(address, "/kdir.v1.ScanService/ScanTopics", request, 8)


def histories(address: str) -> None:
    """Lists the largest pages of changes."""
    request = watch_pb2.ListChangesRequest(path=ground.MOUNT, page_size=10_000)
    _unary(address, "/kdir.v1.WatchService/ListChanges", request, 8)


ATTACKS: Final[dict[str, Callable[[str], None]]] = {
    one.__name__: one
    for one in (
        unfinished_requests,
        idle_connections,
        open_streams,
        reflection_streams,
        forged_tokens,
        large_batches,
        unread_answers,
        replaying_watchers,
        large_requests,
        large_masks,
        large_metadata,
        large_listings,
        scans,
        histories,
    )
}
_KEPT: Final[list[Any]] = []
"""Connections and streams that an attack keeps open."""


def main() -> None:
    """Begins the attack, prints ``attacking``, and waits for the end of standard input."""
    name, address = sys.argv[1:]
    ATTACKS[name](address)
    sys.stdout.write("attacking\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
