"""Referrals that are wrong, malicious or late: R1 to R21, G1, G5, G11, G12.

Scripted servers over real gRPC on loopback. R22 is ``tests/properties/resolver``.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path as FilePath
from typing import Any

import pytest
from kdir.v1 import resolve_pb2

from resolver import Resolver, errors
from resolver.endpoints import AllowList, ServerHealth
from resolver.errors import Closed, KdirError
from resolver.host_port import parse_endpoint
from tests.support.federation import Federation, eventually
from tests.support.scripted_servers import FakeServer, Trickle, absent, direct, down, here, link, up

Make = Callable[..., FakeServer]
BeginAt = Callable[..., Resolver]


class Clock:
    """Seconds that pass only when the test says so, on top of the real ones."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def make() -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda *args, **fields: stack.enter_context(FakeServer(*args, **fields))


@pytest.fixture
def resolver() -> Iterator[BeginAt]:
    with ExitStack() as stack:

        def begin_at(*servers: FakeServer | str, **options: Any) -> Resolver:
            options.setdefault("timeout_seconds", 10)
            endpoints = [one if isinstance(one, str) else one.endpoint for one in servers]
            return stack.enter_context(Resolver(endpoints, **options))

        yield begin_at


def fails(resolver: Resolver, path: str, kind: type[KdirError]) -> KdirError:
    with pytest.raises(KdirError) as caught:
        resolver.resolve(path)
    assert type(caught.value) is kind, caught.value
    return caught.value


def always(output: resolve_pb2.Outcome, path: str) -> resolve_pb2.Outcome:
    return output


def rpcs(*servers: FakeServer) -> int:
    return sum(server.rpcs for server in servers)


def test_R1_two_servers_that_refer_to_each_other_are_a_loop(make: Make, resolver: BeginAt) -> None:
    a, b = make("/a"), make("/")
    a.says = lambda _: up("/", b)
    b.says = lambda _: down("/x", a)
    client = resolver(a)
    error = fails(client, "/x/y", errors.ReferralLoop)
    assert rpcs(a, b) <= 3
    assert a.endpoint in error.metadata["chain"]
    assert b.endpoint in error.metadata["chain"]
    assert client.cache.answers == {}
    assert list(client.cache.referrals()) == []


def test_R2_a_server_that_refers_to_itself_is_a_loop_after_one_call(
    make: Make, resolver: BeginAt
) -> None:
    for make_referral, mount, path in (
        (up, "/", "/b/x"),
        (down, "/a/x", "/a/x"),
        (direct, "/b", "/b/x"),
    ):
        server = make("/a")
        output = make_referral(mount, server)
        server.says = functools.partial(always, output)
        fails(resolver(server), path, errors.ReferralLoop)
        assert server.rpcs == 1


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("/a/b/x", lambda other: down("/a", other)),
        ("/a/b/x", lambda other: up("/", other)),
        ("/a/b/x", lambda other: direct("/a", other)),
        ("/c/x", lambda other: up("/a", other)),
        ("/c/x", lambda other: up("/a/deeper", other)),
    ],
)
def test_R3_a_referral_that_is_not_nearer_is_bad_and_its_sender_lame(
    make: Make, resolver: BeginAt, path: str, wrong: Any
) -> None:
    server, other = make("/a"), make("/")
    server.says = lambda _: wrong(other)
    client = resolver(server)
    fails(client, path, errors.BadReferral)
    assert other.rpcs == 0
    assert client.health.is_bad(server.endpoint)


def test_R3_no_up_once_the_walk_has_come_down(make: Make, resolver: BeginAt) -> None:
    root, a, above = make("/"), make("/a"), make("/")
    root.says = lambda _: down("/a", a)
    a.says = lambda _: up("/", above)
    fails(resolver(root), "/a/x", errors.BadReferral)
    assert above.rpcs == 0


