"""`kdir index build` on small federations, by real Spark: what is read, kept, restated, removed."""

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from kdir.v1 import scan_pb2
from pyspark.sql import SparkSession

from resolver.errors import InvalidArgument, Unreachable
from resolver.index.build import BuildReport, Outcome, SparkSettings, build
from resolver.index.cluster_discovery import FederationClusters, discover_clusters
from resolver.index.delta_table import IndexTable
from resolver.index.search import find, report
from resolver.index.spark_session import packages_zip
from tests.index.fakes import FakeCluster, federation

TREE = {
    "/": [],
    "/la": ["/la/jobs"],
    "/la/tracking": [f"/la/tracking/d{number % 5}/t{number}" for number in range(100)],
    "/ny": ["/ny/jobs"],
    "/ny/ads": ["/ny/ads/bids", "/ny/ads/clicks"],
}
Build = Callable[..., BuildReport]


@pytest.fixture
def tree() -> Iterator[dict[str, FakeCluster]]:
    with federation(TREE) as clusters:
        yield clusters


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "index")


@pytest.fixture
def run(spark: SparkSession, tree: dict[str, FakeCluster], table: str) -> Build:
    def run(start: str = "/la", **options: object) -> BuildReport:
        settings = SparkSettings(session=spark)
        return build([tree[start].endpoint], table, spark=settings, **options)  # type: ignore[arg-type]

    return run


def outcomes(report: BuildReport) -> dict[str, Outcome]:
    return {line.mount: line.outcome for line in report.lines}


def topics(table: str, **options: str) -> set[str]:
    return {row.path for row in find(table, "", **options).rows}  # type: ignore[arg-type]


def below(*mounts: str) -> set[str]:
    return {path for mount in mounts for path in TREE[mount]}


def test_a_first_build_reads_everything_in_one_commit(run: Build, table: str) -> None:
    report = run()
    assert outcomes(report) == dict.fromkeys(TREE, Outcome.READ)
    assert {line.mount: line.rows for line in report.lines} == {
        mount: len(paths) for mount, paths in TREE.items()
    }
    assert (report.version, report.rows, report.unread) == (0, len(below(*TREE)), ())
    assert topics(table) == below(*TREE)


