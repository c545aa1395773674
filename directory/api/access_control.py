"""Access rules and caller views of the clusters that a process hosts, for all handlers.

``directory.access`` decides, from the grants of one snapshot and what is inherited from above the
mount; ``visible_tree.py`` filters the tree by those decisions, ``CallerRights`` checks rights on
it, ``entry_writes.py`` checks what a change needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from directory.access.authorizer import Authorizer
from directory.access.compiled_grants import (
    AccessMode,
    AccessQuestion,
    CompiledGrants,
    Decision,
    DecisionReason,
)
from directory.access.grant_tree import EntryPlace, GrantTree
from directory.access.grants import Operation, ResourceType
from directory.access.principals import ANONYMOUS, EVERYBODY, Caller
from directory.api.rpc.call_context import Call
from directory.api.rpc.method_rights import cluster_check
from directory.api.visible_tree import OpenTree, VisibleTree, write_audit_line
from directory.namespace.entry import Kind
from directory.namespace.snapshot import Snapshot
from directory.server.cluster import Cluster
from directory.store.replica import ReplicaState
from resolver.errors import NotAuthoritative, NotReady, PermissionDenied
from resolver.path import Path

__all__ = ["AccessControl", "CallerRights", "check_owned"]

_MAX_TREES: Final = 256
"""Most callers whose view of one snapshot is cached."""
_caller: Final = lru_cache(4096)(Caller)
"""Callers are cached, so that the keys of a caller's grants are made once for all of its calls."""


_DESCRIBE: Final = AccessQuestion.for_operation(Operation.DESCRIBE)
_ANY_OPERATION: Final = tuple(
    AccessQuestion.for_operation(one) for one in Operation if one is not Operation.ALL
)


