r"""Layout of a cluster's store: the keys of entries, grants, claims and facts.

Keys are bytes, and entries are listed in their order::

    e/<parent id: 8 bytes, big-endian><t|c><name>   an entry's record (kdir.v1.Entry without path)
    g/<parent id, 8 bytes><t|c><name>               the grants of the entry at that place
                                                    (kdir.v1.Grants); moved and removed with it
    p/<unified physical name>                       claim: the physical names that share it,
                                                    separated by \n
    r/<physical name>                               retired: unix ms of its end, as decimal text;
                                                    then "awaited" if kdir requested the topic from
                                                    Kafka and it may yet appear, or "deleted" and
                                                    Kafka's id of the topic that had the name
    x/<physical name>                               detached: adoption skips it; Kafka's topic id,
                                                    and its last path below the mount. If the name
                                                    is also retired and not awaited, Kafka no longer
                                                    has the topic; both rows are removed when the
                                                    retirement ends
    q/<principal>\0<request id>                     an answered request (deduplication, AIP-155)
    o/<change id>                                   the change events of one commit, and which
                                                    facts it wrote (kdir.v1.OutboxRow)
    o/-                                             events up to this revision are not kept
    f/parent                                        what the parent last sent (kdir.v1.Welcome …)
    f/mount/<mount path>                            a row of the mount table handed down
    f/child/<cluster id>                            what a child last reported
    f/linked/<cluster id>                           the server that holds this child's link
    f/below/<cluster id>                            the mounts below a child, as it last reported
    f/grants                                        id of the last change of grants, here or
                                                    inherited. A write that was authorized on older
                                                    grants is tried again
    f/inherited                                     what ancestors above the mount set
    f/detached                                      who detached the cluster from its parent, when
    f/attached                                      random id of the last attaching to the parent
                                                    after a detach; absent: there was none
    f/first_receipt                                 incarnation of the store and f/attached at the
                                                    parent's first update since they changed
    f/moved                                         number of changes of the mount's path, or of the
                                                    parent
    f/configured_parent                             the config's ``parent`` by which the parent was
                                                    found
    f/unmounted                                     why this cluster must not serve
    f/contact                                       last contact with the parent, as last stored
    f/mounted/<cluster id>                          claim: the one mount of this child: entry id,
                                                    epoch, and the path at which it was mounted
                                                    (mounted.py); written whenever the mount changes
    f/read_only/<entry id, 16 hex digits>           a directory that is itself read-only, or such a
                                                    topic, with its physical name as value; written
                                                    whenever that entry is
    f/quota/<entry id, 16 hex digits>               id of the last change that added topics or
                                                    partitions below a directory with a quota. A
                                                    write whose quota was checked before is tried
                                                    again
    k/<name>                                        settings of the Kafka side: pin, when it was
                                                    pinned, stop
    k/removal/<entry id, 16 hex digits>             a removed directory: whether its topics are
                                                    deleted in Kafka too, its path and size, when,
                                                    and who requested it
    k/change/<id>                                   a large adoption in progress
                                                    (kdir.v1.LargeChange): the leader does what is
                                                    left
    k/pushed/<entry id, 16 hex digits>              what was last pushed to Kafka for a topic
    k/acls/<kind><pattern>/<name>                   ACLs of one resource of Kafka that kdir asked
                                                    for: t, g or x (topic, group, transactional
                                                    id), l or p (literal, prefixed)
    k/acl_basis                                     what the grants were based on when ACLs were
                                                    pushed last
    k/armed/<aspect>/<entry id, 16 hex digits>      an entry where an aspect was armed: its plan
    k/managing                                      number of times that another cluster began or
                                                    stopped managing this Kafka, and the last of
                                                    them: begun or stopped
    k/named/<entry id, 16 hex digits>               a topic that a plan names: its id in Kafka, the
                                                    plan, and a hash of the directories in which it
                                                    is. Changes that may delete data are pushed only
                                                    to such topics
    k/plan/<plan>                                   a plan that was armed: at which entry, and on
                                                    which ``inherited_basis``
    k/log                                           the change log: its generation, and how far it
                                                    is published (kdir.v1.ChangeLogState); absent:
                                                    none is kept
    k/log_resync                                    an operator confirmed that the change log is
                                                    brought in line with the store: the store's
                                                    incarnation, who, when
    k/log_skip                                      an operator gave up the changes that waited for
                                                    the change log (kdir.v1.ChangeLogSkip)
    l/<role>                                        who holds a role (election)
    m/<server id>                                   a live server (kdir.v1.Member), gone with it
    f/level                                         the finalized feature level, decimal; absent = 1

``t`` is for topics and ``c`` for containers (directory, link, mount): one name may stand for one
of each. "Unified" is Kafka's own rule: ``.`` and ``_`` are the same there
(``org.apache.kafka.common.internals.Topic#unifyCollisionChars``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from directory.namespace.entry import DELETED_ID, Kind

__all__ = [
    "BELOW",
    "CHANGE_LOG",
    "CHANGE_LOG_RESYNC",
    "CHANGE_LOG_SKIP",
    "CHILD",
    "CLAIM",
    "CONTACT",
    "DETACHED",
    "ENTRY",
    "EVENT",
    "FEDERATION",
    "GRANTS",
    "GRANTS_MARK",
    "INHERITED",
    "KAFKA",
    "LARGE_CHANGE",
    "LEVEL",
    "LINKED",
    "LOGGED_PREFIXES",
    "MEMBER",
    "MOUNTED",
    "MOUNT_ROW",
    "MOVED",
    "PARENT",
    "PUSHED",
    "QUOTA",
    "READ_ONLY",
    "REMOVAL",
    "REQUEST",
    "RETIRED",
    "ROLE",
    "EntryKey",
    "child_key",
    "claim_key",
    "deleted_topic_id",
    "detached_key",
    "detached_value",
    "directory_range",
    "entry_id_in",
    "entry_key",
    "event_key",
    "grants_key",
    "is_awaited",
    "is_logged_fact",
    "is_topic_key",
    "kafka_key",
    "large_change_key",
    "may_change_topics",
    "member_key",
    "mount_row_key",
    "mounted_key",
    "parse_detached",
    "parse_entry_key",
    "parse_grants_key",
    "pushed_key",
    "quota_key",
    "read_only_id",
    "read_only_key",
    "removal_key",
    "request_key",
    "retired_key",
    "retired_until_ms",
    "retired_value",
    "role_key",
    "unify",
]

ENTRY: Final = b"e/"
GRANTS: Final = b"g/"
CLAIM: Final = b"p/"
RETIRED: Final = b"r/"
DETACHED: Final = b"x/"
_TOPIC_ID_BYTES: Final = 16
_AWAITED: Final = b" awaited"
_DELETED: Final = b" deleted "
REQUEST: Final = b"q/"
EVENT: Final = b"o/"
FEDERATION: Final = b"f/"
PARENT: Final = b"f/parent"
INHERITED: Final = b"f/inherited"
GRANTS_MARK: Final = b"f/grants"
MOVED: Final = b"f/moved"
MOUNT_ROW: Final = b"f/mount/"
CHILD: Final = b"f/child/"
LINKED: Final = b"f/linked/"
BELOW: Final = b"f/below/"
CONTACT: Final = b"f/contact"
MOUNTED: Final = b"f/mounted/"
READ_ONLY: Final = b"f/read_only/"
QUOTA: Final = b"f/quota/"
KAFKA: Final = b"k/"
REMOVAL: Final = b"k/removal/"
LARGE_CHANGE: Final = b"k/change/"
PUSHED: Final = b"k/pushed/"
ROLE: Final = b"l/"
MEMBER: Final = b"m/"
LEVEL: Final = b"f/level"
CHANGE_LOG: Final = b"k/log"
CHANGE_LOG_RESYNC: Final = b"k/log_resync"
CHANGE_LOG_SKIP: Final = b"k/log_skip"
LOGGED_PREFIXES: Final = (GRANTS, RETIRED, DETACHED, FEDERATION, KAFKA)
"""Prefixes of the grants of entries, and of ``is_logged_fact`` rows other than entries."""
_NOT_OF_TOPICS: Final = (
    *(EVENT, REQUEST, ROLE, MEMBER, KAFKA),
    *(CONTACT, MOUNT_ROW, CHILD, LINKED, BELOW),
)
"""Prefixes of rows that do not concern topics, such as those that servers write while no client
changes anything.
"""
_LOGGED_KINDS: Final = (RETIRED, DETACHED, KAFKA, MOUNTED)
_LOGGED_FACTS: Final = frozenset(
    (
        *(LEVEL, PARENT, INHERITED, MOVED),
        *(b"f/first_receipt", b"f/attached", b"f/detached", b"f/unmounted"),
    )
)

_REMOVED_PARENT: Final = DELETED_ID.to_bytes(8, "big")
_TOPIC: Final = b"t"
_CONTAINER: Final = b"c"


class EntryKey(NamedTuple):
    """Parsed key of an entry."""

    parent_id: int
    is_topic: bool
    name: str


def entry_key(parent_id: int, kind: Kind, name: str) -> bytes:
    """Returns the key of an entry's record."""
    place = _TOPIC if kind is Kind.TOPIC else _CONTAINER
    return b"%b%b%b%b" % (ENTRY, parent_id.to_bytes(8, "big"), place, name.encode())


