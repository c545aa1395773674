"""The verb ``ls``: the entries of a directory; missing parts are reported, with exit code 3.

If the called server owns the directory and one page has all of it, it is listed without the
resolver, whose import takes a third of gRPC's time; otherwise the resolver is loaded
(docs/decisions/0056-the-command-line-keeps-its-grammar.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from resolver.cli.entry_rows import COLUMNS, display_name, entry_row, kind_of, stop_note_at
from resolver.cli.output import Column, Output, Styled, Table
from resolver.cli.parser import FORMATS, Argument, Arguments, Option, Verb
from resolver.cli.session import PathArgument, parse_path_argument
from resolver.errors import Absent, InvalidArgument, InvalidPath, KdirError
from resolver.message_values import plain

if TYPE_CHECKING:
    from kdir.v1 import directory_pb2, entry_pb2, policies_pb2

    from resolver.cli.adopt import DetachedTopics
    from resolver.cli.session import Session
    from resolver.cli.topic_counts import TopicCounts
    from resolver.client import Resolver
    from resolver.directory_listing import ListedEntry, NotListed
    from resolver.glob import Glob
    from resolver.path import Path

__all__ = ["VERBS"]

_CHUNK: Final = 1_000
"""Number of rows that are aligned together, and printed before further ones are read."""
_GLOB_SIGNS: Final = frozenset("*?[")
_KIND_NAMES: Final = {
    "d": "directory", "dir": "directory", "directory": "directory", "t": "topic", "topic": "topic",
    "l": "link", "link": "link", "m": "mount", "mount": "mount",
}  # fmt: skip


class Item(NamedTuple):
    """Entry to be shown."""

    path: str
    """Path by which the entry was reached."""
    entry: entry_pb2.Entry
    cluster: str
    """Name of the entry's cluster."""
    mount: str
    """Mount of the entry's cluster."""
    cluster_id: str
    """Id of the entry's cluster."""
    inherited: policies_pb2.Policies | None
    """Policies that the entry inherits; None = none are set above it."""


# -- ls ------------------------------------------------------------------------------------------


def _ls(session: Session, arguments: Arguments) -> int:
    parts, code = arguments.many("PATH"), 0
    if not parts:
        session.show_root(lambda path: _ls_one(session, arguments, path))
    with_headings = (
        len(parts) > 1 and session.out.format == "table" and not arguments.flag("directory")
    )
    for number, part in enumerate(parts):
        if with_headings:
            if number:
                session.out.line()
            session.out.line(f"{part}:")
        try:
            _ls_one(session, arguments, part)
        except KdirError as error:
            if len(parts) == 1:
                raise
            from resolver.cli.error_hints import explain

            explain(error, session)
            code = code or error.exit_code
    return code


def _ls_one(session: Session, arguments: Arguments, part: str) -> None:
    if arguments.flag("detached"):
        _ls_detached(session, parse_path_argument(part))
    elif not _GLOB_SIGNS.isdisjoint(part):
        _ls_glob(session, arguments, part)
    elif arguments.flag("directory"):
        _print(
            session, arguments, [_itself(session, parse_path_argument(part))], named_by_path=True
        )
    else:
        if arguments.flag("recursive") or not _ls_quickly(session, arguments, part):
            _ls_resolved(session, arguments, parse_path_argument(part))
        if arguments.flag("long") or session.out.wide:
            _note_stopped(session, parse_path_argument(part))


def _note_stopped(session: Session, where: PathArgument) -> None:
    """Prints a note if changes in Kafka are stopped, so that the listed states may be outdated."""
    stopped = stop_note_at(session, where.path)
    if stopped:
        session.out.note(stopped, "bad")


def _ls_detached(session: Session, where: PathArgument) -> None:
    """Lists the detached topics of a path's cluster (in Kafka, but not in the tree); if the cluster
    has no Kafka, those of the clusters mounted below.
    """
    from resolver.cli.adopt import note_omitted

    out, clusters = session.out, _detached_by_cluster(session, where)
    if out.structured:
        for of in clusters:
            unconfirmed = session.unconfirmed_fields(of.cluster_id)
            for one in of.topics:
                out.record({"physical_name": one.physical_name, "path": one.path,
                            "cluster": of.cluster, "state": "detached", **unconfirmed})  # fmt: skip
    elif out.format == "name":
        out.lines(one.physical_name for of in clusters for one in of.topics)
    else:
        rows = [[one.physical_name, one.path or "-", of.cluster]
                for of in clusters for one in of.topics]  # fmt: skip
        Table(out, [Column("TOPIC"), Column("LAST PATH"), Column("CLUSTER")]).rows(rows)
    for of in clusters:
        if of.topics:
            out.note(
                f"in {of.cluster}'s Kafka and not in the tree; to take one back: "
                f"kdir adopt PATH --topic NAME, all: kdir adopt {of.mount} --detached"
            )
        else:
            out.note(f"no topics of {of.cluster} are detached")
        note_omitted(session, of)


