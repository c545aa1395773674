"""Records of a change log: one Avro schema (``change.avsc``), its framing, and the keys.

A record begins with the fingerprint of its writer's schema (Avro's single-object encoding): ``C3
01`` and eight bytes of CRC-64-AVRO. The state topic holds each schema under a key with ``s/``, so
that a reader can decode records of an older or newer kdir. Fields that the reader does not know are
dropped; fields that the writer did not know have their defaults.

With a schema registry the framing is Confluent's: ``00`` and the registry's id of the schema in
four bytes. A log may hold records of both framings.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_from_bytes

from resolver.access_requests import grant_text
from resolver.changes.registry import RegistryRefused, RegistryUnavailable, SchemaRegistry
from resolver.entry_fields import entry_fields, policy_fields

if TYPE_CHECKING:
    from kdir.v1 import access_pb2, entry_pb2, watch_pb2

__all__ = [
    "CHECKPOINT",
    "INHERITED",
    "KINDS",
    "Change",
    "Checkpoint",
    "Fields",
    "Schemas",
    "UndecodableRecord",
    "change_of_event",
    "checkpoint_key",
    "encode",
    "entry_key",
    "fact_key",
    "fields_of",
    "fingerprint",
    "grants_key",
    "grants_text",
    "inherited_key",
    "is_framed_by_another",
    "registry_framing",
    "schema_key",
    "schema_text",
]

_MAGIC: Final = b"\xc3\x01"
_FINGERPRINT_BYTES: Final = 8
_REGISTRY_MAGIC: Final = b"\0"
_ID_BYTES: Final = 4
_INT_LIMIT: Final = 2**31
_FIRST_MS: Final = -62_135_596_800_000
"""First millisecond of the year 1, from which ``google.protobuf.Timestamp`` and ``datetime`` are
valid; ``_LAST_MS`` is the last one of 9999.
"""
_LAST_MS: Final = 253_402_300_799_999
CHECKPOINT: Final = "c"
INHERITED: Final = "i"

Fields = Mapping[str, "str | None"]
"""Fields of an entry by name. A missing name is an unset field, None a cleared one, "" an empty
value.
"""

_ACTIONS: Final = {0: "", 1: "insert", 2: "update", 3: "delete"}
_SCOPES: Final = {0: "entry", 1: "grants", 2: "inherited", 3: "operated"}
KINDS: Final = {1: "dir", 2: "topic", 3: "link", 4: "mount"}


class UndecodableRecord(Exception):
    """Error of a record that cannot be decoded: it is damaged, or its framing or schema is unknown.
    Its message is one sentence.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Part of a record which marks that the log has all changes up to the record's revision; fields
    as in ``change.avsc``.
    """

    incarnation: str
    incarnations: tuple[str, ...]
    cluster: str
    mount: str = ""
    schema_version: int = 1
    feature_level: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One record; the fields are those of ``change.avsc``. ``time`` is in Unix milliseconds."""

    cluster_id: str
    generation: int
    revision: int
    position: int = 0
    time: int
    cause: str = "change"
    scope: str = "entry"
    action: str = ""
    kind: str = ""
    entry_id: int = 0
    parent_id: int = 0
    path: str = ""
    key: bytes | None = None
    record: bytes | None = None
    path_before: str | None = None
    principal: str = ""
    request_id: str = ""
    before: Fields | None = None
    after: Fields | None = None
    effective: Fields | None = None
    grants_before: tuple[str, ...] | None = None
    grants_after: tuple[str, ...] | None = None
    cut: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    operation: str = ""

    @property
    def order(self) -> tuple[int, int, int]:
        """Order of the change among those of its cluster: generation, revision, position."""
        return (self.generation, self.revision, self.position)


# -- keys of the state topic -----------------------------------------------------------------------


def entry_key(cluster_id: str, entry_id: int) -> str:
    """Returns the key of an entry, which stays the same wherever the entry is moved."""
    return f"{cluster_id}/e/{entry_id:016x}"


def grants_key(cluster_id: str, entry_id: int) -> str:
    """Returns the key of the grants of an entry."""
    return f"{cluster_id}/g/{entry_id:016x}"


