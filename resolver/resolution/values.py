"""Queries, answers, referrals and options of a resolution, as plain values.

``resolver/resolution/state_machine.py`` decides by these; ``resolver/reply_decoding.py`` makes them
from the contract's messages, which are carried as ``payload`` and never read here. The values are
named tuples, not dataclasses: defining a dataclass costs most of a millisecond, which every
``kdir ls`` would pay, and creating an instance costs several times that of a tuple.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from resolver.errors import KdirError
from resolver.path import Path
from resolver.revision_token import NOTHING_READ, Position, ReadPositions, Token

__all__ = [
    "Absent",
    "AbsentResult",
    "Answer",
    "AnswerResult",
    "AnswerStatus",
    "AskedBecause",
    "Attempt",
    "Chooser",
    "End",
    "ErrorAnswer",
    "FailedResult",
    "LinkMode",
    "LinkStep",
    "Outcome",
    "Query",
    "Referral",
    "Reply",
    "ResolutionOptions",
    "Rewrite",
    "Sender",
    "United",
]


class AskedBecause(enum.Enum):
    """Reason why servers are queried: as start servers, or by which referral."""

    START = "start"
    CACHE = "cache"
    DOWN = "down"
    UP = "up"
    DIRECT = "direct"
    TREE = "tree"
    """A direct referral failed or may be old: its sender is queried for a path above the mount."""


class LinkMode(enum.Enum):
    """Rule for a link with several targets: the first that can be queried, or the union of all."""

    FIRST = "first"
    UNION = "union"


class AnswerStatus(enum.Enum):
    """Verdict on a reply; all but ``OLD`` change the server's health."""

    ACCEPTED = "accepted"
    OLD = "old"
    LAME = "lame"
    FAILED = "failed"


class Sender(NamedTuple):
    """Sender of an answer: its cluster and server, and the position that it answered from."""

    cluster_id: str
    mount: Path
    cluster: str = ""
    epoch: int = 0
    server: str = ""
    incarnation: str = ""
    revision: int = 0
    stale: bool = False
    age_seconds: float = 0.0
    sealed: bool = False
    """True if it is stale because its store takes no changes."""
    payload: object = None
    """The driver's own form; never read here."""
    behind: ReadPositions = NOTHING_READ
    """Positions by the sender's token: its own, and with ``recursive`` those of the clusters that
    it queried on the client's behalf.
    """

    @property
    def read(self) -> ReadPositions:
        """Positions that the sender's answer was read at."""
        if self.cluster_id in self.behind.positions:
            return self.behind  # the token has the sender's own position, too
        own = {self.cluster_id: Position(self.incarnation, self.revision)}
        return ReadPositions(own).joined(self.behind)

    def is_before(self, seen: Position | None) -> bool:
        """True if the sender's position is before ``seen``, within one incarnation."""
        return (
            seen is not None
            and self.incarnation == seen.incarnation
            and self.revision < seen.revision
        )


class Answer(NamedTuple):
    """Answer that the path exists; ``path`` is its canonical form."""

    path: Path
    lifetime_seconds: int = 0
    payload: object = None
    """The driver's own form; never read here."""


class Referral(NamedTuple):
    """Answer that names other servers to query: those of the cluster at ``mount``. ``mount`` None:
    those of the parent, whose mount is not known (only ``UP``).
    """

    way: AskedBecause
    mount: Path | None
    endpoints: tuple[str, ...]
    cluster_id: str = ""
    cluster: str = ""
    epoch: int = 0
    lifetime_seconds: int = 0
    age_seconds: int = 0
    read: ReadPositions = NOTHING_READ
    """For a cached referral: positions of the servers whose replies led to it."""

    @property
    def shown(self) -> str:
        """Direction and target, for people."""
        return f"{self.way.value} → {self.mount if self.mount is not None else 'the parent'}"

    def is_good_for(self, wanted: Mapping[str, Position]) -> bool:
        """True if the replies that led to the referral were read at the positions ``wanted``, or
        later. The target cluster does not count, since it is queried itself.
        """
        return self.read.reaches({one: wanted[one] for one in wanted if one != self.cluster_id})

    @property
    def remaining_seconds(self) -> int:
        """Lifetime that was left when the referral was received."""
        return max(0, self.lifetime_seconds - self.age_seconds)


class Rewrite(NamedTuple):
    """Answer that the path leads through a link: ``paths`` are to be tried instead, in order."""

    link: Path
    paths: tuple[Path, ...]
    mode: LinkMode = LinkMode.FIRST
    fall_back_on_absent: bool = False
    writes_follow: bool = False
    site_link: bool = False
    lifetime_seconds: int = 0


class Absent(NamedTuple):
    """Answer that there is no such path."""

    nearest_directory: Path | None = None
    lifetime_seconds: int = 0


class ErrorAnswer(NamedTuple):
    """Answer that is an error, within a call that succeeded."""

    error: KdirError


Outcome = Answer | Referral | Rewrite | Absent | ErrorAnswer


