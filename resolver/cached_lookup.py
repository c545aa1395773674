"""Lookup of paths through the cache: uncached paths are resolved once for all callers that ask at
the same time.

An answer is cached as long as all answers it depends on are valid. When the owner cannot be
reached, the last good answer is returned, marked stale; an absence never is. A ``Trace`` shows one
resolution, hop by hop, to people; it is not cached.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from resolver import errors
from resolver.answer_cache import Cache, CachedAnswer, FreshnessMark
from resolver.errors import KdirError
from resolver.lookup_options import LookupOptions
from resolver.path import Path
from resolver.resolution.link_targets import FALLBACK_SECONDS, is_unreachable_error
from resolver.resolution.state_machine import ResolutionOptions, ResolutionStateMachine
from resolver.resolution.values import (
    AbsentResult,
    AnswerResult,
    AskedBecause,
    Attempt,
    FailedResult,
    Sender,
)
from resolver.resolution_driver import ResolutionDriver, ResolveRequestOptions
from resolver.revision_token import Position, ReadPositions, Token
from resolver.topic_location import TopicLocation, location_of

__all__ = ["CachedLookup", "Freshness", "Trace", "lifetime_of", "stale_absent", "trace_of"]

_STALE_RETRY_SECONDS: Final = 2.0
"""Time for which a stale answer is returned without another query: an outage must not cost each
caller its whole deadline.
"""
_NO_POSITIONS: Final[Mapping[str, Position]] = {}
_MOST_WRITTEN: Final = 32
"""Most clusters whose last write is remembered: servers refuse a token of more than 64."""


_CONTRADICTIONS: Final = (
    errors.Denied,
    errors.Lame,
    errors.NotAuthoritative,
    errors.Unmounted,
    errors.WalkFailed,
)
"""Errors that show an old answer to be wrong: it is not given in a later outage, either."""
_Result = TypeVar("_Result")


class Freshness(Protocol):
    """Source of freshness marks, which keep answers fresh by watching their clusters' changes."""

    def freshness_of(self, end: AnswerResult | AbsentResult, since: float) -> FreshnessMark | None:
        """Returns the mark that keeps this answer fresh; None = its cluster is not watched now."""

    def renew(self) -> None:
        """Resets the state after a fork: the threads belong to the parent process."""


class _Flight:
    """Resolution in progress, which other callers of the same path wait for."""

    __slots__ = ("deadline", "done", "error", "kept")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.done = threading.Event()
        self.kept: CachedAnswer | None = None
        self.error: KdirError | None = None


