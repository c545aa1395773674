"""Snapshot: random commits give what loading their result gives, and what a naive model says."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from directory.namespace import physical_name_index
from directory.namespace.entry import ROOT_ID, Directory, Entry, Kind, Link, Mount, Topic
from directory.namespace.keys import entry_key
from directory.namespace.lookup import (
    DirectoryAt,
    Found,
    LinkAt,
    Missing,
    MountAt,
    TopicAt,
    Unreadable,
    lookup,
)
from directory.namespace.snapshot import Snapshot
from directory.store.base import Delete, Put, Write
from tests.properties.namespace.trees import (
    CODEC,
    Model,
    Segments,
    directory,
    link,
    mount,
    put,
    remove,
    topic,
)

NAMES = st.sampled_from(["a", "ab", "b", "a.b", "a_b", "__x"])
PHYSICAL = st.sampled_from(["p", "p.q", "p_q", "q.r.s", "q_r.s", "z"])
FACTS = st.sampled_from(
    [b"r/p", b"x/p", b"f/parent", b"k/pin", b"l/writer", b"p/p", b"q/1", b"o/1"]
)


class Machine(RuleBasedStateMachine):
    """State machine of commits of one to four writes, in any order."""

    def __init__(self) -> None:
        super().__init__()
        # Small enough for an example to get several tables, and a new base now and then.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(physical_name_index, "_TABLE", 3)
        self.patch.setattr(physical_name_index, "_LOOSE", 2)
        self.model = Model()
        self.snapshot = Snapshot.empty(CODEC, "i")
        self.revision = 0
        self.next_id = 100
        self.versions: list[tuple[Snapshot, dict[bytes, bytes]]] = []

    def teardown(self) -> None:
        self.check_model(self.model.load(page_size=1000))
        self.patch.undo()

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def commit(self, writes: list[Write]) -> None:
        self.versions.append((self.snapshot, dict(self.model.rows)))
        self.model.write(writes)
        self.revision += 1
        self.snapshot = self.snapshot.apply(self.revision, writes)

    def pick(self, data: st.DataObject, *, removed: bool = True) -> int:
        every = self.model.directories()
        return data.draw(
            st.sampled_from([one for one, path in every.items() if removed or path is not None])
        )

    @rule(data=st.data(), name=NAMES, physical=PHYSICAL)
    def put_topic(self, data: st.DataObject, name: str, physical: str) -> None:
        self.commit([put(self.pick(data), name, topic(self.new_id(), physical))])

    @rule(data=st.data(), physical=st.lists(st.tuples(NAMES, PHYSICAL), max_size=6))
    def put_topics(self, data: st.DataObject, physical: list[tuple[str, str]]) -> None:
        parent = self.pick(data)
        self.commit([put(parent, n, topic(self.new_id(), p)) for n, p in dict(physical).items()])

    @rule(data=st.data(), name=NAMES, kind=st.sampled_from([Kind.LINK, Kind.MOUNT, Kind.DIRECTORY]))
    def put_container(self, data: st.DataObject, name: str, kind: Kind) -> None:
        parent = self.pick(data)
        old = self.model.get(parent, name, container=True)
        if isinstance(old, Directory) and any(True for _ in self.model.entries(old.entry_id)):
            # Only its own record may replace a directory that holds something.
            self.commit([put(parent, name, directory(old.entry_id, "someone"))])
            return
        made: dict[Kind, Entry] = {
            Kind.LINK: link(self.new_id()),
            Kind.MOUNT: mount(self.new_id()),
            Kind.DIRECTORY: directory(self.new_id()),
        }
        self.commit([put(parent, name, made[kind])])

    @rule(data=st.data(), name=NAMES)
    def make_tiers(self, data: st.DataObject, name: str) -> None:
        # mkdir -p with a topic in it: children may come before their directory.
        parent = self.pick(data)
        if self.model.get(parent, name, container=True) is not None:
            return
        outer, inner = self.new_id(), self.new_id()
        writes: list[Write] = [
            put(parent, name, directory(outer)),
            put(outer, "inner", directory(inner)),
            put(inner, "t", topic(self.new_id(), "p")),
            put(inner, "m", mount(self.new_id())),
        ]
        self.commit(data.draw(st.permutations(writes)))

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        parent = self.pick(data)
        standing = list(self.model.entries(parent))
        if standing:
            name, _, entry = data.draw(st.sampled_from(standing))
            if isinstance(entry, Directory) and any(True for _ in self.model.walk(entry.entry_id)):
                return
            self.commit([remove(parent, name, entry.kind)])

    @rule(data=st.data(), name=NAMES)
    def move(self, data: st.DataObject, name: str) -> None:
        source, target = self.pick(data), self.pick(data)
        standing = list(self.model.entries(source))
        if not standing:
            return
        old_name, is_container, entry = data.draw(st.sampled_from(standing))
        below = {entry.entry_id}
        if isinstance(entry, Directory):
            below |= {one.entry_id for _, one in self.model.walk(entry.entry_id)}
        taken = self.model.get(target, name, container=is_container) is not None
        if taken or target in below:
            return
        writes: list[Write] = [remove(source, old_name, entry.kind), put(target, name, entry)]
        if data.draw(st.booleans()) and is_container:
            writes[0] = put(source, old_name, link(self.new_id()))
        self.commit(data.draw(st.permutations(writes)))

    @rule(data=st.data())
    def swap(self, data: st.DataObject) -> None:
        # Two directories change places in one commit.
        places = [
            (parent, name, entry)
            for parent in self.model.directories()
            for name, _, entry in self.model.entries(parent)
            if isinstance(entry, Directory)
        ]
        if len(places) < 2:
            return
        one, other = data.draw(st.permutations(places))[:2]
        inside = {entry.entry_id for _, entry in self.model.walk(one[2].entry_id)}
        inside |= {entry.entry_id for _, entry in self.model.walk(other[2].entry_id)}
        if {one[2].entry_id, other[2].entry_id} & inside:
            return
        self.commit([put(one[0], one[1], other[2]), put(other[0], other[1], one[2])])

    @rule(data=st.data(), owner=st.text("xy", max_size=2))
    def set_policies(self, data: st.DataObject, owner: str) -> None:
        if not self.model.rows or data.draw(st.booleans()):
            self.commit([put(0, "", directory(ROOT_ID, owner))])
            return
        parent = self.pick(data)
        for name, _, entry in self.model.entries(parent):
            if isinstance(entry, Directory):
                self.commit([put(parent, name, directory(entry.entry_id, owner))])
                return

    @rule(key=FACTS, value=st.binary(max_size=3), gone=st.booleans())
    def fact(self, key: bytes, value: bytes, gone: bool) -> None:
        self.commit([Delete(key) if gone else Put(key, value)])

    @rule(data=st.data(), name=NAMES, kind=st.sampled_from([Kind.TOPIC, Kind.LINK]))
    def spoil(self, data: st.DataObject, name: str, kind: Kind) -> None:
        # An unreadable record; never over a directory that holds something, whose id it would hide.
        parent = self.pick(data)
        old = self.model.get(parent, name, container=kind is not Kind.TOPIC)
        if isinstance(old, Directory):
            return
        writes: list[Write] = [Put(entry_key(parent, kind, name), b"\xff")]
        self.commit(writes)
        unreadable_values = dict(self.snapshot.unreadable_values)
        assert unreadable_values == dict(self.model.load().unreadable_values)
        assert list(unreadable_values) == [writes[0].key]
        self.check_same()
        found = lookup(self.snapshot, (name,), kind)
        self.commit([Delete(writes[0].key)])
        others = [entry for one, _, entry in self.model.entries(ROOT_ID) if one == name]
        if parent == ROOT_ID and not others:
            # Not absent: something is there.
            assert found == Unreadable((name,), unreadable_values[writes[0].key])

    def check_same(self) -> None:
        loaded = self.model.load()
        mine, theirs = self.snapshot.tree, loaded.tree
        assert dict(mine.nodes) == dict(theirs.nodes)
        assert dict(mine.loose) == dict(theirs.loose)
        assert dict(mine.counts) == dict(theirs.counts)
        assert dict(mine.mounts) == dict(theirs.mounts)
        assert mine.facts == theirs.facts
        assert dict(mine.unreadable) == dict(theirs.unreadable)

    @invariant()
    def applying_is_loading(self) -> None:
        self.check_same()

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.check_model(self.snapshot)

    def check_model(self, snapshot: Snapshot) -> None:
        model = self.model
        below_root = dict(model.walk(ROOT_ID))
        entries = list(model.walk(ROOT_ID))
        assert snapshot.topic_count == sum(isinstance(e, Topic) for _, e in entries)
        assert snapshot.directory_count == sum(isinstance(e, Directory) for _, e in entries)
        paths = model.directories()
        for directory_id, path in paths.items():
            assert snapshot.path_of(directory_id) == path
            assert snapshot.nodes.get(directory_id) is not None
            if path is not None:
                assert snapshot.find_directory(path) == directory_id
            mounts_below = any(isinstance(e, Mount) for _, e in model.walk(directory_id))
            assert snapshot.has_mounts_below(directory_id) == mounts_below
            assert snapshot.counts(directory_id).topics == sum(
                isinstance(e, Topic) for _, e in model.walk(directory_id)
            )
        assert len(snapshot.nodes) == len(paths)
        assert snapshot.path_of(99) is None
        assert list(snapshot.mounts()) == sorted(
            ((path, e) for path, e in entries if isinstance(e, Mount)), key=lambda one: one[0]
        )
        physical = model.physical()
        for name in ["p", "p.q", "p_q", "q.r.s", "q_r.s", "z", "none"]:
            located = snapshot.locate(name)
            places = physical.get(name, [])
            with_path = [place for place in places if place is not None]
            assert (located is None) == (not places)
            if located is not None:
                assert located.topic.physical_name == name
                assert (located.relative in with_path) if with_path else located.relative is None
                assert model.get(located.parent_id, located.name, container=False) == located.topic
            assert snapshot.same_unified(name) == model.same_unified(name)
        for key in (b"r/p", b"x/p", b"f/parent", b"k/pin", b"l/writer"):
            assert snapshot.fact(key) == model.rows.get(key)
        assert list(snapshot.facts(b"f/")) == [
            one for one in sorted(model.rows.items()) if one[0].startswith(b"f/")
        ]
        assert snapshot.fact(b"p/p") is None
        for path in below_root:
            for asked in (path, (*path, "a")):
                for prefer in (None, Kind.TOPIC, Kind.DIRECTORY):
                    check_lookup(model, asked, prefer, lookup(snapshot, asked, prefer))

    @precondition(lambda self: len(self.versions) > 10)
    @invariant()
    def old_versions_stay(self) -> None:
        snapshot, rows = self.versions.pop(0)
        loaded = Model(rows).load()
        assert dict(snapshot.tree.nodes) == dict(loaded.tree.nodes)
        assert dict(snapshot.tree.counts) == dict(loaded.tree.counts)


def check_lookup(model: Model, path: Segments, prefer: Kind | None, found: Found) -> None:
    at: int = ROOT_ID
    for depth, name in enumerate(path):
        here, rest = path[: depth + 1], path[depth + 1 :]
        one = model.get(at, name, container=False)
        container = model.get(at, name, container=True)
        if not rest and one is not None and (container is None or prefer is not Kind.DIRECTORY):
            assert isinstance(found, TopicAt)
            assert (found.relative, found.parent_id) == (path, at)
            assert CODEC.decode(found.record) == one
            assert found.has_container == (container is not None)
            return
        match container:
            case None:
                assert found == Missing(path[:depth])
                return
            case Link():
                assert found == LinkAt(here, container, rest)
                return
            case Mount():
                assert found == MountAt(here, container, rest)
                return
            case _:
                at = container.entry_id
    assert isinstance(found, DirectoryAt)
    assert (found.relative, found.node.entry_id) == (path, at)


TestSnapshot = Machine.TestCase
TestSnapshot.settings = settings(max_examples=30, stateful_step_count=25)
