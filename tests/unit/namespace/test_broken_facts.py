"""Facts that cannot be read stop no command and not the reaper (S21)."""

from __future__ import annotations

import pytest

from directory.namespace.command import (
    CreateDirectory,
    CreateTopic,
    DeleteEntry,
    ForgetRetired,
    MoveEntry,
    ReapDeleted,
)
from directory.namespace.entry import ROOT_ID, Kind, Provision
from directory.namespace.keys import (
    DETACHED,
    GRANTS,
    READ_ONLY,
    claim_key,
    detached_key,
    entry_key,
    grants_key,
    read_only_id,
    removal_key,
    retired_key,
)
from directory.namespace.physical_names import RETIRED_FOR_MS
from directory.namespace.plan_reap import why_held_up
from directory.namespace.removal_progress import Removal, removals
from directory.namespace.snapshot import Snapshot
from directory.store.base import Put
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import PhysicalNameRetired
from tests.support.trees import Cluster, path

NONSENSE = b"\xff\xfe\0nonsense"


def holding(*facts: tuple[bytes, bytes]) -> Cluster:
    """Returns a cluster of one topic and of these facts."""
    cluster = Cluster()
    cluster.do(
        CreateDirectory(path=path("/la/old")),
        CreateDirectory(path=path("/la/new")),
        CreateTopic(path=path("/la/old/t")),
    )
    put(cluster, *facts)
    return cluster


def put(cluster: Cluster, *facts: tuple[bytes, bytes]) -> None:
    writes = tuple(Put(*fact) for fact in facts)
    cluster.rows.commit((), writes)
    cluster.snapshot = cluster.snapshot.apply(cluster.rows.revision, writes)


@pytest.mark.parametrize("name", [b"", b"zz", b"\xff"])
def test_S21_a_read_only_mark_that_names_no_directory_is_no_mark(name: bytes) -> None:
    assert read_only_id(READ_ONLY + name) == 0
    cluster = holding((READ_ONLY + name, NONSENSE))
    cluster.do(MoveEntry(path=path("/la/old"), new_path=path("/la/new/old")))
    cluster.do(DeleteEntry(path=path("/la/new"), recursive=True), ReapDeleted())
    assert cluster.show() == ""


def test_S21_a_name_retired_until_nobody_knows_when_stays_retired() -> None:
    cluster = holding((retired_key("x"), NONSENSE))
    with pytest.raises(PhysicalNameRetired):
        cluster.do(CreateTopic(path=path("/la/x"), physical_name="x"))
    cluster.do(CreateTopic(path=path("/la/x")))
    assert cluster.topic("/la/x").physical_name != "x"
    assert cluster.plan(ForgetRetired(names=("x",))).writes == ()


def test_S21_a_detached_name_that_is_no_text_is_in_nobodys_way() -> None:
    cluster = holding((DETACHED + b"\xff", b""), (detached_key("y"), b""))
    cluster.do(CreateTopic(path=path("/la/x")))
    assert cluster.topic("/la/x").physical_name == "x"


@pytest.mark.parametrize(
    "value", [NONSENSE, b"", b"kafka", b"kafka\nno path", b"kafka\n/la\nx\n\n"]
)
def test_S21_what_was_decided_of_a_removal_and_cannot_be_read_leaves_kafka_alone(
    value: bytes,
) -> None:
    cluster = holding()
    topic = cluster.topic("/la/old/t")
    assert topic.provision is Provision.PENDING
    cluster.do(DeleteEntry(path=path("/la/old"), recursive=True), deletes_in_kafka=True)
    ((entry_id, before, _),) = removals(cluster.snapshot)
    assert before is not None
    assert before.goes_in_kafka
    put(cluster, (removal_key(entry_id), value))
    assert Removal.load(cluster.snapshot, entry_id) is None
    assert [one.removal for one in removals(cluster.snapshot)] == [None]
    cluster.do(ReapDeleted(), deletes_in_kafka=True)
    assert cluster.show() == "new/"
    assert cluster.rows.under(b"k/removal/") == {}


