"""A12: every call about an entry that is hidden is answered as the same call about one that is not
there; by name, by kind, below it, and beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from kdir.v1 import (
    access_pb2,
    directory_pb2,
    entry_pb2,
    error_pb2,
    federation_pb2,
    policies_pb2,
    resolve_pb2,
    scan_pb2,
    watch_pb2,
)

from directory.federation.child_state import below_writes
from directory.federation.inheritance import inherited_writes
from directory.federation.parent_state import UNMOUNTED_KEY, TableRow, table_writes, welcome_writes
from directory.namespace.command import CreateMount
from directory.namespace.entry import ROOT_ID, Kind
from directory.namespace.keys import entry_key, mounted_key
from directory.server.cluster import Cluster
from directory.store.base import Delete, Put
from resolver.errors import (
    Absent,
    AlreadyExists,
    InvalidNamespace,
    KdirError,
    MountLoop,
    MountOverlaps,
    NotEmpty,
    PermissionDenied,
    PhysicalNameTaken,
    Unmounted,
)
from resolver.path import MAX_SEGMENTS
from resolver.path import Path as Path_
from tests.support.federation import eventually
from tests.unit.access.conftest import ADMIN, House, grants, topic
from tests.unit.federation.test_one_commit import inherited, welcome

Make = Callable[..., House]
NEWER: Any = 99
"""A kind of entry of a newer version."""
KINDS = [
    entry_pb2.ENTRY_KIND_UNSPECIFIED,
    *(getattr(entry_pb2, f"ENTRY_KIND_{one.name}") for one in Kind),
]
ABSENT = "zzqz"
CONFIG = "policies.owner"


@pytest.fixture
def la(house: Make) -> House:
    """Returns a directory in which alice may do all, and bob read; both are shown less than it
    has.
    """
    made = house()
    made.mkdir("/la/p/hidd/in")
    made.mkdir("/la/p/vis")
    made.mkdir("/la/elsewhere")
    topic(made, "/la/p/hidt")
    topic(made, "/la/p/t")
    topic(made, "/la/p/hidd/in/x")
    made.link("/la/p/hidl", "/la/elsewhere")
    entry = entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id="kc-hidden"))
    made.ask(ADMIN, "CreateEntry", directory_pb2.CreateEntryRequest(path="/la/p/hidm", entry=entry))
    made.grant("alice", "all", "/la/p")
    made.grant("bob", "read", "/la/p")
    for name, kind in (("hidd", 1), ("hidt", 2), ("hidl", 3), ("hidm", 4)):
        for who in ("-all alice", "-describe bob"):
            arguments, principal = who.split()
            request = access_pb2.AddGrantsRequest(
                path=f"/la/p/{name}", grants=grants(principal, arguments), kind=KINDS[kind]
            )
            made.ask(ADMIN, "AddGrants", request)
    return made


def of_an_entry(path: str) -> Iterator[tuple[str, Any]]:
    """Calls about the entry at a path."""
    owner = entry_pb2.Entry(policies=policies_pb2.Policies(owner="x"))
    grant = grants("mallory", "read")
    for kind in KINDS:
        named: dict[str, Any] = {"path": path, "kind": kind}
        yield "GetEntry", directory_pb2.GetEntryRequest(**named)
        yield "ListGrants", access_pb2.ListGrantsRequest(**named)
        for who in ("User:carol", "User:mallory"):
            asked: dict[str, Any] = {**named, "principal": who, "operation": "OPERATION_READ"}
            yield "CheckAccess", access_pb2.CheckAccessRequest(**asked)
            yield "CheckAccess", access_pb2.CheckAccessRequest(**asked, explain=True)
        for plan in (True, False):
            desired: dict[str, Any] = {**named, "validate_only": plan}
            masks = (CONFIG, "directory.closed", "topic.partitions", "policies.topic_config.x.y")
            for mask in masks:
                update: dict[str, Any] = {"entry": owner, "update_mask": FieldMask(paths=[mask])}
                yield "UpdateEntry", directory_pb2.UpdateEntryRequest(**desired, **update)
                yield (
                    "UpdateEntry",
                    directory_pb2.UpdateEntryRequest(**desired, **update, etag="1-1"),
                )
            for recursive in (True, False):
                yield (
                    "DeleteEntry",
                    directory_pb2.DeleteEntryRequest(**desired, recursive=recursive),
                )
            for new in ("/la/p/new", "/la/elsewhere/new", "/nowhere/new", path + "/new"):
                for link in (True, False):
                    request = directory_pb2.MoveEntryRequest(
                        **desired, new_path=new, leave_link=link
                    )
                    yield "MoveEntry", request
            yield "AddGrants", access_pb2.AddGrantsRequest(**desired, grants=grant)
            yield "RemoveGrants", access_pb2.RemoveGrantsRequest(**desired, grants=grant)


def of_a_path(path: str) -> Iterator[tuple[str, Any]]:
    """Calls that name a path."""
    for recursive in (True, False):
        yield "ListEntries", directory_pb2.ListEntriesRequest(path=path, recursive=recursive)
        yield "Resolve", resolve_pb2.ResolveRequest(path=path, no_follow=recursive)
        request = policies_pb2.GetEffectivePoliciesRequest(path=path, directory=recursive)
        yield "GetEffectivePolicies", request
    yield (
        "GetEffectivePolicies",
        policies_pb2.GetEffectivePoliciesRequest(
            path=path,
            what_if=policies_pb2.Policies(owner="z"),
            what_if_mask=FieldMask(paths=[CONFIG]),
        ),
    )
    yield "BatchResolve", resolve_pb2.BatchResolveRequest(paths=[path, "/la/p"])
    yield "ScanTopics", scan_pb2.ScanTopicsRequest(path=path)
    yield "Watch", watch_pb2.WatchRequest(path=path)
    yield "ListChanges", watch_pb2.ListChangesRequest(path=path)
    for aspect in ("configs", "acls", "none"):
        yield "PlanArming", policies_pb2.PlanArmingRequest(path=path, aspect=aspect)
        yield "Arm", policies_pb2.ArmRequest(path=path, aspect=aspect, plan_hash="abc")


def into(path: str) -> Iterator[tuple[str, Any]]:
    """Calls that would put something in a directory."""
    kinds: list[dict[str, Any]] = [
        {"directory": {}},
        {"topic": {}},
        {"link": {"targets": ["/la/p/t"]}},
    ]
    for kind in kinds:
        request: dict[str, Any] = {"path": f"{path}/q", "entry": kind}
        yield "CreateEntry", directory_pb2.CreateEntryRequest(**request, validate_only=True)
        yield "CreateEntry", directory_pb2.CreateEntryRequest(**request)
    for moved in ("/la/p/t", "/la/p/vis"):
        request = {"path": moved, "new_path": f"{path}/q"}
        yield "MoveEntry", directory_pb2.MoveEntryRequest(**request, validate_only=True)
        yield "MoveEntry", directory_pb2.MoveEntryRequest(**request)


def reported(house: House, who: str, method: str, request: Any, name: str) -> str:
    """Returns all that a caller hears, but for the name."""
    try:
        answer = house.ask(who, method, request)
        received = str(next(answer) if isinstance(answer, Iterator) else answer)
    except KdirError as error:
        received = f"{type(error).__name__} {error.message} {sorted(error.metadata.items())}"
    return received.replace(name, "NAME")


@pytest.mark.parametrize(
    ("who", "hidden"),
    [
        (who, hidden)
        for who in ("alice", "bob", "mallory")
        for hidden in ("hidd", "hidt", "hidl", "hidm")
        # Whom no grant denies a mount is sent on to its cluster, which decides (0032).
        if (who, hidden) != ("mallory", "hidm")
    ],
)
def test_A12_no_call_distinguishes_what_is_hidden_from_what_is_not_there(
    la: House, who: str, hidden: str
) -> None:
    def calls(name: str) -> Iterator[tuple[str, Any]]:
        path = f"/la/p/{name}"
        yield from of_an_entry(path)
        yield from into(path)
        for below in ("", "/q", "/q/r"):
            yield from of_a_path(path + below)

    asked = 0
    for (method, request), (_, other) in zip(calls(hidden), calls(ABSENT), strict=True):
        asked += 1
        assert reported(la, who, method, request, hidden) == reported(
            la, who, method, other, ABSENT
        ), (
            method,
            request,
        )
    assert asked > 200


def test_A12_what_is_where_one_would_put_something_is_not_described(la: House) -> None:
    taken = directory_pb2.CreateEntryRequest(path="/la/p/hidl", entry={"link": {"targets": ["/x"]}})
    refused = la.refusal("alice", "CreateEntry", taken)
    assert isinstance(refused, AlreadyExists)
    assert "elsewhere" not in repr(refused)
    assert "link" not in refused.message
    seen = la.refusal(ADMIN, "CreateEntry", taken)
    assert "elsewhere" in seen.message


def test_A12_whose_a_name_in_kafka_is(house: Make) -> None:
    kafka = {"bootstrap": ["127.0.0.1:1"], "ceiling": ["create"]}
    la = house(kafka=kafka)
    la.mkdir("/la/p/secret")
    la.mkdir("/la/mine")
    topic(la, "/la/p/secret/x")
    la.grant("bob", "create", "/la/mine")
    la.grant("bob", "alter", "/la", kind=access_pb2.RESOURCE_TYPE_CLUSTER)  # may choose names
    request = directory_pb2.CreateEntryRequest(
        path="/la/mine/x", entry={"topic": {"physical_name": "p.secret.x"}}
    )
    refused = la.refusal("bob", "CreateEntry", request)
    assert isinstance(refused, PhysicalNameTaken)
    assert "/la/p" not in f"{refused.message} {refused.metadata}"
    assert "/la/p/secret/x" in la.refusal(ADMIN, "CreateEntry", request).message
    request.entry.topic.physical_name = "p_secret.x"
    assert "p.secret" not in repr(la.refusal("bob", "CreateEntry", request))
    assert "p.secret.x" in la.refusal(ADMIN, "CreateEntry", request).message


def with_two_mounts(la: House, above: str) -> str:
    """Makes a directory with the mounts ``secret`` and ``seen``; returns the path of the first."""
    la.mkdir(above)
    for mount in (f"{above}/secret", f"{above}/seen"):
        entry = entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id=f"kc-{mount[-4:]}"))
        la.ask(ADMIN, "CreateEntry", directory_pb2.CreateEntryRequest(path=mount, entry=entry))
    return f"{above}/secret"


@pytest.mark.parametrize("denied", ["-describe", "-all"])
@pytest.mark.parametrize("top", ["/d/d", "/us/la"])
def test_A12_a_hidden_mount_that_is_too_deep_is_not_named(
    house: Make, top: str, denied: str
) -> None:
    la = house()
    above = f"/la{top}" + "/d" * (MAX_SEGMENTS - 4)
    secret = with_two_mounts(la, above)
    for who in ("bob", "carol"):
        la.grant(who, "all", "/la")
        la.grant(who, "alter", "/la", kind=access_pb2.RESOURCE_TYPE_CLUSTER)
    hidden = access_pb2.AddGrantsRequest(path=secret, kind=4, grants=grants("bob", denied))  # type: ignore[arg-type]
    la.ask(ADMIN, "AddGrants", hidden)
    writes = inherited_writes(la.cluster.replica.snapshot, inherited("/", "/us/la", 1), 1)
    writes += welcome_writes(la.cluster.replica.snapshot, welcome("/us/la", 1), 1)
    la.put(*writes)
    removal = directory_pb2.DeleteEntryRequest(path=f"/us/la{top}", recursive=True)
    move = directory_pb2.MoveEntryRequest(path=f"/us/la{top}", new_path=f"/us/la{top[:-1]}e")
    for method, request in (("DeleteEntry", removal), ("MoveEntry", move)):
        refused = la.refusal("bob", method, request)
        assert "secret" not in f"{refused.message} {refused.metadata}"
        assert isinstance(refused, PermissionDenied) == (denied == "-all")
        for who in ("carol", ADMIN):
            assert "d/secret" in la.refusal(who, method, request).message
    for at, cluster_id in ((f"/us/la{top}", "kc-other"), ("/us/la/new", "kc-cret")):
        refused = mount_refusal(la, "bob", at, cluster_id)
        assert isinstance(refused, (MountOverlaps, MountLoop))
        assert "secret" not in f"{refused.message} {refused.metadata}"
        for who in ("carol", ADMIN):
            assert "d/secret" in mount_refusal(la, who, at, cluster_id).message


def mount_refusal(la: House, who: str, path: str, cluster_id: str) -> KdirError:
    entry = entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id=cluster_id))
    request = directory_pb2.CreateEntryRequest(path=path, entry=entry, validate_only=True)
    return la.refusal(who, "CreateEntry", request)


def test_A12_a_mount_is_refused_without_the_hidden_one_that_is_in_the_way(house: Make) -> None:
    la = house()
    secret = with_two_mounts(la, "/la/d/in")
    below = TableRow(federation_pb2.MountRow(mount=f"{secret}/x", cluster_id="kc-below"), 1)
    la.put(*below_writes(la.cluster.replica.snapshot, "kc-cret", [below], 1))
    for who in ("bob", "carol"):
        la.grant(who, "all", "/la")
        la.grant(who, "alter", "/la", kind=access_pb2.RESOURCE_TYPE_CLUSTER)
    hidden: Any = {"path": secret, "kind": KINDS[4], "grants": grants("bob", "-all")}
    la.ask(ADMIN, "AddGrants", access_pb2.AddGrantsRequest(**hidden))
    for at, cluster_id in (
        ("/la/d/in", "kc-other"),
        ("/la/d", "kc-other"),
        ("/la/new", "kc-cret"),
        ("/la/new", "kc-below"),
    ):
        refused = mount_refusal(la, "bob", at, cluster_id)
        seen = mount_refusal(la, "carol", at, cluster_id)
        assert type(refused) is type(seen)
        assert "secret" not in f"{refused.message} {refused.metadata}"
        assert secret in seen.message
    assert "/la/d/in/seen" in mount_refusal(la, "bob", "/la/new", "kc-seen").message
    la.put(Put(mounted_key("kc-lost"), b"1 2 /la/x"))
    la.put(Put(entry_key(ROOT_ID, Kind.LINK, "torn"), b"\xff"))
    assert "/la/torn" in mount_refusal(la, "carol", "/la/new", "kc-lost").message
    refused = mount_refusal(la, "bob", "/la/new", "kc-lost")
    assert isinstance(refused, MountLoop)
    assert "torn" not in refused.message


def test_a_mount_outside_this_cluster_is_named_as_in_the_list_of_mounts(house: Make) -> None:
    la = house()
    snapshot = la.cluster.replica.snapshot
    row = federation_pb2.MountRow(mount="/eu/far", cluster_id="kc-far", epoch=1)
    la.put(*inherited_writes(snapshot, inherited("/", "/la", 1), 1))
    la.put(*welcome_writes(snapshot, welcome("/la", 1), 1))
    la.put(*table_writes(snapshot, [TableRow(row, 1)]))
    la.grant("bob", "all", "/la")
    la.grant("bob", "alter", "/la", kind=access_pb2.RESOURCE_TYPE_CLUSTER)
    la.mkdir("/la/eu", closed=True)
    la.grant("bob", "-describe", "/la/eu")
    listed = la.ask("bob", "ListMounts", federation_pb2.ListMountsRequest()).rows
    assert "/eu/far" in [one.mount for one in listed]
    refused = mount_refusal(la, "bob", "/la/new", "kc-far")
    assert isinstance(refused, MountLoop)
    assert "is mounted at /eu/far already" in refused.message


def test_A12_a_hidden_mount_whose_cluster_is_mounted_again_is_absent_until_it_is_linked(
    house: Make, tmp_path: Path
) -> None:
    """Both clusters share an address, and the child's store still says that it is unmounted."""
    child = house(store=f"sqlite:///{tmp_path}/child.sqlite").cluster
    child.writer.commit_command(CreateMount(path=Path_.parse("/la/hr"), cluster_id="kc-hr"))
    child.writer.put_facts([Put(UNMOUNTED_KEY, b"no mount names it")])
    assert eventually(lambda: not child.is_mounted)
    root = House(house(mount="/", cluster="root").cluster, child)
    entry = entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id=child.cluster_id))
    root.ask(ADMIN, "CreateEntry", directory_pb2.CreateEntryRequest(path="/la", entry=entry))
    root.grant("bob", "describe", "/")
    denied = access_pb2.AddGrantsRequest(
        path="/la", grants=grants("bob", "-describe"), kind=entry_pb2.ENTRY_KIND_MOUNT
    )
    root.ask(ADMIN, "AddGrants", denied)
    for path in ("/la", "/la/x", "/lb/x"):
        assert root.outcome("bob", path) == "absent"
        batch = resolve_pb2.BatchResolveRequest(paths=[path])
        [outcome] = root.ask("bob", "BatchResolve", batch).outcomes
        assert outcome.WhichOneof("kind") == "absent"
        for method, request in (
            ("ListEntries", directory_pb2.ListEntriesRequest(path=path)),
            ("GetEntry", directory_pb2.GetEntryRequest(path=path)),
            ("DeleteEntry", directory_pb2.DeleteEntryRequest(path=path)),
        ):
            assert isinstance(root.refusal("bob", method, request), Absent)
    for method, below in (
        ("Resolve", resolve_pb2.ResolveRequest(path="/la/x")),
        ("ListEntries", directory_pb2.ListEntriesRequest(path="/la/x")),
        ("GetEntry", directory_pb2.GetEntryRequest(path="/la/x")),
        ("DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/x")),
    ):
        assert isinstance(root.refusal(ADMIN, method, below), Unmounted)
    for who, mounts, others in (("bob", [], []), (ADMIN, ["/la"], [child.cluster_id])):
        listed = root.ask(who, "ListMounts", federation_pb2.ListMountsRequest())
        assert [one.mount for one in listed.rows] == mounts
        assert listed.incomplete_cluster_ids == others
        answering = {one.cluster.cluster for one in listed.authorities}
        assert answering == ({"root", "la"} if others else {"root"})
    for name in (child.config.cluster, child.cluster_id, "unknown"):
        locate = resolve_pb2.LocateRequest(cluster=name, physical_name="x")
        outcome = root.ask("bob", "Locate", locate).outcome
        assert outcome.error.message == f"no cluster {name!r} is known to root"
        if name != "unknown":
            assert isinstance(root.refusal(ADMIN, "Locate", locate), Unmounted)
    # Nor does a caller learn of a hidden mount that moves.
    moving = directory_pb2.MoveEntryRequest(
        path="/la", new_path="/lb", kind=entry_pb2.ENTRY_KIND_MOUNT
    )
    root.ask(ADMIN, "MoveEntry", moving)
    child.writer.put_facts([Delete(UNMOUNTED_KEY)])
    assert eventually(lambda: child.is_mounted)
    for path in ("/lb", "/lb/x", "/lc/x"):
        assert root.outcome("bob", path) == "absent"
    below = resolve_pb2.ResolveRequest(path="/lb/x")
    assert isinstance(root.refusal(ADMIN, "Resolve", below), Unmounted)


