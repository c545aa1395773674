"""The verb ``parent``: lets a cluster go on without its parent, and with it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.cli.parser import Argument, Arguments, Option, UsageError, Verb
from resolver.cli.session import place
from resolver.cli.streams import CLUSTER_PATH, ask_meant
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
        ask_meant(session, arguments, "AdminService.AttachParent", admin_pb2.AttachParentRequest())
        out.note(f"{_meant(session, arguments)} links with its parent again")
        return 0
    try:
        answer: admin_pb2.DetachParentResponse = ask_meant(
            session,
            arguments,
            "AdminService.DetachParent",
            admin_pb2.DetachParentRequest(keep_inherited=keep),
        )
    except InvalidArgument as refused:
        if refused.metadata.get("field") != "keep_inherited":
            raise
        raise UsageError(
            "detach keeps what is inherited as the cluster's own; say so: --keep-inherited",
            verb="parent",
        ) from refused
    if out.structured:
        out.record(answer)
    kept = ", ".join(answer.kept) or "nothing"
    out.note(
        f"{_meant(session, arguments)} goes on without its parent; kept from above its mount: "
        f"{kept}"
    )
    return 0


def _meant(session: Session, arguments: Arguments) -> str:
    """The cluster, for people: by its path where one was named."""
    path = arguments.one("PATH")
    return session.resolver.owner_of(place(path).path).cluster if path else "the asked cluster"


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
            "delete data in Kafka waits for kdir arm.\n"
            "What cannot be read in the store any more cannot be kept: without --keep-inherited\n"
            "nothing is inherited then. Its servers find no path meanwhile: leave PATH out."
        ),
        arguments=(
            Argument("ACTION", "detach or attach", choices=("detach", "attach")),
            CLUSTER_PATH,
        ),
        options=(Option(("--keep-inherited",), "what is inherited stays, as it is now"),),
        formats=("table", "json", "yaml"),
        examples=(
            ("kdir parent detach /la/tracking --keep-inherited", "a parent that is gone for long"),
            ("kdir parent attach /la/tracking", "it is back"),
            ("kdir parent detach --at HOST:PORT", "what it handed down cannot be read"),
        ),
    ),
)
