"""A store in memory that keeps the contract, and breaks down when it is told to.

``test_scripted_store.py`` holds it to what the sqlite store answers.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NoReturn

from directory.store.base import (
    Committed,
    CommittedWrites,
    Conflict,
    Guard,
    HistoryCompacted,
    Identity,
    KeyEquals,
    Put,
    Row,
    StoreUnreachable,
    Transaction,
    UnchangedSince,
)
from directory.store.transaction_limits import Limits

_ELSEWHERE = "the conformance suite has real stores for that"


@dataclass
class _Data:
    rows: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    log: list[CommittedWrites] = field(default_factory=list)
    kept_after: int = 0


class ScriptedStore:
    """All of ``Store`` but elections, announcements, seals; ``away`` and the hooks are what tests
    turn.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)
        self.data = _Data()
        self.incarnation = "life1"
        self._incarnations = 1
        self._stored: tuple[_Data, str] | None = None
        self.identity = self._identity()
        self.limits = Limits(max_writes=1_000, max_bytes=1_000_000)
        self.commits = 0
        self.conflicts = 0
        self.newest_reads = 0
        """How often its newest revision was asked for."""
        self.away = False
        """Every call raises StoreUnreachable."""
        self.silent = threading.Event()
        """While set, a watch's ``next`` neither answers nor fails."""
        self.before_commit: Callable[[Transaction], None] = lambda _: None
        """Called before a commit looks at its guards; may raise, or commit something itself."""
        self.after_commit: Callable[[Transaction], None] = lambda _: None
        """Called when a commit has taken effect; may raise."""
        self.before_load: Callable[[], None] = lambda: None
        self.between_pages: Callable[[], None] = lambda: None

    def _identity(self) -> Identity:
        return Identity("store", "kc-scripted00", "la", self.incarnation, 1)

    def check(self) -> None:
        if self.away:
            raise StoreUnreachable("scripted")

    @property
    def _head(self) -> tuple[int, str]:
        log = self.data.log
        return (log[-1].revision, log[-1].commit_id) if log else (0, "")

    def refresh_identity(self) -> Identity:
        self.check()
        self.identity = self._identity()
        return self.identity

    # -- scripts -----------------------------------------------------------------------------

    def in_one_breath(self) -> threading.Condition:
        """Returns a condition: within ``with``, no watch receives what is written between."""
        return self.changed

    def forget_history(self) -> None:
        with self.changed:
            self.data.kept_after = self._head[0]
            self.changed.notify_all()

    def backup(self) -> None:
        with self._lock:
            self._stored = (
                _Data(dict(self.data.rows), list(self.data.log), self.data.kept_after),
                self.incarnation,
            )

    def restore(self) -> None:
        assert self._stored is not None
        with self.changed:
            data, _ = self._stored
            self._incarnations += 1
            self.incarnation = f"life{self._incarnations}"
            revision = max(self._head[0], data.log[-1].revision if data.log else 0) + 1_000_000
            data.log.append(CommittedWrites(revision, f"life-{self._incarnations}", ()))
            data.kept_after = revision
            self.data, self._stored = data, None
            self.changed.notify_all()

    def return_soon(self) -> None:
        """Makes the store answer again."""
        with self.changed:
            self.away = False
            self.changed.notify_all()

    # -- the contract ------------------------------------------------------------------------

    def load(self, prefixes: Sequence[bytes] = (b"",)) -> "_Loading":
        self.check()
        self.before_load()
        with self._lock:
            rows = [
                (key, value)
                for key, (value, _) in sorted(self.data.rows.items())
                if key.startswith(tuple(prefixes))
            ]
            return _Loading(self, *self._head, rows)

    def read(self, prefix: bytes, limit: int = 1000, after: bytes = b"") -> Sequence[Row]:
        self.check()
        with self._lock:
            return [
                Row(key, value, revision)
                for key, (value, revision) in sorted(self.data.rows.items())
                if key.startswith(prefix) and key > after
            ][:limit]

    def newest_revision(self, timeout_seconds: float = 5.0) -> int:
        self.check()
        with self._lock:
            self.newest_reads += 1
            return self._head[0]

    def watch(self, after: int, commit_id: str) -> "_Watch":
        self.check()
        watch = _Watch(self, after, commit_id)
        watch.verify()
        return watch

    def commit(
        self, transaction: Transaction, timeout_seconds: float = 5.0
    ) -> Committed | Conflict:
        self.check()
        self.before_commit(transaction)
        if len(transaction.guards) + len(transaction.writes) > self.limits.max_writes:
            raise ValueError("over the limits")
        with self.changed:
            self.commits += 1
            for guard in transaction.guards:
                if not self._holds(guard):
                    self.conflicts += 1
                    return Conflict(guard, self._head[0])
            revision = self._head[0] + 1
            for write in transaction.writes:
                if isinstance(write, Put):
                    self.data.rows[write.key] = (write.value, revision)
                else:
                    self.data.rows.pop(write.key, None)
            self.data.log.append(CommittedWrites(revision, f"c{self.commits}", transaction.writes))
            self.changed.notify_all()
            done = Committed(*self._head)
        self.after_commit(transaction)
        return done

    def _holds(self, guard: Guard) -> bool:
        match guard:
            case KeyEquals(key, value):
                row = self.data.rows.get(key)
                return (None if row is None else row[0]) == value
            case UnchangedSince(prefix, revision):
                return revision <= self._head[0] and not any(
                    key.startswith(prefix) and written > revision
                    for key, (_, written) in self.data.rows.items()
                )

    def elect(self, role: str, candidate: str) -> NoReturn:
        raise NotImplementedError(_ELSEWHERE)

    def create_ephemeral(self, key: bytes, value: bytes, guards: Sequence[Guard] = ()) -> NoReturn:
        raise NotImplementedError(_ELSEWHERE)

    def remove_expired(self, prefix: bytes = b"") -> NoReturn:
        raise NotImplementedError(_ELSEWHERE)

    def seal(self, why: str, expected: str | None = None) -> NoReturn:
        raise NotImplementedError(_ELSEWHERE)

    def clear(self) -> NoReturn:
        raise NotImplementedError(_ELSEWHERE)

    def fill(self, rows: Iterable[tuple[bytes, bytes]]) -> NoReturn:
        raise NotImplementedError(_ELSEWHERE)

    def unseal(self, expected: str | None = None, at: int | None = None) -> NoReturn:
        raise NotImplementedError(_ELSEWHERE)

    def describe(self) -> str:
        return "scripted://"

    def close(self) -> None:
        pass


