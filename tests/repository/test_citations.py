"""No file cites a document that is not in the repository: who reads it could not open that."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.documentation.test_links import anchors
from tests.repository.test_files import tracked

ROOT = Path(__file__).resolve().parents[2]
_EXAMPLES = Path(__file__).name  # this file holds bad examples
_TEXTS = "DESIGN|RELIABILITY|STYLE|SERVERS|LANGUAGE|NAMES|TRIALS|PERFORMANCE|CLI|SECURITY"
_LEADS_OUT = re.compile(
    r"\b(?:DESIGN|RELIABILITY)\b"
    rf"|\b(?:{_TEXTS})\.md\b"
    rf"|\b(?:{_TEXTS}),? (?:§|\d)"
    r"|(?<!RFC \d{4} )(?<!RFC \d{3} )§"
    r"|\b[Ii]ssues? #?\d"
    r"|\b(?:the|this) (?:brief|issue)\b",
)
_PAGE = re.compile(r"(?<![\w/])(docs/[\w/-]+\.md)(?:#([\w-]+))?")
_OURS = re.compile(r"(?<!\w)SECURITY\.md")  # the root's own


def leading_out(paths: Iterable[Path]) -> list[str]:
    """Returns `file:line: words` of each citation that leads out of the repository."""
    found = []
    for path in paths:
        if not path.is_file() or path.name == _EXAMPLES or path.suffix == ".txtpb":
            continue
        text = path.read_text()
        if not _LEADS_OUT.search(text):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            match = _LEADS_OUT.search(_OURS.sub("", line))
            if match:
                found.append(f"{path.name}:{number}: {match[0]}")
    return found


def test_no_citation_leads_out_of_the_repository() -> None:
    paths = tracked(ROOT)
    assert ROOT / "CONTRIBUTING.md" in paths
    assert leading_out(paths) == [], "cite an id of docs/guarantees.md, a page of docs/, or nothing"


def broken_pages(paths: Iterable[Path]) -> list[str]:
    """Returns `file: page#heading` of each page of docs/ that code cites and that is not there."""
    return [
        f"{path.name}: {match[0]}"
        for path in paths
        if path.suffix in {".py", ".proto"} and path.name != _EXAMPLES and path.is_file()
        for match in _PAGE.finditer(path.read_text())
        if not (ROOT / match[1]).exists() or (match[2] and match[2] not in anchors(ROOT / match[1]))
    ]


def test_the_pages_that_code_cites_are_there() -> None:
    assert broken_pages(tracked(ROOT)) == []


@pytest.mark.parametrize("page", ["docs/none.md", "docs/reference/errors.md#none"])
def test_a_page_that_is_not_there_is_found(tmp_path: Path, page: str) -> None:
    file = tmp_path / "a.py"
    file.write_text(f"# see {page}, docs/reference/errors.md and docs/guarantees.md#s11\n")
    assert broken_pages([file]) == [f"a.py: {page}"]


@pytest.mark.parametrize(
    "line",
    [
        "# as it must be (DESIGN §4)",
        "(RELIABILITY S21)",
        "see CLI.md",
        "(SECURITY 12, a forged token)",
        "§6 says",
        "names the kind (issue 4)",
        "as Issue #11 wants",
        "what the brief asks for",
    ],
)
def test_a_citation_that_leads_out_is_found(tmp_path: Path, line: str) -> None:
    file = tmp_path / "a.py"
    file.write_text(f"# fine\n{line}\n")
    assert [one.partition(": ")[0] for one in leading_out([file])] == ["a.py:2"]


@pytest.mark.parametrize(
    "line",
    [
        "never by the token (RFC 8725 §3.1), nor (RFC 793 §2)",
        "KIP-37, PIP-39, AIP-158, KAFKA-14265, CVE-2023-44487",
        "https://github.com/etcd-io/etcd/issues/15220",
        "NAMES = SERVERS",
        "SASL_SECURITY_PROTOCOL 12",
        "[SECURITY.md](SECURITY.md)",
        "authority.issue(name)",
        "found no issue of the library",
    ],
)
def test_a_public_document_and_a_name_are_not(tmp_path: Path, line: str) -> None:
    file = tmp_path / "a.py"
    file.write_text(line)
    assert leading_out([file]) == []
