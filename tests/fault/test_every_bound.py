"""Every bound of docs/security.md: at it, one beyond it and ten times beyond it, by real gRPC.

At a bound a server serves. Beyond it the caller gets the error that the docs name, which holds the
field or the setting; nothing is written, and others are answered during and after it.
"""

from __future__ import annotations

import ast
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self
from urllib.request import urlopen

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from kdir.v1 import (
    access_pb2,
    access_pb2_grpc,
    directory_pb2,
    directory_pb2_grpc,
    entry_pb2,
    federation_pb2,
    federation_pb2_grpc,
    policies_pb2,
    resolve_pb2,
    resolve_pb2_grpc,
    watch_pb2,
    watch_pb2_grpc,
)

from deploy.local.ports import free_port
from directory.namespace.entry import ROOT_ID, Directory, Kind
from directory.namespace.keys import entry_key
from directory.server.config import Limits
from directory.store.sqlite.store import SqliteStore
from resolver.error_status import from_rpc_error
from resolver.errors import KdirError
from resolver.revision_token import Token
from tests.fault.test_slow_store import locked, mkdir
from tests.support.federation import Federation, Server, eventually
from tests.support.hostile import problem_with
from tests.support.http2 import ENHANCE_YOUR_CALM, REFUSED_STREAM, RST_STREAM, Raw
from tests.support.identities import public_pem
from tests.support.identities import token as login_of
from tests.support.large_trees import CODEC, commit
from tests.support.scripted_servers import FakeServer, absent

ROOT: Final = Path(__file__).resolve().parents[2]
RESOLVE: Final = "/kdir.v1.ResolveService/Resolve"
OWN: Final = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
"""A connection of its own."""
SECONDS: Final = 120.0
"""Of a call: longer than a slow machine takes."""

ROWS: Final[Mapping[str, tuple[str, ...]]] = {
    # -- calls, streams and answers
    "max_connections": ("test_connections",),
    "max_concurrent_calls": ("test_calls_at_a_time",),
    "connection_calls": ("test_calls_of_a_connection",),
    "unfinished_requests": (
        (
            "tests/fault/test_connections.py::"
            "test_of_unfinished_requests_beyond_the_bound_the_oldest_are_refused"
        ),
    ),
    "request_seconds": (
        "tests/fault/test_connections.py::test_G9_calls_whose_request_never_comes_hold_no_thread",
    ),
    "max_streams": ("test_streams_of_all_and_links",),
    "principal_streams": ("test_streams_of_a_principal",),
    "connection_streams": ("test_streams_of_a_connection",),
    "health_watchers": ("test_watchers_of_health",),
    "reflection_streams": ("test_streams_of_reflection",),
    "max_blocked_reads": ("test_reads_that_wait",),
    "principal_blocked_reads": ("test_reads_that_wait",),
    "write_threads": (
        (
            "tests/unit/access/test_answer_bounds.py::"
            "test_N3_writes_with_forged_tokens_wait_in_places_of_their_own"
        ),
    ),
    "read_threads": ("test_recursive_reads",),
    "long_read_threads": ("test_long_reads_wait_for_each_other",),
    "max_queued_writes": (
        "tests/fault/test_slow_store.py::test_writes_that_hang_hold_no_thread_that_answers_reads",
    ),
    "max_call_seconds": ("test_how_long_a_call_works",),
    "max_request_bytes": ("test_bytes_of_a_request",),
    "metadata_bytes": ("tests/fault/test_connections.py::test_metadata_is_bounded",),
    "max_batch_paths": ("test_what_a_request_holds",),
    "list_items": ("test_what_a_request_holds",),
    "text_bytes": ("test_what_a_request_holds",),
    "a path; its segments; a segment; a glob": ("test_what_a_request_holds",),
    "answer_bytes": (
        (
            "tests/unit/access/test_answer_bounds.py::"
            "test_a_batch_ends_at_the_bytes_of_an_answer_and_each_path_left_gets_limit_exceeded"
        ),
        (
            "tests/unit/access/test_answer_bounds.py::"
            "test_pages_of_listings_scans_and_history_end_at_the_bytes_of_an_answer"
        ),
    ),
    "entries of one page": ("test_entries_of_a_page",),
    "unsent_bytes": (
        (
            "tests/unit/api/test_caller_slots.py::"
            "test_answers_that_are_not_read_are_bounded_for_each_caller_and_for_all"
        ),
    ),
    "principal_unsent_bytes": (
        (
            "tests/fault/test_connections.py::"
            "test_answers_that_are_not_read_are_bounded_and_dropped_in_time"
        ),
    ),
    "remembered_bytes": (
        "tests/unit/api/test_response_cache.py::test_what_is_remembered_is_bounded_in_bytes",
    ),
    "answers kept in memory for a cluster": (
        "tests/unit/api/test_response_cache.py::test_what_is_remembered_is_bounded_in_number",
    ),
    "watch_queue_events": ("test_a_watcher_that_lags",),
    "watch_queue_bytes": ("test_a_watcher_that_lags",),
    "retained_change_events": (
        "tests/unit/writing/test_history.py::test_the_oldest_events_go_where_there_are_too_many",
    ),
    "retained_change_bytes": (
        (
            "tests/unit/writing/test_history.py::"
            "test_the_oldest_events_go_where_all_have_too_many_bytes"
        ),
    ),
    "grants of one entry": ("test_what_a_request_holds",),
    # -- what a request may put into an entry
    "policy_text_bytes": ("test_what_a_request_holds",),
    "policy_tags": ("test_what_a_request_holds",),
    "policy_tag_bytes": ("test_what_a_request_holds",),
    "policy_keys": ("test_what_a_request_holds",),
    "policies_bytes": ("test_what_a_request_holds",),
    "mask_paths": ("test_what_a_request_holds",),
    "link_targets": ("test_what_a_request_holds",),
    "mount_endpoints": ("test_what_a_request_holds",),
    "endpoints of a row of a mount table, of a referral, of what a parent says of itself: more are "
    "dropped": (
        "tests/unit/resolver/test_endpoints.py::test_of_what_others_say_only_plain_endpoints_are_kept",
    ),
    "clusters that the index's crawl asks because one child, and those that it leads to, list "
    "them; all children; in all": (
        (
            "tests/index/test_cluster_discovery.py::"
            "test_R5_a_child_that_leads_to_ever_more_clusters_ends_no_discovery"
        ),
        (
            "tests/index/test_cluster_discovery.py::"
            "test_of_too_many_clusters_below_a_child_those_that_are_not_asked_are_silent"
        ),
    ),
    "certificates read at a time before tokens are sent; how long one may take, all addresses of "
    "its server together": (
        "tests/unit/resolver/test_peer_certificates.py::test_so_many_are_read_at_a_time",
        "tests/unit/resolver/test_peer_certificates.py::test_all_addresses_of_a_name_share_one_deadline",
    ),
    "the same for one caller, in whose name a server resolves; with none free it waits for one": (
        (
            "tests/unit/api/test_recursive_resolve.py::"
            "test_one_caller_who_names_silent_servers_leaves_others_their_readings"
        ),
        "tests/unit/resolver/test_peer_certificates.py::test_who_finds_no_slot_waits_for_one",
    ),
    "channels to servers that are kept: those used last, and besides those in use": (
        (
            "tests/unit/resolver/test_transport.py::"
            "test_channels_that_were_used_last_are_kept_and_those_in_use_always"
        ),
    ),
    "child_mounts": (
        "tests/unit/federation/test_table_exchange.py::test_rows_over_the_bound_are_left_out",
    ),
    "child_mount_bytes": (
        "tests/unit/federation/test_table_exchange.py::test_bytes_over_the_bound_are_left_out",
    ),
    "table_mounts": ("tests/unit/federation/test_table_exchange.py::test_shares_are_fair",),
    "table_bytes": (
        (
            "tests/unit/federation/test_table_exchange.py::"
            "test_one_group_that_is_too_large_costs_the_others_nothing"
        ),
    ),
    "commits of what one child reports, over all its links; bytes of them": (
        (
            "tests/fault/test_mount_tables.py::"
            "test_a_child_that_reports_too_much_costs_itself_rows_and_nobody_a_link"
        ),
        (
            "tests/unit/federation/test_child_links.py::"
            "test_what_a_child_reports_is_kept_at_a_pace_of_bytes_and_the_last_of_it_always"
        ),
    ),
    "outbox_changes": (
        (
            "tests/integration/change_log/test_operations.py::"
            "test_more_than_may_wait_is_refused_but_for_what_is_urgent_until_it_is_given_up"
        ),
    ),
    "cluster id, name and incarnation of a child's hello": ("test_what_a_request_holds",),
    "physical name of a topic": ("test_what_a_request_holds",),
    "path; segments of a path; one segment": ("test_what_a_request_holds",),
}
"""By setting, or by the docs' words where a bound is fixed: the tests that try it at all sizes; a
name without a file is of this one."""
NO_BOUNDS: Final = {
    "max_stale_seconds",
    "referral_ttl_seconds",
    "answer_ttl_seconds",
    "negative_ttl_seconds",
    "inherited_grants_max_age_seconds",
    "link_heartbeat_seconds",
    "drain_seconds",
}
"""Settings of ``[limits]`` that bound nothing that a caller sends."""


