"""The verb ``arm``: shows what kdir would change in Kafka, and lets it; decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resolver.cli import units
from resolver.cli.output import plain
from resolver.cli.parser import Argument, Arguments, Option, UsageError, Verb
from resolver.cli.session import place

if TYPE_CHECKING:
    from kdir.v1 import policies_pb2

    from resolver.cli.output import Output
    from resolver.cli.session import Place, Session

__all__ = ["ASPECTS", "VERBS"]

ASPECTS: Final = ("create", "configs", "acls", "delete")


def _arm(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import policies_pb2

    where, aspect = place(arguments.one("PATH")), arguments.one("aspect")
    if aspect not in ASPECTS:
        raise UsageError(f"--aspect: one of {', '.join(ASPECTS)} is needed", verb="arm")
    plan, takeover = arguments.one("plan"), arguments.flag("takeover")
    if takeover and aspect != "acls":
        raise UsageError("--takeover is about --aspect acls only", verb="arm")
    if plan:
        return _do(session, where, aspect, plan, takeover=takeover)
    answer: policies_pb2.PlanArmingResponse = session.resolver.call(
        where.path,
        "PolicyService.PlanArming",
        policies_pb2.PlanArmingRequest(
            path=str(where.path), aspect=aspect, takeover=takeover, directory=where.directory
        ),
    )
    out = session.out
    if out.structured:
        out.record(plain(answer))
        return 0
    if out.format == "name":
        out.lines([answer.plan_hash])
        return 0
    cluster = session.resolver.owner_of(where.path).cluster
    if answer.HasField("acl_counts"):
        _show_acls(out, answer, cluster, takeover=takeover)
    else:
        _show_topics(out, answer, cluster)
    command = f"kdir arm {where} --aspect {aspect}{' --takeover' if takeover else ''}"
    out.note(f"nothing was changed. To do exactly this: {command} --plan {answer.plan_hash}")
    return 0


def _show_topics(out: Output, answer: policies_pb2.PlanArmingResponse, cluster: str) -> None:
    topics = len({call.resource for call in answer.calls})
    if topics:
        out.lines([f"would change {units.plural(topics, 'topic')} of {cluster}:"])
    else:
        out.lines([f"would change nothing in Kafka now; {cluster} has all as it is wished"])
    names = max((len(call.resource) for call in answer.calls), default=0)
    keys = max((len(call.key) for call in answer.calls), default=0)
    out.lines(
        f"  {call.resource:<{names}}    {call.key:<{keys}}   {_value(call, 'before')} → "
        f"{_value(call, 'after')}"
        for call in answer.calls
    )


def _show_acls(
    out: Output, answer: policies_pb2.PlanArmingResponse, cluster: str, *, takeover: bool
) -> None:
    calls, counts = answer.calls, answer.acl_counts
    waiting = sum(call.takeover for call in calls) if not takeover else 0
    if calls:
        out.lines([f"would make {units.plural(len(calls) - waiting, 'ACL call')} to {cluster}:"])
    else:
        out.lines([f"would change nothing in Kafka now; {cluster} has all ACLs as granted"])
    names = max((len(call.resource) for call in calls), default=0)
    out.lines(
        f"  {call.operation}  {call.resource:<{names}}  {call.key}"
        f"{_takeover_word(takeover=takeover) if call.takeover else ''}"
        for call in calls
    )
    out.lines([f"{counts.before} ACLs in Kafka now, {counts.after} then; at most {counts.limit}"])
    if waiting:
        out.note(
            f"{units.plural(waiting, 'call')} would close what everybody may use now, and would "
            f"not be made; with --takeover they would",
            "warn",
        )


def _takeover_word(*, takeover: bool) -> str:
    return "  (closes what is open to all)" if takeover else "  (waits for --takeover)"


def _value(call: policies_pb2.KafkaCall, field: str) -> str:
    return str(getattr(call, field)) if call.HasField(field) else "(default)"


def _do(session: Session, where: Place, aspect: str, plan: str, *, takeover: bool) -> int:
    from kdir.v1 import policies_pb2

    path = str(where.path)
    request = policies_pb2.ArmRequest(
        path=path, aspect=aspect, plan_hash=plan, takeover=takeover, directory=where.directory
    )
    answer: policies_pb2.ArmResponse = session.resolver.call(
        where.path, "PolicyService.Arm", request
    )
    out = session.out
    if out.structured:
        out.record(plain(answer))
    elif answer.under_way:
        out.note(f"{path} is armed for {aspect}; its calls are being made: kdir arm shows the rest")
    else:
        made = units.plural(answer.calls_made, "call")
        out.note(f"{path} is armed for {aspect}: {made} made")
    if answer.message:
        out.note(answer.message, "warn")
        return _EXIT_PARTIAL
    return 0


_EXIT_PARTIAL: Final = 3

VERBS: Final = (
    Verb(
        name="arm",
        summary="let kdir change an aspect of Kafka below a path, by a plan that was read",
        run=_arm,
        writes=True,
        timeout_seconds=60.0,
        details=(
            "Without --plan it asks Kafka and prints exactly what would be changed there now, and\n"
            "the plan's name; with it, those calls are made, and from then on what is set here or\n"
            "above reaches Kafka by itself. A plan that would be another one by now is refused.\n"
            "Values that kdir did not set and nobody wishes are left alone. What could delete\n"
            "data reaches the topics that are there now and those that kdir makes. For others\n"
            "that come later it waits, and for all after a restore, a mount, a detach or another\n"
            "Kafka. Armed again, it does what waits, what is contested, and what Kafka refused.\n"
            "acls: the grants that hold here go to Kafka as ACLs of each topic, and of groups and\n"
            "transactional ids; only ACLs that kdir made are ever removed. The first ACL on what\n"
            "everybody may use (allow.everyone.if.no.acl.found) is made only with --takeover.\n"
            "Set manage.ASPECT=false, or unset it, and kdir changes nothing there any more."
        ),
        arguments=(
            Argument(
                "PATH", "of a topic or directory; with / behind it the directory", completes="path"
            ),
        ),
        options=(
            Option(("--aspect",), "what kdir may change", "ASPECT", choices=ASPECTS),
            Option(("--plan",), "do what the plan of this name says", "HASH"),
            Option(("--takeover",), "acls: also close what everybody may use while it has none"),
        ),
        formats=("table", "json", "yaml", "name"),
        examples=(
            ("kdir arm /la/tracking/search --aspect configs", "what would be changed"),
            ("kdir arm /la/tracking/search --aspect configs --plan 7f3a9c", "do exactly that"),
            ("kdir arm /la/tracking/search --aspect acls", "which ACLs would be made in Kafka"),
        ),
    ),
)
