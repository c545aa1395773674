"""The walk, driven by plain values: no sockets, no clock, no messages of the contract."""

from collections.abc import Callable
from typing import Any

import pytest

from resolver import errors
from resolver.errors import KdirError
from resolver.path import Path
from resolver.resolution.state_machine import (
    MAX_CALLS,
    MAX_HOPS,
    ResolutionOptions,
    ResolutionStateMachine,
)
from resolver.resolution.values import (
    Absent,
    AbsentResult,
    Answer,
    AnswerResult,
    AnswerStatus,
    AskedBecause,
    End,
    ErrorAnswer,
    FailedResult,
    LinkMode,
    Outcome,
    Query,
    Referral,
    Reply,
    Rewrite,
    Sender,
    United,
)
from resolver.revision_token import Position, ReadPositions


def p(text: str) -> Path:
    return Path.parse(text)


class World:
    """Servers that say what they are told to: by endpoint and path, or by endpoint alone."""

    def __init__(self) -> None:
        self.output: dict[tuple[str, str], list[Reply | KdirError]] = {}
        self.asked: list[tuple[str, str]] = []
        self.asks: list[Query] = []
        self.floor: dict[str, Position] = {}
        self.verdicts: list[AnswerStatus] = []

    def says(
        self,
        endpoint: str,
        mount: str,
        outcome: Outcome | KdirError,
        *,
        path: str = "*",
        epoch: int = 0,
        cluster_id: str = "",
        revision: int = 1,
    ) -> None:
        """Sets the answer to the next query; the last of several is given for ever."""
        reply: Reply | KdirError = (
            outcome
            if isinstance(outcome, KdirError)
            else Reply(
                Sender(
                    cluster_id or mount, p(mount), epoch=epoch, incarnation="i1", revision=revision
                ),
                outcome,
            )
        )
        self.output.setdefault((endpoint, path), []).append(reply)

    def run(self, walk: ResolutionStateMachine, most: int = 200) -> End:
        while isinstance(step := walk.next_query(), Query):
            assert len(self.asks) < most, "the walk does not end"
            self.asks.append(step)
            self.asked.append((step.endpoint, str(step.path)))
            key = (step.endpoint, str(step.path))
            queue = self.output.get(key) or self.output.get((step.endpoint, "*"))
            output: Reply | KdirError = errors.Unreachable("connection refused")
            if queue:
                output = queue.pop(0) if len(queue) > 1 else queue[0]
            if isinstance(output, KdirError):
                self.verdicts.append(walk.on_error(output.copy()))
            else:
                self.verdicts.append(walk.on_answer(output, self.floor))
        return step

    def endpoints(self) -> list[str]:
        return [endpoint for endpoint, _ in self.asked]


@pytest.fixture
def world() -> World:
    return World()


def down(mount: str, *endpoints: str, **fields: object) -> Referral:
    return referral(AskedBecause.DOWN, mount, *endpoints, **fields)


def direct(mount: str, *endpoints: str, **fields: object) -> Referral:
    return referral(AskedBecause.DIRECT, mount, *endpoints, **fields)


def up(mount: str, *endpoints: str, **fields: object) -> Referral:
    return referral(AskedBecause.UP, mount, *endpoints, **fields)


def referral(way: AskedBecause, mount: str, *endpoints: str, **fields: object) -> Referral:
    fields.setdefault("lifetime_seconds", 60)
    return Referral(way, p(mount) if mount else None, endpoints, **fields)  # type: ignore[arg-type]


def here(path: str, lifetime: int = 30) -> Answer:
    return Answer(p(path), lifetime)


def absent(nearest: str = "/") -> Absent:
    return Absent(p(nearest), 5)


def link(where: str, *paths: str, **fields: object) -> Rewrite:
    fields.setdefault("lifetime_seconds", 60)
    return Rewrite(p(where), tuple(map(p, paths)), **fields)  # type: ignore[arg-type]


def start(path: str, *servers: str, **fields: object) -> ResolutionStateMachine:
    return ResolutionStateMachine(p(path), ResolutionOptions(servers or ("s:1",), **fields))  # type: ignore[arg-type]


def failure(end: End) -> KdirError:
    assert isinstance(end, FailedResult), end
    return end.error


# -- following -----------------------------------------------------------------------------


def test_the_owner_at_hand_answers_at_once(world: World) -> None:
    world.says("s:1", "/la", here("/la/x"))
    end = world.run(start("/la/x"))
    assert isinstance(end, AnswerResult)
    assert (str(end.answer.path), end.endpoints, world.endpoints()) == ("/la/x", ("s:1",), ["s:1"])


def test_up_and_down_the_tree(world: World) -> None:
    world.says("s:1", "/la/t", up("/la", "la:1"))
    world.says("la:1", "/la", up("/", "root:1"))
    world.says("root:1", "/", down("/ny", "ny:1", cluster_id="/ny"))
    world.says("ny:1", "/ny", down("/ny/t", "nyt:1", "nyt:2"))
    world.says("nyt:1", "/ny/t", here("/ny/t/x"))
    walk = start("/ny/t/x")
    end = world.run(walk)
    assert isinstance(end, AnswerResult)
    assert world.endpoints() == ["s:1", "la:1", "root:1", "ny:1", "nyt:1"]
    assert end.endpoints == ("nyt:1", "nyt:2")
    # Up is no fact about a path, so that only the mounts on the way down are learned.
    assert [str(known.mount) for known, _ in walk.learned] == ["/ny", "/ny/t"]


