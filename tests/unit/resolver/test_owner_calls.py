"""Calls at the owner of a path: which of several errors is raised, and what is read afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kdir.v1 import directory_pb2

from resolver import Resolver, errors
from resolver.owner_calls import more_informative_error
from resolver.testing import MemoryDirectory

REFUSED = errors.Unreachable("refused")
AWAY = errors.StoreUnavailable("the store is away, so nothing can be written", effect="none")
UNKNOWN = errors.StoreUnavailable("whether the change was made is not known", effect="unknown")


@pytest.mark.parametrize(
    ("known", "error", "raised"),
    [
        (None, REFUSED, REFUSED),
        (REFUSED, AWAY, AWAY),
        (AWAY, REFUSED, AWAY),
        (AWAY, UNKNOWN, UNKNOWN),
        (UNKNOWN, AWAY, UNKNOWN),
        (UNKNOWN, REFUSED, UNKNOWN),
    ],
)
def test_an_unknown_effect_is_raised_whatever_the_next_server_answers(
    known: errors.KdirError | None, error: errors.KdirError, raised: errors.KdirError
) -> None:
    assert more_informative_error(known, error) is raised


class Deleting:
    """A cluster of two servers, which delete ``/a/b`` and then fail."""

    def __init__(self, directory: MemoryDirectory) -> None:
        self._directory = directory
        self.transport = directory.transport
        self.cluster = directory.at("/")
        self.failures: list[BaseException] = []
        """What deletions end in, in order."""
        self.deletes = True
        self.before_answers: Callable[[], object] = lambda: None
        """Called between the making of an answer to a read and its arrival."""
        self.servers = (self.cluster.endpoint, "127.0.0.1:19999")
        for server in self.servers:
            self.transport.serve(server, self.answer)

    def answer(self, method: str, request: Any) -> Any:
        if method != "DirectoryService.DeleteEntry":
            answer = self.cluster.answer(method, request)
            self.before_answers()
            return answer
        if self.deletes:
            self._directory.remove(request.path)
        raise self.failures.pop(0) if len(self.failures) > 1 else self.failures[0]

    def resolver(self) -> Resolver:
        """Returns a client that has read ``/a/b``."""
        made = Resolver(self.servers, transport=self.transport, timeout_seconds=0.3)
        assert made.resolve("/a/b").kind == "topic"
        return made


@pytest.fixture
def deleting() -> Iterator[Deleting]:
    with MemoryDirectory() as directory:
        directory.cluster("/")
        directory.topic("/a/b")
        yield Deleting(directory)


def delete(client: Resolver) -> None:
    request = directory_pb2.DeleteEntryRequest()
    client.call("/a/b", "DirectoryService.DeleteEntry", request)


@pytest.mark.parametrize(
    "failures",
    [
        [UNKNOWN],
        [errors.DeadlineExceeded("no answer in time")],
        [errors.Unreachable("the server ended the call")],
        [errors.Internal("internal error")],
        [errors.UnreadableRecord("the record of /a/b cannot be read")],
        [errors.Unreachable("the server ended the call"), errors.NotReady("is loading")],
        [errors.Unreachable("the server ended the call"), AWAY],
        [KeyboardInterrupt()],
    ],
    ids=lambda failures: "-".join(type(one).__name__ for one in failures),
)
def test_after_a_write_that_may_have_been_made_nothing_older_is_read(
    deleting: Deleting, failures: list[BaseException]
) -> None:
    client = deleting.resolver()
    deleting.failures = failures
    with pytest.raises((errors.KdirError, KeyboardInterrupt)):
        delete(client)
    with pytest.raises(errors.Absent):
        client.resolve("/a/b")


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_lookup_under_way_puts_no_answer_back_that_a_write_may_have_changed(
    deleting: Deleting, *, is_batch: bool
) -> None:
    client = Resolver(deleting.servers, transport=deleting.transport, timeout_seconds=5)
    deleting.failures = [errors.DeadlineExceeded("no answer in time")]
    has_read, may_arrive = threading.Event(), threading.Event()

    def hold_first() -> None:
        if not has_read.is_set():
            has_read.set()
            assert may_arrive.wait(10)

    def read() -> object:
        return client.resolve_many(["/a/b"]) if is_batch else client.resolve("/a/b")

    deleting.before_answers = hold_first
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        try:
            assert has_read.wait(10)
            with pytest.raises(errors.DeadlineExceeded):
                delete(client)
            with pytest.raises(errors.Absent):  # the lookup under way is not shared
                client.resolve("/a/b")
        finally:
            may_arrive.set()
        reader.result()
    with pytest.raises(errors.Absent):
        client.resolve("/a/b")


@pytest.mark.parametrize(
    "refusal",
    [AWAY, errors.NotEmpty("it is not"), errors.PermissionDenied("no"), errors.NotReady("loads")],
    ids=lambda refusal: refusal.reason,
)
def test_after_a_write_that_was_refused_the_cached_answer_is_given(
    deleting: Deleting, refusal: errors.KdirError
) -> None:
    deleting.deletes = False
    client = deleting.resolver()
    first = client.resolve("/a/b")
    deleting.failures = [refusal]
    with pytest.raises(type(refusal)):
        delete(client)
    assert client.resolve("/a/b") is first


def test_where_no_server_could_be_called_the_cached_answer_is_given(deleting: Deleting) -> None:
    """A write during an outage drops nothing that is given, marked stale, while it lasts."""
    client = deleting.resolver()
    first = client.resolve("/a/b")
    for server in deleting.servers:
        deleting.transport.serve(server, None)
    with pytest.raises(errors.Unreachable):
        delete(client)
    assert client.resolve("/a/b") is first
