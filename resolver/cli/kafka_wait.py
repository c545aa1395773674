"""``--wait``: waits until Kafka has the changes of a verb, in every cluster that inherits them.

Each cluster is queried for the calls that its armed entries still need (``PlanArming`` with
``armed``), for which it reads Kafka, not its own records. A cluster below must have received the
change first, as the positions of its ancestors show.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resolver import units
from resolver.cli.clusters_below import clusters_below
from resolver.cli.parser import Option
from resolver.errors import AboveCeiling, Absent, KafkaRejected, KdirError

if TYPE_CHECKING:
    from kdir.v1 import entry_pb2, policies_pb2

    from resolver.cli.parser import Arguments
    from resolver.cli.session import Session
    from resolver.revision_token import Position

__all__ = [
    "WAIT",
    "Affected",
    "clusters_at",
    "wait_for_kafka",
    "wait_for_topic",
    "wait_seconds",
]

WAIT: Final = Option(("--wait",), "wait until Kafka shows it, 60 s or --timeout; else exit code 3")
_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.2
_NAMED: Final = 5
_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Affected:
    """Cluster that a change affects."""

    cluster: str
    path: str
    """Path of the change; for a cluster below, its mount."""
    directory: bool = False
    is_below: bool = False


def wait_seconds(arguments: Arguments) -> float:
    """Returns the number of seconds to wait for Kafka."""
    return arguments.seconds("timeout", _SECONDS)


def wait_for_topic(session: Session, entry: entry_pb2.Entry, seconds: float) -> entry_pb2.Topic:
    """Returns a new topic when Kafka has it, or in its last state after ``seconds``.

    Raises:
        KafkaRejected: Kafka refused it.
        KdirError
    """
    from kdir.v1 import directory_pb2, entry_pb2

    until, topic = time.monotonic() + seconds, entry.topic
    request = directory_pb2.GetEntryRequest(path=entry.path, kind=entry_pb2.ENTRY_KIND_TOPIC)
    while topic.provision == entry_pb2.PROVISION_PENDING and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)
        answer = session.resolver.call(entry.path, "DirectoryService.GetEntry", request)
        topic = answer.entry.topic
    if topic.provision == entry_pb2.PROVISION_FAILED:
        raise KafkaRejected(f"{entry.path}: {topic.provision_message}")
    return topic


def clusters_at(
    session: Session, cluster: str, path: str, *, directory: bool = False
) -> list[Affected]:
    """Returns the cluster of a path, and the clusters mounted below it.

    Raises:
        KdirError: the owner of the path did not answer.
    """
    below = (
        Affected(one.cluster, one.mount, directory=True, is_below=True)
        for one in clusters_below(session, path)
    )
    return [Affected(cluster, path, directory), *below]


def wait_for_kafka(
    session: Session,
    aspect: str,
    affected: Iterable[Affected],
    is_ours: Callable[[policies_pb2.KafkaCall], bool],
    token: str,
    seconds: float,
) -> bool:
    """Waits until no call to Kafka is left of the change in any cluster, and returns True; after
    ``seconds``, reports the remaining calls (exit code 3) and returns False.

    Args:
        aspect: configs or acls.
        is_ours: returns whether a call belongs to the change.
        token: token of the change, which a cluster below must have received; empty = nothing was
            changed.

    Raises:
        KafkaRejected: in one cluster, Kafka refused all remaining calls; waiting does not change
            that.
    """
    from concurrent.futures import ThreadPoolExecutor

    from resolver.revision_token import Token

    until = time.monotonic() + seconds
    positions = Token.parse(token).positions

    def wait(one: Affected) -> str | KafkaRejected:
        left: str | KafkaRejected = "it was not asked"
        while True:
            started = time.monotonic()
            budget = max(0.5, min(session.timeout_seconds, until - started))
            try:
                left = _left(session, one, aspect, is_ours, positions, budget)
            except AboveCeiling as error:
                # There is no Kafka, or the config allows no changes in it. Otherwise another
                # cluster manages it, and waiting does not change that.
                is_nothing = bool(error.metadata.keys() & {"ceiling", "kafka"})
                return "" if is_nothing else f"not in Kafka: {one.cluster}: {error.message}"
            except KdirError as error:
                left = f"not known: {error.message}"
            now = time.monotonic()
            if not left or isinstance(left, KafkaRejected):
                return left
            if now >= until:
                return f"not in Kafka after {seconds:g} s: {one.cluster}: {left}"
            # The pause is as long as the request, so that a server reads Kafka at most half of the
            # time.
            time.sleep(min(max(_PAUSE_SECONDS, now - started), max(0.0, until - now)))

    every: Sequence[Affected] = list(affected)
    session.resolver  # noqa: B018 - created before several threads use it
    pool = ThreadPoolExecutor(min(_AT_ONCE, max(1, len(every))))
    try:
        found = list(pool.map(wait, every))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # ^C does not wait for Kafka
    rejected: list[KafkaRejected] = []
    for left in found:
        if isinstance(left, KafkaRejected):
            rejected.append(left)
        elif left:
            session.missing(left)
    for error in rejected[1:]:
        session.missing(f"not in Kafka: {error.message}")
    if rejected:
        raise rejected[0]
    return not any(found)


def _left(
    session: Session,
    one: Affected,
    aspect: str,
    is_ours: Callable[[policies_pb2.KafkaCall], bool],
    positions: Mapping[str, Position],
    seconds: float,
) -> str | KafkaRejected:
    """Returns the remaining calls of one cluster, as text for people; empty = none. Returns the
    error if Kafka refused all of them.

    Raises:
        KdirError
    """
    from kdir.v1 import policies_pb2

    if one.is_below and positions and not _has_received(session, one, positions, seconds):
        return "it has not received the change yet"
    request = policies_pb2.PlanArmingRequest(
        path=one.path, aspect=aspect, directory=one.directory, armed=True
    )
    try:
        plan: policies_pb2.PlanArmingResponse = session.resolver.call(
            one.path, "PolicyService.PlanArming", request, timeout_seconds=seconds
        )
    except Absent as error:
        return "" if one.is_below else error.message
    except KafkaRejected as error:
        # Kafka has no ACLs, or does not let kdir read them, so that none are applied.
        return KafkaRejected(f"{one.cluster}: {error.message}")
    calls = [call for call in plan.calls if is_ours(call)]
    names = list(dict.fromkeys(call.resource.removeprefix("topic ") for call in calls))
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    takeover = (
        ": needs kdir arm --takeover" if calls and all(call.takeover for call in calls) else ""
    )
    counted = units.plural(len(names), "topic" if aspect == "configs" else "resource")
    text = f"{counted} ({', '.join(names[:_NAMED])}{more}){takeover}" if calls else ""
    if calls and all(call.rejected for call in calls):
        return KafkaRejected(f"{one.cluster}: {text}: {calls[0].rejected}")
    return text


def _has_received(
    session: Session, one: Affected, positions: Mapping[str, Position], seconds: float
) -> bool:
    from kdir.v1 import policies_pb2

    answer: policies_pb2.GetEffectivePoliciesResponse = session.resolver.call(
        one.path,
        "PolicyService.GetEffectivePolicies",
        policies_pb2.GetEffectivePoliciesRequest(path=one.path, directory=True),
        timeout_seconds=seconds,
    )
    received = {ancestor.cluster_id: ancestor for ancestor in answer.ancestors}
    return all(
        cluster_id in received
        and (
            received[cluster_id].incarnation != position.incarnation
            or received[cluster_id].revision >= position.revision
        )
        for cluster_id, position in positions.items()
    )
