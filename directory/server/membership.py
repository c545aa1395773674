"""Membership of the live servers of one cluster: registers this server, lists the others, raises
the feature level.

Each server registers under ``m/<server id>``, by an ephemeral key, and reads the others in its
replica. A server that does not support the cluster's finalized level must not serve, and is not
registered. ``feature_levels.py`` defines the levels.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kdir.v1 import admin_pb2

from directory.maintenance.registered_servers import members_of, read_member
from directory.namespace import keys
from directory.namespace.snapshot import Snapshot
from directory.server.feature_levels import (
    FIRST_LEVEL,
    LEVELS,
    Levels,
    finalized_level,
    highest_supported,
    level_needed,
    level_to_finalize,
    read_level,
    refuse_unfinalized,
)
from directory.server.logs import with_log_context
from directory.store.base import (
    Conflict,
    EphemeralKey,
    IncompatibleStore,
    KeyEquals,
    Put,
    Store,
    StoreUnreachable,
    Transaction,
    UnchangedSince,
    Write,
)
from directory.store.event_rows import Operation
from directory.store.replica import AppliedCommit, Replica, ReplicaState
from directory.store.writer import Writer
from resolver.errors import StoreUnavailable, WriteConflict
from resolver.host_port import MAX_ENDPOINTS

__all__ = [
    "VERSION",
    "FinalizeResult",
    "LiveServers",
    "Membership",
    "ServerTooOld",
    "check_level_at_startup",
    "unreadable",
]

VERSION: Final = "0.1.0"
_log = logging.getLogger(__name__)

_LOCK_SECONDS: Final = 1.0
"""Interval between attempts to register this server."""
LASTING_SECONDS: Final = 5.0
"""Interval between checks that the registration exists and is current; it is also checked at once
when the tree lacks it.
"""
_SWEEP_SECONDS: Final = 5.0
_ALONE_SECONDS: Final = 60.0
"""Interval between sweeps while no other server is registered: they only find stray rows."""
_TRIES: Final = 8


class ServerTooOld(IncompatibleStore):
    """Error: the cluster's finalized level is higher than this server supports, so it must not
    serve.
    """

    def __init__(self, finalized: int, level: int) -> None:
        super().__init__(
            f"feature level {finalized} is finalized in this cluster, and this server supports "
            f"{level}: start a newer kdir"
        )


@dataclass(frozen=True, slots=True)
class LiveServers:
    """Live servers of one snapshot, by id, and the finalized level."""

    servers: Mapping[str, admin_pb2.Member]
    finalized: int | None
    """Finalized feature level; None = it cannot be read."""

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot) -> LiveServers:
        """Returns the live servers, each with its roles."""
        servers = members_of(snapshot.facts(keys.MEMBER))
        for key, value in snapshot.facts(keys.ROLE):
            candidate = value.partition(b"\n")[0].decode("utf-8", "replace")
            if candidate in servers:
                servers[candidate].roles.append(
                    key.removeprefix(keys.ROLE).decode(errors="replace")
                )
        return cls(servers, finalized_level(snapshot))


@dataclass(frozen=True, slots=True)
class FinalizeResult:
    """Result of finalizing a level."""

    level: int | None
    """Finalized level; None = it cannot be read."""
    supported: int
    """Highest level that every live server supports."""
    members: tuple[admin_pb2.Member, ...]
    revision: int | None
    """Revision of the write; None = nothing was written."""


class Membership:
    """Servers of one cluster, as one of them has them.

    Args:
        server_id: of this server; unique among all servers ever started.
        endpoints: returns the addresses of this server, ``host:port``; called repeatedly.
        levels: the feature levels that this server supports.
    """

    def __init__(
        self,
        store: Store,
        replica: Replica,
        writer: Writer,
        *,
        server_id: str,
        endpoints: Callable[[], tuple[str, ...]],
        levels: Levels = LEVELS,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._store: Final = store
        self._replica: Final = replica
        self._writer: Final = writer
        self._server_id: Final = server_id
        self._endpoints: Final = endpoints
        self._levels: Final = levels
        self.level: Final = max(levels)
        self._clock: Final = clock
        self._started_at_ms: Final = now_ms()
        self._host: Final = socket.gethostname()
        self._stop: Final = threading.Event()
        self._wake: Final = threading.Event()
        self._thread: threading.Thread | None = None
        self.announcement: EphemeralKey | None = None
        """Ephemeral key with this server's registration; None while it has none."""
        self._notified = b""
        self._swept_at = -math.inf
        self._trouble = ""
        self.refused = ""
        """Why this server may not serve; empty = it may."""
        self._roster = LiveServers({}, FIRST_LEVEL)
        self._listeners: tuple[Callable[[], None], ...] = ()
        replica.subscribe(self._applied)

    # -- servers and levels ------------------------------------------------------------------

    @property
    def finalized(self) -> int:
        """Level that changes may use; 1 before it is loaded or if it cannot be read."""
        return self._roster.finalized or FIRST_LEVEL

    @property
    def stored_level(self) -> int | None:
        """Finalized level in the store; None = it cannot be read."""
        return self._roster.finalized

    def live(self) -> list[admin_pb2.Member]:
        """Returns the live servers by id, including this one, registered or not."""
        servers = dict(self._roster.servers)
        own = self._member()
        if self._server_id in servers:
            own.roles.extend(servers[self._server_id].roles)
        servers[self._server_id] = own
        return [servers[server] for server in sorted(servers)]

    def endpoints(self) -> tuple[str, ...]:
        """Returns the endpoints of all live servers, each once; at most ``MAX_ENDPOINTS``."""
        live = self.live()
        staying = live
        if self._stop.is_set():  # this server's are only returned if it is the last one
            staying = [one for one in live if one.server != self._server_id]
        found = dict.fromkeys(at for member in staying or live for at in member.endpoints)
        return tuple(found)[:MAX_ENDPOINTS]

    def check_writes_allowed(self, writes: Iterable[Write]) -> None:
        """Checks that every server of the cluster can read these writes.

        Raises:
            LevelNotFinalized: a server cannot; the error names such servers.
        """
        finalized = self._roster.finalized or FIRST_LEVEL
        if finalized >= self.level:
            return
        needed = level_needed(writes, self._levels)
        if needed > finalized:
            levels = {one.server: one.feature_level for one in self.live()}
            refuse_unfinalized(needed, self.stored_level, levels)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Registers ``listener``, which is called when servers come, go or change, when the level
        is raised, and when this server must not serve any more. It is called in other threads and
        must be quick.
        """
        self._listeners = (*self._listeners, listener)

    def _member(self) -> admin_pb2.Member:
        return admin_pb2.Member(
            server=self._server_id,
            endpoints=self._endpoints(),
            feature_level=self.level,
            version=VERSION,
            host=self._host,
            pid=os.getpid(),
            started_at_ms=self._started_at_ms,
        )

    def _applied(self, applied: AppliedCommit) -> None:
        if not applied.reloaded and not any(_concerns(one.key) for one in applied.writes):
            return
        before, self._roster = self._roster, LiveServers.from_snapshot(applied.after)
        if applied.reloaded or self._server_id not in self._roster.servers:
            self._wake.set()
        # With an unreadable level a running server continues: it supports the finalized level.
        if self.finalized > self.level:
            self._refuse(ServerTooOld(self.finalized, self.level))
        if self._roster != before:
            self._notify_listeners()

    def _notify_listeners(self) -> None:
        for listener in self._listeners:
            listener()

    def _refuse(self, reason: ServerTooOld) -> None:
        if not self.refused:
            self.refused = str(reason)
            _log.error("%s", reason)
            self._notify_listeners()

    # -- registering -------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to register, in the background, once the tree is loaded."""
        self._thread = threading.Thread(
            target=with_log_context(self._run), name="members", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Withdraws the registration: callers should not be sent here any more."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
            if self._thread.is_alive():
                return  # the store does not answer; the key expires once the process has ended
        announcement, self.announcement = self.announcement, None
        if announcement is not None:
            announcement.delete()

    def _run(self) -> None:
        while not self._stop.is_set() and not self.refused:
            try:
                self.refresh()
                self._trouble = ""
            except ServerTooOld as reason:
                self._refuse(reason)
            except (StoreUnreachable, IncompatibleStore) as reason:
                if str(reason) != self._trouble:
                    self._trouble = str(reason)
                    _log.warning("not registered among the cluster's servers yet: %s", reason)
            except Exception:  # noqa: BLE001 - a bug must not end the thread in silence
                _log.exception("registering stumbled")
            self._wake.wait(_LOCK_SECONDS if self.announcement is None else LASTING_SECONDS)
            self._wake.clear()

    def refresh(self) -> None:
        """Registers again if necessary, reports changes, and sweeps periodically.

        Raises:
            StoreUnreachable: the store cannot be reached.
            ServerTooOld: the finalized level is higher than this server supports.
            IncompatibleStore: the store was replaced by another one.
        """
        if self._replica.state is ReplicaState.LOADING:
            return
        value = self._member().SerializeToString(deterministic=True)
        announcement = self.announcement
        if announcement is None or not announcement.is_alive() or self._is_removed():
            self.announcement = self._announce(value)
            if announcement is not None:
                # The row belongs to the new announcement now. Without this call the lease or lock
                # of the old one would stay for ever, as after a new incarnation of the store.
                announcement.delete()
        elif value != self._notified:
            announcement.update(value)
        self._notified = value
        now = self._clock()
        is_alone = self._roster.servers.keys() <= {self._server_id}
        if now - self._swept_at >= (_ALONE_SECONDS if is_alone else _SWEEP_SECONDS):
            self._swept_at = now
            self._store.remove_expired(keys.MEMBER)

    def _is_removed(self) -> bool:
        """True if this server's row was removed: by an operator, or by another server because the
        liveness file was removed with its folder.
        """
        if self._server_id in self._roster.servers:
            return False
        # The replica may only lag behind the store.
        return _read(self._store, keys.member_key(self._server_id)) is None

    def _announce(self, value: bytes) -> EphemeralKey:
        for _ in range(_TRIES):
            found = _read(self._store, keys.LEVEL)
            _refuse_behind(found, self.level)
            # The level cannot be raised in between: raising it fails if a server has registered.
            done = self._store.create_ephemeral(
                keys.member_key(self._server_id), value, (KeyEquals(keys.LEVEL, found),)
            )
            if not isinstance(done, Conflict):
                return done
        raise StoreUnreachable("the feature level changed again and again")

    # -- raising the level -------------------------------------------------------------------

    def finalize(
        self,
        level: int = 0,
        *,
        validate_only: bool = False,
        principal: str = "",
        request_id: str = "",
    ) -> FinalizeResult:
        """Raises the finalized level; 0 = to the highest that every live server supports.

        Raises:
            LevelNotFinalized: a server does not support it; the error names such servers.
            InvalidArgument: an unknown level, or lower than the finalized one.
            WriteConflict: servers came and went all the time; nothing was written.
            StoreUnavailable: the store cannot be reached.
        """
        if self._replica.state is ReplicaState.STALE and not self._store.identity.sealed:
            raise StoreUnavailable("the store is away, so nothing can be written", effect="none")
        for _ in range(_TRIES):
            try:
                self._store.remove_expired(keys.MEMBER)  # dead servers must not block it
                loading = self._store.load((keys.LEVEL, keys.MEMBER))
                rows = dict(row for page in loading.pages() for row in page)
            except StoreUnreachable as reason:
                _log.warning("the store is away: %s", reason)
                raise StoreUnavailable("the store is away", effect="none") from reason
            value = rows.pop(keys.LEVEL, None)
            found = read_level(value)
            servers = {self._server_id: self._member(), **members_of(rows.items())}
            levels = {server: one.feature_level for server, one in servers.items()}
            supported = highest_supported(levels)
            members = tuple(servers[server] for server in sorted(servers))
            wanted = level_to_finalize(level, found, levels, self._levels)
            if validate_only or wanted == found:
                return FinalizeResult(found, supported, members, None)
            guards = (
                KeyEquals(keys.LEVEL, value),
                UnchangedSince(keys.MEMBER, loading.revision),
            )
            try:
                text = f"finalized feature level {wanted}"
                operation = Operation(text, principal, request_id)
                write = Put(keys.LEVEL, b"%d" % wanted)
                revision = self._writer.put_facts((write,), guards, operation)
            except WriteConflict:
                continue
            _log.warning("feature level %d is finalized", wanted)
            return FinalizeResult(wanted, supported, members, revision)
        raise WriteConflict("servers came and went all the time; nothing was written", tries=_TRIES)


def check_level_at_startup(store: Store, levels: Levels = LEVELS) -> None:
    """Checks that a server with these levels supports the store's finalized level; an empty store
    gets the highest of them.

    Raises:
        ServerTooOld: the finalized level is higher.
        StoreUnreachable: the store cannot be reached.
    """
    level = max(levels)
    found = _read(store, keys.LEVEL)
    if found is None and not store.identity.sealed and not store.read(b"", limit=1):
        first = Transaction((KeyEquals(keys.LEVEL, None),), (Put(keys.LEVEL, b"%d" % level),))
        if isinstance(store.commit(first), Conflict):
            found = _read(store, keys.LEVEL)  # another server was first
    _refuse_behind(found, level)


def _refuse_behind(found: bytes | None, level: int) -> None:
    # A level that cannot be read excludes no server: there is nothing to compare.
    finalized = read_level(found) or FIRST_LEVEL
    if finalized > level:
        raise ServerTooOld(finalized, level)


def _read(store: Store, key: bytes) -> bytes | None:
    return next((row.value for row in store.read(key, limit=1) if row.key == key), None)


def unreadable(snapshot: Snapshot) -> Iterator[tuple[bytes, str]]:
    """Yields the unreadable rows of levels and servers, each with its effect."""
    value = snapshot.fact(keys.LEVEL)
    if read_level(value) is None:
        yield (
            keys.LEVEL,
            "no feature level: nothing new is allowed; kdir features finalize mends it",
        )
    for key, reported in snapshot.facts(keys.MEMBER):
        if read_member(reported) is None:
            yield key, "a server's registration cannot be read: the server counts as of level 0"


def _concerns(key: bytes) -> bool:
    return key == keys.LEVEL or key.startswith((keys.MEMBER, keys.ROLE))
