"""One run: a world of the seed's, workers and faults for so many seconds, and the last look."""

from __future__ import annotations

import random
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.local import etcd, kafka
from deploy.local.cache import ServerUnavailable
from tests.soak.faults import all_faults
from tests.soak.hand import Hand
from tests.soak.journal import Breach, Counts, Journal
from tests.soak.lies import KAFKA_LIES, LIES
from tests.soak.operator import Operator
from tests.soak.plots import Plot
from tests.soak.registers import Register
from tests.soak.watcher import Acknowledged, Watcher
from tests.soak.worker import Worker
from tests.soak.world import Cluster, ClusterPlan, World, WorldPlan

__all__ = ["Report", "run"]

_REGISTERS = 2


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a run."""

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
    plan: WorldPlan | None = None,
    workers: int = 4,
    faults: bool = True,
    wanted: frozenset[str] = frozenset(),
    lie: str = "",
) -> Report:
    """Runs a soak; its folder is kept where something was found."""
    folder = folder or Path(tempfile.mkdtemp(prefix=f"kdir-soak-{seed}-"))
    source = random.Random(f"{seed}-world")
    awaited = tuple({**LIES, **KAFKA_LIES}.get(lie, ()))
    journal = Journal(folder, most_breaches=500 if lie else 30, awaited=awaited)
    world = World(folder, journal, plan or invent_world(source, wanted), lie)
    with journal.closing(), unhandled(journal), world:
        world.start()
        _run(world, journal, seed, seconds, workers=workers, faults=faults)
    return Report(seed, seconds, folder, journal.counts, tuple(journal.breaches))


def _run(
    world: World, journal: Journal, seed: str, seconds: float, *, workers: int, faults: bool
) -> None:
    registers = {mount: make_registers(world, mount) for mount in world.clusters}
    watchers = [
        Watcher(world, cluster, journal, seed, by_library=by_library)
        for cluster in world.used
        for by_library in (False, True)
    ]
    crew = [Worker(number, world, journal, registers, seed) for number in range(workers)]
    injectors = all_faults(world, journal, seed) if faults else []
    for watcher in watchers:
        watcher.start()
        watcher.started.wait(60)
    hands = [
        Hand(world, cluster, journal, seed)
        for cluster in world.clusters.values()
        if cluster.broker is not None
    ]
    operators = []
    if world.plan.hop:
        hop = world.clusters[world.plan.hop]

        def plots() -> list[Plot]:
            return [plot for worker in crew for plot in list(worker.plots)]

        operators.append(Operator(world, hop, journal, seed, plots))
    for thread in (*crew, *hands, *operators, *injectors):
        thread.start()
    journal.is_full.wait(seconds)
    for ending in (operators, injectors, hands, crew):
        for one in ending:
            one.stop()
        for thread in ending:
            thread.join()
    if not journal.is_full.is_set():
        look_at_all(world, journal, crew, registers, watchers)
        for hand in hands:
            hand.look_at_all()
    for watcher in watchers:
        watcher.stop()
    for watcher in watchers:
        watcher.join(60)


@contextmanager
def unhandled(journal: Journal) -> Iterator[None]:
    """Yields an error that ends a thread, such as one of the library's, is a breach."""

    def note(error: threading.ExceptHookArgs) -> None:
        name = error.thread.name if error.thread is not None else "a thread"
        trace = "".join(
            traceback.format_exception(error.exc_type, error.exc_value, error.exc_traceback)
        )
        journal.breach("thread", f"{name} ended in an unhandled error: {trace}", name)

    before, threading.excepthook = threading.excepthook, note
    try:
        yield
    finally:
        threading.excepthook = before


def invent_world(source: random.Random, wanted: frozenset[str] = frozenset()) -> WorldPlan:
    """Returns the clusters of a run. ``wanted``: ``kafka``, ``etcd``, ``tls``, ``sqlite`` and
    ``no-…`` of the first and third decide what is else left to the seed.
    """
    has_etcd, has_kafka = is_there(etcd.installed), is_there(kafka.installed)

    def store() -> str:
        kinds = {"sqlite", "etcd"} & wanted or {"sqlite", "etcd"}
        return source.choice(sorted(kinds if has_etcd else {"sqlite"}))

    def decide(what: str, share: float) -> bool:
        chosen = source.random() < share
        return what in wanted or (chosen and f"no-{what}" not in wanted)

    def enforce() -> bool:
        return source.random() < 0.4

    hop = decide("operator", 0.6)
    ceiling: tuple[str, ...] = ()
    if has_kafka and decide("kafka", 0.6):
        ceiling = source.choice([("create", "configs"), ("create", "configs", "delete")])
    return WorldPlan(
        (
            ClusterPlan("/", servers=2, store=store(), enforce=enforce()),
            ClusterPlan(
                "/la",
                "/",
                servers=2,
                store=store(),
                enforce=enforce(),
                links={"/near": "/la"} if decide("site", 0.5) else {},
            ),
            ClusterPlan(
                "/la/x", "/la", servers=2, store=store(), enforce=enforce(), ceiling=ceiling
            ),
            *((ClusterPlan("/hop", "/", servers=2, store=store()),) if hop else ()),
        ),
        hop="/hop" if hop else "",
        tls=decide("tls", 0.25),
    )


def is_there(installed: Callable[[], object]) -> bool:
    """True if a kind of server is in the cache."""
    try:
        installed()
    except ServerUnavailable:
        return False
    return True


def make_registers(world: World, mount: str) -> list[Register]:
    """Returns directories that all workers write."""
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
    watchers: list[Watcher],
) -> None:
    """Checks, with every fault healed, that each server has what the model has."""
    journal.write("quiesce")
    world.await_healed()
    for worker in crew:
        worker.look_at_all()
    for several in registers.values():
        for register in several:
            register.verify(journal)
    for watcher in watchers:
        look_at_watch(watcher, journal)
    for cluster in world.clusters.values():
        verify(world, cluster, journal)
        for server in cluster.servers:
            for name in ("server.log", "earlier.log"):
                log = server.directory / name
                if log.exists() and "Traceback" in (text := log.read_text(errors="replace")):
                    at = text.index("Traceback")
                    journal.breach("log", f"{log}: {text[at : at + 1500]}", cluster.mount)


def look_at_watch(watcher: Watcher, journal: Journal) -> None:
    """Checks that a watcher was given all that was acknowledged."""
    acknowledged: list[Acknowledged] = list(watcher.cluster.acknowledged)
    if acknowledged:
        incarnation = acknowledged[-1].position.incarnation
        places = [one.position for one in acknowledged if one.position.incarnation == incarnation]
        last = max(places, key=lambda one: one.revision)
        deadline = time.monotonic() + 120
        while watcher.is_in(incarnation) and not watcher.reached(last):
            if time.monotonic() > deadline:
                text = f"{watcher.name} did not come to {last}"
                journal.breach("watch late", text, watcher.name)
                break
            time.sleep(0.2)
    watcher.verify(acknowledged)


def verify(world: World, cluster: Cluster, journal: Journal) -> None:
    """Checks that ``kdir verify`` finds no difference."""
    arguments = ["verify", cluster.mount, "--at", cluster.servers[0].address]
    if cluster.broker is not None:
        arguments.append("--skip-kafka")  # strangers have been there
    done = world.kdir(*arguments)
    for _ in range(10):
        if done.returncode in (0, 5):
            break
        time.sleep(1)
        done = world.kdir(*arguments)
    journal.check("verify")
    if done.returncode != 0:
        text = f"kdir verify ends with {done.returncode}: {done.stdout}{done.stderr}"
        journal.breach("verify", text, cluster.mount)
