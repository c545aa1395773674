"""AdminService: status, adoption, drift and acknowledgement; backup and verification as streams;
the link to the parent; operations on the change log.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar

from kdir.v1 import admin_pb2, entry_pb2, watch_pb2

from directory.api.cluster_router import ClusterRouter
from directory.api.entry_writes import check_request_id
from directory.api.plan_redaction import STOPPED, UNREAD
from directory.api.rpc.call_context import Call
from directory.api.rpc.handlers import Handler, Service
from directory.change_log.log_state import (
    ROLE,
    noted_state,
    published_revision,
    publisher_of,
    resync_confirmation,
    skip_of,
    unpublished_reason,
)
from directory.federation import inheritance, parent_state
from directory.federation.federation_state import unix_ms
from directory.federation.link_records import is_path
from directory.kafka.adoption.pinned_kafka import without_manager
from directory.kafka.adoption.recorded_topics import recorded_at
from directory.kafka.applying.desired_configs import DesiredConfigs
from directory.kafka.arming.drift import NOT_ARMED, Drift, difference_states, topic_drift
from directory.maintenance.backup_stream import backup_of
from directory.maintenance.verify_copies import Summary, compare_kafka, compare_rows
from directory.maintenance.verify_store import Difference
from directory.namespace.adoption_mapping import AdoptionAction
from directory.namespace.entry import Kind, Provision
from directory.namespace.keys import (
    BELOW,
    CHANGE_LOG,
    CHANGE_LOG_RESYNC,
    CHANGE_LOG_SKIP,
    CHILD,
    MOUNT_ROW,
    role_key,
)
from directory.namespace.snapshot import Snapshot
from directory.namespace.time_budget import checked
from directory.namespace.traversal import traverse
from directory.server.cluster import Cluster
from directory.server.health import has_inherited_policy
from directory.server.membership import VERSION, FinalizeResult, unreadable
from directory.store.base import (
    Delete,
    Guard,
    IncompatibleStore,
    KeyEquals,
    Put,
    StoreUnreachable,
    Write,
)
from directory.store.event_rows import Operation
from directory.store.large_change_records import progress_of, rules_from_proto
from directory.store.replica import ReplicaState
from resolver.errors import InvalidArgument, NotReady, StoreUnavailable
from resolver.path import Path
from resolver.redaction import redacted
from resolver.units import plural

if TYPE_CHECKING:
    from directory.api.visible_tree import OpenTree
    from directory.change_log.settings import ChangeLogConfig
    from directory.kafka.adoption.adoption import AdoptionRow
    from directory.kafka.adoption.operator_requests import AdoptionResult
    from directory.kafka.reconciler import Reconciler

__all__ = ["AdminService", "adoption_to_proto", "drift_to_proto", "end_with_call"]

_ADOPTIONS_BYTES: Final = 15 * 1024 * 1024
"""Most bytes of one response; clients accept messages of 16 MiB
(``resolver.transport.MAX_MESSAGE_BYTES``).
"""
_AROUND_BYTES: Final = 5
_ORDER: Final = {AdoptionAction.DETACHED.value: 0, AdoptionAction.KEEP.value: 2}
"""Order of the rows of a response, of which the last may be cut off; 1 = all other actions."""
_SHOWN: Final = 100
"""Most unreadable values that one status message names."""
_MOST_EARLIER_SKIPS: Final = 100
"""Most earlier requests to give up changes that one row lists: the row stays small."""


class AdminService(Service):
    """Service for operators."""

    descriptor = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
    long = frozenset({"ListDrift"})
    writes = frozenset(
        {
            "AdoptTopics",
            "Acknowledge",
            "FinalizeFeatures",
            "ResyncChangeLog",
            "SkipChangeLog",
            "EndChangeLog",
            "DetachParent",
            "AttachParent",
        }
    )

    def __init__(self, router: ClusterRouter) -> None:
        self._router = router
        self._retention = _BackupAndVerifyCalls(router)
        self._parenting = _ParentLinkCalls(router)
        self._change_log = _ChangeLogCalls(router)

    def method_handlers(self) -> Mapping[str, Handler]:
        return {
            "GetStatus": self.get_status,
            "AdoptTopics": self.adopt_topics,
            "ListDrift": self.list_drift,
            "Acknowledge": self.acknowledge,
            "FinalizeFeatures": self.finalize_features,
            "ResyncChangeLog": self._change_log.resync,
            "SkipChangeLog": self._change_log.skip,
            "EndChangeLog": self._change_log.end,
            "DetachParent": self._parenting.detach,
            "AttachParent": self._parenting.attach,
            "Backup": self._retention.backup,
            "Verify": self._retention.verify,
        }

    def get_status(
        self, request: admin_pb2.GetStatusRequest, call: Call
    ) -> admin_pb2.GetStatusResponse:
        """Returns the status of a server, also before the tree is loaded."""
        call.check()
        cluster = self._router.clusters[0]
        if request.cluster:
            cluster = self._router.require_cluster_by_name(request.cluster)
        access_control = self._router.access_control
        view = access_control.require_admin(cluster, "AdminService/GetStatus", call)
        shows_all = view is None or view.shows_all()
        state = cluster.replica.state
        response = admin_pb2.GetStatusResponse(
            replica_state=_REPLICA_STATES[state],
            version=VERSION,
            feature_level=cluster.members.level,
            finalized_level=cluster.members.stored_level or 0,
            members=cluster.members.live(),
            store=cluster.store.describe(),
            uptime_seconds=time.monotonic() - cluster.started_at,
            principal=call.principal,
        )
        if view is not None:
            snapshot = view.snapshot
            response.authority.CopyFrom(cluster.authority(snapshot))
            seen = view.count_below((), snapshot.root)
            response.topic_count, response.directory_count = seen.topics, seen.containers
            response.topics_unchanged_since = snapshot.topics_unchanged_since
            if (log := noted_state(snapshot)) is not None:
                is_configured = cluster.change_log is not None
                unpublished = unpublished_reason(snapshot, is_configured=is_configured)
                log.message = unpublished or log.message
                response.change_log.CopyFrom(log)
            response.progress.extend(
                one
                for one in progress_of(snapshot, cluster.reaper.trouble)
                # The path when the change began: not below the mount, if that was moved since.
                if shows_all or view.can_describe_path(Path.parse(one.path), Kind.DIRECTORY)
            )
            named = {**dict(parent_state.unreadable_rows(snapshot)), **dict(unreadable(snapshot))}
            if shows_all:
                too_deep = cluster.federation.view().too_deep.values()
                named = {**dict(snapshot.unreadable_values), **dict(too_deep), **named}
            else:
                named = {key: why for key, why in named.items() if _is_shown(cluster, view, key)}
            response.unreadable_value_count = len(named)
            response.unreadable_values.extend(
                f"{key!r}: {why}" for key, why in itertools.islice(named.items(), _SHOWN)
            )
        else:
            response.authority.cluster.cluster_id = cluster.cluster_id
            response.authority.cluster.cluster = cluster.config.cluster
            response.authority.cluster.mount = str(cluster.mount)
            response.authority.server = cluster.server_id
        _store(cluster, response.store_status)
        self._parent(cluster, response.parent)
        if cluster.reconciler is not None:
            _kafka(cluster.reconciler, response.kafka, shows_all=shows_all)
        return response

    @staticmethod
    def _parent(cluster: Cluster, out: admin_pb2.ParentStatus) -> None:
        status = cluster.link_status()
        out.configured = status.configured
        out.linked = status.linked
        out.standby = status.configured and status.standby
        out.message = status.message
        if status.contact_age_seconds is not None:
            out.last_contact_age_seconds = status.contact_age_seconds
        if cluster.replica.state is ReplicaState.LOADING:
            return
        snapshot = cluster.replica.snapshot
        out.detached_reason = parent_state.detached_of(snapshot)
        if not has_inherited_policy(cluster):
            out.inherited_missing_reason = inheritance.why_inherited_unknown(snapshot)
        position = cluster.federation.view().position
        out.unmounted = bool(position.unmounted)
        if position.parent is not None:
            out.cluster_id = position.parent.parent_cluster_id

    def _reconciler(self, name: str) -> tuple[Cluster, Reconciler]:
        """Returns the cluster that the request names, and its reconciler."""
        hosted = self._router.clusters
        if name:
            hosted = tuple(one for one in hosted if name in (one.cluster_id, one.config.cluster))
            if not hosted:
                raise InvalidArgument(
                    f"cluster: found {name!r}, which this server does not host", field="cluster"
                )
        found = [(one, one.reconciler) for one in hosted if one.reconciler is not None]
        if not found:
            names = ", ".join(one.config.cluster for one in hosted)
            raise InvalidArgument(
                f"cluster {names} has no Kafka behind it", field="cluster", kafka="none"
            )
        if len(found) > 1:
            names = ", ".join(one.config.cluster for one, _ in found)
            raise InvalidArgument(
                f"cluster: empty, and this server hosts several that have a Kafka; expected one of "
                f"{names}",
                field="cluster",
            )
        return found[0]

    def adopt_topics(
        self, request: admin_pb2.AdoptTopicsRequest, call: Call
    ) -> admin_pb2.AdoptTopicsResponse:
        """Adopts topics by mapping rules; with ``validate_only``, only returns the plan."""
        cluster, reconciler = self._reconciler(request.cluster)
        rules = rules_from_proto(request.rules)

        def attempt() -> AdoptionResult:
            self._router.access_control.require_admin(cluster, "AdminService/AdoptTopics", call)
            cluster.check_mounted()
            call.check()
            return reconciler.requests.adopt(
                rules,
                request.validate_only,
                request.remap_adopted,
                principal=call.principal,
                timeout_seconds=call.seconds_left(),
            )

        adopting = self._router.decide(cluster, request.token, call, attempt, ask_first=True)
        response = adoptions_to_proto(adopting.rows)
        if adopting.under_way is not None:
            response.progress.CopyFrom(adopting.under_way.to_proto())
        if not request.validate_only:
            response.token = cluster.token_after(adopting.revision)
        return response

    def list_drift(
        self, request: admin_pb2.ListDriftRequest, call: Call
    ) -> admin_pb2.ListDriftResponse:
        """Returns the differences between Kafka and the desired or recorded state."""
        call.check()
        asked = Path.parse(request.path) if request.path else None
        owner = "" if asked is None else self._router.cluster_for_path(asked, call).cluster_id
        cluster, reconciler = self._reconciler(owner)
        view = self._router.access_control.require_admin(cluster, "AdminService/ListDrift", call)
        snapshot = cluster.replica.snapshot
        mount = cluster.mount_at(snapshot)
        path = asked or mount
        drifts = reconciler.drift(path, call.check)
        unarmed = _unarmed_at(snapshot, mount, path, call.check) if request.unarmed else []
        shown = [
            [
                one
                for one in checked(rows, call.check)
                if view is None or view.can_describe_path(one.path, one.kind)
            ]
            for rows in (drifts, unarmed)
        ]
        return _drifts_to_proto(snapshot, mount, *shown, check=call.check)

    def acknowledge(
        self, request: admin_pb2.AcknowledgeRequest, call: Call
    ) -> admin_pb2.AcknowledgeResponse:
        """Lets a stopped reconciler continue."""
        call.check()
        check_request_id(request.request_id)
        cluster, reconciler = self._reconciler(request.cluster)
        request_id = request.request_id or call.request_id

        def attempt() -> int:
            self._router.access_control.require_admin(cluster, "AdminService/Acknowledge", call)
            return reconciler.acknowledge(
                request.stop_reason, principal=call.principal, request_id=request_id
            )

        revision = self._router.decide(cluster, request.token, call, attempt)
        return admin_pb2.AcknowledgeResponse(token=cluster.token_after(revision))

    def finalize_features(
        self, request: admin_pb2.FinalizeFeaturesRequest, call: Call
    ) -> admin_pb2.FinalizeFeaturesResponse:
        """Raises the cluster's feature level, or returns whether that is possible."""
        call.check()
        cluster = self._router.require_cluster_by_name(request.cluster)

        def attempt() -> FinalizeResult:
            self._router.access_control.require_admin(
                cluster, "AdminService/FinalizeFeatures", call
            )
            return cluster.members.finalize(
                request.level,
                validate_only=request.validate_only,
                principal=call.principal,
                request_id=call.request_id,
            )

        done = self._router.decide(cluster, request.token, call, attempt)
        response = admin_pb2.FinalizeFeaturesResponse(
            finalized_level=done.level or 0, supported_level=done.supported, members=done.members
        )
        if done.revision is not None:
            response.token = cluster.token_at(done.revision)
        return response


