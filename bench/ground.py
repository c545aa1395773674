"""What benchmarks share: a store of a million topics, and server processes pinned to a core."""

from __future__ import annotations

import atexit
import functools
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import grpc

from deploy.local.directory import DirectoryProcess
from deploy.local.process import LocalProcess
from directory.namespace.entry import ROOT_ID, Directory, Kind, Provision, Topic
from directory.namespace.keys import claim_key, entry_key
from directory.store.addresses import open_store
from directory.store.base import Put, Transaction
from directory.wire.entry_codec import ProtoCodec

__all__ = [
    "CLUSTER",
    "FIRST_DIRECTORY",
    "MOUNT",
    "SHOWN",
    "TOPICS",
    "Metadata",
    "await_quiet",
    "cpu_seconds",
    "fill_store",
    "filled",
    "free_core",
    "in_use",
    "on_core",
    "path_of",
    "pinned_directory",
    "pinned_echo",
    "rows_of",
]

MOUNT: Final = "/la/tracking"
CLUSTER: Final = "la-tracking"
TOPICS: Final = int(os.environ.get("KDIR_BENCH_TOPICS", "1000000"))
"""Topics of the large store; fewer for a trial (``python -m bench --topics 20000 …``)."""
SHOWN: Final = "1M" if TOPICS == 1_000_000 else f"{TOPICS:,}"
Metadata = tuple[tuple[str, str], ...]
FIRST_DIRECTORY: Final = 1_000
"""The id of the first directory of a filled store; the others follow."""
_BATCH: Final = 9_000
_LOOK_SECONDS: Final = 0.5
_QUIET_LOOKS: Final = 3


def path_of(number: int, per_directory: int) -> str:
    """Returns the path of the topic of this number in a filled store."""
    return f"{MOUNT}/dir{number // per_directory:05}/topic-{number % per_directory:06}"


@functools.cache
def filled(topics: int, directories: int) -> str:
    """Returns the address of a store with so many topics, made once for all benchmarks of a run."""
    address = f"sqlite:///{_folder()}/{topics}-{directories}.sqlite"
    fill_store(address, topics, directories)
    return address


@functools.cache
def _folder() -> str:
    folder = tempfile.TemporaryDirectory(prefix="kdir-bench-store-")
    atexit.register(folder.cleanup)
    return folder.name


def in_use() -> list[int]:
    """Returns the numbers of at most 50,000 random topics, which stand for those in use."""
    return random.Random(9).sample(range(TOPICS), min(50_000, TOPICS))


def fill_store(address: str, topics: int, directories: int) -> None:
    """Makes a store with so many adopted topics, evenly in so many directories."""
    with closing(open_store(address, CLUSTER)) as store:
        for writes in _chunks(rows_of(topics, directories), _BATCH):
            store.commit(Transaction((), tuple(writes)), 60)


def _chunks(writes: Iterator[Put], size: int) -> Iterator[list[Put]]:
    while chunk := list(islice(writes, size)):
        yield chunk


def rows_of(topics: int, directories: int) -> Iterator[Put]:
    """Yields what ``fill_store`` writes."""
    codec = ProtoCodec()
    per_directory = topics // directories
    for directory in range(directories):
        entry_id = FIRST_DIRECTORY + directory
        name = f"dir{directory:05}"
        record = codec.encode(Directory(entry_id=entry_id, changed_at_ms=1_700_000_000_000))
        yield Put(entry_key(ROOT_ID, Kind.DIRECTORY, name), record)
        for number in range(per_directory):
            yield from _topic(codec, entry_id, name, f"topic-{number:06}", 10**9 + number)


def _topic(
    codec: ProtoCodec, directory_id: int, directory: str, name: str, seed: int
) -> Sequence[Put]:
    physical = f"{directory}.{name}"
    topic = Topic(
        entry_id=(directory_id << 32) + seed,
        changed_at_ms=1_700_000_000_000,
        physical_name=physical,
        topic_id=os.urandom(16),
        partitions=24,
        replication_factor=3,
        provision=Provision.ACTIVE,
        adopted=True,
    )
    return (
        Put(entry_key(directory_id, Kind.TOPIC, name), codec.encode(topic)),
        Put(claim_key(physical), physical.encode()),
    )


@contextmanager
def pinned_directory(
    folder: Path,
    address: str,
    core: int = 0,
    settings: Mapping[str, Any] | None = None,
    metadata: Metadata = (),
) -> Iterator[DirectoryProcess]:
    """Runs an idle directory server on one core, with this store loaded. ``settings`` are further
    keys of its config; ``metadata`` goes with the requests of this function.
    """
    from kdir.v1 import resolve_pb2, resolve_pb2_grpc

    server = DirectoryProcess(
        folder, MOUNT, {"cluster": CLUSTER, "store": address, **(settings or {})}
    )
    server.process.command[:0] = ["taskset", "-c", str(core)]
    try:
        server.start()
        with grpc.insecure_channel(server.address) as channel:
            stub = resolve_pb2_grpc.ResolveServiceStub(channel)
            server.process.await_ready(lambda: _answers(stub, resolve_pb2, metadata), 300)
        await_quiet(server.process.pid)
        yield server
    finally:
        server.kill()


def await_quiet(pid: int) -> None:
    """Returns once a server's background work after its start is over: at a million topics the
    index of physical names takes some seconds.
    """
    quiet = 0
    while quiet < _QUIET_LOOKS:
        before = cpu_seconds(pid)
        time.sleep(_LOOK_SECONDS)
        quiet = quiet + 1 if cpu_seconds(pid) - before < _LOOK_SECONDS / 10 else 0


def _answers(stub: Any, messages: Any, metadata: Metadata) -> bool:
    try:
        stub.Resolve(messages.ResolveRequest(path=MOUNT), timeout=5, metadata=metadata)
    except grpc.RpcError:
        return False
    return True


@contextmanager
def pinned_echo(folder: Path, kind: str, size: int, core: int = 0) -> Iterator[tuple[str, int]]:
    """Runs ``bench.echo`` on one core; yields its address and process id."""
    process = LocalProcess(
        ["taskset", "-c", str(core), sys.executable, "-m", "bench.echo", kind, str(size)],
        folder / f"echo-{kind}.log",
    )
    process.start()
    try:
        process.await_ready(lambda: process.log.read_text().startswith("echo on "), 30)
        yield process.log.read_text().split()[2], process.pid
    finally:
        process.kill()


def cpu_seconds(pid: int) -> float:
    """Returns the user and system time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_core(core: int = 1) -> None:
    """Moves this process to one core, by default another than the server's."""
    os.sched_setaffinity(0, {core % (os.cpu_count() or 1)})


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Runs what is started within the block on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
