"""The six watch guarantees after random operations with a fault every second, on a real etcd.

``pytest --soak`` makes 10,000 of them, ``python -m tests.fault.etcd.chaos --operations N`` any.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from deploy.local.etcd import EtcdCluster
from directory.store.base import CommittedWrites, Store
from tests.fault.etcd.chaos import Run


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_S1_S2_S3_random_operations_with_a_fault_every_second_breach_no_guarantee(
    etcd_clusters: Callable[..., EtcdCluster], request: pytest.FixtureRequest
) -> None:
    operations = 10_000 if request.config.getoption("--soak") else 2_500
    seed = random.randrange(1 << 30)
    with etcd_clusters() as cluster:
        outcome = Run(cluster, seed).go(operations)
    assert outcome.violations == [], f"seed {seed}: {outcome}"
    assert outcome.same, f"seed {seed}: {outcome}"
    assert outcome.acknowledged > 1_000, f"seed {seed}: {outcome}"
    assert all(count > 500 for count in outcome.applied), f"seed {seed}: {outcome}"
    # A short pause or a cut of an unused connection restarts no watch, so faults are counted.
    assert sum(outcome.faults.values()) > 1, f"seed {seed}: {outcome}"


class Spoiled:
    """A store whose watches spoil one of the answers that they give out."""

    def __init__(
        self, store: Any, spoil: Callable[[Sequence[CommittedWrites]], list[CommittedWrites]]
    ) -> None:
        self._store = store
        self._spoil = spoil

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def watch(self, after: int, commit_id: str) -> Any:
        return SpoiledWatch(self._store.watch(after, commit_id), self._spoil)


class SpoiledWatch:
    def __init__(
        self, watch: Any, spoil: Callable[[Sequence[CommittedWrites]], list[CommittedWrites]]
    ) -> None:
        self._watch = watch
        self._spoil = spoil
        self._answers = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watch, name)

    def next(self, timeout_seconds: float) -> Sequence[CommittedWrites]:
        changes: Sequence[CommittedWrites] = self._watch.next(timeout_seconds)
        if changes:
            self._answers += 1
            if self._answers == 5:
                return self._spoil(changes)
        return changes


def halved(changes: Sequence[CommittedWrites]) -> list[CommittedWrites]:
    first, *rest = changes
    return [
        CommittedWrites(first.revision, first.commit_id, first.writes[:1]),
        CommittedWrites(first.revision, first.commit_id, first.writes[1:]),
        *rest,
    ]


@pytest.mark.parametrize(
    ("spoil", "guarantees"),
    [
        (lambda changes: changes[1:], {"Reliable"}),
        (lambda changes: [*changes, changes[0]], {"Atomic", "Unique", "Ordered"}),
        (halved, {"Atomic"}),
    ],
)
def test_a_watch_that_is_spoiled_once_is_found(
    etcd_clusters: Callable[..., EtcdCluster],
    spoil: Callable[[Sequence[CommittedWrites]], list[CommittedWrites]],
    guarantees: set[str],
) -> None:
    def between(store: Store) -> Any:
        return Spoiled(store, spoil)

    with etcd_clusters(members=1) as cluster:
        outcome = Run(cluster, 1, faults=False, spoil=between).go(100)
    assert guarantees & {text.partition(":")[0] for text in outcome.violations}
