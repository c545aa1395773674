"""What a scrape says of a tree, without a server around it."""

from __future__ import annotations

import pytest

from directory.namespace.command import CreateDirectory, CreateMount, CreateTopic, DeleteEntry
from directory.namespace.entry import Kind
from directory.server.metrics.prometheus import METRICS, _MetricFamilies, _tree
from directory.store.large_change_records import LARGE
from tests.support.trees import Cluster, path


def output(cluster: Cluster) -> dict[str, float]:
    sheet = _MetricFamilies()
    _tree(sheet, cluster.snapshot, "la")
    return {one.name: one.value for family in sheet.families() for one in family.samples}


def test_a_tree_is_counted() -> None:
    cluster = Cluster("/la")
    cluster.do(CreateDirectory(path=path("/la/d")))
    cluster.do(CreateTopic(path=path("/la/d/t")))
    cluster.do(CreateMount(path=path("/la/m"), cluster_id="kc-child"))
    reported = output(cluster)
    assert reported["kdir_topics"] == 1
    assert reported["kdir_directories"] == 1
    assert reported["kdir_child_mounts"] == 1
    assert reported["kdir_store_unreadable_values"] == 0
    assert reported["kdir_large_changes"] == reported["kdir_large_change_remaining_entries"] == 0
    assert reported["kdir_replica_revision"] == cluster.snapshot.revision


def test_a_large_removal_is_reported_until_nothing_is_left_of_it() -> None:
    cluster = Cluster("/la")
    cluster.do(CreateDirectory(path=path("/la/d")))
    for number in range(LARGE + 1):
        cluster.do(CreateTopic(path=path(f"/la/d/t{number}")))
    cluster.do(DeleteEntry(path=path("/la/d"), kind=Kind.DIRECTORY, recursive=True))
    reported = output(cluster)
    assert reported["kdir_large_changes"] == 1
    assert reported["kdir_large_change_remaining_entries"] >= LARGE


def test_a_sheet_knows_its_metrics_and_keeps_their_kinds() -> None:
    sheet = _MetricFamilies()
    with pytest.raises(KeyError):
        sheet.put("kdir_no_such_thing", 1)
    histogram = next(one.name for one in METRICS if one.kind == "histogram")
    with pytest.raises(TypeError):
        sheet.put(histogram, 1)
    assert list(sheet.families()) == []
