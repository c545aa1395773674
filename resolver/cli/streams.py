"""Calls to one cluster: the choice of the cluster and its servers, and the timeout between the
messages of a stream.

The cluster is never chosen by chance: if the named servers belong to several clusters, the command
is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from resolver.cli.parsed_verb import UsageError
from resolver.cli.parser import Argument, Arguments, Option
from resolver.cli.session import parse_path_argument
from resolver.errors import (
    Absent,
    Cancelled,
    DeadlineExceeded,
    KdirError,
    NoRoute,
    NotReady,
    Unmounted,
)
from resolver.nearest_names import nearest_names

if TYPE_CHECKING:
    from kdir.v1 import federation_pb2

    from resolver.cli.session import Session

__all__ = [
    "CLUSTER",
    "CLUSTER_PATH",
    "ChosenCluster",
    "call_chosen_cluster",
    "chosen_cluster",
    "identify_cluster",
    "messages",
    "name_of",
    "refuse_absent_path",
]

CLUSTER_PATH: Final = Argument(
    "PATH", "a path of the cluster; default: that of the queried server", 0, completes="path"
)
CLUSTER: Final = Option(("--cluster",), "the cluster, by name or id, instead of a path", "NAME")


class ChosenCluster(NamedTuple):
    """Cluster that a command is about."""

    servers: tuple[str, ...]
    """Servers to call."""
    name: str
    """Name for people; empty if the user named one server, which was not queried yet
    (``name_of``).
    """
    requested: str
    """Value of a request's ``cluster``; empty = the called server's own."""
    mount: str = ""


def chosen_cluster(
    session: Session, arguments: Arguments, *, changes: bool = False, by_path: bool = False
) -> ChosenCluster:
    """Returns the cluster that PATH or ``--cluster`` names, else that of the servers that the user
    named.

    It is chosen once per command, so that an action approved for one cluster is not done to
    another, even if other servers answer later.

    Args:
        changes: the command changes the cluster; then each of several servers must answer which
            cluster it belongs to.

    Raises:
        UsageError: both are given; or neither, and the servers belong, or may belong, to several
            clusters.
        KdirError: no cluster of this name is known, or no server answered.
    """
    if session.chosen_cluster is None:
        session.chosen_cluster = _choose(session, arguments, changes=changes, by_path=by_path)
    chosen: ChosenCluster = session.chosen_cluster
    return chosen


def _choose(
    session: Session, arguments: Arguments, *, changes: bool, by_path: bool
) -> ChosenCluster:
    path, name = arguments.one("PATH"), arguments.one("cluster")
    if path and name:
        raise UsageError("PATH or --cluster, not both", verb=arguments.verb.name)
    if path:
        owner = session.resolver.owner_of(parse_path_argument(path).path)
        return ChosenCluster(owner.endpoints, owner.cluster, owner.cluster_id, str(owner.mount))
    if not name and len(session.servers()) == 1:
        return ChosenCluster(session.servers(), "", "")
    known, last = _clusters_of_servers(session)
    if name:
        found = next((one for one in known if name in {one.name, one.requested}), None)
        return found or _mounted_cluster(session, name)
    if len(known) > 1:
        listed = ", ".join(f"{one.name} ({', '.join(one.servers)})" for one in known)
        meant = known[0].mount if by_path else f"--cluster {known[0].name}"
        raise UsageError(
            f"the servers belong to several clusters: {listed}; say which is meant: {meant}",
            verb=arguments.verb.name,
        )
    if not known:
        assert last is not None  # noqa: S101 - there is always a server
        raise last
    if changes and last is not None:
        silent = sorted(set(session.servers()) - set(known[0].servers))
        raise UsageError(
            f"{', '.join(silent)} did not answer, so that it is not known to belong to "
            f"{known[0].name} as the other servers do; say which is meant: --cluster "
            f"{known[0].name}",
            verb=arguments.verb.name,
        )
    # Without its id, so that a server that hosts several clusters refuses the call.
    return known[0]._replace(requested="")


def refuse_absent_path(session: Session, arguments: Arguments, mount: str, hint: str = "") -> None:
    """Checks that PATH, which only selects the cluster mounted at ``mount``, exists: an absent path
    was probably meant as something else. Other errors of the path are ignored.

    Raises:
        UsageError: the path is absent; the message ends with ``hint``.
    """
    path = arguments.one("PATH")
    if not path or path.rstrip("/") == mount.rstrip("/"):
        return
    try:
        session.resolver.resolve(parse_path_argument(path).path, no_follow=True)
    except Absent as error:
        raise UsageError(
            f"{path} is no path of the tree (PATH selects the cluster){hint}",
            verb=arguments.verb.name,
        ) from error
    except KdirError:
        return  # such as an unreadable record, for which these verbs are used


def identify_cluster(session: Session, chosen: ChosenCluster) -> ChosenCluster:
    """Returns the cluster with its name and mount; queries its servers if these are not known yet.
    Both stay empty if no server answers.
    """
    if chosen.name:
        return chosen
    known, _ = _clusters_of_servers(session)
    return known[0] if known else chosen


def name_of(session: Session, chosen: ChosenCluster) -> str:
    """Returns the cluster's name for people; queries its servers if it is not known yet."""
    return identify_cluster(session, chosen).name or "the queried cluster"


