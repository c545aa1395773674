"""Converts messages of the contract to plain values, for JSON, YAML and text; does not import
protobuf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

__all__ = ["kafka_uuid", "plain"]


def kafka_uuid(raw: bytes) -> str:
    """Returns the 16 bytes of a UUID as Kafka's tools print them: URL-safe base64 without
    padding.
    """
    import binascii

    text = binascii.b2a_base64(raw, newline=False).decode("ascii")
    return text.rstrip("=").replace("+", "-").replace("/", "_")


def plain(message: Message) -> dict[str, Any]:
    """Returns a message as JSON values, by the field names of the contract.

    The form is proto JSON, with three choices that its readers accept: names in snake_case; counts
    and revisions as numbers, ids (``fixed64``) as text, since they do not fit a double; bytes in
    URL-safe base64 without padding, as Kafka prints topic ids. Unset fields and zeros are left out.
    """
    return {field.name: _field(field, value) for field, value in message.ListFields()}


def _field(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        values = field.message_type.fields_by_name["value"]
        return {str(key): _value(values, value[key]) for key in sorted(value)}
    if field.is_repeated:
        return [_value(field, item) for item in value]
    return _value(field, value)


def _value(field: FieldDescriptor, value: Any) -> Any:
    kind = field.type
    if field.message_type is not None:
        if field.message_type.full_name == "google.protobuf.Timestamp":
            return value.ToJsonString()
        return plain(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return value if named is None else named.name  # a number of a newer version
    if kind == field.TYPE_BYTES:
        return kafka_uuid(value)
    if kind in (field.TYPE_FIXED64, field.TYPE_SFIXED64):
        return str(value)
    return value
