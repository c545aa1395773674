"""Drives resolutions: sends queries over a transport within one deadline.

``resolver/resolution/state_machine.py`` decides which server to query and which reply to accept;
this module sends the queries and measures time. The client uses it for one path or thousands, and a
server to resolve for a client (``recursive``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from resolver import errors, reply_decoding
from resolver.deadline_shares import LEAST_SECONDS, per_server_timeout
from resolver.endpoints import ServerHealth
from resolver.errors import DeadlineExceeded, KdirError
from resolver.path import Path
from resolver.resolution.state_machine import ResolutionOptions, ResolutionStateMachine
from resolver.resolution.values import AnswerStatus, Query, Reply
from resolver.revision_token import NewestPositions, Position, Token
from resolver.transport import Transport, method
from resolver.units import plural

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = [
    "MAX_BATCH",
    "Options",
    "RequestBatcher",
    "ResolutionDriver",
    "ResolveRequestOptions",
    "Server",
    "batch_resolve",
]


MAX_BATCH: Final = 1000
"""Most paths in one call, so that answers stay far below 16 MiB; by default servers accept
10,000.
"""
_MAX_FLYING: Final = 2
"""Most concurrent calls to one server: while one is answered, queries collect for the next one."""


class Server(NamedTuple):
    """Endpoint to call, with the cluster id in the referral; empty: no referral named a cluster."""

    endpoint: str
    cluster_id: str = ""


Options = tuple[int, str, bool, bool, bool]
"""Options shared by the paths of one call: preferred kind, token, no_follow, recursive,
confirm_links.
"""


def batch_resolve(
    transport: Transport,
    server: Server,
    paths: Sequence[Path],
    options: Options,
    timeout_seconds: float,
) -> list[Reply | KdirError]:
    """Resolves all paths in one call, or in several if the server's limits require it; the error of
    a path, or of the further call for it, is its result.

    Raises:
        KdirError: a call failed, or its response is invalid, and no path has a result of its own.
    """
    deadline = time.monotonic() + timeout_seconds
    replies: dict[int, Reply | KdirError] = {}
    calls: list[Sequence[int]] = [range(len(paths))]
    """Places of the paths of each call to make. Each call answers one path at least, or becomes
    two smaller ones.
    """
    while calls:
        places = calls.pop()
        asked = [paths[place] for place in places]
        try:
            answered = _send_request(transport, server, asked, options, deadline)
        except KdirError as error:
            if len(asked) > 1 and _is_of_paths(error):
                # A server's config may allow fewer paths per call than its default.
                calls += _halves(places)
                continue
            ends = _is_of_server(error)
            if not replies and (ends or not calls):
                raise
            failed = [places, *calls] if ends else [places]
            calls = [] if ends else calls
            replies.update({place: error.copy() for one in failed for place in one})
            continue
        replies.update(zip(places, answered, strict=True))
        over = [place for place in places if _is_of_paths(replies[place])]
        if 0 < len(over) < len(places):  # the answers were too large for one call
            calls += _halves(over) if len(over) > len(places) / 2 else [over]
    return [replies[place] for place in range(len(paths))]


def _halves(places: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    middle = len(places) // 2
    return places[middle:], places[:middle]


def _send_request(
    transport: Transport,
    server: Server,
    paths: Sequence[Path],
    options: Options,
    deadline: float,
) -> list[Reply | KdirError]:
    timeout_seconds = deadline - time.monotonic()
    if timeout_seconds <= 0:
        raise errors.DeadlineExceeded(
            f"{server.endpoint}: no answer in time to {plural(len(paths), 'path')}"
        )

    def call() -> Any:
        return transport.call(
            server.endpoint, method(name), request, timeout_seconds, cluster_id=server.cluster_id
        )

    prefer, token, no_follow, recursive, confirm_links = options
    name = "ResolveService.Resolve" if len(paths) == 1 else "ResolveService.BatchResolve"
    request = method(name).request(token=token, recursive=recursive, no_follow=no_follow)
    if prefer:
        request.prefer = prefer
    if confirm_links:
        request.confirm_links = True
    if len(paths) == 1:
        request.path = str(paths[0])
        return [reply_decoding.decode_reply(call())]
    request.paths.extend(map(str, paths))
    return list(reply_decoding.decode_batch(call(), paths))


def _is_of_paths(reply: object) -> bool:
    """True for the error of a call with too many paths, or with too large a request or answer;
    False for that of a server with too many calls.
    """
    return isinstance(reply, errors.LimitExceeded) and (
        reply.metadata.get("field") == "paths" or "message larger than max" in reply.message
    )


def _is_of_server(error: KdirError) -> bool:
    """True if a further call would only add to the server's load, or meet the same error."""
    return isinstance(
        error,
        errors.Unavailable | errors.DeadlineExceeded | errors.Cancelled | errors.LimitExceeded,
    ) and not _is_of_paths(error)


