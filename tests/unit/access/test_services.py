"""Every call is checked; what may not be described is not there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from kdir.v1 import (
    access_pb2,
    admin_pb2,
    directory_pb2,
    entry_pb2,
    federation_pb2,
    policies_pb2,
    resolve_pb2,
    scan_pb2,
    watch_pb2,
)

from directory.api import directory_service, watch_service
from directory.api.admin_service import AdminService
from directory.change_log.log_state import (
    ROLE,
    is_resync_confirmed,
    published_revision,
    publisher_of,
    skipped_commits,
)
from directory.federation import inheritance, parent_state
from directory.federation.federation_state import unix_ms
from directory.federation.inheritance import removed_grants_write
from directory.maintenance.event_index import EventIndex, WaitingRows
from directory.namespace.keys import (
    CHANGE_LOG,
    CHANGE_LOG_RESYNC,
    CHANGE_LOG_SKIP,
    INHERITED,
    member_key,
    role_key,
)
from directory.namespace.snapshot import Snapshot
from directory.server.cluster import Cluster
from directory.server.feature_levels import LEVELS
from directory.store.base import Put, Transaction
from directory.store.replica import Replica
from directory.wire.grant_messages import grant_from_proto, grant_to_proto, grants_from_proto
from resolver.errors import (
    Absent,
    InvalidArgument,
    InvalidNamespace,
    KdirError,
    NotReady,
    PermissionDenied,
    Unreachable,
)
from resolver.path import Path
from tests.support.federation import eventually
from tests.unit.access.conftest import ADMIN, House, grants, topic

STORES = ("sqlite", "etcd")

Make = Callable[..., House]


@pytest.fixture
def la(house: Make) -> House:
    made = house()
    made.mkdir("/la/open/deep")
    made.mkdir("/la/hidden/deep")
    topic(made, "/la/open/t")
    topic(made, "/la/hidden/t")
    made.grant("bob", "read", "/la/open")
    return made


def first(answer: object) -> None:
    """Streams begin when they are read."""
    if isinstance(answer, Iterator):
        next(answer)


def test_what_is_granted_resolves_and_all_else_is_absent(la: House) -> None:
    assert la.outcome("bob", "/la/open/t") == "resolution"
    assert la.outcome("bob", "/la/open") == "resolution"
    for path in ("/la/hidden/t", "/la/hidden", "/la", "/la/nothing"):
        assert la.outcome("bob", path) == "absent"
    assert la.outcome("", "/la/open/t") == "absent"
    assert la.outcome(ADMIN, "/la/hidden/t") == "resolution"


def test_A12_what_is_hidden_is_answered_like_what_is_not_there(la: House) -> None:
    la.grant("bob", "-all", "/la/open/deep")
    topic(la, "/la/open/secret")
    la.grant("bob", "-all", "/la/open/secret")

    def reported(path: str) -> tuple[bytes, list[str]]:
        answer = la.ask("bob", "Resolve", resolve_pb2.ResolveRequest(path=path))
        asked = [
            ("GetEntry", directory_pb2.GetEntryRequest(path=path)),
            ("ListEntries", directory_pb2.ListEntriesRequest(path=path)),
            ("DeleteEntry", directory_pb2.DeleteEntryRequest(path=path, recursive=True)),
            ("MoveEntry", directory_pb2.MoveEntryRequest(path=path, new_path="/la/open/new")),
            ("AddGrants", access_pb2.AddGrantsRequest(path=path, grants=grants("bob", "all"))),
            ("ListGrants", access_pb2.ListGrantsRequest(path=path)),
            ("GetEffectivePolicies", policies_pb2.GetEffectivePoliciesRequest(path=path)),
        ]
        arguments = [repr(la.refusal("bob", *one)) for one in asked]
        arguments += [repr(la.refusal("bob", *one).metadata) for one in asked]
        name = path.rsplit("/", 1)[1]
        return (
            answer.outcome.SerializeToString(),
            [needed.replace(name, "NAME") for needed in arguments],
        )

    for hidden in ("/la/open/deep", "/la/open/secret"):
        assert reported(hidden) == reported("/la/open/nobody")


def test_A12_listings_leave_out_what_may_not_be_described(la: House) -> None:
    la.grant("bob", "-describe", "/la/open/deep")
    assert la.names("bob", "/la/open") == ["/la/open/t"]
    assert la.names(ADMIN, "/la/open") == ["/la/open/deep", "/la/open/t"]
    assert isinstance(
        la.refusal("bob", "ListEntries", directory_pb2.ListEntriesRequest(path="/la")), Absent
    )
    la.grant("carol", "describe", "/la")
    la.grant("carol", "-all", "/la/hidden")
    listed = la.names("carol", "/la", recursive=True)
    assert listed == ["/la/open", "/la/open/deep", "/la/open/t"]


def test_batches_scans_and_the_way_back_leave_it_out_too(la: House) -> None:
    paths = ["/la/open/t", "/la/hidden/t", "/la/nothing", "not a path"]
    asked = resolve_pb2.BatchResolveRequest(paths=paths)
    kinds = [one.WhichOneof("kind") for one in la.ask("bob", "BatchResolve", asked).outcomes]
    assert kinds == ["resolution", "absent", "absent", "error"]
    kinds = [one.WhichOneof("kind") for one in la.ask(ADMIN, "BatchResolve", asked).outcomes]
    assert kinds == ["resolution", "resolution", "absent", "error"]

    scanned = la.ask("bob", "ScanTopics", scan_pb2.ScanTopicsRequest())
    assert [one.path for one in scanned.entries] == ["/la/open/t"]
    assert len(la.ask(ADMIN, "ScanTopics", scan_pb2.ScanTopicsRequest()).entries) == 2
    assert isinstance(la.refusal("nobody", "ScanTopics", scan_pb2.ScanTopicsRequest()), Absent)

    def located(name: str) -> KdirError:
        return la.refusal("bob", "Locate", resolve_pb2.LocateRequest(physical_name=name))

    assert la.ask("bob", "Locate", resolve_pb2.LocateRequest(physical_name="open.t"))
    hidden, missing = located("hidden.t"), located("nothing.t")
    assert str(hidden).replace("hidden", "x") == str(missing).replace("nothing", "x")


def test_S4_a_physical_name_that_a_stale_copy_lacks_is_absent_with_the_age_of_the_copy(
    la: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = resolve_pb2.LocateRequest(cluster="la", physical_name="nothing.t")
    assert "copy" not in la.refusal(ADMIN, "Locate", request).message
    la.cluster.replica.stale_after_seconds = -1.0
    monkeypatch.setattr(Replica, "age_seconds", 61.0)
    refusal = la.refusal(ADMIN, "Locate", request)
    assert refusal.message == (
        "cluster la has no topic with the physical name 'nothing.t' (answered from a copy 61 s "
        "old: the store of la is away)"
    )
    assert refusal.metadata["age_seconds"] == "61.0"
    assert refusal.metadata["cluster_id"] == la.cluster.cluster_id


def test_a_sealed_store_is_not_reported_as_away_and_its_history_is_read(house: Make) -> None:
    first = house()
    first.mkdir("/la/open")
    first.grant("bob", "describe", "/la")  # before the other server loads: only the store has it
    la = house()
    first.cluster.store.seal("being migrated to etcd://x")
    assert eventually(lambda: la.cluster.replica.sealed)
    answer = la.ask(ADMIN, "Resolve", resolve_pb2.ResolveRequest(path="/la/open"))
    assert (answer.authority.stale, answer.authority.sealed) == (True, True)
    request = resolve_pb2.LocateRequest(cluster="la", physical_name="nothing.t")
    assert "the store of la is sealed" in la.refusal(ADMIN, "Locate", request).message
    changes = la.ask("bob", "ListChanges", watch_pb2.ListChangesRequest(path="/la/open"))
    assert [one.path for one in changes.events] == ["/la/open"]


def test_a_topic_that_is_hidden_does_not_hide_the_directory_of_its_name(la: House) -> None:
    topic(la, "/la/open/deep")
    la.grant("bob", "-all", "/la/open/deep")
    answer = la.ask("bob", "Resolve", resolve_pb2.ResolveRequest(path="/la/open/deep"))
    assert answer.outcome.resolution.entry.HasField("directory")
    found = la.ask("bob", "GetEntry", directory_pb2.GetEntryRequest(path="/la/open/deep"))
    assert found.entry.HasField("directory")
    request = directory_pb2.ListEntriesRequest(path="/la/open/deep")
    assert list(la.ask("bob", "ListEntries", request).entries) == []
    answer = la.ask(ADMIN, "Resolve", resolve_pb2.ResolveRequest(path="/la/open/deep"))
    assert answer.outcome.resolution.entry.HasField("topic")
    assert answer.outcome.resolution.has_container


def test_what_it_takes_to_change_something(la: House) -> None:
    la.mkdir("/la/work/a")
    la.mkdir("/la/work/b")
    owner = entry_pb2.Entry(policies=policies_pb2.Policies(owner="x"))
    config = entry_pb2.Entry()
    config.policies.topic_config["retention.ms"].value = "1000"

    def update(entry: entry_pb2.Entry, field: str) -> directory_pb2.UpdateEntryRequest:
        request = directory_pb2.UpdateEntryRequest(path="/la/work/a", entry=entry)
        request.update_mask.paths.append(field)
        return request

    made = entry_pb2.Entry(directory=entry_pb2.Directory())
    desired_set = {
        "create": ("CreateEntry", directory_pb2.CreateEntryRequest(path="/la/work/n", entry=made)),
        "alter": ("UpdateEntry", update(owner, "policies.owner")),
        "alter-configs": ("UpdateEntry", update(config, "policies.topic_config.retention.ms")),
        "delete": ("DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/work/b")),
    }
    la.grant("eve", "describe", "/la/work")
    for method, request in desired_set.values():
        assert isinstance(la.refusal("eve", method, request), PermissionDenied)
    for needed, (method, request) in desired_set.items():
        la.grant(needed, f"describe,{needed}", "/la/work")
        for other, (_, desired) in desired_set.items():
            if other != needed:
                assert isinstance(
                    la.refusal(needed, desired_set[other][0], desired), PermissionDenied
                )
        la.ask(needed, method, request)


def test_a_directory_that_is_not_there_and_one_that_is_hidden_take_no_entries_alike(
    la: House,
) -> None:
    entry = entry_pb2.Entry(directory=entry_pb2.Directory())
    reported = [
        repr(
            la.refusal("bob", "CreateEntry", directory_pb2.CreateEntryRequest(path=p, entry=entry))
        )
        for p in ("/la/hidden/x", "/la/hiddem/x")
    ]
    assert reported[0].replace("hidden", "hiddem") == reported[1]
    assert "InvalidNamespace" in reported[0]
    for path in ("/la/hidden/x", "/la/hiddem/x"):
        with pytest.raises(PermissionDenied, match="may not CREATE /la: "):
            la.mkdir(path, "bob")


def test_a_move_needs_both_ends_and_a_removal_all_that_has_grants_of_its_own(la: House) -> None:
    la.mkdir("/la/from/d/kept")
    la.mkdir("/la/to")
    la.grant("bob", "alter,delete,create", "/la/from")
    move = directory_pb2.MoveEntryRequest(path="/la/from/d", new_path="/la/to/d")
    # /la/to is not his to see: as where there is none.
    assert isinstance(la.refusal("bob", "MoveEntry", move), InvalidNamespace)
    la.grant("bob", "alter", "/la/to")
    assert isinstance(la.refusal("bob", "MoveEntry", move), PermissionDenied)
    la.grant("bob", "create", "/la/to")
    la.grant("bob", "-alter,-delete", "/la/from/d/kept")
    remove = directory_pb2.DeleteEntryRequest(path="/la/from/d", recursive=True)
    for method, request in (("MoveEntry", move), ("DeleteEntry", remove)):
        assert "/la/from/d/kept" in str(la.refusal("bob", method, request))
    la.grant("bob", "-describe", "/la/from/d/kept")
    for method, request in (("MoveEntry", move), ("DeleteEntry", remove)):
        refused = la.refusal("bob", method, request)
        assert isinstance(refused, PermissionDenied)
        assert "kept" not in str(refused)
    la.revoke("bob", "-alter,-delete,-describe", "/la/from/d/kept")
    la.ask("bob", "MoveEntry", move)
    assert la.outcome("bob", "/la/to/d/kept") == "resolution"


def test_only_who_may_alter_grants(la: House) -> None:
    with pytest.raises(PermissionDenied):
        la.grant("eve", "read", "/la/open", by="bob")
    la.grant("bob", "alter", "/la/open")
    la.grant("eve", "read", "/la/open", by="bob")
    assert la.outcome("eve", "/la/open/t") == "resolution"
    shown = la.ask("bob", "ListGrants", access_pb2.ListGrantsRequest(path="/la/open"))
    assert [(one.principal, one.operation) for one in shown.grants] == [
        ("User:bob", access_pb2.OPERATION_READ),
        ("User:bob", access_pb2.OPERATION_ALTER),
        ("User:eve", access_pb2.OPERATION_READ),
    ]


def wrong(**fields: Any) -> access_pb2.Grant:
    """Returns bob's READ with one field changed."""
    return access_pb2.Grant(**{"principal": "User:bob", "operation": 2, "permission": 2, **fields})


