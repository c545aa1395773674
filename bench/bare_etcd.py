"""The bare peer of a store in etcd: clients of etcd that write, read and watch the same rows.

A bare transaction is the request that a server sends for a new directory, recorded once and sent
with other names and ids of the same length: the guards, reads, writes and sizes are the same. Its
rows are valid, and every server of the cluster applies them.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final, Self
from unittest import mock

import grpc

from bench import ground
from deploy.local.etcd import EtcdCluster, EtcdMember
from directory.namespace.command import CreateDirectory
from directory.namespace.keys import ENTRY
from directory.store.addresses import open_store
from directory.store.base import Put
from directory.store.etcd.connection import EtcdConnection
from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.etcd_address import EtcdAddress
from directory.store.etcd.key_layout import Layout, end_of
from directory.store.etcd.store import EtcdStore
from directory.store.etcd.transaction import put
from directory.store.replica import LOADED_PREFIXES, Replica, ReplicaState
from directory.store.writer import Writer
from directory.wire.entry_codec import ProtoCodec
from resolver.path import Path

__all__ = [
    "MAX_OPERATIONS",
    "PARENT",
    "NewDirectories",
    "address_of",
    "fill",
    "leader_of",
    "number_in",
    "read_of_a_topic",
    "read_pages",
    "transacting",
    "watched",
]

PARENT: Final = f"{ground.MOUNT}/above/bench"
"""Where the directories of ``NewDirectories`` are made."""
_NUMBER: Final = "xxxxxxx"  # placeholder of a number in the recorded request
_LEADER: Final = (("hasleader", "true"),)
_SECONDS: Final = 10.0
_FILLED_AT_ONCE: Final = 5_000
"""Rows of a transaction, some 800 kB; etcd takes 1.5 MiB at once."""
MAX_OPERATIONS: Final = f"--max-txn-ops={2 * _FILLED_AT_ONCE}"
"""Flag of etcd that ``fill`` needs."""

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


def address_of(cluster: EtcdCluster) -> str:
    """Returns the address of a store in this etcd cluster."""
    return f"etcd://{','.join(cluster.endpoints)}/bench"


def _layout(address: str) -> Layout:
    return Layout(EtcdAddress.parse(address).root)


class NewDirectories:
    """Source of requests that make one directory each, numbered from 1. Thread-safe."""

    def __init__(self, recorded: bytes, event: bytes, entry_id: int) -> None:
        self._recorded: Final = recorded
        self._event: Final = event
        self._entry_id: Final = entry_id.to_bytes(8, "little")
        self._numbers: Final = itertools.count(1)

    @classmethod
    def record(cls, address: str, kind: str = "bare") -> Self:
        """Makes ``PARENT``, and records the transaction of one directory below it, by a writer as
        a server has it. The directories' names begin with ``kind``.
        """
        store = open_store(address, ground.CLUSTER)
        if not isinstance(store, EtcdStore):
            raise TypeError(f"not a store in etcd: {address}")
        codec = ProtoCodec()
        replica = Replica(store, codec)
        writer = Writer(store, replica, codec, lambda _: Path.parse(ground.MOUNT))
        parent = Path.parse(PARENT)
        replica.start()
        try:
            while replica.state is not ReplicaState.SERVING:
                time.sleep(0.01)
            writer.commit_command(CreateDirectory(path=parent, make_parents=True))
            with mock.patch.object(
                store.connection, "txn", wraps=store.connection.txn
            ) as transactions:
                written = writer.commit_command(
                    CreateDirectory(path=parent.child(f"{kind}-{_NUMBER}")),
                    request_id=f"request-{kind}-{_NUMBER}",
                )
        finally:
            replica.stop()
            store.close()
        request, entry = transactions.call_args.args[0], written.plan.entry
        if entry is None:
            raise AssertionError("no entry was made")
        events = [
            one.request_put.key for one in request.success if b"/kv/o/" in one.request_put.key
        ]
        recorded = request.SerializeToString()
        return cls(recorded, events[0].rpartition(b"-")[2], entry.entry_id)

    @property
    def size(self) -> int:
        """Bytes of a request."""
        return len(self._recorded)

    def next(self) -> bytes:
        """Returns the next request."""
        return self.take()[1]

    def take(self) -> tuple[int, bytes]:
        """Returns the next request, with its number."""
        number = next(self._numbers)
        request = (
            self._recorded.replace(_NUMBER.encode(), b"%07d" % number)
            .replace(self._event, secrets.token_hex(len(self._event) // 2).encode())
            .replace(self._entry_id, (secrets.randbits(62) + 3).to_bytes(8, "little"))
        )
        return number, request


def number_in(text: str) -> int | None:
    """Returns N of a path or key that ends with ``bare-N``, a directory of that kind; else None."""
    _, bare, number = text.rpartition("bare-")
    return int(number) if bare and number.isdigit() else None


@contextmanager
def transacting(endpoint: str) -> Iterator[Any]:
    """Yields ``call``, which sends transactions to one member: ``call(request, timeout=seconds)``,
    or ``call.future`` with the same arguments.
    """
    with grpc.insecure_channel(endpoint, _OPTIONS) as channel:
        yield _Transacting(channel)


class _Transacting:
    def __init__(self, channel: grpc.Channel) -> None:
        self._call: Final[Any] = channel.unary_unary(
            "/etcdserverpb.KV/Txn", response_deserializer=etcdrpc.TxnResponse.FromString
        )

    def __call__(self, request: bytes, timeout: float) -> None:
        """Sends a transaction and waits for its answer.

        Raises:
            grpc.RpcError
            AssertionError: a guard did not hold.
        """
        if not self._call(request, timeout=timeout, metadata=_LEADER).succeeded:
            raise AssertionError("a guard did not hold")

    def future(self, request: bytes, timeout: float) -> Any:
        """Sends a transaction; returns its future, which does not check the guards."""
        return self._call.future(request, timeout=timeout, metadata=_LEADER)


def read_pages(address: str, rows: int) -> int:
    """Reads what a replica loads, at one revision, in pages of ``rows``; returns the row count."""
    layout = _layout(address)
    count = revision = 0
    with grpc.insecure_channel(EtcdAddress.parse(address).endpoints[0], _OPTIONS) as channel:
        kv = etcdrpc.KVStub(channel)
        for prefix in LOADED_PREFIXES:
            key, end = layout.row_range(prefix)
            more = True
            while more:
                answer = kv.Range(
                    etcdrpc.RangeRequest(key=key, range_end=end, limit=rows, revision=revision)
                )
                revision = revision or answer.header.revision
                # As Python values: a bare client that uses the rows needs them.
                page = [(kv.key, kv.value) for kv in answer.kvs]
                count, more = count + len(page), answer.more
                if page:
                    key = page[-1][0] + b"\0"
    return count


def read_of_a_topic(address: str) -> bytes:
    """Returns a RangeRequest, as bytes: a serializable read of one topic's key."""
    key, end = _layout(address).row_range(ENTRY)
    with grpc.insecure_channel(EtcdAddress.parse(address).endpoints[0], _OPTIONS) as channel:
        kv = etcdrpc.KVStub(channel)
        all_rows = etcdrpc.RangeRequest(key=key, range_end=end, count_only=True)
        some = etcdrpc.RangeRequest(
            key=key, range_end=end, limit=kv.Range(all_rows).count // 2, keys_only=True
        )
        request = etcdrpc.RangeRequest(key=kv.Range(some).kvs[-1].key, serializable=True)
        if kv.Range(request).count != 1:
            raise AssertionError("no such key")
    return bytes(request.SerializeToString())


