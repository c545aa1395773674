"""docs/audit.md is run over the change logs of three real clusters that two people changed."""

from __future__ import annotations

import shlex
import time
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from kdir.v1 import watch_pb2, watch_pb2_grpc

from tests.conftest import SharedBroker
from tests.support.command_line import Ran, run
from tests.support.federation import Federation, Server, eventually
from tests.support.identities import token
from tests.support.pages import blocks, run_program

PAGE = "docs/audit.md"
SECRET = "a shared secret of more than 32 bytes"
CHANGES = (
    ("ana", "mkdir /la/web --yes"),
    ("ana", "create /la/web/clicks -p 3"),
    ("ana", "set /la/web retention.ms=604800000"),
    ("bo", "set /la/web/clicks retention.ms=2592000000"),
    ("bo", "unset /la/web/clicks retention.ms"),
    ("bo", "set /la/web owner=search"),
    ("bo", "grant alice read /la/web"),
    ("ana", "mkdir /ny/web --yes"),
    ("ana", "mv /la/web/clicks /la/web/visits"),
    ("ana", "rm /la/web/visits --yes"),
    ("ana", "mkdir /la/website --yes"),
    ("ana", "mkdir /la/web/left --yes"),
    ("ana", "mv /la/web/left /la/left"),
)


class Audited:
    """Federation with change logs, and kdir in the name of somebody."""

    def __init__(self, federation: Federation, patch: pytest.MonkeyPatch) -> None:
        self.address = federation["/"].address
        self._patch = patch

    def kdir(self, who: str, *arguments: str) -> Ran:
        expires = int(time.time()) + 600
        self._patch.setenv("KDIR_TOKEN", token(SECRET, "HS256", sub=who, exp=expires))
        return run([*arguments, "--at", self.address])

    def make_changes(self) -> None:
        for who, line in CHANGES:
            ran = self.kdir(who, *line.split())
            assert ran.code == 0, ran.err
        arm = ("arm", "/la/web", "--aspect", "configs")
        plan = self.kdir("ana", *arm, "-o", "name").out.strip()
        armed = self.kdir("ana", *arm, "--plan", plan)
        assert armed.code == 0, armed.err

    def audit(self, *arguments: str) -> list[dict[str, Any]]:
        ran = self.kdir("ana", "audit", *arguments, "-o", "json")
        assert ran.code == 0, ran.err
        return [{key: one for key, one in row.items() if key != "time"} for row in ran.objects]


def is_filled(server: Server) -> bool:
    request = watch_pb2.GetChangeLogRequest()
    answer = server.ask(watch_pb2_grpc.WatchServiceStub, "GetChangeLog", request)
    return bool(answer.state.revision)


@pytest.fixture(scope="module")
def audited(
    kafka_broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Audited]:
    """Yields clusters whose changes are in their logs, all in one Kafka."""
    folder = tmp_path_factory.mktemp("audit")
    (folder / "jwt.key").write_text(SECRET)
    settings: dict[str, Any] = {
        "auth": {"jwt_key": str(folder / "jwt.key"), "allow_anonymous": True},
        "change_log": {"bootstrap": [kafka_broker.bootstrap]},
    }
    own = f"audit-{uuid.uuid4().hex[:8]}-*"
    rules = [{"match": own, "split_on": "."}, {"match": "*", "ignore": True}]
    kafka = {
        "bootstrap": [kafka_broker.bootstrap],
        "mapping_rules": rules,
        "ceiling": ["create", "configs", "delete"],
    }
    with Federation(folder) as federation, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        federation.start("/", **settings)
        federation.join("/la", "/", kafka=kafka, **settings)
        federation.join("/ny", "/", **settings)
        for server in federation.servers.values():
            # What was there when a log was filled first is not in its history.
            eventually(partial(is_filled, server))
        made = Audited(federation, patch)
        made.make_changes()
        # The newest is the last that is published of la; ny's is made before it.
        armed = "SELECT count(*) AS n FROM changes WHERE map_contains(after, 'manage.configs')"
        eventually(lambda: made.audit(armed, "/la")[0]["n"])
        eventually(lambda: made.audit("SELECT 1 FROM changes", "/ny"))
        yield made


def commands() -> list[list[str]]:
    """Returns the arguments of each ``kdir audit`` of the page: command lines, and queries."""
    found: list[list[str]] = []
    for block in blocks(PAGE):
        if block.language == "sql":
            found.append([block.body])
        elif block.language == "sh":
            lines = [shlex.split(line) for line in block.body.splitlines()]
            assert {tuple(line[:2]) for line in lines} == {("kdir", "audit")}
            found += [line[2:] for line in lines]
    return found


def test_the_questions_of_the_page(audited: Audited) -> None:
    """Each with its answer."""
    clicks = "/la/web/clicks"
    counts, widened, lost, between, armed, removed, moved, owners, fields, state, *missing = (
        audited.audit(*one) for one in commands()
    )
    people = {(row["cluster"], row["principal"]): row["changes"] for row in counts}
    assert people[("la", "User:bo")] == 4
    assert people[("ny", "User:ana")] == 1
    grant = "ALLOW User:alice READ TOPIC from *"
    assert widened == [{"principal": "User:bo", "path": "/la/web", "added": [grant]}]
    assert lost == [
        {"principal": "User:bo", "path": clicks, "before_ms": 2592000000, "after_ms": 604800000}
    ]
    assert len(between) == sum(people.values())
    assert armed == [{"principal": "User:ana", "path": "/la/web", "aspect": "manage.configs"}]
    assert ("User:ana", "/la/web/visits") in [(row["principal"], row["path"]) for row in removed]
    assert moved == [
        {"principal": "User:ana", "path_before": clicks, "path": "/la/web/visits"},
        {"principal": "User:ana", "path_before": "/la/web/left", "path": "/la/left"},
    ]
    assert owners == [
        {"principal": "User:bo", "path": "/la/web", "owner_before": None, "owner_after": "search"}
    ]
    assert [(row["path"], row["field"], row["new"]) for row in fields] == [
        (clicks, "retention.ms", "2592000000"),
        (clicks, "retention.ms", None),
        ("/la/web", "owner", "search"),
    ]
    assert [row["path"] for row in state] == ["/la/web"]
    assert state[0]["after"]["owner"] == "search"
    assert missing == [[], []]


@pytest.mark.slow
def test_the_program_of_the_page(audited: Audited, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    audited.audit("FROM unread")  # with a token for the program, too
    (program,) = [block.body for block in blocks(PAGE) if block.language == "python"]
    assert "User:bo 4" in run_program(program, audited.address).splitlines()
