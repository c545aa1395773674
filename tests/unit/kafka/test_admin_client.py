"""The edge to Kafka's admin client, without a Kafka: what is about an item, and what is not."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from directory.access.grants import Operation, Permission, ResourceType
from directory.kafka import admin_client
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import (
    Acl,
    AclBinding,
    AlreadyDone,
    ConfigChange,
    Outcome,
    Rejected,
    Resource,
    Succeeded,
    TopicToCreate,
)
from directory.server.toml_table import ConfigError
from resolver.errors import KafkaRejected, KafkaUnavailable

TIMED_OUT, CONFLICT = -185, -173  # librdkafka's own
READ = Acl(Permission.ALLOW, "User:ana", Operation.READ, "*")
BINDINGS = [AclBinding(Resource(ResourceType.TOPIC, name), READ) for name in "ab"]


def _no_properties() -> Mapping[str, str]:
    raise ConfigError("kafka.properties_file: kafka.properties cannot be read")


@pytest.mark.parametrize(
    "change",
    [
        lambda admin: admin.create([TopicToCreate("a"), TopicToCreate("b")]),
        lambda admin: admin.delete(["a", "b"]),
        lambda admin: admin.alter_configs([ConfigChange("a", {"retention.ms": "1"})]),
        lambda admin: admin.create_partitions({"a": 2}),
        lambda admin: admin.add_acls(BINDINGS),
        lambda admin: admin.remove_acls(BINDINGS),
    ],
)
def test_a_client_that_cannot_be_made_is_no_answer_of_kafka_about_an_item(
    change: Callable[[ConfluentAdmin], Mapping[str, Outcome]],
) -> None:
    """An answer would be recorded: Kafka is not asked again what it refused."""
    admin = ConfluentAdmin(["127.0.0.1:9"], properties=_no_properties)
    with pytest.raises(KafkaRejected, match="properties cannot be read"):
        change(admin)


def test_K8_a_client_that_is_given_up_is_kept_until_its_requests_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer that comes while it is destroyed would end the process."""
    destroyed: list[int] = []

    class Client(AdminClient):
        def __del__(self) -> None:
            destroyed.append(id(self))

    now = [200.0]  # before the times of clients that other tests of this process gave up
    monkeypatch.setattr(admin_client, "AdminClient", Client)
    monkeypatch.setattr(admin_client, "time", mock.Mock(monotonic=lambda: now[0]))
    later = ConfluentAdmin(["127.0.0.1:9"], timeout_seconds=0.1)
    with closing(later), pytest.raises(KafkaUnavailable):
        later.cluster_id()
    now[0] = 0.0  # the one before is kept longer than those that follow
    with closing(ConfluentAdmin(["127.0.0.1:9"], timeout_seconds=0.1)) as admin:
        for _ in range(2):
            with pytest.raises(KafkaUnavailable):
                admin.cluster_id()
        gc.collect()
        assert destroyed == []
        now[0] += 60.0
        with pytest.raises(KafkaUnavailable):
            admin.cluster_id()
        gc.collect()
        assert len(destroyed) == 2
    now[0] += 60.0
    admin.close()
    gc.collect()
    assert len(destroyed) == 3
    now[0] = 400.0
    admin.close()
    gc.collect()
    assert len(destroyed) == 4


def test_a_kafka_that_does_not_answer_is_reported_within_the_budget_of_all_requests() -> None:
    now = [0.0]
    with closing(
        ConfluentAdmin(["127.0.0.1:9"], budget_seconds=0.3, clock=lambda: now[0])
    ) as admin:
        with pytest.raises(KafkaUnavailable, match=r"answered within 0\.3 s: .*refused"):
            admin.cluster_id()
        now[0] = 0.3
        with pytest.raises(KafkaUnavailable, match=r"answered within 0\.3 s"):
            admin.list_all()


def answered(result: object) -> Future[Any]:
    """Returns the future of a request that was answered; with an exception, that failed."""
    future: Future[Any] = Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


def failure(code: int, text: str) -> KafkaException:
    return KafkaException(KafkaError(code, text))