def unreadable_below() -> tuple[Cluster, bytes, bytes]:
    """Returns a removed directory that contains one, with a topic, whose record was spoiled; its
    key and its record before.
    """
    cluster = holding()
    cluster.do(
        CreateDirectory(path=path("/la/old/sub/deeper"), make_parents=True),
        CreateTopic(path=path("/la/old/sub/t2")),
        CreateTopic(path=path("/la/old/z")),
    )
    old = cluster.snapshot.find_directory(("old",))
    assert old is not None
    key = entry_key(old, Kind.DIRECTORY, "sub")
    (record,) = cluster.rows.under(key).values()
    put(cluster, (key, NONSENSE))
    cluster.do(DeleteEntry(path=path("/la/old"), recursive=True))
    return cluster, key, record


def test_S21_a_removed_directory_stays_while_one_in_it_cannot_be_read() -> None:
    """Taken away, it would leave behind entries that nobody finds, with their names in Kafka."""
    cluster, key, record = unreadable_below()
    cluster.do(ReapDeleted())
    assert cluster.plan(ReapDeleted()).writes == ()
    assert repr(key) in why_held_up(cluster.snapshot)
    assert cluster.snapshot.locate("old.z") is None, "the rest is gone"
    assert cluster.show().startswith("new/\n(removed)")
    # A version that can read it came, or a backup was looked at.
    put(cluster, (key, record))
    assert why_held_up(cluster.snapshot) == ""
    cluster.do(ReapDeleted())
    assert not cluster.snapshot.has_lost
    assert cluster.rows.under(b"k/removal/") == {}
    assert [key[-3:] for key in cluster.rows.under(b"e/")] == [b"new"]


def test_S21_where_nothing_can_lie_in_it_it_goes() -> None:
    cluster = holding()
    old = cluster.snapshot.find_directory(("old",))
    assert old is not None
    put(cluster, (entry_key(old, Kind.DIRECTORY, "empty"), NONSENSE))
    put(
        cluster,
        (entry_key(old, Kind.TOPIC, "u"), NONSENSE),
        (grants_key(old, Kind.TOPIC, "u"), b""),
    )
    cluster.do(DeleteEntry(path=path("/la/old"), recursive=True), ReapDeleted())
    assert not cluster.snapshot.unreadable_values
    assert list(cluster.rows.under(b"k/removal/")) == []
    assert list(cluster.rows.under(GRANTS)) == []


@pytest.mark.parametrize(
    "key", [GRANTS, GRANTS + b"short", GRANTS + bytes(8) + b"x", GRANTS + bytes(8) + b"t\xff"]
)
def test_S21_grants_of_no_place_are_named_by_their_own_key(key: bytes) -> None:
    cluster = holding((key, NONSENSE))
    rows = sorted((one, value) for one, (value, _) in cluster.rows.values.items())
    for snapshot in (cluster.snapshot, Snapshot.load(ProtoCodec(), "i", 1, [rows])):
        assert dict(snapshot.unreadable_values) == {key: f"not a key of grants: {key!r}"}


def test_S21_a_damaged_claim_is_replaced_and_what_cannot_be_read_keeps_its_name() -> None:
    cluster = holding()
    key = claim_key("a_b")
    cluster.do(CreateTopic(path=path("/la/t"), physical_name="a.b"))
    put(cluster, (key, b"a.b\na_b"))
    spoiled = entry_key(ROOT_ID, Kind.TOPIC, "u")
    removal = DeleteEntry(path=path("/la/t"))
    assert not cluster.commit(cluster.plan(removal))
    claims = {key: b"a.b\na_b"}
    put(cluster, (spoiled, NONSENSE))
    cluster.do(removal, claims=claims)
    assert cluster.rows.values[key][0] == b"a_b"
    claims = {key: b"a_b"}
    create = CreateTopic(path=path("/la/v"), physical_name="a_b")
    day = cluster.context.now_ms + RETIRED_FOR_MS
    assert not cluster.commit(cluster.plan(create, claims=claims, now_ms=day))
    cluster.rows.values.pop(spoiled)
    cluster.snapshot = cluster.loaded()
    cluster.do(create, claims=claims, now_ms=day)
    assert cluster.rows.values[key][0] == b"a_b"
