"""What a walk may do, and whom it may ask: told to it by whoever begins it; decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from resolver.outcome import Referral
from resolver.path import Path

__all__ = ["Chooser", "Rules"]


class Chooser(Protocol):
    """The order in which servers that are all alike are asked."""

    def __call__(self, endpoints: Sequence[str], /) -> Sequence[str]:
        """The same endpoints, best first."""


class Rules(NamedTuple):
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
    split_unions: bool = False
    """End with ``Split`` at a union link instead of asking its targets in order."""

    def without_hints(self) -> Rules:
        """The same, from the top."""
        return self._replace(hint=lambda _: None)

    def splitting_unions(self) -> Rules:
        """The same, with the targets of union links told instead of asked."""
        return self._replace(split_unions=True)