def test_A12_an_unmounted_cluster_is_not_named_while_the_one_that_hides_its_mount_loads(
    house: Make, tmp_path: Path
) -> None:
    child = house(store=f"sqlite:///{tmp_path}/child.sqlite").cluster
    child.writer.put_facts([Put(UNMOUNTED_KEY, b"no mount names it")])
    assert eventually(lambda: not child.is_mounted)
    serving = house(mount="/zz", cluster="zz", store=f"sqlite:///{tmp_path}/zz.sqlite").cluster
    root = house(mount="/", cluster="root")
    root.grant("bob", "-describe", "/")
    loading = Cluster.open(root.cluster.config)
    for upper, incomplete, name in (
        (root.cluster, [], "root"),
        (loading, [loading.cluster_id], "zz"),
    ):
        shared = House(upper, child, serving)
        listed = shared.ask("bob", "ListMounts", federation_pb2.ListMountsRequest())
        assert listed.incomplete_cluster_ids == incomplete
        locate = resolve_pb2.LocateRequest(cluster=child.cluster_id, physical_name="x")
        message = shared.ask("bob", "Locate", locate).outcome.error.message
        assert message == f"no cluster {child.cluster_id!r} is known to {name}"
    loading.store.close()


def test_a_mount_as_deep_as_any_is_named_to_who_may_see_it(house: Make) -> None:
    la = house()
    above = "/la/d" + "/d" * (MAX_SEGMENTS - 3)
    secret = with_two_mounts(la, above)
    for who in ("bob", "carol"):
        la.grant(who, "all", "/la/d")
    hidden = access_pb2.AddGrantsRequest(
        path=secret, kind="ENTRY_KIND_MOUNT", grants=grants("bob", "-describe")
    )
    la.ask(ADMIN, "AddGrants", hidden)
    removal = directory_pb2.DeleteEntryRequest(path="/la/d", recursive=True)
    assert "secret" not in repr(la.refusal("bob", "DeleteEntry", removal))
    for who in ("carol", ADMIN):
        message = la.refusal(who, "DeleteEntry", removal).message
        assert secret in message
        assert f"{above}/seen" in message