# -- the rows and the docs -------------------------------------------------------------------------


def documented() -> set[str]:
    """Returns the settings, and the words of what is fixed, of the tables of bounds."""
    section = (ROOT / "docs/security.md").read_text().partition("## Bounds")[2]
    section = section.partition("\n## ")[0]
    found = set(re.findall(r"`limits\.(\w+)`", section))
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and re.search(r"\bfixed\b|Kafka's own", cells[3]):
            found.add(cells[0])
    return found


def test_each_bound_of_the_docs_has_a_row() -> None:
    assert set(ROWS) == documented()
    settings = {one.name for one in fields(Limits)}
    assert settings - NO_BOUNDS <= set(ROWS), "a setting that bounds is in the docs' tables"
    assert settings >= NO_BOUNDS


@pytest.mark.parametrize("key", ROWS)
def test_each_row_names_tests_that_exist(key: str) -> None:
    for node in ROWS[key]:
        file, _, name = node.rpartition("::")
        source = (ROOT / file if file else Path(__file__)).read_text()
        assert name in {
            one.name for one in ast.parse(source).body if isinstance(one, ast.FunctionDef)
        }
        if name == "test_what_a_request_holds":
            assert any(case.key == key for case in CASES), key


# -- callers ---------------------------------------------------------------------------------------


class Caller:
    """Caller with a connection, and with a login where a name is given."""

    def __init__(self, address: str, login: str = "", options: Sequence[tuple[str, Any]] = ()):
        self.channel: Final = grpc.insecure_channel(address, (*OWN, *options))
        self.metadata: Final = (("authorization", f"Bearer {login}"),) if login else ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def ask(self, stub: Any, method: str, request: Any, timeout: float = SECONDS) -> Any:
        """Returns one call.

        Raises:
            KdirError: what it is refused with, which is an error of the contract.
        """
        call = getattr(stub(self.channel), method)
        try:
            return call(request, timeout=timeout, metadata=self.metadata)
        except grpc.RpcError as error:
            raise checked(error) from None

    def open(self, stub: Any, method: str, request: Any) -> Any:
        """Opens a stream."""
        return getattr(stub(self.channel), method)(request, timeout=SECONDS, metadata=self.metadata)

    def watch(self) -> Any:
        """Watches everything."""
        return self.open(
            watch_pb2_grpc.WatchServiceStub, "Watch", watch_pb2.WatchRequest(path="/la")
        )

    def resolve(self, path: str = "/la", **asked: Any) -> resolve_pb2.ResolveResponse:
        request = resolve_pb2.ResolveRequest(path=path, **asked)
        answer: resolve_pb2.ResolveResponse = self.ask(
            resolve_pb2_grpc.ResolveServiceStub, "Resolve", request
        )
        return answer

    def reason(self, path: str = "/la", **asked: Any) -> str:
        """Returns "" where the path is resolved, else the reason of the error."""
        try:
            self.resolve(path, **asked)
        except KdirError as error:
            return error.reason
        return ""


