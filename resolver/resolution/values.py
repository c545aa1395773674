"""Questions, answers, referrals and options of a walk, as plain values.

``resolver/resolution/state_machine.py`` reasons about these; ``resolver/reply_decoding.py`` makes
them of the contract's messages, which ride along as ``payload`` and are never looked into here.

These are named tuples, not dataclasses: making a dataclass costs most of a millisecond, and what
``kdir ls`` imports is felt on every call; making one of its values costs several times as much too.
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
    """Reason why a query goes to the servers to which it goes."""

    START = "start"
    CACHE = "cache"
    DOWN = "down"
    UP = "up"
    DIRECT = "direct"
    TREE = "tree"
    """A direct hint failed: its sender is asked for a mount further up."""


class LinkMode(enum.Enum):
    """In which order a link's targets are asked."""

    FIRST = "first"
    UNION = "union"


class AnswerStatus(enum.Enum):
    """Verdict on a reply; the driver records it in the server's health."""

    ACCEPTED = "accepted"
    OLD = "old"
    LAME = "lame"
    FAILED = "failed"


class Sender(NamedTuple):
    """Sender of an answer: its cluster, mount and revision, and for how long its answer holds."""

    cluster_id: str
    mount: Path
    cluster: str = ""
    epoch: int = 0
    server: str = ""
    incarnation: str = ""
    revision: int = 0
    stale: bool = False
    age_seconds: float = 0.0
    payload: object = None
    """The driver's own form of it; never looked into."""
    behind: ReadPositions = NOTHING_READ
    """Of the clusters that it read before it answered in one's name (``recursive``)."""

    @property
    def read(self) -> ReadPositions:
        """What its answer was read at."""
        if self.cluster_id in self.behind.positions:
            return self.behind  # as its token says
        own = {self.cluster_id: Position(self.incarnation, self.revision)}
        return ReadPositions(own).joined(self.behind)

    def is_before(self, seen: Position | None) -> bool:
        """True if it answered from before a position of the same incarnation of its store."""
        return (
            seen is not None
            and self.incarnation == seen.incarnation
            and self.revision < seen.revision
        )


class Answer(NamedTuple):
    """Answer that the path exists here. ``path`` is canonical."""

    path: Path
    lifetime_seconds: int = 0
    payload: object = None
    """The driver's own form of it; never looked into."""


class Referral(NamedTuple):
    """Answer that another mount owns the path. Without a mount: the parent, wherever that is (only
    up).
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
    """Where it is remembered: of those whose answers led to it."""

    @property
    def shown(self) -> str:
        """For people: which way, and where to."""
        return f"{self.way.value} → {self.mount if self.mount is not None else 'the parent'}"

    def is_good_for(self, wanted: Mapping[str, Position]) -> bool:
        """True if those whose answers led to it were read at these positions of a token, or later.
        Its target is not among them: that is asked itself.
        """
        return self.read.reaches({one: wanted[one] for one in wanted if one != self.cluster_id})

    @property
    def remaining_seconds(self) -> int:
        """What is left of its lifetime, which runs from the owner's answer."""
        return max(0, self.lifetime_seconds - self.age_seconds)


class Rewrite(NamedTuple):
    """A link is in the path: go on with one of these paths, in order."""

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
    """Answer of a server that could not decide, with its error."""

    error: KdirError


Outcome = Answer | Referral | Rewrite | Absent | ErrorAnswer


class Reply(NamedTuple):
    """One server's reply to one question."""

    sender: Sender
    outcome: Outcome


class Query(NamedTuple):
    """The next question."""

    endpoint: str
    path: Path
    way: AskedBecause
    mount: Path | None
    cluster: str
    share: float
    """The part of the time left that this question may take, 0 < share <= 1."""
    recursive: bool = False
    after: Position | None = None
    """The server's last reply was older than this, which was seen before."""
    after_cluster_id: str = ""
    hurried: bool = False
    """Others of the same hop were not asked yet: where this one does not answer quickly, it may be
    set aside (``ResolutionStateMachine.on_slow``) until they were."""
    cluster_id: str = ""
    """Whose server the referral says that it is; empty where none named it."""


class LinkStep(NamedTuple):
    """A link that the answer was reached by."""

    link: Path
    target: Path
    mode: LinkMode
    fallback: bool
    """An earlier target could not be asked, or had no such path."""
    writes_follow: bool


class Attempt(NamedTuple):
    """One question that was asked, and what came of it."""

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
    """The owner answered."""

    answer: Answer
    sender: Sender
    endpoints: tuple[str, ...]
    """Of the owner, the one that answered first."""
    lifetime_seconds: int
    """For the path that was asked: no longer than anything on the way may be kept."""
    links: tuple[LinkStep, ...] = ()
    basis_ttl_seconds: int = 0
    """What is left of the lifetime of the answers that led to the owner."""
    read: ReadPositions = NOTHING_READ
    """Of every cluster on the way, the owner's too."""


class AbsentResult(NamedTuple):
    """The owner says that there is no such path."""

    path: Path
    """Behind the links: where it would stand."""
    absent: Absent
    sender: Sender
    endpoints: tuple[str, ...]
    lifetime_seconds: int
    links: tuple[LinkStep, ...] = ()
    basis_ttl_seconds: int = 0
    read: ReadPositions = NOTHING_READ


class United(NamedTuple):
    """Results of a union link's targets at the path, where ``ResolutionOptions.gathers_unions``."""

    parts: tuple[AnswerResult, ...]
    """In the order of the targets; at least one."""
    missing: tuple[tuple[Path, KdirError], ...]
    """Targets that could not be asked, and why."""
    trouble: KdirError | None = None
    """Of a missing target before the first part: what ends a walk that wants one answer."""


class FailedResult(NamedTuple):
    """Result of a walk that failed; the error carries every attempt."""

    error: KdirError


End = AnswerResult | AbsentResult | United | FailedResult


class Chooser(Protocol):
    """The order in which servers that are all alike are asked."""

    def __call__(self, endpoints: Sequence[str], /) -> Sequence[str]:
        """Returns the same endpoints, best first."""


class ResolutionOptions(NamedTuple):
    """Options of a walk: what it may do, and which servers it may ask."""

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
