"""Mount lookup, by the cases of HDFS Router-Based Federation (``hdfs_mount_table.json``).

A namespace is a cluster and a mount point a mount; where HDFS makes ``/a`` of ``//a/``, kdir says
that it is no path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from directory.federation.mount_table import MountTable
from directory.namespace.command import CreateMount
from resolver.errors import InvalidPath, MountShadows
from resolver.path import ROOT, Path
from tests.conformance.cases import NOT_UNDERSTOOD, Row, assert_same, cases, run, section_rows
from tests.support.trees import Cluster

_BAD_PATH = "ERROR_BAD_PATH"
_ERRORS = ("ERROR_NO_LOCATION", "ERROR_DEFAULT_NS_DISABLED", _BAD_PATH)
_DESTINATIONS = ("destination", "destination_ns")
_OPS = {
    "destination",
    "destination_ns",
    "mount_point",
    "children",
    "mounts_at_or_below",
    "mounts_count",
    "namespaces_at_or_below",
    "namespaces_at_or_below_count",
}


@dataclass(frozen=True)
class Destination:
    """Target of a mount in HDFS: a path of a namespace; kdir always mounts the root of a
    cluster.
    """

    namespace: str
    path: Path


Table = MountTable[tuple[Destination, ...]]


def read(text: str) -> Iterator[Row]:
    """Yields the rows of all sections; a case with the table that it is asked of."""
    tables = json.loads(text)["tables"]
    for row in section_rows(text, {"entry_columns", "tables"}):
        yield {**row, "table": tables.get(row["table"])} if "table" in row else row


def table_of(entries: list[list[object]]) -> Table:
    return MountTable.from_rows(
        (
            Path.parse(str(mount)),
            tuple(Destination(namespace, Path.parse(at)) for namespace, at in destinations),  # type: ignore[attr-defined]
        )
        for mount, destinations, *_ in entries
    )


def category(row: Row) -> str | None:
    if row["section"] == "scenarios":
        return scenario_category(row)
    if row["section"] != "cases" or row["op"] not in _OPS:
        return NOT_UNDERSTOOD
    if row["op"] not in _DESTINATIONS or row["expected"] in _ERRORS:
        return None
    hit = table_of(row["table"]["entries"]).deepest(canonical(row["path"]))
    if hit is not None and len(hit[1]) > 1:
        return "several-destinations"
    if hit is None and row["table"]["default_ns_enabled"]:
        return "default-namespace"
    return None


def canonical(text: str) -> Path:
    """Returns the path that HDFS makes of a text."""
    return Path.from_segments(segment for segment in text.split("/") if segment)


def check(row: Row) -> None:
    """Holds the mount table to one case."""
    if row["section"] == "scenarios":
        check_scenario(row)
        return
    wanted = row["expected"]
    if wanted == _BAD_PATH:
        with pytest.raises(InvalidPath):
            Path.parse(row["path"] or "")
        return
    path = canonical(row["path"])
    if str(path) != row["path"]:
        with pytest.raises(InvalidPath, match="is empty"):
            Path.parse(row["path"])
    table = row["table"]
    found = answer(table_of(table["entries"]), row["op"], path)
    if found is None and row["op"] in _DESTINATIONS:
        # HDFS tells a default that is switched off from one that there never was.
        found = "ERROR_DEFAULT_NS_DISABLED" if table["default_ns"] else "ERROR_NO_LOCATION"
    assert_same(found, wanted)


def answer(table: Table, op: str, path: Path) -> object:
    """Returns what the table says, in the cases' own form."""
    hit = table.deepest(path)
    match op:
        case "destination":
            if hit is None:
                return None
            mount, (to,) = hit
            return f"{to.namespace}->{path.rebase(mount, to.path)}"
        case "destination_ns":
            return None if hit is None else hit[1][0].namespace
        case "mount_point":
            return None if hit is None else str(hit[0])
        case "children":
            names = table.children(path)
            return None if names is None else list(names)
        case "mounts_at_or_below":
            return sorted(str(mount) for mount, _ in table.at_or_below(path))
        case "mounts_count":
            return table.count(path)
        case "namespaces_at_or_below":
            below = table.at_or_below(path)
            return [[to.namespace, str(to.path)] for _, every in below for to in every]
        case "namespaces_at_or_below_count":
            below = table.at_or_below(path)
            return len({to.namespace for _, every in below for to in every})
        case _:
            raise AssertionError(op)