class CallerRights(VisibleTree):
    """Rights of one caller on a tree; also for super users, and where nothing is hidden.

    An operation that the caller lacks on an entry that it may describe is PERMISSION_DENIED. An
    entry that it may not describe is absent for it, except as ``require_operation`` describes. Each
    decision is written to the audit log.
    """

    __slots__ = ()

    def require_operation(
        self,
        operation: Operation,
        path: Path,
        *,
        kind: Kind | None = None,
        resource: ResourceType = ResourceType.TOPIC,
    ) -> None:
        """Checks that the caller has a right on an existing entry.

        An entry that the caller may not describe is absent for it, whatever other rights it has
        there. There are two exceptions: the entry's own grant allows it an operation; or the
        operation is ALTER and is allowed, so that it could remove the grant that hides the entry.

        Raises:
            PermissionDenied: the caller knows of the entry and lacks the right, or has it by a
                grant further up and lacks DESCRIBE.
            Absent: the caller does not know of the entry.
        """
        relative = path.below(self.mount)
        place = EntryPlace(relative, kind is Kind.TOPIC and bool(relative))
        question = AccessQuestion.for_operation(operation, resource)
        decision = self.decide(question, place)
        write_audit_line(self.caller, question, path, decision)
        may_describe = resource is not ResourceType.TOPIC or self.can_describe(
            relative, is_topic=place.is_topic
        )
        if decision.allowed and (
            may_describe
            or operation is Operation.ALTER
            or self.access.has_own_grant(self.caller, question, place)
        ):
            return
        if not may_describe and not self.knows_of(place):
            raise self.absent_error(path, kind)
        if decision.allowed:
            raise self._describe_denied_error(path, self.decide(_DESCRIBE, place))
        raise self.permission_denied_error(operation, path, decision, resource)

    def knows_of(self, place: EntryPlace) -> bool:
        """True if the caller may describe an existing entry, or the entry's own grant allows it an
        operation. Every caller knows of the mount: each answer names it.
        """
        return (
            not place.relative
            or self.can_describe(place.relative, is_topic=place.is_topic)
            or any(
                self.access.has_own_grant(self.caller, one, place)
                and self.decide(one, place).allowed
                for one in _ANY_OPERATION
            )
        )

    def require_cluster(self, operation: Operation, purpose: str = "") -> None:
        """Checks that the caller has a right on the cluster. ``purpose`` is the subject of the
        error's sentence, where the request itself is about an entry.

        Raises:
            PermissionDenied: the caller lacks the right.
        """
        try:
            self.require_operation(operation, self.mount, resource=ResourceType.CLUSTER)
        except PermissionDenied as refused:
            if not purpose:
                raise
            raise PermissionDenied(
                f"{purpose} needs {operation.name} on cluster {self.cluster}: {refused.message}",
                metadata=refused.metadata,
            ) from None

    def permission_denied_error(
        self,
        operation: Operation,
        path: Path,
        decision: Decision,
        resource: ResourceType = ResourceType.TOPIC,
    ) -> PermissionDenied:
        """Returns the error for a missing right, with the reason if the caller may learn it."""
        why = (
            decision.reason.value
            if decision.reason is not DecisionReason.GRANT
            else "a grant denies it"
        )
        kind = " --cluster" if resource is ResourceType.CLUSTER else ""
        return PermissionDenied(
            f"{self.caller.principal} may not {operation.name} {path}: {why}; "
            f"kdir check {self.caller.principal} {operation.name.lower()} {path}{kind} --explain",
            path=path,
            operation=operation.name,
            principal=self.caller.principal,
        )

    def _describe_denied_error(self, path: Path, decision: Decision) -> PermissionDenied:
        write_audit_line(self.caller, _DESCRIBE, path, decision)
        return self.permission_denied_error(Operation.DESCRIBE, path, decision)

    def require_view(self, path: Path, kind: Kind | None) -> None:
        """Checks that the caller may describe an entry that it knows of, and for a directory
        everything below it, too.

        Raises:
            PermissionDenied: the caller may not describe all of that.
        """
        relative = path.below(self.mount)
        place = EntryPlace(relative, kind is Kind.TOPIC and bool(relative))
        decision = self.decide(_DESCRIBE, place)
        if not decision.allowed:
            raise self._describe_denied_error(path, decision)
        if kind is Kind.DIRECTORY:
            self.require_on_descendants(Operation.DESCRIBE, path)

    def require_on_descendants(self, operation: Operation, path: Path) -> None:
        """Checks that the caller has a right on everything below a directory. An unreadable
        container may have been closed: if it is not counted for the caller, it counts as closed
        (docs/guarantees.md#s21).

        Raises:
            PermissionDenied: names the entry on which the right is missing, if the caller may see
                it.
        """
        question = AccessQuestion.for_operation(operation)
        relative = path.below(self.mount)
        refusals = self.access.denied_below(
            self.caller, question, EntryPlace(relative), age_seconds=self.age_seconds
        )
        for place, decision in refusals:
            # Not joined: a mount that is too deep has no valid path, and its error would name it.
            at = Path((*self.mount.segments, *place.relative))
            write_audit_line(self.caller, question, at, decision)
            if self.can_describe(place.relative, is_topic=place.is_topic):
                raise self.permission_denied_error(operation, at, decision)
            raise self._denied_below_error(operation, path)
        for segments in self.uncounted_below(relative):
            at = Path((*self.mount.segments, *segments))
            closed = Decision(allowed=False, reason=DecisionReason.CLOSED, path=at)
            write_audit_line(self.caller, question, at, closed)
            raise self._denied_below_error(operation, path)

    def _denied_below_error(self, operation: Operation, path: Path) -> PermissionDenied:
        return PermissionDenied(
            f"{self.caller.principal} may not {operation.name} all that lies below {path}",
            path=path,
            operation=operation.name,
            principal=self.caller.principal,
        )


