"""Calls to one etcd cluster, through any of its members.

Every call has a deadline. A read that one member does not answer is sent to the next; a transaction
is repeated only if the previous call certainly did nothing. Channels belong to this process (a
forked child opens new ones), and are opened again after a failure, with the certificates in their
files at that time.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc

from directory.store.base import IncompatibleStore, StoreUnreachable
from directory.store.etcd.call_errors import (
    Compacted,
    EtcdRefused,
    FailureKind,
    FutureRevision,
    TooLarge,
    Unsent,
    error_text,
    final_error,
    trouble_of,
)
from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.etcd_address import EtcdAddress
from directory.store.etcd.member_stream import REQUIRES_LEADER

__all__ = [
    "OPTIONS",
    "Channels",
    "Compacted",
    "EtcdConnection",
    "EtcdRefused",
    "FutureRevision",
    "Login",
    "Metadata",
    "Stubs",
    "TooLarge",
]

_MAX_RECEIVE_BYTES: Final = 64 * 1024 * 1024
"""Far above etcd's largest request (1.5 MiB), so that one row always fits."""
_REBUILD_SECONDS: Final = 1.0
OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", _MAX_RECEIVE_BYTES),
    # Members are pinged while calls are under way; etcd accepts at most one ping in 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # also how long connecting may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),  # gRPC cannot know which calls may be sent twice
    # Otherwise channels with the same target share a connection, also with those of a forked child.
    ("grpc.use_local_subchannel_pool", 1),
    # A response stream is read by the thread that consumes it: otherwise each commit wakes one
    # more.
    (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),  # type: ignore[attr-defined]
)


@dataclass(frozen=True, slots=True)
class Stubs:
    """Stubs of etcd's services at one member."""

    channel: grpc.Channel
    made_at: float
    kv: Any
    lease: Any
    auth: Any
    maintenance: Any


class Channels:
    """Channels to the endpoints of an address, one each, opened on first use."""

    def __init__(self, address: EtcdAddress, clock: Callable[[], float]) -> None:
        self._address: Final = address
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._stubs: list[Stubs | None] = [None] * len(address.endpoints)
        self._closed = False

    def stubs(self, number: int) -> Stubs:
        """Returns the stubs of one endpoint.

        Raises:
            StoreUnreachable: closed; or a certificate cannot be read.
        """
        with self._lock:
            stubs = self._stubs[number]
            if stubs is None:
                stubs = self._stubs[number] = self._connect(number)
            return stubs

    def dial(self, number: int) -> grpc.Channel:
        """Opens a new channel, which the caller closes.

        Raises:
            StoreUnreachable: closed; or a certificate cannot be read.
        """
        if self._closed:
            raise StoreUnreachable(f"{self._address}: closed")
        try:
            files = self._address.tls_files()
        except IncompatibleStore as error:
            raise StoreUnreachable(str(error)) from error
        endpoint = self._address.endpoints[number]
        if files is None:
            return grpc.insecure_channel(endpoint, OPTIONS)
        ca, cert, key = files
        credentials = grpc.ssl_channel_credentials(ca, key, cert)
        return grpc.secure_channel(endpoint, credentials, OPTIONS)

    def drop(self, number: int) -> None:
        """Drops an endpoint's channel, unless it is new: the next caller gets another one."""
        with self._lock:
            stubs = self._stubs[number]
            if stubs is not None and self._clock() - stubs.made_at > _REBUILD_SECONDS:
                # Not closed: other threads' calls on it may yet succeed. It is freed after the last
                # of them.
                self._stubs[number] = None

    def close(self) -> None:
        """Ends all calls."""
        with self._lock:
            self._closed = True
            open_ones, self._stubs = self._stubs, [None] * len(self._stubs)
        for stubs in open_ones:
            if stubs is not None:
                stubs.channel.close()

    def _connect(self, number: int) -> Stubs:
        channel = self.dial(number)
        return Stubs(
            channel,
            self._clock(),
            etcdrpc.KVStub(channel),
            etcdrpc.LeaseStub(channel),
            etcdrpc.AuthStub(channel),
            etcdrpc.MaintenanceStub(channel),
        )


