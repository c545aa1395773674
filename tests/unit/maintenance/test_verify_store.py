"""Each kind of difference, planted between rows and a snapshot of them, is named where it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from directory.maintenance.verify_store import Between, Difference, StoreComparison
from directory.namespace.command import (
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    UpdateEntry,
)
from directory.namespace.entry import ROOT_ID, Directory, Kind, Mount, Provision
from directory.namespace.keys import (
    CLAIM,
    INHERITED,
    LEVEL,
    MEMBER,
    PARENT,
    claim_key,
    entry_key,
    large_change_key,
    mounted_key,
    removal_key,
    request_key,
    retired_key,
    retired_value,
    role_key,
)
from directory.store.event_rows import FLOOR_KEY
from tests.support.trees import Cluster, path

Rows = dict[bytes, bytes]


def a_cluster() -> Cluster:
    cluster = Cluster("/la")
    cluster.do(
        CreateDirectory(path=path("/la/a/b"), make_parents=True),
        CreateDirectory(path=path("/la/gone"), make_parents=True),
        CreateTopic(path=path("/la/a/t")),
        CreateTopic(path=path("/la/a/b/u"), physical_name="plain"),
        CreateTopic(path=path("/la/gone/v")),
        CreateLink(path=path("/la/l"), targets=(path("/la/a"),)),
        CreateMount(path=path("/la/m"), cluster_id="kc-child"),
        MoveEntry(path=path("/la/a/t"), new_path=path("/la/a/w")),
        DeleteEntry(path=path("/la/gone"), recursive=True),
    )
    return cluster


def rows_of(cluster: Cluster) -> Rows:
    return {key: value for key, (value, _) in cluster.rows.values.items()}


def compare(cluster: Cluster, rows: Rows, looked: list[int] | None = None) -> list[Difference]:
    def check() -> None:
        if looked is not None:
            looked.append(1)

    comparison = StoreComparison(cluster.snapshot, iter(sorted(rows.items())), cluster.mount, check)
    found = list(comparison.differences())
    assert comparison.row_count == len(rows)
    return found


def of_store(rows: Rows) -> list[Difference]:
    """Returns what is wrong with rows that a replica loaded just so."""
    cluster = Cluster("/la")
    cluster.rows.values = {key: (value, 1) for key, value in rows.items()}
    cluster.rows.revision = 1
    cluster.snapshot = cluster.loaded()
    found = compare(cluster, rows)
    assert all(one.compared is Between.STORE for one in found), found
    return found


def brief(found: list[Difference]) -> list[tuple[str, str, str, str, str]]:
    assert all(one.advice for one in found)
    return [
        (one.compared.value, one.path_or_key, one.field, one.expected, one.actual) for one in found
    ]


def place(cluster: Cluster, text: str, kind: Kind) -> bytes:
    relative = path(text).below(cluster.mount)
    parent_id = cluster.snapshot.find_directory(relative[:-1])
    assert parent_id is not None
    return entry_key(parent_id, kind, relative[-1])


def test_a_replica_that_followed_and_one_that_loads_are_equal_to_the_rows() -> None:
    cluster = a_cluster()
    rows = rows_of(cluster)
    assert len(rows) > 12
    assert compare(cluster, rows) == []
    assert of_store(rows) == []
    cluster.do(UpdateEntry(path=path("/la"), changes={"policies.owner": "ana"}))
    assert compare(cluster, rows_of(cluster)) == []
    assert of_store(rows_of(cluster)) == []


def test_an_empty_cluster_is_equal() -> None:
    assert compare(Cluster("/la"), {}) == []
    # A root directory that nobody set anything on may have a record.
    root = entry_key(0, Kind.DIRECTORY, "")
    plain = Cluster("/la").codec.encode(Directory(entry_id=ROOT_ID))
    assert compare(Cluster("/la"), {root: plain}) == []


def test_rows_that_only_one_of_them_has() -> None:
    cluster = a_cluster()
    rows = rows_of(cluster)
    topic, link = place(cluster, "/la/a/w", Kind.TOPIC), place(cluster, "/la/l", Kind.LINK)
    del rows[topic], rows[link]
    rows[role_key("reaper")] = b"somebody"
    rows[entry_key(ROOT_ID, Kind.DIRECTORY, "new")] = cluster.codec.encode(Directory(entry_id=99))
    claims = [one for one in compare(cluster, rows) if one.field != "claim"]
    assert brief(claims) == [
        ("store-replica", "/la/l", "row", "missing", "there"),
        ("store-replica", "/la/new", "row", "there", "missing"),
        ("store-replica", "/la/a/w", "row", "missing", "there"),
        ("store-replica", "l/reaper", "row", "there", "missing"),
    ]
    everything = compare(cluster, {})
    assert len(everything) >= len(rows_of(cluster)) - 5


@pytest.mark.parametrize(
    ("text", "kind", "fields", "wanted", "found"),
    [
        ("/la/a/w", Kind.TOPIC, {"partitions": 12}, "partitions=12", "partitions=0"),
        (
            "/la/a/w",
            Kind.TOPIC,
            {"provision": Provision.ACTIVE, "adopted": True},
            "provision=1, adopted=True",
            "provision=2, adopted=False",
        ),
        ("/la/a", Kind.DIRECTORY, {"closed": True}, "closed=True", "closed=False"),
    ],
)
def test_values_that_differ_are_shown_field_by_field(
    text: str, kind: Kind, fields: dict[str, object], wanted: str, found: str
) -> None:
    cluster = a_cluster()
    rows = rows_of(cluster)
    key = place(cluster, text, kind)
    changed = replace(cluster.codec.decode(rows[key]), **fields)  # type: ignore[arg-type]
    rows[key] = cluster.codec.encode(changed)
    assert brief(compare(cluster, rows)) == [("store-replica", text, "value", wanted, found)]


def test_facts_that_differ() -> None:
    cluster = a_cluster()
    rows = rows_of(cluster)
    rows[mounted_key("kc-child")] = b"0 0"
    assert ("store-replica", "f/mounted/kc-child", "value") in [
        (one.compared, one.path_or_key, one.field) for one in compare(cluster, rows)
    ]


def test_claims_are_what_the_entries_say() -> None:
    cluster = a_cluster()
    rows = rows_of(cluster)
    del rows[claim_key("plain")]
    rows[CLAIM + b"nobody"] = b"nobody"
    rows[claim_key("a.t")] = b"a.t\na_t"
    assert brief(of_store(rows)) == [
        ("store", "p/a_t", "claim", "a.t", "a.t, a_t"),
        ("store", "p/nobody", "claim", "no claim: no entry has the name", "nobody"),
        ("store", "/la/a/b/u", "claim", "plain", "none"),
    ]


def test_two_entries_of_one_name_in_kafka() -> None:
    cluster = a_cluster()
    rows = rows_of(cluster)
    key = place(cluster, "/la/a/w", Kind.TOPIC)
    twin = replace(cluster.codec.decode(rows[key]), entry_id=99)
    rows[entry_key(ROOT_ID, Kind.TOPIC, "twin")] = cluster.codec.encode(twin)
    assert brief(of_store(rows)) == [("store", "/la/a/w", "physical_name", "a.t", "/la/twin")]


def test_mounts_and_their_claims_agree() -> None:
    cluster = a_cluster()
    rows = rows_of(cluster)
    mount = cluster.entry("/la/m")
    assert isinstance(mount, Mount)
    wanted = f"{mount.entry_id:016x} {mount.epoch}"
    for broken, found in ((None, "none"), (b"1 2", "1 2")):
        if broken is None:
            del rows[mounted_key("kc-child")]
        else:
            rows[mounted_key("kc-child")] = broken
        assert brief(of_store(rows)) == [("store", "/la/m", "mounted", wanted, found)]
    rows = rows_of(cluster)
    rows[mounted_key("kc-other")] = b"12 3"
    no_mount = "no claim: nothing is mounted so"
    assert brief(of_store(rows)) == [("store", "f/mounted/kc-other", "mounted", no_mount, "12 3")]


def test_orphans_are_entries_whose_directory_does_not_exist() -> None:
    cluster = a_cluster()
    rows = rows_of(cluster)
    node = cluster.snapshot.find_directory(("a", "b"))
    del rows[place(cluster, "/la/a/b", Kind.DIRECTORY)]
    (orphans,) = of_store(rows)
    assert (orphans.path_or_key, orphans.field) == (f"directory {node:x}", "parent")
    assert (orphans.expected, orphans.actual) == ("a record of it", "none")
    assert "1 topic and" in orphans.advice
    assert "restore a backup" in orphans.advice


def unreadable_entry(cluster: Cluster, rows: Rows) -> str:
    rows[place(cluster, "/la/a", Kind.DIRECTORY)] = b"\xff"
    return "/la/a"


def unreadable_topic(cluster: Cluster, rows: Rows) -> str:
    key = place(cluster, "/la/a/w", Kind.TOPIC)
    rows[key] = rows[key][:10] + b"\xff\xff"  # its first bytes are as a load wants them
    return "/la/a/w"


def unreadable(key: bytes, value: bytes) -> Callable[[Cluster, Rows], str]:
    def plant(_: Cluster, rows: Rows) -> str:
        rows[key] = value
        return key.decode("utf-8", "backslashreplace").replace("\0", "\\x00")

    return plant


@pytest.mark.parametrize(
    "plant",
    [
        unreadable_entry,
        unreadable_topic,
        unreadable(b"e/odd", b""),
        unreadable(request_key("ana", "one"), b"{}"),
        unreadable(b"o/01-1-aa", b"\xff"),
        unreadable(FLOOR_KEY, b"minus one"),
        unreadable(FLOOR_KEY, b"9" * 5_000),
        unreadable(retired_key("x"), b"tomorrow"),
        unreadable(LEVEL, b"\xff"),
        unreadable(PARENT, b"12345678\xff"),
        unreadable(INHERITED, b"12345678\xff"),
        unreadable(large_change_key("sweep"), b"\xff"),
        unreadable(removal_key(5), b"kafka\nno path"),
        unreadable(MEMBER + b"la-1", b"\xff"),
    ],
)
def test_values_that_cannot_be_read(plant: Callable[[Cluster, Rows], str]) -> None:
    cluster = a_cluster()
    rows = rows_of(cluster)
    where = plant(cluster, rows)
    found = of_store(rows)
    assert (where, "value", "readable") in [
        (one.path_or_key, one.field, one.expected) for one in found
    ]
    # What follows from it (orphans, claims of what cannot be read) is named as such.
    assert {one.field for one in found} <= {"value", "parent", "claim"}


@pytest.mark.parametrize("awaited", [False, True])
def test_a_retired_name_is_readable(awaited: bool) -> None:
    rows = rows_of(a_cluster())
    rows[retired_key("x")] = retired_value(1_700_000_000_000, awaited=awaited)
    assert "readable" not in [one.expected for one in of_store(rows)]


def test_a_floor_beyond_the_newest_revision() -> None:
    rows = rows_of(a_cluster()) | {FLOOR_KEY: b"77"}
    assert brief(of_store(rows)) == [("store", "o/-", "floor", "at most 1", "77")]


def test_long_work_looks_whether_it_is_still_wanted() -> None:
    cluster = Cluster("/la")
    rows = {b"o/%08d" % number: b"" for number in range(10_000)}
    looked: list[int] = []
    assert compare(cluster, rows, looked) == []
    assert len(looked) >= 5
