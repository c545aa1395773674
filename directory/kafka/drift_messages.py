"""Rows of drift as messages of the contract, and why each is so; refuses to compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kdir.v1 import admin_pb2

from directory.kafka.assembly import drift_to_proto
from directory.kafka.attended import attended_of
from directory.kafka.drift import Drift
from directory.namespace.ground import follow
from directory.namespace.snapshot import Snapshot
from resolver.path import Path

__all__ = ["drifts_to_proto"]

_ANSWER_BYTES: Final = 3 * 1024 * 1024
"""Any client takes so much."""


def drifts_to_proto(
    snapshot: Snapshot, mount: Path, rows: Sequence[Drift]
) -> admin_pb2.ListDriftResponse:
    """The rows of an answer, as many as one message holds."""
    response = admin_pb2.ListDriftResponse()
    room, path = _ANSWER_BYTES, Path(())
    known: Mapping[str, str] = {}
    for row in rows:
        if row.path != path:
            path, known = row.path, _known(snapshot, mount, row.path)
        one = drift_to_proto(row)
        one.kafka_state = known.get(row.field.removeprefix("config[").removesuffix("]"), "")
        room -= one.ByteSize() + 8
        if room < 0:
            break
        response.drifts.append(one)
    response.omitted_count = len(rows) - len(response.drifts)
    return response


def _known(snapshot: Snapshot, mount: Path, path: Path) -> Mapping[str, str]:
    relative = path.below(mount)
    node = follow(snapshot, relative[:-1]).node
    place = node.entry_id, relative[-1]
    topic = snapshot.topic(*place)
    return {} if topic is None else attended_of(snapshot, mount, place, topic)
