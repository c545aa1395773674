"""WatchService: the committed changes of a cluster, filtered by path, in order (PIP-39)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Final

from kdir.v1 import watch_pb2

from directory.api.change_view import ChangeView, may_change_way
from directory.api.cluster_router import ClusterRouter
from directory.api.page_tokens import MAX_PAGE, PageToken, page_size
from directory.api.rpc.call_context import Call
from directory.api.rpc.handlers import Handler, Service
from directory.api.rpc.polled_streams import PolledSource
from directory.api.token_waits import refuse_other_incarnation
from directory.api.visible_tree import OpenTree, VisibleTree
from directory.change_log.log_state import (
    noted_state,
    published_revision,
    publisher_of,
    unpublished_reason,
)
from directory.maintenance.watch_history import Revised
from directory.namespace.entry import Kind
from directory.namespace.lookup import LinkAt, MountAt
from directory.server.cluster import Cluster
from resolver.errors import (
    NotAuthoritative,
    Resync,
    StoreUnavailable,
    Unauthenticated,
    Unmounted,
    Unreachable,
)
from resolver.path import Path
from resolver.revision_token import Token

__all__ = ["WatchService"]


class WatchService(Service):
    """Service of change events. A slow watcher has to resync and never delays others."""

    descriptor = watch_pb2.DESCRIPTOR.services_by_name["WatchService"]
    long = frozenset({"ListChanges"})
    polled = frozenset({"Watch"})

    def __init__(self, router: ClusterRouter) -> None:
        self._router = router
        self._responses = _Responses()

    def method_handlers(self) -> Mapping[str, Handler]:
        return {
            "Watch": self.watch,
            "ListChanges": self.list_changes,
            "GetChangeLog": self.get_change_log,
        }

    def watch(self, request: watch_pb2.WatchRequest, call: Call) -> PolledSource:
        """Streams the changes at or below a path, one response for each revision, with checkpoints
        when idle.

        Ends with RESYNC if the token is of other clusters only, if the changes after it, or the
        rights by which they are shown, are not kept any more, if the watcher lags too far behind,
        or if the caller's view changed in a way that no events express; with
        NOT_AUTHORITATIVE once the path leads through a link or mount.
        """
        path = Path.parse(request.path)
        cluster, tree = self._router.read_owned(
            path, request.after_token, call, or_above=True, streams=True, past=True
        )
        _require_visible(tree, path)
        _refuse_elsewhere(tree, path)
        after = tree.snapshot.revision
        if request.after_token:
            position = Token.parse(request.after_token).positions.get(cluster.cluster_id)
            if position is None:
                raise Resync(
                    f"after_token: it has no position of cluster {cluster.config.cluster}, which "
                    f"{path} belongs to now: list again, then watch"
                )
            after = position.revision
        ChangeView(tree, cluster.access_history, path).refuse_unknown(after)
        return _Watching(self._router, self._responses, cluster, tree, path, after, request, call)

    def list_changes(
        self, request: watch_pb2.ListChangesRequest, call: Call
    ) -> watch_pb2.ListChangesResponse:
        """Returns past changes, newest first. A page is short if half of the caller's time has
        passed: the next page continues there.
        """
        path = Path.parse(request.path)
        cluster, tree = self._router.read_owned(path, "", call, or_above=True, past=True)
        _require_visible(tree, path)
        snapshot = tree.snapshot
        view = ChangeView(tree, cluster.access_history, path)
        size = page_size(request.page_size)
        before = snapshot.revision + 1
        if request.page_token:
            token = PageToken.parse(request.page_token, "changes", str(path))
            refuse_other_incarnation(token.incarnation, snapshot, cluster.cluster_id, "page_token")
            before = token.revision
        response = watch_pb2.ListChangesResponse(
            authority=cluster.authority(snapshot), rights_known_since=view.known_since()
        )
        events: list[watch_pb2.ChangeEvent] = []
        left = cluster.config.limits.answer_bytes
        read_count, least = size, call.seconds_left() / 2
        while len(events) < size and left > 0 and call.seconds_left() > least:
            call.check()
            seconds_left = call.seconds_left()
            older = cluster.history.page_before(before, read_count)
            if not older:
                before = 0
                break
            # Reads twice as many next: few of the changes may be at or below the path. Only after a
            # quick read, since a read that exceeds the deadline loses the events read before it.
            if seconds_left - call.seconds_left() < seconds_left * _QUICK_SHARE:
                read_count = min(2 * read_count, MAX_PAGE)
            for revision, group in older:
                if len(events) >= size or left <= 0:
                    break
                before = revision
                for event in view.logged(reversed(group)):
                    left -= event.ByteSize()
                    events.append(event)
        response.events.extend(events)
        if before > 0:
            response.next_page_token = str(
                PageToken("changes", str(path), snapshot.incarnation, before, "")
            )
        else:
            # Only here: newer pages may come from memory while the store cannot be reached.
            with suppress(StoreUnavailable):
                floor = cluster.history.oldest_revision()
                response.oldest_revision = floor + 1 if floor else 0
        return response

    def get_change_log(
        self, request: watch_pb2.GetChangeLogRequest, call: Call
    ) -> watch_pb2.GetChangeLogResponse:
        """Returns the address and the progress of a cluster's change log."""
        call.check()
        cluster = self._router.require_cluster_by_name(request.cluster)
        self._router.access_control.require_admin(cluster, "WatchService/GetChangeLog", call)
        snapshot = cluster.replica.snapshot
        response = watch_pb2.GetChangeLogResponse(authority=cluster.authority(snapshot))
        config, log = cluster.config.change_log, cluster.change_log
        if config is not None and log is not None:
            response.configured = True
            response.state_topic, response.history_topic = log.topics.state, log.topics.history
            response.bootstrap_servers.extend(config.bootstrap)
            response.schema_registry = config.schema_registry
        state = noted_state(snapshot)
        if state is not None:
            unpublished = unpublished_reason(snapshot, is_configured=log is not None)
            state.message = unpublished or state.message
            response.state.CopyFrom(state)
            waiting = cluster.history.waiting(published_revision(snapshot) or 0)
            response.waiting_commits, response.waiting_bytes = waiting.commits, waiting.size_bytes
            response.waiting_since_ms = waiting.since_ms
        elif log is not None:
            response.state.message = log.trouble
        response.publisher = publisher_of(snapshot)
        return response