def _is_shown(cluster: Cluster, tree: OpenTree, key: bytes) -> bool:
    """True if the caller may learn of an unreadable record: it concerns no mount or child; or its
    mounts are known, and the caller may see all of them.
    """
    mounts: list[Path] = []
    if key.startswith(MOUNT_ROW):
        text = key.removeprefix(MOUNT_ROW).decode(errors="replace")
        mounts = [Path.parse(text)] if is_path(text) else []
    elif key.startswith((CHILD, BELOW)):
        cluster_id = key.rpartition(b"/")[2].decode(errors="replace")
        own = cluster.federation.view().own
        mounts = [mount for mount, one in own.items() if one.row.cluster_id == cluster_id]
    else:
        return True
    return bool(mounts) and all(map(tree.can_refer_to, mounts))


def _store(cluster: Cluster, out: admin_pb2.StoreStatus) -> None:
    replica, store = cluster.replica, cluster.store
    if replica.state is not ReplicaState.LOADING:
        out.revision = replica.snapshot.revision
    out.age_seconds = replica.age_seconds
    # Shown to operators, as is the store's address, but never with a password.
    out.message = redacted(replica.trouble)
    out.watch_restarts = replica.watch_restarts
    out.reloads = replica.reloads
    out.sealed = replica.sealed  # as the replica has it; the store may be sealed since
    if store.last_commit_seconds is not None:
        out.last_commit_seconds = store.last_commit_seconds
    if (full := store.full) is not None:
        reason, out.full_age_seconds = full
        out.full = redacted(reason)