@contextmanager
def watched(endpoint: str, address: str, saw: Callable[[bytes], None]) -> Iterator[None]:
    """Watches the store's rows at a member; a thread calls ``saw`` with each changed key."""
    layout = _layout(address)
    create = etcdrpc.WatchCreateRequest(key=layout.rows, range_end=end_of(layout.rows))
    with grpc.insecure_channel(endpoint, _OPTIONS) as channel:
        ended = threading.Event()
        requests = iter((etcdrpc.WatchRequest(create_request=create),))
        answers = etcdrpc.WatchStub(channel).Watch(
            itertools.chain(requests, _nothing_until(ended)), metadata=_LEADER
        )
        next(answers)  # it is created

        def follow() -> None:
            try:
                for answer in answers:
                    for event in answer.events:
                        saw(event.kv.key)
            except grpc.RpcError:
                pass  # it is over

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        try:
            yield
        finally:
            ended.set()
            answers.cancel()
            reader.join()


def _nothing_until(ended: threading.Event) -> Iterator[Any]:
    ended.wait()
    yield from ()


def leader_of(cluster: EtcdCluster) -> EtcdMember:
    """Returns the member that reports itself as the leader."""
    with closing(EtcdConnection(EtcdAddress.parse(address_of(cluster)))) as connection:
        for number, member in enumerate(cluster.members):
            status = connection.status(number, _SECONDS)
            if status.leader == status.header.member_id:
                return member
    raise AssertionError("no member leads")


def fill(address: str, rows: Iterable[Put]) -> None:
    """Puts rows into a new store, in transactions for which etcd needs ``MAX_OPERATIONS``."""
    open_store(address, ground.CLUSTER).close()
    layout = _layout(address)
    with transacting(EtcdAddress.parse(address).endpoints[0]) as make:
        for chunk in _chunks(rows, _FILLED_AT_ONCE):
            operations = [put(layout.row(one.key), one.value) for one in chunk]
            operations.append(put(layout.commit, secrets.token_hex(8).encode()))
            request = etcdrpc.TxnRequest(success=operations)
            make(request.SerializeToString(), timeout=60)


def _chunks(rows: Iterable[Put], size: int) -> Iterator[Sequence[Put]]:
    remaining = iter(rows)
    while chunk := list(itertools.islice(remaining, size)):
        yield chunk
