"""Carries out commands: plan on the newest tree, commit under the plan's guards, wait to see it.

Refuses to decide what a command means (``namespace/plan.py``) and whether the caller may
(``authorization``). The same request id never has a second effect, whatever happened to the first
answer: the request's row is written in the transaction of its effect.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, TypeGuard

from directory.namespace.command import Command, Context, Plan
from directory.namespace.entry import Codec
from directory.namespace.keys import QUOTA, event_key, request_key
from directory.namespace.plan import plan
from directory.namespace.policies import Level
from directory.namespace.snapshot import Snapshot
from directory.refusals import away, full, refuse_oversized, sealed
from directory.request_record import RequestRecord, fingerprint_of
from directory.store.base import (
    Committed,
    Conflict,
    Guard,
    KeyIs,
    Put,
    Sealed,
    Store,
    StoreAway,
    StoreFull,
    Transaction,
    Write,
)
from directory.store.events import new_change_id, pack
from directory.store.replica import Replica, ReplicaState
from directory.turns import Turn, Turns
from resolver.errors import (
    DeadlineExceeded,
    KdirError,
    LostRace,
    RequestIdReused,
    StoreUnavailable,
    TokenFromFuture,
)
from resolver.path import Path

__all__ = ["Writer", "Written"]

_log = logging.getLogger(__name__)

_TRIES: Final = 16
"""So often a command is planned anew after others changed what it had read."""
_FACTS_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Written:
    """What a command came to. ``repeated``: by an earlier request of the same id, whose answer this
    is; ``plan`` then holds its path, entry, counts and notes only.
    """

    plan: Plan
    revision: int
    repeated: bool = False
    snapshot: Snapshot | None = None
    """What it was planned on, where it was only planned."""


@dataclass(frozen=True, slots=True)
class _Request:
    """Whose request it is, and what it asks, as ``Writer.execute`` has it; empty ``request_id``: it
    cannot be asked again.
    """

    command: Command
    principal: str
    request_id: str
    deadline: float
    extra_guards: tuple[Guard, ...]
    extra_writes: tuple[Write, ...]
    authorize: Callable[[Snapshot], Sequence[Guard]]
    validate_only: bool = field(kw_only=True)
    deletes_in_kafka: bool = field(kw_only=True)
    creates_in_kafka: bool = field(kw_only=True)

    @property
    def key(self) -> bytes:
        return request_key(self.principal, self.request_id)


class Writer:
    """Writes to one store; used by any thread.

    Args:
        allow: raises for writes that not every server of the cluster can deal with yet.
    """

    def __init__(
        self,
        store: Store,
        replica: Replica,
        codec: Codec,
        mount: Callable[[], Path],
        *,
        above: Callable[[Snapshot], Sequence[Level]] = lambda _: (),
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        allow: Callable[[Sequence[Write]], None] = lambda _: None,
    ) -> None:
        self._allow: Final = allow
        self._store: Final = store
        self._replica: Final = replica
        self._codec: Final = codec
        self._mount: Final = mount
        self._above: Final = above
        self._clock: Final = clock
        self._now_ms: Final = now_ms
        self._turns: Final = Turns(clock)
        self._counting: Final = threading.Lock()
        self._under_way = 0

    @property
    def under_way(self) -> int:
        """How many commands are being committed: who does much in small steps lets those of others
        go first in between.
        """
        return self._under_way

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._counting:
            self._under_way += 1
        try:
            yield
        finally:
            with self._counting:
                self._under_way -= 1

    def execute(  # noqa: PLR0913 - a command comes with this much
        self,
        command: Command,
        *,
        principal: str = "",
        request_id: str = "",
        timeout_seconds: float = 5.0,
        deletes_in_kafka: bool = False,
        creates_in_kafka: bool = False,
        extra_guards: Sequence[Guard] = (),
        extra_writes: Sequence[Write] = (),
        validate_only: bool = False,
        authorize: Callable[[Snapshot], Sequence[Guard]] = lambda _: (),
    ) -> Written:
        """Carries out a command, or only says what it would do (``validate_only``).

        ``extra_guards`` and ``extra_writes`` go into the same transaction; an extra guard that does
        not hold ends it, since planning anew would not help. ``authorize`` is asked before each
        try, on the snapshot that it is planned on; it raises, or answers the guards under which the
        right holds still.

        Raises:
            KdirError: whatever planning says of the command.
            RequestIdReused: the request id was used for another command.
            LimitExceeded: it does not fit one transaction of this store, or the store is full.
            LevelNotFinalised: some server of the cluster could not deal with it.
            LostRace: others were quicker every time, or an extra guard does not hold.
            StoreSealed: the store takes no changes, for now or for good; nothing was written.
            StoreUnavailable: the store is away. ``effect=unknown`` among the facts: it may have
                taken effect; the same request id tells.
            NotReady: nothing is loaded yet.
            DeadlineExceeded
        """
        request = _Request(
            command,
            principal,
            request_id,
            self._clock() + timeout_seconds,
            tuple(extra_guards),
            tuple(extra_writes),
            authorize,
            validate_only=validate_only,
            deletes_in_kafka=deletes_in_kafka,
            creates_in_kafka=creates_in_kafka,
        )
        return self._until_done(request)

    def _until_done(self, request: _Request) -> Written:
        tries = 0
        with self._turns.turn() as turn:
            while tries < _TRIES:
                match self._once(request, turn):
                    case Written() as written:
                        return written
                    case Conflict(guard, revision):
                        if guard in request.extra_guards:
                            raise LostRace(f"{guard} does not hold any more; nothing was written")
                        # All that comes below a quota collides, so that is no sign of anything
                        # being wrong: somebody's came through, and the deadline is bound enough.
                        tries += not _counts(guard)
                        self._catch_up(revision, request.deadline)
                    case None:
                        pass  # it was counted before somebody else's came
        raise LostRace(
            f"others changed the same thing {_TRIES} times in a row; nothing was written",
            tries=_TRIES,
        )

    def _once(self, request: _Request, turn: Turn) -> Written | Conflict | None:
        """Plans on the newest tree and commits; None: the turn came meanwhile, plan anew."""
        if not request.validate_only:
            self._refuse_while_away()
        snapshot = self._replica.snapshot
        context = Context(
            now_ms=self._now_ms(),
            principal=request.principal,
            new_id=_new_id,
            deletes_in_kafka=request.deletes_in_kafka,
            creates_in_kafka=request.creates_in_kafka,
            above=self._above(snapshot),
        )
        try:
            rights = tuple(request.authorize(snapshot))
            planned = plan(snapshot, self._mount(), request.command, context)
        except KdirError:
            # What is in the way may be the effect of this very request's first try.
            if not request.validate_only and (known := self._answered(request)):
                return known
            raise
        if request.validate_only:
            return Written(planned, snapshot.revision, snapshot=snapshot)
        if not planned.writes and not request.extra_writes:
            return self._answered(request) or Written(planned, snapshot.revision)
        mark = next(filter(_counts, planned.guards), None)
        if mark is not None and turn.take(mark.key, request.deadline):
            return None
        guarded = replace(planned, guards=(*planned.guards, *rights))
        with self._counted():
            return self._commit(request, guarded, context.now_ms)

    def put_facts(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> int:
        """Writes facts that are no entries, in one transaction; answers its revision.

        Raises:
            LostRace: a guard does not hold; nothing was written.
            LimitExceeded, StoreSealed, StoreUnavailable
        """
        transaction = Transaction(tuple(guards), tuple(writes))
        refuse_oversized(transaction, self._store.limits)
        self._allow(writes)
        self._refuse_while_away()
        try:
            done = self._store.commit(transaction, _FACTS_SECONDS)
        except Sealed as reason:
            raise sealed(reason) from reason
        except StoreFull as reason:
            raise full(reason) from reason
        except StoreAway as reason:
            raise away(reason, effect="unknown") from reason
        if isinstance(done, Conflict):
            raise LostRace(f"{done.guard} does not hold any more; nothing was written")
        self._see(done.revision, self._clock() + _FACTS_SECONDS)
        return done.revision

    # -- one try -----------------------------------------------------------------------------

    def _commit(self, request: _Request, planned: Plan, now_ms: int) -> Written | Conflict:
        change_key = event_key(new_change_id(now_ms, len(planned.changes)))
        # First, so that a conflict with our own earlier self is told before all others.
        guards: list[Guard] = [KeyIs(request.key, None)] if request.request_id else []
        guards += [*planned.guards, *request.extra_guards]
        writes = [*planned.writes, *request.extra_writes]
        if planned.changes:
            value = pack(
                planned.changes,
                time_ms=now_ms,
                principal=request.principal,
                request_id=request.request_id,
            )
            writes.append(Put(change_key, value))
        if request.request_id:
            record = RequestRecord.of(request.command, planned, self._codec, now_ms)
            writes.append(Put(request.key, record.to_bytes()))
        transaction = Transaction(tuple(dict.fromkeys(guards)), tuple(writes))
        refuse_oversized(transaction, self._store.limits)
        self._allow(writes)
        remaining = request.deadline - self._clock()
        if remaining <= 0:
            raise DeadlineExceeded("the time was over before the store was asked")
        try:
            done = self._store.commit(transaction, remaining)
        except Sealed as reason:
            raise sealed(reason) from reason
        except StoreFull as reason:
            raise full(reason) from reason
        except StoreAway as reason:
            # Whether it happened is looked up for somebody who still waits.
            waited_for = planned.changes and self._clock() < request.deadline
            revision = self._revision_of(change_key) if waited_for else None
            if revision is None:
                raise StoreUnavailable(
                    "the store did not answer; whether the change was made is not "
                    "known: ask again with the same request id",
                    effect="unknown",
                ) from reason
            self._see(revision, request.deadline)
            return Written(planned, revision)
        match done:
            case Committed(revision):
                self._see(revision, request.deadline)
                return Written(planned, revision)
            case Conflict(guard) if request.request_id and guard == guards[0]:
                known = self._answered(request)
                return known if known is not None else done
            case _:
                return done

    def _revision_of(self, key: bytes) -> int | None:
        """At which revision a key that is written once was written; None: not, or not known."""
        try:
            row = _row(self._store, key)
        except StoreAway:
            return None
        return row[1] if row else None

    def _answered(self, request: _Request) -> Written | None:
        """The answer that this request id was given before.

        Raises:
            RequestIdReused, StoreUnavailable
        """
        if not request.request_id:
            return None
        try:
            row = _row(self._store, request.key)
        except StoreAway as reason:
            raise away(reason) from reason
        if row is None:
            return None
        value, revision = row
        try:
            record = RequestRecord.from_bytes(value)
        except ValueError as error:
            raise RequestIdReused(
                f"request_id: {request.request_id!r} was used for a request that is kept in a form "
                "this server cannot read; a new request needs a new id",
                request_id=request.request_id,
            ) from error
        if record.fingerprint != fingerprint_of(request.command):
            raise RequestIdReused(
                f"request_id: {request.request_id!r} was used for another request; a new request "
                "needs a new id",
                request_id=request.request_id,
            )
        self._see(revision, self._clock() + _FACTS_SECONDS)
        return Written(record.to_plan(self._codec), revision, repeated=True)

    # -- waiting -----------------------------------------------------------------------------

    def _refuse_while_away(self) -> None:
        """A write is refused at once while the store is known to be away (RELIABILITY S4), or takes
        no changes.
        """
        if why := self._store.identity.sealed:
            raise sealed(why)
        if self._replica.state is ReplicaState.STALE:
            raise StoreUnavailable("the store is away, so nothing can be written")

    def _catch_up(self, revision: int, deadline: float) -> Snapshot:
        """Waits until the replica holds what the plan collided with; planning on the same tree
        would only collide again.
        """
        try:
            return self._replica.wait_for(revision, max(0.0, deadline - self._clock()))
        except TokenFromFuture as error:
            raise DeadlineExceeded(
                f"another change came first, and this server did not see it in time; nothing was "
                f"written ({error.message})"
            ) from error

    def _see(self, revision: int, deadline: float) -> None:
        """Waits until the local replica holds a write. It stands even if that takes too long: the
        answer's token makes later reads wait.
        """
        if self._replica.in_own_thread:
            return
        try:
            self._replica.wait_for(revision, max(0.0, deadline - self._clock()))
        except KdirError as reason:
            _log.warning("revision %d is written, but not seen yet: %s", revision, reason)


def _counts(guard: Guard) -> TypeGuard[KeyIs]:
    """Whether it guards what is counted for a quota."""
    return isinstance(guard, KeyIs) and guard.key.startswith(QUOTA)


def _new_id() -> int:
    """Entry ids are random: two servers need not agree on the next one."""
    return 3 + secrets.randbelow(2**63 - 3)


def _row(store: Store, key: bytes) -> tuple[bytes, int] | None:
    """Value and revision of one key."""
    rows = store.read(key, limit=1)
    return (rows[0].value, rows[0].revision) if rows and rows[0].key == key else None
