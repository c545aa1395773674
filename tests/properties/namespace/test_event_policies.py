"""What change events carry of policies, against what the next tree says holds there."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from hypothesis import given, settings
from hypothesis import strategies as st

from directory.namespace.command import (
    AdoptTopics,
    Command,
    CreateDirectory,
    CreateLink,
    CreateTopic,
    DeleteEntry,
    EntryChange,
    MoveEntry,
    ObservedTopic,
    UpdateEntry,
)
from directory.namespace.effective_policies import PolicyLevel, effective, levels_of
from directory.namespace.entry import NO_POLICIES, Directory, Policies, Topic
from directory.namespace.snapshot import Snapshot
from directory.store.event_rows import pack, unpack
from directory.wire.entry_codec import change_to_proto
from resolver.errors import KdirError
from resolver.path import Path
from tests.support.trees import Cluster, path

INSIDE = st.lists(st.sampled_from("abt"), min_size=1, max_size=3).map(
    lambda names: Path(("m", *names))
)
POLICIES = st.builds(
    Policies,
    owner=st.none() | st.sampled_from(["", "x", "y"]),
    encryption_key_id=st.none() | st.just("key"),
    tags=st.dictionaries(st.sampled_from("kl"), st.none() | st.just("1"), max_size=2).map(
        MappingProxyType
    ),
)
SEEN = ObservedTopic(physical_name="p", topic_id=b"i" * 16, partitions=1, replication_factor=1)
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(CreateDirectory, path=INSIDE, make_parents=st.just(value=True), policies=POLICIES),
    st.builds(CreateTopic, path=INSIDE, policies=POLICIES),
    st.builds(CreateLink, path=INSIDE, targets=st.just((path("/elsewhere"),))),
    st.builds(
        UpdateEntry,
        path=INSIDE | st.just(Path(("m",))),
        changes=POLICIES.map(lambda one: {"policies": one}),
    ),
    st.builds(DeleteEntry, path=INSIDE, recursive=st.booleans()),
    st.builds(MoveEntry, path=INSIDE, new_path=INSIDE),
    INSIDE.map(lambda one: AdoptTopics(topics=(((*one.segments[1:], "q", "p"), SEEN),))),
)


def holding(snapshot: Snapshot, change: EntryChange, above: list[PolicyLevel]) -> Policies | None:
    entry = change.after or change.before
    if not isinstance(entry, Directory | Topic):
        return None
    levels = [*(level.policies for level in above), *levels_of(snapshot, change.parent_id)]
    holds = effective([*levels, entry.policies])
    holds = replace(holds, stamps=MappingProxyType({}))
    return None if holds == NO_POLICIES else holds


@given(st.lists(POLICIES, max_size=2), st.lists(COMMANDS, max_size=10))
@settings(max_examples=120)
def test_each_change_carries_what_holds(given_above: list[Policies], steps: list[Command]) -> None:
    above = [PolicyLevel("/" + "x" * number, one) for number, one in enumerate(given_above)]
    cluster = Cluster("/m", above=above)
    for command in steps:
        before = cluster.snapshot
        try:
            made = cluster.do(command)
        except KdirError:
            continue
        for change in made.changes:
            then = before if change.after is None else cluster.snapshot
            assert change.effective == holding(then, change, above)
        events = unpack(pack(made.changes, time_ms=1), 1, "kc").events
        for change, event in zip(made.changes, events, strict=True):
            alone = change_to_proto(change, time_ms=1)
            assert event.effective == alone.effective
            assert event.HasField("effective") == (change.effective is not None)
