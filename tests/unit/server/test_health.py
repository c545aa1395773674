"""How a cluster is, in one word, and whether callers should come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from kdir.v1 import federation_pb2

from directory.access.compiled_grants import AccessMode
from directory.federation.link_records import encode_record
from directory.namespace.keys import INHERITED
from directory.namespace.snapshot import Snapshot
from directory.server.cluster import Cluster
from directory.server.health import health_of, is_ready
from directory.store.base import FILLED_FROM, MOVED_TO, Identity
from directory.store.replica import ReplicaState
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import NotReady


def cluster(
    state: ReplicaState = ReplicaState.SERVING,
    *,
    age: float = 0.0,
    sealed: str = "",
    unmounted: str = "",
    draining: bool = False,
    refused: str = "",
    reported: bytes | None = None,
    parent: tuple[str, ...] = (),
    mode: AccessMode = AccessMode.OPEN,
) -> Cluster:
    def view() -> Any:
        if state is ReplicaState.LOADING:
            raise NotReady("not loaded")
        return SimpleNamespace(position=SimpleNamespace(unmounted=unmounted))

    rows = [] if reported is None else [(INHERITED, reported)]
    made = SimpleNamespace(
        config=SimpleNamespace(
            cluster="la",
            limits=SimpleNamespace(max_stale_seconds=60.0),
            parent=parent,
            access=mode,
        ),
        replica=SimpleNamespace(
            state=state, age_seconds=age, snapshot=Snapshot.load(ProtoCodec(), "i", 1, [rows])
        ),
        store=SimpleNamespace(identity=Identity("s", "kc-1", "la", "life", 1, sealed)),
        federation=SimpleNamespace(view=view),
        members=SimpleNamespace(refused=refused),
        draining=draining,
    )
    return cast("Cluster", made)


INHERITED_RECORD = encode_record(1, federation_pb2.Inherited(incarnation="i").SerializeToString())
NONSENSE = b"\xff\xfe\0nonsense\xff"
ABOVE = ("127.0.0.1:1",)
STALE, LOADING = ReplicaState.STALE, ReplicaState.LOADING


@pytest.mark.parametrize(
    ("served", "expected", "ready"),
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
        (
            cluster(reported=INHERITED_RECORD, parent=ABOVE, mode=AccessMode.ENFORCE),
            "serving",
            True,
        ),
        (cluster(reported=NONSENSE), "awaiting-parent", False),
        (
            cluster(reported=NONSENSE, parent=ABOVE, mode=AccessMode.ENFORCE),
            "awaiting-parent",
            False,
        ),
        (cluster(parent=ABOVE), "serving", True),
        (cluster(parent=ABOVE, mode=AccessMode.ENFORCE), "awaiting-parent", False),
        (cluster(reported=NONSENSE, unmounted="nobody names it"), "unmounted", True),
        (cluster(draining=True), "draining", False),
        (cluster(refused="level 2 was finalized"), "draining", False),
    ],
)
def test_the_state_and_whether_callers_should_come(
    served: Cluster, expected: str, ready: bool
) -> None:
    health = health_of(served)
    assert (str(health), health.ready) == (expected, ready)


def test_a_process_is_ready_when_every_cluster_of_it_is() -> None:
    assert is_ready([cluster(), cluster(STALE, age=1)])
    assert not is_ready([cluster(), cluster(LOADING)])
