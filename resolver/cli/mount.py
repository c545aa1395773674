"""Verbs for mounts, where one cluster is attached below another: ``mounts``, ``mount``,
``umount``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from resolver import units
from resolver.cli.clusters_below import incomplete_text, report_incomplete, unlisted_at
from resolver.cli.create import ENTRY_FORMATS, PLAN, show_entry
from resolver.cli.output import Column, Styled, Table
from resolver.cli.parser import FORMATS, Argument, Arguments, Option, UsageError, Verb
from resolver.cli.plan_output import print_change_plan
from resolver.cli.session import parse_path_argument
from resolver.cli.topic_counts import TopicCount, count_in_rows
from resolver.message_values import plain

if TYPE_CHECKING:
    from kdir.v1 import federation_pb2

    from resolver.cli.session import Session
    from resolver.path import Path

__all__ = ["VERBS", "list_mounts_below", "some_paths"]

_MOST_NAMED: Final = 5
"""Most paths in one message."""


def _mounts(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import federation_pb2

    request = federation_pb2.ListMountsRequest()
    name = "FederationService.ListMounts"
    path = arguments.one("PATH")
    answer = (
        session.resolver.call(parse_path_argument(path).path, name, request)
        if path
        else session.ask_any(name, request)
    )
    out = session.out
    if out.structured:
        for row in answer.rows:
            counts = _counts(row, count_in_rows(answer.rows, row.mount))
            known = {"confirmed": row.confirmed, "state": _state(row)}
            out.record({**plain(row), **counts, **known})
        for child in answer.pending_children:
            out.record({**plain(child), "age_seconds": child.age_seconds, "state": "pending"})
    elif out.format == "name":
        out.lines(row.mount for row in answer.rows)
    else:
        rows = [
            _table_row(row, count_in_rows(answer.rows, row.mount), human=out.human)
            for row in answer.rows
        ]
        Table(out, _COLUMNS).rows(
            rows + [_waiting(one, human=out.human) for one in answer.pending_children]
        )
    _note_unconfirmed(session, answer.rows)
    report_incomplete(session, answer)
    for child in answer.pending_children:
        out.note(f"pending child {child.cluster or child.cluster_id}: {child.message}", "warn")
    return 0


def _state(row: federation_pb2.MountRow) -> str:
    """Returns the state of a mount, which is *linked* only if an open link reports it now, and
    *disconnected* only if its link is known to be closed.
    """
    if row.link_unknown:
        return "unknown"
    if not row.linked:
        return "disconnected"
    return "linked" if row.confirmed else "unconfirmed"


def _note_unconfirmed(session: Session, rows: Sequence[federation_pb2.MountRow]) -> None:
    """Reports the unconfirmed mounts on stderr: they were linked when the queried server's own
    link, which reported them, ended.
    """
    unconfirmed = [row for row in rows if _state(row) == "unconfirmed"]
    if unconfirmed:
        age = units.age(max(row.age_seconds for row in unconfirmed))
        paths = some_paths([row.mount for row in unconfirmed])
        session.out.note(
            f"unconfirmed, as reported up to {age} ago: {paths}: no parent confirms these mounts "
            "now",
            "warn",
        )


_COLUMNS: Final = (
    Column("MOUNT"),
    Column("CLUSTER"),
    Column("CLUSTER ID"),
    Column("STATE"),
    Column("TOPICS", right=True),
    Column("OWN", right=True),
    Column("AGE", right=True),
    Column("SERVERS"),
    Column("EPOCH", right=True, wide=True),
    Column("LEVEL", right=True, wide=True),
)


def _table_row(
    row: federation_pb2.MountRow, topics: TopicCount, *, human: bool
) -> Sequence[str | Styled]:
    state = _state(row)
    style = {"disconnected": "bad", "unconfirmed": "warn", "unknown": "warn"}.get(state)
    return (
        row.mount,
        row.cluster or "-",
        row.cluster_id,
        Styled(state, style) if style else state,
        topics.cell(human=human),
        _own_count(row, human=human),
        units.age(row.age_seconds) if human else f"{row.age_seconds:.3f}",
        ",".join(row.endpoints) or "-",
        str(row.epoch),
        str(row.feature_level or "-"),
    )


def _counts(row: federation_pb2.MountRow, topics: TopicCount) -> dict[str, Any]:
    """Returns the counts of a row for JSON, including zeros, without counts that are not known."""
    found: dict[str, Any] = {"age_seconds": row.age_seconds}
    if row.linked:
        found["topic_count"] = row.topic_count
    if topics.is_whole or topics.number:
        found["total_topic_count"] = topics.number
    if not topics.is_whole:
        found["total_is_lower_bound"] = True
    return found


def _own_count(row: federation_pb2.MountRow, *, human: bool) -> str:
    """Returns the number of topics that a cluster last reported; ``-`` if it may never have
    reported one.
    """
    if not row.linked and not row.topic_count:
        return "-"
    return units.count(row.topic_count) if human else str(row.topic_count)


def _waiting(child: federation_pb2.PendingChild, *, human: bool) -> Sequence[str | Styled]:
    return (
        child.mount or "-",
        child.cluster or "-",
        child.cluster_id,
        Styled("pending", "warn"),
        "-",
        "-",
        units.age(child.age_seconds) if human else f"{child.age_seconds:.3f}",
        ",".join(child.endpoints) or "-",
        "-",
        "-",
    )


def list_mounts_below(session: Session, path: Path) -> list[str]:
    """Returns the paths below a path at which other clusters are mounted, as its owner reports
    them; empty after an error. Prints a note if the list is incomplete.
    """
    from kdir.v1 import federation_pb2

    from resolver.errors import KdirError
    from resolver.path import Path

    request = federation_pb2.ListMountsRequest()
    try:
        answer = session.resolver.call(path, "FederationService.ListMounts", request)
    except KdirError:
        return []
    for name in unlisted_at(answer, path):
        session.out.note(incomplete_text(name), "warn")
    mounts = (Path.parse(row.mount) for row in answer.rows)
    return sorted(str(one) for one in mounts if one != path and path.is_prefix_of(one))


def some_paths(paths: Sequence[str]) -> str:
    """Returns the first few paths, and the number of the others."""
    more = len(paths) - _MOST_NAMED
    return ", ".join(paths[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _mount(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import directory_pb2, entry_pb2

    child = arguments.one("child")
    if not child:
        raise UsageError(
            "--child is required: the cluster id or name of a pending child (kdir mounts)",
            verb="mount",
        )
    where = parse_path_argument(arguments.one("PATH"))
    endpoints = [part for part in arguments.one("endpoints").split(",") if part]
    request = directory_pb2.CreateEntryRequest(
        path=str(where.path),
        entry=entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id=child, endpoints=endpoints)),
        validate_only=arguments.flag("plan"),
    )
    # The mount is an entry of the cluster that owns its parent directory.
    answer = session.resolver.call(
        where.path, "DirectoryService.CreateEntry", request, at_parent=True
    )
    made: Any = answer.entry.mount
    cluster = f"{made.cluster} ({made.cluster_id})" if made.cluster else made.cluster_id
    if arguments.flag("plan"):
        show_entry(session, answer.entry, f"would mount {cluster} at {where.path}")
        return 0
    show_entry(
        session,
        answer.entry,
        f"mounted {cluster} at {where.path}; kdir mounts shows `linked` once its server connects",
    )
    return 0


def _umount(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import directory_pb2, entry_pb2

    where = parse_path_argument(arguments.one("PATH"))
    request = directory_pb2.DeleteEntryRequest(
        path=str(where.path),
        kind=entry_pb2.ENTRY_KIND_MOUNT,
        etag=arguments.one("etag"),
        validate_only=arguments.flag("plan"),
    )
    if not arguments.flag("plan") and not arguments.flag("yes"):
        # A dry run first, so that no approval is asked for a call that would be refused.
        tried = directory_pb2.DeleteEntryRequest(validate_only=True)
        tried.MergeFrom(request)
        session.resolver.call(where.path, "DirectoryService.DeleteEntry", tried, at_parent=True)
    if not arguments.flag("plan") and not session.approve(
        f"unmount {where.path}",
        "Paths below it will stop resolving. The cluster keeps its topics and data",
    ):
        session.out.note(f"unchanged: {where.path}")
        return 0
    answer = session.resolver.call(
        where.path, "DirectoryService.DeleteEntry", request, at_parent=True
    )
    if session.out.structured:
        session.out.record(answer)
    elif session.out.format == "name":
        session.out.line(str(where.path))
    else:
        did = "would unmount" if arguments.flag("plan") else "unmounted"
        session.out.note(f"{did} {where.path}; the cluster and its topics stay as they are")
    if arguments.flag("plan"):
        print_change_plan(session.out, answer.plan, recorded=True)
    return 0


VERBS: Final = (
    Verb(
        name="mounts",
        summary="known mounts and pending children",
        run=_mounts,
        details=(
            "TOPICS are those of the cluster and of all that are mounted below it: at least so\n"
            "many (9+) where one is not linked. OWN are its own, as last reported. In\n"
            "JSON: total_topic_count (total_is_lower_bound: at least so many) and topic_count.\n"
            "AGE is the time since the owner last confirmed the mount. An unconfirmed one was\n"
            "linked then, but the queried server's link to its parent has ended since. The state\n"
            "is unknown where no link reports it to the queried server, such as one of several\n"
            "that does not hold its cluster's link, or after a restart while the parent is down.\n"
            "Pending children are known only to the parent that they connect to: name a PATH of\n"
            "its cluster to query it."
        ),
        arguments=(Argument("PATH", "query the owner of this path", least=0, completes="path"),),
        formats=FORMATS,
        examples=(
            ("kdir mounts", "the mounts known to the queried server"),
            ("kdir mounts /la", "those of the cluster of /la, with its pending children"),
        ),
    ),
    Verb(
        name="mount",
        summary="attach a child cluster's tree at a path",
        run=_mount,
        writes=True,
        details=(
            "The parent directory must exist, the path itself must not. The child's server has\n"
            "the same mount in its config, and connects to this parent by itself."
        ),
        arguments=(Argument("PATH", "where to attach it", completes="path"),),
        options=(
            Option(("--child",), "cluster id, or name of a pending child", "ID|NAME"),
            Option(("--endpoints",), "endpoints of its servers until it connects", "HOST:PORT,…"),
            PLAN,
        ),
        formats=ENTRY_FORMATS,
        examples=(
            ("kdir mount /la/tracking --child kc-mku3oevb2q", "by id"),
            ("kdir mount /la/tracking --child la-tracking", "a pending child, by name"),
        ),
    ),
    Verb(
        name="umount",
        summary="detach a child cluster's tree",
        run=_umount,
        destroys=True,
        writes=True,
        details="The child keeps its tree, its topics and its data; it stops serving the paths.",
        arguments=(Argument("PATH", "the mount", completes="path"),),
        options=(
            Option(("--etag",), "only if it is still as stat -o json showed it", "ETAG"),
            PLAN,
        ),
        formats=ENTRY_FORMATS,
        examples=(("kdir umount /la/tracking", "on a terminal it asks first"),),
    ),
)
