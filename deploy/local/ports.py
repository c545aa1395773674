"""Finds free ports on loopback for servers that cannot be told to choose one and say which."""

import random
import socket

LOOPBACK = "127.0.0.1"
# Below what Linux and macOS hand out for outgoing connections, so that no client of anybody sits
# on a server's port while that server is restarted.
_RANGE = range(20_000, 32_000)


def free_port() -> int:
    """A port that nothing listens on now; another process may still be quicker to take it.

    Raises:
        RuntimeError: none of a hundred tried is free.
    """
    for port in random.sample(_RANGE, 100):
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port on loopback: of a hundred tried, all are in use")


def listening(port: int) -> bool:
    """True if something accepts connections there."""
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex((LOOPBACK, port)) == 0
