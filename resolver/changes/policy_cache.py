"""Effective policies of any path from the clusters' change logs, without a call for each path.

A cluster's log is loaded on first use, and closed after some time without use. If a log is not
loaded, the result is an error, never that no policies are set.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from google.protobuf.message import DecodeError

from resolver import units
from resolver.changes.record import entry_key, fact_key, inherited_key
from resolver.changes.state_fold import LogState, StateRow
from resolver.changes.state_reader import StateReader
from resolver.client import Resolver
from resolver.deadline_shares import per_server_timeout, time_share
from resolver.entry_fields import policy_fields
from resolver.errors import (
    Absent,
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    KdirError,
    Lame,
    NotReady,
    TokenExpired,
    Unavailable,
    Unimplemented,
)
from resolver.lookup_options import as_path
from resolver.path import Path
from resolver.revision_token import Position, Token
from resolver.transport import method

if TYPE_CHECKING:
    from kdir.v1 import federation_pb2, watch_pb2

    from resolver.owner_calls import Owner

__all__ = ["EffectivePolicies", "PolicyCache", "PolicyValue", "effective_values"]

_ROOT_ID: Final = 1
"""Entry id of each cluster's root directory."""
_TIME_BYTES: Final = 8
"""Bytes of the time of receipt, with which the row of a parent's message begins."""
_REMEMBERED: Final = 4_096
_SLICE_SECONDS: Final = 1.0
_LEAST_SECONDS: Final = 0.001
_NO_PARENT_SECONDS: Final = 60.0
"""Time for which a cluster counts as one without a parent; its config may name a parent later."""
_ASK_AGAIN_SECONDS: Final = 1.0
"""Longest wait for a server's answer if an earlier answer can be used instead."""

_GET_LOG: Final = "WatchService.GetChangeLog"
_LOG_SECONDS: Final = 60.0
"""Time for which a server's answer about the location of a log is valid."""

Levels = Sequence[tuple[str, Mapping[str, "str | None"]]]
"""Levels, outermost first: the path of each, and the fields that it sets; None = a cleared
field.
"""


class PolicyValue(NamedTuple):
    """One effective value."""

    value: str
    path: str
    """Path of the entry that sets the value."""


@dataclass(frozen=True, slots=True)
class EffectivePolicies:
    """Effective policies of an entry, as of one revision of its cluster."""

    path: str
    """Canonical path, with links replaced by their targets."""
    values: Mapping[str, PolicyValue]
    """Values by their keys on ``kdir set``. A missing key is set nowhere, or cleared."""
    cluster_id: str
    revision: int
    trouble: str = ""
    """Reason why the values may be outdated or incomplete. Empty = all records that matter can be
    read, the log is followed, and a server answered within about a minute that it is published.
    """


def effective_values(levels: Levels) -> Mapping[str, PolicyValue]:
    """Returns the value of each name from the nearest level that sets it; a name that this level
    clears is left out.
    """
    found: dict[str, PolicyValue | None] = {}
    for path, fields in levels:
        for name, value in fields.items():
            found[name] = None if value is None else PolicyValue(value, path)
    return MappingProxyType({name: one for name, one in found.items() if one is not None})


class _Elsewhere(Exception):
    """Signal that a path is not in this cluster's log: it is in another cluster, or behind a link
    or mount.
    """


@dataclass(slots=True, eq=False)
class _Cluster:
    reader: StateReader
    log: Any
    """Newest answer of ``GetChangeLog``."""
    mount: Path
    """Mount of the cluster when it was opened; its checkpoints have the present one."""
    used_at: float
    users: set[object] = field(default_factory=set)
    """One object for each use in progress."""
    no_parent_until: float = 0.0
    """Time until which a server's answer is valid that the cluster awaits no parent."""
    log_until: float = 0.0
    """Time on the clock until which ``log`` is valid."""
    is_dropped: bool = False
    """True if the cluster was removed from the cache: the last user closes the log."""
    successor: _Cluster | None = None
    """The same log at the brokers of a later answer; it replaces this one once it is loaded."""

    def close(self) -> None:
        """Closes the log, and its successor."""
        self.reader.close()
        if self.successor is not None:
            self.successor.reader.close()

    def newest_mount(self) -> Path:
        """Returns the mount in the newest checkpoint; without a checkpoint, ``mount``."""
        state = self.reader.state
        return (_mount_of(state) if state is not None else None) or self.mount

    def trouble(self) -> str:
        """Returns why the state may be outdated; empty = it is not."""
        successor = self.successor
        if successor is not None:
            return f"the log may be at other brokers by now: {successor.reader.trouble}"
        return "; ".join(filter(None, (self.reader.trouble, _waiting_text(self.log))))


