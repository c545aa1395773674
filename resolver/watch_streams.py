"""Streams of clusters' changes: watched for a caller, or followed to keep cached answers fresh.

An answer stays fresh while its cluster's changes are received and none affects it, but only while
the parent's last confirmation of the cluster's mount is valid. The parent is queried again before
that ends; no message of the child extends it (R11). If the stream breaks, answers have only the
lifetimes that they were sent with. A watch reports the changes of the cluster that owns the path,
in order, and none of the clusters mounted below it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kdir.v1 import watch_pb2

from resolver import errors
from resolver.answer_cache import Cache, FreshnessMark
from resolver.cached_lookup import CachedLookup
from resolver.errors import KdirError
from resolver.lookup_options import LookupOptions, kind_number
from resolver.owner_calls import Owner, OwnerCalls
from resolver.path import Path
from resolver.resolution.state_machine import ResolutionOptions
from resolver.resolution.values import AbsentResult, AnswerResult, FailedResult, Sender
from resolver.revision_token import Token
from resolver.transport import Stream, Transport, method

if TYPE_CHECKING:
    from kdir.v1 import resolve_pb2

__all__ = [
    "CHECKPOINT_SECONDS",
    "DELETED",
    "CacheRefresher",
    "FollowedCluster",
    "WatchStreams",
    "WatchedChanges",
    "Watching",
    "clear_former_path",
    "is_own_change",
]

MOST_CLUSTERS: Final = 64
"""Most followed clusters; each has its own stream and two threads."""
_RENEW_SECONDS: Final = 15.0
"""Time before the end of the parent's confirmation at which the parent is queried again."""
_FIRST_RENEW_PAUSE_SECONDS: Final = 1.0
"""Pause after the parent did not answer; each further one is twice as long."""
_FRESH_SECONDS: Final = 15.0
"""Time for which answers are fresh after the last message: three checkpoint intervals."""
_REFUSED_SECONDS: Final = 60.0
"""Time after a refused stream for which its cluster is not followed again."""
_GRACE_SECONDS: Final = 1.0
"""Time to wait for the end of a thread, beyond the time for finding an owner."""
_UNCONFIRMED: Final = (
    errors.Unavailable,
    errors.DeadlineExceeded,
    errors.NoRoute,
    errors.Cancelled,
    errors.LimitExceeded,
    errors.Internal,
    errors.UnreadableRecord,
    errors.TokenFromFuture,
)
"""Errors after which the parent may still confirm a mount: they show nothing about it."""
DELETED: Final = "__deleted"
"""Name of the directory in which a server keeps removed directories until all their entries are
removed.
"""
CHECKPOINT_SECONDS: Final = 5
"""Interval between the checkpoints that an idle server sends."""
_SILENCE: Final = 3
"""Number of missed checkpoints after which a connection counts as broken."""
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class WatchedChanges:
    """Set of the changes of one revision; without events, a checkpoint."""

    events: tuple[watch_pb2.ChangeEvent, ...]
    token: str
    """Token of the position up to which all changes were returned; a later watch can start after
    it.
    """
    authority: resolve_pb2.Authority | None
    """Authority of the server; set only in the first changes of each connection."""


