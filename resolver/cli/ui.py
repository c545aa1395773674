"""The verb ``ui``: serves read-only web pages of the tree, with the rights of the user who runs
it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from resolver.cli.find import table_location
from resolver.cli.parser import Arguments, Option, UsageError, Verb

if TYPE_CHECKING:
    from resolver.cli.session import Session

__all__ = ["VERBS"]

_LISTEN: Final = "127.0.0.1:7430"
_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_OPTIONS: Final = ("at", "context", "timeout")
"""Options of the command line that the requests of pages also use."""


def _ui(session: Session, arguments: Arguments) -> int:
    from resolver.cli.web_pages import PAGE_SECONDS, Pages
    from resolver.cli.web_server import WebServer
    from resolver.errors import InvalidArgument
    from resolver.unforeseen_errors import report_unforeseen

    host, port = _listen_address(arguments)
    _check_names(arguments.many("host"))
    options = _page_options(session, arguments)
    pages = Pages(
        options,
        session.transport,
        table=_index_table(arguments, session),
        has_login=any(session.login()),
        environ=session.environ,
        page_seconds=max(PAGE_SECONDS, 4 * session.timeout_seconds),
    )
    out, debug = session.out, arguments.flag("debug")
    try:
        server = WebServer(
            host,
            port,
            pages.page,
            names=arguments.many("host"),
            report=lambda error: report_unforeseen(error, "kdir ui", debug=debug),
        )
    except OSError as error:
        raise InvalidArgument(f"--listen {host}:{port}: {error.strerror or error}") from error
    with server:
        out.line(f"http://{server.address}/")
        who = "everyone who reaches this port" if _is_remote(host) else "every user of this machine"
        out.note(f"read-only; {who} reads what you may read. ^C ends it", "warn")
        out.flush()
        server.serve_forever()
    return 0


def _page_options(session: Session, arguments: Arguments) -> list[str]:
    """Returns the options for the requests of pages. They name the servers of the start, even if
    another context is selected later, since the credentials are also those of the start.

    Raises:
        InvalidArgument: there is no such context, or the named servers are invalid.
    """
    values = {key: arguments.one(key) for key in _OPTIONS}
    if not values["at"] and not values["context"]:
        context = session.context()
        values["context"] = context.name if context else ""
        values["at"] = "" if context else ",".join(session.servers())
    return [f"--{key}={value}" for key, value in values.items() if value]


def _listen_address(arguments: Arguments) -> tuple[str, int]:
    """Returns the address and port to listen on.

    Raises:
        UsageError: the value is not ADDRESS:PORT, or other machines can reach the address, without
            ``--allow-remote``.
    """
    text = arguments.one("listen", _LISTEN)
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise UsageError(f"--listen {text!r}: ADDRESS:PORT such as {_LISTEN}", verb="ui")
    import ipaddress

    host = "127.0.0.1" if host == "localhost" else host
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(f"--listen {text!r}: an IP address was expected", verb="ui") from None
    if _is_remote(host) and not arguments.flag("allow-remote"):
        raise UsageError(
            f"--listen {text}: without a login and without TLS, everyone who reaches this port "
            f"reads what you may read; to do so: --allow-remote",
            verb="ui",
        )
    return host, int(port)


def _check_names(names: Sequence[str]) -> None:
    """Checks that browsers can call this server by these names.

    Raises:
        UsageError
    """
    for name in names:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"--host {name!r}: a name without a port was expected, such as kdir.example.com",
                verb="ui",
            )


def _is_remote(host: str) -> bool:
    import ipaddress

    return not ipaddress.ip_address(host).is_loopback


def _index_table(arguments: Arguments, session: Session) -> str:
    """Returns the location of the index to search in: the named one, else the user's own; empty =
    there is none.
    """
    table = table_location(arguments, session.environ)
    is_named = arguments.one("table") or session.environ.get("KDIR_INDEX")
    return table if is_named or os.path.isdir(table) else ""


VERBS: Final = (
    Verb(
        name="ui",
        summary="serve read-only web pages of the tree, on this machine",
        run=_ui,
        details=(
            "Directories, topics, policies with their origin, grants, history, mounts and search,\n"
            "in a browser, as the other verbs print them. Each page asks the directory servers\n"
            "with your credentials; nothing can be changed, and there is no login: every user of\n"
            "this machine can read what you may read while it runs.\n"
            "The requests of one page have a minute, or four times --timeout if that is longer.\n"
            "The address is printed; a port of 0 is a free one. Runs until ^C."
        ),
        options=(
            Option(("--listen",), f"default {_LISTEN}", "ADDRESS:PORT"),
            Option(
                ("--allow-remote",),
                "listen where others reach it: they read what you may read, in the clear",
            ),
            Option(
                ("--host",), "a name that a browser may call it by; repeatable", "NAME",
                repeated=True,
            ),
            Option(("--table",), "index to search in, as of kdir find", "LOCATION"),
        ),
        examples=(
            ("kdir ui", f"at http://{_LISTEN}/"),
            ("kdir ui --listen 127.0.0.1:0 --context prod", "at a free port, of other servers"),
        ),
    ),
)  # fmt: skip
