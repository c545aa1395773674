"""docs/README.md leads to every page, by question; each how-to begins with its question."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(?:#[^)\s]*)?\)")


def test_the_index_leads_to_every_page() -> None:
    text = (DOCS / "README.md").read_text()
    linked = {(DOCS / match["target"]).resolve() for match in _LINK.finditer(text)}
    pages = {page for page in DOCS.rglob("*.md") if page.parent.name != "decisions"}
    assert pages - linked - {DOCS / "README.md"} == set()
    assert DOCS / "decisions" / "README.md" in linked


@pytest.mark.parametrize("page", sorted((DOCS / "how-to").glob("*.md")), ids=lambda page: page.name)
def test_each_how_to_begins_with_its_question(page: Path) -> None:
    assert re.match(r"# .+\n\n\*.+\?(?: .+)?\*\n\n", page.read_text())


def test_the_readme_leads_to_the_index() -> None:
    assert "(docs/README.md)" in (ROOT / "README.md").read_text()
