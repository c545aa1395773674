"""What ends without a commit is true of the store, whatever this server's replica has not seen."""

from collections.abc import Callable, Iterator

import pytest

from directory.access.grants import Grant, Operation, Permission, ResourceType
from directory.namespace.command import (
    AddGrants,
    Command,
    CreateDirectory,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    RemoveGrants,
    UpdateEntry,
)
from directory.namespace.keys import REQUEST
from directory.namespace.snapshot import Snapshot
from directory.store.base import Delete, Guard, KeyEquals, Put, StoreUnreachable, Transaction
from directory.store.writer import CommitResult
from resolver.errors import (
    Absent,
    AlreadyExists,
    DeadlineExceeded,
    InvalidNamespace,
    PermissionDenied,
    RequestIdReused,
    StoreUnavailable,
    WriteConflict,
)
from tests.unit.store.scripted_store import ScriptedStore
from tests.unit.writing.bench import Bench, eventually, path
from tests.unit.writing.lagging import LaggingStore

READ = Grant("User:ana", "*", Operation.READ, Permission.ALLOW, ResourceType.TOPIC, "")
FACT = b"f/test"


class Pair:
    """Two servers of one store; the replica of ``behind`` lags where a test says so."""

    def __init__(self, store: ScriptedStore, ahead: Bench, behind: Bench, lag: LaggingStore):
        self.store = store
        self.ahead = ahead
        self.behind = behind
        self._lag = lag

    def fall_behind(self, *, for_good: bool = False) -> None:
        """Makes ``behind`` receive nothing until the store answers it; or until ``let_go``."""
        newest = self.store.newest_revision()
        eventually(lambda: self.behind.replica.reported_revision == newest)
        self._lag.holds_on = for_good
        self._lag.hold()

    def let_go(self) -> None:
        self._lag.let_go()

    def do(self, bench: Bench, command: Command, **keywords: object) -> CommitResult:
        return bench.writer.commit_command(command, timeout_seconds=30, **keywords)  # type: ignore[arg-type]

    def owner(self, text: str) -> str | None:
        """Returns the owner in the tree of the server that does not lag."""
        snapshot = self.ahead.replica.snapshot
        directory_id = snapshot.find_directory(path(text).segments[1:])
        assert directory_id is not None
        node = snapshot.nodes.get(directory_id)
        assert node is not None
        return node.directory.policies.owner


@pytest.fixture
def pair(store: ScriptedStore) -> Iterator[Pair]:
    lag = LaggingStore(store)
    with Bench(store) as ahead, Bench(lag) as behind:
        pair = Pair(store, ahead, behind, lag)
        yield pair
        pair.let_go()


def _owner(text: str, owner: str) -> UpdateEntry:
    return UpdateEntry(path=path(text), changes={"policies.owner": owner})


# -- nothing to change, by a replica that is behind -----------------------------------------------


def test_a_grant_of_another_server_is_revoked_where_it_was_not_seen_yet(pair: Pair) -> None:
    pair.ahead.mkdir("/la/a")
    pair.fall_behind()
    pair.do(pair.ahead, AddGrants(path=path("/la/a"), grants=(READ,)))
    revoked = pair.do(pair.behind, RemoveGrants(path=path("/la/a"), grants=(READ,)))
    assert revoked.plan.grants_changed == (READ,)
    again = pair.do(pair.ahead, RemoveGrants(path=path("/la/a"), grants=(READ,)))
    assert again.plan.grants_changed == ()
    assert again.plan.grants == ()


def test_a_value_that_was_seen_before_is_set_back(pair: Pair) -> None:
    pair.ahead.mkdir("/la/a")
    pair.do(pair.ahead, _owner("/la/a", "x"))
    pair.fall_behind()
    pair.do(pair.ahead, _owner("/la/a", "y"))
    pair.do(pair.behind, _owner("/la/a", "x"))
    eventually(lambda: pair.owner("/la/a") == "x")


def test_what_is_only_planned_is_planned_on_what_the_store_holds(pair: Pair) -> None:
    pair.ahead.mkdir("/la/a")
    pair.fall_behind()
    changed = pair.do(pair.ahead, _owner("/la/a", "y"))
    planned = pair.do(pair.behind, _owner("/la/a", "y"), validate_only=True)
    assert planned.plan.writes == ()
    assert planned.revision >= changed.revision


# -- refused, by a replica that is behind ---------------------------------------------------------


def test_what_became_possible_at_another_server_is_not_refused(pair: Pair) -> None:
    pair.fall_behind()
    pair.ahead.mkdir("/la/a")
    pair.behind.mkdir("/la/a/b")
    pair.fall_behind()
    pair.do(pair.ahead, DeleteEntry(path=path("/la/a"), recursive=True))
    pair.do(pair.behind, CreateDirectory(path=path("/la/a")))
    pair.fall_behind()
    pair.ahead.create("/la/a/t")
    moved = MoveEntry(path=path("/la/a/t"), new_path=path("/la/a/u"))
    assert pair.do(pair.behind, moved).plan.path == path("/la/a/u")


