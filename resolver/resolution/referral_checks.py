"""Checks of referrals and replies: which are followed, and for how many hops. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from resolver import errors
from resolver.errors import KdirError
from resolver.host_port import MAX_ENDPOINTS
from resolver.path import Path
from resolver.resolution.hop_errors import Hop, ServerFailure
from resolver.resolution.values import (
    Absent,
    Answer,
    AskedBecause,
    Query,
    Referral,
    Reply,
    Rewrite,
    Sender,
)
from resolver.revision_token import NOTHING_READ, ReadPositions

__all__ = [
    "MAX_HOPS",
    "Trail",
    "VisitedServer",
    "first_endpoints",
    "is_above",
    "out_of_bailiwick",
    "referral_error",
    "sender_mismatch",
]


class VisitedServer(NamedTuple):
    """Server whose referral was followed."""

    endpoint: str
    sender: Sender
    hop: Hop


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


def sender_mismatch(referral: Referral | None, sender: Sender) -> str:
    """Returns why the sender of a reply is not the server that was referred to; empty = it is
    (R12, R16).
    """
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
            elif why := sender_mismatch(hop.referral, sender):
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
