"""``authorize_any`` among many resources, a decision at depth 20, and the memory of a grant.

The sizes are those of Kafka's own benchmark: resources with ten grants each, half of them denies.
Each size is measured in a process of its own, over every sort of caller, and the slowest counts.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from bench.rows import Row, at_most
from directory.access.authorize_any import authorize_any
from directory.access.authorizer import Authorizer
from directory.access.compiled_grants import AccessQuestion, CompiledGrants
from directory.access.grant_tree import EntryPlace, GrantedEntry, GrantTree
from directory.access.grants import Grant, Operation, Permission
from directory.access.principals import Caller
from resolver.path import ROOT

__all__ = ["run"]

_SIZES: Final = (10_000, 50_000, 200_000)
_GRANTS: Final = 10
_IN_A_DIRECTORY: Final = 500
_DEPTH: Final = 20
_ASKED: Final = 2000
_CHANGES: Final = 100
_LIMIT_MICROSECONDS: Final = 20
_APART: Final = 20_000

_READ: Final = AccessQuestion.for_operation(Operation.READ)


def run() -> list[Row]:
    """Measures ``authorize_any`` by size, changes of grants, depth, and memory."""
    found = {size: _apart("any", size) for size in _SIZES}
    smallest, largest = found[_SIZES[0]], found[_SIZES[-1]]
    rows = [
        at_most(
            f"authorize_any, {size:,} resources",
            found[size]["warm"],
            "µs",
            "limit",
            _LIMIT_MICROSECONDS,
            1,
        )
        for size in _SIZES
    ]
    alike, own = _apart("alike", _APART), _apart("own", _APART)
    return [
        *rows,
        at_most(
            "authorize_any at 200,000", largest["warm"], "µs", "at 10,000", smallest["warm"], 1.2
        ),
        at_most(
            "the first question where allows of one meet denies of another on every resource",
            largest["cold"] / 1000,
            "ms",
            "a scan of all grants",
            largest["scan"] / 1000,
            1,
        ),
        at_most(
            "a change of one resource's grants, and the question after it, at 200,000",
            largest["change"],
            "µs",
            "at 10,000",
            smallest["change"],
            3,
        ),
        at_most("a decision at depth 20", _apart("depth", 0)["warm"], "µs", "limit", 50, 1),
        at_most(
            "memory of a grant, each for a principal of its own",
            own["bytes"],
            "bytes",
            "limit",
            700,
            1,
        ),
        at_most("the same, all entries alike", alike["bytes"], "bytes", "limit", 100, 1),
    ]


def _apart(what: str, size: int) -> dict[str, float]:
    """Makes one measurement in a process of its own; returns its figures by name."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.authorization", what, str(size)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


# -- the grants ----------------------------------------------------------------------------------


def _grant(who: str, permission: Permission, host: str = "*") -> Grant:
    return Grant.from_fields(f"User:{who}", host, Operation.READ, permission)


def _ten() -> CompiledGrants:
    """Returns five allows, most with a deny against them here or above, and five denies."""
    allow, deny = Permission.ALLOW, Permission.DENY
    return CompiledGrants.compile(
        [
            _grant("same", allow),
            _grant("same", deny),
            _grant("host", allow),
            _grant("host", deny, "10.0.0.1"),
            _grant("from", allow, "10.0.0.1"),
            _grant("from", deny),
            _grant("above", allow),
            _grant("elsewhere", deny),
            _grant("*", allow, "10.0.0.2"),
            _grant("same", deny, "10.0.0.2"),
        ]
    )


_CALLERS: Final = (
    (Caller("User:same", "10.0.0.1"), False),
    (Caller("User:same", "10.0.0.2"), False),
    (Caller("User:host", "10.0.0.1"), False),
    (Caller("User:host", "10.0.0.9"), True),
    (Caller("User:from", "10.0.0.1"), False),
    (Caller("User:above", "10.0.0.1"), False),
    (Caller("User:stranger", "10.0.0.1"), False),
    (Caller("User:stranger", "10.0.0.2"), True),
)
"""Callers, and what ``authorize_any`` must return for each."""


def _granted(size: int, rules: CompiledGrants) -> Iterator[GrantedEntry]:
    """Yields topics with these grants in directories, on each of which ``above`` is denied."""
    above = CompiledGrants.compile([_grant("above", Permission.DENY)])
    for number in range(size):
        directory = f"dir-{number // _IN_A_DIRECTORY:05}"
        if number % _IN_A_DIRECTORY == 0:
            yield GrantedEntry(EntryPlace((directory,)), above)
        yield GrantedEntry(EntryPlace((directory, f"topic-{number:07}"), is_topic=True), rules)


