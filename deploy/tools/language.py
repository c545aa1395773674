"""Finds names, docstrings, comments, messages and pages that are not in the terms of the glossary.

``tests/repository/test_language.py`` fails where it finds any.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

__all__ = [
    "findings",
    "messages",
    "misnamed",
    "prose",
    "remarks",
    "retired_terms",
    "undescribed",
]

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("resolver", "directory", "deploy", "bench", "tests")

_VERBS: Final = """
aborts accepts accounts acknowledges acts adds adopts advances allows alters announces answers
appends applies arms asks asserts assigns attaches attempts authenticates authorizes begins binds
blocks breaks brings builds bumps caches calls campaigns cancels carries changes checks chooses
claims clamps clears closes collects combines comes commits compacts compares compiles completes
computes configures confirms connects consumes converts copies counts creates cuts deals decides
decodes deletes delivers describes detaches dials disarms does downloads draws drops dumps elects
empties encodes ends enters evaluates executes expands expects explains exports extends fails
fetches fills finalizes finds finishes flushes follows forgets formats forwards frees gathers
generates gives goes grants grows guards handles hands has hides holds implements imports increments
inserts installs interrupts invalidates issues iterates joins judges keeps kills leaves lets limits
links lists loads locates locks logs looks maintains makes maps marks matches measures merges
migrates mounts moves names notes notifies observes opens orders parses passes patches pauses pins
places plans polls postpones prepares prevents prints probes processes produces provisions publishes
puts queries raises re-reads reads rebuilds receives reconnects records redacts reduces refers
refreshes refuses registers rejects releases reloads remembers removes renames renders renews
repeats replaces replays replies reports requests requires reserves resets resigns resolves restarts
restores resumes retires retries returns reverts revokes rewrites rotates rounds runs samples saves
scans schedules seals searches selects sends serves sets settles shows shuts signals skips sleeps
sorts spends splits starts stays stops stores streams strips submits subscribes sums suspends swaps
sweeps takes tests touches traces translates traverses tries trims turns undoes unlocks unmounts
unseals unsets updates uses validates verifies visits waits wakes walks watches withdraws works
wraps writes yields
"""
VERBS: Final = frozenset(_VERBS.split())
"""What a function's docstring may begin with; a new verb is added here."""

_OTHERS: Final = """
what whether how who whom whose where when why which if as for with of to on by around without
true everything nothing something somebody nobody it this that these those there so not one's
"""
_NO_NOUNS: Final = frozenset(_OTHERS.split())
"""What a class's docstring may not begin with, beside a verb."""

_SHIPPED: Final = ("resolver", "directory")
"""The packages whose string constants people read (output, errors, help, log lines). Retired words
are looked for in these, and in the docstrings and comments of these packages.
"""
_PAGES: Final = ("docs/", "proto/", "README.md", "CONTRIBUTING.md", "SECURITY.md")
_RECORDS: Final = ("docs/decisions/", "docs/glossary.md")
"""A decision keeps the wording of its day; the glossary has the retired words themselves."""

