"""Tokens: the opaque (cluster, incarnation, revision) positions that read-your-writes travels in.

Refuses to compare revisions of two incarnations: they say nothing about each other. A token is
text without blanks, safe in a shell; callers hand it on and never look inside. Its check sum finds
accidents and simple forgery; it is not a secret, since all that a token can do is make a read wait.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from resolver.errors import InvalidToken

__all__ = ["MAX_POSITIONS", "Position", "Token"]

MAX_POSITIONS: Final = 64
"""A token of more clusters than a path has segments is none of ours."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the order of changes of one life of one cluster's store."""

    incarnation: str
    revision: int


@dataclass(frozen=True, slots=True)
class Token:
    """Positions by cluster id. Parse once, hand on as text."""

    positions: Mapping[str, Position] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, cluster_id: str, incarnation: str, revision: int) -> Token:
        """The token of one position."""
        return cls({cluster_id: Position(incarnation, revision)})

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read a token; the empty text is the empty token.

        Raises:
            InvalidToken: not one that a directory server gave.
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
        """The later position of each cluster; of two incarnations the one that comes later in
        ``tokens``, since only its store still lives.
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
