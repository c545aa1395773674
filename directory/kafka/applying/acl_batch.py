"""One batch of ACL pushes: the calls in their order, and what came of them.

What is asked is on record before it is asked (as in ``config_batch.py``). At no moment does Kafka
allow somebody something that is allowed neither before nor after (A4): denies are added
first and removed last, and what has ACLs before and after has some all the time. Refuses to decide
what is asked (``acl_diff.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, assert_never

from directory.access.grant import Permission
from directory.kafka.admin_contract import (
    Acl,
    AclBinding,
    AlreadyDone,
    KafkaAdmin,
    Outcome,
    OutcomeUnknown,
    Rejected,
    Resource,
    Succeeded,
)
from directory.kafka.applying.acl_diff import CALL_ORDER, AclDiff, acl_calls_hash
from directory.kafka.applying.applier import BatchResult
from directory.kafka.applying.last_applied import acls_to_write
from directory.kafka.fenced_commits import StaleObservation, TopicCommits
from directory.kafka.recent_changes import RecentChanges

__all__ = ["AclBatch"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 5.0
"""No longer after Kafka was looked at may ACLs be changed: a leader that was paused looks again."""
_LATELY_SECONDS: Final = 30.0
"""For so long some broker may show what was before a change of ours."""


class AclBatch:
    """For one leader, in its thread.

    Args:
        recent: notes each change.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        cluster: str,
        commits: TopicCommits,
        recent: RecentChanges,
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._commits = commits
        self._recent = recent
        self._clock = clock

    def carry_out(
        self, verdicts: Sequence[AclDiff], admin: KafkaAdmin, looked_at: float
    ) -> BatchResult[Resource]:
        """Asks for what follows, and records what came of it; ``looked_at`` by the clock.

        Raises:
            KafkaUnavailable, KafkaRejected, LeadershipLost, StoreUnavailable
        """
        tally: BatchResult[Resource] = BatchResult()
        self._commits.put_all(
            [acls_to_write(one.resource, one.asked) for one in verdicts if one.asked != one.before]
        )
        asks = [one for one in verdicts if one.calls]
        if not asks:
            return tally

        most = looked_at + _LOOK_SECONDS - self._clock()
        still = self._commits.check_fresh(self._clock, most)
        outcomes: dict[AclBinding, Outcome] = {}
        try:
            for (adding, permission), is_ready in zip(CALL_ORDER, _READY, strict=True):
                chosen = [
                    AclBinding(one.resource, acl)
                    for one in asks
                    if is_ready(one, outcomes)
                    for acl in (one.add if adding else one.remove)
                    if acl.permission is permission
                ]
                ask = admin.add_acls if adding else admin.remove_acls
                outcomes.update(ask(chosen, still) if chosen else {})
        except StaleObservation:
            _log.warning("%s: %d ACL resources are looked at again", self._cluster, len(asks))
        finally:
            self._record(asks, outcomes, tally)
        return tally

    def _record(
        self,
        asks: Sequence[AclDiff],
        outcomes: dict[AclBinding, Outcome],
        tally: BatchResult[Resource],
    ) -> None:
        writes = []
        for verdict in asks:
            ours = dict(verdict.asked.settings)
            message, left = "", set[Acl]()
            for acl in (*verdict.add, *verdict.remove):
                binding, adding = AclBinding(verdict.resource, acl), acl in verdict.add
                match outcomes.get(binding, OutcomeUnknown("not asked yet")):
                    case Succeeded() | AlreadyDone():
                        if adding:
                            ours[acl] = replace(ours[acl], done=True)
                        else:
                            ours.pop(acl, None)
                        self._recent.note_acl(binding, added=adding)
                        tally.made[verdict.resource] = tally.made.get(verdict.resource, 0) + 1
                        _log.info("%s: ACL %s %s", self._cluster, "+" if adding else "-", binding)
                    case Rejected(why):
                        message = why
                        left.add(acl)
                        if adding:
                            ours.pop(acl, None)
                        _log.warning("%s: ACL %s refused: %s", self._cluster, binding, why)
                    case OutcomeUnknown(why):
                        tally.unsure[verdict.resource] = None
                        left.add(acl)
                        tally.undone[verdict.resource] = why
                    case other:
                        assert_never(other)
            after = replace(verdict.asked, settings=MappingProxyType(ours))
            if message:
                refused = acl_calls_hash(left & set(verdict.add), left & set(verdict.remove))
                after = replace(after, path=verdict.path, refused=message, refused_calls=refused)
                tally.undone[verdict.resource] = message
            if after != verdict.asked:
                writes.append(acls_to_write(verdict.resource, after))
        self._commits.put_all(writes)


# -- whether a resource is ready for each of the calls, in their order -----------------------------


_Outcomes = dict[AclBinding, Outcome]


def _always(_: AclDiff, __: _Outcomes) -> bool:
    return True


def _has_denies(verdict: AclDiff, outcomes: _Outcomes) -> bool:
    return _all_done(verdict, outcomes, verdict.add, Permission.DENY)


def _has_something_left(verdict: AclDiff, outcomes: _Outcomes) -> bool:
    # A resource that would lose its last ACL may be open to all then.
    added = any(_done(verdict, acl, outcomes) for acl in verdict.add)
    return added or not (verdict.may_empty and verdict.add)


def _has_lost_allows(verdict: AclDiff, outcomes: _Outcomes) -> bool:
    removed = _all_done(verdict, outcomes, verdict.remove, Permission.ALLOW)
    return removed and _has_denies(verdict, outcomes)


_READY: Final = (_always, _has_denies, _has_something_left, _has_lost_allows)


def _done(verdict: AclDiff, acl: Acl, outcomes: _Outcomes) -> bool:
    return isinstance(outcomes.get(AclBinding(verdict.resource, acl)), Succeeded | AlreadyDone)


def _all_done(
    verdict: AclDiff, outcomes: _Outcomes, acls: Sequence[Acl], permission: Permission
) -> bool:
    return all(_done(verdict, acl, outcomes) for acl in acls if acl.permission is permission)
