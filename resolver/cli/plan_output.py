"""Output of ``--plan``: gained and lost rights, changed values, and calls to Kafka; makes no
network calls.

The rows are data, on stdout; the size of the change, and the number of omitted rows, are printed on
stderr. If stdout is no terminal, each row begins with its section: ``access``, ``policy``,
``kafka``, ``quota`` or ``retired``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from resolver import units
from resolver.cli.output import Column, Styled, Table
from resolver.cli.topic_counts import TopicCount
from resolver.confirmation import GROW_CALL, GROWTH
from resolver.entry_fields import policy_key
from resolver.message_values import plain

if TYPE_CHECKING:
    from kdir.v1 import access_pb2, policies_pb2

    from resolver.cli.output import Output

__all__ = ["FOR_NEW_TOPICS", "OF_NEW_TOPICS", "print_change_plan"]

FOR_NEW_TOPICS: Final = (
    "of new topics: those that exist keep their partitions and replicas (kdir grow gives more)"
)

_EVERYBODY: Final = "User:*"
_SECTIONS: Final = {
    "access": ("PRINCIPAL", "HOST", "GAINS", "LOSES", "RESOURCE TYPE", "PATH (RECURSIVE)"),
    "policy": ("POLICY", "BEFORE", "AFTER", "TOPICS", "CLUSTERS", "DATA LOSS"),
    "kafka": ("RESOURCE", "SETTING", "BEFORE", "AFTER", "OPERATION"),
    "quota": ("QUOTA PATH", "FIELD", "LIMIT", "USED AFTER"),
    "retired": ("RETIRED NAME (24 h)",),
}
OF_NEW_TOPICS: Final = frozenset({"partitions", "replication_factor"})
_RIGHT: Final = frozenset({"TOPICS", "CLUSTERS", "LIMIT", "USED AFTER"})


def print_change_plan(
    out: Output,
    plan: access_pb2.ChangePlan,
    *,
    recorded: bool = False,
    effect: str = "",
    is_cluster_unknown: bool = False,
) -> None:
    """Prints a plan in the output format; nothing with ``-o name``.

    Args:
        recorded: an object with the plan was already printed as JSON or YAML.
        effect: text of the changes in Kafka by cluster, if the caller knows more than the plan.
        is_cluster_unknown: the plan of a cluster below is not known.
    """
    if out.structured and not recorded:
        out.record({"plan": plain(plan)})
    elif out.format == "table" and plan.ByteSize():
        _show(out, plan, effect, is_cluster_unknown=is_cluster_unknown)
    elif out.format == "table":
        out.note("dry run")  # the server sent an empty plan


def _show(
    out: Output, plan: access_pb2.ChangePlan, effect: str, *, is_cluster_unknown: bool
) -> None:
    human, is_whole = out.human, not (plan.incomplete or plan.caller_view)
    _section(out, "access", (_access(one, human=human) for one in plan.access))
    _section(out, "policy", (_policy(one, human=human, is_whole=is_whole) for one in plan.policies))
    _section(out, "kafka", (_kafka(one) for one in plan.kafka_calls))
    _section(
        out,
        "quota",
        ([one.path, one.field, str(one.limit), str(one.used)] for one in plan.quotas),
    )
    _section(out, "retired", ([name] for name in plan.retired_names))
    left_out = (
        (plan.access_omitted, "more access row", "more access rows"),
        (plan.kafka_calls_omitted, "more call to Kafka", "more calls to Kafka"),
        (plan.retired_names_omitted, "more retired name", "more retired names"),
    )
    for number, one, many in left_out:
        if number:
            least = "at least " if plan.incomplete else ""
            out.note(f"… and {least}{units.plural(number, one, many)}")
    out.note(f"dry run: affects {_entries(plan)}")
    if any(one.operation == GROW_CALL for one in plan.kafka_calls):
        out.note(f"partitions grow. {GROWTH}", "bad")
    elif any(policy_key(one.field) in OF_NEW_TOPICS for one in plan.policies):
        out.note(f"partitions and replication_factor are {FOR_NEW_TOPICS}", "faint")
    if effect:
        out.note(effect)
    elif plan.held_topic_count:
        held = units.plural(plan.held_topic_count, "topic")
        out.note(f"held back until approved by kdir arm --aspect configs: {held}", "warn")
    if plan.locks_out:
        out.note("you would lose the right to reopen it: asks first", "warn")
    if plan.incomplete:
        unknown = "the plan of a cluster below is not known"
        why = unknown if is_cluster_unknown else "the time limit was reached"
        out.note(f"incomplete: {why}; counts are lower bounds", "warn")
    elif plan.caller_view:
        out.note("counts are of the entries that you may describe: lower bounds", "faint")


def _section(out: Output, name: str, rows: Iterable[Sequence[str | Styled]]) -> None:
    found = list(rows)
    if not found:
        return
    if not out.human:
        found = [[name, *row] for row in found]
    columns = [Column(head, right=head in _RIGHT) for head in _SECTIONS[name]]
    Table(out, columns if out.human else [Column("SECTION"), *columns]).rows(found)


def _entries(plan: access_pb2.ChangePlan) -> str:
    """Returns the affected entries as text, such as ``3 directories, 412 topics, 412 topics deleted
    in Kafka with data``.
    """
    entries = plan.entries
    parts = [
        units.plural(number, one, many)
        for number, one, many in (
            (entries.directories, "directory", "directories"),
            (entries.topics, "topic", ""),
            (entries.links, "link", ""),
            (entries.mounts, "mount", ""),
        )
        if number
    ]
    if entries.entries_with_grants:
        granted = units.plural(entries.entries_with_grants, "entry", "entries")
        parts.append(f"{granted} with grants of their own")
    if entries.kafka_deleted:
        parts.append(f"{units.plural(entries.kafka_deleted, 'topic')} deleted in Kafka with data")
    if entries.kafka_detached:
        parts.append(f"{units.plural(entries.kafka_detached, 'topic')} left in Kafka")
    if entries.kafka_missing:
        parts.append(f"{units.plural(entries.kafka_missing, 'topic')} not in Kafka any more")
    if entries.kafka_replaced:
        parts.append(f"{units.plural(entries.kafka_replaced, 'topic')} replaced in Kafka and left")
    least = "at least " if plan.incomplete or plan.caller_view else ""
    return least + (", ".join(parts) or "nothing")


def _access(one: access_pb2.AccessChange, *, human: bool) -> list[str | Styled]:
    from kdir.v1 import access_pb2, entry_pb2

    def parts(operations: Iterable[access_pb2.Operation], style: str) -> str | Styled:
        names = [access_pb2.Operation.Name(each) for each in operations]
        text = ",".join(name.removeprefix("OPERATION_") for name in names)
        return Styled(text, style) if text else "-"

    kind = access_pb2.ResourceType.Name(one.resource_type).removeprefix("RESOURCE_TYPE_")
    everybody = human and one.principal == _EVERYBODY
    of_topic = one.kind == entry_pb2.ENTRY_KIND_TOPIC
    slash = "" if of_topic or one.path == "/" else "/"
    unchanged = human and not (one.gained or one.lost)
    return [
        "all other principals" if everybody else one.principal,
        one.host or "*",
        "no change" if unchanged else parts(one.gained, "warn"),
        parts(one.lost, "bad"),
        f"{kind} {one.resource_name}".rstrip(),
        f"{one.path}{slash}",
    ]


def _policy(one: access_pb2.PolicyChange, *, human: bool, is_whole: bool) -> list[str | Styled]:
    key = policy_key(one.field)
    shown = units.retention if human and key.endswith(".ms") else str
    data: str | Styled = Styled("possible", "bad") if one.deletes_data else "-"
    return [
        key,
        (shown(one.before) or '""') if one.HasField("before") else "-",
        (shown(one.after) or '""') if one.HasField("after") else "-",
        TopicCount(one.topic_count, is_whole=is_whole).cell(human=human),
        str(one.cluster_count),
        data,
    ]


def _kafka(one: policies_pb2.KafkaCall) -> list[str | Styled]:
    if one.HasField("acl"):
        return [one.resource, one.key, "-", "-", one.operation]
    before = one.before if one.HasField("before") else "(default)"
    after = one.after if one.HasField("after") else "(default)"
    return [one.resource, one.key, before, after, one.operation]
