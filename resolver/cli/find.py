"""Verbs for the index of all clusters: ``find`` searches it, ``index`` builds and summarizes it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from resolver import units
from resolver.cli.output import Column, Styled, Table
from resolver.cli.parser import FORMATS, Argument, Arguments, Option, UsageError, Verb

if TYPE_CHECKING:
    from datetime import datetime

    from resolver.cli.session import Session
    from resolver.index.row_schema import ClusterState
    from resolver.index.search import FoundTopic
    from resolver.index.table_merge import ClusterLine

__all__ = ["VERBS", "table_location"]


def table_location(arguments: Arguments, environ: Mapping[str, str]) -> str:
    """Returns the location of the index: ``--table``, else ``KDIR_INDEX``, else a folder in the
    user's data folder.
    """
    # Otherwise deltalake's libraries print pages of warnings if they find no credentials of a
    # cloud.
    os.environ.setdefault("RUST_LOG", "error")
    given = arguments.one("table") or environ.get("KDIR_INDEX", "")
    if given:
        return given
    base = environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: a relative path is ignored
        base = os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(base, "kdir", "index")


# -- find ----------------------------------------------------------------------------------------


def _find(session: Session, arguments: Arguments) -> int:
    from resolver.index.search import find

    found = find(
        table_location(arguments, session.environ),
        arguments.one("PATTERN"),
        cluster=arguments.one("cluster") or None,
        as_of=arguments.one("as-of") or None,
        limit=arguments.whole("limit") or None,
    )
    out = session.out
    if out.structured:
        for row in found.rows:
            out.record(_plain(row.as_dict()))
    elif out.format == "name":
        out.lines(row.path for row in found.rows)
    else:
        Table(out, _COLUMNS).rows([_table_row(row, human=out.human) for row in found.rows])
    if not found.rows:
        within = arguments.one("cluster")
        where = f"the topics of {within}" if within else "the index"
        out.note(f"nothing in {where} matches {arguments.one('PATTERN')!r}")
    if found.total > len(found.rows):
        out.note(f"{units.count(found.total - len(found.rows))} more; raise --limit to see them")
    _note_stale(session, found.stale)
    return 0 if found.rows else 1


def _note_stale(session: Session, states: Iterable[ClusterState]) -> None:
    """Reports on stderr each cluster whose rows may be old or missing, with the reason."""
    for state in states:
        session.out.note(f"{state.mount} ({state.cluster}): {_staleness(state)}", "warn")


_COLUMNS: Final = (
    Column("PATH"),
    Column("PARTITIONS", right=True),
    Column("OWNER"),
    Column("STATE"),
    Column("LOCATION"),
    Column("AS OF"),
    Column("RF", right=True, wide=True),
    Column("TAGS", wide=True),
    Column("TOPIC ID", wide=True),
    Column("CHANGED", wide=True),
    Column("CHANGED BY", wide=True),
)


def _table_row(row: FoundTopic, *, human: bool) -> list[str | Styled]:
    state: str | Styled = row.provision
    if row.provision != "active":
        state = Styled(row.provision, "warn")
    elif row.drift_count:
        state = Styled(f"drift: {row.drift_count}", "warn")
    return [
        row.path,
        (units.count(row.partitions) if human else str(row.partitions)) if row.partitions else "-",
        row.owner or "-",
        state,
        f"{row.state.cluster}:{row.physical_name}",
        _as_of(row.state, human=human),
        str(row.replication_factor or "-"),
        ",".join(f"{name}={value}" for name, value in sorted(row.tags.items())) or "-",
        row.topic_id or "-",
        row.changed_at.isoformat(timespec="seconds" if human else "auto")
        if row.changed_at
        else "-",
        row.changed_by or "-",
    ]


def _as_of(state: ClusterState, *, human: bool) -> str | Styled:
    if state.as_of is None:
        return "-"
    if not human:
        return state.as_of.isoformat()
    shown = f"{_age(state)} ago"
    return Styled(f"{shown}, stale", "warn") if state.stale else shown


def _age(state: ClusterState) -> str:
    from datetime import UTC, datetime

    if state.as_of is None:
        return "never"
    return units.age((datetime.now(UTC) - state.as_of).total_seconds())


def _staleness(state: ClusterState) -> str:
    """Returns as text: since when a cluster does not answer, the time of its rows, and the
    reason.
    """
    why = f": {state.stale_reason}" if state.stale_reason else ""
    since = f" since {_utc(state.stale_since)}" if state.stale_since is not None else ""
    if state.as_of is None:
        return f"never read, no answer{since}{why}"
    if not state.stale:
        return f"incomplete{why}"
    return f"stale{since}, its rows are as of {_utc(state.as_of)}{why}"


def _utc(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as JSON values: times as RFC 3339; ids as text, as everywhere in kdir's
    JSON.
    """
    return {
        key: str(value) if key == "entry_id" else value.isoformat() if hasattr(value, "isoformat")
        else value
        for key, value in values.items()
    }  # fmt: skip