_CODE: Final = re.compile(r"^```.*?^```|`[^`]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)
_OPTION: Final = re.compile(r"--[a-z-]+")
_REFUSAL: Final = re.compile(r"\brefuses\s+to\b", re.IGNORECASE)
"""What no module's docstring may hold: it names what the module is responsible for."""
_PARTS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_ROW: Final = re.compile(r"^\|((?: `\w+`,?)+) \|")


def retired_terms(text: str) -> frozenset[str]:
    """Returns the words of the glossary's table of retired words."""
    _, _, table = text.partition("## Retired words")
    return frozenset(
        term
        for line in table.splitlines()
        if (row := _ROW.match(line)) is not None
        for term in re.findall(r"`(\w+)`", row[1])
    )


@lru_cache(maxsize=1)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


@lru_cache(maxsize=1)
def _nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Returns the nodes of a module that have fields (``Load``, say, has none). They are cached for
    all checks, and found without ``ast.walk``, which took most of the time.
    """
    found: list[ast.AST] = [tree]
    for node in found:  # the list grows meanwhile
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                found += [one for one in value if isinstance(one, ast.AST) and one._fields]
            elif isinstance(value, ast.AST) and value._fields:
                found.append(value)
    return tuple(found)


def messages(tree: ast.Module) -> list[str]:
    """Returns the string constants that may be read by people: those with a blank in them.

    Docstrings, names of options and scripts for a shell are left out.
    """
    docstrings = {
        id(one.value)
        for node in _nodes(tree)
        for one in (node.body if isinstance(getattr(node, "body", None), list) else ())  # type: ignore[attr-defined]
        if isinstance(one, ast.Expr)
    }
    return [
        _OPTION.sub("", node.value)
        for node in _nodes(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and " " in node.value
        and not node.value.startswith("#")
        and id(node) not in docstrings
    ]


def remarks(text: str) -> list[str]:
    """Returns the docstrings, of attributes too, and the comments of a module."""
    docstrings = [
        node.value.value
        for node in _nodes(_parsed(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return [_CODE.sub("", one.replace("``", "`")) for one in (*docstrings, *comments)]


def prose(page: str) -> str:
    """Returns a page, or a file of the contract, without code and targets of links."""
    return _CODE.sub("", page)


def _count_retired(texts: Iterable[str], terms: frozenset[str]) -> int:
    return sum(part.lower() in terms for text in texts for part in re.findall(r"[A-Za-z]+", text))


def _identifiers(tree: ast.Module) -> Iterator[str]:
    for node in _nodes(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
            case ast.alias(asname=str(name)):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.ExceptHandler(name=str(name)):
                yield name
            case _:
                pass


def misnamed(tree: ast.Module, terms: frozenset[str]) -> set[str]:
    """Returns the identifiers that a module binds and of which a retired word is a part."""
    return {
        name
        for name in _identifiers(tree)
        if not terms.isdisjoint(part.lower() for part in _PARTS.findall(name))
    }


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    marks = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
    return not marks.isdisjoint({"property", "cached_property", "setter"})


def _begins_well(node: ast.AST, docstring: str) -> bool:
    first, _, rest = docstring.partition(" ")
    begin = first.strip(",.:;").lower()
    if isinstance(node, ast.ClassDef):
        return begin not in _NO_NOUNS and begin not in VERBS
    if first == "True":
        return rest.startswith("if")
    return begin in VERBS or docstring.startswith("Context manager")


def undescribed(tree: ast.Module) -> list[str]:
    """Returns the public classes and functions whose docstring does not begin as it should.

    A function's begins with a verb in the third person, or with "True if"; a class's with a noun.
    Properties are described as attributes are, tests by their names.
    """
    found: list[str] = []

    def visit(node: ast.AST, prefix: str) -> None:
        for one in ast.iter_child_nodes(node):
            match one:
                case ast.ClassDef(name=name) if not name.startswith("_"):
                    docstring = ast.get_docstring(one)
                    if docstring and not _begins_well(one, docstring):
                        found.append(prefix + name)
                    visit(one, f"{prefix}{name}.")
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    if name.startswith(("_", "test_")) or _is_property(one):
                        continue
                    docstring = ast.get_docstring(one)
                    if docstring and not _begins_well(one, docstring):
                        found.append(prefix + name)
                case ast.If() | ast.Try():
                    visit(one, prefix)
                case _:
                    pass

    visit(tree, "")
    return found


def _tracked() -> Iterator[str]:
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    for path in sorted(set(done.stdout.split("\0"))):
        is_module = path.endswith(".py") and path.split("/")[0] in PACKAGES
        is_page = path.endswith((".md", ".proto")) and path.startswith(_PAGES)
        if (is_module and "_pb2" not in path) or (is_page and not path.startswith(_RECORDS)):
            yield path


def findings(paths: Iterable[str] | None = None, root: Path = ROOT) -> Counter[str]:
    """Returns the counts of findings, by identifier and by file; empty if all is in the terms."""
    terms = retired_terms((ROOT / "docs" / "glossary.md").read_text())
    found: Counter[str] = Counter()
    for path in _tracked() if paths is None else paths:
        if not (root / path).is_file():
            continue
        text = (root / path).read_text()
        if not path.endswith(".py"):
            found[f"texts {path}"] = _count_retired([prose(text)], terms)
            continue
        tree = _parsed(text)
        if path.split("/")[0] in _SHIPPED and _REFUSAL.search(ast.get_docstring(tree) or ""):
            found[f"refusals {path}"] += 1
        for name in misnamed(tree, terms):
            found[f"identifier {name}"] += 1
        found[f"docstrings {path}"] = len(undescribed(tree))
        if path.split("/")[0] in _SHIPPED:
            found[f"texts {path}"] = _count_retired(messages(tree), terms)
            found[f"remarks {path}"] = _count_retired(remarks(text), terms)
    return +found
