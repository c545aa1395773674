r"""How what a cluster inherits is kept in its store: in one row, or, where it is large, in parts.

A transaction of etcd holds 1.5 MiB, and a thousand grants on each directory above may be more. So
a large word is cut into parts, each in a row that is named by the hash of what it holds, put one by
one; the row of the word then names its parts, in one transaction that also removes those of the
word before. Until then nobody reads them, and a part of the same content stays as it is.

    f/inherited        time (8 bytes), then kdir.v1.Inherited; or a zero byte, how many parts (2
                       bytes), their hashes (16 bytes each) and an Inherited without levels
    f/handed/<hash>    a part: bytes of an Inherited that has only levels

Refuses to take a word with a part missing for one without it, and one of another mount than the
cluster's for what is inherited at its own. Who does not know parts finds a word
that it cannot read, since no message begins with a zero byte: not an empty one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from google.protobuf.message import DecodeError
from kdir.v1 import federation_pb2

from directory.federation.link_records import (
    check_plausible,
    decode_record,
    encode_record,
    split_record,
    try_decode_record,
)
from directory.namespace.keys import HANDED, INHERITED, PARENT
from directory.namespace.snapshot import Snapshot
from directory.store.base import Delete, Put, Write
from resolver.errors import LimitExceeded

__all__ = [
    "MOST_BYTES",
    "InheritedRecord",
    "as_transactions",
    "inherited_record_writes",
    "parent_of",
    "parse_head",
    "read_inherited",
    "refuse_oversized",
    "whole_inherited",
]

MOST_BYTES: Final = 16 * 1024 * 1024
"""Of what a cluster may inherit: some 150,000 grants."""
_PART_BYTES: Final = 256 * 1024
_PARTED: Final = 0
_HASH_BYTES: Final = 16
_COUNT_BYTES: Final = 2
_KEPT: Final = 8
"""Words whose message is remembered: each request of a child reads its own."""


@dataclass(frozen=True, slots=True, eq=False)
class InheritedRecord:
    """What a parent said, and when (unix ms). The message is everybody's: not to be changed."""

    message: federation_pb2.Inherited
    at_ms: int


def inherited_record_writes(
    snapshot: Snapshot, inherited: federation_pb2.Inherited, now_ms: int
) -> tuple[Write, ...]:
    """Returns what keeps a word; to be committed in ``as_transactions``.

    Raises:
        LimitExceeded: it is too large to be kept.
    """
    old = dict(snapshot.facts(HANDED))
    body = inherited.SerializeToString(deterministic=True)
    if len(body) <= _PART_BYTES:
        return (Put(INHERITED, encode_record(now_ms, body)), *map(Delete, old))
    refuse_oversized(inherited)
    levels = federation_pb2.Inherited(levels=inherited.levels).SerializeToString(deterministic=True)
    parts = [levels[at : at + _PART_BYTES] for at in range(0, len(levels), _PART_BYTES)]
    hashes = [blake2b(part, digest_size=_HASH_BYTES).digest() for part in parts]
    rest = federation_pb2.Inherited()
    rest.CopyFrom(inherited)
    rest.ClearField("levels")
    head = b"".join(
        (
            bytes([_PARTED]),
            len(parts).to_bytes(_COUNT_BYTES, "big"),
            *hashes,
            rest.SerializeToString(deterministic=True),
        )
    )
    new = {_part_key(name): part for name, part in zip(hashes, parts, strict=True)}
    return (
        *(Put(key, part) for key, part in new.items() if old.get(key) != part),
        Put(INHERITED, encode_record(now_ms, head)),
        *(Delete(key) for key in old if key not in new),
    )


def refuse_oversized(inherited: federation_pb2.Inherited) -> None:
    """Before a word is sent, and before it is kept.

    Raises:
        LimitExceeded: it is too large to be kept.
    """
    size = inherited.ByteSize()
    if size > MOST_BYTES:
        raise LimitExceeded(
            f"what the directories above hand down is {size:,} bytes; at most {MOST_BYTES:,} can "
            f"be kept: put fewer grants on them, or put them further down",
            limit=MOST_BYTES,
        )


