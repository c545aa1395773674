"""A topic's part of an answer, put together from its stored record without parsing it.

Refuses every record that is not written as this version writes a topic without policies of its
own: protobuf then does it. Protobuf merges what follows: so the record's bytes, then path and etag,
are the bytes of the entry (the encoding spec: *last one wins*, fields in any order).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from kdir.v1 import policies_pb2, resolve_pb2

from directory.namespace.snapshot import Node

__all__ = ["TopicSplicer"]

_ENTRY_ID: Final = 0x11
_TOPIC: Final = 0x2A
_CHANGE_COUNT: Final = 0x48
_MANY: Final = 0x80
"""From here on a varint takes a second byte."""
_SHORTEST: Final = 14
_beginning: Final = Struct("<BQBB").unpack_from
"""Tag and value of the entry id, tag and (first byte of the) length of the topic."""
_PATHS: Final = [b"\x0a%c" % length for length in range(_MANY)]
_ETAGS: Final = [b"\x1a%c" % length for length in range(_MANY)]
"""Tag and length."""


class TopicSplicer:
    """Encoder of the parts of answers for the topics directly in one directory."""

    __slots__ = ("_containers", "_heads", "_tail", "_topic", "size")

    def __init__(
        self, node: Node, lifetime_seconds: int, inherited: policies_pb2.Policies | None
    ) -> None:
        self._topic = node.topics.get
        self._containers = node.containers or None
        rest = resolve_pb2.Resolution(lifetime_seconds=lifetime_seconds)
        if inherited is not None:
            rest.effective.CopyFrom(inherited)
        self._tail = rest.SerializeToString()
        self.size: Final = len(self._tail)
        self._heads = _heads_for(len(self._tail))

    def resolve_response_bytes(self, path: str, name: str) -> bytes | None:
        """Returns the bytes of a ResolveResponse with the topic's outcome only; None: ask protobuf.

        ``path`` is the canonical path whose last segment is ``name``.
        """
        if self._containers is not None and name in self._containers:
            return None
        record = self._topic(name)
        if record is None or len(record) < _SHORTEST:
            return None
        first, entry_id, second, length = _beginning(record)
        after = 11 + length
        if length >= _MANY:
            if record[11] >= _MANY:
                return None
            after = 12 + (length - _MANY | record[11] << 7)
        # A record with policies has another tag here.
        if (
            first != _ENTRY_ID
            or second != _TOPIC
            or after + 1 >= len(record)
            or record[after] != _CHANGE_COUNT
        ):
            return None
        count, size = record[after + 1], len(path)
        if count >= _MANY or size >= _MANY:
            return None
        etag = b"%x-%d" % (entry_id, count)
        return b"".join(
            (
                self._heads[len(record) + size + len(etag) + 4],
                record,
                _PATHS[size],
                path.encode(),
                _ETAGS[len(etag)],
                etag,
                self._tail,
            )
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
_MOST_HEADS: Final = 1 << 12


def _heads_for(tail: int) -> _Heads:
    if len(_HEADS) >= _MOST_HEADS:
        _HEADS.clear()  # of policies that were changed again and again
    return _HEADS.setdefault(tail, _Heads(tail))


def _varint(number: int) -> bytes:
    made = bytearray()
    while number >= _MANY:
        made.append(number & 0x7F | _MANY)
        number >>= 7
    made.append(number)
    return bytes(made)
