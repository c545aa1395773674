"""Physical names: whatever a path and whatever is taken, a valid free name comes of it."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from directory.namespace import physical_names
from directory.namespace.protected_topics import is_protected
from resolver.errors import KdirError
from resolver.path import MAX_SEGMENT_LENGTH

LEGAL = "abcXYZ019._-"
SEGMENT = st.text(LEGAL, min_size=1, max_size=MAX_SEGMENT_LENGTH).filter(
    lambda name: name not in {".", ".."}
)
NAME = st.text("ab._-", min_size=1, max_size=4)


@dataclass
class Used:
    """Plain sets of names in use, retired and left alone."""

    used: frozenset[str]
    retired: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()

    def owner(self, physical_name: str) -> str | None:
        return "/somewhere" if physical_name in self.used else None

    def colliding(self, physical_name: str) -> str | None:
        alike = (one for one in self.used if one != physical_name)
        return next(
            (one for one in alike if physical_names.has_collision(one, physical_name)), None
        )

    def retired_for_ms(self, physical_name: str) -> int:
        return int(physical_name in self.retired)

    def detached(self, physical_name: str) -> str | None:
        return next(
            (one for one in self.left if physical_names.has_collision(one, physical_name)), None
        )


USED = st.builds(Used, *(st.frozensets(NAME, max_size=6) for _ in range(3)))


@given(st.lists(SEGMENT, min_size=1, max_size=20))
def test_every_path_has_a_default_name_that_kafka_takes(segments: list[str]) -> None:
    name = physical_names.default_physical_name(segments)
    assert physical_names.is_valid(name)
    whole = ".".join(segments)
    assert whole.endswith(name)
    assert name == whole or len(whole) > physical_names.MAX_NAME_LENGTH
    assert name.endswith(segments[-1])


@given(NAME, USED)
def test_a_free_name_is_free_and_asking_for_it_is_allowed(base: str, used: Used) -> None:
    name = physical_names.next_free_name(base, used)
    assert physical_names.is_valid(name)
    assert name not in used.retired
    for other in (*used.used, *used.left):
        assert not physical_names.has_collision(name, other)
    if not name.startswith("__") and not is_protected(name):
        physical_names.check_requested_name(name, used, base="x")


@given(st.one_of(NAME, st.text(max_size=300)), USED)
def test_a_refusal_names_a_name_that_is_free(asked: str, used: Used) -> None:
    try:
        physical_names.check_requested_name(asked, used, base="base")
    except KdirError as error:
        offered = error.metadata["free"]
        if not offered.startswith("__") and not is_protected(offered):
            physical_names.check_requested_name(offered, used, base="base")
    else:
        assert physical_names.is_valid(asked)
        assert asked not in used.used | used.retired | used.left


@given(st.text(max_size=260))
def test_validity_is_kafkas_rule(name: str) -> None:
    plainly = (
        0 < len(name) <= 249
        and name not in {".", ".."}
        and all(c.isascii() and (c.isalnum() or c in "._-") for c in name)
    )
    assert physical_names.is_valid(name) == plainly


@given(NAME, NAME)
def test_collision_is_an_equivalence_by_two_characters(name: str, other: str) -> None:
    alike = name.replace(".", "_") == other.replace(".", "_")
    assert (
        physical_names.has_collision(name, other)
        == physical_names.has_collision(other, name)
        == alike
    )
    assert physical_names.unify(physical_names.unify(name)) == physical_names.unify(name)
