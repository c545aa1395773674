"""The mount table: longest prefix by whole segments, immutable, flat in the number of mounts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from directory.federation.mount_table import MountTable
from resolver.path import ROOT, Path
from tests.support.trees import path


def table(*mounts: str) -> MountTable[str]:
    return MountTable.from_rows((path(one), one) for one in mounts)


def test_the_deepest_mount_owns_a_path() -> None:
    known = table("/la", "/la/geo", "/ny")
    assert known.deepest(path("/la/x")) == (path("/la"), "/la")
    assert known.deepest(path("/la/geo/x/y")) == (path("/la/geo"), "/la/geo")
    assert known.deepest(path("/la/geo")) == (path("/la/geo"), "/la/geo")
    assert known.deepest(path("/sf")) is None
    assert known.deepest(ROOT) is None


def test_R4_a_mount_is_no_prefix_of_a_longer_name() -> None:
    known = table("/a/b")
    assert known.deepest(path("/a/bc")) is None
    assert known.children(path("/a/bc")) is None
    assert list(known.at_or_below(path("/a/bc"))) == []


def test_a_mount_at_the_root_owns_the_rest() -> None:
    known = table("/", "/la")
    assert known.deepest(path("/ny/x")) == (ROOT, "/")
    assert known.deepest(ROOT) == (ROOT, "/")


def test_a_value_may_be_none() -> None:
    known = MountTable.from_rows([(path("/la"), None)])
    assert path("/la") in known
    assert known.deepest(path("/la/x")) == (path("/la"), None)


def test_children_and_what_lies_below() -> None:
    known = table("/user/a", "/user/b/file", "/user", "/usr/bin")
    assert known.children(ROOT) == ("user", "usr")
    assert known.children(path("/user")) == ("a", "b")
    assert known.children(path("/user/b/file")) == ()
    assert known.children(path("/user/x")) is None
    assert [str(at) for at, _ in known.at_or_below(path("/user"))] == [
        "/user",
        "/user/a",
        "/user/b/file",
    ]
    assert known.count(path("/user")) == 3
    assert known.count() == len(known) == 4


def test_readers_keep_the_table_they_began_with() -> None:
    before = table("/la")
    after = before.add(path("/la/geo"), "geo").remove(path("/la"))
    assert [str(at) for at, _ in before] == ["/la"]
    assert [str(at) for at, _ in after] == ["/la/geo"]
    assert before.deepest(path("/la/geo/x")) == (path("/la"), "/la")


def test_a_branch_without_mounts_is_forgotten() -> None:
    known = table("/a/b/c").remove(path("/a/b/c"))
    assert not known
    assert known.children(ROOT) is None
    assert known.children(path("/a")) is None


def test_removing_what_is_not_mounted_says_so() -> None:
    with pytest.raises(KeyError, match="/la"):
        table("/la/geo").remove(path("/la"))


def test_a_chain_of_a_thousand_mounts() -> None:
    # HDFS's testMountTableScalability; longer than any path, but the table does not mind.
    segments = tuple(f"dir{number}" for number in range(1000))
    known = MountTable.from_rows((Path(segments[:length]), length) for length in range(1, 1001))
    assert len(known) == 1000
    assert known.children(ROOT) == ("dir0",)
    assert known.deepest(Path((*segments, "x"))) == (Path(segments), 1000)
    assert len(list(known)) == 1000


class CountingMap(dict[str, object]):
    """Stands for a node's children and counts how often it is asked."""

    asked = 0

    def get(self, key: str, default: object = None) -> object:
        CountingMap.asked += 1
        return super().get(key, default)


def test_a_hundred_thousand_mounts_are_looked_at_one_way_only() -> None:
    # Flat by construction, not by the clock: a look-up asks one map per segment of the path.
    known = MountTable.from_rows((Path((f"m{number}",)), number) for number in range(100_000))
    assert len(known) == 100_000
    assert len(known.children(ROOT) or ()) == 100_000
    counted = replace(known._root, children=CountingMap(known._root.children))  # type: ignore[arg-type]
    assert MountTable(counted).deepest(path("/m4711/x/y")) == (path("/m4711"), 4711)
    assert CountingMap.asked == 1