class _Flights:
    """Resolutions in progress in one process. After a fork the child begins with none, and with new
    locks.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.making = threading.Lock()
        """Held while the watch streams, or their refresher, are made."""
        self.by_key: dict[Hashable, _Flight] = {}


class CachedLookup:
    """Lookup of paths in the cache and, for uncached ones, by resolutions. Thread-safe."""

    def __init__(
        self,
        make_walker: Callable[[], ResolutionDriver],
        cache: Cache,
        rules: Callable[[LookupOptions], ResolutionOptions],
        clock: Callable[[], float],
        max_stale_seconds: float,
    ) -> None:
        self._make_walker = make_walker
        self._cache = cache
        self._rules = rules
        self._clock = clock
        self._max_stale_seconds = max_stale_seconds
        self._walker = make_walker()
        self._flights = _Flights()
        self.session = Session()
        self.freshness: Freshness | None = None
        """Source of freshness marks; None if no cluster is watched."""

    @property
    def walker(self) -> ResolutionDriver:
        """Resolution driver of this process."""
        self.own_process()
        return self._walker

    def own_process(self) -> _Flights:
        """Returns the state of this process; after a fork a new one, with new locks."""
        flights = self._flights
        if flights.pid != os.getpid():
            # After a fork: locks that other threads of the parent held are never released here.
            self._walker = self._make_walker()
            self._cache.renew_lock()
            self.session.renew_lock()
            if self.freshness is not None:
                self.freshness.renew()
            flights = self._flights = _Flights()
        return flights

    # -- one path --------------------------------------------------------------------------

    def resolve_path(
        self, path: Path, wanted: LookupOptions, token: str, deadline: float
    ) -> TopicLocation:
        """Returns the location of a path, from the cache or by a resolution that others may share.

        Raises:
            KdirError: as ``Resolver.resolve``.
        """
        key = wanted.key(str(path))
        kept = self._cache.good(key, _positions(token), self._clock())
        if kept is not None:
            return _given(kept)
        # A resolution is not shared if it did not send the token of the caller's writes, or began
        # before a write of unknown effect: it may have read before those writes.
        sent, unsure_count = self.session.with_token(token), self.session.unsure_count
        flight_key = (key, sent, unsure_count) if sent or unsure_count else key
        flights = self.own_process()
        while True:
            with flights.lock:
                flight = flights.by_key.get(flight_key)
                leads = flight is None
                if flight is None:
                    flight = flights.by_key[flight_key] = _Flight(deadline)
            if leads:
                break
            result = self._wait(flight, path, deadline)
            if result is not None:
                return _given(result)
        try:
            kept = flight.kept = self._walk(path, wanted, token, deadline)
        except KdirError as error:
            flight.error = error
            raise
        finally:
            with flights.lock:
                del flights.by_key[flight_key]
            flight.done.set()
        return _given(kept)

    def _wait(self, flight: _Flight, path: Path, deadline: float) -> CachedAnswer | None:
        """Returns the result of another thread's resolution; None = that thread's earlier deadline
        ended it.
        """
        if not flight.done.wait(max(0.0, deadline - self._clock())):
            raise errors.DeadlineExceeded(
                f"{path}: the deadline passed while another thread resolved the path", path=path
            )
        if flight.error is not None:
            if is_unreachable_error(flight.error) and flight.deadline < deadline:
                return None
            raise flight.error.copy()
        return flight.kept

    def _walk(self, path: Path, wanted: LookupOptions, token: str, deadline: float) -> CachedAnswer:
        started, written = self._clock(), self.session.written()
        walk = self.resolve_uncached(path, self._rules(wanted), wanted, token, deadline)
        return self._settle(walk, wanted, token, started, written)

    def resolve_uncached(
        self,
        path: Path,
        rules: ResolutionOptions,
        wanted: LookupOptions,
        token: str,
        deadline: float,
    ) -> ResolutionStateMachine:
        """Returns a finished resolution that no other caller shares and whose answers are at least
        as new as this session's writes.
        """
        rules = rules.for_token(token)
        sent = SessionToken(self.session, token)
        question = self.question(wanted, token)
        walk = self.walker.resolve(path, rules, question, deadline)
        while (expired := _expired_error(walk)) is not None and sent.drop_expired(expired):
            question = question._replace(token=sent.text)
            walk = self.walker.resolve(path, rules, question, deadline)
        if _is_answered(walk):  # else it may be the caller's own token that has expired
            sent.forget_expired()
        return walk

    def question(self, wanted: LookupOptions, token: str) -> ResolveRequestOptions:
        """Returns the request options for every server on the way."""
        return ResolveRequestOptions(
            wanted.prefer,
            self.session.with_token(token),
            wanted.no_follow,
            wanted.confirm_links,
        )

    # -- many paths ------------------------------------------------------------------------

    def find_many(
        self, paths: Sequence[Path], wanted: LookupOptions, token: str, deadline: float
    ) -> dict[Path, TopicLocation | KdirError]:
        """Returns the outcomes of many paths; the uncached ones are resolved together."""
        now, written = self._clock(), self.session.written()
        positions = _positions(token)
        found: dict[Path, TopicLocation | KdirError] = {}
        cold: list[Path] = []
        for path in dict.fromkeys(paths):
            kept = self._cache.good(wanted.key(str(path)), positions, now)
            if kept is not None:
                found[path] = _outcome(kept)
            else:
                cold.append(path)
        walks = self.walk_many(cold, wanted, token, deadline) if cold else []
        for path, walk in zip(cold, walks, strict=True):
            try:
                found[path] = _outcome(self._settle(walk, wanted, token, now, written))
            except KdirError as error:
                found[path] = error
        return found

    def walk_many(
        self, paths: Sequence[Path], wanted: LookupOptions, token: str, deadline: float
    ) -> list[ResolutionStateMachine]:
        """Returns a finished resolution for each path; other callers do not share them."""
        self.own_process()
        sent = SessionToken(self.session, token)
        question = self.question(wanted, token)
        rules = self._rules(wanted).for_token(token)
        walks = self.walker.walk_many(paths, rules, question, deadline)
        while True:
            expired = {
                place: error
                for place, walk in enumerate(walks)
                if (error := _expired_error(walk)) is not None
            }
            if not sent.drop_expired(*expired.values()):
                return walks
            question = question._replace(token=sent.text)
            again = [paths[place] for place in expired]
            retried = self.walker.walk_many(again, rules, question, deadline)
            for place, walk in zip(expired, retried, strict=True):
                walks[place] = walk
            if any(map(_is_answered, retried)):
                sent.forget_expired()

    def call_with_session(self, token: str, call: Callable[[str], _Result]) -> _Result:
        """Returns the result of a call with the caller's token merged with the session's; if that
        has expired, of one without the session's expired positions.

        Raises:
            KdirError: of the call; TokenExpired if the caller's own token has expired.
        """
        sent = SessionToken(self.session, token)
        while True:
            try:
                result = call(sent.text)
            except errors.TokenExpired as error:
                if not sent.drop_expired(error):
                    raise
            else:
                sent.forget_expired()
                return result

    # -- remembering -----------------------------------------------------------------------

    def add_referral(self, walk: ResolutionStateMachine, since: float) -> None:
        """Caches the confirmed referrals of a resolution, and removes those from the cache that
        proved wrong.
        """
        for mount in walk.bad_hints:
            self._cache.remove_referral(mount)
        for attempt in walk.attempts:
            reply = attempt.reply
            if (
                attempt.ask.way is AskedBecause.START
                and reply is not None
                and not attempt.ask.recursive
            ):
                self._cache.note_own_mount(reply.sender.mount)
        for referral, seconds in walk.learned:
            self._cache.add_referral(referral, seconds, since)

    def _settle(
        self,
        walk: ResolutionStateMachine,
        wanted: LookupOptions,
        token: str,
        since: float,
        written: Written,
    ) -> CachedAnswer:
        """Caches and returns the result of a resolution. ``written``: the session's writes when it
        began.

        Raises:
            KdirError: it failed, and there is no old answer to return either.
        """
        self.add_referral(walk, since)
        path = walk.path
        end = walk.next_query()
        match end:
            case AnswerResult(answer=answer, sender=sender, links=links):
                kept = CachedAnswer(
                    location=location_of(answer, sender, links),
                    until=since + lifetime_of(end),
                    path=path,
                    canonical=answer.path,
                    cluster_id=sender.cluster_id,
                    mount=sender.mount,
                    asked_at=since,
                    followed=self._followed(walk, end, since),
                    read=end.read,
                    paths=_others(walk.paths, path, answer.path),
                    has_unknown_links=_has_unknown_links(walk, end),
                )
            case AbsentResult(path=canonical, sender=sender):
                error = absent_error(path, end)
                kept = CachedAnswer(
                    location=None,
                    until=since + end.lifetime_seconds,
                    path=path,
                    canonical=canonical,
                    cluster_id=sender.cluster_id,
                    mount=sender.mount,
                    asked_at=since,
                    message=error.message,
                    metadata=error.metadata,
                    attempts=tuple(map(str, walk.attempts)),
                    followed=self._followed(walk, end, since),
                    read=end.read,
                    paths=_others(walk.paths, path, canonical),
                    has_unknown_links=_has_unknown_links(walk, end),
                )
            case FailedResult(error=error):
                return self._stale_or_raise(path, wanted, token, error)
            case _:
                raise AssertionError(f"a walk to {path} did not end: {end}")
        self._store(wanted.key(str(path)), kept, sender, written)
        return kept

    def _followed(
        self, walk: ResolutionStateMachine, end: AnswerResult | AbsentResult, since: float
    ) -> FreshnessMark | None:
        # An answer behind a link depends on more clusters than its own.
        if self.freshness is None or end.links or _has_unknown_links(walk, end):
            return None
        return self.freshness.freshness_of(end, since)

    def _store(self, key: Hashable, kept: CachedAnswer, sender: Sender, written: Written) -> None:
        """Caches an answer, unless this client knows of a newer change, or made a write of unknown
        effect meanwhile.

        The check follows the caching. A thread that receives a change (or makes a write) records it
        first and then removes answers; so one of the two threads finds and removes an old answer.
        """
        self._cache.put(key, kept)
        followed = kept.followed
        overtaken = followed is not None and sender.revision < followed.revision
        # The resolution sent the token of all earlier writes, whose affected referrals are removed.
        wrote = self.session.text != written.text
        unsure = self.session.unsure_count != written.unsure_count
        if (
            overtaken
            or unsure
            or (wrote and (kept.has_unknown_links or self.session.is_after(kept.read)))
        ):
            self._cache.forget(key)

    def _stale_or_raise(
        self, path: Path, wanted: LookupOptions, token: str, error: KdirError
    ) -> CachedAnswer:
        key = wanted.key(str(path))
        old = self._cache.answers.get(key)
        now = self._clock()
        if isinstance(error, _CONTRADICTIONS):
            self._cache.forget(key)
        if (
            old is None
            or old.location is None
            or not _may_give_old(error)
            or not old.reaches(_positions(token), now)
            or now - old.confirmed_at > self._max_stale_seconds
        ):
            raise error
        return self._cache.put_stale(key, old, now, _STALE_RETRY_SECONDS)


class Written(NamedTuple):
    """Token and count of the writes of a session up to one moment."""

    text: str
    """Token of the writes that succeeded."""
    unsure_count: int
    """Number of writes that failed but may have had an effect."""


class Session:
    """Token of this client's own writes, which its reads send so as to see them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._token = Token()
        self.text = ""
        self.unsure_count = 0
        """Number of writes that failed but may have had an effect; they have no token."""

    def renew_lock(self) -> None:
        """Replaces the lock after a fork."""
        self._lock = threading.Lock()

    def wrote(self, text: str) -> None:
        """Adds the token that a write returned."""
        if not text:
            return
        with self._lock:
            written = Token.parse(text)
            merged = dict(Token.merge([self._token, written]).positions)
            for cluster_id in written.positions:
                merged[cluster_id] = merged.pop(cluster_id)  # to the young end
            recent = list(merged.items())[-_MOST_WRITTEN:]
            self._token = Token(dict(recent))
            self.text = str(self._token)

    def failed_unsure(self) -> None:
        """Counts a write that failed but may have had an effect."""
        with self._lock:
            self.unsure_count += 1

    def written(self) -> Written:
        """Returns the token and the count of the writes so far."""
        return Written(self.text, self.unsure_count)

    @property
    def positions(self) -> Mapping[str, Position]:
        """Positions of the writes, by cluster id."""
        return self._token.positions

    def forget(self, expired: Mapping[str, Position]) -> None:
        """Removes positions whose stores are gone; not those that changed meanwhile."""
        with self._lock:
            self._token = _without(self._token, expired)
            self.text = str(self._token)

    def is_after(self, read: ReadPositions) -> bool:
        """True if any position that an answer was read at is older than this session's writes."""
        return read.is_before(self._token.positions)

    def with_token(self, text: str, expired: Mapping[str, Position] = _NO_POSITIONS) -> str:
        """Returns the caller's token merged with the session's, without its ``expired``
        positions.
        """
        if not expired and (not text or not self.text):
            return text or self.text
        return str(Token.merge([_without(self._token, expired), Token.parse(text)]))


