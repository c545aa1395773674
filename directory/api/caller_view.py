"""Sight: what one caller may see and do in one cluster at one snapshot; refuses to find out who it
is.

What a caller may not describe is not there for it: left out of listings, and absent when asked for
by name, in the very words in which what does not exist is (A12). What it may describe
and not do is PERMISSION_DENIED. Longer than most files: seeing and doing of one caller.
What it is shown of changes is in ``change_view.py``.
"""

from __future__ import annotations

import logging
import sys
from typing import Final, NamedTuple

from kdir.v1 import entry_pb2, resolve_pb2

from directory.access.authorizer import MOUNT_ROOT, Authorizer, DirectoryAuthorization
from directory.access.compiled_grants import AccessQuestion
from directory.access.decision import Decision, DecisionReason
from directory.access.explain import AuditLevel, audit_line
from directory.access.grant import Operation, ResourceType
from directory.access.grant_tree import EntryPlace
from directory.access.principals import ANONYMOUS, Caller
from directory.api.response_cache import ResponseCache
from directory.api.rpc.call_context import CURRENT
from directory.namespace.entry import Kind
from directory.namespace.lookup import (
    DirectoryAt,
    Found,
    LinkAt,
    Missing,
    MountAt,
    TopicAt,
    Unreadable,
    lookup,
)
from directory.namespace.snapshot import Node, Snapshot
from directory.namespace.traversal import traverse
from directory.server.cluster import Cluster
from resolver.errors import Absent, NotReady, PermissionDenied
from resolver.path import Path

__all__ = ["CallerView", "Seen", "fill_visible_counts"]

_audit = logging.getLogger("kdir.audit")
_DESCRIBE: Final = AccessQuestion.for_operation(Operation.DESCRIBE)
_ALTER: Final = AccessQuestion.for_operation(Operation.ALTER)
_ANY_OPERATION: Final = tuple(
    AccessQuestion.for_operation(one) for one in Operation if one is not Operation.ALL
)
_MOST_DIRECTORIES: Final = 1 << 12
"""So many directories are remembered for each caller: 100 MB, should all ask everywhere."""
_MOST_PLAIN: Final = 1 << 14
"""Of those of which nothing but a yes is remembered: at 40 bytes, their names being shared."""

Segments = tuple[str, ...]


class Seen(NamedTuple):
    """How many entries the caller may describe."""

    topics: int = 0
    containers: int = 0
    """Of all that lies below: directories only."""
    partitions: int = 0
    """Of the topics, as quotas count them; only of all that lies below."""


