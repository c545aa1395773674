"""What commands mean, said as plainly as can be: three dicts by path, scanned for every question.

No ids, no records, no guards. ``do`` changes it as a command should change a tree, or gives the
error that the command should end in; ``directory/namespace/plan.py`` must agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from directory.namespace.command import (
    AdoptTopics,
    Command,
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
)
from directory.namespace.entry import Kind
from resolver import errors
from resolver.errors import KdirError
from resolver.path import Path

Error = type[KdirError]
At = tuple[str, ...]


def unified(name: str) -> str:
    return name.replace(".", "_")


@dataclass
class Oracle:
    """A tree by absolute paths, and the physical names that are not free."""

    mount: At
    topics: dict[At, str] = field(default_factory=dict)
    containers: dict[At, str] = field(default_factory=dict)
    """``dir``, ``link:/target``, ``mount:cluster``."""
    removed: list[str] = field(default_factory=list)
    """Physical names of topics that are gone from the tree; none is free again within the day."""

    def __post_init__(self) -> None:
        self.containers[self.mount] = "dir"

    def do(self, command: Command) -> Error | None:
        """Does it; or does nothing and gives the error."""
        match command:
            case CreateDirectory():
                return self._mkdir(command.path.segments, parents=command.make_parents)
            case CreateTopic():
                return self._create_topic(command.path.segments, command.physical_name)
            case CreateLink():
                return self._create_link(command.path.segments, command.targets)
            case CreateMount():
                return self._create_mount(command.path.segments, command.cluster_id)
            case DeleteEntry():
                return self._delete(command.path.segments, command.kind, command.recursive)
            case MoveEntry():
                return self._move(command)
            case AdoptTopics():
                return self._adopt(command)
            case _:
                raise AssertionError(command)

    # -- where things stand ----------------------------------------------------------------------

    def _inside(self, at: At) -> bool:
        return at[: len(self.mount)] == self.mount

    def _in_the_way(self, at: At) -> Error | None:
        """Returns why there is no directory to hold ``at``."""
        if not self._inside(at):
            return errors.NotAuthoritative
        for length in range(len(self.mount), len(at)):
            existing = self.containers.get(at[:length], "")
            if existing.startswith("mount:"):
                return errors.NotAuthoritative
            if existing != "dir":
                return errors.InvalidNamespace
        return None

    def _below(self, at: At) -> list[At]:
        return [one for one in self.containers if one[: len(at)] == at and one != at]

    def _mounts_from(self, at: At) -> bool:
        return any(
            what.startswith("mount:")
            for one, what in self.containers.items()
            if one[: len(at)] == at
        )

    def tree(self) -> dict[str, str]:
        """Returns everything by path, a container's with a slash."""
        shown = {str(Path(at)): name for at, name in self.topics.items()}
        for at, what in self.containers.items():
            if at != self.mount:
                shown[f"{Path(at)}/"] = what
        return shown

    # -- physical names --------------------------------------------------------------------------

    def _free(self, name: str) -> bool:
        used = {unified(one) for one in self.topics.values()}
        return unified(name) not in used and name not in self.removed

    def _default(self, at: At) -> str:
        base = ".".join(at[len(self.mount) :])
        for number in count(1):
            name = base if number == 1 else f"{base}.{number}"
            if self._free(name):
                return name
        raise AssertionError

    def _asked(self, name: str) -> Error | None:
        if name in self.topics.values():
            return errors.PhysicalNameTaken
        if any(unified(one) == unified(name) for one in self.topics.values()):
            return errors.PhysicalNameCollides
        if name in self.removed:
            return errors.PhysicalNameRetired
        return None

    # -- commands --------------------------------------------------------------------------------

    def _mkdir(self, at: At, *, parents: bool) -> Error | None:
        if not self._inside(at):
            return errors.NotAuthoritative
        if at in self.containers:
            there = self.containers[at] == "dir" and parents
            return None if there else errors.AlreadyExists
        for length in range(len(self.mount), len(at)):
            what = self.containers.get(at[:length])
            if what is None and not parents:
                return errors.InvalidNamespace
            if what is not None and what != "dir":
                return self._in_the_way(at)
        for length in range(len(self.mount), len(at) + 1):
            self.containers.setdefault(at[:length], "dir")
        return None

    def _create_topic(self, at: At, asked: str) -> Error | None:
        if at == self.mount:
            return errors.AlreadyExists
        if (error := self._in_the_way(at)) is not None:
            return error
        if at in self.topics or self.containers.get(at, "").startswith("mount:"):
            return errors.AlreadyExists
        if asked and (error := self._asked(asked)) is not None:
            return error
        self.topics[at] = asked or self._default(at)
        return None

    def _create_link(self, at: At, targets: tuple[Path, ...]) -> Error | None:
        if at == self.mount:
            return errors.AlreadyExists
        if (error := self._in_the_way(at)) is not None:
            return error
        if at in self.containers:
            return errors.AlreadyExists
        if any(target.segments[: len(at)] == at for target in targets):
            return errors.InvalidArgument
        self.containers[at] = "link:" + " ".join(map(str, targets))
        return None

    def _create_mount(self, at: At, cluster_id: str) -> Error | None:
        if not self._inside(at):
            return errors.NotAuthoritative
        for length in range(len(self.mount), len(at)):
            if self.containers.get(at[:length], "").startswith("mount:"):
                return errors.MountOverlaps
        if self.containers.get(at) == "dir" and self._mounts_from(at):
            return errors.MountOverlaps
        if at == self.mount:
            return errors.AlreadyExists
        if (error := self._in_the_way(at)) is not None:
            return error
        if at in self.topics or at in self.containers:
            return errors.MountShadows
        if f"mount:{cluster_id}" in self.containers.values():
            return errors.MountLoop
        self.containers[at] = f"mount:{cluster_id}"
        return None

    def _find(self, at: At, kind: Kind | None) -> str | Error:
        """``topic``, or what the container is; or why there is nothing."""
        if not self._inside(at):
            return errors.NotAuthoritative
        for length in range(len(self.mount), len(at)):
            existing = self.containers.get(at[:length], "")
            if existing.startswith("mount:"):
                return errors.NotAuthoritative
            if existing.startswith("link:"):
                return errors.InvalidNamespace
            if not existing:
                return errors.Absent
        if at in self.topics and kind in {None, Kind.TOPIC}:
            return "topic"
        what = self.containers.get(at)
        kinds = {"dir": Kind.DIRECTORY, "link": Kind.LINK, "mount": Kind.MOUNT}
        if what is not None and kind in {None, kinds[what.split(":")[0]]}:
            return what
        return errors.Absent

    def _delete(self, at: At, kind: Kind | None, recursive: bool) -> Error | None:
        what = self._find(at, kind)
        if not isinstance(what, str):
            return what
        if at == self.mount:
            return errors.InvalidArgument
        if what == "topic":
            self.removed.append(self.topics.pop(at))
            return None
        if what == "dir":
            held = [one for one in self.topics if one[: len(at)] == at and one != at]
            if self._mounts_from(at):
                return errors.HasMounts
            if (held or self._below(at)) and not recursive:
                return errors.NotEmpty
            for one in held:
                self.removed.append(self.topics.pop(one))
            for one in self._below(at):
                del self.containers[one]
        del self.containers[at]
        return None

    def _move(self, command: MoveEntry) -> Error | None:
        at, to = command.path.segments, command.new_path.segments
        what = self._find(at, command.kind)
        if not isinstance(what, str):
            return what
        if at in {self.mount, to}:
            return errors.InvalidMove
        if (error := self._no_target(at, to, what)) is not None:
            return error
        if command.leave_link and what == "topic" and at in self.containers:
            return errors.AlreadyExists
        if what == "topic":
            self.topics[to] = self.topics.pop(at)
        else:
            for one in [one for one in self.topics if one[: len(at)] == at and one != at]:
                self.topics[to + one[len(at) :]] = self.topics.pop(one)
            for one in [*self._below(at), at]:
                self.containers[to + one[len(at) :]] = self.containers.pop(one)
        if command.leave_link:
            self.containers[at] = f"link:{command.new_path}"
        return None

    def _no_target(self, at: At, to: At, what: str) -> Error | None:
        if what != "topic" and to[: len(at)] == at:
            return errors.InvalidMove
        if not self._inside(to):
            return errors.CrossMount
        if to == self.mount:
            return errors.AlreadyExists
        error = self._in_the_way(to)
        if error is not None:
            return errors.CrossMount if error is errors.NotAuthoritative else error
        if what == "topic":
            taken = to in self.topics or self.containers.get(to, "").startswith("mount:")
            return errors.AlreadyExists if taken else None
        if to in self.containers:
            return errors.AlreadyExists
        if what.startswith("mount:") and to in self.topics:
            return errors.MountShadows
        if what.startswith("link:"):
            targets = [Path.parse(text).segments for text in what[5:].split(" ")]
            if any(target[: len(to)] == to for target in targets):
                return errors.InvalidMove
        return None

    def _adopt(self, command: AdoptTopics) -> Error | None:
        for relative, observed in command.topics:
            name = observed.physical_name
            if name in self.topics.values() or name in self.removed:
                continue
            at = (*self.mount, *relative)
            if not self._fits(at):
                at = (*self.mount, "__adopted", name)
            for length in range(len(self.mount), len(at)):
                self.containers.setdefault(at[:length], "dir")
            self.topics[at] = name
        return None

    def _fits(self, at: At) -> bool:
        ways = [self.containers.get(at[:length], "dir") for length in range(len(at))]
        taken = at in self.topics or self.containers.get(at, "").startswith("mount:")
        return not taken and all(what == "dir" for what in ways)
