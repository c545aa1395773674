"""How often a publisher that cannot go on tries again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from directory.change_log.log_topics import LogTopics
from directory.change_log.publisher import ChangeLogPublisher
from directory.change_log.topic_writer import LogRefused
from directory.maintenance.event_index import EventIndex
from directory.namespace.command import CreateDirectory
from directory.namespace.keys import LEVEL
from directory.store.base import Put
from directory.store.sqlite.store import SqliteStore
from resolver.errors import KafkaUnavailable
from tests.support.large_trees import MOUNT, FakeKafka, server
from tests.support.waiting import eventually


class Failing(LogTopics):
    """Topics of which brokers return nothing but an error."""

    asked_count = 0
    error: Exception

    def make_and_check(self, admin: Any, *, were_there: bool) -> None:
        self.asked_count += 1
        raise self.error


@contextmanager
def publisher(store: Path, error: Exception) -> Iterator[tuple[ChangeLogPublisher, Failing]]:
    with server(SqliteStore(store, "la")) as here:
        here.writer.put_facts((Put(LEVEL, b"2"),))
        topics = Failing("kc-a", "state", "history", ["127.0.0.1:1"], dict)
        topics.error = error
        index = EventIndex(here.store)
        made = ChangeLogPublisher(
            "one",
            "la",
            here.store,
            here.replica,
            here.writer,
            index,
            mount=lambda _: MOUNT,
            topics=topics,
            admin=FakeKafka(),
        )
        here.replica.subscribe(index.applied)
        eventually(lambda: (made.step(), made.trouble)[1])
        yield made, topics
        here.execute(CreateDirectory(path=MOUNT.child("a")))  # it holds up no change
        made.leader.resign()


def test_P14_K10_brokers_that_are_away_are_asked_less_and_less_often(tmp_path: Path) -> None:
    with publisher(tmp_path / "la.sqlite", KafkaUnavailable("no broker")) as (made, topics):
        delays = [made.step() for _ in range(8)]
        assert made.trouble.startswith("no broker")
        assert topics.asked_count == 9
    for number, delay in enumerate(delays, 1):
        longest = min(30.0, 2.0 ** (number + 1))
        assert longest / 2 <= delay <= longest


def test_P14_topics_that_are_refused_are_asked_about_now_and_then(tmp_path: Path) -> None:
    with publisher(tmp_path / "la.sqlite", LogRefused("topic state is gone")) as (made, topics):
        assert [made.step() for _ in range(3)] == [5.0, 5.0, 5.0]
        assert made.trouble == "topic state is gone"
        assert topics.asked_count == 4
