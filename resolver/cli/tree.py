"""The verb ``tree``: draws the entries below a path; siblings are listed concurrently."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from resolver import units
from resolver.cli.entry_rows import display_name, kind_of
from resolver.cli.output import Styled
from resolver.cli.parser import FORMATS, Argument, Arguments, Option, Verb
from resolver.cli.session import parse_path_argument
from resolver.cli.topic_counts import TopicCount, TopicCounts
from resolver.errors import Absent, KdirError
from resolver.printable import printable

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from kdir.v1 import entry_pb2

    from resolver.cli.session import PathArgument, Session
    from resolver.directory_listing import ListedEntry, Listing, NotListed
    from resolver.path import Path

__all__ = ["VERBS"]

_AT_ONCE: Final = 8


class _TreeLevel(NamedTuple):
    """Entries of one directory, or the error of listing it."""

    entries: Sequence[ListedEntry] = ()
    gaps: Sequence[NotListed] = ()
    error: KdirError | None = None
    directory: entry_pb2.Entry | None = None
    """Directory itself; None for a union."""


class _Node(NamedTuple):
    """Line of the drawing: its stem, its entry, and its details."""

    stem: str
    one: ListedEntry
    error: KdirError | None
    topics: TopicCount | None
    """Number of topics below the entry."""


def _draw_tree(
    session: Session, where: PathArgument, *, levels: int, topics: bool, include_system: bool
) -> None:
    """Prints the entries below ``where``, ``levels`` deep.

    Raises:
        KdirError: the directory at ``where`` cannot be listed.
    """
    from concurrent.futures import ThreadPoolExecutor  # heavy, and --help imports this file

    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="tree")
    try:
        walk = _TreeFetcher(session, pool, topics=topics, include_system=include_system)
        counts = TopicCounts(session) if session.out.format == "table" else None
        first = walk.level(where.path, where.check_listing)
        if first.error is not None:
            raise first.error
        nodes = walk.nodes(first, "", levels, counts)
        if session.out.structured:
            for node in nodes:
                session.out.record(node.one.entry)
        elif session.out.format == "name":
            session.out.lines(_path(node.one) for node in nodes)
        else:
            session.out.line(Styled(str(where.path), "container"), _only_topics(first))
            _print(session, list(nodes))
        for path, error in walk.silent:
            session.not_listed(path, error)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _TreeFetcher:
    """Depth-first traversal, in which all directories of one level are listed ahead,
    concurrently.
    """

    def __init__(
        self, session: Session, pool: ThreadPoolExecutor, *, topics: bool, include_system: bool
    ) -> None:
        self._resolver = session.resolver
        self._pool = pool
        self._kinds = () if topics else ("directory", "link", "mount")
        self._include_system = include_system
        self.silent: list[tuple[Path, KdirError]] = []

    def level(self, path: Path, check: Callable[[Listing], None] = lambda _: None) -> _TreeLevel:
        """Lists one directory; ``check`` may raise a KdirError, which becomes the level's error."""
        try:
            listing = self._resolver.list(
                path, kinds=self._kinds, include_system=self._include_system
            )
            check(listing)
            entries = [one for one in listing if one.path != path]
        except KdirError as error:
            return _TreeLevel(error=error)
        return _TreeLevel(entries, listing.not_listed, directory=listing.directory)

    def nodes(
        self, level: _TreeLevel, indent: str, levels: int, counts: TopicCounts | None
    ) -> Iterator[_Node]:
        """Yields the lines of one directory, each followed by the lines below it."""
        self.silent.extend((gap.path, gap.error) for gap in level.gaps)
        if levels < 1:
            return
        asked = [self._fetch_level(one, levels) for one in level.entries]
        last = len(level.entries) - 1
        for number, (one, future) in enumerate(zip(level.entries, asked, strict=True)):
            corner, bar = ("└── ", "    ") if number == last else ("├── ", "│   ")
            below = future.result() if future is not None else _TreeLevel()
            error = None if isinstance(below.error, Absent) else below.error
            if error is not None:
                self.silent.append((one.path, error))
            mount = one.authority.cluster.mount
            topics = counts.at(one.entry, mount) if counts is not None else None
            yield _Node(f"{indent}{corner}", one, error, topics)
            yield from self.nodes(below, f"{indent}{bar}", levels - 1, counts)

    def _fetch_level(self, one: ListedEntry, levels: int) -> Future[_TreeLevel] | None:
        # Links are shown and not followed: they may form cycles.
        if levels < 2 or kind_of(one.entry) not in {"directory", "mount"}:
            return None
        if kind_of(one.entry) == "directory" and not _holds_any(one, with_topics=not self._kinds):
            return None
        return self._pool.submit(self.level, one.path)