# -- index ---------------------------------------------------------------------------------------


def _index(session: Session, arguments: Arguments) -> int:
    table = table_location(arguments, session.environ)
    match arguments.one("ACTION"):
        case "build":
            return _build(session, arguments, table)
        case _:
            return _report(session, arguments, table)


def _build(session: Session, arguments: Arguments, table: str) -> int:
    from resolver.cli.session import ending_in_order
    from resolver.index.build import build
    from resolver.index.spark_session import SparkSettings

    conf: dict[str, str] = {}
    for text in arguments.many("conf"):
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--conf {text!r}: KEY=VALUE was expected", verb="index")
        conf[key] = value
    if not arguments.flag("debug"):
        import logging

        # py4j logs each error that it raises to the root logger, with the traceback.
        logging.getLogger().addHandler(logging.NullHandler())
    settings = SparkSettings(arguments.one("master", "local[*]"), conf)
    servers = session.servers()
    session.export_login()
    cluster = arguments.one("cluster")
    with ending_in_order():
        report = build(servers, table, spark=settings, full=arguments.flag("full"), cluster=cluster)
    out = session.out
    if out.structured:
        for line in report.lines:
            out.record(_line_record(line))
    else:
        columns = [Column("MOUNT"), Column("CLUSTER"), Column("TOPICS", right=True),
                   Column("OUTCOME"), Column("REASON")]  # fmt: skip
        Table(out, columns).rows([_line_row(line, human=out.human) for line in report.lines])
    counted = units.plural(report.rows, "topic") + (f" of {cluster}" if cluster else "")
    out.note(f"{counted} in {table}, version {report.version}, after {report.seconds:.1f}s")
    for line in report.unread:
        what = "not read" if line.outcome.is_unread else "stale" if line.stale else "incomplete"
        session.missing(f"{what}: {line.mount} ({line.cluster}): {line.reason}")
    return 0


def _line_row(line: ClusterLine, *, human: bool) -> list[str | Styled]:
    outcome = line.outcome.value
    bad = line.stale or line.reason
    return [
        line.mount,
        line.cluster,
        units.count(line.rows) if human else str(line.rows),
        Styled(outcome, "warn") if bad else outcome,
        line.reason or "",
    ]


def _line_record(line: ClusterLine) -> dict[str, Any]:
    return {
        "mount": line.mount,
        "cluster": line.cluster,
        "cluster_id": line.cluster_id,
        "rows": line.rows,
        "outcome": line.outcome.value,
        "reason": line.reason,
        "as_of": line.as_of.isoformat() if line.as_of else None,
        "stale": line.stale,
        "stale_since": line.stale_since.isoformat() if line.stale_since else None,
    }


