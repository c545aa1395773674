"""State of a watch of one cluster's keys in etcd, and what each message changes in it; no I/O.

Every transaction writes ``meta/commit``, so that key's version counts the cluster's commits. That
count is trusted more than the order and completeness of a watch: a commit event that is not the
next one shows that events were lost, and a linearizable read of the key shows whether everything
was seen, and up to which revision the cluster has no changes. So progress notifications, which etcd
has sent ahead of its events (etcd 15220), are not needed. Further faults of that kind: S10, S12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from directory.store.base import CommittedWrites, Delete, Identity, Put, Write
from directory.store.etcd.call_errors import is_login_error

__all__ = [
    "COMMIT",
    "IDENTITY",
    "META",
    "ROWS",
    "Event",
    "Follower",
    "Head",
    "ReloadRequired",
    "Response",
    "Step",
    "StreamLagging",
    "Verdict",
    "WatchRefused",
    "cancellation_verdict",
]

META: Final = b"meta/"
COMMIT: Final = META + b"commit"
IDENTITY: Final = META + b"identity"
ROWS: Final = b"kv/"


class Event(NamedTuple):
    """Change of one key in one revision. ``key`` is without the cluster's prefix; value None =
    removed.
    """

    revision: int
    key: bytes
    value: bytes | None
    version: int
    """Number of writes of the key since it was created; 0 when it is removed."""


@dataclass(frozen=True, slots=True)
class Response:
    """Message of a watch stream (etcd's ``WatchResponse``)."""

    etcd_cluster: int
    revision: int
    """Revision of the member's store. The events may be older, and more may follow."""
    events: tuple[Event, ...] = ()
    fragment: bool = False
    """True: the rest of this message is in the next response."""
    created: bool = False
    canceled: bool = False
    compacted: int = 0
    """Oldest revision that is kept, if that is why the watch was canceled."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """Values of ``meta/`` at a revision, by a linearizable read."""

    etcd_cluster: int
    revision: int
    commit_id: str = ""
    commit_revision: int = 0
    commit_version: int = 0
    """Number of commits; 0 = none yet."""
    identity: bytes | None = None
    born: int = 0
    """Revision in which the cluster's keys were created."""


@dataclass(frozen=True, slots=True)
class ReloadRequired:
    """Verdict that the watch cannot continue: load again. ``alarm``: an operator should be
    notified.
    """

    reason: str
    alarm: bool = False


@dataclass(frozen=True, slots=True)
class WatchRefused:
    """Verdict that etcd refuses the watch. ``login``: a new token may help."""

    reason: str
    login: bool = False


@dataclass(frozen=True, slots=True)
class StreamLagging:
    """Verdict that this stream is not trustworthy any more: continue at another member."""

    reason: str


Verdict = ReloadRequired | WatchRefused | StreamLagging


def cancellation_verdict(response: Response, revision: int) -> ReloadRequired | WatchRefused:
    """Returns the verdict on a response that cancels a watch at ``revision``. It is the same if
    the response also creates the watch: such a watch counts as not created (S13).
    """
    if response.compacted:
        return ReloadRequired(f"compacted up to {response.compacted}; we are at {revision}")
    reason = response.reason or "etcd ended the watch without a reason"
    return WatchRefused(reason, login=is_login_error(reason))


@dataclass(frozen=True, slots=True)
class Step:
    """Result of a message: changes to apply, then whether to give up the stream."""

    changes: tuple[CommittedWrites, ...] = ()
    verdict: Verdict | None = None


class Follower:
    """Position of a watch. ``revision`` and ``commit_id`` are of its last result; its owner must
    apply all changes, in order.
    """

    def __init__(
        self,
        after: int,
        commit_id: str,
        identity: Identity,
        read_identity: Callable[[bytes, int], Identity],
    ) -> None:
        """Begins after a revision at which ``commit_id`` was the newest commit, or empty.
        ``read_identity`` parses the value of ``meta/identity`` at a revision; raises ValueError.
        """
        self.revision = after
        self.commit_id = commit_id
        self.identity = identity
        """Newest identity that was seen; always of the first one's incarnation."""
        self._read_identity: Final = read_identity
        self._identity_at = 0  # the revision at which it was seen
        self._etcd_cluster = 0
        self._commits: int | None = None  # up to `revision`; unknown until a head was examined
        self._checked = after  # nothing was committed after `revision`, up to here
        self._parts: dict[int, dict[bytes, Event]] = {}  # of revisions that are not whole yet
        self._lost_at = -1  # revision after which events were missing

    # -- checks, before and while a stream is open -------------------------------------------

    @property
    def start(self) -> int:
        """Revision with which a stream is to begin. Others may have written much since the newest
        commit, and compacted it: revisions known to have no changes of the cluster are not
        requested.
        """
        return self._checked + 1

    def examine(self, head: Head) -> ReloadRequired | int | None:
        """Checks that the store that answers is the one that was followed; returns None if it is,
        or why to load again. An int: the values of ``meta/`` at that revision decide; pass them to
        ``examine_past``.
        """
        gone = self.other_incarnation(head, self.revision)
        if gone is not None:
            return gone
        if head.commit_revision <= self.revision:
            return self._same_commit(head)
        if self.revision == 0:  # etcd has no read as of 0; the cluster had no keys then
            self._commits, self._checked = 0, max(self._checked, head.born - 1)
            return None
        return self._checked

    def examine_past(self, past: Head | None) -> ReloadRequired | None:
        """Compares ``past``, the values of ``meta/`` at the revision that ``examine`` returned;
        None: no longer kept.
        """
        if past is None:
            return ReloadRequired(f"revision {self.revision} is not kept")
        return self._same_commit(past)

    def other_incarnation(self, head: Head, since: int) -> ReloadRequired | None:
        """Returns why to load again, if ``head``, read when ``revision`` was ``since``, is of
        another incarnation; else None.
        """
        gone = self.other_cluster(head.etcd_cluster)
        if gone is None and head.revision < since:
            gone = ReloadRequired(
                f"etcd is at revision {head.revision}, and was at {since}: an older snapshot was "
                "restored",
                alarm=True,
            )
        return gone or self._note_identity(head.identity, head.revision)

    def other_cluster(self, etcd_cluster: int) -> ReloadRequired | None:
        """Returns why to load again, if another etcd cluster answers than before; else None."""
        if self._etcd_cluster and etcd_cluster != self._etcd_cluster:
            return ReloadRequired(
                f"etcd cluster {etcd_cluster:x} answers, and it was {self._etcd_cluster:x}",
                alarm=True,
            )
        self._etcd_cluster = etcd_cluster
        return None

    def _same_commit(self, head: Head) -> ReloadRequired | None:
        commits = head.commit_version if self._commits is None else self._commits
        if (head.commit_id, head.commit_version) != (self.commit_id, commits):
            return ReloadRequired(f"revision {self.revision} is another commit there", alarm=True)
        self._commits = head.commit_version
        self._checked = max(self._checked, head.revision)
        return None

    def _note_identity(self, value: bytes | None, revision: int) -> ReloadRequired | None:
        if value is None:
            return ReloadRequired("the cluster's identity was removed", alarm=True)
        try:
            found = self._read_identity(value, revision)
        except ValueError as error:
            return ReloadRequired(f"the store's identity cannot be read: {error}", alarm=True)
        if found.incarnation != self.identity.incarnation:
            return ReloadRequired(f"a new incarnation of the store began, {found.incarnation}")
        if found.partial:
            return ReloadRequired(f"the store is {found.sealed}")
        # An answer that was under way may be older than what the stream has sent meanwhile.
        if revision >= self._identity_at:
            self.identity, self._identity_at = found, revision
        return None

    def has_seen(self, head: Head) -> bool:
        """True if every commit up to the read of ``head`` was delivered."""
        if self._commits is None or self._commits < head.commit_version:
            return False
        self._checked = max(self._checked, head.revision)
        return True

    # -- the stream --------------------------------------------------------------------------

    def begin(self) -> int:
        """Begins a new stream; returns its first revision."""
        self._parts.clear()
        return self.start

    def on_response(self, response: Response) -> Step:
        """Returns the step for a response of the stream that does not cancel it. After a verdict
        the stream must be closed.
        """
        gone = self.other_cluster(response.etcd_cluster)
        if gone is not None:
            return Step((), gone)
        if response.revision < self.revision:
            return Step(
                (),
                StreamLagging(
                    f"a member at revision {response.revision}, we are at {self.revision}"
                ),
            )
        self._collect(response.events)
        return self._release(whole=not response.fragment)

    def _collect(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.revision > self.revision:  # older ones are repetitions
                self._parts.setdefault(event.revision, {})[event.key] = event

    def _release(self, *, whole: bool) -> Step:
        """Releases complete revisions; of a fragment, all revisions but the last."""
        revisions = sorted(self._parts)
        changes: list[CommittedWrites] = []
        for revision in revisions if whole else revisions[:-1]:
            found = self._changes(revision, self._parts.pop(revision))
            match found:
                case CommittedWrites():
                    changes.append(found)
                case None:
                    pass
                case _:
                    return Step(tuple(changes), found)
        return Step(tuple(changes))

    def _changes(
        self, revision: int, events: dict[bytes, Event]
    ) -> CommittedWrites | Verdict | None:
        identity = events.pop(IDENTITY, None)
        if identity is not None:
            gone = self._note_identity(identity.value, revision)
            if gone is not None:
                return gone
        commit = events.pop(COMMIT, None)
        if commit is not None:
            verdict = self._next_commit(commit)
            if verdict is not None:
                return verdict
        writes = tuple(_writes(events.values()))
        if commit is None and not writes:
            return None
        self.revision = revision
        self._checked = max(self._checked, revision)
        return CommittedWrites(revision, self.commit_id, writes)

    def _next_commit(self, commit: Event) -> Verdict | None:
        if commit.value is None:
            return ReloadRequired("the cluster's keys were removed", alarm=True)
        if self._commits is not None and commit.version != self._commits + 1:
            reason = (
                f"revision {commit.revision} is commit {commit.version}; after revision "
                f"{self.revision} commit {self._commits + 1} was to come"
            )
            if self._lost_at == self.revision:
                return ReloadRequired(f"etcd lost events twice: {reason}", alarm=True)
            self._lost_at = self.revision
            return StreamLagging(f"etcd lost events: {reason}")
        self._commits = commit.version
        self.commit_id = commit.value.decode("ascii", "replace")
        return None


def _writes(events: Iterable[Event]) -> Iterable[Write]:
    for event in events:
        if event.key.startswith(ROWS):
            key = event.key[len(ROWS) :]
            yield Delete(key) if event.value is None else Put(key, event.value)
