"""What a cluster's store keeps of its parent and children, as values; refuses to talk to either.

Everything that comes down the parent link is committed to the child's own store (DESIGN §4), so
that a restart, at any age, starts from it. Ages are kept as the unix time of the owner's word.

What cannot be read counts as not said (RELIABILITY S21): whoever said it says it again, and it is
written anew then. Only of what is inherited nobody knows, then, that it is nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message
from kdir.v1 import federation_pb2, policies_pb2

from directory.authorization.access import Level as AccessLevel
from directory.authorization.rules import NO_RULES, Rules
from directory.codec import policies_from_proto, policies_to_proto
from directory.grant_messages import grant_to_proto, stored_grant
from directory.messages import policies_of
from directory.namespace import keys
from directory.namespace.entry import Directory, Policies
from directory.namespace.grants import SHUT
from directory.namespace.policies import Level
from directory.namespace.snapshot import Snapshot
from directory.store.base import Put, Remove, Write
from resolver.errors import InvalidPath, NotReady
from resolver.path import Path

__all__ = [
    "DETACHED_KEY",
    "HEARD_KEY",
    "INHERITED_KEY",
    "UNMOUNTED_KEY",
    "Heard",
    "LinkedChild",
    "Position",
    "TableRow",
    "ancestors",
    "bare",
    "below_rows",
    "below_writes",
    "child_hello",
    "child_writes",
    "detached_of",
    "forget_writes",
    "grants_level",
    "heard_of",
    "heard_write",
    "inherited_access",
    "inherited_levels",
    "inherited_origins",
    "inherited_policies",
    "inherited_writes",
    "is_told",
    "level_of",
    "link_of",
    "link_write",
    "position_of",
    "table_rows",
    "table_writes",
    "welcome_writes",
]

DETACHED_KEY: Final = b"f/detached"
UNMOUNTED_KEY: Final = b"f/unmounted"
HEARD_KEY: Final = b"f/heard"
_LINKED: Final = b"linked"
INHERITED_KEY: Final = b"f/inherited"
_BELOW: Final = b"f/below/"
_LINKS: Final = b"f/linked/"

_Said = TypeVar("_Said", bound=Message)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a cluster hangs, as its own store says."""

    mount: Path
    epoch: int = 0
    """0: no parent ever confirmed the mount."""
    parent: federation_pb2.Welcome | None = None
    confirmed_at_ms: int = 0
    unmounted: str = ""
    """Why it must not serve, in the parent's words; empty = it may."""


@dataclass(frozen=True, slots=True)
class Heard:
    """When the cluster's parent was last heard, as the holder of the link kept it now and then."""

    at_ms: int
    linked: bool
    """The link stood then; it may have been heard later."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One mount, with the time of its owner's word."""

    row: federation_pb2.MountRow
    word_ms: int

    @property
    def mount(self) -> Path:
        """The mount point."""
        return Path.parse(self.row.mount)

    def aged(self, now_ms: int) -> federation_pb2.MountRow:
        """The row with its age as of now, for handing on."""
        row = federation_pb2.MountRow()
        row.CopyFrom(self.row)
        row.age_seconds = max(0.0, (now_ms - self.word_ms) / 1000)
        return row

    def unlinked(self) -> TableRow:
        """The same row, of a mount whose parent's link nobody vouches for any more."""
        row = federation_pb2.MountRow()
        row.CopyFrom(self.row)
        row.linked = False
        return TableRow(row, self.word_ms)

    @classmethod
    def received(cls, row: federation_pb2.MountRow, now_ms: int) -> TableRow:
        """A row as it came in: its age counts from the owner's word, not from now."""
        age_ms = int(max(0.0, min(row.age_seconds, 10.0**9)) * 1000)
        return cls(row, now_ms - age_ms)


def _stamped(at_ms: int, body: bytes) -> bytes:
    return max(0, at_ms).to_bytes(8, "big") + body


