"""Queries, answers, referrals and options of a resolution, as plain values.

``resolver/reply_decoding.py`` makes them from messages of the contract, which are in ``payload``
and never read here; ``resolver/resolution/state_machine.py`` uses them. They are named tuples, not
dataclasses: to define a dataclass takes almost a millisecond in every ``kdir ls``, and to create an
instance several times as long as a tuple.
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
    """Reason why servers are queried: the kind of referral that named them, or ``START``."""

    START = "start"
    CACHE = "cache"
    DOWN = "down"
    UP = "up"
    DIRECT = "direct"
    TREE = "tree"
    """A direct referral failed or may be old, so its sender is queried for a path above the
    mount.
    """


class LinkMode(enum.Enum):
    """Rule for a link with several targets: the first one that can be queried, or the union of
    all.
    """

    FIRST = "first"
    UNION = "union"


class AnswerStatus(enum.Enum):
    """Status of a reply; all but ``OLD`` change the server's health."""

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
    """True if the answer is stale because the sender's store is sealed and takes no changes."""
    payload: object = None
    """Message of the contract, for the driver; never read here."""
    behind: ReadPositions = NOTHING_READ
    """Positions in the sender's token: its own, and with ``recursive`` those of the clusters that
    it queried for the client.
    """

    @property
    def read(self) -> ReadPositions:
        """Positions that the sender's answer was read at."""
        if self.cluster_id in self.behind.positions:
            return self.behind  # the token has the sender's own position, too
        own = {self.cluster_id: Position(self.incarnation, self.revision)}
        return ReadPositions(own).joined(self.behind)


class Answer(NamedTuple):
    """Answer that the path exists; ``path`` is its canonical form."""

    path: Path
    lifetime_seconds: int = 0
    payload: object = None
    """Message of the contract, for the driver; never read here."""


class Referral(NamedTuple):
    """Answer that names other servers to query: those of the cluster at ``mount``. None (only with
    ``UP``): those of the parent, whose mount is not known.
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
    """Positions of the servers whose replies led to the referral; only in a cached one."""

    @property
    def shown(self) -> str:
        """Direction and target, for people."""
        return f"{self.way.value} → {self.mount if self.mount is not None else 'the parent'}"

    def is_good_for(self, wanted: Mapping[str, Position]) -> bool:
        """True if the replies that led to the referral are at least as new as ``wanted``. The
        position of the target cluster is not compared, since that is queried itself.
        """
        return self.read.reaches({one: wanted[one] for one in wanted if one != self.cluster_id})

    @property
    def remaining_seconds(self) -> int:
        """Seconds of the lifetime that were left when the referral was received."""
        return max(0, self.lifetime_seconds - self.age_seconds)


class Rewrite(NamedTuple):
    """Answer that the path goes through a link: ``paths`` are resolved instead, in order."""

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
    """One query of a resolution."""

    endpoint: str
    path: Path
    way: AskedBecause
    mount: Path | None
    cluster: str
    share: float
    """Fraction of the remaining time that this query may take, 0 < share <= 1."""
    recursive: bool = False
    after: Position | None = None
    """Position that the server must reach first, since its last reply was older; None = any."""
    after_cluster_id: str = ""
    hurried: bool = False
    """True if the hop has other servers to query: a server that does not answer quickly is
    postponed (``ResolutionStateMachine.on_slow``).
    """
    cluster_id: str = ""
    """Cluster id of the server, from the referral; empty = not known."""


class LinkStep(NamedTuple):
    """Link that was followed, and its target that led to the answer."""

    link: Path
    target: Path
    mode: LinkMode
    fallback: bool
    """True if the link's mode is ``first`` and earlier targets failed or do not have the path."""
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
    """Lifetime of the answer: at most that of each referral and link that was followed."""
    links: tuple[LinkStep, ...] = ()
    basis_ttl_seconds: int = 0
    """Remaining lifetime of the replies that led to the owner."""
    read: ReadPositions = NOTHING_READ
    """Positions of all queried clusters, including the owner's."""


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
    """Results in the order of the targets; at least one."""
    missing: tuple[tuple[Path, KdirError], ...]
    """Targets that failed, with their errors."""
    trouble: KdirError | None = None
    """Error of a missing target that comes before all ``parts``: without ``gathers_unions`` it is
    the result.
    """


class FailedResult(NamedTuple):
    """Result of a failed resolution; the error has every attempt."""

    error: KdirError


End = AnswerResult | AbsentResult | United | FailedResult


class Chooser(Protocol):
    """Order in which equal servers are queried."""

    def __call__(self, endpoints: Sequence[str], /) -> Sequence[str]:
        """Returns the same endpoints, in the order in which to query them."""


class ResolutionOptions(NamedTuple):
    """Options of a resolution, with the servers that it starts at and may query."""

    start: tuple[str, ...]
    """Start servers, all equal."""
    hint: Callable[[Path], Referral | None] = lambda _: None
    """Returns a cached referral to a mount above the path."""
    refusal: Callable[[str], str] = lambda _: ""
    """Returns why an endpoint of a referral may not be queried; empty = it may."""
    choose: Chooser = tuple
    recursive: bool = False
    """Ask the start servers to resolve for the client."""
    for_writes: bool = False
    """Do not go on to a link's next target if one cannot be queried, unless the link has ``writes =
    follow``.
    """
    gathers_unions: bool = False
    """Query all targets of a union link, and end with ``United``; otherwise the first target that
    has the path counts.
    """
    wanted: Mapping[str, Position] = MappingProxyType({})
    """Positions of the caller's token: a hint that may depend on older positions is not
    followed.
    """

    def without_hints(self) -> ResolutionOptions:
        """Returns the options without hints."""
        return self._replace(hint=lambda _: None)

    def for_token(self, token: str) -> ResolutionOptions:
        """Returns the options with ``wanted`` from a token.

        Raises:
            InvalidToken: the text is not a token of a directory server.
        """
        return self._replace(wanted=Token.parse(token).positions) if token else self

    def by_referrals(self) -> ResolutionOptions:
        """Returns the options without ``recursive``, for a caller that then calls the owner: a
        recursive answer has neither the owner's endpoints nor the links that were followed.
        """
        return self._replace(recursive=False)

    def gathering_unions(self) -> ResolutionOptions:
        """Returns the options of ``by_referrals``, with all targets of union links queried."""
        return self._replace(recursive=False, gathers_unions=True)
