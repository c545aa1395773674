"""Who might do what at each revision that this server has seen, for changes that are past.

A change is judged by the grants of its own revision: those of today say nothing of an entry that is
gone, was moved, or was denied or closed meanwhile. Refuses to judge; ``api/caller_view.py`` does.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from directory.access.authorizer import Access
from directory.namespace.keys import GRANTS_MARK, INHERITED
from directory.namespace.snapshot import Snapshot
from directory.store.base import Store, StoreAway
from directory.store.replica import Applied, Replica

__all__ = ["AccessHistory"]

_MOST: Final = 1_000
"""Changes of rights that are kept; each shares with its neighbours all that it did not change."""


class AccessHistory:
    """The ``Access`` of each revision. Make it before what hands changes on is subscribed, and
    before the replica is started; may be asked from any thread.
    """

    def __init__(
        self, replica: Replica, store: Store, access_at: Callable[[Snapshot], Access]
    ) -> None:
        self._store: Final = store
        self._access_at: Final = access_at
        self._lock: Final = threading.Lock()
        self._revisions: list[int] = []
        """From which on each holds."""
        self._accesses: list[Access] = []
        self._inherited: bytes | None = None
        """As the newest was made of it."""
        self._is_extended = False
        """The first holds from as far back as the store can say."""
        replica.subscribe(self._applied)

    def at(self, revision: int) -> Access | None:
        """Who might do what at a revision; None where that is not known any more."""
        found = self._kept(revision)
        if found is None:
            self._extend()
            found = self._kept(revision)
        return found

    @property
    def is_constant(self) -> bool:
        """True if nobody's rights ever changed, in this life of the store."""
        self._extend()
        with self._lock:
            return self._revisions == [0]

    def _kept(self, revision: int) -> Access | None:
        with self._lock:
            place = bisect_right(self._revisions, revision)
            return self._accesses[place - 1] if place else None

    def _applied(self, applied: Applied) -> None:
        snapshot = applied.after
        inherited = snapshot.fact(INHERITED)
        with self._lock:
            known = self._accesses[-1] if self._accesses and not applied.reloaded else None
            same = known is not None and known.tree is snapshot.grants
            if same and inherited == self._inherited:
                return
            if applied.reloaded:
                self._revisions, self._accesses, self._is_extended = [], [], False
            self._inherited = inherited
            access = self._access_at(snapshot)
            if same and access == known:
                return  # other policies are inherited, and the same rights
            self._revisions.append(applied.revision)
            self._accesses.append(access)
            if len(self._revisions) > _MOST:
                del self._revisions[0], self._accesses[0]
                self._is_extended = True

    def _extend(self) -> None:
        """Finds out since when the first holds: since the last change of rights before it."""
        with self._lock:
            if self._is_extended or not self._revisions:
                return
            first, access = self._revisions[0], self._accesses[0]
        try:
            found = [self._last_change(key) for key in (GRANTS_MARK, INHERITED)]
        except StoreAway:
            return
        with self._lock:
            if not self._revisions or self._revisions[0] != first:
                return
            self._is_extended = True
            marked, inherited = found
            if marked == 0 and access.tree is not None and not access.tree.root.is_empty:
                return  # of a version that set no mark
            if max(marked, inherited) <= first:
                self._revisions[0] = max(marked, inherited)

    def _last_change(self, key: bytes) -> int:
        rows = self._store.read(key, 1)
        return rows[0].revision if rows and rows[0].key == key else 0
