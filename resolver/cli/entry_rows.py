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
"""The value of a key whose inheritance was ended (``unset --clear``)."""

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
    """Returns ``directory``, ``topic``, ``link`` or ``mount``; "" for a kind of a newer version."""
    return entry.WhichOneof("kind") or ""


def display_path(entry: entry_pb2.Entry) -> str:
    """Returns the path as the command line takes it: with a ``/`` at the end, but for topics."""
    return entry.path if kind_of(entry) == "topic" or entry.path == "/" else f"{entry.path}/"


def display_name(entry: entry_pb2.Entry) -> Styled:
    """Returns the last segment, with a ``/`` as in ``display_path``, in the style of its kind."""
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
    """Returns one line of ``ls -l``, a cell for each of ``COLUMNS``; ``^`` marks what is inherited,
    ``-`` what is not set.

    ``inherited`` has the inherited policies, None if they are not known; ``topics`` is the number
    of topics below; ``name`` is shown instead of the entry's own.
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
    """Returns how long ago an entry was changed; without ``human``, the exact time."""
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
    """Returns the value that is set for ``key``; "" where it is cleared, None where it
    is not set.
    """
    if key not in policies.topic_config:
        return None
    value = policies.topic_config[key]
    return "" if value.cleared else value.value


def _owner(entry: entry_pb2.Entry, inherited: policies_pb2.Policies | None) -> str:
    if entry.policies.HasField("owner"):
        return entry.policies.owner or "-"
    return f"{inherited.owner} ^" if inherited is not None and inherited.owner else "-"


def state_of(entry: entry_pb2.Entry, *, human: bool) -> str | Styled:
    """Returns the state of an entry: a topic's in Kafka, a link's mode, or whether a mount's child
    is linked; a directory has no state.
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
    done, 3m left``. The time left is shown only when the operation has run long enough to estimate
    it.

    Args:
        now: Unix seconds.
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
    """Returns the large changes of a path's cluster; empty if the caller is denied its status.

    Raises:
        KdirError: the cluster cannot be found or asked.
    """
    status = cluster_status_at(session, path)
    return [] if status is None else list(status.progress)


def stop_note_at(session: Session, path: Path) -> str:
    """Returns the note that changes in the Kafka of a path's cluster are stopped, and why; empty if
    they are not, or if the cluster's status cannot be read.
    """
    status = _kafka_status_at(session, path)
    reason = status.kafka.stop_reason if status is not None else ""
    return stopped_text(reason, str(path)) if reason else ""


def _kafka_status_at(session: Session, path: Path) -> admin_pb2.GetStatusResponse | None:
    """Returns the status of a path's cluster; None if it has no Kafka or cannot be read."""
    from resolver.errors import KdirError

    try:
        status = cluster_status_at(session, path)
    except KdirError:
        return None
    return status if status is not None and status.HasField("kafka") else None


class KafkaNote(NamedTuple):
    """Reason why what is known of a Kafka is outdated, or may be."""

    text: str
    is_missing: bool = True
    """True if the exit code is 3 for it."""


def kafka_notes_at(session: Session, path: Path) -> list[KafkaNote]:
    """Returns notes on why what is known of a path's Kafka is outdated: changes are stopped, or
    Kafka did not answer when it was last read. Empty if neither is so, or if the cluster's status
    cannot be read.
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
    """Returns why the state of Kafka is outdated, and its age; None if it is current.

    If there are several servers, only the elected one, which reads Kafka, has this state.
    """
    elected = _elected_member(status)
    if not status.kafka.leader and elected is not None:
        answer = _query_elected(session, status, elected)
        if isinstance(answer, KafkaNote):
            return answer
        status = answer
    kafka = status.kafka
    if not kafka.leader:
        return KafkaNote("no server is elected to read its Kafka: what is known is of before")
    if kafka.reachable:
        return None
    why = f"Kafka did not answer when it was last read, {kafka.message}"
    if not kafka.HasField("last_sweep_seconds"):
        return KafkaNote(f"{why}; it was not read before")
    return KafkaNote(f"{why}; what is known is of {units.age(kafka.last_sweep_seconds)} ago")


def _elected_member(status: admin_pb2.GetStatusResponse) -> admin_pb2.Member | None:
    return next((one for one in status.members if "reconciler" in one.roles), None)


def _query_elected(
    session: Session, status: admin_pb2.GetStatusResponse, elected: admin_pb2.Member
) -> admin_pb2.GetStatusResponse | KafkaNote:
    """Returns the status of the server that is elected to read Kafka, or of one that names none as
    elected; else why it is not known whether Kafka answers.
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
    # Which of them answers is chance: the exit code must not depend on it.
    why = f"{role} has no endpoint of its own, and {by} answered"
    return KafkaNote(f"{unknown}: {why}", is_missing=False)


def stopped_text(reason: str, path: str) -> str:
    """Returns why changes in Kafka are stopped, what that means for states, and what ends it."""
    return f"{reason}; until then states are those of before (kdir ack {path})"


def cluster_status_at(session: Session, path: Path) -> admin_pb2.GetStatusResponse | None:
    """Returns the status of the cluster that a path is in; None if the caller is denied it.

    Raises:
        KdirError: the cluster cannot be found or asked.
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