def _without(token: Token, positions: Mapping[str, Position]) -> Token:
    kept = token.positions.items()
    return Token({one: place for one, place in kept if positions.get(one) != place})


class SessionToken:
    """Token of one request: the caller's merged with the session's, of which the positions that a
    server rejected are dropped.
    """

    def __init__(self, session: Session, token: str) -> None:
        self._session = session
        self._token = token
        self._expired: dict[str, Position] = {}
        self._sent = session.positions
        self._sent_text = self.text

    @property
    def text(self) -> str:
        """The token for the next request."""
        return self._session.with_token(self._token, self._expired)

    def drop_expired(self, *rejected: KdirError) -> bool:
        """Drops the session's positions of the clusters that rejected the token, or all, if an
        error names none; False: the token stays the same. Positions of writes since the request
        was sent stay: no server rejected those.
        """
        sent, before = self._sent, self._sent_text
        for error in rejected:
            cluster_id = error.metadata.get("cluster_id")
            named = sent if cluster_id is None else {cluster_id} & sent.keys()
            self._expired.update({one: sent[one] for one in named})
        self._sent, self._sent_text = self._session.positions, self.text
        return self._sent_text != before

    def forget_expired(self) -> None:
        """Removes the dropped positions from the session: a server answered without them."""
        if self._expired:
            self._session.forget(self._expired)


