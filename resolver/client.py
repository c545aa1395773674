"""Resolver: the public door for asking directories; refuses to hold rules of its own.

``resolve`` answers from memory while it may, and by a walk over the nearest directory servers else
(DESIGN §4). Each verb lives in a module of its own; this one wires them to one transport, one
cache and one clock.
"""

from __future__ import annotations

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
from resolver.owner import Owner, Owners
from resolver.path import Path
from resolver.resolution import Rules
from resolver.transport import GrpcTransport, Transport
from resolver.walker import Positions, Walker

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["Listener", "Owner", "Resolver", "TopicLocation"]

DEFAULT_TIMEOUT_SECONDS: Final = 2.0
DEFAULT_STALE_SECONDS: Final = 86_400.0

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
        principal: whose memory this is; only the disk needs it, to keep those of two apart.
        transport: how to reach servers; given, it is the caller's to close.
        allow: which endpoints of referrals may be asked; by default all but special addresses,
            and this machine only when all of ``servers`` are on it.
        clock: seconds that never go back.

    Raises:
        InvalidArgument: a server is no ``host:port``.
    """

    def __init__(  # noqa: PLR0913 - each is a keyword with a default, documented above
        self,
        servers: str | Sequence[str],
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        max_entries: int = DEFAULT_ENTRIES,
        max_stale_seconds: float = DEFAULT_STALE_SECONDS,
        recursive: bool = False,
        principal: str = "",
        transport: Transport | None = None,
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
        self._transport: Transport = transport if transport is not None else GrpcTransport()
        self._health = Health(clock)
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
        return self._lookups.find(
            _path(path),
            Wanted(_kind(prefer), no_follow, for_writes),
            token,
            self._deadline(timeout_seconds),
        )

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

        Arguments as for ``resolve``. Paths at the same servers travel in one call.
        """
        deadline = self._deadline(timeout_seconds)
        wanted = Wanted(_kind(prefer), no_follow, for_writes)
        parsed = [_path_or_error(path) for path in paths]
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

    # -- housekeeping ----------------------------------------------------------------------

    def forget(self, path: str | Path = "/") -> None:
        """Forget the answers at and below a path."""
        self._cache.drop(_path(path))

    def close(self) -> None:
        """Give back what was opened. The resolver cannot be used afterwards."""
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

    # -- inside ----------------------------------------------------------------------------

    def _deadline(self, timeout_seconds: float | None) -> float:
        seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        return self._clock() + seconds

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
