"""Malformed requests: refused with an error that names the field, instead of a stack trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from directory.api.rpc.interceptors.request_bounds import RequestBounds
from directory.api.rpc.method_rights import RequestSize
from resolver.errors import InvalidArgument, InvalidPath, KdirError

__all__ = ["MalformedRequest", "lenient_deserializer", "missing_request"]

M = TypeVar("M", bound=Message)


class MalformedRequest:
    """Placeholder for a request that cannot be parsed, with its error."""

    __slots__ = ("error",)

    def __init__(self, error: KdirError) -> None:
        self.error = error


def missing_request() -> MalformedRequest:
    """Returns the placeholder for the request of a caller that sent none."""
    return MalformedRequest(InvalidArgument("the call came without a request"))


def lenient_deserializer(
    kind: type[M],
    bounds: RequestBounds,
    size: RequestSize = RequestSize.MESSAGE,
) -> Callable[[bytes], M | MalformedRequest]:
    """Returns a request deserializer for gRPC that never raises.

    ``bounds``: limits of a request; one with more bytes than ``size`` allows is not parsed.
    """
    parse = kind.FromString
    small_bytes = bounds.small_bytes(size)

    def read(raw: bytes) -> M | MalformedRequest:
        is_small = len(raw) <= small_bytes
        if not is_small and (large := bounds.size_refusal(len(raw), size)) is not None:
            return MalformedRequest(large)
        try:
            request = parse(raw)
        except DecodeError:
            return MalformedRequest(_explain(kind, raw))
        over = None if is_small else bounds.refusal(request)
        return request if over is None else MalformedRequest(over)

    return read


def _explain(kind: type[Message], raw: bytes) -> KdirError:
    """Returns the error for bytes that protobuf cannot parse. It names the text field that is not
    UTF-8, which protobuf's own error does not.
    """
    try:
        unknown = UnknownFieldSet(Empty.FromString(raw))
    except DecodeError:
        return InvalidArgument(
            f"not a {kind.DESCRIPTOR.full_name}: the bytes cannot be read at all"
        )
    for one in map(unknown.__getitem__, range(len(unknown))):
        described = kind.DESCRIPTOR.fields_by_number.get(one.field_number)
        if described is None or described.type != described.TYPE_STRING:
            continue
        try:
            one.data.decode("utf-8")
        except UnicodeDecodeError as error:
            before = one.data[: error.start]
            place = f"byte {error.start} is 0x{one.data[error.start]:02x}, which is no UTF-8"
            if "path" in described.name:
                return InvalidPath(
                    f"invalid path: segment {before.count(b'/')}: {place}",
                    position=before.count(b"/"),
                    rule="utf-8",
                )
            return InvalidArgument(f"{described.name}: {place}", field=described.name)
        except AttributeError:
            continue
    return InvalidArgument(f"not a {kind.DESCRIPTOR.full_name}: a text in it is no UTF-8")