def test_what_has_not_changed_is_not_read_and_its_time_moves_on(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    first = run()
    scans = {mount: one.scans for mount, one in tree.items()}
    tree["/ny/ads"].add("/ny/ads/views")
    second = run()
    assert second.version == first.version + 1
    assert outcomes(second) == dict.fromkeys(TREE, Outcome.UNCHANGED) | {"/ny/ads": Outcome.READ}
    assert {mount for mount, one in tree.items() if one.scans != scans[mount]} == {"/ny/ads"}
    assert topics(table) == below(*TREE) | {"/ny/ads/views"}
    was = {line.mount: line.as_of for line in first.lines}
    assert all(line.as_of > was[line.mount] for line in second.lines if line.as_of)  # type: ignore[operator]


def test_of_one_cluster_only_its_rows_are_read(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    run()
    scans = {mount: one.scans for mount, one in tree.items()}
    tree["/ny/ads"].add("/ny/ads/views")
    tree["/ny"].add("/ny/new")
    one = run(cluster=tree["/ny/ads"].cluster_id)
    assert outcomes(one) == {"/ny/ads": Outcome.READ}
    assert {mount for mount, each in tree.items() if each.scans != scans[mount]} == {"/ny/ads"}
    assert topics(table) == below(*TREE) | {"/ny/ads/views"}
    (counts,) = report(table, cluster=tree["/ny/ads"].cluster_id).clusters
    assert (counts.state.mount, counts.topics) == ("/ny/ads", 3)
    for call in (lambda: run(cluster="nope"), lambda: report(table, cluster="nope")):
        with pytest.raises(InvalidArgument, match=r"nope.*ads"):
            call()


def test_nothing_changed_needs_no_spark(
    tree: dict[str, FakeCluster], run: Build, table: str
) -> None:
    run()
    no_such = SparkSettings("spark://127.0.0.1:1")
    report = build([tree["/"].endpoint], table, spark=no_such)
    assert set(outcomes(report).values()) == {Outcome.UNCHANGED}


def test_a_commit_that_changes_no_topic_needs_no_spark(
    tree: dict[str, FakeCluster], run: Build, table: str
) -> None:
    """Such as the time of the parent's last contact, each minute."""
    run()
    ny = tree["/ny"]
    no_such = SparkSettings("spark://127.0.0.1:1")
    for _ in range(2):
        ny.unchanged_since = ny.unchanged_since or ny.revision
        ny.touch()
        report = build([tree["/"].endpoint], table, spark=no_such)
        assert set(outcomes(report).values()) == {Outcome.UNCHANGED}
        (line,) = [one for one in report.lines if one.mount == "/ny"]
        assert line.revision == ny.revision
    ny.add("/ny/new")
    ny.unchanged_since = ny.revision
    ny.touch()
    assert outcomes(run())["/ny"] is Outcome.READ


def test_rows_stay_while_inherited_grants_do_not_count(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    run()
    ads = tree["/ny/ads"]
    whole, ads.topics = ads.topics, ads.topics[:1]
    ads.touch()
    ads.grants_expired = True
    report = run()
    assert outcomes(report)["/ny/ads"] is Outcome.STALE
    assert topics(table) == below(*TREE)
    ads.grants_expired, ads.topics = False, whole
    assert outcomes(run())["/ny/ads"] is Outcome.READ


def test_S21_a_cluster_with_entries_that_cannot_be_read_is_incomplete_until_it_is_whole(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    """The rest of it is read."""

    def lacks_two(page: scan_pb2.ScanTopicsResponse) -> None:
        page.unreadable_count = 2

    ads, before = tree["/ny/ads"], tree["/ny/ads"].change_page
    ads.change_page = lacks_two
    for _ in range(2):  # the second build names it, too
        report = run()
        assert outcomes(report)["/ny/ads"] is Outcome.READ
        [line] = report.unread
        assert (line.mount, line.stale) == ("/ny/ads", False)
        assert line.reason == "2 entries that cannot be read: kdir verify /ny/ads"
        assert topics(table) == below(*TREE)
        [incomplete] = find(table, "").stale
        assert (incomplete.mount, incomplete.stale_reason) == ("/ny/ads", line.reason)
    ads.stop()
    assert outcomes(run())["/ny/ads"] is Outcome.STALE
    ads.start()
    assert [line.mount for line in run().unread] == ["/ny/ads"]
    ads.change_page = before
    assert run().unread == ()
    assert find(table, "").stale == ()
    assert outcomes(run())["/ny/ads"] is Outcome.UNCHANGED


def test_full_reads_again_what_has_not_changed(run: Build, table: str) -> None:
    run()
    assert set(outcomes(run(full=True)).values()) == {Outcome.READ}
    assert topics(table) == below(*TREE)


def test_a_cluster_that_is_down_keeps_its_rows_and_when_it_went(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    run()
    tree["/ny/ads"].stop()
    tree["/la"].add("/la/new")
    first = run()
    assert outcomes(first)["/ny/ads"] is Outcome.STALE
    assert [line.mount for line in first.unread] == ["/ny/ads"]
    found = find(table, "")
    assert {row.path for row in found.rows} == below(*TREE) | {"/la/new"}
    assert {row.path for row in found.rows if row.state.stale} == below("/ny/ads")
    [silent] = found.stale
    assert silent.cluster == "ny-ads"
    assert "refused" in silent.stale_reason
    run()
    [still] = find(table, "").stale
    assert (still.stale_since, still.as_of) == (silent.stale_since, silent.as_of)
    tree["/ny/ads"].start()
    back = run()
    assert outcomes(back)["/ny/ads"] is Outcome.UNCHANGED
    assert find(table, "").stale == ()


def test_a_cluster_that_was_never_read_is_known_as_such(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    tree["/ny/ads"].stop()
    report = run()
    assert outcomes(report)["/ny/ads"] is Outcome.NEVER_READ
    [silent] = find(table, "nothing").stale
    assert (silent.cluster, silent.mount, silent.as_of) == ("ny-ads", "/ny/ads", None)
    tree["/ny/ads"].start()
    assert outcomes(run())["/ny/ads"] is Outcome.READ
    assert topics(table) == below(*TREE)


def test_a_parent_without_a_known_id_is_reported_and_has_no_row(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    tree["/"].stop()
    tree["/"].cluster_id = ""
    report = run()
    [unread] = report.unread
    assert (unread.cluster_id, unread.mount, unread.outcome) == ("", "/", Outcome.NEVER_READ)
    assert find(table, "").stale == ()


def test_a_server_that_answers_without_a_cluster_id_gets_no_row(
    run_here: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    tree["/ny/ads"].cluster_id = ""
    for _ in range(2):
        run_here()
        assert topics(table) == below(*TREE) - below("/ny/ads")
    with pytest.raises(Unreachable, match="ny-ads answers without a cluster id"):
        run_here("/ny/ads")


def test_a_cluster_that_dies_while_it_is_read_keeps_its_old_rows(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    run()
    tracking = tree["/la/tracking"]
    tracking.add("/la/tracking/new")

    def restore(one: FakeCluster, request: scan_pb2.ScanTopicsRequest) -> None:
        one.incarnation = "life-2"

    tracking.before_page = restore
    report = run()
    assert outcomes(report)["/la/tracking"] is Outcome.STALE
    assert topics(table) == below(*TREE)
    tracking.before_page = None
    assert outcomes(run())["/la/tracking"] is Outcome.READ
    assert topics(table) == below(*TREE) | {"/la/tracking/new"}


def test_an_unmounted_cluster_goes_when_its_parent_says_so_and_only_then(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    run()
    forget(tree, "/ny/ads")
    tree["/ny"].stop()
    assert outcomes(run())["/ny/ads"] is Outcome.STALE
    assert topics(table) == below(*TREE)
    tree["/ny"].start()
    report = run()
    [removed] = [line for line in report.lines if line.outcome is Outcome.REMOVED]
    assert (removed.mount, removed.rows) == ("/ny/ads", 2)
    assert "ny" in removed.reason
    assert topics(table) == below(*TREE) - below("/ny/ads")
    assert "/ny/ads" not in outcomes(run())


def test_the_rows_of_a_cluster_that_was_not_asked_stay(
    run: Build, tree: dict[str, FakeCluster], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run()

    def leave_out(*arguments: Any, **options: Any) -> FederationClusters:
        found = discover_clusters(*arguments, **options)
        answered = {key: one for key, one in found.answered.items() if key != "kc-ny-ads"}
        return replace(found, answered=answered)

    monkeypatch.setattr("resolver.index.build.discover_clusters", leave_out)
    before = topics(table)
    assert outcomes(run())["/ny/ads"] is Outcome.STALE
    assert topics(table) == before


def test_S21_the_rows_of_a_cluster_whose_mount_cannot_be_read_stay(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    run()
    forget(tree, "/ny/ads")
    tree["/ny"].has_all_mounts = False
    assert outcomes(run())["/ny/ads"] is Outcome.STALE
    assert topics(table) == below(*TREE)
    tree["/ny"].has_all_mounts = True
    assert outcomes(run())["/ny/ads"] is Outcome.REMOVED


def test_S21_a_cluster_whose_mount_is_of_another_goes_whatever_else_cannot_be_read(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    run()
    forget(tree, "/ny/ads")
    tree["/ny"].has_all_mounts = False
    with federation({"/ny/ads": ["/ny/ads/other"]}) as others:
        others["/ny/ads"].cluster_id = "kc-other"
        tree["/ny"].children["/ny/ads"] = others["/ny/ads"]
        report = run()
    at_mount = {line.cluster_id: line.outcome for line in report.lines if line.mount == "/ny/ads"}
    assert at_mount == {"kc-ny-ads": Outcome.REMOVED, "kc-other": Outcome.READ}
    assert topics(table) == below(*TREE) - below("/ny/ads") | {"/ny/ads/other"}


@pytest.mark.parametrize("is_stale", [True, False])
def test_a_cluster_that_was_unmounted_goes_whatever_old_row_its_owner_has_of_it(
    run: Build, tree: dict[str, FakeCluster], table: str, is_stale: bool
) -> None:
    """The row is from the root, which is away, and of a path that another cluster owns."""
    run()
    forget(tree, "/la/tracking")
    tree["/la/tracking"].stop()
    tree["/la"].known["/ny/tracking"] = tree["/la/tracking"]
    tree["/"].stop()
    tree["/ny"].store_away_seconds = 60 if is_stale else 0
    report = run()
    outcome = {line.cluster_id: line.outcome for line in report.lines}["kc-la-tracking"]
    assert outcome is (Outcome.STALE if is_stale else Outcome.REMOVED)
    gone = set() if is_stale else below("/la/tracking")
    assert topics(table) == below(*TREE) - gone


def test_a_cluster_that_answers_stays_until_each_owner_that_may_list_it_now_answers(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    """It was moved to another parent, and has not received that; the root still has the old row."""
    run()
    forget(tree, "/ny/ads")
    tree["/"].known["/ny/ads"] = tree["/ny/ads"]
    tree["/la"].store_away_seconds = 60
    assert outcomes(run("/"))["/ny/ads"] is Outcome.STALE
    tree["/la"].store_away_seconds = 0
    tree["/la/tracking"].stop()
    assert outcomes(run("/"))["/ny/ads"] is Outcome.STALE
    assert topics(table) == below(*TREE)
    tree["/la/tracking"].start()
    assert outcomes(run("/"))["/ny/ads"] is Outcome.REMOVED
    assert topics(table) == below(*TREE) - below("/ny/ads")


def test_a_cluster_that_answers_goes_where_another_is_mounted_now(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    run()
    forget(tree, "/ny/ads")
    tree["/"].known["/ny/ads"] = tree["/ny/ads"]
    tree["/la"].store_away_seconds = 60
    with federation({"/ny/ads": ["/ny/ads/other"]}) as others:
        others["/ny/ads"].cluster_id = "kc-other"
        tree["/ny"].children["/ny/ads"] = others["/ny/ads"]
        run("/")
    assert topics(table) == below(*TREE) - below("/ny/ads") | {"/ny/ads/other"}


def test_a_whole_branch_goes_with_its_mount(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    run()
    forget(tree, "/ny")
    forget(tree, "/ny/ads")
    report = run()
    assert outcomes(report)["/ny"] is outcomes(report)["/ny/ads"] is Outcome.REMOVED
    assert topics(table) == below("/la", "/la/tracking")


def test_a_moved_cluster_is_read_again_under_its_new_paths(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    run()
    forget(tree, "/ny/ads")
    moved = tree["/ny/ads"]
    moved.mount = "/ny/adverts"
    moved.topics = []
    moved.add("/ny/adverts/bids")
    tree["/ny"].children["/ny/adverts"] = moved
    assert outcomes(run())["/ny/adverts"] is Outcome.READ
    assert topics(table) == below(*TREE) - below("/ny/ads") | {"/ny/adverts/bids"}


def test_another_incarnation_of_a_store_is_read_again(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    run()
    tree["/ny"].incarnation = "life-2"  # at the very same revision
    assert outcomes(run())["/ny"] is Outcome.READ


def test_a_renamed_listener_is_news_without_a_new_read(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    run()
    tree["/ny"].site = "new york"
    assert outcomes(run())["/ny"] is Outcome.UNCHANGED
    assert {row.state.site for row in find(table, "", cluster="ny").rows} == {"new york"}


def test_a_read_torn_between_two_shards_is_read_again_in_one(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    tracking = tree["/la/tracking"]
    changes = iter(range(1))

    def change(one: FakeCluster, request: scan_pb2.ScanTopicsRequest) -> None:
        if request.shard == 3 and next(changes, None) is not None:
            one.touch()

    tracking.before_page = change
    report = run(shard_rows=10)
    [line] = [line for line in report.lines if line.mount == "/la/tracking"]
    assert (line.rows, line.revision) == (100, tracking.revision)
    found = [row.path for row in find(table, "", cluster="la-tracking").rows]
    assert sorted(found) == sorted(TREE["/la/tracking"])


def test_no_server_at_all_leaves_the_table_alone(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    run()
    for one in tree.values():
        one.stop()
    with pytest.raises(Unreachable):
        run()
    assert IndexTable(table).load().version == 0


def test_two_builds_at_once_lose_nothing_and_double_nothing(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    together = threading.Barrier(2)

    def wait(one: FakeCluster, request: scan_pb2.ScanTopicsRequest) -> None:
        together.wait(30)  # both have loaded the table by then, and neither has committed

    for _ in range(2):  # the first time both make the table, then both replace rows
        tree["/ny"].before_page = wait
        tree["/ny"].touch()
        with ThreadPoolExecutor(2) as both:
            reports = [one.result() for one in [both.submit(run), both.submit(run)]]
        assert {line.outcome for report in reports for line in report.lines} <= {
            Outcome.READ,
            Outcome.UNCHANGED,
            Outcome.NEWER_KEPT,
        }
        found = [row.path for row in find(table, "").rows]
        assert sorted(found) == sorted(below(*TREE))


def test_files_that_no_version_names_are_not_left_behind(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    run(shard_rows=10)
    tree["/ny"].incarnation = "life-2"
    tree["/ny"].before_page = lambda one, _: setattr(one, "incarnation", "life-3")
    run()
    named = {file.path for one in IndexTable(table).load().clusters.values() for file in one.files}
    on_disk = {str(file.relative_to(table)) for file in Path(table).glob("cluster_id=*/*.parquet")}
    assert on_disk == named


class InProcess:
    """A session of Spark that runs each task in this process, one by one."""

    def __init__(self) -> None:
        self.sparkContext = self
        self._done: list[Any] = []

    def parallelize(self, shards: Sequence[Any], _slices: int) -> "InProcess":
        self._done = list(shards)
        return self

    def map(self, task: Callable[[Any], Any]) -> "InProcess":
        self._done = [task(one) for one in self._done]
        return self

    def collect(self) -> list[Any]:
        return self._done


@pytest.fixture
def run_here(tree: dict[str, FakeCluster], table: str) -> Build:
    """Builds in this process, without Java."""

    def run(start: str = "/", **options: object) -> BuildReport:
        settings = SparkSettings(session=cast("Any", InProcess()))
        return build([tree[start].endpoint], table, spark=settings, **options)  # type: ignore[arg-type]

    return run


@pytest.mark.parametrize("name", ["my index", "ü", "a#b", "100%", "a%zz"])
def test_a_folder_of_any_usual_name_is_found_again(
    tree: dict[str, FakeCluster], tmp_path: Path, name: str
) -> None:
    settings = SparkSettings(session=cast("Any", InProcess()))
    table = str(tmp_path / name)
    for outcome in (Outcome.READ, Outcome.UNCHANGED):
        report = build([tree["/"].endpoint], table, spark=settings)
        assert outcomes(report) == dict.fromkeys(TREE, outcome)
    assert topics(table) == below(*TREE)


@pytest.mark.parametrize("name", ["a%20b", "%2F", "x%c3/index"])
def test_a_folder_whose_name_deltalake_would_decode_is_refused_before_it_is_made(
    tree: dict[str, FakeCluster], tmp_path: Path, name: str
) -> None:
    table = str(tmp_path / name)
    for call in (lambda: build([tree["/"].endpoint], table), lambda: find(table, "")):
        with pytest.raises(InvalidArgument, match=r"--table .*name another folder"):
            call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("changed", [False, True])
def test_a_table_that_goes_away_during_a_build_is_unreachable(
    run_here: Build,
    tree: dict[str, FakeCluster],
    table: str,
    monkeypatch: pytest.MonkeyPatch,
    changed: bool,
    down: bool,
) -> None:
    run_here()
    if changed:
        tree["/la"].add("/la/new")
    if down:  # a first row of it is written by the driver
        tree["/sf"] = tree["/"].children["/sf"] = FakeCluster("/sf")

    def discover(*arguments: Any, **options: Any) -> FederationClusters:
        shutil.rmtree(table)
        if down and not changed:
            Path(table).write_text("no folder any more")
        return discover_clusters(*arguments, **options)

    monkeypatch.setattr("resolver.index.build.discover_clusters", discover)
    with pytest.raises(Unreachable, match=r"removed while|cannot be reached") as raised:
        run_here()
    assert raised.value.exit_code == 3


@pytest.mark.parametrize("damage", ["revision", "revision in the scan", "partitions"])
def test_a_number_too_large_for_the_table_makes_its_cluster_stale_alone(
    run_here: Build, tree: dict[str, FakeCluster], table: str, damage: str
) -> None:
    run_here()
    ads = tree["/ny/ads"]
    ads.touch()
    tree["/la"].add("/la/new")
    if damage == "revision":
        ads.revision = 2**63 + 5
    elif damage == "partitions":
        ads.topics[0][0].topic.partitions = 2**31
    else:
        ads.before_page = lambda one, _: setattr(one, "revision", 2**63 + 5)
    report = run_here()
    assert outcomes(report) == dict.fromkeys(TREE, Outcome.UNCHANGED) | {
        "/la": Outcome.READ,
        "/ny/ads": Outcome.STALE,
    }
    [line] = report.unread
    assert re.search("out of range|cannot hold", line.reason)
    assert topics(table) == below(*TREE) | {"/la/new"}
    assert outcomes(run_here())["/ny/ads"] is Outcome.STALE


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["write", "commit"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_build_that_ends_early_leaves_the_folder_as_it_was(
    tree: dict[str, FakeCluster],
    table: str,
    error: BaseException,
    step: str,
    scheme: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run() -> BuildReport:
        settings = SparkSettings(session=cast("Any", InProcess()))
        return build([tree["/"].endpoint], scheme + table, spark=settings, full=True)

    Path(table).mkdir()  # deltalake makes none for a URL of a folder
    run()
    before = files(table)
    real, calls = IndexTable.write, 0

    def fail(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if step == "write" and calls < 3:
            return real(*arguments)
        raise error

    monkeypatch.setattr(IndexTable, step, fail)
    # What storage answers to a task is no bug: exit code 3, not that of a failed job of Spark.
    fails_task = isinstance(error, OSError) and step == "write"
    with pytest.raises(Unreachable if fails_task else type(error), match=r"no space left|^$"):
        run()
    # A task returns its error: the others run to their end.
    assert calls == (len(TREE) if fails_task else 3 if step == "write" else 1)
    assert files(table) == before
    assert topics(table) == below(*TREE)


def test_a_task_whose_file_the_storage_does_not_take_ends_the_build_as_unreachable(
    run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    run()
    tree["/la"].add("/la/new")

    def take_away(_one: FakeCluster, _request: Any) -> None:
        for folder in Path(table).glob("cluster_id=*"):
            shutil.rmtree(folder)
            folder.write_text("no folder any more")

    tree["/la"].before_page = take_away
    with pytest.raises(Unreachable, match=r"the index at .* cannot be reached: ") as raised:
        run()
    assert raised.value.exit_code == 3


def test_an_interrupt_after_the_commit_leaves_its_files(
    tree: dict[str, FakeCluster], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = IndexTable.commit

    def commit_and_fail(*arguments: Any) -> Any:
        commit(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(IndexTable, "commit", commit_and_fail)
    settings = SparkSettings(session=cast("Any", InProcess()))
    with pytest.raises(KeyboardInterrupt):
        build([tree["/"].endpoint], table, spark=settings)
    assert topics(table) == below(*TREE)


def files(table: str) -> set[Path]:
    return {one for one in Path(table).rglob("*") if one.is_file()}


def test_spark_with_delta_s_own_jars_reads_what_we_wrote(
    spark: SparkSession, run: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    run()
    tree["/ny/ads"].stop()
    run()
    frame = spark.read.format("delta").load(table)
    rows = {row.path: row for row in frame.collect()}
    assert set(rows) == below(*TREE)
    assert {path for path, row in rows.items() if row.stale} == below("/ny/ads")
    ours = {row.path: row for row in find(table, "").rows}
    as_of = ours["/ny/ads/bids"].state.as_of
    assert as_of is not None
    assert rows["/ny/ads/bids"].as_of.timestamp() == as_of.timestamp()
    before = spark.read.format("delta").option("versionAsOf", 0).load(table)
    assert before.filter("stale").count() == 0
    assert frame.filter("cluster = 'ny-ads'").count() == 2


def test_a_clock_that_was_ahead_once_does_not_freeze_the_index(
    run_here: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    run_here(clock=lambda: datetime.now(UTC) + timedelta(days=365))
    tree["/la"].add("/la/new")
    tree["/ny/ads"].stop()
    forget(tree, "/la/tracking")
    report = run_here()
    assert outcomes(report) == {
        "/": Outcome.UNCHANGED,
        "/la": Outcome.READ,
        "/la/tracking": Outcome.REMOVED,
        "/ny": Outcome.UNCHANGED,
        "/ny/ads": Outcome.STALE,
    }
    assert topics(table) == below("/la", "/ny", "/ny/ads") | {"/la/new"}


@pytest.mark.parametrize("behind", [0, 1])
def test_an_answer_older_than_the_table_marks_its_cluster_stale_without_a_read(
    run_here: Build, tree: dict[str, FakeCluster], table: str, behind: int
) -> None:
    run_here()
    [was] = [line.as_of for line in run_here().lines if line.mount == "/ny/ads"]
    ads = tree["/ny/ads"]
    ads.store_away_seconds = 3600
    ads.revision -= behind
    scans = ads.scans
    for full in (False, True):
        report = run_here(full=full)
        assert outcomes(report)["/ny/ads"] is Outcome.STALE
        [line] = report.unread
        assert (line.mount, line.reason) == ("/ny/ads", "its server cannot reach its store")
        assert ads.scans == scans
        [stale] = find(table, "").stale
        assert (stale.cluster, stale.as_of) == ("ny-ads", was)
    assert topics(table) == below(*TREE)
    ads.store_away_seconds = 0
    assert (run_here().unread, find(table, "").stale) == ((), ())


def test_rows_of_a_server_without_its_store_count_as_stale_whatever_the_outcome(
    run_here: Build, tree: dict[str, FakeCluster], table: str
) -> None:
    for one in ("/ny/ads", "/ny"):
        tree[one].store_away_seconds = 3600
    first = run_here()
    assert outcomes(first)["/ny/ads"] is Outcome.READ
    assert [line.mount for line in first.unread] == ["/ny", "/ny/ads"]
    tree["/ny/ads"].store_away_seconds = 1800  # it was connected in between
    second = run_here()
    assert outcomes(second)["/ny/ads"] is Outcome.UNCHANGED
    assert [line.mount for line in second.unread] == ["/ny", "/ny/ads"]


class TestMissing:
    def test_java(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        with pytest.raises(InvalidArgument, match="Java 17"), SparkSettings().open():
            pass

    def test_packages(self, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
        monkeypatch.setattr("resolver.extras.is_installed", lambda _: False)
        with pytest.raises(InvalidArgument, match=r"pip install 'kdir\[index\]'"):
            build(["127.0.0.1:1"], table)

    def test_a_master(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
        settings = SparkSettings("spark://127.0.0.1:1")
        with pytest.raises(Unreachable, match=r"no Spark master answers at 127\.0\.0\.1:1"):
            settings.open().__enter__()


def test_what_is_shipped_can_be_imported_from_the_zip_alone(tmp_path: Path) -> None:
    archive = packages_zip(tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "import resolver.index.build, resolver.index.changes, kdir.v1.scan_pb2; "
        "from resolver.changes.record import schema_text; "
        "schema_text(); "
        "print(resolver.index.build.__file__, kdir.v1.scan_pb2.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(archive)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.count(str(archive)) == 2


def forget(tree: dict[str, FakeCluster], mount: str) -> None:
    """Unmounts a cluster: its parent, and who heard of it from there, know it no more."""
    for one in tree.values():
        one.known.pop(mount, None)
        one.children.pop(mount, None)
