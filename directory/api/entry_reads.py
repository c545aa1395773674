"""GetEntry and ListEntries: the response for one entry, with the quotas that bind there and its
state in Kafka, and for a page of a directory. Links and mounts are shown, not followed.
"""

from __future__ import annotations

from typing import Final

from kdir.v1 import directory_pb2, entry_pb2, policies_pb2

from directory.api.page_tokens import PageToken, page_size
from directory.api.resolve_answers import ResolveAnswers, directory_to_proto, kind_from_number
from directory.api.rpc.call_context import Call
from directory.api.visible_tree import EntryAt, OpenTree, Wanted
from directory.federation import inheritance
from directory.kafka.arming.drift import count_issues_below, topic_issues
from directory.namespace.effective_policies import PolicyLevel
from directory.namespace.entry import Directory, Kind
from directory.namespace.listing import Cursor, ListedTopic
from directory.namespace.lookup import DirectoryAt, LinkAt, MountAt, TopicAt
from directory.namespace.quotas import quotas_at
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.time_budget import TimeBudget
from directory.server.cluster import Cluster
from directory.wire.entry_codec import entry_to_proto, record_to_proto
from resolver.errors import (
    InvalidPageToken,
    NotReady,
    UnreadableRecord,
)
from resolver.glob import Glob
from resolver.path import Path

__all__ = ["get_entry", "list_entries"]

_CHUNK: Final = 500
"""Number of entries that are listed between two checks that the caller still waits."""
_TOPIC, _CONTAINER = "t", "c"


def get_entry(
    cluster: Cluster, tree: OpenTree, path: Path, kind: Kind | None, call: Call
) -> directory_pb2.GetEntryResponse:
    """Returns the response for the entry at a path.

    Raises:
        Absent, NotAuthoritative, UnreadableRecord: as ``OpenTree.require_entry``.
    """
    found = tree.require_entry(path, kind, no_follow=True)
    response = directory_pb2.GetEntryResponse(authority=cluster.authority(tree.snapshot))
    entry = response.entry
    match found:
        case TopicAt(record=record):
            record_to_proto(record, str(path), entry)
        case DirectoryAt(relative=relative, node=node):
            directory_to_proto(tree, relative, node, entry)
        case LinkAt(link=link):
            entry_to_proto(link, str(path), into=entry)
        case MountAt(mount=mount):
            entry_to_proto(mount, str(path), into=entry)
            _mount_state(cluster, path, entry.mount)
    _fill_details(response, cluster, tree, found, call)
    return response


def list_entries(
    cluster: Cluster,
    tree: OpenTree,
    path: Path,
    request: directory_pb2.ListEntriesRequest,
    call: Call,
) -> directory_pb2.ListEntriesResponse:
    """Returns a page of a directory's children, or with ``recursive`` of everything below it.

    Raises:
        Absent: there is no such directory.
        NotAuthoritative: it is beyond a mount or a link.
        InvalidPageToken, RevisionGone, InvalidArgument: see ``page_tokens.py``.
    """
    directory, snapshot = _directory(tree, path), tree.snapshot
    size = page_size(request.page_size)
    query = _query(request, path)
    after = None
    response = directory_pb2.ListEntriesResponse(authority=cluster.authority(snapshot))
    if request.page_token:
        token = PageToken.parse(request.page_token, "list", query)
        after = _cursor(token)
        response.revision_changed = token.is_moved(
            snapshot.incarnation, snapshot.revision, one_revision=request.one_revision
        )
    directory_to_proto(tree, directory.relative, directory.node, response.directory)
    inherited = ResolveAnswers(cluster, tree).inherited(directory.node.entry_id)
    if inherited is not None:
        response.inherited.CopyFrom(inherited)
    most_bytes = cluster.config.limits.answer_bytes
    last = _fill(response, tree, directory, request, size, most_bytes, after, call)
    for entry in response.entries:
        if entry.HasField("mount"):
            _mount_state(cluster, Path.of_entry(entry.path), entry.mount)
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


def _directory(tree: OpenTree, path: Path) -> DirectoryAt:
    found = tree.require_entry(path, Kind.DIRECTORY)
    if not isinstance(found, DirectoryAt):
        raise tree.absent_error(path, Kind.DIRECTORY)
    return found


def _query(request: directory_pb2.ListEntriesRequest, path: Path) -> str:
    """Returns the key that a page token is bound to: every field that decides what is listed."""
    kinds = ",".join(str(kind) for kind in sorted(request.kinds))
    return f"{path} {request.name_glob} {kinds} {request.include_system} {request.recursive}"


def _cursor(token: PageToken) -> Cursor:
    place, separator, relative = token.last.partition("/")
    if not separator or place not in (_TOPIC, _CONTAINER) or not relative:
        raise InvalidPageToken("page_token: not one of a listing")
    return Cursor(tuple(relative.split("/")), place == _CONTAINER)


