"""Servers of one hop of a resolution, and the error if all of them fail. Pure.

The servers of a hop are queried until one gives a usable answer. If none does, the error is the
first of these that applies: NotReady, then StoreUnavailable or TokenFromFuture (the owner was
reached); Unreachable (a server that did not answer may be the owner); a server's own error;
ReferralLoop; BadReferral; NoRoute; Lame.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import assert_never

from resolver import errors
from resolver.errors import KdirError
from resolver.path import Path
from resolver.resolution.values import AnswerStatus, AskedBecause, Referral
from resolver.revision_token import Position

__all__ = ["Hop", "ServerFailure", "classify_error"]


class ServerFailure(enum.IntEnum):
    """Reason why a server of a hop sent no usable answer; the highest value decides the error of
    the hop.
    """

    LAME = 1
    NO_ROUTE = 2
    BAD = 3
    LOOP = 4
    OTHER = 5
    UNREACHABLE = 6
    NOT_READY = 7


@dataclass(slots=True)
class Hop:
    """Servers of one referral, or the start servers, and the failures of those queried so far."""

    way: AskedBecause
    path: Path
    referral: Referral | None = None
    endpoints: tuple[str, ...] = ()
    """Endpoints of the servers that may be called."""
    queue: list[str] = field(default_factory=list)
    """Endpoints to query next, in order; a postponed server is in it again."""
    slow: set[str] = field(default_factory=set)
    """Servers that were postponed once, since they did not answer quickly."""
    again: dict[str, tuple[str, Position]] = field(default_factory=dict)
    """Servers whose reply was old, by endpoint: cluster id and the newer position that was
    known.
    """
    troubles: list[tuple[ServerFailure, KdirError]] = field(default_factory=list)

    @property
    def mount(self) -> Path | None:
        """Mount of these servers' cluster, from the referral; None = not known."""
        return self.referral.mount if self.referral is not None else None

    @property
    def cluster_id(self) -> str:
        """Cluster id, from the referral; empty = not known."""
        return self.referral.cluster_id if self.referral is not None else ""

    @property
    def cluster(self) -> str:
        """Cluster name, for people; empty = not known."""
        return self.referral.cluster if self.referral is not None else ""

    @property
    def remaining_seconds(self) -> int | None:
        """Remaining lifetime of the referral; None = no referral, unlimited."""
        return self.referral.remaining_seconds if self.referral is not None else None

    @property
    def label(self) -> str:
        """Name of the queried cluster, for people."""
        if self.mount is None:
            return self.cluster or (
                "the parent" if self.way is AskedBecause.UP else "the queried servers"
            )
        return f"{self.cluster} at {self.mount}" if self.cluster else str(self.mount)

    @property
    def _prefix(self) -> str:
        """Text before an error: the cluster's name; empty for the start servers."""
        is_named = self.mount is None and not self.cluster and self.way is not AskedBecause.UP
        return "" if is_named else f"{self.label}: "

    @property
    def only_lame(self) -> bool:
        """True if every server answered "not mine", or is not of the expected cluster."""
        return bool(self.troubles) and all(t is ServerFailure.LAME for t, _ in self.troubles)

    def combined_error(self, asked: Path) -> KdirError:
        """Returns the hop's error in the resolution of ``asked``; the worst failure decides."""
        facts = {"path": str(asked)}
        if self.mount is not None:
            facts["mount"] = str(self.mount)
        if self.cluster_id:
            facts["cluster_id"] = self.cluster_id
        if not self.troubles:
            return errors.Unreachable(f"no servers known for {self.label}", metadata=facts)
        worst = max(trouble for trouble, _ in self.troubles)
        causes = [error for trouble, error in self.troubles if trouble is worst]
        # A server that is loading will answer soon; one whose store does not answer may not.
        last = next((one for one in causes if isinstance(one, errors.NotReady)), causes[0])
        match worst:
            case ServerFailure.NOT_READY if isinstance(last, errors.NotReady):
                message = f"{self._prefix}not ready: {last.message}"
                return errors.NotReady(message, metadata=facts)
            case ServerFailure.UNREACHABLE:
                message = f"{self._prefix}no server answered: {last.message}"
                untrusted = isinstance(last, errors.HandshakeFailed)
                kind = errors.HandshakeFailed if untrusted else errors.Unreachable
                return kind(message, metadata=facts)
            case ServerFailure.LAME:
                return errors.Lame(f"{self._prefix}{last.message}", metadata=facts)
            case (
                ServerFailure.NOT_READY
                | ServerFailure.OTHER
                | ServerFailure.LOOP
                | ServerFailure.BAD
                | ServerFailure.NO_ROUTE
            ):
                return last
            case _:
                assert_never(worst)


def classify_error(
    error: KdirError, way: AskedBecause, *, recursive: bool
) -> tuple[ServerFailure | None, AnswerStatus]:
    """Returns the failure that an error of a server queried by ``way`` is, and the status for the
    server's health. Failure None = other servers would return the same error.
    """
    match error:
        case errors.NotReady() | errors.StoreUnavailable() | errors.TokenFromFuture():
            return ServerFailure.NOT_READY, AnswerStatus.FAILED
        case errors.NoRoute() if way in (AskedBecause.START, AskedBecause.UP, AskedBecause.TREE):
            return ServerFailure.NO_ROUTE, AnswerStatus.ACCEPTED
        case errors.Lame() if recursive:
            return ServerFailure.UNREACHABLE, AnswerStatus.ACCEPTED
        case (
            errors.NotAuthoritative()
            | errors.Unmounted()
            | errors.Unimplemented()
            | errors.NoRoute()
            | errors.Lame()
            # Only an outcome, which names its sender, makes a path absent.
            | errors.Absent()
            | errors.InvalidNamespace()
        ):
            return ServerFailure.LAME, AnswerStatus.LAME
        case errors.Closed():
            return None, AnswerStatus.ACCEPTED  # no server can be queried any more
        case errors.Unavailable() | errors.DeadlineExceeded() | errors.Cancelled():
            return ServerFailure.UNREACHABLE, AnswerStatus.FAILED
        case errors.UnreadableRecord():  # perhaps a newer server can read it
            return ServerFailure.OTHER, AnswerStatus.ACCEPTED
        case errors.Internal() | errors.LimitExceeded():
            return ServerFailure.OTHER, AnswerStatus.FAILED
        case _:  # denied, invalid, expired
            return None, AnswerStatus.ACCEPTED
