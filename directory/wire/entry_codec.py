"""Encodes and decodes entries as protobuf, in the store and in answers.

The stored form is a ``kdir.v1.Entry`` without ``path``, ``etag`` and output-only fields, serialized
deterministically.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final, cast

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from kdir.v1 import entry_pb2, policies_pb2, scan_pb2, watch_pb2

from directory.namespace.command import EntryChange
from directory.namespace.entry import NO_POLICIES, Entry, EntryGrants, Policies, etag_of
from directory.namespace.snapshot import Node
from directory.wire.entry_messages import entry_of, fill_policies, message_of, policies_of
from directory.wire.grant_messages import entry_grants_from_bytes, entry_grants_to_proto
from resolver.errors import Internal, InvalidArgument

__all__ = [
    "ProtoCodec",
    "change_to_proto",
    "entry_from_proto",
    "entry_to_proto",
    "policies_from_proto",
    "policies_to_proto",
    "record_to_proto",
]

_KIND_TAG: Final = itemgetter(9)
_TOPIC_TAG: Final = 0x2A
_POLICIES_TAG: Final = 0x42
"""Tag of the policies: a record without this byte has none."""


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
    """The namespace's ``Codec`` over ``kdir.v1.Entry``.

    Fields of a newer version are kept: ``decode`` puts the whole record into ``Entry.unknown`` if
    it differs from what this version would write, and ``encode`` starts from it. So
    ``encode(decode(record)) == record`` for every record.
    """

    def encode(self, entry: Entry) -> bytes:
        if entry.unknown and _decode(entry.unknown) == entry:
            return entry.unknown
        return message_of(entry).SerializeToString(deterministic=True)

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
        return [_name_at_its_place(record) or _physical_name(record) for record in records]

    def entry_id(self, record: bytes) -> int:
        if record[:1] == b"\x09" and len(record) >= 9:
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
        Internal: the record cannot be read. A load checks its first bytes only.
    """
    message = entry_pb2.Entry() if into is None else into
    try:
        message.MergeFromString(record)
    except DecodeError as error:
        raise Internal(f"the record of {path} cannot be read: {error}") from None
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
    message.CopyFrom(message_of(entry))
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
        _refuse_newer(desired_config)
        return entry_of(desired_config, stored=False)
    except ValueError as error:
        raise InvalidArgument(f"entry: {error}", field="entry") from None


def policies_to_proto(policies: Policies) -> policies_pb2.Policies:
    """Encodes policies. Unset fields stay unset; a cleared key is sent as cleared."""
    message = policies_pb2.Policies()
    fill_policies(message, policies)
    return message


def policies_from_proto(message: policies_pb2.Policies) -> Policies:
    """Decodes what ``policies_to_proto`` encodes.

    Raises:
        InvalidArgument: a key of a map has neither a value nor is it cleared, or there is an
            unknown field.
    """
    try:
        _refuse_newer(message)
        return policies_of(message, stored=False)
    except ValueError as error:
        raise InvalidArgument(str(error), field="policies") from None


def change_to_proto(
    change: EntryChange,
    *,
    time_ms: int,
    revision: int = 0,
    position: int = 0,
    principal: str = "",
    cluster_id: str = "",
    request_id: str = "",
    effective: policies_pb2.Policies | None = None,
) -> watch_pb2.ChangeEvent:
    """Returns the event of a change (PIP-39). ``revision`` is 0 until the change is committed.
    ``effective``: the message of the effective policies, if available.
    """
    event = watch_pb2.ChangeEvent(
        action=_action(change),
        kind=cast("entry_pb2.EntryKind", change.kind.value),
        entry_id=change.entry_id,
        parent_id=change.parent_id,
        path=str(change.path),
        path_before="" if change.path_before is None else str(change.path_before),
        revision=revision,
        position=position,
        principal=principal,
        cluster_id=cluster_id,
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


def _refuse_newer(message: Message) -> None:
    # Fields that cannot be kept must not be dropped silently (docs/how-to/upgrade.md).
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
    entry = entry_of(message, stored=True)
    # A record that this version would not write exactly so must be kept as it is.
    if message_of(entry).SerializeToString(deterministic=True) != record:
        return replace(entry, unknown=record)
    return entry


def _parsed(record: bytes) -> entry_pb2.Entry:
    try:
        return entry_pb2.Entry.FromString(record)
    except DecodeError as error:
        raise ValueError(f"not a kdir.v1.Entry: {error}") from None


def _name_at_its_place(record: bytes) -> str | None:
    # Of a record that can be parsed, the physical name where our own serialization has it: after
    # entry_id, the topic's tag and its length in one or two bytes. Four times as fast as parsing.
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
    # As our own serialization has it: the topic's name, its id in Kafka, its partitions. Where they
    # are not at their place, of which one byte is enough to know, the record is parsed.
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
    return message.topic.physical_name or None
