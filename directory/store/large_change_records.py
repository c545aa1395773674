"""Progress of large changes: the stored record of an adoption, and the progress of adoptions and
removals, for people.

The reaper finishes removals, the reconciler adoptions. A removal needs no record of its own: the
entries left are counted in the tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from google.protobuf.message import DecodeError
from kdir.v1 import admin_pb2

from directory.namespace.adoption_mapping import MappingRule
from directory.namespace.keys import LARGE_CHANGE, large_change_key
from directory.namespace.removal_progress import removals
from directory.namespace.snapshot import Snapshot
from directory.store.base import Delete, Put
from resolver.errors import InvalidArgument, InvalidPath
from resolver.path import Path

__all__ = [
    "LARGE",
    "SWEEP",
    "LargeAdoption",
    "adoptions",
    "progress_of",
    "rules_from_proto",
    "rules_to_proto",
]

LARGE: Final = 1_000
"""Number of entries from which the progress of a change is reported."""
SWEEP: Final = "sweep"
"""Id of each adoption by a sweep: there is one at a time, and the next sweep finds the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeAdoption:
    """Adoption in steps (``kdir.v1.LargeChange``)."""

    change_id: str
    mount: Path
    """Mount of the cluster at the beginning."""
    started_at_ms: int
    done: int
    left: int
    principal: str = ""
    message: str = ""
    rules: tuple[MappingRule, ...] = ()
    """The operator's rules, or those in force; none for a sweep."""
    remap: bool = False

    def to_put(self) -> Put:
        """Returns the write that stores the record."""
        record = admin_pb2.LargeChange(
            progress=self.to_proto(),
            rules=rules_to_proto(self.rules),
            remap_adopted=self.remap,
        )
        return Put(large_change_key(self.change_id), record.SerializeToString())

    def to_remove(self) -> Delete:
        """Returns the write that removes the record."""
        return Delete(large_change_key(self.change_id))

    def to_proto(self) -> admin_pb2.Progress:
        """Returns the progress, for people."""
        return admin_pb2.Progress(
            change_id=self.change_id,
            kind="adopt",
            path=str(self.mount),
            done=self.done,
            remaining=self.left,
            started_at_ms=self.started_at_ms,
            principal=self.principal,
            message=self.message,
        )

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        """Parses the form of ``to_put``.

        Raises:
            ValueError: not a valid record.
        """
        try:
            record = admin_pb2.LargeChange.FromString(value)
            progress = record.progress
            return cls(
                change_id=progress.change_id,
                mount=Path.parse(progress.path),
                started_at_ms=progress.started_at_ms,
                done=progress.done,
                left=progress.remaining,
                principal=progress.principal,
                message=progress.message,
                rules=rules_from_proto(record.rules),
                remap=record.remap_adopted,
            )
        except (DecodeError, InvalidPath, InvalidArgument) as error:
            raise ValueError(f"no adoption on its way: {error}") from None


def adoptions(snapshot: Snapshot) -> list[LargeAdoption]:
    """Returns the unfinished adoptions, oldest first. A newer server continues unreadable ones."""
    found = []
    for _, value in snapshot.facts(LARGE_CHANGE):
        try:
            found.append(LargeAdoption.from_bytes(value))
        except ValueError:
            continue
    return sorted(found, key=lambda one: one.started_at_ms)


def progress_of(snapshot: Snapshot, trouble: str = "") -> list[admin_pb2.Progress]:
    """Returns every unfinished large change, oldest first. ``trouble``: why removals are held up,
    if this server knows.

    Removals with fewer than ``LARGE`` topics and directories are not listed.
    """
    found = [one.to_proto() for one in adoptions(snapshot)]
    for entry_id, removal, left in removals(snapshot):
        if removal is None or max(removal.entries, left) < LARGE:
            continue
        found.append(
            admin_pb2.Progress(
                change_id=f"{entry_id:016x}",
                kind="delete",
                path=str(removal.path),
                done=max(0, removal.entries - left),
                remaining=left,
                started_at_ms=removal.started_at_ms,
                principal=removal.principal,
                message=trouble,
            )
        )
    return sorted(found, key=lambda one: (one.started_at_ms, one.change_id))


def rules_to_proto(rules: Iterable[MappingRule]) -> list[admin_pb2.MappingRule]:
    """Encodes mapping rules as messages."""
    return [
        admin_pb2.MappingRule(
            match=rule.match.text,
            split_on=rule.split_on,
            into="/".join(rule.into),
            strip_prefix=rule.strip_prefix,
            ignore=rule.ignore,
        )
        for rule in rules
    ]


def rules_from_proto(rules: Iterable[admin_pb2.MappingRule]) -> tuple[MappingRule, ...]:
    """Decodes mapping rules from messages.

    Raises:
        InvalidArgument: naming the field and what would be right.
    """
    return tuple(
        MappingRule.from_fields(
            rule.match,
            split_on=rule.split_on,
            into=rule.into,
            strip_prefix=rule.strip_prefix,
            ignore=rule.ignore,
        )
        for rule in rules
    )
