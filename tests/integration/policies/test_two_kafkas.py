"""One word at /la reaches the topics of two clusters' real brokers, below what is armed there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import ConfigChange, TopicToCreate
from tests.support.command_line import Ran, run
from tests.support.federation import Federation, Server, eventually
from tests.support.reconciler import make

MONTH, WEEK, DAY = "2592000000", "604800000", "86400000"


@pytest.fixture(scope="module")
def brokers(kafka_brokers: Callable[..., KafkaBroker]) -> Iterator[list[KafkaBroker]]:
    with ExitStack() as stack:
        yield [stack.enter_context(kafka_brokers()) for _ in range(2)]


def kdir(server: Server, *arguments: str) -> Ran:
    return run([*arguments, "--at", server.address])


def armed(server: Server, path: str) -> Ran:
    plan = kdir(server, "arm", path, "--aspect", "configs", "-o", "name")
    assert plan.code == 0, plan.err
    return kdir(server, "arm", path, "--aspect", "configs", "--plan", plan.out.strip())


def retention(kafka: ConfluentAdmin, *names: str) -> dict[str, str | None]:
    found = kafka.configs(names)
    return {
        name: one.get("retention.ms") for name, one in found.items() if isinstance(one, Mapping)
    }


def test_one_set_at_la_reaches_two_clusters_and_a_topics_own_value_holds(  # noqa: PLR0915 - one story
    brokers: list[KafkaBroker], tmp_path: Path
) -> None:
    first, second = (ConfluentAdmin([one.bootstrap]) for one in brokers)
    make(first, "search.clicks", "search.views", "search.raw", "loose")
    make(second, TopicToCreate("cpu", config={"retention.ms": WEEK}))
    with Federation(tmp_path) as federation:
        federation.start("/")
        la = federation.join("/la", "/")
        one, two = (
            federation.join(
                path,
                "/la",
                kafka={
                    "bootstrap": [broker.bootstrap],
                    "ceiling": ["create", "configs"],
                    "split_on": ".",
                    "sweep_interval_seconds": 1,
                },
            )
            for path, broker in zip(("/la/one", "/la/two"), brokers, strict=True)
        )
        eventually(lambda: (one.status().topic_count, two.status().topic_count) == (4, 1))
        assert kdir(la, "set", "-y", "/la/one/search/raw", f"retention.ms={DAY}").code == 0

        # Above the mounts there is no Kafka, so nothing to arm; what is below is compared.
        refused = kdir(la, "arm", "/la", "--aspect", "configs")
        assert (refused.code, "no Kafka behind it" in refused.err) == (5, True)
        compared = kdir(la, "effective", "/la", "--diff")
        assert compared.code == 5, compared.err
        assert compared.lines == [f"/la/one/search/raw\tretention.ms\t{DAY}\t(default)  drift"]
        alone = kdir(la, "effective", "/", "--diff", "--timeout", "5")
        assert (alone.code, alone.out) == (5, compared.out), alone.err
        output = kdir(la, "set", "/la/one/search", "manage.configs=true")
        assert output.code == 2
        assert "kdir arm /la/one/search --aspect configs" in output.err

        shown = kdir(la, "arm", "/la/one/search", "--aspect", "configs")
        assert shown.lines == [
            "would change 1 topic of la-one:",
            f"  search.raw    retention.ms   (default) → {DAY}",
        ]
        assert "dry run" in shown.err
        assert retention(first, "search.raw") == {"search.raw": None}
        assert armed(la, "/la/one/search").code == 0
        assert armed(la, "/la/two").code == 0
        assert retention(first, "search.raw") == {"search.raw": DAY}

        # A plan above the mounts counts what each cluster below says of itself.
        planned = kdir(la, "set", "/la", f"retention.ms={MONTH}", "--plan")
        assert planned.code == 0, planned.err
        rows = [line.split("\t") for line in planned.lines]
        assert [row[:5] for row in rows if row[0] == "policy"] == [
            ["policy", "retention.ms", "-", MONTH, "4"]
        ]
        changes = {row[1]: row[3:5] for row in rows if row[0] == "kafka"}
        assert changes == {
            "search.clicks": ["(default)", MONTH],
            "search.views": ["(default)", MONTH],
            "cpu": [WEEK, MONTH],
        }

        would = kdir(la, "effective", "/la", "--if", f"retention.ms={MONTH}")
        assert would.code == 0, would.err
        assert (
            "dry run: the effective value of 3 topics of la-one, 1 topic of la-two would change"
            in would.err
        )

        done = kdir(la, "set", "-y", "--wait", "/la", "retention.ms=30d")
        assert done.code == 0
        assert "armed: 2 topics of la-one, 1 topic of la-two are being changed" in done.err
        wanted = {"search.clicks": MONTH, "search.views": MONTH, "search.raw": DAY, "loose": None}
        eventually(lambda: retention(first, *wanted) == wanted)
        eventually(lambda: retention(second, "cpu") == {"cpu": MONTH})
        planned = kdir(la, "set", "/la", "owner=x", "--plan")
        (row,) = (line.split("\t") for line in planned.lines)
        assert row[:6] == ["policy", "owner", "-", "x", "5", "2"]
        # Whoever sets it shorter, as a person and not as a mount, is obeyed, where that is meant.
        refused = kdir(la, "set", "/la", "retention.ms=7d")
        assert (refused.code, "change retention.ms of 3 topics needs --yes" in refused.err) == (
            2,
            True,
        ), refused.err
        file = tmp_path / "la.yaml"
        file.write_text("{path: /la, kind: mount, policies: {retention.ms: 7d}}")
        planned = kdir(la, "apply", str(file), "--plan")
        assert "would change retention.ms of 3 topics (by /la). Kafka may delete" in planned.err
        refused = kdir(la, "apply", str(file))
        assert (refused.code, "3 topics (by /la) needs --yes" in refused.err) == (2, True)
        assert retention(second, "cpu") == {"cpu": MONTH}
        assert kdir(la, "apply", str(file), "--yes").code == 0
        eventually(lambda: retention(second, "cpu") == {"cpu": WEEK})
        eventually(lambda: retention(first, "search.views") == {"search.views": WEEK})

        # Somebody else's hand is seen, and told.
        first.alter_configs([ConfigChange("search.views", {"retention.ms": "1000"})])
        effective = ["effective", "/la/one/search/views", "--diff"]
        eventually(lambda: "1000  drift" in kdir(la, *effective).out, 60)
        for server in (one, two):
            kafka = server.status().kafka
            assert (kafka.needs_approval_count, kafka.contested_count, kafka.stop_reason) == (
                0,
                0,
                "",
            )

        # What does not answer is named, and never counted as 0.
        two.kill()
        planned = kdir(la, "set", "/la", "retention.ms=1d", "--plan", "--timeout", "5")
        assert planned.code == 3
        assert "not known: la-two did not answer: " in planned.err
        assert "incomplete: the plan of a cluster below is not known; counts are" in planned.err
        would = kdir(la, "effective", "/la", "--if", "retention.ms=1d", "--timeout", "5")
        assert would.code == 3
        assert "not known: la-two did not answer: " in would.err
        assert "3 topics of la-one, topics of la-two (not known) would change" in would.err
        compared = kdir(la, "effective", "/la", "--diff", "--timeout", "5")
        assert "not compared: la-two did not answer: " in compared.err
        assert compared.code == (5 if compared.out else 3)
        output = kdir(la, "set", "-y", "/la", "retention.ms=6d", "--timeout", "5")
        assert output.code == 0, output.err
        assert (
            "armed: 2 topics of la-one are being changed in Kafka; not known: la-two" in output.err
        )

        # A Kafka that does not answer is not said to match.
        brokers[0].kill()
        unread = "la-one: Kafka did not answer when it was last read, since "
        effective = ["effective", "/la/one/search/clicks", "--diff"]
        eventually(lambda: unread in kdir(la, *effective).err, 60)
        compared = kdir(la, *effective)
        assert (compared.code in {3, 5}, "no drift" in compared.err) == (True, False)