@pytest.mark.parametrize(
    "one",
    [
        wrong(principal="bob"),
        wrong(operation=99),
        wrong(operation=0),
        wrong(permission=0),
        wrong(host="example.org"),
        wrong(resource_type=2),
        wrong(resource_type=9),
    ],
)
def test_A7_what_is_no_grant_is_refused_and_nothing_is_stored(
    la: House, one: access_pb2.Grant
) -> None:
    before = la.cluster.replica.snapshot.revision
    request = access_pb2.AddGrantsRequest(path="/la", grants=[*grants("bob", "read"), one])
    assert isinstance(la.refusal(ADMIN, "AddGrants", request), InvalidArgument)
    assert la.cluster.replica.snapshot.revision == before


def test_one_request_id_has_one_effect(la: House) -> None:
    request = access_pb2.AddGrantsRequest(
        path="/la/open", grants=grants("eve", "read"), request_id="one"
    )
    first = la.ask(ADMIN, "AddGrants", request)
    la.revoke("eve", "read", "/la/open")
    again = la.ask(ADMIN, "AddGrants", request)
    assert again.token == first.token
    assert la.outcome("eve", "/la/open/t") == "absent"


def test_a_request_that_is_asked_again_is_answered_alike_once_its_entry_is_gone(
    la: House,
) -> None:
    """To who is shown everything; to others what is gone and what is hidden are the same."""
    la.grant("carol", "alter,describe", "/la/open")
    request = access_pb2.AddGrantsRequest(
        path="/la/open", grants=grants("eve", "read"), request_id="one"
    )
    first = {who: la.ask(who, "AddGrants", request) for who in (ADMIN, "carol")}
    assert len(first[ADMIN].added) == 1
    la.ask(ADMIN, "DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/open", recursive=True))
    again = la.ask(ADMIN, "AddGrants", request)
    assert (again.added, again.grants) == (first[ADMIN].added, first[ADMIN].grants)
    again = la.ask("carol", "AddGrants", request)
    assert (list(again.added), list(again.grants)) == ([], [])


