"""The outbox: which facts its rows name, and that nothing is missing from the day a log is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from kdir.v1 import watch_pb2

from directory.access import grants as access
from directory.access.grants import Grant, Permission
from directory.change_log.log_state import refuse_full_outbox
from directory.change_log.state_records import OversizedRecord, encode_within
from directory.maintenance.backup_stream import fill_store
from directory.maintenance.event_index import EventIndex
from directory.maintenance.retention import RetentionLimits, RetentionTrimmer
from directory.namespace.bounds import Bounds
from directory.namespace.command import AddGrants, CreateDirectory, RemoveGrants, UpdateEntry
from directory.namespace.entry import DELETED_ID, Kind, Policies
from directory.namespace.keys import (
    CHANGE_LOG,
    CHANGE_LOG_SKIP,
    EVENT,
    QUOTA,
    detached_key,
    entry_key,
    grants_key,
    is_logged_fact,
    kafka_key,
    mounted_key,
    request_key,
    retired_key,
    role_key,
)
from directory.namespace.snapshot import Snapshot
from directory.store.base import FILLED_FROM, Delete, KeyEquals, Put, Row, Write
from directory.store.event_rows import FLOOR_KEY, Operation, OutboxCommit, event_count, unpack
from directory.store.replica import AppliedCommit
from directory.store.sqlite.store import SqliteStore
from directory.store.writer import Writer
from directory.wire.entry_codec import ProtoCodec
from resolver.changes.record import Change, Schemas
from resolver.errors import LimitExceeded, OutboxFull
from tests.support.large_trees import MOUNT, Server, server
from tests.support.large_trees import TightSqlite as Store
from tests.support.waiting import eventually

EMPTY = Snapshot.empty(ProtoCodec())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store.db", "la")


@pytest.fixture
def here(store: Store) -> Iterator[Server]:
    with server(store) as made:
        yield made


def outbox(store: Store) -> list[OutboxCommit]:
    rows = [row for row in store.read(EVENT) if row.key != FLOOR_KEY]
    rows.sort(key=lambda row: row.revision)
    return [unpack(row.value, row.revision, "") for row in rows]


@pytest.mark.parametrize(
    ("key", "is_logged"),
    [
        (retired_key("a"), True),
        (detached_key("a"), True),
        (kafka_key("pin"), True),
        (mounted_key("kc-a"), True),
        (b"f/level", True),
        (b"f/parent", True),
        (b"f/inherited", True),
        (b"f/detached", True),
        (entry_key(DELETED_ID, Kind.TOPIC, "0a"), True),
        (grants_key(DELETED_ID, Kind.DIRECTORY, "0a"), True),
        (entry_key(77, Kind.TOPIC, "a"), False),
        (grants_key(77, Kind.TOPIC, "a"), False),
        (CHANGE_LOG, False),
        (QUOTA + b"00", False),
        (b"f/child/kc-a", False),
        (role_key("reaper"), False),
        (request_key("User:a", "1"), False),
    ],
)
def test_what_no_event_holds_and_a_rebuilt_store_needs_is_named(
    key: bytes, is_logged: bool
) -> None:
    assert is_logged_fact(key) is is_logged


def test_without_a_change_log_facts_make_no_rows(here: Server, store: Store) -> None:
    here.writer.put_facts((Put(kafka_key("pin"), b"x"),))
    assert outbox(store) == []


def test_with_a_change_log_each_commit_of_facts_has_a_row(here: Server, store: Store) -> None:
    here.writer.put_facts((Put(CHANGE_LOG, b""),))
    assert outbox(store) == [], "how far the log is, is not in the log"
    revision = here.writer.put_facts((Put(kafka_key("pin"), b"x"), Put(QUOTA + b"00", b"x")))
    removed = here.writer.put_facts((Delete(kafka_key("pin")),))
    here.writer.put_facts((Put(QUOTA + b"00", b"y"),))
    assert [(one.revision, one.logged_facts) for one in outbox(store)] == [
        (revision, (kafka_key("pin"),)),
        (removed, (kafka_key("pin"),)),
    ]


def test_a_change_names_the_facts_of_its_own_transaction(here: Server, store: Store) -> None:
    fact = Put(kafka_key("pin"), b"x")
    here.execute(CreateDirectory(path=MOUNT.join(("a",))), extra_writes=(fact,))
    (one,) = outbox(store)
    assert [event.path for event in one.events] == ["/la/a"]
    assert one.logged_facts == (kafka_key("pin"),)


def test_a_log_that_is_begun_by_another_server_misses_no_fact(store: Store, tmp_path: Path) -> None:
    """The other server's replica does not show the log yet when it writes."""
    with server(store) as here, server(Store(tmp_path / "store.db", "la")) as other:
        for number in range(20):
            here.writer.put_facts((Put(CHANGE_LOG, b"%d" % number),))
            other.writer.put_facts((Put(kafka_key("pin"), b"%d" % number),))
            here.writer.put_facts((Delete(CHANGE_LOG),))
    assert len(outbox(store)) == 20


