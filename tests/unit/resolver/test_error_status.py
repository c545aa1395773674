"""Every error survives the way through a real gRPC call, and nothing else can pass for one."""

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import closing
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st
from kdir.v1 import error_pb2, resolve_pb2

from resolver import error_status, errors
from resolver.errors import KdirError
from resolver.transport import GrpcTransport, method


def kinds(root: type[KdirError]) -> Iterator[type[KdirError]]:
    for child in root.__subclasses__():
        yield child
        yield from kinds(child)


Raise = Callable[[BaseException], grpc.RpcError]


class Failed(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str, trailing: Any = ()) -> None:
        self._all = (code, details, trailing)

    def code(self) -> grpc.StatusCode:
        return self._all[0]

    def details(self) -> str:
        return self._all[1]

    def trailing_metadata(self) -> Any:
        return self._all[2]


@pytest.fixture(scope="module")
def raised() -> Iterator[Raise]:
    """Calls a real server whose only method raises what it is given."""
    box: list[BaseException] = []

    def fail(request: bytes, context: grpc.ServicerContext) -> bytes:
        code, message, trailing = error_status.to_status(box[0], "req-1")
        context.set_trailing_metadata(trailing)
        context.abort(code, message)

    server = grpc.server(futures.ThreadPoolExecutor(1))
    handlers: dict[str, Any] = {"Fail": grpc.unary_unary_rpc_method_handler(fail)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary("/t.T/Fail")

        def ask(error: BaseException) -> grpc.RpcError:
            box[:] = [error]
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", timeout=20)
            return caught.value

        yield ask
    server.stop(0)


def test_every_error_of_the_tree_comes_back_as_itself(raised: Raise) -> None:
    for kind in {k for k in kinds(KdirError) if errors.by_reason(k.reason) is k}:
        sent = kind("what happened: é…", attempts=["a:1 no answer", "b:2 lame"], path="/la/é")
        rpc_error = raised(sent)
        got = error_status.from_rpc_error(rpc_error)
        assert type(got) is kind
        assert rpc_error.code() is grpc.StatusCode[kind.code]
        assert got.message == sent.message
        assert got.attempts == sent.attempts
        assert got.metadata == {"path": "/la/é", "request_id": "req-1"}


def test_there_is_exactly_one_error_info(raised: Raise) -> None:
    rpc_error = raised(errors.Absent("/la/x: absent", path="/la/x"))
    trailing: Any = rpc_error.trailing_metadata()
    (value,) = [value for key, value in trailing if key == error_status.DETAILS_KEY]
    (detail,) = status_pb2.Status.FromString(value).details
    info = error_details_pb2.ErrorInfo()
    assert detail.Unpack(info)
    assert (info.domain, info.reason) == ("kdir", "ABSENT")


def test_a_bug_leaks_nothing(raised: Raise) -> None:
    got = error_status.from_rpc_error(raised(RuntimeError("sqlite:///secret/place")))
    assert type(got) is errors.Internal
    assert "secret" not in str(got)
    assert got.metadata["request_id"] == "req-1"


def test_a_huge_error_still_arrives_with_its_reason(raised: Raise) -> None:
    sent = errors.ReferralLoop(
        "x" * 100_000,
        attempts=["y" * 100] * 500,
        metadata={f"k{i}": "z" * 9000 for i in range(50)},
    )
    got = error_status.from_rpc_error(raised(sent))
    assert type(got) is errors.ReferralLoop
    assert got.message.endswith("…")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Unreachable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (grpc.StatusCode.UNIMPLEMENTED, errors.Unimplemented),
        (grpc.StatusCode.PERMISSION_DENIED, errors.PermissionDenied),
        (grpc.StatusCode.NOT_FOUND, errors.Internal),
        (grpc.StatusCode.UNKNOWN, errors.Internal),
    ],
)
def test_without_error_info_the_code_decides_and_never_says_absent(
    code: grpc.StatusCode, kind: type[KdirError]
) -> None:
    assert type(error_status.from_rpc_error(Failed(code, "said a proxy"))) is kind


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("", errors.Unreachable),  # by the server, which stops
        ("CANCELLED", errors.Unreachable),
        ("Locally cancelled by application!", errors.Cancelled),
        ("Channel closed!", errors.Cancelled),
    ],
)
def test_who_cancelled_decides_whether_another_server_is_asked(
    output: str, kind: type[KdirError]
) -> None:
    assert type(error_status.from_rpc_error(Failed(grpc.StatusCode.CANCELLED, output))) is kind


