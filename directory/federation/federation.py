"""Federation of one cluster: where it hangs, the mounts it knows, and what it tells of them.

Keeps a view of the replica's newest facts and hands it to calls; refuses to decide about paths
(``referral.py``) or to hold streams (``parent_link.py``, ``children.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from kdir.v1 import federation_pb2

from directory.federation import child_facts, facts
from directory.federation.facts import Position, TableRow
from directory.federation.mount_table import MountTable
from directory.federation.referral import Direction, NoWay, Refer, outside, towards
from directory.namespace.entry import Mount
from directory.namespace.keys import ENTRY, member_key
from directory.namespace.snapshot import Snapshot
from directory.store.replica import Applied, Replica
from resolver.endpoints import AllowList
from resolver.host_port import parse_endpoint, plain_endpoints
from resolver.path import Path

__all__ = ["Federation", "Member", "View", "endpoint_of_turn", "unix_ms"]


def unix_ms() -> int:
    """Unix time, milliseconds."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class View:
    """What one snapshot says of federation. ``own`` are the mounts of this cluster, ``below`` those
    that children told of, ``above`` what the parent handed down about the rest of the tree.
    """

    snapshot: Snapshot
    """Of which it is made, or a newer one in which nothing of it is another."""
    position: Position
    own: Mapping[Path, TableRow]
    mounts: Mapping[str, tuple[Path, Mount]]
    """This cluster's mounts by the child's cluster id."""
    below: Mapping[Path, TableRow]
    above: Mapping[Path, TableRow]
    table: MountTable[TableRow]
    """What is above, for looking up who owns a path."""
    here: TableRow | None
    """This cluster's own mount, in the parent's words; None at the root."""
    told_parents: tuple[str, ...]
    """Where the parent says that it may be asked, besides where the config says."""
    sequence: int
    """Rises with each new view."""

    def rows(self) -> dict[Path, TableRow]:
        """Every mount that is known, this cluster's own too; of two words the one nearer to the
        owner.
        """
        here = {} if self.here is None else {self.here.mount: self.here}
        return {**self.above, **here, **self.below, **self.own}

    def deepest(self, path: Path) -> TableRow | None:
        """The row of the table handed down whose mount is the longest prefix of ``path``."""
        hit = self.table.deepest(path)
        return None if hit is None else hit[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Who speaks for a cluster on its links: one of its servers."""

    cluster_id: str
    cluster: str
    server_id: str
    endpoints: Callable[[], tuple[str, ...]]
    """Where the cluster's servers may be asked, ``host:port``: all that live."""
    heartbeat_seconds: float
    feature_level: Callable[[], int]
    """The level that is finalised in the cluster."""
    kafka_claim: Callable[[], federation_pb2.KafkaClaim | None] = lambda: None
    """The Kafka that the cluster is pinned to; None where it has none, or never saw one."""


class Federation:
    """The federation side of one cluster."""

    def __init__(
        self,
        replica: Replica,
        configured_mount: Path,
        parent: tuple[str, ...],
        clock_ms: Callable[[], int] = unix_ms,
        server_id: str = "",
        allow: Collection[str] | None = None,
    ) -> None:
        """``allow``: networks and domains of the servers that may be asked besides ``parent``."""
        self._allow = AllowList.of(allow, map(parse_endpoint, parent))
        self._server_id = server_id
        self._replica = replica
        self._configured_mount = configured_mount
        self._parent = parent
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._view: View | None = None
        self._listeners: list[Callable[[], None]] = []
        self._live: dict[str, LiveChild] = {}
        self._heard_table: Mapping[Path, TableRow] = {}
        self._heard_below: dict[str, Mapping[Path, TableRow]] = {}
        replica.subscribe(self._applied)

    def view(self) -> View:
        """The newest view.

        Raises:
            NotReady: the tree is not loaded.
        """
        view = self._view
        if view is not None:
            return view
        with self._lock:
            if self._view is None:
                self._view = self._build(self._replica.snapshot, 1)
            return self._view

    @property
    def mount(self) -> Path:
        """Where this cluster hangs; while nothing is loaded, where its config says."""
        view = self._view
        return view.position.mount if view is not None else self._configured_mount

    def position_at(self, snapshot: Snapshot) -> Position:
        """Where this cluster hangs by one snapshot: what answers from it must not take the mount of
        one revision and what is inherited there of another.
        """
        return facts.position_of(snapshot, self._configured_mount)

    @property
    def configured_parent(self) -> tuple[str, ...]:
        """``parent`` of the config."""
        return self._parent

    @property
    def parent_endpoints(self) -> tuple[str, ...]:
        """Where the parent may be asked: as configured, then as it said."""
        return (*self._parent, *self.view().told_parents) if self._parent else ()

    def parent_endpoint(self, turn: int) -> str:
        """Where to ask the parent at the ``turn``-th try, from 0: in turn where the config says,
        and after each such round at one of those that the parent said.
        """
        return endpoint_of_turn(self._parent, self.view().told_parents, turn)

    def told_parents(
        self, welcome: federation_pb2.Welcome
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Where a parent says that it may be asked, besides where the config says: those that are
        asked, and why others are not.
        """
        told: list[str] = []
        refused: list[str] = []
        for endpoint in plain_endpoints(welcome.parent_endpoints):
            if endpoint in self._parent:
                continue
            why = self._allow.refusal(endpoint)
            (refused if why else told).append(why or endpoint)
        return tuple(told), tuple(refused)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` after each change of the view, from the replica's thread."""
        self._listeners.append(listener)

    def _applied(self, applied: Applied) -> None:
        view = self._view
        if view is not None and not (applied.reloaded or _concerns(applied)):
            with self._lock:
                self._view = replace(view, snapshot=applied.after)
            return
        with self._lock:
            sequence = self._view.sequence + 1 if self._view else 1
            self._view = self._build(applied.after, sequence)
        self.changed()

    def changed(self) -> None:
        """Tells the listeners that something that they hand on is new."""
        for listener in self._listeners:
            listener()

    def _build(self, snapshot: Snapshot, sequence: int) -> View:
        position = facts.position_of(snapshot, self._configured_mount)
        now = self._clock_ms()
        own: dict[Path, TableRow] = {}
        mounts: dict[str, tuple[Path, Mount]] = {}
        below: dict[Path, TableRow] = {}
        for relative, mount in snapshot.mounts():
            path = position.mount.join(relative)
            mounts[mount.cluster_id] = (path, mount)
            own[path] = TableRow(_row(path, mount, snapshot), now)
            for row in child_facts.below_rows(snapshot, mount.cluster_id):
                if path.is_prefix_of(row.mount) and row.mount != path:
                    below[row.mount] = row
        table = {row.mount: row for row in facts.table_rows(snapshot)}
        above = {
            mount: row for mount, row in table.items() if not position.mount.is_prefix_of(mount)
        }
        here = table.get(position.mount)
        # Not the root: that is where the way up leads, whatever the table says of it.
        hints = MountTable.of((mount, row) for mount, row in above.items() if not mount.is_root)
        told: tuple[str, ...] = ()
        if position.parent is not None and facts.is_of_parent_config(snapshot, self._parent):
            told, _ = self.told_parents(position.parent)
        return View(snapshot, position, own, mounts, below, above, hints, here, told, sequence)

    def down(self, mount_path: Path, mount: Mount) -> Refer:
        """The referral to a child mounted here."""
        row = self.view().own.get(mount_path)
        endpoints = tuple(row.row.endpoints) if row else mount.endpoints
        return Refer(
            Direction.DOWN,
            mount_path,
            mount.cluster_id,
            mount.cluster,
            mount.epoch,
            endpoints,
            self._clock_ms(),
        )

    def towards(self, hint: TableRow) -> Refer:
        """The referral to a mount of the table, whichever way it lies."""
        below = self.mount.is_prefix_of(hint.mount)
        return towards(hint, Direction.DOWN if below else Direction.DIRECT)

    def outside(self, path: Path) -> Refer | NoWay:
        """The answer for a path that is not below our mount."""
        view = self.view()
        return outside(path, view.position, view.deepest, self.parent_endpoints, self._clock_ms())

    def kafka_claims(self) -> list[federation_pb2.KafkaClaim]:
        """Returns the Kafkas that all known clusters are pinned to, and which clusters those are.

        Raises:
            NotReady
        """
        view = self.view()
        parent = view.position.parent
        claims = list(parent.kafka_above) if parent is not None else []
        for path, one in view.rows().items():
            if one.row.HasField("kafka"):
                claim = federation_pb2.KafkaClaim()
                claim.CopyFrom(one.row.kafka)
                claim.cluster_id, claim.cluster = one.row.cluster_id, one.row.cluster
                claim.mount = str(path)
                claims.append(claim)
        return claims

    def rows_below(self) -> list[TableRow]:
        """What the parent is told: the mounts of this cluster, and those below them."""
        view = self.view()
        return [self._enlivened(row) for row in {**view.below, **view.own}.values()]

    def lacking(self, path: Path, level: int) -> list[federation_pb2.MountRow]:
        """The mounts at and below a path whose clusters are known not to have a feature level."""
        view = self.view()
        return [
            one.row
            for mount, one in {**view.below, **view.own}.items()
            if path.is_prefix_of(mount) and 0 < one.row.feature_level < level
        ]

    def rows_everywhere(self) -> list[TableRow]:
        """What a child is told, and what ``kdir mounts`` shows: every mount known here."""
        rows = self.view().rows()
        return [self._enlivened(rows[path]) for path in sorted(rows)]

    def hear_table(self, rows: list[TableRow]) -> None:
        """The table as the parent told it now, with counts and ages that are not worth a commit."""
        self._heard_table = {row.mount: row for row in rows}

    def hear_below(self, cluster_id: str, rows: list[TableRow]) -> None:
        """The mounts below a child as it told them now, with counts and ages that are not worth a
        commit.
        """
        self._heard_below[cluster_id] = {row.mount: row for row in rows}

    def heard(self, cluster_id: str, topic_count: int, *, linked: bool) -> None:
        """A child was heard of, or went away: then nobody knows how those below it are doing."""
        self._live[cluster_id] = LiveChild(topic_count, linked, self._clock_ms())
        if not linked:
            below = self._heard_below.get(cluster_id, {})
            self._heard_below[cluster_id] = {mount: row.unlinked() for mount, row in below.items()}

    def forget_all_but(self, mounted: Collection[str]) -> None:
        """Drops what was heard of clusters that are mounted here no more."""
        for heard in (self._live, self._heard_below):
            for cluster_id in set(heard).difference(mounted):
                heard.pop(cluster_id, None)

    def live(self, cluster_id: str) -> LiveChild | None:
        """How a child is doing, as this server hears itself, or as another one that lives does."""
        own = self._live.get(cluster_id)
        if own is not None and own.linked:
            return own
        snapshot = self._replica.snapshot
        link = child_facts.link_of(snapshot, cluster_id)
        if link is None or link.server_id == self._server_id:
            return own
        if snapshot.fact(member_key(link.server_id)) is None:
            return own  # it died with its links
        return LiveChild(link.topic_count, linked=True, heard_ms=self._clock_ms())

    def has_met(self, cluster_id: str) -> bool:
        """Whether the child has ever linked to a server of this cluster."""
        return child_facts.child_hello(self._replica.snapshot, cluster_id) is not None

    def silent_seconds(self, live: LiveChild) -> float:
        """For how long nothing was heard of a child."""
        return max(0, self._clock_ms() - live.heard_ms) / 1000

    def _enlivened(self, one: TableRow) -> TableRow:
        if one.mount not in self.view().own:
            told = (*self._heard_below.values(), self._heard_table)
            heard = (table[one.mount] for table in told if one.mount in table)
            same = (row for row in heard if row.row.cluster_id == one.row.cluster_id)
            return next(same, one)
        live = self.live(one.row.cluster_id)
        if live is None:
            return one
        row = federation_pb2.MountRow()
        row.CopyFrom(one.row)
        row.topic_count = live.topic_count
        row.linked = live.linked
        # While the child is linked the word is ours, and fresh.
        return TableRow(row, self._clock_ms() if live.linked else live.heard_ms)


def endpoint_of_turn(configured: Sequence[str], told: Sequence[str], turn: int) -> str:
    """Whom to ask at the ``turn``-th try: a round of what is configured, then one of what was told,
    and so on, so that what was told never keeps from what is configured.
    """
    rounds, place = divmod(turn, len(configured) + bool(told))
    return configured[place] if place < len(configured) else told[rounds % len(told)]


@dataclass(frozen=True, slots=True)
class LiveChild:
    """How a child is doing."""

    topic_count: int
    linked: bool
    heard_ms: int


def _concerns(applied: Applied) -> bool:
    """Whether a change touches facts of federation, or a container (which may be a mount)."""
    for write in applied.writes:
        key = write.key
        if key == facts.HEARD_KEY:
            continue
        if key.startswith(b"f/") or (key.startswith(ENTRY) and key[10:11] == b"c"):
            return True
    return False


def _row(path: Path, mount: Mount, snapshot: Snapshot) -> federation_pb2.MountRow:
    known = child_facts.child_hello(snapshot, mount.cluster_id)
    hello = known[0] if known else None
    return federation_pb2.MountRow(
        mount=str(path),
        cluster_id=mount.cluster_id,
        cluster=(hello.cluster if hello else "") or mount.cluster,
        epoch=mount.epoch,
        endpoints=plain_endpoints((hello.endpoints if hello else ()) or mount.endpoints),
        topic_count=hello.topic_count if hello else 0,
        feature_level=hello.feature_level if hello else 0,
        kafka=hello.kafka if hello is not None and hello.HasField("kafka") else None,
    )
