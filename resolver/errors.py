"""The errors of kdir, for servers and clients.

The tree, with the gRPC code of each class (one place for the rule: servers raise these, one
interceptor maps them to a status with one ``google.rpc.ErrorInfo``, and clients raise the same
class again from it)::

    KdirError
    +-- InvalidInput              INVALID_ARGUMENT     the request is wrong; exit code 2
    |   +-- InvalidPath, InvalidArgument, InvalidPhysicalName, InvalidMove,
    |       InvalidToken, InvalidPageToken, RequestIdReused
    +-- Absent                    NOT_FOUND            the owner says there is no such path; exit 1
    +-- InvalidNamespace          FAILED_PRECONDITION  the directory is not there; exit 1
    +-- Conflict                  various              the world is not as the caller thinks; exit 5
    |   +-- AlreadyExists, PhysicalNameTaken, PhysicalNameCollides, PhysicalNameRetired, NotEmpty,
    |       HasMounts, CrossMount, EtagMismatch, WriteConflict, MountShadows, MountOverlaps,
    |       MountLoop, MountMismatch, UnknownChild, ReadOnly, AboveCeiling, VanishGuard,
    |       KafkaReplaced, KafkaRejected, QuotaExceeded, LevelNotFinalized, TokenExpired,
    |       TokenFromFuture, RevisionGone, Resync, LimitExceeded, StoreSealed, LocksOut
    +-- Unavailable               UNAVAILABLE          no answer for now; exit 3
    |   +-- Unreachable, NotReady, Lame, StoreUnavailable, KafkaUnavailable
    |   +-- HandshakeFailed       (of Unreachable)     a certificate is rejected; exit 4
    +-- NoRoute, Unmounted, NotAuthoritative           FAILED_PRECONDITION; exit 3
    +-- WalkFailed                                     the tree itself is wrong; exit 3
    |   +-- ReferralLoop, BadReferral, TooManyHops
    +-- DeadlineExceeded          DEADLINE_EXCEEDED    exit 3
    +-- OutboxFull                RESOURCE_EXHAUSTED   exit 3
    +-- UnreadableRecord          DATA_LOSS            the store is damaged there; exit 3
    +-- Denied                    exit 4
    |   +-- PermissionDenied, Unauthenticated
    +-- Internal                                       a bug of ours; exit 70
    +-- Unimplemented, Cancelled
        +-- Closed                (of Cancelled)       on the client: it was closed before

Only UNAVAILABLE is retried blindly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from resolver import units

__all__ = ["DOMAIN", "KdirError", "by_reason"]

DOMAIN = "kdir"
"""``google.rpc.ErrorInfo.domain`` of every error of kdir."""

_BY_REASON: dict[str, type[KdirError]] = {}


class KdirError(Exception):
    """Base of all errors of kdir.

    ``message`` is one sentence for people: the field, the value found and the value expected.
    ``metadata`` has the same facts for programs, as text. ``attempts`` has, on the client, one line
    for each query of the resolution, in order.
    """

    reason: ClassVar[str] = "INTERNAL"
    code: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 3

    def __init_subclass__(cls, *, reason: str = "", code: str = "", exit_code: int = 0) -> None:
        """Sets the given attributes; the others are inherited. ``by_reason`` finds only classes
        that name a reason.
        """
        if reason:
            cls.reason = reason
            _BY_REASON[reason] = cls
        cls.code = code or cls.code
        cls.exit_code = exit_code or cls.exit_code

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
        """Returns a copy of the error for another caller: if two threads raise one object, their
        tracebacks and attempts are mixed.
        """
        return type(self)(self.message, attempts=self.attempts, metadata=self.metadata)

    def __str__(self) -> str:
        return f"{self.message} ({self.reason})"


class InvalidInput(KdirError, reason="INVALID_ARGUMENT", code="INVALID_ARGUMENT", exit_code=2):
    """The request is wrong; to repeat it unchanged fails again."""


class InvalidPath(InvalidInput, reason="INVALID_PATH"):
    """Error of a path that is not canonical; the message names the segment and the rule."""


class InvalidArgument(InvalidInput, reason="INVALID_ARGUMENT"):
    """A field of the request is wrong; the message names it, the value found and the value
    expected.
    """


class InvalidPhysicalName(InvalidInput, reason="INVALID_PHYSICAL_NAME"):
    """Error of a name that is invalid for a Kafka topic."""


class InvalidMove(InvalidInput, reason="INVALID_MOVE"):
    """An entry cannot be moved into itself or below itself."""


class InvalidToken(InvalidInput, reason="INVALID_TOKEN"):
    """Error of a text that is no token of a directory server."""


class InvalidPageToken(InvalidInput, reason="INVALID_PAGE_TOKEN"):
    """Error of a text that is no page token which a directory server returned for this request."""


class RequestIdReused(InvalidInput, reason="REQUEST_ID_REUSED"):
    """The request id belongs to another request (AIP-155)."""


class Absent(KdirError, reason="ABSENT", code="NOT_FOUND", exit_code=1):
    """The owner of the path answered that no such entry exists."""


class InvalidNamespace(
    KdirError, reason="INVALID_NAMESPACE", code="FAILED_PRECONDITION", exit_code=1
):
    """The directory for the operation does not exist; the message names the nearest existing one
    (KIP-37).
    """


class Conflict(KdirError, reason="CONFLICT", code="FAILED_PRECONDITION", exit_code=5):
    """Base class: a condition of the request does not hold."""


class AlreadyExists(Conflict, reason="ALREADY_EXISTS", code="ALREADY_EXISTS"):
    """An entry exists there."""


class PhysicalNameTaken(Conflict, reason="PHYSICAL_NAME_TAKEN", code="ALREADY_EXISTS"):
    """Another entry has this physical name."""


class PhysicalNameCollides(Conflict, reason="PHYSICAL_NAME_COLLIDES", code="ALREADY_EXISTS"):
    """The physical name differs from another one only in ``.`` and ``_``; Kafka refuses such
    pairs.
    """


class PhysicalNameRetired(Conflict, reason="PHYSICAL_NAME_RETIRED"):
    """The topic of this name was deleted less than a day ago: a late operation on it could affect
    the new topic.
    """


class NotEmpty(Conflict, reason="NOT_EMPTY"):
    """The directory holds entries."""


class HasMounts(Conflict, reason="HAS_MOUNTS"):
    """A cluster is mounted there or below."""


class CrossMount(Conflict, reason="CROSS_MOUNT"):
    """The two paths belong to two clusters."""


class EtagMismatch(Conflict, reason="ETAG_MISMATCH", code="ABORTED"):
    """The entry has changed since the caller saw it."""


class WriteConflict(Conflict, reason="WRITE_CONFLICT", code="ABORTED"):
    """Concurrent changes of the same entry won at every attempt; nothing was written."""


class MountShadows(Conflict, reason="MOUNT_SHADOWS"):
    """The mount would hide entries that exist there."""


class MountOverlaps(Conflict, reason="MOUNT_OVERLAPS"):
    """The mount would lie above or below another mount of the same cluster."""


class MountLoop(Conflict, reason="MOUNT_LOOP"):
    """The child is an ancestor of the cluster, the cluster itself, or mounted already."""


class MountMismatch(Conflict, reason="MOUNT_MISMATCH"):
    """Parent and child name different mount points or clusters; both are in the message."""


class UnknownChild(Conflict, reason="UNKNOWN_CHILD"):
    """No mount of the parent names this child."""


class ReadOnly(Conflict, reason="READ_ONLY"):
    """The subtree is read-only."""


class AboveCeiling(Conflict, reason="ABOVE_CEILING"):
    """The server's config does not allow this change of Kafka."""


