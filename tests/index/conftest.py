"""A Spark session for the tests of one module, on this machine's cores."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from resolver.index.spark_session import SparkSettings


@pytest.fixture(scope="module")
def spark(delta_jars: list[Path]) -> Iterator[SparkSession]:
    """Yields a local session that can also read Delta tables by Delta's own jars.

    The jars are not for our own code. A process has one Java, which takes its jars at its start, so
    that the first session of a test run decides for all.
    """
    conf = {
        "spark.jars": ",".join(map(str, delta_jars)),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "1",
        # Another zone than UTC: what is written without one would be read wrong.
        "spark.sql.session.timeZone": "America/New_York",
    }
    with SparkSettings("local[2]", conf).open() as session:
        yield session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Extends the timeout of the first test of a module, which waits for Java, its session and its
    workers. Cut off there, all after it would fail.
    """
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))
