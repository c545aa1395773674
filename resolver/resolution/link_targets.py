"""Targets of a link that is being followed: the next target, and the effect of each result. Pure.

``first``: a later target is queried if the earlier ones could not be; after an absent one, only if
the link allows it. ``union``: the first target that has the path is the answer; if a target before
it could not be queried, that error is the result. A resolution that gathers unions queries all
targets. A link is never absent while one of its targets could not be queried.
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
"""Longest lifetime in seconds of an answer if an earlier target could not be queried, since that
may answer again soon.
"""

Result = AnswerResult | AbsentResult | United | KdirError


@dataclass(slots=True)
class LinkTargets:
    """Targets of one link that is being followed; ``outer``: the followed link that led to it."""

    asked: Path
    rewrite: Rewrite
    hops: int
    remaining_seconds: int
    outer: LinkTargets | None
    for_writes: bool
    here: Referral
    """Servers that returned the link; they are queried first for targets below their mount."""
    gathers: bool = False
    """True if all targets of a union are queried."""
    index: int = 0
    trouble: KdirError | None = None
    """Error of the first target that could not be queried. In a gathered union, None if an earlier
    target has the path, and another failure replaces an earlier NotReady.
    """
    absent: AbsentResult | None = None
    partial: United | None = None
    """Result of a target of a ``first`` link, which is a union whose first targets failed."""
    parts: list[AnswerResult] = field(default_factory=list)
    """Results of a gathered union."""
    missing: list[tuple[Path, KdirError]] = field(default_factory=list)
    """Targets of a gathered union that failed, with their errors."""

    @property
    def target(self) -> Path:
        """Path of the current target."""
        return self.rewrite.paths[self.index]

    @property
    def left(self) -> int:
        """Number of targets after the current one."""
        return len(self.rewrite.paths) - self.index - 1

    @property
    def step(self) -> LinkStep:
        """The link with its current target, as answers list it."""
        rewrite = self.rewrite
        fallback = rewrite.mode is LinkMode.FIRST and self.index > 0
        return LinkStep(rewrite.link, self.target, rewrite.mode, fallback, rewrite.writes_follow)

    def first(self, known: Callable[[Path], Referral | None]) -> Referral | None:
        """Returns the referral to begin with at the current target: the deeper one of ``known`` and
        the link's sender. None = begin at the start servers.
        """
        here, hint = self.here, known(self.target)
        if here.mount is None or not here.mount.is_prefix_of(self.target):
            return hint
        if hint is None or hint.mount is None or len(hint.mount) <= len(here.mount):
            return here
        return hint

    def on_result(self, result: Result) -> Result | None:
        """Processes the result of the current target; returns the link's result; None = query the
        next target.
        """
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
        """Returns the link's result if no more targets may be queried."""
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
        # An outage must not redirect writes.
        if self.left and (self.rewrite.writes_follow or not self.for_writes):
            self.index += 1
            return None
        return self.partial or self.trouble

    def _gather(self, result: Result) -> None:
        """Adds the result of one target of a union."""
        match result:
            case AnswerResult():
                self.parts.append(result)
            case United(parts=parts, missing=missing, trouble=trouble):
                self._note_trouble(trouble)
                self.parts.extend(parts)
                self.missing.extend(missing)
            case AbsentResult():
                self.absent = self.absent or result
            case _:
                self._note_trouble(result)
                self.missing.append((self.target, result))

    def _note_trouble(self, trouble: KdirError | None) -> None:
        """Keeps the first error before any part; a failure rather than a target's NotReady, which
        may be over at the next query.
        """
        if self.parts or trouble is None:
            return
        may_pass = isinstance(self.trouble, errors.NotReady)
        if self.trouble is None or (may_pass and not isinstance(trouble, errors.NotReady)):
            self.trouble = trouble

    def _gathered(self) -> Result:
        if self.parts:
            return United(tuple(self.parts), tuple(self.missing), self.trouble)
        result = self.trouble or self.absent
        assert result is not None  # noqa: S101 - a link has targets, each has a result
        return result


def enclosing_links(fork: LinkTargets | None) -> Iterator[LinkTargets]:
    """Yields a link and those that led to it, the innermost first."""
    while fork is not None:
        yield fork
        fork = fork.outer


def is_unreachable_error(error: KdirError) -> bool:
    """True if an error means that no owner of the path could answer."""
    return isinstance(error, errors.Unavailable | errors.DeadlineExceeded | errors.NoRoute)