class VanishGuard(Conflict, reason="VANISH_GUARD"):
    """Too many topics vanished or changed at once; changes wait for an operator."""


class KafkaReplaced(Conflict, reason="KAFKA_REPLACED"):
    """Another Kafka cluster answers at this address."""


class KafkaRejected(Conflict, reason="KAFKA_REJECTED"):
    """Kafka refused; its own error is in the message."""


class QuotaExceeded(Conflict, reason="QUOTA_EXCEEDED", code="RESOURCE_EXHAUSTED"):
    """A quota of the directory or one above is reached."""


class LevelNotFinalized(Conflict, reason="LEVEL_NOT_FINALIZED"):
    """The change needs a feature level that is not finalized."""


class TokenExpired(Conflict, reason="TOKEN_EXPIRED"):
    """The token is of an earlier incarnation of the store."""


class TokenFromFuture(Conflict, reason="TOKEN_FROM_FUTURE", code="OUT_OF_RANGE"):
    """The token's revision was not reached within the deadline."""


class RevisionGone(Conflict, reason="REVISION_GONE", code="ABORTED"):
    """A read requires one revision, which is no longer stored."""


class Resync(Conflict, reason="RESYNC", code="ABORTED"):
    """The changes that a watch needs are no longer stored: list again, then watch."""


class LimitExceeded(Conflict, reason="LIMIT_EXCEEDED", code="RESOURCE_EXHAUSTED"):
    """A limit of the server is reached; the message has its name and value."""


