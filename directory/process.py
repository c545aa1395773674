"""The process of directory servers: command line, signals, drain; refuses to know any call.

Exit codes: 0 after SIGTERM or SIGINT, 2 for a config, port or store that cannot be used (one
sentence on stderr, nothing touched).
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import pathlib
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING

from directory import logs
from directory.config import (
    DEFAULT_LISTEN,
    ConfigError,
    KafkaConfig,
    Listener,
    ServerConfig,
    check_loopback,
    default_store,
    load_configs,
)
from directory.features import FEATURE_LEVEL, FIRST_LEVEL
from directory.opening import Place, serve
from directory.store.base import Incompatible, StoreAway
from directory.supervisor import MOST_PROCESSES, Ports, Supervisor
from directory.toml_table import split_address
from resolver.errors import KdirError
from resolver.path import Path

if TYPE_CHECKING:
    from directory.cluster import Cluster
    from directory.metrics.endpoint import MetricsEndpoint
    from directory.services.server import DirectoryServer

__all__ = ["main"]

_LAST_PORT = 65_535
LOG_FORMAT = "KDIR_LOG_FORMAT"
"""Names the form of log lines where no ``--log-format`` does."""
HOLD_BACK = "KDIR_FEATURE_LEVEL"
"""Names the feature level that a server is held back to, as if it were an older one."""
_log = logging.getLogger("directory")

_EXAMPLES = """\
examples:
  kdir server --mount /la/tracking --kafka kafka-1:9092
      serve a running Kafka cluster's topics under their own names; changes nothing in Kafka
  kdir server --config /etc/kdir/la-tracking.toml
  kdir server --config /etc/kdir/            every *.toml in the folder, in one process
  kdir server --config la.toml --processes 4  four processes, one port, one store
  kdir server --check --config server.toml   say what it would do, and do nothing
  kdir server --config la.toml --metrics 127.0.0.1:9420 --log-format json
      for Prometheus at http://127.0.0.1:9420/metrics, and one JSON object a log line
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kdir server",
        description="Run the directory server of one Kafka cluster, or of several.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="TOML file or folder; repeatable",
    )
    parser.add_argument(
        "--mount", metavar="PATH", help="where the cluster hangs in the global tree"
    )
    parser.add_argument(
        "--kafka", metavar="HOST:PORT", help="brokers to begin with, comma-separated"
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help=f"default {DEFAULT_LISTEN}")
    parser.add_argument(
        "--parent", metavar="HOST:PORT", help="servers of the parent, comma-separated"
    )
    parser.add_argument("--cluster", metavar="NAME", help="default: the mount, joined by -")
    parser.add_argument(
        "--store", metavar="ADDRESS", help="default: an sqlite file in the state folder"
    )
    parser.add_argument("--site", metavar="NAME", help="the site that it belongs to")
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="so many processes share the port and the store; default 1",
    )
    parser.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        help="answer /metrics, /healthz and /readyz there; one of several processes at PORT + 1, "
        "and so on",
    )
    # What the supervisor tells the processes that it starts: where to listen, by key, and which
    # one of them it is, from 0.
    parser.add_argument("--bound", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--place", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help="validate, say what it would do, end")
    parser.add_argument(
        "--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR")
    )
    parser.add_argument(
        "--log-format",
        choices=logs.FORMATS,
        help=f"lines for people, or a JSON object each; default ${LOG_FORMAT}, or text",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(given)
    try:
        form = logs.set_up(_log_format(options.log_format), options.log_level)
        if not 1 <= options.processes <= MOST_PROCESSES:
            raise ConfigError(
                f"--processes: found {options.processes}; 1 to {MOST_PROCESSES} would be right"
            )
        configs = _configs(options)
        metrics = _metrics(configs, options)
        if options.check:
            for config in configs:
                sys.stdout.write(_intent(config, options.processes) + "\n")
            for address in metrics:
                sys.stdout.write(f"metrics: would be told at http://{address}/metrics\n")
            return 0
        if options.bound:
            bound = dict(one.split("=", 1) for one in options.bound)
            return _run(configs, form, metrics[options.place :][:1], bound)
        for address in metrics:
            _check_free(address, "metrics")
        if options.processes > 1:
            return _supervise(configs, given, options.processes)
        return _run(configs, form, metrics)
    except (ConfigError, Incompatible, KdirError) as error:
        sys.stderr.write(f"error: {logs.redacted(str(error))}\n")
        return 2
    except StoreAway as error:
        sys.stderr.write(f"error: the store cannot be reached: {logs.redacted(str(error))}\n")
        return 3


def _log_format(named: str | None) -> str:
    form = named or os.environ.get(LOG_FORMAT) or logs.FORMATS[0]
    if form not in logs.FORMATS:
        raise ConfigError(f"{LOG_FORMAT}: found {form!r}; {' or '.join(logs.FORMATS)} is right")
    return form


def _metrics(configs: Sequence[ServerConfig], options: argparse.Namespace) -> list[str]:
    """Where each process answers Prometheus: none, or as many as there are processes.

    One port for all would give each scrape another process's numbers.
    """
    named = dict.fromkeys(config.metrics for config in configs if config.metrics)
    if options.metrics is not None:
        check_loopback(options.metrics, "--metrics")
        named = {options.metrics: None}
    if len(named) > 1:
        raise ConfigError(
            f"metrics: found {' and '.join(named)}; these clusters share a process, which has one "
            f"such address"
        )
    for address in named:
        host, port = address.rpartition(":")[0], int(address.rpartition(":")[2])
        last = port + options.processes - 1
        if last > _LAST_PORT:
            raise ConfigError(f"metrics: found {address}; {options.processes} processes need more")
        ports = range(port, last + 1) if port else [0] * options.processes
        return [f"{host}:{one}" for one in ports]
    return []


def _configs(options: argparse.Namespace) -> list[ServerConfig]:
    quick = ("mount", "kafka", "listen", "parent", "cluster", "store", "site")
    given = [name for name in quick if getattr(options, name) is not None]
    if options.config:
        if given:
            raise ConfigError(f"--{given[0]}: goes without --config; put it into the file")
        return load_configs(options.config)
    if options.mount is None:
        raise ConfigError("--config FILE, or --mount PATH, is needed")
    settings = {
        name: getattr(options, name)
        for name in ("cluster", "store", "site", "listen")
        if getattr(options, name) is not None
    }
    check_loopback(settings.get("listen", DEFAULT_LISTEN))
    if options.parent is not None:
        settings["parent"] = _addresses("parent", options.parent)
    if options.kafka is not None:
        bootstrap = _addresses("kafka", options.kafka)
        settings["kafka"] = KafkaConfig(bootstrap, listeners=(Listener("default", bootstrap),))
    return [ServerConfig.quick(Path.parse(options.mount), **settings)]


def _addresses(flag: str, text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for address in found or (text,):
        if split_address(address) is None:
            raise ConfigError(f"--{flag}: found {address!r}; host:port would be right")
    return found


def _intent(config: ServerConfig, processes: int) -> str:
    kafka = config.kafka
    allowed = (
        ", ".join(sorted(kafka.ceiling)) if kafka and kafka.ceiling else "nothing: it observes"
    )
    store = logs.redacted(config.store)
    lines = [
        f"{config.cluster}: would serve {config.mount} on {config.listen} from {store}",
        f"  parent: {', '.join(config.parent) or 'none'}",
    ]
    if processes > 1:
        lines.append(f"  processes: {processes}, sharing the port")
    if kafka is not None:
        lines.append(f"  kafka:  {', '.join(kafka.bootstrap)}; may change there: {allowed}")
    lines += [
        f"  site link {link.path} → {', '.join(map(str, link.targets))}" for link in config.links
    ]
    return "\n".join(lines)


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
    form: logs.Form,
    metrics: Sequence[str],
    bound: Mapping[str, str] | None = None,
) -> int:
    """Serves in this process.

    Args:
        configs: its clusters.
        form: of its log lines.
        metrics: where Prometheus is answered; one address, or none.
        bound: where it listens, by ``_own_address``, as one process of several.
    """
    # Heavy, and nothing for a supervisor or a check.
    from directory.cluster import Cluster

    level = _feature_level(os.environ.get(HOLD_BACK, ""))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if bound is not None:
        threading.Thread(target=_end_with_supervisor, args=(stop,), daemon=True).start()
    servers: list[DirectoryServer] = []
    addresses: dict[str, str] = {}
    clusters: list[Cluster] = []
    places: list[Place] = []
    with ExitStack() as stack:
        names = [config.cluster for config in configs]
        # Told first, ended last: who asks in between hears that nothing is ready.
        for address in metrics:
            stack.enter_context(closing(_told_to_prometheus(address, names, clusters, servers)))
        stack.callback(_end, places)
        if bound is None:
            for listen in dict.fromkeys(config.listen for config in configs):
                _check_free(listen)

        def open_cluster(config: ServerConfig) -> Cluster:
            cluster = Cluster.open(config, partial(_endpoints, config, addresses), level)
            form.servers[config.cluster] = cluster.server_id
            clusters.append(cluster)
            return cluster

        by_listen: dict[str, list[ServerConfig]] = {}
        for config in configs:
            _make_default_folder(config)
            by_listen.setdefault(_own_address(config), []).append(config)
        for key, behind in by_listen.items():
            places.append(
                Place(
                    behind,
                    behind[0].listen if bound is None else _bound_at(bound, key),
                    shared=bound is not None,
                    open_cluster=open_cluster,
                    bound=partial(addresses.__setitem__, key),
                )
            )
        for place in places:
            place.open()
        for place in places:
            place.bind()
        _serve(places, servers, stop)
        _log.info("draining")
    return 0


def _serve(places: Sequence[Place], servers: list[DirectoryServer], stop: threading.Event) -> None:
    """Until it is told to stop.

    Raises:
        Incompatible: a store that came late cannot be used; or a cluster has gone on to a feature
            level that this server does not support.
    """

    def started(place: Place) -> None:
        if place.server is not None:
            servers.append(place.server)
        _stop_when_refused(place.clusters, stop)

    serve(places, started, stop)
    for cluster in (cluster for place in places for cluster in place.clusters):
        if cluster.members.refused:
            raise Incompatible(f"{cluster.config.cluster}: {cluster.members.refused}")


def _stop_when_refused(clusters: Sequence[Cluster], stop: threading.Event) -> None:
    def look() -> None:
        if any(cluster.members.refused for cluster in clusters):
            stop.set()

    for cluster in clusters:
        cluster.members.subscribe(look)
    look()


def _end(places: Sequence[Place]) -> None:
    for place in places:
        place.drain()
    for place in places:
        place.end()


def _told_to_prometheus(
    address: str,
    names: Sequence[str],
    clusters: Sequence[Cluster],
    servers: Sequence[DirectoryServer],
) -> MetricsEndpoint:
    from directory.metrics.endpoint import MetricsEndpoint

    endpoint = MetricsEndpoint(address, names, clusters, servers)
    sys.stdout.write(f"metrics on http://{endpoint.address}/metrics\n")
    sys.stdout.flush()
    return endpoint


def _feature_level(text: str) -> int:
    """What this server supports: all that it can, unless it is held back."""
    if not text:
        return FEATURE_LEVEL
    if text.isdecimal() and FIRST_LEVEL <= int(text) <= FEATURE_LEVEL:
        return int(text)
    raise ConfigError(
        f"{HOLD_BACK}: found {text!r}; {FIRST_LEVEL} to {FEATURE_LEVEL} would be right"
    )


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


def _own_address(config: ServerConfig) -> str:
    # Port 0 means a free port each: two clusters that both ask for one do not share it.
    return f"{config.listen}#{config.cluster}" if config.listen.endswith(":0") else config.listen


def _endpoints(config: ServerConfig, addresses: dict[str, str]) -> tuple[str, ...]:
    if config.advertise:
        return config.advertise
    bound = addresses.get(_own_address(config))
    return (bound,) if bound else ()
