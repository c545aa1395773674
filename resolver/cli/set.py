"""Verbs for the policies of an entry: ``set``, ``unset``, ``effective``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from resolver import units
from resolver.cli.clusters_below import (
    ClusterBelow,
    ClusterPlan,
    armed_summary,
    clusters_below,
    failure_text,
    inheriting_topics,
    plans_below,
    query_each,
    topics_text,
    unchanged_text,
    with_clusters_below,
)
from resolver.cli.create import ENTRY_FORMATS, PLAN, show_entry
from resolver.cli.entry_rows import CLEARED, KafkaNote, kafka_notes_at
from resolver.cli.kafka_wait import WAIT, clusters_at, wait_for_kafka, wait_seconds
from resolver.cli.mount import some_paths
from resolver.cli.output import Column, Styled, Table
from resolver.cli.parser import Argument, Arguments, Option, UsageError, Verb
from resolver.cli.plan_output import FOR_NEW_TOPICS, OF_NEW_TOPICS, print_change_plan
from resolver.cli.planned_write import decided_values, send_planned
from resolver.cli.policy_arguments import KEYS_HELP, Field, assign_all, forget
from resolver.cli.session import parse_path_argument
from resolver.confirmation import irreversible_effect, lock_out_effect
from resolver.entry_fields import policy_key
from resolver.errors import InvalidArgument, KdirError
from resolver.message_values import plain
from resolver.path import Path

if TYPE_CHECKING:
    from kdir.v1 import access_pb2, admin_pb2, directory_pb2, entry_pb2, policies_pb2

    from resolver.cli.output import Output
    from resolver.cli.session import PathArgument, Session

__all__ = ["VERBS", "is_same_change"]

_BESIDES: Final = frozenset({"acl", "topic_id"})
"""Fields of a topic's drift that are no policies."""
_DRIFT: Final = "drift"
_UNKNOWN: Final = "unknown"
"""State of a difference if Kafka does not answer now: its value is from the last read."""


def _set(session: Session, arguments: Arguments) -> int:
    def put(entry: entry_pb2.Entry) -> list[Field]:
        return assign_all(entry, arguments.many("KEY=VALUE"), "set")

    return _update(session, arguments, put, "set")


def _unset(session: Session, arguments: Arguments) -> int:
    def take(entry: entry_pb2.Entry) -> list[Field]:
        clear = arguments.flag("clear")
        return [forget(entry, key, "unset", clear=clear) for key in arguments.many("KEY")]

    return _update(session, arguments, take, "unset")