def _detached_by_cluster(session: Session, where: PathArgument) -> list[DetachedTopics]:
    """Returns the detached topics of a path's cluster; if that has no Kafka, of each cluster below
    that has one.

    Raises:
        KdirError: the owner of the path did not answer, or none of the clusters has a Kafka.
    """
    from resolver.cli.adopt import detached_topics
    from resolver.cli.clusters_below import clusters_below, failure_text, query_each
    from resolver.path import Path

    try:
        return [detached_topics(session, where.path)]
    except InvalidArgument as error:
        if not _is_without_kafka(error):
            raise
        without = error
    found: list[DetachedTopics] = []
    below = clusters_below(session, str(where.path))
    answers = query_each(
        session, below, lambda one: detached_topics(session, Path.parse(one.mount))
    )
    for one, answer in zip(below, answers, strict=True):
        if not isinstance(answer, KdirError):
            found.append(answer)
        elif not _is_without_kafka(answer):
            session.missing(f"not listed: {failure_text(one.cluster, answer)}")
    if not found and not session.partial:
        raise without
    return found


def _is_without_kafka(error: KdirError) -> bool:
    return isinstance(error, InvalidArgument) and error.metadata.get("field") == "cluster"


def _ls_quickly(session: Session, arguments: Arguments, part: str) -> bool:
    """Lists a directory by one page from the called server; False = the resolver is needed."""
    path = part.removesuffix("/") or "/"
    if part == "//":
        return False  # not a path: the caller raises the error when it parses it
    page = _list_one_page(
        session, path, kinds=_kinds(arguments), include_system=arguments.flag("all")
    )
    if page is None:
        return False
    cluster = page.authority.cluster
    inherited = page.inherited if page.HasField("inherited") else None
    of = (cluster.cluster, cluster.mount, cluster.cluster_id)
    items = [Item(one.path, one, *of, inherited) for one in page.entries]
    _print(session, arguments, items, named_by_path=False)
    _remember(session, arguments, path, items)
    return True


def _ls_resolved(session: Session, arguments: Arguments, where: PathArgument) -> None:
    recursive = arguments.flag("recursive")
    listing = session.resolver.list(
        where.path,
        recursive=recursive,
        kinds=_kinds(arguments),
        include_system=arguments.flag("all"),
    )
    where.check_listing(listing)
    # A union may have a topic at the path of the directory itself, which was not requested.
    entries = (one for one in listing if not (where.directory and one.path == where.path))
    _print(session, arguments, map(_item, entries), named_by_path=recursive)
    _say_gaps(session, listing.not_listed)


def _ls_glob(session: Session, arguments: Arguments, part: str) -> None:
    gaps: list[NotListed] = []
    kinds = _kinds(arguments)
    found = _expand_glob(session.resolver, part, gaps, include_system=arguments.flag("all"))
    wanted = (_item(one) for one in found if not kinds or kind_of(one.entry) in kinds)
    _print(session, arguments, wanted, named_by_path=True)
    _say_gaps(session, gaps)


def _kinds(arguments: Arguments) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_KIND_NAMES[kind] for kind in arguments.many("kind")))


def _item(one: ListedEntry) -> Item:
    cluster = one.authority.cluster
    of = (cluster.cluster, cluster.mount, cluster.cluster_id)
    return Item(str(one.path), one.entry, *of, one.inherited)


def _itself(session: Session, where: PathArgument) -> Item:
    found = session.resolver.resolve(where.path, prefer=where.prefer, no_follow=not where.directory)
    where.check_kind(found)
    of = (found.cluster, str(found.mount), found.cluster_id)
    return Item(str(where.path), found.entry, *of, found.effective)


def _remember(session: Session, arguments: Arguments, path: str, items: Sequence[Item]) -> None:
    """Stores the names for completion, if all names were listed on a terminal."""
    from resolver.cli.disk_hints import MOST_NAMES, ListingCache

    whole = not (arguments.many("kind") or arguments.flag("all"))
    if whole and session.out.terminal and len(items) < MOST_NAMES:
        names = [display_name(one.entry).text for one in items]
        ListingCache(session.servers(), session.login()).store(path, "", names)


def _print(
    session: Session, arguments: Arguments, items: Iterable[Item], *, named_by_path: bool
) -> None:
    """Prints entries as they are received."""
    long = arguments.flag("long") or session.out.wide
    show = _printer(session, long=long, named_by_path=named_by_path)
    chunk: list[Item] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == _CHUNK:
            show(chunk)
            chunk = []
    show(chunk)


