"""Grants below armed directories as ACLs of a real broker: what reaches it, what is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath
from typing import Any

import pytest

from deploy.local.kafka import KafkaBroker, KafkaCluster
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import AclBinding
from resolver.errors import KafkaRejected
from tests.support.acls import arm, disarm, grant, on, plan, planned, revoke, shown
from tests.support.reconciler import World, admin_of, drop, eventually, in_kafka, make, world

ROOT = FilePath(__file__).resolve().parents[3]
SETTINGS: dict[str, Any] = {"ceiling": frozenset({"create", "delete", "acls"}), "split_on": "."}


@pytest.fixture(scope="module")
def own_broker(kafka_brokers: Callable[..., KafkaBroker]) -> Iterator[KafkaBroker]:
    with kafka_brokers(properties=dict(KafkaBroker.AUTHORIZER)) as broker:
        yield broker


@pytest.fixture
def broker(own_broker: KafkaBroker) -> KafkaBroker:
    admin = ConfluentAdmin([own_broker.bootstrap])
    if names := in_kafka(admin):
        drop(admin, *names)
    admin.remove_acls(list(shown(admin)))
    expect(admin, set())
    return own_broker


@pytest.fixture
def here(broker: KafkaBroker, tmp_path: FilePath) -> Iterator[World]:
    with world(tmp_path / "store.db", admin_of(broker.bootstrap), **SETTINGS) as made:
        yield made


def expect(kafka: ConfluentAdmin, bindings: set[AclBinding]) -> None:
    """Waits until Kafka has these bindings: a busy broker shows a change a little later."""
    eventually(lambda: shown(kafka) == bindings)


def test_grants_reach_kafka_once_armed_and_what_is_revoked_goes(
    here: World, kafka: ConfluentAdmin
) -> None:
    make(kafka, "search.clicks", "search.views", "other")
    here.sweep()
    grant(here, "search", "allow alice read", "deny bob all", "allow alice read group search-*")
    here.settle()
    assert not shown(kafka)
    assert planned(here, "search") == [
        ("CreateAcls", "topic search.clicks: DENY User:bob ALL from *"),
        ("CreateAcls", "topic search.views: DENY User:bob ALL from *"),
        ("CreateAcls", "topic search.clicks: ALLOW User:alice READ from *"),
        ("CreateAcls", "topic search.views: ALLOW User:alice READ from *"),
        ("CreateAcls", "group search- (prefixed): ALLOW User:alice READ from *"),
    ]
    assert arm(here, "search").calls_made == 5
    everything = (
        on("topic search.clicks", "deny bob all", "allow alice read")
        | on("topic search.views", "deny bob all", "allow alice read")
        | on("group search-*", "allow alice read")
    )
    expect(kafka, everything)
    assert planned(here, "search") == []
    grant(here, "", "allow carol write")
    here.settle()
    carols = on("topic search.clicks", "allow carol write") | on(
        "topic search.views", "allow carol write"
    )
    expect(kafka, everything | carols)
    revoke(here, "search", "deny bob all", "allow alice read group search-*")
    revoke(here, "", "allow carol write")
    here.settle()
    left = on("topic search.clicks", "allow alice read") | on(
        "topic search.views", "allow alice read"
    )
    expect(kafka, left)
    disarm(here, "search")
    here.settle()
    expect(kafka, set())


CHILD = """
import os, signal, sys
from pathlib import Path
from directory.kafka.admin_client import ConfluentAdmin
from tests.integration.kafka.test_acls import SETTINGS
from tests.support.crash_points import Mortal, Passages
from tests.support.reconciler import World
file, bootstrap, where = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

class Deadly(Passages):
    def passed(self, what):
        if what == where:
            os.kill(os.getpid(), signal.SIGKILL)

