"""Write of an approved plan: of the entry that was planned for, and of no other."""

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
"""How often a change is planned again if servers record Kafka's state of its topic."""


def send_planned(
    planned: T, send: Callable[[T], R], plan_again: Callable[[], T], is_same: Callable[[T], bool]
) -> R:
    """Makes a planned change; returns the answer.

    Args:
        planned: the approved plan.
        send: sends the change with the etag of a plan.
        plan_again: makes the plan of the current entry.
        is_same: whether a later plan is the approved one but for what servers record of a topic.

    Raises:
        EtagMismatch: the entry was changed since.
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
    """Returns what people decide of a topic, without what servers record of it."""
    policies = type(entry.policies)()
    policies.CopyFrom(entry.policies)
    policies.ClearField("stamps")
    return entry.path, entry.entry_id, entry.topic.physical_name, policies.SerializeToString(
        deterministic=True
    )  # fmt: skip


def is_same_topic(session: Session, entry: entry_pb2.Entry) -> bool:
    """True if a topic that was read is still there, and nobody but servers has changed it.

    Raises:
        KdirError: it could not be read again.
    """
    if not entry.HasField("topic"):
        return False
    from kdir.v1 import directory_pb2

    request = directory_pb2.GetEntryRequest(path=entry.path, kind="ENTRY_KIND_TOPIC")
    answer: directory_pb2.GetEntryResponse = session.resolver.call(
        entry.path, "DirectoryService.GetEntry", request
    )
    return decided_values(entry) == decided_values(answer.entry)
