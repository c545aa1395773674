"""Stored form of a link's updates: the unix time in eight bytes, then the message. Unreadable and
implausible records count as none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message
from kdir.v1 import federation_pb2

from directory.namespace import keys
from resolver.errors import InvalidPath
from resolver.path import Path

__all__ = [
    "READERS",
    "check_plausible",
    "decode_record",
    "encode_record",
    "is_path",
    "split_record",
    "try_decode_record",
]

_TIME_BYTES: Final = 8
_Reported = TypeVar("_Reported", bound=Message)


def encode_record(at_ms: int, body: bytes) -> bytes:
    """Returns the stored form of a record."""
    return max(0, at_ms).to_bytes(_TIME_BYTES, "big") + body


def split_record(value: bytes) -> tuple[int, bytes]:
    """Returns the time (unix ms) and the bytes of the message, unchecked."""
    return int.from_bytes(value[:_TIME_BYTES], "big"), value[_TIME_BYTES:]


def decode_record(kind: type[_Reported], value: bytes) -> tuple[_Reported, int]:
    """Returns the update and its time (unix ms).

    Raises:
        ValueError: it cannot be read, or is implausible.
    """
    if len(value) < _TIME_BYTES:
        raise ValueError("it is too short to have a time")
    at_ms, body = split_record(value)
    try:
        message = kind.FromString(body)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    check_plausible(message)
    return message, at_ms


def try_decode_record(kind: type[_Reported], value: bytes | None) -> tuple[_Reported, int] | None:
    """Returns the update and its time; None: there is none, or it cannot be read."""
    if value is None:
        return None
    try:
        return decode_record(kind, value)
    except ValueError:
        return None


def check_plausible(message: Message) -> None:
    """Checks the required fields of a message: damaged bytes may parse by chance.

    Raises:
        ValueError: a field is missing or invalid.
    """
    match message:
        case federation_pb2.Welcome() | federation_pb2.MountRow():
            paths = [message.mount]
        case federation_pb2.Inherited():
            if not message.incarnation:
                raise ValueError("incarnation of the parent's store: missing")
            paths = [level.path for level in message.levels]
        case federation_pb2.Hello() if not message.cluster_id:
            raise ValueError("it names no cluster")
        case _:
            paths = []
    for path in paths:
        if not is_path(path):
            raise ValueError(f"{path!r} is no path")


def is_path(text: str) -> bool:
    """True if it is a canonical path."""
    try:
        Path.parse(text)
    except InvalidPath:
        return False
    return True


def _of(kind: type[Message]) -> Callable[[bytes], Any]:
    return lambda value: decode_record(kind, value)


READERS: Final[Mapping[bytes, Callable[[bytes], Any]]] = {
    keys.PARENT: _of(federation_pb2.Welcome),
    keys.MOUNT_ROW: _of(federation_pb2.MountRow),
    keys.CHILD: _of(federation_pb2.Hello),
    keys.BELOW: _of(federation_pb2.MountTable),
}
"""Parsers of stored rows, by key prefix; they raise ValueError. ``inheritance`` has the parser of
its row.
"""
