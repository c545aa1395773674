"""Channels to the members of one etcd, with their stubs, and the token of a user who logged in.

They are this process's own (a forked child makes itself new ones), and are made anew after a
failure, from certificates as they are in their files then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc

from directory.store.base import IncompatibleStore, StoreUnreachable
from directory.store.etcd.call_errors import FailureKind, Unsent, error_text, trouble_of
from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.etcd_address import EtcdAddress

__all__ = ["OPTIONS", "Channels", "Login", "Stubs"]


_MAX_RECEIVE_BYTES: Final = 64 * 1024 * 1024
"""Far above etcd's largest request (1.5 MiB), so that one row always fits."""
_REBUILD_SECONDS: Final = 1.0
OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", _MAX_RECEIVE_BYTES),
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
class Stubs:
    """etcd's services at one member."""

    channel: grpc.Channel
    made_at: float
    kv: Any
    lease: Any
    auth: Any
    maintenance: Any


class Channels:
    """One channel for each endpoint of an address, made when it is first wanted."""

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
        """Drops this channel: the next caller gets a new one, unless it is new itself."""
        with self._lock:
            stubs = self._stubs[number]
            if stubs is not None and self._clock() - stubs.made_at > _REBUILD_SECONDS:
                # Not closed: other threads' calls on it may yet succeed. It goes with the last.
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
"""Shown to an etcd that has no users and looks at no token; one that has them some day refuses it,
and then a real one is got."""


class Login:
    """Login at one address; used by any number of threads."""

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
        """The token that was got last; empty = none is. A secret."""
        return self._token

    def forget(self, used: str | None = None) -> None:
        """Drops the token, so that the next call logs in again; does nothing if ``used`` is not the
        token any more.
        """
        with self._lock:
            if used is None or used == self._token:
                self._token = ""

    def token(self, number: int, deadline: float) -> str:
        """Returns the token, got at this endpoint if there is none; empty without a user.

        Raises:
            Unsent: not in time.
            grpc.RpcError: etcd knows no such user, or another password.
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
