"""A server of a cluster without gRPC, for tests: store, replica, writer and membership."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from directory.server.membership import Membership, check_level_at_startup
from directory.store.base import Store
from directory.store.replica import Replica
from directory.store.sqlite.ephemeral_keys import SqliteAnnouncement
from directory.store.sqlite.store import SqliteStore
from directory.store.writer import Writer
from directory.wire.entry_codec import ProtoCodec
from resolver.path import ROOT
from tests.support.feature_levels import levels_up_to
from tests.support.lost_locks import forget_lock, lose_lock

__all__ = ["One"]


class One:
    """One server, whose rounds the test runs."""

    def __init__(self, path: Path, name: str, level: int, cleanup: ExitStack) -> None:
        self.store: Store = SqliteStore(path, "la")
        cleanup.callback(self.store.close)
        check_level_at_startup(self.store, levels_up_to(level))
        self.replica = Replica(self.store, ProtoCodec())
        self.writer = Writer(
            self.store,
            self.replica,
            ProtoCodec(),
            lambda _: ROOT,
            allow=lambda writes: self.members.check_writes_allowed(writes),  # noqa: PLW0108 - made below
        )
        self.at: tuple[str, ...] = (f"{name}:1",)
        self.reported = 0
        self.members = Membership(
            self.store,
            self.replica,
            self.writer,
            server_id=name,
            endpoints=lambda: self.at,
            levels=levels_up_to(level),
        )
        self.members.subscribe(self._count)
        self.replica.start()
        cleanup.callback(self.replica.stop)
        self.replica.wait_for(0, 20)

    def _count(self) -> None:
        self.reported += 1

    def join(self) -> One:
        self.members.refresh()
        self.see()
        return self

    def see(self) -> None:
        """Waits until the replica is as new as the store."""
        self.replica.wait_for(self.store.load().revision, 20)

    def names(self) -> list[str]:
        self.see()
        return [one.server for one in self.members.live()]

    def die(self) -> None:
        """Ends as a killed process does: its locks are free, and it withdraws nothing itself."""
        held = self.members.announcement
        assert isinstance(held, SqliteAnnouncement)
        lose_lock(held)
        forget_lock(held)