_log = logging.getLogger(__name__)

_NOBODY: Final = "-"
"""Token sent to an etcd without users, which ignores it; if etcd gets users later, it refuses this
one, and a real one is requested.
"""


class Login:
    """Login at one address. Thread-safe."""

    def __init__(
        self, address: EtcdAddress, channels: Channels, clock: Callable[[], float]
    ) -> None:
        self._address: Final = address
        self._channels: Final = channels
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._token = ""

    @property
    def current(self) -> str:
        """The newest token; empty = none. A secret."""
        return self._token

    def forget(self, used: str | None = None) -> None:
        """Drops the token, so that the next call logs in again; with ``used``, only if that is
        still the token.
        """
        with self._lock:
            if used is None or used == self._token:
                self._token = ""

    def token(self, number: int, deadline: float) -> str:
        """Returns the token; requests one at this endpoint if there is none; empty without a user.

        Raises:
            Unsent: no token in time.
            grpc.RpcError: etcd rejects the user or the password.
        """
        if not self._address.user:
            return ""
        if not self._lock.acquire(timeout=max(0.0, deadline - self._clock())):
            raise Unsent("another thread is still logging in")
        try:
            if not self._token:
                self._token = self._get(number, deadline)
            return self._token
        finally:
            self._lock.release()

    def _get(self, number: int, deadline: float) -> str:
        try:
            password = self._address.password()
        except IncompatibleStore as error:
            raise Unsent(str(error)) from error
        request = etcdrpc.AuthenticateRequest(name=self._address.user, password=password)
        remaining = max(0.001, deadline - self._clock())
        try:
            stub = self._channels.stubs(number).auth
            return str(stub.Authenticate(request, timeout=remaining).token)
        except grpc.RpcError as error:
            if "authentication is not enabled" in error_text(error):
                _log.warning("%s: etcd has no users; everybody is let in", self._address)
                return _NOBODY
            if trouble_of(error) is FailureKind.FINAL:
                raise
            raise Unsent(error_text(error)) from error


Metadata = tuple[tuple[str, str], ...]

_TRY_SECONDS: Final = 2.0
"""Longest wait for one member by a call that another member can answer."""
_FRESH_SECONDS: Final = 1.0
"""Age of a member's last answer up to which a transaction is sent without a probe first: a paused
member keeps its connections.
"""
_ROUND_SECONDS: Final = 0.1
"""Interval between two rounds over all members."""


