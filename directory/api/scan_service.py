"""ScanService: all topics of one cluster in resumable pages, for the index.

Shards are by a hash of the topic's name: disjoint and complete, whatever changes during a scan. A
scan reads one snapshot while this server holds it; a server holds those of the last few scans, each
for some minutes. On another server, or later, the scan continues in the newest snapshot; the
revision is in the authority of each page. A scan returns a topic if the caller may describe it now,
at its present place, and could describe it in the snapshot that is read.
"""

from __future__ import annotations

import bisect
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kdir.v1 import scan_pb2

from directory.api.cluster_router import ClusterRouter
from directory.api.page_tokens import PageToken, page_size
from directory.api.resolve_answers import ResolveAnswers
from directory.api.rpc.call_context import Call
from directory.api.rpc.handlers import Handler, Service
from directory.api.visible_tree import OpenTree, Wanted
from directory.namespace.entry import Kind
from directory.namespace.lookup import DirectoryAt, Unreadable
from directory.namespace.snapshot import Node, Snapshot
from directory.server.cluster import Cluster
from directory.wire.entry_codec import record_to_proto
from resolver.errors import InvalidArgument, InvalidPageToken, UnreadableRecord
from resolver.path import Path

__all__ = ["ScanService"]

_PAGE: Final = 5_000
_MAX_SHARDS: Final = 1_024
_HELD: Final = 8
_HELD_SECONDS: Final = 600.0
"""Time from the last request for a scan until it is dropped: it keeps a whole tree in memory."""
_TOPICS: Final = Wanted(kinds=(Kind.TOPIC,), include_system=True, recursive=True)
_LOOK: Final = 512
"""Number of topics that are visited between two checks that the caller still waits."""

_DirectorySegments = tuple[str, ...]
_Key = tuple[str, str, bool, str, str, int]
"""Principal, host, whether inherited grants have expired, path, incarnation and revision. Page
tokens are not signed, so a held scan is used for its own caller only; and one that began while
inherited grants did not count ends when they count again.
"""


@dataclass(frozen=True, slots=True)
class _ScanSnapshot:
    """Snapshot of a scan: the tree as its caller saw it, and the directories at and below the start
    in path order.
    """

    tree: OpenTree
    places: tuple[tuple[_DirectorySegments, int], ...]
    used_at: float


