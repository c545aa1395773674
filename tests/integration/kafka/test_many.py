"""Many topics below one change of a real broker: at a rate, and whoever comes next goes on."""

from __future__ import annotations

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from tests.integration.kafka.test_pushing import DAY, MONTH, configs
from tests.support.command_line import run
from tests.support.federation import Federation, Server, eventually
from tests.support.reconciler import make

TOPICS = 200
NAMES = [f"d.t{number:03}" for number in range(TOPICS)]


def kdir(server: Server, *arguments: str) -> str:
    ran = run([*arguments, "--at", server.address])
    assert ran.code == 0, ran.err
    return ran.out


def test_a_server_killed_amid_many_topics_is_followed_by_one_that_goes_on(
    federation: Federation, broker: KafkaBroker
) -> None:
    kafka = ConfluentAdmin([broker.bootstrap])
    make(kafka, *NAMES)
    server = federation.start(
        "/t",
        kafka={
            "bootstrap": [broker.bootstrap],
            "ceiling": ["configs"],
            "split_on": ".",
            "changes_per_second": 50,
        },
    )
    eventually(lambda: server.status().topic_count == TOPICS)
    # Nothing to do yet: what is set from now on reaches Kafka.
    plan = kdir(server, "arm", "/t/d", "--aspect", "configs", "-o", "name").strip()
    kdir(server, "arm", "/t/d", "--aspect", "configs", "--plan", plan)
    kdir(server, "set", "-y", "/t/d/t007", f"retention.ms={DAY}")
    kdir(server, "set", "-y", "/t", f"retention.ms={MONTH}")

    def changed(names: list[str] = NAMES) -> int:
        return sum(one == {"retention.ms": MONTH} for one in configs(kafka, *names).values())

    # Looks at few of them: on a busy machine all are changed before all are looked at.
    eventually(lambda: changed(NAMES[:3]) > 0)
    server.kill()
    before = changed()
    assert 0 < before < TOPICS - 1, "it was killed in the middle"
    server.start()
    eventually(lambda: changed() == TOPICS - 1, 40)
    assert configs(kafka, "d.t007") == {"d.t007": {"retention.ms": DAY}}
    # All of it is known to be kdir's own, whoever asked for it: it is taken back.
    kdir(server, "unset", "-y", "/t", "retention.ms")
    own = {"d.t007": {"retention.ms": DAY}}
    eventually(lambda: configs(kafka, *NAMES) == {name: {} for name in NAMES} | own, 40)
