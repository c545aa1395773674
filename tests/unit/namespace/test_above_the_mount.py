"""What ancestors above the mount set: like one more directory above the root of this cluster."""

from __future__ import annotations

import pytest

from directory.namespace.command import CreateDirectory, CreateTopic, DeleteEntry, MoveEntry
from directory.namespace.effective_policies import PolicyLevel
from directory.namespace.entry import Policies
from resolver.errors import QuotaExceeded, ReadOnly
from tests.support.trees import Cluster, path


def cluster_below(*levels: Policies) -> Cluster:
    return Cluster(
        "/la/t", above=[PolicyLevel("/" + "la" * n, one) for n, one in enumerate(levels)]
    )


def test_defaults_of_new_topics_come_from_there_too() -> None:
    cluster = cluster_below(Policies(partitions=3, replication_factor=2), Policies(partitions=6))
    cluster.do(CreateTopic(path=path("/la/t/a")))
    cluster.do(CreateDirectory(path=path("/la/t/d"), policies=Policies(partitions=9)))
    cluster.do(CreateTopic(path=path("/la/t/d/a")))
    assert (cluster.topic("/la/t/a").partitions, cluster.topic("/la/t/d/a").partitions) == (6, 9)
    assert cluster.topic("/la/t/a").replication_factor == 2


def test_a_quota_binds_this_cluster_by_itself() -> None:
    cluster = cluster_below(Policies(max_topics=2), Policies(max_topics=5))
    cluster.do(CreateDirectory(path=path("/la/t/d")), CreateTopic(path=path("/la/t/a")))
    cluster.do(CreateTopic(path=path("/la/t/d/a")))
    with pytest.raises(
        QuotaExceeded, match=r"^quota exceeded: / \(of each cluster below it, so of /la/t too\)"
    ):
        cluster.do(CreateTopic(path=path("/la/t/d/b")))
    # What only moves is counted already.
    cluster.do(MoveEntry(path=path("/la/t/a"), new_path=path("/la/t/d/c")))
    cluster.do(DeleteEntry(path=path("/la/t/d/c")))
    cluster.do(CreateTopic(path=path("/la/t/d/b")))


def test_read_only_until_a_nearer_level_says_otherwise() -> None:
    cluster = cluster_below(Policies(read_only=False), Policies(read_only=True))
    with pytest.raises(ReadOnly, match="/la is read-only"):
        cluster.do(CreateDirectory(path=path("/la/t/d")))
    open_again = cluster_below(Policies(read_only=True), Policies(read_only=False))
    open_again.do(CreateDirectory(path=path("/la/t/d")))
