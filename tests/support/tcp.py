"""A TCP server on loopback, one thread a connection, for servers of tests that are not gRPC."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

__all__ = ["TcpServer"]


class TcpServer:
    """Server on a free port, from its making until the end of its block.

    A subclass overrides ``serve``; without that it accepts connections and sends nothing.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.connections = 0
        self.ended = threading.Event()
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        """Serves one connection, in a thread of its own. An OSError ends it."""

    def close_at_end(self, other: socket.socket) -> None:
        """Closes one more socket at the end of the block."""
        self._sockets.append(other)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self.close_at_end(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self.serve(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for one in self._sockets:
            with contextlib.suppress(OSError):  # it is closed already
                one.shutdown(socket.SHUT_RDWR)
            one.close()