def test_R4_prefixes_are_by_segment(make: Make, resolver: BeginAt) -> None:
    root, b = make("/a"), make("/a/b")
    root.says = lambda _: down("/a/b", b)
    fails(resolver(root), "/a/bc", errors.BadReferral)
    assert b.rpcs == 0


def test_R5_what_a_referral_says_of_others_is_dropped(make: Make, resolver: BeginAt) -> None:
    """The contract has no room for it; what rides along in unknown fields changes nothing."""
    root, b, c, evil = make("/"), make("/a/b"), make("/c"), make("/c")
    c.says = here
    b.says = here
    evil.says = here

    def say(path: str) -> resolve_pb2.Outcome:
        if path.startswith("/c"):
            return down("/c", c)
        honest = down("/a/b", b)
        extra = down("/c", evil).referral
        smuggled = (
            honest.referral.SerializeToString()
            + b"\xaa\x06"
            + bytes([len(extra.SerializeToString())])
            + extra.SerializeToString()
        )
        return resolve_pb2.Outcome(referral=resolve_pb2.Referral.FromString(smuggled))

    root.says = say
    client = resolver(root)
    client.resolve("/c/x")
    before = [known for known in client.cache.referrals() if str(known.referral.mount) == "/c"]
    client.resolve("/a/b/x")
    after = [known for known in client.cache.referrals() if str(known.referral.mount) == "/c"]
    assert before == after
    client.resolve("/c/y")
    assert evil.rpcs == 0


@pytest.mark.parametrize("output", [here, lambda _: absent(), lambda _: link("/ny", "/la/x")])
def test_R6_an_answer_outside_the_senders_mount_is_rejected_and_never_kept(
    make: Make, resolver: BeginAt, output: Any
) -> None:
    server = make("/la")
    server.says = output
    client = resolver(server)
    fails(client, "/ny/x", errors.Lame)
    assert client.cache.answers == {}


def test_R7_a_chain_longer_than_allowed_names_itself(make: Make, resolver: BeginAt) -> None:
    servers = [make("/" + "/".join(f"d{k}" for k in range(n))) for n in range(18)]
    for number, server in enumerate(servers[:-1]):
        below = servers[number + 1]
        server.says = functools.partial(always, down(below.mount, below))
    servers[-1].says = here
    path = "/" + "/".join(f"d{k}" for k in range(19))
    error = fails(resolver(servers[0]), path, errors.TooManyHops)
    assert servers[16].endpoint in error.metadata["chain"]
    assert servers[17].rpcs == 0
    short = "/" + "/".join(f"d{k}" for k in range(17))
    servers[16].says = here
    assert resolver(servers[0]).resolve(short).kind == "topic"


def test_R8_a_referral_with_ten_thousand_endpoints_costs_twenty_calls(
    make: Make, resolver: BeginAt
) -> None:
    root = make("/")
    root.says = lambda _: down("/a", *(f"127.0.0.1:{20_000 + n}" for n in range(10_000)))
    client = resolver(root)
    trace = client.trace("/a/x")
    assert isinstance(trace.error, errors.Unreachable)
    assert len(trace.steps) <= 21


def test_R8_no_resolve_costs_more_than_fifty_calls(make: Make, resolver: BeginAt) -> None:
    root = make("/")

    def say(path: str) -> resolve_pb2.Outcome:
        if path.startswith("/l"):
            return link("/l", *(f"/t{n}/x" for n in range(20)))
        number = int(path[2:].partition("/")[0])
        ports = [f"127.0.0.1:{20_000 + 100 * number + k}" for k in range(20)]
        return down(f"/t{number}", *ports)

    root.says = say
    trace = resolver(root).trace("/l/x")
    assert isinstance(trace.error, errors.Unreachable)
    assert len(trace.steps) == 50


