"""Drives walks: asks over a transport within one deadline; refuses to cache or to decide anything.

What to ask and what to believe is ``resolver/resolution/state_machine.py``'s; this module gives it
time, servers and their replies. Used by the client for one path or thousands, and by a server that
resolves for a client (``recursive``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from resolver.endpoints import LEAST_SECONDS, ServerHealth, per_server_timeout
from resolver.errors import DeadlineExceeded, KdirError
from resolver.path import Path
from resolver.request_batcher import MAX_BATCH, Options, RequestBatcher, Server, batch_resolve
from resolver.resolution.state_machine import ResolutionOptions, ResolutionStateMachine
from resolver.resolution.values import AnswerStatus, Query, Reply, Sender
from resolver.revision_token import Position, Token
from resolver.transport import Transport

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["Positions", "ResolutionDriver", "ResolveRequestOptions"]

_MOST_PARALLEL: Final = 32
_MOST_COMBINERS: Final = 1000

_Group = list[tuple[ResolutionStateMachine, Query]]


class ResolveRequestOptions(NamedTuple):
    """What is asked of every server on the way, besides the path."""

    prefer: int = 0
    """``kdir.v1.EntryKind`` where a topic and a container share the name; 0 = topic first."""
    token: str = ""
    """Read at least this."""
    no_follow: bool = False
    """A link or mount at the very path is itself the answer."""

    def options(self, ask: Query) -> Options:
        """Returns what it comes to for one question of a walk."""
        token = self.token
        if ask.after is not None:
            place = ask.after
            seen = Token.from_position(ask.after_cluster_id, place.incarnation, place.revision)
            token = str(Token.merge([Token.parse(token), seen]))
        return self.prefer, token, self.no_follow, ask.recursive


class Positions:
    """The newest position seen of each cluster, so that nobody travels back in time (R17).

    ``current`` is an immutable mapping: a question remembers the one of its own moment.
    """

    def __init__(self) -> None:
        self.current: Mapping[str, Position] = MappingProxyType({})

    def note(self, sender: Sender) -> None:
        """This was seen."""
        if not sender.incarnation:
            return
        known = self.current.get(sender.cluster_id)
        if (
            known is not None
            and known.incarnation == sender.incarnation
            and known.revision >= sender.revision
        ):
            return
        # Two threads at once may lose one of two notes: the next answer brings it again.
        place = Position(sender.incarnation, sender.revision)
        self.current = {**self.current, sender.cluster_id: place}


class ResolutionDriver:
    """Walks over one transport. Thread-safe."""

    def __init__(
        self,
        transport: Transport,
        health: ServerHealth,
        positions: Positions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._health = health
        self._clock = clock
        self._combiners: dict[tuple[Server, Options], RequestBatcher] = {}
        self.positions = positions or Positions()

    def resolve(
        self, path: Path, rules: ResolutionOptions, question: ResolveRequestOptions, deadline: float
    ) -> ResolutionStateMachine:
        """Resolves one path by ``deadline``, a reading of the clock. The result has ended."""
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
        """Resolves many paths, those at the same server in one call, different servers at once.

        A server that does not answer holds up only the paths that need it.
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
        """Returns the next question of each walk that has one, by who is asked."""
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
                self.positions.note(reply.sender)
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
                self._combiners.clear()  # those under way live on with their callers
            combiner = self._combiners.setdefault(
                key, RequestBatcher(self._transport, server, options)
            )
        return combiner


def _server(ask: Query) -> Server:
    return Server(ask.endpoint, ask.cluster_id)
