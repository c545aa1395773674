"""Help texts, made from the declarations that parsing uses; refuses to hold any text of a verb."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from resolver.cli.parser import GLOBAL_OPTIONS, Argument, Option, Verb
from resolver.cli.registry import GROUPS, every_verb

__all__ = ["overview", "usage", "verb_help"]

_INTRODUCTION: Final = """\
kdir: one path for every Kafka topic of every cluster.

usage: kdir VERB [ARGUMENT…] [OPTION…]
       kdir VERB --help             explains one verb, with examples
"""

_EPILOGUE: Final = """\
Which servers: --at HOST:PORT,…, else --context NAME, else the variable KDIR_AT, else the current
context (kdir context), else 127.0.0.1:7420. Any server will do: they refer to each other.

Where a topic and a directory share a name, a trailing / asks for the directory: /la/orders/

Output: -o table | json | yaml | name. json is one object per line, its fields those of the
contract in snake_case: ids are text, counts and revisions numbers, bytes URL-safe base64, and what
is not set is left out. On a terminal tables have headers and human units (7d, 1,204); elsewhere
they are tab-separated lines of exact values. Data goes to stdout, everything else to stderr.

Exit codes: 0 ok, 1 absent, 2 usage, 3 unavailable or partial, 4 denied, 5 conflict.

Examples:
  kdir ls /la/tracking                      what is in a directory
  kdir resolve /la/tracking/search/clicks   cluster, topic and bootstrap servers
  kdir which la-tracking search.clicks      the path of a Kafka topic (reverse lookup)
"""


def overview() -> str:
    """Returns what ``kdir --help`` prints."""
    summaries = {verb.name: verb.summary for verb in every_verb()}
    width = max(map(len, summaries)) + 2
    lines = [_INTRODUCTION]
    for group, names in GROUPS.items():
        lines.append(f"{group}:")
        lines.extend(f"  {name:<{width}}{summaries[name]}" for name in names)
        lines.append("")
    lines.append("Options of every verb:")
    lines.extend(_described(GLOBAL_OPTIONS))
    lines.append("")
    lines.append(_EPILOGUE.rstrip())
    return "\n".join(lines)


def usage(verb: Verb) -> str:
    """Returns the verb's form on one line."""
    parts = ["kdir", verb.name, *(_format_value(argument) for argument in verb.arguments)]
    if verb.options or verb.formats:
        parts.append("[OPTION…]")
    return " ".join(parts)


def verb_help(verb: Verb) -> str:
    """Returns what ``kdir VERB --help`` prints."""
    lines = [f"kdir {verb.name}: {verb.summary}", "", f"usage: {usage(verb)}"]
    if verb.details:
        lines += ["", verb.details.strip()]
    if verb.arguments:
        width = max(len(argument.name) for argument in verb.arguments) + 2
        lines += ["", "Arguments:"]
        lines += [f"  {argument.name:<{width}}{argument.help}" for argument in verb.arguments]
    for heading, options in (
        ("Options:", verb.own_options()),
        ("Options of every verb:", verb.common_options()),
    ):
        if options:
            lines += ["", heading, *_described(options)]
    lines += ["", "Examples:"]
    for command, meaning in verb.examples:
        lines += [f"  {command}", f"      {meaning}"]
    return "\n".join(lines)


def _format_value(argument: Argument) -> str:
    many = "…" if argument.most is None or argument.most > 1 else ""
    shown = f"{argument.name}{many}"
    return shown if argument.least else f"[{shown}]"


def _described(options: tuple[Option, ...]) -> Iterator[str]:
    forms = [
        ", ".join(option.names) + (f" {option.value}" if option.value else "") for option in options
    ]
    width = min(max(map(len, forms), default=0), 28) + 2
    for form, option in zip(forms, options, strict=True):
        text = option.help
        if option.choices:
            text += f": {', '.join(option.choices)}"
        if len(form) + 2 > width:
            yield f"  {form}"
            yield f"  {'':<{width}}{text}"
        else:
            yield f"  {form:<{width}}{text}"
