"""Commands that errors, hints and help suggest in ``resolver/`` and ``directory/`` are commands."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from resolver.cli.parser import UsageError, Verb, parse
from resolver.cli.registry import GROUPS, load_verb

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("resolver", "directory")
VERBS = {name for names in GROUPS.values() for name in names}
VALUE = "\x00"
"""Stands for what an f-string puts in."""

PROSE = frozenset(
    {
        "alone", "and", "are", "already", "asks", "can", "changes", "created", "creates", "did",
        "does", "for", "found", "has", "is", "it", "knows", "made", "makes", "may", "must", "needs",
        "never", "of", "or", "reads", "removed", "sets", "stops", "supports", "they", "to", "was",
        "will", "would", "wrote",
    }
)  # fmt: skip
"""What follows the name where a sentence speaks of kdir itself. No verb is among them."""

_COMMAND = re.compile(r"(?<![.\w/-])kdir(?P<rest>(?: (?!\()[^\s;,()`|<>]+)+)")
_ENDS = (".", ":", "'", '"')


class Suggestion(NamedTuple):
    """A command within a text of a source file."""

    where: str
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.where}: kdir {' '.join(self.parts)}".replace(VALUE, "…")


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields all texts but docstrings, each with its line; f-strings with ``VALUE`` in them."""
    nodes = list(ast.walk(tree))
    skipped = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield (
                node.lineno,
                "".join(
                    part.value
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                    else VALUE
                    for part in node.values
                ),
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in skipped
        ):
            yield node.lineno, node.value


def suggestions(text: str, where: str) -> Iterator[Suggestion]:
    """Yields the commands of one text, and what looks like one."""
    for line in text.split("\n"):
        for found in _COMMAND.finditer(line.replace("kdir[", "kdir-[")):
            parts: list[str] = []
            for part in found["rest"].split():
                if part == "kdir":
                    break
                ended = part.endswith(_ENDS) and not part.startswith("sqlite:")
                parts.append(part.rstrip(".:") if ended else part)
                if ended and part[-1] in ".:":
                    break
            yield Suggestion(where, tuple(parts))


@cache
def all_suggestions() -> list[Suggestion]:
    """Returns those of all sources."""
    found = []
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            for line, text in texts(ast.parse(file.read_text())):
                where = f"{file.relative_to(ROOT)}:{line}"
                found += list(suggestions(text, where))
    return found


def complaint(one: Suggestion) -> str:
    """Returns why the parts are no command; empty = they are one, or prose."""
    name, rest = one.parts[0], list(one.parts[1:])
    if name in PROSE or VALUE in name or not name[:1].isalpha() or name == "VERB":
        return ""
    verb = load_verb(name)
    if verb is None:
        return "no such verb; a sentence about kdir itself: PROSE"
    known = {option for each in verb.all_options() for option in each.names}
    for part in rest:
        flag = part.strip("'\"").partition("=")[0].partition(VALUE)[0]
        if flag.startswith("--") and flag != "--" and flag not in known:
            return f"no such option: {flag}"
    return _misfit(verb, rest)


def _misfit(verb: Verb, rest: list[str]) -> str:
    """Returns what the grammar has against the arguments, but for what is left out of a hint and
    for a sentence that goes on behind it.
    """
    try:
        parts = shlex.split(" ".join(rest))
    except ValueError:
        parts = rest
    while True:
        try:
            parse(verb, parts)
        except UsageError as error:
            if "unexpected argument" in error.message and parts:
                parts = parts[:-1]
                continue
            if "is required" in error.message or "needs a value" in error.message:
                return ""
            if any(VALUE in part and repr(part) in error.message for part in parts):
                return ""  # it is known only when it is printed
            return error.message
        return ""


def test_commands_are_suggested() -> None:
    assert len(all_suggestions()) > 150


def test_each_suggested_command_is_one() -> None:
    wrong = [f"{one}: {why}" for one in all_suggestions() if (why := complaint(one))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("to create it: kdir make /la", "no such verb"),
        ("dry run: kdir rm --dry-run /la", "no such option: --dry-run"),
        ("to go on: kdir features finalise", "was expected"),
        ("dry run: kdir rm --plan /la; kdir mounts", ""),
        ("kdir has no such thing", ""),
    ],
)
def test_a_suggestion_that_is_no_command_is_found(text: str, expected: str) -> None:
    found = [complaint(one) for one in suggestions(text, "here")]
    assert expected in "".join(found)
    assert bool("".join(found)) == bool(expected)


def test_no_verb_is_prose() -> None:
    assert not VERBS & PROSE
