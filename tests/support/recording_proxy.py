"""A TCP proxy on loopback that records the GOAWAY frames with an error, of either side."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.support.http2 import GOAWAY, PREFACE, Frame, frames_in
from tests.support.tcp import TcpServer

__all__ = ["RecordingProxy"]


class RecordingProxy(TcpServer):
    """Proxy to one port. ``sent_away`` holds each GOAWAY that names an error, of either side."""

    def __init__(self, port: int) -> None:
        self._forward_to = port
        self.sent_away: list[Frame] = []
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        """Forwards one connection, both ways."""
        server = socket.create_connection(("127.0.0.1", self._forward_to), timeout=20)
        server.settimeout(None)
        self.close_at_end(server)
        back = threading.Thread(target=self._pump, args=(server, connection, 0), daemon=True)
        back.start()
        self._pump(connection, server, len(PREFACE))

    def _pump(self, one: socket.socket, other: socket.socket, skipped: int) -> None:
        """Forwards one direction; ``skipped`` bytes at its beginning are no frame."""
        came = bytearray()
        with contextlib.suppress(OSError), other:
            while data := one.recv(65536):
                other.sendall(data)
                came += data
                if skipped:
                    gone = min(skipped, len(came))
                    del came[:gone]
                    skipped -= gone
                for frame in frames_in(came):
                    if frame.kind == GOAWAY and frame.error_code:
                        self.sent_away.append(frame)