def _update(
    session: Session,
    arguments: Arguments,
    change: Callable[[entry_pb2.Entry], list[Field]],
    past: str,
) -> int:
    from kdir.v1 import directory_pb2, entry_pb2

    where = parse_path_argument(arguments.one("PATH"))
    entry = entry_pb2.Entry()
    fields = change(entry)
    of_link = [one.mask for one in fields if one.mask.startswith("link.")]
    if of_link and len(of_link) < len(fields):
        raise UsageError("a link's own settings and policies: one command each", verb=past)
    request = directory_pb2.UpdateEntryRequest(
        path=str(where.path),
        kind="ENTRY_KIND_LINK" if of_link else where.kind,
        entry=entry,
        etag=arguments.one("etag"),
    )
    request.update_mask.paths.extend(dict.fromkeys(one.mask for one in fields))

    def ask(*, validate_only: bool) -> directory_pb2.UpdateEntryResponse:
        request.validate_only = validate_only
        # A mount has the policies of its child's root directory, so it is followed.
        answer: directory_pb2.UpdateEntryResponse = session.resolver.call(
            where.path, "DirectoryService.UpdateEntry", request, no_follow=bool(of_link)
        )
        return answer

    partitions = any(one.name == "partitions" for one in fields)
    reaches_kafka = partitions or any(
        one.name == "topic_config" or (one.name, one.key) == ("manage", "configs") for one in fields
    )
    may_lock_out = any(one.mask == "directory.closed" for one in fields)
    is_planned = reaches_kafka or may_lock_out or arguments.flag("plan")
    planned = ask(validate_only=True) if is_planned else None
    path = planned.entry.path if planned else ""  # empty if the caller lacks DESCRIBE
    below = plans_below(session, path, planned.plan.policies) if planned and path else []
    if planned is not None and not arguments.flag("plan"):
        if not _is_approved(session, path or str(where), planned.plan, below):
            session.out.note(f"unchanged: {where}")
            return 0
        request.allow_lock_out = planned.plan.locks_out
    without = [] if past == "set" or arguments.flag("clear") else _not_set(session, where, fields)
    answer = planned if planned and arguments.flag("plan") else _write(request, planned, ask)
    if not answer.HasField("entry"):
        answer.entry.path = str(where.path)  # a caller without DESCRIBE receives no entry
    answered = f"would {past}" if arguments.flag("plan") else past
    show_entry(session, answer.entry, _summary(answered, answer.entry.path, fields, without))
    own = answer.authority.cluster.cluster
    if arguments.flag("plan"):
        whole = with_clusters_below(answer.plan, below)
        unknown = [failure_text(one.cluster, one.error) for one in below if one.error]
        effect = _effect(own, path, answer.plan, below, is_dry_run=True) if path else ""
        print_change_plan(session.out, whole, effect=effect, is_cluster_unknown=bool(unknown))
        for text in unknown:
            session.missing(f"not known: {text}")
    elif partitions and not answer.entry.HasField("topic"):
        session.out.note(FOR_NEW_TOPICS, "faint")
    _note_fewer_partitions(session, answer.entry, fields)
    if planned is not None and not arguments.flag("plan"):
        if path:
            session.out.note(_effect(own, path, planned.plan, below))
        token = answer.token if planned.plan.policies else ""
        _wait(session, arguments, planned, fields, token)
    return 0


def _write(
    request: directory_pb2.UpdateEntryRequest,
    planned: directory_pb2.UpdateEntryResponse | None,
    ask: Callable[..., directory_pb2.UpdateEntryResponse],
) -> directory_pb2.UpdateEntryResponse:
    """Sends a change. After a plan, if ``--etag`` was not given, changes the entry only if it is as
    it was planned.

    Raises:
        EtagMismatch: the entry was changed since.
    """
    if planned is None or request.etag:
        return ask(validate_only=False)

    def send(plan: directory_pb2.UpdateEntryResponse) -> directory_pb2.UpdateEntryResponse:
        request.etag = plan.plan.etag
        return ask(validate_only=False)

    def plan_again() -> directory_pb2.UpdateEntryResponse:
        request.etag = ""
        return ask(validate_only=True)

    return send_planned(planned, send, plan_again, lambda now: is_same_change(planned, now))


def is_same_change(
    planned: directory_pb2.UpdateEntryResponse, now: directory_pb2.UpdateEntryResponse
) -> bool:
    """True if two plans of a change are the same: between them, servers only recorded the topic's
    state in Kafka, which changes the entry's etag.
    """
    return (
        planned.entry.HasField("topic")
        and decided_values(planned.entry) == decided_values(now.entry)
        and list(planned.plan.policies) == list(now.plan.policies)
        and irreversible_effect(planned.plan) == irreversible_effect(now.plan)
    )


def _effect(
    own: str,
    path: str,
    plan: access_pb2.ChangePlan,
    below: Sequence[ClusterPlan],
    *,
    is_dry_run: bool = False,
) -> str:
    """Returns the effect of a change on Kafka, as text."""
    if plan.policies or plan.kafka_calls or plan.held_topic_count:
        return armed_summary(own, path, plan, below, is_dry_run=is_dry_run)
    return unchanged_text(is_dry_run=is_dry_run)


def _note_fewer_partitions(
    session: Session, entry: entry_pb2.Entry, fields: Sequence[Field]
) -> None:
    """Warns if a topic's policy has fewer partitions than the topic: Kafka removes none."""
    wanted, have = entry.policies.partitions, entry.topic.partitions
    is_set = entry.HasField("topic") and any(one.name == "partitions" for one in fields)
    if is_set and 0 < wanted < have:
        session.out.note(f"Kafka keeps the {have} partitions: a topic never gets fewer", "warn")