def _printer(
    session: Session, *, long: bool, named_by_path: bool
) -> Callable[[Sequence[Item]], None]:
    """Returns a function that prints a chunk of entries in the chosen format."""
    out = session.out
    if out.structured:
        return lambda chunk: _each(out.record, (_record(session, item) for item in chunk))
    if out.format == "name":
        return lambda chunk: out.lines(_reached(item) for item in chunk)
    if long:
        from resolver.cli.topic_counts import TopicCounts

        table, counts = Table(out, COLUMNS), TopicCounts(session)
        return lambda chunk: table.rows(
            [_long_row(item, counts, out, named_by_path=named_by_path) for item in chunk]
        )
    short = Table(out, (Column(""), Column("")) if out.human else (Column(""),), header=False)
    return lambda chunk: short.rows(
        [_short_row(item, human=out.human, named_by_path=named_by_path) for item in chunk]
    )


def _record(session: Session, item: Item) -> entry_pb2.Entry | dict[str, Any]:
    """Returns the JSON record of an entry, with the seconds for which its cluster is
    unconfirmed.
    """
    unconfirmed = session.unconfirmed_fields(item.cluster_id)
    return {**plain(item.entry), **unconfirmed} if unconfirmed else item.entry


def _each(act: Callable[[Any], None], things: Iterable[Any]) -> None:
    for thing in things:
        act(thing)


def _reached(item: Item) -> str:
    """Returns the path by which an entry was reached, with ``/`` at the end except for topics; it
    is the canonical path unless a link was followed.
    """
    is_topic = kind_of(item.entry) == "topic"
    return item.path if is_topic else f"{item.path.rstrip('/')}/"


def _short_row(item: Item, *, human: bool, named_by_path: bool) -> list[str | Styled]:
    name = display_name(item.entry)
    shown = Styled(_reached(item), name.style) if named_by_path else name
    if not human:
        return [shown]
    # If a link was followed, the canonical path is shown, too.
    via_link = item.path != item.entry.path
    return [shown, Styled(item.entry.path, "faint") if via_link else ""]


def _long_row(
    item: Item, counts: TopicCounts, out: Output, *, named_by_path: bool
) -> list[str | Styled]:
    topics = counts.at(item.entry, item.mount)
    return entry_row(
        item.entry,
        cluster=item.cluster,
        inherited=item.inherited,
        human=out.human,
        topics="-" if topics is None else topics.cell(human=out.human),
        name=_reached(item) if named_by_path else "",
    )


def _say_gaps(session: Session, gaps: Iterable[NotListed]) -> None:
    for gap in gaps:
        session.not_listed(gap.path, gap.error)


# -- one page, without the resolver ---------------------------------------------------------------

_SHARE: Final = 0.25
"""Share of the timeout for the first server, so that enough is left for the others."""


def _list_one_page(
    session: Session, path: str, *, kinds: Sequence[str] = (), include_system: bool = False
) -> directory_pb2.ListEntriesResponse | None:
    """Returns the listing of a directory, if the called server owns it and one page has all of it;
    None in all other cases, errors included: then the resolver is needed.
    """
    from kdir.v1 import directory_pb2

    from resolver.deadline_shares import per_server_timeout
    from resolver.errors import DeadlineExceeded, Unavailable
    from resolver.transport import method

    request = directory_pb2.ListEntriesRequest(
        path=path,
        kinds=[f"ENTRY_KIND_{kind.upper()}" for kind in kinds],
        include_system=include_system,
    )
    servers = session.health.order(session.servers())
    asked = method("DirectoryService.ListEntries")
    limit = per_server_timeout(session.timeout_seconds, _SHARE, hurried=len(servers) > 1)
    try:
        answer = session.transport.call(servers[0], asked, request, limit)
    except DeadlineExceeded:
        session.health.note_slow(servers[0])
        return None
    except Unavailable:
        session.health.note_failure(servers[0])
        return None
    except KdirError:
        return None
    session.health.note_success(servers[0])
    assert isinstance(answer, directory_pb2.ListEntriesResponse)  # noqa: S101 - the method's own
    mount = answer.authority.cluster.mount.rstrip("/")
    if answer.next_page_token or answer.unreadable_count or not f"{path}/".startswith(f"{mount}/"):
        return None
    return answer


# -- globs ---------------------------------------------------------------------------------------

# ``resolver/glob.py`` defines which names match. The servers apply it segment by segment, so that
# only possible matches are listed; below ``**`` everything is listed and matched here.

_CONTAINERS: Final = ("directory", "link", "mount")