class EtcdConnection:
    """Connection to an etcd cluster at an ``address``, with its user. Thread-safe."""

    def __init__(
        self,
        address: EtcdAddress,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Reads the files of the address; opens no connection yet.

        Raises:
            IncompatibleStore: a file in the address cannot be read.
        """
        self.address: Final = address
        self._clock: Final = clock
        self._sleep: Final = sleep
        self._channels: Final = Channels(address, clock)
        self._login: Final = Login(address, self._channels, clock)
        self._answered_at = [float("-inf")] * len(address.endpoints)
        # Servers spread over the members; a call begins where the last one was answered.
        self._preferred = random.randrange(len(address.endpoints))
        address.tls_files()
        if address.user:
            address.password()

    def __str__(self) -> str:
        return str(self.address)

    @property
    def preferred(self) -> int:
        """Number of the endpoint that calls try first."""
        return self._preferred

    def close(self) -> None:
        """Ends all calls."""
        self._channels.close()

    # -- calls -------------------------------------------------------------------------------

    def range(self, request: Any, timeout_seconds: float) -> Any:
        """Reads keys: ``RangeRequest`` → ``RangeResponse``.

        Raises:
            StoreUnreachable: no member answered in time.
            EtcdRefused: etcd refuses the request.
            Compacted, FutureRevision, TooLarge: see ``call_errors.py``.
        """
        return self._read(lambda stubs: stubs.kv.Range, request, timeout_seconds)

    def range_ahead(self, request: Any, timeout_seconds: float) -> Callable[[], Any]:
        """Begins a ``range``; the returned function waits for the result."""
        number = self._preferred
        deadline = self._clock() + timeout_seconds
        try:
            call = self._channels.stubs(number).kv.Range.future(
                request, timeout=timeout_seconds, metadata=self._metadata(number, deadline)
            )
        except (grpc.RpcError, StoreUnreachable, Unsent):
            return partial(self.range, request, timeout_seconds)

        def answer() -> Any:
            try:
                return call.result()
            except grpc.RpcError as error:
                if trouble_of(error) is FailureKind.FINAL:
                    raise final_error(error, str(self), self.address.who) from error
            return self.range(request, timeout_seconds)

        return answer

    def txn(self, request: Any, timeout_seconds: float) -> Any:
        """Executes a transaction: ``TxnRequest`` → ``TxnResponse``.

        Raises:
            StoreUnreachable: effect unknown.
            StoreFull: effect unknown: etcd applies the transaction that exceeds its quota, and
                still answers this.
            EtcdRefused: no effect.
        """
        deadline = self._clock() + timeout_seconds

        def attempt(number: int) -> Any:
            self._ask_whether_there(number, deadline)
            return self._call(number, lambda stubs: stubs.kv.Txn, request, deadline)

        return self._over_members(attempt, deadline, {FailureKind.UNREACHED})

    def read_txn(self, request: Any, timeout_seconds: float) -> Any:
        """Executes a ``txn`` that writes nothing, and so may be sent to several members."""
        return self._read(lambda stubs: stubs.kv.Txn, request, timeout_seconds)

    def compact(self, revision: int, timeout_seconds: float) -> None:
        """Compacts the history up to a revision; for tests and tools.

        Raises:
            StoreUnreachable, FutureRevision: the history is unchanged, as far as known.
        """
        request = etcdrpc.CompactionRequest(revision=revision, physical=True)
        # Compacted already: by another client, or by a try whose answer came too late.
        with contextlib.suppress(Compacted):
            self._read(lambda stubs: stubs.kv.Compact, request, timeout_seconds)

    def grant_lease(self, seconds: int, timeout_seconds: float) -> Any:
        """Grants a lease: ``LeaseGrantResponse``. A lease whose response is lost expires by itself.

        Raises:
            StoreUnreachable: etcd may have granted a lease.
            EtcdRefused: etcd granted none.
        """
        request = etcdrpc.LeaseGrantRequest(TTL=seconds)
        return self._read(lambda stubs: stubs.lease.LeaseGrant, request, timeout_seconds)

    def keep_lease(self, lease: int, timeout_seconds: float) -> Any:
        """Renews a lease: ``LeaseKeepAliveResponse``, with TTL 0 if there is none.

        Raises:
            StoreUnreachable: etcd may have renewed the lease.
            EtcdRefused: etcd did not renew it.
        """
        request = etcdrpc.LeaseKeepAliveRequest(ID=lease)

        def once(stubs: Stubs) -> Callable[..., Any]:
            def ask(request: Any, **options: Any) -> Any:
                answers = stubs.lease.LeaseKeepAlive(iter((request,)), **options)
                try:
                    for answer in answers:
                        return answer
                    raise Unsent("the renewal ended without an answer")
                finally:
                    answers.cancel()

            return ask

        return self._read(once, request, timeout_seconds)

    def revoke_lease(self, lease: int, timeout_seconds: float) -> None:
        """Revokes a lease, which removes its keys.

        Raises:
            StoreUnreachable: effect unknown.
            EtcdRefused: also if there is no such lease.
        """
        request = etcdrpc.LeaseRevokeRequest(ID=lease)
        self._read(lambda stubs: stubs.lease.LeaseRevoke, request, timeout_seconds)

    def status(self, number: int, timeout_seconds: float) -> Any:
        """Returns the status of one member: ``StatusResponse``. A later etcd than 3.6 lets only
        administrators ask.

        Raises:
            StoreUnreachable, EtcdRefused: it did not answer.
        """
        request = etcdrpc.StatusRequest()
        return self._at(number, lambda stubs: stubs.maintenance.Status, request, timeout_seconds)

    def cluster_id_at(self, number: int, timeout_seconds: float) -> int:
        """Returns etcd's id of the cluster that one member belongs to; the user needs no right but
        to read below the prefix.

        Raises:
            StoreUnreachable, EtcdRefused: it did not answer.
        """
        request = etcdrpc.RangeRequest(key=self.address.root, count_only=True, serializable=True)
        answer = self._at(number, lambda stubs: stubs.kv.Range, request, timeout_seconds)
        return int(answer.header.cluster_id)

    def alarms(self, timeout_seconds: float) -> list[str]:
        """Returns etcd's alarms, such as ``NOSPACE``.

        Raises:
            StoreUnreachable, EtcdRefused: no member answered.
        """
        request = etcdrpc.AlarmRequest()  # GET
        answer = self._read(lambda stubs: stubs.maintenance.Alarm, request, timeout_seconds)
        return sorted({etcdrpc.AlarmType.Name(one.alarm) for one in answer.alarms})

    # -- member by member --------------------------------------------------------------------

    # For callers that must know which member answers, such as a watch.

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Endpoints by number."""
        return self.address.endpoints

    def dial(self, number: int) -> grpc.Channel:
        """Opens a new channel to one endpoint, which the caller closes: a watch that returns to a
        member need not wait until an earlier channel to it reconnects.

        Raises:
            StoreUnreachable: the connection is closed.
        """
        return self._channels.dial(number)

    def metadata(self, number: int, timeout_seconds: float) -> Metadata:
        """Returns the metadata of every call: that a leader is required, and the token. Logs in at
        that endpoint if necessary.

        Raises:
            StoreUnreachable: no token in time.
            EtcdRefused: wrong user or password.
        """
        deadline = self._clock() + timeout_seconds
        try:
            return self._metadata(number, deadline)
        except grpc.RpcError as error:
            raise final_error(error, str(self), self.address.who) from error
        except Unsent as error:
            message = str(error) or "the time is over"
            raise StoreUnreachable(f"{self._endpoint(number)}: {message}") from error

    def leave(self, number: int, why: str) -> None:
        """Records that this endpoint failed: calls begin with the next one, and later use a new
        channel to it.
        """
        if self._preferred == number:
            self._preferred = (number + 1) % len(self.endpoints)
        self._answered_at[number] = float("-inf")
        self._channels.drop(number)
        _log.debug("etcd %s: %s", self._endpoint(number), why)

    def forget_token(self, used: str | None = None) -> None:
        """Drops the token, so that the next call logs in again; with ``used``, only if that is
        still the token.
        """
        self._login.forget(used)

    @property
    def token(self) -> str:
        """Token of the calls; empty = none yet. A secret."""
        return self._login.current

    # -- one call ----------------------------------------------------------------------------

    def _endpoint(self, number: int) -> str:
        return self.address.endpoints[number]

    def _read(
        self,
        method: Callable[[Stubs], Callable[..., Any]],
        request: Any,
        timeout_seconds: float,
    ) -> Any:
        deadline = self._clock() + timeout_seconds

        def attempt(number: int) -> Any:
            share = self._share(deadline, timeout_seconds)
            return self._call(number, method, request, self._clock() + share)

        return self._over_members(attempt, deadline, {FailureKind.UNREACHED, FailureKind.UNKNOWN})

    def _at(
        self,
        number: int,
        method: Callable[[Stubs], Callable[..., Any]],
        request: Any,
        timeout_seconds: float,
    ) -> Any:
        try:
            return self._call(number, method, request, self._clock() + timeout_seconds)
        except Unsent as error:
            message = str(error) or "the time is over"
        except grpc.RpcError as error:
            message = error_text(error)
            if trouble_of(error) in (FailureKind.FINAL, FailureKind.LOGIN):
                raise final_error(error, str(self), self.address.who) from error
        self.leave(number, message)
        raise StoreUnreachable(f"{self._endpoint(number)}: {message}")

    def _share(self, deadline: float, timeout_seconds: float) -> float:
        """Returns the part of a call's remaining time for one member."""
        remaining = deadline - self._clock()
        if len(self.endpoints) == 1:
            return remaining
        return min(max(_TRY_SECONDS, timeout_seconds / 4), remaining / 2)

    def _ask_whether_there(self, number: int, deadline: float) -> None:
        """Probes a member by a read that needs its quorum: if that fails, the transaction is known
        to be unsent.
        """
        if self._clock() - self._answered_at[number] < _FRESH_SECONDS:
            return
        probe = etcdrpc.RangeRequest(key=self.address.root, count_only=True)
        try:
            self._call(
                number,
                lambda stubs: stubs.kv.Range,
                probe,
                self._clock() + self._share(deadline, _TRY_SECONDS),
            )
        except grpc.RpcError as error:
            if trouble_of(error) is FailureKind.UNKNOWN:
                raise Unsent(error_text(error)) from error
            raise

    def _call(
        self,
        number: int,
        method: Callable[[Stubs], Callable[..., Any]],
        request: Any,
        deadline: float,
    ) -> Any:
        """Makes one call to one member; repeats it with a new token if the old one is refused."""
        for last in (False, True):
            metadata = self._metadata(number, deadline)
            token = self._login.current
            remaining = deadline - self._clock()
            if remaining <= 0:
                raise Unsent
            try:
                answer = method(self._channels.stubs(number))(
                    request, timeout=remaining, metadata=metadata
                )
            except grpc.RpcError as error:
                if last or not self.address.user or trouble_of(error) is not FailureKind.LOGIN:
                    raise
                self.forget_token(token)
            except ValueError as error:  # what gRPC raises for a channel that was closed meanwhile
                raise Unsent(str(error)) from error
            else:
                self._answered_at[number] = self._clock()
                return answer
        raise AssertionError("unreachable")

    def _over_members(
        self, attempt: Callable[[int], Any], deadline: float, again: set[FailureKind]
    ) -> Any:
        """Tries one member after another until one answers, beginning with the preferred one."""
        message = "the time is over"
        while True:
            first = self._preferred
            for step in range(len(self.endpoints)):
                number = (first + step) % len(self.endpoints)
                try:
                    answer = attempt(number)
                except Unsent as error:
                    message = str(error) or message  # empty: only the time was over
                except grpc.RpcError as error:
                    message = error_text(error)
                    trouble = trouble_of(error)
                    if trouble in (FailureKind.FINAL, FailureKind.LOGIN):
                        raise final_error(error, str(self), self.address.who) from error
                    self.leave(number, message)
                    if trouble not in again:
                        raise StoreUnreachable(f"{self._endpoint(number)}: {message}") from error
                else:
                    self._preferred = number
                    return answer
                self.leave(number, message)
                if self._clock() >= deadline:
                    raise StoreUnreachable(f"{self}: no member answered; the last error: {message}")
            self._sleep(min(_ROUND_SECONDS, max(0.0, deadline - self._clock())))

    def _metadata(self, number: int, deadline: float) -> Metadata:
        token = self._login.token(number, deadline)
        return (REQUIRES_LEADER, ("token", token)) if token else (REQUIRES_LEADER,)