class CallerView:
    """What one caller may see and do in one cluster at one snapshot. Without a caller: all."""

    __slots__ = (
        "_above",
        "_age_seconds",
        "_cluster",
        "_mount",
        "_plain",
        "_withins",
        "access",
        "caller",
        "is_unrestricted",
        "snapshot",
    )

    def __init__(
        self,
        cluster: Cluster,
        snapshot: Snapshot,
        access: Authorizer,
        caller: Caller | None,
        *,
        expired: bool = False,
    ) -> None:
        self._cluster: Final = cluster
        self._mount: Final = access.mount
        self.snapshot: Final = snapshot
        self.access: Final = access
        self.is_unrestricted: Final = caller is None
        """Nothing is hidden from the caller, and nothing refused."""
        self.caller: Final = caller or Caller(ANONYMOUS)
        self._age_seconds: Final = float("inf") if expired else 0.0
        self._withins: dict[Segments, DirectoryAuthorization] = {}
        self._above: dict[str, DirectoryAuthorization] = {}
        self._plain: set[str] = set()

    # -- seeing ----------------------------------------------------------------------------------

    def can_describe(self, relative: Segments, *, is_topic: bool) -> bool:
        """True if an entry at a path below the mount may be described."""
        if self.is_unrestricted:
            return True
        if not relative:
            return self.decide(_DESCRIBE, MOUNT_ROOT).allowed
        return (
            self.directory_view(relative[:-1])
            .entry_decision(relative[-1], is_topic=is_topic)
            .allowed
        )

    def shows(self, relative: Segments, kind: Kind) -> bool:
        """True if an entry may be shown to the caller: it may describe it, or ALTER it, and so
        remove what hides it.
        """
        is_topic = kind is Kind.TOPIC and bool(relative)
        return (
            self.can_describe(relative, is_topic=is_topic)
            or self.decide(_ALTER, EntryPlace(relative, is_topic)).allowed
        )

    def can_describe_all_below(self, relative: Segments) -> bool:
        """True if all at any depth in a directory may be described."""
        if self.is_unrestricted:
            return True
        within = self.directory_view(relative)
        return within.is_uniform and within.decision.allowed

    def can_describe_path(self, path: Path, kind: Kind | None) -> bool:
        """True if an entry of this kind, or of any, at an absolute path may be described."""
        if self.is_unrestricted:
            return True
        if not self._mount.is_prefix_of(path):
            return False
        relative = path.below(self._mount)
        kinds = (True, False) if kind is None else (kind is Kind.TOPIC,)
        return any(self.can_describe(relative, is_topic=is_topic) for is_topic in kinds)

    def has_describable_below(self, path: Path) -> bool:
        """True if there can be something at or below a path that may be described."""
        if self.is_unrestricted:
            return True
        place = EntryPlace(path.below(self._mount) if self._mount.is_prefix_of(path) else ())
        return self.access.authorize_any(
            self.caller, Operation.DESCRIBE, place=place, age_seconds=self._age_seconds
        )

    def directory_view(self, relative: Segments) -> DirectoryAuthorization:
        """Returns whether a directory may be described, and what stands in it; of who
        sees not all.
        """
        within = self._withins.get(relative)
        if within is None:
            if len(self._withins) >= _MOST_DIRECTORIES:
                self._withins.clear()
            within = self.access.for_directory(
                self.caller, _DESCRIBE, relative, age_seconds=self._age_seconds
            )
            self._withins[relative] = within
        return within

    def resolve_kind(
        self, path: Path, prefer: Kind | None = None, *, no_follow: bool = False
    ) -> Kind | None:
        """Returns which kind at a path is to be answered with: that preferred, or the container
        beside a topic that may not be seen.

        Raises:
            Absent: what is there may not be described; as where nothing is.
            NotReady: the mount moved between two looks at it.
        """
        if self.is_unrestricted:
            return prefer
        if not self._mount.is_prefix_of(path):
            raise self._moving()
        relative = path.segments[len(self._mount) :]
        found = lookup(self.snapshot, relative, prefer)
        if self._can_describe_found(found, relative, no_follow=no_follow):
            return prefer
        if isinstance(found, TopicAt) and found.has_container and prefer is None:
            beside = lookup(self.snapshot, relative, Kind.DIRECTORY)
            if self._can_describe_found(beside, relative, no_follow=no_follow):
                return Kind.DIRECTORY
        self._write_audit_line(
            _DESCRIBE, path, self.decide(_DESCRIBE, EntryPlace(relative)), explicit=False
        )
        raise self.absent_error(path)

    def can_refer_to(self, mount: Path) -> bool:
        """True if a mount may be spoken of: who may do what there is its own cluster's to say, but
        a deny above holds there, too.
        """
        if self.is_unrestricted or not self._mount.is_prefix_of(mount):
            return True
        decision = self.decide(_DESCRIBE, EntryPlace(mount.below(self._mount)))
        return decision.allowed or decision.grant is None

    def shows_all(self) -> bool:
        """True if numbers and names of all entries may be shown: to whom nothing is hidden from,
        and to whom may back up the cluster.
        """
        return self.can_describe_all_below(()) or self.can_do_on_cluster(
            Operation.ALTER, ResourceType.CLUSTER
        )

    def can_do_on_cluster(self, operation: Operation, resource: ResourceType) -> bool:
        """True if the caller may do something with the cluster's own root directory."""
        return (
            self.is_unrestricted
            or self.decide(AccessQuestion.for_operation(operation, resource), MOUNT_ROOT).allowed
        )

    def _can_describe_found(self, found: Found, relative: Segments, *, no_follow: bool) -> bool:
        match found:
            case TopicAt():
                return self.can_describe(relative, is_topic=True)
            case LinkAt(relative=at):
                return self.can_describe(at, is_topic=False)
            case MountAt(relative=at, rest=rest):
                # Who may do what below is the child's to say; but a deny holds there, too.
                if no_follow and not rest:
                    return self.can_describe(at, is_topic=False)
                return self.can_refer_to(self._mount.join(at))
            case DirectoryAt():
                return self.can_describe(relative, is_topic=False)
            case Unreadable(relative=at):
                return self.can_describe(at, is_topic=True) and self.can_describe(
                    at, is_topic=False
                )
            case Missing():
                return False  # said by ``absent_error``, so that its words are the same

    def _moving(self) -> NotReady:
        return NotReady(f"the mount of {self._mount} is being moved; ask again")

    def absent_error(self, path: Path) -> Absent:
        """Returns what is said of what is not there, and of what may not be seen."""
        nearest = self._nearest_describable(path)
        return Absent(f"{path} does not exist", path=path, nearest=nearest)

    def _nearest_describable(self, path: Path) -> Path:
        """Returns the deepest directory above a path that exists and may be described."""
        relative = path.below(self._mount)
        way = traverse(self.snapshot, relative[:-1])
        for length in range(way.depth, 0, -1):
            if self.can_describe(relative[:length], is_topic=False):
                return self._mount.join(relative[:length])
        return self._mount

    # -- remembered answers ----------------------------------------------------------------------

    def encode_outcome(
        self,
        ready: ResponseCache,
        text: str,
        prefer: Kind | None = None,
        *,
        no_follow: bool = False,
    ) -> bytes:
        """Returns the part of an answer for a path, as ``ResponseCache.outcome_bytes`` has it for
        everybody.

        Raises:
            InvalidPath, KdirError: as there.
        """
        if self.is_unrestricted or self._is_plain(text):
            return ready.outcome_bytes(text, prefer, no_follow=no_follow)
        path = Path.parse(text)
        if not self._mount.is_prefix_of(path):
            # Where to ask for it, which everybody may know.
            part = ready.outcome_bytes(text, prefer, no_follow=no_follow)
            if resolve_pb2.ResolveResponse.FromString(part).outcome.HasField("resolution"):
                raise self._moving()
            return part
        try:
            shown = self.resolve_kind(path, prefer, no_follow=no_follow)
        except Absent as absent:
            seconds = self._cluster.config.limits.negative_ttl_seconds
            outcome = resolve_pb2.Outcome(
                absent=resolve_pb2.Absent(
                    nearest_directory=absent.metadata["nearest"], lifetime_seconds=seconds
                )
            )
            return resolve_pb2.ResolveResponse(outcome=outcome).SerializeToString()
        part = ready.outcome_bytes(text, shown, no_follow=no_follow)
        relative = path.segments[len(self._mount) :]
        if self.can_describe_all_below(relative):
            return part
        response = resolve_pb2.ResolveResponse.FromString(part)
        found = response.outcome.resolution
        if found.has_container and not self.can_describe(relative, is_topic=False):
            found.has_container = False
        elif found.entry.HasField("directory"):
            fill_visible_counts(self, relative, found.entry)
        else:
            return part
        return response.SerializeToString()

    def _is_plain(self, text: str) -> bool:
        """True if whatever stands at the path may be seen: no grants of its own say otherwise."""
        above, slash, name = text.rpartition("/")
        if above in self._plain:
            return bool(name)
        within = self._above.get(above)
        if within is None:
            segments = tuple(above.split("/")[1:])
            depth = len(self._mount)
            if not slash or segments[:depth] != self._mount.segments:
                return False
            within = self.access.for_directory(
                self.caller, _DESCRIBE, segments[depth:], age_seconds=self._age_seconds
            )
            if within.decision.allowed and within.has_no_grants_below:
                if len(self._plain) >= _MOST_PLAIN:
                    self._plain.clear()
                self._plain.add(sys.intern(above))
                return bool(name)
            if len(self._above) >= _MOST_DIRECTORIES:
                self._above.clear()
            self._above[above] = within
        if not within.decision.allowed or not name:
            return False
        return not within.has_own_answer(name) or (
            within.entry_decision(name, is_topic=True).allowed
            and within.entry_decision(name, is_topic=False).allowed
            and within.is_uniform_in(name)
        )

    # -- doing -----------------------------------------------------------------------------------

    def decide(self, question: AccessQuestion, place: EntryPlace) -> Decision:
        """Returns whether the caller may do something on the entry at a place."""
        return self.access.authorize(self.caller, question, place, age_seconds=self._age_seconds)

    def require_operation(
        self,
        operation: Operation,
        path: Path,
        *,
        kind: Kind | None = None,
        resource: ResourceType = ResourceType.TOPIC,
    ) -> None:
        """That the caller may do something on an entry, which is there. What it may not describe is
        not there for it, whatever else it may do there; but whom an entry's own grant allows it
        knows of the entry, and who may ALTER it could remove what hides it.

        Raises:
            PermissionDenied: it may not, though it knows of the entry; or it may by a grant further
                up only, and lacks DESCRIBE.
            Absent: it does not even know of the entry.
        """
        relative = path.below(self._mount)
        place = EntryPlace(relative, kind is Kind.TOPIC and bool(relative))
        question = AccessQuestion.for_operation(operation, resource)
        decision = self.decide(question, place)
        self._write_audit_line(question, path, decision)
        if decision.allowed and (
            operation is Operation.ALTER or self._is_granted_at(question, place)
        ):
            return
        if resource is ResourceType.TOPIC and not self.can_describe(
            relative, is_topic=place.is_topic
        ):
            if not any(self._is_granted_at(one, place) for one in _ANY_OPERATION):
                raise self.absent_error(path)
            if decision.allowed:
                raise self.permission_denied_error(
                    Operation.DESCRIBE, path, self.decide(_DESCRIBE, place)
                )
        if not decision.allowed:
            raise self.permission_denied_error(operation, path, decision, resource)

    def _is_granted_at(self, question: AccessQuestion, place: EntryPlace) -> bool:
        return self.access.is_granted_at(
            self.caller, question, place, age_seconds=self._age_seconds
        )

    def require_cluster(self, operation: Operation, purpose: str = "") -> None:
        """That the caller may do something with the cluster as such; ``purpose`` is what for, as
        the subject of a sentence, where the request itself is about an entry.

        Raises:
            PermissionDenied
        """
        if self.is_unrestricted:
            return
        try:
            self.require_operation(operation, self._mount, resource=ResourceType.CLUSTER)
        except PermissionDenied as refused:
            if not purpose:
                raise
            raise PermissionDenied(
                f"{purpose} needs {operation.name} on cluster {self._cluster.config.cluster}: "
                f"{refused.message}",
                metadata=refused.metadata,
            ) from None

    def permission_denied_error(
        self,
        operation: Operation,
        path: Path,
        decision: Decision,
        resource: ResourceType = ResourceType.TOPIC,
    ) -> PermissionDenied:
        """That it may not, and why as far as it may know."""
        why = (
            decision.reason.value
            if decision.reason is not DecisionReason.GRANT
            else "a grant denies it"
        )
        kind = " --cluster" if resource is ResourceType.CLUSTER else ""
        return PermissionDenied(
            f"{self.caller.principal} may not {operation.name} {path}: {why}; "
            f"kdir check {self.caller.principal} {operation.name.lower()} {path}{kind} --explain",
            path=path,
            operation=operation.name,
            principal=self.caller.principal,
        )

    def require_view(self, path: Path, kind: Kind | None) -> None:
        """That the caller may describe an entry that it knows of, and all that a directory holds.

        Raises:
            PermissionDenied
        """
        relative = path.below(self._mount)
        place = EntryPlace(relative, kind is Kind.TOPIC and bool(relative))
        decision = self.decide(_DESCRIBE, place)
        if not decision.allowed:
            raise self.permission_denied_error(Operation.DESCRIBE, path, decision)
        if kind is Kind.DIRECTORY:
            self.require_on_descendants(Operation.DESCRIBE, path)

    def require_on_descendants(self, operation: Operation, path: Path) -> None:
        """That the caller may do something on all that a directory holds.

        Raises:
            PermissionDenied: names what stands in the way, as far as it may be seen.
        """
        question = AccessQuestion.for_operation(operation)
        refusals = self.access.denied_below(
            self.caller,
            question,
            EntryPlace(path.below(self._mount)),
            age_seconds=self._age_seconds,
        )
        for place, decision in refusals:
            at = self._mount.join(place.relative)
            self._write_audit_line(question, at, decision)
            if self.can_describe(place.relative, is_topic=place.is_topic):
                raise self.permission_denied_error(operation, at, decision)
            raise PermissionDenied(
                f"{self.caller.principal} may not {operation.name} all that lies below {path}",
                path=path,
                operation=operation.name,
                principal=self.caller.principal,
            )

    def _write_audit_line(
        self, question: AccessQuestion, path: Path, decision: Decision, *, explicit: bool = True
    ) -> None:
        """Writes the audit line, if anybody reads such (A11)."""
        reported = AuditLevel.DEBUG if decision.allowed else AuditLevel.INFO
        if not _audit.isEnabledFor(reported if explicit else AuditLevel.TRACE):
            return
        call = CURRENT.call
        line = audit_line(
            self.caller,
            question,
            path,
            decision,
            request=call.request_id if call is not None else "",
            explicit=explicit,
        )
        _audit.log(line.level, "%s", line)

    # -- other rights ----------------------------------------------------------------------------

    @property
    def is_expired(self) -> bool:
        """True if what is inherited was confirmed too long ago to allow anything."""
        return self._age_seconds > 0.0

    def aged(self, *, expired: bool) -> CallerView:
        """Returns the same caller's view, had what is inherited expired, or not."""
        return CallerView(self._cluster, self.snapshot, self.access, self.caller, expired=expired)

    def by_rights(self, access: Authorizer) -> CallerView:
        """Returns the same caller's view by the rights of another revision."""
        mine = self.access
        if (access.tree, access.mount) == (mine.tree, mine.mount) and (
            access.inherited == mine.inherited
        ):
            return self
        return CallerView(
            self._cluster, self.snapshot, access, self.caller, expired=self.is_expired
        )

    def sees_same_below(self, path: Path, other: CallerView, other_path: Path) -> bool:
        """True if the caller sees a directory, and all in it, just as another one by other rights:
        of the same names the same ones.
        """
        return self.directory_view(path.below(self._mount)).is_same_as(
            other.directory_view(other_path.below(other.access.mount))
        )


def _seen_in(view: CallerView, relative: tuple[str, ...], node: Node) -> Seen:
    """Of what stands right in a directory."""
    topics, containers = len(node.topics), len(node.containers)
    if view.can_describe_all_below(relative):
        return Seen(topics, containers)
    within = view.directory_view(relative)
    usual = within.decision.allowed
    if not usual:
        topics = containers = 0
    for name, is_topic, allowed in within.entries_with_grants():
        if allowed != usual and is_topic:
            topics += (name in node.topics) * (1 if allowed else -1)
        elif allowed != usual:
            containers += (name in node.containers) * (1 if allowed else -1)
    return Seen(topics, containers)


def fill_visible_counts(view: CallerView, relative: tuple[str, ...], out: entry_pb2.Entry) -> None:
    """Puts the counts of a directory's message right."""
    if not out.HasField("directory") or view.can_describe_all_below(relative):
        return
    directory_id = view.snapshot.find_directory(relative)
    node = None if directory_id is None else view.snapshot.node(directory_id)
    seen = Seen() if node is None else _seen_in(view, relative, node)
    out.directory.topic_count, out.directory.container_count = seen.topics, seen.containers