class ScanService(Service):
    """Service for the index; single answers come from ResolveService."""

    descriptor = scan_pb2.DESCRIPTOR.services_by_name["ScanService"]
    long = frozenset({"ScanTopics"})

    def __init__(self, router: ClusterRouter) -> None:
        self._router = router
        self._lock = threading.Lock()
        self._held: OrderedDict[_Key, _ScanSnapshot] = OrderedDict()

    def method_handlers(self) -> Mapping[str, Handler]:
        return {"ScanTopics": self.scan_topics}

    def scan_topics(
        self, request: scan_pb2.ScanTopicsRequest, call: Call
    ) -> scan_pb2.ScanTopicsResponse:
        """Returns a page of topics."""
        cluster, newest, path = self._where(request, call)
        shards = request.shard_count or 1
        if request.shard >= shards or shards > _MAX_SHARDS:
            raise InvalidArgument(
                f"shard: found {request.shard} of {shards}; expected 0 to shard_count - 1, of "
                f"at most {_MAX_SHARDS}"
            )
        query = f"{path} {request.shard}/{shards}"
        token = PageToken.parse(request.page_token, "scan", query) if request.page_token else None
        scan = None
        if newest.has_describable_below(path):
            scan = self._held_scan(path, token, newest, call) if token is not None else None
            scan = scan or self._begun(path, newest, call)
        if scan is None:
            if isinstance(newest.lookup(path, Kind.DIRECTORY), Unreadable):
                newest.require_entry(path, Kind.DIRECTORY)  # it raises the error (S21)
            raise newest.absent_error(path)
        snapshot = scan.tree.snapshot
        response = scan_pb2.ScanTopicsResponse(
            authority=cluster.authority(snapshot),
            inherited_grants_expired=newest.is_reduced_below(path),
        )
        last = _fill(response, request, cluster, scan, token, call, newest)
        if last:
            response.next_page_token = str(
                PageToken("scan", query, snapshot.incarnation, snapshot.revision, last)
            )
        return response

    def _where(
        self, request: scan_pb2.ScanTopicsRequest, call: Call
    ) -> tuple[Cluster, OpenTree, Path]:
        """Returns the cluster, its newest tree, and the path to scan. A request without a path
        means the mount of the first cluster.
        """
        if not request.path:
            cluster = self._router.clusters[0]
            cluster.check_mounted()
            snapshot = self._router.read_snapshot(cluster, "", call)
            tree = self._router.tree(cluster, snapshot, call)
            return cluster, tree, tree.mount
        path = Path.parse(request.path)
        return *self._router.read_owned(path, "", call), path

    def _held_scan(
        self, path: Path, token: PageToken, newest: OpenTree, call: Call
    ) -> _ScanSnapshot | None:
        """Returns the held scan of a token; None if it is not held any more."""
        key = _key(call, newest, path, token.incarnation, token.revision)
        self.end_late()
        with self._lock:
            scan = self._held.get(key)
            if scan is not None:
                self._held[key] = replace(scan, used_at=time.monotonic())
                self._held.move_to_end(key)
        return scan

    def end_late(self) -> None:
        """Drops the scans that were not continued in time, with their trees. Called periodically. A
        scan is not dropped at its last page, since the shards of a scan share one tree.
        """
        before = time.monotonic() - _HELD_SECONDS
        with self._lock:
            while self._held and next(iter(self._held.values())).used_at <= before:
                self._held.popitem(last=False)

    def _begun(self, path: Path, newest: OpenTree, call: Call) -> _ScanSnapshot | None:
        """Begins a scan of the newest tree and holds it; None if there is no such directory."""
        snapshot = newest.snapshot
        start = path.below(newest.mount)
        directory_id = snapshot.find_directory(start)
        if directory_id is None:
            return None
        key = _key(call, newest, path, snapshot.incarnation, snapshot.revision)
        with self._lock:
            scan = self._held.get(key)
        if scan is None:
            places = tuple(_directories(snapshot, start, directory_id, call))
            scan = _ScanSnapshot(newest, places, time.monotonic())
        with self._lock:
            self._held[key] = replace(scan, used_at=time.monotonic())
            self._held.move_to_end(key)
            while len(self._held) > _HELD:
                self._held.popitem(last=False)
        return scan


def _key(call: Call, newest: OpenTree, path: Path, incarnation: str, revision: int) -> _Key:
    caller = (call.principal, newest.caller.host, newest.is_expired)
    return (*caller, str(path), incarnation, revision)


def _directories(
    snapshot: Snapshot, start: _DirectorySegments, directory_id: int, call: Call
) -> list[tuple[_DirectorySegments, int]]:
    """Returns the directory and all below it, with their places relative to the mount, in path
    order.
    """
    found: list[tuple[_DirectorySegments, int]] = []
    left = [(start, directory_id)]
    while left:
        place, one = left.pop()
        node = snapshot.nodes.get(one)
        if node is None:
            continue
        found.append((place, one))
        for name, entry in node.containers.items():
            if entry.kind.name == "DIRECTORY":
                left.append(((*place, name), entry.entry_id))
        if len(found) % _LOOK == 0:
            call.check()
    found.sort()
    return found


