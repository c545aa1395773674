"""Entry point of ``kdir``: finds the verb, runs it, turns what went wrong into words and codes.

Refuses to import anything that only some verbs need: start-up is felt on every call.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from resolver.cli.output import complain
from resolver.cli.parser import Arguments, UsageError, Verb, parse, split_verb
from resolver.cli.registry import load_verb, nearest_verbs
from resolver.cli.session import Session
from resolver.errors import KdirError

if TYPE_CHECKING:
    from resolver.transport import Transport

__all__ = ["EXIT_BROKEN_PIPE", "EXIT_INTERRUPTED", "EXIT_PARTIAL", "EXIT_USAGE", "main"]

EXIT_USAGE = 2
EXIT_PARTIAL = 3
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""128 + SIGINT and 128 + SIGPIPE, as shells report a program that the signal ended."""


def main(parts: Sequence[str] | None = None, *, transport: Transport | None = None) -> int:
    """Runs one command line; returns the exit code.

    Without ``parts`` it is the command itself: it runs ``sys.argv``, and ends the process.
    ``transport`` reaches the servers; gRPC by default.
    """
    if parts is not None:
        return _guarded(parts, transport)
    if "server" not in sys.argv:
        # Else each handshake that fails is told on stderr by gRPC, too, in its own words.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    code = _guarded(sys.argv[1:], None)
    if "py4j" not in sys.modules:  # Spark has things to do at exit; nothing else of ours has
        sys.stderr.flush()
        # Taking gRPC and the interpreter apart would be a tenth of `kdir ls`.
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
        # Whoever read has enough. What is still buffered must not fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


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
        arguments = parse(verb, [*rest, *before] if not verb.raw else rest)
        if {"-h", "--help"} & {*before, *(rest if verb.raw else ())} or arguments.flag("help"):
            return _help([name])
        return _serve(verb, arguments, transport)
    except UsageError as error:
        about = f"{error.verb} " if error.verb else ""
        complain(f"error: {error.message}", f"  kdir {about}--help explains it")
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
    from resolver.cli.help import overview, verb_help

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
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
