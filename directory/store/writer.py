"""Carries out commands: plan on the newest tree, commit under the plan's guards, wait for the
replica.

A request that ends without a commit (refused, or nothing to change) is answered only from a tree
that is as new as the store was when the request came (``Writer.decide``), since another server may
have acknowledged commits that this one's replica has not received yet.

``namespace/plan.py`` plans a command, ``api/entry_writes.py`` authorizes it. The same request id
never has a second effect, whatever happened to the first answer: the request's row is written in
the transaction of its effect, or, if there was nothing to change, in one of its own.
``idempotency.py`` recognizes the repeated request by it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, TypeGuard, TypeVar

from directory.access.grants import Permission
from directory.namespace.bounds import DEFAULT_BOUNDS, Bounds
from directory.namespace.command import AddGrants, Command, Plan, PlanContext, RemoveGrants
from directory.namespace.effective_policies import PolicyLevel
from directory.namespace.entry import Codec
from directory.namespace.keys import CHANGE_LOG, CLAIM, EVENT, QUOTA, ROLE, request_key
from directory.namespace.plan import plan
from directory.namespace.snapshot import Snapshot
from directory.store.base import (
    Committed,
    Conflict,
    Guard,
    KeyEquals,
    Put,
    Store,
    StoreFull,
    StoreIsSealed,
    StoreRefused,
    StoreUnreachable,
    Transaction,
    Write,
)
from directory.store.event_rows import (
    Operation,
    logged_facts,
    operated_change,
    pack,
    random_bits,
)
from directory.store.idempotency import RequestRecord, replay_answer, unanswered
from directory.store.keyed_locks import KeyedLock, KeyedLocks
from directory.store.replica import Replica, ReplicaState
from directory.store.transaction_limits import refuse_oversized
from resolver.errors import (
    Cancelled,
    DeadlineExceeded,
    KafkaUnavailable,
    KdirError,
    LimitExceeded,
    NotReady,
    OutboxFull,
    PermissionDenied,
    RequestIdReused,
    StoreSealed,
    StoreUnavailable,
    TokenExpired,
    TokenFromFuture,
    WriteConflict,
)
from resolver.path import Path

__all__ = ["CommitResult", "Writer"]

_log = logging.getLogger(__name__)

_TRIES: Final = 16
"""Most tries of a command while others change what it read; conflicts on quotas do not count."""
_FACTS_SECONDS: Final = 5.0
_NOT_LOGGED: Final = KeyEquals(CHANGE_LOG, None)
"""Guard that holds while the cluster keeps no change log."""
_NOT_OF_THE_TREE: Final[tuple[type[KdirError], ...]] = (
    Cancelled,
    DeadlineExceeded,
    KafkaUnavailable,
    RequestIdReused,
    StoreSealed,
    StoreUnavailable,
    TokenExpired,
    TokenFromFuture,
)
"""Errors that the tree did not decide: a newer one would not change them."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Result of a command. ``repeated``: this is the stored answer to an earlier request of the
    same id, and ``plan`` has no guards, writes or changes.
    """

    plan: Plan
    revision: int
    repeated: bool = False
    snapshot: Snapshot | None = None
    """Snapshot that a ``validate_only`` command was planned on; else None."""


@dataclass(frozen=True, slots=True)
class _Request:
    """Arguments of one call of ``Writer.commit_command``; empty ``request_id``: a repeated request
    is not recognized.
    """

    command: Command
    principal: str
    request_id: str
    deadline: float
    extra_guards: tuple[Guard, ...]
    extra_writes: tuple[Write, ...]
    authorize: Callable[[Snapshot], Sequence[Guard]]
    validate_only: bool = field(kw_only=True)
    as_shown: Callable[[Plan, Snapshot], Plan] = field(kw_only=True)
    complete: Callable[[Snapshot], Command] = field(kw_only=True)
    later: Callable[[Callable[[], None]], None] | None = field(kw_only=True)
    claims: dict[bytes, bytes | None] = field(default_factory=dict, kw_only=True)
    """Stored claims of physical names, which no snapshot has, on which a try failed."""

    @property
    def key(self) -> bytes:
        return request_key(self.principal, self.request_id)


@dataclass(slots=True)
class _Decision:
    """State of one decision by the replica, in one thread, from its beginning to its answer."""

    deadline: float
    oldest: int = -1
    """Every tree that this attempt reads is of this revision at least."""
    newest: int | None = None
    """The store's newest revision at some moment after the request came; None: not read yet."""
    wrote: bool = False
    """True if a commit was made, or may have been: its guards confirm the tree that it needs."""

    def is_confirmed(self) -> bool:
        return self.newest is not None and self.oldest >= self.newest


