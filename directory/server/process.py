"""Process of directory servers: signals, listening addresses, startup and drain.

It opens the clusters of each listening address, and serves them once all are open. A remote store
may be unreachable at startup; until it answers, calls get NOT_READY (S5). Permanent errors, such as
another cluster's store or a damaged file, end the process.

Exit codes: 0 after SIGTERM or SIGINT; 2 for a config, port or store that cannot be used (one
sentence on stderr, nothing changed); 3 for an embedded store that cannot be opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import pathlib
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from directory.server import logs
from directory.server.command_line import (
    check_processes,
    describe_config,
    load_selected_configs,
    log_format,
    metrics_addresses,
    parser,
)
from directory.server.concurrent_stop import run_together
from directory.server.config import ConfigError, Limits, ServerConfig, default_store
from directory.server.feature_levels import LEVELS, Levels
from directory.server.supervisor import Ports, Supervisor, print_lines, serving_line
from directory.server.toml_table import split_address
from directory.server.watchdog import Watchdog, notify_systemd
from directory.store.addresses import is_remote
from directory.store.base import IncompatibleStore, StoreDamaged, StoreUnreachable
from directory.store.replica import ReplicaState
from resolver.errors import KdirError
from resolver.extras import missing_extra

if TYPE_CHECKING:
    from directory.api.grpc_server import DirectoryServer
    from directory.api.rpc.listener import NotReadyServer
    from directory.server.authentication import Authenticator
    from directory.server.cluster import Cluster
    from directory.server.metrics.prometheus import MetricsEndpoint

__all__ = ["main", "stop_at_signals"]

_log = logging.getLogger("directory")
_RETRY_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 10.0
"""Time after draining for all clusters to resign from roles and close their stores; less than the
supervisor allows. Commits that links have pending are dropped after half of it: the process waits
only for one that runs then, of at most 5 s.
"""
_LOADED_SECONDS: Final = 0.05
"""Interval between checks whether everything is loaded."""


_SIGNAL_SECONDS: Final = 10.0
"""Interval at which a thread that waits for a message of gRPC checks for signals; gRPC's default is
0.1 s. The main thread, which receives signals, waits for no message here.
"""
_COLLECTED_OBJECTS: Final = 10_000
"""New objects after which the garbage collector runs. A call leaves no cycles; with the default of
700, about forty calls at a time would make it run again and again.
"""


def main(arguments: Sequence[str] | None = None, levels: Levels = LEVELS) -> int:
    """Runs ``kdir server`` until SIGTERM or SIGINT; ``levels``: supported feature levels."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser().parse_args(given)
    form: logs.LogFormatter = logs.TextFormatter()
    try:
        form = logs.set_up(log_format(options.log_format), options.log_level)
        if log_format(options.log_format) == "json":
            # gRPC's own log lines, one for each failed handshake, are not JSON.
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        check_processes(options.processes)
        configs = load_selected_configs(options)
        metrics = metrics_addresses(configs, options)
        for behind in _by_listen(configs).values():
            _identities(behind)
        _check_clients(configs, reported=bool(options.check or options.bound))
        if options.check:
            for config in configs:
                sys.stdout.write(describe_config(config, options.processes) + "\n")
            for address in metrics:
                sys.stdout.write(f"metrics: would be served at http://{address}/metrics\n")
            return 0
        if options.bound:
            bound = dict(one.split("=", 1) for one in options.bound)
            own_metrics = metrics[options.place :][:1]
            return _run(configs, form, own_metrics, levels, bound, joining=options.joining)
        for address in metrics:
            _check_free(address, "metrics")
        if options.processes > 1:
            return _supervise(configs, given, options.processes)
        return _run(configs, form, metrics, levels)
    except (ConfigError, IncompatibleStore, KdirError, StoreDamaged) as error:
        sys.stderr.write(f"{form.failure(str(error))}\n")
        return 2
    except StoreUnreachable as error:
        sys.stderr.write(f"{form.failure(f'the store cannot be reached: {error}')}\n")
        return 3


def _check_clients(configs: Sequence[ServerConfig], *, reported: bool) -> None:
    """Checks that the clients of etcd and Kafka are installed, and that Kafka's properties are
    valid. Logs the advice on Kafka's properties, unless it is ``reported`` elsewhere.

    Raises:
        ConfigError: a client is missing or cannot be configured.
    """
    if any(config.store.startswith("etcd://") for config in configs) and (
        missing := missing_extra("a store at etcd://…", "etcd")
    ):
        raise ConfigError(missing)
    tables = [table for config in configs for table in (config.kafka, config.change_log) if table]
    for table in tables:
        table.client.read()
    if not reported:
        for advice in sorted({table.client.advice() for table in tables} - {""}):
            _log.warning("%s", advice)


