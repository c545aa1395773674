"""Resolver: the public door for asking directories; refuses to hold rules of its own.

``resolve`` answers from memory while it may, and by a walk over the nearest directory servers else
(DESIGN §4). Each verb lives in a module of its own; this one wires them to one transport, one
cache and one clock. Longer than most files: it is one class whose keywords are all explained here.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from resolver import errors
from resolver.cache import DEFAULT_ENTRIES, Cache
from resolver.endpoints import AllowList, Health, parse_servers
from resolver.errors import KdirError
from resolver.location import Listener, TopicLocation
from resolver.lookups import Lookups, Wanted
from resolver.outcome import Failed, Found, NotThere
from resolver.owner import Owner, Owners
from resolver.path import Path
from resolver.resolution import Rules
from resolver.transport import GrpcTransport, Transport
from resolver.walker import Positions, Walker

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from resolver.access import Checked
    from resolver.credentials import UserCredentials
    from resolver.disk import Disk
    from resolver.following import Following
    from resolver.listing import Listing
    from resolver.outcome import Sender
    from resolver.trace import Trace
    from resolver.watching import Watching

__all__ = ["Listener", "Owner", "Resolver", "TopicLocation"]

DEFAULT_TIMEOUT_SECONDS: Final = 2.0
DEFAULT_STALE_SECONDS: Final = 86_400.0
_SAVE_SECONDS: Final = 60.0
"""A client that is killed loses the answers of so long."""

_KINDS: Final = {"": 0, "directory": 1, "topic": 2, "link": 3, "mount": 4}


class Resolver:
    """Asks directories where topics are, and more; a context manager. Thread-safe.

    Args:
        servers: ``host:port`` of the directory servers to begin with, all alike; a list or one
            text with commas. Any cluster's will do: the nearest are best.
        timeout_seconds: of each verb, all its calls together, unless the call says otherwise.
        max_entries: answers that are remembered.
        max_stale_seconds: so old may be an answer that is given, marked stale, while the owner
            cannot be asked; 0 = never.
        recursive: let the servers walk on in one's name.
        ca: PEM file; whose certificates of servers are believed. With it TLS is spoken, to every
            server, and each must have a certificate for the name or address it was dialled by.
        cert: PEM file: the certificate that says who one is; with ``key``.
        key: PEM file: its private key, without a password.
        token: a bearer token that says who one is. It is sent over TLS, or within this machine.
        token_file: the same, read from a file, and again when that changes.
        principal: whose memory this is: a file of another's is not read. By default it goes by who
            one says one is.
        cache_file: where to remember answers across restarts; one file for one set of servers and
            one principal. Whatever is wrong with it, it is as if it were not there.
        watch: follow the changes of the clusters that answer, so that what was resolved once is
            given again without a call, and changes are seen as they happen.
        transport: how to reach servers; given, it is the caller's to close.
        health: how servers fared, for a caller who remembers it; by default nothing is known.
        allow: which endpoints of referrals may be asked; by default all but special addresses,
            and this machine only when all of ``servers`` are on it.
        clock: seconds that never go back.

    Raises:
        InvalidArgument: a server is no ``host:port``, or a file cannot be used.
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
        health: Health | None = None,
        allow: AllowList | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        start = parse_servers(servers)
        self.servers = tuple(str(endpoint) for endpoint in start)
        self._timeout_seconds = timeout_seconds
        self._recursive = recursive
        self._clock = clock
        self._allow = allow or AllowList.beside(start)
        self._owns_transport = transport is None
        login = (os.fspath(ca), os.fspath(cert), os.fspath(key), token, os.fspath(token_file))
        if transport is not None and any(login):
            raise errors.InvalidArgument("transport: with one, ca, cert, key and token are its own")
        credentials = _credentials(login) if any(login) else None
        if credentials is not None:
            principal = principal or credentials.fingerprint
        self._transport: Transport = (
            transport if transport is not None else GrpcTransport(credentials)
        )
        self._health = health or Health(clock)
        positions = Positions()
        self._cache = Cache(clock, max_entries=max_entries, principal=principal)
        self._lookups = Lookups(
            lambda: Walker(self._transport, self._health, positions, clock),
            self._cache,
            self._rules,
            clock,
            max_stale_seconds,
        )
        self._owners = Owners(
            self._lookups, self._cache, self._transport, self._health, self._rules, clock
        )
        self._kept = self._cache.answers.get
        self._disk: Disk | None = None
        self._saved_at = clock()
        if cache_file is not None:
            from resolver.disk import Disk

            self._disk = Disk(cache_file, self._cache, self.servers, clock)
            self._disk.load()
        self._following: Following | None = None
        if watch:
            self._follow_changes(automatic=True)

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
        """Where a path is.

        Args:
            path: canonical.
            prefer: ``directory`` where a topic of the same name is not meant.
            token: read at least this; what this client wrote itself it reads anyway.
            no_follow: a link or mount at the very path is itself the answer.
            for_writes: stay with a link's first target: an outage must not move data.
            timeout_seconds: of the whole, all hops together.

        Raises:
            InvalidPath: not canonical.
            Absent: the owner says that there is no such path.
            Unreachable, NotReady, Lame: nobody who owns it could say.
            NoRoute: nothing leads there from the servers one begins with.
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
        found = self._lookups.find(
            _path(path),
            Wanted(_kind(prefer), no_follow, for_writes),
            token,
            self._deadline(timeout_seconds),
        )
        if self._disk is not None and self._clock() - self._saved_at > _SAVE_SECONDS:
            self._save()
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
        """Where many paths are, in the order asked; what went wrong with one stands in its place.

        Arguments as for ``resolve``, but that the time, unless it is given, is longer by a second
        for each 2,000 paths. Paths at the same servers travel in one call.
        """
        wanted = Wanted(_kind(prefer), no_follow, for_writes)
        parsed = [_path_or_error(path) for path in paths]
        if timeout_seconds is None:
            timeout_seconds = self._timeout_seconds + len(parsed) / 2000
        deadline = self._deadline(timeout_seconds)
        good = [path for path in parsed if isinstance(path, Path)]
        found = self._lookups.find_many(good, wanted, token, deadline)
        return [found[path] if isinstance(path, Path) else path for path in parsed]

    # -- calling owners --------------------------------------------------------------------

    def owner_of(
        self,
        path: str | Path,
        *,
        no_follow: bool = False,
        for_writes: bool = False,
        timeout_seconds: float | None = None,
    ) -> Owner:
        """Who owns a path, also one where nothing stands yet.

        Raises:
            KdirError: as ``resolve``, but for Absent.
        """
        wanted = Wanted(0, no_follow, for_writes)
        return self._owners.owner_of(_path(path), wanted, self._deadline(timeout_seconds))

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
        """Call a method of the contract at the owner of a path.

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
            KdirError: what the owner said, or why it could not be asked.
        """
        return self._owners.call(
            _path(path),
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
        """Whether a principal may do something on an entry, and which grant decides.

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
        from resolver.access import check_request, checked

        request = check_request(
            str(path),
            principal,
            operation,
            host=host,
            resource=resource,
            name=name,
            kind=_kind(prefer),
            explain=explain,
            token=token,
        )
        answer = self.call(
            path, "AccessService.CheckAccess", request, timeout_seconds=timeout_seconds
        )
        return checked(answer)

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
        """Whether there is any resource of a kind on which a principal may do something (KIP-679),
        in the cluster that owns a path; without one, in that of the servers one begins with.

        Arguments as for ``check``.

        Raises:
            KdirError: as ``check``.
        """
        from kdir.v1 import access_pb2

        from resolver.access import operation_of, principal_of, resource_of
        from resolver.transport import method

        number: Any = operation_of(operation)
        kind: Any = resource_of(resource)
        request = access_pb2.AuthorizeAnyRequest(
            principal=principal_of(principal), host=host, operation=number, resource_kind=kind
        )
        name = "AccessService.AuthorizeAny"
        if path:
            answer = self.call(path, name, request, timeout_seconds=timeout_seconds)
        else:
            request.token = self._lookups.session.with_token("")
            deadline = self._deadline(timeout_seconds)
            answer = self._owners.ask(self.servers, method(name), request, deadline)
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
        """The entries of a directory, page by page as they are iterated.

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
        from resolver.listing import Filter, Lists

        lists = Lists(self._lookups, self._owners, self._rules, self._clock)
        wanted = Filter(
            name_glob=name_glob,
            kinds=tuple(_kind(kind) for kind in kinds),
            include_system=include_system,
        )
        return lists.open(
            _path(path),
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
        """The way back: where a topic of Kafka is in the tree.

        Args:
            cluster: its name or id; empty = that of the first server that answers.
            topic: the topic's name in Kafka.
            token: read at least this.
            timeout_seconds: of the whole.

        Raises:
            Absent: the cluster says that it has no such topic.
            NoRoute: no cluster of this name is known.
            KdirError: as ``resolve``.
        """
        from resolver.locate import Locator

        locator = Locator(self._transport, self._health, self._allow.refusal, self._clock)
        session = self._lookups.session.with_token(token)
        deadline = self._deadline(timeout_seconds)
        return locator.locate(self.servers, cluster, topic, session, deadline)

    def trace(
        self,
        path: str | Path,
        *,
        prefer: str = "",
        use_cache: bool = False,
        timeout_seconds: float | None = None,
    ) -> Trace:
        """One resolve, hop by hop; what went wrong is in ``Trace.error``, not raised.

        ``use_cache``: begin at the deepest mount that is known, as ``resolve`` would.
        """
        from resolver.trace import trace_of

        parsed, wanted = _path(path), Wanted(_kind(prefer))
        rules = self._rules(wanted)
        started = self._clock()
        walk = self._lookups.walk(
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
        """The changes at and below a path, in the cluster that owns it, as they come.

        Iterate it; ``close`` it from any thread. It goes on by itself when a connection breaks.

        Args:
            path: canonical.
            after: a token of an earlier watch or answer to go on after; empty = from now on.
            checkpoint_seconds: at most so long between two answers.
            timeout_seconds: of finding the owner.

        Raises:
            KdirError: the owner cannot be found; as ``resolve``, but for Absent.
        """
        parsed = _path(path)
        self._owners.owner_of(parsed, Wanted(), self._deadline(timeout_seconds))
        return self._watching(parsed, after, checkpoint_seconds)

    def follow(self, path: str | Path, *, timeout_seconds: float | None = None) -> None:
        """Follow the changes of the cluster that owns a path: its answers stay fresh from now on.

        Raises:
            KdirError: the owner cannot be found; as ``resolve``.
        """
        deadline = self._deadline(timeout_seconds)
        since = self._clock()
        sender, seconds = self._prove(_path(path), deadline)
        following = self._follow_changes(automatic=False)
        following.follow(sender, since + seconds)

    def _follow_changes(self, *, automatic: bool) -> Following:
        from resolver.following import Following

        if self._following is None:
            self._following = Following(
                self._cache,
                lambda path, token: self._watching(path, token, 5),
                lambda mount: self._prove(mount, self._deadline(None)),
                self._clock,
                automatic=automatic,
            )
            self._lookups.following = self._following
        return self._following

    def _watching(self, path: Path, after: str, checkpoint_seconds: int) -> Watching:
        from resolver.watching import Watching

        def find_owner(again: bool) -> Owner:  # noqa: FBT001 - one caller
            wanted = Wanted(_kind("directory"))
            return self._owners.owner_of(path, wanted, self._deadline(None), fresh=again)

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
        wanted = Wanted(_kind("directory"))
        rules = self._rules(wanted).without_hints()
        since = self._clock()
        walk = self._lookups.walk(path, rules, wanted, "", deadline)
        self._lookups.learn(walk, since)
        end = walk.next()
        if isinstance(end, Found | NotThere):
            return end.sender, end.grounds_seconds
        raise end.error if isinstance(end, Failed) else errors.Internal(f"{path}: {end}")

    # -- housekeeping ----------------------------------------------------------------------

    def forget(self, path: str | Path = "/") -> None:
        """Forget the answers at and below a path."""
        self._cache.drop(_path(path))

    def close(self) -> None:
        """Give back what was opened. The resolver cannot be used afterwards."""
        self._lookups.own_process()  # what a parent process opened is the parent's to close
        if self._following is not None:
            self._following.close()
        self._save()
        if self._owns_transport:
            self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _save(self) -> None:
        self._saved_at = self._clock()
        if self._disk is not None:
            # A full disk must not end a program that could do without the file.
            with contextlib.suppress(OSError):
                self._disk.save()

    # -- inside ----------------------------------------------------------------------------

    def _seconds(self, timeout_seconds: float | None) -> float:
        return self._timeout_seconds if timeout_seconds is None else timeout_seconds

    def _deadline(self, timeout_seconds: float | None) -> float:
        return self._clock() + self._seconds(timeout_seconds)

    def _rules(self, wanted: Wanted) -> Rules:
        return Rules(
            start=self.servers,
            hint=self._cache.hint,
            refusal=self._allow.refusal,
            choose=self._health.order,
            recursive=self._recursive,
            for_writes=wanted.for_writes,
        )


def _path(path: str | Path) -> Path:
    return path if isinstance(path, Path) else Path.parse(path)


def _path_or_error(path: str | Path) -> Path | KdirError:
    try:
        return _path(path)
    except errors.InvalidPath as error:
        return error


def _kind(name: str) -> int:
    try:
        return _KINDS[name]
    except KeyError:
        known = ", ".join(kind for kind in _KINDS if kind)
        raise errors.InvalidArgument(
            f"kind {name!r}: one of {known} would be right", field="kind"
        ) from None


def _credentials(login: tuple[str, str, str, str, str]) -> UserCredentials:
    from resolver.contexts import Login
    from resolver.credentials import UserCredentials

    return UserCredentials(Login(*login))
