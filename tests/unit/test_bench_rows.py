"""What the benchmarks claim, and how it is kept and shown; nothing is measured here."""

from __future__ import annotations

import json
import os
import re
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Self

import pytest

from bench import attacks, client, results, rows
from bench.__main__ import NAMES, main
from bench.rows import Row, at_least, at_most, reported, show
from resolver.errors import NotReady

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("value", "holds"), [(89.0, False), (90.0, True), (91.0, True)])
def test_at_least_holds_from_the_goal_on(value: float, holds: bool) -> None:
    row = at_least("x", value, "/s", "bare", 100.0, 0.9)
    assert (row.ratio, row.goal, row.holds) == (value / 100, ">= 0.9", holds)


@pytest.mark.parametrize(("value", "holds"), [(124.0, True), (125.0, True), (126.0, False)])
def test_at_most_holds_up_to_the_goal(value: float, holds: bool) -> None:
    row = at_most("x", value, "ms", "bare", 100.0, 1.25)
    assert (row.ratio, row.goal, row.holds) == (value / 100, "<= 1.25", holds)


def test_the_table_says_what_is_missed() -> None:
    table = show(
        [
            at_least("fast", 1_234_567.0, "/s", "bare", 1_000_000.0, 1),
            at_most("small", 0.4567, "s", "bare", 0.1, 2),
        ]
    )
    assert table.splitlines()[2:] == [
        "| fast | 1,234,567 /s | bare: 1,000,000 | 1.23 | >= 1 | yes |",
        "| small | 0.457 s | bare: 0.1 | 4.57 | <= 2 | no |",
    ]


def test_rows_are_kept_in_the_form_that_others_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "OUT", tmp_path / "out")
    made = [at_least("x", 3.0, "/s", "bare", 2.0, 0.5)]
    file = rows.write("some", made)
    assert json.loads(file.read_text()) == [
        {
            "name": "x",
            "value": 3.0,
            "unit": "/s",
            "baseline": "bare",
            "baseline_value": 2.0,
            "ratio": 1.5,
            "goal": ">= 0.5",
            "holds": True,
        }
    ]
    assert rows.read("some") == made
    assert rows.read("never run") == []


def test_the_section_of_figures_is_replaced_and_nothing_else() -> None:
    text = f"before\n{results.BEGIN}\nold\n{results.END}\nafter\n"
    once = results.with_section(text, "new")
    assert once == f"before\n{results.BEGIN}\nnew\n{results.END}\nafter\n"
    assert results.with_section(once, "new") == once


@pytest.mark.parametrize(
    "text",
    [
        "",
        results.BEGIN,
        f"{results.END} {results.BEGIN}",
        f"{results.BEGIN} {results.END} {results.BEGIN} {results.END}",
    ],
)
def test_a_page_without_its_marks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="once each"):
        results.with_section(text, "new")


def test_the_section_names_the_machine_and_counts_what_is_missed() -> None:
    missed = Row("x", 1.0, "s", "bare", 2.0, 0.5, ">= 0.9", holds=False)
    assert "1 of 1 goals are missed" in results.section([missed])
    assert "Python 3." in results.section([missed])


def test_what_is_only_reported_is_no_goal_and_holds() -> None:
    row = reported("x", 3.0, "s", "bare", 2.0)
    assert (row.ratio, row.goal, row.holds) == (1.5, "none", True)
    assert "all goals are met" in results.section([row, at_least("y", 1.0, "/s", "bare", 1.0, 1)])
    assert "1 of 1 goals" in results.section([row, at_least("y", 1.0, "/s", "bare", 1.0, 2)])


@pytest.mark.parametrize("page", [results.README, results.RESULTS], ids=lambda page: page.name)
def test_each_page_with_figures_has_its_marks(page: Path) -> None:
    results.with_section(page.read_text(), "new")