def test_an_answer_is_kept_no_longer_than_any_update_it_rests_on(world: World) -> None:
    world.says("s:1", "/", down("/ny", "ny:1", lifetime_seconds=60, age_seconds=50))
    world.says("ny:1", "/ny", down("/ny/t", "nyt:1", lifetime_seconds=40))
    world.says("nyt:1", "/ny/t", here("/ny/t/x", lifetime=30))
    walk = start("/ny/t/x")
    end = world.run(walk)
    assert isinstance(end, AnswerResult)
    assert end.lifetime_seconds == 10
    assert [seconds for _, seconds in walk.learned] == [10, 10]


def test_a_parent_that_was_never_met_may_be_mounted_elsewhere_above(world: World) -> None:
    # A child that never linked can only guess its parent's mount, and names no cluster.
    world.says("s:1", "/la/t", up("/la", "root:1"))
    world.says("root:1", "/", here("/x"))
    assert isinstance(world.run(start("/x")), AnswerResult)


def test_absent_is_the_owners_answer(world: World) -> None:
    world.says("s:1", "/la", up("/", "root:1"))
    world.says("root:1", "/", absent())
    end = world.run(start("/ny/x"))
    assert isinstance(end, AbsentResult)
    assert str(end.path) == "/ny/x"


def test_the_next_server_of_several_is_asked(world: World) -> None:
    world.says("s:2", "/la", here("/la/x"))
    assert isinstance(world.run(start("/la/x", "s:1", "s:2")), AnswerResult)
    assert world.verdicts == [AnswerStatus.FAILED, AnswerStatus.ACCEPTED]


# -- what is not believed --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "mount", "given"),
    [
        ("/a/bc/x", "/a", down("/a/b", "b:1")),  # a prefix by characters only
        ("/a/b/x", "/a", down("/a", "b:1")),  # not deeper
        ("/a/b/x", "/a", down("/", "b:1")),
        ("/a/b/x", "/a", up("/", "b:1")),  # the path is its own
        ("/c/x", "/a", up("/a", "b:1")),  # not above
        ("/c/x", "/a/b", up("/x", "b:1")),  # beside
        ("/c/x", "/a", direct("/d", "b:1")),  # beside the path
        ("/c/x", "/a", direct("/c/xy", "b:1")),
        ("/a/b/x", "/a", direct("/a", "b:1")),  # its own
        ("/a/b/x", "/a", referral(AskedBecause.START, "/a/b", "b:1")),  # no way at all
    ],
)
def test_a_referral_that_is_not_nearer_is_bad(
    world: World, path: str, mount: str, given: Referral
) -> None:
    world.says("s:1", mount, given)
    error = failure(world.run(walk := start(path)))
    assert type(error) is errors.BadReferral
    assert world.endpoints() == ["s:1"]
    assert world.verdicts == [AnswerStatus.LAME]
    assert walk.learned == ()


def test_no_up_after_the_first_down(world: World) -> None:
    world.says("s:1", "/", down("/a", "a:1"))
    # It claims another mount than it was referred to, so as to have somewhere to go up from.
    world.says("a:1", "/a", up("/", "r:1"))
    assert type(failure(world.run(start("/a/x")))) is errors.BadReferral


def test_an_answer_outside_the_senders_mount_is_rejected(world: World) -> None:
    world.says("s:1", "/la", here("/ny/x"))
    assert type(failure(world.run(start("/ny/x")))) is errors.Lame
    other = World()
    other.says("s:1", "/la", absent("/"))
    assert type(failure(other.run(start("/ny/x")))) is errors.Lame
    third = World()
    third.says("s:1", "/la", here("/ny/x"))
    assert type(failure(third.run(start("/la/x")))) is errors.Lame


@pytest.mark.parametrize(
    "sender",
    [
        {"mount": "/elsewhere", "cluster_id": "c1", "epoch": 3},
        {"mount": "/a", "cluster_id": "c2", "epoch": 3},
        {"mount": "/a", "cluster_id": "c1", "epoch": 4},
    ],
)
def test_who_answers_must_be_who_was_referred_to(world: World, sender: dict[str, Any]) -> None:
    world.says("s:1", "/", down("/a", "a:1", cluster_id="c1", epoch=3))
    world.says("a:1", outcome=here("/a/x"), **sender)
    error = failure(world.run(start("/a/x")))
    assert type(error) is errors.Lame
    assert error.metadata["cluster_id"] == "c1"
    assert error.metadata["mount"] == "/a"
    # Once more from the top, in case the mount moved under way; not a third time.
    assert world.endpoints() == ["s:1", "a:1", "s:1", "a:1"]


