"""Follows a sqlite store's log.

Commits of other processes are found by sqlite's ``data_version`` (a read of some 80 µs, measured)
once the system reports that the files were written, or every ``POLL_SECONDS`` if it does not
report. A commit of this process wakes the watches at once, unless its thread takes it in place of
the waiting thread. It is not read from the file if its random commit id shows that it follows a
watch's last commit. The system reports it too, so reports are ignored for ``POLL_SECONDS`` after
it; then the file is read, unless another commit has followed.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from directory.store.base import CommittedWrites, Delete, HistoryCompacted, Put, Write
from directory.store.schema import sealed_of
from directory.store.sqlite.database_file import DatabaseFile, away_on_error
from directory.store.sqlite.file_events import subscribe

__all__ = ["AGAIN_SECONDS", "POLL_SECONDS", "REPORTED_SECONDS", "CommitSignal", "SqliteWatch"]

POLL_SECONDS: Final = 0.02
"""Interval between reads of the file if the system does not report writes."""
REPORTED_SECONDS: Final = 4.0
"""Interval between reads if the system reports writes: it may not report a replaced directory."""
AGAIN_SECONDS: Final = 0.25
"""Time from a report to one more read of the file: sqlite writes its log, waits for the disk, and
then makes the commit visible in memory, which is not reported.
"""
_RECENT: Final = 256
_RECENT_BYTES: Final = 16_384
"""Commits that are larger are read from the file."""
_REVISIONS: Final = 500  # most revisions of one read
_WRITES: Final = 20_000  # most writes of one read, which has at least one revision


class CommitSignal:
    """Signal of the commits of one store object, on which its watches wait for the next one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._changed: Final = threading.Condition()
        self.settled_at = -math.inf
        """Until this time reports are ignored; then each watch reads the file."""
        self.again_at = -math.inf
        """Time of one more read of the file, ``AGAIN_SECONDS`` after the newest report."""
        self._count = 0
        self._recent: Final[deque[tuple[str, CommittedWrites]]] = deque(maxlen=_RECENT)
        """The newest small commits, each with the id of the commit before it."""
        self._newest = ""
        """Id of the newest commit; empty if another event was notified since."""
        self._watches = 0
        self._holding = 0
        """Number of threads that take their own commits from the watch: it need not wake."""
        self._sleeps_until = math.inf
        """Time at which a waiting watch wakes up by itself; infinite if none waits."""

    def join(self, watches: int) -> None:
        """Adds ``watches``, 1 or -1, to the number of watches."""
        with self._changed:
            self._watches += watches

    def count(self) -> int:
        """Returns the number of notifications. It is called before a read of the file, and its
        result is passed to ``wait`` if no commit was found.
        """
        with self._changed:
            return self._count

    def notify(self, before: str = "", made: Sequence[CommittedWrites] = ()) -> None:
        """Records ``made``, the commits that follow the commit ``before``, and wakes the watches or
        leaves that to ``release``. Without commits, notifies of another event, such as a seal.
        """
        with self._changed:
            self._count += 1
            for one in made:
                if _size_of(one) <= _RECENT_BYTES:
                    self._recent.append((before, one))
                before = one.commit_id
            self._newest = ""
            if made:
                self._newest = made[-1].commit_id
                self.settled_at = self._clock() + POLL_SECONDS
            if not (made and self._holding and self._watches == 1):
                self._changed.notify_all()

    def hold(self) -> None:
        """Begins a time in which commits do not wake the only watch."""
        with self._changed:
            self._holding += 1

    def release(self, commit_id: str) -> None:
        """Ends the time that ``hold`` began; wakes the watch if its last commit, ``commit_id``, is
        not the newest.
        """
        with self._changed:
            self._holding -= 1
            if self._newest != commit_id:
                self._changed.notify_all()

    def report(self) -> None:
        """Wakes the watches: files were written. For ``POLL_SECONDS`` after a commit of this
        process, wakes only those that would sleep longer.
        """
        with self._changed:
            now = self._clock()
            self.again_at = now + AGAIN_SECONDS
            if now >= self.settled_at:
                self.notify()
            elif self._sleeps_until > self.settled_at:
                self._count += 1
                self._changed.notify_all()

    def following(self, revision: int, commit_id: str) -> list[CommittedWrites]:
        """Returns the recorded commits that follow this one without a gap."""
        newer: list[tuple[str, CommittedWrites]] = []
        with self._changed:
            for one in reversed(self._recent):
                if one[1].revision <= revision:
                    break
                newer.append(one)
        found: list[CommittedWrites] = []
        for before, made in reversed(newer):
            if before != commit_id:
                break
            found.append(made)
            commit_id = made.commit_id
        return found

    def is_newest(self, commit_id: str) -> bool:
        """True if this commit is the newest, and no other event was notified since."""
        return self._newest == commit_id != ""

    def wait(self, count: int, until: float) -> None:
        """Waits until the count is no longer ``count``, or the time ``until`` has come."""
        with self._changed:
            self._sleeps_until = until
            seconds = max(0.0, until - self._clock())
            self._changed.wait_for(lambda: self._count != count, seconds)
            self._sleeps_until = math.inf


