"""Converts entries and policies to messages of the contract and back, field by field, for
``entry_codec.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, TypeVar, assert_never, cast

from kdir.v1 import entry_pb2, policies_pb2

from directory.namespace.entry import (
    NO_POLICIES,
    Directory,
    Entry,
    Link,
    LinkMode,
    LinkWrites,
    Mount,
    Policies,
    Provision,
    Stamp,
    Topic,
)
from resolver.errors import InvalidPath
from resolver.path import Path

__all__ = ["entry_of", "fill_policies", "message_of", "policies_of"]

_E = TypeVar("_E", bound=IntEnum)

_CONFIG_MAPS: Final = ("topic_config", "producer_defaults", "consumer_defaults", "tags")
_SCALARS: Final = (
    "partitions",
    "replication_factor",
    "max_topics",
    "max_partitions",
    "owner",
    "contact",
    "description",
    "read_only",
    "encryption_key_id",
)
_PROVISIONS: Final[frozenset[int]] = frozenset(Provision)
_NEWER_STATE: Final = "this state is of a newer version of kdir:"


def entry_of(message: entry_pb2.Entry, *, stored: bool) -> Entry:
    """Returns the entry of a message. One from a request (not ``stored``) must make sense to this
    version in every field.

    Raises:
        ValueError: names the field, the value found and the value expected.
    """
    common: dict[str, Any] = {
        "entry_id": message.entry_id,
        "change_count": message.change_count,
        "changed_by": message.changed_by,
        "changed_at_ms": _millis(message),
    }
    if message.HasField("policies"):
        common["policies"] = policies_of(message.policies, stored=stored)
    match message.WhichOneof("kind"):
        case "topic":
            return _topic(message.topic, common, stored=stored)
        case "directory":
            return Directory(**common, closed=message.directory.closed)
        case "link":
            return _link(message.link, common)
        case "mount":
            return _mount(message.mount, common)
        case _:
            raise ValueError("kind: one of directory, topic, link and mount must be set")


def _millis(message: entry_pb2.Entry) -> int:
    # By hand: the well-known type's own conversion is Python too, and thrice as slow.
    changed_at = message.changed_at
    return changed_at.seconds * 1000 + changed_at.nanos // 1_000_000


def _topic(message: entry_pb2.Topic, common: dict[str, Any], *, stored: bool) -> Topic:
    if stored and not message.physical_name:
        raise ValueError("topic.physical_name: missing")
    provision, provision_message = Provision.PENDING, message.provision_message
    if int(message.provision) in _PROVISIONS:
        provision = Provision(message.provision)
    elif message.provision:
        # Nothing is done to a failed topic, which is all that is safe with a state unheard of.
        provision, provision_message = Provision.FAILED, f"{_NEWER_STATE} {message.provision}"
    return Topic(
        **common,
        physical_name=message.physical_name,
        topic_id=message.topic_id,
        partitions=message.partitions,
        replication_factor=message.replication_factor,
        provision=provision,
        provision_message=provision_message,
        drift_count=message.drift_count,
        adopted=message.adopted,
        provision_attempt=message.provision_attempt,
        observed_config=MappingProxyType(dict(message.observed_config)),
    )


def _link(message: entry_pb2.Link, common: dict[str, Any]) -> Link:
    if not message.targets:
        raise ValueError("link.targets: empty; a link needs at least one target path")
    targets = []
    for position, target in enumerate(message.targets):
        try:
            targets.append(Path.parse(target))
        except InvalidPath as error:
            raise ValueError(f"link.targets[{position}]: {error.message}") from None
    return Link(
        **common,
        targets=tuple(targets),
        mode=_enum(LinkMode, message.mode, LinkMode.FIRST, "link.mode"),
        writes=_enum(LinkWrites, message.writes, LinkWrites.STAY, "link.writes"),
        fall_back_on_absent=message.fall_back_on_absent,
    )


def _mount(message: entry_pb2.Mount, common: dict[str, Any]) -> Mount:
    if not message.cluster_id:
        raise ValueError("mount.cluster_id: empty; a mount names the child's cluster id")
    return Mount(
        **common,
        cluster_id=message.cluster_id,
        cluster=message.cluster,
        epoch=message.epoch,
        endpoints=tuple(message.endpoints),
    )


def _enum(kind: type[_E], number: int, unspecified: _E, field: str) -> _E:
    if not number:
        return unspecified
    try:
        return kind(number)
    except ValueError:
        known = ", ".join(f"{one.name} = {one.value}" for one in kind)
        raise ValueError(f"{field}: {number}; known are {known}") from None


def policies_of(message: policies_pb2.Policies, *, stored: bool) -> Policies:
    """Returns the policies of a message; as ``entry_of``.

    Raises:
        ValueError: as ``entry_of``.
    """
    values: dict[str, Any] = {
        name: getattr(message, name) for name in _SCALARS if message.HasField(name)
    }
    for name in _CONFIG_MAPS:
        if entries := getattr(message, name):
            values[name] = MappingProxyType(dict(_settings(name, entries, stored=stored)))
    if message.manage:
        values["manage"] = MappingProxyType(dict(message.manage))
    if stored and message.stamps:
        values["stamps"] = MappingProxyType(
            {name: Stamp(one.by, one.at_ms) for name, one in sorted(message.stamps.items())}
        )
    return Policies(**values) if values else NO_POLICIES


def _settings(
    name: str, entries: Mapping[str, policies_pb2.ConfigValue], *, stored: bool
) -> Iterator[tuple[str, str | None]]:
    for key, value in sorted(entries.items()):
        kind = value.WhichOneof("kind")
        if kind == "value":
            yield key, value.value
        elif kind == "cleared" and value.cleared:
            yield key, None
        elif not stored:
            # In a stored record it is of a newer version: it has no effect here, and is kept.
            raise ValueError(f"policies.{name}[{key}]: neither a value nor cleared")


def message_of(entry: Entry) -> entry_pb2.Entry:
    """Returns the message of the stored form, on top of the record of a newer version, if there is
    one.
    """
    message = entry_pb2.Entry()
    if entry.unknown:
        message.MergeFromString(entry.unknown)
        _clear_outputs(message)
    message.entry_id = entry.entry_id
    message.change_count = entry.change_count
    message.changed_by = entry.changed_by
    if entry.changed_at_ms != _millis(message):
        seconds, millis = divmod(entry.changed_at_ms, 1000)
        message.changed_at.seconds = seconds
        message.changed_at.nanos = millis * 1_000_000
    if entry.policies is not NO_POLICIES or message.HasField("policies"):
        fill_policies(message.policies, entry.policies)
        if not message.policies.ByteSize():
            message.ClearField("policies")
    match entry:
        case Directory():
            message.directory.SetInParent()
            message.directory.closed = entry.closed
        case Topic():
            _fill_topic(message.topic, entry)
        case Link():
            message.link.targets[:] = [str(target) for target in entry.targets]
            message.link.mode = cast("entry_pb2.LinkMode", entry.mode.value)
            message.link.writes = cast("entry_pb2.LinkWrites", entry.writes.value)
            message.link.fall_back_on_absent = entry.fall_back_on_absent
        case Mount():
            message.mount.cluster_id = entry.cluster_id
            message.mount.cluster = entry.cluster
            message.mount.epoch = entry.epoch
            message.mount.endpoints[:] = entry.endpoints
        case _:
            assert_never(entry)
    return message


def _clear_outputs(message: entry_pb2.Entry) -> None:
    message.ClearField("path")
    message.ClearField("etag")
    match message.WhichOneof("kind"):
        case "directory":
            message.directory.ClearField("topic_count")
            message.directory.ClearField("container_count")
            message.directory.ClearField("total_topic_count")
        case "mount":
            message.mount.ClearField("state")
            message.mount.ClearField("last_contact_age_seconds")
            message.mount.ClearField("topic_count")
            message.mount.ClearField("message")
        case _:
            pass


def _fill_topic(message: entry_pb2.Topic, topic: Topic) -> None:
    message.physical_name = topic.physical_name
    message.topic_id = topic.topic_id
    message.partitions = topic.partitions
    message.replication_factor = topic.replication_factor
    if topic.provision_message != f"{_NEWER_STATE} {message.provision}":
        message.provision = cast("entry_pb2.Provision", topic.provision.value)
        message.provision_message = topic.provision_message
    message.drift_count = topic.drift_count
    message.adopted = topic.adopted
    message.provision_attempt = topic.provision_attempt
    if message.observed_config != topic.observed_config:
        message.observed_config.clear()
        message.observed_config.update(topic.observed_config)


def fill_policies(message: policies_pb2.Policies, policies: Policies) -> None:
    """Fills in these policies; unknown fields of a newer version stay."""
    for name in _SCALARS:
        value = getattr(policies, name)
        if value is None:
            message.ClearField(name)
        else:
            setattr(message, name, value)
    for name in _CONFIG_MAPS:
        _fill_settings(getattr(message, name), getattr(policies, name))
    message.manage.clear()
    message.manage.update(policies.manage)
    for name in [name for name in message.stamps if name not in policies.stamps]:
        del message.stamps[name]
    for name, stamp in policies.stamps.items():
        message.stamps[name].by = stamp.by
        message.stamps[name].at_ms = stamp.at_ms


def _fill_settings(
    message: MutableMapping[str, policies_pb2.ConfigValue], settings: Mapping[str, str | None]
) -> None:
    for key in [key for key in message if key not in settings]:
        if message[key].WhichOneof("kind") is not None:
            del message[key]
    for key, value in settings.items():
        if value is None:
            message[key].cleared = True
        else:
            message[key].value = value
