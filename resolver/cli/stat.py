"""The verb ``stat``: details of one entry, with large changes in progress; for a topic also its
partitions and groups in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from resolver import units
from resolver.cli.entry_rows import CLEARED, display_path, kind_of
from resolver.cli.output import Styled
from resolver.cli.parser import FORMATS, Argument, Arguments, Option, UsageError, Verb
from resolver.cli.produce import LISTENER, PROPERTIES, SETTING
from resolver.cli.session import PathArgument
from resolver.cli.topic_counts import TopicCounts
from resolver.errors import Absent, KdirError, NoRoute
from resolver.message_values import plain

if TYPE_CHECKING:
    from kdir.v1 import admin_pb2, directory_pb2, entry_pb2, policies_pb2

    from resolver.cli.output import Output
    from resolver.cli.session import Session

__all__ = ["VERBS"]


def _stat(session: Session, arguments: Arguments) -> int:
    from resolver.cli.create import each
    from resolver.cli.entry_rows import progress_text

    if _asks_kafka(session, arguments):
        from resolver.cli.kafka_offsets import show_kafka

        show_kafka(session, arguments, groups=arguments.flag("groups"))
        return 0

    def show(where: PathArgument) -> None:
        try:
            answer = _get(session, where)
        except Absent:
            _report_removal(session, where)
            raise
        out = session.out
        status = _cluster_status(session, where, answer) if out.format != "name" else None
        is_topic = answer.entry.HasField("topic")
        changes = list(status.progress) if status is not None and not is_topic else []
        stopped = status.kafka.stop_reason if status is not None else ""
        if out.structured:
            record = plain(answer.entry)
            record |= session.unconfirmed_fields(answer.authority.cluster.cluster_id)
            if answer.quotas:
                record["quotas"] = [plain(one) for one in answer.quotas]
            if answer.topic_issues:
                record["topic_issues"] = [plain(one) for one in answer.topic_issues]
            if stopped:
                record["stop_reason"] = stopped
            if changes:
                record["progress"] = [plain(one) for one in changes]
            out.record(record)
        elif out.format == "name":
            out.line(display_path(answer.entry))
        else:
            facts = _facts(answer, TopicCounts(session), human=out.human)
            if stopped:
                facts.append(("stopped", Styled(f"{stopped} (kdir ack {where.path})", "bad")))
            _show_facts(out, facts)
            for one in changes:
                out.note(progress_text(one))

    return each(session, arguments.many("PATH"), show)


def _asks_kafka(session: Session, arguments: Arguments) -> bool:
    """Returns whether Kafka is queried instead of the directory.

    Raises:
        UsageError: the options contradict each other.
    """
    asked = [key for key in ("partitions", "groups") if arguments.flag(key)]
    wrong = ""
    if not asked:
        kafkas = [key for key in ("listener", "properties", "X") if arguments.flag(key)]
        wrong = f"{_dashed(kafkas[0])} needs --partitions or --groups" if kafkas else ""
    elif len(asked) > 1:
        wrong = "--partitions and --groups are two commands"
    elif len(arguments.many("PATH")) > 1:
        wrong = f"{_dashed(asked[0])} takes one PATH, of a topic"
    elif session.out.format == "name":
        wrong = f"{_dashed(asked[0])} takes -o table, json or yaml"
    if wrong:
        raise UsageError(wrong, verb="stat")
    return bool(asked)


def _dashed(key: str) -> str:
    return f"-{key}" if len(key) == 1 else f"--{key}"


def _cluster_status(
    session: Session, where: PathArgument, answer: directory_pb2.GetEntryResponse
) -> admin_pb2.GetStatusResponse | None:
    """Returns the status of the cluster that is mounted at a path, or that owns a topic; None for
    other entries, and if the status cannot be read.
    """
    from resolver.cli.entry_rows import cluster_status_at

    mounted = answer.authority.cluster.mount == str(where.path)
    if not mounted and kind_of(answer.entry) not in {"mount", "topic"}:
        return None
    try:
        return cluster_status_at(session, where.path)
    except KdirError:
        return None  # the entry itself is shown anyway


def _report_removal(session: Session, where: PathArgument) -> None:
    """Reports the progress if an absent entry is being removed."""
    from resolver.cli.entry_rows import large_changes_at, progress_text
    from resolver.path import Path

    try:
        changes = large_changes_at(session, where.path)
    except KdirError:
        return  # the caller reports that it is absent
    for one in changes:
        if one.kind == "delete" and Path.of_entry(one.path).is_prefix_of(where.path):
            session.out.note(progress_text(one))


def _get(session: Session, where: PathArgument) -> directory_pb2.GetEntryResponse:
    """Returns the entry at the path itself; if the path ends in ``/``, the directory to which it
    leads.
    """
    from kdir.v1 import directory_pb2

    request = directory_pb2.GetEntryRequest(path=str(where.path), kind=where.kind)
    answer: directory_pb2.GetEntryResponse = session.resolver.call(
        where.path, "DirectoryService.GetEntry", request, no_follow=not where.directory
    )
    mounted_here = answer.authority.cluster.mount == str(where.path)
    if where.directory or not mounted_here:
        return answer
    # The mounted cluster itself answered; the mount is an entry of its parent.
    try:
        above: directory_pb2.GetEntryResponse = session.resolver.call(
            where.path, "DirectoryService.GetEntry", request, no_follow=True, at_parent=True
        )
    except NoRoute:
        return answer  # it has no parent
    except KdirError as error:
        session.missing(f"{where.path}: could not read the mount from its parent: {error}")
        return answer
    return above


def _show_facts(out: Output, facts: Sequence[tuple[str, str | Styled]]) -> None:
    """Prints one fact on each line, as ``name value``."""
    width = max(len(name) for name, _ in facts) + 2
    for name, value in facts:
        if not out.human:
            out.cells([name, value])
        elif isinstance(value, Styled):
            out.line(Styled(f"{name:<{width}}{value.text}", value.style))
        else:
            out.line(f"{name:<{width}}{value}")


def _facts(
    answer: directory_pb2.GetEntryResponse, counts: TopicCounts, *, human: bool
) -> list[tuple[str, str | Styled]]:
    """Returns the facts of an entry, as pairs of name and value."""
    from resolver.entry_fields import policy_fields

    entry, authority = answer.entry, answer.authority
    facts: list[tuple[str, str | Styled]] = [
        ("path", display_path(entry)),
        ("kind", kind_of(entry)),
        ("cluster", f"{authority.cluster.cluster} ({authority.cluster.cluster_id})"),
        ("id", str(entry.entry_id)),
        ("etag", entry.etag),
    ]
    if entry.HasField("changed_at") and entry.changed_at.seconds:
        by = f" by {entry.changed_by}" if entry.changed_by else ""
        facts.append(("changed", f"{_when(entry, human=human)}{by}"))
    topics = counts.at(entry, authority.cluster.mount)
    shown = "-" if topics is None else topics.cell(human=human)
    facts += _facts_of_kind(entry, shown, human=human)
    for key, setting in policy_fields(entry.policies):
        shown = CLEARED if setting is None else setting
        facts.append((key, _in_units(key, shown) if human else shown))
    facts += [("quota", _quota(one)) for one in answer.quotas]
    facts += [(one.state, _attention(entry.path, one)) for one in answer.topic_issues]
    return facts


def _in_units(key: str, value: str) -> str:
    """Returns the value of a setting in human units, as in ``ls -l``."""
    return units.retention(value) if key.endswith(".ms") else value


def _quota(one: policies_pb2.QuotaUse) -> str | Styled:
    parts = f"{one.used:,} of {one.limit:,} {one.field.removeprefix('max_')} at {one.source_path}"
    return Styled(parts, "warn") if one.used >= one.limit else parts


def _attention(path: str, one: policies_pb2.TopicIssue) -> Styled:
    what = one.field or units.plural(one.topics, "topic")
    aspect = "acls" if one.field == "acls" or one.state.startswith("acls ") else "configs"
    hint = f": kdir arm {path} --aspect {aspect}" if one.state.endswith("needs-approval") else ""
    return Styled(f"{what}{hint}", "warn")


def _when(entry: entry_pb2.Entry, *, human: bool) -> str:
    import time

    shown: str = entry.changed_at.ToJsonString()
    if not human:
        return shown
    age = units.age(time.time() - entry.changed_at.seconds)
    return f"{shown[:19].replace('T', ' ')} UTC, {age} ago"


def _facts_of_kind(
    entry: entry_pb2.Entry, topics: str, *, human: bool
) -> Iterator[tuple[str, str | Styled]]:
    from resolver.cli.entry_rows import state_of
    from resolver.message_values import kafka_uuid

    state = state_of(entry, human=human)
    match kind_of(entry):
        case "directory":
            number = units.count if human else str
            directly = number(entry.directory.topic_count)
            if human:
                yield "topics", f"{topics} at any depth, {directly} directly in it"
            else:
                yield "topics", topics
                yield "topics directly", directly
            yield "directories, links, mounts", number(entry.directory.container_count)
            if entry.directory.closed:
                yield "closed", "true"
        case "topic":
            topic = entry.topic
            yield "topic", topic.physical_name
            yield "topic id", kafka_uuid(topic.topic_id) or "-"
            yield "partitions", str(topic.partitions or "-")
            yield "replication", str(topic.replication_factor or "-")
            yield "state", state
            if topic.provision_message:
                yield "why", topic.provision_message
            yield "adopted", str(topic.adopted).lower()
            for key in sorted(topic.observed_config):
                found = topic.observed_config[key]
                yield f"kafka {key}", _in_units(key, found) if human else found
        case "link":
            yield "targets", ", ".join(entry.link.targets)
            yield "mode", state
            yield "writes", "follow" if entry.link.writes == 2 else "stay"
            yield "absent", "falls back" if entry.link.fall_back_on_absent else "is absent"
        case "mount":
            mount = entry.mount
            yield "child", f"{mount.cluster} ({mount.cluster_id})".lstrip()
            yield "epoch", str(mount.epoch)
            yield "state", state
            if mount.message:
                yield "why", mount.message
            yield "servers", ", ".join(mount.endpoints) or "-"
            yield "topics", f"{topics} at any depth" if human else topics
            if mount.HasField("topic_count"):
                own = units.count(mount.topic_count) if human else str(mount.topic_count)
                yield "own topics", own
        case _:
            pass  # a kind of a newer version


VERBS: Final = (
    Verb(
        name="stat",
        summary="details of one entry",
        run=_stat,
        details=(
            "A link or mount is shown itself; with a trailing /, the directory that it leads to.\n"
            "A mount also shows whether changes in its cluster's Kafka are stopped, as a topic\n"
            "does, and the progress of large removals and adoptions there; an\n"
            "entry that is being removed, the progress of that.\n"
            "Policies are those set on the entry; kdir effective shows inherited ones.\n"
            "Quotas are all that apply here, with their usage. Configs that need approval, are\n"
            "contested or were rejected by Kafka are listed; for a directory, topics are counted.\n"
            "--partitions and --groups ask the Kafka of a topic, as you: leader, replicas in sync\n"
            "and offsets of each partition; the lag of each group with committed offsets.\n"
            "They need kdir[kafka], and DESCRIBE on the topic; --groups on the groups, too."
        ),
        arguments=(Argument("PATH", "path of the entry", most=None, completes="path"),),
        options=(
            Option(("--partitions",), "leader, replicas and offsets of each partition in Kafka"),
            Option(("--groups",), "consumer groups: committed offsets and lag, with a sum each"),
            LISTENER,
            PROPERTIES,
            SETTING,
        ),
        formats=FORMATS,
        examples=(
            ("kdir stat /la/tracking/search/clicks", "a topic"),
            ("kdir stat /la/tracking/orders --partitions", "leaders, replicas in sync, offsets"),
            ("kdir stat /la/tracking/orders --groups -o json", "the lag of its consumer groups"),
            ("kdir stat /la/tracking", "the mount, and large changes in progress in its cluster"),
            ("kdir stat /la/tracking/", "the directory that is mounted there"),
        ),
    ),
)
