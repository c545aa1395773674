"""Remembered answers: the same as fresh ones, whatever was asked before, and gone with the tree."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kdir.v1 import resolve_pb2

from directory.api import resolve_answers as ready_answers
from directory.api.resolve_answers import (
    ResolveAnswers,
    ResponseCache,
    encode_error,
    with_authority_index,
)
from directory.api.visible_tree import OpenTree
from directory.federation.referral import NoReferral
from directory.namespace.command import (
    Command,
    CreateDirectory,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    UpdateEntry,
)
from directory.namespace.entry import Kind, Policies
from directory.namespace.snapshot import Snapshot
from directory.server.cluster import Cluster as ServedCluster
from directory.server.config import Limits
from directory.wire.topic_splicer import KeptSplicer, make_splicer
from resolver.errors import InvalidPath, KdirError, NoRoute
from resolver.path import Path
from tests.support.trees import Cluster, path

OPEN = cast("OpenTree", SimpleNamespace(is_open=True, shows_any_at=lambda _: True))
"""Of which the cache asks no more."""
ASKED = (
    "/la",
    "/la/search",
    "/la/search/clicks",
    "/la/search/clicks",
    "/la/search/views",
    "/la/search/nothing",
    "/la/search/nothing/below",
    "/la/both",
    "/la/both/inner",
    "/la/flat",
    "/la/nothing",
)


@pytest.fixture
def tree() -> Cluster:
    cluster = Cluster("/la")
    for text in ("/la/search", "/la/both"):
        cluster.do(CreateDirectory(path=path(text), policies=Policies(owner=f"team{text}")))
    for text in ("/la/search/clicks", "/la/search/views", "/la/both", "/la/both/inner", "/la/flat"):
        cluster.do(CreateTopic(path=path(text)))
    return cluster


def served(mount: str = "/la", reloads: int = 0, **bounds: int) -> ServedCluster:
    limits = Limits(
        answer_ttl_seconds=60, negative_ttl_seconds=5, referral_ttl_seconds=60, **bounds
    )
    return cast(
        "ServedCluster",
        SimpleNamespace(
            mount=path(mount),
            mount_at=lambda _: path(mount),
            config=SimpleNamespace(limits=limits, links=()),
            replica=SimpleNamespace(reloads=reloads),
            federation=SimpleNamespace(
                outside=lambda where: NoReferral(f"nothing leads to {where}")
            ),
        ),
    )


def shown_whole(snapshot: Snapshot) -> OpenTree:
    return OpenTree(snapshot, path("/la"), "la")


def fresh(snapshot: Snapshot, text: str, **how: object) -> resolve_pb2.Outcome:
    outcome = resolve_pb2.Outcome()
    ResolveAnswers(served(), shown_whole(snapshot)).resolve(Path.parse(text), outcome, **how)  # type: ignore[arg-type]
    return outcome


def read(part: bytes) -> resolve_pb2.Outcome:
    return resolve_pb2.ResolveResponse.FromString(part).outcome


def test_an_answer_is_the_same_whatever_was_asked_before(tree: Cluster) -> None:
    ready = ResponseCache(served(), shown_whole(tree.snapshot))
    for _ in range(3):
        for text in ASKED:
            assert read(ready.outcome_bytes(text)) == fresh(tree.snapshot, text), text
        for text, part in zip(ASKED, ready.outcomes(OPEN, ASKED), strict=True):
            assert read(part) == fresh(tree.snapshot, text), text


def test_an_answer_is_the_same_once_every_record_was_read(tree: Cluster) -> None:
    tree.snapshot.index_physical_names()
    assert tree.snapshot.all_read
    ready = ResponseCache(served(), shown_whole(tree.snapshot))
    for text in ASKED:
        assert read(ready.outcome_bytes(text)) == fresh(tree.snapshot, text), text
    again = ResponseCache(served(), shown_whole(tree.snapshot))
    for text, part in zip(ASKED, again.outcomes(OPEN, ASKED), strict=True):
        assert read(part) == fresh(tree.snapshot, text), text


def test_an_answer_is_the_same_while_nothing_is_looked_up(
    tree: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is full, and hits are rare."""
    monkeypatch.setattr("directory.api.resolve_answers._MOST_OUTCOMES", 1)
    monkeypatch.setattr("directory.api.resolve_answers._TRIED", 2)
    ready = ResponseCache(served(), shown_whole(tree.snapshot))
    for _ in range(3):
        for text in ASKED:
            assert read(ready.outcome_bytes(text)) == fresh(tree.snapshot, text), text
        for text, part in zip(ASKED, ready.outcomes(OPEN, ASKED), strict=True):
            assert read(part) == fresh(tree.snapshot, text), text


