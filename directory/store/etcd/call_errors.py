"""Tells what a failed call to etcd means: by whom it may be tried again, and whether it may have
had an effect; refuses to try.

etcd says most of it by gRPC code, and the rest only in words (its
``api/v3rpc/rpctypes/error.go``), which clients are meant to compare.
"""

from __future__ import annotations

import enum
from typing import Final

import grpc

from directory.store.base import StoreAway, StoreFull

__all__ = [
    "Compacted",
    "FutureRevision",
    "Refused",
    "TooLarge",
    "Trouble",
    "Unsent",
    "final",
    "trouble_of",
    "words",
]


class Refused(StoreAway):
    """etcd answered, and will not do it however often it is asked: no right, a wrong password, a
    request that it does not take. Nothing was written.
    """


class Compacted(Exception):
    """The asked revision is no longer kept."""


class FutureRevision(Exception):
    """The asked revision was not reached yet."""


class TooLarge(Exception):
    """The answer is larger than what is taken: ask for less."""


class Unsent(Exception):
    """The call was not made."""


class Trouble(enum.Enum):
    """What is to be done about a failed call."""

    UNREACHED = enum.auto()
    """The member was not reached, or did nothing: any call may be made again, elsewhere."""
    UNKNOWN = enum.auto()
    """Whether it had an effect is not known; a read may be made again, elsewhere."""
    LOGIN = enum.auto()
    """The token is not known there; nothing was done. Again, with a new one."""
    FINAL = enum.auto()
    """See ``final``."""


_UNREACHED: Final = (
    "failed to connect to all addresses",  # gRPC's: no connection, so nothing was sent
    "etcdserver: no leader",  # told before anything is proposed, to who requires a leader
    "etcdserver: too many requests",
    "etcdserver: server is not ready",
    "etcdserver: not capable",
)
_LOGIN: Final = ("invalid auth token", "revision of auth store is old")
_ELSEWHERE: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.DATA_LOSS,
    }
)


def words(error: grpc.RpcError) -> str:
    """What was said, in one line."""
    return " ".join(str(error.details() or error.code().name).split())[:300]


def trouble_of(error: grpc.RpcError) -> Trouble:
    """What to do about it."""
    said = words(error)
    if any(part in said for part in _UNREACHED):
        return Trouble.UNREACHED
    if any(part in said for part in _LOGIN):
        return Trouble.LOGIN
    return Trouble.UNKNOWN if error.code() in _ELSEWHERE else Trouble.FINAL


def final(error: grpc.RpcError, store: str, who: str) -> Exception:
    """What a ``FINAL`` one is to the caller."""
    said = words(error)
    match error.code():
        case grpc.StatusCode.OUT_OF_RANGE if "compacted" in said:
            return Compacted(said)
        case grpc.StatusCode.OUT_OF_RANGE:
            return FutureRevision(said)
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "database space exceeded" in said:
            return StoreFull(
                f"{store}: etcd's database is full, so it takes no writes: compact and defragment"
                " it, or raise --quota-backend-bytes; then disarm its alarm"
            )
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in said:
            return TooLarge(said)
        case grpc.StatusCode.PERMISSION_DENIED:
            return Refused(
                f"{store}: etcd does not let {who} do this: its role needs readwrite on all keys"
                " that begin with the prefix and a slash"
            )
        case _ if "user name is empty" in said:
            return Refused(f"{store}: etcd wants a user: etcd://USER@…?password_file=FILE")
        case _ if "authentication failed" in said:
            return Refused(f"{store}: etcd does not know {who} with this password")
        case _:
            return Refused(f"{store}: {said}")
