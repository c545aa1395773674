"""What stands at a path, as far as one caller may know: what it may not describe is not there, in
the words, and in the very answers, in which nothing is (A12).

Refuses to decide what may be described; ``caller_view.py`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from directory.access.authorizer import Access
from directory.access.grant import Operation
from directory.access.grant_tree import Place
from directory.api.caller_view import Sight
from directory.api.counting import seen_below
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
from directory.namespace.traversal import follow, standing
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
    "is_known",
    "kind_asked",
    "kind_there",
    "may_ask_about",
    "may_come",
    "meant_kind",
    "of_what_is_seen",
    "require_directory",
    "veiled",
]

STOPPED: Final = (
    "topics vanished from Kafka, or another Kafka answers; nothing is done until an operator with "
    "ALTER on the cluster acknowledges it"
)
"""Why kdir changes nothing in Kafka, without the topics that may be hidden from the caller."""
_OfEntry = UpdateEntry | DeleteEntry | MoveEntry | AddGrants | RemoveGrants
C = TypeVar("C", bound=Command)


def is_known(sight: Sight, path: Path) -> bool:
    """Whether the caller may know of anything at a path, or of a link or mount on the way to it."""
    if not sight.access.mount.is_prefix_of(path):
        return False
    relative = path.below(sight.access.mount)
    if not relative:
        return sight.sees((), is_topic=False)
    way = follow(sight.snapshot, relative[:-1])
    if way.depth < len(relative) - 1:
        stop, at = way.stopped_by, relative[: way.depth + 1]
        if isinstance(stop, Mount):
            return sight.may_refer(sight.access.mount.join(at))
        return stop is not None and sight.sees(at, is_topic=False)
    if relative[-1] in way.node.topics and sight.sees(relative, is_topic=True):
        return True
    return relative[-1] in way.node.containers and sight.sees(relative, is_topic=False)


def may_come(sight: Sight, path: Path) -> bool:
    """Whether the caller would see an entry that is made at a path where it sees none now."""
    mount = sight.access.mount
    if not mount.is_prefix_of(path):
        return False
    nearest = Path.parse(sight.absent(path).metadata["nearest"])
    return sight.sees(nearest.below(mount), is_topic=False)


def may_ask_about(sight: Sight, path: Path, kind: Kind | None) -> bool:
    """Whether the caller may ask what others may do at a path: of what it sees, and of what could
    be made there, where nothing is hidden from it.
    """
    mount = sight.access.mount
    if sight.sees_all or not mount.is_prefix_of(path):
        return True
    try:
        found = standing(sight.snapshot, mount, path, kind)
    except Absent:
        relative = path.below(mount)
        return sight.sees_all_in(relative[: follow(sight.snapshot, relative[:-1]).depth])
    except KdirError:
        return is_known(sight, path)
    return sight.sees(path.below(mount), is_topic=isinstance(found.entry, Topic))


def as_shown(sight: Sight, command: Command, planned: Plan) -> Plan:
    """A plan as the caller is shown it: with the numbers of what it sees, and of an update without
    the entry that it may not describe.
    """
    entry, path = planned.entry, planned.path
    if entry is None or path is None:
        return planned
    relative = path.segments[len(sight.access.mount) :]
    if isinstance(command, UpdateEntry) and not sight.shows(relative, entry.kind):
        planned = replace(planned, entry=None)
    node = sight.snapshot.node(entry.entry_id) if isinstance(entry, Directory) else None
    is_counted = planned.topic_count or planned.directory_count
    if node is None or not is_counted or sight.sees_all_in(relative):
        return planned
    seen = seen_below(sight, relative, node)
    return replace(
        planned,
        topic_count=seen.topics,
        directory_count=seen.containers + 1 if planned.directory_count else 0,
        kafka_topics_deleted=planned.kafka_topics_deleted and seen.topics > 0,
    )


def as_if_absent(
    sight: Sight, access: Access, place: Place, is_granted_at: Callable[[Place], bool]
) -> Access:
    """Who may do what at a place as far as the caller may know, who asks for itself: up to the
    deepest entry that it knows of, all grants and closed directories count; those of hidden entries
    further down do not, as what does not exist has none.

    It knows of what it may describe, and of what has a grant of its own that allows what it asks
    about (``is_granted_at``).
    """
    hidden: Place | None = None
    for length in range(len(place.relative), 0, -1):
        here = Place(place.relative[:length], place.is_topic and length == len(place.relative))
        if sight.sees(here.relative, is_topic=here.is_topic) or is_granted_at(here):
            break
        hidden = here
    if hidden is None:
        return access
    return replace(access, tree=access.loaded().cut(hidden)[0])


def kind_asked(
    sight: Sight,
    path: Path,
    kind: Kind | None,
    is_granted_at: Callable[[Place], bool] = lambda _: False,
) -> Kind:
    """Which kind a question about rights is of; where nothing is that the caller may know of, a
    topic would be. ``is_granted_at``: whether the entry at a place has a grant that allows it.

    Raises:
        NotAuthoritative: what lies beyond a mount is another cluster's to say.
    """
    if kind is not None:
        return kind
    meant = meant_kind(sight, path, None)
    if meant is not None:
        return meant
    if not is_known(sight, path):
        relative = path.below(sight.access.mount)
        is_topic = bool(relative) and is_granted_at(Place(relative, is_topic=True))
        return Kind.DIRECTORY if not is_topic and is_granted_at(Place(relative)) else Kind.TOPIC
    try:
        return standing(sight.snapshot, sight.access.mount, path, None).entry.kind
    except NotAuthoritative:
        raise
    except KdirError:
        return Kind.TOPIC


def kind_there(sight: Sight, path: Path, kind: Kind | None) -> Kind | None:
    """Which kind of entry a command is about; the caller's rights to it are not looked at.

    Raises:
        Absent: there is none, or none that the caller may describe.
    """
    if not sight.access.mount.is_prefix_of(path):
        return kind  # planning says so
    try:
        return standing(sight.snapshot, sight.access.mount, path, kind).entry.kind
    except KdirError as error:
        if not is_known(sight, path):
            raise sight.absent(path) from None
        if isinstance(error, Absent):
            raise  # it is of another kind
        return kind  # through a link or a mount: planning says so


def of_what_is_seen(sight: Sight, command: C) -> C:
    """A command that names no kind is about what the caller sees; see ``meant_kind``."""
    if not isinstance(command, _OfEntry) or command.kind is not None:
        return command
    kind = meant_kind(sight, command.path, None)
    return command if kind is None else replace(command, kind=kind)


def meant_kind(sight: Sight, path: Path, kind: Kind | None) -> Kind | None:
    """Which kind a request means that names this one, or none: then the topic first, as resolving
    does, but the container where that stands beside a topic that is hidden from the caller. None:
    whatever stands there, for nothing is beside it.
    """
    mount = sight.access.mount
    if sight.sees_all or kind is not None or not mount.is_prefix_of(path) or path == mount:
        return kind
    relative = path.below(mount)
    try:
        found = standing(sight.snapshot, mount, path, None)
    except KdirError:
        return None
    beside = found.parent.containers.get(found.name) if found.parent is not None else None
    if (
        not isinstance(found.entry, Topic)
        or beside is None
        or sight.sees(relative, is_topic=True)
        or not sight.sees(relative, is_topic=False)
    ):
        return None
    return beside.kind


def require_directory(sight: Sight, path: Path, operations: Sequence[Operation]) -> None:
    """That a directory is there in which the caller may do these; where nothing is hidden from it,
    planning says that there is none.

    Raises:
        InvalidNamespace: there is none that it may describe; names the nearest that is.
        PermissionDenied
    """
    mount = sight.access.mount
    relative = path.below(mount)
    way = follow(sight.snapshot, relative)
    if way.depth == len(relative):
        try:
            for operation in operations:
                sight.require(operation, path, kind=Kind.DIRECTORY)
        except Absent as absent:
            raise _no_directory(path, Path.parse(absent.metadata["nearest"])) from None
        return
    if way.stopped_by is not None and is_known(sight, mount.join(relative[: way.depth + 1])):
        return
    if way.stopped_by is None and sight.sees_all_in(relative[: way.depth]):
        return
    raise _no_directory(path, Path.parse(sight.absent(path).metadata["nearest"]))


def _no_directory(path: Path, nearest: Path) -> InvalidNamespace:
    missing = Path(path.segments[: len(nearest) + 1])
    return InvalidNamespace(
        f"{missing} does not exist; the nearest directory that does is {nearest}",
        missing=missing,
        nearest=nearest,
    )


def veiled(sight: Sight, error: KdirError, command: Command) -> KdirError:
    """An error of planning without what it says of entries that the caller may not describe. That
    there are directories above what it asks for, it knows.
    """
    facts = error.metadata
    if isinstance(error, (QuotaExceeded, InvalidArgument)):
        is_shown = "used" not in facts or _sees_all_below(sight, facts.get("path", ""))
        return error if is_shown else _without_use(error)
    if facts.get("path") in _above(command):
        return error
    match error:
        case PhysicalNameTaken() if _is_hidden(sight, facts.get("owner", "")):
            name, free = facts.get("physical_name", ""), facts.get("free", "")
            hint = f"; '{free}' is free" if free else ""
            rest = {"free": free} if free else {}
            message = f"'{name}' is taken by another topic{hint}"
            return PhysicalNameTaken(message, metadata=rest, physical_name=name)
        case PhysicalNameCollides() if _is_hidden_topic(sight, facts.get("collides_with", "")):
            name, free = facts.get("physical_name", ""), facts.get("free", "")
            return PhysicalNameCollides(
                f"'{name}' collides with another: Kafka takes '.' and '_' for the same; '{free}' "
                f"is free",
                physical_name=name,
                free=free,
            )
        case AlreadyExists() | MountShadows() if _is_hidden(sight, facts.get("path", "")):
            return AlreadyExists(f"{facts['path']} is taken", path=facts["path"])
        case NotEmpty() if not _sees_all_in(sight, facts.get("path", "")):
            path = facts.get("path", "")
            return NotEmpty(
                f"{path} is not empty; remove what it holds first, or remove it with all below it",
                path=path,
            )
        case ReadOnly() | AboveCeiling() if _is_hidden(sight, facts.get("path", "")):
            return type(error)("something below it may not be changed")
        case InvalidPath() if _is_hidden(sight, facts.get("path", "")):
            return InvalidPath("what lies below would get too long a path", rule="length")
        case HasMounts() if not all(
            sight.may_refer(Path.parse(one)) for one in facts.get("mounts", "").split(", ") if one
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


def _is_hidden(sight: Sight, text: str) -> bool:
    """Whether there is something at a path, and the caller may not know of it."""
    path = _below(sight, text)
    if path is None or is_known(sight, path):
        return False
    try:
        standing(sight.snapshot, sight.access.mount, path, None)
    except KdirError:
        return False
    return True


def _is_hidden_topic(sight: Sight, physical_name: str) -> bool:
    located = sight.snapshot.locate(physical_name)
    if located is None or located.relative is None:
        return False
    return not sight.sees(located.relative, is_topic=True)


def _sees_all_in(sight: Sight, text: str) -> bool:
    path = _below(sight, text)
    return path is None or sight.sees_all_in(path.below(sight.access.mount))


def _sees_all_below(sight: Sight, text: str) -> bool:
    """Whether nothing is hidden of what a quota counts; one above the mount counts all of it."""
    path = _below(sight, text)
    return sight.sees_all_in(() if path is None else path.below(sight.access.mount))


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


def _below(sight: Sight, text: str) -> Path | None:
    try:
        path = Path.parse(text)
    except InvalidPath:
        return None
    return path if sight.access.mount.is_prefix_of(path) else None
