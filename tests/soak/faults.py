"""Faults, done to a world by a schedule of the seed's, each healed after a while."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from deploy.local.process import StartFailed
from tests.soak.journal import Journal
from tests.soak.world import Cluster, World

__all__ = ["Faults"]


class Faults(threading.Thread):
    """Does one fault after another to one cluster until it is stopped; then all are healed."""

    def __init__(self, world: World, cluster: Cluster, journal: Journal, seed: str) -> None:
        super().__init__(name=f"faults-{cluster.mount}", daemon=True)
        self._world = world
        self._cluster = cluster
        self._journal = journal
        self._random = random.Random(f"{seed}-faults-{cluster.mount}")
        self._ending = threading.Event()
        self.error: Exception | None = None

    def stop(self) -> None:
        """No further fault; the one under way is healed first."""
        self._ending.set()

    def run(self) -> None:
        try:
            while not self._ending.wait(self._random.uniform(1, 6)):
                self._next()()
        except Exception as error:  # noqa: BLE001 - the run must not go on without faults unseen
            self.error = error
            self._journal.breach("faults", f"the injector failed: {error!r}", self._cluster.mount)

    def _next(self) -> Callable[[], None]:
        return self._random.choices([self._kill, self._pause, self._move], weights=[3, 4, 1])[0]

    def _kill(self) -> None:
        """SIGKILL, and a start after a while."""
        server = self._random.choice(self._cluster.servers)
        self._cluster.disturb()
        self._journal.fault("kill", self._cluster.mount, server=server.directory.name)
        server.kill()
        self._ending.wait(self._random.choice([0, 0.2, 1, 4]))
        server.start_again()
        self._journal.write("healed", self._cluster.mount, server=server.directory.name)
        self._cluster.calm()

    def _pause(self) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        server = self._random.choice(self._cluster.servers)
        self._cluster.disturb()
        self._journal.fault("pause", self._cluster.mount, server=server.directory.name)
        server.pause()
        self._ending.wait(self._random.choice([0.1, 0.5, 1, 3, 6]))
        server.resume()
        self._journal.write("healed", self._cluster.mount, server=server.directory.name)
        self._cluster.calm()

    def _move(self) -> None:
        """An end in order or by SIGKILL, and a start at another port."""
        server = self._random.choice(self._cluster.servers)
        self._cluster.disturb()
        (server.kill if self._random.random() < 0.5 else server.stop)()
        server.move()
        self._journal.fault(
            "move", self._cluster.mount, server=server.directory.name, to=server.address
        )
        try:
            server.start_again()
        except StartFailed as error:
            self._journal.breach("start", str(error), self._cluster.mount)
        self._journal.write("healed", self._cluster.mount, server=server.directory.name)
        self._cluster.calm()
