"""Reverse lookup: finds the path of a topic by its cluster and physical name, by referrals to
clusters.

The checks are those of a resolution by path, where possible. A referral up leads to a strict
ancestor, and comes before all others. The answer must come from the cluster of the referral. No
server of an earlier hop is queried again. A reply older than an earlier one of the same store's
incarnation is not accepted. Only the cluster itself can answer that it has no such topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resolver import errors, reply_decoding
from resolver.deadline_shares import LEAST_SECONDS, per_server_timeout, time_share
from resolver.endpoints import ServerHealth
from resolver.errors import KdirError
from resolver.nearest_names import nearest_names
from resolver.path import ROOT, Path
from resolver.resolution.hop_errors import Hop, ServerFailure, classify_error
from resolver.resolution.referral_and_answer_checks import (
    is_above,
    outdated_reply,
    sender_mismatch,
)
from resolver.resolution.state_machine import MAX_HOPS, first_endpoints
from resolver.resolution.values import (
    Absent,
    Answer,
    AnswerStatus,
    AskedBecause,
    ErrorAnswer,
    Referral,
    Reply,
    Rewrite,
    Sender,
)
from resolver.revision_token import NewestPositions, Position, Token
from resolver.topic_location import TopicLocation, location_of
from resolver.transport import Transport, method

if TYPE_CHECKING:
    from kdir.v1 import federation_pb2, resolve_pb2

__all__ = ["ReverseLookup", "unknown_cluster"]


def unknown_cluster(
    cluster: str, listed: federation_pb2.ListMountsResponse, found: errors.NoRoute
) -> KdirError:
    """Returns the error for a cluster to which no referral led; ``listed``: the mounts that the
    root knows.

    It is ``Absent`` only if the list is complete and every mount is linked: clusters below an
    unlinked mount may be unknown.
    """
    mounts = listed.rows
    if any(cluster in {row.cluster, row.cluster_id} for row in mounts):
        return found
    near = nearest_names(cluster, [row.cluster for row in mounts if row.cluster])
    if unlinked := ", ".join(row.mount for row in mounts if not row.linked):
        message = f"no cluster {cluster!r} is known; it may be at or below {unlinked}, to which "
        return errors.NoRoute(f"{message}the root reports no link{near}", cluster=cluster)
    if listed.incomplete_cluster_ids:
        message = f"no cluster {cluster!r} is known; the root's list of mounts is incomplete"
        return errors.NoRoute(f"{message}{near}", cluster=cluster)
    return errors.Absent(f"no cluster {cluster!r} is mounted{near}", cluster=cluster)


@dataclass(frozen=True, slots=True)
class ReverseLookup:
    """Lookup of the path of a physical topic. Thread-safe."""

    transport: Transport
    health: ServerHealth
    refusal: Callable[[str], str]
    positions: NewestPositions
    clock: Callable[[], float]

    def locate(
        self,
        start: tuple[str, ...],
        cluster: str,
        physical_name: str,
        token: str,
        deadline: float,
    ) -> TopicLocation:
        """Returns the location of a topic; ``cluster`` is a name or an id; empty = the cluster of
        the first server that answers.

        Raises:
            KdirError: as ``Resolver.which``.
        """
        from kdir.v1 import resolve_pb2

        request = resolve_pb2.LocateRequest(
            cluster=cluster, physical_name=physical_name, token=token
        )
        search = _Search(self, request, deadline)
        try:
            return search.run(
                Hop(AskedBecause.START, ROOT, None, start, list(self.health.order(start)))
            )
        except KdirError as error:
            error.attempts = (*search.attempts, *error.attempts)
            raise


class _Search:
    """State of one reverse lookup."""

    def __init__(
        self, locator: ReverseLookup, request: resolve_pb2.LocateRequest, deadline: float
    ) -> None:
        self._locator = locator
        self._request = request
        self._deadline = deadline
        self._asked: set[str] = set()
        self._rising = True
        self.attempts: list[str] = []

    def run(self, hop: Hop) -> TopicLocation:
        for _ in range(MAX_HOPS):
            found = self._ask_all(hop)
            if isinstance(found, TopicLocation):
                return found
            hop = found
        raise errors.TooManyHops(
            f"cluster {self._request.cluster!r}: more than {MAX_HOPS} hops",
            cluster=self._request.cluster,
        )

    def _ask_all(self, hop: Hop) -> TopicLocation | Hop:
        """Queries the servers of a hop in order; returns the location, or the next hop."""
        slow: set[str] = set()
        while hop.queue:
            endpoint = hop.queue.pop(0)
            hurried = endpoint not in slow and any(one not in slow for one in hop.queue)
            left = self._deadline - self._locator.clock()
            if left < LEAST_SECONDS:
                raise errors.DeadlineExceeded(
                    f"cluster {self._request.cluster!r}: the deadline passed before {hop.label} "
                    "could be asked"
                )
            share = time_share(len(hop.queue) + 1)
            floor = self._locator.positions.current
            self._asked.add(endpoint)
            try:
                response = self._locator.transport.call(
                    endpoint,
                    method("ResolveService.Locate"),
                    self._request_to(hop, endpoint),
                    per_server_timeout(left, share, hurried=hurried),
                    cluster_id=hop.cluster_id,
                )
                reply = reply_decoding.decode_reply(response)
                if self._is_old(hop, endpoint, reply.sender, floor):
                    continue
                return self._judge(hop, endpoint, reply)
            except KdirError as error:
                self.attempts.append(f"{endpoint} ({hop.way.value}): {error}")
                if isinstance(error, errors.DeadlineExceeded):
                    self._locator.health.note_slow(endpoint)
                    if hurried:
                        slow.add(endpoint)
                        hop.queue.append(endpoint)
                        continue
                hop.troubles.append((self._trouble(hop, endpoint, error), error))
        raise hop.combined_error(ROOT)

    def _request_to(self, hop: Hop, endpoint: str) -> resolve_pb2.LocateRequest:
        """Returns the request to a server; if its reply was old, with a token of the newer
        position.
        """
        if endpoint not in hop.again:
            return self._request
        cluster_id, seen = hop.again[endpoint]
        position = Token.from_position(cluster_id, seen.incarnation, seen.revision)
        request = type(self._request)()
        request.CopyFrom(self._request)
        request.token = str(Token.merge([Token.parse(request.token), position]))
        return request

    def _is_old(
        self, hop: Hop, endpoint: str, sender: Sender, floor: Mapping[str, Position]
    ) -> bool:
        """True if a reply is older than one that was received before the query was sent; then the
        server is queried once more, after the others of the hop (R17).

        Raises:
            Lame: the sender is not the one that the hop leads to.
            NotReady: the server's second reply is old, too.
        """
        if why := sender_mismatch(hop.referral, sender):
            raise errors.Lame(f"{endpoint} {why}")
        seen = floor.get(sender.cluster_id)
        why = outdated_reply(sender, seen)
        if seen is None or not why:
            return False
        if endpoint in hop.again:
            raise errors.NotReady(
                f"{endpoint} is still behind revision {seen.revision}, seen before"
            )
        self.attempts.append(f"{endpoint}: {why}")
        hop.again[endpoint] = (sender.cluster_id, seen)
        hop.queue.append(endpoint)
        return True

    def _trouble(self, hop: Hop, endpoint: str, error: KdirError) -> ServerFailure:
        """Returns the kind of failure that an error is; raises the error if every server would
        return it.
        """
        match error:
            case errors.NotReady() | errors.StoreUnavailable() | errors.TokenFromFuture():
                return ServerFailure.NOT_READY
            case errors.Absent() if self._is_owner_record(hop, error):
                raise error
            case errors.BadReferral() | errors.Lame() | errors.NotAuthoritative():
                self._locator.health.note_lame(endpoint)
                is_bad = isinstance(error, errors.BadReferral)
                return ServerFailure.BAD if is_bad else ServerFailure.LAME
            case errors.Absent() | errors.Unmounted() | errors.Unimplemented():
                return ServerFailure.LAME
            case errors.NoRoute():
                return ServerFailure.NO_ROUTE
            case errors.DeadlineExceeded():
                return ServerFailure.UNREACHABLE
            case errors.Unavailable():
                self._locator.health.note_failure(endpoint)
                return ServerFailure.UNREACHABLE
            case _:
                failure, status = classify_error(error, hop.way, recursive=False)
                if failure is None:
                    raise error
                if status is AnswerStatus.FAILED:
                    self._locator.health.note_failure(endpoint)
                return failure

    def _is_owner_record(self, hop: Hop, error: KdirError) -> bool:
        if hop.referral is None:
            return True
        return error.metadata.get("cluster_id", "") == hop.referral.cluster_id

    def _judge(self, hop: Hop, endpoint: str, reply: Reply) -> TopicLocation | Hop:
        sender = reply.sender
        wanted = self._request.cluster
        owns = wanted in {"", sender.cluster_id, sender.cluster}
        match reply.outcome:
            case Answer(path=path) as answer if owns and sender.mount.is_prefix_of(path):
                self._locator.health.note_success(endpoint)
                self._note_position(sender)
                return location_of(answer, sender)
            case Absent() if owns:
                self._note_position(sender)
                raise errors.Absent(
                    f"cluster {sender.cluster} has no topic with the physical name "
                    f"{self._request.physical_name!r}",
                    cluster_id=sender.cluster_id,
                    physical_name=self._request.physical_name,
                    mount=sender.mount,
                )
            case Referral() as referral if not owns:
                next_hop = self._follow(endpoint, sender.mount, referral)
                self._note_position(sender)
                return next_hop
            case ErrorAnswer(error=error):
                raise error
            case Answer() | Absent() | Referral() | Rewrite():
                raise errors.Lame(
                    f"{endpoint} answers for cluster {wanted!r}, but belongs to another"
                )

    def _note_position(self, sender: Sender) -> None:
        self._locator.positions.note(sender.cluster_id, sender.incarnation, sender.revision)

    def _follow(self, endpoint: str, mount: Path, referral: Referral) -> Hop:
        if referral.way is AskedBecause.UP:
            above = referral.mount is None or is_above(referral.mount, mount)
            why = "" if above else "up, to what is not above"
            why = why if self._rising else "up, after a step down"
        else:
            own = referral.mount == mount
            why = "to its own mount" if own or referral.mount is None else ""
            if referral.way is AskedBecause.DOWN and not why:
                why = (
                    "" if is_above(mount, referral.mount or ROOT) else "down, to what is not below"
                )
            self._rising = False
        endpoints = tuple(
            one for one in first_endpoints(referral.endpoints) if one not in self._asked
        )
        if referral.endpoints and not endpoints:
            raise errors.ReferralLoop(
                f"{endpoint} refers {referral.shown}; all servers named there were asked before"
            )
        if why:
            raise errors.BadReferral(
                f"{endpoint}, mounted at {mount}, refers {referral.shown}: {why}"
            )
        self.attempts.append(f"{endpoint}: {referral.shown}")
        hop = Hop(referral.way, ROOT, referral, endpoints)
        allowed: list[str] = []
        for one in endpoints:
            if refused := self._locator.refusal(one):
                hop.troubles.append(
                    (ServerFailure.BAD, errors.BadReferral(f"{hop.label}: {refused}"))
                )
            else:
                allowed.append(one)
        hop.queue = list(self._locator.health.order(allowed))
        return hop
