"""The transport over gRPC: a call that meets its end is answered by a typed error."""

from __future__ import annotations

import pytest
from kdir.v1 import resolve_pb2

from resolver.errors import Cancelled
from resolver.transport import GrpcTransport, method


def test_a_call_whose_channel_is_closed_by_another_thread_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport = GrpcTransport()
    find = transport._callable

    def closed_meanwhile(*words: object) -> object:
        found = find(*words)  # type: ignore[arg-type] # handed on as it came
        transport.close()
        return found

    monkeypatch.setattr(transport, "_callable", closed_meanwhile)
    request = resolve_pb2.ResolveRequest(path="/a")
    with pytest.raises(Cancelled):
        transport.call("127.0.0.1:1", method("ResolveService.Resolve"), request, 1)
    with pytest.raises(RuntimeError, match="closed"):
        transport.call("127.0.0.1:1", method("ResolveService.Resolve"), request, 1)
