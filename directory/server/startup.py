"""One listening address of a process: opens the clusters behind it, and serves them once all are.

A store on servers of its own may be away at the start. Until it is there the address says that
nothing is ready (S5); refuses to wait for what will not come by itself, such as another
cluster's store or a damaged file.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from directory.server import logs
from directory.server.config import ServerConfig
from directory.server.supervisor import serving_line
from directory.server.watchdog import notify_systemd
from directory.store.addresses import is_remote
from directory.store.base import StoreUnreachable
from directory.store.replica import ReplicaState

if TYPE_CHECKING:
    from directory.api.grpc_server import DirectoryServer
    from directory.api.rpc.listener import NotReadyServer
    from directory.server.authentication import Authenticator
    from directory.server.cluster import Cluster

__all__ = ["ServedAddress", "serve"]

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0
_LOADED_SECONDS: Final = 0.05
"""From one look whether all is loaded to the next."""


class ServedAddress:
    """Clusters that share an address are served together: what one of them owns, another must not
    refer up for want of it.

    Args:
        configs: of the clusters.
        listen: where.
        shared: with other processes of one supervisor.
        joining: of these others do answer there: the address is taken once all is loaded, so that
            nobody who comes to it hears *not ready* for want of luck.
        open_cluster: opens one.
        bound: is told the address once it is known.
        identities: how callers there say who they are; None: they do not.
    """

    def __init__(
        self,
        configs: Sequence[ServerConfig],
        listen: str,
        *,
        shared: bool,
        joining: bool = False,
        open_cluster: Callable[[ServerConfig], Cluster],
        bound: Callable[[str], None],
        identities: Authenticator | None = None,
    ) -> None:
        self._identities: Final = identities
        self._missing: Final = list(configs)
        self._listen = listen
        self._shared: Final = shared
        self._joining: Final = joining
        self._open_cluster: Final = open_cluster
        self._bound: Final = bound
        self._reported = ""
        self._waiting: NotReadyServer | None = None
        self.clusters: Final[list[Cluster]] = []
        """Those that are open."""
        self.server: DirectoryServer | None = None

    @property
    def is_open(self) -> bool:
        """Whether every cluster is."""
        return not self._missing

    def open(self) -> None:
        """Opens what can be opened now.

        Raises:
            Incompatible: a store cannot be used.
            StoreUnreachable: an embedded one cannot be opened.
        """
        while self._missing:
            config = self._missing[0]
            try:
                with logs.cluster_log_context(config.cluster):
                    cluster = self._open_cluster(config)
            except StoreUnreachable as reason:
                if not is_remote(config.store):
                    raise
                self._log_delay(config.cluster, str(reason))
                return
            self.clusters.append(cluster)
            del self._missing[0]

    def _log_delay(self, cluster: str, why: str) -> None:
        if why != self._reported:
            self._reported = why
            _log.warning("%s is not ready, its store is away: %s", cluster, why)

    def bind(self) -> None:
        """Takes the address.

        Raises:
            ConfigError: it is in use.
        """
        from directory.api.rpc.listener import NotReadyServer

        if self._joining:
            pass  # not yet; which address it will be is known
        elif self.is_open:
            self._take()
        else:
            self._waiting = NotReadyServer(
                self._listen, shared=self._shared, identities=self._identities
            )
            self._listen = self._waiting.address
        self._bound(self._listen)

    def _take(self) -> None:
        from directory.api.grpc_server import DirectoryServer

        self.server = DirectoryServer(
            self.clusters, self._listen, shared=self._shared, identities=self._identities
        )
        self._listen = self.server.address

    def wait(self, stop: threading.Event) -> bool:
        """Opens what was away, once it can be, and takes the address for it; False: told to stop.

        Raises:
            Incompatible, ConfigError
        """
        while not self.is_open:
            if stop.wait(_RETRY_SECONDS):
                return False
            self.open()
        if self._waiting is not None:
            self._waiting.stop()
            self._waiting = None
            self.bind()
        return True

    def start(self, stop: threading.Event) -> None:
        """Begins to load and to answer, and says so, in a line that scripts can wait for and read
        the port from.

        Raises:
            ConfigError: the address is in use.
        """
        for cluster in self.clusters:
            with logs.cluster_log_context(cluster.config.cluster):
                cluster.start()
        if self._joining:
            while any(one.replica.state is ReplicaState.LOADING for one in self.clusters):
                if stop.wait(_LOADED_SECONDS):
                    return
            self._take()
        if self.server is not None:
            self.server.start()
        for cluster in self.clusters:
            config = cluster.config
            line = serving_line(config.mount, config.cluster, cluster.cluster_id, self._listen)
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    def drain(self) -> None:
        """Lets calls end, and takes no new ones."""
        if self._waiting is not None:
            self._waiting.stop()
        if self.server is not None:
            self.server.drain()

    def end(self) -> None:
        """Closes the stores."""
        for cluster in self.clusters:
            cluster.stop()


def serve(
    places: Sequence[ServedAddress], started: Callable[[ServedAddress], None], stop: threading.Event
) -> None:
    """Serves those that are open, and each of the others once it is, until it is told to stop.

    Raises:
        Incompatible, ConfigError: of one that came late.
    """
    late = [_DelayedStart(place, started, stop) for place in places if not place.is_open]
    for place in places:
        if place.is_open:
            place.start(stop)
            started(place)
    for one in late:
        one.start()
    notify_systemd("READY=1")
    stop.wait()
    for one in late:
        one.join()
    for one in late:
        if one.failure is not None:
            raise one.failure


class _DelayedStart(threading.Thread):
    """Serves one place once its stores can be reached."""

    def __init__(
        self, place: ServedAddress, started: Callable[[ServedAddress], None], stop: threading.Event
    ) -> None:
        super().__init__(name="opening")
        self._place: Final = place
        self._report: Final = started
        self._stop_all: Final = stop
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            if self._place.wait(self._stop_all):
                self._place.start(self._stop_all)
                self._report(self._place)
        except Exception as failure:  # noqa: BLE001 - raised where the others are joined
            self.failure = failure
            self._stop_all.set()
