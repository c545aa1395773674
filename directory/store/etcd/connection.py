"""Calls to one etcd, over whichever of its members answers; refuses to know what a cluster stores.

Every call has a deadline. A read that one member does not answer is asked of the next; a
transaction is sent again only where the one before certainly did nothing. Channels are this
connection's own (a forked child makes itself new ones) and are made anew after a failure.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc

from directory.store.base import Incompatible, StoreAway
from directory.store.etcd.address import EtcdAddress
from directory.store.etcd.failures import (
    Compacted,
    FutureRevision,
    Refused,
    TooLarge,
    Trouble,
    final,
    trouble_of,
    words,
)
from directory.store.etcd.generated import etcdrpc

__all__ = ["Compacted", "EtcdConnection", "FutureRevision", "Metadata", "Refused", "TooLarge"]

_log = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str], ...]

MAX_RECEIVE_BYTES: Final = 64 * 1024 * 1024
"""Far above etcd's largest request (1.5 MiB), so that one row always fits."""
_TRY_SECONDS: Final = 2.0
"""So long at most one member is waited for by a call that another can answer."""
_FRESH_SECONDS: Final = 1.0
"""A member that answered so recently is given a transaction without being asked first whether it is
there: one that is paused keeps its connections."""
_ROUND_SECONDS: Final = 0.1
"""Between two rounds over all members."""
_REBUILD_SECONDS: Final = 1.0
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", MAX_RECEIVE_BYTES),
    # Members are watched by pings while calls are under way; etcd takes one in 5 s, not more.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # also how long connecting may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),  # it cannot know what may be sent twice
    # Channels with one target share a connection otherwise, also with a forked child's.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class _Member:
    """A channel to one endpoint."""

    channel: grpc.Channel
    made_at: float
    kv: Any
    lease: Any
    auth: Any
    maintenance: Any


