"""Lists in docs/guarantees.md which tests carry each promise; `make docs` runs it.

A test carries a promise by the id in its name: `test_S1_S2_…` carries S1 and S2.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["PAGE", "cited_in_python", "find_carriers", "list_tests", "read_promises"]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
ID = re.compile(r"(?<![\w/#-])([SRAPNGK]\d{1,2})(?![\w-])")
_IN_NAME = re.compile(r"(?<=_)[SRAPNGK]\d{1,2}(?=_)")
_TEST = re.compile(r"^ *def (test_\w+)\(", re.MULTILINE)
_SECTION = re.compile(r"^### (?P<id>\w+)\n(?P<body>.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_TESTS = re.compile(r"^\* `tests/.*\n", re.MULTILINE)

Carriers = Mapping[str, Mapping[str, list[str]]]
"""Names of test functions by promise and file."""


def find_carriers(root: Path = ROOT) -> Carriers:
    """Returns the tests that carry each promise, in the order of files and lines."""
    found: dict[str, dict[str, list[str]]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        for name in _TEST.findall(path.read_text()):
            for promise in _IN_NAME.findall(name):
                of_files = found.setdefault(promise, {})
                of_files.setdefault(str(path.relative_to(root)), []).append(name)
    return found


def read_promises(page: str) -> dict[str, str]:
    """Returns the text of each promise of the page, by id, without its tests."""
    return {
        section["id"]: _TESTS.sub("", section["body"]).strip()
        for section in _SECTION.finditer(page)
    }


def list_tests(page: str, carriers: Carriers) -> str:
    """Returns the page with each promise's list of tests brought up to date."""

    def renew(section: re.Match[str]) -> str:
        text = _TESTS.sub("", section["body"]).strip()
        lines = [
            f"* `{file}`: {', '.join(f'`{name}`' for name in names)}\n"
            for file, names in carriers.get(section["id"], {}).items()
        ]
        return f"### {section['id']}\n\n{text}\n\n{''.join(lines)}\n"

    return _SECTION.sub(renew, page).rstrip("\n") + "\n"


def cited_in_python(source: str) -> Iterator[tuple[int, str]]:
    """Yields line and text of all comments and docstrings; none if the source has no id at all."""
    if not ID.search(source):
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
            case _:
                pass


if __name__ == "__main__":
    PAGE.write_text(list_tests(PAGE.read_text(), find_carriers()))
