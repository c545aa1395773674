"""Pushing ACLs, against a Kafka in memory: in which order, what waits, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import Any

import pytest
from kdir.v1 import federation_pb2

from directory.federation import inheritance, parent_state
from directory.kafka.admin_contract import (
    CLOSED,
    AclBinding,
    KafkaMetadata,
    ObservedAcls,
    Outcome,
    OutcomeUnknown,
    Rejected,
    Still,
    TopicToCreate,
    always,
)
from directory.kafka.applying.last_applied import (
    ACL_BASIS,
    ACL_ROWS,
    ArmedRecord,
    acl_counts,
    armed_records,
    load_armed_record,
)
from directory.kafka.arming.drift import acl_state, acl_states_below
from directory.namespace.command import DeleteEntry, MoveEntry, UpdateEntry
from directory.namespace.entry import ROOT_ID, Kind
from directory.namespace.keys import entry_key, grants_key
from directory.store.base import Delete, Put
from directory.wire.grant_messages import grant_to_proto
from resolver.errors import (
    EtagMismatch,
    KafkaRejected,
    KafkaUnavailable,
    LimitExceeded,
    NotReady,
)
from resolver.path import Path
from tests.support.acls import FakeAcls, arm, disarm, grant, grant_of, on, plan, planned, revoke
from tests.support.large_trees import FakeKafka
from tests.support.reconciler import MOUNT, Chance, World, begin_arming, unlucky, world

SPOILED = b"\xff\xff"
CEILING = frozenset({"create", "delete", "acls"})


class Kafka(FakeAcls, FakeKafka):
    """Both halves; topics that are made stand among what was asked."""

    def __init__(self, *names: str) -> None:
        FakeAcls.__init__(self)
        FakeKafka.__init__(self, *names)
        self.refuses = ""
        self.before_look: Callable[[], object] = lambda: None
        self.away = False
        self.order: list[str] = []
        self.behind: set[AclBinding] | None = None
        """What the broker that is asked shows, where it is behind."""

    def cluster_id(self) -> str:
        if self.away:
            raise KafkaUnavailable("nobody answers")
        return super().cluster_id()

    def acls(self) -> ObservedAcls:
        self.before_look()
        if self.refuses:
            raise KafkaRejected(self.refuses)
        if self.behind is not None:
            return ObservedAcls(frozenset(self.behind), len(self.behind), self.open_to_all)
        return super().acls()

    def add_acls(
        self, bindings: Sequence[AclBinding], still: Still = always
    ) -> Mapping[AclBinding, Outcome]:
        self.order += [f"+ {one}" for one in bindings]
        return super().add_acls(bindings, still)

    def remove_acls(
        self, bindings: Sequence[AclBinding], still: Still = always
    ) -> Mapping[AclBinding, Outcome]:
        self.order += [f"- {one}" for one in bindings]
        return super().remove_acls(bindings, still)

    def create(
        self, desired_set: Sequence[TopicToCreate], still: Still = always
    ) -> Mapping[str, Outcome]:
        self.order += [f"create {one.name}" for one in desired_set]
        return super().create(desired_set, still)

    def delete(self, names: Sequence[str], still: Still = always) -> Mapping[str, Outcome]:
        self.order += [f"delete {one}" for one in names]
        return super().delete(names, still)


@pytest.fixture
def kafka() -> Kafka:
    return Kafka("search.clicks", "search.views", "other.clicks")


@pytest.fixture
def here(kafka: Kafka, tmp_path: FilePath) -> Iterator[World]:
    with started(tmp_path, kafka) as made:
        yield made


@contextmanager
def started(folder: FilePath, kafka: Kafka, **settings: Any) -> Iterator[World]:
    """Runs a server that has read Kafka once."""
    merged = {"ceiling": CEILING, "split_on": ".", **settings}
    with world(folder / "store.db", lambda: kafka, **merged) as made:
        made.sweep()
        yield made


def before_the_next(kafka: Kafka, method: str, happens: Callable[[], object]) -> None:
    """Has something happen right before the next request, after Kafka was looked at."""
    real = getattr(kafka, method)

    def request(*arguments: Any) -> Any:
        setattr(kafka, method, real)
        happens()
        return real(*arguments)

    setattr(kafka, method, request)


def test_what_was_decided_on_another_basis_is_decided_again(here: World, kafka: Kafka) -> None:
    inherit(here)
    arm(here)
    before_the_next(kafka, "add_acls", lambda: inherit(here, incarnation="two"))
    grant(here, "search", "allow User:a READ")
    here.reconciler.run_once()
    assert not kafka.asked
    here.remove("search/views")
    before_the_next(kafka, "delete", lambda: inherit(here, incarnation="three"))
    here.reconciler.run_once()
    assert "search.views" in kafka.topics
    here.settle()
    assert "search.views" not in kafka.topics


def test_an_arming_counts_what_kafka_acknowledged_whatever_call_fails(tmp_path: FilePath) -> None:
    """Each call that follows an arming, to the store and to Kafka, one after the other."""
    for number in range(1, 100):
        kafka, chance = Kafka("search.clicks"), Chance()
        with unlucky(
            tmp_path / f"{number}.db", kafka, chance, "acls", "add_acls", ceiling=CEILING
        ) as here:
            here.sweep()
            grant(here, "search", "allow User:a READ")
            grant(here, "search", "deny User:b READ")
            begin_arming(here, aspect="acls")
            chance.left = number
            here.settle(1_000)
            missed, chance.left = chance.left > 0, -1
            here.settle(1_000)
            mark = load_armed_record(here.replica.snapshot, "acls", ROOT_ID)
            assert mark is not None
            assert (mark.pending, mark.made) == (False, len(kafka.order)), number
        if missed:
            assert number > 5
            return
    raise AssertionError("there are more calls than were tried")


@pytest.mark.parametrize("refused", [False, True])
def test_an_arming_that_begins_before_the_one_before_ends_is_carried_out(
    here: World, kafka: Kafka, refused: bool
) -> None:
    grant(here, "search", "allow alice read")
    plans: list[str] = []

    def arm_again() -> None:
        kafka.before_look = lambda: None
        begin_arming(here, aspect="acls")
        mark = load_armed_record(here.replica.snapshot, "acls", ROOT_ID)
        plans.append("" if mark is None else mark.plan)

    def arm_again_and_refuse() -> None:
        arm_again()
        kafka.refuses = "no authorizer"

    arm_again()
    if refused:
        kafka.before_look = arm_again_and_refuse
    else:
        before_the_next(kafka, "add_acls", arm_again)
    here.reconciler.run_once()
    kafka.refuses = ""
    here.now += 60
    here.settle(1_000)
    assert kafka.bindings == on(CLICKS, "allow alice read") | on(VIEWS, "allow alice read")
    assert len(set(plans)) == 2
    mark = load_armed_record(here.replica.snapshot, "acls", ROOT_ID)
    assert mark is not None
    assert (mark.plan, mark.pending) == (plans[-1], False)


def inherit(here: World, *arguments: str, incarnation: str = "one", closed: bool = False) -> None:
    """Sets the grants that the parent sends for above the mount."""
    level = federation_pb2.InheritedLevel(
        path="/la", grants=[grant_to_proto(grant_of(one)) for one in arguments], closed=closed
    )
    output = federation_pb2.Inherited(levels=[level], revision=5, incarnation=incarnation)
    reported = federation_pb2.Welcome(
        parent_cluster_id="kc-la", mount=str(MOUNT), parent_mount="/la"
    )
    snapshot = here.replica.snapshot
    writes = (
        *inheritance.inherited_writes(snapshot, output, 1),
        *parent_state.welcome_writes(snapshot, reported, 1),
    )
    if writes:
        here.writer.put_facts(writes)


def move(here: World, path: str, to: str, kind: Kind | None = None) -> None:
    here.execute(
        MoveEntry(path=MOUNT.join(path.split("/")), new_path=MOUNT.join(to.split("/")), kind=kind)
    )


def counts(here: World) -> tuple[int, ...]:
    return tuple(acl_counts(here.replica.snapshot))


CLICKS, VIEWS, OTHER = "topic search.clicks", "topic search.views", "topic other.clicks"


# -- order -----------------------------------------------------------------------------------------


def test_A4_denies_come_first_and_go_last(here: World, kafka: Kafka) -> None:
    grant(here, "search/clicks", "allow alice read", "deny bob read")
    arm(here, "search")
    assert [(sign, one.acl.permission.name) for sign, one in kafka.asked] == [
        ("+", "DENY"),
        ("+", "ALLOW"),
    ]
    kafka.asked.clear()
    revoke(here, "search/clicks", "allow alice read", "deny bob read")
    grant(here, "search/clicks", "allow bob write", "deny alice write")
    here.settle()
    assert [(sign, str(one.acl)) for sign, one in kafka.asked] == [
        ("+", "DENY User:alice WRITE from *"),
        ("+", "ALLOW User:bob WRITE from *"),
        ("-", "ALLOW User:alice READ from *"),
        ("-", "DENY User:bob READ from *"),
    ]


def test_a_topic_armed_by_itself_keeps_what_a_disarmed_directory_grants(
    here: World, kafka: Kafka
) -> None:
    here.mkdir("later")  # made after the topic: it is looked at after it
    move(here, "search/clicks", "later/clicks", Kind.TOPIC)
    grant(here, "later", "allow alice read")
    arm(here, "later")
    arm(here, "later/clicks")
    disarm(here, "later")
    here.settle()
    assert kafka.bindings == on(CLICKS, "allow alice read")


def test_A4_an_allow_waits_for_the_deny_before_it(here: World, kafka: Kafka) -> None:
    arm(here, "search")
    (deny,) = on(CLICKS, "deny bob all")
    kafka.answers[deny] = OutcomeUnknown("nobody answered")
    grant(here, "search/clicks", "allow * read", "deny bob all")
    here.reconciler.run_once()
    assert kafka.bindings == set()
    kafka.answers.clear()
    here.settle()
    assert kafka.bindings == on(CLICKS, "allow * read", "deny bob all")


def test_A4_a_deny_stays_until_the_allow_behind_it_is_gone(here: World, kafka: Kafka) -> None:
    grant(here, "search/clicks", "allow bob read", "deny bob all")
    arm(here, "search")
    (allow,) = on(CLICKS, "allow bob read")
    kafka.answers[allow] = OutcomeUnknown("nobody answered")
    revoke(here, "search/clicks", "allow bob read", "deny bob all")
    here.reconciler.run_once()
    assert kafka.bindings == on(CLICKS, "allow bob read", "deny bob all")
    kafka.answers.clear()
    here.settle()
    assert not kafka.bindings


def test_a_new_topic_has_its_acls_before_it_is_there(here: World, kafka: Kafka) -> None:
    grant(here, "search", "allow alice read", "deny bob read")
    arm(here, "search")
    kafka.order.clear()
    here.create("search/new")
    here.settle()
    assert kafka.order == [
        "+ topic search.new: DENY User:bob READ from *",
        "+ topic search.new: ALLOW User:alice READ from *",
        "create search.new",
    ]
    assert here.states()["search/new"] == "ACTIVE"


def test_what_is_granted_while_kafka_is_away_comes_when_it_is_back(
    here: World, kafka: Kafka
) -> None:
    arm(here, "search")
    kafka.away = True
    grant(here, "search", "allow alice read")
    here.now += 5  # the rest after the last look is over
    here.reconciler.run_once()
    assert not here.reconciler.status().reachable
    kafka.away = False
    here.settle()
    assert kafka.bindings == on(CLICKS, "allow alice read") | on(VIEWS, "allow alice read")


def test_a_topic_is_not_made_while_its_acls_cannot_be(here: World, kafka: Kafka) -> None:
    grant(here, "search", "allow alice read")
    arm(here, "search")
    kafka.refuses = "no authorizer"
    here.create("search/new")
    here.create("other/new")
    here.reconciler.run_once()
    assert kafka.made == ["other.new"]
    waiting = here.topics()["search/new"]
    assert waiting.provision_message == "its ACLs wait: no authorizer"
    kafka.refuses = ""
    here.now += 60
    here.settle()
    assert here.states()["search/new"] == "ACTIVE"
    assert on("topic search.new", "allow alice read") <= kafka.bindings


def test_a_topic_whose_acl_is_refused_is_not_made(here: World, kafka: Kafka) -> None:
    arm(here, "search")
    (allow,) = on("topic search.new", "allow alice read")
    kafka.answers[allow] = Rejected("no such principal")
    grant(here, "search", "allow alice read")
    here.create("search/new")
    here.reconciler.run_once()
    assert "search.new" not in kafka.made
    assert "no such principal" in here.topics()["search/new"].provision_message


# -- what is ours ----------------------------------------------------------------------------------


def test_what_was_there_before_is_never_removed(here: World, kafka: Kafka) -> None:
    before = on(CLICKS, "allow alice read", "allow eve write") | on("group g", "allow eve read")
    kafka.bindings |= before
    grant(here, "search/clicks", "allow alice read", "allow bob read")
    assert arm(here, "search").calls_made == 1
    revoke(here, "search/clicks", "allow alice read", "allow bob read")
    here.settle()
    assert kafka.bindings == before
    disarm(here, "search")
    here.settle()
    assert kafka.bindings == before
    assert not any(sign == "-" and one in before for sign, one in kafka.asked)


def test_what_was_revoked_and_granted_at_once_is_ours_still(here: World, kafka: Kafka) -> None:
    """A broker that is behind shows what was removed a moment ago: it is not somebody else's."""
    grant(here, "search/clicks", "allow alice read")
    arm(here, "search")
    revoke(here, "search/clicks", "allow alice read")
    here.settle()
    kafka.bindings |= on(CLICKS, "allow alice read")  # as a broker that is behind
    grant(here, "search/clicks", "allow alice read")
    here.settle()
    revoke(here, "search/clicks", "allow alice read")
    here.settle()
    assert not kafka.bindings