@pytest.mark.parametrize("name", ["/la/tracking", "kdir:///la", "la-tracking", "server at /la"])
def test_R9_an_endpoint_is_never_a_directory_name(make: Make, resolver: BeginAt, name: str) -> None:
    root = make("/")
    root.says = lambda _: down("/a", name)
    fails(resolver(root), "/a/x", errors.BadReferral)
    assert root.rpcs == 1


HOSTILE = [
    "127.0.0.1:7420",
    "127.1:7420",
    "2130706433:7420",
    "0x7f.0.0.1:7420",
    "017700000001:7420",
    "0.0.0.0:7420",
    "[::1]:7420",
    "[::ffff:127.0.0.1]:7420",
    "[fe80::1]:7420",
    "[::]:7420",
    "localhost:7420",
    "LOCALHOST.:7420",
    "x.localhost:7420",
    "169.254.1.1:7420",
    "169.254.169.254:8080",
    "[fd00:ec2::254]:8080",
    "metadata.google.internal:8080",
    "224.0.0.1:7420",
    "255.255.255.255:7420",
    "la.example:22",
    "10.0.0.1:25",
    "la.example:0",
    "la.example:65536",
    "la.example:99999999999999",
    "unix:/var/run/docker.sock",
    "dns:///la.example:7420",
    "ipv4:10.0.0.1:7420",
    "http://la.example:7420",
    "user@la.example:7420",
    "la.example:7420\r\nX-Evil: 1",
    "la.example\x00:7420",
    "la example:7420",
    "la.example:7420/path",
    "[fe80::1%eth0]:7420",
    "-la.example:7420",
    "la..example:7420",
    "ла.example:7420",
    ":7420",
    "",
    "x" * 65536 + ":7420",
]


@pytest.mark.parametrize("endpoint", HOSTILE, ids=lambda text: ascii(text[:30]))
def test_R10_a_hostile_endpoint_is_refused(endpoint: str) -> None:
    start = [parse_endpoint("la.example:7420"), parse_endpoint("127.0.0.1:7420")]
    assert AllowList.for_servers(start).why_not_allowed(endpoint)


@pytest.mark.parametrize(
    "endpoint",
    ["la.example:7420", "10.1.2.3:7420", "[2001:db8:1::1]:7420", "la-1:443", "la_1:7420"],
)
def test_R10_an_honest_endpoint_is_allowed(endpoint: str) -> None:
    assert (
        AllowList.for_servers([parse_endpoint("la.example:7420")]).why_not_allowed(endpoint) == ""
    )


def test_R10_a_host_that_is_called_like_a_scheme_is_no_scheme() -> None:
    assert parse_endpoint("unix:7420").target == "dns:///unix:7420"


def test_R10_networks_and_domains_can_be_narrowed() -> None:
    narrow = AllowList(networks=["10.0.0.0/8"], names=["la.example"], ports=(), least_port=7000)
    assert narrow.why_not_allowed("10.1.2.3:7420") == ""
    assert narrow.why_not_allowed("ns.la.example:7420") == ""
    assert narrow.why_not_allowed("11.1.2.3:7420")
    assert narrow.why_not_allowed("xla.example:7420")
    assert narrow.why_not_allowed("10.1.2.3:443")


def test_R10_a_refused_endpoint_is_not_asked(make: Make, resolver: BeginAt) -> None:
    root, a = make("/"), make("/a")
    a.says = here
    root.says = lambda _: down("/a", a)
    # Nobody says that this machine is where the clusters are.
    fails(resolver(root, allow=AllowList()), "/a/x", errors.BadReferral)
    assert a.rpcs == 0


def test_R11_a_child_that_was_unmounted_is_gone_when_the_parents_update_ends(
    make: Make, resolver: BeginAt
) -> None:
    """However long the child's own answers say that they are good, and however often it renews."""
    clock = Clock()
    root, child = make("/"), make("/a")
    root.says = lambda _: down("/a", child, lifetime_seconds=30, age_seconds=10)
    child.says = lambda path: here(path, lifetime=3600)
    client = resolver(root, clock=clock)
    client.resolve("/a/x")
    root.says = lambda _: absent()
    clock.ahead = 15
    assert client.resolve("/a/y").kind == "topic"  # by the parent's word, which still holds
    clock.ahead = 21
    fails(client, "/a/x", errors.Absent)
    fails(client, "/a/y", errors.Absent)


