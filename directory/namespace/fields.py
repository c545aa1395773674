"""The fields of entries that an update may name: their paths, their types, their bounds.

Refuses to know paths of entries and rights; ``plan_update.py`` asks it to apply changes to a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from directory.namespace import topic_configs
from directory.namespace.command import CLEARED
from directory.namespace.entry import (
    NO_POLICIES,
    Entry,
    Kind,
    LinkMode,
    LinkWrites,
    Policies,
    Topic,
)
from resolver.errors import InvalidArgument
from resolver.kafka import settings as client_settings
from resolver.path import Path

__all__ = ["ASPECTS", "apply_changes", "check_policies"]

ASPECTS: Final = ("create", "configs", "acls", "delete")
"""The aspects of Kafka that ``manage`` speaks of (DESIGN §6)."""

_MAPS: Final = frozenset({"topic_config", "producer_defaults", "consumer_defaults", "tags"})


@dataclass(frozen=True, slots=True)
class _Type:
    """What values a field takes: ``wanted`` in words, ``fits`` as a test."""

    wanted: str
    fits: Callable[[object], bool]


def _whole(least: int, most: int) -> _Type:
    def fits(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return _Type(f"a whole number from {least} to {most}", fits)


_TEXT: Final = _Type("a text", lambda value: isinstance(value, str))
_TRUTH: Final = _Type("true or false", lambda value: isinstance(value, bool))
_TEXTS: Final = _Type(
    "a list of texts",
    lambda value: isinstance(value, tuple) and all(isinstance(one, str) for one in value),
)
_PATHS: Final = _Type(
    "a list of paths",
    lambda value: isinstance(value, tuple) and all(isinstance(one, Path) for one in value),
)
_MAP: Final = _Type(
    "a map of texts to texts",
    lambda value: (
        isinstance(value, Mapping)
        and all(
            isinstance(k, str) and k and (v is None or isinstance(v, str)) for k, v in value.items()
        )
    ),
)
_MANAGE: Final = _Type(
    f"a map of {', '.join(ASPECTS)} to true or false",
    lambda value: (
        isinstance(value, Mapping)
        and all(k in ASPECTS and isinstance(v, bool) for k, v in value.items())
    ),
)
_POLICIES: Final = _Type("policies", lambda value: isinstance(value, Policies))

_POLICY_TYPES: Final[Mapping[str, _Type]] = {
    "partitions": _whole(1, 2**31 - 1),
    "replication_factor": _whole(1, 2**15 - 1),
    "max_topics": _whole(0, 2**63 - 1),
    "max_partitions": _whole(0, 2**63 - 1),
    "owner": _TEXT,
    "contact": _TEXT,
    "description": _TEXT,
    "read_only": _TRUTH,
    "encryption_key_id": _TEXT,
    **dict.fromkeys(sorted(_MAPS), _MAP),
    "manage": _MANAGE,
}

_OWN_TYPES: Final[Mapping[Kind, Mapping[str, _Type]]] = {
    Kind.DIRECTORY: {"directory.closed": _TRUTH},
    Kind.TOPIC: {"topic.partitions": _whole(1, 2**31 - 1)},
    Kind.LINK: {
        "link.targets": _PATHS,
        "link.mode": _Type("FIRST or UNION", lambda value: isinstance(value, LinkMode)),
        "link.writes": _Type("STAY or FOLLOW", lambda value: isinstance(value, LinkWrites)),
        "link.fall_back_on_absent": _TRUTH,
    },
    Kind.MOUNT: {"mount.endpoints": _TEXTS, "mount.cluster": _TEXT},
}

_UNSET: Final[Mapping[str, object]] = {
    "directory.closed": False,
    "link.mode": LinkMode.FIRST,
    "link.writes": LinkWrites.STAY,
    "link.fall_back_on_absent": False,
    "mount.endpoints": (),
    "mount.cluster": "",
}
"""What a field becomes when it is unset; those that are not here cannot be."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """Whose the keys of a map are, and what they take."""

    problem_with: Callable[[str, str], str]
    conflict_in: Callable[[Mapping[str, str | None]], str]


_KAFKAS: Final[Mapping[str, _Rules]] = {
    "topic_config": _Rules(topic_configs.problem_with, topic_configs.conflict_in),
    **{
        f"{client}_defaults": _Rules(
            partial(client_settings.problem_with, client),
            partial(client_settings.conflict_in, client),
        )
        for client in client_settings.Client
    },
}

_WITH_POLICIES: Final = frozenset({Kind.DIRECTORY, Kind.TOPIC})


def check_policies(policies: Policies) -> None:
    """Check policies that came from outside.

    Raises:
        InvalidArgument: naming the field, what was found and what would be right.
    """
    if policies == NO_POLICIES:
        return
    for name, kind in _POLICY_TYPES.items():
        value = getattr(policies, name)
        if value is not None:
            _check(f"policies.{name}", kind, value)
    for name in _KAFKAS:
        configs = getattr(policies, name)
        _check_configs(name, configs, configs)


def _check_configs(
    name: str, news: Mapping[str, str | None], after: Mapping[str, str | None]
) -> None:
    """The new settings one by one, then all that there will be together."""
    rules = _KAFKAS[name]
    for key, value in news.items():
        field = f"policies.{name}.{key}"
        if value is not None and (problem := rules.problem_with(key, value)):
            raise InvalidArgument(f"{field}: {problem}", field=field, found=_shown(value))
    if news and (conflict := rules.conflict_in(after)):
        raise InvalidArgument(f"policies.{name}: {conflict}", field=f"policies.{name}")


def apply_changes(entry: Entry, changes: Mapping[str, object]) -> Entry:
    """The entry with these fields changed; not stamped, so that equal means no difference.

    Raises:
        InvalidArgument: an unknown field (names the nearest known one), one that this kind of entry
            does not have, a value of another type or out of bounds, partitions that shrink.
    """
    for field, value in changes.items():
        entry = _apply(entry, field, value)
    return entry


def _apply(entry: Entry, field: str, value: object) -> Entry:
    head, _, rest = field.partition(".")
    if head == "policies":
        if entry.kind not in _WITH_POLICIES:
            raise InvalidArgument(
                f"{field}: a {entry.kind.name.lower()} has no policies; set them on the directory "
                f"around it, or on what it leads to",
                field=field,
            )
        return replace(entry, policies=_policies(entry.policies, field, rest, value))
    own = _OWN_TYPES[entry.kind]
    if field not in own:
        raise _unknown(field, entry.kind)
    if value is None:
        if field not in _UNSET:
            raise InvalidArgument(f"{field} cannot be unset; {own[field].wanted} would be right")
        value = _UNSET[field]
    _check(field, own[field], value)
    if isinstance(entry, Topic):
        _check_growth(entry, field, value)
    changes: dict[str, Any] = {rest: value}
    return replace(entry, **changes)


def _check_growth(topic: Topic, field: str, value: object) -> None:
    if isinstance(value, int) and value < topic.partitions:
        raise InvalidArgument(
            f"{field} is {value}, and the topic has {topic.partitions}: Kafka never takes "
            f"partitions away; {topic.partitions} or more would be right",
            field=field,
            found=value,
        )


def _policies(policies: Policies, field: str, rest: str, value: object) -> Policies:
    if field == "policies":
        if value is None:
            return NO_POLICIES
        _check(field, _POLICIES, value)
        assert isinstance(value, Policies)  # noqa: S101 - for the type checker
        check_policies(value)
        return value
    name, dot, key = rest.partition(".")
    kind = _POLICY_TYPES.get(name)
    if kind is None:
        raise _unknown(field, None)
    if dot:
        changed: object = _with_key(getattr(policies, name), field, name, key, value)
    elif kind in {_MAP, _MANAGE}:
        changed = MappingProxyType({} if value is None else _checked_map(field, kind, value))
    else:
        if value is not None:
            _check(field, kind, value)
        changed = value
    if name in _KAFKAS and isinstance(changed, Mapping):
        # What stands there already may be of a vendor's or a newer Kafka: it is left alone.
        before = getattr(policies, name)
        news = {k: v for k, v in changed.items() if k not in before or before[k] != v}
        _check_configs(name, news, changed)
    changes: dict[str, Any] = {name: changed}
    return replace(policies, **changes)


def _with_key(
    before: object, field: str, name: str, key: str, value: object
) -> Mapping[str, object]:
    if not isinstance(before, Mapping):
        raise InvalidArgument(f"{field}: policies.{name} is no map, it has no keys", field=field)
    if not key:
        raise InvalidArgument(f"{field}: the key after the last dot is missing", field=field)
    if name == "manage":
        if key not in ASPECTS:
            near = _nearest(key, ASPECTS)
            raise InvalidArgument(
                f"{field}: {key!r} is no aspect; {near or ', '.join(ASPECTS)} would be right",
                field=field,
            )
        if value is not None:
            _check(field, _TRUTH, value)
    elif value is not None and value is not CLEARED:
        _check(field, _TEXT, value)
    # What stands there may be of a newer Kafka, and goes; what does not is a slip of the pen.
    goes = (value is None or value is CLEARED) and key not in before
    if goes and name == "topic_config" and (problem := topic_configs.unknown(key)):
        raise InvalidArgument(f"{field}: {problem}", field=field)
    after = {k: v for k, v in before.items() if k != key}
    if value is not None:
        after[key] = None if value is CLEARED else value
    return MappingProxyType(after)


def _checked_map(field: str, kind: _Type, value: object) -> dict[str, object]:
    _check(field, kind, value)
    assert isinstance(value, Mapping)  # noqa: S101 - for the type checker; `_check` has looked
    return dict(value)


def _check(field: str, kind: _Type, value: object) -> None:
    if not kind.fits(value):
        raise InvalidArgument(
            f"{field}: found {_shown(value)}; {kind.wanted} would be right",
            field=field,
            found=_shown(value),
        )


def _unknown(field: str, kind: Kind | None) -> InvalidArgument:
    known = ["policies", *(f"policies.{name}" for name in _POLICY_TYPES)]
    known += [name for own in _OWN_TYPES.values() for name in own]
    if kind is not None and field in known:
        return InvalidArgument(f"{field}: a {kind.name.lower()} has no such field", field=field)
    near = _nearest(field, known)
    hint = f"; did you mean {near}?" if near else ""
    return InvalidArgument(f"{field} is no field that can be updated{hint}", field=field, near=near)


def _nearest(name: str, known: list[str] | tuple[str, ...]) -> str:
    found = get_close_matches(name, known, n=1, cutoff=0.0)
    return found[0] if found else ""


def _shown(value: object, most: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"
