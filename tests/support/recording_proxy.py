"""A TCP proxy on loopback that reads along: who was sent away (GOAWAY) for what he did."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from tests.support.http2 import GOAWAY, PREFACE, Frame, frames_in

__all__ = ["RecordingProxy"]


class RecordingProxy:
    """To one port. ``sent_away`` holds each GOAWAY that names an error, of either side."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.sent_away: list[Frame] = []
        self._sockets: list[socket.socket] = [self._listener]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):  # it is closed already
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port), timeout=20)
            except OSError:
                return
            server.settimeout(None)
            self.connections += 1
            self._sockets += [client, server]
            for one, other, skipped in ((client, server, len(PREFACE)), (server, client, 0)):
                threading.Thread(target=self._pump, args=(one, other, skipped), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket, skipped: int) -> None:
        """``skipped``: bytes at the beginning that are no frame."""
        came = bytearray()
        try:
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
        except OSError:
            pass
        finally:
            other.close()
