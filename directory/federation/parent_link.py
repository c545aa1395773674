"""Child's side of the link: one elected server holds a stream to the parent.

The mount and its inherited records are committed to the child's own store, guarded by the election,
before they are used. A new mount is stored in one commit with its inheritance; until both have
arrived nothing changes. The mount table follows, in steps; an invalid row is left out and does not
end the link. The committed facts decide whether the cluster serves.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import grpc
from kdir.v1 import federation_pb2, federation_pb2_grpc

from directory.federation import inheritance, parent_state
from directory.federation.federation_state import FederationState, LocalServer, unix_ms
from directory.federation.inheritance import inherited_change_event
from directory.federation.link_groups import LINK_GROUPS, LinkGroup, LinkGroups, LinkPace
from directory.federation.table_exchange import ReceivedTable
from directory.namespace.keys import PARENT
from directory.namespace.snapshot import Snapshot
from directory.namespace.traversal import first_outgrown
from directory.server.certificates import PeerCredentials
from directory.server.logs import with_log_context
from directory.server.shared_channels import SharedChannel
from directory.store.base import IncompatibleStore, KeyEquals, Put, Store, StoreUnreachable, Write
from directory.store.leader import Leader, LeadershipLost
from directory.store.replica import Replica, ReplicaState
from directory.store.writer import Writer
from resolver.error_status import from_rpc_error
from resolver.errors import (
    KdirError,
    LimitExceeded,
    MountLoop,
    MountMismatch,
    NotReady,
    StoreUnavailable,
    UnknownChild,
)
from resolver.host_port import plain_endpoints
from resolver.path import MAX_PATH_BYTES, MAX_SEGMENTS, Path

__all__ = ["LinkStatus", "ParentLink"]

_log = logging.getLogger(__name__)
_ROLE = "parent-link"
_TABLE_SHARE = 0.5
"""Part of a heartbeat interval for storing the mount table; then other messages are processed."""
_TABLE_WRITES = 500
_FEW_WRITES = 8
"""Part of a transaction's limit of writes that is left for its guards."""
_CONTACT_SECONDS = 60
"""Interval at which the last contact with the parent is stored while the link is open."""
_MOST_SECONDS = 10.0**9
"""Longest time that a parent may report: a float may be larger, or not a number."""
_LOADING_SECONDS = 0.02
"""Interval between checks whether the tree is loaded."""
_Outbox = queue.SimpleQueue[federation_pb2.LinkRequest | None]


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """Status of the link. Seconds are by the monotonic clock."""

    configured: bool
    holder: bool = False
    """True on the elected server."""
    linked: bool = False
    message: str = ""
    contact_age_seconds: float | None = None
    """Time since the parent's last message of any kind."""
    confirmed: bool = False
    """True if the link is open and the parent's own state is confirmed."""
    confirmed_seconds: float | None = None
    """Time since the last message on a link that delivered both the mount and the inherited
    records, plus the time for which the parent's own state was unconfirmed then.
    """
    standby: bool = False
    """True if another server of the cluster is elected."""