def checked(error: grpc.RpcError) -> KdirError:
    """Returns what a call was refused with; it has exactly one reason, and nothing of a stack."""
    found = from_rpc_error(error)
    if found.reason != "DEADLINE_EXCEEDED":  # which the caller's own gRPC may be the first to raise
        assert problem_with(error) == ""
    return found


def first_of(stream: Any) -> KdirError | None:
    """Returns None where a stream's first message came, else its error."""
    try:
        next(stream)
    except grpc.RpcError as error:
        return checked(error)
    return None


@contextmanager
def others_are_answered(server: Server) -> Iterator[None]:
    """Asserts that another caller is answered all the time, during and after the block."""
    ends = threading.Event()
    answers: list[str] = []

    def ask() -> None:
        with Caller(server.address) as other:
            while not ends.is_set():
                answers.append(other.reason())
            answers.append(other.reason())

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        eventually(lambda: answers, SECONDS)
        yield
    finally:
        ends.set()
        asking.join(SECONDS)
    assert set(answers) == {""}
    assert len(answers) >= 2


def newest_change(caller: Caller) -> int:
    """Returns the revision of the last change of an entry."""
    request = watch_pb2.ListChangesRequest(path="/la", page_size=1)
    answer = caller.ask(watch_pb2_grpc.WatchServiceStub, "ListChanges", request)
    return max((event.revision for event in answer.events), default=0)


# -- what a request holds --------------------------------------------------------------------------

PAGED: Final = 20_001
"""Entries of the directory that is listed by pages."""
HELD: Final = {
    "max_batch_paths": 50,
    "list_items": 10_000,
    "text_bytes": 20_000,
    "max_request_bytes": 4 << 20,
    "policy_text_bytes": 400,
    "policy_tags": 5,
    "policy_tag_bytes": 40,
    "policy_keys": 150,
    "policies_bytes": 4_000,
    "mask_paths": 30,
    "link_targets": 4,
    "mount_endpoints": 3,
}