def test_an_epoch_that_one_side_does_not_know_does_not_matter(world: World) -> None:
    world.says("s:1", "/", down("/a", "a:1", cluster_id="c1", epoch=3))
    world.says("a:1", "/a", here("/a/x"), cluster_id="c1", epoch=0)
    assert isinstance(world.run(start("/a/x")), AnswerResult)


def test_the_other_servers_of_a_lame_one_are_asked_first(world: World) -> None:
    world.says("s:1", "/", down("/a", "a:1", "a:2"))
    world.says("a:1", "/a", errors.NotAuthoritative("not mine"))
    world.says("a:2", "/a", here("/a/x"))
    end = world.run(start("/a/x"))
    assert isinstance(end, AnswerResult)
    assert end.endpoints == ("a:2", "a:1")


def test_a_mount_that_moves_under_way_restarts_the_walk_once(world: World) -> None:
    world.says("s:1", "/", down("/a", "old:1", cluster_id="c1", epoch=1))
    world.says("s:1", "/", down("/a", "new:1", cluster_id="c2", epoch=2))
    world.says("old:1", "/b", here("/b/x"), cluster_id="c1", epoch=2)
    world.says("new:1", "/a", here("/a/x"), cluster_id="c2", epoch=2)
    assert isinstance(world.run(start("/a/x")), AnswerResult)
    assert world.endpoints() == ["s:1", "old:1", "s:1", "new:1"]


def test_only_an_outcome_says_absent(world: World) -> None:
    world.says("s:1", "/la", errors.Absent("says some proxy"))
    assert type(failure(world.run(start("/la/x")))) is errors.Lame


def test_a_site_link_is_set_by_ones_own_servers_only(world: World) -> None:
    world.says("s:1", "/la", link("/tracking", "/la/t", site_link=True), path="/tracking")
    world.says("s:1", "/la", here("/la/t"), path="/la/t")
    assert isinstance(world.run(start("/tracking")), AnswerResult)
    other = World()
    other.says("s:1", "/la", direct("/ny", "ny:1"))
    other.says("ny:1", "/ny", link("/ny/t", "/evil", site_link=True))  # its own: as it likes
    other.says("s:1", "/la", here("/la"), path="/la")
    other.says("s:1", "/la", up("/", "root:1"), path="/evil")
    other.says("root:1", "/", down("/ny2", "ny2:1"), path="/evil")
    assert isinstance(failure(other.run(start("/ny/t/x"))), KdirError)
    third = World()
    third.says("s:1", "/", down("/ny", "ny:1"))
    third.says("ny:1", "/ny", link("/", "/evil", site_link=True))  # not its own
    assert type(failure(third.run(start("/ny/t/x")))) is errors.Lame


# -- hints ---------------------------------------------------------------------------------


def test_a_hint_that_does_not_answer_is_tried_again_by_the_tree(world: World) -> None:
    world.says("s:1", "/la", direct("/ny/t", "stale:1"), path="/ny/t/x")
    world.says("s:1", "/la", direct("/ny", "ny:1"), path="/ny")
    world.says("ny:1", "/ny", down("/ny/t", "nyt:1"))
    world.says("nyt:1", "/ny/t", here("/ny/t/x"))
    assert isinstance(world.run(start("/ny/t/x")), AnswerResult)
    assert world.asked == [
        ("s:1", "/ny/t/x"),
        ("stale:1", "/ny/t/x"),
        ("s:1", "/ny"),
        ("ny:1", "/ny/t/x"),
        ("nyt:1", "/ny/t/x"),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"mount": "/ny/t", "cluster_id": "other"},
        {"mount": "/ny/t", "cluster_id": "c", "epoch": 9},
        {"mount": "/moved", "cluster_id": "c"},
    ],
)
def test_a_hint_to_another_child_or_epoch_is_tried_again_by_the_tree(
    world: World, wrong: dict[str, Any]
) -> None:
    hint = direct("/ny/t", "h:1", cluster_id="c", epoch=1)
    world.says("s:1", "/la", hint, path="/ny/t/x")
    world.says("h:1", outcome=here("/ny/t/x"), **wrong)
    world.says("s:1", "/la", up("/", "root:1"), path="/ny")
    world.says("root:1", "/", down("/ny/t", "h:1", cluster_id="c", epoch=2))
    if wrong.get("cluster_id") == "c" and wrong["mount"] == "/ny/t":
        world.output["h:1", "*"].append(Reply(Sender("c", p("/ny/t"), epoch=2), here("/ny/t/x")))
        assert isinstance(world.run(start("/ny/t/x")), AnswerResult)
    else:
        assert type(failure(world.run(start("/ny/t/x")))) is errors.Lame


def test_when_neither_hint_nor_tree_answers_the_owner_is_named(world: World) -> None:
    world.says(
        "s:1", "/la", direct("/ny/t", "nyt:1", cluster_id="c9", cluster="ny-t"), path="/ny/t/x"
    )
    world.says("s:1", "/la", direct("/ny", "ny:1"), path="/ny")
    world.says("s:1", "/la", up("/", "root:1"), path="/")
    error = failure(world.run(start("/ny/t/x")))
    assert type(error) is errors.Unreachable
    assert error.metadata == {"path": "/ny/t/x", "mount": "/ny/t", "cluster_id": "c9"}
    assert world.endpoints() == ["s:1", "nyt:1", "s:1", "ny:1", "s:1", "root:1"]
    assert len(error.attempts) == 6


