"""Servers that die at any step: at a call to Kafka, at a write, before or after a commit.

A test has a server die at the first step, then one at the second, and so on, until a run ends
without a death; after each death the next server must finish what was begun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.large_trees import TightSqlite

__all__ = ["ASKED", "WRITTEN", "Crash", "DyingStore", "Mortal", "Passages"]

ASKED = frozenset({"create", "delete", "describe", "cluster_id", "describe_all"})
"""Methods of the admin client at which a server may die."""
WRITTEN = frozenset({"commit_command", "put_facts"})
"""Methods of the writer at which a server may die."""


class Crash(BaseException):
    """End of the server's process; no code of kdir may catch it."""


class Mortal:
    """Proxy that forwards calls and ends the process at the n-th passage: each call of ``methods``
    has two, one before and one after it.
    """

    def __init__(self, real: Any, passages: Passages, methods: frozenset[str]) -> None:
        self._real = real
        self._passages = passages
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name not in self._methods:
            return found

        def call(*arguments: Any, **keywords: Any) -> Any:
            self._passages.passed(f"before {name}")
            answer = found(*arguments, **keywords)
            self._passages.passed(f"after {name}")
            return answer

        return call


class Passages:
    """Counter of passages that ends the process at one of them."""

    def __init__(self, last: int, end: Callable[[], None] | None = None) -> None:
        self.log: list[str] = []
        self._last = last
        self._end = end or self._crash

    def _crash(self) -> None:
        raise Crash(self.log[-1])

    def passed(self, what: str) -> None:
        self.log.append(what)
        if len(self.log) == self._last:
            self._end()


class DyingStore(TightSqlite):
    """Store that ends its server at passage ``last``: one is before each commit, one after it."""

    last = 0
    passed = 0

    def commit(self, transaction: Any, timeout_seconds: float = 5.0) -> Any:
        self._pass()
        done = super().commit(transaction, timeout_seconds)
        self._pass()
        return done

    def _pass(self) -> None:
        self.passed += 1
        if self.passed == self.last:
            raise Crash