class _Waiter:
    """Thread that waits for the result of its query."""

    __slots__ = ("crew", "deadline", "gone", "path", "result", "timeout_seconds", "woken")

    def __init__(self, path: Path, timeout_seconds: float) -> None:
        self.path = path
        self.timeout_seconds = timeout_seconds
        self.deadline = time.monotonic() + timeout_seconds
        self.result: Reply | KdirError | None = None
        self.crew: list[_Waiter] = []
        """Threads whose queries this thread sends in one call, itself included; empty if it sends
        none.
        """
        self.gone = False
        # To wait for a held lock is cheapest; it is released when there is a result or a batch to
        # send.
        self.woken = threading.Lock()
        self.woken.acquire()


class RequestBatcher:
    """Batcher of concurrent queries to one server with the same options. Thread-safe."""

    def __init__(self, transport: Transport, server: Server, options: Options) -> None:
        self._transport = transport
        self._server = server
        self._options = options
        self._lock = threading.Lock()
        self._waiting: list[_Waiter] = []
        self._flying = 0

    def ask(self, path: Path, timeout_seconds: float) -> Reply:
        """Returns the server's reply to a query, which is sent in a batch with other threads'
        queries.

        Raises:
            KdirError: the error of this query.
        """
        me = _Waiter(path, timeout_seconds)
        try:
            if self._may_send(me) or self._is_woken_to_send(me):
                self._send(me)
        except KdirError:
            raise
        except BaseException:  # from a signal handler, such as ^C
            self._give_up(me)
            raise
        if isinstance(me.result, KdirError):
            raise me.result
        assert me.result is not None  # noqa: S101 - _send gives everyone a result
        return me.result

    def _may_send(self, me: _Waiter) -> bool:
        with self._lock:
            if self._flying < _MAX_FLYING:
                self._flying += 1
                me.crew = [me]
                return True
            self._waiting.append(me)
            return False

    def _is_woken_to_send(self, me: _Waiter) -> bool:
        """Waits; True if this thread must send the next batch, False if it has a result."""
        if not me.woken.acquire(timeout=me.timeout_seconds):
            with self._lock:
                if not me.crew and me.result is None:
                    me.gone = True
                    raise errors.DeadlineExceeded(
                        f"{self._server.endpoint}: no answer within {me.timeout_seconds:.2f} s"
                    )
        return bool(me.crew)

    def _give_up(self, me: _Waiter) -> None:
        """Passes the queries that this thread should send on to another thread; otherwise they
        would never be sent.
        """
        with self._lock:
            me.gone = True
            crew, me.crew = me.crew, []
            self._waiting[:0] = crew[1:]
        if crew:
            self._hand_over()

    def _send(self, me: _Waiter) -> None:
        crew = me.crew
        left = max(crew[0].deadline - time.monotonic(), LEAST_SECONDS)
        results: Sequence[Reply | KdirError]
        try:
            results = batch_resolve(
                self._transport,
                self._server,
                [waiter.path for waiter in crew],
                self._options,
                left,
            )
        except KdirError as error:
            # Each resolution adds its own attempts to its error: one object for all would mix them.
            results = [error.copy() for _ in crew]
        except BaseException:
            results = [errors.Cancelled("the thread that asked for several was ended")] * len(crew)
            raise
        finally:
            me.crew = []
            self._hand_over()
            for waiter, result in zip(crew, results, strict=True):
                waiter.result = result
                if waiter is not crew[0]:
                    waiter.woken.release()

    def _hand_over(self) -> None:
        """Lets a waiting thread send the next batch: the one with the latest deadline, since it can
        wait longest for the answer.
        """
        with self._lock:
            waiting = [waiter for waiter in self._waiting if not waiter.gone]
            crew, self._waiting = waiting[:MAX_BATCH], waiting[MAX_BATCH:]
            if not crew:
                self._flying -= 1
                return
            crew.sort(key=lambda waiter: waiter.deadline, reverse=True)
            crew[0].crew = crew
        crew[0].woken.release()


