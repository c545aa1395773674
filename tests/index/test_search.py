"""`kdir find` and `kdir index report` on a small table that no Spark made."""

import itertools
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from resolver.cli.web_pages import Pages
from resolver.errors import InvalidArgument, Unreachable
from resolver.glob import Glob
from resolver.index.arrow_rows import topic_batch
from resolver.index.delta_table import FilePlacement, IndexTable, TableState
from resolver.index.row_schema import COLUMNS, ClusterState, Listener
from resolver.index.search import SearchResult, find, glob_regex, parse_as_of, report
from resolver.testing import MemoryTransport
from tests.index.fakes import page, topic

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
ROWS = {
    "/la/tracking": ["/la/tracking/clicks", "/la/tracking/search/Clicks-eu", "/la/tracking/views"],
    "/ny/tracking": ["/ny/tracking/clicks", "/ny/tracking/a%b"],
    "/": [],
}


def state(mount: str) -> ClusterState:
    name = mount.strip("/").replace("/", "-") or "root"
    return ClusterState(
        f"kc-{name}",
        name,
        mount,
        listeners=(Listener("internal", ("a:9092", "b:9092"), "PLAINTEXT"),),
        as_of=NOW,
        revision=7,
        incarnation="i",
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    index = IndexTable(str(tmp_path_factory.mktemp("table") / "index"))
    placed = []
    for mount, paths in ROWS.items():
        topics = [
            topic(path, owner="search" if "search" in path else "", drift_count=number)
            for number, path in enumerate(paths)
        ]
        one = state(mount)
        if mount == "/ny/tracking":
            one = one.silent(NOW + timedelta(hours=1), "connection refused")
        placed.append(FilePlacement(index.write(one.cluster_id, [topic_batch(page(*topics))]), one))
    index.commit(TableState(), placed, [], "test")
    return index.location


def paths(found: SearchResult) -> list[str]:
    return [row.path for row in found.rows]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("click", ["/la/tracking/clicks", "/la/tracking/search/Clicks-eu", "/ny/tracking/clicks"]),
        ("CLICKS-EU", ["/la/tracking/search/Clicks-eu"]),
        ("tracking.views", ["/la/tracking/views"]),  # the physical name
        ("nothing", []),
        ("a%b", ["/ny/tracking/a%b"]),  # not a wildcard of SQL
        ("%", ["/ny/tracking/a%b"]),
        ("_", []),
        ("' OR true --", []),
        ("click*", ["/la/tracking/clicks", "/ny/tracking/clicks"]),
        ("tracking/c*", ["/la/tracking/clicks", "/ny/tracking/clicks"]),
        ("/*/tracking/click?", ["/la/tracking/clicks", "/ny/tracking/clicks"]),
        ("/la/**/[Cc]licks*", ["/la/tracking/clicks", "/la/tracking/search/Clicks-eu"]),
        ("/la/*", []),
        ("/la/**/[!a-z]*", ["/la/tracking/search/Clicks-eu"]),
        ("*.views", []),  # a glob is of paths, not of physical names
    ],
)
def test_patterns(table: str, pattern: str, wanted: list[str]) -> None:
    assert paths(find(table, pattern)) == wanted


def test_no_pattern_finds_everything_in_path_order(table: str) -> None:
    assert paths(find(table, "")) == sorted(path for some in ROWS.values() for path in some)


def test_whether_it_is_a_glob_can_be_chosen(table: str) -> None:
    assert paths(find(table, "views", glob=True)) == ["/la/tracking/views"]
    assert paths(find(table, "view", glob=True)) == []
    assert paths(find(table, "click*", glob=False)) == []


@pytest.mark.parametrize("cluster", ["ny-tracking", "kc-ny-tracking"])
def test_one_cluster_by_name_or_id(table: str, cluster: str) -> None:
    found = find(table, "clicks", cluster=cluster)
    assert paths(found) == ["/ny/tracking/clicks"]
    assert [one.mount for one in found.clusters] == ["/ny/tracking"]


def test_a_cluster_without_topics_is_one_and_finds_nothing(table: str) -> None:
    assert find(table, "clicks", cluster="root").rows == ()


def test_a_limit_bounds_what_is_shown_and_not_what_is_counted(table: str) -> None:
    found = find(table, "click", limit=2)
    assert (len(found.rows), found.total) == (2, 3)


