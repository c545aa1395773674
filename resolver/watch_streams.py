"""The changes of clusters: watched for a caller, or followed to keep what is remembered fresh.

Refuses to read the changes: ``watch_stream.py`` keeps a stream of them alive, ``cache_refresh.py``
takes them into the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from resolver import errors
from resolver.answer_cache import Cache
from resolver.cached_lookup import CachedLookup
from resolver.lookup_options import LookupOptions, kind_number
from resolver.owner_calls import Owner, OwnerCalls
from resolver.path import Path
from resolver.resolution.state_machine import ResolutionOptions
from resolver.resolution.values import AbsentResult, AnswerResult, FailedResult, Sender
from resolver.transport import Transport

if TYPE_CHECKING:
    from resolver.cache_refresh import CacheRefresher
    from resolver.watch_stream import Watching

__all__ = ["WatchStreams"]

_CHECKPOINT_SECONDS: Final = 5
_GRACE_SECONDS: Final = 1.0
"""So much longer than for finding an owner the end of a thread is waited for."""


class WatchStreams:
    """Finds who has the changes of a path, and opens their stream. Thread-safe."""

    def __init__(
        self,
        lookups: CachedLookup,
        owners: OwnerCalls,
        cache: Cache,
        transport: Transport,
        rules: Callable[[LookupOptions], ResolutionOptions],
        clock: Callable[[], float],
        timeout_seconds: float,
    ) -> None:
        """``timeout_seconds``: of finding an owner again, while a stream goes on by itself."""
        self._lookups = lookups
        self._owners = owners
        self._cache = cache
        self._transport = transport
        self._rules = rules
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self.following: CacheRefresher | None = None
        """Made when first wanted; it has a thread a cluster."""

    def watch(self, path: Path, after: str, checkpoint_seconds: int, deadline: float) -> Watching:
        """Returns the changes at and below a path; see ``Resolver.watch``."""
        self._owners.owner_of(path, LookupOptions(), deadline)
        return self._watching(path, after, checkpoint_seconds)

    def follow(self, path: Path, deadline: float) -> None:
        """Follows the cluster that owns a path; see ``Resolver.follow``."""
        since = self._clock()
        sender, seconds = self._prove(path, deadline)
        self.follow_all(automatic=False).follow(sender, since + seconds)

    def follow_all(self, *, automatic: bool) -> CacheRefresher:
        """Returns what follows clusters; ``automatic``: each cluster that answers."""
        from resolver.cache_refresh import CacheRefresher

        if self.following is None:
            self.following = CacheRefresher(
                self._cache,
                lambda path, token: self._watching(path, token, _CHECKPOINT_SECONDS),
                lambda mount: self._prove(mount, self._soon()),
                self._clock,
                automatic=automatic,
            )
            self._lookups.freshness = self.following
        return self.following

    def close(self) -> None:
        """Ends the streams that are followed; a watch is its caller's to close."""
        if self.following is not None:
            self.following.close(self._timeout_seconds + _GRACE_SECONDS)

    def _watching(self, path: Path, after: str, checkpoint_seconds: int) -> Watching:
        from resolver.watch_stream import Watching

        def find_owner(again: bool) -> Owner:  # noqa: FBT001 - one caller
            wanted = LookupOptions(kind_number("directory"))
            return self._owners.owner_of(path, wanted, self._soon(), fresh=again)

        return Watching(
            path,
            after,
            find_owner,
            self._transport,
            checkpoint_seconds=checkpoint_seconds,
            clock=self._clock,
        )

    def _prove(self, path: Path, deadline: float) -> tuple[Sender, int]:
        """Returns who owns a path, by the tree and not by memory, and how long that may be
        believed.
        """
        wanted = LookupOptions(kind_number("directory"))
        rules = self._rules(wanted).by_referrals().without_hints()
        since = self._clock()
        walk = self._lookups.resolve_uncached(path, rules, wanted, "", deadline)
        self._lookups.add_referral(walk, since)
        end = walk.next_query()
        if isinstance(end, AnswerResult | AbsentResult):
            return end.sender, end.basis_ttl_seconds
        raise end.error if isinstance(end, FailedResult) else errors.Internal(f"{path}: {end}")

    def _soon(self) -> float:
        return self._clock() + self._timeout_seconds
