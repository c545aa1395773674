"""Servers on a real etcd against etcd itself: writes, their delay elsewhere, a dead leader, reads.

Writes are measured on three members (``etcd_writing``), loads and reads on one (``etcd_reading``).
Rounds of both sides alternate, and medians are compared.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench import bare_etcd, etcd_reading, etcd_writing
from bench.rows import Row
from deploy.local.cache import ServerUnavailable
from deploy.local.etcd import EtcdCluster

__all__ = ["run"]


def run() -> list[Row]:
    """Returns the rows of three members, then those of one; none where there is no etcd."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="kdir-bench-") as name:
        try:
            with EtcdCluster() as three:
                rows += etcd_writing.measured(Path(name), three)
            with EtcdCluster(1, flags=[bare_etcd.MAX_OPERATIONS]) as one:
                rows += etcd_reading.measured(Path(name), one)
        except ServerUnavailable as reason:
            sys.stderr.write(f"etcd: {reason} Left out.\n")
    return rows
