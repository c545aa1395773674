"""SortedMap against a dict that is sorted when asked."""

from __future__ import annotations

import pickle
import random
from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from directory.namespace import sorted_map
from directory.namespace.sorted_map import SortedMap

KEYS = st.text("abcdef._-", min_size=1, max_size=4)


def check_shape(tree: SortedMap[str, int]) -> None:
    """Leaves are equally deep, no node is too wide or (the root aside) too narrow, and each key
    lies between the separators above it.
    """

    def visit(node: Any, height: int, low: str | None, high: str | None, *, is_root: bool) -> int:
        keys, below, *tags = node
        assert list(keys) == sorted(set(keys))
        assert all(low is None or low <= key for key in keys)
        assert all(high is None or key < high for key in keys)
        assert len(below) <= sorted_map.MOST
        if height == 0:
            assert len(keys) == len(below)
            assert tags == [bytes(hash(key) & 0xFF for key in keys)]
            assert is_root or len(below) >= sorted_map.LEAST
            return len(keys)
        assert len(keys) == len(below) - 1
        assert len(below) >= (2 if is_root else sorted_map.LEAST)
        bounds = [low, *keys, high]
        return sum(
            visit(child, height - 1, bounds[place], bounds[place + 1], is_root=False)
            for place, child in enumerate(below)
        )

    assert visit(tree._root, tree.height, None, None, is_root=True) == len(tree)


def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    # Small nodes, so that small examples are deep trees.
    monkeypatch.setattr(sorted_map, "MOST", 8)
    monkeypatch.setattr(sorted_map, "LEAST", 2)
    monkeypatch.setattr(sorted_map, "_BULK", 6)


class Machine(RuleBasedStateMachine):
    """Random changes; every version that was ever seen must stay as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        narrow(self.patch)
        self.tree: SortedMap[str, int] = SortedMap()
        self.oracle: dict[str, int] = {}
        self.versions: list[tuple[SortedMap[str, int], dict[str, int]]] = []

    def teardown(self) -> None:
        for tree, oracle in self.versions:
            assert dict(tree.items()) == oracle
        self.patch.undo()

    @initialize(start=st.dictionaries(KEYS, st.integers(), max_size=300))
    def begin(self, start: dict[str, int]) -> None:
        keys = sorted(start)
        self.tree = SortedMap.from_sorted(keys, [start[key] for key in keys])
        self.oracle = dict(start)

    @rule(key=KEYS, value=st.integers())
    def put(self, key: str, value: int) -> None:
        self.versions.append((self.tree, dict(self.oracle)))
        self.tree = self.tree.set(key, value)
        self.oracle[key] = value

    @rule(key=KEYS)
    def drop(self, key: str) -> None:
        self.versions.append((self.tree, dict(self.oracle)))
        self.tree = self.tree.delete(key)
        self.oracle.pop(key, None)

    @rule(count=st.integers(1, 60), seed=st.integers(0, 2**16))
    def drop_many(self, count: int, seed: int) -> None:
        self.versions.append((self.tree, dict(self.oracle)))
        for key in random.Random(seed).sample(sorted(self.oracle), min(count, len(self.oracle))):
            self.tree = self.tree.delete(key)
            del self.oracle[key]

    @rule(key=KEYS, inclusive=st.booleans())
    def read_from(self, key: str, inclusive: bool) -> None:
        keys = sorted(self.oracle)
        at = bisect_left(keys, key)
        if not inclusive and at < len(keys) and keys[at] == key:
            at += 1
        found = list(self.tree.items(key, inclusive=inclusive))
        assert found == [(each, self.oracle[each]) for each in keys[at:]]
        assert self.tree.get(key, None) == self.oracle.get(key)
        assert (key in self.tree) == (key in self.oracle)

    @invariant()
    def is_the_oracle(self) -> None:
        keys = sorted(self.oracle)
        assert list(self.tree) == keys
        assert list(self.tree.values()) == [self.oracle[key] for key in keys]
        check_shape(self.tree)


TestSortedMap = Machine.TestCase
TestSortedMap.settings = settings(max_examples=60, stateful_step_count=40)


@given(st.dictionaries(KEYS, st.integers(), max_size=400))
def test_bulk_build_is_one_by_one(items: dict[str, int]) -> None:
    one_by_one: SortedMap[str, int] = SortedMap()
    for key, value in items.items():
        one_by_one = one_by_one.set(key, value)
    built = SortedMap.from_items(items.items())
    assert built == one_by_one
    assert one_by_one == built
    check_shape(one_by_one)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 224, 225, 20_000])
def test_real_sizes_from_full_to_empty(size: int) -> None:
    keys = [f"{number:06}" for number in range(size)]
    tree = SortedMap.from_sorted(keys, list(range(size)))
    check_shape(tree)
    order = keys[:]
    random.Random(1).shuffle(order)
    for done, key in enumerate(order, start=1):
        tree = tree.delete(key)
        assert len(tree) == size - done
        if done % 997 == 0:
            check_shape(tree)
    assert not list(tree.items())
    assert tree.height == 0


def test_a_change_shares_the_siblings() -> None:
    keys = [f"{number:06}" for number in range(50_000)]
    before = SortedMap.from_sorted(keys, keys)
    after = before.set("025000x", "new")
    old = {id(leaf) for leaf in before._leaves(None)}
    fresh = [leaf for leaf in after._leaves(None) if id(leaf) not in old]
    assert len(fresh) <= 2


def test_setting_the_same_value_is_no_change() -> None:
    tree = SortedMap.from_items([("a", "x")])
    assert tree.set("a", tree.get("a", "")) is tree
    assert tree.delete("b") is tree


def test_pickled_it_finds_its_keys_in_another_process() -> None:
    tree = SortedMap.from_items((f"{number}", number) for number in range(1000))
    remade = pickle.loads(pickle.dumps(tree))  # noqa: S301 -- our own bytes
    assert remade == tree
    assert remade.get("500") == 500
