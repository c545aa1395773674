"""Operator: moves mounts, detaches and attaches, migrates and restores, while all is used."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from kdir.v1 import access_pb2, admin_pb2, directory_pb2

from resolver.errors import KdirError
from resolver.revision_token import Position, Token
from tests.soak.doors import StubDoor
from tests.soak.journal import Journal
from tests.soak.plots import Plot
from tests.soak.world import Cluster, Lingering, World, await_serving, is_linked

__all__ = ["Operator"]

_TRANSIENT: Final = frozenset(
    {"UNREACHABLE", "DEADLINE_EXCEEDED", "NOT_READY", "STORE_UNAVAILABLE", "CANCELLED"}
    | {"TOKEN_FROM_FUTURE", "LIMIT_EXCEEDED", "WRITE_CONFLICT", "STORE_SEALED", "LAME", "UNMOUNTED"}
)
_SECRET: Final = "User:shut-out"


class Operator(threading.Thread):
    """Thread that does one act after another until it is stopped.

    Args:
        hop: a child cluster that nobody else uses: its mount moves.
        plots: those of all workers, whose models follow a restore.
    """

    def __init__(
        self,
        world: World,
        hop: Cluster,
        journal: Journal,
        seed: str,
        plots: Callable[[], list[Plot]],
    ) -> None:
        super().__init__(name="operator", daemon=True)
        self._world = world
        self._hop = hop
        self._parent = world.clusters[hop.plan.parent]
        self._journal = journal
        self._random = random.Random(f"{seed}-operator")
        self._plots = plots
        self._ending = threading.Event()
        self._at = hop.mount
        self._token = ""
        self._numbers = 0
        self._retried = False
        """An answer was lost since this was set."""

    def stop(self) -> None:
        """Ends after the act under way."""
        self._ending.set()

    def run(self) -> None:
        acts: list[Callable[[], None]] = [self._shut, self._detach, self._remount]
        acts += [self._migrate, self._restore]
        try:
            self._prepare()
            while not self._ending.wait(self._random.uniform(1, 5)):
                act = self._random.choices(acts, [4, 4, 3, 1, 1])[0]
                name = act.__name__.strip("_")
                try:
                    act()
                except KdirError as error:
                    self._journal.operation(
                        name, "operator", error.reason, "operator", message=str(error)
                    )
                    if error.reason not in _TRANSIENT:
                        self._journal.breach(f"operator {name}", str(error), "operator")
                else:
                    self._journal.operation(name, "operator", "ok", "operator")
        except BaseException as error:
            self._journal.breach("checker", f"operator failed: {error!r}", "operator")
            raise

    # -- asking ----------------------------------------------------------------------------------

    def _ask(self, cluster: Cluster, method: str, request: Any, seconds: float = 10) -> Any:
        """Returns one call, again with the same id until its answer is definite.

        Raises:
            KdirError
        """
        if "request_id" in request.DESCRIPTOR.fields_by_name:
            self._numbers += 1
            request.request_id = f"operator-{self._numbers}-{self._random.getrandbits(64):x}"
        give_up = time.monotonic() + 90
        while True:
            server = self._random.choice(cluster.servers)
            self._journal.write(
                "operator asks",
                "operator",
                method=method,
                request=str(request),
                server=server.directory.name,
            )
            try:
                answer = StubDoor(server, cluster).call(method, request, seconds)
            except KdirError as error:
                self._journal.write("operator got", "operator", error=str(error))
                if error.reason not in _TRANSIENT or time.monotonic() > give_up:
                    raise
                self._retried = True
                time.sleep(0.2)
                continue
            self._journal.write("operator got", "operator", answer=str(answer)[:200])
            if token := getattr(answer, "token", ""):
                merged = Token.merge([Token.parse(self._token), Token.parse(token)])
                self._token = str(merged)
            return answer

    def _settle(self, condition: Callable[[], bool], what: str) -> bool:
        """Waits for what must come; a breach where it does not."""
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            if self._journal.is_full.is_set():
                return False
            try:
                if condition():
                    return True
            except (KdirError, ValueError):
                pass  # ValueError: a server moves to another port, its channel is closed
            time.sleep(0.3)
        self._journal.breach("operator", f"{what} did not come", "operator")
        return False

    def _prepare(self) -> None:
        parent = self._parent.servers[0]
        for name in ("free", "shut"):
            parent.mkdir(f"{self._parent.top}/{name}")
        grant = access_pb2.Grant(
            principal=_SECRET,
            host="*",
            operation="OPERATION_READ",
            permission="PERMISSION_DENY",
            resource_type="RESOURCE_TYPE_TOPIC",
        )
        request = access_pb2.AddGrantsRequest(path=f"{self._parent.top}/shut", grants=[grant])
        self._ask(self._parent, "AccessService.AddGrants", request)
        allow = access_pb2.Grant()
        allow.CopyFrom(grant)
        allow.permission = access_pb2.PERMISSION_ALLOW
        request = access_pb2.AddGrantsRequest(
            path=self._at, grants=[allow], kind="ENTRY_KIND_DIRECTORY"
        )
        self._ask(self._hop, "AccessService.AddGrants", request)

    # -- mounts ----------------------------------------------------------------------------------

    def _move(self, path: str) -> None:
        kind: Any = "ENTRY_KIND_MOUNT"
        request = directory_pb2.MoveEntryRequest(path=self._at, kind=kind, new_path=path)
        self._ask(self._parent, "DirectoryService.MoveEntry", request)
        self._at = path

    def _shut(self) -> None:
        """The mount goes below a deny: from then on nobody is let in at the new path."""
        free, shut = (f"{self._parent.top}/{name}/h" for name in ("free", "shut"))
        if not self._linked():
            return
        if self._at != free:
            self._move(free)
            if not self._linked():
                return
        self._move(shut)
        deadline = time.monotonic() + self._random.choice([2, 5, 10])
        denied = 0
        while time.monotonic() < deadline and denied < 20:
            denied += self._knock(shut)
        self._settle(lambda: self._knock(shut), f"an answer at {shut}")

    def _knock(self, path: str) -> bool:
        """True if it is denied; a breach if it is allowed."""
        request = access_pb2.CheckAccessRequest(
            principal=_SECRET,
            operation="OPERATION_READ",
            path=path,
            kind="ENTRY_KIND_DIRECTORY",
        )
        server = self._random.choice(self._hop.servers)
        try:
            answer = StubDoor(server, self._hop).call("AccessService.CheckAccess", request, 3)
        except KdirError:
            return False
        self._journal.check("new enemy")
        if answer.allowed:
            text = f"{_SECRET} may read {path} at {server.directory.name}: {answer.message}"
            self._journal.breach("old grants at a new path", text, "operator")
        return not answer.allowed

    def _remount(self) -> None:
        """umount and mount, and often a move at once: it is refused, or it comes to work."""
        if not self._linked():
            return
        places = [f"{self._parent.top}/free/{name}" for name in ("h", "i")]
        path, new_path = self._at, self._random.choice([one for one in places if one != self._at])
        request: Any = directory_pb2.DeleteEntryRequest(path=self._at, kind="ENTRY_KIND_MOUNT")
        self._ask(self._parent, "DirectoryService.DeleteEntry", request)
        create = directory_pb2.CreateEntryRequest(path=path)
        create.entry.mount.cluster_id = self._hop.cluster_id
        try:
            self._ask(self._parent, "DirectoryService.CreateEntry", create)
        except KdirError as error:
            if error.reason != "MOUNT_MISMATCH":
                raise
            # An unmounted child may go by its config again, and says so: then it is mounted there.
            create.path = path = self._hop.mount
            self._ask(self._parent, "DirectoryService.CreateEntry", create)
        self._at = path
        if self._random.random() < 0.6:
            try:
                self._move(new_path)
            except KdirError as error:
                # To say no is right; to say yes and then refuse the child for ever is not.
                self._journal.write("operator", "operator", refused=str(error))
                if error.reason in _TRANSIENT:
                    raise
        self._linked()

    def _linked(self) -> bool:
        """Waits until the child is linked where it was mounted last."""

        def linked() -> bool:
            if not is_linked(self._hop):
                return False
            server = self._random.choice(self._hop.servers)
            return server.status().authority.cluster.mount == self._at

        return self._settle(linked, f"the link of {self._hop.mount} at {self._at}")

    def _detach(self) -> None:
        """Detaches and attach at different servers, one right after the other: the last
        one holds.
        """
        if not self._linked():
            return
        self._retried = False
        arguments = self._random.choice(
            [("detach", "attach"), ("detach", "attach", "detach", "attach")]
        )
        for number, argument in enumerate(arguments):
            if argument == "detach":
                request: Any = admin_pb2.DetachParentRequest(keep_inherited=True)
                self._ask(self._hop, "AdminService.DetachParent", request)
            else:
                self._ask(self._hop, "AdminService.AttachParent", admin_pb2.AttachParentRequest())
            if number + 1 < len(arguments) and self._random.random() < 0.3:
                self._settle(lambda w=argument: self._is_detached(w == "detach"), argument)  # type: ignore[misc]
        if self._retried:
            # What was asked of a server that stood still may be done when it goes on.
            self._settle(Lingering(self._hop).is_over, "calm")
            self._ask(self._hop, "AdminService.AttachParent", admin_pb2.AttachParentRequest())
        self._settle(lambda: self._is_detached(False), "attached at all servers")
        self._linked()

    def _is_detached(self, right: bool) -> bool:
        return all(
            bool(server.status().parent.detached_reason) == right for server in self._hop.servers
        )

    # -- stores ----------------------------------------------------------------------------------

    def _migrate(self) -> None:
        """A cluster moves to another store while it is used."""
        cluster = self._random.choice(list(self._world.clusters.values()))
        kinds = ["sqlite", "etcd"] if self._world.etcd is not None else ["sqlite"]
        target = self._world.new_store(cluster.name, self._random.choice(kinds))
        with cluster.alone(), cluster.disturbed():
            self._journal.fault("migrate", cluster.mount, source=cluster.store, target=target)
            if not self._repeat_kdir("migrate", "--yes", cluster.store, target):
                return
            for server in cluster.servers:
                server.stop()
            self._begin(cluster, target)

    def _begin(self, cluster: Cluster, store: str) -> None:
        cluster.store = store
        cluster.incarnations += 1
        for server in cluster.servers:
            server.settings["store"] = store
            server.start_again()
        for server in cluster.servers:
            await_serving(server)
        self._token = ""
        self._journal.write("healed", cluster.mount)

    def _repeat_kdir(self, *arguments: str) -> bool:
        """A command that is said again until it has ended well."""
        output = ""
        for _ in range(20):
            done = self._world.kdir(*arguments)
            output = f"{done.stdout}{done.stderr}"
            self._journal.write(
                "kdir", "operator", arguments=arguments, code=done.returncode, output=output
            )
            if done.returncode == 0:
                return True
            time.sleep(2)
        self._journal.breach("operator", f"kdir {arguments}: {output}", "operator")
        return False

    def _restore(self) -> None:
        """A backup is taken, more is written, and then the backup is put back."""
        cluster = self._random.choice(list(self._world.clusters.values()))
        if cluster is self._hop:
            return
        file = self._world.folder / f"{cluster.name}-{self._random.getrandbits(32):x}.kdir"
        arguments = ("--at", cluster.servers[0].address, "--to", str(file), "-o", "json", "--force")
        done = self._world.kdir("backup", *arguments)
        self._journal.write(
            "kdir", "operator", arguments=arguments, code=done.returncode, out=done.stdout
        )
        if done.returncode != 0:
            return
        taken = json.loads(done.stdout)
        taken_at = time.monotonic()
        position = Position(taken["incarnation"], int(taken["revision"]))
        self._ending.wait(self._random.choice([0, 2, 6]))
        with cluster.alone(), cluster.disturbed():
            self._journal.fault("restore", cluster.mount, position=str(position))
            for server in cluster.servers:
                server.stop()
            if self._repeat_kdir(
                "restore",
                "--from",
                str(file),
                "--store",
                cluster.store,
                "--replace",
                "--force",
                "-y",
            ):
                self._put_back(cluster, position)
                for follow in cluster.on_restore:
                    follow(taken_at)
            self._begin(cluster, cluster.store)

    def _put_back(self, cluster: Cluster, position: Position) -> None:
        """The models become what they were."""
        for plot in self._plots():
            if plot.cluster is not cluster:
                continue
            then = plot.possible(position, 0)
            if plot.incarnation and plot.incarnation != position.incarnation:
                then = []
            plot.is_lost = len(then) != 1 or bool(plot.candidates)
            if cluster.broker is not None and then:
                # Kafka keeps a topic that the backup has not, and the reconciler adopts it there:
                # when it looks, which may be late, so that nobody knows what the plot holds.
                later = [one.tree for one in plot.versions if one.until > position.revision]
                topics = {key for tree in later for key in tree if key[1] == "topic"}
                plot.is_lost |= not topics <= then[0].keys()
            if not plot.is_lost:
                plot.begin_again(then[0])
                plot.incarnation = ""
