"""Taking in what Kafka has, and committing what the reconciler learnt."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from directory.namespace.command import (
    AdoptTopics,
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    ObservedTopic,
    RecordObservations,
    TopicObservation,
    UpdateEntry,
)
from directory.namespace.entry import ROOT_ID, Kind, Provision
from directory.namespace.keys import entry_key
from directory.namespace.listing import list_page
from directory.store.base import Put
from resolver.path import Path
from tests.support.trees import NOW_MS, Cluster, path, reported


def observed(name: str, topic_id: bytes = b"i" * 16, partitions: int = 3) -> ObservedTopic:
    return ObservedTopic(
        physical_name=name, topic_id=topic_id, partitions=partitions, replication_factor=1
    )


def adopt(*topics: tuple[str, str]) -> AdoptTopics:
    """Returns an adoption of topics, each as (place below the mount, physical name)."""
    return AdoptTopics(
        topics=tuple(
            (tuple(place.split("/")) if place else (), observed(name)) for place, name in topics
        )
    )


def test_topics_come_in_with_the_directories_that_they_need() -> None:
    cluster = Cluster()
    made = cluster.do(adopt(("search/clicks", "search.clicks"), ("search/x/y", "search.x.y")))
    assert cluster.show() == (
        "search/\n  clicks = search.clicks [active]\n  x/\n    y = search.x.y [active]"
    )
    assert reported(made.changes) == [
        "+ dir /la/search",
        "+ topic /la/search/clicks",
        "+ dir /la/search/x",
        "+ topic /la/search/x/y",
    ]
    assert (made.topic_count, made.notes) == (2, ())
    found = cluster.topic("/la/search/clicks")
    assert found.adopted
    assert (found.topic_id, found.partitions, found.replication_factor) == (b"i" * 16, 3, 1)


def test_again_it_is_nothing() -> None:
    cluster = Cluster()
    command = adopt(("search/clicks", "search.clicks"), ("t", "t"))
    cluster.do(command)
    again = cluster.plan(command)
    assert (again.writes, again.changes, again.notes, again.topic_count) == ((), (), (), 0)


def test_what_is_known_stays_where_people_put_it() -> None:
    cluster = Cluster()
    cluster.do(
        adopt(("t", "t")),
        CreateDirectory(path=path("/la/mine")),
        MoveEntry(path=path("/la/t"), new_path=path("/la/mine/u")),
    )
    assert cluster.plan(adopt(("t", "t"), ("search/t", "t"))).writes == ()


def test_the_same_topic_twice_in_one_batch_comes_in_once() -> None:
    cluster = Cluster()
    made = cluster.do(adopt(("a", "t"), ("b", "t")))
    assert cluster.show() == "a = t [active]"
    assert made.topic_count == 1


def test_a_place_that_is_taken() -> None:
    cluster = Cluster()
    cluster.do(CreateTopic(path=path("/la/a"), physical_name="other"))
    made = cluster.do(adopt(("a", "a"), ("b", "b.one"), ("b", "b.two")))
    assert cluster.show() == (
        "__adopted/\n  a [active]\n  b.two [active]\na = other [pending]\nb = b.one [active]"
    )
    assert made.notes == (
        "a is put at /la/__adopted/a: /la/a is taken by topic 'other'",
        "b.two is put at /la/__adopted/b.two: /la/b is taken by topic 'b.one'",
    )


def test_a_place_in_a_link_or_a_mount() -> None:
    cluster = Cluster()
    cluster.do(
        CreateLink(path=path("/la/l"), targets=(path("/ny"),)),
        CreateMount(path=path("/la/m"), cluster_id="kc-1"),
    )
    made = cluster.do(
        adopt(("l/x", "l.x"), ("m/x", "m.x"), ("m", "m"), ("l", "l")),
    )
    assert [note.split(": ", 1)[0] for note in made.notes] == [
        "l.x is put at /la/__adopted/l.x",
        "m.x is put at /la/__adopted/m.x",
        "m is put at /la/__adopted/m",  # the child answers for that very path
    ]
    assert "l [active]\nl -> /ny" in cluster.show()  # a topic beside a link of its name


def test_a_place_beside_a_directory_of_its_name() -> None:
    cluster = Cluster()
    made = cluster.do(adopt(("orders", "orders"), ("orders/dlq", "orders.dlq")))
    assert made.notes == ()
    assert cluster.show() == "orders [active]\norders/\n  dlq = orders.dlq [active]"


def test_a_spare_place_that_is_taken_too_gets_a_number() -> None:
    cluster = Cluster()
    cluster.do(
        adopt(("a", "other"), ("a", "x")),
        MoveEntry(path=path("/la/__adopted/x"), new_path=path("/la/x")),
    )
    cluster.do(adopt(("a", "y")))
    cluster.do(DeleteEntry(path=path("/la/__adopted/y")))
    # `y` again, as another topic, while its old spare place is taken by hand.
    assert cluster.show() == "__adopted/\na = other [active]\nx [active]"
    cluster.do(adopt(("a", "z"), ("a", "z.2")))
    assert cluster.show().startswith("__adopted/\n  z [active]\n  z.2 [active]\n")


@pytest.mark.parametrize("place", ["", "a//b", "__x/y", "__a/b", "a b", ".", "x" * 250])
def test_a_place_that_is_none(place: str) -> None:
    cluster = Cluster()
    made = cluster.do(adopt((place, "t")))
    assert cluster.show() == "__adopted/\n  t [active]"
    assert made.notes[0].startswith("t is put at /la/__adopted/t: ")


def test_a_mount_too_deep_for_any_place() -> None:
    cluster = Cluster(mount=str(Path(("d",) * 64)))
    made = cluster.do(adopt(("t", "t")))
    assert made.writes == ()
    assert made.notes[0].startswith("t is left out: ")


@pytest.mark.parametrize("name", ["__consumer_offsets", "__change_events"])
def test_kafkas_own_topics_are_nobodys_data(name: str) -> None:
    made = Cluster().plan(adopt((name, name)))
    assert made.writes == ()
    assert made.notes == (f"{name} is left out: it is an internal topic of Kafka or kdir",)


def test_any_other_topic_is_one_like_all_also_with_two_underscores() -> None:
    cluster = Cluster()
    cluster.do(adopt(("__amazon_msk_canary", "__amazon_msk_canary")))
    assert cluster.show() == "__amazon_msk_canary [active]"
    page = list_page(cluster.snapshot, ROOT_ID, limit=10)
    assert [one.relative for one in page.entries] == [("__amazon_msk_canary",)]
    bounded = Cluster()
    bounded.do(
        UpdateEntry(path=path("/la"), kind=Kind.DIRECTORY, changes={"policies.max_topics": 0})
    )
    made = bounded.do(adopt(("__amazon_msk_canary", "__amazon_msk_canary")))
    assert "/la allows 0 topics below it, 1 used" in made.notes[0], "it counts as any other"


def test_colliding_names_that_kafka_has_both_are_both_kept() -> None:
    cluster = Cluster()
    cluster.do(adopt(("a.b", "a.b"), ("a_b", "a_b")))
    assert cluster.rows.under(b"p/") == {b"p/a_b": b"a.b\na_b"}
    cluster.do(DeleteEntry(path=path("/la/a.b")))
    assert cluster.rows.under(b"p/") == {b"p/a_b": b"a_b"}
    cluster.do(DeleteEntry(path=path("/la/a_b")))
    assert cluster.rows.under(b"p/") == {}


@pytest.mark.parametrize(
    ("kind", "name"), [(Kind.TOPIC, "t"), (Kind.DIRECTORY, "t"), (Kind.DIRECTORY, "d")]
)
def test_a_place_where_something_cannot_be_read(kind: Kind, name: str) -> None:
    cluster = Cluster()
    assert cluster.rows.commit((), (Put(entry_key(ROOT_ID, kind, name), b"\xff"),))
    cluster.snapshot = cluster.loaded()
    made = cluster.do(adopt(("t" if name == "t" else "d/t", "x"), ("y", "y")))
    assert cluster.show() == "__adopted/\n  x [active]\ny [active]"
    assert "cannot be read" in made.notes[0]


def test_a_mount_that_comes_where_a_topic_is_adopted() -> None:
    cluster = Cluster()
    late = cluster.plan(adopt(("m", "m")))
    cluster.do(CreateMount(path=path("/la/m"), cluster_id="kc-1"))
    assert not cluster.commit(late)


def test_two_servers_that_adopt_at_once() -> None:
    cluster = Cluster()
    first = cluster.plan(adopt(("a/t", "a.t")))
    second = cluster.plan(adopt(("a/t", "a.t"), ("a/u", "a.u")))
    assert cluster.commit(first)
    assert not cluster.commit(second)
    cluster.do(adopt(("a/t", "a.t"), ("a/u", "a.u")))
    assert cluster.show() == "a/\n  t = a.t [active]\n  u = a.u [active]"


def test_adoption_takes_a_retired_name_since_kafka_has_it() -> None:
    cluster = Cluster()
    cluster.do(CreateTopic(path=path("/la/t")), DeleteEntry(path=path("/la/t")))
    cluster.do(adopt(("t", "t")))
    assert cluster.show() == "t [active]"
    assert cluster.rows.under(b"r/") == {}


# -- news ----------------------------------------------------------------------------------------


def news(cluster: Cluster, text: str, **fields: object) -> TopicObservation:
    return TopicObservation(path=path(text), entry_id=cluster.topic(text).entry_id, **fields)  # type: ignore[arg-type]


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.do(
        CreateDirectory(path=path("/la/d")),
        CreateTopic(path=path("/la/d/t")),
        CreateTopic(path=path("/la/u")),
    )
    return made


def test_news_is_committed(cluster: Cluster) -> None:
    made = cluster.do(
        RecordObservations(
            news=(
                news(
                    cluster,
                    "/la/d/t",
                    provision=Provision.ACTIVE,
                    topic_id=b"k" * 16,
                    partitions=6,
                    replication_factor=3,
                    observed_config=MappingProxyType({"retention.ms": "1"}),
                    drift_count=1,
                ),
                news(cluster, "/la/u", provision=Provision.FAILED, provision_message="no"),
            )
        ),
        now_ms=NOW_MS + 9,
        principal="",
    )
    first, second = cluster.topic("/la/d/t"), cluster.topic("/la/u")
    assert (first.provision, first.topic_id, first.partitions) == (Provision.ACTIVE, b"k" * 16, 6)
    assert (first.replication_factor, first.drift_count) == (3, 1)
    assert first.observed_config == {"retention.ms": "1"}
    assert (second.provision, second.provision_message) == (Provision.FAILED, "no")
    assert reported(made.changes) == ["~ topic /la/d/t", "~ topic /la/u"]
    # An observation is nobody's doing.
    assert (first.changed_by, first.changed_at_ms) == ("User:ana", NOW_MS + 9)
    assert made.topic_count == 2


def test_news_that_is_none_writes_nothing(cluster: Cluster) -> None:
    found = cluster.topic("/la/u")
    same = news(
        cluster,
        "/la/u",
        provision=found.provision,
        provision_message=found.provision_message,
        topic_id=found.topic_id,
        observed_config={},
        drift_count=0,
    )
    assert cluster.plan(RecordObservations(news=(same, news(cluster, "/la/d/t")))).writes == ()


def test_news_of_the_same_topic_twice_adds_up(cluster: Cluster) -> None:
    made = cluster.do(
        RecordObservations(
            news=(news(cluster, "/la/u", partitions=4), news(cluster, "/la/u", drift_count=2))
        )
    )
    assert (cluster.topic("/la/u").partitions, cluster.topic("/la/u").drift_count) == (4, 2)
    assert reported(made.changes) == ["~ topic /la/u"]


def test_news_of_what_is_gone_or_another_is_passed_over(cluster: Cluster) -> None:
    late = news(cluster, "/la/u", drift_count=7)
    cluster.do(MoveEntry(path=path("/la/u"), new_path=path("/la/d/u")))
    assert cluster.plan(RecordObservations(news=(late,))).writes == ()
    cluster.do(CreateTopic(path=path("/la/u")))
    assert cluster.plan(RecordObservations(news=(late,))).writes == ()
    for elsewhere in ("/la", "/ny/u", "/la/none/u", "/la/__deleted/0000"):
        gone = TopicObservation(path=path(elsewhere), entry_id=late.entry_id, drift_count=7)
        assert cluster.plan(RecordObservations(news=(gone,))).writes == ()


def test_news_and_a_request_at_once(cluster: Cluster) -> None:
    late = cluster.plan(RecordObservations(news=(news(cluster, "/la/d/t", drift_count=1),)))
    cluster.do(MoveEntry(path=path("/la/d"), new_path=path("/la/e")))
    assert not cluster.commit(late)  # its event would name a path that is no more
    assert cluster.entry("/la/e/t", Kind.TOPIC) is not None
