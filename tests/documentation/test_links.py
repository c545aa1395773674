"""Links between the project's pages lead to files and headings that are there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """Returns every page of ours."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")),
            *sorted((ROOT / "deploy").rglob("*.md"))]  # fmt: skip


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, by the rule of the forges."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in found}


def broken(page: Path) -> Iterator[str]:
    """Links of a page that lead nowhere."""
    for match in _LINK.finditer(_FENCE.sub("", page.read_text())):
        target, _, anchor = match["target"].partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        place = (page.parent / target).resolve() if target else page
        if not place.exists() or (anchor and anchor not in anchors(place)):
            yield match["target"]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


@pytest.mark.parametrize("link", ["nowhere.md", "other.md#no-such", "#no-such"])
def test_a_broken_link_is_found(tmp_path: Path, link: str) -> None:
    (tmp_path / "other.md").write_text("# A heading\n")
    page = tmp_path / "page.md"
    page.write_text(f"# Mine\n[this]({link}) and [that](other.md#a-heading) and [own](#mine)\n")
    assert list(broken(page)) == [link]


def test_every_decision_is_listed_and_numbered_once() -> None:
    folder = ROOT / "docs" / "decisions"
    files = sorted(path.name for path in folder.glob("[0-9]*.md"))
    listed = re.findall(r"\((\d{4}-[a-z0-9-]+\.md)\)", (folder / "README.md").read_text())
    assert listed == files
    assert [name[:4] for name in files] == [f"{number:04}" for number in range(1, len(files) + 1)]


def test_the_files_that_the_architecture_names_are_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([\w/.]+\.py|[\w/]+/)`", page))
    assert len(named) > 30
    places = [ROOT / "resolver", ROOT / "directory", ROOT]
    missing = [
        name
        for name in sorted(named)
        if not any((place / name).exists() or list(place.rglob(name)) for place in places)
    ]
    assert missing == []
