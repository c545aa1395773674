"""Resolution of a path to its owner as a state machine, without I/O or a clock.

``next_query`` returns the next query or the result. The driver (``resolver/resolution_driver.py``)
passes in replies (``on_answer``) and errors (``on_error``, ``on_slow``), and has the sockets,
clocks and caches; tests pass plain values. The design is that of dnspython's ``_Resolution``.

``Trail`` has the servers whose referrals were followed: a referral back to one of them is not
followed, and more than ``MAX_HOPS`` hops end the resolution.
``resolver/resolution/referral_and_answer_checks.py`` checks each referral and reply: referrals must
lead nearer to the path; answers must come from the referral's servers and be about their own mount.

A reply older than an earlier one of the same store's incarnation is not accepted. After a failed
cached referral the start servers are queried, after a failed direct one the mounts above its
target. If all servers of a child or parent are lame, the resolution restarts once, since a mount
may have moved meanwhile. ``resolver/resolution/link_targets.py`` handles links,
``resolver/resolution/answer_lifetimes.py`` lifetimes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, assert_never

from resolver import errors
from resolver.deadline_shares import time_share
from resolver.errors import KdirError
from resolver.host_port import MAX_ENDPOINTS
from resolver.path import Path
from resolver.resolution.answer_lifetimes import (
    UNLIMITED_SECONDS,
    basis_lifetime,
    limit_by_referrals,
    shortest_lifetime,
)
from resolver.resolution.hop_errors import Hop, ServerFailure, classify_error
from resolver.resolution.link_targets import LinkTargets, Result, enclosing_links
from resolver.resolution.referral_and_answer_checks import (
    is_above,
    out_of_bailiwick,
    outdated_reply,
    referral_error,
    sender_mismatch,
)
from resolver.resolution.values import (
    Absent,
    AbsentResult,
    Answer,
    AnswerResult,
    AnswerStatus,
    AskedBecause,
    Attempt,
    Chooser,
    End,
    ErrorAnswer,
    FailedResult,
    LinkMode,
    LinkStep,
    Query,
    Referral,
    Reply,
    ResolutionOptions,
    Rewrite,
    Sender,
)
from resolver.revision_token import NOTHING_READ, Position, ReadPositions

__all__ = [
    "MAX_CALLS",
    "MAX_HOPS",
    "MAX_TARGETS",
    "Chooser",
    "ResolutionOptions",
    "ResolutionStateMachine",
    "first_endpoints",
]

MAX_CALLS: Final = 50
"""Most queries of one resolution."""
MAX_HOPS: Final = 16
"""Most referrals and rewrites between the start and an answer."""
MAX_TARGETS: Final = 20
"""Most targets of one link."""


class VisitedServer(NamedTuple):
    """Server whose referral was followed, with its hop."""

    endpoint: str
    sender: Sender
    hop: Hop


@dataclass(slots=True)
class Trail:
    """Servers whose referrals were followed, in order. Each link target and the restart begin with
    none, but the hops of the whole resolution stay counted.
    """

    asked: Path
    """Path that the whole resolution is for."""
    stops: list[VisitedServer] = field(default_factory=list)
    hops: int = 0
    went_down: bool = False
    read: ReadPositions = NOTHING_READ
    """Positions of the servers whose referrals were followed."""

    @property
    def last(self) -> VisitedServer:
        """Last server whose referral was followed."""
        return self.stops[-1]

    @property
    def is_too_long(self) -> bool:
        """True if no hops are left."""
        return self.hops > MAX_HOPS

    def begin(self, hops: int, read: ReadPositions = NOTHING_READ) -> None:
        """Removes all servers and sets the number of hops to ``hops``; ``read``: positions of the
        cached referral that is followed first, if any.
        """
        self.stops.clear()
        self.read = read
        self.hops = hops
        self.went_down = False

    def add(self, endpoint: str, sender: Sender, hop: Hop) -> None:
        """Adds the server that was queried at ``hop``, whose referral is followed."""
        self.stops.append(VisitedServer(endpoint, sender, hop))
        self.read = self.read.joined(sender.read)
        self.hops += 1

    def remaining_seconds(self, hop: Hop) -> int | None:
        """Returns the shortest remaining seconds of the followed referrals, including the one to
        ``hop``; None = unlimited.
        """
        parts = [stop.hop.remaining_seconds for stop in self.stops]
        parts.append(hop.remaining_seconds)
        return shortest_lifetime(parts)

    def distrust(self, ask: Query, reply: Reply, hop: Hop) -> str:
        """Returns why a reply is ignored, judged by its sender and path; empty = it is accepted."""
        sender = reply.sender
        if not ask.recursive:  # a recursive answer may come from any server
            if hop.way is AskedBecause.TREE:
                if sender.cluster_id != self.last.sender.cluster_id:
                    return "answers for another cluster than before"
            elif why := sender_mismatch(hop.referral, sender):
                return why
            elif hop.way is AskedBecause.UP and not is_above(sender.mount, self.last.sender.mount):
                return f"is mounted at {sender.mount}, not above {self.last.sender.mount}"
        # Site links apply to this client only from its start servers and from clusters above them.
        site_links = hop.way in (AskedBecause.START, AskedBecause.UP)
        return out_of_bailiwick(ask, reply, site_links=site_links)

    def refusal(
        self, ask: Query, sender: Sender, referral: Referral, hop: Hop
    ) -> tuple[ServerFailure, KdirError] | None:
        """Returns the failure and the error of a referral that must not be followed; None = it may
        be.
        """
        why = referral_error(ask.path, sender.mount, referral, went_down=self.went_down)
        if not why and hop.way is AskedBecause.TREE and referral.way is AskedBecause.DOWN:
            why = "down, after a direct referral elsewhere"
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
        """Returns the error of a resolution with too many hops."""
        chain = " → ".join(self._stops())
        message = f"{self.asked}: more than {MAX_HOPS} hops: {chain}"
        return errors.TooManyHops(message, chain=chain, path=self.asked)

    def _chain(self, ask: Query, referral: Referral) -> str:
        return " → ".join([*self._stops(), ask.endpoint, referral.shown])

    def _stops(self) -> list[str]:
        return [f"{stop.endpoint} ({stop.sender.mount})" for stop in self.stops]


class ResolutionStateMachine:
    """Resolution of one path. Not thread-safe."""

    __slots__ = (
        "_attempts",
        "_calls",
        "_current",
        "_dead",
        "_end",
        "_fork",
        "_hint_failed",
        "_hop",
        "_read",
        "_restarted",
        "_rules",
        "_trail",
        "_verified",
        "bad_hints",
        "is_in_ones_name",
        "path",
    )

    def __init__(self, path: Path, rules: ResolutionOptions) -> None:
        self.path = path
        self.is_in_ones_name = False
        """True if a server resolved for the client; then the links that it followed are not
        known.
        """
        self.bad_hints: list[Path] = []
        """Mounts whose cached referrals failed."""
        self._rules = rules
        self._attempts: list[Attempt] = []
        self._calls = 0
        self._dead: dict[str, KdirError] = {}
        self._current: Query | None = None
        self._end: End | None = None
        self._fork: LinkTargets | None = None
        self._hint_failed: Hop | None = None
        self._restarted = False
        self._verified: list[tuple[Referral, int]] = []
        self._read = NOTHING_READ
        # Both are replaced at each link target and at the restart.
        self._trail = Trail(path)
        self._hop = Hop(AskedBecause.START, path)
        self._begin(path, hops=0, hint=rules.hint(path))

    # -- what the driver calls -------------------------------------------------------------

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Every query so far, in order."""
        return tuple(self._attempts)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every path that was queried, including those of link targets."""
        return tuple(dict.fromkeys(one.ask.path for one in self._attempts))

    @property
    def learned(self) -> tuple[tuple[Referral, int], ...]:
        """Confirmed referrals, each with its positions, and its remaining seconds. Empty if the
        resolution failed by a fault in the tree: referrals of a dishonest server are not cached
        (R1).
        """
        if isinstance(self._end, FailedResult) and isinstance(self._end.error, errors.WalkFailed):
            return ()
        return tuple(self._verified)

    def next_query(self) -> Query | End:
        """Returns the next query, or the result."""
        while self._end is None:
            if self._current is not None:
                return self._current
            if self._calls >= MAX_CALLS:
                self._cut_short(self._gave_up())
            else:
                self._current = self._question()
        return self._end

    def on_answer(
        self, reply: Reply, floor: Mapping[str, Position], elapsed_seconds: float = 0.0
    ) -> AnswerStatus:
        """Processes a reply to the current query; returns the status for the server's health.

        ``floor`` has the known position of each cluster *when the query was sent*, so that a reply
        does not count as old because of answers that were received meanwhile (R17).
        """
        ask = self._require_query()
        sender = reply.sender
        if isinstance(reply.outcome, ErrorAnswer):
            error = reply.outcome.error
            self._note(ask, f"{error.message} ({error.reason})", elapsed_seconds, reply)
            return self._classify(ask, error)
        if why := self._trail.distrust(ask, reply, self._hop):
            self._note(ask, f"lame: {why}", elapsed_seconds, reply)
            self._reject(ServerFailure.LAME, errors.Lame(f"{ask.endpoint} {why}"))
            return AnswerStatus.LAME
        seen = floor.get(sender.cluster_id)
        if seen is not None and (why := outdated_reply(sender, seen)):
            self._note(ask, why, elapsed_seconds, reply)
            self._ask_again(ask, sender, seen)
            return AnswerStatus.OLD
        self._read = self._read.joined(sender.read)
        if ask.recursive and isinstance(reply.outcome, Answer | Absent):
            self._read = self._read.incomplete()  # the server may have skipped clusters by hints
            self.is_in_ones_name = True
        return self._follow(ask, reply, elapsed_seconds)

    def on_error(self, error: KdirError, elapsed_seconds: float = 0.0) -> AnswerStatus:
        """Processes the failure of the current query (no reply, or an error status); returns the
        status for the server's health.
        """
        ask = self._require_query()
        self._note(ask, f"{error.message} ({error.reason})", elapsed_seconds)
        return self._classify(ask, error)

    def on_slow(self, elapsed_seconds: float = 0.0) -> AnswerStatus:
        """Postpones the current query, which was ``hurried``: its server is queried once more after
        the others of the hop, then with its full share of the remaining time.
        """
        ask = self._require_query()
        self._note(ask, f"no answer within {elapsed_seconds:.2f} s yet", elapsed_seconds)
        self._hop.slow.add(ask.endpoint)
        self._hop.queue.append(ask.endpoint)
        return AnswerStatus.FAILED

    def out_of_time(self) -> None:
        """Ends the resolution because the deadline has passed."""
        if self._end is None:
            message = f"{self.path}: the deadline passed before {self._hop.label} could be asked"
            self._cut_short(errors.DeadlineExceeded(message, path=self.path))

    # -- asking ----------------------------------------------------------------------------

    def _question(self) -> Query:
        hop = self._hop
        endpoint = hop.queue.pop(0)
        cluster_id, after = hop.again.get(endpoint, ("", None))
        self._calls += 1
        return Query(
            endpoint=endpoint,
            path=hop.path,
            way=hop.way,
            mount=hop.mount,
            cluster=hop.cluster,
            share=time_share(self._servers_left()),
            recursive=self._rules.recursive and hop.way is AskedBecause.START,
            after=after,
            after_cluster_id=cluster_id,
            # With TREE the sender of a hint is queried, not the cluster that the hint names.
            cluster_id=(self._trail.last.hop if hop.way is AskedBecause.TREE else hop).cluster_id,
            hurried=endpoint not in hop.slow and any(one not in hop.slow for one in hop.queue),
        )

    def _servers_left(self) -> int:
        """Returns the number of queries that the remaining time must suffice for."""
        others = len(self._hop.queue) + 1
        if self._hop.way in (AskedBecause.DIRECT, AskedBecause.CACHE):
            others += 1  # the next servers, if the hint fails
        links = enclosing_links(self._fork)
        others += sum(
            fork.left for fork in links if fork.gathers or fork.rewrite.mode is LinkMode.FIRST
        )
        return others

    def _require_query(self) -> Query:
        if self._current is None:
            raise RuntimeError("no question is open: call next_query() first")
        ask, self._current = self._current, None
        return ask

    def _note(
        self, ask: Query, verdict: str, elapsed_seconds: float, reply: Reply | None = None
    ) -> None:
        self._attempts.append(Attempt(ask, verdict, elapsed_seconds, reply))

    def _begin(self, path: Path, *, hops: int, hint: Referral | None = None) -> None:
        """Starts at the hint if it may be used, else at the start servers; the limits stay
        counted.
        """
        if hint is not None and hint.endpoints and hint.is_good_for(self._rules.wanted):
            self._read = self._read.joined(hint.read)
            self._trail.begin(hops, hint.read)
            self._enter(hint, AskedBecause.CACHE, path)
        else:
            self._trail.begin(hops)
            self._enter(None, AskedBecause.START, path)

    def _enter(self, referral: Referral | None, way: AskedBecause, path: Path) -> None:
        """Starts a hop at a referral's servers (None: start servers); fails if none is allowed."""
        endpoints = self._rules.start if referral is None else first_endpoints(referral.endpoints)
        self._hop = hop = Hop(way, path, referral)
        queue: list[str] = []
        for endpoint in endpoints:
            if referral is not None and (why := self._rules.refusal(endpoint)):
                refused = errors.BadReferral(f"{hop.label}: {why}", path=self.path)
                hop.troubles.append((ServerFailure.BAD, refused))
                continue
            hop.endpoints += (endpoint,)
            if (dead := self._dead.get(endpoint)) is not None:
                hop.troubles.append((ServerFailure.UNREACHABLE, dead))
            else:
                queue.append(endpoint)
        hop.queue = list(self._rules.choose(queue))
        if not hop.queue:
            self._exhausted()

    # -- old replies and errors ------------------------------------------------------------

    def _ask_again(self, ask: Query, sender: Sender, seen: Position) -> None:
        """Handles an old reply: its server is queried once more after the others of the hop, with
        the position to wait for. A second old reply counts as *not ready*.
        """
        hop = self._hop
        if ask.endpoint not in hop.again:
            hop.again[ask.endpoint] = (sender.cluster_id, seen)
            hop.queue.append(ask.endpoint)
            return
        behind = f"{ask.endpoint} is still behind revision {seen.revision}, seen before"
        self._reject(ServerFailure.NOT_READY, errors.NotReady(behind))

    def _classify(self, ask: Query, error: KdirError) -> AnswerStatus:
        """Applies an error to the hop or the resolution; returns the status for its server."""
        trouble, verdict = classify_error(error, self._hop.way, recursive=ask.recursive)
        if trouble is None:
            self._settle(error)
            return verdict
        if trouble is ServerFailure.UNREACHABLE and not ask.recursive:
            self._dead[ask.endpoint] = error
        self._reject(trouble, error)
        return verdict

    # -- following -------------------------------------------------------------------------

    def _follow(self, ask: Query, reply: Reply, elapsed_seconds: float) -> AnswerStatus:
        """Continues with an accepted reply; returns its status."""
        hop, sender = self._hop, reply.sender
        match reply.outcome:
            case Referral() as referral:
                return self._refer(ask, reply, referral, elapsed_seconds)
            case ErrorAnswer():
                raise AssertionError("an earlier reply should have ended the walk")
            case _ if hop.way is AskedBecause.TREE:
                # The hint's sender owns the path above the mount: only the hint leads further.
                self._note(ask, "no referral further up", elapsed_seconds, reply)
                self._reject(ServerFailure.LAME, errors.Lame(f"{ask.endpoint} has no route to it"))
                return AnswerStatus.ACCEPTED
            case Answer() | Absent() as answered:
                found = isinstance(answered, Answer)
                self._note(ask, "authoritative" if found else "absent", elapsed_seconds, reply)
                self._verify(hop)
                self._settle(self._by_owner(ask, sender, answered))
            case Rewrite() as rewrite:
                shown = ", ".join(map(str, rewrite.paths))
                self._note(ask, f"link {rewrite.link} → {shown}", elapsed_seconds, reply)
                self._verify(hop)
                self._rewrite(ask, rewrite, sender)
            case _:
                assert_never(reply.outcome)
        return AnswerStatus.ACCEPTED

    def _by_owner(
        self, ask: Query, sender: Sender, answered: Answer | Absent
    ) -> AnswerResult | AbsentResult:
        """Returns the result for an owner's answer; its lifetime is at most that of the replies
        that led to the owner.
        """
        owners, links = self._owner_first(ask.endpoint), self._links()
        own = answered.lifetime_seconds
        basis = basis_lifetime(self._remaining_seconds(), own, recursive=ask.recursive)
        kept = limit_by_referrals(own, basis)
        if isinstance(answered, Answer):
            return AnswerResult(answered, sender, owners, kept, links, basis)
        return AbsentResult(ask.path, answered, sender, owners, kept, links, basis)

    def _refer(
        self, ask: Query, reply: Reply, referral: Referral, elapsed_seconds: float
    ) -> AnswerStatus:
        """Checks a referral and continues at its servers."""
        hop, trail = self._hop, self._trail
        if refused := trail.refusal(ask, reply.sender, referral, hop):
            self._note(ask, refused[1].message, elapsed_seconds, reply)
            self._reject(*refused)
            return AnswerStatus.LAME
        self._note(ask, referral.shown, elapsed_seconds, reply)
        path = hop.path
        if hop.way is AskedBecause.TREE:  # sent by the last server of the trail
            path = trail.last.hop.path
        else:
            self._verify(hop)
            trail.add(ask.endpoint, reply.sender, hop)
        if trail.is_too_long:
            self._settle(trail.too_many_hops())
            return AnswerStatus.ACCEPTED
        trail.went_down = trail.went_down or referral.way is AskedBecause.DOWN
        self._go_to(referral, path)
        return AnswerStatus.ACCEPTED

    def _go_to(self, referral: Referral, path: Path) -> None:
        """Continues at the servers of a referral. Instead of a direct referral that may be older
        than the caller's token, the mounts above its target are queried.
        """
        mount = referral.mount
        if referral.way is not AskedBecause.DIRECT or mount is None:
            self._enter(referral, referral.way, path)
            return
        # The mounts between are not queried, and may lead elsewhere now.
        read = self._trail.read.incomplete()
        if mount.is_root or referral._replace(read=read).is_good_for(self._rules.wanted):
            self._trail.read = read
            self._read = self._read.incomplete()
            self._enter(referral, AskedBecause.DIRECT, path)
        else:
            self._by_tree(Hop(AskedBecause.DIRECT, path, referral), mount)

    def _rewrite(self, ask: Query, rewrite: Rewrite, sender: Sender) -> None:
        """Continues with the first target of a link that does not lead in a circle; fails if all
        do.
        """
        before = [ask.path, *(fork.asked for fork in enclosing_links(self._fork))]
        paths = tuple(path for path in rewrite.paths[:MAX_TARGETS] if path not in before)
        if not paths:
            chain = " → ".join(str(path) for path in [*reversed(before), *rewrite.paths[:1]])
            message = f"{self.path}: links lead in a circle: {chain}"
            self._settle(errors.ReferralLoop(message, chain=chain, path=self.path))
            return
        trail = self._trail
        trail.add(ask.endpoint, sender, self._hop)
        if trail.is_too_long:
            self._settle(trail.too_many_hops())
            return
        remaining = limit_by_referrals(rewrite.lifetime_seconds, self._remaining_seconds())
        here = Referral(
            AskedBecause.CACHE,
            sender.mount,
            self._owner_first(ask.endpoint),
            sender.cluster_id,
            sender.cluster,
            sender.epoch,
            lifetime_seconds=min(self._remaining_seconds(), UNLIMITED_SECONDS),
            read=trail.read,
        )
        left = rewrite._replace(paths=paths)
        stays = self._rules.for_writes
        gathers = self._rules.gathers_unions
        self._fork = LinkTargets(
            ask.path, left, trail.hops, remaining, self._fork, stays, here, gathers
        )
        self._begin(paths[0], hops=trail.hops, hint=self._fork.first(self._rules.hint))

    # -- failed hops -----------------------------------------------------------------------

    def _reject(self, trouble: ServerFailure, error: KdirError) -> None:
        self._hop.troubles.append((trouble, error))
        if not self._hop.queue:
            self._exhausted()

    def _exhausted(self) -> None:
        """Handles a hop whose servers all failed."""
        hop = self._hop
        match hop.way:
            case AskedBecause.CACHE:
                if hop.mount is not None:
                    self.bad_hints.append(hop.mount)
                self._begin(hop.path, hops=self._trail.hops)
            case AskedBecause.DIRECT if hop.mount is not None and hop.mount.segments:
                self._hint_failed = self._hint_failed or hop
                self._by_tree(hop, hop.mount)
            case AskedBecause.DOWN | AskedBecause.UP if hop.only_lame and not self._restarted:
                self._restarted = True
                self._begin(hop.path, hops=self._fork.hops if self._fork is not None else 0)
            case _:
                self._settle(self._verdict(hop))

    def _by_tree(self, hop: Hop, mount: Path) -> None:
        """Queries the sender of a direct referral for the parent path of the referral's mount.

        The contract has no option to exclude hints. But the owner of the parent path refers down to
        the mount, and the sender can refer to that owner, as for any path.
        """
        sender = self._trail.last.endpoint
        self._hop = Hop(
            AskedBecause.TREE,
            mount.parent,
            hop.referral,
            (sender,),
            [sender],
            troubles=hop.troubles,
        )

    def _verdict(self, hop: Hop) -> KdirError:
        error = hop.combined_error(self.path)
        if self._hint_failed is not None and isinstance(error, errors.Unavailable):
            # Neither the hinted owner nor a cluster above could be queried: an error with the
            # owner's name is more useful than one with the other cluster's.
            return self._hint_failed.combined_error(self.path)
        return error

    def _gave_up(self) -> KdirError:
        """Returns the error of a resolution that has made ``MAX_CALLS`` queries: its failure so
        far, if any, else TooManyHops.
        """
        error: KdirError | None = self._verdict(self._hop) if self._hop.troubles else None
        for fork in enclosing_links(self._fork):
            error = fork.trouble or error
        if error is None:
            error = errors.TooManyHops(str(self.path), path=self.path)
        error.message += f": gave up after {MAX_CALLS} calls"
        return error

    # -- ending ----------------------------------------------------------------------------

    def _settle(self, result: Result) -> None:
        """Handles the result of one path: continues with a link's next target, or ends."""
        fork = self._fork
        while fork is not None:
            outcome = fork.on_result(result)
            if outcome is None:
                if isinstance(result, KdirError):  # its clusters' positions are missing
                    self._read = self._read.incomplete()
                self._fork = fork
                self._begin(fork.target, hops=fork.hops, hint=fork.first(self._rules.hint))
                return
            result, fork = outcome, fork.outer
        self._finish(result)

    def _cut_short(self, error: KdirError) -> None:
        """Ends the resolution with the results so far, since no more queries are allowed."""
        result: Result = error
        for fork in enclosing_links(self._fork):
            result = fork.cut_short(result)
        self._finish(result)

    def _finish(self, result: Result) -> None:
        self._fork = None
        self._current = None
        match result:
            case KdirError():
                self._fail(result)
            case AnswerResult() | AbsentResult():
                self._end = result._replace(read=self._read)
            case _:
                self._end = result

    def _fail(self, error: KdirError) -> None:
        error.attempts = (*(str(attempt) for attempt in self._attempts), *error.attempts)
        self._current = None
        self._end = FailedResult(error)

    # -- referrals, lifetimes, links -------------------------------------------------------

    def _verify(self, hop: Hop) -> None:
        """Records a down or direct referral as confirmed by its target, so that it may be
        cached.
        """
        if hop.referral is not None and hop.way in (AskedBecause.DOWN, AskedBecause.DIRECT):
            referral = hop.referral._replace(read=self._trail.read)
            self._verified.append((referral, self._remaining_seconds()))

    def _remaining_seconds(self) -> int:
        """Returns the remaining seconds of the replies that this resolution depends on."""
        parts = [self._trail.remaining_seconds(self._hop)]
        if self._fork is not None:
            parts.append(self._fork.remaining_seconds)
        shortest = shortest_lifetime(parts)
        return UNLIMITED_SECONDS if shortest is None else shortest

    def _links(self) -> tuple[LinkStep, ...]:
        return tuple(fork.step for fork in enclosing_links(self._fork))[::-1]

    def _owner_first(self, endpoint: str) -> tuple[str, ...]:
        return (endpoint, *(other for other in self._hop.endpoints if other != endpoint))


def first_endpoints(endpoints: Sequence[str]) -> tuple[str, ...]:
    """Returns the first distinct endpoints, at most ``MAX_ENDPOINTS`` (R8)."""
    return tuple(dict.fromkeys(endpoints[: 4 * MAX_ENDPOINTS]))[:MAX_ENDPOINTS]
