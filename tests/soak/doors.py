"""The doors by which a worker comes in: bare gRPC stubs, the library, the command line."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kdir.v1 import (
    access_pb2,
    access_pb2_grpc,
    admin_pb2_grpc,
    directory_pb2,
    directory_pb2_grpc,
    policies_pb2,
    policies_pb2_grpc,
)

from resolver import Resolver
from resolver.errors import Internal, KdirError, Unreachable
from resolver.revision_token import Position, Token
from tests.soak import model
from tests.soak.messages import (
    effective_of,
    entry_of,
    grant_lines,
    kind_number,
    request_of,
)
from tests.soak.model import Op, Tree
from tests.soak.world import Cluster, SoakServer, World

__all__ = ["Answered", "CliDoor", "Door", "LibraryDoor", "Read", "Reader", "StubDoor", "view"]

_STUBS = {
    "DirectoryService": directory_pb2_grpc.DirectoryServiceStub,
    "AccessService": access_pb2_grpc.AccessServiceStub,
    "PolicyService": policies_pb2_grpc.PolicyServiceStub,
    "AdminService": admin_pb2_grpc.AdminServiceStub,
}
_ABSENT = ("ABSENT", "INVALID_NAMESPACE")


@dataclass(frozen=True, slots=True)
class Read:
    """A question with one right answer in a tree."""

    what: str
    path: str
    kind: str = "directory"
    principal: str = ""
    operation: str = ""


@dataclass(frozen=True, slots=True)
class Answered:
    """Result of a read; ``position``: at which revision, where the answer names it."""

    value: object
    position: Position | None = None
    is_stale: bool = False
    server: str = ""


def view(tree: Tree, read: Read, cluster: Cluster) -> object:
    """Returns what a read must find in a tree."""
    match read.what:
        case "get":
            return model.entry_view(tree, read.path, read.kind)
        case "list":
            return model.list_view(tree, read.path)
        case "resolve":
            return model.resolve_view(tree, read.path)
        case "grants":
            return model.grants_view(tree, read.path, read.kind)
        case "effective":
            return model.effective_view(tree, read.path)
        case "check":
            return model.decide(
                tree,
                read.path,
                read.principal,
                read.operation,
                enforce=cluster.plan.enforce,
            )
        case _:
            raise AssertionError(read.what)


class Reader(Protocol):
    """A way in for questions."""

    name: str

    def read(self, read: Read, token: str, timeout_seconds: float, top: str) -> Answered:
        """Asks a question.

        Raises:
            KdirError: there was no answer.
        """
        ...


class Door(Reader, Protocol):
    """A way in."""

    def write(self, op: Op, token: str, request_id: str, timeout_seconds: float) -> Any:
        """Asks for a change; the contract's answer.

        Raises:
            KdirError
        """
        ...


Call = Callable[[str, str, Any, float], Any]
"""Path, method, request, seconds."""


def _position(token: str, cluster_id: str) -> Position | None:
    return Token.parse(token).positions.get(cluster_id)


def _read_by_calls(
    call: Call, read: Read, token: str, timeout_seconds: float, top: str, cluster_id: str
) -> Answered:
    """A read by the contract's methods. ``top``: where the tree that is looked at begins."""
    kind: Any = kind_number(read.kind)
    try:
        match read.what:
            case "get":
                get = directory_pb2.GetEntryRequest(path=read.path, kind=kind, token=token)
                answer = call(read.path, "DirectoryService.GetEntry", get, timeout_seconds)
                value = entry_of(answer.entry)
            case "list":
                request = directory_pb2.ListEntriesRequest(
                    path=read.path, recursive=True, token=token, page_size=5000
                )
                answer = call(read.path, "DirectoryService.ListEntries", request, timeout_seconds)
                value = frozenset(map(entry_of, answer.entries))
            case "grants":
                grants = access_pb2.ListGrantsRequest(path=read.path, kind=kind, token=token)
                answer = call(read.path, "AccessService.ListGrants", grants, timeout_seconds)
                value = grant_lines(answer.grants)
                return Answered(value, _position(answer.token, cluster_id))
            case "effective":
                wanted = policies_pb2.GetEffectivePoliciesRequest(
                    path=read.path, token=token, directory=True
                )
                name = "PolicyService.GetEffectivePolicies"
                answer = call(read.path, name, wanted, timeout_seconds)
                value = effective_of(answer, top)
                return Answered(value, _position(answer.token, cluster_id))
            case "check":
                check = access_pb2.CheckAccessRequest(
                    principal=read.principal,
                    operation=f"OPERATION_{read.operation}",
                    path=read.path,
                    token=token,
                    kind=kind,
                )
                answer = call(read.path, "AccessService.CheckAccess", check, timeout_seconds)
                return Answered(answer.allowed, _position(answer.token, cluster_id))
            case _:
                raise AssertionError(read.what)
    except KdirError as error:
        if error.reason in _ABSENT:
            return Answered(model.ABSENT)
        raise
    authority = answer.authority
    return Answered(
        value,
        Position(authority.incarnation, authority.revision),
        authority.stale,
        authority.server,
    )


