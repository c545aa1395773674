"""What access costs a caller: unary Resolve under 100,000 grants against bare grpcio, effective
policies at depth 20, and the first ``authorize_any`` of many callers.

The caller authenticates with a token. Each directory has ten grants, one of which allows the
caller; nothing above the directories does. Half of the grants are denies, some are for one host
only. The bare server is sent the same token.
"""

from __future__ import annotations

import functools
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from kdir.v1 import resolve_pb2

from bench import ground
from bench.comparing import beside_echo
from bench.ground import FIRST_DIRECTORY, SHOWN, TOPICS
from bench.load import RESOLVE, Load, channel_to, method_of, resolves
from bench.rows import Row, at_most
from directory.access.authorize_any import authorize_any
from directory.access.authorizer import Authorizer
from directory.access.compiled_grants import CompiledGrants
from directory.access.grant_tree import EntryPlace, GrantedEntry, GrantTree
from directory.access.grants import Grant, Operation, Permission
from directory.access.principals import Caller
from directory.namespace.effective_policies import (
    effective,
    explain,
    levels_of,
    path_levels,
    stamp_changed_fields,
)
from directory.namespace.entry import (
    NO_POLICIES,
    ROOT_ID,
    Directory,
    EntryGrants,
    Kind,
    Policies,
    Stamp,
)
from directory.namespace.keys import entry_key, grants_key
from directory.namespace.snapshot import Snapshot
from directory.store.addresses import open_store
from directory.store.base import Put, Transaction
from directory.wire.entry_codec import ProtoCodec
from resolver.path import ROOT

__all__ = ["run"]

_ECHO: Final = "/bench.Echo/Echo"
_WHO: Final = "bench"
_SECRET: Final = "a secret of the benchmark, 32 bytes or more"
_GRANTS: Final = 10
_PER_DIRECTORY: Final = 100
_DIRECTORIES: Final = TOPICS // _PER_DIRECTORY
_ROUNDS: Final = 9
_DEPTH: Final = 20
_ASKED: Final = 2000
_CALLERS: Final = 1000
_RESOURCES: Final = 10_000
"""With ten grants each: the 100,000 of A5."""


def run() -> list[Row]:
    """Returns the rows measured at a server, then those measured in this process."""
    return [*_served(), *_in_process(), _first_questions()]


# -- a server that enforces ------------------------------------------------------------------------


def _served() -> list[Row]:
    ground.free_core()
    with tempfile.TemporaryDirectory(prefix="kdir-bench-") as name:
        folder = Path(name)
        key = folder / "key"
        key.write_text(_SECRET)
        settings = {"access": "enforce", "auth": {"jwt_key": str(key)}}
        known = (("authorization", f"Bearer {_token()}"),)
        store = _granted(ground.filled(TOPICS, _DIRECTORIES), folder / "granted.sqlite")
        with ground.pinned_directory(folder / "many", store, 0, settings, known) as server:
            many = Load(
                server.address, server.process.pid, RESOLVE, resolves(TOPICS, 200_000), known
            )
            size = _answer_bytes(many, known)
            with ground.pinned_echo(folder, "unary", size) as (echo, echo_pid):
                bare = Load(echo, echo_pid, _ECHO, many.requests, known)
                what = f"unary Resolve, {SHOWN} topics, {_DIRECTORIES * _GRANTS:,} grants enforced"
                return beside_echo(what, many, bare, _ROUNDS)


def _token() -> str:
    import jwt

    return jwt.encode({"sub": _WHO, "exp": int(time.time()) + 3600}, _SECRET, algorithm="HS256")


def _answer_bytes(load: Load, known: ground.Metadata) -> int:
    """Returns the size in bytes of one answer, which must show the topic: the caller is allowed."""
    with channel_to(load.address) as channel:
        answer: bytes = method_of(channel, RESOLVE)(load.requests[0], timeout=5, metadata=known)
    if not resolve_pb2.ResolveResponse.FromString(answer).outcome.HasField("resolution"):
        raise AssertionError("the caller is not let in")
    return len(answer)


@functools.cache
def _granted(address: str, file: Path) -> str:
    """Returns the address of a copy of the store with ten grants on each directory."""
    shutil.copy(address.removeprefix("sqlite:///"), file)
    copy = f"sqlite:///{file}"
    with closing(open_store(copy, ground.CLUSTER)) as store:
        codec, writes = ProtoCodec(), []
        for number in range(_DIRECTORIES):
            record = codec.encode_grants(EntryGrants(grants=_ten(number)))
            key = grants_key(ROOT_ID, Kind.DIRECTORY, f"dir{number:05}")
            writes.append(Put(key, record))
        for at in range(0, len(writes), FIRST_DIRECTORY):
            store.commit(Transaction((), tuple(writes[at : at + FIRST_DIRECTORY])), 60)
    return copy


