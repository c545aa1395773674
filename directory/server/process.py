"""The process of directory servers: signals, addresses, drain; refuses to know any call.

Exit codes: 0 after SIGTERM or SIGINT, 2 for a config, port or store that cannot be used (one
sentence on stderr, nothing touched).
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
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
from directory.server.config import ConfigError, ServerConfig, default_store
from directory.server.feature_levels import LEVELS, Levels
from directory.server.startup import ServedAddress, serve
from directory.server.supervisor import Ports, Supervisor
from directory.server.toml_table import split_address
from directory.server.watchdog import Watchdog
from directory.store.base import IncompatibleStore, StoreUnreachable
from resolver.errors import KdirError
from resolver.printable import printable

if TYPE_CHECKING:
    from directory.api.grpc_server import DirectoryServer
    from directory.server.authentication import Authenticator
    from directory.server.cluster import Cluster
    from directory.server.metrics.http_endpoint import MetricsEndpoint

__all__ = ["main"]

_log = logging.getLogger("directory")


_LOCK_SECONDS: Final = 0.0005
"""Of a thread that computes while others wait for the interpreter. By default it is 5 ms, which a
short call would wait for several times while a long one is answered."""


def main(arguments: Sequence[str] | None = None, levels: Levels = LEVELS) -> int:
    """Runs until SIGTERM or SIGINT, as a release that supports these feature levels."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser().parse_args(given)
    try:
        form = logs.set_up(log_format(options.log_format), options.log_level)
        if log_format(options.log_format) == "json":
            # gRPC's own lines, one for each handshake that fails, are no JSON.
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        check_processes(options.processes)
        configs = load_selected_configs(options)
        metrics = metrics_addresses(configs, options)
        for behind in _by_listen(configs).values():
            _identities(behind)
        _check_kafkas(configs, reported=bool(options.check or options.bound))
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
    except (ConfigError, IncompatibleStore, KdirError) as error:
        sys.stderr.write(f"error: {printable(logs.redacted(str(error)))}\n")
        return 2
    except StoreUnreachable as error:
        why = printable(logs.redacted(str(error)))
        sys.stderr.write(f"error: the store cannot be reached: {why}\n")
        return 3


