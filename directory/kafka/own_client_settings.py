"""How kdir's own Kafka client connects to brokers: librdkafka's properties, from config and file,
and those that it always sets, such as that reading a topic never creates it (K9).

Refuses properties that kdir sets itself, secrets in the config, and properties that Kafka's client
does not know; connects to no broker. Its messages hold no secrets. The properties of producers and
consumers are in ``resolver/kafka/client_settings.py``.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import pathlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from directory.server.toml_table import ConfigError, Table
from resolver.extras import missing_extra
from resolver.printable import cut_shown
from resolver.properties_file import read_settings

__all__ = ["OWN", "ClientProperties", "client_properties"]

OWN: Final[Mapping[str, str | int | bool]] = MappingProxyType(
    {
        # librdkafka's own refresh of metadata would be a second sweep that nobody reads.
        "topic.metadata.refresh.interval.ms": -1,
        "allow.auto.create.topics": False,
        "receive.message.max.bytes": 1_000_000_000,
        "reconnect.backoff.ms": 500,
        "client.id": "kdir",
        # librdkafka would log to stderr; its errors come by error_cb.
        "log_level": 0,
    }
)
"""Properties that kdir's own clients always set."""
_BOOTSTRAP: Final = frozenset({"bootstrap.servers", "metadata.broker.list"})
_CODE: Final = frozenset({"plugin.library.paths", "logger", "default.topic.config"})
"""Properties that are code or not text, as are those that end with ``_cb``."""
_SECRET: Final = re.compile(r"password|secret|passphrase|key\.pem$|jaas|oauthbearer\.config$")
_FAILED: Final = "Failed to create admin client: "
_UNKNOWN: Final = re.compile(r'No such configuration property: "(.*)"')
# Properties for connecting: an error suggests the nearest; librdkafka decides which exist.
_USUAL: Final = (
    *("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password"),
    *("sasl.oauthbearer.method", "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret"),
    *("sasl.oauthbearer.scope", "sasl.oauthbearer.extensions", "sasl.oauthbearer.config"),
    *("sasl.oauthbearer.token.endpoint.url", "sasl.kerberos.service.name"),
    *("sasl.kerberos.principal", "sasl.kerberos.keytab", "sasl.kerberos.kinit.cmd"),
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem"),
    *("ssl.key.location", "ssl.key.password", "ssl.key.pem", "ssl.keystore.location"),
    *("ssl.keystore.password", "ssl.crl.location", "ssl.cipher.suites", "ssl.curves.list"),
    *("ssl.sigalgs.list", "ssl.endpoint.identification.algorithm", "ssl.providers"),
    *("enable.ssl.certificate.verification", "https.ca.location", "client.dns.lookup"),
    *("broker.address.family", "broker.address.ttl", "connections.max.idle.ms"),
    *("reconnect.backoff.max.ms", "socket.connection.setup.timeout.ms", "socket.timeout.ms"),
    *("socket.keepalive.enable", "socket.nagle.disable", "socket.send.buffer.bytes"),
    *("socket.receive.buffer.bytes", "api.version.request.timeout.ms"),
)


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """``properties`` and ``properties_file`` of a table; each call reads the file again."""

    given: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Properties in the config; no secrets."""
    file: str = ""
    base: pathlib.Path | None = None
    """Folder that relative file names in properties start from."""
    table: str = "kafka"
    """Name of the table, for errors."""
    is_transactional: bool = False
    """A change log is published with these properties."""

    def read(self) -> dict[str, str]:
        """Returns all properties, as Kafka's client takes them.

        Raises:
            ConfigError: also if that client is not installed.
        """
        if missing := missing_extra(f"[{self.table}]", "kafka"):
            raise ConfigError(missing)
        found = dict(self.given)
        if self.file:
            for key, value in self._filed().items():
                if key in found:
                    raise ConfigError(f"{self.table}.properties: {key} is in {self.file}, too")
                _check_own(f"{self.table}.properties_file: {self.file}", key)
                found[key] = value
        if found:
            found = {key: self._placed(key, value) for key, value in found.items()}
            self._check_known(found)
            self._check_protocol(found)
        return found

    def listener(self) -> tuple[str, str]:
        """Returns security protocol and SASL mechanism, for clients that connect the same way. A
        file that cannot be read counts as empty; ``read`` reports it at startup.
        """
        found = dict(self.given)
        if self.file:
            with contextlib.suppress(ConfigError):
                found |= self._filed()
        protocol = found.get("security.protocol", "PLAINTEXT").upper()
        mechanism = found.get("sasl.mechanism", found.get("sasl.mechanisms", "GSSAPI"))
        return protocol, mechanism if protocol.startswith("SASL_") else ""

    def reported(self) -> str:
        """Returns how kdir connects, for people; empty if no properties are given."""
        protocol, mechanism = self.listener()
        way = f"{protocol} ({mechanism})" if mechanism else protocol
        return "" if not (self.given or self.file) else f"by {way}"

    def advice(self) -> str:
        """Returns what is wrong with the file's permissions; empty: nothing, or no file."""
        try:
            mode = pathlib.Path(self.file).stat().st_mode if self.file else 0
        except OSError:
            return ""
        if not mode & 0o007:
            return ""
        return (
            f"{self.table}.properties_file: everybody on this machine may read it: "
            f"chmod 600 {self.file}"
        )

    def _filed(self) -> dict[str, str]:
        try:
            return read_settings(self.file)
        except OSError as error:
            why = f"{self.file}: cannot be read: {error.strerror}"
            raise ConfigError(f"{self.table}.properties_file: {why}") from None
        except ValueError as error:
            raise ConfigError(f"{self.table}.properties_file: {error}") from None

    def _placed(self, key: str, value: str) -> str:
        """Returns a value; a file name in it starts from the config's folder, as in [tls]."""
        special = value in {"", "probe"}
        if special or not (key.startswith("ssl.") and key.endswith(".location")):
            return value
        return os.fspath(((self.base or pathlib.Path.cwd()) / value).absolute())

    def _check_known(self, properties: Mapping[str, str]) -> None:
        """Has Kafka's client check the properties and the files they name, without a broker."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        # The client then refuses acks=1, for example, which may lose, repeat and reorder records.
        of_publisher = {"transactional.id": "kdir"} if self.is_transactional else {}
        try:
            AdminClient({**properties, **OWN, **of_publisher})
        except KafkaException as error:
            message = str(error.args[0].str()).strip().removeprefix(_FAILED)
        else:
            return
        unknown = _UNKNOWN.match(message)
        if unknown:
            kind = "properties" if unknown[1] in self.given else "properties_file"
            where = f"{self.table}.{kind}"
            near = difflib.get_close_matches(unknown[1], _USUAL, n=1, cutoff=0.0)
            raise ConfigError(
                f"{where}: unknown property {unknown[1]!r}; the nearest known one is {near[0]!r}"
            )
        for key, value in properties.items():
            if value and _SECRET.search(key):
                message = message.replace(value, "…")
        raise ConfigError(f"{self._place_of(message, properties)}: Kafka's client: {message}")

    def _place_of(self, message: str, properties: Mapping[str, str]) -> str:
        """Returns the config keys of the properties that a message names; if none, of all."""
        places = {"properties": [*self.given], "properties_file": properties.keys() - self.given}
        named = [kind for kind, keys in places.items() if any(key in message for key in keys)]
        kinds = named or [kind for kind, keys in places.items() if keys]
        return f"{self.table}.{' and '.join(kinds)}"

    def _check_protocol(self, properties: Mapping[str, str]) -> None:
        """Refuses properties that Kafka's client would ignore silently, connecting in plaintext."""
        protocol = properties.get("security.protocol", "PLAINTEXT").upper()
        for prefix, fits in (
            ("sasl.", protocol.startswith("SASL_")),
            ("ssl.", protocol.endswith("SSL")),
        ):
            unused = [key for key in properties if key.startswith(prefix)]
            if unused and not fits:
                right = "SASL_SSL" if prefix == "sasl." else "SSL or SASL_SSL"
                raise ConfigError(
                    f"{self._place_of(unused[0], properties)}: {unused[0]} is of no use with "
                    f"security.protocol={protocol}; expected {right}"
                )