def test_an_answer_that_is_no_message_is_that_of_no_directory_server() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    garbage: Any = grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"\xff" * 20)
    handlers: dict[str, Any] = {"Resolve": garbage}
    service = grpc.method_handlers_generic_handler("kdir.v1.ResolveService", handlers)
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    request = resolve_pb2.ResolveRequest(path="/la")
    with closing(GrpcTransport()) as transport, pytest.raises(errors.Unreachable) as caught:
        transport.call(f"127.0.0.1:{port}", method("ResolveService.Resolve"), request, 10.0)
    server.stop(None)
    assert caught.value.message == "the answer cannot be read: is it a directory server?"


def test_every_code_gives_a_typed_error() -> None:
    for code in grpc.StatusCode:
        assert isinstance(error_status.from_rpc_error(Failed(code, "")), KdirError)
    assert type(error_status.from_rpc_error(grpc.RpcError())) is errors.Internal


def test_a_reason_of_a_newer_version_keeps_its_family() -> None:
    code, _, trailing = error_status.to_status(errors.NotReady("wait"))
    parsed = status_pb2.Status.FromString(trailing[0][1])
    info = error_details_pb2.ErrorInfo(reason="BUSY_IN_2030", domain="kdir")
    parsed.details[0].Pack(info)
    newer = ((error_status.DETAILS_KEY, parsed.SerializeToString()),)
    got = error_status.from_rpc_error(Failed(code, "wait", newer))
    assert type(got) is errors.Unavailable
    assert got.metadata["reason"] == "BUSY_IN_2030"


@given(st.binary(max_size=200))
def test_details_that_are_no_status_are_ignored(noise: bytes) -> None:
    broken = Failed(grpc.StatusCode.UNAVAILABLE, "x", ((error_status.DETAILS_KEY, noise),))
    assert type(error_status.from_rpc_error(broken)) is errors.Unreachable


def test_another_domain_is_not_ours() -> None:
    status_of_others = status_pb2.Status(code=5)
    status_of_others.details.add().Pack(
        error_details_pb2.ErrorInfo(reason="ABSENT", domain="example.com")
    )
    trailing = ((error_status.DETAILS_KEY, status_of_others.SerializeToString()),)
    got = error_status.from_rpc_error(Failed(grpc.StatusCode.NOT_FOUND, "?", trailing))
    assert not isinstance(got, errors.Absent)


def test_every_reason_is_an_outcome_too() -> None:
    values = error_pb2.ErrorReason.DESCRIPTOR.values_by_name
    named = {name.removeprefix("ERROR_REASON_") for name in values}
    for reason in named - {"UNSPECIFIED"}:
        kind = errors.by_reason(reason)
        sent = kind("m", attempts=["one"], path="/x")
        got = error_status.from_outcome(error_status.to_outcome(sent))
        assert (type(got), got.message, got.attempts) == (kind, "m", ("one",))
        assert got.metadata == {"path": "/x"}


def test_a_server_that_is_not_there_is_reported_in_short() -> None:
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        call: Any = channel.unary_unary("/t.T/Fail")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=10)
    error = error_status.from_rpc_error(caught.value)
    assert isinstance(error, errors.Unreachable)
    assert error.message == "ipv4:127.0.0.1:1: Connection refused"


def test_what_a_hostile_server_says_is_no_command_to_a_terminal() -> None:
    hostile = Failed(grpc.StatusCode.UNAVAILABLE, "\x1b[2Jgone\r\n" + "x" * 10_000)
    got = error_status.from_rpc_error(hostile)
    assert "\x1b" not in got.message
    assert "\r" not in got.message
    assert len(got.message) < 5000
    outcome = error_status.to_outcome(errors.Unreachable("\x1b[31m", path="\x07"))
    assert "\x1b" not in str(error_status.from_outcome(outcome))
    assert "\x07" not in error_status.from_outcome(outcome).metadata["path"]