def _unstamped(value: bytes) -> tuple[int, bytes]:
    return int.from_bytes(value[:8], "big"), value[8:]


def _read(kind: type[_Said], value: bytes | None) -> tuple[_Said, int] | None:
    """What was said, and when (unix ms); None: nothing was, or it cannot be read."""
    if value is None:
        return None
    at_ms, body = _unstamped(value)
    try:
        return kind.FromString(body), at_ms
    except DecodeError:
        return None


def _is_path(text: str) -> bool:
    try:
        Path.parse(text)
    except InvalidPath:
        return False
    return True


def position_of(snapshot: Snapshot, configured: Path) -> Position:
    """Where this cluster hangs: what a parent confirmed last, else what its config says."""
    gone = (snapshot.fact(UNMOUNTED_KEY) or b"").decode(errors="replace")
    said = _read(federation_pb2.Welcome, snapshot.fact(keys.PARENT))
    if said is None or not _is_path(said[0].mount):
        return Position(configured, unmounted=gone)
    welcome, at_ms = said
    return Position(
        mount=Path.parse(welcome.mount),
        epoch=welcome.epoch,
        parent=welcome,
        confirmed_at_ms=at_ms,
        unmounted=gone,
    )


def welcome_writes(
    snapshot: Snapshot, welcome: federation_pb2.Welcome, now_ms: int
) -> tuple[Write, ...]:
    """Records what the parent said of this mount; nothing where it said so before."""
    known = _read(federation_pb2.Welcome, snapshot.fact(keys.PARENT))
    writes: list[Write] = []
    if known is None or _lasting(known[0]) != _lasting(welcome):
        body = welcome.SerializeToString(deterministic=True)
        writes.append(Put(keys.PARENT, _stamped(now_ms, body)))
    if snapshot.fact(UNMOUNTED_KEY) is not None:
        writes.append(Remove(UNMOUNTED_KEY))
    return tuple(writes)


def _lasting(welcome: federation_pb2.Welcome) -> federation_pb2.Welcome:
    # The parent's revision moves with every change of the parent; it alone is no news of the mount.
    copy = federation_pb2.Welcome()
    copy.CopyFrom(welcome)
    copy.revision = 0
    return copy


def heard_of(snapshot: Snapshot) -> Heard | None:
    """When the parent was last heard; None: no link ever stood."""
    value = snapshot.fact(HEARD_KEY)
    if value is None:
        return None
    at_ms, body = _unstamped(value)
    return Heard(at_ms, body == _LINKED)


def heard_write(at_ms: int, *, linked: bool) -> Write:
    """Records when the parent was last heard, so that the age of its word outlives a restart."""
    return Put(HEARD_KEY, _stamped(at_ms, _LINKED if linked else b""))


def table_rows(snapshot: Snapshot) -> Iterator[TableRow]:
    """The mount table that the parent handed down last, as committed."""
    for _, value in snapshot.facts(keys.MOUNT_ROW):
        said = _read(federation_pb2.MountRow, value)
        if said is not None and _is_path(said[0].mount):
            yield TableRow(*said)


def table_writes(snapshot: Snapshot, rows: Iterable[TableRow]) -> tuple[Write, ...]:
    """Records a new mount table: only the rows that differ in more than age and counts."""
    known = dict(snapshot.facts(keys.MOUNT_ROW))
    writes: list[Write] = []
    for one in rows:
        key = keys.mount_row_key(one.row.mount)
        before = known.pop(key, None)
        if before is None or _unstamped(before)[1] != bare(one.row):
            writes.append(Put(key, _stamped(one.word_ms, bare(one.row))))
    writes.extend(Remove(key) for key in known)
    return tuple(writes)


def bare(row: federation_pb2.MountRow) -> bytes:
    """A row without what changes all the time: what makes it news."""
    copy = federation_pb2.MountRow()
    copy.CopyFrom(row)
    copy.age_seconds = 0
    copy.topic_count = 0
    copy.linked = False
    return copy.SerializeToString(deterministic=True)


