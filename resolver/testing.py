"""Directories in memory, for tests of programs that use a ``Resolver``.

    with MemoryDirectory() as directory:
        directory.cluster("/la/tracking", "la-tracking", bootstrap_servers="localhost:9092")
        directory.topic("/la/tracking/search/clicks")
        resolver = directory.resolver()
        assert resolver.resolve("/la/tracking/search/clicks").topic == "search.clicks"

Resolving, listing, reverse lookups and the mount table work as with servers, with the same contract
and checks, but without a socket. All other methods raise ``Unimplemented``.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, Final, Self

from google.protobuf.message import Message
from kdir.v1 import directory_pb2, entry_pb2, federation_pb2, resolve_pb2

from resolver import errors
from resolver.client import Resolver
from resolver.directory_listing import Filter
from resolver.path import ROOT, Path, is_system
from resolver.transport import Method, Stream

__all__ = ["Handler", "MemoryCluster", "MemoryDirectory", "MemoryTransport"]

LIFETIME_SECONDS: Final = 60

Handler = Callable[[str, Any], Any]
"""Function that answers calls. Its arguments are the method, such as ``ResolveService.Resolve``,
and the request; it returns the response, for a stream an iterable of responses, or raises a
``KdirError``.
"""


class MemoryTransport:
    """A ``resolver.transport.Transport`` to handlers in this process.

    ``calls`` has every call that was made, as (endpoint, method), in order.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self.calls: list[tuple[str, str]] = []

    def serve(self, endpoint: str, handler: Handler | None) -> None:
        """Lets ``handler`` answer the calls to ``endpoint`` from now on; None = no server answers
        there.
        """
        if handler is None:
            self._handlers.pop(endpoint, None)
        else:
            self._handlers[endpoint] = handler

    def handler(self, endpoint: str) -> Handler:
        """Returns the handler of ``endpoint``.

        Raises:
            KeyError: there is none.
        """
        return self._handlers[endpoint]

    def is_served(self, endpoint: str) -> bool:
        """True if ``endpoint`` has a handler."""
        return endpoint in self._handlers

    def call(
        self,
        endpoint: str,
        method: Method,
        request: Message,
        timeout_seconds: float,
        *,
        cluster_id: str = "",
    ) -> Any:
        return self._send_request(endpoint, method, request)

    def stream(
        self, endpoint: str, method: Method, request: Message, *, cluster_id: str = ""
    ) -> Stream:
        return _MemoryStream(lambda: self._send_request(endpoint, method, request))

    def close(self) -> None:
        self._handlers.clear()

    def _send_request(self, endpoint: str, method: Method, request: Message) -> Any:
        name = method.name.removeprefix("/kdir.v1.").replace("/", ".")
        self.calls.append((endpoint, name))
        handler = self._handlers.get(endpoint)
        if handler is None:
            raise errors.Unreachable(f"{endpoint}: nobody listens there")
        # Converted to bytes and back, so that the two sides do not share a message.
        return handler(name, method.request.FromString(request.SerializeToString()))


class _MemoryStream:
    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin = begin
        self._cancelled = False

    def __iter__(self) -> Iterator[Any]:
        for response in self._begin():
            if self._cancelled:
                raise errors.Cancelled("the stream was ended")
            yield response

    def cancel(self) -> None:
        self._cancelled = True