def absent_error(path: Path, end: AbsentResult) -> errors.Absent:
    """Returns the error for an owner's *absent*."""
    facts = {
        "path": str(path),
        "cluster_id": end.sender.cluster_id,
        "mount": str(end.sender.mount),
    }
    message = f"{end.path} does not exist"
    if end.path != path:
        facts["canonical_path"] = str(end.path)
        message = f"{path}: {message}"
    nearest = end.absent.nearest_directory
    if nearest is not None and nearest != end.path and nearest.is_prefix_of(end.path):
        facts["nearest_directory"] = str(nearest)
        message += f"; the nearest directory is {nearest}"
    sender = end.sender
    if sender.stale:
        named = sender.cluster or sender.cluster_id
        age = sender.age_seconds
        return stale_absent(message, named, age, facts, is_sealed=sender.sealed)
    return errors.Absent(message, metadata=facts)


def stale_absent(
    message: str, cluster: str, age_seconds: float, facts: Mapping[str, str], *, is_sealed: bool
) -> errors.Absent:
    """Returns the error for an *absent* from a stale copy: the path may exist in the store, which
    the server cannot reach or, if it is sealed, in the store in which the cluster continues.
    """
    state = "sealed" if is_sealed else "away"
    message += f" (answered from a copy {age_seconds:.0f} s old: the store of {cluster} is {state})"
    return errors.Absent(message, metadata=facts, age_seconds=f"{age_seconds:.1f}")


