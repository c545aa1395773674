"""Registering, knowing the others, raising the level: on a real store, one turn at a time."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kdir.v1 import admin_pb2

from directory.namespace.entry import Kind
from directory.namespace.keys import LEVEL, MEMBER, entry_key, large_change_key, member_key
from directory.server import membership
from directory.server.membership import ServerTooOld, check_level_at_startup, unreadable
from directory.store.base import (
    Committed,
    Conflict,
    Delete,
    EphemeralKey,
    Guard,
    Put,
    Store,
    StoreUnreachable,
    Transaction,
)
from directory.store.replica import Replica, ReplicaState
from directory.store.sqlite.store import SqliteStore
from resolver.errors import InvalidArgument, LevelNotFinalized, StoreUnavailable, WriteConflict
from tests.support.feature_levels import NEWEST, levels_up_to
from tests.support.federation import eventually
from tests.support.membership import One

Start = Callable[..., One]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as cleanup:

        def make(name: str, level: int = NEWEST) -> One:
            return One(tmp_path / "store.db", name, level, cleanup)

        yield make


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Returns a store with an entry, made before there were levels."""
    path = tmp_path / "store.db"
    store = SqliteStore(path, "la")
    store.commit(Transaction((), (Put(entry_key(1, Kind.LINK, "x"), b"unreadable"),)))
    store.close()
    return path


def level_in(store: Store) -> bytes | None:
    return next((row.value for row in store.read(LEVEL)), None)


def test_who_registers_again_in_a_new_incarnation_keeps_nothing_of_the_one_before(
    start: Start, tmp_path: Path
) -> None:
    one = start("one").join()
    (before,) = tmp_path.glob("store.db-alive-*")
    one.store.seal("being migrated")
    one.store.unseal()
    one.join()
    (after,) = tmp_path.glob("store.db-alive-*")
    assert before != after
    assert one.names() == ["one"]
    assert one.store.remove_expired() == 0


# -- knowing each other -----------------------------------------------------------------------


def test_servers_know_each_other_with_what_each_says_of_itself(start: Start) -> None:
    one, two = start("one").join(), start("two").join()
    assert one.names() == ["one", "two"]
    assert two.names() == ["one", "two"]
    (first, second) = one.members.live()
    assert (list(first.endpoints), first.feature_level) == (["one:1"], NEWEST)
    assert (first.pid, first.host, first.version) == (second.pid, second.host, second.version)
    assert first.pid > 0
    assert first.started_at_ms > 0
    assert set(one.members.endpoints()) == set(two.members.endpoints()) == {"one:1", "two:1"}


def test_a_server_counts_itself_before_it_is_registered(start: Start) -> None:
    one = start("one")
    assert one.names() == ["one"]
    assert one.members.endpoints() == ("one:1",)


def test_shared_endpoints_are_named_once(start: Start) -> None:
    one, two = start("one"), start("two")
    one.at = two.at = ("front:1", "front:2")
    one.join()
    two.join()
    one.see()
    assert one.members.endpoints() == ("front:1", "front:2")


def test_new_endpoints_are_reported_and_listeners_are_called(start: Start) -> None:
    one, two = start("one").join(), start("two").join()
    one.see()
    received = one.reported
    two.at = ("two:9",)
    two.join()
    one.see()
    assert one.reported > received
    assert set(one.members.endpoints()) == {"one:1", "two:9"}
    received = one.reported
    two.join()  # nothing is new
    one.see()
    assert one.reported == received


def test_who_withdraws_is_gone_at_once_and_asks_no_more_for_calls(start: Start) -> None:
    one, two = start("one").join(), start("two").join()
    one.see()
    two.members.stop()
    assert one.names() == ["one"]
    two.see()
    assert two.members.endpoints() == ("one:1",)
    one.members.stop()
    one.see()
    assert one.members.endpoints() == ("one:1",)  # nobody else is there


def test_a_lost_announcement_is_made_again(start: Start) -> None:
    one, two = start("one").join(), start("two")
    held = one.members.announcement
    assert held is not None
    held.delete()  # as the store does when it was away for long
    assert two.names() == ["two"]
    one.join()
    assert two.names() == ["one", "two"]


def test_an_announcement_that_is_gone_from_the_tree_is_made_again_at_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "LASTING_SECONDS", 3600.0)
    one, two = start("one"), start("two").join()
    one.members.start()
    eventually(lambda: two.names() == ["one", "two"])
    held = one.members.announcement
    assert held is not None
    held.delete()
    eventually(lambda: one.members.announcement is not held)
    eventually(lambda: two.names() == ["one", "two"])
    one.members.stop()


def _lose_its_liveness_file(folder: Path, other: One) -> None:
    (file,) = folder.glob("store.db-alive-*")
    file.unlink()
    assert other.store.remove_expired(MEMBER) == 1


def _remove_its_row(_: Path, other: One) -> None:
    other.store.commit(Transaction((), (Delete(member_key("one")),)))


