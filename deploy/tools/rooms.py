"""Shows which files of the server a call passes, in order: ``make rooms``.

A CreateEntry of a topic, and a Resolve of it at the new revision, are sent to a server in this
process by a caller that has rights by grants. The way of a call is the file of each function that
is called, in order, without repeats in a row. What the replica and its subscribers do with a commit
is left out: each server of the cluster does it, in whichever thread has the commit first.
``tests/unit/api/test_rooms.py`` holds the counts.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import grpc
from kdir.v1 import (
    access_pb2,
    access_pb2_grpc,
    directory_pb2,
    directory_pb2_grpc,
    entry_pb2,
    resolve_pb2,
    resolve_pb2_grpc,
)

__all__ = ["Rooms", "trace_calls"]

ROOT: Final = Path(__file__).resolve().parents[2]
_SERVER: Final = f"{ROOT / 'directory'}/"
_ENTRANCE: Final = "api/rpc/handlers.py", "behave"
_APPLYING: Final = {("store/replica.py", "_apply"), ("api/rpc/call_context.py", "finish")}


@dataclass(frozen=True, slots=True)
class Rooms:
    """The files that one call passed, in order; a file may occur several times."""

    way: tuple[str, ...]

    @property
    def files(self) -> int:
        """How many files the call passed."""
        return len(set(self.way))

    def returns_to(self) -> dict[str, int]:
        """Returns how often the call came back to each file that it had left, most often first."""
        counts = Counter(self.way).most_common()
        return {name: count - 1 for name, count in counts if count > 1}


class _Tracer:
    """Profile function of threads: notes the files that each call passes."""

    def __init__(self) -> None:
        self.ways: Final[list[list[str]]] = []
        """Files that each ended call passed, oldest call first."""
        self._threads: Final[dict[int, list[str]]] = {}
        self._applying: Final[set[int]] = set()
        """Threads that apply a commit."""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event not in {"call", "return"} or not code.co_filename.startswith(_SERVER):
            return
        name, thread = code.co_filename.removeprefix(_SERVER), threading.get_ident()
        if (name, code.co_name) in _APPLYING:
            change = self._applying.add if event == "call" else self._applying.discard
            change(thread)
        if thread in self._applying:
            return
        is_entrance = (name, code.co_name) == _ENTRANCE
        if event == "return":
            if is_entrance:
                self.ways.append(self._threads.pop(thread))
            return
        way = self._threads.setdefault(thread, []) if is_entrance else self._threads.get(thread)
        if way is not None and way[-1:] != [name]:
            way.append(name)


def trace_calls(directory: Path) -> dict[str, Rooms]:
    """Returns the files that a cold Resolve and a CreateEntry of a topic pass, by method. The
    traced server has its store in ``directory``.
    """
    from directory.api.grpc_server import DirectoryServer
    from directory.server.cluster import Cluster
    from directory.server.config import parse_config

    config = parse_config(
        {
            "cluster": "la",
            "mount": "/la",
            "store": f"sqlite:///{directory}/la.sqlite",
            "limits": {"drain_seconds": 0.1},
            "kafka": {"bootstrap": ["127.0.0.1:1"], "ceiling": ["create"]},
        }
    )
    tracer = _Tracer()
    threading.setprofile(tracer)  # for threads that begin from here on, such as the server's
    with ExitStack() as cleanup:
        cleanup.callback(threading.setprofile, None)
        cluster = Cluster.open(config)
        cleanup.callback(cluster.stop)
        cluster.start()
        server = DirectoryServer([cluster], "127.0.0.1:0")
        cleanup.callback(server.drain)
        server.start()
        channel = cleanup.enter_context(grpc.insecure_channel(server.address))
        return _ask(channel, tracer)


def _ask(channel: grpc.Channel, tracer: _Tracer) -> dict[str, Rooms]:
    directories = directory_pb2_grpc.DirectoryServiceStub(channel)
    resolving = resolve_pb2_grpc.ResolveServiceStub(channel)
    access = access_pb2_grpc.AccessServiceStub(channel)
    _retry(lambda: directories.CreateEntry(_new("/la/p", directory={})))
    grant = access_pb2.Grant(
        principal="User:ANONYMOUS",
        operation=access_pb2.OPERATION_ALL,
        permission=access_pb2.PERMISSION_ALLOW,
        resource_type=access_pb2.RESOURCE_TYPE_TOPIC,
    )
    access.AddGrants(access_pb2.AddGrantsRequest(path="/la", grants=[grant]))
    for name in ("first", "second"):  # the first has late imports; the second counts
        directories.CreateEntry(_new(f"/la/p/{name}", topic={}))
        resolving.Resolve(resolve_pb2.ResolveRequest(path=f"/la/p/{name}"))
    create, resolve = (Rooms(tuple(way)) for way in tracer.ways[-2:])
    return {"Resolve": resolve, "CreateEntry": create}


def _new(path: str, **entry: Any) -> directory_pb2.CreateEntryRequest:
    return directory_pb2.CreateEntryRequest(path=path, entry=entry_pb2.Entry(**entry))


def _retry(ask: Callable[[], object]) -> None:
    """Calls ``ask`` until the server is loaded, for at most a minute."""
    end = time.monotonic() + 60
    while True:
        try:
            ask()
            return
        except grpc.RpcError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def main() -> int:
    """Prints the files that both calls pass."""
    with tempfile.TemporaryDirectory() as directory:
        found = trace_calls(Path(directory))
    for method, rooms in found.items():
        print(f"{method}: {rooms.files} files")
        for name, count in rooms.returns_to().items():
            print(f"  {count:3} returns to {name}")
        for name in rooms.way:
            print(f"    {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
