"""The writing part of a directory server in a process of its own; the tests kill it. No test."""

import sys

from directory.namespace.command import CreateTopic
from directory.store.addresses import open_store
from directory.store.replica import Replica
from directory.store.writer import Writer
from directory.wire.entry_codec import ProtoCodec
from resolver.path import Path


def say(*arguments: object) -> None:
    print(*arguments, flush=True)  # noqa: T201 - its output is read by the test


def main(address: str, name: str) -> None:
    """Creates topics for ever, each with a request id, and says what was answered."""
    store = open_store(address, "la")
    codec = ProtoCodec()
    replica = Replica(store, codec)
    writer = Writer(store, replica, codec, lambda _: Path.parse("/la"))
    replica.start()
    replica.wait_for(0, 60)
    say("ready")
    sys.stdin.readline()
    for number in range(1_000_000):
        written = writer.commit_command(
            CreateTopic(path=Path.parse(f"/la/{name}-{number}")), request_id=f"{name}-{number}"
        )
        assert written.plan.entry is not None
        say(number, written.revision, written.plan.entry.entry_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
