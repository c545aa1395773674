"""Verbs for changes: ``watch`` shows new changes as they happen, ``history`` past ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from resolver import units
from resolver.cli.entry_rows import CLEARED
from resolver.cli.output import Column, Styled, Table
from resolver.cli.parser import Argument, Arguments, Option, Verb
from resolver.cli.session import parse_path_argument
from resolver.errors import Absent, KdirError

if TYPE_CHECKING:
    from kdir.v1 import entry_pb2, watch_pb2

    from resolver.cli.session import Session
    from resolver.path import Path

__all__ = ["VERBS", "note_coverage", "summary", "visible_events"]

_ACTIONS: Final = {1: "insert", 2: "update", 3: "delete"}
_KINDS: Final = {1: "dir", 2: "topic", 3: "link", 4: "mount"}


def _watch(session: Session, arguments: Arguments) -> int:
    out, where = session.out, parse_path_argument(arguments.one("PATH"))
    session.refuse_topic(where)
    watching = session.resolver.watch(where.path, after=arguments.one("after"))
    table = _table(session)
    interrupted = _closes_on_interrupt(watching.close)
    begun = False
    try:
        for changes in watching:
            if changes.authority is not None:
                cluster = changes.authority.cluster
                out.note(f"watching {watching.path} in {cluster.cluster}; Ctrl-C ends it", "faint")
                if not begun:
                    note_coverage(session, watching.path)
                begun = True
            _print(session, table, changes.events)
            if changes.events and arguments.flag("tokens"):
                out.note(f"token {changes.token}")
            out.flush()
    except KdirError:
        if not interrupted():
            raise
    finally:
        watching.close()
    if interrupted():
        raise KeyboardInterrupt
    return 0


def note_coverage(session: Session, path: Path) -> None:
    """Prints a note if the watched path does not exist yet, and one with the clusters below, which
    a watch leaves out.
    """
    from resolver.cli.mount import list_mounts_below, some_paths

    try:
        session.resolver.resolve(path, no_follow=True)
    except Absent:
        session.out.note(f"{path} does not exist: waiting for it to be created")
    except KdirError:
        return  # the watch itself continues
    below = list_mounts_below(session, path)
    if below:
        session.out.note(f"not included (other clusters, watch each): {some_paths(below)}")


def _closes_on_interrupt(close: Callable[[], object]) -> Callable[[], bool]:
    """Lets Ctrl-C end the watch even if its exception is lost: Python drops an exception that is
    raised in a callback of gRPC, and the watch would never end. Returns a function that returns
    whether Ctrl-C was pressed.
    """
    import signal
    import threading

    came = threading.Event()

    def interrupt(*_: object) -> None:
        came.set()
        threading.Thread(target=close, name="interrupt", daemon=True).start()
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)
    return came.is_set


def _history(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import watch_pb2

    from resolver.page_order import PageOrder
    from resolver.watch_streams import clear_former_path, is_own_change

    where = parse_path_argument(arguments.one("PATH"))
    session.refuse_topic(where)
    path = where.path
    left = arguments.whole("count", 1_000)
    request = watch_pb2.ListChangesRequest(path=str(path))
    table = _table(session)
    noted = found_any = False
    foreign_count = 0
    owner = session.resolver.owner_of(path)
    order: PageOrder[watch_pb2.ChangeEvent] = PageOrder(str(path), lambda event: -event.revision)
    while left > 0:
        request.page_size = min(left, 1_000)
        answer: watch_pb2.ListChangesResponse = session.resolver.call(
            path, "WatchService.ListChanges", request
        )
        order.add_page(answer.events)
        for event in answer.events:
            clear_former_path(event, owner.mount)
        own = [event for event in answer.events if is_own_change(event, owner.mount)]
        foreign_count += len(answer.events) - len(own)
        shown = own if session.out.structured else visible_events(own)
        _print(session, table, shown[:left])
        left -= len(shown)
        found_any = found_any or bool(answer.events)
        since = answer.rights_known_since
        if answer.events and answer.events[-1].revision < since and not noted:
            session.out.note(
                f"the rights of callers before revision {since} are not known here: earlier "
                f"changes are shown only if their entry has not changed since"
            )
            noted = True
        request.page_token = answer.next_page_token
        if not answer.next_page_token:
            break
    if foreign_count:
        # A cluster has no authority over paths outside its mount (R5). But its history may have
        # changes at such paths, from the time before it was mounted here.
        session.missing(
            f"not shown: {units.plural(foreign_count, 'change')} at paths outside {owner.mount}, "
            f"where the cluster {owner.cluster} is mounted"
        )
    if not found_any:
        session.resolver.resolve(path, no_follow=True)  # raises Absent if there is no entry
        session.out.note(f"no changes at or below {path} are kept")
    return 0


def _table(session: Session) -> Table:
    columns = (Column("TIME"), Column("REVISION", right=True), Column("ACTION"), Column("KIND"),
               Column("PATH"), Column("PRINCIPAL"), Column("CHANGE"),
               Column("CLUSTER ID", wide=True), Column("ENTRY ID", wide=True),
               Column("REQUEST ID", wide=True))  # fmt: skip
    return Table(session.out, columns)


def _print(session: Session, table: Table, events: Any) -> None:
    out = session.out
    if out.structured:
        for event in events:
            out.record(event)
    elif out.format == "name":
        out.lines(event.path for event in visible_events(events))
    else:
        table.rows([_table_row(event, human=out.human) for event in visible_events(events)])


def visible_events(events: Iterable[watch_pb2.ChangeEvent]) -> list[watch_pb2.ChangeEvent]:
    """Returns the changes of users, and their results, without the server's own records: of a
    removal in progress, of an attempt in Kafka, or of the drift count. ``-o json`` has all.
    """
    return [event for event in events if not _is_inner_record(event)]


def _is_inner_record(event: watch_pb2.ChangeEvent) -> bool:
    from resolver.entry_fields import SERVER_FIELDS
    from resolver.watch_streams import DELETED

    if DELETED in event.path.split("/"):
        return True
    before, after = event.before.topic, event.after.topic
    is_noted = any(getattr(before, name) != getattr(after, name) for name in SERVER_FIELDS)
    is_update = event.HasField("before") and event.HasField("after")
    return is_update and is_noted and not any(summary(event))


def _table_row(event: watch_pb2.ChangeEvent, *, human: bool) -> list[str | Styled]:
    action = _ACTIONS.get(event.action, str(event.action))
    time: str = event.time.ToJsonString()
    if human:
        time = time[:19].replace("T", " ")
    return [
        time,
        str(event.revision),
        Styled(action, "bad") if action == "delete" else action,
        _KINDS.get(event.kind, str(event.kind)),
        event.path,
        event.principal or "-",
        ", ".join(summary(event)),
        event.cluster_id or "-",
        str(event.entry_id or "-"),
        event.request_id or "-",
    ]


def summary(event: watch_pb2.ChangeEvent) -> Iterator[str]:
    """Yields a phrase for each changed part, such as ``owner: search → ads``."""
    if event.path_before and event.path_before != event.path:
        yield f"was {event.path_before}"
    yield from _granted(event)
    yield from _inherited(event)
    if event.operation:
        yield event.operation
    if not event.HasField("before") or not event.HasField("after"):
        return
    before, after = _shown(event.before), _shown(event.after)
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old != new:
            yield f"{key}: {_format_value(old)} → {_format_value(new)}"


def _granted(event: watch_pb2.ChangeEvent) -> Iterator[str]:
    """Yields the removed and the added grants."""
    from kdir.v1 import watch_pb2

    if event.scope != watch_pb2.CHANGE_SCOPE_GRANTS:
        return
    from resolver.access_requests import grant_text

    before = [grant_text(grant) for grant in event.grants_before.grants]
    after = [grant_text(grant) for grant in event.grants_after.grants]
    yield from (f"removed {one}" for one in before if one not in after)
    yield from (f"added {one}" for one in after if one not in before)


def _inherited(event: watch_pb2.ChangeEvent) -> Iterator[str]:
    """Yields the effective policies of a cluster after a change of its ancestors."""
    from kdir.v1 import watch_pb2

    from resolver.entry_fields import policy_fields

    if event.scope == watch_pb2.CHANGE_SCOPE_INHERITED:
        holds = ", ".join(f"{key}={value}" for key, value in policy_fields(event.effective))
        yield f"inherited policies changed; effective now: {holds or 'none'}"


def _shown(entry: entry_pb2.Entry) -> dict[str, str]:
    from resolver.entry_fields import entry_fields

    fields = entry_fields(entry)
    return {key: CLEARED if value is None else value for key, value in fields}


def _format_value(value: str | None) -> str:
    return "-" if value is None else value


_PATH: Final = Argument("PATH", "changes at and below it", completes="path")
_FORMATS: Final = ("table", "json", "yaml", "name")

VERBS: Final = (
    Verb(
        name="watch",
        summary="stream changes at and below a path",
        run=_watch,
        details=(
            "Every committed change at and below PATH, in order, each once; reconnects by itself.\n"
            "Covers the cluster that owns PATH, not those mounted below it. Ends with RESYNC if\n"
            "it falls too far behind: list again, then watch. A PATH that does not exist is\n"
            "waited for."
        ),
        arguments=(_PATH,),
        options=(
            Option(("--after",), "resume after this token", "TOKEN"),
            Option(("--tokens",), "print a resume token to stderr after each change"),
        ),
        formats=_FORMATS,
        examples=(
            ("kdir watch /la/tracking", "on a terminal"),
            ("kdir watch -o json /la/tracking | jq .path", "in a script"),
        ),
    ),
    Verb(
        name="history",
        summary="who changed what, newest first",
        run=_history,
        details=(
            "Changes at and below PATH in the cluster that owns it, as far back as its server\n"
            "keeps them; also of what is no longer there; -o json also has the servers' own\n"
            "records. Exit code 1 if PATH does not exist and\n"
            "no change of it is kept."
        ),
        arguments=(_PATH,),
        options=(Option(("-n", "--count"), "maximum number of changes (default: 1000)", "N"),),
        formats=_FORMATS,
        examples=(("kdir history -n 20 /la/tracking/search", "the last twenty"),),
    ),
)
