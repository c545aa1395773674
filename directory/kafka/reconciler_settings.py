"""The settings, the context and the status of a cluster's Kafka side; plain values.

``directory/server/config.py`` reads the files, and ``settings_of`` translates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from directory.kafka.admin_contract import KafkaAdmin
from directory.namespace.adoption_mapping import MappingRule, split_on
from directory.namespace.snapshot import Snapshot
from directory.store.base import Limits
from directory.store.writer import Writer
from resolver.path import Path

if TYPE_CHECKING:
    from directory.server.config_kafka import KafkaConfig

__all__ = [
    "ACLS",
    "CONFIGS",
    "CREATE",
    "DELETE",
    "KafkaContext",
    "KafkaSettings",
    "KafkaStatus",
    "settings_of",
]


ACLS: Final = "acls"
CREATE: Final = "create"
CONFIGS: Final = "configs"
DELETE: Final = "delete"


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """One cluster's Kafka, and how far the reconciler may go."""

    bootstrap: tuple[str, ...]
    """``host:port`` of some brokers."""
    ceiling: frozenset[str] = frozenset()
    """What may be changed in Kafka at all; empty = observe."""
    split_on: str = ""
    """Adopted names are split at this; empty = they stay flat."""
    rules: tuple[MappingRule, ...] = ()
    """Come before ``split_on``. Rules that were adopted with (`kdir adopt --map`) come before."""
    properties: Callable[[], Mapping[str, str]] = field(default=dict, repr=False)
    """librdkafka's, for TLS and SASL towards the brokers; asked for each new client."""
    sweep_interval_seconds: float = 30.0
    """From one metadata sweep to the next; longer where a sweep itself takes long. What changes in
    between is looked for 15 times as often (``adoption/sweep.py``)."""
    timeout_seconds: float = 10.0
    """Of one request to Kafka."""
    configs_per_read: int = 500
    """Topics whose configs are read at a time, those longest unread first: each takes 0.18 ms of
    the processor here and 0.07 ms of a broker's, every time."""

    changes_per_second: float = 500.0
    """Topics that are changed in Kafka in a second, where armed: its controller serves others."""
    revert_external_changes: bool = False
    """What somebody else changed below an armed directory is changed back."""
    max_acls: int = 2_000
    """So many ACLs Kafka is to have, whoever made them: each costs every broker."""
    grants_max_age_seconds: float | None = None
    """An inherited allow ends when no parent confirmed it for so long; None = never."""
    has_parent: bool = False
    """The config names a parent: what it hands down must be known before anything depends on it."""

    def placing(self, adopted: tuple[MappingRule, ...] = ()) -> tuple[MappingRule, ...]:
        """Returns the rules in force, in order: first those that an operator adopted with."""
        return (*(adopted or self.rules), *split_on(self.split_on))


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaStatus:
    """State of Kafka and the reconciler (the fields of ``kdir.v1.KafkaStatus``)."""

    pinned_cluster_id: str = ""
    seen_cluster_id: str = ""
    reachable: bool = False
    message: str = ""
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
    """Its name, for logs."""
    limits: Limits
    """The store's."""
    latest: Callable[[], Snapshot]
    writer: Writer
    mount_at: Callable[[Snapshot], Path]
    """Where the cluster was mounted at a snapshot."""
    settings: KafkaSettings
    admin: Callable[[], KafkaAdmin]
    """Opens a connection, for one question."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds."""
    now: Callable[[], float] = time.time
    """Unix seconds, for people."""
    unconfirmed_seconds: Callable[[], float] = lambda: 0.0
    """For how long no parent has confirmed what is inherited."""
    unmanaged: Callable[[], str] = lambda: ""
    """Why another cluster manages this Kafka; empty = this one does."""
    sleep: Callable[[float], object] = time.sleep

    def has_expired(self) -> bool:
        """True if inherited allows have ended, as no parent confirmed them for too long."""
        most = self.settings.grants_max_age_seconds
        return most is not None and self.unconfirmed_seconds() > most


def settings_of(config: KafkaConfig) -> KafkaSettings:
    """Returns the settings of the reconciler."""
    return KafkaSettings(
        bootstrap=config.bootstrap,
        ceiling=config.ceiling,
        split_on=config.split_on,
        rules=config.mapping_rules,
        sweep_interval_seconds=config.sweep_interval_seconds,
        changes_per_second=config.changes_per_second,
        revert_external_changes=config.revert_external_changes,
        max_acls=config.max_acls,
        properties=config.client.read,
    )
