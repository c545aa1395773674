"""Federation state of one cluster: its mount, the mounts that it knows, and its reports about them.

A view is derived from the replica's newest snapshot and handed to calls. ``referral.py`` makes the
referrals from it; ``parent_link.py`` and ``child_links.py`` hold the streams.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final, NamedTuple, Self

from kdir.v1 import federation_pb2

from directory.federation import child_state, parent_state
from directory.federation.mount_table import MountTable
from directory.federation.parent_state import Position, TableRow
from directory.federation.referral import (
    Direction,
    NoReferral,
    Referral,
    refer_outside_mount,
    referral_to_mount,
)
from directory.federation.table_exchange import AGES_OFF_MS, SentTable
from directory.federation.table_sizes import fit_rows
from directory.namespace.bounds import DEFAULT_TABLE_BOUNDS, TableBounds
from directory.namespace.entry import ROOT_ID, Kind, Mount
from directory.namespace.keys import (
    BELOW,
    CHILD,
    CONTACT,
    ENTRY,
    FEDERATION,
    GRANTS,
    LINKED,
    MEMBER,
    MOUNT_ROW,
    MOUNTED,
    PARENT,
    QUOTA,
    READ_ONLY,
    child_key,
    entry_key,
    member_key,
    parse_entry_key,
)
from directory.namespace.mounted import (
    claimed_cluster_ids,
    is_mount_unreadable,
    mounts_with_paths,
    path_text_below,
)
from directory.namespace.snapshot import Snapshot
from directory.store.base import Write
from directory.store.replica import AppliedCommit, Replica
from resolver.endpoints import AllowList
from resolver.host_port import parse_endpoint, plain_endpoints
from resolver.path import Path

__all__ = ["FederationState", "FederationView", "LocalServer", "endpoint_to_try", "unix_ms"]

_log = logging.getLogger(__name__)


def unix_ms() -> int:
    """Returns Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class FederationView:
    """View of the mounts at one snapshot.

    ``own`` are those of this cluster, ``below`` those that children reported, ``above`` those of
    the rest of the tree that the parent sent. What a child reports of this cluster, or of one that
    is mounted here or above here, is dropped (R5).
    """

    snapshot: Snapshot
    """Snapshot of the view, or a newer one with the same mounts."""
    position: Position
    own: Mapping[Path, TableRow]
    mounts: Mapping[str, tuple[Path, Mount]]
    """This cluster's mounts by the child's cluster id."""
    below: Mapping[Path, TableRow]
    reporters: Mapping[Path, str]
    """Cluster ids of the children that reported the mounts below."""
    above: Mapping[Path, TableRow]
    table: MountTable[TableRow]
    """Lookup table of the mounts above, by path."""
    here: TableRow | None
    """This cluster's own mount, in the parent's record; None at the root."""
    parent: federation_pb2.Welcome | None
    """Parent's last welcome; None also if ``parent`` of the config was another one then."""
    reported_parents: tuple[str, ...]
    """Endpoints of the parent that it reported itself, besides those of the config."""
    too_deep: Mapping[str, tuple[bytes, str]]
    """This cluster's mounts that have no valid path at its own mount, by the child's cluster id:
    the key of each, and the reason. They are in ``mounts`` again once this cluster has a shorter
    mount.
    """
    above_mounts: frozenset[bytes]
    """Keys of the entries of the mounts, and of all directories above one."""
    sequence: int
    """Increases with each new view."""
    handed_sequence: int
    """Increases when an existing mount, or its inheritance, may have changed."""

    def rows(self) -> dict[Path, TableRow]:
        """Returns the row of every known mount, including this cluster's own. Of two rows for one
        mount, prefers the one of this cluster, then of a child, then of the parent.
        """
        here = {} if self.here is None else {self.here.mount: self.here}
        return {**self.above, **here, **self.below, **self.own}

    def rank_of_row(self, row: TableRow) -> tuple[int, int]:
        """Returns the rank of one of several rows of a cluster; the lowest counts. This cluster's
        own row comes before those of its parent, and those before the reports of children: while a
        mount goes from one parent to another, both may be known. Then the highest epoch counts.
        """
        mount = row.mount
        return (0 if mount in self.own else 2 if mount in self.below else 1), -row.row.epoch

    def has_all_mounts(self) -> bool:
        """True if ``mounts`` has every child that is mounted here: each mount has a valid path, and
        no record of a mount, or of a directory above one, is unreadable (S21).
        """
        others = claimed_cluster_ids(self.snapshot) - self.mounts.keys()
        return not self.too_deep and not any(
            is_mount_unreadable(self.snapshot, one) for one in others
        )

    def deepest(self, path: Path) -> TableRow | None:
        """Returns the row of the parent's table whose mount is the longest prefix of ``path``."""
        hit = self.table.deepest(path)
        return None if hit is None else hit[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServer:
    """Server of this process, as an end of its cluster's links."""

    cluster_id: str
    cluster: str
    server_id: str
    endpoints: Callable[[], tuple[str, ...]]
    """Returns the endpoints of the cluster's live servers, ``host:port``."""
    link_heartbeat_seconds: float
    feature_level: Callable[[], int]
    """Returns the cluster's finalized feature level."""
    kafka_claim: Callable[[], federation_pb2.KafkaClaim | None] = lambda: None
    """Returns the claim to the Kafka that the cluster is pinned to; None: it is not pinned."""
    unconfirmed_seconds: Callable[[], float] = lambda: 0.0
    """Returns the time since parent and store last confirmed what children inherit; 0.0: it is
    confirmed now.
    """
    grants_max_age_seconds: float = inf
    """Time after which inherited allows end unless the parent confirmed them, even if its
    heartbeats are rarer (decision 0024).
    """


class FederationState:
    """Federation state of one cluster."""

    def __init__(
        self,
        replica: Replica,
        configured_mount: Path,
        parent: tuple[str, ...],
        clock_ms: Callable[[], int] = unix_ms,
        server_id: str = "",
        cluster_id: str = "",
        allow: Collection[str] | None = None,
        bounds: TableBounds = DEFAULT_TABLE_BOUNDS,
    ) -> None:
        """``allow``: networks and domains of servers that may be called besides ``parent``."""
        self._allow = AllowList.of(allow, map(parse_endpoint, parent))
        self._server_id = server_id
        self._cluster_id = cluster_id
        self.bounds = bounds
        self._replica = replica
        self._configured_mount = configured_mount
        self._parent = parent
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self.newest_view: FederationView | None = None
        """Newest view; None: none was built yet. ``view`` builds it once the tree is loaded."""
        self.mount = configured_mount
        """Mount point of the cluster; until the tree is loaded, the one of its config."""
        self._listeners: list[Callable[[], None]] = []
        self._live: dict[str, ChildLiveness] = {}
        self._received_table: Mapping[Path, TableRow] = {}
        self._parent_contact_ms = 0
        self._received_below: dict[str, Mapping[Path, TableRow]] = {}
        self._parts = _Parts()
        self._left_out = 0
        self.sent_down = SentTable(
            self.rows_everywhere, parent_state.without_volatile_fields, _to_child, clock_ms
        )
        """Mount table for all children."""
        self.sent_up = SentTable(self.rows_below, _without_age, _to_parent, clock_ms)
        """Mounts below, for the parent."""
        replica.subscribe(self._applied)

    def view(self) -> FederationView:
        """Returns the newest view.

        Raises:
            NotReady: the tree is not loaded.
        """
        view = self.newest_view
        if view is not None:
            return view
        with self._lock:
            view = self.newest_view
            if view is None:
                view = self._build(self._replica.snapshot, None, _Touched.EVERYTHING, ())
                self._show(view)
            return view

    def position_at(self, snapshot: Snapshot) -> Position:
        """Returns the cluster's position in the tree at one snapshot: an answer must not combine
        the mount of one revision with the inheritance of another.
        """
        view = self.newest_view
        if view is not None and view.snapshot.tree.facts is snapshot.tree.facts:
            return view.position  # depends on facts only
        return parent_state.position_of(snapshot, self._configured_mount)

    @property
    def configured_parent(self) -> tuple[str, ...]:
        """``parent`` of the config."""
        return self._parent

    @property
    def parent_endpoints(self) -> tuple[str, ...]:
        """Endpoints of the parent: those of the config, then those it reported."""
        return (*self._parent, *self.view().reported_parents) if self._parent else ()

    def parent_endpoint(self, attempt: int) -> str:
        """Returns the parent's endpoint for the ``attempt``-th try, from 0: the config's endpoints
        in order, and after each such round one endpoint that the parent reported.
        """
        return endpoint_to_try(self._parent, self.view().reported_parents, attempt)

    def reported_parents(
        self, welcome: federation_pb2.Welcome
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Checks the endpoints that a parent reported besides those of the config. Returns the
        allowed ones, and the reasons against the others.
        """
        reported: list[str] = []
        refused: list[str] = []
        for endpoint in plain_endpoints(welcome.parent_endpoints):
            if endpoint in self._parent:
                continue
            why = self._allow.why_not_allowed(endpoint)
            (refused if why else reported).append(why or endpoint)
        return tuple(reported), tuple(refused)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Registers ``listener`` for changes of the view; called in callbacks of the replica."""
        self._listeners.append(listener)

    def _applied(self, applied: AppliedCommit) -> None:
        view = self.newest_view
        touched = _touched_by(applied, view)
        with self._lock:
            if view is not None and not touched & _Touched.VIEW:
                handed = view.handed_sequence + (_Touched.HANDED in touched)
                self.newest_view = replace(view, snapshot=applied.after, handed_sequence=handed)
            else:
                self._show(self._build(applied.after, view, touched, applied.writes))
        if touched & (_Touched.VIEW | _Touched.LINKS):
            self.table_changed()
        if _Touched.HANDED in touched:
            self.changed()

    def _show(self, view: FederationView) -> None:
        self.newest_view, self.mount = view, view.position.mount

    def changed(self) -> None:
        """Notifies the listeners that a value which they send has changed."""
        for listener in self._listeners:
            listener()

    def table_changed(self) -> None:
        """Has the links check the mount table for changes: now or, after a recent check, each at
        its next heartbeat.
        """
        if self.sent_down.mark_changed() | self.sent_up.mark_changed():
            self.changed()

    def _build(
        self,
        snapshot: Snapshot,
        before: FederationView | None,
        touched: _Touched,
        writes: Sequence[Write],
    ) -> FederationView:
        """Builds the view; unchanged parts are taken from the previous one. For a row of one child,
        the others are not visited: a thousand may link at once.
        """
        parts = self._parts
        if before is None:
            touched = _Touched.EVERYTHING
        now = self._clock_ms()
        position = parent_state.position_of(snapshot, self._configured_mount)
        if before is None or position.mount != before.position.mount:
            touched |= _Touched.VIEW | _Touched.HANDED
        if before is None or _Touched.MOUNTS in touched:
            mounts = _Mounts.find(snapshot, position.mount)
        else:
            mounts = _Mounts(before.mounts, before.too_deep, before.above_mounts)
        placed = mounts.placed
        looked_at = None
        if before is not None and _Touched.MOUNTS not in touched:
            looked_at = placed.keys() & _children_of(writes)
        own = parts.own_rows(snapshot, placed, now, looked_at)
        if before is not None and looked_at is not None:
            own = {**before.own, **own}
        if before is None or _Touched.TABLE in touched:
            table = parts.table_rows(snapshot, self.bounds, position.mount)
            above: Mapping[Path, TableRow] = {
                mount: row for mount, row in table.items() if not position.mount.is_prefix_of(mount)
            }
            here = table.get(position.mount)
            # Without the root: referrals up lead there, whatever the table has for it.
            hints = MountTable.from_rows(
                (mount, row) for mount, row in above.items() if not mount.is_root
            )
        else:
            above, here, hints = before.above, before.here, before.table
        parent = position.parent
        if not parent_state.is_of_parent_config(snapshot, self._parent):
            parent = None
        reported = () if parent is None else self.reported_parents(parent)[0]
        ancestors = position.parent.ancestor_cluster_ids if position.parent else ()
        others = {*placed, *ancestors, self._cluster_id}
        reports = {
            child: [row for row in rows if row.row.cluster_id not in others]
            for child, rows in parts.rows_below(snapshot, placed, looked_at).items()
        }
        below = self._fitting(reports, len(own) + len(above))
        return FederationView(
            snapshot=snapshot,
            position=position,
            own=own,
            mounts=placed,
            below={row.mount: row for rows in below.values() for row in rows},
            reporters={row.mount: child for child, rows in below.items() for row in rows},
            above=above,
            table=hints,
            here=here,
            parent=parent,
            reported_parents=reported,
            too_deep=mounts.too_deep,
            above_mounts=mounts.above,
            sequence=before.sequence + 1 if before else 1,
            handed_sequence=(before.handed_sequence if before else 0)
            + (_Touched.HANDED in touched),
        )

    def _fitting(
        self, below: Mapping[str, Sequence[TableRow]], others: int
    ) -> Mapping[str, Sequence[TableRow]]:
        """Returns the children's rows for which the table has room beside ``others``."""
        fitting = fit_rows(below, self.bounds.table_mounts - others, self.bounds.table_bytes)
        left_out = sum(map(len, below.values())) - sum(map(len, fitting.values()))
        if left_out != self._left_out:
            self._left_out = left_out
            _log.warning(
                "the mount table leaves out %d mounts below children (limits.table_mounts, "
                "limits.table_bytes)",
                left_out,
            )
        return fitting

    def down(self, mount_path: Path, mount: Mount) -> Referral:
        """Returns the referral to a child mounted here."""
        row = self.view().own.get(mount_path)
        endpoints = tuple(row.row.endpoints) if row else mount.endpoints
        return Referral(
            Direction.DOWN,
            mount_path,
            mount.cluster_id,
            mount.cluster,
            mount.epoch,
            endpoints,
            self._clock_ms(),
        )

    def towards(self, hint: TableRow) -> Referral:
        """Returns the referral, down or direct, to a mount of the table."""
        below = self.mount.is_prefix_of(hint.mount)
        confirmed = self._confirmed(hint, self.view())
        return referral_to_mount(confirmed, Direction.DOWN if below else Direction.DIRECT)

    def outside(self, path: Path) -> Referral | NoReferral:
        """Returns the answer for a path that is not below this cluster's mount."""
        view = self.view()

        def deepest(path: Path) -> TableRow | None:
            row = view.deepest(path)
            return None if row is None else self._confirmed(row, view)

        return refer_outside_mount(
            path,
            view.position.mount,
            view.parent,
            deepest,
            self.parent_endpoints,
            self._clock_ms(),
        )

    def kafka_claims(self) -> list[federation_pb2.KafkaClaim]:
        """Returns the Kafka claims of all known clusters, each with its cluster and mount.

        Raises:
            NotReady: the tree is not loaded.
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
        """Returns the rows for the parent: the mounts of this cluster and those below them, as many
        as a parent with the same bounds accepts.
        """
        view = self.view()
        groups: dict[str, list[TableRow]] = {}
        for mount, row in view.below.items():
            groups.setdefault(view.reporters[mount], []).append(row)
        bounds = self.bounds
        own = fit_rows({"": list(view.own.values())}, bounds.child_mounts, bounds.child_mount_bytes)
        rows = own[""]
        size = sum(one.row.ByteSize() for one in rows)
        fitting = fit_rows(
            groups, bounds.child_mounts - len(rows), max(0, bounds.child_mount_bytes - size)
        )
        every = [*rows, *(row for of_child in fitting.values() for row in of_child)]
        return [self._enlivened(row, view) for row in every]

    def rows_everywhere(self) -> list[TableRow]:
        """Returns the rows for children and ``kdir mounts``: every mount known here."""
        view = self.view()
        rows = view.rows()
        return [self._enlivened(rows[path], view) for path in sorted(rows)]

    def receive_mount_table(self, rows: list[TableRow]) -> None:
        """Keeps the parent's newest table in memory, with counts and ages that need no commit."""
        self._received_table = {row.mount: row for row in rows}
        self.sent_down.mark_counts()

    def note_parent_contact(self) -> None:
        """Records a message of the parent, which confirms its last table."""
        self._parent_contact_ms = self._clock_ms()

    def note_parent_lost(self) -> None:
        """Records the end of the link to the parent: its table is not confirmed any more."""
        at_ms = self._parent_contact_ms
        lost = {
            mount: row.confirmed_at(at_ms).unconfirmed()
            for mount, row in self._received_table.items()
        }
        if any(row is not self._received_table[mount] for mount, row in lost.items()):
            self._received_table = lost
            self.table_changed()

    def receive_mounts_below(self, cluster_id: str, rows: list[TableRow]) -> None:
        """Keeps a child's newest rows in memory, with counts and ages that need no commit."""
        self._received_below[cluster_id] = {row.mount: row for row in rows}

    def note_child_contact(self, cluster_id: str, topic_count: int, *, linked: bool) -> None:
        """Records a contact with a child, or its end, after which the state of the mounts below it
        is unknown.
        """
        before = self._live.get(cluster_id)
        # The end of a link is noticed some time after the last message.
        contact_ms = self._clock_ms() if linked or before is None else before.contact_ms
        self._live[cluster_id] = ChildLiveness(topic_count, linked, contact_ms)
        if not linked:
            at_ms = before.contact_ms if before is not None else 0
            below = self._received_below.get(cluster_id, {})
            self._received_below[cluster_id] = {
                mount: row.confirmed_at(at_ms).unlinked() for mount, row in below.items()
            }

    def forget_all_but(self, mounted: Collection[str]) -> None:
        """Drops the rows of clusters that are not mounted here any more."""
        for received in (self._live, self._received_below):
            for cluster_id in set(received).difference(mounted):
                received.pop(cluster_id, None)

    def child_liveness(self, cluster_id: str) -> ChildLiveness | None:
        """Returns the liveness of a child, from its link to this server or to another live one."""
        own = self._live.get(cluster_id)
        if own is not None and own.linked:
            return own
        snapshot = self._replica.snapshot
        link = child_state.link_of(snapshot, cluster_id)
        if link is None or link.server_id == self._server_id:
            return own
        if snapshot.fact(member_key(link.server_id)) is None:
            return own  # it died with its links
        return ChildLiveness(link.topic_count, linked=True, contact_ms=self._clock_ms())

    def has_ever_linked(self, cluster_id: str) -> bool:
        """True if the child has ever linked to a server of this cluster."""
        return child_state.child_hello(self._replica.snapshot, cluster_id) is not None

    def seconds_since_contact(self, live: ChildLiveness) -> float:
        """Returns the seconds since the last contact with a child."""
        return max(0, self._clock_ms() - live.contact_ms) / 1000

    def _confirmed(self, row: TableRow, view: FederationView) -> TableRow:
        """Returns a stored row with the age that its link confirms: a row that does not change is
        not stored again for its age. A received change that is not stored yet is not used.
        """
        newest = self._enlivened(row, view)
        is_same = (newest.row.epoch, newest.row.endpoints) == (row.row.epoch, row.row.endpoints)
        return TableRow(row.row, newest.owner_time_ms) if is_same else row

    def _enlivened(self, one: TableRow, view: FederationView) -> TableRow:
        if one.mount not in view.own:
            received = self._received(one.mount, view)
            # Another server of this cluster may hold that link now and have stored a newer row:
            # newer by more than ``AGES_OFF_MS``, the error of ages.
            is_newer = received is not None and (
                received.owner_time_ms + AGES_OFF_MS >= one.owner_time_ms
                # The stored row has a time in the future, from when a clock was ahead, so its time
                # proves nothing. The received row is confirmed: an open link of this server has it.
                or (received.row.confirmed and one.owner_time_ms > self._clock_ms())
            )
            is_same = received is not None and received.row.cluster_id == one.row.cluster_id
            return received if received is not None and is_same and is_newer else one
        live = self.child_liveness(one.row.cluster_id)
        if live is None:
            return one
        row = federation_pb2.MountRow()
        row.CopyFrom(one.row)
        row.topic_count = live.topic_count
        row.linked = row.confirmed = live.linked
        # While the child is linked, this cluster's record of it is current.
        return TableRow(row, self._clock_ms() if live.linked else live.contact_ms)

    def _received(self, mount: Path, view: FederationView) -> TableRow | None:
        """Returns a row as it arrived over a link, with the age that the last message confirms."""
        child = view.reporters.get(mount)
        if child is None:
            received, at_ms = self._received_table.get(mount), self._parent_contact_ms
        else:
            received = self._received_below.get(child, {}).get(mount)
            live = self._live.get(child)
            at_ms = live.contact_ms if live is not None else 0
        return None if received is None else received.confirmed_at(at_ms)


def endpoint_to_try(configured: Sequence[str], reported: Sequence[str], attempt: int) -> str:
    """Returns the endpoint for the ``attempt``-th try: a round of the configured ones, then one of
    the reported ones, and so on, so that reported endpoints never keep a server from the configured
    ones.
    """
    rounds, place = divmod(attempt, len(configured) + bool(reported))
    return configured[place] if place < len(configured) else reported[rounds % len(reported)]


@dataclass(frozen=True, slots=True)
class ChildLiveness:
    """Last contact of a child, whether it is linked, and its topic count."""

    topic_count: int
    linked: bool
    contact_ms: int
    """Unix ms of its last message."""


class _Touched(enum.Flag):
    """Parts of the view that a change of the tree affects."""

    NOTHING = 0
    MOUNTS = enum.auto()
    """The cluster's own mounts, and its own position."""
    CHILDREN = enum.auto()
    """Children's reports of themselves, and of the mounts below them."""
    TABLE = enum.auto()
    """The parent's table of other mounts."""
    LINKS = enum.auto()
    """Linked children, and the servers of the links."""
    HANDED = enum.auto()
    """What children inherit, and the places of existing mounts."""
    VIEW = MOUNTS | CHILDREN | TABLE
    EVERYTHING = VIEW | LINKS | HANDED


_ROWS: Final = (
    (CONTACT, _Touched.NOTHING),
    (QUOTA, _Touched.NOTHING),
    (READ_ONLY, _Touched.NOTHING),
    (MOUNT_ROW, _Touched.TABLE),
    (CHILD, _Touched.CHILDREN),
    (BELOW, _Touched.CHILDREN),
    (LINKED, _Touched.LINKS),
    (MEMBER, _Touched.LINKS),
    (PARENT, _Touched.EVERYTHING),
    (parent_state.PARENT_CONFIG_KEY, _Touched.EVERYTHING),
    (MOUNTED, _Touched.MOUNTS),
    (parent_state.UNMOUNTED_KEY, _Touched.EVERYTHING),
    # All else that parent and children reported, and the mark of a change of grants.
    (FEDERATION, _Touched.HANDED),
    (GRANTS, _Touched.HANDED),
)
"""Prefixes of keys, each with the parts that its rows affect; the first match counts."""
_PREFIXES: Final = tuple(prefix for prefix, _ in _ROWS)
"""Prefixes of all affecting rows. Events and request records, which come with each change, have
none of them.
"""


def _touched_by(applied: AppliedCommit, view: FederationView | None) -> _Touched:
    if view is None or applied.reloaded:
        return _Touched.EVERYTHING
    touched = _Touched.NOTHING
    for write in applied.writes:
        key = write.key
        if key.startswith(ENTRY):
            # An unreadable record may be of a mount, or of a directory above a mount.
            if key in view.above_mounts or applied.before.unreadable(key):
                touched |= _Touched.MOUNTS | _Touched.HANDED
            elif _is_mount(applied.after, key):
                touched |= _Touched.MOUNTS  # new: the inheritance of others stays
        elif key.startswith(_PREFIXES):
            touched |= next(one for prefix, one in _ROWS if key.startswith(prefix))
    return touched


def _children_of(writes: Iterable[Write]) -> set[str]:
    """Returns the cluster ids of the children that the written rows are about."""
    return {
        write.key.removeprefix(prefix).decode(errors="replace")
        for write in writes
        for prefix in (CHILD, BELOW)
        if write.key.startswith(prefix)
    }


def _is_mount(snapshot: Snapshot, key: bytes) -> bool:
    if key[10:11] != b"c":
        return False
    try:
        place = parse_entry_key(key)
    except ValueError:
        return False
    return isinstance(snapshot.container(place.parent_id, place.name), Mount)


class _Mounts(NamedTuple):
    """Mounts of one tree, as ``FederationView`` has them."""

    placed: Mapping[str, tuple[Path, Mount]]
    too_deep: Mapping[str, tuple[bytes, str]]
    above: frozenset[bytes]

    @classmethod
    def find(cls, snapshot: Snapshot, own_mount: Path) -> Self:
        found = list(mounts_with_paths(snapshot, own_mount))
        too_deep = {
            mount.cluster_id: (
                _key_of_mount(snapshot, relative),
                f"{path_text_below(relative)} has no valid path at the mount {own_mount}",
            )
            for relative, path, mount in found
            if path is None
        }
        return cls(
            {mount.cluster_id: (path, mount) for _, path, mount in found if path is not None},
            too_deep,
            _keys_above(snapshot, (relative for relative, _, _ in found)),
        )


def _key_of_mount(snapshot: Snapshot, relative: Sequence[str]) -> bytes:
    *above, name = relative
    return entry_key(snapshot.find_directory(above) or ROOT_ID, Kind.MOUNT, name)


def _keys_above(snapshot: Snapshot, mounts: Iterable[Sequence[str]]) -> frozenset[bytes]:
    keys = {entry_key(0, Kind.DIRECTORY, "")}
    for *above, name in mounts:
        directory_id = snapshot.find_directory(above)
        if directory_id is None:
            continue
        keys.add(entry_key(directory_id, Kind.MOUNT, name))
        while directory_id != ROOT_ID:
            node = snapshot.nodes[directory_id]
            key = entry_key(node.parent_id, Kind.DIRECTORY, node.name)
            if key in keys:
                break
            keys.add(key)
            directory_id = node.parent_id
    return frozenset(keys)


class _Parts:
    """Cache of table rows made from stored rows: the view of a thousand mounts is rebuilt for each
    change of one.
    """

    def __init__(self) -> None:
        self._own: dict[str, tuple[Path, Mount, bytes | None, TableRow]] = {}
        self._table: dict[bytes, tuple[bytes, TableRow | None]] = {}
        self._below: dict[str, tuple[bytes, Path, Sequence[TableRow]]] = {}

    def own_rows(
        self,
        snapshot: Snapshot,
        mounts: Mapping[str, tuple[Path, Mount]],
        now_ms: int,
        looked_at: Collection[str] | None,
    ) -> dict[Path, TableRow]:
        """Returns the rows of the mounts of the children ``looked_at``; None: of all."""
        made: dict[str, tuple[Path, Mount, bytes | None, TableRow]] = {}
        for child in mounts if looked_at is None else looked_at:
            path, mount = mounts[child]
            hello = snapshot.fact(child_key(child))
            kept = self._own.get(child)
            if kept is None or kept[:3] != (path, mount, hello):
                kept = (path, mount, hello, TableRow(_to_row(path, mount, snapshot), now_ms))
            made[child] = kept
        if looked_at is None:
            self._own = made
        else:
            self._own.update(made)
        return {kept[0]: kept[3] for kept in made.values()}

    def table_rows(
        self, snapshot: Snapshot, bounds: TableBounds, own_mount: Path
    ) -> dict[Path, TableRow]:
        made: dict[bytes, tuple[bytes, TableRow | None]] = {}
        rows: dict[Path, TableRow] = {}
        for key, value in snapshot.facts(MOUNT_ROW):
            kept = self._table.get(key)
            if kept is None or kept[0] != value:
                kept = (value, parent_state.table_row(value))
            made[key] = kept
            row = kept[1]
            # More rows than the bound may be stored: by an older version, or before it was set.
            if row is not None and (len(rows) < bounds.table_mounts or row.mount == own_mount):
                rows[row.mount] = row
        self._table = made
        return rows

    def rows_below(
        self,
        snapshot: Snapshot,
        mounts: Mapping[str, tuple[Path, Mount]],
        looked_at: Collection[str] | None,
    ) -> dict[str, Sequence[TableRow]]:
        """Returns the rows that each child reported. Reads only those of the children ``looked_at``
        again; None: of all.
        """
        made = {} if looked_at is None else dict(self._below)
        for child in mounts if looked_at is None else looked_at:
            path, _ = mounts[child]
            value = snapshot.fact(BELOW + child.encode())
            if value is None:
                made.pop(child, None)
                continue
            kept = self._below.get(child)
            if kept is None or kept[:2] != (value, path):
                rows = [
                    row
                    for row in child_state.below_rows(snapshot, child)
                    if path.is_prefix_of(row.mount) and row.mount != path
                ]
                kept = (value, path, rows)
            made[child] = kept
        self._below = made
        return {child: kept[2] for child, kept in made.items()}


def _to_child(table: federation_pb2.MountTable) -> bytes:
    return federation_pb2.LinkResponse(mount_table=table).SerializeToString()


def _to_parent(table: federation_pb2.MountTable) -> federation_pb2.LinkRequest:
    return federation_pb2.LinkRequest(mounts_below=table)


def _without_age(row: federation_pb2.MountRow) -> bytes:
    copy = federation_pb2.MountRow()
    copy.CopyFrom(row)
    copy.age_seconds = 0
    return copy.SerializeToString(deterministic=True)


def _to_row(path: Path, mount: Mount, snapshot: Snapshot) -> federation_pb2.MountRow:
    known = child_state.child_hello(snapshot, mount.cluster_id)
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