@pytest.fixture(scope="module")
def holds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yields a server with small limits of what a request holds, and a large directory."""
    folder = tmp_path_factory.mktemp("holds")
    file = folder / "filled.sqlite"
    store = SqliteStore(file, "la")
    # As wide as to be listed by pages: one by one by gRPC they would take minutes.
    wide = Directory(entry_id=100)
    rows = [(entry_key(ROOT_ID, Kind.DIRECTORY, "wide"), CODEC.encode(wide))]
    rows += [
        (entry_key(100, Kind.DIRECTORY, f"d{n:05}"), CODEC.encode(Directory(entry_id=1_000 + n)))
        for n in range(PAGED)
    ]
    commit(store, rows)
    store.close()
    with Federation(folder) as federation:
        server = federation.start("/la", limits=HELD, store=f"sqlite:///{file}")
        server.mkdir("/la/d/e")
        server.mkdir("/la/d/f")
        yield server


@pytest.fixture
def caller(holds: Server) -> Iterator[Caller]:
    with Caller(holds.address) as made:
        yield made


@dataclass(frozen=True, slots=True)
class Case:
    """Request that tries a limit, and the expected answer."""

    key: str
    """Of ``ROWS``."""
    bound: int
    send: Callable[[Caller, int], Any]
    """Asks for so much."""
    names: str
    """What the error says, as a regular expression."""
    reason: str = "LIMIT_EXCEEDED"
    at: str = ""
    """The reason of another error, where the request is one that is refused at the bound, too."""


def create(path: str, **fields: Any) -> Callable[[Caller], Any]:
    entry = entry_pb2.Entry(**fields)
    request = directory_pb2.CreateEntryRequest(
        path=path, entry=entry, make_parents="directory" in fields
    )
    return lambda caller: caller.ask(
        directory_pb2_grpc.DirectoryServiceStub, "CreateEntry", request
    )


def directory(caller: Caller, name: str, **policies: Any) -> Any:
    made = policies_pb2.Policies(**policies)
    return create(f"/la/{name}", directory=entry_pb2.Directory(), policies=made)(caller)


def listing(caller: Caller, **fields: Any) -> Any:
    request = directory_pb2.ListEntriesRequest(path="/la/d", **fields)
    return caller.ask(directory_pb2_grpc.DirectoryServiceStub, "ListEntries", request)


def values(count: int, size: int = 1) -> dict[str, Any]:
    return {
        f"redpanda.{number:04}": policies_pb2.ConfigValue(value="x" * size)
        for number in range(count)
    }


def of_bytes(size: int) -> dict[str, Any]:
    """Returns policies of so many bytes, in texts that are each short enough."""
    made = values(size // 300, 300 - 13)
    rest = size - sum(len(key) + len(one.value) for key, one in made.items())
    assert rest < 380
    return {"topic_config": made, **({"description": "x" * rest} if rest else {})}


def batch(caller: Caller, count: int) -> Any:
    request = resolve_pb2.BatchResolveRequest(paths=["/la"] * count)
    return caller.ask(resolve_pb2_grpc.ResolveServiceStub, "BatchResolve", request)


def grant(caller: Caller, count: int) -> Any:
    grants = [
        access_pb2.Grant(
            principal=f"User:u{number}",
            operation=access_pb2.OPERATION_READ,
            permission=access_pb2.PERMISSION_ALLOW,
            resource_type=access_pb2.RESOURCE_TYPE_TOPIC,
        )
        for number in range(count)
    ]
    # Each time to one that has none, so that only their number is tried.
    path = {1_000: "/la/d", 1_001: "/la/d/e", 10_000: "/la/d/f"}[count]
    request = access_pb2.AddGrantsRequest(path=path, grants=grants)
    return caller.ask(access_pb2_grpc.AccessServiceStub, "AddGrants", request)


def mask(caller: Caller, count: int) -> Any:
    policies = policies_pb2.Policies(topic_config=values(count))
    paths = [f"policies.topic_config.{key}" for key in policies.topic_config]
    request = directory_pb2.UpdateEntryRequest(
        path="/la/d", entry=entry_pb2.Entry(policies=policies), update_mask={"paths": paths}
    )
    return caller.ask(directory_pb2_grpc.DirectoryServiceStub, "UpdateEntry", request)


def link(caller: Caller, count: int) -> Any:
    targets = [f"/ny/{number}" for number in range(count)]
    return create(f"/la/link-{count}", link=entry_pb2.Link(targets=targets))(caller)


def link_of_length(caller: Caller, size: int) -> Any:
    target = long_path("/ny", size)
    return create(f"/la/long-link-{size}", link=entry_pb2.Link(targets=[target]))(caller)


def mount(caller: Caller, *endpoints: str) -> Any:
    number = len(endpoints) * 10_000 + len(endpoints[0])
    made = entry_pb2.Mount(cluster_id=f"kc-{number}", endpoints=endpoints)
    return create(f"/la/mount-{number}", mount=made)(caller)


def hello(caller: Caller, **changed: Any) -> None:
    known = {"cluster_id": "kc-hello", "cluster": "hello", "mount": "/la/hello"}
    first = federation_pb2.LinkRequest(hello=federation_pb2.Hello(**(known | changed)))
    error = first_of(caller.open(federation_pb2_grpc.FederationServiceStub, "Link", iter([first])))
    assert error is not None
    raise error


def long_path(above: str, size: int) -> str:
    """Returns a path of so many bytes."""
    path = above
    while size - len(path) > 251:
        path += "/" + "x" * 240
    return path + "/" + "x" * (size - len(path) - 1)


def of_length(caller: Caller, size: int) -> Any:
    return create(long_path("/la", size), directory=entry_pb2.Directory())(caller)


def of_depth(caller: Caller, count: int) -> Any:
    return create("/la" + "/s" * (count - 1), directory=entry_pb2.Directory())(caller)


def of_name(caller: Caller, size: int) -> Any:
    return create("/la/" + "n" * size, directory=entry_pb2.Directory())(caller)


def topic(caller: Caller, size: int) -> Any:
    made = entry_pb2.Topic(physical_name="p" * size)
    return create(f"/la/d/topic-{size}", topic=made)(caller)


CASES: Final = (
    Case("max_batch_paths", 50, batch, r"^paths: found \d+.*limits\.max_batch_paths"),
    Case(
        "list_items",
        10_000,
        lambda one, count: listing(one, kinds=[entry_pb2.ENTRY_KIND_DIRECTORY] * count),
        r"^kinds: found \d+.*limits\.list_items",
    ),
    Case(
        "text_bytes",
        20_000,
        lambda one, size: listing(one, token="x" * size),
        r"^token: found \d+ bytes.*limits\.text_bytes",
        at="INVALID_TOKEN",
    ),
    Case(
        "a path; its segments; a segment; a glob",
        1_024,
        lambda one, size: listing(one, name_glob="*/" * 50 + "x" * (size - 100)),
        r"at most 1024 characters",
        reason="INVALID_ARGUMENT",
    ),
    *(
        Case("path; segments of a path; one segment", bound, send, names, reason="INVALID_PATH")
        for bound, send, names in (
            (1_024, of_length, r"at most 1024 are allowed|at most 64 are allowed"),
            (64, of_depth, r"at most 64 are allowed"),
            (249, of_name, r"at most 249 are allowed"),
        )
    ),
    Case("grants of one entry", 1_000, grant, r"^grants: .*at most 1,000"),
    Case(
        "policy_text_bytes",
        400,
        lambda one, size: directory(one, f"text-{size}", description="x" * size),
        r"^policies\.description: found .*limits\.policy_text_bytes",
    ),
    Case(
        "policy_tags",
        5,
        lambda one, count: directory(
            one,
            f"tags-{count}",
            tags={f"t{n}": policies_pb2.ConfigValue(value="x") for n in range(count)},
        ),
        r"^policies\.tags: found .*limits\.policy_tags\b",
    ),
    Case(
        "policy_tag_bytes",
        40,
        lambda one, size: directory(
            one, f"tag-{size}", tags={"team": policies_pb2.ConfigValue(value="x" * (size - 4))}
        ),
        r"^policies\.tags\.team: found .*limits\.policy_tag_bytes",
    ),
    Case(
        "policy_keys",
        150,
        lambda one, count: directory(one, f"keys-{count}", topic_config=values(count)),
        r"^policies.*: found .*limits\.policy_keys",
    ),
    Case(
        "policies_bytes",
        4_000,
        lambda one, size: directory(one, f"policies-{size}", **of_bytes(size)),
        r"^policies: found .*limits\.policies_bytes",
    ),
    Case("mask_paths", 30, mask, r"^update_mask: found .*limits\.mask_paths"),
    Case("link_targets", 4, link, r"^link\.targets: found .*limits\.link_targets"),
    Case(
        "link_targets",
        1_024,
        link_of_length,
        r"link\.targets.*at most (1024|64) are allowed",
        reason="INVALID_ARGUMENT",
    ),
    Case(
        "mount_endpoints",
        3,
        lambda one, count: mount(one, *(f"h{n}:1" for n in range(count))),
        r"^mount\.endpoints: found .*limits\.mount_endpoints",
    ),
    Case(
        "mount_endpoints",
        3,
        lambda one, count: hello(one, endpoints=[f"h{n}:1" for n in range(count)]),
        r"^hello\.endpoints: found .*limits\.mount_endpoints",
        at="UNKNOWN_CHILD",
    ),
    *(
        Case(
            "cluster id, name and incarnation of a child's hello",
            256,
            lambda one, size, field=field: hello(one, **{field: "x" * size}),  # type: ignore[misc]
            rf"^hello\.{field}: found .*at most 256 bytes",
            at="UNKNOWN_CHILD",
        )
        for field in ("cluster_id", "cluster", "incarnation")
    ),
    Case(
        "physical name of a topic",
        249,
        topic,
        r"249",
        reason="INVALID_PHYSICAL_NAME",
        at="ABOVE_CEILING",
    ),
)  # fmt: skip


def refused(work: Callable[[], Any]) -> KdirError:
    with pytest.raises(KdirError) as caught:
        work()
    return caught.value


@pytest.mark.parametrize("case", CASES, ids=lambda one: f"{one.key}-{one.bound}")
def test_what_a_request_holds(holds: Server, caller: Caller, case: Case) -> None:
    if case.at:
        assert refused(lambda: case.send(caller, case.bound)).reason == case.at
    else:
        case.send(caller, case.bound)
    with others_are_answered(holds):
        for size in (case.bound + 1, 10 * case.bound):
            before = newest_change(caller)
            error = refused(lambda size=size: case.send(caller, size))  # type: ignore[misc]
            assert error.reason == case.reason
            # Ten times as many may be more bytes than any request of the method has.
            names = case.names if size == case.bound + 1 else f"{case.names}|^request: found"
            assert re.search(names, error.message), error.message
            assert len(error.message) < 500
            assert newest_change(caller) == before, "nothing is written"


def test_bytes_of_a_request(holds: Server, caller: Caller) -> None:
    """Of any: gRPC refuses it before anything of it is read, its error has no reason; of a method
    that takes less, it is refused before it is parsed.
    """
    batch: Any = caller.channel.unary_unary("/kdir.v1.ResolveService/BatchResolve")
    create: Any = caller.channel.unary_unary("/kdir.v1.DirectoryService/CreateEntry")

    def send(size: int, call: Any = batch) -> None:
        request: Any = resolve_pb2.BatchResolveRequest(paths=["/la"])
        if call is create:
            entry = entry_pb2.Entry(directory=entry_pb2.Directory())
            request = directory_pb2.CreateEntryRequest(path=f"/la/sized-{size}", entry=entry)
        raw = request.SerializeToString()
        # A field that this version does not know, as a newer client may send: 99, of 4 bytes' size.
        left = size - len(raw) - 6
        sized = bytes([left & 127 | 128, left >> 7 & 127 | 128, left >> 14 & 127 | 128, left >> 21])
        call(raw + b"\x9a\x06" + sized + b"x" * left, timeout=SECONDS)

    entry_bound = 4 * (HELD["text_bytes"] + HELD["policies_bytes"])
    send(entry_bound, create)
    for size in (entry_bound + 1, 10 * entry_bound):
        before = newest_change(caller)
        with pytest.raises(grpc.RpcError) as caught:
            send(size, create)
        error = from_rpc_error(caught.value)
        assert error.reason == "LIMIT_EXCEEDED"
        assert f"request: found {size} bytes; expected at most {entry_bound}" in error.message
        assert newest_change(caller) == before
    bound = HELD["max_request_bytes"]
    send(bound)
    with others_are_answered(holds):
        for size in (bound + 1, 10 * bound):
            before = newest_change(caller)
            with pytest.raises(grpc.RpcError) as caught:
                send(size)
            error = from_rpc_error(caught.value)
            assert error.reason == "LIMIT_EXCEEDED"
            assert f"larger than max ({size} vs. {bound})" in error.message
            assert newest_change(caller) == before


@pytest.mark.parametrize("size", [10_000, 10_001, 100_000])
def test_entries_of_a_page(holds: Server, caller: Caller, size: int) -> None:
    """More are the next page's."""
    pages = list[int]()
    token = ""
    with others_are_answered(holds):
        while token or not pages:
            request = directory_pb2.ListEntriesRequest(
                path="/la/wide", page_size=size, page_token=token
            )
            with_directory = directory_pb2_grpc.DirectoryServiceStub
            page = caller.ask(with_directory, "ListEntries", request)
            pages.append(len(page.entries))
            token = page.next_page_token
    assert pages == [10_000, 10_000, 1]


