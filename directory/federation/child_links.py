"""Parent's side of the links: admits children, sends them the mount table and inherited records,
receives their reports.

No link has a thread. The stream's server polls messages to send and passes on received ones; a few
threads of a cluster do the work that may wait for the store. A child's reports delay only its own
link, and their commits have a limited rate: excess or invalid rows are left out, and storing is
tried again later if it fails.

A child that no mount names, or that expects another mount, is refused: the error names the mounts,
and ``kdir mounts`` lists the child as *pending*.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, TypeVar

from kdir.v1 import federation_pb2

from directory.federation import child_state, inheritance, parent_state
from directory.federation.child_state import WaitingChildren, find_waiting_child
from directory.federation.federation_state import (
    FederationState,
    FederationView,
    LocalServer,
    unix_ms,
)
from directory.federation.inheritance import levels_at_mount, refuse_oversized
from directory.federation.link_groups import LINK_GROUPS, LinkGroup, LinkGroups, LinkPace
from directory.federation.table_exchange import ReceivedTable
from directory.namespace.entry import Mount
from directory.namespace.keys import ENTRY, LINKED
from directory.namespace.mounted import claimed_cluster_ids, is_mount_unreadable, mounted_at
from directory.namespace.snapshot import Snapshot
from directory.namespace.tree_nodes import ROOT_KEY
from directory.store.base import (
    Delete,
    Guard,
    KeyEquals,
    Put,
    StoreUnreachable,
    UnchangedSince,
    Write,
)
from directory.store.replica import Replica
from directory.store.writer import Writer
from resolver.errors import (
    InvalidArgument,
    KdirError,
    LimitExceeded,
    MountLoop,
    MountMismatch,
    NotReady,
    StoreSealed,
    UnknownChild,
    WriteConflict,
)
from resolver.path import Path

__all__ = ["ChildLink", "ChildLinks"]

_log = logging.getLogger(__name__)

_KEEP_SECONDS = 1.0
"""Shortest interval between two commits of one child's reports."""
_KEEP_BYTES_A_SECOND = 64 * 1024
"""Largest rate of storing one child's reports, over all its links: large tables are stored less
often.
"""
_READER_SHARE = 0.1
"""Largest share of time for parsing one child's reported mounts: no child takes a whole
processor.
"""
_SHORT_REST_SECONDS = 0.05
"""Pauses shorter than this are postponed until they add up to it."""
_FORGET_WRITES = 100
"""Most records that one transaction removes: within the limits of every store."""
_THREADS = 16
"""Threads of a cluster for work that may wait for the store: that many writes are committed
together.
"""


_OwnFields = tuple[tuple[str, ...], federation_pb2.KafkaClaim | None]


