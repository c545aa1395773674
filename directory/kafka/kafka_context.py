"""The context and the status of a cluster's Kafka side."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from directory.kafka.admin_contract import KafkaAdmin
from directory.namespace.snapshot import Snapshot
from directory.server.config_kafka import KafkaConfig
from directory.store.transaction_limits import Limits
from directory.store.writer import Writer
from resolver.path import Path

__all__ = [
    "ACLS",
    "CONFIGS",
    "CREATE",
    "DELETE",
    "KafkaContext",
    "KafkaStatus",
]

ACLS: Final = "acls"
CREATE: Final = "create"
CONFIGS: Final = "configs"
DELETE: Final = "delete"

_ANSWER_SECONDS: Final = 1.0
"""Time of a call that is reserved for its answer; at most ``_ANSWER_SHARE`` of the call's time."""
_ANSWER_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaStatus:
    """State of Kafka and the reconciler (the fields of ``kdir.v1.KafkaStatus``)."""

    pinned_cluster_id: str = ""
    seen_cluster_id: str = ""
    reachable: bool = False
    message: str = ""
    message_names_topics: bool = False
    """Topics may be named in ``message`` that are hidden from a caller; no field of the message."""
    last_sweep_seconds: float | None = None
    ceiling: tuple[str, ...] = ()
    stop_reason: str = ""
    pending_count: int = 0
    missing_count: int = 0
    drift_count: int = 0
    leader: bool = False
    needs_approval_count: int = 0
    contested_count: int = 0
    acl_count: int = 0
    acl_resources_needing_approval_count: int = 0
    acl_resources_rejected_count: int = 0
    acls_removed_externally_count: int = 0
    replaced_count: int = 0
    unmanaged: str = ""


@dataclass(frozen=True, slots=True)
class KafkaContext:
    """Context of all that works with one cluster's Kafka, for any thread."""

    cluster: str
    limits: Limits
    latest: Callable[[], Snapshot]
    writer: Writer
    mount_at: Callable[[Snapshot], Path]
    """Where the cluster was mounted at a snapshot."""
    settings: KafkaConfig
    admin: Callable[[float], KafkaAdmin]
    """Opens a connection, which its user closes; all its requests together end within so many
    seconds, if need be with ``KafkaUnavailable``.
    """
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds."""
    now: Callable[[], float] = time.time
    """Unix seconds, for people."""
    unconfirmed_seconds: Callable[[], float] = lambda: 0.0
    """For how long no parent has confirmed what is inherited."""
    unmanaged: Callable[[], str] = lambda: ""
    """Why another cluster manages this Kafka; empty = this one does."""
    sleep: Callable[[float], object] = time.sleep
    has_parent: bool = False
    """The config names a parent: what it hands down must be known before anything depends on it."""
    grants_max_age_seconds: float | None = None
    """An inherited allow ends when no parent confirmed it for so long; None = never."""
    configs_per_read: int = 500
    """Topics whose configs are read at a time, those longest unread first;
    ``kafka.configs_per_second`` bounds how often."""

    def open_admin(self, timeout_seconds: float) -> KafkaAdmin:
        """Opens a connection for a call that must be answered within so many seconds: Kafka gets
        less, so that the caller receives the error of a Kafka that does not answer.
        """
        kept = min(_ANSWER_SECONDS, timeout_seconds * _ANSWER_SHARE)
        return self.admin(timeout_seconds - kept)

    def has_expired(self) -> bool:
        """True if inherited allows have ended, as no parent confirmed them for too long."""
        most = self.grants_max_age_seconds
        return most is not None and self.unconfirmed_seconds() > most
