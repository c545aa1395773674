"""What a store answers to a write that it does not make, as errors of the contract.

Where the store is, and what its operator has to do, goes to the log and never to callers.
"""

from __future__ import annotations

import logging

from directory.store.base import Limits, StoreUnreachable, Transaction
from resolver.errors import LimitExceeded, StoreSealed, StoreUnavailable

__all__ = ["refuse_oversized", "store_full_error", "store_sealed_error", "store_unavailable_error"]

_log = logging.getLogger(__name__)


def store_unavailable_error(reason: StoreUnreachable, effect: str = "none") -> StoreUnavailable:
    """Returns the error for callers; where the store is goes to the log only."""
    _log.warning("the store is away: %s", reason)
    return StoreUnavailable("the store is away", effect=effect)


def store_sealed_error(reason: object) -> StoreSealed:
    """Returns the error for callers; why it is sealed goes to the log, and to the status."""
    _log.warning("the store takes no changes: %s", reason)
    return StoreSealed(
        "the store of this cluster takes no changes: it is being moved or restored, or was moved"
    )


def store_full_error(reason: object) -> LimitExceeded:
    """Returns the error for callers; what an operator has to do goes to the log."""
    _log.error("the store is full: %s", reason)
    return LimitExceeded("the store of this cluster is full; nothing was written", limit="store")


def refuse_oversized(transaction: Transaction, limits: Limits) -> None:
    """Refuses a transaction that is too large, before the store does with an error of its own.

    Raises:
        LimitExceeded
    """
    guards, writes = len(transaction.guards), len(transaction.writes)
    size = transaction.size_bytes
    if not limits.hold(guards, writes):
        raise LimitExceeded(
            f"the change needs {guards} guards and {writes} writes; one transaction of this store "
            f"holds {limits}",
            limit=limits.max_writes,
        )
    if size > limits.max_bytes:
        raise LimitExceeded(
            f"the change has {size} bytes; one transaction of this store holds {limits.max_bytes}",
            limit=limits.max_bytes,
        )
