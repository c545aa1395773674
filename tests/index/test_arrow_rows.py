"""Pages become rows: each column, odd values, and the two batches that Spark gets beside them."""

from base64 import urlsafe_b64encode
from datetime import UTC, datetime

import pytest
from kdir.v1 import entry_pb2, scan_pb2

from resolver.index.arrow_rows import topic_batch, unread_batch, with_cluster
from resolver.index.row_schema import (
    COLUMNS,
    TOPIC_COLUMNS,
    ClusterState,
    Listener,
    arrow_schema,
    partition_values,
    state_from_partition,
)
from tests.index.fakes import page, topic

NOW = datetime(2026, 11, 1, 12, 0, 0, 123456, tzinfo=UTC)


def test_each_column_of_a_topic() -> None:
    raw = bytes(range(240, 256))
    entry, owner = topic(
        "/la/search/clicks",
        owner="search",
        topic_id=raw,
        partitions=24,
        replication_factor=3,
        drift_count=2,
        adopted=True,
    )
    entry.entry_id = 77
    entry.changed_by = "User:ana"
    entry.policies.tags["tier"].value = "1"
    entry.policies.tags["old"].cleared = True
    [row] = topic_batch(page((entry, owner))).to_pylist()
    assert row == {
        "path": "/la/search/clicks",
        "name": "clicks",
        "directory": "/la/search",
        "kind": "topic",
        "entry_id": 77,
        "physical_name": "la.search.clicks",
        "topic_id": urlsafe_b64encode(raw).decode().rstrip("="),
        "partitions": 24,
        "replication_factor": 3,
        "provision": "active",
        "owner": "search",
        "tags": [("tier", "1")],
        "drift_count": 2,
        "adopted": True,
        "changed_at": datetime.fromtimestamp(1_790_000_000, UTC),
        "changed_by": "User:ana",
    }


def test_what_is_not_known_is_null_and_not_a_made_up_value() -> None:
    bare = entry_pb2.Entry(path="/top")
    bare.topic.physical_name = "top"
    [row] = topic_batch(page((bare, ""))).to_pylist()
    unknown = {"topic_id", "owner", "changed_at", "changed_by"}
    assert {name for name, value in row.items() if value is None} == unknown
    assert row["directory"] == "/"
    assert row["tags"] == []


def test_tags_stay_with_their_topics() -> None:
    entries = [topic(f"/t{number}") for number in range(4)]
    entries[1][0].policies.tags["a"].value = "1"
    entries[3][0].policies.tags["b"].value = "2"
    tags = topic_batch(page(*entries)).column("tags").to_pylist()
    assert tags == [[], [("a", "1")], [], [("b", "2")]]


def test_ids_and_enums_of_a_newer_server_are_carried() -> None:
    entry, owner = topic("/t", provision=99, topic_id=b"\x01\x02")
    entry.entry_id = 2**64 - 1
    [row] = topic_batch(page((entry, owner), topic("/u", topic_id=b"\xff" * 16))).to_pylist()[:1]
    assert (row["entry_id"], row["provision"], row["topic_id"]) == (-1, "99", "AQI")


def test_a_server_that_sends_no_owners_costs_the_owners_only() -> None:
    batch = topic_batch(scan_pb2.ScanTopicsResponse(entries=[topic("/a")[0], topic("/b")[0]]))
    assert batch.column("owner").to_pylist() == [None, None]


def test_an_empty_page_has_the_columns_and_no_rows() -> None:
    batch = topic_batch(scan_pb2.ScanTopicsResponse())
    assert batch.num_rows == 0
    assert batch.schema == arrow_schema(TOPIC_COLUMNS)


def test_the_whole_row_has_the_clusters_columns_behind() -> None:
    state = ClusterState("kc-1", "la", "/la", as_of=NOW, revision=5, incarnation="i")
    batch = with_cluster(topic_batch(page(topic("/la/a"), topic("/la/b"))), state)
    assert batch.schema == arrow_schema(COLUMNS)
    assert batch.column("as_of").to_pylist() == [NOW, NOW]
    assert batch.column("stale").to_pylist() == [False, False]


@pytest.mark.parametrize(("mount", "directory"), [("/la/ads", "/la"), ("/", "/")])
def test_an_unread_cluster_is_one_row_at_its_mount(mount: str, directory: str) -> None:
    state = ClusterState("kc-1", "ads", mount).silent(NOW, "no answer")
    [row] = unread_batch(state).to_pylist()
    assert (row["path"], row["directory"], row["kind"]) == (mount, directory, "unread")
    assert (row["stale"], row["stale_reason"], row["physical_name"]) == (True, "no answer", None)


@pytest.mark.parametrize(
    "state",
    [
        ClusterState("kc-1"),
        ClusterState(
            "kc-1",
            "la",
            "/la",
            site="la",
            listeners=(
                Listener("internal", ("a:1", "b:2"), "SASL_SSL", "SCRAM-SHA-512"),
                Listener("edge", ("c:3",)),
            ),
            as_of=NOW,
            revision=2**62,
            incarnation="x",
            stale=True,
            stale_since=NOW,
            stale_reason='it said "no", 100% / gone',
        ),
    ],
)
def test_a_state_survives_the_text_of_delta_s_log(state: ClusterState) -> None:
    text = partition_values(state)
    assert all(value is None or isinstance(value, str) for value in text.values())
    typed: dict[str, object] = dict(text)
    for name in ("as_of", "stale_since"):
        moment = text[name]
        typed[name] = datetime.fromisoformat(moment) if moment else None
    typed["revision"] = int(text["revision"]) if text["revision"] else None
    typed["stale"] = text["stale"] == "true"
    assert state_from_partition(typed) == state
