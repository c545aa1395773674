"""The parent's side of the links: admits children, hands down the table, receives their updates.

What a child reports of itself and of the mounts below it costs its own link some time, and a commit
now and then: too many or wrong rows are left out, and what cannot be kept is tried again later.

Refuses a child that no mount names, or that disagrees about where it hangs: both values are in the
message, and the child is kept among the *waiting* for ``kdir mounts`` to show.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

import grpc
from kdir.v1 import federation_pb2

from directory.federation import child_state, parent_state
from directory.federation.child_state import WaitingChildren, find_waiting_child
from directory.federation.federation_state import (
    FederationState,
    FederationView,
    LocalServer,
    unix_ms,
)
from directory.federation.inherited_levels import levels_at_mount
from directory.federation.inherited_records import refuse_oversized
from directory.federation.link_groups import LINK_GROUPS, LinkGroup, LinkGroups, LinkPace
from directory.federation.table_exchange import ReceivedTable
from directory.namespace.entry import Mount
from directory.namespace.keys import ENTRY
from directory.namespace.mounted import mounted_at
from directory.namespace.snapshot import Snapshot
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
    UnknownChild,
    WriteConflict,
)
from resolver.path import Path

__all__ = ["ChildLinks"]

_log = logging.getLogger(__name__)

_KEEP_SECONDS = 1.0
"""What one child reports is kept once in this time at most."""
_KEEP_BYTES_A_SECOND = 64 * 1024
"""And no more of it than this, over all its links: large tables are kept more rarely."""
_READER_SHARE = 0.1
"""The part of the time in which one child's mounts below are read: no child takes a processor."""


@dataclass(slots=True)
class _Pace:
    """When what one child reports may be kept, over all its links."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    due: float = -inf
    session: _Session | None = None
    """Its last link of which not all that came is kept yet; None: all of all links is."""


@dataclass(slots=True, eq=False)
class _Session:
    hello: federation_pb2.Hello
    received_at: float
    """When the last message came, or what it brought was dealt with."""
    below: ReceivedTable
    pace: _Pace
    topic_count: int = 0
    is_receiving: bool = False
    """Whether a message is dealt with: until then others wait, and the child is not silent."""
    news: threading.Event = field(default_factory=threading.Event)
    ended: bool = False
    link: Put | None = None
    """What the store has of it."""
    is_read: bool = False
    """Whether all messages are dealt with, and no more come."""
    is_kept: bool = True
    """Whether the store has all that the child reported."""
    is_beat_due: bool = False
    group: LinkGroup | None = None
    """None: the link has heartbeats of its own."""

    def beat(self) -> bool:
        """Has the link's thread send a heartbeat; False where it has not sent the one before."""
        if self.is_beat_due:
            return False
        self.is_beat_due = True
        self.news.set()
        return True

    def end(self) -> None:
        """Has the link's thread end it."""
        self.ended = True
        self.news.set()

    def sent(self) -> None:
        """Records that a message was sent."""
        self.is_beat_due = False
        if self.group is not None:
            self.group.note_sent()

    def received(self, at: float) -> None:
        """Records that a message came, or was dealt with."""
        self.received_at = at
        if self.group is not None:
            self.group.note_received()


