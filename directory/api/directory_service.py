"""DirectoryService: get, list, create, update, delete, move, on the asked server's own tree."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast

from kdir.v1 import directory_pb2, entry_pb2, resolve_pb2

from directory.api import list_entries as listing
from directory.api.caller_view import fill_visible_counts
from directory.api.cluster_router import ClusterRouter
from directory.api.dry_run import fill_change_plan
from directory.api.entry_details import fill_entry_details
from directory.api.resolve_answers import ResolveAnswers, kind_from_number
from directory.api.rpc.call_context import Call
from directory.api.rpc.handlers import Handler, Service
from directory.api.write_checks import (
    authorize_command,
    check_kafka_removal_allowed,
    is_kafka_change_allowed,
    nearest_manage_false,
    redacting_errors,
    refuse_lock_out,
    with_inferred_kind,
)
from directory.namespace.command import (
    Command,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    ObservedTopic,
    UpdateEntry,
)
from directory.namespace.entry import Kind, Provision, Topic
from directory.namespace.snapshot import Snapshot
from directory.server.cluster import Cluster
from directory.store.base import Guard
from directory.store.writer import CommitResult
from directory.wire.entry_codec import entry_to_proto
from directory.wire.request_commands import create_command, update_command
from resolver.error_status import from_outcome
from resolver.errors import (
    AboveCeiling,
    Absent,
    InvalidArgument,
    KafkaRejected,
    NotAuthoritative,
    TokenFromFuture,
)
from resolver.path import Path

__all__ = ["DirectoryService"]

T = TypeVar("T")
C = TypeVar("C", UpdateEntry, DeleteEntry, MoveEntry)
_REQUEST_ID_LENGTH = 128
_WriteRequest = (
    directory_pb2.CreateEntryRequest
    | directory_pb2.UpdateEntryRequest
    | directory_pb2.DeleteEntryRequest
    | directory_pb2.MoveEntryRequest
)


class DirectoryService(Service):
    """Reads and writes of one cluster's tree."""

    descriptor = directory_pb2.DESCRIPTOR.services_by_name["DirectoryService"]
    long = frozenset({"ListEntries"})
    writes = frozenset({"CreateEntry", "UpdateEntry", "DeleteEntry", "MoveEntry"})

    def __init__(self, router: ClusterRouter) -> None:
        self._router = router
        # A Kafka that is away must not hold every thread that writes.
        self._awaiting = threading.BoundedSemaphore(max(1, router.limits.write_threads // 2))

    def method_handlers(self) -> Mapping[str, Handler]:
        return {
            "GetEntry": self.get_entry,
            "ListEntries": self.list_entries,
            "CreateEntry": self.create_entry,
            "UpdateEntry": self.update_entry,
            "DeleteEntry": self.delete_entry,
            "MoveEntry": self.move_entry,
        }

    # -- reads -----------------------------------------------------------------------------------

    def get_entry(
        self, request: directory_pb2.GetEntryRequest, call: Call
    ) -> directory_pb2.GetEntryResponse:
        """Returns one entry itself; links and mounts are shown, not followed."""
        path = Path.parse(request.path)
        of_mount = request.kind == entry_pb2.ENTRY_KIND_MOUNT
        cluster, snapshot = self._router.read_owned(path, request.token, call, holder=of_mount)
        kind = kind_from_number(request.kind)
        view = self._router.view(cluster, snapshot, call)
        shown = view.resolve_kind(path, kind, no_follow=True)
        outcome = resolve_pb2.Outcome()
        ResolveAnswers(cluster, snapshot).resolve(path, outcome, shown, no_follow=True)
        match outcome.WhichOneof("kind"):
            case "resolution":
                entry = outcome.resolution.entry
            case "absent":
                raise Absent(
                    f"{path} does not exist",
                    path=path,
                    nearest=outcome.absent.nearest_directory,
                )
            case "error":
                raise from_outcome(outcome.error)
            case _:
                raise NotAuthoritative(
                    f"{path} lies beyond a mount or link of cluster {cluster.config.cluster}; "
                    f"resolve it first",
                    path=path,
                )
        if kind is not None and entry.WhichOneof("kind") != kind.name.lower():
            raise Absent(f"{path} is no {kind.name.lower()}", path=path)
        if entry.HasField("mount"):
            _mount_state(cluster, path, entry.mount)
        fill_visible_counts(view, path.below(view.access.mount), entry)
        response = directory_pb2.GetEntryResponse(
            authority=cluster.authority(snapshot), entry=entry
        )
        fill_entry_details(response, cluster, snapshot, path, call, view)
        return response

    def list_entries(
        self, request: directory_pb2.ListEntriesRequest, call: Call
    ) -> directory_pb2.ListEntriesResponse:
        """A page of a directory's children, or with ``recursive`` of all below it."""
        path = Path.parse(request.path)
        cluster, snapshot = self._router.read_owned(path, request.token, call)
        view = self._router.view(cluster, snapshot, call)
        response = listing.list_entries(cluster, snapshot, path, request, call, view)
        for entry in response.entries:
            if entry.HasField("mount"):
                _mount_state(cluster, Path.parse(entry.path), entry.mount)
        return response

    # -- writes ----------------------------------------------------------------------------------

    def create_entry(
        self, request: directory_pb2.CreateEntryRequest, call: Call
    ) -> directory_pb2.CreateEntryResponse:
        """Makes a directory, topic, link or mount."""
        path = Path.parse(request.path)
        asked = create_command(request, path, self._router.limits.bounds)
        _check_request_id(request)

        def attempt(cluster: Cluster) -> CommitResult:
            command = asked
            with redacting_errors(self._router.access_control, cluster, command, call):
                match command:
                    case CreateMount():
                        self._authorize(cluster, command, call)
                        command = self._mounting(cluster, command)
                    case CreateTopic():
                        self._authorize(cluster, _as_asked(command, request), call)
                        command = self._topic(cluster, command, request)
                    case _:
                        pass
                return self._write(cluster, command, request, call)

        cluster, written = self._decide(path, request, call, attempt)
        entry = written.plan.entry
        waits = request.wait_until_active and not request.validate_only
        if isinstance(entry, Topic) and waits and self._awaiting.acquire(blocking=False):
            try:
                entry = self._await_active(cluster, path, entry, written.revision, call)
            finally:
                self._awaiting.release()
        response = directory_pb2.CreateEntryResponse(token=cluster.token_at(written.revision))
        response.authority.CopyFrom(cluster.authority(cluster.replica.snapshot))
        if entry is not None:
            entry_to_proto(entry, str(written.plan.path or path), into=response.entry)
        return response

    def _authorize(self, cluster: Cluster, command: Command, call: Call) -> None:
        """Before anything is looked up for the caller that it might not be told."""
        authorize_command(self._router.access_control, cluster, command, call)(
            cluster.replica.snapshot
        )

    @staticmethod
    def _mounting(cluster: Cluster, command: CreateMount) -> CreateMount:
        cluster_id, name, endpoints = cluster.children.identify(command.cluster_id)
        cluster.children.check_mount(command.path, cluster_id)
        return replace(
            command,
            cluster_id=cluster_id,
            cluster=command.cluster or name,
            endpoints=command.endpoints or endpoints,
        )

    @staticmethod
    def _topic(
        cluster: Cluster, command: CreateTopic, request: directory_pb2.CreateEntryRequest
    ) -> CreateTopic:
        kafka = cluster.config.kafka
        if kafka is None or cluster.reconciler is None:
            _check_path_syntax_first(cluster, command)
            raise AboveCeiling(
                f"cluster {cluster.config.cluster} has no Kafka behind it; topics live in clusters "
                f"that have one",
                cluster=cluster.config.cluster,
            )
        if request.adopt_existing:
            observed = cluster.reconciler.look_up(command.physical_name or command.path.name)
            return replace(command, adopt_existing=observed, physical_name=observed.physical_name)
        if "create" not in kafka.ceiling:
            _check_path_syntax_first(cluster, command)
            raise AboveCeiling(
                f"the config of cluster {cluster.config.cluster} does not allow kdir to create "
                f'topics in Kafka; [kafka] ceiling = ["create"] would',
                ceiling=" ".join(sorted(kafka.ceiling)) or "observe",
            )
        snapshot = cluster.replica.snapshot
        mount = cluster.mount_at(snapshot)
        where = nearest_manage_false(snapshot, mount, command.path, "create", Kind.TOPIC)
        if where:
            _check_path_syntax_first(cluster, command)
            raise AboveCeiling(
                f"{where} says manage.create=false: kdir creates no topics in Kafka below it",
                path=where,
            )
        return command

    def _await_active(
        self, cluster: Cluster, path: Path, made: Topic, revision: int, call: Call
    ) -> Topic:
        """Returns the topic once Kafka has it; still pending when the time is over, or as it was
        made where the mount moved meanwhile.

        Raises:
            KafkaRejected: Kafka, or a rule of ours, refused; the entry stays, as failed.
        """
        while True:
            snapshot = cluster.replica.snapshot
            mount = cluster.mount_at(snapshot)
            if not mount.is_prefix_of(path):
                return made
            relative = path.below(mount)
            parent = snapshot.find_directory(relative[:-1])
            topic = snapshot.topic(parent, relative[-1]) if parent is not None else None
            # Another one may stand there by now, which the caller may not even describe.
            if topic is None or topic.entry_id != made.entry_id:
                raise Absent(f"{path} was removed before Kafka had it", path=path)
            if topic.provision is Provision.FAILED:
                raise KafkaRejected(
                    f"{path}: {topic.provision_message}; the entry stays, as failed: "
                    f"kdir rm it, then create it again",
                    path=path,
                    physical_name=topic.physical_name,
                )
            if topic.provision is not Provision.PENDING:
                return topic
            try:
                # A little is left of the deadline, so that "still pending" can be said.
                left = call.seconds_left() - 0.25
                if left <= 0 or not call.is_active():
                    return topic
                cluster.replica.wait_for(max(revision, snapshot.revision) + 1, left)
            except TokenFromFuture:
                return topic

    def update_entry(
        self, request: directory_pb2.UpdateEntryRequest, call: Call
    ) -> directory_pb2.UpdateEntryResponse:
        """Changes the fields that the mask names."""
        path = Path.parse(request.path)
        asked = update_command(
            request,
            path,
            self._router.limits.bounds,
            call.check,
            kind=kind_from_number(request.kind),
        )
        _check_request_id(request)

        of_mount = request.kind == entry_pb2.ENTRY_KIND_MOUNT
        cluster, command, written = self._change(path, asked, request, call, holder=of_mount)
        response = directory_pb2.UpdateEntryResponse(token=cluster.token_at(written.revision))
        response.authority.CopyFrom(cluster.authority(cluster.replica.snapshot))
        if written.plan.entry is not None:
            entry_to_proto(written.plan.entry, str(path), into=response.entry)
        if request.validate_only:
            fill_change_plan(self._router, cluster, command, written, call, response.plan)
        return response

    def delete_entry(
        self, request: directory_pb2.DeleteEntryRequest, call: Call
    ) -> directory_pb2.DeleteEntryResponse:
        """Removes an entry, or with ``recursive`` all below it too."""
        path = Path.parse(request.path)
        asked = DeleteEntry(
            path=path,
            kind=kind_from_number(request.kind),
            recursive=request.recursive,
            etag=request.etag,
        )
        _check_request_id(request)

        def check(cluster: Cluster, command: DeleteEntry, snapshot: Snapshot) -> None:
            check_kafka_removal_allowed(
                cluster, snapshot, path, command.kind, recursive=request.recursive
            )

        cluster, command, written = self._change(
            path, asked, request, call, check, ask_first=request.recursive
        )
        if cluster.reconciler is not None:
            cluster.reconciler.wake()
        response = directory_pb2.DeleteEntryResponse(
            token=cluster.token_at(written.revision),
            topic_count=written.plan.topic_count,
            directory_count=written.plan.directory_count,
            kafka_topics_deleted=written.plan.kafka_topics_deleted,
        )
        removed = written.plan.entry
        if isinstance(removed, Topic):
            response.provision = cast("entry_pb2.Provision", removed.provision.value)
        response.authority.CopyFrom(cluster.authority(cluster.replica.snapshot))
        if request.validate_only:
            fill_change_plan(self._router, cluster, command, written, call, response.plan)
        return response

    def move_entry(
        self, request: directory_pb2.MoveEntryRequest, call: Call
    ) -> directory_pb2.MoveEntryResponse:
        """Moves an entry within the mount."""
        path = Path.parse(request.path)
        asked = MoveEntry(
            path=path,
            new_path=Path.parse(request.new_path),
            kind=kind_from_number(request.kind),
            leave_link=request.leave_link,
            etag=request.etag,
        )
        _check_request_id(request)

        cluster, command, written = self._change(path, asked, request, call)
        response = directory_pb2.MoveEntryResponse(token=cluster.token_at(written.revision))
        response.authority.CopyFrom(cluster.authority(cluster.replica.snapshot))
        if written.plan.entry is not None:
            entry_to_proto(written.plan.entry, request.new_path, into=response.entry)
        if request.validate_only:
            fill_change_plan(self._router, cluster, command, written, call, response.plan)
        return response

    def _change(
        self,
        path: Path,
        asked: C,
        request: _WriteRequest,
        call: Call,
        check: Callable[[Cluster, C, Snapshot], None] = lambda _cluster, _command, _snapshot: None,
        *,
        holder: bool = True,
        ask_first: bool = False,
    ) -> tuple[Cluster, C, CommitResult]:
        """Changes an entry that is there: returns its cluster, the command with the kind that is
        meant, and what was committed. ``check`` is asked once the caller may.
        """

        def attempt(cluster: Cluster) -> tuple[C, CommitResult]:
            command = with_inferred_kind(self._router.access_control, cluster, asked, call)
            with redacting_errors(self._router.access_control, cluster, command, call):
                checked = partial(check, cluster, command)
                return command, self._write(cluster, command, request, call, checked)

        cluster, (command, written) = self._decide(
            path, request, call, attempt, holder=holder, ask_first=ask_first
        )
        return cluster, command, written

    def _decide(
        self,
        path: Path,
        request: _WriteRequest,
        call: Call,
        attempt: Callable[[Cluster], T],
        *,
        holder: bool = True,
        ask_first: bool = False,
    ) -> tuple[Cluster, T]:
        """Returns the cluster whose tree holds the path, and what the attempt came to there.

        ``ask_first``: for a removal with all below it. Its guards hold neither how much that is,
        which is part of the answer, nor all that forbids Kafka's topics to go along.
        """
        picked = (
            self._router.cluster_holding_entry(path)
            if holder
            else self._router.cluster_for_path(path)
        )

        def owned() -> tuple[Cluster, T]:
            cluster = self._router.require_owner(path, holder=holder)
            return cluster, attempt(cluster)

        return self._router.decide(picked, request.token, call, owned, ask_first=ask_first)

    def _write(
        self,
        cluster: Cluster,
        command: Command,
        request: _WriteRequest,
        call: Call,
        check: Callable[[Snapshot], None] = lambda _: None,
    ) -> CommitResult:
        """Carries out a command, or plans it; ``check`` is asked once the caller may."""
        path, kind = Path.parse(request.path), getattr(command, "kind", None)
        rights = authorize_command(self._router.access_control, cluster, command, call)

        def authorize(snapshot: Snapshot) -> Sequence[Guard]:
            guards = rights(snapshot)
            check(snapshot)
            if not _may_lock_out(request):
                refuse_lock_out(self._router.access_control, cluster, snapshot, command, call)
            return guards

        return cluster.writer.commit_command(
            command,
            principal=call.principal,
            request_id=request.request_id,
            timeout_seconds=call.seconds_left(),
            deletes_in_kafka=lambda snapshot: is_kafka_change_allowed(
                cluster, snapshot, "delete", path, kind
            ),
            creates_in_kafka=lambda snapshot: is_kafka_change_allowed(
                cluster, snapshot, "create", path, Kind.TOPIC
            ),
            validate_only=request.validate_only,
            authorize=authorize,
            as_shown=self._router.as_shown(cluster, command, call),
        )


def _as_asked(command: CreateTopic, request: directory_pb2.CreateEntryRequest) -> CreateTopic:
    """Returns the command before Kafka was asked for the topic to adopt, which not
    everybody may.
    """
    if not request.adopt_existing:
        return command
    name = command.physical_name or command.path.name
    unseen = ObservedTopic(physical_name=name, topic_id=b"", partitions=0, replication_factor=0)
    return replace(command, adopt_existing=unseen)


def _check_request_id(request: _WriteRequest) -> None:
    if len(request.request_id) > _REQUEST_ID_LENGTH:
        raise InvalidArgument(
            f"request_id: found {len(request.request_id)} characters; expected at most "
            f"{_REQUEST_ID_LENGTH}"
        )


def _may_lock_out(request: _WriteRequest) -> bool:
    """True if the request allows it, or if the plan that it asks for is what names it."""
    match request:
        case directory_pb2.UpdateEntryRequest():
            return request.allow_lock_out or request.validate_only
        case directory_pb2.CreateEntryRequest():
            return request.allow_lock_out
        case _:
            return True


def _check_path_syntax_first(cluster: Cluster, command: Command) -> None:
    """What is wrong with the path itself is said before what the config does not allow."""
    cluster.writer.commit_command(command, validate_only=True)


def _mount_state(cluster: Cluster, path: Path, out: entry_pb2.Mount) -> None:
    """Adds how the child of a mount is doing, as far as this server heard."""
    row = cluster.federation.view().own.get(path)
    if row is not None:
        out.cluster = row.row.cluster
        out.endpoints[:] = row.row.endpoints
    live = cluster.federation.child_liveness(out.cluster_id)
    if live is None:
        met = cluster.federation.has_ever_linked(out.cluster_id)
        out.state = entry_pb2.MOUNT_STATE_DISCONNECTED if met else entry_pb2.MOUNT_STATE_PENDING
        return
    out.state = entry_pb2.MOUNT_STATE_LINKED if live.linked else entry_pb2.MOUNT_STATE_DISCONNECTED
    out.last_contact_age_seconds = cluster.federation.seconds_since_contact(live)
    out.topic_count = live.topic_count
