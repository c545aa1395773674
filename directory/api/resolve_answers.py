"""Resolve: from the entry at a path to the outcome of the contract.

The order of an answer: below this cluster's mount the tree decides, and no other server returns
*absent*; elsewhere a site link, then the mount table, then the parent; else *no route*.

``ResponseCache`` keeps encoded outcomes until the snapshot changes: those of topics and
directories, which the tree alone determines. A referral contains its age, and absent paths are
unlimited in number, so both are encoded each time.

ResolveResponse and BatchResolveResponse have authorities in field 1 and outcomes in field 2, and
protobuf merges concatenated messages: so the same encoded parts make up either response. A test
checks the contract for that.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, assert_never, cast

from kdir.v1 import policies_pb2, resolve_pb2

from directory.api.visible_tree import OpenTree
from directory.federation import inheritance
from directory.federation.federation_state import unix_ms
from directory.federation.referral import Direction, NoReferral, Referral
from directory.namespace.effective_policies import effective, levels_of
from directory.namespace.entry import NO_POLICIES, Entry, Kind, Link, Policies
from directory.namespace.lookup import (
    DirectoryAt,
    LinkAt,
    Missing,
    MountAt,
    TopicAt,
    Unreadable,
)
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.traversal import entry_path
from directory.server.cluster import Cluster
from directory.server.config import SiteLink
from directory.wire.entry_codec import (
    entry_to_proto,
    policies_to_proto,
    record_to_proto,
)
from directory.wire.topic_splicer import KeptSplicer, TopicSplicer, make_splicer, splice_topics
from resolver.error_status import from_outcome, to_outcome
from resolver.errors import InvalidArgument, InvalidPath, KdirError, NoRoute, UnreadableRecord
from resolver.path import MAX_PATH_BYTES, ROOT, Path

if TYPE_CHECKING:
    from kdir.v1 import entry_pb2

    from directory.federation.parent_state import TableRow

__all__ = [
    "ResolveAnswers",
    "ResponseCache",
    "directory_to_proto",
    "encode_error",
    "find_mounts_of_cluster",
    "kind_from_number",
    "refer_to_cluster",
    "with_authority_index",
]


def kind_from_number(number: int, field: str = "kind") -> Kind | None:
    """Returns a kind of the contract; None if unspecified. ``field`` is the request's name of it.

    Raises:
        InvalidArgument: a number that this version does not define.
    """
    try:
        return Kind(number) if number else None
    except ValueError:
        known = ", ".join(f"{one.name} = {one.value}" for one in Kind)
        raise InvalidArgument(f"{field}: found {number}; known are {known}", field=field) from None


def directory_to_proto(
    tree: OpenTree, relative: tuple[str, ...], node: Node, out: entry_pb2.Entry
) -> None:
    """Fills in a directory with the counts of its entries that the caller may see."""
    entry_to_proto(node.directory, str(entry_path(tree.mount, relative)), node, out)
    seen = tree.count(relative, node)
    out.directory.topic_count, out.directory.container_count = seen.topics, seen.containers
    out.directory.total_topic_count = tree.count_below(relative, node).topics
    if unreadable := tree.unreadable_in(relative, node):
        out.directory.unreadable_count = unreadable


class ResolveAnswers:
    """Source of the answers from one tree of one cluster; caches what paths share. Thread-safe.

    Args:
        before: the answers of an earlier snapshot, from which unchanged parts are taken.
    """

    def __init__(
        self, cluster: Cluster, tree: OpenTree, before: ResolveAnswers | None = None
    ) -> None:
        self._cluster = cluster
        self._tree = tree
        self.snapshot = tree.snapshot
        self._mount = tree.mount
        limits = cluster.config.limits
        self._answer_seconds = limits.answer_ttl_seconds
        self._absent_seconds = limits.negative_ttl_seconds
        self._referral_seconds = limits.referral_ttl_seconds
        self._left_bytes = limits.remembered_bytes
        self.above: list[Policies] | None = None
        """Policies from above the mount, which are among the facts; None = not read yet."""
        if before is not None and before.snapshot.tree.facts is tree.snapshot.tree.facts:
            self.above = before.above
        self._holders: dict[int, int] = {}
        """For each directory the nearest at or above it that sets policies, and so has the same
        effective ones; or ``_NO_HOLDER``."""
        self._effective: dict[int, policies_pb2.Policies | None] = {}

    def resolve(
        self,
        path: Path,
        outcome: resolve_pb2.Outcome,
        prefer: Kind | None = None,
        *,
        no_follow: bool = False,
        tree: OpenTree | None = None,
    ) -> None:
        """Fills in the outcome for one path. ``tree`` is the caller's view of the same snapshot."""
        tree = tree or self._tree
        if not self._mount.is_prefix_of(path):
            self._outside(path, outcome)
            return
        found = tree.lookup(path, prefer, no_follow=no_follow)
        match found:
            case TopicAt(parent_id=parent_id, record=record, has_container=has_container):
                self.topic(
                    str(path), record, parent_id, outcome.resolution, has_container=has_container
                )
            case DirectoryAt(relative=relative, node=node):
                directory_to_proto(tree, relative, node, outcome.resolution.entry)
                self._hold(outcome.resolution, node.entry_id)
            case LinkAt(relative=relative, link=link, rest=rest):
                if no_follow and not rest:
                    self._own_entry(path, link, outcome)
                else:
                    self._rewrite(self._mount.join(relative), link, rest, outcome.rewrite)
            case MountAt(relative=relative, mount=mount, rest=rest):
                where = self._mount.join(relative)
                if no_follow and not rest:
                    self._own_entry(path, mount, outcome)
                else:
                    _refer(
                        self._cluster,
                        self._cluster.federation.down(where, mount),
                        outcome.referral,
                    )
            case Missing(nearest=nearest):
                outcome.absent.nearest_directory = str(self._mount.join(nearest))
                outcome.absent.lifetime_seconds = self._absent_seconds
            case Unreadable(relative=relative, reason=reason):
                where = self._mount.join(relative)
                outcome.error.CopyFrom(
                    to_outcome(
                        UnreadableRecord(
                            f"the record of {where} cannot be read: {reason}; see kdir doctor"
                        )
                    )
                )
            case _:
                assert_never(found)

    def topic(
        self,
        path: str,
        record: bytes,
        parent_id: int,
        resolution: resolve_pb2.Resolution,
        *,
        has_container: bool,
    ) -> None:
        """Fills in the resolution of a topic."""
        record_to_proto(record, path, resolution.entry)
        if has_container:
            resolution.has_container = True
        self._hold(resolution, parent_id)

    def directory(self, path: Path) -> Node | None:
        """Returns the directory at a path; None if there is none below this mount."""
        if not self._mount.is_prefix_of(path):
            return None
        directory_id = self.snapshot.find_directory(path.segments[len(self._mount) :])
        return None if directory_id is None else self.snapshot.nodes.get(directory_id)

    def _own_entry(self, path: Path, entry: Entry, outcome: resolve_pb2.Outcome) -> None:
        entry_to_proto(entry, str(path), into=outcome.resolution.entry)
        outcome.resolution.lifetime_seconds = self._answer_seconds

    def _hold(self, resolution: resolve_pb2.Resolution, directory_id: int) -> None:
        resolution.lifetime_seconds = self._answer_seconds
        inherited = self.inherited(directory_id)
        entry = resolution.entry
        if inherited is None and not entry.HasField("policies"):
            return
        if inherited is not None:
            resolution.effective.CopyFrom(inherited)
        if entry.HasField("policies") and entry.HasField("topic"):
            # Field by field, map key by map key: protobuf's merge is the inheritance rule.
            resolution.effective.MergeFrom(entry.policies)
            resolution.effective.ClearField("stamps")

    def inherited(self, directory_id: int) -> policies_pb2.Policies | None:
        """Returns the effective policies of a directory; None if no policies are set."""
        holder = self._holders.get(directory_id)
        if holder is None:
            holder = self._holders[directory_id] = _nearest_with_policies(
                self.snapshot, directory_id
            )
        if holder in self._effective:
            return self._effective[holder]
        if self.above is None:
            self.above = inheritance.inherited_policies(self.snapshot)
        own = [] if holder == _NO_HOLDER else levels_of(self.snapshot, holder)
        levels = [*self.above, *own]
        message = policies_to_proto(effective(levels)) if levels else None
        # Large policies are rare. Where a tree has many, they are computed each time.
        size = 0 if message is None else message.ByteSize()
        if size <= self._left_bytes:
            self._left_bytes -= size
            self._effective[holder] = message
        return message

    def _rewrite(
        self, where: Path, link: Link | SiteLink, rest: tuple[str, ...], out: resolve_pb2.Rewrite
    ) -> None:
        out.link = str(where)
        out.paths.extend(str(target.join(rest)) for target in link.targets)
        out.mode = cast("entry_pb2.LinkMode", link.mode.value)
        out.writes = cast("entry_pb2.LinkWrites", link.writes.value)
        out.fall_back_on_absent = link.fall_back_on_absent
        out.lifetime_seconds = self._referral_seconds

    def _outside(self, path: Path, outcome: resolve_pb2.Outcome) -> None:
        site_link = self._site_link(path)
        if site_link is not None:
            self._rewrite(site_link.path, site_link, path.below(site_link.path), outcome.rewrite)
            outcome.rewrite.site_link = True
            return
        answer = self._cluster.federation.outside(path)
        match answer:
            case Referral():
                _refer(self._cluster, answer, outcome.referral)
            case NoReferral(message=message):
                outcome.error.CopyFrom(to_outcome(NoRoute(message, mount=self._mount)))
            case _:
                assert_never(answer)

    def _site_link(self, path: Path) -> SiteLink | None:
        matching = [one for one in self._cluster.config.links if one.path.is_prefix_of(path)]
        return max(matching, key=lambda one: len(one.path), default=None)


