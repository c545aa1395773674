"""The mount table against a plain dict that is scanned."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from directory.federation.mount_table import MountTable
from resolver.path import Path

PATHS = st.lists(st.sampled_from(["a", "b", "ab", "c"]), max_size=4).map(lambda at: Path(tuple(at)))
STEPS = st.lists(st.tuples(PATHS, st.sampled_from([1, 2, None])), max_size=20)


@given(STEPS, PATHS)
def test_it_answers_as_a_scan_of_all_mounts_does(
    steps: list[tuple[Path, int | None]], asked: Path
) -> None:
    plain: dict[Path, int] = {}
    table: MountTable[int] = MountTable.from_rows()
    versions = [(table, dict(plain))]
    for path, value in steps:
        if value is not None:
            table, plain[path] = table.add(path, value), value
        elif path in plain:
            table = table.remove(path)
            del plain[path]
        versions.append((table, dict(plain)))
    # Every version still says what it said: they share nothing that changes.
    for version, mounts in (*versions, (MountTable.from_rows(plain.items()), plain)):
        above = [path for path in mounts if path.is_prefix_of(asked)]
        deepest = max(above, key=len, default=None)
        assert version.deepest(asked) == (None if deepest is None else (deepest, mounts[deepest]))
        below = sorted(path for path in mounts if asked.is_prefix_of(path))
        assert [path for path, _ in version.at_or_below(asked)] == below
        assert version.count(asked) == len(below)
        names = sorted({path.segments[len(asked)] for path in below if path != asked})
        assert version.children(asked) == (tuple(names) if below else None)
        assert version.get(asked) == mounts.get(asked)
        assert (asked in version) == (asked in mounts)
        assert dict(version) == mounts
        assert len(version) == len(mounts)