class PolicyCache:
    """Cache of effective policies; a context manager. Thread-safe; only the process that made it
    may use it.

    The caller needs the rights to read the state topics of the logs, which hold whole trees with
    grants, and to call ``WatchService.GetChangeLog``.

    Args:
        servers: as for ``Resolver``.
        properties: librdkafka's properties for connections to the brokers, without
            ``bootstrap.servers``.
        idle_seconds: time without use after which a cluster's log is closed.
        timeout_seconds: default time limit of a method, the load of a log included.
        resolver_options: further arguments of the ``Resolver``, such as ``credentials``.
    """

    def __init__(
        self,
        servers: str | Sequence[str] | None = None,
        *,
        properties: Mapping[str, Any] = MappingProxyType({}),
        idle_seconds: float = 600.0,
        timeout_seconds: float = 30.0,
        **resolver_options: Any,
    ) -> None:
        self._resolver: Final = Resolver(servers, **resolver_options)
        self._properties: Final = properties
        self._idle_seconds: Final = idle_seconds
        self._timeout: Final = timeout_seconds
        self._process: Final = os.getpid()
        self._lock: Final = threading.Lock()
        """Guards ``_clusters`` and ``_wanted``; not held while waiting for a log."""
        self._clusters: dict[str, _Cluster] = {}
        self._wanted: Final[dict[str, Position]] = {}
        self._closing: Final = threading.Event()
        self._sweeper: Final = threading.Thread(
            target=self._evict_idle, name="policy-cache", daemon=True
        )
        self._sweeper.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all logs and the ``Resolver``; does nothing in another process than the
        cache's.
        """
        if os.getpid() != self._process:
            return
        self._closing.set()
        self._sweeper.join()
        with self._lock:
            clusters, self._clusters = list(self._clusters.values()), {}
        for one in clusters:
            one.close()
        self._resolver.close()

    @property
    def cluster_ids(self) -> frozenset[str]:
        """Ids of the clusters whose logs are followed."""
        self._refuse_other_process()
        with self._lock:
            return frozenset(self._clusters)

    # -- questions -------------------------------------------------------------------------------

    def effective(
        self, path: str | Path, *, timeout_seconds: float | None = None
    ) -> EffectivePolicies:
        """Returns the effective policies of a topic or directory; those of the topic if both have
        the path.

        Raises:
            Absent: the log of the owner has no such entry.
            NotReady: the log, or the cluster's inherited policies, are not loaded, or a record that
                decides the answer cannot be read.
            Unimplemented: the cluster has no change log.
            Closed: this cache was closed.
            InvalidArgument: another process made this cache.
            KdirError: as ``Resolver.owner_of``.
        """
        self._refuse_other_process()
        wanted = as_path(path)
        deadline = self._deadline(timeout_seconds)
        near, failure = self._nearest(wanted), None
        if near is not None and not self._is_elsewhere(near, wanted):
            try:
                return self._answer(near, wanted, deadline)
            except (_Elsewhere, Absent):
                pass  # an entry that is absent here may be behind a site link of the servers
            except NotReady as error:
                failure = error  # a cluster below may own the path, and its log may be loaded
        try:
            owner = self._resolver.owner_of(wanted, timeout_seconds=_left(deadline))
        except KdirError:
            if failure is not None:
                raise failure from None
            raise
        if failure is not None and (owner.cluster_id, owner.path) == (near, wanted):
            raise failure
        try:
            return self._answer(owner.cluster_id, owner.path, deadline, owner)
        except _Elsewhere:
            raise NotReady(
                f"the change log of {owner.cluster} does not show yet that it owns {owner.path}"
            ) from None

    def wait_for(self, token: str, *, timeout_seconds: float | None = None) -> None:
        """Waits until all later answers are at least as new as a token, such as that of a write.

        Logs that are not loaded are not waited for here, but by the first answer that needs them.

        Raises:
            NotReady: a log did not reach the token within the time limit. Later answers do not wait
                for the token, unless an earlier call also requires it.
            TokenExpired: the token is of an earlier incarnation of a store.
            InvalidArgument: another process made this cache.
            InvalidToken
        """
        self._refuse_other_process()
        deadline = self._deadline(timeout_seconds)
        for cluster_id, position in Token.parse(token).positions.items():
            with self._lock:
                known = self._wanted.get(cluster_id)
                is_same = known is not None and known.incarnation == position.incarnation
                is_new = known is None or not is_same or known.revision < position.revision
                if is_new:
                    self._wanted[cluster_id] = position
                is_open = cluster_id in self._clusters
            if not is_open:
                continue
            try:
                with (
                    suppress(_Elsewhere),  # closed meanwhile: the next answer loads it
                    self._used(cluster_id, None, deadline) as cluster,
                ):
                    self._state(cluster_id, cluster, deadline)
            except KdirError:
                if is_new:
                    self._forget(cluster_id, position)
                raise

    def _refuse_other_process(self) -> None:
        if os.getpid() != self._process:
            raise InvalidArgument(
                "this policy cache was made by another process; make one after the fork"
            )

    def _deadline(self, timeout_seconds: float | None) -> float:
        return time.monotonic() + (self._timeout if timeout_seconds is None else timeout_seconds)

    def _answer(
        self, cluster_id: str, path: Path, deadline: float, owner: Owner | None = None
    ) -> EffectivePolicies:
        with self._used(cluster_id, owner, deadline) as cluster:
            try:
                state = self._state(cluster_id, cluster, deadline)
            except TokenExpired:
                state = cluster.reader.loaded(_left(deadline))
            mount = _mount_of(state) or cluster.mount
            if not mount.is_prefix_of(path):
                raise _Elsewhere
            self._refuse_unknown_parent(state, cluster, mount, path, deadline)
            levels = [*_inherited_levels(state), *_own_levels(state, mount, path)]
            point = state.checkpoint
            return EffectivePolicies(
                str(path),
                effective_values(levels),
                cluster_id,
                0 if point is None else point.revision,
                "; ".join(filter(None, (cluster.trouble(), _unreadable_text(state)))),
            )

    def _refuse_unknown_parent(
        self, state: LogState, cluster: _Cluster, mount: Path, path: Path, deadline: float
    ) -> None:
        """Raises ``NotReady`` if the cluster is unmounted, or awaits its inherited policies. If the
        log has no parent, a server is queried, since a parent that never connected is only in its
        config.
        """
        unmounted = _fact(state, b"f/unmounted")
        if unmounted is not None:
            raise NotReady(f"the cluster is unmounted: {unmounted.decode(errors='replace')}")
        if mount.is_root or _inherited_row(state) is not None:
            return
        if _fact(state, b"f/parent") is not None:
            raise NotReady(f"what {mount} inherits is not known yet: no parent has sent it")
        if time.monotonic() < cluster.no_parent_until:
            return
        from kdir.v1 import policies_pb2

        request = policies_pb2.GetEffectivePoliciesRequest()
        name = "PolicyService.GetEffectivePolicies"
        seconds = _left(deadline)
        if cluster.no_parent_until:
            seconds = min(seconds, _ASK_AGAIN_SECONDS)
        try:
            self._resolver.call(path, name, request, timeout_seconds=seconds)
        except NotReady:
            raise
        except (Unavailable, DeadlineExceeded):
            if not cluster.no_parent_until:
                raise  # no server has answered yet; otherwise the last answer is used
        cluster.no_parent_until = time.monotonic() + _NO_PARENT_SECONDS

    # -- clusters --------------------------------------------------------------------------------

    def _nearest(self, path: Path) -> str | None:
        """Returns the id of the loaded cluster whose mount is the longest prefix of the path."""
        found, length = None, -1
        with self._lock:
            clusters = list(self._clusters.items())
        for cluster_id, cluster in clusters:
            state = cluster.reader.state
            if state is None:
                continue
            mount = _mount_of(state) or cluster.mount
            if len(mount.segments) > length and mount.is_prefix_of(path):
                found, length = cluster_id, len(mount.segments)
        return found

    def _is_elsewhere(self, cluster_id: str, path: Path) -> bool:
        """True if the log of a cluster, which has not reached a token yet, already shows that the
        path is in another cluster: then the answer need not wait for the token.
        """
        with self._lock:
            cluster = self._clusters.get(cluster_id)
            is_awaited = cluster_id in self._wanted
        state = None if cluster is None or not is_awaited else cluster.reader.state
        if cluster is None or state is None:
            return False
        try:
            _own_levels(state, _mount_of(state) or cluster.mount, path)
        except _Elsewhere:
            return True
        except KdirError:
            pass  # the newer state may have the entry
        return False

    @contextmanager
    def _used(self, cluster_id: str, owner: Owner | None, deadline: float) -> Iterator[_Cluster]:
        """Yields an open cluster, which is not closed while the block runs; opens it if ``owner``
        is given.
        """
        use, cluster = object(), None
        try:
            with self._lock:
                cluster = self._clusters.get(cluster_id)
                if cluster is not None:
                    cluster.users.add(use)
            if cluster is not None and self._has_left(cluster_id, cluster, deadline):
                self._release(cluster, use)
                with self._lock:
                    # Its successor, if that is loaded: then no server need be queried.
                    cluster = self._clusters.get(cluster_id)
                    if cluster is not None:
                        cluster.users.add(use)
            if cluster is None:
                if owner is None:
                    raise _Elsewhere
                log = self._log_of(owner, deadline)
                with self._lock:
                    if self._closing.is_set():  # otherwise the log would never be closed
                        raise Closed("this policy cache was closed: make another one")
                    cluster = self._clusters.get(cluster_id)
                    if cluster is None:
                        cluster = self._opened(cluster_id, owner.mount, log)
                        self._clusters[cluster_id] = cluster
                    cluster.users.add(use)
            yield cluster
        finally:
            if cluster is not None:
                self._release(cluster, use)

    def _release(self, cluster: _Cluster, use: object) -> None:
        """Ends one use of a cluster; the last use of a dropped cluster closes its log."""
        with self._lock:
            cluster.users.discard(use)
            cluster.used_at = time.monotonic()
            is_over = cluster.is_dropped and not cluster.users
        if is_over:
            cluster.reader.close()

    def _has_left(self, cluster_id: str, cluster: _Cluster, deadline: float) -> bool:
        """Returns True, and drops the cluster, if its log has ended or moved, or its mount is
        another cluster's now. At most once a minute a server is queried for this: a log that has
        ended shows no error.

        Another list of brokers may be of the same Kafka, so the log is dropped only after its
        successor is loaded from there.
        """
        now = time.monotonic()
        with self._lock:
            successor, is_open = cluster.successor, self._clusters.get(cluster_id) is cluster
            if is_open and successor is not None and successor.reader.state is not None:
                self._drop(cluster_id, cluster)
                self._clusters[cluster_id] = successor
            if cluster.is_dropped or now < cluster.log_until:
                return cluster.is_dropped
            cluster.log_until = now + _LOG_SECONDS
        mount = cluster.newest_mount()
        try:
            found = self._log_now(mount, cluster_id, min(deadline, now + _ASK_AGAIN_SECONDS))
        except KdirError:
            return False  # the last answer is used
        with self._lock:
            unused = cluster.successor
            if self._clusters.get(cluster_id) is not cluster:
                unused = None  # another thread has dropped it meanwhile
            elif found is None:
                self._drop(cluster_id, cluster)
            elif _is_same_log(cluster.log, found):
                cluster.log, cluster.successor = found, None
            elif _is_same_topic(cluster.log, found):
                if unused is not None and _is_same_log(unused.log, found):
                    unused = None
                else:
                    cluster.successor = self._opened(cluster_id, mount, found)
            else:
                self._drop(cluster_id, cluster)
            is_dropped = cluster.is_dropped
        if unused is not None:
            unused.reader.close()
        return is_dropped

    def _log_now(self, mount: Path, cluster_id: str, deadline: float) -> Any:
        """Returns the answer of ``_ask_for_log``; None = the mount is another cluster's now.

        Raises:
            KdirError: neither could be found out.
        """
        try:
            found = self._ask_for_log(mount, cluster_id, deadline)
            if found.authority.cluster.cluster_id == cluster_id:
                return found
        except (Unavailable, DeadlineExceeded):
            raise
        except KdirError:
            pass  # such as an error of another cluster's servers
        owner = self._resolver.owner_of(mount, timeout_seconds=_left(deadline))
        if owner.cluster_id == cluster_id:
            raise Lame(f"cluster {owner.cluster} did not return the address of its change log")
        return None

    def _drop(self, cluster_id: str, cluster: _Cluster) -> None:
        """Removes a cluster, with the lock held; its last user closes its log."""
        cluster.is_dropped, cluster.successor = True, None
        if self._clusters.get(cluster_id) is cluster:
            del self._clusters[cluster_id]

    def _log_of(self, owner: Owner, deadline: float) -> Any:
        """Returns the answer of ``GetChangeLog``: topics and brokers of a cluster's log."""
        found = self._ask_for_log(owner.mount, owner.cluster_id, deadline)
        if not found.configured:
            raise Unimplemented(
                f"cluster {owner.cluster} keeps no change log: its servers' configs have no "
                f"[change_log]"
            )
        return found

    def _opened(self, cluster_id: str, mount: Path, log: Any) -> _Cluster:
        brokers = {"bootstrap.servers": ",".join(log.bootstrap_servers)}
        properties = {"log_level": 0, **self._properties, **brokers}
        registry = log.schema_registry
        reader = StateReader(properties, log.state_topic, cluster_id, registry=registry)
        now = time.monotonic()
        return _Cluster(reader, log, mount, now, log_until=now + _LOG_SECONDS)

    def _ask(self, mount: Path, cluster_id: str, deadline: float) -> Any:
        request = _log_request(cluster_id)
        return self._resolver.call(mount, _GET_LOG, request, timeout_seconds=_left(deadline))

    def _ask_for_log(self, mount: Path, cluster_id: str, deadline: float) -> Any:
        """Returns the answer of ``GetChangeLog`` from a server whose config has ``[change_log]``.
        If the first server's has not, but the cluster has a log, all its servers are queried.

        Raises:
            KdirError: as ``Resolver.call``; or no configured server was found, and one did not
                answer.
        """
        answer = self._ask(mount, cluster_id, deadline)
        is_kept = answer.publisher or answer.HasField("state")
        if answer.configured or not is_kept:
            return answer
        owner = self._resolver.owner_of(mount, timeout_seconds=_left(deadline))
        request = _log_request(cluster_id)
        failure: KdirError | None = None
        for number, endpoint in enumerate(owner.endpoints):
            share = time_share(len(owner.endpoints) - number)
            seconds = per_server_timeout(_left(deadline), share)
            try:
                given = self._resolver.transport.call(
                    endpoint, method(_GET_LOG), request, seconds, cluster_id=owner.cluster_id
                )
            except KdirError as error:
                failure = error
                continue
            if given.configured and given.authority.cluster.cluster_id == cluster_id:
                return given
        if failure is not None:
            raise failure
        if answer.publisher:
            raise NotReady(f"{answer.publisher}, which publishes the change log, did not answer")
        return answer

    def _state(self, cluster_id: str, cluster: _Cluster, deadline: float) -> LogState:
        """Returns the state of a cluster, at least as new as the tokens given to ``wait_for``.

        Raises:
            NotReady
            TokenExpired: a token is of an earlier incarnation; later calls do not wait for it.
        """
        with self._lock:
            wanted = self._wanted.get(cluster_id)
        if wanted is None:
            return cluster.reader.loaded(_left(deadline))
        reached = partial(_has_reached, position=wanted)
        while True:
            try:
                state = cluster.reader.wait(reached, min(_SLICE_SECONDS, _left(deadline)))
            except TokenExpired:
                self._forget(cluster_id, wanted)
                raise
            except NotReady:
                if _left(deadline) <= _LEAST_SECONDS or self._closing.is_set():
                    raise
            else:
                self._forget(cluster_id, wanted)
                return state
            # A revision without a record counts as reached once all commits before it are
            # published.
            try:
                answer = self._ask(cluster.newest_mount(), cluster_id, deadline)
            except KdirError:
                continue  # the log may reach the revision even if no server answers
            noted = answer.state
            is_same = noted.incarnation == wanted.incarnation == answer.authority.incarnation
            is_there = answer.authority.revision >= wanted.revision and not answer.waiting_commits
            if is_same and is_there:
                revision = min(noted.revision, wanted.revision)
                reached = partial(_has_reached, position=Position(wanted.incarnation, revision))

    def _forget(self, cluster_id: str, wanted: Position) -> None:
        """Removes the awaited position of a cluster, unless another one replaced it meanwhile."""
        with self._lock:
            if self._wanted.get(cluster_id) == wanted:
                del self._wanted[cluster_id]

    def _evict_idle(self) -> None:
        while not self._closing.wait(max(0.05, min(self._idle_seconds / 4, 30.0))):
            idle = []
            since = time.monotonic() - self._idle_seconds
            with self._lock:
                for cluster_id, cluster in list(self._clusters.items()):
                    if not cluster.users and cluster.used_at < since:
                        idle.append(self._clusters.pop(cluster_id))
            for cluster in idle:
                cluster.close()


