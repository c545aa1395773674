"""docs/guarantees.md, the ids in code and documents, and the tests that carry them agree."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.tools.guarantees import (
    ID,
    PAGE,
    cited_in_python,
    find_carriers,
    list_tests,
    read_promises,
)
from tests.repository.test_files import tracked

ROOT = Path(__file__).resolve().parents[2]
_EXAMPLES = {Path(__file__).name}  # this file holds bad examples


def citations(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the line and the id of each citation of a promise in one file."""
    match path.suffix:
        case ".py" if "_pb2" not in path.name:
            texts = cited_in_python(path.read_text())
        case ".md" | ".proto":
            texts = iter(enumerate(path.read_text().splitlines(), 1))
        case _:
            return
    for line, text in texts:
        yield from ((line, found) for found in ID.findall(text))


def unknown(paths: list[Path], promises: set[str]) -> list[str]:
    """Returns `file:line id` of each citation of a promise that the page does not have."""
    return [
        f"{path.name}:{line} {found}"
        for path in paths
        if path.name not in _EXAMPLES
        for line, found in citations(path)
        if found not in promises
    ]


def test_each_id_that_is_cited_is_a_promise() -> None:
    promises = set(read_promises(PAGE.read_text()))
    paths = [path for path in tracked(ROOT) if path.is_file()]
    assert unknown(paths, promises) == []
    cites_two = ROOT / "resolver" / "resolution" / "referral_and_answer_checks.py"
    assert len(unknown([cites_two], set())) >= 2


def test_each_id_in_a_tests_name_is_a_promise() -> None:
    assert set(find_carriers()) - set(read_promises(PAGE.read_text())) == set()


def test_each_promise_is_a_sentence_and_has_a_test() -> None:
    carriers = find_carriers()
    for promise, text in read_promises(PAGE.read_text()).items():
        assert re.match(r"[A-Z`].*\.$", text, re.DOTALL), promise
        assert promise in carriers, f"{promise}: no test has it in its name"


def test_the_page_lists_the_tests_as_they_are_now() -> None:
    page = PAGE.read_text()
    assert list_tests(page, find_carriers()) == page, "run: make docs"


def test_ids_in_names_are_written_large() -> None:
    small = re.compile(r"^def (test_[srapngk]\d{1,2}_\w+)", re.MULTILINE)
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    assert [name for path in files for name in small.findall(path.read_text())] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""What it is (S99)."""\n'),
        ("a.py", "x = 1  # not to be lost (R3, S99)\n"),
        ("a.md", "see [S99](guarantees.md#s99)\n"),
        ("a.proto", "// Answers (S99).\n"),
    ],
)
def test_an_unknown_id_is_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert unknown([tmp_path / name], {"R3"}) == [f"{name}:1 S99"]


def test_a_string_and_a_longer_name_are_no_citations(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text('x = "K1"  # SHA256, S3-like, utf-S8x\n')
    assert unknown([file], set()) == []


def test_a_test_that_is_new_moved_or_gone_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_a.py").write_text(
        "def test_S1_R2_x() -> None: ...\ndef test_y() -> None: ...\n"
    )
    old = "* `tests/old.py`: `test_S1_gone`\n"
    page = f"# P\n\n## Store\n\n### S1\n\nKept.\n\n{old}\n## More\n\n### R2\n\nA.\n"
    renewed = list_tests(page, find_carriers(tmp_path))
    line = "* `tests/test_a.py`: `test_S1_R2_x`\n"
    assert (
        renewed
        == f"# P\n\n## Store\n\n### S1\n\nKept.\n\n{line}\n## More\n\n### R2\n\nA.\n\n{line}"
    )
    assert list_tests(renewed, find_carriers(tmp_path)) == renewed
    assert read_promises(renewed) == {"S1": "Kept.", "R2": "A."}
