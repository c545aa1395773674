"""Fields of an entry and of its policies by their names on the command line, with values as text.

The names are those of ``kdir set`` and ``kdir effective``, and of the records of a change log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from resolver.message_values import plain

if TYPE_CHECKING:
    from kdir.v1 import entry_pb2, policies_pb2

__all__ = ["SERVER_FIELDS", "entry_fields", "map_key", "policy_fields", "policy_key"]

SERVER_FIELDS: Final = ("provision_attempt", "drift_count")
"""Fields of a topic that count the server's own work in Kafka; other fields have the results."""
_LEFT_OUT: Final = frozenset(
    {"path", "etag", "change_count", "changed_at", "changed_by", "entry_id", *SERVER_FIELDS}
)
"""Fields that are left out: they differ with every change, or the row of the change has them."""
_ALSO_POLICIES: Final = frozenset({"partitions", "replication_factor"})
"""Fields of a topic that have the same names as policies: one entry can have both."""
_PREFIXES: Final = ("PROVISION_", "LINK_MODE_", "LINK_WRITES_", "MOUNT_STATE_")


def policy_fields(policies: policies_pb2.Policies) -> Iterator[tuple[str, str | None]]:
    """Yields each set field, by its key on ``kdir set``, with its value; None for a cleared key."""
    for field, value in policies.ListFields():
        if field.name == "stamps":
            continue
        if field.message_type is None or not field.message_type.GetOptions().map_entry:
            yield field.name, _format_value(value)
            continue
        for key in sorted(value):
            one = value[key]
            cleared = not isinstance(one, bool) and one.cleared
            shown = None if cleared else _format_value(one) if isinstance(one, bool) else one.value
            yield map_key(field.name, key), shown


def policy_key(field: str) -> str:
    """Returns the key on ``kdir set`` of a field as the contract names it:
    ``topic_config[flush.ms]`` becomes ``flush.ms``.
    """
    name, bracket, key = field.partition("[")
    return map_key(name, key.removesuffix("]")) if bracket else name


def map_key(name: str, key: str) -> str:
    """Returns the key on ``kdir set`` of ``key`` in the policies' map ``name``."""
    if name == "topic_config":
        return key if "." in key else f"config.{key}"
    return f"{name.removesuffix('_defaults')}.{key}"


def _format_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def entry_fields(entry: entry_pb2.Entry) -> Iterator[tuple[str, str | None]]:
    """Yields the policies of an entry, as ``policy_fields`` does, then the fields of its kind."""
    yield from policy_fields(entry.policies)
    kind = entry.WhichOneof("kind")
    own = plain(getattr(entry, kind)) if kind else {}
    for key, value in own.items():
        if key in _LEFT_OUT:
            continue
        if isinstance(value, dict):
            yield from ((f"kafka {name}", str(one)) for name, one in value.items())
        elif isinstance(value, list):
            yield key, ",".join(map(str, value))
        elif key in _ALSO_POLICIES:
            yield f"kafka {key}", _plainer(value)
        else:
            yield key, _plainer(value)


def _plainer(value: object) -> str:
    text = _format_value(value)
    for prefix in _PREFIXES:
        if text.startswith(prefix):
            return text.removeprefix(prefix).lower()
    return text
