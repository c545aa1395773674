"""The change event of a new word from above: what holds in this cluster becomes another.

It is one event, of the directory at the mount, in the transaction that keeps the word: whoever
follows the changes learns of it in order. Refuses to tell what that means further below.
"""

from __future__ import annotations

from kdir.v1 import federation_pb2

from directory.namespace.command import EntryChange
from directory.namespace.effective_policies import PolicyLevel
from directory.namespace.entry import ROOT_ID, Kind
from directory.namespace.event_policies import attach_effective_policies
from directory.namespace.keys import event_key
from directory.namespace.snapshot import Snapshot
from directory.store.base import Put
from directory.store.event_rows import new_change_id, pack
from directory.wire.entry_messages import policies_of
from resolver.path import Path

__all__ = ["inherited_change_event"]


def inherited_change_event(
    snapshot: Snapshot, mount: Path, inherited: federation_pb2.Inherited, now_ms: int
) -> Put:
    """Returns the row of it, for the last of the transactions that keep what is inherited."""
    root = snapshot.root.directory
    change = EntryChange(
        kind=Kind.DIRECTORY,
        entry_id=ROOT_ID,
        parent_id=0,
        path=mount,
        before=root,
        after=root,
        of_inherited=True,
    )
    above = [
        PolicyLevel(one.path, policies_of(one.policies, stored=True)) for one in inherited.levels
    ]
    value = pack(
        attach_effective_policies([change], snapshot, above),
        time_ms=now_ms,
        principal="",
        request_id="",
    )
    return Put(event_key(new_change_id(now_ms, 1)), value)