def _log_request(cluster_id: str) -> watch_pb2.GetChangeLogRequest:
    from kdir.v1 import watch_pb2

    return watch_pb2.GetChangeLogRequest(cluster=cluster_id)


def _is_same_log(one: Any, other: Any) -> bool:
    """True if two answers of ``GetChangeLog`` name the same log. One shared broker suffices, since
    servers may list different brokers of one Kafka.
    """
    is_shared = not set(one.bootstrap_servers).isdisjoint(other.bootstrap_servers)
    return is_shared and _is_same_topic(one, other)


def _is_same_topic(one: Any, other: Any) -> bool:
    """True if two answers of ``GetChangeLog`` differ in their brokers only."""
    same = [(found.configured, found.state_topic, found.schema_registry) for found in (one, other)]
    return same[0] == same[1]


def _waiting_text(log: Any) -> str:
    """Returns why commits wait to be published, as text; empty = they do not."""
    if not log.state.message:
        return ""
    waiting = f"{units.plural(log.waiting_commits, 'commit')} to be published"
    return f"the change log waits, with {waiting}: {log.state.message}"


def _left(deadline: float) -> float:
    return max(_LEAST_SECONDS, deadline - time.monotonic())


def _has_reached(state: LogState, position: Position) -> bool:
    point = state.checkpoint
    if point is None or point.checkpoint is None:
        return False
    incarnations = point.checkpoint.incarnations
    if position.incarnation in incarnations[:-1] and position.incarnation != incarnations[-1]:
        raise TokenExpired("the store of the cluster began another incarnation since")
    return incarnations[-1] == position.incarnation and point.revision >= position.revision


