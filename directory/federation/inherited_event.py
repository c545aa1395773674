"""The change event of a new word from above: what holds in this cluster becomes another.

It is one event, of the directory at the mount, in the transaction that keeps the word: whoever
follows the changes learns of it in order. Refuses to tell what that means further below.
"""

from __future__ import annotations

from kdir.v1 import federation_pb2

from directory.namespace.command import Change
from directory.namespace.entry import ROOT_ID, Kind
from directory.namespace.event_policies import with_effective
from directory.namespace.keys import event_key
from directory.namespace.policies import Level
from directory.namespace.snapshot import Snapshot
from directory.store.base import Put
from directory.store.events import new_change_id, pack
from directory.wire.entry_messages import policies_of
from resolver.path import Path

__all__ = ["event_of"]


def event_of(
    snapshot: Snapshot, mount: Path, inherited: federation_pb2.Inherited, now_ms: int
) -> Put:
    """The row of it, for the last of the transactions that keep what is inherited."""
    root = snapshot.root.directory
    change = Change(
        kind=Kind.DIRECTORY,
        entry_id=ROOT_ID,
        parent_id=0,
        path=mount,
        before=root,
        after=root,
        of_inherited=True,
    )
    above = [Level(one.path, policies_of(one.policies, stored=True)) for one in inherited.levels]
    value = pack(
        with_effective([change], snapshot, above), time_ms=now_ms, principal="", request_id=""
    )
    return Put(event_key(new_change_id(now_ms, 1)), value)