def _kafka(reconciler: Reconciler, out: admin_pb2.KafkaStatus, *, shows_all: bool) -> None:
    """Fills in the status of the Kafka side. Counts of topics are not kept by path, so a caller
    gets all of them or none.
    """
    status = reconciler.status()
    for field in admin_pb2.KafkaStatus.DESCRIPTOR.fields:
        value = getattr(status, field.name)
        if value is None or (field.name.endswith("_count") and not shows_all):
            continue
        if field.name == "stop_reason" and value and not shows_all:
            value = STOPPED
        if field.name == "message" and status.message_names_topics and not shows_all:
            value = UNREAD
        if field.name == "unmanaged" and not shows_all:
            value = without_manager(value)
        if field.is_repeated:
            getattr(out, field.name).extend(sorted(value))
        else:
            setattr(out, field.name, value)


_REPLICA_STATES: Final = {
    ReplicaState.LOADING: admin_pb2.REPLICA_STATE_LOADING,
    ReplicaState.SERVING: admin_pb2.REPLICA_STATE_SERVING,
    ReplicaState.STALE: admin_pb2.REPLICA_STATE_STALE,
}


_ANSWER_BYTES: Final = 3 * 1024 * 1024
"""Most bytes of one response: every client accepts as much."""


def _unarmed_at(
    snapshot: Snapshot, mount: Path, path: Path, check: Callable[[], object]
) -> list[Drift]:
    """Returns the inherited values, for topics at and below a path, that differ from what Kafka had
    when last observed and are not pushed because nobody armed them there.
    """
    armed, everywhere = DesiredConfigs(snapshot), DesiredConfigs(snapshot, everywhere=True)
    found = []
    for one in checked(recorded_at(snapshot, mount, path), check):
        if one.desired_config is not None or one.topic.provision is not Provision.ACTIVE:
            continue
        parent_id = traverse(snapshot, one.path.below(mount)[:-1]).node.entry_id
        desired_config = everywhere.for_topic(parent_id, one.topic)
        if desired_config is None or armed.for_topic(parent_id, one.topic) is not None:
            continue
        own = topic_drift(one)
        rows = topic_drift(replace(one, desired_config=desired_config))
        found += [row for row in rows if row not in own]
    return found


