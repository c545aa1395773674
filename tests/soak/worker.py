"""Worker: a thread that changes its own plots by every door, and compares what it reads."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from resolver.errors import KdirError, by_reason
from resolver.revision_token import Position, Token
from tests.soak.doors import Answered, CliDoor, Door, LibraryDoor, Read, Reader, StubDoor, view
from tests.soak.invention import invent, invent_read, invent_way
from tests.soak.journal import Journal
from tests.soak.messages import answer_of, kind_number
from tests.soak.model import ABSENT, Applied, Op, Tree, apply, follow, names_at
from tests.soak.plots import Plot, Version
from tests.soak.registers import Register
from tests.soak.watcher import Acknowledged
from tests.soak.world import Cluster, World

__all__ = ["TRANSIENT", "Worker", "shown"]

TRANSIENT: Final = frozenset(
    {
        "UNREACHABLE",
        "DEADLINE_EXCEEDED",
        "NOT_READY",
        "STORE_UNAVAILABLE",
        "KAFKA_UNAVAILABLE",
        "CANCELLED",
        "TOKEN_FROM_FUTURE",
        "LIMIT_EXCEEDED",
        "WRITE_CONFLICT",
        "STORE_SEALED",
        "REVISION_GONE",
    }
)
"""Reasons of which a client concludes nothing but that it may ask again."""
_IN_FAULTS: Final = frozenset({"LAME"})
"""Reasons that only a fault nearby explains."""
_CALM_SECONDS: Final = 20.0
_CLI_SHARE: Final = 0.05
"""A process costs as much as some hundred calls."""
_GIVE_UP_SECONDS: Final = 60.0
_MOST_VERSIONS: Final = 120


@dataclass(frozen=True, slots=True)
class _Done:
    """A write that was acknowledged, to be asked again with the same id."""

    op: Op
    request_id: str
    answer: Mapping[str, object]
    at: float
    cluster: Cluster
    incarnations: int


class Worker(threading.Thread):
    """One client with its plots.

    Args:
        registers: by mount, those that all workers share.
    """

    def __init__(
        self,
        number: int,
        world: World,
        journal: Journal,
        registers: Mapping[str, list[Register]],
        seed: str,
    ) -> None:
        super().__init__(name=f"worker-{number}", daemon=True)
        self.number = number
        self._world = world
        self._journal = journal
        self._registers = registers
        self._random = random.Random(f"{seed}-worker-{number}")
        self._ending = threading.Event()
        self._plot_count = 0
        self._retired: list[str] = []
        """Plots of before, which stand there still."""
        self._doors: dict[str, LibraryDoor] = {}
        self._done: deque[_Done] = deque(maxlen=40)
        self._incarnations_known = sum(one.incarnations for one in world.clusters.values())
        self.token = ""
        """The newest position of each cluster that this worker was told of."""
        self.plots = [self._new_plot() for _ in range(3)]
        self.error: BaseException | None = None

    def stop(self) -> None:
        """Ends after the operation under way."""
        self._ending.set()

    def run(self) -> None:
        try:
            while not self._ending.is_set() and not self._journal.is_full.is_set():
                self._step()
        except BaseException as error:
            self.error = error
            self._journal.breach("checker", f"{self.name} failed: {error!r}", self.name)
            raise
        finally:
            self._close_doors()

    def _close_doors(self) -> None:
        for door in self._doors.values():
            door.close()
        self._doors.clear()

    def look_at_all(self, timeout_seconds: float = 180) -> None:
        """Settles what is uncertain, with all faults healed, and compares all plots at each server.
        Not for the worker's own thread.
        """
        self._ending.clear()
        for plot in list(self.plots):
            deadline = time.monotonic() + timeout_seconds
            while plot.candidates and plot in self.plots and time.monotonic() < deadline:
                if plot.has_settled():
                    self._settle(plot)
                time.sleep(0.2)
            if plot.candidates and plot in self.plots:
                self._journal.breach("settled", f"{plot.path} could not be read", plot.path)
            elif plot in self.plots and plot.tree:
                self._look_at(plot, timeout_seconds)
        self._close_doors()

    def _look_at(self, plot: Plot, timeout_seconds: float) -> None:
        reads = [Read("list", plot.path), Read("get", plot.path)]
        reads += [
            Read(what, key[0], node.kind)
            for key, node in plot.tree.items()
            if node.kind != "link"
            for what in ("grants", "resolve")
        ]
        for server in plot.cluster.servers:
            door = StubDoor(server, plot.cluster)
            for read in reads:
                deadline = time.monotonic() + timeout_seconds
                while not self.compare(plot, read, door, self.token, 20):
                    if time.monotonic() > deadline:
                        text = f"{read} had no answer at {door} with all faults healed"
                        self._journal.breach("unanswered", text, plot.path)
                        return
                    time.sleep(0.2)

    # -- choosing --------------------------------------------------------------------------------

    def _new_plot(self) -> Plot:
        cluster = self._random.choice(self._world.used)
        self._plot_count += 1
        path = f"{cluster.top}/w{self.number}p{self._plot_count}"
        return Plot(path, cluster, [Version({}, -1, 0)])

    def _door(self, cluster: Cluster) -> Door:
        kind = self._random.choice(self._world.plan.doors)
        if kind == "grpc":
            return self._stub(cluster)
        return self._library(kind)

    def _stub(self, cluster: Cluster) -> StubDoor:
        return StubDoor(self._random.choice(cluster.servers), cluster)

    def _library(self, kind: str) -> LibraryDoor:
        door = self._doors.get(kind)
        if door is not None and self._random.random() < 0.04:
            door.close()
            door = None
        if door is None:
            door = self._doors[kind] = LibraryDoor(self._world, self._random, kind)
        return door

    def _step(self) -> None:
        plot = self._random.choice(self.plots)
        chance = self._random.random()
        if chance < 0.1:
            (self._register if chance < 0.07 else self._count)()
            return
        with plot.cluster.using():
            if plot.is_lost:
                self._replace(plot)
                return
            self._step_on(plot)

    def _step_on(self, plot: Plot) -> None:
        if plot.candidates:
            if plot.has_settled():
                self._settle(plot)
            elif all(one.candidates for one in self.plots):
                self._ending.wait(0.2)
            return
        if len(plot.versions) > _MOST_VERSIONS:
            self._replace(plot)
            return
        chance = self._random.random()
        if chance < 0.6:
            self._write(plot, invent(self._random, plot, self.plots))
        elif chance < 0.68:
            self._follow_links()
        elif chance < 0.94:
            self._read(plot, invent_read(self._random, plot))
        else:
            self._repeat()

    def _replace(self, plot: Plot) -> None:
        if plot in self.plots:
            self._retired.append(plot.path)
            self.plots[self.plots.index(plot)] = self._new_plot()

    # -- writing ---------------------------------------------------------------------------------

    def _new_id(self) -> str:
        return f"{self._random.getrandbits(96):024x}"

    def _write(self, plot: Plot, op: Op) -> None:
        """Asks for a change until the answer is definite, and follows it in the model."""
        expected = apply(plot.tree, op, plot.cluster.top)
        if self._random.random() < _CLI_SHARE and CliDoor.can(op, plot.tree):
            self._write_by_cli(plot, op, expected)
            return
        request_id = self._new_id()
        result, tries, door = self._until_definite(op, request_id, plot.cluster, plot.path)
        if result is None:
            plot.doubt(plot.tree, expected.tree)
            return
        if isinstance(result, KdirError):
            self._refused(plot, op, result.reason, expected.reasons, tries)
            return
        self._journal.check("write")
        answer, token = answer_of(op, result), result.token
        position = self._note(token, plot.cluster)
        if expected.reasons:
            text = f"{op.shown()} was acknowledged; it must be {sorted(expected.reasons)}"
            self._give_up(plot, f"accepted {op.verb}", text)
            return
        output = {name: answer[name] for name in expected.answer}
        if output != dict(expected.answer):
            text = f"{op.shown()} answers {output}; it must be {dict(expected.answer)}"
            self._journal.breach(f"answer {op.verb}", text, plot.path)
        if position is None:
            self._give_up(plot, "token", f"{op.shown()} answers no position: {token!r}")
            return
        changed = _changed(plot.tree, expected.tree)
        if expected.tree != plot.tree:
            plot.record(expected.tree, position)
            path = op.new_path or op.path
            plot.cluster.acknowledged.append(Acknowledged(request_id, path, position))
        if isinstance(door, LibraryDoor):
            door.written[plot.path] = plot.newest
            door.changed |= dict.fromkeys(changed, plot.newest)
        incarnations = plot.cluster.incarnations
        self._done.append(
            _Done(op, request_id, answer, time.monotonic(), plot.cluster, incarnations)
        )

    def _write_by_cli(self, plot: Plot, op: Op, expected: Applied) -> None:
        door = CliDoor(self._world, self._random)
        was_calm = plot.cluster.calm_seconds() > _CALM_SECONDS
        started = self._journal.now()
        code, output = door.change(op)
        facts = {"op": op.shown(), "at_door": str(door), "started": started, "said": output[:300]}
        self._journal.operation(op.verb, door.name, f"exit {code}", plot.path, **facts)
        right = {by_reason(reason).exit_code for reason in expected.reasons} or {0}
        if code == 3:
            plot.doubt(plot.tree, expected.tree)
        elif code not in right:
            text = f"{op.shown()}: exit code {code}, right would be {right}: {output}"
            self._give_up(plot, f"cli {op.verb}", text)
        elif code != 0 and not was_calm:
            plot.doubt(plot.tree)
        elif code == 0:
            self._journal.check("write")
            position = self._fresh_position(plot)
            if position is None:
                plot.doubt(expected.tree)
            elif expected.tree != plot.tree:
                plot.record(expected.tree, position, exact=False)

    def _fresh_position(self, plot: Plot) -> Position | None:
        """A position at which all that was done before is there: that of a change made now."""
        register = self._registers[plot.cluster.mount][0]
        marker = Op(verb="set", path=register.path, fields=(("tags.marker", self._new_id()),))
        result, _, _ = self._until_definite(marker, self._new_id(), plot.cluster, register.path)
        if result is None or isinstance(result, KdirError):
            return None
        return self._note(result.token, plot.cluster)

    def _until_definite(
        self, op: Op, request_id: str, cluster: Cluster, about: str, *, by_stub: bool = False
    ) -> tuple[Any, int, Door | None]:
        """Returns the answer, or the refusal; None: it could not be had. And how many tries it
        took, and by which door it came.
        """
        give_up = time.monotonic() + _GIVE_UP_SECONDS
        tries = 0
        while time.monotonic() < give_up:
            tries += 1
            door = self._stub(cluster) if by_stub else self._door(cluster)
            seconds = self._random.choice([2, 5, 10])
            token = self.token if self._random.random() < 0.5 else ""
            started = self._journal.now()
            facts: dict[str, Any] = {"id": request_id, "at_door": str(door), "op": op.shown()}
            try:
                response = door.write(op, token, request_id, seconds)
            except KdirError as error:
                facts |= {"started": started, "message": error.message}
                if error.reason == "TOKEN_EXPIRED" and self._forget_expired():
                    continue
                self._journal.operation(op.verb, door.name, error.reason, about, **facts)
                if error.reason not in TRANSIENT and not self._explained(error.reason, cluster):
                    return error, tries, door
                self._ending.wait(self._random.choice([0, 0.05, 0.3]))
                continue
            facts |= {"started": started, "token": shown_token(response.token)}
            self._journal.operation(op.verb, door.name, "ok", about, **facts)
            return response, tries, door
        return None, tries, None

    def _forget_expired(self) -> bool:
        """True if there was a new life since the token was given: it is forgotten."""
        incarnations = sum(one.incarnations for one in self._world.clusters.values())
        known, self._incarnations_known = self._incarnations_known, incarnations
        self.token = ""
        self._close_doors()
        self._done.clear()
        return incarnations > known

    def _explained(self, reason: str, cluster: Cluster) -> bool:
        calm = min(one.calm_seconds() for one in self._world.clusters.values())
        return reason in _IN_FAULTS and calm < _CALM_SECONDS

    def _refused(
        self, plot: Plot, op: Op, reason: str, reasons: frozenset[str], tries: int
    ) -> None:
        self._journal.check("refusal")
        if reason not in reasons:
            right = sorted(reasons) or "ok"
            text = f"{op.shown()} was refused with {reason}; right would be {right}"
            self._give_up(plot, f"refused {op.verb} {reason}", text)
        elif tries > 1:
            # An earlier try may still be on its way, and find another tree than this one did.
            plot.doubt(plot.tree)

    def _give_up(self, plot: Plot, kind: str, text: str) -> None:
        """A breach after which it is not known what the plot holds."""
        self._journal.breach(kind, text, plot.path)
        self._replace(plot)

    def _note(self, token: str, cluster: Cluster) -> Position | None:
        """Takes a token up; its position in a cluster."""
        parsed = Token.parse(token)
        self.token = str(Token.merge([Token.parse(self.token), parsed]))
        return parsed.positions.get(cluster.cluster_id)

    def _repeat(self) -> None:
        """Asks again what was acknowledged a while ago: the same answer, and no second effect."""
        now = time.monotonic()
        young = [
            one
            for one in self._done
            if now - one.at < 60 and one.incarnations == one.cluster.incarnations
        ]
        if not young:
            return
        done = self._random.choice(young)
        about = next((one.path for one in self.plots if is_of(done.op, one)), "")
        plot = next((one for one in self.plots if one.path == about), None)
        if plot is None or plot.candidates:
            return
        # Not by the library: where a link stands by now, it would ask at the link's target.
        result, _, _ = self._until_definite(
            done.op, done.request_id, done.cluster, about, by_stub=True
        )
        if result is None:
            plot.doubt(plot.tree)
            return
        self._journal.check("repeat")
        if isinstance(result, KdirError):
            text = f"{done.op.shown()} again, with its id: {result.reason}"
            self._give_up(plot, f"repeat {done.op.verb}", text)
            return
        if (answer := answer_of(done.op, result)) != done.answer:
            text = f"{done.op.shown()} again, with its id: {answer}, first it was {done.answer}"
            self._journal.breach(f"repeat {done.op.verb}", text, about)

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, plot: Plot, read: Read) -> None:
        door = self._door(plot.cluster)
        if read.what in ("list", "check") and self._random.random() < _CLI_SHARE:
            self.compare(plot, read, CliDoor(self._world, self._random), "")
            return
        token = self.token if self._random.random() < 0.6 else ""
        self.compare(plot, read, door, token)

    def compare(self, plot: Plot, read: Read, door: Reader, token: str, seconds: float = 8) -> bool:
        """Asks, and compares with what the model has; False: there was no answer."""
        at_least = plot.newest if token else 0
        if isinstance(door, LibraryDoor):
            at_least = max(at_least, door.at_least(read, plot.path))
        found = self._ask(plot, read, door, token, seconds)
        if found is None:
            return False
        if found.is_stale and not isinstance(door, StubDoor):
            at_least = 0
        kind = f"read {read.what}" + (" with token" if token else "")
        self._journal.check(kind)
        position = found.position
        asked = Token.parse(token).positions.get(plot.cluster.cluster_id)
        if (
            position is not None
            and asked is not None
            and not found.is_stale
            # What a resolver remembers and follows is as it was at a later position, too.
            and not isinstance(door, LibraryDoor)
            and position.incarnation == asked.incarnation
            and position.revision < asked.revision
        ):
            text = f"{read}: answered at {position}, before the token's {asked}"
            self._journal.breach("older than token", text, plot.path)
        # A resolver's own changes count for what it remembers, whatever revision that is of.
        at = None if isinstance(door, LibraryDoor) else position
        right = [view(tree, read, plot.cluster) for tree in plot.possible(at, at_least)]
        if found.value not in right:
            wanted = [shown(one) for one in right[-3:]]
            text = f"{read} by {door}: {shown(found.value)}; right: {wanted}"
            self._journal.breach(kind, text, plot.path)
            if token:
                self._replace(plot)
        return True

    def _ask(
        self, plot: Plot, read: Read, door: Reader, token: str, seconds: float
    ) -> Answered | None:
        started = self._journal.now()
        facts: dict[str, Any] = {"at_door": str(door), "read": str(read), "started": started}
        facts["token"] = shown_token(token)
        try:
            found = door.read(read, token, seconds, plot.path)
        except KdirError as error:
            facts["message"] = error.message
            if error.reason == "TOKEN_EXPIRED" and self._forget_expired():
                return None
            self._journal.operation(read.what, door.name, error.reason, plot.path, **facts)
            if error.reason not in TRANSIENT and not self._explained(error.reason, plot.cluster):
                text = f"{read} by {door}: {error.reason}: {error.message}"
                self._journal.breach(f"read {read.what} {error.reason}", text, plot.path)
            return None
        facts |= {"found": shown(found.value), "position": str(found.position)}
        self._journal.operation(read.what, door.name, "ok", plot.path, **facts)
        return found

    def _follow_links(self) -> None:
        """Asks where a path through links leads, and compares with where it does in the model."""
        if any(plot.candidates or plot.is_lost for plot in self.plots):
            return
        path = invent_way(self._random, self.plots)
        kind = self._random.choice([one for one in self._world.plan.doors if one != "grpc"] or [""])
        if not path or not kind:
            return
        with ExitStack() as stack:
            for plot in self.plots:
                stack.enter_context(plot.cluster.using())
            if not any(plot.is_lost for plot in self.plots):
                self._follow_one(path, self._library(kind))

    def _follow_one(self, path: str, door: LibraryDoor) -> None:
        trees: dict[str, Tree | None] = dict.fromkeys(self._retired)
        trees |= {plot.path: plot.tree for plot in self.plots}
        what = self._random.choice(["follow", "names"])
        wanted = (follow if what == "follow" else names_at)(trees, path)
        if wanted is None:
            return
        about = next(plot.path for plot in self.plots if path.startswith(plot.path))
        facts: dict[str, Any] = {"path": path, "at_door": str(door), "started": self._journal.now()}
        facts |= {"token": shown_token(self.token), "right": shown(wanted)}
        doubtful = False
        try:
            if what == "follow":
                found, doubtful = door.follow(path, self.token, 10)
            else:
                found = door.names(path, self.token, 10)
        except KdirError as error:
            facts["message"] = error.message
            self._journal.operation(what, door.name, error.reason, about, **facts)
            if error.reason == "TOKEN_EXPIRED" and self._forget_expired():
                return
            calm = min(one.calm_seconds() for one in self._world.clusters.values())
            if error.reason not in TRANSIENT and not (
                error.reason in _IN_FAULTS and calm < _CALM_SECONDS
            ):
                text = f"{what} {path} by {door}: {error.reason}: {error.message}"
                self._journal.breach(f"{what} {error.reason}", text, about)
            return
        self._journal.operation(what, door.name, "ok", about, found=shown(found), **facts)
        if doubtful:
            return
        self._journal.check(f"{what} links")
        if found != wanted:
            text = f"{what} {path} by {door}: {shown(found)}; right: {shown(wanted)}"
            self._journal.breach(f"{what} links", text, about)

    # -- what is not certain ---------------------------------------------------------------------

    def _settle(self, plot: Plot) -> None:
        """Finds out which of the candidates it is, by a read that nothing newer can contradict."""
        position = self._fresh_position(plot)
        if position is None:
            return
        door = StubDoor(self._random.choice(plot.cluster.servers), plot.cluster)
        read = Read("list", plot.path)
        found = self._ask(plot, read, door, self.token, 8)
        own = self._ask(plot, Read("get", plot.path), door, self.token, 8)
        if found is None or own is None or position is None:
            return
        seen = frozenset((*_entries(found.value), own.value))
        self._journal.check("settled")
        for tree in plot.candidates:
            if seen == frozenset((*_entries(whole(tree, plot)), view_own(tree, plot))):
                plot.candidates = []
                plot.record(tree, position, exact=False)
                return
        right = [shown(whole(tree, plot)) for tree in plot.candidates]
        self._give_up(plot, "settled", f"{plot.path}: {shown(seen)}; right: {right}")

    # -- what all share --------------------------------------------------------------------------

    def _register(self) -> None:
        cluster = self._random.choice(self._world.used)
        with cluster.using():
            self._use_register(cluster)

    def _use_register(self, cluster: Cluster) -> None:
        register = self._random.choice(self._registers[cluster.mount])
        started = self._journal.now()
        if self._random.random() < 0.5:
            value = self._new_id()
            op = Op(verb="set", path=register.path, fields=(("owner", value),))
            request_id = self._new_id()
            result, _, _ = self._until_definite(op, request_id, cluster, register.path)
            if isinstance(result, KdirError):
                text = f"{op.shown()} was refused with {result.reason}"
                self._journal.breach("register refused", text, register.path)
                return
            position = self._note(result.token, cluster) if result is not None else None
            register.wrote(value, started, self._journal.now(), position)
            if position is not None:
                cluster.acknowledged.append(Acknowledged(request_id, register.path, position))
            return
        token = self.token if self._random.random() < 0.5 else ""
        door = StubDoor(self._random.choice(cluster.servers), cluster)
        plot = Plot(register.path, cluster, [])
        found = self._ask(plot, Read("get", register.path), door, token, 8)
        if found is not None and found.position is not None and found.value != ABSENT:
            owner = dict(found.value[2]).get("owner", "")  # type: ignore[index]
            register.read(owner, started, self._journal.now(), found.position)

    def _count(self) -> None:
        """Raises a counter by who saw its etag: of those who saw the same one, one may."""
        cluster = self._random.choice(self._world.used)
        register = self._random.choice(self._registers[cluster.mount])
        server = self._random.choice(cluster.servers)
        kind: Any = kind_number("directory")
        try:
            seen = server.entries("GetEntry", path=register.path, kind=kind, token=self.token).entry
            number = int(seen.policies.tags["count"].value or "0") + 1
            seen.policies.tags["count"].value = str(number)
            server = self._random.choice(cluster.servers)
            server.entries(
                "UpdateEntry",
                path=register.path,
                kind=kind,
                entry=seen,
                update_mask={"paths": ["policies.tags.count"]},
                etag="" if self._world.lies.reports("lost count", 1.0) else seen.etag,
                request_id=self._new_id(),
            )
        except (KdirError, ValueError) as error:
            reason = error.reason if isinstance(error, KdirError) else "UNREACHABLE"
            self._journal.operation("count", "grpc", reason, register.path)
            if reason == "TOKEN_EXPIRED" and self._forget_expired():
                return
            if reason not in TRANSIENT | {"ETAG_MISMATCH"}:
                self._journal.breach("count", f"{register.path}: {error}", register.path)
            with register.lock:
                register.counted_unsure += reason != "ETAG_MISMATCH"
            return
        self._journal.operation("count", "grpc", "ok", register.path, number=number)
        with register.lock:
            register.counted[cluster.incarnations, number] += 1


def is_of(op: Op, plot: Plot) -> bool:
    """True if an operation is about what lies in a plot."""
    return op.path == plot.path or op.path.startswith(plot.path + "/")


def _changed(before: Tree, after: Tree) -> set[str]:
    """Returns the paths of the entries that are not the same in both."""
    return {key[0] for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def whole(tree: Tree, plot: Plot) -> object:
    """Returns all below the plot's own directory."""
    return view(tree, Read("list", plot.path), plot.cluster)


def view_own(tree: Tree, plot: Plot) -> object:
    """Returns the plot's own directory."""
    return view(tree, Read("get", plot.path), plot.cluster)


def _entries(value: object) -> list[object]:
    return sorted(value, key=str) if isinstance(value, frozenset) else [value]


def shown(value: object) -> object:
    """Returns a value as text for people."""
    return sorted(map(str, value)) if isinstance(value, frozenset) else str(value)


def shown_token(token: str) -> object:
    """Returns a token's positions as text for people."""
    return {
        cluster: f"{place.incarnation[:6]}@{place.revision}"
        for cluster, place in Token.parse(token).positions.items()
    }
