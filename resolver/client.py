"""Resolver: the public door for asking directories; refuses to hold rules of its own.

``resolve`` answers from memory while it may, and by a walk over the nearest directory servers else.
Each verb lives in a module of its own, and ``client_options.py`` has the parts that they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from resolver import errors
from resolver.cached_lookup import Trace, trace_of
from resolver.client_options import BaseResolver
from resolver.errors import KdirError
from resolver.lookup_options import LookupOptions, as_path, kind_number
from resolver.owner_calls import Owner
from resolver.path import Path
from resolver.topic_location import Listener, TopicLocation

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from resolver.access_requests import Checked
    from resolver.directory_listing import Listing
    from resolver.resolution.state_machine import ResolutionStateMachine
    from resolver.watch_stream import Watching

__all__ = ["Listener", "Owner", "Resolver", "TopicLocation"]


class Resolver(BaseResolver):
    """Asks directories where topics are, and more; a context manager. Thread-safe.

    ``Resolver("host:port", …)``: ``BaseResolver`` says what each keyword does.
    """

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
        """Returns where many paths are, in the order asked; what went wrong with one stands in its
        place.

        Arguments as for ``resolve``, but that the time, unless it is given, is longer by a second
        for each 2,000 paths. Paths at the same servers travel in one call.
        """
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
        """Returns who owns a path, also one where nothing stands yet.

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
            KdirError: what the owner said, or why it could not be asked.
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
        """Returns the way back: where a topic of Kafka is in the tree.

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
        from resolver.reverse_lookup import ReverseLookup

        locator = ReverseLookup(
            self.transport, self.health, self._allow.why_not_allowed, self._clock
        )
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
        return self._feeds.watch(as_path(path), after, checkpoint_seconds, deadline)

    def follow(self, path: str | Path, *, timeout_seconds: float | None = None) -> None:
        """Follows the changes of the cluster that owns a path: its answers stay fresh from now on.

        Raises:
            KdirError: the owner cannot be found; as ``resolve``.
        """
        self._feeds.follow(as_path(path), self._deadline(timeout_seconds))

    # -- housekeeping ----------------------------------------------------------------------

    def forget(self, path: str | Path = "/") -> None:
        """Forgets the answers at and below a path."""
        self.cache.evict_below(as_path(path))


def _path_or_error(path: str | Path) -> Path | KdirError:
    try:
        return as_path(path)
    except errors.InvalidPath as error:
        return error