def _drifts_to_proto(
    snapshot: Snapshot,
    mount: Path,
    drifts: Sequence[Drift],
    unarmed: Collection[Drift] = (),
    *,
    check: Callable[[], object],
) -> admin_pb2.ListDriftResponse:
    """Returns the rows of a response, by path and field, as many as one message holds; further ones
    are counted.
    """
    response = admin_pb2.ListDriftResponse()
    unarmed = frozenset(unarmed)
    rows = sorted({*drifts, *unarmed}, key=lambda row: (row.path, row.field))
    room, path = _ANSWER_BYTES, Path(())
    known: Mapping[str, str] = {}
    for row in checked(rows, check):
        if row.kind is Kind.TOPIC and row.path != path and not row.state:
            path, known = row.path, _known(snapshot, mount, row.path)
        one = drift_to_proto(row)
        key = row.field.removeprefix("config[").removesuffix("]")
        one.kafka_state = row.state or known.get(key, "")
        if row in unarmed:
            one.kafka_state = NOT_ARMED
        room -= one.ByteSize() + 8
        if room < 0:
            break
        response.drifts.append(one)
    response.omitted_count = len(rows) - len(response.drifts)
    return response


def _known(snapshot: Snapshot, mount: Path, path: Path) -> Mapping[str, str]:
    relative = path.below(mount)
    node = traverse(snapshot, relative[:-1]).node
    place = node.entry_id, relative[-1]
    topic = snapshot.topic(*place)
    return {} if topic is None else difference_states(snapshot, mount, place, topic)


