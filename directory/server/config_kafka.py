"""Table ``[kafka]`` of a server's config; no broker is called."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, field
from typing import Final

from directory.kafka.own_client_settings import ClientProperties, client_properties
from directory.namespace.adoption_mapping import MappingRule, split_on
from directory.server.toml_table import ConfigError, Table
from resolver.errors import InvalidArgument, KdirError
from resolver.listeners import Listener, check_listener
from resolver.printable import printable

__all__ = ["ASPECTS", "KafkaConfig", "Listener", "kafka_of"]

ASPECTS: Final = ("create", "configs", "acls", "delete")


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """The Kafka cluster behind a directory."""

    bootstrap: tuple[str, ...]
    """``host:port`` of some brokers."""
    ceiling: frozenset[str] = frozenset()
    """Aspects that kdir may change in Kafka; empty = observe only."""
    split_on: str = ""
    """Adopted names are split at this; empty = they stay flat."""
    mapping_rules: tuple[MappingRule, ...] = ()
    """Rules before ``split_on``. The rules of an adoption (`kdir adopt --map`) replace them."""
    listeners: tuple[Listener, ...] = ()
    client: ClientProperties = field(default_factory=ClientProperties)
    """Properties of kdir's own Kafka clients."""
    sweep_interval_seconds: float = 30.0
    """Interval between metadata sweeps; longer if a sweep itself takes long. Checks for changes are
    15 times as frequent (``adoption/sweep.py``)."""
    configs_per_second: float = 500.0
    """Most topics per second whose configs are read to find external changes, which Kafka does not
    report. Each costs 0.19 ms of a processor here and 0.07 ms of a broker's."""
    changes_per_second: float = 500.0
    """Most armed topics changed in Kafka per second: its controller serves other clients, too."""
    revert_external_changes: bool = False
    """True: changes of other clients in Kafka, where kdir pushes, are reverted."""
    max_acls: int = 2_000
    """Most ACLs in Kafka, those of other clients included: each costs every broker."""

    def placing(self, adopted: tuple[MappingRule, ...] = ()) -> tuple[MappingRule, ...]:
        """Returns the rules in force: ``adopted`` or ``mapping_rules``, then ``split_on``."""
        return (*(adopted or self.mapping_rules), *split_on(self.split_on))


def kafka_of(table: Table | None, base: pathlib.Path | None) -> KafkaConfig | None:
    """Reads ``[kafka]``; relative files are below ``base``.

    Raises:
        ConfigError: names the key, the value found and the value expected.
    """
    if table is None:
        return None
    bootstrap = table.addresses("bootstrap")
    if not bootstrap:
        raise ConfigError("kafka.bootstrap: missing; expected host:port of a broker")
    ceiling = table.texts("ceiling")
    expected = f"expected some of {', '.join(ASPECTS)}, or observe alone"
    for aspect in ceiling:
        if aspect not in (*ASPECTS, "observe"):
            table.fail("ceiling", aspect, expected)
    if "observe" in ceiling and len({*ceiling}) > 1:
        table.fail("ceiling", list(ceiling), expected)
    sweep = table.above_zero("sweep_interval_seconds", 30.0, "a number of seconds")
    max_acls = table.above_zero("max_acls", 2_000, "a whole number of ACLs")
    if max_acls != int(max_acls):
        table.fail("max_acls", max_acls, "expected a whole number of ACLs above 0")
    rate = table.above_zero("changes_per_second", 500.0, "a number of topics")
    configs_rate = table.above_zero("configs_per_second", 500.0, "a number of topics")
    client = client_properties(table, base)
    config = KafkaConfig(
        bootstrap=bootstrap,
        ceiling=frozenset(ceiling) - {"observe"},
        split_on=table.text("split_on", ""),
        mapping_rules=_rules(table.pop("mapping_rules", [])),
        listeners=_listeners(table.table("listeners"), bootstrap, client),
        client=client,
        sweep_interval_seconds=sweep,
        configs_per_second=configs_rate,
        changes_per_second=rate,
        revert_external_changes=table.flag("revert_external_changes"),
        max_acls=int(max_acls),
    )
    table.done()
    return config


def _listeners(
    table: Table | None, bootstrap: tuple[str, ...], client: ClientProperties
) -> tuple[Listener, ...]:
    if table is None:
        # Protocol and mechanism are in the properties, which Kafka's own client checks.
        _checked(Listener("default", bootstrap), "kafka", "bootstrap", "", "")
        return (Listener("default", bootstrap, *client.listener()),)
    listeners = []
    for name, value in table.rest().items():
        if not isinstance(value, dict):
            table.fail(name, value, "expected a table with bootstrap, protocol, mechanism")
        one = Table(value, table.where(name))
        listener = Listener(
            name,
            one.addresses("bootstrap") or bootstrap,
            one.text("protocol", "PLAINTEXT"),
            one.text("mechanism", ""),
        )
        one.done()
        listeners.append(
            _checked(listener, table.where(name), "bootstrap", "protocol", "mechanism")
        )
    return tuple(listeners)


def _checked(listener: Listener, where: str, *keys: str) -> Listener:
    """Returns a listener that clients accept; ``keys``: config keys of its fields after the name.

    Raises:
        ConfigError: clients would not accept it.
    """
    try:
        check_listener(listener)
    except InvalidArgument as error:
        key = dict(zip(Listener._fields[1:], keys, strict=True)).get(error.metadata["field"])
        what = error.message.partition(": ")[2]
        place = printable(f"{where}.{key}" if key else where)
        raise ConfigError(f"{place}: {what}") from None
    return listener


def _rules(values: object) -> tuple[MappingRule, ...]:
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ConfigError(
            "kafka.mapping_rules: expected an array of tables [[kafka.mapping_rules]]"
        )
    rules = []
    for number, value in enumerate(values, start=1):
        table = Table(value, f"kafka.mapping_rules[{number}]")
        try:
            rule = MappingRule.from_fields(
                table.text("match", ""),
                split_on=table.text("split_on", ""),
                into=table.text("into", ""),
                strip_prefix=table.text("strip_prefix", ""),
                ignore=table.flag("ignore"),
            )
        except KdirError as error:
            raise ConfigError(f"kafka.mapping_rules[{number}]: {error.message}") from error
        table.done()
        rules.append(rule)
    return tuple(rules)
