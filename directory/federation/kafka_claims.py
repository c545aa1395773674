"""Decides which cluster of a federation manages a Kafka that several clusters are pinned to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kdir.v1 import federation_pb2

from directory.namespace.bounds import check_text

__all__ = ["check_kafka_claim", "manager_before", "why_unmanaged"]

_TEXT_BYTES: Final = 1_024


def manager_before(
    own: federation_pb2.KafkaClaim, others: Iterable[federation_pb2.KafkaClaim]
) -> federation_pb2.KafkaClaim | None:
    """Returns the claim that has precedence over a cluster's own; None = its own has precedence.
    The cluster that was pinned to the Kafka first has precedence; at equal times, that with the
    lower cluster id.
    """
    earlier = [
        one
        for one in others
        if one.kafka_cluster_id == own.kafka_cluster_id
        and one.cluster_id != own.cluster_id
        and _order(one) < _order(own)
    ]
    return min(earlier, key=_order, default=None)


def _order(claim: federation_pb2.KafkaClaim) -> tuple[int, str]:
    return claim.pinned_at_ms, claim.cluster_id


def why_unmanaged(manager: federation_pb2.KafkaClaim) -> str:
    """Returns why a cluster changes nothing in its Kafka, for people."""
    where = f" at {manager.mount}" if manager.mount else ""
    return (
        f"Kafka {manager.kafka_cluster_id} is managed by cluster {manager.cluster}{where} "
        f"({manager.cluster_id}), which was pinned to it first: nothing is changed in it from "
        f"here; give this cluster a Kafka of its own, or unmount one of the two"
    )


def check_kafka_claim(field: str, claim: federation_pb2.KafkaClaim) -> None:
    """Checks the texts of a cluster's Kafka claim.

    Raises:
        InvalidArgument, LimitExceeded: names the field.
    """
    for name in ("kafka_cluster_id", "cluster_id", "cluster", "mount"):
        check_text(f"{field}.{name}", getattr(claim, name), _TEXT_BYTES, "")