def find_mounts_of_cluster(owner: Cluster, tree: OpenTree, cluster: str) -> list[TableRow]:
    """Returns the mounts of a cluster, by id or name, that ``owner`` knows and that the caller of
    ``tree`` may see.
    """
    return [
        row
        for row in owner.federation.rows_everywhere()
        if cluster in (row.row.cluster_id, row.row.cluster) and tree.can_refer_to(row.mount)
    ]


def refer_to_cluster(
    owner: Cluster, tree: OpenTree, cluster: str, outcome: resolve_pb2.Outcome
) -> None:
    """Fills in the referral to a cluster by id or name, from the mounts that ``owner`` knows and
    that the caller of ``tree`` may see. If there is none: the referral to the parent, else *no
    route*.
    """
    federation = owner.federation
    rows = find_mounts_of_cluster(owner, tree, cluster)
    rows.sort(key=federation.view().rank_of_row, reverse=True)
    found = {row.row.cluster_id: row for row in rows}  # the last row of each cluster counts
    chosen = [found[cluster]] if cluster in found else list(found.values())
    if len(chosen) > 1:
        ids = ", ".join(sorted(found))
        message = f"several clusters are called {cluster!r}: {ids}; give the cluster id"
        outcome.error.CopyFrom(to_outcome(InvalidArgument(message, field="cluster")))
    elif chosen:
        _refer(owner, federation.towards(chosen[0]), outcome.referral)
    else:
        up = federation.outside(ROOT) if not owner.mount.is_root else None
        if isinstance(up, Referral) and up.direction is Direction.UP:
            _refer(owner, up, outcome.referral)
            return
        message = f"no cluster {cluster!r} is known to {owner.config.cluster}"
        outcome.error.CopyFrom(to_outcome(NoRoute(message, cluster=cluster)))


