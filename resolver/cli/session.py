"""Session of one command: output, timeout, and the clients of servers, which are created on first
use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from resolver.cli.output import Output
from resolver.cli.parsed_verb import Arguments, UsageError

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from kdir.v1.resolve_pb2 import Authority

    from resolver.cli.disk_hints import FailedServers
    from resolver.client import Resolver
    from resolver.directory_listing import Listing
    from resolver.endpoints import AllowList, ServerHealth
    from resolver.errors import KdirError
    from resolver.path import Path
    from resolver.topic_location import TopicLocation
    from resolver.transport import Credentials, Method, Stream, Transport
    from resolver.user_config import Context, Contexts, LoginSettings

__all__ = ["PathArgument", "Session", "ending_in_order", "parse_path_argument"]


class PathArgument(NamedTuple):
    """Path as written on the command line; a ``/`` at the end means a directory."""

    path: Path
    directory: bool

    @property
    def prefer(self) -> str:
        """Value of ``prefer`` for ``Resolver.resolve``."""
        return "directory" if self.directory else ""

    @property
    def kind(self) -> str:
        """Name of the ``kdir.v1.EntryKind`` for requests."""
        return "ENTRY_KIND_DIRECTORY" if self.directory else "ENTRY_KIND_UNSPECIFIED"

    def check_kind(self, found: TopicLocation) -> None:
        """Checks that a path with a ``/`` at the end is not only a topic.

        Raises:
            Absent: there is only a topic at the path.
        """
        if self.directory and found.kind == "topic":
            from resolver.errors import Absent

            raise Absent(f"{found.path} is a topic, not a directory", path=found.path)

    def check_listing(self, listing: Listing) -> None:
        """Checks that a listed path with a ``/`` at the end is not only a topic. In a union one
        target may be a topic, and another one a directory.

        Raises:
            Absent: all targets were listed, and none is a directory.
        """
        if self.directory and not listing.has_directory and not listing.is_partial:
            from resolver.errors import Absent

            raise Absent(f"{self.path} is a topic, not a directory", path=self.path)

    def __str__(self) -> str:
        return f"{self.path}/" if self.directory and not self.path.is_root else str(self.path)


def parse_path_argument(text: str) -> PathArgument:
    """Parses a path of the command line.

    Raises:
        InvalidPath: the path is not canonical; one ``/`` at the end is allowed.
    """
    from resolver.path import Path

    if text == "/":
        return PathArgument(Path(), directory=True)
    directory = text.endswith("/") and text != "//"
    return PathArgument(Path.parse(text[:-1] if directory else text), directory)


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Lets SIGTERM (such as from ``timeout``) and SIGHUP (a closed terminal) end the process in
    order, so that temporary files are deleted. A signal that is ignored, as with ``nohup``, stays
    ignored.
    """
    import signal
    import sys
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, lambda number, _: sys.exit(128 + number))
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Session:
    """Run of one verb.

    ``partial`` is True if the output is incomplete; the exit code is then 3.
    """

    def __init__(
        self,
        arguments: Arguments,
        *,
        output: Output | None = None,
        environ: Mapping[str, str] | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.environ = os.environ if environ is None else environ
        self.out = output or Output(arguments.one("output"), environ=self.environ)
        self.verbose = arguments.flag("verbose")
        self.timeout_seconds = arguments.seconds("timeout", arguments.verb.timeout_seconds)
        self.partial = False
        self._verb = arguments.verb.name
        self._yes = arguments.flag("yes")
        self._at = arguments.one("at")
        self._context_name = arguments.one("context")
        self._transport = transport
        self._owns_transport = transport is None
        self._noting: _NotingTransport | None = None
        self._outdated: set[tuple[str, str]] = set()
        """Pairs of cluster and state (``stale`` or ``unconfirmed``) that were reported already."""
        self._unconfirmed: dict[str, float] = {}
        """Seconds for which the newest answers are unconfirmed, by cluster id."""
        self._resolver: Resolver | None = None
        self._health: ServerHealth | None = None
        self._troubles: FailedServers | None = None
        self._remembered: dict[str, float] = {}
        self.chosen_cluster: Any = None
        """Cluster that the command is about; None until ``resolver.cli.streams`` has chosen it."""

    # -- which servers ---------------------------------------------------------------------------

    def contexts(self) -> Contexts:
        """Returns the user's contexts."""
        from resolver.user_config import load_contexts

        return load_contexts()

    def context(self) -> Context | None:
        """Returns the context in use; None if servers are named, or no context is selected."""
        from resolver.user_config import choose_context

        return choose_context(self._at, self._context_name, self.environ)

    def servers(self) -> tuple[str, ...]:
        """Returns the start servers (``host:port``), at least one.

        Raises:
            InvalidArgument: the servers or the context that the user named are invalid.
        """
        from resolver.user_config import choose_servers

        return choose_servers(self._at, self._context_name, self.environ)

    def allow_write(self, verb: str) -> None:
        """Checks that a write may be sent to the servers.

        Raises:
            UsageError: one of the servers belongs to a protected context that was not named.
        """
        contexts = self.contexts()
        guarded = [context for context in contexts.by_name.values() if context.protected]
        if not guarded:
            return
        servers = set(self.servers())
        for context in guarded:
            if context.name != self._context_name and servers & set(context.servers):
                raise UsageError(
                    f"context {context.name!r} is protected: "
                    f"name it for each write: kdir {verb} --context {context.name} …",
                    verb=verb,
                )

    # -- asking ----------------------------------------------------------------------------------

    @property
    def resolver(self) -> Resolver:
        """Client of the directory servers; created on first use, since gRPC takes most of the
        start-up time.
        """
        if self._resolver is None:
            from resolver.client import Resolver

            self._resolver = Resolver(
                self.servers(),
                timeout_seconds=self.timeout_seconds,
                transport=self.transport,
                health=self.health,
                allow=self.allow,
            )
        return self._resolver

    @property
    def allow(self) -> AllowList:
        """Rule for which servers of referrals may be called.

        Raises:
            InvalidArgument: the context or the environment has a value that is neither a network
                nor a domain.
        """
        from resolver.endpoints import AllowList
        from resolver.host_port import parse_servers

        return AllowList.of(self.allowed(), parse_servers(self.servers()))

    def allowed(self) -> tuple[str, ...] | None:
        """Returns the networks and domains of the allow list, as written; None = all servers are
        allowed.
        """
        from resolver.user_config import choose_allow

        return choose_allow(self._at, self._context_name, self.environ)

    @property
    def transport(self) -> Transport:
        """Transport for calls to a server by its address; the resolver uses it, too."""
        if self._noting is None:
            if self._transport is None:
                from resolver.transport import GrpcTransport

                self._transport = GrpcTransport(_credentials(self.login()), named=self.servers())
            self._noting = _NotingTransport(self._transport, self._note_authority)
        return self._noting

    def unconfirmed_fields(self, cluster_id: str = "") -> dict[str, float]:
        """Returns the JSON field with the seconds for which a cluster's answers are unconfirmed;
        empty if they are confirmed. Without an id, that of the cluster that answered last.
        """
        answering = "" if self._noting is None else self._noting.answering_id
        seconds = self._unconfirmed.get(cluster_id or answering)
        return {} if seconds is None else {"unconfirmed_seconds": seconds}

    def _note_authority(self, method: Method, authority: Authority) -> None:
        """Stores the seconds for which an answer is unconfirmed, and reports on stderr, once for
        each cluster, that its answers are stale or unconfirmed.
        """
        if method.name.startswith("/kdir.v1.AdminService/"):
            return  # the output of these calls shows the server's state itself
        self.note_stale(authority)
        cluster_id = authority.cluster.cluster_id
        if not authority.HasField("unconfirmed_seconds"):
            self._unconfirmed.pop(cluster_id, None)
        else:
            self._unconfirmed[cluster_id] = authority.unconfirmed_seconds
            what = f"no parent has confirmed the mount {authority.cluster.mount}"
            self._note_once(authority, "unconfirmed", what, authority.unconfirmed_seconds)

    def note_stale(self, authority: Authority) -> None:
        """Reports a stale answer on stderr, once for each cluster."""
        if authority.stale:
            what = f"its store has been {'sealed' if authority.sealed else 'unavailable'}"
            self._note_once(authority, "stale", what, authority.age_seconds)

    def _note_once(self, authority: Authority, state: str, what: str, seconds: float) -> None:
        cluster = authority.cluster.cluster
        if (cluster, state) in self._outdated:
            return
        self._outdated.add((cluster, state))
        from resolver import units

        self.out.note(f"{cluster}: {state}: {what} for {units.age(seconds)}", "warn")

    def login(self) -> LoginSettings:
        """Returns the user's credentials, from the environment and the context."""
        from resolver.user_config import choose_credentials

        return choose_credentials(self._at, self._context_name, self.environ)

    def export_login(self) -> None:
        """Sets the environment variables for credentials and allowed servers, which the index and
        Spark read, also in other processes.
        """
        os.environ.update(self.login().variables)
        if (allow := self.allowed()) is not None:
            # An empty value would count as unset, and allow all servers.
            os.environ["KDIR_ALLOW"] = ",".join(allow) or ","

    @property
    def health(self) -> ServerHealth:
        """Health of the servers, from calls of this command and from failures shortly before it."""
        if self._health is None:
            from resolver.endpoints import ServerHealth

            named = frozenset(self.servers())

            def shuffle(endpoints: list[str]) -> None:
                if not named.issuperset(endpoints):  # named servers keep the user's order
                    import random

                    random.shuffle(endpoints)

            self._health = ServerHealth(shuffle=shuffle)
            if len(self.servers()) > 1:  # a single server is always called
                from resolver.cli.disk_hints import FailedServers

                self._troubles = FailedServers()
                self._remembered = self._troubles.load()
                for endpoint, seconds in self._remembered.items():
                    self._health.note_failure(endpoint, seconds)
        return self._health

    def ask_any(
        self,
        method_name: str,
        request: Message,
        among: Sequence[str] = (),
        *,
        cluster_id: str = "",
    ) -> Any:
        """Calls servers one after another until one answers: those of ``among``, else those that
        the user named. Healthy servers are called first, those that failed recently last. Each has
        its share of the remaining time; for a change that must not be made twice, all of it.
        ``cluster_id``: as in ``Transport.call``.

        Raises:
            KdirError: the error of the last server, with all attempts if none answered.
        """
        import time

        from resolver.deadline_shares import per_server_timeout, time_share
        from resolver.errors import DeadlineExceeded, Unavailable
        from resolver.owner_calls import is_change, is_same_twice
        from resolver.transport import method

        wanted = method(method_name)
        attempts: list[str] = []
        last: KdirError | None = None
        deadline = time.monotonic() + self.timeout_seconds
        servers = self.health.order(among or self.servers())
        # Two passes if there are several: servers that did not answer quickly are called again.
        passes = [(server, True) for server in servers[:-1]]
        passes += [(server, False) for server in (*servers[-1:], *servers[:-1])]
        changes = is_change(method_name, request)
        patient = changes and not is_same_twice(method_name)
        if changes:  # a change may take longer than the timeout of a first pass
            passes = [(server, False) for server in servers]
        refused: set[str] = set()
        for position, (server, hurried) in enumerate(passes):
            left = deadline - time.monotonic()
            if server in refused or (left <= 0 and last is not None):
                continue
            share = 1 if patient else time_share(len(passes) - position)
            try:
                limit = per_server_timeout(left, share, hurried=hurried)
                answer = self.transport.call(server, wanted, request, limit, cluster_id=cluster_id)
            except DeadlineExceeded as error:
                self.health.note_slow(server)
                attempts.append(f"{server}: {error}")
                last = error
            except Unavailable as error:
                self.health.note_failure(server)
                refused.add(server)
                attempts.append(f"{server}: {error}")
                last = error
            else:
                self.health.note_success(server)
                return answer
        assert last is not None  # noqa: S101 - there is always a server
        last.attempts = tuple(attempts)
        raise last

    def close(self) -> None:
        """Closes the resolver and the transport, and saves the servers that failed."""
        if self._health is not None and self._troubles is not None:
            now = self._health.troubles()
            if now.keys() != self._remembered.keys():
                self._troubles.save(now)
        if self._resolver is not None:
            self._resolver.close()
        if self._transport is not None and self._owns_transport:
            self._transport.close()

    def approve(self, action: str, consequence: str = "") -> bool:
        """Returns whether an irreversible action may be done (``confirmation.approve``).

        Raises:
            UsageError: ``--yes`` was not given, and there is no terminal to ask at.
        """
        from resolver.confirmation import NotApproved, approve

        try:
            return approve(action, consequence, yes=self._yes)
        except NotApproved as reason:
            raise UsageError(str(reason), verb=self._verb) from None

    def show_root(self, show: Callable[[str], None]) -> None:
        """Shows ``/``, for a command without a path; if no route leads there, shows the mount that
        the queried server serves.

        Raises:
            KdirError
        """
        from resolver.errors import NoRoute

        try:
            show("/")
        except NoRoute as error:
            mount = error.metadata.get("mount", "/")
            if mount == "/":
                raise
            self.out.note(f"no route to /: showing {mount}, which the queried server serves")
            show(mount)

    def refuse_topic(self, where: PathArgument) -> None:
        """Checks the entry at a path, as ``PathArgument.check_kind`` does. Other errors are
        ignored: the next call raises them.

        Raises:
            Absent: there is only a topic at the path.
        """
        from resolver.errors import KdirError

        if not where.directory:
            return
        try:
            found = self.resolver.resolve(where.path, prefer=where.prefer)
        except KdirError:
            return
        where.check_kind(found)

    def not_listed(self, path: object, error: KdirError) -> None:
        """Reports a missing part of a listing, with the reason; the exit code becomes 3."""
        why = str(error).removeprefix(f"{path}: ")
        self.missing(f"not listed: {path}: {why}")

    def missing(self, text: str) -> None:
        """Reports a missing part of the output; the exit code becomes 3."""
        self.partial = True
        self.out.note(text, "warn")


class _NotingTransport:
    """Transport that passes on the authority of each answer that is not a referral."""

    def __init__(
        self, transport: Transport, note_authority: Callable[[Method, Authority], None]
    ) -> None:
        self._transport = transport
        self._note_authority = note_authority
        self.answering_id = ""
        """Id of the cluster whose answer, not a referral, was received last."""

    def call(
        self,
        endpoint: str,
        method: Method,
        request: Message,
        timeout_seconds: float,
        *,
        cluster_id: str = "",
    ) -> Any:
        answer = self._transport.call(
            endpoint, method, request, timeout_seconds, cluster_id=cluster_id
        )
        own = (answer.outcome,) if hasattr(answer, "outcome") else ()
        outcomes = getattr(answer, "outcomes", own)
        if not outcomes or not all(one.HasField("referral") for one in outcomes):
            asked = (answer.authority,) if hasattr(answer, "authority") else ()
            for authority in getattr(answer, "authorities", asked):
                self._note_authority(method, authority)
                self.answering_id = authority.cluster.cluster_id
            self.answering_id = cluster_id or self.answering_id
        return answer

    def stream(
        self, endpoint: str, method: Method, request: Message, *, cluster_id: str = ""
    ) -> Stream:
        return self._transport.stream(endpoint, method, request, cluster_id=cluster_id)

    def close(self) -> None:
        self._transport.close()


def _credentials(login: LoginSettings) -> Credentials | None:
    if not any(login):
        return None
    from resolver.credentials import UserCredentials

    return UserCredentials(login)
