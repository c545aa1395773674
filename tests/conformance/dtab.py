"""Finagle's rules as the cases write them (``/s => /a | 3 * /b & ~``), read into plain values.

Only the cases' notation: kdir has no such language, and these readers are tests' own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Leaf",
    "Many",
    "Nothing",
    "Tree",
    "Weighted",
    "leaves",
    "nodes",
    "rule",
    "tree",
    "weighted",
]


@dataclass(frozen=True)
class Leaf:
    """A path, as its segments."""

    segments: tuple[str, ...]


@dataclass(frozen=True)
class Nothing:
    """``~`` there is no such name, ``$`` it is bound to nothing, ``!`` it fails."""

    sign: Literal["~", "$", "!"]


@dataclass(frozen=True)
class Many:
    """``|`` the first that is there, or ``&`` all of them."""

    sign: Literal["|", "&"]
    branches: tuple[Tree, ...]


@dataclass(frozen=True)
class Weighted:
    """A branch of a union with a weight."""

    branch: Tree


Tree = Leaf | Nothing | Many | Weighted

_TOKEN = re.compile(r"\s*(?:#[^\n]*\n?\s*)*(/[^\s|&()=;]*|[~$!|&()]|[\d.]+\s*\*)")


def segments(text: str) -> tuple[str, ...]:
    """Returns ``/a/b`` as ``("a", "b")``."""
    return tuple(text.removeprefix("/").split("/")) if text != "/" else ()


def rule(text: str) -> tuple[tuple[str, ...], Tree]:
    """Returns the prefix and the tree of ``prefix => tree``."""
    prefix, _, destination = text.partition("=>")
    return segments(prefix.strip()), tree(destination)


def tree(text: str) -> Tree:
    """Returns the tree that a text writes."""
    tokens = list(_tokens(text))
    found = _many(tokens, "|")
    if tokens:
        raise ValueError(f"{text!r}: {tokens[-1]!r} is left over")
    return found


def leaves(of: Tree) -> Iterator[Tree]:
    """Yields what a tree is made of at its ends."""
    match of:
        case Many(branches=branches):
            for branch in branches:
                yield from leaves(branch)
        case Weighted(branch=branch):
            yield from leaves(branch)
        case _:
            yield of


def nodes(of: Tree, sign: str) -> Iterator[Many]:
    """Yields the fallbacks (``|``) or unions (``&``) in a tree."""
    if isinstance(of, Many):
        if of.sign == sign:
            yield of
        for branch in of.branches:
            yield from nodes(branch, sign)


def weighted(of: Tree) -> bool:
    """True if any branch has a weight."""
    match of:
        case Many(branches=branches):
            return any(weighted(branch) for branch in branches)
        case Weighted():
            return True
        case _:
            return False


def _tokens(text: str) -> Iterator[str]:
    # In reverse, so that the next one is popped off the end.
    at, found = 0, []
    text = text.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError(f"{text!r}: cannot be read at {at}")
        found.append(token[1])
        at = token.end()
    yield from reversed(found)


def _many(tokens: list[str], sign: Literal["|", "&"]) -> Tree:
    def one() -> Tree:
        return _many(tokens, "&") if sign == "|" else _one(tokens)

    branches = [one()]
    while tokens and tokens[-1] == sign:
        tokens.pop()
        branches.append(one())
    return branches[0] if len(branches) == 1 else Many(sign, tuple(branches))


def _one(tokens: list[str]) -> Tree:
    if not tokens:
        raise ValueError("a branch is missing")
    token = tokens.pop()
    if token == "(":
        inner = _many(tokens, "|")
        if not tokens or tokens.pop() != ")":
            raise ValueError("a bracket is not closed")
        return inner
    if token in {"~", "$", "!"}:
        return Nothing(token)  # type: ignore[arg-type]
    if token.endswith("*"):
        return Weighted(_one(tokens))
    if token.startswith("/"):
        return Leaf(segments(token))
    raise ValueError(f"{token!r} is no branch")
