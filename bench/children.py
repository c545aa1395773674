"""A root with children in a few processes: real clusters, or hollow ones that store nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from kdir.v1 import directory_pb2

from bench import ground, hollow_children
from bench.load import channel_to, method_of
from bench.writes import CREATE
from deploy.local.directory import DirectoryProcess
from deploy.local.ports import LOOPBACK, free_port
from deploy.local.process import LocalProcess
from directory.namespace.keys import MOUNT_ROW
from directory.store.addresses import open_store
from directory.store.base import Store

__all__ = ["Children", "hollow", "mount_all", "real", "root"]

_PROCESSES: Final = 4
_LOOK_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 600


class Children:
    """Children of one root, and the processes that run them."""

    def __init__(
        self,
        mounts: Sequence[tuple[str, str]],
        processes: Sequence[LocalProcess],
        are_whole: Callable[[], bool],
    ) -> None:
        self.mounts: Final = mounts
        """Mount and cluster id of each child."""
        self.processes: Final = processes
        self._are_whole: Final = are_whole

    def await_whole(self) -> None:
        """Returns once every child is linked and has the mount table's rows of all children."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while not self._are_whole():
            if time.monotonic() > until:
                raise AssertionError(f"not all children have the table in {_PATIENCE_SECONDS} s")
            time.sleep(_LOOK_SECONDS)

    def cpu_seconds(self) -> float:
        """Returns the processor time of all of their processes."""
        return sum(ground.cpu_seconds(one.pid) for one in self.processes)


@contextmanager
def root(folder: Path) -> Iterator[DirectoryProcess]:
    """Runs an empty root."""
    with DirectoryProcess(folder, "/", {"cluster": "root"}) as server:
        yield server


def mount_all(server: DirectoryProcess, children: Children) -> None:
    """Mounts all of them, eight at a time."""
    with channel_to(server.address) as channel, ThreadPoolExecutor(8) as pool:
        create = method_of(channel, CREATE)

        def mount(child: tuple[str, str]) -> None:
            request = directory_pb2.CreateEntryRequest(path=child[0], request_id=child[1])
            request.entry.mount.cluster_id = child[1]
            create(request.SerializeToString(), timeout=60)

        list(pool.map(mount, children.mounts))


@contextmanager
def real(folder: Path, server: DirectoryProcess, count: int) -> Iterator[Children]:
    """Runs ``count`` clusters on sqlite in four processes; links are refused until mounted."""
    with ExitStack() as cleanup:
        stores: list[Store] = []
        mounts: list[tuple[str, str]] = []
        processes: list[LocalProcess] = []
        for place in range(_PROCESSES):
            configs: list[str | Path] = []
            listen = f"{LOOPBACK}:{free_port()}"
            for number in range(place, count, _PROCESSES):
                name = f"c{number:04}"
                address = f"sqlite:///{folder / name}.sqlite"
                store = cleanup.enter_context(closing(open_store(address, name)))
                stores.append(store)
                mounts.append((f"/{name}", store.identity.cluster_id))
                config = folder / f"{name}.toml"
                lines = {
                    "cluster": name,
                    "mount": f"/{name}",
                    "listen": listen,
                    "store": address,
                    "parent": [server.address],
                }
                config.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in lines.items()))
                configs += ["--config", config]
            process = LocalProcess(
                [sys.executable, "-m", "directory", *configs], folder / f"children-{place}.log"
            )
            process.start()
            cleanup.callback(process.kill)
            processes.append(process)
        for process in processes:
            process.await_ready(partial(_serve, process, count // _PROCESSES), 120)
        yield Children(mounts, processes, lambda: all(_rows(one) == count for one in stores))


def _serve(process: LocalProcess, count: int) -> bool:
    return process.log.read_text().count("serving /") >= count


def _rows(store: Store) -> int:
    return sum(1 for _ in store.read(MOUNT_ROW))


@contextmanager
def hollow(folder: Path, server: DirectoryProcess, count: int) -> Iterator[Children]:
    """Runs one process that holds the links of ``count`` children. They are mounted before it
    starts, since a thousand links that are refused and retried each second use a whole core.
    """
    mounts = [
        (hollow_children.mount_of(one), hollow_children.child_id(one)) for one in range(count)
    ]
    whole = f"whole {count} "
    process = LocalProcess(
        [sys.executable, "-m", "bench.hollow_children", server.address, str(count)],
        folder / "hollow.log",
    )
    made = Children(mounts, [process], lambda: whole in process.log.read_text())
    mount_all(server, made)
    process.start()
    try:
        yield made
    finally:
        process.kill()