def fact_key(cluster_id: str, key: bytes) -> str:
    """Returns the key of a row that is neither an entry nor grants: the row's key,
    percent-encoded.
    """
    return f"{cluster_id}/r/{quote_from_bytes(key)}"


def inherited_key(cluster_id: str) -> str:
    """Returns the key of the policies and grants that the cluster inherits."""
    return f"{cluster_id}/{INHERITED}"


def schema_key(cluster_id: str, fingerprint: bytes) -> str:
    """Returns the key of the text of a schema."""
    return f"{cluster_id}/s/{fingerprint.hex()}"


def checkpoint_key(cluster_id: str) -> str:
    """Returns the key of the cluster's checkpoint."""
    return f"{cluster_id}/{CHECKPOINT}"


# -- Avro ------------------------------------------------------------------------------------------


@cache
def schema_text() -> str:
    """Returns the schema of this version of kdir, as JSON."""
    return files("resolver.changes").joinpath("change.avsc").read_text()


@cache
def fingerprint() -> bytes:
    """Returns the fingerprint of ``schema_text``, as a record begins with it."""
    return _fingerprint_of(json.loads(schema_text()))


def _fingerprint_of(schema: Any) -> bytes:
    from fastavro.schema import fingerprint as computed
    from fastavro.schema import to_parsing_canonical_form

    return bytes.fromhex(computed(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


@cache
def _own_schema() -> Any:
    return _parsed(schema_text())


@cache
def _row_schema() -> Any:
    """Returns the schema without the fields after ``record``: enough for a row of the store and its
    order among the changes. Avro writes fields in order, so later fields need not be read. Strings
    are read as bytes, since a row has none.
    """
    schema = json.loads(schema_text().replace('"string"', '"bytes"'))
    names = [one["name"] for one in schema["fields"]]
    del schema["fields"][names.index("record") + 1 :]
    return _parsed(json.dumps(schema))


def _parsed(text: str) -> Any:
    """Returns a schema parsed for fastavro, without logical types: times are read as numbers."""
    from fastavro import parse_schema

    def without_logical_types(value: Any) -> Any:
        if isinstance(value, dict):
            rest = {key: one for key, one in value.items() if key != "logicalType"}
            return {key: without_logical_types(one) for key, one in rest.items()}
        if isinstance(value, list):
            return [without_logical_types(one) for one in value]
        return value

    return parse_schema(without_logical_types(json.loads(text)), _force=True)


def registry_framing(schema_id: int) -> bytes:
    """Returns the framing of records whose schema has this id in a registry."""
    return _REGISTRY_MAGIC + schema_id.to_bytes(_ID_BYTES, "big")


def encode(change: Change, framing: bytes = b"") -> bytes:
    """Returns ``framing`` followed by the bytes of a record; empty = the framing by fingerprint."""
    return (framing or _MAGIC + fingerprint()) + _own_encoder()(change)


@cache
def _own_encoder() -> _Encoder:
    return _encoder_of(json.loads(schema_text()))


_Encoder = Callable[[Any], bytes]
"""Function that returns the Avro bytes of one value. For records with mostly empty fields it takes
half of fastavro's time; the publisher shares the interpreter with writers.
"""


def _encoder_of(schema: Any) -> _Encoder:
    """Returns the encoder of a type of ``change.avsc``; a record's value is an object with its
    fields as attributes.
    """
    match schema:
        case "string":
            return _encode_text
        case "bytes":
            return _encode_bytes
        case "int" | "long":
            return _encode_long
        case ["null", other]:
            some = _encoder_of(other)
            return lambda value: b"\0" if value is None else b"\2" + some(value)
        case {"type": "map", "values": values}:
            of_value = _encoder_of(values)
            return lambda value: _encode_block(
                [_encode_text(key) + of_value(one) for key, one in value.items()]
            )
        case {"type": "array", "items": items}:
            of_item = _encoder_of(items)
            return lambda value: _encode_block([of_item(one) for one in value])
        case {"type": "record", "fields": of_record}:
            values_of = attrgetter(*(one["name"] for one in of_record))
            encoders = [_encoder_of(one["type"]) for one in of_record]
            return lambda value: b"".join(
                [encode_field(one) for encode_field, one in zip(encoders, values_of(value))]  # noqa: B905 - each has its own
            )
        case {"type": str() as other}:
            return _encoder_of(other)
        case _:
            raise ValueError(f"change.avsc has a type that records are not written with: {schema}")


def _encode_long(value: int) -> bytes:
    """Returns the Avro bytes of an int or a long: zigzag, seven bits in each byte."""
    left = (value << 1) ^ (value >> 63)
    if left < 128:
        return _ONE_BYTE[left]
    parts = bytearray()
    while left > 127:
        parts.append(left & 127 | 128)
        left >>= 7
    parts.append(left)
    return bytes(parts)


_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(128))


def _encode_bytes(value: bytes) -> bytes:
    return _encode_long(len(value)) + value


def _encode_text(value: str) -> bytes:
    if not value:
        return b"\0"
    text = value.encode()
    return _encode_long(len(text)) + text


def _encode_block(items: list[bytes]) -> bytes:
    """Returns the Avro bytes of a map or an array, as one block."""
    return b"".join((_encode_long(len(items)), *items, b"\0")) if items else b"\0"


class Schemas:
    """Schemas by which a reader decodes records: its own, those in a topic, and those of a
    registry.

    Args:
        registry: returns the schemas of ids; None = records framed by an id are undecodable.
    """

    def __init__(self, registry: SchemaRegistry | None = None) -> None:
        from fastavro import schemaless_reader

        self._own: Final = _own_schema()
        self._known: dict[bytes, Any] = {_MAGIC + fingerprint(): self._own}
        """Schemas by the framing of their records."""
        self._by_id: dict[bytes, Any] = {}
        """Schemas by the bytes of their id; the error, if the registry did not answer, so that it
        is queried once.
        """
        self._registry: Final = registry
        self._read_value: Final = schemaless_reader

    @property
    def count(self) -> int:
        """Number of known schemas; if it has grown, more records may be decodable."""
        return len(self._known)

    def add(self, text: str) -> bytes:
        """Adds a schema, as JSON; returns its fingerprint.

        Raises:
            UndecodableRecord: the text is no Avro schema.
        """
        from fastavro.schema import SchemaParseException, UnknownType

        try:
            found = _fingerprint_of(json.loads(text))
            if _MAGIC + found not in self._known:
                self._known[_MAGIC + found] = _parsed(text)
        except (
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
            SchemaParseException,
            UnknownType,
        ) as error:
            raise UndecodableRecord(f"not an Avro schema: {error}") from None
        return found

    def decode(self, value: bytes) -> Change:
        """Returns the change of a record.

        Raises:
            UndecodableRecord
            RegistryUnavailable: its schema is in a registry that does not answer.
        """
        found = self.decode_fields(value)
        try:
            return _change_of(found)
        except TypeError as error:
            raise UndecodableRecord(f"{type(error).__name__}: {error}") from None

    def decode_fields(self, value: bytes) -> dict[str, Any]:
        """Returns the fields of a record by their names in ``change.avsc``, in half the time of
        ``decode``.

        Raises:
            UndecodableRecord, RegistryUnavailable
        """
        return self._read(value, self._own)

    def decode_row(self, value: bytes) -> dict[str, Any]:
        """Returns the fields of a record up to ``record``, strings as bytes: enough for the state,
        in half the time of ``decode_fields``. Damage in later fields may stay unnoticed.

        Raises:
            UndecodableRecord, RegistryUnavailable
        """
        return self._read(value, _row_schema())

    def _read(self, value: bytes, wanted: Any) -> dict[str, Any]:
        """Returns the fields of a record that the schema ``wanted`` has: this version's, or its
        first fields.
        """
        schema, end = self._schema_of(value)
        written, read_as = (wanted, None) if schema is self._own else (schema, wanted)
        try:
            found: Any = self._read_value(io.BytesIO(value[end:]), written, read_as)
            if not -_INT_LIMIT <= found["position"] < _INT_LIMIT:
                raise ValueError(f"an int of more than 32 bits: {found['position']}")
            if not _FIRST_MS <= found["time"] <= _LAST_MS:
                raise ValueError(f"a time outside the years 1 to 9999: {found['time']} ms")
        except Exception as error:  # noqa: BLE001 - fastavro raises many types for damaged bytes
            raise UndecodableRecord(f"{type(error).__name__}: {error}") from None
        return found  # type: ignore[no-any-return]

    def _schema_of(self, value: bytes) -> tuple[Any, int]:
        """Returns the schema that a record's framing names, and the length of the framing in
        bytes.
        """
        end = len(_MAGIC) + _FINGERPRINT_BYTES
        schema = self._known.get(value[:end])
        if schema is not None:
            return schema, end
        if value[: len(_MAGIC)] == _MAGIC and len(value) >= end:
            raise UndecodableRecord(f"of an unknown schema: {value[len(_MAGIC) : end].hex()}")
        end = len(_REGISTRY_MAGIC) + _ID_BYTES
        if value[: len(_REGISTRY_MAGIC)] == _REGISTRY_MAGIC and len(value) >= end:
            written = value[len(_REGISTRY_MAGIC) : end]
            if written not in self._by_id:
                self._by_id[written] = self._registered(int.from_bytes(written, "big"))
            schema = self._by_id[written]
            if isinstance(schema, RegistryUnavailable):
                raise RegistryUnavailable(schema.message)
            return schema, end
        raise UndecodableRecord(f"not framed as Avro's single objects: {value[:10].hex()}")

    def _registered(self, schema_id: int) -> Any:
        if self._registry is None:
            raise UndecodableRecord(
                f"of schema {schema_id} of a schema registry, and none is named"
            )
        try:
            found = self.add(self._registry.schema(schema_id))
        except RegistryUnavailable as error:
            return error
        except RegistryRefused as error:
            raise UndecodableRecord(f"of schema {schema_id}: {error}") from None
        return self._known[_MAGIC + found]


def is_framed_by_another(value: bytes) -> bool:
    """True if a record is framed by the fingerprint of a schema of another version of kdir."""
    return value.startswith(_MAGIC) and not value.startswith(_MAGIC + fingerprint())


def _change_of(value: Any) -> Change:
    point = value["checkpoint"]
    for name in ("grants_before", "grants_after", "cut"):
        if value[name] is not None:
            value[name] = tuple(value[name])
    if point is not None:
        value["checkpoint"] = Checkpoint(**{**point, "incarnations": tuple(point["incarnations"])})
    return Change(**value)


# -- from the contract -----------------------------------------------------------------------------


def change_of_event(event: watch_pb2.ChangeEvent, generation: int) -> Change:
    """Returns the change of a change event, for the history topic."""
    return Change(
        cluster_id=event.cluster_id,
        generation=generation,
        revision=event.revision,
        position=event.position,
        time=event.time.ToMilliseconds(),
        scope=_SCOPES.get(event.scope, f"scope {event.scope}"),
        action=_ACTIONS.get(event.action, ""),
        kind=KINDS.get(event.kind, ""),
        entry_id=event.entry_id,
        parent_id=event.parent_id,
        path=event.path,
        path_before=event.path_before or None,
        principal=event.principal,
        request_id=event.request_id,
        before=fields_of(event.before) if event.HasField("before") else None,
        after=fields_of(event.after) if event.HasField("after") else None,
        effective=dict(policy_fields(event.effective)) if event.HasField("effective") else None,
        grants_before=grants_text(event.grants_before) if event.HasField("grants_before") else None,
        grants_after=grants_text(event.grants_after) if event.HasField("grants_after") else None,
        operation=event.operation,
    )


def fields_of(entry: entry_pb2.Entry) -> Fields:
    """Returns the fields of an entry, as records hold them."""
    return dict(entry_fields(entry))


def grants_text(message: access_pb2.Grants) -> tuple[str, ...]:
    """Returns grants as records hold them, and as ``kdir grants`` prints them."""
    return tuple(grant_text(one) for one in message.grants)
