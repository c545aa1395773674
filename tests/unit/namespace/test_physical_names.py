"""Physical names: Kafka's rules, default names, the next free name, names asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from directory.namespace import physical_names
from resolver.errors import (
    InvalidPhysicalName,
    PhysicalNameCollides,
    PhysicalNameRetired,
    PhysicalNameTaken,
)


@dataclass
class Names:
    """A cluster's names as plain sets."""

    used: set[str] = field(default_factory=set)
    retired: dict[str, int] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)

    def owner(self, physical_name: str) -> str | None:
        return f"/{physical_name}" if physical_name in self.used else None

    def colliding(self, physical_name: str) -> str | None:
        alike = (n for n in sorted(self.used) if physical_names.has_collision(n, physical_name))
        return next((n for n in alike if n != physical_name), None)

    def retired_for_ms(self, physical_name: str) -> int:
        return self.retired.get(physical_name, 0)

    def detached(self, physical_name: str) -> str | None:
        alike = (n for n in sorted(self.left) if physical_names.has_collision(n, physical_name))
        return next(alike, None)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "empty"),
        (".", "no names"),
        ("..", "no names"),
        ("a" * 250, "250 characters; at most 249"),
        ("a b", "character ' ' at 2"),
        ("a/b", "character '/' at 2"),
        ("a\n", r"character '\n' at 2"),
        ("é", "character 'é' (U+00E9) at 1"),
        ("a\x00", r"character '\x00' at 2"),
        ("٣", "at 1"),  # a digit, but not one of Kafka's
    ],
)
def test_invalid_names_say_which_rule(name: str, rule: str) -> None:
    assert rule in (physical_names.why_invalid(name) or "")
    assert not physical_names.is_valid(name)


@pytest.mark.parametrize("name", ["a", "...", "a" * 249, "-", "_", "A.b_C-9"])
def test_valid_names(name: str) -> None:
    assert physical_names.is_valid(name)


@pytest.mark.parametrize(
    ("relative", "name"),
    [
        (("orders",), "orders"),
        (("search", "clicks"), "search.clicks"),
        (("a.b", "c"), "a.b.c"),
        # Too long a whole: the last segments that fit.
        (("x" * 200, "y" * 200, "z"), "y" * 200 + ".z"),
        (("x" * 100, "y" * 148), "x" * 100 + "." + "y" * 148),
        (("x" * 101, "y" * 148), "y" * 148),
        (("x", "y" * 249), "y" * 249),
    ],
)
def test_default_name(relative: tuple[str, ...], name: str) -> None:
    assert physical_names.default_physical_name(relative) == name
    assert physical_names.is_valid(name)


@pytest.mark.parametrize(("name", "legal"), [("", True), ("a-B_9.", True), ("a b", False)])
def test_an_empty_name_holds_no_illegal_character(name: str, *, legal: bool) -> None:
    assert physical_names.has_only_legal_characters(name) is legal


def test_free_name_passes_over_what_is_taken_retired_detached_or_collides() -> None:
    names = Names(used={"orders", "orders_3"}, retired={"orders.2": 5}, left={"orders.4"})
    assert physical_names.next_free_name("orders", names) == "orders.5"
    assert physical_names.next_free_name("clicks", names) == "clicks"


def test_free_name_keeps_to_the_length() -> None:
    long = "x" * 249
    names = Names(used={long, "x" * 247 + ".2"})
    assert physical_names.next_free_name(long, names) == "x" * 247 + ".3"


def test_free_name_avoids_what_kafka_takes_for_its_own() -> None:
    assert physical_names.next_free_name("_.consumer_offsets", Names()) == "_.consumer_offsets.2"


@pytest.mark.parametrize(
    "base", ["_.change_events.kc-1", "..change_history_kc-x", "__change_events.kc-"]
)
def test_free_name_avoids_the_names_of_all_change_logs(base: str) -> None:
    assert physical_names.next_free_name(base, Names()) == base.lstrip("._")


def test_a_name_that_is_free_is_used() -> None:
    physical_names.check_requested_name("orders", Names(used={"order"}), base="x")


@pytest.mark.parametrize(
    ("name", "error", "free"),
    [
        ("a b", InvalidPhysicalName, "base"),
        ("x" * 250, InvalidPhysicalName, "base"),
        ("__mine", InvalidPhysicalName, "base"),
        ("__consumer_offsets", InvalidPhysicalName, "base"),
        ("_.consumer.offsets", InvalidPhysicalName, "base"),
        ("taken", PhysicalNameTaken, "taken.2"),
        ("left", PhysicalNameTaken, "left.2"),
        ("in.use", PhysicalNameCollides, "in.use.2"),
        ("in_kafka", PhysicalNameCollides, "in_kafka.2"),
        ("old", PhysicalNameRetired, "old.2"),
    ],
)
def test_a_name_asked_for_is_refused_with_a_free_one(
    name: str, error: type[Exception], free: str
) -> None:
    names = Names(
        used={"taken", "in_use"}, retired={"old": 3 * 3600_000}, left={"left", "in.kafka"}
    )
    with pytest.raises(error) as raised:
        physical_names.check_requested_name(name, names, base="base")
    assert raised.value.metadata["free"] == free  # type: ignore[attr-defined]
    assert f"'{free}'" in str(raised.value)


def test_a_retired_name_says_for_how_long() -> None:
    with pytest.raises(PhysicalNameRetired, match="retired for 3 h more"):
        physical_names.check_requested_name(
            "old", Names(retired={"old": 3 * 3600_000 + 5}), base="b"
        )


def test_a_hostile_name_does_not_flood_the_message() -> None:
    with pytest.raises(InvalidPhysicalName) as raised:
        physical_names.check_requested_name("\x1b[2J" * 100_000, Names(), base="b")
    assert len(str(raised.value)) < 400
    assert "\x1b" not in str(raised.value)