def test_the_tree_beats_the_hint_when_it_says_absent(world: World) -> None:
    world.says("s:1", "/la", direct("/ny/t", "gone:1"), path="/ny/t/x")
    world.says("s:1", "/la", direct("/ny", "ny:1"), path="/ny")
    world.says("ny:1", "/ny", absent("/ny"))
    assert isinstance(world.run(start("/ny/t/x")), AbsentResult)


def test_what_is_known_beforehand_saves_the_way_and_is_dropped_when_wrong(world: World) -> None:
    known = referral(AskedBecause.CACHE, "/ny", "ny:1", cluster_id="/ny")
    world.says("ny:1", "/ny", here("/ny/x"))
    assert isinstance(world.run(start("/ny/x", hint=lambda _: known)), AnswerResult)
    assert world.endpoints() == ["ny:1"]
    other = World()
    other.says("s:1", "/", down("/ny", "new:1"))
    other.says("new:1", "/ny", here("/ny/x"))
    walk = start("/ny/x", hint=lambda _: known)
    assert isinstance(other.run(walk), AnswerResult)
    assert other.endpoints() == ["ny:1", "s:1", "new:1"]
    assert [str(mount) for mount in walk.bad_hints] == ["/ny"]


# -- absent, unreachable, not ready, no route --------------------------------------------------


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ([errors.NotReady("loading"), errors.NotReady("loading")], errors.NotReady),
        ([errors.NotReady("loading"), errors.Unreachable("refused")], errors.NotReady),
        ([errors.Unreachable("refused"), errors.NotReady("loading")], errors.NotReady),
        ([errors.StoreUnavailable("away"), errors.Unreachable("no")], errors.StoreUnavailable),
        ([errors.StoreUnavailable("away"), errors.NotReady("loading")], errors.NotReady),
        ([errors.Unreachable("refused"), errors.NotAuthoritative("no")], errors.Unreachable),
        ([errors.DeadlineExceeded("slow"), errors.Unmounted("no")], errors.Unreachable),
        ([errors.Unmounted("no"), errors.Unimplemented("no")], errors.Lame),
        ([errors.Internal("bug"), errors.NotAuthoritative("no")], errors.Internal),
        ([errors.Internal("bug"), errors.Unreachable("no")], errors.Unreachable),
        ([errors.UnreadableRecord("x"), errors.NotAuthoritative("no")], errors.UnreadableRecord),
        ([errors.PermissionDenied("no"), errors.Unreachable("no")], errors.PermissionDenied),
        ([errors.NoRoute("no"), errors.NotAuthoritative("no")], errors.Lame),
        ([errors.LimitExceeded("busy"), errors.LimitExceeded("busy")], errors.LimitExceeded),
    ],
)
def test_what_a_hops_failures_come_to(world: World, output: Any, kind: type[KdirError]) -> None:
    world.says("s:1", "/", down("/a", "a:1", "a:2"))
    world.says("a:1", "/a", output[0])
    world.says("a:2", "/a", output[1])
    error = failure(world.run(start("/a/x")))
    assert type(error) is kind
    assert error.attempts


def test_no_route_names_the_servers_to_begin_with_and_those_above(world: World) -> None:
    world.says("s:1", "/la", errors.NoRoute("no parent"))
    assert type(failure(world.run(start("/ny/x")))) is errors.NoRoute
    other = World()
    other.says("s:1", "/la/t", up("/la", "la:1"))
    other.says("la:1", "/la", ErrorAnswer(errors.NoRoute("no parent")))
    assert type(failure(other.run(start("/ny/x")))) is errors.NoRoute


def test_a_mount_without_servers_is_unreachable_not_absent(world: World) -> None:
    world.says("s:1", "/", down("/a", cluster="waiting", cluster_id="c1"))
    error = failure(world.run(start("/a/x")))
    assert type(error) is errors.Unreachable
    assert error.metadata["cluster_id"] == "c1"


def test_nobody_to_begin_with(world: World) -> None:
    assert type(failure(world.run(start("/a", "s:1", "s:2")))) is errors.Unreachable


def test_after_the_deadline_the_error_is_deadline_exceeded(world: World) -> None:
    walk = start("/a")
    walk.next_query()
    walk.out_of_time()
    end = walk.next_query()
    assert not isinstance(end, Query)
    assert type(failure(end)) is errors.DeadlineExceeded


# -- no travel in time -------------------------------------------------------------------------


def test_an_older_answer_than_was_seen_is_taken_from_nobody(world: World) -> None:
    world.floor = {"/a": Position("i1", 7)}
    world.says("s:1", "/a", here("/a/x"), revision=6)
    world.says("s:2", "/a", here("/a/x"), revision=7)
    end = world.run(start("/a/x", "s:1", "s:2"))
    assert isinstance(end, AnswerResult)
    assert end.sender.revision == 7
    assert world.verdicts == [AnswerStatus.OLD, AnswerStatus.ACCEPTED]