class _Watching(PolledSource):
    """One open watch, from the revision that it has reached."""

    def __init__(
        self,
        router: ClusterRouter,
        responses: _Responses,
        cluster: Cluster,
        tree: OpenTree,
        path: Path,
        after: int,
        request: watch_pb2.WatchRequest,
        call: Call,
    ) -> None:
        self._router: Final = router
        self._responses: Final = responses
        self._cluster: Final = cluster
        self._call: Final = call
        self._path: Final = path
        self._incarnation: Final = tree.snapshot.incarnation
        self._idle_seconds: Final = float(request.checkpoint_seconds or 10)
        self._tree = tree
        """The tree that the last poll used."""
        self._reached = after
        self._has_begun = False
        self._sent_at = self._looked_at = self._identified_at = time.monotonic()
        self._taken: deque[Revised] = deque()
        """Changes taken from the subscription, of which none was sent yet."""
        self._is_way_changed = False
        """True if the path may lead elsewhere since a change that was taken."""
        self._subscription: Final = cluster.history.follow(after)

    def poll(self) -> watch_pb2.WatchResponse | bytes | None:
        now = time.monotonic()
        response = self._next_response(now)
        if response is not None:
            self._sent_at = now
        self.due_at = min(now + _LOOK_SECONDS, self._sent_at + self._idle_seconds)
        return response

    def _next_response(self, now: float) -> watch_pb2.WatchResponse | bytes | None:
        if not self._has_begun:
            self._has_begun = True
            # Set only now: nothing is due before the first response.
            self._subscription.on_ready = self.on_ready
            return watch_pb2.WatchResponse(
                token=self._token(self._reached),
                authority=self._cluster.authority(self._tree.snapshot),
            )
        if now - self._identified_at >= _LOOK_SECONDS:
            self._identified_at = now
            self._refuse_unidentified()
        if not self._taken and now - self._looked_at >= _LOOK_SECONDS:
            # Also under a constant load of changes.
            self._looked_at = now
            self._refuse_ended()
        response: watch_pb2.WatchResponse | bytes | None = self._next_changes()
        if response is None and not self.has_more:
            self._refuse_ended()
        # Also while there is more: a watcher that resumes far behind is not idle for the client,
        # and continues from this checkpoint if its stream ends.
        if response is None and now >= self._sent_at + self._idle_seconds:
            response = watch_pb2.WatchResponse(token=self._token(self._reached))
        return response

    def _next_changes(self) -> bytes | None:
        """Returns the response of the next revision with an event to show; None = there is none
        now.
        """
        cluster, replica = self._cluster, self._cluster.replica
        # Read before the subscription: if that has no changes, the watch has reached this revision.
        # A checkpoint may name it, so that a watcher that resumes there need not resync because of
        # revisions without events for it.
        delivered = replica.reported_revision
        had_none = not self._taken
        if had_none:
            self._taken.extend(self._subscription.next(0))
        # The newest snapshot, not that at the beginning: a revoked right ends the stream (N5).
        before = self._tree
        tree = self._tree = self._router.tree(cluster, replica.snapshot, self._call, past=True)
        _require_visible(tree, self._path)
        self._refuse_changed_way(tree)
        view = ChangeView(tree, cluster.access_history, self._path)
        view.refuse_other_age(before)
        if had_none and not self._taken and delivered > self._reached:
            view.streamed(self._reached, delivered, ())
            self._reached = delivered
        for _ in range(min(len(self._taken), _MOST_REVISIONS)):
            revised = self._taken.popleft()
            reached, self._reached = self._reached, revised[0]
            response = self._response(tree, view, reached, revised)
            self._is_way_changed |= may_change_way(revised[1], self._path)
            if response:
                return response
        self._refuse_changed_way(tree)
        return None

    def _refuse_changed_way(self, tree: OpenTree) -> None:
        """Raises ``NotAuthoritative`` if a change led the path through a link or mount, or to one:
        the events below it are now those of another place.
        """
        if self._is_way_changed:
            self._is_way_changed = False
            _refuse_elsewhere(tree, self._path, at_path=True)

    def _response(self, tree: OpenTree, view: ChangeView, reached: int, revised: Revised) -> bytes:
        """Returns the encoded response of one revision, for a watch that has reached an earlier
        one; empty if no event is shown.

        Raises:
            Resync, StoreUnavailable: see ``ChangeView.streamed``.
        """
        revision, events = revised

        def make() -> bytes:
            passed = view.streamed(reached, revision, events)
            if not passed:
                return b""
            response = watch_pb2.WatchResponse(events=passed, token=self._token(revision))
            return response.SerializeToString()

        snapshot = tree.snapshot
        caller = (tree.caller, tree.is_expired) if isinstance(tree, VisibleTree) else None
        shown = (self._cluster, snapshot.incarnation, snapshot.revision, caller, self._path)
        return self._responses.of((*shown, reached, revision), make)

    def _refuse_ended(self) -> None:
        """Raises an error if the server stops, or if another tree takes the place of this one.

        Raises:
            Unreachable: the server stops.
            Unmounted: the cluster has no mount any more.
            Resync: the store is in another incarnation.
        """
        cluster = self._cluster
        if cluster.draining:
            raise Unreachable("this server stops: continue at another one, from the last token")
        if cluster.federation.view().position.unmounted:
            raise Unmounted(f"cluster {cluster.config.cluster} was unmounted")
        if cluster.replica.snapshot.incarnation != self._incarnation:
            raise Resync("the store has a new incarnation: list again, then watch")

    def _refuse_unidentified(self) -> None:
        """Raises ``Unreachable`` if the caller's certificate or token has ended, or the token's key
        was removed: the caller continues with its new credentials, if it has any (N5).
        """
        try:
            self._call.identify()
        except Unauthenticated as error:
            again = f"{error}; continue from the last token, with new credentials"
            raise Unreachable(again) from error

    def _token(self, revision: int) -> str:
        return str(Token.from_position(self._cluster.cluster_id, self._incarnation, revision))

    @property
    def has_more(self) -> bool:
        return bool(self._taken) or self._is_way_changed or self._subscription.is_ready

    @property
    def may_wait(self) -> bool:
        if not self._has_begun:
            return False
        reads_past = not self._taken and not self._subscription.has_joined
        return reads_past or self._cluster.access_history.may_ask_store

    def close(self) -> None:
        self._subscription.on_ready = bool
        self._subscription.close()