def test_R12_a_lame_child_is_not_absent_and_its_parent_is_not_blamed(
    make: Make, resolver: BeginAt
) -> None:
    root, one, two, other = make("/"), make("/a"), make("/a"), make("/b")
    root.says = lambda path: down("/b", other) if path.startswith("/b") else down("/a", one, two)
    one.says = lambda _: errors.NotAuthoritative("not mine")
    two.says = lambda _: errors.Unimplemented("what?")
    other.says = here
    client = resolver(root)
    fails(client, "/a/x", errors.Lame)
    assert one.rpcs > 0
    assert two.rpcs > 0
    assert client.cache.answers == {}
    assert client.resolve("/b/x").kind == "topic"
    assert not client.health.is_bad(root.endpoint)
    assert client.health.is_bad(one.endpoint)


def test_R12_a_server_without_the_service_is_lame(make: Make, resolver: BeginAt) -> None:
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    bare = grpc.server(ThreadPoolExecutor(1))
    port = bare.add_insecure_port("127.0.0.1:0")
    bare.start()
    root = make("/")
    root.says = lambda _: down("/a", f"127.0.0.1:{port}")
    fails(resolver(root), "/a/x", errors.Lame)
    bare.stop(0)


def test_R13_a_child_that_is_away_is_unreachable_by_name_and_its_siblings_are_not(
    make: Make, resolver: BeginAt
) -> None:
    root, away, here_still = make("/"), make("/a", "kc-away"), make("/b")
    root.says = lambda path: down("/b", here_still) if path.startswith("/b") else down("/a", away)
    here_still.says = here
    away.stop()
    client = resolver(root)
    error = fails(client, "/a/x", errors.Unreachable)
    assert error.metadata["cluster_id"] == "kc-away"
    assert error.metadata["mount"] == "/a"
    assert error.code == "UNAVAILABLE"
    outcomes = client.resolve_many(["/a/x", "/b/x", "/a/y", "/b/y"])
    assert [type(one).__name__ for one in outcomes] == [
        "Unreachable",
        "TopicLocation",
        "Unreachable",
        "TopicLocation",
    ]


def test_R14_a_mount_that_moves_under_way_costs_one_restart(make: Make, resolver: BeginAt) -> None:
    root, old, new = make("/"), make("/moved", "kc-old"), make("/a", "kc-new")
    arguments = [down("/a", old), down("/a", new)]
    root.says = lambda _: arguments.pop(0) if len(arguments) > 1 else arguments[0]
    old.says = lambda _: absent()
    new.says = here
    assert resolver(root).resolve("/a/x").cluster_id == "kc-new"
    assert rpcs(root, old, new) == 4


def test_R14_restarts_are_bounded(make: Make, resolver: BeginAt) -> None:
    root, child = make("/"), make("/elsewhere")
    root.says = lambda _: down("/a", child)
    child.says = here
    fails(resolver(root), "/a/x", errors.Lame)
    assert rpcs(root, child) == 4


def test_R15_of_nested_mounts_the_deepest_answers(make: Make, resolver: BeginAt) -> None:
    root, upper, lower = make("/"), make("/a"), make("/a/b")
    root.says = lambda _: down("/a", upper)
    upper.says = lambda path: down("/a/b", lower) if path.startswith("/a/b/") else here(path)
    lower.says = here
    client = resolver(root)
    for _ in range(2):
        assert client.resolve("/a/b/x").mount == "/a/b"
        assert client.resolve("/a/bc").mount == "/a"
    client.forget()
    asked = root.rpcs, upper.rpcs
    client.resolve("/a/b/y")
    assert (root.rpcs, upper.rpcs) == asked, "the deepest mount that is known is asked"


