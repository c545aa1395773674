"""Keys that nobody knows: the nearest one is named, also one of Kafka's."""

from __future__ import annotations

import pytest

from resolver.cli.parser import UsageError
from resolver.cli.policy_arguments import field_of


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