def _is_approved(
    session: Session, path: str, plan: access_pb2.ChangePlan, below: Sequence[ClusterPlan]
) -> bool:
    """Returns whether a planned change may be made; asks for approval of irreversible effects.

    Raises:
        UsageError: ``--yes`` was not given, and there is no terminal to ask at.
    """
    known = [one for one in below if not one.error]
    unknown = [one.cluster for one in below if one.error]
    effects = (
        irreversible_effect(with_clusters_below(plan, known), unknown),
        lock_out_effect(path, plan),
    )
    return all(session.approve(*effect) for effect in effects if effect is not None)


def _summary(answered: str, path: str, fields: Sequence[Field], without: Sequence[Field]) -> str:
    """Returns the summary of a change; ``without`` are the fields that were not set at the path."""
    names = ", ".join(one.shown for one in fields if one not in without)
    text = f"{answered} {names} at {path}" if names else ""
    if not without:
        return text
    missing = ", ".join(one.shown for one in without)
    return f"{f'{text}; ' if text else 'no change: '}not set at {path} itself: {missing}"


def _not_set(session: Session, where: PathArgument, fields: Sequence[Field]) -> list[Field]:
    """Returns those of the fields that the entry itself does not set; empty if it cannot be
    read.
    """
    from kdir.v1 import directory_pb2

    request = directory_pb2.GetEntryRequest(path=str(where.path), kind=where.kind)
    try:
        answer = session.resolver.call(where.path, "DirectoryService.GetEntry", request)
    except KdirError:
        return []
    policies = answer.entry.policies

    def is_set(one: Field) -> bool:
        return one.key in getattr(policies, one.name) if one.key else policies.HasField(one.name)

    return [one for one in fields if not is_set(one)]


def _wait(
    session: Session,
    arguments: Arguments,
    planned: directory_pb2.UpdateEntryResponse,
    fields: Sequence[Field],
    token: str,
) -> None:
    """With ``--wait``, waits until Kafka has the new values, also in every cluster that inherits
    them.
    """
    if not arguments.flag("wait"):
        return
    entry, own = planned.entry, planned.authority.cluster.cluster
    if not entry.path:
        where = arguments.one("PATH")
        session.missing(f"not waited for: that takes the right to DESCRIBE {where}")
        return
    keys = {one.key if one.name == "topic_config" else one.name for one in fields}  # Kafka's names
    is_directory = entry.HasField("directory")
    affected = clusters_at(session, own, entry.path, directory=is_directory)
    done = wait_for_kafka(
        session,
        "configs",
        affected,
        lambda call: call.key in keys,
        token,
        wait_seconds(arguments),
    )
    if done:
        shown = ", ".join(sorted({one.shown for one in fields}))
        session.out.note(f"done: nothing of {shown} is left to change in Kafka")


# -- effective -----------------------------------------------------------------------------------


