"""Servers tell Prometheus, and whoever sends callers, how they are, whatever they have lost."""

from __future__ import annotations

import re
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kdir.v1 import watch_pb2
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
from prometheus_client.parser import text_string_to_metric_families as read_plain

from deploy.local.etcd import EtcdCluster
from deploy.local.ports import free_port
from deploy.local.process import LocalProcess
from directory.server.metrics.prometheus import METRICS
from tests.support.command_line import run
from tests.support.federation import Federation, Server, eventually
from tests.support.server_command import serve

Start = Callable[..., Server]
ANYWHERE = {"metrics": "127.0.0.1:0"}
DEAD = "127.0.0.1:1"
"""Where nobody answers."""


def reported_at(server: Server) -> list[str]:
    """Returns where its processes say that they answer Prometheus."""
    text = server.process.log.read_text()
    return re.findall(r"^metrics on http://(\S+)/metrics$", text, re.MULTILINE)


def ask(address: str, path: str, accept: str = "") -> tuple[int, str, str]:
    """Returns status, content type and body."""
    with closing(HTTPConnection(address, timeout=10)) as connection:
        connection.request("GET", path, headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


class Scrape:
    """Metrics of one process, by sample."""

    def __init__(self, server: Server | str) -> None:
        address = server if isinstance(server, str) else reported_at(server)[0]
        status, _, text = ask(address, "/metrics")
        assert status == 200
        self.families = {one.name: one for one in read_plain(text)}
        self.samples = [sample for one in self.families.values() for sample in one.samples]

    def all(self, name: str, **labels: str) -> list[float]:
        return [
            one.value
            for one in self.samples
            if one.name == name and labels.items() <= one.labels.items()
        ]

    def one(self, name: str, **labels: str) -> float:
        (value,) = self.all(name, **labels)
        return value

    def sum(self, name: str, **labels: str) -> float:
        return sum(self.all(name, **labels))

    def states(self) -> list[str]:
        return [
            one.labels["state"]
            for one in self.samples
            if one.name == "kdir_state" and one.value == 1
        ]


def ready(server: Server) -> tuple[int, str]:
    status, _, text = ask(reported_at(server)[0], "/readyz")
    return status, text


def serving(server: Server) -> bool:
    """Returns what gRPC's own health service says."""
    stub = health_pb2_grpc.HealthStub(server.channel)
    answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=5)  # type: ignore[attr-defined]
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def store_of(server: Server) -> Path:
    return Path(str(server.settings["store"]).removeprefix("sqlite:///"))


# -- what is told ------------------------------------------------------------------------------


def test_a_server_reports_what_it_is_and_counts_what_it_does(start: Start) -> None:
    server = start("/la", **ANYWHERE)
    for name in ("a", "b", "c"):
        server.mkdir(f"/la/{name}")
    resolve = {"method": "ResolveService/Resolve"}
    before = Scrape(server)
    for _ in range(25):
        assert server.outcome("/la/a") == "resolution"
    for _ in range(4):
        assert server.outcome("not a path") == "INVALID_PATH"

    def counted() -> Scrape | None:
        """One in which all calls are: one is counted a moment after it was answered."""
        now = Scrape(server)
        count = "kdir_rpc_duration_seconds_count"
        grown = {
            code: now.sum(count, **resolve, code=code) - before.sum(count, **resolve, code=code)
            for code in ("OK", "INVALID_ARGUMENT")
        }
        return now if grown == {"OK": 25, "INVALID_ARGUMENT": 4} else None

    after = eventually(counted)
    assert after is not None
    assert after.sum("kdir_rpc_duration_seconds_sum", **resolve) > 0
    (info,) = [one.labels for one in after.samples if one.name == "kdir_server_info"]
    assert info["cluster"] == "la"
    assert info["cluster_id"] == server.cluster_id
    assert info["server"] == server.resolve("/la").authority.server
    assert after.one("kdir_directories") == 3
    assert 0 < after.one("kdir_replica_revision") <= server.resolve("/la").authority.revision
    commits = "kdir_store_commit_duration_seconds_count"
    assert after.one(commits, outcome="committed") >= 3
    assert after.one("kdir_ready") == 1
    assert after.states() == ["serving"]
    assert after.one("process_resident_memory_bytes") > 1e6


