"""Several clusters behind one address, several servers behind one store, and words out of range."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kdir.v1 import admin_pb2, admin_pb2_grpc, entry_pb2

from deploy.local.ports import LOOPBACK, free_port
from directory.kafka.adoption.pinned_kafka import note_manager, pin
from directory.server.cluster import Cluster
from directory.server.config import ServerConfig
from resolver.errors import InvalidArgument
from tests.support.federation import FAST, Federation, Server, eventually
from tests.support.server_command import serve
from tests.support.trees import path


def ask_admin(server: Server, method: str, request: Any) -> Any:
    return server.ask(admin_pb2_grpc.AdminServiceStub, method, request)


def test_what_is_about_kafka_never_goes_to_a_cluster_that_merely_comes_first(
    tmp_path: Path,
) -> None:
    listen = f"{LOOPBACK}:{free_port()}"
    folder = tmp_path / "configs"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.toml").write_text(
            f'cluster = "{name}"\nmount = "/{name}"\nlisten = "{listen}"\n'
            f'store = "sqlite:///{tmp_path / name}.sqlite"\n'
            '[kafka]\nbootstrap = ["127.0.0.1:1"]\n'
        )
    process = subprocess.Popen([sys.executable, "-m", "directory", "--config", str(folder)])
    server = Server(tmp_path, "/two", {})
    server.address = listen
    try:
        eventually(lambda: server.resolve("/two").outcome.HasField("resolution"))
        with pytest.raises(InvalidArgument, match="expected one of one, two"):
            ask_admin(server, "AdoptTopics", admin_pb2.AdoptTopicsRequest(validate_only=True))
        with pytest.raises(InvalidArgument, match="'three', which this server does not host"):
            ask_admin(server, "Acknowledge", admin_pb2.AcknowledgeRequest(cluster="three"))
        for name in ("one", "two"):
            request = admin_pb2.AcknowledgeRequest(stop_reason="nothing", cluster=name)
            with pytest.raises(InvalidArgument, match="nothing is stopped"):
                ask_admin(server, "Acknowledge", request)
            drift = ask_admin(server, "ListDrift", admin_pb2.ListDriftRequest(path=f"/{name}"))
            assert not drift.drifts
    finally:
        server.close()
        process.kill()
        process.wait()


def test_a_cluster_that_another_one_managed_waits_for_a_store_of_its_process_that_is_away(
    tmp_path: Path,
) -> None:
    listen, store = f"{LOOPBACK}:{free_port()}", f"sqlite:///{tmp_path / 'two.sqlite'}"
    prepared = Cluster.open(ServerConfig.quick(path("/two"), store=store))
    prepared.replica.start()
    eventually(lambda: prepared.replica.state.value == "serving")
    prepared.writer.put_facts(pin("K", 2))
    prepared.writer.put_facts(note_manager(prepared.replica.snapshot, unmanaged=True)[0])
    prepared.stop()
    folder = tmp_path / "configs"
    folder.mkdir()
    for name, at, place in (
        ("one", f"{LOOPBACK}:0", f"etcd://{LOOPBACK}:{free_port()}/one"),
        ("two", listen, store),
    ):
        (folder / f"{name}.toml").write_text(
            f'cluster = "{name}"\nmount = "/{name}"\nlisten = "{at}"\nstore = "{place}"\n'
            '[kafka]\nbootstrap = ["127.0.0.1:1"]\n'
        )
    process = subprocess.Popen([sys.executable, "-m", "directory", "--config", str(folder)])
    server = Server(tmp_path, "/two", {})
    server.address = listen
    try:
        eventually(lambda: server.resolve("/two").outcome.HasField("resolution"))
        assert "is not known yet" in server.status().kafka.unmanaged
    finally:
        server.close()
        process.kill()
        process.wait()


def test_the_second_server_of_a_store_says_that_it_is_standby(federation: Federation) -> None:
    federation.start("/")
    first = federation.join("/la", "/")
    settings = {**FAST, "store": first.settings["store"], "parent": first.settings["parent"]}
    folder = Path(first.directory).parent / "second"
    with Server(folder, "/la", settings) as second:
        eventually(lambda: second.status().parent.standby)
        assert "another server" in second.status().parent.message
        assert not first.status().parent.standby
        first.kill()
        eventually(lambda: second.status().parent.linked)
        assert not second.status().parent.standby
        second.close()


def _unknown_kinds() -> Iterator[tuple[str, Callable[[Server], Any]]]:
    link = entry_pb2.Entry(link=entry_pb2.Link())
    link.link.MergeFromString(b"\x10\x63")  # mode = 99
    yield "prefer", lambda one: one.resolve("/la", prefer=99)
    yield "get", lambda one: one.entries("GetEntry", path="/la", kind=99)
    yield "list", lambda one: one.entries("ListEntries", path="/la", kinds=[99])
    yield "delete", lambda one: one.entries("DeleteEntry", path="/la/x", kind=99)
    yield "move", lambda one: one.entries("MoveEntry", path="/la/x", new_path="/la/y", kind=99)
    yield (
        "mode",
        lambda one: one.entries(
            "UpdateEntry", path="/la/x", entry=link, update_mask={"paths": ["link.mode"]}
        ),
    )


def test_a_number_without_a_meaning_is_refused_by_name(federation: Federation) -> None:
    server = federation.start("/la")
    for field, ask in _unknown_kinds():
        with pytest.raises(InvalidArgument, match="found 99; known are") as refused:
            ask(server)
        assert refused.value.reason == "INVALID_ARGUMENT", field


def test_a_port_in_use_leaves_no_store_behind(federation: Federation, tmp_path: Path) -> None:
    taken = federation.start("/la").address
    store = tmp_path / "never.sqlite"
    arguments = ["--mount", "/x", "--listen", taken, "--store", f"sqlite:///{store}"]
    done = serve(*arguments)
    assert done.returncode == 2
    assert done.stderr == f"error: listen: cannot bind {taken}: Address already in use\n"
    assert not store.exists()


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--kafka", "nonsense"),
        ("--kafka", ""),
        ("--kafka", "PLAINTEXT://kafka-1:9092"),
        ("--parent", "nope"),
        ("--parent", "a:1,b"),
        ("--parent", "http://h:80"),
        ("--cluster", "../../evil"),
        ("--site", "a\nb"),
        ("--listen", "127.0.0.1:²"),
        ("--mount", "/x/"),
    ],
)
def test_flags_are_checked_like_the_keys_of_a_file(flag: str, value: str) -> None:
    done = serve("--mount", "/x", "--check", flag, value)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {flag}: ")
    assert "\n" not in done.stderr.strip()
    if flag in {"--kafka", "--parent", "--listen"}:
        assert "expected host:port" in done.stderr or "clients" in done.stderr


def test_clusters_at_one_address_have_one_value_of_each_limit_of_the_server(tmp_path: Path) -> None:
    for name, limits in (("a", "read_threads = 3"), ("b", "max_stale_seconds = 9")):
        text = f'mount = "/{name}"\nstore = "sqlite:///{name}.sqlite"\n[limits]\n{limits}\n'
        (tmp_path / f"{name}.toml").write_text(text)
    done = serve("--config", str(tmp_path), "--check")
    assert done.returncode == 2
    assert "limits.read_threads: found 3 for cluster a and 4 for b" in done.stderr
    (tmp_path / "a.toml").write_text('mount = "/a"\nstore = "sqlite:///a.sqlite"\n')
    assert serve("--config", str(tmp_path), "--check").returncode == 0


def test_a_folder_for_the_default_store_that_cannot_be_made_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nope")
    done = serve("--mount", "/x", "--listen", "127.0.0.1:0")
    assert done.returncode == 2
    assert done.stderr.startswith("error: store: /proc/nope/kdir cannot be made: ")


def test_without_a_home_folder_only_the_default_store_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    without_home = (
        "import pathlib, sys; from directory.server.process import main\n"
        "def fails(): raise RuntimeError('Could not determine home directory.')\n"
        "pathlib.Path.home = fails\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    for store, error in (
        ([], "error: --store: missing, and the user has no home folder for the default; "),
        (["--store", "sqlite:////proc/nope/x"], "error: /proc/nope/x: there is no directory"),
    ):
        arguments = ["--mount", "/x", "--listen", "127.0.0.1:0", *store]
        done = subprocess.run(
            [sys.executable, "-c", without_home, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2
        assert error in done.stderr
        assert "Traceback" not in done.stderr
