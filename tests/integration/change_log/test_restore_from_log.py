"""A lost store is made again from its change log, on a real broker; a log in part is refused."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kdir.v1 import access_pb2, access_pb2_grpc, entry_pb2

from deploy.local.kafka import KafkaBroker
from directory.change_log.settings import ChangeLogConfig
from directory.kafka.own_client_settings import ClientProperties
from directory.maintenance.log_backup import NOT_HELD, UnusableLog, log_rows
from directory.namespace.keys import READ_ONLY
from directory.store.addresses import find_identity, open_store
from resolver.changes.record import Change, Checkpoint, checkpoint_key, encode, entry_key
from tests.conftest import SharedBroker
from tests.integration.change_log.test_publishing import caught_up
from tests.integration.maintenance.conftest import Kdir
from tests.integration.maintenance.cutting import everything
from tests.support.change_logs import ChangeLogTopics
from tests.support.federation import Server, eventually


@pytest.fixture
def kdir(tmp_path: Path) -> Kdir:
    return Kdir(tmp_path / "home")


def kept_rows(store: Path) -> dict[bytes, bytes]:
    """Returns the rows of a store that its log is to give back."""
    with closing(open_store(f"sqlite:///{store}", "la")) as opened:
        rows = everything(opened)
    return {key: value for key, value in rows.items() if not key.startswith(NOT_HELD)}


def fill(server: Server) -> None:
    """Makes some of everything that a cluster without Kafka and parent may hold."""
    for name in ("a/b/c", "d/e", "gone/x"):
        server.mkdir(f"/la/{name}")
    for name in ("a/t_1", "a/b/t.1", "d/e/t"):
        topic = entry_pb2.Entry(topic=entry_pb2.Topic())
        server.entries("CreateEntry", path=f"/la/{name}", entry=topic)
    server.link("/la/link", "/la/a")
    server.mount_child("/la/m", "kc-aaaaaaaaaa")
    for path in ("/la", "/la/a", "/la/d/e/t", "/la/d"):
        changed = entry_pb2.Entry()
        changed.policies.owner = f"of {path}"
        changed.policies.read_only = path.startswith("/la/d")
        paths = ["policies.owner", "policies.read_only"]
        server.entries("UpdateEntry", path=path, entry=changed, update_mask={"paths": paths})
    for path in ("/la", "/la/a/b"):
        grant = access_pb2.Grant(
            principal="User:ana",
            host="*",
            operation=access_pb2.OPERATION_READ,
            permission=access_pb2.PERMISSION_ALLOW,
        )
        server.ask(
            access_pb2_grpc.AccessServiceStub,
            "AddGrants",
            access_pb2.AddGrantsRequest(path=path, grants=[grant]),
        )
    server.entries("MoveEntry", path="/la/a/b", new_path="/la/moved")
    server.entries("DeleteEntry", path="/la/gone", recursive=True)


def lose(store: Path) -> None:
    for one in store.parent.glob(f"{store.name}*"):
        one.unlink()


def test_a_lost_store_is_made_again_from_its_log(
    tmp_path: Path, kafka_brokers: Callable[..., KafkaBroker], kdir: Kdir
) -> None:
    store = tmp_path / "la.sqlite"
    with kafka_brokers() as broker:
        settings = {
            "kafka": {"bootstrap": [broker.bootstrap], "ceiling": ["create"]},
            "change_log": {},
            "store": f"sqlite:///{store}",
        }
        server = Server(tmp_path / "la", "/la", settings)
        lose_and_restore(server, broker, store, kdir)


def lose_and_restore(server: Server, broker: KafkaBroker, store: Path, kdir: Kdir) -> None:
    config = str(server.config)
    with server:
        log = ChangeLogTopics(broker.bootstrap, server.cluster_id)
        caught_up(log, str(store))
        fill(server)
        before_stop = caught_up(log, str(store))
        cluster_id = server.cluster_id
        server.stop()
        before = kept_rows(store)
        assert {key[:2] for key in before} >= {b"e/", b"g/", b"p/", b"f/"}
        assert any(key.startswith(READ_ONLY) for key in before)
        lose(store)

        planned = kdir("restore", "--from-log", "--config", config, "--plan")
        assert f"change log of cluster la ({cluster_id})" in planned.stdout
        assert "both begin new" in planned.stderr
        assert find_identity(f"sqlite:///{store}") is None
        done = kdir("restore", "--from-log", "--config", config)
        assert "3 topics, " in done.stdout
        again = kdir("restore", "--from-log", "--config", config)
        assert "holds just that already" in again.stdout
        assert kept_rows(store) == before

        server.start()
        assert server.cluster_id == cluster_id
        eventually(lambda: log.read().checkpoint.generation == 2)  # type: ignore[union-attr]
        server.mkdir("/la/after")
        after = caught_up(log, str(store))
        compare(server, broker, log, kdir)
    changes = [one for one in after.history if one.checkpoint is None]
    changes = changes[len([one for one in before_stop.history if one.checkpoint is None]) :]
    assert [(one.cause, one.path) for one in changes] == [("change", "/la/after")]
    rewritten = [key for key, one in after.state.items() if one.generation == 2]
    assert len([key for key in rewritten if "/e/" in key]) == 1


def compare(server: Server, broker: KafkaBroker, log: ChangeLogTopics, kdir: Kdir) -> None:
    """Checks that ``kdir verify`` names what is not in the log, and that a resync mends it."""
    verify = ("verify", "--at", server.address, "-o", "json")
    kdir(*verify)
    found = log.read()
    key = next(key for key, one in found.state.items() if one.path == "/la/after")
    assert found.checkpoint is not None
    point = (checkpoint_key(server.cluster_id), encode(found.checkpoint))
    produce(broker.bootstrap, log.state_topic, (key, None), point)
    (one, _) = (json.loads(line) for line in kdir(*verify, code=5).stdout.splitlines())
    assert one["difference"] == {
        "compared": "store-log",
        "path_or_key": "/la/after",
        "field": "row",
        "expected": "there",
        "actual": "missing",
        "advice": "kdir log resync publishes the difference: the log follows the store",
    }
    kdir("log", "resync", "--at", server.address, "--yes")
    eventually(lambda: key in log.read().state)
    kdir(*verify)


def produce(bootstrap: str, topic: str, *records: tuple[str, bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(30) == 0


def write(broker: SharedBroker, topic: str, *records: tuple[str, bytes | None]) -> None:
    """Makes a state topic of these records."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    made = NewTopic(topic, 1, 1, config={"cleanup.policy": "compact,delete"})
    admin.create_topics([made])[topic].result(30)
    produce(broker.bootstrap, topic, *records)


