"""What etcd's words mean. They are of its ``rpctypes/error.go``; gRPC's own were seen."""

import grpc
import pytest

from directory.store.base import StoreFull, StoreUnreachable
from directory.store.etcd.call_errors import (
    Compacted,
    EtcdRefused,
    FailureKind,
    FutureRevision,
    TooLarge,
    final_error,
    trouble_of,
)

Code = grpc.StatusCode


class Failure(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__()
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


@pytest.mark.parametrize(
    ("code", "arguments", "trouble"),
    [
        (
            Code.UNAVAILABLE,
            "failed to connect to all addresses; last error: …",
            FailureKind.UNREACHED,
        ),
        (Code.UNAVAILABLE, "etcdserver: no leader", FailureKind.UNREACHED),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests", FailureKind.UNREACHED),
        # A member that follows only: others take the call.
        (
            Code.FAILED_PRECONDITION,
            "etcdserver: rpc not supported for learner",
            FailureKind.UNREACHED,
        ),
        # A write that ended so may have been made, or may be made yet.
        (Code.UNAVAILABLE, "Socket closed", FailureKind.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: request timed out", FailureKind.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: leader changed", FailureKind.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: server stopped", FailureKind.UNKNOWN),
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", FailureKind.UNKNOWN),
        (Code.CANCELLED, "Channel closed due to fork", FailureKind.UNKNOWN),
        (Code.INTERNAL, "Received RST_STREAM with error code 2", FailureKind.UNKNOWN),
        (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", FailureKind.LOGIN),
        (Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", FailureKind.LOGIN),
        (Code.INVALID_ARGUMENT, "etcdserver: user name is empty", FailureKind.LOGIN),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", FailureKind.FINAL),
        (Code.INVALID_ARGUMENT, "etcdserver: request is too large", FailureKind.FINAL),
    ],
)
def test_who_may_be_asked_again(
    code: grpc.StatusCode, arguments: str, trouble: FailureKind
) -> None:
    assert trouble_of(Failure(code, arguments)) is trouble


@pytest.mark.parametrize(
    ("code", "arguments", "kind", "output"),
    [
        (
            Code.OUT_OF_RANGE,
            "etcdserver: mvcc: required revision has been compacted",
            Compacted,
            "compacted",
        ),
        (
            Code.OUT_OF_RANGE,
            "etcdserver: mvcc: required revision is a future revision",
            FutureRevision,
            "future",
        ),
        (
            Code.RESOURCE_EXHAUSTED,
            "etcdserver: mvcc: database space exceeded",
            StoreFull,
            "--quota-backend-bytes",
        ),
        (
            Code.RESOURCE_EXHAUSTED,
            "CLIENT: Received message larger than max (5 vs. 4)",
            TooLarge,
            "larger",
        ),
        (
            Code.PERMISSION_DENIED,
            "etcdserver: permission denied",
            EtcdRefused,
            "let user x do this",
        ),
        (Code.INVALID_ARGUMENT, "etcdserver: user name is empty", EtcdRefused, "wants a user"),
        (
            Code.INVALID_ARGUMENT,
            "etcdserver: authentication failed, invalid user ID or password",
            EtcdRefused,
            "does not know user x",
        ),
        (
            Code.INVALID_ARGUMENT,
            "etcdserver: too many operations",
            EtcdRefused,
            "too many operations",
        ),
    ],
)
def test_what_the_caller_is_shown(
    code: grpc.StatusCode, arguments: str, kind: type[Exception], output: str
) -> None:
    reported = final_error(Failure(code, arguments), "etcd://a/la", "user x")
    assert type(reported) is kind
    assert output in str(reported)


def test_a_full_store_and_a_refusal_are_kinds_of_a_store_that_is_away() -> None:
    """So that a loop that knows of neither goes on later."""
    assert issubclass(StoreFull, StoreUnreachable)
    assert issubclass(EtcdRefused, StoreUnreachable)
