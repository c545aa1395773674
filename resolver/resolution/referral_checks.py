"""Checks of one hop of a resolution: its servers, the referral's validity, and the error if all of
them fail. Pure.

The servers of a hop are queried until one gives a usable answer. If none does, the error is the
first of these that applies: NotReady, then StoreUnavailable or TokenFromFuture (the owner was
reached); Unreachable (a server that did not answer may be the owner); a server's own error;
ReferralLoop; BadReferral; NoRoute; Lame.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, assert_never

from resolver import errors
from resolver.errors import KdirError
from resolver.host_port import MAX_ENDPOINTS
from resolver.path import Path
from resolver.resolution.values import (
    Absent,
    Answer,
    AnswerStatus,
    AskedBecause,
    Query,
    Referral,
    Reply,
    Rewrite,
    Sender,
)
from resolver.revision_token import NOTHING_READ, Position, ReadPositions

__all__ = [
    "MAX_HOPS",
    "Hop",
    "ServerFailure",
    "Trail",
    "VisitedServer",
    "classify_error",
    "first_endpoints",
    "is_above",
    "out_of_bailiwick",
    "referral_error",
]


class ServerFailure(enum.IntEnum):
    """Reason why a server of a hop gave no usable answer; the highest of a hop decides
    its error.
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
    """Those of the servers that may be called."""
    queue: list[str] = field(default_factory=list)
    """Servers to query next, in order; a postponed one is in it again."""
    slow: set[str] = field(default_factory=set)
    """Servers that were postponed once, since they did not answer quickly."""
    again: dict[str, tuple[str, Position]] = field(default_factory=dict)
    """By endpoint: cluster id and known position that the server's reply was older than."""
    troubles: list[tuple[ServerFailure, KdirError]] = field(default_factory=list)

    @property
    def mount(self) -> Path | None:
        """Mount of these servers' cluster, by the referral."""
        return self.referral.mount if self.referral is not None else None

    @property
    def cluster_id(self) -> str:
        """Cluster id, by the referral."""
        return self.referral.cluster_id if self.referral is not None else ""

    @property
    def cluster(self) -> str:
        """Cluster name, for people."""
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
        """True if every server answered "not mine", or was another than expected."""
        return bool(self.troubles) and all(t is ServerFailure.LAME for t, _ in self.troubles)

    def mismatch(self, sender: Sender) -> str:
        """Returns why the sender is not the expected one; empty = it is (R12, R16)."""
        referral = self.referral
        if referral is None:
            return ""
        if referral.cluster_id and sender.cluster_id != referral.cluster_id:
            return f"is cluster {sender.cluster_id}, not {referral.cluster_id}"
        # A server that was never linked can only guess its parent's mount, and names no cluster id.
        guessed = referral.way is AskedBecause.UP and not referral.cluster_id
        if not guessed and referral.mount is not None and sender.mount != referral.mount:
            return f"is mounted at {sender.mount}, not {referral.mount}"
        if referral.epoch and sender.epoch and sender.epoch != referral.epoch:
            return f"knows epoch {sender.epoch} of its mount, not {referral.epoch}"
        return ""

    def combined_error(self, asked: Path) -> KdirError:
        """Returns the hop's error when ``asked`` is resolved: the worst failure decides."""
        facts = {"path": str(asked)}
        if self.mount is not None:
            facts["mount"] = str(self.mount)
        if self.cluster_id:
            facts["cluster_id"] = self.cluster_id
        if not self.troubles:
            return errors.Unreachable(f"no servers known for {self.label}", metadata=facts)
        worst = max(trouble for trouble, _ in self.troubles)
        causes = [error for trouble, error in self.troubles if trouble is worst]
        # A server that is loading will answer soon; one whose store is away may not.
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


class VisitedServer(NamedTuple):
    """Server whose referral was followed."""

    endpoint: str
    sender: Sender
    hop: Hop


