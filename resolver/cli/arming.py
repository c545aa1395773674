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
    from resolver.cli.session import Session

__all__ = ["ASPECTS", "VERBS"]

ASPECTS: Final = ("create", "configs", "acls", "delete")


def _arm(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import policies_pb2

    where, aspect = place(arguments.one("PATH")), arguments.one("aspect")
    if aspect not in ASPECTS:
        raise UsageError(f"--aspect: one of {', '.join(ASPECTS)} is needed", verb="arm")
    plan = arguments.one("plan")
    if plan:
        return _do(session, str(where.path), aspect, plan)
    answer: policies_pb2.PlanArmingResponse = session.resolver.call(
        where.path,
        "PolicyService.PlanArming",
        policies_pb2.PlanArmingRequest(path=str(where.path), aspect=aspect),
    )
    out = session.out
    if out.structured:
        out.record(plain(answer))
        return 0
    if out.format == "name":
        out.lines([answer.plan_hash])
        return 0
    cluster = session.resolver.owner_of(where.path).cluster
    topics = len({call.resource for call in answer.calls})
    if topics:
        out.lines([f"would change {units.plural(topics, 'topic')} of {cluster}:"])
    else:
        out.lines([f"would change nothing in Kafka now; {cluster} has all as it is wished"])
    _show(out, answer)
    command = f"kdir arm {where.path} --aspect {aspect} --plan {answer.plan_hash}"
    out.note(f"nothing was changed. To do exactly this: {command}")
    return 0


def _show(out: Output, answer: policies_pb2.PlanArmingResponse) -> None:
    names = max((len(call.resource) for call in answer.calls), default=0)
    keys = max((len(call.key) for call in answer.calls), default=0)
    out.lines(
        f"  {call.resource:<{names}}    {call.key:<{keys}}   {_value(call, 'before')} → "
        f"{_value(call, 'after')}"
        for call in answer.calls
    )


def _value(call: policies_pb2.KafkaCall, field: str) -> str:
    return str(getattr(call, field)) if call.HasField(field) else "(default)"


def _do(session: Session, path: str, aspect: str, plan: str) -> int:
    from kdir.v1 import policies_pb2

    request = policies_pb2.ArmRequest(path=path, aspect=aspect, plan_hash=plan)
    answer: policies_pb2.ArmResponse = session.resolver.call(
        place(path).path, "PolicyService.Arm", request
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
            "Values that kdir did not set and nobody wishes are left alone. Armed again, it also\n"
            "does what waits for an operator, what is contested, and what Kafka refused.\n"
            "Set manage.ASPECT=false, or unset it, and kdir changes nothing there any more."
        ),
        arguments=(Argument("PATH", "of a directory or topic", completes="path"),),
        options=(
            Option(("--aspect",), "of create, configs, acls, delete", "ASPECT"),
            Option(("--plan",), "do what the plan of this name says", "HASH"),
        ),
        formats=("table", "json", "yaml", "name"),
        examples=(
            ("kdir arm /la/tracking/search --aspect configs", "what would be changed"),
            ("kdir arm /la/tracking/search --aspect configs --plan 7f3a9c", "do exactly that"),
        ),
    ),
)