class Watching:
    """Stream of changes as they come; iterate in one thread, ``close`` from any.

    After a broken connection it reconnects to any server of the owner and continues after the last
    token: no change is lost or returned twice. Iteration raises ``Resync`` if the changes after the
    token are no longer stored, or if the path has another owner or canonical path now (list again,
    then watch); ``Lame`` if the cluster reports changes of other clusters (docs/guarantees.md#r5);
    ``Closed`` if the resolver was closed; and other errors that a retry cannot mend. After
    ``close`` it ends without an error.
    """

    def __init__(
        self,
        path: Path,
        after: str,
        find_owner: Callable[[bool], Owner],
        transport: Transport,
        *,
        checkpoint_seconds: int = CHECKPOINT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.token = after
        self._find_owner = find_owner
        self._transport = transport
        self._checkpoint_seconds = checkpoint_seconds or CHECKPOINT_SECONDS
        self._clock = clock
        self._closed = threading.Event()
        self._stream: Stream | None = None
        self._waiting_since: float | None = None
        """Time on the clock since which it waits for the server; None while the caller handles
        changes.
        """

    def __iter__(self) -> Iterator[WatchedChanges]:
        for owner, changes in self._received():
            for event in changes.events:
                clear_former_path(event, owner.mount)
                if not is_own_change(event, owner.mount):
                    was = f", before at {event.path_before[:200]!r}" if event.path_before else ""
                    raise errors.Lame(
                        f"{owner.cluster}: reports a change at {event.path[:200]!r}{was}; it is "
                        f"mounted at {owner.mount}"
                    )
            self.token = changes.token
            yield changes

    def _received(self) -> Iterator[tuple[Owner, WatchedChanges]]:
        """Yields the changes of one connection after another, each with its owner."""
        pause = _FIRST_PAUSE_SECONDS
        position = 0
        owner: Owner | None = None
        begun_at: tuple[str, Path] | None = None
        while not self._closed.is_set():
            has_answered = False
            try:
                if owner is None:
                    owner = self._find_owner(position > 0)
                if begun_at is not None and begun_at != (owner.cluster_id, owner.path):
                    raise errors.Resync(
                        f"{self.path} is {owner.path} of cluster {owner.cluster_id} now, before "
                        f"{begun_at[1]} of {begun_at[0]}: list again, then watch"
                    )
                endpoint = owner.endpoints[position % len(owner.endpoints)]
                for changes in self._follow(endpoint, owner):
                    pause = _FIRST_PAUSE_SECONDS
                    begun_at, has_answered = (owner.cluster_id, owner.path), True
                    yield owner, changes
                failure: KdirError = errors.Unreachable(f"{endpoint} ended the stream")
            except KdirError as error:
                failure = error
            if self._closed.is_set():
                return
            # If a server has no free stream, a watch that has begun goes on to another server.
            is_full = isinstance(failure, errors.LimitExceeded) and not has_answered
            if not (is_full and begun_at) and not _may_come_back(failure):
                raise failure
            position += 1
            if owner is not None and position % len(owner.endpoints) == 0:
                owner = None  # all were tried: the path may have another owner now
            self._closed.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _follow(self, endpoint: str, owner: Owner) -> Iterator[WatchedChanges]:
        request = watch_pb2.WatchRequest(
            path=str(owner.path),
            after_token=self.token,
            checkpoint_seconds=self._checkpoint_seconds,
        )
        stream = self._transport.stream(
            endpoint, method("WatchService.Watch"), request, cluster_id=owner.cluster_id
        )
        self._stream = stream
        if self._closed.is_set():  # ``close`` ran before there was a stream to cancel
            stream.cancel()
            return
        self._waiting_since = self._clock()
        ended = threading.Event()
        guard = threading.Thread(
            target=self._end_when_silent, args=(stream, ended), name="watch-guard", daemon=True
        )
        try:
            _start(guard)
            for response in stream:
                self._waiting_since = None
                authority = response.authority if response.HasField("authority") else None
                if authority is not None and authority.cluster.cluster_id != owner.cluster_id:
                    raise errors.Lame(
                        f"{endpoint} is cluster {authority.cluster.cluster_id}, "
                        f"not {owner.cluster_id}"
                    )
                token = response.token or self.token
                yield WatchedChanges(tuple(response.events), token, authority)
                if self._closed.is_set():
                    return
                self._waiting_since = self._clock()
        finally:
            self._stream = None
            stream.cancel()
            ended.set()
            if guard.ident is not None:  # it was started
                guard.join()

    def _end_when_silent(self, stream: Stream, ended: threading.Event) -> None:
        """Cancels the stream if no message is received for three checkpoint intervals: a server
        that vanished closes no connection.
        """
        limit = self._checkpoint_seconds * _SILENCE
        while not ended.wait(limit / 4):
            since = self._waiting_since
            if since is not None and self._clock() - since > limit:
                stream.cancel()
                return

    def close(self) -> None:
        """Ends the stream, from any thread."""
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.cancel()


def _start(thread: threading.Thread) -> None:
    """Starts a thread.

    Raises:
        Unreachable: the process can have no more threads now.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise errors.Unreachable(f"{thread.name}: no thread can be started: {error}") from error


def clear_former_path(event: watch_pb2.ChangeEvent, mount: Path) -> None:
    """Clears ``path_before`` of the removal of an entry in a removed directory, if that path is not
    below the mount: servers report such a path if the mount was moved after the directory's
    removal.
    """
    if event.HasField("after") or not event.path_before:
        return
    with suppress(errors.InvalidPath):
        path, before = Path.of_entry(event.path), Path.of_entry(event.path_before)
        is_reaped = Path((*mount.segments, DELETED)).is_prefix_of(path)
        if is_reaped and not mount.is_prefix_of(before):
            event.ClearField("path_before")


def is_own_change(event: watch_pb2.ChangeEvent, mount: Path) -> bool:
    """True if all paths of a change are at or below the cluster's mount."""
    try:
        paths = [Path.of_entry(event.path)]
        if event.path_before:
            paths.append(Path.of_entry(event.path_before))
    except errors.InvalidPath:
        return False
    return all(map(mount.is_prefix_of, paths))


def _may_come_back(error: KdirError) -> bool:
    # ``Closed``: the transport that the resolver opened was closed with it.
    return not isinstance(error, errors.Closed) and isinstance(
        error,
        errors.Unavailable
        | errors.DeadlineExceeded
        | errors.Cancelled
        | errors.Internal
        | errors.UnreadableRecord  # it can be repaired
        | errors.NotAuthoritative
        | errors.Unmounted
        | errors.NoRoute
        | errors.TokenFromFuture,  # this server is behind; another one may not be
    )


class WatchStreams:
    """Factory of watches and of the cache refresher. Thread-safe."""

    def __init__(
        self,
        lookups: CachedLookup,
        owners: OwnerCalls,
        cache: Cache,
        transport: Transport,
        rules: Callable[[LookupOptions], ResolutionOptions],
        clock: Callable[[], float],
        timeout_seconds: float,
        on_report: Callable[[], object],
    ) -> None:
        """``timeout_seconds``: for finding an owner again when a stream reconnects; ``on_report``
        is called after each report of a followed cluster.
        """
        self._lookups = lookups
        self._owners = owners
        self._cache = cache
        self._transport = transport
        self._rules = rules
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._on_report = on_report
        self.following: CacheRefresher | None = None
        """Refresher of the followed clusters, created when first needed."""

    def watch(self, path: Path, after: str, checkpoint_seconds: int, deadline: float) -> Watching:
        """Returns the changes at and below a path, for ``Resolver.watch``."""
        owner = self._owners.owner_of(path, LookupOptions(kind_number("directory")), deadline)
        # By default from this position, so that changes before the first iteration are returned.
        return self._watching(path, after or owner.position, checkpoint_seconds)

    def follow(self, path: Path, deadline: float) -> None:
        """Follows the cluster that owns a path, for ``Resolver.follow``."""
        since = self._clock()
        sender, seconds = self._prove(path, deadline)
        self.follow_all(automatic=False).follow_on_request(sender, since + seconds)

    def follow_all(self, *, automatic: bool) -> CacheRefresher:
        """Returns the refresher; ``automatic``: it follows each cluster that answers."""
        with self._lookups.own_process().making:
            if self.following is None:
                following = CacheRefresher(
                    self._cache,
                    lambda path, token: self._watching(path, token, CHECKPOINT_SECONDS),
                    lambda mount: self._prove(mount, self._soon()),
                    self._clock,
                    self._on_report,
                    automatic=automatic,
                )
                # First the one that a fork renews, since a fork may happen between the two.
                self._lookups.freshness = following
                self.following = following
            return self.following

    def close(self) -> None:
        """Ends the streams of followed clusters; a watch is closed by its caller."""
        if self.following is not None:
            self.following.close(self._timeout_seconds + _GRACE_SECONDS)

    def _watching(self, path: Path, after: str, checkpoint_seconds: int) -> Watching:
        def find_owner(again: bool) -> Owner:  # noqa: FBT001 - one caller
            wanted = LookupOptions(kind_number("directory"))
            return self._owners.owner_of(path, wanted, self._soon(), fresh=again)

        return Watching(
            path,
            after,
            find_owner,
            self._transport,
            checkpoint_seconds=checkpoint_seconds,
            clock=self._clock,
        )

    def _prove(self, path: Path, deadline: float) -> tuple[Sender, int]:
        """Returns the owner of a path, resolved without cached referrals, and the number of seconds
        for which that is valid.
        """
        wanted = LookupOptions(kind_number("directory"))
        rules = self._rules(wanted).by_referrals().without_hints()
        since = self._clock()
        walk = self._lookups.resolve_uncached(path, rules, wanted, "", deadline)
        self._lookups.add_referral(walk, since)
        end = walk.next_query()
        if isinstance(end, AnswerResult | AbsentResult):
            return end.sender, end.basis_ttl_seconds
        raise end.error if isinstance(end, FailedResult) else errors.Internal(f"{path}: {end}")

    def _soon(self) -> float:
        return self._clock() + self._timeout_seconds


class CacheRefresher:
    """Set of followed clusters, whose changes keep the answers of one cache fresh. Thread-safe."""

    def __init__(
        self,
        cache: Cache,
        open_watch: Callable[[Path, str], Watching],
        prove: Callable[[Path], tuple[Sender, int]],
        clock: Callable[[], float],
        on_report: Callable[[], object],
        *,
        automatic: bool,
    ) -> None:
        """``prove`` resolves a mount without cached referrals: it returns the sender mounted there,
        and the number of seconds for which that is valid.
        """
        self._on_report = on_report
        self._cache = cache
        self._open_watch = open_watch
        self._prove = prove
        self._clock = clock
        self._automatic = automatic
        self._lock = threading.Lock()
        self._clusters: dict[str, FollowedCluster] = {}
        self._threads: dict[FollowedCluster, threading.Thread] = {}
        self._requested: set[str] = set()
        """Ids of the clusters that are followed on request."""
        self._refused_until: dict[str, float] = {}
        """By cluster id, the time on the clock until which the cluster is not followed."""
        self._closed = False

    def freshness_of(self, end: AnswerResult | AbsentResult, since: float) -> FreshnessMark | None:
        """Returns the mark that keeps this answer fresh; None = its cluster is not followed now."""
        sender = end.sender
        cluster = self._clusters.get(sender.cluster_id)
        if cluster is None:
            is_wanted = self._automatic or sender.cluster_id in self._requested
            if not is_wanted or not sender.incarnation:
                return None
            try:
                cluster = self._follow(sender, since + end.basis_ttl_seconds)
            except KdirError:
                return None
        return cluster.taking(sender, since + end.basis_ttl_seconds)

    def follow_on_request(self, sender: Sender, grounds_until: float) -> None:
        """Follows a sender's cluster from its revision on, also if its stream was refused a short
        time ago; again, once its stream has ended, from the next answer of the cluster on.

        Raises:
            Closed, LimitExceeded, Unreachable: it cannot be followed.
        """
        with self._lock:
            self._refused_until.pop(sender.cluster_id, None)
        self._follow(sender, grounds_until)
        self._requested.add(sender.cluster_id)

    def _follow(self, sender: Sender, grounds_until: float) -> FollowedCluster:
        """Follows a sender's cluster from its revision on, unless it is followed already.

        Raises:
            Closed: this refresher was closed.
            LimitExceeded: so many clusters are followed already.
            Unreachable: its stream was refused a short time ago, or no thread can be started.
        """
        with self._lock:
            known = self._clusters.get(sender.cluster_id)
            if known is not None:
                return known
            if self._closed:
                raise errors.Closed("closed: no cluster can be followed any more")
            if len(self._clusters) >= MOST_CLUSTERS:
                raise errors.LimitExceeded(f"{MOST_CLUSTERS} clusters are followed already")
            if self._refused_until.get(sender.cluster_id, 0.0) > self._clock():
                raise errors.Unreachable(f"cluster {sender.cluster_id} has refused its stream")
            self._refused_until.pop(sender.cluster_id, None)
            token = str(Token.from_position(sender.cluster_id, sender.incarnation, sender.revision))
            cluster = FollowedCluster(
                sender,
                grounds_until,
                self._open_watch(sender.mount, token),
                self._cache,
                self._prove,
                self._clock,
                self._on_report,
            )
            thread = threading.Thread(
                target=self._run, args=(cluster,), name=f"follow-{sender.cluster}", daemon=True
            )
            _start(thread)
            self._clusters[sender.cluster_id] = cluster
            self._threads[cluster] = thread
        return cluster

    def followed(self, cluster_id: str) -> FollowedCluster | None:
        """Returns the followed cluster of this id; None = it is not followed."""
        return self._clusters.get(cluster_id)

    def is_following(self, cluster_id: str) -> bool:
        """True if the cluster's changes are received now."""
        cluster = self.followed(cluster_id)
        return cluster is not None and cluster.followed.until > self._clock()

    def _run(self, cluster: FollowedCluster) -> None:
        try:
            cluster.run()
        finally:
            with self._lock:
                if cluster.is_refused:
                    self._refused_until[cluster.cluster_id] = self._clock() + _REFUSED_SECONDS
                if self._clusters.get(cluster.cluster_id) is cluster:
                    del self._clusters[cluster.cluster_id]
                self._threads.pop(cluster, None)

    def renew(self) -> None:
        """Resets the state after a fork: the threads belong to the parent process."""
        self._lock = threading.Lock()
        self._clusters = {}
        self._threads = {}

    def close(self, timeout_seconds: float) -> None:
        """Ends all streams, and waits at most ``timeout_seconds`` for each of their threads. Call
        it before closing the transport, which ends the threads that are still finding an owner.
        """
        with self._lock:
            self._closed = True
            threads = dict(self._threads)
        for cluster in threads:
            cluster.watching.close()
        for thread in threads.values():
            thread.join(timeout_seconds)


class FollowedCluster:
    """Followed cluster, with the revision up to which its changes were applied."""

    def __init__(
        self,
        sender: Sender,
        grounds_until: float,
        watching: Watching,
        cache: Cache,
        prove: Callable[[Path], tuple[Sender, int]],
        clock: Callable[[], float],
        on_report: Callable[[], object],
    ) -> None:
        self._on_report = on_report
        self.cluster_id = sender.cluster_id
        self.mount = sender.mount
        self.watching = watching
        self.followed = FreshnessMark(sender.incarnation, sender.revision)
        self.grounds_until = grounds_until
        """Time on the clock until which the parent's confirmation of the mount is valid."""
        self._renew_pause = _FIRST_RENEW_PAUSE_SECONDS
        self._renew_at = 0.0
        """Time on the clock before which the parent is not queried again."""
        self.is_refused = False
        """True if the stream ended with an error that a new stream would meet again."""
        self._listeners = _listeners_of(sender.payload)
        """Listeners of the cluster's last answer, or of its stream's last authority."""
        self._cache = cache
        self._prove = prove
        self._clock = clock

    def taking(self, sender: Sender, grounds_until: float) -> FreshnessMark | None:
        """Returns the mark for an answer; None if the answer is stale, or has another incarnation,
        mount or listeners than the cluster's stream.
        """
        followed = self.followed  # before the listeners: they change together with the mark
        if sender.incarnation != followed.incarnation or sender.mount != self.mount:
            return None
        if sender.stale or _listeners_of(sender.payload) != self._listeners:
            return None
        # Each resolution has a confirmation of the parent; the one that is valid longest counts.
        self.grounds_until = max(self.grounds_until, grounds_until)
        return followed

    def run(self) -> None:
        """Applies changes until the stream ends for good."""
        try:
            for changes in self.watching:
                self._take(changes)
                if not self._renew():
                    return
                self._on_report()
        except (errors.Resync, errors.TokenExpired, errors.Absent) as error:
            self._cache.drop_cluster(self.cluster_id)  # cached answers may have missed changes
            # Even if the directory is created again, it may be hidden from the caller.
            self.is_refused = isinstance(error, errors.Absent)
        except KdirError:
            self.is_refused = True  # answers have only the lifetimes that they were sent with
        finally:
            self.followed.until = 0.0
            self.watching.close()

    def _take(self, changes: WatchedChanges) -> None:
        if changes.authority is not None:
            self._note_listeners(changes.authority)
        followed = self.followed
        place = Token.parse(changes.token).positions.get(self.cluster_id)
        if place is None or place.incarnation != followed.incarnation:
            raise errors.Resync(f"cluster {self.cluster_id}: its store has a new incarnation")
        # First the revision, then the removal: an answer cached between the two is found to be
        # older, one cached before is removed (``CachedLookup._store``).
        followed.revision = max(followed.revision, place.revision)
        for event in changes.events:
            self._apply(event)
        followed.applied = followed.revision
        now = self._clock()
        followed.until = min(now + _FRESH_SECONDS, self.grounds_until)
        followed.confirmed_at = max(followed.confirmed_at, min(now, self.grounds_until))

    def _note_listeners(self, authority: resolve_pb2.Authority) -> None:
        """Removes the cluster's cached answers if its listeners have changed: they are in the
        servers' config, so no change event reports them.
        """
        listeners = _listeners_of(authority)
        if listeners != self._listeners:
            self._listeners = listeners
            # A new mark, since an answer with the old listeners may be cached after the removal.
            old = self.followed
            self.followed = FreshnessMark(old.incarnation, old.revision)
            old.until = 0.0
            self._cache.drop_cluster(self.cluster_id)

    def _apply(self, event: watch_pb2.ChangeEvent) -> None:
        from kdir.v1 import entry_pb2

        for text in filter(None, (event.path, event.path_before)):
            self._cache.drop_above(Path.of_entry(text), self.mount)
        if event.kind == entry_pb2.ENTRY_KIND_TOPIC:
            self._cache.drop_at(event.path)
            if event.path_before:
                self._cache.drop_at(event.path_before)
            return
        is_new_directory = (
            event.kind == entry_pb2.ENTRY_KIND_DIRECTORY
            and event.action == watch_pb2.CHANGE_ACTION_INSERT
        )
        for text in (event.path, event.path_before):
            if not text:
                continue
            if is_new_directory:
                self._cache.drop_at(text)  # only absences can be cached below it
                continue
            path = Path.of_entry(text)
            if event.kind == entry_pb2.ENTRY_KIND_MOUNT:
                self._cache.unlearn_below(path)  # first: a lookup may follow it meanwhile
            self._cache.evict_below(path)

    def _renew(self) -> bool:
        """Queries the parent again before its confirmation ends; False = stop following the
        cluster.
        """
        since = self._clock()
        if self.grounds_until - since > _RENEW_SECONDS or since < self._renew_at:
            return True
        try:
            sender, seconds = self._prove(self.mount)
        except _UNCONFIRMED:
            self._postpone()
            return True  # answers expire with the confirmation, and are then stale
        except KdirError:
            sender, seconds = None, 0
        if sender is None or (sender.cluster_id, sender.mount) != (self.cluster_id, self.mount):
            self._cache.drop_cluster(self.cluster_id)
            return False
        self.grounds_until = max(self.grounds_until, since + seconds)
        self._renew_pause, self._renew_at = _FIRST_RENEW_PAUSE_SECONDS, 0.0
        return True

    def _postpone(self) -> None:
        """Delays the next query to the parent, by at most half of the time left of its
        confirmation. Not more often: changes wait during the query, and their stream ends if they
        wait too long.
        """
        now = self._clock()
        left = self.grounds_until - now
        self._renew_at = now + (min(self._renew_pause, left / 2) if left > 0 else self._renew_pause)
        self._renew_pause = min(2 * self._renew_pause, _LONGEST_PAUSE_SECONDS)


def _listeners_of(authority: Any) -> tuple[bytes, ...]:
    """Returns the serialised listeners of an authority, for comparison."""
    if authority is None:
        return ()
    return tuple(one.SerializeToString(deterministic=True) for one in authority.cluster.listeners)
