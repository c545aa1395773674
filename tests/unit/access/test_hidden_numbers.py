"""Numbers, status and questions about rights are of what the caller sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from kdir.v1 import (
    access_pb2,
    admin_pb2,
    directory_pb2,
    entry_pb2,
    policies_pb2,
)

from directory.api import admin_service
from directory.kafka.adoption.pinned_kafka import NOT_KNOWN
from directory.kafka.arming.drift import Drift
from directory.namespace.entry import Directory, Kind, Provision
from directory.namespace.keys import BELOW, LEVEL, MOUNT_ROW, child_key, entry_key
from directory.store.base import Put
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import Absent, PermissionDenied, QuotaExceeded, VanishGuard
from resolver.path import Path as EntryPath
from tests.unit.access.conftest import ADMIN, House, topic

Make = Callable[..., House]
MANAGER = "Kafka K is managed by cluster c at /secret (kc-1), which was pinned to it first"
CLUSTER = access_pb2.RESOURCE_TYPE_CLUSTER


@pytest.fixture
def la(house: Make) -> House:
    """Returns two topics and a directory that bob sees, two topics and a directory that he does
    not.
    """
    made = house()
    made.mkdir("/la/p/hidd")
    for path, partitions in (("a", 3), ("t", 5), ("hidd/x", 7), ("hidb", 11)):
        topic(made, f"/la/p/{path}", partitions=partitions)
    request = directory_pb2.UpdateEntryRequest(
        path="/la/p",
        entry={"policies": {"max_topics": 4, "max_partitions": 100}},
        update_mask=FieldMask(paths=["policies.max_topics", "policies.max_partitions"]),
    )
    made.ask(ADMIN, "UpdateEntry", request)
    made.grant("bob", "describe", "/la")
    made.grant("bob", "describe", "/la", kind=CLUSTER)
    for hidden in ("/la/p/hidd", "/la/p/hidb"):
        made.grant("bob", "-describe", hidden)
    return made


# -- quotas ---


def uses(la: House, who: str) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for path in ("/la/p", "/la/p/a"):
        got = la.ask(who, "GetEntry", directory_pb2.GetEntryRequest(path=path))
        asked = policies_pb2.GetEffectivePoliciesRequest(path=path)
        values = la.ask(who, "GetEffectivePolicies", asked).values
        for one in (*got.quotas, *(value for value in values if value.HasField("used"))):
            found.setdefault(one.field, set()).add(one.used)
    return found


def test_how_much_of_a_quota_is_used_is_of_what_is_seen(la: House) -> None:
    assert uses(la, "bob") == {"max_topics": {2}, "max_partitions": {8}}
    assert uses(la, ADMIN) == {"max_topics": {4}, "max_partitions": {26}}


def test_a_systems_directory_counts_for_no_quota_seen_or_not(la: House) -> None:
    parent = la.cluster.replica.snapshot.find_directory(("p",))
    assert parent is not None
    made = ProtoCodec().encode(Directory(entry_id=4711))
    la.put(Put(entry_key(parent, Kind.DIRECTORY, "__s"), made))
    topic(la, "/la/p/__s/y", partitions=13)
    assert uses(la, "bob") == {"max_topics": {2}, "max_partitions": {8}}
    la.grant("bob", "-describe", "/la/p/__s")
    assert uses(la, "bob") == {"max_topics": {2}, "max_partitions": {8}}


def test_a_quota_that_is_exceeded_does_not_reveal_by_how_much(la: House) -> None:
    la.mkdir("/la/q")
    topic(la, "/la/q/m")
    la.grant("bob", "alter", "/la/q/m")
    la.grant("bob", "alter,create", "/la/p")
    request = directory_pb2.MoveEntryRequest(path="/la/q/m", new_path="/la/p/m")
    refused = la.refusal("bob", "MoveEntry", request)
    assert isinstance(refused, QuotaExceeded)
    assert "used" not in refused.metadata
    assert "has 4" not in refused.message
    assert la.refusal(ADMIN, "MoveEntry", request).metadata["used"] == "4"


def test_what_is_removed_is_counted_as_far_as_it_is_seen(la: House) -> None:
    la.grant("bob", "delete", "/la/p")
    request = directory_pb2.DeleteEntryRequest(path="/la/p", recursive=True)
    gone = la.ask("bob", "DeleteEntry", request)
    assert (gone.topic_count, gone.directory_count) == (2, 1)


def test_a_plan_that_exceeds_a_quota_does_not_reveal_by_how_much(la: House) -> None:
    la.grant("bob", "alter", "/la/p")
    request = directory_pb2.UpdateEntryRequest(
        path="/la/p",
        entry={"policies": {"max_topics": 1}},
        update_mask=FieldMask(paths=["policies.max_topics"]),
        validate_only=True,
    )
    (quota,) = la.ask("bob", "UpdateEntry", request).plan.quotas
    assert (quota.limit, quota.used) == (1, 2)
    (quota,) = la.ask(ADMIN, "UpdateEntry", request).plan.quotas
    assert (quota.limit, quota.used) == (1, 4)


# -- status and drift ---


def status(la: House, who: str) -> admin_pb2.GetStatusResponse:
    answer: admin_pb2.GetStatusResponse = la.ask(who, "GetStatus", admin_pb2.GetStatusRequest())
    return answer


def test_status_counts_what_is_seen(la: House) -> None:
    seen = status(la, "bob")
    assert (seen.topic_count, seen.directory_count) == (2, 1)
    every = status(la, ADMIN)
    assert (every.topic_count, every.directory_count) == (4, 2)


def test_status_names_no_large_change_that_is_hidden(
    la: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [admin_pb2.Progress(path=path) for path in ("/la/p/hidd", "/la/p/seen")]
    monkeypatch.setattr(admin_service, "progress_of", lambda *_: rows)
    assert [one.path for one in status(la, "bob").progress] == ["/la/p/seen"]
    assert len(status(la, ADMIN).progress) == 2


def test_status_names_no_record_that_is_hidden(la: House) -> None:
    parent = la.cluster.replica.snapshot.find_directory(("p", "hidd"))
    assert parent is not None
    la.put(Put(entry_key(parent, Kind.TOPIC, "spoiled"), b"\xff\xff"))
    seen = status(la, "bob")
    assert (seen.unreadable_value_count, list(seen.unreadable_values)) == (0, [])
    (named,) = status(la, ADMIN).unreadable_values
    assert "spoiled" in named
    la.grant("bob", "alter", "/la", kind=CLUSTER)  # may back it up
    assert len(status(la, "bob").unreadable_values) == 1


def mount(la: House, path: str, cluster_id: str) -> None:
    entry = entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id=cluster_id))
    la.ask(ADMIN, "CreateEntry", directory_pb2.CreateEntryRequest(path=path, entry=entry))


def test_status_names_no_record_of_a_mount_that_is_hidden(la: House) -> None:
    for path, cluster_id in (("/la/p/hidm", "kc-hidm"), ("/la/p/m", "kc-seen")):
        mount(la, path, cluster_id)
        la.put(Put(child_key(cluster_id), b"\xff"), Put(BELOW + cluster_id.encode(), b"\xff"))
        la.put(Put(MOUNT_ROW + path.encode(), b"\xff"))
    la.put(Put(child_key("kc-hid-stranger"), b"\xff"))
    la.grant("bob", "-describe", "/la/p/hidm")
    la.put(Put(LEVEL, b"\xff"))
    seen = status(la, "bob")
    assert seen.unreadable_value_count == len(seen.unreadable_values) == 4
    assert "hid" not in "".join(seen.unreadable_values)
    every = status(la, ADMIN)
    assert every.unreadable_value_count == len(every.unreadable_values) == 8


def test_drift_of_what_is_hidden_is_not_listed(la: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def row(path: str, kind: Kind = Kind.TOPIC) -> Drift:
        at = EntryPath.parse(path)
        return Drift(at, "n", "partitions", "1", "2", Provision.ACTIVE, "needs-approval", kind)

    rows = [
        row("/la/p/a"),
        row("/la/p/hidb"),
        row("/la/p/hidd/x"),
        row("/la/p/hidd", Kind.DIRECTORY),
    ]
    fake: Any = SimpleNamespace(drift=lambda _path, _check: rows, is_stopped=False)
    monkeypatch.setattr(admin_service.AdminService, "_reconciler", lambda *_: (la.cluster, fake))
    request = admin_pb2.ListDriftRequest()
    seen = la.ask("bob", "ListDrift", request)
    assert [one.path for one in seen.drifts] == ["/la/p/a"]
    assert seen.omitted_count == 0
    assert len(la.ask(ADMIN, "ListDrift", request).drifts) == 4


# -- questions about rights ---


def own(la: House, path: str, **fields: Any) -> Any:
    request = access_pb2.CheckAccessRequest(
        principal="User:bob",
        path=path,
        **{"operation": access_pb2.OPERATION_DESCRIBE, "explain": True, **fields},
    )
    answer = la.ask("bob", "CheckAccess", request)
    answer.token = ""
    return str(answer).replace(path.split("/")[3], "NAME")


@pytest.mark.parametrize("hidden", ["hidd", "hidb"])
def test_a_question_of_ones_own_rights_reveals_nothing_that_is_hidden(
    la: House, hidden: str
) -> None:
    for kind, operation in product(range(5), ("DESCRIBE", "READ", "ALTER")):
        asked = {"kind": kind, "operation": f"OPERATION_{operation}"}
        assert own(la, f"/la/p/{hidden}", **asked) == own(la, "/la/p/zzqz", **asked)
        assert own(la, f"/la/p/{hidden}/q", **asked) == own(la, "/la/p/zzqz/q", **asked)


def test_a_question_of_ones_own_rights_reveals_no_hidden_mount(la: House) -> None:
    entry = entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id="kc-hidden"))
    la.ask(ADMIN, "CreateEntry", directory_pb2.CreateEntryRequest(path="/la/p/hidm", entry=entry))
    la.grant("bob", "-describe", "/la/p/hidm")
    assert own(la, "/la/p/hidm/q") == own(la, "/la/p/zzqz/q")
    assert own(la, "/la/p/hidm") == own(la, "/la/p/zzqz")


# -- mounts ---


def test_unmounting_takes_the_right_on_the_cluster_as_mounting_does(la: House) -> None:
    entry = entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id="kc-child"))
    la.ask(ADMIN, "CreateEntry", directory_pb2.CreateEntryRequest(path="/la/p/m", entry=entry))
    la.grant("bob", "delete", "/la/p")
    request = directory_pb2.DeleteEntryRequest(path="/la/p/m")
    refused = la.refusal("bob", "DeleteEntry", request)
    assert isinstance(refused, PermissionDenied)
    assert "unmounting a cluster needs ALTER on cluster la" in refused.message
    la.grant("bob", "alter", "/la", kind=CLUSTER)
    la.ask("bob", "DeleteEntry", request)


# -- why Kafka is left alone ---


def test_why_kafka_is_stopped_names_no_topic_to_callers_that_may_not_see_it(
    house: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    la = house(kafka={"bootstrap": ["127.0.0.1:1"], "ceiling": ["configs"]})
    la.mkdir("/la/p")
    la.grant("bob", "describe", "/la", kind=CLUSTER)
    la.grant("bob", "alter,alter-configs", "/la/p")
    reconciler = la.cluster.reconciler
    assert reconciler is not None
    arguments = "1 of 1 topics vanished from Kafka: p.secret; nothing is done"

    def stopped(*_: object, **__: object) -> None:
        raise VanishGuard(arguments)

    for name in ("plan", "arm"):
        monkeypatch.setattr(type(reconciler.arming_service), name, stopped)
    real = reconciler.status()
    monkeypatch.setattr(type(reconciler), "status", lambda _: replace(real, stop_reason=arguments))
    plan = policies_pb2.PlanArmingRequest(path="/la/p", aspect="configs")
    arm = policies_pb2.ArmRequest(path="/la/p", aspect="configs", plan_hash="x")
    for who, is_received in (("bob", False), (ADMIN, True)):
        for method, request in (("PlanArming", plan), ("Arm", arm)):
            refused = la.refusal(who, method, request)
            assert isinstance(refused, VanishGuard)
            assert ("p.secret" in refused.message) == is_received
        assert ("p.secret" in status(la, who).kafka.stop_reason) == is_received
        assert status(la, who).kafka.stop_reason


@pytest.mark.parametrize("unmanaged", [MANAGER, NOT_KNOWN, ""])
def test_status_names_no_topic_and_no_mount_to_callers_that_may_not_see_it(
    house: Make, monkeypatch: pytest.MonkeyPatch, unmanaged: str
) -> None:
    la = house(kafka={"bootstrap": ["127.0.0.1:1"], "ceiling": ["configs"]})
    la.grant("bob", "describe", "/la", kind=CLUSTER)
    reconciler = la.cluster.reconciler
    assert reconciler is not None
    note = "configs of p.secret and 1 other topic cannot be read: not authorized"
    known = replace(reconciler.status(), unmanaged=unmanaged)
    real = replace(known, message=note, message_names_topics=True)
    monkeypatch.setattr(type(reconciler), "status", lambda _: real)
    assert (status(la, ADMIN).kafka.message, status(la, ADMIN).kafka.unmanaged) == (note, unmanaged)
    shown = status(la, "bob").kafka
    assert "secret" not in shown.message + shown.unmanaged
    assert "cannot be read" in shown.message
    assert bool(shown.unmanaged) == bool(unmanaged)
    assert (shown.unmanaged == NOT_KNOWN) == (unmanaged == NOT_KNOWN)
    real = replace(known, message="since then: no broker answers")
    assert status(la, "bob").kafka.message == real.message


def test_effective_policies_of_a_directory_are_not_those_of_the_topic_of_its_name(
    la: House,
) -> None:
    request = policies_pb2.GetEffectivePoliciesRequest(path="/la/p/t", directory=True)
    refused = la.refusal("bob", "GetEffectivePolicies", request)
    assert isinstance(refused, Absent)
    assert refused.message == "/la/p/t is a topic, not a directory"
    la.mkdir("/la/p/t")
    assert la.ask("bob", "GetEffectivePolicies", request)