# -- scenarios: told in words; those that are about the table are recognised by them --------------

_SCALE = re.compile(
    r"([\d,]+) flat mounts; ([\d,]+) nested mounts in one chain; ([\d,]+) in deep\+wide trees"
    r"(?: \(path <= 2,000 chars\))?"
)
_REFRESH = re.compile(r"add (\S+)->(\S+), refresh table with \1->(\S+), remove it")
_EDIT = re.compile(r"update (\S+) from (\S+) to (\S+)")
_TWICE = re.compile(r"add (\S+) twice(?: with the same destination)?")
_OF_TABLE = re.compile(r"(?:add|remove|update) /")
_ROUTER = re.compile(
    r"router|safe ?mode|running|state store|heartbeat|refresh|sub-?cluster|namenode|\bns\d|"
    r"fault.?toleran|destination|order|quota|cache|read.?only|rename|permission|rpc",
    re.IGNORECASE,
)


def scenario_category(row: Row) -> str | None:
    steps = row.get("steps", "")
    if "config" in row:
        return "default-namespace"
    if any(pattern.fullmatch(steps) for pattern in (_SCALE, _REFRESH, _EDIT, _TWICE)):
        return None
    if _OF_TABLE.match(steps):
        return NOT_UNDERSTOOD
    if "cache limit" in steps:
        return "client-cache"
    return "router-process" if _ROUTER.search(steps) else NOT_UNDERSTOOD


def check_scenario(row: Row) -> None:
    assert outcome(row["steps"]) == row["expected"]


def outcome(steps: str) -> str:
    """Returns what becomes of the table, in the rows' words."""
    if found := _SCALE.fullmatch(steps):
        flat, chain, wide = (int(number.replace(",", "")) for number in found.groups())
        return counts(flat, chain, wide)
    if found := _REFRESH.fullmatch(steps):
        path = Path.parse(found[1])
        table = MountTable.from_rows([(path, found[2])])
        later = table.add(path, found[3])
        left = later.remove(path)
        is_empty = left.count() == 0 and left.deepest(path) is None
        end = "mount_point is null (table is empty)" if is_empty else "the mount is left"
        return f"{table.get(path)}, then {later.get(path)}, then {end}"
    if found := _EDIT.fullmatch(steps):
        path = Path.parse(found[1])
        got = MountTable.from_rows([(path, found[2])]).add(path, found[3]).get(path)
        return f"get {path} returns {got}"
    found = _TWICE.fullmatch(steps)
    assert found is not None, steps
    return added_twice(Path.parse(found[1]))


def added_twice(path: Path) -> str:
    cluster = Cluster("/")
    before, added = len(cluster.snapshot.mounts()), []
    for _ in range(2):
        try:
            cluster.do(CreateMount(path=path, cluster_id="kc-1"))
            added.append("true")
        except MountShadows:
            added.append("false")
    more = len(cluster.snapshot.mounts()) - before
    return f"first {added[0]}, second {added[1]}, table size {more:+}"


def counts(flat: int, chain: int, wide: int) -> str:
    tables = [
        MountTable.from_rows((Path((f"m{number}",)), None) for number in range(flat)),
        MountTable.from_rows((Path(("d",) * length), None) for length in range(1, chain + 1)),
    ]
    each = [f"children(/)={len(t.children(ROOT) or ())} & mounts={t.count()}" for t in tables]
    # Ten names a tier, as deep as the number has digits.
    trees = MountTable.from_rows((Path(tuple(f"{number:06d}")), None) for number in range(wide))
    return "; ".join([*each, f"mounts={trees.count()}"])


@pytest.mark.parametrize("row", cases("hdfs_mount_table", "hdfs_mount_table.json", read, category))
def test_row(row: Row) -> None:
    run(check, row)
