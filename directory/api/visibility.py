"""What stands at a path, as far as one caller may know: what it may not describe is not there, in
the words, and in the very answers, in which nothing is (A12).

Refuses to decide what may be described; ``caller_view.py`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from directory.access.authorizer import Authorizer
from directory.access.grant import Operation
from directory.access.grant_tree import EntryPlace
from directory.api.caller_view import CallerView
from directory.api.visible_counts import count_visible_below
from directory.namespace.command import (
    AddGrants,
    Command,
    DeleteEntry,
    MoveEntry,
    Plan,
    RemoveGrants,
    UpdateEntry,
)
from directory.namespace.entry import Directory, Kind, Mount, Topic
from directory.namespace.traversal import locate_entry, traverse
from resolver.errors import (
    AboveCeiling,
    Absent,
    AlreadyExists,
    HasMounts,
    InvalidArgument,
    InvalidNamespace,
    InvalidPath,
    KdirError,
    MountShadows,
    NotAuthoritative,
    NotEmpty,
    PhysicalNameCollides,
    PhysicalNameTaken,
    QuotaExceeded,
    ReadOnly,
)
from resolver.path import Path

__all__ = [
    "STOPPED",
    "as_if_absent",
    "as_shown",
    "can_query_access",
    "infer_command_kind",
    "is_visible",
    "kind_asked",
    "meant_kind",
    "redact_error",
    "require_visible_directory",
    "require_visible_kind",
    "would_be_visible",
]

STOPPED: Final = (
    "topics vanished from Kafka, or another Kafka answers; nothing is done until an operator with "
    "ALTER on the cluster acknowledges it"
)
"""Why kdir changes nothing in Kafka, without the topics that may be hidden from the caller."""
_OfEntry = UpdateEntry | DeleteEntry | MoveEntry | AddGrants | RemoveGrants
C = TypeVar("C", bound=Command)


def is_visible(view: CallerView, path: Path) -> bool:
    """True if the caller may know of anything at a path, or of a link or mount on the way to it."""
    if not view.access.mount.is_prefix_of(path):
        return False
    relative = path.below(view.access.mount)
    if not relative:
        return view.can_describe((), is_topic=False)
    way = traverse(view.snapshot, relative[:-1])
    if way.depth < len(relative) - 1:
        stop, at = way.stopped_by, relative[: way.depth + 1]
        if isinstance(stop, Mount):
            return view.can_refer_to(view.access.mount.join(at))
        return stop is not None and view.can_describe(at, is_topic=False)
    if relative[-1] in way.node.topics and view.can_describe(relative, is_topic=True):
        return True
    return relative[-1] in way.node.containers and view.can_describe(relative, is_topic=False)


def would_be_visible(view: CallerView, path: Path) -> bool:
    """True if the caller would see an entry that is made at a path where it sees none now."""
    mount = view.access.mount
    if not mount.is_prefix_of(path):
        return False
    nearest = Path.parse(view.absent_error(path).metadata["nearest"])
    return view.can_describe(nearest.below(mount), is_topic=False)


def can_query_access(view: CallerView, path: Path, kind: Kind | None) -> bool:
    """True if the caller may ask what others may do at a path: of what it sees, and of what could
    be made there, where nothing is hidden from it.
    """
    mount = view.access.mount
    if view.is_unrestricted or not mount.is_prefix_of(path):
        return True
    try:
        found = locate_entry(view.snapshot, mount, path, kind)
    except Absent:
        relative = path.below(mount)
        return view.can_describe_all_below(relative[: traverse(view.snapshot, relative[:-1]).depth])
    except KdirError:
        return is_visible(view, path)
    return view.can_describe(path.below(mount), is_topic=isinstance(found.entry, Topic))


def as_shown(view: CallerView, command: Command, planned: Plan) -> Plan:
    """A plan as the caller is shown it: with the numbers of what it sees, and of an update without
    the entry that it may not describe.
    """
    entry, path = planned.entry, planned.path
    if entry is None or path is None:
        return planned
    relative = path.segments[len(view.access.mount) :]
    if isinstance(command, UpdateEntry) and not view.shows(relative, entry.kind):
        planned = replace(planned, entry=None)
    node = view.snapshot.node(entry.entry_id) if isinstance(entry, Directory) else None
    is_counted = planned.topic_count or planned.directory_count
    if node is None or not is_counted or view.can_describe_all_below(relative):
        return planned
    seen = count_visible_below(view, relative, node)
    return replace(
        planned,
        topic_count=seen.topics,
        directory_count=seen.containers + 1 if planned.directory_count else 0,
        kafka_topics_deleted=planned.kafka_topics_deleted and seen.topics > 0,
    )


def as_if_absent(
    view: CallerView,
    access: Authorizer,
    place: EntryPlace,
    is_granted_at: Callable[[EntryPlace], bool],
) -> Authorizer:
    """Returns who may do what at a place as far as the caller may know, who asks for itself: up to
    the deepest entry that it knows of, all grants and closed directories count; those of hidden
    entries further down do not, as what does not exist has none.

    It knows of what it may describe, and of what has a grant of its own that allows what it asks
    about (``is_granted_at``).
    """
    hidden: EntryPlace | None = None
    for length in range(len(place.relative), 0, -1):
        here = EntryPlace(place.relative[:length], place.is_topic and length == len(place.relative))
        if view.can_describe(here.relative, is_topic=here.is_topic) or is_granted_at(here):
            break
        hidden = here
    if hidden is None:
        return access
    return replace(access, tree=access.own_grants().detach_subtree(hidden)[0])


def kind_asked(
    view: CallerView,
    path: Path,
    kind: Kind | None,
    is_granted_at: Callable[[EntryPlace], bool] = lambda _: False,
) -> Kind:
    """Returns which kind a question about rights is of; where nothing is that the caller may know
    of, a topic would be. ``is_granted_at``: whether the entry at a place has a grant that allows
    it.

    Raises:
        NotAuthoritative: what lies beyond a mount is another cluster's to say.
    """
    if kind is not None:
        return kind
    meant = meant_kind(view, path, None)
    if meant is not None:
        return meant
    if not is_visible(view, path):
        relative = path.below(view.access.mount)
        is_topic = bool(relative) and is_granted_at(EntryPlace(relative, is_topic=True))
        return (
            Kind.DIRECTORY if not is_topic and is_granted_at(EntryPlace(relative)) else Kind.TOPIC
        )
    try:
        return locate_entry(view.snapshot, view.access.mount, path, None).entry.kind
    except NotAuthoritative:
        raise
    except KdirError:
        return Kind.TOPIC


def require_visible_kind(view: CallerView, path: Path, kind: Kind | None) -> Kind | None:
    """Returns which kind of entry a command is about; the caller's rights to it are not looked at.

    Raises:
        Absent: there is none, or none that the caller may describe.
    """
    if not view.access.mount.is_prefix_of(path):
        return kind  # planning says so
    try:
        return locate_entry(view.snapshot, view.access.mount, path, kind).entry.kind
    except KdirError as error:
        if not is_visible(view, path):
            raise view.absent_error(path) from None
        if isinstance(error, Absent):
            raise  # it is of another kind
        return kind  # through a link or a mount: planning says so


def infer_command_kind(view: CallerView, command: C) -> C:
    """A command that names no kind is about what the caller sees; see ``meant_kind``."""
    if not isinstance(command, _OfEntry) or command.kind is not None:
        return command
    kind = meant_kind(view, command.path, None)
    return command if kind is None else replace(command, kind=kind)


def meant_kind(view: CallerView, path: Path, kind: Kind | None) -> Kind | None:
    """Returns which kind a request means that names this one, or none: then the topic first, as
    resolving does, but the container where that stands beside a topic that is hidden from the
    caller. None: whatever stands there, for nothing is beside it.
    """
    mount = view.access.mount
    if view.is_unrestricted or kind is not None or not mount.is_prefix_of(path) or path == mount:
        return kind
    relative = path.below(mount)
    try:
        found = locate_entry(view.snapshot, mount, path, None)
    except KdirError:
        return None
    beside = found.parent.containers.get(found.name) if found.parent is not None else None
    if (
        not isinstance(found.entry, Topic)
        or beside is None
        or view.can_describe(relative, is_topic=True)
        or not view.can_describe(relative, is_topic=False)
    ):
        return None
    return beside.kind


def require_visible_directory(
    view: CallerView, path: Path, operations: Sequence[Operation]
) -> None:
    """That a directory is there in which the caller may do these; where nothing is hidden from it,
    planning says that there is none.

    Raises:
        InvalidNamespace: there is none that it may describe; names the nearest that is.
        PermissionDenied
    """
    mount = view.access.mount
    relative = path.below(mount)
    way = traverse(view.snapshot, relative)
    if way.depth == len(relative):
        try:
            for operation in operations:
                view.require_operation(operation, path, kind=Kind.DIRECTORY)
        except Absent as absent:
            raise _no_directory(path, Path.parse(absent.metadata["nearest"])) from None
        return
    if way.stopped_by is not None and is_visible(view, mount.join(relative[: way.depth + 1])):
        return
    if way.stopped_by is None and view.can_describe_all_below(relative[: way.depth]):
        return
    raise _no_directory(path, Path.parse(view.absent_error(path).metadata["nearest"]))


def _no_directory(path: Path, nearest: Path) -> InvalidNamespace:
    missing = Path(path.segments[: len(nearest) + 1])
    return InvalidNamespace(
        f"{missing} does not exist; the nearest directory that does is {nearest}",
        missing=missing,
        nearest=nearest,
    )


def redact_error(view: CallerView, error: KdirError, command: Command) -> KdirError:
    """Returns an error of planning without what it says of entries that the caller may not
    describe. That there are directories above what it asks for, it knows.
    """
    facts = error.metadata
    if isinstance(error, (QuotaExceeded, InvalidArgument)):
        is_shown = "used" not in facts or _sees_all_below(view, facts.get("path", ""))
        return error if is_shown else _without_use(error)
    if facts.get("path") in _above(command):
        return error
    match error:
        case PhysicalNameTaken() if _is_hidden(view, facts.get("owner", "")):
            name, free = facts.get("physical_name", ""), facts.get("free", "")
            hint = f"; '{free}' is free" if free else ""
            rest = {"free": free} if free else {}
            message = f"'{name}' is taken by another topic{hint}"
            return PhysicalNameTaken(message, metadata=rest, physical_name=name)
        case PhysicalNameCollides() if _is_hidden_topic(view, facts.get("collides_with", "")):
            name, free = facts.get("physical_name", ""), facts.get("free", "")
            return PhysicalNameCollides(
                f"'{name}' collides with another: Kafka takes '.' and '_' for the same; '{free}' "
                f"is free",
                physical_name=name,
                free=free,
            )
        case AlreadyExists() | MountShadows() if _is_hidden(view, facts.get("path", "")):
            return AlreadyExists(f"{facts['path']} is taken", path=facts["path"])
        case NotEmpty() if not _sees_all_in(view, facts.get("path", "")):
            path = facts.get("path", "")
            return NotEmpty(
                f"{path} is not empty; remove what it holds first, or remove it with all below it",
                path=path,
            )
        case ReadOnly() | AboveCeiling() if _is_hidden(view, facts.get("path", "")):
            return type(error)("something below it may not be changed")
        case InvalidPath() if _is_hidden(view, facts.get("path", "")):
            return InvalidPath("what lies below would get too long a path", rule="length")
        case HasMounts() if not all(
            view.can_refer_to(Path.parse(one)) for one in facts.get("mounts", "").split(", ") if one
        ):
            return HasMounts("clusters are mounted below it; unmount them first")
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


def _is_hidden(view: CallerView, text: str) -> bool:
    """True if there is something at a path, and the caller may not know of it."""
    path = _rows_below(view, text)
    if path is None or is_visible(view, path):
        return False
    try:
        locate_entry(view.snapshot, view.access.mount, path, None)
    except KdirError:
        return False
    return True


def _is_hidden_topic(view: CallerView, physical_name: str) -> bool:
    located = view.snapshot.locate(physical_name)
    if located is None or located.relative is None:
        return False
    return not view.can_describe(located.relative, is_topic=True)


def _sees_all_in(view: CallerView, text: str) -> bool:
    path = _rows_below(view, text)
    return path is None or view.can_describe_all_below(path.below(view.access.mount))


def _sees_all_below(view: CallerView, text: str) -> bool:
    """True if nothing is hidden of what a quota counts; one above the mount counts all of it."""
    path = _rows_below(view, text)
    return view.can_describe_all_below(() if path is None else path.below(view.access.mount))


def _without_use(error: QuotaExceeded | InvalidArgument) -> KdirError:
    """A refusal for a quota, without how much of it is used."""
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


def _rows_below(view: CallerView, text: str) -> Path | None:
    try:
        path = Path.parse(text)
    except InvalidPath:
        return None
    return path if view.access.mount.is_prefix_of(path) else None
