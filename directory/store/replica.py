"""Replica: one server's copy of its cluster's tree in memory.

One thread loads the store at one revision and then follows its watch. A thread that commits through
the same store object may itself apply its commit (``taking_own_commits``); for a caller's write,
after the answer is sent. The replica publishes whole, immutable snapshots: the holder of one sees
no later change in it. When the history that the replica needs is gone, it loads again and swaps;
until then, and while the store is unreachable, the old snapshot serves.
"""

from __future__ import annotations

import contextvars
import enum
import gc
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from directory.namespace import keys
from directory.namespace.entry import Codec
from directory.namespace.snapshot import Snapshot
from directory.server.logs import with_log_context
from directory.store.base import (
    CommittedWrites,
    HistoryCompacted,
    IncompatibleStore,
    Loading,
    Store,
    StoreUnreachable,
    Watch,
    Write,
)
from directory.store.event_rows import EventKeys, Events, events_of
from resolver.errors import NotReady, StoreUnavailable, TokenFromFuture, Unreachable

__all__ = ["LOADED_PREFIXES", "AppliedCommit", "Replica", "ReplicaState"]

_log = logging.getLogger(__name__)

LOADED_PREFIXES: Final = (
    keys.ENTRY,
    keys.RETIRED,
    keys.DETACHED,
    keys.FEDERATION,
    keys.GRANTS,
    keys.KAFKA,
    keys.ROLE,
    keys.MEMBER,
)
"""Keys that are kept in memory: not claims, answered requests and events."""

_FREEZE_ROWS: Final = 10_000
_NEXT_SECONDS: Final = 2.0
_GIVE_WAY_SECONDS: Final = 0.004
_FIRST_RETRY_SECONDS: Final = 0.05
_LAST_RETRY_SECONDS: Final = 2.0


class ReplicaState(enum.Enum):
    """State of the replica: whether, and how well, it can answer."""

    LOADING = "loading"
    """Nothing was ever loaded: not ready."""
    SERVING = "serving"
    """The replica follows the store."""
    STALE = "stale"
    """The store is unreachable, or sealed, in which case its cluster may continue in another. The
    last snapshot is served, with its age.
    """


@dataclass(frozen=True, slots=True)
class AppliedCommit:
    """Effect of one commit on the tree, passed to subscribers in order, each revision once.

    ``reloaded``: the steps between ``before`` and ``after`` are unknown, and ``writes`` and
    ``events`` are empty; also the first time, when ``before`` is an empty tree.
    """

    before: Snapshot
    after: Snapshot
    revision: int
    writes: tuple[Write, ...]
    events: Events
    reloaded: bool = False


