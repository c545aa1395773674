"""Who may do what, asked by every handler in one line; refuses to decide it itself.

``authorization`` decides, from the grants of one snapshot and what is inherited from above the
mount; ``caller_view.py`` says what that comes to for one caller, ``authorizing.py`` what a change
needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from directory.access.authorizer import Access
from directory.access.compiled_grants import Rules
from directory.access.decision import Mode
from directory.access.grant_tree import GrantTree
from directory.access.principals import ANONYMOUS, EVERYBODY, Caller
from directory.api.caller_view import Sight
from directory.api.rpc.call_context import Call
from directory.api.rpc.rights import cluster_check
from directory.namespace.snapshot import Snapshot
from directory.server.cluster import Cluster
from directory.store.replica import ReplicaState
from resolver.errors import NotAuthoritative, NotReady, PermissionDenied
from resolver.path import Path

__all__ = ["Guarding", "check_owned"]

_MOST_SIGHTS: Final = 256
"""Callers whose view of a snapshot is remembered."""


@dataclass(slots=True)
class _Known:
    """What is remembered of one cluster's newest snapshot."""

    access: Access
    snapshot: Snapshot
    of_hosts: frozenset[str]
    """The principals of whom a grant for one host only speaks: of others nobody asks from where
    they call, which costs as much as half of an answer.
    """
    everything: Sight
    """Of whom nothing is hidden."""
    says_nothing: bool
    sights: dict[tuple[str, str, bool], Sight] = field(default_factory=dict)


class Guarding:
    """The access of the clusters that a process hosts; used by any thread."""

    def __init__(self) -> None:
        self._known: dict[Cluster, _Known] = {}

    def access(self, cluster: Cluster, snapshot: Snapshot) -> Access:
        """Who may do what, at a snapshot."""
        return self._of(cluster, snapshot).access

    def sight(
        self, cluster: Cluster, snapshot: Snapshot, call: Call, *, past: bool = False
    ) -> Sight:
        """What the caller may see and do in a cluster, at a snapshot; ``past``: also of what was
        before, when more may have been hidden than is now.

        Raises:
            NotReady: what a parent has to hand down never came; not for super users (A3).
        """
        known = self._of(cluster, snapshot)
        principal = call.principal or ANONYMOUS
        says_nothing = known.says_nothing and (not past or cluster.access_history.is_constant)
        if says_nothing or principal in known.access.super_users:
            return known.everything
        hosts_matter = principal in known.of_hosts or EVERYBODY in known.of_hosts
        host = call.host if hosts_matter or past else ""  # then it may have mattered
        expired = _has_expired(cluster, known.access)
        key = (principal, host, expired)
        sight = known.sights.get(key)
        if sight is None:
            known.access.above()
            if len(known.sights) >= _MOST_SIGHTS:
                known.sights.clear()
            sight = Sight(cluster, snapshot, known.access, Caller(principal, host), expired=expired)
            known.sights[key] = sight
        return sight

    def acting(self, cluster: Cluster, snapshot: Snapshot, call: Call) -> Sight:
        """The same, for what is decided one by one and told to the audit: also of super users, and
        where nothing is hidden.
        """
        access = self._of(cluster, snapshot).access
        caller = Caller(call.principal or ANONYMOUS, call.host)
        expired = _has_expired(cluster, access)
        return Sight(cluster, snapshot, access, caller, expired=expired)

    def require_admin(self, cluster: Cluster, method: str, call: Call) -> Sight | None:
        """That a caller may do with a cluster what a method such as ``AdminService/Backup`` takes,
        by its row of ``rights.py``. Only one that tells how a server is doing passes before
        anything is loaded: what denies it may be among what is not loaded yet. Returns what the
        caller sees of the entries, which the right on the cluster shows none of; None while nothing
        is loaded.

        Raises:
            PermissionDenied, NotReady
        """
        operation, check = cluster_check(method)
        is_loading = cluster.replica.state is ReplicaState.LOADING
        if (call.principal or ANONYMOUS) in cluster.config.auth.super_users:
            return None if is_loading else self.acting(cluster, cluster.replica.snapshot, call)
        is_open = cluster.config.access is Mode.OPEN
        if is_loading:
            if is_open and check.while_loading:
                return None
            raise NotReady(f"cluster {cluster.config.cluster} is not loaded yet: ask again")
        sight = self.acting(cluster, cluster.replica.snapshot, call)
        access = sight.access
        if is_open and access.inherited is None and not access.super_users:
            # What was inherited cannot be read, and nobody stands above it: somebody must be able
            # to see that, and to mend it.
            own = replace(access, inherited=())
            sight = Sight(cluster, sight.snapshot, own, sight.caller)
        sight.require_cluster(operation)
        return sight

    def check_link(self, cluster: Cluster, child_id: str, call: Call) -> None:
        """That a caller may speak for a child cluster: its certificate names it, or, where access
        is enforced and there is none, CLUSTER_ACTION is granted to it.

        Raises:
            PermissionDenied, NotReady
        """
        if call.cluster_ids:
            if child_id not in call.cluster_ids:
                raise PermissionDenied(
                    f"the certificate names cluster {', '.join(call.cluster_ids)}, and the hello "
                    f"says {child_id}",
                    child=child_id,
                )
            return
        sight = self.acting(cluster, cluster.replica.snapshot, call)
        sight.require_cluster(cluster_check("FederationService/Link")[0])

    def _of(self, cluster: Cluster, snapshot: Snapshot) -> _Known:
        known = self._known.get(cluster)
        if known is None or known.snapshot is not snapshot:
            known = self._known[cluster] = _known(cluster, snapshot, known)
        return known


def _known(cluster: Cluster, snapshot: Snapshot, before: _Known | None) -> _Known:
    access = cluster.access_at(snapshot)
    inherited = access.inherited
    same = before is not None and before.access.tree is snapshot.grants
    levels = inherited or ()
    says_nothing = (
        access.mode is Mode.OPEN
        and inherited is not None
        and snapshot.grants.root.is_empty
        and not any(level.rules or level.closed for level in levels)
    )
    return _Known(
        access,
        snapshot,
        before.of_hosts
        if before is not None and same and before.access.inherited == inherited
        else _of_hosts(snapshot.grants, [level.rules for level in levels]),
        Sight(cluster, snapshot, access, None),
        says_nothing,
    )


def _of_hosts(tree: GrantTree, rules: list[Rules]) -> frozenset[str]:
    lives = [tree.root.live, *(one.live for one in rules)]
    parted = (key.partition("\0") for live in lives for key in live)
    return frozenset(principal for principal, at_host, _ in parted if at_host)


def _has_expired(cluster: Cluster, access: Access) -> bool:
    if access.grants_max_age_seconds is None or not access.inherited:
        return False
    return access.has_expired(cluster.unconfirmed_seconds() or 0.0)


def check_owned(cluster: Cluster, mount: Path, path: Path, *, or_above: bool = False) -> None:
    """That a path is a cluster's, which hangs at ``mount``; ``or_above``: or one above that.

    Raises:
        NotAuthoritative
    """
    if not (mount.is_prefix_of(path) or (or_above and path.is_prefix_of(mount))):
        raise NotAuthoritative(
            f"{path} is not below {mount}, where cluster {cluster.config.cluster} hangs; "
            f"resolve it first",
            path=path,
            mount=mount,
        )