def test_buckets_rise_and_end_with_all(start: Start) -> None:
    server = start("/la", **ANYWHERE)
    server.mkdir("/la/x")
    for _ in range(10):
        server.resolve("/la")
    scrape = Scrape(server)
    for name in ("kdir_rpc_duration_seconds", "kdir_store_commit_duration_seconds"):
        by_labels: dict[str, list[tuple[float, float]]] = {}
        for one in scrape.samples:
            if one.name == f"{name}_bucket":
                rest = {key: value for key, value in one.labels.items() if key != "le"}
                by_labels.setdefault(str(rest), []).append((float(one.labels["le"]), one.value))
        assert by_labels
        for buckets in by_labels.values():
            assert buckets == sorted(buckets)
            assert [count for _, count in buckets] == sorted(count for _, count in buckets)
            assert buckets[-1][0] == float("inf")


def test_watches_are_reported_while_they_are_open(start: Start) -> None:
    server = start("/la", **ANYWHERE)
    watching = {"method": "WatchService/Watch"}
    stream = server.watch_stub().Watch(watch_pb2.WatchRequest(path="/la"))
    next(stream)
    scrape = Scrape(server)
    assert scrape.one("kdir_watchers") == 1
    assert scrape.one("kdir_rpc_open_streams", **watching) == 1
    stream.cancel()
    eventually(lambda: Scrape(server).one("kdir_watchers") == 0)
    eventually(lambda: Scrape(server).one("kdir_rpc_open_streams", **watching) == 0)
    assert Scrape(server).one("kdir_rpc_streams_total", **watching, code="CANCELLED") == 1


def test_parent_and_child_with_a_kafka_have_every_metric_there_is(tmp_path: Path) -> None:
    kafka = {"kafka": {"bootstrap": [DEAD]}}
    with Federation(tmp_path) as federation:
        root = federation.start("/", **ANYWHERE)
        child = federation.join("/la", "/", **ANYWHERE, **kafka)
        child.mkdir("/la/x")
        stream = child.watch_stub().Watch(watch_pb2.WatchRequest(path="/la"))
        next(stream)
        stream.cancel()
        for server in (root, child):
            eventually(lambda server=server: Scrape(server).sum("kdir_live_servers") == 1)  # type: ignore[misc]
        eventually(lambda: Scrape(child).one("kdir_leader", role="reconciler") == 1)
        ended = {"method": "WatchService/Watch"}
        eventually(lambda: Scrape(child).sum("kdir_rpc_streams_total", **ended) == 1)
        above, below = Scrape(root), Scrape(child)
        assert (above.one("kdir_child_mounts"), above.one("kdir_children_linked")) == (1, 1)
        assert below.one("kdir_parent_link_up") == 1
        assert below.one("kdir_parent_last_contact_age_seconds") < 60
        assert below.one("kdir_leader", role="parent-link") == 1
        assert below.one("kdir_kafka_reachable") == 0
        assert not above.all("kdir_parent_link_up")  # it has none
        reported = set(above.families) | set(below.families)
        # A counter's family has no _total in the parser of the text format.
        expected = {one.name.removesuffix("_total") for one in METRICS}
        missing = {one for one in expected - reported if not one.startswith("kdir_change_log_")}
        assert missing == {"kdir_kafka_sweep_age_seconds"}  # no Kafka was ever seen, no log is kept

        root.kill()
        eventually(lambda: Scrape(child).one("kdir_parent_link_up") == 0)
        eventually(lambda: Scrape(child).one("kdir_parent_last_contact_age_seconds") > 0.5)
        assert ready(child) == (200, "la: serving\n")  # its own paths go on


