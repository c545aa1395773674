"""What a change needs: the rights of who wishes it, asked on the snapshot that it is planned on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, TypeVar

from directory.access.authorizer import Access
from directory.access.compiled_grants import Question
from directory.access.grant import Grant, Operation, ResourceKind
from directory.access.grant_tree import Place
from directory.access.principals import ANONYMOUS
from directory.api.access_control import Guarding, check_owned
from directory.api.caller_view import Sight
from directory.api.enforcing import refuse_unenforced
from directory.api.present import (
    STOPPED,
    kind_there,
    meant_kind,
    of_what_is_seen,
    require_directory,
    veiled,
)
from directory.api.rpc.call_context import Call
from directory.kafka.pin_and_stop import KafkaFacts
from directory.namespace import physical_names
from directory.namespace.command import (
    AddGrants,
    Command,
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    Observed,
    RemoveGrants,
    UpdateEntry,
)
from directory.namespace.entry import Kind
from directory.namespace.keys import INHERITED
from directory.namespace.mapping import place, split_on
from directory.namespace.snapshot import Snapshot
from directory.namespace.traversal import follow, standing
from directory.server.cluster import Cluster
from directory.store.base import Guard, KeyIs, NothingNewer
from resolver.errors import (
    Absent,
    AlreadyExists,
    Conflict,
    InvalidArgument,
    InvalidPath,
    KafkaReplaced,
    LocksOut,
    VanishGuard,
)
from resolver.path import Path

__all__ = [
    "authorizing",
    "authorizing_on",
    "entry_meant",
    "locks_out",
    "meant",
    "refuse_lock_out",
    "veiling",
    "veiling_stop",
]

C = TypeVar("C", bound=Command)


def meant(guarding: Guarding, cluster: Cluster, command: C, call: Call) -> C:
    """What a command is about where it names no kind, as far as the caller sees what stands there.

    Raises:
        NotReady
    """
    sight = guarding.sight(cluster, cluster.replica.snapshot, call)
    return of_what_is_seen(sight, command)


@contextmanager
def veiling(guarding: Guarding, cluster: Cluster, command: Command, call: Call) -> Iterator[None]:
    """Around a change: what goes wrong is told without what the caller may not describe."""
    try:
        yield
    except (Conflict, InvalidPath, InvalidArgument) as error:
        sight = guarding.sight(cluster, cluster.replica.snapshot, call)
        told = error if sight.sees_all else veiled(sight, error, command)
        if told is error:
            raise
        raise told from None


@contextmanager
def veiling_stop(guarding: Guarding, cluster: Cluster, call: Call) -> Iterator[None]:
    """Around what waits for Kafka: why it is stopped names topics."""
    try:
        yield
    except (VanishGuard, KafkaReplaced) as error:
        if guarding.sight(cluster, cluster.replica.snapshot, call).shows_all():
            raise
        raise type(error)(STOPPED) from None


def authorizing(
    guarding: Guarding, cluster: Cluster, command: Command, call: Call
) -> Callable[[Snapshot], tuple[Guard, ...]]:
    """What the writer asks before each try: whether the caller may do it, on the snapshot that it
    is planned on. It answers the guards under which that holds still when it is committed.
    """

    def authorize(snapshot: Snapshot) -> tuple[Guard, ...]:
        acting = guarding.acting(cluster, snapshot, call)
        try:
            _check(cluster, acting, command)
        except Absent:
            # Planning says so, too; what is gone is hidden from nobody who is shown everything, and
            # a request that is asked again is answered to them as before.
            if not guarding.sight(cluster, snapshot, call).sees_all:
                raise
        if isinstance(command, AddGrants):
            refuse_unenforced(cluster, acting, command.path)
        return _inherited_guards(cluster, snapshot)

    return authorize


def locks_out(
    guarding: Guarding, cluster: Cluster, snapshot: Snapshot, command: Command, call: Call
) -> bool:
    """True if a command closes a directory that its caller could then not open again, or not even
    see, while the same directory is not closed to it now.
    """
    path = _closed_by(command)
    sight = guarding.acting(cluster, snapshot, call)
    if path is None or not sight.access.mount.is_prefix_of(path):
        return False  # planning says why not
    place = Place(path.below(sight.access.mount))
    now = sight.access
    then = replace(now, tree=now.loaded().with_closed(place.relative, closed=True))
    age_seconds = cluster.unconfirmed_seconds() or 0.0

    def may(access: Access, operation: Operation) -> bool:
        question = Question.of(operation)
        return access.decide(sight.caller, question, place, age_seconds=age_seconds).allowed

    return any(may(now, one) and not may(then, one) for one in _TO_OPEN)


def _closed_by(command: Command) -> Path | None:
    """The directory that a command closes."""
    match command:
        case UpdateEntry(path=path, changes=changes) if changes.get("directory.closed") is True:
            return path
        case CreateDirectory(path=path, closed=True):
            return path
        case _:
            return None


_TO_OPEN: Final = (Operation.DESCRIBE, Operation.ALTER)
"""What it takes to open a closed directory."""


def refuse_lock_out(
    guarding: Guarding, cluster: Cluster, snapshot: Snapshot, command: Command, call: Call
) -> None:
    """Refuses a command that locks its caller out.

    Raises:
        LocksOut
    """
    path = _closed_by(command)
    if path is not None and locks_out(guarding, cluster, snapshot, command, call):
        who = call.principal or ANONYMOUS
        raise LocksOut(
            f"closing {path} would lock {who} out: no grant on it or above lets {who} pass; "
            f"expected a grant first (kdir grant {who} alter {path}), or allow_lock_out",
            path=path,
            principal=who,
        )


def authorizing_on(
    guarding: Guarding,
    cluster: Cluster,
    operation: Operation,
    path: Path,
    kind: Kind,
    call: Call,
) -> Callable[[Snapshot], tuple[Guard, ...]]:
    """The same, of arming: whether the caller may do something on the entry of this kind at a path,
    and, of a directory, on all below it that has grants of its own; and whether it may describe all
    of that, which arming names and changes.
    """

    def authorize(snapshot: Snapshot) -> tuple[Guard, ...]:
        sight = guarding.acting(cluster, snapshot, call)
        check_owned(cluster, sight.access.mount, path)
        kind_found = kind_there(sight, path, kind)
        _require_whole(sight, operation, path, kind_found)
        sight.require_view(path, kind_found)
        return _inherited_guards(cluster, snapshot)

    return authorize


def entry_meant(
    guarding: Guarding, cluster: Cluster, path: Path, kind: Kind | None, call: Call
) -> Kind:
    """The kind of the entry that a request means, as ``meant`` has it for commands.

    Raises:
        Absent: there is none, or none that the caller may describe.
        InvalidNamespace, NotAuthoritative: the path leads elsewhere.
        NotReady
    """
    sight = guarding.sight(cluster, cluster.replica.snapshot, call)
    found = kind_there(sight, path, meant_kind(sight, path, kind))
    if found is None:  # through a link or a mount: says so
        found = standing(sight.snapshot, sight.access.mount, path, kind).entry.kind
    return found


def _inherited_guards(cluster: Cluster, snapshot: Snapshot) -> tuple[Guard, ...]:
    if not cluster.config.parent:
        return ()
    if snapshot.fact(INHERITED) is None:
        return (KeyIs(INHERITED, None),)
    return (NothingNewer(INHERITED, snapshot.revision),)


def _check(cluster: Cluster, sight: Sight, command: Command) -> None:
    path = getattr(command, "path", None)
    if path is not None:
        check_owned(cluster, sight.access.mount, path)
    match command:
        case CreateDirectory() | CreateTopic() | CreateLink() | CreateMount():
            _check_creation(cluster, sight, command)
        case UpdateEntry(path=path, changes=changes):
            kind = kind_there(sight, path, command.kind)
            for operation in _needed(tuple(changes)):
                sight.require(operation, path, kind=kind)
            if any(one.startswith("mount.") for one in changes):
                sight.require_cluster(Operation.ALTER, "changing a mount")
        case AddGrants(path=path) | RemoveGrants(path=path):
            sight.require(Operation.ALTER, path, kind=kind_there(sight, path, command.kind))
            _may_name_resources(sight, command.grants)
        case DeleteEntry(path=path):
            kind = kind_there(sight, path, command.kind)
            _require_whole(sight, Operation.DELETE, path, kind)
            if kind is Kind.MOUNT:
                sight.require_cluster(Operation.ALTER, "unmounting a cluster")
        case MoveEntry():
            _check_move(sight, command)
        case _:
            raise TypeError(f"no caller's command: {command}")


def _require_whole(sight: Sight, operation: Operation, path: Path, kind: Kind | None) -> None:
    """That the caller may do something on an entry, and, of a directory, on all below it that has
    grants of its own.

    Raises:
        PermissionDenied, Absent, NotReady
    """
    sight.require(operation, path, kind=kind)
    if kind is Kind.DIRECTORY:
        sight.require_below(operation, path)


def _check_creation(
    cluster: Cluster,
    sight: Sight,
    command: CreateDirectory | CreateTopic | CreateLink | CreateMount,
) -> None:
    if isinstance(command, CreateDirectory) and command.make_parents:
        _may_create(sight, command.path, len(command.path.segments))
        _may_be_answered(sight, command.path)
        return
    _may_create(sight, command.path, 1)
    _may_take_over(sight, command)
    _may_reach_outside(cluster, sight, command)


def _check_move(sight: Sight, command: MoveEntry) -> None:
    path, new_path, mount = command.path, command.new_path, sight.access.mount
    kind = kind_there(sight, path, command.kind)
    _require_whole(sight, Operation.ALTER, path, kind)
    if command.leave_link and path.segments and mount.is_prefix_of(path.parent):
        require_directory(sight, path.parent, (Operation.CREATE,))
    if new_path.segments and mount.is_prefix_of(new_path.parent):
        require_directory(sight, new_path.parent, (Operation.ALTER, Operation.CREATE))
    if kind is Kind.MOUNT or _holds_mounts(sight, path, kind):
        sight.require_cluster(Operation.ALTER, "moving a mount")


def _may_be_answered(sight: Sight, path: Path) -> None:
    """What is there already is answered by mkdir -p, as far as the caller may describe it.

    Raises:
        AlreadyExists: as planning says of what is hidden and in the way.
    """
    mount = sight.access.mount
    relative = path.below(mount) if mount.is_prefix_of(path) else ()
    is_there = bool(relative) and sight.snapshot.find_directory(relative) is not None
    if is_there and not sight.sees(relative, is_topic=False):
        raise AlreadyExists(f"{path} is taken", path=path)


def _may_take_over(sight: Sight, command: Command) -> None:
    """Adopting by path changes the topic entry that stands there, if one does."""
    if not isinstance(command, CreateTopic) or command.adopt_existing is None:
        return
    mount = sight.access.mount
    if not mount.is_prefix_of(command.path) or command.path == mount:
        return  # planning says why not
    relative = command.path.below(mount)
    parent_id = sight.snapshot.find_directory(relative[:-1])
    if parent_id is not None and sight.snapshot.topic(parent_id, relative[-1]) is not None:
        sight.require(Operation.ALTER, command.path, kind=Kind.TOPIC)


def _may_reach_outside(cluster: Cluster, sight: Sight, command: Command) -> None:
    """What acts outside the directory that it is made in is the cluster's to allow: a topic that
    Kafka has already, a physical name that no operator gave to that directory, a child cluster.
    """
    match command:
        case CreateMount():
            sight.require_cluster(Operation.ALTER, "mounting a cluster")
        case CreateTopic(adopt_existing=Observed()):
            sight.require_cluster(Operation.ALTER, "adopting a topic that Kafka has")
        case CreateTopic(path=path, physical_name=name) if not _is_given(
            cluster, sight, path, name
        ):
            sight.require_cluster(
                Operation.ALTER, "a physical name other than the one that follows from the path"
            )
        case _:
            pass


def _is_given(cluster: Cluster, sight: Sight, path: Path, physical_name: str) -> bool:
    """True if a new topic's physical name is one that an operator gave to its directory: the path
    below the mount joined with ``.``, whole, or what a mapping rule puts into this very directory.
    """
    mount, kafka = sight.access.mount, cluster.config.kafka
    if kafka is None or not mount.is_prefix_of(path) or path == mount:
        return True  # planning says why not
    relative = path.below(mount)
    joined = ".".join(relative)
    if (physical_name or physical_names.default_name(relative)) == joined:
        return True
    if not physical_name:
        return False  # cut short, it would begin like somebody else's
    rules = KafkaFacts.of(sight.snapshot).rules or kafka.rules
    placed = place((*rules, *split_on(kafka.split_on)), physical_name)
    return placed.rule > 0 and not placed.reason and placed.segments[:-1] == relative[:-1]


def _may_name_resources(sight: Sight, grants: Iterable[Grant]) -> None:
    """Groups and transactional ids are the whole Kafka's, and the cluster is nobody's entry."""
    kinds = sorted({one.kind.name for one in grants if one.kind is not ResourceKind.TOPIC})
    if kinds:
        sight.require_cluster(Operation.ALTER, f"changing grants of {' and '.join(kinds)}")


def _holds_mounts(sight: Sight, path: Path, kind: Kind | None) -> bool:
    if kind is not Kind.DIRECTORY:
        return False
    directory_id = sight.snapshot.find_directory(path.below(sight.access.mount))
    return directory_id is not None and sight.snapshot.has_mounts_below(directory_id)


def _needed(fields: Collection[str]) -> tuple[Operation, ...]:
    """What it takes to change these fields of an entry."""
    configs = [one for one in fields if one.startswith("policies.topic_config")]
    if "policies" in fields:
        return (Operation.ALTER, Operation.ALTER_CONFIGS)
    if configs and len(configs) == len(fields):
        return (Operation.ALTER_CONFIGS,)
    return (Operation.ALTER, Operation.ALTER_CONFIGS) if configs else (Operation.ALTER,)


def _may_create(sight: Sight, path: Path, tiers: int) -> None:
    """In the directory right above; with more tiers, in the deepest one that is there."""
    mount = sight.access.mount
    if not mount.is_prefix_of(path) or path == mount:
        return  # planning says why not
    above = path.below(mount)[:-1]
    if tiers > 1:
        above = above[: follow(sight.snapshot, above).depth]
    require_directory(sight, mount.join(above), (Operation.CREATE,))
