"""The verb ``features``: shows the levels that a cluster's servers support and the finalized one,
and finalizes a level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resolver.cli.output import Column, Styled, Table
from resolver.cli.parser import Argument, Arguments, Option, UsageError, Verb
from resolver.cli.streams import (
    CLUSTER,
    CLUSTER_PATH,
    call_chosen_cluster,
    chosen_cluster,
    name_of,
)
from resolver.message_values import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kdir.v1 import admin_pb2

    from resolver.cli.session import Session

__all__ = ["VERBS"]


def _features(session: Session, arguments: Arguments) -> int:
    if arguments.one("ACTION", "show") == "show":
        if arguments.one("level") or arguments.flag("plan"):
            raise UsageError("--level and --plan go with finalize", verb="features")
        return _show(session, arguments)
    session.allow_write("features")
    return _finalize(session, arguments)


# -- show ----------------------------------------------------------------------------------------


def _show(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import admin_pb2

    status: admin_pb2.GetStatusResponse = call_chosen_cluster(
        session, arguments, "AdminService.GetStatus", admin_pb2.GetStatusRequest()
    )
    session.note_stale(status.authority)
    out, cluster = session.out, status.authority.cluster
    supported = min((one.feature_level for one in status.members), default=status.feature_level)
    if out.structured:
        named: dict[str, object] = {"cluster": cluster.cluster, "cluster_id": cluster.cluster_id}
        levels = {"finalized_level": status.finalized_level, "supported_level": supported}
        out.record(named | levels | {"members": [plain(one) for one in status.members]})
        return 0
    Table(out, _COLUMNS).rows([_table_row(one, status.finalized_level) for one in status.members])
    out.note(_state(cluster.cluster, status.finalized_level, supported, status.members))
    return 0


_COLUMNS: Final = (
    Column("SERVER"),
    Column("SUPPORTED LEVEL", right=True),
    Column("FINALIZED LEVEL", right=True),
    Column("VERSION"),
    Column("HOST"),
    Column("PID", right=True),
    Column("ENDPOINTS"),
    Column("ROLES"),
)


def _table_row(member: admin_pb2.Member, finalized: int) -> list[str | Styled]:
    return [
        member.server,
        str(member.feature_level),
        str(finalized or "unreadable"),
        member.version,
        member.host or "-",
        str(member.pid or "-"),
        ",".join(member.endpoints) or "-",
        ",".join(member.roles) or "-",
    ]


def _state(
    cluster: str, finalized: int, supported: int, members: Sequence[admin_pb2.Member]
) -> str:
    if not finalized:
        return f"{cluster}: the finalized level is unreadable: kdir features finalize"
    highest = max((one.feature_level for one in members), default=finalized)
    if supported > finalized:
        return (
            f"{cluster}: level {finalized} is finalized, and every server supports {supported}: "
            f"kdir features finalize"
        )
    if highest > finalized:
        behind = ", ".join(one.server for one in members if one.feature_level < highest)
        return (
            f"{cluster}: level {finalized} is finalized; level {highest} needs an "
            f"upgrade of {behind}"
        )
    return f"{cluster}: level {finalized} is finalized"


# -- finalize ------------------------------------------------------------------------------------


def _finalize(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import admin_pb2

    level, plan, out = arguments.whole("level"), arguments.flag("plan"), session.out

    def ask(*, validate_only: bool) -> admin_pb2.FinalizeFeaturesResponse:
        request = admin_pb2.FinalizeFeaturesRequest(level=level, validate_only=validate_only)
        answer: admin_pb2.FinalizeFeaturesResponse = call_chosen_cluster(
            session, arguments, "AdminService.FinalizeFeatures", request, changes=True
        )
        return answer

    reported = ask(validate_only=True)
    wanted = level or max(reported.supported_level, reported.finalized_level)
    cluster = name_of(session, chosen_cluster(session, arguments))
    if wanted <= reported.finalized_level:
        out.note(f"{cluster}: level {reported.finalized_level} is already finalized")
    elif plan:
        out.note(
            f"dry run: would finalize level {wanted} of {cluster} (current level: "
            f"{reported.finalized_level or 'unreadable'}); older servers could not rejoin"
        )
    elif not session.approve(
        f"finalize level {wanted} of {cluster}", "Older servers cannot come back"
    ):
        out.note("unchanged")
    else:
        reported = ask(validate_only=False)
        level = reported.finalized_level
        out.note(f"{cluster}: level {level} is finalized; older servers cannot rejoin")
    if out.structured:
        out.record(reported)
    return 0


VERBS: Final = (
    Verb(
        name="features",
        summary="supported and finalized feature levels of a cluster; finalize a level",
        run=_features,
        destroys=True,
        details=(
            "A change that needs a newer feature level is refused until every live server of the\n"
            "cluster supports the level and it is finalized. Run finalize after upgrading all\n"
            "servers; older servers do not start afterwards. A new cluster starts at the newest\n"
            "level. Levels never go down."
        ),
        arguments=(
            Argument("ACTION", "show (default) or finalize", 0, choices=("show", "finalize")),
            CLUSTER_PATH,
        ),
        options=(
            CLUSTER,
            Option(("--level",), "default: the highest that every live server supports", "N"),
            Option(("--plan",), "check everything, change nothing"),
        ),
        formats=("table", "json", "yaml"),
        examples=(
            ("kdir features", "the servers of the asked cluster, and its level"),
            ("kdir features finalize --plan", "could it be raised?"),
            ("kdir features finalize /la/tracking", "raise that of a path's cluster"),
        ),
    ),
)
