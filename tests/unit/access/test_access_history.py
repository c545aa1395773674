"""Who might do what at each revision: what is kept grows with changes of rights alone."""

from __future__ import annotations

from typing import Any, cast

from directory.access.authorizer import Access
from directory.access.grant_tree import GrantTree
from directory.namespace.keys import INHERITED
from directory.namespace.snapshot import Snapshot
from directory.server.access_history import AccessHistory
from directory.store.base import Store
from directory.store.replica import Applied, Replica
from resolver.path import Path

GRANTS = cast("GrantTree", object())


class _Tree:
    """A tree in which something is inherited, and where the mount is."""

    def __init__(self, inherited: bytes, mount: str) -> None:
        self.grants = GRANTS
        self.mount = Path.parse(mount)
        self._inherited = inherited

    def fact(self, key: bytes) -> bytes | None:
        return self._inherited if key == INHERITED else None


class _Replica:
    def subscribe(self, listener: Any) -> None:
        self.applied = listener


def test_the_same_rights_are_kept_once_whatever_else_is_inherited() -> None:
    replica = _Replica()

    def access_at(tree: Snapshot) -> Access:
        return Access(cast("_Tree", tree).mount, GRANTS, ())

    history = AccessHistory(cast("Replica", replica), cast("Store", None), access_at)
    mounts = {1: "/la", 2: "/la", 3: "/la", 4: "/ny"}
    for revision, mount in mounts.items():
        tree = cast("Snapshot", _Tree(b"%d" % revision, mount))
        replica.applied(
            Applied(
                revision=revision,
                before=tree,
                after=tree,
                writes=(),
                events=(),
                reloaded=revision == 1,
            )
        )
    assert history.at(3) is history.at(1)
    now = history.at(4)
    assert now is not None
    assert str(now.mount) == "/ny"
