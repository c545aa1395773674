"""Trees of many entries in a store, servers that take them apart, and a raw look at what is left.

``TightSqlite`` is sqlite that asserts etcd's limits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from directory.kafka.admin_contract import (
    AclBinding,
    AlreadyDone,
    ConfigChange,
    KafkaListing,
    KafkaMetadata,
    KafkaTopic,
    ObservedAcls,
    Outcome,
    Rejected,
    Still,
    Succeeded,
    TopicToCreate,
    always,
)
from directory.maintenance.reaper import Reaper
from directory.namespace.command import Command
from directory.namespace.entry import (
    DELETED_ID,
    ROOT_ID,
    Directory,
    Entry,
    Kind,
    Provision,
    Topic,
)
from directory.namespace.keys import (
    CLAIM,
    DETACHED,
    ENTRY,
    LARGE_CHANGE,
    READ_ONLY,
    REMOVAL,
    RETIRED,
    claim_key,
    entry_key,
    parse_entry_key,
)
from directory.namespace.tree_nodes import ROOT_KEY
from directory.store.base import Committed, Put, Row, Store, Transaction, Write
from directory.store.replica import Replica
from directory.store.sqlite.store import SqliteStore
from directory.store.transaction_limits import Limits
from directory.store.writer import CommitResult, Writer
from directory.wire.entry_codec import ProtoCodec
from resolver.path import Path
from tests.support.reconciler import eventually

__all__ = [
    "ETCD_LIMITS",
    "MOUNT",
    "FakeKafka",
    "Server",
    "TightSqlite",
    "check_no_orphans",
    "commit",
    "forest",
    "rows_under",
    "server",
]

MOUNT = Path.parse("/la")
ETCD_LIMITS = Limits(max_writes=127, max_guards=126, max_bytes=1_400_000)
CODEC = ProtoCodec()


class TightSqlite(SqliteStore):
    """A sqlite store with etcd's limits of guards and writes, which each commit asserts."""

    @property
    def limits(self) -> Limits:
        return ETCD_LIMITS

    def commit(self, transaction: Transaction, timeout_seconds: float = 5.0) -> Any:
        guards, writes = len(transaction.guards), len(transaction.writes)
        assert ETCD_LIMITS.hold(guards, writes), f"{guards} guards and {writes} writes"
        return super().commit(transaction, timeout_seconds)


class Server:
    """Store, replica, writer and reaper of one server of a cluster; several may share a store."""

    def __init__(self, store: Store, name: str = "one", **reaper: Any) -> None:
        self.store = store
        self.replica = Replica(store, CODEC)
        self.replica.start()
        eventually(lambda: self.replica.state.value == "serving")
        self.writer = Writer(store, self.replica, CODEC, lambda _: MOUNT)
        self.reaper = Reaper(name, store, self.replica, self.writer, **reaper)

    def execute(self, command: Command, **options: Any) -> CommitResult:
        # A replica that had a large commit to parse on a busy machine counts as stale for a moment.
        eventually(lambda: self.replica.state.value == "serving")
        return self.writer.commit_command(command, **options)

    def reap_once(self) -> None:
        """Runs one round of the reaper, once it is elected."""
        eventually(lambda: self.reaper.step() == 0.0, 60)

    def reap(self) -> int:
        """Runs the reaper until every removal is finished; returns how many rounds it took."""
        for rounds in itertools.count():
            if self.reaper.step() > 0.5:
                return rounds
        raise AssertionError

    def nothing_waits(self) -> bool:
        place = self.replica.snapshot.nodes.get(DELETED_ID)
        return place is None or not place.containers

    def close(self) -> None:
        self.reaper.stop(30)
        self.replica.stop()
        self.store.close()


@contextmanager
def server(store: Store, name: str = "one", **reaper: Any) -> Iterator[Server]:
    """Runs a server that ends with the test."""
    with closing(Server(store, name, **reaper)) as made:
        yield made