def test_what_a_broker_that_is_behind_does_not_show_is_taken_back_by_the_next_leader(
    tmp_path: FilePath, kafka: Kafka
) -> None:
    settings: Any = {"ceiling": CEILING, "split_on": "."}
    with (
        started(tmp_path, kafka) as here,
        world(tmp_path / "store.db", lambda: kafka, **settings) as later,
    ):
        arm(here, "search")
        kafka.behind = set(kafka.bindings)
        grant(here, "search/clicks", "allow mallory read")
        here.settle()
        assert kafka.bindings == on(CLICKS, "allow mallory read")
        revoke(here, "search/clicks", "allow mallory read")
        here.reconciler.resign()
        later.settle()
        kafka.behind = None
        later.sweep()
        later.settle()
        assert not kafka.bindings
        assert not list(later.replica.snapshot.facts(ACL_ROWS))


def test_what_another_client_removed_is_asked_about_once(here: World, kafka: Kafka) -> None:
    grant(here, "search/clicks", "allow alice read")
    arm(here, "search")
    kafka.bindings.clear()
    here.now += 60
    revoke(here, "search/clicks", "allow alice read")
    kafka.asked.clear()
    for _ in range(3):
        here.settle()
        here.sweep()
    assert kafka.asked == [("-", one) for one in on(CLICKS, "allow alice read")]
    assert not list(here.replica.snapshot.facts(ACL_ROWS))