def test_what_is_asked_in_another_way_is_not_taken_for_it(tree: Cluster) -> None:
    ready = ResponseCache(served(), shown_whole(tree.snapshot))
    topic = read(ready.outcome_bytes("/la/both"))
    directory = read(ready.outcome_bytes("/la/both", Kind.DIRECTORY))
    assert topic.resolution.entry.HasField("topic")
    assert directory.resolution.entry.HasField("directory")
    assert directory == fresh(tree.snapshot, "/la/both", prefer=Kind.DIRECTORY)
    assert read(ready.outcome_bytes("/la/both")) == topic


def test_it_holds_for_one_snapshot(tree: Cluster) -> None:
    ready = ResponseCache(served(), shown_whole(tree.snapshot))
    before = tree.snapshot
    tree.do(CreateTopic(path=path("/la/search/later")))
    assert ready.snapshot is before
    assert read(ready.outcome_bytes("/la/search/later")) == fresh(before, "/la/search/later")


@pytest.mark.parametrize(
    "text", ["", "la", "/la/", "/la/search/", "/la//search", "/la/search/..", "/la/search/a\0b"]
)
def test_a_bad_path_is_bad_also_beside_known_ones(tree: Cluster, text: str) -> None:
    ready = ResponseCache(served(), shown_whole(tree.snapshot))
    for known in ASKED:
        ready.outcome_bytes(known)
    with pytest.raises(InvalidPath):
        ready.outcome_bytes(text)
    first, second = map(read, ready.outcomes(OPEN, [text, "/la/search/clicks"]))
    assert first.error.reason
    assert second == fresh(tree.snapshot, "/la/search/clicks")


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("text", ["flat", "//flat", "///flat"])
def test_a_bad_path_is_bad_also_below_the_root(text: str, *, indexed: bool) -> None:
    tree = Cluster("/")
    tree.do(CreateTopic(path=path("/flat")))
    if indexed:
        tree.snapshot.index_physical_names()
    ready = ResponseCache(served("/"), OpenTree(tree.snapshot, path("/"), "la"))
    for _ in range(2):
        with pytest.raises(InvalidPath):
            ready.outcome_bytes(text)
        first, second = map(read, ready.outcomes(OPEN, [text, "/flat"]))
        assert first.error.reason
        assert second.resolution.entry.path == "/flat"


def test_a_path_that_nothing_leads_to_is_an_error(tree: Cluster) -> None:
    with pytest.raises(NoRoute):
        ResponseCache(served(), shown_whole(tree.snapshot)).outcome_bytes("/ny/orders")


def test_the_parts_make_up_either_answer(tree: Cluster) -> None:
    ready = ResponseCache(served(), shown_whole(tree.snapshot))
    authority = resolve_pb2.Authority(server="one", revision=7)
    clicks, absent = ready.outcomes(OPEN, ["/la/search/clicks", "/la/nothing"])

    part = resolve_pb2.ResolveResponse(authority=authority).SerializeToString()
    one = resolve_pb2.ResolveResponse.FromString(part + clicks)
    assert one.authority == authority
    assert one.outcome == fresh(tree.snapshot, "/la/search/clicks")

    many = resolve_pb2.BatchResolveResponse.FromString(
        b"".join([part, clicks, absent, with_authority_index(clicks, 3)])
    )
    assert list(many.authorities) == [authority]
    assert [one.WhichOneof("kind") for one in many.outcomes] == [
        "resolution",
        "absent",
        "resolution",
    ]
    assert many.outcomes[2].resolution.authority_index == 3
    assert with_authority_index(absent, 3) == absent


def test_an_error_part_keeps_what_the_error_says() -> None:
    outcome = read(encode_error(KdirError("no luck")))
    assert outcome.error.message == "no luck"