def _report(session: Session, arguments: Arguments, table: str) -> int:
    from dataclasses import asdict

    from resolver.index.search import report

    found = report(
        table, cluster=arguments.one("cluster") or None, as_of=arguments.one("as-of") or None
    )
    out, stale = session.out, [one.state for one in found.clusters if one.state.is_doubtful]
    if out.structured:
        for counts in found.clusters:
            values = {key: value for key, value in asdict(counts).items() if key != "state"}
            state = counts.state
            named = {"mount": state.mount, "cluster": state.cluster, "cluster_id": state.cluster_id}
            out.record({**named, **values, **_plain(_freshness(state))})
        _note_stale(session, stale)
        return 0
    columns = [
        Column("MOUNT"), Column("CLUSTER"), Column("TOPICS", right=True),
        Column("PARTITIONS", right=True), Column("NO OWNER", right=True),
        Column("DRIFT", right=True), Column("PENDING/FAILED", right=True), Column("AS OF"),
    ]  # fmt: skip
    number = units.count if out.human else str
    rows = [
        [
            counts.state.mount,
            counts.state.cluster,
            *map(number, (counts.topics, counts.partitions, counts.ownerless)),
            *map(number, (counts.drifting, counts.unsettled)),
            _as_of(counts.state, human=out.human),
        ]
        for counts in found.clusters
    ]
    Table(out, columns).rows(rows)
    for shared in found.shared_names:
        out.note(
            f"{shared.physical_name} is the physical name at {shared.count} paths: "
            f"{', '.join(shared.paths)}"
        )
    for shadowed in found.shadowed:
        out.note(
            f"{shadowed.path} is shadowed by the mount of {shadowed.mounted_cluster_id}", "warn"
        )
    _note_stale(session, stale)
    return 0


def _freshness(state: ClusterState) -> dict[str, Any]:
    """Returns the columns about a cluster's freshness: ``as_of``, ``stale``, ``stale_since`` and
    ``stale_reason``.
    """
    from resolver.index.row_schema import cluster_values

    values = cluster_values(state)
    return {key: values[key] for key in ("as_of", "stale", "stale_since", "stale_reason")}


_TABLE: Final = Option(
    ("--table",),
    "the index: a folder or URL (default: KDIR_INDEX, else ~/.local/share/kdir/index)",
    "DIR",
    completes="file",
)
_AS_OF: Final = Option(("--as-of",), "the index as of then: a date or a time", "WHEN")

VERBS: Final = (
    Verb(
        name="find",
        summary="search all topics of all clusters, in the index",
        run=_find,
        details=(
            "A PATTERN with *, ? or [ is a glob: over whole paths with a / in front, else over\n"
            "their ends. Any other is text within the path or the name in Kafka. Needs the index\n"
            "(kdir index build) and kdir[index], but neither Spark nor Java nor any server."
        ),
        arguments=(Argument("PATTERN", "text or glob"),),
        options=(
            Option(("--cluster",), "only in this one: name or id", "CLUSTER"),
            _AS_OF,
            Option(("--limit",), "maximum number of topics", "N"),
            _TABLE,
        ),
        formats=FORMATS,
        examples=(
            ("kdir find click", "every topic with click in its path or name"),
            ("kdir find '/la/**/click*'", "a glob over paths"),
            ("kdir find --as-of 2026-11-01 click", "as it was at the end of that day"),
        ),
    ),
    Verb(
        name="index",
        summary="build the index of all clusters, or summarize it",
        run=_index,
        timeout_seconds=10.0,
        details=(
            "build reads every changed cluster with Spark and commits all rows at once. An\n"
            "unreachable cluster keeps its rows, marked stale; exit code 3. The table is a Delta\n"
            "table. report counts topics, owners and drift by cluster. With --cluster, only that\n"
            "one is read or counted; the rows of all others stay as they are. Clusters whose rows\n"
            "are stale are named on stderr, with since when and why."
        ),
        arguments=(Argument("ACTION", "build or report", choices=("build", "report")),),
        options=(
            _TABLE,
            Option(("--master",), "of Spark (default: local[*])", "URL"),
            Option(("--conf",), "a setting of Spark; repeatable", "KEY=VALUE", repeated=True),
            Option(("--full",), "also read unchanged clusters again"),
            Option(("--cluster",), "only this one: name or id", "CLUSTER"),
            _AS_OF,
        ),
        formats=("table", "json", "yaml"),
        examples=(
            ("kdir index build", "bring it up to date"),
            ("kdir index build --cluster la-tracking", "one cluster of it"),
            (
                "kdir index build --table s3://bucket/kdir --master spark://host:7077",
                "on a cluster",
            ),
            ("kdir index report", "what it holds"),
        ),
    ),
)
