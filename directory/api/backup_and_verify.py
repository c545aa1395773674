"""Backup and verification as streams of AdminService; refuses to keep a store busy for nobody."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Final, TypeVar

from kdir.v1 import admin_pb2

from directory.api.cluster_router import ClusterRouter
from directory.api.rpc.call_context import Call
from directory.maintenance.backup import backup_of
from directory.maintenance.verify import Summary, compare_kafka, compare_rows
from directory.server.cluster import Cluster
from directory.store.base import StoreUnreachable
from resolver.errors import StoreUnavailable

__all__ = ["BackupAndVerifyCalls"]

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
        yield from _guarded(backup_of(cluster.store), call)

    def verify(
        self, request: admin_pb2.VerifyRequest, call: Call
    ) -> Iterator[admin_pb2.VerifyResponse]:
        """Yields where store, replica and Kafka differ; at last the summary."""
        cluster = self._router.require_cluster_by_name(request.cluster)
        self._router.access_control.require_admin(cluster, "AdminService/Verify", call)
        yield from _guarded(_verified(cluster, call, skip_kafka=request.skip_kafka), call)


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


def _guarded(messages: Iterator[_M], call: Call) -> Iterator[_M]:
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