# -- levels ----------------------------------------------------------------------------------------


def _mount_of(state: LogState) -> Path | None:
    point = state.checkpoint
    if point is None or point.checkpoint is None or not point.checkpoint.mount:
        return None
    return Path.parse(point.checkpoint.mount)


def _own_levels(state: LogState, mount: Path, path: Path) -> Levels:
    """Returns the levels of an entry and of the directories above it, within the cluster.

    Raises:
        Absent, _Elsewhere
        NotReady: the record of one of these entries cannot be read, or an unreadable record may be
            one of them.
    """
    levels = []
    root = state.find_entry(0, is_topic=False, name="")
    _refuse_unreadable(state, entry_key(state.cluster_id, _ROOT_ID), str(mount))
    if root is not None:
        levels.append((str(mount), _read_entry(state, root, mount).fields))
    names = path.below(mount)
    at, parent_id = mount, _ROOT_ID
    for number, name in enumerate(names, 1):
        at = at.child(name)
        row = None
        if number == len(names):
            row = state.find_entry(parent_id, is_topic=True, name=name)
        row = row or state.find_entry(parent_id, is_topic=False, name=name)
        if row is None:
            # Any unreadable entry may be the missing one: the name is only in the record.
            for key in state.unreadable:
                if key.startswith(f"{state.cluster_id}/e/"):
                    _refuse_unreadable(state, key, f"{path}, or of another entry,")
            raise Absent(f"{path} does not exist, as of the change log of its cluster")
        entry = _read_entry(state, row, at)
        if entry.leads_elsewhere:
            raise _Elsewhere
        levels.append((str(at), entry.fields))
        parent_id = row.entry_id
    return levels