class Replica:
    """Replica that follows one store. After ``start``, every method is thread-safe."""

    def __init__(
        self,
        store: Store,
        codec: Codec,
        *,
        stale_after_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._store: Final = store
        self._now_ms: Final = now_ms
        self.event_keys: Final = EventKeys()
        """Keys of the event rows of new commits."""
        self._codec: Final = codec
        self.stale_after_seconds = stale_after_seconds
        self._clock: Final = clock
        self._subscribers: tuple[Callable[[AppliedCommit], None], ...] = ()
        self._stop: Final = threading.Event()
        self._thread: threading.Thread | None = None
        self.watch: Watch | None = None
        """Watch by which the replica follows the store; None while it does not follow it."""
        self._snapshot: Snapshot | None = None
        self._received_at = clock()
        self._away = False
        self.sealed = ""
        """Why the store takes no changes, as far as the replica knows; empty: it takes them."""
        self._sealed_at = clock()
        self._trouble = ""
        self._log_context: contextvars.Context
        """Log context of ``start``, for any thread that applies commits, under ``_applying``; the
        replica's thread has a copy of its own.
        """
        self._publishing = 0
        """Id of the thread that calls the subscribers now; 0: none."""
        self._waiting: Final = threading.Lock()
        self._waiters: list[_Waiter] = []  # guarded by _waiting
        self.reloads = 0
        """Number of times that everything was loaded again because the watch could not resume."""
        self._restarts_before = 0  # of watches that are closed
        self._reported: Snapshot | None = None  # that all subscribers have; guarded by _waiting
        self._applying: Final = threading.Lock()
        """Held by the thread that applies commits. It calls the subscribers: no thread may wait for
        this lock while holding another that they need.
        """
        self._taken: Final[deque[CommittedWrites]] = deque()
        """Commits after the newest tree that the watch has given to the threads that made them."""
        self._failure: BaseException | None = None
        """Error with which commits were not applied; the replica's thread then loads everything
        again.
        """

    # -- the newest tree ---------------------------------------------------------------------

    @property
    def snapshot(self) -> Snapshot:
        """The newest tree.

        Raises:
            NotReady: nothing was loaded yet.
        """
        snapshot = self._snapshot
        if snapshot is None:
            raise NotReady("the tree is not loaded yet")
        return snapshot

    @property
    def reported_revision(self) -> int:
        """Revision of the newest tree that every subscriber has received: derived data, such as the
        mount table, is as new.

        Raises:
            NotReady: nothing was loaded yet.
        """
        reported = self._reported
        if reported is None:
            raise NotReady("the tree is not loaded yet")
        return reported.revision

    @property
    def state(self) -> ReplicaState:
        """Current state; LOADING until every subscriber has received the first tree. A store that
        neither answers nor fails counts as unreachable after a while.
        """
        if self._reported is None:
            return ReplicaState.LOADING
        return ReplicaState.STALE if self.is_away or self.sealed else ReplicaState.SERVING

    @property
    def is_away(self) -> bool:
        """True if the store does not answer; a sealed store may answer."""
        return self._away or self._clock() - self._received_at > self.stale_after_seconds

    @property
    def age_seconds(self) -> float:
        """Time since the store last answered, or was found sealed; 0.0 while it is followed."""
        if self.state is ReplicaState.SERVING:
            return 0.0
        since = min(self._sealed_at, self._received_at) if self.sealed else self._received_at
        return max(0.0, self._clock() - since)

    def refuse_too_stale(self, max_stale_seconds: float) -> None:
        """Checks that the store has not been unreachable, or sealed, for longer than the limit
        (S4).

        Raises:
            Unreachable: names the time.
        """
        if self.state is ReplicaState.STALE and (age := self.age_seconds) > max_stale_seconds:
            raise Unreachable(
                f"the store has been {self._how_stale} for {age:.0f} s; "
                f"answers are given for {max_stale_seconds:.0f} s at most",
                age_seconds=f"{age:.1f}",
            )

    @property
    def _how_stale(self) -> str:
        return "sealed" if self.sealed else "away"

    @property
    def trouble(self) -> str:
        """Why the store is not followed, for people; empty while it is."""
        return self._trouble or self.sealed

    @property
    def watch_restarts(self) -> int:
        """Number of times that the watch reconnected, without any loss."""
        watch = self.watch
        return self._restarts_before + (0 if watch is None else watch.restarts)

    def is_known(self, revision: int) -> bool:
        """True if every subscriber has received a tree of at least this revision."""
        reported = self._reported
        return reported is not None and reported.revision >= revision

    def wait_for(self, revision: int, timeout_seconds: float) -> Snapshot:
        """Returns the newest tree once it is of at least this revision and every subscriber has
        received it.

        Raises:
            NotReady: nothing was loaded in time.
            StoreUnavailable: the store is unreachable or sealed, so the revision cannot arrive.
            TokenFromFuture: the revision did not arrive in time.
        """
        self.apply_taken()
        deadline = self._clock() + timeout_seconds
        while True:
            with self._waiting:
                reported = self._reported
                if reported is not None and reported.revision >= revision:
                    return reported
                remaining = deadline - self._clock()
                if self.state is ReplicaState.STALE:
                    raise StoreUnavailable(
                        f"revision {revision} is not known here, and the store is "
                        f"{self._how_stale}",
                        revision=revision,
                    )
                if remaining <= 0:
                    break
                waiter = _Waiter(revision)
                self._waiters.append(waiter)
            if not waiter.woken.wait(min(remaining, _NEXT_SECONDS)):
                with self._waiting:
                    self._waiters = [one for one in self._waiters if one is not waiter]
        if reported is None:
            raise NotReady("the tree is not loaded yet")
        raise TokenFromFuture(
            f"revision {revision} not reached within {timeout_seconds:g} s (at "
            f"{reported.revision})",
            revision=revision,
            newest=reported.revision,
        )

    def subscribe(self, callback: Callable[[AppliedCommit], None]) -> Callable[[], None]:
        """Registers a callback for each commit, called in the replica's thread or in the thread
        that made the commit, one at a time: it must be quick and must not wait. Returns the
        function that ends the subscription.
        """
        with self._waiting:
            self._subscribers = (*self._subscribers, callback)

        def unsubscribe() -> None:
            with self._waiting:
                self._subscribers = tuple(one for one in self._subscribers if one is not callback)

        return unsubscribe

    # -- following ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to load, in a thread of its own."""
        self._log_context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=with_log_context(self._follow), name="replica", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread. The loaded tree can still be read. Not for callbacks."""
        self._stop.set()
        watch = self.watch
        if watch is not None:
            watch.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._applying:
            self._taken.clear()

    @contextmanager
    def taking_own_commits(self) -> Iterator[None]:
        """Context manager for a thread that commits to the store in its block: if it can, that
        thread takes the commit, and earlier commits of others, from the watch. It must call
        ``apply_taken`` soon, and need not wait until the replica's thread has applied them.
        """
        watch = self.watch
        if watch is None or self.in_callback:
            yield
            return
        with watch.giving_own_to(self._taken.extend):
            yield
        if self._taken:
            self._note_answer()

    def is_taken(self, revision: int) -> bool:
        """True if a commit is known, or a thread took it: then ``apply_taken`` applies it."""
        try:
            return self._taken[-1].revision >= revision
        except IndexError:
            return self.is_known(revision)

    def apply_taken(self) -> None:
        """Applies the commits that threads took, if any; while another thread does so, waits for
        it. Does not raise: after an error, the replica's thread loads everything again.
        """
        if self._taken and not self.in_callback:
            with suppress(Exception):
                self._apply(())

    @property
    def in_callback(self) -> bool:
        """True in a subscriber's callback, which must not wait."""
        return self._publishing == threading.get_ident()

    def _follow(self) -> None:
        retry_seconds = _FIRST_RETRY_SECONDS
        while not self._stop.is_set():
            began = self._clock()
            try:
                if self.watch is None:
                    self.watch = self._load()
                changes = self.watch.next(_NEXT_SECONDS)
                self._note_answer()
                self._apply(changes)
                self._notice_seal()
                retry_seconds = _FIRST_RETRY_SECONDS
            except HistoryCompacted as reason:
                _log.warning("loading the tree again: %s", reason)
                self._drop_watch()
                retry_seconds = self._pause(retry_seconds, began)
            except (StoreUnreachable, IncompatibleStore) as reason:
                self._lost(str(reason))
                retry_seconds = self._pause(retry_seconds, began)
            except Exception as error:  # noqa: BLE001 - a bug must not end it in silence
                _log.exception("the replica failed; loading the tree again")
                self._lost(f"{type(error).__name__}: {error}")
                self._drop_watch()
                self._stop.wait(_LAST_RETRY_SECONDS)
        self._drop_watch()

    def _pause(self, seconds: float, began: float) -> float:
        """Waits before the next try, less the time that this one took; longer each time."""
        took = self._clock() - began
        self._stop.wait(max(0.0, seconds * random.uniform(0.5, 1.0) - took))
        return min(2 * seconds, _LAST_RETRY_SECONDS)

    def _drop_watch(self) -> None:
        watch, self.watch = self.watch, None
        if watch is not None:
            self._restarts_before += watch.restarts
            watch.close()

    def _lost(self, why: str) -> None:
        if not self._away:
            _log.warning("the store is away: %s", why)
        self._away, self._trouble = True, why
        self._wake(None)  # a thread that waits for a revision finds the store away

    def _note_answer(self) -> None:
        """Records that the store answered."""
        if self._away:
            _log.warning("the store is back")
        self._away, self._trouble, self._received_at = False, "", self._clock()

    def _apply(self, changes: Sequence[CommittedWrites]) -> None:
        """Applies commits, after the earlier commits that threads took."""
        with self._applying:
            if self._failure is not None:
                raise RuntimeError("commits were not applied") from self._failure
            try:
                self._log_context.run(self._apply_in_order, changes)
            except BaseException as error:
                self._taken.clear()
                self._failure = error
                if (watch := self.watch) is not None:
                    watch.close()  # so the replica's thread finds the failure
                raise

    def _apply_in_order(self, changes: Sequence[CommittedWrites]) -> None:
        while self._taken:
            self._apply_next(self._taken[0])
            self._taken.popleft()
        for change in changes:
            self._apply_next(change)

    def _apply_next(self, change: CommittedWrites) -> None:
        self.event_keys.receive(change.writes)
        before = self.snapshot
        after = before.apply(change.revision, change.writes)
        events = events_of(change.revision, change.writes, self._store.identity.cluster_id)
        self._publish(AppliedCommit(before, after, change.revision, change.writes, events))

    def _notice_seal(self) -> None:
        sealed = self._store.identity.sealed
        if sealed and not self.sealed:
            self._sealed_at = self._clock()
            _log.warning("the store takes no changes: %s", sealed)
        self.sealed = sealed

    def _load(self) -> Watch:
        """Loads everything at one revision, publishes it, and follows the store from there."""
        while True:
            identity = self._store.refresh_identity()
            self._notice_seal()
            if identity.partial:
                raise StoreUnreachable(identity.sealed)  # its rows are incomplete
            started = self._clock()
            loading = self._store.load(LOADED_PREFIXES)
            with _collector_paused():
                count = _Counted(loading, self._stop)
                after = Snapshot.load(
                    self._codec, identity.incarnation, loading.revision, count.pages()
                )
            self.event_keys.receive_stored(self._store, self._now_ms())
            watch = self._store.watch(loading.revision, loading.commit_id)
            try:
                same_incarnation = self._store.refresh_identity() == identity
            except BaseException:
                watch.close()  # it has no other owner: it would follow the store for ever
                raise
            # After a restore in the middle the rows may be of another incarnation.
            if same_incarnation:
                break
            watch.close()
        if count.rows >= _FREEZE_ROWS:
            # The collector would scan every live object of the tree again and again for nothing:
            # its nodes hold no cycles and die by their reference counts.
            gc.freeze()
        seconds = self._clock() - started
        _log.info("loaded %d rows of revision %d in %.2f s", count.rows, after.revision, seconds)
        self._received_at, self._away, self._trouble = self._clock(), False, ""
        with self._applying:
            self._taken.clear()  # the closed watch gave them before this load began
            self._failure = None
            before = self._snapshot or Snapshot.empty(self._codec)
            self.reloads += self._snapshot is not None
            self._publish(AppliedCommit(before, after, after.revision, (), (), reloaded=True))
        # The replica serves from here on. The index, for which the first lookup by physical name
        # would wait, is built in another thread: this one has to read the watch, or the store
        # would seem unresponsive.
        threading.Thread(target=self._index, args=(after,), name="index", daemon=True).start()
        return watch

    def _index(self, snapshot: Snapshot) -> None:
        """Builds the index of physical names, giving way to requests: otherwise each thread switch
        costs them 5 ms (with 400,000 topics their p99 was 117 ms without giving way, 7 ms with it).
        """
        snapshot.index_physical_names(lambda: self._stop.wait(_GIVE_WAY_SECONDS))

    def _publish(self, applied: AppliedCommit) -> None:
        """Swaps the tree, calls the subscribers, then wakes the waiters, which find the
        subscribers' data (mount table, history) as new as the tree.
        """
        self._publishing = threading.get_ident()
        self._snapshot = applied.after
        try:
            for callback in self._subscribers:
                try:
                    callback(applied)
                except Exception:  # noqa: BLE001 - one subscriber's bug is not all others'
                    _log.exception("a subscriber failed at revision %d", applied.revision)
        finally:
            self._publishing = 0
        self._wake(applied.after)

    def _wake(self, reported: Snapshot | None) -> None:
        """Wakes the waiters whose revision has arrived, and only those. None: the store is away,
        so wakes all.
        """
        with self._waiting:
            if reported is not None:
                self._reported = reported
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if reported is None or waiter.revision <= reported.revision:
                    waiter.woken.set()
                else:
                    self._waiters.append(waiter)


class _Waiter:
    """Thread that waits for a revision."""

    def __init__(self, revision: int) -> None:
        self.revision: Final = revision
        self.woken: Final = threading.Event()


class _Counted:
    """Pages of a load, with the number of rows so far."""

    def __init__(self, loading: Loading, stop: threading.Event) -> None:
        self._loading: Final = loading
        self._stop: Final = stop
        self.rows = 0

    def pages(self) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        for page in self._loading.pages():
            if self._stop.is_set():
                raise StoreUnreachable("the server stops")
            self.rows += len(page)
            yield page


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pauses the garbage collector: a load makes millions of objects that stay, and collections
    while they grow cost quadratic time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