def test_what_is_stale_says_so_in_each_row_and_as_a_whole(table: str) -> None:
    found = find(table, "clicks")
    assert {row.path: row.state.stale for row in found.rows} == {
        "/la/tracking/clicks": False,
        "/la/tracking/search/Clicks-eu": False,
        "/ny/tracking/clicks": True,
    }
    [stale] = found.stale
    assert (stale.cluster, stale.stale_reason) == ("ny-tracking", "connection refused")
    assert stale.stale_since == NOW + timedelta(hours=1)


def test_silence_of_a_cluster_is_reported_even_when_nothing_is_found(table: str) -> None:
    assert [one.cluster for one in find(table, "nothing").stale] == ["ny-tracking"]


def test_the_web_pages_search_in_it_and_name_what_is_stale(table: str) -> None:
    found = Pages([], MemoryTransport(), table=table).page("/~find", {"q": "click"})
    assert found.status == 200
    for path in ("/la/tracking/clicks", "/la/tracking/search/Clicks-eu", "/ny/tracking/clicks"):
        assert f'<a href="{path}">' in found.html
    assert "/ny/tracking (ny-tracking): stale since" in found.html
    nothing = Pages([], MemoryTransport(), table=table).page("/~find", {"q": "<nothing>"})
    assert "nothing in the index matches" in nothing.html
    assert "<nothing>" not in nothing.html


def test_the_web_pages_read_no_more_of_it_than_they_show_and_still_name_what_is_stale(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resolver.cli.web_pages._MOST_ROWS", 1)
    found = Pages([], MemoryTransport(), table=table).page("/~find", {"q": "click"})
    assert found.html.count("<tr>") == 2  # the header is one, too
    assert "2 more; raise --limit to see them" in found.html
    assert "/ny/tracking (ny-tracking): stale since" in found.html


def test_a_row_as_a_mapping_has_every_column(table: str) -> None:
    [row] = find(table, "Clicks-eu").rows
    shown = row.as_dict()
    assert list(shown) == [column.name for column in COLUMNS]
    assert shown["owner"] == "search"
    assert shown["bootstrap_servers"] == ["a:9092", "b:9092"]
    assert shown["as_of"] == NOW
    assert row.state == state("/la/tracking")


def test_by_url_the_same_rows_are_found(table: str) -> None:
    assert find(f"file://{table}", "click").rows == find(table, "click").rows
    assert paths(find(f"file://{table}", "", cluster="ny-tracking")) == sorted(ROWS["/ny/tracking"])


def test_duckdb_alone_can_read_it(table: str) -> None:
    """What the README says to people who want SQL."""
    topics = DeltaTable(table).to_pyarrow_dataset()
    counts = duckdb.sql("SELECT cluster, stale, count(*) FROM topics GROUP BY ALL ORDER BY 1")
    assert topics.count_rows() == 5
    assert counts is not None
    assert counts.fetchall() == [("la-tracking", False, 3), ("ny-tracking", True, 2)]


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda table: find(f"{table}-none", "x"), "kdir index build"),
        (lambda table: find(table, "x", cluster="sf"), "la-tracking, ny-tracking, root"),
        (lambda table: find(table, "a**b"), "whole segment"),
        (lambda table: find(table, "[a"), "never closed"),
        (lambda table: find(table, "x", as_of="yesterday"), "2026-11-01"),
        (lambda table: find(table, "x", as_of="2020-01-01"), "begins at"),
        (lambda table: find(table, "x", limit=0), "1 or more"),
    ],
)
def test_mistakes_are_one_sentence(
    table: str, ask: Callable[[str], SearchResult], says: str
) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(says)) as caught:
        ask(table)
    assert "\n" not in caught.value.message


