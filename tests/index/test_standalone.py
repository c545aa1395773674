"""`kdir index build` on a Spark standalone cluster: executors are other processes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.spark import SparkCluster
from resolver.index.search import find
from tests.index.fakes import FakeCluster, federation

TREE = {
    "/": [],
    "/la": ["/la/jobs"],
    "/la/tracking": [f"/la/tracking/d{number % 5}/t{number}" for number in range(200)],
    "/ny": ["/ny/jobs"],
}
# What `kdir index build` does, as a driver that is a process of its own.
DRIVER = """
import json, sys
from resolver.index.build import SparkSettings, build
from resolver.index.spark_source import register

server, table, master, conf = sys.argv[1:]

def where(_):
    import os, resolver.index.cluster_scan as scan
    return [(os.getpid(), scan.__file__)]

settings = SparkSettings(master, json.loads(conf))
with settings.open() as spark:
    report = build([server], table, spark=SparkSettings(session=spark), shard_rows=50)
    register(spark)
    rows = spark.read.format("kdir").option("servers", server).option("shard_rows", "50").load()
    at = rows.rdd.mapPartitions(where).distinct().collect()
    print(json.dumps({"rows": report.rows, "read": rows.count(), "at": at}))
"""


@pytest.fixture
def tree() -> Iterator[dict[str, FakeCluster]]:
    with federation(TREE) as clusters:
        yield clusters


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_G11_two_workers_build_the_index_each_with_channels_of_its_own(
    spark_cluster: SparkCluster, tree: dict[str, FakeCluster], tmp_path: Path
) -> None:
    table = str(tmp_path / "index")
    # From elsewhere than the checkout, so that executors find our packages because we ship them.
    conf = json.dumps(spark_cluster.session_settings)
    arguments = [tree["/la"].endpoint, table, spark_cluster.master_url, conf]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYSPARK")},
    )
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout.splitlines()[-1])
    everything = sorted(path for paths in TREE.values() for path in paths)
    assert output["rows"] == output["read"] == len(everything)
    assert len({process for process, _ in output["at"]}) >= 2
    assert all("kdir-packages.zip" in file for _, file in output["at"])
    assert [row.path for row in find(table, "").rows] == everything
