"""What a parent says first after an attach or a restore waits where it would delete data."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from tests.integration.policies.test_two_kafkas import DAY, MONTH, retention
from tests.support.command_line import Ran, run
from tests.support.federation import Federation, Server, eventually
from tests.support.reconciler import make


def kdir(server: Server, *arguments: str) -> Ran:
    done = run([*arguments, "--at", server.address])
    assert done.code == 0, done.err
    return done


@pytest.mark.parametrize("below", [False, True], ids=["its own", "of a cluster below it"])
def test_what_was_set_above_while_a_cluster_was_detached_waits_for_a_person(
    kafka_brokers: Callable[..., KafkaBroker], tmp_path: Path, below: bool
) -> None:
    with kafka_brokers() as broker, Federation(tmp_path) as federation:
        kafka = ConfluentAdmin([broker.bootstrap])
        make(kafka, "clicks")
        root = federation.start("/")
        settings = {
            "bootstrap": [broker.bootstrap],
            "ceiling": ["configs"],
            "sweep_interval_seconds": 1,
        }
        la = federation.join("/la", "/", **({} if below else {"kafka": settings}))
        mount = "/la/m" if below else "/la"
        has_kafka = federation.join(mount, "/la", kafka=settings) if below else la
        eventually(lambda: has_kafka.status().topic_count == 1)
        kdir(root, "set", "-y", "/", "retention.ms=30d")

        def arm() -> None:
            aspect = ("arm", mount, "--aspect", "configs")
            plan = kdir(has_kafka, *aspect, "-o", "name").out.strip()
            kdir(has_kafka, *aspect, "--plan", plan)

        def effective() -> str:
            return kdir(has_kafka, "effective", f"{mount}/clicks").out

        eventually(lambda: MONTH in effective())
        arm()
        eventually(lambda: retention(kafka, "clicks") == {"clicks": MONTH})

        for attempt in range(2):
            kdir(la, "parent", "detach", "/la", "--keep-inherited", "-y")
            kdir(root, "set", "-y", "/", f"retention.ms={DAY}")
            kdir(la, "parent", "attach", "/la")
            # It is known here, and waits.
            eventually(lambda: has_kafka.status().kafka.needs_approval_count == 1)
            assert DAY in effective()
            assert retention(kafka, "clicks") == {"clicks": MONTH}
            if attempt == 0:
                kdir(root, "set", "-y", "/", "retention.ms=30d")
                eventually(lambda: has_kafka.status().kafka.needs_approval_count == 0)

        arm()  # read, and agreed to
        eventually(lambda: retention(kafka, "clicks") == {"clicks": DAY})
        # What is set from now on is a person's word again, and reaches Kafka.
        kdir(root, "set", "-y", "/", "retention.ms=12h")
        eventually(lambda: retention(kafka, "clicks") == {"clicks": "43200000"})


def test_what_was_set_above_after_a_backup_waits_once_it_is_restored(
    kafka_brokers: Callable[..., KafkaBroker], tmp_path: Path
) -> None:
    with kafka_brokers() as broker, Federation(tmp_path / "servers") as federation:
        kafka = ConfluentAdmin([broker.bootstrap])
        make(kafka, "clicks")
        root = federation.start("/")
        store = f"sqlite:///{tmp_path / 'la.db'}"
        settings = {
            "bootstrap": [broker.bootstrap],
            "ceiling": ["configs"],
            "sweep_interval_seconds": 1,
        }
        la = federation.join("/la", "/", kafka=settings, store=store)
        eventually(lambda: la.status().topic_count == 1)
        kdir(root, "set", "-y", "/", "retention.ms=5d")
        eventually(lambda: kdir(la, "effective", "/la/clicks").out.count("432000000"))
        plan = kdir(la, "arm", "/la", "--aspect", "configs", "-o", "name").out.strip()
        kdir(la, "arm", "/la", "--aspect", "configs", "--plan", plan)
        eventually(lambda: retention(kafka, "clicks") == {"clicks": "432000000"})
        backup = str(tmp_path / "one.kdir")
        kdir(la, "backup", "--to", backup)

        # Below somebody keeps the data longer, while above less is wanted.
        kdir(la, "set", "-y", "/la", "retention.ms=30d")
        eventually(lambda: retention(kafka, "clicks") == {"clicks": MONTH})
        kdir(root, "set", "-y", "/", f"retention.ms={DAY}")
        la.process.stop()
        # In a process of its own: it becomes the directory's command.
        command = [sys.executable, "-m", "resolver.cli.main", "restore", "--from", backup]
        subprocess.run([*command, "--store", store, "--replace", "-y"], check=True)
        la.start()
        eventually(lambda: kdir(la, "effective", "/la/clicks").out.count(DAY))
        eventually(lambda: la.status().kafka.needs_approval_count == 1)
        assert retention(kafka, "clicks") == {"clicks": MONTH}
