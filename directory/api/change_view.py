"""Change events at and below a path as one caller may see them.

A change is a step from what the caller saw before it to what it sees after it, each by the rights
of its own revision. An entry that leaves the caller's view is shown as a removal, one that enters
it as an insert, and no event shows the state of an entry while it was hidden. A watch ends with
``Resync`` if the caller's view changed in a way that such events cannot express.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kdir.v1 import entry_pb2, watch_pb2

from directory.access.authorizer import Authorizer
from directory.api.visible_tree import OpenTree, VisibleTree
from directory.namespace.entry import Kind, etag_of
from directory.namespace.removal_progress import DELETED
from directory.server.access_history import AccessHistory
from resolver.errors import KdirError, NotReady, Resync
from resolver.path import ROOT, Path

__all__ = ["ChangeView", "may_change_way"]

Event = watch_pb2.ChangeEvent


class ChangeView:
    """Change events at and below a path, filtered by a caller's tree.

    The tree is the current one: an entry that is hidden now is not shown in past events, either.
    """

    def __init__(self, tree: OpenTree, history: AccessHistory, path: Path) -> None:
        self._now: Final = tree if isinstance(tree, VisibleTree) else None
        """None: nothing is or was hidden from the caller."""
        self._snapshot: Final = tree.snapshot
        self._history: Final = history
        self._path: Final = path
        self._known: tuple[Authorizer, VisibleTree] | None = None
        """The access rules that were asked for last, and the caller's tree by them."""

    # -- the log ---------------------------------------------------------------------------------

    def known_since(self) -> int:
        """Returns the first revision for which the caller's rights are known; 0 = for all.

        Raises:
            StoreUnavailable: the rights are only in the store, which cannot be reached.
        """
        return 0 if self._now is None else self._history.known_since()

    def logged(self, events: Iterable[Event]) -> list[Event]:
        """Returns the past events that a list shows.

        An event that is older than ``known_since``, or that was hidden from the caller then, is
        shown only if the entry is unchanged since: as an insert of its current state.

        Raises:
            StoreUnavailable: the rights of that time are only in the store, which cannot be
                reached.
        """
        now = self._now
        shown = (one if now is None else self._logged(now, one) for one in events)
        return [one for one in shown if one is not None and _concerns(one, self._path)]

    def _logged(self, now: VisibleTree, event: Event) -> Event | None:
        if _is_reaped(event):
            return None
        step = _Step(event)
        saw = step.has_before and self._sees(now, step.old, step.kind, event.revision - 1)
        sees = step.has_after and self._sees(now, step.new, step.kind, event.revision)
        if saw and not sees and step.is_in_place:
            # it was hidden, not removed; a reader of past events keeps no copy of the tree
            return None
        if not (saw or sees) and step.has_after and _is_unchanged(now, event, step):
            return _as_insert(event, is_hidden=True)
        return step.as_seen(saw=saw, sees=sees)

    def _sees(self, now: VisibleTree, path: Path, kind: Kind | None, revision: int) -> bool:
        """True if the caller may see the entry at a path now, and could see it at a revision."""
        if not now.can_describe_path(path, kind):
            return False
        then = self._at(now, revision)
        try:
            return then is not None and then.can_describe_path(path, kind)
        except NotReady:
            return False  # the inherited grants of that revision could not be read

    # -- a watch ---------------------------------------------------------------------------------

    def refuse_unknown(self, revision: int) -> None:
        """Raises an error for a watch from a revision for which the caller's rights are not known;
        for a caller that may see everything, only if the mount moved since.

        Raises:
            Resync: the rights, or the mount, of that revision are not kept any more.
            StoreUnavailable: they are only in the store, which cannot be reached.
        """
        if self._now is not None:
            self._required(self._now, revision)
        elif self._history.has_moved_unseen(self._snapshot, revision):
            raise Resync(
                f"the cluster was moved in its parent's tree after revision {revision}: list "
                f"again, then watch"
            )

    def streamed(self, reached: int, revision: int, events: Sequence[Event]) -> list[Event]:
        """Returns the events of one revision for a watch that has reached an earlier one: applied
        to the watcher's copy, they give what the watcher may see of that revision.

        Raises:
            Resync: the caller's view changed in a way that no events express.
            StoreUnavailable: the rights of that time are only in the store, which cannot be
                reached.
        """
        now = self._now
        for at in self._history.changed(reached, revision):
            self._refuse_moved(at)
            if at != revision and now is not None:
                self._refuse_other_view(now, at)
        if now is None:
            return [one for one in events if _concerns(one, self._path)]
        before, after = self._required(now, revision - 1), self._required(now, revision)
        same_tree = before.access.tree is after.access.tree
        if before.access.inherited != after.access.inherited or not (same_tree or events):
            self._refuse_other_view(now, revision)
        shown = []
        for event in events:
            if _is_reaped(event):
                continue
            step = _Step(event)
            try:
                one = self._streamed(now, step, before, after, same_rights=same_tree)
            except NotReady:
                raise self._resync(revision) from None
            if one is not None and _concerns(one, self._path):
                shown.append(one)
        return shown

    def refuse_other_age(self, before: OpenTree) -> None:
        """Raises ``Resync`` if inherited grants expired, or were confirmed again, since the
        previous tree, and the caller's view differs by that.
        """
        now = self._now
        if now is None or not isinstance(before, VisibleTree):
            return
        if before.is_expired != now.is_expired:
            other = now.aged(expired=before.is_expired)
            if not self._have_same_view(other, now, self._watched_at(now, now.mount)):
                raise self._resync(now.snapshot.revision)

    def _streamed(
        self,
        now: VisibleTree,
        step: _Step,
        before: VisibleTree,
        after: VisibleTree,
        *,
        same_rights: bool,
    ) -> Event | None:
        saw = step.has_before and before.can_describe_path(step.old, step.kind)
        sees = step.has_after and after.can_describe_path(step.new, step.kind)
        revision = step.event.revision
        in_place = step.is_in_place
        if step.kind is Kind.DIRECTORY and step.has_before and not (in_place and same_rights):
            self._refuse_other_below(now, step, before, after, saw=saw, sees=sees)
        shown = step.as_seen(saw=saw, sees=sees)
        if shown is None or not _concerns(shown, self._path):
            return None
        hidden_before = saw and not now.can_describe_path(step.old, step.kind)
        hidden_after = sees and not now.can_describe_path(step.new, step.kind)
        if in_place and hidden_before and not sees:
            # The entry is hidden from here on: the watcher removes its copy and learns nothing
            # else.
            shown.ClearField("before")
            return shown
        if hidden_before or hidden_after:
            # Hidden since: later events, as far as they may be shown, need not fit the watcher's
            # copy.
            raise self._resync(revision)
        return shown

    def _refuse_other_below(
        self,
        now: VisibleTree,
        step: _Step,
        before: VisibleTree,
        after: VisibleTree,
        *,
        saw: bool,
        sees: bool,
    ) -> None:
        """Raises ``Resync`` if the visible part of a directory changes with the directory itself:
        the change is one event of the directory, but would move everything below it in the
        watcher's copy.
        """
        old = self._watched_at(now, step.old)
        new = self._watched_at(now, step.new) if step.has_after else None
        revision = step.event.revision
        if step.is_in_place:
            if old is None:
                return
            if saw == sees or not self._path.is_prefix_of(step.old):
                fits = self._have_same_view(before, after, old)
            else:
                fits = saw and not after.has_describable_below(old)
        elif saw and sees:
            fits = (old is None and new is None) or before.sees_same_below(
                step.old, after, step.new
            )
        else:
            is_left = saw or old is None or not before.has_describable_below(old)
            is_come = new is None or not (sees or after.has_describable_below(new))
            fits = is_left and is_come
        if not fits:
            raise self._resync(revision)

    def _watched_at(self, now: VisibleTree, path: Path) -> Path | None:
        """Returns the watched part of a directory: all of it, or the watched path in it; None if no
        part is watched.

        If the caller sees no entry at the watched path now, all of the directory counts: otherwise
        a hidden entry there could be distinguished from an absent one.
        """
        if self._path.is_prefix_of(path):
            return path
        if not path.is_prefix_of(self._path):
            return None
        return self._path if now.is_visible(self._path) else path

    def _refuse_moved(self, revision: int) -> None:
        before, after = self._history.kept(revision - 1), self._history.kept(revision)
        if before is not None and after is not None and before.mount != after.mount:
            raise Resync(
                f"with revision {revision} the cluster is mounted at {after.mount} instead of "
                f"{before.mount}: list again, then watch",
                mount=str(after.mount),
            )

    def _refuse_other_view(self, now: VisibleTree, revision: int) -> None:
        """Raises ``Resync`` if the caller's view changed with a revision by a change of rights that
        no event names.
        """
        before, after = self._required(now, revision - 1), self._required(now, revision)
        if not self._have_same_view(before, after, self._watched_at(now, after.mount)):
            raise self._resync(revision)

    @staticmethod
    def _have_same_view(before: VisibleTree, after: VisibleTree, path: Path | None) -> bool:
        """True if the caller sees the same at and below a path in both trees; without a path, below
        the mount.
        """
        at = after.mount if path is None else path
        try:
            return (
                at == after.mount
                or before.can_describe_path(at, Kind.TOPIC)
                == after.can_describe_path(at, Kind.TOPIC)
            ) and before.sees_same_below(at, after, at)
        except NotReady:
            return False

    def _required(self, now: VisibleTree, revision: int) -> VisibleTree:
        found = self._at(now, revision)
        if found is None:
            raise Resync(
                f"the access rules of revision {revision} are no longer kept here: list "
                f"again, then watch"
            )
        return found

    def _at(self, now: VisibleTree, revision: int) -> VisibleTree | None:
        """Returns the caller's tree by the rights of a revision; None if those are not known."""
        access = self._history.at(revision)
        if access is None:
            return None
        if self._known is None or self._known[0] is not access:
            self._known = (access, now.by_rights(access))
        return self._known[1]

    def _resync(self, revision: int) -> Resync:
        return Resync(
            f"with revision {revision} other entries below {self._path} may be seen than before: "
            f"list again, then watch"
        )