@pytest.mark.parametrize("remove", [_lose_its_liveness_file, _remove_its_row])
def test_a_server_whose_row_was_removed_by_others_registers_again(
    start: Start, tmp_path: Path, remove: Callable[[Path, One], None]
) -> None:
    one, two = start("one").join(), start("two")
    first = one.members.announcement
    one.join()
    assert one.members.announcement is first
    remove(tmp_path, two)
    assert two.names() == ["two"]
    one.see()
    one.join()
    again = one.members.announcement
    assert again is not first
    assert two.store.remove_expired(MEMBER) == 0
    one.join()
    assert one.members.announcement is again
    assert two.names() == ["one", "two"]


def test_the_dead_are_swept_by_the_living(start: Start) -> None:
    one, two = start("one").join(), start("two").join()
    two.die()
    one.members._swept_at = -math.inf
    one.members.refresh()
    assert one.names() == ["one"]


def test_roles_are_shown_at_who_holds_them(start: Start) -> None:
    one, two = start("one").join(), start("two").join()
    assert one.store.elect("reconciler", "one")
    assert one.store.elect("parent-link", "two")
    assert one.store.elect("publisher", "nobody")
    one.see()
    roles = [list(server.roles) for server in one.members.live()]
    assert roles == [["reconciler"], ["parent-link"]]
    assert two.members.live()[0].server == "one"


def test_S21_a_server_whose_record_cannot_be_read_is_there_and_supports_nothing(
    start: Start,
) -> None:
    one = start("one").join()
    one.store.create_ephemeral(member_key("odd"), b"\xff\xff\xff")
    one.see()
    (odd, _) = sorted(one.members.live(), key=lambda server: server.server != "odd")
    assert (odd.server, odd.feature_level, odd.version) == ("odd", 0, "unreadable")


# -- levels -----------------------------------------------------------------------------------


def test_a_new_store_begins_at_the_level_of_the_server_that_makes_it(start: Start) -> None:
    assert level_in(start("one").store) == b"%d" % NEWEST
    assert start("two").join().members.finalized == NEWEST


def test_a_new_store_made_by_a_server_held_back_stays_back(start: Start) -> None:
    assert level_in(start("one", 1).store) == b"1"
    assert level_in(start("two", 2).store) == b"1"


def test_a_store_from_before_levels_is_of_the_first(old: Path, start: Start) -> None:
    one = start("one")
    assert level_in(one.store) is None
    assert one.join().members.finalized == 1


def test_a_server_behind_the_finalized_level_does_not_use_the_store(start: Start) -> None:
    start("one", 2)
    with pytest.raises(
        ServerTooOld, match=r"level 2 is finalized .* this server supports 1: start a newer"
    ):
        start("late", 1)


def test_a_change_is_refused_naming_the_server_until_it_left_and_an_operator_confirmed_it(
    old: Path, start: Start
) -> None:
    new, behind = start("new", 2).join(), start("behind", 1).join()
    new.see()
    record = (Put(large_change_key("c1"), b""),)
    with pytest.raises(LevelNotFinalized, match="server behind supports 1") as refused:
        new.writer.put_facts(record)
    assert refused.value.metadata["lacking"] == "behind"
    with pytest.raises(LevelNotFinalized, match="cannot be finalized: server behind supports 1"):
        new.members.finalize(2)
    done = new.members.finalize()  # as high as all support: nothing to do
    assert (done.level, done.supported, done.revision) == (1, 1, None)

    behind.members.stop()
    new.see()
    with pytest.raises(LevelNotFinalized, match="kdir features finalize"):
        new.writer.put_facts(record)
    reported = new.members.finalize(validate_only=True)
    assert (reported.level, reported.supported, reported.revision) == (1, 2, None)
    assert level_in(new.store) is None

    done = new.members.finalize()
    assert (done.level, done.supported) == (2, 2)
    assert done.revision is not None
    assert [one.server for one in done.members] == ["new"]
    new.writer.put_facts(record)

    # Who was there all the time notices, and does not come back.
    behind.see()
    assert "level 2 is finalized" in behind.members.refused
    with pytest.raises(ServerTooOld):
        behind.members.refresh()
    assert new.members.finalize().revision is None  # twice is once


def test_a_dead_server_does_not_hold_the_level_up(old: Path, start: Start) -> None:
    new, dead = start("new", 2).join(), start("dead", 1).join()
    dead.die()
    assert new.members.finalize().level == 2


@pytest.mark.parametrize(
    ("level", "why"), [(NEWEST + 1, f"supports 1 to {NEWEST}"), (1, "never go down")]
)
def test_levels_that_cannot_be_are_refused(start: Start, level: int, why: str) -> None:
    one = start("one").join()
    with pytest.raises(InvalidArgument, match=why):
        one.members.finalize(level)


