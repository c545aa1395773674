"""Random operations on a real etcd cluster with a fault every second, and what followed them.

``python -m tests.fault.etcd.chaos --operations 10000`` is the long run; a short one is a test.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import cast

import grpc

from deploy.local.etcd import EtcdCluster
from directory.namespace.keys import KAFKA, kafka_key
from directory.store.base import (
    Committed,
    Delete,
    KeyEquals,
    Put,
    Store,
    StoreUnreachable,
    Transaction,
    UnchangedSince,
    Write,
)
from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.store import EtcdStore
from directory.store.replica import Replica, ReplicaState
from directory.wire.entry_codec import ProtoCodec
from tests.fault.etcd.links import Link, Links
from tests.fault.etcd.record import Record, RecordingStore, Took, truth_of, violations

__all__ = ["Outcome", "Run", "fresh_facts"]

_KEYS = 40
_CATCH_UP_SECONDS = 45.0


@dataclass
class Outcome:
    """Outcome of a run."""

    violations: list[str]
    acknowledged: int
    unknown: int
    refused: int
    applied: list[int]
    """Revisions that each replica applied one by one."""
    reloads: list[int]
    restarts: list[int]
    faults: Counter[str]
    seconds: float
    same: bool
    """Whether every replica ended as a fresh read of the store."""

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        return (
            f"{self.acknowledged} commits, {self.refused} refused, {self.unknown} of unknown effect"
            f" in {self.seconds:.0f} s; faults: {faults or 'none'};"
            f" applied {self.applied}, reloads {self.reloads}, watch restarts {self.restarts};"
            f" {'all replicas equal the store' if self.same else 'A REPLICA DIFFERS'};"
            f" {len(self.violations)} violations"
        )


def fresh_facts(store: Store) -> tuple[int, dict[bytes, bytes]]:
    """Returns what a load reads now, and of which revision."""
    loading = store.load([KAFKA])
    return loading.revision, dict(row for page in loading.pages() for row in page)


@dataclass
class _Tally:
    acknowledged: dict[int, tuple[Write, ...]] = field(default_factory=dict)
    unknown: int = 0
    refused: int = 0
    done: int = 0


class Run:
    """One run on a cluster that it may hurt."""

    def __init__(
        self,
        cluster: EtcdCluster,
        seed: int,
        *,
        faults: bool = True,
        spoil: Callable[[Store], Store] = lambda store: store,
    ) -> None:
        """``spoil`` is put between the first replica and its store, to show that it is found."""
        self._cluster = cluster
        self._random = random.Random(seed)
        self._faults_wanted = faults
        self._spoil = spoil
        self._faults: Counter[str] = Counter()
        self._stop = threading.Event()
        self._tally = _Tally()
        self._lock = threading.Lock()

    def go(self, operations: int) -> Outcome:
        """Lets writers make so many operations while faults come and go; then all is healed, and
        checked.
        """
        began = time.monotonic()
        with ExitStack() as cleanup:
            links = cleanup.enter_context(Links(*self._cluster.endpoints))
            address = f"etcd://{','.join(links.endpoints)}/chaos"
            stores = [self._open(address, cleanup) for _ in range(2)]
            records = [Record() for _ in stores]
            recording = [
                cast("Store", RecordingStore(cast("Store", store), record))
                for store, record in zip(stores, records, strict=True)
            ]
            recording[0] = self._spoil(recording[0])
            replicas = [
                cleanup.enter_context(_following(store, record))
                for store, record in zip(recording, records, strict=True)
            ]
            self._work(address, links, operations, cleanup)
            same = self._all_caught_up(replicas, stores[0])
        truth, found = truth_of((one.entries for one in records), self._tally.acknowledged)
        for record in records:
            found += violations(record.entries, truth)
        return Outcome(
            violations=found,
            acknowledged=len(self._tally.acknowledged),
            unknown=self._tally.unknown,
            refused=self._tally.refused,
            applied=[sum(isinstance(e, Took) for e in one.entries) for one in records],
            reloads=[one.reloads for one in replicas],
            restarts=[one.watch_restarts for one in replicas],
            faults=self._faults,
            seconds=time.monotonic() - began,
            same=same,
        )

    @staticmethod
    def _open(address: str, cleanup: ExitStack) -> EtcdStore:
        store = EtcdStore.open(address, "chaos")
        cleanup.callback(store.close)
        return store

    def _work(self, address: str, links: Links, operations: int, cleanup: ExitStack) -> None:
        breaker = threading.Thread(target=self._break, args=(links,))
        # One writes through the links and shares their faults; the other goes on while the
        # replicas are cut off.
        direct = address.replace(",".join(links.endpoints), ",".join(self._cluster.endpoints))
        writers = [
            threading.Thread(
                target=self._write,
                args=(
                    self._open(where, cleanup),
                    random.Random(self._random.random()),
                    operations // 2,
                ),
            )
            for where in (address, direct)
        ]
        if self._faults_wanted:
            breaker.start()
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        self._stop.set()
        if self._faults_wanted:
            breaker.join()

    # -- operations --------------------------------------------------------------------------

    def _write(self, store: EtcdStore, chance: random.Random, operations: int) -> None:
        for _ in range(operations):
            transaction = _transaction(chance, store)
            try:
                done = store.commit(transaction, 3.0)
            except StoreUnreachable:
                with self._lock:
                    self._tally.unknown += 1
                continue
            with self._lock:
                if isinstance(done, Committed):
                    assert done.revision not in self._tally.acknowledged
                    self._tally.acknowledged[done.revision] = transaction.writes
                else:
                    self._tally.refused += 1

    # -- faults ------------------------------------------------------------------------------

    def _break(self, links: Links) -> None:
        """Something breaks every second, for up to a second and a half."""
        faults: Sequence[Callable[[Links], None]] = (
            self._kill,
            self._pause,
            self._cut,
            self._blackhole,
            self._compact,
            self._compact_while_cut,
        )
        while not self._stop.wait(0.2):
            fault = self._random.choice(faults)
            self._faults[fault.__name__.strip("_")] += 1
            fault(links)

    def _sleep(self) -> None:
        time.sleep(self._random.uniform(0.3, 1.5))

    def _kill(self, _: Links) -> None:
        member = self._random.choice(self._cluster.members)
        member.kill()
        self._sleep()
        member.start()

    def _pause(self, _: Links) -> None:
        member = self._random.choice(self._cluster.members)
        member.pause()
        self._sleep()
        member.resume()

    def _cut(self, links: Links) -> None:
        self._hurt(links, Link.cut)

    def _blackhole(self, links: Links) -> None:
        self._hurt(links, Link.blackhole)

    def _hurt(self, links: Links, fault: Callable[[Link], None]) -> None:
        hurt = self._random.sample(links.links, self._random.randint(1, len(links.links)))
        for link in hurt:
            fault(link)
        self._sleep()
        for link in hurt:
            link.heal()

    def _compact(self, _: Links) -> None:
        """Directly, so that it also comes while the replicas are cut off."""
        for member in self._random.sample(self._cluster.members, len(self._cluster.members)):
            with grpc.insecure_channel(member.endpoint) as channel:
                kv = etcdrpc.KVStub(channel)
                try:
                    now = kv.Range(etcdrpc.RangeRequest(key=b"-"), timeout=1).header.revision
                    kv.Compact(
                        etcdrpc.CompactionRequest(revision=now - self._random.randint(0, 20)),
                        timeout=1,
                    )
                except grpc.RpcError:
                    continue
                return

    def _compact_while_cut(self, links: Links) -> None:
        for link in links.links:
            link.cut()
        self._sleep()
        self._compact(links)
        for link in links.links:
            link.heal()

    # -- the end -----------------------------------------------------------------------------

    def _all_caught_up(self, replicas: Sequence[Replica], store: Store) -> bool:
        for member in self._cluster.members:
            member.await_ready()
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        while True:
            try:
                revision, facts = fresh_facts(store)
                if all(_equals(one, revision, facts) for one in replicas):
                    return True
            except StoreUnreachable:
                pass
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)


def _equals(replica: Replica, revision: int, facts: dict[bytes, bytes]) -> bool:
    snapshot = replica.snapshot
    return (
        replica.state is ReplicaState.SERVING
        and snapshot.revision == revision
        and dict(snapshot.facts(KAFKA)) == facts
    )


@contextmanager
def _following(store: Store, record: Record) -> Iterator[Replica]:
    replica = Replica(store, ProtoCodec())
    replica.subscribe(record.applied)
    replica.start()
    try:
        replica.wait_for(0, 60)
        yield replica
    finally:
        replica.stop()


def _transaction(chance: random.Random, store: Store) -> Transaction:
    keys = chance.sample(range(_KEYS), chance.randint(1, 5))
    writes: list[Write] = []
    for number in keys:
        key = kafka_key(f"chaos-{number}")
        if chance.random() < 0.3:
            writes.append(Delete(key))
        else:
            writes.append(Put(key, chance.randbytes(chance.choice((0, 8, 2_000)))))
    match chance.randrange(8):
        case 0:
            return Transaction((KeyEquals(writes[0].key, None),), tuple(writes))
        case 1:
            return Transaction((UnchangedSince(KAFKA + b"none", 0),), tuple(writes))
        case _:
            return Transaction((), tuple(writes))


def main() -> int:
    """Runs the workload; returns exit code 1 when a guarantee was breached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    with EtcdCluster() as cluster:
        outcome = Run(cluster, options.seed).go(options.operations)
    for violation in outcome.violations[:50]:
        sys.stdout.write(f"{violation}\n")
    sys.stdout.write(f"seed {options.seed}: {outcome}\n")
    return 0 if outcome.same and not outcome.violations else 1


if __name__ == "__main__":
    sys.exit(main())