methods = frozenset({"add_acls", "remove_acls", "create"})
World(
    file, lambda: Mortal(ConfluentAdmin([bootstrap]), Deadly(-1), methods), **SETTINGS
).settle()
"""


@pytest.mark.parametrize("where", ["after add_acls", "before remove_acls", "after remove_acls"])
def test_a_process_killed_around_a_request_is_finished_by_the_next(
    where: str, broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    make(kafka, "search.clicks")
    foreign = on("topic search.clicks", "allow eve read")
    kafka.add_acls(list(foreign))
    file = tmp_path / "store.db"
    with world(file, admin_of(broker.bootstrap), **SETTINGS) as here:
        here.sweep()
        grant(here, "search", "allow alice read", "allow alice read group g-*")
        arm(here, "search")
        revoke(here, "search", "allow alice read", "allow alice read group g-*")
        grant(here, "search", "deny alice all", "allow bob write")
        here.create("search/new")
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(file), broker.bootstrap, where],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    with world(file, admin_of(broker.bootstrap), **SETTINGS) as here:
        here.settle()
        assert here.states()["search/new"] == "ACTIVE"
        granted = ("deny alice all", "allow bob write")
        new = on("topic search.new", *granted)
        expect(kafka, on("topic search.clicks", *granted) | new | foreign)
        disarm(here, "search")
        here.settle()
        expect(kafka, foreign)


def test_a_broker_that_is_away_gets_them_when_it_is_back(
    kafka_brokers: Callable[..., KafkaBroker], tmp_path: FilePath
) -> None:
    with kafka_brokers(properties=dict(KafkaBroker.AUTHORIZER)) as broker:
        kafka = ConfluentAdmin([broker.bootstrap])
        make(kafka, "search.clicks")
        open_admin = admin_of(broker.bootstrap, timeout_seconds=2.0)
        with world(tmp_path / "store.db", open_admin, **SETTINGS) as here:
            here.sweep()
            grant(here, "search", "allow alice read")
            arm(here, "search")
            broker.stop()
            revoke(here, "search", "allow alice read")
            grant(here, "search", "deny alice all")
            here.reconciler.run_once()
            assert not here.reconciler.status().reachable
            broker.start()
            eventually(lambda: here.reconciler.run_once() and here.reconciler.status().reachable)
            here.settle()
            expect(kafka, on("topic search.clicks", "deny alice all"))


def test_a_broker_without_authorizer_is_a_clear_error(
    kafka_brokers: Callable[..., KafkaBroker], tmp_path: FilePath
) -> None:
    with kafka_brokers() as broker:
        kafka = ConfluentAdmin([broker.bootstrap])
        with pytest.raises(KafkaRejected, match=r"keeps no ACLs.*authorizer\.class\.name"):
            kafka.acls()
        make(kafka, "search.clicks")
        with world(tmp_path / "store.db", admin_of(broker.bootstrap), **SETTINGS) as here:
            here.sweep()
            grant(here, "search", "allow alice read")
            with pytest.raises(KafkaRejected, match=r"authorizer\.class\.name"):
                plan(here, "search")


@pytest.mark.slow
def test_grants_reach_a_cluster_of_three_brokers_also_while_one_is_down(
    kafka_clusters: Callable[..., KafkaCluster], tmp_path: FilePath
) -> None:
    with kafka_clusters(properties=dict(KafkaBroker.AUTHORIZER)) as cluster:
        kafka = ConfluentAdmin([cluster.bootstrap])
        make(kafka, "search.clicks")
        with world(tmp_path / "store.db", admin_of(cluster.bootstrap), **SETTINGS) as here:
            here.sweep()
            grant(here, "search", "allow alice read")
            arm(here, "search")
            expect(kafka, on("topic search.clicks", "allow alice read"))
            cluster.broker(3).kill()
            here.now += 60  # the settings of the brokers are read again
            revoke(here, "search", "allow alice read")
            grant(here, "search", "allow bob read")
            here.settle()
            expect(kafka, on("topic search.clicks", "allow bob read"))


def test_addresses_and_names_as_kafka_writes_them(here: World, kafka: ConfluentAdmin) -> None:
    make(kafka, "a.b_c-d", "a.b")
    here.sweep()
    arguments = ("allow ä read from fe80::1", "deny CN=x,O=y all from 10.0.0.1")
    grant(here, "a/b_c-d", *(argument.replace("ä", "ä-1") for argument in arguments))
    grant(here, "a", "allow alice write transactional-id *", "allow alice read group ä*")
    arm(here, "a")
    eventually(lambda: len(shown(kafka)) == 4)
    names = {(str(one.resource), one.acl.principal, one.acl.host) for one in shown(kafka)}
    assert names == {
        ("topic a.b_c-d", "User:ä-1", "fe80:0:0:0:0:0:0:1"),
        ("topic a.b_c-d", "User:CN=x,O=y", "10.0.0.1"),
        ("transactional-id *", "User:alice", "*"),
        ("group ä (prefixed)", "User:alice", "*"),
    }
    assert planned(here, "a") == []
    disarm(here, "a")
    here.settle()
    expect(kafka, set())


def test_many_acls_go_in_steps(here: World, kafka: ConfluentAdmin) -> None:
    make(kafka, *(f"many.t{number}" for number in range(120)))
    here.sweep()
    grant(here, "many", *(f"allow u{number} read" for number in range(10)))
    assert arm(here, "many").calls_made == 1200
    eventually(lambda: len(shown(kafka)) == 1200)
    revoke(here, "many", *(f"allow u{number} read" for number in range(10)))
    here.settle()
    eventually(lambda: not shown(kafka))