def _refuse_unreadable(state: LogState, key: str, whose: str) -> None:
    """Raises ``NotReady`` if the newest record of a key cannot be read."""
    reason = state.unreadable.get(key)
    if reason is not None:
        raise NotReady(f"the record of {whose} in the change log cannot be read: {reason}")


def _unreadable_text(state: LogState) -> str:
    """Returns the number of unreadable records that may matter to policies, as text; empty = there
    are none.
    """
    found = [key for key in state.unreadable if not key.startswith(f"{state.cluster_id}/g/")]
    if not found:
        return ""
    count = units.plural(len(found), "record")
    return f"{count} of the change log cannot be read, such as {found[0]}"


class _Entry(NamedTuple):
    fields: Mapping[str, str | None]
    leads_elsewhere: bool


def _read_entry(state: LogState, row: StateRow, at: Path) -> _Entry:
    """Returns the entry of a row.

    Raises:
        NotReady: the row, or the entry's newest record, cannot be read.
    """
    _refuse_unreadable(state, entry_key(state.cluster_id, row.entry_id), str(at))
    try:
        return _entry(row.record)
    except DecodeError as error:
        raise NotReady(f"the row of {at} in the change log cannot be read: {error}") from None


@lru_cache(_REMEMBERED)
def _entry(record: bytes) -> _Entry:
    from kdir.v1 import entry_pb2

    entry = entry_pb2.Entry.FromString(record)
    is_way = entry.WhichOneof("kind") in {"link", "mount"}
    return _Entry(MappingProxyType(dict(policy_fields(entry.policies))), is_way)