def parse_entry_key(key: bytes) -> EntryKey:
    """Parses a key of ``entry_key``.

    Raises:
        ValueError: not an entry's key.
    """
    if not key.startswith(ENTRY) or len(key) < 12 or key[10:11] not in (_TOPIC, _CONTAINER):
        raise ValueError(f"not an entry key: {key!r}")
    return EntryKey(int.from_bytes(key[2:10], "big"), key[10:11] == _TOPIC, key[11:].decode())


def is_topic_key(key: bytes) -> bool:
    """True if this is the key of a topic's record; cheaper than parsing, for many keys."""
    return key[10:11] == _TOPIC and len(key) > 11 and key.startswith(ENTRY)


def grants_key(parent_id: int, kind: Kind, name: str) -> bytes:
    """Returns the key of an entry's grants: that of the entry's record, with another prefix."""
    return GRANTS + entry_key(parent_id, kind, name)[len(ENTRY) :]


def parse_grants_key(key: bytes) -> EntryKey:
    """Parses a key of ``grants_key``. The root directory has parent 0 and no name.

    Raises:
        ValueError: not the key of grants.
    """
    if not key.startswith(GRANTS):
        raise ValueError(f"not a key of grants: {key!r}")
    if key == _ROOT_GRANTS:
        return EntryKey(0, is_topic=False, name="")
    try:
        return parse_entry_key(ENTRY + key[len(GRANTS) :])
    except ValueError:
        raise ValueError(f"not a key of grants: {key!r}") from None


