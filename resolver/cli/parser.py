"""Grammar of the command line: verbs, options, arguments.

Help, completion and parsing use the same declarations. argparse cannot be used: it loses arguments
after ``--`` and values that begin with a dash, and its messages do not name what is missing
(docs/decisions/0056-the-command-line-keeps-its-grammar.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from resolver.cli.output import JSONPATH, read_template
from resolver.cli.parsed_verb import Arguments, UsageError
from resolver.printable import cut_shown

if TYPE_CHECKING:
    from resolver.cli.session import Session

__all__ = [
    "FORMATS",
    "GLOBAL_OPTIONS",
    "RAW_ARGUMENTS",
    "YES",
    "Argument",
    "Arguments",
    "Option",
    "UsageError",
    "Verb",
    "parse",
    "split_verb",
]

FORMATS: Final = ("table", "json", "yaml", "name")


class Option(NamedTuple):
    """Option of a verb: a flag or, if ``value`` (the value's name in help texts) is set, an option
    with a value.
    """

    names: tuple[str, ...]
    help: str
    value: str = ""
    choices: tuple[str, ...] = ()
    repeated: bool = False
    completes: str = ""
    """Kind of the value, for completion: ``path``, ``context``, ``file``, ``operations``, ``key``
    or ``assignment``; empty = none of these.
    """

    @property
    def key(self) -> str:
        """Key of the option's value in ``Arguments``: the longest name, without dashes."""
        return max(self.names, key=len).lstrip("-")

    @property
    def shown_choices(self) -> str:
        """Choices as text, for help texts and errors."""
        return ", ".join(f"{one}TEMPLATE" if one == JSONPATH else one for one in self.choices)


RAW_ARGUMENTS: Final = "ARGUMENT…"
"""Key of all arguments, unchanged, of a verb that another program runs (``Verb.raw``)."""

_MAY_BE_EMPTY: Final = frozenset({"key-separator", "listener"})
"""Options whose empty value has a meaning: no key, the first listener. An empty value of any other
option, such as from an unset variable in a script, is refused: it would count as not given.
"""

YES: Final = Option(("-y", "--yes"), "do not ask; needed where there is no terminal to ask at")


class Argument(NamedTuple):
    """Positional argument, given at least ``least`` and at most ``most`` times (None = any
    number).
    """

    name: str
    help: str
    least: int = 1
    most: int | None = 1
    completes: str = ""
    choices: tuple[str, ...] = ()


class Verb(NamedTuple):
    """Verb of the command line: its options and arguments, its help, and the function that runs it.

    ``examples`` are command lines with their meaning. With ``raw`` another program runs the verb:
    its arguments are checked like those of other verbs, and passed on unchanged
    (``RAW_ARGUMENTS``).
    """

    name: str
    summary: str
    run: Callable[[Session, Arguments], int]
    examples: tuple[tuple[str, str], ...]
    arguments: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()
    details: str = ""
    formats: tuple[str, ...] = ()
    writes: bool = False
    destroys: bool = False
    """True if the verb may do something irreversible: it asks first, unless ``--yes`` is given
    (``Session.approve``).
    """
    raw: bool = False
    timeout_seconds: float = 5.0
    """Default timeout of a request, which ``--timeout`` overrides."""

    def own_options(self) -> tuple[Option, ...]:
        """Returns the verb's own options, with ``--yes`` if it ``destroys``, and with ``-o`` if it
        has formats.
        """
        output = (_output_option(self.formats),) if self.formats else ()
        return (*((YES,) if self.destroys else ()), *self.options, *output)

    def common_options(self) -> tuple[Option, ...]:
        """Returns the options that all verbs have, with this verb's default of ``--timeout``; if
        ``raw``, only ``--help`` and ``--debug``.
        """
        if self.raw:
            return tuple(option for option in GLOBAL_OPTIONS if option.key in {"help", "debug"})
        patience = Option(
            ("--timeout",),
            f"timeout of a request (default {self.timeout_seconds:g})",
            "SECONDS",
        )
        return tuple(patience if o.names == patience.names else o for o in GLOBAL_OPTIONS)

    def all_options(self) -> tuple[Option, ...]:
        """Returns all options of the verb."""
        return (*self.own_options(), *self.common_options())


GLOBAL_OPTIONS: Final = (
    Option(("--at",), "directory servers to query, in order", "HOST:PORT,…"),
    Option(
        ("--context",),
        "use the servers of this context; a protected one must be named for each write",
        "NAME",
        completes="context",
    ),
    Option(("--timeout",), "timeout of a request", "SECONDS"),
    Option(("-v", "--verbose"), "on failure, list every server that was queried"),
    Option(("--debug",), "on an unforeseen error, print where in kdir it was raised"),
    Option(("-h", "--help"), "explain the verb, with examples"),
)


def _output_option(formats: tuple[str, ...]) -> Option:
    """Returns the option ``-o``: formats with ``table`` also include ``wide``, formats with
    ``json`` also ``jsonpath=`` (``resolver.cli.output``).
    """
    choices = [*formats]
    if "table" in formats:
        choices.append("wide")
    if "json" in formats:
        choices.append(JSONPATH)
    return Option(("-o", "--output"), "how to print", "FORMAT", choices=tuple(choices))


def split_verb(parts: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """Splits a command line into the options before the verb, the verb (empty = none) and the rest.

    Raises:
        UsageError: an option before the verb is unknown, or lacks its value.
    """
    before: list[str] = []
    rest = list(parts)
    known = _by_name(GLOBAL_OPTIONS)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        part = rest.pop(0)
        before.append(part)
        name, has_value, _ = part.partition("=")
        option = known.get(name)
        if option is None and name != "--version":
            _unknown_option(name, [*known, "--version"], "")
        if option is not None and option.value and not has_value:
            if not rest:
                raise UsageError(f"{name} needs a value: {name} {option.value}")
            before.append(rest.pop(0))
    return before, (rest[0] if rest else ""), rest[1:]


def parse(verb: Verb, parts: Sequence[str]) -> Arguments:
    """Parses the arguments of one verb.

    Raises:
        UsageError: the arguments are invalid; the message has the value expected.
    """
    options = verb.all_options()
    values: dict[str, list[str]] = {}
    positional: list[str] = []
    for option, value in _scan(options, parts, verb):
        if option is None:
            positional.append(value)
            continue
        if option.completes != "file":
            _check_text(option.names[-1], value, verb)
        if option.choices and not _is_choice(option, value, verb):
            raise UsageError(
                f"{option.names[-1]} {cut_shown(value)}: one of "
                f"{option.shown_choices} was expected",
                verb=verb.name,
            )
        if option.value and not value and option.key not in _MAY_BE_EMPTY:
            raise UsageError(f"{option.names[-1]} '': {option.value} was expected", verb=verb.name)
        if option.value and not option.repeated and option.key in values:
            raise UsageError(f"{option.names[-1]} was given twice", verb=verb.name)
        values.setdefault(option.key, []).append(value)
    if "help" not in values:
        _gather(verb.arguments, positional, values, verb)
    if verb.raw:
        values[RAW_ARGUMENTS] = list(parts)
    return Arguments(verb, values)


def _check_text(name: str, value: str, verb: Verb) -> None:
    """Checks that a value is UTF-8, as servers require; only names of files may have other bytes.

    Raises:
        UsageError: its bytes are not UTF-8.
    """
    try:
        value.encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(value[error.start]).hex()
        raise UsageError(
            f"{name} {cut_shown(value)}: text in UTF-8 was expected; character {error.start + 1} "
            f"is the byte 0x{shown}",
            verb=verb.name,
        ) from None


def _is_choice(option: Option, value: str, verb: Verb) -> bool:
    """True if the value is one of an option's choices, or ``jsonpath=`` with a template.

    Raises:
        UsageError: the template is invalid.
    """
    if value in option.choices and value != JSONPATH:
        return True
    if JSONPATH not in option.choices or not value.startswith(JSONPATH):
        return False
    try:
        read_template(value)
    except ValueError as error:
        raise UsageError(f"{option.names[-1]} {value}: {error}", verb=verb.name) from None
    return True


def _scan(
    options: tuple[Option, ...], parts: Sequence[str], verb: Verb
) -> Iterator[tuple[Option | None, str]]:
    """Yields each option with its value (empty for a flag), and each positional argument, with None
    as its option.
    """
    known = _by_name(options)
    rest = list(parts)
    while rest:
        part = rest.pop(0)
        if part == "--":
            yield from ((None, other) for other in rest)
            return
        if part == "-" or not part.startswith("-"):
            yield None, part
            continue
        name, equals, value = part.partition("=")
        if not part.startswith("--") and len(part) > 2:
            # -lr or -n5: the rest of the argument has more flags, or is the value.
            name, tail = part[:2], part[2:]
            takes_value = name in known and bool(known[name].value)
            equals, value = ("=", tail.removeprefix("=")) if takes_value else ("", "")
            if not takes_value:
                rest.insert(0, f"-{tail}")
        option = known.get(name)
        if option is None:
            _unknown_option(name, list(known), verb.name)
        if option.value and not equals:
            if not rest:
                raise UsageError(f"{name} needs a value: {name} {option.value}", verb=verb.name)
            value = rest.pop(0)
        elif equals and not option.value:
            raise UsageError(f"{name} takes no value", verb=verb.name)
        yield option, value


def _by_name(options: Sequence[Option]) -> dict[str, Option]:
    return {name: option for option in options for name in option.names}


def _gather(
    arguments: tuple[Argument, ...], parts: list[str], values: dict[str, list[str]], verb: Verb
) -> None:
    """Assigns the positional arguments; only one argument of a verb may be given any number of
    times.
    """
    needed = sum(argument.least for argument in arguments)
    spare = len(parts) - needed
    if spare < 0:
        missing = _first_missing(arguments, len(parts))
        raise UsageError(f"{missing.name} is required: {missing.help}", verb=verb.name)
    for argument in arguments:
        if argument.choices and not argument.least and parts and parts[0].startswith("/"):
            continue  # a path is the value of the next argument
        room = spare if argument.most is None else argument.most - argument.least
        extra = min(spare, room)
        taken, parts = parts[: argument.least + extra], parts[argument.least + extra :]
        spare -= extra
        if taken:
            values[argument.name] = taken
        for part in taken:
            if argument.completes != "file":
                _check_text(argument.name, part, verb)
            if not (part or argument.least) and argument.completes == "path":
                # It would count as not given. A required path is checked when it is parsed.
                raise UsageError(f"{argument.name} '': a path was expected", verb=verb.name)
            if argument.choices and part not in argument.choices:
                raise UsageError(
                    f"{argument.name} {cut_shown(part)}: one of "
                    f"{', '.join(argument.choices)} was expected",
                    verb=verb.name,
                )
    if parts:
        raise UsageError(f"{cut_shown(parts[0])} is an unexpected argument", verb=verb.name)


def _first_missing(arguments: tuple[Argument, ...], given: int) -> Argument:
    for argument in arguments:
        given -= argument.least
        if given < 0:
            return argument
    return arguments[-1]


def _unknown_option(name: str, known: list[str], verb: str) -> NoReturn:
    import difflib

    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    if not verb and not near:
        hint = " before the verb; those of a verb come after it, as in kdir ls -l"
    raise UsageError(f"unknown option {name}{hint}", verb=verb)
