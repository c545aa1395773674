"""AdminService: backup and verification as streams; detaching from and attaching to a parent."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Final, TypeVar

from kdir.v1 import admin_pb2

from directory.api.cluster_router import ClusterRouter
from directory.api.rpc.call_context import Call
from directory.federation import parent_state
from directory.federation.federation_state import unix_ms
from directory.maintenance.backup import backup_of
from directory.maintenance.verify import Summary, compare_kafka, compare_rows
from directory.server.cluster import Cluster
from directory.store.base import Delete, KeyEquals, Put, StoreUnreachable, Write
from resolver.errors import InvalidArgument, NotReady, StoreUnavailable

__all__ = ["BackupAndVerifyCalls", "ParentLinkCalls"]


_M = TypeVar("_M")
_log = logging.getLogger(__name__)

STALLED_SECONDS: Final = 300.0
"""A reader that takes nothing for so long is cut off: the store keeps a revision for it."""


class BackupAndVerifyCalls:
    """The calls of AdminService that read all of a store."""

    def __init__(self, router: ClusterRouter) -> None:
        self._router = router

    def backup(
        self, request: admin_pb2.BackupRequest, call: Call
    ) -> Iterator[admin_pb2.BackupResponse]:
        """Yields all of the store at one revision."""
        cluster = self._router.require_cluster_by_name(request.cluster)
        self._router.access_control.require_admin(cluster, "AdminService/Backup", call)
        yield from end_with_call(backup_of(cluster.store), call)

    def verify(
        self, request: admin_pb2.VerifyRequest, call: Call
    ) -> Iterator[admin_pb2.VerifyResponse]:
        """Yields where store, replica and Kafka differ; at last the summary."""
        cluster = self._router.require_cluster_by_name(request.cluster)
        self._router.access_control.require_admin(cluster, "AdminService/Verify", call)
        yield from end_with_call(_verified(cluster, call, skip_kafka=request.skip_kafka), call)


def _verified(
    cluster: Cluster, call: Call, *, skip_kafka: bool
) -> Iterator[admin_pb2.VerifyResponse]:
    summary = Summary()
    found = compare_rows(cluster.store, cluster.replica, cluster.mount, call.check, summary)
    kafka = cluster.config.kafka
    if kafka is not None and not skip_kafka:
        latest = partial(getattr, cluster.replica, "snapshot")
        more = compare_kafka(kafka, latest, cluster.mount, call.check, summary)
        found = chain(found, more)
    count = 0
    for one in found:
        count += 1
        yield admin_pb2.VerifyResponse(difference=admin_pb2.Difference(**asdict(one)))
    yield admin_pb2.VerifyResponse(
        summary=admin_pb2.VerifySummary(
            revision=summary.revision,
            rows=summary.rows,
            kafka_topics=summary.kafka_topics,
            differences=count,
            message="; ".join(summary.troubles),
        )
    )


def end_with_call(messages: Iterator[_M], call: Call) -> Iterator[_M]:
    """Yields the messages, as long as somebody takes them.

    Raises:
        StoreUnavailable
    """
    try:
        for message in messages:
            call.check()
            stalled = threading.Timer(STALLED_SECONDS, call.cancel)
            stalled.daemon = True
            stalled.start()
            try:
                yield message
            finally:
                stalled.cancel()
    except StoreUnreachable as reason:
        _log.warning("the store is away: %s", reason)
        raise StoreUnavailable("the store is away: what was sent is not whole") from reason


class ParentLinkCalls:
    """DetachParent and AttachParent."""

    def __init__(self, router: ClusterRouter) -> None:
        self._router = router

    def detach(
        self, request: admin_pb2.DetachParentRequest, call: Call
    ) -> admin_pb2.DetachParentResponse:
        """Keeps what is inherited as the cluster's own; the link is tried no more. What cannot be
        read cannot be kept: said so, nothing is inherited from then on.
        """
        call.check()
        cluster = self._router.require_cluster_by_name(request.cluster)

        def attempt() -> list[str]:
            self._router.access_control.require_admin(cluster, "AdminService/DetachParent", call)
            return self._detach(cluster, request, call)

        kept = self._router.decide(cluster, request.token, call, attempt)
        return admin_pb2.DetachParentResponse(
            token=cluster.token_of(cluster.replica.snapshot), kept=kept
        )

    @staticmethod
    def _detach(cluster: Cluster, request: admin_pb2.DetachParentRequest, call: Call) -> list[str]:
        """Records it, unless it is on record; the directories whose words are kept."""
        snapshot = cluster.replica.snapshot
        spoiled = parent_state.is_inherited_corrupt(snapshot)
        if not request.keep_inherited and not spoiled:
            raise InvalidArgument(
                "keep_inherited: false; expected true: what is inherited, and can be read, "
                "does not go because a link does",
                field="keep_inherited",
            )
        if cluster.parent_link is None and not parent_state.is_inherited_received(snapshot):
            raise InvalidArgument(
                f"cluster {cluster.config.cluster} has no parent: its config names none",
                field="cluster",
            )
        if not parent_state.is_inherited_received(snapshot):
            raise NotReady(
                "no parent has sent the inherited policies and grants: there is nothing to keep yet"
            )
        if request.keep_inherited:
            # Before anything is written: what cannot be read cannot be kept.
            kept = [level.path for level in parent_state.inherited_levels(snapshot)]
        else:
            kept = []
        known = snapshot.fact(parent_state.DETACHED_KEY)
        if known is None or spoiled:
            when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            message = f"detached by {call.principal or 'somebody'} at {when}"
            writes: tuple[Write, ...] = (Put(parent_state.DETACHED_KEY, message.encode()),)
            guards: tuple[KeyEquals, ...] = (KeyEquals(parent_state.DETACHED_KEY, known),)
            if spoiled:
                guards += (
                    KeyEquals(
                        parent_state.INHERITED_KEY, snapshot.fact(parent_state.INHERITED_KEY)
                    ),
                )
                writes += (
                    parent_state.nothing_inherited(snapshot, unix_ms()),
                    parent_state.rights_mark(),
                )
            cluster.writer.put_facts(writes, guards)
            _log.warning(
                "audit: %s detached cluster %s from its parent, request %s; what it inherits is %s",
                call.principal or "somebody",
                cluster.config.cluster,
                call.request_id,
                "nothing from now on: it could not be read" if spoiled else "kept",
            )
        return kept

    def attach(
        self, request: admin_pb2.AttachParentRequest, call: Call
    ) -> admin_pb2.AttachParentResponse:
        """Tries the link again; what the parent says counts again."""
        call.check()
        cluster = self._router.require_cluster_by_name(request.cluster)

        def attempt() -> None:
            self._router.access_control.require_admin(cluster, "AdminService/AttachParent", call)
            detached = cluster.replica.snapshot.fact(parent_state.DETACHED_KEY)
            if detached is None:
                return
            # What it says next is not what it said before, and may be long ago.
            again = Put(parent_state.ATTACHED_KEY, secrets.token_hex(8).encode())
            guards = (KeyEquals(parent_state.DETACHED_KEY, detached),)
            cluster.writer.put_facts((Delete(parent_state.DETACHED_KEY), again), guards)
            _log.warning(
                "audit: %s attached cluster %s to its parent again, request %s",
                call.principal or "somebody",
                cluster.config.cluster,
                call.request_id,
            )

        self._router.decide(cluster, request.token, call, attempt)
        return admin_pb2.AttachParentResponse(token=cluster.token_of(cluster.replica.snapshot))
