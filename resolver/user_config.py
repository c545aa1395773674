"""Contexts of a user: named sets of directory servers, each with the user's credentials, in a TOML
file. Secrets are not shown.

The file (``$XDG_CONFIG_HOME/kdir/config.toml``, else ``~/.config/kdir/config.toml``)::

    current = "prod"

    [contexts.prod]
    servers = ["la-1:7420", "la-2:7420"]
    protected = true          # every write needs --context prod
    ca = "prod/ca.pem"        # TLS: CA of trusted servers; files are beside this one
    cert = "prod/alice.pem"   # who the user is: by certificate,
    key = "prod/alice.key"
    token_file = "/run/user/1000/kdir-token"   # or by token (or token = "…" itself)
    allow = ["10.0.0.0/8", "example.com"]      # further servers that may be asked; absent: all

The variables KDIR_CA, KDIR_CERT, KDIR_KEY, KDIR_TOKEN, KDIR_TOKEN_FILE and KDIR_ALLOW override the
file.

An edit changes single lines, so that comments stay; if that cannot be done (multi-line values,
inline tables), the file is written again without comments.
"""

# pathlib would cost the completion of a path a tenth of its time.

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

from resolver.errors import InvalidArgument, KdirError, Unavailable
from resolver.printable import cut_shown

__all__ = [
    "DEFAULT_SERVER",
    "NO_CONTEXTS",
    "Context",
    "Contexts",
    "LoginSettings",
    "cache_folder",
    "choose_allow",
    "choose_context",
    "choose_credentials",
    "choose_servers",
    "config_file",
    "environment_allow",
    "environment_login",
    "load_contexts",
    "parse_servers",
    "remove_context",
    "unreadable_file_error",
    "write_context",
    "write_current",
]

DEFAULT_SERVER: Final = "127.0.0.1:7420"
"""Default address of a directory server."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_FILES = ("ca", "cert", "key", "token_file")
_KEYS = ("servers", "protected", *_FILES, "token", "allow")


class LoginSettings(NamedTuple):
    """Credentials of a user: PEM files of the trusted CA and of the user's certificate and key, and
    a token or its file. All empty = no TLS and an anonymous caller.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    token: str = ""
    token_file: str = ""

    def __repr__(self) -> str:
        return f"Login({self.shown or 'nobody in particular'})"

    @property
    def variables(self) -> dict[str, str]:
        """The same settings as environment variables."""
        return {name: value for name, value in zip(_VARIABLES, self, strict=True) if value}

    @property
    def shown(self) -> str:
        """User's identity for people, without a secret, such as ``certificate alice.pem``."""
        parts = []
        if self.token_file or self.token:
            parts.append(f"token of {self.token_file}" if self.token_file else "a token")
        if self.cert:
            parts.append(f"certificate {self.cert}")
        return ", ".join(parts) or ("nobody, over TLS" if self.ca else "")


_VARIABLES: Final = tuple(f"KDIR_{key.upper()}" for key in LoginSettings._fields)


class Context(NamedTuple):
    """Named set of start servers, each ``host:port``, with the user's credentials."""

    name: str
    servers: tuple[str, ...]
    protected: bool = False
    login: LoginSettings = LoginSettings()
    allow: tuple[str, ...] | None = None
    """Networks and domains of further servers that may be asked; None = all."""


class Contexts(NamedTuple):
    """All contexts by name, and the name of the current context (empty = none)."""

    current: str = ""
    by_name: Mapping[str, Context] = MappingProxyType({})

    def get(self, name: str) -> Context:
        """Returns the context of that name.

        Raises:
            InvalidArgument: there is no such context; the message names the known ones.
        """
        found = self.by_name.get(name)
        if found is None:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise InvalidArgument(
                f"context {name!r}: there is none of that name in {config_file()}; known: {known}",
                field="context",
            )
        return found


NO_CONTEXTS: Final = Contexts()


def config_file() -> str:
    """Returns the path of the contexts' file, whether or not it exists."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: a relative path is ignored
        base = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "kdir", "config.toml")


def cache_folder() -> str:
    """Returns the folder of kdir's caches (XDG base directories)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "kdir")


def choose_context(at: str, name: str, environ: Mapping[str, str]) -> Context | None:
    """Returns the context ``name``, else the current one; None if there is none, or if ``at`` or,
    without a ``name``, ``KDIR_AT`` names servers.

    Raises:
        InvalidArgument: there is no such context, or the file is wrong.
    """
    if at or (environ.get("KDIR_AT") and not name):
        return None
    contexts = load_contexts()
    name = name or contexts.current
    return contexts.get(name) if name else None