# -- calls and streams -----------------------------------------------------------------------------

SIGNER: Final = ec.generate_private_key(ec.SECP256R1())
TAKES: Final = {
    "max_connections": 80,
    "max_concurrent_calls": 60,
    "connection_calls": 30,
    "unfinished_requests": 4_000,
    "request_seconds": 600,
    "max_streams": 16,
    "principal_streams": 6,
    "connection_streams": 5,
    "health_watchers": 3,
    "reflection_streams": 2,
    "max_blocked_reads": 4,
    "principal_blocked_reads": 2,
    "read_threads": 4,
    "long_read_threads": 1,
    "watch_queue_events": 10,
    "watch_queue_bytes": 100_000,
}
FOR_ALL: Final = 14
"""Streams that are no links: one in eight of 16 is kept for those."""


@pytest.fixture(scope="module")
def takes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yields a server with small limits of calls and streams, where callers may log in."""
    folder = tmp_path_factory.mktemp("takes")
    key = folder / "login.pem"
    key.write_bytes(public_pem(SIGNER))
    with Federation(folder) as federation:
        server = federation.start(
            "/la",
            limits=TAKES,
            auth={"jwt_key": str(key), "allow_anonymous": True},
            metrics=f"127.0.0.1:{free_port()}",
        )
        server.mkdir("/la/d")
        yield server


@pytest.fixture
def enter(takes: Server) -> Iterator[Callable[..., Caller]]:
    """Connects somebody by name, with a connection of their own that ends with the test."""
    with ExitStack() as cleanup:

        def connect(name: str = "", *options: tuple[str, Any]) -> Caller:
            login = login_of(SIGNER, "ES256", sub=name, exp=4_000_000_000) if name else ""
            return cleanup.enter_context(Caller(takes.address, login, options))

        yield connect
    # What a test held open is over for the server, too, before the next one counts.
    eventually(lambda: open_streams(takes) == 0, 60)


def measured(server: Server, name: str) -> float:
    """Returns the value of a metric of the server, summed over all labels."""
    with urlopen(f"http://{server.settings['metrics']}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def open_streams(server: Server) -> float:
    return measured(server, "kdir_rpc_open_streams")


Enter = Callable[..., Caller]


def test_streams_of_a_connection(takes: Server, enter: Enter) -> None:
    alice = enter("alice")
    held = [alice.watch() for _ in range(5)]
    assert [first_of(one) for one in held] == [None] * 5
    with others_are_answered(takes):
        # At a time, since each of them is refused a second later.
        errors = [first_of(one) for one in [alice.watch() for _ in range(45)]]
        assert reasons(errors) == {"LIMIT_EXCEEDED": 45}
        assert all(
            named(one, r"connection .* has 5 .*limits\.connection_streams") for one in errors
        )
        assert first_of(enter("alice").watch()) is None, "another connection"


def test_streams_of_a_principal(takes: Server, enter: Enter) -> None:
    one, two = enter("alice"), enter("alice")
    held = [caller.watch() for caller in (one, two) for _ in range(3)]
    assert [first_of(stream) for stream in held] == [None] * 6
    with others_are_answered(takes):
        more = [enter("alice") for _ in range(11)]
        errors = [first_of(caller.watch()) for caller in more for _ in range(5)][:54]
        assert reasons(errors) == {"LIMIT_EXCEEDED": 54}
        assert all(named(it, r"User:alice has 6 .*limits\.principal_streams") for it in errors)
        assert first_of(enter("bob").watch()) is None, "another principal"


def test_streams_of_all_and_links(takes: Server, enter: Enter) -> None:
    """Where no others are allowed, links still are; and one too many is refused, too: it waited
    for a thread, and was not answered.
    """
    names = ["alice", "bob", "carol", "dave"]
    callers = [enter(name) for name in names]
    held = [callers[number % 4].watch() for number in range(FOR_ALL)]
    assert [first_of(stream) for stream in held] == [None] * FOR_ALL
    with others_are_answered(takes):
        more = [enter(f"more-{number}") for number in range(14)]
        errors = [first_of(more[number % 14].watch()) for number in range(9 * FOR_ALL)]
        assert reasons(errors) == {"LIMIT_EXCEEDED": 9 * FOR_ALL}
        assert all(named(it, rf"server has {FOR_ALL} .*limits\.max_streams") for it in errors)
        linked = enter("linked")
        done = threading.Event()

        def linking(number: int) -> Iterator[federation_pb2.LinkRequest]:
            child = federation_pb2.Hello(cluster_id=f"kc-{number}", mount=f"/la/c{number}")
            yield federation_pb2.LinkRequest(hello=child)
            while not done.wait(0.1):
                yield federation_pb2.LinkRequest(heartbeat=federation_pb2.Heartbeat())

        for number in range(2):
            takes.mount_child(f"/la/c{number}", f"kc-{number}")
        with_links = federation_pb2_grpc.FederationServiceStub
        links = [linked.open(with_links, "Link", linking(number)) for number in range(2)]
        try:
            eventually(lambda: open_streams(takes) == 16)
            errors = [first_of(linked.open(with_links, "Link", linking(9))) for _ in range(3)]
            errors += [first_of(more[0].watch())]
        finally:
            done.set()
        assert reasons(errors) == {"LIMIT_EXCEEDED": 4}
        assert named(errors[0], r"server has 16 .*limits\.max_streams")
        del links


def test_watchers_of_health(takes: Server, enter: Enter) -> None:
    caller = enter()
    request = health_pb2.HealthCheckRequest()

    def watch() -> Any:
        return caller.open(health_pb2_grpc.HealthStub, "Watch", request)

    held = [watch() for _ in range(3)]
    assert [first_of(stream) for stream in held] == [None] * 3
    with others_are_answered(takes):
        errors = [first_of(watch()) for _ in range(27)]
        assert reasons(errors) == {"LIMIT_EXCEEDED": 27}
        assert all(named(one, r"has 3 health watchers.*limits\.health_watchers") for one in errors)
        assert caller.ask(health_pb2_grpc.HealthStub, "Check", request).status == 1


def test_streams_of_reflection(takes: Server, enter: Enter) -> None:
    caller = enter()
    done = threading.Event()

    def asking() -> Iterator[Any]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        done.wait(SECONDS)

    def reflect() -> Any:
        return caller.open(
            reflection_pb2_grpc.ServerReflectionStub, "ServerReflectionInfo", asking()
        )

    held = [reflect() for _ in range(2)]
    try:
        assert [first_of(stream) for stream in held] == [None] * 2
        with others_are_answered(takes):
            errors = [first_of(reflect()) for _ in range(18)]
        assert reasons(errors) == {"LIMIT_EXCEEDED": 18}
        assert all(named(one, r"has 2 reflection.*limits\.reflection_streams") for one in errors)
    finally:
        done.set()


def reasons(errors: Sequence[KdirError | None]) -> Counter[str]:
    return Counter("" if one is None else one.reason for one in errors)


def named(error: KdirError | None, arguments: str) -> bool:
    return error is not None and re.search(arguments, error.message) is not None


def test_reads_that_wait(takes: Server, enter: Enter) -> None:
    """Two of each caller, and four of all."""
    future = token_of_the_future(takes)
    alice, bob, carol = enter("alice"), enter("bob"), enter("carol")

    def ask(one: Caller) -> KdirError:
        return refused(lambda: one.resolve(token=future))

    def wait() -> bool:
        """True if all was as it is to be before the first that waits had waited for 5 s."""
        held = [pool.submit(ask, bob) for _ in range(2)]
        asked = [pool.submit(ask, alice) for _ in range(20)]
        # Each is refused after a second, while those that were before it wait.
        eventually(lambda: sum(one.done() for one in asked) >= 18, 4)
        errors = [one.result() for one in asked if one.done()] + [ask(carol)]
        assert len(errors) == 19
        for one in errors:
            assert one.reason == "NOT_READY"
            assert named(one, r"limits\.max_blocked_reads, limits\.principal_blocked_reads")
        found = reasons([one.result() for one in (*held, *asked)])
        assert found == {"TOKEN_FROM_FUTURE": 4, "NOT_READY": 18}, "at the bound"
        return True

    with others_are_answered(takes), ThreadPoolExecutor(22) as pool:
        # On a busy machine one of the four may end before all have been asked.
        assert eventually(wait, 200)


def token_of_the_future(server: Server) -> str:
    """Returns a token of a revision that does not come."""
    ((cluster, place),) = Token.parse(server.resolve("/la").authority.token).positions.items()
    return str(Token.from_position(cluster, place.incarnation, place.revision + 10**6))


@pytest.mark.parametrize("times", [1, 2, 10])
def test_recursive_reads(takes: Server, enter: Enter, times: int) -> None:
    """Of one caller half of all."""
    path = f"/la/slow-{times}"
    with FakeServer(path) as slow, ThreadPoolExecutor(64) as pool:
        slow.hold = threading.Event()
        slow.says = lambda _: absent()
        made = entry_pb2.Entry(
            mount=entry_pb2.Mount(cluster_id=slow.cluster_id, endpoints=[slow.endpoint])
        )
        takes.entries("CreateEntry", path=path, entry=made)
        alice, bob, carol = enter("alice"), enter("bob"), enter("carol")

        def ask(caller: Caller) -> Any:
            return pool.submit(
                lambda: refused_or_none(lambda: caller.resolve(f"{path}/t", recursive=True))
            )

        with others_are_answered(takes):
            mine = [ask(alice) for _ in range(2 * times)]
            eventually(lambda: slow.rpcs >= 2)
            eventually(lambda: sum(one.done() for one in mine) >= 2 * (times - 1))
            bobs = [ask(bob) for _ in range(2)]
            eventually(lambda: slow.rpcs >= 4)
            errors = [one.result() for one in mine if one.done()]
            if times > 1:
                errors.append(ask(carol).result())
            slow.hold.set()
            ended = [one.result() for one in [*mine, *bobs]]
    assert len(errors) == 2 * (times - 1) + (times > 1)
    assert reasons(errors) == ({"LIMIT_EXCEEDED": len(errors)} if errors else {})
    assert all(named(one, r"recursive calls.*limits\.read_threads") for one in errors)
    assert reasons(ended)["LIMIT_EXCEEDED"] == 2 * (times - 1)
    assert slow.rpcs >= 4


def refused_or_none(work: Callable[[], Any]) -> KdirError | None:
    try:
        work()
    except KdirError as error:
        return error
    return None


@pytest.mark.parametrize("times", [1, 2, 10])
def test_long_reads_wait_for_each_other(takes: Server, enter: Enter, times: int) -> None:
    """None is refused; and short ones are answered meanwhile."""
    caller = enter("alice")
    request = resolve_pb2.BatchResolveRequest(paths=["/la"] * 3_000)

    def ask(_: int) -> int:
        with_paths = resolve_pb2_grpc.ResolveServiceStub
        return len(caller.ask(with_paths, "BatchResolve", request).outcomes)

    with others_are_answered(takes), ThreadPoolExecutor(10) as pool:
        assert list(pool.map(ask, range(times))) == [3_000] * times


def test_calls_at_a_time(takes: Server, enter: Enter) -> None:
    """Of all callers together: where they are taken, everybody is refused, with a reason."""
    caller = enter("alice")
    with ExitStack() as cleanup:

        def holding_all() -> list[Raw]:
            """Returns connections with sixty calls under way; none where the call of another still
            counted, as it does until a moment after it was answered.
            """
            with ExitStack() as opened:
                raws = [opened.enter_context(Raw(takes.port)) for _ in range(20)]
                for number in range(60):
                    raws[number % 20].begin(2 * (number // 20) + 1, RESOLVE)
                time.sleep(0.5)
                came = [one for raw in raws for one in raw.receive(0.01)]
                is_full = not any(one.ends_stream for one in came)
                if is_full and caller.reason() == "LIMIT_EXCEEDED":
                    cleanup.push(opened.pop_all())
                    return raws
            return []

        raws = eventually(holding_all)
        assert named(
            refused(caller.resolve), r"60 calls are under way \(limits\.max_concurrent_calls\)"
        )
        for number in range(60, 600):
            raws[number % 20].begin(2 * (number // 20) + 1, RESOLVE)
        for raw in raws:
            ended: set[int] = set()

            def refused_are(raw: Raw = raw, ended: set[int] = ended) -> bool:
                ended.update(one.stream for one in raw.receive(5) if one.ends_stream)
                return len(ended) >= 27

            assert eventually(refused_are, 60)
            assert min(ended) == 7, "the sixty that are allowed go on"
    eventually(lambda: caller.reason() == "")
    line = r"calls refused: \d+ \(RESOURCE_EXHAUSTED LIMIT_EXCEEDED\): 60 calls are under way"
    assert eventually(lambda: re.search(line, takes.process.log.read_text()))
    with others_are_answered(takes):
        assert caller.reason() == ""


def test_calls_of_a_connection(takes: Server, enter: Enter) -> None:
    """gRPC's clients wait; who sends them all the same gets each of them reset."""
    with others_are_answered(takes), Raw(takes.port) as raw:
        raw.receive(5)  # the server's settings, of which the bound is one
        for number in range(30):
            raw.begin(2 * number + 1, RESOLVE)
        assert not [one for one in raw.receive(0.5) if one.kind == RST_STREAM], "at the bound"
        codes: dict[int, int] = {}

        def are_reset(count: int) -> bool:
            for one in raw.receive(5):
                if one.kind == RST_STREAM:
                    codes[one.stream] = int.from_bytes(one.payload)
            return len(codes) >= count

        for first, last in ((30, 31), (31, 300)):
            for number in range(first, last):
                raw.begin(2 * number + 1, RESOLVE)
            assert eventually(lambda last=last: are_reset(last - 30), 60)  # type: ignore[misc]
        assert set(codes) == set(range(61, 600, 2))
        assert set(codes.values()) <= {REFUSED_STREAM, ENHANCE_YOUR_CALM}
    caller = enter("alice")
    assert caller.reason() == "", "its gRPC has the server's settings"
    call: Any = caller.channel.unary_unary(RESOLVE)
    request = resolve_pb2.ResolveRequest(path="/la").SerializeToString()

    def code(_: int) -> str:
        try:
            call(request, timeout=SECONDS)
        except grpc.RpcError as error:
            return from_rpc_error(error).reason
        return ""

    with ThreadPoolExecutor(64) as pool:
        found = Counter(pool.map(code, range(300)))
    assert set(found) == {""}, "a client that keeps to the bound is reset no call"
    assert caller.reason() == ""


