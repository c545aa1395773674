"""Token: opaque positions (cluster, incarnation, revision) for read-your-writes.

Revisions of two incarnations are never compared, since they have no common order. A token is text
without blanks, safe in a shell; callers pass it on without parsing it. Its checksum detects
accidents and simple forgery. A token is no secret: its only effect is that a read waits.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from resolver.errors import InvalidToken

__all__ = [
    "MAX_POSITIONS",
    "NOTHING_READ",
    "NewestPositions",
    "Position",
    "ReadPositions",
    "Token",
]

MAX_POSITIONS: Final = 64
"""Most clusters in a token: as many as a path may have segments."""


@dataclass(frozen=True, slots=True)
class Position:
    """Position in the order of changes of one incarnation of one cluster's store."""

    incarnation: str
    revision: int


@dataclass(frozen=True, slots=True)
class Token:
    """Positions by cluster id."""

    positions: Mapping[str, Position] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def from_position(cls, cluster_id: str, incarnation: str, revision: int) -> Token:
        """Returns the token of one position."""
        return cls({cluster_id: Position(incarnation, revision)})

    @classmethod
    def parse(cls, text: str) -> Token:
        """Parses a token; the empty text is the empty token.

        Raises:
            InvalidToken: the text is not a token of a directory server.
        """
        if not text:
            return cls()
        try:
            raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            body, check = raw[:-4], raw[-4:]
            if zlib.crc32(body).to_bytes(4, "big") != check:
                raise ValueError("check sum")
            positions: dict[str, Position] = {}
            for part in body.decode("ascii").split("\n"):
                cluster_id, incarnation, revision = part.split("\t")
                positions[cluster_id] = Position(incarnation, int(revision))
        except (ValueError, binascii.Error) as error:
            raise InvalidToken(
                "token: not one that a directory server gave; give it back as it was, or not at all"
            ) from error
        if len(positions) > MAX_POSITIONS or any(p.revision < 0 for p in positions.values()):
            raise InvalidToken("token: not one that a directory server gave")
        return cls(positions)

    def __str__(self) -> str:
        if not self.positions:
            return ""
        body = "\n".join(
            f"{cluster_id}\t{place.incarnation}\t{place.revision}"
            for cluster_id, place in sorted(self.positions.items())
        ).encode("ascii")
        raw = body + zlib.crc32(body).to_bytes(4, "big")
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")

    @classmethod
    def merge(cls, tokens: Iterable[Token]) -> Token:
        """Returns the later position of each cluster. If its incarnations differ, the position that
        is later in ``tokens`` counts, since only that store still exists.
        """
        merged: dict[str, Position] = {}
        for token in tokens:
            for cluster_id, place in token.positions.items():
                known = merged.get(cluster_id)
                if (
                    known is None
                    or known.incarnation != place.incarnation
                    or place.revision > known.revision
                ):
                    merged[cluster_id] = place
        return cls(merged)


class NewestPositions:
    """Newest known position of each cluster, so that no client reads older data later (R17).

    ``current`` is replaced, never changed: a query keeps the mapping from when it was sent.
    """

    def __init__(self) -> None:
        self.current: Mapping[str, Position] = MappingProxyType({})

    def note(self, cluster_id: str, incarnation: str, revision: int) -> None:
        """Records the position of a reply; a reply without an incarnation has none."""
        if not incarnation:
            return
        known = self.current.get(cluster_id)
        if known is not None and known.incarnation == incarnation and known.revision >= revision:
            return
        # Two threads at once may lose one of two positions: the next answer has it again.
        self.current = {**self.current, cluster_id: Position(incarnation, revision)}


class ReadPositions(NamedTuple):
    """Positions of the clusters that an answer or a referral was read from. Only this class
    compares such positions with a token (docs/decisions/0041).
    """

    positions: Mapping[str, Position] = MappingProxyType({})
    """Positions by cluster id; the earliest one, if a cluster was queried more than once."""
    is_complete: bool = True
    """False if clusters may be missing: a cached mount led past them, a link's target could not be
    queried, or a server resolved for the client.
    """

    def joined(self, other: ReadPositions) -> ReadPositions:
        """Returns the positions of an answer that depends on both: the earlier one of
        each cluster.
        """
        if not other.positions:
            return self if other.is_complete else self.incomplete()
        positions = other.positions
        if self.positions:
            merged = dict(self.positions)
            for cluster_id, place in other.positions.items():
                known = merged.get(cluster_id)
                # Revisions of two incarnations cannot be compared: the position that was read first
                # stays, since the later incarnation may lack changes that were read in the earlier
                # one.
                if known is None or (
                    known.incarnation == place.incarnation and place.revision < known.revision
                ):
                    merged[cluster_id] = place
            positions = merged
        return ReadPositions(positions, self.is_complete and other.is_complete)

    def incomplete(self) -> ReadPositions:
        """Returns the positions marked as incomplete."""
        return ReadPositions(self.positions, is_complete=False) if self.is_complete else self

    def advanced(self, cluster_id: str, place: Position) -> ReadPositions:
        """Returns the positions with ``place`` for one cluster, if it is later in the same
        incarnation; else the same positions.
        """
        known = self.positions.get(cluster_id)
        if (
            known is None
            or known.incarnation != place.incarnation
            or known.revision >= place.revision
        ):
            return self
        return ReadPositions({**self.positions, cluster_id: place}, self.is_complete)

    def reaches(self, wanted: Mapping[str, Position]) -> bool:
        """True if an answer at these positions is valid for a token: every cluster that was read is
        at or beyond the token's position, and none that the token names may be missing.
        """
        for cluster_id, place in wanted.items():
            seen = self.positions.get(cluster_id)
            if seen is None:
                if not self.is_complete:
                    return False
            elif seen.incarnation != place.incarnation or seen.revision < place.revision:
                return False
        return True

    def is_before(self, wanted: Mapping[str, Position]) -> bool:
        """True if a cluster was read at an earlier revision than in ``wanted``, in the same
        incarnation.
        """
        for cluster_id, place in wanted.items():
            seen = self.positions.get(cluster_id)
            if (
                seen is not None
                and seen.incarnation == place.incarnation
                and seen.revision < place.revision
            ):
                return True
        return False


NOTHING_READ: Final = ReadPositions()
"""Positions of an answer that depends on no cluster."""
