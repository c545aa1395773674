"""Clients of a cluster with several servers spread, and fail over within a call's deadline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from resolver import Resolver
from resolver.cli.disk_hints import FailedServers
from resolver.endpoints import ServerHealth
from tests.support.federation import Server, eventually

Start = Callable[..., Server]


@pytest.fixture
def two(start: Start) -> tuple[Server, Server]:
    one, other = start("/la", name="one"), start("/la", name="other", cluster="la")
    one.mkdir("/la/x")
    eventually(lambda: other.outcome("/la/x") == "resolution")
    return one, other


def at(servers: tuple[Server, ...]) -> str:
    return ",".join(server.address for server in servers)


def beginning_at(server: Server) -> ServerHealth:
    """Returns the health by which this one is asked first, as long as it answers."""
    return ServerHealth(shuffle=lambda names: names.sort(key=lambda name: name != server.address))


def answered_by(servers: tuple[Server, ...], clients: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for _ in range(clients):
        with Resolver(at(servers), timeout_seconds=20) as client:
            found[client.resolve("/la/x").authority.server] += 1
    return found


def test_clients_do_not_all_go_to_the_first(two: tuple[Server, Server]) -> None:
    # By chance it would be all the same server once in two to the 29.
    assert len(answered_by(two, 30)) == 2


def test_a_client_goes_on_at_another_server_when_its_own_is_killed(
    two: tuple[Server, Server],
) -> None:
    with Resolver(at(two), timeout_seconds=20, max_stale_seconds=0) as client:
        first = client.resolve("/la/x").authority.server
        mine = next(one for one in two if one.status().authority.server == first)
        mine.kill()
        client.forget()
        assert client.resolve("/la/x").authority.server != first
        mine.start()
        client.forget()
        assert client.resolve("/la/x").kind == "directory"


def test_a_server_that_hangs_does_not_eat_the_deadline(two: tuple[Server, Server]) -> None:
    """SIGSTOP: its port is open, and nothing ever answers."""
    hanging, well = two
    health = beginning_at(hanging)
    with Resolver(at(two), timeout_seconds=20, max_stale_seconds=0, health=health) as client:
        client.resolve("/la/x")  # over a connection that stands
        hanging.pause()
        client.forget()
        trace = client.trace("/la/x")
        assert [step.ask.endpoint for step in trace.steps] == [hanging.address, well.address]
        assert trace.steps[0].elapsed_seconds < 5, "a short first round, of 20 seconds"
        assert trace.location is not None
        # It is remembered: the next ones do not even try.
        for _ in range(5):
            client.forget()
            (step,) = client.trace("/la/x").steps
            assert step.ask.endpoint == well.address
        # Many paths at once, too; and a first connection to it.
        with Resolver(at(two), timeout_seconds=20, health=beginning_at(hanging)) as fresh:
            found = fresh.resolve_many([f"/la/{n}" for n in range(50)] + ["/la/x"])
            assert [one.kind for one in found if hasattr(one, "kind")] == ["directory"]
            assert "ABSENT" in {getattr(one, "reason", "") for one in found}
        hanging.resume()


def test_all_slow_is_still_answered_by_the_one_that_comes_to_it(
    two: tuple[Server, Server],
) -> None:
    """The first round is short, so the second one must be long enough."""
    with Resolver(at(two), timeout_seconds=30, max_stale_seconds=0) as client:
        client.resolve("/la/x")
        for server in two:
            server.pause()
        client.forget()
        found: list[str] = []
        asking = threading.Thread(target=lambda: found.append(client.resolve("/la/x").kind))
        asking.start()
        time.sleep(2.0)  # both have been tried in vain by now
        for server in two:
            server.resume()
        asking.join(60)
        assert found == ["directory"]


def kdir(
    *arguments: str, home: Path, servers: tuple[Server, ...]
) -> subprocess.CompletedProcess[str]:
    environment: Mapping[str, str] = {
        **os.environ,
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "KDIR_AT": at(servers),
    }
    return subprocess.run(
        [sys.executable, "-m", "resolver.cli.main", *arguments],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_line_remembers_a_server_that_hangs(
    two: tuple[Server, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, _ = two
    hanging.pause()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    troubles = FailedServers()
    runs = 0
    while hanging.address not in troubles.load():  # until chance has led there first
        ended = kdir("ls", "/la", "-o", "json", home=tmp_path, servers=two)
        assert ended.returncode == 0, ended
        assert [json.loads(line)["path"] for line in ended.stdout.splitlines()] == ["/la/x"]
        runs += 1
        assert runs < 40
    # And as long as it is remembered, nobody waits for it.
    ended = kdir("trace", "/la/x", "-o", "json", home=tmp_path, servers=two)
    assert hanging.address not in ended.stdout
    hanging.resume()


def test_what_is_remembered_is_never_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    now = [1000.0]
    troubles = FailedServers(clock=lambda: now[0])
    assert troubles.load() == {}
    troubles.save({"a:1": 30.0, "b:2": 5.0})
    assert troubles.load() == {"a:1": 30.0, "b:2": 5.0}
    now[0] += 10
    assert troubles.load() == {"a:1": 20.0}
    now[0] -= 100_000  # the clock was set back
    assert all(seconds <= 60 for seconds in troubles.load().values())
    file = tmp_path / "kdir" / "troubles"
    for junk in (b"\xff\xfe", b"a:1\n", b"a:1 x\n", b"\n\n", b"a:1 nan\n", b"x " * 99_999):
        file.write_bytes(junk)
        assert troubles.load() == {}
    file.unlink()
    file.mkdir()
    assert troubles.load() == {}
    troubles.save({"a:1": 1.0})


def test_a_watch_goes_on_at_another_server_after_the_last_revision(
    two: tuple[Server, Server],
) -> None:
    one, other = two
    seen: list[str] = []
    by: list[str] = []
    with Resolver(at(two), timeout_seconds=20, health=beginning_at(one)) as client:
        watching = client.watch("/la", checkpoint_seconds=1)

        def follow() -> None:
            for changes in watching:
                seen.extend(event.path for event in changes.events)
                if changes.authority is not None:
                    by.append(changes.authority.server)

        follower = threading.Thread(target=follow)
        follower.start()
        try:
            eventually(lambda: by == [one.status().authority.server])
            other.mkdir("/la/a")
            eventually(lambda: seen == ["/la/a"])
            one.pause()  # no word, no end
            other.mkdir("/la/b")
            other.mkdir("/la/c")
            eventually(lambda: seen == ["/la/a", "/la/b", "/la/c"], 40)
            assert by[-1] == other.status().authority.server
            one.resume()
            other.kill()
            eventually(lambda: len(by) > 2)
            one.mkdir("/la/d")
            eventually(lambda: seen == ["/la/a", "/la/b", "/la/c", "/la/d"], 40)
        finally:
            watching.close()
            follower.join(20)


def test_a_referral_names_all_servers_and_one_that_hangs_is_passed_by(
    start: Start, tmp_path: Path
) -> None:
    root = start("/", name="root", store=f"sqlite:///{tmp_path / 'root.sqlite'}")
    settings = {"cluster": "la", "parent": [root.address]}
    one = start("/la", name="one", **settings)
    other = start("/la", name="other", **settings)
    root.mount_child("/la", one.cluster_id)
    eventually(lambda: one.status().parent.linked or other.status().parent.linked)
    one.mkdir("/la/x")

    def named() -> set[str]:
        return set(root.resolve("/la/x").outcome.referral.endpoints)

    eventually(lambda: named() == {one.address, other.address})
    eventually(lambda: other.outcome("/la/x") == "resolution")
    answered: set[str] = set()
    for _ in range(30):
        with Resolver(root.address, timeout_seconds=20) as client:
            answered.add(client.resolve("/la/x").authority.server)
    assert len(answered) == 2, "not all go to the first one of a referral"
    one.pause()
    for _ in range(6):
        with Resolver(root.address, timeout_seconds=20) as client:
            assert client.resolve("/la/x").authority.server == other.status().authority.server
    one.resume()
