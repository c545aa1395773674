"""Finds free ports on loopback for servers that cannot choose one and report it themselves."""

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import cycle, islice
from pathlib import Path

LOOPBACK = "127.0.0.1"
# Below the ports of outgoing connections on Linux and macOS, so that no client takes a server's
# port while that server is restarted.
_RANGE = range(20_000, 32_000)
_OWN = 200


def free_port() -> int:
    """Returns a port on which nothing listens now. No other process of this user gets it from this
    function, even while the server at it restarts, as long as ports are left to reserve; this
    process gets it again only after all its others.

    Raises:
        RuntimeError: none of a hundred tried is free.
    """
    for port in islice(_own_ports(os.getpid()), 100):
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port on loopback: of a hundred tried, all are in use")


@cache
def _own_ports(process_id: int) -> Iterator[int]:  # noqa: ARG001 - what was forked has its own
    """Cycles through the ports that are reserved for a process until it ends; if none are left to
    reserve, or no locks can be made, through all, which it then shares with other processes.
    """
    ports = list(_reserved())
    random.shuffle(ports)
    return cycle(ports)


def _reserved() -> range:
    """Reserves a part of the ports for this process, and returns it; all of them if no part is
    left, or no locks can be made.
    """
    parts = [_RANGE[start : start + _OWN] for start in range(0, len(_RANGE), _OWN)]
    random.shuffle(parts)
    folder = Path(tempfile.gettempdir(), f"kdir-ports-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for part in parts:
            lock = os.open(folder / str(part.start), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
            else:
                return part  # the lock stays until the process ends
    except OSError:
        pass
    return _RANGE


def listening(port: int) -> bool:
    """True if something accepts connections there."""
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex((LOOPBACK, port)) == 0
