"""Servers that answer each connection in a thread, a limited number of them at a time."""

from __future__ import annotations

import threading
from socketserver import ThreadingMixIn
from typing import Any

__all__ = ["LimitedConnections"]


class LimitedConnections(ThreadingMixIn):
    """``ThreadingMixIn`` that closes a new connection at once if the semaphore ``connections`` is
    at 0.
    """

    daemon_threads = True
    connections: threading.BoundedSemaphore

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread that answers the connection."""
        if not self.connections.acquire(blocking=False):
            self.shutdown_request(request)  # type: ignore[attr-defined] # of the server
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.connections.release()  # no thread could be started
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers the connection, then closes it."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()