class _Loading:
    def __init__(
        self, store: ScriptedStore, revision: int, commit_id: str, rows: list[tuple[bytes, bytes]]
    ) -> None:
        self._store = store
        self.revision = revision
        self.commit_id = commit_id
        self._rows = rows

    def pages(self) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        for begin in range(0, len(self._rows), 10):
            self._store.between_pages()
            self._store.check()
            yield self._rows[begin : begin + 10]


class _Watch:
    def __init__(self, store: ScriptedStore, after: int, commit_id: str) -> None:
        self._store = store
        self._after = after
        self._commit_id = commit_id
        self.incarnation = store.incarnation
        self.restarts = 0
        self.closed = False

    def verify(self) -> None:
        data = self._store.data
        known = {change.revision: change.commit_id for change in data.log} | {0: ""}
        if (
            self._after < data.kept_after
            or self._store.incarnation != self.incarnation
            or known.get(self._after) != self._commit_id
        ):
            raise HistoryCompacted("scripted")

    def next(self, timeout_seconds: float) -> Sequence[CommittedWrites]:
        store = self._store
        deadline = time.monotonic() + timeout_seconds
        while store.silent.is_set() and not self.closed:
            time.sleep(0.005)
        with store.changed:
            while True:
                store.check()
                if self.closed:
                    return ()
                self.verify()
                changes = [one for one in store.data.log if one.revision > self._after]
                remaining = deadline - time.monotonic()
                if changes or remaining <= 0:
                    if changes:
                        self._after, self._commit_id = changes[-1].revision, changes[-1].commit_id
                    return changes
                store.changed.wait(min(remaining, 0.02))

    def giving_own_to(
        self, take: Callable[[Sequence[CommittedWrites]], None]
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        with self._store.changed:
            self.closed = True
            self._store.changed.notify_all()