_M = TypeVar("_M")
_log = logging.getLogger(__name__)

STALLED_SECONDS: Final = 300.0
"""Time after which a client that reads nothing is disconnected: the store keeps a
revision for it.
"""


class _BackupAndVerifyCalls:
    """Methods of AdminService that read the whole store."""

    def __init__(self, router: ClusterRouter) -> None:
        self._router = router

    def backup(
        self, request: admin_pb2.BackupRequest, call: Call
    ) -> Iterator[admin_pb2.BackupResponse]:
        """Yields all rows of the store at one revision."""
        cluster = self._router.require_cluster_by_name(request.cluster)
        self._router.access_control.require_admin(cluster, "AdminService/Backup", call)
        yield from end_with_call(backup_of(cluster.store), call)

    def verify(
        self, request: admin_pb2.VerifyRequest, call: Call
    ) -> Iterator[admin_pb2.VerifyResponse]:
        """Yields the differences between store, replica, change log and Kafka; then the summary."""
        cluster = self._router.require_cluster_by_name(request.cluster)
        self._router.access_control.require_admin(cluster, "AdminService/Verify", call)
        yield from end_with_call(_verified(cluster, call, skip_kafka=request.skip_kafka), call)


def _verified(
    cluster: Cluster, call: Call, *, skip_kafka: bool
) -> Iterator[admin_pb2.VerifyResponse]:
    summary = Summary()
    found = compare_rows(cluster.store, cluster.replica, cluster.mount, call.check, summary)
    kafka = cluster.config.kafka
    if kafka is not None and not skip_kafka:
        latest = partial(getattr, cluster.replica, "snapshot")
        more = compare_kafka(kafka, latest, cluster.mount, call.check, summary)
        found = chain(found, more)
    log = cluster.config.change_log
    if log is not None and not skip_kafka and noted_state(cluster.replica.snapshot) is not None:
        found = chain(found, _verified_log(cluster, log, call, summary))
    count = 0
    for one in found:
        count += 1
        yield admin_pb2.VerifyResponse(difference=admin_pb2.Difference(**asdict(one)))
    yield admin_pb2.VerifyResponse(
        summary=admin_pb2.VerifySummary(
            revision=summary.revision,
            rows=summary.rows,
            kafka_topics=summary.kafka_topics,
            differences=count,
            message="; ".join(summary.troubles),
        )
    )


def _verified_log(
    cluster: Cluster, config: ChangeLogConfig, call: Call, summary: Summary
) -> Iterator[Difference]:
    from directory.change_log.log_verification import compare_log

    yield from compare_log(
        config,
        cluster.cluster_id,
        cluster.replica,
        cluster.history.index,
        cluster.mount_at,
        call.check,
        summary,
    )


