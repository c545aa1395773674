"""What a change needs: the rights of who wishes it, asked on the snapshot that it is planned on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, TypeVar

from directory.authorization.access import Access
from directory.authorization.grant import Operation
from directory.authorization.principals import ANONYMOUS
from directory.authorization.rules import Question
from directory.authorization.tree import Place
from directory.cluster import Cluster
from directory.namespace.command import (
    AddGrants,
    Command,
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    RemoveGrants,
    UpdateEntry,
)
from directory.namespace.entry import Kind
from directory.namespace.ground import follow
from directory.namespace.keys import INHERITED
from directory.namespace.snapshot import Snapshot
from directory.services.call import Call
from directory.services.enforcing import refuse_unenforced
from directory.services.guarding import Guarding
from directory.services.present import kind_there, of_what_is_seen, require_directory, veiled
from directory.services.sight import Sight
from directory.store.base import Guard, KeyIs, NothingNewer
from resolver.errors import Absent, Conflict, InvalidPath, LocksOut
from resolver.path import Path

__all__ = ["authorizing", "locks_out", "meant", "refuse_lock_out", "veiling"]

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
    except (Conflict, InvalidPath) as error:
        sight = guarding.sight(cluster, cluster.replica.snapshot, call)
        told = error if sight.sees_all else veiled(sight, error, command)
        if told is error:
            raise
        raise told from None


def authorizing(
    guarding: Guarding, cluster: Cluster, command: Command, call: Call
) -> Callable[[Snapshot], tuple[Guard, ...]]:
    """What the writer asks before each try: whether the caller may do it, on the snapshot that it
    is planned on. It answers the guards under which that holds still when it is committed.
    """

    def authorize(snapshot: Snapshot) -> tuple[Guard, ...]:
        try:
            _check(guarding.acting(cluster, snapshot, call), command)
        except Absent:
            # Planning says so, too; what is gone is hidden from nobody who is shown everything, and
            # a request that is asked again is answered to them as before.
            if not guarding.sight(cluster, snapshot, call).sees_all:
                raise
        if isinstance(command, AddGrants):
            refuse_unenforced(cluster, command.path)
        if not cluster.config.parent:
            return ()
        if snapshot.fact(INHERITED) is None:
            return (KeyIs(INHERITED, None),)
        return (NothingNewer(INHERITED, snapshot.revision),)

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
            f"a grant first (kdir grant {who} alter {path}), or allow_lock_out, would be right",
            path=path,
            principal=who,
        )


def _check(sight: Sight, command: Command) -> None:
    match command:
        case CreateDirectory(path=path, make_parents=True):
            _may_create(sight, path, len(path.segments))
        case CreateDirectory() | CreateTopic() | CreateLink() | CreateMount():
            _may_create(sight, command.path, 1)
            _may_take_over(sight, command)
        case UpdateEntry(path=path, kind=kind, changes=changes):
            kind = kind_there(sight, path, kind)
            for operation in _needed(tuple(changes)):
                sight.require(operation, path, kind=kind)
        case AddGrants(path=path, kind=kind) | RemoveGrants(path=path, kind=kind):
            sight.require(Operation.ALTER, path, kind=kind_there(sight, path, kind))
        case DeleteEntry(path=path, kind=kind):
            kind = kind_there(sight, path, kind)
            sight.require(Operation.DELETE, path, kind=kind)
            if kind is Kind.DIRECTORY:
                sight.require_below(Operation.DELETE, path)
        case MoveEntry(path=path, new_path=new_path, kind=kind, leave_link=leave_link):
            kind = kind_there(sight, path, kind)
            sight.require(Operation.ALTER, path, kind=kind)
            if kind is Kind.DIRECTORY:
                sight.require_below(Operation.ALTER, path)
            if leave_link and path.segments and sight.access.mount.is_prefix_of(path.parent):
                require_directory(sight, path.parent, (Operation.CREATE,))
            if new_path.segments and sight.access.mount.is_prefix_of(new_path.parent):
                require_directory(sight, new_path.parent, (Operation.ALTER, Operation.CREATE))
        case _:
            raise TypeError(f"no caller's command: {command}")


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
