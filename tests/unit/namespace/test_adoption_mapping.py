"""Adoption mapping: which rule takes a name, where it puts it, and what adoption would do."""

from __future__ import annotations

import pytest

from directory.namespace.adoption_mapping import (
    Adoption,
    MappingRule,
    Placement,
    map_physical_name,
    plan_adoption,
    split_on,
)
from directory.namespace.command import (
    AdoptTopics,
    CreateDirectory,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    ObservedTopic,
    RecordObservations,
    TopicObservation,
)
from directory.namespace.entry import Provision
from resolver.errors import InvalidArgument
from tests.support.trees import Cluster, path


def observed(*names: str) -> list[ObservedTopic]:
    return [
        ObservedTopic(physical_name=name, topic_id=b"i" * 16, partitions=1, replication_factor=1)
        for name in names
    ]


def shown(adoptions: list[Adoption]) -> list[str]:
    lines = []
    for one in adoptions:
        where = "/".join(one.segments)
        lines.append(f"{one.observed.physical_name} {one.action.value} {where} {one.rule}")
    return lines


@pytest.mark.parametrize(
    ("name", "segments"),
    [
        ("search.clicks", ("search", "clicks")),
        ("orders", ("orders",)),
        ("a.b.c", ("a", "b", "c")),
        ("a_b.c-d", ("a_b", "c-d")),
    ],
)
def test_a_name_is_split(name: str, segments: tuple[str, ...]) -> None:
    assert map_physical_name(split_on("."), name) == Placement(segments, 1)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("a..b", "empty segment"),
        (".a", "empty segment"),
        ("a.", "empty segment"),
        ("...", "empty segment"),
        ("__a.b", "'__a' would be a system's"),
        ("a.__b.c", "'__b' would be a system's"),
    ],
)
def test_a_name_that_makes_no_path_stays_flat_and_says_why(name: str, arguments: str) -> None:
    placed = map_physical_name(split_on("."), name)
    assert (placed.segments, placed.rule) == ((name,), 1)
    assert arguments in placed.reason


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__change_events"])
def test_kafkas_own_topics_have_no_place(name: str) -> None:
    rules = (MappingRule.from_fields("*", into="all"),)
    assert map_physical_name(rules, name).segments == ()
    assert map_physical_name((), name).segments == ()


def test_without_rules_everything_stays_flat() -> None:
    assert split_on("") == ()
    assert map_physical_name((), "a.b") == Placement(("a.b",), 0, "no rule takes it")


RULES = (
    MappingRule.from_fields("tmp-*", ignore=True),
    MappingRule.from_fields("legacy.*", strip_prefix="legacy.", into="old/stuff", split_on="-"),
    MappingRule.from_fields("logs_*", into="logs"),
    MappingRule.from_fields("*.*", split_on="."),
)


@pytest.mark.parametrize(
    ("name", "segments", "rule"),
    [
        ("tmp-x", (), 1),
        ("legacy.a-b", ("old", "stuff", "a", "b"), 2),
        ("legacy.", ("legacy.",), 2),
        ("logs_web.eu", ("logs", "logs_web.eu"), 3),
        ("a.b", ("a", "b"), 4),
        ("plain", ("plain",), 0),
    ],
)
def test_the_first_rule_that_matches_decides(
    name: str, segments: tuple[str, ...], rule: int
) -> None:
    placed = map_physical_name(RULES, name)
    assert (placed.segments, placed.rule) == (segments, rule)


def test_a_prefix_that_a_name_lacks_is_not_taken_from_it() -> None:
    assert map_physical_name(
        (MappingRule.from_fields("*", strip_prefix="x."),), "y.x.z"
    ).segments == ("y.x.z",)


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ({"match": ""}, "match is empty"),
        ({"match": "a[", "into": "x"}, "a\\["),
        ({"match": "*", "into": "a//b"}, "into is 'a//b'"),
        ({"match": "*", "into": "a/../b"}, "into is"),
        ({"match": "*", "into": "__x"}, "the system's"),
    ],
)
def test_a_rule_that_cannot_work(fields: dict[str, str], arguments: str) -> None:
    match = fields.pop("match")
    with pytest.raises(InvalidArgument, match=arguments):
        MappingRule.from_fields(match, **fields)  # type: ignore[arg-type]


def test_what_adoption_would_do_in_a_new_cluster() -> None:
    names = observed("search.clicks", "orders", "a..b", "__consumer_offsets", "tmp-1")
    rules = (MappingRule.from_fields("tmp-*", ignore=True), *split_on("."))
    assert shown(plan_adoption(rules, names, Cluster().snapshot)) == [
        "__consumer_offsets ignore  0",
        "a..b flat a..b 2",
        "orders adopt orders 2",
        "search.clicks adopt search/clicks 2",
        "tmp-1 ignore  1",
    ]


