"""Whatever links and unions lead to a path: a listing of it and a resolve agree on what it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from resolver import Resolver, errors
from resolver.directory_listing import ListedEntry, Listing
from resolver.errors import KdirError
from resolver.path import Path
from resolver.testing import MemoryDirectory

EXISTS, ABSENT, UNREACHABLE, LOOP = "exists", "absent", "unreachable", "loop"


@dataclass(frozen=True)
class Link:
    targets: tuple[str, ...]
    union: bool = False
    fall_back: bool = False


@dataclass(frozen=True)
class Tree:
    """Clusters at ``/``, ``/a`` and ``/b``, and what is in them."""

    directories: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()
    links: dict[str, Link] = field(default_factory=dict)
    away: frozenset[str] = frozenset()
    """Mounts whose servers do not answer."""

    def has(self, path: Path, chain: tuple[Path, ...] = ()) -> str:
        """Returns what a path is: by the words of the documentation, as simply as can be."""
        owner = "/" + path.segments[0] if path.segments[:1] in (("a",), ("b",)) else "/"
        if owner in self.away:
            return UNREACHABLE
        for length in range(1, len(path) + 1):
            above = Path(path.segments[:length])
            link = self.links.get(str(above))
            if link is not None:
                rest = path.below(above)
                targets = [Path.parse(target).join(rest) for target in link.targets]
                return self._behind(link, path, targets, (*chain, path))
        return EXISTS if str(path) in self.standing() else ABSENT

    def _behind(self, link: Link, path: Path, targets: list[Path], chain: tuple[Path, ...]) -> str:
        left = [target for target in targets if target not in chain]
        if not left:
            return LOOP
        could_not = False
        for target in left:
            match self.has(target, chain):
                case "exists":
                    return EXISTS
                case "absent" if link.union or link.fall_back:
                    continue
                case "absent":
                    return UNREACHABLE if could_not else ABSENT
                case "unreachable" if not link.union:
                    could_not = True
                case failure:
                    return failure
        return UNREACHABLE if could_not else ABSENT

    def standing(self) -> set[str]:
        """Returns every path where something is, but for links."""
        made = [
            *self.directories,
            *self.topics,
            *(str(Path.parse(one).parent) for one in self.links),
        ]
        above = {str(Path(Path.parse(one).segments[:n])) for one in made for n in range(8)}
        return {*above, "/", "/a", "/b"}

    def build(self, directory: MemoryDirectory) -> None:
        for mount in ("/", "/a", "/b"):
            directory.cluster(mount)
        for path in self.directories:
            directory.mkdir(path)
        for path in self.topics:
            directory.topic(path)
        for path, link in self.links.items():
            directory.link(
                path, *link.targets, union=link.union, fall_back_on_absent=link.fall_back
            )
        for mount in self.away:
            directory.stop(mount)


LINKS = ["/l", "/m", "/n", "/a/k", "/b/k"]
NAMES = [f"{base}{rest}" for base in ("/a", "/b", "/d") for rest in ("/x", "/y", "/x/y")]
TARGETS = [*LINKS, *NAMES, "/a", "/b", "/d"]
trees = st.builds(
    Tree,
    directories=st.frozensets(st.sampled_from(NAMES), max_size=6),
    topics=st.frozensets(st.sampled_from(NAMES), max_size=3),
    links=st.dictionaries(
        st.sampled_from(LINKS),
        st.builds(
            Link,
            targets=st.lists(st.sampled_from(TARGETS), min_size=1, max_size=3, unique=True).map(
                tuple
            ),
            union=st.booleans(),
            fall_back=st.booleans(),
        ),
        min_size=1,
    ),
    away=st.frozensets(st.sampled_from(["/a", "/b"]), max_size=2),
)
asked = st.builds(
    lambda base, rest: f"{base}{rest}",
    st.sampled_from([*LINKS, *LINKS, "/a", "/b", "/d"]),
    st.sampled_from(["", "/x", "/y", "/x/y", "/k", "/k/x"]),
)


def outcome_of(error: KdirError) -> str:
    match error:
        case errors.Absent():
            return ABSENT
        case errors.TooManyHops():
            return "too many hops"
        case errors.ReferralLoop():
            return LOOP
        case _ if "gave up after" in error.message:
            return "too many hops"
        case errors.Unavailable():
            return UNREACHABLE
        case _:
            raise error


def resolved(resolver: Resolver, path: str | Path, *, no_follow: bool = False) -> str:
    try:
        resolver.resolve(path, prefer="directory", no_follow=no_follow)
    except KdirError as error:
        return outcome_of(error)
    return EXISTS


def listed(resolver: Resolver, path: str) -> tuple[str, Listing | None, list[ListedEntry]]:
    try:
        listing = resolver.list(path)
        entries = list(listing)
    except KdirError as error:
        return outcome_of(error), None, []
    return EXISTS, listing, entries


@settings(max_examples=700)
@given(tree=trees, path=asked)
@example(  # the first target leads through a union without that name
    tree=Tree(
        directories=frozenset({"/d/x", "/a/y"}),
        links={"/l": Link(("/m", "/d"), fall_back=True), "/m": Link(("/a", "/b"), union=True)},
    ),
    path="/l/x",
)
@example(  # the same, where the union itself cannot say
    tree=Tree(
        directories=frozenset({"/d/x", "/b/x"}),
        links={"/l": Link(("/m", "/d")), "/m": Link(("/a", "/b"), union=True)},
        away=frozenset({"/a"}),
    ),
    path="/l/x",
)
def test_list_and_resolve_agree_on_what_is_there(tree: Tree, path: str) -> None:
    with MemoryDirectory() as directory:
        tree.build(directory)
        resolver = directory.resolver("/")
        found = resolved(resolver, path)
        assume(found != "too many hops")
        assert found == tree.has(Path.parse(path))
        shown, listing, entries = listed(resolver, path)
        assume(shown != "too many hops")
        if listing is None:
            assert shown == found
        elif listing.is_partial:
            assert found in {EXISTS, UNREACHABLE, LOOP}, "what is known of it is shown"
        else:
            assert found == EXISTS
            for entry in entries:
                # By a fallback a name is listed that one who asks for it may not be sure of.
                shows = resolved(resolver, entry.path, no_follow=True)
                assert shows == EXISTS or (tree.away and shows in {UNREACHABLE, "too many hops"})


def test_the_listing_of_the_issue() -> None:
    with MemoryDirectory() as directory:
        directory.cluster("/")
        for path in ("/one/a", "/two/b", "/last/x/y"):
            directory.topic(path)
        directory.link("/union", "/one", "/two", union=True)
        directory.link("/l", "/union", "/last", fall_back_on_absent=True)
        resolver = directory.resolver()
        assert resolver.resolve("/l/x").path == "/last/x"
        assert [str(one.path) for one in resolver.list("/l/x")] == ["/l/x/y"]
        assert [str(one.path) for one in resolver.list("/l")] == ["/l/a", "/l/b"]
        with pytest.raises(errors.Absent):
            resolver.list("/l/none")
