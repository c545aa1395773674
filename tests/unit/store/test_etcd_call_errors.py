"""What etcd's words mean. They are of its ``rpctypes/error.go``; gRPC's own were seen."""

import grpc
import pytest

from directory.store.base import StoreAway, StoreFull
from directory.store.etcd.call_errors import (
    Compacted,
    FutureRevision,
    Refused,
    TooLarge,
    Trouble,
    final,
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
    ("code", "words", "trouble"),
    [
        (Code.UNAVAILABLE, "failed to connect to all addresses; last error: …", Trouble.UNREACHED),
        (Code.UNAVAILABLE, "etcdserver: no leader", Trouble.UNREACHED),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Trouble.UNREACHED),
        # A write that ended so may have been made, or may be made yet.
        (Code.UNAVAILABLE, "Socket closed", Trouble.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: request timed out", Trouble.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: leader changed", Trouble.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: server stopped", Trouble.UNKNOWN),
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", Trouble.UNKNOWN),
        (Code.CANCELLED, "Channel closed due to fork", Trouble.UNKNOWN),
        (Code.INTERNAL, "Received RST_STREAM with error code 2", Trouble.UNKNOWN),
        (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", Trouble.LOGIN),
        (Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", Trouble.LOGIN),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", Trouble.FINAL),
        (Code.INVALID_ARGUMENT, "etcdserver: request is too large", Trouble.FINAL),
    ],
)
def test_who_may_be_asked_again(code: grpc.StatusCode, words: str, trouble: Trouble) -> None:
    assert trouble_of(Failure(code, words)) is trouble


@pytest.mark.parametrize(
    ("code", "words", "kind", "said"),
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
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", Refused, "let user x do this"),
        (Code.INVALID_ARGUMENT, "etcdserver: user name is empty", Refused, "wants a user"),
        (
            Code.INVALID_ARGUMENT,
            "etcdserver: authentication failed, invalid user ID or password",
            Refused,
            "does not know user x",
        ),
        (Code.INVALID_ARGUMENT, "etcdserver: too many operations", Refused, "too many operations"),
    ],
)
def test_what_the_caller_is_told(
    code: grpc.StatusCode, words: str, kind: type[Exception], said: str
) -> None:
    told = final(Failure(code, words), "etcd://a/la", "user x")
    assert type(told) is kind
    assert said in str(told)


def test_a_full_store_and_a_refusal_are_kinds_of_a_store_that_is_away() -> None:
    """So that a loop that knows of neither goes on later."""
    assert issubclass(StoreFull, StoreAway)
    assert issubclass(Refused, StoreAway)