class StubDoor:
    """Bare stubs at one server."""

    def __init__(self, server: SoakServer, cluster: Cluster) -> None:
        self.name = "grpc"
        self.server = server
        self._cluster = cluster
        self._lies = cluster.lies

    def __str__(self) -> str:
        return f"grpc {self.server.directory.name}"

    def _call(self, path: str, method: str, request: Any, timeout_seconds: float) -> Any:
        return self.call(method, request, timeout_seconds)

    def call(self, method: str, request: Any, timeout_seconds: float) -> Any:
        """Returns one call of the contract.

        Raises:
            KdirError
        """
        service, _, name = method.partition(".")
        try:
            return self.server.ask(_STUBS[service], name, request, timeout_seconds)
        except ValueError as error:  # its channel was closed: it moves to another port
            raise Unreachable(str(error)) from error

    def write(self, op: Op, token: str, request_id: str, timeout_seconds: float) -> Any:
        method, request = request_of(op, token, request_id)
        self._lies.bend_request(request)
        try:
            return self._call(op.path, method, request, timeout_seconds)
        except KdirError as error:
            raise self._lies.bend_refusal(error) from error

    def read(self, read: Read, token: str, timeout_seconds: float, top: str) -> Answered:
        if read.what == "resolve":
            return self._resolve(read, token)
        found = _read_by_calls(
            self._call, read, token, timeout_seconds, top, self._cluster.cluster_id
        )
        bent: Answered = self._lies.bend_answer(read.what, str(read), token, found)
        return bent

    def _resolve(self, read: Read, token: str) -> Answered:
        try:
            answer = self.server.resolve(read.path, token=token, no_follow=True)
        except ValueError as error:
            raise Unreachable(str(error)) from error
        authority = answer.authority
        match answer.outcome.WhichOneof("kind"):
            case "resolution":
                found = answer.outcome.resolution
                value: object = (found.entry.WhichOneof("kind"), found.has_container)
            case "absent":
                value = model.ABSENT
            case other:
                raise Internal(f"resolve {read.path}: {other}: {answer.outcome}")
        return Answered(
            value,
            Position(authority.incarnation, authority.revision),
            authority.stale,
            authority.server,
        )


class LibraryDoor:
    """A resolver, which may begin at any cluster; closed and made anew now and then."""

    def __init__(self, world: World, random_source: random.Random, mode: str) -> None:
        """``mode``: plain, recursive or watch."""
        self.name = f"library-{mode}"
        start = random_source.choice(list(world.clusters.values()))
        self.servers: Sequence[str] = start.addresses
        self._start = start
        self._random = random_source
        self.written: dict[str, int] = {}
        """By plot: the version of its tree that was written by this resolver last; what is asked of
        a server is at least that new."""
        self.changed: dict[str, int] = {}
        """By path of an entry: the version with this resolver's last change of it; what is
        remembered is at least that new."""
        self._world = world
        self._resolver = Resolver(
            list(self.servers),
            timeout_seconds=10,
            recursive=mode == "recursive",
            watch=mode == "watch",
            **world.login(),
        )

    def __str__(self) -> str:
        return f"{self.name} at {','.join(self.servers)}"

    def close(self) -> None:
        """Ends the resolver."""
        self._resolver.close()

    def _call(self, path: str, method: str, request: Any, timeout_seconds: float) -> Any:
        return self._resolver.call(path, method, request, timeout_seconds=timeout_seconds)

    def write(self, op: Op, token: str, request_id: str, timeout_seconds: float) -> Any:
        method, request = request_of(op, token, request_id)
        return self._call(op.path, method, request, timeout_seconds)

    def read(self, read: Read, token: str, timeout_seconds: float, top: str) -> Answered:
        cluster_id = self._owner(top).cluster_id
        try:
            match read.what:
                case "resolve":
                    found = self._resolver.resolve(
                        read.path, token=token, no_follow=True, timeout_seconds=timeout_seconds
                    )
                    authority = found.authority
                    position = Position(authority.incarnation, authority.revision)
                    value = (found.kind, found.has_container)
                    return Answered(value, position, found.stale, authority.server)
                case "list":
                    listing = self._resolver.list(
                        read.path, recursive=True, token=token, timeout_seconds=timeout_seconds
                    )
                    entries = frozenset(entry_of(one.entry) for one in listing)
                    if listing.not_listed:
                        raise listing.not_listed[0].error
                    if listing.directory is None:
                        return Answered(model.ABSENT)  # what is no directory lists itself
                    return Answered(entries)
                case _:
                    return _read_by_calls(self._call, read, token, timeout_seconds, top, cluster_id)
        except KdirError as error:
            if error.reason in _ABSENT:
                return Answered(model.ABSENT)
            raise

    def at_least(self, read: Read, plot: str) -> int:
        """Returns the version of a plot's tree that an answer without a token may not be older
        than.

        What is remembered may miss others' changes until its lifetime ends; it never misses those
        that this resolver made itself.
        """
        if read.what == "resolve":
            return self.changed.get(read.path, 0)
        return self.written.get(plot, 0)

    def follow(self, path: str, token: str, timeout_seconds: float) -> tuple[object, bool]:
        """Returns where a path leads: canonical path and kind, or absent; and whether that may be
        old or by another target than the first.

        Raises:
            KdirError
        """
        path = self._by_site(path)
        try:
            found = self._resolver.resolve(path, token=token, timeout_seconds=timeout_seconds)
        except KdirError as error:
            if error.reason in _ABSENT:
                return model.ABSENT, False
            raise
        return (found.path, found.kind), found.stale or found.is_fallback

    def names(self, path: str, token: str, timeout_seconds: float) -> object:
        """Returns the names in a directory.

        Raises:
            KdirError
        """
        listing = self._resolver.list(
            f"{self._by_site(path)}", token=token, timeout_seconds=timeout_seconds
        )
        found = frozenset(one.path.name for one in listing)
        if listing.not_listed:
            raise listing.not_listed[0].error
        return found

    def _by_site(self, path: str) -> str:
        """Returns the same path through a site link, where the servers that are asked first have
        one.
        """
        for link, target in self._start.plan.links.items():
            if model.is_below(path, target) and self._random.random() < 0.5:
                return link + path[len(target) :]
        return path

    def _owner(self, top: str) -> Cluster:
        """Returns the cluster of a tree: that of the longest mount above it."""
        return max(
            (one for one in self._world.clusters.values() if model.is_below(top, one.top)),
            key=lambda one: len(one.mount),
        )


