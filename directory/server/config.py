"""Config of one directory server, from TOML; unknown keys are errors.

Every error is one sentence with the key, the value found and the value expected (``ConfigError``;
the server exits with 2 and has changed nothing).
"""

from __future__ import annotations

import ipaddress
import logging
import os
import pathlib
import stat
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Any, Final, TypeVar

from directory.access.compiled_grants import AccessMode
from directory.change_log.settings import ChangeLogConfig, change_log_of
from directory.namespace.bounds import (
    DEFAULT_BOUNDS,
    DEFAULT_TABLE_BOUNDS,
    Bounds,
    TableBounds,
)
from directory.namespace.entry import LinkMode, LinkWrites
from directory.server.config_kafka import ASPECTS, KafkaConfig, Listener, kafka_of
from directory.server.config_security import AuthConfig, TlsConfig, auth_of, tls_of
from directory.server.toml_table import LARGEST, ConfigError, Table, parsed_path, split_address
from directory.store.base import IncompatibleStore
from directory.store.etcd.etcd_address import EtcdAddress
from resolver.endpoints import AllowList
from resolver.errors import InvalidArgument
from resolver.path import ROOT, Path
from resolver.printable import cut_shown
from resolver.redaction import shown_unknown_address

__all__ = [
    "ASPECTS",
    "DEFAULT_LISTEN",
    "ConfigError",
    "KafkaConfig",
    "Limits",
    "Listener",
    "ServerConfig",
    "SiteLink",
    "check_listen",
    "check_loopback",
    "default_store",
    "load_configs",
    "parse_config",
    "shown_store",
]

_log = logging.getLogger(__name__)

DEFAULT_LISTEN: Final = "127.0.0.1:7420"


