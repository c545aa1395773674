"""Quotas of a store that several servers write to at once: exactly so much comes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path as FilePath

import pytest

from directory.namespace.command import CreateDirectory, CreateTopic
from directory.namespace.entry import Policies
from directory.store.addresses import open_store
from resolver.errors import KdirError, QuotaExceeded
from tests.unit.writing.bench import Bench, eventually, path

SERVERS, THREADS, EACH = 3, 4, 6


@pytest.fixture(params=["sqlite", "etcd"])
def benches(request: pytest.FixtureRequest, tmp_path: FilePath) -> Iterator[list[Bench]]:
    """Yields servers of one store."""
    if request.param == "etcd":
        address = request.getfixturevalue("etcd_cluster").address()
    else:
        address = f"sqlite:///{tmp_path / 'store.db'}"
    with ExitStack() as cleanup:
        benches = []
        for _ in range(SERVERS):
            store = open_store(address, "la")
            cleanup.callback(store.close)
            benches.append(cleanup.enter_context(Bench(store)))
        yield benches


def test_of_many_at_once_exactly_so_many_are_made_as_there_is_room_for(
    benches: list[Bench],
) -> None:
    first = benches[0]
    for where, quotas in (
        ("/la/team", {"max_partitions": 50}),
        ("/la/team/a", {"max_topics": 12}),
        ("/la/team/b", {}),
    ):
        policies = Policies(**quotas)  # type: ignore[arg-type]
        first.writer.commit_command(CreateDirectory(path=path(where), policies=policies))
    eventually(lambda: all(one.replica.snapshot.find_directory(("team", "b")) for one in benches))
    outcomes: Counter[str] = Counter()
    lock = threading.Lock()

    def create(number: int) -> None:
        writer = benches[number % SERVERS].writer
        for index in range(EACH):
            where = path(f"/la/team/{'ab'[index % 2]}/t{number}.{index}")
            try:
                writer.commit_command(CreateTopic(path=where, partitions=2), timeout_seconds=60)
                outcome = f"made in {where.parent.name}"
            except QuotaExceeded as error:
                outcome = f"refused by {error.metadata['field']}"
            except KdirError as error:
                outcome = repr(error)
            with lock:
                outcomes[outcome] += 1

    threads = [threading.Thread(target=create, args=(one,)) for one in range(SERVERS * THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # 72 are wished. /la/team has room for 25 of two partitions, twelve of them in a at most.
    assert outcomes["made in a"] + outcomes["made in b"] == 25, outcomes
    assert outcomes["made in a"] <= 12, outcomes
    refused = outcomes["refused by max_topics"] + outcomes["refused by max_partitions"]
    assert refused == SERVERS * THREADS * EACH - 25, outcomes
    eventually(lambda: all(partitions_below_team(one) == 50 for one in benches))


def partitions_below_team(one: Bench) -> int:
    snapshot = one.replica.snapshot
    team = snapshot.find_directory(("team",))
    assert team is not None
    return snapshot.partitions(team)