def test_the_results_count_the_goals_of_their_table() -> None:
    shown = results.RESULTS.read_text().partition(results.BEGIN)[2].partition(results.END)[0]
    head, _, table = shown.partition("\n| what |")
    fates = re.findall(r"\| [<>]= \S+ \| (yes|no) \|$", table, re.MULTILINE)
    missed, goals = fates.count("no"), len(fates)
    assert (f"{missed} of {goals} goals are missed" if missed else "all goals are met") in head
    absent = re.search(r"Benchmarks without a row here: (.*)\.\n", head)
    assert absent is None or {*absent[1].split(", ")} <= {*NAMES}
    for name, row in {"attacks": "p99 of others", "etcd": "etcd's serializable reads"}.items():
        assert (row in table) != (absent is not None and name in absent[1].split(", ")), name


def test_the_lines_of_the_readme_are_lines_of_the_results() -> None:
    measured = [row for row in results.RESULTS.read_text().splitlines() if row.startswith("| ")]
    shown = results.README.read_text().partition(results.BEGIN)[2].partition(results.END)[0]
    lines = shown.strip().splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == list(results.STRONGEST)
    assert [line for line in lines if line not in measured] == []


def test_both_pages_are_renewed_from_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in ("RESULTS", "README"):
        (tmp_path / page).write_text(f"{results.BEGIN}\n{results.END}")
        monkeypatch.setattr(results, page, tmp_path / page)
    monkeypatch.setattr(rows, "OUT", tmp_path)
    strong = at_least(results.STRONGEST[0], 3.0, "/s", "bare", 2.0, 0.5)
    rows.write("some", [strong, at_least("weak", 1.0, "/s", "bare", 2.0, 0.9)])
    results.refresh(["some", "other", "more"])
    assert "Benchmarks without a row here: other, more.\n" in (tmp_path / "RESULTS").read_text()
    assert "1 of 2 goals are missed" in (tmp_path / "RESULTS").read_text()
    assert "weak" in (tmp_path / "RESULTS").read_text()
    assert (tmp_path / "README").read_text() == f"{results.BEGIN}\n{show([strong])}\n{results.END}"


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_can_be_run(name: str) -> None:
    assert callable(import_module(f"bench.{name}").run)


def test_every_benchmark_is_listed() -> None:
    runnable = {
        file.stem
        for file in (ROOT / "bench").glob("*.py")
        if re.search(r"^def run\(.*\) -> list\[Row\]:", file.read_text(), re.MULTILINE)
    }
    assert runnable == set(NAMES)


def test_a_quick_look_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [at_least("x", 3.0, "/s", "bare", 2.0, 0.5)]
    module = types.ModuleType("bench.startup")
    module.__dict__["run"] = lambda: made
    monkeypatch.setitem(sys.modules, "bench.startup", module)
    monkeypatch.setattr(rows, "OUT", tmp_path)
    monkeypatch.setenv("KDIR_BENCH_TOPICS", "1000000")
    assert main(["--topics", "2000", "startup"]) == 0
    assert os.environ["KDIR_BENCH_TOPICS"] == "2000"
    assert rows.read("startup") == []
    assert main(["startup"]) == 0
    assert rows.read("startup") == made
    out = capsys.readouterr().out
    assert out.count("| x | 3 /s | bare: 2 | 1.50 | >= 0.5 | yes |") == 2
    assert "about 30 s" in out


def test_an_attack_that_does_not_begin_gives_no_figures() -> None:
    with (
        pytest.raises(RuntimeError, match="no_such_attack did not begin"),
        attacks.attack("no_such_attack", "127.0.0.1:1"),
    ):
        pytest.fail("nothing attacks")


def test_an_attack_that_ends_early_gives_no_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nice").write_text("#!/bin/sh\necho attacking\n")
    (tmp_path / "nice").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with (
        pytest.raises(RuntimeError, match="large_requests ended early"),
        attacks.attack("large_requests", "127.0.0.1:1") as process,
    ):
        process.wait(30)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_cold_paths_that_are_not_resolved_give_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def resolve(self, path: str) -> None:
            if path == "/refused":
                raise NotReady("not now")

    monkeypatch.setattr(client, "Resolver", Refusing)
    assert client.cold_rate("", ["/a", "/b"], 2) > 0
    with pytest.raises(RuntimeError, match="only 3 of 4 paths"):
        client.cold_rate("", ["/a", "/b", "/c", "/refused"], 2)


def test_an_unknown_benchmark_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["startup", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err