def test_a_refusal_of_authorization_is_confirmed_too(pair: Pair) -> None:
    """The right was given at another server, a moment ago."""
    pair.ahead.mkdir("/la/a")
    pair.fall_behind()
    asked: list[int] = []

    def authorize(snapshot: Snapshot) -> tuple[Guard, ...]:
        asked.append(snapshot.revision)
        if snapshot.fact(b"f/allowed") is None:
            raise PermissionDenied("not you")
        return ()

    allowed = pair.ahead.writer.put_facts((Put(b"f/allowed", b"1"),))
    pair.do(pair.behind, _owner("/la/a", "x"), authorize=authorize)
    assert asked[0] < allowed <= asked[-1]


def test_a_true_refusal_stays_and_costs_one_question(pair: Pair) -> None:
    pair.ahead.mkdir("/la/a")
    before = pair.store.newest_reads
    with pytest.raises(AlreadyExists):
        pair.do(pair.ahead, CreateDirectory(path=path("/la/a")))
    with pytest.raises(InvalidNamespace):
        pair.ahead.create("/la/nowhere/t")
    assert pair.store.newest_reads == before + 2


def test_a_change_asks_for_nothing_more(pair: Pair) -> None:
    before = pair.store.newest_reads
    pair.ahead.mkdir("/la/a", request_id="1")
    pair.do(pair.ahead, _owner("/la/a", "x"), request_id="2")
    pair.do(pair.ahead, DeleteEntry(path=path("/la/a")), request_id="3")
    assert pair.store.newest_reads == before


def test_a_lost_race_says_what_the_store_holds(pair: Pair) -> None:
    """The answer to the commit that collided has the newest revision in it."""
    pair.ahead.mkdir("/la/a")
    pair.fall_behind()
    pair.do(pair.ahead, _owner("/la/a", "y"))
    before = pair.store.newest_reads
    written = pair.do(pair.behind, _owner("/la/a", "y"))
    assert written.plan.writes == ()
    assert pair.store.newest_reads == before


