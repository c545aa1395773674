"""Explained policies against a naive oracle: walk up from each field, and look at every topic."""

from __future__ import annotations

from functools import reduce
from types import MappingProxyType

from hypothesis import given, settings
from hypothesis import strategies as st

from directory.namespace.command import CreateDirectory, CreateTopic
from directory.namespace.effective_policies import (
    PolicyLevel,
    count_inheritors,
    effective,
    explain,
    inherit,
    set_fields,
    without_cleared_keys,
)
from directory.namespace.entry import NO_POLICIES, ROOT_ID, Policies
from tests.support.trees import Cluster, path

CONFIGS = st.dictionaries(
    st.sampled_from(["retention.ms", "flush.ms"]), st.none() | st.sampled_from(["1", "2"])
).map(MappingProxyType)
POLICIES = st.builds(
    Policies,
    topic_config=CONFIGS,
    owner=st.none() | st.sampled_from(["", "ana", "bo"]),
    max_topics=st.none() | st.integers(0, 2),
)


@given(st.lists(POLICIES, max_size=5))
def test_all_levels_in_one_go_are_one_after_the_other(levels: list[Policies]) -> None:
    assert effective(levels) == without_cleared_keys(reduce(inherit, levels, NO_POLICIES))


@given(st.lists(POLICIES, max_size=5))
def test_explained_values_are_the_effective_ones(levels: list[Policies]) -> None:
    explained = explain([PolicyLevel(f"/{n}", one) for n, one in enumerate(levels)])
    holding = {one.field: one.origin.value for one in explained if one.origin.value is not None}
    assert holding == set_fields(effective(levels))
    assert [one.field for one in explained] == sorted(set().union(*map(set_fields, levels)))
    for one in explained:
        setters = [
            (set_fields(level)[one.field], f"/{n}")
            for n, level in reversed(list(enumerate(levels)))
            if one.field in set_fields(level)
        ]
        assert (one.origin.value, one.origin.path) == setters[0]
        assert [(other.value, other.path) for other in one.overrides] == [
            (value, at) for value, at in setters[1:] if value is not None
        ]


@given(
    st.dictionaries(st.sampled_from(["/la/a", "/la/a/b", "/la/c"]), POLICIES),
    st.dictionaries(st.sampled_from(["/la/t", "/la/a/t", "/la/a/b/t", "/la/c/t"]), POLICIES),
    st.sampled_from(["owner", "max_topics", "topic_config[retention.ms]"]),
)
@settings(max_examples=60)
def test_topics_that_inherit_are_counted(
    directories: dict[str, Policies], topics: dict[str, Policies], field: str
) -> None:
    cluster = Cluster()
    for text in ("/la/a", "/la/a/b", "/la/c"):
        own = directories.get(text, Policies())
        cluster.do(CreateDirectory(path=path(text), policies=_roomy(own)))
    for text, own in topics.items():
        cluster.do(CreateTopic(path=path(text), policies=_roomy(own)))

    def inherits(text: str) -> bool:
        segments = text.split("/")
        above = ["/".join(segments[:n]) for n in range(3, len(segments))]
        own = [topics[text], *(directories.get(one, Policies()) for one in above)]
        return not any(field in set_fields(one) for one in own)

    counted = count_inheritors(cluster.snapshot, ROOT_ID, frozenset({field}))
    assert counted.topics == counted.by_field[field] == sum(map(inherits, topics))


def _roomy(policies: Policies) -> Policies:
    """With room for the topics that the test makes."""
    if policies.max_topics is None:
        return policies
    from dataclasses import replace

    return replace(policies, max_topics=policies.max_topics + 10)
