"""``kdir find`` and ``kdir index report``: read the index without Spark, Java and servers.

A pattern with ``*``, ``?`` or ``[`` is a glob (``resolver/glob.py``). With a leading ``/`` it is
matched against whole paths, without one against the ends of paths: ``click*`` finds
``/la/web/clicks``. Any other pattern is text that the path or the physical name contains; upper and
lower case are equal. Values are passed to DuckDB as parameters, never as SQL.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any, Final

from resolver.errors import InvalidArgument, KdirError, Unreachable
from resolver.glob import Glob
from resolver.index.delta_table import ClusterFiles, IndexTable, clusters_of, one_sentence
from resolver.index.row_schema import ClusterState, cluster_values
from resolver.index.spark_session import require
from resolver.path import Path

if TYPE_CHECKING:
    import duckdb
    from deltalake import DeltaTable

__all__ = [
    "ClusterCounts",
    "FoundTopic",
    "Report",
    "SearchResult",
    "Shadowed",
    "SharedName",
    "Snapshot",
    "find",
    "glob_regex",
    "open_index",
    "parse_as_of",
    "report",
]

_GLOB_SIGNS: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """Topic in the state in which its cluster was last read; times are UTC."""

    path: str
    name: str
    directory: str
    kind: str
    entry_id: int
    physical_name: str
    topic_id: str | None
    partitions: int
    replication_factor: int
    provision: str
    owner: str | None
    tags: Mapping[str, str]
    drift_count: int
    adopted: bool
    changed_at: datetime | None
    changed_by: str | None
    state: ClusterState
    """State of the topic's cluster, such as its mount, the time of the read and staleness."""

    def as_dict(self) -> dict[str, object]:
        """Returns all columns of the index by name, in order; servers and listeners are lists."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "state"}
        return {
            **own,
            **cluster_values(self.state),
            "bootstrap_servers": list(self.state.bootstrap_servers),
            "listeners": [asdict(listener) for listener in self.state.listeners],
        }


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Rows of a search, and the clusters that were searched."""

    rows: tuple[FoundTopic, ...]
    """Found topics, by path, then cluster id."""
    total: int
    """Number of topics that match; ``rows`` may have fewer, because of the limit."""
    clusters: tuple[ClusterState, ...]
    """Searched clusters, by mount point."""
    version: int
    """Version of the table that was read."""

    @property
    def stale(self) -> tuple[ClusterState, ...]:
        """Searched clusters whose rows may be old or missing."""
        return tuple(state for state in self.clusters if state.is_doubtful)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Index at one version."""

    index: IndexTable
    table: DeltaTable
    clusters: Mapping[str, ClusterFiles]

    @property
    def version(self) -> int:
        """Version of the table."""
        return self.table.version()

    def select(
        self, sql: str, values: Sequence[object], clusters: Sequence[ClusterFiles]
    ) -> list[dict[str, Any]]:
        """Returns the rows of a query on the view ``topics``, by column.

        The view has the rows of ``clusters`` only, with the columns of topics and ``cluster_id``.
        ``values`` are the query's parameters.

        Raises:
            InvalidArgument: files of this version were removed by a vacuum.
            Unreachable: storage fails, or a file is damaged.
        """
        if not clusters:
            return []
        import duckdb
        import pyarrow as pa
        from deltalake.exceptions import DeltaError

        with duckdb.connect() as database:
            database.execute("SET TimeZone = 'UTC'")
            try:
                self._register(database, clusters)
                found: pa.Table = database.sql(sql, params=list(values)).to_arrow_table()
                return list(found.to_pylist())
            except (duckdb.Error, pa.ArrowException, OSError, DeltaError) as error:
                raise self._unreadable(clusters, error) from error

    def _unreadable(self, clusters: Sequence[ClusterFiles], error: Exception) -> KdirError:
        """Returns the error of a failed query: files are missing, or the first file that cannot be
        read.
        """
        files = [file for one in clusters for file in one.files]
        failed = f"version {self.version} of {self.index.location} cannot be read"
        if missing := self.index.missing_files(files):
            return InvalidArgument(f"{failed}: files of it are gone ({missing[0].path})")
        damaged = self.index.first_unreadable(files)
        named = f"{damaged[0].path}: " if damaged else ""
        return Unreachable(
            f"{failed}: {named}{one_sentence(damaged[1] if damaged else error)}; if a file is "
            f"damaged, write all again: kdir index build --full --table {self.index.location}",
            index=self.index.location,
        )

    def _register(
        self, database: duckdb.DuckDBPyConnection, clusters: Sequence[ClusterFiles]
    ) -> None:
        """Creates the view ``topics``."""
        import pyarrow as pa
        import pyarrow.compute

        wanted = [one.state.cluster_id for one in clusters]
        folder = self.index.folder
        if folder is None:
            # At a URL, deltalake reads the files: slower, with the same rows.
            chosen = pa.compute.field("cluster_id").isin(wanted)
            database.register("topics", self.table.to_pyarrow_dataset().filter(chosen))
            return
        named = [(str(folder / file.path), one) for one in clusters for file in one.files]
        files = pa.table(
            {
                "filename": [name for name, _ in named],
                "cluster_id": [one.state.cluster_id for _, one in named],
            }
        )
        database.register("files", files)
        rows = database.read_parquet([name for name, _ in named], filename=True)
        rows.create_view("rows")
        database.execute(
            "CREATE VIEW topics AS "
            "SELECT * EXCLUDE (filename) FROM rows JOIN files USING (filename)"
        )


def find(
    table: str,
    pattern: str,
    *,
    cluster: str | None = None,
    glob: bool | None = None,
    as_of: str | date | datetime | None = None,
    limit: int | None = None,
) -> SearchResult:
    """Searches the index at ``table``, a folder or URL.

    ``cluster`` (a name or an id) restricts the search to one cluster. ``glob``: whether the pattern
    is a glob; None = it is one if it contains ``*``, ``?`` or ``[``. ``as_of``: search the index as
    it was then; a date means the end of that day; a time without a time zone is local. ``limit``:
    most rows to return; ``total`` counts all.

    Raises:
        InvalidArgument: there is no index, or none as old as ``as_of``; there is no such cluster;
            the pattern is no valid glob; the limit is below 1; or a package is missing.
        Unreachable: the table cannot be read.
    """
    if limit is not None and limit < 1:
        raise InvalidArgument(f"limit: found {limit}; expected 1 or more")
    index = open_index(table, as_of)
    searched = _searched(index, cluster)
    where, values = _condition(pattern, glob=glob)
    bound = "" if limit is None else f"LIMIT {int(limit)}"
    rows = index.select(
        f"SELECT *, count(*) OVER () AS total FROM topics WHERE {where} "  # noqa: S608
        f"ORDER BY path, cluster_id {bound}",
        values,
        searched,
    )
    total = int(rows[0]["total"]) if rows else 0
    states = sorted((one.state for one in searched), key=lambda state: state.mount)
    found = tuple(_topic(row, index.clusters[row["cluster_id"]].state) for row in rows)
    return SearchResult(found, total, tuple(states), index.version)


def open_index(table: str, as_of: str | date | datetime | None = None) -> Snapshot:
    """Returns the index as it is now, or as it was at ``as_of``.

    Raises:
        InvalidArgument: there is no index, or none as old as ``as_of``; or a package is missing.
        Unreachable: the table cannot be read.
    """
    require("pyarrow", "deltalake", "duckdb")
    moment = None if as_of is None else parse_as_of(as_of)
    index = IndexTable.at(table)
    opened = index.open()
    with index.reachable():
        if moment is not None:
            opened = _table_at(opened, index.location, moment)
        return Snapshot(index, opened, clusters_of(opened))


def parse_as_of(
    as_of: str | date | datetime, name: str = "as of", *, at: time = time.max
) -> datetime:
    """Returns the time, in UTC, of an option's value: a date, or a time, which is local without a
    time zone.

    Args:
        name: name of the option in errors.
        at: time of the day that a date means; by default the end of the day.

    Raises:
        InvalidArgument: the value is neither a date nor a time (ISO 8601), or before 1970 in UTC.
    """
    found = as_of.strip() if isinstance(as_of, str) else str(as_of)
    try:
        if isinstance(as_of, str):
            as_of = date.fromisoformat(found) if len(found) == 10 else datetime.fromisoformat(found)
        if not isinstance(as_of, datetime):
            as_of = datetime.combine(as_of, at)
        moment = as_of.astimezone(UTC)  # a time without a zone is taken as local
        if moment.timestamp() < 0:
            raise ValueError("before 1970")
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(
            f"{name}: found {found!r}; expected a date or a time from 1970 on, such as 2026-11-01 "
            "or 2026-11-01T14:30"
        ) from error
    return moment


def glob_regex(glob: str) -> str:
    """Returns the regular expression, for RE2 (linear time), of the paths that a glob matches.

    Raises:
        InvalidArgument: the text is no valid glob.
    """
    Glob.parse(glob)
    anchored = glob.startswith("/")
    parts = glob.removeprefix("/").split("/")
    found = ["" if anchored else _ANY_SEGMENTS]
    found += [_ANY_SEGMENTS if part == "**" else "/" + _segment_regex(part) for part in parts]
    return "".join(found)


_ANY_SEGMENTS: Final = "(?:/[^/]+)*"
# `[` begins a set, which ends at the first `]` that is not its first character.
_TOKENS: Final = re.compile(r"\*|\?|\[[!^]?.[^\]]*\]|.")


def _segment_regex(part: str) -> str:
    return "".join(_token_regex(token) for token in _TOKENS.findall(part))


def _token_regex(token: str) -> str:
    if token == "*":
        return "[^/]*"
    if token == "?":
        return "[^/]"
    if len(token) == 1:
        return re.escape(token)
    inverse = token[1] in "!^"
    body = token[2 if inverse else 1 : -1]
    characters: set[str] = set()
    place = 0
    while place < len(body):
        is_range = place + 2 < len(body) and body[place + 1] == "-"
        last = body[place + 2] if is_range else body[place]
        characters.update(map(chr, range(ord(body[place]), ord(last) + 1)))
        place += 3 if is_range else 1
    shown = "".join(f"\\x{ord(one):02x}" for one in sorted(characters))
    return f"[^/{shown}]" if inverse else f"[{shown}]"


def _condition(pattern: str, *, glob: bool | None) -> tuple[str, list[object]]:
    """Returns the SQL condition for the topics that match a pattern, and its parameters."""
    if glob or (glob is None and not _GLOB_SIGNS.isdisjoint(pattern)):
        return "regexp_full_match(path, ?)", [glob_regex(pattern)]
    if not pattern:
        return "true", []
    text = pattern.lower()
    return "(contains(lower(path), ?) OR contains(lower(physical_name), ?))", [text, text]


def _searched(index: Snapshot, cluster: str | None) -> list[ClusterFiles]:
    every = list(index.clusters.values())
    if cluster is None:
        return every
    chosen = [one for one in every if cluster in (one.state.cluster_id, one.state.cluster)]
    if not chosen:
        names = sorted(one.state.cluster or one.state.cluster_id for one in every)
        shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
        raise InvalidArgument(
            f"cluster {cluster}: the index has none of that name or id; it has {shown or 'none'}"
        )
    return chosen


def _table_at(table: DeltaTable, location: str, moment: datetime) -> DeltaTable:
    """Returns the table at its newest version of ``moment`` or before.

    Raises:
        InvalidArgument: there is no such version, or it is not stored any more.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    def opened(version: int) -> DeltaTable | None:
        """Returns a version; None if it cannot be opened: before the oldest checkpoint, the log has
        commits without those that they build on.
        """
        with suppress(DeltaError):
            return DeltaTable(location, version=version)
        return None

    moment_ms = int(moment.timestamp() * 1000)
    commits = sorted((int(one["version"]), int(one["timestamp"])) for one in table.history())
    versions = [version for version, at_ms in commits if at_ms <= moment_ms]
    if versions and (found := opened(versions[-1])) is not None:
        return found
    later = [commit for commit in commits if commit[1] > moment_ms]
    oldest = bisect_left(later, 1, key=lambda commit: opened(commit[0]) is not None)
    begins = ""
    if oldest < len(later):
        begun = datetime.fromtimestamp(later[oldest][1] / 1000, UTC)
        begins = f" begins at {begun:%Y-%m-%d %H:%M:%S} UTC; it"
    raise InvalidArgument(
        f"the index at {location}{begins} has no version of {moment:%Y-%m-%d %H:%M:%S} UTC"
    )


def _topic(row: Mapping[str, Any], state: ClusterState) -> FoundTopic:
    values = {name: row[name] for name in _OF_A_ROW}
    return FoundTopic(**values, tags=dict(row["tags"] or ()), state=state)


_OF_A_ROW: Final = [one.name for one in fields(FoundTopic) if one.name not in {"state", "tags"}]


# -- kdir index report -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterCounts:
    """Numbers of topics and partitions of one cluster."""

    state: ClusterState
    topics: int = 0
    partitions: int = 0
    ownerless: int = 0
    """Number of topics without an effective owner."""
    drifting: int = 0
    """Number of topics with a setting in Kafka that differs from the desired one."""
    unsettled: int = 0
    """Number of topics whose ``provision`` is not ``active``."""


@dataclass(frozen=True, slots=True)
class SharedName:
    """Physical name that several paths have, in one or more clusters; ``paths`` has the first 20
    paths.
    """

    physical_name: str
    count: int
    paths: tuple[str, ...]
    clusters: int


@dataclass(frozen=True, slots=True)
class Shadowed:
    """Topic whose path lies below the mount of another cluster, so that it cannot be resolved."""

    path: str
    cluster_id: str
    mounted_cluster_id: str


@dataclass(frozen=True, slots=True)
class Report:
    """Summary of the index: counts and conspicuous topics; lists have at most ``limit`` items."""

    version: int
    clusters: tuple[ClusterCounts, ...]
    shared_names: tuple[SharedName, ...] = field(default=())
    shared_name_count: int = 0
    shadowed: tuple[Shadowed, ...] = field(default=())


def report(
    table: str,
    *,
    cluster: str | None = None,
    as_of: str | date | datetime | None = None,
    limit: int = 100,
) -> Report:
    """Returns counts by cluster, physical names with several paths, and topics that a mount hides.

    With ``cluster``, a name or id, the report has only the counts of that cluster.

    Raises:
        InvalidArgument, Unreachable: as ``find``.
    """
    index = open_index(table, as_of)
    if cluster is not None:
        return Report(index.version, tuple(_counts(index, _searched(index, cluster))), (), 0, ())
    shared, shared_count = _shared_names(index, limit)
    return Report(
        index.version,
        tuple(_counts(index, _searched(index, None))),
        shared,
        shared_count,
        _shadowed(index, limit),
    )


_COUNTS = """
SELECT cluster_id, count(*) AS topics, coalesce(sum(partitions), 0)::BIGINT AS partitions,
       count(*) FILTER (owner IS NULL) AS ownerless, count(*) FILTER (drift_count > 0) AS drifting,
       count(*) FILTER (provision <> 'active') AS unsettled
FROM topics GROUP BY cluster_id
"""


def _counts(index: Snapshot, clusters: Sequence[ClusterFiles]) -> list[ClusterCounts]:
    found = {row.pop("cluster_id"): row for row in index.select(_COUNTS, (), clusters)}
    return sorted(
        (ClusterCounts(one.state, **found.get(one.state.cluster_id, {})) for one in clusters),
        key=lambda counts: counts.state.mount,
    )


_SHARED = """
SELECT physical_name, count(*) AS count, count(DISTINCT cluster_id) AS clusters,
       list(path ORDER BY path)[1:20] AS paths, count(*) OVER () AS total
FROM topics WHERE NOT starts_with(physical_name, '__')
GROUP BY physical_name HAVING count(*) > 1 ORDER BY count DESC, physical_name LIMIT ?
"""


def _shared_names(index: Snapshot, limit: int) -> tuple[tuple[SharedName, ...], int]:
    rows = index.select(_SHARED, [limit], list(index.clusters.values()))
    names = tuple(
        SharedName(row["physical_name"], row["count"], tuple(row["paths"]), row["clusters"])
        for row in rows
    )
    return names, rows[0]["total"] if rows else 0


_SHADOWED = """
SELECT path, cluster_id FROM topics WHERE starts_with(path, ?) ORDER BY path LIMIT ?
"""


def _shadowed(index: Snapshot, limit: int) -> tuple[Shadowed, ...]:
    """Returns the topics that mounts hide: for each mount, those below it in the cluster mounted
    nearest above. Topics of clusters further up are found at the mounts between.
    """
    found: list[Shadowed] = []
    clusters = {Path.parse(one.state.mount): one for one in index.clusters.values()}
    for mount, below in clusters.items():
        above = [path for path in clusters if path != mount and path.is_prefix_of(mount)]
        if not above or len(found) >= limit:
            continue
        hidden: Sequence[dict[str, object]] = index.select(
            _SHADOWED,
            [f"{mount}/", limit - len(found)],
            [clusters[max(above, key=len)]],
        )
        found += [
            Shadowed(str(row["path"]), str(row["cluster_id"]), below.state.cluster_id)
            for row in hidden
        ]
    return tuple(found)
