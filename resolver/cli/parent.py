"""The verb ``parent``: detaches a cluster from its parent, and attaches it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.cli.parser import Argument, Arguments, Option, UsageError, Verb
from resolver.cli.streams import CLUSTER, CLUSTER_PATH, call_chosen_cluster, chosen_cluster, name_of
from resolver.errors import InvalidArgument

if TYPE_CHECKING:
    from kdir.v1 import admin_pb2

    from resolver.cli.session import Session

__all__ = ["VERBS"]


def _parent(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import admin_pb2

    out = session.out
    keep = arguments.flag("keep-inherited")
    if arguments.one("ACTION") == "attach":
        if keep:
            raise UsageError("--keep-inherited goes with detach", verb="parent")
        status: admin_pb2.GetStatusResponse = call_chosen_cluster(
            session,
            arguments,
            "AdminService.GetStatus",
            admin_pb2.GetStatusRequest(),
            changes=True,
        )
        if not status.parent.detached_reason:
            out.note(f"unchanged: {status.authority.cluster.cluster} was not detached")
            return 0
        call_chosen_cluster(
            session,
            arguments,
            "AdminService.AttachParent",
            admin_pb2.AttachParentRequest(),
            changes=True,
        )
        out.note(f"{_meant(session, arguments)} attached to its parent again")
        return 0
    if not session.approve(
        f"detach {_meant(session, arguments)} from its parent",
        "What its parent changes from now on does not reach it",
    ):
        out.note("unchanged")
        return 0
    try:
        answer: admin_pb2.DetachParentResponse = call_chosen_cluster(
            session,
            arguments,
            "AdminService.DetachParent",
            admin_pb2.DetachParentRequest(keep_inherited=keep),
            changes=True,
        )
    except InvalidArgument as refused:
        if refused.metadata.get("field") != "keep_inherited":
            raise
        raise UsageError(
            "detach keeps inherited policies as the cluster's own; confirm with --keep-inherited",
            verb="parent",
        ) from refused
    if out.structured:
        out.record(answer)
    kept = ", ".join(answer.kept) or "nothing"
    out.note(
        f"{_meant(session, arguments)} detached from its parent; kept inherited policies of: {kept}"
    )
    return 0


def _meant(session: Session, arguments: Arguments) -> str:
    """Returns the name of the chosen cluster, for people."""
    return name_of(session, chosen_cluster(session, arguments, changes=True))


VERBS = (
    Verb(
        name="parent",
        summary="detach a cluster from its parent, or attach it again",
        run=_parent,
        destroys=True,
        writes=True,
        details=(
            "detach --keep-inherited: policies and grants inherited from above the mount stay as\n"
            "last received, and the cluster does not connect to its parent before attach. Clients\n"
            "reach it as before; the parent shows it as disconnected. After either, changes that\n"
            "may delete data in Kafka need approval (kdir arm).\n"
            "Inherited state that is unreadable in the store cannot be kept: without\n"
            "--keep-inherited nothing is inherited. Its servers resolve no path then: omit PATH."
        ),
        arguments=(
            Argument("ACTION", "detach or attach", choices=("detach", "attach")),
            CLUSTER_PATH,
        ),
        options=(
            CLUSTER,
            Option(("--keep-inherited",), "keep inherited policies and grants as they are"),
        ),
        formats=("table", "json", "yaml"),
        examples=(
            ("kdir parent detach /la/tracking --keep-inherited", "the parent is down for long"),
            ("kdir parent attach /la/tracking", "the parent is back"),
            ("kdir parent detach --at HOST:PORT", "the inherited state is unreadable"),
        ),
    ),
)