def test_a_removal_of_what_is_not_there_makes_no_room(tmp_path: FilePath, kafka: Kafka) -> None:
    with started(tmp_path, kafka, max_acls=2) as here:
        grant(here, "search/clicks", "allow alice read", "allow bob read")
        arm(here, "search")
        kafka.bindings = on("topic x", "allow eve read", "allow eve write")
        here.now += 60
        revoke(here, "search/clicks", "allow alice read", "allow bob read")
        grant(here, "search/clicks", "allow carol read")
        with pytest.raises(LimitExceeded, match="would have 3 ACLs, it has 2 now"):
            plan(here, "search")
        here.settle()
        assert len(kafka.bindings) == 2


def test_a_group_is_desired_by_several_directories(here: World, kafka: Kafka) -> None:
    for path in ("search", "other"):
        grant(here, path, "allow alice read group g-*")
        arm(here, path)
    assert kafka.bindings == on("group g-*", "allow alice read")
    disarm(here, "search")
    here.settle()
    assert kafka.bindings == on("group g-*", "allow alice read")
    revoke(here, "other", "allow alice read group g-*")
    here.settle()
    assert not kafka.bindings


def test_patterns_of_groups_and_transactional_ids(here: World, kafka: Kafka) -> None:
    grant(
        here,
        "",
        "allow alice read group *",
        "allow alice read group g",
        "allow alice write transactional-id t-*",
        "deny bob all group g-*",
    )
    arm(here, "search")
    assert kafka.bindings == (
        on("group *", "allow alice read")
        | on("group g", "allow alice read")
        | on("group g-*", "deny bob all")
        | on("transactional-id t-*", "allow alice write")
    )


# -- where -----------------------------------------------------------------------------------------


def test_a_topic_that_moves_takes_what_is_granted_where_it_is(here: World, kafka: Kafka) -> None:
    grant(here, "search", "allow alice read")
    grant(here, "other", "allow bob read")
    arm(here, "search")
    arm(here, "other")
    move(here, "search/clicks", "other/moved")
    here.settle()
    assert kafka.bindings == (
        on(VIEWS, "allow alice read") | on(CLICKS, "allow bob read") | on(OTHER, "allow bob read")
    )
    disarm(here, "other")
    here.settle()
    assert kafka.bindings == on(VIEWS, "allow alice read")
    here.mkdir("elsewhere")
    move(here, "search/views", "elsewhere/views")
    here.settle()
    assert not kafka.bindings


def test_a_directory_that_moves_takes_its_arming_along(here: World, kafka: Kafka) -> None:
    grant(here, "search", "allow alice read")
    arm(here, "search")
    here.mkdir("below")
    grant(here, "below", "deny alice write")
    move(here, "search", "below/search", Kind.DIRECTORY)
    here.settle()
    assert kafka.bindings == on(CLICKS, "allow alice read", "deny alice write") | on(
        VIEWS, "allow alice read", "deny alice write"
    )


def test_a_single_topic_can_be_armed_and_is_found_where_it_goes(here: World, kafka: Kafka) -> None:
    grant(here, "search", "allow alice read", "allow alice read group g")
    arm(here, "search/clicks")
    assert kafka.bindings == on(CLICKS, "allow alice read") | on("group g", "allow alice read")
    grant(here, "other", "allow bob read")
    move(here, "search/clicks", "other/moved")
    here.settle()
    assert kafka.bindings == on(CLICKS, "allow bob read")


def test_an_arming_of_a_removed_topic_is_not_one_of_a_later_topic_of_its_name(
    here: World, kafka: Kafka
) -> None:
    kafka.open_to_all = True
    grant(here, "search", "allow alice read")
    arm(here, "search")
    begin_arming(here, "search", "clicks", aspect="acls", takeover=True)
    kafka.refuses = "no authorizer"
    here.remove("search/clicks")
    here.settle()
    here.now += 30
    here.reconciler.run_once()
    kafka.add("search.clicks")  # by another client
    here.now += 30
    here.reconciler.run_once()
    assert here.states()["search/clicks"] == "ACTIVE"
    kafka.refuses = ""
    here.now += 60
    here.settle()
    assert not kafka.bindings


