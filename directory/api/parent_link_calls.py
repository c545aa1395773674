"""Going on without the parent, and with it again: the two calls of AdminService for it.

Refuses to change what is inherited: what the parent said last is what is kept, if it can be read.
"""

from __future__ import annotations

import logging
import secrets
from datetime import UTC, datetime

from kdir.v1 import admin_pb2

from directory.api.cluster_router import ClusterRouter
from directory.api.rpc.call_context import Call
from directory.federation import parent_state
from directory.federation.federation_state import unix_ms
from directory.server.cluster import Cluster
from directory.store.base import Delete, KeyEquals, Put, Write
from resolver.errors import InvalidArgument, NotReady

__all__ = ["ParentLinkCalls"]

_log = logging.getLogger(__name__)


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
            raise NotReady("no parent has told what is inherited: there is nothing to keep yet")
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