@pytest.mark.parametrize(
    "field", [{"mount": "/x"}, {"cluster_id": "kc-other"}, {"epoch": 7}], ids=str
)
def test_R16_a_child_that_disagrees_with_its_parent_is_lame(
    make: Make, resolver: BeginAt, field: dict[str, Any]
) -> None:
    root, child = make("/"), make("/a", "kc-a")
    root.says = lambda _: down("/a", child.endpoint, cluster_id="kc-a", epoch=1)
    child.says = here
    for name, value in field.items():
        setattr(child, name, value)
    client = resolver(root)
    error = fails(client, "/a/x", errors.Lame)
    assert str(next(iter(field.values()))) in str(error)
    assert client.cache.answers == {}


def test_R17_no_client_travels_back_in_time(make: Make, resolver: BeginAt) -> None:
    new, old = make("/", "kc-1"), make("/", "kc-1")
    new.says = old.says = here
    new.revision, old.revision = 10, 9
    client = resolver(new, old, health=ServerHealth(shuffle=lambda _: None))
    assert client.resolve("/x").authority.revision == 10
    client.forget()
    client.health.note_failure(new.endpoint)  # so that the other one is asked first
    assert client.resolve("/x").authority.revision == 10
    assert old.rpcs == 1


def test_R17_a_server_that_lags_is_asked_again_with_what_to_wait_for(
    make: Make, resolver: BeginAt
) -> None:
    server = make("/", "kc-1")
    server.says = here
    server.revision = 10
    client = resolver(server)
    client.resolve("/x")
    server.revision = 9
    error = fails(client, "/y", errors.NotReady)
    assert "10" in error.message
    assert server.tokens[-1] != ""
    server.incarnation = "i2"  # restored: another life, which cannot be compared
    assert client.resolve("/y").authority.revision == 9


@pytest.mark.parametrize("lifetime", [0, 1, 2**31, 2**32 - 1])
def test_R18_lifetimes_are_clamped(make: Make, resolver: BeginAt, lifetime: int) -> None:
    clock = Clock()
    server = make("/")
    server.says = lambda path: absent(lifetime) if "none" in path else here(path, lifetime)
    client = resolver(server, clock=clock, max_stale_seconds=0)
    client.resolve("/x")
    fails(client, "/none", errors.Absent)
    clock.ahead = 31
    before = server.rpcs
    fails(client, "/none", errors.Absent)
    assert server.rpcs == before + 1, "an absence is kept for half a minute at most"
    clock.ahead = 3601
    before = server.rpcs
    client.resolve("/x")
    assert server.rpcs == before + 1, "nothing is kept for more than an hour"


def test_R19_a_thousand_that_ask_for_one_cold_path_cost_one_walk(
    make: Make, resolver: BeginAt
) -> None:
    server = make("/")
    server.hold = threading.Event()
    server.says = here
    client = resolver(server, timeout_seconds=60)
    found: list[object] = []

    def ask() -> None:
        found.append(client.resolve("/x"))

    threads = [threading.Thread(target=ask) for _ in range(1000)]
    for thread in threads:
        thread.start()
    server.hold.set()
    for thread in threads:
        thread.join(60)
    assert len(found) == 1000
    assert all(one is found[0] for one in found)
    assert server.rpcs == 1


def test_R19_a_failure_is_shared_and_does_not_stick(make: Make, resolver: BeginAt) -> None:
    server = make("/")
    server.hold = threading.Event()
    server.says = lambda _: errors.PermissionDenied("no")
    client = resolver(server, timeout_seconds=60)
    caught: list[KdirError] = []

    def ask() -> None:
        try:
            client.resolve("/x")
        except KdirError as error:
            caught.append(error)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    eventually(lambda: server.rpcs == 1)
    server.hold.set()
    for thread in threads:
        thread.join(60)
    assert {type(error) for error in caught} == {errors.PermissionDenied}
    assert len({id(error) for error in caught}) == 20
    server.says = here
    assert client.resolve("/x").kind == "topic"


