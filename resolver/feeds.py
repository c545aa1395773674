"""The changes of clusters: watched for a caller, or followed to keep what is remembered fresh.

Refuses to read the changes: ``watch_stream.py`` keeps a stream of them alive, ``following.py``
takes them into the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from resolver import errors
from resolver.answer_cache import Cache
from resolver.cached_lookup import Lookups
from resolver.owner_calls import Owner, Owners
from resolver.path import Path
from resolver.resolution.outcome import Failed, Found, NotThere, Sender
from resolver.resolution.state_machine import Rules
from resolver.transport import Transport
from resolver.wanted import Wanted, kind_of

if TYPE_CHECKING:
    from resolver.following import Following
    from resolver.watch_stream import Watching

__all__ = ["Feeds"]

_CHECKPOINT_SECONDS: Final = 5
_GRACE_SECONDS: Final = 1.0
"""So much longer than for finding an owner the end of a thread is waited for."""


class Feeds:
    """Finds who has the changes of a path, and opens their stream. Thread-safe."""

    def __init__(
        self,
        lookups: Lookups,
        owners: Owners,
        cache: Cache,
        transport: Transport,
        rules: Callable[[Wanted], Rules],
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
        self.following: Following | None = None
        """Made when first wanted; it has a thread a cluster."""

    def watch(self, path: Path, after: str, checkpoint_seconds: int, deadline: float) -> Watching:
        """The changes at and below a path; see ``Resolver.watch``."""
        self._owners.owner_of(path, Wanted(), deadline)
        return self._watching(path, after, checkpoint_seconds)

    def follow(self, path: Path, deadline: float) -> None:
        """Follow the cluster that owns a path; see ``Resolver.follow``."""
        since = self._clock()
        sender, seconds = self._prove(path, deadline)
        self.follow_all(automatic=False).follow(sender, since + seconds)

    def follow_all(self, *, automatic: bool) -> Following:
        """What follows clusters; ``automatic``: each cluster that answers."""
        from resolver.following import Following

        if self.following is None:
            self.following = Following(
                self._cache,
                lambda path, token: self._watching(path, token, _CHECKPOINT_SECONDS),
                lambda mount: self._prove(mount, self._soon()),
                self._clock,
                automatic=automatic,
            )
            self._lookups.freshness = self.following
        return self.following

    def close(self) -> None:
        """End the streams that are followed; a watch is its caller's to close."""
        if self.following is not None:
            self.following.close(self._timeout_seconds + _GRACE_SECONDS)

    def _watching(self, path: Path, after: str, checkpoint_seconds: int) -> Watching:
        from resolver.watch_stream import Watching

        def find_owner(again: bool) -> Owner:  # noqa: FBT001 - one caller
            wanted = Wanted(kind_of("directory"))
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
        """Who owns a path, by the tree and not by memory, and how long that may be believed."""
        wanted = Wanted(kind_of("directory"))
        rules = self._rules(wanted).by_referrals().without_hints()
        since = self._clock()
        walk = self._lookups.walk(path, rules, wanted, "", deadline)
        self._lookups.learn(walk, since)
        end = walk.next()
        if isinstance(end, Found | NotThere):
            return end.sender, end.grounds_seconds
        raise end.error if isinstance(end, Failed) else errors.Internal(f"{path}: {end}")

    def _soon(self) -> float:
        return self._clock() + self._timeout_seconds
