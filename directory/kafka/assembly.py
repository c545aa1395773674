"""Puts the Kafka side together from a server's config, and its values into the contract's messages.

Refuses to know gRPC. Kafka's client, which a server without a Kafka need not have installed, is
imported when a reconciler first reaches for its Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isinf
from typing import TYPE_CHECKING, Final

from kdir.v1 import admin_pb2, entry_pb2

from directory.kafka.adoption import AdoptionRow
from directory.kafka.drift import Drift
from directory.kafka.reconciler import Reconciler
from directory.kafka.reconciler_settings import KafkaSettings
from resolver.path import Path

if TYPE_CHECKING:
    from directory.kafka.admin_client import ConfluentAdmin
    from directory.namespace.snapshot import Snapshot
    from directory.server.config import KafkaConfig, ServerConfig
    from directory.store.base import Store
    from directory.store.replica import Replica
    from directory.store.writer import Writer

__all__ = [
    "adoption_to_proto",
    "adoptions_to_proto",
    "drift_to_proto",
    "reconciler_of",
    "settings_of",
]


_ANSWER_BYTES: Final = 15 * 1024 * 1024
"""Clients take messages of 16 MiB (``resolver.transport.MAX_MESSAGE_BYTES``)."""
_AROUND_BYTES: Final = 5


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


def reconciler_of(
    config: ServerConfig,
    store: Store,
    replica: Replica,
    writer: Writer,
    mount_at: Callable[[Snapshot], Path],
    server_id: str,
    unconfirmed_seconds: Callable[[], float] = lambda: 0.0,
    unmanaged: Callable[[], str] = lambda: "",
) -> Reconciler:
    """Returns the reconciler of a cluster that has a Kafka; not started.

    Raises:
        ValueError: it has none.
    """
    if config.kafka is None:
        raise ValueError(f"cluster {config.cluster} has no Kafka")
    most = config.limits.inherited_grants_max_age_seconds
    settings = replace(
        settings_of(config.kafka),
        has_parent=bool(config.parent),
        grants_max_age_seconds=None if isinf(most) else most,
    )

    def admin() -> ConfluentAdmin:
        from directory.kafka.admin_client import ConfluentAdmin

        return ConfluentAdmin(
            settings.bootstrap,
            properties=settings.properties,
            timeout_seconds=settings.timeout_seconds,
        )

    return Reconciler(
        config.cluster,
        store,
        replica,
        writer,
        mount_at,
        settings,
        admin,
        candidate=server_id,
        unconfirmed_seconds=unconfirmed_seconds,
        unmanaged=unmanaged,
    )


def adoption_to_proto(adopted: AdoptionRow) -> admin_pb2.Adoption:
    """Returns one row of an answer."""
    return admin_pb2.Adoption(
        physical_name=adopted.physical_name,
        path="" if adopted.path is None else str(adopted.path),
        rule=adopted.rule,
        action=adopted.action,
        message=adopted.message,
    )


def adoptions_to_proto(rows: Sequence[AdoptionRow]) -> admin_pb2.AdoptTopicsResponse:
    """Returns the rows of an answer, as many as one message holds."""
    response = admin_pb2.AdoptTopicsResponse()
    room = _ANSWER_BYTES
    for row in rows:
        one = adoption_to_proto(row)
        room -= one.ByteSize() + _AROUND_BYTES
        if room < 0:
            break
        response.adoptions.append(one)
    response.omitted_count = len(rows) - len(response.adoptions)
    return response


def drift_to_proto(drift: Drift) -> admin_pb2.Drift:
    """Returns one row of an answer."""
    return admin_pb2.Drift(
        path=str(drift.path),
        physical_name=drift.physical_name,
        field=drift.field,
        expected=drift.expected,
        actual=drift.actual,
        provision=entry_pb2.Provision.Name(drift.provision),
    )
