"""Binds handlers to gRPC methods; the one place where each call's layers stand in order.

For every call, from the outside in: a request that cannot be read is refused by name
(``malformed``), the server's cap is put on the deadline, errors become statuses (``errors``), and
the handler runs. Streams run on a thread pool of their own: a watch must not hold a thread that
answers calls (RELIABILITY finding 5, G3).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from directory.services.call import Call
from directory.services.interceptors.errors import abort_with
from directory.services.interceptors.malformed import Malformed, reader

__all__ = ["Service", "generic_handler"]

Request = TypeVar("Request", bound=Message)
Handler = Callable[[Any, Call], Any]
_REQUEST_ID = "x-request-id"


class Service(ABC):
    """A service's handlers by method name: ``unary(request, call) -> response or its bytes``, or
    for streams ``stream(request or iterator of requests, call) -> iterator of responses``.
    """

    descriptor: ServiceDescriptor

    @abstractmethod
    def handlers(self) -> Mapping[str, Handler]:
        """By method name, as in the contract. What is not there is UNIMPLEMENTED."""


def generic_handler(
    service: Service, call_seconds: float, streams: ThreadPoolExecutor
) -> grpc.GenericRpcHandler:
    """The gRPC face of a service."""
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for name, handler in service.handlers().items():
        method = service.descriptor.methods_by_name[name]
        read = reader(GetMessageClass(method.input_type))
        if method.server_streaming:
            behave = _stream(handler)
            behave.experimental_thread_pool = streams  # type: ignore[attr-defined]
            make = (
                grpc.stream_stream_rpc_method_handler
                if method.client_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            methods[name] = make(behave, read, _write)
        else:
            methods[name] = grpc.unary_unary_rpc_method_handler(
                _unary(handler, call_seconds), read, _write
            )
    return grpc.method_handlers_generic_handler(service.descriptor.full_name, methods)


def _write(response: Message | bytes) -> bytes:
    # A handler may give the bytes of its response where it has them already.
    return response if isinstance(response, bytes) else response.SerializeToString()


def _unary(handler: Handler, call_seconds: float) -> Callable[[Any, grpc.ServicerContext], Any]:
    def behave(request: Any, context: grpc.ServicerContext) -> Any:
        left = min(context.time_remaining(), call_seconds)
        call = Call(time.monotonic() + left, is_active=context.is_active)
        try:
            if type(request) is Malformed:
                raise request.error
            return handler(request, call)
        except Exception as error:  # noqa: BLE001 - whatever it is becomes a status
            abort_with(error, context, _request_id(context))

    return behave


def _stream(handler: Handler) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
    def behave(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        # A stream lives as long as both sides want it: no deadline of ours.
        call = Call(
            deadline=float("inf"),
            peer=context.peer(),
            is_active=context.is_active,
            on_end=context.add_callback,
            cancel=context.cancel,
        )
        try:
            if type(request) is Malformed:
                raise request.error
            yield from handler(request, call)
        except Exception as error:  # noqa: BLE001 - whatever it is becomes a status
            if context.is_active():
                abort_with(error, context, _request_id(context))

    return behave


def _request_id(context: grpc.ServicerContext) -> str:
    for key, value in context.invocation_metadata():
        if key == _REQUEST_ID:
            return str(value)[:64]
    return ""