def child_hello(snapshot: Snapshot, cluster_id: str) -> tuple[federation_pb2.Hello, int] | None:
    """What a child last told of itself, and when (unix ms); None if it never linked."""
    return _read(federation_pb2.Hello, snapshot.fact(keys.child_key(cluster_id)))


def child_writes(snapshot: Snapshot, hello: federation_pb2.Hello, now_ms: int) -> tuple[Write, ...]:
    """Records what a child told of itself, where it is news."""
    lasting = federation_pb2.Hello()
    lasting.CopyFrom(hello)
    lasting.topic_count = 0
    known = child_hello(snapshot, hello.cluster_id)
    if known is not None and known[0] == lasting:
        return ()
    body = lasting.SerializeToString(deterministic=True)
    return (Put(keys.child_key(hello.cluster_id), _stamped(now_ms, body)),)


@dataclass(frozen=True, slots=True)
class LinkedChild:
    """A server of this cluster holds the link to a child, if that server lives."""

    server_id: str
    topic_count: int
    """When the link began."""


def link_of(snapshot: Snapshot, cluster_id: str) -> LinkedChild | None:
    """Who holds the link to a child, as far as was kept; None: nobody does."""
    value = snapshot.fact(_LINKS + cluster_id.encode())
    if value is None:
        return None
    count, body = _unstamped(value)
    return LinkedChild(body.decode(errors="replace"), count)


def link_write(cluster_id: str, server_id: str, topic_count: int) -> Put:
    """Records who holds the link to a child, for the cluster's other servers."""
    return Put(_LINKS + cluster_id.encode(), _stamped(topic_count, server_id.encode()))


def below_rows(snapshot: Snapshot, cluster_id: str) -> list[TableRow]:
    """The mounts below a child, as it last told."""
    said = _read(federation_pb2.MountTable, snapshot.fact(_BELOW + cluster_id.encode()))
    if said is None:
        return []
    table, at_ms = said
    return [TableRow.received(row, at_ms) for row in table.rows if _is_path(row.mount)]


def below_writes(
    snapshot: Snapshot, cluster_id: str, rows: Iterable[TableRow], now_ms: int
) -> tuple[Write, ...]:
    """Records the mounts below a child, where they differ in more than age and counts."""
    key = _BELOW + cluster_id.encode()
    fresh = list(rows)
    value = snapshot.fact(key)
    known = _read(federation_pb2.MountTable, value)
    if known is not None:
        if [bare(row) for row in known[0].rows] == [bare(one.row) for one in fresh]:
            return ()
    elif value is None and not fresh:
        return ()
    table = federation_pb2.MountTable(rows=[one.aged(now_ms) for one in fresh])
    return (Put(key, _stamped(now_ms, table.SerializeToString(deterministic=True))),)


def forget_writes(snapshot: Snapshot, mounted: Collection[str]) -> tuple[Write, ...]:
    """Removes what clusters told that are mounted no more; ``mounted`` are those that are."""
    return tuple(
        Remove(key)
        for prefix in (keys.CHILD, _BELOW, _LINKS)
        for key, _ in snapshot.facts(prefix)
        if key.removeprefix(prefix).decode(errors="replace") not in mounted
    )


def detached_of(snapshot: Snapshot) -> str:
    """Who detached the cluster from its parent, and when, in words; empty = nobody did."""
    return (snapshot.fact(DETACHED_KEY) or b"").decode(errors="replace")


def is_told(snapshot: Snapshot) -> bool:
    """Whether a parent ever said what is inherited; else nobody knows that it is nothing."""
    return snapshot.fact(INHERITED_KEY) is not None


