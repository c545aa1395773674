"""The mount table on a link: sent as changes, made once for all links, received within bounds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kdir.v1 import federation_pb2

from directory.federation import parent_state
from directory.federation.parent_state import TableRow
from directory.federation.table_exchange import ReceivedTable, SentTable, messages_of
from directory.federation.table_sizes import fair_shares, fit_rows
from directory.store.base import Put
from directory.store.etcd.transaction import LIMITS
from resolver.path import Path
from tests.support.trees import path


def row(mount: str, **fields: object) -> federation_pb2.MountRow:
    return federation_pb2.MountRow(mount=mount, cluster_id="kc-" + mount.strip("/"), **fields)  # type: ignore[arg-type]


class Sending:
    """A table that a test changes, with a clock of its own."""

    def __init__(self, *mounts: str) -> None:
        self.now = 1_000.0
        self.made = 0
        self.rows = {mount: TableRow(row(mount), 1) for mount in mounts}
        self.sent = SentTable(
            self._rows,
            parent_state.without_volatile_fields,
            lambda table: table,
            lambda: int(1000 * self.now),
            lambda: self.now,
        )

    def _rows(self) -> Sequence[TableRow]:
        self.made += 1
        return list(self.rows.values())

    def put(self, mount: str, **fields: object) -> None:
        self.rows[mount] = TableRow(row(mount, **fields), int(1000 * self.now))

    def later(self, seconds: float = 10) -> None:
        self.sent.mark_changed()
        self.now += seconds

    def since(self, version: int) -> tuple[int, Sequence[federation_pb2.MountTable]]:
        return self.sent.messages_since(version)


def received(most_rows: int = 100, most_bytes: int = 10_000) -> ReceivedTable:
    return ReceivedTable(
        path("/la").is_prefix_of, most_rows=most_rows, most_bytes=most_bytes, most_endpoints=3
    )


def mounts(table: ReceivedTable) -> list[str]:
    return [one.row.mount for one in table.rows]


def test_a_link_gets_the_table_and_then_what_changes_of_it() -> None:
    sending = Sending("/la/a", "/la/b", "/la/c")
    version, (whole,) = sending.since(0)
    assert ([one.mount for one in whole.rows], whole.is_change) == (
        ["/la/a", "/la/b", "/la/c"],
        False,
    )
    assert sending.since(version) == (version, ())
    sending.put("/la/b", epoch=2)
    sending.put("/la/d")
    del sending.rows["/la/a"]
    sending.later()
    newest, (change,) = sending.since(version)
    assert newest > version
    assert change.is_change
    assert [one.mount for one in change.rows] == ["/la/b", "/la/d"]
    assert list(change.removed) == ["/la/a"]


def test_the_table_is_made_once_for_all_links_and_not_when_nothing_changed() -> None:
    sending = Sending(*(f"/la/{one}" for one in range(300)))
    everybody = [sending.since(0) for _ in range(100)]
    assert sending.made == 1
    assert len({id(one) for _, messages in everybody for one in messages}) == 1
    for _ in range(100):
        sending.put("/la/7", topic_count=3)
        sending.later(0.01)
        assert not sending.since(1)[1], "changes that follow each other come together"
    assert sending.made == 1
    sending.later(3)
    assert not sending.since(1)[1], "counts are sent now and then"
    sending.later(30)
    assert [one.mount for one in sending.since(1)[1][0].rows] == ["/la/7"]


def test_G12_a_clock_that_was_put_back_makes_no_row_older_than_it_is() -> None:
    wall = [1_000_000]
    rows = [TableRow(row("/la/a"), wall[0]), TableRow(row("/la/b", confirmed=True), wall[0])]
    now = [0.0]
    sent = SentTable(
        lambda: rows,
        parent_state.without_volatile_fields,
        lambda table: table,
        lambda: wall[0],
        lambda: now[0],
    )

    def ages() -> list[float]:
        (table,) = sent.messages_since(0)[1]
        return [one.age_seconds for one in table.rows]

    assert ages() == [1, 0]
    wall[0] -= 900_000
    now[0] += 1
    assert ages() == [0, 0]
    # Later rows have the time of the new clock.
    rows[0] = TableRow(row("/la/a", epoch=2), wall[0])
    sent.mark_changed()
    now[0] += 10
    wall[0] += 10_000
    assert ages() == [11, 0]


def test_rows_that_the_link_confirms_are_not_sent_again_for_their_age() -> None:
    sending = Sending()
    for one in range(300):
        sending.put(f"/la/{one}", confirmed=True, linked=True)
    version, _ = sending.since(0)
    made = sending.made
    for _ in range(1_000):
        sending.now += 60
        assert not sending.since(version)[1]
    assert sending.made == made, "nothing was marked: nothing is looked at"
    for one in range(300):  # each of them was confirmed since
        sending.put(f"/la/{one}", confirmed=True, linked=True)
    sending.sent.mark_counts()
    assert not sending.since(version)[1]
    assert sending.made == made + 1


def test_a_link_that_is_new_gets_confirmed_rows_with_the_age_that_they_have() -> None:
    sending = Sending()
    sending.put("/la/a", confirmed=True)
    sending.put("/la/b")
    sending.since(0)
    for _ in range(60):
        sending.now += 60
        sending.put("/la/a", confirmed=True)
        sending.later()
        sending.since(1)
    _, (table,) = sending.since(0)
    ages = {one.mount: one.age_seconds for one in table.rows}
    assert ages["/la/a"] <= 10
    assert ages["/la/b"] >= 3_600


def test_a_row_that_nothing_confirms_any_more_is_sent_at_once_with_its_age() -> None:
    sending = Sending()
    sending.put("/la/a", confirmed=True)
    version, _ = sending.since(0)
    sending.now += 3_600
    sending.put("/la/a", confirmed=True)
    sending.rows["/la/a"] = sending.rows["/la/a"].unconfirmed()
    sending.later()
    newest, (change,) = sending.since(version)
    assert (change.rows[0].confirmed, change.rows[0].age_seconds >= 10) == (False, True)
    for _ in range(10):
        sending.later(60)
        assert not sending.since(newest)[1], "its receiver has its age"


def test_counts_that_change_while_nothing_else_does_are_sent_now_and_then() -> None:
    sending = Sending("/la/a", "/la/b")
    version, _ = sending.since(0)
    sending.put("/la/a", topic_count=7)
    sending.sent.mark_counts()
    assert not sending.since(version)[1]
    sending.now += 30
    assert [one.mount for one in sending.since(version)[1][0].rows] == ["/la/a"]


def test_a_link_of_which_nothing_was_known_is_sent_once_it_is_known_to_be_none() -> None:
    sending = Sending("/la/a")
    sending.put("/la/a", link_unknown=True)
    version, (whole,) = sending.since(0)
    assert whole.rows[0].link_unknown
    sending.put("/la/a")
    sending.later(30)
    (change,) = sending.since(version)[1]
    assert not change.rows[0].link_unknown


def test_after_counts_were_sent_a_change_goes_at_once() -> None:
    """Links that rest would look for it at their next heartbeat, which may be long."""
    sending = Sending("/la/a", "/la/b")
    version, _ = sending.since(0)
    sending.now += 40.0
    sending.put("/la/a", topic_count=1)
    sending.sent.mark_counts()
    again, (aged,) = sending.since(version)
    assert [one.mount for one in aged.rows] == ["/la/a"]
    sending.put("/la/b", epoch=2)
    marked = sending.sent.marked
    assert sending.sent.mark_changed()
    assert sending.sent.marked == marked + 1
    _, (change,) = sending.since(again)
    assert [one.mount for one in change.rows] == ["/la/b"]


def test_a_link_that_is_far_behind_gets_the_whole_table() -> None:
    sending = Sending("/la/a")
    first, _ = sending.since(0)
    version = first
    for epoch in range(100):
        sending.put("/la/a", epoch=epoch + 2)
        sending.later()
        version, _ = sending.since(0)
    assert not sending.since(first)[1][0].is_change
    assert sending.since(version - 1)[1][0].is_change


def test_a_row_is_not_sent_younger_than_it_is() -> None:
    sending = Sending("/la/a")
    sending.later(60)
    (message,) = sending.since(0)[1]
    assert message.rows[0].age_seconds >= 1_060
    sending.now += 0.9
    assert sending.since(0)[1][0].rows[0].age_seconds >= 1_060.9


def test_a_large_table_comes_in_several_messages_and_holds_when_all_came() -> None:
    rows = [row(f"/la/{one}", cluster="x" * 200) for one in range(3_000)]
    messages = list(messages_of(rows, ()))
    assert len(messages) > 2
    assert all(one.ByteSize() < 300_000 for one in messages)
    table = received(5_000, 5_000_000)
    assert [table.receive(one, 1) for one in messages] == [False] * (len(messages) - 1) + [True]
    assert len(table.rows) == 3_000
    change = list(
        messages_of([row("/la/new")], [one.mount for one in rows[:2_000]], is_change=True)
    )
    assert not table.receive(change[0], 1)
    assert len(table.rows) == 3_000, "until all of it came"
    assert [table.receive(one, 1) for one in change[1:]][-1]
    assert len(table.rows) == 1_001


@pytest.mark.parametrize(
    "wrong",
    [
        row("/ny/x"),
        row("no path"),
        row(""),
        row("/la/x", cluster="x" * 300),
        row("/la/x", cluster="a\nb"),
        row("/la/x", endpoints=["a:1"] * 4),
        row("/la/x", endpoints=["a" * 400]),
        row("/la/x", kafka={"cluster": "x" * 5_000}),
    ],
)
def test_a_row_that_may_not_be_costs_itself(wrong: federation_pb2.MountRow) -> None:
    table = received()
    rows = [row("/la/a"), wrong, row("/la/b")]
    assert table.receive(federation_pb2.MountTable(rows=rows), 1)
    assert mounts(table) == ["/la/a", "/la/b"]
    assert table.left_out == 1
    assert table.why_left_out


@pytest.mark.parametrize("count", [100, 101, 1_000])
def test_rows_over_the_bound_are_left_out(count: int) -> None:
    table = received(100, 1_000_000)
    table.receive(federation_pb2.MountTable(rows=[row(f"/la/{one}") for one in range(count)]), 1)
    assert len(table.rows) == 100
    assert table.left_out == count - 100
    for _ in range(3):  # nor in a change, or in many messages of one
        more = [row(f"/la/m{one}") for one in range(count)]
        table.receive(federation_pb2.MountTable(rows=more, is_change=True, has_more=True), 1)
    table.receive(federation_pb2.MountTable(removed=["/la/0"]), 1)
    assert len(table.rows) == 99


@pytest.mark.parametrize("count", [10, 11, 100])
def test_bytes_over_the_bound_are_left_out(count: int) -> None:
    size = row("/la/000").ByteSize()
    table = received(1_000, 10 * size)
    rows = [row(f"/la/{one:03}") for one in range(count)]
    table.receive(federation_pb2.MountTable(rows=rows), 1)
    assert len(table.rows) == 10
    table.receive(federation_pb2.MountTable(is_change=True, removed=["/la/000"]), 1)
    table.receive(federation_pb2.MountTable(is_change=True, rows=[row("/la/xyz")]), 1)
    assert mounts(table)[-1] == "/la/xyz"


def test_a_row_that_comes_again_and_again_takes_the_room_of_one() -> None:
    again = row("/la/a", endpoints=["h:1", "h:1", "h:1"])  # of which one is kept
    table = received(100, 4 * again.ByteSize())
    for _ in range(1_000):
        table.receive(federation_pb2.MountTable(rows=[again], is_change=True), 1)
        assert (mounts(table), table.left_out) == (["/la/a"], 0)


def test_a_row_of_a_message_keeps_no_more_than_itself() -> None:
    table = received(2)
    message = federation_pb2.MountTable(rows=[row("/la/a")])
    table.receive(message, 1)
    message.rows[0].cluster = "another"
    assert table.rows[0].row.cluster == ""


def test_one_group_that_is_too_large_costs_the_others_nothing() -> None:
    groups = {
        "greedy": [TableRow(row(f"/g/{one:05}"), 1) for one in range(21_000)],
        "honest": [TableRow(row(f"/h/{one:05}"), 1) for one in range(400)],
    }
    fitting = fit_rows(groups, 1_000, 10_000_000)
    assert {name: len(rows) for name, rows in fitting.items()} == {"greedy": 600, "honest": 400}
    small = fit_rows(groups, 1_000, 800 * groups["honest"][0].row.ByteSize())
    assert len(small["honest"]) == 400
    assert 390 <= len(small["greedy"]) <= 400
    assert not any(fit_rows(groups, -5, 100).values())


def test_a_row_for_which_there_is_no_room_costs_itself_only() -> None:
    small = [TableRow(row(f"/g/{one}"), 1) for one in range(4)]
    large = TableRow(row("/g/large", cluster="x" * 250), 1)
    room = 4 * small[0].row.ByteSize()
    fitting = fit_rows({"greedy": [small[0], large, *small[1:]]}, 100, room)
    assert fitting == {"greedy": small}


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 50)), st.integers(-5, 300))
def test_shares_are_fair(wanted: dict[str, int], most: int) -> None:
    shares = fair_shares(wanted, most)
    assert shares.keys() == wanted.keys()
    assert sum(shares.values()) == min(sum(wanted.values()), max(0, most))
    cut = {name for name in wanted if shares[name] < wanted[name]}
    for name in cut:
        assert all(shares[name] >= shares[other] - 1 for other in wanted), "nobody got more"


@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 3)), max_size=12))
def test_what_is_received_is_what_was_sent(tables: list[dict[str, int]]) -> None:
    sending, table, version = Sending(), received(), 0
    for one in tables:
        sending.rows = {
            f"/la/{name}": TableRow(row(f"/la/{name}", epoch=epoch), 1)
            for name, epoch in one.items()
        }
        sending.later()
        version, messages = sending.since(version)
        for message in messages:
            table.receive(federation_pb2.MountTable.FromString(message.SerializeToString()), 1)
        assert {one.row.mount: one.row.epoch for one in table.rows} == {
            mount: one.row.epoch for mount, one in sending.rows.items()
        }


def test_a_table_of_a_thousand_is_kept_in_steps_that_etcd_takes() -> None:
    writes = [Put(b"f/mount/%d" % one, b"x" * 5_000) for one in range(1_000)]
    steps = list(parent_state.table_steps(writes, LIMITS.max_writes - 8))
    assert [write for step in steps for write in step] == writes
    for step in steps:
        assert LIMITS.hold(3, len(step))
        assert sum(len(write.value) for write in step if isinstance(write, Put)) < LIMITS.max_bytes


def test_paths_are_compared_by_segment() -> None:
    table = received()
    table.receive(federation_pb2.MountTable(rows=[row("/lax/a"), row("/la/a")]), 1)
    assert [one.mount for one in table.rows] == [Path.parse("/la/a")]
