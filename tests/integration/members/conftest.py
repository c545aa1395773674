"""Clusters of several servers, as processes, for the tests in this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kdir.v1 import admin_pb2

from tests.support.federation import FAST, Server, eventually

Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers: ``start("/la", "la-1", parent=[…])``; those of one mount
    share a store, unless they are told another. They end with the test.
    """
    with ExitStack() as cleanup:

        def begin(
            mount: str,
            name: str,
            *,
            later_release: bool = False,
            processes: int = 1,
            **settings: Any,
        ) -> Server:
            shared = mount.strip("/").replace("/", "-") or "root"
            merged = {**FAST, "store": f"sqlite:///{tmp_path / shared}.sqlite", **settings}
            module = "tests.support.later_release" if later_release else "directory"
            server = Server(tmp_path / name, mount, merged, module=module, processes=processes)
            cleanup.callback(server.process.kill)
            cleanup.callback(server.close)
            server.start()
            eventually(lambda: loaded(server))
            return server

        yield begin


def loaded(server: Server) -> bool:
    return server.status().replica_state == admin_pb2.REPLICA_STATE_SERVING
