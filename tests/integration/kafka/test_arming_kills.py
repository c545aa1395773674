"""A server dies while somebody arms: nothing happened, or all of the plan is done by the next."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path as FilePath

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from directory.kafka.admin_contract import TopicToCreate
from directory.kafka.applying.last_applied import load_armed_record
from directory.kafka.arming.arming import ArmingResult
from tests.integration.kafka.test_pushing import MONTH, arm, armed, configs, put
from tests.support.command_line import run
from tests.support.crash_points import Crash, Mortal, Passages
from tests.support.federation import Federation, eventually
from tests.support.reconciler import MOUNT, World, admin_of, make, world

ASKED = frozenset({"alter_configs", "create_partitions", "describe", "configs", "cluster_id"})
WRITTEN = frozenset({"commit_command", "put_facts"})
WHERE = MOUNT.child("d")


def dies_while_it_arms(file: FilePath, bootstrap: str, plan: str, passages: Passages) -> bool:
    """True if a server that is asked to arm, and then carries it out, comes to its last passage."""
    here = World(
        file,
        lambda: Mortal(ConfluentAdmin([bootstrap]), passages, ASKED),
        writer=lambda real: Mortal(real, passages, WRITTEN),
        **armed(),
    )
    try:
        # So little time that it answers "under way", and goes on afterwards.
        here.reconciler.arming_service.arm(WHERE, "configs", plan, timeout_seconds=1)
        here.settle()
    except Crash:
        return True
    else:
        return False
    finally:
        here.close()


def test_killed_at_any_step_of_arming_it_is_done_not_at_all_or_by_the_next(
    broker: KafkaBroker, kafka: ConfluentAdmin, tmp_path: FilePath
) -> None:
    make(kafka, TopicToCreate("d.a", partitions=1), TopicToCreate("d.b", partitions=1), "far")
    before: dict[str, dict[str, str]] = {"d.a": {}, "d.b": {}}
    after = {"d.a": {"retention.ms": MONTH}, "d.b": {"retention.ms": MONTH}}
    died_unarmed = died_armed = 0
    log: list[str] = []
    with world(tmp_path / "first.db", admin_of(broker.bootstrap), **armed()) as here:
        here.sweep()
        put(here, "d", retention_ms=MONTH)
        plan = here.reconciler.arming_service.plan(WHERE, "configs").plan
    for step in itertools.count(1):
        # Each time from where it began: Kafka has its defaults again by then.
        file = tmp_path / f"{step}.db"
        shutil.copy(tmp_path / "first.db", file)
        passages = Passages(step)
        log = passages.log
        died = dies_while_it_arms(file, broker.bootstrap, plan, passages)
        with world(file, admin_of(broker.bootstrap), **armed()) as here:
            here.settle()
            snapshot = here.replica.snapshot
            entry_id = snapshot.find_directory(("d",)) or 0
            node, mark = (
                snapshot.nodes.get(entry_id),
                load_armed_record(snapshot, "configs", entry_id),
            )
            assert node is not None
            says = node.directory.policies.manage.get("configs")
            if mark is None:
                assert says is None, passages.log
                assert configs(kafka, "d.a", "d.b") == before, passages.log
                died_unarmed += 1
            else:
                assert (says, mark.plan, mark.pending) == (True, plan, False), passages.log
                assert configs(kafka, "d.a", "d.b") == after, passages.log
                died_armed += died
            # Whoever asked hears nothing, and asks the same again.
            if mark is None:
                assert arm(here, "d") == ArmingResult(2)
            else:
                again = here.reconciler.arming_service.arm(
                    WHERE, "configs", plan, timeout_seconds=60
                )
                assert not again.left
            assert configs(kafka, "d.a", "d.b") == after
            # What kdir pushed is known to be its own: it is taken back, nothing else.
            put(here, "d", retention_ms=None)
            here.settle()
            assert configs(kafka, "d.a", "d.b") == before, passages.log
        if not died:
            break
    assert {"before commit_command", "after commit_command", "after alter_configs"} <= set(log)
    assert died_unarmed
    assert died_armed


def test_a_server_killed_between_its_record_and_kafka_finishes_when_it_is_back(
    federation: Federation, broker: KafkaBroker, kafka: ConfluentAdmin
) -> None:
    names = [f"d.t{number}" for number in range(8)]
    make(kafka, *names)
    settings = {
        "bootstrap": [broker.bootstrap],
        "ceiling": ["configs"],
        "split_on": ".",
        "changes_per_second": 1,
    }
    server = federation.start("/t", kafka=settings)
    eventually(lambda: server.status().topic_count == 8)

    def kdir(*arguments: str) -> str:
        ran = run([*arguments, "--at", server.address])
        assert ran.code == 0, ran.err
        return ran.out

    kdir("set", "-y", "/t/d", f"retention.ms={MONTH}")
    plan = kdir("arm", "/t/d", "--aspect", "configs", "-o", "name").strip()
    arguments = ["arm", "/t/d", "--aspect", "configs", "--plan", plan, "--at", server.address]
    assert "calls in progress" in run([*arguments, "--timeout", "2s"]).err
    server.kill()
    made = sum(one == {"retention.ms": MONTH} for one in configs(kafka, *names).values())
    assert made < len(names)
    server.start()
    wanted = {name: {"retention.ms": MONTH} for name in names}
    eventually(lambda: configs(kafka, *names) == wanted)
    # Of those that were made before, the one that comes after knows that they are.
    reported = eventually(
        lambda: re.search(r"armed \S+ for configs: (\d) calls? made", run(arguments).err)
    )
    assert reported is not None
    assert int(reported[1]) <= len(names) - made
