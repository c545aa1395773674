"""ResolveService: Resolve, BatchResolve and Locate, and recursive resolution on behalf of a caller.

``RecursiveResolver`` uses the client library's resolver, with the same checks of referrals; queries
to this very server are answered in place. Other servers are called with the caller's own token,
never with this server's rights: for a caller that is known by its certificate alone nothing is
resolved recursively. Answers received for one caller are not given to another, nor to the same one
later. The number of recursive resolutions at a time is that of the threads for reads; for one
caller, half of it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, NamedTuple, cast

from google.protobuf.message import Message
from kdir.v1 import resolve_pb2

from directory.access.principals import ANONYMOUS
from directory.api.batch_resolve import BatchResolve, answers_full
from directory.api.cluster_router import ClusterRouter
from directory.api.resolve_answers import ResolveAnswers, kind_from_number, refer_to_cluster
from directory.api.rpc.call_context import CURRENT, REQUEST_ID_KEY, Call
from directory.api.rpc.caller_slots import CallerSlots
from directory.api.rpc.handlers import Handler, Service
from directory.namespace.entry import Kind
from directory.server.authentication import BEARER
from directory.server.certificates import PeerCredentials
from resolver.cached_lookup import lifetime_of, stale_absent
from resolver.client import Resolver
from resolver.endpoints import AllowList
from resolver.error_status import to_outcome
from resolver.errors import (
    Absent,
    Closed,
    InvalidArgument,
    InvalidPath,
    KdirError,
    LimitExceeded,
    Unimplemented,
)
from resolver.host_port import parse_servers
from resolver.keyed_slots import KeyedSlots
from resolver.path import Path
from resolver.peer_certificates import MOST_READ_AT_ONCE
from resolver.resolution.values import AbsentResult, AnswerResult, End, FailedResult, United
from resolver.revision_token import Token
from resolver.transport import GrpcTransport, Method, Stream

__all__ = ["RecursiveResolver", "ResolveService"]


class ResolveService(Service):
    """Service that answers for the paths of its own mounts and refers callers for the rest."""

    descriptor = resolve_pb2.DESCRIPTOR.services_by_name["ResolveService"]
    long = frozenset({"BatchResolve"})

    def __init__(self, router: ClusterRouter) -> None:
        self._router = router
        self._batch = BatchResolve(router)
        self._recursion = RecursiveResolver(
            router.clusters[0].endpoints,
            {
                "/kdir.v1.ResolveService/Resolve": self._resolve_in_place,
                "/kdir.v1.ResolveService/BatchResolve": self._batch_resolve_in_place,
            },
            router.limits.read_threads,
            router.clusters[0].dialling,
            router.waiting,
            router.limits.answer_bytes,
            router.clusters[0].config.dial_allow,
        )

    def method_handlers(self) -> Mapping[str, Handler]:
        return {
            "Resolve": self.resolve,
            "BatchResolve": self.batch_resolve,
            "Locate": self.locate,
        }

    def resolve(
        self, request: resolve_pb2.ResolveRequest, call: Call
    ) -> resolve_pb2.ResolveResponse | bytes:
        """Resolves one path."""
        if self._recurses(request, call):
            return self._recursion.resolve(request, call)
        return self._router.resolve(request, call)

    def batch_resolve(
        self, request: resolve_pb2.BatchResolveRequest, call: Call
    ) -> resolve_pb2.BatchResolveResponse | bytes:
        """Resolves many paths; each has its own outcome, and one error affects no other path."""
        limit = self._router.limits.max_batch_paths
        if len(request.paths) > limit:
            raise LimitExceeded(
                f"paths: found {len(request.paths)}; expected at most {limit} in one call "
                f"(limits.max_batch_paths)",
                field="paths",
                limit=limit,
            )
        if self._recurses(request, call):
            return self._recursion.batch_resolve(request, call)
        return self._batch.answer(request, call)

    def _recurses(
        self, request: resolve_pb2.ResolveRequest | resolve_pb2.BatchResolveRequest, call: Call
    ) -> bool:
        """True if this server follows the referrals for the caller.

        Raises:
            InvalidArgument: a field has a value that this version does not define, or one that
                conflicts with another field.
        """
        if request.prefer:
            kind_from_number(request.prefer, "prefer")
        if not request.recursive:
            return False
        if request.confirm_links:
            raise InvalidArgument(
                "confirm_links: found with recursive; expected only one of them. Before a change, "
                "send confirm_links alone and follow the referrals",
                field="confirm_links",
            )
        return self._recursion.can_forward_identity(call)

    def _resolve_in_place(
        self, request: resolve_pb2.ResolveRequest, call: Call
    ) -> resolve_pb2.ResolveResponse:
        return resolve_pb2.ResolveResponse.FromString(self._router.resolve(request, call))

    def _batch_resolve_in_place(
        self, request: resolve_pb2.BatchResolveRequest, call: Call
    ) -> resolve_pb2.BatchResolveResponse:
        return resolve_pb2.BatchResolveResponse.FromString(self._batch.answer(request, call))

    def locate(self, request: resolve_pb2.LocateRequest, call: Call) -> resolve_pb2.LocateResponse:
        """Returns the path of a physical topic."""
        if not request.physical_name:
            raise InvalidArgument("physical_name: empty; expected the topic's name in Kafka")
        cluster = self._router.cluster_by_name(request.cluster, call)
        snapshot = self._router.read_snapshot(cluster, request.token, call)
        response = resolve_pb2.LocateResponse(authority=cluster.authority(snapshot))
        if request.cluster not in {"", cluster.cluster_id, cluster.config.cluster}:
            tree = self._router.tree(cluster, snapshot, call)
            refer_to_cluster(cluster, tree, request.cluster, response.outcome)
            return response
        cluster.check_mounted()
        tree = self._router.tree(cluster, snapshot, call)
        path = tree.locate(request.physical_name)
        if path is None:
            message = (
                f"cluster {cluster.config.cluster} has no topic with the physical name "
                f"{request.physical_name!r}"
            )
            facts = {
                "cluster_id": cluster.cluster_id,
                "physical_name": request.physical_name,
                "mount": str(cluster.mount),
            }
            if (authority := response.authority).stale:
                raise stale_absent(
                    message,
                    cluster.config.cluster,
                    authority.age_seconds,
                    facts,
                    is_sealed=authority.sealed,
                )
            raise Absent(message, metadata=facts)
        ResolveAnswers(cluster, tree).resolve(path, response.outcome, Kind.TOPIC)
        return response


_MOST_CALLERS: Final = 64
_MOST_READ_FOR_ONE: Final = MOST_READ_AT_ONCE // 8
"""Most server certificates that are read at a time for one caller."""
_LOOK: Final = 64


class _Caller(NamedTuple):
    """Identity on whose behalf other servers are called."""

    principal: str
    host: str
    bearer: str

    @classmethod
    def from_call(cls, call: Call) -> _Caller:
        return cls(call.principal, call.host, call.bearer)


class _LocalFirstTransport:
    """Transport of one caller's queries; those to this server are answered in place, without a
    call.
    """

    def __init__(
        self,
        caller: _Caller,
        own: Callable[[], tuple[str, ...]],
        handlers: dict[str, Handler],
        others: GrpcTransport,
    ) -> None:
        self._caller = caller
        self._own = own
        self._handlers = handlers
        self._others = others
        self._more = ((BEARER, f"Bearer {caller.bearer}"),) if caller.bearer else ()

    def call(
        self,
        endpoint: str,
        method: Method,
        request: Message,
        timeout_seconds: float,
        *,
        cluster_id: str = "",
    ) -> Any:
        """Calls a server.

        Raises:
            Closed: the caller went away. Unlike other errors it ends the resolution, and does not
                count against the server. Not raised where a batch calls several servers at once,
                in threads of their own.
            KdirError: the call failed.
        """
        if (waiting := CURRENT.call) is not None and not waiting.is_active():
            raise Closed("the caller went away: no further server is called for it")
        handler = self._handlers.get(method.name) if endpoint in self._own() else None
        if handler is None:
            return self._others.call(
                endpoint,
                method,
                request,
                timeout_seconds,
                cluster_id=cluster_id,
                more=self._more,
                caller=self._caller.principal or self._caller.host,
            )
        call = Call(
            time.monotonic() + timeout_seconds,
            principal=self._caller.principal,
            caller_host=self._caller.host,
            bearer=self._caller.bearer,
            is_active=_always,
        )
        return handler(request, call)

    def stream(
        self, endpoint: str, method: Method, request: Message, *, cluster_id: str = ""
    ) -> Stream:
        raise Unimplemented(f"{method.name}: a watch is not forwarded for another caller")

    def close(self) -> None:
        """Does nothing: the connections are shared."""


def _always() -> bool:
    return True


def _request_id() -> Sequence[tuple[str, str | bytes]]:
    """Returns the caller's request id, so that one id finds the call in the logs of all servers on
    its way.
    """
    call = CURRENT.call
    return () if call is None else ((REQUEST_ID_KEY, call.request_id),)


class RecursiveResolver:
    """Resolver on behalf of callers that ask for recursion."""

    def __init__(
        self,
        own: Callable[[], tuple[str, ...]],
        handlers: dict[str, Handler],
        most_at_once: int,
        dialling: PeerCredentials | None = None,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
        answer_bytes: int = 4 << 20,
        allow: Collection[str] | None = None,
    ) -> None:
        """``allow``: networks and domains of the servers that may be called; None = all."""
        self._allow = allow
        self._waiting = waiting
        self._own = own
        self._handlers = handlers
        self._dialling = dialling or PeerCredentials(None)
        slots = KeyedSlots(MOST_READ_AT_ONCE, _MOST_READ_FOR_ONE)
        self._others = GrpcTransport(self._dialling, metadata=_request_id, slots=slots)
        self._answer_bytes = answer_bytes
        self._places = CallerSlots(most_at_once, max(1, most_at_once // 2))
        self._lock = threading.Lock()
        self._resolvers: OrderedDict[_Caller, Resolver] = OrderedDict()

    def close(self) -> None:
        """Closes the channels to other servers."""
        self._others.close()

    def can_forward_identity(self, call: Call) -> bool:
        """True if other servers can be called in the caller's name: by its token; or, for an
        anonymous caller, if this server's certificate carries no rights either.
        """
        if call.bearer:
            return True
        return call.principal in {"", ANONYMOUS} and self._dialling.carries_no_rights

    def resolve(
        self, request: resolve_pb2.ResolveRequest, call: Call
    ) -> resolve_pb2.ResolveResponse:
        """Resolves one path to its end.

        Raises:
            KdirError: the resolution failed.
        """
        (end,) = self._ends([Path.parse(request.path)], request, call)
        response = resolve_pb2.ResolveResponse()
        match end:
            case AnswerResult() | AbsentResult():
                response.authority.CopyFrom(_authority(end))
                _fill(end, response.outcome)
            case FailedResult(error=error):
                raise error
            case United():
                raise AssertionError("one answer was wanted")
        return response

    def batch_resolve(
        self, request: resolve_pb2.BatchResolveRequest, call: Call
    ) -> resolve_pb2.BatchResolveResponse:
        """Resolves many paths to their ends."""
        parsed = [_path_or_error(text) for text in request.paths]
        ends = iter(self._ends([one for one in parsed if isinstance(one, Path)], request, call))
        response = resolve_pb2.BatchResolveResponse()
        indexes: dict[bytes, int] = {}
        left = self._answer_bytes
        for number, one in enumerate(parsed):
            if number % _LOOK == 0:
                call.seconds_left()
            outcome = response.outcomes.add()
            end = FailedResult(one) if isinstance(one, KdirError) else next(ends)
            if left <= 0:
                outcome.error.CopyFrom(to_outcome(answers_full(self._answer_bytes)))
                continue
            if isinstance(end, FailedResult):
                outcome.error.CopyFrom(to_outcome(end.error))
            elif isinstance(end, AnswerResult | AbsentResult):
                authority = _authority(end)
                index = indexes.setdefault(authority.SerializeToString(), len(indexes))
                if index == len(response.authorities):
                    response.authorities.append(authority)
                _fill(end, outcome)
                if isinstance(end, AnswerResult):
                    outcome.resolution.authority_index = index
            left -= outcome.ByteSize()
        return response

    def _ends(
        self,
        paths: Sequence[Path],
        request: resolve_pb2.ResolveRequest | resolve_pb2.BatchResolveRequest,
        call: Call,
    ) -> list[End]:
        with self._place(call):
            walks = self._resolver_of(call).walk_many(
                paths,
                prefer=request.prefer,
                token=request.token,
                no_follow=request.no_follow,
                timeout_seconds=call.seconds_left(),
            )
        call.check()
        return [walk.next_query() for walk in walks]  # type: ignore[misc] # they have ended

    @contextmanager
    def _place(self, call: Call) -> Iterator[None]:
        refusal = LimitExceeded(
            "too many recursive calls at once (limits.read_threads); follow the referrals instead, "
            "or try again"
        )
        with self._places.hold(call, refusal), self._waiting():
            yield

    def _resolver_of(self, call: Call) -> Resolver:
        """Returns the caller's resolver, which caches referrals and no answers: the owner is asked
        each time, so that a revoked right takes effect at once (N5).
        """
        caller = _Caller.from_call(call)
        with self._lock:
            found = self._resolvers.get(caller)
            if found is None:
                way = _LocalFirstTransport(caller, self._own, self._handlers, self._others)
                own = self._own()
                allow = AllowList.of(self._allow, parse_servers(own))
                found = Resolver(own, transport=way, max_entries=0, allow=allow)
                self._resolvers[caller] = found
                while len(self._resolvers) > _MOST_CALLERS:
                    self._resolvers.popitem(last=False)  # resolutions under way still use it
            self._resolvers.move_to_end(caller)
            return found


def _path_or_error(text: str) -> Path | InvalidPath:
    try:
        return Path.parse(text)
    except InvalidPath as error:
        return error


def _authority(end: AnswerResult | AbsentResult) -> resolve_pb2.Authority:
    """Returns the authority of the answer. Its token has the positions of all clusters on the way:
    a cached answer is valid for no later positions.
    """
    authority = resolve_pb2.Authority()
    authority.CopyFrom(cast("resolve_pb2.Authority", end.sender.payload))
    authority.token = str(Token(end.read.positions))
    return authority


def _fill(end: AnswerResult | AbsentResult, outcome: resolve_pb2.Outcome) -> None:
    """Fills in the owner's answer, whose lifetime is at most that of the referrals that
    led to it.
    """
    if isinstance(end, AnswerResult):
        outcome.resolution.CopyFrom(cast("resolve_pb2.Resolution", end.answer.payload))
        outcome.resolution.ClearField("authority_index")
        outcome.resolution.lifetime_seconds = lifetime_of(end)
        return
    outcome.absent.SetInParent()
    if end.absent.nearest_directory is not None:
        outcome.absent.nearest_directory = str(end.absent.nearest_directory)
    outcome.absent.lifetime_seconds = end.lifetime_seconds