class TestAsOf:
    @pytest.fixture
    def history(self, tmp_path: Path) -> IndexTable:
        """Returns three versions; the log is dated as if one had been made a day."""
        index = IndexTable(str(tmp_path / "index"))
        one = state("/la/tracking")
        placed: list[FilePlacement] = []
        for version, path in enumerate(["/la/tracking/a", "/la/tracking/b", "/la/tracking/c"]):
            data = index.write(one.cluster_id, [topic_batch(page(topic(path)))])
            fresh = FilePlacement(data, one)
            index.commit(index.load(), [fresh], placed, "test")
            placed = [fresh]
            log = tmp_path / "index" / "_delta_log" / f"{version:020}.json"
            made = datetime(2026, 11, 1 + version, 12, tzinfo=UTC)
            stamp = f'"timestamp":{int(made.timestamp() * 1000)}'
            log.write_text(re.sub(r'"timestamp":\d+', stamp, log.read_text(), count=1))
        return index

    @pytest.mark.parametrize(
        ("as_of", "wanted"),
        [
            (None, "c"),
            ("2026-11-01T12:00:00Z", "a"),
            ("2026-11-02T11:59:59Z", "a"),
            ("2026-11-02T12:00:00+00:00", "b"),
            (datetime(2026, 11, 2, 13, tzinfo=UTC), "b"),
            (date(2026, 11, 3), "c"),
            ("2030-01-01", "c"),
        ],
    )
    def test_the_table_as_it_was(
        self, history: IndexTable, as_of: str | date | None, wanted: str
    ) -> None:
        assert paths(find(history.location, "", as_of=as_of)) == [f"/la/tracking/{wanted}"]

    def test_before_its_first_version_is_an_error_that_names_it(self, history: IndexTable) -> None:
        with pytest.raises(InvalidArgument, match="begins at 2026-11-01 12:00:00 UTC"):
            find(history.location, "", as_of="2026-10-01")

    def test_a_version_whose_log_is_not_kept_is_an_error_that_names_the_first(
        self, history: IndexTable
    ) -> None:
        DeltaTable(history.location, version=1).create_checkpoint()
        log = Path(history.location, "_delta_log")
        (log / f"{0:020}.json").rename(log / "away")
        assert paths(find(history.location, "", as_of="2026-11-02T12:00:00Z")) == ["/la/tracking/b"]
        with pytest.raises(InvalidArgument, match="begins at 2026-11-02 12:00:00 UTC"):
            find(history.location, "", as_of="2026-11-01T12:00:00Z")

    def test_a_commit_without_those_that_it_builds_on_is_not_kept(
        self, history: IndexTable
    ) -> None:
        history.open().create_checkpoint()
        log = Path(history.location, "_delta_log")
        (log / f"{0:020}.json").rename(log / "away")
        assert [one["version"] for one in history.open().history()] == [2, 1]
        with pytest.raises(InvalidArgument, match="begins at 2026-11-03 12:00:00 UTC"):
            find(history.location, "", as_of="2026-11-02T12:00:00Z")
        assert paths(find(history.location, "", as_of="2026-11-03T12:00:00Z")) == ["/la/tracking/c"]

    def test_a_table_that_cannot_be_read_for_a_time_is_unreachable(
        self, history: IndexTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: DeltaTable) -> None:
            raise OSError("Generic S3 error\n  ↳ 503 Slow Down")

        monkeypatch.setattr(DeltaTable, "history", fail)
        with pytest.raises(Unreachable, match="503 Slow Down"):
            find(history.location, "", as_of="2026-11-01T12:00:00Z")

    @pytest.mark.parametrize("scheme", ["", "file://"])
    def test_files_that_were_vacuumed_are_an_error_that_says_so(
        self, history: IndexTable, scheme: str
    ) -> None:
        history.open().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        location = f"{scheme}{history.location}"
        with pytest.raises(InvalidArgument, match=r"files of it are gone .cluster_id=.*parquet"):
            find(location, "", as_of="2026-11-01T12:00:00Z")
        assert paths(find(location, "")) == ["/la/tracking/c"]

    @pytest.mark.parametrize(
        ("scheme", "damage"),
        [
            *itertools.product(["", "file://"], ["half", "empty", "replaced"]),
            ("", "folder"),
            ("", "loop"),
        ],
    )
    def test_a_file_that_cannot_be_read_is_named_with_the_way_out(
        self, history: IndexTable, scheme: str, damage: str
    ) -> None:
        ((file,),) = (one.files for one in history.load().clusters.values())
        place = Path(history.location, file.path)
        whole = place.read_bytes()
        place.unlink()
        match damage:
            case "half":
                place.write_bytes(whole[: len(whole) // 2])
            case "empty":
                place.write_bytes(b"")
            case "replaced":
                place.write_bytes(whole[:50] + b"X" * 30 + whole[80:])
            case "folder":
                place.mkdir()
            case _:
                place.symlink_to(place)
        location = f"{scheme}{history.location}"
        with pytest.raises(Unreachable) as failed:
            find(location, "")
        assert file.path in failed.value.message
        assert f"kdir index build --full --table {location}" in failed.value.message
        assert "\n" not in failed.value.message

    def test_a_date_is_the_end_of_that_day_here(self) -> None:
        end = datetime(2026, 11, 1, 23, 59, 59, 999999).astimezone()
        assert parse_as_of("2026-11-01") == parse_as_of(date(2026, 11, 1)) == end

    @pytest.mark.parametrize(
        "text", ["0001-01-01", "1969-12-30", "9999-12-31T23:59-23:00", "yesterday"]
    )
    def test_a_time_that_is_none_or_before_1970_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidArgument, match=f"--since: found '{text}'; expected a date"):
            parse_as_of(text, "--since")


_SEGMENTS = st.lists(st.text("ab.-1", min_size=1, max_size=4), min_size=1, max_size=4).filter(
    lambda segments: not {".", ".."} & set(segments)
)
_ATOMS = st.sampled_from(
    ["a", "b", ".", "-", "1", "*", "?", "[ab]", "[!a]", "[^b.]", "[a-b]", "[-a]", "[!-.]", "[]a]"]
)
_PATTERNS = st.lists(
    st.one_of(st.just("**"), st.lists(_ATOMS, min_size=1, max_size=4).map("".join)),
    min_size=1,
    max_size=4,
).map("/".join)


@given(pattern=_PATTERNS, segments=_SEGMENTS)
def test_a_glob_s_regular_expression_says_what_the_glob_says(
    pattern: str, segments: list[str]
) -> None:
    try:
        glob = Glob.parse(pattern)
    except InvalidArgument:
        return
    path = "/" + "/".join(segments)
    assert matches(f"/{pattern}", path) == glob.matches(segments)
    tails = (segments[start:] for start in range(len(segments) + 1))
    assert matches(pattern, path) == any(glob.matches(tail) for tail in tails)


def matches(pattern: str, path: str) -> bool:
    """Returns what DuckDB, with its own engine for regular expressions, makes of the
    translation.
    """
    query = duckdb.execute("SELECT regexp_full_match(?, ?)", [path, glob_regex(pattern)])
    row = query.fetchone()
    assert row is not None
    return bool(row[0])


def test_the_report_counts_by_cluster_and_names_what_is_twice_there(table: str) -> None:
    found = report(table)
    counts = {one.state.mount: (one.topics, one.ownerless, one.drifting) for one in found.clusters}
    assert counts == {"/": (0, 0, 0), "/la/tracking": (3, 2, 2), "/ny/tracking": (2, 2, 1)}
    assert found.shared_names == ()


def test_the_report_finds_shared_names_and_what_a_mount_hides(tmp_path: Path) -> None:
    index = IndexTable(str(tmp_path / "index"))
    top, above, below = state("/"), state("/la"), state("/la/ads")
    rows = {
        # Of the root, what is below /la/ads is hidden by /la already.
        top: [topic("/la/ads/top", physical_name="top")],
        above: [
            topic("/la/x", physical_name="x"),
            topic("/la/ads", physical_name="ads"),
            topic("/la/ads/lost", physical_name="lost"),
            topic("/la/adsx", physical_name="__hidden"),
        ],
        below: [
            topic("/la/ads/x", physical_name="x"),
            topic("/la/ads/h", physical_name="__hidden"),
        ],
    }
    placed = [
        FilePlacement(index.write(one.cluster_id, [topic_batch(page(*topics))]), one)
        for one, topics in rows.items()
    ]
    index.commit(TableState(), placed, [], "test")
    found = report(index.location)
    [shared] = found.shared_names
    assert (shared.physical_name, shared.paths) == ("x", ("/la/ads/x", "/la/x"))
    assert (shared.count, shared.clusters, found.shared_name_count) == (2, 2, 1)
    assert sorted((one.path, one.mounted_cluster_id) for one in found.shadowed) == [
        ("/la/ads/lost", "kc-la-ads"),
        ("/la/ads/top", "kc-la"),
    ]
