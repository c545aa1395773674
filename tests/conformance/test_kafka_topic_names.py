"""Kafka's topic-name rules, by the cases of its own tests (``kafka_topic_names.tsv``)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from directory.namespace import physical_names
from tests.conformance.cases import NOT_UNDERSTOOD, Row, assert_same, cases, run

_REPEAT = re.compile(r'REPEAT\((".*"),\s*(\d+)\)')
_ONE = {
    "validate": lambda name: "VALID" if physical_names.is_valid(name) else "INVALID",
    "has_only_legal_characters": physical_names.has_only_legal_characters,
    "has_collision_chars": physical_names.has_collision_chars,
    "unify": physical_names.unify,
}


def read(text: str) -> Iterator[Row]:
    """Yields the rows of the table: names are JSON strings, or REPEAT("a",n)."""
    # A name may hold, unescaped, what else ends a line to str.splitlines().
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    header = lines[0].split("\t")
    for line in lines[1:]:
        cells = line.split("\t")
        yield dict(zip(header, cells + [""] * (len(header) - len(cells)), strict=False))


def category(row: Row) -> str | None:
    return None if row["check"] in {*_ONE, "has_collision"} else NOT_UNDERSTOOD


def name_of(text: str) -> str:
    repeat = _REPEAT.fullmatch(text)
    if repeat:
        return name_of(repeat[1]) * int(repeat[2])
    name = json.loads(text)
    assert isinstance(name, str), f"{text} is no name"
    return name


def check(row: Row) -> None:
    """Holds kdir to one row."""
    name, wanted = name_of(row["name_a"]), row["expected"]
    if row["check"] == "has_collision":
        assert physical_names.has_collision(name, name_of(row["name_b"])) is json.loads(wanted)
        return
    found = _ONE[row["check"]](name)
    if row["check"] == "unify":
        assert found == name_of(wanted)
    else:
        assert_same(found, wanted if row["check"] == "validate" else json.loads(wanted))


@pytest.mark.parametrize("row", cases("kafka_topic_names", "kafka_topic_names.tsv", read, category))
def test_row(row: Row) -> None:
    run(check, row)