def choose_servers(at: str, name: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the servers to call: those in ``at``, else those of the context ``name``, else those
    in ``KDIR_AT``, else those of the current context, else the server on this machine.

    Raises:
        InvalidArgument: ``at`` or ``KDIR_AT`` is invalid, or there is no context ``name``.
    """
    if at:
        return parse_servers(at, "--at")
    if not name and (named := environ.get("KDIR_AT", "")):
        return parse_servers(named, "KDIR_AT")
    context = choose_context(at, name, environ)
    return context.servers if context else (DEFAULT_SERVER,)


def choose_credentials(at: str, name: str, environ: Mapping[str, str]) -> LoginSettings:
    """Returns the user's credentials for the servers of ``choose_servers``: those of the named or
    current context, else of the context that has one of these servers, else none. Environment
    variables override them.

    Raises:
        InvalidArgument: there is no such context, several fit, or the file is wrong.
    """
    context = _context_meant(at, name, environ)
    login = context.login if context else LoginSettings()
    answered = environment_login(environ)
    if answered.token or answered.token_file:
        login = login._replace(token="", token_file="")
    return login._replace(**{key: value for key, value in answered._asdict().items() if value})


def choose_allow(at: str, name: str, environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Returns the networks and domains of the servers that may be called besides those of
    ``choose_servers``: from ``KDIR_ALLOW``, else the context of ``choose_credentials``; None = all.

    Raises:
        InvalidArgument: there is no such context, several fit, or the file is wrong.
    """
    answered = environment_allow(environ)
    if answered is not None:
        return answered
    context = _context_meant(at, name, environ)
    return context.allow if context else None


def environment_allow(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Returns the value of ``KDIR_ALLOW``, such as ``10.0.0.0/8,example.com``; None = not set."""
    answered = environ.get("KDIR_ALLOW", "")
    return tuple(part.strip() for part in answered.split(",") if part.strip()) if answered else None


def _context_meant(at: str, name: str, environ: Mapping[str, str]) -> Context | None:
    """Returns the named or current context, else one that has one of the chosen servers; None =
    there is none.

    Raises:
        InvalidArgument: several contexts have, with different credentials or allow lists.
    """
    context = choose_context("" if name else at, name, environ)
    if context is not None:
        return context
    servers = set(choose_servers(at, name, environ))
    found = [one for one in load_contexts().by_name.values() if servers & set(one.servers)]
    if len({(one.login, one.allow) for one in found}) > 1:
        names = ", ".join(one.name for one in found)
        raise InvalidArgument(
            f"contexts {names} have a server of {','.join(sorted(servers))}, each with credentials "
            f"or an allow list of its own; say which is meant: --context {found[0].name}",
            field="context",
        )
    return found[0] if found else None


def environment_login(environ: Mapping[str, str]) -> LoginSettings:
    """Returns the credentials in the variables ``KDIR_CA``, ``KDIR_CERT`` etc., without reading a
    context.
    """
    return LoginSettings(*(environ.get(name, "") for name in _VARIABLES))


def parse_servers(text: str, where: str) -> tuple[str, ...]:
    """Returns the servers in a text ``host:port,host:port``.

    Raises:
        InvalidArgument: the text has another form; ``where`` names its source in the message.
    """
    servers = tuple(part.strip() for part in text.split(",") if part.strip())
    if not servers:
        raise InvalidArgument(f"{where}: no server is named; HOST:PORT,… was expected")
    for server in servers:
        _check_server(server, where)
    return servers


def _check_server(server: object, where: str) -> None:
    from resolver.host_port import parse_endpoint

    if not isinstance(server, str):
        shown = cut_shown(server)
        raise InvalidArgument(f"{where}: {shown} is not HOST:PORT, such as {DEFAULT_SERVER}")
    try:
        parse_endpoint(server)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error.message}") from None


def load_contexts() -> Contexts:
    """Returns the contexts in ``config_file()``; none if the file does not exist.

    Raises:
        InvalidArgument: the file may not be read or is invalid; the message names the key and the
            value expected.
        Unavailable: the file cannot be read now.
    """
    name = config_file()
    try:
        with open(name, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return NO_CONTEXTS
    except OSError as error:
        raise unreadable_file_error(error, name) from error
    return _parse(content, name)


_OF_THE_CALLER: Final = frozenset(
    {
        *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR),
        *(errno.ENAMETOOLONG, errno.ELOOP),
    }
)


def unreadable_file_error(error: OSError, file: str, field: str = "") -> KdirError:
    """Returns the error for a file of the caller that cannot be read: InvalidArgument if it is
    missing, is no file or may not be read; else, such as for a failing disk, Unavailable, since a
    retry may succeed (docs/reference/errors.md#exit-codes).
    """
    where = f"{field}: {file}" if field else file
    message = f"{where}: cannot be read: {os.strerror(error.errno or 0)}"
    if error.errno in _OF_THE_CALLER:
        return InvalidArgument(message, metadata={"field": field} if field else {})
    return Unavailable(message, file=file)


def _parse(content: bytes, name: str) -> Contexts:
    import tomllib

    try:
        table = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also an integer with too many digits
        raise InvalidArgument(f"{name}: is not TOML: {error}") from error
    _check_keys(table, ("current", "contexts"), name)
    current = table.get("current", "")
    contexts = table.get("contexts", {})
    if not isinstance(current, str) or not isinstance(contexts, dict):
        raise InvalidArgument(f"{name}: current is a name, contexts are [contexts.NAME] tables")
    by_name = {key: _context(key, value, name) for key, value in contexts.items()}
    if current and current not in by_name:
        raise InvalidArgument(f"{name}: current is {current!r}, but there is no such context")
    return Contexts(current, MappingProxyType(by_name))


def _context(key: str, value: Any, name: str) -> Context:
    where = f"{name}: contexts.{key}"
    if not isinstance(value, dict):
        raise InvalidArgument(f"{where} is no table")
    _check_keys(value, _KEYS, where)
    servers = value.get("servers")
    if not isinstance(servers, list) or not servers:
        raise InvalidArgument(f"{where}.servers: a list of HOST:PORT was expected")
    for server in servers:
        _check_server(server, f"{where}.servers")
    protected = value.get("protected", False)
    if not isinstance(protected, bool):
        raise InvalidArgument(f"{where}.protected: true or false was expected")
    allow = value.get("allow")
    if allow is not None:
        check_allow(allow, f"{where}.allow")
        allow = tuple(allow)
    return Context(key, tuple(servers), protected, _login(value, where, name), allow)


def check_allow(allow: object, where: str) -> None:
    """Checks the value of ``allow`` in a file.

    Raises:
        InvalidArgument: it is no list of networks and domains; the message names ``where``.
    """
    from resolver.endpoints import AllowList

    if not isinstance(allow, list | tuple) or not all(isinstance(one, str) for one in allow):
        raise InvalidArgument(f"{where}: a list of networks and domains was expected")
    try:
        AllowList.of(allow, ())
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error.message.removeprefix('allow: ')}") from None


def _login(value: Mapping[str, Any], where: str, name: str) -> LoginSettings:
    found = {key: value.get(key, "") for key in LoginSettings._fields}
    for key, text in found.items():
        if not isinstance(text, str):
            raise InvalidArgument(f"{where}.{key}: a text was expected")
        if key in _FILES and text:
            found[key] = os.path.join(os.path.dirname(name), os.path.expanduser(text))
    if bool(found["cert"]) != bool(found["key"]):
        raise InvalidArgument(f"{where}: cert and key go together")
    if found["token"] and found["token_file"]:
        raise InvalidArgument(f"{where}: token or token_file, not both")
    if found["token"] and os.path.exists(name) and os.stat(name).st_mode & 0o077:
        raise InvalidArgument(f"{name}: holds a token, and others may read it: chmod 600 {name}")
    return LoginSettings(**found)


def _check_keys(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            _unknown_key(key, known, where)


def _unknown_key(key: str, known: Sequence[str], where: str) -> NoReturn:
    import difflib

    near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    raise InvalidArgument(f"{where}: unknown key {key!r}; did you mean {near[0]!r}?")


def write_context(context: Context) -> None:
    """Adds a context to the file, or changes the one of that name.

    Raises:
        InvalidArgument: a name, server or allow list is invalid, or the file cannot be written.
    """
    if not _NAME.fullmatch(context.name):
        raise InvalidArgument(
            f"context name {context.name!r}: 1–64 of a-z A-Z 0-9 _ - were expected", field="name"
        )
    for server in context.servers:
        _check_server(server, f"context {context.name}")
    for key, text in zip(LoginSettings._fields, context.login, strict=True):
        _check_utf8(text, f"context {context.name}: {key}")
    before = load_contexts()
    wanted = Contexts(before.current, {**before.by_name, context.name: context})
    lines = _lines()
    header = _header(context.name)
    start = next((at for at, line in enumerate(lines) if header.match(line)), None)
    if start is None:
        if lines and lines[-1].strip():
            lines.append("")
        start = len(lines)
        lines.append(f"[contexts.{context.name}]")
    _set_key(lines, start + 1, "servers", _quoted_list(context.servers))
    _set_key(lines, start + 1, "protected", "true" if context.protected else "false")
    if context.allow is not None:
        check_allow(context.allow, f"context {context.name}")
        _set_key(lines, start + 1, "allow", _quoted_list(context.allow))
    for key, text in zip(LoginSettings._fields, context.login, strict=True):
        known = before.by_name.get(context.name)
        if text and (known is None or text != getattr(known.login, key)):
            _set_key(lines, start + 1, key, _quoted(text))
    _write(lines, wanted)


def write_current(name: str) -> None:
    """Makes a context the current one; empty = no context is current.

    Raises:
        InvalidArgument: there is none of that name, or the file cannot be written.
    """
    before = load_contexts()
    if name:
        before.get(name)
    elif not before.current:
        return
    lines = _lines()
    if name:
        _set_key(lines, 0, "current", f'"{name}"')
    else:
        _remove_current(lines)
    _write(lines, Contexts(name, before.by_name))


def remove_context(name: str) -> None:
    """Removes a context from the file; if it was the current one, none is current afterwards.

    Raises:
        InvalidArgument: there is none of that name, or the file cannot be written.
    """
    before = load_contexts()
    before.get(name)
    lines = _lines()
    header = _header(name)
    start = next((at for at, line in enumerate(lines) if header.match(line)), None)
    if start is not None:
        end = start + 1
        while end < len(lines) and not lines[end].lstrip().startswith("["):
            end += 1
        del lines[start:end]
    if before.current == name:
        _remove_current(lines)
    kept = {key: context for key, context in before.by_name.items() if key != name}
    _write(lines, Contexts("" if before.current == name else before.current, kept))


def _header(name: str) -> re.Pattern[str]:
    """Returns the pattern of the line that begins a context's table."""
    return re.compile(rf"\s*\[\s*contexts\s*\.\s*([\"']?){re.escape(name)}\1\s*\]")


def _remove_current(lines: list[str]) -> None:
    for at, line in enumerate(lines):
        if line.lstrip().startswith("["):
            return
        if re.match(r"\s*current\s*=", line):
            del lines[at]
            return


def _lines() -> list[str]:
    try:
        with open(config_file(), encoding="utf-8") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


_QUOTED: Final = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'')
"""A string of TOML on one line."""


def _set_key(lines: list[str], start: int, key: str, value: str) -> None:
    """Changes ``key`` in the table that begins at line ``start``, or adds it there."""
    pattern = re.compile(rf"\s*{key}\s*=")
    at = start
    while at < len(lines) and not lines[at].lstrip().startswith("["):
        if pattern.match(lines[at]):
            masked = _QUOTED.sub(lambda found: "_" * len(found[0]), lines[at])
            begin = masked.find(" #")
            lines[at] = f"{key} = {value}" + (f" {lines[at][begin:]}" if begin >= 0 else "")
            return
        at += 1
    # After the table's last line that is not blank; a top-level key becomes the first line.
    while at > start and not lines[at - 1].strip():
        at -= 1
    lines.insert(at if start else 0, f"{key} = {value}")


def _write(lines: list[str], wanted: Contexts) -> None:
    name = config_file()
    content = "\n".join(lines) + "\n"
    try:
        understood = _parse(content.encode(), name) == wanted
    except InvalidArgument:
        understood = False
    if not understood:
        # Multi-line values, inline tables or dotted keys: valid, but not editable by lines.
        content = _whole(wanted)
        _check_toml(content, name)
    name = os.path.realpath(name)  # a symlink stays one
    try:
        os.makedirs(os.path.dirname(name), mode=0o700, exist_ok=True)
        temporary = f"{name}.{os.getpid()}"
        # It may hold a token, now or later.
        made = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(made, "w", encoding="utf-8") as file:
            file.write(content)
        os.replace(temporary, name)
    except OSError as error:
        raise InvalidArgument(f"{name}: cannot be written: {error.strerror}") from error


def _check_toml(content: str, name: str) -> None:
    import tomllib

    try:
        tomllib.loads(content)
    except ValueError as error:
        raise InvalidArgument(f"{name}: is left as it was: no TOML for it: {error}") from error


def _check_utf8(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{where}: is not UTF-8, as a file of TOML must be") from None


_ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029]")
"""Characters that JSON leaves as they are, and that end a line or that TOML does not allow."""


def _quoted(text: str) -> str:
    """Returns a string of TOML on one line: one of JSON without surrogates."""
    import json

    quoted = json.dumps(text, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)


def _quoted_list(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(_quoted, texts))}]"


def _whole(contexts: Contexts) -> str:
    parts = [f'current = "{contexts.current}"\n'] if contexts.current else []
    for context in contexts.by_name.values():
        servers = _quoted_list(context.servers)
        protected = "true" if context.protected else "false"
        allow = "" if context.allow is None else f"allow = {_quoted_list(context.allow)}\n"
        login = "".join(
            f"{key} = {_quoted(text)}\n"
            for key, text in zip(LoginSettings._fields, context.login, strict=True)
            if text
        )
        parts.append(
            f'[contexts."{context.name}"]\nservers = {servers}\nprotected = {protected}\n'
            f"{login}{allow}"
        )
    return "\n".join(parts)