class ParentLink:
    """Link to the parent, kept open by a thread of its own."""

    def __init__(
        self,
        federation: FederationState,
        store: Store,
        replica: Replica,
        writer: Writer,
        member: LocalServer,
        clock: Callable[[], float] = time.monotonic,
        dialling: PeerCredentials | None = None,
        groups: LinkGroups = LINK_GROUPS,
    ) -> None:
        self._groups = groups
        self._group: LinkGroup | None = None
        """Group of this link; None: the link shares no heartbeats."""
        self._shared: SharedChannel | None = None
        """Connection of the last link to the parent."""
        # Heartbeat interval of the parent on this link; 0.0: it did not report it.
        self._is_beat_due, self._parent_seconds = False, 0.0
        self._dialling = dialling or PeerCredentials(None)
        self._federation = federation
        self._store = store
        self._replica = replica
        self._writer = writer
        self._member = member
        self._leader = Leader(store, replica, _ROLE, member.server_id)
        self._heartbeat_seconds = member.link_heartbeat_seconds
        self._clock = clock
        self._stop = threading.Event()
        self._news = threading.Event()
        self._call: grpc.Call | None = None
        self._thread = threading.Thread(
            target=with_log_context(self._run), name="parent-link", daemon=True
        )
        self._holder = self._standby = self._linked = False
        # True if the parent's own state was confirmed when it sent its last message.
        self._is_parent_confirmed = False
        # Reason of this link's status; reason why this side ended the call, empty: it did not.
        self._message, self._end_reason = "not tried yet", ""
        self._received_at: float | None = None
        self._waits_since = 0.0
        """Time at which this link began to wait for the parent's next message."""
        self.is_receiving = False
        """True while processing a message: others wait, and the parent does not count as silent."""
        self._confirmed_at: float | None = None
        # Last stored time of a confirmation, and whether later ones were possible; None: none.
        self._stored_contact: tuple[float, bool] | None = None
        self._written = 0
        """Revision of the last commit in this leader term; 0: none yet."""
        self._unsure = False
        """True if it is unknown whether a commit took effect."""
        self._reported: set[bytes] = set()
        """Keys of the records that were received on this link and are stored."""
        self._welcome: federation_pb2.Welcome | None = None
        """Parent's last welcome on this link; None: none yet."""
        self._awaits_inherited = False
        """True while the welcome is not stored: it waits for the inherited records of the mount."""
        self._has_inherited = False
        """True if the inherited records of this mount arrived on this link."""
        self._table = self._new_table()
        """The mount table that came on this link."""
        self._table_is_new = False
        """True if a part of the table is not stored yet."""
        self._reported_refused: tuple[str, ...] = ()
        """Reasons, as last logged, why endpoints that the parent reported are not used."""
        self._attached: bytes | None = None
        """Stored value of ``ATTACHED_KEY`` when this link began; if it changes, the link ends."""
        federation.subscribe(self._news.set)

    def start(self) -> None:
        """Starts the link in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the link and resigns from the role."""
        self._stop.set()
        self._news.set()
        call = self._call
        if call is not None:
            call.cancel()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def status(self) -> LinkStatus:
        """Returns the status of the link."""
        received, confirmed, now = self._received_at, self._confirmed_at, self._clock()
        return LinkStatus(
            configured=True,
            holder=self._holder,
            linked=self._linked,
            message="" if self._linked else self._message,
            contact_age_seconds=None if received is None else now - received,
            confirmed=self._is_confirmed,
            confirmed_seconds=None if confirmed is None else now - confirmed,
            standby=self._standby,
        )

    @property
    def _is_confirmed(self) -> bool:
        return self._linked and self._is_parent_confirmed

    # -- holding the role ------------------------------------------------------------------------

    def _run(self) -> None:
        attempt = -1
        while not self._stop.is_set():
            try:
                if self._take_role():
                    attempt = self._hold_role(attempt)
                    continue
            except Exception:  # noqa: BLE001 - logged, and tried again
                # Without this thread the cluster would be cut off until its server is restarted.
                self._message = "the link to the parent failed by a bug; the log says which"
                _log.exception("the link to the parent failed by a bug; it is tried again")
            # A tree is loaded in a moment; another holder keeps the role for long.
            loading = self._replica.state is ReplicaState.LOADING
            self._stop.wait(_LOADING_SECONDS if loading else self._heartbeat_seconds)

    def _hold_role(self, attempt: int) -> int:
        """Links until the role ends; returns the number of the last attempt."""
        is_new_term = True
        try:
            while self._leader.leads and not (self._unsure or self._stop.is_set()):
                if not self._leader.wait_for_election(self._stop.wait, self._written):
                    self._message = "this server has not seen its own election yet"
                    continue
                if is_new_term:
                    self._forget_older_contact()
                    is_new_term = False
                if self._detached():
                    self._message = self._detached()
                else:
                    attempt += 1
                    self._one_link(attempt)
                self._stop.wait(min(1.0, self._heartbeat_seconds))
        except LeadershipLost:
            _log.warning("another server of this cluster holds the link now")
        finally:
            self._holder = False
            self._leader.resign()
        return attempt

    def _take_role(self) -> bool:
        try:
            # The hello is made from the loaded tree: raises until it is loaded.
            self._federation.view()
            self._holder = self._leader.campaign() is not None
        except (KdirError, StoreUnreachable, IncompatibleStore) as error:
            self._message, self._standby = str(error), False
            return False
        self._written, self._unsure = 0, False
        self._standby = not self._holder
        if self._standby:
            self._message = "another server of this cluster holds the link"
        else:
            self._stored_contact = None
            self._forget_older_contact()
        return self._holder

    def _forget_older_contact(self) -> None:
        """Forgets the last contact of an earlier term of this server, if another server has stored
        a later one since.
        """
        stored = parent_state.parent_contact(self._replica.snapshot)
        at = self._confirmed_at
        if stored is None or (at is not None and self._to_unix_ms(at) >= stored.at_ms):
            return
        self._received_at = self._confirmed_at = None

    def _to_unix_ms(self, at: float) -> int:
        return unix_ms() - int(1000 * (self._clock() - at))

    # -- one link --------------------------------------------------------------------------------

    def _one_link(self, attempt: int) -> None:
        self._reported = set()
        self._welcome, self._awaits_inherited, self._has_inherited = None, False, False
        self._table, self._table_is_new = self._new_table(), False
        self._waits_since, self.is_receiving = self._clock(), False
        self._is_beat_due, self._parent_seconds, self._end_reason = False, 0.0, ""
        self._attached = self._replica.snapshot.fact(parent_state.ATTACHED_KEY)
        endpoint = self._federation.parent_endpoint(attempt)
        outbox: _Outbox = queue.SimpleQueue()
        try:
            with self._dialling.channel(endpoint) as shared:
                hello, self._shared = self._hello(), shared
                hello.link_group = shared.token
                hello.heartbeat_seconds = self._heartbeat_seconds
                outbox.put(federation_pb2.LinkRequest(hello=hello))
                stub = federation_pb2_grpc.FederationServiceStub(shared.channel)
                call = stub.Link(iter(outbox.get, None))
                self._call = call
                sender = threading.Thread(
                    target=self._send_updates,
                    args=(call, outbox, hello),
                    name="parent-link-up",
                    daemon=True,
                )
                sender.start()
                self._receive(call)
                self._message = f"{endpoint} ended the link"
        except grpc.RpcError as error:
            if self._end_reason:
                self._note_failure(endpoint, self._end_reason)
            else:
                failure = from_rpc_error(error, secure=self._dialling.is_secure)
                self._refused(endpoint, failure)
        except LeadershipLost:
            self._message = "another server of this cluster holds the link"
        except (KdirError, StoreUnreachable) as error:
            self._message = str(error)
        except Exception:  # noqa: BLE001 - logged, and tried again
            # Without this thread the cluster would be cut off until its server is restarted.
            self._message = f"the link to {endpoint} failed by a bug; the log says which"
            _log.exception("the link to the parent at %s failed by a bug", endpoint)
        finally:
            if self._linked and not self._stop.is_set():
                _log.warning("the link to the parent at %s is down: %s", endpoint, self._message)
            was_linked, self._linked = self._linked, False
            self._federation.note_parent_lost()
            outbox.put(None)
            group, self._group = self._group, None
            if group is not None:
                self._groups.leave(group, self)
            call_now, self._call = self._call, None
            if call_now is not None:
                call_now.cancel()
            if was_linked:
                self._store_last_contact()  # last: an error of the store leaves nothing open

    def _receive(self, call: Iterable[federation_pb2.LinkResponse]) -> None:
        """Processes the parent's messages until either side ends the link."""
        for response in call:
            received_at = self._received_at = self._clock()
            self.is_receiving = True
            self._note_received()
            self._federation.note_parent_contact()
            was_confirmed = self._is_confirmed
            unconfirmed_seconds = max(0.0, min(response.unconfirmed_seconds, _MOST_SECONDS))
            self._is_parent_confirmed = not unconfirmed_seconds
            self._handle_message(response)
            if self._linked:
                self._confirmed_at = received_at - unconfirmed_seconds
            if self._is_confirmed and not was_confirmed:
                self._federation.changed()  # the links of children send it at once
            self._keep_table()
            self._store_last_contact()
            self._end_link_if_corrupt()
            self._waits_since = self._clock()
            self._note_received()
            self.is_receiving = False
            if self._stop.is_set() or self._detached() or self._attached_again():
                break

    def _end_link_if_corrupt(self) -> None:
        """Ends a link whose stored updates became unreadable: the next link receives them again.

        Raises:
            NotReady: a stored update is unreadable.
        """
        spoiled = self._reported & parent_state.corrupt_keys(self._replica.snapshot)
        if spoiled:
            names = ", ".join(sorted(key.decode() for key in spoiled))
            raise NotReady(f"unreadable rows {names}; requesting them from the parent again")

    def _store_last_contact(self) -> None:
        """Stores the parent's last confirmation: periodically, and when there will be no later one,
        since the link is lost or the parent's own state is unconfirmed.
        """
        at, is_confirmed = self._confirmed_at, self._is_confirmed
        if at is None or self._awaits_inherited:
            return
        if self._stored_contact is not None:
            stored_at, was_confirmed = self._stored_contact
            if is_confirmed == was_confirmed and abs(at - stored_at) < _CONTACT_SECONDS:
                return
        self._stored_contact = (at, is_confirmed)
        at_ms = self._to_unix_ms(at)
        try:
            self._commit((parent_state.parent_contact_write(at_ms, linked=is_confirmed),))
        except (KdirError, StoreUnreachable) as error:
            _log.info("the time of the parent's last contact was not stored: %s", error)

    def _hello(self) -> federation_pb2.Hello:
        position = self._federation.view().position
        snapshot = self._replica.snapshot
        # An unmounted cluster, too, sends its last mount; when it is mounted again, the parent's
        # counts. Only a cluster that was never mounted sends the mount of its config, which must
        # match the parent's.
        return federation_pb2.Hello(
            cluster_id=self._member.cluster_id,
            cluster=self._member.cluster,
            mount=str(position.mount),
            epoch=position.epoch,
            endpoints=self._member.endpoints(),
            feature_level=self._member.feature_level(),
            incarnation=snapshot.incarnation,
            topic_count=snapshot.topic_count,
            kafka=self._member.kafka_claim(),
        )

    def _send_updates(self, call: grpc.Call, outbox: _Outbox, hello: federation_pb2.Hello) -> None:
        """Sends the mounts below at each change, another hello if the cluster's feature level or
        Kafka claim changed, and heartbeats when idle. Ends the link if the parent is silent.
        """
        version = 0
        group: LinkGroup | None = None
        parent_seconds = 0.0
        pace = LinkPace(self._heartbeat_seconds, group)
        claim = hello.kafka if hello.HasField("kafka") else None
        reported_self = hello.feature_level, claim
        while call.is_active() and not self._stop.is_set():
            self._news.clear()
            if self._detached() or self._attached_again():
                self._end_call(call, self._detached() or "the cluster was attached again")
                return
            itself = self._member.feature_level(), self._member.kafka_claim()
            if self._linked and reported_self != itself:
                reported_self = itself
                outbox.put(federation_pb2.LinkRequest(hello=self._hello()))
            marked = self._federation.sent_up.marked  # before the table is read
            tables: Sequence[federation_pb2.LinkRequest] = ()
            if (welcome := self._welcome) is not None and self._may_report_mounts(welcome):
                version, tables = self._federation.sent_up.messages_since(version)
            if tables:
                for one in tables:
                    outbox.put(one)
            elif self._welcome is not None:
                beat = federation_pb2.Heartbeat(
                    topic_count=self._replica.snapshot.topic_count,
                    endpoints=self._member.endpoints(),
                    revision=self._replica.snapshot.revision,
                )
                outbox.put(federation_pb2.LinkRequest(heartbeat=beat))
            self._is_beat_due = False
            if group is not self._group or parent_seconds != self._parent_seconds:
                group, parent_seconds = self._group, self._parent_seconds
                most = self._member.grants_max_age_seconds
                pace = LinkPace(self._heartbeat_seconds, group, parent_seconds, most)
            pace.note_sent(marked)
            if group is not None:
                group.note_sent()
            is_receiving = self.is_receiving  # read first: cleared last
            silent = self._clock() - self._waits_since
            if not is_receiving and silent > pace.silent_seconds:
                self.end()
                return
            self._news.wait(pace.seconds)

    # -- heartbeats that are shared with other links ---------------------------------------------

    def beat(self) -> bool:
        """Requests a heartbeat; returns False if the previous one is not sent yet."""
        if self._is_beat_due:
            return False
        self._is_beat_due = True
        self._news.set()
        return True

    def end(self) -> None:
        """Ends the link, since the parent is silent; the next one gets another connection, even if
        links of other clusters still use this one.
        """
        shared, call = self._shared, self._call
        if shared is not None and call is not None:
            shared.is_retired = True
            self._end_call(call, "the parent has been silent for too long")

    def _end_call(self, call: grpc.Call, reason: str) -> None:
        if call is self._call:
            self._end_reason = reason
        call.cancel()

    def _note_received(self) -> None:
        group = self._group
        if group is not None:
            group.note_received()

    def _may_report_mounts(self, welcome: federation_pb2.Welcome) -> bool:
        """True if parent and child have the same mount, so that the paths below it agree."""
        return welcome.mount == str(self._federation.mount)

    def _handle_message(self, response: federation_pb2.LinkResponse) -> None:
        if not self._leader.has_reached_election(self._written):
            raise NotReady("this server has not seen yet what the previous link stored")
        snapshot = self._replica.snapshot
        match response.WhichOneof("kind"):
            case "welcome":
                self._join_group(response.welcome)
                self._on_welcome(response.welcome)
            case "remounted":
                self._on_welcome(response.remounted)
            case "mount_table":
                self._receive_table(response.mount_table)
            case "inherited":
                self._inherit(response.inherited, snapshot)
            case "unmounted":
                self._unmounted(response.unmounted.message)
            case _:
                pass

    def _join_group(self, welcome: federation_pb2.Welcome) -> None:
        """Takes the parent's heartbeat interval, and joins the link group if the parent shares
        heartbeats.
        """
        # Valid for this link only: not stored.
        token, self._parent_seconds = welcome.link_group, welcome.heartbeat_seconds
        welcome.ClearField("link_group")
        welcome.ClearField("heartbeat_seconds")
        if token and self._group is None and self._shared is not None:
            key = (self._shared.token, token)
            self._group = self._groups.join(
                key,
                self,
                self._heartbeat_seconds,
                self._parent_seconds,
                self._member.grants_max_age_seconds,
            )

    def _on_welcome(self, welcome: federation_pb2.Welcome) -> None:
        own_id = self._member.cluster_id
        mount, above = Path.parse(welcome.mount), Path.parse(welcome.parent_mount)
        if mount == above or not above.is_prefix_of(mount):
            # Refused even from a wrong parent: once stored, it would be used at each start.
            raise MountMismatch(
                f"the parent {welcome.parent_cluster} is mounted at {above} itself and "
                f"mounts this cluster at {mount}, which is not below",
                parent_mount=mount,
                child_mount=self._federation.mount,
            )
        if own_id in welcome.ancestor_cluster_ids:
            chain = " → ".join(welcome.ancestor_cluster_ids)
            raise MountLoop(f"the parent is mounted below this cluster: {chain} → {own_id}")
        self._refuse_too_deep(welcome.parent_cluster, mount)
        snapshot = self._replica.snapshot
        self._refuse_reported(welcome)
        self._welcome = welcome
        if parent_state.is_kept(snapshot, welcome):
            self._awaits_inherited = False
            writes = parent_state.welcome_writes(snapshot, welcome, unix_ms())
            writes += parent_state.parent_config_writes(
                snapshot, self._federation.configured_parent
            )
            self._commit(writes)
            self._reported.add(PARENT)
            if self._has_inherited:
                self._confirmed(welcome)
            else:
                # Not linked yet: the inherited records may have changed since they were stored.
                self._message = (
                    f"the parent {welcome.parent_cluster} mounts this cluster at {mount}, as "
                    f"before, and has not sent yet what is inherited there"
                )
                self._news.set()
            return
        self._awaits_inherited, self._linked, self._has_inherited = True, False, False
        self._message = (
            f"the parent {welcome.parent_cluster} mounts this cluster at {mount}, and has not sent "
            f"yet what is inherited there"
        )
        self._news.set()

    def _refuse_too_deep(self, parent: str, mount: Path) -> None:
        """Checks that each entry of this tree keeps a valid path at a new mount of this cluster.
        Ignores entries without one now: because of them, the cluster would never link again.

        Raises:
            MountMismatch: names an entry that would have no valid path.
        """
        here, snapshot = self._federation.mount, self._replica.snapshot
        outgrown = first_outgrown(snapshot, snapshot.root, here, mount)
        if outgrown is not None:
            raise MountMismatch(
                f"the parent {parent} mounts this cluster at {mount}, where {outgrown} has no "
                f"valid path (at most {MAX_SEGMENTS} segments and {MAX_PATH_BYTES} bytes are "
                f"allowed); move that entry or this cluster's mount to a shorter path: kdir mv",
                parent_mount=mount,
                child_mount=here,
            )

    def _refuse_reported(self, welcome: federation_pb2.Welcome) -> None:
        """Removes malformed, repeated and excess endpoints of the parent from a welcome, and logs
        which of its endpoints are not used.
        """
        _, refused = self._federation.reported_parents(welcome)
        plain = plain_endpoints(welcome.parent_endpoints)
        if len(plain) < len(welcome.parent_endpoints):
            count = len(welcome.parent_endpoints) - len(plain)
            refused += (f"{count} that are no host:port, repeated, or too many",)
            welcome.parent_endpoints[:] = plain
        if refused and refused != self._reported_refused:
            _log.warning("endpoints reported by the parent are not used: %s", "; ".join(refused))
        self._reported_refused = refused

    def _confirmed(self, welcome: federation_pb2.Welcome) -> None:
        """Records that the mount and its inherited records arrived on this link and are stored."""
        self._reported.add(PARENT)
        if not self._linked:
            _log.info(
                "linked to parent %s at %s, mounted at %s, epoch %d",
                welcome.parent_cluster,
                welcome.parent_mount,
                welcome.mount,
                welcome.epoch,
            )
        self._linked = True
        self._news.set()

    def _inherit(self, inherited: federation_pb2.Inherited, snapshot: Snapshot) -> None:
        """Stores inherited records; together with the welcome, in one commit, if that is not stored
        yet.
        """
        welcome = self._welcome
        if welcome is None:
            raise NotReady("the parent sent what is inherited before it agreed to a mount")
        if (inherited.mount, inherited.epoch) != (welcome.mount, welcome.epoch):
            raise NotReady(
                f"the parent mounts this cluster at {welcome.mount}, epoch {welcome.epoch}, and "
                f"sent what is inherited at {inherited.mount}, epoch {inherited.epoch}"
            )
        now = unix_ms()
        writes = inheritance.inherited_writes(snapshot, inherited, now)
        if writes and inheritance.is_other(snapshot, inherited):
            mount, keys = Path.parse(welcome.mount), self._replica.event_keys
            writes += (inherited_change_event(snapshot, mount, inherited, keys, now),)
        writes += parent_state.first_receipt_writes(snapshot)
        if self._awaits_inherited:
            # Checked again: since the welcome, a mount may have been made in this tree.
            self._refuse_too_deep(welcome.parent_cluster, Path.parse(welcome.mount))
            writes += parent_state.welcome_writes(snapshot, welcome, now)
            writes += parent_state.parent_config_writes(
                snapshot, self._federation.configured_parent
            )
        self._commit(writes)
        self._reported.add(parent_state.INHERITED_KEY)
        self._awaits_inherited, self._has_inherited = False, True
        self._confirmed(welcome)

    # -- the mount table -------------------------------------------------------------------------

    def _new_table(self) -> ReceivedTable:
        bounds = self._federation.bounds
        return ReceivedTable(
            lambda _: True,
            most_rows=bounds.table_mounts,
            most_bytes=bounds.table_bytes,
            most_endpoints=bounds.mount_endpoints,
        )

    def _receive_table(self, message: federation_pb2.MountTable) -> None:
        table = self._table
        left_out = table.left_out
        if table.receive(message, unix_ms()):
            self._table_is_new = True
        if table.left_out and table.left_out != left_out:
            why = table.why_left_out
            _log.warning("%d rows of the mount table are not kept: %s", table.left_out, why)

    def _keep_table(self) -> None:
        """Stores the mount table in steps, for a limited time; continues after the next message.
        Starts only when the mount and its inherited records are stored, and delays newer ones only
        briefly.
        """
        if not (self._table_is_new and self._linked):
            return
        self._federation.receive_mount_table(self._table.rows)
        until = self._clock() + _TABLE_SHARE * self._heartbeat_seconds
        most = min(_TABLE_WRITES, self._store.limits.max_writes - _FEW_WRITES)
        writes = parent_state.table_writes(self._replica.snapshot, self._table.rows)
        for step in parent_state.table_steps(writes, most):
            if not self._leader.has_reached_election(self._written) or self._clock() > until:
                return
            try:
                self._commit(step)
            except LimitExceeded as error:
                _log.warning("a part of the mount table is not stored: %s", error)
                if error.metadata.get("limit") == "store":
                    return  # the store is full: tried again after the next message
        self._table_is_new = False

    def _unmounted(self, message: str) -> None:
        _log.warning("unmounted: %s", message)
        writes: tuple[Write, ...] = (Put(parent_state.UNMOUNTED_KEY, message.encode()),)
        self._commit(writes)
        raise UnknownChild(message)

    def _note_failure(self, endpoint: str, reason: str) -> None:
        changed, self._message = self._message != reason, reason
        if changed and not self._stop.is_set():
            _log.warning("no link to the parent at %s: %s", endpoint, reason)

    def _refused(self, endpoint: str, error: KdirError) -> None:
        self._note_failure(endpoint, str(error))
        position = self._federation.view().position
        parent = position.parent
        if (
            isinstance(error, UnknownChild)
            and parent is not None
            and not position.unmounted
            and error.metadata.get("parent_cluster_id") == parent.parent_cluster_id
        ):
            # The parent that confirmed the mount has none now: it was removed while disconnected.
            writes: tuple[Write, ...] = (Put(parent_state.UNMOUNTED_KEY, error.message.encode()),)
            try:
                self._commit(writes)
            except (KdirError, StoreUnreachable) as failure:
                _log.warning("cannot record that this cluster is unmounted: %s", failure)

    def _detached(self) -> str:
        return parent_state.detached_of(self._replica.snapshot)

    def _attached_again(self) -> bool:
        return self._replica.snapshot.fact(parent_state.ATTACHED_KEY) != self._attached

    def _commit(self, writes: tuple[Write, ...]) -> None:
        # A message from before a detach must not change stored records, nor count as the parent's
        # first update if the cluster was attached again before any server noticed.
        attached = (
            KeyEquals(parent_state.DETACHED_KEY, None),
            KeyEquals(parent_state.ATTACHED_KEY, self._attached),
        )
        if not writes:
            return
        try:
            self._written = self._writer.put_facts(writes, guards=(self._leader.guard, *attached))
        except StoreUnavailable:
            # It may have been committed. Once this server is elected again, the replica has it.
            self._unsure = True
            raise
