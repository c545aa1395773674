"""Rows of drift as messages of the contract, and why each is so; refuses to ask Kafka."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kdir.v1 import admin_pb2

from directory.kafka.applying.desired_configs import DesiredConfigs
from directory.kafka.assembly import drift_to_proto
from directory.kafka.drift import NOT_ARMED, Drift, drift_of, topic_issues
from directory.kafka.recorded_topics import recorded_at
from directory.namespace.entry import Provision
from directory.namespace.snapshot import Snapshot
from directory.namespace.traversal import traverse
from resolver.path import Path

__all__ = ["drifts_to_proto", "unarmed_at"]

_ANSWER_BYTES: Final = 3 * 1024 * 1024
"""Any client takes so much."""


def unarmed_at(snapshot: Snapshot, mount: Path, path: Path) -> list[Drift]:
    """Returns what is inherited by the topics at and below a path, is not in Kafka as it was seen
    last, and will not be: nobody armed it there.
    """
    armed, everywhere = DesiredConfigs(snapshot), DesiredConfigs(snapshot, everywhere=True)
    found = []
    for one in recorded_at(snapshot, mount, path):
        if one.desired_config is not None or one.topic.provision is not Provision.ACTIVE:
            continue
        parent_id = traverse(snapshot, one.path.below(mount)[:-1]).node.entry_id
        desired_config = everywhere.for_topic(parent_id, one.topic)
        if desired_config is None or armed.for_topic(parent_id, one.topic) is not None:
            continue
        own = drift_of(one)
        found += [
            row for row in drift_of(replace(one, desired_config=desired_config)) if row not in own
        ]
    return found


def drifts_to_proto(
    snapshot: Snapshot, mount: Path, drifts: Sequence[Drift], unarmed: Collection[Drift] = ()
) -> admin_pb2.ListDriftResponse:
    """Returns the rows of an answer, as many as one message holds."""
    response = admin_pb2.ListDriftResponse()
    unarmed = frozenset(unarmed)
    rows = sorted({*drifts, *unarmed}, key=lambda row: (row.path, row.field))
    room, path = _ANSWER_BYTES, Path(())
    known: Mapping[str, str] = {}
    for row in rows:
        if row.path != path and not row.state:
            path, known = row.path, _known(snapshot, mount, row.path)
        one = drift_to_proto(row)
        key = row.field.removeprefix("config[").removesuffix("]")
        one.kafka_state = row.state or known.get(key, "")
        if row in unarmed:
            one.kafka_state = NOT_ARMED
        room -= one.ByteSize() + 8
        if room < 0:
            break
        response.drifts.append(one)
    response.omitted_count = len(rows) - len(response.drifts)
    return response


def _known(snapshot: Snapshot, mount: Path, path: Path) -> Mapping[str, str]:
    relative = path.below(mount)
    node = traverse(snapshot, relative[:-1]).node
    place = node.entry_id, relative[-1]
    topic = snapshot.topic(*place)
    return {} if topic is None else topic_issues(snapshot, mount, place, topic)