def test_a_plan_says_what_would_be(la: House) -> None:
    request = access_pb2.AddGrantsRequest(
        path="/la/open", grants=grants("eve", "read"), validate_only=True
    )
    planned = la.ask(ADMIN, "AddGrants", request)
    assert [one.principal for one in planned.added] == ["User:eve"]
    assert (len(planned.grants), planned.topic_count) == (2, 1)
    assert la.outcome("eve", "/la/open/t") == "absent"


def test_hosts_matter_where_grants_name_them(la: House) -> None:
    la.grant("eve", "read", "/la/open", host="10.0.0.1")
    assert la.outcome("eve", "/la/open/t", host="10.0.0.1") == "resolution"
    assert la.outcome("eve", "/la/open/t", host="10.0.0.2") == "absent"
    assert la.outcome("eve", "/la/open/t", host="10.0.0.1") == "resolution"
    # A grant for everybody from one host is about those, too, of whom no other names a host.
    la.grant("dan", "read", "/la/open")
    assert la.outcome("dan", "/la/open/t", host="10.0.0.9") == "resolution"
    la.grant("User:*", "-describe", "/la/open", host="10.0.0.9")
    assert la.outcome("dan", "/la/open/t", host="10.0.0.9") == "absent"
    assert la.outcome("dan", "/la/open/t", host="10.0.0.8") == "resolution"


def test_a_closed_directory_is_opened_by_grants_on_it_or_above(la: House) -> None:
    la.mkdir("/la/vault/shelf", closed=False)
    request = directory_pb2.UpdateEntryRequest(
        path="/la/vault", entry=entry_pb2.Entry(directory=entry_pb2.Directory(closed=True))
    )
    request.update_mask.paths.append("directory.closed")
    la.grant("eve", "read", "/la/vault/shelf")
    assert la.outcome("eve", "/la/vault/shelf") == "resolution"
    la.ask(ADMIN, "UpdateEntry", request)
    assert la.outcome("eve", "/la/vault/shelf") == "absent"
    la.grant("eve", "describe", "/la/vault")
    assert la.outcome("eve", "/la/vault/shelf") == "resolution"


def test_links_are_shown_to_who_may_describe_them(la: House) -> None:
    la.link("/la/open/ln", "/la/hidden")
    la.link("/la/ln", "/la/open")
    assert la.outcome("bob", "/la/open/ln/t") == "rewrite"
    assert la.outcome("bob", "/la/ln/t") == "absent"


