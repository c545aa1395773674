"""The errors that kdir can end in, for server and client alike; refuses to know gRPC or protobuf.

The tree, with the gRPC code of each class (one place for the rule: servers raise these, one
interceptor turns them into a status with one ``google.rpc.ErrorInfo``, and clients raise the same
class again from it)::

    KdirError
    +-- InvalidInput              INVALID_ARGUMENT     the caller's words are wrong; exit code 2
    |   +-- InvalidPath, InvalidArgument, InvalidPhysicalName, InvalidMove,
    |       InvalidToken, InvalidPageToken, RequestIdReused
    +-- Absent                    NOT_FOUND            the owner says there is no such path; exit 1
    +-- InvalidNamespace          FAILED_PRECONDITION  the directory is not there; exit 1
    +-- Conflict                  various              the world is not as the caller thinks; exit 5
    |   +-- AlreadyExists, PhysicalNameTaken, PhysicalNameCollides, PhysicalNameRetired, NotEmpty,
    |       HasMounts, CrossMount, EtagMismatch, LostRace, MountShadows, MountOverlaps, MountLoop,
    |       MountDisagrees, UnknownChild, ReadOnly, AboveCeiling, VanishGuard, KafkaReplaced,
    |       KafkaRefused, QuotaExceeded, LevelNotFinalised, TokenExpired, TokenFromFuture,
    |       RevisionGone, Resync, LimitExceeded, StoreSealed
    +-- Unavailable               UNAVAILABLE          could not be said, now; exit 3
    |   +-- Unreachable, NotReady, Lame, StoreUnavailable, KafkaUnavailable
    |   +-- HandshakeFailed       (of Unreachable)     one side does not believe the other; exit 4
    +-- NoRoute, Unmounted, NotAuthoritative           FAILED_PRECONDITION; exit 3
    +-- WalkFailed                                     the tree itself is wrong; exit 3
    |   +-- ReferralLoop, BadReferral, TooManyHops
    +-- DeadlineExceeded          DEADLINE_EXCEEDED    exit 3
    +-- Denied                    exit 4
    |   +-- PermissionDenied, Unauthenticated
    +-- Unimplemented, Internal, Cancelled

Only UNAVAILABLE is retried blindly (DESIGN §9).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

__all__ = ["DOMAIN", "KdirError", "by_reason"]

DOMAIN = "kdir"
"""``google.rpc.ErrorInfo.domain`` of every error of ours."""


class KdirError(Exception):
    """Anything that kdir says went wrong.

    ``message`` is one sentence for people, naming the field, what was found and what would be
    right. ``metadata`` holds the same facts for programs, as text. ``attempts`` lists, on the
    client, every question that was asked on the way, in order, one line each.
    """

    reason: ClassVar[str] = "INTERNAL"
    code: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 3

    def __init__(
        self,
        message: str,
        *,
        attempts: Sequence[str] = (),
        metadata: Mapping[str, str] | None = None,
        **facts: object,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.metadata: dict[str, str] = dict(metadata or {})
        self.metadata.update({key: str(value) for key, value in facts.items()})
        self.attempts: tuple[str, ...] = tuple(attempts)

    def copy(self) -> KdirError:
        """The same error for another caller: raising one object in two threads mixes their
        tracebacks and attempts.
        """
        return type(self)(self.message, attempts=self.attempts, metadata=self.metadata)

    def __str__(self) -> str:
        return f"{self.message} ({self.reason})"


class InvalidInput(KdirError):
    """The caller's words are wrong; asking again in the same words gives the same answer."""

    reason = "INVALID_ARGUMENT"
    code = "INVALID_ARGUMENT"
    exit_code = 2


class InvalidPath(InvalidInput):
    """Not a canonical path; names the segment and the rule."""

    reason = "INVALID_PATH"


class InvalidArgument(InvalidInput):
    """A field of the request is wrong; names it, what was found and what would be right."""

    reason = "INVALID_ARGUMENT"


class InvalidPhysicalName(InvalidInput):
    """Kafka has no topic of such a name."""

    reason = "INVALID_PHYSICAL_NAME"


class InvalidMove(InvalidInput):
    """An entry cannot be moved into itself or below itself."""

    reason = "INVALID_MOVE"


class InvalidToken(InvalidInput):
    """Not a token that a directory server gave."""

    reason = "INVALID_TOKEN"