class FakeKafka:
    """A Kafka in memory, as far as the reconciler asks one; any number of clients may ask it."""

    def __init__(self, *names: str) -> None:
        self.topics: dict[str, KafkaTopic] = {}
        self.made: list[str] = []
        self.deleted: list[str] = []
        self.add(*names)

    def add(self, *names: str) -> None:
        """Adds topics, as if another tool created them."""
        for name in names:
            number = len(self.made) + len(self.topics) + 1
            self.topics[name] = KafkaTopic(name, number.to_bytes(16, "big"), 1, 1)

    def __call__(self) -> FakeKafka:
        return self

    def cluster_id(self) -> str:
        return "K"

    def list_all(self) -> KafkaListing:
        return KafkaListing("K", {name: seen.partitions for name, seen in self.topics.items()})

    def describe_all(self) -> KafkaMetadata:
        return KafkaMetadata("K", dict(self.topics))

    def describe(self, names: Sequence[str]) -> Mapping[str, KafkaTopic | Rejected]:
        return {name: self.topics[name] for name in names if name in self.topics}

    def configs(self, names: Sequence[str]) -> Mapping[str, Mapping[str, str] | Rejected]:
        return {name: {} for name in names if name in self.topics}

    def create(
        self, desired_set: Sequence[TopicToCreate], still: Still = always
    ) -> Mapping[str, Outcome]:
        still()
        outcomes: dict[str, Outcome] = {}
        for desired in desired_set:
            outcomes[desired.name] = AlreadyDone() if desired.name in self.topics else Succeeded()
            if desired.name not in self.topics:
                self.made.append(desired.name)
                self.add(desired.name)
        return outcomes

    def delete(self, names: Sequence[str], still: Still = always) -> Mapping[str, Outcome]:
        still()
        outcomes: dict[str, Outcome] = {}
        for name in names:
            gone = self.topics.pop(name, None)
            outcomes[name] = AlreadyDone() if gone is None else Succeeded()
            if gone is not None:
                self.deleted.append(name)
        return outcomes

    def alter_configs(
        self, changes: Sequence[ConfigChange], still: Still = always
    ) -> Mapping[str, Outcome]:
        raise AssertionError("nothing here is armed")

    def create_partitions(
        self, partitions: Mapping[str, int], still: Still = always
    ) -> Mapping[str, Outcome]:
        raise AssertionError("nothing here is armed")

    def acls(self) -> ObservedAcls:
        raise AssertionError("nothing here is armed")

    def add_acls(
        self, bindings: Sequence[AclBinding], still: Still = always
    ) -> Mapping[AclBinding, Outcome]:
        raise AssertionError("nothing here is armed")

    def remove_acls(
        self, bindings: Sequence[AclBinding], still: Still = always
    ) -> Mapping[AclBinding, Outcome]:
        raise AssertionError("nothing here is armed")

    def close(self) -> None:
        pass


# -- trees ---------------------------------------------------------------------------------------


def forest(
    topics: int,
    *,
    topics_each: int = 100,
    provision: Provision = Provision.ACTIVE,
    top: str = "x",
    first_id: int = 100,
) -> Iterator[tuple[bytes, bytes]]:
    """Yields the rows of a directory ``top`` below the mount that holds so many topics, two tiers
    deep.
    """
    ids = itertools.count(first_id)
    root = Directory(entry_id=next(ids))
    yield entry_key(ROOT_ID, Kind.DIRECTORY, top), CODEC.encode(root)
    for first in range(0, topics, topics_each):
        below = Directory(entry_id=next(ids))
        yield entry_key(root.entry_id, Kind.DIRECTORY, f"d{first}"), CODEC.encode(below)
        for number in range(first, min(first + topics_each, topics)):
            topic = Topic(
                entry_id=next(ids),
                physical_name=f"{top}.t{number}",
                topic_id=number.to_bytes(16, "big"),
                partitions=1,
                replication_factor=1,
                provision=provision,
                adopted=True,
            )
            yield entry_key(below.entry_id, Kind.TOPIC, f"t{number}"), CODEC.encode(topic)
            yield claim_key(topic.physical_name), topic.physical_name.encode()


def commit(store: Store, rows: Iterable[tuple[bytes, bytes]]) -> None:
    """Puts rows into a store, in transactions as large as it takes."""
    most = min(store.limits.max_writes, 5_000)
    writes: Iterator[Write] = (Put(key, value) for key, value in rows)
    while batch := tuple(itertools.islice(writes, most)):
        assert isinstance(store.commit(Transaction((), batch), 30.0), Committed)


# -- what is left --------------------------------------------------------------------------------


def rows_under(store: Store, prefix: bytes) -> Iterator[Row]:
    """Yields all rows of the store below a prefix, read page by page."""
    after = b""
    while page := store.read(prefix, limit=5_000, after=after):
        yield from page
        after = page[-1].key


def check_no_orphans(store: Store) -> dict[str, int]:
    """Asserts that every row of the store has what it belongs to; returns the counts by kind of
    row.

    It reads the rows without a snapshot, since orphans would not show in one.
    """
    entries: dict[bytes, Entry] = {
        row.key: CODEC.decode(row.value) for row in rows_under(store, ENTRY)
    }
    directories = {one.entry_id for one in entries.values() if isinstance(one, Directory)}
    for key in entries:
        if key != ROOT_KEY:
            parent = parse_entry_key(key).parent_id
            assert parent in {ROOT_ID, DELETED_ID, *directories}, f"{key!r} lies nowhere"
    names: dict[bytes, set[str]] = {}
    for one in entries.values():
        if isinstance(one, Topic):
            names.setdefault(claim_key(one.physical_name), set()).add(one.physical_name)
    claims = {row.key: set(row.value.decode().split("\n")) for row in rows_under(store, CLAIM)}
    assert claims == names, "each name in use is claimed, and no other"
    removed = {
        parse_entry_key(key).name
        for key, one in entries.items()
        if isinstance(one, Directory) and parse_entry_key(key).parent_id == DELETED_ID
    }
    removals = {row.key[len(REMOVAL) :].decode() for row in rows_under(store, REMOVAL)}
    assert removals == removed
    read_only = {int(row.key[len(READ_ONLY) :], 16) for row in rows_under(store, READ_ONLY)}
    assert read_only <= directories
    return {
        "directories": len(directories),
        "topics": sum(isinstance(one, Topic) for one in entries.values()),
        "removed": len(removed),
        "retired": sum(1 for _ in rows_under(store, RETIRED)),
        "detached": sum(1 for _ in rows_under(store, DETACHED)),
        "changes": sum(1 for _ in rows_under(store, LARGE_CHANGE)),
    }
