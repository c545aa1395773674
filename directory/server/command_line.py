"""Parses and checks the arguments of ``kdir server``, and loads the configs that they select. Every
error is a ``ConfigError`` with one sentence.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
from collections.abc import Mapping, Sequence
from typing import Any

from directory.kafka.own_client_settings import ClientProperties
from directory.server import logs
from directory.server.config import (
    DEFAULT_LISTEN,
    ConfigError,
    ServerConfig,
    check_loopback,
    load_configs,
    parse_config,
    shown_store,
)
from directory.server.supervisor import MOST_PROCESSES
from directory.server.toml_table import split_address
from resolver.command_parser import CommandParser

__all__ = [
    "check_processes",
    "describe_config",
    "load_selected_configs",
    "log_format",
    "metrics_addresses",
    "parser",
]

_LAST_PORT = 65_535
_EVERY_HOST = {"0.0.0.0", "::"}  # noqa: S104 - only compared
LOG_FORMAT = "KDIR_LOG_FORMAT"
"""Environment variable for the format of log lines, if there is no ``--log-format``."""

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


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the arguments."""
    made = CommandParser(
        prog="kdir server",
        description="Run the directory server of one Kafka cluster, or of several.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="TOML file or folder; repeatable",
    )
    made.add_argument("--mount", metavar="PATH", help="mount point of the cluster")
    made.add_argument("--kafka", metavar="HOST:PORT", help="brokers to begin with, comma-separated")
    made.add_argument("--listen", metavar="HOST:PORT", help=f"default {DEFAULT_LISTEN}")
    made.add_argument(
        "--parent", metavar="HOST:PORT", help="servers of the parent, comma-separated"
    )
    made.add_argument("--cluster", metavar="NAME", help="default: the mount, joined by -")
    made.add_argument(
        "--store", metavar="ADDRESS", help="default: an sqlite file in the state folder"
    )
    made.add_argument("--site", metavar="NAME", help="the site that it belongs to")
    made.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="number of worker processes that share the port and the store; default 1",
    )
    made.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        help="answer /metrics, /healthz and /readyz there; one of several processes at PORT + 1, "
        "and so on",
    )
    # Passed by the supervisor to its processes: the listening addresses by key, the number of the
    # process, from 0, and whether others serve already.
    made.add_argument("--bound", action="append", default=[], help=argparse.SUPPRESS)
    made.add_argument("--place", type=int, default=0, help=argparse.SUPPRESS)
    made.add_argument("--joining", action="store_true", help=argparse.SUPPRESS)
    made.add_argument(
        "--check", action="store_true", help="validate the config, show its effect, exit"
    )
    made.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    made.add_argument(
        "--log-format",
        choices=logs.FORMATS,
        help=f"lines for people, or a JSON object each; default ${LOG_FORMAT}, or text",
    )
    return made


def log_format(named: str | None) -> str:
    """Returns one of ``logs.FORMATS``, from the option or the environment.

    Raises:
        ConfigError: unknown format.
    """
    form = named or os.environ.get(LOG_FORMAT) or logs.FORMATS[0]
    if form not in logs.FORMATS:
        raise ConfigError(f"{LOG_FORMAT}: found {form!r}; expected {' or '.join(logs.FORMATS)}")
    return form


