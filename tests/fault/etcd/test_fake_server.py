"""The watch loop against what a real etcd does not do on demand: lies, silence, refusals."""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pytest

from directory.store.base import CommittedWrites, HistoryCompacted, Put, StoreUnreachable
from directory.store.etcd.member_stream import WatchTimeouts
from directory.store.etcd.watch import EtcdWatch
from directory.store.etcd.watch_state import (
    Follower,
    ReloadRequired,
    Response,
    WatchRefused,
    cancellation_verdict,
)
from tests.fault.etcd.fake_etcd import LAYOUT, FakeEtcd, FakeMembers
from tests.fault.etcd.model import ETCD, INCARNATION, History, identity_value, read_identity, whole
from tests.support.federation import eventually

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

QUICK = WatchTimeouts(
    ask_seconds=0.2, answer_seconds=0.6, silence_seconds=1.5, last_retry_seconds=0.2
)
CALM = WatchTimeouts(answer_seconds=30.0, silence_seconds=60.0)
"""For what depends on no timeout: a machine that is busy for a second is not one either."""


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
def etcd(history: History) -> Iterator[FakeEtcd]:
    with FakeEtcd(history) as fake:
        yield fake


@contextmanager
def watching(
    *fakes: FakeEtcd, after: int = 0, patience: WatchTimeouts = QUICK
) -> Iterator[EtcdWatch]:
    members = FakeMembers(*(fake.endpoint for fake in fakes))
    with over(members, after, fakes[0], patience) as watch:
        yield watch


@contextmanager
def over(
    members: FakeMembers, after: int, fake: FakeEtcd, patience: WatchTimeouts = QUICK
) -> Iterator[EtcdWatch]:
    commit_id = fake.history.head(after).commit_id if after else ""
    follower = Follower(after, commit_id, INCARNATION, read_identity)
    with closing(EtcdWatch(members, LAYOUT, follower, patience=patience)) as watch:
        yield watch


def until(watch: EtcdWatch, revision: int) -> list[CommittedWrites]:
    """Returns what it gives out up to a revision, whatever it raises on the way."""
    seen: list[CommittedWrites] = []
    deadline = time.monotonic() + 30
    while not seen or seen[-1].revision < revision:
        assert time.monotonic() < deadline, f"stuck after {seen[-1:]}"
        try:
            seen += watch.next(0.5)
        except StoreUnreachable:
            continue
    return seen


def commit(fake: FakeEtcd, key: bytes = b"k", value: bytes = b"v") -> int:
    revision = fake.history.commit(Put(key, value)).number
    fake.report()
    return revision


def test_S6_it_follows_and_requires_a_leader(etcd: FakeEtcd) -> None:
    with watching(etcd, patience=CALM) as watch:
        assert list(watch.next(0)) == []
        for number in range(3):
            last = commit(etcd, b"k%d" % number)
            assert until(watch, last) == etcd.history.changes(0)[number:]
        (create,) = etcd.watches
        assert (create.key, create.range_end) == (b"/la/kv/", b"/la/meta0")
        assert etcd.required_leader == [True]
        assert watch.restarts == 0


def test_S10_doubled_old_and_late_events_are_ignored(etcd: FakeEtcd) -> None:
    revisions = [etcd.history.commit(Put(b"k%d" % n, b"")) for n in range(4)]

    def twice(fake: FakeEtcd, start: int) -> Iterator[Response]:
        yield Response(ETCD, fake.history.now, created=True)
        for revision in revisions:
            yield whole(fake.history, [revision])
            yield whole(fake.history, revisions[:1])
            yield whole(fake.history, [revision])
        yield from fake.follow(start)  # and everything once more

    etcd.scripts.append(twice)
    with watching(etcd, after=revisions[0].number) as watch:
        last = commit(etcd, b"more")
        assert until(watch, last) == etcd.history.changes(revisions[0].number)


def test_S10_lost_events_are_noticed_at_the_next_commit_and_asked_for_again(
    etcd: FakeEtcd,
) -> None:
    revisions = [etcd.history.commit(Put(b"k%d" % n, b"")) for n in range(4)]

    def lossy(fake: FakeEtcd, start: int) -> Iterator[Response]:
        yield Response(ETCD, fake.history.now, created=True)
        yield whole(fake.history, [revisions[0], revisions[2], revisions[3]])

    etcd.scripts.append(lossy)
    with watching(etcd, patience=CALM) as watch:
        assert until(watch, revisions[-1].number) == etcd.history.changes(0)
        assert etcd.watches[1].start_revision == revisions[1].number
        assert watch.restarts == 1


