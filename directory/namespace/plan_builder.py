"""Plan builder: collects the guards, writes, change events and claims of names of one plan.

The modules of the commands (``plan_create.py`` and so on) decide what to add. Reads come from the
snapshot, without what this builder has added.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, TypeVar

from directory.access.grant_tree import EntryPlace
from directory.access.grants import Grant
from directory.namespace import physical_names
from directory.namespace.command import EntryChange, Plan, PlanContext
from directory.namespace.effective_policies import (
    attach_effective_policies,
    effective,
    levels_of,
    stamp_changed_fields,
)
from directory.namespace.entry import (
    DELETED_ID,
    NO_POLICIES,
    ROOT_ID,
    Directory,
    Entry,
    EntryGrants,
    Kind,
    Link,
    Mount,
    Policies,
    Stamp,
    Topic,
)
from directory.namespace.keys import (
    ENTRY,
    GRANTS_MARK,
    claim_key,
    detached_key,
    entry_key,
    grants_key,
    quota_key,
    read_only_id,
    read_only_key,
    retired_key,
    retired_value,
    unify,
)
from directory.namespace.removal_progress import DELETED
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.traversal import LocatedEntry, entry_path, locate_entry
from directory.namespace.tree_nodes import ROOT_KEY
from directory.store.base import Delete, Guard, KeyEquals, Put, UnchangedSince, Write
from resolver.errors import AlreadyExists, ReadOnly
from resolver.path import Path

__all__ = ["PlanBuilder", "claim_value", "read_only_mark", "read_only_place"]

E = TypeVar("E", Directory, Topic, Link, Mount)

_BARE_ROOT: Final = Directory(entry_id=ROOT_ID)
"""Root directory without a stored record."""


class PlanBuilder:
    """Builder of one plan, for one thread."""

    def __init__(self, snapshot: Snapshot, mount: Path, context: PlanContext) -> None:
        self.snapshot = snapshot
        self.mount = mount
        self.context = context
        self._guards: dict[Guard, None] = {}
        self._writes: dict[bytes, Write] = {}
        self._changes: list[EntryChange] = []
        self._claims: dict[str, tuple[tuple[str, ...], set[str]]] = {}
        """By unified name, the names in use before and from now on."""
        self._unreadable: Final = snapshot.unreadable_values
        self.names = physical_names.SnapshotNames(snapshot, mount, context.now_ms)

    # -- policies; those of ancestors above the mount count like those of directories -------------

    def directory_path(self, node: Node) -> Path:
        """Returns the absolute path of a directory in the tree."""
        relative = self.snapshot.path_of(node.entry_id)
        return entry_path(self.mount, relative or ())

    def inherited_policies(self, node: Node) -> Policies:
        """Returns the effective policies that an entry directly in a directory inherits."""
        above = [level.policies for level in self.context.above]
        return effective([*above, *levels_of(self.snapshot, node.entry_id)])

    def require_writable(self, node: Node, own: Policies | None = None) -> None:
        """Calls ``check_not_read_only``, and adds the guards of ``require_ancestors``.

        Raises:
            ReadOnly: names the read-only directory.
        """
        self.check_not_read_only(node, own)
        self.require_ancestors(node)

    def check_not_read_only(self, node: Node, own: Policies | None = None) -> None:
        """Checks that an entry is not below a read-only directory, where nothing may be created,
        changed or removed; the nearest level that sets it counts. ``own`` are the policies of an
        entry in ``node``.

        Raises:
            ReadOnly: names the read-only directory.
        """
        if own is not None and own.read_only is not None:
            if own.read_only:
                raise ReadOnly("the entry itself is read-only")
            return
        for above in self.snapshot.upwards(node):
            read_only = above.directory.policies.read_only
            if read_only and above.entry_id == ROOT_ID and ROOT_KEY in self._unreadable:
                raise self._unreadable_root(above)
            if read_only:
                path = self.directory_path(above)
                raise ReadOnly(f"{path} is read-only", path=path)
            if read_only is not None:
                return
        for level in reversed(self.context.above):
            if level.policies.read_only:
                raise ReadOnly(f"{level.path} is read-only", path=level.path)
            if level.policies.read_only is not None:
                return

    def _unreadable_root(self, root: Node) -> ReadOnly:
        path = self.directory_path(root)
        return ReadOnly(
            f"the record of {path} cannot be read ({self._unreadable[ROOT_KEY]}), so nothing may "
            f"change: restore a backup, or replace the record: kdir set {path} read_only=false, "
            f"with all else that it should have",
            path=path,
        )

    # -- entries ---------------------------------------------------------------------------------

    def fresh_id(self) -> int:
        """Returns an unused entry id."""
        while True:
            entry_id = self.context.new_id()
            if entry_id > 2 and self.snapshot.nodes.get(entry_id) is None:
                return entry_id

    def stamped(self, entry: E) -> E:
        """Returns the entry as changed now, by the caller."""
        return replace(
            entry,
            change_count=entry.change_count + 1,
            changed_at_ms=self.context.now_ms,
            changed_by=self.context.principal,
        )

    def stamped_policies(self, after: Policies, before: Policies = NO_POLICIES) -> Policies:
        """Returns policies with the caller's stamp on each field that differs from before."""
        return stamp_changed_fields(
            after, before, Stamp(self.context.principal, self.context.now_ms)
        )

    def write_record(self, parent_id: int, name: str, entry: Entry) -> None:
        """Writes an entry's record, without a guard on the previous one."""
        key = entry_key(parent_id, entry.kind, name)
        self._writes[key] = Put(key, self.snapshot.codec.encode(entry))
        if isinstance(entry, Directory):
            self._mark_read_only(parent_id, entry)
            self._keep_count_mark(entry)
        elif isinstance(entry, Topic) and parent_id != DELETED_ID:
            self._mark_read_only(parent_id, entry)

    def carry_grants(
        self, parent_id: int, name: str, entry: Entry, to_parent_id: int, to_name: str
    ) -> None:
        """Writes the grants of a moved entry at its new place. If it has none, grants left behind
        there are removed: they would be another entry's (P6).
        """
        record = self.snapshot.fact(grants_key(parent_id, entry.kind, name))
        if record is not None:
            self.write_fact(grants_key(to_parent_id, entry.kind, to_name), record)
        else:
            self.put_grants(to_parent_id, entry.kind, to_name, None)

    def grants_of(self, parent_id: int, kind: Kind, name: str) -> EntryGrants | None:
        """Returns the grants of an entry; None if it has none.

        Raises:
            ValueError: they cannot be read.
        """
        record = self.snapshot.fact(grants_key(parent_id, kind, name))
        return None if record is None else self.snapshot.codec.decode_grants(record)

    def put_grants(self, parent_id: int, kind: Kind, name: str, grants: EntryGrants | None) -> None:
        """Writes an entry's grants; None removes them."""
        key = grants_key(parent_id, kind, name)
        if grants is not None:
            self.write_fact(key, self.snapshot.codec.encode_grants(grants))
        else:
            self.forget_facts(key)

    def bump_grants_version(self) -> None:
        """Records that rights change: a plan that was authorized by older grants fails
        its guard.
        """
        self.write_fact(GRANTS_MARK, b"%016x" % self.context.new_id())

    def expect_grants(self) -> None:
        """Adds the guard that no grants have changed."""
        self.require_value(GRANTS_MARK, self.snapshot.fact(GRANTS_MARK))

    def _mark_read_only(self, parent_id: int, entry: Directory | Topic) -> None:
        """Records whether an entry is read-only."""
        key = read_only_key(entry.entry_id)
        self._writes.pop(key, None)  # for a moved entry: undoes the delete of its mark
        value = read_only_mark(parent_id, entry)
        if value is not None:
            self.write_fact(key, value)
        else:
            self.forget_facts(key)

    def bump_quota_version(self, directory_id: int, *, guarded: bool) -> None:
        """Records that the plan adds something that a quota counts: a plan that counted before
        fails its guard. With ``guarded`` this plan fails too, if another one was first.
        """
        key = quota_key(directory_id)
        if guarded:
            self.require_value(key, self.snapshot.fact(key))
        if not isinstance(self._writes.get(key), Put):
            self.write_fact(key, b"%016x" % self.context.new_id())

    def _keep_count_mark(self, directory: Directory) -> None:
        key, policies = quota_key(directory.entry_id), directory.policies
        if policies.max_topics is not None or policies.max_partitions is not None:
            if isinstance(self._writes.get(key), Delete):
                # for a moved directory: undoes the delete of its mark
                del self._writes[key]
        elif directory.entry_id != ROOT_ID:  # the root's also counts for quotas above the mount
            self.forget_facts(key)

    def expect_entry(self, parent_id: int, name: str, entry: Entry) -> None:
        """Adds the guard that the entry is unchanged."""
        if entry.entry_id == ROOT_ID:
            self._expect_root()
            return
        # `encode` returns exactly the bytes that the entry was decoded from.
        record = self.snapshot.codec.encode(entry)
        self.require_value(entry_key(parent_id, entry.kind, name), record)

    def find_entry(self, path: Path, kind: Kind | None) -> LocatedEntry:
        """Returns the entry of a command.

        If the command names no kind and a container is found, adds the guard that no topic is
        created beside it: the command would then mean the topic.

        Raises:
            Absent, InvalidNamespace, NotAuthoritative: as ``traversal.locate_entry``.
        """
        found = locate_entry(self.snapshot, self.mount, path, kind)
        if kind is None and found.parent is not None and found.entry.kind.is_container:
            key = entry_key(found.parent_id, Kind.TOPIC, found.name)
            if key not in self._unreadable:  # an unreadable topic is ignored
                self.require_value(key, None)
        return found

    def require_free(self, parent_id: int, kind: Kind, name: str, path: Path) -> None:
        """Adds the guard that no entry of that kind exists at the place.

        Raises:
            AlreadyExists: there is one that this version cannot read.
        """
        key = entry_key(parent_id, kind, name)
        if key in self._unreadable:
            raise AlreadyExists(
                f"something exists at {path} that cannot be read: {self._unreadable[key]}",
                path=path,
            )
        self.require_value(key, None)

    def require_sibling_unchanged(self, parent_id: int, name: str, path: Path) -> None:
        """Adds the guard that the container with a topic's name is unchanged or still absent, so
        that it does not become a mount.

        Raises:
            AlreadyExists: there is one that this version cannot read.
        """
        container = self.snapshot.nodes[parent_id].containers.get(name)
        if container is None:
            self.require_free(parent_id, Kind.DIRECTORY, name, path)
        else:
            self.expect_entry(parent_id, name, container)

    def require_ancestors(self, node: Node) -> None:
        """Adds the guards that a directory and those above it are unchanged and were not moved."""
        for here in self.snapshot.upwards(node):
            if here.entry_id != ROOT_ID:
                self.expect_entry(here.parent_id, here.name, here.directory)
        self._expect_root()

    def add_event(self, change: EntryChange) -> None:
        """Adds a change event."""
        self._changes.append(change)

    def record_new_state(
        self,
        entry: Entry,
        parent_id: int,
        path: Path,
        *,
        before: Entry | None = None,
        path_before: Path | None = None,
    ) -> None:
        """Adds the event of an entry's new state and place; with its previous state, unless it is
        new.
        """
        if self._changes_rights(entry, before, path_before):
            self.bump_grants_version()
        self.add_event(
            EntryChange(
                kind=entry.kind,
                entry_id=entry.entry_id,
                parent_id=parent_id,
                path=path,
                path_before=path_before,
                before=before,
                after=entry,
            )
        )

    def _takes_rights_along(self, entry: Entry, path: Path) -> bool:
        """True if grants, or a closed directory, leave the tree with an entry. For an entry below
        ``DELETED_ID`` they left it earlier, when its directory was removed.
        """
        if not self.mount.is_prefix_of(path) or DELETED in path.segments:
            return False
        place = EntryPlace(path.below(self.mount), entry.kind is Kind.TOPIC)
        return self.snapshot.grants.node_at(place) is not None

    def _changes_rights(self, entry: Entry, before: Entry | None, path_before: Path | None) -> bool:
        """True if grants or a closed directory arrive at a new place, or a directory is closed or
        opened: a caller authorized for a whole subtree must not commit by older grants.
        """
        if path_before is not None:
            relative = path_before.below(self.mount)
            place = EntryPlace(relative, entry.kind is Kind.TOPIC)
            return self.snapshot.grants.node_at(place) is not None
        if not isinstance(entry, Directory):
            return False
        return entry.closed != (isinstance(before, Directory) and before.closed)

    def insert_entry(
        self, parent_id: int, name: str, entry: Entry, path: Path, *, parent_is_new: bool = False
    ) -> None:
        """Adds an entry at a free place; in a new directory of this plan every place is free."""
        if not parent_is_new:
            self.require_free(parent_id, entry.kind, name, path)
            # Grants left behind there would be another entry's (P6).
            self.put_grants(parent_id, entry.kind, name, None)
        self.write_record(parent_id, name, entry)
        self.record_new_state(entry, parent_id, path)

    def update(self, parent_id: int, name: str, before: Entry, after: Entry, path: Path) -> None:
        """Replaces an entry at the same place."""
        self.expect_entry(parent_id, name, before)
        self.write_record(parent_id, name, after)
        self.record_new_state(after, parent_id, path, before=before)

    def record_removal(
        self, parent_id: int, name: str, entry: Entry, path: Path, path_before: Path | None = None
    ) -> None:
        """Adds the event that an entry is no longer in the tree, wherever its record is moved."""
        if self._takes_rights_along(entry, path):
            self.bump_grants_version()
        try:
            grants = self.grants_of(parent_id, entry.kind, name)
        except ValueError:
            grants = None  # unreadable grants cannot be shown
        self.add_event(
            EntryChange(
                kind=entry.kind,
                entry_id=entry.entry_id,
                parent_id=parent_id,
                path=path,
                path_before=path_before,
                before=entry,
                grants_before=grants,
            )
        )

    # -- physical names --------------------------------------------------------------------------

    def claim_name(self, physical_name: str) -> None:
        """Records that the physical name is in use, and no longer retired or detached."""
        self._claimants(physical_name).add(physical_name)
        self.forget_facts(retired_key(physical_name), detached_key(physical_name))

    def release_name(self, physical_name: str) -> None:
        """Records that the physical name is no longer in use."""
        self._claimants(physical_name).discard(physical_name)

    def retire_name(
        self, physical_name: str, *, awaited: bool = False, deleted_id: bytes = b""
    ) -> None:
        """Retires the physical name: new topics do not get it for a day.

        With ``awaited``, a topic that appears under it meanwhile is not adopted either: kdir asked
        Kafka for it and has removed its entry. Nor is the topic with ``deleted_id``.
        """
        until_ms = self.context.now_ms + physical_names.RETIRED_FOR_MS
        value = retired_value(until_ms, awaited=awaited, deleted_id=deleted_id)
        self.write_fact(retired_key(physical_name), value)

    def _claimants(self, physical_name: str) -> set[str]:
        unified = unify(physical_name)
        if unified not in self._claims:
            before = self.names.used_like(physical_name)
            self._claims[unified] = before, set(before)
        return self._claims[unified][1]

    def _write_claims(self) -> None:
        for unified, (names_before, names) in self._claims.items():
            key = claim_key(unified)
            before, after = claim_value(names_before), claim_value(names)
            if before == after:
                continue
            if key in self.context.claims:
                stored = self.context.claims[key]
                others = self._unreadable_claimants(unified, stored) - {*names_before}
                if not (others and names - {*names_before}):
                    # A damaged claim is replaced: otherwise its names would never be free again.
                    before, after = stored, claim_value(names | others)
            self.require_value(key, before)
            self._writes[key] = Delete(key) if after is None else Put(key, after)

    def _unreadable_claimants(self, unified: str, stored: bytes | None) -> set[str]:
        """Returns the names of a stored claim that entries may have that cannot be read (S21)."""
        claimed = (stored or b"").decode(errors="replace").split("\n")
        names = {name for name in claimed if unify(name) == unified}
        is_unread = any(key.startswith(ENTRY) for key in self.snapshot.unreadable_values)
        return names if is_unread else set()

    # -- facts and guards ------------------------------------------------------------------------

    def require_value(self, key: bytes, value: bytes | None) -> None:
        """Adds the guard that the key has exactly this value; None = it does not exist."""
        self._guards[KeyEquals(key, value)] = None

    def expect_nothing_newer(self, prefix: bytes) -> None:
        """Adds the guard that nothing was written below the prefix since the snapshot."""
        self._guards[UnchangedSince(prefix, self.snapshot.revision)] = None

    def write_fact(self, key: bytes, value: bytes) -> None:
        """Writes a fact."""
        self._writes[key] = Put(key, value)

    def delete_fact(self, key: bytes) -> None:
        """Removes a fact."""
        self._writes[key] = Delete(key)

    def forget_facts(self, *keys: bytes) -> None:
        """Removes the facts with these keys, if the snapshot has them."""
        for key in keys:
            if self.snapshot.fact(key) is not None:
                self._writes[key] = Delete(key)

    def _expect_root(self) -> None:
        # The root directory exists without a record until something is set on it; an unreadable
        # record can be replaced.
        if ROOT_KEY in self._unreadable:
            self.expect_nothing_newer(ROOT_KEY)
            return
        root = self.snapshot.root.directory
        stored = root != _BARE_ROOT
        self.require_value(ROOT_KEY, self.snapshot.codec.encode(root) if stored else None)

    # -- the end ---------------------------------------------------------------------------------

    @property
    def size(self) -> tuple[int, int]:
        """Upper bound of the number of guards and writes so far."""
        return len(self._guards) + len(self._claims), len(self._writes) + len(self._claims)

    def finish(
        self,
        entry: Entry | None = None,
        path: Path | None = None,
        *,
        topic_count: int = 0,
        directory_count: int = 0,
        kafka_topics_deleted: bool = False,
        notes: Iterable[str] = (),
        grants: tuple[Grant, ...] = (),
        grants_changed: tuple[Grant, ...] = (),
    ) -> Plan:
        """Returns the plan; without writes it has no guards. Each change gets the effective
        policies that it leads to.
        """
        self._write_claims()
        writes = tuple(self._writes.values())
        changes = tuple(self._changes) if writes else ()
        if changes:
            changes = attach_effective_policies(changes, self.snapshot, self.context.above)
        return Plan(
            guards=tuple(self._guards) if writes else (),
            writes=writes,
            changes=changes,
            entry=entry,
            path=path,
            topic_count=topic_count,
            directory_count=directory_count,
            kafka_topics_deleted=kafka_topics_deleted,
            notes=tuple(notes),
            grants=grants,
            grants_changed=grants_changed,
        )


def read_only_mark(parent_id: int, entry: Entry) -> bytes | None:
    """Returns the value of an entry's ``read_only_key``, by which ``read_only_place`` finds the
    entry again; None if the entry needs no such row.
    """
    if not isinstance(entry, Directory | Topic) or not entry.policies.read_only:
        return None
    if isinstance(entry, Directory):
        return b"1"
    return None if parent_id == DELETED_ID else entry.physical_name.encode()


def claim_value(names: Iterable[str]) -> bytes | None:
    """Returns the value of the claim of physical names with the same unified name; None if there
    are no names.
    """
    return "\n".join(sorted(names)).encode() or None


def read_only_place(snapshot: Snapshot, key: bytes, value: bytes) -> tuple[str, ...] | None:
    """Returns the place below the mount of the entry that a ``f/read_only/`` row names; None = it
    is gone.
    """
    entry_id = read_only_id(key)
    at = snapshot.path_of(entry_id)
    if at is not None:
        return at
    located = snapshot.locate(value.decode(errors="replace"))
    return None if located is None or located.topic.entry_id != entry_id else located.relative
