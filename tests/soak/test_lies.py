"""A checker that cannot fail shows nothing: each lie that is planted must be found."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.local import kafka
from deploy.local.cache import ServerUnavailable
from tests.conftest import missing
from tests.soak.lies import KAFKA_LIES, LIES
from tests.soak.run import Report, run
from tests.soak.world import ClusterPlan, WorldPlan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECONDS = 15
"""At most; a run ends once the lie was found."""
SMALL = WorldPlan((ClusterPlan("/"),), doors=("grpc",))
WITH_KAFKA = WorldPlan(
    (ClusterPlan("/", ceiling=("create", "configs")),),
    doors=("grpc",),
)


def finds(report: Report, kinds: frozenset[str]) -> bool:
    return any(breach.kind.startswith(tuple(kinds)) for breach in report.breaches)


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found(lie: str, tmp_path: Path) -> None:
    # On a slow machine two of few operations may not meet in one run: what they are is by chance.
    breaches: list[object] = []
    for seed in ("lies", "lies-again", "lies-once-more"):
        folder = tmp_path / seed
        report = run(SECONDS, seed, folder=folder, plan=SMALL, workers=3, faults=False, lie=lie)
        if finds(report, LIES[lie]):
            return
        breaches += report.breaches
    raise AssertionError(breaches)


@pytest.mark.parametrize("lie", KAFKA_LIES)
def test_what_is_done_to_kafka_unasked_is_found(lie: str, tmp_path: Path) -> None:
    try:
        kafka.installed()
    except ServerUnavailable as reason:
        missing(reason)
    report = run(
        4 * SECONDS, "lies", folder=tmp_path, plan=WITH_KAFKA, workers=1, faults=False, lie=lie
    )
    assert finds(report, KAFKA_LIES[lie]), report.breaches


def test_the_journal_of_a_finding_is_kept(tmp_path: Path) -> None:
    report = run(
        4 * SECONDS, "lies", folder=tmp_path, plan=SMALL, workers=3, faults=False, lie="absent"
    )
    assert (tmp_path / "journal.jsonl").read_text().count("\n") > 10
    assert report.breaches[0].kind in (tmp_path / "breaches.txt").read_text()
    assert report.breaches[0].lines
