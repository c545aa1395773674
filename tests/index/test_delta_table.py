"""What a commit changes, what readers see of it, and two crawls at once; no server, no Spark."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from resolver.errors import Internal, InvalidArgument
from resolver.index.arrow_rows import topic_batch
from resolver.index.delta_table import (
    ClusterFiles,
    CommitConflict,
    DataFile,
    FilePlacement,
    IndexTable,
    TableState,
)
from resolver.index.row_schema import ClusterState
from resolver.index.table_merge import (
    Finding,
    NoAnswer,
    Outcome,
    RemovedCluster,
    RereadCluster,
    TableCommit,
    Unchanged,
    merge,
)
from tests.index.fakes import page, topic
from tests.support.pages import blocks

T0 = datetime(2026, 11, 1, 12, tzinfo=UTC)


def at(minutes: int) -> datetime:
    return T0 + timedelta(minutes=minutes)


def state(minutes: int = 0, *, revision: int = 1, name: str = "la") -> ClusterState:
    return ClusterState(
        f"kc-{name}", name, f"/{name}", as_of=at(minutes), revision=revision, incarnation="i"
    )


def file(name: str, rows: int = 1) -> DataFile:
    return DataFile(name, 10, rows, 0)


def holding(*clusters: tuple[ClusterState, DataFile]) -> TableState:
    return TableState(3, {one.cluster_id: ClusterFiles(one, (data,)) for one, data in clusters})


def merged(table: TableState, *findings: Finding, before: TableState | None = None) -> TableCommit:
    was = table if before is None else before
    return merge(was, table, findings, lambda cluster_id: file(f"empty-{cluster_id}", 0))


def outcomes(changes: TableCommit) -> list[Outcome]:
    return [line.outcome for line in changes.lines]


FINDINGS: list[Finding] = [
    RereadCluster(state(5, revision=2), (file("ours"),)),
    Unchanged(state(5)),
    NoAnswer("kc-la", "la", "/la", "refused", at(5)),
    RemovedCluster("kc-la", "unmounted", at(5)),
]


class TestMerge:
    def test_what_was_read_replaces_what_was_there(self) -> None:
        old = (state(), file("old"))
        changes = merged(holding(old), RereadCluster(state(5, revision=2), (file("new", 7),)))
        assert changes.adds == [FilePlacement(file("new", 7), state(5, revision=2))]
        assert changes.removes == [FilePlacement(file("old"), state())]
        assert [(line.outcome, line.rows) for line in changes.lines] == [(Outcome.READ, 7)]

    def test_what_has_not_changed_is_restated_and_not_rewritten(self) -> None:
        changes = merged(holding((state(), file("old"))), Unchanged(state(5)))
        assert changes.adds == [FilePlacement(file("old"), state(5), fresh=False)]
        assert changes.removes == []

    def test_a_cluster_that_is_back_is_no_longer_stale(self) -> None:
        was = state().silent(at(1), "no answer")
        changes = merged(holding((was, file("old"))), Unchanged(state(5)))
        [placed] = changes.adds
        assert (placed.state.stale, placed.state.stale_since) == (False, None)

    def test_a_silent_cluster_keeps_its_rows_and_the_first_moment_of_silence(self) -> None:
        table = holding((state(), file("old")))
        first = merged(table, NoAnswer("kc-la", "la", "/la", "refused", at(5)))
        [placed] = first.adds
        assert placed.file == file("old")
        assert (placed.state.as_of, placed.state.stale_since) == (at(0), at(5))
        again = merged(
            holding((placed.state, placed.file)), NoAnswer("kc-la", "la", "/la", "slow", at(9))
        )
        [later] = again.adds
        assert (later.state.stale_since, later.state.stale_reason) == (at(5), "slow")
        assert outcomes(first) == outcomes(again) == [Outcome.STALE]

    def test_silence_that_says_nothing_new_commits_nothing(self) -> None:
        was = state().silent(at(1), "refused")
        finding = NoAnswer("kc-la", "la", "/la", "refused", at(5))
        changes = merged(holding((was, file("old"))), finding)
        assert changes.adds == changes.removes == []
        assert outcomes(changes) == [Outcome.STALE]

    def test_a_cluster_that_was_never_read_is_known_by_a_file_without_rows(self) -> None:
        changes = merged(TableState(), NoAnswer("kc-la", "la", "/la", "refused", at(5)))
        [placed] = changes.adds
        assert placed.file == file("empty-kc-la", 0)
        assert (placed.state.as_of, placed.state.stale) == (None, True)
        assert outcomes(changes) == [Outcome.NEVER_READ]

    def test_gone_removes_and_nothing_else_does(self) -> None:
        table = holding((state(), file("la")), (state(name="ny"), file("ny")))
        changes = merged(table, RemovedCluster("kc-la", "unmounted", at(5)))
        assert changes.removes == [FilePlacement(file("la"), state())]
        assert changes.adds == []

    @pytest.mark.parametrize("finding", FINDINGS)
    @pytest.mark.parametrize("before", [TableState(), holding((state(), file("old")))])
    def test_a_later_row_of_another_crawl_wins(self, finding: Finding, before: TableState) -> None:
        theirs = holding((state(9, revision=3), file("theirs")))
        changes = merged(theirs, finding, before=before)
        assert (changes.adds, changes.removes) == ([], [])
        assert outcomes(changes) == [Outcome.NEWER_KEPT]
        ours = [file("ours")] if isinstance(finding, RereadCluster) else []
        assert changes.unused == ours

    @pytest.mark.parametrize(
        ("finding", "outcome"),
        [
            (FINDINGS[0], Outcome.READ),
            (FINDINGS[1], Outcome.UNCHANGED),
            (FINDINGS[2], Outcome.STALE),
            (FINDINGS[3], Outcome.REMOVED),
        ],
    )
    def test_without_another_crawl_a_finding_counts_after_a_clock_was_ahead(
        self, finding: Finding, outcome: Outcome
    ) -> None:
        changes = merged(holding((state(9), file("old"))), finding)
        assert outcomes(changes) == [outcome]
        assert changes.adds or changes.removes
        assert changes.unused == []

    @pytest.mark.parametrize("finding", FINDINGS)
    def test_a_cluster_that_another_crawl_has_removed_stays_removed(self, finding: Finding) -> None:
        before = holding((state(), file("old")))
        changes = merged(TableState(4), finding, before=before)
        assert (changes.adds, changes.removes) == ([], [])
        [line] = changes.lines
        assert (line.outcome, line.mount, line.rows) == (Outcome.REMOVED, "/la", 0)
        assert line.reason == "another build has removed it"
        assert changes.unused == list(getattr(finding, "files", ()))

    @pytest.mark.parametrize(
        "other",
        [
            state(revision=2),
            ClusterState("kc-la", "la", "/la", as_of=T0, revision=1, incarnation="other"),
            ClusterState("kc-la", "la", "/moved", as_of=T0, revision=1, incarnation="i"),
            ClusterState("kc-la", "la", "/la", revision=1, incarnation="i"),
        ],
    )
    def test_unchanged_counts_only_for_the_very_rows_it_was_answered_for(
        self, other: ClusterState
    ) -> None:
        assert not other.same_rows(state(5))
        assert merged(holding((other, file("old"))), Unchanged(state(5))).adds == []

    @pytest.mark.parametrize("revision", [3, 4, 5, 6, 7])
    def test_rows_are_the_same_since_the_last_change_of_topics(self, revision: int) -> None:
        now = replace(state(5, revision=6), unchanged_since=4)
        held = state(revision=revision)
        is_same = 4 <= revision <= 6
        assert held.same_rows(now) is is_same
        changes = merged(holding((held, file("old"))), Unchanged(now))
        assert outcomes(changes) == [Outcome.UNCHANGED if is_same else Outcome.NEWER_KEPT]
        assert changes.adds == [FilePlacement(file("old"), now, fresh=False)] * is_same


@pytest.fixture
def index(tmp_path: Path) -> IndexTable:
    return IndexTable(str(tmp_path / "index"))


def written(index: IndexTable, one: ClusterState, *paths: str) -> FilePlacement:
    batches = [topic_batch(page(*(topic(path) for path in paths)))] if paths else []
    return FilePlacement(index.write(one.cluster_id, batches), one)


def rows(index: IndexTable) -> dict[str, bool]:
    """Returns paths, as any Delta reader sees them, with their staleness."""
    table = index.open().to_pyarrow_table(columns=["path", "stale"]).to_pylist()
    return {row["path"]: row["stale"] for row in table}


class TestTable:
    def test_one_commit_replaces_restates_and_removes(self, index: IndexTable) -> None:
        la, ny, sf = state(name="la"), state(name="ny"), state(name="sf")
        placed = [written(index, one, f"{one.mount}/a", f"{one.mount}/b") for one in (la, ny, sf)]
        assert index.commit(TableState(), placed, [], "first") == 0
        base = index.load()
        silent = ny.silent(at(3), "refused")
        version = index.commit(
            base,
            [written(index, la, "/la/c"), FilePlacement(placed[1].file, silent, fresh=False)],
            [placed[0], placed[2]],
            "second",
        )
        assert version == 1
        assert rows(index) == {"/la/c": False, "/ny/a": True, "/ny/b": True}
        assert index.load().clusters["kc-ny"] == ClusterFiles(silent, (placed[1].file,))

    def test_the_log_says_that_it_is_partitioned_by_cluster(self, index: IndexTable) -> None:
        index.commit(TableState(), [written(index, state(), "/la/a")], [], "first")
        assert index.open().metadata().partition_columns[0] == "cluster_id"

    def test_a_state_needs_no_new_file(self, index: IndexTable, tmp_path: Path) -> None:
        placed = written(index, state(), "/la/a")
        index.commit(TableState(), [placed], [], "first")
        before = sorted((tmp_path / "index").rglob("*.parquet"))
        for minutes in range(1, 4):
            index.commit(
                index.load(), [FilePlacement(placed.file, state(minutes), fresh=False)], [], "again"
            )
        assert sorted((tmp_path / "index").rglob("*.parquet")) == before
        assert index.load().clusters["kc-la"].state.as_of == at(3)
        assert rows(index) == {"/la/a": False}

    def test_what_was_restated_many_times_survives_a_checkpoint(self, index: IndexTable) -> None:
        placed = written(index, state(), "/la/a")
        index.commit(TableState(), [placed], [], "first")
        for minutes in range(1, 4):
            index.commit(
                index.load(), [FilePlacement(placed.file, state(minutes), fresh=False)], [], "again"
            )
        index.open().create_checkpoint()
        restated = FilePlacement(placed.file, state().silent(at(9), "gone"), fresh=False)
        index.commit(index.load(), [restated], [], "after")
        assert rows(index) == {"/la/a": True}

    def test_a_cluster_without_topics_is_known(self, index: IndexTable) -> None:
        index.commit(TableState(), [written(index, state())], [], "first")
        assert index.load().clusters["kc-la"].state == state()
        assert rows(index) == {}

    def test_of_two_commits_on_one_version_the_second_is_refused(self, index: IndexTable) -> None:
        index.commit(TableState(), [written(index, state(), "/la/a")], [], "first")
        base = index.load()
        index.commit(base, [written(index, state(name="ny"), "/ny/a")], [], "quicker")
        with pytest.raises(CommitConflict):
            index.commit(base, [written(index, state(name="sf"), "/sf/a")], [], "slower")
        assert rows(index) == {"/la/a": False, "/ny/a": False}

    def test_of_two_that_make_the_table_the_second_is_refused(self, index: IndexTable) -> None:
        index.commit(TableState(), [written(index, state(), "/la/a")], [], "quicker")
        with pytest.raises(CommitConflict):
            index.commit(TableState(), [written(index, state(name="ny"), "/ny/a")], [], "slower")

    def test_a_file_that_could_not_be_finished_is_not_left_behind(
        self, index: IndexTable, tmp_path: Path
    ) -> None:
        def broken() -> object:
            yield topic_batch(page(topic("/la/a")))
            raise OSError("no more")

        with pytest.raises(OSError, match="no more"):
            index.write("kc-la", broken())  # type: ignore[arg-type]
        assert list((tmp_path / "index").rglob("*.parquet")) == []
        at_url = IndexTable(f"file://{tmp_path / 'index'}")
        with pytest.raises(OSError, match="no more"):
            at_url.write("kc-la", broken())  # type: ignore[arg-type]
        assert list((tmp_path / "index").rglob("*.parquet")) == []

    def test_a_strange_cluster_id_stays_inside_the_folder(
        self, index: IndexTable, tmp_path: Path
    ) -> None:
        data = index.write("../../x y%2F", [])
        assert (tmp_path / "index" / data.path).is_file()
        assert (tmp_path / "index") in (tmp_path / "index" / data.path).resolve().parents

    def test_the_vacuum_of_the_page_frees_old_files_also_those_that_no_version_names(
        self, index: IndexTable, tmp_path: Path
    ) -> None:
        replaced = written(index, state(), "/la/a")
        index.commit(TableState(), [replaced], [], "first")
        kept, killed, running = (written(index, state(1), path) for path in ("/la/b", "/c", "/d"))
        index.commit(index.load(), [kept], [replaced], "second")
        old = time.time() - 400 * 86_400
        for one in (replaced, kept, killed):
            os.utime(tmp_path / "index" / one.file.path, (old, old))
        page_blocks = blocks("docs/how-to/search-all-clusters.md")
        [code] = [one.body for one in page_blocks if one.language == "python"]
        code = code.replace("/srv/kdir/index", index.location)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout == "1 files removed\n"
        folder = tmp_path / "index"
        left = {str(one.relative_to(folder)) for one in folder.rglob("*.parquet")}
        # A replaced file counts from the commit that replaced it, which is younger than 30 days.
        assert left == {one.file.path for one in (replaced, kept, running)}
        assert rows(index) == {"/la/b": False}

    def test_no_table_and_another_table_are_each_one_sentence(
        self, index: IndexTable, tmp_path: Path
    ) -> None:
        import pyarrow as pa
        from deltalake import write_deltalake

        assert index.load() == TableState()
        with pytest.raises(InvalidArgument, match="kdir index build"):
            index.open()
        write_deltalake(str(tmp_path / "other"), pa.table({"x": [1]}))
        with pytest.raises(InvalidArgument, match="no column path"):
            IndexTable(str(tmp_path / "other")).load()

    def test_a_value_outside_its_column_is_refused_before_the_commit(
        self, index: IndexTable
    ) -> None:
        index.commit(TableState(), [written(index, state(), "/la/a")], [], "first")
        large, nameless = state(revision=2**63), replace(state(), cluster_id="")
        for bad, column in ((large, "revision"), (nameless, "cluster_id")):
            with pytest.raises(Internal, match=f"la.*column {column}"):
                index.commit(index.load(), [written(index, bad, "/la/b")], [], "second")
        assert rows(index) == {"/la/a": False}

    def test_the_log_holds_what_delta_s_protocol_asks_for(
        self, index: IndexTable, tmp_path: Path
    ) -> None:
        placed = written(index, state(), "/la/a")
        index.commit(TableState(), [placed], [], "first")
        index.commit(index.load(), [FilePlacement(placed.file, state(1), fresh=False)], [], "again")
        log = tmp_path / "index" / "_delta_log" / "00000000000000000001.json"
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        [add] = [action["add"] for action in actions if "add" in action]
        # "When false the logical file must already be present in the table."
        assert (add["path"], add["dataChange"]) == (placed.file.path, False)
        assert add["partitionValues"]["as_of"] == "2026-11-01T12:01:00.000000Z"
        assert json.loads(add["stats"]) == {"numRecords": 1}