def test_open_access_lets_in_each_principal_without_a_deny(house: Make) -> None:
    la = house("open")
    la.mkdir("/la/a", "")
    assert la.outcome("", "/la/a") == "resolution"
    la.grant("bob", "-describe", "/la/a", by="")
    assert la.outcome("bob", "/la/a") == "absent"
    assert la.outcome("eve", "/la/a") == "resolution"
    assert la.names("bob", "/la") == []


def test_operators_calls_need_rights_on_the_cluster(la: House) -> None:
    cluster = access_pb2.RESOURCE_TYPE_CLUSTER
    status = admin_pb2.GetStatusRequest()
    assert isinstance(la.refusal("bob", "GetStatus", status), PermissionDenied)
    la.grant("bob", "describe", "/la", kind=cluster)
    assert la.ask("bob", "GetStatus", status).topic_count == 1  # the other is hidden
    assert la.ask(ADMIN, "GetStatus", status).topic_count == 2
    for name in ("la", la.cluster.cluster_id):
        named = admin_pb2.GetStatusRequest(cluster=name)
        assert la.ask(ADMIN, "GetStatus", named).topic_count == 2
    other = la.refusal(ADMIN, "GetStatus", admin_pb2.GetStatusRequest(cluster="kc-other"))
    assert isinstance(other, InvalidArgument)
    assert "found 'kc-other'; expected one of la" in other.message
    finalize = admin_pb2.FinalizeFeaturesRequest()
    for method, request in (
        ("FinalizeFeatures", finalize),
        ("Backup", admin_pb2.BackupRequest()),
        ("Verify", admin_pb2.VerifyRequest()),
    ):
        with pytest.raises(PermissionDenied):
            first(la.ask("bob", method, request))
    la.grant("bob", "alter", "/la", kind=cluster)
    assert la.ask("bob", "FinalizeFeatures", finalize).finalized_level == max(LEVELS)


def test_a_child_is_linked_by_its_certificate_or_by_a_grant(la: House) -> None:
    def link(**call: Any) -> KdirError:
        hello = federation_pb2.Hello(cluster_id="kc-child", cluster="c", mount="/la/c")
        with pytest.raises(KdirError) as refused:
            next(la.ask("", "Link", federation_pb2.LinkRequest(hello=hello), **call))
        return refused.value

    assert link().reason == "PERMISSION_DENIED"
    assert link(cluster_ids=("kc-other",)).reason == "PERMISSION_DENIED"
    assert link(cluster_ids=("kc-child",)).reason == "UNKNOWN_CHILD"
    kind = access_pb2.RESOURCE_TYPE_CLUSTER
    la.grant("User:ANONYMOUS", "cluster-action", "/la", kind=kind)
    assert link().reason == "UNKNOWN_CHILD"


def test_every_call_of_the_contract_is_checked(la: House) -> None:
    """One that is added without a check would answer somebody without any right."""
    entry = entry_pb2.Entry(directory=entry_pb2.Directory())
    update = directory_pb2.UpdateEntryRequest(path="/la/open", entry=entry)
    update.update_mask.paths.append("directory.closed")
    reported_otherwise = {"Resolve", "BatchResolve", "ListMounts", "Link"}
    asked = {
        "GetEntry": directory_pb2.GetEntryRequest(path="/la/open"),
        "ListEntries": directory_pb2.ListEntriesRequest(path="/la/open"),
        "DeleteEntry": directory_pb2.DeleteEntryRequest(path="/la/open"),
        "ListGrants": access_pb2.ListGrantsRequest(path="/la/open"),
        "GetEffectivePolicies": policies_pb2.GetEffectivePoliciesRequest(path="/la/open"),
        "PlanArming": policies_pb2.PlanArmingRequest(path="/la/open", aspect="configs"),
        "DetachParent": admin_pb2.DetachParentRequest(),
        "AttachParent": admin_pb2.AttachParentRequest(),
        "Arm": policies_pb2.ArmRequest(path="/la/open", aspect="configs", plan_hash="x"),
        "CheckAccess": access_pb2.CheckAccessRequest(
            principal="User:bob", operation="OPERATION_READ", path="/la/open"
        ),
        "AuthorizeAny": access_pb2.AuthorizeAnyRequest(
            principal="User:bob", operation="OPERATION_READ"
        ),
        "Watch": watch_pb2.WatchRequest(path="/la/open"),
        "UpdateEntry": update,
        "AddGrants": access_pb2.AddGrantsRequest(path="/la/open", grants=grants("x", "read")),
        "RemoveGrants": access_pb2.RemoveGrantsRequest(path="/la/open", grants=grants("x", "all")),
        "Locate": resolve_pb2.LocateRequest(physical_name="open.t"),
        "CreateEntry": directory_pb2.CreateEntryRequest(path="/la/open/x", entry=entry),
        "MoveEntry": directory_pb2.MoveEntryRequest(path="/la/open", new_path="/la/x"),
        "ScanTopics": scan_pb2.ScanTopicsRequest(),
        "ListChanges": watch_pb2.ListChangesRequest(path="/la/open"),
        "GetStatus": admin_pb2.GetStatusRequest(),
        "FinalizeFeatures": admin_pb2.FinalizeFeaturesRequest(),
        "GetChangeLog": watch_pb2.GetChangeLogRequest(),
        "ResyncChangeLog": admin_pb2.ResyncChangeLogRequest(),
        "SkipChangeLog": admin_pb2.SkipChangeLogRequest(),
        "EndChangeLog": admin_pb2.EndChangeLogRequest(),
        "Verify": admin_pb2.VerifyRequest(),
        "Backup": admin_pb2.BackupRequest(),
    }
    needs_kafka = {"AdoptTopics", "ListDrift", "Acknowledge"}
    for method in la.handlers.keys() - needs_kafka:
        request = asked.get(method)
        if request is None:
            assert method in reported_otherwise, method
            continue
        with pytest.raises((PermissionDenied, Absent, InvalidNamespace)):
            first(la.ask("nobody", method, request))


