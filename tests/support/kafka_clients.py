"""Real clients of a real broker with users: each attempt returns ``OK`` or an error's name.

The name is that of Kafka's client. An attempt does not wait until new ACLs are in effect; tests
that expect them use ``eventually``.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from deploy.local.kafka import KafkaBroker
from deploy.local.kafka_users import TlsUsers
from resolver import Resolver
from resolver.errors import PermissionDenied
from resolver.kafka import Consumer as PathConsumer
from resolver.kafka import Producer as PathProducer
from tests.support.command_line import Ran, run
from tests.support.federation import Server, eventually
from tests.support.identities import Authority

OK: Final = "OK"
NO_TOPIC: Final = "TOPIC_AUTHORIZATION_FAILED"
NO_GROUP: Final = "GROUP_AUTHORIZATION_FAILED"
NO_ID: Final = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
LATE: Final = "_MSG_TIMED_OUT"
_SECONDS: Final = 20.0


class Guarded:
    """A broker with users: what users try, and what operators see and do."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self.admin = AdminClient({**broker.client(), "log_level": 0})

    def settings(self, user: str, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns the properties of a user's client."""
        return {**self.broker.client(user), "log_level": 0, **(more or {})}

    # -- what users try ------------------------------------------------------------------------

    def produce(
        self, user: str, topic: str, *, idempotent: bool = True, seconds: float = _SECONDS
    ) -> str:
        """Produces one message; returns ``OK`` or the error's name, ``LATE`` after ``seconds``."""
        more = {"enable.idempotence": idempotent, "message.timeout.ms": int(seconds * 1000)}
        producer = Producer(self.settings(user, more))
        reported: list[KafkaError | None] = []
        producer.produce(topic, user.encode(), on_delivery=lambda error, _: reported.append(error))
        try:
            # Not flush: it raises a fatal error before it has reported all deliveries.
            for _ in range(int(2 * _SECONDS / 0.1)):
                producer.poll(0.1)
                if reported:
                    return _record(reported[0])
        except KafkaException as raised:
            return _record(raised.args[0])
        raise AssertionError(f"{user} was not told what became of a message to {topic}")

    def sent(self, user: str, topic: str) -> int:
        """Returns how many messages of a user a topic holds, acknowledged or not."""
        settings = {**self.broker.client(), "group.id": "sent", "enable.partition.eof": True}
        with closing(Consumer(settings)) as consumer:
            partitions = consumer.list_topics(topic, _SECONDS).topics[topic].partitions
            consumer.assign([TopicPartition(topic, one, OFFSET_BEGINNING) for one in partitions])
            found, open_ones = 0, set(partitions)
            while open_ones:
                message = consumer.poll(_SECONDS)
                assert message is not None, f"{topic} does not say what it holds"
                error = message.error()
                if error is None:
                    found += message.value() == user.encode()
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    open_ones.discard(message.partition())
            return found

    def writes(self, user: str, topic: str) -> bool:
        """True if a message is delivered, False if it is denied. The producer is not idempotent:
        librdkafka would wait half a second for each producer id. Tests of that (KIP-679) call
        ``produce``.
        """
        output = self.produce(user, topic, idempotent=False)
        assert output in {OK, NO_TOPIC}, output
        return output == OK

    def consume(self, user: str, topic: str, group: str) -> str:
        """Consumes and commits a topic's first message; returns ``OK`` or the error's name. A
        ``group`` that ends with a dash gets a random suffix, so that it is new to Kafka.
        """
        name = group + secrets.token_hex(4) if group.endswith("-") else group
        first = {"group.id": name, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer(self.settings(user, first))
        try:
            consumer.subscribe([topic])
            message = consumer.poll(_SECONDS)
            assert message is not None, f"{user} heard nothing of {topic} by {name}"
            if message.error() is None:
                consumer.commit(message=message, asynchronous=False)
            return _record(message.error())
        except KafkaException as raised:
            return _record(raised.args[0])
        finally:
            consumer.close()

    def transact(self, user: str, topic: str, transactional_id: str) -> str:
        """Produces one message in a transaction; returns ``OK`` or the error's name."""
        producer = Producer(self.settings(user, {"transactional.id": transactional_id}))
        try:
            producer.init_transactions(_SECONDS)
            producer.begin_transaction()
            producer.produce(topic, b"x")
            producer.commit_transaction(_SECONDS)
        except KafkaException as raised:
            return _record(raised.args[0])
        return OK

    def sees(self, user: str, topic: str) -> bool:
        """True if Kafka shows a topic to a user."""
        client = AdminClient(self.settings(user))
        return topic in client.list_topics(timeout=_SECONDS).topics

    # -- what operators see and do -------------------------------------------------------------

    def acls(self, name: str = "") -> set[str]:
        """Returns all ACLs, or those of one name, as ``TOPIC a LITERAL User:alice ALLOW
        WRITE *``.
        """
        return {_line(one) for one in self._described() if not name or one.name == name}

    def put(self, *acls: AclBinding) -> None:
        """Creates ACLs as another tool would, and waits until they are visible, which is a moment
        after Kafka accepted them.
        """
        for future in self.admin.create_acls(list(acls)).values():
            future.result(_SECONDS)
        desired_config = set(map(_line, acls))
        eventually(lambda: desired_config <= self.acls())

    def drop(self, *acls: AclBinding) -> None:
        """Deletes ACLs as another tool would, and waits until that is visible."""
        filters = [
            AclBindingFilter(
                one.restype,
                one.name,
                one.resource_pattern_type,
                one.principal,
                one.host,
                one.operation,
                one.permission_type,
            )
            for one in acls
        ]
        for future in self.admin.delete_acls(filters).values():
            future.result(_SECONDS)
        gone = set(map(_line, acls))
        eventually(lambda: not gone & self.acls())

    def create(self, *topics: str) -> None:
        """Creates topics that exist before kdir starts."""
        desired_set = [NewTopic(name, 1, 1) for name in topics]
        for future in self.admin.create_topics(desired_set).values():
            future.result(_SECONDS)

    def topics(self) -> set[str]:
        """Returns all topics but Kafka's own."""
        names = self.admin.list_topics(timeout=_SECONDS).topics
        return {name for name in names if not name.startswith("__")}

    def clear(self) -> None:
        """Deletes all topics and ACLs."""
        found = self._described()
        if found:
            self.drop(*found)
        names = self.topics()
        if names:
            for future in self.admin.delete_topics(sorted(names)).values():
                future.result(_SECONDS)

    def _described(self) -> list[AclBinding]:
        anything: Any = None
        every = AclBindingFilter(
            ResourceType.ANY,
            anything,
            ResourcePatternType.ANY,
            anything,
            anything,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        found: list[AclBinding] = self.admin.describe_acls(every).result(_SECONDS)
        return found


class ByPath:
    """Clients that have a directory server's address and paths, and no broker's address."""

    def __init__(self, guarded: Guarded, address: str) -> None:
        self._guarded = guarded
        self._address = address

    def own(self, user: str) -> dict[str, str]:
        """Returns a user's credentials as client properties, without addresses and protocol."""
        known = ("sasl.username", "sasl.password", "ssl.")
        found = self._guarded.broker.client(user)
        own = {key: value for key, value in found.items() if key.startswith(known)}
        return {**own, "log_level": "0"}

    def produce(self, user: str, path: str) -> str:
        """Produces one message, idempotent as by default (KIP-679); returns ``OK`` or the error as
        a sentence.
        """
        reported: list[KafkaError | None] = []
        with Resolver(self._address) as resolver:
            producer = PathProducer(resolver, self.own(user))
            producer.produce(path, b"x", on_delivery=lambda error, _: reported.append(error))
            try:
                assert producer.flush(2 * _SECONDS) == 0
            except PermissionDenied as error:
                assert len(reported) == 1, "what was not delivered was told, too"
                return error.message
            return OK if reported[0] is None else producer.explained(reported[0], path).message

    def consume(self, user: str, path: str, group: str) -> str:
        """Consumes a message by a new group named ``group…``; returns ``OK`` or a sentence."""
        name = group + secrets.token_hex(4)
        own = {**self.own(user), "group.id": name, "auto.offset.reset": "earliest"}
        with Resolver(self._address) as resolver, closing(PathConsumer(resolver, own)) as consumer:
            consumer.subscribe([path])
            received = consumer.poll(_SECONDS)
            assert received is not None, f"{user} heard nothing of {path}"
            error = received.explained()
            return OK if error is None else error.message


def credentials(broker: KafkaBroker, user: str, file: Path) -> Path:
    """Writes a file with which a directory server logs in as this user."""
    properties = broker.client(user)
    del properties["bootstrap.servers"]
    file.touch(mode=0o600)
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return file


def certified(folder: Path, *names: str, super_users: Sequence[str] = ("admin",)) -> TlsUsers:
    """Creates users with certificates of a new authority."""
    authority = Authority(folder)
    pairs = {}
    for name in names:
        issued = authority.issue(name, addresses=["127.0.0.1"])
        pairs[name] = (issued.files["cert"], issued.files["key"])
    return TlsUsers(authority.file, pairs, super_users=super_users)


def secured(broker: KafkaBroker, folder: Path, user: str = "kdir", **more: Any) -> dict[str, Any]:
    """Returns the [kafka] table of a server's config: it logs in as this user, and may change ACLs
    within its ceiling.
    """
    return {
        "bootstrap": [broker.bootstrap],
        "properties_file": str(credentials(broker, user, folder / "kafka.properties")),
        "ceiling": ["create", "delete", "acls"],
        "split_on": ".",
        "sweep_interval_seconds": 1,
        **more,
    }


def kdir(server: Server, *arguments: str, code: int = 0) -> Ran:
    """Runs a command at a directory server, and asserts its exit code."""
    ran = run([*arguments, "--at", server.address])
    assert ran.code == code, f"{arguments}: {ran.code}: {ran.out}{ran.err}"
    return ran


def kdir_process(server: Server, *arguments: str, stdin: str = "", code: int = 0) -> Ran:
    """Runs a command as ``kdir`` does, but in a process of its own: for verbs that move bytes."""
    done = subprocess.run(
        [sys.executable, "-m", "resolver.cli.main", *arguments, "--at", server.address],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, f"{arguments}: {done.returncode}: {done.stdout}{done.stderr}"
    return Ran(done.returncode, done.stdout, done.stderr)


def plan_of(server: Server, path: str, *arguments: str) -> set[str]:
    """Returns the ACLs of the calls that arming would make, as of ``Guarded.acls``; removals begin
    with a dash.
    """
    ran = kdir(server, "arm", path, "--aspect", "acls", *arguments, "-o", "json")
    found = set()
    for call in ran.objects[0].get("calls", ()):
        reported = call["acl"]
        keys = ("resource_type", "resource_name", "pattern_type", "principal")
        more = ("permission_type", "operation", "host")
        line = " ".join(reported[key] for key in (*keys, *more))
        found.add(line if call["operation"] == "CreateAcls" else f"-{line}")
    return found


def armed(server: Server, path: str, *arguments: str, code: int = 0) -> Ran:
    """Arms a path by a plan that it reads first, and asserts the exit code."""
    arm = ("arm", path, "--aspect", "acls", *arguments)
    plan = kdir(server, *arm, "-o", "name").out.strip()
    return kdir(server, *arm, "--plan", plan, code=code)


def acl(
    principal: str, operation: str, topic: str, *, deny: bool = False, prefixed: bool = False
) -> AclBinding:
    """Returns an ACL on a topic or, if ``prefixed``, on all topics whose names begin with it."""
    return AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL,
        f"User:{principal}",
        "*",
        AclOperation[operation],
        AclPermissionType.DENY if deny else AclPermissionType.ALLOW,
    )


def on_cluster(principal: str, operation: str) -> AclBinding:
    """Returns an ACL on the Kafka cluster itself."""
    return AclBinding(
        ResourceType.BROKER,
        "kafka-cluster",
        ResourcePatternType.LITERAL,
        f"User:{principal}",
        "*",
        AclOperation[operation],
        AclPermissionType.ALLOW,
    )


def _line(one: AclBinding) -> str:
    arguments = (one.restype, one.name, one.resource_pattern_type, one.principal)
    more = (one.permission_type, one.operation, one.host)
    return " ".join(str(getattr(part, "name", part)) for part in (*arguments, *more))


def _record(error: KafkaError | None) -> str:
    return OK if error is None else str(error.name())
