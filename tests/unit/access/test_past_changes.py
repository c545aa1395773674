"""A change is shown to whom might describe its entry then, and may now: whatever token a watch
begins with, however late it is read, and whatever was closed or denied in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from kdir.v1 import directory_pb2, entry_pb2, policies_pb2, watch_pb2

from directory.api.rpc.call_context import Call
from directory.maintenance.retention import RetentionLimits, RetentionTrimmer
from directory.store.event_rows import Operation
from resolver.errors import Absent, DeadlineExceeded, NotAuthoritative, Resync
from resolver.revision_token import Token
from tests.unit.access.conftest import ADMIN, House, topic

Make = Callable[..., House]
DELETE, INSERT = watch_pb2.CHANGE_ACTION_DELETE, watch_pb2.CHANGE_ACTION_INSERT


def token(la: House) -> str:
    return la.cluster.token_of(la.cluster.replica.snapshot)


def watched(la: House, who: str, after: str, path: str = "/la") -> list[watch_pb2.ChangeEvent]:
    """Returns what a watch shows from a token on, up to now."""
    end = la.cluster.replica.snapshot.revision
    request = watch_pb2.WatchRequest(path=path, after_token=after, checkpoint_seconds=1)
    stream = la.ask(who, "Watch", request)
    found: list[watch_pb2.ChangeEvent] = []
    next(stream)  # who answers
    for response in stream:
        found += response.events
        if not response.events or response.events[-1].revision >= end:
            break  # a checkpoint: nothing more is there
    stream.close()
    return found


def mount(la: House, path: str) -> None:
    entry = entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id=f"kc{path.replace('/', '-')}"))
    la.ask(ADMIN, "CreateEntry", directory_pb2.CreateEntryRequest(path=path, entry=entry))


@pytest.mark.parametrize(
    ("way", "path", "shown"),
    [
        (lambda la: mount(la, "/la/d/m"), "/la/d/m/in/x", []),
        (lambda la: mount(la, "/la/d/m"), "/la/d/m", ["/la/d/m"]),
        (lambda la: la.link("/la/d/l", "/la/other"), "/la/d/l/x", []),
        (lambda la: la.link("/la/d/l", "/la/other"), "/la/d/l", ["/la/d/l"]),
        (lambda la: move(la, "/la/other", "/la/d/o"), "/la/d/o/m/x", ["/la/d/o/m", "/la/d/o"]),
    ],
)
@pytest.mark.parametrize("who", [ADMIN, "bob"])
def test_a_watch_ends_when_its_path_comes_to_lead_elsewhere(
    house: Make, who: str, way: Callable[[House], None], path: str, shown: list[str]
) -> None:
    la = house()
    la.mkdir("/la/d")
    la.mkdir("/la/other")
    mount(la, "/la/other/m")
    la.grant("bob", "read", "/la")
    request = watch_pb2.WatchRequest(path=path, checkpoint_seconds=1)
    watch = la.ask(who, "Watch", request)
    next(watch)
    topic(la, "/la/d/t")
    la.mkdir("/la/d/new")
    assert not next(watch).events, "a checkpoint"
    way(la)
    if shown:
        assert [event.path for event in next(watch).events] == shown
    with pytest.raises(NotAuthoritative, match=f"{path} leads through a link or mount"):
        next(watch)
    if path.endswith("x"):
        with pytest.raises(NotAuthoritative):
            next(la.ask(who, "Watch", request))


def test_a_link_itself_is_watched(house: Make) -> None:
    la = house()
    la.mkdir("/la/d")
    la.link("/la/l", "/la/d")
    watch = la.ask(ADMIN, "Watch", watch_pb2.WatchRequest(path="/la/l", checkpoint_seconds=1))
    next(watch)
    update = directory_pb2.UpdateEntryRequest(
        path="/la/l",
        entry={"link": {"targets": ["/la/other"]}},
        update_mask=FieldMask(paths=["link.targets"]),
    )
    la.ask(ADMIN, "UpdateEntry", update)
    assert [event.path for event in next(watch).events] == ["/la/l"]
    assert not next(watch).events, "a checkpoint"


class TimedCall(Call):
    """Call whose time passes only where the test lets it."""

    passed = 0.0

    def seconds_left(self, most: float = 3600.0) -> float:
        if self.passed >= self.deadline:
            raise DeadlineExceeded("the deadline passed before the answer was ready")
        return min(self.deadline - self.passed, most)


def test_a_path_that_changed_seldom_is_listed_in_few_reads(
    house: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, reads = history_of_seldom(house(), monkeypatch, lambda _: 0.0)
    assert pages == 1
    assert len(reads) < 12


@pytest.mark.parametrize("cost", [lambda _: 1.0, lambda limit: limit**2 / 300])
def test_a_path_that_changed_seldom_is_listed_in_the_callers_time(
    house: Make, monkeypatch: pytest.MonkeyPatch, cost: Callable[[int], float]
) -> None:
    """Also where a read takes the longer, the more is read."""
    pages, _ = history_of_seldom(house(), monkeypatch, cost)
    assert pages > 1


def history_of_seldom(
    la: House, monkeypatch: pytest.MonkeyPatch, cost: Callable[[int], float]
) -> tuple[int, list[int]]:
    """Lists the one change of a path before 200 of another; returns the number of pages, and how
    many changes each read of the history was to have. ``cost`` gives its seconds, of the caller's
    4.
    """
    la.mkdir("/la/seldom")
    la.mkdir("/la/often")
    for number in range(100):
        la.grant("bob", "read" if number % 2 else "describe", "/la/often")
        la.revoke("bob", "read" if number % 2 else "describe", "/la/often")
    history = la.cluster.history
    page_before, reads, pages = history.page_before, [], 0
    call = TimedCall(4.0, principal=ADMIN, is_active=lambda: True)

    def timed(before: int, limit: int) -> Any:
        reads.append(limit)
        call.passed += cost(limit)
        return page_before(before, limit)

    monkeypatch.setattr(history, "page_before", timed)
    request = watch_pb2.ListChangesRequest(path="/la/seldom", page_size=2)
    paths: list[str] = []
    while pages == 0 or request.page_token:
        call.passed = 0.0
        answer = la.handlers["ListChanges"](request, call)
        paths += [one.path for one in answer.events]
        request.page_token = answer.next_page_token
        pages += 1
    assert paths == ["/la/seldom"]
    return pages, reads


def test_the_last_page_has_the_oldest_revision_that_is_kept(house: Make) -> None:
    la = house()
    for number in range(6):
        la.mkdir(f"/la/{number}")
    cluster = la.cluster

    def paged() -> tuple[list[int], list[int]]:
        request = watch_pb2.ListChangesRequest(path="/la", page_size=2)
        found: list[int] = []
        oldest: list[int] = []
        while not oldest or request.page_token:
            answer = la.ask(ADMIN, "ListChanges", request)
            found += [one.revision for one in answer.events]
            oldest.append(answer.oldest_revision)
            request.page_token = answer.next_page_token
        return found, oldest

    found, oldest = paged()
    assert len(found) == 6
    assert not any(oldest), "everything is kept"
    trimmer = RetentionTrimmer(cluster.store, cluster.history.index, RetentionLimits(events=3))
    assert trimmer.step() == 3
    kept, oldest = paged()
    # This server has the removed ones in memory still.
    assert kept == found
    assert oldest[-1] == found[2]
    assert not any(oldest[:-1])


def test_a_token_of_other_clusters_only_is_no_place_to_go_on_after(house: Make) -> None:
    la = house()
    foreign = Token.from_position("kc-other", "i", 5)
    for who in (ADMIN, "bob"):
        la.grant("bob", "read", "/la")
        request = watch_pb2.WatchRequest(path="/la", after_token=str(foreign))
        with pytest.raises(Resync, match="no position of cluster la"):
            next(la.ask(who, "Watch", request))
    both = str(Token.merge([foreign, Token.parse(token(la))]))
    la.mkdir("/la/new")
    assert [one.path for one in watched(la, ADMIN, both)] == ["/la/new"]


def listed(la: House, who: str, path: str = "/la") -> list[watch_pb2.ChangeEvent]:
    answer = la.ask(who, "ListChanges", watch_pb2.ListChangesRequest(path=path))
    return list(reversed(answer.events))


def move(la: House, path: str, new_path: str) -> None:
    la.ask(ADMIN, "MoveEntry", directory_pb2.MoveEntryRequest(path=path, new_path=new_path))


def delete(la: House, path: str, *, recursive: bool = False) -> None:
    request = directory_pb2.DeleteEntryRequest(path=path, recursive=recursive)
    la.ask(ADMIN, "DeleteEntry", request)


def hidden_then_removed(la: House) -> None:
    la.mkdir("/la/p/secret/x")
    delete(la, "/la/p/secret", recursive=True)


def hidden_then_moved_into_view(la: House) -> None:
    la.mkdir("/la/p/secret/x")
    move(la, "/la/p/secret/x", "/la/p/public")


def hidden_itself_then_removed(la: House) -> None:
    la.mkdir("/la/p/secret/x")
    delete(la, "/la/p/secret/x")
    delete(la, "/la/p/secret")


HISTORIES = [hidden_then_removed, hidden_then_moved_into_view, hidden_itself_then_removed]


@pytest.mark.parametrize("happen", HISTORIES)
@pytest.mark.parametrize("read", ["watched", "listed"])
def test_what_was_denied_then_is_not_shown_later(
    house: Make, happen: Callable[[House], None], read: str
) -> None:
    la = house()
    la.mkdir("/la/p")
    la.grant("bob", "describe", "/la/p")
    before = token(la)
    la.mkdir("/la/p/secret")
    la.grant("bob", "-describe", "/la/p/secret")
    happen(la)
    la.mkdir("/la/p/seen")
    if read == "watched" and happen is hidden_then_moved_into_view:
        with pytest.raises(Resync):  # what it kept of then is hidden now
            watched(la, "bob", before)
        return
    events = watched(la, "bob", before) if read == "watched" else listed(la, "bob")
    assert "/la/p/seen" in [one.path for one in events]
    # That it was made, before it was denied, was to be seen; nothing was that came after the deny,
    # but that who watches has to forget it.
    shown = [(one.action, one.path) for one in events if "secret" in one.path + one.path_before]
    hidden = [(DELETE, "/la/p/secret")] if read == "watched" else []
    assert shown in ([], [(INSERT, "/la/p/secret"), *hidden])


@pytest.mark.parametrize("read", ["watched", "listed"])
def test_what_was_closed_then_is_not_shown_later(house: Make, read: str) -> None:
    la = house("open")
    before = token(la)
    la.mkdir("/la/p/shut", closed=True)
    la.mkdir("/la/p/shut/x")
    delete(la, "/la/p/shut/x")
    delete(la, "/la/p/shut")
    la.mkdir("/la/p/seen")
    events = watched(la, "bob", before) if read == "watched" else listed(la, "bob")
    assert "/la/p/seen" in [one.path for one in events]
    assert not [one for one in events if "shut" in one.path]


def test_a_closed_directory_that_is_removed_is_shown_to_who_saw_it(house: Make) -> None:
    la = house("open")
    la.mkdir("/la/shut", closed=True)
    la.grant("carol", "describe", "/la/shut")
    before = token(la)
    delete(la, "/la/shut")
    assert [one.path for one in watched(la, "carol", before)] == ["/la/shut"]
    assert watched(la, "bob", before) == []
    assert [one.path for one in listed(la, "carol", "/la")][-1:] == ["/la/shut"]


def test_a_watch_that_goes_on_misses_nothing_that_was_seen(house: Make) -> None:
    la = house()
    la.mkdir("/la/p")
    la.grant("bob", "describe", "/la/p")
    la.mkdir("/la/p/one")
    before = token(la)
    delete(la, "/la/p/one")
    la.mkdir("/la/p/two")
    move(la, "/la/p/two", "/la/p/three")
    events = watched(la, "bob", before)
    assert [(one.action, one.path) for one in events][:2] == [
        (DELETE, "/la/p/one"),
        (INSERT, "/la/p/two"),
    ]
    assert events[2].path_before == "/la/p/two"


def test_a_slow_watch_is_judged_by_the_rights_of_each_change(house: Make) -> None:
    la = house()
    la.mkdir("/la/p")
    la.grant("bob", "describe", "/la/p")
    stream = la.ask("bob", "Watch", watch_pb2.WatchRequest(path="/la/p", checkpoint_seconds=1))
    next(stream)
    la.mkdir("/la/p/secret")
    la.grant("bob", "-describe", "/la/p/secret")
    la.mkdir("/la/p/secret/x")
    delete(la, "/la/p/secret", recursive=True)
    la.mkdir("/la/p/last")
    received: list[Any] = []
    for response in stream:
        received += response.events
        if received and received[-1].path == "/la/p/last":
            break
    stream.close()
    # That it was made was to be seen, for a moment; of what came after it only that it is hidden.
    shown = [(one.action, one.path) for one in received[:-1]]
    assert shown == [(INSERT, "/la/p/secret"), (DELETE, "/la/p/secret")]


def test_what_is_made_once_for_many_watchers_is_of_those_who_are_shown_the_same(
    house: Make,
) -> None:
    la = house()
    la.mkdir("/la/p")
    la.grant("bob", "describe", "/la/p")
    la.grant("carol", "describe", "/la/p")
    begun = watch_pb2.WatchRequest(path="/la", checkpoint_seconds=1)
    streams = {who: la.ask(who, "Watch", begun) for who in (ADMIN, "bob", "carol")}
    for stream in streams.values():
        next(stream)
    la.mkdir("/la/secret")
    la.mkdir("/la/p/denied")
    la.grant("carol", "-describe", "/la/p/denied")
    la.mkdir("/la/p/last")

    def shown(who: str) -> list[str]:
        paths: list[str] = []
        for response in streams[who]:
            paths += [one.path for one in response.events if not one.scope]
            if paths[-1:] == ["/la/p/last"]:
                break
        return paths

    assert shown(ADMIN) == ["/la/secret", "/la/p/denied", "/la/p/last"]
    assert shown("bob") == ["/la/p/denied", "/la/p/last"]
    with pytest.raises(Resync):  # it could be seen when it was made, and is hidden now
        shown("carol")
    for stream in streams.values():
        stream.close()


def test_what_was_made_for_one_watcher_is_not_sent_to_the_same_caller_by_older_rights(
    house: Make,
) -> None:
    la = house()
    la.mkdir("/la/p/x")
    la.grant("bob", "describe", "/la/p")
    begun = watch_pb2.WatchRequest(path="/la/p", checkpoint_seconds=1)
    early, late = la.ask("bob", "Watch", begun), la.ask("bob", "Watch", begun)
    next(early), next(late)
    la.mkdir("/la/p/x/y")
    assert next(early).events[0].path == "/la/p/x/y"
    la.revoke("bob", "describe", "/la/p")
    for stream in (early, late):
        with pytest.raises(Absent):
            next(stream)


def test_what_moves_out_of_view_takes_its_new_place_with_it(house: Make) -> None:
    la = house()
    la.mkdir("/la/p/seen")
    la.mkdir("/la/hidden")
    request = directory_pb2.UpdateEntryRequest(
        path="/la/hidden",
        entry={"policies": {"owner": "secret-owner"}},
        update_mask=FieldMask(paths=["policies.owner"]),
    )
    la.ask(ADMIN, "UpdateEntry", request)
    la.grant("bob", "describe", "/la/p")
    before = token(la)
    move(la, "/la/p/seen", "/la/hidden/seen")
    hidden_id = la.cluster.replica.snapshot.find_directory(("hidden",))
    (gone,) = watched(la, "bob", before)
    assert (gone.action, gone.path) == (DELETE, "/la/p/seen")
    assert gone.parent_id != hidden_id
    assert "secret-owner" not in str(gone)


def test_where_the_rights_of_then_are_not_known_a_watch_begins_again(house: Make) -> None:
    la = house()
    la.mkdir("/la/p")
    before = token(la)
    la.grant("bob", "describe", "/la/p")
    later = token(la)
    delete_me = "/la/p/one"
    la.mkdir(delete_me)
    delete(la, delete_me)
    la.cluster.stop()
    again = house()  # another server of the same store, later
    with pytest.raises(Resync):
        watched(again, "bob", before)
    # Nobody's rights changed since: nothing is lost.
    assert [one.action for one in watched(again, "bob", later)] == [INSERT, DELETE]
    assert len(watched(again, ADMIN, before)) >= 3


def test_where_nobody_ever_had_rights_a_watch_goes_on_whatever_its_token(house: Make) -> None:
    la = house("open")
    before = token(la)
    la.mkdir("/la/p")
    delete(la, "/la/p")
    la.cluster.stop()
    again = house("open")
    assert [one.action for one in watched(again, "bob", before)] == [INSERT, DELETE]


def own(la: House, path: str, owner: str) -> None:
    request = directory_pb2.UpdateEntryRequest(
        path=path,
        entry={"policies": {"owner": owner}},
        update_mask=FieldMask(paths=["policies.owner"]),
    )
    la.ask(ADMIN, "UpdateEntry", request)


def test_how_an_entry_was_while_it_was_hidden_is_not_shown_once_it_is_seen(house: Make) -> None:
    la = house()
    la.mkdir("/la/p/one")
    la.grant("bob", "describe", "/la/p")
    la.grant("bob", "-describe", "/la/p/one")
    own(la, "/la/p/one", "secret-owner")
    own(la, "/la/p/one", "last-owner")
    la.revoke("bob", "-describe", "/la/p/one")
    shown = [one for one in listed(la, "bob") if one.path == "/la/p/one"]
    assert "secret-owner" not in str(shown)
    assert "DENY" not in str(shown)  # nor who was denied what
    assert {one.action for one in shown} == {INSERT}
    assert not any(one.HasField("before") for one in shown)
    assert shown[-1].after.policies.owner == "last-owner"
    own(la, "/la/p/one", "seen-owner")
    newest = listed(la, "bob")[-1]
    assert (newest.before.policies.owner, newest.after.policies.owner) == (
        "last-owner",
        "seen-owner",
    )


def test_what_is_removed_while_rights_are_away_makes_a_watch_begin_again(house: Make) -> None:
    la = house()
    la.mkdir("/la/p/gone")
    la.mkdir("/la/q")
    la.grant("bob", "describe", "/la/p")
    la.grant("bob", "describe", "/la/q")
    kept = token(la)  # of a listing that shows /la/p/gone
    la.revoke("bob", "describe", "/la/p")
    delete(la, "/la/p/gone")
    away = token(la)
    la.grant("bob", "describe", "/la/p")
    for after in (kept, away):
        with pytest.raises(Resync):
            watched(la, "bob", after)
    assert watched(la, "bob", away, "/la/q") == []  # another path, of the same caller


def test_what_is_hidden_leaves_a_watch_without_ending_it(house: Make) -> None:
    la = house()
    la.mkdir("/la/p/one")
    la.grant("bob", "describe", "/la/p")
    la.grant("carol", "describe", "/la/p")
    before = token(la)
    la.grant("bob", "-describe", "/la/p/one")
    (gone,) = watched(la, "bob", before)
    assert (gone.action, gone.path) == (DELETE, "/la/p/one")
    assert not gone.HasField("before")
    assert not gone.HasField("grants_after")
    (granted,) = watched(la, "carol", before)
    assert granted.scope == watch_pb2.CHANGE_SCOPE_GRANTS
    after = token(la)
    la.grant("dave", "describe", "/la/p")  # concerns neither
    assert [one.path for one in watched(la, "bob", after)] == ["/la/p"]


def test_a_removed_directory_of_which_only_the_inside_is_seen_ends_a_watch(house: Make) -> None:
    la = house()
    la.mkdir("/la/p/x")
    la.mkdir("/la/q")
    la.grant("bob", "describe", "/la/p/x")
    la.grant("bob", "describe", "/la/q")
    before = token(la)
    delete(la, "/la/p", recursive=True)
    with pytest.raises(Resync):
        watched(la, "bob", before)


def test_a_directory_that_is_hidden_and_its_inside_is_not_ends_a_watch(house: Make) -> None:
    la = house()
    la.mkdir("/la/p/x")
    la.grant("bob", "describe", "/la/p")
    la.grant("bob", "describe", "/la/p/x")
    before = token(la)
    la.revoke("bob", "describe", "/la/p")
    with pytest.raises(Resync):
        watched(la, "bob", before)


def test_what_operators_did_is_shown_to_who_sees_the_directory_at_the_mount(house: Make) -> None:
    la = house()
    la.mkdir("/la/p")
    la.grant("bob", "describe", "/la/p")
    la.grant("carol", "describe", "/la")
    before = token(la)
    operation = Operation("finalized feature level 7", "User:root", "r-1")
    la.cluster.writer.put_facts((), operation=operation)
    for who in ("carol", ADMIN):
        for events in (watched(la, who, before), listed(la, who)[-1:]):
            (event,) = events
            assert event.scope == watch_pb2.CHANGE_SCOPE_OPERATED
            assert (event.path, event.principal, event.request_id) == ("/la", "User:root", "r-1")
            assert event.operation == "finalized feature level 7"
    assert not any(event.operation for event in listed(la, "bob"))
    assert not any(event.operation for event in watched(la, "bob", before))


def test_a_topic_that_is_granted_by_itself_is_watched_and_has_a_history(house: Make) -> None:
    """Only grants on directories counted, and it was absent."""
    la = house()
    la.mkdir("/la/p")
    topic(la, "/la/p/t")
    la.grant("bob", "read", "/la/p/t")
    begun = token(la)
    entry = entry_pb2.Entry(policies=policies_pb2.Policies(owner="x"))
    request = directory_pb2.UpdateEntryRequest(
        path="/la/p/t", entry=entry, update_mask=FieldMask(paths=["policies.owner"])
    )
    la.ask(ADMIN, "UpdateEntry", request)
    assert [one.path for one in watched(la, "bob", begun, "/la/p/t")] == ["/la/p/t"]
    assert listed(la, "bob", "/la/p/t")[-1].path == "/la/p/t"
    beside = la.refusal("bob", "ListChanges", watch_pb2.ListChangesRequest(path="/la/p/u"))
    assert isinstance(beside, Absent)
