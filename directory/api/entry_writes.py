"""Common path of every change of an entry: the cluster, the entry, the caller's rights, the commit,
and the part of the result that the caller may see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from kdir.v1 import access_pb2, directory_pb2

from directory.api.cluster_router import ClusterRouter
from directory.api.redaction import as_shown, redacting_errors
from directory.api.rpc.call_context import Call
from directory.api.write_checks import (
    authorize_command,
    is_kafka_change_allowed,
    refuse_lock_out,
    with_inferred_kind,
)
from directory.namespace.command import (
    AddGrants,
    Command,
    Creation,
    DeleteEntry,
    MoveEntry,
    RemoveGrants,
    UpdateEntry,
)
from directory.namespace.snapshot import Snapshot
from directory.server.cluster import Cluster
from directory.store.writer import CommitResult
from resolver.errors import InvalidArgument

__all__ = ["commit_change"]

_REQUEST_ID_LENGTH: Final = 128
_Asked = Creation | UpdateEntry | DeleteEntry | MoveEntry | AddGrants | RemoveGrants
C = TypeVar("C", bound=_Asked)
_Request = (
    directory_pb2.CreateEntryRequest
    | directory_pb2.UpdateEntryRequest
    | directory_pb2.DeleteEntryRequest
    | directory_pb2.MoveEntryRequest
    | access_pb2.AddGrantsRequest
    | access_pb2.RemoveGrantsRequest
)


def commit_change(
    router: ClusterRouter,
    asked: C,
    request: _Request,
    call: Call,
    complete: Callable[[Cluster, Snapshot, C], Command] = lambda _cluster, _snapshot, meant: meant,
    *,
    holder: bool = True,
    ask_first: bool = False,
) -> tuple[Cluster, C, CommitResult]:
    """Commits or plans a command; returns the cluster whose tree has the path, the command with the
    kind of the entry filled in, and the committed plan.

    Args:
        complete: called once the caller is authorized; raises if something else forbids the change,
            and returns the command with looked-up values added.
        holder: for a mount, the cluster above it is meant.
        ask_first: confirm the replica with the store before planning. For a recursive removal: its
            guards cover neither the size of the subtree, which is part of the response, nor
            everything that forbids removing topics from Kafka.

    Raises:
        KdirError: redacted for the caller.
    """
    if len(request.request_id) > _REQUEST_ID_LENGTH:
        raise InvalidArgument(
            f"request_id: found {len(request.request_id)} characters; expected at most "
            f"{_REQUEST_ID_LENGTH}"
        )
    path, access_control = asked.path, router.access_control
    picked = router.cluster_holding_entry(path) if holder else router.cluster_for_path(path)

    def attempt() -> tuple[Cluster, C, CommitResult]:
        cluster = router.require_owner(path, holder=holder)
        command = with_inferred_kind(access_control, cluster, asked, call)

        def completed(snapshot: Snapshot) -> Command:
            whole = complete(cluster, snapshot, command)
            if not _may_lock_out(request):
                refuse_lock_out(access_control, cluster, snapshot, command, call)
            return whole

        def goes_in_kafka(snapshot: Snapshot) -> bool:
            return isinstance(command, DeleteEntry) and is_kafka_change_allowed(
                cluster, snapshot, "delete", path, command.kind
            )

        with redacting_errors(access_control, cluster, command, call):
            written = cluster.writer.commit_command(
                command,
                principal=call.principal,
                request_id=request.request_id,
                timeout_seconds=call.seconds_left(),
                deletes_in_kafka=goes_in_kafka,
                creates_in_kafka=lambda _: True,  # else ``complete`` refuses it
                validate_only=request.validate_only,
                authorize=authorize_command(access_control, cluster, command, call),
                complete=completed,
                as_shown=lambda planned, snapshot: as_shown(
                    access_control.tree(cluster, snapshot, call), command, planned
                ),
            )
        return cluster, command, written

    return router.decide(picked, request.token, call, attempt, ask_first=ask_first)


def _may_lock_out(request: _Request) -> bool:
    """True if the request allows the caller to lock itself out, or is a dry run, which reports
    that.
    """
    match request:
        case directory_pb2.UpdateEntryRequest():
            return request.allow_lock_out or request.validate_only
        case directory_pb2.CreateEntryRequest():
            return request.allow_lock_out
        case _:
            return True
