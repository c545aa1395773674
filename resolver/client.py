"""Resolver: the public door for asking directories.

``resolve`` answers from memory while it may, and by a walk over the nearest directory servers else.
What a verb needs beside that is in a module of its own, imported at its first use. The file is
long because the documentation of each verb and keyword is here, where callers read it.
"""

from __future__ import annotations

import os
import threading
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


class Resolver:
    """Client of directory servers: resolves paths, and calls the owners of paths. A context
    manager. Thread-safe. The constructor calls no server.

    Args:
        servers: ``host:port`` of the directory servers to begin with, of one cluster; a list, or
            one text with commas. Any cluster's will do: the nearest are best. None: those of the
            environment (``KDIR_AT``), else of the current context (``kdir context``), with its
            credentials and allowed servers, else the server on this machine.
        timeout_seconds: default deadline of a method, for all its calls together.
        max_entries: answers that are remembered; 0: none, only where mounts are.
        max_stale_seconds: so old may be an answer that is given, marked stale, while the owner
            cannot be asked; 0 = never.
        recursive: let the servers walk on in one's name, to resolve. Calls of an owner, to list,
            check or change, or to resolve for a producer, are referred to it all the same.
        ca: PEM file; whose certificates of servers are believed. With it TLS is used, to
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
        self._timeout_seconds = timeout_seconds
        self._recursive = recursive
        self._clock = clock
        self._allow = allow if isinstance(allow, AllowList) else AllowList.of(allow, start)
        self.health = health or ServerHealth(clock)
        """How servers fared lately."""
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
            self._feeds().follow_all(automatic=True)

    def _assemble(self, max_stale_seconds: float) -> None:
        """Makes the parts that ask, of those that remember and reach."""
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
        self._making = threading.Lock()
        """Held while the watch streams are made."""

    def _feeds(self) -> WatchStreams:
        """Returns what watches and follows clusters, made at its first use."""
        from resolver.watch_streams import WatchStreams

        with self._making:
            if self._watch_streams is None:
                self._watch_streams = WatchStreams(
                    self._lookups,
                    self._owners,
                    self.cache,
                    self.transport,
                    self._rules,
                    self._clock,
                    self._timeout_seconds,
                )
            return self._watch_streams

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
        return None if self._watch_streams is None else self._watch_streams.following

    def close(self) -> None:
        """Gives back what was opened. The resolver cannot be used afterwards."""
        self._lookups.own_process()  # what a parent process opened is the parent's to close
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
        """Returns where a path is.

        Args:
            path: canonical.
            prefer: ``directory`` to get the directory where a topic has the same name.
            token: the answer is at least as new as this; also as new as this client's own writes.
            no_follow: a link or mount at the path itself is the answer.
            for_writes: only the first target of a link: an outage must not move data.
            timeout_seconds: deadline for all hops together.

        Raises:
            InvalidPath: not canonical.
            Absent: the owner answered that there is no such path.
            Unreachable, NotReady, Lame: no owner of the path could be asked.
            NoRoute: no referral leads there from the first servers.
            ReferralLoop, BadReferral, TooManyHops: the tree itself is wrong.
            DeadlineExceeded, PermissionDenied, TokenExpired, TokenFromFuture.
        """
        if not (token or prefer or no_follow or for_writes):
            # The warm way: a look into a dict, no lock, no call.
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
        if self._disk is not None:
            self._disk.save_now_and_then()
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
        """Returns where many paths are, in the order asked; an error of one is in its
        place.

        Arguments as for ``resolve``, but that the time, unless it is given, is longer by a second
        for each 2,000 paths. Paths at the same servers travel in one call.

        Raises:
            TypeError: ``paths`` is one path, and no sequence of them.
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
        """Returns the walks to many paths, each ended; for a server that answers in its callers'
        names. Only where mounts are is remembered of them.

        Raises:
            InvalidToken: not one that a directory server gave.
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
        """Returns who owns a path, also one where nothing exists yet.

        Raises:
            KdirError: as ``resolve``, but for Absent.
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
        ``request_id`` is filled, a ``token`` completed by what this client wrote. Other servers of
        the owner are asked when one does not answer; once more after a walk when the owner says
        that the path is not its own.

        Args:
            path: canonical; the owner of where it would stand is asked when nothing does.
            method: such as ``DirectoryService.CreateEntry``.
            request: the method's own message; not changed.
            no_follow: whether a link or mount at the very path is itself meant; by default for
                CreateEntry, DeleteEntry and MoveEntry.
            at_parent: ask the owner of the directory that holds the entry: for mounts, whose own
                path belongs to the child.
            timeout_seconds: of the whole.

        Raises:
            KdirError: the error of the owner, or why it could not be asked.
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
            principal: such as ``User:alice``; without a type a user.
            operation: Kafka's, such as ``read`` or ``alter-configs``.
            host: from which address; empty = only grants for every host count.
            resource: ``topic``, or of the cluster at the path ``group``, ``transactional-id``,
                ``cluster``.
            name: of the group or transactional id.
            prefer: ``directory`` where a topic of the same name is not meant.
            explain: what each level of the path came to, in ``Checked.response``.
            token: read at least this.
            timeout_seconds: of the whole.

        Raises:
            InvalidArgument: no operation, principal or address.
            KdirError: as ``resolve``; Absent where the asker may neither describe the entry nor
                asks for itself.
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
        """True if there is any resource of a kind on which a principal may do something (KIP-679),
        in the cluster that owns a path; without one, in that of the servers one begins with.

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
            request.token = self._lookups.session.with_token("")
            deadline = self._deadline(timeout_seconds)
            answer = self._owners.call_owner(self.servers, method(name), request, deadline)
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

        A union link's targets are merged, the first target's entry of a name counts. What is no
        directory lists itself. Parts that did not answer are named in ``Listing.not_listed``.

        Args:
            path: canonical.
            recursive: all below it too; links are shown, not entered.
            across: with ``recursive``, enter the clusters mounted below.
            name_glob: only names that match this, within one segment.
            kinds: only these: ``directory``, ``topic``, ``link``, ``mount``.
            include_system: entries whose name begins with ``__`` too.
            page_size: most entries a page, 10,000 at most; 0 = the server's choice.
            one_revision: all pages of a cluster from one revision, or ``RevisionGone``.
            token: read at least this.
            timeout_seconds: of each page, the way to its server included.

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
            cluster: its name or id; empty = that of the first server that answers.
            topic: the topic's name in Kafka.
            token: read at least this.
            timeout_seconds: of the whole.

        Raises:
            Absent: the cluster says that it has no such topic, or the root that no such cluster is
                mounted.
            NoRoute: nothing leads to a cluster of this name, and the root cannot be asked, or is
                not linked to all of its mounts.
            KdirError: as ``resolve``.
        """
        from kdir.v1.federation_pb2 import ListMountsRequest

        from resolver.reverse_lookup import ReverseLookup, unknown_cluster

        locator = ReverseLookup(
            self.transport, self.health, self._allow.why_not_allowed, self._clock
        )
        session = self._lookups.session.with_token(token)
        deadline = self._deadline(timeout_seconds)
        try:
            return locator.locate(self.servers, cluster, topic, session, deadline)
        except errors.NoRoute as error:
            try:
                answer = self._owners.call(
                    ROOT, "FederationService.ListMounts", ListMountsRequest(), deadline
                )
            except KdirError:
                raise error from None
            raise unknown_cluster(cluster, answer.rows, error) from None

    def trace(
        self,
        path: str | Path,
        *,
        prefer: str = "",
        use_cache: bool = False,
        timeout_seconds: float | None = None,
    ) -> Trace:
        """Returns one resolve, hop by hop; what went wrong is in ``Trace.error``, not raised.

        ``use_cache``: begin at the deepest mount that is known, as ``resolve`` would.
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
        """Returns the changes at and below a path, in the cluster that owns it, as they come.

        Iterate it; ``close`` it from any thread. It goes on by itself when a connection breaks.

        Args:
            path: canonical.
            after: a token of an earlier watch or answer to go on after; empty = from now on.
            checkpoint_seconds: at most so long between two answers.
            timeout_seconds: of finding the owner.

        Raises:
            KdirError: the owner cannot be found; as ``resolve``, but for Absent.
        """
        deadline = self._deadline(timeout_seconds)
        return self._feeds().watch(as_path(path), after, checkpoint_seconds, deadline)

    def follow(self, path: str | Path, *, timeout_seconds: float | None = None) -> None:
        """Follows the changes of the cluster that owns a path: its answers stay fresh from now on.

        Raises:
            KdirError: the owner cannot be found; as ``resolve``.
        """
        self._feeds().follow(as_path(path), self._deadline(timeout_seconds))

    # -- housekeeping ----------------------------------------------------------------------

    def forget(self, path: str | Path = "/") -> None:
        """Forgets the answers at and below a path."""
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
