"""An etcd that lies, stalls and refuses as a test tells it to, over real gRPC on loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

import grpc

from directory.store.base import StoreUnreachable
from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.key_layout import Layout
from directory.store.etcd.member_stream import Metadata
from directory.store.etcd.watch_state import Response
from tests.fault.etcd.model import ETCD, History, whole

__all__ = ["LAYOUT", "FakeEtcd", "FakeMembers", "Script"]

LAYOUT = Layout(b"/la/")
Script = Callable[["FakeEtcd", int], Iterator[Response]]
"""What a watch stream sends that is to begin with a revision; where it ends, silence begins."""


class FakeEtcd:
    """One member, of a cluster of one or of several that share a ``history``."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.etcd_cluster = ETCD
        self.scripts: list[Script] = []
        """One each for the next watches; after them they are served honestly."""
        self.token = ""
        """Where it is set, calls that do not show it are refused."""
        self.denied = ""
        """Where it is set, reads are refused with these words."""
        self.silent = threading.Event()
        """While set, no read is answered, and no stream sends anything."""
        self.watches: list[Any] = []
        """The ``WatchCreateRequest`` of each watch."""
        self.required_leader: list[bool] = []
        self.reads = 0
        self.compacted = 0
        self._changed = threading.Condition()
        self._ended = False
        self._calls: set[Any] = set()
        self._server = grpc.server(ThreadPoolExecutor(32))
        etcdrpc.add_KVServicer_to_server(_Kv(self), self._server)
        etcdrpc.add_WatchServicer_to_server(_Watch(self), self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.endpoint = f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the member: its connections break."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self.silent.clear()
        self._server.stop(0).wait(10)

    def report(self) -> None:
        """Notifies the watches that the history grew."""
        with self._changed:
            self._changed.notify_all()

    def drop_watches(self) -> None:
        """Ends every open stream, as a restart does, but takes calls."""
        with self._changed:
            for context in list(self._calls):
                context.cancel()

    # -- what it serves ----------------------------------------------------------------------

    def honest(self, start: int) -> Iterator[Response]:
        """Yields what etcd would send."""
        if start <= self.compacted:
            yield Response(self.etcd_cluster, self.history.now, created=True)
            yield Response(
                self.etcd_cluster, self.history.now, canceled=True, compacted=self.compacted + 1
            )
            return
        yield Response(self.etcd_cluster, self.history.now, created=True)
        yield from self.follow(start)

    def follow(self, start: int) -> Iterator[Response]:
        """Yields all revisions from ``start`` on, as they come."""
        while not self._ended:
            with self._changed:
                found = self.history.after(start - 1)
                if not found or self.silent.is_set():
                    self._changed.wait(0.05)
                    found = self.history.after(start - 1)
                if self.silent.is_set():
                    found = []
            if found:
                start = found[-1].number + 1
                yield whole(self.history, found)
            else:
                yield Response(0, -1)  # nothing: lets the caller look whether it is still wanted

    def serve(self, start: int, context: Any, *, fragment: bool) -> Iterator[Any]:
        """Yields one stream."""
        script = self.scripts.pop(0) if self.scripts else FakeEtcd.honest
        self._calls.add(context)
        try:
            for response in script(self, start):
                if not context.is_active():
                    return
                if response.revision >= 0:
                    yield from map(_message, _fragments(response) if fragment else [response])
            while context.is_active() and not self._ended:
                with self._changed:
                    self._changed.wait(0.05)
        finally:
            self._calls.discard(context)

    def admit(self, context: Any) -> None:
        """Refuses who does not show the token."""
        shown = dict(context.invocation_metadata()).get("token", "")
        if self.token and shown != self.token:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token")


class _Kv(etcdrpc.KVServicer):  # type: ignore[misc]
    def __init__(self, fake: FakeEtcd) -> None:
        self._fake = fake

    def Range(self, request: Any, context: Any) -> Any:
        fake = self._fake
        fake.reads += 1
        while fake.silent.is_set() and context.is_active():
            threading.Event().wait(0.02)
        fake.admit(context)
        if fake.denied:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, fake.denied)
        if request.revision and request.revision < fake.compacted:
            context.abort(
                grpc.StatusCode.OUT_OF_RANGE,
                "etcdserver: mvcc: required revision has been compacted",
            )
        head = fake.history.head(request.revision)
        answer = etcdrpc.RangeResponse()
        answer.header.cluster_id = fake.etcd_cluster
        answer.header.revision = fake.history.now
        if head.commit_version:
            answer.kvs.add(
                key=LAYOUT.commit,
                value=head.commit_id.encode(),
                mod_revision=head.commit_revision,
                version=head.commit_version,
            )
        if head.identity is not None:
            answer.kvs.add(key=LAYOUT.identity, value=head.identity, create_revision=head.born)
        return answer


class _Watch(etcdrpc.WatchServicer):  # type: ignore[misc]
    def __init__(self, fake: FakeEtcd) -> None:
        self._fake = fake

    def Watch(self, request_iterator: Any, context: Any) -> Iterator[Any]:
        metadata = dict(context.invocation_metadata())
        create = next(request_iterator).create_request
        self._fake.watches.append(create)
        self._fake.required_leader.append(metadata.get("hasleader") == "true")
        yield from self._fake.serve(create.start_revision, context, fragment=create.fragment)


def _fragments(response: Response) -> Iterator[Response]:
    """Ten events each."""
    events = response.events
    for begin in range(0, max(1, len(events)), 10):
        part = events[begin : begin + 10]
        more = begin + 10 < len(events)
        yield replace(response, events=part, fragment=more or response.fragment)


def _message(response: Response) -> Any:
    message = etcdrpc.WatchResponse(
        created=response.created,
        canceled=response.canceled,
        compact_revision=response.compacted,
        cancel_reason=response.reason,
        fragment=response.fragment,
        watch_id=-1 if response.canceled and response.created else 0,
    )
    message.header.cluster_id = response.etcd_cluster
    message.header.revision = response.revision
    for one in response.events:
        event = message.events.add(type=0 if one.value is not None else 1)
        event.kv.key = LAYOUT.root + one.key
        event.kv.mod_revision = one.revision
        event.kv.version = one.version
        event.kv.value = one.value or b""
    return message


class FakeMembers:
    """Endpoints of members as a watch uses them, for fakes (or for proxies before them)."""

    def __init__(self, *endpoints: str) -> None:
        self.endpoints: Sequence[str] = endpoints
        self.dials: list[str] = []
        self.most_bytes = -1
        """What a message may have at most; -1 = anything."""
        self.logins = 0
        self.token = ""
        self.tokens: list[str] = []
        """What the next logins give."""

    def dial(self, number: int) -> grpc.Channel:
        self.dials.append(self.endpoints[number])
        return grpc.insecure_channel(
            self.endpoints[number],
            (
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_receive_message_length", self.most_bytes),
            ),
        )

    def metadata(self, number: int, timeout_seconds: float) -> Metadata:
        if not self.token and self.tokens:
            self.logins += 1
            self.token = self.tokens.pop(0)
            if self.token == "refused":
                self.token = ""
                raise StoreUnreachable("etcd does not know this user")
        token = (("token", self.token),) if self.token else ()
        return (("hasleader", "true"), *token)

    def forget_token(self, used: str | None = None) -> None:
        with suppress(ValueError):
            if used is None or used == self.token:
                self.token = ""