def test_armings_of_entries_that_are_gone_leave_no_records(here: World, kafka: Kafka) -> None:
    grant(here, "search", "allow alice read")
    arm(here, "search/clicks")
    arm(here, "other")
    here.remove("search/clicks")
    here.remove("other")
    here.settle()
    here.sweep()
    here.settle()
    assert armed_records(here.replica.snapshot, "acls") == []
    assert not kafka.bindings
    arm(here, "search/views")
    here.sweep()
    assert len(armed_records(here.replica.snapshot, "acls")) == 1


def test_acls_of_an_armed_entry_that_is_gone_are_removed_after_its_record(
    here: World, kafka: Kafka
) -> None:
    grant(here, "search", "allow alice read group g")
    arm(here, "search/clicks")
    kafka.refuses = "no authorizer"
    here.remove("search/clicks")
    here.settle()
    here.sweep()
    assert armed_records(here.replica.snapshot, "acls") == []
    assert kafka.bindings == on("group g", "allow alice read")
    kafka.refuses = ""
    here.now += 60
    here.settle()
    assert not kafka.bindings


def test_a_directory_below_can_be_left_out(here: World, kafka: Kafka) -> None:
    here.mkdir("search/own")
    here.execute(
        UpdateEntry(path=MOUNT.join(["search", "own"]), changes={"policies.manage.acls": False})
    )
    move(here, "search/views", "search/own/views")
    grant(here, "search", "allow alice read")
    arm(here, "search")
    assert kafka.bindings == on(CLICKS, "allow alice read")


def test_a_deleted_topic_keeps_its_acls_until_kafka_has_it_no_more(
    here: World, kafka: Kafka
) -> None:
    grant(here, "search", "allow alice read")
    arm(here, "search")
    kafka.order.clear()
    here.remove("search/clicks", Kind.TOPIC)
    here.settle()
    assert kafka.order == [
        "delete search.clicks",
        "- topic search.clicks: ALLOW User:alice READ from *",
    ]
    assert kafka.bindings == on(VIEWS, "allow alice read")


def test_a_removed_directory_leaves_no_acls(here: World, kafka: Kafka) -> None:
    grant(here, "search", "allow alice read", "allow alice read group g")
    arm(here, "search")
    here.remove("search")
    here.settle()
    assert not kafka.bindings
    assert counts(here) == (0, 0, 0, 0)


def test_a_detached_topic_loses_ours_only(tmp_path: FilePath, kafka: Kafka) -> None:
    with started(tmp_path, kafka, ceiling=CEILING - {"delete"}) as here:
        kafka.bindings |= on(CLICKS, "allow eve read")
        grant(here, "search", "allow alice read")
        arm(here, "search")
        here.execute(DeleteEntry(path=MOUNT.join(["search", "clicks"]), kind=Kind.TOPIC))
        here.settle()
        assert "search.clicks" in kafka.topics
        assert kafka.bindings == on(VIEWS, "allow alice read") | on(CLICKS, "allow eve read")


def test_a_topic_made_again_with_the_same_name_has_its_own(here: World, kafka: Kafka) -> None:
    grant(here, "search", "allow alice read")
    grant(here, "search/clicks", "allow bob read")
    arm(here, "search")
    here.remove("search/clicks", Kind.TOPIC)
    here.settle()
    here.create("search/clicks", physical_name="search.clicks2")
    here.settle()
    assert on("topic search.clicks2", "allow alice read") <= kafka.bindings
    assert not on(CLICKS, "allow bob read") & kafka.bindings


def test_nothing_is_added_for_a_topic_that_kafka_does_not_show(here: World, kafka: Kafka) -> None:
    grant(here, "search", "allow alice read")
    arm(here, "search")
    del kafka.topics["search.clicks"]
    here.sweep()
    assert here.states()["search/clicks"] == "MISSING"
    grant(here, "search", "allow bob read")
    here.settle()
    assert kafka.bindings == on(CLICKS, "allow alice read") | on(
        VIEWS, "allow alice read", "allow bob read"
    )
    revoke(here, "search", "allow alice read", "allow bob read")
    here.settle()
    assert not kafka.bindings


def test_closed_directories(here: World, kafka: Kafka) -> None:
    here.execute(UpdateEntry(path=MOUNT.join(["search"]), changes={"directory.closed": True}))
    grant(here, "search", "allow alice describe")
    grant(here, "search/clicks", "allow alice read", "allow bob read")
    arm(here, "search")
    assert on(CLICKS, "allow alice describe", "allow alice read") <= kafka.bindings
    assert not on(CLICKS, "allow bob read") & kafka.bindings
    here.execute(UpdateEntry(path=MOUNT.join(["search"]), changes={"directory.closed": False}))
    here.settle()
    assert on(CLICKS, "allow bob read") <= kafka.bindings


# -- open to all -----------------------------------------------------------------------------------


def test_what_is_open_to_all_waits_for_a_takeover(here: World, kafka: Kafka) -> None:
    kafka.open_to_all = True
    grant(here, "search", "allow alice read")
    read = plan(here, "search")
    assert [one.takeover for one in read.calls] == [True, True]
    done = arm(here, "search")
    assert (done.calls_made, done.message) == (0, ""), "as the plan has said"
    assert not kafka.bindings
    assert counts(here)[1] == 2
    kafka.bindings |= on(CLICKS, "allow eve read")  # by now it is not open to all
    here.sweep()
    here.settle()
    assert kafka.bindings == on(CLICKS, "allow eve read", "allow alice read")
    done = arm(here, "search", takeover=True)
    assert (done.calls_made, done.message) == (1, "")
    assert on(VIEWS, "allow alice read") <= kafka.bindings
    grant(here, "search", "allow bob read", "allow bob read group g")
    here.settle()
    assert on(VIEWS, "allow bob read") <= kafka.bindings
    assert not on("group g", "allow bob read") & kafka.bindings, "a group that everybody uses"
    assert counts(here)[1] == 1


def test_a_plan_with_takeover_is_another_one(here: World, kafka: Kafka) -> None:
    kafka.open_to_all = True
    grant(here, "search", "allow alice read")
    read = plan(here, "search")
    with pytest.raises(EtagMismatch):
        here.reconciler.arming_service.arm(MOUNT.join(["search"]), "acls", read.plan, takeover=True)


