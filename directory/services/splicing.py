"""A topic's part of an answer, put together from its stored record without parsing it.

Refuses every record that is not written as this version writes a topic without policies of its
own: protobuf then does it. Protobuf merges what follows: so the record's bytes, then path and etag,
are the bytes of the entry (the encoding spec: *last one wins*, fields in any order).
"""

from __future__ import annotations

from typing import Final

from kdir.v1 import policies_pb2, resolve_pb2

from directory.namespace.snapshot import Node

__all__ = ["Splicer"]

_ENTRY_ID: Final = 0x11
_TOPIC: Final = 0x2A
_CHANGE_COUNT: Final = 0x48
_MANY: Final = 0x80
"""From here on a varint takes a second byte."""
_SHORTEST: Final = 14


class Splicer:
    """Makes the parts for the topics directly in one directory."""

    __slots__ = ("_containers", "_heads", "_tail", "_topic")

    def __init__(
        self, node: Node, lifetime_seconds: int, inherited: policies_pb2.Policies | None
    ) -> None:
        self._topic = node.topics.get
        self._containers = node.containers or None
        rest = resolve_pb2.Resolution(lifetime_seconds=lifetime_seconds)
        if inherited is not None:
            rest.effective.CopyFrom(inherited)
        self._tail = rest.SerializeToString()
        self._heads = _heads_for(len(self._tail))

    def part(self, path: str, name: str) -> bytes | None:
        """The bytes of a ResolveResponse with the topic's outcome only; None: ask protobuf.

        ``path`` is the canonical path whose last segment is ``name``.
        """
        if self._containers is not None and name in self._containers:
            return None
        record = self._topic(name)
        if record is None or len(record) < _SHORTEST:
            return None
        length = record[10]
        two = record[11] << 7
        after = 11 + length if length < _MANY else 12 + (length - _MANY | two)
        if record[0] != _ENTRY_ID or record[9] != _TOPIC or record[11] >= _MANY <= length:
            return None
        # A record with policies has another tag here.
        if after + 1 >= len(record) or record[after] != _CHANGE_COUNT:
            return None
        count = record[after + 1]
        if count >= _MANY or len(path) >= _MANY:
            return None
        text = path.encode()
        etag = b"%x-%d" % (int.from_bytes(record[1:9], "little"), count)
        return b"%b%b\x0a%c%b\x1a%c%b%b" % (
            self._heads[len(record) + len(text) + len(etag) + 4],
            record,
            len(text),
            text,
            len(etag),
            etag,
            self._tail,
        )


class _Heads(dict[int, bytes]):
    """By the length of an entry: the tags and lengths of all that it is in, made once each."""

    def __init__(self, tail: int) -> None:
        super().__init__()
        self._tail = tail

    def __missing__(self, length: int) -> bytes:
        entry = b"\x0a" + _varint(length)
        resolution = b"\x0a" + _varint(len(entry) + length + self._tail)
        outcome = b"\x12" + _varint(len(resolution) + len(entry) + length + self._tail)
        made = self[length] = outcome + resolution + entry
        return made


_HEADS: Final[dict[int, _Heads]] = {}


def _heads_for(tail: int) -> _Heads:
    return _HEADS.setdefault(tail, _Heads(tail))


def _varint(number: int) -> bytes:
    made = bytearray()
    while number >= _MANY:
        made.append(number & 0x7F | _MANY)
        number >>= 7
    made.append(number)
    return bytes(made)
