"""DirectoryService: get, list, create, update, delete and move entries of the clusters of this
server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import cast

from kdir.v1 import directory_pb2, entry_pb2

from directory.api import entry_reads
from directory.api.cluster_router import ClusterRouter
from directory.api.dry_run import fill_change_plan
from directory.api.entry_writes import (
    commit_change,
    complete_removal,
    nearest_manage_false,
)
from directory.api.resolve_answers import kind_from_number
from directory.api.rpc.call_context import Call
from directory.api.rpc.handlers import Handler, Service
from directory.namespace.command import (
    CreateMount,
    CreateTopic,
    Creation,
    DeleteEntry,
    MoveEntry,
    ObservedTopic,
)
from directory.namespace.entry import Kind, Provision, Topic
from directory.namespace.snapshot import Snapshot
from directory.server.cluster import Cluster
from directory.wire.entry_codec import entry_to_proto
from directory.wire.request_commands import create_command, update_command
from resolver.errors import (
    AboveCeiling,
    Absent,
    KafkaRejected,
    StoreUnavailable,
    TokenFromFuture,
)
from resolver.path import Path

__all__ = ["DirectoryService"]

_LookUp = Callable[[Cluster, str], ObservedTopic]
"""Returns the topic of a physical name, as the cluster's Kafka reports it."""


class DirectoryService(Service):
    """Service for reads and writes of one cluster's tree."""

    descriptor = directory_pb2.DESCRIPTOR.services_by_name["DirectoryService"]
    long = frozenset({"ListEntries"})
    writes = frozenset({"CreateEntry", "UpdateEntry", "DeleteEntry", "MoveEntry"})

    def __init__(self, router: ClusterRouter) -> None:
        self._router = router
        self._bounds = router.limits.bounds
        # An unreachable Kafka must not block every write thread.
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
        """Returns one entry; links and mounts are returned themselves, not followed."""
        path, kind = Path.parse(request.path), kind_from_number(request.kind)
        cluster, tree = self._router.read_owned(
            path, request.token, call, holder=kind is Kind.MOUNT
        )
        return entry_reads.get_entry(cluster, tree, path, kind, call)

    def list_entries(
        self, request: directory_pb2.ListEntriesRequest, call: Call
    ) -> directory_pb2.ListEntriesResponse:
        """Returns a page of a directory's children, or with ``recursive`` of everything
        below it.
        """
        path = Path.parse(request.path)
        cluster, tree = self._router.read_owned(path, request.token, call)
        return entry_reads.list_entries(cluster, tree, path, request, call)

    # -- writes ----------------------------------------------------------------------------------

    def create_entry(
        self, request: directory_pb2.CreateEntryRequest, call: Call
    ) -> directory_pb2.CreateEntryResponse:
        """Creates a directory, topic, link or mount."""
        path = Path.parse(request.path)
        command = create_command(request, path, self._bounds)
        look_up: _LookUp | None = None
        if isinstance(command, CreateTopic) and request.adopt_existing:
            command = _unseen(command)
            # Kafka is asked once for each request. If the plan is tried again, this may be under a
            # lock that others wait for.
            look_up = cache(lambda cluster, name: _look_up(cluster, name, call))

        def complete(cluster: Cluster, snapshot: Snapshot, command: Creation) -> Creation:
            match command:
                case CreateMount():
                    return _mounting(cluster, command)
                case CreateTopic():
                    return _topic(cluster, snapshot, command, look_up)
                case _:
                    return command

        cluster, _, written = commit_change(self._router, command, request, call, complete)
        entry = written.plan.entry
        waits = request.wait_until_active and not request.validate_only
        if isinstance(entry, Topic) and waits and self._awaiting.acquire(blocking=False):
            try:
                cluster.replica.apply_taken()
                entry = self._await_active(cluster, path, entry, written.revision, call)
            finally:
                self._awaiting.release()
        response = directory_pb2.CreateEntryResponse(token=cluster.token_at(written.revision))
        response.authority.CopyFrom(cluster.authority_of_write(written.revision))
        if entry is not None:
            entry_to_proto(entry, str(written.plan.path or path), into=response.entry)
        return response

    def _await_active(
        self, cluster: Cluster, path: Path, made: Topic, revision: int, call: Call
    ) -> Topic:
        """Returns the topic once Kafka has created it. At the deadline, or if the caller has gone
        or the store cannot be reached, returns it while still pending; if the mount moved, returns
        ``made``.

        Raises:
            KafkaRejected: Kafka or a rule of kdir refused the topic; the entry stays, as FAILED.
            Absent: the entry was removed meanwhile.
        """
        while True:
            snapshot = cluster.replica.snapshot
            mount = cluster.mount_at(snapshot)
            if not mount.is_prefix_of(path):
                return made
            topic = snapshot.topic_at(path.below(mount))
            # Another entry may be at the path by now, which the caller may not even describe.
            if topic is None or topic.entry_id != made.entry_id:
                raise Absent(f"{path} was removed before it was created in Kafka", path=path)
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
                # Part of the deadline is left for the response that the topic is still pending.
                left = call.seconds_left() - 0.25
                if left <= 0 or not call.is_active():
                    return topic
                cluster.replica.wait_for(max(revision, snapshot.revision) + 1, left)
            except (TokenFromFuture, StoreUnavailable):
                return topic

    def update_entry(
        self, request: directory_pb2.UpdateEntryRequest, call: Call
    ) -> directory_pb2.UpdateEntryResponse:
        """Changes the fields that the mask names."""
        path = Path.parse(request.path)
        asked = update_command(
            request,
            path,
            self._bounds,
            call.check,
            kind=kind_from_number(request.kind),
        )
        cluster, command, written = commit_change(
            self._router, asked, request, call, holder=asked.kind is Kind.MOUNT
        )
        response = directory_pb2.UpdateEntryResponse(token=cluster.token_at(written.revision))
        response.authority.CopyFrom(cluster.authority_of_write(written.revision))
        if written.plan.entry is not None:
            entry_to_proto(written.plan.entry, str(path), into=response.entry)
        if request.validate_only:
            fill_change_plan(self._router, cluster, command, written, call, response.plan)
        return response

    def delete_entry(
        self, request: directory_pb2.DeleteEntryRequest, call: Call
    ) -> directory_pb2.DeleteEntryResponse:
        """Removes an entry, or with ``recursive`` also everything below it."""
        path = Path.parse(request.path)
        asked = DeleteEntry(
            path=path,
            kind=kind_from_number(request.kind),
            recursive=request.recursive,
            etag=request.etag,
        )
        cluster, command, written = commit_change(
            self._router, asked, request, call, complete_removal, ask_first=request.recursive
        )
        if cluster.reconciler is not None:
            cluster.replica.apply_taken()  # so that the reconciler finds the removal
            cluster.reconciler.wake()
        response = directory_pb2.DeleteEntryResponse(
            token=cluster.token_at(written.revision),
            topic_count=written.plan.topic_count,
            directory_count=written.plan.directory_count,
            unreadable_count=written.plan.unreadable_count,
            kafka_topics_deleted=written.plan.kafka_topics_deleted,
        )
        removed = written.plan.entry
        if isinstance(removed, Topic):
            response.provision = cast("entry_pb2.Provision", removed.provision.value)
        response.authority.CopyFrom(cluster.authority_of_write(written.revision))
        if request.validate_only:
            fill_change_plan(self._router, cluster, command, written, call, response.plan)
        return response

    def move_entry(
        self, request: directory_pb2.MoveEntryRequest, call: Call
    ) -> directory_pb2.MoveEntryResponse:
        """Moves an entry within its mount."""
        path = Path.parse(request.path)
        asked = MoveEntry(
            path=path,
            new_path=Path.parse(request.new_path),
            kind=kind_from_number(request.kind),
            leave_link=request.leave_link,
            etag=request.etag,
        )
        cluster, command, written = commit_change(self._router, asked, request, call)
        response = directory_pb2.MoveEntryResponse(token=cluster.token_at(written.revision))
        response.authority.CopyFrom(cluster.authority_of_write(written.revision))
        if written.plan.entry is not None:
            entry_to_proto(written.plan.entry, request.new_path, into=response.entry)
        if request.validate_only:
            fill_change_plan(self._router, cluster, command, written, call, response.plan)
        return response


