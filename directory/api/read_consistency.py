"""Which snapshot a request reads: chosen once, here, from its token (habit: SpiceDB's middleware).

*Not ready*, *stale within the limit* and *too stale* are told apart here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from directory.api.rpc.call_context import Call
from directory.api.rpc.caller_slots import CallerSlots
from directory.namespace.snapshot import Snapshot
from directory.store.replica import Replica, ReplicaState
from resolver.errors import NotReady, TokenExpired, Unreachable
from resolver.revision_token import Position, Token

__all__ = ["LONGEST_WAIT_SECONDS", "choose_snapshot"]

LONGEST_WAIT_SECONDS: Final = 5.0
"""A token from the future (or a forged one) does not hold a thread for longer."""


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
    Positions of other clusters are ignored. ``places``: for those that wait at a time, in all and
    of one caller; None: as many as come; ``waiting`` is put around the wait of each of them.

    Raises:
        NotReady: nothing is loaded yet, or too many wait already.
        Unreachable: the store has been away for longer than the limit.
        InvalidToken: not one of ours.
        TokenExpired: of another life of the store.
        TokenFromFuture: that revision did not come in time.
        DeadlineExceeded
    """
    snapshot = replica.snapshot
    if replica.state is ReplicaState.STALE and replica.age_seconds > max_stale_seconds:
        raise Unreachable(
            f"the store has been away for {replica.age_seconds:.0f} s; "
            f"answers are given for {max_stale_seconds:.0f} s at most",
            age_seconds=f"{replica.age_seconds:.1f}",
        )
    if not token:
        return snapshot
    position = Token.parse(token).positions.get(cluster_id)
    if position is None:
        return snapshot
    _refuse_expired(position, snapshot)
    # The tree alone is not enough: the mount table that outside paths are answered from follows it.
    if position.revision <= snapshot.revision and replica.is_known(position.revision):
        return snapshot
    seconds = call.seconds_left(LONGEST_WAIT_SECONDS)
    if places is None:
        waited = replica.wait_for(position.revision, seconds)
    else:
        refusal = NotReady(
            f"revision {position.revision} is not known here yet, and too many calls wait for "
            f"theirs already (limits.max_blocked_reads, limits.principal_blocked_reads)",
            revision=position.revision,
        )
        with places.hold(call, refusal), waiting():
            waited = replica.wait_for(position.revision, seconds)
    _refuse_expired(position, waited)  # a restore in the meantime satisfies any revision
    return waited


def _refuse_expired(position: Position, snapshot: Snapshot) -> None:
    if position.incarnation != snapshot.incarnation:
        raise TokenExpired(
            "token: from an earlier incarnation of the store, which was restored, migrated or "
            "created again since; read again without it",
            incarnation=snapshot.incarnation,
        )