def _supervise(configs: Sequence[ServerConfig], arguments: Sequence[str], count: int) -> int:
    for listen in dict.fromkeys(config.listen for config in configs):
        _check_free(listen)
    with Ports() as ports:
        for config in configs:
            key = _own_address(config)
            if key not in ports.addresses:
                ports.hold(key, config.listen)
        return Supervisor(
            arguments,
            count,
            ports.addresses,
            clusters=len(configs),
            drain_seconds=max(config.limits.drain_seconds for config in configs),
            out=sys.stdout,
        ).run()


def _run(
    configs: Sequence[ServerConfig],
    form: logs.LogFormatter,
    metrics: Sequence[str],
    levels: Levels,
    bound: Mapping[str, str] | None = None,
    *,
    joining: bool = False,
) -> int:
    """Serves in this process.

    Args:
        configs: its clusters.
        form: format of its log lines.
        metrics: address for Prometheus; one or none.
        levels: the feature levels that it supports.
        bound: listening addresses by ``_own_address``, if it is one process of several; else None.
        joining: True if other such processes already serve at these addresses.
    """
    from directory.api.rpc.grpc_internals import set_longest_wait
    from directory.api.rpc.switch_interval import SWITCH_SECONDS

    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(_COLLECTED_OBJECTS)
    set_longest_wait(_SIGNAL_SECONDS)
    stop = threading.Event()
    stop_at_signals(stop)
    served = _Served()
    if bound is not None:
        threading.Thread(target=_end_with_supervisor, args=(stop,), daemon=True).start()
    watchdog = Watchdog(served.servers, max(one.limits.max_call_seconds for one in configs))
    watchdog.start()
    with ExitStack() as stack:
        names = [config.cluster for config in configs]
        # Started first, ended last: until clusters are ready, it answers that they are not.
        for address in metrics:
            reported = _start_metrics_endpoint(address, names, served, watchdog, form)
            stack.enter_context(closing(reported))
        stack.callback(_end, served.places)
        if bound is None:
            for listen in dict.fromkeys(config.listen for config in configs):
                _check_free(listen)
        for config in configs:
            _make_default_folder(config)
        served.places.extend(_places(configs, served, form, levels, bound, joining=joining))
        for place in served.places:
            place.open()
        for place in served.places:
            place.bind()
        _serve(served.places, served.servers, stop)
        _log.info("draining")
    return 0


def stop_at_signals(stop: threading.Event) -> None:
    """Sets an event at SIGTERM or SIGINT.

    A handler runs in the main thread, which may hold the event's lock while it waits for the event.
    So it only puts into a queue, which is always allowed, and another thread sets the event.
    """
    received: queue.SimpleQueue[None] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: received.put(None))

    def follow() -> None:
        received.get()
        stop.set()

    threading.Thread(target=follow, name="signals", daemon=True).start()


@dataclass(frozen=True, slots=True)
class _Served:
    """Servers and clusters of one process; the lists grow during startup."""

    servers: list[DirectoryServer] = field(default_factory=list)
    clusters: list[Cluster] = field(default_factory=list)
    places: list[ServedAddress] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)
    """Bound addresses, by ``_own_address``."""


def _places(
    configs: Sequence[ServerConfig],
    served: _Served,
    form: logs.LogFormatter,
    levels: Levels,
    bound: Mapping[str, str] | None,
    *,
    joining: bool,
) -> Iterator[ServedAddress]:
    """Yields each address, with the configs of its clusters; nothing is opened yet."""
    # A heavy import, which a supervisor or ``--check`` does not need.
    from directory.server.cluster import Cluster

    def open_cluster(config: ServerConfig) -> Cluster:
        cluster = Cluster.open(config, partial(_endpoints, config, served.addresses), levels)
        form.servers[config.cluster] = cluster.server_id
        served.clusters.append(cluster)
        cluster.beside = lambda: served.clusters
        cluster.unopened = lambda: (one for place in served.places for one in place.unopened)
        return cluster

    for key, behind in _by_listen(configs).items():
        yield ServedAddress(
            behind,
            behind[0].listen if bound is None else _bound_at(bound, key),
            shared=bound is not None,
            joining=joining,
            open_cluster=open_cluster,
            bound=partial(served.addresses.__setitem__, key),
            announce=partial(_announce, form),
            identities=_identities(behind),
        )


