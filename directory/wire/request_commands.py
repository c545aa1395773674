"""Converts create and update requests to commands of the tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, TypeVar

from kdir.v1 import directory_pb2, entry_pb2, policies_pb2

from directory.namespace.bounds import DEFAULT_BOUNDS, Bounds, check_count, check_mask
from directory.namespace.command import (
    CLEARED,
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    Creation,
    UpdateEntry,
)
from directory.namespace.entry import Directory, Link, LinkMode, LinkWrites, Mount, Policies, Topic
from directory.namespace.updatable_fields import ASPECTS, no_policies_error
from directory.wire.entry_codec import entry_from_proto, policies_from_proto
from resolver.errors import InvalidArgument, InvalidPhysicalName
from resolver.path import Path
from resolver.printable import cut_shown
from resolver.topic_names import why_invalid

__all__ = ["create_command", "policy_changes", "update_command"]

E = TypeVar("E", bound=IntEnum)
_CHECKED_EVERY: Final = 256
_MAPS: Final = ("topic_config", "producer_defaults", "consumer_defaults", "tags", "manage")


def create_command(
    request: directory_pb2.CreateEntryRequest, path: Path, bounds: Bounds = DEFAULT_BOUNDS
) -> Creation:
    """Returns the command of a create request.

    Raises:
        InvalidArgument: no kind, or a wrong field; names it.
        LimitExceeded: over a bound.
    """
    if request.entry.WhichOneof("kind") is None:
        raise InvalidArgument(
            "entry: has no kind; expected one of directory, topic, link, mount",
            field="entry",
        )
    if request.make_parents and not request.entry.HasField("directory"):
        raise InvalidArgument(
            "make_parents: expected only with a directory; create the parent directory first",
            field="make_parents",
        )
    if request.adopt_existing and not request.entry.HasField("topic"):
        raise InvalidArgument(
            f"adopt_existing: found {request.entry.WhichOneof('kind')}; only topics of Kafka are "
            "adopted, expected entry.topic",
            field="adopt_existing",
        )
    _check_sent(request.entry, bounds)
    entry = entry_from_proto(request.entry)
    if isinstance(entry, Directory | Topic):
        _refuse_arming(entry.policies.manage, path)
    elif request.entry.policies.ListFields():
        raise no_policies_error("policies", entry.kind)
    match entry:
        case Directory(policies=policies, closed=closed):
            return CreateDirectory(
                path=path, make_parents=request.make_parents, policies=policies, closed=closed
            )
        case Topic(policies=policies, physical_name=name):
            if request.adopt_existing and name and (rule := why_invalid(name)):
                raise InvalidPhysicalName(
                    f"topic.physical_name: found {cut_shown(name)}: {rule}; expected the name "
                    f"of a topic in Kafka",
                    physical_name=cut_shown(name),
                    rule=rule,
                )
            return CreateTopic(
                path=path,
                physical_name=entry.physical_name,
                partitions=entry.partitions,
                replication_factor=entry.replication_factor,
                policies=policies,
            )
        case Link():
            return CreateLink(
                path=path,
                targets=entry.targets,
                mode=entry.mode,
                writes=entry.writes,
                fall_back_on_absent=entry.fall_back_on_absent,
            )
        case Mount():
            return CreateMount(
                path=path,
                cluster_id=entry.cluster_id,
                cluster=entry.cluster,
                endpoints=entry.endpoints,
            )


def update_command(
    request: directory_pb2.UpdateEntryRequest,
    path: Path,
    bounds: Bounds = DEFAULT_BOUNDS,
    check: Callable[[], None] = lambda: None,
    **common: Any,
) -> UpdateEntry:
    """Returns the command of an update request: the value of each field that the mask names.
    ``check`` is called periodically, and raises when the caller has gone.

    Raises:
        LimitExceeded: over a bound.
        InvalidArgument: an empty mask, or a wrong value; planning refuses unknown fields, with the
            nearest known one.
    """
    if not request.update_mask.paths:
        raise InvalidArgument(
            "update_mask: empty; expected the fields to change, such as policies.owner",
            field="update_mask",
        )
    check_mask("update_mask", request.update_mask.paths, bounds)
    _check_sent(request.entry, bounds)
    policies = policies_from_proto(request.entry.policies)
    changes: dict[str, object] = {}
    for number, field in enumerate(dict.fromkeys(request.update_mask.paths)):
        if number % _CHECKED_EVERY == 0:
            check()
        changes[field] = _value(field, request.entry, policies)
    for field in changes:
        name = field.removeprefix("policies.manage").removeprefix(".")
        if field == "policies" or field.startswith("policies.manage"):
            named = (
                policies.manage if name in {"", "policies"} else {name: policies.manage.get(name)}
            )
            _refuse_arming(named, path)
    return UpdateEntry(path=path, changes=changes, etag=request.etag, **common)


def _refuse_arming(manage: Mapping[str, Any], path: Path) -> None:
    """Checks that a request sets no ``manage`` to true: only arming by a plan that an operator has
    read does so. Planning refuses unknown aspects.
    """
    for aspect, allowed in sorted(manage.items()):
        if allowed and aspect in ASPECTS:
            raise InvalidArgument(
                f"policies.manage.{aspect}: cannot be set to true directly; read the plan, then "
                f"arm: kdir arm {path} --aspect {aspect}",
                field=f"policies.manage.{aspect}",
            )


def policy_changes(
    fields: Sequence[str],
    message: policies_pb2.Policies,
    bounds: Bounds = DEFAULT_BOUNDS,
    check: Callable[[], None] = lambda: None,
) -> Mapping[str, object]:
    """Returns the changes of policies that a mask names, as in ``UpdateEntry``.

    The mask's paths are those of an update, such as ``policies.owner``; ``check`` as in
    ``update_command``.

    Raises:
        InvalidArgument: a path that is no policy's, or a wrong value.
        LimitExceeded: over a bound.
    """
    check_mask("what_if_mask", fields, bounds)
    _check_sent_policies(message, bounds)
    policies = policies_from_proto(message)
    changes: dict[str, object] = {}
    for number, field in enumerate(dict.fromkeys(fields)):
        if number % _CHECKED_EVERY == 0:
            check()
        group, _, rest = field.partition(".")
        if group != "policies":
            raise InvalidArgument(
                f"what_if_mask: found {cut_shown(field)}; expected policies, such as "
                f"policies.owner",
                field="what_if_mask",
            )
        changes[field] = _policy(rest, policies) if rest else policies
    return changes


def _check_sent(entry: entry_pb2.Entry, bounds: Bounds) -> None:
    """Checks the number of elements before the contents: a message of some megabytes may have a
    million targets.

    Raises:
        LimitExceeded: over a bound.
    """
    for field, count, most in (
        ("link.targets", len(entry.link.targets), bounds.link_targets),
        ("mount.endpoints", len(entry.mount.endpoints), bounds.mount_endpoints),
        ("topic.observed_config", len(entry.topic.observed_config), bounds.policy_keys),
    ):
        what, setting = field.rpartition(".")[2], _SETTINGS[field]
        check_count(field, count, most, what, setting)
    if entry.HasField("policies"):
        _check_sent_policies(entry.policies, bounds)


def _check_sent_policies(policies: policies_pb2.Policies, bounds: Bounds) -> None:
    for name in (*_MAPS, "stamps"):
        field, count = f"policies.{name}", len(getattr(policies, name))
        check_count(field, count, bounds.policy_keys, "keys", "policy_keys")


_SETTINGS: Final = {
    "link.targets": "link_targets",
    "mount.endpoints": "mount_endpoints",
    "topic.observed_config": "policy_keys",
}


def _value(field: str, entry: entry_pb2.Entry, policies: Policies) -> object:
    if field == "policies":
        return policies
    group, _, rest = field.partition(".")
    if group == "policies":
        return _policy(rest, policies)
    read = _FIELDS.get(field)
    # A field that is not known here is not known to planning either, which names the nearest.
    return read(entry) if read is not None else None


def _policy(field: str, policies: Policies) -> object:
    name, dot, key = field.partition(".")
    value = getattr(policies, name, None)
    if name in _MAPS and isinstance(value, Mapping):
        if not dot:
            return value
        if key not in value:
            return None
        return CLEARED if value[key] is None else value[key]
    return value


def _mode(entry: entry_pb2.Entry) -> LinkMode:
    return _parse_enum("link.mode", LinkMode, entry.link.mode or LinkMode.FIRST)


def _writes(entry: entry_pb2.Entry) -> LinkWrites:
    return _parse_enum("link.writes", LinkWrites, entry.link.writes or LinkWrites.STAY)


def _parse_enum(field: str, kind: type[E], number: int) -> E:
    try:
        return kind(number)
    except ValueError:
        known = ", ".join(f"{one.name} = {one.value}" for one in kind)
        message = f"{field}: found {number}; known are {known}"
        raise InvalidArgument(message, field=field) from None


_FIELDS: Final[Mapping[str, Callable[[entry_pb2.Entry], object]]] = {
    "directory.closed": lambda entry: entry.directory.closed,
    "link.targets": lambda entry: tuple(Path.parse(text) for text in entry.link.targets),
    "link.mode": _mode,
    "link.writes": _writes,
    "link.fall_back_on_absent": lambda entry: entry.link.fall_back_on_absent,
    "topic.partitions": lambda entry: entry.topic.partitions,
    "mount.endpoints": lambda entry: tuple(entry.mount.endpoints),
    "mount.cluster": lambda entry: entry.mount.cluster,
}
