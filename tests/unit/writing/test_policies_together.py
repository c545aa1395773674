"""Policies written by many at once: no update is lost, and each scope has its own place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path as FilePath

import pytest

from directory.namespace.command import CreateDirectory, CreateTopic, UpdateEntry
from directory.namespace.effective_policies import effective, levels_of
from directory.namespace.entry import Kind
from directory.store.replica import Replica
from directory.store.sqlite.store import SqliteStore
from directory.store.writer import Writer
from directory.wire.entry_codec import ProtoCodec
from resolver.path import Path
from tests.support.federation import eventually

MOUNT = Path.parse("/la")


class Server:
    """A store, a replica and a writer."""

    def __init__(self, file: FilePath) -> None:
        self.store = SqliteStore(file, "la")
        self.replica = Replica(self.store, ProtoCodec())
        self.replica.start()
        eventually(lambda: self.replica.state.value == "serving")
        self.writer = Writer(self.store, self.replica, ProtoCodec(), lambda _: MOUNT)

    def put(self, where: str, kind: Kind, **policies: object) -> int:
        changes = {f"policies.{key.replace('__', '.')}": value for key, value in policies.items()}
        command = UpdateEntry(path=Path.parse(where), kind=kind, changes=changes)
        return self.writer.commit_command(command, timeout_seconds=30).revision

    def close(self) -> None:
        self.replica.stop()
        self.store.close()


@pytest.fixture
def servers(tmp_path: FilePath) -> Iterator[tuple[Server, Server]]:
    both = Server(tmp_path / "la.db"), Server(tmp_path / "la.db")
    yield both
    for one in both:
        one.close()


def test_P4_four_fields_at_once_and_eight_threads_on_two_servers_lose_nothing(
    servers: tuple[Server, Server],
) -> None:
    first, second = servers
    first.writer.commit_command(CreateDirectory(path=MOUNT.child("d")))
    eventually(lambda: second.replica.snapshot.find_directory(("d",)))
    for field in ("owner", "contact", "description", "encryption_key_id"):
        first.put("/la/d", Kind.DIRECTORY, **{field: field})

    def write(number: int) -> None:
        server = servers[number % 2]
        for index in range(5):
            revision = server.put("/la/d", Kind.DIRECTORY, **{f"tags__k{number}.{index}": "x"})
            # Read your writes, on the other server too.
            snapshot = servers[(number + 1) % 2].replica.wait_for(revision, 20)
            node = snapshot.nodes.get(snapshot.find_directory(("d",)) or 0)
            assert node is not None
            assert node.directory.policies.tags.get(f"k{number}.{index}") == "x"

    failed: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            write(number)
        except BaseException as error:  # noqa: BLE001 - told by the test
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    node = first.replica.snapshot.nodes.get(first.replica.snapshot.find_directory(("d",)) or 0)
    assert node is not None
    policies = node.directory.policies
    assert len(policies.tags) == 40
    assert (policies.owner, policies.contact) == ("owner", "contact")
    assert (policies.description, policies.encryption_key_id) == (
        "description",
        "encryption_key_id",
    )


def test_P9_a_topic_and_the_directory_of_its_name_have_policies_of_their_own(
    servers: tuple[Server, Server],
) -> None:
    first, second = servers
    first.writer.commit_command(CreateDirectory(path=MOUNT.child("orders")))
    first.writer.commit_command(CreateTopic(path=MOUNT.child("orders")))
    first.put("/la/orders", Kind.DIRECTORY, owner="directory")
    revision = first.put("/la/orders", Kind.TOPIC, owner="topic")
    snapshot = second.replica.wait_for(revision, 20)
    directory_id = snapshot.find_directory(("orders",))
    assert directory_id is not None
    assert effective(levels_of(snapshot, directory_id)).owner == "directory"
    topic = snapshot.topic(1, "orders")
    assert topic is not None
    assert topic.policies.owner == "topic"
    first.put("/la/orders", Kind.TOPIC, owner=None)
    node = first.replica.snapshot.nodes.get(directory_id)
    assert node is not None
    assert node.directory.policies.owner == "directory"
