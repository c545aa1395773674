"""Sizes of a mount table: how many rows it may have, and which are left out beyond that. Pure.

A row that is left out costs a client hops, never an answer: the table is a hint, and referrals up
and down reach every cluster. The space is shared fairly among the children, so that a child that
reports too many mounts loses rows of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from kdir.v1 import federation_pb2

from directory.federation.kafka_claims import check_kafka_claim
from directory.federation.parent_state import TableRow
from directory.namespace.bounds import check_count, check_text
from resolver.path import Path

__all__ = [
    "check_row",
    "fair_shares",
    "fit_rows",
]

_NAME_BYTES: Final = 256
_ENDPOINT_BYTES: Final = 300


def check_row(row: federation_pb2.MountRow, most_endpoints: int) -> Path:
    """Returns the mount point of a row from a link, after checking all of the row.

    Raises:
        InvalidPath, InvalidArgument, LimitExceeded: names the field.
    """
    for field in ("cluster_id", "cluster"):
        check_text(f"mount_table.{field}", getattr(row, field), _NAME_BYTES, "")
    field = "mount_table.endpoints"
    check_count(field, len(row.endpoints), most_endpoints, "endpoints", "mount_endpoints")
    for endpoint in row.endpoints:
        check_text(field, endpoint, _ENDPOINT_BYTES, "")
    check_kafka_claim("mount_table.kafka", row.kafka)
    return Path.parse(row.mount)


def fit_rows(
    groups: Mapping[str, Sequence[TableRow]], most_rows: int, most_bytes: int
) -> dict[str, Sequence[TableRow]]:
    """Returns the rows of each group that fit into a total of rows and bytes, in order: all, or as
    many as the group's fair share. A row too large for the bytes left is skipped; later rows may
    still fit.
    """
    shares = fair_shares({name: len(rows) for name, rows in groups.items()}, most_rows)
    fitting = {name: rows[: shares[name]] for name, rows in groups.items()}
    sizes = {name: [one.row.ByteSize() for one in rows] for name, rows in fitting.items()}
    wanted = {name: sum(of_rows) for name, of_rows in sizes.items()}
    if sum(wanted.values()) <= most_bytes:
        return fitting
    allowed = fair_shares(wanted, most_bytes)
    return {
        name: list(_rows_within(zip(rows, sizes[name], strict=True), allowed[name]))
        for name, rows in fitting.items()
    }


def _rows_within(sized_rows: Iterable[tuple[TableRow, int]], most_bytes: int) -> Iterator[TableRow]:
    for row, size in sized_rows:
        if size <= most_bytes:
            most_bytes -= size
            yield row


def fair_shares(wanted: Mapping[str, int], most: int) -> dict[str, int]:
    """Returns each name's share of ``most`` (max-min fairness): as much as wanted or, if that is
    too much, no less than any other name's share.
    """
    left, shares = max(0, most), dict(wanted)
    if sum(wanted.values()) <= left:
        return shares
    names = sorted(wanted, key=lambda name: (wanted[name], name))
    for place, name in enumerate(names):
        shares[name] = min(wanted[name], left // (len(names) - place))
        left -= shares[name]
    return shares
