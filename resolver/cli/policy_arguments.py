"""Converts ``KEY=VALUE`` of policies, as people write them, to the contract's fields and back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resolver.cli.parser import UsageError
from resolver.entry_fields import map_key
from resolver.printable import cut_name

if TYPE_CHECKING:
    from kdir.v1 import entry_pb2

__all__ = ["KEYS_HELP", "Field", "assign", "assign_all", "field_of", "forget"]

KEYS_HELP: Final = """\
Keys: owner, contact, description, read_only, partitions and replication_factor (of new topics),
max_topics, max_partitions, encryption_key_id; any topic config of Kafka's, such as retention.ms or
config.preallocate; producer.KEY and consumer.KEY; tags.KEY; manage.ASPECT=false (true: kdir arm);
of a directory closed; of a link targets, mode, writes and fall_back_on_absent. Times and sizes may
have units: 7d, 12h, 1GiB."""

_TEXTS: Final = ("owner", "contact", "description", "encryption_key_id")
_NUMBERS: Final = ("partitions", "replication_factor", "max_topics", "max_partitions")
_FLAGS: Final = ("read_only",)
_MAPS: Final[Mapping[str, str]] = {
    "config": "topic_config",
    "topic_config": "topic_config",
    "producer": "producer_defaults",
    "producer_defaults": "producer_defaults",
    "consumer": "consumer_defaults",
    "consumer_defaults": "consumer_defaults",
    "tags": "tags",
    "tag": "tags",
    "manage": "manage",
}
_OTHERS: Final[Mapping[str, str]] = {
    "closed": "directory.closed",
    "targets": "link.targets",
    "mode": "link.mode",
    "writes": "link.writes",
    "fall_back_on_absent": "link.fall_back_on_absent",
}
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")

_QUANTITY = re.compile(r"(-?[0-9]{1,40})([a-zA-Z]*)", re.ASCII)
"""Number and unit; a text with more digits than any value has stays as it is."""
_FRACTION = re.compile(r"-?[0-9]*[.,][0-9]+ ?[a-zA-Z]+|-?[0-9]+ [a-zA-Z]+", re.ASCII)
"""What people write for a quantity, and is none."""
_MILLISECONDS: Final = {
    "": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000,
}  # fmt: skip
_BYTES: Final = {
    "": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """One field that can be set. ``mask`` is its path in an update; of a map, with the key."""

    mask: str
    name: str
    """Of the field itself, such as ``owner`` or ``topic_config``."""
    key: str = ""
    """The key in a map, such as ``retention.ms``; empty if the field is no map."""

    @property
    def in_answers(self) -> str:
        """Its name in answers: ``topic_config[retention.ms]``."""
        return f"{self.name}[{self.key}]" if self.key else self.name

    @property
    def shown(self) -> str:
        """The key that people write for it."""
        return map_key(self.name, self.key) if self.key else self.name


def field_of(key: str, verb: str) -> Field:
    """Returns the field that a key names.

    Raises:
        UsageError: there is no such key; names the nearest.
    """
    if key in _TEXTS or key in _NUMBERS or key in _FLAGS:
        return Field(f"policies.{key}", key)
    if key in _OTHERS:
        return Field(_OTHERS[key], _OTHERS[key].partition(".")[2])
    group, dot, rest = key.partition(".")
    if dot and rest and group in _MAPS:
        name = _MAPS[group]
        return Field(f"policies.{name}.{rest}", name, rest)
    if dot and group and rest:
        # Every topic config of Kafka's but `preallocate` has a dot in its name, ours have none.
        return Field(f"policies.topic_config.{key}", "topic_config", key)
    if key in _MAPS:
        raise UsageError(f"{key!r} has keys of its own: {key}.KEY was expected", verb=verb)
    import difflib

    from resolver.cli.completion import KEYS

    known = [f"{name}KEY" if name.endswith(".") else name for name in KEYS]
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UsageError(f"{key!r} is no key that could be set{hint}", verb=verb)


def assign(entry: entry_pb2.Entry, assignment: str, verb: str) -> Field:
    """Sets the field of ``KEY=VALUE`` in an entry; returns the field.

    Raises:
        UsageError: not of that form, no such key, or no such value.
    """
    key, equals, value = assignment.partition("=")
    if not equals:
        raise UsageError(f"{assignment!r}: KEY=VALUE was expected", verb=verb)
    field = field_of(key, verb)
    if field.name == "manage":
        entry.policies.manage[field.key] = _flag(key, value, verb)
    elif field.key:
        getattr(entry.policies, field.name)[field.key].value = _config(field, value, verb)
    elif field.mask.startswith("link."):
        _assign_link(entry.link, field.name, value, verb)
    elif field.mask == "directory.closed":
        entry.directory.closed = _flag(key, value, verb)
    elif field.name in _FLAGS:
        setattr(entry.policies, field.name, _flag(key, value, verb))
    elif field.name in _NUMBERS:
        try:
            setattr(entry.policies, field.name, _number(key, value, verb))
        except ValueError:  # more than the field's type holds, or than Python reads
            shown = cut_name(value, 40)
            raise UsageError(f"{key}={shown}: a smaller number was expected", verb=verb) from None
    else:
        setattr(entry.policies, field.name, value)
    return field


def assign_all(entry: entry_pb2.Entry, assignments: Sequence[str], verb: str) -> list[Field]:
    """Sets the field of each ``KEY=VALUE`` in an entry; returns the fields. Several ``targets`` of
    a link are added up.

    Raises:
        UsageError: as ``assign``, or one key has two values.
    """
    fields: list[Field] = []
    seen: dict[str, str] = {}
    for text in dict.fromkeys(assignments):
        field = assign(entry, text, verb)
        if field.mask in seen:
            if field.mask == "link.targets":
                continue
            message = f"{field.shown} was given twice: {seen[field.mask]} and {text}"
            raise UsageError(message, verb=verb)
        seen[field.mask] = text
        fields.append(field)
    return fields


def forget(entry: entry_pb2.Entry, key: str, verb: str, *, clear: bool) -> Field:
    """Returns the field of a key to unset; with ``clear``, marks it as cleared in the entry.

    Raises:
        UsageError: no such key, or its inheritance cannot be ended.
    """
    field = field_of(key, verb)
    if not field.mask.startswith("policies."):
        raise UsageError(f"{key} always has a value: kdir set it", verb=verb)
    if clear:
        if not field.key or field.name == "manage":
            raise UsageError(
                f"--clear is for keys of maps; {key} is ended by another value: kdir set", verb=verb
            )
        getattr(entry.policies, field.name)[field.key].cleared = True
    return field


def _assign_link(link: entry_pb2.Link, name: str, value: str, verb: str) -> None:
    from kdir.v1 import entry_pb2

    match name:
        case "targets":
            link.targets.extend(part for part in value.split(",") if part)
        case "mode":
            modes = {"first": entry_pb2.LINK_MODE_FIRST, "union": entry_pb2.LINK_MODE_UNION}
            link.mode = modes[_choice(name, value, tuple(modes), verb)]
        case "writes":
            writes = {"stay": entry_pb2.LINK_WRITES_STAY, "follow": entry_pb2.LINK_WRITES_FOLLOW}
            link.writes = writes[_choice(name, value, tuple(writes), verb)]
        case _:
            link.fall_back_on_absent = _flag(name, value, verb)


def _choice(key: str, value: str, choices: tuple[str, ...], verb: str) -> str:
    if value not in choices:
        raise UsageError(f"{key}={value}: one of {', '.join(choices)} was expected", verb=verb)
    return value


def _flag(key: str, value: str, verb: str) -> bool:
    return _choice(key, value.lower(), (*_TRUE, *_FALSE), verb) in _TRUE


def _number(key: str, value: str, verb: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise UsageError(f"{key}={value}: a whole number from 0 was expected", verb=verb)
    return int(value)


def _config(field: Field, value: str, verb: str) -> str:
    """Returns a value as Kafka takes it, with times in ms and sizes in bytes."""
    units = None
    if field.name != "tags" and field.key.endswith(".ms"):
        units = _MILLISECONDS
    elif field.name != "tags" and field.key.endswith(".bytes"):
        units = _BYTES
    found = _QUANTITY.fullmatch(value) if units else None
    if units is not None and found is None and _FRACTION.fullmatch(value):
        example = "12h" if units is _MILLISECONDS else "1536MiB"
        raise UsageError(
            f"{field.key}={cut_name(value, 40)}: a whole number and a unit such as "
            f"{example} was expected",
            verb=verb,
        )
    if units is None or found is None:
        return value  # Kafka checks its own values
    number, unit = found.groups()
    if unit not in units:
        known = ", ".join(name for name in units if name)
        raise UsageError(
            f"{field.key}={value}: a whole number with one of the units {known} was expected",
            verb=verb,
        )
    return str(int(number) * units[unit])