def test_a_page_does_not_reach_a_revision_whose_row_has_not_come_yet(
    here: Server, store: Store
) -> None:
    """The replica swaps the tree in before it hands the change to the index."""
    index = EventIndex(store)
    reached: list[tuple[int, int]] = []

    def look(applied: AppliedCommit) -> None:
        newest = here.replica.snapshot.revision
        _, end = index.commits(applied.before.revision, newest, 100)
        reached.append((applied.before.revision, end))

    ends = [here.replica.subscribe(one) for one in (look, index.applied)]
    first = here.execute(CreateDirectory(path=MOUNT.join(("a",)))).revision
    second = here.execute(CreateDirectory(path=MOUNT.join(("b",)))).revision
    for end in ends:
        end()
    assert reached == [(first - 1, first - 1), (first, first)]
    assert index.commits(first, second, 100)[1] == second


def row_key(number: int, events: int = 1) -> bytes:
    return EVENT + b"%012x-%x-%08x" % (number, events, number)


def an_index(rows: Callable[[bytes], list[Row]] = lambda _: []) -> EventIndex:
    """Returns an index of a store with these rows after a key, as of revision 0."""

    def read(prefix: bytes, *, limit: int, after: bytes = b"") -> list[Row]:
        return [] if prefix == FLOOR_KEY else rows(after)[:limit]

    store: Any = SimpleNamespace(read=read)
    index = EventIndex(store)
    index.applied(AppliedCommit(EMPTY, EMPTY, 0, (), (), reloaded=True))
    return index


def apply(index: EventIndex, revision: int, *writes: Write) -> None:
    index.applied(AppliedCommit(EMPTY, EMPTY, revision, writes, ()))


