"""Heartbeats that links share: who sends them, and when the other side counts as away."""

from __future__ import annotations

from math import inf, nan

from directory.federation.link_groups import LinkGroups, LinkPace


class Link:
    """Link of a cluster that may hang."""

    def __init__(self) -> None:
        self.is_receiving = False
        self.hangs = False
        self.beats = 0
        self.is_ended = False
        self.is_beat_due = False

    def beat(self) -> bool:
        if self.is_beat_due:
            return False
        self.is_beat_due = True
        return True

    def end(self) -> None:
        self.is_ended = True


class Group:
    """Group of links with heartbeats of 2 s, and a clock that the test sets."""

    def __init__(self, count: int) -> None:
        self.now = 100.0
        self.groups = LinkGroups(lambda: self.now)
        self.links = [Link() for _ in range(count)]
        for one in self.links:
            self.group = self.groups.join("key", one, 2.0)
        self.sent: list[float] = []

    def go_on(self, seconds: float) -> None:
        """Looks each half second; what is to beat, and does not hang, beats."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            self.groups.look()
            for one in self.links:
                if one.is_beat_due and not one.hangs:
                    one.is_beat_due = False
                    one.beats += 1
                    self.group.note_sent()
                    self.sent.append(self.now)

    def longest_pause(self) -> float:
        return max(b - a for a, b in zip(self.sent, self.sent[1:], strict=False))


def test_one_heartbeat_is_sent_for_all_links_by_one_after_the_other() -> None:
    group = Group(100)
    for _ in range(100):
        group.group.note_received()
        group.go_on(2.0)
    assert group.longest_pause() <= 2.0
    assert len(group.sent) <= 140
    assert max(one.beats for one in group.links) <= 2


def test_links_that_hang_hold_up_no_heartbeat_for_longer_than_the_other_side_waits() -> None:
    group = Group(100)
    for one in group.links[20:25]:
        one.hangs = True
    for _ in range(200):
        group.group.note_received()
        group.go_on(2.0)
    assert group.longest_pause() < 5.0
    assert not any(one.is_ended for one in group.links)
    assert all(one.beats for one in group.links if not one.hangs)


def test_where_nothing_comes_all_links_end() -> None:
    group = Group(3)
    group.go_on(5.0)
    assert not any(one.is_ended for one in group.links)
    group.go_on(0.5)
    assert all(one.is_ended for one in group.links)


def test_while_one_link_deals_with_a_message_the_other_side_is_not_silent() -> None:
    group = Group(3)
    group.links[1].is_receiving = True
    group.go_on(60.0)
    assert not any(one.is_ended for one in group.links)
    group.links[1].is_receiving = False
    group.go_on(0.5)
    assert all(one.is_ended for one in group.links)


def test_a_link_that_left_neither_beats_nor_ends_and_groups_are_apart() -> None:
    group = Group(2)
    other = Link()
    apart = group.groups.join("another key", other, 2.0)
    assert apart is not group.group
    left, stays = group.links
    group.groups.leave(group.group, left)
    group.go_on(4.0)
    assert stays.beats
    assert not left.beats
    apart.note_received()
    group.go_on(4.0)
    assert (left.is_ended, stays.is_ended, other.is_ended) == (False, True, False)
    group.groups.leave(group.group, stays)
    group.groups.leave(apart, other)
    assert group.groups.look() is None
    assert group.groups.join("key", stays, 2.0) is not group.group


def test_heartbeats_are_rare_only_once_nothing_has_changed_for_some_of_them() -> None:
    pace = LinkPace(2.0, Group(1).group)
    for marked in (
        1,
        2,
    ):  # what changes right after goes with the next heartbeat, not with a rare one
        for _ in range(5):
            pace.note_sent(marked)
            assert pace.seconds == 2.0
        pace.note_sent(marked)
        assert pace.seconds == 10.0
    assert pace.silent_seconds == 30.0


def test_a_link_that_shares_none_has_heartbeats_of_its_own() -> None:
    pace = LinkPace(2.0, None)
    for _ in range(20):
        pace.note_sent(1)
    assert (pace.seconds, pace.silent_seconds) == (2.0, 6.0)


def test_the_longer_interval_of_both_ends_decides_when_the_other_side_is_silent() -> None:
    def silent_seconds(own: float, reported: float) -> float:
        pace = LinkPace(own, None, reported)
        assert pace.seconds == own
        return pace.silent_seconds

    assert silent_seconds(0.5, 2.0) == silent_seconds(2.0, 0.5) == 6.0
    assert silent_seconds(2.0, inf) == 3 * 3_600.0
    for none in (0.0, -1.0, nan):
        assert silent_seconds(2.0, none) == 6.0
    group = Group(1)
    assert LinkPace(2.0, group.group, 6.0).silent_seconds == 90.0
    slower = Link()
    group.groups.join("key", slower, 2.0, 6.0)
    group.go_on(15.0)
    assert group.links[0].is_ended
    assert not slower.is_ended
    group.go_on(0.5)
    assert slower.is_ended


def test_a_longer_interval_of_the_other_end_leads_to_no_longer_silence_than_allowed() -> None:
    """Inherited allows end after that time, also where a parent hangs (decision 0024)."""

    def silent_seconds(own: float, most: float) -> float:
        return LinkPace(own, None, 3_600.0, most).silent_seconds

    assert silent_seconds(2.0, 60.0) == 60.0
    assert silent_seconds(2.0, 1.0) == 6.0, "by its own interval"
    assert silent_seconds(2.0, inf) == 3 * 3_600.0
    group = Group(1)
    assert LinkPace(2.0, group.group, 3_600.0, 60.0).silent_seconds == 60.0
    group.groups.leave(group.group, group.links[0])
    bounded, waits = Link(), Link()
    shared = group.groups.join("key", bounded, 2.0, 3_600.0, 60.0)
    assert group.groups.join("key", waits, 2.0, 3_600.0) is shared
    group.go_on(60.0)
    assert not bounded.is_ended
    group.go_on(0.5)
    assert (bounded.is_ended, waits.is_ended) == (True, False)
