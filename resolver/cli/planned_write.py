"""Sends the change of an approved plan, only if the entry is still as it was planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from resolver.errors import EtagMismatch

if TYPE_CHECKING:
    from kdir.v1 import directory_pb2, entry_pb2

    from resolver.cli.session import Session

__all__ = ["decided_values", "is_same_topic", "send_planned"]

T = TypeVar("T")
R = TypeVar("R")

_TRIES: Final = 8
"""Number of times that a change is planned again because servers recorded the topic's state in
Kafka meanwhile.
"""


def send_planned(
    planned: T, send: Callable[[T], R], plan_again: Callable[[], T], is_same: Callable[[T], bool]
) -> R:
    """Sends a planned change; returns the answer.

    Args:
        planned: the approved plan.
        send: sends the change with the etag of a plan.
        plan_again: returns a plan for the current entry.
        is_same: returns whether a later plan differs from the approved one only by the state that
            servers record of a topic.

    Raises:
        EtagMismatch: the entry was changed since the plan.
        KdirError
    """
    now = planned
    for _ in range(_TRIES):
        try:
            return send(now)
        except EtagMismatch:
            now = plan_again()
            if not is_same(now):
                raise
    return send(now)


def decided_values(entry: entry_pb2.Entry) -> tuple[object, ...]:
    """Returns the parts of an entry that users decide, without those that servers record."""
    policies = type(entry.policies)()
    policies.CopyFrom(entry.policies)
    policies.ClearField("stamps")
    return entry.path, entry.entry_id, entry.topic.physical_name, policies.SerializeToString(
        deterministic=True
    )  # fmt: skip


def is_same_topic(session: Session, entry: entry_pb2.Entry) -> bool:
    """True if a topic that was read still exists, and only servers have changed its entry since.

    Raises:
        KdirError: the entry could not be read again.
    """
    if not entry.HasField("topic"):
        return False
    from kdir.v1 import directory_pb2

    request = directory_pb2.GetEntryRequest(path=entry.path, kind="ENTRY_KIND_TOPIC")
    answer: directory_pb2.GetEntryResponse = session.resolver.call(
        entry.path, "DirectoryService.GetEntry", request
    )
    return decided_values(entry) == decided_values(answer.entry)
