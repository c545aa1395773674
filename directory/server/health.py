"""Health of the clusters of a process, as one state each; /readyz, gRPC's health and ``kdir
doctor`` share the names.

Computed from memory: no store, Kafka or parent is called.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from directory.access.compiled_grants import AccessMode
from directory.federation import inheritance
from directory.store.replica import ReplicaState
from resolver.errors import NotReady

if TYPE_CHECKING:
    from directory.server.cluster import Cluster

__all__ = ["ClusterHealth", "State", "has_inherited_policy", "health_of", "healths_of", "is_ready"]


class State(enum.StrEnum):
    """State of a cluster on this server. If several apply, the first in this order counts."""

    DRAINING = "draining"
    """The process is shutting down: callers should use another server."""
    LOADING = "loading"
    """Nothing was read from the store yet: no call can be answered."""
    SEALED = "sealed"
    """The store takes no changes. Answers are from the last snapshot, as with STALE; callers should
    use another server once the cluster has moved to another store.
    """
    STALE = "stale"
    """The store cannot be reached. Answers are from the last snapshot, with its age, up
    to a limit.
    """
    UNMOUNTED = "unmounted"
    """The parent reported that no mount names the cluster; calls get that error."""
    AWAITING_PARENT = "awaiting-parent"
    """The inherited records were never received, or cannot be read: no access can be decided, so
    all callers but super users are asked to retry later.
    """
    SERVING = "serving"
    """The replica follows the store; all calls are answered."""


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """Health of one cluster here."""

    cluster: str
    state: State
    ready: bool
    """Whether callers should be sent here. True for an unmounted cluster: every server returns that
    error.
    """
    age_seconds: float = 0.0
    """Age of the answers, with STALE and SEALED."""

    def __str__(self) -> str:
        """Returns text such as ``stale 12 s``."""
        if self.state is State.STALE:
            return f"{self.state} {self.age_seconds:.0f} s"
        return str(self.state)


def health_of(cluster: Cluster) -> ClusterHealth:
    """Returns the current health of a cluster; cheap, and never waits."""
    name = cluster.config.cluster
    replica = cluster.replica
    # The age is read once, so that the report and the decision use the same value.
    state, age = replica.state, replica.age_seconds
    if cluster.draining or cluster.members.refused:
        return ClusterHealth(name, State.DRAINING, ready=False)
    if state is ReplicaState.LOADING:
        return ClusterHealth(name, State.LOADING, ready=False)
    answered = age <= cluster.config.limits.max_stale_seconds
    identity = cluster.store.identity
    if identity.sealed:
        elsewhere = identity.moved or identity.partial
        return ClusterHealth(name, State.SEALED, answered and not elsewhere, age)
    if state is ReplicaState.STALE:
        return ClusterHealth(name, State.STALE, answered, age)
    try:
        unmounted = bool(cluster.federation.view().position.unmounted)
    except NotReady:
        return ClusterHealth(name, State.LOADING, ready=False)
    if unmounted:
        return ClusterHealth(name, State.UNMOUNTED, ready=True)
    if not has_inherited_policy(cluster):
        return ClusterHealth(name, State.AWAITING_PARENT, ready=False)
    return ClusterHealth(name, State.SERVING, ready=True)


def has_inherited_policy(cluster: Cluster) -> bool:
    """True if the inherited records of a loaded cluster are known. With open access they need not
    be received yet: every caller that is not denied is admitted.
    """
    snapshot, config = cluster.replica.snapshot, cluster.config
    if inheritance.is_inherited_received(snapshot):
        return not inheritance.is_inherited_corrupt(snapshot)
    return not config.parent or config.access is AccessMode.OPEN


def healths_of(names: Iterable[str], clusters: Iterable[Cluster]) -> list[ClusterHealth]:
    """Returns the health of every cluster that a process is to serve; LOADING for a cluster that is
    not open yet.
    """
    opened = {cluster.config.cluster: health_of(cluster) for cluster in list(clusters)}
    return [opened.get(name) or ClusterHealth(name, State.LOADING, ready=False) for name in names]


def is_ready(clusters: Iterable[Cluster]) -> bool:
    """True if callers should be sent to the server of these clusters: each of them can answer."""
    return all(health_of(cluster).ready for cluster in clusters)
