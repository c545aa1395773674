"""BaseResolver: what a resolver is made of, from its keywords to its end; refuses to ask anything.

One transport, one cache and one clock, and the parts that work with them; ``client.py`` has the
verbs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from resolver import errors
from resolver.answer_cache import DEFAULT_ENTRIES, Cache
from resolver.cached_lookup import CachedLookup, Session
from resolver.endpoints import AllowList, ServerHealth
from resolver.host_port import parse_servers
from resolver.lookup_options import LookupOptions
from resolver.owner_calls import OwnerCalls
from resolver.resolution.state_machine import ResolutionOptions
from resolver.resolution_driver import Positions, ResolutionDriver
from resolver.transport import GrpcTransport, Transport
from resolver.watch_streams import WatchStreams

if TYPE_CHECKING:
    from resolver.answer_cache_file import AnswerCacheFile
    from resolver.cache_refresh import CacheRefresher
    from resolver.credentials import UserCredentials

__all__ = ["BaseResolver"]

DEFAULT_TIMEOUT_SECONDS: Final = 2.0
DEFAULT_STALE_SECONDS: Final = 86_400.0


class BaseResolver:
    """A resolver without verbs; a context manager. Nothing is asked when it is made.

    Args:
        servers: ``host:port`` of the directory servers to begin with, all alike; a list or one
            text with commas. Any cluster's will do: the nearest are best.
        timeout_seconds: of each verb, all its calls together, unless the call says otherwise.
        max_entries: answers that are remembered; 0: none, only where mounts are.
        max_stale_seconds: so old may be an answer that is given, marked stale, while the owner
            cannot be asked; 0 = never.
        recursive: let the servers walk on in one's name, to resolve. Whoever calls an owner, to
            list, check or change, or resolves for a producer, is referred to it all the same.
        ca: PEM file; whose certificates of servers are believed. With it TLS is spoken, to
            every server, and each must have a certificate for the name or address it was
            dialled by.
        cert: PEM file: the certificate that says who one is; with ``key``.
        key: PEM file: its private key, without a password.
        token: a bearer token that says who one is. It is sent over TLS, or within this machine.
        token_file: the same, read from a file, and again when that changes.
        principal: whose memory this is: a file of another's is not read. By default it goes by
            who one says one is.
        cache_file: where to remember answers across restarts; one file for one set of servers
            and one principal. Whatever is wrong with it, it is as if it were not there.
        watch: follow the changes of the clusters that answer, so that what was resolved once is
            given again without a call, and changes are seen as they happen. What a server
            resolved in the client's name (``recursive``) by way of links, or found absent,
            names no clusters on its way to follow: it is kept for its lifetime (by default 60
            and 5 seconds), unless a call's token asks for what is newer.
        transport: how to reach servers; given, it is the caller's to close.
        health: how servers fared, for a caller who remembers it; by default nothing is known.
        allow: which endpoints of referrals may be asked: CIDR networks and domains, such as
            ``["10.0.0.0/8", "example.com"]``, or an ``AllowList``; by default all. Special
            addresses never are, and this machine only when all of ``servers`` are on it.
        clock: seconds that never go back.

    Raises:
        InvalidArgument: a server is no ``host:port``, ``allow`` has something else, or a file
            cannot be used.
    """

    def __init__(  # noqa: PLR0913 - each is a keyword with a default, documented above
        self,
        servers: str | Sequence[str],
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        max_entries: int = DEFAULT_ENTRIES,
        max_stale_seconds: float = DEFAULT_STALE_SECONDS,
        recursive: bool = False,
        ca: str | os.PathLike[str] = "",
        cert: str | os.PathLike[str] = "",
        key: str | os.PathLike[str] = "",
        token: str = "",
        token_file: str | os.PathLike[str] = "",
        principal: str = "",
        cache_file: str | os.PathLike[str] | None = None,
        watch: bool = False,
        transport: Transport | None = None,
        health: ServerHealth | None = None,
        allow: AllowList | Sequence[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        start = parse_servers(servers)
        self.servers = tuple(str(endpoint) for endpoint in start)
        self._timeout_seconds = timeout_seconds
        self._recursive = recursive
        self._clock = clock
        self._allow = allow if isinstance(allow, AllowList) else AllowList.of(allow, start)
        self.health = health or ServerHealth(clock)
        """How servers fared lately."""
        login = (os.fspath(ca), os.fspath(cert), os.fspath(key), token, os.fspath(token_file))
        if transport is not None and any(login):
            raise errors.InvalidArgument("transport: with one, ca, cert, key and token are its own")
        credentials = _credentials(login) if any(login) else None
        self._owns_transport = transport is None
        self.transport: Transport = (
            transport if transport is not None else GrpcTransport(credentials, named=self.servers)
        )
        principal = principal or (credentials.fingerprint if credentials is not None else "")
        self.cache = Cache(clock, max_entries=max_entries, principal=principal)
        """What is remembered: a look at it asks nobody."""
        self._assemble(max_stale_seconds)
        self._kept = self.cache.answers.get  # bound once: a warm resolve is little else
        self._disk = self._open_disk(cache_file) if cache_file is not None else None
        if watch:
            self._feeds.follow_all(automatic=True)

    def _assemble(self, max_stale_seconds: float) -> None:
        """Makes the parts that ask, of those that remember and reach."""
        transport, health, cache, clock = self.transport, self.health, self.cache, self._clock
        positions = Positions()
        self._lookups = CachedLookup(
            lambda: ResolutionDriver(transport, health, positions, clock),
            cache,
            self._rules,
            clock,
            max_stale_seconds,
        )
        self._owners = OwnerCalls(self._lookups, cache, transport, health, self._rules, clock)
        self._feeds = WatchStreams(
            self._lookups,
            self._owners,
            cache,
            transport,
            self._rules,
            clock,
            self._timeout_seconds,
        )

    def _open_disk(self, file: str | os.PathLike[str]) -> AnswerCacheFile:
        from resolver.answer_cache_file import AnswerCacheFile

        disk = AnswerCacheFile(file, self.cache, self.servers, self._clock)
        disk.load()
        return disk

    @property
    def session(self) -> Session:
        """What this client wrote itself, which its reads wait for."""
        return self._lookups.session

    @property
    def following(self) -> CacheRefresher | None:
        """What follows the changes of clusters; None where none is followed."""
        return self._feeds.following

    def close(self) -> None:
        """Gives back what was opened. The resolver cannot be used afterwards."""
        self._lookups.own_process()  # what a parent process opened is the parent's to close
        self._feeds.close()
        if self._disk is not None:
            self._disk.save_if_possible()
        if self._owns_transport:
            self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _seconds(self, timeout_seconds: float | None) -> float:
        return self._timeout_seconds if timeout_seconds is None else timeout_seconds

    def _deadline(self, timeout_seconds: float | None) -> float:
        return self._clock() + self._seconds(timeout_seconds)

    def _rules(self, wanted: LookupOptions) -> ResolutionOptions:
        return ResolutionOptions(
            start=self.servers,
            hint=self.cache.deepest_referral,
            refusal=self._allow.why_not_allowed,
            choose=self.health.order,
            # Its request does not say that a writer stays with a link's first target.
            recursive=self._recursive and not wanted.for_writes,
            for_writes=wanted.for_writes,
        )


def _credentials(login: tuple[str, str, str, str, str]) -> UserCredentials:
    from resolver.credentials import UserCredentials
    from resolver.user_config import LoginSettings

    return UserCredentials(LoginSettings(*login))
