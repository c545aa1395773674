"""Converts errors to gRPC statuses and outcomes, and back.

One error is one status with exactly one ``google.rpc.ErrorInfo`` (AIP-193) in
``grpc-status-details-bin``: domain ``kdir``, the reason, and the facts as metadata. A status
without ErrorInfo comes from a proxy or gRPC itself, not from a directory server; so it never
becomes an owner's answer: NOT_FOUND without ErrorInfo is *not* absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import grpc

from resolver import errors
from resolver.errors import DOMAIN, KdirError
from resolver.handshake_errors import unreachable_error
from resolver.printable import printable

if TYPE_CHECKING:
    from kdir.v1 import resolve_pb2

__all__ = ["DETAILS_KEY", "from_outcome", "from_rpc_error", "to_outcome", "to_status"]

DETAILS_KEY: Final = "grpc-status-details-bin"
"""Trailing metadata that holds a serialised ``google.rpc.Status``."""

ATTEMPTS: Final = "attempts"
"""Key in the ErrorInfo metadata: the queries that the answering server made, one line each."""

# HTTP/2 peers commonly refuse more than 8 KiB of headers in all, and then the reason is lost.
# Details are sent as base64, so that 5,000 bytes become 6,667.
_MAX_MESSAGE: Final = 1024
_MAX_FACT: Final = 512
_MAX_FACTS: Final = 3000
_MAX_RECEIVED: Final = 4096

_WITHOUT_REASON: Final[Mapping[grpc.StatusCode, type[KdirError]]] = {
    grpc.StatusCode.ABORTED: errors.Conflict,
    grpc.StatusCode.ALREADY_EXISTS: errors.Conflict,
    grpc.StatusCode.CANCELLED: errors.Cancelled,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    grpc.StatusCode.FAILED_PRECONDITION: errors.Conflict,
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidArgument,
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidArgument,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDenied,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.LimitExceeded,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.UNAVAILABLE: errors.Unreachable,
    grpc.StatusCode.UNIMPLEMENTED: errors.Unimplemented,
}

_GENERIC: Final[Mapping[str, type[KdirError]]] = {
    # An unknown reason, of a newer version, becomes the base class of its gRPC code. NOT_FOUND is
    # not here: only the reason ABSENT means absent.
    **{code.name: kind for code, kind in _WITHOUT_REASON.items()},
    "UNAVAILABLE": errors.Unavailable,
}


def to_status(
    error: BaseException, request_id: str = ""
) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Returns the code, message and trailing metadata of an error.

    Any error but a ``KdirError`` becomes INTERNAL with the request id and no other detail, so that
    nothing of a store or a stack leaks. Long facts are cut, so that the whole is within the header
    limits of HTTP/2 peers.
    """
    from google.protobuf import any_pb2
    from google.rpc import error_details_pb2, status_pb2

    if not isinstance(error, KdirError):
        error = errors.Internal("internal error; the request id finds it in the server's log")
    facts = _facts(error)
    if request_id:
        # REQUEST_ID_REUSED already has the id that the request was sent with.
        facts.setdefault("request_id", request_id)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=facts)
    detail = any_pb2.Any()
    detail.Pack(info)
    code = grpc.StatusCode[error.code]
    message = _cut(error.message, _MAX_MESSAGE)
    status = status_pb2.Status(code=code.value[0], message=message, details=[detail])
    return code, message, ((DETAILS_KEY, status.SerializeToString()),)


def from_rpc_error(rpc_error: grpc.RpcError, *, secure: bool | None = None) -> KdirError:
    """Returns the error of a failed call; never raises. ``secure``: whether the call used TLS, to
    explain a failed connection.
    """
    code = _code_of(rpc_error)
    info = _error_info(rpc_error)
    details = getattr(rpc_error, "details", None)
    message = (details() if callable(details) else None) or code.name
    if info is None:
        kind = _WITHOUT_REASON.get(code, errors.Internal)
        text, facts = _clean(_without_preamble(message)), {"code": code.name}
        if kind is errors.Unreachable:
            known = secure if message.startswith(_CONNECTING) else None
            return unreachable_error(text, facts, secure=known)
        if code is grpc.StatusCode.CANCELLED and text in _CANCELLED_BY_PEER:
            return errors.Unreachable("the server ended the call: is it stopping?", metadata=facts)
        if code is grpc.StatusCode.INTERNAL and text == _UNREADABLE:
            return errors.Unreachable(
                "the answer cannot be read: is it a directory server?", metadata=facts
            )
        return kind(text, metadata=facts)
    return _rebuilt(info[0], code.name, message, info[1])


