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
    """``message`` may name topics that are hidden from a caller. Not a protobuf field."""
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
    """Context that all parts of one cluster's Kafka side share; any thread may use it."""

    cluster: str
    limits: Limits
    latest: Callable[[], Snapshot]
    writer: Writer
    mount_at: Callable[[Snapshot], Path]
    """Returns the mount path of the cluster in a snapshot."""
    settings: KafkaConfig
    admin: Callable[[float], KafkaAdmin]
    """Opens a connection, which the caller closes. The argument is the time in seconds for all its
    requests together; after it, they raise ``KafkaUnavailable``.
    """
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds."""
    now: Callable[[], float] = time.time
    """Unix seconds, for people."""
    unconfirmed_seconds: Callable[[], float] = lambda: 0.0
    """Returns the seconds since a parent last confirmed what is inherited."""
    unmanaged: Callable[[], str] = lambda: ""
    """Returns why this cluster does not manage this Kafka; empty = it does."""
    sleep: Callable[[float], object] = time.sleep
    has_parent: bool = False
    """The config names a parent: work that needs inherited policies waits until they are known."""
    grants_max_age_seconds: float | None = None
    """Seconds after a parent's last confirmation when inherited allows end; None = never."""
    configs_per_read: int = 500
    """Number of topics whose configs are read at a time, those longest unread first;
    ``kafka.configs_per_second`` bounds the rate."""

    def open_admin(self, timeout_seconds: float) -> KafkaAdmin:
        """Opens a connection for a call with this timeout. Kafka gets less time than the call, so
        that the caller receives the error of a Kafka that does not answer.
        """
        kept = min(_ANSWER_SECONDS, timeout_seconds * _ANSWER_SHARE)
        return self.admin(timeout_seconds - kept)

    def has_expired(self) -> bool:
        """True if inherited allows have ended, as no parent confirmed them for too long."""
        most = self.grants_max_age_seconds
        return most is not None and self.unconfirmed_seconds() > most