def test_prometheus_gets_the_format_that_it_asks_for(start: Start) -> None:
    server = start("/la", **ANYWHERE)
    (address,) = reported_at(server)
    status, kind, text = ask(address, "/metrics", "application/openmetrics-text; version=1.0.0")
    assert (status, kind.split(";")[0]) == (200, "application/openmetrics-text")
    assert text.endswith("# EOF\n")
    assert "kdir_topics" in {one.name for one in read_open(text)}  # type: ignore[no-untyped-call]
    assert ask(address, "/metrics")[1].startswith("text/plain")
    assert ask(address, "/elsewhere")[0] == 404
    assert ask(address, "/metrics?x=1")[0] == 200


# -- health --------------------------------------------------------------------------------------


def test_S4_with_the_store_away_a_scrape_goes_on_and_every_place_uses_the_same_message(
    start: Start,
) -> None:
    server = start("/la", name="one", **ANYWHERE)
    strict = start("/la", name="two", **ANYWHERE, limits={"max_stale_seconds": 1})
    server.mkdir("/la/x")
    eventually(lambda: strict.outcome("/la/x") == "resolution")
    assert ready(server) == (200, "la: serving\n")
    store = store_of(server)
    away = store.with_name("away")
    store.rename(away)
    eventually(lambda: Scrape(server).states() == ["stale"])
    assert Scrape(server).one("kdir_replica_age_seconds") > 0
    status, arguments = ready(server)
    assert status == 200
    assert re.fullmatch(r"la: stale \d+ s\n", arguments)
    assert serving(server)
    doctor = run(["doctor", "--local", "--at", server.address])
    assert re.search(r"\bstale \d+ s\b", doctor.lines[-1])
    assert re.search(r"replica is stale \d+ s: .*No such file", doctor.err)
    assert server.outcome("/la/x") == "resolution"
    # Once it is stale for longer than the limit, callers are sent away.
    eventually(lambda: ready(strict)[0] == 503)
    eventually(lambda: not serving(strict))
    assert strict.outcome("/la/x") == "UNREACHABLE"
    assert Scrape(strict).one("kdir_ready") == 0
    assert ask(reported_at(strict)[0], "/healthz") == (200, "text/plain; charset=utf-8", "ok\n")
    away.rename(store)
    for one in (server, strict):
        eventually(lambda one=one: ready(one) == (200, "la: serving\n"))  # type: ignore[misc]
        eventually(lambda one=one: serving(one))  # type: ignore[misc]
        assert Scrape(one).one("kdir_replica_age_seconds") == 0


def test_S5_a_store_that_was_never_there_is_loading_everywhere(tmp_path: Path) -> None:
    process = LocalProcess(
        [
            *(sys.executable, "-m", "directory", "--mount", "/la", "--listen", "127.0.0.1:0"),
            *("--store", f"etcd://{DEAD}/la", "--metrics", "127.0.0.1:0"),
        ],
        tmp_path / "server.log",
    )
    process.start()
    try:
        process.await_ready(lambda: "metrics on" in process.log.read_text(), 30)
        (address,) = re.findall(r"http://(\S+)/metrics", process.log.read_text())
        assert ask(address, "/readyz")[::2] == (503, "la: loading\n")
        assert ask(address, "/healthz")[0] == 200
        scrape = Scrape(address)
        assert (scrape.one("kdir_ready"), scrape.states()) == (0, ["loading"])
        # What is not known is not 0.
        assert not scrape.all("kdir_topics")
        assert not scrape.all("kdir_replica_revision")
    finally:
        process.kill()