def end_with_call(messages: Iterator[_M], call: Call) -> Iterator[_M]:
    """Yields the messages until the client stops reading.

    Raises:
        StoreUnavailable: the store cannot be reached, or is another one by now.
    """
    try:
        for message in messages:
            call.check()
            stalled = threading.Timer(STALLED_SECONDS, call.cancel)
            stalled.daemon = True
            stalled.start()
            try:
                yield message
            finally:
                stalled.cancel()
    except (StoreUnreachable, IncompatibleStore) as reason:
        _log.warning("the store is away: %s", reason)
        raise StoreUnavailable("the store is away: what was sent is incomplete") from reason


class _ParentLinkCalls:
    """Handlers of DetachParent and AttachParent."""

    def __init__(self, router: ClusterRouter) -> None:
        self._router = router

    def detach(
        self, request: admin_pb2.DetachParentRequest, call: Call
    ) -> admin_pb2.DetachParentResponse:
        """Keeps the inherited records as the cluster's own and stops linking to the parent.

        Unreadable inherited records cannot be kept: they are reported, and no longer inherited.
        """
        call.check()
        cluster = self._router.require_cluster_by_name(request.cluster)

        def attempt() -> tuple[list[str], int]:
            self._router.access_control.require_admin(cluster, "AdminService/DetachParent", call)
            return self._detach(cluster, request, call)

        kept, revision = self._router.decide(cluster, request.token, call, attempt)
        return admin_pb2.DetachParentResponse(token=cluster.token_after(revision), kept=kept)

    @staticmethod
    def _detach(
        cluster: Cluster, request: admin_pb2.DetachParentRequest, call: Call
    ) -> tuple[list[str], int]:
        """Records the detachment, unless it is recorded already; returns the directories whose
        records are kept, and the revision; 0 = nothing was written.
        """
        snapshot = cluster.replica.snapshot
        spoiled = inheritance.is_inherited_corrupt(snapshot)
        known = snapshot.fact(parent_state.DETACHED_KEY)
        # The same request again, at another server, after unreadable records were dropped.
        is_dropped = known is not None and not (spoiled or inheritance.inherited_levels(snapshot))
        if not request.keep_inherited and not spoiled and not is_dropped:
            raise InvalidArgument(
                "keep_inherited: false; expected true: inherited records that can be "
                "read are kept when a link ends",
                field="keep_inherited",
            )
        if cluster.parent_link is None and not inheritance.is_inherited_received(snapshot):
            raise InvalidArgument(
                f"cluster {cluster.config.cluster} has no parent: its config names none",
                field="cluster",
            )
        if not inheritance.is_inherited_received(snapshot):
            raise NotReady(
                "no parent has sent the inherited policies and grants: there is nothing to keep yet"
            )
        if request.keep_inherited:
            # Checked before anything is written, since unreadable records cannot be kept.
            kept = [level.path for level in inheritance.inherited_levels(snapshot)]
        else:
            kept = []
        revision = 0
        if known is None or spoiled:
            when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            message = f"detached by {call.principal or 'an anonymous caller'} at {when}"
            writes: tuple[Write, ...] = (Put(parent_state.DETACHED_KEY, message.encode()),)
            guards: tuple[KeyEquals, ...] = (KeyEquals(parent_state.DETACHED_KEY, known),)
            if spoiled:
                guards += (
                    KeyEquals(
                        parent_state.INHERITED_KEY, snapshot.fact(parent_state.INHERITED_KEY)
                    ),
                )
                writes += (
                    inheritance.nothing_inherited(snapshot, unix_ms()),
                    inheritance.rights_mark(),
                )
            kept_text = "nothing from now on: it could not be read" if spoiled else "kept"
            text = f"detached the cluster from its parent; what it inherits is {kept_text}"
            revision = cluster.writer.put_facts(writes, guards, _operation(text, call))
            _log.warning(
                "audit: %s detached cluster %s from its parent, request %s; what it inherits is %s",
                call.principal or "an anonymous caller",
                cluster.config.cluster,
                call.request_id,
                kept_text,
            )
        return kept, revision

    def attach(
        self, request: admin_pb2.AttachParentRequest, call: Call
    ) -> admin_pb2.AttachParentResponse:
        """Links to the parent again; its inherited records apply once they are received."""
        call.check()
        cluster = self._router.require_cluster_by_name(request.cluster)

        def attempt() -> int:
            self._router.access_control.require_admin(cluster, "AdminService/AttachParent", call)
            detached = cluster.replica.snapshot.fact(parent_state.DETACHED_KEY)
            if detached is None:
                return 0
            # Until the parent sends its state again, the stored one counts as old: it may differ.
            again = Put(parent_state.ATTACHED_KEY, secrets.token_hex(8).encode())
            guards = (KeyEquals(parent_state.DETACHED_KEY, detached),)
            operation = _operation("attached the cluster to its parent again", call)
            revision = cluster.writer.put_facts(
                (Delete(parent_state.DETACHED_KEY), again), guards, operation
            )
            _log.warning(
                "audit: %s attached cluster %s to its parent again, request %s",
                call.principal or "an anonymous caller",
                cluster.config.cluster,
                call.request_id,
            )
            return revision

        revision = self._router.decide(cluster, request.token, call, attempt)
        return admin_pb2.AttachParentResponse(token=cluster.token_after(revision))


