"""One cluster of a directory server: assembles store, replica, writer, federation and Kafka.

It does not depend on gRPC servers: the services are in ``api/``, and one process may host several
clusters.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isinf
from typing import TYPE_CHECKING, Any, Final

from kdir.v1 import entry_pb2, federation_pb2, resolve_pb2

from directory.access.authorizer import Authorizer
from directory.access.compiled_grants import AccessMode
from directory.change_log.log_state import published_revision, refuse_full_outbox
from directory.federation import inheritance, parent_state
from directory.federation.child_links import ChildLinks
from directory.federation.federation_state import FederationState, LocalServer, unix_ms
from directory.federation.inheritance import refuse_oversized_inheritance
from directory.federation.kafka_claims import manager_before, why_unmanaged
from directory.federation.parent_link import LinkStatus, ParentLink
from directory.kafka.adoption.pinned_kafka import NOT_KNOWN, PinnedKafka
from directory.maintenance.reaper import Reaper
from directory.maintenance.retention import RetentionLimits, RetentionTrimmer
from directory.maintenance.watch_history import ChangeHistory
from directory.namespace.entry import PolicyLevel
from directory.namespace.snapshot import Snapshot
from directory.server.access_history import AccessHistory
from directory.server.certificates import PeerCredentials
from directory.server.config import ServerConfig
from directory.server.feature_levels import LEVELS, Levels
from directory.server.logs import with_log_context
from directory.server.membership import Membership, check_level_at_startup
from directory.server.metrics.instrumentation import MeasuredStore
from directory.store.addresses import open_store
from directory.store.base import IncompatibleStore, Store, StoreUnreachable
from directory.store.replica import Replica, ReplicaState
from directory.store.writer import Writer
from directory.wire.entry_codec import ProtoCodec
from resolver.errors import KdirError, NotReady, Unmounted
from resolver.path import Path
from resolver.revision_token import Token

if TYPE_CHECKING:
    from directory.change_log.publisher import ChangeLogPublisher
    from directory.kafka.admin_client import ConfluentAdmin
    from directory.kafka.reconciler import Reconciler

__all__ = ["Cluster"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _OwnFacts:
    """Stored facts about the cluster itself; read once for all trees with the same facts."""

    facts: object
    position: parent_state.Position
    held: PinnedKafka
    above: tuple[PolicyLevel, ...] | None
    """Policies of the ancestors above the mount; None if they cannot be read."""
    authority: resolve_pb2.Authority
    """Authority of each of these trees, without its revision."""


@dataclass(slots=True)
class _Signature:
    """Authority message of a snapshot."""

    snapshot: Snapshot
    message: resolve_pb2.Authority
    encoded: bytes = b""
    """Bytes that ``Cluster.encoded_authority`` returns; empty until its first call."""


class Cluster:
    """Running directory of one cluster.

    ``endpoints`` returns the addresses of this server; it is called late, since a free port is
    known only when the server is bound.
    """

    def __init__(
        self,
        config: ServerConfig,
        store: Store,
        endpoints: Callable[[], tuple[str, ...]],
        levels: Levels = LEVELS,
    ) -> None:
        self.config = config
        store = self.store = MeasuredStore(store)
        self.endpoints = endpoints
        self.dialling = PeerCredentials(config.tls)
        self.started_at = time.monotonic()
        self.server_id = f"{config.cluster}-{secrets.token_hex(3)}"
        self.cluster_id = store.identity.cluster_id
        self.replica = Replica(store, ProtoCodec())
        self.access_history = AccessHistory(self.replica, store, self.access_at)
        self.history = self._history()
        self.federation = FederationState(
            self.replica,
            config.mount,
            config.parent,
            server_id=self.server_id,
            cluster_id=self.cluster_id,
            allow=config.dial_allow,
            bounds=config.limits.table_bounds,
        )
        self.writer = self._writer()
        self.members = Membership(
            store,
            self.replica,
            self.writer,
            server_id=self.server_id,
            endpoints=endpoints,
            levels=levels,
        )
        self.members.subscribe(self.federation.changed)
        member = self.member()
        self.children = ChildLinks(self.federation, self.replica, self.writer, member)
        self.parent_link = self._parent_link(member)
        self.reconciler = self._reconciler()
        self.reaper = Reaper(self.server_id, store, self.replica, self.writer)
        self.change_log = self._change_log()
        self._maintenance = self._retention()
        self.beside: Callable[[], Iterable[Cluster]] = tuple
        """Returns the open clusters of this process, this one included."""
        self.unopened: Callable[[], Iterable[ServerConfig]] = tuple
        """Returns the configs of this process's clusters whose stores are not open yet."""
        self._signature: _Signature | None = None
        self._own_facts: _OwnFacts | None = None
        self._dated_contact: tuple[parent_state.ParentContact, float] | None = None
        """Stored contact with the parent, and its time by the monotonic clock."""
        self.draining = False
        self._stop = threading.Event()

    @classmethod
    def open(
        cls,
        config: ServerConfig,
        endpoints: Callable[[], tuple[str, ...]] = tuple,
        levels: Levels = LEVELS,
    ) -> Cluster:
        """Opens the store that the config names.

        Raises:
            IncompatibleStore: another cluster's store, a newer schema, no store at all, a store
                from which the cluster was moved away, or the cluster's finalized level is higher
                than this server's.
            StoreUnreachable
        """
        store = open_store(config.store, config.cluster)
        try:
            if store.identity.moved:
                raise IncompatibleStore(
                    f"{store.describe()}: cluster {config.cluster} was {store.identity.sealed}: "
                    f"name that store"
                )
            check_level_at_startup(store, levels)
        except BaseException:
            store.close()
            raise
        return cls(config, store, endpoints, levels)

    def member(self) -> LocalServer:
        """Returns the record of this server for parents and children."""
        return LocalServer(
            cluster_id=self.cluster_id,
            cluster=self.config.cluster,
            server_id=self.server_id,
            endpoints=self.members.endpoints,
            link_heartbeat_seconds=self.config.limits.link_heartbeat_seconds,
            feature_level=lambda: self.members.finalized,
            kafka_claim=self.kafka_claim,
            unconfirmed_seconds=self._unconfirmed_below_seconds,
            grants_max_age_seconds=self.config.limits.inherited_grants_max_age_seconds,
        )

    def _history(self) -> ChangeHistory:
        limits = self.config.limits
        return ChangeHistory(
            self.replica,
            self.store,
            kept_bytes=limits.watch_queue_bytes,
            queue_events=limits.watch_queue_events,
            queue_bytes=limits.watch_queue_bytes,
        )

    def _retention(self) -> RetentionTrimmer:
        limits = self.config.limits
        return RetentionTrimmer(
            self.store,
            self.history.index,
            RetentionLimits(
                events=limits.retained_change_events, event_bytes=limits.retained_change_bytes
            ),
            published=lambda: published_revision(self.replica.snapshot),
        )

    def _writer(self) -> Writer:
        return Writer(
            self.store,
            self.replica,
            ProtoCodec(),
            self.mount_at,
            above=self.policies_above,
            bounds=self.config.limits.bounds,
            check=refuse_oversized_inheritance,
            check_outbox=self._check_outbox,
            allow=lambda writes: self.members.check_writes_allowed(writes),  # noqa: PLW0108 - made later
        )

    def _parent_link(self, member: LocalServer) -> ParentLink | None:
        if not self.config.parent:
            return None
        return ParentLink(
            self.federation,
            self.store,
            self.replica,
            self.writer,
            member,
            dialling=self.dialling,
        )

    def _reconciler(self) -> Reconciler | None:
        """Returns the reconciler; None without a Kafka. Kafka's client is imported when the
        reconciler first calls its Kafka: a server without a Kafka need not have it installed.
        """
        if self.config.kafka is None:
            return None
        from directory.kafka.kafka_context import KafkaContext
        from directory.kafka.reconciler import Reconciler

        most, kafka = self.config.limits.inherited_grants_max_age_seconds, self.config.kafka

        def admin(budget_seconds: float) -> ConfluentAdmin:
            from directory.kafka.admin_client import ConfluentAdmin

            properties = kafka.client.read
            return ConfluentAdmin(
                kafka.bootstrap, properties=properties, budget_seconds=budget_seconds
            )

        context = KafkaContext(
            self.config.cluster,
            self.store.limits,
            lambda: self.replica.snapshot,
            self.writer,
            self.mount_at,
            kafka,
            admin,
            unconfirmed_seconds=lambda: self.unconfirmed_seconds() or 0.0,
            unmanaged=self.unmanaged,
            has_parent=bool(self.config.parent),
            grants_max_age_seconds=None if isinf(most) else most,
        )
        return Reconciler(context, self.store, self.replica, candidate=self.server_id)

    def _change_log(self) -> ChangeLogPublisher | None:
        config = self.config.change_log
        if config is None:
            return None
        from directory.change_log.log_topics import LogTopics
        from directory.change_log.publisher import ChangeLogPublisher
        from resolver.changes.registry import SchemaRegistry

        def admin() -> ConfluentAdmin:
            from directory.kafka.admin_client import ConfluentAdmin

            return ConfluentAdmin(config.bootstrap, properties=config.client.read)

        state, history = config.topics(self.cluster_id)
        return ChangeLogPublisher(
            self.server_id,
            self.config.cluster,
            self.store,
            self.replica,
            self.writer,
            self.history.index,
            mount=self.mount_at,
            topics=LogTopics(
                self.cluster_id,
                state,
                history,
                config.bootstrap,
                config.client.read,
                registry=SchemaRegistry.at(config.schema_registry),
            ),
            admin=admin,
        )

    def _check_outbox(self, is_urgent: bool) -> None:  # noqa: FBT001 - one of a writer's hooks
        most = self.config.limits.outbox_changes
        index = self.history.index
        refuse_full_outbox(self.replica.snapshot, index, most, is_urgent=is_urgent)

    # -- start and stop -------------------------------------------------------------------------

    def start(self) -> None:
        """Starts loading, linking and the work with Kafka, all in the background."""
        self.replica.start()
        self.members.start()
        if self.parent_link is not None:
            self.parent_link.start()
        if self.reconciler is not None:
            self.reconciler.start()
        if self.change_log is not None:
            self.change_log.start()
        self.reaper.start()
        maintain = with_log_context(self._maintain)
        threading.Thread(target=maintain, name="maintenance", daemon=True).start()

    def drain(self) -> None:
        """Ends the streams, so that callers continue at another server, and refuses new ones."""
        self.draining = True
        self.members.stop()
        self.children.stop()
        self.history.close()

    def stop(self) -> None:
        """Stops everything that ``start`` began; closes the store."""
        self._stop.set()
        self.drain()
        self.children.close()
        if self.parent_link is not None:
            self.parent_link.stop()
        if self.reconciler is not None:
            self.reconciler.stop()
        if self.change_log is not None:
            self.change_log.stop()
        self.reaper.stop()
        self.replica.stop()
        self.store.close()

    def _maintain(self) -> None:
        while not self._stop.wait(_MAINTENANCE_SECONDS):
            self._maintain_once()

    def _maintain_once(self) -> None:
        """Trims rows whose retention is over; stores and removes records of children."""
        try:
            self._maintenance.run(_MAINTENANCE_SECONDS, self._stop.wait)
            if self.replica.state is ReplicaState.SERVING:
                self.children.keep_reported()
                self.children.forget()
        except (KdirError, StoreUnreachable) as error:
            _log.info("maintenance goes on later: %s", error)
        except Exception:  # noqa: BLE001 - logged; without this thread nothing is trimmed any more
            _log.exception("maintenance failed by a bug; it is tried again")

    # -- contents of answers ---------------------------------------------------------------------

    @property
    def mount(self) -> Path:
        """Current mount of this cluster."""
        return self.federation.mount

    @property
    def is_mounted(self) -> bool:
        """False if the parent reported that no mount names this cluster."""
        view = self.federation.newest_view
        return view is None or not view.position.unmounted

    def access_at(self, snapshot: Snapshot) -> Authorizer:
        """Returns the access rules at a snapshot."""
        config = self.config
        try:
            inherited = inheritance.inherited_access(snapshot)
        except NotReady:
            inherited = None
        else:
            if inherited is None and (not config.parent or config.access is AccessMode.OPEN):
                # A cluster that enforces access needs its parent's update; a cluster with open
                # access admits every caller that is not denied.
                inherited = ()
        most_age = config.limits.inherited_grants_max_age_seconds
        return Authorizer(
            self.mount_at(snapshot),
            snapshot.grants,
            inherited,
            config.access,
            config.auth.super_users,
            None if isinf(most_age) else most_age,
        )

    def mount_at(self, snapshot: Snapshot) -> Path:
        """Returns the cluster's mount at a snapshot: paths are resolved and authorized with the
        mount of the same snapshot.
        """
        return self._facts_of(snapshot).position.mount

    def policies_above(self, snapshot: Snapshot) -> tuple[PolicyLevel, ...]:
        """Returns the policies of the ancestors above the mount at a snapshot, outermost first.

        Raises:
            NotReady: they cannot be read.
        """
        above = self._facts_of(snapshot).above
        if above is None:
            raise NotReady(inheritance.why_inherited_unknown(snapshot))
        return above

    def _facts_of(self, snapshot: Snapshot) -> _OwnFacts:
        facts, known = snapshot.tree.facts, self._own_facts
        if known is None or known.facts is not facts:
            position = self.federation.position_at(snapshot)
            try:
                above = tuple(inheritance.inherited_origins(snapshot))
            except NotReady:
                above = None
            pin = PinnedKafka.load(snapshot)
            authority = self._authority_without_revision(position, pin)
            known = self._own_facts = _OwnFacts(facts, position, pin, above, authority)
        return known

    def check_mounted(self) -> None:
        """Checks that the cluster is mounted: an unmounted cluster does not answer.

        Raises:
            Unmounted: the parent reported that no mount names it.
            NotReady: nothing is loaded yet, or this server must not serve.
        """
        if self.members.refused:
            raise NotReady(self.members.refused)
        view = self.federation.newest_view or self.federation.view()
        unmounted = view.position.unmounted
        if unmounted:
            raise Unmounted(f"cluster {self.config.cluster} is unmounted: {unmounted}")

    def kafka_claim(self) -> federation_pb2.KafkaClaim | None:
        """Returns this cluster's claim: its pinned Kafka and the time of the pin; None = no pin."""
        if self.config.kafka is None or self.replica.state is ReplicaState.LOADING:
            return None
        held = self._facts_of(self.replica.snapshot).held
        if not held.pinned:
            return None
        return federation_pb2.KafkaClaim(
            kafka_cluster_id=held.pinned,
            pinned_at_ms=held.pinned_at_ms,
            cluster_id=self.cluster_id,
            cluster=self.config.cluster,
            mount=str(self.mount),
        )

    def unmanaged(self) -> str:
        """Returns why this cluster changes nothing in its Kafka: another known cluster manages it,
        or did, and it is not known yet if it still does; empty = this cluster manages it.
        """
        own = self.kafka_claim()
        if own is None:
            return ""
        is_known = not self._awaits_claims()  # first: a cluster loaded later has its claim below
        hosted = (one.kafka_claim() for one in self.beside())
        others = [*self.federation.kafka_claims(), *(one for one in hosted if one is not None)]
        manager = manager_before(own, others)
        if manager is not None:
            return why_unmanaged(manager)
        was_unmanaged = self._facts_of(self.replica.snapshot).held.unmanaged
        return NOT_KNOWN if was_unmanaged and not is_known else ""

    def _awaits_claims(self) -> bool:
        """True if a cluster of the same process may have a Kafka claim that is not loaded yet."""
        unopened = any(config.kafka is not None for config in self.unopened())
        return unopened or any(
            one.config.kafka is not None and one.replica.state is ReplicaState.LOADING
            for one in self.beside()
        )

    def link_status(self) -> LinkStatus:
        """Returns the status of the link to the parent."""
        if self.parent_link is None:
            return LinkStatus(configured=False)
        return self.parent_link.status()

    @property
    def is_detached(self) -> bool:
        """True while the cluster is detached from its parent by an operator."""
        is_loaded = self.replica.state is not ReplicaState.LOADING
        return is_loaded and bool(parent_state.detached_of(self.replica.snapshot))

    def unconfirmed_seconds(self) -> float | None:
        """Returns the seconds since a parent last confirmed the mount; None while a parent confirms
        it, without a parent, and while detached: then inherited records are the cluster's own.

        They count from the parent's last message to any server of the cluster, on a link on which
        it had sent the mount and the inherited records; plus the seconds for which the parent's own
        state was unconfirmed then.
        """
        if self.parent_link is None or self.replica.state is ReplicaState.LOADING:
            return None
        status, snapshot = self.link_status(), self.replica.snapshot
        if status.confirmed or parent_state.detached_of(snapshot):
            return None
        own_seconds = status.confirmed_seconds if status.holder else None
        received = parent_state.parent_contact(snapshot)
        if received is None:
            return time.monotonic() - self.started_at if own_seconds is None else own_seconds
        seconds = self._contact_seconds(received)
        if own_seconds is not None:
            # The holder's own time may be of an earlier term, before another server's contact.
            return min(own_seconds, seconds)
        if status.standby and received.linked and seconds < _HELD_SECONDS:
            return None  # another server of the cluster holds the link
        return seconds

    def _contact_seconds(self, contact: parent_state.ParentContact) -> float:
        """Returns the age of the stored contact, by the monotonic clock from this server's first
        read of it on (docs/guarantees.md#g12).
        """
        known = self._dated_contact
        if known is None or known[0] != contact:
            at = time.monotonic() - max(0, unix_ms() - contact.at_ms) / 1000
            known = self._dated_contact = contact, at
        return time.monotonic() - known[1]

    def _unconfirmed_below_seconds(self) -> float:
        """Returns the seconds since parent and store confirmed what children inherit; 0.0 = now."""
        return max(self.unconfirmed_seconds() or 0.0, self.replica.age_seconds)

    def authority(self, snapshot: Snapshot) -> resolve_pb2.Authority:
        """Returns the authority of answers: cluster, incarnation, revision, age. The message is
        shared: copy it before changing it.
        """
        return self._signed(snapshot).message

    def encoded_authority(self, snapshot: Snapshot) -> bytes:
        """Returns the authority as the bytes of a ResolveResponse with no other field."""
        signature = self._signed(snapshot)
        if not signature.encoded:
            response = resolve_pb2.ResolveResponse(authority=signature.message)
            signature.encoded = response.SerializeToString()
        return signature.encoded

    def _signed(self, snapshot: Snapshot) -> _Signature:
        known, doubts = self._signature, self._doubts()
        if known is not None and known.snapshot is snapshot and not doubts:
            return known
        message = self._authority_of(snapshot, snapshot.revision, doubts)
        signature = _Signature(snapshot, message)
        if not doubts:
            self._signature = signature
        return signature

    def _doubts(self) -> Mapping[str, Any]:
        """Returns the fields of an authority with the possible age of its answer; empty = it is
        confirmed.
        """
        unconfirmed = None if self.parent_link is None else self.unconfirmed_seconds()
        stale = self.replica.state is ReplicaState.STALE
        if not stale and unconfirmed is None:
            return _NO_DOUBTS
        age = {"stale": True, "age_seconds": self.replica.age_seconds} if stale else {}
        if stale and self.replica.sealed:
            age["sealed"] = True
        return age if unconfirmed is None else {**age, "unconfirmed_seconds": unconfirmed}

    def authority_of_write(self, revision: int) -> resolve_pb2.Authority:
        """Returns the authority of the answer to a write of this revision, which the replica may
        not have applied yet.
        """
        snapshot = self.replica.snapshot
        return self._authority_of(snapshot, max(snapshot.revision, revision), self._doubts())

    def token_of(self, snapshot: Snapshot) -> str:
        """Returns a token for readers that need this snapshot or a newer one."""
        return str(Token.from_position(self.cluster_id, snapshot.incarnation, snapshot.revision))

    def token_at(self, revision: int) -> str:
        """Returns a token for readers that need a revision just written in this incarnation."""
        incarnation = self.replica.snapshot.incarnation
        return str(Token.from_position(self.cluster_id, incarnation, revision))

    def token_after(self, revision: int) -> str:
        """Returns a token for readers that need what a call wrote, last at this revision (0:
        nothing), and what this server has now. The replica may be behind its own writes.
        """
        return self.token_at(max(revision, self.replica.snapshot.revision))

    def _authority_of(
        self, snapshot: Snapshot, revision: int, doubts: Mapping[str, Any]
    ) -> resolve_pb2.Authority:
        message = resolve_pb2.Authority(revision=revision, **doubts)
        message.MergeFrom(self._facts_of(snapshot).authority)
        message.incarnation = snapshot.incarnation
        message.token = str(Token.from_position(self.cluster_id, snapshot.incarnation, revision))
        return message

    def _authority_without_revision(
        self, position: parent_state.Position, held: PinnedKafka
    ) -> resolve_pb2.Authority:
        kafka, stop_reason = self.config.kafka, ""
        if kafka is not None and held.stop is not None:
            # Not the message of the stop, which counts and names topics: every caller gets this.
            stop_reason = "too many topics vanished from Kafka at once, or changed their topic id"
            if held.stop.kafka_id:
                stop_reason = (
                    f"another Kafka cluster answers: {held.stop.kafka_id}, this directory belongs "
                    f"to {held.pinned}"
                )
        return resolve_pb2.Authority(
            cluster=entry_pb2.Cluster(
                cluster_id=self.cluster_id,
                cluster=self.config.cluster,
                mount=str(position.mount),
                epoch=position.epoch,
                site=self.config.site,
                listeners=[
                    entry_pb2.Listener(
                        name=one.name,
                        bootstrap_servers=one.bootstrap_servers,
                        security_protocol=one.security_protocol,
                        sasl_mechanism=one.sasl_mechanism,
                    )
                    for one in (kafka.listeners if kafka else ())
                ],
            ),
            server=self.server_id,
            stop_reason=stop_reason,
        )


_NO_DOUBTS: Final[Mapping[str, Any]] = {}
_HELD_SECONDS = 180.0
"""Time for which a standby counts the link as open: its holder stores the contact every minute."""
_MAINTENANCE_SECONDS = 5.0
