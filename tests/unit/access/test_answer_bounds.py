"""Bytes of one answer, and reads that wait: at the bound, beyond it, and ten times beyond it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from kdir.v1 import (
    directory_pb2,
    entry_pb2,
    error_pb2,
    policies_pb2,
    resolve_pb2,
    scan_pb2,
    watch_pb2,
)

from directory.api.rpc.call_context import Call
from resolver.errors import Cancelled, DeadlineExceeded, KdirError, NotReady, TokenFromFuture
from resolver.revision_token import Token
from tests.support.federation import eventually
from tests.unit.access.conftest import ADMIN, House, topic

Make = Callable[..., House]
TEXT = "x" * 1_000


def described(house: House, path: str, text: str = TEXT) -> None:
    house.ask(
        ADMIN,
        "UpdateEntry",
        directory_pb2.UpdateEntryRequest(
            path=path,
            entry=entry_pb2.Entry(policies=policies_pb2.Policies(description=text)),
            update_mask={"paths": ["policies.description"]},
        ),
    )


def batch(house: House, paths: list[str]) -> resolve_pb2.BatchResolveResponse:
    request = resolve_pb2.BatchResolveRequest(paths=paths)
    answer = house.ask(ADMIN, "BatchResolve", request)
    assert isinstance(answer, resolve_pb2.BatchResolveResponse)
    return answer


@pytest.mark.parametrize("times", [1, 2, 10])
def test_a_batch_ends_at_the_bytes_of_an_answer_and_each_path_left_gets_limit_exceeded(
    house: Make, times: int
) -> None:
    la = house(limits={"answer_bytes": 20_000})
    la.mkdir("/la/big")
    described(la, "/la/big")
    topic(la, "/la/big/t")
    one = batch(la, ["/la/big/t"]).outcomes[0].ByteSize() + 8
    fits = 20_000 // one
    answer = batch(la, ["/la/big/t"] * (fits * times))
    kinds = [outcome.WhichOneof("kind") for outcome in answer.outcomes]
    assert kinds.count("resolution") in {fits, fits - 1}
    if times == 1:
        assert kinds[:-1] == ["resolution"] * (fits - 1)
        return
    assert kinds == sorted(kinds, reverse=True), "those that fit come first"
    left = answer.outcomes[-1].error
    assert left.reason == error_pb2.ERROR_REASON_LIMIT_EXCEEDED
    assert left.metadata["field"] == "paths"


def test_the_first_path_of_a_batch_is_answered_whatever_its_size(house: Make) -> None:
    la = house(limits={"answer_bytes": 10})
    la.mkdir("/la/big")
    kinds = [one.WhichOneof("kind") for one in batch(la, ["/la/big", "/la/big"]).outcomes]
    assert kinds == ["resolution", "error"]


def test_a_batch_ends_when_nobody_waits_for_it(house: Make) -> None:
    la = house()
    request = resolve_pb2.BatchResolveRequest(paths=["/la"] * 1_000)
    handler = la.handlers["BatchResolve"]
    with pytest.raises(DeadlineExceeded):
        handler(request, Call(time.monotonic() - 1, principal=ADMIN, is_active=lambda: True))
    with pytest.raises(Cancelled):
        handler(request, Call(time.monotonic() + 9, principal=ADMIN, is_active=lambda: False))


@pytest.mark.parametrize("times", [1, 2, 10])
def test_pages_of_listings_scans_and_history_end_at_the_bytes_of_an_answer(
    house: Make, times: int
) -> None:
    """Of directories with policies, too: their bytes were not counted."""
    bound = 12_000
    la = house(limits={"answer_bytes": bound})
    count = 10 * times
    for number in range(count):
        la.mkdir(f"/la/d{number:03}")
        described(la, f"/la/d{number:03}")
    token, seen, pages = "", [], 0
    while True:
        request = directory_pb2.ListEntriesRequest(path="/la", page_token=token, page_size=10_000)
        page = la.ask(ADMIN, "ListEntries", request)
        assert page.ByteSize() < bound + 3_000
        seen += [one.path for one in page.entries]
        pages += 1
        token = page.next_page_token
        if not token:
            break
    assert seen == [f"/la/d{number:03}" for number in range(count)]
    assert pages >= times
    if times > 1:
        assert pages > 1
    token, events = "", 0
    while True:
        changes = la.ask(
            ADMIN,
            "ListChanges",
            watch_pb2.ListChangesRequest(path="/la", page_token=token, page_size=10_000),
        )
        assert changes.ByteSize() < bound + 6_000
        events += len(changes.events)
        token = changes.next_page_token
        if not token:
            break
    assert events >= 2 * count


def test_a_scan_counts_the_owner_that_it_repeats_for_each_topic(house: Make) -> None:
    la = house(limits={"answer_bytes": 12_000})
    la.ask(
        ADMIN,
        "UpdateEntry",
        directory_pb2.UpdateEntryRequest(
            path="/la",
            entry=entry_pb2.Entry(policies=policies_pb2.Policies(owner=TEXT)),
            update_mask={"paths": ["policies.owner"]},
        ),
    )
    for number in range(30):
        topic(la, f"/la/t{number:03}")
    token, seen = "", 0
    while True:
        page = la.ask(ADMIN, "ScanTopics", scan_pb2.ScanTopicsRequest(page_token=token))
        assert page.ByteSize() < 15_000
        seen += len(page.entries)
        token = page.next_page_token
        if not token:
            break
    assert seen == 30


# -- tokens of the future ------------------------------------------------------------------------


def forged(house: House) -> str:
    snapshot = house.cluster.replica.snapshot
    return str(Token.from_position(house.cluster.cluster_id, snapshot.incarnation, 2**60))


@pytest.mark.parametrize("times", [1, 2, 10])
def test_one_callers_forged_tokens_wait_in_its_own_places_only(house: Make, times: int) -> None:
    """All places were taken by whoever came first: others' reads of their own writes failed."""
    la = house(limits={"max_blocked_reads": 12, "principal_blocked_reads": 4})
    la.grant("mallory", "describe", "/la")
    la.grant("bob", "describe", "/la")
    request = resolve_pb2.ResolveRequest(path="/la", token=forged(la))
    refused: list[str] = []

    def attack() -> None:
        try:
            la.ask("mallory", "Resolve", request)
        except (NotReady, TokenFromFuture) as error:
            refused.append(error.reason)

    threads = [threading.Thread(target=attack) for _ in range(4 * times)]
    for thread in threads:
        thread.start()
    places = la.router.places
    eventually(lambda: places.taken_count == 4)
    eventually(lambda: len(refused) >= 4 * (times - 1))
    assert set(refused) <= {"NOT_READY"}
    # Bob's token is of a revision that comes while he waits.
    snapshot = la.cluster.replica.snapshot
    token = str(
        Token.from_position(la.cluster.cluster_id, snapshot.incarnation, snapshot.revision + 1)
    )
    answers: list[object] = []
    reader = threading.Thread(
        target=lambda: answers.append(
            la.ask("bob", "Resolve", resolve_pb2.ResolveRequest(path="/la", token=token))
        )
    )
    reader.start()
    eventually(lambda: places.taken_count == 5)
    la.mkdir("/la/new")
    reader.join(30)
    assert answers, "he was given a place"
    for thread in threads:
        thread.join(30)
    assert not places.keys, "and all are given back"
    assert refused.count("TOKEN_FROM_FUTURE") == 4


def test_N3_writes_with_forged_tokens_wait_in_places_of_their_own(house: Make) -> None:
    """They held every thread for writes, before any right was asked about."""
    la = house(limits={"write_threads": 16})
    entry = entry_pb2.Entry(directory=entry_pb2.Directory())
    request = directory_pb2.CreateEntryRequest(path="/la/x", entry=entry, token=forged(la))
    ended: list[KdirError] = []

    def attack(who: str) -> None:
        ended.append(la.refusal(who, "CreateEntry", request))

    threads = [
        threading.Thread(target=attack, args=(who,)) for who in ("eve", "mallory") for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: len(ended) >= 10)
    assert {one.reason for one in ended} == {"NOT_READY"}
    assert all("limits.write_threads" in one.message for one in ended)
    assert la.router.write_places.taken_count == 6
    la.mkdir("/la/new")
    for thread in threads:
        thread.join(30)
    assert not la.router.write_places.keys
    assert [one.reason for one in ended].count("TOKEN_FROM_FUTURE") == 6
