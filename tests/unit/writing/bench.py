"""One server's replica, history and writer over a store, as ``directory/server/cluster.py`` puts
them.
"""

from typing import Self

from directory.maintenance.watch_history import ChangeHistory
from directory.namespace.command import CreateDirectory, CreateTopic
from directory.store.base import Store
from directory.store.replica import Replica
from directory.store.writer import CommitResult, Writer
from directory.wire.entry_codec import ProtoCodec
from resolver.path import Path
from tests.support.waiting import eventually

__all__ = ["Bench", "eventually", "path"]

MOUNT = Path.parse("/la")


def path(text: str) -> Path:
    return Path.parse(text)


class Bench:
    """Replica, history and writer of one server for a test."""

    def __init__(
        self,
        store: Store,
        *,
        kept_events: int = 20_000,
        queue_events: int = 10_000,
        queue_bytes: int = 64 << 20,
    ):
        self.store = store
        self.codec = ProtoCodec()
        self.replica = Replica(store, self.codec)
        self.history = ChangeHistory(
            self.replica,
            store,
            kept_events=kept_events,
            queue_events=queue_events,
            queue_bytes=queue_bytes,
        )
        self.writer = Writer(store, self.replica, self.codec, lambda _: MOUNT)

    def __enter__(self) -> Self:
        self.replica.start()
        eventually(lambda: self.replica.state.value == "serving")
        return self

    def __exit__(self, *_: object) -> None:
        self.history.close()
        self.replica.stop()

    def mkdir(self, text: str, request_id: str = "") -> CommitResult:
        command = CreateDirectory(path=path(text), make_parents=True)
        return self.writer.commit_command(command, request_id=request_id, timeout_seconds=30)

    def create(self, text: str, request_id: str = "", timeout_seconds: float = 30) -> CommitResult:
        command = CreateTopic(path=path(text))
        return self.writer.commit_command(
            command, request_id=request_id, timeout_seconds=timeout_seconds
        )

    def names(self, text: str = "/la") -> set[str]:
        """Returns the names of topics and directories right below."""
        snapshot = self.replica.snapshot
        directory_id = snapshot.find_directory(path(text).segments[len(MOUNT.segments) :])
        assert directory_id is not None
        node = snapshot.nodes.get(directory_id)
        assert node is not None
        return {*node.topics, *node.containers}
