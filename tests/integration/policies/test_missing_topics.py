"""Topics that Kafka does not have any more: every verb that an operator is led to shows so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from tests.integration.policies.test_two_kafkas import kdir
from tests.support.federation import Federation, eventually
from tests.support.reconciler import drop, make

NAMES = [f"t{number:02}" for number in range(40)]


def test_missing_topics_and_a_stop_are_shown_by_every_verb_that_leads_there(
    kafka_brokers: Callable[..., KafkaBroker], tmp_path: Path
) -> None:
    with kafka_brokers() as broker, Federation(tmp_path) as federation:
        kafka = ConfluentAdmin([broker.bootstrap])
        make(kafka, *NAMES)
        la = federation.start("/la", kafka={"bootstrap": [broker.bootstrap]})
        eventually(lambda: la.status().topic_count == len(NAMES))

        drop(kafka, "t00")
        eventually(lambda: la.status().kafka.missing_count == 1)
        assert "kdir effective --diff /la" in kdir(la, "doctor").err
        for path in ("/la", "/la/t00"):
            compared = kdir(la, "effective", "--diff", path)
            assert compared.code == 5, compared.err
            assert [line.split("\t")[::3] for line in compared.lines] == [
                ["/la/t00", "(missing)  drift"]
            ]
            assert "no policy applies" not in compared.err
        removed = kdir(la, "rm", "/la/t00", "--plan")
        assert "which Kafka does not have any more: nothing is deleted there" in removed.err
        for layout in ("kcat", "properties"):
            assert "missing: " in kdir(la, "resolve", "-o", layout, "/la/t00").err

        # Once the guard stopped everything, what is shown is of before, and that is shown, too.
        drop(kafka, *NAMES[1:5])
        eventually(lambda: la.status().kafka.stop_reason)
        for verb in (["ls", "-l", "/la"], ["effective", "--diff", "/la/t01"]):
            assert "topics vanished from Kafka" in kdir(la, *verb).err, verb
        assert "topics vanished from Kafka" in kdir(la, "stat", "/la/t01").out
        for verb in (["resolve"], ["resolve", "-o", "kcat"], ["which", "--cluster", "la"]):
            name = "t01" if verb[0] == "which" else "/la/t01"
            shown = kdir(la, *verb, name)
            assert "topics vanished from Kafka" in shown.err, verb
            assert "kdir ack /la/t01" in shown.err, verb
        (record,) = kdir(la, "resolve", "-o", "json", "/la/t01").objects
        assert "topics vanished from Kafka" in record["stop_reason"]
        compared = kdir(la, "effective", "--diff", "/la/t01")
        assert (compared.code, "no drift" in compared.err) == (3, False)