def test_a_topic_that_kdir_makes_was_open_to_nobody(here: World, kafka: Kafka) -> None:
    kafka.open_to_all = True
    arm(here, "search", takeover=True)
    grant(here, "search", "allow alice read")
    here.create("search/new")
    here.settle()
    assert kafka.bindings == on("topic search.new", "allow alice read")


def test_what_was_closed_does_not_open_with_the_last_grant(here: World, kafka: Kafka) -> None:
    kafka.open_to_all = True
    grant(here, "search/clicks", "allow alice read")
    arm(here, "search", takeover=True)
    kafka.asked.clear()
    revoke(here, "search/clicks", "allow alice read")
    here.settle()
    (closed,) = {AclBinding(one.resource, CLOSED) for one in on(CLICKS, "allow alice read")}
    assert kafka.bindings == {closed}
    assert kafka.asked[0] == ("+", closed)
    grant(here, "search/clicks", "allow bob read")
    here.settle()
    assert kafka.bindings == on(CLICKS, "allow bob read")
    revoke(here, "search/clicks", "allow bob read")
    here.settle()
    disarm(here, "search")
    here.settle()
    assert not kafka.bindings


def refuse(here: World, kafka: Kafka, path: str, argument: str) -> None:
    """Grants what Kafka then refuses to add."""
    (refused,) = on(CLICKS, argument)
    kafka.answers[refused] = Rejected("no such principal")
    grant(here, path, argument)
    here.settle()


def test_what_is_revoked_is_removed_while_another_grant_is_refused(
    here: World, kafka: Kafka
) -> None:
    kafka.open_to_all = True
    grant(here, "search/clicks", "allow mallory read", "allow bob read")
    arm(here, "search", takeover=True)
    refuse(here, kafka, "search/clicks", "allow alice read")
    revoke(here, "search/clicks", "allow mallory read")
    here.settle()
    assert kafka.bindings == on(CLICKS, "allow bob read")
    times = len(kafka.asked)
    here.sweep()
    here.settle()
    assert len(kafka.asked) == times, "what it refused is not asked again"


@pytest.mark.parametrize("open_to_all", [False, True])
def test_what_is_revoked_is_removed_while_others_wait_for_room(
    tmp_path: FilePath, kafka: Kafka, open_to_all: bool
) -> None:
    kafka.open_to_all = open_to_all
    with started(tmp_path, kafka, max_acls=3) as here:
        grant(here, "search/clicks", "allow mallory read", "allow bob read")
        arm(here, "search", takeover=True)
        grant(here, "search/clicks", "allow c read", "allow d read", "allow e read")
        here.settle()
        revoke(here, "search/clicks", "allow mallory read")
        here.settle()
        assert kafka.bindings == on(CLICKS, "allow bob read")
        assert counts(here)[1] == 1


@pytest.mark.parametrize("waits", ["refused", "above max_acls"])
@pytest.mark.parametrize("denied", [False, True])
def test_of_all_that_is_revoked_at_once_one_acl_stays_while_another_grant_waits(
    tmp_path: FilePath, kafka: Kafka, waits: str, denied: bool
) -> None:
    kafka.open_to_all = True
    granted = ["allow alice read", "allow bob read", *(["deny mallory read"] if denied else [])]
    with started(tmp_path, kafka, max_acls=5) as here:
        grant(here, "search/clicks", *granted)
        arm(here, "search", takeover=True)
        revoke(here, "search/clicks", *granted)
        if waits == "refused":
            refuse(here, kafka, "search/clicks", "allow carol read")
        else:
            grant(here, "search/clicks", *(f"allow c{number} read" for number in range(6)))
        for _ in range(2):
            here.settle()
            here.sweep()
        last = "deny mallory read" if denied else "allow alice read"
        assert kafka.bindings == on(CLICKS, last)
        times = len(kafka.asked)
        here.sweep()
        here.settle()
        assert len(kafka.asked) == times


@pytest.mark.parametrize("last", ["allow", "deny", "closed"])
def test_the_last_acl_stays_while_what_replaces_it_is_refused(
    here: World, kafka: Kafka, last: str
) -> None:
    kafka.open_to_all = True
    granted = "deny mallory read" if last == "deny" else "allow mallory read"
    grant(here, "search/clicks", granted)
    arm(here, "search", takeover=True)
    if last == "closed":
        revoke(here, "search/clicks", granted)
        here.settle()
    before = set(kafka.bindings)
    assert len(before) == 1
    (refused,) = on(CLICKS, "allow alice read")
    kafka.answers[refused] = Rejected("no such principal")
    if last != "closed":
        revoke(here, "search/clicks", granted)
    grant(here, "search/clicks", "allow alice read")
    here.settle()
    here.sweep()
    here.settle()
    assert kafka.bindings == before, "without an ACL everybody may use it"
    assert kafka.asked.count(("+", refused)) <= 2
    eves = on(CLICKS, "allow eve read")
    kafka.bindings |= eves
    here.sweep()
    here.settle()
    assert kafka.bindings == eves


# -- limits, refusals, outages ---------------------------------------------------------------------


def test_more_acls_than_brokers_bear_are_refused(tmp_path: FilePath, kafka: Kafka) -> None:
    kafka.bindings |= on("topic x", "allow eve read")
    with started(tmp_path, kafka, max_acls=3) as here:
        grant(here, "search", "allow alice read", "allow bob read")
        with pytest.raises(LimitExceeded, match="would have 5 ACLs, it has 1 now, and 3"):
            plan(here, "search")
        revoke(here, "search", "allow bob read")
        assert arm(here, "search").calls_made == 2
        grant(here, "search", "allow bob read")
        here.settle()
        assert len(kafka.bindings) == 3
        assert counts(here) == (2, 2, 0, 0)
        kafka.bindings -= on("topic x", "allow eve read")
        here.sweep()
        here.settle()
        assert len(kafka.bindings) == 3
        assert counts(here) == (3, 1, 0, 0)
        revoke(here, "search", "allow alice read")
        here.settle()
        assert kafka.bindings == on(CLICKS, "allow bob read") | on(VIEWS, "allow bob read")