class _Responses:
    """Encoded responses, shared by all watchers with the same view: of the same caller, or of
    callers that may see everything, by the grants of the same snapshot.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, bytes] = {}
        self._bytes = 0

    def of(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Returns the cached response of a key; makes it if there is none."""
        made = self._kept.get(key)
        if made is None:
            made = make()
            if len(self._kept) >= _MOST_KEPT or self._bytes > _MOST_KEPT_BYTES:
                self._kept, self._bytes = {}, 0
            self._kept[key] = made
            self._bytes += len(made)
        return made


_QUICK_SHARE: Final = 1 / 8
"""Part of the caller's remaining time within which a read of past changes is quick: the next read
is larger.
"""
_LOOK_SECONDS: Final = 5.0
_MOST_REVISIONS: Final = 200
"""Number of revisions without events to show that one watch reads before others are polled."""
_MOST_KEPT: Final = 512
_MOST_KEPT_BYTES: Final = 8 << 20


def _refuse_elsewhere(tree: OpenTree, path: Path, *, at_path: bool = False) -> None:
    """Checks that a path does not lead through a link or mount; with ``at_path``, nor to one.

    Raises:
        NotAuthoritative: it does.
    """
    found = tree.lookup(path, Kind.DIRECTORY)
    if isinstance(found, LinkAt | MountAt) and (found.rest or at_path):
        raise NotAuthoritative(
            f"{path} leads through a link or mount of cluster {tree.cluster}; resolve it first",
            path=path,
        )


def _require_visible(tree: OpenTree, path: Path) -> None:
    """Checks that the caller may see an entry at or below a path, or may come to see one.

    Raises:
        Absent: it may not, or not any more.
    """
    is_shown = (
        tree.has_describable_below(path)
        or tree.can_describe_path(path, Kind.TOPIC)
        or tree.would_show(path)
    )
    if not is_shown:
        raise tree.absent_error(path)
