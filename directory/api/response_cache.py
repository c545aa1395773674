"""Answers as the bytes that go out, remembered while nothing changes; refuses to decide any answer.

``resolve_answers.py`` decides; this module spares it, and protobuf, what was done before for the
same tree. Only what a tree at one revision says for sure is remembered: topics and directories. A
referral tells its age, an absence may be asked by anybody of anything; both are made anew each
time.

ResolveResponse and BatchResolveResponse have authorities in field 1 and outcomes in field 2, and
protobuf merges messages whose bytes follow each other: so the same parts make up either answer. A
test holds the contract to that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kdir.v1 import resolve_pb2

from directory.api.resolve_answers import ResolveAnswers
from directory.api.visible_tree import OpenTree
from directory.federation.federation_state import FederationView
from directory.namespace.entry import Kind
from directory.namespace.snapshot import Node, Snapshot
from directory.server.cluster import Cluster
from directory.wire.topic_splicer import TopicSplicer
from resolver.error_status import from_outcome, to_outcome
from resolver.errors import InvalidPath, KdirError
from resolver.path import MAX_PATH_BYTES, Path

__all__ = ["ResponseCache", "encode_authority", "encode_error", "with_authority_index"]

_MOST_OUTCOMES: Final = 1 << 16
"""With their paths some 25 MB; with large policies ``remembered_bytes`` comes first."""
_REST: Final = 3 * _MOST_OUTCOMES
_MOST_DIRECTORIES: Final = 1 << 14


def encode_authority(authority: resolve_pb2.Authority) -> bytes:
    """Returns the part of an answer that says who gives it."""
    return resolve_pb2.ResolveResponse(authority=authority).SerializeToString()


def encode_error(error: KdirError) -> bytes:
    """Returns the part of a batch's answer for a path that cannot be answered."""
    outcome = resolve_pb2.Outcome(error=to_outcome(error))
    return resolve_pb2.ResolveResponse(outcome=outcome).SerializeToString()


def with_authority_index(part: bytes, index: int) -> bytes:
    """Returns the same outcome, said by another authority of a batch than the first."""
    response = resolve_pb2.ResolveResponse.FromString(part)
    if response.outcome.HasField("resolution"):
        response.outcome.resolution.authority_index = index
    return response.SerializeToString()