class EtcdConnection:
    """Used by any number of threads. ``address`` says where and as whom."""

    def __init__(
        self,
        address: EtcdAddress,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Connects nothing yet.

        Raises:
            Incompatible: a file that the address names cannot be read.
        """
        self.address: Final = address
        self._clock: Final = clock
        self._sleep: Final = sleep
        self._lock: Final = threading.Lock()
        self._login_lock: Final = threading.Lock()
        self._members: list[_Member | None] = [None] * len(address.endpoints)
        self._answered_at = [float("-inf")] * len(address.endpoints)
        # Servers spread over the members; a call begins where the last one was answered.
        self._preferred = random.randrange(len(address.endpoints))
        self._token = ""
        self._closed = False
        address.tls_files()
        if address.user:
            address.password()

    def __str__(self) -> str:
        return str(self.address)

    @property
    def preferred(self) -> int:
        """The number of the endpoint to begin with."""
        return self._preferred

    def close(self) -> None:
        """Ends all calls."""
        with self._lock:
            self._closed = True
            members, self._members = self._members, [None] * len(self._members)
        for member in members:
            if member is not None:
                member.channel.close()

    # -- calls -------------------------------------------------------------------------------

    def range(self, request: Any, timeout_seconds: float) -> Any:
        """Reads keys: ``RangeRequest`` → ``RangeResponse``.

        Raises:
            StoreAway: no member answered in time. Refused: etcd will not.
            Compacted, FutureRevision, TooLarge
        """
        return self._read(lambda member: member.kv.Range, request, timeout_seconds)

    def range_ahead(self, request: Any, timeout_seconds: float) -> Callable[[], Any]:
        """Like ``range``, begun now and waited for by calling what is returned."""
        number = self._preferred
        deadline = self._clock() + timeout_seconds
        try:
            call = self._member(number).kv.Range.future(
                request, timeout=timeout_seconds, metadata=self._metadata(number, deadline)
            )
        except (grpc.RpcError, StoreAway, _Unsent):
            return partial(self.range, request, timeout_seconds)

        def answer() -> Any:
            try:
                return call.result()
            except grpc.RpcError:
                return self.range(request, timeout_seconds)

        return answer

    def txn(self, request: Any, timeout_seconds: float) -> Any:
        """Makes a transaction: ``TxnRequest`` → ``TxnResponse``.

        Raises:
            StoreAway: effect unknown. Refused, StoreFull: no effect.
        """
        deadline = self._clock() + timeout_seconds

        def attempt(number: int) -> Any:
            self._ask_whether_there(number, deadline)
            return self._call(number, lambda member: member.kv.Txn, request, deadline)

        return self._over_members(attempt, deadline, {Trouble.UNREACHED})

    def read_txn(self, request: Any, timeout_seconds: float) -> Any:
        """Like ``txn`` for one that writes nothing: it may be asked of several members."""
        return self._read(lambda member: member.kv.Txn, request, timeout_seconds)

    def compact(self, revision: int, timeout_seconds: float) -> None:
        """Forgets history up to a revision; for tests and tools.

        Raises:
            StoreAway, Compacted, FutureRevision
        """
        request = etcdrpc.CompactionRequest(revision=revision, physical=True)
        self._read(lambda member: member.kv.Compact, request, timeout_seconds)

    def grant_lease(self, seconds: int, timeout_seconds: float) -> Any:
        """A new lease: ``LeaseGrantResponse``. One whose answer is lost runs out by itself.

        Raises:
            StoreAway, Refused
        """
        request = etcdrpc.LeaseGrantRequest(TTL=seconds)
        return self._read(lambda member: member.lease.LeaseGrant, request, timeout_seconds)

    def keep_lease(self, lease: int, timeout_seconds: float) -> Any:
        """Renews a lease: ``LeaseKeepAliveResponse``, whose TTL is 0 if there is none.

        Raises:
            StoreAway, Refused
        """
        request = etcdrpc.LeaseKeepAliveRequest(ID=lease)

        def once(member: _Member) -> Callable[..., Any]:
            def ask(request: Any, **options: Any) -> Any:
                answers = member.lease.LeaseKeepAlive(iter((request,)), **options)
                try:
                    return next(answers)
                finally:
                    answers.cancel()

            return ask

        return self._read(once, request, timeout_seconds)

    def revoke_lease(self, lease: int, timeout_seconds: float) -> None:
        """Ends a lease, and with it its keys.

        Raises:
            StoreAway, Refused: also if there is none.
        """
        request = etcdrpc.LeaseRevokeRequest(ID=lease)
        self._read(lambda member: member.lease.LeaseRevoke, request, timeout_seconds)

    def status(self, number: int, timeout_seconds: float) -> Any:
        """What one member says of itself: ``StatusResponse``.

        Raises:
            StoreAway, Refused
        """
        request = etcdrpc.StatusRequest()
        return self._at(number, lambda member: member.maintenance.Status, request, timeout_seconds)

    def alarms(self, timeout_seconds: float) -> list[str]:
        """The alarms that etcd has raised, such as ``NOSPACE``.

        Raises:
            StoreAway, Refused
        """
        request = etcdrpc.AlarmRequest()  # GET
        answer = self._read(lambda member: member.maintenance.Alarm, request, timeout_seconds)
        return sorted({etcdrpc.AlarmType.Name(one.alarm) for one in answer.alarms})

    # -- member by member --------------------------------------------------------------------

    # What follows is for who must know which member answers, as a watch does.

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The members, by number."""
        return self.address.endpoints

    def dial(self, number: int) -> grpc.Channel:
        """A new channel to one endpoint, of the caller's own, who closes it: one that a watch gave
        up is not to be waited for when its member is back.

        Raises:
            StoreAway: everything is closed.
        """
        if self._closed:
            raise StoreAway(f"{self}: closed")
        return self._dial(number)

    def metadata(self, number: int, timeout_seconds: float) -> Metadata:
        """What every call carries: that a leader is required, and who asks. Logs in at that
        endpoint if need be.

        Raises:
            StoreAway: not in time. Refused: wrong user or password.
        """
        deadline = self._clock() + timeout_seconds
        try:
            return self._metadata(number, deadline)
        except grpc.RpcError as error:
            raise final(error, str(self), self.address.who) from error
        except _Unsent as error:
            raise StoreAway(f"{self._endpoint(number)}: {error}") from error

    def range_at(self, number: int, request: Any, timeout_seconds: float) -> Any:
        """``range`` at one endpoint only.

        Raises:
            StoreAway, Refused, Compacted, FutureRevision, TooLarge
        """
        return self._at(number, lambda member: member.kv.Range, request, timeout_seconds)

    def leave(self, number: int, why: str) -> None:
        """This endpoint failed: calls begin with the next one, on a new connection to it later."""
        with self._lock:
            if self._preferred == number:
                self._preferred = (number + 1) % len(self._members)
            self._answered_at[number] = float("-inf")
            member = self._members[number]
            if member is not None and self._clock() - member.made_at > _REBUILD_SECONDS:
                # Not closed: other threads' calls on it may yet succeed. It goes with the last.
                self._members[number] = None
        _log.debug("etcd %s: %s", self._endpoint(number), why)

    def forget_token(self, used: str | None = None) -> None:
        """The next call logs in anew; nothing happens if ``used`` is not the token any more."""
        with self._login_lock:
            if used is None or used == self._token:
                self._token = ""

    @property
    def token(self) -> str:
        """What calls show now; empty = nothing yet. A secret."""
        return self._token

    # -- one call ----------------------------------------------------------------------------

    def _endpoint(self, number: int) -> str:
        return self.address.endpoints[number]

    def _member(self, number: int) -> _Member:
        with self._lock:
            member = self._members[number]
            if member is None:
                if self._closed:
                    raise StoreAway(f"{self}: closed")
                member = self._members[number] = self._connect(number)
            return member

    def _connect(self, number: int) -> _Member:
        channel = self._dial(number)
        return _Member(
            channel,
            self._clock(),
            etcdrpc.KVStub(channel),
            etcdrpc.LeaseStub(channel),
            etcdrpc.AuthStub(channel),
            etcdrpc.MaintenanceStub(channel),
        )

    def _dial(self, number: int) -> grpc.Channel:
        try:
            files = self.address.tls_files()  # as they are now: certificates are renewed
        except Incompatible as error:
            raise StoreAway(str(error)) from error
        if files is None:
            return grpc.insecure_channel(self._endpoint(number), _OPTIONS)
        ca, cert, key = files
        credentials = grpc.ssl_channel_credentials(ca, key, cert)
        return grpc.secure_channel(self._endpoint(number), credentials, _OPTIONS)

    def _read(
        self,
        method: Callable[[_Member], Callable[..., Any]],
        request: Any,
        timeout_seconds: float,
    ) -> Any:
        deadline = self._clock() + timeout_seconds

        def attempt(number: int) -> Any:
            return self._call(
                number, method, request, min(deadline, self._clock() + self._share(deadline))
            )

        return self._over_members(attempt, deadline, {Trouble.UNREACHED, Trouble.UNKNOWN})

    def _at(
        self,
        number: int,
        method: Callable[[_Member], Callable[..., Any]],
        request: Any,
        timeout_seconds: float,
    ) -> Any:
        try:
            return self._call(number, method, request, self._clock() + timeout_seconds)
        except _Unsent as error:
            said = str(error)
        except grpc.RpcError as error:
            said = words(error)
            if trouble_of(error) in (Trouble.FINAL, Trouble.LOGIN):
                raise final(error, str(self), self.address.who) from error
        self.leave(number, said)
        raise StoreAway(f"{self._endpoint(number)}: {said}")

    def _share(self, deadline: float) -> float:
        """How long one member may take of what is left."""
        if len(self._members) == 1:
            return deadline - self._clock()
        return min(_TRY_SECONDS, (deadline - self._clock()) / 2)

    def _ask_whether_there(self, number: int, deadline: float) -> None:
        """By a read that needs its quorum: failing here, a transaction is known to be unsent."""
        if self._clock() - self._answered_at[number] < _FRESH_SECONDS:
            return
        probe = etcdrpc.RangeRequest(key=self.address.root, count_only=True)
        try:
            self._call(
                number,
                lambda member: member.kv.Range,
                probe,
                min(deadline, self._clock() + self._share(deadline)),
            )
        except grpc.RpcError as error:
            if trouble_of(error) is Trouble.UNKNOWN:
                raise _Unsent(words(error)) from error
            raise

    def _call(
        self,
        number: int,
        method: Callable[[_Member], Callable[..., Any]],
        request: Any,
        deadline: float,
    ) -> Any:
        """One call to one member, again with a new token if the one it had is refused."""
        for last in (False, True):
            metadata = self._metadata(number, deadline)
            token = self._token
            remaining = deadline - self._clock()
            if remaining <= 0:
                raise _Unsent("the time is over")
            try:
                answer = method(self._member(number))(request, timeout=remaining, metadata=metadata)
            except grpc.RpcError as error:
                if last or not self.address.user or trouble_of(error) is not Trouble.LOGIN:
                    raise
                self.forget_token(token)
            except ValueError as error:  # gRPC's word for a channel that was closed meanwhile
                raise _Unsent(str(error)) from error
            else:
                self._answered_at[number] = self._clock()
                return answer
        raise AssertionError("unreachable")

    def _over_members(
        self, attempt: Callable[[int], Any], deadline: float, again: set[Trouble]
    ) -> Any:
        """Tries the members in turn until one answers, from the preferred one on."""
        while True:
            first = self._preferred
            for step in range(len(self._members)):
                number = (first + step) % len(self._members)
                try:
                    answer = attempt(number)
                except _Unsent as error:
                    said = str(error)
                except grpc.RpcError as error:
                    said = words(error)
                    trouble = trouble_of(error)
                    if trouble in (Trouble.FINAL, Trouble.LOGIN):
                        raise final(error, str(self), self.address.who) from error
                    self.leave(number, said)
                    if trouble not in again:
                        raise StoreAway(f"{self._endpoint(number)}: {said}") from error
                else:
                    self._preferred = number
                    return answer
                self.leave(number, said)
                if self._clock() >= deadline:
                    raise StoreAway(f"{self}: no member answered; the last said: {said}")
            self._sleep(min(_ROUND_SECONDS, max(0.0, deadline - self._clock())))

    # -- logging in --------------------------------------------------------------------------

    def _metadata(self, number: int, deadline: float) -> Metadata:
        # A member without a leader says so at once then, rather than never.
        leader = ("hasleader", "true")
        if not self.address.user:
            return (leader,)
        return (leader, ("token", self._logged_in(number, deadline)))

    def _logged_in(self, number: int, deadline: float) -> str:
        with self._login_lock:
            if self._token:
                return self._token
            try:
                password = self.address.password()
            except Incompatible as error:
                raise _Unsent(str(error)) from error
            request = etcdrpc.AuthenticateRequest(name=self.address.user, password=password)
            remaining = max(0.001, deadline - self._clock())
            try:
                answer = self._member(number).auth.Authenticate(request, timeout=remaining)
                self._token = answer.token
            except grpc.RpcError as error:
                if "authentication is not enabled" in words(error):
                    return "-"  # etcd does not look at it
                if trouble_of(error) is Trouble.FINAL:
                    raise
                raise _Unsent(words(error)) from error
            return self._token


class _Unsent(Exception):
    """The call itself was not made."""
