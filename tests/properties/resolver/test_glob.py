"""Globs against the plainest matcher there is: recursion over all possibilities."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from resolver.glob import Glob


def naive_segment(pattern: str, name: str) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(naive_segment(pattern[1:], name[taken:]) for taken in range(len(name) + 1))
    if pattern[0] == "[":
        end = pattern.index("]", 3 if pattern[1] in "!^" else 2)
        inside = pattern[1:end]
        if not name:
            return False
        return in_set(inside, name[0]) and naive_segment(pattern[end + 1 :], name[1:])
    if not name or pattern[0] not in {"?", name[0]}:
        return False
    return naive_segment(pattern[1:], name[1:])


def in_set(inside: str, character: str) -> bool:
    if inside[0] in "!^":
        return not in_set(inside[1:], character)
    found = False
    while inside:
        if len(inside) > 2 and inside[1] == "-":
            found |= inside[0] <= character <= inside[2]
            inside = inside[3:]
        else:
            found |= character == inside[0]
            inside = inside[1:]
    return found


def naive(pattern: Sequence[str], segments: Sequence[str]) -> bool:
    if not pattern:
        return not segments
    if pattern[0] == "**":
        return any(naive(pattern[1:], segments[taken:]) for taken in range(len(segments) + 1))
    if not segments or not naive_segment(pattern[0], segments[0]):
        return False
    return naive(pattern[1:], segments[1:])


# Few letters, so that patterns and names meet often.
NAMES = st.text("ab-.", min_size=1, max_size=6).filter(lambda name: name not in {".", ".."})
SETS = st.builds(
    lambda inverse, first, rest: f"[{inverse}{first}{rest}]",
    st.sampled_from(["", "!", "^"]),
    st.sampled_from(["a", "]", "-", "a-b", "--a"]),
    st.sampled_from(["", "b", "-", "a-b", "."]),
)
PIECES = st.one_of(st.sampled_from(["a", "b", "-", "?", "*"]), SETS)
SEGMENTS = (
    st.lists(PIECES, min_size=1, max_size=6)
    .map("".join)
    .filter(lambda pattern: "**" not in pattern)
)
PATTERNS = st.lists(st.one_of(SEGMENTS, st.just("**")), min_size=1, max_size=5)


@given(SEGMENTS, NAMES)
@settings(max_examples=800)
def test_a_segment_matches_as_the_oracle_says(pattern: str, name: str) -> None:
    assert Glob.parse(pattern).matches_segment(name) == naive_segment(pattern, name)


@given(PATTERNS, st.lists(NAMES, max_size=5))
@settings(max_examples=800)
def test_a_path_matches_as_the_oracle_says(pattern: list[str], segments: list[str]) -> None:
    glob = Glob.parse("/".join(pattern))
    assert glob.matches(segments) == naive(pattern, segments)
    assert Glob.parse("/" + "/".join(pattern)).matches(segments) == glob.matches(segments)


@given(PATTERNS, st.lists(NAMES, min_size=1, max_size=4))
@settings(max_examples=400)
def test_whatever_matches_begins_with_the_prefix(pattern: list[str], segments: list[str]) -> None:
    glob = Glob.parse("/".join(pattern))
    if glob.matches(segments):
        assert segments[0].startswith(glob.prefix)


@given(st.lists(NAMES, min_size=1, max_size=5))
def test_a_plain_path_matches_itself_alone(segments: list[str]) -> None:
    glob = Glob.parse("/".join(segments))
    assert glob.matches(segments)
    assert not glob.matches([*segments, "a"])
    assert not glob.matches(segments[:-1])
