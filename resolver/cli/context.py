"""Verbs for the user's own settings: ``context`` and ``completion``; no server is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resolver.cli.output import Column, Styled, Table
from resolver.cli.parser import FORMATS, Argument, Arguments, Option, UsageError, Verb

if TYPE_CHECKING:
    from resolver.cli.session import Session
    from resolver.user_config import Context, LoginSettings

__all__ = ["VERBS"]


def _context(session: Session, arguments: Arguments) -> int:
    name = arguments.one("NAME")
    match arguments.one("ACTION", "list"):
        case "list":
            if name:
                raise UsageError("context list takes no name", verb="context")
            return _list(session)
        case "use":
            _use(session, name)
        case "unset":
            if name:
                raise UsageError("context unset takes no name", verb="context")
            _unset(session)
        case "rm":
            _remove(session, name)
        case _:
            _set(session, arguments, name)
    return 0


def _list(session: Session) -> int:
    contexts, in_force = session.contexts(), session.context()
    table = Table(
        session.out,
        [
            Column("CURRENT"),
            Column("NAME"),
            Column("PROTECTED"),
            Column("SERVERS"),
            Column("IDENTITY"),
        ],
    )
    rows = []
    for context in contexts.by_name.values():
        current = context is in_force or context == in_force
        if session.out.structured:
            session.out.record(
                {
                    "name": context.name,
                    "servers": list(context.servers),
                    "protected": context.protected,
                    "current": current,
                    **({} if context.allow is None else {"allow": list(context.allow)}),
                    **{key: value for key, value in _files(context.login).items() if value},
                }
            )
        elif session.out.format == "name":
            session.out.line(context.name)
        else:
            protected = Styled("yes", "warn") if context.protected else "no"
            servers = ",".join(context.servers)
            who = context.login.shown or "-"
            rows.append(("*" if current else "", context.name, protected, servers, who))
    table.rows(rows)
    if in_force is None:
        overridden = f"context {contexts.current} is overridden" if contexts.current else ""
        session.out.note(
            f"{overridden or 'no context selected'}; using {','.join(session.servers())}"
        )
    return 0


def _files(login: LoginSettings) -> dict[str, str]:
    """Returns all settings of a login; a token itself is replaced by ``set``."""
    return {**login._asdict(), "token": "set" if login.token else ""}


def _use(session: Session, name: str) -> None:
    from resolver.user_config import write_current

    if not name:
        raise UsageError(
            "context use needs a NAME; kdir context unset selects none", verb="context"
        )
    write_current(name)
    servers = ",".join(session.contexts().get(name).servers)
    if overriding := session.environ.get("KDIR_AT", ""):
        session.out.note(f"current context: {name} ({servers})")
        session.out.note(
            f"not in use: KDIR_AT={overriding} overrides it; to use it: unset KDIR_AT, or "
            f"--context {name}",
            "warn",
        )
        return
    session.out.note(f"now using context {name}: {servers}")


def _unset(session: Session) -> None:
    from resolver.user_config import write_current

    write_current("")
    session.out.note(f"no context selected; using {','.join(session.servers())}")


def _remove(session: Session, name: str) -> None:
    from resolver.user_config import remove_context

    if not name:
        raise UsageError("context rm needs a NAME", verb="context")
    context = session.contexts().get(name)
    if not session.approve(
        f"remove context {name} ({','.join(context.servers)})",
        "Its servers stay as they are; what the file has for it is lost",
    ):
        session.out.note(f"unchanged: context {name}")
        return
    remove_context(name)
    session.out.note(f"removed context {name}")


def _set(session: Session, arguments: Arguments, name: str) -> None:
    from resolver.user_config import Context, config_file, parse_servers, write_context

    if not name:
        raise UsageError("context set needs a NAME", verb="context")
    if arguments.flag("protected") and arguments.flag("unprotected"):
        raise UsageError("--protected or --unprotected, not both", verb="context")
    known = session.contexts().by_name.get(name)
    given = arguments.one("servers")
    if not given and known is None:
        raise UsageError(f"context {name!r} is new: it needs --servers HOST:PORT,…", verb="context")
    servers = parse_servers(given, "--servers") if given else known.servers if known else ()
    protected = known.protected if known else False
    if arguments.flag("protected") or arguments.flag("unprotected"):
        protected = arguments.flag("protected")
    allow = known.allow if known else None
    if arguments.one("allow"):
        allow = tuple(part.strip() for part in arguments.one("allow").split(",") if part.strip())
    write_context(Context(name, servers, protected, _login(arguments, known), allow))
    session.out.note(f"context {name} is in {config_file()}; kdir context use {name} selects it")


def _login(arguments: Arguments, known: Context | None) -> LoginSettings:
    """Returns the credentials of the context with the given files replaced; a token file replaces
    a token.
    """
    import os

    from resolver.credentials import UserCredentials
    from resolver.user_config import LoginSettings

    login = known.login if known else LoginSettings()
    answered = {
        key: arguments.one(key.replace("_", "-")) for key in ("ca", "cert", "key", "token_file")
    }
    files = {
        key: os.path.abspath(os.path.expanduser(file)) for key, file in answered.items() if file
    }
    if "token_file" in files:
        login = login._replace(token="")
    login = login._replace(**files)
    if files:
        UserCredentials(login)  # raises now if a file cannot be used
    return login


def _completion(session: Session, arguments: Arguments) -> int:
    from resolver.cli.completion import script

    session.out.lines(script(arguments.one("SHELL")).splitlines())
    return 0


VERBS: Final = (
    Verb(
        name="context",
        summary="named sets of servers and credentials: list, set, use, unset, rm",
        run=_context,
        destroys=True,
        details=(
            "Contexts live in ~/.config/kdir/config.toml (or under XDG_CONFIG_HOME). A write to\n"
            "the servers of a protected context must name it: kdir mkdir --context prod /la/new\n"
            "\n"
            "KDIR_AT and --at override the selected context; context use says so where it does.\n"
            "\n"
            "A context also says who you are: by a certificate, or by a token in a file that only\n"
            "you may read. With --at or KDIR_AT that is the context whose servers are named. The\n"
            "variables KDIR_CA, KDIR_CERT, KDIR_KEY, KDIR_TOKEN and KDIR_TOKEN_FILE go before.\n"
            "\n"
            "With allow (or KDIR_ALLOW), of the servers that others name only those in these\n"
            "networks and domains are asked; names are compared as texts, and not looked up. A\n"
            "token goes to the context's servers, and besides only to those whose certificate\n"
            "names the cluster that the referral to them named."
        ),
        arguments=(
            Argument(
                "ACTION",
                "list (the default), set, use, unset (use none) or rm",
                least=0,
                choices=("list", "set", "use", "unset", "rm"),
            ),
            Argument("NAME", "the context to set, use or remove", least=0, completes="context"),
        ),
        options=(
            Option(("--servers",), "with set: its directory servers", "HOST:PORT,…"),
            Option(("--protected",), "with set: every write must name the context"),
            Option(("--unprotected",), "with set: writes need no confirmation"),
            Option(
                ("--ca",), "with set: PEM; TLS, to servers of this CA", "FILE", completes="file"
            ),
            Option(("--cert",), "with set: PEM; client certificate", "FILE", completes="file"),
            Option(("--key",), "with set: PEM; the key of --cert", "FILE", completes="file"),
            Option(("--token-file",), "with set: holds a bearer token", "FILE", completes="file"),
            Option(
                ("--allow",),
                "with set: networks and domains of other servers that may be dialled",
                "CIDR|DOMAIN,…",
            ),
        ),
        formats=FORMATS,
        examples=(
            ("kdir context", "all contexts; * marks the selected one"),
            (
                "kdir context set prod --servers la-1:7420,la-2:7420 --protected",
                "create or change one",
            ),
            (
                "kdir context set prod --ca ca.pem --cert alice.pem --key alice.key",
                "mutual TLS to its servers",
            ),
            ("kdir context use prod", "select it"),
            ("kdir context unset", "select none"),
            ("kdir context rm prod", "remove it; asks first"),
        ),
    ),
    Verb(
        name="completion",
        summary="print the completion script of a shell",
        run=_completion,
        details="Completes verbs, options and the paths of the live tree.",
        arguments=(Argument("SHELL", "bash, zsh or fish", choices=("bash", "zsh", "fish")),),
        examples=(
            ("source <(kdir completion bash)", "in ~/.bashrc"),
            ("source <(kdir completion zsh)", "in ~/.zshrc, after compinit"),
            ("kdir completion fish > ~/.config/fish/completions/kdir.fish", "once"),
        ),
    ),
)
