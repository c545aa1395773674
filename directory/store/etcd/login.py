"""Who we are to etcd: a token for user and password, got when one is needed; shows it to nobody.

etcd forgets a token that nobody uses for five minutes, and all of them when its users change. So a
call that is refused for its token asks for a new one, once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

import grpc

from directory.store.base import IncompatibleStore
from directory.store.etcd.call_errors import FailureKind, Unsent, error_text, trouble_of
from directory.store.etcd.channels import Channels
from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.etcd_address import EtcdAddress

__all__ = ["Login"]

_log = logging.getLogger(__name__)

_NOBODY: Final = "-"
"""Shown to an etcd that has no users and looks at no token; one that has them some day refuses it,
and then a real one is got."""


class Login:
    """Of one address; used by any number of threads."""

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
        """The next call logs in anew; nothing happens if ``used`` is not the token any more."""
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
