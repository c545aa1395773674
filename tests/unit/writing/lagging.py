"""Another server's handle on a store: its watch gives nothing while it is held."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from directory.store.base import Committed, CommittedWrites, Conflict, Store, Transaction, Watch

__all__ = ["LaggingStore"]


class LaggingStore:
    """Store that forwards calls. After ``hold`` its replica falls behind; an answer to its writer
    lets the watch go on, as if it took as long as between two servers.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.asking = threading.Lock()
        self.flowing = threading.Event()
        self.flowing.set()
        self.holds_on = False
        """Nothing lets the watch go on but ``let_go``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def hold(self) -> None:
        """Holds the watch: it gives nothing from now on."""
        self.flowing.clear()
        with self.asking:
            pass  # what was being asked for is given

    def let_go(self) -> None:
        """Releases the watch."""
        self.flowing.set()

    def _asked(self) -> None:
        if not self.holds_on:
            self.let_go()

    def newest_revision(self, timeout_seconds: float = 5.0) -> int:
        revision = self.store.newest_revision(timeout_seconds)
        self._asked()
        return revision

    def commit(
        self, transaction: Transaction, timeout_seconds: float = 5.0
    ) -> Committed | Conflict:
        done = self.store.commit(transaction, timeout_seconds)
        self._asked()
        return done

    def watch(self, after: int, commit_id: str) -> "_LaggingWatch":
        return _LaggingWatch(self, self.store.watch(after, commit_id))


class _LaggingWatch:
    def __init__(self, store: LaggingStore, watch: Watch) -> None:
        self._store = store
        self._watch = watch

    @property
    def restarts(self) -> int:
        return self._watch.restarts

    def next(self, timeout_seconds: float) -> Sequence[CommittedWrites]:
        if not self._store.flowing.wait(min(timeout_seconds, 0.01)):
            return ()
        with self._store.asking:
            if not self._store.flowing.is_set():
                return ()
            return self._watch.next(min(timeout_seconds, 0.01))

    def giving_own_to(
        self, take: Callable[[Sequence[CommittedWrites]], None]
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        self._watch.close()