@pytest.mark.parametrize("byte", [b"", b"\0"], ids=["never", "a byte a second"])
def test_R20_a_slow_server_is_given_a_part_of_the_time(
    make: Make, resolver: BeginAt, byte: bytes
) -> None:
    root, good = make("/"), make("/a", "kc-a")
    good.says = here
    with Trickle(byte) as slow:
        root.says = lambda _: down("/a", slow.address, good.endpoint, cluster_id="kc-a")
        client = resolver(root, timeout_seconds=8, health=ServerHealth(shuffle=lambda _: None))
        assert client.resolve("/a/x").kind == "topic"
        assert 0 < good.timeouts[0] < 8, "what is left of the time is passed on"
        alone = resolver(slow.address, timeout_seconds=0.3)
        fails(alone, "/a/x", errors.Unreachable)


def test_R21_a_deeper_mount_takes_its_paths_from_memory(make: Make, resolver: BeginAt) -> None:
    """HDFS' testInvalidateCache: resolve, add a deeper mount, resolve again."""
    clock = Clock()
    root, deep = make("/"), make("/deep")
    deep.says = here
    root.says = here
    client = resolver(root, clock=clock)
    assert client.resolve("/deep/foo").mount == "/"
    assert client.resolve("/deep/bar").mount == "/"
    root.says = lambda path: down("/deep", deep) if path.startswith("/deep") else here(path)
    assert client.resolve("/deep/new").mount == "/deep"
    # The new mount was seen: what its parent said of its paths no longer counts.
    assert client.resolve("/deep/foo").mount == "/deep"
    assert client.resolve("/deep/bar").mount == "/deep"
    assert client.resolve("/other").mount == "/"


def test_R21_memory_follows_the_table(make: Make, resolver: BeginAt) -> None:
    """HDFS' testLocationCache: mounted, unmounted, mounted elsewhere."""
    clock = Clock()
    root, one, three = make("/"), make("/t", "kc-1"), make("/t", "kc-3")
    one.says = three.says = here
    client = resolver(root, clock=clock)
    root.says = lambda _: down("/t", one, lifetime_seconds=10)
    assert client.resolve("/t/x").cluster_id == "kc-1"
    clock.ahead += 11
    root.says = here
    assert client.resolve("/t/x").cluster_id == root.cluster_id
    clock.ahead += 61
    root.says = lambda _: down("/t", three, lifetime_seconds=10)
    assert client.resolve("/t/x").cluster_id == "kc-3"


def test_R21_a_watched_memory_sees_a_new_mount_at_once(tmp_path: FilePath) -> None:
    with Federation(tmp_path) as federation:
        root = federation.start("/")
        with Resolver(root.address, watch=True, timeout_seconds=10) as client:
            fails(client, "/t/x", errors.Absent)
            following = client.following
            assert following is not None
            eventually(lambda: following.is_following(root.cluster_id))
            child = federation.join("/t", "/")
            child.mkdir("/t/x")
            found = eventually(lambda: client.resolve("/t/x"))
            assert found.cluster_id == child.cluster_id
            assert client.resolve("/t/x") is found
            # A change at the child is seen without asking it.
            child.entries("DeleteEntry", path="/t/x")

            def is_gone() -> bool:
                try:
                    client.resolve("/t/x")
                except errors.Absent:
                    return True
                return False

            assert eventually(is_gone)


def test_R21_memory_is_bounded(make: Make, resolver: BeginAt) -> None:
    server = make("/")
    server.says = here
    client = resolver(server, max_entries=100, timeout_seconds=60)
    client.resolve_many([f"/t{n}" for n in range(1000)])
    assert len(client.cache.answers) == 100