def test_A11_the_audit_has_what_was_decided_and_why(
    la: House, caplog: pytest.LogCaptureFixture
) -> None:
    remove = directory_pb2.DeleteEntryRequest(path="/la/open/deep")
    with caplog.at_level(5, "kdir.audit"):
        la.refusal("bob", "DeleteEntry", remove)
        la.outcome("bob", "/la/hidden/t")
        la.mkdir("/la/by-admin")
    denied, hidden, allowed = (
        next(one for one in caplog.records if one.levelno == level)
        for level in (logging.INFO, 5, logging.DEBUG)
    )
    output = denied.getMessage()
    for part in ('result="DENIED"', 'principal="User:bob"', 'operation="DELETE"', "/la/open/deep"):
        assert part in output
    assert "/la/hidden/t" in hidden.getMessage()
    assert 'rule="a super user"' in allowed.getMessage()


# -- questions ---


def check(
    la: House, who: str, asker: str = ADMIN, path: str = "/la/open/t", **fields: Any
) -> access_pb2.CheckAccessResponse:
    request = access_pb2.CheckAccessRequest(
        principal=f"User:{who}", operation=access_pb2.OPERATION_DESCRIBE, path=path, **fields
    )
    answer: access_pb2.CheckAccessResponse = la.ask(asker, "CheckAccess", request)
    return answer


def test_check_names_what_decides_and_where(la: House) -> None:
    found = check(la, "bob", explain=True)
    assert (found.allowed, found.deciding_path) == (True, "/la/open")
    assert found.deciding_grant.operation == access_pb2.OPERATION_READ
    assert found.implied_by == access_pb2.OPERATION_READ
    assert [(one.path, len(one.grants)) for one in found.levels] == [("/la/open", 1)]
    assert found.levels[0].grants[0].decides
    assert not check(la, "eve").allowed


def test_everybody_may_ask_for_oneself_and_gets_no_more_than_that(la: House) -> None:
    assert check(la, "bob", "bob", explain=True).levels
    own = check(la, "bob", "bob", "/la/hidden/t", explain=True)
    assert (own.allowed, len(own.levels)) == (False, 0)
    assert own.message == (
        "denied: User:bob lacks DESCRIBE on /la/hidden/t; the deciding grants are shown only with "
        "DESCRIBE"
    )
    with pytest.raises(Absent):
        check(la, "eve", "bob", "/la/hidden/t")


def test_A6_authorize_any(la: House) -> None:
    def may(who: str, operation: str, kind: int = 1) -> bool:
        number = access_pb2.Operation.Value(f"OPERATION_{operation}")
        request = access_pb2.AuthorizeAnyRequest(
            principal=f"User:{who}",
            operation=number,  # type: ignore[arg-type]
            resource_type=kind,  # type: ignore[arg-type]
        )
        return bool(la.ask(ADMIN, "AuthorizeAny", request).allowed)

    assert may("bob", "READ")
    assert may("bob", "DESCRIBE")
    assert not may("bob", "WRITE")
    assert not may("bob", "IDEMPOTENT_WRITE", 4)
    la.grant("bob", "write", "/la/hidden/t")
    assert may("bob", "IDEMPOTENT_WRITE", 4)
    la.grant("bob", "read", "/la", kind=access_pb2.RESOURCE_TYPE_GROUP, name="app*")
    assert may("bob", "READ", 2)


# -- changes ---


def test_changes_of_what_is_hidden_are_not_sent(la: House) -> None:
    la.grant("bob", "-describe", "/la/open/deep")
    la.mkdir("/la/open/deep/x")
    la.mkdir("/la/open/seen")

    def received(who: str, path: str) -> list[tuple[int, str]]:
        answer = la.ask(who, "ListChanges", watch_pb2.ListChangesRequest(path=path))
        return [(one.action, one.path) for one in answer.events]

    paths = [path for _, path in received("bob", "/la")]
    assert "/la/open/seen" in paths
    assert not [path for path in paths if "hidden" in path or "deep" in path]
    assert "/la/open/deep/x" in [path for _, path in received(ADMIN, "/la")]

    move = directory_pb2.MoveEntryRequest(path="/la/open/seen", new_path="/la/hidden/seen")
    la.ask(ADMIN, "MoveEntry", move)
    assert received("bob", "/la")[0] == (watch_pb2.CHANGE_ACTION_DELETE, "/la/open/seen")
    move = directory_pb2.MoveEntryRequest(path="/la/hidden/seen", new_path="/la/open/back")
    la.ask(ADMIN, "MoveEntry", move)
    assert received("bob", "/la")[0] == (watch_pb2.CHANGE_ACTION_INSERT, "/la/open/back")


def test_the_change_of_an_entry_that_is_gone_is_judged_by_the_grants_that_went_with_it(
    la: House,
) -> None:
    la.mkdir("/la/open/secret")
    la.grant("bob", "-describe", "/la/open/secret")
    la.ask(ADMIN, "DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/open/secret"))
    newest = watch_pb2.ListChangesRequest(path="/la/open/secret", page_size=1)
    (made,) = la.ask("bob", "ListChanges", newest).events  # before anybody denied it
    assert made.action == watch_pb2.CHANGE_ACTION_INSERT
    (gone,) = la.ask(ADMIN, "ListChanges", newest).events
    assert gone.action == watch_pb2.CHANGE_ACTION_DELETE


def test_changes_above_the_mount_are_absent_for_who_sees_nothing_below(la: House) -> None:
    asked = watch_pb2.ListChangesRequest(path="/")
    assert isinstance(la.refusal("eve", "ListChanges", asked), Absent)
    with pytest.raises(Absent):
        next(la.ask("eve", "Watch", watch_pb2.WatchRequest(path="/")))
    assert la.ask("bob", "ListChanges", asked).events