# -- when the store cannot be asked ---------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [CreateTopic(path=path("/la/a/b/t")), _owner("/la/a", "x"), DeleteEntry(path=path("/la/b"))],
    ids=["refused", "no change", "absent"],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_what_nobody_can_confirm_is_neither_refused_nor_done(
    pair: Pair, command: Command, validate_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.ahead.mkdir("/la/a")
    pair.do(pair.ahead, _owner("/la/a", "x"))

    def away(_: float = 5.0) -> int:
        raise StoreUnreachable("scripted")

    monkeypatch.setattr(pair.store, "newest_revision", away)
    with pytest.raises(StoreUnavailable, match="nothing was written") as caught:
        pair.do(pair.ahead, command, validate_only=validate_only)
    assert caught.value.metadata["effect"] == "none"


def test_the_deadline_bounds_how_long_it_is_waited_for(pair: Pair) -> None:
    pair.fall_behind(for_good=True)
    pair.ahead.mkdir("/la/a")
    with pytest.raises(DeadlineExceeded, match="nothing was written"):
        pair.behind.create("/la/a/t", timeout_seconds=0.2)
    pair.let_go()
    pair.behind.create("/la/a/t")


# -- facts, and what decides about them -----------------------------------------------------------


def _toggle(bench: Bench) -> Callable[[], bool]:
    """Sets a fact, or removes it; whether there was anything to do."""

    def attempt() -> bool:
        found = bench.replica.snapshot.fact(FACT)
        if found is None:
            return False
        bench.writer.put_facts((Delete(FACT),), (KeyEquals(FACT, found),))
        return True

    return attempt


def test_what_decides_about_facts_is_confirmed_by_the_same_rule(pair: Pair) -> None:
    pair.fall_behind()
    pair.ahead.writer.put_facts((Put(FACT, b"1"),))
    assert pair.behind.writer.decide(_toggle(pair.behind), 30)
    assert pair.store.read(FACT) == []


def test_a_guard_that_a_newer_tree_would_not_have_made_is_no_answer(pair: Pair) -> None:
    pair.ahead.writer.put_facts((Put(FACT, b"1"),))
    pair.fall_behind()
    pair.ahead.writer.put_facts((Put(FACT, b"2"),))
    assert pair.behind.writer.decide(_toggle(pair.behind), 30)
    assert pair.store.read(FACT) == []


def test_an_attempt_that_wrote_is_not_made_again(pair: Pair) -> None:
    made: list[int] = []

    def attempt() -> None:
        made.append(pair.behind.writer.put_facts((Put(FACT, b"1"),)))
        raise WriteConflict("after all")

    pair.fall_behind()
    pair.ahead.mkdir("/la/a")
    with pytest.raises(WriteConflict, match="after all"):
        pair.behind.writer.decide(attempt, 30)
    assert len(made) == 1


def test_what_is_checked_before_a_command_is_part_of_its_decision(pair: Pair) -> None:
    pair.fall_behind()
    pair.ahead.mkdir("/la/a")

    def attempt() -> CommitResult:
        if "a" not in pair.behind.names():
            raise Absent("the handler does not find it")
        return pair.behind.create("/la/a/t")

    assert pair.behind.writer.decide(attempt, 30).plan.path == path("/la/a/t")


# -- requests that changed nothing ----------------------------------------------------------------


def test_a_request_that_changed_nothing_is_not_made_again(pair: Pair) -> None:
    pair.ahead.mkdir("/la/a")
    pair.do(pair.ahead, _owner("/la/a", "x"))
    first = pair.do(pair.ahead, _owner("/la/a", "x"), request_id="1")
    assert not first.plan.writes
    pair.do(pair.behind, _owner("/la/a", "y"), request_id="2")
    again = pair.do(pair.behind, _owner("/la/a", "x"), request_id="1")
    assert again.repeated
    assert (again.plan.entry, again.revision) == (first.plan.entry, first.revision)
    eventually(lambda: pair.owner("/la/a") == "y")
    with pytest.raises(RequestIdReused):
        pair.do(pair.ahead, _owner("/la/a", "z"), request_id="1")


def test_a_deny_that_came_since_is_not_revoked_by_an_old_request(pair: Pair) -> None:
    pair.ahead.mkdir("/la/a")
    deny = Grant("User:ana", "*", Operation.READ, Permission.DENY, ResourceType.TOPIC, "")
    revoke = RemoveGrants(path=path("/la/a"), grants=(deny,))
    pair.do(pair.ahead, revoke, request_id="1")
    pair.do(pair.ahead, AddGrants(path=path("/la/a"), grants=(deny,)), request_id="2")
    assert pair.do(pair.ahead, revoke, request_id="1").repeated
    kept = pair.do(pair.ahead, AddGrants(path=path("/la/a"), grants=(READ,)))
    assert deny in kept.plan.grants


def test_it_is_kept_in_a_transaction_of_its_own(pair: Pair) -> None:
    pair.ahead.mkdir("/la/a")
    pair.do(pair.ahead, _owner("/la/a", "x"))
    commits: list[Transaction] = []
    pair.store.after_commit = commits.append
    pair.do(pair.ahead, _owner("/la/a", "x"), request_id="1")
    (only,) = commits
    (write,) = only.writes
    assert write.key.startswith(REQUEST)
    assert only.guards == (KeyEquals(write.key, None),)


def test_what_was_refused_is_not_kept(pair: Pair) -> None:
    with pytest.raises(InvalidNamespace):
        pair.do(pair.ahead, CreateTopic(path=path("/la/a/t")), request_id="1")
    pair.ahead.mkdir("/la/a")
    assert not pair.do(pair.ahead, CreateTopic(path=path("/la/a/t")), request_id="1").repeated


# -- grants, repeated -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", [AddGrants, RemoveGrants])
@pytest.mark.parametrize("there", [True, False])
def test_a_repeated_change_of_grants_is_answered_with_the_same_grants(
    pair: Pair, command: type[AddGrants | RemoveGrants], there: bool
) -> None:
    pair.ahead.mkdir("/la/a")
    other = Grant("User:bo", "10.0.0.1", Operation.ALL, Permission.DENY, ResourceType.GROUP, "g*")
    pair.do(pair.ahead, AddGrants(path=path("/la/a"), grants=(READ, other) if there else (other,)))
    change = command(path=path("/la/a"), grants=(READ,))
    first = pair.do(pair.ahead, change, request_id="1")
    again = pair.do(pair.behind, change, request_id="1")
    assert again.repeated
    assert again.plan.grants == first.plan.grants
    assert again.plan.grants_changed == first.plan.grants_changed
    assert other in again.plan.grants


def test_a_repeated_change_of_grants_shows_nothing_to_who_may_not_see_them_any_more(
    pair: Pair,
) -> None:
    pair.ahead.mkdir("/la/a")
    change = AddGrants(path=path("/la/a"), grants=(READ,))
    pair.do(pair.ahead, change, request_id="1")
    pair.fall_behind()
    pair.ahead.writer.put_facts((Put(b"f/shut", b"1"),))

    def authorize(snapshot: Snapshot) -> tuple[Guard, ...]:
        if snapshot.fact(b"f/shut") is not None:
            raise PermissionDenied("not you")
        return ()

    for bench in (pair.behind, pair.ahead):  # also where the right still seems to be there
        again = pair.do(bench, change, request_id="1", authorize=authorize)
        assert again.repeated
        assert (again.plan.grants, again.plan.grants_changed) == ((), ())
        assert again.plan.entry is None


# -- which entry is meant -------------------------------------------------------------------------


def test_where_no_kind_is_named_the_topic_is_meant_that_another_server_just_made(
    pair: Pair,
) -> None:
    """By the replica it would be the directory beside it: nothing of what it read has changed."""
    pair.ahead.mkdir("/la/a")
    pair.fall_behind()
    pair.ahead.create("/la/a")
    removed = pair.do(pair.behind, DeleteEntry(path=path("/la/a")))
    assert (removed.plan.topic_count, removed.plan.directory_count) == (1, 0)
    assert pair.owner("/la/a") is None, "the directory stands"
