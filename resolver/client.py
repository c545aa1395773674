"""Resolver: the public client of directory servers.

``resolve`` answers from the cache while an answer is fresh, otherwise by a resolution that begins
at the nearest directory servers. Other methods import their modules at the first use. The file is
long because it documents each method and keyword where callers read it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from resolver import errors, user_config
from resolver.answer_cache import DEFAULT_ENTRIES, Cache
from resolver.cached_lookup import CachedLookup, Session, Trace, trace_of
from resolver.endpoints import AllowList, ServerHealth
from resolver.errors import KdirError
from resolver.host_port import parse_servers
from resolver.lookup_options import LookupOptions, as_path, kind_number
from resolver.owner_calls import Owner, OwnerCalls
from resolver.path import ROOT, Path
from resolver.resolution.state_machine import ResolutionOptions
from resolver.resolution_driver import ResolutionDriver
from resolver.revision_token import NewestPositions
from resolver.topic_location import Listener, TopicLocation
from resolver.transport import GrpcTransport, Transport
from resolver.user_config import LoginSettings

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from resolver.access_requests import Checked
    from resolver.answer_cache_file import AnswerCacheFile
    from resolver.credentials import UserCredentials
    from resolver.directory_listing import Listing
    from resolver.resolution.state_machine import ResolutionStateMachine
    from resolver.watch_streams import CacheRefresher, Watching, WatchStreams

__all__ = ["Listener", "Owner", "Resolver", "TopicLocation"]

DEFAULT_TIMEOUT_SECONDS: Final = 2.0
DEFAULT_STALE_SECONDS: Final = 86_400.0
_MOST_TIMEOUT_SECONDS: Final = 365 * 86_400.0
"""Longest deadline, also where the caller gave infinity, which neither gRPC nor threads take."""


class Resolver:
    """Client of directory servers: resolves paths, and calls the owners of paths. A context
    manager. Thread-safe. The constructor calls no server.

    Args:
        servers: ``host:port`` of the start servers, all of one cluster; a list, or one text with
            commas. Any cluster can be used; the nearest is best. None: the servers in the variable
            ``KDIR_AT``, else those of the current context (``kdir context``), with its credentials
            and allowed servers, else the server on this machine.
        timeout_seconds: default time limit of a method, for all its calls together.
        max_entries: most answers in the cache; 0: only mounts are cached.
        max_stale_seconds: greatest age of an answer that is returned, marked stale, while the owner
            cannot be reached; 0 = no stale answers.
        recursive: ask the servers to follow referrals for the client. Listings, checks, changes and
            resolving for a producer still go to the owner itself.
        ca: PEM file of the CAs that are trusted for servers' certificates. If set, every connection
            uses TLS, and each server needs a certificate for the name or address that was dialled.
        cert: PEM file of the client's certificate; with ``key``.
        key: PEM file of its private key, without a password.
        token: bearer token of the client. It is sent over TLS, or within this machine.
        token_file: file of a bearer token, read again when it changes.
        principal: name of the caller to which the cached answers belong; a ``cache_file`` of
            another principal is not read. By default a fingerprint of the credentials.
        cache_file: file that keeps answers across restarts; one file for one set of servers and one
            principal. A file that cannot be used is ignored.
        watch: follow the changes of the clusters that answer, so that cached answers stay fresh
            without a call and are removed when they change. Two kinds are cached only for their
            lifetime: answers behind links (by default 60 seconds), and absences that a server found
            for the client (``recursive``; 5 seconds). A call's token can require newer ones.
        transport: transport to the servers; the caller closes the one that it passes.
        health: recent results of servers, from an earlier resolver; by default none.
        allow: endpoints of referrals that may be called: CIDR networks and domains, such as
            ``["10.0.0.0/8", "example.com"]``, or an ``AllowList``; by default all. Special
            addresses are never called, and this machine only if all of ``servers`` are on it.
        clock: returns monotonic seconds.

    Raises:
        InvalidArgument: a server is no ``host:port``, an element of ``allow`` is neither a network
            nor a domain, or a file cannot be used.
        Unavailable: a file cannot be read now, such as after a disk error.
    """

    def __init__(  # noqa: PLR0913 - each is a keyword with a default, documented above
        self,
        servers: str | Sequence[str] | None = None,
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
        login = LoginSettings(
            os.fspath(ca), os.fspath(cert), os.fspath(key), token, os.fspath(token_file)
        )
        if servers is None:
            named: str | Sequence[str] = user_config.choose_servers("", "", os.environ)
            if transport is None and not any(login):
                login = user_config.choose_credentials("", "", os.environ)
            if allow is None:
                allow = user_config.choose_allow("", "", os.environ)
        else:
            named = servers
        start = parse_servers(named)
        self.servers = tuple(str(endpoint) for endpoint in start)
        self._timeout_seconds = min(timeout_seconds, _MOST_TIMEOUT_SECONDS)
        self._recursive = recursive
        self._clock = clock
        self._allow = allow if isinstance(allow, AllowList) else AllowList.of(allow, start)
        self.health = health or ServerHealth(clock)
        """Recent results of the servers."""
        if transport is not None and any(login):
            raise errors.InvalidArgument("transport: given together with ca, cert, key or token")
        credentials = _credentials(login) if any(login) else None
        self._owns_transport = transport is None
        self.transport: Transport = (
            transport if transport is not None else GrpcTransport(credentials, named=self.servers)
        )
        principal = principal or (credentials.fingerprint if credentials is not None else "")
        self.cache = Cache(clock, max_entries=max_entries, principal=principal)
        """Cache of answers and referrals; reading it calls no server."""
        self._assemble(max_stale_seconds)
        self._kept = self.cache.answers.get  # bound once: a warm resolve is little else
        self._disk = self._open_disk(cache_file) if cache_file is not None else None
        if watch:
            self._feeds().follow_all(automatic=True)

    def _assemble(self, max_stale_seconds: float) -> None:
        """Creates the cached lookup and the owner calls from the cache, transport and health."""
        transport, health, cache, clock = self.transport, self.health, self.cache, self._clock
        positions = NewestPositions()
        self._lookups = CachedLookup(
            lambda: ResolutionDriver(transport, health, positions, clock),
            cache,
            self._rules,
            clock,
            max_stale_seconds,
        )
        self._owners = OwnerCalls(self._lookups, cache, transport, health, self._rules, clock)
        self._watch_streams: WatchStreams | None = None

    def _feeds(self) -> WatchStreams:
        """Returns the watch streams, created at the first use."""
        from resolver.watch_streams import WatchStreams

        with self._lookups.own_process().making:
            if self._watch_streams is None:
                self._watch_streams = WatchStreams(
                    self._lookups,
                    self._owners,
                    self.cache,
                    self.transport,
                    self._rules,
                    self._clock,
                    self._timeout_seconds,
                    self._save_now_and_then,
                )
            return self._watch_streams

    def _open_disk(self, file: str | os.PathLike[str]) -> AnswerCacheFile:
        from resolver.answer_cache_file import AnswerCacheFile

        disk = AnswerCacheFile(file, self.cache, self.servers, self._clock)
        disk.load()
        return disk

    def _save_now_and_then(self) -> None:
        if self._disk is not None:
            self._disk.save_now_and_then()

    @property
    def session(self) -> Session:
        """This client's own writes; its reads are at least as new."""
        return self._lookups.session

    @property
    def following(self) -> CacheRefresher | None:
        """Refresher that follows the changes of clusters; None if none is followed."""
        return None if self._watch_streams is None else self._watch_streams.following

    def close(self) -> None:
        """Closes the streams and the transport that it opened, and saves the cache file. The
        resolver cannot be used afterwards.
        """
        self._lookups.own_process()  # after a fork: the parent process closes its own streams
        if self._watch_streams is not None:
            self._watch_streams.close()
        if self._disk is not None:
            self._disk.save_if_possible()
        if self._owns_transport:
            self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _seconds(self, timeout_seconds: float | None) -> float:
        wanted = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        return min(wanted, _MOST_TIMEOUT_SECONDS)

    def _deadline(self, timeout_seconds: float | None) -> float:
        return self._clock() + self._seconds(timeout_seconds)

    def _rules(self, wanted: LookupOptions) -> ResolutionOptions:
        return ResolutionOptions(
            start=self.servers,
            hint=self.cache.deepest_referral,
            refusal=self._allow.why_not_allowed,
            choose=self.health.order,
            # A recursive request has no field for ``for_writes``.
            recursive=self._recursive and not wanted.for_writes,
            for_writes=wanted.for_writes,
        )

    # -- resolving -------------------------------------------------------------------------

    def resolve(
        self,
        path: str | Path,
        *,
        prefer: str = "",
        token: str = "",
        no_follow: bool = False,
        for_writes: bool = False,
        timeout_seconds: float | None = None,
    ) -> TopicLocation:
        """Returns the location of a path.

        Args:
            path: canonical.
            prefer: ``directory`` to get the directory where a topic has the same name.
            token: the answer is at least as new as this token, and as this client's own writes.
            no_follow: return a link or mount at the path itself, without following it.
            for_writes: do not go on to a link's next target while one is unreachable, unless the
                link has ``writes`` = ``follow``: an outage must not redirect data.
            timeout_seconds: time limit for all hops together.

        Raises:
            InvalidPath: not canonical.
            Absent: the owner answered that there is no such path.
            Unreachable, NotReady, StoreUnavailable, Lame: no server of the owner answered.
            NoRoute: no referral leads to the path from the start servers.
            ReferralLoop, BadReferral, TooManyHops: the tree itself is wrong.
            DeadlineExceeded, PermissionDenied, TokenExpired, TokenFromFuture.
        """
        if not (token or prefer or no_follow or for_writes):
            # Cached answer: one dict lookup, no lock, no call.
            kept = self._kept(path)
            if kept is not None and kept.location is not None:
                now = self._clock()
                if kept.until > now or (kept.followed is not None and kept.followed.until > now):
                    return kept.location
        found = self._lookups.resolve_path(
            as_path(path),
            LookupOptions(kind_number(prefer), no_follow, for_writes),
            token,
            self._deadline(timeout_seconds),
        )
        self._save_now_and_then()
        return found

    def resolve_many(
        self,
        paths: Iterable[str | Path],
        *,
        prefer: str = "",
        token: str = "",
        no_follow: bool = False,
        for_writes: bool = False,
        timeout_seconds: float | None = None,
    ) -> list[TopicLocation | KdirError]:
        """Returns the locations of many paths, in the order of ``paths``; where one failed, its
        error is in its place.

        Arguments as for ``resolve``; the default time limit is one second longer for each 2,000
        paths. Paths at the same servers are sent in one call.

        Raises:
            TypeError: ``paths`` is one path instead of several.
        """
        if isinstance(paths, str | Path):
            raise TypeError(f"paths: found one path, {str(paths)!r}; expected several: [path, …]")
        wanted = LookupOptions(kind_number(prefer), no_follow, for_writes)
        parsed = [_path_or_error(path) for path in paths]
        if timeout_seconds is None:
            timeout_seconds = self._timeout_seconds + len(parsed) / 2000
        deadline = self._deadline(timeout_seconds)
        good = [path for path in parsed if isinstance(path, Path)]
        found = self._lookups.find_many(good, wanted, token, deadline)
        self._save_now_and_then()
        return [found[path] if isinstance(path, Path) else path for path in parsed]

    def walk_many(
        self,
        paths: Sequence[Path],
        *,
        prefer: int = 0,
        token: str = "",
        no_follow: bool = False,
        timeout_seconds: float | None = None,
    ) -> list[ResolutionStateMachine]:
        """Returns a finished resolution for each path; for a server that resolves for its callers.
        Only the mounts that they find are cached.

        Raises:
            InvalidToken: not a token of a directory server.
        """
        since = self._clock()
        wanted = LookupOptions(prefer, no_follow)
        walks = self._lookups.walk_many(paths, wanted, token, self._deadline(timeout_seconds))
        for walk in walks:
            self._lookups.add_referral(walk, since)
        return walks

    # -- calling owners --------------------------------------------------------------------

    def owner_of(
        self,
        path: str | Path,
        *,
        no_follow: bool = False,
        for_writes: bool = False,
        timeout_seconds: float | None = None,
    ) -> Owner:
        """Returns the owner of a path, also if nothing exists there yet.

        Raises:
            KdirError: the errors of ``resolve``, except Absent.
        """
        wanted = LookupOptions(0, no_follow, for_writes)
        return self._owners.owner_of(as_path(path), wanted, self._deadline(timeout_seconds))

    def call(
        self,
        path: str | Path,
        method: str,
        request: Message,
        *,
        no_follow: bool | None = None,
        at_parent: bool = False,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Calls a method of the contract at the owner of a path.

        The request's ``path`` (and ``new_path``) is replaced by the canonical one, an empty
        ``request_id`` is filled in, and the token of this client's writes is merged into ``token``.
        If a server does not answer, others of the owner are called; if the owner answers that the
        path is not its own, the path is resolved again and the call repeated once.

        Args:
            path: canonical; it need not exist.
            method: such as ``DirectoryService.CreateEntry``.
            request: the method's request message; not changed.
            no_follow: whether the call is about a link or mount at the path itself; by default True
                for CreateEntry, DeleteEntry and MoveEntry.
            at_parent: call the owner of the directory that holds the entry: for mounts, whose own
                path belongs to the child.
            timeout_seconds: time limit for the resolution and all calls together.

        Raises:
            KdirError: the error of the owner, or of the resolution.
        """
        return self._owners.call(
            as_path(path),
            method,
            request,
            self._deadline(timeout_seconds),
            no_follow=no_follow,
            at_parent=at_parent,
        )

    # -- access ----------------------------------------------------------------------------

    def check(  # noqa: PLR0913 - each is a keyword with a default, documented below
        self,
        path: str | Path,
        principal: str,
        operation: str,
        *,
        host: str = "",
        resource: str = "topic",
        name: str = "",
        prefer: str = "",
        explain: bool = False,
        token: str = "",
        timeout_seconds: float | None = None,
    ) -> Checked:
        """Returns whether a principal may do something on an entry, and which grant decides.

        Args:
            path: canonical; it need not exist.
            principal: such as ``User:alice``; a name without a type is a user.
            operation: operation of Kafka, such as ``read`` or ``alter-configs``.
            host: address of the principal; empty = only grants for every host (``*``) count.
            resource: ``topic``, or ``group``, ``transactional-id`` or ``cluster`` of the cluster at
                the path.
            name: name of the group or transactional id.
            prefer: ``directory`` to check the directory where a topic has the same name.
            explain: add the result of each level of the path to ``Checked.response``.
            token: the answer is at least as new as this token.
            timeout_seconds: time limit for the resolution and all calls together.

        Raises:
            InvalidArgument: the operation, principal or host is invalid.
            KdirError: as ``resolve``; Absent also if the caller may not describe the entry and asks
                about another principal.
        """
        from resolver.access_requests import check_request, check_result

        request = check_request(
            str(path),
            principal,
            operation,
            host=host,
            resource=resource,
            name=name,
            kind=kind_number(prefer),
            explain=explain,
            token=token,
        )
        answer = self.call(
            path, "AccessService.CheckAccess", request, timeout_seconds=timeout_seconds
        )
        return check_result(answer)

    def authorize_any(
        self,
        principal: str,
        operation: str,
        resource: str = "topic",
        *,
        host: str = "",
        path: str | Path = "",
        timeout_seconds: float | None = None,
    ) -> bool:
        """True if a principal is allowed an operation on at least one resource of a kind (KIP-679)
        in the cluster that owns ``path``; empty ``path`` = the cluster of the start servers.

        Arguments as for ``check``.

        Raises:
            KdirError: as ``check``.
        """
        from resolver.access_requests import any_request
        from resolver.transport import method

        request = any_request(principal, operation, resource, host=host)
        name = "AccessService.AuthorizeAny"
        if path:
            answer = self.call(path, name, request, timeout_seconds=timeout_seconds)
        else:
            deadline = self._deadline(timeout_seconds)

            def ask(sent: str) -> Any:
                request.token = sent
                return self._owners.call_owner(self.servers, method(name), request, deadline)

            answer = self._lookups.call_with_session("", ask)
        return bool(answer.allowed)

    # -- reading more than one place -------------------------------------------------------

    def list(  # noqa: PLR0913 - each is a keyword with a default, documented below
        self,
        path: str | Path,
        *,
        recursive: bool = False,
        across: bool = True,
        name_glob: str = "",
        kinds: Iterable[str] = (),
        include_system: bool = False,
        page_size: int = 0,
        one_revision: bool = False,
        token: str = "",
        timeout_seconds: float | None = None,
    ) -> Listing:
        """Returns the entries of a directory, page by page as they are iterated.

        The targets of a union link are merged; if entries have the same name, that of the first
        target is returned. An entry that is not a directory lists itself. Parts whose servers did
        not answer are in ``Listing.not_listed``.

        Args:
            path: canonical.
            recursive: also list all entries below; links are listed, not followed.
            across: with ``recursive``, also list the clusters mounted below.
            name_glob: pattern that the last segment of an entry's path must match.
            kinds: kinds to list: ``directory``, ``topic``, ``link``, ``mount``; empty = all.
            include_system: also list entries whose name begins with ``__``.
            page_size: most entries on a page, up to 10,000; 0 = the server's default.
            one_revision: read all pages of a cluster at one revision, or raise ``RevisionGone``.
            token: the listing is at least as new as this token.
            timeout_seconds: time limit for each page, finding its server included.

        Raises:
            KdirError: nothing could be listed; as ``resolve``.
        """
        from resolver.directory_listing import DirectoryListings, Filter

        lists = DirectoryListings(self._lookups, self._owners, self._rules, self._clock)
        wanted = Filter(
            name_glob=name_glob,
            kinds=tuple(kind_number(kind) for kind in kinds),
            include_system=include_system,
        )
        return lists.open(
            as_path(path),
            wanted,
            recursive=recursive,
            across=across,
            page_size=page_size,
            one_revision=one_revision,
            token=token,
            timeout_seconds=self._seconds(timeout_seconds),
        )

    def which(
        self,
        cluster: str,
        topic: str,
        *,
        token: str = "",
        timeout_seconds: float | None = None,
    ) -> TopicLocation:
        """Returns the path of a Kafka topic: the reverse lookup.

        Args:
            cluster: name or id of the cluster; empty = the cluster of the first server that
                answers.
            topic: the topic's name in Kafka.
            token: the answer is at least as new as this token.
            timeout_seconds: time limit for all calls together.

        Raises:
            Absent: the cluster answered that it has no such topic, or the root that no such cluster
                is mounted.
            NoRoute: no referral leads to a cluster of this name, and the root does not answer, or
                lacks the link of one of its mounts.
            KdirError: as ``resolve``.
        """
        from kdir.v1.federation_pb2 import ListMountsRequest

        from resolver.reverse_lookup import ReverseLookup, unknown_cluster

        locator = ReverseLookup(
            self.transport,
            self.health,
            self._allow.why_not_allowed,
            self._lookups.walker.positions,
            self._clock,
        )
        deadline = self._deadline(timeout_seconds)
        try:
            return self._lookups.call_with_session(
                token, lambda sent: locator.locate(self.servers, cluster, topic, sent, deadline)
            )
        except errors.NoRoute as error:
            try:
                answer = self._owners.call(
                    ROOT, "FederationService.ListMounts", ListMountsRequest(), deadline
                )
            except KdirError:
                raise error from None
            raise unknown_cluster(cluster, answer, error) from None

    def trace(
        self,
        path: str | Path,
        *,
        prefer: str = "",
        use_cache: bool = False,
        timeout_seconds: float | None = None,
    ) -> Trace:
        """Returns one resolution, hop by hop; its error is in ``Trace.error``, not raised.

        ``use_cache``: begin at the deepest cached mount, as ``resolve`` would.
        """
        parsed, wanted = as_path(path), LookupOptions(kind_number(prefer))
        rules = self._rules(wanted)
        started = self._clock()
        walk = self._lookups.resolve_uncached(
            parsed,
            rules if use_cache else rules.without_hints(),
            wanted,
            "",
            self._deadline(timeout_seconds),
        )
        return trace_of(walk, self._clock() - started)

    # -- changes ---------------------------------------------------------------------------

    def watch(
        self,
        path: str | Path,
        *,
        after: str = "",
        checkpoint_seconds: int = 5,
        timeout_seconds: float | None = None,
    ) -> Watching:
        """Returns a stream of the changes at and below a path, in the cluster that owns it.

        Iterate it in one thread; ``close`` it from any. It reconnects when a connection breaks.

        Args:
            path: canonical.
            after: token of an earlier watch or answer, after which changes are returned; empty =
                from before this method returns.
            checkpoint_seconds: longest time between two messages of the server; 0 = the default.
            timeout_seconds: time limit for finding the owner.

        Raises:
            InvalidArgument: ``checkpoint_seconds`` is negative, or 2^32 or more.
            KdirError: the owner cannot be found; the errors of ``resolve``, except Absent.
        """
        if not 0 <= checkpoint_seconds < 2**32:
            raise errors.InvalidArgument(
                f"checkpoint_seconds: found {checkpoint_seconds}; expected 0 to {2**32 - 1}"
            )
        deadline = self._deadline(timeout_seconds)
        return self._feeds().watch(as_path(path), after, checkpoint_seconds, deadline)

    def follow(self, path: str | Path, *, timeout_seconds: float | None = None) -> None:
        """Follows the changes of the cluster that owns a path, so that its cached answers stay
        fresh.

        Raises:
            LimitExceeded: so many clusters are followed already.
            KdirError: the owner cannot be found; as ``resolve``.
        """
        self._feeds().follow(as_path(path), self._deadline(timeout_seconds))

    # -- housekeeping ----------------------------------------------------------------------

    def forget(self, path: str | Path = "/") -> None:
        """Removes the cached answers at and below a path."""
        self.cache.evict_below(as_path(path))


def _credentials(login: tuple[str, str, str, str, str]) -> UserCredentials:
    from resolver.credentials import UserCredentials
    from resolver.user_config import LoginSettings

    return UserCredentials(LoginSettings(*login))


def _path_or_error(path: str | Path) -> Path | KdirError:
    try:
        return as_path(path)
    except errors.InvalidPath as error:
        return error
