"""A cluster that came to a longer mount, at which entries have no valid path, is answered about all
the same: those entries are shown with the paths that they have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from kdir.v1 import access_pb2, directory_pb2, entry_pb2, resolve_pb2, watch_pb2

from directory.change_log.state_records import snapshot_records
from directory.federation.inheritance import inherited_writes
from directory.federation.parent_state import welcome_writes
from directory.kafka.adoption import recorded_topics
from directory.namespace.command import RecordObservations, TopicObservation
from directory.namespace.entry import Provision
from resolver.errors import ReadOnly
from resolver.path import MAX_SEGMENTS, Path
from tests.unit.access.conftest import ADMIN, House, grants, topic
from tests.unit.federation.test_one_commit import inherited, welcome

DEEP = "/us/la" + "/d" * (MAX_SEGMENTS - 1)
"""65 segments."""
TOPIC = f"{DEEP[:-2]}/t"


@pytest.fixture
def la(house: Callable[..., House]) -> House:
    made = house()
    made.mkdir(DEEP.removeprefix("/us"))
    topic(made, TOPIC.removeprefix("/us"), provision=Provision.PENDING)
    made.mkdir("/la/other")
    made.mkdir("/la/hidden")
    made.grant("dora", "-read", DEEP.removeprefix("/us"))
    come_to_a_longer_mount(made)
    for who in ("bob", "carol"):
        made.grant(who, "all", "/us/la")
    made.grant("carol", "-describe", "/us/la/hidden")
    return made


def come_to_a_longer_mount(la: House) -> None:
    snapshot = la.cluster.replica.snapshot
    writes = inherited_writes(snapshot, inherited("/", "/us/la", 1), 1)
    la.put(*writes, *welcome_writes(snapshot, welcome("/us/la", 1), 1))


def observe(la: House) -> None:
    """Commits a change of the topic, as the reconciler does."""
    snapshot = la.cluster.replica.snapshot
    (found,) = recorded_topics.recorded_topics(snapshot, la.cluster.mount_at(snapshot))
    assert str(found.path) == TOPIC
    news = TopicObservation(
        path=found.path, entry_id=found.topic.entry_id, provision=Provision.MISSING
    )
    la.cluster.writer.commit_command(RecordObservations(news=(news,)))


@pytest.mark.parametrize("who", [ADMIN, "bob", "carol"])
def test_what_is_too_deep_is_listed_and_located(la: House, who: str) -> None:
    assert {DEEP, TOPIC} <= set(la.names(who, "/us/la", recursive=True))
    name = TOPIC.removeprefix("/us/la/").replace("/", ".")
    located = la.ask(who, "Locate", resolve_pb2.LocateRequest(cluster="la", physical_name=name))
    assert located.outcome.resolution.entry.path == TOPIC
    update: Any = {"path": "/us/la/d", "grants": grants("dora", "read"), "validate_only": True}
    plan = la.ask(who, "AddGrants", access_pb2.AddGrantsRequest(**update)).plan
    assert {one.path for one in plan.access} == {"/us/la/d", DEEP}


def test_a_mount_that_is_too_deep_is_listed_with_its_state(house: Callable[..., House]) -> None:
    la = house()
    mount = f"{TOPIC.removeprefix('/us')}m"
    la.mkdir(mount.rpartition("/")[0])
    entry = entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id="kc-far"))
    la.ask(ADMIN, "CreateEntry", directory_pb2.CreateEntryRequest(path=mount, entry=entry))
    come_to_a_longer_mount(la)
    parent = f"/us{mount}".rpartition("/")[0]
    for path in (parent, "/us/la"):
        request = directory_pb2.ListEntriesRequest(path=path, recursive=path != parent)
        found = la.ask(ADMIN, "ListEntries", request).entries[-1]
        assert found.path == f"/us{mount}"
        assert found.mount.state == entry_pb2.MOUNT_STATE_PENDING


@pytest.mark.parametrize("who", [ADMIN, "bob", "carol"])
def test_a_change_of_what_is_too_deep_is_an_event_like_others(la: House, who: str) -> None:
    watches = {
        path: la.ask(who, "Watch", watch_pb2.WatchRequest(path=path, checkpoint_seconds=1))
        for path in ("/us/la", "/us/la/d", "/us/la/other")
    }
    for watch in watches.values():
        next(watch)
    observe(la)
    la.mkdir("/us/la/other/new")
    for path, watch in watches.items():
        expected = [one for one in (TOPIC, "/us/la/other/new") if one.startswith(f"{path}/")]
        assert [next(watch).events[0].path for _ in expected] == expected
        listed = la.ask(who, "ListChanges", watch_pb2.ListChangesRequest(path=path)).events
        found = [one.path for one in listed if one.path in (TOPIC, "/us/la/other/new")]
        assert found == expected[::-1]
    removal = directory_pb2.DeleteEntryRequest(path="/us/la/d", recursive=True)
    la.ask(who, "DeleteEntry", removal)
    assert [one.path for one in next(watches["/us/la"]).events] == ["/us/la/d"]


def test_the_change_log_and_the_reconciler_have_what_is_too_deep(la: House) -> None:
    snapshot = la.cluster.replica.snapshot
    mount = la.cluster.mount_at(snapshot)
    records = snapshot_records(snapshot, mount, "kc-la", 1, revision=1, now_ms=0)
    paths = {record.path for _, record in records}
    assert {DEEP, TOPIC, "/us/la/other"} <= paths
    parent_id = snapshot.find_directory(Path.parse(TOPIC.removeprefix("/us/la")).segments[:-1])
    assert parent_id is not None
    pending = recorded_topics.pending(snapshot, mount, (parent_id, "t"))
    assert pending is not None
    assert str(pending.path) == TOPIC


def test_A12_what_is_hidden_and_too_deep_is_not_named(house: Callable[..., House]) -> None:
    la = house()
    secret = f"{DEEP.removeprefix('/us')[:-2]}/secret"
    la.mkdir(secret)
    la.grant("bob", "all", "/la")
    la.grant("carol", "all", "/la")
    la.grant("bob", "-describe", secret)
    update = directory_pb2.UpdateEntryRequest(
        path=secret,
        entry={"policies": {"read_only": True}},
        update_mask=FieldMask(paths=["policies.read_only"]),
    )
    la.ask(ADMIN, "UpdateEntry", update)
    come_to_a_longer_mount(la)
    removal = directory_pb2.DeleteEntryRequest(path="/us/la/d", recursive=True)
    refused = la.refusal("bob", "DeleteEntry", removal)
    assert isinstance(refused, ReadOnly)
    assert "secret" not in f"{refused.message} {refused.metadata}"
    assert f"/us{secret} is read-only" in la.refusal("carol", "DeleteEntry", removal).message