def _refer(owner: Cluster, answer: Referral, out: resolve_pb2.Referral) -> None:
    out.kind = cast("resolve_pb2.ReferralKind", answer.direction.value)
    out.mount = str(answer.mount)
    out.cluster_id = answer.cluster_id
    out.cluster = answer.cluster
    out.epoch = answer.epoch
    out.endpoints.extend(answer.endpoints[:20])
    out.lifetime_seconds = owner.config.limits.referral_ttl_seconds
    out.age_seconds = max(0, unix_ms() - answer.owner_time_ms) // 1000


_NO_HOLDER: Final = 0
"""Holder where no directory within the mount sets policies; the id of no directory."""


def _nearest_with_policies(snapshot: Snapshot, directory_id: int) -> int:
    find = snapshot.nodes.get
    node = find(directory_id)
    while node is not None:
        if node.directory.policies is not NO_POLICIES and node.directory.policies != NO_POLICIES:
            return node.entry_id
        node = find(node.parent_id)
    return _NO_HOLDER


_MOST_OUTCOMES: Final = 1 << 16
"""Most outcomes in the cache, some 25 MB with their paths; large policies reach
``remembered_bytes`` first.
"""
_REST: Final = 3 * _MOST_OUTCOMES
"""Number of outcomes not stored after which the cache is emptied and filled again; doubled each
time that hits were rare.
"""
_LONGEST_REST: Final = 4 * _REST
_TRIED: Final = 1 << 12
"""Number of outcomes not stored after which the share of hits is judged."""
_RARE: Final = 8
"""Number of misses for each hit above which a lookup costs more than it saves."""
_MOST_DIRECTORIES: Final = 1 << 14


