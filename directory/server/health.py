"""How the clusters of a process are, by one name each; the names that /readyz, gRPC's health and
``kdir doctor`` share. Asks nobody: neither the store nor Kafka nor the parent.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from directory.access.decision import AccessMode
from directory.federation import parent_state
from directory.store.replica import ReplicaState
from resolver.errors import NotReady

if TYPE_CHECKING:
    from directory.server.cluster import Cluster

__all__ = ["ClusterHealth", "State", "has_inherited_policy", "health_of", "healths_of", "is_ready"]


class State(enum.StrEnum):
    """State in which a cluster is served here. Of two that hold, the first named counts."""

    DRAINING = "draining"
    """The process ends: go on at another server."""
    LOADING = "loading"
    """Nothing was read from the store yet: nothing can be answered."""
    SEALED = "sealed"
    """The store takes no changes; what was last seen is answered, as with STALE, and callers are to
    go elsewhere once the cluster has moved to another store.
    """
    STALE = "stale"
    """The store is away; what was last seen is answered with its age, up to a limit."""
    UNMOUNTED = "unmounted"
    """Its parent says that no mount names it; it answers that."""
    AWAITING_PARENT = "awaiting-parent"
    """What the directories above hand down was never received, or cannot be read: nobody can decide
    who may do what, so all but super users are asked to come later.
    """
    SERVING = "serving"
    """It follows the store."""


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """Health of one cluster here."""

    cluster: str
    state: State
    ready: bool
    """Whether callers should be sent here. An unmounted cluster is so at every server, and says so
    itself: to send callers elsewhere would only hide it.
    """
    age_seconds: float = 0.0
    """With STALE and SEALED: how old what it answers is."""

    def __str__(self) -> str:
        """Such as ``stale 12 s``."""
        if self.state is State.STALE:
            return f"{self.state} {self.age_seconds:.0f} s"
        return str(self.state)


def health_of(cluster: Cluster) -> ClusterHealth:
    """Returns how a cluster is right now; cheap, and never waits."""
    name = cluster.config.cluster
    replica = cluster.replica
    # The age is taken once: what is reported and what is decided must not be of two moments.
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
    """True if it is known what holds above the mount of a cluster that is loaded. One that is open
    need not have received it, yet: it lets in whom nobody has denied so far.
    """
    snapshot, config = cluster.replica.snapshot, cluster.config
    if parent_state.is_inherited_received(snapshot):
        return not parent_state.is_inherited_corrupt(snapshot)
    return not config.parent or config.access is AccessMode.OPEN


def healths_of(names: Iterable[str], clusters: Iterable[Cluster]) -> list[ClusterHealth]:
    """Returns the health of every cluster that a process is to serve; one that is not open yet is
    loading.
    """
    opened = {cluster.config.cluster: health_of(cluster) for cluster in list(clusters)}
    return [opened.get(name) or ClusterHealth(name, State.LOADING, ready=False) for name in names]


def is_ready(clusters: Iterable[Cluster]) -> bool:
    """True if callers should be sent to the server of these clusters: every one can answer."""
    return all(health_of(cluster).ready for cluster in clusters)
