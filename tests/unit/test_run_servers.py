"""The servers of a test run: one for all that ask at a time, ended when nobody uses it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.run_servers import run_server
from tests.support.waiting import eventually


class Servers:
    """Servers that are started by their number; those that run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self.running: list[str] = []

    @contextmanager
    def _start(self) -> Iterator[str]:
        self._count += 1
        name = f"server-{self._count}"
        self.running.append(name)
        yield name
        self.running.remove(name)

    def use(self, until: ExitStack) -> str:
        return run_server(self._folder, "server", self._start, until)


def test_one_that_is_there_is_used_and_ends_when_nobody_uses_it(tmp_path: Path) -> None:
    servers, owner, user, later = Servers(tmp_path), ExitStack(), ExitStack(), ExitStack()
    assert [servers.use(owner), servers.use(user)] == ["server-1", "server-1"]
    ending = threading.Thread(target=owner.close)
    ending.start()
    eventually(lambda: not (tmp_path / "server.address").exists())
    assert servers.running == ["server-1"], "somebody uses it"
    assert servers.use(later) == "server-2"
    user.close()
    ending.join(60)
    assert servers.running == ["server-2"]
    later.close()
    assert servers.running == []