def encode_error(error: KdirError) -> bytes:
    """Returns the encoded outcome of a path that cannot be answered."""
    outcome = resolve_pb2.Outcome(error=to_outcome(error))
    return resolve_pb2.ResolveResponse(outcome=outcome).SerializeToString()


def with_authority_index(part: bytes, index: int) -> bytes:
    """Returns an encoded outcome with the number of its authority in a batch; 0, the first, is left
    as is.
    """
    response = resolve_pb2.ResolveResponse.FromString(part)
    if response.outcome.HasField("resolution"):
        response.outcome.resolution.authority_index = index
    return response.SerializeToString()


@dataclass(slots=True)
class _Kept:
    """State that a response cache hands to that of the next snapshot. Calls on several snapshots
    change it: the counts are approximate.
    """

    reloads: int
    """Number of reloads of the replica: a reloaded tree shares no directory with the one before."""
    splicers: dict[str, KeptSplicer] = field(default_factory=dict)
    """Splicers by directory path, made for this or an earlier snapshot."""
    splicer_bytes: int = 0
    unremembered: int = 0
    """Number of outcomes not stored since the cache was last emptied."""
    found: int = 0
    """Number of hits since then."""
    rest: int = field(default_factory=lambda: _REST)

    @property
    def is_remembering_idle(self) -> bool:
        """True if the cache was full and hits were too rare to be worth the look-up."""
        return self.unremembered > _TRIED and self.unremembered > _RARE * self.found


