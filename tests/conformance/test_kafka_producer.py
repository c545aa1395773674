"""Kafka's rules for a producer's settings, by the cases of its own tests
(``kafka_idempotent_producer_config.json``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from resolver.errors import InvalidArgument
from resolver.kafka.client_settings import SettingLayer, producer_settings
from tests.conformance.cases import NOT_UNDERSTOOD, Row, cases, run, section_rows

_SAME = {"all": "-1"}
"""Kafka's producer says -1 for all."""


def read(text: str) -> Iterator[Row]:
    return section_rows(text, ())


def category(row: Row) -> str | None:
    known = row["section"] == "cases" and "props" in row and "expected" in row
    return None if known else NOT_UNDERSTOOD


def check(row: Row) -> None:
    """Holds kdir to one row."""
    layers = [SettingLayer("the program", row["props"])]
    expected = row["expected"]
    if expected == "CONFIG_ERROR":
        with pytest.raises(InvalidArgument):
            producer_settings(layers)
        return
    is_known = isinstance(expected, dict) and expected
    assert is_known, f"expected: {expected!r} is neither settings nor an error"
    settings = producer_settings(layers)
    for name, wanted in expected.items():
        assert name in settings, f"{name} is not set"
        shown = json.dumps(wanted) if isinstance(wanted, bool) else str(wanted)
        choices = {_SAME.get(one, one) for one in shown.split(" or ")}
        # "-1 or all" is one value in two ways of writing it.
        assert choices == {_SAME.get(settings[name], settings[name])}, name


FILE = "kafka_idempotent_producer_config.json"


@pytest.mark.parametrize("row", cases("kafka_producer", FILE, read, category))
def test_row(row: Row) -> None:
    run(check, row)