def test_A12_topics_at_any_depth_are_counted_as_far_as_they_are_seen(la: House) -> None:
    la.grant("bob", "describe", "/la")
    topic(la, "/la/p/vis/deep")
    for who, below in (("bob", 2), (ADMIN, 4)):
        got = la.ask(who, "GetEntry", directory_pb2.GetEntryRequest(path="/la/p"))
        assert got.entry.directory.total_topic_count == below


def test_A12_how_much_a_directory_holds_is_not_shown_with_what_is_hidden(la: House) -> None:
    topic(la, "/la/p/vis/seen")
    topic(la, "/la/p/vis/secret")
    la.grant("bob", "-describe", "/la/p/vis/secret")
    la.grant("bob", "delete", "/la/p")
    request = directory_pb2.DeleteEntryRequest(path="/la/p/vis")
    assert isinstance(refused := la.refusal("bob", "DeleteEntry", request), NotEmpty)
    assert "topics" not in refused.metadata
    assert "2 topics" in la.refusal(ADMIN, "DeleteEntry", request).message


def test_hints_name_only_what_is_seen(la: House) -> None:
    def hint(who: str) -> str:
        request = directory_pb2.CreateEntryRequest(path="/la/p/hiddd/x", entry={"directory": {}})
        return la.refusal(who, "CreateEntry", request).message

    assert "did you mean /la/p/hidd?" in hint(ADMIN)
    assert "hidd?" not in hint("alice")


