"""Grants and real clients: what somebody was granted in the tree a broker with users enforces.

Each looks at one guarded broker that denies what nobody allowed. Where brokers leave open what has
no ACL, see ``test_acl_takeover.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from deploy.local.kafka import KafkaBroker
from deploy.local.kafka_users import SaslUsers
from resolver import Resolver
from resolver.errors import PermissionDenied
from resolver.kafka import Producer
from tests.support.federation import Federation, Server, eventually
from tests.support.kafka_clients import (
    NO_GROUP,
    NO_ID,
    OK,
    ByPath,
    Guarded,
    acl,
    armed,
    credentials,
    kdir,
    kdir_process,
    on_cluster,
    plan_of,
    secured,
)

USERS = SaslUsers(["alice", "bob", "carol", "keeper"], super_users=("admin", "kdir"))


@pytest.fixture(scope="module")
def broker(kafka_brokers: Callable[..., KafkaBroker]) -> Iterator[KafkaBroker]:
    with kafka_brokers(users=USERS) as made:
        yield made


@pytest.fixture
def kafka(broker: KafkaBroker) -> Guarded:
    """Returns the broker, with no topic and no ACL."""
    guarded = Guarded(broker)
    guarded.clear()
    return guarded


@pytest.fixture
def server(kafka: Guarded, federation: Federation, tmp_path: Path) -> Server:
    """Returns a directory of the broker, /la, with /la/search/clicks, /la/search/views and
    /la/other/raw.
    """
    kafka.create("search.clicks", "search.views", "other.raw")
    made = federation.start("/la", kafka=secured(kafka.broker, tmp_path))
    eventually(lambda: made.status().topic_count == 3)
    return made


def test_what_was_granted_is_enforced_once_it_is_armed_and_nothing_before(
    kafka: Guarded, server: Server
) -> None:
    kdir(server, "grant", "alice", "read,write", "/la/search")
    kdir(server, "grant", "alice", "read", "/la/search", "--group", "search-*")
    kdir(server, "grant", "alice", "write", "/la/search", "--transactional-id", "search-*")
    output = plan_of(server, "/la/search")
    lines = {
        f"TOPIC search.{name} LITERAL User:alice ALLOW {operation} *"
        for name in ("clicks", "views")
        for operation in ("READ", "WRITE")
    } | {
        "GROUP search- PREFIXED User:alice ALLOW READ *",
        "TRANSACTIONAL_ID search- PREFIXED User:alice ALLOW WRITE *",
    }
    assert output == lines, "the plan is exactly the calls"
    assert kafka.acls() == set(), "a plan changes nothing"
    assert not kafka.writes("alice", "search.clicks")

    armed(server, "/la/search")
    eventually(lambda: kafka.acls() == lines)
    path = ByPath(kafka, server.address)
    eventually(lambda: path.produce("alice", "/la/search/clicks") == OK)
    assert path.consume("alice", "/la/search/clicks", "search-") == OK
    assert kafka.produce("alice", "search.views", idempotent=False) == OK
    assert kafka.consume("alice", "search.clicks", "other-") == NO_GROUP
    assert kafka.transact("alice", "search.clicks", "search-1") == OK
    assert kafka.transact("alice", "search.clicks", "other-1") == NO_ID
    assert not kafka.writes("alice", "other.raw"), "that is another directory"
    denied = path.produce("bob", "/la/search/clicks")
    assert denied.startswith(
        "/la/search/clicks: Kafka denies bob WRITE (Broker: Topic authorization"
    )
    assert "kdir check bob write /la/search/clicks --explain says which grant" in denied
    denied = path.consume("bob", "/la/search/clicks", "search-")
    assert denied.startswith("/la/search/clicks: Kafka denies bob READ on group search-")
    assert "kdir check bob read /la/search/clicks --group search-" in denied
    assert kafka.consume("bob", "search.clicks", "search-") == NO_GROUP
    assert not kafka.sees("bob", "search.clicks")
    assert plan_of(server, "/la/search") == set(), "all is as it is wished"


def test_the_command_line_names_the_right_that_is_missing(
    kafka: Guarded, server: Server, tmp_path: Path
) -> None:
    bob = ("--properties", str(credentials(kafka.broker, "bob", tmp_path / "bob.properties")))
    produce, consume = (
        ("produce", "/la/search/clicks", *bob),
        ("consume", "/la/search/clicks", *bob),
    )
    denied = kdir_process(server, *produce, code=4, stdin="x\n")
    assert "Kafka denies bob WRITE" in denied.err
    assert "kdir check bob write /la/search/clicks --explain" in denied.err
    assert "Traceback" not in denied.err
    assert USERS.passwords["bob"] not in denied.err
    assert "Kafka denies bob READ" in kdir_process(server, *consume, code=4).err

    # May describe, and not write: Kafka ends an idempotent producer for it.
    kafka.put(acl("bob", "DESCRIBE", "search.clicks"))
    eventually(lambda: kafka.sees("bob", "search.clicks"))
    denied = kdir_process(server, *produce, code=4, stdin="x\n" * 100)
    assert "Kafka denies bob WRITE" in denied.err
    assert "Cluster authorization failed" in denied.err
    assert "Traceback" not in denied.err
    kafka.put(acl("bob", "WRITE", "search.clicks"), acl("bob", "READ", "search.clicks"))
    eventually(lambda: kafka.writes("bob", "search.clicks"))
    kdir_process(server, *produce, stdin="hello\n")
    assert kdir_process(server, *consume).lines[-1] == "hello"


def test_a_producer_that_kafka_ended_reported_each_message_and_goes_on_once_it_may(
    kafka: Guarded, server: Server
) -> None:
    path, own = "/la/search/clicks", ByPath(kafka, server.address).own("bob")
    kafka.put(acl("bob", "DESCRIBE", "search.clicks"))
    eventually(lambda: kafka.sees("bob", "search.clicks"))
    reported: list[KafkaError | None] = []
    with Resolver(server.address) as resolver:
        producer = Producer(resolver, own)
        for _ in range(3):
            producer.produce(path, b"x", on_delivery=lambda error, _: reported.append(error))
        with pytest.raises(PermissionDenied, match="Kafka denies bob WRITE"):
            producer.flush()
        # By identity: confluent-kafka leaves an exception behind where an error meets None.
        assert [error is None for error in reported] == [False] * 3
        kafka.put(acl("bob", "WRITE", "search.clicks"))
        eventually(lambda: kafka.writes("bob", "search.clicks"))
        producer.produce(path, b"x", on_delivery=lambda error, _: reported.append(error))
        assert producer.close() == 0
        assert [error is None for error in reported[3:]] == [True]

        transactional = Producer(resolver, {**own, "transactional.id": "bobs"})
        transactional.begin_transaction()
        with pytest.raises(PermissionDenied, match="WRITE on transactional id bobs"):
            transactional.produce(path, b"x")


def test_write_is_all_that_an_idempotent_producer_needs(kafka: Guarded, server: Server) -> None:
    """KIP-679."""
    kdir(server, "grant", "alice", "write", "/la/search/clicks")
    armed(server, "/la/search/clicks")
    eventually(lambda: kafka.produce("alice", "search.clicks", idempotent=True) == OK)
    assert kafka.acls() == {"TOPIC search.clicks LITERAL User:alice ALLOW WRITE *"}
    assert kafka.sees("alice", "search.clicks"), "WRITE implies DESCRIBE"
    assert not kafka.writes("alice", "search.views")


def test_what_is_revoked_is_lost_and_a_deny_beats_every_allow(
    kafka: Guarded, server: Server
) -> None:
    for who in ("alice", "bob"):
        kdir(server, "grant", who, "write", "/la/search")
    kdir(server, "grant", "alice", "read", "/la", "--group", "g-*")
    kdir(server, "grant", "alice", "read", "/la/search/views")
    armed(server, "/la/search")
    eventually(lambda: kafka.writes("alice", "search.clicks"))
    eventually(lambda: kafka.writes("bob", "search.views"))
    eventually(lambda: kafka.consume("alice", "search.views", "g-") == OK)

    kdir(server, "revoke", "alice", "write", "/la/search")
    eventually(lambda: not kafka.writes("alice", "search.clicks"))
    eventually(lambda: not kafka.writes("alice", "search.views"))
    assert kafka.consume("alice", "search.views", "g-") == OK, "that was another grant"
    assert kafka.writes("bob", "search.clicks")

    kdir(server, "grant", "bob", "write", "/la/search/clicks", "--deny")
    eventually(lambda: not kafka.writes("bob", "search.clicks"))
    assert kafka.writes("bob", "search.views")
    kdir(server, "grant", "bob", "all", "/la/search", "--deny")
    eventually(lambda: not kafka.writes("bob", "search.views"))
    kdir(server, "revoke", "bob", "all", "/la/search", "--deny")
    eventually(lambda: kafka.writes("bob", "search.views"))
    assert not kafka.writes("bob", "search.clicks")

    kdir(server, "revoke", "alice", "read", "/la", "--group", "g-*")
    eventually(lambda: kafka.consume("alice", "search.views", "g-") == NO_GROUP)


def test_what_everybody_is_granted_or_denied(kafka: Guarded, server: Server) -> None:
    kdir(server, "grant", "*", "write", "/la/search")
    kdir(server, "grant", "carol", "write", "/la/search", "--deny", "--host", "127.0.0.1")
    kdir(server, "grant", "bob", "write", "/la/search", "--deny", "--host", "192.0.2.1")
    armed(server, "/la/search")
    eventually(lambda: kafka.writes("alice", "search.clicks"))
    assert kafka.writes("bob", "search.clicks"), "he is not at that address"
    eventually(lambda: not kafka.writes("carol", "search.clicks"))


def test_a_grant_above_the_mount_reaches_the_topics_below_it(
    kafka: Guarded, federation: Federation, tmp_path: Path
) -> None:
    kafka.create("search.clicks", "own")
    root = federation.start("/")
    la = federation.join("/la", "/")
    child = federation.join("/la/t", "/la", kafka=secured(kafka.broker, tmp_path))
    eventually(lambda: child.status().topic_count == 2)
    armed(child, "/la/t")
    kdir(root, "grant", "alice", "write", "/")
    kdir(la, "grant", "bob", "write", "/la")
    kdir(la, "grant", "bob", "read", "/la", "--group", "*")
    eventually(lambda: kafka.writes("alice", "search.clicks"))
    eventually(lambda: kafka.writes("bob", "own"))
    kdir(la, "grant", "alice", "write", "/la", "--deny")
    eventually(lambda: not kafka.writes("alice", "own"))
    kdir(la, "revoke", "bob", "write", "/la")
    eventually(lambda: not kafka.writes("bob", "search.clicks"))

    # With the parent away, what it said last goes on to hold, and what is granted here comes.
    root.kill()
    la.kill()
    kdir(child, "grant", "carol", "write", "/la/t/search")
    eventually(lambda: kafka.writes("carol", "search.clicks"))
    assert not kafka.writes("alice", "own")


def test_a_topic_that_is_moved_has_what_is_granted_where_it_is(
    kafka: Guarded, server: Server
) -> None:
    kdir(server, "grant", "alice", "write", "/la/search")
    kdir(server, "grant", "bob", "write", "/la/other")
    armed(server, "/la/search")
    eventually(lambda: kafka.writes("alice", "search.clicks"))

    kdir(server, "mv", "/la/search/clicks", "/la/other/clicks")
    eventually(lambda: not kafka.writes("alice", "search.clicks"))
    eventually(lambda: kafka.acls("search.clicks") == set())
    assert not kafka.writes("bob", "search.clicks"), "nothing is armed there"
    assert kafka.writes("alice", "search.views")

    armed(server, "/la/other")
    eventually(lambda: kafka.writes("bob", "search.clicks"))
    kdir(server, "mv", "/la/other/clicks", "/la/search/clicks2")
    eventually(lambda: kafka.writes("alice", "search.clicks"))
    eventually(lambda: not kafka.writes("bob", "search.clicks"))

    # A whole directory, and the grants on it go along.
    kdir(server, "mv", "/la/search", "/la/other/search")
    eventually(lambda: kafka.writes("bob", "search.views"))
    assert kafka.writes("alice", "search.views")


def test_a_topic_that_comes_later_is_open_to_its_grantees_and_to_nobody_else(
    kafka: Guarded, server: Server
) -> None:
    kdir(server, "grant", "alice", "write", "/la/search")
    armed(server, "/la/search")
    kdir(server, "create", "/la/search/later")
    eventually(lambda: kafka.writes("alice", "search.later"))
    assert not kafka.writes("bob", "search.later")

    # Gone, and made anew by somebody else: what was granted here is no right there.
    kdir(server, "rm", "-y", "/la/search/later")
    eventually(lambda: "search.later" not in kafka.topics())
    eventually(lambda: kafka.acls("search.later") == set())


def test_what_others_made_is_left_alone_and_reported(kafka: Guarded, server: Server) -> None:
    theirs = acl("carol", "WRITE", "search.clicks")
    same = acl("alice", "WRITE", "search.clicks")
    kafka.put(theirs, same, acl("bob", "READ", "search.", prefixed=True))
    others = kafka.acls()
    kdir(server, "grant", "alice", "write", "/la/search")
    assert plan_of(server, "/la/search") == {
        "TOPIC search.views LITERAL User:alice ALLOW WRITE *"
    }, "one is there already"
    armed(server, "/la/search")
    eventually(lambda: kafka.writes("alice", "search.views"))
    assert others < kafka.acls()

    # Neither what was there before kdir wished it, nor what nobody wishes, is ever removed.
    kdir(server, "revoke", "alice", "write", "/la/search")
    eventually(lambda: not kafka.writes("alice", "search.views"))
    eventually(lambda: kafka.acls() == others)
    assert kafka.writes("carol", "search.clicks")
    assert kafka.writes("alice", "search.clicks"), "by somebody else's word"


def test_a_group_that_two_directories_grant_is_lost_with_the_last_of_them(
    kafka: Guarded, server: Server
) -> None:
    own = {"GROUP team- PREFIXED User:alice ALLOW READ *"}
    for path in ("/la/search", "/la/other"):
        kdir(server, "grant", "alice", "read", path, "--group", "team-*")
        armed(server, path)
    eventually(lambda: kafka.acls("team-") == own)
    kdir(server, "revoke", "alice", "read", "/la/other", "--group", "team-*")
    kdir(server, "grant", "bob", "write", "/la/other")
    eventually(lambda: kafka.writes("bob", "other.raw"))  # what came later is done
    assert kafka.acls("team-") == own
    kdir(server, "rm", "-r", "-y", "/la/search")
    eventually(lambda: kafka.acls("team-") == set())


def test_what_is_no_longer_armed_is_taken_back_and_nothing_is_pushed_any_more(
    kafka: Guarded, server: Server
) -> None:
    kdir(server, "grant", "alice", "write", "/la/search")
    armed(server, "/la/search")
    eventually(lambda: kafka.writes("alice", "search.clicks"))
    kdir(server, "set", "/la/search", "manage.acls=false")
    kdir(server, "grant", "bob", "write", "/la/search")
    kdir(server, "create", "/la/search/later")
    eventually(lambda: "search.later" in kafka.topics())
    assert kafka.acls("search.later") == set()
    assert not any("User:bob" in one for one in kafka.acls())


def test_what_was_revoked_while_nobody_received_it_is_lost_afterwards(
    kafka: Guarded, server: Server
) -> None:
    kdir(server, "grant", "alice", "write", "/la/search")
    kdir(server, "grant", "bob", "write", "/la/search")
    armed(server, "/la/search")
    eventually(lambda: kafka.writes("alice", "search.clicks"))
    eventually(lambda: kafka.writes("bob", "search.clicks"))
    with ExitStack() as stack:
        kafka.broker.kill()
        stack.callback(kafka.broker.start)
        kdir(server, "revoke", "alice", "write", "/la/search")
        server.kill()
    server.start()
    eventually(lambda: not kafka.writes("alice", "search.clicks"), 60.0)
    assert kafka.writes("bob", "search.clicks")
    eventually(
        lambda: (
            kafka.acls()
            == {
                f"TOPIC search.{name} LITERAL User:bob ALLOW WRITE *"
                for name in ("clicks", "views")
            }
        )
    )


def test_a_kdir_that_is_no_super_user_needs_what_the_docs_say(
    kafka: Guarded, federation: Federation, tmp_path: Path
) -> None:
    kafka.create("search.clicks")
    kafka.put(*(acl("keeper", one, "*") for one in ("DESCRIBE", "DESCRIBE_CONFIGS", "CREATE")))
    server = federation.start("/la", kafka=secured(kafka.broker, tmp_path, "keeper"))
    eventually(lambda: server.status().topic_count == 1)
    kdir(server, "grant", "alice", "write", "/la/search")
    refused = kdir(server, "arm", "/la/search", "--aspect", "acls", code=5)
    assert "needs DESCRIBE and ALTER on the cluster" in refused.err
    kafka.put(*(on_cluster("keeper", one) for one in ("DESCRIBE", "DESCRIBE_CONFIGS")))
    eventually(lambda: bool(plan_of(server, "/la/search")))
    refused = armed(server, "/la/search", code=3)
    assert "authorization failed" in (refused.out + refused.err).lower()
    assert kafka.acls("search.clicks") == set()
    refused = kdir(server, "grant", "bob", "write", "/la/search", "--wait", code=5)
    assert "needs DESCRIBE and ALTER on the cluster" in refused.err
    kafka.put(on_cluster("keeper", "ALTER"))
    armed(server, "/la/search")
    eventually(lambda: kafka.writes("alice", "search.clicks"))
    kdir(server, "create", "/la/search/later")
    eventually(lambda: kafka.writes("alice", "search.later"))