def test_removing_rows_costs_what_they_are_and_not_what_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each commit waits for the index."""
    index = an_index()
    apply(index, 1, *(Put(row_key(number), b"x") for number in range(20_000)))
    counted: list[bytes] = []

    def count(key: bytes) -> int:
        counted.append(key)
        return event_count(key)

    monkeypatch.setattr("directory.maintenance.event_index.event_count", count)
    index.forget([row_key(3)])
    apply(index, 2, Delete(row_key(3)), Delete(row_key(4)))
    assert index.waiting(0).commits == 19_998
    assert len(counted) < 10


def test_rows_that_are_removed_while_the_store_is_read_are_not_counted() -> None:
    stored = [Row(row_key(number), b"x", 0) for number in range(3_000)]

    def read(after: bytes) -> list[Row]:
        if after == stored[-1].key:  # all were read
            apply(index, 1, *(Delete(row.key) for row in stored[1:]))
        return [row for row in stored if row.key > after]

    index = an_index(read)
    assert index.oldest(0, 0, 10) == [(0, row_key(0))]


def test_the_index_has_what_was_added_and_not_removed() -> None:
    chance = Random(7)
    index, rows = an_index(), dict[bytes, int]()
    expected: list[tuple[int, bytes]] = []
    for revision in range(1, 400):
        added = [row_key(revision * 4 + part, chance.choice((0, 1, 3))) for part in range(3)]
        some = chance.sample(sorted(rows), min(len(rows), chance.choice((0, 0, 1, 9))))
        if chance.random() < 0.5:
            index.forget(some[:4])
        chance.shuffle(added)
        apply(index, revision, *(Put(key, b"x") for key in added), *map(Delete, some))
        rows |= dict.fromkeys(added, revision)
        for key in some:
            del rows[key]
        expected = sorted((revision, key) for key, revision in rows.items())
        assert index.oldest(0, 0, 9) == expected[:9]
        assert index.waiting(0) == (len(rows), len(rows), index.waiting(0).since_ms)
        facts = [key for _, key in expected if not event_count(key)]
        assert [key for key in index.oldest_of_facts(revision, 10_000) if key in rows] == facts
    count, most = sum(event_count(key) for key in rows), 10**9
    assert len(index.oldest(most, len(rows) - 5, most)) == 5, "a byte each"
    old = 0
    while count - sum(event_count(key) for _, key in expected[: old + 1]) >= count - 50:
        old += 1
    assert len(index.oldest(count - 50, most, most)) == old


def test_what_is_not_published_is_not_trimmed(here: Server, store: Store) -> None:
    index = EventIndex(store)
    here.replica.subscribe(index.applied)
    published: list[int | None] = [0]
    trimmer = RetentionTrimmer(
        store, index, RetentionLimits(events=2), published=lambda: published[0]
    )
    here.writer.put_facts((Put(CHANGE_LOG, b""),))
    fact = here.writer.put_facts((Put(kafka_key("pin"), b"x"),))
    for name in "abcdef":
        here.execute(CreateDirectory(path=MOUNT.join((name,))))
    eventually(lambda: here.replica.snapshot.revision >= store.newest_revision())
    assert trimmer.step() == 0
    published[0] = fact
    assert trimmer.step() == 1, "the row of the fact, and no event"
    assert index.floor() == 0
    published[0] = store.newest_revision()
    assert trimmer.step() == 4
    assert [event.path for one in outbox(store) for event in one.events] == ["/la/e", "/la/f"]
    published[0] = None
    assert trimmer.step() == 0


def test_what_may_wait_is_counted_by_commits_and_urgent_ones_have_twice_as_many(
    here: Server, store: Store
) -> None:
    index = EventIndex(store)
    here.replica.subscribe(index.applied)

    def refuse(most: int, *, is_urgent: bool = False) -> None:
        refuse_full_outbox(here.replica.snapshot, index, most, is_urgent=is_urgent)

    def note(revision: int, incarnation: str = store.identity.incarnation) -> None:
        state = watch_pb2.ChangeLogState(
            revision=revision, incarnation=incarnation, message="no broker answered"
        )
        here.writer.put_facts((Put(CHANGE_LOG, state.SerializeToString()),))

    for name in "abc":
        here.execute(CreateDirectory(path=MOUNT.join((name,))))
    refuse(0)  # no change log is kept: nothing waits
    note(0)
    refuse(4)
    with pytest.raises(OutboxFull, match=r"3 changes wait .* = 3\).*: no broker answered"):
        refuse(3)
    refuse(2, is_urgent=True)
    with pytest.raises(OutboxFull):
        refuse(1, is_urgent=True)
    note(here.replica.snapshot.revision)
    refuse(1)
    note(here.replica.snapshot.revision, "another incarnation")
    with pytest.raises(OutboxFull):
        refuse(3)
    skip = watch_pb2.ChangeLogSkip(
        revision=here.replica.snapshot.revision, incarnation=store.identity.incarnation
    )
    here.writer.put_facts((Put(CHANGE_LOG_SKIP, skip.SerializeToString()),))
    refuse(1)


@pytest.mark.parametrize("is_built", [True, False])
def test_the_history_that_a_restore_put_in_does_not_wait_for_the_change_log(
    tmp_path: Path, *, is_built: bool
) -> None:
    with server(Store(tmp_path / "old.db", "la")) as old:
        for name in "abc":
            old.execute(CreateDirectory(path=MOUNT.join((name,))))
        revision = old.replica.snapshot.revision
        note = watch_pb2.ChangeLogState(revision=revision, incarnation="of before", generation=1)
        old.writer.put_facts((Put(CHANGE_LOG, note.SerializeToString()),))
        rows = [row for page in old.store.load().pages() for row in page]
    store = Store(tmp_path / "store.db", "la")
    store.seal(f"{FILLED_FROM}a backup")
    fill_store(store, rows)
    store.unseal()
    with server(store) as here:
        index = EventIndex(store)
        snapshot = here.replica.snapshot
        index.applied(AppliedCommit(snapshot, snapshot, snapshot.revision, (), (), reloaded=True))
        here.replica.subscribe(index.applied)
        if is_built:
            assert index.waiting(0).commits == 0
        refuse_full_outbox(snapshot, index, 1, is_urgent=False)
        here.execute(CreateDirectory(path=MOUNT.join(("d",))))
        with pytest.raises(OutboxFull, match="1 changes wait"):
            refuse_full_outbox(here.replica.snapshot, index, 1, is_urgent=False)
        assert index.waiting(0).commits == 1
        assert index.page(0, here.replica.snapshot.revision, 100)[0], "it is history still"


def test_what_takes_rights_away_roles_and_operators_are_urgent(store: Store) -> None:
    path = MOUNT.join(("a",))
    allow = Grant("User:a", "*", access.Operation.READ, Permission.ALLOW)
    deny = replace(allow, permission=Permission.DENY)
    role = KeyEquals(role_key("reaper"), None)
    asked: list[bool] = []
    with server(store) as here:
        writer = Writer(
            store, here.replica, ProtoCodec(), lambda _: MOUNT, check_outbox=asked.append
        )
        writer.commit_command(CreateDirectory(path=path))
        assert not asked, "no change log is kept: nothing waits"
        writer.put_facts((Put(CHANGE_LOG, b""),))
        writer.commit_command(CreateDirectory(path=MOUNT.join(("c",))))
        writer.commit_command(AddGrants(path=path, grants=(allow,)))
        writer.commit_command(AddGrants(path=path, grants=(deny,)))
        writer.commit_command(RemoveGrants(path=path, grants=(deny,)))
        writer.commit_command(RemoveGrants(path=path, grants=(allow,)))
        writer.commit_command(CreateDirectory(path=MOUNT.join(("b",))), extra_guards=(role,))
        writer.put_facts((), operation=Operation("finalized"))
        assert asked == [False, False, True, False, True, True, True]
        writer.put_facts((Put(CHANGE_LOG_SKIP, b""),), operation=Operation("gave up"))
        assert len(asked) == 7, "what is done about the log itself"


def test_a_request_that_was_done_is_answered_so_where_the_outbox_is_full_since(
    store: Store,
) -> None:
    is_full = False

    def refuse(_is_urgent: bool) -> None:
        if is_full:
            raise OutboxFull("3 changes wait for the change log; nothing was written")

    with server(store) as here:
        writer = Writer(store, here.replica, ProtoCodec(), lambda _: MOUNT, check_outbox=refuse)
        writer.put_facts((Put(CHANGE_LOG, b""),))
        path = MOUNT.join(("a",))
        writer.commit_command(CreateDirectory(path=path))
        change = UpdateEntry(path=path, changes={"policies.owner": "ana"})
        first = writer.commit_command(change, request_id="1")
        writer.commit_command(UpdateEntry(path=path, changes={"policies.owner": "bob"}))
        is_full = True
        again = writer.commit_command(change, request_id="1")
        assert again.repeated
        assert again.revision == first.revision
        with pytest.raises(OutboxFull):
            writer.commit_command(change, request_id="2")


def test_an_entry_that_no_record_could_hold_is_refused_where_a_change_log_is_kept(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "roomy.db", "la")
    bounds = Bounds(policy_text_bytes=3 << 20, policies_bytes=4 << 20)
    with server(store) as here:
        writer = Writer(store, here.replica, ProtoCodec(), lambda _: MOUNT, bounds=bounds)

        def make(name: str, size: int) -> None:
            policies = Policies(description="x" * size)
            writer.commit_command(CreateDirectory(path=MOUNT.join((name,)), policies=policies))

        make("a", 3_000_000)
        writer.put_facts((Put(CHANGE_LOG, b""),))
        make("b", 2_000_000)
        with pytest.raises(LimitExceeded, match=r"/la/c would have 3,0.* 2,097,152 at most"):
            make("c", 3_000_000)


def test_a_record_that_is_too_large_loses_what_other_records_hold_and_names_it() -> None:
    change = Change(
        cluster_id="kc-a",
        generation=1,
        revision=2,
        time=3,
        path="/la/a",
        principal="User:a",
        before={"description": "b" * 1000},
        after={"description": "a" * 1000},
        effective={"description": "e" * 1000},
        grants_before=("g" * 1000,),
    )
    for most, cut in (
        (9_999, ()),
        (3_500, ("effective",)),
        (2_500, ("effective", "before")),
        (1_500, ("effective", "before", "grants_before")),
    ):
        value = encode_within(change, most)
        assert len(value) <= most
        found = Schemas().decode(value)
        assert found.cut == cut
        lost: dict[str, Any] = dict.fromkeys(cut)
        assert found == replace(change, cut=cut, **lost)
    with pytest.raises(OversizedRecord, match=r"/la/a at revision 2 has 1,\d+ bytes"):
        encode_within(change, 1_000)
