"""How a cluster is, in one word, and whether callers should come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from directory.cluster import Cluster
from directory.health import health_of, is_ready
from directory.store.base import FILLED_FROM, MOVED_TO, Identity
from directory.store.replica import ReplicaState
from resolver.errors import NotReady


def cluster(
    state: ReplicaState = ReplicaState.SERVING,
    *,
    age: float = 0.0,
    sealed: str = "",
    unmounted: str = "",
    draining: bool = False,
    refused: str = "",
) -> Cluster:
    def view() -> Any:
        if state is ReplicaState.LOADING:
            raise NotReady("not loaded")
        return SimpleNamespace(position=SimpleNamespace(unmounted=unmounted))

    made = SimpleNamespace(
        config=SimpleNamespace(cluster="la", limits=SimpleNamespace(max_stale_seconds=60.0)),
        replica=SimpleNamespace(state=state, age_seconds=age),
        store=SimpleNamespace(identity=Identity("s", "kc-1", "la", "life", 1, sealed)),
        federation=SimpleNamespace(view=view),
        members=SimpleNamespace(refused=refused),
        draining=draining,
    )
    return cast("Cluster", made)


STALE, LOADING = ReplicaState.STALE, ReplicaState.LOADING


@pytest.mark.parametrize(
    ("served", "word", "ready"),
    [
        (cluster(LOADING, age=100), "loading", False),
        (cluster(), "serving", True),
        (cluster(STALE, age=11.6), "stale 12 s", True),
        (cluster(STALE, age=60.0), "stale 60 s", True),
        (cluster(STALE, age=61.0), "stale 61 s", False),
        (cluster(unmounted="nobody names it"), "unmounted", True),
        (cluster(STALE, age=5, unmounted="nobody names it"), "stale 5 s", True),
        (cluster(STALE, age=5, sealed="kdir restore is at work"), "sealed", True),
        (cluster(STALE, age=61, sealed="kdir restore is at work"), "sealed", False),
        (cluster(STALE, age=5, sealed=f"{MOVED_TO}etcd://a/la"), "sealed", False),
        (cluster(STALE, age=5, sealed=f"{FILLED_FROM}a backup"), "sealed", False),
        (cluster(draining=True), "draining", False),
        (cluster(refused="level 2 was finalised"), "draining", False),
    ],
)
def test_a_word_and_whether_callers_should_come(served: Cluster, word: str, ready: bool) -> None:
    health = health_of(served)
    assert (str(health), health.ready) == (word, ready)


def test_a_process_is_ready_when_every_cluster_of_it_is() -> None:
    assert is_ready([cluster(), cluster(STALE, age=1)])
    assert not is_ready([cluster(), cluster(LOADING)])