def metrics_addresses(configs: Sequence[ServerConfig], options: argparse.Namespace) -> list[str]:
    """Returns the Prometheus address of each process; empty if there are none. With one port for
    all, each scrape would get another process's numbers.

    Raises:
        ConfigError: not loopback, two addresses for one process, or an invalid port.
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
        for listen in dict.fromkeys(config.listen for config in configs):
            if any(_share_port(f"{host}:{one}", listen) for one in ports):
                raise ConfigError(
                    f"metrics: found {address}; expected ports beside that of listen {listen}, one "
                    f"for each of {options.processes} processes"
                )
        return [f"{host}:{one}" for one in ports]
    return []


def _share_port(address: str, other: str) -> bool:
    """True if two addresses conflict, so that a process cannot listen at both."""
    host, port = split_address(address) or ("", 0)
    other_host, other_port = split_address(other) or ("", 0)
    if not port or port != other_port:
        return False
    hosts, other_hosts = _hosts(host), _hosts(other_host)
    return not (hosts.isdisjoint(other_hosts) and (hosts | other_hosts).isdisjoint(_EVERY_HOST))


def _hosts(host: str) -> set[str]:
    """Returns the IP addresses of a host to listen on; a name other than localhost unchanged."""
    if host == "localhost":
        return {"127.0.0.1", "::1"}
    try:
        return {str(ipaddress.ip_address(host))}
    except ValueError:
        return {host}


def load_selected_configs(options: argparse.Namespace) -> list[ServerConfig]:
    """Returns the configs of the clusters to serve, from files or from flags.

    Raises:
        ConfigError: a file or a flag is wrong.
    """
    quick = ("mount", "kafka", "listen", "parent", "cluster", "store", "site")
    given = [name for name in quick if getattr(options, name) is not None]
    if options.config:
        if given:
            raise ConfigError(f"--{given[0]}: not with --config; put it into the file")
        return load_configs(options.config)
    if options.mount is None:
        raise ConfigError("--config FILE, or --mount PATH, is needed")
    return [_config_of_flags({name: getattr(options, name) for name in given})]


def _config_of_flags(given: Mapping[str, str]) -> ServerConfig:
    """Returns the config of a file with these values, so that flags obey the rules of files."""
    document: dict[str, Any] = dict(given)
    if "parent" in document:
        document["parent"] = _addresses(document["parent"])
    if "kafka" in document:
        document["kafka"] = {"bootstrap": _addresses(document["kafka"])}
    try:
        return parse_config(document)
    except ConfigError as error:
        key, _, reason = str(error).partition(": ")
        raise ConfigError(f"--{key.partition('.')[0]}: {reason}") from None


def _addresses(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()] or [text]


def describe_config(config: ServerConfig, processes: int) -> str:
    """Returns what a server with this config would do, for ``--check``."""
    kafka, log = config.kafka, config.change_log
    allowed = (
        ", ".join(sorted(kafka.ceiling)) if kafka and kafka.ceiling else "nothing: it observes"
    )
    if log is not None and not log.is_shared:
        allowed += "; and the change log is there"
    store = shown_store(config.store)
    lines = [
        f"{config.cluster}: would serve {config.mount} on {config.listen} from {store}",
        f"  parent: {', '.join(config.parent) or 'none'}",
    ]
    lines += [f"  {line}" for line in _who(config)]
    if processes > 1:
        lines.append(f"  processes: {processes}, sharing the port")
    if kafka is not None:
        way = _way(kafka.bootstrap, kafka.client)
        lines.append(f"  kafka:  {way}; may change there: {allowed}")
        lines += [f"  advice: {kafka.client.advice()}"] if kafka.client.advice() else []
    if log is not None:
        topics = " and ".join(log.topics("CLUSTER-ID"))
        way = _way(log.bootstrap, log.client)
        lines.append(f"  change log: {way}; topics {topics}, made where they are missing")
    lines += [
        f"  site link {link.path} → {', '.join(map(str, link.targets))}" for link in config.links
    ]
    return "\n".join(lines)


def _way(bootstrap: Sequence[str], client: ClientProperties) -> str:
    return " ".join(filter(None, (", ".join(bootstrap), client.reported())))


def _who(config: ServerConfig) -> list[str]:
    """Returns a line on how callers authenticate; empty without TLS and tokens."""
    tls, auth = config.tls, config.auth
    ways = []
    if tls is not None and tls.client_auth == "require":
        ways.append("a client certificate of the CA")
    if auth.has_tokens:
        ways.append("a bearer token")
    if not ways and tls is None:
        return []
    reported = (
        f"callers authenticate by {' or '.join(ways)}" if ways else "callers are not authenticated"
    )
    return [
        f"TLS: {'on' if tls is not None else 'off, hence loopback only'}; {reported}"
        + ("; anonymous callers are allowed" if auth.allow_anonymous else "")
    ]


def check_processes(count: int) -> None:
    """Checks the number of processes.

    Raises:
        ConfigError
    """
    if not 1 <= count <= MOST_PROCESSES:
        raise ConfigError(f"--processes: found {count}; expected 1 to {MOST_PROCESSES}")