def test_what_adoption_would_do_where_things_stand() -> None:
    cluster = Cluster()
    cluster.do(
        CreateDirectory(path=path("/la/a")),
        CreateTopic(path=path("/la/a/x"), physical_name="elsewhere"),
        CreateMount(path=path("/la/m"), cluster_id="kc-1"),
        CreateTopic(path=path("/la/known"), physical_name="known.topic"),
        CreateTopic(path=path("/la/gone")),
    )
    gone = cluster.topic("/la/gone")
    cluster.do(
        RecordObservations(
            news=(
                TopicObservation(
                    path=path("/la/gone"),
                    entry_id=gone.entry_id,
                    provision=Provision.ACTIVE,
                    topic_id=b"i" * 16,
                ),
            )
        ),
        DeleteEntry(path=path("/la/gone")),
    )
    names = observed("a.x", "a.y", "m.x", "m", "known.topic", "gone", "elsewhere")
    planned = plan_adoption(split_on("."), names, cluster.snapshot, mount=cluster.mount)
    assert shown(planned) == [
        "a.x collides __adopted/a.x 1",
        "a.y adopt a/y 1",
        "elsewhere keep a/x 1",
        "gone detached gone 1",
        "known.topic keep known 1",
        "m collides __adopted/m 1",
        "m.x collides __adopted/m.x 1",
    ]
    by_name = {one.observed.physical_name: one.message for one in planned}
    assert by_name["a.x"] == "/la/a/x is taken by topic 'elsewhere'"
    assert "the mount of cluster" in by_name["m.x"]


def test_a_detached_topic_is_one_whatever_rule_leaves_it_out() -> None:
    """Else no listing has it, and ``kdir adopt --detached`` cannot take it back."""
    cluster = Cluster()
    (tmp,) = observed("tmp-1")
    cluster.do(AdoptTopics(topics=((("mine",), tmp),)))
    cluster.do(DeleteEntry(path=path("/la/mine")))
    rules = (MappingRule.from_fields("tmp-*", ignore=True),)
    planned = plan_adoption(rules, (tmp,), cluster.snapshot, mount=cluster.mount)
    assert shown(planned) == ["tmp-1 detached mine 1"]


def test_two_names_that_want_one_place() -> None:
    rules = (
        MappingRule.from_fields("x-*", strip_prefix="x-"),
        MappingRule.from_fields("y-*", strip_prefix="y-"),
    )
    planned = plan_adoption(rules, observed("y-t", "x-t"), Cluster().snapshot)
    assert shown(planned) == ["x-t adopt t 1", "y-t collides __adopted/y-t 2"]
    assert planned[1].message == "/t is taken by topic 'x-t'"


def test_adopted_topics_move_when_asked_and_others_never() -> None:
    cluster = Cluster()
    flat = plan_adoption((), observed("a.b", "a.c", "d.e"), cluster.snapshot)
    cluster.do(AdoptTopics(topics=tuple((one.segments, one.observed) for one in flat)))
    cluster.do(CreateTopic(path=path("/la/by.hand")))
    cluster.do(
        CreateDirectory(path=path("/la/d")), CreateTopic(path=path("/la/d/e"), physical_name="q")
    )
    names = observed("a.b", "a.c", "d.e", "by.hand", "q")
    kept = plan_adoption(split_on("."), names, cluster.snapshot, mount=cluster.mount)
    assert {one.action.value for one in kept} == {"keep"}
    moved = plan_adoption(
        split_on("."), names, cluster.snapshot, mount=cluster.mount, remap_adopted=True
    )
    assert shown(moved) == [
        "a.b move a/b 1",
        "a.c move a/c 1",
        "by.hand keep by.hand 1",
        "d.e keep d.e 1",
        "q keep d/e 1",
    ]
    assert moved[3].message == "it cannot be moved: /la/d/e is taken by topic 'q'"


def test_what_is_planned_is_what_is_done() -> None:
    cluster = Cluster()
    cluster.do(CreateMount(path=path("/la/m"), cluster_id="kc-1"))
    names = observed("a.b", "a..b", "m.x", "a", "a.b.c", "__x", "z")
    planned = plan_adoption(split_on("."), names, cluster.snapshot, mount=cluster.mount)
    wanted = tuple(
        (map_physical_name(split_on("."), one.physical_name).segments, one)
        for one in sorted(names, key=lambda topic: topic.physical_name)
    )
    cluster.do(AdoptTopics(topics=wanted))
    for one in planned:
        located = cluster.snapshot.locate(one.observed.physical_name)
        assert (located.relative if located else ()) == one.segments
        assert one.is_new == (located is not None)


def test_a_topic_that_is_being_removed() -> None:
    cluster = Cluster()
    cluster.do(CreateDirectory(path=path("/la/d")), CreateTopic(path=path("/la/d/t")))
    cluster.do(
        MoveEntry(path=path("/la/d/t"), new_path=path("/la/d/u")),
        DeleteEntry(path=path("/la/d"), recursive=True),
    )
    (one,) = plan_adoption(split_on("."), observed("d.t"), cluster.snapshot)
    assert (one.action.value, one.message) == ("ignore", "it is being removed")