def test_what_kafka_refuses_is_not_asked_again_until_a_person_does(
    here: World, kafka: Kafka
) -> None:
    arm(here, "search")
    (allow,) = on(CLICKS, "allow alice read")
    kafka.answers[allow] = Rejected("no such principal")
    grant(here, "search/clicks", "allow alice read", "allow bob read")
    here.settle()
    assert kafka.bindings == on(CLICKS, "allow bob read")
    assert counts(here) == (1, 0, 1, 0)
    times = kafka.asked.count(("+", allow))
    here.sweep()
    here.settle()
    assert kafka.asked.count(("+", allow)) == times
    kafka.answers.clear()
    assert arm(here, "search").calls_made == 1
    assert kafka.bindings == on(CLICKS, "allow alice read", "allow bob read")
    assert counts(here) == (2, 0, 0, 0)


def test_a_plan_has_the_refusal_of_what_is_not_asked_again(here: World, kafka: Kafka) -> None:
    def left() -> dict[str, str]:
        where = MOUNT.join(["search"])
        plan = here.reconciler.arming_service.plan(where, "acls", armed_only=True)
        return {one.key: one.rejected for one in plan.calls}

    grant(here, "search/clicks", "allow mallory read")
    arm(here, "search")
    kafka.bindings -= on(CLICKS, "allow mallory read")
    refuse(here, kafka, "search/clicks", "allow alice read")
    alice, mallory = "ALLOW User:alice READ from *", "ALLOW User:mallory READ from *"
    assert left() == {alice: "no such principal", mallory: ""}, "another client removed that one"
    grant(here, "search/clicks", "allow bob read")
    bob = "ALLOW User:bob READ from *"
    assert left() == {alice: "", mallory: "", bob: ""}, "these are asked for now"
    here.settle()
    assert left() == {alice: "no such principal", mallory: ""}


@pytest.mark.parametrize("lost", ["answer", "request"])
def test_what_kafka_did_not_answer_is_asked_again_beside_what_it_refused(
    here: World, kafka: Kafka, lost: str
) -> None:
    grant(here, "search/clicks", "allow mallory read")
    arm(here, "search")
    (refused,), (revoked,) = on(CLICKS, "allow alice read"), on(CLICKS, "allow mallory read")
    kafka.answers[refused] = Rejected("no such principal")

    def is_away() -> None:
        raise KafkaUnavailable("nobody answers")

    if lost == "answer":
        kafka.answers[revoked] = OutcomeUnknown("nobody answered")
    else:
        before_the_next(kafka, "remove_acls", is_away)
    revoke(here, "search/clicks", "allow mallory read")
    grant(here, "search/clicks", "allow alice read")
    here.now += 5
    here.reconciler.run_once()
    assert kafka.bindings == {revoked}
    kafka.answers.pop(revoked, None)
    here.settle()
    assert not kafka.bindings
    assert counts(here) == (0, 0, 1, 0)
    times = kafka.asked.count(("+", refused))
    here.sweep()
    here.settle()
    assert kafka.asked.count(("+", refused)) == times, "what it refused is not asked again"


def test_where_no_acl_is_armed_nothing_is_left_in_a_kafka_without_authorizer(
    here: World, kafka: Kafka
) -> None:
    """``kdir grant --wait`` above several clusters asks each of them."""
    grant(here, "search", "allow alice read")
    kafka.refuses = "no authorizer"
    arming_service, where = here.reconciler.arming_service, MOUNT.join(["search"])
    assert arming_service.plan(where, "acls", armed_only=True).calls == ()
    with pytest.raises(KafkaRejected, match="no authorizer"):
        arming_service.plan(where, "acls")
    kafka.refuses = ""
    arm(here, "search")
    kafka.refuses = "no authorizer"
    with pytest.raises(KafkaRejected, match="no authorizer"):
        arming_service.plan(where, "acls", armed_only=True)


def test_a_kafka_without_authorizer_stops_only_acls(here: World, kafka: Kafka) -> None:
    grant(here, "search", "allow alice read")
    arm(here, "search")
    kafka.refuses = "no authorizer"
    grant(here, "search", "allow bob read")
    here.settle()
    assert here.reconciler.status().reachable
    assert here.reconciler.status().message == "no authorizer"
    kafka.refuses = ""
    here.now += 60
    here.settle()
    assert on(CLICKS, "allow bob read") <= kafka.bindings
    assert here.reconciler.status().message == ""


@pytest.mark.parametrize("answer", [KafkaUnavailable("away"), KafkaRejected("ALTER is missing")])
def test_calls_are_counted_whatever_comes_of_a_later_request(
    here: World, kafka: Kafka, answer: Exception
) -> None:
    """Kafka's client makes requests of 250; what it raises for one is not about those before."""
    acls = [f"allow u{number} read" for number in range(300)]
    grant(here, "search/clicks", *acls)
    add_acls, given = kafka.add_acls, list[AclBinding]()

    def add(bindings: Sequence[AclBinding], still: Still = always) -> Mapping[AclBinding, Outcome]:
        outcomes: dict[AclBinding, Outcome] = {}
        for start in range(0, len(bindings), 250):
            if len(given) == 250:
                given.append(bindings[start])
                raise answer
            some = bindings[start : start + 250]
            outcomes |= add_acls(some, still)
            given.extend(some)
        return outcomes

    kafka.add_acls = add  # type: ignore[method-assign]
    begin_arming(here, "search", aspect="acls")
    here.reconciler.run_once()
    assert len(kafka.bindings) == 250
    assert counts(here)[0] == 250, "they are on record at once"
    here.now += 60
    here.settle()
    assert kafka.bindings == on(CLICKS, *acls)
    (mark,) = armed_records(here.replica.snapshot, "acls")
    assert (mark.pending, mark.made) == (False, 300)