class InvalidPageToken(InvalidInput):
    """Not a page token that a directory server gave for this request."""

    reason = "INVALID_PAGE_TOKEN"


class RequestIdReused(InvalidInput):
    """The request id belongs to another request (AIP-155)."""

    reason = "REQUEST_ID_REUSED"


class Absent(KdirError):
    """The owner of the path says that there is no such entry."""

    reason = "ABSENT"
    code = "NOT_FOUND"
    exit_code = 1


class InvalidNamespace(KdirError):
    """The directory to work in does not exist; names the nearest one that does (KIP-37)."""

    reason = "INVALID_NAMESPACE"
    code = "FAILED_PRECONDITION"
    exit_code = 1


class Conflict(KdirError):
    """The world is not as the caller thinks."""

    reason = "CONFLICT"
    code = "FAILED_PRECONDITION"
    exit_code = 5


class AlreadyExists(Conflict):
    """An entry stands there."""

    reason = "ALREADY_EXISTS"
    code = "ALREADY_EXISTS"


class PhysicalNameTaken(Conflict):
    """Another entry has this physical name."""

    reason = "PHYSICAL_NAME_TAKEN"
    code = "ALREADY_EXISTS"


class PhysicalNameCollides(Conflict):
    """Differs from another physical name only in ``.`` and ``_``; Kafka refuses such pairs."""

    reason = "PHYSICAL_NAME_COLLIDES"
    code = "ALREADY_EXISTS"


class PhysicalNameRetired(Conflict):
    """The name was deleted less than a day ago: something late could hit the new topic."""

    reason = "PHYSICAL_NAME_RETIRED"


class NotEmpty(Conflict):
    """The directory holds entries."""

    reason = "NOT_EMPTY"


class HasMounts(Conflict):
    """A cluster is mounted there or below."""

    reason = "HAS_MOUNTS"


class CrossMount(Conflict):
    """The two paths belong to two clusters."""

    reason = "CROSS_MOUNT"


class EtagMismatch(Conflict):
    """The entry has changed since the caller saw it."""

    reason = "ETAG_MISMATCH"
    code = "ABORTED"


class LostRace(Conflict):
    """Others changed the same thing again and again; nothing was written."""

    reason = "LOST_RACE"
    code = "ABORTED"


class MountShadows(Conflict):
    """The mount would hide entries that stand there."""

    reason = "MOUNT_SHADOWS"


class MountOverlaps(Conflict):
    """The mount would lie above or below another mount of the same cluster."""

    reason = "MOUNT_OVERLAPS"


class MountLoop(Conflict):
    """The child is an ancestor of the cluster, the cluster itself, or mounted already."""

    reason = "MOUNT_LOOP"


class MountDisagrees(Conflict):
    """Parent and child name different mount points or clusters; both are in the message."""

    reason = "MOUNT_DISAGREES"


class UnknownChild(Conflict):
    """No mount of the parent names this child."""

    reason = "UNKNOWN_CHILD"


class ReadOnly(Conflict):
    """The subtree is read-only."""

    reason = "READ_ONLY"


class AboveCeiling(Conflict):
    """The server's config does not allow this change of Kafka."""

    reason = "ABOVE_CEILING"


class VanishGuard(Conflict):
    """Too many topics vanished or changed at once; waits for an operator."""

    reason = "VANISH_GUARD"


class KafkaReplaced(Conflict):
    """Another Kafka cluster answers at this address."""

    reason = "KAFKA_REPLACED"


class KafkaRefused(Conflict):
    """Kafka refused; its own words are in the message."""

    reason = "KAFKA_REFUSED"


class QuotaExceeded(Conflict):
    """A quota of the directory or one above is reached."""

    reason = "QUOTA_EXCEEDED"
    code = "RESOURCE_EXHAUSTED"


class LevelNotFinalised(Conflict):
    """The change needs a feature level that is not finalised."""

    reason = "LEVEL_NOT_FINALISED"


class TokenExpired(Conflict):
    """The token is of an earlier life of the store."""

    reason = "TOKEN_EXPIRED"


class TokenFromFuture(Conflict):
    """The token's revision was not reached within the deadline."""

    reason = "TOKEN_FROM_FUTURE"
    code = "OUT_OF_RANGE"


