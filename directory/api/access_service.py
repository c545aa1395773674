"""AccessService: reads and changes the grants of entries, and answers what they allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, cast

from kdir.v1 import access_pb2

from directory.access.authorize_any import authorize_any, may_produce_idempotently
from directory.access.authorizer import Authorizer
from directory.access.compiled_grants import AccessQuestion, Decision, DecisionReason
from directory.access.explain import Effect, Explanation, explain
from directory.access.grant_tree import EntryPlace
from directory.access.grants import Grant, Operation, ResourceType
from directory.access.principals import ANONYMOUS, Caller
from directory.api.cluster_router import ClusterRouter
from directory.api.dry_run import fill_change_plan
from directory.api.entry_writes import commit_change
from directory.api.resolve_answers import kind_from_number
from directory.api.rpc.call_context import Call
from directory.api.rpc.handlers import Handler, Service
from directory.api.visible_tree import OpenTree
from directory.federation.inheritance import removed_grants_write
from directory.namespace.command import AddGrants, RemoveGrants
from directory.namespace.entry import Kind, Topic
from directory.namespace.lookup import TopicAt
from directory.namespace.traversal import traverse
from directory.server.cluster import Cluster
from directory.wire.entry_codec import refuse_newer
from directory.wire.grant_messages import (
    grant_to_proto,
    grants_from_proto,
    operation_from_proto,
    resource_kind_from_proto,
)
from resolver.errors import Absent, InvalidArgument, KdirError, NotAuthoritative, UnreadableRecord
from resolver.path import Path

__all__ = ["AccessService"]

_DESCRIBE: Final = AccessQuestion.for_operation(Operation.DESCRIBE)


class AccessService(Service):
    """Service for the grants and rights of one cluster."""

    descriptor = access_pb2.DESCRIPTOR.services_by_name["AccessService"]
    writes = frozenset({"AddGrants", "RemoveGrants"})

    def __init__(self, router: ClusterRouter) -> None:
        self._router = router

    def method_handlers(self) -> Mapping[str, Handler]:
        return {
            "AddGrants": self.add_grants,
            "RemoveGrants": self.remove_grants,
            "ListGrants": self.list_grants,
            "CheckAccess": self.check_access,
            "AuthorizeAny": self.authorize_any,
        }

    # -- grants ----------------------------------------------------------------------------------

    def add_grants(
        self, request: access_pb2.AddGrantsRequest, call: Call
    ) -> access_pb2.AddGrantsResponse:
        """Adds grants to an entry; duplicates are ignored."""
        response = access_pb2.AddGrantsResponse()
        response.added.extend(self._change(AddGrants, request, call, response))
        return response

    def remove_grants(
        self, request: access_pb2.RemoveGrantsRequest, call: Call
    ) -> access_pb2.RemoveGrantsResponse:
        """Removes grants from an entry; only exact matches are removed."""
        response = access_pb2.RemoveGrantsResponse()
        if request.inherited_from:
            self._plan_inherited(request, call, response.plan)
        else:
            response.removed.extend(self._change(RemoveGrants, request, call, response))
        return response

    def _plan_inherited(
        self, request: access_pb2.RemoveGrantsRequest, call: Call, plan: access_pb2.ChangePlan
    ) -> None:
        """Fills in the effect of removing the grants of an ancestor above the mount.

        Raises:
            InvalidArgument: the request is no dry run, or its path is not the mount.
        """
        path = Path.parse(request.path)
        asked = RemoveGrants(path=path, grants=_grants_of(request), kind=Kind.DIRECTORY)
        if not request.validate_only:
            raise InvalidArgument(
                "inherited_from: only with validate_only: grants are removed where they were added",
                field="inherited_from",
            )
        cluster, command, written = commit_change(self._router, asked, request, call, holder=False)
        assert written.snapshot is not None  # noqa: S101 - it was only planned
        mount = cluster.mount_at(written.snapshot)
        if path != mount:
            raise InvalidArgument(
                f"inherited_from: found the path {path}; expected {mount}, which inherits it",
                field="inherited_from",
            )
        write = removed_grants_write(
            written.snapshot, Path.parse(request.inherited_from), command.grants
        )
        if write is not None:
            changed = replace(written, plan=replace(written.plan, writes=(write,)))
            fill_change_plan(self._router, cluster, command, changed, call, plan)

    def _change(
        self,
        desired: type[AddGrants | RemoveGrants],
        request: access_pb2.AddGrantsRequest | access_pb2.RemoveGrantsRequest,
        call: Call,
        response: access_pb2.AddGrantsResponse | access_pb2.RemoveGrantsResponse,
    ) -> Iterable[access_pb2.Grant]:
        """Changes the grants of an entry and fills in the response; returns the grants added or
        removed.
        """
        asked = desired(
            path=Path.parse(request.path),
            grants=_grants_of(request),
            kind=kind_from_number(request.kind),
        )
        cluster, command, written = commit_change(
            self._router, asked, request, call, holder=asked.kind is Kind.MOUNT
        )
        response.token = cluster.token_at(written.revision)
        response.grants.extend(map(grant_to_proto, written.plan.grants))
        response.topic_count = written.plan.topic_count
        if request.validate_only:
            fill_change_plan(self._router, cluster, command, written, call, response.plan)
        return map(grant_to_proto, written.plan.grants_changed)

    def list_grants(
        self, request: access_pb2.ListGrantsRequest, call: Call
    ) -> access_pb2.ListGrantsResponse:
        """Returns the grants set on an entry itself, without inherited ones."""
        path = Path.parse(request.path)
        kind = kind_from_number(request.kind)
        cluster, tree = self._router.read_owned(
            path, request.token, call, holder=kind is Kind.MOUNT
        )
        found = tree.require_entry(path, kind, no_follow=True)
        place = EntryPlace(path.below(tree.mount), isinstance(found, TopicAt))
        return access_pb2.ListGrantsResponse(
            grants=map(grant_to_proto, tree.snapshot.grants.grants_at(place)),
            token=cluster.token_of(tree.snapshot),
        )

    # -- questions -------------------------------------------------------------------------------

    def check_access(
        self, request: access_pb2.CheckAccessRequest, call: Call
    ) -> access_pb2.CheckAccessResponse:
        """Returns whether a principal may do an operation, and the grant that decides.

        The path need not exist. Every caller may ask about itself; asking about others, and for the
        reason, requires DESCRIBE on the entry.
        """
        path = Path.parse(request.path)
        caller = Caller.parse(request.principal, request.host)
        resource = resource_kind_from_proto(request.resource_type)
        operation = operation_from_proto(request.operation)
        question = AccessQuestion.for_operation(operation, resource, request.resource_name)
        cluster, tree = self._router.read_owned(path, request.token, call)
        age = _age(cluster)
        of_others = caller.principal != (call.principal or ANONYMOUS)
        if of_others and not can_query_access(tree, path, kind_from_number(request.kind)):
            raise tree.absent_error(path)
        access = self._router.access_control.access(cluster, tree.snapshot)

        def is_granted_at(place: EntryPlace) -> bool:
            of_itself = not of_others
            return of_itself and access.is_granted_at(caller, question, place, age_seconds=age)

        kind = _kind_asked(tree, path, kind_from_number(request.kind), is_granted_at)
        relative = path.below(tree.mount)
        is_topic = kind is Kind.TOPIC and bool(relative) and resource is ResourceType.TOPIC
        place = EntryPlace(relative, is_topic)
        shown = True
        if not of_others and not tree.is_open:
            access = _as_if_absent(tree, access, place, is_granted_at)
            shown = access.authorize(tree.caller, _DESCRIBE, place, age_seconds=age).allowed
        explained = explain(access, caller, question, place, age_seconds=age)
        decision = explained.decision
        response = access_pb2.CheckAccessResponse(
            allowed=decision.allowed, token=cluster.token_of(tree.snapshot)
        )
        if not shown:
            response.message = _without_reason(caller, question, path, allowed=decision.allowed)
            return response
        _why(decision, response)
        if request.explain:
            _fill_levels(explained, response)
        return response

    def authorize_any(
        self, request: access_pb2.AuthorizeAnyRequest, call: Call
    ) -> access_pb2.AuthorizeAnyResponse:
        """Returns whether a principal may do an operation on any resource of a kind (KIP-679), in
        the cluster that owns the path.

        Every caller may ask about itself; asking about others requires DESCRIBE on the cluster.
        """
        caller = Caller.parse(request.principal, request.host)
        operation = operation_from_proto(request.operation)
        resource = resource_kind_from_proto(request.resource_type)
        if request.path:
            path = Path.parse(request.path)
            cluster, tree = self._router.read_owned(path, request.token, call)
            snapshot = tree.snapshot
        else:
            cluster = self._router.clusters[0]
            cluster.check_mounted()
            snapshot = self._router.read_snapshot(cluster, request.token, call)
        if caller.principal != (call.principal or ANONYMOUS):
            self._router.access_control.require_admin(cluster, "AccessService/AuthorizeAny", call)
        access = self._router.access_control.access(cluster, snapshot)
        age = _age(cluster)
        if (operation, resource) == (Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER):
            allowed = may_produce_idempotently(access, caller, age_seconds=age)
        else:
            allowed = authorize_any(access, caller, operation, resource, age_seconds=age)
        return access_pb2.AuthorizeAnyResponse(allowed=allowed, token=cluster.token_of(snapshot))


def _grants_of(
    request: access_pb2.AddGrantsRequest | access_pb2.RemoveGrantsRequest,
) -> tuple[Grant, ...]:
    """Returns the grants of a request, in order.

    Raises:
        InvalidArgument: as ``grants_from_proto``; or a grant has a field that this version does not
            know, which may be a condition.
    """
    try:
        for message in request.grants:
            refuse_newer(message)
    except ValueError as error:
        raise InvalidArgument(f"grants: {error}", field="grants") from None
    return grants_from_proto(request.grants)


def can_query_access(tree: OpenTree, path: Path, kind: Kind | None) -> bool:
    """True if the caller may ask about the rights of others at a path: it sees the entry; or there
    is none, and nothing below the deepest existing directory above the path is hidden from it.
    """
    mount = tree.mount
    if tree.is_open or not mount.is_prefix_of(path):
        return True
    try:
        found = tree.locate_entry(path, kind)
    except (Absent, UnreadableRecord) as error:
        if isinstance(error, UnreadableRecord) and tree.is_visible(path):
            return True
        relative = path.below(mount)
        return tree.can_describe_all_below(relative[: traverse(tree.snapshot, relative[:-1]).depth])
    except KdirError:
        return tree.is_visible(path)
    return tree.can_describe(path.below(mount), is_topic=isinstance(found.entry, Topic))


def _as_if_absent(
    tree: OpenTree,
    access: Authorizer,
    place: EntryPlace,
    is_granted_at: Callable[[EntryPlace], bool],
) -> Authorizer:
    """Returns the access rules at a place without what the caller, who asks about itself, may not
    learn.

    Grants and closed directories count down to the deepest entry that the caller knows of. Those of
    hidden entries further down do not count, as an absent entry has none. A caller knows of an
    entry that it may describe, and of one whose own grant allows the operation it asks about
    (``is_granted_at``).
    """
    hidden: EntryPlace | None = None
    for length in range(len(place.relative), 0, -1):
        here = EntryPlace(place.relative[:length], place.is_topic and length == len(place.relative))
        if tree.can_describe(here.relative, is_topic=here.is_topic) or is_granted_at(here):
            break
        hidden = here
    if hidden is None:
        return access
    return replace(access, tree=access.own_grants().detach_subtree(hidden)[0])


def _kind_asked(
    tree: OpenTree,
    path: Path,
    kind: Kind | None,
    is_granted_at: Callable[[EntryPlace], bool] = lambda _: False,
) -> Kind:
    """Returns the kind of resource that a question about rights is for; a topic where the caller
    knows of no entry.

    ``is_granted_at``: whether the entry's own grant allows the operation.

    Raises:
        NotAuthoritative: the path leads beyond a mount.
    """
    if kind is not None:
        return kind
    meant = tree.meant_kind(path, None)
    if meant is not None:
        return meant
    if not tree.is_visible(path):
        relative = path.below(tree.mount)
        is_topic = bool(relative) and is_granted_at(EntryPlace(relative, is_topic=True))
        return (
            Kind.DIRECTORY if not is_topic and is_granted_at(EntryPlace(relative)) else Kind.TOPIC
        )
    try:
        return tree.locate_entry(path, None).entry.kind
    except NotAuthoritative:
        raise
    except KdirError:
        return Kind.TOPIC


def _without_reason(caller: Caller, question: AccessQuestion, path: Path, *, allowed: bool) -> str:
    """Returns a decision without its reason, for a caller that asks about itself and may not
    describe the entry: the same whether or not the entry exists.
    """
    asked = question.operation.name
    if question.kind is not ResourceType.TOPIC:
        asked = f"{asked} ({question.kind.name} {question.name or '*'})"
    if allowed:
        held = f"allowed: {caller.principal} has {asked} and lacks DESCRIBE"
    elif question.operation is Operation.DESCRIBE:
        held = f"denied: {caller.principal} lacks {asked}"
    else:
        held = f"denied: {caller.principal} lacks {asked} and DESCRIBE"
    return f"{held} on {path}; the deciding grants are shown only with DESCRIBE"


def _age(cluster: Cluster) -> float:
    return cluster.unconfirmed_seconds() or 0.0


def _why(decision: Decision, response: access_pb2.CheckAccessResponse) -> None:
    if decision.grant is not None:
        response.deciding_grant.CopyFrom(grant_to_proto(decision.grant))
    if decision.path is not None:
        response.deciding_path = str(decision.path)
    if decision.implied_by is not None:
        response.implied_by = cast("access_pb2.Operation", decision.implied_by.value)
    response.message = str(decision)


def _fill_levels(explained: Explanation, response: access_pb2.CheckAccessResponse) -> None:
    if explained.decision.reason is DecisionReason.SUPER_USER:
        return
    for level in explained.levels:
        out = response.levels.add(
            path=str(level.path), closed=level.closed, inherited=level.inherited
        )
        for seen in level.grants:
            out.grants.add(
                grant=grant_to_proto(seen.grant),
                decides=seen.effect is Effect.DECIDES,
                message=seen.effect.value,
            )