def _has_unknown_links(walk: ResolutionStateMachine, end: AnswerResult | AbsentResult) -> bool:
    """True if a server resolved for the client and may have followed links."""
    has_none = isinstance(end, AnswerResult) and end.answer.path == walk.path
    return walk.is_in_ones_name and not has_none


def lifetime_of(end: AnswerResult) -> int:
    """Returns the number of seconds for which an answer may be cached."""
    fallback = any(step.fallback for step in end.links)
    return min(end.lifetime_seconds, FALLBACK_SECONDS) if fallback else end.lifetime_seconds


def _may_give_old(error: KdirError) -> bool:
    # Lame is no outage: the server answered "not mine", and its parent may have unmounted it.
    return is_unreachable_error(error) and not isinstance(error, errors.Lame)


def _expired_error(walk: ResolutionStateMachine) -> errors.TokenExpired | None:
    match walk.next_query():
        case FailedResult(error=errors.TokenExpired() as error):
            return error
        case _:
            return None


def _is_answered(walk: ResolutionStateMachine) -> bool:
    return isinstance(walk.next_query(), AnswerResult | AbsentResult)


def _others(paths: tuple[Path, ...], asked: Path, canonical: Path) -> tuple[Path, ...]:
    return tuple(path for path in paths if path not in (asked, canonical))


def _positions(token: str) -> Mapping[str, Position]:
    return Token.parse(token).positions if token else _NO_POSITIONS


def _outcome(kept: CachedAnswer) -> TopicLocation | KdirError:
    if kept.location is None:
        return errors.Absent(kept.message, attempts=kept.attempts, metadata=kept.metadata)
    return kept.location


def _given(kept: CachedAnswer) -> TopicLocation:
    outcome = _outcome(kept)
    if isinstance(outcome, KdirError):
        raise outcome
    return outcome


@dataclass(frozen=True, slots=True)
class Trace:
    """Every query of one resolution, in order, and its result: a location or an error."""

    path: Path
    steps: tuple[Attempt, ...]
    """Servers that were queried (``ask``), their replies (``reply``), and the durations."""
    location: TopicLocation | None
    error: KdirError | None
    lifetime_seconds: int
    """Time for which the answer, or the absence, may be cached."""
    elapsed_seconds: float


def trace_of(walk: ResolutionStateMachine, elapsed_seconds: float) -> Trace:
    """Returns the trace of a finished resolution."""
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
