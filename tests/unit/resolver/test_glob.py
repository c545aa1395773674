"""Globs: cases that a person can check, and what bad ones are told."""

from __future__ import annotations

import pytest

from resolver.errors import InvalidArgument
from resolver.glob import Glob


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("clicks", "clicks", True),
        ("/la/clicks", "la/clicks", True),
        ("click*", "clicks", True),
        ("click*", "click", True),
        ("*click*", "search.clicks", True),
        ("*", "", False),
        ("a/b", "a/bc", False),
        ("a/*", "a/b/c", False),
        ("a/**", "a", True),
        ("a/**", "a/b/c", True),
        ("a/**", "ab/c", False),
        ("**/clicks", "clicks", True),
        ("**/clicks", "la/search/clicks", True),
        ("**", "", True),
        ("**/**", "a", True),
        ("a/**/b/**/c", "a/b/b/c", True),
        ("a/**/b/**/c", "a/c/b", False),
        ("click?", "clicks", True),
        ("click?", "click", False),
        ("[a-c]x", "bx", True),
        ("[!a-c]x", "bx", False),
        ("[^a-c]x", "dx", True),
        ("[a-]", "-", True),
        ("[-a]", "-", True),
        ("[]", "]", None),
        ("[]a]", "a", True),
        ("*[0-9]", "topic.7", True),
        ("*[0-9]", "topic.x", False),
        ("*?b*", "ab", True),
        ("*?b*", "b", False),
        ("[A-z]", "b", True),
    ],
)
def test_cases(pattern: str, path: str, expected: bool | None) -> None:
    segments = tuple(path.split("/")) if path else ()
    if expected is None:
        with pytest.raises(InvalidArgument):
            Glob.parse(pattern)
        return
    assert Glob.parse(pattern).matches(segments) is expected


@pytest.mark.parametrize(
    ("pattern", "place", "arguments"),
    [
        ("", 1, "empty"),
        ("/", 1, "empty"),
        ("a//b", 3, "empty segment"),
        ("a/", 3, "empty segment"),
        ("a/../b", 3, "'..' is no segment"),
        ("a/b**", 4, "whole segment"),
        ("a/***", 3, "whole segment"),
        ("a/[bc", 3, "never closed"),
        ("a/[]", 3, "never closed"),
        ("a/[b/c]", 3, "never closed"),
        ("a/[z-a]", 4, "backwards"),
        ("a/b c", 4, "in no name"),
        ("a/\\*", 3, "in no name"),
        ("a/[b ]", 5, "in no name"),
        ("clicks\0", 7, "in no name"),
        ("a" * 1025, 1025, "1024"),
        ("/".join("a" * 65), 1, "65 segments"),
    ],
)
def test_a_bad_glob_names_the_place_and_the_rule(pattern: str, place: int, arguments: str) -> None:
    with pytest.raises(InvalidArgument, match=f"character {place}: ") as caught:
        Glob.parse(pattern)
    assert arguments in caught.value.message
    assert caught.value.metadata["place"] == str(place)


def test_many_stars_do_not_multiply() -> None:
    # A backtracking matcher needs about 249**30 steps here; a failing one would never end.
    glob = Glob.parse("*a" * 30 + "b")
    assert not glob.matches_segment("a" * 249)
    assert not Glob.parse("*[ab]?" * 30 + "c").matches_segment("a" * 249)
    assert not Glob.parse("/".join(["**", "a*"] * 20 + ["c"])).matches(["ab"] * 60)


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("click*", "click"),
        ("*", ""),
        ("a?", "a"),
        ("a[b]", "a"),
        ("clicks", "clicks"),
        ("**/a", ""),
    ],
)
def test_prefix(pattern: str, prefix: str) -> None:
    assert Glob.parse(pattern).prefix == prefix
