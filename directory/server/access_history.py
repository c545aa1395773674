"""Access rules at each revision that this server has seen, for past changes.

The grants of a change's own revision decide who may see it: the current ones do not cover an entry
that was removed, moved, denied or closed meanwhile. ``api/change_view.py`` uses them.
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
"""Most inherited grants that are kept for all changes together, besides those of the newest
revision (about 70 MB).
"""
_AGAIN_SECONDS: Final = 1.0
"""Time after a failed read in which no caller reads the store again."""


class AccessHistory:
    """``Authorizer`` of each revision. Thread-safe. Must be created before the replica's other
    subscribers that pass changes on, and before the replica is started.
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
        """Numbers of inherited grants that each of ``_accesses`` has and the previous lacks."""
        self._inherited: bytes | None = None
        """Value of the inherited record from which the newest of ``_accesses`` was made."""
        self._is_extended = False
        """True if a read of the store cannot find an earlier first revision."""
        self._moved: Row | None = None
        """The store's record of moves of the mount, as last read."""
        replica.subscribe(self._applied)

    def at(self, revision: int) -> Authorizer | None:
        """Returns the access rules at a revision; None = they are not known any more.

        Raises:
            StoreUnavailable: the store must be read to decide, and cannot be reached.
        """
        found = self.kept(revision)
        if found is None:
            self._extend()
            found = self.kept(revision)
        return found

    def kept(self, revision: int) -> Authorizer | None:
        """Returns the access rules at a revision; None = not known without reading the store."""
        with self._lock:
            place = bisect_right(self._revisions, revision)
            return self._accesses[place - 1] if place else None

    def has_moved_unseen(self, snapshot: Snapshot, after: int) -> bool:
        """True if the mount moved after a revision whose access rules this server does not have.

        The store is read only if by this snapshot the mount ever moved.

        Raises:
            StoreUnavailable: the store must be read to decide, and cannot be reached.
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
        """Returns the revisions in (after, until] at which rights or the mount changed."""
        with self._lock:
            begin = bisect_right(self._revisions, after)
            return self._revisions[begin : bisect_right(self._revisions, until)]

    @property
    def is_constant(self) -> bool:
        """True if it is known that rights never changed in this incarnation of the store."""
        with self._lock:
            if len(self._revisions) > 1:
                return False
        try:
            return self.known_since() == 0
        except StoreUnavailable:
            return False

    @property
    def may_ask_store(self) -> bool:
        """True if the other methods may have to read the store."""
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
        """Finds the revision from which on the first rules are in force: the last change of rights
        before them.

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
                    return  # the grants were written by a version that set no mark
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
            if self._replica.is_away:  # a read would take long; a sealed store answers, though
                raise StoreUnreachable(self._replica.trouble or "it does not answer")
            rows = self._store.read(key, 1)
        except StoreUnreachable as reason:
            self._failed_at, self._failure = self._clock(), str(reason)
            raise self._unavailable() from reason
        return rows[0] if rows and rows[0].key == key else None

    def _unavailable(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"only the store has the revision of the last change of rights or of the mount, and it "
            f"is away: "
            f"{self._failure}"
        )


def _has_grants(access: Authorizer) -> bool:
    """True if the cluster or a directory above it has grants or closed directories."""
    if access.tree is not None and not access.tree.root.is_empty:
        return True
    return bool(access.inherited)


def _sharing(access: Authorizer, before: Authorizer | None) -> tuple[Authorizer, int]:
    """Returns the rules, with unchanged inherited levels taken from the previous rules, and the
    number of inherited grants that are not shared.
    """
    known = {level.path: level for level in (before.inherited or () if before else ())}
    levels = access.inherited or ()
    shared = tuple(
        known[level.path] if known.get(level.path) == level else level for level in levels
    )
    own = sum(len(level.rules.grants) for level in shared if known.get(level.path) is not level)
    return (replace(access, inherited=shared) if levels else access), own