class RevisionGone(Conflict):
    """One revision was asked for, and it is no longer held."""

    reason = "REVISION_GONE"
    code = "ABORTED"


class Resync(Conflict):
    """The watcher fell too far behind: list again, then watch."""

    reason = "RESYNC"
    code = "ABORTED"


class LimitExceeded(Conflict):
    """A limit of the server; named, with its value."""

    reason = "LIMIT_EXCEEDED"
    code = "RESOURCE_EXHAUSTED"


class StoreSealed(Conflict):
    """The store takes no changes: it is being filled, or the cluster moved to another one."""

    reason = "STORE_SEALED"
    code = "FAILED_PRECONDITION"


class Unavailable(KdirError):
    """Could not be said, now. The only class that is retried blindly."""

    reason = "UNREACHABLE"
    code = "UNAVAILABLE"


class Unreachable(Unavailable):
    """No server of the owner could be asked."""

    reason = "UNREACHABLE"


class HandshakeFailed(Unreachable):
    """A server is there, and one side does not believe the other: a certificate is missing, has
    expired, is of another CA or another host. On the wire it is unreachable like others.
    """

    exit_code = 4


class NotReady(Unavailable):
    """The asked server has not loaded what it needs for an answer."""

    reason = "NOT_READY"


class Lame(Unavailable):
    """Every server that was named said "not mine", or answered for another cluster."""

    reason = "LAME"


class StoreUnavailable(Unavailable):
    """The store did not answer. With ``effect=unknown`` among the facts a write may have happened:
    the same request id tells.
    """

    reason = "STORE_UNAVAILABLE"


class KafkaUnavailable(Unavailable):
    """No broker answered."""

    reason = "KAFKA_UNAVAILABLE"


class NoRoute(KdirError):
    """Nothing leads there from the asked server."""

    reason = "NO_ROUTE"
    code = "FAILED_PRECONDITION"


class Unmounted(KdirError):
    """The parent has unmounted this cluster; it serves nothing."""

    reason = "UNMOUNTED"
    code = "FAILED_PRECONDITION"


class NotAuthoritative(KdirError):
    """The path belongs to another cluster: resolve it first."""

    reason = "NOT_AUTHORITATIVE"
    code = "FAILED_PRECONDITION"


class WalkFailed(KdirError):
    """The tree itself is wrong: a server referred in a way that no honest one does."""

    reason = "BAD_REFERRAL"
    code = "FAILED_PRECONDITION"


class ReferralLoop(WalkFailed):
    """Referrals lead in a circle; the chain is in the message."""

    reason = "REFERRAL_LOOP"


class BadReferral(WalkFailed):
    """A referral that is not nearer to the path, or not a prefix of it."""

    reason = "BAD_REFERRAL"


class TooManyHops(WalkFailed):
    """More hops than allowed; the chain is in the message."""

    reason = "TOO_MANY_HOPS"


class DeadlineExceeded(KdirError):
    """The time was over before an answer came."""

    reason = "DEADLINE_EXCEEDED"
    code = "DEADLINE_EXCEEDED"


class Denied(KdirError):
    """The caller may not."""

    reason = "PERMISSION_DENIED"
    code = "PERMISSION_DENIED"
    exit_code = 4


class PermissionDenied(Denied):
    """The principal lacks the right."""

    reason = "PERMISSION_DENIED"


class Unauthenticated(Denied):
    """Who calls is not known."""

    reason = "UNAUTHENTICATED"
    code = "UNAUTHENTICATED"


class Unimplemented(KdirError):
    """This server does not do that."""

    reason = "UNIMPLEMENTED"
    code = "UNIMPLEMENTED"


class Internal(KdirError):
    """A bug of ours; the request id finds the stack in the server's log."""

    reason = "INTERNAL"


class Cancelled(KdirError):
    """The caller went away."""

    reason = "CANCELLED"
    code = "CANCELLED"


def _tree(root: type[KdirError]) -> Iterator[type[KdirError]]:
    for child in root.__subclasses__():
        yield child
        yield from _tree(child)


_BY_REASON: dict[str, type[KdirError]] = {
    kind.reason: kind for kind in _tree(KdirError) if "reason" in vars(kind)
}


def by_reason(reason: str) -> type[KdirError]:
    """The class whose ``reason`` this is; ``KdirError`` for one that this version does not know."""
    return _BY_REASON.get(reason, KdirError)