def test_G1_every_call_carries_what_is_left_of_the_deadline(make: Make, resolver: BeginAt) -> None:
    root, child = make("/"), make("/a")
    root.says = lambda _: down("/a", child)
    child.says = here
    client = resolver(root, timeout_seconds=20)
    client.resolve("/a/x")
    # gRPC rounds a deadline up, by some percent, to send it in few characters.
    assert 0 < root.timeouts[0] <= 22
    assert 0 < child.timeouts[0] <= 22
    client.resolve("/a/y", timeout_seconds=10)
    assert child.timeouts[-1] <= 11


@pytest.mark.parametrize(
    "path",
    [
        "/" + "x" * (5 * 1024 * 1024),
        "/x" * (512 * 1024),
        "/x" * 1_000_000,
        "/a\0b",
        "/\udcff",
        "/a/../b",
        "/a/./b",
        "//",
        "/a/",
        "/" + "x" * 250,
        "a",
        "",
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_G5_a_path_that_is_none_costs_no_call(make: Make, resolver: BeginAt, path: str) -> None:
    server = make("/")
    client = resolver(server)
    with pytest.raises(errors.InvalidPath) as caught:
        client.resolve(path)
    assert len(str(caught.value)) < 500
    (outcome,) = client.resolve_many([path])
    assert isinstance(outcome, errors.InvalidPath)
    assert server.rpcs == 0


def test_G5_an_answer_that_is_too_large_is_an_error_of_its_server(
    make: Make, resolver: BeginAt
) -> None:
    server = make("/")
    big = here("/x")
    big.resolution.entry.topic.provision_message = "x" * (17 * 1024 * 1024)
    server.says = lambda _: big
    with pytest.raises(KdirError):
        resolver(server).resolve("/x")


FORKING = """
import os, sys
from resolver import Resolver
client = Resolver([sys.argv[1]], timeout_seconds=10)
client.resolve("/before")
lock = client._lookups._flights.lock
for number in range(3):
    with lock:  # as another thread may hold it at the fork
        child = os.fork()
        if child == 0:
            code = 1
            try:
                client.resolve("/before")
                client.resolve(f"/in-the-child-{number}")
                (many,) = client.resolve_many([f"/many-{number}"])
                code = 0 if many.kind == "topic" else 2
            finally:
                os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
# The parent's channel is unharmed.
assert client.resolve("/after").kind == "topic"
"""


def test_G11_a_child_process_makes_channels_of_its_own(make: Make) -> None:
    # In a process of its own: gRPC cannot be forked while a server of the same process, such as
    # the scripted one here, is at work in it.
    server = make("/")
    server.says = here
    ended = subprocess.run(
        [sys.executable, "-c", FORKING, server.endpoint],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


def test_G12_time_is_the_monotonic_clocks(
    make: Make, resolver: BeginAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make("/")
    server.says = here
    client = resolver(server)
    client.resolve("/x")
    for jump in (3600, -3600):
        now = time.time()
        monkeypatch.setattr(time, "time", lambda now=now, jump=jump: now + jump)
        client.resolve("/x")
    assert server.rpcs == 1


def test_a_closed_resolver_says_so(make: Make) -> None:
    server = make("/")
    server.says = here
    client = Resolver(server.endpoint)
    client.resolve("/x")
    client.close()
    with pytest.raises(Closed, match="closed"):
        client.resolve("/y")


def test_health_orders_and_leaves_nobody_out() -> None:
    clock = Clock()
    health = ServerHealth(clock, shuffle=lambda _: None)
    health.note_success("b:1")
    health.note_failure("a:1")
    health.note_lame("c:1")
    assert list(health.order(["a:1", "b:1", "c:1", "d:1"])) == ["b:1", "d:1", "a:1", "c:1"]
    clock.ahead = 3
    assert not health.is_bad("a:1")
    assert health.is_bad("c:1")
    clock.ahead = 11
    assert not health.is_bad("c:1")