_ROOT_GRANTS: Final = grants_key(0, Kind.DIRECTORY, "")


def directory_range(parent_id: int) -> bytes:
    """Returns the prefix of the keys of all entries directly in a directory."""
    return ENTRY + parent_id.to_bytes(8, "big")


def unify(physical_name: str) -> str:
    """Returns the name under Kafka's collision rule."""
    return physical_name.replace(".", "_")


def claim_key(physical_name: str) -> bytes:
    """Returns the key of the claim that keeps the physical names of entries unique under Kafka's
    collision rule.
    """
    return CLAIM + unify(physical_name).encode()


def retired_key(physical_name: str) -> bytes:
    """Returns the key of a recently deleted name."""
    return RETIRED + physical_name.encode()


def detached_key(physical_name: str) -> bytes:
    """Returns the key of a Kafka topic that was left alone when its entry was removed."""
    return DETACHED + physical_name.encode()


def detached_value(topic_id: bytes, relative: Sequence[str]) -> bytes:
    """Returns the record of a detached topic: Kafka's topic id (16 bytes; zeros or empty =
    unknown), then its last path below the mount, if known.
    """
    path = "/".join(relative).encode()
    return topic_id.ljust(_TOPIC_ID_BYTES, b"\0") + path if path else topic_id


def parse_detached(value: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Parses ``detached_value`` into the topic id and the path; empty = unknown, for each."""
    topic_id, path = value[:_TOPIC_ID_BYTES], value[_TOPIC_ID_BYTES:].decode(errors="replace")
    return topic_id if topic_id.strip(b"\0") else b"", tuple(path.split("/")) if path else ()


def request_key(principal: str, request_id: str) -> bytes:
    """Returns the key of the stored answer to a request."""
    return b"%b%b\0%b" % (REQUEST, principal.encode(), request_id.encode())


def event_key(change_id: str) -> bytes:
    """Returns the key of one commit's events; their order is by revision, not by key."""
    return EVENT + change_id.encode()


def mount_row_key(mount: str) -> bytes:
    """Returns the key of a row of the mount table that the parent sent."""
    return MOUNT_ROW + mount.encode()


def child_key(cluster_id: str) -> bytes:
    """Returns the key of a child's last report of itself."""
    return CHILD + cluster_id.encode()


def mounted_key(cluster_id: str) -> bytes:
    """Returns the key of the claim by which a cluster mounts no child twice; its value changes with
    every mount.
    """
    return MOUNTED + cluster_id.encode()


def read_only_key(entry_id: int) -> bytes:
    """Returns the key by which a removal finds that an entry in the subtree is read-only."""
    return READ_ONLY + b"%016x" % entry_id


def quota_key(entry_id: int) -> bytes:
    """Returns the key that changes when something is added below a directory with a quota."""
    return QUOTA + b"%016x" % entry_id


def read_only_id(key: bytes) -> int:
    """Returns the entry id in a ``read_only_key``, as ``entry_id_in``."""
    return entry_id_in(key, READ_ONLY)


def entry_id_in(key: bytes, prefix: bytes) -> int:
    """Returns the entry id after a prefix; 0, which is no entry's, if it is malformed."""
    try:
        return int(key[len(prefix) :], 16)
    except ValueError:
        return 0


def retired_value(until_ms: int, *, awaited: bool = False, deleted_id: bytes = b"") -> bytes:
    """Returns the value of a retired name. ``awaited``: a topic that kdir requested from Kafka may
    yet appear under it, though its entry was removed. ``deleted_id``: Kafka's id of the topic that
    was deleted; a broker that lags may show it still.
    """
    more = _AWAITED if awaited else b""
    if deleted_id:
        more = _DELETED + deleted_id.hex().encode()
    return str(until_ms).encode() + more


def retired_until_ms(value: bytes) -> int | None:
    """Returns when a name's retirement ends (Unix milliseconds); None: unreadable."""
    text = value.removesuffix(_AWAITED).partition(_DELETED)[0]
    return int(text) if text.isdigit() else None


def deleted_topic_id(value: bytes | None) -> bytes:
    """Returns Kafka's id of the deleted topic that had a retired name; empty = not known."""
    _, _, text = (value or b"").partition(_DELETED)
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        return b""


def is_awaited(value: bytes | None) -> bool:
    """True if a retired name's topic may yet appear; see ``retired_value``."""
    return value is not None and value.endswith(_AWAITED)


def removal_key(entry_id: int) -> bytes:
    """Returns the key of a removed directory's record, which the reaper needs."""
    return REMOVAL + b"%016x" % entry_id


def pushed_key(entry_id: int) -> bytes:
    """Returns the key of what was last pushed to Kafka for a topic."""
    return PUSHED + b"%016x" % entry_id


def kafka_key(name: str) -> bytes:
    """Returns the key of a setting of the Kafka side."""
    return KAFKA + name.encode()


def role_key(role: str) -> bytes:
    """Returns the key of a role's holder."""
    return ROLE + role.encode()


def large_change_key(change_id: str) -> bytes:
    """Returns the key of a large change in progress."""
    return LARGE_CHANGE + change_id.encode()


def member_key(server_id: str) -> bytes:
    """Returns the key of a live server of the cluster."""
    return MEMBER + server_id.encode()


def may_change_topics(key: bytes) -> bool:
    """True if a write of this key may change which topics there are, what is recorded or inherited
    for them, or who may see them.
    """
    return not key.startswith(_NOT_OF_TOPICS)


def is_logged_fact(key: bytes) -> bool:
    """True if the change log holds this row though no change event does: a store that is rebuilt
    from the log needs it, and cannot derive it from its entries.
    """
    if key.startswith((ENTRY, GRANTS)):
        return key[2:10] == _REMOVED_PARENT
    return key in _LOGGED_FACTS or (
        key.startswith(_LOGGED_KINDS) and not key.startswith(CHANGE_LOG)
    )
