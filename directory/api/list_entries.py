"""ListEntries: a page of a directory as the contract says it; what a page holds is decided below.

Refuses to list beyond the cluster's own tree: links and mounts are shown, not entered.
"""

from __future__ import annotations

from typing import Final

from kdir.v1 import directory_pb2

from directory.api.caller_view import CallerView, fill_visible_counts
from directory.api.page_tokens import PageToken, page_size
from directory.api.resolve_answers import ResolveAnswers, kind_from_number
from directory.api.rpc.call_context import Call
from directory.namespace.entry import Directory, Kind
from directory.namespace.listing import Cursor, ListedTopic, Page, list_page
from directory.namespace.lookup import DirectoryAt, LinkAt, MountAt, TopicAt, Unreadable, lookup
from directory.namespace.snapshot import Node, Snapshot
from directory.server.cluster import Cluster
from directory.wire.entry_codec import entry_to_proto, record_to_proto
from resolver.errors import (
    Absent,
    Internal,
    InvalidPageToken,
    NotAuthoritative,
    RevisionGone,
)
from resolver.glob import Glob
from resolver.path import Path

__all__ = ["list_entries"]

_CHUNK: Final = 500
"""So many entries are listed between two looks whether the caller still waits."""
_TOPIC, _CONTAINER = "t", "c"


def list_entries(
    cluster: Cluster,
    snapshot: Snapshot,
    path: Path,
    request: directory_pb2.ListEntriesRequest,
    call: Call,
    view: CallerView,
) -> directory_pb2.ListEntriesResponse:
    """A page of a directory's children, or with ``recursive`` of all below it.

    Raises:
        Absent: there is no such directory.
        NotAuthoritative: it lies beyond a mount or a link.
        InvalidPageToken, RevisionGone, InvalidArgument
    """
    view.resolve_kind(path, Kind.DIRECTORY, no_follow=True)
    node = _directory(cluster, snapshot, path)
    size = page_size(request.page_size)
    query = _query(request, path)
    after = None
    response = directory_pb2.ListEntriesResponse(authority=cluster.authority(snapshot))
    if request.page_token:
        token = PageToken.parse(request.page_token, "list", query)
        after = _cursor(token)
        moved = (token.incarnation, token.revision) != (snapshot.incarnation, snapshot.revision)
        if moved and request.one_revision:
            raise RevisionGone(
                f"the listing began at revision {token.revision}; this server is at "
                f"{snapshot.revision} by now: begin again"
            )
        response.revision_changed = moved
    answers = ResolveAnswers(cluster, snapshot)
    entry_to_proto(node.directory, str(path), node, response.directory)
    fill_visible_counts(view, path.below(view.access.mount), response.directory)
    inherited = answers.inherited(node.entry_id)
    if inherited is not None:
        response.inherited.CopyFrom(inherited)
    most_bytes = cluster.config.limits.answer_bytes
    last = _fill(response, snapshot, node, path, request, size, most_bytes, after, call, view)
    if last is not None:
        place = _CONTAINER if last.container else _TOPIC
        response.next_page_token = str(
            PageToken(
                "list",
                query,
                snapshot.incarnation,
                snapshot.revision,
                f"{place}/{'/'.join(last.relative)}",
            )
        )
    return response


def _directory(cluster: Cluster, snapshot: Snapshot, path: Path) -> Node:
    found = lookup(snapshot, path.below(cluster.mount_at(snapshot)), Kind.DIRECTORY)
    match found:
        case DirectoryAt(node=node):
            return node
        case TopicAt():
            raise Absent(f"{path} is a topic, not a directory", path=path)
        case LinkAt() | MountAt():
            raise NotAuthoritative(
                f"{path} is, or lies beyond, a {'link' if isinstance(found, LinkAt) else 'mount'} "
                f"of cluster {cluster.config.cluster}; resolve it first",
                path=path,
            )
        case Unreadable(reason=reason):
            raise Internal(f"the record of {path} cannot be read: {reason}; see kdir doctor")
        case _:
            nearest = cluster.mount_at(snapshot).join(found.nearest)
            # The mount itself is always there; one who may not see it is told of no other.
            where = "" if nearest == path else f"; the nearest directory is {nearest}"
            raise Absent(
                f"{path} does not exist{where}",
                path=path,
                nearest=nearest,
            )


def _query(request: directory_pb2.ListEntriesRequest, path: Path) -> str:
    """Returns what a page token is bound to: every field that decides what is listed."""
    kinds = ",".join(str(kind) for kind in sorted(request.kinds))
    return f"{path} {request.name_glob} {kinds} {request.include_system} {request.recursive}"


def _cursor(token: PageToken) -> Cursor:
    place, separator, relative = token.last.partition("/")
    if not separator or place not in (_TOPIC, _CONTAINER) or not relative:
        raise InvalidPageToken("page_token: not one of a listing")
    return Cursor(tuple(relative.split("/")), place == _CONTAINER)


def _fill(  # noqa: PLR0913, PLR0917 - one caller
    response: directory_pb2.ListEntriesResponse,
    snapshot: Snapshot,
    node: Node,
    path: Path,
    request: directory_pb2.ListEntriesRequest,
    size: int,
    most_bytes: int,
    after: Cursor | None,
    call: Call,
    view: CallerView,
) -> Cursor | None:
    """Adds entries up to the page's size in entries and bytes; where the next page begins."""
    glob = Glob.parse(request.name_glob) if request.name_glob else None
    kinds = frozenset(kind for kind in map(kind_from_number, request.kinds) if kind is not None)
    base = "" if path.is_root else str(path)
    above = path.below(view.access.mount)
    hides = not view.can_describe_all_below(above)
    used = 0
    last: Cursor | None = None
    while True:
        full = len(response.entries) >= size or used >= most_bytes
        if full and not hides:
            return after
        part: Page = list_page(
            snapshot,
            node.entry_id,
            after,
            _CHUNK if full else min(_CHUNK, size - len(response.entries)),
            glob,
            kinds,
            include_system=request.include_system,
            recursive=request.recursive,
        )
        for one in part.entries:
            is_topic = isinstance(one, ListedTopic)
            if hides and not view.can_describe((*above, *one.relative), is_topic=is_topic):
                continue
            if full or used >= most_bytes:
                return last  # there is more; and it is not a hidden entry that the token names
            last = Cursor(one.relative, not is_topic)
            where = f"{base}/{'/'.join(one.relative)}"
            if isinstance(one, ListedTopic):
                record_to_proto(one.record, where, response.entries.add())
                used += len(one.record) + len(where)
            else:
                below = (
                    snapshot.node(one.entry.entry_id) if isinstance(one.entry, Directory) else None
                )
                entry_to_proto(one.entry, where, below, response.entries.add())
                if hides:
                    fill_visible_counts(view, (*above, *one.relative), response.entries[-1])
                used += response.entries[-1].ByteSize()
        after = part.after
        if after is None:
            return None
        call.check()
