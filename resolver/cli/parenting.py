"""The verb ``parent``: lets a cluster go on without its parent, and with it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.cli.parser import Argument, Arguments, Option, UsageError, Verb
from resolver.cli.session import place

if TYPE_CHECKING:
    from kdir.v1 import admin_pb2

    from resolver.cli.session import Session

__all__ = ["VERBS"]


def _parent(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import admin_pb2

    where = place(arguments.one("PATH")).path
    owner = session.resolver.owner_of(where)
    out = session.out
    if arguments.one("ACTION") == "attach":
        if arguments.flag("keep-inherited"):
            raise UsageError("--keep-inherited goes with detach", verb="parent")
        session.resolver.call(
            where,
            "AdminService.AttachParent",
            admin_pb2.AttachParentRequest(cluster=owner.cluster_id),
        )
        out.note(f"{owner.cluster} links with its parent again")
        return 0
    if not arguments.flag("keep-inherited"):
        raise UsageError(
            "detach keeps what is inherited as the cluster's own; say so: --keep-inherited",
            verb="parent",
        )
    answer: admin_pb2.DetachParentResponse = session.resolver.call(
        where,
        "AdminService.DetachParent",
        admin_pb2.DetachParentRequest(cluster=owner.cluster_id, keep_inherited=True),
    )
    if out.structured:
        out.record(answer)
    kept = ", ".join(answer.kept) or "nothing was set there"
    out.note(f"{owner.cluster} goes on without its parent; kept from above its mount: {kept}")
    return 0


VERBS = (
    Verb(
        name="parent",
        summary="let a cluster go on without its parent, or with it again",
        run=_parent,
        writes=True,
        details=(
            "detach --keep-inherited: what the directories above the mount set holds from now on\n"
            "as the parent said it last, and the link is not tried again before attach. Clients\n"
            "reach the cluster as before; the parent shows it as away. After either, what could\n"
            "delete data in Kafka waits for kdir arm."
        ),
        arguments=(
            Argument("ACTION", "detach or attach", choices=("detach", "attach")),
            Argument("PATH", "any path of the cluster, such as its mount", completes="path"),
        ),
        options=(Option(("--keep-inherited",), "what is inherited stays, as it is now"),),
        formats=("table", "json", "yaml"),
        examples=(
            ("kdir parent detach /la/tracking --keep-inherited", "a parent that is gone for long"),
            ("kdir parent attach /la/tracking", "it is back"),
        ),
    ),
)
