"""What a walk may do, and whom it may ask: told to it by whoever begins it; decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from resolver.path import Path
from resolver.resolution.values import Referral
from resolver.revision_token import Position, Token

__all__ = ["Chooser", "ResolutionOptions"]


class Chooser(Protocol):
    """The order in which servers that are all alike are asked."""

    def __call__(self, endpoints: Sequence[str], /) -> Sequence[str]:
        """Returns the same endpoints, best first."""


class ResolutionOptions(NamedTuple):
    """What a walk may do, and whom it may ask."""

    start: tuple[str, ...]
    """The servers to begin with, all alike to the walk."""
    hint: Callable[[Path], Referral | None] = lambda _: None
    """A referral that is known already, to a mount that the path lies in."""
    refusal: Callable[[str], str] = lambda _: ""
    """Why an endpoint that a referral names may not be asked; empty = it may."""
    choose: Chooser = tuple
    recursive: bool = False
    """Let the servers one begins with walk on in one's name."""
    for_writes: bool = False
    """Stay with a link's first target, unless it says ``writes = follow``."""
    gathers_unions: bool = False
    """Ask all targets of a union link, and end with ``United``; else the first that has the name
    counts."""
    wanted: Mapping[str, Position] = MappingProxyType({})
    """The positions of the caller's token: a hint that may rest on older ones is not followed."""

    def without_hints(self) -> ResolutionOptions:
        """Returns the same, from the top."""
        return self._replace(hint=lambda _: None)

    def for_token(self, token: str) -> ResolutionOptions:
        """Returns the same, for a caller that wants to read at least this.

        Raises:
            InvalidToken: not one that a directory server gave.
        """
        return self._replace(wanted=Token.parse(token).positions) if token else self

    def by_referrals(self) -> ResolutionOptions:
        """Returns the same, for a caller that goes on to call the owner: a server that walks on in
        one's name gives the owner's answer, but neither its address nor the links on the way.
        """
        return self._replace(recursive=False)

    def gathering_unions(self) -> ResolutionOptions:
        """Returns the same, by referrals, with all targets of union links asked."""
        return self._replace(recursive=False, gathers_unions=True)