class ResponseCache:
    """The answers of one cluster, as it is in one snapshot and one view of the federation.

    Thread-safe: what two threads make of the same question is the same.
    """

    __slots__ = (
        "_answers",
        "_authority",
        "_directories",
        "_left_bytes",
        "_lifetime_seconds",
        "_most_bytes",
        "_outcomes",
        "_snapshot",
        "_splicers",
        "_unremembered",
        "_view",
    )

    def __init__(self, cluster: Cluster, tree: OpenTree, view: FederationView) -> None:
        """``tree``: whole; ``outcome_for`` is given what one caller sees of it."""
        self._snapshot = tree.snapshot
        self._view = view
        self._answers = ResolveAnswers(cluster, tree)
        self._authority: tuple[resolve_pb2.Authority | None, bytes] = (None, b"")
        self._outcomes: dict[str, bytes] = {}
        self._directories: dict[str, Node] = {}
        self._splicers: dict[str, TopicSplicer] = {}
        self._unremembered = 0
        self._lifetime_seconds = cluster.config.limits.answer_ttl_seconds
        self._most_bytes = self._left_bytes = cluster.config.limits.remembered_bytes

    def is_current(self, snapshot: Snapshot, view: FederationView) -> bool:
        """True if it still holds."""
        return snapshot is self._snapshot and view is self._view

    def authority(self, authority: resolve_pb2.Authority) -> bytes:
        """``encode_authority``, made once as long as it is given the same message."""
        known, part = self._authority
        if known is not authority:
            part = encode_authority(authority)
            self._authority = (authority, part)
        return part

    def outcome_for(
        self, tree: OpenTree, text: str, prefer: Kind | None = None, *, no_follow: bool = False
    ) -> bytes:
        """Returns the part of an answer for a path, as one caller may know it.

        Raises:
            as ``outcome_bytes``.
        """
        if tree.is_open or tree.shows_any_at(text):
            return self.outcome_bytes(text, prefer, no_follow=no_follow)
        return self._decide(text, prefer, no_follow=no_follow, tree=tree)[0]

    def outcome_bytes(
        self, text: str, prefer: Kind | None = None, *, no_follow: bool = False
    ) -> bytes:
        """Returns the part of an answer for a path.

        Raises:
            InvalidPath
            KdirError: nothing leads there, or what is there cannot be read.
        """
        if prefer is not None or no_follow:
            return self._decide(text, prefer, no_follow=no_follow)[0]
        return (
            self._outcomes.get(text)
            or self._splice(text)
            or self._topic(text)
            or self._remembered(text)
        )

    def outcomes(
        self,
        tree: OpenTree,
        texts: Iterable[str],
        prefer: Kind | None = None,
        *,
        no_follow: bool = False,
    ) -> list[bytes]:
        """Returns the parts for many paths, errors among them, as one caller may know them."""
        if prefer is not None or no_follow or not tree.is_open:
            return [self._part(tree, text, prefer, no_follow=no_follow) for text in texts]
        known, splice = self._outcomes.get, self._splice
        return [known(text) or splice(text) or self._part(tree, text) for text in texts]

    def _part(
        self, tree: OpenTree, text: str, prefer: Kind | None = None, *, no_follow: bool = False
    ) -> bytes:
        try:
            return self.outcome_for(tree, text, prefer, no_follow=no_follow)
        except KdirError as error:
            return encode_error(error)

    def _splice(self, text: str) -> bytes | None:
        """As ``_topic``, at half the cost, for most topics. Only where nothing is left that could
        turn out unreadable: the bytes go out as they are.
        """
        above, _, name = text.rpartition("/")
        splicer = self._splicers.get(above)
        if splicer is None:
            node = self._see_directory(above) if self._snapshot.all_read else None
            if node is None:
                return None
            inherited = self._answers.inherited(node.entry_id)
            splicer = TopicSplicer(node, self._lifetime_seconds, inherited)
            self._left_bytes -= splicer.size
            if len(self._splicers) >= _MOST_DIRECTORIES or self._left_bytes < 0:
                self._forget()
            self._splicers[above] = splicer
        part = splicer.resolve_response_bytes(text, name)
        return None if part is None else self._remember(text, part)

    def _topic(self, text: str) -> bytes | None:
        """Returns the part for a topic that no link or mount leads to; None where there is none.

        What follows the path of a directory and names a topic in it needs no other check: such
        names are legal.
        """
        above, _, name = text.rpartition("/")
        node = self._directories.get(above) or self._see_directory(above)
        if node is None or len(text) > MAX_PATH_BYTES:
            return None
        record = node.topics.get(name)
        if record is None:
            return None
        response = resolve_pb2.ResolveResponse()
        self._answers.topic(
            text,
            record,
            node.entry_id,
            response.outcome.resolution,
            has_container=name in node.containers,
        )
        return self._remember(text, response.SerializeToString())

    def _remembered(self, text: str) -> bytes:
        part, kind = self._decide(text)
        if kind == "resolution":
            self._remember(text, part)
        return part

    def _decide(
        self,
        text: str,
        prefer: Kind | None = None,
        *,
        no_follow: bool = False,
        tree: OpenTree | None = None,
    ) -> tuple[bytes, str]:
        response = resolve_pb2.ResolveResponse()
        outcome = response.outcome
        self._answers.resolve(Path.parse(text), outcome, prefer, no_follow=no_follow, tree=tree)
        kind = str(outcome.WhichOneof("kind"))
        if kind == "error":
            raise from_outcome(outcome.error)
        return response.SerializeToString(), kind

    def _remember(self, text: str, part: bytes) -> bytes:
        left = self._left_bytes - len(part)
        if len(self._outcomes) < _MOST_OUTCOMES and left >= 0:
            self._left_bytes = left
            self._outcomes[text] = part
            return part
        # Full. Where paths are asked from all over a big tree, remembering is half of the cost and
        # of no use: so it rests for a while before it begins anew.
        self._unremembered += 1
        if self._unremembered >= _REST:
            self._forget()
        return part

    def _forget(self) -> None:
        """Begins anew. What another thread adds meanwhile is counted a little wrong, no more."""
        self._outcomes.clear()
        self._splicers.clear()
        self._unremembered = 0
        self._left_bytes = self._most_bytes

    def _see_directory(self, text: str) -> Node | None:
        try:
            node = self._answers.directory(Path.parse(text or "/"))
        except InvalidPath:
            return None  # what is wrong is said of the whole path
        if node is None:
            return None
        if len(self._directories) >= _MOST_DIRECTORIES:
            self._directories.clear()
        self._directories[text] = node
        return node
