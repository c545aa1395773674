"""A reconciler in a process of its own that stops itself (SIGSTOP) at a named passage.

    python -m tests.fault.paused_leader STORE BOOTSTRAP PASSAGE

Passages are "before" and "after" each call of Kafka's admin and of the writer, such as "before
delete"; "before delete" is after all checks of the reconciler, with nothing but the admin's own
between it and the request. It prints a line when it goes on after the pause, and when it is done.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from directory.kafka.admin_client import ConfluentAdmin
from directory.store.addresses import open_store
from directory.store.base import Store
from tests.support.reconciler import World

LEASE_SECONDS = 3.0
"""So long until another one may take over from who is paused, with etcd."""
_WATCHED = frozenset(
    {"create", "delete", "describe", "describe_all", "commit_command", "put_facts"}
)


def open_quick(address: str) -> Store:
    """Opens a store whose roles are free soon after their holder is silent."""
    if not address.startswith("etcd:"):
        return open_store(address, "la-t")
    from directory.store.etcd.etcd_address import EtcdAddress
    from directory.store.etcd.store import EtcdStore

    return EtcdStore(EtcdAddress.parse(address), "la-t", lease_seconds=LEASE_SECONDS)


class Pausing:
    """Proxy that forwards calls, and stops the process once, at a passage."""

    def __init__(self, real: Any, passage: str) -> None:
        self._real = real
        self._passage = passage

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name not in _WATCHED:
            return found

        def call(*arguments: Any, **keywords: Any) -> Any:
            self._passed(f"before {name}")
            answer = found(*arguments, **keywords)
            self._passed(f"after {name}")
            return answer

        return call

    def _passed(self, passage: str) -> None:
        if passage == self._passage and passage not in _DONE:
            _DONE.append(passage)
            print("paused", flush=True)  # noqa: T201 - its parent reads it
            os.kill(os.getpid(), signal.SIGSTOP)
            print("woken", flush=True)  # noqa: T201


_DONE: list[str] = []


def main(address: str, bootstrap: str, passage: str) -> None:
    here = World(
        Path(),
        lambda: Pausing(ConfluentAdmin([bootstrap], timeout_seconds=5), passage),
        writer=lambda real: Pausing(real, passage),
        open_store=lambda: open_quick(address),
    )
    print("ready", flush=True)  # noqa: T201
    sys.stdin.readline()
    here.sweep()
    for _ in range(60):
        delay = here.reconciler.run_once()
        if delay > 10 or (_DONE and not here.reconciler.status().leader):
            break
        here.now += delay
    for _ in range(3):  # and then some more, all of it due
        here.sweep()
    print(f"done, leader: {here.reconciler.status().leader}", flush=True)  # noqa: T201
    sys.stdin.readline()
    here.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
