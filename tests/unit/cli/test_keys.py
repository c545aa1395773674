"""Keys that nobody knows: the nearest one is named, also one of Kafka's."""

from __future__ import annotations

import pytest
from kdir.v1 import entry_pb2

from resolver.cli.parser import UsageError
from resolver.cli.policy_arguments import assign, field_of


@pytest.mark.parametrize(
    ("key", "output"),
    [
        ("owener", "did you mean owner"),
        ("retentionms", r"did you mean retention\.ms"),
        ("prealocate", r"did you mean config\.preallocate"),
        ("maxtopics", "did you mean max_topics"),
        ("tags", r"tags\.KEY was expected"),
        ("manage", r"manage\.KEY was expected"),
        ("tags.", r"did you mean tags\.KEY"),
        ("", "is no key"),
    ],
)
def test_an_unknown_key_names_the_nearest(key: str, output: str) -> None:
    with pytest.raises(UsageError, match=output):
        field_of(key, "set")


@pytest.mark.parametrize("number", ["4294967296", "9" * 5_000])
def test_a_number_that_no_field_holds_is_refused(number: str) -> None:
    with pytest.raises(UsageError, match=r"partitions=[0-9]{10,40}…?: a smaller number was"):
        assign(entry_pb2.Entry(), f"partitions={number}", "set")


def test_a_config_of_any_length_is_left_to_the_server() -> None:
    entry = entry_pb2.Entry()
    assign(entry, f"retention.ms={'9' * 5_000}d", "set")
    assert entry.policies.topic_config["retention.ms"].value == f"{'9' * 5_000}d"