def _fill(
    response: directory_pb2.ListEntriesResponse,
    tree: OpenTree,
    directory: DirectoryAt,
    request: directory_pb2.ListEntriesRequest,
    size: int,
    most_bytes: int,
    after: Cursor | None,
    call: Call,
) -> Cursor | None:
    """Adds entries up to the page's size in entries and bytes, and the number of those whose
    records cannot be read; returns where the next page begins, None = this page is the last.
    """
    wanted = Wanted(
        Glob.parse(request.name_glob) if request.name_glob else None,
        frozenset(
            kind
            for number in request.kinds
            if (kind := kind_from_number(number, "kinds")) is not None
        ),
        request.include_system,
        request.recursive,
    )
    if after is None:
        response.unreadable_count = sum(1 for _ in tree.unreadable_entries(directory, wanted))
    path = tree.mount.join(directory.relative)
    base = "" if path.is_root else str(path)
    hides = not tree.can_describe_all_below(directory.relative)
    used = 0
    last: Cursor | None = None
    while True:
        full = len(response.entries) >= size or used >= most_bytes
        if full and not hides:
            return after
        limit = _CHUNK if full else min(_CHUNK, size - len(response.entries))
        part = tree.children(directory, wanted, after, limit)
        for one in part.entries:
            if full or used >= most_bytes:
                return last  # there is more; the token names the last shown entry, not a hidden one
            is_topic = isinstance(one, ListedTopic)
            last = Cursor(one.relative, not is_topic)
            where = f"{base}/{'/'.join(one.relative)}"
            if isinstance(one, ListedTopic):
                try:
                    record_to_proto(one.record, where, response.entries.add())
                except UnreadableRecord:
                    del response.entries[-1]
                    response.unreadable_count += 1
                else:
                    used += len(one.record) + len(where)
                continue
            node = (
                tree.snapshot.nodes.get(one.entry.entry_id)
                if isinstance(one.entry, Directory)
                else None
            )
            if node is None:
                entry_to_proto(one.entry, where, None, response.entries.add())
            else:
                at = (*directory.relative, *one.relative)
                directory_to_proto(tree, at, node, response.entries.add())
            used += response.entries[-1].ByteSize()
        after = part.after
        if after is None:
            return None
        call.check()


_SHARE: float = 0.25
"""Part of the caller's remaining time that details beside the entry may take."""


def _policies_above_mount(snapshot: Snapshot) -> list[PolicyLevel]:
    """Returns the policies set above the mount, as far as they can be read."""
    try:
        return inheritance.inherited_origins(snapshot)
    except NotReady:
        return []


def _fill_details(
    response: directory_pb2.GetEntryResponse,
    cluster: Cluster,
    tree: OpenTree,
    found: EntryAt,
    call: Call,
) -> None:
    """Adds quotas and Kafka state to the response of one entry; nothing for links and mounts, and
    no counts of entries hidden from the caller.
    """
    snapshot = tree.snapshot
    match found:
        case TopicAt(relative=relative, parent_id=parent_id):
            topic = snapshot.topic(parent_id, relative[-1])
            if topic is None:
                return
            _quotas(response, tree, snapshot.nodes[parent_id])
            issues = topic_issues(snapshot, tree.mount, (parent_id, relative[-1]), topic)
            for field, state in sorted(issues.items()):
                response.topic_issues.add(state=state, field=field)
        case DirectoryAt(relative=relative, node=node):
            _quotas(response, tree, node)
            if cluster.reconciler is not None and tree.can_describe_all_below(relative):
                least = call.seconds_left() * (1 - _SHARE)
                budget = TimeBudget(lambda: call.seconds_left() > least)
                for state, topics in count_issues_below(snapshot, node, budget).items():
                    response.topic_issues.add(state=state, topics=topics)
        case _:
            pass


def _quotas(response: directory_pb2.GetEntryResponse, tree: OpenTree, node: Node) -> None:
    response.quotas.extend(
        policies_pb2.QuotaUse(
            field=one.field, source_path=one.path, limit=one.limit, used=tree.quota_use(one)
        )
        for one in quotas_at(tree.snapshot, tree.mount, _policies_above_mount(tree.snapshot), node)
    )


def _mount_state(cluster: Cluster, path: Path, out: entry_pb2.Mount) -> None:
    """Adds the state of a mount's child, as far as this server has received it."""
    row = cluster.federation.view().own.get(path)
    if row is not None:
        out.cluster = row.row.cluster
        out.endpoints[:] = row.row.endpoints
    live = cluster.federation.child_liveness(out.cluster_id)
    if live is None:
        met = cluster.federation.has_ever_linked(out.cluster_id)
        out.state = entry_pb2.MOUNT_STATE_DISCONNECTED if met else entry_pb2.MOUNT_STATE_PENDING
        return
    out.state = entry_pb2.MOUNT_STATE_LINKED if live.linked else entry_pb2.MOUNT_STATE_DISCONNECTED
    out.last_contact_age_seconds = cluster.federation.seconds_since_contact(live)
    out.topic_count = live.topic_count
