"""Listings against sorting everything each time; pages put together are the whole."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from directory.namespace.entry import DELETED_ID, ROOT_ID, Entry, Kind
from directory.namespace.listing import Cursor, Listed, ListedTopic, list_page
from resolver.glob import Glob
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

NAMES = st.sampled_from(["_", "__a", "__b", "_a", "a", "a-b", "ab", "abc", "b", "B", "c", "z.z"])
# A tree as (index of the directory to put it into, name, kind).
PLANTS = st.lists(st.tuples(st.integers(0, 50), NAMES, st.sampled_from(list(Kind))), max_size=40)
GLOBS = st.sampled_from([None, "*", "a*", "ab*", "_*", "__*", "?", "[a-b]*", "*b", "**", "zz*"])
KINDS = st.sets(st.sampled_from(list(Kind)))


def plant(plants: list[tuple[int, str, Kind]]) -> tuple[Model, list[int]]:
    model, directories = Model(), [ROOT_ID]
    for number, (parent, name, kind) in enumerate(plants, start=10):
        parent_id = directories[parent % len(directories)]
        if model.get(parent_id, name, container=kind is not Kind.TOPIC) is not None:
            continue
        made: dict[Kind, Entry] = {
            Kind.TOPIC: topic(number, f"physical-{number}"),
            Kind.DIRECTORY: directory(number),
            Kind.LINK: link(number),
            Kind.MOUNT: mount(number),
        }
        model.write([put(parent_id, name, made[kind])])
        if kind is Kind.DIRECTORY:
            directories.append(number)
    return model, directories


def shown(one: Listed) -> tuple[Segments, Entry]:
    if isinstance(one, ListedTopic):
        return one.relative, CODEC.decode(one.record)
    return one.relative, one.entry


def expected(
    model: Model, directory_id: int, glob: str | None, kinds: set[Kind], system: bool, deep: bool
) -> list[tuple[Segments, Entry]]:
    found = []
    for path, entry in model.walk(directory_id):
        if len(path) > 1 and not deep:
            continue
        containers = path[:-1] if entry.kind is Kind.TOPIC else path
        if not system and any(name.startswith("__") for name in containers):
            continue
        if kinds and entry.kind not in kinds:
            continue
        if glob is not None and not Glob.parse(glob).matches_segment(path[-1]):
            continue
        found.append((path, entry))
    order = sorted(found, key=lambda one: (one[0], one[1].kind is not Kind.TOPIC))
    assert deep or found == order
    return found


@given(PLANTS, st.integers(0, 50), GLOBS, KINDS, st.booleans(), st.booleans(), st.integers(1, 5))
@settings(max_examples=600)
def test_pages_together_are_the_whole(
    plants: list[tuple[int, str, Kind]],
    which: int,
    glob: str | None,
    kinds: set[Kind],
    system: bool,
    deep: bool,
    limit: int,
) -> None:
    model, directories = plant(plants)
    snapshot = model.load()
    directory_id = directories[which % len(directories)]
    parsed = None if glob is None else Glob.parse(glob)
    whole = expected(model, directory_id, glob, kinds, system, deep)
    for looked_at_most in (1, 3, 1000):
        found: list[tuple[Segments, Entry]] = []
        after: Cursor | None = None
        while True:
            one = list_page(
                snapshot,
                directory_id,
                after,
                limit,
                parsed,
                kinds,
                include_system=system,
                recursive=deep,
                looked_at_most=looked_at_most,
            )
            assert len(one.entries) <= limit
            found += [shown(each) for each in one.entries]
            if one.after is None:
                break
            assert after is None or one.after > after
            after = one.after
        assert found == whole


@given(PLANTS, st.data(), st.integers(1, 5), st.booleans())
@settings(max_examples=300)
def test_a_listing_goes_on_when_its_place_is_gone(
    plants: list[tuple[int, str, Kind]], data: st.DataObject, limit: int, deep: bool
) -> None:
    # The entry that a page ended with, or a directory above it, is removed before the next page:
    # what stood after it and still stands is listed, and nothing twice.
    model, _ = plant(plants)
    before = expected(model, ROOT_ID, None, set(), True, deep)
    first = list_page(model.load(), ROOT_ID, None, limit, include_system=True, recursive=deep)
    if first.after is None:
        return
    gone = data.draw(st.integers(1, len(first.after.relative)))
    at: int = ROOT_ID
    for name in first.after.relative[: gone - 1]:
        entry = model.get(at, name, container=True)
        assert entry is not None
        at = entry.entry_id
    name = first.after.relative[gone - 1]
    kind = (
        Kind.DIRECTORY if gone < len(first.after.relative) or first.after.container else Kind.TOPIC
    )
    model.write([remove(at, name, kind)])
    rest = list_page(model.load(), ROOT_ID, first.after, 1000, include_system=True, recursive=deep)
    assert rest.after is None
    still = expected(model, ROOT_ID, None, set(), True, deep)
    seen = [shown(one) for one in first.entries]
    assert [shown(one) for one in rest.entries] == [
        one for one in before if one in still and one not in seen
    ]


def test_what_is_no_directory_lists_as_nothing() -> None:
    model = Model()
    assert list_page(model.load(), 77) == ((), None)
    assert list_page(model.load(), DELETED_ID) == ((), None)
