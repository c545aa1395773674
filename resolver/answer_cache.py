"""Cache of a client: answers and referrals, with the time until which each may be used.

A lifetime begins with the owner's answer, by the monotonic clock; neither a use nor a transfer of
the answer extends it (R11, G12). One cache serves one principal, since answers for one principal
are not for another.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Final, NamedTuple
from weakref import WeakSet

from resolver.path import Path
from resolver.resolution.values import AskedBecause, Referral
from resolver.revision_token import NOTHING_READ, Position, ReadPositions
from resolver.topic_location import TopicLocation

__all__ = [
    "Cache",
    "CachedAnswer",
    "CachedReferral",
    "FreshnessMark",
]

DEFAULT_ENTRIES: Final = 100_000


class FreshnessMark:
    """Mark of a cluster whose changes are watched, shared by all answers that depend on the
    cluster.
    """

    __slots__ = ("__weakref__", "applied", "confirmed_at", "incarnation", "revision", "until")

    def __init__(self, incarnation: str, revision: int) -> None:
        _MARKS.add(self)
        self.until = 0.0
        """Time on the clock until which all remaining answers of the cluster are fresh."""
        self.confirmed_at = float("-inf")
        """Time on the clock at which the remaining answers were known to be fresh; stays when the
        stream ends.
        """
        self.incarnation = incarnation
        self.revision = revision
        """Revision up to which changes were received."""
        self.applied = revision
        """Revision up to which received changes have removed the answers that they affect."""


_MARKS: Final[WeakSet[FreshnessMark]] = WeakSet()


def _end_marks() -> None:
    """Ends all marks after a fork: the threads that receive changes belong to the parent."""
    for mark in _MARKS:
        mark.until = 0.0


os.register_at_fork(after_in_child=_end_marks)  # a warm resolve compares no process ids


class CachedAnswer(NamedTuple):
    """Cached answer; if ``location`` is None, the answer is *absent*."""

    location: TopicLocation | None
    until: float
    """Time on the clock until which it is fresh."""
    path: Path
    """Path of the request."""
    canonical: Path
    cluster_id: str
    mount: Path
    """Mount of the cluster that answered."""
    asked_at: float
    """Time of the request, or of a later confirmation, from which its age counts."""
    message: str = ""
    metadata: Mapping[str, str] | None = None
    attempts: tuple[str, ...] = ()
    """Queries that led to an *absent* answer."""
    followed: FreshnessMark | None = None
    original: TopicLocation | None = None
    """The answer as received, if ``location`` is marked stale."""
    read: ReadPositions = NOTHING_READ
    """Position of each cluster that was queried for the answer."""
    paths: tuple[Path, ...] = ()
    """Other paths that the resolution went through: a change at or above one may change the
    answer.
    """
    has_unknown_links: bool = False
    """True if a server resolved it for the client and did not report the links that it followed:
    any change may change the answer.
    """

    def is_fresh(self, now: float) -> bool:
        """True if the answer may be used without another query."""
        return self.until > now or (self.followed is not None and self.followed.until > now)

    @property
    def confirmed_at(self) -> float:
        """Time at which the answer was last known to be fresh: of the request, or of the last
        changes that left it as it is.
        """
        return max(self.asked_at, self.followed.confirmed_at if self.followed else self.asked_at)

    def reaches(self, wanted: Mapping[str, Position], now: float) -> bool:
        """True if the answer is at least as new as the positions of a token."""
        read, followed = self.read, self.followed
        if followed is not None and followed.until > now:
            # A change up to ``applied`` that affects the answer would have removed it.
            seen = Position(followed.incarnation, followed.applied)
            read = read.advanced(self.cluster_id, seen)
        return read.reaches(wanted)

    def is_at_or_below(self, path: Path) -> bool:
        """True if the path of its request, its canonical path, or one that its resolution went
        through is at or below this path.
        """
        return (
            path.is_prefix_of(self.path)
            or path.is_prefix_of(self.canonical)
            or any(path.is_prefix_of(one) for one in self.paths)
        )

    def as_stale(self, now: float) -> TopicLocation | None:
        """Returns the answer marked stale, with its age; None for an absence."""
        given = self.original or self.location
        if given is None:
            return None
        age = max(0.0, now - self.confirmed_at) + given.age_seconds
        return dataclasses.replace(given, stale=True, age_seconds=age)


class CachedReferral(NamedTuple):
    """Mount from a referral that its target confirmed."""

    referral: Referral
    until: float


class Cache:
    """Cache of the answers and referrals of one principal. Thread-safe.

    ``answers`` is read without a lock by the hot path of ``Resolver.resolve``: a dict's ``get`` is
    one step under the interpreter's lock. Beyond ``max_entries`` the oldest answers are removed.
    The order of use is not recorded: that would cost more than the use itself.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        max_entries: int = DEFAULT_ENTRIES,
        principal: str = "",
    ) -> None:
        if max_entries < 0:
            raise ValueError("max_entries: expected 0 or more")
        self.principal = principal
        self.answers: dict[Hashable, CachedAnswer] = {}
        self._clock = clock
        self._max_entries = max_entries
        self._max_referrals = max(64, (max_entries or DEFAULT_ENTRIES) // 10)
        self._lock = threading.Lock()
        self._aliases: dict[str, set[Hashable]] = {}
        """Keys of the answers that a change at a path affects, by that path, unless it is the key
        itself.
        """
        self._referrals: dict[tuple[str, ...], CachedReferral] = {}
        self._own_mounts: dict[Path, None] = {}

    # -- answers ---------------------------------------------------------------------------

    def good(
        self, key: Hashable, wanted: Mapping[str, Position], now: float
    ) -> CachedAnswer | None:
        """Returns the cached answer if it is fresh and at least as new as the positions of a
        token.
        """
        kept = self.answers.get(key)
        if kept is None or not kept.is_fresh(now) or not kept.reaches(wanted, now):
            return None
        # A change that was applied between the lookup and the comparison has removed it.
        return kept if not wanted or self.answers.get(key) is kept else None

    def put(self, key: Hashable, kept: CachedAnswer) -> None:
        """Stores an answer, replacing the previous one."""
        if not self._max_entries:
            return
        with self._lock:
            self._remove(key)  # to the young end
            while len(self.answers) >= self._max_entries:
                self._remove(next(iter(self.answers)))
            self.answers[key] = kept
            for text in _aliases_of(key, kept):
                self._aliases.setdefault(text, set()).add(key)

    def put_stale(
        self, key: Hashable, old: CachedAnswer, now: float, seconds: float
    ) -> CachedAnswer:
        """Returns an old answer, marked stale. For ``seconds`` it stays cached so that no query is
        sent, unless it was removed or replaced meanwhile.
        """
        stale = old._replace(
            location=old.as_stale(now),
            until=now + seconds,
            asked_at=old.confirmed_at,
            followed=None,
        )
        with self._lock:
            if self.answers.get(key) is old:
                # The original stays, since the age counts from its request also the next time.
                self.answers[key] = stale._replace(original=old.original or old.location)
        return stale

    def renew_lock(self) -> None:
        """Replaces the lock after a fork: the parent's threads that held it do not exist here."""
        self._lock = threading.Lock()

    def forget(self, key: Hashable) -> None:
        """Removes an answer that is not valid any more."""
        with self._lock:
            self._remove(key)

    def _remove(self, key: Hashable) -> None:
        kept = self.answers.pop(key, None)
        if kept is None:
            return
        for text in _aliases_of(key, kept):
            keys = self._aliases.get(text)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del self._aliases[text]

    def evict_below(self, below: Path) -> int:
        """Removes all answers at or below a path, by the requested path, the canonical one or one
        that the resolution went through; returns the number removed.
        """
        return self._drop_where(lambda kept: kept.is_at_or_below(below))

    def drop_behind_unknown_links(self) -> None:
        """Removes the answers that servers resolved by unknown links: any change may affect
        them.
        """
        self._drop_where(lambda kept: kept.has_unknown_links)

    def drop_cluster(self, cluster_id: str) -> int:
        """Removes all answers of a cluster; returns the number removed."""
        return self._drop_where(lambda kept: kept.cluster_id == cluster_id)

    def drop_at(self, canonical: str) -> None:
        """Removes the answers for exactly this path, and those whose resolution went through it."""
        with self._lock:
            self._remove(canonical)
            for key in tuple(self._aliases.get(canonical, ())):
                self._remove(key)

    def drop_above(self, path: Path, mount: Path) -> None:
        """Removes the answers for the directories from ``mount`` down to the parent of ``path``: a
        change at ``path`` may change their counts.
        """
        for length in range(len(mount), len(path)):
            self.drop_at(str(Path(path.segments[:length])))

    def _drop_where(self, condition: Callable[[CachedAnswer], bool]) -> int:
        # The hot path needs a plain dict, so this scans all answers: it is rarely called.
        with self._lock:
            keys = [key for key, kept in self.answers.items() if condition(kept)]
            for key in keys:
                self._remove(key)
            return len(keys)

    # -- referrals -------------------------------------------------------------------------

    def add_referral(self, referral: Referral, seconds: int, since: float) -> None:
        """Stores a referral that its target confirmed, for ``seconds`` from ``since``.

        A new mount changes the owner of the paths below it, so answers of the previous owner are
        removed (R21).
        """
        mount = referral.mount
        until = since + seconds
        if mount is None or seconds <= 0 or until <= self._clock():
            return
        with self._lock:
            known = self._referrals.pop(mount.segments, None)
            same = known is not None and known.referral.cluster_id == referral.cluster_id
            while len(self._referrals) >= self._max_referrals:
                del self._referrals[next(iter(self._referrals))]
            self._referrals[mount.segments] = CachedReferral(referral, until)
        if not same:
            self._drop_where(
                lambda kept: (
                    mount.is_prefix_of(kept.canonical)
                    and kept.cluster_id != referral.cluster_id
                    and len(kept.mount) <= len(mount)
                )
            )

    def remove_referral(self, mount: Path) -> None:
        """Removes the referral to a mount whose target did not answer as its owner."""
        with self._lock:
            self._referrals.pop(mount.segments, None)

    def unlearn_below(self, path: Path) -> None:
        """Removes the referrals to mounts at or below a path where a mount changed."""
        with self._lock:
            below = [one for one in self._referrals if path.is_prefix_of(Path(one))]
            for segments in below:
                del self._referrals[segments]

    def note_own_mount(self, mount: Path) -> None:
        """Records the mount of a start server: paths below it need no referral from the cache."""
        if mount not in self._own_mounts:
            with self._lock:
                if len(self._own_mounts) >= 64:
                    self._own_mounts.clear()
                self._own_mounts[mount] = None

    def deepest_referral(self, path: Path) -> Referral | None:
        """Returns the deepest known mount above the path as a referral with its remaining lifetime;
        None if no cached mount is deeper than that of the start servers.

        Whole segments are compared; the cost grows with the path's depth, not with the cache.
        """
        nearest = max((len(own) for own in self.own_mounts() if own.is_prefix_of(path)), default=0)
        now = self._clock()
        for length in range(len(path), nearest, -1):
            known = self._referrals.get(path.segments[:length])
            if known is not None and known.until - now >= 1:
                return known.referral._replace(
                    way=AskedBecause.CACHE,
                    lifetime_seconds=int(known.until - now),
                    age_seconds=0,
                )
        return None

    def referrals(self) -> Iterator[CachedReferral]:
        """Yields all referrals, for the cache file."""
        yield from list(self._referrals.values())

    def own_mounts(self) -> list[Path]:
        """Returns the mounts of the start servers: a copy, since other threads add to them."""
        return list(self._own_mounts)

    def clear(self) -> None:
        """Removes all answers, referrals and mounts."""
        with self._lock:
            self.answers.clear()
            self._aliases.clear()
            self._referrals.clear()
            self._own_mounts.clear()


def _aliases_of(key: Hashable, kept: CachedAnswer) -> Iterator[str]:
    """Yields the paths, other than its key, by which a change may name the answer."""
    canonical = str(kept.canonical)
    if canonical != key:
        yield canonical
    yield from map(str, kept.paths)
