"""Tells Prometheus, and whoever keeps servers running, how this process is, over HTTP.

``/metrics``, ``/healthz`` (the process works: else restart it) and ``/readyz`` (callers may be sent
here). Answers GET on loopback and refuses everything else; a caller that dawdles is hung up on.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector

from directory.server.config import ConfigError
from directory.server.health import ClusterHealth, healths_of
from directory.server.metrics.prometheus import ServerCollector
from directory.server.toml_table import split_address

if TYPE_CHECKING:
    from directory.api.grpc_server import DirectoryServer
    from directory.server.cluster import Cluster
    from directory.server.watchdog import Watchdog

__all__ = ["MetricsEndpoint"]

_log = logging.getLogger(__name__)
_DAWDLE_SECONDS: Final = 5.0
_AT_ONCE: Final = 16
_PLAIN: Final = "text/plain; charset=utf-8"


class MetricsEndpoint:
    """The HTTP server of one process; answers from the moment it is made.

    Args:
        address: ``host:port``; port 0 is a free one.
        names: the clusters that the process is to serve.
        clusters, servers: those that are open; they may still grow.
        watchdog: whether the process works.
    """

    def __init__(
        self,
        address: str,
        names: Sequence[str],
        clusters: Sequence[Cluster],
        servers: Sequence[DirectoryServer],
        watchdog: Watchdog,
    ) -> None:
        """Binds the address.

        Raises:
            ConfigError: it cannot be bound.
        """
        registry = CollectorRegistry()
        registry.register(ServerCollector(names, clusters, servers))
        ProcessCollector(registry=registry)
        host, port = split_address(address) or ("", 0)
        try:
            healths = partial(healths_of, names, clusters)
            self._server = _Server((host, port), registry, healths, watchdog)
        except OSError as error:
            raise ConfigError(f"metrics: cannot bind {address}: {error.strerror}") from error
        self.address: Final = f"{address.rpartition(':')[0]}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingMixIn, TCPServer):
    """Not ``http.server``'s: that one asks DNS for the host's name, for as long as DNS takes."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        place: tuple[str, int],
        registry: CollectorRegistry,
        healths: Callable[[], Sequence[ClusterHealth]],
        watchdog: Watchdog,
    ) -> None:
        self.registry = registry
        self.healths = healths
        self.watchdog = watchdog
        self._places = threading.BoundedSemaphore(_AT_ONCE)
        if ":" in place[0]:
            self.address_family = socket.AF_INET6
        super().__init__(place, _Request)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)  # as many as may are being answered
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()  # no thread could be started
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a request for metrics broke off", exc_info=True)


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = _DAWDLE_SECONDS
    server_version = "kdir"
    sys_version = ""

    def do_GET(self) -> None:
        try:
            status, body, kind = self._respond()
        except Exception:  # noqa: BLE001 - logged, and told as what it is
            _log.exception("metrics cannot be reported")
            status, body, kind = 500, b"failed by a bug; the log says which\n", _PLAIN
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _respond(self) -> tuple[int, bytes, str]:
        match self.path.partition("?")[0]:
            case "/metrics":
                encode, kind = choose_encoder(self.headers.get("Accept", ""))
                return 200, encode(self.server.registry), kind
            case "/healthz":
                if self.server.watchdog.is_stuck:
                    return 503, b"reads are stuck: no call ends, and others wait\n", _PLAIN
                return 200, b"ok\n", _PLAIN
            case "/readyz":
                healths = self.server.healths()
                message = "".join(f"{one.cluster}: {one}\n" for one in healths)
                ready = all(one.ready for one in healths)
                return 200 if ready else 503, message.encode(), _PLAIN
            case _:
                return 404, b"/metrics, /healthz and /readyz are here\n", _PLAIN

    def log_message(self, format: str, *args: object) -> None:
        """Not to stderr: a scrape every few seconds is no news."""