def _size_of(made: CommittedWrites) -> int:
    return sum(
        len(one.key) + (len(one.value) if isinstance(one, Put) else 0) for one in made.writes
    )


class SqliteWatch:
    """Watch of a sqlite store (``directory.store.base.Watch``)."""

    restarts = 0  # a file has no connection that breaks

    def __init__(
        self,
        file: DatabaseFile,
        news: CommitSignal,
        clock: Callable[[], float],
        after: int,
        commit_id: str,
    ) -> None:
        """Begins after a revision.

        Raises:
            StoreUnreachable, HistoryCompacted
        """
        self._file: Final = file
        self._news: Final = news
        self._clock: Final = clock
        self._after = after
        self._commit_id = commit_id
        self._poll_at = clock()
        """Time of the next read of the file, even if nothing was reported."""
        self._polled_at = -math.inf
        self._polled_count = -1
        """Count of ``news`` at the last read of the file."""
        self._closed = False
        self._lock: Final = threading.Lock()
        """Held by the thread that reads commits, gives them to ``take``, or closes."""
        self.is_waiting = False
        """True while a thread waits in ``next``."""
        self._version: int | None = None
        self._stamp = file.stamp()
        self._connection, self._inode = file.connect()
        # Before the first read, so that later writes are reported.
        self._events: Final = subscribe(file.path.parent, file.written_names, news.report)
        try:
            with away_on_error(file.path):
                self._verify()
        except BaseException:
            self._disconnect()
            raise
        news.join(1)

    def next(self, timeout_seconds: float) -> Sequence[CommittedWrites]:
        deadline = self._clock() + timeout_seconds
        while True:
            count = self._news.count()
            with self._lock:
                self.is_waiting = False
                if self._closed:
                    return ()
                changes = self._follow()
                if not changes and self._is_due(count):
                    self._polled_at = self._clock()
                    changes = self._poll()
                    self._polled_count = count
                    self._poll_at = self._clock() + self._poll_seconds()
                now = self._clock()
                if changes or now >= deadline:
                    return changes
                self.is_waiting = True
            # One wake-up for both times if they are close: it costs more than the read.
            is_close = 0 <= deadline - self._poll_at < self._poll_seconds() / 10
            until = deadline if is_close else min(self._poll_at, deadline)
            self._news.wait(count, min(until, self._settled_at()))

    @contextmanager
    def giving_own_to(self, take: Callable[[Sequence[CommittedWrites]], None]) -> Iterator[None]:
        self._news.hold()
        try:
            yield
        finally:
            try:
                self._give(take)
            finally:
                self._news.release(self._commit_id)

    def _give(self, take: Callable[[Sequence[CommittedWrites]], None]) -> None:
        """Calls ``take`` with the commits that follow, if no other thread reads or takes them."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self.is_waiting and not self._closed and (changes := self._follow()):
                take(changes)
        finally:
            self._lock.release()

    def _is_due(self, count: int) -> bool:
        """True if the file is to be read now."""
        if self._clock() >= min(self._poll_at, self._settled_at()):
            return True
        return count != self._polled_count and not self._news.is_newest(self._commit_id)

    def _follow(self) -> list[CommittedWrites]:
        """Moves to the last of the following commits that this process recorded; returns them."""
        changes = self._news.following(self._after, self._commit_id)
        self._move_to(changes)
        return changes

    def _move_to(self, changes: Sequence[CommittedWrites]) -> None:
        if changes:
            self._after, self._commit_id = changes[-1].revision, changes[-1].commit_id

    def _settled_at(self) -> float:
        """Returns the time at which the file is to be read after reports; infinite once it was
        read.
        """
        times = (self._news.settled_at, self._news.again_at)
        return min((one for one in times if self._polled_at < one), default=math.inf)

    def _poll_seconds(self) -> float:
        if self._version is None:
            return 0.0  # there is more
        is_reported = self._events is not None and self._events.is_active
        return REPORTED_SECONDS if is_reported else POLL_SECONDS

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._news.join(-1)
            self._closed = True
            self._disconnect()
        self._news.notify()

    def _disconnect(self) -> None:
        if self._events is not None:
            self._events.close()
        self._connection.close()

    def _poll(self) -> list[CommittedWrites]:
        self._notice_restore()
        with away_on_error(self._file.path):
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
            if version == self._version:
                return []
            self._connection.execute("BEGIN")
            try:
                self._verify()
                self._file.notice_sealed(sealed_of(self._connection))
                changes, complete = self._read_changes()
            finally:
                self._connection.execute("ROLLBACK")
        self._move_to(changes)
        self._version = version if complete else None
        return changes

    def _notice_restore(self) -> None:
        """Raises HistoryCompacted if another file was put there; a new stamp can also come from a
        checkpoint.
        """
        stamp = self._file.stamp()
        if stamp.same_content(self._stamp):
            return
        with self._file.writing():
            self._stamp = self._file.stamp()
        if self._stamp.inode != self._inode:
            raise HistoryCompacted(f"{self._file.path}: another file is there now")

    def _verify(self) -> None:
        """Checks that the watch's last commit is still stored; a new incarnation keeps none."""
        row = self._connection.execute(
            "SELECT commit_id FROM commits WHERE revision = ?", (self._after,)
        ).fetchone()
        if row is None:
            raise HistoryCompacted(f"{self._file.path}: revision {self._after} is not kept")
        if row[0] != self._commit_id:
            raise HistoryCompacted(
                f"{self._file.path}: revision {self._after} is another commit there"
            )

    def _read_changes(self) -> tuple[list[CommittedWrites], bool]:
        """Returns the next revisions, and whether these are all."""
        commits = self._connection.execute(
            "SELECT revision, commit_id, writes_total FROM commits WHERE revision > ?"
            " ORDER BY revision LIMIT ?",
            (self._after, _REVISIONS),
        ).fetchall()
        if not commits:
            return [], True
        bound = commits[0][2] + _WRITES
        kept = [row for row in commits if row[2] <= bound]
        complete = len(kept) == len(commits) < _REVISIONS
        writes: dict[int, list[Write]] = {row[0]: [] for row in kept}
        for revision, key, value in self._connection.execute(
            "SELECT revision, key, value FROM log WHERE revision > ? AND revision <= ?"
            " ORDER BY revision, position",
            (self._after, kept[-1][0]),
        ):
            writes[revision].append(Delete(key) if value is None else Put(key, value))
        return [CommittedWrites(row[0], row[1], tuple(writes[row[0]])) for row in kept], complete