def test_what_a_command_is_about_is_what_the_caller_sees(la: House) -> None:
    topic(la, "/la/p/vis")
    request = access_pb2.AddGrantsRequest(
        path="/la/p/vis", kind=KINDS[2], grants=grants("alice", "-all")
    )
    la.ask(ADMIN, "AddGrants", request)
    la.ask("alice", "DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/p/vis"))
    gone = directory_pb2.GetEntryRequest(path="/la/p/vis", kind=KINDS[1])
    assert isinstance(la.refusal(ADMIN, "GetEntry", gone), Absent)
    assert la.ask(ADMIN, "GetEntry", directory_pb2.GetEntryRequest(path="/la/p/vis"))


def test_a_link_is_left_behind_by_who_may_create_there(la: House) -> None:
    la.mkdir("/la/own/x")
    la.mkdir("/la/to")
    la.grant("bob", "alter", "/la/own/x")
    la.grant("bob", "alter,create", "/la/to")
    move: dict[str, Any] = {"path": "/la/own/x", "new_path": "/la/to/x"}
    request = directory_pb2.MoveEntryRequest(**move, leave_link=True)
    assert isinstance(la.refusal("bob", "MoveEntry", request), InvalidNamespace)
    la.grant("bob", "describe", "/la/own")
    assert isinstance(la.refusal("bob", "MoveEntry", request), PermissionDenied)
    la.ask("bob", "MoveEntry", directory_pb2.MoveEntryRequest(**move))


