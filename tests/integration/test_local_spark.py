"""The local Spark: a real cluster whose executors run our Python, and Delta tables by its jars."""

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deploy.local.spark import SparkCluster

ROWS = 40


def where(numbers: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yields the process that computed, and that it finds our packages."""
    import kdir.v1

    for _ in numbers:
        yield os.getpid(), kdir.v1.__name__


@pytest.fixture(scope="module")
def session(spark_cluster: SparkCluster, delta_jars: list[Path]) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as environment:
        # The only place where Spark looks for the executors' Python; else it takes PATH's.
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        settings: dict[str, bool | float | int | str | None] = {
            **spark_cluster.session_settings,
            "spark.jars": ",".join(map(str, delta_jars)),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.ui.enabled": "false",
        }
        handler = signal.getsignal(signal.SIGINT)
        session = (
            SparkSession.builder.master(spark_cluster.master_url).config(map=settings).getOrCreate()
        )
        try:
            yield session
        finally:
            session.stop()
            # Spark's own stays, and fails for each later ^C of this process's other tests.
            signal.signal(signal.SIGINT, handler)


@pytest.mark.slow
def test_both_workers_run_our_python_in_processes_of_their_own(session: SparkSession) -> None:
    numbers = session.sparkContext.parallelize(range(ROWS), 8)
    answers = numbers.mapPartitions(where).collect()
    processes = {process for process, _ in answers}
    assert os.getpid() not in processes
    assert {package for _, package in answers} == {"kdir.v1"}
    executors = session.sparkContext._jsc.sc().statusTracker().getExecutorInfos
    assert len(executors()) == 1 + 2  # the driver counts as one


@pytest.mark.slow
def test_a_delta_table_is_written_by_the_cluster_and_read_without_spark(
    session: SparkSession, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    table = tmp_path / "table"
    session.range(ROWS).write.format("delta").save(str(table))
    assert sorted(DeltaTable(table).to_pyarrow_table()["id"].to_pylist()) == list(range(ROWS))