class Client:
    """Client of confluent-kafka for a Kafka of three brokers without ACLs."""

    def __init__(self) -> None:
        self.settings: dict[str, object] = {
            name: {"authorizer.class.name": SimpleNamespace(value="Standard")} for name in "123"
        }
        """By broker or topic; or what its request fails with."""
        self.operations = ["DESCRIBE", "ALTER"]
        """Those that kdir's user is allowed on the cluster."""
        self.is_late = False
        """Whether a request fails only once its time is over."""

    def describe_cluster(self, **_: object) -> Future[Any]:
        nodes = [SimpleNamespace(id=int(name)) for name in self.settings if name.isdigit()]
        operations = [SimpleNamespace(name=one) for one in self.operations]
        return answered(SimpleNamespace(nodes=nodes, authorized_operations=operations))

    def describe_configs(
        self, resources: Sequence[ConfigResource], request_timeout: float
    ) -> Mapping[ConfigResource, Future[Any]]:
        is_broker = resources[0].restype is ConfigResource.Type.BROKER
        if is_broker and len(resources) > 1:
            conflict = failure(CONFLICT, "Only one BROKER is allowed per call")
            return {one: answered(conflict) for one in resources}
        if self.is_late and isinstance(late := self.settings[resources[0].name], Exception):
            future: Future[Any] = Future()
            threading.Timer(request_timeout, future.set_exception, [late]).start()
            return {resources[0]: future}
        return {one: answered(self.settings[one.name]) for one in resources}

    def create_partitions(self, grown: Sequence[Any], **_: object) -> dict[str, Future[Any]]:
        return {one.topic: answered(self.settings.get(one.topic)) for one in grown}

    def describe_acls(self, *_: object, **__: object) -> Future[Any]:
        return answered([])

    def poll(self, _: float) -> None:
        pass


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()
    monkeypatch.setattr("directory.kafka.admin_client.AdminClient", lambda _: made)
    return made


UNANSWERED = [failure(TIMED_OUT, "Timed out"), TimeoutError()]


def test_brokers_are_asked_for_their_settings_one_a_call(client: Client) -> None:
    assert not ConfluentAdmin(["unused:1"]).acls().open_to_all


@pytest.mark.parametrize("unanswered", UNANSWERED)
def test_a_broker_that_does_not_answer_may_be_open_to_all(
    client: Client, unanswered: Exception
) -> None:
    client.settings["3"] = unanswered
    assert ConfluentAdmin(["unused:1"]).acls().open_to_all


def test_a_broker_that_does_not_answer_leaves_time_for_the_acls(client: Client) -> None:
    client.settings["3"] = UNANSWERED[0]
    client.is_late = True
    assert ConfluentAdmin(["unused:1"], budget_seconds=0.8).acls().open_to_all


def test_an_authorizer_is_missed_though_another_broker_does_not_answer(client: Client) -> None:
    client.settings |= {
        "1": UNANSWERED[0],
        "2": {"authorizer.class.name": SimpleNamespace(value="")},
    }
    with pytest.raises(KafkaRejected, match="keeps no ACLs"):
        ConfluentAdmin(["unused:1"]).acls()


def test_acls_that_may_be_read_and_not_changed_have_the_reason(client: Client) -> None:
    assert ConfluentAdmin(["unused:1"]).acls().refusal == ""
    client.operations.remove("ALTER")
    refusal = ConfluentAdmin(["unused:1"]).acls().refusal
    assert "needs DESCRIBE and ALTER on the cluster" in refusal


@pytest.mark.parametrize("unanswered", UNANSWERED)
def test_brokers_of_which_none_answers_are_away(client: Client, unanswered: Exception) -> None:
    client.settings = dict.fromkeys("123", unanswered)
    with pytest.raises(KafkaUnavailable):
        ConfluentAdmin(["unused:1"]).acls()


def test_a_topic_that_has_grown_already_is_not_refused(client: Client) -> None:
    """A broker that is behind shows fewer partitions than an earlier request brought, whose answer
    was lost.
    """
    invalid = KafkaError.INVALID_PARTITIONS
    policy = KafkaError.POLICY_VIOLATION
    client.settings |= {
        "a": failure(invalid, "Topic already has 6 partition(s)."),
        "b": failure(invalid, "The topic b currently has 9 partition(s); 6 would not be more."),
        "c": failure(policy, "no more than 4"),
        "d": None,
    }
    assert ConfluentAdmin(["unused:1"]).create_partitions(dict.fromkeys("abcd", 6)) == {
        "a": AlreadyDone(),
        "b": AlreadyDone(),
        "c": Rejected("no more than 4"),
        "d": Succeeded(),
    }


@pytest.mark.parametrize("code", [-1, 40])
def test_a_topic_whose_configs_cannot_be_read_is_left_out_alone(client: Client, code: int) -> None:
    client.settings |= {"a": {}, "b": failure(code, "Invalid value"), "c": {}}
    shown = ConfluentAdmin(["unused:1"]).configs(["a", "b", "c"])
    assert shown == {"a": {}, "b": Rejected("Invalid value"), "c": {}}


def test_a_topic_whose_configs_a_broker_cannot_read_now_is_as_one_that_may_come(
    client: Client,
) -> None:
    client.settings |= {"a": {}, "b": failure(7, "Request timed out")}
    assert ConfluentAdmin(["unused:1"]).configs(["a", "b"]) == {"a": {}}


def test_a_request_for_configs_without_an_answer_is_about_no_topic(client: Client) -> None:
    client.settings |= dict.fromkeys("ab", UNANSWERED[0])
    with pytest.raises(KafkaUnavailable):
        ConfluentAdmin(["unused:1"]).configs(["a", "b"])
