"""Classifies failed calls to etcd: whether they may be repeated, where, and whether they may have
taken effect.

etcd reports most errors by gRPC code, and the rest only as text (its
``api/v3rpc/rpctypes/error.go``), which clients are expected to compare.
"""

from __future__ import annotations

import enum
from typing import Final

import grpc

from directory.store.base import StoreFull, StoreRefused

__all__ = [
    "Compacted",
    "EtcdRefused",
    "FailureKind",
    "FutureRevision",
    "TooLarge",
    "Unsent",
    "error_text",
    "final_error",
    "is_login_error",
    "trouble_of",
]


class EtcdRefused(StoreRefused):
    """Error: etcd refuses the request however often it is repeated: no right, a wrong password, an
    invalid request. Nothing was written.
    """


class Compacted(Exception):
    """Error: the requested revision is no longer kept."""


class FutureRevision(Exception):
    """Error: the requested revision was not reached yet."""


class TooLarge(Exception):
    """Error: the response is larger than the limit: request less."""


class Unsent(Exception):
    """Error: the call was not sent."""


class FailureKind(enum.Enum):
    """Kind of a failed call, by what its caller does next."""

    UNREACHED = enum.auto()
    """The member was not reached, or did nothing: any call may be repeated, at another member."""
    UNKNOWN = enum.auto()
    """The effect is unknown; a read may be repeated, at another member."""
    LOGIN = enum.auto()
    """The token is unknown to etcd and nothing was done: repeat with a new one."""
    FINAL = enum.auto()
    """Repeating the call does not help; ``final_error`` returns the error to raise."""


_UNREACHED: Final = (
    "failed to connect to all addresses",  # gRPC's: no connection, so nothing was sent
    "etcdserver: no leader",  # sent before anything is proposed, to a caller that requires a leader
    "etcdserver: too many requests",
    "etcdserver: server is not ready",
    "etcdserver: not capable",
    "etcdserver: rpc not supported for learner",
)
_LOGIN: Final = ("invalid auth token", "revision of auth store is old", "user name is empty")
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


def error_text(error: grpc.RpcError) -> str:
    """Returns the message of an error, on one line."""
    return " ".join(str(error.details() or error.code().name).split())[:300]


def is_login_error(message: str) -> bool:
    """True if etcd does not accept the token, or not any more: log in again."""
    return any(part in message for part in _LOGIN)


def trouble_of(error: grpc.RpcError) -> FailureKind:
    """Returns the kind of a failed call."""
    message = error_text(error)
    if any(part in message for part in _UNREACHED):
        return FailureKind.UNREACHED
    if is_login_error(message):
        return FailureKind.LOGIN
    return FailureKind.UNKNOWN if error.code() in _ELSEWHERE else FailureKind.FINAL


def final_error(error: grpc.RpcError, store: str, who: str) -> Exception:
    """Returns the error to raise for a ``FINAL`` failure."""
    message = error_text(error)
    match error.code():
        case grpc.StatusCode.OUT_OF_RANGE if "compacted" in message:
            return Compacted(message)
        case grpc.StatusCode.OUT_OF_RANGE:
            return FutureRevision(message)
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "database space exceeded" in message:
            return StoreFull(
                f"{store}: etcd's database is full, so it takes no writes: compact and defragment"
                " it, or raise --quota-backend-bytes; then disarm its alarm"
            )
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in message:
            return TooLarge(message)
        case grpc.StatusCode.PERMISSION_DENIED:
            return EtcdRefused(
                f"{store}: etcd does not let {who} do this: its role needs readwrite on all keys"
                " that begin with the prefix and a slash"
            )
        case _ if "user name is empty" in message:
            return EtcdRefused(f"{store}: etcd wants a user: etcd://USER@…?password_file=FILE")
        case _ if "authentication failed" in message:
            return EtcdRefused(f"{store}: etcd does not know {who} with this password")
        case _:
            return EtcdRefused(f"{store}: {message}")