def test_S3_a_scrape_does_not_wait_for_a_store_that_hangs(
    start: Start, etcd_clusters: Callable[..., EtcdCluster]
) -> None:
    with etcd_clusters(members=1) as etcd:
        (member,) = etcd.members
        server = start("/la", **ANYWHERE, store=f"etcd://{member.endpoint}/la")
        server.mkdir("/la/x")
        member.pause()
        try:
            eventually(lambda: Scrape(server).states() == ["stale"], timeout_seconds=60)
            begun = time.monotonic()
            for _ in range(20):
                assert Scrape(server).one("kdir_replica_age_seconds") > 0
                assert ready(server)[0] == 200
            assert time.monotonic() - begun < 20  # 40 answers, each without the store
        finally:
            member.resume()
        eventually(lambda: Scrape(server).states() == ["serving"], timeout_seconds=60)
        server.mkdir("/la/y")
        commits = "kdir_store_commit_duration_seconds_count"
        assert Scrape(server).one(commits, outcome="committed") >= 2


def test_S2_S11_a_reload_is_counted(start: Start, tmp_path: Path) -> None:
    server = start("/la", **ANYWHERE)
    server.mkdir("/la/kept")
    backup = tmp_path / "backup.db"
    with closing(sqlite3.connect(store_of(server))) as source:
        source.execute("VACUUM INTO ?", (str(backup),))
    server.mkdir("/la/lost")
    assert Scrape(server).one("kdir_replica_reloads_total") == 0
    for leftover in ("-wal", "-shm"):
        Path(f"{store_of(server)}{leftover}").unlink(missing_ok=True)
    backup.rename(store_of(server))
    eventually(lambda: Scrape(server).one("kdir_replica_reloads_total") >= 1)
    assert server.outcome("/la/lost") == "absent"
    revision = Scrape(server).one("kdir_replica_revision")
    status = server.status().store_status
    assert status.reloads >= 1
    assert status.sealed == ""
    assert status.revision >= revision > 0


def test_an_unmounted_child_says_so_and_is_still_to_be_asked(tmp_path: Path) -> None:
    with Federation(tmp_path) as federation:
        root = federation.start("/")
        child = federation.join("/la", "/", **ANYWHERE)
        root.entries("DeleteEntry", path="/la")
        eventually(lambda: ready(child) == (200, "la: unmounted\n"))
        assert Scrape(child).states() == ["unmounted"]
        eventually(lambda: serving(child))


