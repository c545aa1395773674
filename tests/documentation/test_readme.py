"""README's blocks are run: on real directory servers with a real Kafka broker behind them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.local.ports import free_port
from deploy.local.process import LocalProcess
from tests.conftest import SharedBroker
from tests.support.federation import Federation, Server, eventually
from tests.support.pages import ROOT, blocks, run_line

pytestmark = pytest.mark.slow

_TOPIC = "search.clicks"


def block(section: str, language: str, number: int = 0) -> str:
    """Returns a block of the README."""
    found = blocks("README.md")
    return [one.body for one in found if (one.section, one.language) == (section, language)][number]


def shell(line: str, environment: Mapping[str, str]) -> str:
    """Returns what a command line prints on stdout; it must succeed."""
    return run_line(line, environment)[0]


@pytest.fixture(scope="module")
def broker(own_broker: SharedBroker) -> SharedBroker:
    """Returns the file's broker, with the topic that README speaks of."""
    from confluent_kafka.admin import AdminClient, NewTopic

    client = AdminClient({"bootstrap.servers": own_broker.bootstrap, "log_level": 0})
    client.create_topics([NewTopic(_TOPIC, 2, replication_factor=1)])[_TOPIC].result(timeout=30)
    return own_broker


def await_topic(server: Server, path: str) -> None:
    """Returns once the server has adopted the topic."""
    eventually(lambda: server.outcome(path) == "resolution")


@pytest.fixture(scope="module")
def federation(
    broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Federation]:
    """Yields the picture, without la-metrics; both Kafka clusters are one broker."""
    kafka = {"bootstrap": [broker.bootstrap], "split_on": "."}
    with Federation(tmp_path_factory.mktemp("readme")) as made:
        made.start("/")
        made.join("/la", "/", site="la")
        made.join("/ny", "/", site="ny")
        made.join("/la/tracking", "/la", site="la", kafka=kafka)
        made.join("/ny/tracking", "/ny", site="ny", kafka=kafka)
        for mount in ("/la/tracking", "/ny/tracking"):
            await_topic(made[mount], f"{mount}/search/clicks")
        eventually(lambda: "/ny/tracking" in made["/la"].mounted())
        yield made


@pytest.fixture
def at(federation: Federation, tmp_path: Path) -> dict[str, str]:
    """Returns the environment of somebody whose nearest server is la's."""
    return {
        "KDIR_AT": federation["/la"].address,
        "KDIR_INDEX": str(tmp_path / "index"),
        "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path),
    }


def test_every_block_is_tried_by_a_test_below() -> None:
    tried = [
        ("", "text"),  # the picture
        ("Demo", "sh"),
        ("Quick start: an existing Kafka cluster", "sh"),
        ("Quick start: an existing Kafka cluster", "sh"),
        ("Resolving and searching topics", "sh"),
        ("Policies and access control", "sh"),
    ]
    assert [(one.section, one.language) for one in blocks("README.md")] == tried


def test_the_targets_of_make_are_there() -> None:
    targets = re.findall(r"^make ([a-z-]+)", block("Demo", "sh"), re.MULTILINE)
    assert targets == ["demo", "demo-down"]
    makefile = (ROOT / "Makefile").read_text()
    assert [one for one in targets if not re.search(rf"^{one}:.*## ", makefile, re.MULTILINE)] == []


@contextmanager
def serving(line: str, folder: Path) -> Iterator[str]:
    """Runs the README's one-liner; gives the address that it serves on."""
    address = f"127.0.0.1:{free_port()}"
    arguments = line.split()
    assert arguments[0] == "kdir"
    # All as it stands there, but not on the port that a server of somebody's may have.
    command = [str(Path(sys.executable).parent / "kdir"), *arguments[1:], "--listen", address]
    server = LocalProcess(
        command, folder / "server.log", environment={"XDG_STATE_HOME": str(folder / "state")}
    )
    server.start()
    try:
        server.await_ready(lambda: "serving " in server.tail(), 30)
        yield address
    finally:
        server.kill()


def test_the_one_liner_serves_a_running_kafka(broker: SharedBroker, tmp_path: Path) -> None:
    section = "Quick start: an existing Kafka cluster"
    line = block(section, "sh").strip().replace("HOST:9092", broker.bootstrap)
    first, listing, resolving, locating = block(section, "sh", 1).splitlines()
    with serving(line, tmp_path) as address:
        environment = {"KDIR_AT": address, "XDG_CACHE_HOME": str(tmp_path)}
        names = eventually(lambda: shell(listing, environment).split())
        eventually(lambda: _TOPIC in shell(listing, environment).split())
        assert _TOPIC in shell(first, environment).split()
        assert f"-t {_TOPIC}" in shell(f"{resolving} -o kcat", environment)
        assert _TOPIC in shell(resolving, environment)
        assert shell(locating, environment).startswith(f"/la/tracking/{_TOPIC}")
    assert not any(name.startswith("__") for name in names)
    assert (tmp_path / "state" / "kdir" / "la-tracking.sqlite").exists()


@pytest.mark.timeout(300)
def test_finding_a_topic(at: dict[str, str], broker: SharedBroker) -> None:
    shown = {
        line: shell(line, at) for line in block("Resolving and searching topics", "sh").splitlines()
    }
    assert "la-tracking" in shown["kdir tree"]
    assert "clicks" in shown["kdir ls -l /la/tracking/search"]
    assert shown["kdir resolve -o kcat /la/tracking/search/clicks"] == (
        f"-b {broker.bootstrap} -t {_TOPIC}\n"
    )
    assert shown[f"kdir which la-tracking {_TOPIC}"].startswith("/la/tracking/search/clicks")
    assert "ny-tracking" in shown["kdir trace /ny/tracking/search/clicks"]
    for path in ("/la/tracking/search/clicks", "/ny/tracking/search/clicks"):
        assert path in shown["kdir find click"]


def test_what_holds_and_who_may(at: dict[str, str]) -> None:
    set_it, effective, grant, check = block("Policies and access control", "sh").splitlines()
    shell(set_it, at)
    # It comes down the parent's link a moment later.
    eventually(lambda: "retention.ms\t259200000\t/la\t" in shell(effective, at))
    assert "ALLOW User:alice READ TOPIC" in shell(grant, at)
    decided = "allowed: ALLOW User:alice READ TOPIC from * on /la/tracking/search\n"
    assert shell(check, at).startswith(decided)
