"""Faults, done to a world by a schedule of the seed's, each healed after a while."""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from typing import Final

from deploy.local.process import StartFailed
from tests.soak.journal import Journal
from tests.soak.world import Cluster, SoakServer, World, is_linked

__all__ = ["BrokerFaults", "EtcdFaults", "Faults", "ServerFaults", "all_faults"]

_STARTS: Final = 3
_PAUSES: Final = (0.1, 0.5, 1.0, 3.0, 6.0)


class Faults(threading.Thread):
    """Thread that makes one fault after another until it is stopped; the last one is healed
    first.
    """

    gaps: tuple[float, float] = (1, 9)
    """Seconds from the end of one to the next, at least and at most."""

    def __init__(self, about: str, journal: Journal, seed: str) -> None:
        super().__init__(name=f"faults-{about}", daemon=True)
        self._about = about
        self._journal = journal
        self._random = random.Random(f"{seed}-faults-{about}")
        self._ending = threading.Event()

    def stop(self) -> None:
        """Stops after the fault under way, which is healed first."""
        self._ending.set()

    def run(self) -> None:
        try:
            while not self._ending.wait(self._random.uniform(*self.gaps)):
                self.disturb()
        except Exception as error:  # noqa: BLE001 - a run without faults would show nothing
            self._journal.breach("faults", f"the injector failed: {error!r}", self._about)

    def disturb(self) -> None:
        """Does one fault and heals it."""
        raise NotImplementedError

    def _last(self, *seconds: float) -> None:
        """Waits for one of these times, or until the run ends."""
        self._ending.wait(self._random.choice(seconds or _PAUSES))

    def _note(self, kind: str, victim: str) -> None:
        self._journal.fault(kind, self._about, victim=victim)


class ServerFaults(Faults):
    """Faults that kill, pause and move the servers of one cluster."""

    def __init__(self, world: World, cluster: Cluster, journal: Journal, seed: str) -> None:
        super().__init__(cluster.mount, journal, seed)
        self._cluster = cluster
        self._world = world

    def disturb(self) -> None:
        kind = self._random.choices(["kill", "pause", "move", "stop"], weights=[4, 5, 2, 1])[0]
        if kind == "move" and not self._may_move():
            kind = "kill"
        server = self._random.choice(self._cluster.servers)
        with self._cluster.using(), self._cluster.disturbed():
            self._note(kind, f"{server.directory.name} {server.address}")
            self._do(kind, server)
            self._journal.write("healed", self._about, victim=server.directory.name)

    def _may_move(self) -> bool:
        """True if every child has heard of where the servers are now: a child that is cut off
        while all of them move would have to be told by an operator.
        """
        children = [
            one for one in self._world.clusters.values() if one.plan.parent == self._cluster.mount
        ]
        return all(is_linked(child) for child in children)

    def _do(self, kind: str, server: SoakServer) -> None:
        match kind:
            case "pause":
                server.pause()
                self._last()
                server.resume()
                return
            case "kill":
                server.kill()
            case "stop":
                server.stop()
            case _:
                (server.kill if self._random.random() < 0.5 else server.stop)()
                server.move()
        self._last(0, 0, 0.3, 1, 4)
        parent = self._cluster.plan.parent
        if parent:
            server.settings["parent"] = self._world.clusters[parent].addresses
        server.start_again()
        if kind == "move":
            # Whoever is linked hears of the new address before the next one moves.
            self._last(3)


class EtcdFaults(Faults):
    """Faults that kill and pause members of etcd, sometimes so many that there is no quorum."""

    gaps = (4, 16)

    def __init__(self, world: World, journal: Journal, seed: str) -> None:
        super().__init__("etcd", journal, seed)
        assert world.etcd is not None
        self._etcd = world.etcd
        self._world = world

    def disturb(self) -> None:
        members = self._random.sample(self._etcd.members, self._random.choice([1, 1, 1, 2, 3]))
        kind = self._random.choice(["kill", "pause", "pause"])
        with ExitStack() as stack:
            touched = [one for one in self._world.clusters.values() if one.store[:5] == "etcd:"]
            for cluster in touched:
                stack.enter_context(cluster.disturbed())
            for cluster in self._world.clusters.values():
                cluster.store_calm_since = None
                stack.callback(_calm_store, cluster)
            self._note(f"etcd {kind}", ", ".join(member.name for member in members))
            for member in members:
                (member.kill if kind == "kill" else member.pause)()
            self._last(0.2, 1, 3, 5)
            for member in members:
                (member.start if kind == "kill" else member.process.resume)()
            for member in self._etcd.members:
                member.await_ready()
            self._journal.write("healed", self._about)


def _calm_store(cluster: Cluster) -> None:
    cluster.store_calm_since = time.monotonic()


class BrokerFaults(Faults):
    """Faults that kill and pause the broker of a cluster."""

    gaps = (6, 16)

    def __init__(self, cluster: Cluster, journal: Journal, seed: str) -> None:
        super().__init__(f"broker of {cluster.mount}", journal, seed)
        assert cluster.broker is not None
        self._broker = cluster.broker
        self._cluster = cluster

    def disturb(self) -> None:
        kind = self._random.choice(["kill", "pause", "pause"])
        with self._cluster.disturbed():
            self._note(f"broker {kind}", self._broker.bootstrap)
            if kind == "kill":
                self._broker.kill()
                self._last(0, 1, 3)
                self._start()
            else:
                self._broker.pause()
                self._last(0.5, 2, 5, 8)
                self._broker.resume()
            self._journal.write("healed", self._about)

    def _start(self) -> None:
        """Starts the broker: one that was killed while it deleted a topic may stop once more at its
        next start (its only folder of logs counts as broken), and then comes up.
        """
        for _ in range(_STARTS):
            try:
                self._broker.start()
                return
            except StartFailed:
                self._broker.kill()
        self._broker.start()


def all_faults(world: World, journal: Journal, seed: str) -> list[Faults]:
    """Returns one injector for each thing that can break."""
    found: list[Faults] = []
    for cluster in world.clusters.values():
        found.append(ServerFaults(world, cluster, journal, seed))
        if cluster.broker is not None:
            found.append(BrokerFaults(cluster, journal, seed))
    if world.etcd is not None:
        found.append(EtcdFaults(world, journal, seed))
    return found