class Reply(NamedTuple):
    """Reply of one server to one query."""

    sender: Sender
    outcome: Outcome


class Query(NamedTuple):
    """Next query of a resolution."""

    endpoint: str
    path: Path
    way: AskedBecause
    mount: Path | None
    cluster: str
    share: float
    """Part of the remaining time that this query may take, 0 < share <= 1."""
    recursive: bool = False
    after: Position | None = None
    """Position that the server must reach first, since its last reply was older; None = any."""
    after_cluster_id: str = ""
    hurried: bool = False
    """True if the hop has other servers to query: a server that does not answer quickly is
    postponed (``ResolutionStateMachine.on_slow``).
    """
    cluster_id: str = ""
    """Cluster id of the server, by the referral; empty if no referral named it."""


class LinkStep(NamedTuple):
    """Link on the way to the answer."""

    link: Path
    target: Path
    mode: LinkMode
    fallback: bool
    """True if the link is ``first`` and earlier targets failed, or do not have the path."""
    writes_follow: bool


class Attempt(NamedTuple):
    """One query, with its result."""

    ask: Query
    verdict: str
    elapsed_seconds: float
    reply: Reply | None = None

    def __str__(self) -> str:
        ask, server = self.ask, self.reply.sender.server if self.reply is not None else ""
        where = f"{ask.way.value} → {ask.mount}" if ask.mount is not None else ask.way.value
        name = f"{server} at {ask.endpoint}" if server else ask.endpoint
        return f"{name} ({where}): {self.verdict}, {self.elapsed_seconds * 1000:.1f}ms"


class AnswerResult(NamedTuple):
    """Result that the owner has the path."""

    answer: Answer
    sender: Sender
    endpoints: tuple[str, ...]
    """Endpoints of the owner, beginning with the one that answered."""
    lifetime_seconds: int
    """Lifetime of the answer: at most that of each referral and link on the way."""
    links: tuple[LinkStep, ...] = ()
    basis_ttl_seconds: int = 0
    """Remaining lifetime of the replies that led to the owner."""
    read: ReadPositions = NOTHING_READ
    """Positions of every cluster on the way, including the owner's."""


class AbsentResult(NamedTuple):
    """Result that the owner has no such path."""

    path: Path
    """The absent path, with links replaced by their targets."""
    absent: Absent
    sender: Sender
    endpoints: tuple[str, ...]
    lifetime_seconds: int
    links: tuple[LinkStep, ...] = ()
    basis_ttl_seconds: int = 0
    read: ReadPositions = NOTHING_READ


class United(NamedTuple):
    """Results of all targets of a union link (``ResolutionOptions.gathers_unions``)."""

    parts: tuple[AnswerResult, ...]
    """In the order of the targets; at least one."""
    missing: tuple[tuple[Path, KdirError], ...]
    """Targets that ended with an error."""
    trouble: KdirError | None = None
    """Error of a missing target that comes before all ``parts``: a resolution that wants one answer
    ends with it.
    """


class FailedResult(NamedTuple):
    """Result of a failed resolution; the error has every attempt."""

    error: KdirError


End = AnswerResult | AbsentResult | United | FailedResult


class Chooser(Protocol):
    """Order in which equal servers are queried."""

    def __call__(self, endpoints: Sequence[str], /) -> Sequence[str]:
        """Returns the same endpoints, best first."""


class ResolutionOptions(NamedTuple):
    """Options of a resolution: what it may do, and which servers it may query."""

    start: tuple[str, ...]
    """Start servers, all equal."""
    hint: Callable[[Path], Referral | None] = lambda _: None
    """Returns a cached referral to a mount above the path."""
    refusal: Callable[[str], str] = lambda _: ""
    """Returns why an endpoint of a referral may not be queried; empty = it may."""
    choose: Chooser = tuple
    recursive: bool = False
    """Let the start servers resolve on the client's behalf."""
    for_writes: bool = False
    """Stay with a link's target that cannot be queried, unless it has ``writes = follow``."""
    gathers_unions: bool = False
    """Query all targets of a union link, and end with ``United``; otherwise the first target that
    has the path counts.
    """
    wanted: Mapping[str, Position] = MappingProxyType({})
    """Positions of the caller's token: a hint that may depend on older ones is not followed."""

    def without_hints(self) -> ResolutionOptions:
        """Returns the options without hints."""
        return self._replace(hint=lambda _: None)

    def for_token(self, token: str) -> ResolutionOptions:
        """Returns the options for a caller that wants to read at least this token.

        Raises:
            InvalidToken: not a token of a directory server.
        """
        return self._replace(wanted=Token.parse(token).positions) if token else self

    def by_referrals(self) -> ResolutionOptions:
        """Returns the options for a caller that then calls the owner: a recursive server returns
        the owner's answer, but neither its address nor the links on the way.
        """
        return self._replace(recursive=False)

    def gathering_unions(self) -> ResolutionOptions:
        """Returns the options of ``by_referrals``, with all targets of union links queried."""
        return self._replace(recursive=False, gathers_unions=True)
