"""Watcher: follows a cluster's changes, and compares them with what was acknowledged."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grpc
from kdir.v1 import watch_pb2

from resolver import Resolver
from resolver.error_status import from_rpc_error
from resolver.errors import KdirError
from resolver.revision_token import Position, Token
from resolver.watch_streams import Watching
from tests.soak.journal import Journal
from tests.soak.world import Cluster, World

__all__ = ["Acknowledged", "Watcher"]

_MAY_COME_BACK = frozenset(
    {
        "UNREACHABLE",
        "NOT_READY",
        "STORE_UNAVAILABLE",  # so does a server that has not got as far as the token, without one
        "TOKEN_FROM_FUTURE",
        "CANCELLED",
        "DEADLINE_EXCEEDED",
        "LIMIT_EXCEEDED",
        "LAME",
    }
)
_RESTARTS = frozenset({"TOKEN_EXPIRED", "RESYNC", "REVISION_GONE", "ABSENT"})


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A change that was acknowledged."""

    request_id: str
    path: str
    position: Position


class Watcher(threading.Thread):
    """One watch of all of a cluster, which goes on by tokens wherever it broke.

    Args:
        by_library: ``Resolver.watch``; else bare streams that are cut on purpose.
    """

    def __init__(
        self, world: World, cluster: Cluster, journal: Journal, seed: str, *, by_library: bool
    ) -> None:
        door = "library" if by_library else "grpc"
        super().__init__(name=f"watch-{door}-{cluster.mount}", daemon=True)
        self._world = world
        self.cluster = cluster
        self._journal = journal
        self._by_library = by_library
        self._random = random.Random(f"{seed}-{self.name}")
        self._ending = threading.Event()
        self._token = ""
        self._since: dict[str, int] = {}
        """By incarnation: from which revision on all is known."""
        self._last: dict[str, int] = {}
        self._events: dict[str, list[tuple[str, int, str]]] = {}
        """By request id: incarnation, revision and path of its events."""
        self.started = threading.Event()

    def stop(self) -> None:
        """Ends soon."""
        self._ending.set()

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                for response in self._responses():
                    for events in self.cluster.lies.bend_watch(response[0]):
                        self._take((events, response[1]))
                    if self._ending.is_set():
                        return
            except KdirError as error:
                self._journal.operation("watch", self.name, error.reason, self.name)
                if error.reason in _RESTARTS:
                    self._token = ""
                elif error.reason not in _MAY_COME_BACK:
                    self._journal.breach("watch", f"{self.name}: {error}", self.name)
                    self._token = ""
            self._ending.wait(0.2)

    def _responses(self) -> Iterator[tuple[list[watch_pb2.ChangeEvent], str]]:
        if self._by_library:
            addresses = self.cluster.addresses
            with Resolver(addresses, timeout_seconds=10, **self._world.login()) as resolver:
                watching = resolver.watch(
                    self.cluster.mount, after=self._token, checkpoint_seconds=1
                )
                ended = threading.Event()
                moved = threading.Thread(
                    target=self._end_when_moved, args=(watching, addresses, ended), daemon=True
                )
                moved.start()
                try:
                    for changes in watching:
                        yield list(changes.events), changes.token
                finally:
                    ended.set()
                    moved.join()
            return
        server = self._random.choice(self.cluster.servers)
        request = watch_pb2.WatchRequest(
            path=self.cluster.mount, after_token=self._token, checkpoint_seconds=1
        )
        until = time.monotonic() + self._random.uniform(1, 20)
        try:
            stream = server.watch_stub().Watch(request, timeout=40)
            for response in stream:
                yield list(response.events), response.token
                if time.monotonic() > until:
                    stream.cancel()
                    return
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        except ValueError:
            return

    def _end_when_moved(
        self, watching: Watching, addresses: Sequence[str], ended: threading.Event
    ) -> None:
        """Ends a watch of the library once no server is where it was when the watch began: as a
        user would who is told of new addresses.
        """
        while not ended.wait(0.5):
            if not set(addresses) & set(self.cluster.addresses):
                watching.close()
                return

    def _take(self, response: tuple[list[watch_pb2.ChangeEvent], str]) -> None:
        events, token = response
        self._token = token
        position = Token.parse(token).positions[self.cluster.cluster_id]
        incarnation = position.incarnation
        if incarnation not in self._since:
            self._since[incarnation] = position.revision
            self._last[incarnation] = position.revision - (1 if events else 0)
            self._journal.write("watch begins", self.name, position=str(position))
        self.started.set()
        revisions = {event.revision for event in events}
        if len(revisions) > 1 or (revisions and max(revisions) > position.revision):
            text = f"one answer has revisions {sorted(revisions)} and token {position}"
            self._journal.breach("watch atomic", text, self.name)
        for revision in revisions:
            self._journal.check("watch order")
            if revision <= self._last[incarnation]:
                text = f"revision {revision} came after {self._last[incarnation]}"
                self._journal.breach("watch order", text, self.name)
            self._last[incarnation] = revision
        places = [event.position for event in events]
        if len(set(places)) != len(places) or places != sorted(places):
            text = f"positions {places} of revision {revisions}"
            self._journal.breach("watch order", text, self.name)
        for event in events:
            if event.request_id:
                seen = self._events.setdefault(event.request_id, [])
                seen.append((incarnation, event.revision, event.path))

    def is_in(self, incarnation: str) -> bool:
        """True if it follows this life of the store."""
        found = Token.parse(self._token).positions.get(self.cluster.cluster_id)
        return found is not None and found.incarnation == incarnation

    def reached(self, position: Position) -> bool:
        """True if all up to a position was given."""
        found = Token.parse(self._token).positions.get(self.cluster.cluster_id)
        return (
            found is not None
            and found.incarnation == position.incarnation
            and found.revision >= position.revision
        )

    def verify(self, acknowledged: list[Acknowledged]) -> None:
        """Checks that every acknowledged change came once, at its revision."""
        for change in acknowledged:
            since = self._since.get(change.position.incarnation)
            if since is None or change.position.revision <= since:
                continue
            if change.position.revision > self._last[change.position.incarnation] and (
                not self.reached(change.position)
            ):
                continue  # it began anew before that came
            self._journal.check("watch event")
            seen = self._events.get(change.request_id, [])
            revisions = {place[:2] for place in seen}
            right = {(change.position.incarnation, change.position.revision)}
            if revisions != right:
                text = f"{change} came at {sorted(revisions)}"
                self._journal.breach("watch lost", text, self.name)
            elif change.path not in {place[2] for place in seen}:
                text = f"{change} came with {[place[2] for place in seen]}"
                self._journal.breach("watch event", text, self.name)
