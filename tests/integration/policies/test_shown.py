"""What kdir shows of quotas and of Kafka's side, on real servers with a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import ConfigChange, Succeeded
from tests.support.command_line import Ran, run
from tests.support.federation import Federation, Server, eventually
from tests.support.reconciler import make

WEEK, DAY = "604800000", "86400000"


@pytest.fixture(scope="module")
def broker(kafka_brokers: Callable[..., KafkaBroker]) -> Iterator[KafkaBroker]:
    with kafka_brokers() as one:
        yield one


def kdir(server: Server, *arguments: str) -> Ran:
    return run([*arguments, "--at", server.address])


def done(server: Server, *arguments: str) -> Ran:
    ran = kdir(server, *arguments)
    assert ran.code == 0, ran.err
    return ran


def facts(ran: Ran, name: str) -> list[str]:
    return [line.split("\t")[1] for line in ran.lines if line.startswith(f"{name}\t")]


def test_quotas_and_what_is_to_be_known_of_kafka_are_shown_from_any_server(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    kafka = ConfluentAdmin([broker.bootstrap])
    make(kafka, "d.a", "d.b", "d.c")
    with Federation(tmp_path) as federation:
        root = federation.start("/")
        settings = {
            "bootstrap": [broker.bootstrap],
            "ceiling": ["create", "configs"],
            "split_on": ".",
            "sweep_interval_seconds": 1,
        }
        here = federation.join("/t", "/", kafka=settings)
        eventually(lambda: here.status().topic_count == 3)
        done(root, "set", "/", "max_topics=3")
        done(here, "set", "/t/d", "max_partitions=4", "retention.ms=7d", "partitions=2")
        eventually(lambda: "max_topics" in kdir(here, "effective", "/t/d").out)

        # Quotas: all levels, from any server.
        for asked in (root, here):
            assert facts(done(asked, "stat", "/t/d/a"), "quota") == [
                "3 of 4 partitions at /t/d",
                "3 of 3 topics at /",
            ]
        refused = kdir(root, "create", "/t/x", "--partitions", "1")
        assert refused.code == 5
        assert "/ (of each cluster below it, so of /t too) allows 3 topics" in refused.err
        (quota,) = [
            one
            for one in done(root, "effective", "/t/d", "-o", "json").objects
            if one["field"] == "max_partitions"
        ]
        assert (quota["value"], quota["used"]) == ("4", 3)

        # What nobody armed is a wish, and said to be one.
        unarmed = kdir(root, "effective", "--diff", "/t/d")
        assert unarmed.code == 5
        assert {line.split("\t")[1] for line in unarmed.lines} == {"retention.ms"}
        assert all(line.endswith("not-armed") for line in unarmed.lines)
        assert kdir(here, "effective", "--diff", "/t/d/a").out.count("not-armed") == 1
        what_if = done(here, "effective", "/t/d/a", "--if", "flush.ms=9", "--if", "retention.ms=1d")
        shown = {line.split("\t")[0]: line.split("\t")[-1] for line in what_if.lines}
        assert {shown["flush.ms"], shown["retention.ms"]} == {"default  not-armed"}

        # Armed: it is pushed, as far as there is room. A directory's partitions are for new topics.
        for name in ("a", "b", "c"):
            done(here, "set", f"/t/d/{name}", "partitions=2")
        plan = done(here, "arm", "/t/d", "--aspect", "configs", "-o", "name").out.strip()
        done(here, "arm", "/t/d", "--aspect", "configs", "--plan", plan)
        rows = eventually(lambda: _rows(kdir(here, "effective", "--diff", "/t/d"), 2))
        assert {(path, field, why) for path, field, _, why in rows} == {
            ("/t/d/b", "partitions", "1  quota-exceeded"),
            ("/t/d/c", "partitions", "1  quota-exceeded"),
        }
        assert facts(done(root, "stat", "/t/d/b"), "quota-exceeded") == ["partitions"]

        # What is only asked about is no drift.
        what_if = done(here, "effective", "/t/d/a", "--if", "flush.ms=9")
        assert [line.split("\t")[-1] for line in what_if.lines if line.startswith("flush.ms")] == [
            "default  if set"
        ]

        # Somebody changes what is inherited: that is drift, counted and shown.
        assert kafka.alter_configs([ConfigChange("d.a", {"retention.ms": DAY})]) == {
            "d.a": Succeeded()
        }
        eventually(lambda: "drift: 1" in done(here, "stat", "/t/d/a").out)
        drifted = _rows(kdir(root, "effective", "--diff", "/t/d"), 3)
        assert ("/t/d/a", "retention.ms", WEEK, f"{DAY}  drift") in drifted


def _rows(ran: Ran, count: int) -> list[tuple[str, ...]]:
    rows = [tuple(line.split("\t")) for line in ran.lines]
    assert len(rows) == count, ran.out
    return rows
