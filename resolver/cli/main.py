"""Entry point of ``kdir``: runs a verb or prints its help, and maps errors to exit codes. Modules
that only some verbs need are imported lazily, since every call pays for start-up.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from resolver.cli.output import complain
from resolver.cli.parser import (
    GLOBAL_OPTIONS,
    Argument,
    Arguments,
    Option,
    UsageError,
    Verb,
    parse,
    split_verb,
)
from resolver.cli.registry import GROUPS, every_verb, load_verb, nearest_verbs
from resolver.cli.session import Session
from resolver.closed_stdin import replace_closed_stdin
from resolver.errors import KdirError

if TYPE_CHECKING:
    from resolver.transport import Transport

__all__ = [
    "EXIT_BROKEN_PIPE",
    "EXIT_INTERRUPTED",
    "EXIT_PARTIAL",
    "EXIT_USAGE",
    "main",
    "overview",
    "verb_help",
]

EXIT_USAGE = 2
EXIT_PARTIAL = 3
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""Exit code after SIGPIPE (128 + 13). ``EXIT_INTERRUPTED`` is that of SIGINT (128 + 2)."""


def main(parts: Sequence[str] | None = None, *, transport: Transport | None = None) -> int:
    """Runs one command line; returns the exit code.

    Without ``parts`` it runs the arguments in ``sys.argv``, and ends the process. ``transport``:
    transport to the servers; gRPC by default.
    """
    if parts is not None:
        return _guarded(parts, transport)
    replace_closed_stdin()
    for name, flags in (
        ("stdout", os.O_RDONLY),  # opened for reading, so that writing fails: data must not be lost
        ("stderr", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:  # closed by the caller
            descriptor = os.open(os.devnull, flags)
            setattr(sys, name, open(descriptor, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # its encoding may not have all characters
            stream.reconfigure(errors="backslashreplace")
    if "server" not in sys.argv:
        # Otherwise gRPC itself also logs each failed handshake on stderr.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    code = _guarded(sys.argv[1:], None)
    if "py4j" not in sys.modules:  # only Spark has work to do at exit
        sys.stderr.flush()
        # To shut down gRPC and the interpreter would take a tenth of the time of `kdir ls`.
        os._exit(code)
    return code


def _guarded(parts: Sequence[str], transport: Transport | None) -> int:
    try:
        code = _run(parts, transport)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        from resolver.unforeseen_errors import drop_output

        drop_output()  # the reader has closed the pipe
        return EXIT_BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - reported in one sentence
        from resolver.unforeseen_errors import report_unforeseen, report_unwritable

        command = f"kdir {_version()}: {' '.join(parts)}"
        return report_unwritable(error) or report_unforeseen(
            error, command, debug="--debug" in parts
        )


def _run(parts: Sequence[str], transport: Transport | None) -> int:
    try:
        before, name, rest = split_verb(parts)
        if "--version" in before:
            print(f"kdir {_version()}")
            return 0
        if not name or name == "help":
            return _help(rest)
        if name == "__complete":
            from resolver.cli.completion import complete

            return complete(rest)
        verb = load_verb(name)
        if verb is None:
            return _unknown(name)
        arguments = parse(verb, [*before, *rest])
        if arguments.flag("help"):
            return _help([name])
        return _serve(verb, arguments, transport)
    except UsageError as error:
        complain(*error.lines)
        return EXIT_USAGE


def _serve(verb: Verb, arguments: Arguments, transport: Transport | None) -> int:
    session: Session | None = None
    try:
        session = Session(arguments, transport=transport)
        if verb.writes:
            session.allow_write(verb.name)
        code = verb.run(session, arguments)
        return code or (EXIT_PARTIAL if session.partial else 0)
    except KdirError as error:
        from resolver.cli.error_hints import explain

        explain(error, session)
        return error.exit_code
    finally:
        if session is not None:
            session.close()


def _help(parts: Sequence[str]) -> int:
    if not parts:
        print(overview())
        return 0
    verb = load_verb(parts[0])
    if verb is None:
        return _unknown(parts[0])
    print(verb_help(verb))
    return 0


def _unknown(name: str) -> int:
    complain(f"error: kdir has no verb {name!r}")
    near = nearest_verbs(name)
    if near:
        complain(f"  did you mean: {', '.join(f'kdir {verb}' for verb in near)}")
    complain("  kdir --help lists them")
    return EXIT_USAGE


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kdir")
    except PackageNotFoundError:  # a checkout that was not installed
        return "unknown"


# -- help texts, made from the declarations that parsing uses --------------------------------------

_INTRODUCTION: Final = """\
kdir: one path for every Kafka topic of every cluster.

usage: kdir VERB [ARGUMENT…] [OPTION…]
       kdir VERB --help             explains one verb, with examples
"""

_EPILOGUE: Final = """\
Which servers: --at HOST:PORT,…, else --context NAME, else the variable KDIR_AT, else the current
context (kdir context), else 127.0.0.1:7420. Any server will do: they refer to each other.

Where a topic and a directory share a name, a trailing / asks for the directory: /la/orders/

Output: -o table | wide | json | yaml | name | jsonpath=TEMPLATE. json is one object per line, its
fields those of the contract in snake_case: ids are text, counts and revisions numbers, bytes
URL-safe base64, and what is not set is left out. A template of kubectl's dialect, such as
'{.path} {.topic.partitions}', selects from each of these objects, a line each. On a terminal tables
have headers and human units (7d, 1,204); elsewhere they are tab-separated lines of exact values;
wide prints a table with all its columns. Data goes to stdout, everything else to stderr.

Exit codes: 0 ok, 1 absent, 2 usage, 3 unavailable or partial, 4 denied, 5 conflict, 70 unforeseen,
74 the output cannot be written.

Examples:
  kdir ls /la/tracking                      what is in a directory
  kdir resolve /la/tracking/search/clicks   cluster, topic and bootstrap servers
  kdir which la-tracking search.clicks      the path of a Kafka topic (reverse lookup)
"""


def overview() -> str:
    """Returns the text of ``kdir --help``."""
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
    """Returns the verb's usage on one line."""
    parts = ["kdir", verb.name, *(_format_value(argument) for argument in verb.arguments)]
    if verb.options or verb.formats:
        parts.append("[OPTION…]")
    return " ".join(parts)


def verb_help(verb: Verb) -> str:
    """Returns the text of ``kdir VERB --help``."""
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
            text += f": {option.shown_choices}"
        if len(form) + 2 > width:
            yield f"  {form}"
            yield f"  {'':<{width}}{text}"
        else:
            yield f"  {form:<{width}}{text}"


if __name__ == "__main__":
    sys.exit(main())