class CliDoor:
    """``kdir`` as a process. It says no token and takes no request id, so that what came of a
    change is known only where it says so.
    """

    name = "cli"

    def __init__(self, world: World, random_source: random.Random) -> None:
        start = random_source.choice(list(world.clusters.values()))
        self._at = ",".join(start.addresses)
        self._world = world

    def __str__(self) -> str:
        return f"kdir --at {self._at}"

    @staticmethod
    def can(op: Op, tree: Tree) -> bool:
        """True if a command line says just this."""
        if op.verb == "mkdir":
            return op.parents
        if op.verb == "set":
            return len({value is None for _, value in op.fields}) == 1
        if op.kind == "topic" and op.verb != "create":
            return (op.path, "topic") in tree  # else a directory of the name would be meant
        if op.verb == "rm" and op.kind == "directory":
            return op.recursive  # else it is a slip, and said so
        return op.kind != "link" or op.verb == "ln"

    def run(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        """Returns one command line."""
        done = self._world.kdir(*arguments, "--at", self._at, "--timeout", "20")
        if "Traceback" in done.stderr:
            self._world.journal.breach("cli", f"{arguments}: {done.stderr}", "cli")
        return done

    def change(self, op: Op) -> tuple[int, str]:
        """Runs a change; returns its exit code and stderr."""
        done = self.run(_message(op))
        return done.returncode, done.stderr.strip()

    def read(self, read: Read, token: str, timeout_seconds: float, top: str) -> Answered:
        """Runs ``list`` and ``check``, no other read."""
        if read.what == "check":
            done = self.run(["check", read.principal, read.operation.lower(), f"{read.path}/"])
            if done.returncode in (0, 4):
                return Answered(done.returncode == 0)
        else:
            done = self.run(["ls", "-R", "-o", "json", f"{read.path}/"])
            if done.returncode == 0:
                return Answered(frozenset(map(_listed, done.stdout.splitlines())))
            if done.returncode == 1:
                return Answered(model.ABSENT)
        if done.returncode == 3:
            raise Unreachable(done.stderr)
        raise Internal(f"{read}: exit code {done.returncode}: {done.stderr}")


def _message(op: Op) -> list[str]:
    place = op.path if op.kind in ("topic", "link") else f"{op.path}/"
    match op.verb:
        case "mkdir":
            return ["mkdir", "-p", op.path]
        case "create":
            return ["create", "--no-wait", op.path]
        case "ln":
            modes = {"union": ["--union"], "fallback": ["--fall-back-on-absent"]}
            return ["ln", *op.targets, op.path, *modes.get(op.mode, [])]
        case "rm":
            return ["rm", "-y", *(["-r"] if op.recursive else []), place]
        case "mv":
            return ["mv", place, op.new_path]
        case "grant" | "revoke":
            principal, operation, permission = op.grants[0]
            deny = ["--deny"] if permission == "DENY" else []
            operation = operation.lower().replace("_", "-")
            return [op.verb, principal, operation, place, *deny]
        case "set":
            names = [(name.removeprefix("topic_config."), value) for name, value in op.fields]
            if names[0][1] is None:
                return ["unset", "-y", place, *(name for name, _ in names)]
            return ["set", "-y", place, *(f"{name}={value}" for name, value in names)]
        case _:
            raise AssertionError(op)


def _listed(line: str) -> object:
    """A line of ``ls -o json`` as ``model.entry_view`` has it."""
    from google.protobuf import json_format
    from kdir.v1 import entry_pb2

    entry = entry_pb2.Entry()
    json_format.ParseDict(json.loads(line), entry, ignore_unknown_fields=True)
    return entry_of(entry)
