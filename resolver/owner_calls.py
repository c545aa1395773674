"""Calls to the owner of a path: finds the owner and calls its servers, and repeats both if the path
has moved.

A call goes only to servers that a resolution proved to own the path. Writes have a request id
(AIP-155), so that a call that is repeated at another server after a lost answer has one effect.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from resolver import errors
from resolver.answer_cache import Cache
from resolver.cached_lookup import CachedLookup, SessionToken
from resolver.deadline_shares import per_server_timeout, time_share
from resolver.endpoints import ServerHealth
from resolver.errors import KdirError
from resolver.lookup_options import LookupOptions
from resolver.path import ROOT, Path
from resolver.resolution.state_machine import ResolutionOptions
from resolver.resolution.values import AbsentResult, Answer, AnswerResult, FailedResult, Sender
from resolver.revision_token import Token
from resolver.transport import Method, Transport, method

__all__ = ["Owner", "OwnerCalls", "is_change", "is_same_twice"]

_NOT_FOLLOWED: Final = frozenset({"CreateEntry", "DeleteEntry", "MoveEntry"})
"""Calls about the entry at the path itself, also if that is a link or a mount."""
_WRITE_WITHOUT_ID: Final = frozenset(
    {"AttachParent", "DetachParent", "EndChangeLog", "ResyncChangeLog", "SkipChangeLog"}
)
"""Calls that write and have no request id."""
_SAME_TWICE: Final = frozenset({"AttachParent", "DetachParent"})
"""Calls without a request id that have the same effect and answer however often they are
repeated.
"""
_MOVED: Final = (errors.NotAuthoritative, errors.Unmounted, errors.Lame, errors.Unimplemented)
_PAUSES: Final = (0.05, 0.1, 0.2, 0.4, 0.8, *repeat(1.0, 600))
"""Pauses in seconds between calls to an owner that has not loaded yet."""
_LEAST_SECONDS: Final = 0.1
"""Time reserved for the last attempt of a call."""


class Owner(NamedTuple):
    """Owner of a path: its cluster and the endpoints of its servers."""

    path: Path
    """Canonical path, with all links followed; nothing may exist there."""
    exists: bool
    cluster: str
    cluster_id: str
    mount: Path
    endpoints: tuple[str, ...]
    """Endpoints of its servers; the first is the one that answered."""
    kind: str
    """``topic``, ``directory``, ``link`` or ``mount``; empty if nothing exists there."""
    position: str = ""
    """Token of the revision at which the owner answered; empty if the answer has no revision."""


class _Call:
    """Call of the caller; the fields of its request are filled in again for each attempt."""

    __slots__ = ("at_parent", "name", "new_path", "path", "request", "rpc", "token", "wanted")

    def __init__(
        self, path: Path, name: str, request: Any, wanted: LookupOptions, *, at_parent: bool
    ) -> None:
        self.path = path
        self.name = name
        self.rpc = method(name)
        self.request = request
        self.wanted = wanted
        self.at_parent = at_parent
        self.token: str = getattr(request, "token", "")
        moves = _has(request, "new_path")
        self.new_path = Path.parse(request.new_path) if moves else None


class OwnerCalls:
    """Router of calls to the owners of paths. Thread-safe."""

    def __init__(
        self,
        lookups: CachedLookup,
        cache: Cache,
        transport: Transport,
        health: ServerHealth,
        rules: Callable[[LookupOptions], ResolutionOptions],
        clock: Callable[[], float],
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._sleep = sleep
        self._lookups = lookups
        self._cache = cache
        self._transport = transport
        self._health = health
        self._rules = rules
        self._clock = clock

    def owner_of(
        self,
        path: Path,
        wanted: LookupOptions,
        deadline: float,
        *,
        fresh: bool = False,
        token: str = "",
    ) -> Owner:
        """Returns the owner of a path, by a resolution. ``fresh``: without cached referrals;
        ``token``: from answers at least as new as this token.

        Raises:
            KdirError: the owner was not found, or none of its servers answered.
        """
        rules = self._rules(wanted).by_referrals()
        if fresh:
            rules = rules.without_hints()
        since = self._clock()
        walk = self._lookups.resolve_uncached(path, rules, wanted, token, deadline)
        self._lookups.add_referral(walk, since)
        match end := walk.next_query():
            case AnswerResult(answer=answer, sender=sender, endpoints=endpoints):
                return _owner(answer.path, sender, endpoints, _kind(answer))
            case AbsentResult(path=canonical, sender=sender, endpoints=endpoints):
                return _owner(canonical, sender, endpoints, "")
            case FailedResult(error=error):
                raise error
            case _:
                raise AssertionError(f"a walk to {path} did not end: {end}")

    def call(
        self,
        path: Path,
        name: str,
        request: Message,
        deadline: float,
        *,
        no_follow: bool | None = None,
        at_parent: bool = False,
    ) -> Any:
        """Calls the owner of ``path``, as ``Resolver.call`` documents it."""
        copy = _copy(method(name), request)
        writes = _has(copy, "request_id")
        if writes and not copy.request_id:
            copy.request_id = os.urandom(16).hex()
        changes = is_change(name, copy)
        if no_follow is None:
            no_follow = name.partition(".")[2] in _NOT_FOLLOWED
        wanted = LookupOptions(
            getattr(copy, "kind", 0), no_follow, for_writes=writes, confirm_links=changes
        )
        call = _Call(path, name, copy, wanted, at_parent=at_parent)
        answer = self._ready(call, deadline)
        if changes:
            self._wrote(call, answer)
        return answer

    def _ready(self, call: _Call, deadline: float) -> Any:
        """Calls the owner. If it has not loaded yet, so that the call had no effect, calls it again
        until the deadline, with longer and longer pauses (P5).
        """
        not_ready: errors.NotReady | None = None
        for pause in _PAUSES:
            try:
                return self._found(call, deadline)
            except errors.NotReady as error:
                not_ready = error
            except errors.Unreachable:
                if not_ready is None:
                    raise
            if deadline - self._clock() < pause + _LEAST_SECONDS:
                break
            self._sleep(pause)
        assert not_ready is not None  # noqa: S101 - otherwise it was answered or raised
        raise not_ready

    def _found(self, call: _Call, deadline: float) -> Any:
        sent = SessionToken(self._lookups.session, call.token)
        while True:
            try:
                answer = self._once(call, sent, deadline, fresh=False)
            except errors.TokenExpired as error:
                is_callers = getattr(call.request, "token", "") == call.token
                if is_callers or not sent.drop_expired(error):
                    raise
            except _MOVED as error:
                # The path's mount may have moved since the lookup, or the cache was wrong. A walk
                # that itself ended lame has restarted once already.
                if isinstance(error, errors.Lame) and error.attempts:
                    raise
                return self._once(call, sent, deadline, fresh=True)
            else:
                sent.forget_expired()  # the stores that this client wrote to are gone
                return answer

    def _once(self, call: _Call, sent: SessionToken, deadline: float, *, fresh: bool) -> Any:
        """Finds the owner and calls it, with the missing fields of the request filled in."""
        request = call.request
        if call.at_parent and not call.path.is_root:
            above = call.wanted._replace(prefer=0, no_follow=False)
            owner = self.owner_of(call.path.parent, above, deadline, fresh=fresh, token=call.token)
            canonical = owner.path.child(call.path.name)
        else:
            owner = self.owner_of(call.path, call.wanted, deadline, fresh=fresh, token=call.token)
            canonical = owner.path
        if _has(request, "path"):
            request.path = str(canonical)
        if call.new_path is not None:
            above = LookupOptions(for_writes=True, confirm_links=True)
            target = self.owner_of(
                call.new_path.parent, above, deadline, fresh=fresh, token=call.token
            )
            request.new_path = str(target.path.child(call.new_path.name))
        if _has(request, "token"):
            request.token = sent.text
        changes = call.wanted.confirm_links
        return self.call_owner(
            owner.endpoints,
            call.rpc,
            request,
            deadline,
            cluster_id=owner.cluster_id,
            patient=changes and not is_same_twice(call.name),
            on_failure=(lambda error: self._failed(call, error)) if changes else None,
        )

    def _wrote(self, call: _Call, answer: Any) -> None:
        """Adds the write to the session, and removes the cached answers that it changed."""
        self._lookups.session.wrote(getattr(answer, "token", ""))
        self._drop_changed(call)

    def _failed(self, call: _Call, error: BaseException) -> None:
        """Removes the cached answers that a write may have changed, if one server failed with
        ``error``.
        """
        if not _is_refusal(error):
            self._lookups.session.failed_unsure()  # first: see ``CachedLookup._store``
            self._drop_changed(call)

    def _drop_changed(self, call: _Call) -> None:
        """Removes the cached answers that a write changed, or may have changed."""
        self._cache.drop_behind_unknown_links()
        fields = [field for field in ("path", "new_path") if _has(call.request, field)]
        sent = [Path.parse(getattr(call.request, field)) for field in fields]
        for path in (call.path, *sent):
            self._cache.evict_below(path)
            self._cache.drop_above(path, ROOT)  # cached as absent, or their counts
            if call.wanted.no_follow:  # a mount may have been added, removed or moved
                self._cache.unlearn_below(path)

    def call_owner(
        self,
        endpoints: Sequence[str],
        rpc: Method,
        request: Message,
        deadline: float,
        *,
        cluster_id: str = "",
        patient: bool = False,
        on_failure: Callable[[BaseException], object] | None = None,
    ) -> Any:
        """Calls the servers of one cluster one after another, and returns the first answer.

        ``patient``: give each server all of the remaining time. A write may take long (it waits for
        Kafka), and its server has just answered a resolution; a stopped server fails at once.
        ``on_failure`` is called with each error, also with one that a signal handler raises.

        Raises:
            KdirError: the error of the first server that answered, or Unreachable.
        """
        order = [endpoint for endpoint in endpoints if not self._health.is_bad(endpoint)]
        order += [endpoint for endpoint in endpoints if endpoint not in order]
        attempts: list[str] = []
        last: KdirError | None = None
        for position, endpoint in enumerate(order):
            left = deadline - self._clock()
            if left <= 0:
                break
            try:
                share = 1 if patient else time_share(len(order) - position)
                answer = self._transport.call(
                    endpoint, rpc, request, per_server_timeout(left, share), cluster_id=cluster_id
                )
            except BaseException as error:
                if on_failure is not None:
                    on_failure(error)
                if not isinstance(error, KdirError):
                    raise  # from a signal handler, such as ^C
                attempts.append(f"{endpoint}: {error}")
                if not can_try_next_server(error):
                    error.attempts = (*attempts, *error.attempts)
                    raise
                match error:
                    case errors.DeadlineExceeded():
                        self._health.note_slow(endpoint)
                    case errors.TokenFromFuture():
                        pass  # the server is healthy, but lags behind its store
                    case _:
                        self._health.note_failure(endpoint)
                last = more_informative_error(last, error)
            else:
                self._health.note_success(endpoint)
                return answer
        if last is None:
            raise errors.DeadlineExceeded(f"{rpc.name}: the deadline passed before it was called")
        last.attempts = tuple(attempts)
        raise last


def _owner(path: Path, sender: Sender, endpoints: tuple[str, ...], kind: str) -> Owner:
    position = ""
    if sender.incarnation:
        position = str(Token.from_position(sender.cluster_id, sender.incarnation, sender.revision))
    return Owner(
        path,
        bool(kind),
        sender.cluster,
        sender.cluster_id,
        sender.mount,
        endpoints,
        kind,
        position,
    )


def _kind(answer: Answer) -> str:
    resolution: Any = answer.payload
    return resolution.entry.WhichOneof("kind") or ""


def is_change(name: str, request: Message) -> bool:
    """True if a call of this name may change something."""
    return _has(request, "request_id") or name.partition(".")[2] in _WRITE_WITHOUT_ID


def is_same_twice(name: str) -> bool:
    """True if a change of this name, without a request id, may be sent to another server while the
    first one may still make it.
    """
    return name.partition(".")[2] in _SAME_TWICE


def _has(request: Message, field: str) -> bool:
    return field in request.DESCRIPTOR.fields_by_name


def _copy(rpc: Method, request: Message) -> Any:
    if not isinstance(request, rpc.request):
        raise TypeError(f"{rpc.name} takes a {rpc.request.__name__}, not {type(request).__name__}")
    copy = rpc.request()
    copy.CopyFrom(request)
    return copy


def _is_refusal(error: BaseException) -> bool:
    """True if a change that failed with this error certainly had no effect."""
    match error:
        case errors.NotReady() | errors.Lame() | errors.HandshakeFailed():
            return True
        case errors.StoreUnavailable():
            return error.metadata.get("effect") != "unknown"
        case errors.Unavailable() | errors.DeadlineExceeded() | errors.Cancelled():
            return False
        case errors.Internal() | errors.UnreadableRecord():
            return False
        case _:
            return isinstance(error, KdirError)


def can_try_next_server(error: KdirError) -> bool:
    match error:
        case errors.KafkaUnavailable() | errors.Lame() | errors.Closed():
            return False
        case errors.Unavailable() | errors.DeadlineExceeded() | errors.Cancelled():
            return True
        case errors.TokenFromFuture():
            return True  # another server may have reached the revision
        case _:
            return False


def more_informative_error(known: KdirError | None, error: KdirError) -> KdirError:
    """Returns the more informative of two errors: one after which a write may have had an effect,
    else a server's answer rather than a missing answer.
    """
    if known is None:
        return error
    if known.metadata.get("effect") == "unknown":
        return known
    return error if isinstance(error, errors.NotReady | errors.StoreUnavailable) else known
