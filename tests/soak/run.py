"""One run: a world of the seed's, workers and faults for so many seconds, and the last look."""

from __future__ import annotations

import random
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.federation import eventually
from tests.soak.doors import Read, StubDoor
from tests.soak.faults import Faults
from tests.soak.journal import Breach, Counts, Journal
from tests.soak.plots import Plot
from tests.soak.registers import Register
from tests.soak.worker import Worker
from tests.soak.world import ClusterPlan, World

__all__ = ["Report", "run"]

_REGISTERS = 2


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to."""

    seed: str
    seconds: float
    folder: Path
    counts: Counts
    breaches: tuple[Breach, ...]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {self.seconds:.0f} s, {self.folder}", "", "OPERATIONS"]
        for (verb, door, outcome), count in sorted(self.counts.operations.items()):
            lines.append(f"  {verb:10} {door:18} {outcome:22} {count:7}")
        for title, counted in (("FAULTS", self.counts.faults), ("CHECKS", self.counts.checks)):
            lines += ["", title]
            lines += [f"  {name:52} {count:7}" for name, count in sorted(counted.items())]
        operations = sum(self.counts.operations.values())
        faults, checks = sum(self.counts.faults.values()), sum(self.counts.checks.values())
        sums = f"{operations} operations, {faults} faults, {checks} checks"
        lines += ["", f"{sums}, {len(self.breaches)} breaches"]
        return "\n".join(lines)


def run(
    seconds: float,
    seed: str,
    *,
    folder: Path | None = None,
    plans: list[ClusterPlan] | None = None,
    workers: int = 4,
    faults: bool = True,
) -> Report:
    """Runs a soak; its folder is kept where something was found."""
    folder = folder or Path(tempfile.mkdtemp(prefix=f"kdir-soak-{seed}-"))
    source = random.Random(f"{seed}-world")
    journal = Journal(folder)
    with journal.closing(), World(folder, journal, plans or invent_world(source)) as world:
        world.start()
        registers = {mount: make_registers(world, mount) for mount in world.clusters}
        crew = [Worker(number, world, journal, registers, seed) for number in range(workers)]
        injectors = (
            [Faults(world, one, journal, seed) for one in world.clusters.values()] if faults else []
        )
        for thread in (*crew, *injectors):
            thread.start()
        journal.is_full.wait(seconds)
        for injector in injectors:
            injector.stop()
        for worker in crew:
            worker.stop()
        for thread in (*injectors, *crew):
            thread.join()
        if not journal.is_full.is_set():
            look_at_all(world, journal, crew, registers)
        return Report(seed, seconds, folder, journal.counts, tuple(journal.breaches))


def invent_world(source: random.Random) -> list[ClusterPlan]:
    """The clusters of a run."""
    return [
        ClusterPlan("/", servers=2, enforce=source.random() < 0.3),
        ClusterPlan("/la", "/", servers=2, enforce=source.random() < 0.5),
    ]


def make_registers(world: World, mount: str) -> list[Register]:
    """Directories that all workers write."""
    cluster = world.clusters[mount]
    registers = [Register(f"{cluster.top}/register-{number}") for number in range(_REGISTERS)]
    for register in registers:
        cluster.servers[0].mkdir(register.path)
    return registers


def look_at_all(
    world: World,
    journal: Journal,
    crew: list[Worker],
    registers: dict[str, list[Register]],
) -> None:
    """With every fault healed, each server must have what the model has."""
    journal.write("quiesce")
    world.await_healed()
    for worker in crew:
        worker._ending.clear()
        for plot in list(worker.plots):
            deadline = time.monotonic() + 120
            while plot.candidates and plot in worker.plots and time.monotonic() < deadline:
                if plot.has_settled():
                    worker._settle(plot)
                time.sleep(0.2)
            if plot in worker.plots and plot.tree and not plot.candidates:
                look_at_plot(worker, plot)
    for several in registers.values():
        for register in several:
            register.verify(journal)
    for cluster in world.clusters.values():
        for server in cluster.servers:
            for name in ("server.log", "earlier.log"):
                log = server.directory / name
                if log.exists() and "Traceback" in (text := log.read_text(errors="replace")):
                    at = text.index("Traceback")
                    journal.breach("log", f"{log}: {text[at : at + 1500]}", cluster.mount)


def look_at_plot(worker: Worker, plot: Plot) -> None:
    """Compares all of a plot at each server."""
    for server in plot.cluster.servers:
        door = StubDoor(server, plot.cluster)
        reads = [Read("list", plot.path), Read("get", plot.path)]
        reads += [
            Read(what, key[0], node.kind)
            for key, node in plot.tree.items()
            if node.kind != "link"
            for what in ("grants", "resolve")
        ]
        for read in reads:
            ask = partial(worker.compare, plot, read, door, worker.token, 20)
            eventually(ask, 120)