@dataclass(frozen=True, slots=True)
class SiteLink:
    """Link that only this site's directories serve."""

    path: Path
    targets: tuple[Path, ...]
    mode: LinkMode = LinkMode.FIRST
    writes: LinkWrites = LinkWrites.STAY
    fall_back_on_absent: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one server; each attribute's name ends with its unit or the things it counts."""

    max_call_seconds: float = 30.0
    """No call works longer than this, even with a later deadline or none."""
    max_stale_seconds: float = 86_400.0
    """Time for which reads are answered, marked stale, while the store is away."""
    max_request_bytes: int = 4 * 1024 * 1024
    """Largest request."""
    metadata_bytes: int = 16 * 1024
    """Metadata of one call, its bearer token included."""
    max_batch_paths: int = 10_000
    """Paths of one BatchResolve."""
    list_items: int = 1_000
    """Elements of any other list or map of a request; contents of entries have their own bounds."""
    text_bytes: int = 16 * 1024
    """Any one text of a request, such as a token; paths and entries have their own bounds."""
    answer_bytes: int = 4 * 1024 * 1024
    """One answer: a page of a listing, scan or history ends there, and the remaining paths of a
    batch get LIMIT_EXCEEDED."""
    unsent_bytes: int = 256 * 1024 * 1024
    """Large answers that callers have not received yet, of all callers together."""
    principal_unsent_bytes: int = 64 * 1024 * 1024
    """Large answers that one caller has not received yet."""
    remembered_bytes: int = 64 * 1024 * 1024
    """Cached answers of each cluster; a change of the tree empties the cache."""
    max_streams: int = 2_000
    """Watches, scans and links at a time; an eighth of them is for links only."""
    principal_streams: int = 1_000
    """Watches, scans and links of one principal at a time, where callers are identified."""
    connection_streams: int = 64
    """Watches and scans of one connection at a time."""
    health_watchers: int = 256
    """Watches of gRPC's health service at a time."""
    reflection_streams: int = 4
    """Streams of gRPC's reflection at a time; each ends after 30 s."""
    read_threads: int = 4
    """Reads, other than streams, that run at a time; more would only share one processor."""
    long_read_threads: int = 1
    """Long reads, such as listings and large batches, at a time, besides ``read_threads``."""
    max_blocked_reads: int = 32
    """Reads at a time that wait for the revision of their token, which this server does not have
    yet; they hold no thread of ``read_threads``."""
    principal_blocked_reads: int = 8
    """Such reads of one caller: a principal, or a connection if callers are not identified."""
    write_threads: int = 16
    """Threads for calls that may wait for the store or for Kafka."""
    max_queued_writes: int = 256
    """Calls that wait for one of ``write_threads``; one more is refused."""
    max_connections: int = 16_384
    """Connections at a time; one more is closed at once."""
    max_concurrent_calls: int = 4_096
    """Calls at a time, streams not counted; one more is refused."""
    connection_calls: int = 100
    """Calls and streams of one connection at a time; its client delays further ones."""
    unfinished_requests: int = 1_024
    """Calls at a time whose headers have arrived and whose request has not; they hold no thread,
    and with one more the oldest are refused."""
    request_seconds: float = 20.0
    """A request arrives within this time after its headers, or the call is refused."""
    referral_ttl_seconds: int = 60
    """TTL of a referral, counted from the owner's confirmation."""
    answer_ttl_seconds: int = 60
    """TTL of an answer."""
    negative_ttl_seconds: int = 5
    """TTL of an absent (negative caching)."""
    inherited_grants_max_age_seconds: float = inf
    """Time without a parent's confirmation after which inherited allows end; denies stay."""
    link_heartbeat_seconds: float = 2.0
    """Longest time between two messages of parent or child on a link."""
    drain_seconds: float = 5.0
    """Time after SIGTERM in which calls under way can end."""
    watch_queue_events: int = 10_000
    """Changes that a watcher may lag behind before its watch ends with RESYNC."""
    watch_queue_bytes: int = 64 * 1024 * 1024
    """The same in bytes; also the bytes of changes kept in memory for all watchers together."""
    retained_change_events: int = 100_000
    """Change events kept in the store."""
    retained_change_bytes: int = 256 * 1024 * 1024
    """Bytes of the change events kept in the store."""
    outbox_changes: int = 1_000_000
    """Commits that may wait for the change log; twice as many for commits that take rights away and
    for those of elected roles or operators."""
    policy_text_bytes: int = DEFAULT_BOUNDS.policy_text_bytes
    """One text of an entry: owner, description, a key or value of a map, a name."""
    policy_tags: int = DEFAULT_BOUNDS.policy_tags
    """Tags of one entry."""
    policy_tag_bytes: int = DEFAULT_BOUNDS.policy_tag_bytes
    """One tag, key and value together."""
    policy_keys: int = DEFAULT_BOUNDS.policy_keys
    """Keys of all maps of one entry's policies."""
    policies_bytes: int = DEFAULT_BOUNDS.policies_bytes
    """All texts, keys and values of one entry's policies."""
    mask_paths: int = DEFAULT_BOUNDS.mask_paths
    """Paths of an update's or a what-if's mask."""
    link_targets: int = DEFAULT_BOUNDS.link_targets
    """Targets of one link."""
    mount_endpoints: int = DEFAULT_BOUNDS.mount_endpoints
    """Endpoints of one mount, and those that a child reports."""
    child_mounts: int = DEFAULT_TABLE_BOUNDS.child_mounts
    """Mounts that one child may report below it; further ones are left out."""
    child_mount_bytes: int = DEFAULT_TABLE_BOUNDS.child_mount_bytes
    """Bytes of the mounts that one child may report."""
    table_mounts: int = DEFAULT_TABLE_BOUNDS.table_mounts
    """Rows of the mount table; beyond it, children that report too many lose rows of their own."""
    table_bytes: int = DEFAULT_TABLE_BOUNDS.table_bytes
    """Bytes of the mount table."""

    @property
    def bounds(self) -> Bounds:
        """Bounds of an entry's contents."""
        return Bounds(**{one.name: getattr(self, one.name) for one in fields(Bounds)})

    @property
    def table_bounds(self) -> TableBounds:
        """Bounds of the mount table and of a child's report."""
        return TableBounds(**{one.name: getattr(self, one.name) for one in fields(TableBounds)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Config of one cluster's directory server."""

    cluster: str
    mount: Path
    store: str
    site: str = ""
    listen: str = DEFAULT_LISTEN
    advertise: tuple[str, ...] = ()
    metrics: str = ""
    """Prometheus address, ``host:port``; empty = none."""
    parent: tuple[str, ...] = ()
    dial_allow: tuple[str, ...] | None = None
    """Networks and domains of servers that may be called, besides ``parent``; None = all."""
    tls: TlsConfig | None = None
    auth: AuthConfig = field(default_factory=AuthConfig)
    access: AccessMode = AccessMode.OPEN
    """Access where no grant matches."""
    kafka: KafkaConfig | None = None
    change_log: ChangeLogConfig | None = None
    links: tuple[SiteLink, ...] = ()
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def quick(cls, mount: Path, **settings: Any) -> ServerConfig:
        """Returns the config of ``kdir server --mount PATH``, with defaults for everything else."""
        cluster = settings.pop("cluster", "") or default_cluster(mount)
        store = _store(settings.pop("store", "") or default_store(cluster), None)
        return cls(cluster=cluster, mount=mount, store=store, **settings)


def default_cluster(mount: Path) -> str:
    """Returns ``la-tracking`` for ``/la/tracking``, and ``root`` for ``/``."""
    return "-".join(mount.segments) or "root"


def default_store(cluster: str) -> str:
    """Returns an sqlite file in the user's state folder (XDG base directories).

    Raises:
        ConfigError: the user has no home folder.
    """
    try:
        home = os.environ.get("XDG_STATE_HOME") or pathlib.Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise ConfigError(
            "store: missing, and the user has no home folder for the default; expected "
            "sqlite:////absolute/file or etcd://HOST:PORT,…/PREFIX"
        ) from error
    return f"sqlite:///{pathlib.Path(home, 'kdir', f'{cluster}.sqlite').absolute()}"


def load_configs(names: Sequence[str]) -> list[ServerConfig]:
    """Reads config files; a folder means its ``*.toml`` in name order.

    Raises:
        ConfigError: a file cannot be read or is wrong; names it.
    """
    files = [file for name in names for file in _files_at(name)]
    configs = [_load(file) for file in files]
    seen: dict[str, pathlib.Path] = {}
    for config, file in zip(configs, files, strict=True):
        keys = [f"cluster {config.cluster!r}", f"store {shown_store(config.store)!r}"]
        mount = f"mount {str(config.mount)!r} at listen {config.listen!r}"
        if not config.parent and not config.listen.endswith(":0"):
            # With a parent, the parent decides where the cluster is mounted.
            keys.append(mount)
        for key in keys:
            if key not in seen:
                seen[key] = file
                continue
            shared = f"{file}: {key} is also that of {seen[key]}"
            if key is not mount or config.mount != ROOT:
                raise ConfigError(shared)
            # The mount of a cluster that once had a parent is in its store, and not in its file.
            _log.warning(
                "%s: only one of them answers, unless their stores have other mounts; expected a "
                "mount in each file",
                shared,
            )
    return configs


def _files_at(name: str) -> list[pathlib.Path]:
    place = pathlib.Path(name)
    try:
        if not stat.S_ISDIR(place.stat().st_mode):
            return [place]
        # Not by glob, which treats a folder that cannot be listed as empty.
        found = sorted(one for one in place.iterdir() if one.name.endswith(".toml"))
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror}") from error
    if not found:
        raise ConfigError(f"{name}: no *.toml file in this folder")
    return found


def _load(file: pathlib.Path) -> ServerConfig:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also for an integer with too many digits
        raise ConfigError(f"{file}: not TOML: {error}") from error
    try:
        return parse_config(document, base=file.parent)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def parse_config(document: Mapping[str, Any], base: pathlib.Path | None = None) -> ServerConfig:
    """Returns the config of a TOML document. Relative sqlite paths are below ``base``.

    Raises:
        ConfigError: names the key, the value found and the value expected.
    """
    top = Table(document, "")
    mount = top.path("mount", ROOT)
    cluster = top.text("cluster", default_cluster(mount))
    listen = top.text("listen", DEFAULT_LISTEN)
    advertise = top.endpoints("advertise")
    tls = tls_of(top.table("tls"), base)
    auth = auth_of(top.table("auth"), tls, base)
    check_listen(listen, tls, advertise)
    metrics = top.text("metrics", "")
    if metrics:
        check_loopback(metrics, "metrics")
    kafka = kafka_of(top.table("kafka"), base)
    store = top.text("store", "") if top.has("store") else default_store(cluster)
    config = ServerConfig(
        cluster=_name("cluster", cluster),
        mount=mount,
        store=_store(store, base),
        site=top.text("site", ""),
        listen=listen,
        advertise=advertise,
        metrics=metrics,
        parent=top.endpoints("parent"),
        dial_allow=_dial_allow(top.table("dial")),
        tls=tls,
        auth=auth,
        access=_access(top),
        kafka=kafka,
        change_log=change_log_of(top.table("change_log"), base, kafka),
        links=_links(top.table("links"), mount),
        limits=_limits(top.table("limits")),
    )
    top.done()
    return config


def _dial_allow(table: Table | None) -> tuple[str, ...] | None:
    """Reads ``[dial]``: the servers that may be called if referrals or links name them.

    Raises:
        ConfigError: names the key.
    """
    if table is None:
        return None
    allow = table.texts("allow") if table.has("allow") else None
    table.done()
    try:
        AllowList.of(allow, ())
    except InvalidArgument as error:
        raise ConfigError(f"dial.{error.message}") from None
    return allow


def _access(table: Table) -> AccessMode:
    modes = {mode.value: mode for mode in (AccessMode.OPEN, AccessMode.ENFORCE)}
    text = table.text("access", AccessMode.OPEN.value)
    if text not in modes:
        table.fail("access", text, f"expected one of {', '.join(modes)}")
    return modes[text]


def _name(key: str, value: str) -> str:
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    if not value or len(value) > 249 or not set(value) <= allowed:
        raise ConfigError(f"{key}: found {value!r}; expected 1 to 249 of a-z A-Z 0-9 . _ -")
    return value


def check_listen(listen: str, tls: TlsConfig | None, advertise: tuple[str, ...]) -> None:
    """Checks that a server without TLS listens on loopback only, and that ``advertise`` is set for
    ``0.0.0.0`` and ``::``, which clients cannot call.

    Raises:
        ConfigError: names the key and the expected value.
    """
    if tls is None:
        check_loopback(listen)
        return
    host = (split_address(listen) or ("",))[0]
    if not host:
        check_loopback(listen)
    if host in {"0.0.0.0", "::"} and not advertise:  # noqa: S104 - a name to look for
        raise ConfigError(
            f"advertise: missing; {listen} is every address of the machine; others need one "
            f"address, as the certificate names it"
        )


def check_loopback(listen: str, key: str = "listen") -> None:
    """Checks that an address without authentication is on loopback.

    Raises:
        ConfigError: not ``host:port``, or not a loopback address.
    """
    parts = split_address(listen)
    if parts is None:
        raise ConfigError(f"{key}: found {listen!r}; expected host:port such as {DEFAULT_LISTEN}")
    host = parts[0]
    if host == "localhost":
        return
    try:
        if ipaddress.ip_address(host).is_loopback:
            return
    except ValueError:
        pass
    what = "without [tls] a server listens" if key == "listen" else "metrics are served"
    raise ConfigError(
        f"{key}: found {listen!r}; {what} on loopback only, such as 127.0.0.1:{parts[1]}"
    )


def _store(address: str, base: pathlib.Path | None) -> str:
    scheme, separator, rest = address.partition("://")
    if not separator or scheme not in {"sqlite", "etcd"}:
        raise ConfigError(
            f"store: found {shown_unknown_address(address)!r}; expected sqlite:///FILE or "
            "etcd://HOST:PORT,…/PREFIX"
        )
    if scheme == "sqlite":
        name = rest[1:]
        if not rest.startswith("/") or not name or name.endswith("/"):
            raise ConfigError(
                f"store: found {address!r}; expected sqlite:////absolute/file, or sqlite:///file "
                f"beside the config"
            )
        file = ((base or pathlib.Path.cwd()) / name).absolute()
        _refuse_no_file(address, file)
        return f"sqlite:///{file}"
    try:
        etcd = EtcdAddress.parse(address)
    except IncompatibleStore as error:
        raise ConfigError(f"store: {str(error).removeprefix('store ')}") from error
    for name in ("ca", "cert", "key", "password_file"):
        file = getattr(etcd, name)
        if file and not pathlib.Path(file).is_absolute():
            raise ConfigError(f"store: {name}: found {file!r}; expected an absolute path")
    return address


_MAX_FILE_BYTES: Final = 230
"""Longest name of a sqlite file: file systems allow 255 bytes, and the files beside it have names
with up to 23 more (``ephemeral_keys.py``)."""


def _refuse_no_file(address: str, file: pathlib.Path) -> None:
    if len(os.fsencode(file.name)) > _MAX_FILE_BYTES:
        raise ConfigError(
            f"store: found a file name of {len(os.fsencode(file.name))} bytes; expected at most "
            f"{_MAX_FILE_BYTES}, since longer names are made beside it"
        )
    if os.path.isdir(file):  # noqa: PTH112 - False, not an error, without permission
        raise ConfigError(f"store: found {address!r}, which is a directory; expected a file")


def shown_store(store: str) -> str:
    """Returns the address of a config's store without secrets."""
    return str(EtcdAddress.parse(store)) if store.startswith("etcd://") else store


def _links(table: Table | None, mount: Path) -> tuple[SiteLink, ...]:
    if table is None:
        return ()
    links = []
    for key, value in table.rest().items():
        where = table.where(key)
        path = parsed_path(where, key)
        if mount.is_prefix_of(path):
            raise ConfigError(
                f"{where}: a site link cannot lie at or below this server's own mount {mount}; "
                f"use kdir ln there"
            )
        links.append(_site_link(path, value, where))
    return tuple(links)


def _site_link(path: Path, value: object, where: str) -> SiteLink:
    if isinstance(value, str | list):
        value = {"targets": value}
    if not isinstance(value, dict):
        raise ConfigError(
            f"{where}: found {cut_shown(value)}; expected a path, a list of paths, or a table"
        )
    table = Table(value, where)
    targets = tuple(parsed_path(f"{where}.targets", target) for target in table.texts("targets"))
    mode = _choice(table, "mode", LinkMode)
    writes = _choice(table, "writes", LinkWrites)
    link = SiteLink(path, targets, mode, writes, table.flag("fall_back_on_absent"))
    table.done()  # first: a key that is misspelt is why one is missing
    if not targets:
        raise ConfigError(f"{where}.targets: missing; expected at least one path")
    if path in targets:
        raise ConfigError(f"{where}: the link leads to itself")
    return link


_E = TypeVar("_E", LinkMode, LinkWrites)


def _choice(table: Table, key: str, kind: type[_E]) -> _E:
    names: dict[str, _E] = {member.name.lower(): member for member in kind}
    text = table.text(key, next(iter(names)))
    if text not in names:
        table.fail(key, text, f"expected one of {', '.join(names)}")
    return names[text]


_YEAR_SECONDS: Final = 31_536_000
_MOST_STREAMS: Final = 2**24
_MOST_OF: Final[Mapping[str, int]] = {
    "max_request_bytes": 2**30,
    "metadata_bytes": 2**30,
    "max_streams": _MOST_STREAMS,
    "health_watchers": _MOST_STREAMS,
    "reflection_streams": _MOST_STREAMS,
    "max_concurrent_calls": _MOST_STREAMS,
    "connection_calls": _MOST_STREAMS,
    "unfinished_requests": _MOST_STREAMS,
    "read_threads": 1024,
    "long_read_threads": 1024,
    "write_threads": 1024,
    "referral_ttl_seconds": _YEAR_SECONDS,
    "answer_ttl_seconds": _YEAR_SECONDS,
    "negative_ttl_seconds": _YEAR_SECONDS,
    "link_heartbeat_seconds": 3_600,
    "drain_seconds": 86_400,
}
"""Largest values of limits that gRPC, the contract or the system would not support beyond."""


def _limits(table: Table | None) -> Limits:
    limits = Limits()
    if table is None:
        return limits
    readers: dict[type, Callable[[Any], Any]] = {int: int, float: float}
    for one in fields(Limits):
        default = getattr(limits, one.name)
        value = table.pop(one.name, default)
        wanted = type(default)
        good = not isinstance(value, bool) and isinstance(value, int | float) and value > 0
        if not good or (wanted is int and not isinstance(value, int)):
            kind = "whole number" if wanted is int else "number"
            table.fail(one.name, value, f"expected a {kind} above 0")
        if value > (most := _MOST_OF.get(one.name, inf)):
            table.fail(one.name, value, f"expected at most {most}")
        if LARGEST < value < inf:
            table.fail(one.name, value, "expected less than 1e308")
        limits = replace(limits, **{one.name: readers[wanted](value)})
    table.done()
    return limits
