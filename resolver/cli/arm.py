"""The verb ``arm``: shows the changes that kdir would make in Kafka below a path, and arms the
path.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from resolver import units
from resolver.cli.kafka_wait import WAIT, wait_seconds
from resolver.cli.parser import Argument, Arguments, Option, UsageError, Verb
from resolver.cli.session import parse_path_argument
from resolver.message_values import plain

if TYPE_CHECKING:
    from kdir.v1 import policies_pb2

    from resolver.cli.output import Output
    from resolver.cli.session import PathArgument, Session

__all__ = ["ASPECTS", "VERBS"]

ASPECTS: Final = ("create", "configs", "acls", "delete")


def _arm(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import policies_pb2

    where, aspect = parse_path_argument(arguments.one("PATH")), arguments.one("aspect")
    if aspect not in ASPECTS:
        raise UsageError(f"--aspect: expected one of {', '.join(ASPECTS)}", verb="arm")
    plan, takeover = arguments.one("plan"), arguments.flag("takeover")
    if takeover and aspect != "acls":
        raise UsageError("--takeover goes with --aspect acls only", verb="arm")
    if plan:
        seconds = wait_seconds(arguments) if arguments.flag("wait") else 0.0
        return _do(session, where, aspect, plan, takeover=takeover, wait=seconds)
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
    out.note(f"dry run. To apply exactly this plan: {command} --plan {answer.plan_hash}")
    return 0


def _show_topics(out: Output, answer: policies_pb2.PlanArmingResponse, cluster: str) -> None:
    topics = len({call.resource for call in answer.calls})
    if topics:
        out.lines([f"would change {units.plural(topics, 'topic')} of {cluster}:"])
    else:
        out.lines([f"no changes: Kafka cluster {cluster} matches the desired state"])
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
        out.lines([f"no changes: Kafka cluster {cluster} has all ACLs as granted"])
    names = max((len(call.resource) for call in calls), default=0)
    out.lines(
        f"  {call.operation}  {call.resource:<{names}}  {call.key}"
        f"{_takeover_text(takeover=takeover) if call.takeover else ''}"
        for call in calls
    )
    acls = units.plural(counts.before, "ACL")
    out.line(f"{acls} in Kafka now, {counts.after} afterwards; limit {counts.limit}")
    if waiting:
        out.note(
            f"{units.plural(waiting, 'call')} would add the first ACL to a resource that is open "
            f"to all; skipped without --takeover",
            "warn",
        )


def _takeover_text(*, takeover: bool) -> str:
    return "  (first ACL of an open resource)" if takeover else "  (needs --takeover)"


def _value(call: policies_pb2.KafkaCall, field: str) -> str:
    return str(getattr(call, field)) if call.HasField(field) else "(default)"


def _do(
    session: Session,
    where: PathArgument,
    aspect: str,
    plan: str,
    *,
    takeover: bool,
    wait: float,
) -> int:
    from kdir.v1 import policies_pb2

    path = str(where.path)
    request = policies_pb2.ArmRequest(
        path=path, aspect=aspect, plan_hash=plan, takeover=takeover, directory=where.directory
    )
    answer: policies_pb2.ArmResponse = session.resolver.call(
        where.path, "PolicyService.Arm", request
    )
    until = time.monotonic() + wait
    while answer.in_progress and not answer.message and time.monotonic() < until:
        # The same request again: the server waits for the remaining calls.
        left = min(session.timeout_seconds, max(1.0, until - time.monotonic()))
        answer = session.resolver.call(
            where.path, "PolicyService.Arm", request, timeout_seconds=left
        )
    out = session.out
    if out.structured:
        out.record(plain(answer))
    elif answer.in_progress:
        out.note(
            f"armed {path} for {aspect}; calls in progress. Remaining calls: "
            f"kdir arm {where} --aspect {aspect}"
        )
    else:
        made = units.plural(answer.calls_made, "call")
        out.note(f"armed {path} for {aspect}: {made} made")
    if answer.message:
        out.note(answer.message, "warn")
    return _EXIT_PARTIAL if answer.message or (wait and answer.in_progress) else 0


_EXIT_PARTIAL: Final = 3

VERBS: Final = (
    Verb(
        name="arm",
        summary="apply configs or ACLs below a path to Kafka, by a reviewed plan",
        run=_arm,
        writes=True,
        timeout_seconds=60.0,
        details=(
            "Without --plan it reads Kafka, and prints the exact changes and the plan's hash.\n"
            "With it, those changes are made, and policies set here or above are applied from\n"
            "then on. An outdated plan is refused. Values set in Kafka by others and not set by a\n"
            "policy are left unchanged. Changes that may delete data are applied to topics below\n"
            "the path now and to those that kdir creates; for topics found later, and for all\n"
            "after a restore, a mount, a detach or a changed Kafka cluster, they need approval.\n"
            "Arming again approves them, and retries contested and rejected values.\n"
            "acls: grants are applied as ACLs of each topic, of groups and of transactional ids;\n"
            "only ACLs that kdir created are ever removed. The first ACL of a resource that is\n"
            "open to all (allow.everyone.if.no.acl.found) is created only with --takeover.\n"
            "To disarm: set manage.ASPECT=false, or unset it."
        ),
        arguments=(
            Argument(
                "PATH",
                "of a topic or directory; a trailing / means the directory",
                completes="path",
            ),
        ),
        options=(
            Option(("--aspect",), "what kdir may change", "ASPECT", choices=ASPECTS),
            Option(("--plan",), "apply the plan with this hash", "HASH"),
            Option(("--takeover",), "acls: also add the first ACL to resources open to all"),
            WAIT,
        ),
        formats=("table", "json", "yaml", "name"),
        examples=(
            ("kdir arm /la/tracking/search --aspect configs", "dry run"),
            (
                "kdir arm /la/tracking/search --aspect configs --plan 7f3a9c",
                "apply exactly that plan",
            ),
            ("kdir arm /la/tracking/search --aspect acls", "dry run: ACLs to create"),
        ),
    ),
)
