"""Topic configs: what Kafka takes and what it does not. A real broker is asked elsewhere."""

from __future__ import annotations

import pytest

from directory.namespace.topic_configs import NAMES, conflict_in, problem_with, same_value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-1"),
        ("retention.ms", str(2**63 - 1)),
        ("retention.ms", " 5 "),
        ("retention.bytes", str(-(2**63))),
        ("cleanup.policy", "compact, delete"),
        ("compression.gzip.level", "-1"),
        ("preallocate", "TRUE"),
        ("min.cleanable.dirty.ratio", ".5"),
        ("min.cleanable.dirty.ratio", "1e-3"),
        ("follower.replication.throttled.replicas", "0:1,1:2"),
        ("follower.replication.throttled.replicas", "*"),
        ("confluent.tier.enable", "whatever"),
    ],
)
def test_what_kafka_takes(name: str, value: str) -> None:
    assert problem_with(name, value) == ""


@pytest.mark.parametrize(
    ("name", "value", "arguments"),
    [
        ("retention.ms", "-2", "found '-2'; expected a whole number from -1"),
        ("retention.ms", str(2**63), "from -1"),
        ("retention.ms", "7d", "a whole number"),
        ("retention.ms", "", "a whole number"),
        ("retention.ms", "1_000", "a whole number"),
        ("retention.ms", "٣", "a whole number"),
        ("max.message.bytes", str(2**31), "at most 2147483647"),
        ("compression.gzip.level", "0", "or -1"),
        ("cleanup.policy", "compact;delete", "compact, delete"),
        ("cleanup.policy", "", "one or more"),
        ("compression.type", "GZIP", "one of uncompressed"),
        ("preallocate", "yes", "true or false"),
        ("min.cleanable.dirty.ratio", "1.1", "from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "from 0 to 1"),
        ("segment.bytes", "1024", "1048576"),
        ("leader.replication.throttled.replicas", "a:b", "PARTITION:BROKER"),
        ("retenton.ms", "5", "did you mean retention.ms?"),
        ("", "5", "did you mean"),
    ],
)
def test_what_kafka_does_not_take(name: str, value: str, arguments: str) -> None:
    assert arguments in problem_with(name, value)


def test_two_that_do_not_go_together() -> None:
    assert "above" in conflict_in({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"})
    assert "above" in conflict_in({"local.retention.ms": "2", "retention.ms": "1"})
    assert conflict_in({"local.retention.ms": "2", "retention.ms": "-1"}) == ""
    assert conflict_in({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": None}) == ""
    assert conflict_in({"min.compaction.lag.ms": "x", "max.compaction.lag.ms": "1"}) == ""


@pytest.mark.parametrize(
    ("name", "one", "other", "same"),
    [
        ("retention.ms", "1", "01", True),
        ("retention.ms", "1", "2", False),
        ("retention.ms", None, None, True),
        ("retention.ms", "1", None, False),
        ("preallocate", "TRUE", "true", True),
        ("cleanup.policy", "compact,delete", "delete, compact", True),
        ("min.cleanable.dirty.ratio", "0.5", ".50", True),
        ("compression.type", "gzip", "zstd", False),
        ("confluent.x", "1", "01", False),
    ],
)
def test_the_same_value(name: str, one: str | None, other: str | None, *, same: bool) -> None:
    assert same_value(name, one, other) is same


def test_there_are_as_many_as_kafka_has() -> None:
    assert len(NAMES) >= 33