def classify_error(
    error: KdirError, way: AskedBecause, *, recursive: bool
) -> tuple[ServerFailure | None, AnswerStatus]:
    """Returns what an error of a server that was queried by ``way`` means: its failure, and the
    status for its health. Failure None: other servers would return the same error.
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
            # A path is absent only by an outcome, which names its sender.
            | errors.Absent()
            | errors.InvalidNamespace()
        ):
            return ServerFailure.LAME, AnswerStatus.LAME
        case errors.Closed():
            return None, AnswerStatus.ACCEPTED  # no server can be asked any more
        case errors.Unavailable() | errors.DeadlineExceeded() | errors.Cancelled():
            return ServerFailure.UNREACHABLE, AnswerStatus.FAILED
        case errors.Internal() | errors.LimitExceeded():
            return ServerFailure.OTHER, AnswerStatus.FAILED
        case _:  # denied, invalid, expired
            return None, AnswerStatus.ACCEPTED


def referral_error(path: Path, sender: Path, referral: Referral, *, went_down: bool) -> str:
    """Returns why a server mounted at ``sender`` may not refer ``path`` like this; empty = it may.

    R3: down leads strictly deeper, to a prefix of the path. Up leads to a strict ancestor of the
    sender's mount, never after a step down or for a path in that mount. Direct leads to a prefix of
    the path; for a path in the sender's mount also strictly deeper.
    """
    mount = referral.mount
    inside = sender.is_prefix_of(path)
    match referral.way:
        case AskedBecause.DOWN:
            if mount is None or not mount.is_prefix_of(path):
                return "down must lie on the path"
            return "" if is_above(sender, mount) else "down must be strictly deeper"
        case AskedBecause.UP:
            if went_down or inside:
                return "up, after the walk has come down"
            if mount is not None and not is_above(mount, sender):
                return "up must be a strict ancestor of the sender"
            return ""
        case AskedBecause.DIRECT:
            if mount is None or not mount.is_prefix_of(path):
                return "direct must lie on the path"
            if inside and not is_above(sender, mount):
                return "direct must be nearer than the sender"
            return ""
        case _:
            return "neither up, down nor direct"


def out_of_bailiwick(ask: Query, reply: Reply, *, site_links: bool) -> str:
    """Returns why a reply is about a path outside the sender's mount; empty = it is not (R6).
    ``site_links``: site links are exempt, since the sender's apply to this client.
    """
    mount = reply.sender.mount
    match reply.outcome:
        case Answer(path=canonical):
            if not mount.is_prefix_of(canonical):
                return f"answers with {canonical}, outside its mount {mount}"
            inside = ask.recursive or mount.is_prefix_of(ask.path)
        case Absent():
            inside = ask.recursive or mount.is_prefix_of(ask.path)
        case Rewrite(link=link, site_link=site_link):
            if not link.is_prefix_of(ask.path):
                return f"rewrites by the link {link}, which is not on the path"
            inside = mount.is_prefix_of(link) or (site_link and site_links)
        case _:
            return ""
    return "" if inside else f"answers for {ask.path}, outside its mount {mount}"


def is_above(upper: Path, lower: Path) -> bool:
    """True if ``upper`` is a strict ancestor."""
    return upper != lower and upper.is_prefix_of(lower)


def first_endpoints(endpoints: Sequence[str]) -> tuple[str, ...]:
    """Returns the first distinct endpoints, at most ``MAX_ENDPOINTS``."""
    return tuple(dict.fromkeys(endpoints[: 4 * MAX_ENDPOINTS]))[:MAX_ENDPOINTS]


MAX_HOPS: Final = 16
"""Most referrals and rewrites between the start and an answer."""


@dataclass(slots=True)
class Trail:
    """Servers whose referrals were followed, in order. Emptied for a link's target and for a
    restart, while the limits of the whole resolution go on counting.
    """

    asked: Path
    """Path of the whole resolution."""
    stops: list[VisitedServer] = field(default_factory=list)
    hops: int = 0
    went_down: bool = False
    read: ReadPositions = NOTHING_READ
    """Positions of the servers whose referrals led here."""

    @property
    def last(self) -> VisitedServer:
        """Server whose referral is followed now."""
        return self.stops[-1]

    @property
    def is_too_long(self) -> bool:
        """True if no hops are left."""
        return self.hops > MAX_HOPS

    def begin(self, hops: int, read: ReadPositions = NOTHING_READ) -> None:
        """Starts again after ``hops`` hops; ``read``: positions of the cached referral that the
        trail starts with, if any.
        """
        self.stops.clear()
        self.read = read
        self.hops = hops
        self.went_down = False

    def add(self, endpoint: str, sender: Sender, hop: Hop) -> None:
        """Adds the server that was queried at ``hop``, whose referral is followed."""
        self.stops.append(VisitedServer(endpoint, sender, hop))
        self.read = self.read.joined(sender.read)
        self.hops += 1

    def remaining_seconds(self, hop: Hop) -> int | None:
        """Returns the shortest lifetime of the referrals on the way and of the one to ``hop``; None
        = unlimited.
        """
        parts = [stop.hop.remaining_seconds for stop in self.stops]
        parts.append(hop.remaining_seconds)
        return min((part for part in parts if part is not None), default=None)

    def distrust(self, ask: Query, reply: Reply, hop: Hop) -> str:
        """Returns why a reply is ignored, by its sender and the path; empty = it is not."""
        sender = reply.sender
        if not ask.recursive:  # a recursive answer may come from any server
            if hop.way is AskedBecause.TREE:
                if sender.cluster_id != self.last.sender.cluster_id:
                    return "answers for another cluster than before"
            elif why := hop.mismatch(sender):
                return why
            elif hop.way is AskedBecause.UP and not is_above(sender.mount, self.last.sender.mount):
                return f"is mounted at {sender.mount}, not above {self.last.sender.mount}"
        # Site links apply to this client only from its start servers and from clusters above them.
        site_links = hop.way in (AskedBecause.START, AskedBecause.UP)
        return out_of_bailiwick(ask, reply, site_links=site_links)

    def refusal(
        self, ask: Query, sender: Sender, referral: Referral, hop: Hop
    ) -> tuple[ServerFailure, KdirError] | None:
        """Returns why a referral is not followed; None = it is."""
        why = referral_error(ask.path, sender.mount, referral, went_down=self.went_down)
        if not why and hop.way is AskedBecause.TREE and referral.way is AskedBecause.DOWN:
            why = "down, after it was hinted elsewhere"
        if referral.endpoints:
            asked = {stop.endpoint for stop in self.stops}
            asked.add(ask.endpoint)
            if asked.issuperset(first_endpoints(referral.endpoints)):
                chain = self._chain(ask, referral)
                message = f"{self.asked}: referrals lead in a circle: {chain}"
                return ServerFailure.LOOP, errors.ReferralLoop(
                    message, chain=chain, path=self.asked
                )
        if not why:
            return None
        message = f"{ask.endpoint}, mounted at {sender.mount}, refers {ask.path} "
        message += f"{referral.shown}: {why}"
        chain = self._chain(ask, referral)
        return ServerFailure.BAD, errors.BadReferral(message, chain=chain, path=self.asked)

    def too_many_hops(self) -> errors.TooManyHops:
        """Returns the error of a resolution with too many hops."""
        chain = " → ".join(self._stops())
        message = f"{self.asked}: more than {MAX_HOPS} hops: {chain}"
        return errors.TooManyHops(message, chain=chain, path=self.asked)

    def _chain(self, ask: Query, referral: Referral) -> str:
        return " → ".join([*self._stops(), ask.endpoint, referral.shown])

    def _stops(self) -> list[str]:
        return [f"{stop.endpoint} ({stop.sender.mount})" for stop in self.stops]
