"""Fields of entries that an update may name: their paths, types and bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from directory.namespace import topic_configs
from directory.namespace.bounds import DEFAULT_BOUNDS, Bounds, check_count, check_policy_bounds
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
from resolver.kafka import client_settings
from resolver.path import Path
from resolver.printable import cut_name, cut_shown
from resolver.setting_types import nearest

__all__ = ["ASPECTS", "apply_changes", "check_policies", "check_targets", "no_policies_error"]


ASPECTS: Final = ("create", "configs", "acls", "delete")
"""Aspects of Kafka in ``manage``."""

_MAPS: Final = frozenset({"topic_config", "producer_defaults", "consumer_defaults", "tags"})


@dataclass(frozen=True, slots=True)
class _FieldType:
    """Values that a field accepts: ``wanted`` as text, ``fits`` as a test."""

    wanted: str
    fits: Callable[[object], bool]


def _whole(least: int, most: int) -> _FieldType:
    def fits(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return _FieldType(f"a whole number from {least} to {most}", fits)


_TEXT: Final = _FieldType("a text", lambda value: isinstance(value, str))
_TRUTH: Final = _FieldType("true or false", lambda value: isinstance(value, bool))
_TEXTS: Final = _FieldType(
    "a list of texts",
    lambda value: isinstance(value, tuple) and all(isinstance(one, str) for one in value),
)
_PATHS: Final = _FieldType(
    "a list of paths",
    lambda value: isinstance(value, tuple) and all(isinstance(one, Path) for one in value),
)
_MAP: Final = _FieldType(
    "a map of texts to texts",
    lambda value: (
        isinstance(value, Mapping)
        and all(
            isinstance(k, str) and k and (v is None or isinstance(v, str)) for k, v in value.items()
        )
    ),
)
_MANAGE: Final = _FieldType(
    f"a map of {', '.join(ASPECTS)} to true or false",
    lambda value: (
        isinstance(value, Mapping)
        and all(k in ASPECTS and isinstance(v, bool) for k, v in value.items())
    ),
)
_POLICIES: Final = _FieldType("policies", lambda value: isinstance(value, Policies))

_POLICY_TYPES: Final[Mapping[str, _FieldType]] = {
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

_OWN_TYPES: Final[Mapping[Kind, Mapping[str, _FieldType]]] = {
    Kind.DIRECTORY: {"directory.closed": _TRUTH},
    Kind.TOPIC: {"topic.partitions": _whole(1, 2**31 - 1)},
    Kind.LINK: {
        "link.targets": _PATHS,
        "link.mode": _FieldType("FIRST or UNION", lambda value: isinstance(value, LinkMode)),
        "link.writes": _FieldType("STAY or FOLLOW", lambda value: isinstance(value, LinkWrites)),
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
"""Value of a field that is unset; fields that are not here cannot be unset."""


@dataclass(frozen=True, slots=True)
class _MapKeyRules:
    """Rules for the keys of a map, and for their values."""

    problem_with: Callable[[str, str], str]
    conflict_in: Callable[[Mapping[str, str | None]], str]


_KAFKAS: Final[Mapping[str, _MapKeyRules]] = {
    "topic_config": _MapKeyRules(topic_configs.problem_with, topic_configs.conflict_in),
    **{
        f"{client}_defaults": _MapKeyRules(
            partial(client_settings.problem_with, client),
            partial(client_settings.conflict_in, client),
        )
        for client in client_settings.Client
    },
}

_WITH_POLICIES: Final = frozenset({Kind.DIRECTORY, Kind.TOPIC})


def check_policies(policies: Policies, bounds: Bounds = DEFAULT_BOUNDS) -> None:
    """Checks policies of a request.

    Raises:
        InvalidArgument: names the field, the value found and the value expected.
        LimitExceeded: they exceed the bounds.
    """
    if policies is NO_POLICIES or policies == NO_POLICIES:
        return
    _check_types(policies)
    check_policy_bounds(policies, NO_POLICIES, bounds)
    for name in _KAFKAS:
        configs = getattr(policies, name)
        _check_configs(name, configs, configs)


def _check_types(policies: Policies) -> None:
    for name, kind in _POLICY_TYPES.items():
        value = getattr(policies, name)
        if value is not None:
            _check(f"policies.{name}", kind, value)


def _check_configs(
    name: str, news: Mapping[str, str | None], after: Mapping[str, str | None]
) -> None:
    """Checks the new settings one by one, then all settings together."""
    rules = _KAFKAS[name]
    for key, value in news.items():
        if value is not None and (problem := rules.problem_with(key, value)):
            field = cut_name(f"policies.{name}.{key}")
            raise InvalidArgument(f"{field}: {problem}", field=field, found=cut_shown(value))
    if news and (conflict := rules.conflict_in(after)):
        raise InvalidArgument(f"policies.{name}: {conflict}", field=f"policies.{name}")


def no_policies_error(field: str, kind: Kind) -> InvalidArgument:
    """Returns the error of a field that sets policies of a link or mount."""
    return InvalidArgument(
        f"{field}: a {kind.name.lower()} has no policies; set them on the directory around it, or "
        f"on what it leads to",
        field=field,
    )


def apply_changes(
    entry: Entry,
    changes: Mapping[str, object],
    bounds: Bounds = DEFAULT_BOUNDS,
    check: Callable[[], None] = lambda: None,
) -> Entry:
    """Returns the entry with these fields changed. The time and author of its last change stay, so
    the result equals ``entry`` if nothing differs. ``check`` is called periodically, and raises
    when the client has disconnected.

    Raises:
        InvalidArgument: an unknown field (names the nearest known one), one that this kind of entry
            does not have, a value of another type or out of bounds, fewer partitions.
        LimitExceeded: the policies would exceed the bounds.
    """
    edit: _PolicyEdit | None = None
    for number, (field, value) in enumerate(changes.items()):
        if number % _CHECKED_EVERY == 0:
            check()
        if field.partition(".")[0] != "policies":
            entry = _apply(entry, field, value)
            continue
        if entry.kind not in _WITH_POLICIES:
            raise no_policies_error(cut_name(field), entry.kind)
        edit = edit or _PolicyEdit(entry.policies, bounds)
        edit.change(field, value)
    return entry if edit is None else replace(entry, policies=edit.finish())


_CHECKED_EVERY: Final = 256


def _apply(entry: Entry, field: str, value: object) -> Entry:
    own = _OWN_TYPES[entry.kind]
    if field not in own:
        raise _unknown(field, entry.kind)
    if value is None:
        if field not in _UNSET:
            raise InvalidArgument(f"{field} cannot be unset; expected {own[field].wanted}")
        value = _UNSET[field]
    _check(field, own[field], value)
    if isinstance(entry, Topic):
        _check_growth(entry, field, value)
    changes: dict[str, Any] = {field.partition(".")[2]: value}
    return replace(entry, **changes)


def _check_growth(topic: Topic, field: str, value: object) -> None:
    if isinstance(value, int) and value < topic.partitions:
        raise InvalidArgument(
            f"{field} is {value}, and the topic has {topic.partitions}: Kafka never takes "
            f"partitions away; expected {topic.partitions} or more",
            field=field,
            found=value,
        )


class _PolicyEdit:
    """Policies of an entry while fields of them change: each map is copied and checked once,
    however many of its keys change.
    """

    def __init__(self, before: Policies, bounds: Bounds) -> None:
        self._before = before
        self._bounds = bounds
        self._base = before
        self._whole = False
        self._values: dict[str, object] = {}
        self._maps: dict[str, dict[str, object]] = {}

    def change(self, field: str, value: object) -> None:
        """Changes one field, ``policies`` or one below it; None = unset."""
        rest = field.partition(".")[2]
        if not rest and field == "policies":
            self._replace(value)
            return
        name, dot, key = rest.partition(".")
        kind = _POLICY_TYPES.get(name)
        if kind is None:
            raise _unknown(field, None)
        if dot:
            self._change_key(field, name, key, value)
        elif kind in {_MAP, _MANAGE}:
            self._maps[name] = {} if value is None else _checked_map(field, kind, value)
        else:
            if value is not None:
                _check(field, kind, value)
            self._values[name] = value

    def _replace(self, value: object) -> None:
        """Replaces all policies."""
        self._base, self._whole = NO_POLICIES, value is not None
        self._values.clear()
        self._maps.clear()
        if value is not None:
            _check("policies", _POLICIES, value)
            assert isinstance(value, Policies)  # noqa: S101 - for the type checker
            _check_types(value)
            self._base = value

    def _change_key(self, field: str, name: str, key: str, value: object) -> None:
        settings = self._maps.get(name)
        if settings is None:
            before = getattr(self._base, name)
            if not isinstance(before, Mapping):
                raise InvalidArgument(
                    f"{cut_name(field)}: policies.{name} is no map, it has no keys",
                    field=cut_name(field),
                )
            settings = self._maps[name] = dict(before)
        _check_key(field, name, key, value)
        # A key that is set may be of a newer Kafka, and can be removed although it is unknown here.
        # Removing an unknown key that is not set is a typo.
        goes = (value is None or value is CLEARED) and key not in settings
        if goes and name == "topic_config" and (problem := topic_configs.unknown(key)):
            raise InvalidArgument(f"{cut_name(field)}: {problem}", field=cut_name(field))
        settings.pop(key, None)
        if value is not None:
            settings[key] = None if value is CLEARED else value

    def finish(self) -> Policies:
        """Returns the changed policies.

        Raises:
            InvalidArgument, LimitExceeded: a new value is not allowed.
        """
        maps = {name: MappingProxyType(settings) for name, settings in self._maps.items()}
        changes: dict[str, Any] = {**self._values, **maps}
        after = replace(self._base, **changes)
        check_policy_bounds(after, self._before, self._bounds)
        for name in _KAFKAS:
            settings = getattr(after, name)
            # An existing value may be of a vendor's or a newer Kafka: it is left alone.
            old: Mapping[str, object] = {} if self._whole else getattr(self._before, name)
            if self._whole or name in self._maps:
                news = {k: v for k, v in settings.items() if k not in old or old[k] != v}
                _check_configs(name, news, settings)
        return after


def _check_key(field: str, name: str, key: str, value: object) -> None:
    if not key:
        raise InvalidArgument(f"{field}: the key after the last dot is missing", field=field)
    if name == "manage":
        if key not in ASPECTS:
            near = nearest(key, ASPECTS)
            raise InvalidArgument(
                f"{cut_name(field)}: {cut_shown(key)} is no aspect; expected {near}",
                field=cut_name(field),
            )
        if value is not None:
            _check(field, _TRUTH, value)
    elif value is not None and value is not CLEARED:
        _check(field, _TEXT, value)


def _checked_map(field: str, kind: _FieldType, value: object) -> dict[str, object]:
    _check(field, kind, value)
    assert isinstance(value, Mapping)  # noqa: S101 - for the type checker; `_check` did that
    return dict(value)


def _check(field: str, kind: _FieldType, value: object) -> None:
    if not kind.fits(value):
        name, found = cut_name(field), cut_shown(value)
        raise InvalidArgument(
            f"{name}: found {found}; expected {kind.wanted}", field=name, found=found
        )


def _unknown(field: str, kind: Kind | None) -> InvalidArgument:
    known = ["policies", *(f"policies.{name}" for name in _POLICY_TYPES)]
    known += [name for own in _OWN_TYPES.values() for name in own]
    if kind is not None and field in known:
        return InvalidArgument(f"{field}: a {kind.name.lower()} has no such field", field=field)
    near = nearest(field, known)
    name = cut_name(field)
    message = f"{name} is no field that can be updated; did you mean {near}?"
    return InvalidArgument(message, field=name, near=near)


def check_targets(
    path: Path, targets: Sequence[Path], bounds: Bounds, before: Sequence[Path] = ()
) -> None:
    """Checks that a link has a target, none twice, and none at or below the link itself, where it
    would never end.

    Raises:
        InvalidArgument: names the target and the rule.
        LimitExceeded: more than the bounds allow, and more than before.
    """
    if not targets:
        raise InvalidArgument(
            "link.targets is empty; expected at least one absolute path", field="link.targets"
        )
    if len(targets) > len(before):
        check_count("link.targets", len(targets), bounds.link_targets, "targets", "link_targets")
    seen: set[Path] = set()
    for position, target in enumerate(targets, start=1):
        if path.is_prefix_of(target):
            raise InvalidArgument(
                f"link.targets: target {position} is {target}, at or below the link {path} itself; "
                f"it would lead to itself again and again",
                field="link.targets",
                target=target,
            )
        if target in seen:
            raise InvalidArgument(
                f"link.targets: {target} is named twice", field="link.targets", target=target
            )
        seen.add(target)
