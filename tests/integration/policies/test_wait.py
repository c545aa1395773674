"""``--wait``: when a verb returns, Kafka has what it changed, in every cluster that inherits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import KafkaTopic
from tests.integration.policies.test_two_kafkas import kdir, retention
from tests.support.federation import Federation, Server, eventually
from tests.support.reconciler import make

MONTH = "2592000000"


@dataclass(frozen=True, slots=True)
class Site:
    """/la with two clusters below it, each with a broker and armed as a whole."""

    la: Server
    brokers: list[KafkaBroker]
    admins: list[ConfluentAdmin]

    def retention(self) -> list[str | None]:
        """Returns that of the first broker's topics and the second one's, as Kafka has it now."""
        one, two = self.admins
        first, second = retention(one, "a", "b"), retention(two, "c")
        return [first["a"], first["b"], second["c"]]

    def partitions(self, name: str) -> int:
        seen = self.admins[0].describe([name])[name]
        assert isinstance(seen, KafkaTopic)
        return seen.partitions

    def readers(self) -> list[set[str]]:
        """Returns who may read something, by each broker's ACLs."""
        return [
            {
                one.acl.principal
                for one in admin.acls().bindings
                if one.acl.operation.name == "READ" and one.acl.permission.name == "ALLOW"
            }
            for admin in self.admins
        ]


@pytest.fixture(scope="module")
def site(
    kafka_brokers: Callable[..., KafkaBroker], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    with ExitStack() as stack:
        made = [
            stack.enter_context(kafka_brokers(properties=dict(KafkaBroker.AUTHORIZER)))
            for _ in range(2)
        ]
        admins = [ConfluentAdmin([one.bootstrap]) for one in made]
        make(admins[0], "a", "b")
        make(admins[1], "c")
        federation = stack.enter_context(Federation(tmp_path_factory.mktemp("wait")))
        federation.start("/")
        la = federation.join("/la", "/")
        one, two = (
            federation.join(
                path,
                "/la",
                kafka={
                    "bootstrap": [broker.bootstrap],
                    "ceiling": ["create", "configs", "acls"],
                },
            )
            for path, broker in zip(("/la/one", "/la/two"), made, strict=True)
        )
        eventually(lambda: (one.status().topic_count, two.status().topic_count) == (2, 1))
        for path in ("/la/one", "/la/two"):
            for aspect in ("configs", "acls"):
                plan = kdir(la, "arm", path, "--aspect", aspect, "-o", "name")
                done = kdir(
                    la, "arm", path, "--aspect", aspect, "--plan", plan.out.strip(), "--wait"
                )
                assert done.code == 0, done.err
        yield Site(la, made, admins)


def test_set_and_unset_above_two_clusters_return_once_both_kafkas_show_it(site: Site) -> None:
    for number in range(2):
        value = str(86_400_000 + number)
        done = kdir(site.la, "set", "-y", "/la", f"retention.ms={value}", "--wait")
        assert done.code == 0, done.err
        assert site.retention() == [value] * 3
    done = kdir(site.la, "set", "-y", "/la", f"retention.ms={MONTH}", "--wait")
    assert (done.code, site.retention()) == (0, [MONTH] * 3)
    assert "armed: 2 topics of la-one, 1 topic of la-two are being changed" in done.err
    assert "done: nothing of retention.ms is left to change in Kafka" in done.err
    done = kdir(site.la, "unset", "-y", "/la", "retention.ms", "--wait")
    assert done.code == 0, done.err
    assert site.retention() == [None] * 3


def test_grow_returns_once_kafka_shows_the_partitions(site: Site) -> None:
    done = kdir(site.la, "grow", "/la/one", "--to", "3", "--yes", "--wait")
    assert done.code == 0, done.err
    assert [site.partitions(name) for name in ("a", "b")] == [3, 3]
    done = kdir(site.la, "set", "/la/one/a", "partitions=4", "--yes", "--wait")
    assert done.code == 0, done.err
    assert site.partitions("a") == 4
    # Each would have room alone: what has none in the end is no longer waited for, and named.
    kdir(site.la, "set", "/la/one", "max_partitions=9")
    done = kdir(site.la, "grow", "/la/one", "--to", "5", "--yes", "--wait")
    assert done.code in (3, 5), done.err
    assert sorted(site.partitions(name) for name in ("a", "b")) in ([3, 5], [4, 5])
    assert "done: Kafka shows 5 partitions of 2 topics" not in done.err
    assert "quota" in done.err
    kdir(site.la, "unset", "/la/one", "max_partitions")
    kdir(site.la, "unset", "/la/one/b", "partitions")


def test_a_plan_of_a_grant_above_mounts_has_the_topics_and_calls_of_the_clusters_below(
    site: Site,
) -> None:
    planned = kdir(site.la, "grant", "User:bob", "read", "/la", "--plan")
    assert planned.code == 0, planned.err
    assert "would be granted at /la: 1 grant, for 3 topics there and below, in 3 clusters" in (
        planned.err
    )
    calls = [line.split("\t")[1] for line in planned.lines if line.startswith("kafka\t")]
    assert {"topic a", "topic b", "topic c"} <= set(calls), planned.out


def test_grant_and_revoke_return_once_every_kafka_has_the_acls(site: Site) -> None:
    done = kdir(site.la, "grant", "User:bob", "read", "/la", "--wait")
    assert done.code == 0, done.err
    assert site.readers() == [{"User:bob"}] * 2
    planned = kdir(site.la, "revoke", "User:bob", "read", "/la", "--plan")
    assert planned.code == 0, planned.err
    rows = [line.split("\t") for line in planned.lines if line.startswith("kafka\t")]
    assert {"topic a", "topic b", "topic c"} <= {row[1] for row in rows}, planned.out
    assert {row[5] for row in rows} == {"DeleteAcls"}, planned.out
    assert site.readers() == [{"User:bob"}] * 2
    done = kdir(site.la, "revoke", "User:bob", "read", "/la", "--wait")
    assert done.code == 0, done.err
    assert site.readers() == [set()] * 2


def test_create_returns_once_kafka_has_the_topic(site: Site) -> None:
    done = kdir(site.la, "create", "/la/one/new", "-p", "2", "--wait")
    assert done.code == 0, done.err
    assert site.partitions("new") == 2


def test_what_does_not_come_in_time_is_named_with_its_cluster(site: Site) -> None:
    site.brokers[1].kill()
    done = kdir(site.la, "set", "-y", "/la", f"retention.ms={MONTH}", "--wait", "--timeout", "6")
    assert done.code == 3, done.err
    assert "not in Kafka after 6 s: la-two: " in done.err
    assert "la-one: " not in done.err
    assert "done: " not in done.err
    assert retention(site.admins[0], "a", "b") == {"a": MONTH, "b": MONTH}
