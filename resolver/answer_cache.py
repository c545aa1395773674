"""What a client remembers: answers and referrals, with the time until which each may be used.

Refuses to extend anything by being asked for it or handed on: a lifetime runs from the owner's
answer, by the monotonic clock (R11, G12). One cache is one principal's: answers got for
one are not given to another.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Final, NamedTuple

from resolver.path import Path
from resolver.resolution.values import AskedBecause, Referral
from resolver.revision_token import NOTHING_READ, Position, ReadPositions
from resolver.topic_location import TopicLocation

__all__ = ["Cache", "CachedAnswer", "CachedReferral", "FreshnessMark"]

DEFAULT_ENTRIES: Final = 100_000


class FreshnessMark:
    """Mark of a cluster whose changes are followed, shared by all answers that depend on it."""

    __slots__ = ("applied", "incarnation", "revision", "until")

    def __init__(self, incarnation: str, revision: int) -> None:
        self.until = 0.0
        """By the clock: so long everything of the cluster that was not dropped is fresh."""
        self.incarnation = incarnation
        self.revision = revision
        """Changes up to here were received."""
        self.applied = revision
        """Of the changes up to here, each has dropped the answers that it touched."""


class CachedAnswer(NamedTuple):
    """One answer, or an absence (``location`` is None)."""

    location: TopicLocation | None
    until: float
    """By the clock: fresh until then."""
    path: Path
    """As asked."""
    canonical: Path
    cluster_id: str
    mount: Path
    """Of the cluster that answered."""
    asked_at: float
    """By the clock, when it was asked for: its age counts from then."""
    message: str = ""
    metadata: Mapping[str, str] | None = None
    attempts: tuple[str, ...] = ()
    """Of an absence: the questions that led to it."""
    followed: FreshnessMark | None = None
    original: TopicLocation | None = None
    """Where ``location`` is marked stale: the answer as it was given."""
    read: ReadPositions = NOTHING_READ
    """Of every cluster on the way to it."""
    paths: tuple[Path, ...] = ()
    """Others that were asked for on the way: a change at or above one may change the answer."""

    def is_fresh(self, now: float) -> bool:
        """True if it may be given out as it is."""
        return self.until > now or (self.followed is not None and self.followed.until > now)

    def reaches(self, wanted: Mapping[str, Position], now: float) -> bool:
        """True if it is good for a token of these positions."""
        read, followed = self.read, self.followed
        if followed is not None and followed.until > now:
            # No change up to there touched it, or it would have been dropped.
            seen = Position(followed.incarnation, followed.applied)
            read = read.advanced(self.cluster_id, seen)
        return read.reaches(wanted)

    def is_at_or_below(self, path: Path) -> bool:
        """True if it is an answer for this path or one below, by whichever way it was reached."""
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
        age = max(0.0, now - self.asked_at) + given.age_seconds
        return dataclasses.replace(given, stale=True, age_seconds=age)


class CachedReferral(NamedTuple):
    """A mount that the tree, or a hint whose target answered for it, led to."""

    referral: Referral
    until: float


class Cache:
    """Cache of the answers and referrals of one principal. Thread-safe.

    ``answers`` is read without a lock by the hot path of ``Resolver.resolve``: a dict's ``get`` is
    one step under the interpreter's lock. The oldest are dropped beyond ``max_entries``; which
    were used last is not tracked, since that would cost each use more than the use itself.
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
        """Keys of answers by a path on the way that is not itself the key: changes name that."""
        self._referrals: dict[tuple[str, ...], CachedReferral] = {}
        self._own_mounts: dict[Path, None] = {}

    # -- answers ---------------------------------------------------------------------------

    def good(
        self, key: Hashable, wanted: Mapping[str, Position], now: float
    ) -> CachedAnswer | None:
        """Returns what is remembered, if it is fresh and good for a token of these positions."""
        kept = self.answers.get(key)
        if kept is None or not kept.is_fresh(now) or not kept.reaches(wanted, now):
            return None
        # A change that was applied between the look and the comparison has dropped it since.
        return kept if not wanted or self.answers.get(key) is kept else None

    def put(self, key: Hashable, kept: CachedAnswer) -> None:
        """Remembers an answer in the place of what was known."""
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
        """Gives out the last good answer, marked stale, for some seconds without asking again."""
        stale = old._replace(location=old.as_stale(now), until=now + seconds, followed=None)
        with self._lock:
            # What is kept remains the answer as it was: its age counts from then, also next time.
            self.answers[key] = stale._replace(original=old.original or old.location)
        return stale

    def renew_lock(self) -> None:
        """Replaces the lock after a fork: the parent's threads that held it do not exist here."""
        self._lock = threading.Lock()

    def forget(self, key: Hashable) -> None:
        """Removes an answer that no longer holds."""
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
        """Forgets all answers at or below a path, by the path that was asked, the canonical one or
        one on the way between them; how many there were.
        """
        return self._drop_where(lambda kept: kept.is_at_or_below(below))

    def drop_cluster(self, cluster_id: str) -> int:
        """Forgets all answers of a cluster; how many there were."""
        return self._drop_where(lambda kept: kept.cluster_id == cluster_id)

    def drop_at(self, canonical: str) -> None:
        """Forgets the answers for, or by way of, this very path, however they were asked for."""
        with self._lock:
            self._remove(canonical)
            for key in tuple(self._aliases.get(canonical, ())):
                self._remove(key)

    def _drop_where(self, condition: Callable[[CachedAnswer], bool]) -> int:
        # The hot path wants a plain dict; what touches more than one path is rare, so that a look
        # at all answers is fair.
        with self._lock:
            keys = [key for key, kept in self.answers.items() if condition(kept)]
            for key in keys:
                self._remove(key)
            return len(keys)

    # -- referrals -------------------------------------------------------------------------

    def add_referral(self, referral: Referral, seconds: int, since: float) -> None:
        """Stores a referral whose target answered as it should, for ``seconds`` from ``since``.

        A mount that was not known before takes the paths below it from whoever answered for them
        until now: those answers are forgotten (R21).
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
        """Removes the referral to a mount, because its target did not answer as the mount's
        owner.
        """
        with self._lock:
            self._referrals.pop(mount.segments, None)

    def unlearn_below(self, path: Path) -> None:
        """Removes the referrals to mounts at or below a path, because a mount there was changed."""
        with self._lock:
            below = [one for one in self._referrals if path.is_prefix_of(Path(one))]
            for segments in below:
                del self._referrals[segments]

    def note_own_mount(self, mount: Path) -> None:
        """Records that a start server is mounted there: paths below it need no referral from the
        cache.
        """
        if mount not in self._own_mounts:
            with self._lock:
                if len(self._own_mounts) >= 64:
                    self._own_mounts.clear()
                self._own_mounts[mount] = None

    def deepest_referral(self, path: Path) -> Referral | None:
        """Returns the deepest mount known that the path lies in, as a referral with what is left of
        its lifetime; None where the servers one begins with are as near.

        By whole segments; it costs by the depth of the path, not by how much is known.
        """
        nearest = max((len(own) for own in self._own_mounts if own.is_prefix_of(path)), default=0)
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
        """Yields all that are known, for the disk."""
        yield from list(self._referrals.values())

    def own_mounts(self) -> list[Path]:
        """Returns where the servers one begins with are mounted, for the disk."""
        return list(self._own_mounts)

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self.answers.clear()
            self._aliases.clear()
            self._referrals.clear()
            self._own_mounts.clear()


def _aliases_of(key: Hashable, kept: CachedAnswer) -> Iterator[str]:
    """Yields the paths other than its key that a change of the answer may be named by."""
    canonical = str(kept.canonical)
    if canonical != key:
        yield canonical
    yield from map(str, kept.paths)