def counts(house: House, who: str, path: str) -> list[tuple[int, int]]:
    """Returns how many topics and containers each call that shows a directory says it has."""
    name, above = path.rsplit("/", 1)[1], path.rsplit("/", 1)[0]
    resolved = house.ask(who, "Resolve", resolve_pb2.ResolveRequest(path=path))
    got = house.ask(who, "GetEntry", directory_pb2.GetEntryRequest(path=path))
    listed = house.ask(who, "ListEntries", directory_pb2.ListEntriesRequest(path=path))
    beside = house.ask(
        ADMIN if who == ADMIN else who,
        "ListEntries",
        directory_pb2.ListEntriesRequest(path=above, name_glob=name),
    )
    found = [resolved.outcome.resolution.entry, got.entry, listed.directory, *beside.entries]
    assert len(found) == 4
    return [(one.directory.topic_count, one.directory.container_count) for one in found]


def test_A12_counts_are_of_what_is_seen(la: House) -> None:
    la.grant("bob", "describe", "/la")
    assert set(counts(la, "bob", "/la/p")) == {(1, 1)}
    assert set(counts(la, ADMIN, "/la/p")) == {(2, 4)}
    la.grant("bob", "alter", "/la/p")
    la.mkdir("/la/p/vis/x/y")
    topic(la, "/la/p/vis/x/t1")
    topic(la, "/la/p/vis/x/y/t2")
    la.grant("bob", "-describe", "/la/p/vis/x/y")
    request = access_pb2.AddGrantsRequest(
        path="/la/p", grants=grants("eve", "read"), validate_only=True
    )
    seen = la.ask("bob", "AddGrants", request)
    assert seen.topic_count == seen.plan.entries.topics == 2  # t and vis/x/t1
    assert seen.plan.entries.directories == 3  # p, vis and vis/x
    every = la.ask(ADMIN, "AddGrants", request)
    assert every.topic_count == every.plan.entries.topics == 5
    assert every.plan.entries.directories == 6