def _check_kafkas(configs: Sequence[ServerConfig], *, reported: bool) -> None:
    """How Kafka's clients would come in; advice on it is logged, unless it is said elsewhere.

    Raises:
        ConfigError: they could not.
    """
    for client in (config.kafka.client for config in configs if config.kafka is not None):
        client.read()
        if client.advice() and not reported:
            _log.warning("%s", client.advice())


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
        form: of its log lines.
        metrics: where Prometheus is answered; one address, or none.
        levels: the feature levels that it supports.
        bound: where it listens, by ``_own_address``, as one process of several.
        joining: others of these serve there already.
    """
    sys.setswitchinterval(_LOCK_SECONDS)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    served = _Served()
    if bound is not None:
        threading.Thread(target=_end_with_supervisor, args=(stop,), daemon=True).start()
    watchdog = Watchdog(served.servers, max(one.limits.max_call_seconds for one in configs))
    watchdog.start()
    with ExitStack() as stack:
        names = [config.cluster for config in configs]
        # Told first, ended last: who asks in between hears that nothing is ready.
        for address in metrics:
            reported = _start_metrics_endpoint(address, names, served, watchdog)
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


@dataclass(frozen=True, slots=True)
class _Served:
    """What one process serves; it grows while it starts."""

    servers: list[DirectoryServer] = field(default_factory=list)
    clusters: list[Cluster] = field(default_factory=list)
    places: list[ServedAddress] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)
    """As bound, by ``_own_address``."""


def _places(
    configs: Sequence[ServerConfig],
    served: _Served,
    form: logs.LogFormatter,
    levels: Levels,
    bound: Mapping[str, str] | None,
    *,
    joining: bool,
) -> Iterator[ServedAddress]:
    """Yields one for each address, with the clusters behind it; nothing is opened yet."""
    # Heavy, and nothing for a supervisor or a check.
    from directory.server.cluster import Cluster

    def open_cluster(config: ServerConfig) -> Cluster:
        cluster = Cluster.open(config, partial(_endpoints, config, served.addresses), levels)
        form.servers[config.cluster] = cluster.server_id
        served.clusters.append(cluster)
        cluster.beside = lambda: served.clusters
        return cluster

    for key, behind in _by_listen(configs).items():
        yield ServedAddress(
            behind,
            behind[0].listen if bound is None else _bound_at(bound, key),
            shared=bound is not None,
            joining=joining,
            open_cluster=open_cluster,
            bound=partial(served.addresses.__setitem__, key),
            identities=_identities(behind),
        )


def _serve(
    places: Sequence[ServedAddress], servers: list[DirectoryServer], stop: threading.Event
) -> None:
    """Until it is told to stop.

    Raises:
        Incompatible: a store that came late cannot be used; or a cluster has gone on to a feature
            level that this server does not support.
    """

    def started(place: ServedAddress) -> None:
        if place.server is not None:
            servers.append(place.server)
        _stop_when_refused(place.clusters, stop)

    serve(places, started, stop)
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
    for place in places:
        place.drain()
    for place in places:
        place.end()


def _start_metrics_endpoint(
    address: str, names: Sequence[str], served: _Served, watchdog: Watchdog
) -> MetricsEndpoint:
    from directory.server.metrics.http_endpoint import MetricsEndpoint

    endpoint = MetricsEndpoint(address, names, served.clusters, served.servers, watchdog)
    sys.stdout.write(f"metrics on http://{endpoint.address}/metrics\n")
    sys.stdout.flush()
    return endpoint


def _bound_at(bound: Mapping[str, str], key: str) -> str:
    try:
        return bound[key]
    except KeyError:
        raise ConfigError(
            f"listen: {key} is not among what the supervisor listens on; was the config changed? "
            f"restart all of kdir server"
        ) from None


def _end_with_supervisor(stop: threading.Event) -> None:
    """The supervisor holds the other end of standard input, and writes nothing: an end of it is
    the end of the supervisor, whatever became of it.
    """
    with contextlib.suppress(OSError):
        # Not by sys.stdin: its lock, held by a thread, aborts the interpreter at its end.
        while os.read(0, 1024):
            pass
    stop.set()


def _check_free(listen: str, key: str = "listen") -> None:
    """Before a store is opened, which may make one: what cannot serve is to touch nothing."""
    host, port = split_address(listen) or ("", 0)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"{key}: cannot bind {listen}: {os.strerror(error.errno or 0)}"
            ) from error


def _make_default_folder(config: ServerConfig) -> None:
    """Nobody chose the default store's folder, so nobody else makes it."""
    if config.store == default_store(config.cluster):
        file = pathlib.Path(config.store.removeprefix("sqlite:///"))
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def _by_listen(configs: Sequence[ServerConfig]) -> dict[str, list[ServerConfig]]:
    found: dict[str, list[ServerConfig]] = {}
    for config in configs:
        found.setdefault(_own_address(config), []).append(config)
    return found


def _identities(configs: Sequence[ServerConfig]) -> Authenticator | None:
    """Returns how callers of one address say who they are.

    Raises:
        ConfigError: what the config names for it cannot be used.
    """
    first = configs[0]
    for other in configs[1:]:
        if other.dial_allow != first.dial_allow:
            raise ConfigError(
                f"[dial]: clusters {first.cluster} and {other.cluster} listen at one address, and "
                f"differ"
            )
    if all(config.tls is None and not config.auth.has_tokens for config in configs):
        return None
    from directory.server.authentication import identities_of  # needs gRPC: nothing for --check

    return identities_of([(config.cluster, config.tls, config.auth) for config in configs])


def _own_address(config: ServerConfig) -> str:
    # Port 0 means a free port each: two clusters that both ask for one do not share it.
    return f"{config.listen}#{config.cluster}" if config.listen.endswith(":0") else config.listen


def _endpoints(config: ServerConfig, addresses: dict[str, str]) -> tuple[str, ...]:
    if config.advertise:
        return config.advertise
    bound = addresses.get(_own_address(config))
    return (bound,) if bound else ()
