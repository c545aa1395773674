"""The plan of arming ACLs at an entry: the exact calls, in order, and how many ACLs there are.

Refuses to change anything, and to plan more than brokers are said to bear.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from directory.kafka.acl_values import Acl, AclBinding
from directory.kafka.admin_contract import KafkaAdmin
from directory.kafka.applying.acl_diff import CALL_ORDER, AclDiff, AclDiffOptions
from directory.kafka.applying.acl_diffs_by_resource import AclDiffs, FoundAcls, arming_scope
from directory.kafka.applying.config_diff import KafkaCall
from directory.kafka.applying.desired_acls import ArmedEntry
from directory.namespace.snapshot import Snapshot
from resolver.errors import LimitExceeded
from resolver.path import Path

__all__ = ["CREATE_ACLS", "DELETE_ACLS", "AclPlan", "plan_acls"]

CREATE_ACLS: Final = "CreateAcls"
DELETE_ACLS: Final = "DeleteAcls"


@dataclass(frozen=True, slots=True)
class AclPlan:
    """What arming would do."""

    calls: tuple[KafkaCall, ...]
    """In the order in which they are made; those marked ``takeover`` only if that was said."""
    before: int
    """So many ACLs Kafka has."""
    after: int
    """And so many then."""
    limit: int


def plan_acls(
    admin: KafkaAdmin,
    snapshot: Snapshot,
    mount: Path,
    start: ArmedEntry,
    entry_id: int,
    *,
    takeover: bool,
    expired: bool,
    limit: int,
) -> AclPlan:
    """Returns what arming at an entry would do now.

    Raises:
        LimitExceeded: there would be too many ACLs.
        KafkaUnavailable, KafkaRefused
    """
    survey = AclDiffs(snapshot, mount, expired=expired, start=start, assume=entry_id)
    scope = arming_scope(snapshot, mount, start, expired=expired, assume=entry_id)
    view = admin.acls()
    rules = AclDiffOptions(
        revert_external_changes=True, released=True, open_to_all=view.open_to_all
    )
    verdicts = survey.verdicts(FoundAcls(view.bindings), lambda _: rules, scope)
    made = [one for one in verdicts if takeover or not one.opens]
    after = view.count + sum(len(one.add) - len(one.remove) for one in made)
    if after > limit and after > view.count:
        raise LimitExceeded(
            f"Kafka would have {after} ACLs, it has {view.count} now, and {limit} is the most that "
            f"[kafka] acl_limit allows: grant on fewer topics, or raise it",
            limit="acl_limit",
            value=limit,
        )
    return AclPlan(tuple(_calls(verdicts)), view.count, after, limit)


def _calls(verdicts: Sequence[AclDiff]) -> Iterator[KafkaCall]:
    """Yields the calls as ``acl_batch.py`` makes them."""
    for adding, permission in CALL_ORDER:
        for one in verdicts:
            for acl in one.add if adding else one.remove:
                if acl.permission is permission:
                    yield _call(one, acl, adding=adding)


def _call(verdict: AclDiff, acl: Acl, *, adding: bool) -> KafkaCall:
    return KafkaCall(
        CREATE_ACLS if adding else DELETE_ACLS,
        str(verdict.resource),
        str(acl),
        None,
        None,
        binding=AclBinding(verdict.resource, acl),
        takeover=verdict.opens,
    )
