"""Load by h2load, a client in C whose calls cost a twentieth of what they cost a server.

It repeats one request and ignores the answers. A client in Python would measure itself.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Body", "calls", "missing", "per_second"]


def missing(benchmark: str) -> bool:
    """True if h2load is not installed; then prints a note on stderr."""
    if shutil.which("h2load"):
        return False
    sys.stderr.write(f"{benchmark}: h2load is missing (Debian: nghttp2-client); left out\n")
    return True


class Body:
    """File with a request as gRPC frames it: the flag of compression, the length, the message."""

    def __init__(self, file: Path, message: bytes) -> None:
        file.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
        self.file = file


def per_second(
    url: str, body: Body, *, connections: int, streams: int, seconds: int, warm_up: int
) -> float:
    """Returns the calls a second, all of which must succeed."""
    return float(
        _run(
            url,
            body,
            (connections, streams),
            ["-D", str(seconds), "--warm-up-time", f"{warm_up}s"],
            r"finished in \S+, (\S+) req/s",
        )
    )


def calls(url: str, body: Body, *, connections: int, streams: int, count: int) -> None:
    """Makes ``count`` calls, all of which must succeed."""
    done = _run(url, body, (connections, streams), ["-n", str(count)], r"(\d+) succeeded")
    if int(done) != count:
        raise RuntimeError(f"{done} of {count} calls succeeded")


def _run(
    url: str, body: Body, at_once: tuple[int, int], how_many: Sequence[str], result: str
) -> str:
    connections, streams = at_once
    command = ["h2load", "-t", "1", "-c", str(connections), "-m", str(streams), *how_many]
    command += ["-d", str(body.file)]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    done = subprocess.run([*command, url], capture_output=True, text=True, check=True)
    found = re.search(result, done.stdout)
    failed = re.search(r"(\d+) failed, (\d+) errored", done.stdout)
    if found is None or failed is None or int(failed[1]) + int(failed[2]):
        raise RuntimeError(done.stdout)
    return found[1]
