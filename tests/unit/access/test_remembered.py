"""What a server remembers of a caller's directories never shows what a decision would hide."""

from __future__ import annotations

import random

from kdir.v1 import federation_pb2

from directory.access.authorizer import Authorizer
from directory.access.compiled_grants import AccessQuestion
from directory.access.grant_tree import EntryPlace
from directory.access.grants import Operation
from directory.access.principals import Caller
from directory.federation import inheritance
from tests.support.waiting import eventually
from tests.unit.access.conftest import ADMIN, House, topic
from tests.unit.access.test_services import Make

STORES = ("sqlite", "etcd")

DESCRIBE = AccessQuestion.for_operation(Operation.DESCRIBE)


def test_A12_asked_again_and_after_others_the_answer_is_that_of_the_decision(house: Make) -> None:
    choose = random.Random(5)
    la: House = house()
    directories = ["/la", *(f"/la/d{at}" for at in range(3)), "/la/d0/e", "/la/d1/e"]
    for path in directories[1:]:
        la.mkdir(path)
    topics = [f"{path}/t{at}" for path in directories for at in range(2)]
    for path in topics:
        topic(la, path)
    paths = [*directories, *topics, "/la/none", "/la/d0/none", "/la/d0/e/none"]
    la.grant("alice", "describe", "/la")
    la.grant("bob", "read", "/la/d0")
    for _ in range(16):
        who, path = choose.choice(["alice", "bob"]), choose.choice(directories + topics)
        la.grant(who, choose.choice(["read", "-describe", "describe"]), path)
        for attempt in range(3):  # the first fills the memory, of which the others live
            for asked in choose.sample(paths, len(paths)):
                for one in ("alice", "bob"):
                    place = EntryPlace(tuple(asked.split("/")[2:]), asked in topics)
                    snapshot = la.cluster.replica.snapshot
                    access = la.router.access_control.access(la.cluster, snapshot)
                    allowed = access.authorize(Caller(f"User:{one}"), DESCRIBE, place).allowed
                    there = allowed and not asked.endswith("none")
                    wanted = "resolution" if there else "absent"
                    assert la.outcome(one, asked) == wanted, (attempt, one, asked)
    assert la.outcome(ADMIN, "/la/d0/e/t0") == "resolution"


def test_what_a_change_does_not_touch_is_not_made_again(house: Make) -> None:
    la: House = house()

    def access() -> Authorizer:
        snapshot = la.cluster.replica.snapshot
        kept = la.router.access_control.access(la.cluster, snapshot)
        assert kept == la.cluster.access_at(snapshot)
        return kept

    la.mkdir("/la/d")
    names = iter(range(1_000))

    def is_kept() -> bool:
        """True unless another row was written in between, such as the server's own."""
        before = access()
        topic(la, f"/la/d/t{next(names)}")
        return access() is before

    assert eventually(is_kept)
    before = access()
    la.grant("alice", "describe", "/la/d")
    granted = access()
    assert granted != before
    level = federation_pb2.InheritedLevel(path="/", closed=True)
    inherited = federation_pb2.Inherited(levels=[level], revision=5, incarnation="one")
    la.put(*inheritance.inherited_writes(la.cluster.replica.snapshot, inherited, 1))
    assert access() != granted
    la.mkdir("/la/d/closed", closed=True)
    access()
