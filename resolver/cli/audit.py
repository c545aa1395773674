"""The verb ``audit``: one SQL query over every change of every cluster, from their change logs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from resolver import units
from resolver.cli.output import Column, Table
from resolver.cli.parser import Argument, Arguments, Option, Verb
from resolver.cli.produce import PROPERTIES, SETTING, own_settings
from resolver.cli.session import ending_in_order, parse_path_argument
from resolver.errors import InvalidArgument, KafkaUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resolver.changes.audit import ChangeFilter
    from resolver.cli.session import Session
    from resolver.index.audit_query import AuditDatabase

__all__ = ["VERBS"]

_MOST_EXACT: Final = 2**53
"""Largest whole number that all readers of JSON keep exact; larger ones are printed as text."""


def _audit(session: Session, arguments: Arguments) -> int:
    from resolver.extras import missing_extra

    for extra, modules in (("index", ("pyarrow", "duckdb")), ("kafka", ())):
        if missing := missing_extra("kdir audit", extra, *modules):
            raise InvalidArgument(missing)
    from resolver.index.audit_query import AuditDatabase, check_query

    sql = arguments.one("SQL")
    wanted = _wanted(arguments)
    properties = own_settings(arguments)
    check_query(sql)
    session.export_login()
    with ending_in_order(), AuditDatabase() as database:
        _load(session, database, wanted, properties)
        _print(session, database.query(sql))
    return 0


def _wanted(arguments: Arguments) -> ChangeFilter:
    from resolver.changes.audit import ChangeFilter
    from resolver.index.search import parse_as_of

    since, until = arguments.one("since"), arguments.one("until")
    return ChangeFilter(
        parse_path_argument(arguments.one("PATH", "/")).path,
        parse_as_of(since, "--since", at=time.min) if since else None,
        parse_as_of(until, "--until") if until else None,
    )


def _load(
    session: Session, database: AuditDatabase, wanted: ChangeFilter, properties: Mapping[str, str]
) -> None:
    """Reads the change logs into the database; reports those that could not be read completely."""
    from resolver.changes.audit import HistoryReading, find_ranges

    patience = session.timeout_seconds
    ranges, unread = find_ranges(
        session.servers(),
        wanted,
        properties,
        ask_seconds=min(patience, 2.0),
        kafka_seconds=patience,
    )
    count = 0
    for part in ranges:
        reading = HistoryReading(part, properties, wanted, timeout_seconds=patience)
        try:
            for batch in reading.batches():
                database.add_changes(batch)
                count += batch.num_rows
        except KafkaUnavailable as error:
            unread.append(part.log.unread(error.message))
        unread += reading.problems()
    database.add_unread(unread)
    session.out.note(
        f"{units.plural(count, 'change')} read, of {units.plural(len(ranges), 'cluster')}"
    )
    for one in unread:
        session.missing(f"unread: {one}")


def _print(session: Session, pages: Iterator[tuple[list[str], list[dict[str, Any]]]]) -> None:
    out = session.out
    table: Table | None = None
    for names, rows in pages:
        if out.structured:
            for row in rows:
                out.record({name: _plain(value) for name, value in row.items()})
            continue
        table = table or Table(out, [Column(name) for name in names])
        table.rows([[_cell(row[name]) for name in names] for row in rows])


def _plain(value: Any) -> Any:
    """Returns a value from Arrow as a JSON value."""
    match value:
        case None | bool() | str() | float():
            return value
        case Decimal() if value == value.to_integral_value():
            return _plain(int(value))
        case Decimal():
            return float(value)
        case int():
            return value if -_MOST_EXACT <= value <= _MOST_EXACT else str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case dict():
            return {str(key): _plain(one) for key, one in value.items()}
        case list():
            return [_plain(one) for one in value]
        case bytes():
            return value.hex()
        case _:
            return str(value)


def _cell(value: Any) -> str:
    match plain := _plain(value):
        case None:
            return "-"
        case str():
            return plain
        case dict() | list() | bool():
            return json.dumps(plain, ensure_ascii=False)
        case _:
            return str(plain)


VERBS: Final = (
    Verb(
        name="audit",
        summary="query every change of every cluster with SQL, from their change logs",
        run=_audit,
        timeout_seconds=10.0,
        details=(
            "The table changes has a row for each change of the clusters at and below PATH, from\n"
            "their change logs in Kafka (kdir log); the table unread has a row for each cluster\n"
            "whose changes are missing, or some of them: exit code 3. The SQL is DuckDB's; it\n"
            "reaches no file and no net. DESCRIBE changes lists the columns. A date is one of\n"
            "this machine's time zone; times in SQL are UTC. Needs kdir[kafka] and kdir[index]."
        ),
        arguments=(
            Argument("SQL", "one query"),
            Argument("PATH", "only changes at or below it (default: /)", 0, completes="path"),
        ),
        options=(
            Option(("--since",), "only changes from then on: a date or a time", "WHEN"),
            Option(("--until",), "only changes up to then: a date includes its day", "WHEN"),
            PROPERTIES,
            SETTING,
        ),
        formats=("table", "json", "yaml"),
        examples=(
            (
                "kdir audit 'SELECT time, principal, path FROM changes' /la/tracking",
                "who changed what below a path",
            ),
            (
                "kdir audit \"FROM changes WHERE scope = 'grants'\" /la --since 2026-11-01",
                "changes of access since a day",
            ),
            ("kdir audit 'DESCRIBE changes'", "the columns"),
        ),
    ),
)