@dataclass(slots=True)
class _Pace:
    """Schedule of the commits of one child's reports, over all its links."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    due: float = -inf
    session: ChildLink | None = None
    """Last link with reports that are not stored yet; None: everything is stored."""


class ChildLink:
    """Link of one child, after its hello. One thread at a time polls messages for the child;
    ``receive`` takes the child's messages one at a time.
    """

    def __init__(
        self,
        links: ChildLinks,
        hello: federation_pb2.Hello,
        welcome: federation_pb2.Welcome,
        below: ReceivedTable,
        pace: _Pace,
    ) -> None:
        self.on_ready: Callable[[], object] = bool
        """Called, from any thread, when there may be a message to poll."""
        self.ask: Callable[[], object] = bool
        """Called, from any thread, when the child's next message may be received."""
        self.due_at = 0.0
        """Latest time, by the clock, of the next poll, even without an event. Set by ``poll``."""
        self.is_over = False
        """Whether the link is to end. Set by ``poll``."""
        self._links: Final = links
        self._clock: Final = links.clock
        self._welcome = welcome
        self.group_token, self.reported_seconds = _take_link_fields(hello)
        self.hello = hello
        self.below: Final = below
        self.pace: Final = pace
        self.received_at = self._clock()
        """Time when the last message arrived, or later, when it was processed."""
        self.topic_count = hello.topic_count
        self.is_receiving = False
        """True while processing a message: others wait, and the child does not count as silent."""
        self.ended = False
        self.link: Put | None = None
        """Record of this link in the store; None: there is none."""
        self.is_kept = True
        """Whether the store has all that the child reported."""
        self.group: LinkGroup | None = None
        """Group of this link; None: the link shares no heartbeats."""
        self.lock: Final = threading.Lock()
        """Held while it begins or ends."""
        self._has_started = self._has_begun = False
        self._failure: Exception | None = None
        """Error with which the link failed to begin."""
        self._is_ready = self._is_beat_due = False
        self._is_last = False
        """True if the link ends after the queued messages."""
        self._waiting: Final[deque[bytes]] = deque()
        """Queued messages for the child."""
        self._heartbeats = LinkPace(links.heartbeat_seconds, None, self.reported_seconds)
        self._sent_at = self.received_at
        self._unconfirmed_field = b""
        """Part of each message: how long the parent's own state is unconfirmed; empty: it is
        confirmed.
        """
        self._table_version = self._looked = 0
        self._view: FederationView | None = None
        # Endpoints and Kafka claim that the last welcome was made with.
        self._own_fields: _OwnFields = ((), None)
        self._inherited: federation_pb2.Inherited | None = None
        self._rest_seconds = 0.0
        """Pause in reading that is due."""
        self._rested_at = 0.0
        self._read_on_at = inf
        """Time when the current pause in reading ends."""

    # -- heartbeats that are shared with other links ---------------------------------------------

    def beat(self) -> bool:
        """Requests a heartbeat; returns False if the previous one is not sent yet."""
        if self._is_beat_due:
            return False
        self._is_beat_due = True
        self.wake()
        return True

    def end(self) -> None:
        """Requests the end of the link."""
        self.ended = True
        self.wake()

    def _note_received(self) -> None:
        self.received_at = self._clock()
        if self.group is not None:
            self.group.note_received()

    # -- messages to the child -------------------------------------------------------------------

    def wake(self) -> None:
        """Requests a poll."""
        self._is_ready = True
        self.on_ready()

    @property
    def has_more(self) -> bool:
        """True if the link is to be polled again at once."""
        is_new = self._has_begun and self._view is None  # after the welcome the rest follows
        return bool(self._waiting) or self._is_ready or self._is_last or is_new

    @property
    def is_read(self) -> bool:
        """True once all messages are processed and no more will come."""
        return self.ended and not self.is_receiving

    def poll(self) -> bytes | None:
        """Returns the next message for the child; None: there is none now, or the link ``is_over``.

        Raises:
            KdirError, StoreUnreachable: the link did not begin.
            LimitExceeded: the inherited records are too large.
        """
        self._is_ready = False
        now = self._clock()
        if not self._has_begun:
            self._begin()
            return None
        # Checked before sending, since there may always be a message to send.
        if self.has_ended() or (self._is_last and not self._waiting):
            self.is_over = True
            return None
        if not self._waiting:
            self._look(now)
        if self._waiting:
            self._sent_at, self._is_beat_due = now, False
            if self.group is not None:
                self.group.note_sent()
        self.due_at = min(self._sent_at + self._heartbeats.seconds, self._read_on_at)
        # Protobuf merges messages that follow each other: a table is encoded once for all links.
        return self._waiting.popleft() + self._unconfirmed_field if self._waiting else None

    def has_ended(self) -> bool:
        """True if the link has ended, or the child is silent. Called instead of ``poll`` while the
        child does not take the last message; sets when to call next.
        """
        now = self._clock()
        if time.monotonic() >= self._read_on_at:
            self._read_on_at = inf
            self._read_on()
        self.due_at = min(now + self._heartbeats.seconds, self._read_on_at)
        return self.ended or self._links.is_stopping or self._is_silent(now)

    def _begin(self) -> None:
        self.due_at = inf
        if self._failure is not None:
            raise self._failure
        if not self._has_started:
            self._has_started = True
            self._links.run(self._store_begin)

    def _store_begin(self) -> None:
        with self.lock:
            if self.ended:
                return
            try:
                self._links.begin(self)
            except Exception as error:  # noqa: BLE001 - any error ends the link
                self._failure = error
            else:
                own_seconds = self._links.heartbeat_seconds
                self._heartbeats = LinkPace(own_seconds, self.group, self.reported_seconds)
                first = federation_pb2.LinkResponse(welcome=self._welcome)
                first.welcome.link_group = "" if self.group is None else self._links.group_token
                first.welcome.heartbeat_seconds = own_seconds
                self._waiting.append(first.SerializeToString())
                self.received_at = self._clock()  # until now the child could send nothing
                self._has_begun = True
        self.wake()
        if self._has_begun:
            self.ask()

    def _look(self, now: float) -> None:
        """Queues what has changed: the mount, the inherited records, and the table.

        The mount and its inherited records are of one revision; the records are sent on each link,
        even if unchanged. The table waits if the children's inheritance changed meanwhile.
        """
        links, federation = self._links, self._links.federation
        # Before the view: a state that is confirmed meanwhile may be newer than the view.
        seconds, field_before = links.unconfirmed_seconds(), self._unconfirmed_field
        self._unconfirmed_field = _encode_unconfirmed(seconds) if seconds else b""
        view = federation.view()
        if view.snapshot.incarnation != self._welcome.incarnation:
            # A restored store lacks this link and its reports. The child links again.
            self._is_last = True
            return
        found = view.mounts.get(self.hello.cluster_id)
        if found is None:
            self._is_last = True
            if is_mount_unreadable(view.snapshot, self.hello.cluster_id) or (
                self.hello.cluster_id in view.too_deep
            ):
                child = self.hello.cluster
                _log.warning("the link of child %s ends: its mount cannot be read", child)
                return
            message = f"{links.cluster} no longer mounts {self.hello.cluster_id}"
            unmounted = federation_pb2.Unmounted(message=message)
            self._put(federation_pb2.LinkResponse(unmounted=unmounted))
            return
        own = links.own_fields()
        # Each commit makes another view; the cluster's servers are known some time after it.
        if view is not self._view or own != self._own_fields:
            self._view, self._own_fields = view, own
            fresh = links.welcome(view, *found)
            if _lasting(fresh) != _lasting(self._welcome):
                self._welcome = fresh
                self._put(federation_pb2.LinkResponse(remounted=fresh))
        if view.handed_sequence != self._looked and links.has_loaded_above(view.snapshot):
            self._looked = view.handed_sequence
            inherited = links.inherited(view, *found)
            lasting = _lasting(inherited)
            if lasting != self._inherited:
                links.check_inherited(self, inherited)
                self._inherited = lasting
                self._put(federation_pb2.LinkResponse(inherited=inherited))
        marked = federation.sent_down.marked  # before the table is read
        version, tables = federation.sent_down.messages_since(self._table_version)
        if federation.view().handed_sequence == view.handed_sequence:
            self._table_version = version
            self._waiting.extend(tables)
        else:
            self._is_ready = True  # the table may be newer than the inherited records: next time
        is_due = self._is_beat_due or now - self._sent_at >= self._heartbeats.seconds
        is_due |= bool(field_before) and not self._unconfirmed_field  # the state is confirmed again
        if not self._waiting and is_due:
            beat = federation_pb2.Heartbeat(revision=view.snapshot.revision)
            self._put(federation_pb2.LinkResponse(heartbeat=beat))
        if self._waiting:
            self._heartbeats.note_sent(marked)

    def _put(self, response: federation_pb2.LinkResponse) -> None:
        self._waiting.append(response.SerializeToString())

    def _is_silent(self, now: float) -> bool:
        is_receiving = self.is_receiving  # read first: cleared last
        silent = now - self.received_at
        return not is_receiving and silent > self._heartbeats.silent_seconds

    # -- messages from the child -----------------------------------------------------------------

    def receive(self, request: federation_pb2.LinkRequest | KdirError | None) -> None:
        """Takes a message from the child; an error = it was malformed; None = no more will come.
        Does not wait.
        """
        if not isinstance(request, federation_pb2.LinkRequest):
            if request is not None:
                _log.info("the link of child %s ends: %r", self.hello.cluster, request)
            self.end()
            return
        self.is_receiving = True
        self._note_received()
        if self.is_kept and self._links.is_plain_heartbeat(self, request):
            self._links.note_contact(self)
            self._read_on()
        else:
            self._links.run(self._deal_with, request)

    def _deal_with(self, request: federation_pb2.LinkRequest) -> None:
        """Processes messages, which may wait for the store; ends the link if they
        cannot be stored.
        """
        began = time.monotonic()
        try:
            self._links.receive(self, request)
        except (KdirError, StoreUnreachable) as error:
            # The child will link again.
            _log.info("the link of child %s ends: %r", self.hello.cluster, error)
            self.is_receiving = False
            self.end()
            return
        except BaseException:
            self.is_receiving = False
            self.end()
            raise
        self._rest_seconds = max(0.0, self._rest_seconds - (began - self._rested_at))
        if request.HasField("mounts_below"):
            self._rest_seconds += (time.monotonic() - began) * (1 / _READER_SHARE - 1)
        self._rested_at = time.monotonic()
        if self._rest_seconds < _SHORT_REST_SECONDS:
            self._read_on()
        else:
            # At most a heartbeat: later messages of the child wait, and it is not taken for silent.
            rest, self._rest_seconds = self._rest_seconds, 0.0
            self._read_on_at = time.monotonic() + min(self._links.heartbeat_seconds, rest)
            self.wake()

    def _read_on(self) -> None:
        self._note_received()
        self.is_receiving = False
        self.ask()

    def close(self) -> None:
        """Ends the link and releases its resources. Does not wait; may be called more than once."""
        self.ended = True
        self.on_ready = self.ask = bool
        self._links.run(self._links.end, self)


