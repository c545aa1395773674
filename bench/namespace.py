"""The tree in memory: what a topic costs, how long a load takes, the first page of a directory.

Each measurement runs in a process of its own, so that nothing else is counted.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench import ground
from bench.ground import SHOWN, TOPICS
from bench.rows import Row, at_most
from directory.namespace.entry import ROOT_ID, Directory, Kind, Provision, Topic
from directory.namespace.keys import entry_key
from directory.namespace.listing import list_page
from directory.namespace.snapshot import Snapshot
from directory.store.addresses import open_store
from directory.store.replica import LOADED_PREFIXES
from directory.wire.entry_codec import ProtoCodec

__all__ = ["run"]

_LOADS: Final = 3
_PAGE: Final = 100
_ROWS: Final = 10_000
_SMALL: Final = 16
_LARGE: Final = 17


def run() -> list[Row]:
    """Measures memory, load time and first pages, a million topics each."""
    store = ground.filled(TOPICS, TOPICS // 100)
    loads = [_apart("load", store) for _ in range(_LOADS)]
    reads = [_apart("read", store) for _ in range(_LOADS)]
    load = statistics.median(one["seconds"] for one in loads)
    read = statistics.median(one["seconds"] for one in reads)
    pages = _apart("pages", "")
    memory = statistics.median(one["bytes"] for one in loads) / TOPICS
    with_way_back = statistics.median(one["bytes_located"] for one in loads) / TOPICS
    return [
        at_most(f"memory of a topic among {SHOWN}", memory, "bytes", "limit", 350, 1),
        at_most(
            "the same, once a topic was found by its name in Kafka",
            with_way_back,
            "bytes",
            "limit",
            350,
            1,
        ),
        at_most(f"load of {SHOWN} topics from sqlite", load, "CPU s", "reading the rows", read, 2),
        at_most(
            f"first page of {SHOWN} children",
            pages["large"] * 1e6,
            "µs",
            "of 100 children",
            pages["small"] * 1e6,
            1.2,
        ),
    ]


def _apart(what: str, store: str) -> dict[str, float]:
    """Makes one measurement in a process of its own; returns its figures by name."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.namespace", what, store],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _load(address: str) -> dict[str, float]:
    """Loads as the replica does, without garbage collection: its millions of objects all stay."""
    store = open_store(address, ground.CLUSTER)
    before = _resident()
    gc.disable()
    began = time.process_time()
    loading = store.load(LOADED_PREFIXES)
    snapshot = Snapshot.load(ProtoCodec(), "", loading.revision, loading.pages())
    seconds = time.process_time() - began
    gc.collect()
    size = _resident() - before
    if snapshot.topic_count != TOPICS:
        raise AssertionError(f"{snapshot.topic_count} topics")
    if snapshot.locate("dir00000.topic-000000") is None:
        raise AssertionError("the way back from a physical name is missing")
    gc.collect()
    return {"seconds": seconds, "bytes": size, "bytes_located": _resident() - before}


def _read(address: str) -> dict[str, float]:
    store = open_store(address, ground.CLUSTER)
    gc.disable()
    began = time.process_time()
    rows = sum(len(one) for one in store.load(LOADED_PREFIXES).pages())
    seconds = time.process_time() - began
    if rows < TOPICS:
        raise AssertionError(f"{rows} rows")
    return {"seconds": seconds}


def _pages() -> dict[str, float]:
    snapshot = Snapshot.load(ProtoCodec(), "", 1, _rows())
    gc.collect()
    gc.freeze()
    took: dict[int, list[float]] = {_SMALL: [], _LARGE: []}
    for _ in range(200):
        for directory, times in took.items():
            began = time.perf_counter()
            found = list_page(snapshot, directory, limit=_PAGE)
            times.append(time.perf_counter() - began)
            if len(found.entries) != _PAGE:
                raise AssertionError(f"{len(found.entries)} entries in directory {directory}")
    return {
        "small": statistics.median(took[_SMALL]),
        "large": statistics.median(took[_LARGE]),
    }


def _rows() -> Iterator[Sequence[tuple[bytes, bytes]]]:
    """Yields a store's rows in key order: two directories, and the topics in each."""
    codec = ProtoCodec()
    yield [
        (entry_key(ROOT_ID, Kind.DIRECTORY, name), codec.encode(Directory(entry_id=directory)))
        for name, directory in (("large", _LARGE), ("small", _SMALL))
    ]
    for directory, count in ((_SMALL, _PAGE), (_LARGE, TOPICS)):
        for first in range(0, count, _ROWS):
            yield [
                _row(codec, directory, number) for number in range(first, min(first + _ROWS, count))
            ]


def _row(codec: ProtoCodec, directory: int, number: int) -> tuple[bytes, bytes]:
    name = f"topic-{number:07}"
    topic = Topic(
        entry_id=(directory << 32) + number,
        physical_name=f"{directory}.{name}",
        topic_id=number.to_bytes(16, "big"),
        partitions=24,
        replication_factor=3,
        provision=Provision.ACTIVE,
    )
    return entry_key(directory, Kind.TOPIC, name), codec.encode(topic)


def main(what: str, store: str) -> None:
    """Makes one measurement, and writes it as JSON on stdout."""
    match what:
        case "load":
            found = _load(store)
        case "read":
            found = _read(store)
        case _:
            found = _pages()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
