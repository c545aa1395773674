"""A link whose targets are being worked through: which is next, and what their results mean; pure.

Whether one answer is wanted or all that a union has: the same rules.

``first``: a later target is asked when an earlier one could not be; when one says absent, only if
the link says so. ``union``: the first target that has the name, and nothing at all while an
earlier one cannot say. Nobody says absent for a link while one of its targets could not be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from resolver import errors
from resolver.errors import KdirError
from resolver.path import Path
from resolver.resolution.values import (
    AbsentResult,
    AnswerResult,
    LinkMode,
    LinkStep,
    Referral,
    Rewrite,
    United,
)

__all__ = ["FALLBACK_SECONDS", "LinkTargets", "Result", "enclosing_links", "is_unreachable_error"]

FALLBACK_SECONDS: Final = 5
"""An answer that a fallback gave is kept no longer: the first target may be back."""

Result = AnswerResult | AbsentResult | United | KdirError


@dataclass(slots=True)
class LinkTargets:
    """A rewrite in progress. ``outer`` is the link that led to the path with this one."""

    asked: Path
    rewrite: Rewrite
    hops: int
    remaining_seconds: int
    outer: LinkTargets | None
    for_writes: bool
    here: Referral
    """The servers that gave the link: where to begin with a target that is theirs too."""
    gathers: bool = False
    """All that the targets of a union have is wanted."""
    index: int = 0
    trouble: KdirError | None = None
    """Of the first target that could not be asked, while none before it had the name."""
    absent: AbsentResult | None = None
    partial: United | None = None
    """Of a ``first`` link: what a target has that is a union with a trouble."""
    parts: list[AnswerResult] = field(default_factory=list)
    """Of a union that is gathered."""
    missing: list[tuple[Path, KdirError]] = field(default_factory=list)
    """The same: targets that could not be asked."""

    @property
    def target(self) -> Path:
        """The one that is being asked."""
        return self.rewrite.paths[self.index]

    @property
    def left(self) -> int:
        """Targets that could still be asked after this one."""
        return len(self.rewrite.paths) - self.index - 1

    @property
    def step(self) -> LinkStep:
        """What an answer by the current target says of the link."""
        rewrite = self.rewrite
        fallback = rewrite.mode is LinkMode.FIRST and self.index > 0
        return LinkStep(rewrite.link, self.target, rewrite.mode, fallback, rewrite.writes_follow)

    def first(self, known: Callable[[Path], Referral | None]) -> Referral | None:
        """Returns where to begin with the target: what is known of it, or whoever gave the link."""
        here, hint = self.here, known(self.target)
        if here.mount is None or not here.mount.is_prefix_of(self.target):
            return hint
        if hint is None or hint.mount is None or len(hint.mount) <= len(here.mount):
            return here
        return hint

    def on_result(self, result: Result) -> Result | None:
        """Returns what a target's result means for the link; None = ask the next target."""
        rewrite = self.rewrite
        union = rewrite.mode is LinkMode.UNION
        if union and self.gathers:
            self._gather(result)
            if self.left:
                self.index += 1
                return None
            return self._gathered()
        match result:
            case United(trouble=KdirError() as trouble) if is_unreachable_error(trouble):
                self.partial = self.partial or result
                return self._after_trouble(trouble)
            case AnswerResult() | United():
                return result
            case AbsentResult(lifetime_seconds=lifetime):
                self.absent = self.absent or result
                self.remaining_seconds = min(self.remaining_seconds, lifetime)
                if self.left and (union or rewrite.fall_back_on_absent):
                    self.index += 1
                    return None
                return self.partial or self.trouble or self.absent
            case _ if union or not is_unreachable_error(result):
                return result
            case _:
                return self._after_trouble(result)

    def cut_short(self, result: Result) -> Result:
        """Returns what it comes to where no more may be asked."""
        if self.gathers and self.rewrite.mode is LinkMode.UNION:
            self._gather(result)
            if isinstance(result, KdirError):
                left = self.rewrite.paths[self.index + 1 :]
                self.missing.extend((path, result) for path in left)
            return self._gathered()
        return result if isinstance(result, United) else self.partial or result

    def _after_trouble(self, trouble: KdirError) -> Result | None:
        self.trouble = self.trouble or trouble
        self.remaining_seconds = min(self.remaining_seconds, FALLBACK_SECONDS)
        # An outage must not move data.
        if self.left and (self.rewrite.writes_follow or not self.for_writes):
            self.index += 1
            return None
        return self.partial or self.trouble

    def _gather(self, result: Result) -> None:
        """Takes in what one target of a union has."""
        match result:
            case AnswerResult():
                self.parts.append(result)
            case United(parts=parts, missing=missing, trouble=trouble):
                if not self.parts:
                    self.trouble = self.trouble or trouble
                self.parts.extend(parts)
                self.missing.extend(missing)
            case AbsentResult():
                self.absent = self.absent or result
            case _:
                if not self.parts:
                    self.trouble = self.trouble or result
                self.missing.append((self.target, result))

    def _gathered(self) -> Result:
        if self.parts:
            return United(tuple(self.parts), tuple(self.missing), self.trouble)
        result = self.trouble or self.absent
        assert result is not None  # noqa: S101 - a link has targets, each came to something
        return result


def enclosing_links(fork: LinkTargets | None) -> Iterator[LinkTargets]:
    """Yields a link and those that led to it, the innermost first."""
    while fork is not None:
        yield fork
        fork = fork.outer


def is_unreachable_error(error: KdirError) -> bool:
    """True if nobody who owns the path could be made to say anything."""
    return isinstance(error, errors.Unavailable | errors.DeadlineExceeded | errors.NoRoute)
