"""A request that is sent again gets the numbers of its first answer, and nothing of what came to
its place since.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kdir.v1 import access_pb2, directory_pb2, entry_pb2

from directory.namespace.entry import Kind, Provision, Topic
from directory.namespace.keys import entry_key
from directory.namespace.snapshot import Snapshot
from directory.store.base import Put
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import Absent, StoreUnavailable
from tests.unit.access.conftest import ADMIN, House, grants, topic

Make = Callable[..., House]


KAFKA = {"bootstrap": ["127.0.0.1:1"], "ceiling": ["create", "delete"]}


def fill(la: House, path: str) -> None:
    """Makes a directory of three topics and two directories; bob sees one of each."""
    la.mkdir(f"{path}/vis")
    la.mkdir(f"{path}/hidd")
    for name in ("vis/t", "hidd/x", "hidt"):
        topic(la, f"{path}/{name}", topic_id=b"i" * 16)
    for hidden in ("hidd", "hidt"):
        la.grant("bob", "-describe", f"{path}/{hidden}")


@pytest.fixture
def make(house: Make) -> Make:
    def made(**settings: Any) -> House:
        la = house(**settings)
        la.grant("bob", "describe,alter,delete,create", "/la")
        fill(la, "/la/p")
        fill(la, "/la/q")
        return la

    return made


def numbers(answer: directory_pb2.DeleteEntryResponse) -> tuple[int, int, bool]:
    return answer.topic_count, answer.directory_count, answer.kafka_topics_deleted


def test_a_repeated_removal_gets_the_numbers_of_the_first(make: Make) -> None:
    la = make(kafka=KAFKA)
    for who, path, shown in (("bob", "/la/p", (1, 2, True)), (ADMIN, "/la/q", (3, 3, True))):
        request = directory_pb2.DeleteEntryRequest(path=path, recursive=True, request_id="once")
        for _ in range(2):
            assert numbers(la.ask(who, "DeleteEntry", request)) == shown


def test_a_repeated_removal_of_a_directory_beside_a_hidden_topic_is_answered(
    make: Make,
) -> None:
    la = make()
    la.mkdir("/la/p/both")
    topic(la, "/la/p/both")
    la.grant("bob", "-describe", "/la/p/both")  # the topic, which comes first
    request = directory_pb2.DeleteEntryRequest(path="/la/p/both", request_id="once")
    for _ in range(2):
        assert numbers(la.ask("bob", "DeleteEntry", request)) == (0, 1, False)
    snapshot = la.cluster.replica.snapshot
    assert snapshot.find_directory(("p", "both")) is None
    assert snapshot.topic_at(("p", "both")) is not None


@pytest.mark.parametrize(("who", "shown"), [("bob", 1), (ADMIN, 3)])
def test_repeated_grants_get_the_number_of_topics_of_the_first(
    make: Make, who: str, shown: int
) -> None:
    la = make()
    request = access_pb2.AddGrantsRequest(
        path="/la/p", grants=grants("eve", "read"), request_id="once"
    )
    assert la.ask(who, "AddGrants", request).topic_count == shown
    la.revoke("bob", "-describe", "/la/p/hidt")  # what is seen by now does not matter
    assert la.ask(who, "AddGrants", request).topic_count == shown
    la.ask(ADMIN, "DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/p", recursive=True))
    assert la.ask(who, "AddGrants", request).topic_count == shown


def test_topics_of_kafka_that_go_are_not_reported_where_all_of_them_are_hidden(make: Make) -> None:
    la = make(kafka=KAFKA)
    la.mkdir("/la/r")
    topic(la, "/la/r/hidden", topic_id=b"i" * 16)
    la.grant("bob", "-describe", "/la/r/hidden")
    request = directory_pb2.DeleteEntryRequest(path="/la/r", recursive=True, request_id="once")
    for _ in range(2):
        assert numbers(la.ask("bob", "DeleteEntry", request)) == (0, 1, False)


def test_a_repeated_creation_answers_with_no_topic_that_took_the_place_since(make: Make) -> None:
    la = make(kafka=KAFKA)
    parent = la.cluster.replica.snapshot.find_directory(("p", "vis"))
    assert parent is not None

    def put(entry: Topic) -> None:
        la.put(Put(entry_key(parent, Kind.TOPIC, "new"), ProtoCodec().encode(entry)))

    request = directory_pb2.CreateEntryRequest(
        path="/la/p/vis/new",
        entry=entry_pb2.Entry(topic={}),
        request_id="once",
    )
    made = la.ask("bob", "CreateEntry", request)
    request.wait_until_active = True
    own = la.cluster.replica.snapshot.topic(parent, "new")
    assert own is not None
    assert made.entry.entry_id == own.entry_id
    put(replace(own, provision=Provision.ACTIVE))
    again = la.ask("bob", "CreateEntry", request)
    assert again.entry.topic.provision == entry_pb2.PROVISION_ACTIVE
    other = replace(own, entry_id=own.entry_id + 1, physical_name="secret")
    put(replace(other, provision=Provision.ACTIVE))
    assert isinstance(refused := la.refusal("bob", "CreateEntry", request), Absent)
    assert "secret" not in f"{refused.message} {refused.metadata}"
    put(replace(other, provision=Provision.FAILED, provision_message="secret of Kafka"))
    assert isinstance(refused := la.refusal("bob", "CreateEntry", request), Absent)
    assert "secret" not in f"{refused.message} {refused.metadata}"


def test_a_topic_that_was_committed_is_answered_though_the_store_is_lost_since(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    la = make(kafka=KAFKA)
    request = directory_pb2.CreateEntryRequest(
        path="/la/p/vis/new", entry=entry_pb2.Entry(topic={}), wait_until_active=True
    )
    replica = la.cluster.replica
    wait_for = replica.wait_for

    def lost(revision: int, seconds: float) -> Snapshot:
        if revision > replica.snapshot.revision:
            raise StoreUnavailable("the store is away", revision=revision)
        return wait_for(revision, seconds)

    monkeypatch.setattr(replica, "wait_for", lost)
    made = la.ask("bob", "CreateEntry", request)
    assert made.entry.topic.provision == entry_pb2.PROVISION_PENDING
    assert la.outcome("bob", "/la/p/vis/new") == "resolution"
