"""Reasons why policies are not loaded: then nothing that needs them is done, since they never count
as empty (P3).
"""

from __future__ import annotations

from directory.federation import inheritance, parent_state
from directory.namespace.keys import PARENT
from directory.namespace.snapshot import Snapshot
from directory.namespace.tree_nodes import ROOT_KEY

__all__ = ["why_inherited_missing"]


def why_inherited_missing(snapshot: Snapshot, *, has_parent: bool) -> str:
    """Returns why policies are not loaded or the cluster is unmounted, as a sentence; empty =
    neither: what depends on policies may be done. ``has_parent``: the config names a parent.
    """
    unmounted = snapshot.fact(parent_state.UNMOUNTED_KEY)
    if unmounted is not None:
        return f"the cluster is unmounted: {unmounted.decode(errors='replace')}"
    known = snapshot.fact(PARENT) is not None
    if (has_parent or known) and not inheritance.is_inherited_received(snapshot):
        return "what the cluster inherits is not known yet: no parent has sent it"
    if inheritance.is_inherited_corrupt(snapshot):
        return inheritance.why_inherited_unknown(snapshot)
    if snapshot.unreadable(ROOT_KEY):
        return "the policies of the root directory are not known: its record cannot be read"
    return ""