# -- measuring -----------------------------------------------------------------------------------


def _any(size: int) -> dict[str, float]:
    gc.disable()
    tree = GrantTree.build(_granted(size, _ten()))
    gc.enable()
    gc.collect()
    gc.freeze()
    access = Authorizer(mount=ROOT, tree=tree)
    asks = [partial(_ask, access, *one) for one in _CALLERS]
    cold = max(map(_microseconds, asks))
    warm = max(_median(ask, _ASKED) for ask in asks)
    return {
        "cold": cold,
        "warm": warm,
        "scan": _scan(tree, _CALLERS[2][0]),
        "change": _change(access, size),
    }


def _ask(access: Authorizer, caller: Caller, expected: bool) -> None:  # noqa: FBT001 - a row's part
    if authorize_any(access, caller, Operation.READ) is not expected:
        raise AssertionError(f"{caller} was told {not expected}")


def _scan(tree: GrantTree, caller: Caller) -> float:
    """Returns the µs of a scan of all grants, which is Kafka's default implementation."""
    entries = list(tree.granted_below(EntryPlace(())))

    def scan() -> bool:
        return any(
            grant.principal in {caller.principal, "User:*"}
            and grant.host in {caller.host, "*"}
            and grant.permission is Permission.ALLOW
            and grant.covers(Operation.WRITE)  # no grant does, so that the scan visits all
            for entry in entries
            for grant in entry.rules.grants
        )

    return _microseconds(scan)


def _change(access: Authorizer, size: int) -> float:
    """Returns the median µs of adding or removing a grant and the ``authorize_any`` after it."""
    ten, nine = _ten(), CompiledGrants.compile(_ten().grants[1:])
    tree = access.tree
    if tree is None:
        raise AssertionError("no tree")
    took: list[float] = []
    for number in range(_CHANGES):
        at = (number // 2 * 7919) % size
        place = EntryPlace((f"dir-{at // _IN_A_DIRECTORY:05}", f"topic-{at:07}"), is_topic=True)
        rules = ten if number % 2 else nine
        began = time.perf_counter()
        tree = tree.with_compiled(place, rules)
        authorize_any(Authorizer(mount=ROOT, tree=tree), _CALLERS[2][0], Operation.READ)
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e6


def _depth() -> dict[str, float]:
    """Measures a decision with ten grants on each level, of which the last one has the allow."""
    path = tuple(f"level-{depth:02}" for depth in range(_DEPTH))
    nine = [_grant(f"other-{number}", Permission.DENY) for number in range(_GRANTS - 1)]
    own = Grant.from_fields("User:alice", "*", Operation.WRITE, Permission.ALLOW)
    levels = CompiledGrants.compile([*nine, own])
    granted = [GrantedEntry(EntryPlace(path[:depth]), levels) for depth in range(_DEPTH)]
    entry = EntryPlace(path, is_topic=True)
    granted.append(
        GrantedEntry(entry, CompiledGrants.compile([*nine, _grant("alice", Permission.ALLOW)]))
    )
    access = Authorizer(mount=ROOT, tree=GrantTree.build(granted))
    caller = Caller("User:alice", "10.0.0.1")
    if access.authorize(caller, _READ, entry).path != ROOT.join(path):
        raise AssertionError("not decided by the innermost grant")
    return {"warm": _median(lambda: access.authorize(caller, _READ, entry), _ASKED)}


def _memory(size: int, *, alike: bool) -> dict[str, float]:
    gc.disable()
    before = _resident()
    if alike:
        tree = GrantTree.build(_granted(size, _ten()))
    else:
        tree = GrantTree.build(
            GrantedEntry(EntryPlace((f"topic-{number:07}",), is_topic=True), _own(number))
            for number in range(size)
        )
    gc.collect()
    if tree.count < size:
        raise AssertionError(f"{tree.count} entries with grants")
    return {"bytes": (_resident() - before) / size / _GRANTS}


def _own(number: int) -> CompiledGrants:
    permissions = (Permission.ALLOW, Permission.DENY)
    return CompiledGrants.compile(
        _grant(f"team-{number}-{one}", permissions[one % 2]) for one in range(_GRANTS)
    )


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _microseconds(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return (time.perf_counter() - began) * 1e6


def _median(do: Callable[[], object], times: int) -> float:
    return statistics.median(_microseconds(do) for _ in range(times))


def main(what: str, size: int) -> None:
    """Makes one measurement, and writes it as JSON on stdout."""
    match what:
        case "any":
            found = _any(size)
        case "depth":
            found = _depth()
        case _:
            found = _memory(size, alike=what == "alike")
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