@pytest.mark.parametrize("times", [1, 2, 10])
def test_what_is_remembered_is_bounded_in_bytes(tree: Cluster, times: int) -> None:
    text = "x" * 1_000
    tree.do(CreateDirectory(path=path("/la/wide"), policies=Policies(description=text)))
    for number in range(20):
        tree.do(CreateTopic(path=path(f"/la/wide/t{number}")))
    ready = ResponseCache(served(remembered_bytes=20_000 // times), shown_whole(tree.snapshot))
    every = [f"/la/wide/t{number}" for number in range(20)]
    whole = ResponseCache(served(), shown_whole(tree.snapshot))
    for _ in range(3):
        assert ready.outcomes(OPEN, every) == whole.outcomes(OPEN, every)
        assert sum(map(len, ready._outcomes.values())) <= 20_000 // times


@pytest.mark.parametrize("times", [1, 2, 10])
def test_what_is_remembered_is_bounded_in_number(
    tree: Cluster, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_answers, "_MOST_OUTCOMES", 20)
    every = [f"/la/wide/d{number}" for number in range(20 * times + (times == 2))]
    tree.do(CreateDirectory(path=path("/la/wide")))
    for one in every:
        tree.do(CreateDirectory(path=path(one)))
    ready, whole = (ResponseCache(served(), shown_whole(tree.snapshot)) for _ in range(2))
    for _ in range(3):
        assert ready.outcomes(OPEN, every) == whole.outcomes(OPEN, every)
        assert len(ready._outcomes) == 20


def test_directories_are_kept_when_outcomes_are_forgotten(
    tree: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_answers, "_MOST_OUTCOMES", 1)
    monkeypatch.setattr(ready_answers, "_REST", 3)
    every = [f"/la/{directory}/t{number}" for directory in ("one", "two") for number in range(3)]
    for directory in ("one", "two"):
        tree.do(CreateDirectory(path=path(f"/la/{directory}")))
    for one in every:
        tree.do(CreateTopic(path=path(one)))
    tree.snapshot.index_physical_names()
    ready = ResponseCache(served(), shown_whole(tree.snapshot))
    made: list[int] = []

    def counted(node: Any, *how: Any) -> KeptSplicer:
        made.append(node.entry_id)
        return make_splicer(node, *how)

    monkeypatch.setattr(ready_answers, "make_splicer", counted)
    for _ in range(3):  # outcomes are forgotten with each fourth path
        ready.outcomes(OPEN, every)
    assert len(made) == 2


def test_directories_that_set_nothing_share_what_they_inherit(tree: Cluster) -> None:
    """Each had a copy of its own: a text of 64 KiB above 16,000 directories took a gigabyte."""
    tree.do(CreateDirectory(path=path("/la/wide"), policies=Policies(description="x" * 1_000)))
    found = []
    for number in range(5):
        tree.do(CreateDirectory(path=path(f"/la/wide/d{number}")))
    answers = ResolveAnswers(served(), shown_whole(tree.snapshot))
    for number in range(5):
        node = answers.directory(path(f"/la/wide/d{number}"))
        assert node is not None
        found.append(answers.inherited(node.entry_id))
    assert found[0] is not None
    assert found[0].description == "x" * 1_000
    assert all(one is found[0] for one in found)


def test_answers_are_the_same_where_few_of_the_paths_are_remembered(
    tree: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_MOST_OUTCOMES", 2), ("_TRIED", 4), ("_REST", 200)):
        monkeypatch.setattr(ready_answers, name, value)
    tree.do(CreateDirectory(path=path("/la/wide")))
    every = [f"/la/wide/t{number}" for number in range(50)]
    for one in every:
        tree.do(CreateTopic(path=path(one)))
    tree.snapshot.index_physical_names()
    every += ["/la/wide", "/la/none", "no path", "/la/wide/none"]
    for first in range(len(every)):
        ready = ResponseCache(served(), shown_whole(tree.snapshot))
        whole = [ready.outcomes(OPEN, [text])[0] for text in every]
        for _ in range(8):
            assert ready.outcomes(OPEN, every[first:]) == whole[first:]


DIRECTORIES = tuple(path(f"/la/{name}") for name in ("search", "both", "more"))
TOPICS = tuple(path(f"{above}/{name}") for above in DIRECTORIES for name in ("a", "b"))
COMMANDS: tuple[Command, ...] = (
    *(CreateDirectory(path=one) for one in (*DIRECTORIES, TOPICS[0])),
    *(CreateTopic(path=one) for one in (*TOPICS, path("/la/both"))),
    *(DeleteEntry(path=one, kind=Kind.TOPIC) for one in TOPICS),
    *(DeleteEntry(path=one, kind=Kind.DIRECTORY, recursive=True) for one in DIRECTORIES),
    MoveEntry(path=DIRECTORIES[0], new_path=DIRECTORIES[2]),
    MoveEntry(path=DIRECTORIES[2], new_path=DIRECTORIES[0]),
    MoveEntry(path=TOPICS[0], new_path=TOPICS[1]),
    *(
        UpdateEntry(path=one, kind=Kind.DIRECTORY, changes={"policies.owner": owner})
        for one in (path("/la"), *DIRECTORIES)
        for owner in ("ana", None)
    ),
)


@given(st.lists(st.sampled_from(COMMANDS), min_size=1, max_size=20))
def test_answers_are_those_of_their_snapshot_whatever_earlier_ones_left(
    commands: list[Command],
) -> None:
    """Splicers outlive commits: against a cache that was made for this snapshot alone."""
    tree = Cluster("/la")
    tree.do(*(CreateDirectory(path=one) for one in DIRECTORIES[:2]))
    tree.do(*(CreateTopic(path=one) for one in TOPICS[:4]))
    tree.snapshot.index_physical_names()
    asked = [str(one) for one in (*TOPICS, *DIRECTORIES)]
    before: ResponseCache | None = None
    for command in commands:
        try:
            tree.do(command)
        except KdirError:
            continue  # it does not fit the tree
        assert tree.snapshot.all_read
        ready = ResponseCache(served(), shown_whole(tree.snapshot), before)
        for cache in (ready, before or ready, ready):  # calls on the earlier snapshot go on
            alone = ResponseCache(served(), shown_whole(cache.snapshot))
            assert cache.outcomes(OPEN, asked) == alone.outcomes(OPEN, asked)
        before = ready


def test_a_commit_leaves_the_splicers_of_other_directories(
    tree: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.snapshot.index_physical_names()
    asked = ("/la/search/clicks", "/la/both/inner")
    taken_over: list[bool] = []

    def noted(*of: Any) -> KeptSplicer:
        made = make_splicer(*of)
        taken_over.append(made is of[-1])
        return made

    monkeypatch.setattr(ready_answers, "make_splicer", noted)
    before = ResponseCache(served(), shown_whole(tree.snapshot))
    before.outcomes(OPEN, asked)
    tree.do(CreateTopic(path=path("/la/search/later")))
    ResponseCache(served(), shown_whole(tree.snapshot), before).outcomes(OPEN, asked)
    assert taken_over == [False, False, False, True]


def test_a_tree_that_was_loaded_again_keeps_nothing_of_the_one_before(tree: Cluster) -> None:
    before = ResponseCache(served(), shown_whole(tree.snapshot))
    before.outcomes(OPEN, ["/la/search/clicks"])
    same = ResponseCache(served(), shown_whole(tree.snapshot), before)
    assert same.kept.splicers
    again = ResponseCache(served(reloads=1), shown_whole(tree.snapshot), before)
    assert not again.kept.splicers


def test_the_cache_is_filled_again_more_seldom_while_hits_are_rare(
    tree: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = (("_MOST_OUTCOMES", 1), ("_TRIED", 1), ("_REST", 10), ("_LONGEST_REST", 40))
    for name, value in bounds:
        monkeypatch.setattr(ready_answers, name, value)
    tree.do(CreateDirectory(path=path("/la/wide")))
    every = [f"/la/wide/t{number}" for number in range(100)]
    tree.do(*(CreateTopic(path=path(one)) for one in every))
    tree.snapshot.index_physical_names()
    ready = ResponseCache(served(), shown_whole(tree.snapshot))
    emptied: list[int] = []
    for at, text in enumerate(every):
        before = ready.kept.unremembered
        ready.outcomes(OPEN, [text])
        if ready.kept.unremembered < before:
            emptied.append(at)
    assert emptied == [10, 31, 72]
    before = ready.kept.unremembered
    ready = ResponseCache(served(), shown_whole(tree.snapshot), ready)
    ready.outcomes(OPEN, every[:1])
    assert ready.kept.unremembered > before > 0, "filled again for each commit"
    for _ in range(200):
        ready.outcomes(OPEN, every[:1])
    assert not ready.kept.is_remembering_idle, "hits are not rare any more"
