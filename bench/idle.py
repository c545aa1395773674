"""Processor time of clusters to which nothing happens, and how soon a parent notices dead links."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

from kdir.v1 import federation_pb2

from bench import children, ground
from bench.load import channel_to, method_of
from bench.rows import Row, at_most, reported
from deploy.local.directory import DirectoryProcess

__all__ = ["run"]

_CHILDREN: Final = 100
_SETTLING_SECONDS: Final = 10.0
_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.1
_NOTICED_SECONDS: Final = 6.0
_LIST_MOUNTS: Final = "/kdir.v1.FederationService/ListMounts"


def run() -> list[Row]:
    """Measures a hundred linked clusters in four processes, one of which then hangs."""
    with tempfile.TemporaryDirectory(prefix="kdir-bench-") as name:
        folder = Path(name)
        with (
            children.root(folder / "root") as root,
            children.real(folder, root, _CHILDREN) as linked,
        ):
            children.mount_all(root, linked)
            linked.await_whole()
            time.sleep(_SETTLING_SECONDS)
            pid, began = root.process.pid, time.monotonic()
            parent, below = ground.cpu_seconds(pid), linked.cpu_seconds()
            time.sleep(_SECONDS)
            seconds = time.monotonic() - began
            parent = 1e3 * (ground.cpu_seconds(pid) - parent) / seconds
            below = 1e3 * (linked.cpu_seconds() - below) / seconds / _CHILDREN
            noticed = _seconds_until_noticed(root, linked)
    return [
        at_most(f"an idle cluster, {_CHILDREN} in 4 processes", below, "ms/s", "limit", 0.5, 1),
        reported("their parent", parent, "ms/s", "all of them", below * _CHILDREN),
        at_most(
            "until a process that hangs is noticed", noticed, "s", "limit", _NOTICED_SECONDS, 1
        ),
    ]


def _seconds_until_noticed(root: DirectoryProcess, linked: children.Children) -> float:
    """Pauses a process; returns the seconds until the parent shows its clusters as not linked."""
    with channel_to(root.address) as channel:
        mounts = method_of(channel, _LIST_MOUNTS)
        process = linked.processes[0]
        began = time.monotonic()
        process.pause()
        try:
            while True:
                answer = mounts(federation_pb2.ListMountsRequest().SerializeToString(), timeout=10)
                rows = federation_pb2.ListMountsResponse.FromString(answer).rows
                gone = sum(not row.linked for row in rows if row.mount != "/")
                if gone >= _CHILDREN // len(linked.processes):
                    return time.monotonic() - began
                time.sleep(_LOOK_SECONDS)
        finally:
            process.resume()
