"""What is wished, on record and in Kafka, by resource, and what follows for each; pure.

For pushing and for plans alike. Refuses to ask Kafka anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from itertools import accumulate

from directory.access.grant import ResourceKind
from directory.kafka.acl_values import Acl, AclBinding, PatternType, Resource
from directory.kafka.applying.acl_diff import AclDiff, AclDiffOptions, ObservedResource, diff_acls
from directory.kafka.applying.desired_acls import (
    ArmedEntry,
    DesiredAclSet,
    armed_starts,
    desired_acls,
)
from directory.kafka.applying.last_applied_acls import AppliedResource, kept_rows
from directory.namespace.snapshot import Snapshot
from resolver.errors import InvalidPath
from resolver.path import Path

__all__ = ["AclDiffs", "FoundAcls", "arming_scope"]


class FoundAcls:
    """The ACLs that Kafka has, by resource."""

    def __init__(self, bindings: Iterable[AclBinding]) -> None:
        self._by_resource: dict[Resource, set[Acl]] = {}
        for resource, acl in bindings:
            self._by_resource.setdefault(resource, set()).add(acl)

    def for_resource(self, resource: Resource, *, looks_wider: bool) -> ObservedResource:
        """Returns those of one resource; whether others cover it only where that is asked."""
        own = frozenset(self._by_resource.get(resource, ()))
        if not looks_wider:
            return ObservedResource(own)
        wider = (one for one in _wider(resource) if one != resource)
        return ObservedResource(own, any(one in self._by_resource for one in wider))


def _wider(resource: Resource) -> Iterable[Resource]:
    """Yields all resources that could cover one."""
    yield Resource(resource.kind, "*")
    if resource.name != "*" or resource.pattern is PatternType.PREFIXED:
        for beginning in accumulate(resource.name):
            yield Resource(resource.kind, beginning, PatternType.PREFIXED)


def arming_scope(
    snapshot: Snapshot, mount: Path, start: ArmedEntry, *, expired: bool, assume: int = 0
) -> frozenset[Resource]:
    """Returns what arming at an entry is about: all that is wished at and below it, and all that
    was.
    """
    now = desired_acls(snapshot, mount, [start], expired=expired, assume=assume).by_resource
    way = (*mount.segments, *(snapshot.path_of(start.directory_id) or ()))
    path = Path((*way, start.topic) if start.topic else way)
    before = (one for one, kept in kept_rows(snapshot) if _is_below(kept, path))
    return frozenset({*now, *before})


def _is_below(kept: AppliedResource | None, path: Path) -> bool:
    try:
        return kept is not None and path.is_prefix_of(Path.parse(kept.path))
    except InvalidPath:
        return False


class AclDiffs:
    """Of one snapshot and one look at Kafka.

    Args:
        start: an entry that counts as armed, with its id, whatever it says.
        expired, making: as of ``desired_set``.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        mount: Path,
        *,
        expired: bool = False,
        start: ArmedEntry | None = None,
        assume: int = 0,
        making: frozenset[int] = frozenset(),
    ) -> None:
        self._snapshot = snapshot
        starts = [*armed_starts(snapshot), *([start] if start is not None else ())]
        self.desired_set: DesiredAclSet = desired_acls(
            snapshot, mount, starts, expired=expired, assume=assume, making=making
        )
        self._kept = dict(kept_rows(snapshot))

    @property
    def unreadable(self) -> list[Resource]:
        """Those whose records cannot be read: what is ours there is not known."""
        return [resource for resource, kept in self._kept.items() if kept is None]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do, whatever Kafka has."""
        return not self._kept and not self.desired_set.by_resource

    def verdicts(
        self,
        found: FoundAcls,
        rules_of: Callable[[Resource], AclDiffOptions],
        only: Collection[Resource] | None = None,
    ) -> list[AclDiff]:
        """Returns what follows for each resource, in order."""
        every = self.desired_set.by_resource.keys() | self._kept.keys()
        chosen = sorted(every if only is None else every & set(only))
        judged = (self._judged(one, found, rules_of(one)) for one in chosen)
        return [one for one in judged if one is not None]

    def _judged(
        self, resource: Resource, found: FoundAcls, rules: AclDiffOptions
    ) -> AclDiff | None:
        desired = self.desired_set.by_resource.get(resource)
        kept = self._kept.get(resource, AppliedResource())
        if kept is None:
            return None
        keeps_closed = desired is not None
        if resource.kind is ResourceKind.TOPIC:
            if desired is None and (not self.desired_set.topics_known or self._goes_on(resource)):
                return None
        else:
            if desired is None and not self.desired_set.patterns_known:
                return None
            keeps_closed = self.desired_set.anything_armed
        has = found.for_resource(resource, looks_wider=rules.open_to_all)
        return diff_acls(resource, desired, has, kept, replace(rules, keeps_closed=keeps_closed))

    def _goes_on(self, resource: Resource) -> bool:
        """True if a topic was removed from the tree, and not from Kafka yet."""
        located = self._snapshot.locate(resource.name)
        return located is not None and located.relative is None