def test_a_server_that_lags_learns_what_to_wait_for(world: World) -> None:
    world.floor = {"/a": Position("i1", 7)}
    world.says("s:1", "/a", here("/a/x"), revision=6)
    world.says("s:1", "/a", here("/a/x"), revision=8)
    assert isinstance(world.run(start("/a/x")), AnswerResult)
    assert [ask.after for ask in world.asks] == [None, Position("i1", 7)]


def test_a_server_that_goes_on_lagging_is_not_ready(world: World) -> None:
    world.floor = {"/a": Position("i1", 7)}
    world.says("s:1", "/a", here("/a/x"), revision=6)
    assert type(failure(world.run(start("/a/x")))) is errors.NotReady
    assert len(world.asks) == 2


def test_revisions_of_two_incarnations_say_nothing_about_each_other(world: World) -> None:
    world.floor = {"/a": Position("an earlier life", 700)}
    world.says("s:1", "/a", here("/a/x"), revision=6)
    assert isinstance(world.run(start("/a/x")), AnswerResult)


# -- links ---------------------------------------------------------------------------------


def test_a_rewrite_begins_a_new_walk(world: World) -> None:
    world.says("s:1", "/", link("/l", "/ny/t/x"), path="/l/x")
    world.says("s:1", "/", down("/ny", "ny:1"), path="/ny/t/x")
    world.says("ny:1", "/ny", here("/ny/t/x"))
    end = world.run(start("/l/x"))
    assert isinstance(end, AnswerResult)
    assert [str(step.link) for step in end.links] == ["/l"]
    assert not end.links[0].fallback


def test_first_falls_back_when_a_target_cannot_be_asked(world: World) -> None:
    world.says("s:1", "/", link("/l", "/a/x", "/b/x"), path="/l/x")
    world.says("s:1", "/", down("/a", "a:1"), path="/a/x")
    world.says("s:1", "/", down("/b", "b:1"), path="/b/x")
    world.says("b:1", "/b", here("/b/x"))
    end = world.run(start("/l/x"))
    assert isinstance(end, AnswerResult)
    assert end.links[0].fallback
    assert end.lifetime_seconds <= 5, "the first target may be back"


def test_a_fallback_is_not_for_writers(world: World) -> None:
    world.says("s:1", "/", link("/l", "/a/x", "/b/x"), path="/l/x")
    world.says("s:1", "/", down("/a", "a:1"), path="/a/x")
    assert type(failure(world.run(start("/l/x", for_writes=True)))) is errors.Unreachable
    assert "/b/x" not in [path for _, path in world.asked]
    other = World()
    other.says("s:1", "/", link("/l", "/a/x", "/b/x", writes_follow=True), path="/l/x")
    other.says("s:1", "/", down("/a", "a:1"), path="/a/x")
    other.says("s:1", "/", here("/b/x"), path="/b/x")
    assert isinstance(other.run(start("/l/x", for_writes=True)), AnswerResult)


def test_first_does_not_fall_back_on_absent_unless_it_says_so(world: World) -> None:
    for says_so in (False, True):
        world = World()
        rewrite = link("/l", "/a/x", "/b/x", fall_back_on_absent=says_so)
        world.says("s:1", "/", rewrite, path="/l/x")
        world.says("s:1", "/", absent(), path="/a/x")
        world.says("s:1", "/", here("/b/x"), path="/b/x")
        assert isinstance(world.run(start("/l/x")), AnswerResult if says_so else AbsentResult)


def test_nobody_says_absent_while_an_earlier_target_cannot_say(world: World) -> None:
    world.says("s:1", "/", link("/l", "/a/x", "/b/x"), path="/l/x")
    world.says("s:1", "/", down("/a", "a:1"), path="/a/x")
    world.says("s:1", "/", absent(), path="/b/x")
    assert type(failure(world.run(start("/l/x")))) is errors.Unreachable


def test_union_takes_the_first_target_that_has_the_name(world: World) -> None:
    world.says("s:1", "/", link("/l", "/a/x", "/b/x", mode=LinkMode.UNION), path="/l/x")
    world.says("s:1", "/", absent(), path="/a/x")
    world.says("s:1", "/", here("/b/x"), path="/b/x")
    end = world.run(start("/l/x"))
    assert isinstance(end, AnswerResult)
    assert str(end.answer.path) == "/b/x"
    assert end.lifetime_seconds == 5, "no longer than the first target's absence"


def test_union_is_unreachable_while_an_earlier_target_cannot_say(world: World) -> None:
    world.says("s:1", "/", link("/l", "/a/x", "/b/x", mode=LinkMode.UNION), path="/l/x")
    world.says("s:1", "/", down("/a", "a:1"), path="/a/x")
    world.says("s:1", "/", here("/b/x"), path="/b/x")
    assert type(failure(world.run(start("/l/x")))) is errors.Unreachable


