"""Finds free ports on loopback for servers that cannot be told to choose one and say which."""

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
# Below what Linux and macOS hand out for outgoing connections, so that no client of anybody sits
# on a server's port while that server is restarted.
_RANGE = range(20_000, 32_000)
_OWN = 200


def free_port() -> int:
    """Returns a port that nothing listens on now; this function gives it to no other process of
    this machine, also while what listens there is restarted, and to this one again only after all
    others.

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
    """Yields the ports that a process has for itself until it ends, in turn, for ever; where all
    are taken, or there is no place for locks, all of them, which it shares with the others.
    """
    ports = list(_reserved())
    random.shuffle(ports)
    return cycle(ports)


def _reserved() -> range:
    """Returns a part of the ports that no other process has taken; the whole where there is
    none.
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
