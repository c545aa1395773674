"""Walking on in a caller's name: by its token, with its own memory, and never by our own rights."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kdir.v1 import entry_pb2, error_pb2, resolve_pb2, watch_pb2

from directory.api.resolve_service import RecursiveResolver, _Caller, _LocalFirstTransport
from directory.api.rpc.call_context import CURRENT, Call
from directory.server.certificates import PeerCredentials
from directory.server.config_security import TlsConfig
from resolver.errors import Cancelled, Closed, InvalidArgument, Unimplemented, Unreachable
from resolver.revision_token import Position, Token
from resolver.transport import GrpcTransport, method
from tests.support.identities import Authority

OWN = "127.0.0.1:7420"


class Here:
    """Resolver of this server's own answers, which records the caller of each."""

    def __init__(self) -> None:
        self.asked: list[Call] = []

    def resolve(self, request: Any, call: Call) -> Any:
        self.asked.append(call)
        return resolve_pb2.ResolveResponse(
            authority=self.authority(), outcome=self.outcome(request.path)
        )

    def batch(self, request: Any, call: Call) -> Any:
        self.asked.append(call)
        outcomes = [self.outcome(path) for path in request.paths]
        return resolve_pb2.BatchResolveResponse(authorities=[self.authority()], outcomes=outcomes)

    def authority(self) -> resolve_pb2.Authority:
        cluster = entry_pb2.Cluster(cluster_id="kc-1", cluster="root", mount="/")
        return resolve_pb2.Authority(cluster=cluster, revision=1, incarnation="i", server="root-1")

    def outcome(self, path: str) -> resolve_pb2.Outcome:
        entry = entry_pb2.Entry(path=path, directory=entry_pb2.Directory(), entry_id=1)
        found = resolve_pb2.Resolution(entry=entry, lifetime_seconds=60)
        return resolve_pb2.Outcome(resolution=found)

    def recursion(self, dialling: PeerCredentials | None = None) -> RecursiveResolver:
        handlers: dict[str, Any] = {
            "/kdir.v1.ResolveService/Resolve": self.resolve,
            "/kdir.v1.ResolveService/BatchResolve": self.batch,
        }
        return RecursiveResolver(lambda: (OWN,), handlers, 4, dialling)


def call(principal: str, bearer: str = "", host: str = "10.0.0.1") -> Call:
    return Call(
        time.monotonic() + 10,
        principal=principal,
        bearer=bearer,
        caller_host=host,
        is_active=lambda: True,
    )


def test_what_one_caller_was_answered_is_not_given_to_another() -> None:
    here = Here()
    recursion = here.recursion()
    callers = [
        call("User:alice", "token-a"),
        call("User:bob", "token-b"),
        call("User:bob", "token-b", host="10.0.0.2"),
        call("User:ANONYMOUS"),
    ]
    for number, caller in enumerate(callers, start=1):
        for attempt in range(
            2
        ):  # nor to the same one again: a revoke is felt at once (decision 0039)
            recursion.resolve(resolve_pb2.ResolveRequest(path="/a"), caller)
            assert len(here.asked) == 2 * number - 1 + attempt
    assert [(one.principal, one.bearer, one.host) for one in here.asked] == [
        (one.principal, one.bearer, one.host) for one in callers for _ in range(2)
    ]
    request = resolve_pb2.BatchResolveRequest(paths=["/b", "/c"])
    recursion.batch_resolve(request, callers[0])
    assert here.asked[-1].principal == "User:alice"
    # What is remembered of many callers is bounded; nobody is given another's for that.
    for number in range(200):
        recursion.resolve(
            resolve_pb2.ResolveRequest(path="/a"), call(f"User:{number}", f"token-{number}")
        )
        assert here.asked[-1].principal == f"User:{number}"
    assert len(recursion._resolvers) <= 64
    recursion.close()


class Linked(Here):
    """A root with links: ``/l/…`` is ``/…``, and what is called ``none`` is not there."""

    def outcome(self, path: str) -> resolve_pb2.Outcome:
        if path.startswith("/l/"):
            rewrite = resolve_pb2.Rewrite(link="/l", paths=[path[2:]], lifetime_seconds=7)
            return resolve_pb2.Outcome(rewrite=rewrite)
        if path.endswith("none"):
            absent = resolve_pb2.Absent(nearest_directory="/", lifetime_seconds=5)
            return resolve_pb2.Outcome(absent=absent)
        return super().outcome(path)


def test_an_absence_is_an_outcome_and_says_whose() -> None:
    recursion = Linked().recursion()
    caller = call("User:alice", "token-a")
    paths = ["/none", "/l/none", "/a", "/l/a", "//"]
    together = recursion.batch_resolve(resolve_pb2.BatchResolveRequest(paths=paths), caller)
    kinds = ["absent", "absent", "resolution", "resolution", "error"]
    assert [one.WhichOneof("kind") for one in together.outcomes] == kinds
    assert [one.cluster.cluster_id for one in together.authorities] == ["kc-1"]
    for path, outcome in zip(paths[:4], together.outcomes, strict=False):
        alone = recursion.resolve(resolve_pb2.ResolveRequest(path=path), caller)
        assert alone.outcome == outcome
        assert alone.authority.cluster.cluster_id == "kc-1"
        assert Token.parse(alone.authority.token).positions == {"kc-1": Position("i", 1)}
    assert together.outcomes[1].absent.nearest_directory == "/"
    assert together.outcomes[3].resolution.lifetime_seconds == 7, "no longer than the link's"
    recursion.close()


class Gone(Here):
    """A server whose caller goes away after the first call, and which cannot be reached itself."""

    is_active = True

    def resolve(self, request: Any, call: Call) -> Any:
        self.asked.append(call)
        self.is_active = False
        raise Unreachable("it is away")


