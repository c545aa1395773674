"""docs/tutorial.md is run, in order, on real directory servers and real brokers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from deploy.demo import topics
from deploy.demo.federation import CLUSTERS, KAFKA, variable
from deploy.local.kafka import KafkaBroker
from tests.support.federation import Federation, Server, eventually
from tests.support.pages import blocks, run_line

pytestmark = pytest.mark.slow

PAGE = "docs/tutorial.md"
_PATIENT = ("kdir resolve", "kdir ls", "kdir effective", "kdir find")
"""Verbs whose answer follows a change by a moment: of Kafka, or of a cluster above."""


@pytest.fixture
def environment(
    kafka_brokers: Callable[..., KafkaBroker], tmp_path: Path
) -> Iterator[dict[str, str]]:
    """Yields the variables of ``.demo/env``, of a federation as the demo's."""
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(kafka_brokers()) for name in topics.SEEDS}
        made = stack.enter_context(Federation(tmp_path))
        made.start("/")
        made.join("/la", "/", site="la")
        made.join("/ny", "/", site="ny")
        for name, broker in brokers.items():
            mount = CLUSTERS[name]
            topics.make(broker.bootstrap, topics.SEEDS[name])
            kafka = {**KAFKA[name], "bootstrap": [broker.bootstrap], "sweep_interval_seconds": 1}
            made.join(mount, mount.rpartition("/")[0], kafka=kafka)
            eventually(partial(_has_topics, made[mount], len(topics.SEEDS[name])))
        eventually(lambda: set(CLUSTERS.values()) - {"/"} <= set(made["/la"].mounted()) | {"/la"})
        addresses = {variable(name): made[mount].address for name, mount in CLUSTERS.items()}
        yield {
            **addresses,
            "KDIR_AT": f"{addresses['LA']},{addresses['LA_TRACKING']}",
            "KDIR_INDEX": str(tmp_path / "index"),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }


@pytest.mark.timeout(300)
def test_the_commands_of_the_tutorial(environment: dict[str, str]) -> None:
    ran: dict[str, str] = {}
    for line in _commands():
        ran[line.partition("   #")[0]] = "".join(
            eventually(partial(run_line, line, environment))
            if line.startswith(_PATIENT)
            else run_line(line, environment)
        )
    clicks = "/la/tracking/search/clicks"
    assert "la-tracking" in ran["kdir tree /"]
    assert "-t search.clicks" in ran[f"kdir resolve -o kcat {clicks}"]
    assert ran[f"kdir --at $NY resolve {clicks}"] == ran[f"kdir resolve {clicks}"]
    assert "checkout/payments" in ran["kdir which ny-tracking checkout.payments"]
    assert "ABSENT" in ran["kdir resolve /la/tracking/search/klicks"]
    assert "ABOVE_CEILING" in ran["kdir create /la/metrics/sys/gpu"]
    assert sorted(ran["kdir consume /la/tracking/tutorial/first"].split()) == ["hello", "world"]
    assert "tutorial.first" in ran["kdir resolve /la/tutorial/first"]
    assert "/la/tracking/tutorial/first" in ran["kdir find first"]


def test_the_tutorial_names_variables_that_the_demo_sets() -> None:
    known = {variable(name) for name in ("root", "la", "ny", "la-tracking")}
    used = {name for line in _commands() for name in re.findall(r"\$(\w+)", line)}
    assert used <= known


def _has_topics(server: Server, count: int) -> bool:
    return bool(server.status().topic_count == count)


def _commands() -> list[str]:
    return [line for one in blocks(PAGE) if one.language == "sh" for line in one.body.splitlines()]