def entry(cluster_id: str, number: int) -> tuple[str, bytes]:
    change = Change(
        cluster_id=cluster_id, generation=1, revision=1, time=0, key=b"e/x", record=b"x"
    )
    return entry_key(cluster_id, number), encode(change)


def checkpoint(cluster_id: str, cluster: str = "la") -> tuple[str, bytes]:
    point = Checkpoint(incarnation="i", incarnations=("i",), cluster=cluster, feature_level=2)
    change = Change(
        cluster_id=cluster_id,
        generation=1,
        revision=1,
        time=0,
        scope="checkpoint",
        checkpoint=point,
    )
    return checkpoint_key(cluster_id), encode(change)


@pytest.mark.parametrize(
    ("case", "because"),
    [
        ("missing", "is not in Kafka"),
        ("empty", "the topic is empty"),
        ("no checkpoint", "it has no checkpoint"),
        ("half", "no checkpoint follows 1 record:"),
        ("truncated", "it begins at offset 1: records before that were deleted"),
        ("unreadable", "1 record cannot be read"),
        ("of another name", "holds the log of cluster other"),
        ("of another id", "holds the log of cluster la (kc-other"),
        ("of two", "it holds records of cluster"),
    ],
)
def test_P15_what_is_no_whole_log_of_the_cluster_is_refused(
    own_broker: SharedBroker, case: str, because: str
) -> None:
    one = f"kc-{secrets.token_hex(4)}"
    topic = f"__change_events.{one}"
    first, second, point = entry(one, 1), entry(one, 2), checkpoint(one)
    records = {
        "empty": (),
        "no checkpoint": (first,),
        "half": (first, point, second),
        "truncated": (first, second, point),
        "unreadable": (first, (second[0], b"x"), point),
        "of another name": (first, checkpoint(one, "other")),
        "of another id": (entry("kc-other", 1), checkpoint("kc-other")),
        "of two": (first, entry("kc-other", 1), point),
    }
    if case in records:
        write(own_broker, topic, *records[case])
    if case == "truncated":
        admin = AdminClient({"bootstrap.servers": own_broker.bootstrap, "log_level": 0})
        place = TopicPartition(topic, 0, 1)
        admin.delete_records([place])[TopicPartition(topic, 0)].result(30)
    config = ChangeLogConfig((own_broker.bootstrap,), ClientProperties(), is_shared=True)
    with pytest.raises(UnusableLog) as refused, log_rows(config, "la", one):
        pass
    assert because in str(refused.value)


def test_the_log_of_a_name_is_found_and_two_of_one_name_are_refused(
    tmp_path: Path, own_broker: SharedBroker, kdir: Kdir
) -> None:
    name = f"c{secrets.token_hex(4)}"
    ids = [f"kc-{secrets.token_hex(4)}" for _ in range(2)]
    config = tmp_path / "server.toml"
    store = tmp_path / "store.sqlite"
    config.write_text(
        f'cluster = "{name}"\nmount = "/la"\nstore = "sqlite:///{store}"\n'
        f'[change_log]\nbootstrap = ["{own_broker.bootstrap}"]\n'
    )
    arguments = ("restore", "--from-log", "--config", str(config))
    assert f"is the log of cluster {name}" in kdir(*arguments, code=2).stderr
    write(own_broker, f"__change_events.{ids[0]}", entry(ids[0], 1), checkpoint(ids[0], name))
    assert ids[0] in kdir(*arguments, "--plan").stdout
    write(own_broker, f"__change_events.{ids[1]}", entry(ids[1], 1), checkpoint(ids[1], name))
    refused = kdir(*arguments, code=2).stderr
    assert f"logs of 2 clusters named {name}: --cluster-id says which" in refused
    assert ids[1] in kdir(*arguments, "--plan", "--cluster-id", ids[1]).stdout
    assert not store.exists()
