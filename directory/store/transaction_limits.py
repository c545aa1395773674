"""Limits of one transaction of a store; a larger one is refused before it is sent (S9).

``refuse_oversized`` refuses a request, with the error for callers. The store itself raises
ValueError by the same rule (``Transaction.refuse_invalid``): then the code that commits did not
check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from resolver.errors import LimitExceeded

__all__ = ["Excess", "Limits", "batches_to_fill", "refuse_oversized"]


class Excess(NamedTuple):
    """Part of a transaction that is over a limit."""

    text: str
    """Size of the transaction and the limit, for people: the rest of a sentence."""
    limit: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum size of one transaction; callers split before the store refuses."""

    max_writes: int
    """Most guards and writes of one transaction together; only the writes if ``max_guards`` is
    set.
    """
    max_bytes: int
    """Most bytes of the keys and values of one transaction."""
    max_guards: int | None = None
    """Most guards of one transaction, if the store limits them separately, as etcd does; None =
    together with the writes.
    """

    def hold(self, guards: int, writes: int) -> bool:
        """True if one transaction may have this size."""
        if self.max_guards is None:
            return guards + writes <= self.max_writes
        return guards <= self.max_guards and writes <= self.max_writes

    def __str__(self) -> str:
        """Returns the most guards and writes of one transaction, for people."""
        if self.max_guards is None:
            return f"{self.max_writes} together"
        return f"{self.max_guards} guards and {self.max_writes} writes"

    def excess(self, guards: int, writes: int, size_bytes: int) -> Excess | None:
        """Returns the limit that a transaction of this size exceeds; None: it exceeds none."""
        if not self.hold(guards, writes):
            return Excess(
                f"needs {guards} guards and {writes} writes; one transaction of this store holds "
                f"{self}",
                self.max_writes,
            )
        if size_bytes > self.max_bytes:
            return Excess(
                f"has {size_bytes} bytes; one transaction of this store holds {self.max_bytes}",
                self.max_bytes,
            )
        return None


def refuse_oversized(limits: Limits, guards: int, writes: int, size_bytes: int) -> None:
    """Checks that a change's transaction of this size is within the limits.

    Raises:
        LimitExceeded
    """
    excess = limits.excess(guards, writes, size_bytes)
    if excess is not None:
        raise LimitExceeded(f"the change {excess.text}", limit=excess.limit)


def batches_to_fill(
    rows: Iterable[tuple[bytes, bytes]], limits: Limits, most_rows: int, most_bytes: int
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yields rows in order, in batches of limited number and size, for filling a store.

    Raises:
        ValueError: a row is larger than one transaction may be.
    """
    batch: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in rows:
        length = len(key) + len(value)
        if length > limits.max_bytes:
            raise ValueError(
                f"key {key!r} has {length} bytes with its value; one transaction holds"
                f" {limits.max_bytes}"
            )
        if batch and (len(batch) >= most_rows or size + length > most_bytes):
            yield batch
            batch, size = [], 0
        batch.append((key, value))
        size += length
    if batch:
        yield batch
