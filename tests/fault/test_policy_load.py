"""Policies while they are loaded: who asks waits and is told the truth; none is ever empty.

Pulsar's races of the policy cache (P1, P2, P5).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from kdir.v1 import policies_pb2

from deploy.local.etcd import EtcdCluster
from directory.namespace.command import CreateDirectory, CreateTopic
from directory.namespace.effective_policies import effective, levels_of
from directory.namespace.entry import Policies
from resolver import Resolver
from resolver.errors import KdirError, NotReady, Unavailable
from resolver.transport import GrpcTransport, Metadata, Method
from tests.support.federation import Federation, Server, eventually
from tests.unit.store.scripted_store import ScriptedStore
from tests.unit.writing.bench import Bench
from tests.unit.writing.bench import path as entry_path

OWNER, READERS = "search", 8


@pytest.fixture(scope="module")
def etcd(etcd_clusters: Callable[..., EtcdCluster]) -> Iterator[EtcdCluster]:
    with etcd_clusters(members=1) as cluster:
        yield cluster


@pytest.fixture
def server(etcd: EtcdCluster, tmp_path: Path) -> Iterator[Server]:
    """Yields a server that keeps one policy in etcd."""
    with Federation(tmp_path) as federation:
        address = f"etcd://{','.join(etcd.endpoints)}/{tmp_path.name}"
        server = federation.start("/la", store=address)
        server.mkdir("/la/d")
        server.entries(
            "UpdateEntry",
            path="/la/d",
            entry={"policies": {"owner": OWNER, "topic_config": {"retention.ms": {"value": "5"}}}},
            update_mask={"paths": ["policies.owner", "policies.topic_config.retention.ms"]},
        )
        yield server


def policies_of(resolver: Resolver) -> dict[str, str]:
    request = policies_pb2.GetEffectivePoliciesRequest(path="/la/d")
    answer = resolver.call("/la/d", "PolicyService.GetEffectivePolicies", request)
    return {one.field: one.value for one in answer.values}


WHOLE = {"owner": OWNER, "topic_config[retention.ms]": "5"}


class Counting(GrpcTransport):
    """Transport that counts the calls of a client."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def call(
        self,
        endpoint: str,
        method: Method,
        request: Message,
        timeout_seconds: float,
        *,
        cluster_id: str = "",
        more: Metadata = (),
        caller: str = "",
    ) -> Any:
        self.count += 1
        return super().call(
            endpoint,
            method,
            request,
            timeout_seconds,
            cluster_id=cluster_id,
            more=more,
            caller=caller,
        )


def test_P1_P5_first_reads_during_a_load_that_fails_wait_and_get_all(
    etcd: EtcdCluster, server: Server
) -> None:
    server.kill()
    (member,) = etcd.members
    member.kill()
    starts = threading.Thread(target=server.start)
    starts.start()  # its load fails, again and again
    eventually(lambda: server.outcome("/la/d") == "NOT_READY")
    hasty = Counting()
    with Resolver([server.address], transport=hasty, timeout_seconds=6) as resolver:
        with pytest.raises(NotReady):
            policies_of(resolver)
        assert hasty.count > 2, "it is asked again as long as there is time"
    begun = threading.Barrier(READERS + 1)

    def read(_: int) -> dict[str, str]:
        with Resolver([server.address], timeout_seconds=60) as resolver:
            begun.wait()
            return policies_of(resolver)

    with ThreadPoolExecutor(READERS) as readers:
        asked = [readers.submit(read, number) for number in range(READERS)]
        begun.wait()
        member.start()
        assert [one.result() for one in asked] == [WHOLE] * READERS
    starts.join(60)


def test_P2_a_reader_sees_all_of_a_policy_or_an_error_while_servers_come_and_go(
    server: Server,
) -> None:
    over = threading.Event()
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    def read() -> None:
        while not over.wait(0.02):
            with Resolver([server.address], timeout_seconds=10) as resolver:
                try:
                    found = str(policies_of(resolver))
                except Unavailable:
                    found = "unavailable"
                except KdirError as error:
                    found = repr(error)
            with lock:
                seen[found] += 1

    readers = [threading.Thread(target=read) for _ in range(4)]
    for one in readers:
        one.start()
    for _ in range(3):
        server.kill()
        server.start()
        enough = seen[str(WHOLE)] + 4
        eventually(partial(_is_above, seen, enough))
    over.set()
    for one in readers:
        one.join()
    assert set(seen) <= {str(WHOLE), "unavailable"}, seen


def test_P2_a_tree_that_is_loaded_again_and_again_is_never_empty() -> None:
    store = ScriptedStore()
    with Bench(store) as bench:
        policies = Policies(owner=OWNER)
        bench.writer.commit_command(CreateDirectory(path=entry_path("/la/d"), policies=policies))
        over = threading.Event()
        wrong: list[object] = []
        reads: list[int] = []

        def read() -> None:
            while not over.is_set():
                snapshot = bench.replica.snapshot
                at = snapshot.find_directory(("d",))
                owner = None if at is None else effective(levels_of(snapshot, at)).owner
                if owner != OWNER:
                    wrong.append((snapshot.revision, owner))
                reads.append(snapshot.revision)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for one in readers:
            one.start()
        for number in range(10):
            loads = bench.replica.reloads
            with store.in_one_breath():
                store.backup()
                store.restore()
            eventually(partial(_has_reloaded, bench, loads))
            bench.writer.commit_command(CreateTopic(path=entry_path(f"/la/d/t{number}")))
        over.set()
        for one in readers:
            one.join()
        assert reads
        assert not wrong


def _is_above(seen: Counter[str], count: int) -> bool:
    return seen[str(WHOLE)] > count


def _has_reloaded(bench: Bench, loads: int) -> bool:
    return bench.replica.reloads > loads
