"""The tree of one cluster at one revision, as one caller may see it.

``OpenTree`` shows all of it; ``VisibleTree`` omits what its caller may not DESCRIBE. Readers get
one or the other and use the same methods, so that a hidden entry and an absent one take the same
code and give the same message (A12). Longer than most modules, since every read of the tree for a
caller is here.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterator
from typing import ClassVar, Final, NamedTuple

from directory.access.audit_line import AuditLevel, audit_line
from directory.access.authorize_any import authorize_any
from directory.access.authorizer import MOUNT_ROOT, Authorizer, DirectoryAuthorization
from directory.access.compiled_grants import AccessQuestion, Decision, DecisionReason
from directory.access.grant_tree import EntryPlace
from directory.access.grants import Operation, ResourceType
from directory.access.principals import ANONYMOUS, Caller
from directory.api.rpc.call_context import CURRENT
from directory.namespace.effective_policies import Shown
from directory.namespace.entry import Directory, Kind, Link, Mount, Topic
from directory.namespace.listing import Cursor, ListedTopic, Page, list_page
from directory.namespace.lookup import (
    DirectoryAt,
    Found,
    LinkAt,
    Missing,
    MountAt,
    TopicAt,
    Unreadable,
    lookup,
)
from directory.namespace.quotas import Amount, Quota, system_directories
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.traversal import (
    LocatedEntry,
    describe_kind,
    entry_path,
    locate_entry,
    traverse,
)
from resolver.errors import Absent, KdirError, NotAuthoritative, UnreadableRecord
from resolver.glob import Glob
from resolver.path import Path, is_system

__all__ = ["EntryAt", "OpenTree", "Seen", "VisibleTree", "Wanted", "write_audit_line"]

_audit = logging.getLogger("kdir.audit")
_DESCRIBE: Final = AccessQuestion.for_operation(Operation.DESCRIBE)
_ALTER: Final = AccessQuestion.for_operation(Operation.ALTER)
_MOST_DIRECTORIES: Final = 1 << 12
"""Most directories cached for each caller: 100 MB, if all callers read everywhere."""
_MOST_PLAIN: Final = 1 << 14
"""Most cached paths of directories that hide nothing: 40 bytes each, as names are shared."""

Segments = tuple[str, ...]
EntryAt = TopicAt | DirectoryAt | LinkAt | MountAt


class Seen(NamedTuple):
    """Number of entries that the caller may describe."""

    topics: int = 0
    containers: int = 0
    """Directories, links and mounts; for a whole subtree, directories only."""
    partitions: int = 0
    """Partitions of the topics, as quotas count them; set only for a whole subtree."""


class Wanted(NamedTuple):
    """Filter of the entries of a listing."""

    glob: Glob | None = None
    kinds: Collection[Kind] = ()
    """Empty = all."""
    include_system: bool = False
    recursive: bool = False

    def may_list(self, name: str, *, is_topic: bool) -> bool:
        """True if an unreadable entry of this name may belong to the listing, or may be a directory
        with entries that do.
        """
        if not is_topic:
            if is_system(name) and not self.include_system:
                return False
            if self.recursive:
                return True
        if self.kinds and not any((kind is Kind.TOPIC) == is_topic for kind in self.kinds):
            return False
        return self.glob is None or self.glob.matches_segment(name)


class OpenTree:
    """Whole tree of a cluster at one snapshot, for callers that may see everything."""

    __slots__ = ("cluster", "mount", "snapshot")

    is_open: ClassVar = True
    """True if nothing is hidden from the caller."""
    caller: Caller = Caller(ANONYMOUS)
    """The caller whose view this is; unused in a whole tree."""

    def __init__(self, snapshot: Snapshot, mount: Path, cluster: str) -> None:
        self.snapshot: Final = snapshot
        """The whole snapshot, also in a ``VisibleTree``: for tokens and the authority, and to read
        entries that a lookup in this tree has found.
        """
        self.mount: Final = mount
        self.cluster: Final = cluster
        """The name of the cluster, for messages."""

    @property
    def whole(self) -> OpenTree:
        """The same tree with nothing hidden, for what is cached for all callers."""
        return self

    @property
    def is_expired(self) -> bool:
        """True if the inherited grants were confirmed too long ago to allow anything."""
        return False

    def is_reduced_below(self, path: Path) -> bool:
        """True if the caller would see other names at and below a directory if the inherited grants
        had not expired.
        """
        return False

    # -- what may be seen ------------------------------------------------------------------------

    def can_describe(self, relative: Segments, *, is_topic: bool) -> bool:
        """True if an entry at a path below the mount may be described."""
        return True

    def shows(self, relative: Segments, kind: Kind) -> bool:
        """True if an entry is visible to the caller: it may DESCRIBE it, or ALTER it and so remove
        the grant that hides it.
        """
        return True

    def counts_unreadable(self, relative: Segments, *, is_topic: bool) -> bool:
        """True if an entry whose record cannot be read is counted for the caller. A directory may
        have been closed, so open access is not enough for it: only super users and callers that
        may describe it by a grant have it counted; all callers, if there are no super users.
        """
        return True

    def can_describe_all_below(self, relative: Segments) -> bool:
        """True if every entry below a directory, at any depth, may be described."""
        return True

    def can_describe_path(self, path: Path, kind: Kind | None) -> bool:
        """True if the entry of this kind, or of any kind, at an absolute path may be described."""
        return True

    def has_describable_below(self, path: Path) -> bool:
        """True if there may be an entry at or below a path that may be described."""
        return True

    def can_refer_to(self, mount: Path) -> bool:
        """True if a mount may be shown. The child cluster decides about access below it, but a deny
        above the mount also holds there.
        """
        return True

    def can_do_on_cluster(self, operation: Operation, resource: ResourceType) -> bool:
        """True if the caller may do an operation on a kind of resource, such as the cluster, at the
        cluster's mount.
        """
        return True

    def shows_all(self) -> bool:
        """True if counts and names of all entries may be shown: nothing is hidden from the caller,
        or it may back up the cluster.
        """
        return True

    def shows_any_at(self, text: str) -> bool:
        """True if nothing at or below an absolute path is hidden from the caller, whichever entries
        are there. False also where a cheap check cannot show that.
        """
        return True

    def is_visible(self, path: Path) -> bool:
        """True if the caller may see an entry at a path, or a link or mount on the way to it."""
        if not self.mount.is_prefix_of(path):
            return False
        relative = path.below(self.mount)
        if not relative:
            return self.can_describe((), is_topic=False)
        way = traverse(self.snapshot, relative[:-1])
        if way.depth < len(relative) - 1:
            stop, at = way.stopped_by, relative[: way.depth + 1]
            if isinstance(stop, Mount):
                return self.can_refer_to(entry_path(self.mount, at))
            return stop is not None and self.can_describe(at, is_topic=False)
        if relative[-1] in way.node.topics and self.can_describe(relative, is_topic=True):
            return True
        return relative[-1] in way.node.containers and self.can_describe(relative, is_topic=False)

    def would_show(self, path: Path) -> bool:
        """True if the caller would see a new entry at a path where it sees none now."""
        return self.mount.is_prefix_of(path) and self.can_describe(
            self.nearest(path).below(self.mount), is_topic=False
        )

    # -- looking up ------------------------------------------------------------------------------

    def lookup(self, path: Path, prefer: Kind | None = None, *, no_follow: bool = False) -> Found:
        """Returns the entry at a path at or below the mount, or the link or mount on the way to it.
        ``no_follow``: a mount at the path itself is visible only with DESCRIBE on it.
        """
        return lookup(self.snapshot, path.segments[len(self.mount) :], prefer)

    def require_entry(
        self, path: Path, prefer: Kind | None = None, *, no_follow: bool = False
    ) -> EntryAt:
        """Returns the entry at a path at or below the mount, of the preferred kind if there is one;
        with ``no_follow``, of that kind only.

        Raises:
            Absent: there is none.
            NotAuthoritative: the path leads through a link or a mount; or, without ``no_follow``,
                to one.
            UnreadableRecord: its record cannot be read.
        """
        found = self.lookup(path, prefer, no_follow=no_follow)
        match found:
            case Missing():
                raise self.absent_error(path)
            case Unreadable(relative=relative, reason=reason):
                where = self.mount.join(relative)
                raise UnreadableRecord(
                    f"the record of {where} cannot be read: {reason}; see kdir doctor"
                )
            case LinkAt(rest=rest) | MountAt(rest=rest) if rest or not no_follow:
                raise NotAuthoritative(
                    f"{path} lies beyond a mount or link of cluster {self.cluster}; resolve it "
                    f"first",
                    path=path,
                )
            case _ if no_follow and prefer not in {None, _kind_of(found)}:
                raise self.absent_error(path, prefer)
            case _:
                return found

    def locate_entry(self, path: Path, kind: Kind | None) -> LocatedEntry:
        """Returns the entry at a path with its parent directory, as commands need it. Visibility is
        not checked.

        Raises:
            as ``directory.namespace.traversal.locate_entry``.
        """
        return locate_entry(self.snapshot, self.mount, path, kind)

    def locate(self, physical_name: str) -> Path | None:
        """Returns the path of the topic with this physical name; None if there is none that may be
        described.
        """
        found = self.snapshot.locate(physical_name)
        if found is None or found.relative is None:
            return None
        shown = self.can_describe(found.relative, is_topic=True)
        return entry_path(self.mount, found.relative) if shown else None

    def meant_kind(self, path: Path, kind: Kind | None) -> Kind | None:
        """Returns the kind of entry that a request means: ``kind``, if the request has one; the
        container's, if the topic of the same name is hidden from the caller and the container is
        not; else None: the topic comes first, as in Resolve.
        """
        return kind

    def absent_error(self, path: Path, kind: Kind | None = None) -> Absent:
        """Returns the error for an absent or hidden entry. With ``kind``, it names the kind of the
        entry that is there instead.
        """
        if kind is not None:
            found = self.lookup(path, no_follow=True)
            if isinstance(found, EntryAt) and not getattr(found, "rest", ()):
                entry = _entry_of(found)
                is_what = "a topic" if entry is None else describe_kind(entry)
                return Absent(f"{path} is {is_what}, not a {kind.name.lower()}", path=path)
        return Absent(f"{path} does not exist", path=path, nearest=self.nearest(path))

    def nearest(self, path: Path) -> Path:
        """Returns the deepest directory of this cluster above a path that exists and may be
        described; its mount for a path that is not below it.
        """
        if not self.mount.is_prefix_of(path):
            return self.mount
        relative = path.below(self.mount)
        way = traverse(self.snapshot, relative[:-1])
        for length in range(way.depth, 0, -1):
            if self.can_describe(relative[:length], is_topic=False):
                return self.mount.join(relative[:length])
        return self.mount

    # -- listing and counting --------------------------------------------------------------------

    def children(
        self, directory: DirectoryAt, wanted: Wanted, after: Cursor | None, limit: int
    ) -> Page:
        """Returns a page of the entries of a directory. A page may be short or empty without being
        the last.
        """
        return list_page(
            self.snapshot,
            directory.node.entry_id,
            after,
            limit,
            wanted.glob,
            wanted.kinds,
            include_system=wanted.include_system,
            recursive=wanted.recursive,
        )

    def unreadable_entries(
        self, directory: DirectoryAt, wanted: Wanted
    ) -> Iterator[tuple[Segments, bool]]:
        """Yields the entries that a listing lacks since their records cannot be read: path below
        the mount, and whether it is a topic.
        """
        depth = len(directory.relative)
        for at, is_topic in self._unreadable_below(directory.relative):
            if len(at) > depth + 1 and not wanted.recursive:
                continue
            if not wanted.include_system and any(map(is_system, at[depth:-1])):
                continue
            if wanted.may_list(at[-1], is_topic=is_topic) and self.counts_unreadable(
                at, is_topic=is_topic
            ):
                yield at, is_topic

    def uncounted_below(self, relative: Segments) -> Iterator[Segments]:
        """Yields the unreadable containers below a directory, at any depth, that are not counted
        for the caller: each may have been closed, and so hidden from it.
        """
        for at, is_topic in self._unreadable_below(relative):
            if not is_topic and not self.counts_unreadable(at, is_topic=False):
                yield at

    def _unreadable_below(self, start: Segments) -> Iterator[tuple[Segments, bool]]:
        for directory_id, entries in self.snapshot.unreadable_entries.items():
            above = self.snapshot.path_of(directory_id)
            if above is None or above[: len(start)] != start:
                continue
            for _, is_topic, name in entries:
                yield (*above, name), is_topic

    def unreadable_in(self, relative: Segments, node: Node) -> int:
        """Returns the number of entries directly in a directory whose records cannot be read."""
        return sum(
            self.counts_unreadable((*relative, name), is_topic=is_topic)
            for _, is_topic, name in self.snapshot.unreadable_entries.get(node.entry_id, ())
        )

    def count(self, relative: Segments, node: Node) -> Seen:
        """Returns the counts of the entries directly in a directory."""
        return Seen(len(node.topics), len(node.containers))

    def count_below(self, relative: Segments, node: Node) -> Seen:
        """Returns the counts of the topics and directories below a directory, at any depth."""
        counts = self.snapshot.counts(node.entry_id)
        return Seen(counts.topics, counts.directories, self.snapshot.partitions(node.entry_id))

    def quota_use(self, quota: Quota) -> int:
        """Returns the amount of a quota used by entries that the caller sees."""
        return quota.used(self.snapshot)

    def shown_below(self, relative: Segments) -> Shown | None:
        """Returns a filter of the topics and mounts below a directory that may be shown; None =
        all.
        """
        return None


class VisibleTree(OpenTree):
    """Tree of a cluster at one snapshot, without the entries that one caller may not describe.

    Counts are those of the snapshot, corrected where grants hide entries: their cost grows with the
    number of grants for the caller, not with the size of the tree.
    """

    __slots__ = (
        *("_above", "_plain", "_with_unreadable", "_withins"),
        *("access", "age_seconds", "caller"),
    )

    is_open: ClassVar = False

    def __init__(
        self,
        snapshot: Snapshot,
        access: Authorizer,
        caller: Caller,
        cluster: str,
        *,
        expired: bool = False,
    ) -> None:
        super().__init__(snapshot, access.mount, cluster)
        self.access: Final = access
        self.caller = caller
        self.age_seconds: Final = float("inf") if expired else 0.0
        self._withins: dict[Segments, DirectoryAuthorization] = {}
        self._above: dict[str, DirectoryAuthorization] = {}
        self._plain: set[str] = set()
        self._with_unreadable: frozenset[str] | None = None  # made when first read

    @property
    def whole(self) -> OpenTree:
        return OpenTree(self.snapshot, self.mount, self.cluster)

    # -- what may be seen ------------------------------------------------------------------------

    def decide(self, question: AccessQuestion, place: EntryPlace) -> Decision:
        """Returns whether the caller may do an operation on the entry at a place."""
        return self.access.authorize(self.caller, question, place, age_seconds=self.age_seconds)

    def can_describe(self, relative: Segments, *, is_topic: bool) -> bool:
        if not relative:
            return self.decide(_DESCRIBE, MOUNT_ROOT).allowed
        return (
            self.directory_view(relative[:-1])
            .entry_decision(relative[-1], is_topic=is_topic)
            .allowed
        )

    def counts_unreadable(self, relative: Segments, *, is_topic: bool) -> bool:
        decision = self.decide(_DESCRIBE, EntryPlace(relative, is_topic))
        is_by_default = decision.reason is DecisionReason.OPEN and bool(self.access.super_users)
        return decision.allowed and (is_topic or not is_by_default)

    def shows(self, relative: Segments, kind: Kind) -> bool:
        is_topic = kind is Kind.TOPIC and bool(relative)
        return (
            self.can_describe(relative, is_topic=is_topic)
            or self.decide(_ALTER, EntryPlace(relative, is_topic)).allowed
        )

    def can_describe_all_below(self, relative: Segments) -> bool:
        within = self.directory_view(relative)
        return within.is_uniform and within.decision.allowed

    def can_describe_path(self, path: Path, kind: Kind | None) -> bool:
        if not self.mount.is_prefix_of(path):
            return False
        relative = path.below(self.mount)
        kinds = (True, False) if kind is None else (kind is Kind.TOPIC,)
        return any(self.can_describe(relative, is_topic=is_topic) for is_topic in kinds)

    def has_describable_below(self, path: Path) -> bool:
        place = EntryPlace(path.below(self.mount) if self.mount.is_prefix_of(path) else ())
        return authorize_any(
            self.access, self.caller, Operation.DESCRIBE, place=place, age_seconds=self.age_seconds
        )

    def can_refer_to(self, mount: Path) -> bool:
        if not self.mount.is_prefix_of(mount):
            return True
        decision = self.decide(_DESCRIBE, EntryPlace(mount.below(self.mount)))
        return decision.allowed or decision.grant is None

    def can_do_on_cluster(self, operation: Operation, resource: ResourceType) -> bool:
        return self.decide(AccessQuestion.for_operation(operation, resource), MOUNT_ROOT).allowed

    def shows_all(self) -> bool:
        return self.can_describe_all_below(()) or self.can_do_on_cluster(
            Operation.ALTER, ResourceType.CLUSTER
        )

    def shows_any_at(self, text: str) -> bool:
        if self.snapshot.tree.unreadable and text in self._paths_with_unreadable():
            return False
        # Every Resolve calls this: so directories that hide nothing, since no entry in them has
        # grants of its own, are cached by path alone.
        above, slash, name = text.rpartition("/")
        if above in self._plain:
            return bool(name)
        within = self._above.get(above)
        if within is None:
            segments = tuple(above.split("/")[1:])
            depth = len(self.mount)
            if not slash or segments[:depth] != self.mount.segments:
                return False
            within = self.access.for_directory(
                self.caller, _DESCRIBE, segments[depth:], age_seconds=self.age_seconds
            )
            if within.decision.allowed and within.has_no_grants_below:
                if len(self._plain) >= _MOST_PLAIN:
                    self._plain.clear()
                self._plain.add(sys.intern(above))
                return bool(name)
            if len(self._above) >= _MOST_DIRECTORIES:
                self._above.clear()
            self._above[above] = within
        if not within.decision.allowed or not name:
            return False
        return not within.has_own_answer(name) or (
            within.entry_decision(name, is_topic=True).allowed
            and within.entry_decision(name, is_topic=False).allowed
            and within.is_uniform_in(name)
        )

    def _paths_with_unreadable(self) -> frozenset[str]:
        """Returns the paths of the directories whose counts of unreadable entries may differ from
        caller to caller although nothing in them is hidden; see ``counts_unreadable``.
        """
        if self._with_unreadable is None:
            above = (
                self.snapshot.path_of(directory_id)
                for directory_id, entries in self.snapshot.unreadable_entries.items()
                if not all(one.is_topic for one in entries)
            )
            self._with_unreadable = frozenset(
                str(entry_path(self.mount, one)) for one in above if one is not None
            )
        return self._with_unreadable

    def directory_view(self, relative: Segments) -> DirectoryAuthorization:
        """Returns the authorization of a directory and of the entries in it."""
        within = self._withins.get(relative)
        if within is None:
            if len(self._withins) >= _MOST_DIRECTORIES:
                self._withins.clear()
            within = self.access.for_directory(
                self.caller, _DESCRIBE, relative, age_seconds=self.age_seconds
            )
            self._withins[relative] = within
        return within

    # -- looking up ------------------------------------------------------------------------------

    def lookup(self, path: Path, prefer: Kind | None = None, *, no_follow: bool = False) -> Found:
        relative = path.segments[len(self.mount) :]
        found = lookup(self.snapshot, relative, prefer)
        if not self._shows_found(found, no_follow=no_follow):
            # A topic and a container of the same name are visible or hidden independently.
            other = Kind.DIRECTORY if isinstance(found, TopicAt) else None
            found = lookup(self.snapshot, relative, other)
            if not self._shows_found(found, no_follow=no_follow):
                decision = self.decide(_DESCRIBE, EntryPlace(relative))
                write_audit_line(self.caller, _DESCRIBE, path, decision, explicit=False)
                return Missing(self.nearest(path).segments[len(self.mount) :])
        if isinstance(found, TopicAt) and found.has_container:
            return found._replace(has_container=self.can_describe(relative, is_topic=False))
        return found

    def _shows_found(self, found: Found, *, no_follow: bool) -> bool:
        match found:
            case TopicAt(relative=at):
                return self.can_describe(at, is_topic=True)
            case DirectoryAt(relative=at) | LinkAt(relative=at):
                return self.can_describe(at, is_topic=False)
            case MountAt(relative=at, rest=rest):
                # The child decides about access below the mount, but a deny above also holds there.
                if no_follow and not rest:
                    return self.can_describe(at, is_topic=False)
                return self.can_refer_to(self.mount.join(at))
            case Unreadable(relative=at):
                return self.can_describe(at, is_topic=True) and self.can_describe(
                    at, is_topic=False
                )
            case Missing():
                return False  # answered like a hidden entry, with the same nearest directory

    def meant_kind(self, path: Path, kind: Kind | None) -> Kind | None:
        if kind is not None or not self.mount.is_prefix_of(path) or path == self.mount:
            return kind
        relative = path.below(self.mount)
        try:
            found = self.locate_entry(path, None)
        except KdirError:
            return None
        beside = found.parent.containers.get(found.name) if found.parent is not None else None
        if (
            not isinstance(found.entry, Topic)
            or beside is None
            or self.can_describe(relative, is_topic=True)
            or not self.can_describe(relative, is_topic=False)
        ):
            return None
        return beside.kind

    # -- listing and counting --------------------------------------------------------------------

    def children(
        self, directory: DirectoryAt, wanted: Wanted, after: Cursor | None, limit: int
    ) -> Page:
        page = super().children(directory, wanted, after, limit)
        if self.can_describe_all_below(directory.relative):
            return page
        entries = tuple(
            one
            for one in page.entries
            if self.can_describe(
                (*directory.relative, *one.relative), is_topic=isinstance(one, ListedTopic)
            )
        )
        return Page(entries, page.after)

    def count(self, relative: Segments, node: Node) -> Seen:
        topics, containers, _ = super().count(relative, node)
        if self.can_describe_all_below(relative):
            return Seen(topics, containers)
        within = self.directory_view(relative)
        usual = within.decision.allowed
        if not usual:
            topics = containers = 0
        for name, is_topic, allowed in within.entries_with_grants():
            if allowed != usual and is_topic:
                topics += (name in node.topics) * (1 if allowed else -1)
            elif allowed != usual:
                containers += (name in node.containers) * (1 if allowed else -1)
        return Seen(topics, containers)

    def count_below(self, relative: Segments, node: Node) -> Seen:
        snapshot, every = self.snapshot, super().count_below
        if self.can_describe_all_below(relative):
            return every(relative, node)
        within = self.directory_view(relative)
        usual = within.decision.allowed
        topics, directories, partitions = every(relative, node) if usual else Seen()
        for name, is_topic, allowed in within.entries_with_grants():
            if is_topic:
                # Not decoded: what is counted may be a record that cannot be read.
                record = node.topics.get(name) if allowed != usual else None
                if record is not None:
                    counted = snapshot.codec.partitions([record])
                    topics += 1 if allowed else -1
                    partitions += counted if allowed else -counted
                continue
            container = node.containers.get(name)
            below = snapshot.nodes.get(container.entry_id) if container is not None else None
            if not isinstance(container, Directory) or below is None:
                continue
            at = (*relative, name)
            whole = every(at, below) if usual else Seen()
            part = self.count_below(at, below)
            topics += part.topics - whole.topics
            partitions += part.partitions - whole.partitions
            directories += part.containers + allowed - whole.containers - usual
        return Seen(topics, directories, partitions)

    def quota_use(self, quota: Quota) -> int:
        snapshot = self.snapshot
        node = snapshot.nodes.get(quota.directory_id)
        relative = snapshot.path_of(quota.directory_id)
        if node is None or relative is None or self.can_describe_all_below(relative):
            return quota.used(snapshot)
        seen = self.count_below(relative, node)
        used = Amount(seen.topics, seen.partitions)
        for name, system in system_directories(node):
            part = self.count_below((*relative, name), snapshot.nodes[system.entry_id])
            used = used.plus(Amount(-part.topics, -part.partitions))
        return quota.amount_counted(used)

    def shown_below(self, relative: Segments) -> Shown | None:
        if self.can_describe_all_below(relative):
            return None
        paths: dict[int, Segments | None] = {}

        def shown(directory_id: int, name: str, kind: Kind) -> bool:
            if directory_id not in paths:
                paths[directory_id] = self.snapshot.path_of(directory_id)
            above = paths[directory_id]
            return above is not None and self.can_describe(
                (*above, name), is_topic=kind is Kind.TOPIC
            )

        return shown

    # -- the same caller, by other rights --------------------------------------------------------

    @property
    def is_expired(self) -> bool:
        return self.age_seconds > 0.0

    def aged(self, *, expired: bool) -> VisibleTree:
        """Returns the same caller's tree with the inherited grants expired, or not."""
        return VisibleTree(self.snapshot, self.access, self.caller, self.cluster, expired=expired)

    def is_reduced_below(self, path: Path) -> bool:
        return self.is_expired and not self.sees_same_below(path, self.aged(expired=False), path)

    def by_rights(self, access: Authorizer) -> VisibleTree:
        """Returns the same caller's tree by the grants of another revision."""
        mine = self.access
        if (access.tree, access.mount) == (mine.tree, mine.mount) and (
            access.inherited == mine.inherited
        ):
            return self
        return VisibleTree(
            self.snapshot, access, self.caller, self.cluster, expired=self.is_expired
        )

    def sees_same_below(self, path: Path, other: VisibleTree, other_path: Path) -> bool:
        """True if the caller sees the same names at and below two directories, one by the grants of
        this tree and one by those of ``other``, provided that both directories hold the same names.
        """
        return self.directory_view(path.below(self.mount)).is_same_as(
            other.directory_view(other_path.below(other.mount))
        )


def _entry_of(found: EntryAt) -> Directory | Link | Mount | None:
    """Returns the entry of a lookup; None for a topic, whose record is not decoded."""
    match found:
        case TopicAt():
            return None
        case DirectoryAt(node=node):
            return node.directory
        case LinkAt(link=link):
            return link
        case MountAt(mount=mount):
            return mount


def _kind_of(found: EntryAt) -> Kind:
    entry = _entry_of(found)
    return Kind.TOPIC if entry is None else entry.kind


def write_audit_line(
    caller: Caller,
    question: AccessQuestion,
    path: Path,
    decision: Decision,
    *,
    explicit: bool = True,
) -> None:
    """Writes the audit line, if its level is enabled (A11)."""
    reported = AuditLevel.DEBUG if decision.allowed else AuditLevel.INFO
    if not _audit.isEnabledFor(reported if explicit else AuditLevel.TRACE):
        return
    call = CURRENT.call
    line = audit_line(
        caller,
        question,
        path,
        decision,
        request=call.request_id if call is not None else "",
        explicit=explicit,
    )
    _audit.log(line.level, "%s", line)