def test_S10_events_lost_at_the_end_are_noticed_though_nothing_follows(etcd: FakeEtcd) -> None:
    def lossy(fake: FakeEtcd, start: int) -> Iterator[Response]:
        yield Response(ETCD, fake.history.now, created=True)
        while True:  # alive, and with nothing to say of it
            yield Response(ETCD, fake.history.now)
            time.sleep(0.05)

    etcd.scripts.append(lossy)
    with watching(etcd) as watch:
        last = commit(etcd)
        assert until(watch, last) == etcd.history.changes(0)
        assert len(etcd.watches) == 2


def test_S10_an_etcd_that_lost_events_for_good_is_history_gone(
    etcd: FakeEtcd, caplog: pytest.LogCaptureFixture
) -> None:
    revisions = [etcd.history.commit(Put(b"k%d" % n, b"")) for n in range(3)]

    def lossy(fake: FakeEtcd, start: int) -> Iterator[Response]:
        yield Response(ETCD, fake.history.now, created=True)
        yield whole(fake.history, [one for one in revisions if one is not revisions[1]])

    etcd.scripts += [lossy] * 5
    with watching(etcd) as watch:
        with pytest.raises(HistoryCompacted, match="lost events twice"):
            until(watch, revisions[-1].number)
        assert alarms(caplog) == ["lost events twice"]


def alarms(caplog: pytest.LogCaptureFixture) -> list[str]:
    known = ("lost events twice", "snapshot was restored", "cluster", "another commit")
    output = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    return [next(arguments for arguments in known if arguments in text) for text in output]