def test_S21_while_the_level_cannot_be_read_nothing_new_is_allowed_until_it_is_sent_again(
    start: Start,
) -> None:
    one = start("one").join()
    change = (Put(large_change_key("1"), b"x"),)
    one.writer.put_facts(change)
    one.store.commit(Transaction((), (Put(LEVEL, b"\xff\xfe"),)))
    one.see()
    assert one.members.stored_level is None
    with pytest.raises(LevelNotFinalized, match="cannot be read"):
        one.writer.put_facts(change)
    check_level_at_startup(one.store, levels_up_to(NEWEST))  # it keeps nobody out
    assert [key for key, _ in unreadable(one.replica.snapshot)] == [LEVEL]
    with pytest.raises(InvalidArgument, match="not lower"):
        one.members.finalize(1)
    assert one.members.finalize(validate_only=True).level is None
    assert one.members.finalize().level == NEWEST
    one.see()
    one.writer.put_facts(change)
    assert list(unreadable(one.replica.snapshot)) == []


def test_a_server_that_nobody_announced_is_not_there_for_long(start: Start, old: Path) -> None:
    """Written by hand, it has no process that could end; it held the level up for ever."""
    one = start("one", 2).join()
    one.store.commit(Transaction((), (Put(member_key("odd"), b"\xff\xff"),)))
    one.see()
    assert [key for key, _ in unreadable(one.replica.snapshot)] == [member_key("odd")]
    assert one.members.finalize().level == 2
    assert one.names() == ["one"]


class Meddling:
    """A store in which something happens right before each commit, or each announcement."""

    def __init__(self, store: Store, before: Callable[[], object]) -> None:
        self._store = store
        self._before = before

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def commit(
        self, transaction: Transaction, timeout_seconds: float = 5.0
    ) -> Committed | Conflict:
        self._before()
        return self._store.commit(transaction, timeout_seconds)

    def create_ephemeral(
        self, key: bytes, value: bytes, guards: tuple[Guard, ...] = ()
    ) -> EphemeralKey | Conflict:
        self._before()
        return self._store.create_ephemeral(key, value, guards)


def test_a_server_that_registers_while_the_level_is_raised_prevents_it(
    old: Path, start: Start
) -> None:
    new, late = start("new", 2).join(), start("late", 1)
    new.writer._store = Meddling(new.store, late.members.refresh)  # type: ignore[misc,assignment]
    with pytest.raises(LevelNotFinalized, match="server late supports 1"):
        new.members.finalize(2)
    assert level_in(new.store) is None


def test_a_level_that_is_raised_while_a_server_registers_keeps_it_out(
    old: Path, start: Start
) -> None:
    new, late = start("new", 2).join(), start("late", 1)
    late.members._store = Meddling(late.store, new.members.finalize)  # type: ignore[misc,assignment]
    with pytest.raises(ServerTooOld):
        late.members.refresh()
    assert new.names() == ["new"]


def test_who_never_gets_a_quiet_moment_gets_that_error(old: Path, start: Start) -> None:
    new, other = start("new", 2).join(), start("other", 2).join()
    count = iter(range(1000))

    def change() -> None:
        other.at = (f"other:{next(count)}",)
        other.members.refresh()

    new.writer._store = Meddling(new.store, change)  # type: ignore[misc,assignment]
    with pytest.raises(WriteConflict):
        new.members.finalize()
    assert level_in(new.store) is None


def test_two_that_make_a_store_at_once_agree_on_one_level(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with ExitStack() as cleanup:
        held_back, newest = SqliteStore(path, "la"), SqliteStore(path, "la")
        cleanup.callback(held_back.close)
        cleanup.callback(newest.close)
        meddling = Meddling(held_back, lambda: check_level_at_startup(newest, levels_up_to(2)))
        with pytest.raises(ServerTooOld):
            check_level_at_startup(meddling, levels_up_to(1))  # type: ignore[arg-type]
        assert level_in(held_back) == b"2"


# -- days when the store is away --------------------------------------------------------------


def test_a_store_that_is_away_is_tried_again_until_it_is_back(start: Start, tmp_path: Path) -> None:
    one = start("one")
    path, hidden = tmp_path / "store.db", tmp_path / "hidden.db"
    path.rename(hidden)
    with pytest.raises(StoreUnreachable):
        one.members.refresh()
    one.members.start()
    try:
        hidden.rename(path)
        other = start("other")
        eventually(lambda: other.names() == ["one", "other"])
    finally:
        one.members.stop()
    assert other.names() == ["other"]


def test_S4_raising_the_level_is_refused_at_once_while_the_store_is_away(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = start("one").join()
    monkeypatch.setattr(Replica, "state", ReplicaState.STALE)
    monkeypatch.setattr(one.store, "remove_expired", pytest.fail)
    with pytest.raises(StoreUnavailable) as refused:
        one.members.finalize()
    assert refused.value.metadata["effect"] == "none"


def test_a_member_as_stored_is_the_contract_s_message(start: Start) -> None:
    one = start("one").join()
    (row,) = one.store.read(member_key("one"))
    assert admin_pb2.Member.FromString(row.value).server == "one"
