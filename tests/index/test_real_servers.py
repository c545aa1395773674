"""The index over real directory servers, as processes, that adopted the topics of a real Kafka."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kdir.v1 import entry_pb2
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from resolver.index.build import BuildReport, Outcome, SparkSettings, build
from resolver.index.search import find, report
from resolver.index.spark_source import register
from tests.support.federation import Federation, eventually
from tests.support.reconciler import make

NAMES = ("orders", "search.clicks", "search.views")


@pytest.fixture
def federation(kafka_brokers: Callable[..., KafkaBroker], tmp_path: Path) -> Iterator[Federation]:
    """Yields two clusters that look at one broker: what the one has, the other has too."""
    with kafka_brokers() as broker, Federation(tmp_path) as made:
        admin = ConfluentAdmin([broker.bootstrap])
        make(admin, *NAMES)
        admin.close()
        kafka = {"bootstrap": [broker.bootstrap], "split_on": "."}
        made.start("/")
        made.join("/la", "/")
        made.join("/ny", "/")
        made.join("/la/tracking", "/la", site="la", kafka=kafka)
        made.join("/ny/tracking", "/ny", site="ny", kafka=kafka)
        eventually(lambda: made["/la/tracking"].status().topic_count == len(NAMES))
        eventually(lambda: made["/ny/tracking"].status().topic_count == len(NAMES))
        eventually(lambda: set(made.servers) - {"/"} <= set(made["/"].mounted()))
        eventually(lambda: "/la/tracking" in made["/la"].mounted())
        eventually(lambda: "/ny/tracking" in made["/ny"].mounted())
        yield made


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_index_of_real_clusters_from_first_build_to_unmount(
    spark: SparkSession, federation: Federation, tmp_path: Path
) -> None:
    table = str(tmp_path / "index")

    def run(start: str) -> BuildReport:
        return build([federation[start].address], table, spark=SparkSettings(session=spark))

    def outcomes(done: BuildReport) -> dict[str, Outcome]:
        return {line.mount: line.outcome for line in done.lines}

    everywhere = dict.fromkeys(federation.servers, Outcome.READ)
    assert outcomes(run("/la/tracking")) == everywhere
    found = find(table, "click")
    assert [row.path for row in found.rows] == [
        "/la/tracking/search/clicks",
        "/ny/tracking/search/clicks",
    ]
    [clicks, _] = found.rows
    assert (clicks.physical_name, clicks.provision, clicks.adopted) == (
        "search.clicks",
        "active",
        True,
    )
    assert (clicks.state.site, len(clicks.state.bootstrap_servers)) == ("la", 1)
    assert clicks.topic_id is not None
    assert report(table).shared_name_count == len(NAMES)

    # Of an idle federation nothing is read. (Idle is it a while after the last cluster was joined:
    # what it inherits may still come.)
    eventually(lambda: set(outcomes(run("/")).values()) == {Outcome.UNCHANGED}, 120)

    register(spark)
    frame = spark.read.format("kdir").option("servers", federation["/ny"].address).load("/la")
    assert sorted(row.path for row in frame.collect()) == [
        "/la/tracking/orders",
        "/la/tracking/search/clicks",
        "/la/tracking/search/views",
    ]

    reader = spark.read.format("kdir").option("servers", federation["/ny"].address)
    for path in ("/la/nope", "/nope", "/la/tracking/nope"):
        with pytest.raises(PySparkException, match=f"Absent: {path}: "):
            reader.load(path).collect()

    # An owner that is set above two mounts is inherited by the topics below them.
    federation["/la"].entries(
        "UpdateEntry",
        path="/la",
        entry=entry_pb2.Entry(policies={"owner": "angelenos"}),
        update_mask={"paths": ["policies.owner"]},
    )
    tracking = federation["/la/tracking"]
    eventually(
        lambda: (
            tracking.resolve("/la/tracking/orders").outcome.resolution.effective.owner
            == "angelenos"
        )
    )
    changed = outcomes(run("/ny"))
    assert changed["/la/tracking"] is Outcome.READ
    assert changed["/ny/tracking"] is Outcome.UNCHANGED
    owners = {row.state.mount: row.owner for row in find(table, "orders").rows}
    assert owners == {"/la/tracking": "angelenos", "/ny/tracking": None}

    federation["/ny/tracking"].kill()
    assert outcomes(run("/"))["/ny/tracking"] is Outcome.STALE
    kept = find(table, "clicks")
    assert {row.state.mount: row.state.stale for row in kept.rows} == {
        "/la/tracking": False,
        "/ny/tracking": True,
    }
    [silent] = kept.stale
    assert silent.stale_reason
    federation["/ny/tracking"].start()
    eventually(lambda: federation["/ny/tracking"].status().parent.linked)
    assert outcomes(run("/"))["/ny/tracking"] in (Outcome.UNCHANGED, Outcome.READ)
    assert find(table, "").stale == ()

    federation["/ny"].entries("DeleteEntry", path="/ny/tracking")
    eventually(lambda: federation["/ny/tracking"].outcome("/ny/tracking/orders") == "UNMOUNTED")
    eventually(lambda: "/ny/tracking" not in federation["/la"].mounted())
    assert outcomes(run("/la"))["/ny/tracking"] is Outcome.REMOVED
    assert {row.state.mount for row in find(table, "").rows} == {"/la/tracking"}