_MOST_PARALLEL: Final = 32
_MOST_COMBINERS: Final = 1000

_Group = list[tuple[ResolutionStateMachine, Query]]


class ResolveRequestOptions(NamedTuple):
    """Fields, besides the path, of the request to every server of a resolution."""

    prefer: int = 0
    """``kdir.v1.EntryKind`` if a topic and a container share the name; 0 = topic first."""
    token: str = ""
    """Token of positions that the servers must have reached before they answer."""
    no_follow: bool = False
    """True: return a link or mount at the path itself."""
    confirm_links: bool = False
    """True: follow only links that are read from the store, not from a copy."""

    def options(self, ask: Query) -> Options:
        """Returns the options of one query."""
        token = self.token
        if ask.after is not None:
            place = ask.after
            seen = Token.from_position(ask.after_cluster_id, place.incarnation, place.revision)
            token = str(Token.merge([Token.parse(token), seen]))
        return self.prefer, token, self.no_follow, ask.recursive, self.confirm_links


class ResolutionDriver:
    """Driver of resolutions over one transport. Thread-safe."""

    def __init__(
        self,
        transport: Transport,
        health: ServerHealth,
        positions: NewestPositions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._health = health
        self._clock = clock
        self._combiners: dict[tuple[Server, Options], RequestBatcher] = {}
        self.positions = positions or NewestPositions()

    def resolve(
        self, path: Path, rules: ResolutionOptions, question: ResolveRequestOptions, deadline: float
    ) -> ResolutionStateMachine:
        """Resolves one path by ``deadline``, a time on the clock; returns the finished
        resolution.
        """
        walk = ResolutionStateMachine(path, rules)
        while isinstance(step := walk.next_query(), Query):
            left = deadline - self._clock()
            if left < LEAST_SECONDS:
                walk.out_of_time()
                break
            floor = self.positions.current
            started = self._clock()
            timeout_seconds = per_server_timeout(left, step.share, hurried=step.hurried)
            try:
                combiner = self._combiner(_server(step), question.options(step))
                reply: Reply | KdirError = combiner.ask(step.path, timeout_seconds)
            except KdirError as error:
                reply = error
            self._apply_reply(walk, step, reply, floor, self._clock() - started)
        return walk

    def walk_many(
        self,
        paths: Sequence[Path],
        rules: ResolutionOptions,
        question: ResolveRequestOptions,
        deadline: float,
    ) -> list[ResolutionStateMachine]:
        """Resolves many paths: those for the same server in one call, different servers
        concurrently. A server that does not answer delays only the paths that need it.
        """
        walks = [ResolutionStateMachine(path, rules) for path in paths]
        ready: Sequence[ResolutionStateMachine] = walks
        pool: ThreadPoolExecutor | None = None
        flying: set[Future[Sequence[ResolutionStateMachine]]] = set()
        try:
            while True:
                groups = self._group(ready, question, deadline)
                if not flying and not groups:
                    return walks
                if not flying and len(groups) == 1:
                    ready = self._ask_group(groups[0], question, deadline)
                    continue
                from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

                pool = pool or ThreadPoolExecutor(_MOST_PARALLEL, thread_name_prefix="resolve")
                for group in groups:
                    flying.add(pool.submit(self._ask_group, group, question, deadline))
                landed, flying = wait(flying, return_when=FIRST_COMPLETED)
                ready = [walk for future in landed for walk in future.result()]
        finally:
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)

    def _group(
        self,
        walks: Sequence[ResolutionStateMachine],
        question: ResolveRequestOptions,
        deadline: float,
    ) -> list[_Group]:
        """Returns the next queries, grouped by server and options; ends the resolutions if no time
        is left.
        """
        late = deadline - self._clock() < LEAST_SECONDS
        groups: dict[tuple[Server, Options, bool], _Group] = {}
        full: list[_Group] = []
        for walk in walks:
            step = walk.next_query()
            if not isinstance(step, Query):
                continue
            if late:
                walk.out_of_time()
                continue
            key = (_server(step), question.options(step), step.hurried)
            group = groups.setdefault(key, [])
            group.append((walk, step))
            if len(group) >= MAX_BATCH:
                full.append(groups.pop(key))
        return full + list(groups.values())

    def _ask_group(
        self, group: _Group, question: ResolveRequestOptions, deadline: float
    ) -> Sequence[ResolutionStateMachine]:
        first = group[0][1]
        floor = self.positions.current
        started = self._clock()
        left = max(deadline - started, LEAST_SECONDS)
        timeout_seconds = per_server_timeout(
            left,
            max(step.share for _, step in group),
            hurried=first.hurried,
            paths=len(group),
        )
        replies: Sequence[Reply | KdirError]
        try:
            replies = batch_resolve(
                self._transport,
                _server(first),
                [step.path for _, step in group],
                question.options(first),
                timeout_seconds,
            )
        except KdirError as error:
            replies = [error.copy() for _ in group]
        elapsed = self._clock() - started
        for (walk, step), reply in zip(group, replies, strict=True):
            self._apply_reply(walk, step, reply, floor, elapsed)
        return [walk for walk, _ in group]

    def _apply_reply(
        self,
        walk: ResolutionStateMachine,
        step: Query,
        reply: Reply | KdirError,
        floor: Mapping[str, Position],
        elapsed_seconds: float,
    ) -> None:
        if isinstance(reply, DeadlineExceeded) and step.hurried:
            walk.on_slow(elapsed_seconds)
            self._health.note_slow(step.endpoint)
            return
        if isinstance(reply, KdirError):
            verdict = walk.on_error(reply, elapsed_seconds)
        else:
            verdict = walk.on_answer(reply, floor, elapsed_seconds)
            if verdict is AnswerStatus.ACCEPTED:
                sender = reply.sender
                self.positions.note(sender.cluster_id, sender.incarnation, sender.revision)
        match verdict:
            case AnswerStatus.ACCEPTED:
                self._health.note_success(step.endpoint)
            case AnswerStatus.FAILED:
                if isinstance(reply, DeadlineExceeded):
                    self._health.note_slow(step.endpoint)
                else:
                    self._health.note_failure(step.endpoint)
            case AnswerStatus.LAME:
                self._health.note_lame(step.endpoint)
            case AnswerStatus.OLD:
                pass

    def _combiner(self, server: Server, options: Options) -> RequestBatcher:
        key = (server, options)
        combiner = self._combiners.get(key)
        if combiner is None:
            if len(self._combiners) >= _MOST_COMBINERS:
                self._combiners.clear()  # waiting threads keep the objects that they use
            combiner = self._combiners.setdefault(
                key, RequestBatcher(self._transport, server, options)
            )
        return combiner


def _server(ask: Query) -> Server:
    return Server(ask.endpoint, ask.cluster_id)
