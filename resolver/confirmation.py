"""Approval of irreversible actions, by ``--yes`` or by a person at a terminal; and which effects of
a planned change are irreversible.

The one place that decides it, for commands that call servers (``Session.approve``) and for those
that open stores (``directory/maintenance/offline_commands.py``).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from resolver import units
from resolver.entry_fields import policy_key
from resolver.printable import printable

if TYPE_CHECKING:
    from kdir.v1 import access_pb2

__all__ = [
    "GROWTH",
    "GROW_CALL",
    "NotApproved",
    "approve",
    "confirm",
    "irreversible_effect",
    "is_interactive",
    "lock_out_effect",
]

GROW_CALL: Final = "CreatePartitions"
"""Kafka's call that gives a topic more partitions."""
GROWTH: Final = "This cannot be undone, and keyed data changes place"
"""Consequence of more partitions, for people."""
_DATA_LOSS: Final = "Kafka may delete data, which cannot be undone"


class NotApproved(Exception):
    """Error: an action needs ``--yes``, since there is no terminal to ask at."""

    def __init__(self, action: str, consequence: str = "") -> None:
        super().__init__(
            f"to {action} needs --yes where there is no terminal to ask at; nothing was changed"
            f"{f'. {consequence}' if consequence else ''}"
        )


def is_interactive() -> bool:
    """True if there is a person to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> bool:
    """Asks a person, who answers on the same line; without one the answer is no."""
    if not is_interactive():
        return False
    sys.stdout.flush()
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def approve(action: str, consequence: str = "", *, yes: bool) -> bool:
    """Returns whether an irreversible action may be done.

    Args:
        action: as in ``remove topic /la/x``.
        consequence: a sentence without a full stop.
        yes: ``--yes`` was given.

    Raises:
        NotApproved: ``yes`` is false, and there is nobody to ask.
    """
    if yes:
        return True
    if not is_interactive():
        raise NotApproved(action, consequence)
    return confirm(f"{action}? {consequence}".rstrip())


def irreversible_effect(
    plan: access_pb2.ChangePlan, unknown: Sequence[str] = ()
) -> tuple[str, str] | None:
    """Returns the irreversible effect of a planned change of policies, and its consequence; None =
    it is reversible.

    More partitions are irreversible, and so are changes by which Kafka may delete data of armed
    topics. Granting or arming again reverses revoked rights and disarming (decision 0062).

    Args:
        plan: includes the effects in the clusters below that are known.
        unknown: the clusters below whose effects are unknown.
    """
    for call in plan.kafka_calls:
        if call.operation == GROW_CALL:
            return f"grow {call.resource} from {call.before} to {call.after} partitions", GROWTH
    losing = Counter(call.key for call in plan.kafka_calls if call.deletes_data)
    of_plan = [policy_key(one.field) for one in plan.policies if one.deletes_data]
    # Armed topics may be among those that the caller may not describe.
    hides_armed = plan.caller_view and plan.armed
    is_cut = bool(plan.kafka_calls_omitted) or plan.incomplete or hides_armed
    if not losing and not (of_plan and (is_cut or unknown)):
        return None
    topics, consequence = [], _DATA_LOSS
    if losing:
        least = "at least " if is_cut else ""
        topics.append(f"{least}{units.plural(max(losing.values()), 'topic')}")
        replaced = [call for call in plan.kafka_calls if call.deletes_data]
        if not any(call.HasField("before") for call in replaced):
            consequence += ": the new value replaces the broker's default, which is not known"
    elif is_cut:
        topics.append("topics that were not all counted")
    else:
        consequence = "Whether Kafka deletes data there is not known"
    if unknown:
        topics.append(f"topics of {', '.join(unknown)}, which did not answer")
    return f"change {', '.join(sorted(losing) or of_plan)} of {' and '.join(topics)}", consequence


def lock_out_effect(path: str, plan: access_pb2.ChangePlan) -> tuple[str, str] | None:
    """Returns the effect and the consequence of a change that locks the caller out of a directory;
    else None.
    """
    return (f"close {path}", "You could not open it again") if plan.locks_out else None
