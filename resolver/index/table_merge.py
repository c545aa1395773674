"""Merges the results of a build into the table's state, as one commit; no I/O.

After a conflict the same results are merged into the table that another build has changed. If both
builds have a result for a cluster, the later one counts. Times are compared only then: without a
conflict the new result counts, even if the clock of an earlier build was ahead.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeAlias, assert_never

from resolver.index.delta_table import ClusterFiles, DataFile, FilePlacement, TableState
from resolver.index.row_schema import ClusterState

__all__ = [
    "ClusterLine",
    "Finding",
    "NoAnswer",
    "Outcome",
    "RemovedCluster",
    "RereadCluster",
    "TableCommit",
    "Unchanged",
    "cluster_id_of",
    "is_later",
    "merge",
]


@dataclass(frozen=True, slots=True)
class RereadCluster:
    """Result that the cluster's topics were read into these files."""

    state: ClusterState
    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Result that the cluster has not changed since its rows in the table were read."""

    state: ClusterState


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Result that the cluster could not be read: its rows stay and become stale."""

    cluster_id: str
    """Id of the cluster; empty = not known, and the table gets no row."""
    cluster: str
    mount: str
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class RemovedCluster:
    """Result that the owner of the cluster's mount point answered, and does not list the mount any
    more.
    """

    cluster_id: str
    reason: str
    at: datetime


Finding: TypeAlias = RereadCluster | Unchanged | NoAnswer | RemovedCluster


class Outcome(enum.Enum):
    """Outcome of a build for one cluster's rows."""

    READ = "read"
    UNCHANGED = "unchanged"
    STALE = "stale"
    NEVER_READ = "never read"
    REMOVED = "removed"
    NEWER_KEPT = "newer kept"

    @property
    def is_unread(self) -> bool:
        """True if the cluster could not be read."""
        return self in {Outcome.STALE, Outcome.NEVER_READ}


@dataclass(frozen=True, slots=True)
class ClusterLine:
    """Line about one cluster in the report of a build."""

    cluster_id: str
    cluster: str
    mount: str
    outcome: Outcome
    rows: int
    revision: int | None = None
    as_of: datetime | None = None
    stale: bool = False
    """True if the cluster's rows are stale, whatever the outcome."""
    stale_since: datetime | None = None
    reason: str = ""


@dataclass(slots=True)
class TableCommit:
    """Commit: the files that it adds and removes, and the report's line for each cluster."""

    adds: list[FilePlacement] = field(default_factory=list)
    removes: list[FilePlacement] = field(default_factory=list)
    lines: list[ClusterLine] = field(default_factory=list)
    unused: list[DataFile] = field(default_factory=list)
    """Written files that are not needed, since another build's result is newer."""


def merge(
    before: TableState,
    table: TableState,
    findings: Iterable[Finding],
    empty_file: Callable[[str], DataFile],
) -> TableCommit:
    """Returns the commit that updates ``table`` to findings that were made when it was as in
    ``before``.

    ``empty_file`` writes a file without rows for a cluster id; a cluster that was never read has
    one.
    """
    changes = TableCommit()
    for finding in findings:
        cluster_id = cluster_id_of(finding)
        held, was = table.clusters.get(cluster_id), before.clusters.get(cluster_id)
        if held != was and _is_overtaken(held, finding):
            _keep_other(changes, held, was, finding)
            continue
        match finding:
            case RereadCluster():
                _read(changes, held, finding)
            case Unchanged():
                _unchanged(changes, held, finding)
            case NoAnswer():
                _no_answer(changes, held, finding, empty_file)
            case RemovedCluster():
                _gone(changes, held, finding)
            case _:
                assert_never(finding)
    changes.lines.sort(key=lambda line: (line.mount, line.cluster_id))
    return changes


def cluster_id_of(finding: Finding) -> str:
    """Returns the id of the cluster that a finding is about."""
    match finding:
        case RereadCluster(state=state) | Unchanged(state=state):
            return state.cluster_id
        case NoAnswer() | RemovedCluster():
            return finding.cluster_id


