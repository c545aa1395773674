"""Loads and answers of servers on etcd, beside the same from sqlite, and etcd's own reads.

One member and the servers run on one core, the load on the other. Rates are per second of the
measured server's processor time, which the machine's other work does not change.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from unittest import mock

from bench import bare_etcd, ground, h2load
from bench.bare_etcd import address_of
from bench.ground import SHOWN, TOPICS
from bench.load import BATCH, BATCH_PATHS, RESOLVE, Load, batches, resolves
from bench.rows import Row, at_least, at_most
from deploy.local.directory import DirectoryProcess
from deploy.local.etcd import EtcdCluster
from directory.namespace.snapshot import Snapshot
from directory.store.addresses import open_store
from directory.store.replica import LOADED_PREFIXES
from directory.wire.entry_codec import ProtoCodec

__all__ = ["measured"]

_LOADS: Final = 3
_BARE_PAGE: Final = 50_000
"""Rows; with smaller pages etcd takes longer, since for each it counts the rows that are left."""
_ROUNDS: Final = 7
_AT_ONCE: Final = 64
_CONNECTIONS: Final = 8
"""The number, of 1, 8, 16 and 64, with which etcd serves most reads."""
_READS: Final = 20_000
_BATCHES_AT_ONCE: Final = 4


def measured(folder: Path, etcd: EtcdCluster) -> list[Row]:
    """Measures one new member, which is filled and moved to the first core."""
    rows = ground.rows_of(TOPICS, TOPICS // 100)
    # Claims of names in Kafka are left out: no replica loads them, and they double the fill.
    loaded = (row for row in rows if row.key.startswith(LOADED_PREFIXES))
    bare_etcd.fill(address_of(etcd), loaded)
    _move_to_one_core(etcd)
    ground.free_core()
    return [_load(address_of(etcd)), *_reads(folder, etcd)]


def _move_to_one_core(etcd: EtcdCluster) -> None:
    """Restarts the members on core 0, each with one thread for Go code."""
    with ground.on_core(0), mock.patch.dict(os.environ, GOMAXPROCS="1"):
        for member in etcd.members:
            member.stop()
            member.start()
    for member in etcd.members:
        member.await_ready()


# -- loading -------------------------------------------------------------------------------------


def _load(address: str) -> Row:
    """Measures a load as a replica makes it, against a bare read of the same keys, in wall time."""
    took: dict[str, list[float]] = {"read": [], "load": []}
    for _ in range(_LOADS):
        for what, seconds in took.items():
            seconds.append(_apart(what, address))
    return at_most(
        f"load of {SHOWN} topics from etcd",
        statistics.median(took["load"]),
        "s",
        "a bare paged read of the same keys",
        statistics.median(took["read"]),
        2,
    )


def _apart(what: str, address: str) -> float:
    """Makes one measurement in a process of its own; returns its seconds."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.etcd_reading", what, address],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout))


def _load_once(address: str) -> float:
    store = open_store(address, ground.CLUSTER)
    gc.disable()
    began = time.monotonic()
    loading = store.load(LOADED_PREFIXES)
    snapshot = Snapshot.load(ProtoCodec(), "", loading.revision, loading.pages())
    seconds = time.monotonic() - began
    if snapshot.topic_count != TOPICS:
        raise AssertionError(f"{snapshot.topic_count} topics")
    return seconds


def _read_once(address: str) -> float:
    gc.disable()
    began = time.monotonic()
    rows = bare_etcd.read_pages(address, _BARE_PAGE)
    seconds = time.monotonic() - began
    if rows < TOPICS:
        raise AssertionError(f"{rows} rows")
    return seconds


# -- reading -------------------------------------------------------------------------------------


def _reads(folder: Path, etcd: EtcdCluster) -> list[Row]:
    """Measures a server of a tree in etcd against one of the same tree in sqlite, and against
    etcd itself.
    """
    from_sqlite = ground.filled(TOPICS, TOPICS // 100)
    with (
        ground.pinned_directory(folder / "etcd", address_of(etcd)) as of_etcd,
        ground.pinned_directory(folder / "sqlite", from_sqlite) as of_sqlite,
    ):
        anywhere = resolves(TOPICS, 100_000)
        one, one_of_sqlite = (
            _load_on(server, RESOLVE, anywhere) for server in (of_etcd, of_sqlite)
        )
        _alternate((one, one_of_sqlite), _AT_ONCE, warm_up=3)
        used = batches(100, ground.in_use())
        many = _load_on(of_etcd, BATCH, used)
        many_of_sqlite = _load_on(of_sqlite, BATCH, used)
        _alternate((many, many_of_sqlite), _BATCHES_AT_ONCE, warm_up=2)
        rows = [
            at_least(
                f"unary Resolve, {SHOWN} topics in etcd",
                one.rate,
                "/CPU s",
                "in sqlite",
                one_of_sqlite.rate,
                0.95,
            ),
            at_least(
                f"BatchResolve of 1,000 paths of {_thousands(ground.in_use())} in use, in etcd",
                BATCH_PATHS * many.rate,
                "paths/CPU s",
                "in sqlite",
                BATCH_PATHS * many_of_sqlite.rate,
                0.95,
            ),
        ]
        if not h2load.missing("etcd"):
            again = _load_on(of_etcd, BATCH, batches(600, range(TOPICS)))
            rows += _against_etcd(folder, etcd, many, again)
        return rows


def _thousands(several: Sequence[object]) -> str:
    return f"{len(several) // 1000}k"


def _load_on(server: DirectoryProcess, method: str, requests: Sequence[bytes]) -> Load:
    return Load(server.address, server.process.pid, method, requests)


def _alternate(loads: Sequence[Load], at_once: int, warm_up: int) -> None:
    for _ in range(warm_up):
        for load in loads:
            load.round(at_once)
    for load in loads:
        load.clear()
    for _ in range(_ROUNDS):
        for load in loads:
            load.round(at_once)


def _against_etcd(folder: Path, etcd: EtcdCluster, used: Load, again: Load) -> list[Row]:
    """Measures paths of batches against etcd's reads of one key, on the same core. The reads are
    serializable, so that etcd asks no other member, and of the same key, which is the cheapest.
    """
    body = h2load.Body(folder / "read", bare_etcd.read_of_a_topic(address_of(etcd)))
    pid = etcd.members[0].process.pid
    reads: list[float] = []
    used.clear()
    for _ in range(_ROUNDS):
        before = ground.cpu_seconds(pid)
        h2load.calls(
            f"http://{etcd.endpoints[0]}/etcdserverpb.KV/Range",
            body,
            connections=_CONNECTIONS,
            streams=_AT_ONCE // _CONNECTIONS,
            count=_READS,
        )
        reads.append(_READS / (ground.cpu_seconds(pid) - before))
        used.round(_BATCHES_AT_ONCE)
        again.round(_BATCHES_AT_ONCE)
    against, rate = "etcd's serializable reads of one key", statistics.median(reads)
    of = f"of {_thousands(ground.in_use())} in use", f"anywhere among {SHOWN}"
    return [
        at_least(
            f"BatchResolve of 1,000 paths {paths}",
            BATCH_PATHS * load.rate,
            "paths/CPU s",
            against,
            rate,
            20,
        )
        for paths, load in zip(of, (used, again), strict=True)
    ]


def main(what: str, address: str) -> None:
    """Makes one measurement, and writes it as JSON on stdout."""
    seconds = _load_once(address) if what == "load" else _read_once(address)
    sys.stdout.write(f"{json.dumps(seconds)}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