class MemoryDirectory:
    """A federation of clusters, each with one server, all in this process."""

    def __init__(self) -> None:
        self.transport = MemoryTransport()
        self._clusters: dict[Path, MemoryCluster] = {}
        self._ports = count(20_000)
        self._resolvers: list[Resolver] = []

    def cluster(self, mount: str, name: str = "", *, bootstrap_servers: str = "") -> str:
        """Mounts a cluster below the nearest cluster above; returns its server's endpoint.

        ``name`` is by default the segments of ``mount``, joined by ``-``.
        """
        path = Path.parse(mount)
        name = name or "-".join(path.segments) or "root"
        if path in self._clusters or self.named(name) is not None:
            raise ValueError(f"cluster {name} at {path}: there is one already")
        endpoint = f"127.0.0.1:{next(self._ports)}"
        cluster = MemoryCluster(self, path, name, endpoint, bootstrap_servers)
        self._clusters[path] = cluster
        self.transport.serve(endpoint, cluster.answer)
        return endpoint

    def at(self, mount: str) -> MemoryCluster:
        """Returns the cluster at ``mount``: its ``revision``, and ``answer``, its server's handler,
        which a test may replace (``transport.serve``).

        Raises:
            KeyError: no cluster is mounted there.
        """
        return self._clusters[Path.parse(mount)]

    @property
    def mounts(self) -> frozenset[str]:
        """Paths at which clusters are mounted."""
        return frozenset(map(str, self._clusters))

    def unmount(self, mount: str) -> None:
        """Removes a mount from its parent; the server of the unmounted cluster still answers.

        Raises:
            KeyError: no cluster is mounted there.
            ValueError: it has no parent.
        """
        gone = self.at(mount)
        parent = self.deepest(gone.mount, strictly_above=True) if len(gone.mount) else None
        if parent is None:
            raise ValueError(f"{mount}: no cluster is mounted above")
        del self._clusters[gone.mount]
        parent.revision += 1

    def topic(self, path: str, physical_name: str = "", *, partitions: int = 1) -> None:
        """Creates a topic, and the missing directories above it."""
        parsed = Path.parse(path)
        cluster = self._owner(parsed)
        name = physical_name or ".".join(parsed.below(cluster.mount))
        cluster.put(
            parsed,
            entry_pb2.Entry(
                topic=entry_pb2.Topic(
                    physical_name=name,
                    topic_id=hashlib.sha256(path.encode()).digest()[:16],
                    partitions=partitions,
                    replication_factor=1,
                    provision=entry_pb2.PROVISION_ACTIVE,
                )
            ),
        )

    def mkdir(self, path: str) -> None:
        """Creates a directory, and the missing ones above it."""
        parsed = Path.parse(path)
        self._owner(parsed).put(parsed, entry_pb2.Entry(directory=entry_pb2.Directory()))

    def link(
        self, path: str, *targets: str, union: bool = False, fall_back_on_absent: bool = False
    ) -> None:
        """Creates a link, and the missing directories above it."""
        parsed = Path.parse(path)
        mode = entry_pb2.LINK_MODE_UNION if union else entry_pb2.LINK_MODE_FIRST
        link = entry_pb2.Link(targets=targets, mode=mode, fall_back_on_absent=fall_back_on_absent)
        self._owner(parsed).put(parsed, entry_pb2.Entry(link=link))

    def remove(self, path: str) -> None:
        """Removes all entries at and below a path."""
        parsed = Path.parse(path)
        self._owner(parsed).remove(parsed)

    def stop(self, mount: str) -> None:
        """Stops the server of the cluster mounted there."""
        self.transport.serve(self._clusters[Path.parse(mount)].endpoint, None)

    def start(self, mount: str) -> None:
        """Starts the server of the cluster mounted there again."""
        cluster = self._clusters[Path.parse(mount)]
        self.transport.serve(cluster.endpoint, cluster.answer)

    def resolver(self, mount: str = "", **options: Any) -> Resolver:
        """Returns a resolver that begins at the cluster mounted at ``mount``, by default at the
        first one mounted. ``options`` are those of ``Resolver``.
        """
        clusters = self._clusters
        if not clusters:
            raise ValueError("no cluster: make one first")
        first = clusters[Path.parse(mount)] if mount else next(iter(clusters.values()))
        options.setdefault("transport", self.transport)
        resolver = Resolver([first.endpoint], **options)
        self._resolvers.append(resolver)
        return resolver

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for resolver in self._resolvers:
            resolver.close()
        self.transport.close()

    def _owner(self, path: Path) -> MemoryCluster:
        found = self.deepest(path)
        if found is None:
            raise ValueError(f"{path}: no cluster is mounted there or above")
        return found

    def deepest(self, path: Path, *, strictly_above: bool = False) -> MemoryCluster | None:
        """Returns the cluster that is mounted at a path or nearest above it; ``strictly_above``:
        only above it.
        """
        for length in range(len(path) - strictly_above, -1, -1):
            found = self._clusters.get(Path(path.segments[:length]))
            if found is not None:
                return found
        return None

    def below(self, mount: Path, path: Path) -> MemoryCluster | None:
        """Returns the topmost cluster mounted strictly below ``mount`` that ``path`` lies in."""
        for length in range(len(mount) + 1, len(path) + 1):
            found = self._clusters.get(Path(path.segments[:length]))
            if found is not None:
                return found
        return None

    def named(self, name: str) -> MemoryCluster | None:
        """Returns the cluster of this name or id."""
        for cluster in self._clusters.values():
            if name in (cluster.name, cluster.cluster_id):
                return cluster
        return None


