"""HTTP/2 frames by hand over a socket, for what no gRPC client would do (RFC 9113, RFC 7541)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

__all__ = ["Frame", "Raw", "begin_frame", "frame", "frames_in"]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
ACK: Final = 1
_MOST_DATA: Final = 16_384
"""Bytes of one frame, unless its receiver's settings say more (RFC 9113, 4.2)."""
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE: Final = 4
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
ENHANCE_YOUR_CALM: Final = 11


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as it came."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def ends_stream(self) -> bool:
        """Whether it is the last of its stream."""
        return self.kind in {DATA, HEADERS} and bool(self.flags & END_STREAM)

    @property
    def error_code(self) -> int:
        """The error code of a GOAWAY."""
        (code,) = struct.unpack(">I", self.payload[4:8])
        return int(code)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def frames_in(data: bytearray) -> Iterator[Frame]:
    """Yields the complete frames at the beginning of ``data``, and removes them from it."""
    while len(data) >= 9:
        size = int.from_bytes(data[:3], "big")
        if len(data) < 9 + size:
            return
        kind, flags, stream = struct.unpack(">BBI", data[3:9])
        payload = bytes(data[9 : 9 + size])
        del data[: 9 + size]
        yield Frame(kind, flags, stream, payload)


def serve_headers(method: str) -> bytes:
    """Returns the headers of a gRPC call, each a literal that no table has to know (RFC 7541,
    6.2.2).
    """
    fields = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    )
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields
    )


def begin_frame(stream: int, method: str) -> bytes:
    """Returns the HEADERS frame of a call whose request comes later, or never."""
    return frame(HEADERS, END_HEADERS, stream, serve_headers(method))


class Raw:
    """A connection whose preface and settings were sent."""

    def __init__(self, port: int, window: int | None = None, host: str = "127.0.0.1") -> None:
        """``window``: bytes of messages that the server may send on each stream; 0: none."""
        self.socket = socket.create_connection((host, port), timeout=20)
        self._came = bytearray()
        settings = b"" if window is None else struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ping(self) -> None:
        self.socket.sendall(frame(PING, 0, 0, b"kdir-png"))

    def begin(self, stream: int, method: str) -> None:
        """Begins a call whose request never comes."""
        self.socket.sendall(begin_frame(stream, method))

    def request(self, stream: int, method: str, message: bytes) -> None:
        """Sends a whole call with one message."""
        self.begin(stream, method)
        data = b"\0" + struct.pack(">I", len(message)) + message
        for start in range(0, len(data), _MOST_DATA):
            flags = END_STREAM if start + _MOST_DATA >= len(data) else 0
            self.socket.sendall(frame(DATA, flags, stream, data[start : start + _MOST_DATA]))

    def acknowledge(self) -> None:
        """Acknowledges the server's settings without reading them, for tests that never read."""
        self.socket.sendall(frame(SETTINGS, ACK, 0))

    def receive(self, timeout: float) -> list[Frame]:
        """Returns the frames that one read completes within ``timeout`` s; acknowledges settings.

        Raises:
            ConnectionError: the other side closed the connection.
        """
        self.socket.settimeout(timeout)
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            return []
        if not data:
            raise ConnectionResetError("closed")
        self._came += data
        found = list(frames_in(self._came))
        if any(one.kind == SETTINGS and not one.flags & ACK for one in found):
            self.acknowledge()
        return found