def _effective(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import policies_pb2

    where = parse_path_argument(arguments.one("PATH"))
    request = policies_pb2.GetEffectivePoliciesRequest(
        path=str(where.path), directory=where.kind == "ENTRY_KIND_DIRECTORY"
    )
    changes = arguments.many("if")
    if arguments.flag("diff") and not changes and _is_directory(session, where):
        return _drift_below(session, where)
    fields = _assume(request, changes)
    answer: policies_pb2.GetEffectivePoliciesResponse = session.resolver.call(
        where.path, "PolicyService.GetEffectivePolicies", request
    )
    unconfirmed = session.unconfirmed_fields()
    values = [one for one in answer.values if not arguments.flag("diff") or _differs(one)]
    compares = arguments.flag("diff") and not changes
    drifts = _topic_drift(session, where) if compares else []
    out = session.out
    has_unstated = any(_differs(one) and not one.kafka_state for one in values)
    in_kafka = any(one.HasField("kafka_value") for one in answer.values)
    is_compared = compares or (arguments.flag("diff") and in_kafka)
    is_asked = is_compared or (has_unstated and not out.structured)
    notes = kafka_notes_at(session, where.path) if is_asked else []
    unstated = _unstated(notes)
    if out.structured:
        for one in values:
            out.record({**plain(one), **unconfirmed})
    else:
        table = Table(out, _COLUMNS if in_kafka else _COLUMNS[:-1])
        in_last = unstated if in_kafka else ""
        table.rows([_table_row(out, one, where.path, in_last) for one in values])
    _show_drift(out, [_Difference(one, unconfirmed) for one in drifts])
    _note_outdated(session, notes, is_compared=is_compared)
    if not answer.values and not drifts:
        out.note(f"no policy applies to {where}: none is set on it or above it")
    for ancestor in answer.ancestors[:1]:
        age = units.age(ancestor.age_seconds)
        out.note(
            f"inherited from the parent at revision {ancestor.revision}, received {age} ago",
            "faint",
        )
    if changes:
        if any(one.name in OF_NEW_TOPICS for one in fields) and _is_directory(session, where):
            session.out.note(f"partitions and replication_factor are {FOR_NEW_TOPICS}", "faint")
        _show_topics_changed(session, where, answer, request.what_if, fields)
    if arguments.flag("diff") and not (values or drifts or session.partial):
        is_directory = bool(changes) and _is_directory(session, where)
        own = str(session.resolver.owner_of(where.path).path)
        if not (in_kafka or is_directory) and _has_kafka_setting(answer.values, own):
            session.missing("nothing was compared: Kafka does not have this topic")
        else:
            out.note(_no_difference(in_kafka=in_kafka, is_directory=is_directory))
    known = drifts or any((one.kafka_state or unstated) != _UNKNOWN for one in values)
    return _EXIT_DIFFERENT if arguments.flag("diff") and known else 0


def _has_kafka_setting(values: Sequence[policies_pb2.EffectiveValue], own: str) -> bool:
    """True if a topic's value is one that Kafka should have; ``own`` is the topic's path. Numbers
    of partitions or replicas that it inherits were for its creation only.
    """
    return any(
        one.field.startswith("topic_config[")
        or (one.field in {"partitions", "replication_factor"} and one.source_path == own)
        for one in values
        if not one.cleared
    )


def _no_difference(*, in_kafka: bool, is_directory: bool) -> str:
    if in_kafka:
        return _NO_DRIFT
    if is_directory:
        return "--diff with --if compares topics only: name one, or leave out --if"
    return "no drift: nothing is set that Kafka could have otherwise"


def _unstated(notes: Sequence[KafkaNote]) -> str:
    """Returns the state of a difference for which the server returned none: *drift*, or *unknown*
    if Kafka may have changed since it was last read.
    """
    return _UNKNOWN if any(note.is_missing for note in notes) else _DRIFT


def _note_outdated(
    session: Session, notes: Sequence[KafkaNote], *, is_compared: bool = True
) -> None:
    """Reports the reasons why the known state of a cluster's Kafka is, or may be, outdated."""
    for note in notes:
        if note.is_missing and is_compared:
            session.missing(note.text)
        else:
            session.out.note(note.text, "warn")


def _assume(
    request: policies_pb2.GetEffectivePoliciesRequest, changes: Sequence[str]
) -> list[Field]:
    """Adds the assumed values of ``--if`` to a request; returns their fields.

    Raises:
        UsageError: a value is not of a policy.
    """
    from kdir.v1 import entry_pb2

    entry = entry_pb2.Entry()
    fields = assign_all(entry, changes, "effective")
    for one in fields:
        if not one.mask.startswith("policies."):
            raise UsageError(f"--if is for policies; {one.mask} is none", verb="effective")
    if fields:
        request.what_if.CopyFrom(entry.policies)
        request.what_if_mask.paths.extend(dict.fromkeys(one.mask for one in fields))
    return fields


def _show_topics_changed(
    session: Session,
    where: PathArgument,
    answer: policies_pb2.GetEffectivePoliciesResponse,
    policies: policies_pb2.Policies,
    fields: Sequence[Field],
) -> None:
    """Shows the number of topics that would have another value, in each cluster that inherits
    it.
    """
    owner = session.resolver.owner_of(where.path)
    texts, path = [topics_text(answer, owner.cluster)], str(owner.path)
    below = [] if owner.kind == "topic" and not where.directory else clusters_below(session, path)
    found = inheriting_topics(session, below, path, policies, fields)
    for one, text in zip(below, found, strict=True):
        if isinstance(text, KdirError):
            session.missing(f"not known: {failure_text(one.cluster, text)}")
            texts.append(f"topics of {one.cluster} (not known)")
        else:
            texts.append(text)
    shown = ", ".join(filter(None, texts)) or f"0 topics of {owner.cluster}"
    session.out.note(f"dry run: the effective value of {shown} would change")


def _topic_drift(session: Session, where: PathArgument) -> list[admin_pb2.Drift]:
    """Returns a topic's drift other than that of its policies: it is missing, was replaced, or has
    other ACLs. Empty if the caller may not read drift.

    Raises:
        InvalidArgument: the topic's cluster has no Kafka.
    """
    from kdir.v1 import admin_pb2

    from resolver.errors import PermissionDenied

    try:
        answer = session.resolver.call(
            where.path, "AdminService.ListDrift", admin_pb2.ListDriftRequest(path=str(where.path))
        )
    except PermissionDenied:
        return []
    except InvalidArgument as error:
        if _is_without_kafka(error):
            raise _nothing_to_compare(error, where) from None
        return []
    path = str(session.resolver.owner_of(where.path).path)  # the rows have canonical paths
    return [one for one in answer.drifts if one.field in _BESIDES and one.path == path]


def _is_directory(session: Session, where: PathArgument) -> bool:
    from kdir.v1 import directory_pb2

    if where.directory:
        return True
    request = directory_pb2.GetEntryRequest(path=str(where.path))
    answer = session.resolver.call(where.path, "DirectoryService.GetEntry", request)
    return bool(answer.entry.HasField("directory"))


def _is_without_kafka(answer: object) -> bool:
    return isinstance(answer, InvalidArgument) and answer.metadata.get("field") == "cluster"


def _nothing_to_compare(error: InvalidArgument, where: PathArgument) -> InvalidArgument:
    error.message += f": nothing to compare {where.path} with, and nothing was compared"
    return error


class _Compared(NamedTuple):
    """Differences of a cluster, and the reasons why the known state of its Kafka is outdated."""

    listed: admin_pb2.ListDriftResponse
    notes: Sequence[KafkaNote]


def _drift_below(session: Session, where: PathArgument) -> int:
    """Shows the differences in a directory's cluster and in each cluster mounted below it.

    Raises:
        InvalidArgument: none of these clusters has a Kafka.
    """
    from kdir.v1 import admin_pb2

    owner = session.resolver.owner_of(where.path)
    every = [ClusterBelow(str(owner.path), owner.cluster, cluster_id=owner.cluster_id)]
    every += clusters_below(session, str(owner.path))

    def compare(one: ClusterBelow) -> _Compared | InvalidArgument:
        request = admin_pb2.ListDriftRequest(path=one.mount, unarmed=True)
        try:
            answer: admin_pb2.ListDriftResponse = session.resolver.call(
                one.mount, "AdminService.ListDrift", request
            )
        except InvalidArgument as error:
            if not _is_without_kafka(error):
                raise
            return error
        return _Compared(answer, kafka_notes_at(session, Path.parse(one.mount)))

    drifts: list[_Difference] = []
    without: dict[str, InvalidArgument] = {}
    omitted = compared = 0
    for one, answer in zip(every, query_each(session, every, compare), strict=True):
        if isinstance(answer, _Compared):
            unconfirmed = session.unconfirmed_fields(one.cluster_id)
            unstated = _unstated(answer.notes)
            drifts += [_Difference(one, unconfirmed, unstated) for one in answer.listed.drifts]
            omitted += answer.listed.omitted_count
            compared += 1
            _note_outdated(session, answer.notes)
        elif isinstance(answer, InvalidArgument) and _is_without_kafka(answer):
            without[one.cluster] = answer
        elif one is every[0]:
            raise answer
        else:
            session.missing(f"not compared: {failure_text(one.cluster, answer)}")
    if not compared and without and not session.partial:
        raise _nothing_to_compare(next(iter(without.values())), where)
    if without:
        session.out.note(f"not compared, without a Kafka: {some_paths(list(without))}", "faint")
    _show_drift(session.out, drifts)
    if not drifts and not session.partial:
        session.out.note(_NO_DRIFT)
    if omitted:
        session.out.note(f"and {omitted:,} more: name a path further below", "warn")
    return _EXIT_DIFFERENT if any(one.state != _UNKNOWN for one in drifts) else 0


class _Difference(NamedTuple):
    """Difference, with the JSON field of an unconfirmed cluster."""

    drift: admin_pb2.Drift
    unconfirmed: dict[str, float]
    unstated: str = _DRIFT
    """State of a policy for which the server returned none."""

    @property
    def state(self) -> str:
        """State of the difference: the reason why Kafka has another value."""
        is_policy = self.drift.field.partition(" ")[0] not in _BESIDES
        return self.drift.kafka_state or (self.unstated if is_policy else _DRIFT)


def _show_drift(out: Output, drifts: Sequence[_Difference]) -> None:
    if out.structured:
        for one in drifts:
            out.record({**plain(one.drift), **one.unconfirmed})
    elif drifts:
        columns = [Column(name) for name in ("PATH", "FIELD", "VALUE", "IN KAFKA")]
        Table(out, columns).rows([_drift_row(one, human=out.human) for one in drifts])


def _drift_row(difference: _Difference, *, human: bool) -> list[str | Styled]:
    one = difference.drift
    field = one.field.removeprefix("config[").removesuffix("]")
    shown = units.retention if human and field.endswith(".ms") else str
    return [
        one.path,
        field,
        shown(one.expected),
        Styled(f"{shown(one.actual)}  {difference.state}", "warn"),
    ]


def _table_row(
    out: Output, one: policies_pb2.EffectiveValue, path: Path, unstated: str
) -> list[str | Styled]:
    """Returns the row of a value, without the column IN KAFKA if ``unstated`` is empty."""
    key = policy_key(one.field)
    shown = units.retention if out.human and key.endswith(".ms") else str
    with_use = _with_use if out.human else _bare
    row: list[str | Styled] = [
        key,
        CLEARED if one.cleared else with_use(shown(one.value) or '""', one),
        "." if out.human and one.source_path == str(path) else one.source_path,
        one.set_by or "-",
        _age(out, one),
        ", ".join(
            f"{with_use(shown(other.value), other)} at {other.source_path}"
            for other in one.overrides
        )
        or "-",
    ]
    if unstated:
        row.append(_in_kafka(one, shown, unstated))
    return row


def _with_use(value: str, of: policies_pb2.EffectiveValue | policies_pb2.OverriddenValue) -> str:
    """Returns the value; that of a quota with its usage."""
    return f"{value} ({of.used} used)" if of.HasField("used") else value


def _bare(value: str, _: object) -> str:
    return value


def _age(out: Output, one: policies_pb2.EffectiveValue) -> str:
    if not one.HasField("set_time"):
        return "-"
    if not out.human:
        return str(one.set_time.ToJsonString())
    return units.age(time.time() - one.set_time.seconds)


def _differs(one: policies_pb2.EffectiveValue) -> bool:
    return one.HasField("kafka_value") and one.kafka_value != one.value


def _in_kafka(
    one: policies_pb2.EffectiveValue, shown: Callable[[str], str], unstated: str
) -> str | Styled:
    if not one.HasField("kafka_value"):
        return "n/a"
    if not _differs(one):
        return "="
    found = shown(one.kafka_value) if one.kafka_value else "default"
    return Styled(f"{found}  {one.kafka_state or unstated}", "warn")


_EXIT_DIFFERENT: Final = 5
_NO_DRIFT: Final = "no drift: Kafka matches every value"
_COLUMNS: Final = [
    Column("FIELD"), Column("VALUE"), Column("SOURCE PATH"), Column("SET BY"), Column("AGE"),
    Column("OVERRIDES"), Column("IN KAFKA"),
]  # fmt: skip
_ETAG: Final = Option(("--etag",), "only if the entry is still as stat -o json showed it", "ETAG")
_PATH: Final = Argument("PATH", "of a directory or topic", completes="path")

VERBS: Final = (
    Verb(
        name="set",
        summary="set policies of an entry: owner, tags, topic configs, …",
        run=_set,
        writes=True,
        details=(
            "A policy applies to the entry and everything below it unless a nearer "
            "entry overrides\n"
            "it."
            f"\n\n{KEYS_HELP}\n\nTopic configs are desired state: below a path that is armed for "
            "configs (kdir arm)\nthey are applied to Kafka within seconds; it asks first where "
            "Kafka may then delete\ndata, as with a shorter retention.ms, or where a topic's "
            "partitions grow."
        ),
        arguments=(_PATH, Argument("KEY=VALUE", "what to set", most=None, completes="assignment")),
        options=(
            Option(
                ("-y", "--yes"),
                "do not ask before partitions grow or data may be lost; also close out yourself",
            ),
            _ETAG,
            PLAN,
            WAIT,
        ),
        formats=ENTRY_FORMATS,
        examples=(
            (
                "kdir set /la/tracking/search owner=search contact='#search-oncall'",
                "owner and contact",
            ),
            ("kdir set /la/tracking retention.ms=7d tags.tier=2", "topic config and a label"),
            (
                "kdir set /tracking targets=/ny/tracking,/la/tracking",
                "reorder the targets of a link",
            ),
        ),
    ),
    Verb(
        name="unset",
        summary="remove policies set on an entry",
        run=_unset,
        writes=True,
        details=(
            "Removes the value set here; the inherited value applies again. --clear ends the\n"
            "inheritance: neither this entry nor entries below it inherit the key.\n\n"
            f"{KEYS_HELP}"
        ),
        arguments=(_PATH, Argument("KEY", "the policy to remove", most=None, completes="key")),
        options=(
            Option(("-y", "--yes"), "do not ask where Kafka may delete data"),
            Option(("--clear",), "end the inheritance of the key here (keys of maps only)"),
            _ETAG,
            PLAN,
            WAIT,
        ),
        formats=ENTRY_FORMATS,
        examples=(
            ("kdir unset /la/tracking/search retention.ms", "back to the value of /la/tracking"),
            ("kdir unset --clear /la/tracking/search retention.ms", "back to Kafka's default"),
        ),
    ),
    Verb(
        name="effective",
        summary="effective policies of an entry, and the directory that sets each",
        run=_effective,
        details=(
            "Each policy with its value, the path that set it (. = the entry itself), who set it,\n"
            "when, and what it overrides. For a topic, IN KAFKA compares with the last look: = no\n"
            "difference; else Kafka's value, or default, and the reason: drift; pending (not\n"
            "applied yet); unknown (Kafka does not answer: it may have the value by now);\n"
            "needs-approval (may delete data: kdir arm); contested (another writer keeps\n"
            "reverting it); rejected (by Kafka); quota-exceeded; not-armed (no armed path covers\n"
            "it); if set (with --if: kdir would apply it). n/a: nothing of Kafka's to compare.\n"
            "(cleared): the key was ended there (unset --clear), so that nothing is inherited.\n"
            "--diff shows only differences, for a directory those of all topics below it, in its\n"
            "cluster and in those mounted below; exit code 5 if there are any, 3 if a Kafka could\n"
            "not be compared, or did not answer when it was last read, 2 if none of these\n"
            "clusters has a Kafka.\n"
            "Quotas show their usage, and apply at every level, overridden or not."
        ),
        arguments=(_PATH,),
        options=(
            Option(
                ("--if",),
                "dry run: as if this were set here",
                "KEY=VALUE",
                repeated=True,
                completes="assignment",
            ),
            Option(("--diff",), "only differences between kdir and Kafka"),
        ),
        formats=ENTRY_FORMATS[:3],
        examples=(
            ("kdir effective /la/tracking/orders", "why is its retention what it is?"),
            (
                "kdir effective /la/tracking --if retention.ms=7d",
                "number of topics affected",
            ),
            ("kdir effective --diff /la/tracking/orders", "where Kafka disagrees"),
            ("kdir effective --diff /la/tracking", "the same, of all topics below"),
        ),
    ),
)
