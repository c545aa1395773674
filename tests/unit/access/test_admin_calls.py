"""Operators' calls, through their handlers."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from kdir.v1 import access_pb2, admin_pb2, federation_pb2

from directory.api.rpc.call_context import Call
from directory.federation import inheritance
from directory.kafka.adoption import pinned_kafka
from directory.kafka.adoption.vanish_guard import StopReason
from directory.namespace.entry import Kind, Provision, Topic
from directory.namespace.keys import entry_key
from directory.store.base import Put
from directory.store.large_change_records import LargeAdoption
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import Cancelled, InvalidArgument
from resolver.path import Path
from resolver.revision_token import Token
from tests.unit.access.conftest import ADMIN, House, grants

Make = Callable[..., House]
KAFKA: dict[str, Any] = {"bootstrap": ["127.0.0.1:1"], "ceiling": ["create", "configs"]}


@pytest.fixture
def la(house: Make) -> House:
    return house(kafka=KAFKA)


def test_an_acknowledgement_that_is_asked_again_by_its_request_id_is_the_one_made(
    la: House,
) -> None:
    stop = StopReason("3 of 5 topics vanished from Kafka", 3)
    la.put(*pinned_kafka.stop(stop))
    request = admin_pb2.AcknowledgeRequest(stop_reason=stop.text, request_id="r1")
    first = la.ask(ADMIN, "Acknowledge", request)
    assert la.ask(ADMIN, "Acknowledge", request).token == first.token
    # It acknowledges no later stop, and another request has nothing to acknowledge.
    request.request_id = "r2"
    refused = la.refusal(ADMIN, "Acknowledge", request)
    assert isinstance(refused, InvalidArgument)
    assert "nothing is stopped" in refused.message
    request.request_id = "r" * 129
    assert "request_id: found 129" in la.refusal(ADMIN, "Acknowledge", request).message


@pytest.mark.parametrize("unarmed", [False, True])
def test_a_list_of_drift_ends_when_its_caller_has_gone(la: House, unarmed: bool) -> None:
    parent = la.cluster.replica.snapshot.root.entry_id
    encode = ProtoCodec().encode
    topics = {
        f"t{number}": Topic(
            entry_id=1_000 + number, physical_name=f"t{number}", provision=Provision.MISSING
        )
        for number in range(2_000)
    }
    la.put(*(Put(entry_key(parent, Kind.TOPIC, name), encode(one)) for name, one in topics.items()))
    request = admin_pb2.ListDriftRequest(unarmed=unarmed)
    checks = 0

    def is_active() -> bool:
        nonlocal checks
        checks += 1
        return checks <= most

    most = 1_000
    call = Call(inf, principal=ADMIN, is_active=is_active)
    answer = la.handlers["ListDrift"](request, call)
    assert len(answer.drifts) == len(topics)
    needed = checks
    assert needed > 3 * len(topics) / 256, "for reading, hiding and sending each"
    for most in range(1, needed):
        checks = 0
        with pytest.raises(Cancelled):
            la.handlers["ListDrift"](request, call)
        assert checks == most + 1


@pytest.mark.parametrize("mount", ["/la", "/eu/la"])
def test_a_large_change_that_began_at_another_mount_is_listed(la: House, mount: str) -> None:
    adoption = LargeAdoption(
        change_id="x", mount=Path.parse(mount), started_at_ms=1, done=1, left=5
    )
    la.put(adoption.to_put())
    la.ask(
        ADMIN,
        "AddGrants",
        access_pb2.AddGrantsRequest(
            path="/la",
            grants=[
                *grants("bob", "all", kind=access_pb2.RESOURCE_TYPE_CLUSTER),
                *grants("carol", "describe", kind=access_pb2.RESOURCE_TYPE_CLUSTER),
                *grants("carol", "describe"),
            ],
        ),
    )
    la.mkdir("/la/hidden")
    la.grant("carol", "-describe", "/la/hidden")

    def listed(who: str) -> list[str]:
        request = admin_pb2.GetStatusRequest()
        return [one.path for one in la.ask(who, "GetStatus", request).progress]

    assert listed(ADMIN) == [mount]
    assert listed("bob") == [mount], "one that may ALTER the cluster"
    # Where the path is now is not known: it may be hidden.
    assert listed("carol") == ([mount] if mount == "/la" else [])


def test_the_token_of_an_answer_is_of_what_it_wrote_though_the_replica_is_behind(
    house: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = house(kafka=KAFKA, parent=["127.0.0.1:1"])
    inherited = federation_pb2.Inherited(revision=1, incarnation="i")
    inherited.levels.add(path="/", grants=grants("bob", "read", host="*"))
    snapshot = child.cluster.replica.snapshot
    child.put(*inheritance.inherited_writes(snapshot, inherited, 1))
    stop = StopReason("3 of 5 topics vanished from Kafka", 3)
    child.put(*pinned_kafka.stop(stop))
    put_facts = child.cluster.writer.put_facts
    written = 0

    def unseen(*args: Any, **more: Any) -> int:
        """Returns a revision as if the replica gave up waiting for it."""
        nonlocal written
        written = put_facts(*args, **more) + 100
        return written

    monkeypatch.setattr(child.cluster.writer, "put_facts", unseen)
    for method, request in (
        ("Acknowledge", admin_pb2.AcknowledgeRequest(stop_reason=stop.text)),
        ("DetachParent", admin_pb2.DetachParentRequest(keep_inherited=True)),
        ("AttachParent", admin_pb2.AttachParentRequest()),
    ):
        token = Token.parse(child.ask(ADMIN, method, request).token)
        assert token.positions[child.cluster.cluster_id].revision == written, method
    # Where there is nothing to write, it is of what was read.
    token = Token.parse(child.ask(ADMIN, "AttachParent", admin_pb2.AttachParentRequest()).token)
    now = child.cluster.replica.snapshot.revision
    assert token.positions[child.cluster.cluster_id].revision == now