class _Step:
    """One change: the entry's place before and after it."""

    __slots__ = ("event", "has_after", "has_before", "kind", "new", "old")

    def __init__(self, event: Event) -> None:
        self.event: Final = event
        self.kind: Final = Kind(event.kind) if event.kind else None
        self.new: Final = _path_of(event.path)
        self.old: Final = _path_of(event.path_before) if event.path_before else self.new
        self.has_before: Final = event.HasField("before")
        self.has_after: Final = event.HasField("after")

    @property
    def is_in_place(self) -> bool:
        """True if the entry existed before the change and was not moved by it."""
        return self.has_before and self.has_after and self.old == self.new

    def as_seen(self, *, saw: bool, sees: bool) -> Event | None:
        """Returns the change as shown to a caller that saw the entry before it, sees it after it,
        or both; None if neither.
        """
        if saw == self.has_before and sees == self.has_after:
            return self.event
        if sees:
            return _as_insert(self.event)
        return _as_removal(self.event) if saw else None


_OF_SCOPES: Final = ("grants_before", "grants_after", "operation", "scope")
"""Fields about grants and operations, which an insert or removal made here does not have."""


def _as_insert(event: Event, *, is_hidden: bool = False) -> Event:
    """Returns the change as an insert of the entry; ``is_hidden``: the caller could not see the
    entry right after the change, either.
    """
    part = watch_pb2.ChangeEvent()
    part.CopyFrom(event)
    for of_before in ("path_before", "before", *_OF_SCOPES):
        part.ClearField(of_before)
    if is_hidden:
        part.ClearField("effective")  # the state while it was hidden
    part.action = watch_pb2.CHANGE_ACTION_INSERT
    return part


