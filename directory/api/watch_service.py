"""WatchService: the committed changes of a cluster, filtered by path, in order (PIP-39)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from kdir.v1 import watch_pb2

from directory.api.change_view import ChangeView
from directory.api.cluster_router import ClusterRouter
from directory.api.page_tokens import PageToken, page_size
from directory.api.rpc.call_context import Call
from directory.api.rpc.handlers import Handler, Service
from directory.api.visible_tree import OpenTree
from resolver.errors import Resync, TokenExpired, Unmounted, Unreachable
from resolver.path import Path
from resolver.revision_token import Token

__all__ = ["WatchService"]


class WatchService(Service):
    """Service of changes; a slow watcher has to resync and never slows others."""

    descriptor = watch_pb2.DESCRIPTOR.services_by_name["WatchService"]
    long = frozenset({"ListChanges"})

    def __init__(self, router: ClusterRouter) -> None:
        self._router = router

    def method_handlers(self) -> Mapping[str, Handler]:
        return {"Watch": self.watch, "ListChanges": self.list_changes}

    def watch(
        self, request: watch_pb2.WatchRequest, call: Call
    ) -> Iterator[watch_pb2.WatchResponse]:
        """Changes at or below a path, one response a revision, checkpoints when idle.

        Ends with RESYNC when the changes after the token are no longer held, or who might see them
        is not known any more, or the watcher lags, or it may see more or less than before in a way
        that no changes express.
        """
        path = Path.parse(request.path)
        cluster, tree = self._router.read_owned(
            path, request.after_token, call, or_above=True, streams=True, past=True
        )
        _require_visible(tree, path)
        snapshot = tree.snapshot
        position = Token.parse(request.after_token).positions.get(cluster.cluster_id)
        after = position.revision if position is not None else snapshot.revision
        idle_seconds = float(request.checkpoint_seconds or 10)
        ChangeView(tree, cluster.access_history, path).refuse_unknown(after)
        subscription = cluster.history.follow(after)
        call.on_end(subscription.close)
        try:
            yield watch_pb2.WatchResponse(
                token=self._token(cluster.cluster_id, snapshot.incarnation, after),
                authority=cluster.authority(snapshot),
            )
            incarnation = snapshot.incarnation
            sent_at = time.monotonic()
            reached = after
            while call.is_active():
                # What every subscriber had before an empty answer is behind us: a checkpoint may
                # say so, and a watcher that resumes there need not resync for changes of nothing.
                delivered = cluster.replica.wait_for(0, _FIRST_SECONDS).revision
                batch = subscription.next(min(idle_seconds, _LOOK_SECONDS))
                # Not the snapshot that it began with: a right that is gone ends the stream (N5).
                before = tree
                tree = self._router.tree(cluster, cluster.replica.snapshot, call, past=True)
                _require_visible(tree, path)
                view = ChangeView(tree, cluster.access_history, path)
                view.refuse_other_age(before)
                if not batch and delivered > reached:
                    view.streamed(reached, delivered, ())
                    reached = delivered
                for revision, events in batch:
                    passed = view.streamed(reached, revision, events)
                    reached = revision
                    if passed:
                        sent_at = time.monotonic()
                        token = self._token(cluster.cluster_id, incarnation, revision)
                        yield watch_pb2.WatchResponse(events=passed, token=token)
                if cluster.draining:
                    raise Unreachable("this server ends; go on at another one, from the last token")
                if cluster.federation.view().position.unmounted:
                    raise Unmounted(f"cluster {cluster.config.cluster} was unmounted")
                if cluster.replica.snapshot.incarnation != incarnation:
                    raise Resync("the store has a new incarnation: list again, then watch")
                if time.monotonic() - sent_at >= idle_seconds:
                    sent_at = time.monotonic()
                    token = self._token(cluster.cluster_id, incarnation, reached)
                    yield watch_pb2.WatchResponse(token=token)
        finally:
            subscription.close()

    @staticmethod
    def _token(cluster_id: str, incarnation: str, revision: int) -> str:
        return str(Token.from_position(cluster_id, incarnation, revision))

    def list_changes(
        self, request: watch_pb2.ListChangesRequest, call: Call
    ) -> watch_pb2.ListChangesResponse:
        """Returns past changes, newest first."""
        path = Path.parse(request.path)
        cluster, tree = self._router.read_owned(path, "", call, or_above=True, past=True)
        _require_visible(tree, path)
        snapshot = tree.snapshot
        view = ChangeView(tree, cluster.access_history, path)
        size = page_size(request.page_size)
        before = snapshot.revision + 1
        if request.page_token:
            token = PageToken.parse(request.page_token, "changes", str(path))
            if token.incarnation != snapshot.incarnation:
                raise TokenExpired("page_token: from an earlier incarnation of the store")
            before = token.revision
        response = watch_pb2.ListChangesResponse(
            authority=cluster.authority(snapshot), rights_known_since=view.known_since()
        )
        events: list[watch_pb2.ChangeEvent] = []
        left = cluster.config.limits.answer_bytes
        while len(events) < size and left > 0:
            call.check()
            older = cluster.history.page_before(before, size)
            if not older:
                before = 0
                break
            for revision, group in older:
                if len(events) >= size or left <= 0:
                    break
                before = revision
                for event in view.logged(reversed(group)):
                    left -= event.ByteSize()
                    events.append(event)
        response.events.extend(events)
        if before > 0 and (len(events) >= size or left <= 0):
            response.next_page_token = str(
                PageToken("changes", str(path), snapshot.incarnation, before, "")
            )
        return response


_LOOK_SECONDS = 5.0
_FIRST_SECONDS = 5.0


def _require_visible(tree: OpenTree, path: Path) -> None:
    """Checks that something at or below a path is, or may come to be, the caller's to see.

    Raises:
        Absent: nothing is, or is any more.
    """
    if not (tree.has_describable_below(path) or tree.would_show(path)):
        raise tree.absent_error(path)
