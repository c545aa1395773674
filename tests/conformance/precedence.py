"""Which level's word holds, by Pulsar's rows: broker, namespace, topic; and with more in between.

What a policy is about does not matter to which of its values holds, so each row is run on a field
of its own right and on a key of a map, and by three trees: as Pulsar has it, with a directory
between namespace and topic, and with a mount there.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator

from directory.namespace.command import CreateDirectory, CreateTopic, UpdateEntry
from directory.namespace.effective_policies import PolicyLevel, effective, levels_of
from directory.namespace.entry import Policies
from tests.conformance.cases import Row, assert_same
from tests.support.trees import Cluster, path

__all__ = ["check_precedence"]

_FIELDS = ("owner", "tags.policy")
_KEEPS = re.compile(r"retention_keeps_topic_(\d+)min_idle")


def check_precedence(row: Row) -> None:
    """Holds kdir to one row of ``policy_precedence``, in every tree and order of writes."""
    for field, order in itertools.product(_FIELDS, (False, True)):
        for effective_value in _trees(row, field, topic_first=order):
            assert_same(_applied(row, effective_value), row["applied"])


def _trees(row: Row, field: str, *, topic_first: bool) -> Iterator[str | None]:
    """Yields the effective value at the topic: as Pulsar has it, a directory between, a mount
    between.
    """
    broker = None if row["broker"] == "BROKER_DEFAULT" else row["broker"]
    for between in ("", "/between"):
        cluster = Cluster()
        where = f"/la/tenant/ns{between}/t"
        cluster.do(CreateDirectory(path=path(where).parent, make_parents=True))
        cluster.do(CreateTopic(path=path(where)))
        arguments = [("/la", broker), ("/la/tenant/ns", row["namespace"]), (where, row["topic"])]
        for place, value in reversed(arguments) if topic_first else arguments:
            _say(cluster, place, field, value)
        yield _read(cluster, where, field)
    cluster = Cluster("/la/tenant/ns/child")
    where = "/la/tenant/ns/child/t"
    above = tuple(
        PolicyLevel(place, _policies(field, value))
        for place, value in (("/la", broker), ("/la/tenant/ns", row["namespace"]))
    )
    cluster.do(CreateTopic(path=path(where)), above=above)
    _say(cluster, where, field, row["topic"])
    yield _read(cluster, where, field, above)


def _say(cluster: Cluster, place: str, field: str, value: object) -> None:
    """Sets it, or sets something and takes it away again."""
    name = f"policies.{field}"
    text = json.dumps("something else" if value is None else value)
    cluster.do(UpdateEntry(path=path(place), changes={name: text}))
    if value is None:
        cluster.do(UpdateEntry(path=path(place), changes={name: None}))


def _policies(field: str, value: object) -> Policies:
    if value is None:
        return Policies()
    text = json.dumps(value)
    return Policies(owner=text) if field == "owner" else Policies(tags={"policy": text})


def _read(
    cluster: Cluster, where: str, field: str, above: tuple[PolicyLevel, ...] = ()
) -> str | None:
    topic = cluster.topic(where)
    parent = cluster.snapshot.find_directory(path(where).below(cluster.mount)[:-1])
    assert parent is not None
    levels = [level.policies for level in above] + levels_of(cluster.snapshot, parent)
    found = effective([*levels, topic.policies])
    return found.owner if field == "owner" else found.tags.get("policy")


def _applied(row: Row, text: str | None) -> object:
    """Returns the value in the row's own words."""
    if text is None:
        return row["broker"]
    value = json.loads(text)
    if keeps := _KEEPS.fullmatch(row["policy"]):
        return value < 0 or value > int(keeps[1])  # a negative retention has no end
    # Zero is a value, not "unset": to Pulsar it says that there is no limit.
    return "UNLIMITED" if row["applied"] == "UNLIMITED" and value == 0 else value