@pytest.mark.parametrize("times", [1, 2, 10])
def test_connections(takes: Server, times: int) -> None:
    """One more is closed at once; those that are there go on."""
    assert takes.outcome("/la") == "resolution"
    # One is that of the server's own stub.
    count = {1: 79, 2: 80, 10: 799}[times]

    def connect() -> bool:
        """True if so many are closed as are too many; more while others' still end."""
        with ExitStack() as cleanup:
            many = [cleanup.enter_context(Raw(takes.port)) for _ in range(count)]
            eventually(lambda: sum(map(is_closed, many)) >= count - 79, 60)
            assert takes.outcome("/la") == "resolution"
            return sum(map(is_closed, many)) == count - 79

    assert eventually(connect, 60)
    eventually(lambda: is_answered(takes), 60)


def is_answered(server: Server) -> bool:
    with Caller(server.address) as caller:
        return caller.reason() == ""


def is_closed(raw: Raw) -> bool:
    try:
        while raw.receive(0.001):
            pass
    except OSError:
        return True
    return False


@pytest.mark.parametrize("times", [1, 2, 10], ids=["at", "beyond", "ten times"])
@pytest.mark.parametrize("what", ["watch_queue_events", "watch_queue_bytes"])
def test_a_watcher_that_lags(takes: Server, enter: Enter, what: str, times: int) -> None:
    """It is told to begin anew, and no other is held up."""
    # Of which the server may send five bytes before they are read.
    slow = enter("alice", ("grpc.http2.lookahead_bytes", 5), ("grpc.http2.bdp_probe", 0))
    quick = enter("bob")
    streams = slow.watch(), quick.watch()
    assert [first_of(stream) for stream in streams] == [None, None]

    def change(number: int) -> int:
        """Returns the bytes of its event, of which another watcher is sent each."""
        policies = {} if what == "watch_queue_events" else of_size(16_000)
        directory(quick, f"{what}-{times}-{number:03}", **policies)
        (event,) = next(streams[1]).events
        return int(event.ByteSize())

    size = change(0)
    # It was taken, and waits to be sent: no more are taken until it was.
    eventually(lambda: measured(takes, "kdir_watcher_max_lag_events") == 0)
    bound = 10 if what == "watch_queue_events" else TAKES["watch_queue_bytes"] // size
    assert 3 <= bound <= 10
    count = {1: bound, 2: bound + 1, 10: 10 * bound}[times]
    with others_are_answered(takes):
        for number in range(count):
            change(number + 1)
    found = [first_of(streams[0])]
    while found[-1] is None and len(found) <= bound:
        found.append(first_of(streams[0]))
    if times == 1:
        assert found == [None] * (bound + 1)
    else:
        assert reasons(found) == {"": 1, "RESYNC": 1}
        assert named(found[-1], rf"limits\.{what}\)")


def of_size(size: int) -> dict[str, Any]:
    return {"topic_config": values(size // 4_000, 4_000 - 13)}


# -- time ------------------------------------------------------------------------------------------


def test_how_long_a_call_works(tmp_path: Path) -> None:
    """However long its caller would wait; what ends at once is served."""
    with Federation(tmp_path) as federation:
        server = federation.start("/la", limits={"max_call_seconds": 2})
        server.mkdir("/la/x")
        with Caller(server.address) as caller, ThreadPoolExecutor(4) as pool:
            before = newest_change(caller)

            def write(seconds: float) -> str:
                with pytest.raises(KdirError) as caught:
                    mkdir(server, f"/la/x{seconds:g}", seconds)
                return caught.value.reason

            file = Path(str(server.settings["store"]).removeprefix("sqlite:///"))
            with locked(file), others_are_answered(server):
                # The last one would wait until long after the test is given up.
                found = list(pool.map(write, (2.0, 3.0, 20.0, 3_600.0)))
            assert set(found) <= {"DEADLINE_EXCEEDED", "STORE_UNAVAILABLE"}
            assert newest_change(caller) == before
            eventually(lambda: server.mkdir("/la/again"), 60)
