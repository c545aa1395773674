"""Redaction: plans and errors of changes without what the caller may not describe. A change is
planned on the whole tree; its results are redacted here before they are returned.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from directory.api.access_control import AccessControl
from directory.api.rpc.call_context import Call
from directory.api.visible_tree import OpenTree
from directory.namespace.command import Command, Plan, UpdateEntry
from directory.namespace.entry import Directory
from directory.server.cluster import Cluster
from resolver.errors import (
    AboveCeiling,
    AlreadyExists,
    Conflict,
    EtagMismatch,
    HasMounts,
    InvalidArgument,
    InvalidPath,
    KafkaReplaced,
    KdirError,
    MountLoop,
    MountOverlaps,
    MountShadows,
    NotEmpty,
    PhysicalNameCollides,
    PhysicalNameTaken,
    QuotaExceeded,
    ReadOnly,
    VanishGuard,
)
from resolver.path import Path

__all__ = ["STOPPED", "UNREAD", "as_shown", "redact", "redacting_errors", "redacting_stop"]

STOPPED: Final = (
    "topics vanished from Kafka, or another Kafka answers; nothing is done until an operator with "
    "ALTER on the cluster acknowledges it"
)
"""Reason why the reconciler stopped; omits topic names, which may be hidden from the caller."""
UNREAD: Final = "configs of topics cannot be read"
"""Message of the reconciler about topics whose configs cannot be read, without their names."""


@contextmanager
def redacting_errors(
    access_control: AccessControl, cluster: Cluster, command: Command, call: Call
) -> Iterator[None]:
    """Context manager that replaces errors of a change by ones without what the caller may not
    describe.
    """
    try:
        yield
    except (Conflict, InvalidPath, InvalidArgument) as error:
        tree = access_control.tree(cluster, cluster.replica.snapshot, call)
        others = cluster.federation.view().above
        reported = error if tree.is_open else redact(tree, error, command, others)
        if reported is error:
            raise
        raise reported from None


@contextmanager
def redacting_stop(access_control: AccessControl, cluster: Cluster, call: Call) -> Iterator[None]:
    """Context manager that replaces errors of a stopped reconciler, whose reason names topics."""
    try:
        yield
    except (VanishGuard, KafkaReplaced) as error:
        if access_control.tree(cluster, cluster.replica.snapshot, call).shows_all():
            raise
        raise type(error)(STOPPED) from None


def as_shown(tree: OpenTree, command: Command, planned: Plan) -> Plan:
    """Returns a plan for the caller: with counts of what it may describe; for an update, without an
    entry that it may neither describe nor ALTER.
    """
    entry, path = planned.entry, planned.path
    if entry is None or path is None:
        return planned
    relative = path.segments[len(tree.mount) :]
    if isinstance(command, UpdateEntry) and not tree.shows(relative, entry.kind):
        planned = replace(planned, entry=None)
    node = tree.snapshot.nodes.get(entry.entry_id) if isinstance(entry, Directory) else None
    is_counted = planned.topic_count or planned.directory_count
    if node is None or not is_counted or tree.can_describe_all_below(relative):
        return planned
    seen = tree.count_below(relative, node)
    return replace(
        planned,
        topic_count=seen.topics,
        directory_count=seen.containers + 1 if planned.directory_count else 0,
        kafka_topics_deleted=planned.kafka_topics_deleted and seen.topics > 0,
    )


def redact(
    tree: OpenTree, error: KdirError, command: Command, others: Container[Path]
) -> KdirError:
    """Returns a planning error without hidden entries. Directories above the command's path count
    as visible, and so do ``others``, the mounts outside this cluster.
    """
    facts = error.metadata
    if isinstance(error, (QuotaExceeded, InvalidArgument)):
        is_shown = "used" not in facts or _sees_all_below(tree, facts.get("path", ""))
        return error if is_shown else _without_use(error)
    if facts.get("path") in _above(command):
        return error
    match error:
        case PhysicalNameTaken() if _is_hidden(tree, facts.get("owner", "")):
            name, free = facts.get("physical_name", ""), facts.get("free", "")
            hint = f"; '{free}' is free" if free else ""
            rest = {"free": free} if free else {}
            message = f"'{name}' is taken by another topic{hint}"
            return PhysicalNameTaken(message, metadata=rest, physical_name=name)
        case PhysicalNameCollides() if _is_hidden_topic(tree, facts.get("collides_with", "")):
            name, free = facts.get("physical_name", ""), facts.get("free", "")
            return PhysicalNameCollides(
                f"'{name}' collides with another: Kafka takes '.' and '_' for the same; '{free}' "
                f"is free",
                physical_name=name,
                free=free,
            )
        case AlreadyExists() | MountShadows() if _is_hidden(tree, facts.get("path", "")):
            return AlreadyExists(f"{facts['path']} is taken", path=facts["path"])
        case EtagMismatch() if _is_hidden(tree, facts.get("path", "")):
            return EtagMismatch("the entry has changed since, or never had this etag")
        case NotEmpty() if not _sees_all_in(tree, facts.get("path", "")):
            path = facts.get("path", "")
            return NotEmpty(
                f"{path} is not empty; remove what it holds first, or remove it with all below it",
                path=path,
            )
        case ReadOnly() | AboveCeiling() if _is_hidden(tree, facts.get("path", "")):
            return type(error)("something below it may not be changed")
        case InvalidPath() if _is_hidden(tree, facts.get("path", "")) or (
            "mount" in facts and not _may_name_mount(tree, facts["mount"])
        ):
            return InvalidPath("an entry below it would get too long a path", rule="length")
        case HasMounts() | MountOverlaps() | MountLoop():
            return _without_hidden_mounts(tree, error, others)
        case _:
            return error


def _without_hidden_mounts(
    tree: OpenTree, error: HasMounts | MountOverlaps | MountLoop, others: Container[Path]
) -> KdirError:
    facts = error.metadata
    named = [facts.get(key, "") for key in ("mounts", "overlaps", "mounted_at")]
    mounts = [one for text in named for one in text.split(", ") if one]
    is_shown = all(_may_name_mount(tree, one, others) for one in mounts)
    match error:
        case HasMounts() if not is_shown:
            return HasMounts("clusters are mounted below it; unmount them first")
        case MountOverlaps() if not is_shown:
            path = facts.get("path", "")
            return MountOverlaps(
                f"{path} lies above or below another mount: one cluster's mounts never enclose "
                f"each other",
                path=path,
            )
        case MountLoop() if not is_shown:
            return MountLoop("the cluster is mounted already; it cannot be at another path too")
        case MountLoop() if not (
            mounts or "ancestors" in facts or tree.can_describe_all_below(())
        ):  # names records that cannot be read
            return MountLoop(
                "the cluster may be mounted already: it has a claim, and some records cannot be "
                f"read; repair or remove them first: kdir verify {tree.mount}"
            )
        case _:
            return error


def _above(command: Command) -> set[str]:
    asked = [getattr(command, "path", None), getattr(command, "new_path", None)]
    return {
        str(Path(path.segments[:length]))
        for path in asked
        if isinstance(path, Path)
        for length in range(len(path))
    }


def _is_hidden(tree: OpenTree, text: str) -> bool:
    """True if there is an entry at a path that the caller may not see."""
    path = _rows_below(tree, text)
    if path is None or tree.is_visible(path):
        return False
    try:
        tree.locate_entry(path, None)
    except KdirError:
        return False
    return True


def _is_hidden_topic(tree: OpenTree, physical_name: str) -> bool:
    located = tree.snapshot.locate(physical_name)
    if located is None or located.relative is None:
        return False
    return not tree.can_describe(located.relative, is_topic=True)


def _may_name_mount(tree: OpenTree, text: str, others: Container[Path] = ()) -> bool:
    """True if the caller may see a mount that is named by its path, or, where it has no valid one,
    by its path below the cluster's mount.
    """
    segments = tuple(text.split("/")[1:])
    if tree.mount.is_prefix_of(Path(segments)):
        if not tree.can_refer_to(Path(segments)):
            return False
        try:
            tree.mount.join(segments)
        except InvalidPath:  # may be either, unless only the absolute path is a mount's
            mounts = {relative for relative, _ in tree.snapshot.mounts()}
            if segments not in mounts and segments[len(tree.mount) :] in mounts:
                return True
        else:
            return True
    elif Path(segments) in others:
        return True  # ListMounts shows it
    return tree.can_describe(segments, is_topic=False)


def _sees_all_in(tree: OpenTree, text: str) -> bool:
    path = _rows_below(tree, text)
    return path is None or tree.can_describe_all_below(path.below(tree.mount))


def _sees_all_below(tree: OpenTree, text: str) -> bool:
    """True if nothing that a quota counts is hidden; a quota set above the mount counts the whole
    cluster.
    """
    path = _rows_below(tree, text)
    return tree.can_describe_all_below(() if path is None else path.below(tree.mount))


def _without_use(error: QuotaExceeded | InvalidArgument) -> KdirError:
    """Returns a quota error without the amount used."""
    facts = {key: error.metadata[key] for key in ("field", "limit", "path")}
    field, limit, path = facts["field"], facts["limit"], facts["path"]
    if isinstance(error, QuotaExceeded):
        return QuotaExceeded(f"quota exceeded: {path} allows {limit} ({field})", metadata=facts)
    return InvalidArgument(
        f"{field}: not given, and {path} allows {limit} below it: how many the broker would make "
        f"by default is not known here; say how many (--partitions), or set partitions on a "
        f"directory",
        metadata=facts,
    )


def _rows_below(tree: OpenTree, text: str) -> Path | None:
    """Returns the path in a text if it is at or below the mount; else None. It may be beyond the
    limits of a path.
    """
    if not text.startswith("/"):
        return None
    path = Path(tuple(one for one in text.split("/") if one))
    return path if tree.mount.is_prefix_of(path) else None
