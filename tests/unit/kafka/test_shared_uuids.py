"""Topic ids of confluent-kafka, one object per id."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka.cimpl import Uuid

from directory.kafka.admin_client import SharedUuid


def bits(one: Any) -> tuple[int, int]:
    """Returns the most and least significant bits; the library's stubs do not have these
    methods.
    """
    return one.get_most_significant_bits(), one.get_least_significant_bits()


def test_the_same_value_is_the_same_object() -> None:
    first = SharedUuid(1, -2)
    assert SharedUuid(most_significant_bits=1, least_significant_bits=-2) is first
    others = [SharedUuid(high, low) for high in (-1, 0, 1) for low in (-2, -1, 0, 2)]
    assert len({id(one) for one in [*others, first]}) == len(others), "one of them is the first"


def test_it_is_a_uuid_of_the_library_with_its_value() -> None:
    for high, low in ((0, 0), (1, -2), (-(2**63), 2**63 - 1)):
        shared, plain = SharedUuid(high, low), Uuid(high, low)
        assert isinstance(shared, Uuid)
        assert bits(shared) == bits(plain) == (high, low)
        assert str(shared) == str(plain)


def test_threads_that_meet_the_same_value_get_one_object() -> None:
    with ThreadPoolExecutor(8) as threads:
        made = threads.map(lambda number: (number % 50, SharedUuid(77, number % 50)), range(4_000))
        assert len({(low, id(one)) for low, one in made}) == 50