def _expand_glob(
    resolver: Resolver, text: str, gaps: list[NotListed], *, include_system: bool = False
) -> Iterator[ListedEntry]:
    """Yields the entries that a pattern matches, in path order; adds the parts that could not be
    listed to ``gaps``.

    A pattern that ends in ``/`` matches all kinds but topics. System entries match with
    ``include_system``, or if a segment of the pattern begins with ``__``.

    Raises:
        InvalidArgument: the text is not a pattern.
        InvalidPath: the text does not begin with ``/``.
        Absent: no entry matches, and everything could be listed.
    """
    from resolver.glob import Glob
    from resolver.path import ROOT, is_system

    if not text.startswith("/"):
        raise InvalidPath(f"{text!r}: must begin with '/'", rule="absolute")
    containers_only = text.endswith("/")
    pattern = Glob.parse(text.rstrip("/"))
    segments = text.strip("/").split("/")
    include_system = include_system or any(map(is_system, segments))
    found = False
    for one in _Expansion(resolver, pattern, gaps, include_system=include_system).at(
        ROOT, segments
    ):
        if containers_only and one.entry.WhichOneof("kind") == "topic":
            continue
        found = True
        yield one
    if not found and not gaps:
        raise Absent(f"nothing matches {text}", path=text)


class _Expansion:
    """Expansion of one pattern."""

    def __init__(
        self, resolver: Resolver, pattern: Glob, gaps: list[NotListed], *, include_system: bool
    ) -> None:
        self._resolver = resolver
        self._pattern = pattern
        self._gaps = gaps
        self._include_system = include_system

    def at(self, base: Path, segments: Sequence[str]) -> Iterator[ListedEntry]:
        """Yields the entries that match ``segments`` below ``base``; none if ``base`` is absent."""
        from resolver.path import check_segment

        while len(segments) > 1 and _is_plain(segments[0]):
            check_segment(segments[0])
            base, segments = base.child(segments[0]), segments[1:]
        try:
            if "**" in segments:
                yield from self._below(base)
            else:
                yield from self._in(base, segments)
        except Absent:
            return
        except KdirError as error:
            from resolver.directory_listing import NotListed

            self._gaps.append(NotListed(base, error))

    def _below(self, base: Path) -> Iterator[ListedEntry]:
        listing = self._resolver.list(base, recursive=True, include_system=self._include_system)
        for one in listing:
            if self._pattern.matches(one.path.segments):
                yield one
        self._gaps.extend(listing.not_listed)

    def _in(self, base: Path, segments: Sequence[str]) -> Iterator[ListedEntry]:
        last = len(segments) == 1
        listing = self._resolver.list(
            base,
            name_glob=segments[0],
            kinds=() if last else _CONTAINERS,
            include_system=self._include_system,
        )
        for one in listing:
            if one.path == base:
                return  # ``base`` is a topic, whose listing is itself
            if last:
                yield one
            else:
                yield from self.at(one.path, segments[1:])
        self._gaps.extend(listing.not_listed)


def _is_plain(segment: str) -> bool:
    return _GLOB_SIGNS.isdisjoint(segment)


VERBS: Final = (
    Verb(
        name="ls",
        summary="list a directory",
        run=_ls,
        details=(
            "Directories, links and mounts end in /. A PATH may be a glob, quoted from the shell:\n"
            "* ? […] within a name, ** across directories. Several PATHs have headings.\n"
            "With -l, ^ marks inherited values, and TOPICS are those below a directory or mount,\n"
            "at any depth, in all clusters there: at least so many (9+) where one is not linked.\n"
            "Behind a link the canonical path is shown too; a union shows its targets merged.\n"
            "Prints as it reads. Unreachable clusters, and how many entries cannot be read, go to\n"
            "stderr; exit code 3."
        ),
        arguments=(
            Argument(
                "PATH",
                "what to list; default: /, or the mount that is served",
                least=0,
                most=None,
                completes="path",
            ),
        ),
        options=(
            Option(("-l", "--long"), "partitions, retention, owner, state and location, too"),
            Option(("-a", "--all"), "system entries (__…) too"),
            Option(("-R", "--recursive"), "everything below it, across mounts"),
            Option(("-d", "--directory"), "the entry itself, not what is in it"),
            Option(
                ("--detached",),
                "topics removed from the tree and left in Kafka, of PATH's cluster or those below",
            ),
            Option(
                ("-k", "--kind"),
                "only these; repeatable",
                "KIND",
                choices=tuple(_KIND_NAMES),
                repeated=True,
            ),
        ),
        formats=FORMATS,
        examples=(
            ("kdir ls /la/tracking", "names"),
            ("kdir ls -l /la/tracking", "a table"),
            ("kdir ls -o wide /la/tracking", "with contact, tags, topic id and last change, too"),
            (
                "kdir ls -k topic -o jsonpath='{.topic.physical_name}' /la/tracking",
                "one field of each topic, a line each",
            ),
            ("kdir ls '/la/*/cl*'", "whatever begins with cl, one directory down"),
            ("kdir ls -R -k topic -o name /la", "the path of every topic below /la"),
        ),
    ),
)
