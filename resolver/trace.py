"""Trace: one resolve, hop by hop, for people (the habit is ``dig +trace``); keeps nothing."""

from __future__ import annotations

from dataclasses import dataclass

from resolver.cached_lookup import absent_error
from resolver.errors import KdirError
from resolver.path import Path
from resolver.resolution.state_machine import ResolutionStateMachine
from resolver.resolution.values import AbsentResult, AnswerResult, Attempt, FailedResult
from resolver.topic_location import TopicLocation, location_of

__all__ = ["Trace", "trace_of"]


@dataclass(frozen=True, slots=True)
class Trace:
    """Every question of one resolve, in order, and what it came to: a location or an error."""

    path: Path
    steps: tuple[Attempt, ...]
    """Who was asked (``ask``), who answered what (``reply``), how long it took."""
    location: TopicLocation | None
    error: KdirError | None
    lifetime_seconds: int
    """For how long the answer, or the absence, may be kept."""
    elapsed_seconds: float


def trace_of(walk: ResolutionStateMachine, elapsed_seconds: float) -> Trace:
    """Returns what a walk that has ended was."""
    location: TopicLocation | None = None
    error: KdirError | None = None
    lifetime = 0
    match end := walk.next_query():
        case AnswerResult(answer=answer, sender=sender, links=links, lifetime_seconds=lifetime):
            try:
                location = location_of(answer, sender, links)
            except KdirError as unusable:
                error = unusable
        case AbsentResult(lifetime_seconds=lifetime):
            error = absent_error(walk.path, end)
        case FailedResult(error=error):
            pass
        case _:
            raise AssertionError(f"a walk to {walk.path} did not end: {end}")
    return Trace(walk.path, walk.attempts, location, error, lifetime, elapsed_seconds)
