"""Verbs about the policies of an entry: ``set``, ``unset``, ``effective``; none changes Kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from resolver.cli import units
from resolver.cli.output import Column, Styled, Table
from resolver.cli.parser import Argument, Arguments, Option, UsageError, Verb
from resolver.cli.policies import KEYS_HELP, Field, assign, flatten, forget
from resolver.cli.session import place
from resolver.cli.writing import ENTRY_FORMATS, PLAN, show_entry
from resolver.errors import Absent, KdirError

if TYPE_CHECKING:
    from kdir.v1 import entry_pb2

    from resolver.cli.session import Session
    from resolver.location import TopicLocation

__all__ = ["VERBS"]


def _set(session: Session, arguments: Arguments) -> int:
    def put(entry: entry_pb2.Entry) -> list[Field]:
        return [assign(entry, text, "set") for text in arguments.many("KEY=VALUE")]

    return _update(session, arguments, put, "set")


def _unset(session: Session, arguments: Arguments) -> int:
    def take(entry: entry_pb2.Entry) -> list[Field]:
        clear = arguments.flag("clear")
        return [forget(entry, key, "unset", clear=clear) for key in arguments.many("KEY")]

    return _update(session, arguments, take, "unset")


def _update(
    session: Session,
    arguments: Arguments,
    change: Callable[[entry_pb2.Entry], list[Field]],
    past: str,
) -> int:
    from kdir.v1 import directory_pb2, entry_pb2

    where = place(arguments.one("PATH"))
    entry = entry_pb2.Entry()
    fields = change(entry)
    of_link = [one.mask for one in fields if one.mask.startswith("link.")]
    if of_link and len(of_link) < len(fields):
        raise UsageError("a link's own settings and policies: one command each", verb=past)
    request = directory_pb2.UpdateEntryRequest(
        path=str(where.path),
        kind="ENTRY_KIND_LINK" if of_link else where.kind,
        entry=entry,
        etag=arguments.one("etag"),
        validate_only=arguments.flag("plan"),
    )
    request.update_mask.paths.extend(dict.fromkeys(one.mask for one in fields))
    # The policies of a mount are those of the directory that its child has there: follow it.
    answer: directory_pb2.UpdateEntryResponse = session.resolver.call(
        where.path, "DirectoryService.UpdateEntry", request, no_follow=bool(of_link)
    )
    names = ", ".join(one.key or one.name for one in fields)
    said = f"would {past}" if arguments.flag("plan") else past
    show_entry(session, answer.entry, f"{said} {names} at {answer.entry.path}")
    if any(one.name == "topic_config" for one in fields):
        session.out.note("a wish, for now: nothing was changed in Kafka", "faint")
    return 0


# -- effective -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Value:
    """One effective value; ``levels`` are the values and the paths that set them, nearest first."""

    key: str
    value: str
    levels: list[tuple[str, str]] = field(default_factory=list)


def _effective(session: Session, arguments: Arguments) -> int:
    where = place(arguments.one("PATH"))
    found = session.resolver.resolve(where.path, prefer=where.prefer)
    if found.kind not in {"topic", "directory"}:
        raise UsageError(f"{where} is a {found.kind}", verb="effective")
    values = _values(found)
    _attribute(session, found, values)
    observed = found.entry.topic.observed_config if found.kind == "topic" else None
    table = Table(session.out, _COLUMNS if observed is not None else _COLUMNS[:-1])
    rows: list[Sequence[str | Styled]] = []
    for one in values:
        set_at, overrides = (one.levels[0][1], one.levels[1:]) if one.levels else ("?", [])
        if session.out.structured:
            session.out.record(
                {
                    "field": one.key,
                    "value": one.value,
                    "set_at": set_at,
                    "overrides": [{"value": value, "set_at": at} for value, at in overrides],
                }
            )
            continue
        shown = units.retention if session.out.human and one.key.endswith(".ms") else str
        own = session.out.human and set_at == found.path
        row: list[str | Styled] = [
            one.key,
            shown(one.value) or '""',
            "." if own else set_at,
            ", ".join(f"{shown(value)} at {at}" for value, at in overrides) or "-",
        ]
        if observed is not None:
            row.append(_in_kafka(one, observed, shown))
        rows.append(row)
    table.rows(rows)
    return 0


_COLUMNS: Final = [
    Column("FIELD"), Column("VALUE"), Column("SET AT"), Column("OVERRIDES"), Column("KAFKA"),
]  # fmt: skip


def _values(found: TopicLocation) -> list[_Value]:
    effective = found.effective
    if effective is None:
        return []
    return [_Value(key, value) for key, value in flatten(effective) if value is not None]


def _attribute(session: Session, found: TopicLocation, values: Sequence[_Value]) -> None:
    """Find out which entry set each value: ask for all the directories above at once."""
    from resolver.path import Path

    path = Path.parse(found.path)
    above = [Path(path.segments[:length]) for length in range(len(path) - 1, -1, -1)]
    levels: list[tuple[str, entry_pb2.Entry]] = [(found.path, found.entry)]
    if found.kind == "topic" or not path.is_root:
        asked = session.resolver.resolve_many(above, prefer="directory")
        for directory, answer in zip(above, asked, strict=True):
            if isinstance(answer, KdirError):
                if not isinstance(answer, Absent):
                    session.missing(f"not asked: {directory}: {answer}")
            else:
                levels.append((answer.path, answer.entry))
    by_key = {one.key: one for one in values}
    for at, entry in levels:
        for key, value in flatten(entry.policies):
            if key in by_key and value is not None:
                by_key[key].levels.append((value, at))
    for one in values:
        # What the owner says holds; a level that says otherwise is newer than its word.
        while one.levels and one.levels[0][0] != one.value:
            one.levels.pop(0)


def _in_kafka(
    one: _Value, observed: Mapping[str, str], shown: Callable[[str], str]
) -> str | Styled:
    if not one.key.startswith("config.") and "." not in one.key:
        return "n/a"
    key = one.key.removeprefix("config.")
    if one.key.startswith(("producer.", "consumer.", "tags.", "manage.")):
        return "n/a"
    found = observed.get(key)
    if found == one.value:
        return "="
    return Styled(shown(found) if found is not None else "default", "warn")


_ETAG: Final = Option(("--etag",), "only if the entry is still as stat -o json showed it", "ETAG")
_PATH: Final = Argument("PATH", "of a directory or topic", completes="path")

VERBS: Final = (
    Verb(
        name="set",
        summary="set policies of an entry: owner, tags, topic configs, …",
        run=_set,
        writes=True,
        details=(
            "A policy holds for the entry and all below it, until something nearer says otherwise."
            f"\n\n{KEYS_HELP}\n\nTopic configs are wishes: nothing in Kafka is changed by this."
        ),
        arguments=(_PATH, Argument("KEY=VALUE", "what to set", most=None)),
        options=(_ETAG, PLAN),
        formats=ENTRY_FORMATS,
        examples=(
            ("kdir set /la/tracking/search owner=search contact='#search-oncall'", "whose it is"),
            ("kdir set /la/tracking retention.ms=7d tags.tier=2", "topic config and a label"),
            ("kdir set /tracking targets=/ny/tracking,/la/tracking", "turn a link around"),
        ),
    ),
    Verb(
        name="unset",
        summary="take policies of an entry away again",
        run=_unset,
        writes=True,
        details=(
            "What was set here is gone; what is inherited holds again. With --clear a key ends\n"
            "here: neither this entry nor what is below inherits it any more.\n\n"
            f"{KEYS_HELP}"
        ),
        arguments=(_PATH, Argument("KEY", "what to take away", most=None)),
        options=(
            Option(("--clear",), "end the inheritance of the key here (keys of maps only)"),
            _ETAG,
            PLAN,
        ),
        formats=ENTRY_FORMATS,
        examples=(
            ("kdir unset /la/tracking/search retention.ms", "back to what /la/tracking says"),
            ("kdir unset --clear /la/tracking/search retention.ms", "back to Kafka's default"),
        ),
    ),
    Verb(
        name="effective",
        summary="what holds for an entry, and which directory says so",
        run=_effective,
        details=(
            "Each policy with its value, the path that set it (. = the entry itself) and what it\n"
            "overrides. For a topic, KAFKA is what Kafka had at the last look: = the same,\n"
            "else its value, or default for its own default. n/a is none of Kafka's."
        ),
        arguments=(_PATH,),
        formats=ENTRY_FORMATS[:3],
        examples=(("kdir effective /la/tracking/orders", "why is its retention what it is?"),),
    ),
)