def _inherited_levels(state: LogState) -> Levels:
    """Returns the levels above the mount, as the parent sent them last.

    Raises:
        NotReady: they cannot be read, or are for another mount.
    """
    row = _inherited_row(state)
    if row is None:
        return ()
    try:
        inherited = _inherited(row.record)
        place = _welcome(_fact(state, b"f/parent"))
    except DecodeError as error:
        raise NotReady(f"what the cluster inherits cannot be read: {error}") from None
    at = inherited.mount, inherited.epoch
    if place is not None and inherited.mount and at != (place.mount, place.epoch):
        raise NotReady(f"what the cluster inherits is of another mount: {inherited.mount}")
    return [(level.path, dict(policy_fields(level.policies))) for level in inherited.levels]


def _inherited_row(state: LogState) -> StateRow | None:
    key = inherited_key(state.cluster_id)
    _refuse_unreadable(state, key, "what the cluster inherits")
    return state.rows.get(key)


def _fact(state: LogState, key: bytes) -> bytes | None:
    row = state.rows.get(fact_key(state.cluster_id, key))
    return None if row is None else row.record


@lru_cache(64)
def _inherited(value: bytes) -> federation_pb2.Inherited:
    from kdir.v1 import federation_pb2

    return federation_pb2.Inherited.FromString(value[_TIME_BYTES:])


@lru_cache(64)
def _welcome(value: bytes | None) -> federation_pb2.Welcome | None:
    from kdir.v1 import federation_pb2

    return None if value is None else federation_pb2.Welcome.FromString(value[_TIME_BYTES:])
