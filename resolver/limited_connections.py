"""Servers that answer each connection in a thread, a limited number of them at a time."""

from __future__ import annotations

import threading
from socketserver import ThreadingMixIn
from typing import Any

__all__ = ["LimitedConnections"]


class LimitedConnections(ThreadingMixIn):
    """``ThreadingMixIn`` that closes a connection at once if ``connections`` has none left."""

    daemon_threads = True
    connections: threading.BoundedSemaphore

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers in a thread of the connection's own."""
        if not self.connections.acquire(blocking=False):
            self.shutdown_request(request)  # type: ignore[attr-defined] # of the server
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.connections.release()  # no thread could be started
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers, and closes the connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()
