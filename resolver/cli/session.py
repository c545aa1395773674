"""Session: what one command works with (servers, output, deadline), made when first wanted."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from resolver.cli.output import Output
from resolver.cli.parser import Arguments, UsageError

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from resolver.client import Resolver
    from resolver.contexts import Context, Contexts
    from resolver.errors import KdirError
    from resolver.path import Path
    from resolver.transport import Transport

__all__ = ["Place", "Session", "place"]


class Place(NamedTuple):
    """A path as it was written on the command line: with a ``/`` behind it a directory is meant."""

    path: Path
    directory: bool

    @property
    def prefer(self) -> str:
        """What ``Resolver.resolve`` calls it."""
        return "directory" if self.directory else ""

    @property
    def kind(self) -> str:
        """The name of the ``kdir.v1.EntryKind`` that the contract's requests take."""
        return "ENTRY_KIND_DIRECTORY" if self.directory else "ENTRY_KIND_UNSPECIFIED"

    def __str__(self) -> str:
        return f"{self.path}/" if self.directory and not self.path.is_root else str(self.path)


def place(text: str) -> Place:
    """Read a path of the command line.

    Raises:
        InvalidPath: not canonical, but for one ``/`` behind it.
    """
    from resolver.path import Path

    if text == "/":
        return Place(Path(), directory=True)
    directory = text.endswith("/") and text != "//"
    return Place(Path.parse(text[:-1] if directory else text), directory)


class Session:
    """One run of one verb.

    ``partial`` is set by whoever had to leave something out; the exit code is then 3.
    """

    def __init__(
        self,
        arguments: Arguments,
        *,
        output: Output | None = None,
        environ: Mapping[str, str] | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.environ = os.environ if environ is None else environ
        self.out = output or Output(arguments.one("output"), environ=self.environ)
        self.verbose = arguments.flag("verbose")
        self.timeout_seconds = arguments.seconds("timeout", arguments.verb.timeout_seconds)
        self.partial = False
        self._at = arguments.one("at")
        self._context_name = arguments.one("context")
        self._transport = transport
        self._owns_transport = transport is None
        self._resolver: Resolver | None = None

    # -- which servers ---------------------------------------------------------------------------

    def contexts(self) -> Contexts:
        """The user's contexts."""
        from resolver.contexts import load_contexts

        return load_contexts()

    def context(self) -> Context | None:
        """The context in force; None where servers are named, or there is none."""
        from resolver.contexts import choose_context

        return choose_context(self._at, self._context_name, self.environ)

    def servers(self) -> tuple[str, ...]:
        """The directory servers to begin with, ``host:port``, and never none.

        Raises:
            InvalidArgument: what was named is no server, or no context.
        """
        from resolver.contexts import choose_servers

        return choose_servers(self._at, self._context_name, self.environ)

    def allow_write(self, verb: str) -> None:
        """Check that the context may be written to without another word.

        Raises:
            UsageError: the servers are those of a protected context that was not named.
        """
        contexts = self.contexts()
        guarded = [context for context in contexts.by_name.values() if context.protected]
        if not guarded:
            return
        servers = set(self.servers())
        for context in guarded:
            if context.name != self._context_name and servers & set(context.servers):
                raise UsageError(
                    f"context {context.name!r} is protected: "
                    f"to change it, say so: kdir {verb} --context {context.name} …",
                    verb=verb,
                )

    # -- asking ----------------------------------------------------------------------------------

    @property
    def resolver(self) -> Resolver:
        """Asks directories; made when first wanted, since gRPC is most of a start-up."""
        if self._resolver is None:
            from resolver.client import Resolver

            self._resolver = Resolver(
                self.servers(), timeout_seconds=self.timeout_seconds, transport=self.transport
            )
        return self._resolver

    @property
    def transport(self) -> Transport:
        """Asks one server by its address; what the resolver uses, too."""
        if self._transport is None:
            from resolver.transport import GrpcTransport

            self._transport = GrpcTransport()
        return self._transport

    def ask_any(self, method_name: str, request: Message) -> Any:
        """Ask the servers that the user named, in order, until one answers.

        Raises:
            KdirError: what the last one said; with all attempts where none answered.
        """
        from resolver.errors import DeadlineExceeded, Unavailable
        from resolver.transport import method

        wanted = method(method_name)
        attempts: list[str] = []
        last: KdirError | None = None
        for server in self.servers():
            try:
                return self.transport.call(server, wanted, request, self.timeout_seconds)
            except (Unavailable, DeadlineExceeded) as error:
                attempts.append(f"{server}: {error}")
                last = error
        assert last is not None  # noqa: S101 - there is always a server
        last.attempts = tuple(attempts)
        raise last

    def close(self) -> None:
        """Give back what was opened."""
        if self._resolver is not None:
            self._resolver.close()
        if self._transport is not None and self._owns_transport:
            self._transport.close()

    @property
    def interactive(self) -> bool:
        """Whether there is a person to ask."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    def confirm(self, question: str) -> bool:
        """Ask a person; without one the answer is no."""
        if not self.interactive:
            return False
        self.out.flush()
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in {"y", "yes"}

    def not_listed(self, path: object, error: KdirError) -> None:
        """Say which part of a listing is missing, and why; the exit code becomes 3."""
        why = str(error).removeprefix(f"{path}: ")
        self.missing(f"not listed: {path}: {why}")

    def missing(self, text: str) -> None:
        """Say what could not be shown; the exit code becomes 3."""
        self.partial = True
        self.out.note(text, "warn")
