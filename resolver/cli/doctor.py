"""The verb ``doctor``: the state of servers, and the problems of their clusters, with
what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from resolver import units
from resolver.cli.output import Column, Styled, Table
from resolver.cli.parser import Arguments, Option, Verb
from resolver.errors import (
    DeadlineExceeded,
    Denied,
    HandshakeFailed,
    KdirError,
    NoRoute,
    Unauthenticated,
    Unavailable,
)
from resolver.message_values import plain

if TYPE_CHECKING:
    from kdir.v1 import admin_pb2, federation_pb2

    from resolver.cli.session import Session

__all__ = ["VERBS"]


@dataclass(frozen=True, slots=True)
class _Server:
    """One server to query, and one of its clusters (id "" = the server's own)."""

    endpoint: str
    cluster_id: str
    cluster: str
    mount: str


_Look = tuple[_Server, "admin_pb2.GetStatusResponse | KdirError"]


def _doctor(session: Session, arguments: Arguments) -> int:
    named = [_Server(endpoint, "", "", "") for endpoint in session.servers()]
    looks = _query_servers(session, named)
    if not arguments.flag("local"):
        looks = _with_known(session, looks, _known_servers(session, named, looks))
        looks = _with_known(session, looks, [one for look in looks for one in _siblings(look)])
    problems = [problem for look in looks for problem in _problems(look)]
    problems += _shared(looks)
    out = session.out
    if out.structured:
        for server, status in looks:
            out.record(_record(server, status))
    else:
        rows = [_table_row(server, status, human=out.human) for server, status in looks]
        Table(out, _COLUMNS).rows(sorted(rows, key=lambda row: str(row[0])))
    _set_up(session)
    _who(session, looks)
    for hint in dict.fromkeys(filter(None, map(_level, looks))):
        out.note(hint)
    for change in _changes(looks):
        out.note(change)
    for problem in problems:
        out.note(problem, "bad")
    hidden = list(_not_asked(looks))
    for note in hidden:
        out.note(note, "warn")
    if not problems and not session.partial and not hidden:
        unlike = sorted({mount for look in looks for mount in _unlike(look)})
        out.note("all servers healthy" if not unlike else _UNDER_WAY.format(", ".join(unlike)))
    denied = [look for look in looks if isinstance(look[1], Denied | HandshakeFailed)]
    if denied and not session.partial and len(denied) == len(problems):
        return Denied.exit_code  # nothing else is wrong
    session.partial = session.partial or bool(problems)
    return 0


def _place(look: _Look) -> tuple[str, str]:
    server, status = look
    mount = server.mount if isinstance(status, KdirError) else status.authority.cluster.mount
    return server.endpoint, mount


def _with_known(session: Session, looks: Sequence[_Look], known: Sequence[_Server]) -> list[_Look]:
    """Returns the looks, with one at each other known server.

    A server that did not answer is not queried again for another of its clusters: all of them get
    its error.
    """
    silent = {server.endpoint: status for server, status in looks if _is_silent(status)}
    others = _unseen(looks, known)
    named = {one.endpoint for one in others}
    kept = [
        look for look in looks if look[0].mount or look[0].endpoint not in silent.keys() & named
    ]
    again = [(one, silent[one.endpoint]) for one in others if one.endpoint in silent]
    return [
        *kept,
        *again,
        *_query_servers(session, [one for one in others if one.endpoint not in silent]),
    ]


def _is_silent(status: admin_pb2.GetStatusResponse | KdirError) -> bool:
    return isinstance(status, Unavailable | DeadlineExceeded)


def _unseen(looks: Sequence[_Look], servers: Sequence[_Server]) -> list[_Server]:
    seen = {_place(look) for look in looks}
    by_place = {(one.endpoint, one.mount): one for one in servers}
    return [one for place, one in by_place.items() if place not in seen]


def _siblings(look: _Look) -> Iterator[_Server]:
    """Yields the servers of the same cluster that the answer lists."""
    _, status = look
    if not isinstance(status, KdirError):
        cluster = status.authority.cluster
        for member in status.members:
            for endpoint in member.endpoints:
                yield _Server(endpoint, cluster.cluster_id, cluster.cluster, cluster.mount)


def _not_asked(looks: Sequence[_Look]) -> Iterator[str]:
    """Yields how many registered servers were not asked, since another one answered at their
    endpoint: processes share a port.
    """
    answers = [(server, one) for server, one in looks if not isinstance(one, KdirError)]
    asked = {(one.authority.cluster.cluster_id, one.authority.server) for _, one in answers}
    for server, status in answers:
        cluster = status.authority.cluster
        here = [one.server for one in status.members if server.endpoint in one.endpoints]
        others = [one for one in here if (cluster.cluster_id, one) not in asked]
        if status.authority.server and others:
            yield (
                f"{cluster.mount} at {server.endpoint}: not asked: {len(others)} of {len(here)} "
                f"servers registered with this address: kdir features {cluster.mount}"
            )


def _level(look: _Look) -> str:
    """Returns what is to be done about a cluster's feature level; empty = nothing."""
    _, status = look
    if isinstance(status, KdirError) or not status.members:
        return ""
    cluster, finalized = status.authority.cluster, status.finalized_level
    levels = {one.server: one.feature_level for one in status.members}
    if min(levels.values()) > finalized:
        return (
            f"{cluster.mount}: every server supports feature level {min(levels.values())}, and "
            f"{finalized} is finalized: kdir features finalize {cluster.mount}"
        )
    behind = sorted(server for server, level in levels.items() if level < max(levels.values()))
    return f"{cluster.mount}: older than the others: {', '.join(behind)}" if behind else ""


def _known_servers(
    session: Session, named: Sequence[_Server], looks: Sequence[_Look]
) -> list[_Server]:
    """Returns the servers of the root, and those of every mount that one server reports: the first
    of ``named`` that answers, else one of the root.
    """
    from kdir.v1 import federation_pb2

    from resolver.transport import method

    silent = {server.endpoint for server, status in looks if _is_silent(status)}
    failed = {server.endpoint for server, status in looks if isinstance(status, KdirError)}
    refused: list[KdirError] = []
    list_mounts, request = "FederationService.ListMounts", federation_pb2.ListMountsRequest()
    for server in named:
        if server.endpoint in silent:
            continue
        try:
            answer: Any = session.transport.call(
                server.endpoint,
                method(list_mounts),
                request,
                session.timeout_seconds,
                cluster_id=server.cluster_id,
            )
        except KdirError as error:
            if server.endpoint not in failed:  # else its own row says so
                refused.append(error)
            continue
        return _root(session, looks) + _mounted(session, answer)
    if not refused:
        return []
    # Such as a server that reports its state, and whose store has been away for too long.
    root = _root(session, looks)
    if root:
        try:
            return root + _mounted(session, session.resolver.call("/", list_mounts, request))
        except KdirError as error:
            refused.append(error)
    session.missing(f"not listed: other mounts: {refused[-1]}")
    return root


def _mounted(session: Session, answer: federation_pb2.ListMountsResponse) -> list[_Server]:
    from resolver.cli.clusters_below import report_incomplete

    report_incomplete(session, answer)
    return [
        _Server(endpoint, row.cluster_id, row.cluster, row.mount)
        for row in answer.rows
        for endpoint in row.endpoints or ("",)
    ]


def _leads_up(look: _Look) -> bool:
    """True if a route from this server to ``/`` may exist. A cluster that is not at ``/``
    and has no parent has none, and would log the query as an error.
    """
    _, status = look
    if isinstance(status, KdirError):
        return not _is_silent(status)
    return status.parent.configured or status.authority.cluster.mount == "/"


def _root(session: Session, looks: Sequence[_Look]) -> list[_Server]:
    """Returns the servers of ``/``, which no mount names; none where nothing leads there."""
    if not any(map(_leads_up, looks)):
        return []
    try:
        root = session.resolver.owner_of("/")
    except NoRoute:
        return []  # a cluster of its own, without a parent
    except KdirError as error:
        session.missing(f"/: {error}")
        return []
    return [_Server(endpoint, root.cluster_id, root.cluster, "/") for endpoint in root.endpoints]


def _query_servers(session: Session, servers: Sequence[_Server]) -> list[_Look]:
    """Queries the servers concurrently, so that timeouts do not add up."""
    from concurrent.futures import ThreadPoolExecutor

    if not servers:
        return []
    with ThreadPoolExecutor(min(len(servers), 16)) as pool:
        statuses = list(pool.map(_asker(session), servers))
    return list(zip(servers, statuses, strict=True))


def _asker(session: Session) -> Callable[[_Server], admin_pb2.GetStatusResponse | KdirError]:
    from kdir.v1 import admin_pb2

    from resolver.errors import BadReferral, Unreachable
    from resolver.transport import method

    transport, get_status = session.transport, method("AdminService.GetStatus")
    allow, named = session.allow, session.servers()

    def ask(server: _Server) -> admin_pb2.GetStatusResponse | KdirError:
        if not server.endpoint:
            return Unreachable("no known servers for this cluster")
        if server.endpoint not in named and (why := allow.why_not_allowed(server.endpoint)):
            return BadReferral(why)
        request = admin_pb2.GetStatusRequest(cluster=server.cluster_id)
        try:
            answer: Any = transport.call(
                server.endpoint,
                get_status,
                request,
                session.timeout_seconds,
                cluster_id=server.cluster_id,
            )
        except KdirError as error:
            return error
        found: admin_pb2.GetStatusResponse = answer
        return found

    return ask


_COLUMNS: Final = (
    Column("MOUNT"),
    Column("CLUSTER"),
    Column("SERVER"),
    Column("STATE"),
    Column("TOPICS", right=True),
    Column("PARENT"),
    Column("KAFKA"),
    Column("VERSION"),
    Column("UPTIME", right=True),
    Column("CLUSTER ID", wide=True),
    Column("REVISION", right=True, wide=True),
    Column("LEVEL", right=True, wide=True),
)
_NAMED: Final = 5
"""Number of unreadable values that are shown."""
_STATES: Final = {0: "-", 1: "loading", 2: "serving", 3: "stale"}


def _table_row(
    server: _Server, status: admin_pb2.GetStatusResponse | KdirError, *, human: bool
) -> list[str | Styled]:
    if isinstance(status, KdirError):
        state = Styled(status.reason.lower().replace("_", " "), "bad")
        return [server.mount or "?", server.cluster or "?", server.endpoint or "-", state,
                "-", "-", "-", "-", "-", server.cluster_id or "-", "-", "-"]  # fmt: skip
    cluster = status.authority.cluster
    part = _state(status)
    up = units.age(status.uptime_seconds) if human else f"{status.uptime_seconds:.3f}"
    return [
        cluster.mount,
        cluster.cluster,
        server.endpoint,
        part if part == "serving" else Styled(part, "warn"),
        units.count(status.topic_count) if human else str(status.topic_count),
        _parent(status),
        _kafka(status),
        status.version,
        up,
        cluster.cluster_id,
        str(status.authority.revision),
        str(status.finalized_level or "-"),
    ]


def _state(status: admin_pb2.GetStatusResponse) -> str:
    """Returns the states of /readyz (directory/server/health.py), such as ``stale 12 s``."""
    name = _STATES.get(status.replica_state, str(status.replica_state))
    if name == "loading":
        return name
    if status.store_status.sealed:
        return "sealed"
    if name == "stale":
        return f"stale {status.store_status.age_seconds:.0f} s"
    if status.parent.unmounted:
        return "unmounted"
    return "awaiting-parent" if status.parent.inherited_missing_reason else name


def _parent(status: admin_pb2.GetStatusResponse) -> str | Styled:
    parent = status.parent
    if parent.unmounted:
        return Styled("unmounted", "bad")
    if not parent.configured:
        return "-"
    if parent.standby:
        return "standby"  # another server of the cluster holds the link
    return "linked" if parent.linked else Styled("disconnected", "bad")


def _kafka(status: admin_pb2.GetStatusResponse) -> str | Styled:
    if not status.HasField("kafka"):
        return "-"
    kafka = status.kafka
    if kafka.stop_reason:
        return Styled("stopped", "bad")
    if kafka.unmanaged:
        return Styled("unmanaged", "bad")
    if kafka.leader and not kafka.reachable:
        return Styled("unreachable", "bad")
    counts = {
        "pending": kafka.pending_count, "missing": kafka.missing_count,
        "replaced": kafka.replaced_count, "drift": kafka.drift_count,
        "needs approval": kafka.needs_approval_count, "contested": kafka.contested_count,
        "ACL resources needing approval": kafka.acl_resources_needing_approval_count,
        "ACL resources rejected": kafka.acl_resources_rejected_count,
        "ACLs removed externally": kafka.acls_removed_externally_count,
    }  # fmt: skip
    reported = ", ".join(f"{name}: {number}" for name, number in counts.items() if number)
    if reported:
        return Styled(reported, "warn")
    return "ok" if kafka.leader else "standby"


def _unlike(look: _Look) -> Iterator[str]:
    """Yields the mount of a cluster if its Kafka is not yet as desired."""
    _, status = look
    if not isinstance(status, KdirError):
        kafka = status.kafka
        if kafka.pending_count or kafka.missing_count or kafka.drift_count:
            yield status.authority.cluster.mount


_UNDER_WAY: Final = (
    "all servers healthy; changes pending or drift in Kafka: kdir effective --diff {}"
)


def _changes(looks: Sequence[_Look]) -> Iterator[str]:
    """Yields the large changes in progress, each once, even if several servers report it."""
    from resolver.cli.entry_rows import progress_text

    seen: set[tuple[str, str]] = set()
    for _, status in looks:
        if isinstance(status, KdirError):
            continue
        cluster = status.authority.cluster
        for one in status.progress:
            if (cluster.cluster_id, one.change_id) not in seen:
                seen.add((cluster.cluster_id, one.change_id))
                yield f"{cluster.mount}: {progress_text(one)}"


def _problems(look: _Look) -> Iterator[str]:
    """Yields the problems that a look shows, one sentence each."""
    server, status = look
    if isinstance(status, KdirError):
        cluster = server.cluster or server.cluster_id
        name = f"{server.mount} ({cluster})" if server.mount else ""
        yield f"{' at '.join(filter(None, (name, server.endpoint)))}: {status}"
        return
    where = f"{status.authority.cluster.mount} at {server.endpoint}"
    yield from _of_store(where, status)
    parent = status.parent
    if parent.unmounted:
        yield f"{where}: unmounted by the parent"
    elif parent.inherited_missing_reason:
        yield f"{where}: {parent.inherited_missing_reason}"
    elif parent.configured and not parent.linked and not parent.standby:
        yield f"{where}: parent link down: {parent.message or 'not connected yet'}"
    if status.HasField("kafka"):
        if status.kafka.stop_reason:
            mount = status.authority.cluster.mount
            yield (
                f"{where}: stopped by a guard ({status.kafka.stop_reason}); every difference: "
                f"kdir verify {mount}; to continue: kdir ack {mount}"
            )
        elif status.kafka.unmanaged:
            yield f"{where}: {status.kafka.unmanaged}"
        elif status.kafka.leader and not status.kafka.reachable:
            yield f"{where}: Kafka is unreachable: {status.kafka.message}"
        yield from _attended(where, status)
    if status.change_log.message:
        yield (
            f"{where}: the change log waits: {status.change_log.message}: "
            f"kdir log status {status.authority.cluster.mount}"
        )
    yield from _set_aside(where, status)


def _of_store(where: str, status: admin_pb2.GetStatusResponse) -> Iterator[str]:
    """Yields why the store is not followed, or takes no changes."""
    store = status.store_status
    if store.sealed:
        yield f"{where}: its store is sealed (read-only): {store.sealed}"
    elif status.replica_state != 2:
        yield f"{where}: replica is {_state(status)}{f': {store.message}' if store.message else ''}"
    if store.full:
        yield (
            f"{where}: its store is full ({store.full_age_seconds:.0f} s ago, at the last change):"
            f" {store.full}"
        )


def _shared(looks: Sequence[_Look]) -> Iterator[str]:
    """Yields clusters that share a Kafka cluster without coordination; with it, one of them reports
    itself as unmanaged.
    """
    by_kafka: dict[str, dict[str, str]] = {}
    settled: set[str] = set()
    for _, status in looks:
        if isinstance(status, KdirError) or not status.kafka.pinned_cluster_id:
            continue
        kafka, cluster = status.kafka, status.authority.cluster
        by_kafka.setdefault(kafka.pinned_cluster_id, {})[cluster.cluster_id] = cluster.mount
        if kafka.unmanaged:
            settled.add(kafka.pinned_cluster_id)
    for kafka_id, clusters in by_kafka.items():
        if len(clusters) > 1 and kafka_id not in settled:
            yield (
                f"{' and '.join(sorted(clusters.values()))} share Kafka cluster {kafka_id} without "
                f"coordination: give each a Kafka of its own"
            )


def _attended(where: str, status: admin_pb2.GetStatusResponse) -> Iterator[str]:
    """Yields what waits for an operator before kdir changes it in Kafka."""
    kafka, mount = status.kafka, status.authority.cluster.mount
    if kafka.replaced_count:
        yield (
            f"{where}: {units.plural(kafka.replaced_count, 'topic')} replaced in Kafka by others "
            f"of the same name: kdir effective --diff {mount} names them; kdir adopt PATH --topic "
            f"NAME takes one as it is, kdir rm PATH leaves it alone"
        )
    if kafka.needs_approval_count:
        yield (
            f"{where}: {units.plural(kafka.needs_approval_count, 'topic')} with changes that may "
            f"delete data need approval by a plan: kdir arm {mount} --aspect configs"
        )
    acls = {
        "needing approval or quota": kafka.acl_resources_needing_approval_count,
        "rejected by Kafka": kafka.acl_resources_rejected_count,
    }
    for state, count in acls.items():
        if count:
            what = units.plural(count, "topic, group or id", "topics, groups or ids")
            yield (
                f"{where}: ACLs of {what} {state}: kdir effective --diff {mount}; "
                f"kdir arm {mount} --aspect acls"
            )
    if kafka.acls_removed_externally_count:
        yield (
            f"{where}: {units.plural(kafka.acls_removed_externally_count, 'ACL')} of kdir's "
            f"removed externally: kdir effective --diff {mount}; kdir arm {mount} --aspect acls"
        )
    if kafka.contested_count:
        yield (
            f"{where}: {units.plural(kafka.contested_count, 'topic')} with values that another "
            f"writer keeps reverting: kdir arm {mount} --aspect configs"
        )


def _set_aside(where: str, status: admin_pb2.GetStatusResponse) -> Iterator[str]:
    """Yields one problem for all unreadable values of the store, and the keys of the first."""
    count = status.unreadable_value_count or len(
        status.unreadable_values
    )  # an older server does not count
    if not count:
        return
    values = "1 unreadable value" if count == 1 else f"{count:,} unreadable values"
    were = "was" if count == 1 else "were"
    yield f"{where}: {values} in the store {were} quarantined; kdir verify lists all"
    for key in status.unreadable_values[:_NAMED]:
        yield f"  {key}"


def _record(server: _Server, status: admin_pb2.GetStatusResponse | KdirError) -> dict[str, Any]:
    record: dict[str, Any] = {"endpoint": server.endpoint}
    if isinstance(status, KdirError):
        named = {"mount": server.mount, "cluster": server.cluster, "cluster_id": server.cluster_id}
        record |= {key: value for key, value in named.items() if value}
        record["error"] = {"reason": status.reason, "message": status.message}
        return record
    return record | plain(status)


def _set_up(session: Session) -> None:
    """Prints which setting names the servers, and which extras are installed."""
    from resolver.extras import EXTRAS, is_installed
    from resolver.user_config import config_file

    context = session.context()
    source = f"context {context.name}" if context else "no context"
    session.out.note(f"servers: {','.join(session.servers())} ({source}; {config_file()})", "faint")
    reported = [
        f"kdir[{name}] {'installed' if all(map(is_installed, modules)) else 'not installed'}"
        for name, modules in EXTRAS.items()
    ]
    session.out.note(f"extras:  {', '.join(reported)}", "faint")


def _who(session: Session, looks: Sequence[_Look]) -> None:
    """Prints the principal that servers report, and the login; nothing if no server has judged the
    login, or there is neither.
    """
    settings = session.login()
    seen: dict[str, list[str]] = {}
    for server, status in looks:
        principal = (
            status.metadata.get("principal") if isinstance(status, KdirError) else status.principal
        )
        if principal:
            seen.setdefault(principal, []).append(server.endpoint)
    shown = [
        who if len(seen) == 1 else f"{who} ({', '.join(dict.fromkeys(at))})"
        for who, at in seen.items()
    ]
    by = f" by {settings.shown}" if settings.shown else ""
    if shown:
        you = f"{', '.join(shown)}{by}"
    elif any(isinstance(status, Unauthenticated) for _, status in looks):
        you = f"not accepted,{by}"
    elif by and not all(isinstance(status, KdirError) for _, status in looks):
        has_login = settings.cert or settings.token or settings.token_file
        ignored = f", {settings.shown} ignored" if has_login else ""
        you = f"anonymous: the servers do not authenticate callers{ignored}"
    else:
        return
    session.out.note(f"identity: {you}", "faint")


VERBS: Final = (
    Verb(
        name="doctor",
        summary="reachable servers and their state",
        run=_doctor,
        timeout_seconds=3.0,
        details=(
            "Queries the servers of the context, and every server of every mount known to them.\n"
            "Problems go to stderr; exit code 3, or 4 if the only one is that you are denied.\n"
            "Shows your identity as the servers see it, also where they deny you."
        ),
        options=(Option(("--local",), "only the servers of the context"),),
        formats=("table", "json", "yaml"),
        examples=(
            ("kdir doctor", "every server"),
            ("kdir doctor --local --at la-1:7420", "one server"),
        ),
    ),
)