def _clusters_of_servers(session: Session) -> tuple[list[ChosenCluster], KdirError | None]:
    """Returns the clusters of the servers that the user named, in that order, and the last error of
    a server that did not return its cluster.
    """
    from kdir.v1 import admin_pb2, resolve_pb2

    from resolver.transport import method

    servers, last = list(dict.fromkeys(session.servers())), None
    attempts: list[str] = []
    known: dict[str, ChosenCluster] = {}
    for server in servers:
        request = resolve_pb2.ResolveRequest(path="/")
        limit = session.timeout_seconds / len(servers)
        answer: Any
        try:
            try:
                answer = session.transport.call(
                    server, method("ResolveService.Resolve"), request, limit
                )
            except (NotReady, NoRoute, Unmounted):
                # The server resolves no path, but operators need its cluster to repair it.
                answer = session.transport.call(
                    server, method("AdminService.GetStatus"), admin_pb2.GetStatusRequest(), limit
                )
        except KdirError as error:
            attempts.append(f"{server}: {error}")
            last = error
            last.attempts = tuple(attempts)
            continue
        cluster = answer.authority.cluster
        before = known.get(cluster.cluster_id)
        asked = (*before.servers, server) if before else (server,)
        known[cluster.cluster_id] = ChosenCluster(
            asked, cluster.cluster, cluster.cluster_id, cluster.mount
        )
    return list(known.values()), last


def _mounted_cluster(session: Session, name: str) -> ChosenCluster:
    """Returns the cluster of that name or id: from the servers' mount table, the root itself, or
    from the root's mount table.

    Raises:
        Absent: the root's table has no such cluster, is complete, and all its mounts are linked.
        KdirError: other errors, such as NoRoute if a mount is not linked.
    """
    from kdir.v1 import federation_pb2

    from resolver.reverse_lookup import unknown_cluster

    request = federation_pb2.ListMountsRequest()
    listed = session.ask_any("FederationService.ListMounts", request)
    mount = _mount_of(name, listed.rows)
    if not mount:
        try:
            root = session.resolver.owner_of("/")
            if name in {root.cluster, root.cluster_id}:
                return ChosenCluster(root.endpoints, root.cluster, root.cluster_id, "/")
            listed = session.resolver.call("/", "FederationService.ListMounts", request)
        except KdirError as error:
            near = nearest_names(name, [row.cluster for row in listed.rows if row.cluster])
            unknown = f"no cluster {name!r} is known, and the root cannot be asked"
            error.message = f"{unknown}: {error.message}{near}"
            raise
        mount = _mount_of(name, listed.rows)
    if not mount:
        raise unknown_cluster(name, listed, NoRoute(f"no cluster {name!r} is known", cluster=name))
    owner = session.resolver.owner_of(mount)
    return ChosenCluster(owner.endpoints, owner.cluster, owner.cluster_id, mount)


def _mount_of(name: str, rows: Sequence[federation_pb2.MountRow]) -> str:
    """Returns the mount of the cluster of that name or id; empty if no row has it."""
    return next((row.mount for row in rows if name in {row.cluster, row.cluster_id}), "")


def call_chosen_cluster(
    session: Session, arguments: Arguments, method_name: str, request: Any, *, changes: bool = False
) -> Any:
    """Sets ``cluster`` of the request to the chosen cluster, calls one of its servers and returns
    the answer; ``changes`` as in ``chosen_cluster``.
    """
    path = arguments.one("PATH")
    chosen = chosen_cluster(session, arguments, changes=changes)
    request.cluster = chosen.requested
    if path:
        where = parse_path_argument(path).path
        return session.resolver.call(where, method_name, request)
    return session.ask_any(method_name, request, chosen.servers, cluster_id=chosen.requested)


class _Patience:
    """Timer that cancels a stream if no message is received in time."""

    def __init__(self, stream: Any, seconds: float) -> None:
        self._stream = stream
        self._seconds = seconds
        self._timer: Any = None
        self.gave_up = False

    def wait(self) -> None:
        """Starts the timer for the next message."""
        import threading

        self.rest()
        self._timer = threading.Timer(self._seconds, self._give_up)
        self._timer.daemon = True
        self._timer.start()

    def rest(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _give_up(self) -> None:
        self.gave_up = True
        self._stream.cancel()


def messages(session: Session, server: str, method_name: str, request: Any) -> Iterator[Any]:
    """Yields the messages of a server's stream about the cluster that the request names.

    Raises:
        KdirError: the server's error; DeadlineExceeded if no message was received in time.
    """
    from resolver.transport import method

    stream = session.transport.stream(
        server, method(method_name), request, cluster_id=request.cluster
    )
    patience = _Patience(stream, session.timeout_seconds)
    patience.wait()
    try:
        for message in stream:
            patience.rest()
            yield message
            patience.wait()
    except Cancelled as error:
        if not patience.gave_up:
            raise
        raise DeadlineExceeded(
            f"no data from {server} for {session.timeout_seconds:g} s (--timeout)"
        ) from error
    finally:
        patience.rest()
        stream.cancel()