def test_a_union_that_nobody_has_is_absent_where_its_first_target_would_be(world: World) -> None:
    world.says("s:1", "/", link("/l", "/a/x", "/b/x", mode=LinkMode.UNION), path="/l/x")
    world.says("s:1", "/", absent(), path="/a/x")
    world.says("s:1", "/", absent(), path="/b/x")
    end = world.run(start("/l/x"))
    assert isinstance(end, AbsentResult)
    assert str(end.path) == "/a/x"


def test_all_that_a_union_has_is_gathered_when_asked(world: World) -> None:
    world.says("s:1", "/", link("/l", "/a", "/b", "/c", "/d", mode=LinkMode.UNION), path="/l")
    world.says("s:1", "/", here("/a"), path="/a")
    world.says("s:1", "/", absent(), path="/b")
    world.says("s:1", "/", down("/c", "c:1"), path="/c")
    world.says("s:1", "/", here("/d"), path="/d")
    end = world.run(start("/l", gathers_unions=True))
    assert isinstance(end, United)
    assert [str(part.answer.path) for part in end.parts] == ["/a", "/d"]
    assert [str(path) for path, _ in end.missing] == ["/c"]
    assert end.trouble is None, "what one answer is wanted of is the first part"


@pytest.mark.parametrize("failing", ["/a", "/b"])
def test_a_union_of_which_a_target_failed_fails_whatever_else_is_not_ready(
    world: World, failing: str
) -> None:
    world.says("s:1", "/", link("/l", "/a", "/b", mode=LinkMode.UNION), path="/l")
    for path in ("/a", "/b"):
        error = errors.Internal("a bug") if path == failing else errors.NotReady("is loading")
        world.says("s:1", "/", ErrorAnswer(error), path=path)
    assert type(failure(world.run(start("/l", gathers_unions=True)))) is errors.Internal


def test_what_was_gathered_is_given_when_the_time_is_over(world: World) -> None:
    world.says("s:1", "/", link("/l", "/a", "/b", "/c", mode=LinkMode.UNION), path="/l")
    world.says("s:1", "/", here("/a"), path="/a")
    walk = start("/l", gathers_unions=True)
    while isinstance(step := walk.next_query(), Query):
        if str(step.path) == "/b":
            walk.out_of_time()
        else:
            walk.on_answer(world.output["s:1", str(step.path)][0], {})  # type: ignore[arg-type]
    assert isinstance(step, United)
    assert [str(part.answer.path) for part in step.parts] == ["/a"]
    assert [str(path) for path, _ in step.missing] == ["/b", "/c"]


@pytest.mark.parametrize("gathers", [False, True])
def test_a_link_whose_first_target_is_a_union_without_the_name_falls_back(
    world: World, *, gathers: bool
) -> None:
    first = link("/l", "/u/x", "/d/x", fall_back_on_absent=True)
    world.says("s:1", "/", first, path="/l/x")
    world.says("s:1", "/", link("/u", "/a/x", "/b/x", mode=LinkMode.UNION), path="/u/x")
    for path in ("/a/x", "/b/x"):
        world.says("s:1", "/", absent(), path=path)
    world.says("s:1", "/", here("/d/x"), path="/d/x")
    end = world.run(start("/l/x", gathers_unions=gathers))
    assert isinstance(end, AnswerResult)
    assert str(end.answer.path) == "/d/x"


@pytest.mark.parametrize("gathers", [False, True])
def test_a_link_whose_first_target_is_a_union_that_cannot_say_falls_back(
    world: World, *, gathers: bool
) -> None:
    """One answer is not taken past a target that may have the name; so all is not, either."""
    world.says("s:1", "/", link("/l", "/u/x", "/d/x"), path="/l/x")
    world.says("s:1", "/", link("/u", "/a/x", "/b/x", mode=LinkMode.UNION), path="/u/x")
    world.says("s:1", "/", down("/a", "a:1"), path="/a/x")
    world.says("s:1", "/", here("/b/x"), path="/b/x")
    world.says("s:1", "/", here("/d/x"), path="/d/x")
    end = world.run(start("/l/x", gathers_unions=gathers))
    assert isinstance(end, AnswerResult)
    assert str(end.answer.path) == "/d/x"


# -- what an answer was read at ------------------------------------------------------------


def read_at(end: End) -> dict[str, int]:
    assert isinstance(end, AnswerResult | AbsentResult), end
    return {cluster_id: place.revision for cluster_id, place in end.read.positions.items()}


def wanting(**positions: int) -> dict[str, Position]:
    ids = {"root": "/", "la": "/la", "ny": "/ny"}
    return {ids[name]: Position("i1", revision) for name, revision in positions.items()}


