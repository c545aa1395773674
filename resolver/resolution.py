"""The walk from a path to its owner as a state machine; refuses to do I/O, tell time or know gRPC.

It says what to ask next (``next`` gives an ``Ask`` or the end), and is told what came back
(``heard``) or what went wrong (``failed``). Whoever drives it owns sockets, clocks and caches
(``resolver/walker.py``); tests drive it with plain values. The habit is dnspython's
``_Resolution``.

What is believed of whom (DESIGN §4, RELIABILITY §2) is in ``resolver/hop.py``: referrals must lead
nearer, answers must come from who was referred to and be about their own mount, and nothing older
than what was seen before is taken from one life of a store. A hint (direct, or from a cache) that
comes to nothing is tried again by the tree; a child that proves lame restarts the walk once, since
its mount may have moved under way. Links are worked through by ``resolver/fork.py``.

Longer than most files: the states of one walk do not come apart further without sharing them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, assert_never

from resolver import errors
from resolver.errors import KdirError
from resolver.fork import Fork, Result
from resolver.hop import Hop, Stop, Trouble, crooked, few, foreign, is_above
from resolver.outcome import (
    Absent,
    Answer,
    Ask,
    Attempt,
    End,
    Failed,
    Found,
    LinkMode,
    LinkStep,
    NotThere,
    Referral,
    Reply,
    Rewrite,
    Said,
    Sender,
    Split,
    Verdict,
    Way,
)
from resolver.path import Path
from resolver.token import Position

__all__ = ["MAX_CALLS", "MAX_HOPS", "MAX_TARGETS", "Chooser", "Resolution", "Rules"]

MAX_HOPS: Final = 16
"""Referrals and rewrites on one way from the start to an answer."""
MAX_CALLS: Final = 50
"""Questions of one resolve, whatever they come to."""
MAX_TARGETS: Final = 20
"""Targets of one link that are looked at."""
_MOST_SHARES: Final = 4
"""Into how many parts the time left is split at most, however many servers could be asked."""
_ALWAYS: Final = 2**31


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


class Resolution:
    """One resolve. Not thread-safe: one driver drives it."""

    __slots__ = (
        "_attempts",
        "_calls",
        "_chain",
        "_current",
        "_dead",
        "_end",
        "_fork",
        "_hint_failed",
        "_hop",
        "_hops",
        "_restarted",
        "_rules",
        "_verified",
        "_went_down",
        "bad_hints",
        "path",
    )

    def __init__(self, path: Path, rules: Rules) -> None:
        self.path = path
        self.bad_hints: list[Path] = []
        """Mounts whose referral, known beforehand, turned out wrong."""
        self._rules = rules
        self._attempts: list[Attempt] = []
        self._calls = 0
        self._dead: dict[str, KdirError] = {}
        self._current: Ask | None = None
        self._end: End | None = None
        self._fork: Fork | None = None
        self._hint_failed: Hop | None = None
        self._restarted = False
        self._verified: list[tuple[Referral, int]] = []
        # Of the walk in progress; a link's next target and a restart begin another.
        self._chain: list[Stop] = []
        self._hop = Hop(Way.START, path)
        self._hops = 0
        self._went_down = False
        self._begin(path, hops=0, hint=rules.hint(path))

    # -- what the driver calls -------------------------------------------------------------

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Every question so far, in order."""
        return tuple(self._attempts)

    @property
    def learned(self) -> tuple[tuple[Referral, int], ...]:
        """Referrals whose target answered as it should, each with the seconds it may be kept.

        Empty after a walk that failed by the tree's own fault: of a liar nothing is kept (R1).
        """
        if isinstance(self._end, Failed) and isinstance(self._end.error, errors.WalkFailed):
            return ()
        return tuple(self._verified)

    def next(self) -> Ask | End:
        """The next question, or how it ended."""
        while self._end is None and self._current is None:
            if self._calls >= MAX_CALLS:
                self._fail(self._gave_up())
            else:
                self._current = self._question()
        return self._end or self._current or self._never()

    def heard(
        self, reply: Reply, floor: Mapping[str, Position], elapsed_seconds: float = 0.0
    ) -> Verdict:
        """Take a reply to the current question.

        ``floor`` holds what had been seen of each cluster *when the question was asked*: an answer
        that was overtaken on its way is not old (R17).
        """
        ask = self._take()
        sender = reply.sender
        if isinstance(reply.outcome, Said):
            error = reply.outcome.error
            self._note(ask, f"{error.message} ({error.reason})", elapsed_seconds, reply)
            return self._classify(ask, error)
        if why := self._distrust(ask, reply):
            self._note(ask, f"lame: {why}", elapsed_seconds, reply)
            self._reject(Trouble.LAME, errors.Lame(f"{ask.endpoint} {why}"))
            return Verdict.LAME
        seen = floor.get(sender.cluster_id)
        if seen is not None and _is_older(sender, seen):
            was = f"revision {sender.revision} is older than {seen.revision}, seen before"
            self._note(ask, was, elapsed_seconds, reply)
            self._ask_again(ask, sender, seen)
            return Verdict.OLD
        return self._follow(ask, reply, elapsed_seconds)

    def failed(self, error: KdirError, elapsed_seconds: float = 0.0) -> Verdict:
        """The current question got no reply, or an error status."""
        ask = self._take()
        self._note(ask, f"{error.message} ({error.reason})", elapsed_seconds)
        return self._classify(ask, error)

    def postponed(self, elapsed_seconds: float = 0.0) -> Verdict:
        """The asked server, ``hurried``, takes its time: the others of the hop first, then it
        again, once, with all the time that is then left to it.
        """
        ask = self._take()
        self._note(ask, f"no answer within {elapsed_seconds:.2f} s yet", elapsed_seconds)
        self._hop.slow.add(ask.endpoint)
        self._hop.queue.append(ask.endpoint)
        return Verdict.FAILED

    def out_of_time(self) -> None:
        """The deadline of the whole is over."""
        if self._end is None:
            named = self._hop.named
            self._fail(
                errors.DeadlineExceeded(
                    f"{self.path}: the time was over before {named} could be asked",
                    path=self.path,
                )
            )

    # -- asking ----------------------------------------------------------------------------

    def _question(self) -> Ask:
        hop = self._hop
        endpoint = hop.queue.pop(0)
        cluster_id, after = hop.again.get(endpoint, ("", None))
        self._calls += 1
        return Ask(
            endpoint=endpoint,
            path=hop.path,
            way=hop.way,
            mount=hop.mount,
            cluster=hop.cluster,
            share=1 / self._shares(),
            recursive=self._rules.recursive and hop.way is Way.START,
            after=after,
            after_cluster_id=cluster_id,
            hurried=endpoint not in hop.slow and any(one not in hop.slow for one in hop.queue),
        )

    def _shares(self) -> int:
        """Among how many that could still be asked the time left is split."""
        others = len(self._hop.queue) + 1
        if self._hop.way in (Way.DIRECT, Way.CACHE):
            others += 1  # the tree
        fork = self._fork
        while fork is not None:
            if fork.rewrite.mode is LinkMode.FIRST:
                others += fork.left
            fork = fork.outer
        return min(others, _MOST_SHARES)

    def _take(self) -> Ask:
        if self._current is None:
            raise RuntimeError("no question is open: call next() first")
        ask, self._current = self._current, None
        return ask

    def _note(
        self, ask: Ask, verdict: str, elapsed_seconds: float, reply: Reply | None = None
    ) -> None:
        self._attempts.append(Attempt(ask, verdict, elapsed_seconds, reply))

    def _begin(self, path: Path, *, hops: int, hint: Referral | None = None) -> None:
        """Start a walk to ``path`` on the budgets of the whole."""
        self._chain.clear()
        self._went_down = False
        self._hops = hops
        if hint is not None and hint.endpoints:
            self._enter(hint, Way.CACHE, path)
        else:
            self._enter(None, Way.START, path)

    def _enter(self, referral: Referral | None, way: Way, path: Path) -> None:
        """Make these servers the ones to ask; where none can be, the hop has failed at once."""
        endpoints = self._rules.start if referral is None else few(referral.endpoints)
        self._hop = hop = Hop(way, path, referral, endpoints)
        allowed: list[str] = []
        for endpoint in endpoints:
            if (dead := self._dead.get(endpoint)) is not None:
                hop.troubles.append((Trouble.UNREACHABLE, dead))
            elif referral is not None and (why := self._rules.refusal(endpoint)):
                refused = errors.BadReferral(f"{hop.named}: {why}", path=self.path)
                hop.troubles.append((Trouble.BAD, refused))
            else:
                allowed.append(endpoint)
        hop.queue = list(self._rules.choose(allowed))
        if not hop.queue:
            self._exhausted()

    # -- judging ---------------------------------------------------------------------------

    def _distrust(self, ask: Ask, reply: Reply) -> str:
        """Why this reply does not count, whatever it says; empty = it does."""
        hop, sender = self._hop, reply.sender
        if not ask.recursive:  # there, whoever was asked in our name answers
            if hop.way is Way.TREE:
                if sender.cluster_id != self._chain[-1].sender.cluster_id:
                    return "answers for another cluster than before"
            elif why := hop.mismatch(sender):
                return why
            elif hop.way is Way.UP and not is_above(sender.mount, self._chain[-1].sender.mount):
                return f"is mounted at {sender.mount}, not above {self._chain[-1].sender.mount}"
        # The view of one's site is the word of the servers one begins with and of those above.
        site_links = hop.way in (Way.START, Way.UP)
        return foreign(ask, reply, site_links=site_links)

    def _ask_again(self, ask: Ask, sender: Sender, seen: Position) -> None:
        """After an old answer: the other servers, then this one, told what to wait for; once."""
        hop = self._hop
        if ask.endpoint not in hop.again:
            hop.again[ask.endpoint] = (sender.cluster_id, seen)
            hop.queue.append(ask.endpoint)
            return
        behind = f"{ask.endpoint} is still behind revision {seen.revision}, seen before"
        self._reject(Trouble.NOT_READY, errors.NotReady(behind))

    def _classify(self, ask: Ask, error: KdirError) -> Verdict:
        """What an error says of its server, and of the hop."""
        match error:
            case errors.NotReady() | errors.StoreUnavailable() | errors.TokenFromFuture():
                self._reject(Trouble.NOT_READY, error)
                return Verdict.FAILED
            case errors.NoRoute() if self._hop.way in (Way.START, Way.UP, Way.TREE):
                self._reject(Trouble.NO_ROUTE, error)
                return Verdict.ACCEPTED
            case errors.Lame() if ask.recursive:
                self._reject(Trouble.UNREACHABLE, error)
                return Verdict.ACCEPTED
            case (
                errors.NotAuthoritative()
                | errors.Unmounted()
                | errors.Unimplemented()
                | errors.NoRoute()
                | errors.Lame()
                # Only an outcome, which says who gives it, may say absent.
                | errors.Absent()
                | errors.InvalidNamespace()
            ):
                self._reject(Trouble.LAME, error)
                return Verdict.LAME
            case errors.Unavailable() | errors.DeadlineExceeded() | errors.Cancelled():
                if not ask.recursive:
                    self._dead[ask.endpoint] = error
                self._reject(Trouble.UNREACHABLE, error)
                return Verdict.FAILED
            case errors.Internal() | errors.LimitExceeded():
                self._reject(Trouble.OTHER, error)
                return Verdict.FAILED
            case _:  # denied, invalid, expired: another server would say the same
                self._settle(error)
                return Verdict.ACCEPTED

    # -- following -------------------------------------------------------------------------

    def _follow(self, ask: Ask, reply: Reply, elapsed_seconds: float) -> Verdict:
        """Go where a reply leads that counts."""
        hop, sender = self._hop, reply.sender
        match reply.outcome:
            case Referral() as referral:
                return self._refer(ask, reply, referral, elapsed_seconds)
            case Said():
                raise AssertionError("heard() has seen to it")
            case _ if hop.way is Way.TREE:
                # It owns what lies above its own hint, and yet gave a hint: nothing to go by.
                self._note(ask, "no referral further up", elapsed_seconds, reply)
                self._reject(Trouble.LAME, errors.Lame(f"{ask.endpoint} knows no way by the tree"))
                return Verdict.ACCEPTED
            case Answer(lifetime_seconds=lifetime) as answer:
                self._note(ask, "authoritative", elapsed_seconds, reply)
                self._verify(hop)
                owners = self._owner_first(ask.endpoint)
                grounds = self._remaining_seconds()
                kept = min(lifetime, grounds)
                self._settle(Found(answer, sender, owners, kept, self._links(), grounds))
            case Absent(lifetime_seconds=lifetime) as absent:
                self._note(ask, "absent", elapsed_seconds, reply)
                self._verify(hop)
                owners = self._owner_first(ask.endpoint)
                grounds = self._remaining_seconds()
                kept = min(lifetime, grounds)
                links = self._links()
                self._settle(NotThere(ask.path, absent, sender, owners, kept, links, grounds))
            case Rewrite() as rewrite:
                shown = ", ".join(map(str, rewrite.paths))
                self._note(ask, f"link {rewrite.link} → {shown}", elapsed_seconds, reply)
                self._verify(hop)
                self._rewrite(ask, rewrite, sender)
            case _:
                assert_never(reply.outcome)
        return Verdict.ACCEPTED

    def _refer(self, ask: Ask, reply: Reply, referral: Referral, elapsed_seconds: float) -> Verdict:
        """Go on at the mount that a referral names."""
        if refused := self._refused(ask, reply.sender, referral):
            self._note(ask, refused[1].message, elapsed_seconds, reply)
            self._reject(*refused)
            return Verdict.LAME
        self._note(ask, referral.shown, elapsed_seconds, reply)
        path = self._hop.path
        if self._hop.way is Way.TREE:  # by the same stop as before, elsewhere
            path = self._chain[-1].hop.path
        else:
            self._verify(self._hop)
            self._chain.append(Stop(ask.endpoint, reply.sender, self._hop))
            self._hops += 1
        if self._hops > MAX_HOPS:
            self._settle(self._too_many())
            return Verdict.ACCEPTED
        self._went_down = self._went_down or referral.way is Way.DOWN
        self._enter(referral, referral.way, path)
        return Verdict.ACCEPTED

    def _refused(
        self, ask: Ask, sender: Sender, referral: Referral
    ) -> tuple[Trouble, KdirError] | None:
        """Why a referral is not followed."""
        why = crooked(ask.path, sender.mount, referral, went_down=self._went_down)
        if not why and self._hop.way is Way.TREE and referral.way is Way.DOWN:
            why = "down, after it was hinted elsewhere"
        if referral.endpoints:
            asked = {stop.endpoint for stop in self._chain}
            asked.add(ask.endpoint)
            if asked.issuperset(few(referral.endpoints)):
                chain = self._shown_chain(ask, referral)
                message = f"{self.path}: referrals lead in a circle: {chain}"
                return Trouble.LOOP, errors.ReferralLoop(message, chain=chain, path=self.path)
        if not why:
            return None
        message = f"{ask.endpoint}, mounted at {sender.mount}, refers {ask.path} "
        message += f"{referral.shown}: {why}"
        chain = self._shown_chain(ask, referral)
        return Trouble.BAD, errors.BadReferral(message, chain=chain, path=self.path)

    def _rewrite(self, ask: Ask, rewrite: Rewrite, sender: Sender) -> None:
        """Go on with a link's first target; a circle of links ends here."""
        before = [ask.path]
        fork = self._fork
        while fork is not None:
            before.append(fork.asked)
            fork = fork.outer
        paths = tuple(path for path in rewrite.paths[:MAX_TARGETS] if path not in before)
        if not paths:
            chain = " → ".join(str(path) for path in [*reversed(before), *rewrite.paths[:1]])
            message = f"{self.path}: links lead in a circle: {chain}"
            self._settle(errors.ReferralLoop(message, chain=chain, path=self.path))
            return
        self._chain.append(Stop(ask.endpoint, sender, self._hop))
        hops = self._hops + 1
        if hops > MAX_HOPS:
            self._settle(self._too_many())
            return
        remaining = min(rewrite.lifetime_seconds, self._remaining_seconds())
        if rewrite.mode is LinkMode.UNION and self._rules.split_unions:
            self._settle(Split(rewrite, sender, remaining, self._links()))
            return
        here = Referral(
            Way.CACHE,
            sender.mount,
            self._owner_first(ask.endpoint),
            sender.cluster_id,
            sender.cluster,
            sender.epoch,
            lifetime_seconds=min(self._remaining_seconds(), _ALWAYS),
        )
        rewrite = rewrite._replace(paths=paths)
        self._fork = Fork(
            ask.path, rewrite, hops, remaining, self._fork, self._rules.for_writes, here
        )
        self._begin(paths[0], hops=hops, hint=self._hint_at(self._fork))

    def _hint_at(self, fork: Fork) -> Referral | None:
        """Where to begin with a link's target: what is known, or whoever gave the link."""
        known = self._rules.hint(fork.target)
        here = fork.here
        if here.mount is None or not here.mount.is_prefix_of(fork.target):
            return known
        if known is None or known.mount is None or len(known.mount) <= len(here.mount):
            return here
        return known

    # -- when servers are of no use --------------------------------------------------------

    def _reject(self, trouble: Trouble, error: KdirError) -> None:
        self._hop.troubles.append((trouble, error))
        if not self._hop.queue:
            self._exhausted()

    def _exhausted(self) -> None:
        """No server is left at this hop."""
        hop = self._hop
        match hop.way:
            case Way.CACHE:
                if hop.mount is not None:
                    self.bad_hints.append(hop.mount)
                self._begin(hop.path, hops=self._hops)
            case Way.DIRECT if hop.mount is not None and hop.mount.segments:
                self._by_tree(hop, hop.mount)
            case Way.DOWN | Way.UP if hop.only_lame and not self._restarted:
                self._restarted = True
                self._begin(hop.path, hops=self._fork.hops if self._fork is not None else 0)
            case _:
                self._settle(self._verdict(hop))

    def _by_tree(self, hop: Hop, mount: Path) -> None:
        """Ask the sender of a failed hint for what lies above the hint's mount, and go on there.

        The contract has no "not by hints": but whoever owns what lies above the mount refers down
        by its own word, and the sender knows a way to that owner as it knows one to any path.
        """
        self._hint_failed = self._hint_failed or hop
        sender = self._chain[-1].endpoint
        self._hop = Hop(
            Way.TREE, mount.parent, hop.referral, (sender,), [sender], troubles=hop.troubles
        )

    def _verdict(self, hop: Hop) -> KdirError:
        error = hop.verdict(self.path)
        if self._hint_failed is not None and isinstance(error, errors.Unavailable):
            # The owner that was hinted at could not be asked, nor could the tree: the owner's
            # name says more than that of some cluster far above.
            return self._hint_failed.verdict(self.path)
        return error

    def _gave_up(self) -> KdirError:
        """All calls are spent: what came of them so far, if anything did."""
        error: KdirError | None = self._verdict(self._hop) if self._hop.troubles else None
        fork = self._fork
        while fork is not None:
            error, fork = fork.trouble or error, fork.outer
        if error is None:
            error = errors.TooManyHops(str(self.path), path=self.path)
        error.message += f": gave up after {MAX_CALLS} calls"
        return error

    def _too_many(self) -> KdirError:
        chain = " → ".join(self._stops())
        message = f"{self.path}: more than {MAX_HOPS} hops: {chain}"
        return errors.TooManyHops(message, chain=chain, path=self.path)

    # -- ending ----------------------------------------------------------------------------

    def _settle(self, result: Result) -> None:
        """One walk has ended: go on with a link's next target, or end the whole."""
        fork = self._fork
        while fork is not None:
            outcome = fork.weigh(result)
            if outcome is None:
                self._fork = fork
                self._begin(fork.target, hops=fork.hops, hint=self._hint_at(fork))
                return
            result, fork = outcome, fork.outer
        self._fork = None
        if isinstance(result, KdirError):
            self._fail(result)
        else:
            self._end = result

    def _fail(self, error: KdirError) -> None:
        error.attempts = (*(str(attempt) for attempt in self._attempts), *error.attempts)
        self._current = None
        self._end = Failed(error)

    def _never(self) -> End:
        raise AssertionError("next() leaves its loop with one of the two")

    # -- small things ----------------------------------------------------------------------

    def _verify(self, hop: Hop) -> None:
        """The target of a referral answered as it should: the referral may be kept."""
        if hop.referral is not None and hop.way in (Way.DOWN, Way.DIRECT):
            self._verified.append((hop.referral, self._remaining_seconds()))

    def _remaining_seconds(self) -> int:
        """For how long the words that this walk stands on are good."""
        parts = [stop.hop.remaining_seconds for stop in self._chain]
        parts.append(self._hop.remaining_seconds)
        if self._fork is not None:
            parts.append(self._fork.remaining_seconds)
        return min((part for part in parts if part is not None), default=_ALWAYS)

    def _links(self) -> tuple[LinkStep, ...]:
        steps: list[LinkStep] = []
        fork = self._fork
        while fork is not None:
            steps.append(fork.step)
            fork = fork.outer
        return tuple(reversed(steps))

    def _owner_first(self, endpoint: str) -> tuple[str, ...]:
        return (endpoint, *(other for other in self._hop.endpoints if other != endpoint))

    def _shown_chain(self, ask: Ask, referral: Referral) -> str:
        return " → ".join([*self._stops(), ask.endpoint, referral.shown])

    def _stops(self) -> list[str]:
        return [f"{stop.endpoint} ({stop.sender.mount})" for stop in self._chain]


def _is_older(sender: Sender, seen: Position) -> bool:
    return sender.incarnation == seen.incarnation and sender.revision < seen.revision
