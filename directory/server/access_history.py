"""Access rules at each revision that this server has seen, for past changes.

A change is shown by the grants of its own revision: the current ones do not cover an entry that is
removed, was moved, or was denied or closed meanwhile. ``api/change_view.py`` decides by them.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from directory.access.authorizer import Authorizer
from directory.namespace.keys import GRANTS_MARK, INHERITED, MOVED
from directory.namespace.snapshot import Snapshot
from directory.store.base import Row, Store, StoreUnreachable
from directory.store.replica import AppliedCommit, Replica
from resolver.errors import StoreUnavailable

__all__ = ["AccessHistory"]

_MOST: Final = 1_000
"""Most changes of rights that are kept; each shares all unchanged parts with its neighbours."""
_MOST_INHERITED: Final = 200_000
"""Most inherited grants that are kept beside those of the newest revision, over all changes (some
70 MB).
"""
_AGAIN_SECONDS: Final = 1.0
"""Time for which a store that did not answer is not asked again, by any caller."""


class AccessHistory:
    """``Authorizer`` of each revision. Thread-safe. It must be created before the subscribers that
    pass changes on, and before the replica is started.
    """

    def __init__(
        self,
        replica: Replica,
        store: Store,
        access_at: Callable[[Snapshot], Authorizer],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replica: Final = replica
        self._store: Final = store
        self._access_at: Final = access_at
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._asking: Final = threading.Lock()
        self._failed_at = float("-inf")
        self._failure = ""
        self._revisions: list[int] = []
        """First revision of each of ``_accesses``."""
        self._accesses: list[Authorizer] = []
        self._new_grants: list[int] = []
        """Inherited grants that each of ``_accesses`` does not share with the one before it."""
        self._inherited: bytes | None = None
        """Value of the inherited record that the newest of ``_accesses`` was made of."""
        self._is_extended = False
        """True if the first revision cannot be set any earlier by a read of the store."""
        self._moved: Row | None = None
        """The store's record of moves of the mount, as last read."""
        replica.subscribe(self._applied)

    def at(self, revision: int) -> Authorizer | None:
        """Returns the access rules at a revision; None if they are not known any more.

        Raises:
            StoreUnavailable: the store, which shows whether they are known, cannot be reached.
        """
        found = self.kept(revision)
        if found is None:
            self._extend()
            found = self.kept(revision)
        return found

    def kept(self, revision: int) -> Authorizer | None:
        """Returns the access rules at a revision, as far as they are known without the store."""
        with self._lock:
            place = bisect_right(self._revisions, revision)
            return self._accesses[place - 1] if place else None

    def has_moved_unseen(self, snapshot: Snapshot, after: int) -> bool:
        """True if the mount moved after a revision of which this server does not have the mount.

        The store is read only if the mount ever moved by this snapshot.

        Raises:
            StoreUnavailable: the store, which shows when it moved, cannot be reached.
        """
        moves = snapshot.fact(MOVED)
        if moves is None or self.kept(after) is not None:
            return False
        with self._asking:
            if self._moved is None or self._moved.value != moves:
                self._moved = self._stored(MOVED)
            return self._moved is not None and self._moved.revision > after

    def known_since(self) -> int:
        """Returns the first revision whose access rules are known.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """
        self._extend()
        with self._lock:
            return self._revisions[0] if self._revisions else 0

    def changed(self, after: int, until: int) -> Sequence[int]:
        """Returns the revisions after one, up to another, at which rights or the mount changed."""
        with self._lock:
            begin = bisect_right(self._revisions, after)
            return self._revisions[begin : bisect_right(self._revisions, until)]

    @property
    def is_constant(self) -> bool:
        """True if no rights ever changed in this incarnation of the store, as far as is known."""
        with self._lock:
            if len(self._revisions) > 1:
                return False
        try:
            return self.known_since() == 0
        except StoreUnavailable:
            return False

    @property
    def may_ask_store(self) -> bool:
        """True if a question about the kept revisions may need a read of the store."""
        return not self._is_extended and len(self._revisions) <= 1

    def _applied(self, applied: AppliedCommit) -> None:
        snapshot = applied.after
        inherited = snapshot.fact(INHERITED)
        with self._lock:
            known = self._accesses[-1] if self._accesses and not applied.reloaded else None
            same = known is not None and known.tree is snapshot.grants
            if same and inherited == self._inherited:
                return
            if applied.reloaded:
                self._revisions, self._accesses, self._is_extended = [], [], False
                self._new_grants, self._moved = [], None
            self._inherited = inherited
            access, new_grants = _sharing(self._access_at(snapshot), known)
            if same and access == known:
                return  # other inherited policies, but the same rights
            self._revisions.append(applied.revision)
            self._accesses.append(access)
            self._new_grants.append(new_grants)
            while len(self._revisions) > 1 and (
                len(self._revisions) > _MOST or sum(self._new_grants[:-1]) > _MOST_INHERITED
            ):
                del self._revisions[0], self._accesses[0], self._new_grants[0]
                self._is_extended = True

    def _extend(self) -> None:
        """Finds the revision since which the first rules hold: that of the previous change of
        rights.

        Raises:
            StoreUnavailable: the store cannot be reached, or failed within ``_AGAIN_SECONDS``.
        """
        with self._asking:
            with self._lock:
                if self._is_extended or not self._revisions:
                    return
                first, access = self._revisions[0], self._accesses[0]
            mark = self._stored(GRANTS_MARK)
            marked = mark.revision if mark is not None else 0
            with self._lock:
                if self._revisions[:1] != [first]:
                    return  # loaded again meanwhile
                self._is_extended = True
                if marked == 0 and _has_grants(access):
                    return  # the rights are of a version that set no mark
                if marked <= first:
                    self._revisions[0] = marked

    def _stored(self, key: bytes) -> Row | None:
        """Returns the store's row of a key; None if it has none.

        Raises:
            StoreUnavailable: the store cannot be reached, or failed within ``_AGAIN_SECONDS``.
        """
        if self._clock() - self._failed_at < _AGAIN_SECONDS:
            raise self._unavailable()
        try:
            if self._replica.is_away:  # not asked, which would take long; a sealed one answers
                raise StoreUnreachable(self._replica.trouble or "it does not answer")
            rows = self._store.read(key, 1)
        except StoreUnreachable as reason:
            self._failed_at, self._failure = self._clock(), str(reason)
            raise self._unavailable() from reason
        return rows[0] if rows and rows[0].key == key else None

    def _unavailable(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"since when rights and the mount are as they are is in the store only, and it is "
            f"away: "
            f"{self._failure}"
        )


def _has_grants(access: Authorizer) -> bool:
    """True if there are grants, or closed directories, in the cluster or above it."""
    if access.tree is not None and not access.tree.root.is_empty:
        return True
    return bool(access.inherited)


def _sharing(access: Authorizer, before: Authorizer | None) -> tuple[Authorizer, int]:
    """Returns the rules with unchanged inherited levels taken from the previous ones, and the
    number of inherited grants that are not shared.
    """
    known = {level.path: level for level in (before.inherited or () if before else ())}
    levels = access.inherited or ()
    shared = tuple(
        known[level.path] if known.get(level.path) == level else level for level in levels
    )
    own = sum(len(level.rules.grants) for level in shared if known.get(level.path) is not level)
    return (replace(access, inherited=shared) if levels else access), own
