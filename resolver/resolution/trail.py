"""The way of one walk so far: who is believed on it, and where it may go on; pure.

``referral_checks.py`` knows what an honest word is by itself. Here it is held against the words
before it: an answer must come from who was referred to, a referral must lead on and never round in
a circle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from resolver import errors
from resolver.errors import KdirError
from resolver.path import Path
from resolver.resolution.referral_checks import (
    Hop,
    ServerFailure,
    VisitedServer,
    first_endpoints,
    is_above,
    out_of_bailiwick,
    referral_error,
)
from resolver.resolution.values import AskedBecause, Query, Referral, Reply, Sender
from resolver.revision_token import NOTHING_READ, ReadPositions

__all__ = ["MAX_HOPS", "Trail"]

MAX_HOPS: Final = 16
"""Referrals and rewrites on one way from the start to an answer."""


@dataclass(slots=True)
class Trail:
    """The servers that were asked and followed, in order. A link's next target and a restart begin
    another, on the budgets of the whole.
    """

    asked: Path
    """What the whole resolve is for."""
    stops: list[VisitedServer] = field(default_factory=list)
    hops: int = 0
    went_down: bool = False
    read: ReadPositions = NOTHING_READ
    """Of those whose words led to where it goes on now."""

    @property
    def last(self) -> VisitedServer:
        """Whose word is followed now."""
        return self.stops[-1]

    @property
    def is_too_long(self) -> bool:
        """Whether the hops are spent."""
        return self.hops > MAX_HOPS

    def begin(self, hops: int, read: ReadPositions = NOTHING_READ) -> None:
        """Starts again, after so many hops; ``read`` is what the hint that it starts by
        rests on.
        """
        self.stops.clear()
        self.read = read
        self.hops = hops
        self.went_down = False

    def add(self, endpoint: str, sender: Sender, hop: Hop) -> None:
        """Goes on by the word of the server that was asked at ``hop``."""
        self.stops.append(VisitedServer(endpoint, sender, hop))
        self.read = self.read.joined(sender.read)
        self.hops += 1

    def remaining_seconds(self, hop: Hop) -> int | None:
        """For how long the words on the way, and the one to ``hop``, are good; None = no end."""
        parts = [stop.hop.remaining_seconds for stop in self.stops]
        parts.append(hop.remaining_seconds)
        return min((part for part in parts if part is not None), default=None)

    def distrust(self, ask: Query, reply: Reply, hop: Hop) -> str:
        """Returns why a reply does not count, whatever it says; empty = it does."""
        sender = reply.sender
        if not ask.recursive:  # there, whoever was asked in our name answers
            if hop.way is AskedBecause.TREE:
                if sender.cluster_id != self.last.sender.cluster_id:
                    return "answers for another cluster than before"
            elif why := hop.mismatch(sender):
                return why
            elif hop.way is AskedBecause.UP and not is_above(sender.mount, self.last.sender.mount):
                return f"is mounted at {sender.mount}, not above {self.last.sender.mount}"
        # The view of one's site is the word of the servers one begins with and of those above.
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
        """Returns the error of a way that is too long."""
        chain = " → ".join(self._stops())
        message = f"{self.asked}: more than {MAX_HOPS} hops: {chain}"
        return errors.TooManyHops(message, chain=chain, path=self.asked)

    def _chain(self, ask: Query, referral: Referral) -> str:
        return " → ".join([*self._stops(), ask.endpoint, referral.shown])

    def _stops(self) -> list[str]:
        return [f"{stop.endpoint} ({stop.sender.mount})" for stop in self.stops]
