"""What operators' questions to a Kafka are answered with, in any server; values, no behaviour."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from directory.kafka.admin_contract import KafkaAdmin
from directory.kafka.reconciler_settings import KafkaSettings
from directory.namespace.snapshot import Snapshot
from directory.store.base import Limits
from directory.store.writer import Writer
from resolver.path import Path

__all__ = ["KafkaContext"]


@dataclass(frozen=True, slots=True)
class KafkaContext:
    """For any thread. The first seven are those of ``Reconciler``."""

    cluster: str
    """Its name, for logs."""
    limits: Limits
    """The store's."""
    latest: Callable[[], Snapshot]
    writer: Writer
    mount_at: Callable[[Snapshot], Path]
    """Where the cluster hung at a snapshot."""
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