# If this side cancels, gRPC's text has the cause ("Locally cancelled by application!", "Channel
# closed!"). If a server stops during a call, the text is sometimes only the code.
_CANCELLED_BY_PEER: Final = frozenset({"", "CANCELLED"})
_UNREADABLE: Final = "Exception deserializing response!"
"""Text of gRPC on this side for an answer that is not the method's response message."""
_CONNECTING: Final = "failed to connect to all addresses"


def _without_preamble(message: str) -> str:
    """Returns gRPC's text for an unreachable server without the constant parts.

    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7420: Failed to connect
    to remote host: Connection refused" becomes "ipv4:127.0.0.1:7420: Connection refused".
    """
    message = re.sub(r"^failed to connect to all addresses; last error: [A-Z_]+: ", "", message)
    return message.replace(": Failed to connect to remote host: ", ": ")


def to_outcome(error: KdirError) -> resolve_pb2.ErrorOutcome:
    """Returns an error as one path's outcome."""
    from kdir.v1 import error_pb2, resolve_pb2

    name = f"ERROR_REASON_{error.reason}"
    if name not in error_pb2.ErrorReason.DESCRIPTOR.values_by_name:
        # A base class (such as Conflict, of a status without ErrorInfo) has no reason in the
        # contract.
        name = "ERROR_REASON_INTERNAL"
    return resolve_pb2.ErrorOutcome(
        reason=name,
        message=_cut(error.message, _MAX_MESSAGE),
        metadata=_facts(error),
    )


def from_outcome(outcome: resolve_pb2.ErrorOutcome) -> KdirError:
    """Returns the error of an outcome; never raises."""
    from kdir.v1 import error_pb2

    try:
        reason = error_pb2.ErrorReason.Name(outcome.reason).removeprefix("ERROR_REASON_")
    except ValueError:  # a reason of a newer version
        reason = f"REASON_{outcome.reason}"
    return _rebuilt(reason, "", outcome.message, dict(outcome.metadata))


def _rebuilt(reason: str, code: str, message: str, facts: dict[str, str]) -> KdirError:
    attempts = tuple(_clean(line) for line in facts.pop(ATTEMPTS, "").split("\n") if line)
    facts = {_clean(key): _clean(value) for key, value in facts.items()}
    message = _clean(message)
    kind = errors.by_reason(reason)
    if kind is KdirError:
        kind = _GENERIC.get(code, errors.Internal)
        facts.setdefault("reason", reason)
    return kind(message, attempts=attempts, metadata=facts)


def _facts(error: KdirError) -> dict[str, str]:
    facts: dict[str, str] = {}
    left = _MAX_FACTS
    for key, value in error.metadata.items():
        text = _cut(value, _MAX_FACT)
        left -= len(key) + len(text)
        if left < 0:
            break
        facts[key] = text
    lines: list[str] = []
    for line in error.attempts:
        left -= len(line) + 1
        if left < 0:
            break
        lines.append(line)
    if lines:
        facts[ATTEMPTS] = "\n".join(lines)
    return facts


def _cut(text: str, most: int) -> str:
    # Unpaired surrogates come from undecodable input; they cannot be encoded as UTF-8.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= most else text[: most - 1] + "…"


def _clean(text: str) -> str:
    """Returns text from a server as it is shown to people: printable and of limited length."""
    text = text if len(text) <= _MAX_RECEIVED else text[: _MAX_RECEIVED - 1] + "…"
    return printable(text)


def _code_of(rpc_error: grpc.RpcError) -> grpc.StatusCode:
    code = getattr(rpc_error, "code", None)
    found = code() if callable(code) else None
    return found if isinstance(found, grpc.StatusCode) else grpc.StatusCode.UNKNOWN


def _error_info(rpc_error: grpc.RpcError) -> tuple[str, dict[str, str]] | None:
    from google.protobuf.message import DecodeError
    from google.rpc import error_details_pb2, status_pb2

    trailing = getattr(rpc_error, "trailing_metadata", None)
    for key, value in (trailing() if callable(trailing) else None) or ():
        if key != DETAILS_KEY:
            continue
        try:
            status = status_pb2.Status.FromString(value)
            for detail in status.details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info) and info.domain == DOMAIN:
                    return info.reason, dict(info.metadata)
        except DecodeError:
            return None
    return None
