"""ACLs where brokers leave open what has none: the first one closes, and is made only when asked.

Also another way in: users by certificate.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.local.kafka import KafkaBroker
from deploy.local.kafka_users import SaslUsers
from tests.support.federation import Federation, Server, eventually
from tests.support.kafka_clients import (
    LATE,
    NO_TOPIC,
    OK,
    ByPath,
    Guarded,
    acl,
    armed,
    certified,
    kdir,
    plan_of,
    secured,
)

OPEN = SaslUsers(["alice", "bob"], super_users=("admin", "kdir"), open_to_all=True)
CLICKS = "TOPIC search.clicks LITERAL User:alice ALLOW WRITE *"


@pytest.fixture(scope="module")
def open_broker(kafka_brokers: Callable[..., KafkaBroker]) -> Iterator[KafkaBroker]:
    with kafka_brokers(users=OPEN) as made:
        yield made


@pytest.fixture
def kafka(open_broker: KafkaBroker) -> Guarded:
    guarded = Guarded(open_broker)
    guarded.clear()
    return guarded


@pytest.fixture
def server(kafka: Guarded, federation: Federation, tmp_path: Path) -> Server:
    """Returns a server of /la, with /la/search/clicks, which everybody may use."""
    kafka.create("search.clicks")
    made = federation.start("/la", kafka=secured(kafka.broker, tmp_path))
    eventually(lambda: made.status().topic_count == 1)
    return made


def test_what_everybody_uses_is_closed_only_by_a_takeover(kafka: Guarded, server: Server) -> None:
    kdir(server, "grant", "alice", "write", "/la/search")
    shown = kdir(server, "arm", "/la/search", "--aspect", "acls")
    assert "(needs --takeover)" in shown.out
    without = kdir(server, "arm", "/la/search", "--aspect", "acls", "-o", "name").out.strip()
    armed(server, "/la/search")
    assert kafka.acls() == set()
    assert kafka.writes("bob", "search.clicks")

    # A plan without it is no leave to do it.
    takeover = ("arm", "/la/search", "--aspect", "acls", "--takeover")
    refused = kdir(server, *takeover, "--plan", without, code=5)
    assert "plan" in refused.err
    assert kafka.acls() == set()

    assert plan_of(server, "/la/search", "--takeover") == {CLICKS}
    armed(server, "/la/search", "--takeover")
    eventually(lambda: not kafka.writes("bob", "search.clicks"))
    assert kafka.writes("alice", "search.clicks")
    assert kafka.acls() == {CLICKS}


def test_what_was_closed_stays_closed_when_the_last_grant_goes(
    kafka: Guarded, server: Server
) -> None:
    kdir(server, "grant", "alice", "write", "/la/search")
    armed(server, "/la/search", "--takeover")
    eventually(lambda: not kafka.writes("bob", "search.clicks"))
    tries, before = list[str](), kafka.sent("bob", "search.clicks")
    with _trying(kafka, "bob", "search.clicks", tries):
        kdir(server, "revoke", "alice", "write", "/la/search")
        eventually(lambda: not kafka.writes("alice", "search.clicks"))
        seen = len(tries)
        eventually(lambda: tries[seen:].count(NO_TOPIC) >= 5)
    assert set(tries) <= {NO_TOPIC, LATE}, "nobody was let in because nobody is granted anything"
    assert kafka.sent("bob", "search.clicks") == before, "nor did what was not told of arrive"


def test_a_topic_that_is_made_in_an_armed_directory_is_never_open(
    kafka: Guarded, server: Server
) -> None:
    """Its ACLs are there before it is."""
    kdir(server, "grant", "alice", "write", "/la/search")
    armed(server, "/la/search")  # no takeover: what is there waits, what is new does not
    for number in range(5):
        assert OK not in _tries_while_made(kafka, server, f"new{number}")
    assert kafka.writes("bob", "search.clicks"), "that was there before, and waits"
    assert kafka.sent("bob", "search.clicks") == 1


def _tries_while_made(kafka: Guarded, server: Server, name: str) -> list[str]:
    """Returns what bob heard who tried to produce to a topic before, while and after it was made,
    which in the end is that he may not.
    """
    topic, tries = f"search.{name}", list[str]()
    with _trying(kafka, "bob", topic, tries):
        eventually(lambda: len(tries) >= 1)
        kdir(server, "create", f"/la/search/{name}")
        eventually(lambda: kafka.writes("alice", topic))
        seen = len(tries)
        eventually(lambda: tries[seen:].count(NO_TOPIC) >= 3)
    assert kafka.sent("bob", topic) == 0, "nor did what was not told of arrive"
    return tries


def test_what_has_an_acl_already_needs_no_takeover(kafka: Guarded, server: Server) -> None:
    kafka.put(acl("bob", "WRITE", "search.clicks"))
    eventually(lambda: not kafka.writes("alice", "search.clicks"))
    kdir(server, "grant", "alice", "write", "/la/search")
    armed(server, "/la/search")
    eventually(lambda: kafka.writes("alice", "search.clicks"))
    assert kafka.writes("bob", "search.clicks")


def test_users_by_certificate(
    kafka_brokers: Callable[..., KafkaBroker], federation: Federation, tmp_path: Path
) -> None:
    users = certified(tmp_path, "admin", "kdir", "alice", "bob", super_users=("admin", "kdir"))
    with kafka_brokers(users=users) as broker:
        kafka = Guarded(broker)
        kafka.create("search.clicks")
        server = federation.start("/la", kafka=secured(broker, tmp_path))
        eventually(lambda: server.status().topic_count == 1)
        kdir(server, "grant", "alice", "write", "/la/search")
        armed(server, "/la/search")
        path = ByPath(kafka, server.address)
        eventually(lambda: path.produce("alice", "/la/search/clicks") == OK)
        assert "denies this user WRITE" in path.produce("bob", "/la/search/clicks")
        kdir(server, "revoke", "alice", "write", "/la/search")
        eventually(lambda: "denies this" in path.produce("alice", "/la/search/clicks"))


@contextmanager
def _trying(kafka: Guarded, user: str, topic: str, tries: list[str]) -> Iterator[None]:
    """A user that tries all the time to produce to a topic, which may not be there: what it hears
    within a moment.
    """
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            tries.append(kafka.produce(user, topic, idempotent=False, seconds=0.5))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