def as_transactions(writes: Iterable[Write]) -> Iterator[tuple[Write, ...]]:
    """Yields the same as one transaction after the other: each part by itself, and the word at
    last.
    """
    rest: list[Write] = []
    for write in writes:
        if isinstance(write, Put) and write.key.startswith(HANDED):
            yield (write,)
        else:
            rest.append(write)
    if rest:
        yield tuple(rest)


def read_inherited(snapshot: Snapshot) -> InheritedRecord | None:
    """Returns what a parent said last; None: nothing, or it cannot be read. Of one word always the
    same.
    """
    try:
        return whole_inherited(snapshot)
    except ValueError:
        return None


def whole_inherited(snapshot: Snapshot) -> InheritedRecord | None:
    """Returns the same.

    Raises:
        ValueError: it cannot be read, or a part of it is not there; in one sentence.
    """
    value = snapshot.fact(INHERITED)
    if value is None:
        return None
    parts = []
    for name in parse_head(value):
        part = snapshot.fact(_part_key(name))
        if part is None:
            raise ValueError(f"its part {name.hex()} is missing")
        parts.append(part)
    record = _joined(value, tuple(parts))
    _refuse_other_mount(record.message, parent_of(snapshot))
    return record


def parent_of(snapshot: Snapshot) -> tuple[federation_pb2.Welcome, int] | None:
    """Returns where a parent mounted the cluster, and when it said so (unix ms); None: none did, or
    it cannot be read. The message is everybody's: not to be changed.
    """
    value = snapshot.fact(PARENT)
    return None if value is None else _welcome(value)


@lru_cache(_KEPT)
def _welcome(value: bytes) -> tuple[federation_pb2.Welcome, int] | None:
    return try_decode_record(federation_pb2.Welcome, value)


def _refuse_other_mount(
    inherited: federation_pb2.Inherited, parent: tuple[federation_pb2.Welcome, int] | None
) -> None:
    """Both are kept in one commit; not by servers of older versions, which share the store while a
    cluster is upgraded.
    """
    if parent is None or not inherited.mount:
        return
    at, epoch = parent[0].mount, parent[0].epoch
    if (inherited.mount, inherited.epoch) != (at, epoch):
        raise ValueError(
            f"it is of the mount at {inherited.mount}, epoch {inherited.epoch}, and the cluster "
            f"hangs at {at}, epoch {epoch}"
        )


def parse_head(value: bytes) -> tuple[bytes, ...]:
    """Returns the parts that a row of a word names; none where it holds all of it.

    Raises:
        ValueError: it cannot be read.
    """
    hashes, rest = _head(split_record(value)[1])
    if not hashes:
        decode_record(federation_pb2.Inherited, value)
    else:
        _message(rest)
    return hashes


@lru_cache(_KEPT)
def _joined(value: bytes, parts: tuple[bytes, ...]) -> InheritedRecord:
    at_ms, body = split_record(value)
    hashes, rest = _head(body)
    if not hashes:
        return InheritedRecord(*decode_record(federation_pb2.Inherited, value))
    for name, part in zip(hashes, parts, strict=True):
        if blake2b(part, digest_size=_HASH_BYTES).digest() != name:
            raise ValueError(f"its part {name.hex()} holds something else")
    # Protobuf joins messages whose bytes follow each other.
    return InheritedRecord(_message(b"".join((rest, *parts))), at_ms)


def _head(body: bytes) -> tuple[tuple[bytes, ...], bytes]:
    """Returns the parts that are named, and what follows."""
    if not body or body[0] != _PARTED:
        return (), body
    count = int.from_bytes(body[1 : 1 + _COUNT_BYTES], "big")
    begin = 1 + _COUNT_BYTES
    end = begin + count * _HASH_BYTES
    if not count or len(body) < end:
        raise ValueError("the names of its parts are cut off")
    return tuple(body[at : at + _HASH_BYTES] for at in range(begin, end, _HASH_BYTES)), body[end:]


def _message(body: bytes) -> federation_pb2.Inherited:
    try:
        message = federation_pb2.Inherited.FromString(body)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    check_plausible(message)
    return message


def _part_key(name: bytes) -> bytes:
    return HANDED + name.hex().encode()
