"""The doors by which a worker comes in: bare gRPC stubs, the library, the command line."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kdir.v1 import (
    access_pb2,
    access_pb2_grpc,
    directory_pb2,
    directory_pb2_grpc,
    policies_pb2,
    policies_pb2_grpc,
)

from resolver import Resolver
from resolver.errors import Internal, KdirError, Unreachable
from resolver.token import Position, Token
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

__all__ = ["Answered", "Door", "LibraryDoor", "Read", "StubDoor", "view"]

_STUBS = {
    "DirectoryService": directory_pb2_grpc.DirectoryServiceStub,
    "AccessService": access_pb2_grpc.AccessServiceStub,
    "PolicyService": policies_pb2_grpc.PolicyServiceStub,
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
    """What a read came to; ``position``: at which revision, where the answer says so."""

    value: object
    position: Position | None = None
    is_stale: bool = False
    server: str = ""


def view(tree: Tree, read: Read, cluster: Cluster) -> object:
    """What a read must find in a tree."""
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


class Door(Protocol):
    """A way in."""

    name: str

    def write(self, op: Op, token: str, request_id: str, timeout_seconds: float) -> Any:
        """Asks for a change; the contract's answer.

        Raises:
            KdirError
        """
        ...

    def read(self, read: Read, token: str, timeout_seconds: float, top: str) -> Answered:
        """Asks a question.

        Raises:
            KdirError: there was no answer.
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

    def __str__(self) -> str:
        return f"grpc {self.server.directory.name}"

    def _call(self, path: str, method: str, request: Any, timeout_seconds: float) -> Any:
        service, _, name = method.partition(".")
        try:
            return self.server.ask(_STUBS[service], name, request, timeout_seconds)
        except ValueError as error:  # its channel was closed: it moves to another port
            raise Unreachable(str(error)) from error

    def write(self, op: Op, token: str, request_id: str, timeout_seconds: float) -> Any:
        method, request = request_of(op, token, request_id)
        return self._call(op.path, method, request, timeout_seconds)

    def read(self, read: Read, token: str, timeout_seconds: float, top: str) -> Answered:
        if read.what == "resolve":
            return self._resolve(read, token)
        return _read_by_calls(
            self._call, read, token, timeout_seconds, top, self._cluster.cluster_id
        )

    def _resolve(self, read: Read, token: str) -> Answered:
        try:
            answer = self.server.resolve(read.path, token=token, no_follow=True)
        except ValueError as error:
            raise Unreachable(str(error)) from error
        authority = answer.authority
        match answer.outcome.WhichOneof("kind"):
            case "resolution":
                found = answer.outcome.resolution
                value: object = (found.entry.WhichOneof("kind"), found.container_too)
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
        self.written: dict[str, int] = {}
        """By plot: the version of its tree that was written by this resolver last."""
        self._world = world
        self._resolver = Resolver(
            list(self.servers),
            timeout_seconds=10,
            recursive=mode == "recursive",
            watch=mode == "watch",
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
                    value = (found.kind, found.container_too)
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

    def _owner(self, top: str) -> Cluster:
        """The cluster of a tree: that of the longest mount above it."""
        return max(
            (one for one in self._world.clusters.values() if model.is_below(top, one.top)),
            key=lambda one: len(one.mount),
        )
