"""Where Kafka's ACLs differ from what is granted below armed entries, as rows for people; pure.

From records, so that any server can tell; and what others have put there, as the elected server saw
it last. Refuses to mend it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from directory.access.grant import ResourceKind
from directory.kafka.acl_values import Acl, Resource
from directory.kafka.applying.last_applied_acls import (
    AppliedResource,
    kept_rows,
    load_applied_resource,
)
from directory.kafka.drift import Drift
from directory.namespace.entry import Kind, Provision, Topic
from directory.namespace.snapshot import Snapshot
from resolver.errors import InvalidPath
from resolver.path import Path

__all__ = ["acl_drift", "acl_state", "acl_states_below"]

_NONE: Final = "(none)"
_MISSING: Final = "(missing)"
_FOREIGN: Final = "not kdir's"


def acl_state(snapshot: Snapshot, topic: Topic) -> str:
    """Returns what people should know of a topic's ACLs, in a word: ``refused``, ``waiting``,
    ``contested`` or ``drift``; empty = nothing.
    """
    try:
        return _state(
            load_applied_resource(snapshot, Resource(ResourceKind.TOPIC, topic.physical_name))
        )
    except ValueError:
        return ""


def acl_states_below(snapshot: Snapshot, way: tuple[str, ...]) -> Iterator[str]:
    """Yields the same of each topic at or below a directory of the cluster that there is something
    to know of.
    """
    for resource, kept in kept_rows(snapshot):
        state = "" if kept is None else _state(kept)
        if not state or resource.kind is not ResourceKind.TOPIC:
            continue
        located = snapshot.locate(resource.name)
        relative = None if located is None else located.relative
        if relative is not None and relative[: len(way)] == way:
            yield state


def _state(kept: AppliedResource) -> str:
    if kept.refused:
        return "rejected"
    if kept.waits:
        return "needs-approval"
    if kept.contested:
        return "contested"
    return "drift" if kept.lost else ""


def acl_drift(
    snapshot: Snapshot,
    mount: Path,
    path: Path,
    foreign: Mapping[Resource, frozenset[Acl]],
) -> list[Drift]:
    """Returns the differences at and below a path. Of groups and transactional ids the path is that
    of an armed directory that wishes them.
    """
    rows: list[Drift] = []
    kept_by_resource = dict(kept_rows(snapshot))
    for resource in kept_by_resource.keys() | foreign.keys():
        kept = kept_by_resource.get(resource) or AppliedResource()
        at = _path_of(snapshot, mount, resource, kept)
        if at is None or not path.is_prefix_of(at):
            continue
        rows += _differences(at, resource, kept, foreign.get(resource, ()))
    return rows


def _path_of(
    snapshot: Snapshot, mount: Path, resource: Resource, kept: AppliedResource
) -> Path | None:
    if resource.kind is ResourceKind.TOPIC:
        located = snapshot.locate(resource.name)
        if located is None or located.relative is None:
            return None
        return mount.join(located.relative)
    try:
        return Path.parse(kept.path)
    except InvalidPath:
        return mount


def _differences(
    path: Path, resource: Resource, kept: AppliedResource, foreign: Iterable[Acl]
) -> Iterator[Drift]:
    is_topic = resource.kind is ResourceKind.TOPIC
    field = "acl" if is_topic else f"acl of {resource}"
    kind = Kind.TOPIC if is_topic else Kind.DIRECTORY

    def row(wanted: str, found: str, state: str) -> Drift:
        return Drift(path, resource.name, field, wanted, found, Provision.ACTIVE, state, kind)

    for acl in sorted(kept.lost):
        yield row(str(acl), _MISSING, "contested" if acl in kept.contested else "")
    for acl in sorted(kept.held):
        ours = acl in kept.ours
        yield row(*((_NONE, str(acl)) if ours else (str(acl), _MISSING)), "needs-approval")
    if kept.waits and not kept.held:
        yield row("what is granted", f"({kept.waits})", "needs-approval")
    if kept.refused:
        yield row("what is granted", f"({kept.refused})", "rejected")
    for acl in sorted(foreign):
        yield row(_NONE, str(acl), _FOREIGN)
