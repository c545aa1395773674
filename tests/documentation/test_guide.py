"""docs/access-and-policies.md is run, in order, on three real servers and a real broker."""

from __future__ import annotations

import re
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from functools import partial

import pytest

from deploy.demo import federation as demo
from directory.server.config import parse_config
from tests.conftest import SharedBroker
from tests.support.federation import Federation, eventually
from tests.support.pages import blocks, run_line, run_program

PAGE = "docs/access-and-policies.md"
_CLICKS = "/la/tracking/search/clicks"


def bodies(language: str) -> list[str]:
    """Returns the page's fenced blocks of a language, in order."""
    return [one.body for one in blocks(PAGE) if one.language == language]


@pytest.fixture(scope="module")
def broker(kafka_broker: SharedBroker) -> Iterator[tuple[SharedBroker, str]]:
    """Yields the shared broker, with the demo's topics below a prefix of this test's own."""
    from confluent_kafka.admin import AdminClient, NewTopic

    prefix = f"guide-{uuid.uuid4().hex[:8]}."
    week = {"retention.ms": "604800000"}
    topics = [
        NewTopic(f"{prefix}search.clicks", 1, replication_factor=1, config=week),
        NewTopic(f"{prefix}search.ranking.features", 1, replication_factor=1),
        NewTopic(f"{prefix}search.views", 1, replication_factor=1, config=week),
    ]
    client = AdminClient({"bootstrap.servers": kafka_broker.bootstrap, "log_level": 0})
    for made in client.create_topics(topics).values():
        made.result(timeout=30)
    yield kafka_broker, prefix
    client.delete_topics([one.topic for one in topics])


@pytest.fixture(scope="module")
def environment(
    broker: tuple[SharedBroker, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Yields the environment of a user at la's servers, as the demo sets it."""
    shared, prefix = broker
    folder = tmp_path_factory.mktemp("guide")
    rules = [
        {"match": f"{prefix}*", "split_on": ".", "strip_prefix": prefix},
        {"match": "*", "ignore": True},
    ]
    kafka = {
        "bootstrap": [shared.bootstrap],
        "mapping_rules": rules,
        "sweep_interval_seconds": 1,
        "ceiling": ["create", "configs"],
    }
    with Federation(folder) as made:
        made.start("/")
        made.join("/la", "/")
        tracking = made.join("/la/tracking", "/la", kafka=kafka)
        eventually(lambda: tracking.outcome(_CLICKS) == "resolution")
        eventually(lambda: tracking.outcome("/la/tracking/search/views") == "resolution")
        yield {
            "KDIR_AT": f"{made['/la'].address},{tracking.address}",
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }


def shell(line: str, environment: Mapping[str, str]) -> str:
    """Returns what a command line prints; it must end as its comment says."""
    return "".join(run_line(line, environment))


def rows(table: str) -> list[tuple[str, ...]]:
    """Returns the rows of a table, without the column that the clock writes."""
    found = [re.split(r" {2,}", line.strip()) for line in table.splitlines()]
    age = found[0].index("AGE")
    width = len(found[0])
    return [tuple(row[:age] + row[age + 1 :]) for row in found if len(row) >= width]


@pytest.mark.timeout(180)
def test_the_commands_of_the_guide(
    environment: dict[str, str], broker: tuple[SharedBroker, str]
) -> None:
    prefix = broker[1]
    effective, plan, explained = bodies("text")
    hash_shown = re.search(r"--plan (\w+)", plan)
    assert hash_shown is not None
    output: dict[str, str] = {}
    for shown in (line for block in bodies("sh") for line in block.splitlines()):
        line = shown
        if hash_shown[1] in line:  # the plan is one of this Kafka, and so is its name
            begins = line.partition(" --plan")[0]
            line = f"{begins} --plan $({begins} -o name)"
        # What was changed in Kafka is seen there a moment later: so each may be tried again.
        output[shown] = eventually(partial(shell, line, environment))
        if shown == f"kdir effective {_CLICKS}":
            assert rows(shell(f"{line} -o table", environment)) == rows(effective)
        if shown.startswith("kdir arm") and "--plan" not in shown:
            ours = re.sub(r" +", " ", output[shown].replace(prefix, ""))
            assert ours.splitlines()[:-1] == re.sub(r" +", " ", plan).splitlines()[:-1]
    assert output[f"kdir check alice read {_CLICKS} --explain"] == explained
    assert "READ_ONLY" in next(text for line, text in output.items() if "search/late" in line)
    assert "denied" in next(text for line, text in output.items() if "check intern" in line)
    assert "allowed" in output["kdir check alice write --any topic /la/tracking"]
    assert "* " not in output["kdir context use demo"]
    # What was unset is inherited again, and nothing of what was only planned came.
    last = shell(f"kdir effective {_CLICKS}", environment)
    assert re.search(r"^tags\.site\tla\t/la\t", last, re.MULTILINE)
    assert re.search(r"^retention\.ms\t172800000\t/la\t", last, re.MULTILINE)
    assert "intern" not in shell("kdir grants /la/tracking/search", environment)


@pytest.mark.timeout(180)
def test_the_program_of_the_guide(environment: dict[str, str]) -> None:
    (code,) = bodies("python")
    address = environment["KDIR_AT"].partition(",")[0]
    topic, may = run_program(code, address).split()
    assert topic.endswith("search.clicks")
    assert may == "True"


def test_the_config_of_the_guide_is_one() -> None:
    (text,) = bodies("toml")
    config = parse_config(tomllib.loads('mount = "/la"\n' + text))
    assert config.access.value == "enforce"


def test_the_demo_allows_what_the_guide_does() -> None:
    assert {"create", "configs"} <= set(demo.KAFKA["la-tracking"]["ceiling"])
