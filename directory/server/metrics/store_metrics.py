"""A store that times what is asked of it; refuses to change a single answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from directory.server.metrics.histogram import COMMIT_SECONDS, Histogram
from directory.store.base import (
    Committed,
    Conflict,
    EphemeralKey,
    Guard,
    Identity,
    Leadership,
    Limits,
    Loading,
    Row,
    Store,
    StoreFull,
    StoreIsSealed,
    StoreUnreachable,
    Transaction,
    Watch,
)

__all__ = ["MeasuredStore"]


class MeasuredStore:
    """Stands before a store; the contract is ``Store``'s."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store: Final = store
        self._clock: Final = clock
        self.commits: Final = {
            outcome: Histogram(COMMIT_SECONDS)
            for outcome in ("committed", "conflict", "unavailable", "full", "sealed", "error")
        }
        """How long commits took, by what came of them; *failed*: refused as a bug of the caller's.
        """
        self.last_commit_seconds: float | None = None
        """What the last one took that the store answered."""
        self._lock: Final = threading.Lock()
        self._reads = {"ok": 0, "error": 0}

    # -- what was seen ---------------------------------------------------------------------------

    def reads(self) -> dict[str, int]:
        """Returns how often rows were read beside the replica's load, by whether the store
        answered.
        """
        with self._lock:
            return dict(self._reads)

    # -- timed -----------------------------------------------------------------------------------

    def commit(
        self, transaction: Transaction, timeout_seconds: float = 5.0
    ) -> Committed | Conflict:
        started, outcome = self._clock(), "error"
        try:
            done = self._store.commit(transaction, timeout_seconds)
            outcome = "committed" if isinstance(done, Committed) else "conflict"
            return done
        except StoreIsSealed:
            outcome = "sealed"
            raise
        except StoreFull:
            outcome = "full"
            raise
        except StoreUnreachable:
            outcome = "unavailable"
            raise
        finally:
            seconds = self._clock() - started
            self.commits[outcome].observe(seconds)
            if outcome not in {"unavailable", "error"}:
                self.last_commit_seconds = seconds

    def read(self, prefix: bytes, limit: int = 1000, after: bytes = b"") -> Sequence[Row]:
        outcome = "error"
        try:
            rows = self._store.read(prefix, limit, after)
            outcome = "ok"
            return rows
        finally:
            with self._lock:
                self._reads[outcome] += 1

    # -- handed on -------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        return self._store.identity

    @property
    def limits(self) -> Limits:
        return self._store.limits

    def refresh_identity(self) -> Identity:
        return self._store.refresh_identity()

    def load(self, prefixes: Sequence[bytes] = (b"",)) -> Loading:
        return self._store.load(prefixes)

    def newest_revision(self, timeout_seconds: float = 5.0) -> int:
        return self._store.newest_revision(timeout_seconds)

    def watch(self, after: int, commit_id: str) -> Watch:
        return self._store.watch(after, commit_id)

    def elect(self, role: str, candidate: str) -> Leadership | None:
        return self._store.elect(role, candidate)

    def create_ephemeral(
        self, key: bytes, value: bytes, guards: Sequence[Guard] = ()
    ) -> EphemeralKey | Conflict:
        return self._store.create_ephemeral(key, value, guards)

    def remove_expired(self, prefix: bytes = b"") -> int:
        return self._store.remove_expired(prefix)

    def seal(self, why: str) -> None:
        self._store.seal(why)

    def clear(self) -> int:
        return self._store.clear()

    def fill(self, rows: Iterable[tuple[bytes, bytes]]) -> int:
        return self._store.fill(rows)

    def unseal(self) -> Identity:
        return self._store.unseal()

    def describe(self) -> str:
        return self._store.describe()

    def close(self) -> None:
        self._store.close()
