"""Chooses the snapshot that a call with a revision token reads: the call waits for the token's
revision within its deadline, if a place to wait is free, or is refused.

``choose_snapshot`` distinguishes *not ready*, *too stale*, an expired token and one from the
future.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from directory.api.rpc.call_context import Call
from directory.api.rpc.caller_slots import CallerSlots, TooManyWaiting
from directory.namespace.snapshot import Snapshot
from directory.store.replica import Replica
from resolver.errors import TokenExpired
from resolver.revision_token import Token

__all__ = ["LONGEST_WAIT_SECONDS", "choose_snapshot", "refuse_other_incarnation"]

LONGEST_WAIT_SECONDS: Final = 5.0
"""Longest wait for the revision of a token: one from the future, or a forged one, must not hold a
thread longer.
"""


def choose_snapshot(
    replica: Replica,
    cluster_id: str,
    max_stale_seconds: float,
    token: str,
    call: Call,
    places: CallerSlots | None = None,
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Snapshot:
    """Returns the snapshot to answer from, at least as new as the token's position of this cluster.

    Positions of other clusters are ignored. ``places`` limits how many calls wait at a time, in all
    and for each caller; None: no limit. ``waiting`` is a context manager around each wait.

    Raises:
        NotReady: nothing is loaded yet, or too many calls wait already.
        Unreachable: the store has been unreachable for longer than the limit.
        InvalidToken: not a token of kdir.
        TokenExpired: of another incarnation of the store.
        TokenFromFuture: the revision did not arrive in time.
        DeadlineExceeded: the caller's deadline has passed.
    """
    snapshot = replica.snapshot
    replica.refuse_too_stale(max_stale_seconds)
    if not token:
        return snapshot
    position = Token.parse(token).positions.get(cluster_id)
    if position is None:
        return snapshot
    refuse_other_incarnation(position.incarnation, snapshot, cluster_id)
    # The tree alone is not enough: the mount table, by which paths outside are answered, is updated
    # after it.
    if position.revision <= snapshot.revision and replica.is_known(position.revision):
        return snapshot
    seconds = call.seconds_left(LONGEST_WAIT_SECONDS)
    if places is None:
        with waiting():
            waited = replica.wait_for(position.revision, seconds)
    else:
        refusal = TooManyWaiting(
            f"revision {position.revision} is not known here yet, and too many calls wait for "
            f"theirs already ({places.settings})",
            revision=position.revision,
        )
        with places.hold(call, refusal), waiting():
            waited = replica.wait_for(position.revision, seconds)
    refuse_other_incarnation(
        position.incarnation, waited, cluster_id
    )  # a restore in the meantime satisfies any revision
    return waited


def refuse_other_incarnation(
    incarnation: str, snapshot: Snapshot, cluster_id: str, field: str = "token"
) -> None:
    """Checks that a token is of the store of the cluster as it is.

    Raises:
        TokenExpired: of another incarnation.
    """
    if incarnation != snapshot.incarnation:
        raise TokenExpired(
            f"{field}: from an earlier incarnation of the store, which was restored, migrated or "
            "created again since; read again without it",
            incarnation=snapshot.incarnation,
            cluster_id=cluster_id,
        )
