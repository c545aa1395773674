"""The grants that a snapshot keeps are those that its rows say, whatever was written in between."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from directory.access.compiled_grants import CompiledGrants
from directory.access.grant_tree import EntryPlace
from directory.access.grants import Grant, Operation, Permission
from directory.maintenance.verify_store import StoreComparison
from directory.namespace.command import (
    AddGrants,
    Command,
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    ReapDeleted,
    RemoveGrants,
    UpdateEntry,
)
from directory.namespace.entry import DELETED_ID, ROOT_ID, Directory, EntryGrants, Kind
from directory.namespace.grant_rows import SHUT
from directory.namespace.keys import entry_key, grants_key, parse_entry_key, parse_grants_key
from directory.namespace.snapshot import Snapshot
from directory.namespace.tree_nodes import ROOT_KEY
from directory.store.base import Delete, Put, Write
from resolver.errors import KdirError
from resolver.path import Path
from tests.properties.namespace.trees import CODEC
from tests.support.trees import Cluster

GRANTS = st.sampled_from(
    [
        Grant(principal, "*", operation, permission)
        for principal in ("User:a", "User:b", "User:*")
        for operation in (Operation.READ, Operation.ALL)
        for permission in Permission
    ]
)
Kept = dict[EntryPlace, tuple[tuple[Grant, ...], bool]]


def directories_of(rows: Mapping[bytes, bytes]) -> dict[int, tuple[int, str, bool]]:
    """Returns the parent, the name, and whether it is closed, by directory id."""
    directories: dict[int, tuple[int, str, bool]] = {ROOT_ID: (0, "", False)}
    for key, record in rows.items():
        if key.startswith(b"e/") and key[10:11] == b"c":
            try:
                entry = CODEC.decode(record)
            except ValueError:
                continue
            if isinstance(entry, Directory):
                parent_id, name = (0, "") if key == ROOT_KEY else parse_entry_key(key)[::2]
                directories[entry.entry_id] = (parent_id, name, entry.closed)
    return directories


def kafka_error_text(rows: Mapping[bytes, bytes]) -> Kept:
    """Returns what the rows say, one by one, each path looked for anew."""
    directories = directories_of(rows)

    def path_of(one: int) -> tuple[str, ...] | None:
        if one == ROOT_ID:
            return ()
        if one == DELETED_ID or one not in directories:
            return None
        parent_id, name, _ = directories[one]
        above = path_of(parent_id)
        return None if above is None else (*above, name)

    kept: Kept = {}
    for one, (_, _, closed) in directories.items():
        path = path_of(one)
        if closed and path is not None:
            kept[EntryPlace(path)] = ((), True)
    for key, record in rows.items():
        if key.startswith(b"g/"):
            at = parse_grants_key(key)
            above = () if at.parent_id == 0 else path_of(at.parent_id)
            if above is None:
                continue
            place = EntryPlace((*above, at.name), at.is_topic) if at.name else EntryPlace(())
            try:
                grants = CODEC.decode_grants(record).grants
            except ValueError:
                grants = SHUT.grants
            kept[place] = (grants, kept.get(place, ((), False))[1])
    return kept


def held_by(snapshot: Snapshot) -> Kept:
    tree = snapshot.grants
    kept: Kept = {
        one.place: (one.rules.grants, one.closed) for one in tree.granted_below(EntryPlace(()))
    }
    if tree.root.rules or tree.root.closed:
        kept[EntryPlace(())] = (tree.root.rules.grants, tree.root.closed)
    return kept


NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, max_size=3).map(lambda names: Path(("m", *names)))
SOME = st.lists(GRANTS, min_size=1, max_size=3).map(tuple)
KINDS = st.sampled_from([None, None, Kind.DIRECTORY])
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(AddGrants, path=PATHS, grants=SOME, kind=KINDS),
    st.builds(AddGrants, path=PATHS, grants=SOME, kind=KINDS),
    st.builds(RemoveGrants, path=PATHS, grants=SOME, kind=KINDS),
    st.builds(CreateDirectory, path=PATHS, make_parents=st.just(value=True), closed=st.booleans()),
    st.builds(CreateDirectory, path=PATHS, make_parents=st.just(value=True)),
    st.builds(CreateTopic, path=PATHS),
    st.builds(CreateLink, path=PATHS, targets=st.just((Path(("x",)),))),
    st.builds(CreateMount, path=PATHS, cluster_id=st.sampled_from(["kc-1", "kc-2"])),
    st.builds(DeleteEntry, path=PATHS, kind=KINDS, recursive=st.just(value=True)),
    st.builds(MoveEntry, path=PATHS, new_path=PATHS, kind=KINDS, leave_link=st.booleans()),
    st.builds(MoveEntry, path=PATHS, new_path=PATHS, kind=KINDS),
    st.builds(
        UpdateEntry,
        path=PATHS,
        kind=st.just(Kind.DIRECTORY),
        changes=st.fixed_dictionaries({"directory.closed": st.booleans()}),
    ),
    st.builds(ReapDeleted, limit=st.integers(1, 3)),
)


@settings(max_examples=100)
@given(st.lists(COMMANDS, min_size=5, max_size=40))
def test_P6_the_tree_of_grants_is_that_of_the_rows_after_any_commands(
    commands: list[Command],
) -> None:
    cluster = Cluster("/m")
    for command in commands:
        try:
            cluster.do(command)
        except KdirError:
            continue
        rows = cluster.rows.under(b"")
        assert held_by(cluster.snapshot) == kafka_error_text(rows)
        # No row of grants is without its entry, reachable or waiting for the reaper.
        for key in cluster.rows.under(b"g/"):
            entry = ROOT_KEY if key == grants_key(0, Kind.DIRECTORY, "") else b"e/" + key[2:]
            assert entry in rows or entry == ROOT_KEY
    loaded = cluster.loaded()
    assert held_by(loaded) == held_by(cluster.snapshot)
    assert loaded.grants.root.live == cluster.snapshot.grants.root.live
    rows_in_order = iter(sorted(cluster.rows.under(b"").items()))
    found = StoreComparison(cluster.snapshot, rows_in_order, cluster.mount, lambda: None)
    assert list(found.differences()) == []
    for _ in range(100):
        made = cluster.plan(ReapDeleted(limit=5))
        if not made.writes:
            break
        cluster.commit(made)
    assert set(cluster.rows.under(b"g/")) == {
        grants_key(0, Kind.DIRECTORY, "")
        if not place.relative
        else grants_key(
            cluster.snapshot.find_directory(place.relative[:-1]) or 0,
            Kind.TOPIC if place.is_topic else Kind.DIRECTORY,
            place.relative[-1],
        )
        for place, (grants, _) in held_by(cluster.snapshot).items()
        if grants
    }


IDS = st.integers(10, 14)
PARENTS = st.sampled_from([ROOT_ID, DELETED_ID, 10, 11, 12, 13, 14, 99])
ROWS = st.one_of(
    # Directories that come, go, move into each other and out again, in one commit.
    st.tuples(PARENTS, NAMES, IDS, st.booleans()).map(
        lambda one: Put(
            entry_key(one[0], Kind.DIRECTORY, one[1]),
            CODEC.encode(Directory(entry_id=one[2], closed=one[3])),
        )
    ),
    st.tuples(PARENTS, NAMES).map(lambda one: Delete(entry_key(one[0], Kind.DIRECTORY, one[1]))),
    st.tuples(PARENTS, NAMES).map(lambda one: Put(entry_key(one[0], Kind.LINK, one[1]), b"odd")),
    st.tuples(PARENTS, st.sampled_from([Kind.TOPIC, Kind.DIRECTORY]), NAMES, SOME).map(
        lambda one: Put(
            grants_key(*one[:3]),
            CODEC.encode_grants(EntryGrants(grants=CompiledGrants.compile(one[3]).grants)),
        )
    ),
    st.tuples(PARENTS, st.sampled_from([Kind.TOPIC, Kind.DIRECTORY]), NAMES).map(
        lambda one: Delete(grants_key(*one))
    ),
    st.tuples(PARENTS, NAMES).map(lambda one: Put(grants_key(one[0], Kind.TOPIC, one[1]), b"odd")),
    st.booleans().map(
        lambda closed: Put(ROOT_KEY, CODEC.encode(Directory(entry_id=ROOT_ID, closed=closed)))
    ),
)


@settings(max_examples=300)
@given(st.lists(st.lists(ROWS, min_size=1, max_size=5), max_size=12))
def test_whatever_a_commit_holds_the_next_tree_is_that_of_a_load(
    commits: list[list[Write]],
) -> None:
    snapshot, rows = Snapshot.empty(CODEC), dict[bytes, bytes]()
    for number, commit in enumerate(commits, start=1):
        writes = {write.key: write for write in commit}
        after = {**rows}
        for write in writes.values():
            if isinstance(write, Put):
                after[write.key] = write.value
            else:
                after.pop(write.key, None)
        loaded = Snapshot.load(CODEC, "", number, [sorted(after.items())])
        if _is_sound(loaded):
            rows = after
            snapshot = snapshot.apply(number, writes.values())
            assert held_by(snapshot) == held_by(loaded) == kafka_error_text(rows)


def _is_sound(snapshot: Snapshot) -> bool:
    """Returns directories that stand in two places, or in themselves, are put aside in the order in
    which they came: there loading and applying may differ.
    """
    return not any(
        "elsewhere" in why or "itself" in why for why in snapshot.unreadable_values.values()
    )