class ChildLinks:
    """The children of one cluster, as this server receives their updates."""

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
        self._link_group = secrets.token_hex(16)
        self._federation = federation
        self._replica = replica
        self._writer = writer
        self._cluster_id = member.cluster_id
        self._cluster = member.cluster
        self._endpoints = member.endpoints
        self._server_id = member.server_id
        self._heartbeat_seconds = member.link_heartbeat_seconds
        self._kafka_claim = member.kafka_claim
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        self._paces: dict[str, _Pace] = {}
        self._candidates = WaitingChildren(clock)
        self._stopping = False
        federation.subscribe(self._news)

    def stop(self) -> None:
        """Ends all links."""
        self._stopping = True
        self._news()

    def _news(self) -> None:
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.news.set()

    # -- one link --------------------------------------------------------------------------------

    def serve(
        self,
        hello: federation_pb2.Hello,
        requests: Iterator[federation_pb2.LinkRequest],
    ) -> Iterator[federation_pb2.LinkResponse]:
        """Holds one child's link, after its hello, until either side ends it.

        Raises:
            UnknownChild, MountMismatch, MountLoop, NotReady
        """
        try:
            welcome = self._admit_child(hello)
        except KdirError as error:
            self._candidates.remember(hello, error)
            raise
        token, hello.link_group = hello.link_group, ""  # it is of this link: it is not kept
        session = self._session(hello)
        try:
            self._begin(session)
            if token:
                key = (self._link_group, token)
                session.group = self._groups.join(key, session, self._heartbeat_seconds)
            reader = threading.Thread(
                target=self._receive_updates,
                args=(session, requests),
                name=f"link-{hello.cluster}",
                daemon=True,
            )
            reader.start()
            yield from self._send_updates(session, welcome)
        except LimitExceeded as error:
            self._candidates.remember(session.hello, error)
            raise
        finally:
            self._end(session)

    def _admit_child(self, hello: federation_pb2.Hello) -> federation_pb2.Welcome:
        view = self._federation.view()
        self._refuse_loop(hello.cluster_id)
        found = view.mounts.get(hello.cluster_id)
        if found is None:
            raise UnknownChild(
                f"no mount of cluster {self._cluster} ({self._cluster_id}) names cluster "
                f"{hello.cluster} ({hello.cluster_id}); to mount it: "
                f"kdir mount {hello.mount} --child {hello.cluster_id}",
                child=hello.cluster_id,
                child_mount=hello.mount,
                parent_cluster_id=self._cluster_id,
            )
        path, mount = found
        # It may have moved since it was mounted, and its child was not linked then.
        agreed = (str(path), mounted_at(view.snapshot, mount))
        if hello.epoch == 0 and hello.mount not in agreed:
            raise MountMismatch(
                f"mount mismatch: parent {self._cluster} has {hello.cluster_id} at {path}, "
                f"child {hello.cluster} expects {hello.mount}",
                parent_mount=path,
                child_mount=hello.mount,
            )
        return self._welcome(view, path, mount)

    def _welcome(self, view: FederationView, path: Path, mount: Mount) -> federation_pb2.Welcome:
        parent = view.position.parent
        ancestors = parent.ancestor_cluster_ids if parent else ()
        return federation_pb2.Welcome(
            mount=str(path),
            epoch=mount.epoch,
            parent_cluster_id=self._cluster_id,
            parent_cluster=self._cluster,
            parent_mount=str(view.position.mount),
            ancestor_cluster_ids=[*ancestors, self._cluster_id],
            parent_endpoints=self._endpoints(),
            incarnation=view.snapshot.incarnation,
            revision=view.snapshot.revision,
            kafka_above=self._kafka_above(parent),
        )

    def _kafka_above(
        self, parent: federation_pb2.Welcome | None
    ) -> list[federation_pb2.KafkaClaim]:
        own = self._kafka_claim()
        return [*(parent.kafka_above if parent else ()), *((own,) if own is not None else ())]

    def _ancestors(self) -> list[str]:
        parent = self._federation.view().position.parent
        return list(parent.ancestor_cluster_ids) if parent else []

    def _begin(self, session: _Session) -> None:
        hello = session.hello
        with self._lock:
            before = self._sessions.get(hello.cluster_id)
            self._sessions[hello.cluster_id] = session
        self._candidates.forget(hello.cluster_id)
        if before is not None:
            before.ended = True
            before.news.set()
        self._federation.note_child_contact(hello.cluster_id, hello.topic_count, linked=True)
        link = child_state.link_write(hello.cluster_id, self._server_id, hello.topic_count)
        with session.pace.lock:
            self._store((link, *child_state.child_writes(self._replica.snapshot, hello, unix_ms())))
            # Only now: where this was not committed, what the link before reported is kept yet.
            session.link, session.pace.session = link, session
        self._federation.table_changed()

    def _end(self, session: _Session) -> None:
        session.ended = True
        if session.group is not None:
            self._groups.leave(session.group, session)
        with self._lock:
            current = self._sessions.get(session.hello.cluster_id)
            if current is not session:
                return
            del self._sessions[session.hello.cluster_id]
        self._federation.note_child_contact(
            session.hello.cluster_id, session.topic_count, linked=False
        )
        with session.pace.lock:
            if session.is_kept:  # else its row stays until what it reported is kept
                self._forget_link(session)
        self._federation.table_changed()

    def _forget_link(self, session: _Session) -> None:
        link = session.link
        if link is not None:
            try:
                self._writer.put_facts((Delete(link.key),), (KeyEquals(link.key, link.value),))
            except (KdirError, StoreUnreachable) as error:
                # Another server has the link by now; or the store is away, and this one will be
                # received again, or be gone.
                _log.debug("the link of child %s is not forgotten: %s", link.key, error)

    def _send_updates(
        self, session: _Session, welcome: federation_pb2.Welcome
    ) -> Iterator[federation_pb2.LinkResponse]:
        """Yields what goes down: welcome, what is inherited, and the table, each again when it
        changed. The mount and what is inherited there are of one revision, and after each welcome
        both come. The table is never of a tree in which more changed than was reported to the link.
        """
        pace = LinkPace(self._heartbeat_seconds, session.group)
        first = federation_pb2.LinkResponse(welcome=welcome)
        first.welcome.link_group = "" if session.group is None else self._link_group
        yield first
        sent_at = self._clock()
        table_version = 0
        reported_inherited: federation_pb2.Inherited | None = None
        looked = 0
        seen: FederationView | None = None
        while not session.ended and not self._stopping:
            session.news.clear()
            view = self._federation.view()
            found = view.mounts.get(session.hello.cluster_id)
            if found is None:
                message = f"{self._cluster} no longer mounts {session.hello.cluster_id}"
                yield federation_pb2.LinkResponse(
                    unmounted=federation_pb2.Unmounted(message=message)
                )
                return
            responses: list[federation_pb2.LinkResponse] = []
            if view is not seen:  # each commit makes another
                seen, fresh = view, self._welcome(view, *found)
                if _lasting(fresh) != _lasting(welcome):
                    welcome = fresh
                    responses.append(federation_pb2.LinkResponse(remounted=fresh))
            if view.handed_sequence != looked and self._knows_what_is_above(view.snapshot):
                looked = view.handed_sequence
                inherited = self._inherited(view, *found)
                lasting = _lasting(inherited)
                if lasting != reported_inherited:
                    refuse_oversized(inherited)
                    reported_inherited = lasting
                    responses.append(federation_pb2.LinkResponse(inherited=inherited))
            marked = self._federation.sent_down.marked  # before the table is looked at
            version, tables = self._federation.sent_down.messages_since(table_version)
            if self._federation.view().handed_sequence == view.handed_sequence:
                table_version = version
                responses.extend(federation_pb2.LinkResponse(mount_table=one) for one in tables)
            else:
                session.news.set()  # the table may be newer than what is inherited: after that
            is_due = session.is_beat_due or self._clock() - sent_at >= pace.seconds
            if not responses and is_due:
                beat = federation_pb2.Heartbeat(revision=self._replica.snapshot.revision)
                responses.append(federation_pb2.LinkResponse(heartbeat=beat))
            for response in responses:
                yield response
                sent_at = self._clock()
                session.sent()
            if responses:
                pace.note_sent(marked)
            session.news.wait(max(0.0, sent_at + pace.seconds - self._clock()))
            if self._is_silent(session, pace.silent_seconds):
                return

    def _is_silent(self, session: _Session, seconds: float) -> bool:
        is_receiving = session.is_receiving  # before the time since it was
        silent = self._clock() - session.received_at
        return not is_receiving and silent > seconds

    def _knows_what_is_above(self, snapshot: Snapshot) -> bool:
        """True if what is handed down is all of it: not loaded is not nothing (A3)."""
        above = self._federation.parent_endpoints
        return (
            parent_state.is_inherited_readable(snapshot)
            if above
            else not parent_state.is_inherited_corrupt(snapshot)
        )

    def _inherited(
        self, view: FederationView, mount_path: Path, mount: Mount
    ) -> federation_pb2.Inherited:
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

    def _receive_updates(
        self, session: _Session, requests: Iterator[federation_pb2.LinkRequest]
    ) -> None:
        """What comes up, until the child hangs up or says something that cannot be kept."""
        try:
            for request in requests:
                session.is_receiving = True
                session.received(self._clock())
                if request.HasField("mounts_below"):
                    self._receive_below(session, request.mounts_below)
                elif request.HasField("heartbeat"):
                    self._heartbeat(session, request.heartbeat)
                elif request.HasField("hello"):
                    self._hello_again(session, request.hello)
                self._keep_reported(session)
                session.received(self._clock())
                session.is_receiving = False
        except (grpc.RpcError, KdirError, StoreUnreachable) as error:
            # The stream broke, or what it sent cannot be kept: the child will link again.
            _log.info("the link of child %s ends: %r", session.hello.cluster, error)
        finally:
            session.ended = session.is_read = True
            session.news.set()

    def _session(self, hello: federation_pb2.Hello) -> _Session:
        def is_below(path: Path) -> bool:
            # A child reports what is below it and nothing else: its record of another's mount
            # would be handed down to everybody as ours (R5).
            found = self._federation.view().mounts.get(hello.cluster_id)
            return found is not None and found[0].is_prefix_of(path) and path != found[0]

        bounds = self._federation.bounds
        below = ReceivedTable(
            is_below,
            most_rows=bounds.child_mounts,
            most_bytes=bounds.child_mount_bytes,
            most_endpoints=bounds.mount_endpoints,
        )
        with self._lock:
            pace = self._paces.setdefault(hello.cluster_id, _Pace())
        return _Session(hello, self._clock(), below, pace, hello.topic_count)

    def _receive_below(self, session: _Session, table: federation_pb2.MountTable) -> None:
        """Takes the mounts below a child, as far as they may be there."""
        began = time.monotonic()
        left_out = session.below.left_out
        if session.below.receive(table, unix_ms()):
            self._federation.receive_mounts_below(session.hello.cluster_id, session.below.rows)
            self._federation.table_changed()
            session.is_kept = False
        if session.below.left_out and session.below.left_out != left_out:
            _log.warning(
                "child %s reported %d mounts that are not kept: %s",
                session.hello.cluster,
                session.below.left_out,
                session.below.why_left_out,
            )
        taken = time.monotonic() - began
        # Not for longer than a heartbeat: what it sent meanwhile waits, and it is not silent.
        time.sleep(min(self._heartbeat_seconds, taken * (1 / _READER_SHARE - 1)))

    def keep_reported(self) -> None:
        """Keeps what children reported last and what was not kept when it came: also of those whose
        link has ended since.
        """
        with self._lock:
            sessions = [one.session for one in self._paces.values() if one.session is not None]
        for session in sessions:
            has_all = session.is_read
            self._keep_reported(session)
            with session.pace.lock:
                if has_all and session.is_kept and session.pace.session is session:
                    self._forget_link(session)
                    session.pace.session = None

    def _keep_reported(self, session: _Session) -> None:
        """Keeps what a child reported of itself and of the mounts below it, if the pace lets it.

        What is not kept now stays in memory, and is tried again: it costs no link. Called where a
        commit may take its time, never by who sends heartbeats.
        """
        pace = session.pace
        with pace.lock:
            now = self._clock()
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
                # Another server has the link, or had it since: what came over that is newer.
                session.link = None
            except (KdirError, StoreUnreachable) as error:
                session.is_kept = False
                _log.info("not kept what child %s reported: %s", session.hello.cluster, error)

    def _reported_writes(self, session: _Session) -> tuple[Write, ...]:
        snapshot, hello, now = self._replica.snapshot, session.hello, unix_ms()
        writes = child_state.child_writes(snapshot, hello, now)
        if session.below.has_come:
            rows = session.below.rows
            writes += child_state.below_writes(snapshot, hello.cluster_id, rows, now)
        return writes

    def _store(self, writes: tuple[Write, ...], *guards: Guard) -> None:
        if writes:  # a transaction of nothing would be a revision of nothing
            self._writer.put_facts(writes, guards)

    def _heartbeat(self, session: _Session, beat: federation_pb2.Heartbeat) -> None:
        changed = beat.topic_count != session.topic_count
        session.topic_count = beat.topic_count
        self._federation.note_child_contact(session.hello.cluster_id, beat.topic_count, linked=True)
        if beat.endpoints and list(beat.endpoints) != list(session.hello.endpoints):
            hello = federation_pb2.Hello()
            hello.CopyFrom(session.hello)
            hello.endpoints[:] = beat.endpoints
            session.hello, session.is_kept = hello, False
        elif changed:
            self._federation.table_changed()

    def _hello_again(self, session: _Session, hello: federation_pb2.Hello) -> None:
        """A child whose level was raised sends its hello again."""
        hello.link_group = ""
        if hello.cluster_id != session.hello.cluster_id:
            raise InvalidArgument(
                f"link: found a hello of {hello.cluster_id} on the link of "
                f"{session.hello.cluster_id}"
            )
        session.hello, session.is_kept = hello, False

    def forget(self) -> None:
        """Drops what is kept of clusters that are mounted here no more.

        Raises:
            StoreUnavailable
        """
        snapshot = self._replica.snapshot
        mounted = {mount.cluster_id for _, mount in snapshot.mounts()}
        self._federation.forget_all_but(mounted)
        with self._lock:
            for cluster_id in self._paces.keys() - mounted - self._sessions.keys():
                del self._paces[cluster_id]
        writes = child_state.forget_writes(snapshot, mounted)
        if not writes:
            return
        try:
            # Not where something was mounted meanwhile: what its child reported is not to be lost.
            self._writer.put_facts(writes, (UnchangedSince(ENTRY, snapshot.revision),))
        except WriteConflict:
            return  # the next round looks again

    # -- mounting --------------------------------------------------------------------------------

    def linked_count(self) -> int:
        """Returns how many children are linked to this very server."""
        with self._lock:
            return len(self._sessions)

    def waiting(self) -> list[federation_pb2.PendingChild]:
        """Returns the clusters that asked to be linked in the last minute, and may not."""
        return self._candidates.recent()

    def identify(self, child: str) -> tuple[str, str, tuple[str, ...]]:
        """Returns the child that an operator means, by cluster id or by the name of a waiting one,
        as (cluster id, name, endpoints).

        Raises:
            InvalidArgument: a name that none, or more than one, of the waiting has.
        """
        with self._lock:
            linked = [one.hello for one in self._sessions.values()]
        return find_waiting_child(child, [*self._candidates.hellos(), *linked])

    def check_mount(self, path: Path, cluster_id: str) -> None:
        """Checks that a child may be mounted: there is no loop, and the child does not disagree.

        Raises:
            MountLoop: it is this cluster, one above it, or mounted elsewhere.
            MountMismatch: a child that waits believes to be mounted elsewhere.
        """
        self._refuse_loop(cluster_id)
        view = self._federation.view()
        for mount, row in view.rows().items():
            # Those of this cluster are planning's to refuse, once it has looked whether this very
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
                f"cluster {cluster_id} is {self._cluster} itself or above it; "
                f"it cannot be mounted below",
                ancestors=" ".join([*self._ancestors(), self._cluster_id]),
            )


_Reported = TypeVar("_Reported", federation_pb2.Welcome, federation_pb2.Inherited)


def _lasting(message: _Reported) -> _Reported:
    """Without what moves with every change of this cluster and of those above: that alone is no
    news for a child.
    """
    copy = type(message)()
    copy.CopyFrom(message)
    copy.revision = 0
    if isinstance(copy, federation_pb2.Inherited):
        copy.ClearField("ancestors")
    return copy
