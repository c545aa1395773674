"""The right is asked of the entry that is meant, on the tree that is committed on."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kdir.v1 import access_pb2, admin_pb2, directory_pb2, entry_pb2, policies_pb2

from directory.api import entry_writes
from directory.api.access_control import CallerRights
from directory.api.entry_writes import authorize_command
from directory.api.rpc.call_context import Call
from directory.namespace.command import Command, DeleteEntry
from directory.namespace.protected_topics import is_protected
from directory.namespace.snapshot import Snapshot
from directory.server.cluster import Cluster
from directory.store.base import Guard
from directory.store.replica import ReplicaState
from resolver.errors import AlreadyExists, KafkaUnavailable, NotReady, PermissionDenied, ReadOnly
from resolver.path import Path
from tests.unit.access.conftest import ADMIN, House, grants, topic

STORES = ("sqlite", "etcd")

Make = Callable[..., House]


@pytest.fixture
def la(house: Make) -> House:
    made = house()
    made.mkdir("/la/work/deep/hidden")
    topic(made, "/la/work/deep/t")
    made.mkdir("/la/other")
    return made


def creating(path: str, **kind: Any) -> directory_pb2.CreateEntryRequest:
    return directory_pb2.CreateEntryRequest(path=path, entry=entry_pb2.Entry(**kind))


def test_mkdir_p_does_not_answer_with_what_is_hidden(la: House) -> None:
    la.grant("bob", "create,describe", "/la/work")
    la.grant("bob", "-describe", "/la/work/deep/hidden")
    made = creating("/la/work/deep/hidden", directory=entry_pb2.Directory())
    plain = la.refusal("bob", "CreateEntry", made)
    made.make_parents = True
    refused = la.refusal("bob", "CreateEntry", made)
    assert isinstance(refused, AlreadyExists)
    assert str(refused) == str(plain)
    made.path = "/la/work/deep"
    assert la.ask("bob", "CreateEntry", made).entry.path == "/la/work/deep"


def test_a_mount_takes_alter_on_the_cluster(la: House) -> None:
    la.grant("bob", "all", "/la/work")
    child = f"kc-{uuid.uuid4()}"
    mount = entry_pb2.Mount(cluster_id=child, cluster="x", endpoints=["10.0.0.1:9000"])
    asked = creating("/la/work/x", mount=mount)
    refused = la.refusal("bob", "CreateEntry", asked)
    assert isinstance(refused, PermissionDenied)
    assert "mounting a cluster needs ALTER on cluster la" in str(refused)
    la.ask(ADMIN, "CreateEntry", asked)
    update = directory_pb2.UpdateEntryRequest(
        path="/la/work/x",
        kind=entry_pb2.ENTRY_KIND_MOUNT,
        entry=entry_pb2.Entry(mount=entry_pb2.Mount(endpoints=["10.0.0.2:9000"])),
    )
    update.update_mask.paths.append("mount.endpoints")
    assert isinstance(la.refusal("bob", "UpdateEntry", update), PermissionDenied)
    move = directory_pb2.MoveEntryRequest(path="/la/work/x", new_path="/la/work/y")
    assert isinstance(la.refusal("bob", "MoveEntry", move), PermissionDenied)
    la.grant("bob", "alter", "/la", kind=access_pb2.RESOURCE_TYPE_CLUSTER)
    la.ask("bob", "UpdateEntry", update)


def test_grants_of_what_is_no_entry_take_alter_on_the_cluster(la: House) -> None:
    la.grant("bob", "alter", "/la")
    kinds = access_pb2.RESOURCE_TYPE_GROUP, access_pb2.RESOURCE_TYPE_TRANSACTIONAL_ID
    desired_set = [grants("eve", "describe", kind=kind, name="*") for kind in kinds]
    desired_set.append(grants("bob", "alter", kind=access_pb2.RESOURCE_TYPE_CLUSTER))
    for desired in desired_set:
        request = access_pb2.AddGrantsRequest(path="/la", grants=desired)
        refused = la.refusal("bob", "AddGrants", request)
        assert isinstance(refused, PermissionDenied)
        assert "needs ALTER on cluster la" in str(refused)
    la.grant("bob", "alter", "/la", kind=access_pb2.RESOURCE_TYPE_CLUSTER)
    for desired in desired_set:
        la.ask("bob", "AddGrants", access_pb2.AddGrantsRequest(path="/la", grants=desired))


def closes(la: House) -> None:
    request = directory_pb2.UpdateEntryRequest(
        path="/la/work/deep/inner",
        entry=entry_pb2.Entry(directory=entry_pb2.Directory(closed=True)),
    )
    request.update_mask.paths.append("directory.closed")
    la.ask(ADMIN, "UpdateEntry", request)


def moves_in(la: House) -> None:
    la.ask(
        ADMIN,
        "MoveEntry",
        directory_pb2.MoveEntryRequest(path="/la/other", new_path="/la/work/deep/other"),
    )


def makes_closed(la: House) -> None:
    la.mkdir("/la/work/deep/kept", closed=True)


@pytest.mark.parametrize("meanwhile", [closes, moves_in, makes_closed])
def test_a_removal_is_decided_on_the_rights_that_are_there_when_it_is_committed(
    house: Make, meanwhile: Callable[[House], None]
) -> None:
    la = house(access="open")
    la.mkdir("/la/work/deep/inner")
    la.mkdir("/la/other")
    topic(la, "/la/work/deep/t")
    la.grant("bob", "-delete", "/la/other")
    command = DeleteEntry(path=Path.parse("/la/work/deep"), recursive=True)
    rights = authorize_command(
        la.router.access_control, la.cluster, command, Call(1e9, principal="User:bob")
    )
    asked: list[int] = []

    def authorize(snapshot: Snapshot) -> tuple[Guard, ...]:
        guards = rights(snapshot)
        asked.append(snapshot.revision)
        if len(asked) == 1:
            meanwhile(la)  # between the decision and its commit
        return guards

    with pytest.raises(PermissionDenied):
        la.cluster.writer.commit_command(command, principal="User:bob", authorize=authorize)
    assert la.outcome(ADMIN, "/la/work/deep/t") == "resolution"


def test_rm_r_takes_no_topic_that_is_read_only(la: House) -> None:
    request = directory_pb2.UpdateEntryRequest(
        path="/la/work/deep/t",
        entry=entry_pb2.Entry(policies=policies_pb2.Policies(read_only=True)),
    )
    request.update_mask.paths.append("policies.read_only")
    la.ask(ADMIN, "UpdateEntry", request)
    for path in ("/la/work/deep", "/la/work"):
        remove = directory_pb2.DeleteEntryRequest(path=path, recursive=True)
        refused = la.refusal(ADMIN, "DeleteEntry", remove)
        assert isinstance(refused, ReadOnly)
        assert "/la/work/deep/t is read-only" in str(refused)
    la.ask(
        ADMIN, "MoveEntry", directory_pb2.MoveEntryRequest(path="/la/other", new_path="/la/work/o")
    )
    request.entry.policies.read_only = False
    la.ask(ADMIN, "UpdateEntry", request)
    la.ask(ADMIN, "DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/work", recursive=True))


def test_only_status_is_answered_before_anything_is_loaded(house: Make) -> None:
    la = house(access="open")
    for first_tree in ("_snapshot", "_reported"):
        setattr(la.cluster.replica, first_tree, None)
    assert la.cluster.replica.state is ReplicaState.LOADING
    asked = {"Backup": admin_pb2.BackupRequest(), "Verify": admin_pb2.VerifyRequest()}
    for method, request in asked.items():
        with pytest.raises(NotReady):
            next(la.ask("bob", method, request))
    la.ask("bob", "GetStatus", admin_pb2.GetStatusRequest())


def test_a_repeated_answer_counts_nothing_that_is_hidden_by_now(la: House) -> None:
    la.grant("bob", "alter", "/la/work")
    la.grant("bob", "-describe", "/la/work/deep/t")
    request = access_pb2.AddGrantsRequest(
        path="/la/work", grants=grants("eve", "read"), request_id="once"
    )
    assert la.ask("bob", "AddGrants", request).topic_count == 0
    la.grant("bob", "describe,-alter", "/la/work")
    again = la.ask("bob", "AddGrants", request)
    assert (again.topic_count, list(again.grants), list(again.added)) == (0, [], [])


def test_what_kafka_and_kdir_have_for_themselves() -> None:
    for name in ("__consumer_offsets", "__transaction_state", "__change_events"):
        assert is_protected(name)
        assert is_protected(name.replace("_", "."))
    for name in ("__mine", "_schemas", "consumer_offsets", "__consumer_offsets.x"):
        assert not is_protected(name)


def test_names_in_kafka_follow_the_path_or_a_rule_of_an_operator(house: Make) -> None:
    rules = [{"match": "legacy-*", "split_on": "-", "into": "work", "strip_prefix": "legacy-"}]
    kafka = {"bootstrap": ["127.0.0.1:1"], "ceiling": ["create"], "mapping_rules": rules}
    la = house(kafka=kafka)
    la.mkdir("/la/work/" + "payments-" * 20)
    la.grant("bob", "create,describe", "/la/work")

    def named(path: str, name: str) -> directory_pb2.CreateEntryRequest:
        return creating(path, topic=entry_pb2.Topic(physical_name=name))

    la.ask("bob", "CreateEntry", named("/la/work/a", "work.a"))
    la.ask("bob", "CreateEntry", named("/la/work/b", ""))
    la.ask("bob", "CreateEntry", named("/la/work/c", "legacy-c"))
    outside = [
        named("/la/work/d", "payments.d"),
        named("/la/work/d", "work.e"),
        named("/la/work/d", "legacy-deep-d"),
        # Too long for a name: what is left of it begins as payments- does.
        named("/la/work/" + "payments-" * 20 + "/" + "x" * 100, ""),
    ]
    for request in outside:
        refused = la.refusal("bob", "CreateEntry", request)
        assert isinstance(refused, PermissionDenied)
        assert "needs ALTER on cluster la" in str(refused)
    la.grant("bob", "alter", "/la", kind=access_pb2.RESOURCE_TYPE_CLUSTER)
    for number, request in enumerate(outside):
        request.path += str(number)
        la.ask("bob", "CreateEntry", request)


def test_a_write_asks_for_its_rights_once(house: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    la = house(kafka={"bootstrap": ["127.0.0.1:1"], "ceiling": ["create"]})
    la.mkdir("/la/work")
    asked: list[Command] = []
    check = entry_writes._check

    def counted(cluster: Cluster, view: CallerRights, command: Command) -> None:
        asked.append(command)
        check(cluster, view, command)

    monkeypatch.setattr(entry_writes, "_check", counted)
    mount = entry_pb2.Mount(cluster_id=f"kc-{uuid.uuid4()}", cluster="x", endpoints=["10.0.0.1:1"])
    for request in (
        creating("/la/work/t", topic=entry_pb2.Topic()),
        creating("/la/work/d", directory=entry_pb2.Directory()),
        creating("/la/work/m", mount=mount),
    ):
        la.ask(ADMIN, "CreateEntry", request)
        assert [one.path for one in asked] == [Path.parse(request.path)]  # type: ignore[union-attr]
        asked.clear()


def test_a_topic_to_adopt_is_looked_up_for_those_only_who_may(house: Make) -> None:
    la = house(kafka={"bootstrap": ["127.0.0.1:1"], "ceiling": ["create"]})
    la.mkdir("/la/work")
    la.grant("bob", "all", "/la/work")
    request = creating("/la/work/t", topic=entry_pb2.Topic())
    request.adopt_existing = True
    refused = la.refusal("bob", "CreateEntry", request)
    assert isinstance(refused, PermissionDenied)
    assert isinstance(la.refusal(ADMIN, "CreateEntry", request), KafkaUnavailable)
