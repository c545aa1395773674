"""Policies from the change logs of two clusters, compared with what their servers answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kdir.v1 import entry_pb2, policies_pb2, policies_pb2_grpc

from resolver.changes.policy_cache import PolicyCache
from resolver.entry_fields import policy_key
from resolver.errors import Absent, KdirError, NotReady, Unimplemented
from resolver.revision_token import Token
from tests.conftest import SharedBroker
from tests.support.federation import Federation, Server, eventually

TOPIC = "/la/a/b/topic"
"""A topic without partitions: the cluster's Kafka is away."""


@pytest.fixture(scope="module")
def federation(
    kafka_broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Federation]:
    """Yields a parent and a child with change logs, and a child without."""
    log = {"bootstrap": [kafka_broker.bootstrap]}
    with Federation(tmp_path_factory.mktemp("policies")) as made:
        made.start("/", change_log=log)
        away = {"bootstrap": ["127.0.0.1:1"], "ceiling": ["create"]}
        made.join("/la", "/", change_log=log, kafka=away, links={"/mine": "/la/a"})
        made.join("/none", "/")
        set_policies(made["/"], "/", owner="root", contact="ops")
        child = made["/la"]
        child.mkdir("/la/a/b/c")
        set_policies(child, "/la", description="all of la")
        set_policies(child, "/la/a", owner="ana", **{"tags.tier": "gold"})
        set_policies(child, "/la/a/b", **{"topic_config.retention.ms": "60000"})
        child.link("/la/link", "/la/a/b")
        topic = entry_pb2.Entry(topic=entry_pb2.Topic())
        child.entries("CreateEntry", path=TOPIC, entry=topic)
        set_policies(child, TOPIC, contact="its own")
        yield made


def set_policies(server: Server, path: str, **values: str) -> str:
    """Sets policies; returns the token of the write."""
    entry = entry_pb2.Entry()
    for name, value in values.items():
        field, _, key = name.partition(".")
        if field == "topic_config":
            entry.policies.topic_config[key].value = value
        elif field == "tags":
            entry.policies.tags[key].value = value
        else:
            setattr(entry.policies, field, value)
    mask = {"paths": [f"policies.{name}" for name in values]}
    answer = server.entries("UpdateEntry", path=path, entry=entry, update_mask=mask)
    return str(answer.token)


def answered(server: Server, path: str) -> dict[str, tuple[str, str]]:
    """Returns what the server answers, by the names of ``kdir set``."""
    request = policies_pb2.GetEffectivePoliciesRequest(path=path)
    found = server.ask(policies_pb2_grpc.PolicyServiceStub, "GetEffectivePolicies", request)
    return {policy_key(one.field): (one.value, one.source_path) for one in found.values}


def cached(cache: PolicyCache, path: str) -> dict[str, tuple[str, str]]:
    return {name: tuple(one) for name, one in cache.effective(path).values.items()}  # type: ignore[misc]


def test_P4_P8_it_gives_what_the_servers_answer(federation: Federation) -> None:
    child = federation["/la"]
    eventually(lambda: answered(child, "/la").get("owner") == ("root", "/"))
    with PolicyCache(federation["/"].address, timeout_seconds=60.0) as cache:
        for server in (child, federation["/"]):
            cache.wait_for(server.status().authority.token)
        for path in ("/la/a/b/c", TOPIC, "/la/a/b", "/la/a", "/la"):
            assert cached(cache, path) == answered(child, path), path
        assert cached(cache, "/") == answered(federation["/"], "/")
        assert cache.effective("/la/link").path == "/la/a/b"
        with pytest.raises(Absent):
            cache.effective("/la/nothing")
        with pytest.raises(Unimplemented, match="keeps no change log"):
            cache.effective("/none")
        # What was written is there once it was waited for; two writes in a row are both there.
        for number in range(5):
            set_policies(child, "/la/a/b/c", contact=f"c{number}")
            cache.wait_for(set_policies(child, "/la/a/b/c", description=f"d{number}"))
            found = cached(cache, "/la/a/b/c")
            assert found == answered(child, "/la/a/b/c")
            assert found["description"] == (f"d{number}", "/la/a/b/c")
        cache.wait_for(child.status().authority.token)
        foreign = Token.from_position(child.cluster_id, "another", 1)
        with pytest.raises(NotReady):
            cache.wait_for(str(foreign), timeout_seconds=0.5)


def test_a_site_link_does_not_depend_on_which_logs_are_open(federation: Federation) -> None:
    with PolicyCache(federation["/la"].address, timeout_seconds=60.0) as cache:
        assert cache.effective("/mine/b").path == "/la/a/b"
        cache.effective("/")
        assert cache.effective("/mine/b").path == "/la/a/b"
        with pytest.raises(Absent):
            cache.effective("/mine/nothing")


def test_P16_what_it_gives_never_changes(federation: Federation) -> None:
    with PolicyCache(federation["/la"].address, timeout_seconds=60.0) as cache:
        before = cache.effective("/la/a")
        held = dict(before.values)
        cache.wait_for(set_policies(federation["/la"], "/la/a", owner="another"))
        assert cache.effective("/la/a").values["owner"].value == "another"
        assert before.values == held
        with pytest.raises(TypeError):
            before.values["owner"] = held["owner"]  # type: ignore[index]


def test_P2_P3_what_is_evicted_or_not_loaded_is_an_error_or_right_and_never_empty(
    federation: Federation,
) -> None:
    server = federation["/la"]
    expected = answered(server, "/la/a/b/c")
    with PolicyCache(server.address, idle_seconds=0.05, timeout_seconds=60.0) as cache:
        for _ in range(3):
            assert cached(cache, "/la/a/b/c") == expected
            eventually(lambda: not cache.cluster_ids)
        with pytest.raises(KdirError):
            cache.effective("/la/a/b/c", timeout_seconds=0.002)
        assert cached(cache, "/la/a/b/c") == expected