def _unseen(command: CreateTopic) -> CreateTopic:
    """Returns the command with a placeholder for the topic to adopt. Kafka is asked for the topic
    only once the caller is authorized.
    """
    name = command.physical_name or command.path.name
    unseen = ObservedTopic(physical_name=name, topic_id=b"", partitions=0, replication_factor=0)
    return replace(command, adopt_existing=unseen)


def _mounting(cluster: Cluster, command: CreateMount) -> CreateMount:
    cluster_id, name, endpoints = cluster.children.identify(command.cluster_id)
    cluster.children.check_mount(command.path, cluster_id)
    return replace(
        command,
        cluster_id=cluster_id,
        cluster=command.cluster or name,
        endpoints=command.endpoints or endpoints,
    )


def _look_up(cluster: Cluster, physical_name: str, call: Call) -> ObservedTopic:
    assert cluster.reconciler is not None  # noqa: S101 - it has a Kafka
    return cluster.reconciler.requests.look_up(physical_name, call.seconds_left())


def _topic(
    cluster: Cluster,
    snapshot: Snapshot,
    command: CreateTopic,
    look_up: _LookUp | None,
) -> CreateTopic:
    """Returns the command with the topic to adopt, as Kafka reports it by ``look_up``.

    Raises:
        AboveCeiling: kdir may not create topics there.
        KdirError: planning fails, such as by an invalid path; reported first.
    """
    kafka = cluster.config.kafka
    if kafka is None or cluster.reconciler is None:
        _check_path_syntax_first(cluster, command)
        raise AboveCeiling(
            f"cluster {cluster.config.cluster} has no Kafka behind it; topics live in clusters "
            f"that have one",
            cluster=cluster.config.cluster,
            kafka="none",
        )
    if command.adopt_existing is not None and look_up is not None:
        observed = look_up(cluster, command.adopt_existing.physical_name)
        return replace(command, adopt_existing=observed, physical_name=observed.physical_name)
    if "create" not in kafka.ceiling:
        _check_path_syntax_first(cluster, command)
        raise AboveCeiling(
            f"the config of cluster {cluster.config.cluster} does not allow kdir to create "
            f'topics in Kafka; [kafka] ceiling = ["create"] would',
            ceiling=" ".join(sorted(kafka.ceiling)) or "observe",
        )
    where = nearest_manage_false(cluster, snapshot, command.path, "create", Kind.TOPIC)
    if where:
        _check_path_syntax_first(cluster, command)
        raise AboveCeiling(
            f"{where} says manage.create=false: kdir creates no topics in Kafka below it",
            path=where,
        )
    return command


def _check_path_syntax_first(cluster: Cluster, command: CreateTopic) -> None:
    """Raises the error of planning the command, such as an invalid path, before the errors of what
    the config does not allow.
    """
    cluster.writer.commit_command(replace(command, adopt_existing=None), validate_only=True)