def test_sweeps_keep_their_pace_while_pushing_fails(
    here: World, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps, describe_all = [0], kafka.describe_all

    def sweep() -> KafkaMetadata:
        sweeps[0] += 1
        return describe_all()

    def not_answered() -> None:
        raise KafkaUnavailable("no broker answered")

    grant(here, "search", "allow alice read")
    arm(here, "search")
    here.settle()
    monkeypatch.setattr(kafka, "describe_all", sweep)
    kafka.before_look = not_answered
    grant(here, "search", "allow bob read")
    kafka.add("other.new")
    until = here.now + 1_200
    while here.now < until:
        here.now += here.reconciler.run_once()
    assert here.states()["other/new"] == "ACTIVE"
    assert not here.reconciler.status().reachable
    assert (here.reconciler.status().last_sweep_seconds or 1e9) < 60
    assert 4 <= sweeps[0] <= 6, "one each 300 s, and one as it began"
    kafka.before_look = lambda: None
    here.sweep()
    here.settle()
    assert on(CLICKS, "allow bob read") <= kafka.bindings
    assert here.reconciler.status().reachable


# -- what others change ----------------------------------------------------------------------------


def test_what_another_client_removes_is_reported_and_an_arming_puts_it_back(
    here: World, kafka: Kafka
) -> None:
    grant(here, "search", "allow alice read")
    arm(here, "search")
    kafka.bindings -= on(CLICKS, "allow alice read")
    here.now += 60  # long after: it is no broker that is behind
    here.sweep()
    here.settle()
    assert counts(here) == (1, 0, 0, 1)
    assert planned(here, "search") == [("CreateAcls", f"{CLICKS}: ALLOW User:alice READ from *")]
    assert arm(here, "search").calls_made == 1
    assert counts(here) == (2, 0, 0, 0)


def test_what_another_client_removes_is_mended_twice_and_then_left_alone(
    tmp_path: FilePath, kafka: Kafka
) -> None:
    with started(tmp_path, kafka, revert_external_changes=True) as here:
        grant(here, "search/clicks", "allow alice read")
        arm(here, "search")
        for mended in (True, True, False, False):
            kafka.bindings.clear()
            here.now += 60
            here.sweep()
            here.settle()
            assert bool(kafka.bindings) is mended
        assert counts(here) == (0, 0, 0, 1)


def test_where_kafka_differs_is_shown(here: World, kafka: Kafka) -> None:
    def drift(path: str) -> list[tuple[str, ...]]:
        where = MOUNT.join(path.split("/"))
        return [
            (str(one.path.below(MOUNT)[-1]), one.field, one.expected, one.actual, one.state)
            for one in here.reconciler.drift(where)
        ]

    grant(here, "search", "allow alice read", "allow alice read group g")
    arm(here, "search")
    assert drift("search") == []
    kafka.bindings -= on(CLICKS, "allow alice read") | on("group g", "allow alice read")
    kafka.bindings |= on(VIEWS, "deny alice read") | on("topic x", "allow eve read")
    here.now += 60
    here.sweep()
    here.settle()
    mine, eves = "ALLOW User:alice READ from *", "DENY User:alice READ from *"
    assert drift("search") == [
        ("search", "acl of group g", mine, "(missing)", ""),
        ("clicks", "acl", mine, "(missing)", ""),
        ("views", "acl", "(none)", eves, "not kdir's"),
    ]
    assert drift("search/views") == [("views", "acl", "(none)", eves, "not kdir's")]
    assert drift("other") == []
    snapshot = here.replica.snapshot
    assert acl_state(snapshot, here.topics()["search/clicks"]) == "drift"
    assert acl_state(snapshot, here.topics()["search/views"]) == ""
    assert list(acl_states_below(snapshot, ("search",))) == ["drift"]
    assert list(acl_states_below(snapshot, ("other",))) == []
    disarm(here, "search")
    here.settle()
    here.sweep()
    assert drift("search") == [], "nothing is armed: no ACL there is kdir's concern"


# -- what is inherited -----------------------------------------------------------------------------


def test_grants_from_above_the_mount_reach_kafka(here: World, kafka: Kafka) -> None:
    inherit(here, "allow alice read")
    arm(here, "search")
    assert kafka.bindings == on(CLICKS, "allow alice read") | on(VIEWS, "allow alice read")
    inherit(here, "allow alice read", "deny bob all", "allow alice read group g")
    here.settle()
    assert kafka.bindings == (
        on(CLICKS, "allow alice read", "deny bob all")
        | on(VIEWS, "allow alice read", "deny bob all")
        | on("group g", "allow alice read")
    )


def test_P2_not_loaded_is_not_empty(tmp_path: FilePath, kafka: Kafka) -> None:
    with started(tmp_path, kafka) as here:
        inherit(here, "allow alice read")
        arm(here, "search")
        before = set(kafka.bindings)
        assert before
    with started(tmp_path, kafka) as here:
        here.writer.put_facts([Put(parent_state.UNMOUNTED_KEY, b"somebody said so")])
        revoke(here, "search", "allow alice read")
        grant(here, "search", "allow bob read")
        for _ in range(5):
            here.reconciler.run_once()
            here.now += 30
        assert kafka.bindings == before
        with pytest.raises(NotReady):
            plan(here, "search")


def test_what_another_parent_gives_waits_and_what_it_denies_does_not(
    here: World, kafka: Kafka
) -> None:
    inherit(here, "allow alice read", "deny bob all")
    grant(here, "search", "allow carol read")
    arm(here, "search/clicks")
    inherit(here, "allow eve read", "deny mallory all", incarnation="two")
    here.settle()
    assert kafka.bindings == on(CLICKS, "allow carol read", "deny bob all", "deny mallory all")
    assert counts(here)[1] == 1
    grant(here, "search", "allow dave read")
    here.settle()
    assert on(CLICKS, "allow dave read") <= kafka.bindings, "what is granted here goes on"
    assert not on(CLICKS, "allow eve read") & kafka.bindings
    assert arm(here, "search/clicks").calls_made == 2
    assert kafka.bindings == on(
        CLICKS, "allow carol read", "allow dave read", "allow eve read", "deny mallory all"
    )
    assert counts(here)[1] == 0


def test_an_allow_that_no_parent_confirms_ends_in_kafka_too(
    tmp_path: FilePath, kafka: Kafka
) -> None:
    with started(tmp_path, kafka, grants_max_age_seconds=60.0) as here:
        inherit(here, "allow alice read", "deny bob read")
        grant(here, "search", "allow carol read")
        arm(here, "search/clicks")
        everything = on(CLICKS, "allow alice read", "deny bob read", "allow carol read")
        assert kafka.bindings == everything
        here.unconfirmed_seconds = 61.0
        here.now += 61
        here.reconciler.run_once()
        assert kafka.bindings == on(CLICKS, "deny bob read", "allow carol read")
        here.unconfirmed_seconds = 0.0
        here.now += 2
        here.reconciler.run_once()
        assert kafka.bindings == everything


def test_what_waits_after_a_mount_moved_is_in_the_plan_and_the_list_of_the_whole_cluster(
    here: World, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    inherit(here, "deny eve read group g")
    arm(here, "search")
    assert kafka.bindings == on("group g", "deny eve read")
    moved_to = Path.parse("/ny/t")
    for module in ("tests.support.reconciler", "tests.support.acls", __name__):
        monkeypatch.setattr(f"{module}.MOUNT", moved_to)
    inherit(here, incarnation="two")
    here.settle()
    assert [one.path for one in here.reconciler.drift(moved_to)] == [moved_to]
    assert planned(here) == [("DeleteAcls", "group g: DENY User:eve READ from *")]
    arm(here)
    assert not kafka.bindings


def test_what_a_restore_brings_back_is_not_mended(tmp_path: FilePath, kafka: Kafka) -> None:
    """An old backup says granted, and done, of what was revoked since."""
    with started(tmp_path, kafka, revert_external_changes=True) as here:
        grant(here, "search/clicks", "allow alice read")
        arm(here, "search")
        kafka.bindings.clear()
        here.now += 60
        here.writer.put_facts([Put(ACL_BASIS, b"of another life")])
        here.sweep()
        here.settle()
        assert not kafka.bindings
        here.now += 60
        here.sweep()
        here.settle()
        assert not kafka.bindings
        assert counts(here) == (0, 1, 0, 1)
        assert arm(here, "search").calls_made == 1
        assert kafka.bindings == on(CLICKS, "allow alice read")


def test_while_the_parent_is_away_acls_are_looked_at_no_more_often(tmp_path: FilePath) -> None:
    kafka, looks = Kafka("search.clicks"), list[float]()
    with started(tmp_path, kafka, grants_max_age_seconds=60.0) as here:
        inherit(here, "allow bob read")
        grant(here, "search", "allow alice read")
        arm(here)

        def seconds(count: int) -> int:
            looks.clear()
            until = here.now + count
            while here.now < until:
                here.now += max(here.reconciler.run_once(), 0.01)
            return len(looks)

        kafka.before_look = lambda: looks.append(here.now)
        here.unconfirmed_seconds = 3600.0
        here.now += 61
        seconds(5)
        assert kafka.bindings == on(CLICKS, "allow alice read")
        assert seconds(120) == 0
        here.unconfirmed_seconds = 0.0
        assert seconds(5) > 0
        assert kafka.bindings == on(CLICKS, "allow alice read", "allow bob read")
        assert seconds(60) == 0
        assert seconds(600) > 0, "as often as sweeps are"


def test_more_acls_of_one_resource_than_a_transaction_holds_hold_up_no_others(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = Kafka("search.clicks", "other.clicks")
    monkeypatch.setattr(
        "directory.kafka.fenced_commits.TopicCommits.fits",
        lambda _, write: isinstance(write, Delete) or len(write.value) < 1_000,
    )
    with started(tmp_path, kafka) as here:
        grant(here, "search", "allow alice read")
        arm(here)
        many = [f"allow u{number} read" for number in range(40)]
        grant(here, "search", *many)
        grant(here, "other", "allow bob read")
        here.settle()
        few = on(CLICKS, "allow alice read") | on(OTHER, "allow bob read")
        assert kafka.bindings == few
        assert acl_state(here.replica.snapshot, here.topics()["search/clicks"]) == "needs-approval"
        revoke(here, "search", *many, "allow alice read")
        here.settle()
        assert kafka.bindings == on(OTHER, "allow bob read")
        assert counts(here) == (1, 0, 0, 0)


def test_a_topic_that_cannot_be_read_keeps_what_it_has(here: World, kafka: Kafka) -> None:
    grant(here, "search", "allow alice read")
    arm(here, "search")
    before = set(kafka.bindings)
    snapshot = here.replica.snapshot
    parent = snapshot.find_directory(["search"])
    assert parent is not None
    here.writer.put_facts([Put(entry_key(parent, Kind.TOPIC, "clicks"), SPOILED)])
    grant(here, "search", "allow bob read")
    for _ in range(4):
        here.reconciler.run_once()
        here.now += 30
    assert before <= kafka.bindings
    assert on(VIEWS, "allow bob read") <= kafka.bindings


def test_a_record_of_ours_that_cannot_be_read_is_left_alone(here: World, kafka: Kafka) -> None:
    grant(here, "search", "allow alice read")
    arm(here, "search")
    here.writer.put_facts([Put(ACL_ROWS + b"tl/search.clicks", b"{")])
    revoke(here, "search", "allow alice read")
    here.settle()
    assert kafka.bindings == on(CLICKS, "allow alice read")


def test_grants_that_cannot_be_read_change_nothing(here: World, kafka: Kafka) -> None:
    grant(here, "search", "allow alice read", "allow alice read group g")
    arm(here, "search")
    before = set(kafka.bindings)
    here.writer.put_facts([Put(grants_key(ROOT_ID, Kind.DIRECTORY, "search"), SPOILED)])
    here.sweep()
    here.settle()
    assert kafka.bindings == before


def test_S21_while_an_arming_cannot_be_read_what_it_may_desire_stays(
    here: World, kafka: Kafka
) -> None:
    grant(here, "search", "allow alice read", "deny eve read", "allow alice read group g")
    grant(here, "other", "allow bob read group g")
    arm(here, "search/clicks")
    arm(here, "other")
    before = set(kafka.bindings)
    assert before >= on(CLICKS, "deny eve read") | on("group g", "allow alice read")
    mark = spoil_arming(here, "search/clicks")
    here.sweep()
    here.settle()
    assert kafka.bindings == before
    grant(here, "other", "allow bob write")
    revoke(here, "search", "deny eve read")
    here.settle()
    assert kafka.bindings == before | on(OTHER, "allow bob write")
    arm(here, "search/clicks")  # repairs it
    assert kafka.bindings == before - on(CLICKS, "deny eve read") | on(OTHER, "allow bob write")
    assert mark.key in {one.key for one in armed_records(here.replica.snapshot, "acls")}


def test_S21_an_arming_that_cannot_be_read_goes_with_its_topic(here: World, kafka: Kafka) -> None:
    grant(here, "search", "allow alice read")
    arm(here, "search/clicks")
    spoil_arming(here, "search/clicks")
    here.sweep()
    assert len(armed_records(here.replica.snapshot, "acls")) == 1
    here.remove("search/clicks")
    here.settle()
    here.sweep()
    here.settle()
    assert (kafka.bindings, armed_records(here.replica.snapshot, "acls")) == (set(), [])


def spoil_arming(here: World, path: str) -> ArmedRecord:
    """Makes the record of a topic's arming unreadable; returns it as it was."""
    entry_id = here.topics()[path].entry_id
    mark = load_armed_record(here.replica.snapshot, "acls", entry_id)
    assert mark is not None
    here.writer.put_facts([Put(mark.key, SPOILED)])
    return mark
