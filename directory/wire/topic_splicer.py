"""Splices a topic's outcome from its stored record without parsing it.

Only records that are exactly as this version writes a topic without policies of its own are
spliced; all others are encoded by protobuf. Protobuf merges concatenated fields: so the record's
bytes, then path and etag, are the bytes of the entry (the encoding spec: *last one wins*, fields in
any order).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

from kdir.v1 import policies_pb2, resolve_pb2

from directory.namespace.snapshot import Node
from directory.namespace.sorted_map import SortedMap
from directory.namespace.tree_nodes import Container

__all__ = ["KeptSplicer", "TopicSplicer", "make_splicer", "splice_topics"]

_ENTRY_ID: Final = 0x11
_TOPIC: Final = 0x2A
_CHANGE_COUNT: Final = 0x48
_MANY: Final = 0x80
"""Smallest length whose varint has a second byte."""
_SHORTEST: Final = 14
_FRONT: Final = Struct("<BQBB")
"""Tag and value of the entry id, tag and length of the topic."""
_PATHS: Final = [b"\x0a%c" % length for length in range(_MANY)]
_ETAGS: Final = [b"\x1a%c" % length for length in range(_MANY)]
"""Tag and length of an etag, by its length."""
_ETAG_ENDS: Final = {b"%c%c" % (_CHANGE_COUNT, count): b"-%d" % count for count in range(_MANY)}
"""Ends of etags, by the tag and value of the change count."""


class TopicSplicer(NamedTuple):
    """Parts of the outcomes of the topics directly in one directory, whatever its path.

    A tuple, because unpacking fetches all of its parts from memory at the same time; so what is not
    needed for each path is in ``KeptSplicer``.
    """

    records: Mapping[str, bytes] | SortedMap[str, bytes]
    """Records by name: a dict, or the ordered map of a large directory."""
    containers: SortedMap[str, Container] | None
    heads: Mapping[int, bytes]
    tail: bytes


class KeptSplicer(NamedTuple):
    """Splicer, with the parts that show whether it still holds in a later snapshot."""

    splicer: TopicSplicer
    topics: SortedMap[str, bytes]
    """The directory's topics, to which the records belong."""
    size_bytes: int


def make_splicer(
    node: Node,
    lifetime_seconds: int,
    inherited: policies_pb2.Policies | None,
    earlier: KeptSplicer | None = None,
) -> KeptSplicer:
    """Returns the splicer of a directory.

    Args:
        earlier: a splicer that was made before, for any directory; it is returned if it has the
            same parts.
    """
    rest = resolve_pb2.Resolution(lifetime_seconds=lifetime_seconds)
    if inherited is not None:
        rest.effective.CopyFrom(inherited)
    tail = rest.SerializeToString()
    topics, containers = node.topics, node.containers or None
    if (
        earlier is not None
        and earlier.topics is topics
        and earlier.splicer.containers is containers
        and earlier.splicer.tail == tail
    ):
        return earlier
    records = topics if topics.height else dict(topics.items())
    size_bytes = len(tail) + (0 if topics.height else sys.getsizeof(records))
    heads = _heads_for(len(tail))
    return KeptSplicer(TopicSplicer(records, containers, heads, _shared(tail)), topics, size_bytes)


def splice_topics(splicers: Mapping[str, TopicSplicer], paths: Sequence[str]) -> list[bytes | None]:
    """Returns for each path the bytes of a ResolveResponse with only the topic's outcome; None: use
    protobuf.

    Args:
        splicers: splicers by the canonical path of their directory.
    """
    find, unpack, end_of, join = splicers.get, _FRONT.unpack_from, _ETAG_ENDS.get, b"".join
    parts: list[bytes | None] = []
    append = parts.append
    for path in paths:
        above, slash, name = path.rpartition("/")
        splicer = find(above)
        if splicer is None or not slash:
            append(None)
            continue
        records, containers, heads, tail = splicer
        record = records.get(name)
        if (
            record is None
            or (record_size := len(record)) < _SHORTEST
            or (containers is not None and name in containers)
        ):
            append(None)
            continue
        first, entry_id, second, length = unpack(record)
        if length >= _MANY:
            # A record with a third length byte gets a length that fails the check below.
            more = record[11]
            length += (more << 7) - _MANY + 1 if more < _MANY else record_size
        size = len(path)
        # A record with policies has another tag behind the topic.
        if (
            first != _ENTRY_ID
            or second != _TOPIC
            or (end := end_of(record[length + 11 : length + 13])) is None
            or size >= _MANY
        ):
            append(None)
            continue
        etag = b"%x%b" % (entry_id, end)
        etag_size = len(etag)
        append(
            join(
                (
                    heads[record_size + size + etag_size + 4],
                    record,
                    _PATHS[size],
                    path.encode(),
                    _ETAGS[etag_size],
                    etag,
                    tail,
                )
            )
        )
    return parts


class _Heads(dict[int, bytes]):
    """Tags and lengths of all messages around an entry, by its length; each is made once."""

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
_TAILS: Final[dict[bytes, bytes]] = {}
_MOST: Final = 1 << 12


def _heads_for(tail: int) -> _Heads:
    if len(_HEADS) >= _MOST:
        _HEADS.clear()  # it also has lengths of policies that have changed since
    return _HEADS.setdefault(tail, _Heads(tail))


def _shared(tail: bytes) -> bytes:
    """Returns one object for equal short tails, which the processor's cache then holds once."""
    if len(tail) >= _MANY:
        return tail
    if len(_TAILS) >= _MOST:
        _TAILS.clear()
    return _TAILS.setdefault(tail, tail)


def _varint(number: int) -> bytes:
    made = bytearray()
    while number >= _MANY:
        made.append(number & 0x7F | _MANY)
        number >>= 7
    made.append(number)
    return bytes(made)
