"""Random numbers that are fetched many at a time."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from directory.store.event_rows import random_bits

_FORKED = """
import os
from directory.store.event_rows import random_bits
random_bits()
child = os.fork()
if child:
    os.waitpid(child, 0)
print(random_bits(), flush=True)
"""


def test_threads_get_different_numbers() -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: random_bits(), range(5_000)))
    assert len(set(found)) == len(found)
    assert all(0 <= one < 2**64 for one in found)


def test_a_forked_process_gets_different_numbers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKED], capture_output=True, text=True, check=True
    )
    first, second = done.stdout.split()
    assert first != second