def _is_overtaken(held: ClusterFiles | None, finding: Finding) -> bool:
    """True if another build has committed a result that is newer than the finding."""
    match finding:
        case RereadCluster(state=state) | Unchanged(state=state):
            return held is None or is_later(held.state, state.as_of)
        case NoAnswer() | RemovedCluster():
            return held is None or is_later(held.state, finding.at)


def _keep_other(
    changes: TableCommit, held: ClusterFiles | None, was: ClusterFiles | None, finding: Finding
) -> None:
    """Keeps the result that another build has committed: newer rows, or the removal of the
    cluster.
    """
    if isinstance(finding, RereadCluster):
        changes.unused.extend(finding.files)
    if held is not None:
        changes.lines.append(_line(held, Outcome.NEWER_KEPT))
    elif was is not None:
        line = _line(ClusterFiles(was.state, ()), Outcome.REMOVED)
        changes.lines.append(replace(line, reason="another build has removed it"))


def _read(changes: TableCommit, held: ClusterFiles | None, finding: RereadCluster) -> None:
    state = _keep_since(finding.state, held)
    changes.adds.extend(FilePlacement(file, state) for file in finding.files)
    if held is not None:
        changes.removes.extend(FilePlacement(file, held.state) for file in held.files)
    changes.lines.append(_line(ClusterFiles(state, finding.files), Outcome.READ))


def _unchanged(changes: TableCommit, held: ClusterFiles | None, finding: Unchanged) -> None:
    if held is None:  # there are no rows to confirm
        return
    if not held.state.same_rows(finding.state):
        changes.lines.append(_line(held, Outcome.NEWER_KEPT))
        return
    _restate(changes, held, _keep_since(finding.state, held), Outcome.UNCHANGED)


def _no_answer(
    changes: TableCommit,
    held: ClusterFiles | None,
    finding: NoAnswer,
    empty_file: Callable[[str], DataFile],
) -> None:
    if not finding.cluster_id:  # a row would stay after the id becomes known
        state = ClusterState("", finding.cluster, finding.mount)
        state = state.silent(finding.at, finding.reason)
        changes.lines.append(_line(ClusterFiles(state, ()), Outcome.NEVER_READ))
        return
    if held is None:
        state = ClusterState(finding.cluster_id, finding.cluster, finding.mount)
        state = state.silent(finding.at, finding.reason)
        file = empty_file(finding.cluster_id)
        changes.adds.append(FilePlacement(file, state))
        changes.lines.append(_line(ClusterFiles(state, (file,)), Outcome.NEVER_READ))
        return
    outcome = Outcome.STALE if held.state.as_of is not None else Outcome.NEVER_READ
    _restate(changes, held, held.state.silent(finding.at, finding.reason), outcome)


def _gone(changes: TableCommit, held: ClusterFiles | None, finding: RemovedCluster) -> None:
    if held is None:
        return
    changes.removes.extend(FilePlacement(file, held.state) for file in held.files)
    changes.lines.append(replace(_line(held, Outcome.REMOVED), reason=finding.reason))


def _restate(
    changes: TableCommit, held: ClusterFiles, state: ClusterState, outcome: Outcome
) -> None:
    if state != held.state:
        changes.adds.extend(FilePlacement(file, state, fresh=False) for file in held.files)
    changes.lines.append(_line(ClusterFiles(state, held.files), outcome))


def is_later(held: ClusterState, than: datetime | None) -> bool:
    """True if the rows of a state are newer than a time."""
    return held.as_of is not None and than is not None and held.as_of > than


def _keep_since(state: ClusterState, held: ClusterFiles | None) -> ClusterState:
    """Returns the state; if the cluster is stale in the table already, with the ``stale_since``
    from there.
    """
    if not state.stale or held is None or not held.state.stale or held.state.stale_since is None:
        return state
    return replace(state, stale_since=held.state.stale_since)


def _line(files: ClusterFiles, outcome: Outcome) -> ClusterLine:
    state = files.state
    return ClusterLine(
        state.cluster_id,
        state.cluster,
        state.mount,
        outcome,
        files.rows,
        state.revision,
        state.as_of,
        state.stale,
        state.stale_since,
        state.stale_reason,
    )