def _fill(
    response: scan_pb2.ScanTopicsResponse,
    request: scan_pb2.ScanTopicsRequest,
    cluster: Cluster,
    scan: _ScanSnapshot,
    token: PageToken | None,
    call: Call,
    newest: OpenTree,
) -> str:
    """Adds the topics after the token's position. Returns where the page ended; empty = no topic is
    left.
    """
    size = page_size(request.page_size, _PAGE)
    answers = ResolveAnswers(cluster, scan.tree)
    mount, snapshot = scan.tree.mount.segments, scan.tree.snapshot
    place, after = _parse_scan_position(token)
    begin = bisect.bisect_left(scan.places, (place,)) if token is not None else 0
    entries, owners = response.entries, response.owners
    most_bytes = cluster.config.limits.answer_bytes
    used = passed = 0
    last = ""
    if token is None:
        response.unreadable_count = _unreadable_count(request, scan, newest)
    for directory, directory_id in scan.places[begin:]:
        node = snapshot.nodes.get(directory_id)
        if node is None:
            continue
        accesses = [
            one
            for tree in (newest, scan.tree)
            if not (one := _DirectoryAccess(tree, snapshot, directory, node)).shows_all
        ]
        inherited = answers.inherited(directory_id)
        owner = inherited.owner if inherited is not None else ""
        base = "".join(f"/{segment}" for segment in (*mount, *directory))
        start = after if directory == place and after else None
        topics = node.topics.items(start, inclusive=False)
        for name, record in topics:
            passed += 1
            if passed % _LOOK == 0:
                call.check()
            if not all(one.shows(directory_id, name, record) for one in accesses):
                continue
            if not _is_in_shard(name, request):
                continue
            if len(entries) >= size or used >= most_bytes:
                return last
            entry = entries.add()
            try:
                record_to_proto(record, f"{base}/{name}", entry)
            except UnreadableRecord:
                del entries[-1]
                response.unreadable_count += 1
                continue
            owners.append((entry.policies.owner if entry.HasField("policies") else "") or owner)
            used += len(record) + len(base) + 32 + len(owners[-1])
            last = "/".join((*directory, name))
    return ""


class _DirectoryAccess:
    """Access of the caller to the topics of one directory of a scan's snapshot, by the rights in a
    tree: at the place that a topic has there or, if it is gone, would have.
    """

    __slots__ = ("_at", "_moved_from", "_tree", "shows_all")

    def __init__(
        self, tree: OpenTree, scanned: Snapshot, directory: _DirectorySegments, node: Node
    ) -> None:
        snapshot, directory_id = tree.snapshot, node.entry_id
        self._tree: Final = tree
        self._at: _DirectorySegments = directory
        self._moved_from: Snapshot | None = None
        """The scan's snapshot, if topics of the directory may be elsewhere in the tree."""
        if snapshot is not scanned:
            self._at = snapshot.path_of(directory_id) or directory
            now = snapshot.nodes.get(directory_id)
            if now is None or now.topics is not node.topics:
                self._moved_from = scanned
        whole = () if self._moved_from is not None else self._at
        self.shows_all: Final = tree.can_describe_all_below(whole)

    def shows(self, directory_id: int, name: str, record: bytes) -> bool:
        """True if the caller may describe a topic."""
        at = (*self._at, name)
        if self._moved_from is not None:
            at = self._moved(directory_id, name, record, self._moved_from) or at
        return self._tree.can_describe(at, is_topic=True)

    def _moved(
        self, directory_id: int, name: str, record: bytes, scanned: Snapshot
    ) -> _DirectorySegments | None:
        """Returns where a topic is in the tree; None = in the same directory, or gone."""
        snapshot = self._tree.snapshot
        node, entry_id = snapshot.nodes.get(directory_id), snapshot.codec.entry_id(record)
        now = None if node is None else node.topics.get(name)
        if now is not None and snapshot.codec.entry_id(now) == entry_id:
            return None
        topic = scanned.readable_topic(directory_id, name)
        located = None if topic is None else snapshot.locate(topic.physical_name)
        if located is None or located.topic.entry_id != entry_id:
            return None
        return located.relative


def _is_in_shard(name: str, request: scan_pb2.ScanTopicsRequest) -> bool:
    shards = request.shard_count or 1
    return shards == 1 or zlib.crc32(name.encode()) % shards == request.shard


def _unreadable_count(
    request: scan_pb2.ScanTopicsRequest, scan: _ScanSnapshot, newest: OpenTree
) -> int:
    """Returns the number of entries that are in no page, since a load could not read them."""
    start, directory_id = scan.places[0]
    directory = DirectoryAt(start, scan.tree.snapshot.nodes[directory_id])
    return sum(
        _is_in_shard(at[-1], request) and newest.counts_unreadable(at, is_topic=is_topic)
        for at, is_topic in scan.tree.unreadable_entries(directory, _TOPICS)
    )


def _parse_scan_position(token: PageToken | None) -> tuple[_DirectorySegments, str]:
    if token is None:
        return (), ""
    *directory, name = token.last.split("/")
    if not name:
        raise InvalidPageToken("page_token: not one of a scan")
    return tuple(directory), name