class ResponseCache:
    """Encoded answers of one cluster for one snapshot.

    Thread-safe: two threads that encode the same answer get equal bytes.
    """

    __slots__ = (
        "_directories",
        "_left_bytes",
        "_lifetime_seconds",
        "_most_bytes",
        "_outcomes",
        "_splicers",
        "answers",
        "kept",
        "snapshot",
    )

    def __init__(
        self, cluster: Cluster, tree: OpenTree, before: ResponseCache | None = None
    ) -> None:
        """``tree`` is unrestricted; ``outcome_for`` takes the caller's view of it. ``before``: the
        cache of an earlier snapshot.
        """
        self.snapshot = tree.snapshot
        earlier = None if before is None else before.answers
        self.answers: ResolveAnswers = ResolveAnswers(cluster, tree, earlier)
        self._outcomes: dict[str, bytes] = {}
        self._directories: dict[str, Node] = {}
        self._splicers: dict[str, TopicSplicer] = {}
        reloads = cluster.replica.reloads
        self.kept: _Kept = (
            before.kept if before is not None and before.kept.reloads == reloads else _Kept(reloads)
        )
        if not self.kept.is_remembering_idle:
            self.kept.unremembered = self.kept.found = 0
        self._lifetime_seconds = cluster.config.limits.answer_ttl_seconds
        self._most_bytes = cluster.config.limits.remembered_bytes
        self._left_bytes = self._most_bytes - self.kept.splicer_bytes

    def outcome_for(
        self, tree: OpenTree, text: str, prefer: Kind | None = None, *, no_follow: bool = False
    ) -> bytes:
        """Returns the encoded outcome of a path for a caller that may not see everything there;
        it is not cached.

        Raises:
            as ``outcome_bytes``.
        """
        return self._decide(text, prefer, no_follow=no_follow, tree=tree)[0]

    def outcome_bytes(
        self, text: str, prefer: Kind | None = None, *, no_follow: bool = False
    ) -> bytes:
        """Returns the encoded outcome of a path, for callers that may see everything there.

        Raises:
            InvalidPath: the path is malformed.
            KdirError: no route to the path, or its record cannot be read.
        """
        if prefer is not None or no_follow:
            return self._decide(text, prefer, no_follow=no_follow)[0]
        if not self.kept.is_remembering_idle:
            found = self._outcomes.get(text)
            if found is not None:
                self.kept.found += 1
                return found
        return self._splice(text) or self._topic(text) or self._remembered(text)

    def outcomes(
        self,
        tree: OpenTree,
        texts: Sequence[str],
        prefer: Kind | None = None,
        *,
        no_follow: bool = False,
    ) -> list[bytes]:
        """Returns the encoded outcomes of many paths for one caller; errors are outcomes, too."""
        if (
            prefer is not None
            or no_follow
            or not (tree.is_open or all(map(tree.shows_any_at, texts)))
        ):
            return [self._part(tree, text, prefer, no_follow=no_follow) for text in texts]
        if self.kept.is_remembering_idle:
            self._count_unremembered(len(texts))
            spliced = splice_topics(self._splicers, texts)
            if all(spliced):
                return cast("list[bytes]", spliced)
            return [
                part or self._part(tree, text) for part, text in zip(spliced, texts, strict=True)
            ]
        parts = list(map(self._outcomes.get, texts))
        places = [] if all(parts) else [at for at, part in enumerate(parts) if part is None]
        self.kept.found += len(texts) - len(places)
        if not places:
            return cast("list[bytes]", parts)
        new = [texts[place] for place in places]
        spliced = splice_topics(self._splicers, new)
        self._remember_all(new, spliced)
        for place, part in zip(places, spliced, strict=True):
            parts[place] = part or self._part(tree, texts[place])
        return cast("list[bytes]", parts)

    def _part(
        self, tree: OpenTree, text: str, prefer: Kind | None = None, *, no_follow: bool = False
    ) -> bytes:
        try:
            if tree.shows_any_at(text):
                return self.outcome_bytes(text, prefer, no_follow=no_follow)
            return self.outcome_for(tree, text, prefer, no_follow=no_follow)
        except KdirError as error:
            return encode_error(error)

    def _splice(self, text: str) -> bytes | None:
        """Returns the same as ``_topic`` at half the cost, for most topics; None for the others.

        All are left to ``_topic`` while some record may be unreadable, since the stored bytes are
        sent unparsed.
        """
        above = text.rpartition("/")[0]
        if above not in self._splicers and not self._make_splicer(above):
            return None
        (part,) = splice_topics(self._splicers, (text,))
        return None if part is None else self._remember(text, part)

    def _make_splicer(self, above: str) -> bool:
        """Makes and caches the splicer of a directory; returns False if there is no directory at
        this path, or some record may be unreadable.
        """
        node = self._directories.get(above) or self._see_directory(above)
        if node is None or not self.snapshot.all_read:
            return False
        inherited = self.answers.inherited(node.entry_id)
        kept = self.kept
        earlier = kept.splicers.get(above)
        made = make_splicer(node, self._lifetime_seconds, inherited, earlier)
        # The caller's view of the tree has the same text object: it is fetched from memory once.
        above = sys.intern(above)
        if made is not earlier:
            added = made.size_bytes - (0 if earlier is None else earlier.size_bytes)
            if len(kept.splicers) >= _MOST_DIRECTORIES or self._left_bytes < added:
                kept.splicers.clear()
                self._splicers.clear()
                kept.splicer_bytes, added = 0, made.size_bytes
                self._forget_outcomes()
            self._left_bytes -= added
            kept.splicer_bytes += added
            kept.splicers[above] = made
        self._splicers[above] = made.splicer
        return True

    def _topic(self, text: str) -> bytes | None:
        """Returns the encoded outcome of a topic that no link or mount leads to; None if there is
        none.

        The last segment needs no syntax check of its own: if it names a topic in the tree, it is
        legal.
        """
        above, slash, name = text.rpartition("/")
        node = self._directories.get(above) or self._see_directory(above)
        if node is None or not slash or len(text) > MAX_PATH_BYTES:
            return None
        record = node.topics.get(name)
        if record is None:
            return None
        response = resolve_pb2.ResolveResponse()
        self.answers.topic(
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
        self.answers.resolve(Path.parse(text), outcome, prefer, no_follow=no_follow, tree=tree)
        kind = str(outcome.WhichOneof("kind"))
        if kind == "error":
            raise from_outcome(outcome.error)
        return response.SerializeToString(), kind

    def _remember(self, text: str, part: bytes) -> bytes:
        left = self._left_bytes - len(part)
        has_room = len(self._outcomes) < _MOST_OUTCOMES and left >= 0
        if has_room and not self.kept.is_remembering_idle:
            self._left_bytes = left
            self._outcomes[text] = part
            return part
        self._count_unremembered(1)
        return part

    def _remember_all(self, texts: Sequence[str], parts: Sequence[bytes | None]) -> None:
        """Stores encoded outcomes; if the cache is full, only counts them."""
        room = _MOST_OUTCOMES - len(self._outcomes)
        if room <= 0:
            self._count_unremembered(len(parts))
            return
        made = [(text, part) for text, part in zip(texts, parts, strict=True) if part is not None]
        left = self._left_bytes - sum(len(part) for _, part in made)
        if left >= 0 and len(made) <= room:
            self._left_bytes = left
            self._outcomes.update(made)
            return
        for text, part in made:
            self._remember(text, part)

    def _count_unremembered(self, count: int) -> None:
        """Counts outcomes that did not fit, and empties the cache after many of them.

        If paths are read from all over a large tree, filling the cache is half of the cost and of
        no use: so it pauses for a while, and longer each time.
        """
        kept = self.kept
        kept.unremembered += count
        if kept.unremembered >= kept.rest:
            kept.rest = min(2 * kept.rest, _LONGEST_REST) if kept.is_remembering_idle else _REST
            self._forget_outcomes()

    def _forget_outcomes(self) -> None:
        """Removes the stored outcomes and keeps the splicers, each of which would have to be made
        again. Other threads may add outcomes meanwhile, so the count of them is approximate.
        """
        self._outcomes.clear()
        self.kept.unremembered = self.kept.found = 0
        self._left_bytes = self._most_bytes - self.kept.splicer_bytes

    def _see_directory(self, text: str) -> Node | None:
        """Returns the directory at a path; an entry's path is this path, a slash and a name. So the
        path of the root is empty here.
        """
        if text == "/":
            return None  # "//name" is no canonical path; here the root directory is ""
        try:
            node = self.answers.directory(Path.parse(text or "/"))
        except InvalidPath:
            return None  # the error is that of the whole path
        if node is None:
            return None
        if len(self._directories) >= _MOST_DIRECTORIES:
            self._directories.clear()
        self._directories[text] = node
        return node
