"""Encodes and decodes entries as protobuf, in the store and in answers.

The stored form is a ``kdir.v1.Entry`` without ``path``, ``etag`` and output-only fields, serialized
deterministically.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from enum import IntEnum
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, TypeVar, assert_never, cast

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from kdir.v1 import entry_pb2, policies_pb2, scan_pb2, watch_pb2

from directory.namespace.command import EntryChange
from directory.namespace.entry import (
    NO_POLICIES,
    Directory,
    Entry,
    EntryGrants,
    Link,
    LinkMode,
    LinkWrites,
    Mount,
    Policies,
    Provision,
    Stamp,
    Topic,
    etag_of,
)
from directory.namespace.snapshot import Node
from directory.namespace.tree_nodes import LEGAL
from directory.wire.grant_messages import entry_grants_from_bytes, entry_grants_to_proto
from resolver.errors import InvalidArgument, InvalidPath, UnreadableRecord
from resolver.path import Path
from resolver.printable import cut_name

__all__ = [
    "ProtoCodec",
    "change_to_proto",
    "entry_from_proto",
    "entry_to_proto",
    "policies_from_proto",
    "policies_of",
    "policies_to_proto",
    "record_to_proto",
    "refuse_newer",
]

_KIND_TAG: Final = itemgetter(9)
_TOPIC_TAG: Final = 0x2A
_POLICIES_TAG: Final = 0x42
"""Tag of the policies: a record without this byte has none."""


_E = TypeVar("_E", bound=IntEnum)

_CONFIG_MAPS: Final = ("topic_config", "producer_defaults", "consumer_defaults", "tags")
_SCALARS: Final = (
    "partitions",
    "replication_factor",
    "max_topics",
    "max_partitions",
    "owner",
    "contact",
    "description",
    "read_only",
    "encryption_key_id",
)
_PROVISIONS: Final[frozenset[int]] = frozenset(Provision)
_NEWER_STATE: Final = "this state is of a newer version of kdir:"


class _Heads(dict[int, bytes]):
    """Cache of the bytes before a field 2 of each length."""

    def __missing__(self, length: int) -> bytes:
        made, left = b"\x12", length
        while left > 0x7F:
            made += bytes((left & 0x7F | 0x80,))
            left >>= 7
        made += bytes((left,))
        self[length] = made
        return made


_HEADS: Final = _Heads()


class ProtoCodec:
    """Implementation of the namespace's ``Codec`` with ``kdir.v1.Entry``.

    Fields of a newer version are kept: ``decode`` puts the whole record into ``Entry.unknown`` if
    it differs from what this version would write, and ``encode`` starts from it. So
    ``encode(decode(record)) == record`` for every record.
    """

    def encode(self, entry: Entry) -> bytes:
        if entry.unknown and _decode(entry.unknown) == entry:
            return entry.unknown
        return _message_of(entry).SerializeToString(deterministic=True)

    def decode(self, record: bytes) -> Entry:
        return _decode(record)

    def policies(self, record: bytes) -> Policies:
        if _POLICIES_TAG not in record:
            return NO_POLICIES
        message = _parsed(record)
        return (
            policies_of(message.policies, stored=True)
            if message.HasField("policies")
            else NO_POLICIES
        )

    def look_like_topics(self, records: Sequence[bytes]) -> bool:
        # Fields are in order: the tag of entry_id and its eight bytes, then the tag of the kind.
        try:
            return bytes(map(_KIND_TAG, records)).count(_TOPIC_TAG) == len(records)
        except IndexError:
            return False

    def physical_names(self, records: Sequence[bytes]) -> Sequence[str | None]:
        if len(records) == 1:
            return [_physical_name(records[0])]
        try:
            # As one message's repeated field 2: parsed at once in a third of the time.
            joined = b"".join([_HEADS[len(record)] + record for record in records])
            scan_pb2.ScanTopicsResponse.FromString(joined)
        except DecodeError:
            return [_physical_name(record) for record in records]
        names = [_name_at_its_place(record) or _physical_name(record) for record in records]
        if _is_legal("".join(filter(None, names))):
            return names
        return [_physical_name(record) for record in records]

    def entry_id(self, record: bytes) -> int:
        if record[:1] == b"\x11" and len(record) >= 9:  # field 2, fixed64
            return int.from_bytes(record[1:9], "little")
        try:
            return _parsed(record).entry_id
        except ValueError:
            return 0

    def partitions(self, records: Iterable[bytes]) -> int:
        return sum(map(_partitions, records))

    def encode_grants(self, grants: EntryGrants) -> bytes:
        return entry_grants_to_proto(grants).SerializeToString(deterministic=True)

    def decode_grants(self, record: bytes) -> EntryGrants:
        return entry_grants_from_bytes(record)


def record_to_proto(
    record: bytes, path: str, into: entry_pb2.Entry | None = None
) -> entry_pb2.Entry:
    """Returns the answer for a stored record, without decoding the entry first. ``into``, such as a
    field of the response, is an empty message that is filled and returned.

    Raises:
        UnreadableRecord: the record cannot be read, or its physical name is damaged. A load checks
            its first bytes only.
    """
    message = entry_pb2.Entry() if into is None else into
    try:
        message.MergeFromString(record)
    except DecodeError as error:
        raise UnreadableRecord(f"the record of {path} cannot be read: {error}") from None
    if not _is_legal(message.topic.physical_name):
        reason = _illegal_name(message.topic)
        raise UnreadableRecord(f"the record of {path} cannot be read: {reason}")
    message.path = path
    message.etag = f"{message.entry_id:x}-{message.change_count}"
    return message


def entry_to_proto(
    entry: Entry, path: str, node: Node | None = None, into: entry_pb2.Entry | None = None
) -> entry_pb2.Entry:
    """Returns the answer for an entry: as stored, with path and etag. With ``node``, a directory's
    node, the counts of its entries are added.
    """
    message = entry_pb2.Entry() if into is None else into
    _fill_entry(message, entry)
    message.path = path
    message.etag = etag_of(entry)
    if node is not None:
        message.directory.topic_count = len(node.topics)
        message.directory.container_count = len(node.containers)
    return message


def entry_from_proto(message: entry_pb2.Entry) -> Entry:
    """Returns the entry in a create or update request.

    Ids, etag, path, stamps and output-only fields are ignored: the entry id is 0.

    Raises:
        InvalidArgument: names the field, the value found and the value expected; also for a field
            that this version does not know, since it could not be kept.
    """
    desired_config = entry_pb2.Entry()
    desired_config.CopyFrom(message)
    for field in ("entry_id", "changed_at", "changed_by"):
        desired_config.ClearField(field)
    desired_config.change_count = 1
    try:
        refuse_newer(desired_config)
        return _entry_of(desired_config, stored=False)
    except ValueError as error:
        raise InvalidArgument(f"entry: {error}", field="entry") from None


def policies_to_proto(policies: Policies) -> policies_pb2.Policies:
    """Encodes policies. Unset fields stay unset; a cleared key is sent as cleared."""
    message = policies_pb2.Policies()
    _fill_policies(message, policies)
    return message


def policies_from_proto(message: policies_pb2.Policies) -> Policies:
    """Decodes what ``policies_to_proto`` encodes.

    Raises:
        InvalidArgument: a key of a map has neither a value nor is it cleared, or there is an
            unknown field.
    """
    try:
        refuse_newer(message)
        return policies_of(message, stored=False)
    except ValueError as error:
        raise InvalidArgument(str(error), field="policies") from None


def change_to_proto(
    change: EntryChange,
    *,
    time_ms: int,
    position: int = 0,
    principal: str = "",
    request_id: str = "",
    effective: policies_pb2.Policies | None = None,
) -> watch_pb2.ChangeEvent:
    """Returns the event of a change (PIP-39), without revision and cluster, which are known when it
    is read. ``effective``: the message of the effective policies, if available.
    """
    event = watch_pb2.ChangeEvent(
        action=_action(change),
        kind=cast("entry_pb2.EntryKind", change.kind.value),
        entry_id=change.entry_id,
        parent_id=change.parent_id,
        path=str(change.path),
        path_before="" if change.path_before is None else str(change.path_before),
        position=position,
        principal=principal,
        request_id=request_id,
    )
    event.time.FromMilliseconds(time_ms)
    if change.before is not None:
        entry_to_proto(change.before, str(change.path_before or change.path), into=event.before)
    if change.after is not None:
        entry_to_proto(change.after, str(change.path), into=event.after)
    if change.effective is not None:
        event.effective.CopyFrom(effective or policies_to_proto(change.effective))
    if change.of_grants:
        event.scope = watch_pb2.CHANGE_SCOPE_GRANTS
    if change.of_inherited:
        event.scope = watch_pb2.CHANGE_SCOPE_INHERITED
    if change.operation:
        event.scope = watch_pb2.CHANGE_SCOPE_OPERATED
        event.operation = change.operation
    if change.grants_before is not None:
        event.grants_before.CopyFrom(entry_grants_to_proto(change.grants_before))
    if change.grants_after is not None:
        event.grants_after.CopyFrom(entry_grants_to_proto(change.grants_after))
    return event


def refuse_newer(message: Message) -> None:
    """Checks that a message of a request has no field that this version does not know: it could not
    be kept, and must not be dropped silently (docs/how-to/upgrade.md).

    Raises:
        ValueError: names the field's number.
    """
    newer = next(_newer_fields(message), None)
    if newer is not None:
        raise ValueError(
            f"field {newer} is not known to this server, which is older than its caller: "
            "upgrade it, or leave the field out"
        )


def _newer_fields(message: Message) -> Iterator[str]:
    unknown = UnknownFieldSet(message)
    for index in range(len(unknown)):
        yield str(unknown[index].field_number)
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        below: Iterable[Any] = (value,)
        if field.message_type.GetOptions().map_entry:
            below = value.values()
        elif field.is_repeated:
            below = value
        for one in below:
            if isinstance(one, Message):
                yield from (f"{field.name}.{number}" for number in _newer_fields(one))


def _action(change: EntryChange) -> watch_pb2.ChangeAction:
    if change.before is None:
        return watch_pb2.CHANGE_ACTION_INSERT
    if change.after is None:
        return watch_pb2.CHANGE_ACTION_DELETE
    return watch_pb2.CHANGE_ACTION_UPDATE


# --- bytes and messages to entries ---------------------------------------------------------------


def _decode(record: bytes) -> Entry:
    message = _parsed(record)
    if not message.entry_id:
        raise ValueError("entry_id: missing")
    entry = _entry_of(message, stored=True)
    # A record that this version would not write exactly so must be kept as it is.
    if _message_of(entry).SerializeToString(deterministic=True) != record:
        return replace(entry, unknown=record)
    return entry


def _parsed(record: bytes) -> entry_pb2.Entry:
    try:
        return entry_pb2.Entry.FromString(record)
    except DecodeError as error:
        raise ValueError(f"not a kdir.v1.Entry: {error}") from None


def _name_at_its_place(record: bytes) -> str | None:
    # Reads the physical name of a record that can be parsed where our own serialization has it:
    # after entry_id, the topic's tag and its length in one or two bytes. Four times as fast as
    # parsing.
    if len(record) < 14 or record[9] != _TOPIC_TAG:
        return None
    at = 11
    if record[10] > 0x7F:
        if record[11] > 0x7F:
            return None
        at = 12
    length = record[at + 1]
    if record[at] != 0x0A or length > 0x7F:
        return None
    return record[at + 2 : at + 2 + length].decode()


def _partitions(record: bytes) -> int:
    # Our own serialization has the topic's name, its id in Kafka and its partitions in this order.
    # If one is not at its place, which a single byte shows, the record is parsed.
    try:
        at = 11 if record[10] < 0x80 else 12
        if record[9] == _TOPIC_TAG and record[at] == 0x0A and record[at + 1] < 0x80:
            at += 2 + record[at + 1]
            if record[at : at + 2] == b"\x12\x10":
                at += 18
            if record[at] == 0x18 and record[at + 1] < 0x80:
                return record[at + 1] or 1
        return _parsed(record).topic.partitions or 1
    except (IndexError, ValueError):
        return 1


def _physical_name(record: bytes) -> str | None:
    try:
        message = _parsed(record)
    except ValueError:
        return None
    if not message.entry_id:
        return None
    name = message.topic.physical_name
    return name if name and _is_legal(name) else None


def _is_legal(physical_name: str) -> bool:
    """True if a name has only characters that names of topics have in Kafka."""
    return not physical_name.encode().translate(None, LEGAL)


def _illegal_name(topic: entry_pb2.Topic) -> str:
    return f"topic.physical_name: not a name: {topic.physical_name!r}"


# Entries and policies as messages, field by field, both ways.


def _entry_of(message: entry_pb2.Entry, *, stored: bool) -> Entry:
    """Returns the entry of a message. One from a request (not ``stored``) must make sense to this
    version in every field.

    Raises:
        ValueError: names the field, the value found and the value expected.
    """
    common: dict[str, Any] = {
        "entry_id": message.entry_id,
        "change_count": message.change_count,
        "changed_by": message.changed_by,
        "changed_at_ms": _millis(message),
    }
    if message.HasField("policies"):
        common["policies"] = policies_of(message.policies, stored=stored)
    match message.WhichOneof("kind"):
        case "topic":
            return _topic(message.topic, common, stored=stored)
        case "directory":
            return Directory(**common, closed=message.directory.closed)
        case "link":
            return _link(message.link, common)
        case "mount":
            return _mount(message.mount, common)
        case _:
            raise ValueError("kind: one of directory, topic, link and mount must be set")


def _millis(message: entry_pb2.Entry) -> int:
    # By hand: the well-known type's own conversion is Python too, and takes three times as long.
    changed_at = message.changed_at
    return changed_at.seconds * 1000 + changed_at.nanos // 1_000_000


def _topic(message: entry_pb2.Topic, common: dict[str, Any], *, stored: bool) -> Topic:
    if stored and not message.physical_name:
        raise ValueError("topic.physical_name: missing")
    if stored and not _is_legal(message.physical_name):
        raise ValueError(_illegal_name(message))
    provision, provision_message = Provision.PENDING, message.provision_message
    if int(message.provision) in _PROVISIONS:
        provision = Provision(message.provision)
    elif message.provision:
        # kdir does nothing to a failed topic: no other state is safe for an unknown one.
        provision, provision_message = Provision.FAILED, f"{_NEWER_STATE} {message.provision}"
    return Topic(
        **common,
        physical_name=message.physical_name,
        topic_id=message.topic_id,
        partitions=message.partitions,
        replication_factor=message.replication_factor,
        provision=provision,
        provision_message=provision_message,
        drift_count=message.drift_count,
        adopted=message.adopted,
        provision_attempt=message.provision_attempt,
        observed_config=MappingProxyType(dict(message.observed_config)),
    )


def _link(message: entry_pb2.Link, common: dict[str, Any]) -> Link:
    if not message.targets:
        raise ValueError("link.targets: empty; a link needs at least one target path")
    targets = []
    for position, target in enumerate(message.targets):
        try:
            targets.append(Path.parse(target))
        except InvalidPath as error:
            raise ValueError(f"link.targets[{position}]: {error.message}") from None
    return Link(
        **common,
        targets=tuple(targets),
        mode=_enum(LinkMode, message.mode, LinkMode.FIRST, "link.mode"),
        writes=_enum(LinkWrites, message.writes, LinkWrites.STAY, "link.writes"),
        fall_back_on_absent=message.fall_back_on_absent,
    )


def _mount(message: entry_pb2.Mount, common: dict[str, Any]) -> Mount:
    if not message.cluster_id:
        raise ValueError("mount.cluster_id: empty; a mount names the child's cluster id")
    return Mount(
        **common,
        cluster_id=message.cluster_id,
        cluster=message.cluster,
        epoch=message.epoch,
        endpoints=tuple(message.endpoints),
    )


def _enum(kind: type[_E], number: int, unspecified: _E, field: str) -> _E:
    if not number:
        return unspecified
    try:
        return kind(number)
    except ValueError:
        known = ", ".join(f"{one.name} = {one.value}" for one in kind)
        raise ValueError(f"{field}: {number}; known are {known}") from None


def policies_of(message: policies_pb2.Policies, *, stored: bool) -> Policies:
    """Returns the policies of a message; ``stored`` as in ``_entry_of``.

    Raises:
        ValueError: as ``_entry_of``.
    """
    values: dict[str, Any] = {
        name: getattr(message, name) for name in _SCALARS if message.HasField(name)
    }
    for name in _CONFIG_MAPS:
        if entries := getattr(message, name):
            values[name] = MappingProxyType(dict(_settings(name, entries, stored=stored)))
    if message.manage:
        values["manage"] = MappingProxyType(dict(message.manage))
    if stored and message.stamps:
        values["stamps"] = MappingProxyType(
            {name: Stamp(one.by, one.at_ms) for name, one in sorted(message.stamps.items())}
        )
    return Policies(**values) if values else NO_POLICIES


def _settings(
    name: str, entries: Mapping[str, policies_pb2.ConfigValue], *, stored: bool
) -> Iterator[tuple[str, str | None]]:
    for key, value in sorted(entries.items()):
        kind = value.WhichOneof("kind")
        if kind == "value":
            yield key, value.value
        elif kind == "cleared" and value.cleared:
            yield key, None
        elif not stored:
            # In a stored record it is of a newer version: it has no effect here, and is kept.
            raise ValueError(f"policies.{name}[{cut_name(key)}]: neither a value nor cleared")


def _message_of(entry: Entry) -> entry_pb2.Entry:
    """Returns the message of the stored form."""
    message = entry_pb2.Entry()
    _fill_entry(message, entry)
    return message


def _fill_entry(message: entry_pb2.Entry, entry: Entry) -> None:
    """Fills an empty message with the stored form, on top of the record of a newer version, if
    there is one.
    """
    changed_at_ms = 0
    if entry.unknown:
        message.MergeFromString(entry.unknown)
        _clear_outputs(message)
        changed_at_ms = _millis(message)
    message.entry_id = entry.entry_id
    message.change_count = entry.change_count
    message.changed_by = entry.changed_by
    if entry.changed_at_ms != changed_at_ms:
        seconds, millis = divmod(entry.changed_at_ms, 1000)
        message.changed_at.seconds = seconds
        message.changed_at.nanos = millis * 1_000_000
    if entry.policies is not NO_POLICIES or message.HasField("policies"):
        _fill_policies(message.policies, entry.policies)
        if not message.policies.ByteSize():
            message.ClearField("policies")
    match entry:
        case Directory():
            message.directory.SetInParent()
            message.directory.closed = entry.closed
        case Topic():
            _fill_topic(message.topic, entry)
        case Link():
            message.link.targets[:] = [str(target) for target in entry.targets]
            message.link.mode = cast("entry_pb2.LinkMode", entry.mode.value)
            message.link.writes = cast("entry_pb2.LinkWrites", entry.writes.value)
            message.link.fall_back_on_absent = entry.fall_back_on_absent
        case Mount():
            message.mount.cluster_id = entry.cluster_id
            message.mount.cluster = entry.cluster
            message.mount.epoch = entry.epoch
            message.mount.endpoints[:] = entry.endpoints
        case _:
            assert_never(entry)


def _clear_outputs(message: entry_pb2.Entry) -> None:
    message.ClearField("path")
    message.ClearField("etag")
    match message.WhichOneof("kind"):
        case "directory":
            message.directory.ClearField("topic_count")
            message.directory.ClearField("container_count")
            message.directory.ClearField("total_topic_count")
        case "mount":
            message.mount.ClearField("state")
            message.mount.ClearField("last_contact_age_seconds")
            message.mount.ClearField("topic_count")
            message.mount.ClearField("message")
        case _:
            pass


def _fill_topic(message: entry_pb2.Topic, topic: Topic) -> None:
    message.physical_name = topic.physical_name
    message.topic_id = topic.topic_id
    message.partitions = topic.partitions
    message.replication_factor = topic.replication_factor
    if topic.provision_message != f"{_NEWER_STATE} {message.provision}":
        message.provision = cast("entry_pb2.Provision", topic.provision.value)
        message.provision_message = topic.provision_message
    message.drift_count = topic.drift_count
    message.adopted = topic.adopted
    message.provision_attempt = topic.provision_attempt
    if message.observed_config != topic.observed_config:
        message.observed_config.clear()
        message.observed_config.update(topic.observed_config)


def _fill_policies(message: policies_pb2.Policies, policies: Policies) -> None:
    """Fills in these policies; unknown fields of a newer version stay."""
    for name in _SCALARS:
        value = getattr(policies, name)
        if value is None:
            message.ClearField(name)
        else:
            setattr(message, name, value)
    for name in _CONFIG_MAPS:
        _fill_settings(getattr(message, name), getattr(policies, name))
    message.manage.clear()
    message.manage.update(policies.manage)
    for name in [name for name in message.stamps if name not in policies.stamps]:
        del message.stamps[name]
    for name, stamp in policies.stamps.items():
        message.stamps[name].by = stamp.by
        message.stamps[name].at_ms = stamp.at_ms


def _fill_settings(
    message: MutableMapping[str, policies_pb2.ConfigValue], settings: Mapping[str, str | None]
) -> None:
    for key in [key for key in message if key not in settings]:
        if message[key].WhichOneof("kind") is not None:
            del message[key]
    for key, value in settings.items():
        if value is None:
            message[key].cleared = True
        else:
            message[key].value = value