class _ChangeLogCalls:
    """Operators' methods for the change log."""

    def __init__(self, router: ClusterRouter) -> None:
        self._router: Final = router

    def resync(
        self, request: admin_pb2.ResyncChangeLogRequest, call: Call
    ) -> admin_pb2.ResyncChangeLogResponse:
        """Records an operator's confirmation of a resync; the publishing server carries it out."""
        call.check()
        cluster = self._router.require_cluster_by_name(request.cluster)

        def attempt() -> int:
            self._require_log(cluster, "AdminService/ResyncChangeLog", call)
            when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            message = f"confirmed by {call.principal or 'an anonymous caller'} at {when}"
            text = "confirmed that the change log follows the store (resync)"
            value = resync_confirmation(cluster.replica.snapshot, message)
            return self._put(cluster, (Put(CHANGE_LOG_RESYNC, value),), text, call)

        revision = self._router.decide(cluster, request.token, call, attempt)
        return admin_pb2.ResyncChangeLogResponse(token=cluster.token_at(revision))

    def skip(
        self, request: admin_pb2.SkipChangeLogRequest, call: Call
    ) -> admin_pb2.SkipChangeLogResponse:
        """Discards the unpublished changes up to the requested revision; the publishing server
        records that in the history.
        """
        call.check()
        cluster = self._router.require_cluster_by_name(request.cluster)

        def attempt() -> tuple[int | None, int]:
            self._require_log(cluster, "AdminService/SkipChangeLog", call)
            snapshot = cluster.replica.snapshot
            published = published_revision(snapshot) or 0
            # The history may not have received the rows of later revisions yet.
            known = min(snapshot.revision, cluster.replica.reported_revision)
            approved = min(request.revision or known, known)
            given_up = cluster.history.waiting(published, approved).commits
            if not given_up:
                return None, 0
            before = _earlier_skips(snapshot)
            row = watch_pb2.ChangeLogSkip(
                incarnation=snapshot.incarnation,
                revision=approved,
                commits=given_up + (before[-1].commits if before else 0),
                principal=call.principal,
                request_id=call.request_id,
                time_ms=unix_ms(),
                earlier=before[-_MOST_EARLIER_SKIPS:],
            )
            text = (
                f"gave up {plural(given_up, 'commit')} that waited for the change log, up "
                f"to revision {approved}"
            )
            write = Put(CHANGE_LOG_SKIP, row.SerializeToString(deterministic=True))
            return self._put(cluster, (write,), text, call), given_up

        revision, commits = self._router.decide(cluster, request.token, call, attempt)
        token = "" if revision is None else cluster.token_at(revision)
        return admin_pb2.SkipChangeLogResponse(token=token, commits=commits)

    def end(
        self, request: admin_pb2.EndChangeLogRequest, call: Call
    ) -> admin_pb2.EndChangeLogResponse:
        """Ends a change log that no server's config has any more."""
        call.check()
        cluster = self._router.require_cluster_by_name(request.cluster)

        def attempt() -> int:
            self._require_log(cluster, "AdminService/EndChangeLog", call)
            snapshot = cluster.replica.snapshot
            publisher = publisher_of(snapshot)
            if cluster.change_log is not None or publisher:
                server = publisher or cluster.server_id
                raise InvalidArgument(
                    f"server {server} publishes the change log; expected no server with"
                    f" [change_log] in its config: take it out and restart the servers first",
                    field="cluster",
                )
            # A server that begins to publish meanwhile would publish without these facts.
            guarded = (CHANGE_LOG, role_key(ROLE))
            guards = tuple(KeyEquals(key, snapshot.fact(key)) for key in guarded)
            keys = (CHANGE_LOG, CHANGE_LOG_RESYNC, CHANGE_LOG_SKIP)
            text = "ended the change log: changes are not published any more"
            return self._put(cluster, tuple(Delete(key) for key in keys), text, call, guards)

        revision = self._router.decide(cluster, request.token, call, attempt)
        return admin_pb2.EndChangeLogResponse(token=cluster.token_at(revision))

    def _require_log(self, cluster: Cluster, method: str, call: Call) -> None:
        """Checks that the caller has the right, and that there is a change log.

        Raises:
            PermissionDenied: the caller lacks the right.
            InvalidArgument: the cluster has no change log.
        """
        self._router.access_control.require_admin(cluster, method, call)
        if noted_state(cluster.replica.snapshot) is None:
            raise InvalidArgument(
                f"cluster {cluster.config.cluster} keeps no change log; expected one with"
                f" [change_log] in its servers' configs",
                field="cluster",
            )

    @staticmethod
    def _put(
        cluster: Cluster,
        writes: tuple[Write, ...],
        text: str,
        call: Call,
        guards: tuple[Guard, ...] = (),
    ) -> int:
        revision = cluster.writer.put_facts(writes, guards, _operation(text, call))
        _log.warning(
            "audit: %s %s, cluster %s, request %s",
            call.principal or "an anonymous caller",
            text,
            cluster.config.cluster,
            call.request_id,
        )
        return revision


