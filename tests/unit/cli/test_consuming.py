"""Where `kdir consume` ends: at the end of each partition, as it was when it began."""

from dataclasses import dataclass
from typing import Any

import pytest

from resolver.cli.produce import _drop_reached


@dataclass(frozen=True, slots=True)
class Consumer:
    """One that stands where it is told, by partition."""

    places: dict[int, int]

    def position(self, partitions: list[Any]) -> list[Any]:
        for one in partitions:
            one.offset = self.places[one.partition]
        return partitions


@pytest.mark.parametrize(
    ("place", "left"),
    [
        (9, {0: 10}),
        (10, {}),  # the last message was 7: markers of transactions have the offsets behind it
        (12, {}),  # others wrote on
        (-1001, {0: 10}),  # nothing was read yet
    ],
)
def test_P20_a_partition_ends_by_its_position_and_not_by_its_last_message(
    place: int, left: dict[int, int]
) -> None:
    ends = {0: 10}
    _drop_reached(Consumer({0: place}), "orders", ends)
    assert ends == left


def test_P20_each_partition_ends_by_itself() -> None:
    ends = {0: 10, 1: 5}
    _drop_reached(Consumer({0: 10, 1: 4}), "orders", ends)
    assert ends == {1: 5}
