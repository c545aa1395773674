"""Grants below armed directories as ACLs of a real broker: what reaches it, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path as FilePath

import pytest

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin import ConfluentAdmin
from directory.namespace.keys import LEVEL
from directory.store.base import Put
from tests.acls import arm, disarm, grant, on, planned, revoke, shown
from tests.reconciling import World, admin_of, drop, in_kafka, make, world

CEILING = frozenset({"create", "delete", "acls"})


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
    return own_broker


@pytest.fixture
def kafka(broker: KafkaBroker) -> ConfluentAdmin:
    return ConfluentAdmin([broker.bootstrap])


@pytest.fixture
def here(broker: KafkaBroker, tmp_path: FilePath) -> Iterator[World]:
    settings = {"ceiling": CEILING, "split_on": "."}
    with world(tmp_path / "store.db", admin_of(broker.bootstrap), **settings) as made:
        made.writer.put_facts([Put(LEVEL, b"3")])
        yield made


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
    assert shown(kafka) == everything
    assert planned(here, "search") == []
    grant(here, "", "allow carol write")
    here.settle()
    assert shown(kafka) - everything == on("topic search.clicks", "allow carol write") | on(
        "topic search.views", "allow carol write"
    )
    revoke(here, "search", "deny bob all", "allow alice read group search-*")
    revoke(here, "", "allow carol write")
    here.settle()
    assert shown(kafka) == on("topic search.clicks", "allow alice read") | on(
        "topic search.views", "allow alice read"
    )
    disarm(here, "search")
    here.settle()
    assert not shown(kafka)