def inherited_levels(snapshot: Snapshot) -> list[federation_pb2.InheritedLevel]:
    """What the ancestors above the mount set, from the root down, as the parent last said.

    Raises:
        NotReady: it cannot be read.
    """
    value = snapshot.fact(INHERITED_KEY)
    said = _read(federation_pb2.Inherited, value)
    if said is not None:
        return list(said[0].levels)
    if value is not None:
        raise NotReady(
            f"what the directories above hand down cannot be read ({INHERITED_KEY.decode()} in the "
            f"store); the parent says it again when the link to it begins anew"
        )
    return []


def inherited_policies(snapshot: Snapshot) -> list[Policies]:
    """The policies of those levels.

    Raises:
        NotReady
    """
    return [policies_from_proto(level.policies) for level in inherited_levels(snapshot)]


def inherited_origins(snapshot: Snapshot) -> list[Level]:
    """Those levels, with who set what.

    Raises:
        NotReady
    """
    return [
        Level(level.path, policies_of(level.policies, stored=True))
        for level in inherited_levels(snapshot)
    ]


def ancestors(snapshot: Snapshot, now_ms: int) -> list[policies_pb2.AncestorPosition]:
    """The words of the ancestors that this builds on, nearest first, each with its age."""
    said = _read(federation_pb2.Inherited, snapshot.fact(INHERITED_KEY))
    parent = _read(federation_pb2.Welcome, snapshot.fact(keys.PARENT))
    if said is None or parent is None:
        return []
    inherited, at_ms = said
    welcome = parent[0]
    heard = heard_of(snapshot)
    confirmed_ms = max(at_ms, heard.at_ms) if heard is not None else at_ms
    age_seconds = max(0, now_ms - confirmed_ms) / 1000
    nearest = policies_pb2.AncestorPosition(
        cluster_id=welcome.parent_cluster_id,
        incarnation=inherited.incarnation,
        revision=inherited.revision,
        age_seconds=age_seconds,
    )
    further = []
    for one in inherited.ancestors:
        position = policies_pb2.AncestorPosition()
        position.CopyFrom(one)
        position.age_seconds += age_seconds
        further.append(position)
    return [nearest, *further]


def inherited_writes(
    snapshot: Snapshot, inherited: federation_pb2.Inherited, now_ms: int
) -> tuple[Write, ...]:
    """Records what is inherited, with the parent's incarnation and revision, where it is news."""
    known = _read(federation_pb2.Inherited, snapshot.fact(INHERITED_KEY))
    if known is not None:
        before = known[0]
        if before.levels == inherited.levels and before.incarnation == inherited.incarnation:
            return ()
    body = inherited.SerializeToString(deterministic=True)
    return (Put(INHERITED_KEY, _stamped(now_ms, body)),)


def inherited_access(snapshot: Snapshot) -> tuple[AccessLevel, ...] | None:
    """The grants of those levels, and which of them are closed; None where a parent never said. A
    grant that this version does not understand denies everything there.
    """
    if snapshot.fact(keys.INHERITED) is None:
        return None
    return tuple(
        AccessLevel(Path.parse(level.path), _rules(level), level.closed)
        for level in inherited_levels(snapshot)
        if level.grants or level.closed
    )


def _rules(level: federation_pb2.InheritedLevel) -> Rules:
    try:
        return Rules.of(map(stored_grant, level.grants))
    except ValueError:
        return SHUT


def grants_level(path: Path, rules: Rules) -> federation_pb2.InheritedLevel:
    """The grants of a mount, as they are handed down: it has no policies."""
    return federation_pb2.InheritedLevel(path=str(path), grants=map(grant_to_proto, rules.grants))


def level_of(
    path: Path, directory: Directory, rules: Rules = NO_RULES
) -> federation_pb2.InheritedLevel:
    """What one directory sets, as it is handed down."""
    return federation_pb2.InheritedLevel(
        path=str(path),
        policies=policies_to_proto(directory.policies),
        changed_by=directory.changed_by,
        grants=map(grant_to_proto, rules.grants),
        closed=directory.closed,
    )
