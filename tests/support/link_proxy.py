"""A proxy between a child and its parent, which forwards their link message by message."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import grpc
from kdir.v1 import federation_pb2, federation_pb2_grpc

__all__ = ["LinkProxy"]

Change = Callable[[federation_pb2.LinkResponse], federation_pb2.LinkResponse | None]


def _as_it_is(response: federation_pb2.LinkResponse) -> federation_pb2.LinkResponse | None:
    return response


class LinkProxy(federation_pb2_grpc.FederationServiceServicer):
    """Proxy of the parent at an address. Its child has no other address of the parent."""

    def __init__(self, parent: str) -> None:
        self._parent = parent
        self._server = grpc.server(ThreadPoolExecutor(8))
        federation_pb2_grpc.add_FederationServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self.cut_before: set[str] = set()
        """Kinds of messages before which the proxy cuts the link; then it refuses new links."""
        self.change: Change = _as_it_is
        """Function that returns what is sent for each message; None: nothing."""
        self.sent: list[federation_pb2.LinkResponse] = []
        """All that was forwarded down."""
        self.cut = threading.Event()

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait(10)

    def mend(self) -> None:
        """Lets links and all kinds of messages through again."""
        self.cut_before.clear()
        self.cut.clear()

    def Link(
        self, requests: Iterator[federation_pb2.LinkRequest], context: grpc.ServicerContext
    ) -> Iterator[federation_pb2.LinkResponse]:
        if self.cut.is_set():
            context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
        with grpc.insecure_channel(self._parent) as channel:
            call = federation_pb2_grpc.FederationServiceStub(channel).Link(requests)
            context.add_callback(call.cancel)  # type: ignore[arg-type]
            try:
                yield from self._forward(call, context)
            except grpc.RpcError as error:
                context.set_trailing_metadata(tuple(error.trailing_metadata() or ()))  # type: ignore[arg-type]
                context.abort(error.code(), error.details() or "")

    def _forward(
        self, call: Iterator[federation_pb2.LinkResponse], context: grpc.ServicerContext
    ) -> Iterator[federation_pb2.LinkResponse]:
        for response in call:
            kind = response.WhichOneof("kind")
            if kind in ("welcome", "remounted"):
                getattr(response, kind).parent_endpoints[:] = [self.address]
            if kind in self.cut_before:
                self.cut.set()
                context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
            changed = self.change(response)
            if changed is not None:
                self.sent.append(changed)
                yield changed

    def ListMounts(  # pragma: no cover - nobody asks
        self, request: federation_pb2.ListMountsRequest, context: grpc.ServicerContext
    ) -> federation_pb2.ListMountsResponse:
        return federation_pb2.ListMountsResponse()