def test_S10_a_lower_revision_is_history_gone_and_an_alarm(
    etcd: FakeEtcd, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(5):
        history.commit(Put(b"k", b"%d" % n))
    with watching(etcd) as watch:
        until(watch, history.now)
        restored = History()
        restored.commit(Put(b"k", b"0"))
        etcd.history = restored
        etcd.drop_watches()
        with pytest.raises(HistoryCompacted, match="older snapshot"):
            until(watch, history.now + 1)
        assert alarms(caplog) == ["snapshot was restored"]
        with pytest.raises(HistoryCompacted):
            watch.next(0)


def test_S10_a_lower_revision_on_an_open_stream_is_history_gone_too(
    etcd: FakeEtcd, history: History
) -> None:
    for n in range(5):
        history.commit(Put(b"k", b"%d" % n))
    with watching(etcd) as watch:
        until(watch, history.now)
        etcd.history = History()  # nothing breaks, and nothing more is sent
        with pytest.raises(HistoryCompacted, match="older snapshot"):
            until(watch, history.now + 1)


def test_S10_a_member_that_lags_is_no_restored_one(etcd: FakeEtcd, history: History) -> None:
    for n in range(3):
        history.commit(Put(b"k", b"%d" % n))

    def lagging(fake: FakeEtcd, start: int) -> Iterator[Response]:
        yield Response(ETCD, history.now - 2, created=True)

    with watching(etcd) as watch:
        until(watch, history.now)
        etcd.scripts.append(lagging)
        etcd.drop_watches()
        eventually(lambda: watch.next(0.1) == () and len(etcd.watches) == 3)
        last = commit(etcd)
        assert [change.revision for change in until(watch, last)] == [last]


def test_S10_another_etcd_cluster_is_history_gone_and_an_alarm(
    etcd: FakeEtcd, caplog: pytest.LogCaptureFixture
) -> None:
    with watching(etcd) as watch:
        until(watch, commit(etcd))
        etcd.etcd_cluster = ETCD + 1
        etcd.drop_watches()
        with pytest.raises(HistoryCompacted, match="cluster"):
            until(watch, etcd.history.now + 1)
        assert alarms(caplog) == ["cluster"]


def test_S11_a_store_that_went_back_and_on_is_history_gone(
    etcd: FakeEtcd, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(5):
        history.commit(Put(b"k", b"%d" % n))
    with watching(etcd) as watch:
        until(watch, history.now)
        restored = History()
        restored.commit(Put(b"k", b"0"))
        restored.commits = 50
        for n in range(9):
            restored.commit(Put(b"k", b"%d" % n))
        etcd.history = restored
        etcd.drop_watches()
        with pytest.raises(HistoryCompacted, match="another commit"):
            until(watch, restored.now)
        assert alarms(caplog) == ["another commit"]


def test_S12_progress_ahead_of_its_events_does_not_skip_them(etcd: FakeEtcd) -> None:
    first = etcd.history.commit(Put(b"a", b""))
    second = etcd.history.commit(Put(b"b", b""))

    def hasty(fake: FakeEtcd, start: int) -> Iterator[Response]:
        yield Response(ETCD, fake.history.now, created=True)
        yield whole(fake.history, [first])
        yield Response(ETCD, second.number + 7)  # "all up to here was sent", and it was not
        fake.drop_watches()

    etcd.scripts.append(hasty)
    with watching(etcd) as watch:
        assert until(watch, second.number) == etcd.history.changes(0)
        assert etcd.watches[1].start_revision <= second.number


def test_S12_what_only_others_wrote_may_be_compacted(etcd: FakeEtcd) -> None:
    with watching(etcd) as watch:
        until(watch, commit(etcd))
        for _ in range(20):
            etcd.history.foreign()
        reads = etcd.reads
        eventually(lambda: watch.next(0.05) == () and etcd.reads >= reads + 2)
        etcd.compacted = etcd.history.now - 1
        etcd.drop_watches()
        last = commit(etcd)
        assert [change.revision for change in until(watch, last)] == [last]


def test_S2_what_is_compacted_while_disconnected_is_history_gone(etcd: FakeEtcd) -> None:
    with watching(etcd) as watch:
        until(watch, commit(etcd))
        etcd.silent.set()
        etcd.drop_watches()
        for _ in range(3):
            commit(etcd)
        etcd.compacted = etcd.history.now - 1
        etcd.silent.clear()
        with pytest.raises(HistoryCompacted, match="is not kept"):
            until(watch, etcd.history.now)


@pytest.mark.parametrize("compacted_at", ["read", "watch"])
def test_S2_compacted_between_looking_and_watching(etcd: FakeEtcd, compacted_at: str) -> None:
    with watching(etcd) as watch:
        for _ in range(3):
            commit(etcd)
        etcd.compacted = etcd.history.now - (1 if compacted_at == "watch" else 0)
        with pytest.raises(HistoryCompacted):
            watch.next(5)


def test_S13_created_and_canceled_in_one_response_logs_in_again(etcd: FakeEtcd) -> None:
    def expired(fake: FakeEtcd, start: int) -> Iterator[Response]:
        yield Response(
            ETCD,
            fake.history.now,
            created=True,
            canceled=True,
            reason="etcdserver: invalid auth token",
        )

    etcd.scripts.append(expired)
    members = FakeMembers(etcd.endpoint)
    members.tokens = ["first", "second", "third"]
    with over(members, 0, etcd) as watch:
        last = commit(etcd)
        assert until(watch, last) == etcd.history.changes(0)
        assert members.logins == 2
        assert members.token == "second"


@pytest.mark.parametrize(
    ("reason", "login"),
    [
        ("etcdserver: invalid auth token", True),
        ("etcdserver: revision of auth store is old", True),
        ("etcdserver: user name is empty", True),
        ("etcdserver: permission denied", False),
        ("", False),
    ],
)
def test_S13_S14_refused_with_a_reason(reason: str, login: bool) -> None:
    for created in (True, False):
        response = Response(ETCD, 2, created=created, canceled=True, reason=reason)
        verdict = cancellation_verdict(response, 1)
        assert isinstance(verdict, WatchRefused)
        assert verdict.login is login
        assert reason in verdict.reason
        assert verdict.reason


def test_S2_canceled_for_a_compaction_is_gone() -> None:
    verdict = cancellation_verdict(Response(ETCD, 9, canceled=True, compacted=6), 4)
    assert isinstance(verdict, ReloadRequired)


def test_S15_a_token_that_expired_is_replaced_without_anybody_noticing(etcd: FakeEtcd) -> None:
    members = FakeMembers(etcd.endpoint)
    members.tokens = ["first", "second", "third"]
    etcd.token = "first"
    with over(members, 0, etcd) as watch:
        until(watch, commit(etcd))
        etcd.token = "second"  # the stream goes on in etcd, the next question is refused
        eventually(lambda: watch.next(0.1) == () and members.logins == 2)
        assert until(watch, commit(etcd))[-1].revision == etcd.history.now


def test_S14_canceled_without_a_compaction_is_reported_and_tried_on(etcd: FakeEtcd) -> None:
    def revoked(fake: FakeEtcd, start: int) -> Iterator[Response]:
        yield Response(ETCD, fake.history.now, created=True)
        yield Response(
            ETCD, fake.history.now, canceled=True, reason="etcdserver: permission denied"
        )

    with watching(etcd) as watch:
        until(watch, commit(etcd))
        etcd.scripts += [revoked] * 1_000
        etcd.drop_watches()
        reported = eventually(lambda: away(watch))
        assert "permission denied" in reported
        etcd.scripts.clear()
        last = commit(etcd)
        assert until(watch, last)[-1].revision == last


def away(watch: EtcdWatch) -> str:
    """Returns what it says of being away; empty while it is not."""
    try:
        watch.next(0.3)
    except StoreUnreachable as reason:
        return str(reason)
    return ""


def test_S14_a_right_that_is_revoked_under_an_open_stream_is_noticed(etcd: FakeEtcd) -> None:
    with watching(etcd) as watch:
        until(watch, commit(etcd))
        etcd.denied = "etcdserver: permission denied"
        assert "permission denied" in eventually(lambda: away(watch))
        etcd.denied = ""
        last = commit(etcd)
        assert until(watch, last)[-1].revision == last


def test_S3_a_member_that_is_silent_is_left_for_another(history: History) -> None:
    with FakeEtcd(history) as one, FakeEtcd(history) as two, watching(one, two) as watch:
        until(watch, commit(one))
        followed, other = (one, two) if one.watches else (two, one)
        followed.silent.set()  # reads have no answer; the stream is open and silent
        history.commit(Put(b"unseen", b""))
        seen: list[CommittedWrites] = []
        while not seen:
            seen += watch.next(0.2)  # nobody is told of it: StoreUnreachable would be raised here
        assert seen == history.changes(0)[1:]
        assert other.watches
        assert watch.restarts >= 1


def test_S3_a_stream_that_sends_nothing_while_reads_are_answered(history: History) -> None:
    def mute(fake: FakeEtcd, start: int) -> Iterator[Response]:
        yield Response(ETCD, fake.history.now, created=True)

    with FakeEtcd(history) as one, FakeEtcd(history) as two:
        one.scripts.append(mute)
        two.scripts.append(mute)
        with watching(one, two) as watch:
            assert watch.next(0.1) == ()
            last = commit(one)
            assert until(watch, last)[-1].revision == last


def test_S4_all_members_silent_is_the_store_away_and_then_back(history: History) -> None:
    with FakeEtcd(history) as one, FakeEtcd(history) as two, watching(one, two) as watch:
        until(watch, commit(one))
        one.silent.set()
        two.silent.set()
        assert eventually(lambda: away(watch))
        with pytest.raises(StoreUnreachable):
            watch.next(0)
        one.silent.clear()
        two.silent.clear()
        eventually(lambda: not away(watch))
        last = commit(one)
        assert until(watch, last)[-1].revision == last


def test_S4_no_member_there_is_reported_soon_and_costs_little(history: History) -> None:
    with ExitStack() as stack:
        one, two = stack.enter_context(FakeEtcd(history)), stack.enter_context(FakeEtcd(history))
        members = FakeMembers(one.endpoint, two.endpoint)
        watch = stack.enter_context(over(members, 0, one))
        until(watch, commit(one))
        one.stop()
        two.stop()
        eventually(lambda: away(watch))
        before = time.thread_time()
        dials = len(members.dials)
        begin = time.monotonic()
        while time.monotonic() < begin + 2:
            away(watch)
        # Rounds of two members, at most 0.1 s apart once it has slowed down.
        assert len(members.dials) - dials <= 2 * 2 / 0.1 + 4
        assert time.thread_time() - before < 1.0


def test_what_a_member_says_again_and_again_is_logged_once(
    history: History, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "directory.store.etcd.watch")
    with ExitStack() as stack:
        fake = stack.enter_context(FakeEtcd(history))
        members = FakeMembers(fake.endpoint)
        watch = stack.enter_context(over(members, 0, fake))
        until(watch, commit(fake))
        fake.stop()
        eventually(lambda: away(watch))
        dials = len(members.dials)
        eventually(lambda: away(watch) and len(members.dials) > dials + 10)
    output = [one.getMessage() for one in caplog.records]
    assert output
    # It was tried more often than that; what is said may change once or twice as it goes down.
    assert len(output) <= 5


def test_S8_fragments_are_merged_and_a_stream_cut_between_them_is_resumed(
    etcd: FakeEtcd, history: History
) -> None:
    big = history.commit(*(Put(b"k%d" % n, b"x" * 100) for n in range(50)))
    later = history.commit(Put(b"l", b""))

    def cut(fake: FakeEtcd, start: int) -> Iterator[Response]:
        yield Response(ETCD, fake.history.now, created=True)
        yield replace(whole(history, [big]), events=big.events[:20], fragment=True)
        fake.drop_watches()

    def parts(fake: FakeEtcd, start: int) -> Iterator[Response]:
        yield Response(ETCD, fake.history.now, created=True)
        events = (*big.events, *later.events)
        for begin in range(0, len(events), 7):
            last = begin + 7 >= len(events)
            yield replace(whole(history, ()), events=events[begin : begin + 7], fragment=not last)

    etcd.scripts += [cut, parts]
    with watching(etcd) as watch:
        assert until(watch, later.number) == history.changes(0)


def test_S8_what_is_larger_than_a_message_may_be_comes_in_fragments(
    etcd: FakeEtcd, history: History
) -> None:
    for n in range(3):
        history.commit(*(Put(b"%d/%d" % (n, i), b"x" * 1_000) for i in range(70)))
    members = FakeMembers(etcd.endpoint)
    members.most_bytes = 100_000
    with over(members, 0, etcd) as watch:
        assert until(watch, history.now) == history.changes(0)
        assert [create.fragment for create in etcd.watches] == [False, True]


def test_S8_a_backlog_that_takes_long_is_waited_for_longer_each_time(
    etcd: FakeEtcd, history: History
) -> None:
    history.commit(Put(b"k", b""))

    def slow(fake: FakeEtcd, start: int) -> Iterator[Response]:
        yield Response(ETCD, fake.history.now, created=True)
        time.sleep(3.5 * QUICK.answer_seconds)
        yield from fake.follow(start)

    etcd.scripts += [slow] * 9
    with watching(etcd) as watch:
        assert until(watch, history.now) == history.changes(0)
        assert 1 <= watch.restarts < 9


def test_a_seal_is_reported_and_a_new_incarnation_is_history_gone(etcd: FakeEtcd) -> None:
    with watching(etcd) as watch:
        until(watch, commit(etcd))
        etcd.history.commit(identity=identity_value(sealed="moved to x"))
        etcd.report()
        until(watch, etcd.history.now)
        assert watch.follower.identity.sealed == "moved to x"
        etcd.history.commit(identity=identity_value("life-2"))
        etcd.report()
        with pytest.raises(HistoryCompacted, match="new incarnation"):
            until(watch, etcd.history.now)


def test_S16_a_follower_that_is_slow_makes_etcd_wait_and_loses_nothing(etcd: FakeEtcd) -> None:
    sent = 0

    def flood(fake: FakeEtcd, start: int) -> Iterator[Response]:
        nonlocal sent
        yield Response(ETCD, fake.history.now, created=True)
        for revision in fake.history.after(start - 1):
            yield whole(fake.history, [revision])
            sent += 1

    etcd.scripts.append(flood)
    for n in range(300):
        etcd.history.commit(*(Put(b"%d/%d" % (n, i), b"x" * 10_000) for i in range(20)))
    with watching(etcd) as watch:
        seen = list(watch.next(5))
        time.sleep(1.5)  # far longer than it would wait for an answer
        assert sent < 300  # 60 MB were not read ahead
        assert 0 < watch.unread_bytes < 20_000_000
        seen += until(watch, etcd.history.now)
        assert seen == etcd.history.changes(0)
        assert watch.restarts == 0


def names() -> Sequence[str]:
    return [one.name for one in threading.enumerate() if one.name == "etcd-watch"]


def test_closing_ends_a_waiting_next_and_leaves_no_thread(etcd: FakeEtcd) -> None:
    for _ in range(10):
        close_while_waiting(etcd)
        eventually(lambda: not names())


def close_while_waiting(etcd: FakeEtcd) -> None:
    with watching(etcd) as watch:
        answers: list[object] = []
        thread = threading.Thread(target=lambda: answers.append(list(watch.next(60))))
        thread.start()
        eventually(lambda: watch.followed_endpoint)
        watch.close()
        thread.join(30)
        assert answers == [[]]
        assert list(watch.next(0)) == []


def test_restarts_leave_no_thread_behind(etcd: FakeEtcd) -> None:
    with watching(etcd) as watch:
        for _ in range(20):
            etcd.drop_watches()
            until(watch, commit(etcd))
        eventually(lambda: len(names()) <= 1)
    eventually(lambda: not names())


def test_a_store_that_is_away_at_first_is_followed_when_it_comes(history: History) -> None:
    with ExitStack() as stack:
        fake = stack.enter_context(FakeEtcd(history))
        fake.silent.set()
        watch = stack.enter_context(watching(fake))
        eventually(lambda: away(watch))
        fake.silent.clear()
        last = commit(fake)
        assert until(watch, last)[-1].revision == last
