"""The verb ``export``: prints a tree as YAML documents, one for each entry, for ``kdir apply``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from resolver import units
from resolver.cli.entry_documents import Grants, as_document, grants_by_text
from resolver.cli.parser import Argument, Arguments, Option, Verb
from resolver.cli.session import PathArgument, parse_path_argument
from resolver.errors import KdirError

if TYPE_CHECKING:
    from kdir.v1 import entry_pb2

    from resolver.cli.session import Session
    from resolver.topic_location import TopicLocation

__all__ = ["VERBS", "each_at_once", "grants_at", "is_mount"]

_T = TypeVar("_T")
_R = TypeVar("_R")

_AT_ONCE: Final = 16
"""Most requests at the same time."""
_CHUNK: Final = 256
"""Number of entries whose grants are read together before they are printed."""


class _Exported(NamedTuple):
    """Entry to export; for a mount, the root directory of the mounted cluster."""

    entry: entry_pb2.Entry
    mounted: str = ""
    """Name of the mounted cluster, if the entry is a mount."""


def _export(session: Session, arguments: Arguments) -> int:
    out = session.out
    if not out.structured:
        out.format = "yaml"
    number = 0
    entries = _exported(session, parse_path_argument(arguments.one("PATH")))
    while chunk := list(islice(entries, _CHUNK)):
        granted = each_at_once(session, chunk, lambda one: _own_grants(session, one.entry))
        for one, answer in zip(chunk, granted, strict=True):
            number += 1
            path, grants = one.entry.path, None if isinstance(answer, KdirError) else answer
            if isinstance(answer, KdirError):
                session.missing(f"not exported: grants of {path}: {answer}")
            armed = sorted(key for key, value in one.entry.policies.manage.items() if value)
            if armed and out.format == "yaml":
                out.line(f"# {path} is armed for {', '.join(armed)}: kdir apply leaves that")
            physical = arguments.flag("physical")
            out.record(as_document(one.entry, grants, mounted=one.mounted, physical=physical))
    out.note(f"exported {units.plural(number, 'entry', 'entries')}", "faint")
    return 0


def _exported(session: Session, where: PathArgument) -> Iterator[_Exported]:
    """Yields the entries at and below a path, parents first."""
    top = session.resolver.resolve(where.path, prefer=where.prefer, no_follow=True)
    where.check_kind(top)
    first = _exported_one(session, top.entry, top.cluster if is_mount(top) else "")
    if first is not None:
        yield first
    if top.kind in {"topic", "link"}:
        return
    listing = session.resolver.list(f"{top.path}", recursive=True)
    silent = set()
    """Paths of mounts that were already reported."""
    for one in listing:
        found = _exported_one(session, one.entry)
        if found is not None:
            yield found
        else:
            silent.add(one.entry.path)
    for gap in listing.not_listed:
        if str(gap.path) not in silent:
            session.not_listed(gap.path, gap.error)


def _exported_one(session: Session, entry: entry_pb2.Entry, mounted: str = "") -> _Exported | None:
    """Returns an entry for the export; None if it is a mount that cannot be resolved. ``mounted``:
    name of the cluster whose root directory the entry is.
    """
    if not entry.HasField("mount"):
        return _Exported(entry, mounted)
    try:
        root = session.resolver.resolve(entry.path, prefer="directory")
    except KdirError as error:
        session.not_listed(entry.path, error)
        return None
    return _Exported(root.entry, root.cluster)


def is_mount(found: TopicLocation) -> bool:
    """True if a cluster is mounted at the location's path, whether the parent or the cluster itself
    answered.
    """
    return found.kind == "mount" or (found.path == found.mount and found.path != "/")


def _own_grants(session: Session, entry: entry_pb2.Entry) -> Grants | None:
    return grants_at(session, entry.path, entry.WhichOneof("kind") or "")


def grants_at(session: Session, path: str, kind: str) -> Grants | None:
    """Returns the grants of an entry itself; None for a link, which has none."""
    from kdir.v1 import access_pb2

    if kind == "link":
        return None
    kind_name: Any = f"ENTRY_KIND_{'TOPIC' if kind == 'topic' else 'DIRECTORY'}"
    request = access_pb2.ListGrantsRequest(path=path, kind=kind_name)
    answer = session.resolver.call(path, "AccessService.ListGrants", request)
    return grants_by_text(answer.grants)


def each_at_once(
    session: Session, items: Sequence[_T], query: Callable[[_T], _R]
) -> list[_R | KdirError]:
    """Returns the answer or the error for each item; several are queried concurrently."""
    from concurrent.futures import ThreadPoolExecutor

    def ask(one: _T) -> _R | KdirError:
        try:
            return query(one)
        except KdirError as error:
            return error

    session.resolver  # noqa: B018 - created before several threads use it
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(ask, items))


VERBS: Final = (
    Verb(
        name="export",
        summary="print a tree as YAML documents, as kdir apply takes them",
        run=_export,
        timeout_seconds=30.0,
        details=(
            "One document an entry, parents first, with the clusters mounted below: its own\n"
            "policies by the keys of kdir set (null: cleared), its own grants by the options of\n"
            "kdir grant, of a link its targets. What servers own (etags, states, what is armed)\n"
            "is left out. What did not answer, or cannot be read, is named, and the exit code is 3."
        ),
        arguments=(Argument("PATH", "a directory, or any one entry", completes="path"),),
        options=(
            Option(("--physical",), "topics' names in Kafka, too: kdir apply then takes these"),
        ),
        formats=("yaml", "json"),
        examples=(
            ("kdir export /la/tracking/search", "as a file of it can be kept in git"),
            ("kdir export --physical /la/tracking", "with the topics' names in Kafka"),
        ),
    ),
)