def test_N5_a_watch_ends_when_the_right_to_it_does(la: House) -> None:
    stream = la.ask("bob", "Watch", watch_pb2.WatchRequest(path="/la/open"))
    assert next(stream).HasField("authority")
    la.mkdir("/la/open/one")
    assert next(stream).events[0].path == "/la/open/one"
    la.revoke("bob", "read", "/la/open")
    la.mkdir("/la/open/two")
    with pytest.raises(Absent):
        list(stream)


def test_a_watch_that_is_never_idle_ends_with_its_cluster(
    la: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_service, "_LOOK_SECONDS", 0.0)
    stream = la.ask(ADMIN, "Watch", watch_pb2.WatchRequest(path="/la"))
    next(stream)
    la.mkdir("/la/busy")
    assert next(stream).events
    la.cluster.draining = True

    def keep_busy() -> None:
        for number in range(20):
            la.mkdir(f"/la/busy/{number}")
            next(stream)

    with pytest.raises(Unreachable, match="from the last token"):
        keep_busy()


# -- what is above the mount ---


@pytest.fixture
def child(house: Make) -> House:
    return house(parent=["127.0.0.1:1"], limits={"inherited_grants_max_age_seconds": 60.0})


def inherit(house: House, arguments: dict[str, str], *, closed: bool = False) -> None:
    message = federation_pb2.Inherited(revision=1, incarnation="i")
    for who, output in arguments.items():
        reported_there = grants(who, output, host="*")
        message.levels.add(path="/", grants=reported_there, closed=closed)
    snapshot = house.cluster.replica.snapshot
    house.put(*inheritance.inherited_writes(snapshot, message, unix_ms()))


def test_what_an_ancestor_no_longer_grants_is_only_ever_planned(child: House) -> None:
    inherit(child, {"bob": "read,write"})
    child.mkdir("/la/x")

    def remove(path: str, source: str = "/", *, plan: bool = True) -> Any:
        request = access_pb2.RemoveGrantsRequest(
            path=path, grants=grants("bob", "read"), validate_only=plan, inherited_from=source
        )
        return child.ask(ADMIN, "RemoveGrants", request)

    assert not remove("/la").removed
    for path, plan in (("/la", False), ("/la/x", True)):
        with pytest.raises(InvalidArgument, match="inherited_from"):
            remove(path, plan=plan)
    snapshot, removed = child.cluster.replica.snapshot, grants_from_proto(grants("bob", "read"))
    assert removed_grants_write(snapshot, Path.parse("/other"), removed) is None
    write = removed_grants_write(snapshot, Path.parse("/"), removed)
    assert write is not None
    (level,) = inheritance.inherited_levels(snapshot.apply(snapshot.revision + 1, [write]))
    assert [one.operation for one in level.grants] == [access_pb2.OPERATION_WRITE]
    assert len(inheritance.inherited_levels(snapshot)[0].grants) == 2


def test_A3_before_the_parents_update_only_super_users_are_answered(
    child: House,
) -> None:
    child.mkdir("/la/a")
    assert child.outcome(ADMIN, "/la/a") == "resolution"
    asked = resolve_pb2.ResolveRequest(path="/la/a")
    assert isinstance(child.refusal("bob", "Resolve", asked), NotReady)
    entry = entry_pb2.Entry(directory=entry_pb2.Directory())
    create = directory_pb2.CreateEntryRequest(path="/la/b", entry=entry)
    assert isinstance(child.refusal("bob", "CreateEntry", create), NotReady)
    inherit(child, {"bob": "read"})
    assert child.outcome("bob", "/la/a") == "resolution"
    assert isinstance(child.refusal("bob", "CreateEntry", create), PermissionDenied)


def test_an_inherited_deny_beats_an_allow_below_and_lasts(child: House) -> None:
    child.mkdir("/la/a")
    child.grant("bob", "read", "/la/a")
    inherit(child, {"bob": "-describe", "eve": "read"})
    assert child.outcome("bob", "/la/a") == "absent"
    assert child.outcome("eve", "/la/a") == "resolution"
    # Nobody confirmed it for longer than inherited_grants_max_age_seconds.
    child.put(parent_state.parent_contact_write(unix_ms() - 120_000, linked=False))
    eventually(lambda: child.outcome("eve", "/la/a") == "absent")
    assert child.outcome("bob", "/la/a") == "absent"
    child.put(parent_state.parent_contact_write(unix_ms(), linked=False))
    eventually(lambda: child.outcome("eve", "/la/a") == "resolution")