class StoreSealed(Conflict, reason="STORE_SEALED", code="FAILED_PRECONDITION"):
    """The store takes no changes: it is being filled, or the cluster moved to another one."""


class OutboxFull(KdirError, reason="OUTBOX_FULL", code="RESOURCE_EXHAUSTED"):
    """Too many changes wait for the change log in Kafka; nothing was written."""


class UnreadableRecord(KdirError, reason="UNREADABLE_RECORD", code="DATA_LOSS"):
    """Error of an entry, or of its grants, whose record in the store cannot be read (S21)."""

    @classmethod
    def of_entries(cls, path: object, count: int) -> UnreadableRecord:
        """Returns the error for ``count`` unreadable entries that a listing of ``path`` lacks."""
        entries = units.plural(count, "entry", "entries")
        return cls(f"{entries} that cannot be read: kdir verify {path}")


class LocksOut(Conflict, reason="LOCKS_OUT"):
    """The change would take from the caller the rights to undo it; nothing was changed."""


class Unavailable(KdirError, reason="UNREACHABLE", code="UNAVAILABLE"):
    """No answer for now, or a file of this machine cannot be read now. Only this class may be
    retried without a check.
    """


class Unreachable(Unavailable, reason="UNREACHABLE"):
    """No server of the owner could be asked."""


class HandshakeFailed(Unreachable, exit_code=4):
    """A server was connected, but one side rejects the other's certificate: missing, expired, of
    another CA or another host. Its reason in the contract is ``UNREACHABLE``.
    """


class NotReady(Unavailable, reason="NOT_READY"):
    """The asked server has not loaded what it needs for an answer."""


class Lame(Unavailable, reason="LAME"):
    """Every server of a referral answered "not mine", or answered for another cluster."""


class StoreUnavailable(Unavailable, reason="STORE_UNAVAILABLE"):
    """The store did not answer. With ``effect=unknown`` in its metadata a write may have had an
    effect; repeat it with the same request id to find out.
    """


class KafkaUnavailable(Unavailable, reason="KAFKA_UNAVAILABLE"):
    """No broker answered."""


class NoRoute(KdirError, reason="NO_ROUTE", code="FAILED_PRECONDITION"):
    """Error of a path to which no referral leads from the queried server."""


class Unmounted(KdirError, reason="UNMOUNTED", code="FAILED_PRECONDITION"):
    """The parent unmounted this cluster, or moved it, and it has not received that yet."""


class NotAuthoritative(KdirError, reason="NOT_AUTHORITATIVE", code="FAILED_PRECONDITION"):
    """The path belongs to another cluster: resolve it first."""


class WalkFailed(KdirError, reason="BAD_REFERRAL", code="FAILED_PRECONDITION"):
    """The tree itself is wrong: a server sent an invalid referral."""


class ReferralLoop(WalkFailed, reason="REFERRAL_LOOP"):
    """Referrals lead in a circle; the chain is in the message."""


class BadReferral(WalkFailed, reason="BAD_REFERRAL"):
    """The mount of a referral is not nearer to the path, or not a prefix of it."""


class TooManyHops(WalkFailed, reason="TOO_MANY_HOPS"):
    """More hops than allowed; the chain is in the message."""


class DeadlineExceeded(KdirError, reason="DEADLINE_EXCEEDED", code="DEADLINE_EXCEEDED"):
    """No answer was received within the deadline."""


class Denied(KdirError, reason="PERMISSION_DENIED", code="PERMISSION_DENIED", exit_code=4):
    """Base class: the caller is not allowed to do this."""


class PermissionDenied(Denied, reason="PERMISSION_DENIED"):
    """The principal lacks the right."""


class Unauthenticated(Denied, reason="UNAUTHENTICATED", code="UNAUTHENTICATED"):
    """Error of a caller whose identity is not known."""


class Unimplemented(KdirError, reason="UNIMPLEMENTED", code="UNIMPLEMENTED"):
    """Error of a method or option that this server does not implement."""


class Internal(KdirError, reason="INTERNAL", exit_code=70):
    """A bug of kdir; the server's log has the stack, with the request id."""


class Cancelled(KdirError, reason="CANCELLED", code="CANCELLED"):
    """The caller cancelled the call, or its connection ended."""


class Closed(Cancelled):
    """A resolver, or another client, is used after it was closed."""


def by_reason(reason: str) -> type[KdirError]:
    """Returns the class of a reason; ``KdirError`` if this version does not know the reason."""
    return _BY_REASON.get(reason, KdirError)