def _serve(
    places: Sequence[ServedAddress], servers: list[DirectoryServer], stop: threading.Event
) -> None:
    """Serves until the event ``stop`` is set.

    Raises:
        IncompatibleStore: a store that became reachable cannot be used; or a cluster has raised its
            feature level above this server's.
    """

    def started(place: ServedAddress) -> None:
        if place.server is not None:
            servers.append(place.server)
        _stop_when_refused(place.clusters, stop)

    _serve_places(places, started, stop)
    for cluster in (cluster for place in places for cluster in place.clusters):
        if cluster.members.refused:
            raise IncompatibleStore(f"{cluster.config.cluster}: {cluster.members.refused}")


def _stop_when_refused(clusters: Sequence[Cluster], stop: threading.Event) -> None:
    def look() -> None:
        if any(cluster.members.refused for cluster in clusters):
            stop.set()

    for cluster in clusters:
        cluster.members.subscribe(look)
    look()


def _end(places: Sequence[ServedAddress]) -> None:
    run_together(place.drain for place in places)
    clusters = [cluster for place in places for cluster in place.clusters]

    def drop_pending() -> None:
        for cluster in clusters:
            cluster.children.drop_pending()

    dropping = threading.Timer(_STOP_SECONDS / 2, drop_pending)
    dropping.start()
    if late := run_together([cluster.stop for cluster in clusters], _STOP_SECONDS):
        _log.warning(
            "%d of %d clusters have not stopped after %g s, since a store or Kafka does not "
            "answer; their registrations and roles expire",
            late,
            len(clusters),
            _STOP_SECONDS,
        )
    dropping.cancel()


def _start_metrics_endpoint(
    address: str,
    names: Sequence[str],
    served: _Served,
    watchdog: Watchdog,
    form: logs.LogFormatter,
) -> MetricsEndpoint:
    from directory.server.metrics.prometheus import MetricsEndpoint

    endpoint = MetricsEndpoint(address, names, served.clusters, served.servers, watchdog)
    _announce(form, f"metrics on http://{endpoint.address}/metrics")
    return endpoint


def _announce(form: logs.LogFormatter, message: str) -> None:
    print_lines(sys.stdout, f"{form.announcement(message)}\n")


def _bound_at(bound: Mapping[str, str], key: str) -> str:
    try:
        return bound[key]
    except KeyError:
        raise ConfigError(
            f"listen: {key} is no address of the supervisor; was the config changed? "
            f"restart all of kdir server"
        ) from None


def _end_with_supervisor(stop: threading.Event) -> None:
    """Stops the process when standard input ends: the supervisor holds its other end and never
    writes.
    """
    with contextlib.suppress(OSError):
        # Not by sys.stdin: its lock, held by a thread, aborts the interpreter at its end.
        while os.read(0, 1024):
            pass
    stop.set()


def _check_free(listen: str, key: str = "listen") -> None:
    """Checks that the address is free, before a store is opened, which may create it: a server that
    cannot serve changes nothing.
    """
    host, port = split_address(listen) or ("", 0)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(f"{key}: cannot bind {listen}: {error.strerror or error}") from error


def _make_default_folder(config: ServerConfig) -> None:
    """Creates the folder of the default store, which no user chose."""
    try:
        is_default = config.store == default_store(config.cluster)
    except ConfigError:
        return  # without a home folder there is no default
    if is_default:
        file = pathlib.Path(config.store.removeprefix("sqlite:///"))
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"store: {file.parent} cannot be made: {error.strerror}; name another by --store"
            ) from error


def _by_listen(configs: Sequence[ServerConfig]) -> dict[str, list[ServerConfig]]:
    found: dict[str, list[ServerConfig]] = {}
    for config in configs:
        found.setdefault(_own_address(config), []).append(config)
    return found


_LIMITS_OF_CLUSTER: Final = frozenset(
    {
        "answer_ttl_seconds",
        "child_mount_bytes",
        "child_mounts",
        "inherited_grants_max_age_seconds",
        "link_heartbeat_seconds",
        "max_stale_seconds",
        "negative_ttl_seconds",
        "outbox_changes",
        "referral_ttl_seconds",
        "remembered_bytes",
        "retained_change_bytes",
        "retained_change_events",
        "table_bytes",
        "table_mounts",
        "watch_queue_bytes",
        "watch_queue_events",
    }
)
_LIMITS_OF_SERVER: Final = [
    one.name for one in dataclasses.fields(Limits) if one.name not in _LIMITS_OF_CLUSTER
]
"""Limits of one gRPC server, for all of its clusters together."""