def client_properties(table: Table, base: pathlib.Path | None) -> ClientProperties:
    """Reads ``properties`` and ``properties_file`` of a table, but not that file."""
    value = table.pop("properties", {})
    if not isinstance(value, dict):
        table.fail("properties", value, 'expected a table such as { "security.protocol" = "SSL" }')
    given = _flat(table.where("properties"), value)
    for key in given:
        _check_own(table.where("properties"), key)
        if _SECRET.search(key):
            raise ConfigError(
                f"{table.where('properties')}: {key} is a secret; expected a line for it in a file "
                f"that {table.where('properties_file')} names"
            )
    name = table.text("properties_file", "")
    file = os.fspath(((base or pathlib.Path.cwd()) / name).absolute()) if name else ""
    section = table.where("properties").rpartition(".")[0]
    return ClientProperties(MappingProxyType(given), file, base, section)


_MOST_BITS: Final = 64  # size of Kafka's largest numbers


def _flat(where: str, table: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Flattens tables: TOML reads ``security.protocol`` without quotes as nested tables."""
    found: dict[str, str] = {}
    for name, value in table.items():
        key = prefix + name
        match value:
            case dict():
                found |= _flat(where, value, f"{key}.")
            case bool():
                found[key] = str(value).lower()
            case int() if value.bit_length() > _MOST_BITS:
                raise ConfigError(
                    f"{where}: {key}: found {cut_shown(value)}; expected at most {_MOST_BITS} bits"
                )
            case str() | int():
                found[key] = str(value)
            case _:
                raise ConfigError(f"{where}: {key}: expected a text, a number, true or false")
    return found


def _check_own(where: str, key: str) -> None:
    if key in _BOOTSTRAP:
        raise ConfigError(f"{where}: {key}: {where.partition('.')[0]}.bootstrap sets it")
    if key in OWN:
        raise ConfigError(f"{where}: {key}: kdir sets that itself")
    if key in _CODE or key.endswith("_cb"):
        raise ConfigError(f"{where}: {key}: is code or loads code, which a config cannot")