def test_A12_pages_neither_name_nor_betray_what_is_hidden(la: House) -> None:
    la.mkdir("/la/list")
    for name in ("a", "b", "c", "d", "e"):
        topic(la, f"/la/list/{name}")
    la.grant("bob", "read", "/la/list")
    for name in ("c", "d", "e"):
        la.grant("bob", "-describe", f"/la/list/{name}")
    request = directory_pb2.ListEntriesRequest(path="/la/list", page_size=2)
    page = la.ask("bob", "ListEntries", request)
    assert [one.path for one in page.entries] == ["/la/list/a", "/la/list/b"]
    assert page.next_page_token == ""
    la.revoke("bob", "-describe", "/la/list/e")
    page = la.ask("bob", "ListEntries", request)
    request.page_token = page.next_page_token
    assert [one.path for one in la.ask("bob", "ListEntries", request).entries] == ["/la/list/e"]


def test_A12_a_plan_counts_only_what_is_seen(la: House) -> None:
    for who in ("bob", ADMIN):
        la.grant("bob", "alter", "/la/p")
        request = directory_pb2.UpdateEntryRequest(
            path="/la/p",
            entry={"policies": {"owner": "x"}},
            update_mask=FieldMask(paths=[CONFIG]),
            validate_only=True,
        )
        plan = la.ask(who, "UpdateEntry", request).plan
        topics = 3 if who == ADMIN else 1
        assert [one.topic_count for one in plan.policies] == [topics]
        assert plan.entries.topics == topics
        what_if = policies_pb2.GetEffectivePoliciesRequest(
            path="/la/p",
            what_if=policies_pb2.Policies(owner="x"),
            what_if_mask=FieldMask(paths=[CONFIG]),
        )
        answer = la.ask(who, "GetEffectivePolicies", what_if)
        assert (answer.topics_changed, answer.caller_view) == (topics, who != ADMIN)