def test_G12_a_change_of_the_wall_clock_lengthens_no_inherited_allow(
    child: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it end one: a stored confirmation has its time once it is known here."""
    child.mkdir("/la/a")
    inherit(child, {"eve": "read"})
    for seconds, outcome in ((120, "absent"), (30, "resolution")):
        contact = parent_state.parent_contact_write(unix_ms() - 1_000 * seconds, linked=False)
        child.put(contact)
        assert child.outcome("eve", "/la/a") == outcome
        for jump_ms in (-3_600_000, 3_600_000):
            with monkeypatch.context() as patch:
                at_ms = unix_ms() + jump_ms
                patch.setattr("directory.server.cluster.unix_ms", lambda at_ms=at_ms: at_ms)
                assert child.outcome("eve", "/la/a") == outcome


def test_what_a_detached_cluster_keeps_lasts_until_it_is_attached_again(child: House) -> None:
    """As the cluster's own, however long ago a parent confirmed it; children inherit it so, too."""
    child.mkdir("/la/a")
    inherit(child, {"eve": "read"})
    child.put(parent_state.parent_contact_write(unix_ms() - 120_000, linked=False))
    eventually(lambda: child.outcome("eve", "/la/a") == "absent")
    detach = admin_pb2.DetachParentRequest(keep_inherited=True)
    assert list(child.ask(ADMIN, "DetachParent", detach).kept) == ["/"]
    assert child.outcome("eve", "/la/a") == "resolution"
    assert child.cluster.unconfirmed_seconds() is None
    assert child.cluster.member().unconfirmed_seconds() < 60
    child.ask(ADMIN, "AttachParent", admin_pb2.AttachParentRequest())
    assert child.outcome("eve", "/la/a") == "absent"


def test_what_is_inherited_is_guarded_like_the_clusters_own(child: House) -> None:
    """The command is planned on a tree in which bob may, and committed after he may not."""
    child.mkdir("/la/a")
    inherit(child, {"bob": "create,describe"})
    writer = child.cluster.writer
    plans: list[int] = []
    above = writer.above

    def meanwhile(snapshot: object) -> object:
        if not plans:
            plans.append(1)
            inherit(child, {"bob": "-create,describe"})
        return above(snapshot)  # type: ignore[arg-type]

    writer.above = meanwhile  # type: ignore[assignment]
    entry = entry_pb2.Entry(directory=entry_pb2.Directory())
    create = directory_pb2.CreateEntryRequest(path="/la/a/b", entry=entry)
    assert isinstance(child.refusal("bob", "CreateEntry", create), PermissionDenied)
    assert child.outcome(ADMIN, "/la/a/b") == "absent"


def test_a_level_of_a_newer_version_lets_nobody_in(child: House) -> None:
    child.mkdir("/la/a")
    message = federation_pb2.Inherited(revision=1, incarnation="i")
    level = message.levels.add(path="/", grants=grants("bob", "read", host="*"))
    level.grants[0].operation = 77  # type: ignore[assignment]
    snapshot = child.cluster.replica.snapshot
    child.put(*inheritance.inherited_writes(snapshot, message, unix_ms()))
    assert snapshot.fact(INHERITED) is None
    child.grant("bob", "read", "/la/a")
    assert child.outcome("bob", "/la/a") == "absent"


def test_A4_a_reader_never_sees_a_later_allow_without_an_earlier_deny(la: House) -> None:
    snapshot = la.cluster.replica.snapshot
    before = la.router.access_control.access(la.cluster, snapshot)
    la.grant("mallory", "-all", "/la/open")
    la.grant("User:*", "all", "/la")
    assert la.router.access_control.access(la.cluster, snapshot).tree is before.tree
    assert la.outcome("mallory", "/la/open/t") == "absent"
    assert la.outcome("mallory", "/la/hidden/t") == "resolution"


def test_N1_a_right_that_was_taken_does_not_open_what_was_made_afterwards_elsewhere(
    la: House, house: Make
) -> None:
    """Two servers of one store: bob's right goes on one, the secret is made on the other, and he
    asks the first, which may not have seen either yet, with the token of what was made.
    """
    other = House(second(house))
    entry = entry_pb2.Entry(directory=entry_pb2.Directory())
    for number in range(10):
        path = f"/la/open/secret{number}"
        other.revoke("bob", "read", "/la/open")
        create = directory_pb2.CreateEntryRequest(path=path, entry=entry)
        token = other.ask(ADMIN, "CreateEntry", create).token
        answer = la.ask("bob", "Resolve", resolve_pb2.ResolveRequest(path=path, token=token))
        assert answer.outcome.WhichOneof("kind") == "absent"
        token = other.grant("bob", "read", "/la/open").token
        answer = la.ask("bob", "Resolve", resolve_pb2.ResolveRequest(path=path, token=token))
        assert answer.outcome.WhichOneof("kind") == "resolution"


def test_N1_a_change_that_was_authorised_on_older_grants_is_asked_again(
    la: House, house: Make
) -> None:
    other = House(second(house))
    la.grant("bob", "create", "/la/open")
    writer = other.cluster.writer
    raced: list[int] = []
    above = writer.above

    def meanwhile(snapshot: object) -> object:
        if not raced:
            raced.append(1)
            la.grant("bob", "-create", "/la")
        return above(snapshot)  # type: ignore[arg-type]

    writer.above = meanwhile  # type: ignore[assignment]
    entry = entry_pb2.Entry(directory=entry_pb2.Directory())
    create = directory_pb2.CreateEntryRequest(path="/la/open/new", entry=entry)
    eventually(lambda: other.outcome("bob", "/la/open") == "resolution")
    assert isinstance(other.refusal("bob", "CreateEntry", create), PermissionDenied)
    assert la.outcome(ADMIN, "/la/open/new") == "absent"


def second(house: Make) -> Cluster:
    """Returns another server of the same store."""
    return house().cluster


def test_grants_round_trip() -> None:
    for message in grants("bob", "read,-all"):
        grant = grant_from_proto(message)
        again = grant_to_proto(grant)
        assert grant_from_proto(again) == grant


def begin_log(la: House) -> watch_pb2.ChangeLogState:
    """Begins a change log that has all commits; returns its state."""
    state = watch_pb2.ChangeLogState(
        revision=la.cluster.replica.snapshot.revision,
        incarnation=la.cluster.replica.snapshot.incarnation,
        generation=1,
    )
    la.put(Put(CHANGE_LOG, state.SerializeToString()))
    return state


def test_a_commit_meanwhile_makes_no_difference_to_how_much_is_given_up(
    la: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_log(la)
    for name in "abc":
        la.mkdir(f"/la/{name}")
    waiting = EventIndex.waiting

    def meanwhile(index: EventIndex, *revisions: Any) -> WaitingRows:
        rows = waiting(index, *revisions)
        la.mkdir(f"/la/{la.cluster.replica.snapshot.revision}")
        return rows

    monkeypatch.setattr(EventIndex, "waiting", meanwhile)
    request = admin_pb2.SkipChangeLogRequest(revision=la.cluster.replica.snapshot.revision)
    assert la.ask(ADMIN, "SkipChangeLog", request).commits == 3


def test_a_commit_that_the_history_has_not_received_is_not_given_up_uncounted(
    la: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_log(la)
    la.mkdir("/la/a")
    received = la.cluster.replica.reported_revision
    la.mkdir("/la/b")
    monkeypatch.setattr(Replica, "reported_revision", received)
    assert la.ask(ADMIN, "SkipChangeLog", admin_pb2.SkipChangeLogRequest()).commits == 1
    assert published_revision(la.cluster.replica.snapshot) == received


def test_no_more_is_given_up_of_the_change_log_than_was_approved(la: House) -> None:
    state = begin_log(la)

    def skip(revision: int = 0) -> int:
        request = admin_pb2.SkipChangeLogRequest(revision=revision)
        return int(la.ask(ADMIN, "SkipChangeLog", request).commits)

    def given_up() -> watch_pb2.ChangeLogSkip:
        row = la.cluster.replica.snapshot.fact(CHANGE_LOG_SKIP)
        assert row is not None
        return watch_pb2.ChangeLogSkip.FromString(row)

    la.mkdir("/la/a")
    shown = la.cluster.replica.snapshot.revision
    la.mkdir("/la/b")
    assert skip(shown) == 1, "what was made since it was shown stays"
    assert (given_up().revision, given_up().commits) == (shown, 1)
    assert published_revision(la.cluster.replica.snapshot) == shown, "the next goes on waiting"
    assert skip(shown) == 0, "the same request again"
    shown = la.cluster.replica.snapshot.revision
    assert skip(shown + 1_000) == 2, "the directory, and that commits were given up"
    assert given_up().revision == shown, "no more than was there"
    assert given_up().commits == 3, "one record of the history shows both"
    la.mkdir("/la/c")
    first = given_up().earlier[0].revision
    assert skip() == 2
    assert given_up().commits == 5
    for recorded, left in ((first - 1, 5), (first, 4), (shown, 2)):
        assert skipped_commits(given_up(), recorded) == left, "none counts twice"
    last = la.cluster.replica.snapshot.revision
    state.revision = last
    la.put(Put(CHANGE_LOG, state.SerializeToString()))
    la.mkdir("/la/d")
    third = skip()
    assert given_up().commits == third, "the former ones are in the history"
    assert not given_up().earlier


def test_an_operator_confirms_a_resync_in_this_incarnation_of_the_store(la: House) -> None:
    begin_log(la)
    assert not is_resync_confirmed(la.cluster.replica.snapshot)
    la.ask(ADMIN, "ResyncChangeLog", admin_pb2.ResyncChangeLogRequest())
    snapshot = la.cluster.replica.snapshot
    assert is_resync_confirmed(snapshot)
    value = snapshot.fact(CHANGE_LOG_RESYNC) or b""
    for other in (value.replace(snapshot.incarnation.encode(), b"x"), b"confirmed by ana"):
        la.put(Put(CHANGE_LOG_RESYNC, other))
        assert not is_resync_confirmed(la.cluster.replica.snapshot), "a restore brought it back"


def test_a_change_log_does_not_end_under_a_server_that_begins_to_publish(
    la: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_log(la)
    begun = [(Put(role_key(ROLE), b"other\n1"), Put(member_key("other"), b""))]

    def meanwhile(snapshot: Snapshot) -> str:
        found = publisher_of(snapshot)
        if begun:
            la.cluster.store.commit(Transaction((), begun.pop()))
        return found

    monkeypatch.setattr(f"{AdminService.__module__}.publisher_of", meanwhile)
    refusal = la.refusal(ADMIN, "EndChangeLog", admin_pb2.EndChangeLogRequest())
    assert "server other publishes the change log" in refusal.message
    assert la.cluster.replica.snapshot.fact(CHANGE_LOG) is not None


def test_only_what_adopts_a_topic_makes_a_lookup_in_kafka(
    la: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setattr(directory_service, "cache", made.append)
    for entry in (
        entry_pb2.Entry(directory=entry_pb2.Directory()),
        entry_pb2.Entry(link=entry_pb2.Link(targets=["/la/open"])),
    ):
        path = f"/la/open/{entry.WhichOneof('kind')}"
        la.ask(ADMIN, "CreateEntry", directory_pb2.CreateEntryRequest(path=path, entry=entry))
    assert not made
    entry = entry_pb2.Entry(topic=entry_pb2.Topic())
    adopt = directory_pb2.CreateEntryRequest(path="/la/t", entry=entry, adopt_existing=True)
    la.refusal(ADMIN, "CreateEntry", adopt)
    assert len(made) == 1


def test_the_answer_to_a_write_says_for_how_long_it_is_unconfirmed(house: Make) -> None:
    la = house(parent=["127.0.0.1:1"])
    entry = entry_pb2.Entry(directory=entry_pb2.Directory())
    request = directory_pb2.CreateEntryRequest(path="/la/a", entry=entry)
    made: directory_pb2.CreateEntryResponse = la.ask(ADMIN, "CreateEntry", request)
    assert made.authority.HasField("unconfirmed_seconds")


def test_topics_whose_value_would_change_are_not_those_that_inherit_the_same_already(
    la: House,
) -> None:
    la.mkdir("/la/p/q")
    topic(la, "/la/p/q/t")

    def put(path: str, mask: str, policies: policies_pb2.Policies) -> None:
        entry, paths = entry_pb2.Entry(policies=policies), FieldMask(paths=[mask])
        request = directory_pb2.UpdateEntryRequest(path=path, entry=entry, update_mask=paths)
        la.ask(ADMIN, "UpdateEntry", request)

    def changed_count(path: str, mask: str, policies: policies_pb2.Policies) -> int:
        request = policies_pb2.GetEffectivePoliciesRequest(
            path=path, what_if=policies, what_if_mask=FieldMask(paths=[mask])
        )
        return int(la.ask(ADMIN, "GetEffectivePolicies", request).topics_changed)

    owner = "policies.owner"
    put("/la/p", owner, policies_pb2.Policies(owner="search"))
    for path in ("/la/p/q", "/la/p/q/t"):
        assert changed_count(path, owner, policies_pb2.Policies(owner="search")) == 0
        assert changed_count(path, owner, policies_pb2.Policies(owner="ads")) == 1
    put("/la/p/q", owner, policies_pb2.Policies(owner="search"))
    assert changed_count("/la/p/q", owner, policies_pb2.Policies()) == 0
    assert changed_count("/la/p", owner, policies_pb2.Policies()) == 0