def test_no_further_server_is_called_once_the_caller_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Gone()
    handlers: dict[str, Any] = {"/kdir.v1.ResolveService/Resolve": here.resolve}
    own = tuple(f"127.0.0.1:{port}" for port in range(7420, 7425))
    recursion = RecursiveResolver(lambda: own, handlers, 4)
    caller = call("User:alice", "token-a")
    caller.is_active = lambda: here.is_active
    monkeypatch.setattr(CURRENT, "call", caller)
    with pytest.raises(Cancelled):
        recursion.resolve(resolve_pb2.ResolveRequest(path="/a"), caller)
    assert len(here.asked) == 1
    # That it went away is held against no server.
    here.is_active = True
    with pytest.raises(Cancelled):
        recursion.resolve(resolve_pb2.ResolveRequest(path="/a"), caller)
    assert len(here.asked) == 2
    recursion.close()


def dialling(issued: Any) -> PeerCredentials:
    return PeerCredentials(TlsConfig(**{part: str(file) for part, file in issued.files.items()}))


@pytest.mark.parametrize(
    ("principal", "bearer", "own", "may"),
    [
        ("", "", "plain", True),
        ("User:alice", "token", "plain", True),
        ("User:alice", "token", "host", True),
        # Known by the certificate alone: nothing could be handed on.
        ("User:alice", "", "cluster", False),
        ("User:alice", "", "plain", False),
        # Nobody in particular: only where this server would be nobody, too.
        ("User:ANONYMOUS", "", "cluster", True),
        ("User:ANONYMOUS", "", "host", False),
    ],
)
def test_the_callers_in_whose_name_a_server_may_ask(
    tmp_path: Path, principal: str, bearer: str, own: str, may: bool
) -> None:
    authority = Authority(tmp_path)
    ways = {
        "plain": lambda: PeerCredentials(None),
        "host": lambda: dialling(authority.issue("la-1", dns=["la-1.example"])),
        "cluster": lambda: dialling(authority.server("kc-1")),
    }
    recursion = Here().recursion(ways[own]())
    assert recursion.can_forward_identity(call(principal, bearer)) is may
    recursion.close()


def test_nothing_is_watched_in_anothers_name_and_that_is_an_error_like_any_other() -> None:
    caller = _Caller("User:bob", "10.0.0.1", "token")
    own = _LocalFirstTransport(caller, lambda: (OWN,), {}, GrpcTransport())
    watch = method("WatchService.Watch")
    with pytest.raises(Unimplemented, match="WatchService"):
        own.stream(OWN, watch, watch_pb2.WatchRequest(path="/"))


def test_one_caller_who_names_silent_servers_leaves_others_their_readings(tmp_path: Path) -> None:
    """A certificate is read before a token is sent: so many at a time, and few for one caller."""
    recursion = Here().recursion(dialling(Authority(tmp_path).server("kc-1")))
    asked, request = method("ResolveService.Resolve"), resolve_pb2.ResolveRequest(path="/a")

    def way(principal: str) -> _LocalFirstTransport:
        caller = _Caller(principal, "10.0.0.1", f"token of {principal}")
        return _LocalFirstTransport(caller, lambda: (OWN,), {}, recursion._others)

    with socket.create_server(("127.0.0.1", 0), backlog=512) as silent, socket.socket() as closed:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        closed.bind(("127.0.0.1", 0))  # and does not listen
        port = closed.getsockname()[1]
        silent.settimeout(20)
        with ThreadPoolExecutor(100) as pool:
            greedy = [
                pool.submit(way("User:g").call, address, asked, request, 4, cluster_id=f"kc-{one}")
                for one in range(100)
            ]
            accepted = [silent.accept() for _ in range(8)]
            for one in range(50):
                with pytest.raises(Unreachable, match="no connection"):
                    way("User:bob").call(
                        f"127.0.0.1:{port}", asked, request, 20, cluster_id=f"kc-b{one}"
                    )
            for connection, _ in accepted:
                connection.close()
            assert all(one.exception(60) for one in greedy)
    recursion.close()


class Referring(Here):
    """A root that refers all to a cluster that is nowhere."""

    def outcome(self, path: str) -> resolve_pb2.Outcome:
        referral = resolve_pb2.Referral(
            kind=resolve_pb2.REFERRAL_KIND_DOWN,
            mount=path,
            cluster_id="kc-2",
            endpoints=["127.0.0.1:1999"],
            epoch=1,
            lifetime_seconds=60,
        )
        return resolve_pb2.Outcome(referral=referral)


def test_what_is_asked_of_others_after_the_server_stops_is_closed() -> None:
    recursion = Referring().recursion()
    caller = call("User:alice", "token-a")
    request = resolve_pb2.ResolveRequest(path="/a")
    with pytest.raises(Unreachable):
        recursion.resolve(request, caller)
    recursion.close()
    with pytest.raises(Closed):
        recursion.resolve(request, caller)
    (outcome,) = recursion.batch_resolve(
        resolve_pb2.BatchResolveRequest(paths=["/b"]), caller
    ).outcomes
    assert outcome.error.reason == error_pb2.ERROR_REASON_CANCELLED


def test_without_tls_a_caller_s_token_goes_to_this_machine_only() -> None:
    caller = _Caller("User:alice", "10.0.0.1", "token-a")
    way = _LocalFirstTransport(caller, lambda: (OWN,), {}, GrpcTransport(PeerCredentials(None)))
    asked = method("ResolveService.Resolve")
    with pytest.raises(InvalidArgument, match="a token is sent over TLS only"):
        way.call("192.0.2.1:7420", asked, resolve_pb2.ResolveRequest(path="/a"), 5)
