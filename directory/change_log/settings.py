"""The table ``[change_log]`` of a server's config; connects to no broker."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from directory.kafka.own_client_settings import ClientProperties, client_properties
from directory.namespace.protected_topics import HISTORY_TOPIC, STATE_TOPIC
from directory.server.toml_table import ConfigError, Table

if TYPE_CHECKING:
    from directory.server.config_kafka import KafkaConfig

__all__ = ["ChangeLogConfig", "change_log_of"]


@dataclass(frozen=True, slots=True)
class ChangeLogConfig:
    """Location of the change log of a cluster."""

    bootstrap: tuple[str, ...]
    client: ClientProperties
    """Properties of connections to these brokers."""
    is_shared: bool
    """True if other clusters may have their logs in the same Kafka: topic names contain the
    cluster's id.
    """
    schema_registry: str = ""
    """URL of the schema registry with the records' schemas; empty = the log itself has them."""

    def topics(self, cluster_id: str) -> tuple[str, str]:
        """Returns the names of the state topic and of the history topic."""
        suffix = f".{cluster_id}" if self.is_shared else ""
        return STATE_TOPIC + suffix, HISTORY_TOPIC + suffix


def change_log_of(
    table: Table | None, base: pathlib.Path | None, kafka: KafkaConfig | None
) -> ChangeLogConfig | None:
    """Reads ``[change_log]``. Without ``bootstrap``, the log is in the cluster's own Kafka; without
    the table, there is no change log (None).

    Raises:
        ConfigError: names the key, the value found and the expected one.
    """
    if table is None:
        return None
    bootstrap = table.addresses("bootstrap")
    registry = table.text("schema_registry", "")
    if registry:
        # It imports Python's HTTP client, a twentieth of all that a server imports.
        from resolver.changes.registry import shown_url, why_no_registry

        if wrong := why_no_registry(registry):
            table.fail("schema_registry", shown_url(registry), wrong)
    if bootstrap:
        client = replace(client_properties(table, base), is_transactional=True)
        table.done()
        return ChangeLogConfig(bootstrap, client, is_shared=True, schema_registry=registry)
    for key in ("properties", "properties_file"):
        if table.has(key):
            raise ConfigError(
                f"{table.where(key)}: found without change_log.bootstrap; expected both, or "
                f"neither: in the cluster's own Kafka the log has the properties of [kafka]"
            )
    table.done()
    if kafka is None:
        raise ConfigError(
            "change_log.bootstrap: missing; expected host:port of a broker, since there is no"
            " [kafka] whose brokers could be taken"
        )
    client = replace(kafka.client, is_transactional=True)
    return ChangeLogConfig(kafka.bootstrap, client, is_shared=False, schema_registry=registry)