class _Deciding(threading.local):
    """Decision that the current thread makes now; None: none."""

    decision: _Decision | None = None


class Writer:
    """Writer to one store, for any thread: how every module writes while its cluster serves.

    ``commit_command`` changes the tree, ``put_facts`` writes rows that are no entries; an elected
    role passes its ``Leader.guard`` to these two. ``decide`` is for writes that depend on earlier
    reads. Only the code that trims old rows (``RetentionTrimmer``) or begins a new store writes to
    the store itself.

    Args:
        mount: returns the path of the cluster's mount at a snapshot.
        allow: raises for writes that not every server of the cluster can deal with yet.
        check: raises for a plan, on its snapshot and mount, that clusters below cannot take.
        check_outbox: raises for a change while too many commits wait for the change log; with True
            more may wait: for a change that takes rights away, or is of an elected role or an
            operator.
        bounds: limits of what a command may put into an entry.
    """

    def __init__(  # noqa: PLR0913 - what one cluster has, each once
        self,
        store: Store,
        replica: Replica,
        codec: Codec,
        mount: Callable[[Snapshot], Path],
        *,
        above: Callable[[Snapshot], Sequence[PolicyLevel]] = lambda _: (),
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        allow: Callable[[Sequence[Write]], None] = lambda _: None,
        check: Callable[[Snapshot, Path, Plan], None] = lambda *_: None,
        check_outbox: Callable[[bool], None] = lambda _: None,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        self._bounds: Final = bounds
        self._allow: Final = allow
        self._check: Final = check
        self._check_outbox: Final = check_outbox
        self._store: Final = store
        self._replica: Final = replica
        self._codec: Final = codec
        self._mount: Final = mount
        self.above = above
        self._clock: Final = clock
        self._now_ms: Final = now_ms
        self._locks: Final = KeyedLocks(clock)
        self._deciding: Final = _Deciding()
        self._counting: Final = threading.Lock()
        self._under_way = 0
        self.refused_writes = 0
        """Number of writes that were refused because the store was known to be away."""

    @property
    def under_way(self) -> int:
        """Number of commands being committed: work in many small steps gives way to them between
        its steps.
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

    def commit_command(  # noqa: PLR0913 - a command comes with this much
        self,
        command: Command,
        *,
        principal: str = "",
        request_id: str = "",
        timeout_seconds: float = 5.0,
        extra_guards: Sequence[Guard] = (),
        extra_writes: Sequence[Write] = (),
        validate_only: bool = False,
        authorize: Callable[[Snapshot], Sequence[Guard]] = lambda _: (),
        complete: Callable[[Snapshot], Command] | None = None,
        as_shown: Callable[[Plan, Snapshot], Plan] = lambda planned, _: planned,
        later: Callable[[Callable[[], None]], None] | None = None,
    ) -> CommitResult:
        """Carries out a command, or only plans it (``validate_only``).

        A command that ends without a commit is confirmed as in ``decide``. ``extra_guards`` and
        ``extra_writes`` go into the same transaction; an extra guard that does not hold ends the
        command, since planning again would not help. ``authorize`` is called before each try, on
        the snapshot of that try; it raises, or returns guards under which the right still holds.
        ``complete`` is called after it: it returns the command with looked-up values, such as
        Kafka's topic or whether topics are deleted in Kafka too, or raises; a repeated request is
        recognized by the command as it was before. ``as_shown`` returns the plan with the entry and
        counts that the caller is shown; these are stored with the request id, so that a repeated
        request gets the same. ``later``: if this thread can apply the commit to the replica,
        ``later`` is called with the function that does so, which may run after the answer is sent.
        While others write too, the commit is applied at once, since their plans need it.

        Raises:
            KdirError: the plan, ``authorize`` or ``complete`` refuses the command.
            RequestIdReused: the request id was used for another command.
            LimitExceeded: it does not fit one transaction of this store, or the store is full.
            OutboxFull: too many changes wait for the change log; nothing was written.
            LevelNotFinalized: some server of the cluster could not deal with it.
            WriteConflict: others were quicker every time, or an extra guard does not hold.
            StoreSealed: the store takes no changes, for now or for good; nothing was written.
            StoreUnavailable: the store is away. With ``effect=unknown`` among its facts the command
                may have taken effect; repeat it with the same request id to find out.
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
            as_shown=as_shown,
            complete=complete or (lambda _: command),
            later=later,
        )
        final = (*_NOT_OF_THE_TREE, WriteConflict)
        return self._decide(lambda: self._until_done(request), request.deadline, final)

    def decide(
        self,
        attempt: Callable[[], T],
        timeout_seconds: float = _FACTS_SECONDS,
        *,
        ask_first: bool = False,
    ) -> T:
        """Calls ``attempt``, which decides by the replica what to write and may write it; returns
        or raises what ``attempt`` does.

        If the attempt ends without a commit, its result is true at a revision that the store held
        after this call began: the store's newest revision is read, and if the replica was older
        when the attempt began, ``attempt`` is called again once the replica has reached that
        revision. So each attempt must read the tree from the replica itself. Its calls of
        ``commit_command``, ``put_facts`` and ``decide`` are part of the same decision.

        ``ask_first``: the store's newest revision is read before the first attempt, for an attempt
        that is costly to repeat, writes several times, or writes what would stay wrong for ever.

        Raises:
            StoreUnavailable: the store could not be asked; nothing was written.
            NotReady: nothing is loaded yet.
            DeadlineExceeded
            whatever ``attempt`` raises
        """
        deadline = self._clock() + timeout_seconds
        return self._decide(attempt, deadline, _NOT_OF_THE_TREE, ask_first=ask_first)

    def _decide(
        self,
        attempt: Callable[[], T],
        deadline: float,
        final: tuple[type[KdirError], ...],
        *,
        ask_first: bool = False,
    ) -> T:
        """Implements ``decide``. ``final``: errors of the attempt that are raised without asking
        the store.
        """
        if self._deciding.decision is not None or self._replica.in_callback:
            # In a callback of the replica nothing newer can come while the attempt runs.
            return attempt()
        decision = self._deciding.decision = _Decision(deadline)
        try:
            while True:
                decision.oldest = self._replica.reported_revision
                if ask_first and not self._confirm(decision):
                    self._catch_up_with(decision)
                    decision.oldest = self._replica.reported_revision
                try:
                    answer = attempt()
                except final:
                    raise
                except KdirError:
                    if decision.wrote or self._confirm(decision):
                        raise
                else:
                    if decision.wrote or self._confirm(decision):
                        return answer
                self._catch_up_with(decision)
        finally:
            self._deciding.decision = None

    def _catch_up_with(self, decision: _Decision) -> None:
        assert decision.newest is not None  # noqa: S101 - the store was asked
        self._catch_up(decision.newest, decision.deadline)

    def _confirm(self, decision: _Decision) -> bool:
        """True if the replica was as new as the store, so that the decision holds.

        Raises:
            StoreUnavailable: the store cannot be asked; nothing was written.
            DeadlineExceeded
        """
        if decision.newest is None:
            if self._replica.state is ReplicaState.STALE and not self._store.identity.sealed:
                raise _unconfirmed()
            remaining = decision.deadline - self._clock()
            if remaining <= 0:
                raise DeadlineExceeded("the deadline passed before the store was asked")
            try:
                decision.newest = self._store.newest_revision(remaining)
            except StoreUnreachable as reason:
                _log.warning("the store is away: %s", reason)
                raise _unconfirmed() from reason
        return decision.is_confirmed()

    def _until_done(self, request: _Request) -> CommitResult:
        tries = 0
        with self._locks.lock_for() as lock:
            while tries < _TRIES:
                match self._once(request, lock):
                    case CommitResult() as written:
                        return written
                    case Conflict(guard, revision):
                        self._now_at(revision)
                        if guard in request.extra_guards:
                            raise WriteConflict(
                                f"{guard} does not hold any more; nothing was written"
                            )
                        # Writes below one quota always conflict, and one of them succeeds: such
                        # conflicts are not counted, since the deadline is bound enough. Nor are
                        # claims that are seen for the first time: many may be damaged (S21).
                        is_new = False
                        if isinstance(guard, KeyEquals) and guard.key.startswith(CLAIM):
                            is_new = guard.key not in request.claims
                            row = self._read_row(guard.key)
                            request.claims[guard.key] = row[0] if row else None
                            revision = max(revision, row[1] if row else 0)
                        tries += not (is_new or _counts(guard))
                        self._catch_up(revision, request.deadline)
                    case None:
                        pass  # it waited for the lock: its plan may count too little
        raise WriteConflict(
            f"others changed the same thing {_TRIES} times in a row; nothing was written",
            tries=_TRIES,
        )

    def _once(self, request: _Request, lock: KeyedLock) -> CommitResult | Conflict | None:
        """Plans on the newest tree and commits; None: it had to wait for the lock, plan again."""
        if not request.validate_only:
            self._refuse_while_away()
        snapshot = self._replica.snapshot
        context = PlanContext(
            now_ms=self._now_ms(),
            principal=request.principal,
            new_id=_new_id,
            above=self.above(snapshot),
            bounds=self._bounds,
            claims=request.claims,
        )
        may = False
        try:
            rights = tuple(request.authorize(snapshot))
            may = True
            command = request.complete(snapshot)
            mount = self._mount(snapshot)
            planned = plan(snapshot, mount, command, context)
            self._check(snapshot, mount, planned)
            planned = request.as_shown(planned, snapshot)
        except KdirError as error:
            # The reason of the refusal may be the effect of this request's own first try.
            if not request.validate_only and (known := self._answered(request)):
                return known if may else _without_what_is_hidden(known, error)
            raise
        if request.validate_only:
            return CommitResult(planned, snapshot.revision, snapshot=snapshot)
        if not planned.writes and not request.extra_writes:
            return self._keep_answer(request, planned, snapshot, context.now_ms)
        mark = next(filter(_counts, planned.guards), None)
        if mark is not None and lock.acquire(mark.key, request.deadline):
            return None
        if rights:
            planned = replace(planned, guards=(*planned.guards, *rights))
        # Under a quota the next plan needs the commit, and waits for the lock until it is applied.
        later = request.later if mark is None else None
        with self._counted():
            return self._commit(request, planned, context.now_ms, later)

    def put_facts(
        self,
        writes: Sequence[Write],
        guards: Sequence[Guard] = (),
        operation: Operation | None = None,
    ) -> int:
        """Writes facts that are no entries, in one transaction; returns its revision.
        ``operation``: the operator's act, if this is one; it becomes a change event.

        Raises:
            WriteConflict: a guard does not hold; nothing was written.
            LimitExceeded, OutboxFull, StoreSealed, StoreUnavailable
        """
        self._refuse_while_away()
        deadline = self._clock() + _FACTS_SECONDS
        done = self._put_facts(writes, guards, operation, deadline)
        if isinstance(done, Conflict) and done.guard == _NOT_LOGGED:
            # The change log was begun meanwhile, and must get these facts.
            self._catch_up(done.revision, deadline)
            done = self._put_facts(writes, guards, operation, deadline)
        if isinstance(done, Conflict):
            self._now_at(done.revision)
            raise WriteConflict(f"{done.guard} does not hold any more; nothing was written")
        self._wrote()
        self._see(done.revision, self._clock() + _FACTS_SECONDS)
        return done.revision

    def _put_facts(
        self,
        writes: Sequence[Write],
        guards: Sequence[Guard],
        operation: Operation | None,
        deadline: float,
    ) -> Committed | Conflict:
        facts = logged_facts(writes)
        if operation is None:
            logged_guards, logged_writes = self._for_change_log(facts)
        else:
            logged_guards, logged_writes = (), (self._operated_row(operation, facts),)
        transaction = Transaction((*guards, *logged_guards), (*writes, *logged_writes))
        seconds = max(0.001, deadline - self._clock())
        try:
            return self._commit_once(transaction, seconds, is_urgent=operation is not None)
        except StoreUnreachable as reason:
            raise _store_unavailable_error(reason, effect="unknown") from reason

    def _for_change_log(
        self, facts: Sequence[bytes]
    ) -> tuple[tuple[Guard, ...], tuple[Write, ...]]:
        """Returns guards and writes to add to a transaction without events that writes these facts:
        for the change log, a row that lists the facts or, if the cluster keeps no change log, a
        guard that it still keeps none.
        """
        if not facts:
            return (), ()
        if not self._is_logged():
            return (_NOT_LOGGED,), ()
        now_ms = self._now_ms()
        key = self._replica.event_keys.new_key(now_ms, 0)
        return (), (Put(key, pack((), time_ms=now_ms, facts=facts)),)

    def _is_logged(self) -> bool:
        """True if the cluster keeps a change log, as far as this server knows."""
        return self._replica.snapshot.fact(CHANGE_LOG) is not None

    def _operated_row(self, operation: Operation, facts: Sequence[bytes]) -> Put:
        snapshot, now_ms = self._replica.snapshot, self._now_ms()
        value = pack(
            (operated_change(snapshot, self._mount(snapshot), operation),),
            time_ms=now_ms,
            principal=operation.principal,
            request_id=operation.request_id,
            facts=facts,
        )
        return Put(self._replica.event_keys.new_key(now_ms, 1), value)

    def _commit_once(
        self,
        transaction: Transaction,
        seconds: float,
        *,
        is_urgent: bool,
    ) -> Committed | Conflict:
        """Commits a transaction, if the store and every server of the cluster can take it.

        Raises:
            LimitExceeded, LevelNotFinalized, OutboxFull, StoreSealed
            StoreUnavailable: the store refuses it; nothing was written.
            StoreUnreachable: it may have been committed.
        """
        refuse_oversized(
            self._store.limits,
            len(transaction.guards),
            len(transaction.writes),
            transaction.size_bytes,
        )
        self._allow(transaction.writes)
        if self._is_logged() and _waits_for_log(transaction.writes):
            self._check_outbox(is_urgent or any(map(_is_of_role, transaction.guards)))
        done: Committed | Conflict | None = None
        try:
            with self._replica.taking_own_commits():
                done = self._store.commit(transaction, seconds)
            return done
        except StoreIsSealed as reason:
            raise _store_sealed_error(reason) from reason
        except StoreFull as reason:
            raise _store_full_error(reason) from reason
        except StoreRefused as reason:
            raise _store_refused_error(reason) from reason
        finally:
            if not isinstance(done, Committed):
                self._replica.apply_taken()  # commits of others that this thread took

    def _own_decision(self) -> _Decision | None:
        """Returns this thread's decision; None in a callback of the replica, since the thread may
        be deciding something else.
        """
        return None if self._replica.in_callback else self._deciding.decision

    def _now_at(self, revision: int) -> None:
        """Records the store's newest revision, which came with the answer to a commit."""
        decision = self._own_decision()
        if decision is not None and decision.newest is None:
            decision.newest = revision

    def _wrote(self) -> None:
        """Records that a commit was made, or may have been."""
        decision = self._own_decision()
        if decision is not None:
            decision.wrote = True

    # -- one try -----------------------------------------------------------------------------

    def _keep_answer(
        self, request: _Request, planned: Plan, snapshot: Snapshot, now_ms: int
    ) -> CommitResult | Conflict:
        """Returns the result that there is nothing to change, and stores it with the request id,
        if any. It is stored only once confirmed: otherwise it may never have been true.
        """
        unchanged = CommitResult(planned, snapshot.revision)
        decision = self._own_decision()
        if not request.request_id or decision is None or not self._confirm(decision):
            return unchanged  # an unconfirmed one is planned again, on a newer tree
        return self._commit(request, replace(planned, guards=()), now_ms)

    def _commit(
        self,
        request: _Request,
        planned: Plan,
        now_ms: int,
        later: Callable[[Callable[[], None]], None] | None = None,
    ) -> CommitResult | Conflict:
        change_key = self._replica.event_keys.new_key(now_ms, len(planned.changes))
        # First, so that a conflict with this request's earlier try is found before all others.
        guards: list[Guard] = [unanswered(request.key)] if request.request_id else []
        guards += [*planned.guards, *request.extra_guards]
        writes = [*planned.writes, *request.extra_writes]
        facts = logged_facts(writes)
        if planned.changes:
            value = pack(
                planned.changes,
                time_ms=now_ms,
                principal=request.principal,
                request_id=request.request_id,
                facts=facts,
                is_logged=self._is_logged(),
            )
            writes.append(Put(change_key, value))
        else:
            logged_guards, logged_writes = self._for_change_log(facts)
            guards += logged_guards
            writes += logged_writes
        if request.request_id:
            record = RequestRecord.from_plan(request.command, planned, self._codec, now_ms)
            writes.append(Put(request.key, record.to_bytes()))
        transaction = Transaction(tuple(dict.fromkeys(guards)), tuple(writes))
        remaining = request.deadline - self._clock()
        if remaining <= 0:
            raise DeadlineExceeded("the deadline passed before the store was asked")
        try:
            is_urgent = _takes_rights(request.command)
            done = self._commit_once(transaction, remaining, is_urgent=is_urgent)
        except OutboxFull:
            # Nothing is written now; this request's first try may have been.
            known = self._answered(request)
            if known is None:
                raise
            return known
        except StoreUnreachable as reason:
            _log.warning("the store is away: %s", reason)
            # For a caller that still waits, looks up whether it was committed.
            self._wrote()
            waited_for = planned.changes and self._clock() < request.deadline
            revision = self._revision_of(change_key) if waited_for else None
            if revision is None:
                raise StoreUnavailable(
                    "the store did not answer; whether the change was made is not "
                    "known: ask again with the same request id",
                    effect="unknown",
                ) from reason
            self._see(revision, request.deadline)
            return CommitResult(planned, revision)
        match done:
            case Committed(revision):
                self._wrote()
                self._see(revision, request.deadline, later if self._under_way == 1 else None)
                return CommitResult(planned, revision)
            case Conflict(guard) if request.request_id and guard == guards[0]:
                known = self._answered(request)
                return known if known is not None else done
            case _:
                return done

    def _revision_of(self, key: bytes) -> int | None:
        """Returns the revision that wrote a write-once key; None: not written, or unknown."""
        try:
            row = _read_row(self._store, key)
        except StoreUnreachable:
            return None
        return row[1] if row else None

    def _read_row(self, key: bytes) -> tuple[bytes, int] | None:
        """Returns value and revision of one key; None: there is no such key.

        Raises:
            StoreUnavailable
        """
        try:
            return _read_row(self._store, key)
        except StoreUnreachable as reason:
            raise _store_unavailable_error(reason) from reason

    def _answered(self, request: _Request) -> CommitResult | None:
        """Returns the earlier answer to this request id; None: there is none.

        Raises:
            RequestIdReused, StoreUnavailable
        """
        if not request.request_id:
            return None
        row = self._read_row(request.key)
        if row is None:
            return None
        value, revision = row
        answer = replay_answer(value, request.request_id, request.command, self._codec)
        # Confirming the answer (``_confirm``) makes sure that the replica reaches this revision.
        return CommitResult(answer, revision, repeated=True)

    # -- waiting -----------------------------------------------------------------------------

    def _refuse_while_away(self) -> None:
        """Refuses a write at once while the store is known to be away (S4) or takes no changes."""
        if why := self._store.identity.sealed:
            raise _store_sealed_error(why)
        if self._replica.state is ReplicaState.STALE:
            with self._counting:
                self.refused_writes += 1
            raise StoreUnavailable("the store is away, so nothing can be written")

    def _catch_up(self, revision: int, deadline: float) -> Snapshot:
        """Waits until the replica holds the revision that the plan conflicted with, or may have
        lacked: planning again on the same tree would end the same.
        """
        try:
            return self._replica.wait_for(revision, max(0.0, deadline - self._clock()))
        except StoreUnavailable as reason:
            raise _unconfirmed() from reason
        except TokenFromFuture as error:
            raise DeadlineExceeded(
                f"another change came first, and this server did not see it in time; nothing was "
                f"written ({error.message})"
            ) from error

    def _see(
        self,
        revision: int,
        deadline: float,
        later: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """Waits until the local replica has a write. If its commit was taken from the watch,
        ``later`` gets the function that applies it, and nothing is waited for. If the wait takes
        too long, the write is still valid: the answer's token makes later reads wait.
        """
        if self._replica.in_callback:
            return
        if later is not None and self._replica.is_taken(revision):
            later(self._replica.apply_taken)
            return
        try:
            self._replica.wait_for(revision, max(0.0, deadline - self._clock()))
        except KdirError as reason:
            _log.warning("revision %d is written, but not seen yet: %s", revision, reason)


# Errors of the contract for a write that the store does not make. The store's address, and what its
# operator has to do, go to the log and never to callers.


def _store_unavailable_error(reason: StoreUnreachable, effect: str = "none") -> StoreUnavailable:
    """Returns the error for callers; the store's address goes to the log only."""
    _log.warning("the store is away: %s", reason)
    return StoreUnavailable("the store is away", effect=effect)


def _store_sealed_error(reason: object) -> StoreSealed:
    """Returns the error for callers; why it is sealed goes to the log, and to the status."""
    _log.warning("the store takes no changes: %s", reason)
    return StoreSealed(
        "the store of this cluster takes no changes: it is being moved or restored, or was moved"
    )


def _store_refused_error(reason: StoreRefused) -> StoreUnavailable:
    """Returns the error for callers; why the store refuses goes to the log."""
    _log.error("the store refuses a write: %s", reason)
    return StoreUnavailable("the store refuses writes; nothing was written", effect="none")


def _store_full_error(reason: object) -> LimitExceeded:
    """Returns the error for callers; the operator's task goes to the log."""
    _log.error("the store is full: %s", reason)
    return LimitExceeded("the store of this cluster is full; nothing was written", limit="store")


def _unconfirmed() -> StoreUnavailable:
    return StoreUnavailable(
        "the store is away, so what this server holds cannot be confirmed; nothing was written",
        effect="none",
    )


def _without_what_is_hidden(known: CommitResult, error: KdirError) -> CommitResult:
    """Returns the earlier answer for a caller who may not run the command any more, since the
    command itself may have removed the right: without grants and, if the right cannot be
    shown, without the entry.
    """
    plan = replace(known.plan, grants=(), grants_changed=())
    if isinstance(error, PermissionDenied | NotReady):
        plan = replace(plan, entry=None)
    return replace(known, plan=plan)


def _counts(guard: Guard) -> TypeGuard[KeyEquals]:
    """True if a guard protects the count of a quota."""
    return isinstance(guard, KeyEquals) and guard.key.startswith(QUOTA)


def _waits_for_log(writes: Sequence[Write]) -> bool:
    """True if a commit of these writes has events for the change log, and does not concern the log
    itself.
    """
    keys = [write.key for write in writes]
    has_events = any(key.startswith(EVENT) for key in keys)
    return has_events and not any(key.startswith(CHANGE_LOG) for key in keys)


def _is_of_role(guard: Guard) -> bool:
    """True if an elected role commits under this guard (``Leader.guard``)."""
    return isinstance(guard, KeyEquals) and guard.key.startswith(ROLE)


def _takes_rights(command: Command) -> bool:
    """True if a command can only take rights away: more such commands may wait for the change
    log.
    """
    match command:
        case RemoveGrants(grants=grants):
            return all(grant.permission is Permission.ALLOW for grant in grants)
        case AddGrants(grants=grants):
            return all(grant.permission is Permission.DENY for grant in grants)
        case _:
            return False


def _new_id() -> int:
    """Returns a random entry id: servers need not agree on the next one."""
    return max(3, random_bits() >> 1)


def _read_row(store: Store, key: bytes) -> tuple[bytes, int] | None:
    """Returns value and revision of one key; None: there is no such key."""
    rows = store.read(key, limit=1)
    return (rows[0].value, rows[0].revision) if rows and rows[0].key == key else None