def test_an_answer_has_the_positions_of_all_on_its_way(world: World) -> None:
    world.says("s:1", "/la", link("/la/l", "/ny/x"), path="/la/l", revision=3)
    world.says("s:1", "/la", up("/", "root:1"), path="/ny/x", revision=4)
    world.says("root:1", "/", down("/ny", "ny:1", cluster_id="/ny"), revision=9)
    world.says("ny:1", "/ny", here("/ny/x"), revision=7)
    walk = start("/la/l")
    end = world.run(walk)
    assert read_at(end) == {"/la": 3, "/": 9, "/ny": 7}
    assert isinstance(end, AnswerResult)
    assert end.read.reaches(wanting(la=3, root=9))
    assert not end.read.reaches(wanting(la=4))
    (learned,) = (known for known, _ in walk.learned)
    assert not learned.read.reaches(wanting(root=10))
    assert learned.read.reaches(wanting(ny=100)), "it rests on those who led there"


def test_an_absence_has_the_positions_of_every_target_that_answered_so(world: World) -> None:
    union = link("/l", "/la/x", "/ny/x", mode=LinkMode.UNION)
    world.says("s:1", "/", union, path="/l", revision=2)
    world.says("s:1", "/", down("/la", "la:1"), path="/la/x", revision=2)
    world.says("s:1", "/", down("/ny", "ny:1"), path="/ny/x", revision=2)
    world.says("la:1", "/la", absent("/la"), revision=5)
    world.says("ny:1", "/ny", absent("/ny"), revision=6)
    assert read_at(world.run(start("/l"))) == {"/": 2, "/la": 5, "/ny": 6}


def test_what_a_fallback_gave_is_good_for_no_token_of_the_target_that_was_away(
    world: World,
) -> None:
    world.says("s:1", "/", link("/l", "/la/x", "/x"), path="/l", revision=2)
    world.says("s:1", "/", down("/la", "la:1"), path="/la/x", revision=2)
    world.says("s:1", "/", here("/x"), path="/x", revision=2)
    end = world.run(start("/l"))
    assert isinstance(end, AnswerResult)
    assert end.read.reaches(wanting(root=2))
    assert not end.read.reaches(wanting(la=1))


def test_a_hint_older_than_the_callers_token_is_not_followed(world: World) -> None:
    learned = ReadPositions({"/": Position("i1", 5)})
    hint = Referral(
        AskedBecause.CACHE, p("/ny"), ("ny:1",), "/ny", read=learned, lifetime_seconds=60
    )
    world.says("ny:1", "/ny", here("/ny/x"))
    world.says("s:1", "/", absent(), revision=6)
    rules = ResolutionOptions(("s:1",), hint=lambda _: hint)
    for wanted, endpoint in ((wanting(root=5), "ny:1"), (wanting(root=6), "s:1")):
        world.asked.clear()
        world.run(ResolutionStateMachine(p("/ny/x"), rules._replace(wanted=wanted)))
        assert world.endpoints() == [endpoint]


def test_a_direct_hint_is_followed_where_the_token_names_nobody_between(world: World) -> None:
    world.says("s:1", "/la", direct("/ny", "ny:1", cluster_id="/ny"), path="/ny/x", revision=4)
    world.says("s:1", "/la", up("/", "root:1", cluster_id="/"), path="/", revision=4)
    world.says("root:1", "/", absent(), revision=6)
    world.says("ny:1", "/ny", here("/ny/x"), revision=7)
    for wanted in ({}, wanting(la=4), wanting(ny=7), wanting(la=1, ny=1)):
        end = world.run(start("/ny/x", wanted=wanted))
        assert isinstance(end, AnswerResult)
        assert not end.read.reaches(wanting(root=1)), "the root was not asked"
    assert "root:1" not in world.endpoints()
    assert isinstance(world.run(start("/ny/x", wanted=wanting(root=6))), AbsentResult)


def test_links_in_links(world: World) -> None:
    world.says("s:1", "/", link("/l", "/m/x", "/b/x"), path="/l/x")
    world.says("s:1", "/", link("/m", "/c/x", "/d/x"), path="/m/x")
    world.says("s:1", "/", down("/c", "c:1"), path="/c/x")
    world.says("s:1", "/", down("/d", "d:1"), path="/d/x")
    world.says("s:1", "/", here("/b/x"), path="/b/x")
    end = world.run(start("/l/x"))
    assert isinstance(end, AnswerResult)
    assert [(str(step.link), step.fallback) for step in end.links] == [("/l", True)]


def test_a_circle_of_links_ends(world: World) -> None:
    world.says("s:1", "/", link("/l", "/m/x"), path="/l/x")
    world.says("s:1", "/", link("/m", "/l/x"), path="/m/x")
    error = failure(world.run(start("/l/x")))
    assert type(error) is errors.ReferralLoop
    assert error.metadata["chain"] == "/l/x → /m/x → /l/x"


def test_links_that_grow_for_ever_end(world: World) -> None:
    class Growing(World):
        def run(self, walk: ResolutionStateMachine, most: int = 200) -> End:
            while isinstance(step := walk.next_query(), Query):
                self.asks.append(step)
                assert len(self.asks) < most
                longer = step.path.child("x")
                self.verdicts.append(
                    walk.on_answer(Reply(Sender("c", p("/")), Rewrite(p("/l"), (longer,))), {})
                )
            return step

    growing = Growing()
    assert type(failure(growing.run(start("/l")))) is errors.TooManyHops
    assert len(growing.asks) <= MAX_HOPS + 1


