"""Owner, tags, key id: in each answer and each change event of running servers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from kdir.v1 import entry_pb2, watch_pb2

from resolver import Resolver
from tests.support.federation import Federation, Server, eventually


def put(server: Server, path: str, **settings: str) -> None:
    entry = entry_pb2.Entry()
    for name, value in settings.items():
        if name == "tags":
            entry.policies.tags["tier"].value = value
        else:
            setattr(entry.policies, name, value)
    mask = [f"policies.{name}" for name in settings]
    server.entries("UpdateEntry", path=path, entry=entry, update_mask={"paths": mask})


def carried(message: Any) -> tuple[str, str, str]:
    holds = message.effective
    return holds.owner, holds.encryption_key_id, holds.tags["tier"].value


def test_what_is_inherited_is_carried_in_answers_and_events_across_a_mount(tmp_path: Path) -> None:
    with Federation(tmp_path) as federation:
        root = federation.start("/")
        la = federation.join("/la", "/")
        put(root, "/", owner="root", encryption_key_id="key1", tags="1")
        la.mkdir("/la/d/e")
        put(la, "/la/d", owner="ana")
        eventually(
            lambda: carried(la.resolve("/la/d/e").outcome.resolution) == ("ana", "key1", "1")
        )
        assert carried(root.resolve("/la/d/e", recursive=True).outcome.resolution) == (
            "ana", "key1", "1",
        )  # fmt: skip

        events: list[watch_pb2.ChangeEvent] = []
        begun = threading.Event()
        with Resolver([root.address]) as fresh:
            fresh.follow("/la")
            watching = fresh.watch("/la")

            def follow() -> None:
                begun.set()
                for changes in watching:
                    events.extend(changes.events)

            thread = threading.Thread(target=follow, daemon=True)
            thread.start()
            begun.wait()
            eventually(lambda: _made(la, events))
            assert carried(fresh.resolve("/la/d/e")) == ("ana", "key1", "1")
            put(root, "/", encryption_key_id="key2")
            (reported,) = eventually(lambda: _inherited(events))
            assert (reported.path, reported.kind) == ("/la", entry_pb2.ENTRY_KIND_DIRECTORY)
            assert carried(reported) == ("root", "key2", "1")
            assert reported.before == reported.after
            # A client that is told of changes does not go on with what it had.
            eventually(lambda: carried(fresh.resolve("/la/d/e")) == ("ana", "key2", "1"))
            la.mkdir("/la/d/e/f")
            made = eventually(lambda: [one for one in events if one.path == "/la/d/e/f"])
            assert carried(made[0]) == ("ana", "key2", "1")
            watching.close()
            thread.join(10)


def _made(server: Server, events: list[watch_pb2.ChangeEvent]) -> bool:
    """True if the watch stands: something that was made since is heard of."""
    server.mkdir(f"/la/n{len(server.names('/la'))}")
    return bool(events)


def _inherited(events: list[watch_pb2.ChangeEvent]) -> list[watch_pb2.ChangeEvent]:
    return [one for one in events if one.scope == watch_pb2.CHANGE_SCOPE_INHERITED]