def test_A12_a_topic_is_resolved_without_who_set_what_it_inherits(la: House) -> None:
    def inherited() -> policies_pb2.Policies:
        request = resolve_pb2.ResolveRequest(path="/la/p/t")
        found = la.ask("eve", "Resolve", request).outcome.resolution
        assert found.entry.HasField("topic")
        effective: policies_pb2.Policies = found.effective
        return effective

    la.grant("eve", "describe", "/la/p/t")
    for count, path in enumerate(("/la/p", "/la"), 1):
        update = directory_pb2.UpdateEntryRequest(
            path=path,
            entry={"policies": {"owner": "x", "contact": path}},
            update_mask=FieldMask(paths=[CONFIG, "policies.contact"]),
        )
        la.ask(ADMIN, "UpdateEntry", update)
        assert inherited() == policies_pb2.Policies(owner="x", contact="/la/p"), count


@pytest.mark.parametrize("hidden", ["hidd", "hidt", "hidl", "hidm"])
def test_A12_a_plan_is_the_same_without_what_is_hidden(la: House, hidden: str) -> None:
    la.grant("bob", "alter,alter-configs", "/la/p")

    def plans(who: str) -> list[Any]:
        update = directory_pb2.UpdateEntryRequest(
            path="/la/p",
            entry={"policies": {"owner": "x", "topic_config": {"retention.ms": {"value": "1"}}}},
            update_mask=FieldMask(paths=[CONFIG, "policies.topic_config.retention.ms"]),
            validate_only=True,
        )
        grant = access_pb2.AddGrantsRequest(
            path="/la/p", grants=grants("carol", "read"), validate_only=True
        )
        asked = (("UpdateEntry", update), ("AddGrants", grant))
        return [la.ask(who, method, request).plan for method, request in asked]

    was = {who: plans(who) for who in ("bob", "alice", ADMIN)}
    if hidden == "hidm":
        assert {one.cluster_count for one in was[ADMIN][0].policies} == {1}
    kind: Any = KINDS[["hidd", "hidt", "hidl", "hidm"].index(hidden) + 1]
    gone = directory_pb2.DeleteEntryRequest(path=f"/la/p/{hidden}", kind=kind, recursive=True)
    la.ask(ADMIN, "DeleteEntry", gone)
    assert plans(ADMIN) != was[ADMIN]
    for who in ("bob", "alice"):
        assert plans(who) == was[who]