def _as_removal(event: Event) -> Event:
    """Returns the change as a removal of the entry from its place before."""
    part = watch_pb2.ChangeEvent()
    part.CopyFrom(event)
    for of_after in ("path_before", "after", "effective", *_OF_SCOPES):
        part.ClearField(of_after)
    if event.path_before:
        part.path = event.path_before
        part.ClearField("parent_id")
    part.action = watch_pb2.CHANGE_ACTION_DELETE
    return part


def _is_unchanged(now: VisibleTree, event: Event, step: _Step) -> bool:
    """True if the entry is visible now, and still has the place and the state in which the change
    left it.
    """
    is_of_entry = event.scope == watch_pb2.CHANGE_SCOPE_UNSPECIFIED
    if not is_of_entry or not now.can_describe_path(step.new, step.kind):
        return False
    try:
        entry = now.locate_entry(step.new, step.kind).entry
    except KdirError:
        return False
    return entry.entry_id == event.entry_id and etag_of(entry) == event.after.etag


def may_change_way(events: Iterable[Event], path: Path) -> bool:
    """True if a path may lead through, or to, another link or mount since these changes: a
    container came to it or above it.
    """
    return any(
        event.kind != entry_pb2.ENTRY_KIND_TOPIC
        and event.HasField("after")
        and (event.path_before or not event.HasField("before"))
        and _path_of(event.path).is_prefix_of(path)
        for event in events
    )


def _is_reaped(event: Event) -> bool:
    """True if the event is the later removal of an entry below a removed directory: the removal of
    the directory was shown already.
    """
    return f"/{DELETED}/" in event.path


def _path_of(text: str) -> Path:
    """Returns a path of an event. It may be beyond the limits of a path, if the cluster came to a
    longer mount since the entry was made.
    """
    return ROOT if text == "/" else Path(tuple(text[1:].split("/")))


def _concerns(event: Event, path: Path) -> bool:
    """True if the change is at or below the path, before or after it, or moves or removes a
    directory above the path.
    """
    for text in (event.path, event.path_before):
        if not text:
            continue
        changed = _path_of(text)
        if path.is_prefix_of(changed):
            return True
        moved = bool(event.path_before) or not event.HasField("after")
        if moved and changed.is_prefix_of(path):
            return True
    return False
