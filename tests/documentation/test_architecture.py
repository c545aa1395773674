"""docs/architecture.md has a line for each package, and none for what is not there."""

import re
from pathlib import Path

from tests.repository.test_files import tracked

ROOT = Path(__file__).resolve().parents[2]
_ROW = re.compile(r"^\| `([\w/]+/)` \| \S.+ \|$", re.MULTILINE)
_WITH_FOLDERS = ("deploy", "tests")  # there each first folder counts, a package or not
_ALONE = {"bench/", "proto/kdir/v1/"}


def packages() -> set[str]:
    """Returns the packages of the four trees, and the first folders of two of them."""
    found = set()
    for path in tracked(ROOT):
        parts = path.relative_to(ROOT).parts
        if parts[0] in {"directory", "resolver", "deploy"} and parts[-1] == "__init__.py":
            found.add("/".join(parts[:-1]))
        if parts[0] in _WITH_FOLDERS:
            found.add("/".join(parts[: min(2, len(parts) - 1)]))
    return {f"{one}/" for one in found}


def test_each_package_has_one_line() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = _ROW.findall(page.partition("## Packages")[2].partition("\n## ")[0])
    assert len(rows) == len(set(rows))
    assert set(rows) == packages() | _ALONE


def test_each_helper_of_the_tests_has_its_line_in_their_index() -> None:
    support = ROOT / "tests" / "support"
    listed = re.findall(r"^\| `(\w+\.py)` \|", (support / "README.md").read_text(), re.MULTILINE)
    assert listed == sorted(file.name for file in support.glob("*.py"))