@dataclass(slots=True)
class _SnapshotAccess:
    """Cached access rules and caller views of one cluster's newest snapshot."""

    access: Authorizer
    snapshot: Snapshot
    host_specific_principals: frozenset[str]
    """Principals of grants that apply to one host only. For all others the caller's address is not
    parsed, which costs as much as half of an answer.
    """
    open_tree: OpenTree
    """The tree of callers that may see all of it."""
    has_no_grants: bool
    trees: dict[tuple[str, str, bool], VisibleTree] = field(default_factory=dict)
    constant_trees: dict[str, OpenTree] = field(default_factory=dict)
    """Trees by principal, of those whose view depends neither on their address nor on the time."""


class AccessControl:
    """Access control of the clusters that a process hosts. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[Cluster, _SnapshotAccess] = {}

    def access(self, cluster: Cluster, snapshot: Snapshot) -> Authorizer:
        """Returns the access rules of a cluster at a snapshot."""
        return self._of(cluster, snapshot).access

    def tree(
        self, cluster: Cluster, snapshot: Snapshot, call: Call, *, past: bool = False
    ) -> OpenTree:
        """Returns the tree of a cluster as the caller may see it at a snapshot.

        With ``past`` the tree is also used for revisions before the snapshot, when more may have
        been hidden than now.

        Raises:
            NotReady: the inherited grants were never received from a parent, or cannot be read;
                not raised for super users (A3).
        """
        known = self._of(cluster, snapshot)
        principal = call.principal or ANONYMOUS
        if not past:
            constant = known.constant_trees.get(principal)
            if constant is not None:
                return constant
        # What an unreadable record forbade is unknown: see ``VisibleTree.counts_unreadable``.
        is_known = not (snapshot.tree.unreadable and known.access.super_users)
        was_known = not past or cluster.access_history.is_constant
        says_nothing = known.has_no_grants and is_known and was_known
        if says_nothing or principal in known.access.super_users:
            return known.open_tree
        hosts_matter = (
            principal in known.host_specific_principals
            or EVERYBODY in known.host_specific_principals
        )
        host = call.host if hosts_matter or past else ""  # earlier grants may name the host
        expired = _has_expired(cluster, known.access)
        key = (principal, host, expired)
        tree = known.trees.get(key)
        if tree is None:
            known.access.inherited_grants()
            is_constant = not (hosts_matter or past or _can_expire(known.access))
            if len(known.trees) >= _MAX_TREES:
                known.constant_trees.clear()
                known.trees.clear()
            who = _caller(principal, host)
            tree = VisibleTree(snapshot, known.access, who, cluster.config.cluster, expired=expired)
            known.trees[key] = tree
            if is_constant:
                known.constant_trees[principal] = tree
        return tree

    def rights(self, cluster: Cluster, snapshot: Snapshot, call: Call) -> CallerRights:
        """Returns the caller's rights in a cluster at a snapshot; each decision is written to the
        audit log.
        """
        access = self._of(cluster, snapshot).access
        caller = _caller(call.principal or ANONYMOUS, call.host)
        expired = _has_expired(cluster, access)
        return CallerRights(snapshot, access, caller, cluster.config.cluster, expired=expired)

    def require_admin(self, cluster: Cluster, method: str, call: Call) -> CallerRights | None:
        """Checks that a caller has the right on the cluster that a method such as
        ``AdminService/Backup`` requires by its row of ``method_rights.py``.

        Until the tree is loaded, super users pass; other callers pass only where access is open and
        the method reports a server's state, since a grant that denies the call may not be loaded
        yet. Returns the caller's rights on entries, which the right on the cluster does not
        include; None until the tree is loaded.

        Raises:
            PermissionDenied: the caller lacks the right.
            NotReady: the tree or the inherited grants are not loaded.
        """
        operation, check = cluster_check(method)
        is_loading = cluster.replica.state is ReplicaState.LOADING
        if (call.principal or ANONYMOUS) in cluster.config.auth.super_users:
            return None if is_loading else self.rights(cluster, cluster.replica.snapshot, call)
        is_open = cluster.config.access is AccessMode.OPEN
        if is_loading:
            if is_open and check.while_loading:
                return None
            raise NotReady(f"cluster {cluster.config.cluster} is not loaded yet: ask again")
        view = self.rights(cluster, cluster.replica.snapshot, call)
        access = view.access
        if is_open and access.inherited is None and not access.super_users:
            # The inherited grants cannot be read, and there are no super users: an operator must
            # still be able to see that and to repair it.
            own = replace(access, inherited=())
            view = CallerRights(view.snapshot, own, view.caller, cluster.config.cluster)
        view.require_cluster(operation)
        return view

    def require_link_right(self, cluster: Cluster, child_id: str, call: Call) -> None:
        """Checks that a caller may act for a child cluster: its certificate names the child; or, if
        it has no certificate that names a cluster, the access rules allow it CLUSTER_ACTION.

        Raises:
            PermissionDenied: the certificate names another cluster, or CLUSTER_ACTION is missing.
            NotReady: the tree or the inherited grants are not loaded.
        """
        if call.cluster_ids:
            if child_id not in call.cluster_ids:
                raise PermissionDenied(
                    f"the certificate names cluster {', '.join(call.cluster_ids)}, and the hello "
                    f"says {child_id}",
                    child=child_id,
                )
            return
        view = self.rights(cluster, cluster.replica.snapshot, call)
        view.require_cluster(cluster_check("FederationService/Link")[0])

    def _of(self, cluster: Cluster, snapshot: Snapshot) -> _SnapshotAccess:
        known = self._known.get(cluster)
        if known is None or known.snapshot is not snapshot:
            known = self._known[cluster] = _known(cluster, snapshot, known)
        return known


def _known(cluster: Cluster, snapshot: Snapshot, before: _SnapshotAccess | None) -> _SnapshotAccess:
    if before is not None and _has_same_access(before.snapshot, snapshot):
        return _SnapshotAccess(
            before.access,
            snapshot,
            before.host_specific_principals,
            OpenTree(snapshot, before.access.mount, cluster.config.cluster),
            before.has_no_grants,
        )
    access = cluster.access_at(snapshot)
    inherited = access.inherited
    same = before is not None and before.access.tree is snapshot.grants
    levels = inherited or ()
    says_nothing = (
        access.mode is AccessMode.OPEN
        and inherited is not None
        and snapshot.grants.root.is_empty
        and not any(level.rules or level.closed for level in levels)
    )
    return _SnapshotAccess(
        access,
        snapshot,
        before.host_specific_principals
        if before is not None and same and before.access.inherited == inherited
        else _of_hosts(snapshot.grants, [level.rules for level in levels]),
        OpenTree(snapshot, access.mount, cluster.config.cluster),
        says_nothing,
    )


def _has_same_access(before: Snapshot, snapshot: Snapshot) -> bool:
    """True if the grants and the inherited levels of both are the same."""
    return (
        before.grants is snapshot.grants
        and before.tree.facts is snapshot.tree.facts
        and before.incarnation == snapshot.incarnation
    )


def _of_hosts(tree: GrantTree, rules: list[CompiledGrants]) -> frozenset[str]:
    incarnations = [tree.root.live, *(one.live for one in rules)]
    parted = (key.partition("\0") for live in incarnations for key in live)
    return frozenset(principal for principal, at_host, _ in parted if at_host)


def _can_expire(access: Authorizer) -> bool:
    return access.grants_max_age_seconds is not None and bool(access.inherited)


def _has_expired(cluster: Cluster, access: Authorizer) -> bool:
    return _can_expire(access) and access.has_expired(cluster.unconfirmed_seconds() or 0.0)


def check_owned(cluster: Cluster, mount: Path, path: Path, *, or_above: bool = False) -> None:
    """Checks that a path is in the cluster that is mounted at ``mount``; with ``or_above``, or
    above it.

    Raises:
        NotAuthoritative: the path is another cluster's.
    """
    if not (mount.is_prefix_of(path) or (or_above and path.is_prefix_of(mount))):
        raise NotAuthoritative(
            f"{path} is not below {mount}, where cluster {cluster.config.cluster} is mounted: "
            f"resolve it first",
            path=path,
            mount=mount,
        )
