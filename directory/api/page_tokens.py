"""Page tokens and page sizes (AIP-158): opaque, checked, bound to the request they are for."""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass
from typing import Final

from resolver.errors import InvalidArgument, InvalidPageToken, RevisionGone

__all__ = ["DEFAULT_PAGE", "MAX_PAGE", "PageToken", "page_size"]

DEFAULT_PAGE: Final = 1_000
MAX_PAGE: Final = 10_000


def page_size(asked: int, default: int = DEFAULT_PAGE) -> int:
    """Returns the size of a page: 0 is the default, and larger requests get the maximum.

    Raises:
        InvalidArgument: negative.
    """
    if asked < 0:
        raise InvalidArgument(
            f"page_size: found {asked}; expected 0 (the default) to {MAX_PAGE}",
            field="page_size",
        )
    return min(asked or default, MAX_PAGE)


@dataclass(frozen=True, slots=True)
class PageToken:
    """Position where the next page begins. ``last`` is the last item of the previous page, in the
    listing's own terms; any server of the cluster can continue from it.
    """

    what: str
    """Kind of listing, such as ``scan``; a token of another kind or ``query`` is refused."""
    query: str
    incarnation: str
    revision: int
    last: str

    def is_moved(self, incarnation: str, revision: int, *, one_revision: bool) -> bool:
        """True if the tree has changed since the listing began (G4).

        Raises:
            RevisionGone: it has, and the caller wants all pages of ``one_revision``.
        """
        moved = (self.incarnation, self.revision) != (incarnation, revision)
        if moved and one_revision:
            raise RevisionGone(
                f"the listing began at revision {self.revision}; this server is at "
                f"{revision} by now: begin again"
            )
        return moved

    def __str__(self) -> str:
        parts = (self.what, self.query, self.incarnation, str(self.revision), self.last)
        body = "\0".join(parts).encode()
        check = zlib.crc32(body).to_bytes(4, "big")
        return base64.urlsafe_b64encode(check + body).rstrip(b"=").decode("ascii")

    @classmethod
    def parse(cls, text: str, what: str, query: str) -> PageToken:
        """Parses a token of this request.

        Raises:
            InvalidPageToken: malformed, or of another request.
        """
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            if zlib.crc32(raw[4:]).to_bytes(4, "big") != raw[:4]:
                raise ValueError("check sum")
            found, asked, incarnation, revision, last = raw[4:].decode().split("\0")
            token = cls(found, asked, incarnation, int(revision), last)
        except (ValueError, binascii.Error) as error:
            raise InvalidPageToken(
                "page_token: not one that a directory server gave; begin again without it"
            ) from error
        if (token.what, token.query) != (what, query):
            raise InvalidPageToken(
                "page_token: it was given for another request; use it with the same fields, or "
                "begin again without it"
            )
        return token