def test_a_hidden_topic_below_the_root_is_hidden_however_its_path_is_spelled(house: Make) -> None:
    made = house(mount="/")
    topic(made, "/la/hidt")  # at /hidt: the helper leaves out the first segment
    topic(made, "/la/vis")
    made.grant("bob", "describe", "/")
    made.grant("bob", "-describe", "/hidt")
    assert made.outcome("bob", "/vis") == "resolution"
    assert made.outcome("bob", "/hidt") == "absent"
    spelled = ["//hidt", "hidt", "///hidt"]
    for path in spelled:
        assert made.refusal("bob", "Resolve", resolve_pb2.ResolveRequest(path=path)).reason
    request = resolve_pb2.BatchResolveRequest(paths=spelled)
    outcomes = made.ask("bob", "BatchResolve", request).outcomes
    assert {one.WhichOneof("kind") for one in outcomes} == {"error"}


def test_a_batch_answers_for_other_clusters_where_one_never_received_its_grants(
    house: Make, tmp_path: Path
) -> None:
    root = house(cluster="root", mount="/")
    child = house(
        cluster="kid",
        mount="/la/kid",
        parent=["127.0.0.1:1"],
        store=f"sqlite:///{tmp_path}/kid.sqlite",
    )
    root.mkdir("/x")
    root.grant("bob", "describe", "/")
    both = House(root.cluster, child.cluster)
    asked = resolve_pb2.BatchResolveRequest(paths=["/x", "/la/kid/y", "no path"])
    outcomes = both.ask("bob", "BatchResolve", asked).outcomes
    assert [one.WhichOneof("kind") for one in outcomes] == ["resolution", "error", "error"]
    assert [one.error.reason for one in outcomes[1:]] == [
        error_pb2.ERROR_REASON_NOT_READY,
        error_pb2.ERROR_REASON_INVALID_PATH,
    ]
    # The same of a server of that cluster alone.
    asked = resolve_pb2.BatchResolveRequest(paths=["/la/kid/y"])
    (outcome,) = child.ask("bob", "BatchResolve", asked).outcomes
    assert outcome.error.reason == error_pb2.ERROR_REASON_NOT_READY


@pytest.mark.parametrize(
    ("field", "method", "request_of"),
    [
        ("prefer", "Resolve", lambda: resolve_pb2.ResolveRequest(path="/la", prefer=NEWER)),
        (
            "prefer",
            "Resolve",
            lambda: resolve_pb2.ResolveRequest(path="/la", prefer=NEWER, recursive=True),
        ),
        (
            "prefer",
            "BatchResolve",
            lambda: resolve_pb2.BatchResolveRequest(paths=["/la"], prefer=NEWER),
        ),
        (
            "prefer",
            "BatchResolve",
            lambda: resolve_pb2.BatchResolveRequest(paths=["/la"], prefer=NEWER, recursive=True),
        ),
        (
            "kinds",
            "ListEntries",
            lambda: directory_pb2.ListEntriesRequest(path="/la", kinds=[NEWER]),
        ),
        ("kind", "GetEntry", lambda: directory_pb2.GetEntryRequest(path="/la", kind=NEWER)),
    ],
)
def test_a_kind_of_a_newer_version_is_refused_by_the_name_of_its_field(
    house: Make, field: str, method: str, request_of: Callable[[], Any]
) -> None:
    refused = house("open").refusal("", method, request_of())
    assert refused.message.startswith(f"{field}: found 99; known are DIRECTORY = 1, ")
    assert refused.metadata["field"] == field
