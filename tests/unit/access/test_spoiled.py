"""What is inherited and cannot be read any more: nobody is let in by it, and it can be mended."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kdir.v1 import (
    admin_pb2,
    directory_pb2,
    entry_pb2,
    federation_pb2,
    resolve_pb2,
    scan_pb2,
)

from directory.federation import inheritance, parent_state
from directory.federation.federation_state import unix_ms
from directory.federation.link_records import encode_record
from directory.namespace.entry import Kind
from directory.namespace.keys import INHERITED, entry_key
from directory.server.health import State, health_of
from directory.store.base import Put
from resolver.errors import (
    Absent,
    AlreadyExists,
    InvalidArgument,
    InvalidNamespace,
    NotReady,
    PermissionDenied,
    UnreadableRecord,
)
from tests.unit.access.conftest import ADMIN, House, grants, topic

STORES = ("sqlite", "etcd")

Make = Callable[..., House]
NO_PATH = federation_pb2.Inherited(incarnation="i", levels=[{"path": "no path"}])
SPOILED = [
    b"\xff\xfe\0nonsense\xff",
    b"nonsense",  # eight bytes: a time, and a message of nothing
    b"",
    encode_record(1, NO_PATH.SerializeToString()),
]
RESOLVE = resolve_pb2.ResolveRequest(path="/la/a")
STATUS = admin_pb2.GetStatusRequest()


def status_of(house: House, who: str) -> admin_pb2.GetStatusResponse:
    answer: admin_pb2.GetStatusResponse = house.ask(who, "GetStatus", STATUS)
    return answer


def detach(house: House, who: str, *, keep: bool = False) -> admin_pb2.DetachParentResponse:
    request = admin_pb2.DetachParentRequest(keep_inherited=keep)
    answer: admin_pb2.DetachParentResponse = house.ask(who, "DetachParent", request)
    return answer


@pytest.mark.parametrize("value", SPOILED)
def test_S21_nobody_is_let_in_and_a_super_user_sees_it_and_mends_it(
    house: Make, value: bytes
) -> None:
    la = house(parent=["127.0.0.1:1"])
    la.mkdir("/la/a")
    la.grant("bob", "read", "/la/a")
    la.put(Put(INHERITED, value))
    assert isinstance(la.refusal("bob", "Resolve", RESOLVE), NotReady)
    health = health_of(la.cluster)
    assert (health.state, health.ready) == (State.AWAITING_PARENT, False)
    status = status_of(la, ADMIN)
    assert "f/inherited" in status.parent.inherited_missing_reason
    assert status.unreadable_value_count == 1
    assert status.unreadable_values[0].startswith("b'f/inherited': ")
    keep = admin_pb2.DetachParentRequest(keep_inherited=True)
    assert isinstance(la.refusal(ADMIN, "DetachParent", keep), NotReady)
    assert la.cluster.replica.snapshot.fact(parent_state.DETACHED_KEY) is None
    detach(la, ADMIN)
    assert la.outcome("bob", "/la/a") == "resolution"
    assert health_of(la.cluster).state is State.SERVING
    assert not status_of(la, ADMIN).unreadable_value_count
    assert not status_of(la, ADMIN).parent.inherited_missing_reason


def test_what_was_dropped_once_is_dropped_for_each_server_that_is_asked(house: Make) -> None:
    """A caller whose first server hangs asks the second one, and learns that it is done."""
    la = house(parent=["127.0.0.1:1"])
    la.put(Put(INHERITED, SPOILED[0]))
    other = house(parent=["127.0.0.1:1"])
    first = detach(la, ADMIN)
    again = admin_pb2.DetachParentRequest(token=first.token)
    second: admin_pb2.DetachParentResponse = other.ask(ADMIN, "DetachParent", again)
    assert list(first.kept) == list(second.kept) == []


def test_what_is_kept_does_not_go_with_a_second_detach(house: Make) -> None:
    la = house(parent=["127.0.0.1:1"])
    inherited = federation_pb2.Inherited(incarnation="i")
    inherited.levels.add(path="/", grants=grants("bob", "read", host="*"))
    la.put(*inheritance.inherited_writes(la.cluster.replica.snapshot, inherited, unix_ms()))
    detach(la, ADMIN, keep=True)
    drop = admin_pb2.DetachParentRequest()
    assert isinstance(la.refusal(ADMIN, "DetachParent", drop), InvalidArgument)


def test_what_can_be_read_does_not_go_with_the_parent(house: Make) -> None:
    la = house(parent=["127.0.0.1:1"])
    inherited = federation_pb2.Inherited(incarnation="i")
    inherited.levels.add(path="/", grants=grants("bob", "read", host="*"))
    la.put(*inheritance.inherited_writes(la.cluster.replica.snapshot, inherited, unix_ms()))
    drop = admin_pb2.DetachParentRequest()
    assert isinstance(la.refusal(ADMIN, "DetachParent", drop), InvalidArgument)
    assert list(detach(la, ADMIN, keep=True).kept) == ["/"]


def test_an_open_cluster_lets_nobody_in_by_what_it_cannot_read(house: Make) -> None:
    """Somebody may have been denied; and of those who may mend it there are none but all."""
    la = house("open", auth={"allow_anonymous": True})
    la.mkdir("/la/a")
    la.put(Put(INHERITED, SPOILED[0]))
    listing = directory_pb2.ListEntriesRequest(path="/la")
    for method, request in (("Resolve", RESOLVE), ("ListEntries", listing)):
        assert isinstance(la.refusal("bob", method, request), NotReady)
    assert status_of(la, "").parent.inherited_missing_reason
    detach(la, "bob")
    assert la.outcome("bob", "/la/a") == "resolution"


def test_an_open_cluster_with_super_users_is_mended_by_them(house: Make) -> None:
    la = house("open")
    la.mkdir("/la/a")
    la.put(Put(INHERITED, SPOILED[0]))
    drop = admin_pb2.DetachParentRequest()
    assert isinstance(la.refusal("bob", "DetachParent", drop), NotReady)
    detach(la, ADMIN)
    assert la.outcome("bob", "/la/a") == "resolution"


@pytest.mark.parametrize("access", ["enforce", "open"])
def test_S21_a_change_of_an_entry_that_cannot_be_read_is_not_answered_with_absent(
    house: Make, access: str
) -> None:
    """Who may not describe it learns nothing of it."""
    la = house(access)
    la.mkdir("/la/d/x")
    directory_id = la.cluster.replica.snapshot.find_directory(["d"])
    assert directory_id is not None
    la.put(Put(entry_key(directory_id, Kind.DIRECTORY, "x"), b"\xff"))
    set_closed = entry_pb2.Entry(directory=entry_pb2.Directory(closed=True))
    for method, request in (
        ("DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/d/x")),
        ("DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/d/x/below")),
        (
            "UpdateEntry",
            directory_pb2.UpdateEntryRequest(
                path="/la/d/x", entry=set_closed, update_mask={"paths": ["directory.closed"]}
            ),
        ),
        ("MoveEntry", directory_pb2.MoveEntryRequest(path="/la/d/x", new_path="/la/d/y")),
        ("CreateEntry", directory_pb2.CreateEntryRequest(path="/la/d/x/t", entry=set_closed)),
    ):
        refusal = la.refusal(ADMIN, method, request)
        assert isinstance(refusal, UnreadableRecord)
        assert "the record of /la/d/x cannot be read: " in refusal.message
        if access == "enforce":
            assert isinstance(la.refusal("bob", method, request), Absent | InvalidNamespace)


def damage(house: House, parent: str, kind: Kind, name: str, record: bytes = b"\xff") -> None:
    directory_id = house.cluster.replica.snapshot.find_directory(parent.split("/")[2:])
    assert directory_id is not None
    house.put(Put(entry_key(directory_id, kind, name), record))


def listed(house: House, who: str, path: str, **fields: object) -> tuple[list[str], int]:
    """Returns the paths of all pages of a listing, and the number of entries that it lacks."""
    request = directory_pb2.ListEntriesRequest(path=path, **fields)  # type: ignore[arg-type]
    paths, unreadable = [], 0
    while True:
        page = house.ask(who, "ListEntries", request)
        paths += [one.path for one in page.entries]
        unreadable += page.unreadable_count
        if not page.next_page_token:
            return paths, unreadable
        request.page_token = page.next_page_token


def scanned(house: House, who: str, path: str = "", shards: int = 1) -> tuple[list[str], int]:
    """Returns the paths of all shards of a scan, and the number of entries that it lacks."""
    paths, unreadable = [], 0
    for shard in range(shards):
        token = None
        while token != "":
            request = scan_pb2.ScanTopicsRequest(
                path=path, shard=shard, shard_count=shards, page_size=1, page_token=token or ""
            )
            page = house.ask(who, "ScanTopics", request)
            paths += [one.path for one in page.entries]
            unreadable += page.unreadable_count
            token = page.next_page_token
    return sorted(paths), unreadable


def test_S21_a_listing_counts_what_it_lacks_for_callers_that_may_describe_it(house: Make) -> None:
    la = house()
    la.mkdir("/la/a/hr/salaries")
    la.mkdir("/la/other")
    topic(la, "/la/a/hr/t")
    la.grant("bob", "describe", "/la/a")
    la.grant("bob", "-describe", "/la/a/hr/salaries")
    la.grant("eve", "describe", "/la")
    la.grant("eve", "-describe", "/la/a")
    damage(la, "/la/a/hr", Kind.DIRECTORY, "salaries")
    damage(la, "/la/a/hr", Kind.TOPIC, "t")
    damage(la, "/la/a", Kind.DIRECTORY, "__s")
    assert listed(la, ADMIN, "/la/a/hr") == ([], 2)
    assert listed(la, ADMIN, "/la/a") == (["/la/a/hr"], 0)
    assert listed(la, ADMIN, "/la", recursive=True) == (["/la/a", "/la/a/hr", "/la/other"], 2)
    assert listed(la, ADMIN, "/la/other", recursive=True) == ([], 0)
    whole = listed(la, ADMIN, "/la", recursive=True, include_system=True, page_size=1)
    assert whole == (["/la/a", "/la/a/hr", "/la/other"], 3)
    # Who may not describe it learns nothing of it.
    assert listed(la, "bob", "/la/a/hr") == ([], 1)
    assert listed(la, "bob", "/la/a", recursive=True) == (["/la/a/hr"], 1)
    assert listed(la, "eve", "/la", recursive=True) == (["/la/other"], 0)
    [hr] = la.ask(ADMIN, "ListEntries", directory_pb2.ListEntriesRequest(path="/la/a")).entries
    [for_bob] = la.ask("bob", "ListEntries", directory_pb2.ListEntriesRequest(path="/la/a")).entries
    assert (hr.directory.unreadable_count, for_bob.directory.unreadable_count) == (2, 1)


def test_S21_what_may_have_been_closed_is_not_counted_by_open_access(house: Make) -> None:
    """That a directory is closed is lost with its record (A12)."""
    la = house("open")
    la.mkdir("/la/a/secret", closed=True)
    topic(la, "/la/a/t")
    damage(la, "/la/a", Kind.DIRECTORY, "secret")

    def counts(who: str) -> list[int]:
        request = directory_pb2.ListEntriesRequest(path="/la")
        [entry] = la.ask(who, "ListEntries", request).entries
        answer = la.ask(who, "Resolve", RESOLVE)
        resolved = answer.outcome.resolution.entry.directory
        lacked = (entry.directory.unreadable_count, resolved.unreadable_count)
        return [listed(la, who, "/la/a")[1], scanned(la, who)[1], *lacked]

    for who, count in ((ADMIN, 1), ("bob", 0), ("", 0), (ADMIN, 1)):
        assert counts(who) == [count] * 4
        assert listed(la, who, "/la/a")[0] == scanned(la, who)[0] == ["/la/a/t"]
    la.grant("bob", "describe", "/la/a")
    assert (counts("bob"), counts("eve"), counts(ADMIN)) == ([1] * 4, [0] * 4, [1] * 4)
    # A topic hides nothing but by its grants, which have rows of their own.
    damage(la, "/la/a", Kind.TOPIC, "t")
    assert (counts("bob"), counts("eve"), counts(ADMIN)) == ([2] * 4, [1] * 4, [2] * 4)


def answers_by_name(house: House, who: str, path: str) -> set[str]:
    """Returns the reasons of the errors with which the methods that read by name answer a path."""
    try:
        answered = {house.outcome(who, path).upper()}
    except UnreadableRecord as error:
        answered = {error.reason}
    for method, request in (
        ("GetEntry", directory_pb2.GetEntryRequest(path=path)),
        ("ListEntries", directory_pb2.ListEntriesRequest(path=path)),
        ("ScanTopics", scan_pb2.ScanTopicsRequest(path=path)),
    ):
        answered.add(house.refusal(who, method, request).reason)
    return answered


def test_S21_A12_open_access_answers_the_name_of_what_may_have_been_closed_and_counts_it_not(
    house: Make,
) -> None:
    """Decision 0035: who names it would believe that it is absent; who does not learns nothing."""
    la = house("open")
    la.mkdir("/la/a/secret", closed=True)
    la.mkdir("/la/denied/in")
    la.mkdir("/la/shut", closed=True)
    la.mkdir("/la/shut/in", ADMIN)
    la.grant("bob", "-describe", "/la/denied/in")
    for parent, name in (("/la/a", "secret"), ("/la/denied", "in"), ("/la/shut", "in")):
        damage(la, parent, Kind.DIRECTORY, name)
    unreadable = {"UNREADABLE_RECORD"}
    for path in ("/la/a/secret", "/la/a/secret/x"):
        for who in (ADMIN, "bob", ""):
            assert answers_by_name(la, who, path) == unreadable, (who, path)
    assert listed(la, "bob", "/la/a") == ([], 0)
    # That the name is taken is what whoever may create there learns, too.
    new = directory_pb2.CreateEntryRequest(path="/la/a/secret", entry={"directory": {}})
    assert isinstance(la.refusal("bob", "CreateEntry", new), AlreadyExists)
    # What is hidden by something that can be read stays absent.
    for path in ("/la/denied/in", "/la/denied/in/x", "/la/shut/in"):
        assert answers_by_name(la, ADMIN, path) == unreadable, path
        assert answers_by_name(la, "bob", path) == {"ABSENT"}, path


def test_S21_what_may_have_been_closed_is_not_removed_or_moved_by_open_access(house: Make) -> None:
    """Neither is it counted in the refusal (A12)."""
    la = house("open")
    la.mkdir("/la/a/b/secret", closed=True)
    topic(la, "/la/a/b/secret/t")
    la.grant("carol", "describe", "/la/a")
    changes = [
        ("DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/a")),
        ("DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/a", recursive=True)),
        (
            "DeleteEntry",
            directory_pb2.DeleteEntryRequest(path="/la/a", recursive=True, validate_only=True),
        ),
        ("MoveEntry", directory_pb2.MoveEntryRequest(path="/la/a", new_path="/la/c")),
    ]
    whole = [la.refusal("bob", *change) for change in changes]
    damage(la, "/la/a/b", Kind.DIRECTORY, "secret")
    damaged = [la.refusal("bob", *change) for change in changes]
    assert {type(one) for one in whole} == {PermissionDenied}
    assert [one.message for one in damaged] == [one.message for one in whole]
    plan = directory_pb2.DeleteEntryRequest(path="/la/a", recursive=True, validate_only=True)
    for who in ("carol", ADMIN):  # nobody is kept from it that the closed directory let pass
        assert la.ask(who, "DeleteEntry", plan).unreadable_count == 1
    la.mkdir("/la/x")
    damage(la, "/la/x", Kind.TOPIC, "t")
    la.ask("bob", "DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/x", recursive=True))


def test_S21_without_super_users_open_access_counts_every_unreadable_entry(house: Make) -> None:
    """Nobody else could see that there is something to repair."""
    la = house("open", auth={"allow_anonymous": True})
    la.mkdir("/la/a/x")
    damage(la, "/la/a", Kind.DIRECTORY, "x")
    for _ in range(2):
        assert listed(la, "", "/la/a") == ([], 1)
        assert scanned(la, "") == ([], 1)
        la.mkdir("/la/b", "bob")
        la.grant("eve", "read", "/la/b", by="bob")


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"name_glob": "sal*"}, 1),
        ({"name_glob": "x*"}, 0),
        ({"kinds": ["ENTRY_KIND_TOPIC"]}, 1),
        ({"kinds": ["ENTRY_KIND_LINK"]}, 1),
        # What is below a directory may be listed, whatever the directory's name.
        ({"name_glob": "x*", "recursive": True}, 1),
        ({"kinds": ["ENTRY_KIND_TOPIC"], "recursive": True}, 2),
    ],
)
def test_what_a_filter_leaves_out_is_not_missing(
    house: Make, fields: dict[str, object], count: int
) -> None:
    la = house()
    la.mkdir("/la/hr/salaries")
    topic(la, "/la/hr/t")
    damage(la, "/la/hr", Kind.DIRECTORY, "salaries")
    damage(la, "/la/hr", Kind.TOPIC, "t")
    assert listed(la, ADMIN, "/la/hr", **fields) == ([], count)


def test_S21_a_topic_that_is_damaged_further_in_does_not_fail_its_page(house: Make) -> None:
    """A load checks the first bytes of a record only."""
    la = house()
    la.mkdir("/la/a")
    for name in ("t1", "t2", "t3"):
        topic(la, f"/la/a/{name}")
    snapshot = la.cluster.replica.snapshot
    directory_id = snapshot.find_directory(["a"])
    assert directory_id is not None
    record = snapshot.nodes[directory_id].topics.get("t2")
    assert record is not None
    damage(la, "/la/a", Kind.TOPIC, "t2", record + b"\xff")
    la = house()  # a second server of the store
    assert "t2" in la.cluster.replica.snapshot.nodes[directory_id].topics
    rest = ["/la/a/t1", "/la/a/t3"]
    for size in (1, 2, 0):
        assert listed(la, ADMIN, "/la/a", page_size=size) == (rest, 1)
    assert scanned(la, ADMIN) == (rest, 1)
    assert scanned(la, ADMIN, shards=3) == (rest, 1)


def test_S21_a_scan_counts_what_it_lacks_for_callers_that_may_describe_it(house: Make) -> None:
    la = house()
    la.mkdir("/la/a/hr/salaries")
    for path in ("/la/a/hr/salaries/s", "/la/a/hr/t", "/la/a/u"):
        topic(la, path)
    la.grant("bob", "describe", "/la/a")
    la.grant("bob", "-describe", "/la/a/hr/salaries")
    damage(la, "/la/a/hr", Kind.DIRECTORY, "salaries")
    damage(la, "/la/a/hr", Kind.TOPIC, "t")
    for shards in (1, 4):
        assert scanned(la, ADMIN, shards=shards) == (["/la/a/u"], 2)
        assert scanned(la, "bob", "/la/a", shards=shards) == (["/la/a/u"], 1)


def test_S21_a_hidden_topic_that_cannot_be_read_fails_no_listing_and_is_not_named(
    house: Make,
) -> None:
    la = house()
    la.mkdir("/la/a")
    for name in ("t1", "t2"):
        topic(la, f"/la/a/{name}")
    la.grant("bob", "describe", "/la")
    la.grant("bob", "-describe", "/la/a/t2")
    directory_id = la.cluster.replica.snapshot.find_directory(["a"])
    assert directory_id is not None
    record = la.cluster.replica.snapshot.nodes[directory_id].topics.get("t2")
    assert record is not None
    damage(la, "/la/a", Kind.TOPIC, "t2", record + b"\xff")
    la = house()  # a second server of the store, since a load checks the first bytes only
    assert listed(la, "bob", "/la/a") == (["/la/a/t1"], 0)
    assert scanned(la, "bob") == (["/la/a/t1"], 0)
    [shown] = la.ask("bob", "ListEntries", directory_pb2.ListEntriesRequest(path="/la")).entries
    assert (shown.directory.topic_count, shown.directory.total_topic_count) == (1, 1)
