"""Entries as rows of a table and as names, and large changes in progress as text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from resolver import units
from resolver.cli.output import Column, Styled
from resolver.message_values import kafka_uuid

if TYPE_CHECKING:
    from kdir.v1 import admin_pb2, entry_pb2, policies_pb2

    from resolver.cli.session import Session
    from resolver.path import Path

__all__ = [
    "CLEARED",
    "COLUMNS",
    "KafkaNote",
    "cluster_status_at",
    "display_name",
    "display_path",
    "entry_row",
    "kafka_notes_at",
    "kind_of",
    "large_changes_at",
    "progress_text",
    "state_of",
    "stop_note_at",
    "stopped_text",
    "topic_config",
]


CLEARED: Final = "(cleared)"
"""Text shown for a key whose inheritance was ended (``unset --clear``)."""

COLUMNS: Final = (
    Column("KIND"),
    Column("NAME"),
    Column("PARTITIONS", right=True),
    Column("RF", right=True),
    Column("RETENTION"),
    Column("OWNER"),
    Column("TOPICS", right=True),
    Column("STATE"),
    Column("LOCATION"),
    Column("CONTACT", wide=True),
    Column("TAGS", wide=True),
    Column("TOPIC ID", wide=True),
    Column("CHANGED", right=True, wide=True),
    Column("CHANGED BY", wide=True),
)

_SHORT: Final = {"directory": "dir", "topic": "topic", "link": "link", "mount": "mount"}
_STYLES: Final = {"directory": "container", "topic": "", "link": "link", "mount": "mount"}


def kind_of(entry: entry_pb2.Entry) -> str:
    """Returns ``directory``, ``topic``, ``link`` or ``mount``; empty for a kind of a newer
    version.
    """
    return entry.WhichOneof("kind") or ""


def display_path(entry: entry_pb2.Entry) -> str:
    """Returns the path as on the command line: with a ``/`` at the end, except for topics."""
    return entry.path if kind_of(entry) == "topic" or entry.path == "/" else f"{entry.path}/"


def display_name(entry: entry_pb2.Entry) -> Styled:
    """Returns the last segment of the path, with a ``/`` as in ``display_path``, in the style of
    its kind.
    """
    name = display_path(entry).rstrip("/").rpartition("/")[2]
    kind = kind_of(entry)
    return Styled(name if kind == "topic" else f"{name}/", _STYLES.get(kind, ""))


def entry_row(
    entry: entry_pb2.Entry,
    *,
    cluster: str,
    inherited: policies_pb2.Policies | None,
    human: bool,
    topics: str = "-",
    name: str = "",
) -> list[str | Styled]:
    """Returns one row of ``ls -l``, a cell for each of ``COLUMNS``; ``^`` marks inherited values,
    ``-`` unset ones.

    ``inherited`` has the inherited policies (None = not known); ``topics`` is the number of topics
    below the entry; ``name`` is shown instead of the entry's own name.
    """
    kind = kind_of(entry)
    shown = display_name(entry)
    number = units.count if human else str
    parts, factor = ("-", "-")
    if kind == "topic":
        parts = number(entry.topic.partitions) if entry.topic.partitions else "-"
        factor = str(entry.topic.replication_factor or "-")
    return [
        _SHORT.get(kind, "?"),
        Styled(name, shown.style) if name else shown,
        parts,
        factor,
        _retention(entry, inherited, human=human),
        _owner(entry, inherited),
        topics,
        state_of(entry, human=human),
        _location(entry, cluster),
        entry.policies.contact or "-",
        ",".join(sorted(_tags(entry))) or "-",
        (kind == "topic" and kafka_uuid(entry.topic.topic_id)) or "-",
        _changed(entry, human=human),
        entry.changed_by or "-",
    ]


def _tags(entry: entry_pb2.Entry) -> Iterator[str]:
    for name, value in entry.policies.tags.items():
        yield f"{name}={CLEARED if value.cleared else value.value}"


def _changed(entry: entry_pb2.Entry, *, human: bool) -> str:
    """Returns the time since an entry's last change; without ``human``, the exact time of the
    change.
    """
    if not entry.HasField("changed_at"):
        return "-"
    text: str = entry.changed_at.ToJsonString()
    return units.age(max(0.0, time.time() - entry.changed_at.seconds)) if human else text


def _retention(
    entry: entry_pb2.Entry, inherited: policies_pb2.Policies | None, *, human: bool
) -> str:
    key = "retention.ms"
    shown = units.retention if human else str
    own = topic_config(entry.policies, key)
    if own is not None:
        return shown(own) if own else "-"
    if kind_of(entry) == "topic" and key in entry.topic.observed_config:
        # Kafka's value is shown, not an inherited one, which may not be armed.
        return shown(entry.topic.observed_config[key])
    if kind_of(entry) not in {"topic", "directory"} or inherited is None:
        return "-"
    above = topic_config(inherited, key)
    return f"{shown(above)} ^" if above else "-"


def topic_config(policies: policies_pb2.Policies, key: str) -> str | None:
    """Returns the value that is set for ``key``; empty if it is cleared; None if it is not set."""
    if key not in policies.topic_config:
        return None
    value = policies.topic_config[key]
    return "" if value.cleared else value.value


def _owner(entry: entry_pb2.Entry, inherited: policies_pb2.Policies | None) -> str:
    if entry.policies.HasField("owner"):
        return entry.policies.owner or "-"
    return f"{inherited.owner} ^" if inherited is not None and inherited.owner else "-"


def state_of(entry: entry_pb2.Entry, *, human: bool) -> str | Styled:
    """Returns the state of an entry: of a topic in Kafka, a link's mode, or whether a mount's child
    is linked; ``-`` for a directory.
    """
    match kind_of(entry):
        case "topic":
            return _topic_state(entry.topic)
        case "link":
            return "union" if entry.link.mode == 2 else "first"
        case "mount":
            return _mount_state(entry.mount, human=human)
        case _:
            return "-"


def _topic_state(topic: entry_pb2.Topic) -> str | Styled:
    from kdir.v1 import entry_pb2

    if topic.provision not in {entry_pb2.PROVISION_ACTIVE, entry_pb2.PROVISION_UNSPECIFIED}:
        known = topic.provision in entry_pb2.Provision.values()
        name = entry_pb2.Provision.Name(topic.provision) if known else f"state_{topic.provision}"
        waits = topic.provision == entry_pb2.PROVISION_PENDING
        return Styled(name.removeprefix("PROVISION_").lower(), "warn" if waits else "bad")
    return Styled(f"drift: {topic.drift_count}", "warn") if topic.drift_count else "active"


def _mount_state(mount: entry_pb2.Mount, *, human: bool) -> str | Styled:
    from kdir.v1 import entry_pb2

    received = mount.HasField("last_contact_age_seconds")
    seconds = mount.last_contact_age_seconds
    match mount.state:
        case entry_pb2.MOUNT_STATE_LINKED:
            return "linked"
        case entry_pb2.MOUNT_STATE_PENDING:
            return Styled("pending", "warn")
        case entry_pb2.MOUNT_STATE_REFUSED:
            return Styled("refused", "bad")
        case entry_pb2.MOUNT_STATE_DISCONNECTED if received:
            return Styled(
                f"disconnected {units.age(seconds) if human else f'{seconds:.3f}'}", "bad"
            )
        case entry_pb2.MOUNT_STATE_DISCONNECTED:
            return Styled("disconnected", "bad")
        case _:
            return "-"


def _location(entry: entry_pb2.Entry, cluster: str) -> str:
    match kind_of(entry):
        case "topic":
            return f"{cluster}:{entry.topic.physical_name}"
        case "link":
            return ", ".join(entry.link.targets)
        case "mount":
            return entry.mount.cluster or entry.mount.cluster_id
        case _:
            return cluster


def progress_text(one: admin_pb2.Progress, now: float | None = None) -> str:
    """Returns the progress of an operation as text, such as ``delete /la/x: 412,000 of 1,000,000
    done, 3m left``. The time left is added only if the operation has run long enough for an
    estimate.

    Args:
        now: present time in Unix seconds.
    """
    what = f"{one.kind} {one.path}: "
    if not one.HasField("remaining"):
        what += f"{units.count(one.done)} done"
    elif one.started_at_ms:
        what += f"{units.count(one.done)} of {units.count(one.done + one.remaining)} done"
    else:  # its start was not recorded
        what += f"{units.count(one.remaining)} left"
    seconds = (time.time() if now is None else now) - one.started_at_ms / 1000
    if one.started_at_ms and one.done and one.remaining and seconds >= 1:
        what += f", {units.age(seconds * one.remaining / one.done)} left"
    by = f", requested by {one.principal}" if one.principal else ""
    return f"{what}{by}{f'; blocked: {one.message}' if one.message else ''}"


def large_changes_at(session: Session, path: Path) -> list[admin_pb2.Progress]:
    """Returns the large changes in progress in a path's cluster; empty if the caller is denied its
    status.

    Raises:
        KdirError: the cluster was not found or did not answer.
    """
    status = cluster_status_at(session, path)
    return [] if status is None else list(status.progress)


def stop_note_at(session: Session, path: Path) -> str:
    """Returns a note if changes in the Kafka of a path's cluster are stopped, with the reason;
    empty if they are not, or if the cluster's status cannot be read.
    """
    status = _kafka_status_at(session, path)
    reason = status.kafka.stop_reason if status is not None else ""
    return stopped_text(reason, str(path)) if reason else ""


def _kafka_status_at(session: Session, path: Path) -> admin_pb2.GetStatusResponse | None:
    """Returns the status of a path's cluster; None if the cluster has no Kafka, or its status
    cannot be read.
    """
    from resolver.errors import KdirError

    try:
        status = cluster_status_at(session, path)
    except KdirError:
        return None
    return status if status is not None and status.HasField("kafka") else None


class KafkaNote(NamedTuple):
    """Reason why the known state of a Kafka is, or may be, outdated."""

    text: str
    is_missing: bool = True
    """True if the exit code becomes 3 because of it."""


def kafka_notes_at(session: Session, path: Path) -> list[KafkaNote]:
    """Returns the reasons why the known state of a path's Kafka is outdated: changes are stopped,
    or Kafka did not answer when it was last read. Empty if it is current, or if the cluster's
    status cannot be read.
    """
    status = _kafka_status_at(session, path)
    if status is None:
        return []
    reason = status.kafka.stop_reason
    notes = [KafkaNote(stopped_text(reason, str(path)))] if reason else []
    unread = _unread_note(session, status)
    if unread is not None:
        text = f"{status.authority.cluster.cluster}: {unread.text}"
        notes.append(unread._replace(text=text))
    return notes


def _unread_note(session: Session, status: admin_pb2.GetStatusResponse) -> KafkaNote | None:
    """Returns why the known state of Kafka is outdated, with its age; None if it is current.

    Of several servers, only the elected one, which reads Kafka, has this state.
    """
    elected = _elected_member(status)
    if not status.kafka.leader and elected is not None:
        answer = _query_elected(session, status, elected)
        if isinstance(answer, KafkaNote):
            return answer
        status = answer
    kafka = status.kafka
    if not kafka.leader:
        return KafkaNote("no server is elected to read its Kafka: the shown state may be old")
    if kafka.reachable:
        return None
    why = f"Kafka did not answer when it was last read, {kafka.message}"
    if not kafka.HasField("last_sweep_seconds"):
        return KafkaNote(f"{why}; it was not read before")
    return KafkaNote(f"{why}; the shown state is {units.age(kafka.last_sweep_seconds)} old")


def _elected_member(status: admin_pb2.GetStatusResponse) -> admin_pb2.Member | None:
    return next((one for one in status.members if "reconciler" in one.roles), None)


def _query_elected(
    session: Session, status: admin_pb2.GetStatusResponse, elected: admin_pb2.Member
) -> admin_pb2.GetStatusResponse | KafkaNote:
    """Returns the status of the server that is elected to read Kafka, or of one that reports that
    no server is elected; else the reason why it is not known whether Kafka answers.
    """
    from kdir.v1 import admin_pb2

    from resolver.errors import KdirError

    unknown = "not known whether its Kafka answers"
    role = f"{elected.server}, which is elected to read it,"
    named, allow = session.servers(), session.allow
    refused = {one: allow.why_not_allowed(one) for one in elected.endpoints if one not in named}
    among = [one for one in elected.endpoints if not refused.get(one)]
    if not among:
        why = "; ".join(refused.values()) or "it has no endpoint"
        return KafkaNote(f"{unknown}: {role} may not be called: {why}")
    others = [one for one in status.members if one.server != elected.server]
    shared = {endpoint for one in others for endpoint in one.endpoints}
    own = [one for one in among if one not in shared]
    cluster_id = status.authority.cluster.cluster_id
    request = admin_pb2.GetStatusRequest(cluster=cluster_id)
    try:
        answer: admin_pb2.GetStatusResponse = session.ask_any(
            "AdminService.GetStatus", request, own or among, cluster_id=cluster_id
        )
    except KdirError as error:
        return KafkaNote(f"{unknown}: {error.message}")
    if answer.kafka.leader or _elected_member(answer) is None:
        return answer
    by = answer.authority.server
    if by == elected.server:
        return KafkaNote(f"{unknown}: {role} has not begun to, or does not any more")
    if own:
        why = f"{elected.server} was elected to read it, and {by} answered at its endpoint"
        return KafkaNote(f"{unknown}: {why}")
    # Any of the servers may answer, by chance: the exit code must not depend on it.
    why = f"{role} has no endpoint of its own, and {by} answered"
    return KafkaNote(f"{unknown}: {why}", is_missing=False)


def stopped_text(reason: str, path: str) -> str:
    """Returns a note for stopped changes in Kafka: the reason, the effect on shown states, and the
    command that ends it.
    """
    return f"{reason}; shown states are from before the stop (kdir ack {path})"


def cluster_status_at(session: Session, path: Path) -> admin_pb2.GetStatusResponse | None:
    """Returns the status of a path's cluster; None if the caller is denied it.

    Raises:
        KdirError: the cluster was not found or did not answer.
    """
    from kdir.v1 import admin_pb2

    from resolver.errors import Denied

    resolver = session.resolver
    try:
        owner = resolver.owner_of(path)
        status: admin_pb2.GetStatusResponse = resolver.call(
            path, "AdminService.GetStatus", admin_pb2.GetStatusRequest(cluster=owner.cluster_id)
        )
    except Denied:
        return None
    return status
