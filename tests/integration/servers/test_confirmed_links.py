"""A change of the directory passes only links that the store has, at whichever of its servers.

The reader of each test lags: it has not seen what the writer, another server of the store, did.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from kdir.v1 import directory_pb2, entry_pb2, resolve_pb2, resolve_pb2_grpc

from directory.store.base import StoreUnreachable
from resolver.client import Resolver
from resolver.error_status import from_rpc_error
from resolver.errors import Absent, InvalidArgument, StoreUnavailable
from tests.integration.servers.lagging import One
from tests.support.federation import eventually

LINK = entry_pb2.Entry(link=entry_pb2.Link(targets=["/la/y"]))


def create(resolver: Resolver, path: str, entry: entry_pb2.Entry | None = None) -> str:
    """Creates an entry, by default a directory; returns its path."""
    entry = entry or entry_pb2.Entry(directory=entry_pb2.Directory())
    request = directory_pb2.CreateEntryRequest(path=path, entry=entry)
    made: Any = resolver.call(path, "DirectoryService.CreateEntry", request, timeout_seconds=20)
    return str(made.entry.path)


class Pair:
    """A writer, and a reader that sees the newest changes once its store has answered it."""

    def __init__(self, store: str, cleanup: ExitStack, patch: pytest.MonkeyPatch) -> None:
        self.writer, self.reader = One(store, cleanup), One(store, cleanup)
        self.at_writer = cleanup.enter_context(Resolver([self.writer.server.address]))
        self.at_reader = cleanup.enter_context(Resolver([self.reader.server.address]))
        self.asked = 0
        self.is_away = False
        store_of_reader = self.reader.cluster.store
        ask = store_of_reader.newest_revision

        def newest_revision(timeout_seconds: float = 5.0) -> int:
            self.asked += 1
            if self.is_away:
                raise StoreUnreachable("as the test wants it")
            newest = ask(timeout_seconds)
            self.reader.catch_up()
            return newest

        patch.setattr(store_of_reader, "newest_revision", newest_revision)
        for path in ("/la/y", "/la/z"):
            create(self.at_writer, path)
        create(self.at_writer, "/la/x", LINK)
        eventually(lambda: self.reader.outcome("/la/x") == "rewrite")
        self.reader.lag()
        # The lag begins after one more change.
        create(self.at_writer, "/la/seen")
        eventually(lambda: self.reader.outcome("/la/seen") == "resolution")

    def replace_link(self) -> None:
        """Puts a directory in the place of the link, which the reader does not see."""
        request = directory_pb2.DeleteEntryRequest(path="/la/x")
        self.at_writer.call("/la/x", "DirectoryService.DeleteEntry", request)
        create(self.at_writer, "/la/x")
        assert self.reader.outcome("/la/x/new") == "rewrite"
        self.asked = 0

    def names(self, path: str) -> list[str]:
        return [entry.path.name for entry in self.at_reader.list(path)]

    def ask(self, request: Any, rpc: str) -> Any:
        stub = resolve_pb2_grpc.ResolveServiceStub(self.reader.channel)
        try:
            return getattr(stub, rpc)(request, timeout=20)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    with ExitStack() as cleanup:
        yield Pair(f"sqlite:///{tmp_path / 'store.sqlite'}", cleanup, monkeypatch)


def test_a_write_passes_no_link_that_is_gone(pair: Pair) -> None:
    pair.replace_link()
    assert create(pair.at_reader, "/la/x/new") == "/la/x/new"
    assert (pair.names("/la/x"), pair.names("/la/y")) == (["new"], [])


def test_a_move_passes_no_link_that_is_gone(pair: Pair) -> None:
    pair.replace_link()
    request = directory_pb2.MoveEntryRequest(path="/la/z", new_path="/la/x/z")
    pair.at_reader.call("/la/z", "DirectoryService.MoveEntry", request)
    assert (pair.names("/la/x"), pair.names("/la/y")) == (["z"], [])


def test_a_write_passes_a_link_that_the_store_has(pair: Pair) -> None:
    assert create(pair.at_reader, "/la/x/new") == "/la/y/new"
    assert pair.asked == 1


def test_reads_and_writes_without_a_link_do_not_ask_the_store(pair: Pair) -> None:
    pair.replace_link()
    with pytest.raises(Absent):
        pair.at_reader.resolve("/la/x/new", for_writes=True)
    create(pair.at_reader, "/la/z/new")
    assert pair.asked == 0


def test_without_the_store_no_write_passes_a_link(pair: Pair) -> None:
    pair.is_away = True
    with pytest.raises(StoreUnavailable, match="the store is away"):
        create(pair.at_reader, "/la/x/new")
    assert (pair.asked, pair.names("/la/y")) == (1, [])


def test_many_paths_at_once_are_confirmed_together(pair: Pair) -> None:
    pair.replace_link()
    paths = ["/la/x/new", "/la/z", "/la/no", "/la/x"]
    wanted = resolve_pb2.BatchResolveRequest(paths=paths, confirm_links=True)
    pair.is_away = True
    answer = pair.ask(wanted, "BatchResolve")
    kinds = [outcome.WhichOneof("kind") for outcome in answer.outcomes]
    assert kinds == ["error", "resolution", "absent", "error"]
    assert "STORE_UNAVAILABLE" in str(answer.outcomes[0])
    pair.is_away = False
    answer = pair.ask(wanted, "BatchResolve")
    kinds = [outcome.WhichOneof("kind") for outcome in answer.outcomes]
    assert kinds == ["absent", "resolution", "absent", "resolution"]
    assert pair.asked == 2


@pytest.mark.parametrize("rpc", ["Resolve", "BatchResolve"])
def test_links_are_not_confirmed_for_a_recursive_caller(pair: Pair, rpc: str) -> None:
    request = getattr(resolve_pb2, f"{rpc}Request")(recursive=True, confirm_links=True)
    with pytest.raises(InvalidArgument, match="confirm_links: found with recursive"):
        pair.ask(request, rpc)
