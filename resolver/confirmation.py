"""Approval of irreversible actions, by ``--yes`` or by a person at a terminal, and the irreversible
effects of a planned change.

Used by commands that call servers (``Session.approve``) and by those that open stores
(``directory/maintenance/offline_commands.py``).
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
"""Name of Kafka's call that adds partitions to a topic."""
GROWTH: Final = "This cannot be undone, and keyed data changes place"
"""Consequence of adding partitions, for people."""
_DATA_LOSS: Final = "Kafka may delete data, which cannot be undone"


class NotApproved(Exception):
    """Error of an action that needs ``--yes``, since there is no terminal to ask at."""

    def __init__(self, action: str, consequence: str = "") -> None:
        super().__init__(
            f"to {action} needs --yes where there is no terminal to ask at; nothing was changed"
            f"{f'. {consequence}' if consequence else ''}"
        )


def is_interactive() -> bool:
    """True if stdin and stderr are terminals, so that a person can answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> bool:
    """Asks a question on stderr and returns whether the answer is yes; False without a terminal."""
    if not is_interactive():
        return False
    sys.stdout.flush()
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def approve(action: str, consequence: str = "", *, yes: bool) -> bool:
    """Returns whether an irreversible action may be done.

    Args:
        action: the action, such as ``remove topic /la/x``.
        consequence: its consequence, a sentence without a full stop.
        yes: whether ``--yes`` was given.

    Raises:
        NotApproved: ``yes`` is false, and there is no terminal.
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

    Adding partitions is irreversible, and so are changes by which Kafka may delete data of armed
    topics. Revoking and disarming are reversible: by granting and arming again (decision 0062).

    Args:
        plan: the plan, with the known effects in the clusters below.
        unknown: clusters below in which the effects are unknown.
    """
    for call in plan.kafka_calls:
        if call.operation == GROW_CALL:
            return f"grow {call.resource} from {call.before} to {call.after} partitions", GROWTH
    losing = Counter(call.key for call in plan.kafka_calls if call.deletes_data)
    of_plan = [policy_key(one.field) for one in plan.policies if one.deletes_data]
    # Some armed topics may be hidden from the caller.
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
    """Returns the effect of a change that locks the caller out of a directory, and its consequence;
    None = the change does not.
    """
    return (f"close {path}", "You could not open it again") if plan.locks_out else None