def _identities(configs: Sequence[ServerConfig]) -> Authenticator | None:
    """Returns the authenticator of one address.

    Raises:
        ConfigError: a setting for it cannot be used.
    """
    first = configs[0]
    for other in configs[1:]:
        for key in _LIMITS_OF_SERVER:
            values = [getattr(one.limits, key) for one in (first, other)]
            if values[0] != values[1]:
                raise ConfigError(
                    f"limits.{key}: found {values[0]} for cluster {first.cluster} and {values[1]} "
                    f"for {other.cluster}, which listen at one address; expected one value"
                )
        if other.dial_allow != first.dial_allow:
            raise ConfigError(
                f"[dial]: differs for clusters {first.cluster} and {other.cluster}, which listen "
                f"at one address"
            )
    if all(config.tls is None and not config.auth.has_tokens for config in configs):
        return None
    from directory.server.authentication import identities_of  # imports gRPC

    return identities_of([(config.cluster, config.tls, config.auth) for config in configs])


def _own_address(config: ServerConfig) -> str:
    # Port 0 means a free port for each cluster: two clusters with port 0 do not share one.
    return f"{config.listen}#{config.cluster}" if config.listen.endswith(":0") else config.listen


def _endpoints(config: ServerConfig, addresses: dict[str, str]) -> tuple[str, ...]:
    if config.advertise:
        return config.advertise
    bound = addresses.get(_own_address(config))
    return (bound,) if bound else ()


class ServedAddress:
    """Clusters that one gRPC server serves at one address. Each path that one of them owns is
    answered there, without a referral by another one.

    Args:
        configs: configs of the clusters.
        listen: the address.
        shared: True if other processes of the same supervisor listen at the address, too.
        joining: True if some of those processes serve already: this process binds the address only
            when all its clusters are loaded, so that no caller gets *not ready* by chance.
        open_cluster: opens one cluster.
        bound: called with the address once it is known.
        announce: prints a line on stdout.
        identities: authenticates callers; None = callers are not identified.
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
        announce: Callable[[str], None],
        identities: Authenticator | None = None,
    ) -> None:
        self._identities: Final = identities
        self._missing: Final = list(configs)
        self._listen = listen
        self._shared: Final = shared
        self._joining: Final = joining
        self._open_cluster: Final = open_cluster
        self._bound: Final = bound
        self._announce: Final = announce
        self._reported = ""
        self._waiting: NotReadyServer | None = None
        self.clusters: Final[list[Cluster]] = []
        """The open clusters."""
        self.server: DirectoryServer | None = None

    @property
    def unopened(self) -> Sequence[ServerConfig]:
        """The configs of the clusters that are not open yet."""
        return tuple(self._missing)

    @property
    def is_open(self) -> bool:
        """True if every cluster is open."""
        return not self._missing

    def open(self) -> None:
        """Opens the stores that can be reached.

        Raises:
            IncompatibleStore: a store cannot be used.
            StoreUnreachable: an embedded store cannot be opened.
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
        """Binds the address.

        Raises:
            ConfigError: it is in use.
        """
        from directory.api.rpc.listener import NotReadyServer

        if self._joining:
            pass  # bound later; the address is known already
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
        """Opens the other stores once they can be reached, answering NOT_READY meanwhile. Returns
        False if ``stop`` is set before.

        Raises:
            IncompatibleStore, ConfigError: as ``open`` and ``bind``.
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
        """Begins to load and to answer; prints a line for each cluster, from which scripts read the
        port.

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
            with logs.cluster_log_context(config.cluster):
                self._announce(
                    serving_line(config.mount, config.cluster, cluster.cluster_id, self._listen)
                )

    def drain(self) -> None:
        """Refuses new calls and lets calls under way end."""
        if self._waiting is not None:
            self._waiting.stop()
        if self.server is not None:
            self.server.drain()


def _serve_places(
    places: Sequence[ServedAddress], started: Callable[[ServedAddress], None], stop: threading.Event
) -> None:
    """Serves the open addresses, and each of the others once it is open, until ``stop`` is set.

    Raises:
        IncompatibleStore, ConfigError: of an address that opened later.
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
    """Starts one address once its stores can be reached."""

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
