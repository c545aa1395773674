"""``kdir server --mount PATH --kafka HOST:PORT``: a running Kafka's topics, and nothing else."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
from confluent_kafka.admin import AdminClient, NewTopic
from kdir.v1 import admin_pb2, admin_pb2_grpc, directory_pb2, directory_pb2_grpc

from deploy.local.kafka import KafkaBroker
from deploy.local.process import LocalProcess
from tests.support.federation import eventually

TOPICS = 1_000


def test_it_serves_what_is_there_and_changes_nothing(
    kafka_brokers: Callable[..., KafkaBroker], tmp_path: Path
) -> None:
    with kafka_brokers() as broker:
        kafka = AdminClient({"bootstrap.servers": broker.bootstrap})
        names = [f"search.clicks.{number}" for number in range(TOPICS)]
        made = kafka.create_topics([NewTopic(name, 1, 1) for name in names])
        for future in made.values():
            future.result()
        # A broker shows what it was told to make a moment later (K7).
        eventually(lambda: set(names) <= set(kafka.list_topics(timeout=10).topics))
        before = set(kafka.list_topics(timeout=10).topics)
        process = LocalProcess(
            [
                *(sys.executable, "-m", "directory", "--mount", "/la/tracking"),
                *("--kafka", broker.bootstrap, "--listen", "127.0.0.1:0"),
            ],
            tmp_path / "log",
            environment={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        )
        process.start()
        try:
            process.await_ready(lambda: "serving " in process.log.read_text(), 30)
            found = re.search(r"serving /la/tracking .* on (\S+)", process.log.read_text())
            assert found
            with grpc.insecure_channel(found[1]) as channel:
                admin = admin_pb2_grpc.AdminServiceStub(channel)
                eventually(lambda: _status(admin).topic_count == TOPICS)
                assert _status(admin).kafka.pinned_cluster_id == broker.cluster_id
                directory = directory_pb2_grpc.DirectoryServiceStub(channel)
                request = directory_pb2.ListEntriesRequest(path="/la/tracking", page_size=10_000)
                listed = directory.ListEntries(request, timeout=10)
            assert {entry.path for entry in listed.entries} == {f"/la/tracking/{n}" for n in names}
            assert set(kafka.list_topics(timeout=10).topics) == before
        finally:
            process.stop()


def _status(admin: admin_pb2_grpc.AdminServiceStub) -> admin_pb2.GetStatusResponse:
    return admin.GetStatus(admin_pb2.GetStatusRequest(), timeout=5)