class MemoryCluster:
    """Cluster with one server: ``answer`` is the server's handler."""

    def __init__(
        self, whole: MemoryDirectory, mount: Path, name: str, endpoint: str, bootstrap: str
    ) -> None:
        self._whole = whole
        self.mount = mount
        self.name = name
        self.cluster_id = f"kc-{name}"
        self.endpoint = endpoint
        self._bootstrap = bootstrap
        self.revision = 1
        """Revision of the tree; each change adds 1."""
        self._counted: tuple[int, frozenset[str]] = (0, frozenset())
        """Revision and mounts for which the counts of the directories were computed."""
        self._entries: dict[tuple[Path, bool], entry_pb2.Entry] = {}
        """Entries by path and whether the entry is a topic."""
        self.put(mount, entry_pb2.Entry(directory=entry_pb2.Directory()))

    def put(self, path: Path, entry: entry_pb2.Entry) -> None:
        self.revision += 1
        entry.path = str(path)
        entry.entry_id = self.revision
        for above in _from_to(self.mount, path.parent if path != self.mount else path):
            if (above, False) not in self._entries:
                made = entry_pb2.Entry(path=str(above), directory=entry_pb2.Directory())
                self._entries[above, False] = made
        self._entries[path, entry.HasField("topic")] = entry

    def remove(self, path: Path) -> None:
        self.revision += 1
        for key in [key for key in self._entries if path.is_prefix_of(key[0])]:
            del self._entries[key]

    @property
    def topic_count(self) -> int:
        """Number of topics in the cluster."""
        return sum(is_topic for _, is_topic in self._entries)

    def _count_topics(self) -> None:
        """Updates the topic and container counts of each directory, if the tree or the mounts have
        changed.
        """
        mounts = self._whole.mounts
        if self._counted == (self.revision, mounts):
            return
        self._counted = (self.revision, mounts)
        counts: Counter[Path] = Counter()
        containers = Counter(Path.parse(one).parent for one in mounts)
        for path, is_topic in self._entries:
            if is_topic:
                counts.update(_from_to(self.mount, path.parent))
            elif path != self.mount:
                containers[path.parent] += 1
        for (path, _), entry in self._entries.items():
            if entry.HasField("directory"):
                entry.directory.total_topic_count = counts[path]
                entry.directory.container_count = containers[path]

    def answer(self, method: str, request: Any) -> Any:
        self._count_topics()
        match method:
            case "ResolveService.Resolve":
                response = resolve_pb2.ResolveResponse(authority=self._authority())
                self._resolve(request.path, request, response.outcome)
                return response
            case "ResolveService.BatchResolve":
                batch = resolve_pb2.BatchResolveResponse(authorities=[self._authority()])
                for path in request.paths:
                    self._resolve(path, request, batch.outcomes.add())
                return batch
            case "ResolveService.Locate":
                return self._locate(request)
            case "DirectoryService.ListEntries":
                return self._list(request)
            case "FederationService.ListMounts":
                return self._mount_table()
            case _:
                raise errors.Unimplemented(f"{method}: not in memory")

    def _authority(self) -> resolve_pb2.Authority:
        listeners = []
        if self._bootstrap:
            servers = self._bootstrap.split(",")
            listeners.append(
                entry_pb2.Listener(
                    name="memory", bootstrap_servers=servers, security_protocol="PLAINTEXT"
                )
            )
        return resolve_pb2.Authority(
            cluster=entry_pb2.Cluster(
                cluster_id=self.cluster_id,
                cluster=self.name,
                mount=str(self.mount),
                epoch=1,
                listeners=listeners,
            ),
            server=f"{self.name}-1",
            revision=self.revision,
            incarnation="memory",
        )

    def _resolve(self, text: str, request: Any, outcome: resolve_pb2.Outcome) -> None:
        path = Path.parse(text)
        if not self.mount.is_prefix_of(path):
            self._outside(path, outcome)
            return
        child = self._whole.below(self.mount, path)
        if child is not None:
            child.refer(resolve_pb2.REFERRAL_KIND_DOWN, outcome.referral)
            return
        topic, container = self._entries.get((path, True)), self._entries.get((path, False))
        any_kind = (entry_pb2.ENTRY_KIND_UNSPECIFIED, entry_pb2.ENTRY_KIND_TOPIC)
        wants_topic = request.prefer in any_kind
        entry = (topic or container) if wants_topic else (container or topic)
        for above in _from_to(self.mount, path):
            link = self._entries.get((above, False))
            if link is None or not link.HasField("link") or (above == path and request.no_follow):
                continue
            if above != path or entry is link:
                self._rewrite(above, link, path, outcome.rewrite)
                return
        if entry is None:
            held = [one for one in _from_to(self.mount, path) if (one, False) in self._entries]
            outcome.absent.nearest_directory = str(held[-1])
            outcome.absent.lifetime_seconds = 5
            return
        outcome.resolution.entry.CopyFrom(entry)
        outcome.resolution.has_container = entry is topic and container is not None
        outcome.resolution.lifetime_seconds = LIFETIME_SECONDS

    def _outside(self, path: Path, outcome: resolve_pb2.Outcome) -> None:
        parent = self._whole.deepest(self.mount, strictly_above=True)
        if parent is None:
            raise errors.NoRoute(f"nothing leads to {path} from {self.mount}", mount=self.mount)
        parent.refer(resolve_pb2.REFERRAL_KIND_UP, outcome.referral)

    def refer(self, kind: resolve_pb2.ReferralKind, referral: resolve_pb2.Referral) -> None:
        """Fills ``referral`` with a referral to this cluster."""
        referral.kind = kind
        referral.mount = str(self.mount)
        referral.cluster_id = self.cluster_id
        referral.cluster = self.name
        referral.epoch = 1
        referral.endpoints.append(self.endpoint)
        referral.lifetime_seconds = LIFETIME_SECONDS

    @staticmethod
    def _rewrite(
        where: Path, entry: entry_pb2.Entry, path: Path, rewrite: resolve_pb2.Rewrite
    ) -> None:
        rewrite.link = str(where)
        rest = path.below(where)
        rewrite.paths.extend(str(Path.parse(one).join(rest)) for one in entry.link.targets)
        rewrite.mode = entry.link.mode
        rewrite.fall_back_on_absent = entry.link.fall_back_on_absent
        rewrite.lifetime_seconds = LIFETIME_SECONDS

    def _locate(self, request: resolve_pb2.LocateRequest) -> resolve_pb2.LocateResponse:
        response = resolve_pb2.LocateResponse(authority=self._authority())
        if request.cluster not in ("", self.name, self.cluster_id):
            other = self._whole.named(request.cluster)
            if other is None:
                raise errors.NoRoute(f"no cluster {request.cluster!r} is known")
            down = self.mount.is_prefix_of(other.mount)
            kind = resolve_pb2.REFERRAL_KIND_DOWN if down else resolve_pb2.REFERRAL_KIND_DIRECT
            other.refer(kind, response.outcome.referral)
            return response
        for (_, is_topic), entry in self._entries.items():
            if is_topic and entry.topic.physical_name == request.physical_name:
                response.outcome.resolution.entry.CopyFrom(entry)
                return response
        response.outcome.absent.lifetime_seconds = 5
        return response

    def _list(self, request: directory_pb2.ListEntriesRequest) -> Message:
        path = Path.parse(request.path)
        directory = self._entries.get((path, False))
        if directory is None or not directory.HasField("directory"):
            raise errors.Absent(f"{path} is no directory here")
        found = [
            (own.segments, not is_topic, entry)
            for (own, is_topic), entry in self._entries.items()
            if own != path and (path.is_prefix_of(own) if request.recursive else own.parent == path)
        ]
        found += self._mounts_below(path, recursive=request.recursive)
        wanted = Filter(name_glob=request.name_glob, kinds=tuple(request.kinds))
        found = [
            (segments, is_container, entry)
            for segments, is_container, entry in found
            if wanted.passes(entry)
            # Entries below a system entry are not listed, either.
            and (request.include_system or not any(map(is_system, segments[len(path) :])))
        ]
        response = directory_pb2.ListEntriesResponse(
            authority=self._authority(), directory=directory
        )
        response.entries.extend(entry for _, _, entry in sorted(found, key=lambda one: one[:2]))
        return response

    def _mount_table(self) -> federation_pb2.ListMountsResponse:
        """Returns all mounts; a mount is linked if its server is not stopped."""
        response = federation_pb2.ListMountsResponse()
        for one in map(self._whole.at, sorted(self._whole.mounts)):
            if one.mount != ROOT:
                linked = self._whole.transport.is_served(one.endpoint)
                response.rows.add(
                    mount=str(one.mount),
                    cluster_id=one.cluster_id,
                    cluster=one.name,
                    epoch=1,
                    endpoints=[one.endpoint],
                    topic_count=one.topic_count,
                    linked=linked,
                    confirmed=linked,
                )
        return response

    def _mounts_below(
        self, path: Path, *, recursive: bool
    ) -> Sequence[tuple[tuple[str, ...], bool, entry_pb2.Entry]]:
        mounts = []
        for one in map(self._whole.at, self._whole.mounts):
            if self._whole.deepest(one.mount, strictly_above=True) is not self:
                continue
            near = path.is_prefix_of(one.mount) if recursive else one.mount.parent == path
            if near and one.mount != ROOT:
                linked = self._whole.transport.is_served(one.endpoint)
                mount = entry_pb2.Mount(
                    cluster_id=one.cluster_id,
                    cluster=one.name,
                    epoch=1,
                    state=(
                        entry_pb2.MOUNT_STATE_LINKED
                        if linked
                        else entry_pb2.MOUNT_STATE_DISCONNECTED
                    ),
                    topic_count=one.topic_count,
                )
                entry = entry_pb2.Entry(path=str(one.mount), mount=mount)
                mounts.append((one.mount.segments, True, entry))
        return mounts


def _from_to(above: Path, path: Path) -> Iterator[Path]:
    """Yields the paths from ``above`` down to ``path``, both included."""
    for length in range(len(above), len(path) + 1):
        yield Path(path.segments[:length])
