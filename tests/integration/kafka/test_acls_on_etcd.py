"""ACLs of a cluster whose store is an etcd that several servers share: who takes over goes on with
what was recorded, also with what others did to the ACLs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.local.kafka import KafkaBroker
from deploy.local.kafka_users import SaslUsers
from tests.conftest import SharedEtcd
from tests.support.command_line import run
from tests.support.federation import FAST, Server, eventually
from tests.support.kafka_clients import Guarded, acl, armed, kdir, plan_of, secured

USERS = SaslUsers(["alice", "bob"], super_users=("admin", "kdir"))
ALICE, BOB = (f"TOPIC search.clicks LITERAL User:{who} ALLOW WRITE *" for who in ("alice", "bob"))

THEIRS = "TOPIC search.clicks LITERAL User:alice ALLOW READ *"
LOST = "ALLOW User:alice WRITE from *\t(missing)  drift"
FOREIGN = "(none)\tALLOW User:alice READ from *  not kdir's"


@pytest.fixture
def kafka(kafka_brokers: Callable[..., KafkaBroker]) -> Iterator[Guarded]:
    with kafka_brokers(users=USERS) as broker:
        yield Guarded(broker)


@pytest.fixture
def servers(kafka: Guarded, etcd_cluster: SharedEtcd, tmp_path: Path) -> Iterator[list[Server]]:
    """Yields two of one cluster, /la; neither has started."""
    settings = {**FAST, "store": etcd_cluster.address(), "kafka": secured(kafka.broker, tmp_path)}
    with ExitStack() as cleanup:
        made = [Server(tmp_path / name, "/la", settings) for name in ("one", "two")]
        for server in made:
            cleanup.callback(server.process.kill)
            cleanup.callback(server.close)
        yield made


def test_acls_survive_a_restart_and_another_server_takes_over(
    kafka: Guarded, servers: list[Server]
) -> None:
    first, second = servers
    kafka.create("search.clicks")
    first.start()
    eventually(lambda: first.status().topic_count == 1)
    for who in ("alice", "bob"):
        kdir(first, "grant", who, "write", "/la/search")
    armed(first, "/la/search")
    assert kafka.acls() == {ALICE, BOB}
    eventually(lambda: kafka.writes("alice", "search.clicks"))

    # What is ours is known after a restart: what somebody removed meanwhile is told, not forgotten,
    # and what somebody put there beside is not ours.
    first.kill()
    kafka.drop(acl("alice", "WRITE", "search.clicks"))
    kafka.put(acl("alice", "READ", "search.clicks"))
    first.start()
    eventually(lambda: _differences(first) == {LOST, FOREIGN}, 60)
    armed(first, "/la/search")
    eventually(lambda: kafka.acls() == {ALICE, BOB, THEIRS})

    # Another server of the cluster takes over, in the midst of a revoke.
    second.start()
    eventually(lambda: second.status().topic_count == 1)
    kdir(first, "revoke", "alice", "write", "/la/search")
    first.kill()
    eventually(lambda: second.status().kafka.leader, 60)
    eventually(lambda: kafka.acls() == {BOB, THEIRS})
    eventually(lambda: not kafka.writes("alice", "search.clicks"))
    assert kafka.writes("bob", "search.clicks")
    eventually(lambda: plan_of(second, "/la/search") == set())

    # The one that was there before is granted, too: it stays when the grant goes.
    kdir(second, "grant", "alice", "read", "/la/search")
    eventually(lambda: _differences(second) == set())
    first.start()
    kdir(second, "revoke", "alice", "read", "/la/search")
    kdir(second, "revoke", "bob", "write", "/la/search")
    eventually(lambda: kafka.acls() == {THEIRS})
    eventually(lambda: plan_of(first, "/la/search") == set())


def _differences(server: Server) -> set[str]:
    ran = run(["effective", "--diff", "/la", "--at", server.address])
    assert ran.code in {0, 5}, ran.err
    return {"\t".join(line.split("\t")[2:]) for line in ran.lines}