class ChildLinks:
    """Set of the links of one cluster's children to this server."""

    def __init__(
        self,
        federation: FederationState,
        replica: Replica,
        writer: Writer,
        member: LocalServer,
        clock: Callable[[], float] = time.monotonic,
        groups: LinkGroups = LINK_GROUPS,
    ) -> None:
        self._groups = groups
        self.group_token: Final = secrets.token_hex(16)
        self.federation: Final = federation
        self._replica = replica
        self._writer = writer
        self._cluster_id = member.cluster_id
        self.cluster: Final = member.cluster
        self._endpoints = member.endpoints
        self._server_id = member.server_id
        self.heartbeat_seconds: Final = member.link_heartbeat_seconds
        self._kafka_claim = member.kafka_claim
        self.unconfirmed_seconds: Final = member.unconfirmed_seconds
        self.clock: Final = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, ChildLink] = {}
        self._paces: dict[str, _Pace] = {}
        self._candidates = WaitingChildren(clock)
        self._threads: Final = ThreadPoolExecutor(_THREADS, "links")
        self.is_stopping = False
        self._forgotten_sequence = -1
        """Sequence of the last view for which nothing was left to forget."""
        federation.subscribe(self._news)

    def stop(self) -> None:
        """Ends all links."""
        self.is_stopping = True
        self._news()

    def close(self) -> None:
        """Waits for the pending work of ended links."""
        self._threads.shutdown()

    def drop_pending(self) -> None:
        """Drops the pending work of ended links, for which the process would wait at its end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def run(self, function: Callable[..., object], *args: Any) -> None:
        """Runs work that may wait for the store on a thread; does nothing once closed."""
        with suppress(RuntimeError):
            self._threads.submit(self._run, function, args)

    @staticmethod
    def _run(function: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            function(*args)
        except Exception:  # noqa: BLE001 - nobody waits for it
            _log.exception("a link failed by a bug")

    def _news(self) -> None:
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.wake()

    # -- one link --------------------------------------------------------------------------------

    def serve(self, hello: federation_pb2.Hello) -> ChildLink:
        """Returns one child's link, which begins when it is polled.

        Raises:
            UnknownChild, MountMismatch, MountLoop: the child is refused for good.
            NotReady, StoreSealed, StoreUnavailable, DeadlineExceeded: the child is refused for now.
        """
        try:
            welcome = self._decide_admission(hello)
        except KdirError as error:
            self._candidates.remember(hello, error)
            raise
        with self._lock:
            pace = self._paces.setdefault(hello.cluster_id, _Pace())
        return ChildLink(self, hello, welcome, self._table_below(hello.cluster_id), pace)

    def _decide_admission(self, hello: federation_pb2.Hello) -> federation_pb2.Welcome:
        """Returns the child's welcome. A refusal for good, after which a child may stop serving, is
        decided by a tree as new as the store: another server may have made the mount.
        """
        try:
            return self._admit_child(hello)
        except (MountLoop, MountMismatch, UnknownChild) as error:
            if self._replica.sealed:  # the cluster may continue in another store
                raise StoreSealed(
                    f"the store of cluster {self.cluster} takes no changes; a child cannot link"
                ) from error
            return self._writer.decide(lambda: self._admit_child(hello))

    def _admit_child(self, hello: federation_pb2.Hello) -> federation_pb2.Welcome:
        view = self.federation.view()
        self._refuse_loop(hello.cluster_id)
        found = view.mounts.get(hello.cluster_id)
        if (too_deep := view.too_deep.get(hello.cluster_id)) is not None:
            raise NotReady(
                f"cluster {self.cluster} ({self._cluster_id}) mounts cluster {hello.cluster} "
                f"({hello.cluster_id}), but {too_deep[1]}; move cluster {self.cluster} to a "
                f"shorter path: kdir mv",
                child=hello.cluster_id,
            )
        if found is None and is_mount_unreadable(view.snapshot, hello.cluster_id):
            raise NotReady(
                f"cluster {self.cluster} ({self._cluster_id}) mounts cluster {hello.cluster} "
                f"({hello.cluster_id}), but the record of the mount, or of a directory above it, "
                f"cannot be read; to find it: kdir verify {view.position.mount}",
                child=hello.cluster_id,
            )
        if found is None:
            raise UnknownChild(
                f"no mount of cluster {self.cluster} ({self._cluster_id}) names cluster "
                f"{hello.cluster} ({hello.cluster_id}); to mount it: "
                f"kdir mount {hello.mount} --child {hello.cluster_id}",
                child=hello.cluster_id,
                child_mount=hello.mount,
                parent_cluster_id=self._cluster_id,
            )
        path, mount = found
        # The mount may have moved since it was made, without a link to the child.
        agreed = (str(path), mounted_at(view.snapshot, mount))
        if hello.epoch == 0 and hello.mount not in agreed:
            raise MountMismatch(
                f"mount mismatch: parent {self.cluster} has {hello.cluster_id} at {path}, "
                f"child {hello.cluster} expects {hello.mount}",
                parent_mount=path,
                child_mount=hello.mount,
            )
        return self.welcome(view, path, mount)

    def welcome(self, view: FederationView, path: Path, mount: Mount) -> federation_pb2.Welcome:
        """Returns the first message to the child of a mount."""
        parent = view.position.parent
        ancestors = parent.ancestor_cluster_ids if parent else ()
        return federation_pb2.Welcome(
            mount=str(path),
            epoch=mount.epoch,
            parent_cluster_id=self._cluster_id,
            parent_cluster=self.cluster,
            parent_mount=str(view.position.mount),
            ancestor_cluster_ids=[*ancestors, self._cluster_id],
            parent_endpoints=self._endpoints(),
            incarnation=view.snapshot.incarnation,
            revision=view.snapshot.revision,
            kafka_above=self._kafka_above(parent),
        )

    def own_fields(self) -> _OwnFields:
        """Returns the fields of a welcome that change without a new view."""
        return self._endpoints(), self._kafka_claim()

    def _kafka_above(
        self, parent: federation_pb2.Welcome | None
    ) -> list[federation_pb2.KafkaClaim]:
        own = self._kafka_claim()
        return [*(parent.kafka_above if parent else ()), *((own,) if own is not None else ())]

    def _ancestors(self) -> list[str]:
        parent = self.federation.view().position.parent
        return list(parent.ancestor_cluster_ids) if parent else []

    def begin(self, session: ChildLink) -> None:
        """Stores that a link is open; it replaces any other link of that child.

        Raises:
            KdirError, StoreUnreachable: it was not stored.
            NotReady: a newer link of the child has begun meanwhile. Or it is stored, but this
                server's replica lags: over an earlier link, the child may have received newer
                records than it would over this one.
        """
        hello = session.hello
        with self._lock:
            before = self._sessions.get(hello.cluster_id)
            self._sessions[hello.cluster_id] = session
        self._candidates.forget(hello.cluster_id)
        if before is not None:
            before.end()
        self.note_contact(session)
        link = child_state.link_write(hello.cluster_id, self._server_id, hello.topic_count)
        with session.pace.lock:
            if session.ended or self._sessions.get(hello.cluster_id) is not session:
                raise NotReady(f"another link of child {hello.cluster} began at the same time")
            writes = child_state.child_writes(self._replica.snapshot, hello, unix_ms())
            revision = self._writer.put_facts((link, *writes))
            # Only after the commit: if it fails, the previous link's reports are stored as before.
            session.link, session.pace.session = link, session
        if not self._replica.is_known(revision):
            raise NotReady(
                f"this server of cluster {self.cluster} has not seen revision {revision} of its "
                f"store yet; a child cannot link to it"
            )
        self.federation.table_changed()
        if session.group_token:
            key = (self.group_token, session.group_token)
            session.group = self._groups.join(
                key, session, self.heartbeat_seconds, session.reported_seconds
            )

    def end(self, session: ChildLink) -> None:
        """Stores that a link has ended, if it began and no other has replaced it."""
        with session.lock:
            self._end(session)

    def _end(self, session: ChildLink) -> None:
        group, session.group = session.group, None
        if group is not None:
            self._groups.leave(group, session)
        with self._lock:
            cluster_id = session.hello.cluster_id
            if self._sessions.get(cluster_id) is not session:
                return
            del self._sessions[cluster_id]
            # Locked: so a late message records no contact, and a newer link does not count as
            # ended.
            self.federation.note_child_contact(cluster_id, session.topic_count, linked=False)
        self._forgotten_sequence = -1
        with session.pace.lock:
            # If not, the row stays until the reports are stored, or it is the row of a newer link,
            # which may have the same value.
            if session.is_kept and session.pace.session is session:
                self._forget_link(session)
        self.federation.table_changed()

    def _forget_link(self, session: ChildLink) -> None:
        link = session.link
        if link is not None:
            try:
                self._writer.put_facts((Delete(link.key),), (KeyEquals(link.key, link.value),))
            except (KdirError, StoreUnreachable) as error:
                # Another server has the link now; or the store is unreachable, and the row stays
                # until the next link replaces it. It counts only while this server is alive.
                _log.debug("the link of child %s is not forgotten: %s", link.key, error)

    def has_loaded_above(self, snapshot: Snapshot) -> bool:
        """True if all that a mount inherits is loaded; unloaded policies and grants do not count as
        none (A3).
        """
        if snapshot.unreadable(ROOT_KEY):
            return False
        above = self.federation.parent_endpoints
        return (
            inheritance.is_inherited_readable(snapshot)
            if above
            else not inheritance.is_inherited_corrupt(snapshot)
        )

    def inherited(
        self, view: FederationView, mount_path: Path, mount: Mount
    ) -> federation_pb2.Inherited:
        """Returns the inherited records of a mount."""
        snapshot = view.snapshot
        message = federation_pb2.Inherited(
            mount=str(mount_path),
            epoch=mount.epoch,
            revision=snapshot.revision,
            incarnation=snapshot.incarnation,
            basis=parent_state.attachment_basis(snapshot),
        )
        relative = mount_path.below(view.position.mount)
        message.levels.extend(levels_at_mount(snapshot, view.position.mount, relative))
        message.ancestors.extend(parent_state.ancestors(snapshot, unix_ms()))
        return message

    def check_inherited(self, session: ChildLink, inherited: federation_pb2.Inherited) -> None:
        """Checks that the inherited records fit into a message; otherwise the child waits.

        Raises:
            LimitExceeded: they do not.
        """
        try:
            refuse_oversized(inherited)
        except LimitExceeded as error:
            self._candidates.remember(session.hello, error)
            raise

    def is_plain_heartbeat(self, session: ChildLink, request: federation_pb2.LinkRequest) -> bool:
        """True if a message is a heartbeat that changes neither topic count nor endpoints."""
        beat = request.heartbeat
        return (
            request.HasField("heartbeat")
            and beat.topic_count == session.topic_count
            and (not beat.endpoints or beat.endpoints == session.hello.endpoints)
        )

    def note_contact(self, session: ChildLink) -> None:
        """Records that a child is linked, unless the link has ended meanwhile."""
        cluster_id = session.hello.cluster_id
        with self._lock:
            if self._sessions.get(cluster_id) is session:
                self.federation.note_child_contact(cluster_id, session.topic_count, linked=True)

    def receive(self, session: ChildLink, request: federation_pb2.LinkRequest) -> None:
        """Processes a message of a child.

        Raises:
            KdirError: it cannot be stored.
            StoreUnreachable: the store cannot be reached.
        """
        if request.HasField("mounts_below"):
            self._receive_below(session, request.mounts_below)
        elif request.HasField("heartbeat"):
            self._heartbeat(session, request.heartbeat)
        elif request.HasField("hello"):
            self._hello_again(session, request.hello)
        self._keep_reported(session)

    def _table_below(self, cluster_id: str) -> ReceivedTable:
        def mount() -> Path | None:
            found = self.federation.view().mounts.get(cluster_id)
            return None if found is None else found[0]

        return ReceivedTable.of_child(mount, self.federation.bounds)

    def _receive_below(self, session: ChildLink, table: federation_pb2.MountTable) -> None:
        """Takes the mounts that a child reports, except invalid ones."""
        left_out = session.below.left_out
        if session.below.receive(table, unix_ms()):
            cluster_id, rows = session.hello.cluster_id, session.below.rows
            with self._lock:
                if self._sessions.get(cluster_id) is session:  # it takes long; the link may end
                    self.federation.receive_mounts_below(cluster_id, rows)
            self.note_contact(session)
            self.federation.table_changed()
            session.is_kept = False
        if session.below.left_out and session.below.left_out != left_out:
            _log.warning(
                "child %s reported %d mounts that are not kept: %s",
                session.hello.cluster,
                session.below.left_out,
                session.below.why_left_out,
            )

    def keep_reported(self) -> None:
        """Stores the last reports of children that were not stored when they arrived, also for
        links that have ended since.
        """
        with self._lock:
            sessions = [one.session for one in self._paces.values() if one.session is not None]
        for session in sessions:
            if session.is_kept and not session.is_read:
                continue
            has_all = session.is_read
            self._keep_reported(session)
            with session.pace.lock:
                if has_all and session.is_kept and session.pace.session is session:
                    self._forget_link(session)
                    session.pace.session = None

    def _keep_reported(self, session: ChildLink) -> None:
        """Stores a child's report of itself and of the mounts below it, if the pace allows.

        What is not stored now stays in memory and is tried again, without any cost to the link.
        Called where a commit may take time, never by the polling thread.
        """
        pace = session.pace
        with pace.lock:
            now = self.clock()
            link = session.link
            if session.is_kept or now < pace.due or pace.session is not session or link is None:
                return
            session.is_kept, pace.due = True, now + _KEEP_SECONDS
            try:
                writes = self._reported_writes(session)
                size = sum(len(one.value) for one in writes if isinstance(one, Put))
                pace.due = now + max(_KEEP_SECONDS, size / _KEEP_BYTES_A_SECOND)
                self._store(writes, KeyEquals(link.key, link.value))
            except WriteConflict:
                # Another server has, or had, a newer link of this child, with newer reports. If
                # that link has ended, the child links again, and its reports are stored then.
                session.link = None
                session.end()
            except (KdirError, StoreUnreachable) as error:
                session.is_kept = False
                _log.info("reports of child %s are not stored: %s", session.hello.cluster, error)

    def _reported_writes(self, session: ChildLink) -> tuple[Write, ...]:
        snapshot, hello, now = self._replica.snapshot, session.hello, unix_ms()
        writes = child_state.child_writes(snapshot, hello, now)
        if session.below.has_come:
            rows = session.below.rows
            writes += child_state.below_writes(snapshot, hello.cluster_id, rows, now)
        return writes

    def _store(self, writes: tuple[Write, ...], *guards: Guard) -> None:
        if writes:  # an empty commit would be a revision without a change
            self._writer.put_facts(writes, guards)

    def _heartbeat(self, session: ChildLink, beat: federation_pb2.Heartbeat) -> None:
        changed = beat.topic_count != session.topic_count
        session.topic_count = beat.topic_count
        self.note_contact(session)
        if beat.endpoints and list(beat.endpoints) != list(session.hello.endpoints):
            hello = federation_pb2.Hello()
            hello.CopyFrom(session.hello)
            hello.endpoints[:] = beat.endpoints
            session.hello, session.is_kept = hello, False
        elif changed:
            self.federation.table_changed()

    def _hello_again(self, session: ChildLink, hello: federation_pb2.Hello) -> None:
        """Handles the repeated hello of a child whose feature level was raised."""
        _take_link_fields(hello)
        if hello.cluster_id != session.hello.cluster_id:
            raise InvalidArgument(
                f"link: found a hello of {hello.cluster_id} on the link of "
                f"{session.hello.cluster_id}"
            )
        session.hello, session.is_kept = hello, False

    def forget(self) -> None:
        """Drops the records of clusters that are not mounted here any more.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """
        # Read first: later changes are processed the next time.
        sequence, snapshot = self.federation.view().sequence, self._replica.snapshot
        if sequence == self._forgotten_sequence:
            return
        # Also clusters whose mounts are unreadable.
        mounted = {mount.cluster_id for _, mount in snapshot.mounts()}
        claimed = claimed_cluster_ids(snapshot)
        mounted |= {one for one in claimed if is_mount_unreadable(snapshot, one)}
        self.federation.forget_all_but(mounted)
        with self._lock:
            for cluster_id in self._paces.keys() - mounted - self._sessions.keys():
                del self._paces[cluster_id]
        self._forget_restored_links(snapshot)
        writes = child_state.forget_writes(snapshot, mounted)
        if not writes:
            self._forgotten_sequence = sequence
            return
        try:
            # Fails if an entry changed meanwhile: the reports of a new mount's child must stay.
            for step in parent_state.table_steps(writes, _FORGET_WRITES):
                self._writer.put_facts(step, (UnchangedSince(ENTRY, snapshot.revision),))
        except WriteConflict:
            return  # the next round tries again

    def _forget_restored_links(self, snapshot: Snapshot) -> None:
        """Removes the records of links to this server that it does not hold: a restored store may
        have older records, which would count while this server is alive.
        """
        for key, value in snapshot.facts(LINKED):
            cluster_id = key.removeprefix(LINKED).decode(errors="replace")
            if cluster_id in self._sessions:
                continue
            link = child_state.link_of(snapshot, cluster_id)
            if link is None or link.server_id != self._server_id:
                continue
            with self._lock:
                pace = self._paces.setdefault(cluster_id, _Pace())
            with pace.lock:  # no link of this child begins meanwhile
                is_held = cluster_id in self._sessions
                if not is_held and (pace.session is None or pace.session.is_kept):
                    with suppress(WriteConflict):  # the record is newer than the snapshot
                        self._writer.put_facts((Delete(key),), (KeyEquals(key, value),))

    # -- mounting --------------------------------------------------------------------------------

    def linked_count(self) -> int:
        """Returns the number of children linked to this very server."""
        with self._lock:
            return len(self._sessions)

    def waiting(self) -> list[federation_pb2.PendingChild]:
        """Returns the clusters that tried to link in the last minute and are not admitted."""
        return self._candidates.recent()

    def identify(self, child: str) -> tuple[str, str, tuple[str, ...]]:
        """Returns the child that an operator names, by cluster id or by the name of a pending or
        linked child, as (cluster id, name, endpoints).

        Raises:
            InvalidArgument: no such child has the name, or several have.
        """
        with self._lock:
            linked = [one.hello for one in self._sessions.values()]
        return find_waiting_child(child, [*self._candidates.hellos(), *linked])

    def check_mount(self, path: Path, cluster_id: str) -> None:
        """Checks that a child may be mounted: there is no loop, and the child does not expect
        another mount.

        Raises:
            MountLoop: the child is this cluster, one above it, or mounted elsewhere.
            MountMismatch: the child is pending and expects another mount.
        """
        self._refuse_loop(cluster_id)
        view = self.federation.view()
        for mount, row in view.rows().items():
            # Mounts of this cluster itself are refused by planning, after the check whether this
            # request was answered before.
            if row.row.cluster_id == cluster_id and mount not in view.own:
                raise MountLoop(
                    f"cluster {cluster_id} is mounted at {mount} already; "
                    f"it cannot be at {path} too",
                    mounted_at=mount,
                )
        hello = self._candidates.hello(cluster_id)
        if hello is not None and hello.epoch == 0 and hello.mount != str(path):
            raise MountMismatch(
                f"mount mismatch: the mount would be {path}, child {hello.cluster} ({cluster_id}) "
                f"expects {hello.mount}",
                parent_mount=path,
                child_mount=hello.mount,
            )

    def _refuse_loop(self, cluster_id: str) -> None:
        if cluster_id == self._cluster_id or cluster_id in self._ancestors():
            raise MountLoop(
                f"cluster {cluster_id} is {self.cluster} itself or above it; "
                f"it cannot be mounted below",
                ancestors=" ".join([*self._ancestors(), self._cluster_id]),
            )


def _take_link_fields(hello: federation_pb2.Hello) -> tuple[str, float]:
    """Returns the link group and the heartbeat interval (s) of a hello, and clears them: they are
    valid for one link and not stored.
    """
    fields = hello.link_group, hello.heartbeat_seconds
    hello.link_group, hello.heartbeat_seconds = "", 0.0
    return fields


def _encode_unconfirmed(seconds: float) -> bytes:
    return federation_pb2.LinkResponse(unconfirmed_seconds=seconds).SerializeToString()


_Reported = TypeVar("_Reported", federation_pb2.Welcome, federation_pb2.Inherited)


def _lasting(message: _Reported) -> _Reported:
    """Returns a record without the fields that change with every commit of this cluster or one
    above: their changes alone are not sent to a child.
    """
    copy = type(message)()
    copy.CopyFrom(message)
    copy.revision = 0
    if isinstance(copy, federation_pb2.Inherited):
        copy.ClearField("ancestors")
    return copy