def _ten(number: int) -> tuple[Grant, ...]:
    """Returns one directory's grants: five allow, five deny, one of each for one host only."""

    def grant(at: int) -> Grant:
        who = _WHO if at == 0 else f"team-{(number * _GRANTS + at) % 1000}"
        permission = Permission.DENY if at % 2 else Permission.ALLOW
        host = "10.0.0.1" if at > _GRANTS - 3 else "*"
        return Grant.from_fields(f"User:{who}", host, Operation.READ, permission)

    return tuple(map(grant, range(_GRANTS)))


# -- what needs no server --------------------------------------------------------------------------


def _in_process() -> Iterator[Row]:
    """Measures 20 nested directories, each with a shared key, its own key, an owner and a tag."""
    codec, rows, names, parent = ProtoCodec(), [], [], ROOT_ID
    for depth in range(_DEPTH):
        policies = stamp_changed_fields(
            Policies(
                topic_config={"retention.ms": str(depth), f"own.{depth}": "1"},
                owner=f"team-{depth}",
                tags={"tier": str(depth)},
            ),
            NO_POLICIES,
            Stamp(at_ms=1, by="User:alice"),
        )
        names.append(f"level-{depth:02}")
        directory = Directory(entry_id=FIRST_DIRECTORY + depth, policies=policies)
        rows.append((entry_key(parent, Kind.DIRECTORY, names[-1]), codec.encode(directory)))
        parent = directory.entry_id
    snapshot = Snapshot.load(codec, "bench", 1, [sorted(rows)])
    if len(effective(levels_of(snapshot, parent)).topic_config) != _DEPTH + 1:
        raise AssertionError("the maps were not merged")
    held = _median(lambda: effective(levels_of(snapshot, parent)))
    explained = _median(lambda: explain(path_levels(snapshot, ROOT, parent)))
    yield at_most("effective policies at depth 20, maps merged", held, "µs", "limit", 50, 1)
    yield at_most(
        "each of those 23 values with who set it, and the 57 that they override",
        explained,
        "µs",
        "what holds alone",
        held,
        4,
    )


def _median(do: Callable[[], object]) -> float:
    took = []
    for _ in range(_ASKED):
        began = time.perf_counter()
        do()
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e6


def _first_questions() -> Row:
    """Measures the first question of each of 1,000 callers, before anything is cached for it. Each
    has grants on about a hundred topics, and every tenth topic is denied to everybody.
    """
    choose = random.Random(5)
    granted = [
        GrantedEntry(
            EntryPlace((f"dir-{number // 100:03}", f"topic-{number:05}"), is_topic=True), rules
        )
        for number, rules in ((n, _of_topic(choose, n)) for n in range(_RESOURCES))
    ]
    access = Authorizer(mount=ROOT, tree=GrantTree.build(granted))
    took = []
    for number in range(_CALLERS):
        caller = Caller(f"User:team-{number}", "10.0.0.1")
        # The thread's CPU time: the p99 of wall times would show the machine's other work.
        began = time.thread_time()
        found = authorize_any(access, caller, Operation.READ)
        took.append(time.thread_time() - began)
        if number % 50 == 0 and found is not _scanned(granted, caller):
            raise AssertionError(f"{caller} was told {found}")
    took.sort()
    return at_most(
        "the first authorize_any of each of 1,000 callers, 100,000 grants, p99",
        took[int(len(took) * 0.99) - 1] * 1000,
        "CPU ms",
        "limit",
        1,
        1,
    )


def _of_topic(choose: random.Random, number: int) -> CompiledGrants:
    grants = [
        Grant.from_fields(
            "User:*" if at == 0 and number % 10 == 0 else f"User:team-{choose.randrange(_CALLERS)}",
            "*",
            Operation.READ,
            Permission.ALLOW if at % 2 else Permission.DENY,
        )
        for at in range(_GRANTS)
    ]
    return CompiledGrants.compile(dict.fromkeys(grants))


def _scanned(granted: list[GrantedEntry], caller: Caller) -> bool:
    """Returns what ``authorize_any`` must return, by a scan of all grants."""
    for one in granted:
        mine = [grant for grant in one.rules.grants if grant.principal in caller.keys]
        denied = any(grant.permission is Permission.DENY for grant in mine)
        if mine and not denied:
            return True
    return False
