"""Pages of ``kdir ui``: the output of reading verbs, as HTML.

A page has sections, most of them the output of one verb, which is run with the options of ``kdir
ui``: a page shows the same as the command line, with the same rights. A section that fails shows
its error, and is never empty instead.

All requests of a page together have a time limit: otherwise a server that always has one more
answer would occupy one of the few threads that make pages.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from resolver import units
from resolver.cli.entry_rows import COLUMNS, entry_row, kind_of
from resolver.cli.error_hints import headline, hints
from resolver.cli.output import Output, Styled
from resolver.cli.parser import UsageError, parse
from resolver.cli.registry import load_verb
from resolver.cli.session import PathArgument, Session, parse_path_argument
from resolver.cli.topic_counts import TopicCount, TopicCounts
from resolver.errors import (
    DeadlineExceeded,
    InvalidArgument,
    InvalidPath,
    KdirError,
    NoRoute,
)
from resolver.message_values import plain
from resolver.printable import printable

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from resolver.directory_listing import ListedEntry
    from resolver.topic_location import TopicLocation
    from resolver.transport import Method, Stream, Transport

__all__ = ["FIND", "MOUNTS", "PAGE_SECONDS", "STYLE", "STYLE_SHEET", "Page", "Pages"]

# No segment of a path has a "~".
FIND: Final = "/~find"
MOUNTS: Final = "/~mounts"
STYLE: Final = "/~style.css"

PAGE_SECONDS: Final = 60.0
"""Time limit for all requests of one page, unless a longer ``--timeout`` of the user raises it."""
_MOST_ROWS: Final = 1_000
_HISTORY_CHANGES: Final = "20"
_FOUND: Final = ("path", "partitions", "owner", "provision", "cluster", "as_of")
_LISTED: Final = ("path", "kind", "partitions", "owner")
_MOUNTED: Final = ("MOUNT", "CLUSTER", "CLUSTER ID", "STATE", "TOPICS", "OWN", "AGE", "SERVERS")
_ATTEMPTS: Final = 8
_STATUSES: Final = {1: 404, 2: 400, 4: 403}
"""HTTP statuses by exit code: absent, invalid path, denied; every other error is 503."""

STYLE_SHEET: Final = """\
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif }
body { margin: 0 auto; max-width: 78rem; padding: 0 1rem 3rem }
header { display: flex; flex-wrap: wrap; gap: 1rem; align-items: baseline; padding: .6rem 0 }
header { border-bottom: 1px solid #8886 }
header form { margin-left: auto }
h1 { font-size: 1.25rem; overflow-wrap: anywhere }
h2 { font-size: 1rem; margin: 1.6rem 0 .4rem }
pre, td { font: 13px/1.5 ui-monospace, monospace }
pre { margin: 0 0 .4rem; white-space: pre }
pre, .table { overflow-x: auto }
table { border-collapse: collapse }
th, td { padding: .1rem 1.1rem .1rem 0; text-align: left; white-space: nowrap }
th { font-size: .8rem }
.right { text-align: right }
.bad, .error { color: #b00020 }
.warn { color: #8a5a00 }
.note { color: #666; margin: .2rem 0; white-space: pre-wrap }
@media (prefers-color-scheme: dark) {
  .bad, .error { color: #ff8a80 }
  .warn { color: #ffd27f }
  .note { color: #aaa }
}
"""


class Page(NamedTuple):
    """Response to one request: HTTP status and HTML."""

    status: int
    html: str


class _EnoughRecords(Exception):
    """Signal that a verb has printed as many objects as a page shows."""


class _CapturedOutput(Output):
    """Output of a verb that is kept in memory: text, or objects."""

    def __init__(self, format: str) -> None:
        self.text, self.notes = io.StringIO(), io.StringIO()
        self.records: list[Mapping[str, Any]] = []
        super().__init__(format, stdout=self.text, stderr=self.notes, environ={})

    def record(self, thing: Any) -> None:
        if len(self.records) == _MOST_ROWS:
            raise _EnoughRecords
        self.records.append(thing if isinstance(thing, Mapping) else plain(thing))


class _Outcome(NamedTuple):
    """Result of one verb: its output, its notes, and its error."""

    text: str
    notes: str
    records: Sequence[Mapping[str, Any]]
    error: KdirError | None


class Pages:
    """Factory of pages with the answers of directory servers to one caller. Thread-safe.

    Args:
        options: options of every verb: the servers to call, and the timeout.
        transport: transport to the servers; the caller closes it.
        table: location of the index to search in; empty = none.
        has_login: whether the caller has credentials, so that entries may be hidden.
        environ: variables that name servers and credentials.
        page_seconds: time limit for all requests of one page.
    """

    def __init__(
        self,
        options: Sequence[str],
        transport: Transport,
        *,
        table: str = "",
        has_login: bool = False,
        environ: Mapping[str, str] = os.environ,
        page_seconds: float = PAGE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = tuple(options)
        self._transport = transport
        self._table = table
        self._has_login = has_login
        self._environ = environ
        self._page_seconds = page_seconds
        self._clock = clock

    def page(self, path: str, query: Mapping[str, str]) -> Page:
        """Returns the page for the decoded path and the query of a request."""
        transport = _LimitedTransport(self._transport, self._page_seconds, self._clock)
        made = _PageSections(
            self._options,
            transport,
            table=self._table,
            has_login=self._has_login,
            environ=self._environ,
        )
        return made.page(path, query)


class _LimitedTransport:
    """Transport whose calls have one common time limit; streams have none."""

    def __init__(
        self, transport: Transport, limit_seconds: float, clock: Callable[[], float]
    ) -> None:
        self._transport = transport
        self._limit_seconds = limit_seconds
        self._clock = clock
        self._deadline = clock() + limit_seconds

    def call(
        self,
        endpoint: str,
        method: Method,
        request: Message,
        timeout_seconds: float,
        *,
        cluster_id: str = "",
    ) -> Any:
        left = self._deadline - self._clock()
        if left <= 0:
            raise DeadlineExceeded(
                f"{endpoint}: not asked: the requests of a page have {self._limit_seconds:g} s"
            )
        limit = min(timeout_seconds, left)
        return self._transport.call(endpoint, method, request, limit, cluster_id=cluster_id)

    def stream(
        self, endpoint: str, method: Method, request: Message, *, cluster_id: str = ""
    ) -> Stream:
        return self._transport.stream(endpoint, method, request, cluster_id=cluster_id)

    def close(self) -> None:
        self._transport.close()


class _PageSections:
    """Sections of one page; arguments as in ``Pages``."""

    def __init__(
        self,
        options: Sequence[str],
        transport: Transport,
        *,
        table: str,
        has_login: bool,
        environ: Mapping[str, str],
    ) -> None:
        self._options = options
        self._transport = transport
        self._table = table
        self._has_login = has_login
        self._environ = environ

    def page(self, path: str, query: Mapping[str, str]) -> Page:
        try:
            match path:
                case _ if path == FIND:
                    return self._find(query.get("q", "").strip(), query.get("in", "/"))
                case _ if path == MOUNTS:
                    return self._mounts()
                case _:
                    return self._entry(parse_path_argument(path), asks_kafka="kafka" in query)
        except KdirError as error:
            return _error_page(path, error, may_be_hidden=self._has_login)

    # -- an entry --------------------------------------------------------------------------------

    def _entry(self, where: PathArgument, *, asks_kafka: bool) -> Page:
        path = str(where)
        with self._session("ls", "table") as session:
            found = session.resolver.resolve(where.path, prefer=where.prefer)
            where.check_kind(found)
            parts = [_section("Where", self._shown("resolve", path))]
            if found.kind == "topic":
                parts += self._topic_parts(found, path, asks_kafka=asks_kafka)
            else:
                parts.append(_section("Content", _content(session, where)))
        history = ("history", "-n", _HISTORY_CHANGES)
        parts += [
            _section("Effective policies", self._shown("effective", path)),
            _section("Grants set here", self._shown("grants", path)),
            _section("Last changes", self._shown(*history, path)),
        ]
        return _page(200, path, parts, heading=_crumbs(where))

    def _topic_parts(self, found: TopicLocation, path: str, *, asks_kafka: bool) -> Iterator[str]:
        if found.has_container:
            yield _note(f"A directory has this name, too: {_link(f'{path}/')}")
        listeners = [["--listener", one.name] if one.name else [] for one in found.listeners]
        connecting = []
        for named in listeners or [[]]:
            heading = _note(_text(*named[1:])) if len(listeners) > 1 else ""
            connecting += [
                heading,
                self._shown("resolve", *named, path, format="kcat", before="kcat -C "),
                self._shown("resolve", *named, path, format="properties"),
            ]
        yield _section("How to connect", "".join(connecting))
        if asks_kafka:
            yield _section("Partitions in Kafka", self._shown("stat", "--partitions", path))
            yield _section("Consumer groups in Kafka", self._shown("stat", "--groups", path))
        else:
            query = f'<a href="{_text(quote(path))}?kafka=1">ask Kafka</a>'
            yield _section("Partitions and consumer groups", f"<p>{query}</p>")

    # -- clusters and search ---------------------------------------------------------------------

    def _mounts(self) -> Page:
        outcome = self._run("mounts", format="json")
        parts = [_table(_MOUNTED, [_mount_cells(one) for one in outcome.records])]
        return _page(_status(outcome.error), "mounts", [*parts, _remarks(outcome)])

    def _find(self, text: str, within: str) -> Page:
        where = parse_path_argument(within)
        parts = [_search_form(text, within, "search")]
        if not text:
            return _page(200, "search", parts)
        if self._table:
            options = ("--table", self._table, "--limit", str(_MOST_ROWS))
            outcome = self._run("find", *options, "--", text, format="json")
            records, columns = [*outcome.records], [*_FOUND]
            parts.append(_note("Topics of all clusters, in the index."))
        else:
            pattern = text if set("*?[") & set(text) else f"*{text}*"
            outcome = self._run("ls", f"{str(where).rstrip('/')}/**/{pattern}", format="json")
            records, columns = [*map(_entry_record, outcome.records)], [*_LISTED]
            parts.append(_note(f"Entries below {_text(where)}; there is no index to search in."))
        if records:
            rows = [_record_cells(one, columns) for one in records]
            parts.append(_table([key.upper() for key in columns], rows))
        return _page(_status(outcome.error), "search", [*parts, _remarks(outcome)])

    # -- verbs -----------------------------------------------------------------------------------

    @contextmanager
    def _session(self, verb_name: str, format: str, parts: Sequence[str] = ()) -> Iterator[Session]:
        verb = load_verb(verb_name)
        assert verb is not None  # noqa: S101 - the names are those of this file
        session = Session(
            parse(verb, [*self._options, *parts]),
            output=_CapturedOutput(format),
            environ=self._environ,
            transport=self._transport,
        )
        try:
            yield session
        finally:
            session.close()

    def _run(self, name: str, *parts: str, format: str = "table") -> _Outcome:
        verb = load_verb(name)
        assert verb is not None  # noqa: S101 - the names are those of this file
        error: KdirError | None = None
        with self._session(name, format, parts) as session:
            out = session.out
            assert isinstance(out, _CapturedOutput)  # noqa: S101 - made above
            try:
                verb.run(session, parse(verb, [*self._options, *parts]))
            except KdirError as reason:
                error = reason
            except UsageError as reason:
                error = InvalidArgument(reason.message)
            except _EnoughRecords:
                out.note(f"only the first {_MOST_ROWS:,} are shown")
        return _Outcome(out.text.getvalue(), out.notes.getvalue(), out.records, error)

    def _shown(self, name: str, *parts: str, format: str = "table", before: str = "") -> str:
        """Returns the output of one verb, as HTML."""
        outcome = self._run(name, *parts, format=format)
        text = f"<pre>{_text(before, outcome.text.rstrip())}</pre>" if outcome.text else ""
        return text + _remarks(outcome)


# -- parts of a page -----------------------------------------------------------------------------


def _content(session: Session, where: PathArgument) -> str:
    """Returns the table of a directory's entries, and the parts that could not be listed, as
    HTML.
    """
    listing = session.resolver.list(where.path)
    entries = list(islice(listing, _MOST_ROWS + 1))
    counts = TopicCounts(session)
    columns = [column for column in COLUMNS if not column.wide]
    rows = [_entry_cells(one, counts, len(columns)) for one in entries[:_MOST_ROWS]]
    parts = [_table([column.name for column in columns], rows) if rows else ""]
    if len(entries) > _MOST_ROWS:
        parts.append(_note(f"Only the first {_MOST_ROWS:,} are shown."))
    parts += [
        f"<p class=error>not listed: {_text(gap.path)}: {_text(gap.error)}</p>"
        for gap in listing.not_listed
    ]
    if not entries and not listing.not_listed:
        parts.append(_note("Nothing is in it."))
    return "".join(parts)


def _entry_cells(one: ListedEntry, counts: TopicCounts, width: int) -> list[str]:
    cluster = one.authority.cluster
    topics = counts.at(one.entry, cluster.mount)
    kind, name, *others = entry_row(
        one.entry,
        cluster=cluster.cluster,
        inherited=one.inherited,
        human=True,
        topics="-" if topics is None else topics.cell(human=True),
    )[:width]
    path = str(one.path) if kind_of(one.entry) == "topic" else f"{one.path}/"
    shown = name.text if isinstance(name, Styled) else name
    if str(one.path) != one.entry.path:  # behind a link: also the canonical path
        others[-1] = f"{_plain_text(others[-1])} ({one.entry.path})"
    return [_cell(kind), f"<td>{_link(path, shown)}</td>", *map(_cell, others)]


def _entry_record(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the shown fields of an entry of ``ls -o json``."""
    kind = next((one for one in ("topic", "directory", "link", "mount") if one in entry), "")
    return {
        "path": entry["path"],
        "kind": kind,
        "partitions": entry.get(kind, {}).get("partitions"),
        "owner": entry.get("policies", {}).get("owner"),
    }


def _mount_cells(record: Mapping[str, Any]) -> list[str]:
    """Returns the cells of a row of ``mounts -o json``, as in the table of ``kdir mounts``."""
    mount, state = str(record.get("mount", "")), str(record["state"])
    own = record.get("topic_count")
    is_whole = "total_topic_count" in record and not record.get("total_is_lower_bound")
    topics = TopicCount(record.get("total_topic_count", 0), is_whole=is_whole)
    return [
        f"<td>{_link(f'{mount}/', mount)}</td>" if mount else _cell("-"),
        _cell(record.get("cluster", "-")),
        _cell(record["cluster_id"]),
        _cell(state if state == "linked" else Styled(state, "bad")),
        _cell(topics.cell(human=True)),
        _cell("-" if own is None else units.count(own)),
        _cell(units.age(record["age_seconds"])),
        _cell(", ".join(record.get("endpoints", ())) or "-"),
    ]


def _record_cells(record: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    cells = []
    for key in keys:
        value = record.get(key)
        if key == "path" and value:
            path = str(value).rstrip("/")
            cells.append(f"<td>{_link(path if record.get('kind') == 'topic' else f'{path}/')}</td>")
        elif isinstance(value, list):
            cells.append(_cell(", ".join(map(str, value)) or "-"))
        else:
            shown = f"{value:.1f}" if isinstance(value, float) else value
            cells.append(_cell("-" if shown is None else str(shown)))
    return cells


def _remarks(outcome: _Outcome) -> str:
    """Returns the notes and the error of a verb, as HTML."""
    parts = [_note(_text(outcome.notes.rstrip()))] if outcome.notes else []
    if outcome.error is not None:
        parts.append(_error(outcome.error))
    return "".join(parts)


def _error(error: KdirError) -> str:
    lines = [f"<p class=error>{_text(headline(error))} ({_text(error.reason)})</p>"]
    lines += [_note(_text(hint)) for hint in hints(error)]
    if _status(error) == 503:  # otherwise the error is the answer of a server
        lines += [_note(f"queried: {_text(one)}") for one in error.attempts[:_ATTEMPTS]]
    return "".join(lines)


def _error_page(path: str, error: KdirError, *, may_be_hidden: bool) -> Page:
    """Returns the page for a path that cannot be shown; its status is 404 if the path is absent,
    403 if it is denied, 400 if it is invalid, and 503 after any other error.
    """
    status = _status(error)
    parts = [_error(error)]
    if status == 404 and may_be_hidden:
        parts.append(_note("or you lack DESCRIBE on it"))
    if status == 503:
        parts.append(_note("What is there is not known: this is neither absent nor empty."))
    nearest = error.metadata.get("nearest_directory") or error.metadata.get("nearest", "")
    if isinstance(error, NoRoute):
        nearest = error.metadata.get("mount", "")
    if nearest and nearest != path.rstrip("/"):
        above = nearest.rstrip("/")
        parts.append(f"<p>{_link(f'{above}/')}</p>")
    try:
        heading = _crumbs(parse_path_argument(path))
    except InvalidPath:
        heading = ""
    return _page(status, path, parts, heading=heading)


def _status(error: KdirError | None) -> int:
    """Returns the HTTP status for the exit code of an error; 200 = no error."""
    return 200 if error is None else _STATUSES.get(error.exit_code, 503)


def _page(status: int, title: str, parts: Iterable[str], *, heading: str = "") -> Page:
    is_path = title.startswith("/") and "~" not in title
    within = f"{title.rpartition('/')[0]}/" if is_path else "/"  # the directory of a topic
    html = (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width">'
        f"<title>{_text(title)} · kdir</title><link rel=stylesheet href={STYLE}></head><body>"
        f'<header><b>kdir</b><a href="/">tree</a><a href="{MOUNTS}">mounts</a>'
        f"{_search_form('', within, 'search below')}</header>"
        f"<main><h1>{heading or _text(title)}</h1>{''.join(parts)}</main></body></html>\n"
    )
    return Page(status, html)


def _search_form(text: str, within: str, label: str) -> str:
    return (
        f'<form action="{FIND}"><input name=q value="{_text(text)}" aria-label=search>'
        f'<input type=hidden name=in value="{_text(within)}"> <button>{label}</button></form>'
    )


def _crumbs(where: PathArgument) -> str:
    """Returns a path as HTML, in which each directory above is a link."""
    parts, above = [_link("/")], ""
    *directories, last = where.path.segments or ("",)
    for segment in directories:
        above += f"/{segment}"
        parts.append(f"{_link(f'{above}/', segment)}/")
    return "".join(parts) + _text(f"{last}/" if where.directory and last else last)


def _section(heading: str, body: str) -> str:
    return f"<section><h2>{heading}</h2>{body}</section>"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<div class=table><table><tr>{head}</tr>{body}</table></div>"


def _cell(value: str | Styled) -> str:
    shown = value.style if isinstance(value, Styled) and value.style in {"bad", "warn"} else ""
    return f"<td{f' class={shown}' if shown else ''}>{_text(_plain_text(value))}</td>"


def _plain_text(value: str | Styled) -> str:
    return value.text if isinstance(value, Styled) else value


def _link(path: str, text: str = "") -> str:
    # One slash: with two (//host/), a path from a server would be a link to another host.
    return f'<a href="/{_text(quote(path.lstrip("/")))}">{_text(text or path)}</a>'


def _note(html: str) -> str:
    return f"<p class=note>{html}</p>"


def _text(*values: object) -> str:
    """Returns untrusted text, printable and escaped for HTML."""
    lines = "".join(map(str, values)).split("\n")
    return escape("\n".join(map(printable, lines)), quote=True)
