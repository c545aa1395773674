"""Several servers of one cluster, as processes, for the tests in this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kdir.v1 import admin_pb2

from tests.support.federation import FAST, Server, eventually

Start = Callable[..., Server]


def ready(server: Server) -> bool:
    """True if it has loaded."""
    return server.status().replica_state == admin_pb2.REPLICA_STATE_SERVING


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers: ``start("/la", name="one", processes=2, store=…)``. Those of one ``store``
    are one cluster's. They end with the test.
    """
    with ExitStack() as cleanup:

        def begin(mount: str, *, name: str = "one", processes: int = 1, **settings: Any) -> Server:
            shared = {"store": f"sqlite:///{tmp_path / 'store.sqlite'}", **settings}
            shared["limits"] = {**FAST["limits"], **settings.get("limits", {})}
            server = Server(tmp_path / name, mount, shared, processes=processes)
            cleanup.callback(server.process.kill)
            cleanup.callback(server.close)
            server.start()
            eventually(lambda: ready(server))
            return server

        yield begin