def _earlier_skips(snapshot: Snapshot) -> list[watch_pb2.EarlierChangeLogSkip]:
    """Returns the requests to give up commits that may be missing in the history of the change log.
    One record there shows all of them, unless the publisher is recording the earlier ones right
    now.
    """
    skip, state = skip_of(snapshot), noted_state(snapshot)
    is_noted = state is not None and state.incarnation == snapshot.incarnation
    if skip is None or (state is not None and is_noted and state.revision >= skip.revision):
        return []
    newest = watch_pb2.EarlierChangeLogSkip(revision=skip.revision, commits=skip.commits)
    return [*skip.earlier, newest]


def _operation(text: str, call: Call) -> Operation:
    return Operation(text, call.principal, call.request_id)


def adoption_to_proto(adopted: AdoptionRow) -> admin_pb2.Adoption:
    """Returns one adoption as a row of the response."""
    return admin_pb2.Adoption(
        physical_name=adopted.physical_name,
        path="" if adopted.path is None else str(adopted.path),
        rule=adopted.rule,
        action=adopted.action,
        message=adopted.message,
    )


def adoptions_to_proto(rows: Sequence[AdoptionRow]) -> admin_pb2.AdoptTopicsResponse:
    """Returns the rows of a response, as many as one message holds: detached topics first, since no
    other list has them; unchanged ones last.
    """
    response = admin_pb2.AdoptTopicsResponse()
    room = _ADOPTIONS_BYTES
    for row in sorted(rows, key=lambda row: _ORDER.get(row.action, 1)):
        one = adoption_to_proto(row)
        room -= one.ByteSize() + _AROUND_BYTES
        if room < 0:
            break
        response.adoptions.append(one)
    response.omitted_count = len(rows) - len(response.adoptions)
    return response


def drift_to_proto(drift: Drift) -> admin_pb2.Drift:
    """Returns one drift as a row of the response."""
    return admin_pb2.Drift(
        path=str(drift.path),
        physical_name=drift.physical_name,
        field=drift.field,
        expected=drift.expected,
        actual=drift.actual,
        provision=entry_pb2.Provision.Name(drift.provision),
    )
