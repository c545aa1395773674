"""How many rows a mount table may have, and whose rows go where there are too many; pure.

What is left out costs hops, never an answer: the table is a hint, and each cluster is one referral
away. Rows that a child reports are shared out evenly among the children, so that one that reports
too many loses its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from kdir.v1 import federation_pb2

from directory.federation.parent_state import TableRow
from directory.namespace.bounds import check_count, check_text
from resolver.path import Path

__all__ = [
    "check_kafka_claim",
    "check_row",
    "fair_shares",
    "fit_rows",
]

_NAME_BYTES: Final = 256
_ENDPOINT_BYTES: Final = 300


def check_row(row: federation_pb2.MountRow, most_endpoints: int) -> Path:
    """Returns the mount point of a row as it came over a link, once all of the row is checked.

    Raises:
        InvalidPath, InvalidArgument, LimitExceeded
    """
    for field in ("cluster_id", "cluster"):
        check_text(f"mount_table.{field}", getattr(row, field), _NAME_BYTES, "")
    field = "mount_table.endpoints"
    check_count(field, len(row.endpoints), most_endpoints, "endpoints", "mount_endpoints")
    for endpoint in row.endpoints:
        check_text(field, endpoint, _ENDPOINT_BYTES, "")
    check_kafka_claim("mount_table.kafka", row.kafka)
    return Path.parse(row.mount)


def check_kafka_claim(field: str, claim: federation_pb2.KafkaClaim) -> None:
    """Checks the texts of what a cluster says of its Kafka.

    Raises:
        InvalidArgument, LimitExceeded
    """
    for name in ("kafka_cluster_id", "cluster_id", "cluster", "mount"):
        check_text(f"{field}.{name}", getattr(claim, name), 4 * _NAME_BYTES, "")


def fit_rows(
    groups: Mapping[str, Sequence[TableRow]], most_rows: int, most_bytes: int
) -> dict[str, Sequence[TableRow]]:
    """Returns the rows of each group that fit into so many rows and bytes together: all, or of
    each as many as its fair share is, in their order. A row that is too large for what is left of
    the bytes costs none of those after it.
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
    """Returns how much each gets of ``most``: what it wants, or, where that is too much, no less
    than any other gets (max-min fairness).
    """
    left, shares = max(0, most), dict(wanted)
    if sum(wanted.values()) <= left:
        return shares
    names = sorted(wanted, key=lambda name: (wanted[name], name))
    for place, name in enumerate(names):
        shares[name] = min(wanted[name], left // (len(names) - place))
        left -= shares[name]
    return shares
