"""A parent over real gRPC that sends its child what a test wants, for tests of the link."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import grpc
from kdir.v1 import federation_pb2, federation_pb2_grpc

from deploy.local.ports import LOOPBACK

__all__ = ["HEARTBEAT", "ScriptedParent"]

HEARTBEAT = federation_pb2.LinkResponse(heartbeat=federation_pb2.Heartbeat())


class ScriptedParent(federation_pb2_grpc.FederationServiceServicer):
    """A parent that sends what ``send`` yields, which a test defines."""

    def __init__(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(4))
        federation_pb2_grpc.add_FederationServiceServicer_to_server(self, self._server)
        self.address = f"{LOOPBACK}:{self._server.add_insecure_port(f'{LOOPBACK}:0')}"
        self.links = 0
        """How often a child has linked."""
        self.ended = threading.Event()

    def send(
        self, requests: Iterator[federation_pb2.LinkRequest]
    ) -> Iterator[federation_pb2.LinkResponse]:
        """Yields what is sent on one link, after its hello; the link ends with it."""
        raise NotImplementedError

    def Link(
        self, requests: Iterator[federation_pb2.LinkRequest], context: grpc.ServicerContext
    ) -> Iterator[federation_pb2.LinkResponse]:
        next(requests)
        self.links += 1
        for response in self.send(requests):
            if self.ended.is_set() or not context.is_active():
                return
            yield response

    def ListMounts(  # pragma: no cover - nobody asks
        self, request: federation_pb2.ListMountsRequest, context: grpc.ServicerContext
    ) -> federation_pb2.ListMountsResponse:
        return federation_pb2.ListMountsResponse()

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.stop(0)