def test_a_process_of_two_clusters_reports_both(tmp_path: Path) -> None:
    at = f"127.0.0.1:{free_port()}"
    for name in ("la", "ny"):
        (tmp_path / f"{name}.toml").write_text(
            f'mount = "/{name}"\nlisten = "{at}"\nstore = "sqlite:///{name}.sqlite"\n'
            + ('metrics = "127.0.0.1:0"\n' if name == "ny" else "")
        )
    with subprocess.Popen(
        [sys.executable, "-m", "directory", "--config", tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = re.findall(r"http://(\S+)/metrics", process.stdout.readline())[0]
            eventually(lambda: ask(address, "/readyz")[::2] == (200, "la: serving\nny: serving\n"))
            scrape = Scrape(address)
            assert scrape.one("kdir_ready", cluster="la") == 1
            assert scrape.one("kdir_ready", cluster="ny") == 1
            # The address is told a moment after its clusters are.
            eventually(
                lambda: Scrape(address).all("kdir_rpc_open_streams_limit", listen=at) == [2000]
            )
        finally:
            process.terminate()
        assert process.wait(30) == 0


# -- several servers -----------------------------------------------------------------------------


def test_a_leader_that_dies_is_followed_by_another(start: Start) -> None:
    kafka = {"kafka": {"bootstrap": [DEAD]}}
    servers = [start("/la", name=name, **ANYWHERE, **kafka) for name in ("one", "two")]

    def leading() -> list[float]:
        return [Scrape(one).one("kdir_leader", role="reconciler") for one in servers]

    eventually(lambda: sorted(leading()) == [0, 1])
    # Only the elected one knows of Kafka; the other does not say that it is away.
    assert [bool(Scrape(one).all("kdir_kafka_reachable")) for one in servers] == [
        bool(one) for one in leading()
    ]
    eventually(lambda: [Scrape(one).one("kdir_live_servers") for one in servers] == [2, 2])
    leader, other = servers if leading()[0] else reversed(servers)
    leader.kill()
    eventually(lambda: Scrape(other).one("kdir_leader", role="reconciler") == 1)
    eventually(lambda: Scrape(other).one("kdir_live_servers") == 1)


def test_each_of_several_processes_has_an_address_and_counts_of_its_own(start: Start) -> None:
    server = start("/la", processes=2, **ANYWHERE)
    places = reported_at(server)
    assert len(set(places)) == 2
    answered: Counter[str] = Counter()
    for _ in range(20):
        with grpc.insecure_channel(
            server.address, (("grpc.use_local_subchannel_pool", 1),)
        ) as channel:
            call: Any = channel.unary_unary("/kdir.v1.ResolveService/Resolve")
            call(b"\x0a\x03/la", timeout=20)
    for place in places:
        scrape = Scrape(place)
        (info,) = [one.labels for one in scrape.samples if one.name == "kdir_server_info"]
        answered[info["server"]] = int(
            scrape.sum("kdir_rpc_duration_seconds_count", method="ResolveService/Resolve")
        )
    assert len(answered) == 2
    assert sum(answered.values()) >= 20


def test_the_ports_of_several_processes_are_next_to_each_other(tmp_path: Path) -> None:
    arguments = ["--mount", "/la", "--store", f"sqlite:///{tmp_path}/s.sqlite", "--check"]
    reported = serve(*arguments, "--processes", "3", "--metrics", "127.0.0.1:9420")
    assert re.findall(r"http://(\S+)/metrics", reported.stdout) == [
        "127.0.0.1:9420",
        "127.0.0.1:9421",
        "127.0.0.1:9422",
    ]
    assert serve(*arguments, "--processes", "2", "--metrics", "127.0.0.1:65535").returncode == 2


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["0.0.0.0:9420", "192.0.2.1:9420", "9420", "[::]:9420"])
def test_metrics_are_served_on_loopback_only(tmp_path: Path, address: str) -> None:
    store = tmp_path / "s.sqlite"
    arguments = ("--mount", "/la", "--store", f"sqlite:///{store}", "--metrics", address)
    refused = serve(*arguments)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: --metrics: ")
    assert not store.exists()


def test_a_port_in_use_is_noticed_before_a_store_is_made(tmp_path: Path) -> None:
    store = tmp_path / "s.sqlite"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ("--mount", "/la", "--store", f"sqlite:///{store}", "--metrics", address)
        refused = serve(*arguments)
    assert (refused.returncode, store.exists()) == (2, False)
    assert f"metrics: cannot bind {address}" in refused.stderr


def test_two_addresses_for_one_process_are_refused(tmp_path: Path) -> None:
    for name, port in (("la", 9420), ("ny", 9421)):
        (tmp_path / f"{name}.toml").write_text(
            f'mount = "/{name}"\nstore = "sqlite:///{name}.sqlite"\nmetrics = "127.0.0.1:{port}"\n'
        )
    refused = serve("--config", str(tmp_path), "--check")
    assert refused.returncode == 2
    assert "127.0.0.1:9420 and 127.0.0.1:9421" in refused.stderr
    # What is said on the command line goes before.
    assert serve("--config", str(tmp_path), "--check", "--metrics", "127.0.0.1:0").returncode == 0


def test_callers_that_connect_and_say_nothing_keep_nobody_out_for_long(start: Start) -> None:
    served = start("/la", **ANYWHERE)
    host, _, port = reported_at(served)[0].rpartition(":")
    with ExitStack() as idle:
        for _ in range(200):
            idle.enter_context(socket.create_connection((host, int(port)), timeout=10))

        def answers() -> bool:
            try:
                return ask(reported_at(served)[0], "/healthz")[0] == 200
            except (OSError, HTTPException):
                return False  # as many as may are connected

        eventually(answers, timeout_seconds=60)
        assert Scrape(served).one("process_open_fds") < 150
