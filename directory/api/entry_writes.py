"""Changes of entries: who may make one, what forbids it, and its commit.

Requests to create, update, delete or move an entry, or to change its grants, go through
``commit_change``. The caller's rights, and what the config, a policy or a child forbids, are
checked on the snapshot on which the change is planned; ``plan_redaction.py`` leaves out of the
result what the caller may not see.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from kdir.v1 import access_pb2, directory_pb2

from directory.access.authorizer import Authorizer
from directory.access.compiled_grants import AccessQuestion
from directory.access.grant_tree import EntryPlace
from directory.access.grants import Grant, Operation, ResourceType
from directory.access.principals import ANONYMOUS
from directory.api.access_control import AccessControl, CallerRights, check_owned
from directory.api.cluster_router import ClusterRouter
from directory.api.plan_redaction import as_shown, redacting_errors
from directory.api.rpc.call_context import Call
from directory.api.visible_tree import OpenTree
from directory.federation.unloaded_policies import why_inherited_missing
from directory.kafka.adoption.pinned_kafka import PinnedKafka
from directory.namespace import physical_names
from directory.namespace.adoption_mapping import map_physical_name
from directory.namespace.command import (
    AddGrants,
    Command,
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    Creation,
    DeleteEntry,
    MoveEntry,
    ObservedTopic,
    RemoveGrants,
    UpdateEntry,
)
from directory.namespace.entry import Kind, Mount
from directory.namespace.keys import INHERITED
from directory.namespace.snapshot import Snapshot
from directory.namespace.traversal import entry_path, traverse
from directory.server.cluster import Cluster
from directory.store.base import Guard, KeyEquals, UnchangedSince
from directory.store.writer import CommitResult
from resolver.errors import (
    AboveCeiling,
    Absent,
    AlreadyExists,
    InvalidArgument,
    InvalidNamespace,
    KdirError,
    LocksOut,
    NotReady,
    UnreadableRecord,
)
from resolver.path import Path

__all__ = [
    "authorize_command",
    "authorizing_on",
    "check_request_id",
    "commit_change",
    "complete_removal",
    "entry_meant",
    "is_kafka_change_allowed",
    "locks_out",
    "meant_command",
    "nearest_manage_false",
]

_REQUEST_ID_LENGTH: Final = 128
_OfEntry = UpdateEntry | DeleteEntry | MoveEntry | AddGrants | RemoveGrants
C = TypeVar("C", bound=Creation | _OfEntry)
_Request = (
    directory_pb2.CreateEntryRequest
    | directory_pb2.UpdateEntryRequest
    | directory_pb2.DeleteEntryRequest
    | directory_pb2.MoveEntryRequest
    | access_pb2.AddGrantsRequest
    | access_pb2.RemoveGrantsRequest
)


def check_request_id(request_id: str) -> None:
    """Checks an idempotency key, which is stored.

    Raises:
        InvalidArgument: it is too long.
    """
    if len(request_id) > _REQUEST_ID_LENGTH:
        raise InvalidArgument(
            f"request_id: found {len(request_id)} characters; expected at most {_REQUEST_ID_LENGTH}"
        )


def commit_change(
    router: ClusterRouter,
    asked: C,
    request: _Request,
    call: Call,
    complete: Callable[[Cluster, Snapshot, C], Command] = lambda _cluster, _snapshot, meant: meant,
    *,
    holder: bool = True,
    ask_first: bool = False,
) -> tuple[Cluster, C, CommitResult]:
    """Commits or plans a command; returns the cluster whose tree has the path, the command with the
    kind of the entry filled in, and the committed plan.

    Args:
        complete: called once the caller is authorized; raises if something else forbids the change,
            and returns the command with looked-up values added.
        holder: for a mount, the cluster above it is meant.
        ask_first: confirm the replica with the store before planning. For a recursive removal: its
            guards cover neither the size of the subtree, which is part of the response, nor
            everything that forbids removing topics from Kafka.

    Raises:
        KdirError: redacted for the caller.
    """
    check_request_id(request.request_id)
    path, access_control = asked.path, router.access_control
    choose = router.cluster_holding_entry if holder else router.cluster_for_path
    picked = choose(path, call)

    def attempt() -> tuple[Cluster, C, CommitResult]:
        cluster = router.require_owner(path, call, holder=holder)
        command = asked
        if isinstance(asked, _OfEntry) and asked.kind is None:
            tree = access_control.tree(cluster, cluster.replica.snapshot, call)
            command = meant_command(tree, asked)

        def completed(snapshot: Snapshot) -> Command:
            whole = complete(cluster, snapshot, command)
            if not _may_lock_out(request):
                refuse_lock_out(access_control, cluster, snapshot, command, call)
            return whole

        with redacting_errors(access_control, cluster, command, call):
            # A repeated request is recognized by the command as it was sent: the entry may be gone.
            written = cluster.writer.commit_command(
                asked,
                principal=call.principal,
                request_id=request.request_id,
                timeout_seconds=call.seconds_left(),
                validate_only=request.validate_only,
                authorize=authorize_command(access_control, cluster, command, call),
                complete=completed,
                as_shown=lambda planned, snapshot: as_shown(
                    access_control.tree(cluster, snapshot, call), command, planned
                ),
                later=call.after_answer,
            )
        return cluster, command, written

    return router.decide(picked, request.token, call, attempt, ask_first=ask_first)


def _may_lock_out(request: _Request) -> bool:
    """True if the request allows the caller to lock itself out, is the dry run of an update, which
    reports that, or closes no directory by its type.
    """
    match request:
        case directory_pb2.UpdateEntryRequest():
            return request.allow_lock_out or request.validate_only
        case directory_pb2.CreateEntryRequest():
            return request.allow_lock_out
        case _:
            return True


def is_kafka_change_allowed(
    cluster: Cluster, snapshot: Snapshot, aspect: str, path: Path, kind: Kind | None = None
) -> bool:
    """True if kdir may change this aspect in Kafka for the entry of a kind at a path; kind None:
    the topic, if there is one.
    """
    kafka = cluster.config.kafka
    if kafka is None or aspect not in kafka.ceiling:
        return False
    if not cluster.mount_at(snapshot).is_prefix_of(path):
        return False
    return not nearest_manage_false(cluster, snapshot, path, aspect, kind)


def complete_removal(cluster: Cluster, snapshot: Snapshot, command: DeleteEntry) -> DeleteEntry:
    """Returns the command with ``deletes_in_kafka`` set if its topics are deleted in Kafka too.

    The command is refused if topics would be deleted in Kafka while the inherited policies are
    unknown, or although a directory below forbids it.

    Raises:
        NotReady: the inherited policies are unknown.
        AboveCeiling: a policy below forbids it.
    """
    path, kind = command.path, command.kind
    if not is_kafka_change_allowed(cluster, snapshot, "delete", path, kind):
        return command
    removal = replace(command, deletes_in_kafka=True)
    if message := why_inherited_missing(snapshot, has_parent=bool(cluster.config.parent)):
        raise NotReady(message)
    mount = cluster.mount_at(snapshot)
    relative = path.below(mount)
    is_topic = kind is Kind.TOPIC or (kind is None and snapshot.topic_at(relative) is not None)
    if not command.recursive or is_topic:
        return removal
    directory_id = snapshot.find_directory(relative)
    below = () if directory_id is None else snapshot.directories_below(snapshot.nodes[directory_id])
    for one in below:
        if one.directory.policies.manage.get("delete") is False:
            where = entry_path(mount, snapshot.path_of(one.entry_id) or ())
            raise AboveCeiling(
                f"{where} says manage.delete=false: its topics are not deleted in Kafka; remove or "
                f"move it first, by itself",
                path=where,
            )
    return removal


def nearest_manage_false(
    cluster: Cluster, snapshot: Snapshot, path: Path, aspect: str, kind: Kind | None = None
) -> str:
    """Returns the path of the nearest entry at or above ``path`` that sets the aspect, if it sets
    it to false; otherwise empty. A directory's setting does not apply to the topic of the same
    name, nor the other way round.

    Raises:
        NotReady: the inherited policies cannot be read.
    """
    mount = cluster.mount_at(snapshot)
    relative = path.below(mount)
    topic = snapshot.topic_at(relative) if kind in {None, Kind.TOPIC} else None
    if topic is not None and aspect in topic.policies.manage:
        return "" if topic.policies.manage[aspect] else str(path)
    is_topic = topic is not None or kind is Kind.TOPIC
    above = cluster.policies_above(snapshot)
    deepest = traverse(snapshot, relative[:-1] if is_topic else relative).node
    for node in snapshot.upwards(deepest):
        manage = node.directory.policies.manage
        if aspect in manage:
            found = mount.join(snapshot.path_of(node.entry_id) or ())
            return "" if manage[aspect] else str(found)
    for level in reversed(above):
        if aspect in level.policies.manage:
            return "" if level.policies.manage[aspect] else level.path
    return ""


def meant_command(tree: OpenTree, command: C) -> C:
    """Returns a command with its kind filled in, if it names none; see ``OpenTree.meant_kind``."""
    if not isinstance(command, _OfEntry) or command.kind is not None:
        return command
    kind = tree.meant_kind(command.path, None)
    return command if kind is None else replace(command, kind=kind)


def authorize_command(
    access_control: AccessControl, cluster: Cluster, command: Command, call: Call
) -> Callable[[Snapshot], tuple[Guard, ...]]:
    """Returns a function that the writer calls before each try, with the snapshot that it plans on.
    The function raises if the caller lacks the rights there; else it returns guards that fail if
    the inherited records change.
    """

    def authorize(snapshot: Snapshot) -> tuple[Guard, ...]:
        acting = access_control.rights(cluster, snapshot, call)
        try:
            _check(cluster, acting, command)
        except Absent:
            # Planning reports the same. A caller that may see the whole tree must also get the
            # answer of a repeated request whose entry is gone.
            if not access_control.tree(cluster, snapshot, call).is_open:
                raise
        return _inherited_guards(cluster, snapshot)

    return authorize


def locks_out(
    access_control: AccessControl,
    cluster: Cluster,
    snapshot: Snapshot,
    command: Command,
    call: Call,
) -> bool:
    """True if a command closes a directory that is open to its caller, and the caller could not
    open it again afterwards, or not even see it.
    """
    path = _closed_by(command)
    view = access_control.rights(cluster, snapshot, call)
    if path is None or not view.mount.is_prefix_of(path):
        return False  # planning raises the error
    place = EntryPlace(path.below(view.mount))
    now = view.access
    then = replace(now, tree=now.own_grants().with_closed(place.relative, closed=True))
    age_seconds = cluster.unconfirmed_seconds() or 0.0

    def may(access: Authorizer, operation: Operation) -> bool:
        question = AccessQuestion.for_operation(operation)
        return access.authorize(view.caller, question, place, age_seconds=age_seconds).allowed

    return any(may(now, one) and not may(then, one) for one in _TO_OPEN)


def _closed_by(command: Command) -> Path | None:
    """Returns the directory that a command closes."""
    match command:
        case UpdateEntry(path=path, changes=changes) if changes.get("directory.closed") is True:
            return path
        case CreateDirectory(path=path, closed=True):
            return path
        case _:
            return None


_TO_OPEN: Final = (Operation.DESCRIBE, Operation.ALTER)
"""Rights that are needed to open a closed directory."""


def refuse_lock_out(
    access_control: AccessControl,
    cluster: Cluster,
    snapshot: Snapshot,
    command: Command,
    call: Call,
) -> None:
    """Raises an error for a command that locks its caller out.

    Raises:
        LocksOut: names the directory.
    """
    path = _closed_by(command)
    if path is not None and locks_out(access_control, cluster, snapshot, command, call):
        who = call.principal or ANONYMOUS
        raise LocksOut(
            f"closing {path} would lock {who} out: no grant on it or above lets {who} pass; "
            f"expected a grant first (kdir grant {who} alter {path})",
            path=path,
            principal=who,
        )


def authorizing_on(
    access_control: AccessControl,
    cluster: Cluster,
    operation: Operation,
    path: Path,
    kind: Kind,
    call: Call,
) -> Callable[[Snapshot], tuple[Guard, ...]]:
    """Returns a function for arming like that of ``authorize_command``. It checks the right on the
    entry of this kind at a path and, for a directory, on everything below it with grants of its
    own; and DESCRIBE on all of it, since a plan of arming names all of it.
    """

    def authorize(snapshot: Snapshot) -> tuple[Guard, ...]:
        view = access_control.rights(cluster, snapshot, call)
        check_owned(cluster, view.mount, path)
        kind_found = _require_visible_kind(view, path, kind)
        _require_whole(view, operation, path, kind_found)
        view.require_view(path, kind_found)
        return _inherited_guards(cluster, snapshot)

    return authorize


def entry_meant(
    access_control: AccessControl, cluster: Cluster, path: Path, kind: Kind | None, call: Call
) -> Kind:
    """Returns the kind of the entry that a request means, as ``meant_command`` does for commands;
    does not check that the caller may describe the entry.

    Raises:
        Absent: there is none, or the path leads through a hidden link or mount, or to a hidden
            record that cannot be read.
        InvalidNamespace, NotAuthoritative: the path leads elsewhere.
        NotReady: the tree is not loaded.
    """
    tree = access_control.tree(cluster, cluster.replica.snapshot, call)
    found = _require_visible_kind(tree, path, tree.meant_kind(path, kind))
    if found is None:  # through a link or a mount: raises that error
        found = tree.locate_entry(path, kind).entry.kind
    return found


def _inherited_guards(cluster: Cluster, snapshot: Snapshot) -> tuple[Guard, ...]:
    if not cluster.config.parent:
        return ()
    if snapshot.fact(INHERITED) is None:
        return (KeyEquals(INHERITED, None),)
    return (UnchangedSince(INHERITED, snapshot.revision),)


def _check(cluster: Cluster, view: CallerRights, command: Command) -> None:
    path = getattr(command, "path", None)
    if path is not None:
        check_owned(cluster, view.mount, path)
    match command:
        case CreateDirectory() | CreateTopic() | CreateLink() | CreateMount():
            _check_creation(cluster, view, command)
        case UpdateEntry(path=path, changes=changes):
            kind = _require_visible_kind(view, path, command.kind)
            for operation in operations_for_fields(tuple(changes)):
                view.require_operation(operation, path, kind=kind)
            if any(one.startswith("mount.") for one in changes):
                view.require_cluster(Operation.ALTER, "changing a mount")
        case AddGrants(path=path) | RemoveGrants(path=path):
            view.require_operation(
                Operation.ALTER, path, kind=_require_visible_kind(view, path, command.kind)
            )
            _may_name_resources(view, command.grants)
        case DeleteEntry(path=path):
            kind = _require_visible_kind(view, path, command.kind)
            _require_whole(view, Operation.DELETE, path, kind)
            if kind is Kind.MOUNT:
                view.require_cluster(Operation.ALTER, "unmounting a cluster")
        case MoveEntry():
            _check_move(view, command)
        case _:
            raise TypeError(f"no caller's command: {command}")


def _require_whole(view: CallerRights, operation: Operation, path: Path, kind: Kind | None) -> None:
    """Checks a right on an entry and, for a directory, on everything below it with grants of its
    own.

    Raises:
        PermissionDenied: the right is missing somewhere.
        Absent: the caller may not describe the entry.
        NotReady: the grants are not loaded.
    """
    view.require_operation(operation, path, kind=kind)
    if kind is Kind.DIRECTORY:
        view.require_on_descendants(operation, path)


def _check_creation(
    cluster: Cluster,
    view: CallerRights,
    command: CreateDirectory | CreateTopic | CreateLink | CreateMount,
) -> None:
    if isinstance(command, CreateDirectory) and command.make_parents:
        _may_make_parents(view, command.path)
        return
    _may_create(view, command.path)
    _may_take_over(view, command)
    _may_reach_outside(cluster, view, command)


def _check_move(view: CallerRights, command: MoveEntry) -> None:
    path, new_path, mount = command.path, command.new_path, view.mount
    kind = _require_visible_kind(view, path, command.kind)
    _require_whole(view, Operation.ALTER, path, kind)
    if command.leave_link and path.segments and mount.is_prefix_of(path.parent):
        _require_visible_directory(view, path.parent, (Operation.CREATE,))
    if new_path.segments and mount.is_prefix_of(new_path.parent):
        _require_visible_directory(view, new_path.parent, (Operation.ALTER, Operation.CREATE))
    if kind is Kind.MOUNT or _holds_mounts(view, path, kind):
        view.require_cluster(Operation.ALTER, "moving a mount")


def _may_make_parents(view: CallerRights, path: Path) -> None:
    """Checks a ``mkdir -p``: CREATE on the deepest directory above the path that the caller knows
    of. Any entry below that one, on the path or at its end, refuses the command if it is hidden.

    Raises:
        AlreadyExists: such a hidden entry exists; names its path, but not its kind.
        InvalidNamespace, PermissionDenied: as ``_require_visible_directory``.
    """
    mount = view.mount
    if not mount.is_prefix_of(path) or path == mount:
        return  # planning raises the error
    relative = path.below(mount)
    way = traverse(view.snapshot, relative)
    depth = min(way.depth, len(relative) - 1)
    while depth and not view.knows_of(EntryPlace(relative[:depth])):
        depth -= 1
    _require_visible_directory(view, mount.join(relative[:depth]), (Operation.CREATE,))
    if depth == way.depth and way.stopped_by is None:
        return  # no entry is there
    at = relative[: depth + 1]
    is_shown = view.can_describe(at, is_topic=False)
    if depth == way.depth and isinstance(way.stopped_by, Mount):
        is_shown = is_shown or view.can_refer_to(mount.join(at))
    if not is_shown:
        raise AlreadyExists(f"{mount.join(at)} is taken", path=mount.join(at))


def _may_take_over(view: CallerRights, command: Command) -> None:
    """Checks the right to adopt by path, which changes the topic entry that exists
    there, if any.
    """
    if not isinstance(command, CreateTopic) or command.adopt_existing is None:
        return
    mount = view.mount
    if not mount.is_prefix_of(command.path) or command.path == mount:
        return  # planning raises the error
    if view.snapshot.topic_at(command.path.below(mount)) is not None:
        view.require_operation(Operation.ALTER, command.path, kind=Kind.TOPIC)


def _may_reach_outside(cluster: Cluster, view: CallerRights, command: Command) -> None:
    """Checks the right on the cluster for what reaches beyond the new entry's directory: an
    existing topic of Kafka, a physical name that no operator gave to the directory, a child
    cluster.
    """
    match command:
        case CreateMount():
            view.require_cluster(Operation.ALTER, "mounting a cluster")
        case CreateTopic(adopt_existing=ObservedTopic()):
            view.require_cluster(Operation.ALTER, "adopting a topic that Kafka has")
        case CreateTopic(path=path, physical_name=name) if not _is_given(cluster, view, path, name):
            view.require_cluster(
                Operation.ALTER, "a physical name other than the one that follows from the path"
            )
        case _:
            pass


def _is_given(cluster: Cluster, view: CallerRights, path: Path, physical_name: str) -> bool:
    """True if an operator gave a new topic's physical name to its directory: it is the whole path
    below the mount joined with ``.``, or a mapping rule maps the name into this very directory.
    """
    mount, kafka = view.mount, cluster.config.kafka
    if kafka is None or not mount.is_prefix_of(path) or path == mount:
        return True  # planning raises the error
    relative = path.below(mount)
    joined = ".".join(relative)
    if (physical_name or physical_names.default_physical_name(relative)) == joined:
        return True
    if not physical_name:
        return False  # shortened, it would have the prefix of another directory
    rules = kafka.placing(PinnedKafka.load(view.snapshot).rules)
    placed = map_physical_name(rules, physical_name)
    return placed.rule > 0 and not placed.reason and placed.segments[:-1] == relative[:-1]


def _may_name_resources(view: CallerRights, grants: Iterable[Grant]) -> None:
    """Checks the right on the cluster for grants on groups and transactional ids, which belong to
    the whole Kafka cluster, and on the cluster itself.
    """
    kinds = sorted({one.kind.name for one in grants if one.kind is not ResourceType.TOPIC})
    if kinds:
        view.require_cluster(Operation.ALTER, f"changing grants of {' and '.join(kinds)}")


def _holds_mounts(view: CallerRights, path: Path, kind: Kind | None) -> bool:
    if kind is not Kind.DIRECTORY:
        return False
    directory_id = view.snapshot.find_directory(path.below(view.mount))
    return directory_id is not None and view.snapshot.has_mounts_below(directory_id)


def operations_for_fields(fields: Collection[str]) -> tuple[Operation, ...]:
    """Returns the operations that changing these fields of an entry requires."""
    configs = [one for one in fields if one.startswith("policies.topic_config")]
    if "policies" in fields:
        return (Operation.ALTER, Operation.ALTER_CONFIGS)
    if configs and len(configs) == len(fields):
        return (Operation.ALTER_CONFIGS,)
    return (Operation.ALTER, Operation.ALTER_CONFIGS) if configs else (Operation.ALTER,)


def _may_create(view: CallerRights, path: Path) -> None:
    """Checks CREATE on the parent directory."""
    mount = view.mount
    if mount.is_prefix_of(path) and path != mount:  # else planning raises the error
        _require_visible_directory(view, path.parent, (Operation.CREATE,))


def _require_visible_kind(tree: OpenTree, path: Path, kind: Kind | None) -> Kind | None:
    """Returns the kind of the entry that a command names; the caller's rights on an existing entry
    are not checked.

    Raises:
        Absent: there is none, or the path leads through a hidden link or mount, or to a hidden
            record that cannot be read.
    """
    if not tree.mount.is_prefix_of(path):
        return kind  # planning raises the error
    try:
        return tree.locate_entry(path, kind).entry.kind
    except KdirError as error:
        if isinstance(error, UnreadableRecord) and _may_describe_any_kind(tree, path):
            return kind  # a record that cannot be read: planning raises the error
        if not tree.is_visible(path):
            raise tree.absent_error(path) from None
        if isinstance(error, Absent):
            raise tree.absent_error(path, kind) from None  # the entry is of another kind
        return kind  # through a link or a mount: planning raises the error


def _may_describe_any_kind(tree: OpenTree, path: Path) -> bool:
    relative = path.below(tree.mount)
    return all(tree.can_describe(relative, is_topic=one) for one in (True, False))


def _require_visible_directory(
    view: CallerRights, path: Path, operations: Sequence[Operation]
) -> None:
    """Checks that there is a directory in which the caller may do these operations. Where nothing
    is hidden from the caller, planning reports a missing one.

    Raises:
        InvalidNamespace: there is none that the caller may describe; names the nearest.
        PermissionDenied: a right is missing.
    """
    mount = view.mount
    relative = path.below(mount)
    way = traverse(view.snapshot, relative)
    if way.depth == len(relative):
        try:
            for operation in operations:
                view.require_operation(operation, path, kind=Kind.DIRECTORY)
        except Absent:
            raise _no_directory(path, view.nearest(path)) from None
        return
    if way.stopped_by is not None and view.is_visible(mount.join(relative[: way.depth + 1])):
        return
    if way.stopped_by is None and view.can_describe_all_below(relative[: way.depth]):
        return
    raise _no_directory(path, view.nearest(path))


def _no_directory(path: Path, nearest: Path) -> InvalidNamespace:
    missing = Path(path.segments[: len(nearest) + 1])
    return InvalidNamespace(
        f"{missing} does not exist; the nearest directory that does is {nearest}",
        missing=missing,
        nearest=nearest,
    )