# -- budgets -------------------------------------------------------------------------------


def chain_world(length: int) -> tuple[World, str]:
    world = World()
    path = "/" + "/".join(f"d{n}" for n in range(length + 1))
    for n in range(length):
        mount = "/" + "/".join(f"d{k}" for k in range(n)) if n else "/"
        deeper = "/" + "/".join(f"d{k}" for k in range(n + 1))
        world.says("s:1" if n == 0 else f"h{n}:1", mount, down(deeper, f"h{n + 1}:1"))
    world.says(f"h{length}:1", "/" + "/".join(f"d{k}" for k in range(length)), here(path))
    return world, path


def test_sixteen_hops_are_allowed_and_not_one_more() -> None:
    world, path = chain_world(MAX_HOPS)
    assert isinstance(world.run(start(path)), AnswerResult)
    world, path = chain_world(MAX_HOPS + 1)
    error = failure(world.run(start(path)))
    assert type(error) is errors.TooManyHops
    assert "h16:1" in error.metadata["chain"]


def test_twenty_endpoints_of_a_referral_are_asked(world: World) -> None:
    many = [f"a{n}:1" for n in range(10_000)]
    world.says("s:1", "/", down("/a", *many))
    assert type(failure(world.run(start("/a/x")))) is errors.Unreachable
    assert len(world.asks) == 21


def test_fifty_calls_and_not_one_more(world: World) -> None:
    world.says("s:1", "/", link("/l", *(f"/t{n}/x" for n in range(20))), path="/l/x")
    for n in range(20):
        servers = [f"t{n}-{k}:1" for k in range(20)]
        world.says("s:1", "/", down(f"/t{n}", *servers), path=f"/t{n}/x")
    error = failure(world.run(start("/l/x")))
    assert type(error) is errors.Unreachable
    assert len(world.asks) == MAX_CALLS
    assert "50 calls" in error.message


def test_the_time_left_is_split_among_those_that_could_still_be_asked(world: World) -> None:
    walk = start("/a/x", "s:1", "s:2")
    first = walk.next_query()
    assert isinstance(first, Query)
    assert first.share == 1 / 2
    walk.on_error(errors.Unreachable("no"))
    second = walk.next_query()
    assert isinstance(second, Query)
    assert second.share == 1
    hinted = start("/a/x", hint=lambda _: referral(AskedBecause.CACHE, "/a", "a:1"))
    step = hinted.next_query()
    assert isinstance(step, Query)
    assert step.share == 1 / 2, "the tree must still have its turn"


def test_an_endpoint_that_is_not_allowed_is_not_asked(world: World) -> None:
    world.says("s:1", "/", down("/a", "bad:1", "good:1"))
    world.says("good:1", "/a", here("/a/x"))
    refusal: Callable[[str], str] = lambda e: "no" if e == "bad:1" else ""  # noqa: E731
    end = world.run(start("/a/x", refusal=refusal))
    assert isinstance(end, AnswerResult)
    assert world.endpoints() == ["s:1", "good:1"]
    assert end.endpoints == ("good:1",), "later calls to the owner would reach the refused one"
    other = World()
    other.says("s:1", "/", down("/a", "bad:1"))
    assert type(failure(other.run(start("/a/x", refusal=refusal)))) is errors.BadReferral


def test_a_server_that_walks_for_us_may_answer_for_any_path(world: World) -> None:
    sender = Sender("ny", p("/ny"))
    walk = start("/l/x", recursive=True)
    step = walk.next_query()
    assert isinstance(step, Query)
    assert step.recursive
    walk.on_answer(Reply(sender, here("/ny/x")), {})
    assert isinstance(walk.next_query(), AnswerResult)


def test_a_server_that_will_not_walk_for_us_refers_us(world: World) -> None:
    world.says("s:1", "/", down("/a", "a:1"))
    world.says("a:1", "/a", here("/a/x"))
    assert isinstance(world.run(start("/a/x", recursive=True)), AnswerResult)
    assert [ask.recursive for ask in world.asks] == [True, False]


# -- circles -------------------------------------------------------------------------------


def test_a_server_that_refers_to_itself(world: World) -> None:
    world.says("s:1", "/la", up("/", "s:1"))
    error = failure(world.run(start("/x")))
    assert type(error) is errors.ReferralLoop
    assert len(world.asks) == 1


def test_two_servers_that_refer_to_each_other(world: World) -> None:
    world.says("s:1", "/la", up("/", "r:1"))
    world.says("r:1", "/", down("/x", "s:1"))
    walk = start("/x/y")
    error = failure(world.run(walk))
    assert type(error) is errors.ReferralLoop
    assert len(world.asks) == 2
    assert walk.learned == ()


def test_after_a_circle_the_other_servers_are_asked(world: World) -> None:
    world.says("s:1", "/la", up("/", "r:1", "r:2"))
    world.says("r:1", "/", down("/x", "s:1"))
    world.says("r:2", "/", here("/x/y"))
    assert isinstance(world.run(start("/x/y")), AnswerResult)
