"""What CONTRIBUTING.md names is there: files, make targets, tests, settings."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
_PATH = re.compile(
    r"(?<![\w/.~])(?:bench|deploy|directory|docs|proto|resolver|tests)/[\w./-]*[\w/]"
)
_TARGET = re.compile(r"(?:^|`)make ([a-z-]+)", re.MULTILINE)
_RULE = re.compile(r"^\| [^`|]+ \| (?P<modules>`.+`) \|$", re.MULTILINE)


def missing_paths(text: str) -> list[str]:
    """Returns the paths of the repository that a text names and that are not there."""
    return [one for one in _PATH.findall(text) if not (ROOT / one).exists()]


def missing_targets(text: str) -> list[str]:
    """Returns the targets that a text gives to make and that the Makefile does not have."""
    makefile = (ROOT / "Makefile").read_text()
    return [
        one
        for one in _TARGET.findall(text)
        if not re.search(rf"^{one}:.*## ", makefile, re.MULTILINE)
    ]


def test_the_paths_and_targets_are_there() -> None:
    text = PAGE.read_text()
    assert len(_PATH.findall(text)) > 60
    assert len(_TARGET.findall(text)) > 8
    assert missing_paths(text) == []
    assert missing_targets(text) == []


def test_each_rule_names_modules() -> None:
    section = PAGE.read_text().partition("## Where a rule is")[2].partition("\n## ")[0]
    rules = _RULE.findall(section)
    assert len(rules) > 20
    for modules in rules:
        for module in re.findall(r"`([^`]+)`", modules):
            assert (ROOT / module).is_file(), module


def test_the_filters_of_the_tests_that_are_shown_choose_some() -> None:
    shown = re.findall(r"pytest -q (tests/\S+\.py) +-k (\w+)", PAGE.read_text())
    assert shown
    for file, promise in shown:
        assert re.search(rf"def test_\w*{promise}", (ROOT / file).read_text()), (file, promise)


@pytest.mark.parametrize(
    "text", ["`resolver/nowhere.py`", "in tests/none.md.", ".venv/bin/pytest -q tests/none"]
)
def test_a_path_that_is_not_there_is_found(text: str) -> None:
    assert len(missing_paths(text)) == 1


def test_a_target_that_is_not_there_is_found() -> None:
    assert missing_targets("`make nothing` and make words") == ["nothing"]
