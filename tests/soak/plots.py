"""Plot: a subtree that one worker alone changes, with its model and the history of that."""

from __future__ import annotations

from dataclasses import dataclass, field

from resolver.revision_token import Position
from tests.soak.model import Tree
from tests.soak.world import Cluster, Lingering

__all__ = ["Plot", "Version"]


@dataclass(frozen=True, slots=True)
class Version:
    """A tree as it stood from a revision in (``after``, ``until``] on."""

    tree: Tree
    after: int
    until: int


@dataclass(slots=True, eq=False)
class Plot:
    """A subtree with its model. While ``candidates`` is not empty, it may be any of these: it is
    left alone until nothing that lingers can change it, and then looked at.
    """

    path: str
    cluster: Cluster
    versions: list[Version]
    incarnation: str = ""
    candidates: list[Tree] = field(default_factory=list)
    lingering: Lingering | None = None
    is_lost: bool = False
    """After a restore it is not known what it holds."""
    _first: int = 0
    """The number of the first of ``versions``."""

    @property
    def tree(self) -> Tree:
        """As it must be now."""
        return self.versions[-1].tree

    def record(self, tree: Tree, position: Position, *, exact: bool = True) -> None:
        """Records that the tree became this, at a revision or (not ``exact``) at or before it."""
        if not self.incarnation:
            self.incarnation = position.incarnation
        if position.incarnation != self.incarnation:
            self.incarnation = position.incarnation
            # A new life of the store, which began with what there was.
            self.begin_again(self.tree)
            self.versions.append(Version(tree, position.revision - 1, position.revision))
        else:
            after = position.revision - 1 if exact else self.versions[-1].until
            self.versions.append(Version(tree, after, position.revision))

    def begin_again(self, tree: Tree) -> None:
        """Begins a new incarnation of the store with this tree: revisions of the one before do not
        compare.
        """
        self._first = self.newest
        self.versions = [Version(tree, -1, 0)]

    @property
    def newest(self) -> int:
        """The number of the last version, counted through all lives of the store."""
        return self._first + len(self.versions) - 1

    def doubt(self, *candidates: Tree) -> None:
        """Records that the tree may be any of these, or become so later."""
        self.candidates = list(candidates)
        self.lingering = Lingering(self.cluster)

    def has_settled(self) -> bool:
        """True if nothing that was sent before can take effect any more."""
        return self.lingering is None or self.lingering.is_over()

    def possible(self, position: Position | None, at_least: int) -> list[Tree]:
        """Returns the trees that a read may find that was made at a position; without one, any from
        the version with the number ``at_least`` on.
        """
        at_least = max(0, at_least - self._first)
        if position is None or position.incarnation != self.incarnation:
            return [version.tree for version in self.versions[at_least:]]
        found = []
        for number, version in enumerate(self.versions):
            is_last = number + 1 == len(self.versions)
            replaced = not is_last and self.versions[number + 1].until <= position.revision
            if number >= at_least and version.after < position.revision and not replaced:
                found.append(version.tree)
        return found