def _only_topics(level: _TreeLevel) -> str:
    """Returns the number of topics of a directory, as text, if no entries of it are drawn; else
    empty.
    """
    if level.entries or level.gaps or level.directory is None:
        return ""
    count = level.directory.directory.total_topic_count
    return f"   {TopicCount(count).phrase()}" if count else ""


def _holds_any(one: ListedEntry, *, with_topics: bool) -> bool:
    directory = one.entry.directory
    return bool(
        directory.container_count
        or directory.unreadable_count
        or (with_topics and directory.topic_count)
    )


def _path(one: ListedEntry) -> str:
    return str(one.path) if kind_of(one.entry) == "topic" else f"{one.path}/"


def _print(session: Session, nodes: Sequence[_Node]) -> None:
    """Prints all lines together, so that their columns are aligned."""
    cells = [tuple(map(printable, (_node_name(node), *_error_text(node)))) for node in nodes]
    widths = [max((len(row[at]) for row in cells), default=0) for at in range(3)]
    for node, (name, kind, what, answered) in zip(nodes, cells, strict=True):
        style = display_name(node.one.entry).style
        stem = Styled(node.stem, "faint")
        shown = Styled(name[len(node.stem) :], style)
        blanks = " " * (widths[0] - len(name) + 3)
        rest = f"{blanks}{kind:<{widths[1]}}  {what:<{widths[2]}}   "
        if answered:
            tail = Styled(answered, "bad") if node.error is not None else answered
            session.out.line(stem, shown, rest, tail)
        else:
            session.out.line(stem, shown, rest.rstrip())


def _node_name(node: _Node) -> str:
    return f"{node.stem}{display_name(node.one.entry).text}"


def _error_text(node: _Node) -> tuple[str, str, str]:
    """Returns an entry's kind, its target or physical name, and its state or size."""
    entry = node.one.entry
    match kind_of(entry):
        case "mount":
            return "mount", entry.mount.cluster or entry.mount.cluster_id, _mount(node)
        case "link":
            union = "union of " if entry.link.mode == 2 else ""
            return "link", f"{union}{', '.join(entry.link.targets)}", ""
        case "topic":
            parts = units.plural(entry.topic.partitions, "partition")
            return "topic", entry.topic.physical_name, parts if entry.topic.partitions else ""
        case _:
            return "", "", _topics(node) if node.topics != TopicCount(0) else ""


def _mount(node: _Node) -> str:
    from kdir.v1 import entry_pb2

    mount = node.one.entry.mount
    if node.error is not None or mount.state == entry_pb2.MOUNT_STATE_DISCONNECTED:
        reason = (
            node.error.reason.lower().replace("_", " ")
            if node.error is not None
            else "disconnected"
        )
        received = mount.HasField("last_contact_age_seconds")
        seen = f", last contact {units.age(mount.last_contact_age_seconds)} ago" if received else ""
        return f"{reason}{seen}"
    if mount.state == entry_pb2.MOUNT_STATE_PENDING:
        return "pending: its server has not connected yet"
    if mount.state == entry_pb2.MOUNT_STATE_REFUSED:
        return f"refused: {mount.message}"
    return _topics(node)


def _topics(node: _Node) -> str:
    return "" if node.topics is None else node.topics.phrase()


def _tree(session: Session, arguments: Arguments) -> int:
    def draw(path: str) -> None:
        _draw_tree(
            session,
            parse_path_argument(path),
            levels=arguments.whole("level", 64),
            topics=arguments.flag("topics"),
            include_system=arguments.flag("all"),
        )

    if path := arguments.one("PATH"):
        draw(path)
    else:
        session.show_root(draw)
    return 0


VERBS: Final = (
    Verb(
        name="tree",
        summary="draw what is below a path",
        run=_tree,
        details=(
            "Directories, mounts and links; topics with -t. Mounts are descended into, links not.\n"
            "Topics are counted at any depth, in all clusters below a directory or mount: at\n"
            "least so many, where one of them is not linked.\n"
            "Unreachable clusters are marked in the tree; what is not listed goes to stderr; exit\n"
            "code 3."
        ),
        arguments=(
            Argument(
                "PATH",
                "where to begin; default: /, or the mount that is served",
                least=0,
                completes="path",
            ),
        ),
        options=(
            Option(("-L", "--level"), "maximum depth", "N"),
            Option(("-t", "--topics"), "topics, too"),
            Option(("-a", "--all"), "system entries (__…) too"),
        ),
        formats=FORMATS,
        examples=(
            ("kdir tree -L 2 /", "the top two levels"),
            ("kdir tree -t /la/tracking", "all of one cluster"),
        ),
    ),
)
